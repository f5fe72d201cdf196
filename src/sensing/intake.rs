//! One intake for every source: messages with frames and stamps in, inputs of the pipeline out.
//!
//! ```text
//! readings ──┐            ┌─ wait until the sensor's mount is known ────┐
//! odometry ──┴── clock ───┴─ wait until its frame is known in the map ──┼── mount, measurements, stretches
//! transforms ── frame tree ─────────────────────────────────────────────┘
//! ```
//!
//! A robot's topics, a bag, a survey and a simulation all come through here, so that mounts, frames, the source of poses and a clock
//! that goes back are decided in one place. Measurements wait for missing transforms in the order of their topic, for at most
//! `frames.patience`.
//!
//! The strength of the field needs no mount. So unless the three axes are asked for (`model.field = "vector"`), readings of a sensor
//! without a transform to the robot's body are passed on without a mount, once one of them has waited that long since the robot moved.
//! Where a mount was known once, readings in another frame are none of that sensor.

use std::collections::VecDeque;
use std::sync::Arc;

use nalgebra::{Isometry3, Point3};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Frames, PoseSource};
use crate::sensing::clock::{Clock, Passed, Topic};
use crate::sensing::frames::{FrameTree, Missing, TransformError, normalized};
use crate::sensing::reading::{Measurement, Pose, Reading, Stamp};
use crate::sensing::rejection::{Rejection, Rejections};
use crate::sensing::timing::TopicTiming;

/// A message of a source, with its frames, which are named without the leading slash of ROS 1.
#[derive(Clone, Debug, PartialEq)]
pub enum SensorMessage {
    /// A reading of the magnetometer.
    Reading {
        /// Frame of the sensor.
        frame: Arc<str>,
        /// The reading, along the axes of that frame.
        reading: Reading,
    },
    /// A message of odometry.
    Odometry {
        /// Frame of the pose.
        frame: Arc<str>,
        /// Frame of the robot's body.
        child: Arc<str>,
        /// Pose of the body in that frame.
        pose: Pose,
    },
    /// A transform of `/tf` or `/tf_static`.
    Transform {
        /// Target frame.
        parent: Arc<str>,
        /// Source frame.
        child: Arc<str>,
        /// When it is valid; at all times without one.
        stamp: Option<Stamp>,
        /// From coordinates of the child to those of the parent.
        transform: Isometry3<f64>,
    },
}

impl SensorMessage {
    /// A reading of the sensor whose frame this is.
    pub fn reading(frame: &str, reading: Reading) -> Self {
        Self::Reading { frame: Arc::from(normalized(frame)), reading }
    }

    /// A pose of the body `child` in a frame.
    pub fn odometry(frame: &str, child: &str, pose: Pose) -> Self {
        Self::Odometry { frame: Arc::from(normalized(frame)), child: Arc::from(normalized(child)), pose }
    }

    /// The transform from `child` to `parent` coordinates; without a stamp it is valid at all times.
    pub fn transform(parent: &str, child: &str, stamp: Option<Stamp>, transform: Isometry3<f64>) -> Self {
        let (parent, child) = (Arc::from(normalized(parent)), Arc::from(normalized(child)));
        Self::Transform { parent, child, stamp, transform }
    }

    /// Stamp of a reading or of a pose.
    pub fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Reading { reading, .. } => Some(reading.stamp),
            Self::Odometry { pose, .. } => Some(pose.stamp),
            Self::Transform { .. } => None,
        }
    }
}

/// Output of the intake: the input of a [`Pipeline`](crate::mapping::pipeline::Pipeline).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// The mount of the sensor for the readings that follow: the transform from its frame to that of the poses.
    Mount(Isometry3<f64>),
    /// A reading, or a pose in the frame of the map.
    Measurement(Measurement),
    /// The clock went back: what follows has nothing to do with the readings and poses before.
    Stretch,
    /// The mount of the sensor is unknown for the readings that follow: they tell the strength of the field where the robot's body is.
    UnknownMount,
}

impl From<Measurement> for Input {
    fn from(measurement: Measurement) -> Self {
        Self::Measurement(measurement)
    }
}

