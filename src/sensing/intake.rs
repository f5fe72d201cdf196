//! From what a live robot sends, in frames of its own, to measurements in the frame of the map.
//!
//! ```text
//! readings  ── wait until the sensor's mount is known ────┐
//! odometry  ── wait until its frame is known in the map ──┼── mount, measurements
//! transforms ── frame tree ───────────────────────────────┘
//! ```
//!
//! Measurements wait for missing transforms in the order of their topic, for at most `frames.patience`.

use std::collections::VecDeque;
use std::sync::Arc;

use nalgebra::Isometry3;

use crate::config::{Config, Frames, PoseSource};
use crate::sensing::frames::{FrameTree, Missing, TransformError, normalized};
use crate::sensing::gates::LATENESS;
use crate::sensing::reading::{Measurement, Pose, Reading, Stamp};
use crate::sensing::rejection::{Rejection, Rejections};
use crate::sensing::timing::TopicTiming;

/// What the intake passes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntakeOutput {
    /// The mount of the sensor for the readings that follow: the transform from its frame to that of the poses.
    Mount(Isometry3<f64>),
    /// A reading, or a pose in the frame of the map.
    Measurement(Measurement),
}

/// What arrived, and what was not passed on.
#[derive(Clone, Debug, Default)]
pub struct IntakeStatus {
    /// Readings received.
    pub readings: u64,
    /// Odometry messages received.
    pub odometry: u64,
    /// Readings and poses rejected because a transform was missing.
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

/// A jump of the odometry's frame in the map's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapJump {
    /// Its distance, in metres.
    pub distance: f64,
    /// Its angle, in radians.
    pub angle: f64,
}

/// Brings measurements into the frame of the map.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    settings: Frames,
    capacity: usize,
    /// The sensor's mount, where it comes from the settings.
    given_mount: Option<Isometry3<f64>>,
    tree: FrameTree,
    /// The frame of the map, once it is known.
    map: Option<String>,
    /// The child frame of odometry.
    body: Option<String>,
    /// The mount that was passed on last.
    mount: Option<Isometry3<f64>>,
    /// Readings that wait for a transform, in order, each with its frame.
    readings: VecDeque<(String, Reading)>,
    /// The same of poses.
    poses: VecDeque<(String, Pose)>,
    /// Stamp of the last pose made from transforms.
    last_pose: Option<Stamp>,
    /// Whether readings are ignored. Poses always pass, so that mapping resumes where the robot is then.
    pub paused: bool,
    /// The frame of the last reading; empty before the first.
    pub sensor_frame: Arc<str>,
    /// What arrived so far.
    pub status: IntakeStatus,
}

impl Intake {
    /// An intake that has received nothing yet.
    pub fn new(config: &Config) -> Self {
        let map = normalized(&config.frames.map);
        Self {
            settings: config.frames.clone(),
            capacity: config.synchronizer.max_waiting,
            given_mount: config.sensor.override_transforms.then(|| config.sensor.mount()),
            map: (!map.is_empty()).then(|| String::from(map)),
            ..Self::default()
        }
    }

    /// Sets the frame of the map, unless it is known already.
    pub fn name_map(&mut self, frame: &str) {
        self.map.get_or_insert_with(|| String::from(normalized(frame)));
    }

    /// The longest gaps between the stamps of readings and of odometry since the last call, in seconds.
    pub fn take_longest_gaps(&mut self) -> [f64; 2] {
        let IntakeStatus { reading_timing, odometry_timing, .. } = &mut self.status;
        [reading_timing.take_longest_gap(), odometry_timing.take_longest_gap()]
    }

    /// How many measurements wait for a transform.
    pub fn held(&self) -> usize {
        self.readings.len() + self.poses.len()
    }

    /// Takes a reading of the sensor whose frame is `frame`.
    pub fn reading(&mut self, frame: &str, reading: Reading, sink: &mut impl FnMut(IntakeOutput)) {
        self.status.readings += 1;
        self.status.last_strength = Some(reading.field.strength());
        let last = self.status.reading_timing.last;
        self.status.reading_timing.push(reading.stamp);
        if self.paused {
            self.status.paused_readings += 1;
            return;
        }
        if went_back(last, reading.stamp) {
            self.reject_readings();
        }
        let frame = normalized(frame);
        if *self.sensor_frame != *frame {
            self.sensor_frame = Arc::from(frame);
        }
        self.readings.push_back((frame.to_owned(), reading));
        self.release(sink);
    }

