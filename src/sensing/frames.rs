//! The tree of frames over time, from `/tf` and `/tf_static`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use nalgebra::Isometry3;

use crate::sensing::clock::LATENESS;
use crate::sensing::gates::FARTHEST;
use crate::sensing::reading::{Stamp, interpolate};

/// How long the motion of a frame is remembered, in seconds: measurements may wait that long for other frames.
const MEMORY: f64 = 30.0;

/// A robot has tens of frames; more than this come from a broken publisher.
const MAX_FRAMES: usize = 10_000;

/// The transform of each frame in its parent over time. Frames are named without the leading slash of ROS 1.
#[derive(Clone, Debug, Default)]
pub struct FrameTree {
    /// The time of the stream: the newest stamp of its readings and poses. A transform from long before is from before the clock of its
    /// publisher went back, or after, whichever is nearer.
    pub now: Option<Stamp>,
    /// By child.
    links: BTreeMap<String, Link>,
}

#[derive(Clone, Debug)]
struct Link {
    parent: String,
    motion: Motion,
}

/// The transform from child coordinates to parent coordinates.
#[derive(Clone, Debug)]
enum Motion {
    Fixed(Isometry3<f64>),
    Moving(History),
}

/// Transforms at increasing stamps, interpolated in between.
#[derive(Clone, Debug, Default)]
struct History {
    known: Transforms,
    /// Consecutive transforms from long before: those of the next stretch, where one begins.
    behind: Transforms,
}

type Transforms = VecDeque<(Stamp, Isometry3<f64>)>;

/// Why there is no transform between two frames at a stamp.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct TransformError {
    /// The source frame.
    pub from: String,
    /// The target frame.
    pub to: String,
    /// The missing transform.
    pub missing: Missing,
}

/// A missing transform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    /// No links connect the frames yet.
    Link,
    /// The newest transform is older than the data by this, in seconds.
    Newer(f64),
    /// The oldest remembered transform is newer than the data by this, in seconds.
    Older(f64),
}

impl fmt::Display for TransformError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, missing } = self;
        let (end, by, relation) = match missing {
            Missing::Link => return write!(formatter, "frame \"{from}\" has no transform to \"{to}\""),
            Missing::Newer(by) => ("newest", by, "older"),
            Missing::Older(by) => ("oldest remembered", by, "newer"),
        };
        write!(formatter, "the {end} transform of frame \"{from}\" in \"{to}\" is {by:.3} s {relation} than the data")
    }
}

impl FrameTree {
    /// Sets the transform of `child` in `parent` for all times, replacing an earlier one, as tf2 does. Returns how many transforms were
    /// rejected: one, where there is no room.
    pub fn insert_fixed(&mut self, parent: &str, child: &str, transform: Isometry3<f64>) -> u64 {
        self.insert_link(parent, child, Motion::Fixed(transform))
    }

    /// Adds the transform of `child` in `parent` at `stamp`. Returns how many transforms were rejected: this one, where there is no room,
    /// or earlier ones with stamps that turned out to be wrong.
    pub fn insert_moving(&mut self, parent: &str, child: &str, stamp: Stamp, transform: Isometry3<f64>) -> u64 {
        let link = self.links.get_mut(normalized(child)).filter(|link| link.parent == normalized(parent));
        if let Some(Link { motion: Motion::Moving(history), .. }) = link {
            return history.insert(stamp, transform, self.now);
        }
        let history = History { known: VecDeque::from([(stamp, transform)]), behind: VecDeque::new() };
        self.insert_link(parent, child, Motion::Moving(history))
    }

    fn insert_link(&mut self, parent: &str, child: &str, motion: Motion) -> u64 {
        let has_room = self.links.len() < MAX_FRAMES || self.links.contains_key(normalized(child));
        if has_room {
            self.links.insert(normalized(child).into(), Link { parent: normalized(parent).into(), motion });
        }
        u64::from(!has_room)
    }

    /// Forgets the motion from before the clock went back.
    pub fn begin_stretch(&mut self) {
        for link in self.links.values_mut() {
            if let Motion::Moving(History { known, behind }) = &mut link.motion {
                *known = std::mem::take(behind);
            }
        }
    }

    /// The newest transform of a moving frame in its parent.
    pub fn newest(&self, parent: &str, child: &str) -> Option<Isometry3<f64>> {
        let link = self.links.get(normalized(child)).filter(|link| link.parent == normalized(parent))?;
        match &link.motion {
            Motion::Fixed(_) => None,
            Motion::Moving(history) => history.known.back().map(|(_, transform)| *transform),
        }
    }

