//! The built program, as users see it: exit codes, outputs, messages.

use super::{common, npz};

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::{
    io::{self, Write},
    process::Child,
    time::{Duration, Instant},
};

use super::common::json;
use magmap::config::Config;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::Observation;
use magmap_tools::recording;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

const OUTPUTS: [&str; 12] = [
    "config.toml",
    "growth.png",
    "map.magmap",
    "map.mcap",
    "map.npz",
    "map.png",
    "mean.pgm",
    "mean.yaml",
    "report.json",
    "standard_deviation.pgm",
    "standard_deviation.yaml",
    "uncertainty.png",
];

fn command(arguments: &[&str], folder: &Path) -> Command {
    common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder)
}

/// Runs, and checks the exit code; what was written to stdout and to stderr.
#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    common::expect(code, command(arguments, folder.path()))
}

/// A bag of some 10 m through a room of 3 m by 3 m.
fn simulate(folder: &TempDir, name: &str, more: &[&str]) {
    let arguments = ["simulate", "--out", name, "--size", "3x3", "--lane-spacing", "0.6"];
    let duration: &[&str] = if more.contains(&"--duration") { &[] } else { &["--duration", "20"] };
    expect(0, &[&arguments[..], duration, more].concat(), folder);
}

fn report(folder: &TempDir, name: &str) -> Value {
    json(&folder.path().join(name).join("report.json"))
}

/// Shape and values of an array in a `map.npz`.
fn array(folder: &Path, name: &str) -> (Vec<u64>, Vec<f64>) {
    npz::read(&folder.join("map.npz"), name)
}

fn same_file(folder: &TempDir, [one, other]: [&str; 2], file: &str) -> bool {
    let read = |name: &str| fs::read(folder.path().join(name).join(file)).unwrap();
    read(one) == read(other)
}

