//! The localizer in simulated rooms: tracked, found, lost, and never sure of a wrong place.

use std::sync::LazyLock;

use nalgebra::{Isometry2, Isometry3, Point3, Quaternion, UnitQuaternion, Vector3};
use proptest::prelude::*;

use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::localization::{Error, Localizer, Located, Reason, Start, State};
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap_tools::simulation::{
    Dipole, DipoleOptions, DipoleWorld, Drift, Odometry, Path, RobotOptions, Route, SimulatedDrive, World,
};

const ROOM: [f64; 2] = [5.0, 5.0];

/// The sensor is not in the middle of the robot, and turned.
fn mount() -> Isometry3<f64> {
    Isometry3::new(Vector3::new(0.2, -0.1, 0.0), Vector3::new(0.0, 0.0, 0.7))
}

fn world(seed: u64) -> DipoleWorld {
    DipoleWorld::random(&DipoleOptions { size: ROOM, ..DipoleOptions::default() }, seed).unwrap()
}

fn drive(world: &DipoleWorld, route: Route, length: f64, seed: u64) -> SimulatedDrive<&DipoleWorld> {
    let path = Path::through_room(route, ROOM, length, seed).unwrap();
    SimulatedDrive::new(world, path, RobotOptions { mount: mount(), ..RobotOptions::default() }, seed).unwrap()
}

fn settings(field: Mapped) -> Config {
    let mut config = Config::default();
    config.model.field = field;
    // The values that suit such rooms; learning them takes most of the time.
    config.learning.max_evaluations = 0;
    config.localization.max_particles = 4000;
    config
}

static STRENGTHS: LazyLock<FieldMap> = LazyLock::new(|| map_room(&settings(Mapped::Strength)));
static AXES: LazyLock<FieldMap> = LazyLock::new(|| map_room(&settings(Mapped::Vector)));

/// The map of the room with seed 4.
fn mapped(field: Mapped) -> &'static FieldMap {
    match field {
        Mapped::Strength | Mapped::Auto => &STRENGTHS,
        Mapped::Vector => &AXES,
    }
}

/// The map of the room, driven through in lanes with true poses.
fn map_room(config: &Config) -> FieldMap {
    let mut pipeline = Pipeline::new(config, mount());
    for simulated in drive(&world(4), Route::LawnMower { spacing: 0.6 }, 45.0, 1) {
        pipeline.ingest(simulated.measurement);
    }
    pipeline.finish();
    let mut model = FieldModel::new(config);
    for batch in pipeline.take_ready() {
        model.update(&batch.observations, &|| false).unwrap();
    }
    model.map().unwrap()
}

/// A drive whose odometry has its own frame, a wrong scale and a drift; with the true pose of the body at each measurement.
fn drifting(world: &DipoleWorld, length: f64, seed: u64) -> Vec<(Measurement, Pose)> {
    let drift = Drift { scale: 0.03, turn: 0.01, heading: 0.02, slip: 0.01 };
    let mut odometry = Odometry::new(Some(drift), seed + 1);
    let frame = Isometry3::new(Vector3::new(-7.0, 3.0, 0.0), Vector3::new(0.0, 0.0, 2.0));
    let own = |pose: Pose| {
        let moved = frame * pose.isometry();
        Pose { stamp: pose.stamp, position: moved.translation.vector.into(), orientation: moved.rotation }
    };
    drive(world, Route::Random, length, seed)
        .map(|simulated| {
            let measurement = match simulated.measurement {
                Measurement::Pose(pose) => Measurement::Pose(own(odometry.report(pose))),
                reading => reading,
            };
            (measurement, simulated.truth.pose)
        })
        .collect()
}

fn known(pose: &Pose) -> Start {
    let heading = pose.orientation.euler_angles().2;
    Start::At { place: [pose.position.x, pose.position.y], heading, deviation: 0.1, heading_deviation: 0.05 }
}

fn locate(config: &Config, map: &FieldMap, start: Start, drive: &[(Measurement, Pose)]) -> Vec<(Located, Pose)> {
    let mut localizer = Localizer::new(config, map, mount(), start).unwrap();
    drive.iter().filter_map(|(measurement, truth)| Some((localizer.ingest(*measurement)?, *truth))).collect()
}

