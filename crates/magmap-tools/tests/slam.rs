//! Replays of a robot whose odometry drifts and whose path the field corrects.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use magmap::config::{Config, Frames, Mapped, Slam};
use magmap::field::grid::StrengthGrid;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::path_correction::CorrectedPath;
use magmap::mapping::thread::{MappingThread, Mode, Observer};
use magmap::sensing::intake::Intake;
use magmap::sensing::reading::{Measurement, Observation, Pose, in_plane};
use magmap::session::Session;
use magmap::store::Database;
use magmap::store::recovery::Gaps;
use magmap::trajectory::{self, Trajectory};
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::replay::{Error, Options, Replay, ReplayOutputs};
use magmap_tools::simulation::{DipoleOptions, Drift, Route, SimulatedMeasurement, Simulation, demo};
use nalgebra::{Isometry2, Isometry3};
use tempfile::{NamedTempFile, TempDir, tempdir};

use super::common::rooms::{of_another, other_frame};
use super::replay::named_source;

/// How long a correction may take on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(300);

const DRIFT: Drift = Drift { scale: 0.02, turn: 0.02, heading: 0.02, slip: 0.01 };

/// Some 40 m through a room of 4 m by 3 m, across its own path many times.
fn drive() -> Vec<SimulatedMeasurement> {
    let world = DipoleOptions { size: [4.0, 3.0], under: 10, beside: 4, ..Default::default() };
    let mut simulation = Simulation { world, route: Route::Random, duration: 80.0, ..demo() };
    simulation.robot.drift = Some(DRIFT);
    simulation.drive(simulation.world().unwrap()).unwrap().collect()
}

fn settings() -> Config {
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    config.slam.enabled = true;
    config
}

fn replay(
    config: &Config,
    folder: &Path,
    drive: &[SimulatedMeasurement],
    options: Options,
    name: &str,
) -> Result<ReplayOutputs, Error> {
    let mut source = named_source(name);
    let poses = drive.iter().filter(|sample| sample.measurement.pose().is_some());
    source.truth = poses.map(|sample| sample.truth.pose).collect();
    let replay = Replay::start(config, source, folder, options, |_| {})?;
    let measurements = drive.iter().map(|sample| sample.measurement);
    replay.run(messages::<Infallible>(Isometry3::identity(), measurements))
}

/// A file with these poses.
fn given(poses: &[Pose]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    for Pose { stamp, position, orientation } in poses {
        let [x, y, z, w]: [f64; 4] = orientation.coords.into();
        writeln!(file, "{:.9} {} {} {} {x} {y} {z} {w}", stamp.seconds(), position.x, position.y, position.z).unwrap();
    }
    file
}

#[test]
fn the_field_corrects_the_path_and_the_map_is_made_from_that() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let outcome = replay(&settings(), folder.path(), &drive, Options::default(), "one").unwrap();
    let path = outcome.report.corrected_path.as_ref().unwrap();
    let truth = path.truth.as_ref().unwrap();
    let poses: Vec<Pose> = drive.iter().filter_map(|sample| sample.measurement.pose()).collect();
    assert_eq!(truth.poses, poses.len());
    // Odometry is decimetres off; a lengthscale that is only nearly right stretches the path by some per cent.
    assert!(truth.odometry > 0.15 && truth.corrected < 0.4 * truth.odometry, "{path:?}");
    assert!(truth.corrected < 0.08 && truth.corrected_most < 0.25, "{path:?}");
    // The field does not tell the size of the path. Wherever it came back, readings agree with those from before, and some metres prove it.
    let slam = path.slam.as_ref().unwrap();
    assert!((slam.length_ratio - 1.0).abs() < 0.005 && slam.delay.abs() < 0.03, "{slam:?}");
    assert!(slam.revisits.iter().all(|revisit| revisit.evidence > 0.0), "{:?}", slam.revisits);
    let long: Vec<_> = slam.revisits.iter().filter(|revisit| revisit.length > 3.0).collect();
    let proven = long.iter().filter(|revisit| revisit.evidence > 10.0).count();
    assert!(proven > 5 && proven as f64 > 0.8 * long.len() as f64, "{:?}", slam.revisits);

    // Each pose of odometry has its line, in order, with its stamp; lines are those that the errors are of.
    let text = fs::read_to_string(folder.path().join("trajectory.tum")).unwrap();
    let lines: Vec<Vec<f64>> =
        text.lines().skip(1).map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(lines.len(), poses.len());
    assert!(lines.iter().zip(&poses).all(|(line, pose)| (line[0] - pose.stamp.seconds()).abs() < 1e-6));
    let moved =
        lines.iter().zip(&poses).map(|(line, pose)| (line[1] - pose.position.x).hypot(line[2] - pose.position.y));
    assert!((moved.fold(0.0, f64::max) - path.moved_most).abs() < 1e-5);
    assert!(outcome.files.iter().all(|file| file.exists()), "{:?}", outcome.files);

    // The file of the map holds odometry and its correction, and the map is what they lead to.
    let database = Arc::new(Database::open(folder.path().join("map.magmap")).unwrap());
    let recovered = database.recover(&settings(), Gaps::Stop, |_| {}).unwrap();
    let kept = recovered.mapper.trajectory();
    assert!(kept.correction.nodes().len() > 200, "{} nodes", kept.correction.nodes().len());
    let folded = trajectory::fold(&settings(), kept.corrected_batches(), &|| false);
    assert!(folded.state() == recovered.mapper.model().state());
    let by_odometry = trajectory::fold(&settings(), kept.batches(), &|| false);
    assert!(by_odometry.state() != recovered.mapper.model().state());
}

