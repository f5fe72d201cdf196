//! A robot that is switched off, carried elsewhere and switched on again continues its map; what it drives without being found is kept for
//! itself.

use super::common::rooms::{LANES, drive, localization, observations, of_another, other_frame, send, settings};
use super::replay::named_source;

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;

use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::sensing::reading::{Measurement, Observation};
use magmap::session::Session;
use magmap::store::map_file;
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::replay::{Options, Replay, ReplayOutputs};
use magmap_tools::simulation::Route;
use nalgebra::Isometry3;
use tempfile::{TempDir, tempdir};

const ROOM: [f64; 2] = [6.0, 6.0];

/// Settings of a node that maps under this name.
fn node(folder: &TempDir, name: &str, field: Mapped) -> Config {
    let mut config = settings(field);
    config.localization = localization();
    config.node.map_folder = folder.path().display().to_string();
    config.node.map_name = name.into();
    config
}

fn start(config: &Config) -> Session {
    let session = Session::start(config, "", "/magmap").unwrap();
    session.mapping.inbox.name_frame("odom").unwrap();
    session
}

/// A run from power on to power off, and what was said at its end.
fn run(config: &Config, measurements: impl IntoIterator<Item = Measurement>) -> String {
    let session = start(config);
    send(&session, measurements);
    session.end().unwrap()
}

/// A map with the number of its observations, and its frame.
fn map(folder: &TempDir, name: &str) -> (FieldMap, u64, String) {
    let (checkpoint, batches) = map_file::read_whole(&folder.path().join(format!("{name}.magmap"))).unwrap();
    let map = checkpoint.field_map(&checkpoint.settings().unwrap()).unwrap().unwrap();
    let observations = batches.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(map.totals.observations, observations);
    (map, observations, checkpoint.frame)
}

/// Root mean square error of the strength, in microtesla.
fn error(map: &FieldMap, drive: &[Observation]) -> f64 {
    let places: Vec<[f64; 2]> = drive.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
    let (means, _) = map.predict(&places, f64::INFINITY);
    let squares = drive.iter().zip(means).map(|(seen, mean)| (seen.strength - mean).powi(2));
    (squares.sum::<f64>() / drive.len() as f64).sqrt()
}

/// The maps in a folder, by name.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|is| is == "magmap")).collect();
    files.sort();
    files
}

#[test]
fn a_robot_that_was_carried_and_turned_while_it_was_off_continues_its_map() {
    for (field, seconds) in [(Mapped::Vector, 60.0), (Mapped::Strength, 120.0)] {
        let folder = tempdir().unwrap();
        let [house, mut told] = ["house", "told"].map(|name| node(&folder, name, field));
        told.frames.odometry_is_fixed = true;
        let (before, after) = (drive(ROOM, 4, 4, LANES, 200.0), drive(ROOM, 4, 5, Route::Random, seconds));
        for config in [&house, &told] {
            run(config, before.iter().copied());
        }
        let rebooted = of_another(other_frame(), [0.0; 3]);
        let session = start(&house);
        send(&session, after.iter().take(100).copied().map(&rebooted));
        let waits = session.flush().unwrap();
        assert!(waits.contains("nothing is learnt before the robot is found"), "{waits}");
        send(&session, after.iter().skip(100).copied().map(&rebooted));
        session.flush().unwrap();
        let relocated = session.mapping.relocated().unwrap();
        assert!(relocated.is_known && !relocated.words.contains("continued"), "{relocated:?}");
        session.end().unwrap();
        run(&told, after.iter().copied());

        // The first 100 measurements ended with an averaging cell of their own.
        let ((house, count, frame), (told, expected, _)) = (map(&folder, "house"), map(&folder, "told"));
        assert!(count.abs_diff(expected) <= 2, "{count} observations, expected {expected}");
        assert_eq!((frame.as_str(), files(&folder).len()), ("map", 2));
        let unseen = observations(&drive(ROOM, 4, 6, Route::Random, 60.0));
        let [house, told] = [house, told].map(|map| error(&map, &unseen));
        // The transform is known to some centimetres.
        assert!(house < 1.15 * told, "{field:?}: {house} microtesla, with the transform {told}");
    }
}

#[test]
fn a_robot_whose_odometry_continued_keeps_its_poses_to_the_last_bit() {
    for field in [Mapped::Vector, Mapped::Strength] {
        let folder = tempdir().unwrap();
        let [house, mut fixed] = ["house", "fixed"].map(|name| node(&folder, name, field));
        fixed.frames.odometry_is_fixed = true;
        let whole = drive(ROOM, 4, 4, LANES, 160.0);
        let (first, second) = whole.split_at(whole.len() * 3 / 4);
        for config in [&house, &fixed] {
            run(config, first.iter().copied());
            run(config, second.iter().copied());
        }
        let places = |name: &str| {
            let (_, batches) = map_file::read_whole(&folder.path().join(format!("{name}.magmap"))).unwrap();
            batches.into_iter().flatten().collect::<Vec<Observation>>()
        };
        assert!(places("house") == places("fixed"));
        assert_eq!((map(&folder, "house").2.as_str(), files(&folder).len()), ("odom", 2));
    }
}

