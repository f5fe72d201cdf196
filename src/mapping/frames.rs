//! The tree of frames over time: which frame sits where in which parent, as `/tf` and `/tf_static` say it.

use std::collections::{BTreeMap, VecDeque};

use nalgebra::Isometry3;

use super::gates::LATENESS;
use super::reading::{Stamp, interpolate};

/// How long the motion of a frame is remembered, in seconds: measurements may wait that long for other frames.
const MEMORY: f64 = 30.0;

/// So many stamps in a row that are more than late are a clock that went back: what was remembered is forgotten.
const STALE_IN_A_ROW: u32 = 5;

/// Most frames of a tree. A robot has tens; beyond this a broken publisher makes them up.
const MAX_FRAMES: usize = 10_000;

/// Which frame sits where in which parent, and when. Frames are named without the leading slash that ROS 1 wrote.
#[derive(Clone, Debug, Default)]
pub struct FrameTree {
    /// By child.
    links: BTreeMap<String, Link>,
}

#[derive(Clone, Debug)]
struct Link {
    parent: String,
    course: Course,
}

/// The transform from child coordinates to parent coordinates.
#[derive(Clone, Debug)]
enum Course {
    /// The same at all times.
    Fixed(Isometry3<f64>),
    /// At these stamps, in their order; in between it is interpolated.
    Moving { known: VecDeque<(Stamp, Isometry3<f64>)>, stale: u32 },
}

/// Why there is no transform between two frames at a stamp.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unresolved {
    /// Nothing links them, so far.
    #[error("frame \"{from}\" has no transform to \"{to}\"")]
    Unlinked {
        /// From coordinates in this frame.
        from: String,
        /// To coordinates in this one.
        to: String,
    },
    /// The newest transform of a frame is older than the stamp.
    #[error("the newest transform of frame \"{frame}\" in \"{parent}\" is {by:.3} s older than the data")]
    NotYet {
        /// The frame.
        frame: String,
        /// Its parent.
        parent: String,
        /// Seconds between them.
        by: f64,
    },
    /// The oldest remembered transform of a frame is newer than the stamp.
    #[error(
        "the oldest transform of frame \"{frame}\" in \"{parent}\" that is remembered is {by:.3} s newer than the data"
    )]
    NoMore {
        /// The frame.
        frame: String,
        /// Its parent.
        parent: String,
        /// Seconds between them.
        by: f64,
    },
}

impl FrameTree {
    /// Puts `child` into `parent` for all times; a later statement about the same child replaces an earlier one, as in tf2. Says
    /// whether there was room for it.
    pub fn insert_fixed(&mut self, parent: &str, child: &str, transform: Isometry3<f64>) -> bool {
        self.insert_link(parent, child, Course::Fixed(transform))
    }

    /// Puts `child` into `parent` as of `stamp`. Says whether it was taken: there may be no room for it, or its stamp may be of
    /// another time.
    pub fn insert_moving(&mut self, parent: &str, child: &str, stamp: Stamp, transform: Isometry3<f64>) -> bool {
        let link = self.links.get_mut(normalized(child)).filter(|link| link.parent == normalized(parent));
        match link.map(|link| &mut link.course) {
            Some(Course::Moving { known, stale }) => extend(known, stale, stamp, transform),
            _ => {
                let known = VecDeque::from([(stamp, transform)]);
                self.insert_link(parent, child, Course::Moving { known, stale: 0 })
            }
        }
    }

    fn insert_link(&mut self, parent: &str, child: &str, course: Course) -> bool {
        let has_room = self.links.len() < MAX_FRAMES || self.links.contains_key(normalized(child));
        if has_room {
            self.links.insert(normalized(child).into(), Link { parent: normalized(parent).into(), course });
        }
        has_room
    }

    /// The newest transform of a moving frame in its parent.
    pub fn newest(&self, parent: &str, child: &str) -> Option<Isometry3<f64>> {
        let link = self.links.get(normalized(child)).filter(|link| link.parent == normalized(parent))?;
        match &link.course {
            Course::Fixed(_) => None,
            Course::Moving { known, .. } => known.back().map(|(_, transform)| *transform),
        }
    }

