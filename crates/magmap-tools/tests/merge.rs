//! Maps of other days and of other robots become one, or are refused.

use super::common;
use super::common::rooms::{LANES, drive, errors, localization, of_another, other_frame, settings};

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use magmap::config::{Averaging, Config, Localization, Mapped};
use magmap::mapping::mapper::{Mapper, SourceId};
use magmap::mapping::stop::StopSignal;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::sensing::reading::{Measurement, Observation};
use magmap::store::Database;
use magmap::store::map_file;
use magmap::store::map_log::{MapLog, Options};
use magmap::trajectory::{Trajectory, fold};
use magmap_tools::merge::{Error, Input, Known, Merged, merge};
use magmap_tools::recording;
use magmap_tools::simulation::Route;
use nalgebra::{Isometry2, Isometry3, Vector3};
use tempfile::{TempDir, tempdir};

/// Maps what a robot measured in a run of this name, and returns the file.
fn mapped(
    folder: &TempDir,
    name: &str,
    config: &Config,
    measurements: impl IntoIterator<Item = Measurement>,
) -> PathBuf {
    let (file, mapper) = (folder.path().join(format!("{name}.magmap")), Mapper::new(config));
    let log = MapLog::create(&file, &mapper, Options { saves_at_end: true, ..Options::default() }).unwrap();
    let mapping = MappingThread::start(Mode::WaitForLearning, mapper, Some(Box::new(log)), None).unwrap();
    mapping.inbox.begin(SourceId::robot(format!("/{name}")), name.into()).unwrap();
    mapping.inbox.name_frame("odom").unwrap();
    measurements.into_iter().for_each(|measurement| mapping.inbox.send(measurement).unwrap());
    drop(mapping.join().unwrap());
    file
}

fn in_plane(frame: &Isometry3<f64>) -> Isometry2<f64> {
    magmap::sensing::reading::in_plane(frame)
}

fn read(files: &[&Path], localization: &Localization) -> Vec<Input> {
    files.iter().map(|file| Input::read(file, localization).unwrap()).collect()
}

fn merged(inputs: &[Input], given: &[Option<Isometry2<f64>>]) -> Result<Merged, Error> {
    merge(inputs, given, &StopSignal::default(), &|_| {})
}

#[track_caller]
fn assert_near(found: &Isometry2<f64>, expected: &Isometry2<f64>, metres: f64, degrees: f64) {
    let shift = (found.translation.vector - expected.translation.vector).norm();
    let turn = found.rotation.angle_to(&expected.rotation).abs().to_degrees();
    assert!(shift < metres && turn < degrees, "{found}, expected {expected}: {shift} m, {turn} degrees");
}

fn trajectory(file: &Path) -> (Trajectory, magmap::store::checkpoint::Checkpoint) {
    let (checkpoint, batches) = map_file::read_whole(file).unwrap();
    (Trajectory::new(batches, checkpoint.stream.correction.clone()), checkpoint)
}

const SIZE: [f64; 2] = [5.0, 5.0];

