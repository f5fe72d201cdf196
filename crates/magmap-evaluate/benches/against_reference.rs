//! Bound and gradient, and the updates of a whole stream, against the Python reference: in one run, on one core, on equal data,
//! in turns.
//!
//! `taskset -c 0 cargo bench --bench against_reference` keeps both on the same core.
//!
//! The reference is not part of the repository: `MAGMAP_REFERENCE` names its folder, or it is next to the checkout.

#[path = "../../streaming-gp/benches/common/mod.rs"]
mod common;

use common::readings;
use magmap::config::{Config, Mapped};
use magmap_evaluate::drives::{self, Experiment, Material};
use magmap_tools::recording::aalto_csv::Magnetometer;
use serde::Deserialize;
use serde_json::json;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use streaming_gp::kernel::Places;
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::whitened::Rows;

const READINGS: usize = 469;
const JITTER: f64 = 1e-6;
/// Evaluations of one side in a row, so that neither is timed while it wakes up.
const TURN: usize = 10;
const STREAM: Experiment = Experiment::Stream;
const STREAM_REPETITIONS: usize = 5;

fn main() {
    // `cargo test --benches` asks only whether it runs.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let Some(folder) = reference_folder() else { return };
    println!("bound and gradient, {READINGS} readings, nested, one core, medians of evaluations in turns");
    println!("{:>5} {:>14} {:>10} {:>7}", "M", "reference / ms", "ours / ms", "ratio");
    for (size, repetitions) in [(50, 600), (200, 200), (800, 30)] {
        match compare(&folder, size, repetitions) {
            Ok([reference, ours]) => {
                println!("{size:>5} {:>14.3} {:>10.3} {:>7.2}", reference * 1e3, ours * 1e3, reference / ours)
            }
            Err(error) => {
                println!("SKIPPED: the reference does not run ({error}); it needs python3 with numpy and scipy");
                return;
            }
        }
    }
    if let Err(error) = compare_streams(&folder) {
        println!("SKIPPED the streams: {error}");
    }
}

/// The updates of the `stream` experiment on the Aalto drives, in the settings of the paper and in magmap's, and of the three axes.
fn compare_streams(folder: &Path) -> std::io::Result<()> {
    let data = std::env::var_os("MAGMAP_DATA").map_or_else(|| folder.join("../data/aalto-magnetic"), PathBuf::from);
    if !data.is_dir() {
        println!("SKIPPED the streams: no folder {} (set MAGMAP_DATA)", data.display());
        return Ok(());
    }
    println!("all updates of `evaluate stream`, one core, medians of {STREAM_REPETITIONS} runs in turns");
    println!("{:>8} {:>24} {:>13} {:>8} {:>7}", "settings", "method", "reference / s", "ours / s", "ratio");
    let defaults = Config::default();
    let paper = Config::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/paper.toml").as_path());
    let paper = paper.map_err(std::io::Error::other)?;
    let as_ours = ["--cut", "equal", "--spacing", "0.05", "--prior"];
    let vips = format!("vips={}", defaults.selection.delta);
    // With the paper's settings, conditional variance goes to its cap: hours of the same matrices.
    let cases = [
        ("paper's", &paper, &[][..], &["vips=0.095", "oips=0.93"][..]),
        ("magmap's", &defaults, &as_ours[..], &[&vips, "oips=0.93", "conditional_variance=0.5"][..]),
    ];
    for (name, config, arguments, methods) in cases {
        let material = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, config)
            .map_err(std::io::Error::other)?;
        for method in methods {
            let mut config = config.clone();
            config.selection.method = method.parse().map_err(std::io::Error::other)?;
            let (method_name, parameter) = method.split_once('=').expect("a method with its parameter");
            let short = if method_name == "conditional_variance" { "cv" } else { method_name };
            let mut command = single_threaded("python3");
            command.arg(folder.join("evaluate_stream.py")).args(arguments).env("MAGMAP_DATA", &data);
            command.args(["--method", short, "--parameter", parameter]);
            let [reference, ours] = in_turns(&mut command, &material, &config)?;
            println!("{name:>8} {method:>24} {reference:>13.3} {ours:>8.3} {:>7.1}", reference / ours);
        }
    }
    // The reference averages over 10 cm and is tested on every fifth reading.
    let mut config = defaults;
    config.model.field = Mapped::Vector;
    config.averaging.spacing = 0.1;
    let material = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, &config);
    let material = material.map_err(std::io::Error::other)?.tested_on_every(5);
    let mut command = single_threaded("python3");
    command.arg(folder.join("vector_field.py")).arg("stream").env("MAGMAP_DATA", &data);
    let [reference, ours] = in_turns(&mut command, &material, &config)?;
    println!("{:>8} {:>24} {reference:>13.3} {ours:>8.3} {:>7.1}", "10 cm", "three axes", reference / ours);
    Ok(())
}