    /// Takes a pose of the body `child` in `frame`.
    pub fn odometry(&mut self, frame: &str, child: &str, pose: Pose, sink: &mut impl FnMut(IntakeOutput)) {
        self.status.odometry += 1;
        let last = self.status.odometry_timing.last;
        self.status.odometry_timing.push(pose.stamp);
        if self.settings.pose_source == PoseSource::Transforms {
            return;
        }
        if went_back(last, pose.stamp) {
            self.reject_poses();
        }
        let (frame, child) = (normalized(frame), normalized(child));
        self.name_map(frame);
        if self.body.as_deref() != Some(child) {
            self.body = Some(String::from(child));
        }
        self.poses.push_back((frame.to_owned(), pose));
        self.release(sink);
    }

    /// Takes a transform from `child` to `parent` coordinates; without a stamp it is valid at all times. Returns the jump, where it
    /// moves the odometry's frame in the map's.
    pub fn transform(
        &mut self,
        parent: &str,
        child: &str,
        stamp: Option<Stamp>,
        transform: Isometry3<f64>,
        sink: &mut impl FnMut(IntakeOutput),
    ) -> Option<MapJump> {
        let jump = self.jump(parent, child, &transform);
        self.status.map_jumps += u64::from(jump.is_some());
        let is_accepted = match stamp {
            Some(stamp) => self.tree.insert_moving(parent, child, stamp, transform),
            None => self.tree.insert_fixed(parent, child, transform),
        };
        self.status.rejected_transforms += u64::from(!is_accepted);
        self.release(sink);
        jump
    }

    /// A frame in the map with a moving child is that of odometry; it jumps when SLAM corrects it.
    fn jump(&self, parent: &str, child: &str, transform: &Isometry3<f64>) -> Option<MapJump> {
        let is_in_map = self.map.as_deref() == Some(normalized(parent));
        let before = self.tree.newest(parent, child).filter(|_| is_in_map && self.tree.has_moving_child(child))?;
        let step = before.inverse() * transform;
        let jump = MapJump { distance: step.translation.vector.norm(), angle: step.rotation.angle() };
        (jump.distance > self.settings.jump_distance || jump.angle > self.settings.jump_angle).then_some(jump)
    }

    /// Rejects everything that waits, at the end of the stream.
    pub fn finish(&mut self) {
        self.reject_readings();
        self.reject_poses();
    }

    /// Passes on measurements whose transforms are known, and rejects those that waited too long.
    fn release(&mut self, sink: &mut impl FnMut(IntakeOutput)) {
        while let Some((frame, pose)) = self.poses.front() {
            let placed = self.pose_in_map(frame, pose);
            if self.must_wait(&placed, pose.stamp, self.poses.len(), Rejection::PoseWithoutTransform) {
                break;
            }
            self.poses.pop_front();
            placed.into_iter().for_each(|pose| sink(IntakeOutput::Measurement(Measurement::Pose(pose))));
        }
        while let Some(&(ref frame, reading)) = self.readings.front() {
            let placed = self.mount_and_pose(frame, &reading);
            if self.must_wait(&placed, reading.stamp, self.readings.len(), Rejection::ReadingWithoutTransform) {
                break;
            }
            self.readings.pop_front();
            if let Ok((mount, pose)) = placed {
                self.pass_on(reading, mount, pose, sink);
            }
        }
    }

    fn reject_readings(&mut self) {
        self.readings.drain(..).for_each(|_| self.status.rejections.count(Rejection::ReadingWithoutTransform));
    }

    fn reject_poses(&mut self) {
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
        let newest = self.status.reading_timing.last.max(self.status.odometry_timing.last);
        let age = newest.map_or(0.0, |newest| newest.seconds_since(stamp));
        let is_past = matches!(error.missing, Missing::Older(_));
        let may_arrive = !is_past && age <= self.settings.patience && waiting <= self.capacity;
        self.status.transform_error = Some(error.clone());
        if !may_arrive {
            self.status.rejections.count(rejection);
        }
        may_arrive
    }

