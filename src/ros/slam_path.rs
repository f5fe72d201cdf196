//! The path of another SLAM, message by message: checked, and passed on to the mapping thread.

use r2r::nav_msgs::msg::Path;
use r2r::{Node, QosProfile};

use super::conversions as convert;
#[cfg(feature = "slam_toolbox")]
use super::interfaces::{NewNodeEvent, PoseGraph};
use super::listener::{Messages, ready, subscribe};
#[cfg(feature = "slam_toolbox")]
use super::pose_graph::NodeStamps;
use crate::config::{PathType, Slam};
use crate::mapping::thread::MappingThread;
use crate::sensing::frames::normalized;
use crate::sensing::reading::Pose;

/// The subscription to the path, and what became of its messages.
pub(super) struct PathListener {
    pub(super) topic: String,
    paths: Paths,
    pub(super) received: u64,
    pub(super) refused: u64,
    /// Why the newest message was refused, if it was.
    pub(super) trouble: Option<String>,
}

/// Where the paths come from.
enum Paths {
    /// Paths that are published as such.
    Path(Messages<Path>),
    /// Nodes of a pose graph, whose stamps are published one by one.
    #[cfg(feature = "slam_toolbox")]
    PoseGraph { graphs: Messages<PoseGraph>, events: Messages<NewNodeEvent>, stamps: NodeStamps },
}

impl Paths {
    fn create(node: &mut Node, settings: &Slam) -> anyhow::Result<Self> {
        let topic = settings.path_topic.as_str();
        match settings.path_type {
            PathType::Path => Ok(Self::Path(subscribe(node, topic, QosProfile::default())?)),
            #[cfg(feature = "slam_toolbox")]
            PathType::PoseGraph => Ok(Self::PoseGraph {
                graphs: subscribe(node, topic, QosProfile::default())?,
                events: subscribe(node, &NodeStamps::topic(topic), QosProfile::default().keep_last(1000))?,
                stamps: NodeStamps::default(),
            }),
            #[cfg(not(feature = "slam_toolbox"))]
            PathType::PoseGraph => anyhow::bail!(
                "slam.path_type: expected path, found pose_graph: where magmap was built there was no slam_toolbox with the message \
                 slam_toolbox/msg/PoseGraph; build it again where that is installed and sourced"
            ),
        }
    }

    /// The next path that has arrived.
    fn next(&mut self) -> Option<Path> {
        match self {
            Self::Path(messages) => ready(messages),
            #[cfg(feature = "slam_toolbox")]
            Self::PoseGraph { graphs, events, stamps } => {
                // The queue is short, so events are taken without a graph as well.
                while let Some(event) = ready(events) {
                    stamps.add(event.new_node_id, event.stamp);
                }
                let graph = ready(graphs)?;
                Some(stamps.path(graph.header, graph.nodes.into_iter().map(|node| (node.node_id, node.pose))))
            }
        }
    }
}

impl PathListener {
    /// The listener; none where the settings name no topic.
    pub(super) fn create(node: &mut Node, settings: &Slam) -> anyhow::Result<Option<Self>> {
        if settings.path_topic.is_empty() {
            anyhow::ensure!(
                settings.path_type == PathType::Path,
                "slam.path_topic: expected the topic of the pose graph, because slam.path_type is pose_graph, found none"
            );
            return Ok(None);
        }
        let (paths, topic) = (Paths::create(node, settings)?, settings.path_topic.clone());
        log::info!("the path is corrected by {topic}");
        Ok(Some(Self { topic, paths, received: 0, refused: 0, trouble: None }))
    }

    /// Passes the newest path on, if it can be used. One without poses says nothing yet.
    pub(super) fn forward(&mut self, mapping: &MappingThread) {
        let Some(frame) = mapping.inbox.frame() else { return };
        while let Some(message) = self.paths.next() {
            self.received += 1;
            let poses = poses(&message, &frame);
            let trouble = poses.as_ref().err().map(|reason| format!("a path on {} is not used: {reason}", self.topic));
            if let Some(trouble) = trouble.as_ref().filter(|_| self.trouble != trouble) {
                log::warn!("{trouble}");
            }
            self.refused += u64::from(trouble.is_some());
            self.trouble = trouble;
            if let Some(poses) = poses.ok().filter(|poses| !poses.is_empty()) {
                mapping.give_path(poses);
            }
        }
    }