    /// Whether a frame has a parent.
    pub fn has(&self, frame: &str) -> bool {
        self.links.contains_key(normalized(frame))
    }

    /// Whether a frame moves in this one.
    pub fn has_moving_child(&self, frame: &str) -> bool {
        let moves = |link: &Link| matches!(link.motion, Motion::Moving(_));
        self.links.values().any(|link| link.parent == normalized(frame) && moves(link))
    }

    /// The transform from coordinates in frame `from` to coordinates in frame `to` at `stamp`.
    ///
    /// # Errors
    /// When they are not connected, or not at that time.
    pub fn transform(&self, from: &str, to: &str, stamp: Stamp) -> Result<Isometry3<f64>, TransformError> {
        let (from, to) = (normalized(from), normalized(to));
        let above = self.lineage(to);
        let common = self.lineage(from).into_iter().find(|frame| above.contains(frame));
        let not_connected = || TransformError { from: from.into(), to: to.into(), missing: Missing::Link };
        let common = common.ok_or_else(not_connected)?;
        let transform = self.to_ancestor(to, common, stamp)?.inverse() * self.to_ancestor(from, common, stamp)?;
        // Links may add up to an infinite distance.
        let is_near = transform.translation.vector.iter().all(|coordinate| coordinate.abs() <= FARTHEST);
        if is_near { Ok(transform) } else { Err(not_connected()) }
    }

    /// The newest known transform from coordinates in frame `from` to coordinates in frame `to`: each link as it was last.
    pub fn latest(&self, from: &str, to: &str) -> Option<Isometry3<f64>> {
        let above = self.lineage(normalized(to));
        let common = self.lineage(normalized(from)).into_iter().find(|frame| above.contains(frame))?;
        let to_common = |frame: &str| {
            let below = self.lineage(normalized(frame)).into_iter().take_while(|frame| *frame != common);
            below.fold(Isometry3::identity(), |below, frame| match &self.links[frame].motion {
                Motion::Fixed(transform) => transform * below,
                Motion::Moving(history) => history.known.back().map_or(below, |(_, transform)| transform * below),
            })
        };
        Some(to_common(to).inverse() * to_common(from))
    }

    /// The links, `parent -> child`, for messages.
    pub fn links(&self) -> Vec<String> {
        self.links.iter().map(|(child, link)| format!("{} -> {child}", link.parent)).collect()
    }

    /// The frame itself and its ancestors, up to the root or to the end of a cycle.
    fn lineage<'a>(&'a self, frame: &'a str) -> Vec<&'a str> {
        let mut lineage = vec![frame];
        let mut current = frame;
        while let Some(Link { parent, .. }) = self.links.get(current) {
            if lineage.contains(&parent.as_str()) {
                break;
            }
            lineage.push(parent);
            current = parent;
        }
        lineage
    }

    fn to_ancestor(&self, frame: &str, ancestor: &str, stamp: Stamp) -> Result<Isometry3<f64>, TransformError> {
        let (mut current, mut transform) = (frame, Isometry3::identity());
        while current != ancestor {
            let Some(link) = self.links.get(current) else { break };
            transform = link.at(current, stamp)? * transform;
            current = &link.parent;
        }
        Ok(transform)
    }
}

impl Link {
    fn at(&self, frame: &str, stamp: Stamp) -> Result<Isometry3<f64>, TransformError> {
        let known = match &self.motion {
            Motion::Fixed(transform) => return Ok(*transform),
            Motion::Moving(history) => &history.known,
        };
        let missing = |missing| Err(TransformError { from: frame.to_owned(), to: self.parent.clone(), missing });
        let after = known.partition_point(|(known, _)| *known < stamp);
        match (after.checked_sub(1).map(|before| &known[before]), known.get(after)) {
            (_, Some((at, transform))) if *at == stamp => Ok(*transform),
            (Some((before, start)), Some((after, end))) => {
                Ok(interpolate(start, end, stamp.seconds_since(*before) / after.seconds_since(*before)))
            }
            (Some((newest, _)), None) => missing(Missing::Newer(stamp.seconds_since(*newest))),
            (None, Some((oldest, _))) => missing(Missing::Older(oldest.seconds_since(stamp))),
            (None, None) => missing(Missing::Link),
        }
    }
}