/// The median seconds of all updates: of the reference that this command runs, and ours.
fn in_turns(command: &mut Command, material: &Material, config: &Config) -> std::io::Result<[f64; 2]> {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..STREAM_REPETITIONS {
        let output = command.stderr(Stdio::null()).output()?;
        let last = output.stdout.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        let reference: Stream = serde_json::from_slice(last)?;
        seconds[0].push(reference.seconds);
        let outcome = drives::run(material, config, 0.0, |_, _| ()).map_err(std::io::Error::other)?;
        seconds[1].push(outcome.seconds);
    }
    Ok(seconds.map(median))
}

/// Printed numbers of the reference's `evaluate_stream.py`, and the last line of its `vector_field.py`.
#[derive(Deserialize)]
struct Stream {
    seconds: f64,
}

/// A command whose linear algebra keeps to one core.
fn single_threaded(program: &str) -> Command {
    let mut command = Command::new(program);
    for threads in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"] {
        command.env(threads, "1");
    }
    command
}

fn reference_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("MAGMAP_REFERENCE")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference"));
    if folder.join("sgpref.py").is_file() {
        return Some(folder);
    }
    println!("SKIPPED: no sgpref.py in {} (set MAGMAP_REFERENCE to its folder)", folder.display());
    None
}

/// The median seconds of one evaluation of the reference and of ours.
fn compare(folder: &Path, size: usize, repetitions: usize) -> std::io::Result<[f64; 2]> {
    let old = size * 3 / 4;
    let side = common::side(size);
    let (old_places, old_targets) = readings(0, old, side);
    let (places, targets) = readings(old, READINGS, side);
    let model = Model { jitter: Jitter::Absolute(JITTER), ..common::model() };

    let first = Rows::nested(&old_places, &old_targets, None, &old_places);
    let whitened = first.whiten(&model).expect("positive definite");
    let posterior = Posterior::new(model.clone(), first.into_past(whitened)).expect("positive definite");
    let additional = places.select(0..size - old);
    let rows = Rows::nested(&places, &targets, Some(&posterior.past), &additional);
    let evaluate = || {
        let whitened = rows.whiten(black_box(&model)).expect("positive definite");
        let found = (whitened.bound(), rows.gradient(&model, &whitened));
        rows.recycle(whitened);
        found
    };

    let case = json!({
        "constant": 500.0, "variance": 150.0, "lengthscale": 0.7, "noise": 2.0, "jitter": JITTER,
        "old_places": pairs(&old_places), "old_targets": old_targets,
        "places": pairs(&places), "targets": targets, "additional": size - old,
    });
    let mut reference = Reference::start(folder, &case.to_string())?;
    assert_equal(&evaluate(), &reference.expected);
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..repetitions / TURN {
        seconds[0].extend(reference.evaluate(TURN)?);
        for _ in 0..TURN {
            let start = Instant::now();
            black_box(evaluate());
            seconds[1].push(start.elapsed().as_secs_f64());
        }
    }
    Ok(seconds.map(median))
}

/// Checks that both compute the same, without which the comparison means nothing. The tolerances are far above the rounding of either.
fn assert_equal((bound, gradient): &(f64, Vec<f64>), expected: &Expected) {
    let error = (bound - expected.bound).abs() / expected.bound.abs();
    assert!(error < 1e-6, "bound {bound}, reference {}", expected.bound);
    let largest = expected.gradient.iter().fold(0.0, |largest: f64, entry| largest.max(entry.abs()));
    for (found, expected) in gradient.iter().zip(&expected.gradient) {
        assert!((found - expected).abs() < 1e-4 * largest, "gradient {found}, reference {expected}");
    }
}

/// The running reference.
struct Reference {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    expected: Expected,
    _case: tempfile::NamedTempFile,
}

#[derive(Deserialize)]
struct Expected {
    bound: f64,
    gradient: Vec<f64>,
}

impl Reference {
    fn start(folder: &Path, case: &str) -> std::io::Result<Self> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(case.as_bytes())?;
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/compare_with_reference.py");
        let mut command = single_threaded("python3");
        command.arg(driver).arg(folder).arg(file.path());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take();
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        let expected = serde_json::from_str(&line)?;
        Ok(Self { process, input, output, expected, _case: file })
    }

    /// Seconds of each of some evaluations in a row.
    fn evaluate(&mut self, count: usize) -> std::io::Result<Vec<f64>> {
        writeln!(self.input.as_mut().expect("open until dropped"), "{count}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

fn pairs(points: &Points) -> Vec<[f64; 2]> {
    (0..points.len()).map(|i| [points.axis(0)[i], points.axis(1)[i]]).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
