//! Whether a map of the three axes says that the axes of its readings contradict the physics, or the map, and why.

use super::common;

use magmap::config::{Config, Mapped};
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::sensing::intake::Input;
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap_tools::recording;
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, Simulation};
use nalgebra::{Isometry3, Matrix3, UnitQuaternion, Vector3};

/// Why the map of these measurements is in doubt. The map itself is coarse, and soon made: the check does not depend on it.
fn doubt(
    measurements: impl IntoIterator<Item = Measurement>,
    mount: Isometry3<f64>,
    config: &Config,
) -> Option<String> {
    let mut config = config.clone();
    config.model.field = Mapped::Vector;
    config.learning.max_evaluations = 0;
    config.selection.max_inducing_points = 10;
    let worker = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
    worker.inbox.send(Input::Mount(mount)).unwrap();
    measurements.into_iter().for_each(|measurement| worker.inbox.send(measurement).unwrap());
    let live = {
        worker.flush().unwrap();
        worker.doubt()
    };
    let finished = worker.join().unwrap();
    assert_eq!(finished.doubt, live);
    live
}

/// A drive of 20 m, with a hard iron and the mount off by five degrees.
fn drive(seed: u64, route: Route) -> Vec<Measurement> {
    let mount = Isometry3::new(Vector3::new(0.1, 0.0, 0.2), Vector3::z() * 5_f64.to_radians());
    let robot = RobotOptions { mount, ..Default::default() };
    let simulation = Simulation { seed, world: DipoleOptions::default(), route, robot, duration: 41.0 };
    let world = simulation.world().unwrap();
    let samples = simulation.drive(&world).unwrap().map(|sample| sample.measurement);
    with_readings(samples, |_, field| field + Vector3::new(15.0, -10.0, 8.0))
}

/// The mount as the robot's description has it.
fn mount() -> Isometry3<f64> {
    Isometry3::translation(0.1, 0.0, 0.2)
}

fn with_readings(
    measurements: impl IntoIterator<Item = Measurement>,
    change: impl Fn(Stamp, Vector3<f64>) -> Vector3<f64>,
) -> Vec<Measurement> {
    let changed = |measurement| match measurement {
        Measurement::Reading(reading) => {
            let changed = |field: MagneticField| change(reading.stamp, *field.microtesla());
            let field = MagneticField::from_microtesla(changed(reading.field));
            Measurement::Reading(Reading { field, ..reading })
        }
        pose => pose,
    };
    measurements.into_iter().map(changed).collect()
}

fn with_yaw(measurements: &[Measurement], change: impl Fn(f64) -> f64) -> Vec<Measurement> {
    let changed = |measurement: &Measurement| match measurement {
        Measurement::Pose(pose) => {
            let (_, _, yaw) = pose.orientation.euler_angles();
            let orientation = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), change(yaw));
            Measurement::Pose(Pose { orientation, ..*pose })
        }
        reading => *reading,
    };
    measurements.iter().map(changed).collect()
}

/// Faults: a name, the measurements with it, and what the message must contain.
fn faults(sound: &[Measurement]) -> Vec<(&'static str, Vec<Measurement>, &'static str)> {
    let turned = |matrix: Matrix3<f64>| with_readings(sound.iter().copied(), |_, field| matrix * field);
    let quarter = Matrix3::new(0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0);
    vec![
        ("a quarter turn", turned(quarter), "turned by -"),
        ("a quarter turn to the right", turned(quarter.transpose()), "turned by "),
        ("half a turn", turned(quarter * quarter), "or its z axis reversed"),
        ("z reversed", turned(Matrix3::from_diagonal(&Vector3::new(1.0, 1.0, -1.0))), "or its z axis reversed"),
        ("y and z exchanged", turned(Matrix3::new(1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0)), "about x, z, y of"),
        ("x and y exchanged", turned(Matrix3::new(0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)), "about y, x, z of"),
        ("a constant heading", with_yaw(sound, |_| 0.3), "the orientation in the odometry does not change"),
        ("a reversed heading", with_yaw(sound, |yaw| -yaw), "the heading of the odometry, or"),
    ]
}

#[test]
fn a_sound_robot_with_a_hard_iron_and_a_mount_that_is_off_by_five_degrees_is_not_in_doubt() {
    for seed in 1..=4 {
        for route in [Route::Random, Route::LawnMower { spacing: 0.8 }] {
            assert_eq!(doubt(drive(seed, route), mount(), &Config::default()), None, "{seed} {route:?}");
        }
    }
}

