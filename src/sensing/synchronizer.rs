//! The place of each reading: poses interpolated at its stamp.

use std::collections::VecDeque;

use nalgebra::{Isometry3, Point3};
use serde::{Deserialize, Serialize};

use crate::config;
use crate::sensing::gates::Continuity;
use crate::sensing::pose_history::PoseHistory;
use crate::sensing::reading::{LocatedReading, MagneticField, Pose, Reading};
use crate::sensing::rejection::Rejection;

/// Initial capacity; it grows up to its bound when poses lag that far.
const RESERVED: usize = 16_384;

/// Locates readings. Poses are interpolated at a reading's stamp (position linearly, orientation along the shortest arc), then the
/// sensor's mount is applied; a pose with exactly that stamp is used as it is.
///
/// A reading waits for the first pose at or after its stamp. Which pair of poses it falls between depends on the two streams alone,
/// so the result does not depend on how they interleave, as long as neither runs ahead of the other by more than the queues hold
/// (`max_waiting` each): only [`Rejection::WaitingQueueFull`] and [`Rejection::PoseForgotten`] depend on that.
///
/// Expects what passed the gates: readings with non-decreasing stamps and poses with increasing stamps. Where the clock goes back, a new
/// stretch begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Synchronizer {
    /// The sensor's mount for future readings; waiting ones keep the mount that they arrived with. A sensor whose mount is unknown is taken
    /// to be at the origin of the robot's body.
    pub mount: Option<Isometry3<f64>>,
    #[serde(skip)]
    capacity: usize,
    readings: VecDeque<Waiting>,
    poses: PoseHistory,
}

/// A reading waiting for its pose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    reading: Reading,
    /// The field before calibration.
    sent: MagneticField,
    /// The sensor's mount when it arrived, if it was known.
    mount: Option<Isometry3<f64>>,
}

/// A located reading, and what the sensor sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacedReading {
    /// The reading.
    pub located: LocatedReading,
    /// The field along the sensor's axes, before calibration.
    pub sent: MagneticField,
}

impl Synchronizer {
    /// A synchronizer for a sensor at `mount` (the transform from the sensor's frame to the robot's body frame).
    pub fn new(settings: &config::Synchronizer, mount: Isometry3<f64>) -> Self {
        let capacity = settings.max_waiting.max(2);
        Self {
            mount: Some(mount),
            capacity,
            readings: VecDeque::with_capacity(capacity.min(RESERVED)),
            poses: PoseHistory::new(settings),
        }
    }

    /// Continues with other settings.
    pub fn configure(&mut self, settings: &config::Synchronizer) {
        self.capacity = settings.max_waiting.max(2);
        self.poses.configure(settings);
    }

    /// Whether a state from a file is possible.
    pub(crate) fn is_valid(&self) -> bool {
        self.poses.is_valid()
    }

    /// The number of readings waiting for their pose.
    pub fn waiting(&self) -> usize {
        self.readings.len()
    }

    /// Takes the next reading, whose field was `sent` before calibration, and passes to `sink` all readings that are decided now, in
    /// order.
    pub fn push_reading(
        &mut self,
        reading: Reading,
        sent: MagneticField,
        mut sink: impl FnMut(Result<PlacedReading, Rejection>),
    ) {
        if self.readings.len() >= self.capacity {
            self.readings.pop_front();
            sink(Err(Rejection::WaitingQueueFull));
        }
        self.readings.push_back(Waiting { reading, sent, mount: self.mount });
        self.decide(sink);
    }

    /// Takes the next pose and passes to `sink` all readings that are decided now, in order.
    pub fn push_pose(
        &mut self,
        pose: Pose,
        continuity: Continuity,
        sink: impl FnMut(Result<PlacedReading, Rejection>),
    ) {
        self.poses.push(pose, continuity);
        self.decide(sink);
    }

    /// Ends both streams: readings still waiting for a later pose are rejected, and poses forgotten.
    pub fn finish(&mut self, mut sink: impl FnMut(Result<PlacedReading, Rejection>)) {
        for _ in self.readings.drain(..) {
            sink(Err(Rejection::NoLaterPose));
        }
        self.poses.clear();
    }

    /// Locates or rejects every reading that need not wait any longer.
    fn decide(&mut self, mut sink: impl FnMut(Result<PlacedReading, Rejection>)) {
        let Some(newest) = self.poses.newest() else { return };
        while let Some(&waiting) = self.readings.front().filter(|waiting| waiting.reading.stamp <= newest) {
            self.readings.pop_front();
            sink(self.poses.body_at(waiting.reading.stamp).map(|body| waiting.located(body)));
        }
    }
}

