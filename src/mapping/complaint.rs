//! Why nothing is being mapped, in words.

mod silence;

use super::frames::{Unresolved, normalized};
use super::intake::Arrivals;
use super::pipeline::Counters;
use super::reading::Stamp;
use super::refusal::{Refusal, Refusals};
use crate::config::{Config, PoseSource};
pub use silence::Topic;
use silence::silence;

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The topic that is mapped.
    pub magnetometer: &'a Topic,
    /// The odometry's.
    pub odometry: &'a Topic,
    /// What came in.
    pub arrivals: &'a Arrivals,
    /// How many measurements wait for a transform.
    pub held: usize,
    /// How many wait for the mapping thread.
    pub backlog: usize,
    /// The counters of the pipeline.
    pub counters: &'a Counters,
    /// Where simulated time stands still, when it is used and does.
    pub stopped: Option<Stamp>,
}

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Something is wrong.
    Complaint(String),
    /// Nothing is being mapped, as it should be.
    Rest(String),
}

impl Remark {
    /// What is said.
    pub fn words(&self) -> &str {
        match self {
            Self::Complaint(words) | Self::Rest(words) => words,
        }
    }
}

/// Looks from time to time, and has something to say when no reading was used since the last time, or readings are used but in
/// the wrong place.
#[derive(Clone, Debug)]
pub struct Complaints {
    pose_source: PoseSource,
    /// The frame of the map, where the settings name one.
    map: String,
    max_gap: f64,
    seen: Seen,
    /// Whether both topics came and their stamps were of different times at the last look.
    were_apart: bool,
}

/// The counts of the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    readings: u64,
    odometry: u64,
    used: u64,
    refusals: Refusals,
}

/// Strengths that the Earth's field and what buildings make of it have, in microtesla.
const NATURAL: std::ops::Range<f64> = 10.0..200.0;

/// Units in which drivers send where tesla is expected, and how many microtesla one of them is.
const UNITS: [(&str, f64); 4] = [("microtesla", 1.0), ("nanotesla", 1e-3), ("gauss", 100.0), ("milligauss", 0.1)];

/// Stamps that are further apart than this, in seconds, though they come together, are of different clocks: no odometry is so late.
const OTHER_TIME: f64 = 10.0;

/// What a number in such a unit became when it was taken for tesla.
const MICROTESLA_PER_TESLA: f64 = 1e6;

impl Complaints {
    /// Has looked at nothing yet.
    pub fn new(config: &Config) -> Self {
        Self {
            pose_source: config.frames.pose_source,
            map: normalized(&config.frames.map).to_owned(),
            max_gap: config.synchronizer.max_gap,
            seen: Seen::default(),
            were_apart: false,
        }
    }

    /// Why no reading was used since the last look, or only in the wrong place; nothing when all is well. Not to be asked while
    /// mapping is paused.
    pub fn look(&mut self, scene: &Scene<'_>) -> Option<Remark> {
        let &Scene { arrivals, counters, .. } = scene;
        let now = Seen {
            readings: arrivals.readings - arrivals.paused_readings,
            odometry: arrivals.odometry,
            used: counters.used_readings,
            refusals: counters.refusals.plus(&arrivals.refusals),
        };
        let before = std::mem::replace(&mut self.seen, now);
        let have_both_come = now.readings > before.readings && now.odometry > before.odometry;
        let ahead = self.ahead(arrivals).filter(|ahead| have_both_come && ahead.abs() > OTHER_TIME);
        let were_apart = std::mem::replace(&mut self.were_apart, ahead.is_some());
        if now.used > before.used {
            let misplaced = |ahead| Remark::Complaint(misplaced(scene.magnetometer, scene.odometry, ahead));
            return ahead.filter(|_| were_apart).map(misplaced);
        }
        let needs_odometry = self.pose_source == PoseSource::Odometry;
        let is_silent = now.readings == before.readings || (needs_odometry && now.odometry == before.odometry);
        if let Some(stopped) = scene.stopped.filter(|_| is_silent) {
            return Some(Remark::Rest(format!(
                "simulated time has stopped at {:.3} s: the bag is over, or paused",
                stopped.seconds()
            )));
        }
        self.complaint(scene, &before).map(Remark::Complaint)
    }