#[test]
fn a_map_whose_path_is_corrected_is_of_one_recording() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let half = &drive[..drive.len() / 4];
    replay(&settings(), folder.path(), half, Options::default(), "one").unwrap();
    let map = folder.path().join("map.magmap");
    let before = fs::read(&map).unwrap();
    for slam in [true, false] {
        let mut config = settings();
        config.slam.enabled = slam;
        let options = Options { resume: true, ..Options::default() };
        let error = replay(&config, folder.path(), half, options, "other").err().unwrap().to_string();
        assert!(error.contains("no other drive can be added to a map whose path is corrected"), "{error}");
    }
    assert!(fs::read(&map).unwrap() == before, "the map is as it was");
}

#[test]
fn a_path_is_not_corrected_by_axes_that_contradict_the_physics() {
    let folder = tempdir().unwrap();
    // The sensor is turned by a quarter on the robot, and nobody says so.
    let turned = |sample: SimulatedMeasurement| {
        let measurement = match sample.measurement {
            Measurement::Reading(mut reading) => {
                let quarter = nalgebra::UnitQuaternion::from_euler_angles(0.0, 0.0, std::f64::consts::FRAC_PI_2);
                reading.field = reading.field.rotated(&quarter);
                Measurement::Reading(reading)
            }
            pose => pose,
        };
        SimulatedMeasurement { measurement, ..sample }
    };
    let drive: Vec<_> = drive().into_iter().map(turned).collect();
    let outcome = replay(&settings(), folder.path(), &drive, Options::default(), "one").unwrap();
    assert!(
        outcome.report.doubt.is_some() && outcome.report.corrected_path.is_none(),
        "{:?}",
        outcome.report.corrected_path
    );
    assert!(!folder.path().join("trajectory.tum").exists());
}

#[test]
fn odometry_that_drifts_is_not_taken_for_wrong_axes() {
    let folder = tempdir().unwrap();
    let mut simulation = demo();
    // At the poses of this odometry, the last 18 m would fit better by 191 nats if two axes were exchanged; 45 are a contradiction.
    simulation.robot.drift = Some(Drift { scale: 0.03, turn: 0.01, heading: 0.03, slip: 0.0 });
    let drive: Vec<_> = simulation.drive(simulation.world().unwrap()).unwrap().collect();
    let report = replay(&settings(), folder.path(), &drive, Options::default(), "one").unwrap().report;
    assert_eq!(report.doubt, None);
    let truth = report.corrected_path.unwrap().truth.unwrap();
    assert!(truth.odometry > 0.8 && truth.corrected < 0.1, "{truth:?}");
}