/// The inputs that the messages of a recording or a simulation lead to, from its first to its last.
#[derive(Debug)]
pub struct Inputs<I, E> {
    /// The intake, which knows what was not passed on.
    pub intake: Intake,
    /// None after the last one.
    messages: Option<I>,
    ready: VecDeque<Input>,
    /// Why the source ended early.
    error: Option<E>,
}

impl<I: Iterator<Item = Result<SensorMessage, E>>, E> Iterator for Inputs<I, E> {
    type Item = Result<Input, E>;

    /// The next input. An error of the source comes after everything that was read before it, and is the last.
    fn next(&mut self) -> Option<Self::Item> {
        let Self { intake, messages, ready, error } = self;
        while let Some(source) = messages.as_mut().filter(|_| ready.is_empty()) {
            let mut sink = |input| ready.push_back(input);
            match source.next() {
                Some(Ok(message)) => intake.take(message, &mut sink),
                end => {
                    intake.finish(&mut sink);
                    *error = end.and_then(Result::err);
                    *messages = None;
                }
            }
        }
        ready.pop_front().map(Ok).or_else(|| error.take().map(Err))
    }
}

/// Counts of messages that arrived, and of those that were not passed on.
#[derive(Clone, Debug, Default)]
pub struct IntakeStatus {
    /// Readings received.
    pub readings: u64,
    /// Odometry messages received.
    pub odometry: u64,
    /// Readings and poses rejected because a transform was missing or their stamp was far ahead.
    pub rejections: Rejections,
    /// Readings received while mapping was paused.
    pub paused_readings: u64,
    /// Invalid transforms, transforms with stamps that are too old, and those of more frames than a robot has.
    pub rejected_transforms: u64,
    /// How often the odometry's frame jumped in the map's.
    pub map_jumps: u64,
    /// The intervals between readings.
    pub reading_timing: TopicTiming,
    /// The intervals between odometry messages.
    pub odometry_timing: TopicTiming,
    /// Strength of the last reading as it arrived, in microtesla.
    pub last_strength: Option<f64>,
    /// Why the last measurement without a transform had none.
    pub transform_error: Option<TransformError>,
}

/// A robot further from its start than this has moved, in metres: odometry of a robot that stands may drift.
const MOVED: f64 = 0.5;

/// Brings measurements into the frame of the map.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    settings: Frames,
    /// Whether readings without a mount are rejected.
    needs_mount: bool,
    capacity: usize,
    /// The sensor's mount, where it comes from the settings.
    given_mount: Option<Isometry3<f64>>,
    clock: Clock<Framed>,
    /// Empty; kept for its memory.
    passed: Vec<Passed<Framed>>,
    tree: FrameTree,
    /// The frame that poses are brought into, once it is known.
    map: Option<Arc<str>>,
    /// The frame of the map, where it is another one because the path is corrected.
    corrected: Option<Arc<str>>,
    /// The child frame of odometry.
    body: Option<Arc<str>>,
    /// The mount that was passed on last, which may be an unknown one.
    mount: Option<Input>,
    /// Where the robot was first.
    start: Option<Point3<f64>>,
    /// When it had moved.
    moved: Option<Stamp>,
    /// Readings that wait for a transform, in order, each with its frame.
    readings: VecDeque<(Arc<str>, Reading)>,
    /// Poses that wait for a transform, in order, each with its frame.
    poses: VecDeque<(Arc<str>, Pose)>,
    /// Stamp of the last pose made from transforms.
    last_pose: Option<Stamp>,
    /// Whether readings are ignored. Poses always pass, so that mapping resumes where the robot is then.
    pub paused: bool,
    /// The frame of the last reading; empty before the first.
    pub sensor_frame: Arc<str>,
    /// Counts of messages so far.
    pub status: IntakeStatus,
}

/// A reading or a pose in its frame.
#[derive(Clone, Debug)]
enum Framed {
    Reading(Arc<str>, Reading),
    /// With the frame of the body.
    Pose(Arc<str>, Arc<str>, Pose),
}