    fn pass_on(
        &mut self,
        reading: Reading,
        mount: Isometry3<f64>,
        pose: Option<Pose>,
        sink: &mut impl FnMut(IntakeOutput),
    ) {
        if self.mount.replace(mount) != Some(mount) {
            sink(IntakeOutput::Mount(mount));
        }
        // Several readings may share a stamp; poses may not.
        if let Some(pose) = pose.filter(|pose| self.last_pose != Some(pose.stamp)) {
            self.last_pose = Some(pose.stamp);
            sink(IntakeOutput::Measurement(Measurement::Pose(pose)));
        }
        sink(IntakeOutput::Measurement(Measurement::Reading(reading)));
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
    fn mount_and_pose(&self, frame: &str, reading: &Reading) -> Result<(Isometry3<f64>, Option<Pose>), TransformError> {
        let stamp = reading.stamp;
        let not_connected =
            |to: &str| TransformError { from: frame.to_owned(), to: to.to_owned(), missing: Missing::Link };
        match (self.settings.pose_source, self.given_mount) {
            (PoseSource::Odometry, Some(mount)) => Ok((mount, None)),
            (PoseSource::Odometry, None) => {
                let body = self.body.as_deref();
                let body = body.ok_or_else(|| not_connected("the robot's body, which odometry has yet to name"))?;
                Ok((self.tree.transform(frame, body, stamp)?, None))
            }
            (PoseSource::Transforms, given_mount) => {
                let map = self.map.as_deref();
                let map = map.ok_or_else(|| not_connected("the map, whose frame frames.map has to name"))?;
                let sensor = self.tree.transform(frame, map, stamp)?;
                let pose = Pose { stamp, position: sensor.translation.vector.into(), orientation: sensor.rotation };
                Ok((given_mount.unwrap_or_default(), Some(pose)))
            }
        }
    }
}

/// Whether the clock of a topic went back: measurements from before cannot be placed any more.
fn went_back(last: Option<Stamp>, stamp: Stamp) -> bool {
    last.is_some_and(|last| last.seconds_since(stamp) > LATENESS)
}

#[cfg(test)]
mod tests {
    use nalgebra::Translation3;

    use super::*;
    use crate::sensing::samples::{at, pose, reading};

    fn shift(x: f64, y: f64) -> Isometry3<f64> {
        Translation3::new(x, y, 0.0).into()
    }

    /// An intake, and what it passed on.
    struct Bench {
        intake: Intake,
        out: Vec<IntakeOutput>,
    }

    impl Bench {
        fn new(change: impl FnOnce(&mut Config)) -> Self {
            let mut config = Config::default();
            change(&mut config);
            Self { intake: Intake::new(&config), out: Vec::new() }
        }

        fn reading(&mut self, frame: &str, milliseconds: i64) {
            self.intake.reading(frame, reading(milliseconds, 50.0), &mut |output| self.out.push(output));
        }

        fn odometry(&mut self, milliseconds: i64, x: f64) {
            self.intake.odometry("odom", "base_link", pose(milliseconds, x), &mut |output| self.out.push(output));
        }

        fn transform(
            &mut self,
            [parent, child]: [&str; 2],
            milliseconds: Option<i64>,
            to: Isometry3<f64>,
        ) -> Option<MapJump> {
            self.intake.transform(parent, child, milliseconds.map(at), to, &mut |output| self.out.push(output))
        }

        fn poses(&self) -> Vec<[f64; 2]> {
            let pose = |output: &IntakeOutput| match output {
                IntakeOutput::Measurement(Measurement::Pose(pose)) => Some([pose.position.x, pose.position.y]),
                _ => None,
            };
            self.out.iter().filter_map(pose).collect()
        }

        fn readings(&self) -> usize {
            let is_reading =
                |output: &&IntakeOutput| matches!(output, IntakeOutput::Measurement(Measurement::Reading(_)));
            self.out.iter().filter(is_reading).count()
        }

        fn mounts(&self) -> Vec<Isometry3<f64>> {
            let mount = |output: &IntakeOutput| match output {
                IntakeOutput::Mount(mount) => Some(*mount),
                IntakeOutput::Measurement(_) => None,
            };
            self.out.iter().filter_map(mount).collect()
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
        bench.intake.finish();
        assert_eq!(bench.intake.status.rejections.readings(), 101);
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
            assert_eq!(bench.transform(["odom", "base_link"], Some(100 * step), shift(step as f64, 0.0)), None);
            assert_eq!(bench.transform(["map", "odom"], Some(100 * step), shift(0.01 * step as f64, 0.0)), None);
        }
        let jump = bench.transform(["map", "odom"], Some(500), shift(0.34, 0.0)).unwrap();
        assert!((jump.distance - 0.3).abs() < 1e-12, "{jump:?}");
        assert_eq!(bench.intake.status.map_jumps, 1);
    }

    #[test]
    fn waiting_readings_are_rejected_when_the_clock_goes_back() {
        let mut bench = Bench::new(|_| {});
        bench.odometry(100_000, 0.0);
        bench.reading("imu", 100_000);
        bench.odometry(0, 0.0);
        bench.reading("imu", 0);
        bench.transform(["base_link", "imu"], None, shift(0.1, 0.0));
        assert_eq!((bench.readings(), bench.intake.held()), (1, 0));
        assert_eq!(bench.intake.status.rejections.of(Rejection::ReadingWithoutTransform), 1);
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
