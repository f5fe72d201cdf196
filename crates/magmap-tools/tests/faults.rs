//! Faults while a robot drives: each is injected into a simulated drive; what is mapped, rejected and reported is counted.
//!
//! `docs/faults.md` lists them. The drive takes 30 s, with 50 readings and 30 poses a second; health is checked every 5 s,
//! as in the node.

use std::sync::{LazyLock, mpsc};

use magmap::config::Config;
use magmap::field::model::FieldModel;
use magmap::mapping::batcher::Batch;
use magmap::mapping::mapper::{Mapper, Step};
use magmap::mapping::pipeline::Pipeline;
use magmap::mapping::step_log::StepLog;
use magmap::mapping::stop::StopSignal;
use magmap::mapping::thread::{MappingThread, Mode, Observer};
use magmap::sensing::counters::Counters;
use magmap::sensing::gates::Reopenings;
use magmap::sensing::health::{Finding, HealthInputs, HealthMonitor, Topic};
use magmap::sensing::intake::{Input, Intake, SensorMessage};
use magmap::sensing::reading::{MagneticField, Measurement, Observation, Pose, Reading, Stamp};
use magmap::sensing::rejection::{Rejection, Rejections};
use magmap::store::checkpoint::Checkpoint;
use magmap::store::map_file;
use magmap::store::map_log::{MapLog, Options};
use magmap_tools::simulation::{DipoleOptions, DipoleWorld, Route, Simulation, World, demo};
use nalgebra::{Isometry3, Point3, Quaternion, UnitQuaternion, Vector3};

/// The time of arrival, in seconds since the drive began, and the measurement, which faults change.
type Event = (f64, Measurement);

/// Readings of the drive.
const READINGS: u64 = 1500;

/// Readings a second.
const RATE: u64 = 50;

/// How much greater than without the fault the error of a map may be, in microtesla: half of the noise of a reading.
const AS_GOOD: f64 = 0.25;

/// Seconds between two health checks.
const CHECK_PERIOD: f64 = 5.0;

const YEAR: f64 = 365.0 * 86_400.0;

fn simulation() -> Simulation {
    let world = DipoleOptions { size: [3.0, 3.0], under: 8, beside: 4, ..Default::default() };
    Simulation { world, route: Route::LawnMower { spacing: 0.6 }, duration: 30.0, ..demo() }
}

static WORLD: LazyLock<DipoleWorld> = LazyLock::new(|| simulation().world().unwrap());

/// The error of the map of the drive without a fault.
static CLEAN_ERROR: LazyLock<f64> = LazyLock::new(|| map(&drive()).error());

fn driven(simulation: &Simulation) -> Vec<Event> {
    let samples = simulation.drive(&*WORLD).unwrap();
    samples.map(|sample| (sample.measurement.stamp().seconds(), sample.measurement)).collect()
}

fn drive() -> Vec<Event> {
    driven(&simulation())
}

/// Changes the readings that arrive from `from` to before `to`.
fn with_readings(mut events: Vec<Event>, from: f64, to: f64, mut change: impl FnMut(&mut Reading)) -> Vec<Event> {
    for (at, measurement) in &mut events {
        if let Measurement::Reading(reading) = measurement
            && (from..to).contains(at)
        {
            change(reading);
        }
    }
    events
}

/// Changes the poses that arrive from `from` to before `to`.
fn with_poses(mut events: Vec<Event>, from: f64, to: f64, mut change: impl FnMut(&mut Pose)) -> Vec<Event> {
    for (at, measurement) in &mut events {
        if let Measurement::Pose(pose) = measurement
            && (from..to).contains(at)
        {
            change(pose);
        }
    }
    events
}

fn later(stamp: Stamp, seconds: f64) -> Stamp {
    Stamp::from_nanoseconds(stamp.nanoseconds() + Stamp::from_seconds(seconds).nanoseconds())
}

/// Removes what arrives from `from` to before `to` on the given topics.
fn without(events: Vec<Event>, from: f64, to: f64, readings: bool, poses: bool) -> Vec<Event> {
    let is_of = |measurement: &Measurement| match measurement {
        Measurement::Reading(_) => readings,
        Measurement::Pose(_) => poses,
    };
    events.into_iter().filter(|(at, measurement)| !(from..to).contains(at) || !is_of(measurement)).collect()
}

fn axes(reading: &Reading) -> Vector3<f64> {
    *reading.field.microtesla()
}

fn set(reading: &mut Reading, axes: Vector3<f64>) {
    reading.field = MagneticField::from_microtesla(axes);
}

fn add(reading: &mut Reading, microtesla: Vector3<f64>) {
    set(reading, axes(reading) + microtesla);
}

/// The result of a drive.
struct Mapped {
    counters: Counters,
    observations: Vec<Observation>,
    model: FieldModel,
    reported: Vec<String>,
}

impl Mapped {
    /// Root mean square error of the map where it was measured, in microtesla.
    fn error(&self) -> f64 {
        self.error_of(|_| true)
    }

    /// The error at the observations for which `holds` is true.
    fn error_of(&self, holds: impl Fn(&Observation) -> bool) -> f64 {
        let map = self.model.map().expect("a map");
        let places: Vec<[f64; 2]> = self
            .observations
            .iter()
            .filter(|observation| holds(observation))
            .map(|observation| [observation.position.x, observation.position.y])
            .collect();
        let (mean, _) = map.predict(&places, f64::INFINITY);
        let square = |(place, mean): (&[f64; 2], f64)| (mean - strength(*place)).powi(2);
        (places.iter().zip(mean).map(square).sum::<f64>() / places.len() as f64).sqrt()
    }

