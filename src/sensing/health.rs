//! Why nothing is being mapped, in words.

mod publishers;
mod topic;

use crate::config::{Config, PoseSource};
use crate::sensing::counters::Counters;
use crate::sensing::frames::{TransformError, normalized};
use crate::sensing::intake::IntakeStatus;
use crate::sensing::reading::{MICROTESLA_PER_TESLA, Stamp};
use crate::sensing::rejection::{Rejection, Rejections};
pub use publishers::SeveralPublishers;
pub use topic::Topic;

/// The inputs of a check.
#[derive(Clone, Copy, Debug)]
pub struct HealthInputs<'a> {
    /// The topic that is mapped.
    pub magnetometer: &'a Topic,
    /// The topic of the odometry.
    pub odometry: &'a Topic,
    /// The status of the intake.
    pub intake: &'a IntakeStatus,
    /// How many measurements wait for a transform.
    pub held: usize,
    /// How many wait for the mapping thread.
    pub backlog: usize,
    /// The counters of the pipeline.
    pub counters: &'a Counters,
    /// The stamp at which simulated time stands still; none where it runs or is not used.
    pub stopped: Option<Stamp>,
}

/// Why nothing is being mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Something is wrong.
    Fault(String),
    /// No reading arrives.
    Idle(String),
}

/// Checks periodically whether readings were used since the previous check, and in the right place.
#[derive(Clone, Debug)]
pub struct HealthMonitor {
    pose_source: PoseSource,
    /// The frame of the map, where the settings name one.
    map: String,
    max_gap: f64,
    previous: Counts,
    /// Whether messages of both topics arrived before the previous check, with stamps of different clocks.
    clocks_differed: bool,
}

/// The counts at a check.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    readings: u64,
    odometry: u64,
    used: u64,
    rejections: Rejections,
}

/// Strengths of the Earth's field inside and outside buildings, in microtesla.
const NATURAL: std::ops::Range<f64> = 10.0..200.0;

/// Units that drivers send instead of tesla, and how many microtesla one of them is.
const UNITS: [(&str, f64); 4] = [("microtesla", 1.0), ("nanotesla", 1e-3), ("gauss", 100.0), ("milligauss", 0.1)];

/// Stamps of messages that arrive together but are further apart than this, in seconds, are of different clocks: no odometry is
/// so late.
const DIFFERENT_CLOCKS: f64 = 10.0;

impl HealthMonitor {
    /// A monitor before its first check.
    pub fn new(config: &Config) -> Self {
        Self {
            pose_source: config.frames.pose_source,
            map: normalized(&config.frames.map).to_owned(),
            max_gap: config.synchronizer.max_gap,
            previous: Counts::default(),
            clocks_differed: false,
        }
    }

    /// Why no reading was used since the previous check, or only in the wrong place; nothing when all is well. Means nothing while
    /// mapping is paused.
    pub fn check(&mut self, inputs: &HealthInputs<'_>) -> Option<Finding> {
        let &HealthInputs { intake, counters, .. } = inputs;
        let now = Counts {
            readings: intake.readings - intake.paused_readings,
            odometry: intake.odometry,
            used: counters.used_readings,
            rejections: counters.rejections.plus(&intake.rejections),
        };
        let before = std::mem::replace(&mut self.previous, now);
        let (no_readings, no_odometry) = (now.readings == before.readings, now.odometry == before.odometry);
        let ahead = self.ahead(intake).filter(|ahead| !no_readings && !no_odometry && ahead.abs() > DIFFERENT_CLOCKS);
        let clocks_differed = std::mem::replace(&mut self.clocks_differed, ahead.is_some());
        if now.used > before.used {
            let words = "differ although the messages arrive together, so that readings are mapped in the wrong place";
            let fault = |ahead| Finding::Fault(stamps_differ(inputs, words, ahead));
            return ahead.filter(|_| clocks_differed).map(fault);
        }
        let is_silent = no_readings || (no_odometry && self.pose_source == PoseSource::Odometry);
        if let Some(stopped) = inputs.stopped.filter(|_| is_silent) {
            let seconds = stopped.seconds();
            let message = format!("simulated time has stopped at {seconds:.3} s: the bag is over, or paused");
            return Some(Finding::Idle(message));
        }
        self.fault(inputs, &before, &now).map(Finding::Fault)
    }

