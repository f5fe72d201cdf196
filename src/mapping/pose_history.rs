//! Where the robot was, as far back as readings may still ask.

use std::cmp::Ordering;
use std::collections::VecDeque;

use nalgebra::Isometry3;
use serde::{Deserialize, Serialize};

use super::gates::Continuity;
use super::reading::{Pose, Stamp, interpolate};
use super::refusal::Refusal;
use crate::config;

/// Room that is reserved at the start; beyond it the history grows, up to its bound, when readings lag that far.
const RESERVED: usize = 16_384;

/// The newest poses, at most so many, and what lies between them.
///
/// Where the clock goes back (a pose with a stamp before that of the pose before it), the poses from before stay, and it is they
/// that are asked, until the readings have [followed](Self::follow): so it does not matter which topic goes back first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoseHistory {
    #[serde(skip)]
    max_gap: f64,
    #[serde(skip)]
    capacity: usize,
    /// In the order they came.
    poses: VecDeque<(Pose, Continuity)>,
    /// How many of them are from before the clock went back; 0 once the readings have followed.
    past: usize,
    /// Whether poses older than the oldest were dropped.
    forgot: bool,
    has_ended: bool,
}

impl PoseHistory {
    /// A history without poses.
    pub fn new(settings: &config::Synchronizer) -> Self {
        let capacity = settings.max_waiting.max(2);
        Self {
            max_gap: settings.max_gap,
            capacity,
            poses: VecDeque::with_capacity(capacity.min(RESERVED)),
            past: 0,
            forgot: false,
            has_ended: false,
        }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Synchronizer) {
        self.max_gap = settings.max_gap;
        self.capacity = settings.max_waiting.max(2);
    }

    /// Whether it can have come about: a file may claim anything.
    pub(super) fn is_sound(&self) -> bool {
        self.past == 0 || self.past < self.poses.len()
    }

    /// Takes the next pose; the oldest makes room where no reading came to make it.
    pub fn push(&mut self, pose: Pose, continuity: Continuity) {
        if self.poses.len() >= self.capacity {
            self.drop_oldest();
        }
        if self.newest().is_some_and(|newest| pose.stamp < newest) {
            // Readings that are two times behind are given up.
            if self.past > 0 {
                self.leave_past(0);
            }
            self.past = self.poses.len();
        }
        self.poses.push_back((pose, continuity));
        self.has_ended = false;
    }

    /// Takes note that no further pose will come.
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

    /// Whether no pose to come can change what is known about `stamp`, which is not before the oldest pose.
    ///
    /// A pose after a gap that is too long to interpolate across is not relied on before the next one confirms it: a single
    /// corrupt stamp far ahead would decide about every reading that comes before the gate of poses has found out.
    pub fn is_settled(&self, stamp: Stamp) -> bool {
        let mut newest_first = self.poses.iter().rev().map(|(pose, _)| pose.stamp);
        let Some(newest) = newest_first.next() else { return false };
        let is_confirmed = |before: Stamp| self.has_ended || newest.seconds_since(before) <= self.max_gap;
        let confirmed = newest_first.next().filter(|&before| !is_confirmed(before)).unwrap_or(newest);
        self.past > 0 || stamp <= confirmed
    }

    /// Takes note that the readings have come to `stamp`. When that is nearer to the newest pose than to the last one from before
    /// the clock went back, the time from before is left behind.
    pub fn follow(&mut self, stamp: Stamp) {
        let Some((last, newest)) = self.last().zip(self.newest()).filter(|_| self.past > 0) else { return };
        if !stamp.is_nearer_to(last, newest) {
            // A single corrupt stamp far ahead looks like a clock that goes back: what came before it is as good as ever.
            let resumed = self.poses[self.past].0.stamp;
            let past = self.poses.iter().take(self.past);
            self.leave_past(past.take_while(|(pose, _)| pose.stamp < resumed).count());
        }
    }