impl Intake {
    /// An intake that has received nothing yet.
    pub fn new(config: &Config) -> Self {
        let map = normalized(config.map_frame());
        let map = (!map.is_empty()).then(|| Arc::from(map));
        // Where the path is corrected, poses stay in the frame of odometry.
        let (map, corrected) = if config.corrects_path() { (None, map) } else { (map, None) };
        Self {
            settings: config.frames.clone(),
            needs_mount: config.needs_mount(),
            capacity: config.synchronizer.max_waiting,
            given_mount: config.sensor.override_transforms.then(|| config.sensor.mount()),
            clock: Clock::new(config),
            map,
            corrected,
            ..Self::default()
        }
    }

    /// Sets the frame that poses are brought into, unless it is known already.
    pub fn name_map(&mut self, frame: &str) {
        self.map.get_or_insert_with(|| Arc::from(normalized(frame)));
    }

    /// The frame of the map, once it is known.
    pub fn map_frame(&self) -> Option<&str> {
        self.corrected.as_deref().or(self.map.as_deref())
    }

    /// Whether a transform says where this frame is in another one.
    pub fn has_parent(&self, frame: &str) -> bool {
        self.tree.has(frame)
    }

    /// The longest gaps between the stamps of readings and of odometry since the last call, in seconds.
    pub fn take_longest_gaps(&mut self) -> [f64; 2] {
        let IntakeStatus { reading_timing, odometry_timing, .. } = &mut self.status;
        [reading_timing.take_longest_gap(), odometry_timing.take_longest_gap()]
    }

    /// How many measurements wait for a transform, or for the clock of the other topic.
    pub fn held(&self) -> usize {
        self.readings.len() + self.poses.len() + self.clock.held()
    }

    /// The inputs that these messages lead to.
    pub fn run<I: Iterator<Item = Result<SensorMessage, E>>, E>(self, messages: I) -> Inputs<I, E> {
        Inputs { intake: self, messages: Some(messages), ready: VecDeque::new(), error: None }
    }

    /// Takes the next message, and passes on what need not wait.
    pub fn take(&mut self, message: SensorMessage, sink: &mut impl FnMut(Input)) {
        match message {
            SensorMessage::Reading { frame, reading } => self.reading(frame, reading, sink),
            SensorMessage::Odometry { frame, child, pose } => self.odometry(frame, child, pose, sink),
            SensorMessage::Transform { parent, child, stamp, transform } => {
                self.transform(&parent, &child, stamp, transform);
                self.release(sink);
            }
        }
    }

    /// Counts a message of odometry whose pose has numbers that are not finite or whose orientation is no rotation.
    pub fn reject_invalid_pose(&mut self) {
        self.status.odometry += 1;
        self.status.rejections.count(Rejection::PoseNotFinite);
    }

    /// Ends the stream: what waits for its clock is passed on, what still waits for a transform is rejected.
    pub fn finish(&mut self, sink: &mut impl FnMut(Input)) {
        self.through_clock(sink, |clock, passed| clock.finish(passed));
        self.reject_waiting();
    }

    fn reading(&mut self, frame: Arc<str>, reading: Reading, sink: &mut impl FnMut(Input)) {
        self.status.readings += 1;
        self.status.last_strength = Some(reading.field.strength());
        self.status.reading_timing.push(reading.stamp);
        if self.sensor_frame != frame {
            self.sensor_frame = Arc::clone(&frame);
        }
        let framed = Framed::Reading(frame, reading);
        self.through_clock(sink, |clock, passed| clock.push(Topic::Readings, reading.stamp, framed, passed));
    }

    fn odometry(&mut self, frame: Arc<str>, child: Arc<str>, pose: Pose, sink: &mut impl FnMut(Input)) {
        self.status.odometry += 1;
        self.status.odometry_timing.push(pose.stamp);
        if self.settings.pose_source == PoseSource::Transforms {
            return;
        }
        let framed = Framed::Pose(frame, child, pose);
        self.through_clock(sink, |clock, passed| clock.push(Topic::Odometry, pose.stamp, framed, passed));
    }