#[test]
fn readings_that_are_late_show_their_delay_and_are_mapped_where_they_were_measured() {
    let (mut drive, folder) = (drive(), tempdir().unwrap());
    let late = 0.2;
    for sample in &mut drive {
        if let Measurement::Reading(reading) = &mut sample.measurement {
            reading.stamp = reading.stamp.shifted(late);
        }
    }
    drive.sort_by_key(|sample| sample.measurement.stamp());
    let path = replay(&settings(), folder.path(), &drive, Options::default(), "one").unwrap().report.corrected_path;
    let (truth, slam) = path.map(|path| (path.truth.unwrap(), path.slam.unwrap())).unwrap();
    assert!((slam.delay - late).abs() < 0.03 && truth.corrected < 0.08, "{truth:?} {slam:?}");
    assert!((slam.delay - late).abs() < 4.0 * slam.delay_deviation && slam.delay_deviation < 0.03, "{slam:?}");

    // The sensor moves by 0.5 m/s or turns: seen from the path at their stamps, observations are up to a decimetre back.
    let database = Database::open(folder.path().join("map.magmap")).unwrap();
    let recovered = Arc::new(database).recover(&settings(), Gaps::Stop, |_| {}).unwrap();
    let trajectory = recovered.mapper.trajectory();
    let observations: Vec<Observation> = trajectory.observations().copied().collect();
    let corrected = trajectory.correction.apply(0, &observations);
    let back = |(index, (by_odometry, corrected)): (usize, (&Observation, &Observation))| {
        let at_stamp = trajectory.correction.pose(index as f64, &by_odometry.in_plane());
        (corrected.in_plane().translation.vector - at_stamp.translation.vector).norm()
    };
    let back: Vec<f64> = observations.iter().zip(&corrected).enumerate().map(back).collect();
    let furthest = back.iter().copied().fold(0.0, f64::max);
    assert!(furthest > 0.08 && furthest < 0.15, "{furthest}");
}

#[test]
fn the_final_path_of_another_slam_makes_the_map_as_if_it_had_been_known_at_once() {
    let drive = drive();
    let mut config = settings();
    config.slam.enabled = false;
    let [bent, folder] = [tempdir().unwrap(), tempdir().unwrap()];
    let poses = drive.iter().filter(|sample| sample.measurement.pose().is_some()).map(|sample| sample.truth.pose);
    let file = given(&poses.step_by(3).collect::<Vec<_>>());
    let by_file =
        Config { slam: Slam { trajectory: file.path().display().to_string(), ..Slam::default() }, ..config.clone() };
    let outcome = replay(&by_file, bent.path(), &drive, Options::default(), "one").unwrap();
    let path = outcome.report.corrected_path.as_ref().unwrap();
    // Between two poses a tenth of a second apart, odometry is wrong by less than a millimetre.
    let errors = path.truth.as_ref().unwrap();
    assert!(errors.odometry > 0.15 && errors.corrected < 1e-3 && path.slam.is_none(), "{path:?}");

    let by_truth = |sample: &SimulatedMeasurement| {
        let pose = sample.measurement.pose().map(|_| Measurement::Pose(sample.truth.pose));
        SimulatedMeasurement { measurement: pose.unwrap_or(sample.measurement), ..*sample }
    };
    let true_drive: Vec<_> = drive.iter().map(by_truth).collect();
    let expected = replay(&config, folder.path(), &true_drive, Options::default(), "one").unwrap();
    // Cells of both grids are aligned. Far from the path a map depends on where tiles and batches were cut, by odometry or by the true path.
    let cells = |grid: &StrengthGrid| -> HashMap<(i64, i64), f64> {
        let StrengthGrid { geometry, mean, standard_deviation, .. } = grid;
        let place = |cell: usize| {
            let (column, row) = ((cell % geometry.columns) as i64, (cell / geometry.columns) as i64);
            (geometry.first_column + column, geometry.first_row + row)
        };
        let near = (0..mean.len()).filter(|cell| standard_deviation[*cell] < 1.0);
        near.map(|cell| (place(cell), mean[cell])).collect()
    };
    let [one, other] = [&outcome.grid, &expected.grid].map(cells);
    let known: Vec<(f64, f64)> = one.iter().filter_map(|(cell, mean)| Some((*mean, *other.get(cell)?))).collect();
    let difference = known.iter().map(|(one, other)| (one - other).powi(2)).sum::<f64>() / known.len() as f64;
    assert!(known.len() > 1500 && difference.sqrt() < 0.5, "{} cells, {} µT", known.len(), difference.sqrt());

    // To the last bit for the same batches.
    let database = Arc::new(Database::open(bent.path().join("map.magmap")).unwrap());
    let recovered = database.recover(&by_file, Gaps::Stop, |_| {}).unwrap();
    let folded = trajectory::fold(&config, recovered.mapper.trajectory().corrected_batches(), &|| false);
    assert!(folded.state() == recovered.mapper.model().state());
}