    /// Why no reading was used between these counts.
    fn fault(&self, inputs: &HealthInputs<'_>, before: &Counts, now: &Counts) -> Option<String> {
        let &HealthInputs { magnetometer, odometry, intake, held, backlog, .. } = inputs;
        if now.readings == before.readings {
            return Some(magnetometer.why_silent(odometry, "readings", now.readings));
        }
        // Most of what arrived waits for a mapping thread that is busy learning: nothing is wrong.
        if 2 * backlog as u64 > now.readings - before.readings {
            return None;
        }
        if self.pose_source == PoseSource::Odometry && now.odometry == before.odometry {
            return Some(odometry.why_silent(magnetometer, "odometry", now.odometry));
        }
        let rejected = |rejection| now.rejections.of(rejection) - before.rejections.of(rejection);
        let without_transform =
            rejected(Rejection::ReadingWithoutTransform) + rejected(Rejection::PoseWithoutTransform);
        if let Some(transform_error) = intake.transform_error.as_ref().filter(|_| held > 0 || without_transform > 0) {
            return Some(format!("{transform_error}: {}", self.remedy(transform_error)));
        }
        if let Some(fault) = sensor_fault(inputs, rejected) {
            return Some(fault);
        }
        if rejected(Rejection::FieldTooStrong) + rejected(Rejection::FieldTooWeak) > 0 {
            return Some(implausible(intake.last_strength.unwrap_or_default()));
        }
        if let Some(ahead) = self.ahead(intake).filter(|ahead| ahead.abs() > self.max_gap) {
            return Some(stamps_differ(inputs, "never overlap", ahead));
        }
        let (count, rejection) =
            Rejection::ALL.iter().map(|&rejection| (rejected(rejection), rejection)).max_by_key(|(count, _)| *count)?;
        Some(if count > 0 {
            format!("every measurement is rejected: {count} {rejection}")
        } else {
            "readings are waiting for the first pose at or after their stamp; odometry is late or has stopped".into()
        })
    }

    /// The remedy where a transform is missing.
    fn remedy(&self, TransformError { from, to, .. }: &TransformError) -> String {
        // Where the sensor sits on the robot does not say where the robot is in the map.
        match self.pose_source {
            PoseSource::Odometry if !self.map.is_empty() && *to == self.map => format!(
                "start SLAM or localization, which publishes it on /tf; or leave map_frame (frames.map) empty, to map in \
                 the odometry's frame \"{from}\""
            ),
            PoseSource::Transforms if *to == self.map => format!(
                "is it published on /tf? SLAM or localization publishes where the robot is in \"{to}\", the robot's \
                 description where its sensors are; or set frames.pose_source to odometry"
            ),
            _ => "is it published on /tf or /tf_static? Or set sensor.override_transforms, sensor.position and \
                 sensor.orientation"
                .into(),
        }
    }

    /// By how many seconds the last reading is stamped ahead of the last odometry, where poses are made of that.
    fn ahead(&self, intake: &IntakeStatus) -> Option<f64> {
        let (reading, pose) = intake.reading_timing.last.zip(intake.odometry_timing.last)?;
        (self.pose_source == PoseSource::Odometry).then(|| reading.seconds_since(pose))
    }
}

fn stamps_differ(inputs: &HealthInputs<'_>, words: &str, ahead: f64) -> String {
    let [first, second] = [inputs.magnetometer, inputs.odometry].map(|topic| &topic.name);
    let relation = if ahead > 0.0 { "ahead of" } else { "behind" };
    format!(
        "the stamps of {first} and {second} {words}: the first are {:.1} s {relation} the second. Do both use the same clock \
         (use_sim_time, synchronised computers)?",
        ahead.abs()
    )
}

/// A fault of the sensor by the counts of rejected measurements.
fn sensor_fault(inputs: &HealthInputs<'_>, rejected: impl Fn(Rejection) -> u64) -> Option<String> {
    let [magnetometer, odometry] = [inputs.magnetometer, inputs.odometry].map(|topic| &topic.name);
    let happened = |rejection| Some(rejected(rejection)).filter(|count| *count > 0);
    if let Some(count) = happened(Rejection::ReadingStampRepeated) {
        Some(format!("the clock of {magnetometer} has stopped: {count} readings arrived with the same stamp"))
    } else if let Some(count) = happened(Rejection::PoseStampRepeated) {
        Some(format!("the clock of {odometry} has stopped: {count} poses arrived with the same stamp"))
    } else if let Some(count) = happened(Rejection::AxisFrozen) {
        Some(format!(
            "an axis of {magnetometer} does not change by a single bit while the robot drives: {count} readings were rejected. \
             Is the sensor or its driver stuck? gates.max_repeat = 0 accepts them, for a sensor without that axis"
        ))
    } else {
        let count = happened(Rejection::ReadingSaturated)?;
        Some(format!(
            "an axis of {magnetometer} is at its full scale (gates.full_scale): {count} readings were rejected. Is a magnet near \
             the sensor, or its range too small?"
        ))
    }
}