#[test]
fn wrong_axes_and_wrong_headings_are_named_within_20_m() {
    for (seed, route) in [(1, Route::Random), (2, Route::LawnMower { spacing: 0.8 }), (3, Route::Random)] {
        for (fault, measurements, expected) in faults(&drive(seed, route)) {
            let found = doubt(measurements, mount(), &Config::default());
            assert!(found.as_ref().is_some_and(|found| found.contains(expected)), "{seed}, {fault}: {found:?}");
        }
    }
}

#[test]
fn the_real_drives_are_not_in_doubt_and_wrong_ones_are() {
    let Some(folder) = common::aalto_folder() else { return };
    for drive in 1..=9 {
        let config = Config::default();
        let path = folder.join(format!("invensense/{drive}"));
        let recording = recording::open(&path, &config).unwrap();
        let mount = recording.mount;
        let measurements = common::measurements(recording);
        assert_eq!(doubt(measurements.iter().copied(), mount, &config), None, "{drive}");
        // Of all drives, the last one says least.
        for (fault, measurements, expected) in faults(&measurements).into_iter().filter(|_| drive == 9) {
            let found = doubt(measurements, mount, &config);
            assert!(found.as_ref().is_some_and(|found| found.contains(expected)), "{drive}, {fault}: {found:?}");
        }
    }
}

#[test]
fn a_bias_that_grows_with_the_speed_is_named_unless_it_is_learnt() {
    // Stamps are stretched, so that the speed swings between 0.3 and 1.25 m/s in 8 s.
    let later = |stamp: Stamp| stamp.shifted(0.75 * (0.8 * stamp.seconds()).sin());
    let speed = |stamp: Stamp| 0.5 / (1.0 + 0.6 * (0.8 * stamp.seconds()).cos());
    let robot = |bias: Vector3<f64>| -> Vec<Measurement> {
        let biased = with_readings(drive(4, Route::Random), |stamp, field| field + bias * speed(stamp));
        let stretched = |measurement| match measurement {
            Measurement::Reading(reading) => Measurement::Reading(Reading { stamp: later(reading.stamp), ..reading }),
            Measurement::Pose(pose) => Measurement::Pose(Pose { stamp: later(pose.stamp), ..pose }),
        };
        biased.into_iter().map(stretched).collect()
    };
    let mut config = Config::default();
    assert_eq!(doubt(robot(Vector3::zeros()), mount(), &config), None);
    let motors = Vector3::new(4.0, 0.0, -8.0);
    let found = doubt(robot(motors), mount(), &config).unwrap();
    assert!(found.contains("vector.speed_bias") && found.contains("about 9 microtesla"), "{found}");
    config.vector.speed_bias = 10.0;
    assert_eq!(doubt(robot(motors), mount(), &config), None);
}

#[test]
fn strengths_do_not_depend_on_axes_and_are_not_checked() {
    let (_, measurements, _) = faults(&drive(1, Route::Random)).swap_remove(0);
    let worker = MappingThread::start(Mode::WaitForLearning, Mapper::new(&Config::default()), None, None).unwrap();
    measurements.into_iter().for_each(|measurement| worker.inbox.send(measurement).unwrap());
    assert_eq!(worker.join().unwrap().doubt, None);
}

#[test]
fn readings_that_contradict_the_map_are_noticed_within_10_m_of_places_that_are_known() {
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let first = drive(5, Route::Random);
    let twice = |offset: Vector3<f64>, turn: f64| {
        let worker = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
        worker.inbox.send(Input::Mount(mount())).unwrap();
        first.iter().for_each(|measurement| worker.inbox.send(*measurement).unwrap());
        worker.flush().unwrap();
        assert_eq!(worker.doubt(), None);
        // The same drive again, 60 s later, from another pose: up to 10 m of it.
        let odometry = Isometry3::new(offset, Vector3::z() * turn);
        for measurement in &first {
            let again = match *measurement {
                Measurement::Reading(reading) => {
                    Measurement::Reading(Reading { stamp: reading.stamp.shifted(60.0), ..reading })
                }
                Measurement::Pose(pose) => Measurement::Pose(Pose {
                    stamp: pose.stamp.shifted(60.0),
                    position: odometry * pose.position,
                    orientation: odometry.rotation * pose.orientation,
                }),
            };
            if again.stamp().seconds_since(first[0].stamp()) < 80.0 {
                worker.inbox.send(again).unwrap();
            }
        }
        worker.join().unwrap().doubt
    };
    assert_eq!(twice(Vector3::zeros(), 0.0), None);
    for (offset, turn) in [(Vector3::x(), 0.0), (Vector3::zeros(), 20_f64.to_radians())] {
        let doubt = twice(offset, turn);
        assert!(doubt.as_ref().is_some_and(|doubt| doubt.contains("contradict the map")), "{offset} {turn}: {doubt:?}");
    }
}
