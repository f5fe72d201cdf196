//! The true path of the robot, where a recording has one.

use super::drive_writer::TRUTH_TOPIC;
use super::messages::{Message, Odometry, PoseStamped};
use super::storage::RawMessage;
use super::{Error, Kind, Recording, Source, TopicSummary, listed};
use magmap::sensing::intake::SensorMessage;
use magmap::sensing::reading::Pose;

/// Types of the messages that may tell true poses.
const TYPES: [&str; 2] = [PoseStamped::TYPE, Odometry::TYPE];

impl Recording {
    /// The true poses of the robot's body on this topic, a `geometry_msgs/msg/PoseStamped` or a `nav_msgs/msg/Odometry`, in the order
    /// of their stamps. Without a name it is [`TRUTH_TOPIC`], and there is no truth if the recording does not have it. The poses of a
    /// drive of the Aalto data are true. Messages that cannot be decoded become part of [`Recording::loss`].
    ///
    /// # Errors
    /// A named topic that does not exist or has another type, and files that cannot be read.
    pub fn truth(&mut self, named: Option<&str>) -> Result<Option<Vec<Pose>>, Error> {
        let topic = named.unwrap_or(TRUTH_TOPIC);
        let is_truth = |found: &TopicSummary| found.name == topic && TYPES.contains(&found.type_name.as_str());
        let topics = &self.summary.topics;
        let mut poses = match (&self.source, named) {
            (Source::Files { messages, .. }, None) if self.summary.kind == Kind::AaltoCsv => {
                let pose = |message: &SensorMessage| match message {
                    SensorMessage::Odometry { pose, .. } => Some(*pose),
                    _ => None,
                };
                messages.as_slice().iter().filter_map(pose).collect()
            }
            (Source::Bag(playback), _) if topics.iter().any(is_truth) => {
                let mut poses = Vec::new();
                for file in &playback.bag.files {
                    let mut reader = file.reader()?;
                    while let Some(message) = reader.next_message()? {
                        if message.topic.name != topic {
                            continue;
                        }
                        match decoded(&message) {
                            Ok(pose) => poses.push(pose),
                            Err(reason) => {
                                let what = format!("messages on {topic}, the true path, cannot be decoded");
                                self.loss.add(&what, 1, Some(reason));
                            }
                        }
                    }
                }
                poses
            }
            (_, None) => return Ok(None),
            (_, Some(_)) => {
                let types = TYPES.join(" or ");
                let reason = format!("it has no topic {topic:?} of type {types}; it has {}", listed(topics));
                return Err(Error::unusable(&self.summary.path, reason));
            }
        };
        poses.sort_by_key(|pose| pose.stamp);
        Ok(Some(poses))
    }
}

fn decoded(message: &RawMessage<'_>) -> Result<Pose, String> {
    match message.topic.type_name.as_str() {
        Odometry::TYPE => message.decode::<Odometry>()?.to_pose(),
        _ => message.decode::<PoseStamped>()?.to_pose(),
    }
}
