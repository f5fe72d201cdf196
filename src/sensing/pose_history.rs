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
///
/// Where the clock goes back (a pose with a stamp before that of the previous one), the poses from before stay in use until the
/// readings have [followed](Self::follow), so that it does not matter which topic goes back first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoseHistory {
    #[serde(skip)]
    max_gap: f64,
    #[serde(skip)]
    capacity: usize,
    /// In the order of arrival.
    poses: VecDeque<(Pose, Continuity)>,
    /// The number of poses from before the clock went back; 0 once the readings have followed.
    past: usize,
    /// Whether poses older than the oldest were dropped.
    forgot: bool,
    has_ended: bool,
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
        self.past == 0 || self.past < self.poses.len()
    }

    /// Takes the next pose; drops the oldest where there is no room.
    pub fn push(&mut self, pose: Pose, continuity: Continuity) {
        if self.poses.len() >= self.capacity {
            self.drop_oldest();
        }
        if self.newest().is_some_and(|newest| pose.stamp < newest) {
            // Readings from before the previous time that the clock went back are given up.
            if self.past > 0 {
                self.leave_past(0);
            }
            self.past = self.poses.len();
        }
        self.poses.push_back((pose, continuity));
        self.has_ended = false;
    }

    /// Marks the end of the stream.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Stamp of the oldest pose.
    pub fn oldest(&self) -> Option<Stamp> {
        self.poses.front().map(|(pose, _)| pose.stamp)
    }

    /// Stamp of the newest pose.
    pub fn newest(&self) -> Option<Stamp> {
        self.poses.back().map(|(pose, _)| pose.stamp)
    }

    /// Whether no future pose can change the pose at `stamp`, which is not before the oldest pose.
    ///
    /// A pose after a gap that is too long to interpolate across must be confirmed by the next one: otherwise a single corrupt stamp
    /// far ahead would decide about every reading that arrives before the pose gate has recognized it.
    pub fn is_settled(&self, stamp: Stamp) -> bool {
        let mut newest_first = self.poses.iter().rev().map(|(pose, _)| pose.stamp);
        let Some(newest) = newest_first.next() else { return false };
        let is_confirmed = |before: Stamp| self.has_ended || newest.seconds_since(before) <= self.max_gap;
        let confirmed = newest_first.next().filter(|&before| !is_confirmed(before)).unwrap_or(newest);
        self.past > 0 || stamp <= confirmed
    }

    /// Tells that the readings have reached `stamp`. When that is nearer to the newest pose than to the last one from before the
    /// clock went back, the poses from before are dropped.
    pub fn follow(&mut self, stamp: Stamp) {
        let Some((last, newest)) = self.last().zip(self.newest()).filter(|_| self.past > 0) else { return };
        if !stamp.is_nearer_to(last, newest) {
            // A single corrupt stamp far ahead looks like a clock that goes back: the poses before it remain valid.
            let resumed = self.poses[self.past].0.stamp;
            let past = self.poses.iter().take(self.past);
            self.leave_past(past.take_while(|(pose, _)| pose.stamp < resumed).count());
        }
    }

    /// The transform from the body's frame to the map frame at `stamp`. Drops poses that only earlier stamps would need.
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn body_at(&mut self, stamp: Stamp) -> Result<Isometry3<f64>, Rejection> {
        if self.last().is_none_or(|last| last < stamp) {
            return Err(Rejection::NoLaterPose);
        }
        while self.second().is_some_and(|(pose, _)| pose.stamp <= stamp) {
            self.drop_oldest();
        }
        let (before, continuity) = &self.poses[0];
        match before.stamp.cmp(&stamp) {
            Ordering::Greater => Err(self.before_oldest(*continuity)),
            Ordering::Equal => Ok(before.isometry()),
            Ordering::Less => self.interpolated(stamp),
        }
    }

    /// At a stamp between those of the two oldest poses.
    fn interpolated(&self, stamp: Stamp) -> Result<Isometry3<f64>, Rejection> {
        let (before, _) = &self.poses[0];
        let Some((after, continuity)) = self.second() else { return Err(Rejection::NoLaterPose) };
        if *continuity == Continuity::Restarts {
            return Err(Rejection::AcrossPoseJump);
        }
        let gap = after.stamp.seconds_since(before.stamp);
        if gap > self.max_gap {
            return Err(Rejection::PoseGap);
        }
        Ok(interpolate(&before.isometry(), &after.isometry(), stamp.seconds_since(before.stamp) / gap))
    }

    /// Why nothing is known about the time before the oldest pose.
    fn before_oldest(&self, continuity: Continuity) -> Rejection {
        match continuity {
            _ if self.forgot => Rejection::PoseForgotten,
            Continuity::Restarts => Rejection::AcrossPoseJump,
            Continuity::Continues => Rejection::BeforeFirstPose,
        }
    }

    /// The second oldest pose, unless the clock went back before it.
    fn second(&self) -> Option<&(Pose, Continuity)> {
        self.poses.get(1).filter(|_| self.past != 1)
    }

    /// Stamp of the last pose before the clock went back, or of the newest where it did not.
    fn last(&self) -> Option<Stamp> {
        let count = if self.past > 0 { self.past } else { self.poses.len() };
        self.poses.get(count.checked_sub(1)?).map(|(pose, _)| pose.stamp)
    }

    fn drop_oldest(&mut self) {
        self.poses.pop_front();
        self.past = self.past.saturating_sub(1);
        self.forgot = true;
    }

    /// Drops the poses from before the clock went back, except for the first `kept`.
    fn leave_past(&mut self, kept: usize) {
        self.poses.drain(kept..self.past);
        self.past = 0;
        self.forgot &= kept > 0;
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

    /// Ten seconds, and the same again elsewhere.
    fn looped() -> PoseHistory {
        history(&[(9_800, 9.8, Continues), (10_000, 10.0, Continues), (100, 50.1, Restarts), (300, 50.3, Continues)])
    }

    #[test]
    fn readings_use_the_poses_from_before_the_clock_went_back_until_they_follow() {
        let mut history = looped();
        for (milliseconds, expected) in [(9_900, Ok(9.9)), (10_000, Ok(10.0)), (10_001, Err(Rejection::NoLaterPose))] {
            history.follow(at(milliseconds));
            assert!(history.is_settled(at(milliseconds)));
            assert_eq!(x_at(&mut history, milliseconds), expected, "{milliseconds} ms");
        }
        for (milliseconds, expected) in [(50, Err(Rejection::AcrossPoseJump)), (100, Ok(50.1)), (200, Ok(50.2))] {
            history.follow(at(milliseconds));
            assert_eq!(x_at(&mut history, milliseconds), expected, "{milliseconds} ms");
        }
        assert!(!history.is_settled(at(301)));
    }

    #[test]
    fn readings_from_before_the_clock_went_back_twice_are_given_up() {
        let mut history = looped();
        history.push(pose(200, 70.2), Restarts);
        assert_eq!((history.oldest(), history.past), (Some(at(100)), 2));
        history.follow(at(250));
        assert_eq!((history.oldest(), history.past, history.poses.len()), (Some(at(100)), 0, 2));
        assert_eq!(x_at(&mut history, 150), Err(Rejection::AcrossPoseJump));
    }

    #[test]
    fn a_pose_far_ahead_must_be_confirmed_by_the_next_one() {
        let mut history = history(&[(0, 0.0, Continues), (1_000_000, 0.1, Continues)]);
        assert!(history.is_settled(at(0)) && !history.is_settled(at(20)) && !history.is_settled(at(1_000_000)));
        let mut corrupt = history.clone();
        corrupt.push(pose(140, 0.2), Restarts);
        corrupt.push(pose(160, 0.3), Continues);
        corrupt.follow(at(20));
        assert_eq!(x_at(&mut corrupt, 20), Err(Rejection::AcrossPoseJump));
        assert_eq!(x_at(&mut corrupt, 140), Ok(0.2));

        history.push(pose(1_000_020, 0.2), Continues);
        assert!(history.is_settled(at(20)) && history.is_settled(at(1_000_020)));
        assert_eq!(x_at(&mut history, 20), Err(Rejection::PoseGap));
        let mut ended = self::history(&[(0, 0.0, Continues), (1_000_000, 0.1, Continues)]);
        ended.end();
        assert!(ended.is_settled(at(1_000_000)));
    }

    #[test]
    fn memory_stays_bounded_without_readings_while_clocks_go_back() {
        let mut history = history(&[]);
        for index in 0..10_000 {
            history.push(pose(20 * (index % 70), 0.0), Continues);
            assert!(history.poses.len() <= 100 && history.past < history.poses.len());
        }
        assert_eq!(x_at(&mut history, -1), Err(Rejection::PoseForgotten));
    }
}
