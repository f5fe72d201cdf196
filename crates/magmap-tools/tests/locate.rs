//! Offline localization: from a recording and a map to a folder of outputs.

use super::{common, npz};

use std::fs;
use std::path::Path;
use std::process::Command;

use super::common::json;
use magmap::config::Config;
use magmap::sensing::reading::{Measurement, Pose};
use magmap_tools::recording;
use npyz::Deserialize;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

fn command(arguments: &[&str], folder: &Path) -> Command {
    common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder)
}

#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    common::expect(code, command(arguments, folder.path()))
}

/// Shape and values of an array in `path.npz`.
fn array<T: Deserialize>(folder: &Path, name: &str) -> (Vec<u64>, Vec<T>) {
    npz::read(&folder.join("path.npz"), name)
}

/// A room of 5 m by 5 m, the same in each bag.
const ROOM: [&str; 5] = ["simulate", "--size", "5x5", "--seed", "4"];

/// A map of it, with values that suit it: learning them takes most of the time.
fn mapped(folder: &TempDir, field: &str) {
    expect(0, &[&ROOM[..], &["--out", "mapped", "--lane-spacing", "0.6", "--duration", "90"]].concat(), folder);
    let field = format!("model.field={field}");
    let settings = ["--set", &field, "--set", "learning.max_evaluations=0"];
    expect(0, &[&["replay", "mapped", "--out", "map"], &settings[..]].concat(), folder);
}

/// A second drive through it, whose odometry drifts.
fn driven(folder: &TempDir, seconds: &str) {
    let drift = ["--drift-scale", "0.03", "--drift-turn", "0.01", "--drift-heading", "0.02", "--drift-slip", "0.01"];
    let route = ["--out", "second", "--route", "random", "--duration", seconds];
    expect(0, &[&ROOM[..], &route, &drift].concat(), folder);
}

/// x, y and heading of the body at the start of the second drive.
fn true_start(folder: &TempDir) -> [f64; 3] {
    let text = fs::read_to_string(folder.path().join("second/truth.csv")).unwrap();
    let row: Vec<f64> = text.lines().nth(1).unwrap().split(',').map(|value| value.parse().unwrap()).collect();
    [row[8], row[9], row[10]]
}