#[test]
fn an_interrupted_replay_at_the_poses_of_another_slam_is_resumed_to_the_same_map() {
    let (drive, [whole, interrupted]) = (drive(), [tempdir().unwrap(), tempdir().unwrap()]);
    let poses = drive.iter().filter(|sample| sample.measurement.pose().is_some()).map(|sample| sample.truth.pose);
    let file = given(&poses.collect::<Vec<_>>());
    let mut config = settings();
    config.slam = Slam { trajectory: file.path().display().to_string(), ..Slam::default() };
    replay(&config, whole.path(), &drive, Options::default(), "one").unwrap();

    let start = Replay::start(&config, named_source("one"), interrupted.path(), Options::default(), |_| {}).unwrap();
    let (stop, half) = (start.stop_signal(), drive.len() / 2);
    let measurements = drive.iter().enumerate().map(|(index, sample)| {
        if index == half {
            stop.stop();
        }
        sample.measurement
    });
    let outcome = start.run(messages::<Infallible>(Isometry3::identity(), measurements)).unwrap();
    assert!(outcome.report.interrupted && outcome.report.corrected_path.is_none());
    let options = Options { resume: true, ..Options::default() };
    replay(&config, interrupted.path(), &drive, options, "one").unwrap();
    let recovered = |folder: &Path| {
        let database = Arc::new(Database::open(folder.join("map.magmap")).unwrap());
        database.recover(&config, Gaps::Stop, |_| {}).unwrap().mapper
    };
    let [whole, resumed] = [whole.path(), interrupted.path()].map(recovered);
    assert!(resumed.trajectory().correction == whole.trajectory().correction);
    assert!(resumed.trajectory().batches() == whole.trajectory().batches());
    assert!(resumed.model().state() == whole.model().state());
}

#[test]
fn a_path_of_another_time_is_refused() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let mut config = settings();
    config.slam.enabled = false;
    let pose = drive[0].truth.pose;
    let late = Pose { stamp: pose.stamp.shifted(1e6), ..pose };
    let file = given(&[late]);
    config.slam.trajectory = file.path().display().to_string();
    let error = replay(&config, folder.path(), &drive[..1000], Options::default(), "one").err().unwrap().to_string();
    assert!(error.contains("no pose of the trajectory can be placed"), "{error}");
}

#[test]
fn slam_of_strengths_is_refused_with_what_it_needs() {
    let mut config = settings();
    config.model.field = Mapped::Strength;
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("model.field") && error.contains("vector or auto"), "{error}");
}

/// Sends a drive as a robot would.
fn feed(mapping: &MappingThread, drive: &[SimulatedMeasurement]) {
    let measurements = drive.iter().map(|sample| sample.measurement);
    let intake = Intake::new(&mapping.config());
    for input in intake.run(messages::<Infallible>(Isometry3::identity(), measurements)) {
        mapping.inbox.send(input.unwrap()).unwrap();
    }
}

