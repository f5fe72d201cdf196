//! From what a live robot sends, each in a frame of its own, to measurements in the frame of the map.
//!
//! ```text
//! readings  ── hold until the sensor's place is known ──┐
//! odometry  ── hold until its frame is in the map's   ──┼── mount, measurements
//! transforms ── frame tree ─────────────────────────────┘
//! ```
//!
//! A measurement whose transform has not come yet is held back, in the order of its topic, for as long as `frames.patience`.

use std::collections::VecDeque;
use std::sync::Arc;

use nalgebra::Isometry3;

use super::frames::{FrameTree, Unresolved, normalized};
use super::gates::LATENESS;
use super::reading::{Measurement, Pose, Reading, Stamp};
use super::refusal::{Refusal, Refusals};
use super::rhythm::Rhythm;
use crate::config::{Config, Frames, Likelihood, PoseSource};

/// What is handed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// How the sensor of the readings that follow sits: the transform from its frame to that of the poses.
    Mount(Isometry3<f64>),
    /// A reading, or a pose in the frame of the map.
    Measurement(Measurement),
}

/// What came in and what did not go on.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Readings that came.
    pub readings: u64,
    /// Odometry messages that came.
    pub odometry: u64,
    /// Readings and poses that were refused for want of a transform.
    pub refusals: Refusals,
    /// Readings that came while mapping was paused.
    pub paused_readings: u64,
    /// Transforms that are none, whose stamps are of another time, or of more frames than a robot has.
    pub refused_transforms: u64,
    /// How often the odometry's frame jumped in the map's.
    pub map_jumps: u64,
    /// How regularly readings come.
    pub reading_rhythm: Rhythm,
    /// How regularly odometry comes.
    pub odometry_rhythm: Rhythm,
    /// Strength of the last reading as it came, in microtesla.
    pub last_strength: Option<f64>,
    /// Why the measurement that was last held back or refused had no transform.
    pub unresolved: Option<Unresolved>,
}

/// A jump of the odometry's frame in the map's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapJump {
    /// How far, in metres.
    pub distance: f64,
    /// How much it turned, in radians.
    pub angle: f64,
}

/// Brings measurements into the frame of the map.
#[derive(Clone, Debug)]
pub struct Intake {
    settings: Frames,
    capacity: usize,
    /// How the sensor sits, where the settings say it, or nothing else does.
    given_mount: Option<Isometry3<f64>>,
    tree: FrameTree,
    /// The frame of the map, once it is known.
    map: Option<Arc<str>>,
    /// The frame whose poses odometry sends.
    body: Option<Arc<str>>,
    /// The mount that was handed on last.
    mount: Option<Isometry3<f64>>,
    readings: Held<Reading>,
    poses: Held<Pose>,
    /// Stamp of the last pose made of a transform.
    last_located: Option<Stamp>,
    paused: bool,
    arrivals: Arrivals,
}

/// Measurements of one topic that wait for a transform, in order, each with the name of its frame.
#[derive(Clone, Debug)]
struct Held<T> {
    waiting: VecDeque<(Arc<str>, T)>,
    /// The frame of the last.
    frame: Arc<str>,
}

impl<T> Held<T> {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), frame: Arc::from("") }
    }

    fn push(&mut self, frame: &str, measurement: T) {
        if *self.frame != *frame {
            self.frame = Arc::from(frame);
        }
        self.waiting.push_back((Arc::clone(&self.frame), measurement));
    }
}

impl Intake {
    /// An intake that has seen nothing yet.
    pub fn new(config: &Config) -> Self {
        let map = normalized(&config.frames.map);
        // Its messages name no frame.
        let is_signal = config.model.likelihood == Likelihood::Bernoulli;
        Self {
            settings: config.frames.clone(),
            capacity: config.synchronizer.max_waiting,
            given_mount: (config.sensor.override_transforms || is_signal).then(|| config.sensor.mount()),
            tree: FrameTree::default(),
            map: (!map.is_empty()).then(|| Arc::from(map)),
            body: None,
            mount: None,
            readings: Held::new(),
            poses: Held::new(),
            last_located: None,
            paused: false,
            arrivals: Arrivals::default(),
        }
    }

    /// The frame of the map: that of the settings, or of the first odometry.
    pub fn map_frame(&self) -> Option<&Arc<str>> {
        self.map.as_ref()
    }

    /// Names the frame of the map, unless it is named already.
    pub fn name_map(&mut self, frame: &str) {
        self.map.get_or_insert_with(|| Arc::from(normalized(frame)));
    }