impl History {
    /// Adds a transform and forgets old ones. Returns how many were rejected.
    fn insert(&mut self, stamp: Stamp, transform: Isometry3<f64>, now: Option<Stamp>) -> u64 {
        let Self { known, behind } = self;
        let is_behind = |newest: &Stamp| newest.seconds_since(stamp) > LATENESS;
        let Some(newest) = known.back().map(|(newest, _)| *newest).filter(is_behind) else {
            let rejected = std::mem::take(behind).len();
            insert(known, stamp, transform);
            return rejected as u64;
        };
        if now.is_none_or(|now| !now.is_nearer_to(stamp, newest)) {
            insert(behind, stamp, transform);
            return 0;
        }
        // The stream is here: what is known from later is wrong.
        let before = known.len();
        known.retain(|(known, _)| *known <= stamp);
        let rejected = before - known.len();
        behind.drain(..).for_each(|(stamp, transform)| insert(known, stamp, transform));
        insert(known, stamp, transform);
        rejected as u64
    }
}

/// Adds a transform in the order of stamps, in the place of one with the same, and forgets those from long before it.
fn insert(known: &mut Transforms, stamp: Stamp, transform: Isometry3<f64>) {
    let index = known.partition_point(|(known, _)| *known < stamp);
    match known.get_mut(index) {
        Some((at, known)) if *at == stamp => *known = transform,
        _ => known.insert(index, (stamp, transform)),
    }
    while known.front().is_some_and(|(oldest, _)| stamp.seconds_since(*oldest) > MEMORY) {
        known.pop_front();
    }
}