#[test]
fn another_robot_in_a_frame_of_its_own_and_with_another_hard_iron_adds_to_the_map() {
    let folder = tempdir().unwrap();
    let config = settings(Mapped::Vector);
    let monday = mapped(&folder, "monday", &config, drive(SIZE, 4, 4, LANES, 90.0));
    let hard_iron = [3.0, -2.0, 1.0];
    let second = drive(SIZE, 4, 5, Route::Random, 70.0).into_iter().map(of_another(other_frame(), hard_iron));
    let robot2 = mapped(&folder, "robot2", &config, second);
    let inputs = read(&[&monday, &robot2], &localization());
    let outcome = merged(&inputs, &[]).unwrap();
    let found = &outcome.joined[1];
    // Odometry is exact; an error of the readings of 0.5 microtesla is some millimetres.
    assert_near(&found.refined.transform, &in_plane(&other_frame()), 0.02, 0.3);
    let difference = found.refined.hard_iron - Vector3::from(hard_iron);
    assert!(difference.amax() < 0.3, "{:?}", found.refined);
    assert!(
        matches!(found.known, Known::Proven { within: 0, .. }) && found.refined.residual.unwrap() < 2.0,
        "{found:?}"
    );

    // The file is a map like any other: it folds to itself, has both runs, and adds up.
    let file = folder.path().join("house.magmap");
    assert_eq!(outcome.write(&file).unwrap(), None);
    let (kept, checkpoint) = trajectory(&file);
    let folded = fold(&checkpoint.settings().unwrap(), kept.corrected_batches(), &|| false);
    assert!(folded.state() == checkpoint.model);
    let by_odometry = fold(&checkpoint.settings().unwrap(), kept.batches(), &|| false);
    assert!(by_odometry.state() != checkpoint.model);
    let [first, second] = [&monday, &robot2].map(|file| trajectory(file).0);
    assert_eq!(kept.batches(), [first.batches(), second.batches()].concat());
    let totals = |trajectory: &Trajectory| trajectory.observations().count() as u64;
    assert_eq!(checkpoint.model.totals.observations, totals(&first) + totals(&second));
    let runs: Vec<(&str, u64)> =
        checkpoint.stream.progress.sources.iter().map(|run| (run.run.as_str(), run.after_updates)).collect();
    assert_eq!(runs, [("monday", 0), ("robot2", first.batches().len() as u64)]);
    assert_eq!(checkpoint.frame, "odom");
    // Two files are not left where one is expected.
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 3);

    // Nothing is in a map twice.
    let error = merged(&read(&[&file, &robot2], &localization()), &[]).err().unwrap().to_string();
    assert!(error.contains("robot2.magmap and ") && error.contains("share a run, /robot2"), "{error}");
    let error = merged(&read(&[&monday, &monday], &localization()), &[]).err().unwrap().to_string();
    assert!(error.contains("share a run, /monday"), "{error}");
    // Nor is a drive that was recorded as well: a run of its own, with other cells.
    let other_cells = Config { averaging: Averaging { spacing: 0.07 }, ..config.clone() };
    let bag = drive(SIZE, 4, 5, Route::Random, 50.0).into_iter().map(of_another(other_frame().inverse(), [0.0; 3]));
    let bag = mapped(&folder, "bag", &other_cells, bag);
    let error = merged(&read(&[&robot2, &bag], &localization()), &[]).err().unwrap();
    assert!(matches!(error, Error::SameDrive { .. }), "{error}");

    // A merged map is merged again.
    let third = drive(SIZE, 4, 6, Route::Random, 60.0).into_iter().map(of_another(other_frame().inverse(), [0.0; 3]));
    let tuesday = mapped(&folder, "tuesday", &config, third);
    let outcome = merged(&read(&[&tuesday, &file], &localization()), &[]).unwrap();
    assert_near(&outcome.joined[1].refined.transform, &in_plane(&other_frame()), 0.02, 0.3);
    let nodes = outcome.trajectory.correction.nodes();
    assert_eq!(nodes.len(), 6);
    let [of_monday, of_robot2] = [2, 4].map(|node| nodes[node]);
    assert_near(&(of_monday.transform().inverse() * of_robot2.transform()), &in_plane(&other_frame()), 0.02, 0.3);
    let more = Vector3::from(of_robot2.hard_iron) - Vector3::from(of_monday.hard_iron);
    assert!((more - Vector3::from(hard_iron)).amax() < 0.3, "{nodes:?}");
}

#[test]
fn maps_of_strengths_are_merged_as_well() {
    let folder = tempdir().unwrap();
    let config = settings(Mapped::Strength);
    let monday = mapped(&folder, "monday", &config, drive(SIZE, 4, 4, LANES, 100.0));
    let second = drive(SIZE, 4, 5, Route::Random, 100.0).into_iter().map(of_another(other_frame(), [0.0; 3]));
    let tuesday = mapped(&folder, "tuesday", &config, second);
    let outcome = merged(&read(&[&monday, &tuesday], &localization()), &[]).unwrap();
    assert_near(&outcome.joined[1].refined.transform, &in_plane(&other_frame()), 0.03, 0.5);
    assert_eq!(outcome.joined[1].refined.hard_iron, Vector3::zeros());
}