    /// What came in and what did not go on.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// The longest gaps between the stamps of readings and of odometry since they were last fetched, in seconds.
    pub fn take_longest_gaps(&mut self) -> [f64; 2] {
        let Arrivals { reading_rhythm, odometry_rhythm, .. } = &mut self.arrivals;
        [reading_rhythm.take_longest_gap(), odometry_rhythm.take_longest_gap()]
    }

    /// How many measurements are held back for want of a transform.
    pub fn held(&self) -> usize {
        self.readings.waiting.len() + self.poses.waiting.len()
    }

    /// Whether readings are let pass.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Stops or resumes letting readings pass. Poses pass all the time, so that mapping goes on where the robot is then.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Takes a reading of the sensor whose frame is `frame`.
    pub fn reading(&mut self, frame: &str, reading: Reading, sink: &mut impl FnMut(Arrival)) {
        self.arrivals.readings += 1;
        self.arrivals.last_strength = Some(reading.field.strength());
        let last = self.arrivals.reading_rhythm.last();
        self.arrivals.reading_rhythm.push(reading.stamp);
        if self.paused {
            self.arrivals.paused_readings += 1;
            return;
        }
        if went_back(last, reading.stamp) {
            self.refuse_held_readings();
        }
        self.readings.push(normalized(frame), reading);
        self.release(sink);
    }

    /// Takes a pose of the body `child` in `frame`.
    pub fn odometry(&mut self, frame: &str, child: &str, pose: Pose, sink: &mut impl FnMut(Arrival)) {
        self.arrivals.odometry += 1;
        let last = self.arrivals.odometry_rhythm.last();
        self.arrivals.odometry_rhythm.push(pose.stamp);
        if self.settings.pose_source == PoseSource::Transforms {
            return;
        }
        if went_back(last, pose.stamp) {
            self.refuse_held_poses();
        }
        let (frame, child) = (normalized(frame), normalized(child));
        self.name_map(frame);
        if self.body.as_deref() != Some(child) {
            self.body = Some(Arc::from(child));
        }
        self.poses.push(frame, pose);
        self.release(sink);
    }

    /// Takes a transform from coordinates of `child` to those of `parent`; `stamp` is none for one that holds at all times.
    /// Says when it was the odometry's frame that jumped in the map's.
    pub fn transform(
        &mut self,
        parent: &str,
        child: &str,
        stamp: Option<Stamp>,
        transform: Isometry3<f64>,
        sink: &mut impl FnMut(Arrival),
    ) -> Option<MapJump> {
        let jump = self.jump(parent, child, &transform);
        self.arrivals.map_jumps += u64::from(jump.is_some());
        let is_taken = match stamp {
            Some(stamp) => self.tree.insert_moving(parent, child, stamp, transform),
            None => self.tree.insert_fixed(parent, child, transform),
        };
        self.arrivals.refused_transforms += u64::from(!is_taken);
        self.release(sink);
        jump
    }

    /// Counts a transform that is none: one that is not finite, or no rotation.
    pub fn refuse_transform(&mut self) {
        self.arrivals.refused_transforms += 1;
    }

    /// A frame in the map in which something else moves is that of odometry; where SLAM corrects it, it jumps.
    fn jump(&self, parent: &str, child: &str, transform: &Isometry3<f64>) -> Option<MapJump> {
        let is_in_map = self.map.as_deref() == Some(normalized(parent));
        let before = self.tree.newest(parent, child).filter(|_| is_in_map && self.tree.has_moving_child(child))?;
        let step = before.inverse() * transform;
        let jump = MapJump { distance: step.translation.vector.norm(), angle: step.rotation.angle() };
        (jump.distance > self.settings.jump_distance || jump.angle > self.settings.jump_angle).then_some(jump)
    }

    /// Refuses everything that is held back: nothing more will come.
    pub fn finish(&mut self) {
        self.refuse_held_readings();
        self.refuse_held_poses();
    }

