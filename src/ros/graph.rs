//! The topics of the ROS graph and their types.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use r2r::Node;

/// Minimum time between two lists.
const PERIOD: Duration = Duration::from_secs(30);

/// The tool that lists all topics, without its daemon, which may know an outdated graph.
///
/// The list of r2r up to 0.9.7 reads out of bounds where a topic has several types, as one with a wrong publisher does.
const LIST: [&str; 7] = ["ros2", "topic", "list", "--show-types", "--no-daemon", "--spin-time", "2"];

/// All topics, listed in the background when asked.
pub(super) struct TopicList {
    /// Names and types.
    listed: Vec<(String, String)>,
    listing: Option<JoinHandle<Vec<(String, String)>>>,
    due: Instant,
}

impl TopicList {
    /// An empty list.
    pub(super) fn new() -> Self {
        Self { listed: Vec::new(), listing: None, due: Instant::now() }
    }

    /// Starts an update, unless there was one recently, and takes its result once there is one, some seconds later. Without the
    /// tool the list stays empty.
    pub(super) fn update(&mut self) {
        if let Some(thread) = self.listing.take_if(|thread| thread.is_finished()) {
            self.listed = thread.join().unwrap_or_default();
        }
        if self.listing.is_none() && Instant::now() >= self.due {
            self.due = Instant::now() + PERIOD;
            self.listing = std::thread::Builder::new().name("topics".into()).spawn(list).ok();
        }
    }

    /// The topics on which messages of this type are published now, without those of the node itself.
    pub(super) fn of_type(&self, wanted: &str, node: &Node) -> Vec<String> {
        let own = node.fully_qualified_name().ok().map(|name| format!("{name}/"));
        let is_own = |name: &String| own.as_ref().is_some_and(|own| name.starts_with(own));
        let named = self.listed.iter().filter(|(name, found)| found == wanted && !is_own(name)).map(|(name, _)| name);
        // Topics with subscribers only are listed too.
        let is_published =
            |name: &&String| published_types(node, name).is_some_and(|types| types.iter().any(|found| found == wanted));
        named.filter(is_published).cloned().collect()
    }
}

fn list() -> Vec<(String, String)> {
    let [tool, arguments @ ..] = LIST;
    match Command::new(tool).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output() {
        Ok(output) => parsed(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => {
            log::debug!("topics cannot be listed by {tool}: {error}");
            Vec::new()
        }
    }
}

/// The type of message of each publisher of a topic, if known.
pub(super) fn published_types(node: &Node, topic: &str) -> Option<Vec<String>> {
    let publishers = node.get_publishers_info_by_topic(topic, false).ok()?;
    Some(publishers.into_iter().map(|publisher| publisher.topic_type).collect())
}

/// Names and types in lines such as `/odom [nav_msgs/msg/Odometry, std_msgs/msg/String]`.
fn parsed(lines: &str) -> Vec<(String, String)> {
    let split = |line: &str| {
        let (name, types) = line.trim().strip_suffix(']')?.split_once(" [")?;
        Some(types.split(", ").map(|found| (name.to_owned(), found.to_owned())).collect::<Vec<_>>())
    };
    lines.lines().filter_map(split).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_types_are_parsed() {
        let pair = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        let lines = "/imu/mag [sensor_msgs/msg/MagneticField]\n/odom [a/msg/A, b/msg/B]\n\nsomething else\n";
        let expected =
            [pair("/imu/mag", "sensor_msgs/msg/MagneticField"), pair("/odom", "a/msg/A"), pair("/odom", "b/msg/B")];
        assert_eq!(parsed(lines), expected);
    }
}