fn number(report: &Value, key: &str) -> f64 {
    report["truth"][key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"))
}

#[test]
fn a_drive_is_located_from_a_known_start_far_better_than_by_odometry() {
    let folder = tempdir().unwrap();
    mapped(&folder, "strength");
    driven(&folder, "60");
    let [x, y, heading] = true_start(&folder);
    let from = format!("{x},{y},{heading}");
    let (out, _) = expect(0, &["locate", "second", "--map", "map", "--from", &from], &folder);
    assert!(out.contains("odometry alone") && out.contains("sure and wrong    0 updates"), "{out}");

    let outputs = folder.path().join("second-path");
    let report = json(&outputs.join("report.json"));
    // 30 m.
    assert!(number(&report, "error") < 0.25 && number(&report, "inside_95") > 0.7, "{report}");
    assert!(number(&report, "dead_reckoning_last") > 2.0 * number(&report, "last"), "{report}");
    assert_eq!(report["truth"]["sure_and_wrong"], 0, "{report}");
    assert!(report["states"]["tracking"].as_f64().unwrap() > 0.5, "{report}");
    let shares: f64 =
        ["lost", "converging", "tracking"].map(|state| report["states"][state].as_f64().unwrap()).iter().sum();
    assert!((shares - 1.0).abs() < 1e-12);

    // The arrays say the same.
    let updates = report["updates"].as_u64().unwrap();
    assert!(updates > 400, "{updates}");
    let (shape, poses) = array::<f64>(&outputs, "pose");
    assert_eq!(shape, [updates, 3]);
    assert_eq!(array::<f64>(&outputs, "covariance").0, [updates, 3, 3]);
    let (_, truth) = array::<f64>(&outputs, "truth");
    let squares = poses
        .chunks(3)
        .zip(truth.chunks(3))
        .map(|(pose, truth)| (pose[0] - truth[0]).powi(2) + (pose[1] - truth[1]).powi(2));
    let known: Vec<f64> = squares.filter(|square| square.is_finite()).collect();
    let error = (known.iter().sum::<f64>() / known.len() as f64).sqrt();
    assert_eq!(known.len() as u64, report["truth"]["updates"].as_u64().unwrap());
    assert!((error - number(&report, "error")).abs() < 1e-9, "{error}");
    let (_, states) = array::<String>(&outputs, "state");
    let tracking = states.iter().filter(|state| *state == "tracking").count() as f64 / updates as f64;
    assert!((tracking - report["states"]["tracking"].as_f64().unwrap()).abs() < 1e-12);
    let (_, reasons) = array::<String>(&outputs, "reason");
    assert!(states.iter().zip(&reasons).all(|(state, reason)| (state == "tracking") == reason.is_empty()));
    let (_, stamps) = array::<i64>(&outputs, "stamp");
    assert!(stamps.is_sorted() && stamps[0] > 1_700_000_000_000_000_000);
    assert!(fs::read(outputs.join("path.png")).unwrap().starts_with(b"\x89PNG"));

    // Again to the last bit; and never over other files.
    let (_, err) = expect(1, &["locate", "second", "--map", "map", "--from", &from], &folder);
    assert!(err.contains("second-path is not empty") && err.contains("--force"), "{err}");
    let before = fs::read(outputs.join("path.npz")).unwrap();
    expect(0, &["locate", "second", "--map", "map/map.magmap", "--from", &from, "--force"], &folder);
    assert_eq!(before, fs::read(outputs.join("path.npz")).unwrap());
}

#[test]
fn a_drive_is_located_from_anywhere_and_never_sure_of_a_wrong_place() {
    let folder = tempdir().unwrap();
    mapped(&folder, "vector");
    driven(&folder, "40");
    let settings = ["--set", "localization.max_particles=4000"];
    expect(
        0,
        &[&["locate", "second", "--map", "map", "--anywhere", "--out", "found"], &settings[..]].concat(),
        &folder,
    );
    let report = json(&folder.path().join("found/report.json"));
    assert_eq!((&report["start"], &report["truth"]["sure_and_wrong"]), (&"anywhere".into(), &0.into()), "{report}");
    assert!(number(&report, "last") < 0.3 && number(&report, "tracking") < 0.3, "{report}");
    assert_eq!(report["end"]["state"], "tracking");

    let (_, err) = expect(1, &["locate", "second", "--map", "map", "--truth", "/imu/mag", "--out", "x"], &folder);
    assert!(
        err.contains("no topic \"/imu/mag\"") && err.contains("/ground_truth (geometry_msgs/msg/PoseStamped)"),
        "{err}"
    );
    // Odometry as the truth: by itself it is then exact.
    let (out, _) = expect(0, &["locate", "second", "--map", "map", "--truth", "/odom", "--out", "odom"], &folder);
    assert!(out.contains("odometry alone    0.000 m RMS"), "{out}");
    let (out, _) = expect(0, &["locate", "mapped", "--map", "map", "--out", "untrue"], &folder);
    assert!(out.contains("no true path to compare with"), "{out}");
    let (_, err) = expect(1, &["locate", "second", "--map", "map/map.npz", "--out", "y"], &folder);
    assert!(err.contains("map.npz") && err.contains("expected a map of magmap"), "{err}");
    assert!(!folder.path().join("x").exists() && !folder.path().join("y").exists());
}

#[test]
fn a_converted_drive_drifts_as_it_should_and_keeps_its_true_path() {
    let Some(data) = common::aalto_folder() else { return };
    let drive = fs::canonicalize(data).unwrap().join("invensense").join("3");
    let drive = drive.to_str().unwrap();
    let folder = tempdir().unwrap();
    let convert = |out: &str, drift: &[&str]| {
        expect(0, &[&["convert", drive, "--out", out], drift].concat(), &folder);
        let mut recording = recording::open(&folder.path().join(out), &Config::default()).unwrap();
        let truth = recording.truth(None).unwrap();
        let poses = common::measurements(recording).iter().filter_map(Measurement::pose).collect::<Vec<_>>();
        (poses, truth)
    };
    let (exact, none) = convert("exact", &[]);
    assert!(none.is_none());
    let length =
        |poses: &[Pose]| -> f64 { poses.windows(2).map(|pair| (pair[1].position - pair[0].position).norm()).sum() };
    let (scaled, truth) = convert("scaled", &["--drift-scale", "-0.03"]);
    assert_eq!(truth.unwrap(), exact);
    assert!((length(&scaled) / length(&exact) - 0.97).abs() < 1e-6);
    let (turned, _) = convert("turned", &["--drift-turn", "0.01"]);
    let (last, true_last) = (turned.last().unwrap(), exact.last().unwrap());
    let turn = last.orientation.angle_to(&true_last.orientation);
    let expected = (0.01 * length(&exact) + 3.0).rem_euclid(std::f64::consts::TAU) - 3.0;
    assert!((turn - expected.abs()).abs() < 1e-3, "{turn}, expected {expected}");
    let noise = ["--drift-heading", "0.02", "--drift-slip", "0.01", "--seed"];
    let [(one, _), (two, _), (again, _)] =
        [("one", "1"), ("two", "2"), ("again", "1")].map(|(name, seed)| convert(name, &[&noise[..], &[seed]].concat()));
    assert!(one == again && one != two);
    let (_, err) = expect(2, &["convert", drive, "--out", "x", "--drift-slip", "-1"], &folder);
    assert!(err.contains("drift slip"), "{err}");
}