fn error((located, truth): &(Located, Pose)) -> f64 {
    let place = located.pose.translation.vector;
    (place.x - truth.position.x).hypot(place.y - truth.position.y)
}

#[test]
fn a_robot_is_tracked_although_its_odometry_drifts_and_found_wherever_it_starts() {
    let world = world(4);
    for (field, tracked_to, found_to) in [(Mapped::Strength, 0.25, 0.5), (Mapped::Vector, 0.15, 0.3)] {
        let config = settings(field);
        let map = mapped(field);
        let drive = drifting(&world, 18.0, 1);
        let track = locate(&config, map, known(&drive[0].1), &drive);
        let squares: f64 = track.iter().map(|step| error(step).powi(2)).sum();
        let root_mean_square = (squares / track.len() as f64).sqrt();
        assert!(root_mean_square < tracked_to, "{field:?}: {root_mean_square}");
        let (last, truth) = track.last().unwrap();
        assert_eq!((last.state, last.reason), (State::Tracking, None), "{field:?}");
        let heading = truth.orientation.euler_angles().2;
        let turned = (last.pose.rotation.angle() - heading + 3.0).rem_euclid(std::f64::consts::TAU) - 3.0;
        assert!(turned.abs() < 0.15, "{field:?}: heading {turned}");
        assert!(track.iter().all(|step| step.0.state != State::Tracking || error(step) < 1.0), "{field:?}");
        // Odometry, moved into the map, is the pose of the body.
        let Some(Measurement::Pose(odometry)) = drive.iter().rev().map(|(measurement, _)| *measurement).next() else {
            panic!("a drive ends with a pose");
        };
        let moved = last.map_from_odometry * nalgebra::Point2::new(odometry.position.x, odometry.position.y);
        // It has moved on by a cell of the path at most.
        assert!((moved - last.pose.translation.vector).coords.norm() < 0.1, "{field:?}: {moved}");

        let found = locate(&config, map, Start::Anywhere, &drive);
        assert!(error(found.last().unwrap()) < found_to, "{field:?}: {}", error(found.last().unwrap()));
        assert!(found.iter().all(|step| step.0.state != State::Tracking || error(step) < 1.0), "{field:?}");

        // The same again, to the last bit; and from where it was known to be.
        assert_eq!(track, locate(&config, map, known(&drive[0].1), &drive));
        assert!(Localizer::new(&config, map, mount(), Start::near(last)).is_ok());
    }
}

#[test]
fn in_the_map_of_another_room_a_robot_is_soon_lost_and_never_sure() {
    for (field, seed) in [(Mapped::Strength, 11), (Mapped::Vector, 12)] {
        let drive = drifting(&world(seed), 10.0, 1);
        let track = locate(&settings(field), mapped(field), known(&drive[0].1), &drive);
        let lost = track.iter().position(|(located, _)| located.state == State::Lost);
        // A step is 5 cm.
        assert!(lost.is_some_and(|steps| steps < 100), "{field:?}: {lost:?}");
        assert!(track.iter().all(|(located, _)| located.state != State::Tracking), "{field:?}");
    }
}

#[test]
fn outside_the_map_is_said_to_be_outside() {
    let (config, world) = (settings(Mapped::Strength), world(4));
    let map = mapped(Mapped::Strength);
    let drive = drifting(&world, 4.0, 1);
    let start = Start::At { place: [60.0, 60.0], heading: 0.0, deviation: 0.1, heading_deviation: 0.1 };
    let track = locate(&config, map, start, &drive[..400]);
    assert_eq!(track[10].0.reason, Some(Reason::OutsideMap));
}

#[test]
fn maps_and_starts_that_cannot_be_used_are_rejected() {
    let config = settings(Mapped::Strength);
    let map = mapped(Mapped::Strength);
    let at = |deviation, x| Start::At { place: [x, 0.0], heading: 0.0, deviation, heading_deviation: 0.0 };
    for start in [at(-0.1, 0.0), at(f64::NAN, 0.0), at(0.1, f64::INFINITY)] {
        assert!(matches!(Localizer::new(&config, map, mount(), start), Err(Error::Start(_))), "{start:?}");
    }
}