#[test]
fn an_invalid_command_line_exits_with_2_and_says_what_is_expected() {
    let folder = tempdir().unwrap();
    for (arguments, expected) in [
        (&["reply", "x"][..], "replay"),
        (&["replay"], "RECORDING"),
        (&["replay", "x", "--speed", "fast"], "0 or above"),
        (&["replay", "x", "--speed", "-1"], "--speed"),
        (&["replay", "x", "--live", "localhost"], "HOST:PORT, such as 127.0.0.1:8765"),
        (&["replay", "x", "--live", "127.0.0.1:80000"], "127.0.0.1:80000"),
        (&["replay", "--live", "house.mcap"], "the recording is named before --live"),
        (&["simulate", "--out", "bag", "--size", "6"], "6x8.5"),
        (&["simulate", "--out", "bag", "--noise", "-0.1"], "`noise`"),
        (&["simulate", "--out", "bag", "--route", "circle"], "lawn-mower"),
        (&["simulate", "--out", "bag", "--drift-slip", "-0.1"], "drift slip"),
        (&["locate", "x"], "--map"),
        (&["locate", "x", "--map", "y", "--from", "1,2"], "such as 1.5,-2,1.57, found \"1,2\""),
        (&["locate", "x", "--map", "y", "--from", "1,2,3", "--anywhere"], "cannot be used with"),
        (&["demo", "--verbose", "--quiet"], "cannot be used with"),
        (&["replay", "x", "--set", "selection.dleta=0.1"], "selection.delta"),
        (&["replay", "x", "--set", "selection.delta=much"], "selection.delta"),
        (&["demo", "--set", "selection.delta=-1"], "selection.delta"),
        (&["demo", "--set", "node.map_rate=2"], "node.map_rate has no effect in magmap replay, only in magmap_node"),
        (&["info", ".", "--set", "frames.map=odom", "--set", "selection.delta=0.2"], "selection.delta has no effect"),
        (&["demo", "--set", "selection.method=vip"], "one of vips, conditional_variance, oips"),
        (&["demo", "--set", "selection.method=oips=2"], "rho of oips to be more than 0 and at most 1"),
        (&["demo", "--set", "model.likelihood=bernoulli"], "model.likelihood: expected gaussian or student_t"),
    ] {
        let (out, err) = expect(2, arguments, &folder);
        assert!(err.contains(expected) && out.is_empty(), "{arguments:?}: {err}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn a_missing_recording_or_configuration_exits_with_1_and_is_named() {
    let folder = tempdir().unwrap();
    for command in ["replay", "info"] {
        let (_, err) = expect(1, &[command, "nowhere.mcap"], &folder);
        assert!(err.starts_with("error: ") && err.contains("nowhere.mcap"), "{err}");
    }
    fs::write(folder.path().join("picture.png"), "no recording").unwrap();
    let (_, err) = expect(1, &["replay", "picture.png"], &folder);
    assert!(err.contains("picture.png") && err.contains("Expected") && err.contains(".mcap"), "{err}");
    let (_, err) = expect(1, &["demo", "--config", "no.toml"], &folder);
    assert!(err.contains("no.toml"), "{err}");
    fs::write(folder.path().join("bad.toml"), "[raster]\nresolutoin = 0.1\n").unwrap();
    let (_, err) = expect(1, &["demo", "--config", "bad.toml"], &folder);
    assert!(err.contains("bad.toml") && err.contains("line 2") && err.contains("raster.resolution"), "{err}");
}

#[test]
fn every_help_has_examples_and_the_exit_codes_are_documented() {
    let folder = tempdir().unwrap();
    for name in ["demo", "simulate", "convert", "replay", "locate", "info"] {
        let (help, _) = expect(0, &[name, "--help"], &folder);
        let examples = help.matches(&format!("\n  magmap {name} ")).count();
        assert!(help.contains("Examples:") && examples >= 2, "{help}");
    }
    let (help, _) = expect(0, &["--help"], &folder);
    for code in ["0  done", "1  failed", "2  the command line", "3  done, but something was lost", "130  interrupted"] {
        assert!(help.contains(code), "{help}");
    }
}

#[test]
fn the_demo_beats_the_mean_and_writes_files_that_load() {
    let folder = tempdir().unwrap();
    let (table, err) = expect(0, &["demo"], &folder);
    assert!(err.is_empty(), "diagnostics, or a bar where there is no terminal: {err}");
    for label in ["readings", "batches", "inducing points", "noise", "area mapped", "truth", "map.png"] {
        assert!(table.contains(label), "{table}");
    }
    let out = folder.path().join("magmap-demo");
    let mut found: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    // Its sensor is well mounted, so that the axes are mapped.
    assert_eq!(found, [&OUTPUTS[..], &["vectors.png"]].concat());

    // Five charts of growth: two of the hard iron.
    for (name, heights) in [("map.png", 500..1200), ("uncertainty.png", 500..1200), ("growth.png", 1400..1500)] {
        let decoder = png::Decoder::new(std::io::BufReader::new(File::open(out.join(name)).unwrap()));
        let info = decoder.read_info().unwrap().info().clone();
        // What a README shows without scaling.
        assert!(info.width == 1000 && heights.contains(&info.height), "{name}: {info:?}");
    }

    let (shape, mean) = array(&out, "mean");
    let (_, deviation) = array(&out, "standard_deviation");
    // The room is 6 m by 6 m, the robot keeps 0.4 m from its walls, the margin is 1 m: cells of 0.05 m from -0.6 to 6.6.
    assert!(shape.iter().all(|side| (140..=150).contains(side)), "{shape:?}");
    assert_eq!(mean.len() as u64, shape[0] * shape[1]);
    let inducing_points = array(&out, "inducing_points").0[0];
    let report = json(&out.join("report.json"));
    // Beside them there are three of the hard iron in each of the four tiles.
    assert_eq!(report["totals"]["inducing_points"], inducing_points + 12);
    assert!(report["choice"].as_str().unwrap().starts_with("the three axes are mapped"), "{report}");
    assert_eq!(report["loss"]["items"], Value::Array(Vec::new()));

    for (name, values) in [("mean", &mean), ("standard_deviation", &deviation)] {
        let yaml = fs::read_to_string(out.join(name).with_extension("yaml")).unwrap();
        let key = |key: &str| yaml.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).unwrap();
        assert_eq!((key("image"), key("mode"), key("resolution")), (&*format!("{name}.pgm"), "raw", "0.05"));
        let pgm = fs::read(out.join(key("image"))).unwrap();
        let header = format!("P5\n{} {}\n255\n", shape[1], shape[0]);
        let pixels = pgm.strip_prefix(header.as_bytes()).unwrap();
        assert_eq!(pixels.len(), values.len());
        let unknown = values.iter().filter(|value| value.is_nan()).count();
        assert_eq!(pixels.iter().filter(|&&pixel| pixel == 255).count(), unknown);
        assert!(unknown > 0 && pixels.iter().all(|&pixel| pixel <= 100 || pixel == 255));
    }
    assert_eq!(Config::load(out.join("config.toml")).unwrap(), Config::default());

    // The folder of the demo is its own; another is not.
    expect(0, &["demo", "--set", "learning.max_evaluations=5"], &folder);
    let (_, err) = expect(1, &["demo", "--out", "./magmap-demo"], &folder);
    assert!(err.contains("--force"), "{err}");
}

#[test]
fn a_demo_without_a_useful_map_fails() {
    let folder = tempdir().unwrap();
    // Noise as large as the field, and nothing is learnt: every prediction is near the prior's mean, zero.
    let settings =
        ["model.field=strength", "model.initial.noise=1e9", "learning.max_evaluations=0", "raster.unknown_above=1"];
    let mut arguments = vec!["demo"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let (_, err) = expect(1, &arguments, &folder);
    assert!(err.contains("no closer to the truth"), "{err}");
}

#[test]
fn simulate_info_and_replay_lead_to_a_map_near_the_truth() {
    let folder = tempdir().unwrap();
    simulate(&folder, "bag", &[]);
    let (text, _) = expect(0, &["info", "bag"], &folder);
    for word in ["rosbag2 folder with MCAP storage", "/imu/mag", "sensor_msgs/msg/MagneticField", "/odom in frame odom"]
    {
        assert!(text.contains(word), "{text}");
    }
    let (text, _) = expect(0, &["info", "bag", "--json"], &folder);
    let info: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&info["magnetometer"]["topic"], &info["odometry"]["topic"]), (&"/imu/mag".into(), &"/odom".into()));
    assert_eq!(info["magnetometer"]["others"], Value::Array(Vec::new()));

    for (method, out) in [("vips", "a"), ("oips", "b")] {
        let method = format!("selection.method={method}");
        let (table, _) = expect(0, &["replay", "bag", "--out", out, "--set", &method], &folder);
        assert!(table.contains("1000 of 1000 used"), "{table}");
        assert_near_the_truth(&folder, "bag", &folder.path().join(out));
    }
}