    /// Hands on what can be placed now, and refuses what has waited too long.
    fn release(&mut self, sink: &mut impl FnMut(Arrival)) {
        while let Some((frame, pose)) = self.poses.waiting.front() {
            match self.placed(frame, pose) {
                Ok(pose) => sink(Arrival::Measurement(Measurement::Pose(pose))),
                Err(unresolved) => {
                    let may_wait = self.may_wait(pose.stamp, &unresolved, self.poses.waiting.len());
                    if self.hold_or_refuse(unresolved, may_wait, Refusal::PoseWithoutTransform) {
                        break;
                    }
                }
            }
            self.poses.waiting.pop_front();
        }
        while let Some((frame, reading)) = self.readings.waiting.front() {
            match self.located(frame, reading) {
                Ok((mount, pose)) => self.hand_on(*reading, mount, pose, sink),
                Err(unresolved) => {
                    let may_wait = self.may_wait(reading.stamp, &unresolved, self.readings.waiting.len());
                    if self.hold_or_refuse(unresolved, may_wait, Refusal::ReadingWithoutTransform) {
                        break;
                    }
                }
            }
            self.readings.waiting.pop_front();
        }
    }

    /// Remembers why, and says whether to hold; otherwise the refusal is counted.
    fn hold_or_refuse(&mut self, unresolved: Unresolved, may_wait: bool, refusal: Refusal) -> bool {
        self.arrivals.unresolved = Some(unresolved);
        if !may_wait {
            self.arrivals.refusals.count(refusal);
        }
        may_wait
    }

    fn hand_on(&mut self, reading: Reading, mount: Isometry3<f64>, pose: Option<Pose>, sink: &mut impl FnMut(Arrival)) {
        if self.mount.replace(mount) != Some(mount) {
            sink(Arrival::Mount(mount));
        }
        // Several readings may share a stamp; poses may not.
        if let Some(pose) = pose.filter(|pose| self.last_located != Some(pose.stamp)) {
            self.last_located = Some(pose.stamp);
            sink(Arrival::Measurement(Measurement::Pose(pose)));
        }
        sink(Arrival::Measurement(Measurement::Reading(reading)));
    }

    /// The pose in the frame of the map.
    fn placed(&self, frame: &str, pose: &Pose) -> Result<Pose, Unresolved> {
        let map = self.map.as_deref().unwrap_or(frame);
        if map == frame {
            return Ok(*pose);
        }
        let moved = self.tree.transform(frame, map, pose.stamp)? * pose.isometry();
        Ok(Pose { stamp: pose.stamp, position: moved.translation.vector.into(), orientation: moved.rotation })
    }

    /// How the sensor sits when it takes this reading, and, where transforms are the source of poses, the pose it sits on.
    fn located(&self, frame: &str, reading: &Reading) -> Result<(Isometry3<f64>, Option<Pose>), Unresolved> {
        let unlinked = |to: &str| Unresolved::Unlinked { from: frame.to_owned(), to: to.to_owned() };
        match self.settings.pose_source {
            PoseSource::Odometry => {
                let body =
                    || self.body.as_deref().ok_or_else(|| unlinked("the robot's body, which odometry has yet to name"));
                let mount = match self.given_mount {
                    Some(mount) => mount,
                    None => self.tree.transform(frame, body()?, reading.stamp)?,
                };
                Ok((mount, None))
            }
            PoseSource::Transforms => {
                let map = self.map.as_deref().ok_or_else(|| unlinked("the map, whose frame frames.map has to name"))?;
                let place = self.tree.transform(frame, map, reading.stamp)?;
                let (position, orientation) = (place.translation.vector.into(), place.rotation);
                let pose = Pose { stamp: reading.stamp, position, orientation };
                Ok((self.given_mount.unwrap_or_default(), Some(pose)))
            }
        }
    }

    /// Whether a transform may still come for a measurement of this stamp.
    fn may_wait(&self, stamp: Stamp, unresolved: &Unresolved, waiting: usize) -> bool {
        let is_past = matches!(unresolved, Unresolved::NoMore { .. });
        let newest = self.arrivals.reading_rhythm.last().max(self.arrivals.odometry_rhythm.last());
        let age = newest.map_or(0.0, |newest| newest.seconds_since(stamp));
        !is_past && age <= self.settings.patience && waiting <= self.capacity
    }

    fn refuse_held_readings(&mut self) {
        for _ in self.readings.waiting.drain(..) {
            self.arrivals.refusals.count(Refusal::ReadingWithoutTransform);
        }
    }

    fn refuse_held_poses(&mut self) {
        for _ in self.poses.waiting.drain(..) {
            self.arrivals.refusals.count(Refusal::PoseWithoutTransform);
        }
    }
}

/// Whether a topic is in another time now: nothing that was held before can be placed then.
fn went_back(last: Option<Stamp>, stamp: Stamp) -> bool {
    last.is_some_and(|last| last.seconds_since(stamp) > LATENESS)
}