    /// Why the path does not correct the map, if it does not.
    pub(super) fn misfit(&self, mapping: &MappingThread) -> Option<String> {
        let is_nowhere = mapping.placed_poses() == Some(0);
        let nowhere = || {
            let topic = &self.topic;
            format!("no pose of the path on {topic} has a stamp for which odometry is known: both need the same clock")
        };
        self.trouble.clone().or_else(|| is_nowhere.then(nowhere))
    }
}

/// The poses of a path in the frame of the map, or why they cannot be used.
fn poses(message: &Path, map: &str) -> Result<Vec<Pose>, String> {
    let in_map = |frame: &str| match normalized(frame) {
        frame if frame == map => Ok(()),
        frame => {
            Err(format!("it is in frame \"{frame}\", the map in \"{map}\"; set frames.map to the frame of the path"))
        }
    };
    in_map(&message.header.frame_id)?;
    let mut poses: Vec<Pose> = Vec::with_capacity(message.poses.len());
    for (index, stamped) in message.poses.iter().enumerate() {
        if !stamped.header.frame_id.is_empty() {
            in_map(&stamped.header.frame_id)?;
        }
        let pose = convert::stamped_pose(stamped).ok_or_else(|| {
            format!("pose {index} has a number that is not finite, or an orientation that is no rotation")
        })?;
        if poses.last().is_some_and(|last| last.stamp >= pose.stamp) {
            return Err(format!("the stamp of pose {index} is not after that of the one before: each needs its own"));
        }
        poses.push(pose);
    }
    Ok(poses)
}

#[cfg(test)]
mod tests {
    use nalgebra::Isometry2;
    use r2r::geometry_msgs::msg::PoseStamped;

    use super::*;
    use crate::sensing::reading::Stamp;

    fn path(frame: &str, stamps: &[f64]) -> Path {
        let pose = |seconds: &f64| PoseStamped {
            header: convert::header("map", Stamp::from_seconds(*seconds)),
            pose: convert::pose_in_plane(&Isometry2::new([*seconds, 0.0].into(), 0.3)),
        };
        Path { header: convert::header(frame, Stamp::default()), poses: stamps.iter().map(pose).collect() }
    }

    #[test]
    fn a_path_is_the_poses_of_the_body_in_the_map() {
        let mut message = path("/map", &[1.0, 2.5]);
        message.poses[0].header.frame_id.clear();
        let poses = poses(&message, "map").unwrap();
        let stamps: Vec<f64> = poses.iter().map(|pose| pose.stamp.seconds()).collect();
        assert_eq!((stamps, poses[1].position.x), (vec![1.0, 2.5], 2.5));
        assert_eq!(super::poses(&path("map", &[]), "map").unwrap(), []);
    }

    #[test]
    fn a_path_that_cannot_be_used_is_refused_with_the_reason() {
        let mut other_pose = path("map", &[1.0, 2.0]);
        other_pose.poses[1].header.frame_id = "odom".into();
        let mut not_finite = path("map", &[1.0, 2.0]);
        not_finite.poses[1].pose.position.x = f64::NAN;
        let mut no_rotation = path("map", &[1.0]);
        no_rotation.poses[0].pose.orientation.w = 0.0;
        for (message, expected) in [
            (path("odom", &[1.0]), "it is in frame \"odom\", the map in \"map\""),
            (other_pose, "it is in frame \"odom\""),
            (not_finite, "pose 1 has a number that is not finite"),
            (no_rotation, "pose 0 has a number"),
            (path("map", &[0.0, 0.0]), "the stamp of pose 1 is not after"),
            (path("map", &[2.0, 1.0]), "the stamp of pose 1 is not after"),
        ] {
            let reason = poses(&message, "map").unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
