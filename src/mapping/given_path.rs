//! The path as another SLAM gives it while the robot drives.

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::sensing::intake::Input;
use crate::sensing::reading::{Measurement, Pose, Stamp};
use crate::sync::lock;
use crate::trajectory::{Correction, OdometryPath, Timeline, Trajectory, correction_to};

/// The newest poses of another SLAM, and the path by odometry, which tells where they are along the trajectory. Clones share them: the source
/// gives poses, the mapping thread odometry, and the thread that corrects the path waits for what changes.
#[derive(Clone, Debug)]
pub(super) struct GivenPath {
    known: Arc<Mutex<Known>>,
    news: (Sender<()>, Receiver<()>),
}

#[derive(Debug, Default)]
struct Known {
    odometry: OdometryPath,
    poses: Arc<[Pose]>,
    placed: Option<usize>,
    /// The newest pose, where odometry has yet to reach it.
    awaited: Option<Stamp>,
}

impl Default for GivenPath {
    fn default() -> Self {
        Self { known: Arc::default(), news: bounded(1) }
    }
}

impl GivenPath {
    /// Replaces the poses, which are those of the robot's body in the map, in the order of their stamps.
    pub(super) fn give(&self, poses: Vec<Pose>) {
        lock(&self.known).poses = poses.into();
        self.wake();
    }

    /// Takes the next input of the pipeline.
    pub(super) fn follow(&self, input: &Input) {
        let mut known = lock(&self.known);
        match input {
            Input::Measurement(Measurement::Pose(pose)) => known.odometry.push(pose),
            Input::Stretch => known.odometry = OdometryPath::default(),
            _ => return,
        }
        let newest = known.odometry.newest();
        if known.awaited.take_if(|awaited| Some(*awaited) <= newest).is_some() {
            self.wake();
        }
    }

    /// Receives something where another correction may be due.
    pub(super) fn news(&self) -> &Receiver<()> {
        &self.news.1
    }

    /// How many of the newest poses are part of the correction; none before that was tried.
    pub(super) fn placed(&self) -> Option<usize> {
        lock(&self.known).placed
    }

    /// The correction of a trajectory that these poses lead to; none where none of them can be placed.
    pub(super) fn correction(&self, trajectory: &Trajectory) -> Option<Correction> {
        let timeline = Timeline::new(trajectory.observations());
        let mut known = lock(&self.known);
        let (poses, odometry) = (Arc::clone(&known.poses), known.odometry.newest());
        known.awaited = poses.last().map(|pose| pose.stamp).filter(|last| Some(*last) > odometry);
        if poses.is_empty() {
            return None;
        }
        let found = correction_to(&poses, &known.odometry, &timeline, &trajectory.correction);
        known.placed = Some(found.as_ref().map_or(0, |(_, placed)| *placed));
        found.map(|(correction, _)| correction)
    }

    fn wake(&self) {
        // One that waits already is enough.
        let _ = self.news.0.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point3, UnitQuaternion};

    use super::*;

    fn at(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(1_000_000 * milliseconds)
    }

    fn pose(milliseconds: i64, x: f64) -> Pose {
        Pose { stamp: at(milliseconds), position: Point3::new(x, 0.0, 0.0), orientation: UnitQuaternion::identity() }
    }

    #[test]
    fn poses_that_odometry_has_not_reached_are_placed_once_it_does() {
        let path = GivenPath::default();
        let follow = |milliseconds: i64| path.follow(&Measurement::Pose(pose(milliseconds, 0.001)).into());
        let is_woken = || path.news().try_recv().is_ok();
        (0..10).for_each(|step| follow(100 * step));
        assert!(!is_woken() && path.correction(&Trajectory::default()).is_none() && path.placed().is_none());
        path.give(vec![pose(500, 1.0), pose(1050, 1.0)]);
        assert!(is_woken());
        assert_eq!(path.correction(&Trajectory::default()).unwrap().nodes().len(), 1);
        assert_eq!(path.placed(), Some(1));
        follow(1000);
        assert!(!is_woken());
        follow(1100);
        assert!(is_woken());
        path.correction(&Trajectory::default());
        assert_eq!(path.placed(), Some(2));
        // Stamps of before the clock went back say nothing.
        path.follow(&Input::Stretch);
        path.give(vec![pose(500, 1.0)]);
        assert!(path.correction(&Trajectory::default()).is_none() && path.placed() == Some(0));
        assert!(at(500) == path.known.lock().unwrap().awaited.unwrap());
    }
}