fn implausible(strength: f64) -> String {
    // A number in another unit that was taken for tesla.
    let number = strength / MICROTESLA_PER_TESLA;
    let readable = UNITS.iter().map(|(unit, microtesla)| (unit, number * microtesla));
    let advice = match readable.into_iter().find(|(_, strength)| NATURAL.contains(strength)) {
        Some((unit, strength)) => format!(
            "looks like the wrong unit: sensor_msgs/MagneticField is in tesla; if the driver sends {unit}, it is \
             {strength:.1} microtesla"
        ),
        None => "is not between gates.minimum_field and gates.maximum_field".into(),
    };
    format!("a field of {strength:.3e} microtesla {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensing::frames::Missing;
    use crate::sensing::timing::TopicTiming;

    fn timing(last: f64) -> TopicTiming {
        let mut timing = TopicTiming::default();
        timing.push(Stamp::from_seconds(last));
        timing
    }

    fn topic(name: &str, publishers: usize) -> Topic {
        let published = Some(vec!["a/msg/Type".into(); publishers]);
        Topic { name: name.into(), setting: "a_topic", wanted: "a/msg/Type", published }
    }

    /// A monitor, and what it looks at.
    struct Bench {
        monitor: HealthMonitor,
        topics: [Topic; 2],
        intake: IntakeStatus,
        backlog: usize,
        counters: Counters,
        stopped: Option<Stamp>,
    }

    impl Bench {
        /// A hundred readings and as much odometry arrived, and none is used.
        fn new(config: &Config) -> Self {
            let intake = IntakeStatus {
                readings: 100,
                odometry: 100,
                reading_timing: timing(10.0),
                odometry_timing: timing(10.01),
                last_strength: Some(50.0),
                ..IntakeStatus::default()
            };
            Self {
                monitor: HealthMonitor::new(config),
                topics: [topic("/imu/mag", 1), topic("/odom", 0)],
                intake,
                backlog: 0,
                counters: Counters::default(),
                stopped: None,
            }
        }

        fn check(&mut self) -> Option<Finding> {
            let Self { monitor, topics: [magnetometer, odometry], intake, counters, .. } = self;
            let (held, backlog, stopped) = (usize::from(intake.transform_error.is_some()), self.backlog, self.stopped);
            monitor.check(&HealthInputs { magnetometer, odometry, intake, held, backlog, counters, stopped })
        }

        #[track_caller]
        fn fault(&mut self) -> String {
            match self.check() {
                Some(Finding::Fault(message)) => message,
                other => panic!("expected a fault, found {other:?}"),
            }
        }
    }

    /// The fault that is found when all of this happened since the start.
    #[track_caller]
    fn fault(change: impl FnOnce(&mut Bench)) -> String {
        let mut bench = Bench::new(&Config::default());
        change(&mut bench);
        bench.fault()
    }

    #[test]
    fn while_readings_are_used_nothing_is_found() {
        let mut bench = Bench::new(&Config::default());
        for round in 1..4 {
            (bench.intake.readings, bench.intake.odometry) = (100 * round, 100 * round);
            bench.counters.used_readings = 99 * round;
            assert_eq!(bench.check(), None);
        }
        let silent = bench.fault();
        assert!(silent.starts_with("no more readings: /imu/mag has a publisher, but no message arrives"), "{silent}");
    }

    #[test]
    fn a_busy_mapping_thread_is_no_fault() {
        let mut bench = Bench::new(&Config::default());
        bench.backlog = 200;
        assert_eq!(bench.check(), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let silent = fault(|bench| bench.intake.odometry = 0);
        assert!(silent.starts_with("no odometry yet: nothing publishes /odom"), "{silent}");
        let not_connected = fault(|bench| {
            bench.intake.transform_error =
                Some(TransformError { from: "imu".into(), to: "base_link".into(), missing: Missing::Link });
        });
        assert!(not_connected.starts_with("frame \"imu\" has no transform to \"base_link\""), "{not_connected}");
    }

    #[test]
    fn the_mount_of_the_sensor_is_no_remedy_for_a_missing_transform_to_the_map() {
        let not_connected =
            |from: &str, to: &str| TransformError { from: from.into(), to: to.into(), missing: Missing::Link };
        let fault = |source: PoseSource, transform_error: TransformError| {
            let mut config = Config::default();
            (config.frames.map, config.frames.pose_source) = ("/map".into(), source);
            let mut bench = Bench::new(&config);
            bench.intake.transform_error = Some(transform_error);
            bench.fault()
        };
        let without_slam = fault(PoseSource::Odometry, not_connected("odom", "map"));
        assert_eq!(
            without_slam,
            "frame \"odom\" has no transform to \"map\": start SLAM or localization, which publishes it on /tf; or leave \
             map_frame (frames.map) empty, to map in the odometry's frame \"odom\""
        );
        let behind = TransformError { missing: Missing::Newer(2.5), ..not_connected("odom", "map") };
        let stopped = fault(PoseSource::Odometry, behind);
        assert!(stopped.contains("2.500 s older than the data: start SLAM"), "{stopped}");
        let lost = fault(PoseSource::Transforms, not_connected("imu", "map"));
        assert!(lost.contains("is it published on /tf?") && !lost.contains("override_transforms"), "{lost}");
        let unmounted = fault(PoseSource::Odometry, not_connected("imu", "base_link"));
        assert!(unmounted.contains("Or set sensor.override_transforms"), "{unmounted}");
    }

    #[test]
    fn silence_is_no_fault_while_simulated_time_stands_still() {
        let mut bench = Bench::new(&Config::default());
        bench.topics[0] = topic("/imu/mag", 0);
        bench.counters.used_readings = 100;
        bench.stopped = Some(Stamp::from_seconds(1234.5));
        assert_eq!(bench.check(), None, "the first check sees what was mapped before");
        let idle = Finding::Idle("simulated time has stopped at 1234.500 s: the bag is over, or paused".into());
        assert_eq!([bench.check(), bench.check()], [Some(idle.clone()), Some(idle)]);
        bench.stopped = None;
        let silent = bench.fault();
        assert!(silent.starts_with("no more readings: nothing publishes /imu/mag"), "{silent}");
    }

    #[test]
    fn stamps_that_never_overlap_are_reported_with_their_distance() {
        let message = fault(|bench| bench.intake.odometry_timing = timing(1000.0));
        let expected = "/imu/mag and /odom never overlap: the first are 990.0 s behind the second";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn readings_used_in_the_wrong_place_are_reported_at_the_second_check() {
        let mut bench = Bench::new(&Config::default());
        let mut round = 0;
        let mut check = |ahead: f64| {
            round += 1;
            let last = 10.0 * round as f64;
            (bench.intake.readings, bench.intake.odometry) = (100 * round, 100 * round);
            (bench.intake.reading_timing, bench.intake.odometry_timing) = (timing(last), timing(last - ahead));
            bench.counters.used_readings = 99 * round;
            bench.check()
        };
        assert_eq!([9.0, 60.0, 9.0, -60.0].map(&mut check), [const { None }; 4]);
        let Some(Finding::Fault(message)) = check(-60.0) else { panic!("a fault was expected") };
        assert!(message.starts_with("the stamps of /imu/mag and /odom differ although"), "{message}");
        assert!(message.contains("the first are 60.0 s behind the second"), "{message}");
    }

    #[test]
    fn each_fault_of_a_sensor_has_its_message() {
        let cases = [
            (
                Rejection::ReadingStampRepeated,
                "the clock of /imu/mag has stopped: 3 readings arrived with the same stamp",
            ),
            (Rejection::PoseStampRepeated, "the clock of /odom has stopped: 3 poses arrived with the same stamp"),
            (
                Rejection::AxisFrozen,
                "an axis of /imu/mag does not change by a single bit while the robot drives: 3 readings",
            ),
            (Rejection::ReadingSaturated, "an axis of /imu/mag is at its full scale (gates.full_scale): 3 readings"),
        ];
        for (rejection, expected) in cases {
            let message = fault(|bench| (0..3).for_each(|_| bench.counters.rejections.count(rejection)));
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_wrong_unit_is_recognized() {
        let fault = |strength: f64| {
            fault(|bench| {
                bench.intake.last_strength = Some(strength);
                bench.counters.rejections.count(Rejection::FieldTooStrong);
            })
        };
        assert!(fault(4e5).contains("4.000e5 microtesla looks like the wrong unit"), "{}", fault(4e5));
        assert!(fault(4e5).contains("if the driver sends gauss, it is 40.0 microtesla"), "{}", fault(4e5));
        assert!(fault(5e7).contains("sends microtesla, it is 50.0 microtesla"), "{}", fault(5e7));
        assert!(fault(5e10).contains("sends nanotesla"), "{}", fault(5e10));
        assert!(fault(2e3).ends_with("is not between gates.minimum_field and gates.maximum_field"), "{}", fault(2e3));
    }

    #[test]
    fn otherwise_the_most_frequent_rejection_is_reported() {
        let message = fault(|bench| {
            (0..7).for_each(|_| bench.counters.rejections.count(Rejection::PoseGap));
            bench.counters.rejections.count(Rejection::PoseJump);
        });
        assert!(message.starts_with("every measurement is rejected: 7 readings between poses"), "{message}");
    }

    #[test]
    fn otherwise_readings_wait_for_poses() {
        assert!(fault(|_| {}).starts_with("readings are waiting for the first pose"));
    }
}
