//! What is published under which names.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use r2r::Node;

use crate::mapping::worker::lock;

/// The least time between two lists.
const PERIOD: Duration = Duration::from_secs(30);

/// The tool that lists all topics, and what makes it look for itself rather than ask a daemon that may know an old graph.
///
/// r2r has a list as well, but up to 0.9.7 it reads beyond the end of it where a topic has several types, as one that is taken for
/// another has.
const LIST: [&str; 7] = ["ros2", "topic", "list", "--show-types", "--no-daemon", "--spin-time", "2"];

/// The topics there are, listed now and then in the background.
pub(super) struct Topics {
    /// Names and types.
    listed: Arc<Mutex<Vec<(String, String)>>>,
    is_listing: Arc<AtomicBool>,
    due: Instant,
}

impl Topics {
    /// None are known yet.
    pub(super) fn new() -> Self {
        Self { listed: Arc::default(), is_listing: Arc::default(), due: Instant::now() }
    }

    /// Has them listed, unless that was a short time ago. It takes some seconds; where the tool is not installed, none are known.
    pub(super) fn list(&mut self) {
        if Instant::now() < self.due || self.is_listing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.due = Instant::now() + PERIOD;
        let (listed, is_listing) = (Arc::clone(&self.listed), Arc::clone(&self.is_listing));
        let thread = std::thread::Builder::new().name("topics".into());
        let started = thread.spawn(move || {
            let [tool, arguments @ ..] = LIST;
            let run = Command::new(tool).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output();
            match run {
                Ok(output) => *lock(&listed) = parsed(&String::from_utf8_lossy(&output.stdout)),
                Err(error) => log::debug!("topics cannot be listed by {tool}: {error}"),
            }
            is_listing.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            log::debug!("topics cannot be listed: {error}");
            self.is_listing.store(false, Ordering::Release);
        }
    }

    /// Those on which messages of this type are published now.
    pub(super) fn of_type(&self, wanted: &str, node: &Node) -> Vec<String> {
        let listed = lock(&self.listed);
        let named = listed.iter().filter(|(_, found)| found == wanted).map(|(name, _)| name);
        // A topic is listed as well where somebody only listens.
        let is_published =
            |name: &&String| published_types(node, name).is_some_and(|types| types.iter().any(|found| found == wanted));
        named.filter(is_published).cloned().collect()
    }
}

/// The types of what is published on a topic, once for each publisher, where that is known.
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
    fn names_and_types_are_read_from_the_list() {
        let pair = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        let lines = "/imu/mag [sensor_msgs/msg/MagneticField]\n/odom [a/msg/A, b/msg/B]\n\nsomething else\n";
        let expected =
            [pair("/imu/mag", "sensor_msgs/msg/MagneticField"), pair("/odom", "a/msg/A"), pair("/odom", "b/msg/B")];
        assert_eq!(parsed(lines), expected);
    }
}
