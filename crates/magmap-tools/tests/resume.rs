//! The built program, killed and restarted: the map is the same as without interruption.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::common;
use magmap::store::Database;
use magmap::store::checkpoint::Checkpoint;
use magmap::store::map_file;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Every output that does not depend on the time or the number of runs.
const OUTPUTS: [&str; 8] = [
    "config.toml",
    "map.npz",
    "map.png",
    "mean.pgm",
    "mean.yaml",
    "standard_deviation.pgm",
    "standard_deviation.yaml",
    "uncertainty.png",
];

/// Measurements in the first 25 s of a drive of 60 s.
const HALF: u64 = 2000;

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

/// A bag of some 30 m through a room of 3 m by 3 m.
fn simulate(folder: &TempDir, name: &str, more: &[&str]) {
    simulate_for("60", folder, name, more);
}

/// Simulates a drive of this many seconds.
fn simulate_for(seconds: &str, folder: &TempDir, name: &str, more: &[&str]) {
    let arguments = ["simulate", "--out", name, "--size", "3x3", "--lane-spacing", "0.6", "--duration", seconds];
    expect(0, &[&arguments[..], more].concat(), folder);
}

/// A replay with small batches and many checkpoints, so that much can be interrupted.
fn replay<'a>(recording: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let settings = ["--set", "batch.max_observations=20", "--set", "store.checkpoint_batches=3"];
    [&["replay", recording, "--out", out], &settings[..], more].concat()
}

/// The outputs of both are equal, to the last bit, and so are the states and trajectories in the files of their maps.
#[track_caller]
fn assert_same(folder: &TempDir, [one, other]: [&str; 2]) {
    let trajectory = |out| Database::open_to_read(map(folder, out)).unwrap().trajectory().unwrap();
    assert!(trajectory(one) == trajectory(other), "trajectories of {one} and {other}");
    assert_same_but_for_the_trajectory(folder, [one, other]);
}

#[track_caller]
fn assert_same_but_for_the_trajectory(folder: &TempDir, [one, other]: [&str; 2]) {
    let state = |out| without_count(map_file::read(&map(folder, out)).unwrap());
    assert!(state(one) == state(other), "states of {one} and {other}");
    for file in OUTPUTS {
        let bytes = |out: &str| fs::read(folder.path().join(out).join(file)).unwrap();
        assert!(bytes(one) == bytes(other), "{file} of {one} and {other}");
    }
}

fn map(folder: &TempDir, out: &str) -> PathBuf {
    folder.path().join(out).join("map.magmap")
}

/// How many steps led to a map depends on where it was interrupted only if settings were read again.
fn without_count(mut checkpoint: Checkpoint) -> Checkpoint {
    checkpoint.stream.progress.steps = 0;
    checkpoint
}

fn report(folder: &TempDir, out: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.path().join(out).join("report.json")).unwrap()).unwrap()
}