    /// Takes what the clock passes on, stretch by stretch.
    fn through_clock(
        &mut self,
        sink: &mut impl FnMut(Input),
        feed: impl FnOnce(&mut Clock<Framed>, &mut dyn FnMut(Passed<Framed>)),
    ) {
        let mut passed = std::mem::take(&mut self.passed);
        feed(&mut self.clock, &mut |message| passed.push(message));
        self.tree.now = self.clock.newest();
        for message in passed.drain(..) {
            match message {
                Passed::Message(Framed::Reading(..)) if self.paused => self.status.paused_readings += 1,
                Passed::Message(Framed::Reading(frame, reading)) => self.readings.push_back((frame, reading)),
                Passed::Message(Framed::Pose(frame, child, pose)) => {
                    self.name_map(&frame);
                    self.body = Some(child);
                    self.poses.push_back((frame, pose));
                }
                Passed::TooFarAhead(Framed::Reading(..)) => self.status.rejections.count(Rejection::ReadingStampAhead),
                Passed::TooFarAhead(Framed::Pose(..)) => self.status.rejections.count(Rejection::PoseStampAhead),
                Passed::Stretch(topic, seconds) => {
                    let topic = match topic {
                        Topic::Readings => "readings",
                        Topic::Odometry => "odometry",
                    };
                    log::warn!("the clock of the {topic} went back by {seconds:.3} s");
                    self.release(sink);
                    self.reject_waiting();
                    self.tree.begin_stretch();
                    self.last_pose = None;
                    (self.start, self.moved) = (None, None);
                    sink(Input::Stretch);
                }
            }
        }
        self.passed = passed;
        self.release(sink);
    }

    /// Takes a transform from `child` to `parent` coordinates; without a stamp it is valid at all times.
    fn transform(&mut self, parent: &str, child: &str, stamp: Option<Stamp>, transform: Isometry3<f64>) {
        self.warn_of_jump(parent, child, &transform);
        let rejected = match stamp {
            Some(stamp) => self.tree.insert_moving(parent, child, stamp, transform),
            None => self.tree.insert_fixed(parent, child, transform),
        };
        self.status.rejected_transforms += rejected;
    }

    /// A frame in the map with a moving child is that of odometry; it jumps when SLAM corrects it.
    fn warn_of_jump(&mut self, parent: &str, child: &str, transform: &Isometry3<f64>) {
        let is_in_map = self.map.as_deref() == Some(parent);
        let before = self.tree.newest(parent, child).filter(|_| is_in_map && self.tree.has_moving_child(child));
        let Some(before) = before else { return };
        let step = before.inverse() * transform;
        let (distance, angle) = (step.translation.vector.norm(), step.rotation.angle());
        if distance > self.settings.jump_distance || angle > self.settings.jump_angle {
            self.status.map_jumps += 1;
            log::warn!(
                "frame \"{child}\" jumped by {distance:.2} m and {:.1} degrees in the frame of the map: what is mapped already does \
                 not move",
                angle.to_degrees()
            );
        }
    }

    /// Passes on measurements whose transforms are known, and rejects those that waited too long.
    fn release(&mut self, sink: &mut impl FnMut(Input)) {
        while let Some((frame, pose)) = self.poses.front() {
            let placed = self.pose_in_map(frame, pose);
            if self.must_wait(&placed, pose.stamp, self.poses.len(), Rejection::PoseWithoutTransform) {
                break;
            }
            self.poses.pop_front();
            if let Ok(pose) = placed {
                let start = *self.start.get_or_insert(pose.position);
                if (pose.position - start).norm() > MOVED {
                    self.moved.get_or_insert(pose.stamp);
                }
                sink(Measurement::Pose(pose).into());
            }
        }
        while let Some(&(ref frame, reading)) = self.readings.front() {
            let placed = self.mount_and_pose(frame, &reading).or_else(|error| self.without_mount(&reading, error));
            if self.must_wait(&placed, reading.stamp, self.readings.len(), Rejection::ReadingWithoutTransform) {
                break;
            }
            self.readings.pop_front();
            if let Ok((mount, pose)) = placed {
                self.pass_on(reading, mount, pose, sink);
            }
        }
    }