    /// Mean deviation of the observed strengths from the true ones at the observed places, in microtesla, for stamps from `from` to
    /// before `to`.
    fn bias(&self, from: f64, to: f64) -> f64 {
        let of_time = |observation: &&Observation| (from..to).contains(&observation.stamp.seconds());
        let errors = self
            .observations
            .iter()
            .filter(of_time)
            .map(|observation| observation.strength - strength([observation.position.x, observation.position.y]));
        let (sum, count) = errors.fold((0.0, 0), |(sum, count), error| (sum + error, count + 1));
        sum / f64::from(count)
    }

    fn has_reported(&self, words: &str) -> bool {
        self.reported.iter().any(|reported| reported.contains(words))
    }

    /// Everything that was rejected; every other reading is in the map.
    #[track_caller]
    fn assert_rejected(&self, expected: &[(Rejection, u64)]) {
        let mut rejections = Rejections::default();
        for &(rejection, count) in expected {
            (0..count).for_each(|_| rejections.count(rejection));
        }
        assert_eq!(self.counters.rejections, rejections, "{}\n{:?}", self.counters.rejections, self.reported);
        assert_eq!(self.counters.used_readings + rejections.readings(), self.counters.readings);
    }

    #[track_caller]
    fn assert_as_good_as_without_the_fault(&self) {
        let (error, clean) = (self.error(), *CLEAN_ERROR);
        assert!(error < clean + AS_GOOD, "{error} microtesla, {clean} without the fault");
    }

    #[track_caller]
    fn assert_reported(&self, expected: &[&str]) {
        assert_eq!(self.reported.len(), expected.len(), "{:#?}", self.reported);
        for (reported, expected) in self.reported.iter().zip(expected) {
            assert!(reported.contains(expected), "{reported:?} instead of {expected:?}");
        }
    }
}

fn strength([x, y]: [f64; 2]) -> f64 {
    WORLD.strength_at(&Point3::new(x, y, 0.0))
}

fn map(events: &[Event]) -> Mapped {
    map_with(&Config::default(), events)
}

/// The way from a robot's messages to the map, and what is reported.
fn map_with(config: &Config, events: &[Event]) -> Mapped {
    let topic = |name: &str, setting, wanted: &'static str| Topic {
        name: name.into(),
        setting,
        wanted,
        published: Some(vec![wanted.into()]),
    };
    let magnetometer = &topic("/imu/mag", "magnetometer_topic", "sensor_msgs/msg/MagneticField");
    let odometry = &topic("/odom", "odometry_topic", "nav_msgs/msg/Odometry");
    let (mut intake, mut health) = (Intake::new(config), HealthMonitor::new(config));
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    let (mut reported, mut check) = (Vec::new(), CHECK_PERIOD);
    for (at, measurement) in events {
        if *at >= check {
            check += CHECK_PERIOD;
            let (status, counters, held) = (&intake.status, pipeline.counters(), intake.held());
            let inputs =
                HealthInputs { magnetometer, odometry, intake: status, held, backlog: 0, counters, stopped: None };
            reported.extend(health.check(&inputs).map(|finding| match finding {
                Finding::Fault(message) | Finding::Idle(message) => message,
            }));
        }
        let message = match *measurement {
            Measurement::Reading(reading) => SensorMessage::reading("base_link", reading),
            Measurement::Pose(pose) => SensorMessage::odometry("odom", "base_link", pose),
        };
        intake.take(message, &mut |input: Input| pipeline.ingest(input));
        reported.extend(pipeline.take_reopenings().iter().map(ToString::to_string));
    }
    intake.finish(&mut |input| pipeline.ingest(input));
    pipeline.finish();
    let ready = pipeline.take_ready();
    assert_eq!(pipeline.waiting(), 0);
    let mut counters = *pipeline.counters();
    counters.readings = intake.status.readings;
    counters.rejections = counters.rejections.plus(&intake.status.rejections);
    let mut model = FieldModel::new(config);
    for batch in &ready {
        model.update(&batch.observations, &|| false).unwrap();
    }
    let observations = ready.into_iter().flat_map(|batch: Batch| batch.observations).collect();
    Mapped { counters, observations, model, reported }
}

#[test]
fn without_a_fault_every_reading_is_mapped_and_nothing_reported() {
    let mapped = map(&drive());
    mapped.assert_rejected(&[]);
    assert_eq!(mapped.counters.used_readings, READINGS);
    mapped.assert_reported(&[]);
    // The noise of five readings in a cell is 0.22 microtesla; the field's standard deviation is ten.
    assert!(mapped.error() < 1.0, "{}", mapped.error());
}

// ---- Clocks ----