    /// Why no reading was used since what was seen `before`.
    fn complaint(&self, scene: &Scene<'_>, before: &Seen) -> Option<String> {
        let &Scene { magnetometer, odometry, arrivals, held, backlog, .. } = scene;
        let now = &self.seen;
        if now.readings == before.readings {
            return Some(silence(magnetometer, odometry, "readings", now.readings));
        }
        // Most of what came since waits for a mapping thread that is busy learning: nothing is wrong.
        if 2 * backlog as u64 > now.readings - before.readings {
            return None;
        }
        if self.pose_source == PoseSource::Odometry && now.odometry == before.odometry {
            return Some(silence(odometry, magnetometer, "odometry", now.odometry));
        }
        let refused = |refusal| now.refusals.of(refusal) - before.refusals.of(refusal);
        let without_transform = refused(Refusal::ReadingWithoutTransform) + refused(Refusal::PoseWithoutTransform);
        if let Some(unresolved) = arrivals.unresolved.as_ref().filter(|_| held > 0 || without_transform > 0) {
            return Some(format!("{unresolved}: {}", self.remedy(unresolved)));
        }
        if let Some(fault) = fault(magnetometer, odometry, &refused) {
            return Some(fault);
        }
        if refused(Refusal::FieldTooStrong) + refused(Refusal::FieldTooWeak) > 0 {
            return Some(implausible(arrivals.last_strength.unwrap_or_default()));
        }
        self.stamps_apart(magnetometer, odometry, arrivals).or_else(|| most_refused(&refused)).or_else(|| {
            Some("readings wait for the first pose at or after their stamp; odometry comes late or has stopped".into())
        })
    }