    /// Whether something moves in this frame.
    pub fn has_moving_child(&self, frame: &str) -> bool {
        let moves = |link: &Link| matches!(link.course, Course::Moving { .. });
        self.links.values().any(|link| link.parent == normalized(frame) && moves(link))
    }

    /// The transform from coordinates in frame `from` to coordinates in frame `to` at `stamp`.
    ///
    /// # Errors
    /// When nothing links them, or not at that time.
    pub fn transform(&self, from: &str, to: &str, stamp: Stamp) -> Result<Isometry3<f64>, Unresolved> {
        let (from, to) = (normalized(from), normalized(to));
        let above = self.lineage(to);
        let common = self.lineage(from).into_iter().find(|frame| above.contains(frame));
        let unlinked = || Unresolved::Unlinked { from: from.into(), to: to.into() };
        let common = common.ok_or_else(unlinked)?;
        let transform = self.to_ancestor(to, common, stamp)?.inverse() * self.to_ancestor(from, common, stamp)?;
        // Links that are finite may add up to what is not.
        let is_finite = transform.translation.vector.iter().all(|value| value.is_finite());
        if is_finite { Ok(transform) } else { Err(unlinked()) }
    }

    /// The links, `parent -> child`, for messages.
    pub fn links(&self) -> Vec<String> {
        self.links.iter().map(|(child, link)| format!("{} -> {child}", link.parent)).collect()
    }

    /// The frame itself and all above it. Ends at the root, or where a cycle closes.
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