/// Whether the map is as near to the truth of the bag as its cells allow.
#[track_caller]
fn assert_near_the_truth(folder: &TempDir, bag: &str, out: &Path) {
    let rows = truth_and_map(folder, bag, out);
    assert_eq!(rows.len(), 1000);
    let squares: f64 = rows.iter().map(|(strength, mean)| (mean - strength).powi(2)).sum();
    let error = (squares / 1000.0).sqrt();
    // The field changes by some 20 microtesla per metre and a place is up to 7 cm from the centre of its cell.
    assert!(error < 1.2, "{error}");
}

/// True strength at each reading of a bag, and what the map says in the cell of its place.
fn truth_and_map(folder: &TempDir, bag: &str, out: &Path) -> Vec<(f64, f64)> {
    let (shape, mean) = array(out, "mean");
    let (origin, resolution) = (array(out, "origin").1, array(out, "resolution").1[0]);
    let truth = fs::read_to_string(folder.path().join(bag).join("truth.csv")).unwrap();
    let row = |line: &str| {
        let row: Vec<f64> = line.split(',').map(|value| value.parse().unwrap()).collect();
        let cell = |axis: usize| ((row[1 + axis] - origin[axis]) / resolution) as usize;
        (row[7], mean[cell(1) * shape[1] as usize + cell(0)])
    };
    truth.lines().skip(1).map(row).collect()
}