/// A frame's name without the leading slash of ROS 1.
pub fn normalized(frame: &str) -> &str {
    frame.strip_prefix('/').unwrap_or(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::{Point3, Translation3, UnitQuaternion, Vector3};

    fn shift(x: f64, y: f64, z: f64) -> Isometry3<f64> {
        Translation3::new(x, y, z).into()
    }

    fn at(seconds: f64) -> Stamp {
        Stamp::from_seconds(seconds)
    }

    #[test]
    fn a_chain_is_composed_from_the_sensor_up_to_the_body() {
        let quarter = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), std::f64::consts::FRAC_PI_2);
        let mut tree = FrameTree::default();
        tree.insert_fixed("base_link", "mast", Isometry3::from_parts(Translation3::new(1.0, 0.0, 0.0), quarter));
        tree.insert_fixed("mast", "/imu", shift(2.0, 0.0, 0.5));
        let mount = tree.transform("imu", "base_link", at(0.0)).unwrap();
        // The mast's x is the body's y: 2 m along it.
        let origin = mount * Point3::origin();
        assert!((origin - Point3::new(1.0, 2.0, 0.5)).norm() < 1e-15, "{origin}");
    }

    #[test]
    fn siblings_are_connected_through_their_parent() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("base_footprint", "base_link", shift(0.0, 0.0, 0.1));
        tree.insert_fixed("base_footprint", "imu", shift(0.2, 0.0, 0.3));
        let mount = tree.transform("imu", "base_link", at(0.0)).unwrap();
        assert!((mount.translation.vector - Vector3::new(0.2, 0.0, 0.2)).norm() < 1e-15);
    }

    #[test]
    fn a_frame_has_the_identity_to_itself() {
        assert_eq!(FrameTree::default().transform("a", "/a", at(0.0)), Ok(Isometry3::identity()));
    }

    #[test]
    fn lookups_of_unconnected_frames_and_cycles_end() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("a", "b", shift(1.0, 0.0, 0.0));
        tree.insert_fixed("b", "a", shift(1.0, 0.0, 0.0));
        let not_connected = TransformError { from: "a".into(), to: "c".into(), missing: Missing::Link };
        assert_eq!(tree.transform("a", "c", at(0.0)), Err(not_connected));
        assert!(tree.transform("a", "b", at(0.0)).is_ok());
    }

    #[test]
    fn a_full_tree_accepts_only_frames_that_it_knows() {
        let mut tree = FrameTree::default();
        let taken =
            (0..2 * MAX_FRAMES).filter(|index| tree.insert_fixed("a", &format!("f{index}"), shift(0.0, 0.0, 0.0)) == 0);
        assert_eq!(taken.count(), MAX_FRAMES);
        assert_eq!(tree.insert_fixed("a", "f0", shift(1.0, 0.0, 0.0)), 0);
    }

    #[test]
    fn links_that_add_up_to_an_infinite_distance_are_no_transform() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("a", "b", shift(1e308, 0.0, 0.0));
        tree.insert_fixed("b", "c", shift(1e308, 0.0, 0.0));
        assert_eq!(tree.transform("c", "a", at(0.0)).unwrap_err().missing, Missing::Link);
    }

    /// map -> odom is fixed, odom -> base_link moves along x by 1 m/s from 10 s to 20 s, twice a second.
    fn drive() -> FrameTree {
        let mut tree = FrameTree::default();
        tree.insert_fixed("map", "odom", shift(0.0, 5.0, 0.0));
        for step in 0..=20 {
            let time = 10.0 + 0.5 * f64::from(step);
            tree.insert_moving("odom", "base_link", at(time), shift(time - 10.0, 0.0, 0.0));
        }
        tree
    }

    #[test]
    fn motion_is_interpolated_but_never_extrapolated() {
        let tree = drive();
        let here = tree.transform("base_link", "map", at(12.3)).unwrap();
        assert!((here.translation.vector - Vector3::new(2.3, 5.0, 0.0)).norm() < 1e-12);
        let back = tree.transform("map", "base_link", at(12.3)).unwrap();
        assert!((back.translation.vector + Vector3::new(2.3, 5.0, 0.0)).norm() < 1e-12);
        let late = tree.transform("base_link", "map", at(20.5)).unwrap_err();
        assert_eq!((&*late.from, &*late.to, late.missing), ("base_link", "odom", Missing::Newer(0.5)));
        assert_eq!(tree.transform("base_link", "map", at(9.0)).unwrap_err().missing, Missing::Older(1.0));
        assert!(tree.has_moving_child("odom") && !tree.has_moving_child("map"));
    }

    #[test]
    fn late_transforms_are_sorted_in_and_old_ones_forgotten() {
        let mut tree = drive();
        tree.insert_moving("odom", "base_link", at(19.75), shift(0.0, 7.0, 0.0));
        let late = tree.transform("base_link", "odom", at(19.75)).unwrap();
        assert_eq!(late.translation.vector, Vector3::new(0.0, 7.0, 0.0));
        tree.insert_moving("odom", "base_link", at(45.0), shift(0.0, 0.0, 0.0));
        assert!(tree.transform("base_link", "odom", at(15.0)).is_ok());
        assert!(matches!(tree.transform("base_link", "odom", at(14.9)).unwrap_err().missing, Missing::Older(_)));
    }

    /// Where the body is, along y: what was inserted after the drive is at 1.
    fn y_at(tree: &FrameTree, seconds: f64) -> Result<f64, Missing> {
        let place = tree.transform("base_link", "odom", at(seconds)).map_err(|error| error.missing)?;
        Ok(place.translation.vector.y)
    }

    #[test]
    fn transforms_from_after_the_clock_went_back_wait_for_the_next_stretch() {
        let mut tree = drive();
        tree.now = Some(at(20.0));
        for step in 0..10 {
            tree.insert_moving("odom", "base_link", at(10.0 + 0.1 * f64::from(step)), shift(0.0, 1.0, 0.0));
        }
        // Readings from before are still placed where the robot was then.
        assert_eq!((y_at(&tree, 10.8), y_at(&tree, 15.0)), (Ok(0.0), Ok(0.0)));
        tree.begin_stretch();
        assert_eq!((y_at(&tree, 10.8), y_at(&tree, 10.0)), (Ok(1.0), Ok(1.0)));
        assert!(matches!(y_at(&tree, 15.0), Err(Missing::Newer(_))));
    }

    #[test]
    fn transforms_that_go_back_after_the_readings_or_alone_follow_them() {
        let mut tree = drive();
        tree.now = Some(at(12.0));
        assert_eq!(tree.insert_moving("odom", "base_link", at(11.9), shift(0.0, 1.0, 0.0)), 17);
        assert_eq!(tree.insert_moving("odom", "base_link", at(12.1), shift(0.0, 1.0, 0.0)), 0);
        assert_eq!((y_at(&tree, 12.0), y_at(&tree, 11.0)), (Ok(1.0), Ok(0.0)));
    }

    #[test]
    fn wrong_stamps_of_transforms_cost_only_themselves() {
        let mut tree = drive();
        tree.now = Some(at(20.0));
        assert_eq!(tree.insert_moving("odom", "base_link", at(3.0), shift(9.0, 1.0, 0.0)), 0);
        assert_eq!(y_at(&tree, 15.0), Ok(0.0));
        assert_eq!(tree.insert_moving("odom", "base_link", at(20.2), shift(0.0, 0.0, 0.0)), 1);
        assert_eq!(tree.insert_moving("odom", "base_link", at(1e6), shift(9.0, 1.0, 0.0)), 0);
        assert_eq!(tree.insert_moving("odom", "base_link", at(20.4), shift(0.0, 0.0, 0.0)), 1);
        assert_eq!(tree.insert_moving("odom", "base_link", at(20.6), shift(0.0, 0.0, 0.0)), 0);
        assert_eq!(y_at(&tree, 20.5), Ok(0.0));
    }
}