impl Waiting {
    fn located(&self, body: Isometry3<f64>) -> PlacedReading {
        let Self { reading, sent, mount } = *self;
        let sensor = body * mount.unwrap_or_default();
        let position = Point3::from(sensor.translation.vector);
        let located = LocatedReading {
            stamp: reading.stamp,
            position,
            orientation: sensor.rotation,
            field: reading.field.rotated(&sensor.rotation),
        };
        PlacedReading { located, sent }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_PI_2;

    use nalgebra::{Translation3, UnitQuaternion, Vector3};
    use proptest::prelude::*;

    use super::*;
    use crate::sensing::gates::{PoseGate, ReadingGate};
    use crate::sensing::reading::Measurement;
    use crate::sensing::samples::{self, field};

    type Outcome = Result<LocatedReading, Rejection>;

    fn reading(milliseconds: i64) -> Reading {
        samples::reading(milliseconds, 50.0)
    }

    fn pose(milliseconds: i64, x: f64, yaw: f64) -> Pose {
        Pose { orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, yaw), ..samples::pose(milliseconds, x) }
    }

    fn synchronizer() -> Synchronizer {
        Synchronizer::new(&config::Synchronizer::default(), Isometry3::identity())
    }

    fn push_reading(synchronizer: &mut Synchronizer, reading: Reading, outcomes: &mut Vec<Outcome>) {
        synchronizer.push_reading(reading, reading.field, |outcome| outcomes.push(located(outcome)));
    }

    fn push_pose(synchronizer: &mut Synchronizer, pose: Pose, continuity: Continuity, outcomes: &mut Vec<Outcome>) {
        synchronizer.push_pose(pose, continuity, |outcome| outcomes.push(located(outcome)));
    }

    /// Runs measurements through a synchronizer to the end of the stream.
    fn run(mut synchronizer: Synchronizer, measurements: &[Measurement]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for measurement in measurements {
            match *measurement {
                Measurement::Reading(reading) => push_reading(&mut synchronizer, reading, &mut outcomes),
                Measurement::Pose(pose) => push_pose(&mut synchronizer, pose, Continuity::Continues, &mut outcomes),
            }
        }
        synchronizer.finish(|outcome| outcomes.push(located(outcome)));
        outcomes
    }

    fn axes(located: &LocatedReading) -> &Vector3<f64> {
        located.field.microtesla()
    }

    fn located(outcome: Result<PlacedReading, Rejection>) -> Outcome {
        outcome.map(|placed| placed.located)
    }

    #[test]
    fn position_is_interpolated_linearly_orientation_along_the_arc_and_the_mount_applied_last() {
        // A sensor half a metre ahead of the robot, turned by a quarter about z.
        let mount = Isometry3::from_parts(
            Translation3::new(0.5, 0.0, 0.2),
            UnitQuaternion::from_euler_angles(0.0, 0.0, FRAC_PI_2),
        );
        let measurements = [
            Measurement::Pose(pose(0, 1.0, 0.0)),
            Measurement::Reading(reading(25)),
            Measurement::Pose(pose(100, 3.0, FRAC_PI_2)),
        ];
        let synchronizer = Synchronizer::new(&config::Synchronizer::default(), mount);
        let located = run(synchronizer, &measurements)[0].unwrap();
        let yaw = FRAC_PI_2 / 4.0;
        let expected = Point3::new(1.5 + 0.5 * yaw.cos(), 0.5 * yaw.sin(), 0.2);
        assert!((located.position - expected).norm() < 1e-12, "{located:?}");
        let turned = yaw + FRAC_PI_2;
        let field = 50.0 * Vector3::new(turned.cos(), turned.sin(), 0.0);
        assert!((axes(&located) - field).norm() < 1e-12, "{located:?}");
    }

    #[test]
    fn a_new_mount_applies_to_future_readings_but_not_to_waiting_ones() {
        let quarter = UnitQuaternion::from_euler_angles(0.0, 0.0, FRAC_PI_2);
        let mounts = [Isometry3::identity(), Isometry3::from_parts(Translation3::new(0.5, 0.0, 0.0), quarter)];
        let mut synchronizer = Synchronizer::new(&config::Synchronizer::default(), mounts[0]);
        let mut outcomes = Vec::new();
        synchronizer.push_pose(pose(0, 1.0, 0.0), Continuity::Continues, |_| unreachable!());
        synchronizer.push_reading(reading(50), field(1.0), |_| unreachable!());
        synchronizer.mount = Some(mounts[1]);
        synchronizer.push_reading(reading(60), field(2.0), |_| unreachable!());
        synchronizer.push_pose(pose(100, 1.0, 0.0), Continuity::Continues, |outcome| outcomes.push(outcome.unwrap()));
        synchronizer.push_reading(reading(100), field(3.0), |outcome| outcomes.push(outcome.unwrap()));
        // What the sensor sent stays along its own axes.
        let sent: Vec<MagneticField> = outcomes.iter().map(|placed| placed.sent).collect();
        assert_eq!(sent, [1.0, 2.0, 3.0].map(field));
        let outcomes: Vec<LocatedReading> = outcomes.iter().map(|placed| placed.located).collect();
        let [waited, then, now] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!((waited.position.x, *axes(waited)), (1.0, Vector3::new(50.0, 0.0, 0.0)));
        for located in [then, now] {
            assert_eq!(located.position.x, 1.5);
            assert!((axes(located) - Vector3::new(0.0, 50.0, 0.0)).norm() < 1e-12, "{located:?}");
        }
    }