#[test]
fn the_written_configuration_makes_the_same_map_again() {
    let folder = tempdir().unwrap();
    simulate(&folder, "bag", &["--drift-scale", "0.02", "--drift-heading", "0.01", "--route", "random"]);
    expect(
        0,
        &["replay", "bag", "--out", "a", "--set", "selection.delta=0.2", "--set", "averaging.spacing=0.1"],
        &folder,
    );
    expect(0, &["replay", "bag", "--out", "b", "--config", "a/config.toml"], &folder);
    expect(0, &["replay", "bag", "--out", "c"], &folder);
    for file in ["map.npz", "map.mcap", "config.toml", "map.png"] {
        assert!(same_file(&folder, ["a", "b"], file), "{file}");
    }
    assert!(!same_file(&folder, ["a", "c"], "map.npz"));
}

#[test]
fn both_storages_make_the_same_map() {
    let folder = tempdir().unwrap();
    for storage in ["mcap", "sqlite3"] {
        simulate(&folder, storage, &["--storage", storage, "--seed", "5"]);
        expect(0, &["replay", storage], &folder);
    }
    assert!(same_file(&folder, ["mcap-map", "sqlite3-map"], "map.npz"));
    assert!(same_file(&folder, ["mcap", "sqlite3"], "truth.csv"));
    simulate(&folder, "other", &["--seed", "6"]);
    assert!(!same_file(&folder, ["mcap", "other"], "truth.csv"));
}

#[test]
fn a_truncated_recording_exits_with_3_and_its_rest_is_mapped() {
    let folder = tempdir().unwrap();
    simulate(&folder, "bag", &["--duration", "60"]);
    let whole = fs::read(folder.path().join("bag/bag_0.mcap")).unwrap();
    fs::write(folder.path().join("cut.mcap"), &whole[..whole.len() * 7 / 10]).unwrap();
    let (text, _) = expect(3, &["info", "cut.mcap"], &folder);
    assert!(text.contains("lost"), "{text}");
    let (table, err) = expect(3, &["replay", "cut.mcap"], &folder);
    assert!(table.contains("lost") && err.contains("lost"), "{table}\n{err}");
    for file in OUTPUTS {
        assert!(folder.path().join("cut-map").join(file).is_file(), "{file}");
    }
    let report = report(&folder, "cut-map");
    let readings = report["counters"]["readings"].as_u64().unwrap();
    assert!((500..3000).contains(&readings), "{readings}");
    assert!(!report["loss"]["items"].as_array().unwrap().is_empty());
}

#[test]
fn outputs_of_another_replay_are_kept_unless_forced() {
    let folder = tempdir().unwrap();
    simulate(&folder, "bag", &[]);
    expect(0, &["replay", "bag", "--out", "map"], &folder);
    let before = fs::read(folder.path().join("map/report.json")).unwrap();
    let (_, err) = expect(1, &["replay", "bag", "--out", "map"], &folder);
    assert!(err.contains("map") && err.contains("--force"), "{err}");
    assert_eq!(before, fs::read(folder.path().join("map/report.json")).unwrap());
    expect(0, &["replay", "bag", "--out", "map", "--force", "--set", "raster.resolution=0.2"], &folder);
    assert_ne!(before, fs::read(folder.path().join("map/report.json")).unwrap());
    let (_, err) = expect(1, &["simulate", "--out", "bag"], &folder);
    assert!(err.contains("bag"), "{err}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_maps_what_was_read_and_exits_with_130() {
    interrupted_by(&["-INT"]);
}

/// Simultaneous signals come from `timeout`, from stopping a container and from a terminal's process group.
#[cfg(unix)]
#[test]
fn simultaneous_signals_are_one_interrupt() {
    interrupted_by(&["-TERM", "-INT", "-TERM"]);
}

/// Whatever it waits for: here for somebody to read its results.
#[cfg(unix)]
#[test]
fn a_second_interrupt_ends_a_replay_at_once() {
    /// Signals within this time after the first are the same interrupt.
    const TOGETHER: Duration = Duration::from_secs(2);
    let folder = tempdir().unwrap();
    let (unread, mut stdout) = io::pipe().unwrap();
    let mut child = interruptible(&folder, stdout.try_clone().unwrap().into());
    // Fills the pipe and keeps it full, until nobody could read it any more.
    std::thread::spawn(move || while stdout.write_all(b" ").is_ok() {});
    let first = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if first.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("expected the second interrupt to end the replay, it still runs");
        }
        send("-INT", &child);
        std::thread::sleep(Duration::from_millis(100));
    };
    drop(unread);
    assert_eq!(status.code(), Some(130));
    assert!(first.elapsed() >= TOGETHER, "the first interrupt ended it: {:?}", first.elapsed());
}