#[test]
fn a_reading_that_is_no_field_and_poses_that_are_no_poses_change_nothing() {
    let (config, world) = (settings(Mapped::Strength), world(4));
    let map = mapped(Mapped::Strength);
    let mut localizer = Localizer::new(&config, map, mount(), Start::Anywhere).unwrap();
    let stamp = Stamp::default();
    let nowhere = Pose { stamp, position: Point3::new(f64::NAN, 0.0, 0.0), orientation: UnitQuaternion::identity() };
    let nothing = Reading { stamp, field: world.field_at(&Point3::new(f64::NAN, 0.0, 0.0)) };
    for measurement in [Measurement::Pose(nowhere), Measurement::Reading(nothing)] {
        assert_eq!(localizer.ingest(measurement), None);
    }
    assert_eq!(localizer.counters().rejections.total(), 2);
    assert!(localizer.particles().is_empty());
}

#[test]
fn a_robot_that_turns_on_the_spot_is_updated_after_each_fifth_of_a_radian() {
    let world = world(4);
    let config = settings(Mapped::Vector);
    let map = mapped(Mapped::Vector);
    let drive: Vec<_> = drive(&world, Route::Random, 6.0, 1).collect();
    let mut localizer = Localizer::new(&config, map, mount(), known(&drive[0].truth.pose)).unwrap();
    for simulated in &drive {
        localizer.ingest(simulated.measurement);
    }
    let last = drive.last().unwrap().truth.pose;
    let mut updates = Vec::new();
    for step in 1..=100 {
        let stamp = Stamp::from_seconds(last.stamp.nanoseconds() as f64 * 1e-9 + 0.02 * f64::from(step));
        let turn = UnitQuaternion::from_euler_angles(0.0, 0.0, 0.02 * f64::from(step));
        let pose = Pose { stamp, position: last.position, orientation: turn * last.orientation };
        let sensor = pose.isometry() * mount();
        let place = sensor.translation.vector.into();
        let read = sensor.rotation.inverse() * world.field_at(&place).microtesla();
        let reading = Reading { stamp, field: MagneticField::from_microtesla(read) };
        for measurement in [Measurement::Reading(reading), Measurement::Pose(pose)] {
            updates.extend(localizer.ingest(measurement).map(|located| (located, pose)));
        }
    }
    // Two radians.
    assert!((8..=20).contains(&updates.len()), "{} updates", updates.len());
    for (located, pose) in &updates {
        let error = (located.pose.rotation.angle() - pose.orientation.euler_angles().2).sin();
        // What is averaged between two updates is half of it old.
        assert!(error.abs() < 0.2, "{error}: {located:?}");
        assert_eq!(located.state, State::Tracking);
    }
}

#[test]
fn the_bias_of_another_robots_sensor_is_estimated_if_it_is_said_to_have_one() {
    let world = world(4);
    let mut config = settings(Mapped::Vector);
    let map = mapped(Mapped::Vector);
    let hard_iron = Vector3::new(12.0, -8.0, 5.0);
    let with_more = |(measurement, truth): (Measurement, Pose)| match measurement {
        Measurement::Reading(Reading { stamp, field }) => {
            let field = MagneticField::from_microtesla(field.microtesla() + hard_iron);
            (Measurement::Reading(Reading { stamp, field }), truth)
        }
        _ => (measurement, truth),
    };
    let drive: Vec<_> = drifting(&world, 18.0, 1).into_iter().map(with_more).collect();
    let is_lost = |track: &[(Located, Pose)]| track.iter().any(|(located, _)| located.state == State::Lost);
    assert!(is_lost(&locate(&config, map, known(&drive[0].1), &drive[..drive.len() / 2])));

    config.localization.bias_deviation = 10.0;
    let mut localizer = Localizer::new(&config, map, mount(), known(&drive[0].1)).unwrap();
    let located = drive.iter().filter_map(|(measurement, truth)| Some((localizer.ingest(*measurement)?, *truth)));
    let track: Vec<(Located, Pose)> = located.collect();
    let squares: f64 = track.iter().map(|step| error(step).powi(2)).sum();
    let root_mean_square = (squares / track.len() as f64).sqrt();
    assert!(root_mean_square < 0.2 && !is_lost(&track), "{root_mean_square}");
    assert_eq!(track.last().unwrap().0.state, State::Tracking);
    let found = localizer.particles()[0].bias();
    for axis in 0..3 {
        assert!((found[axis] - hard_iron[axis]).abs() < 2.0, "{found:?}");
    }
    // Nothing is known of the place, either.
    let found = locate(&config, map, Start::Anywhere, &drive);
    assert!(error(found.last().unwrap()) < 0.5, "{}", error(found.last().unwrap()));
    assert!(found.iter().all(|step| step.0.state != State::Tracking || error(step) < 1.0));
}