    /// What helps where a transform is missing.
    fn remedy(&self, unresolved: &Unresolved) -> String {
        let (from, to) = match unresolved {
            Unresolved::Unlinked { from, to } => (from, to),
            Unresolved::NotYet { frame, parent, .. } | Unresolved::NoMore { frame, parent, .. } => (frame, parent),
        };
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

    /// Stamps of the two topics that never meet.
    fn stamps_apart(&self, magnetometer: &Topic, odometry: &Topic, arrivals: &Arrivals) -> Option<String> {
        let ahead = self.ahead(arrivals).filter(|ahead| ahead.abs() > self.max_gap)?;
        Some(format!(
            "the stamps of {} and {} never overlap: {}",
            magnetometer.name,
            odometry.name,
            words_for_apart(ahead)
        ))
    }

    /// By how many seconds the last reading is stamped ahead of the last odometry, where poses are made of that.
    fn ahead(&self, arrivals: &Arrivals) -> Option<f64> {
        let (reading, pose) = arrivals.reading_rhythm.last().zip(arrivals.odometry_rhythm.last())?;
        (self.pose_source == PoseSource::Odometry).then(|| reading.seconds_since(pose))
    }
}

fn words_for_apart(ahead: f64) -> String {
    let relation = if ahead > 0.0 { "ahead of" } else { "behind" };
    format!(
        "the first are {:.1} s {relation} the second. Do both use the same clock (use_sim_time, synchronised computers)?",
        ahead.abs()
    )
}

fn misplaced(magnetometer: &Topic, odometry: &Topic, ahead: f64) -> String {
    format!(
        "the stamps of {} and {} come together but are of different times, so that readings are mapped in the wrong place: {}",
        magnetometer.name,
        odometry.name,
        words_for_apart(ahead)
    )
}

/// What the refusals say about a sensor that is broken.
fn fault(magnetometer: &Topic, odometry: &Topic, refused: &dyn Fn(Refusal) -> u64) -> Option<String> {
    let stopped = |topic: &Topic, what, refusal| {
        let count = refused(refusal);
        let name = &topic.name;
        (count > 0).then(|| format!("the clock of {name} has stopped: {count} {what} came with the same stamp"))
    };
    let frozen = refused(Refusal::AxisFrozen);
    let saturated = refused(Refusal::ReadingSaturated);
    let name = &magnetometer.name;
    stopped(magnetometer, "readings", Refusal::ReadingStampRepeated)
        .or_else(|| stopped(odometry, "poses", Refusal::PoseStampRepeated))
        .or_else(|| {
            (frozen > 0).then(|| {
                format!(
                    "an axis of {name} stays the same to the last bit while the robot drives: {frozen} readings were \
                     refused. Does the sensor or its driver hang? gates.max_repeat = 0 takes them, for a sensor without \
                     that axis"
                )
            })
        })
        .or_else(|| {
            (saturated > 0).then(|| {
                format!(
                    "an axis of {name} is at its full scale (gates.full_scale): {saturated} readings were refused. Is a \
                     magnet near the sensor, or its range too small?"
                )
            })
        })
}

fn implausible(strength: f64) -> String {
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

fn most_refused(refused: &dyn Fn(Refusal) -> u64) -> Option<String> {
    let (refusal, count) =
        Refusal::ALL.into_iter().map(|refusal| (refusal, refused(refusal))).max_by_key(|(_, count)| *count)?;
    (count > 0).then(|| format!("nothing passes: refused were {count} {refusal}"))
}

#[cfg(test)]
mod tests {
    use super::super::rhythm::Rhythm;
    use super::*;

    fn topic(name: &str, publishers: usize) -> Topic {
        let published = Some(vec!["a/msg/Type".into(); publishers]);
        Topic { name: name.into(), setting: "a_topic", wanted: "a/msg/Type", published, others: Vec::new() }
    }

    /// What is said of topics of these names, which both have a publisher.
    fn look(
        complaints: &mut Complaints,
        [magnetometer, odometry]: [&str; 2],
        arrivals: &Arrivals,
        backlog: usize,
        counters: &Counters,
    ) -> Option<String> {
        let (magnetometer, odometry) = (&topic(magnetometer, 1), &topic(odometry, 1));
        let scene = Scene { magnetometer, odometry, arrivals, held: 0, backlog, counters, stopped: None };
        complaints.look(&scene).map(in_words)
    }

    #[track_caller]
    fn in_words(remark: Remark) -> String {
        match remark {
            Remark::Complaint(words) => words,
            Remark::Rest(words) => panic!("expected a complaint, found {words}"),
        }
    }

    fn rhythm(last: f64) -> Rhythm {
        let mut rhythm = Rhythm::default();
        rhythm.push(Stamp::from_seconds(last));
        rhythm
    }

    /// What is said when all of this happened since the start.
    fn said(change: impl FnOnce(&mut Arrivals, &mut Counters)) -> Option<String> {
        said_under(&Config::default(), change)
    }

    fn said_under(config: &Config, change: impl FnOnce(&mut Arrivals, &mut Counters)) -> Option<String> {
        let mut arrivals = Arrivals {
            readings: 100,
            odometry: 100,
            reading_rhythm: rhythm(10.0),
            odometry_rhythm: rhythm(10.01),
            last_strength: Some(50.0),
            ..Arrivals::default()
        };
        let mut counters = Counters::default();
        change(&mut arrivals, &mut counters);
        let (magnetometer, odometry) = (&topic("/imu/mag", 1), &topic("/odom", 0));
        let (arrivals, counters, held) = (&arrivals, &counters, usize::from(arrivals.unresolved.is_some()));
        let scene = Scene { magnetometer, odometry, arrivals, held, backlog: 0, counters, stopped: None };
        Complaints::new(config).look(&scene).map(in_words)
    }

    #[test]
    fn as_long_as_readings_are_used_there_is_nothing_to_say() {
        let mut complaints = Complaints::new(&Config::default());
        let (mut arrivals, mut counters) = (Arrivals::default(), Counters::default());
        for round in 1..4 {
            (arrivals.readings, arrivals.odometry, counters.used_readings) = (100 * round, 100 * round, 99 * round);
            assert_eq!(look(&mut complaints, ["m", "o"], &arrivals, 0, &counters), None);
        }
        let silent = look(&mut complaints, ["m", "o"], &arrivals, 0, &counters).unwrap();
        assert!(silent.starts_with("no more readings: m has a publisher, but no message comes"), "{silent}");
    }

    #[test]
    fn a_mapping_thread_that_is_busy_is_nothing_to_complain_about() {
        let mut complaints = Complaints::new(&Config::default());
        let arrivals = Arrivals { readings: 100, ..Arrivals::default() };
        assert_eq!(look(&mut complaints, ["m", "o"], &arrivals, 200, &Counters::default()), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let silent = said(|arrivals, _| arrivals.odometry = 0).unwrap();
        assert!(silent.starts_with("no odometry yet: nothing publishes /odom"), "{silent}");
        let unlinked = said(|arrivals, _| {
            arrivals.unresolved = Some(Unresolved::Unlinked { from: "imu".into(), to: "base_link".into() });
        });
        assert!(unlinked.unwrap().starts_with("frame \"imu\" has no transform to \"base_link\""));
    }

    #[test]
    fn a_transform_to_the_map_is_not_to_be_had_from_the_sensors_mount() {
        let unlinked = |from: &str, to: &str| Some(Unresolved::Unlinked { from: from.into(), to: to.into() });
        let told = |source: PoseSource, unresolved: Option<Unresolved>| {
            let mut config = Config::default();
            (config.frames.map, config.frames.pose_source) = ("/map".into(), source);
            said_under(&config, |arrivals, _| arrivals.unresolved = unresolved).unwrap()
        };
        let without_slam = told(PoseSource::Odometry, unlinked("odom", "map"));
        assert_eq!(
            without_slam,
            "frame \"odom\" has no transform to \"map\": start SLAM or localization, which publishes it on /tf; or leave \
             map_frame (frames.map) empty, to map in the odometry's frame \"odom\""
        );
        let behind = Unresolved::NotYet { frame: "odom".into(), parent: "map".into(), by: 2.5 };
        let stopped = told(PoseSource::Odometry, Some(behind));
        assert!(stopped.contains("2.500 s older than the data: start SLAM"), "{stopped}");
        let lost = told(PoseSource::Transforms, unlinked("imu", "map"));
        assert!(lost.contains("is it published on /tf?") && !lost.contains("override_transforms"), "{lost}");
        // Where the sensor sits is another matter.
        let unmounted = told(PoseSource::Odometry, unlinked("imu", "base_link"));
        assert!(unmounted.contains("Or set sensor.override_transforms"), "{unmounted}");
    }

    #[test]
    fn where_simulated_time_stands_still_silence_is_no_fault() {
        let mut complaints = Complaints::new(&Config::default());
        let (magnetometer, odometry) = (&topic("/imu/mag", 0), &topic("/odom", 0));
        let arrivals = Arrivals { readings: 100, odometry: 100, ..Arrivals::default() };
        let counters = Counters { used_readings: 100, ..Counters::default() };
        let mut looked = |stopped, readings| {
            let arrivals = &Arrivals { readings, ..arrivals.clone() };
            let counters = &counters;
            complaints.look(&Scene { magnetometer, odometry, arrivals, held: 0, backlog: 0, counters, stopped })
        };
        let stopped = Some(Stamp::from_seconds(1234.5));
        assert_eq!(looked(stopped, 100), None, "the first look sees what was mapped before");
        let rest = "simulated time has stopped at 1234.500 s: the bag is over, or paused";
        assert_eq!(looked(stopped, 100), Some(Remark::Rest(rest.into())));
        assert_eq!(looked(stopped, 100), Some(Remark::Rest(rest.into())));
        let silent = looked(None, 100).map(in_words).unwrap();
        assert!(silent.starts_with("no more readings: nothing publishes /imu/mag"), "{silent}");
    }

    #[test]
    fn stamps_that_never_overlap_are_told_with_their_distance() {
        let words = said(|arrivals, _| arrivals.odometry_rhythm = rhythm(1000.0)).unwrap();
        assert!(words.contains("/imu/mag and /odom never overlap: the first are 990.0 s behind the second"), "{words}");
    }

    #[test]
    fn readings_that_are_used_in_the_wrong_place_are_told_at_the_second_look() {
        let mut complaints = Complaints::new(&Config::default());
        let mut looked = |round: u64, ahead: f64| {
            let last = 10.0 * round as f64;
            let arrivals = Arrivals {
                readings: 100 * round,
                odometry: 100 * round,
                reading_rhythm: rhythm(last),
                odometry_rhythm: rhythm(last - ahead),
                ..Arrivals::default()
            };
            let counters = Counters { used_readings: 99 * round, ..Counters::default() };
            look(&mut complaints, ["/imu/mag", "/odom"], &arrivals, 0, &counters)
        };
        assert_eq!([looked(1, 9.0), looked(2, 60.0), looked(3, 9.0), looked(4, -60.0)], [const { None }; 4]);
        let words = looked(5, -60.0).unwrap();
        assert!(
            words.starts_with("the stamps of /imu/mag and /odom come together but are of different times"),
            "{words}"
        );
        assert!(words.contains("the first are 60.0 s behind the second"), "{words}");
    }

    #[test]
    fn a_broken_sensor_is_told_apart() {
        let told = |refusal| said(|_, counters| (0..3).for_each(|_| counters.refusals.count(refusal))).unwrap();
        let cases = [
            (Refusal::ReadingStampRepeated, "the clock of /imu/mag has stopped: 3 readings came with the same stamp"),
            (Refusal::PoseStampRepeated, "the clock of /odom has stopped: 3 poses came with the same stamp"),
            (
                Refusal::AxisFrozen,
                "an axis of /imu/mag stays the same to the last bit while the robot drives: 3 readings",
            ),
            (Refusal::ReadingSaturated, "an axis of /imu/mag is at its full scale (gates.full_scale): 3 readings"),
        ];
        for (refusal, expected) in cases {
            assert!(told(refusal).starts_with(expected), "{}", told(refusal));
        }
    }

    #[test]
    fn a_wrong_unit_is_recognized() {
        let told = |strength: f64| {
            said(|arrivals, counters| {
                arrivals.last_strength = Some(strength);
                counters.refusals.count(Refusal::FieldTooStrong);
            })
            .unwrap()
        };
        assert!(told(4e5).contains("4.000e5 microtesla looks like the wrong unit"), "{}", told(4e5));
        assert!(told(4e5).contains("if the driver sends gauss, it is 40.0 microtesla"), "{}", told(4e5));
        assert!(told(5e7).contains("sends microtesla, it is 50.0 microtesla"), "{}", told(5e7));
        assert!(told(5e10).contains("sends nanotesla"), "{}", told(5e10));
        assert!(told(2e3).ends_with("is not between gates.minimum_field and gates.maximum_field"), "{}", told(2e3));
    }

    #[test]
    fn otherwise_the_most_frequent_refusal_is_told() {
        let words = said(|_, counters| {
            (0..7).for_each(|_| counters.refusals.count(Refusal::PoseGap));
            counters.refusals.count(Refusal::PoseJump);
        });
        assert!(words.unwrap().starts_with("nothing passes: refused were 7 readings between poses"));
    }
}
