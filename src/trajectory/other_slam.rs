//! The correction that moves odometry to the poses of another SLAM.

use std::collections::BTreeMap;

use nalgebra::Isometry2;

use super::{Correction, Node};
use crate::sensing::reading::{Observation, Pose, Stamp, in_plane};

/// Longest time between two poses of odometry across which one is interpolated, in seconds.
const MAX_GAP: f64 = 0.5;

/// Poses of odometry that differ by less than this from the last one that was kept are dropped, in metres and in radians.
const STEP: f64 = 0.002;

/// Where the robot's body was by odometry, since the clock went back last. A robot that stands still takes no memory.
#[derive(Clone, Debug, Default)]
pub struct OdometryPath {
    kept: Vec<ByOdometry>,
    /// The newest pose, which is not among those kept.
    newest: Option<ByOdometry>,
}

#[derive(Clone, Copy, Debug)]
struct ByOdometry {
    stamp: Stamp,
    pose: Isometry2<f64>,
    /// Whether odometry was known all the way from the one before.
    follows: bool,
}

impl OdometryPath {
    /// The path of these poses, in the order of their stamps.
    pub fn new(poses: &[Pose]) -> Self {
        let mut path = Self::default();
        poses.iter().for_each(|pose| path.push(pose));
        path
    }

    /// Stamp of the newest pose.
    pub fn newest(&self) -> Option<Stamp> {
        self.newest.map(|newest| newest.stamp)
    }

    /// Takes the next pose; one that is not finite, or not later than the one before, is ignored.
    pub fn push(&mut self, pose: &Pose) {
        let stamp = pose.stamp;
        let is_finite = pose.position.iter().all(|coordinate| coordinate.is_finite());
        if !is_finite || self.newest.is_some_and(|newest| newest.stamp >= stamp) {
            return;
        }
        let pose = in_plane(&pose.isometry());
        let follows = self.newest.is_some_and(|newest| stamp.seconds_since(newest.stamp) <= MAX_GAP);
        let Some(before) = self.newest.replace(ByOdometry { stamp, pose, follows }) else { return };
        let is_still = self.kept.last().is_some_and(|last| is_near(&last.pose, &pose));
        if !(follows && before.follows && is_still) {
            self.kept.push(before);
        }
    }

    /// Where the body was at a stamp, interpolated; none where that is not known.
    pub fn at(&self, stamp: Stamp) -> Option<Isometry2<f64>> {
        let next = self.kept.partition_point(|kept| kept.stamp < stamp);
        let after = self.kept.get(next).or(self.newest.as_ref()).filter(|after| after.stamp >= stamp)?;
        if after.stamp == stamp {
            return Some(after.pose);
        }
        let before = self.kept.get(next.checked_sub(1)?).filter(|_| after.follows)?;
        let fraction = stamp.seconds_since(before.stamp) / after.stamp.seconds_since(before.stamp);
        let turn = before.pose.rotation.rotation_to(&after.pose.rotation).angle();
        let place = before.pose.translation.vector.lerp(&after.pose.translation.vector, fraction);
        Some(Isometry2::new(place, before.pose.rotation.angle() + fraction * turn))
    }
}

fn is_near(one: &Isometry2<f64>, other: &Isometry2<f64>) -> bool {
    let step = one.inv_mul(other);
    step.translation.vector.norm() < STEP && step.rotation.angle().abs() < STEP
}

/// When each observation was made, which tells where a stamp is among them. Only those since the clock went back last: in that of before,
/// stamps say nothing.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Observations before the clock went back.
    pub before: usize,
    middles: Vec<Stamp>,
}

impl Timeline {
    /// The timeline of a trajectory.
    pub fn new<'a>(observations: impl IntoIterator<Item = &'a Observation>) -> Self {
        let stamps: Vec<Stamp> = observations.into_iter().map(|observation| observation.stamp).collect();
        let before = stamps.windows(2).rposition(|pair| pair[1] < pair[0]).map_or(0, |last| last + 1);
        let stamps = &stamps[before..];
        // An observation was in the middle of its readings halfway from the last one of the observation before to its own last one.
        let middle = |index: usize| {
            let last = stamps[index.saturating_sub(1)];
            last.shifted(0.5 * stamps[index].seconds_since(last))
        };
        Self { before, middles: (0..stamps.len()).map(middle).collect() }
    }

    /// The observation at a stamp; between two of them it is not a whole number, and after the last it is that of the next.
    pub fn index_at(&self, stamp: Stamp) -> f64 {
        let next = self.middles.partition_point(|other| *other < stamp);
        let around = next.checked_sub(1).and_then(|index| Some((self.middles[index], self.middles.get(next)?)));
        let within = around.map_or(next as f64, |(before, after)| {
            (next - 1) as f64 + stamp.seconds_since(before) / after.seconds_since(before)
        });
        self.before as f64 + within
    }

    /// Whether something was observed before or at this stamp, if anything was.
    fn reaches(&self, stamp: Stamp) -> bool {
        self.before == 0 || self.middles.first().is_none_or(|first| *first <= stamp)
    }
}

