//! The pose graph of slam_toolbox as a path: its nodes have numbers, and events tell the stamp of each.

use std::collections::HashMap;

use r2r::builtin_interfaces::msg::Time;
use r2r::geometry_msgs::msg::{Pose, PoseStamped};
use r2r::nav_msgs::msg::Path;
use r2r::std_msgs::msg::Header;

/// The stamps of the nodes of a graph, by their numbers.
#[derive(Default)]
pub(super) struct NodeStamps(HashMap<i32, Time>);

impl NodeStamps {
    /// The topic of the events beside that of the graph.
    pub(super) fn topic(graph: &str) -> String {
        let folder = graph.rfind('/').map_or("", |end| &graph[..=end]);
        format!("{folder}new_node_event")
    }

    /// A node was added. A graph that was cleared counts from the beginning again.
    pub(super) fn add(&mut self, node: i32, stamp: Time) {
        self.0.insert(node, stamp);
    }

    /// The nodes of a graph in the order of their stamps, without those that were added before anybody listened.
    pub(super) fn path(&self, header: Header, nodes: impl IntoIterator<Item = (i32, Pose)>) -> Path {
        let stamped = |(node, pose): (i32, Pose)| {
            let header = Header { stamp: self.0.get(&node)?.clone(), frame_id: String::new() };
            Some(PoseStamped { header, pose })
        };
        let mut poses: Vec<PoseStamped> = nodes.into_iter().filter_map(stamped).collect();
        poses.sort_by_key(|pose| (pose.header.stamp.sec, pose.header.stamp.nanosec));
        Path { header, poses }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::Isometry2;

    use super::*;
    use crate::ros::conversions::pose_in_plane;

    fn time(sec: i32) -> Time {
        Time { sec, nanosec: 0 }
    }

    fn at(x: f64) -> Pose {
        pose_in_plane(&Isometry2::translation(x, 0.0))
    }

    #[test]
    fn the_events_are_beside_the_graph() {
        for (graph, events) in [
            ("/slam_toolbox/pose_graph", "/slam_toolbox/new_node_event"),
            ("/pose_graph", "/new_node_event"),
            ("robot1/graph", "robot1/new_node_event"),
            ("pose_graph", "new_node_event"),
        ] {
            assert_eq!(NodeStamps::topic(graph), events);
        }
    }

    #[test]
    fn nodes_become_poses_in_the_order_of_their_stamps() {
        let mut stamps = NodeStamps::default();
        for (node, seconds) in [(3, 10), (4, 11), (7, 12), (4, 13)] {
            stamps.add(node, time(seconds));
        }
        let header = Header { stamp: time(20), frame_id: "map".into() };
        // Of node 1 nobody knows the stamp; node 4 was added again, after the graph was cleared.
        let path = stamps.path(header.clone(), [(1, at(1.0)), (4, at(4.0)), (3, at(3.0)), (7, at(7.0))]);
        let found: Vec<(i32, f64)> =
            path.poses.iter().map(|pose| (pose.header.stamp.sec, pose.pose.position.x)).collect();
        assert_eq!((path.header, found), (header, vec![(10, 3.0), (12, 7.0), (13, 4.0)]));
    }
}