/// The corrected path, once it is as expected.
fn wait_for(mapping: &MappingThread, expected: &str, is_so: impl Fn(&CorrectedPath) -> bool) -> CorrectedPath {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match mapping.corrected_path() {
            Some(path) if is_so(&path) => return path,
            path => assert!(Instant::now() < deadline, "expected {expected}, found {path:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends a drive, and waits until its path is corrected as far as it has driven, but for what waits for the next metres.
fn send(mapping: &MappingThread, drive: &[SimulatedMeasurement], length: f64) -> CorrectedPath {
    feed(mapping, drive);
    mapping.flush().unwrap();
    wait_for(mapping, &format!("a path of more than {length} m"), |path| path.length > length)
}

/// The largest distance of observations from where the sensor was, in metres. The map begins where the robot was.
fn largest_error(observations: impl Iterator<Item = Observation>, drive: &[SimulatedMeasurement]) -> f64 {
    let truth: Vec<Pose> = drive.iter().map(|sample| sample.truth.pose).collect();
    let distance = |seen: Observation| {
        let next = truth.partition_point(|pose| pose.stamp < seen.stamp).min(truth.len() - 1);
        (truth[next].position - seen.position).xy().norm()
    };
    observations.map(distance).fold(0.0, f64::max)
}

#[test]
fn a_robot_corrects_its_path_while_it_drives_and_its_map_is_that_of_the_path() {
    let (drive, config) = (drive(), settings());
    let mapping = MappingThread::start(Mode::MergeWaiting, Mapper::new(&config), None, None).unwrap();
    let path = send(&mapping, &drive, 35.0);
    let finished = mapping.join().unwrap();
    let kept = finished.mapper.trajectory();
    let folded = trajectory::fold(&config, kept.corrected_batches(), &|| false);
    assert!(folded.state() == finished.mapper.model().state());

    // An observation averages some centimetres of the path, and is stamped at their end.
    let by_odometry = largest_error(kept.observations().copied(), &drive);
    let corrected = largest_error(kept.corrected_batches().flatten(), &drive);
    assert!(by_odometry > 0.4 && corrected < 0.5 * by_odometry, "{by_odometry} m by odometry, {corrected} m corrected");
    let covariance = path.tracked.as_ref().unwrap().covariance;
    let deviation = covariance.m11.max(covariance.m22).sqrt();
    assert!(deviation > 0.002 && deviation < 0.2, "{path:?}");
    assert!(path.moved_most > 0.2, "{path:?}");
}

#[test]
fn a_flush_corrects_all_of_a_recording_as_the_offline_replay_does() {
    let (drive, mut config) = (drive(), settings());
    config.node.recording = "house#0123456789abcdef".into();
    let [played, offline] = [Mode::MergeWaiting, Mode::WaitForLearning].map(|mode| {
        let mapping = MappingThread::start(mode, Mapper::new(&config), None, None).unwrap();
        feed(&mapping, &drive);
        mapping.flush().unwrap();
        let length = mapping.corrected_path().map(|path| path.length);
        let mapper = mapping.join().unwrap().mapper;
        assert_eq!(length, (mode == Mode::MergeWaiting).then(|| mapper.trajectory().length()));
        mapper
    });
    let kept = played.trajectory();
    let folded = trajectory::fold(&config, kept.corrected_batches(), &|| false);
    assert!(folded.state() == played.model().state());
    let last = |mapper: &Mapper| mapper.trajectory().correction.nodes().last().map(|node| node.observation);
    assert_eq!(last(&played), last(&offline));
    let [error, expected] =
        [kept, offline.trajectory()].map(|path| largest_error(path.corrected_batches().flatten(), &drive));
    assert!(error < expected + 0.02 && expected < 0.15, "{error} m, offline {expected} m");
}

/// The trajectory in the file of a node's map, which is the fold of it.
fn kept_in(folder: &TempDir, config: &Config) -> Trajectory {
    let database = Arc::new(Database::open(folder.path().join("map.magmap")).unwrap());
    let mapper = database.recover(config, Gaps::Stop, |_| {}).unwrap().mapper;
    let folded = trajectory::fold(config, mapper.trajectory().corrected_batches(), &|| false);
    assert!(folded.state() == mapper.model().state());
    mapper.trajectory().clone()
}

#[test]
fn a_corrected_path_is_continued_after_a_restart() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let mut config = settings();
    config.node.map_folder = folder.path().display().to_string();
    let (first, second) = drive.split_at(drive.len() * 2 / 3);
    let session = Session::start(&config, "", "/magmap").unwrap();
    assert_eq!(session.mapping.inbox.frame().as_deref(), Some("map"));
    send(&session.mapping, first, 20.0);
    session.save().unwrap();
    assert!(session.load().unwrap_err().contains("no map is loaded while another one is made"));
    session.end().unwrap();

    let without = Config { slam: Slam::default(), ..config.clone() };
    let error = Session::start(&without, "", "/magmap").unwrap_err().to_string();
    assert!(error.contains("was corrected or merged") || error.contains("\"map\""), "{error}");

    let session = Session::start(&config, "", "/magmap").unwrap();
    // Odometry is at once where it was.
    let before = session.mapping.inspect(|mapper| mapper.trajectory().correction.last()).unwrap();
    assert!(before != Isometry2::identity() && session.mapping.map_from_odometry() == before);
    send(&session.mapping, second, 35.0);
    session.end().unwrap();
    let kept = kept_in(&folder, &config);
    let by_odometry = largest_error(kept.observations().copied(), &drive);
    let corrected = largest_error(kept.corrected_batches().flatten(), &drive);
    assert!(by_odometry > 0.4 && corrected < 0.5 * by_odometry, "{by_odometry} m by odometry, {corrected} m corrected");
}

#[test]
fn a_path_is_corrected_further_after_a_reboot_elsewhere() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let mut config = settings();
    config.node.map_folder = folder.path().display().to_string();
    let (first, second) = drive.split_at(drive.len() * 5 / 8);
    let session = Session::start(&config, "", "/magmap").unwrap();
    send(&session.mapping, first, 20.0);
    session.end().unwrap();

    let rebooted = of_another(other_frame(), [0.0; 3]);
    let second: Vec<SimulatedMeasurement> = second
        .iter()
        .map(|sample| SimulatedMeasurement { measurement: rebooted(sample.measurement), ..*sample })
        .collect();
    let session = Session::start(&config, "", "/magmap").unwrap();
    send(&session.mapping, &second, 35.0);
    let relocated = session.mapping.relocated().unwrap();
    assert!(relocated.is_known && !relocated.words.contains("continued"), "{relocated:?}");
    // The transform on /tf is that of the odometry that the robot has now.
    let poses = second.iter().rev().filter_map(|sample| match sample.measurement {
        Measurement::Pose(pose) => Some((in_plane(&pose.isometry()), in_plane(&sample.truth.pose.isometry()))),
        Measurement::Reading(_) => None,
    });
    let (by_odometry, truth) = poses.into_iter().next().unwrap();
    let last = session.mapping.map_from_odometry() * by_odometry;
    let off = (last.translation.vector - truth.translation.vector).norm();
    let turned = last.rotation.angle_to(&truth.rotation).abs();
    assert!(off < 0.35 && turned < 0.2, "{off} m, {turned} radians");
    session.end().unwrap();
    let kept = kept_in(&folder, &config);
    let corrected = largest_error(kept.corrected_batches().flatten(), &drive);
    assert!(corrected < 0.35, "{corrected} m");
}

/// Settings of a robot whose path another SLAM corrects, whose batches are never merged.
fn following(field: Mapped) -> Config {
    let mut config = Config::default();
    config.model.field = field;
    config.slam.path_topic = "path".into();
    config.mapping.max_merged = 1;
    config
}

/// The true poses of a drive, five times a second, as another SLAM knows them: bent by this at the end of the whole drive, in metres.
fn by_other_slam(drive: &[SimulatedMeasurement], bend: f64) -> Vec<Pose> {
    let poses = drive.iter().filter(|sample| sample.measurement.pose().is_some()).step_by(10);
    let bent = |sample: &SimulatedMeasurement| {
        let Pose { stamp, mut position, orientation } = sample.truth.pose;
        position.y += bend * (stamp.seconds() / 80.0).powi(2);
        Pose { stamp, position, orientation }
    };
    poses.map(bent).collect()
}

#[test]
fn a_graph_that_bends_and_closes_leads_to_the_map_of_its_final_poses_and_mapping_goes_on() {
    let (drive, config) = (drive(), following(Mapped::Strength));
    let steps = Arc::new(Mutex::new(Vec::new()));
    let observer: Observer = Box::new({
        let steps = Arc::clone(&steps);
        move |observations, _| steps.lock().unwrap().push(observations.len())
    });
    let mapping = MappingThread::start(Mode::MergeWaiting, Mapper::new(&config), None, Some(observer)).unwrap();
    let quarter = drive.len() / 4;
    for part in 1..=4 {
        feed(&mapping, &drive[(part - 1) * quarter..part * quarter]);
        mapping.give_path(by_other_slam(&drive[..part * quarter], 2.0));
    }
    feed(&mapping, &drive[4 * quarter..]);
    mapping.flush().unwrap();
    let bent = wait_for(&mapping, "a path that is bent by 2 m", |path| path.moved_most > 1.5 && path.length > 35.0);
    // The loop closes.
    let final_poses = by_other_slam(&drive, 0.0);
    mapping.give_path(final_poses.clone());
    let closed = wait_for(&mapping, "a path that is not bent", |path| path.moved_most < 1.2);
    assert!(bent.tracked.is_none() && closed.moved_most > 0.4 && closed.length > 40.0, "{closed:?}");
    assert_eq!(mapping.placed_poses(), Some(final_poses.len()));
    let live = mapping.join().unwrap();

    // Every observation was learnt once on the way, also while the map was made again, which published no batch.
    let (counters, trajectory) = (live.status.counters, live.mapper.trajectory());
    let (learnt, replaced): (Vec<usize>, Vec<usize>) = steps.lock().unwrap().iter().partition(|step| **step > 0);
    assert_eq!((learnt.len() as u64, learnt.iter().sum::<usize>() as u64), (counters.batches, counters.observations));
    assert!(replaced.len() >= 2, "{replaced:?}");
    assert_eq!(trajectory.observations().count() as u64, counters.observations);
    let by_odometry = largest_error(trajectory.observations().copied(), &drive);
    let corrected = largest_error(trajectory.corrected_batches().flatten(), &drive);
    // An observation averages some centimetres of the path, and is stamped at their end.
    assert!(by_odometry > 0.4 && corrected < 0.08, "{by_odometry} m by odometry, {corrected} m corrected");

    // The same drive with the final poses alone.
    let mapping = MappingThread::start(Mode::MergeWaiting, Mapper::new(&config), None, None).unwrap();
    feed(&mapping, &drive);
    mapping.flush().unwrap();
    mapping.give_path(final_poses);
    wait_for(&mapping, "a corrected path", |path| path.length > 35.0);
    let once = mapping.join().unwrap().mapper;
    assert!(once.trajectory().correction == trajectory.correction);
    assert!(once.trajectory().batches() == trajectory.batches());
    assert!(once.model().state() == live.mapper.model().state());
    let folded = trajectory::fold(&config, once.trajectory().corrected_batches(), &|| false);
    assert!(folded.state() == once.model().state());
}

#[test]
fn the_path_of_another_slam_is_continued_after_a_restart() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let mut config = following(Mapped::Vector);
    config.node.map_folder = folder.path().display().to_string();
    // Of several tiles one fits into memory, in the map and in the one that is made again beside it.
    (config.tiles.size, config.tiles.memory) = (2.0, 0.01);
    let (first, second) = drive.split_at(drive.len() * 2 / 3);
    let session = Session::start(&config, "", "/magmap").unwrap();
    assert_eq!(session.mapping.inbox.frame().as_deref(), Some("map"));
    feed(&session.mapping, first);
    session.flush().unwrap();
    session.mapping.give_path(by_other_slam(first, 2.0));
    wait_for(&session.mapping, "a bent path", |path| path.moved_most > 0.5);
    session.end().unwrap();

    let without =
        Config { slam: Slam::default(), frames: Frames { map: "map".into(), ..Frames::default() }, ..config.clone() };
    let error = Session::start(&without, "", "/magmap").unwrap_err().to_string();
    assert!(error.contains("was corrected or merged"), "{error}");

    // The other SLAM closes its loop just before the end, which moves earlier observations as well.
    let session = Session::start(&config, "", "/magmap").unwrap();
    feed(&session.mapping, second);
    session.mapping.give_path(by_other_slam(&drive, 0.0));
    session.end().unwrap();
    let database = Arc::new(Database::open(folder.path().join("map.magmap")).unwrap());
    let kept = database.recover(&config, Gaps::Stop, |_| {}).unwrap().mapper;
    let folded = trajectory::fold(&config, kept.trajectory().corrected_batches(), &|| false);
    assert!(folded.state() == kept.model().state());
    let by_odometry = largest_error(kept.trajectory().observations().copied(), &drive);
    let corrected = largest_error(kept.trajectory().corrected_batches().flatten(), &drive);
    assert!(by_odometry > 0.4 && corrected < 0.08, "{by_odometry} m by odometry, {corrected} m corrected");
}