/// Runs a replay in a separate process; `None` if it was killed after this time.
fn killed_after(delay: Duration, arguments: &[&str], folder: &TempDir) -> Option<Output> {
    let mut child = command(arguments, folder.path()).spawn().unwrap();
    let end = Instant::now() + delay;
    while Instant::now() < end {
        if child.try_wait().unwrap().is_some() {
            return Some(child.wait_with_output().unwrap());
        }
        sleep(Duration::from_millis(1));
    }
    // On Unix this is SIGKILL, which the process cannot handle.
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Local models, half of which are in files only, and a checkpoint after every other batch.
const OF_TILES: [&str; 8] = [
    "--set",
    "tiles.size=4",
    "--set",
    "tiles.memory=0.3",
    "--set",
    "store.checkpoint_batches=2",
    "--set",
    "batch.max_observations=30",
];

#[test]
fn killed_five_times_it_makes_the_map_that_it_would_have_made() {
    // Long enough that the choice of what is mapped is made twice.
    killed_and_resumed(5, "90", &[]);
}

#[test]
fn so_does_one_of_strengths() {
    killed_and_resumed(5, "60", &["--set", "model.field=strength"]);
}

#[test]
fn so_does_one_whose_path_is_corrected() {
    killed_and_resumed(5, "60", &["--slam", "--set", "model.field=vector"]);
}

#[test]
fn so_does_one_of_tiles_few_of_which_are_in_memory() {
    killed_and_resumed(3, "60", &OF_TILES);
}

#[test]
#[ignore = "kills many replays; run with --ignored"]
fn killed_a_hundred_times_it_makes_the_map_that_it_would_have_made() {
    killed_and_resumed(100, "120", &[]);
}

#[test]
#[ignore = "kills many replays; run with --ignored"]
fn so_does_one_of_tiles_killed_thirty_times() {
    killed_and_resumed(30, "120", &OF_TILES);
}

/// Kills replays of a drive of this many seconds under these settings this many times, and compares each resulting map.
fn killed_and_resumed(times: u32, seconds: &str, settings: &[&str]) {
    let folder = tempdir().unwrap();
    simulate_for(seconds, &folder, "drive", &[]);
    let start = Instant::now();
    expect(0, &replay("drive", "whole", settings), &folder);
    // The shortest so far: were it too long, most would end before they are killed.
    let mut duration = start.elapsed();

    let (mut kills, mut maps, mut resumed_within) = (0, 0, 0);
    while kills < times {
        let out = format!("killed-{maps}");
        let arguments = replay("drive", &out, &[&["--resume"], settings].concat());
        let kills_before = kills;
        let output = loop {
            // Multiples of the golden ratio are spread over a replay, from before it begins to the writing of its outputs.
            let moment = (0.618_034 * f64::from(kills + maps + 1)).fract();
            let patience = if kills < times { duration.mul_f64(moment) } else { Duration::from_secs(600) };
            let start = Instant::now();
            match killed_after(patience, &arguments, &folder) {
                Some(output) => {
                    if kills == kills_before {
                        duration = duration.min(start.elapsed());
                    }
                    break output;
                }
                None => kills += 1,
            }
        };
        expect_of(&output, 0, &arguments);
        assert_same(&folder, ["whole", &out]);
        let (whole, killed) = (report(&folder, "whole"), report(&folder, &out));
        // Nothing lost, nothing twice.
        assert_eq!(whole["counters"], killed["counters"]);
        assert!(!folder.path().join(&out).join("map.magmap-wal").exists());
        resumed_within += u32::from(killed["resumed"]["measurements"].as_u64().is_some_and(|place| place > 0));
        fs::remove_dir_all(folder.path().join(out)).unwrap();
        maps += 1;
    }
    assert!(
        resumed_within > times / 10,
        "{kills} kills on the way to {maps} maps, {resumed_within} of them resumed within"
    );
}

/// A killed replay of a drive.
fn killed(recording: &str, out: &str, settings: &[&str], folder: &TempDir) {
    let mut child = half_done(recording, out, settings, folder);
    // On Unix this is SIGKILL, which the process cannot handle.
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A replay that has taken the first half of a drive.
fn half_done(recording: &str, out: &str, settings: &[&str], folder: &TempDir) -> Child {
    // Seconds before the end: at full speed it could be finished before anybody sees that it has come so far.
    let arguments = replay(recording, out, &[&["--speed", "4"], settings].concat());
    let mut child = command(&arguments, folder.path()).spawn().unwrap();
    common::wait_for_measurements(HALF, &mut child, &map(folder, out), recording);
    child
}

#[cfg(unix)]
#[test]
fn an_interrupted_replay_is_mapped_and_can_still_be_resumed() {
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &[]);
    expect(0, &replay("drive", "whole", &[]), &folder);
    let child = half_done("drive", "early", &[], &folder);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    expect_of(&child.wait_with_output().unwrap(), 130, &["replay"]);
    let early = report(&folder, "early");
    assert_eq!(early["interrupted"], true);
    let (out, _) = expect(0, &replay("drive", "early", &["--resume"]), &folder);
    assert!(out.lines().any(|line| line.starts_with("resumed") && line.contains("measurements")), "{out}");
    assert_same(&folder, ["whole", "early"]);
}

#[test]
fn a_second_drive_goes_into_the_map_of_the_first() {
    let folder = tempdir().unwrap();
    simulate(&folder, "first", &["--route", "lawn-mower"]);
    simulate(&folder, "second", &["--route", "rectangle"]);
    expect(0, &replay("first", "map", &[]), &folder);
    let before = report(&folder, "map");
    let (out, _) = expect(0, &replay("second", "map", &["--resume"]), &folder);
    assert!(out.lines().any(|line| line.starts_with("resumed") && line.contains("first")), "{out}");
    let after = report(&folder, "map");
    // The counters are those of the second drive; the map contains both.
    assert_eq!(after["counters"]["readings"], before["counters"]["readings"]);
    assert_eq!(after["resumed"]["updates"], before["counters"]["batches"]);
    let points = |report: &Value| report["totals"]["inducing_points"].as_u64().unwrap();
    assert!(points(&after) >= points(&before));
    assert_eq!(after["resumed"]["recordings"], serde_json::json!(["first"]));
    // A drive cannot be mapped twice by mistake.
    let (_, err) = expect(0, &replay("second", "map", &["--resume"]), &folder);
    assert!(err.contains("second is already in the map of"), "{err}");

    // An interrupted second drive leads to the same map.
    expect(0, &replay("first", "killed", &[]), &folder);
    killed("second", "killed", &["--resume"], &folder);
    expect(0, &replay("second", "killed", &["--resume"]), &folder);
    assert_same(&folder, ["map", "killed"]);
}

#[test]
fn other_settings_or_another_drive_are_rejected_and_the_map_stays() {
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &[]);
    simulate(&folder, "other", &["--route", "rectangle"]);
    killed("drive", "map", &[], &folder);
    let (_, err) = expect(1, &replay("drive", "map", &["--resume", "--set", "selection.delta=0.3"]), &folder);
    assert!(err.contains("selection.delta") && err.contains("0.3"), "{err}");
    let (_, err) = expect(1, &replay("drive", "map", &["--resume", "--set", "tiles.size=4"]), &folder);
    assert!(err.contains("tiles.size is 4.0, but the map was made with 6.0; set tiles.size = 6.0"), "{err}");
    let (_, err) = expect(1, &replay("other", "map", &["--resume"]), &folder);
    assert!(err.contains("is of drive, whose replay was interrupted"), "{err}");
    // Nor is it started again by mistake.
    let (_, err) = expect(1, &replay("drive", "map", &[]), &folder);
    assert!(err.contains("--resume"), "{err}");
    expect(0, &replay("drive", "map", &["--resume"]), &folder);
    expect(0, &replay("drive", "whole", &[]), &folder);
    assert_same(&folder, ["whole", "map"]);
}