/// A drive of 12 m below something that was put up since the room was mapped, 7 m from the start: it changes the field by 27 microtesla there,
/// and by more than 3 on more than a tenth of the path.
fn past_a_change(world: &DipoleWorld, seed: u64) -> Vec<(Measurement, Pose)> {
    let path = Path::through_room(Route::Random, ROOM, 12.0, seed).unwrap();
    let sensor = |along: f64| -> Point3<f64> {
        let (place, heading) = path.at(along);
        (Isometry3::new(place.coords.push(0.0), heading * Vector3::z()) * mount()).translation.vector.into()
    };
    let (_, heading) = path.at(7.0);
    let moment = 15.1 * Vector3::new(heading.cos(), heading.sin(), 1.0);
    let changed = world.clone().with(Dipole { position: sensor(7.0) + 0.5 * Vector3::z(), moment });
    let change = |along: f64| {
        let [now, before] = [&changed, world].map(|world| *world.field_at(&sensor(along)).microtesla());
        (now - before).norm()
    };
    let felt = (0..120).filter(|step| change(0.1 * f64::from(*step)) > 3.0).count();
    assert!((change(7.0) - 27.0).abs() < 0.1 && felt > 12, "seed {seed}: {} microtesla, {felt}", change(7.0));
    drifting(&changed, 12.0, seed)
}

#[test]
fn a_change_of_a_tenth_of_the_path_ends_no_tracking() {
    let world = world(4);
    for seed in 10..20 {
        let drive = past_a_change(&world, seed);
        for field in [Mapped::Strength, Mapped::Vector] {
            let track = locate(&settings(field), mapped(field), known(&drive[0].1), &drive);
            let tracked = track.iter().skip_while(|(located, _)| located.state != State::Tracking);
            assert!(tracked.clone().count() > 100, "{field:?}, seed {seed}");
            for step in tracked {
                assert_eq!(step.0.state, State::Tracking, "{field:?}, seed {seed}: {:?}", step.0);
                assert!(error(step) < 0.5, "{field:?}, seed {seed}: {} m off", error(step));
            }
        }
    }
}

/// Faults of a measurement; numbers may be anything, also NaN and infinite.
#[derive(Clone, Debug)]
enum Wrong {
    /// The stamp is this many nanoseconds later or earlier.
    Stamp(i64),
    /// The clock of this measurement and of all later ones jumps by this many nanoseconds.
    Clock(i64),
    /// The measurement arrives twice.
    Repeated,
    /// A position or a field of these numbers.
    Numbers([f64; 3]),
    /// An orientation that need not be one.
    Orientation([f64; 4]),
    /// Odometry jumps by this from here on, in metres.
    Jump([f64; 3]),
}

fn wrong() -> impl Strategy<Value = Wrong> {
    let nanoseconds = || prop_oneof![-3_000_000_000..3_000_000_000_i64, any::<i64>()];
    let number = || prop_oneof![-100.0..100.0, prop::num::f64::ANY];
    let jump = || prop_oneof![Just(0.0), -5.0..5.0, -1e9..1e9];
    prop_oneof![
        nanoseconds().prop_map(Wrong::Stamp),
        nanoseconds().prop_map(Wrong::Clock),
        Just(Wrong::Repeated),
        [number(), number(), number()].prop_map(Wrong::Numbers),
        [number(), number(), number(), number()].prop_map(Wrong::Orientation),
        [jump(), jump(), jump()].prop_map(Wrong::Jump),
    ]
}