    /// No mount and no pose, where a reading is to be used although this transform of its sensor is missing.
    fn without_mount(
        &self,
        reading: &Reading,
        error: TransformError,
    ) -> Result<(Option<Isometry3<f64>>, Option<Pose>), TransformError> {
        let is_unknown = self.mount == Some(Input::UnknownMount);
        // There is nothing to map before the robot moves, and the transform may still come.
        let has_moved = self.moved.is_some_and(|moved| moved <= reading.stamp);
        let has_waited = has_moved && self.age(reading.stamp) > self.settings.patience;
        let is_body = self.body.as_deref() == Some(&error.to) && error.missing == Missing::Link;
        let was_known = matches!(self.mount, Some(Input::Mount(_)));
        let from_odometry = self.settings.pose_source == PoseSource::Odometry;
        let is_usable = is_body && from_odometry && !self.needs_mount && !was_known;
        if !is_usable || !(is_unknown || has_waited) {
            return Err(error);
        }
        if !is_unknown {
            let body = &error.to;
            log::warn!(
                "{error}: only the strength of its readings is used, as if the sensor were at the origin of \"{body}\""
            );
        }
        Ok((None, None))
    }

    /// How long ago this was by the newest stamp, in seconds.
    fn age(&self, stamp: Stamp) -> f64 {
        self.clock.newest().map_or(0.0, |newest| newest.seconds_since(stamp))
    }

    fn reject_waiting(&mut self) {
        self.readings.drain(..).for_each(|_| self.status.rejections.count(Rejection::ReadingWithoutTransform));
        self.poses.drain(..).for_each(|_| self.status.rejections.count(Rejection::PoseWithoutTransform));
    }

    /// Whether a missing transform may still arrive for the first of a number of waiting measurements. Counts it as rejected if not.
    fn must_wait<T>(
        &mut self,
        placed: &Result<T, TransformError>,
        stamp: Stamp,
        waiting: usize,
        rejection: Rejection,
    ) -> bool {
        let Err(error) = placed else { return false };
        let is_past = matches!(error.missing, Missing::Older(_));
        let may_arrive = !is_past && self.age(stamp) <= self.settings.patience && waiting <= self.capacity;
        self.status.transform_error = Some(error.clone());
        if !may_arrive {
            self.status.rejections.count(rejection);
        }
        may_arrive
    }

    fn pass_on(
        &mut self,
        reading: Reading,
        mount: Option<Isometry3<f64>>,
        pose: Option<Pose>,
        sink: &mut impl FnMut(Input),
    ) {
        let mount = mount.map_or(Input::UnknownMount, Input::Mount);
        if self.mount.replace(mount) != Some(mount) {
            sink(mount);
        }
        // Several readings may share a stamp; poses may not.
        if let Some(pose) = pose.filter(|pose| self.last_pose != Some(pose.stamp)) {
            self.last_pose = Some(pose.stamp);
            sink(Measurement::Pose(pose).into());
        }
        sink(Measurement::Reading(reading).into());
    }

    fn pose_in_map(&self, frame: &str, pose: &Pose) -> Result<Pose, TransformError> {
        let map = self.map.as_deref().unwrap_or(frame);
        if map == frame {
            return Ok(*pose);
        }
        let moved = self.tree.transform(frame, map, pose.stamp)? * pose.isometry();
        Ok(Pose { stamp: pose.stamp, position: moved.translation.vector.into(), orientation: moved.rotation })
    }

