//! Where the robot was, as far back as readings may need it.

use std::cmp::Ordering;
use std::collections::VecDeque;

use nalgebra::Isometry3;
use serde::{Deserialize, Serialize};

use crate::config;
use crate::sensing::gates::Continuity;
use crate::sensing::reading::{Pose, Stamp, interpolate};
use crate::sensing::rejection::Rejection;

/// Initial capacity; it grows up to its bound when readings lag that far.
const RESERVED: usize = 16_384;

/// The newest poses, up to a maximum number, with interpolation between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoseHistory {
    #[serde(skip)]
    max_gap: f64,
    #[serde(skip)]
    capacity: usize,
    /// In the order of their stamps.
    poses: VecDeque<(Pose, Continuity)>,
    /// Whether poses older than the oldest were dropped.
    forgot: bool,
}

impl PoseHistory {
    /// A history without poses.
    pub fn new(settings: &config::Synchronizer) -> Self {
        let mut history = Self::default();
        history.configure(settings);
        history.poses.reserve(history.capacity.min(RESERVED));
        history
    }

    /// Continues with other settings.
    pub fn configure(&mut self, settings: &config::Synchronizer) {
        self.max_gap = settings.max_gap;
        self.capacity = settings.max_waiting.max(2);
    }

    /// Whether a state from a file is possible.
    pub(crate) fn is_valid(&self) -> bool {
        self.poses.iter().is_sorted_by_key(|(pose, _)| pose.stamp)
    }

    /// Forgets all poses.
    pub fn clear(&mut self) {
        self.poses.clear();
        self.forgot = false;
    }

    /// Takes the next pose, whose stamp is after that of the previous one; drops the oldest where there is no room.
    pub fn push(&mut self, pose: Pose, continuity: Continuity) {
        if self.poses.len() >= self.capacity {
            self.drop_oldest();
        }
        self.poses.push_back((pose, continuity));
    }

    /// Stamp of the newest pose.
    pub fn newest(&self) -> Option<Stamp> {
        self.poses.back().map(|(pose, _)| pose.stamp)
    }

    /// The transform from the body's frame to the map frame at `stamp`. Drops poses that only earlier stamps would need.
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn body_at(&mut self, stamp: Stamp) -> Result<Isometry3<f64>, Rejection> {
        if self.newest().is_none_or(|newest| newest < stamp) {
            return Err(Rejection::NoLaterPose);
        }
        while self.poses.get(1).is_some_and(|(pose, _)| pose.stamp <= stamp) {
            self.drop_oldest();
        }
        let (before, _) = &self.poses[0];
        match before.stamp.cmp(&stamp) {
            Ordering::Greater if self.forgot => Err(Rejection::PoseForgotten),
            Ordering::Greater => Err(Rejection::BeforeFirstPose),
            Ordering::Equal => Ok(before.isometry()),
            Ordering::Less => self.interpolated(stamp),
        }
    }

    /// At a stamp between those of the two oldest poses.
    fn interpolated(&self, stamp: Stamp) -> Result<Isometry3<f64>, Rejection> {
        let (before, _) = &self.poses[0];
        let Some((after, continuity)) = self.poses.get(1) else { return Err(Rejection::NoLaterPose) };
        if *continuity == Continuity::Restarts {
            return Err(Rejection::AcrossPoseJump);
        }
        let gap = after.stamp.seconds_since(before.stamp);
        if gap > self.max_gap {
            return Err(Rejection::PoseGap);
        }
        Ok(interpolate(&before.isometry(), &after.isometry(), stamp.seconds_since(before.stamp) / gap))
    }

    fn drop_oldest(&mut self) {
        self.poses.pop_front();
        self.forgot = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensing::samples::{at, pose};

    fn history(poses: &[(i64, f64, Continuity)]) -> PoseHistory {
        let mut history = PoseHistory::new(&config::Synchronizer { max_waiting: 100, ..Default::default() });
        poses.iter().for_each(|&(milliseconds, x, continuity)| history.push(pose(milliseconds, x), continuity));
        history
    }

    fn x_at(history: &mut PoseHistory, milliseconds: i64) -> Result<f64, Rejection> {
        history.body_at(at(milliseconds)).map(|body| body.translation.x)
    }

    use Continuity::{Continues, Restarts};

    #[test]
    fn nothing_is_interpolated_across_gaps_and_jumps_nor_beyond_the_ends() {
        let mut history =
            history(&[(0, 0.0, Continues), (100, 0.1, Continues), (800, 0.8, Continues), (900, 5.0, Restarts)]);
        let expected = [
            (-1, Err(Rejection::BeforeFirstPose)),
            (50, Ok(0.05)),
            (100, Ok(0.1)),
            (101, Err(Rejection::PoseGap)),
            (850, Err(Rejection::AcrossPoseJump)),
            (900, Ok(5.0)),
            (901, Err(Rejection::NoLaterPose)),
        ];
        for (milliseconds, expected) in expected {
            assert_eq!(x_at(&mut history, milliseconds), expected, "{milliseconds} ms");
        }
    }

    #[test]
    fn the_oldest_poses_are_forgotten_and_all_of_them_when_cleared() {
        let mut history = history(&[]);
        for index in 0..10_000 {
            history.push(pose(20 * index, 0.0), Continues);
            assert!(history.poses.len() <= 100);
        }
        assert_eq!(x_at(&mut history, -1), Err(Rejection::PoseForgotten));
        history.clear();
        assert_eq!((history.newest(), x_at(&mut history, 0)), (None, Err(Rejection::NoLaterPose)));
        history.push(pose(20, 0.0), Continues);
        assert_eq!(x_at(&mut history, 0), Err(Rejection::BeforeFirstPose));
    }
}