/// A drive of which some measurements, by their number, are wrong.
fn spoiled(drive: &[Measurement], wrongs: &[(usize, Wrong)]) -> Vec<Measurement> {
    let (mut moved, mut clock, mut spoiled) = (Vector3::zeros(), 0_i64, Vec::new());
    for (index, &measurement) in drive.iter().enumerate() {
        let mut measurement = measurement;
        if let Measurement::Pose(pose) = &mut measurement {
            pose.position += moved;
        }
        let mut late = 0;
        for (_, wrong) in wrongs.iter().filter(|(at, _)| at % drive.len() == index) {
            match (wrong, &mut measurement) {
                (Wrong::Stamp(nanoseconds), _) => late = *nanoseconds,
                (Wrong::Clock(nanoseconds), _) => clock = clock.saturating_add(*nanoseconds),
                (Wrong::Repeated, _) => spoiled.push(measurement),
                (Wrong::Jump(jump), _) => moved += Vector3::from(*jump),
                (Wrong::Numbers(numbers), Measurement::Pose(pose)) => pose.position = (*numbers).into(),
                (Wrong::Numbers(numbers), Measurement::Reading(reading)) => {
                    reading.field = MagneticField::from_microtesla((*numbers).into());
                }
                (Wrong::Orientation(numbers), Measurement::Pose(pose)) => {
                    pose.orientation = UnitQuaternion::new_unchecked(Quaternion::from(*numbers));
                }
                _ => {}
            }
        }
        let stamp = match &mut measurement {
            Measurement::Pose(pose) => &mut pose.stamp,
            Measurement::Reading(reading) => &mut reading.stamp,
        };
        *stamp = Stamp::from_nanoseconds(stamp.nanoseconds().saturating_add(clock).saturating_add(late));
        spoiled.push(measurement);
    }
    spoiled
}

/// In a map of strengths and in one of axes.
static LOCALIZERS: LazyLock<[Localizer; 2]> = LazyLock::new(|| {
    let localizer = |field| {
        let mut config = settings(field);
        (config.localization.min_particles, config.localization.max_particles) = (50, 300);
        Localizer::new(&config, mapped(field), mount(), Start::Anywhere).unwrap()
    };
    [Mapped::Strength, Mapped::Vector].map(localizer)
});

static DRIVE: LazyLock<Vec<(Measurement, Pose)>> = LazyLock::new(|| drifting(&world(4), 3.0, 1));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_sent_is_used_or_counted_as_rejected_and_what_is_found_is_finite(
        field in 0..2_usize,
        is_known in any::<bool>(),
        wrongs in prop::collection::vec((any::<usize>(), wrong()), 0..60),
    ) {
        let mut localizer = LOCALIZERS[field].clone();
        localizer.restart(if is_known { known(&DRIVE[0].1) } else { Start::Anywhere }).unwrap();
        let measurements: Vec<Measurement> = DRIVE.iter().map(|(measurement, _)| *measurement).collect();
        let sent = spoiled(&measurements, &wrongs);
        for measurement in &sent {
            let Some(located) = localizer.ingest(*measurement) else { continue };
            let Isometry2 { translation, rotation } = located.pose;
            let covariance = located.estimate.covariance;
            let numbers = [translation.x, translation.y, rotation.angle(), located.estimate.evidence];
            prop_assert!(numbers.iter().chain(covariance.as_flattened()).all(|number| number.is_finite()), "{:?}", located);
            prop_assert!((0..3).all(|i| covariance[i][i] >= 0.0), "{:?}", located);
            prop_assert!(located.map_from_odometry.to_homogeneous().iter().all(|number| number.is_finite()));
        }
        let counters = localizer.counters();
        prop_assert_eq!(counters.readings + counters.poses, sent.len() as u64);
        let waiting = localizer.waiting() as u64;
        prop_assert_eq!(counters.used_readings + counters.rejections.readings() + waiting, counters.readings);
        let is_impossible = |measurement: &&Measurement| match measurement {
            Measurement::Pose(pose) => !pose.isometry().to_homogeneous().iter().all(|number| number.is_finite()),
            Measurement::Reading(Reading { field, .. }) => !field.microtesla().iter().all(|axis| axis.is_finite()),
        };
        let impossible = sent.iter().filter(is_impossible).count() as u64;
        prop_assert!(counters.rejections.total() >= impossible, "{} of {impossible} rejected", counters.rejections.total());
    }
}
