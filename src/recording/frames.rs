//! The tree of static transforms, and how the sensor sits in the robot's body frame.

use std::collections::BTreeMap;

use nalgebra::Isometry3;

/// Which frame sits where in which parent.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameTree {
    /// By child: its parent, and the transform from child coordinates to parent coordinates.
    parents: BTreeMap<String, (String, Isometry3<f64>)>,
}

impl FrameTree {
    /// Puts `child` into `parent`; a later statement about the same child replaces an earlier one, as in tf2.
    pub(super) fn insert(&mut self, parent: &str, child: &str, transform: Isometry3<f64>) {
        self.parents.insert(normalized(child).into(), (normalized(parent).into(), transform));
    }

    /// The transform from coordinates in frame `from` to coordinates in frame `to`, or nothing when nothing links them.
    pub(super) fn transform(&self, from: &str, to: &str) -> Option<Isometry3<f64>> {
        let ancestors = self.ancestors(normalized(to));
        self.ancestors(normalized(from)).into_iter().find_map(|(common, from_to_common)| {
            let (_, to_to_common) = ancestors.iter().find(|(frame, _)| *frame == common)?;
            Some(to_to_common.inverse() * from_to_common)
        })
    }

    /// The links, `parent -> child`, for messages.
    pub(super) fn links(&self) -> Vec<String> {
        self.parents.iter().map(|(child, (parent, _))| format!("{parent} -> {child}")).collect()
    }

    /// The frame itself and all above it, each with the transform from the frame's coordinates to its own. Ends at the
    /// root, or where a cycle closes.
    fn ancestors<'a>(&'a self, frame: &'a str) -> Vec<(&'a str, Isometry3<f64>)> {
        let mut chain = vec![(frame, Isometry3::identity())];
        let (mut current, mut transform) = (frame, Isometry3::identity());
        while let Some((parent, step)) = self.parents.get(current) {
            if chain.iter().any(|(seen, _)| seen == parent) {
                break;
            }
            transform = step * transform;
            current = parent;
            chain.push((current, transform));
        }
        chain
    }
}

/// A frame's name without the leading slash that ROS 1 wrote.
pub(super) fn normalized(frame: &str) -> &str {
    frame.strip_prefix('/').unwrap_or(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::{Point3, Translation3, UnitQuaternion, Vector3};

    fn shift(x: f64, y: f64, z: f64) -> Isometry3<f64> {
        Translation3::new(x, y, z).into()
    }

    #[test]
    fn a_chain_is_composed_from_the_sensor_up_to_the_body() {
        let quarter = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), std::f64::consts::FRAC_PI_2);
        let mut tree = FrameTree::default();
        tree.insert("base_link", "mast", Isometry3::from_parts(Translation3::new(1.0, 0.0, 0.0), quarter));
        tree.insert("mast", "/imu", shift(2.0, 0.0, 0.5));
        let mount = tree.transform("imu", "base_link").unwrap();
        // The mast's x is the body's y: 2 m along it.
        let origin = mount * Point3::origin();
        assert!((origin - Point3::new(1.0, 2.0, 0.5)).norm() < 1e-15, "{origin}");
    }

    #[test]
    fn siblings_meet_at_their_parent() {
        let mut tree = FrameTree::default();
        tree.insert("base_footprint", "base_link", shift(0.0, 0.0, 0.1));
        tree.insert("base_footprint", "imu", shift(0.2, 0.0, 0.3));
        let mount = tree.transform("imu", "base_link").unwrap();
        assert!((mount.translation.vector - Vector3::new(0.2, 0.0, 0.2)).norm() < 1e-15);
    }

    #[test]
    fn a_frame_is_where_it_is() {
        assert_eq!(FrameTree::default().transform("a", "/a"), Some(Isometry3::identity()));
    }

    #[test]
    fn unlinked_frames_and_cycles_end() {
        let mut tree = FrameTree::default();
        tree.insert("a", "b", shift(1.0, 0.0, 0.0));
        tree.insert("b", "a", shift(1.0, 0.0, 0.0));
        assert_eq!(tree.transform("a", "c"), None);
        assert!(tree.transform("a", "b").is_some());
    }
}