/// The correction that moves odometry to these poses of the body, in the order of their stamps, and how many of them it has. What `before` says
/// of earlier observations than the first of them stays, and where odometry is not known any more, it says where that was. None where
/// no pose can be placed.
pub fn correction_to(
    poses: &[Pose],
    odometry: &OdometryPath,
    timeline: &Timeline,
    before: &Correction,
) -> Option<(Correction, usize)> {
    let known: BTreeMap<Stamp, Isometry2<f64>> = before.nodes().iter().filter_map(Node::by_odometry).collect();
    let node = |pose: &Pose| {
        let by_odometry = odometry.at(pose.stamp).or_else(|| known.get(&pose.stamp).copied())?;
        Some(Node::placed(timeline.index_at(pose.stamp), pose, &by_odometry))
    };
    let mut placed: Vec<Node> = poses.iter().filter(|pose| timeline.reaches(pose.stamp)).filter_map(node).collect();
    let count = placed.len();
    let (from, first) = (poses.first()?.stamp, placed.first()?.observation);
    // Of those before the first observation, or after the last, the newest holds.
    placed.dedup_by(|next, node| {
        let is_same = next.observation <= node.observation;
        if is_same {
            *node = *next;
        }
        is_same
    });
    let is_earlier =
        |node: &&Node| node.observation < first && node.by_odometry().is_none_or(|(stamp, _)| stamp < from);
    let mut nodes: Vec<Node> = before.nodes().iter().filter(is_earlier).copied().collect();
    nodes.extend(placed);
    Some((Correction::new(nodes)?, count))
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, UnitQuaternion, Vector3};

    use super::*;
    use crate::sensing::reading::MagneticField;

    fn stamp(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(1_000_000 * milliseconds)
    }

    fn pose(milliseconds: i64, x: f64, heading: f64) -> Pose {
        let orientation = UnitQuaternion::from_euler_angles(0.0, 0.0, heading);
        Pose { stamp: stamp(milliseconds), position: Point3::new(x, 0.0, 0.3), orientation }
    }

    fn observation(milliseconds: i64) -> Observation {
        Observation {
            stamp: stamp(milliseconds),
            position: Point3::new(0.001 * milliseconds as f64, 0.0, 0.3),
            orientation: Matrix3::identity(),
            speed: 0.5,
            field: MagneticField::from_microtesla(Vector3::new(20.0, 0.0, -40.0)),
            strength: 45.0,
            readings: 3,
        }
    }

    /// A robot that drives at 1 m/s, stands for a minute, turns on the spot and drives on; then nothing for a second.
    fn drive() -> Vec<Pose> {
        let since = |start: i64, at: i64| 0.001 * (at - start) as f64;
        let place = |at: i64| match at {
            ..2_000 => (since(0, at), 0.0),
            2_000..62_000 => (2.0, 0.0),
            62_000..63_000 => (2.0, since(62_000, at)),
            63_000.. => (2.0 + since(63_000, at), 1.0),
        };
        let poses = (0..65_000).step_by(20).chain((66_000..67_000).step_by(20));
        poses.map(|at| (at, place(at))).map(|(at, (x, heading))| pose(at, x, heading)).collect()
    }

    #[test]
    fn the_path_by_odometry_is_kept_where_the_robot_moves_and_known_at_every_stamp() {
        let (poses, path) = (drive(), OdometryPath::new(&drive()));
        assert!(path.kept.len() < 310, "{} of {}", path.kept.len(), poses.len());
        for pair in poses.windows(2) {
            let middle = pair[0].stamp.shifted(0.5 * pair[1].stamp.seconds_since(pair[0].stamp));
            let [one, other] = [&pair[0], &pair[1]].map(|pose| in_plane(&pose.isometry()));
            let found = path.at(middle);
            if pair[1].stamp.seconds_since(pair[0].stamp) > 0.5 {
                assert!(found.is_none(), "{found:?}");
                continue;
            }
            let found = found.unwrap();
            let place = one.translation.vector.lerp(&other.translation.vector, 0.5);
            let heading = 0.5 * (one.rotation.angle() + other.rotation.angle());
            // What is dropped is that near.
            assert!((found.translation.vector - place).norm() <= STEP, "{middle:?}: {found:?}");
            assert!((found.rotation.angle() - heading).abs() <= STEP, "{middle:?}: {found:?}");
            assert!(path.at(pair[1].stamp).is_some());
        }
        assert!(path.at(stamp(-1)).is_none() && path.at(stamp(67_000)).is_none());
    }

    #[test]
    fn poses_that_are_not_finite_or_not_later_are_ignored() {
        let poses =
            [pose(0, 0.0, 0.0), pose(100, f64::NAN, 0.0), pose(50, 0.5, 0.0), pose(40, 9.0, 0.0), pose(50, 9.0, 0.0)];
        let path = OdometryPath::new(&poses);
        assert_eq!(path.newest(), Some(stamp(50)));
        assert!((path.at(stamp(25)).unwrap().translation.x - 0.25).abs() < 1e-12);
    }

    #[test]
    fn a_stamp_is_between_the_observations_since_the_clock_went_back() {
        let observations =
            [observation(0), observation(7_000), observation(1_000), observation(2_000), observation(4_000)];
        let timeline = Timeline::new(&observations);
        assert_eq!(timeline.before, 2);
        // Middles are 1, 1.5 and 3 s.
        let found = [0, 1_000, 1_500, 2_250, 3_000, 3_001].map(|at| timeline.index_at(stamp(at)));
        assert_eq!(found, [2.0, 2.0, 3.0, 3.5, 4.0, 5.0]);
        assert!(!timeline.reaches(stamp(999)) && timeline.reaches(stamp(1_000)));
        let whole = Timeline::new(&observations[2..]);
        assert!(whole.before == 0 && whole.reaches(stamp(0)));
        assert_eq!(Timeline::new([]).index_at(stamp(5)), 0.0);
    }

    /// Odometry and observations along x at 1 m/s for ten seconds.
    fn straight() -> (OdometryPath, Timeline) {
        let poses: Vec<Pose> = (0..=10_000).step_by(20).map(|at| pose(at, 0.001 * at as f64, 0.0)).collect();
        let observations: Vec<Observation> = (0..=10_000).step_by(50).map(observation).collect();
        (OdometryPath::new(&poses), Timeline::new(&observations))
    }

    #[test]
    fn every_pose_that_odometry_knows_becomes_a_node() {
        let (odometry, timeline) = straight();
        let poses = [
            pose(-500, 7.0, 0.0),
            pose(0, 5.0, 0.0),
            pose(4_000, 9.0, 0.5),
            pose(10_000, 15.0, 0.0),
            pose(11_000, 0.0, 0.0),
        ];
        let (correction, placed) = correction_to(&poses, &odometry, &timeline, &Correction::default()).unwrap();
        assert_eq!((placed, correction.nodes().len()), (3, 3));
        // At 4 s odometry is at 4 m, which is at 9 m and turned.
        let found = correction.pose(correction.nodes()[1].observation, &Isometry2::translation(4.0, 0.0));
        assert!((found.translation.vector - nalgebra::Vector2::new(9.0, 0.0)).norm() < 1e-12);
        assert!((found.rotation.angle() - 0.5).abs() < 1e-12);
        assert_eq!(correction_to(&poses[4..], &odometry, &timeline, &Correction::default()), None);
        assert_eq!(correction_to(&[], &odometry, &timeline, &Correction::default()), None);
    }

    #[test]
    fn what_was_known_before_stays_where_the_poses_say_nothing() {
        let (odometry, timeline) = straight();
        let shifted =
            |by: f64, at: &[i64]| -> Vec<Pose> { at.iter().map(|&at| pose(at, 0.001 * at as f64 + by, 0.0)).collect() };
        let (first, _) =
            correction_to(&shifted(1.0, &[1_000, 2_000, 3_000]), &odometry, &timeline, &Correction::default()).unwrap();
        // A window of the newest poses leaves the older ones as they were.
        let (window, _) = correction_to(&shifted(2.0, &[3_000, 4_000]), &odometry, &timeline, &first).unwrap();
        let moved: Vec<f64> = window.nodes().iter().map(|node| node.place[0]).collect();
        let expected = [1.0, 1.0, 2.0, 2.0];
        assert!(
            moved.len() == 4 && moved.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-12),
            "{moved:?}"
        );
        // After a restart odometry is known from the nodes alone, and the same poses lead to the same correction.
        let all = shifted(3.0, &[1_000, 2_000, 3_000, 4_000]);
        let (whole, _) = correction_to(&all, &odometry, &timeline, &Correction::default()).unwrap();
        let (again, placed) = correction_to(&all, &OdometryPath::default(), &timeline, &window).unwrap();
        assert!(placed == 4 && again == whole, "{again:?}, expected {whole:?}");
    }
}