    #[test]
    fn opposite_and_equal_orientations_do_not_break_the_arc() {
        for (from, to) in [(0.0, std::f64::consts::PI), (0.3, 0.3), (0.3, 0.3 + 1e-12), (3.0, -3.0)] {
            let located = run(
                synchronizer(),
                &[
                    Measurement::Pose(pose(0, 0.0, from)),
                    Measurement::Pose(pose(100, 0.0, to)),
                    Measurement::Reading(reading(50)),
                ],
            )[0]
            .unwrap();
            assert!((axes(&located).norm() - 50.0).abs() < 1e-9, "from {from} to {to}: {located:?}");
        }
        // Across the seam of the angle: from 3 to -3 the shortest arc passes through pi.
        let located = run(
            synchronizer(),
            &[
                Measurement::Pose(pose(0, 0.0, 3.0)),
                Measurement::Pose(pose(100, 0.0, -3.0)),
                Measurement::Reading(reading(50)),
            ],
        )[0]
        .unwrap();
        assert!((axes(&located).x + 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_pose_with_exactly_the_stamp_is_used_as_it_is_even_at_the_ends_and_beside_gaps() {
        let outcomes = run(
            synchronizer(),
            &[
                Measurement::Reading(reading(0)),
                Measurement::Reading(reading(0)),
                Measurement::Pose(pose(0, 0.1, 0.3)),
                Measurement::Pose(pose(5000, 0.7, 0.0)),
                Measurement::Reading(reading(5000)),
            ],
        );
        let positions: Vec<f64> = outcomes.iter().map(|outcome| outcome.unwrap().position.x).collect();
        assert_eq!(positions, [0.1, 0.1, 0.7]);
    }

    #[test]
    fn readings_outside_the_poses_and_inside_gaps_are_rejected() {
        let outcomes = run(
            synchronizer(),
            &[
                Measurement::Reading(reading(-10)),
                Measurement::Pose(pose(0, 0.0, 0.0)),
                Measurement::Pose(pose(500, 0.0, 0.0)),
                Measurement::Pose(pose(1001, 0.0, 0.0)),
                Measurement::Reading(reading(250)),
                Measurement::Reading(reading(750)),
                Measurement::Reading(reading(1002)),
            ],
        );
        // A gap of max_gap is allowed, a millisecond more is not.
        assert_eq!(outcomes[0], Err(Rejection::BeforeFirstPose));
        assert!(outcomes[1].is_ok());
        assert_eq!(outcomes[2], Err(Rejection::PoseGap));
        assert_eq!(outcomes[3], Err(Rejection::NoLaterPose));
        assert_eq!(outcomes.len(), 4);
    }

    #[test]
    fn a_reading_is_not_interpolated_across_a_jump() {
        let (mut synchronizer, mut outcomes) = (synchronizer(), Vec::new());
        push_pose(&mut synchronizer, pose(0, 0.0, 0.0), Continuity::Continues, &mut outcomes);
        push_reading(&mut synchronizer, reading(50), &mut outcomes);
        push_pose(&mut synchronizer, pose(100, 9.0, 0.0), Continuity::Restarts, &mut outcomes);
        push_reading(&mut synchronizer, reading(100), &mut outcomes);
        assert_eq!(outcomes[0], Err(Rejection::AcrossPoseJump));
        assert_eq!(outcomes[1].unwrap().position.x, 9.0);
    }

    #[test]
    fn full_queues_reject_the_oldest() {
        let settings = config::Synchronizer { max_waiting: 3, ..Default::default() };
        let mut measurements: Vec<_> = (0..5).map(|index| Measurement::Reading(reading(index))).collect();
        measurements.extend((0..=10).map(|index| Measurement::Pose(pose(index, index as f64, 0.0))));
        // Of the poses only 8, 9 and 10 are left.
        measurements.extend([Measurement::Reading(reading(7)), Measurement::Reading(reading(9))]);
        let outcomes = run(Synchronizer::new(&settings, Isometry3::identity()), &measurements);
        assert_eq!(outcomes[..2], [Err(Rejection::WaitingQueueFull); 2]);
        let positions: Vec<f64> = outcomes[2..5].iter().map(|outcome| outcome.unwrap().position.x).collect();
        assert_eq!(positions, [2.0, 3.0, 4.0]);
        assert_eq!(outcomes[5], Err(Rejection::PoseForgotten));
        assert_eq!(outcomes[6].unwrap().position.x, 9.0);
    }

    #[test]
    fn memory_stays_bounded_when_only_one_topic_arrives() {
        let settings = config::Synchronizer { max_waiting: 100, ..Default::default() };
        let mut synchronizer = Synchronizer::new(&settings, Isometry3::identity());
        for index in 0..10_000 {
            synchronizer.push_pose(pose(index, 0.0, 0.0), Continuity::Continues, |_| unreachable!());
        }
        let mut rejected = 0;
        for index in 0..10_000 {
            let reading = reading(20_000 + index);
            synchronizer.push_reading(reading, reading.field, |outcome| {
                assert_eq!(outcome, Err(Rejection::WaitingQueueFull));
                rejected += 1;
            });
        }
        assert_eq!((synchronizer.waiting(), rejected), (100, 9_900));
    }

    /// Through the gates of each topic, as in the pipeline.
    fn run_gated(measurements: &[Measurement]) -> (Vec<Outcome>, Vec<Rejection>) {
        let gates = config::Gates::default();
        let (mut reading_gate, mut pose_gate) = (ReadingGate::default(), PoseGate::default());
        let mut synchronizer = synchronizer();
        let (mut outcomes, mut rejected) = (Vec::new(), Vec::new());
        for measurement in measurements {
            let passed = match *measurement {
                Measurement::Reading(reading) => reading_gate
                    .check(&gates, &reading)
                    .map(|()| push_reading(&mut synchronizer, reading, &mut outcomes)),
                Measurement::Pose(pose) => pose_gate
                    .check(&gates, &pose)
                    .map(|continuity| push_pose(&mut synchronizer, pose, continuity, &mut outcomes)),
            };
            rejected.extend(passed.err().map(|rejection| rejection.reason));
        }
        synchronizer.finish(|outcome| outcomes.push(located(outcome)));
        rejected.sort_by_key(|rejection| *rejection as usize);
        (outcomes, rejected)
    }

    /// Steps between stamps that mostly advance, sometimes repeat, go back or leave a gap.
    fn steps() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(
            prop_oneof![6 => 1..60_i64, 2 => Just(0_i64), 2 => Just(20_i64), 1 => -50..0_i64, 1 => 400..900_i64],
            0..60,
        )
    }

    fn stamps(steps: &[i64], start: i64) -> Vec<i64> {
        steps.iter().scan(start, |stamp, step| Some(std::mem::replace(stamp, *stamp + step))).collect()
    }

    /// Interleaves two streams: `picks` chooses the stream of each item.
    fn interleave(readings: &[Reading], poses: &[Pose], picks: &[bool]) -> Vec<Measurement> {
        let mut readings = readings.iter().copied().map(Measurement::Reading);
        let mut poses = poses.iter().copied().map(Measurement::Pose);
        let mut merged = Vec::new();
        for &pick in picks {
            merged.extend(if pick { readings.next() } else { poses.next() });
        }
        merged.extend(readings);
        merged.extend(poses);
        merged
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_topics_interleave(
            reading_steps in steps(),
            pose_steps in steps(),
            offset in -100..100_i64,
            jumps in prop::collection::vec(prop_oneof![8 => Just(0.0), 1 => Just(5.0)], 60),
            picks in prop::collection::vec(any::<bool>(), 0..130),
        ) {
            let readings: Vec<Reading> = stamps(&reading_steps, offset)
                .into_iter()
                .enumerate()
                .map(|(index, stamp)| {
                    let x = if index % 17 == 16 { 5000.0 } else { 40.0 + index as f64 };
                    samples::reading(stamp, x)
                })
                .collect();
            let mut x = 0.0;
            let poses: Vec<Pose> = stamps(&pose_steps, 0)
                .into_iter()
                .zip(&jumps)
                .enumerate()
                .map(|(index, (stamp, jump))| {
                    x += 0.001 + jump;
                    pose(stamp, x, 0.1 * index as f64)
                })
                .collect();
            let shuffled = run_gated(&interleave(&readings, &poses, &picks));
            let readings_first = run_gated(&interleave(&readings, &poses, &vec![true; readings.len()]));
            let poses_first = run_gated(&interleave(&readings, &poses, &vec![false; poses.len()]));
            prop_assert_eq!(&shuffled, &readings_first);
            prop_assert_eq!(&shuffled, &poses_first);
            let rejected_readings = shuffled.1.iter().filter(|rejection| rejection.concerns_reading()).count();
            prop_assert_eq!(shuffled.0.len() + rejected_readings, readings.len());
        }
    }
}