    /// The transform from the body's frame to the map frame at `stamp`. Poses that only earlier stamps would need are dropped.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn body_at(&mut self, stamp: Stamp) -> Result<Isometry3<f64>, Refusal> {
        if self.last().is_none_or(|last| last < stamp) {
            return Err(Refusal::NoLaterPose);
        }
        while self.second().is_some_and(|(pose, _)| pose.stamp <= stamp) {
            self.drop_oldest();
        }
        let (before, continuity) = &self.poses[0];
        match before.stamp.cmp(&stamp) {
            Ordering::Greater => Err(self.why_not_before(*continuity)),
            Ordering::Equal => Ok(before.isometry()),
            Ordering::Less => self.on_the_way(stamp),
        }
    }

    /// At a stamp between those of the two oldest poses.
    fn on_the_way(&self, stamp: Stamp) -> Result<Isometry3<f64>, Refusal> {
        let (before, _) = &self.poses[0];
        let Some((after, continuity)) = self.second() else { return Err(Refusal::NoLaterPose) };
        if *continuity == Continuity::Restarts {
            return Err(Refusal::AcrossPoseJump);
        }
        let gap = after.stamp.seconds_since(before.stamp);
        if gap > self.max_gap {
            return Err(Refusal::PoseGap);
        }
        Ok(interpolate(&before.isometry(), &after.isometry(), stamp.seconds_since(before.stamp) / gap))
    }

    /// Why nothing is known of the time before the oldest pose, which continues the drive or does not.
    fn why_not_before(&self, continuity: Continuity) -> Refusal {
        match continuity {
            _ if self.forgot => Refusal::PoseForgotten,
            Continuity::Restarts => Refusal::AcrossPoseJump,
            Continuity::Continues => Refusal::BeforeFirstPose,
        }
    }

    /// The second oldest pose, unless the clock went back before it.
    fn second(&self) -> Option<&(Pose, Continuity)> {
        self.poses.get(1).filter(|_| self.past != 1)
    }

    /// Stamp of the last pose before the clock went back, of the newest where it did not.
    fn last(&self) -> Option<Stamp> {
        let count = if self.past > 0 { self.past } else { self.poses.len() };
        self.poses.get(count.checked_sub(1)?).map(|(pose, _)| pose.stamp)
    }

    fn drop_oldest(&mut self) {
        self.poses.pop_front();
        self.past = self.past.saturating_sub(1);
        self.forgot = true;
    }

    /// Drops the poses from before the clock went back, but for the first `kept`, which become part of the time since.
    fn leave_past(&mut self, kept: usize) {
        self.poses.drain(kept..self.past);
        self.past = 0;
        self.forgot &= kept > 0;
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point3, UnitQuaternion};

    use super::*;

    fn at(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(milliseconds * 1_000_000)
    }

    fn pose(milliseconds: i64, x: f64) -> Pose {
        let position = Point3::new(x, 0.0, 0.0);
        Pose { stamp: at(milliseconds), position, orientation: UnitQuaternion::identity() }
    }

    fn history(poses: &[(i64, f64, Continuity)]) -> PoseHistory {
        let mut history = PoseHistory::new(&config::Synchronizer { max_waiting: 100, ..Default::default() });
        poses.iter().for_each(|&(milliseconds, x, continuity)| history.push(pose(milliseconds, x), continuity));
        history
    }

    fn x_at(history: &mut PoseHistory, milliseconds: i64) -> Result<f64, Refusal> {
        history.body_at(at(milliseconds)).map(|body| body.translation.x)
    }

    use Continuity::{Continues, Restarts};

    /// Ten seconds, and the same again elsewhere.
    fn looped() -> PoseHistory {
        history(&[(9_800, 9.8, Continues), (10_000, 10.0, Continues), (100, 50.1, Restarts), (300, 50.3, Continues)])
    }

    #[test]
    fn readings_that_lag_find_the_poses_from_before_the_clock_went_back_and_then_those_since() {
        let mut history = looped();
        for (milliseconds, expected) in [(9_900, Ok(9.9)), (10_000, Ok(10.0)), (10_001, Err(Refusal::NoLaterPose))] {
            history.follow(at(milliseconds));
            assert!(history.is_settled(at(milliseconds)));
            assert_eq!(x_at(&mut history, milliseconds), expected, "{milliseconds} ms");
        }
        for (milliseconds, expected) in [(50, Err(Refusal::AcrossPoseJump)), (100, Ok(50.1)), (200, Ok(50.2))] {
            history.follow(at(milliseconds));
            assert_eq!(x_at(&mut history, milliseconds), expected, "{milliseconds} ms");
        }
        assert!(!history.is_settled(at(301)));
    }

    #[test]
    fn a_time_before_the_last_is_given_up() {
        let mut history = looped();
        history.push(pose(200, 70.2), Restarts);
        assert_eq!((history.oldest(), history.past), (Some(at(100)), 2));
        history.follow(at(250));
        assert_eq!((history.oldest(), history.past, history.poses.len()), (Some(at(100)), 0, 2));
        assert_eq!(x_at(&mut history, 150), Err(Refusal::AcrossPoseJump));
    }

    #[test]
    fn a_pose_far_ahead_decides_nothing_before_the_next_one_confirms_it() {
        let mut history = history(&[(0, 0.0, Continues), (1_000_000, 0.1, Continues)]);
        assert!(history.is_settled(at(0)) && !history.is_settled(at(20)) && !history.is_settled(at(1_000_000)));
        let mut corrupt = history.clone();
        corrupt.push(pose(140, 0.2), Restarts);
        corrupt.push(pose(160, 0.3), Continues);
        corrupt.follow(at(20));
        assert_eq!(x_at(&mut corrupt, 20), Err(Refusal::AcrossPoseJump));
        assert_eq!(x_at(&mut corrupt, 140), Ok(0.2));

        history.push(pose(1_000_020, 0.2), Continues);
        assert!(history.is_settled(at(20)) && history.is_settled(at(1_000_020)));
        assert_eq!(x_at(&mut history, 20), Err(Refusal::PoseGap));
        let mut ended = self::history(&[(0, 0.0, Continues), (1_000_000, 0.1, Continues)]);
        ended.end();
        assert!(ended.is_settled(at(1_000_000)));
    }

    #[test]
    fn memory_stays_bounded_when_no_reading_comes_and_clocks_go_back() {
        let mut history = history(&[]);
        for index in 0..10_000 {
            history.push(pose(20 * (index % 70), 0.0), Continues);
            assert!(history.poses.len() <= 100 && history.past < history.poses.len());
        }
        assert_eq!(x_at(&mut history, -1), Err(Refusal::PoseForgotten));
    }
}