#[test]
fn what_is_driven_in_another_room_is_a_map_of_its_own() {
    for field in [Mapped::Vector, Mapped::Strength] {
        let folder = tempdir().unwrap();
        let house = node(&folder, "house", field);
        run(&house, drive(ROOM, 4, 4, LANES, 120.0));
        let (before, expected, _) = map(&folder, "house");
        let other_room = drive(ROOM, 9, 5, Route::Random, 60.0);
        let ended = run(&house, other_room.iter().copied());
        assert!(ended.contains("the robot was not found in the map") && ended.contains("magmap merge"), "{ended}");
        let (after, count, frame) = map(&folder, "house");
        assert_eq!((count, frame.as_str()), (expected, "odom"));
        assert_eq!(before.totals, after.totals);
        let [unplaced, _] = files(&folder).try_into().unwrap();
        let name = unplaced.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("house-unplaced-"), "{name}");
        assert_eq!(map(&folder, &name).1, observations(&other_room).len() as u64);

        // Back in the house, the map is continued; the separate map is left alone.
        run(&house, drive(ROOM, 4, 6, Route::Random, 120.0).into_iter().map(of_another(other_frame(), [0.0; 3])));
        assert!(map(&folder, "house").1 > expected + 500, "{field:?}");
        assert_eq!(files(&folder).len(), 2);
    }
}

#[test]
fn a_crash_while_the_robot_is_looked_for_loses_nothing() {
    let (folder, crash) = (tempdir().unwrap(), tempdir().unwrap());
    let house = node(&folder, "house", Mapped::Vector);
    run(&house, drive(ROOM, 4, 4, LANES, 120.0));
    let elsewhere = drive(ROOM, 9, 5, Route::Random, 30.0);
    let session = start(&house);
    send(&session, elsewhere.iter().copied());
    session.flush().unwrap();
    session.save().unwrap();
    for file in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), crash.path().join(file.file_name())).unwrap();
    }
    drop(session);

    let house = node(&crash, "house", Mapped::Vector);
    for _ in 0..2 {
        let session = start(&house);
        assert!(!session.mapping.relocated().unwrap().is_known);
        session.end().unwrap();
        let [unplaced, _] = files(&crash).try_into().unwrap();
        let name = unplaced.file_stem().unwrap().to_str().unwrap().to_owned();
        assert_eq!(map(&crash, &name).1, observations(&elsewhere).len() as u64);
    }
}

/// A replay of a recording with this name into the map in a folder.
fn replay(config: &Config, folder: &TempDir, name: &str, drive: Vec<Measurement>) -> ReplayOutputs {
    let options = Options { resume: true, ..Options::default() };
    let replay = Replay::start(config, named_source(name), folder.path(), options, |_| {}).unwrap();
    replay.run(messages::<Infallible>(Isometry3::identity(), drive.into_iter())).unwrap()
}

#[test]
fn a_recording_of_another_day_is_located_in_the_map_that_it_continues() {
    let folder = tempdir().unwrap();
    let config = node(&folder, "house", Mapped::Vector);
    let first = replay(&config, &folder, "first", drive(ROOM, 4, 4, LANES, 200.0)).report;
    assert_eq!((first.frame.as_str(), first.relocated), ("odom", None));
    let elsewhere = of_another(other_frame(), [0.0; 3]);
    let second = drive(ROOM, 4, 5, Route::Random, 60.0);
    let report = replay(&config, &folder, "second", second.iter().copied().map(elsewhere).collect()).report;
    let located = report.relocated.unwrap();
    assert!(located.starts_with("the robot was found in the map after"), "{located}");
    assert_eq!((report.frame.as_str(), report.loss.is_empty()), ("map", true), "{:?}", report.loss);
    let (map, count, _) = map(&folder, "map");
    let unseen = observations(&drive(ROOM, 4, 6, Route::Random, 60.0));
    let told = tempdir().unwrap();
    let mut fixed = config.clone();
    fixed.frames.odometry_is_fixed = true;
    replay(&fixed, &told, "first", drive(ROOM, 4, 4, LANES, 200.0));
    replay(&fixed, &told, "second", second);
    let [found, told] = [map, self::map(&told, "map").0].map(|map| error(&map, &unseen));
    assert!(found < 1.15 * told, "{found} microtesla, with the transform {told}");

    // Each recording of another room is a map of its own.
    for (name, world) in [("third", 9), ("fourth", 12)] {
        let other_room = drive(ROOM, world, 5, Route::Random, 60.0);
        let report = replay(&config, &folder, name, other_room.clone()).report;
        assert!(report.loss.items[0].what.contains("the robot was not found in the map"), "{:?}", report.loss);
        assert_eq!(self::map(&folder, "map").1, count);
        let unplaced = self::map(&folder, &format!("map-unplaced-{name}"));
        assert_eq!(unplaced.1, observations(&other_room).len() as u64);
        // Nothing of it is in the map, so that it may be looked for again.
        let report = replay(&config, &folder, name, other_room).report;
        assert!(report.loss.items[0].what.contains("the robot was not found in the map"), "{:?}", report.loss);
        assert_eq!(self::map(&folder, "map").1, count);
    }
}
