//! Functions that several test files share, here and in `crates/magmap-evaluate`.
#![allow(dead_code)] // each test file uses a part

pub mod pages;
pub mod rooms;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use magmap::sensing::reading::Measurement;
use magmap::store::map_file;
use magmap_tools::recording::Recording;
use serde_json::Value;

/// The folder of the Aalto drives, which are not part of the repository: `MAGMAP_DATA` names it, or it is next to the checkout.
/// Says so when it is nowhere.
pub fn aalto_folder() -> Option<PathBuf> {
    let beside = || pages::checkout().join("../shared/data/aalto-magnetic");
    let folder = std::env::var_os("MAGMAP_DATA").map_or_else(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    // Written past the test runner, which keeps to itself what a passing test prints.
    let line = format!("SKIPPED: no folder {} (set MAGMAP_DATA to run this test)\n", folder.display());
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}

/// A program with arguments, in a folder.
pub fn command(program: &str, arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env_remove("RUST_LOG");
    command
}

/// Runs, and checks the exit code; what was written to stdout and to stderr.
#[track_caller]
pub fn expect(code: i32, mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{out}\n{err}");
    (out, err)
}

/// Waits until this many measurements of a recording are in the file of the map that a process makes of it.
#[track_caller]
pub fn wait_for_measurements(measurements: u64, child: &mut Child, map: &Path, recording: &str) {
    // Only against a hang.
    let deadline = Instant::now() + Duration::from_secs(600);
    while written(map, recording) < measurements {
        assert!(child.try_wait().unwrap().is_none(), "expected {measurements} measurements in {}", map.display());
        assert!(Instant::now() < deadline, "expected {measurements} measurements in {}", map.display());
        sleep(Duration::from_millis(20));
    }
}

/// Number of measurements of a recording in a map that another process writes: in a copy, as a crash would leave it.
fn written(map: &Path, recording: &str) -> u64 {
    let copy = tempfile::tempdir().unwrap();
    for file in ["map.magmap", "map.magmap-wal"] {
        // Neither need be there yet.
        let _ = fs::copy(map.with_file_name(file), copy.path().join(file));
    }
    let Ok(checkpoint) = map_file::read(copy.path()) else { return 0 };
    let progress = checkpoint.stream.progress;
    let is_read = progress.sources.last().is_some_and(|run| run.id.name == recording);
    if is_read { progress.index } else { 0 }
}

/// The readings and poses of a recording, in the frame of its map.
pub fn measurements(recording: Recording) -> Vec<Measurement> {
    recording.measurements().map(Result::unwrap).collect()
}

pub fn json(path: &Path) -> Value {
    serde_json::from_reader(File::open(path).unwrap()).unwrap()
}