#[test]
fn readings_whose_clock_stops_are_rejected_beyond_the_first_twenty() {
    let mut stopped = None;
    let events = with_readings(drive(), 10.0, 22.0, |reading| {
        reading.stamp = *stopped.get_or_insert(reading.stamp);
    });
    let mapped = map(&events);
    mapped.assert_rejected(&[(Rejection::ReadingStampRepeated, 12 * RATE - 20)]);
    // In the window from 10 s to 15 s twenty are used.
    mapped.assert_reported(&["the clock of /imu/mag has stopped: 250 readings arrived with the same stamp"]);
    // Twenty readings over 20 cm are mapped in one place: an error of at most the change over 10 cm, in one cell.
    assert!(mapped.error() < *CLEAN_ERROR + 2.0 * AS_GOOD, "{}", mapped.error());
}

#[test]
fn without_the_gate_a_clock_that_stops_distorts_the_map() {
    let mut stopped = None;
    let events = with_readings(drive(), 10.0, 22.0, |reading| {
        reading.stamp = *stopped.get_or_insert(reading.stamp);
    });
    let mut config = Config::default();
    config.gates.max_same_stamp = 0;
    let mapped = map_with(&config, &events);
    mapped.assert_rejected(&[]);
    let at_one_place = mapped.bias(9.99, 10.1);
    let gated = map(&events).bias(9.99, 10.1);
    assert!(at_one_place.abs() > 3.0 * gated.abs(), "{at_one_place} microtesla, {gated} with the gate");
}