#[cfg(test)]
mod tests {
    use nalgebra::{Translation3, UnitQuaternion, Vector3};

    use super::super::reading::MagneticField;
    use super::*;

    fn at(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(milliseconds * 1_000_000)
    }

    fn reading(milliseconds: i64) -> Reading {
        Reading { stamp: at(milliseconds), field: MagneticField::from_microtesla(Vector3::new(50.0, 0.0, 0.0)) }
    }

    fn pose(milliseconds: i64, x: f64) -> Pose {
        Pose { stamp: at(milliseconds), position: [x, 0.0, 0.0].into(), orientation: UnitQuaternion::identity() }
    }

    fn shift(x: f64, y: f64) -> Isometry3<f64> {
        Translation3::new(x, y, 0.0).into()
    }

    /// What an intake hands on, gathered.
    struct Bench {
        intake: Intake,
        out: Vec<Arrival>,
    }

    impl Bench {
        fn new(change: impl FnOnce(&mut Config)) -> Self {
            let mut config = Config::default();
            change(&mut config);
            Self { intake: Intake::new(&config), out: Vec::new() }
        }

        fn reading(&mut self, frame: &str, milliseconds: i64) {
            self.intake.reading(frame, reading(milliseconds), &mut |arrival| self.out.push(arrival));
        }

        fn odometry(&mut self, milliseconds: i64, x: f64) {
            self.intake.odometry("odom", "base_link", pose(milliseconds, x), &mut |arrival| self.out.push(arrival));
        }

        fn transform(
            &mut self,
            [parent, child]: [&str; 2],
            milliseconds: Option<i64>,
            to: Isometry3<f64>,
        ) -> Option<MapJump> {
            self.intake.transform(parent, child, milliseconds.map(at), to, &mut |arrival| self.out.push(arrival))
        }

        fn poses(&self) -> Vec<[f64; 2]> {
            let pose = |arrival: &Arrival| match arrival {
                Arrival::Measurement(Measurement::Pose(pose)) => Some([pose.position.x, pose.position.y]),
                _ => None,
            };
            self.out.iter().filter_map(pose).collect()
        }

        fn readings(&self) -> usize {
            let is_reading = |arrival: &&Arrival| matches!(arrival, Arrival::Measurement(Measurement::Reading(_)));
            self.out.iter().filter(is_reading).count()
        }

        fn mounts(&self) -> Vec<Isometry3<f64>> {
            let mount = |arrival: &Arrival| match arrival {
                Arrival::Mount(mount) => Some(*mount),
                Arrival::Measurement(_) => None,
            };
            self.out.iter().filter_map(mount).collect()
        }
    }

    #[test]
    fn readings_wait_for_the_sensors_place_and_none_is_lost() {
        let mut bench = Bench::new(|_| {});
        for step in 0..100 {
            bench.reading("imu", 20 * step);
            bench.odometry(20 * step, 0.0);
        }
        assert_eq!((bench.readings(), bench.intake.held()), (0, 100));
        let told = bench.intake.arrivals().unresolved.clone().unwrap().to_string();
        assert_eq!(told, "frame \"imu\" has no transform to \"base_link\"");
        bench.transform(["base_link", "mast"], None, shift(0.1, 0.0));
        bench.transform(["mast", "imu"], None, shift(0.0, 0.2));
        assert_eq!((bench.readings(), bench.intake.held()), (100, 0));
        assert_eq!(bench.mounts(), [shift(0.1, 0.2)]);
        assert_eq!(bench.intake.arrivals().refusals.total(), 0);
    }

    #[test]
    fn patience_ends_and_the_missing_frame_is_named() {
        let mut bench = Bench::new(|config| config.frames.patience = 1.0);
        for step in 0..=100 {
            bench.odometry(20 * step, 0.0);
            bench.reading("imu", 20 * step);
        }
        // At 2 s those of the first second, but for the one exactly a second old, are gone.
        assert_eq!(bench.intake.arrivals().refusals.of(Refusal::ReadingWithoutTransform), 50);
        assert_eq!(bench.intake.held(), 51);
        bench.intake.finish();
        assert_eq!(bench.intake.arrivals().refusals.readings(), 101);
    }