#[test]
fn a_map_that_does_not_overlap_the_first_is_joined_through_another() {
    let folder = tempdir().unwrap();
    let config = settings(Mapped::Vector);
    let size = [9.0, 4.0];
    let lanes = drive(size, 8, 8, Route::LawnMower { spacing: 0.6 }, 120.0);
    // The first and the last of the lanes, and a drive through the whole room.
    let [begin, end] = [lanes.len() * 2 / 5, lanes.len() * 3 / 5];
    let left = mapped(&folder, "left", &config, lanes[..begin].iter().copied());
    let right = lanes[end..].iter().copied().map(of_another(other_frame(), [0.0; 3]));
    let right = mapped(&folder, "right", &config, right);
    let whole =
        drive(size, 8, 9, Route::Patrol, 120.0).into_iter().map(of_another(other_frame().inverse(), [1.0, 2.0, 0.0]));
    let whole = mapped(&folder, "whole", &config, whole);
    let files: [&Path; 3] = [&left, &right, &whole];
    let error = merged(&read(&files[..2], &localization()), &[]).err().unwrap();
    let Error::Unproven(unproven) = &error else { panic!("{error}") };
    assert!(unproven.len() == 1 && unproven[0].name.ends_with("right.magmap"), "{error}");
    let outcome = merged(&read(&files, &localization()), &[]).unwrap();
    let order: Vec<usize> = outcome.joined.iter().map(|joined| joined.index).collect();
    assert_eq!(order, [0, 2, 1]);
    assert!(matches!(outcome.joined[2].known, Known::Proven { within: 2, .. }), "{:?}", outcome.joined[2]);
    assert_near(&outcome.joined[2].refined.transform, &in_plane(&other_frame()), 0.05, 0.5);
    // Where it is known, it is not looked for, nor changed.
    let there = in_plane(&other_frame());
    let outcome = merged(&read(&files[..2], &localization()), &[None, Some(there)]).unwrap();
    assert_eq!((outcome.joined[1].known, outcome.joined[1].refined.transform), (Known::Given, there));
}

/// Number of maps of other rooms that are refused.
fn refused(worlds: Range<u64>, seconds: f64, localization: &Localization) -> usize {
    let folder = tempdir().unwrap();
    let map = |name: String, world| {
        mapped(&folder, &name, &settings(Mapped::Vector), drive(SIZE, world, world, LANES, seconds))
    };
    let home = map("home".into(), 4);
    let is_refused = |world: &u64| {
        let other = map(format!("world{world}"), *world);
        let outcome = merged(&read(&[&home, &other], localization), &[]);
        println!("{}", outcome.as_ref().map_or_else(ToString::to_string, |merged| format!("{:?}", merged.joined)));
        matches!(outcome, Err(Error::Unproven(_)))
    };
    worlds.filter(is_refused).count()
}

#[test]
fn maps_of_other_places_are_refused() {
    assert_eq!(refused(100..102, 60.0, &localization()), 2);
}

#[test]
#[ignore = "takes minutes"]
fn maps_of_twenty_other_places_are_refused() {
    assert_eq!(refused(200..220, 90.0, &Localization::default()), 20);
}