    /// The sensor's mount at a reading, and the pose to which it refers where poses come from transforms.
    fn mount_and_pose(
        &self,
        frame: &str,
        reading: &Reading,
    ) -> Result<(Option<Isometry3<f64>>, Option<Pose>), TransformError> {
        let stamp = reading.stamp;
        let not_connected =
            |to: &str| TransformError { from: frame.to_owned(), to: to.to_owned(), missing: Missing::Link };
        match (self.settings.pose_source, self.given_mount) {
            (PoseSource::Odometry, given @ Some(_)) => Ok((given, None)),
            (PoseSource::Odometry, None) => {
                let body = self.body.as_deref();
                let body = body.ok_or_else(|| not_connected("the robot's body, which odometry has yet to name"))?;
                Ok((Some(self.tree.transform(frame, body, stamp)?), None))
            }
            (PoseSource::Transforms, given_mount) => {
                let map = self.map.as_deref();
                let map = map.ok_or_else(|| not_connected("the map, whose frame frames.map has to name"))?;
                let sensor = self.tree.transform(frame, map, stamp)?;
                let pose = Pose { stamp, position: sensor.translation.vector.into(), orientation: sensor.rotation };
                Ok((Some(given_mount.unwrap_or_default()), Some(pose)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::Translation3;

    use super::*;
    use crate::config::Mapped;
    use crate::sensing::samples::{at, pose, reading};

    fn shift(x: f64, y: f64) -> Isometry3<f64> {
        Translation3::new(x, y, 0.0).into()
    }

    /// An intake, and what it passed on.
    struct Bench {
        intake: Intake,
        out: Vec<Input>,
    }

    impl Bench {
        fn new(change: impl FnOnce(&mut Config)) -> Self {
            let mut config = Config::default();
            change(&mut config);
            Self { intake: Intake::new(&config), out: Vec::new() }
        }

        fn take(&mut self, message: SensorMessage) {
            self.intake.take(message, &mut |input| self.out.push(input));
        }

        fn reading(&mut self, frame: &str, milliseconds: i64) {
            self.take(SensorMessage::reading(frame, reading(milliseconds, 50.0)));
        }

        fn odometry(&mut self, milliseconds: i64, x: f64) {
            self.take(SensorMessage::odometry("odom", "base_link", pose(milliseconds, x)));
        }

        fn transform(&mut self, [parent, child]: [&str; 2], milliseconds: Option<i64>, to: Isometry3<f64>) {
            self.take(SensorMessage::transform(parent, child, milliseconds.map(at), to));
        }

        fn finish(&mut self) {
            self.intake.finish(&mut |input| self.out.push(input));
        }

        fn rejected(&self, rejection: Rejection) -> u64 {
            self.intake.status.rejections.of(rejection)
        }

        fn poses(&self) -> Vec<[f64; 2]> {
            let pose = |input: &Input| match input {
                Input::Measurement(Measurement::Pose(pose)) => Some([pose.position.x, pose.position.y]),
                _ => None,
            };
            self.out.iter().filter_map(pose).collect()
        }

        fn readings(&self) -> usize {
            let is_reading = |input: &&Input| matches!(input, Input::Measurement(Measurement::Reading(_)));
            self.out.iter().filter(is_reading).count()
        }

        fn mounts(&self) -> Vec<Isometry3<f64>> {
            let mount = |input: &Input| match input {
                Input::Mount(mount) => Some(*mount),
                _ => None,
            };
            self.out.iter().filter_map(mount).collect()
        }

        /// A letter for each input: readings, poses, mounts and new stretches.
        fn order(&self) -> String {
            let letter = |input: &Input| match input {
                Input::Measurement(Measurement::Reading(_)) => 'r',
                Input::Measurement(Measurement::Pose(_)) => 'p',
                Input::Mount(_) => 'm',
                Input::Stretch => '|',
                Input::UnknownMount => '?',
            };
            self.out.iter().map(letter).collect()
        }
    }

    #[test]
    fn readings_wait_for_the_mount_of_the_sensor_and_none_is_lost() {
        let mut bench = Bench::new(|_| {});
        for step in 0..100 {
            bench.reading("imu", 20 * step);
            bench.odometry(20 * step, 0.0);
        }
        assert_eq!((bench.readings(), bench.intake.held()), (0, 100));
        let error = bench.intake.status.transform_error.clone().unwrap().to_string();
        assert_eq!(error, "frame \"imu\" has no transform to \"base_link\"");
        bench.transform(["base_link", "mast"], None, shift(0.1, 0.0));
        bench.transform(["mast", "imu"], None, shift(0.0, 0.2));
        assert_eq!((bench.readings(), bench.intake.held()), (100, 0));
        assert_eq!(bench.mounts(), [shift(0.1, 0.2)]);
        assert_eq!(bench.intake.status.rejections.total(), 0);
    }

    #[test]
    fn readings_that_waited_too_long_are_rejected() {
        let mut bench = Bench::new(|config| config.frames.patience = 1.0);
        for step in 0..=100 {
            bench.odometry(20 * step, 0.0);
            bench.reading("imu", 20 * step);
        }
        // At 2 s those older than a second are rejected.
        assert_eq!(bench.intake.status.rejections.of(Rejection::ReadingWithoutTransform), 50);
        assert_eq!(bench.intake.held(), 51);
        bench.finish();
        assert_eq!(bench.intake.status.rejections.readings(), 101);
    }

    /// A robot without a transform for its sensor stands for two seconds, and then drives for three at 1 m/s.
    fn without_a_mount(field: Mapped, slam: bool) -> Bench {
        let mut bench = Bench::new(|config| {
            (config.frames.patience, config.model.field, config.slam.enabled) = (1.0, field, slam);
        });
        for step in 0..250_u32 {
            bench.odometry(20 * i64::from(step), (0.02 * f64::from(step) - 2.0).max(0.0));
            bench.reading("imu", 20 * i64::from(step));
        }
        bench
    }

    #[test]
    fn strengths_are_read_without_a_mount_once_the_robot_has_moved_and_waited_for_it() {
        for field in [Mapped::Auto, Mapped::Strength] {
            let mut bench = without_a_mount(field, false);
            // It has moved by more than half a metre from step 126 on.
            assert_eq!((bench.readings(), bench.rejected(Rejection::ReadingWithoutTransform)), (124, 126), "{field:?}");
            let order = bench.order();
            // What had waited for a second came at once, then every reading as it arrived.
            assert!(order.trim_start_matches('p').starts_with(&format!("?{}p", "r".repeat(52))), "{order}");
            assert_eq!((order.matches('?').count(), bench.intake.held()), (1, 0), "{order}");
            // A transform that comes later holds from then on.
            bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
            bench.reading("imu", 5000);
            assert!(bench.order().ends_with("mr") && bench.mounts() == [shift(0.1, 0.0)], "{}", bench.order());
            // Then a reading in another frame is not one of this sensor.
            let used = bench.readings();
            bench.reading("camera", 5020);
            (0..100).for_each(|step| bench.reading("imu", 5040 + 20 * step));
            assert_eq!((bench.readings(), bench.order().matches('?').count()), (used + 100, 1));
        }
    }

    #[test]
    fn the_axes_are_never_read_without_a_mount() {
        for (field, slam) in [(Mapped::Vector, false), (Mapped::Auto, true)] {
            let bench = without_a_mount(field, slam);
            // Those of the last second still wait.
            let rejected = bench.rejected(Rejection::ReadingWithoutTransform);
            assert_eq!((bench.readings(), rejected, bench.intake.held()), (0, 199, 51));
        }
    }

    #[test]
    fn a_robot_that_has_not_moved_waits_for_its_mount() {
        let mut bench = Bench::new(|config| config.frames.patience = 1.0);
        for step in 0..500 {
            bench.odometry(20 * step, 0.0);
            bench.reading("imu", 20 * step);
        }
        bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
        assert_eq!((bench.readings(), bench.order().contains('?')), (51, false));
    }

    #[test]
    fn a_sensor_in_the_frame_of_the_body_or_with_a_given_mount_needs_no_transform() {
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
    fn a_sensor_on_a_moving_arm_has_the_mount_at_its_stamp() {
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
    fn poses_are_transformed_into_the_frame_of_the_map() {
        let mut bench = Bench::new(|config| config.frames.map = "map".into());
        bench.odometry(0, 1.0);
        assert_eq!(bench.poses().len(), 0);
        bench.transform(["map", "odom"], Some(0), shift(0.0, 5.0));
        bench.transform(["map", "odom"], Some(100), shift(0.0, 6.0));
        bench.odometry(50, 2.0);
        assert_eq!(bench.poses(), [[1.0, 5.0], [2.0, 5.5]]);
    }

    #[test]
    fn with_poses_from_transforms_every_reading_has_its_pose() {
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
    fn a_correction_by_slam_is_a_jump_but_motion_of_the_robot_is_not() {
        let mut bench = Bench::new(|config| config.frames.map = "map".into());
        for step in 0..5 {
            bench.transform(["odom", "base_link"], Some(100 * step), shift(step as f64, 0.0));
            bench.transform(["map", "odom"], Some(100 * step), shift(0.01 * step as f64, 0.0));
        }
        assert_eq!(bench.intake.status.map_jumps, 0);
        bench.transform(["map", "odom"], Some(500), shift(0.34, 0.0));
        assert_eq!(bench.intake.status.map_jumps, 1);
    }

    #[test]
    fn what_waits_for_a_transform_is_rejected_when_the_clock_goes_back() {
        let mut bench = Bench::new(|_| {});
        (0..10).for_each(|step| bench.odometry(100_000 + 20 * step, 0.0));
        (0..10).for_each(|step| bench.reading("imu", 100_000 + 20 * step));
        (0..10).for_each(|step| bench.odometry(20 * step, 0.0));
        (0..10).for_each(|step| bench.reading("imu", 20 * step));
        bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
        assert_eq!((bench.order().as_str(), bench.intake.held()), ("pppppppppp|ppppppppppmrrrrrrrrrr", 0));
        assert_eq!(bench.rejected(Rejection::ReadingWithoutTransform), 10);
    }

    #[test]
    fn a_loop_is_split_between_laps_whichever_topic_is_first_and_nothing_is_lost() {
        for lead in [0, 3, 8] {
            for poses_first in [false, true] {
                let mut bench = Bench::new(|_| {});
                let laps = || (0..2).flat_map(|_| (0..50).map(|step| 20 * step + 7_000));
                let lap = |bench: &mut Bench, is_pose: bool, milliseconds: i64| match is_pose {
                    true => bench.odometry(4 * (milliseconds - 7_000), 0.0),
                    false => bench.reading("base_link", 4 * (milliseconds - 7_000)),
                };
                laps().take(lead).for_each(|stamp| lap(&mut bench, poses_first, stamp));
                for (first, second) in laps().skip(lead).map(Some).chain(std::iter::repeat(None)).zip(laps()) {
                    first.into_iter().for_each(|stamp| lap(&mut bench, poses_first, stamp));
                    lap(&mut bench, !poses_first, second);
                }
                bench.finish();
                let order = bench.order();
                let stretches: Vec<&str> = order.split('|').collect();
                assert_eq!(stretches.len(), 2, "{order}");
                for stretch in stretches {
                    let count = |letter| stretch.chars().filter(|found| *found == letter).count();
                    assert_eq!((count('r'), count('p')), (50, 50), "{lead} {poses_first}: {order}");
                }
                assert_eq!(bench.intake.status.rejections.total(), 0);
            }
        }
    }

    #[test]
    fn stamps_that_are_wrong_for_a_moment_begin_no_stretch() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(0, 0.0);
        // One far ahead, four far behind, one that is merely late, and a clock that stands still far behind.
        for milliseconds in [9_000, 9_000_000, 9_020, 10, 20, 30, 40, 8_500, 9_040].into_iter().chain([0; 100]) {
            bench.reading("base_link", milliseconds);
        }
        bench.reading("base_link", 9_060);
        assert_eq!(bench.order().matches('|').count(), 0, "{}", bench.order());
        assert_eq!((bench.rejected(Rejection::ReadingStampAhead), bench.readings()), (1, 109));
    }

    #[test]
    fn a_topic_that_does_not_follow_is_waited_for_as_long_as_for_a_transform() {
        let mut bench = Bench::new(|config| config.frames.patience = 2.0);
        bench.odometry(100_000, 0.0);
        (0..10).for_each(|step| bench.reading("base_link", 100_000 + 20 * step));
        (0..=100).for_each(|step| bench.reading("base_link", 20 * step));
        assert_eq!((bench.readings(), bench.intake.held()), (10, 101));
        bench.reading("base_link", 2_020);
        assert_eq!((bench.readings(), bench.intake.held()), (112, 0));
        // Odometry may begin anew at any time then.
        (0..10).for_each(|step| bench.odometry(2_000 + 20 * step, 0.0));
        assert_eq!((bench.poses().len(), bench.order().matches('|').count()), (11, 1));
    }

    #[test]
    fn paused_readings_are_counted_and_poses_still_pass() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(0, 0.0);
        bench.intake.paused = true;
        bench.reading("base_link", 10);
        bench.odometry(20, 1.0);
        bench.intake.paused = false;
        bench.reading("base_link", 30);
        assert_eq!((bench.readings(), bench.poses().len()), (1, 2));
        assert_eq!(bench.intake.status.paused_readings, 1);
    }
}