    #[test]
    fn a_sensor_in_the_bodys_frame_needs_no_transform_and_a_given_mount_none_at_all() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(0, 0.0);
        bench.reading("/base_link", 0);
        assert_eq!(bench.mounts(), [Isometry3::identity()]);
        let mut bench = Bench::new(|config| {
            config.sensor.override_transforms = true;
            config.sensor.position = [0.3, 0.0, 0.0];
        });
        bench.reading("nowhere", 0);
        assert_eq!((bench.readings(), bench.mounts()), (1, vec![shift(0.3, 0.0)]));
    }

    #[test]
    fn a_yes_no_signal_which_names_no_frame_is_where_the_settings_say() {
        let mut bench = Bench::new(|config| {
            config.model.likelihood = Likelihood::Bernoulli;
            config.sensor.position = [0.3, 0.0, 0.0];
        });
        bench.odometry(0, 0.0);
        bench.intake.reading("", Reading::of_signal(at(5), true), &mut |arrival| bench.out.push(arrival));
        assert_eq!((bench.mounts(), bench.readings()), (vec![shift(0.3, 0.0)], 1));
    }

    #[test]
    fn a_sensor_on_a_moving_arm_gets_the_mount_of_its_stamp() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(0, 0.0);
        bench.transform(["base_link", "arm"], Some(0), shift(0.0, 0.0));
        bench.reading("arm", 25);
        assert_eq!(bench.readings(), 0);
        bench.transform(["base_link", "arm"], Some(100), shift(1.0, 0.0));
        bench.reading("arm", 50);
        assert_eq!(bench.mounts(), [shift(0.25, 0.0), shift(0.5, 0.0)]);
    }

    #[test]
    fn poses_are_moved_into_the_frame_of_the_map() {
        let mut bench = Bench::new(|config| config.frames.map = "map".into());
        bench.odometry(0, 1.0);
        assert_eq!(bench.poses().len(), 0);
        bench.transform(["map", "odom"], Some(0), shift(0.0, 5.0));
        bench.transform(["map", "odom"], Some(100), shift(0.0, 6.0));
        bench.odometry(50, 2.0);
        assert_eq!(bench.poses(), [[1.0, 5.0], [2.0, 5.5]]);
    }

    #[test]
    fn with_transforms_as_the_source_every_reading_comes_with_its_pose() {
        let mut bench = Bench::new(|config| {
            config.frames.map = "map".into();
            config.frames.pose_source = PoseSource::Transforms;
        });
        bench.transform(["map", "odom"], Some(0), shift(0.0, 5.0));
        bench.transform(["odom", "base_link"], Some(0), shift(0.0, 0.0));
        bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
        bench.reading("imu", 50);
        bench.reading("imu", 50);
        bench.odometry(50, 77.0);
        bench.transform(["map", "odom"], Some(100), shift(0.0, 5.0));
        bench.transform(["odom", "base_link"], Some(100), shift(1.0, 0.0));
        assert_eq!((bench.readings(), bench.poses()), (2, vec![[0.6, 5.0]]));
        assert_eq!(bench.mounts(), [Isometry3::identity()]);
    }

    #[test]
    fn a_correction_by_slam_is_a_jump_and_the_robots_own_motion_is_none() {
        let mut bench = Bench::new(|config| config.frames.map = "map".into());
        for step in 0..5 {
            assert_eq!(bench.transform(["odom", "base_link"], Some(100 * step), shift(step as f64, 0.0)), None);
            assert_eq!(bench.transform(["map", "odom"], Some(100 * step), shift(0.01 * step as f64, 0.0)), None);
        }
        let jump = bench.transform(["map", "odom"], Some(500), shift(0.34, 0.0)).unwrap();
        assert!((jump.distance - 0.3).abs() < 1e-12, "{jump:?}");
        assert_eq!(bench.intake.arrivals().map_jumps, 1);
    }

    #[test]
    fn what_waited_for_another_time_is_refused_when_the_clock_goes_back() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(100_000, 0.0);
        bench.reading("imu", 100_000);
        bench.odometry(0, 0.0);
        bench.reading("imu", 0);
        bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
        assert_eq!((bench.readings(), bench.intake.held()), (1, 0));
        assert_eq!(bench.intake.arrivals().refusals.of(Refusal::ReadingWithoutTransform), 1);
    }

    #[test]
    fn paused_readings_are_counted_and_poses_go_on() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(0, 0.0);
        bench.intake.set_paused(true);
        bench.reading("base_link", 10);
        bench.odometry(20, 1.0);
        bench.intake.set_paused(false);
        bench.reading("base_link", 30);
        assert_eq!((bench.readings(), bench.poses().len()), (1, 2));
        assert_eq!(bench.intake.arrivals().paused_readings, 1);
    }
}
