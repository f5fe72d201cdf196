//! The built program, killed and started again: the map is what it would have been.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Every output that tells nothing of when it was made, or in how many runs.
const OUTPUTS: [&str; 9] = [
    "checkpoint.npz",
    "config.toml",
    "map.npz",
    "map.png",
    "mean.pgm",
    "mean.yaml",
    "standard_deviation.pgm",
    "standard_deviation.yaml",
    "uncertainty.png",
];

fn command(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_magmap"));
    command.args(arguments).current_dir(folder).env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs, and checks the exit code; what was written to stdout and to stderr.
#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    let output = command(arguments, folder.path()).output().unwrap();
    expect_of(&output, code, arguments)
}

#[track_caller]
fn expect_of(output: &Output, code: i32, arguments: &[&str]) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

/// A bag of some 60 m through a room of 3 m by 3 m.
fn simulate(folder: &TempDir, name: &str, more: &[&str]) {
    let arguments = ["simulate", "--out", name, "--size", "3x3", "--lane-spacing", "0.6", "--duration", "120"];
    expect(0, &[&arguments[..], more].concat(), folder);
}

/// A replay with small batches and many checkpoints, so that much can be interrupted.
fn replay<'a>(recording: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let settings = ["--set", "batch.max_observations=20", "--set", "journal.checkpoint_batches=3"];
    [&["replay", recording, "--out", out], &settings[..], more].concat()
}

/// The outputs of one are those of the other, to the last bit.
#[track_caller]
fn assert_same(folder: &TempDir, [one, other]: [&str; 2]) {
    for file in OUTPUTS {
        let bytes = |out: &str| fs::read(folder.path().join(out).join(file)).unwrap();
        assert!(bytes(one) == bytes(other), "{file} of {one} and {other}");
    }
}

fn report(folder: &TempDir, out: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.path().join(out).join("report.json")).unwrap()).unwrap()
}

/// A replay in a process of its own; none when it was killed after this time.
fn killed_after(delay: Duration, arguments: &[&str], folder: &TempDir) -> Option<Output> {
    let mut child = command(arguments, folder.path()).spawn().unwrap();
    let end = Instant::now() + delay;
    while Instant::now() < end {
        if child.try_wait().unwrap().is_some() {
            return Some(child.wait_with_output().unwrap());
        }
        sleep(Duration::from_millis(1));
    }
    // On Unix this is SIGKILL: the process learns nothing of it.
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

#[test]
fn killed_a_hundred_times_it_makes_the_map_that_it_would_have_made() {
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &[]);
    let start = Instant::now();
    expect(0, &replay("drive", "whole", &[]), &folder);
    let duration = start.elapsed();

    let (mut kills, mut maps, mut resumed_within) = (0, 0, 0);
    while kills < 100 {
        let out = format!("killed-{maps}");
        let arguments = replay("drive", &out, &["--resume"]);
        let output = loop {
            // Multiples of the golden ratio are spread over a replay, from before it begins to the writing of its outputs.
            let moment = (0.618_034 * f64::from(kills + 1)).fract();
            match killed_after(duration.mul_f64(moment), &arguments, &folder) {
                Some(output) => break output,
                None => kills += 1,
            }
        };
        expect_of(&output, 0, &arguments);
        assert_same(&folder, ["whole", &out]);
        let (whole, killed) = (report(&folder, "whole"), report(&folder, &out));
        // Nothing lost, nothing twice.
        assert_eq!(whole["counters"], killed["counters"]);
        assert!(!folder.path().join(&out).join("journal").exists());
        resumed_within += u32::from(killed["resumed"]["measurements"].as_u64().is_some_and(|place| place > 0));
        fs::remove_dir_all(folder.path().join(out)).unwrap();
        maps += 1;
    }
    assert!(resumed_within > 10, "{kills} kills on the way to {maps} maps, {resumed_within} of them resumed within");
}