/// A replay that these signals end, 50 ms apart, while it lasts.
#[cfg(unix)]
#[track_caller]
fn interrupted_by(signals: &[&str]) {
    let folder = tempdir().unwrap();
    let child = interruptible(&folder, Stdio::piped());
    for (index, signal) in signals.iter().enumerate() {
        if index > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        // One that has ended by now is not there any more; nobody has waited for it yet, so that its number is its own.
        send(signal, &child);
    }
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert_eq!(err.matches("interrupted").count(), 1, "{err}");
    let report = report(&folder, "bag-map");
    assert_eq!(report["interrupted"], true);
    let readings = report["counters"]["readings"].as_u64().unwrap();
    assert!((1..20_000).contains(&readings), "{readings}");
    OUTPUTS.iter().for_each(|file| assert!(folder.path().join("bag-map").join(file).is_file(), "{file}"));
}

/// A replay into `bag-map` that has begun to map, minutes before its end.
#[cfg(unix)]
fn interruptible(folder: &TempDir, stdout: Stdio) -> Child {
    simulate(folder, "bag", &["--duration", "600"]);
    let mut replay = command(&["replay", "bag", "--speed", "4"], folder.path());
    let mut child = replay.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    common::wait_for_measurements(500, &mut child, &folder.path().join("bag-map/map.magmap"), "bag");
    child
}

#[cfg(unix)]
#[track_caller]
fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()[..]]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_converted_drive_makes_the_map_of_its_files() {
    let Some(data) = common::aalto_folder() else { return };
    let drive = fs::canonicalize(data).unwrap().join("invensense").join("3");
    let folder = tempdir().unwrap();
    let drive = drive.to_str().unwrap();
    // Turned, but in the middle of the body: the heading of the path jumps, and with it a body beside its sensor, too fast for gates.
    let mount = ["--set", "sensor.override_transforms=true", "--set", "sensor.orientation=[0.1,-0.2,1.0]"];
    expect(0, &[&["convert", drive, "--out", "bag"][..], &mount].concat(), &folder);
    expect(0, &["replay", drive, "--out", "files"], &folder);
    expect(0, &["replay", "bag", "--out", "bagged"], &folder);

    let bag = folder.path().join("bag");
    let [expected, found] = [PathBuf::from(drive), bag].map(|path| observations(&path));
    assert_eq!(expected.len(), found.len());
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!((expected.stamp, expected.readings), (found.stamp, found.readings));
        assert!((expected.position.xy() - found.position.xy()).norm() < 1e-9);
        assert!((expected.strength - found.strength).abs() < 1e-9 * expected.strength);
        assert!((expected.field.microtesla() - found.field.microtesla()).norm() < 1e-9 * expected.strength);
    }
    let [expected, found] = ["files", "bagged"].map(|name| report(&folder, name));
    for key in ["inducing_points", "evaluations"] {
        assert_eq!(expected["totals"][key], found["totals"][key], "{key}");
    }
    let [expected, found] = ["files", "bagged"].map(|name| array(&folder.path().join(name), "mean"));
    assert_eq!(expected.0, found.0);
    for (expected, found) in expected.1.iter().zip(&found.1) {
        assert_eq!(expected.is_nan(), found.is_nan());
        // Learning amplifies the rounding of the rotations, which is 1e-12.
        assert!(expected.is_nan() || (expected - found).abs() < 1e-4, "{expected} {found}");
    }
}

/// The observations that the model learns from.
fn observations(path: &Path) -> Vec<Observation> {
    let recording = recording::open(path, &Config::default()).unwrap();
    let mut pipeline = Pipeline::new(&Config::default(), recording.mount);
    recording.inputs().for_each(|input| pipeline.ingest(input.unwrap()));
    pipeline.finish();
    pipeline.take_ready().into_iter().flat_map(|batch| batch.observations).collect()
}