#[test]
fn a_map_of_either_quantity_goes_on_as_what_it_is_with_the_defaults() {
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &["--route", "lawn-mower"]);
    simulate(&folder, "second", &["--route", "rectangle"]);
    for field in ["strength", "vector"] {
        let setting = format!("model.field={field}");
        expect(0, &replay("drive", field, &["--set", &setting]), &folder);
        expect(0, &replay("second", field, &["--resume"]), &folder);
        assert_eq!(report(&folder, field)["choice"], Value::Null);
        assert_eq!(folder.path().join(field).join("vectors.png").exists(), field == "vector");
    }
    // What was begun of a recording is not finished in another way.
    killed("drive", "begun", &["--set", "model.field=strength"], &folder);
    let (_, err) = expect(1, &replay("drive", "begun", &["--resume"]), &folder);
    assert!(err.contains("model.field") && err.contains("strength"), "{err}");
    expect(0, &replay("drive", "begun", &["--resume", "--set", "model.field=strength"]), &folder);
}

#[test]
fn neither_an_unfinished_nor_a_saved_map_is_continued_in_another_frame() {
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &["--storage", "sqlite3"]);
    // The same drive with odometry in another frame: strings of CDR end with a zero.
    fs::create_dir(folder.path().join("moved")).unwrap();
    for entry in fs::read_dir(folder.path().join("drive")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        for start in 0..bytes.len().saturating_sub(5) {
            if bytes[start..start + 5] == *b"odom\0" {
                bytes[start..start + 4].copy_from_slice(b"ekf0");
            }
        }
        fs::write(folder.path().join("moved").join(path.file_name().unwrap()), bytes).unwrap();
    }
    killed("drive", "map", &[], &folder);
    let (_, err) = expect(1, &replay("moved", "map", &["--resume"]), &folder);
    assert!(err.contains("map.magmap is a map of frame \"odom\", but the recording is of \"ekf0\""), "{err}");
    expect(0, &replay("drive", "map", &["--resume"]), &folder);
    let (_, err) = expect(1, &replay("moved", "map", &["--resume"]), &folder);
    assert!(err.contains("map.magmap is a map of frame \"odom\", but the recording is of \"ekf0\""), "{err}");
    expect(0, &replay("drive", "whole", &[]), &folder);
    assert_same(&folder, ["whole", "map"]);
}

#[test]
fn a_damaged_map_is_reported_and_kept_and_the_map_is_the_same() {
    // Of several tiles, one that is damaged is lost.
    let folder = tempdir().unwrap();
    simulate(&folder, "drive", &[]);
    expect(0, &replay("drive", "whole", &["--set", "tiles.size=0"]), &folder);
    killed("drive", "map", &["--set", "tiles.size=0"], &folder);
    let map = folder.path().join("map/map.magmap");
    // All that the killed process has written is moved into one file.
    let connection = rusqlite::Connection::open(&map).unwrap();
    connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).unwrap();
    drop(connection);
    let good = fs::read(&map).unwrap();
    let mut reported = 0;
    for share in 0..12 {
        // A bit of every twelfth page is flipped.
        let mut damaged = good.clone();
        damaged.chunks_mut(4096).skip(share).step_by(12).for_each(|page| page[2500] ^= 4);
        fs::write(&map, &damaged).unwrap();
        let (_, err) = expect(0, &replay("drive", "map", &["--resume", "--set", "tiles.size=0"]), &folder);
        if err.contains("of the trajectory are damaged") {
            assert_same_but_for_the_trajectory(&folder, ["whole", "map"]);
        } else {
            assert_same(&folder, ["whole", "map"]);
        }
        let earlier = fs::read_dir(folder.path().join("map")).unwrap().map(|entry| entry.unwrap().path());
        let earlier: Vec<_> = earlier.filter(|path| path.to_str().unwrap().contains("map.2")).collect();
        // Some pages are not needed; if one is, its damage is named, and the file is kept as an earlier map.
        reported += usize::from(!earlier.is_empty());
        assert!(earlier.is_empty() || err.contains("map.magmap"), "{err}");
        assert!(earlier.iter().all(|path| fs::read(path).unwrap() == damaged));
        earlier.iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    assert!(reported > 1, "{reported}");
}
