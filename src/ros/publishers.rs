//! The nodes that publish on a topic.

use r2r::Node;

/// The middleware's name of a node of which it knows only a publisher so far.
const UNKNOWN: &str = "_NODE_NAME_UNKNOWN_";

/// The full name of the node of each publisher of a topic with this type of message, as far as the nodes are known.
pub(super) fn publishing_nodes(node: &Node, topic: &str, kind: &str) -> Vec<String> {
    let publishers = node.get_publishers_info_by_topic(topic, false).unwrap_or_default();
    let meant = publishers.into_iter().filter(|found| found.topic_type == kind && found.node_name != UNKNOWN);
    meant.map(|found| format!("{}/{}", found.node_namespace.trim_end_matches('/'), found.node_name)).collect()
}