#[test]
fn what_cannot_be_merged_leaves_nothing_behind_and_scripts_see_why() {
    let folder = tempdir().unwrap();
    let run = |code: i32, arguments: &[&str]| {
        let few = ["--set", "localization.max_particles=3000"];
        let command =
            common::command(env!("CARGO_BIN_EXE_magmap"), &[&["merge"], arguments, &few].concat(), folder.path());
        common::expect(code, command)
    };
    let config = settings(Mapped::Vector);
    mapped(&folder, "one", &config, drive([4.0, 4.0], 4, 4, LANES, 50.0));
    mapped(&folder, "two", &config, drive([4.0, 4.0], 4, 5, Route::Random, 50.0));
    mapped(&folder, "elsewhere", &config, drive([4.0, 4.0], 7, 4, LANES, 50.0));
    mapped(&folder, "strength", &settings(Mapped::Strength), drive([4.0, 4.0], 4, 6, LANES, 20.0));
    let bytes = fs::read(folder.path().join("two.magmap")).unwrap();
    fs::write(folder.path().join("damaged.magmap"), [&bytes[..bytes.len() / 2], &vec![7; bytes.len() / 2]].concat())
        .unwrap();
    let files = || {
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();

    let (_, error) = run(4, &["one.magmap", "elsewhere.magmap", "--out", "out.magmap"]);
    for part in ["elsewhere.magmap cannot be proven", "in one.magmap: tracked along", "nothing was written"] {
        assert!(error.contains(part), "{error}");
    }
    let (_, error) = run(1, &["one.magmap", "damaged.magmap", "--out", "out.magmap"]);
    assert!(error.contains("damaged.magmap"), "{error}");
    let (_, error) = run(1, &["one.magmap", "strength.magmap", "--out", "out.magmap"]);
    assert!(error.contains("strength.magmap is a map of strengths") && error.contains("model.field=vector"), "{error}");
    let (_, error) = run(1, &["one.magmap", "one.magmap", "--out", "out.magmap"]);
    assert!(error.contains("share a run"), "{error}");
    let (_, error) = run(1, &["one.magmap", "missing.magmap", "--out", "out.magmap"]);
    assert!(error.contains("missing.magmap"), "{error}");
    let (_, error) = run(1, &["one.magmap", "elsewhere.magmap", "--out", "two.magmap"]);
    assert!(error.contains("two.magmap exists") && error.contains("--force"), "{error}");
    run(2, &["one.magmap", "--out", "out.magmap"]);
    run(2, &["one.magmap", "two.magmap", "--out", "out"]);
    for (given, reason) in [
        ("two=1,2", "an angle in degrees"),
        ("one=0,0,0", "is the first map"),
        ("three=0,0,0", "is not among the maps"),
    ] {
        let (_, error) = run(2, &["one.magmap", "two.magmap", "--out", "out.magmap", "--transform", given]);
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(files(), before);

    // Somebody knows; the map that was there is kept.
    let arguments = ["one.magmap", "two.magmap", "--out", "elsewhere.magmap", "--transform", "two=0,0,0", "--force"];
    let (out, _) = run(0, &[&arguments[..], &["--picture", "out.png"]].concat());
    assert!(out.contains("0.000, 0.000 m, 0.00° (as given)") && out.contains("the map that was there"), "{out}");
    assert!(fs::read(folder.path().join("out.png")).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(files().len(), before.len() + 2);
    assert!(Database::open(folder.path().join("elsewhere.magmap")).is_ok());
    let info = |arguments: &[&str]| {
        common::expect(
            0,
            common::command(env!("CARGO_BIN_EXE_magmap"), &[&["info"], arguments].concat(), folder.path()),
        )
    };
    let (out, _) = info(&["elsewhere.magmap"]);
    assert!(out.contains("saved") && out.contains("from /one, /two") && out.lines().count() == 1, "{out}");
    assert!(info(&["elsewhere.magmap", "--json"]).0.contains("\"sources\""));

    // The node does not add another drive to it.
    let mut config = Config::default();
    config.node.map_folder = folder.path().display().to_string();
    config.node.map_name = "elsewhere".into();
    let error = magmap::session::Session::start(&config, "", "/magmap").unwrap_err().to_string();
    assert!(error.contains("was corrected or merged with others"), "{error}");
}

#[test]
fn real_drives_of_two_robots_are_one_map_as_good_as_with_the_true_frames() {
    let Some(data) = common::aalto_folder() else { return };
    let folder = tempdir().unwrap();
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let measurements = |number: u32| {
        let drive = data.join("invensense").join(number.to_string());
        common::measurements(recording::open(&drive, &Config::default()).unwrap())
    };
    let hard_iron = [3.0, -2.0, 1.0];
    let other = of_another(other_frame(), hard_iron);
    let [one, two, three] = [1, 2, 3].map(|number| mapped(&folder, &number.to_string(), &config, measurements(number)));
    let [four, five] = [4, 5].map(|number| {
        let as_another = measurements(number).into_iter().map(&other);
        mapped(&folder, &number.to_string(), &config, as_another)
    });
    let inputs = read(&[&one, &two, &four, &five], &Localization::default());
    let outcome = merged(&inputs, &[]).unwrap();

    let parts = [&one, &two, &four, &five].map(|file| trajectory(file).0);
    let (frame, iron) = (in_plane(&other_frame()), Vector3::from(hard_iron));
    let frames = [(Isometry2::identity(), Vector3::zeros()), (frame, iron)];
    let of_robots = [frames[0], frames[0], frames[1], frames[1]];
    let truly = parts.iter().zip(of_robots).map(|(part, (frame, iron))| (part, frame, iron));
    let known = fold(&config, Trajectory::joined(truly).unwrap().corrected_batches(), &|| false);
    let without = parts.iter().zip(of_robots).map(|(part, (frame, _))| (part, frame, Vector3::zeros()));
    let smeared = fold(&config, Trajectory::joined(without).unwrap().corrected_batches(), &|| false);
    let test: Vec<Observation> = trajectory(&three).0.observations().copied().collect();
    let [found, expected, smeared] =
        [&outcome.map, &known.map().unwrap(), &smeared.map().unwrap()].map(|map| errors(map, &test));
    println!("axes and strength: merged {found:?}, as known {expected:?}, without the hard irons {smeared:?}");
    for joined in &outcome.joined {
        println!("{:?}", joined.refined);
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert!(*found <= 1.1 * expected, "{found}, expected {expected}");
    }
    for (joined, (frame, iron)) in outcome.joined.iter().zip(of_robots) {
        // Drives of the same robot in the same frame differ by that much.
        assert_near(&joined.refined.transform, &frame, 0.06, 1.0);
        assert!((joined.refined.hard_iron - iron).amax() < 1.5, "{:?}", joined.refined);
    }
}