#[test]
fn poses_whose_clock_stops_are_rejected_with_the_readings_in_between() {
    let mut stopped = None;
    let events = with_poses(drive(), 10.0, 22.0, |pose| pose.stamp = *stopped.get_or_insert(pose.stamp));
    let mapped = map(&events);
    mapped.assert_rejected(&[(Rejection::PoseGap, 12 * RATE), (Rejection::PoseStampRepeated, 12 * 30 - 1)]);
    mapped.assert_reported(&["the clock of /odom has stopped: 150 poses arrived with the same stamp"]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn when_both_clocks_stop_everything_in_between_is_rejected() {
    let (mut reading_stopped, mut pose_stopped) = (None, None);
    let events = with_readings(drive(), 10.0, 22.0, |reading| {
        reading.stamp = *reading_stopped.get_or_insert(reading.stamp);
    });
    let events = with_poses(events, 10.0, 22.0, |pose| pose.stamp = *pose_stopped.get_or_insert(pose.stamp));
    let mapped = map(&events);
    mapped.assert_rejected(&[
        (Rejection::ReadingStampRepeated, 12 * RATE - 20),
        (Rejection::PoseGap, 20),
        (Rejection::PoseStampRepeated, 12 * 30 - 1),
    ]);
    mapped.assert_reported(&["the clock of /imu/mag has stopped"]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn readings_from_a_clock_that_jumps_ahead_and_back_are_rejected() {
    for ahead in [60.0, YEAR] {
        let mapped = map(&with_readings(drive(), 10.0, 12.0, |reading| reading.stamp = later(reading.stamp, ahead)));
        // The five that show that the clock is back come before the first pose of the new stretch.
        mapped.assert_rejected(&[(Rejection::NoLaterPose, 2 * RATE), (Rejection::BeforeFirstPose, 5)]);
        assert_eq!(mapped.counters.clock_jumps, 1);
        mapped.assert_as_good_as_without_the_fault();
    }
}

#[test]
fn poses_from_a_clock_that_jumps_ahead_and_back_cost_the_readings_in_between() {
    for ahead in [60.0, YEAR] {
        let mapped = map(&with_poses(drive(), 10.0, 12.0, |pose| pose.stamp = later(pose.stamp, ahead)));
        // From the last pose before, at 9.967 s, until five poses have shown that the clock is back, at 12.133 s: 9.98 to 12.14 s, since
        // poses arrive a little later than readings.
        mapped.assert_rejected(&[(Rejection::PoseGap, 109)]);
        assert_eq!(mapped.counters.clock_jumps, 1);
        mapped.assert_as_good_as_without_the_fault();
    }
}

#[test]
fn when_both_clocks_jump_ahead_and_back_only_the_transitions_are_lost() {
    for ahead in [60.0, YEAR] {
        let events = with_readings(drive(), 10.0, 12.0, |reading| reading.stamp = later(reading.stamp, ahead));
        let mapped = map(&with_poses(events, 10.0, 12.0, |pose| pose.stamp = later(pose.stamp, ahead)));
        let Counters { used_readings, rejections, clock_jumps, .. } = mapped.counters;
        assert_eq!(clock_jumps, 1);
        // Between the last pose before a jump and the first after it: up to 2 readings each.
        assert!(used_readings >= READINGS - 4, "{rejections}");
        assert_eq!(used_readings + rejections.readings(), READINGS);
        mapped.assert_as_good_as_without_the_fault();
    }
}

#[test]
fn clocks_that_go_back_permanently_cost_only_what_no_pose_surrounds() {
    let events = with_readings(drive(), 10.0, 31.0, |reading| reading.stamp = later(reading.stamp, -7.0));
    let mapped = map(&with_poses(events, 10.0, 31.0, |pose| pose.stamp = later(pose.stamp, -7.0)));
    let Counters { used_readings, rejections, clock_jumps, .. } = mapped.counters;
    assert_eq!(clock_jumps, 1);
    assert!(used_readings >= READINGS - 4, "{rejections}");
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn clocks_set_back_by_less_than_a_second_are_waited_for() {
    let events = with_readings(drive(), 10.0, 31.0, |reading| reading.stamp = later(reading.stamp, -0.5));
    let mapped = map(&with_poses(events, 10.0, 31.0, |pose| pose.stamp = later(pose.stamp, -0.5)));
    let Counters { used_readings, rejections, reopenings, .. } = mapped.counters;
    assert_eq!(reopenings, Reopenings::default());
    // Half a second of readings is behind; then the poses continue where the robot is: up to 25 cm further.
    assert!((23..=25).contains(&rejections.of(Rejection::ReadingStampBackwards)), "{rejections}");
    assert!(used_readings >= READINGS - 35, "{rejections}");
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn stamps_that_repeat_because_of_a_coarse_clock_are_mapped() {
    // A tenth of a second: five readings share a stamp.
    let coarse = |reading: &mut Reading| {
        reading.stamp = Stamp::from_nanoseconds(reading.stamp.nanoseconds() / 100_000_000 * 100_000_000);
    };
    let mapped = map(&with_readings(drive(), 0.0, 31.0, coarse));
    mapped.assert_rejected(&[]);
    mapped.assert_reported(&[]);
    // Mapped up to 5 cm behind where they were taken.
    assert!(mapped.error() < *CLEAN_ERROR + 1.0, "{}", mapped.error());
}

#[test]
fn stamps_of_zero_do_not_set_the_clock_back() {
    let mapped = map(&with_readings(drive(), 10.0, 12.0, |reading| reading.stamp = Stamp::default()));
    mapped.assert_rejected(&[(Rejection::ReadingStampBackwards, 2 * RATE)]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn clocks_that_differ_are_reported_even_though_readings_are_used() {
    let mapped = map(&with_poses(drive(), 0.0, 31.0, |pose| pose.stamp = later(pose.stamp, -15.0)));
    // Readings of the first 15 s have only older poses and wait for those of their stamps, which arrive 15 s later.
    assert!(mapped.counters.used_readings > 700, "{}", mapped.counters.rejections);
    assert!(mapped.has_reported("/imu/mag and /odom never overlap: the first are 15.0 s ahead of the second"));
    assert!(
        mapped.has_reported(
            "differ although the messages arrive together, so that readings are mapped in the wrong place"
        )
    );
}

// ---- Topics ----

#[test]
fn readings_without_odometry_are_rejected_and_mapping_continues_when_it_is_back() {
    let mapped = map(&without(drive(), 10.0, 16.0, false, true));
    // From the last pose, at 9.967 s, to the next at 16 s.
    mapped.assert_rejected(&[(Rejection::PoseGap, 6 * RATE + 2)]);
    mapped.assert_reported(&["no more odometry: /odom has a publisher, but no message arrives"]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_magnetometer_that_stops_costs_only_what_it_did_not_send() {
    let mapped = map(&without(drive(), 10.0, 22.0, true, false));
    mapped.assert_rejected(&[]);
    assert_eq!(mapped.counters.used_readings, READINGS - 12 * RATE);
    mapped.assert_reported(&["no more readings: /imu/mag has a publisher, but no message arrives"]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn when_both_topics_stop_and_continue_elsewhere_nothing_is_mapped_in_between() {
    let mapped = map(&without(drive(), 10.0, 16.0, true, true));
    mapped.assert_rejected(&[(Rejection::PoseGap, 2)]);
    assert_eq!(mapped.counters.used_readings, READINGS - 6 * RATE - 2);
    mapped.assert_as_good_as_without_the_fault();
}

// ---- The magnetometer ----

/// The value that the largest axis of a tenth of the drive's readings exceeds, in microtesla.
fn range_that_saturates() -> f64 {
    let mut largest: Vec<f64> = drive()
        .iter()
        .filter_map(|(_, measurement)| match measurement {
            Measurement::Reading(reading) => Some(axes(reading).amax()),
            Measurement::Pose(_) => None,
        })
        .collect();
    largest.sort_by(f64::total_cmp);
    largest[largest.len() * 9 / 10]
}

#[test]
fn saturated_readings_are_rejected_where_the_full_scale_is_known() {
    let full_scale = range_that_saturates();
    let events = with_readings(drive(), 0.0, 31.0, |reading| {
        set(reading, axes(reading).map(|axis| axis.clamp(-full_scale, full_scale)));
    });
    let mut config = Config::default();
    config.gates.full_scale = full_scale;
    let mapped = map_with(&config, &events);
    mapped.assert_rejected(&[(Rejection::ReadingSaturated, READINGS / 10)]);
    mapped.assert_as_good_as_without_the_fault();
    // Where it is not known, the field seems weaker than it is.
    let unknown = map(&events);
    assert_eq!(unknown.counters.rejections.of(Rejection::ReadingSaturated), 0);
    assert!(unknown.error() > mapped.error() + AS_GOOD, "{} and {}", unknown.error(), mapped.error());
}

#[test]
fn a_sensor_that_stays_saturated_is_reported() {
    let mut config = Config::default();
    config.gates.full_scale = 400.0;
    let events = with_readings(drive(), 10.0, 22.0, |reading| {
        set(reading, Vector3::new(400.0, 10.0, -30.0));
    });
    let mapped = map_with(&config, &events);
    mapped.assert_rejected(&[(Rejection::ReadingSaturated, 12 * RATE)]);
    // At the first check, 5 s after the fault began, the last reading before it was used.
    assert!(
        mapped.has_reported("an axis of /imu/mag is at its full scale (gates.full_scale): 250 readings were rejected")
    );
    mapped.assert_as_good_as_without_the_fault();
}

/// Readings whose axes do not change from 10 s to 22 s, where `which` says so.
fn frozen(which: [bool; 3]) -> Vec<Event> {
    let mut first = None;
    with_readings(drive(), 10.0, 22.0, |reading| {
        let first = *first.get_or_insert(axes(reading));
        let axis = |index: usize| if which[index] { first[index] } else { axes(reading)[index] };
        set(reading, Vector3::new(axis(0), axis(1), axis(2)));
    })
}

#[test]
fn an_axis_or_a_sensor_that_freezes_while_driving_is_rejected_after_a_quarter_of_a_metre() {
    for which in [[true; 3], [true, false, false], [false, true, false], [false, false, true]] {
        let mapped = map(&frozen(which));
        // A centimetre a reading: three make a step of 2.5 cm, ten steps are frozen. Turns are shorter across.
        let rejected = mapped.counters.rejections.of(Rejection::AxisFrozen);
        assert!((12 * RATE - 35..=12 * RATE - 29).contains(&rejected), "{rejected} of {which:?}");
        assert!(
            mapped.has_reported(
                "an axis of /imu/mag does not change by a single bit while the robot drives: 250 readings"
            )
        );
        // The 30 cm until then are mapped, with an error of at most the change of the field.
        let bias = mapped.bias(10.1, 10.7);
        assert!(bias.abs() < 6.0, "{bias} microtesla");
        assert!(
            mapped.error_of(|observation| !(9.9..10.8).contains(&observation.stamp.seconds())) < *CLEAN_ERROR + AS_GOOD
        );
        let mut config = Config::default();
        config.gates.max_repeat = 0.0;
        let ungated = map_with(&config, &frozen(which));
        assert_eq!(ungated.counters.rejections.of(Rejection::AxisFrozen), 0);
        assert!(ungated.error() > 1.5 * mapped.error(), "{} and {} of {which:?}", ungated.error(), mapped.error());
    }
}

#[test]
fn a_sensor_that_repeats_values_while_the_robot_stands_is_no_fault() {
    // A minute in the middle, with odometry jitter of 2 mm.
    let (mut events, mut after): (Vec<Event>, Vec<Event>) = drive().into_iter().partition(|(at, _)| *at < 10.0);
    let pose = *events
        .iter()
        .rev()
        .find_map(|(_, m)| if let Measurement::Pose(pose) = m { Some(pose) } else { None })
        .unwrap();
    let reading = *events
        .iter()
        .rev()
        .find_map(|(_, m)| if let Measurement::Reading(reading) = m { Some(reading) } else { None })
        .unwrap();
    for step in 1..60 * RATE {
        let at = 10.0 + step as f64 / RATE as f64;
        let stamp = Stamp::from_seconds(at);
        let position = pose.position + Vector3::x() * 0.002 * (step % 2) as f64;
        events.push((at, Measurement::Pose(Pose { stamp, position, ..pose })));
        events.push((at, Measurement::Reading(Reading { stamp, ..reading })));
    }
    for (at, measurement) in &mut after {
        *at += 60.0;
        match measurement {
            Measurement::Reading(reading) => reading.stamp = later(reading.stamp, 60.0),
            Measurement::Pose(pose) => pose.stamp = later(pose.stamp, 60.0),
        }
    }
    events.extend(after);
    let mapped = map(&events);
    mapped.assert_rejected(&[]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_coarsely_quantized_sensor_loses_nothing() {
    // Three times as coarse as any magnetometer for robots known to us.
    let mapped = map(&with_readings(drive(), 0.0, 31.0, |reading| {
        set(reading, axes(reading).map(f64::round));
    }));
    mapped.assert_rejected(&[]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn axes_that_are_not_finite_are_rejected_one_by_one() {
    let mut index = 0;
    let mapped = map(&with_readings(drive(), 0.0, 31.0, |reading| {
        index += 1;
        let axis = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][index / 10 % 3];
        if index % 10 == 0 {
            set(reading, Vector3::new(20.0, axis, -40.0));
        }
    }));
    mapped.assert_rejected(&[(Rejection::ReadingNotFinite, READINGS / 10)]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_sensor_that_sends_not_a_number_for_a_while_is_reported() {
    let mapped = map(&with_readings(drive(), 10.0, 22.0, |reading| {
        set(reading, Vector3::repeat(f64::NAN));
    }));
    mapped.assert_rejected(&[(Rejection::ReadingNotFinite, 12 * RATE)]);
    assert!(
        mapped.has_reported("every measurement is rejected: 250 readings with an axis that is not a finite number")
    );
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_spike_is_rejected_and_nothing_else() {
    let mapped = map(&with_readings(drive(), 10.0, 10.02, |reading| add(reading, Vector3::new(79.0, 0.0, 0.0))));
    mapped.assert_rejected(&[(Rejection::FieldGradient, 1)]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn bursts_of_a_motor_are_rejected_while_driving() {
    // 0.2 s of every 2 s.
    let is_on = |reading: &Reading| reading.stamp.seconds() % 2.0 < 0.2 && reading.stamp.seconds() > 1.0;
    let mapped = map(&with_readings(drive(), 0.0, 31.0, |reading| {
        if is_on(reading) {
            add(reading, Vector3::new(60.0, -50.0, 20.0));
        }
    }));
    mapped.assert_rejected(&[(Rejection::FieldGradient, 14 * RATE / 5)]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_motor_that_stays_on_is_mapped_as_if_it_were_the_building() {
    let mapped = map(&with_readings(drive(), 10.0, 13.0, |reading| add(reading, Vector3::new(0.0, 0.0, -79.0))));
    // Half a second after it was switched on and off, the change is accepted.
    mapped.assert_rejected(&[(Rejection::FieldGradient, 2 * 26)]);
    mapped.assert_reported(&[
        "gate max_gradient reopened after 26 rejections",
        "gate max_gradient reopened after 26 rejections",
    ]);
    assert!(mapped.bias(10.7, 12.9) > 60.0, "{}", mapped.bias(10.7, 12.9));
    assert!(mapped.bias(13.7, 30.0).abs() < 0.1, "{}", mapped.bias(13.7, 30.0));
}

#[test]
fn a_weak_motor_that_stays_on_is_neither_rejected_nor_reported() {
    let mapped = map(&with_readings(drive(), 10.0, 13.0, |reading| add(reading, Vector3::new(0.0, 0.0, -25.0))));
    mapped.assert_rejected(&[]);
    mapped.assert_reported(&[]);
    assert!((20.0..26.0).contains(&mapped.bias(10.1, 12.9)), "{}", mapped.bias(10.1, 12.9));
}

/// The greatest error of the map where the field is known, in microtesla, and the standard deviation there.
fn worst(mapped: &Mapped) -> (f64, f64) {
    let map = mapped.model.map().unwrap();
    let places: Vec<[f64; 2]> =
        (0..=60).flat_map(|x| (0..=60).map(move |y| [0.05 * f64::from(x), 0.05 * f64::from(y)])).collect();
    let (mean, variance) = map.predict(&places, 0.75);
    let errors = places.iter().zip(mean).zip(variance).filter(|((_, mean), _)| mean.is_finite());
    let errors = errors.map(|((place, mean), variance)| ((mean - strength(*place)).abs(), variance.sqrt()));
    errors.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap()
}

#[test]
fn a_stretch_with_a_motor_that_is_crossed_again_without_it_misleads_the_map() {
    let simulation = Simulation { duration: 120.0, ..simulation() };
    let (clean, _) = worst(&map(&driven(&simulation)));
    let events = with_readings(driven(&simulation), 10.0, 20.0, |reading| add(reading, Vector3::new(0.0, 0.0, -25.0)));
    let mapped = map(&events);
    mapped.assert_rejected(&[]);
    let (error, deviation) = worst(&mapped);
    // Measured: 10.7 without it, in a corner; 30.2 with it, at a standard deviation of 4.1. A map that is less certain there, or
    // rejects one of the two, would be better: then the second assertion can be removed.
    assert!(clean < 15.0 && error < 45.0, "{clean} and {error} microtesla");
    assert!(error > 3.0 * deviation, "{error} microtesla, standard deviation {deviation}");
}

// ---- Odometry ----

#[test]
fn invalid_poses_are_rejected_and_short_gaps_interpolated() {
    let quaternion = |w, x, y, z| UnitQuaternion::new_unchecked(Quaternion::new(w, x, y, z));
    let breaks: [fn(&mut Pose); 5] = [
        |pose| pose.position.x = f64::NAN,
        |pose| pose.position.y = f64::INFINITY,
        |pose| pose.position.z = 1e10,
        |pose| pose.position = Point3::new(f64::NAN, f64::NAN, f64::NAN),
        |pose| pose.position.x = f64::NEG_INFINITY,
    ];
    let orientations = [
        quaternion(f64::NAN, 0.0, 0.0, 0.0),
        quaternion(0.0, 0.0, 0.0, 0.0),
        quaternion(2.0, 0.0, 0.0, 0.0),
        quaternion(1.0, 0.2, 0.0, 0.0),
        quaternion(f64::INFINITY, 0.0, 0.0, 0.0),
    ];
    for (broken, orientation) in breaks.into_iter().zip(orientations) {
        // Nine poses are 0.3 s.
        for change in [&broken as &dyn Fn(&mut Pose), &|pose: &mut Pose| pose.orientation = orientation] {
            let mapped = map(&with_poses(drive(), 9.99, 10.29, change));
            mapped.assert_rejected(&[(Rejection::PoseNotFinite, 9)]);
            mapped.assert_reported(&[]);
            mapped.assert_as_good_as_without_the_fault();
        }
    }
}

#[test]
fn odometry_that_sends_invalid_poses_for_a_while_is_reported() {
    let mapped = map(&with_poses(drive(), 9.99, 22.0, |pose| pose.position.x = f64::NAN));
    mapped.assert_rejected(&[(Rejection::PoseGap, 12 * RATE + 2), (Rejection::PoseNotFinite, 12 * 30)]);
    assert!(
        mapped.has_reported(
            "every measurement is rejected: 150 poses with a coordinate that is not finite or beyond 1e9 m"
        )
    );
    mapped.assert_as_good_as_without_the_fault();
}

fn shift(pose: &mut Pose, y: f64) {
    pose.position.y += y;
}

#[test]
fn short_jumps_of_the_odometry_are_rejected_and_interpolated() {
    for (until, poses) in [(10.01, 1), (10.29, 9)] {
        let mapped = map(&with_poses(drive(), 9.99, until, |pose| shift(pose, 1.0)));
        mapped.assert_rejected(&[(Rejection::PoseJump, poses)]);
        mapped.assert_reported(&[]);
        mapped.assert_as_good_as_without_the_fault();
    }
}

#[test]
fn odometry_that_jumps_repeatedly_and_back_is_rejected() {
    // Six poses elsewhere, six where they should be.
    let mut index = 0;
    let mapped = map(&with_poses(drive(), 9.99, 20.0, |pose| {
        shift(pose, if index / 6 % 2 == 0 { 1.0 } else { 0.0 });
        index += 1;
    }));
    mapped.assert_rejected(&[(Rejection::PoseJump, 150)]);
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

/// The largest distance between an observation and the driven path, given the offset of the odometry at its stamp.
fn off_the_path(mapped: &Mapped, offset: impl Fn(f64) -> f64) -> f64 {
    let poses: Vec<(f64, Point3<f64>)> = drive()
        .into_iter()
        .filter_map(|(at, measurement)| match measurement {
            Measurement::Pose(pose) => Some((at, pose.position)),
            Measurement::Reading(_) => None,
        })
        .collect();
    let distances = mapped.observations.iter().map(|observation| {
        let stamp = observation.stamp.seconds();
        let place = observation.position - Vector3::new(0.0, offset(stamp), 0.0);
        let next = poses.partition_point(|(at, _)| *at < stamp).min(poses.len() - 1);
        (place - poses[next].1).norm()
    });
    distances.fold(0.0, f64::max)
}

#[test]
fn a_permanent_jump_of_the_odometry_is_accepted_after_half_a_second_and_nothing_is_mapped_in_between() {
    let mapped = map(&with_poses(drive(), 9.99, 31.0, |pose| shift(pose, 2.0)));
    // 16 poses are rejected, from 10.0 s to 10.5 s; the next is at 10.533 s, the previous at 9.967 s.
    mapped.assert_rejected(&[(Rejection::AcrossPoseJump, 29), (Rejection::PoseJump, 16)]);
    mapped.assert_reported(&["gate max_speed reopened after 16 rejections"]);
    let off = off_the_path(&mapped, |stamp| if stamp > 10.0 { 2.0 } else { 0.0 });
    // An observation is the mean of 5 cm.
    assert!(off < 0.1, "{off} m");
}

#[test]
fn nothing_is_mapped_along_a_jump_too_short_to_reopen_a_gate() {
    let mapped = map(&with_poses(drive(), 9.99, 31.0, |pose| shift(pose, 0.6)));
    // After 0.2 s the robot might have driven there.
    let rejected = mapped.counters.rejections;
    assert!((4..=8).contains(&rejected.of(Rejection::PoseJump)), "{rejected}");
    assert!((8..=16).contains(&rejected.of(Rejection::AcrossPoseJump)), "{rejected}");
    let off = off_the_path(&mapped, |stamp| if stamp > 10.0 { 0.6 } else { 0.0 });
    assert!(off < 0.1, "{off} m");
}

#[test]
fn odometry_that_is_elsewhere_for_seconds_is_mapped_there() {
    let mapped = map(&with_poses(drive(), 9.99, 13.0, |pose| shift(pose, 2.0)));
    mapped.assert_reported(&[
        "gate max_speed reopened after 16 rejections",
        "gate max_speed reopened after 16 rejections",
    ]);
    let rejected = mapped.counters.rejections;
    assert_eq!((rejected.of(Rejection::PoseJump), rejected.readings()), (32, rejected.of(Rejection::AcrossPoseJump)));
    assert!((54..=58).contains(&rejected.readings()), "{rejected}");
    let off = off_the_path(&mapped, |stamp| if (10.0..13.2).contains(&stamp) { 2.0 } else { 0.0 });
    assert!(off < 0.1, "{off} m");
}

// ---- Bursts ----

#[test]
fn a_thousand_readings_a_second_are_averaged_to_as_many_observations() {
    let mut simulation = simulation();
    simulation.robot.magnetometer_rate = 1000.0;
    let mapped = map(&driven(&simulation));
    mapped.assert_rejected(&[]);
    assert_eq!(mapped.counters.used_readings, 30_000);
    let usual = map(&drive()).counters.observations;
    assert!(mapped.counters.observations.abs_diff(usual) <= 2, "{} and {usual}", mapped.counters.observations);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_thousand_readings_a_second_that_wait_for_odometry_take_bounded_memory() {
    let mut simulation = simulation();
    simulation.robot.magnetometer_rate = 1000.0;
    let mapped = map(&without(driven(&simulation), 10.0, 22.0, false, true));
    // Of the readings of 12.033 s ten thousand may wait; 33 of them are dropped until a second pose confirms the first. For the rest
    // the poses are too far apart.
    mapped.assert_rejected(&[(Rejection::WaitingQueueFull, 2_066), (Rejection::PoseGap, 10_000 - 33)]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn a_thousand_noisy_poses_a_second_lose_no_reading() {
    let mut simulation = simulation();
    simulation.robot.odometry_rate = 1000.0;
    let mut index = 0_u32;
    // Within 2 mm: up to 4 m/s from one millisecond to the next.
    let mapped = map(&with_poses(driven(&simulation), 0.0, 31.0, |pose| {
        index += 1;
        shift(pose, 0.002 * f64::from(index * 7919 % 1000) / 500.0 - 0.002);
    }));
    let rejections = mapped.counters.rejections;
    assert!(rejections.of(Rejection::PoseJump) > 1000, "{rejections}");
    assert_eq!((rejections.readings(), mapped.counters.reopenings), (0, Reopenings::default()), "{rejections}");
    mapped.assert_reported(&[]);
    mapped.assert_as_good_as_without_the_fault();
}

#[test]
fn bursts_out_of_order_lose_only_late_readings() {
    // Groups of ten and of two readings arrive in reverse order.
    for (length, used) in [(10, READINGS / 10), (2, READINGS / 2)] {
        let (mut readings, poses): (Vec<Event>, Vec<Event>) =
            drive().into_iter().partition(|(_, measurement)| matches!(measurement, Measurement::Reading(_)));
        for burst in readings.chunks_mut(length) {
            let at = burst[length - 1].0;
            burst.reverse();
            burst.iter_mut().for_each(|event| event.0 = at);
        }
        let mut events = [readings, poses].concat();
        events.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mapped = map(&events);
        mapped.assert_rejected(&[(Rejection::ReadingStampBackwards, READINGS - used)]);
        mapped.assert_reported(&[]);
        // At most a fifth of the readings in each cell: the noise of one reading.
        assert!(mapped.error() < *CLEAN_ERROR + 2.0 * AS_GOOD, "{}", mapped.error());
    }
}

#[test]
fn a_burst_faster_than_learning_is_merged_and_beyond_the_inbox_counted_as_lost() {
    let mut simulation = simulation();
    simulation.robot.magnetometer_rate = 1000.0;
    let events = driven(&simulation);
    let mut config = Config::default();
    config.averaging.spacing = 0.0;
    config.mapping.inbox = 2000;
    let (allow, allowed) = mpsc::channel();
    // Each update waits until it is allowed.
    let observer: Observer = Box::new(move |_, _| allowed.recv().unwrap());
    let mapping = MappingThread::start(Mode::MergeWaiting, Mapper::new(&config), None, Some(observer)).unwrap();
    let inbox = &mapping.inbox;
    let lost = events.iter().filter(|(_, measurement)| !inbox.offer(*measurement).unwrap()).count();
    (0..1000).for_each(|_| allow.send(()).unwrap());
    let finished = mapping.join().unwrap();
    let status = finished.status;
    assert!(lost > 10_000, "{lost} of {}", events.len());
    assert_eq!(status.lost_readings + status.lost_poses, lost as u64);
    let Counters { readings, used_readings, rejections, .. } = status.counters;
    assert_eq!((readings + status.lost_readings, used_readings + rejections.readings()), (30_000, readings));
    assert_eq!(status.updates + status.merged_batches, status.counters.batches);
    assert_eq!(finished.mapper.model().totals.used_readings, used_readings);
}

// ---- Crashes ----

#[test]
fn a_map_resumed_during_a_fault_equals_an_uninterrupted_one() {
    // Stamps that repeat, a frozen axis, a motor, odometry that jumps: each within three seconds.
    let (mut stopped, mut stuck) = (None, None);
    let events = with_readings(drive(), 2.0, 4.0, |reading| reading.stamp = *stopped.get_or_insert(reading.stamp));
    let events = with_readings(events, 5.0, 7.0, |reading| {
        let axes = axes(reading);
        set(reading, Vector3::new(*stuck.get_or_insert(axes.x), axes.y, axes.z));
    });
    let events = with_readings(events, 8.0, 9.0, |reading| add(reading, Vector3::new(0.0, 0.0, -79.0)));
    let events = with_poses(events, 10.0, 31.0, |pose| shift(pose, 2.0));
    let config = Config::default();
    let begin = || Mapper::new(&config);
    let (mut uninterrupted, mut interrupted) = (begin(), begin());
    let stop = StopSignal::default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("map.magmap");
    let mut stops = [2.2, 3.0, 5.1, 5.5, 6.0, 8.1, 8.3, 8.6, 9.2, 10.1, 10.3, 10.6].into_iter().peekable();
    for (index, (at, measurement)) in events.into_iter().enumerate().take_while(|(_, (at, _))| *at < 12.0) {
        if stops.next_if(|stop| *stop <= at).is_some() {
            let checkpoint = Checkpoint::of(&interrupted).unwrap();
            let log = MapLog::create(&file, &interrupted, Options::default()).unwrap();
            Box::new(log).close(Some(&interrupted));
            let read = map_file::read(&file).unwrap();
            assert_eq!(read, checkpoint, "at {at} s");
            interrupted = read.resume(&config).unwrap();
        }
        for mapper in [&mut uninterrupted, &mut interrupted] {
            mapper.take(Step::Input { index: index as u64, input: measurement.into() }, &stop);
        }
    }
    let rejections = uninterrupted.pipeline().counters().rejections;
    for rejection in
        [Rejection::ReadingStampRepeated, Rejection::AxisFrozen, Rejection::FieldGradient, Rejection::PoseJump]
    {
        assert!(rejections.of(rejection) > 10, "{rejections}");
    }
    let [expected, found] = [uninterrupted, interrupted].map(|mapper| Checkpoint::of(&mapper).unwrap());
    assert_eq!(found, expected);
}