    fn to_ancestor(&self, frame: &str, ancestor: &str, stamp: Stamp) -> Result<Isometry3<f64>, Unresolved> {
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
    fn at(&self, frame: &str, stamp: Stamp) -> Result<Isometry3<f64>, Unresolved> {
        let known = match &self.course {
            Course::Fixed(transform) => return Ok(*transform),
            Course::Moving { known, .. } => known,
        };
        let (frame, parent) = (|| frame.to_owned(), || self.parent.clone());
        let after = known.partition_point(|(known, _)| *known < stamp);
        match (after.checked_sub(1).map(|before| &known[before]), known.get(after)) {
            (_, Some((at, transform))) if *at == stamp => Ok(*transform),
            (Some((before, start)), Some((after, end))) => {
                Ok(interpolate(start, end, stamp.seconds_since(*before) / after.seconds_since(*before)))
            }
            (Some((newest, _)), None) => {
                Err(Unresolved::NotYet { frame: frame(), parent: parent(), by: stamp.seconds_since(*newest) })
            }
            (None, Some((oldest, _))) => {
                Err(Unresolved::NoMore { frame: frame(), parent: parent(), by: oldest.seconds_since(stamp) })
            }
            (None, None) => Err(Unresolved::Unlinked { from: frame(), to: parent() }),
        }
    }
}

/// Remembers one more transform in its place, and forgets what is too old; everything, when the clock went back. Says whether it
/// was taken.
fn extend(
    known: &mut VecDeque<(Stamp, Isometry3<f64>)>,
    stale: &mut u32,
    stamp: Stamp,
    transform: Isometry3<f64>,
) -> bool {
    let newest = known.back().map_or(stamp, |(newest, _)| *newest);
    if newest.seconds_since(stamp) > LATENESS {
        *stale += 1;
        if *stale < STALE_IN_A_ROW {
            return false;
        }
        known.clear();
    }
    *stale = 0;
    let place = known.partition_point(|(known, _)| *known < stamp);
    match known.get_mut(place) {
        Some((at, known)) if *at == stamp => *known = transform,
        _ => known.insert(place, (stamp, transform)),
    }
    while known.front().is_some_and(|(oldest, _)| stamp.seconds_since(*oldest) > MEMORY) {
        known.pop_front();
    }
    true
}

/// A frame's name without the leading slash that ROS 1 wrote.
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
    fn siblings_meet_at_their_parent() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("base_footprint", "base_link", shift(0.0, 0.0, 0.1));
        tree.insert_fixed("base_footprint", "imu", shift(0.2, 0.0, 0.3));
        let mount = tree.transform("imu", "base_link", at(0.0)).unwrap();
        assert!((mount.translation.vector - Vector3::new(0.2, 0.0, 0.2)).norm() < 1e-15);
    }

    #[test]
    fn a_frame_is_where_it_is() {
        assert_eq!(FrameTree::default().transform("a", "/a", at(0.0)), Ok(Isometry3::identity()));
    }

    #[test]
    fn unlinked_frames_and_cycles_end() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("a", "b", shift(1.0, 0.0, 0.0));
        tree.insert_fixed("b", "a", shift(1.0, 0.0, 0.0));
        let unlinked = Unresolved::Unlinked { from: "a".into(), to: "c".into() };
        assert_eq!(tree.transform("a", "c", at(0.0)), Err(unlinked));
        assert!(tree.transform("a", "b", at(0.0)).is_ok());
    }

    #[test]
    fn a_publisher_that_makes_up_frames_finds_the_tree_full_and_known_frames_go_on() {
        let mut tree = FrameTree::default();
        let taken =
            (0..2 * MAX_FRAMES).filter(|index| tree.insert_fixed("a", &format!("f{index}"), shift(0.0, 0.0, 0.0)));
        assert_eq!(taken.count(), MAX_FRAMES);
        assert!(tree.insert_fixed("a", "f0", shift(1.0, 0.0, 0.0)));
    }

    #[test]
    fn links_that_lead_beyond_all_numbers_lead_nowhere() {
        let mut tree = FrameTree::default();
        tree.insert_fixed("a", "b", shift(1e308, 0.0, 0.0));
        tree.insert_fixed("b", "c", shift(1e308, 0.0, 0.0));
        assert!(matches!(tree.transform("c", "a", at(0.0)), Err(Unresolved::Unlinked { .. })));
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
    fn motion_is_interpolated_between_stamps_and_never_beyond() {
        let tree = drive();
        let here = tree.transform("base_link", "map", at(12.3)).unwrap();
        assert!((here.translation.vector - Vector3::new(2.3, 5.0, 0.0)).norm() < 1e-12);
        let back = tree.transform("map", "base_link", at(12.3)).unwrap();
        assert!((back.translation.vector + Vector3::new(2.3, 5.0, 0.0)).norm() < 1e-12);
        let Err(Unresolved::NotYet { frame, by, .. }) = tree.transform("base_link", "map", at(20.2)) else { panic!() };
        assert!(frame == "base_link" && (by - 0.2).abs() < 1e-9);
        let Err(Unresolved::NoMore { by, .. }) = tree.transform("base_link", "map", at(9.0)) else { panic!() };
        assert!((by - 1.0).abs() < 1e-9);
        assert!(tree.has_moving_child("odom") && !tree.has_moving_child("map"));
    }

    #[test]
    fn late_transforms_find_their_place_and_old_ones_are_forgotten() {
        let mut tree = drive();
        tree.insert_moving("odom", "base_link", at(19.75), shift(0.0, 7.0, 0.0));
        let late = tree.transform("base_link", "odom", at(19.75)).unwrap();
        assert_eq!(late.translation.vector, Vector3::new(0.0, 7.0, 0.0));
        tree.insert_moving("odom", "base_link", at(45.0), shift(0.0, 0.0, 0.0));
        assert!(tree.transform("base_link", "odom", at(15.0)).is_ok());
        assert!(matches!(tree.transform("base_link", "odom", at(14.9)), Err(Unresolved::NoMore { .. })));
    }

    #[test]
    fn a_clock_that_goes_back_starts_anew_and_one_stray_stamp_does_not() {
        let mut tree = drive();
        assert!(!tree.insert_moving("odom", "base_link", at(3.0), shift(9.0, 0.0, 0.0)));
        assert!(tree.transform("base_link", "odom", at(15.0)).is_ok());
        for step in 0..10 {
            tree.insert_moving("odom", "base_link", at(10.0 + 0.1 * f64::from(step)), shift(0.0, 1.0, 0.0));
        }
        let again = tree.transform("base_link", "odom", at(10.8)).unwrap();
        assert_eq!(again.translation.vector, Vector3::new(0.0, 1.0, 0.0));
        assert!(matches!(tree.transform("base_link", "odom", at(15.0)), Err(Unresolved::NotYet { .. })));
    }
}
