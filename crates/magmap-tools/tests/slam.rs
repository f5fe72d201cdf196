//! Replays of a robot whose odometry drifts and whose path the field corrects.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use magmap::config::{Config, Mapped};
use magmap::sensing::reading::{Measurement, Pose};
use magmap::store::Database;
use magmap::store::recovery::Gaps;
use magmap::trajectory;
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::replay::{Error, Options, Replay, ReplayOutputs};
use magmap_tools::simulation::{DipoleOptions, Drift, Route, SimulatedMeasurement, Simulation, demo};
use nalgebra::Isometry3;
use tempfile::tempdir;

use super::replay::source;

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
    let mut source = source();
    source.id.fingerprint = name.into();
    let poses = drive.iter().filter(|sample| sample.measurement.pose().is_some());
    source.truth = poses.map(|sample| sample.truth.pose).collect();
    let replay = Replay::start(config, source, folder, options, |_| {})?;
    let measurements = drive.iter().map(|sample| sample.measurement);
    replay.run(messages::<Infallible>(Isometry3::identity(), measurements))
}

#[test]
fn the_field_corrects_the_path_and_the_map_is_made_from_that() {
    let (drive, folder) = (drive(), tempdir().unwrap());
    let outcome = replay(&settings(), folder.path(), &drive, Options::default(), "one").unwrap();
    let slam = outcome.report.slam.as_ref().unwrap();
    let truth = slam.truth.as_ref().unwrap();
    let poses: Vec<Pose> = drive.iter().filter_map(|sample| sample.measurement.pose()).collect();
    assert_eq!(truth.poses, poses.len());
    // Odometry is decimetres off; a lengthscale that is only nearly right stretches the path by some per cent.
    assert!(truth.odometry > 0.15 && truth.corrected < 0.4 * truth.odometry, "{slam:?}");
    assert!(truth.corrected < 0.08 && truth.corrected_most < 0.25, "{slam:?}");

    // Each pose of odometry has its line, in order, with its stamp; lines are those that the errors are of.
    let text = fs::read_to_string(folder.path().join("trajectory.tum")).unwrap();
    let lines: Vec<Vec<f64>> =
        text.lines().skip(1).map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(lines.len(), poses.len());
    assert!(lines.iter().zip(&poses).all(|(line, pose)| (line[0] - pose.stamp.seconds()).abs() < 1e-6));
    let moved =
        lines.iter().zip(&poses).map(|(line, pose)| (line[1] - pose.position.x).hypot(line[2] - pose.position.y));
    assert!((moved.fold(0.0, f64::max) - slam.corrected_most).abs() < 1e-5);
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
    assert!(outcome.report.doubt.is_some() && outcome.report.slam.is_none(), "{:?}", outcome.report.slam);
    assert!(!folder.path().join("trajectory.tum").exists());
}

#[test]
fn slam_of_strengths_is_refused_with_what_it_needs() {
    let mut config = settings();
    config.model.field = Mapped::Strength;
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("model.field") && error.contains("vector or auto"), "{error}");
}
