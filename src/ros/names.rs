//! Full names of topics, for messages and for looking up publishers, which r2r does not provide.

/// The full name of a topic: relative names get the namespace, and a remapping rule for it on the command line applies.
pub(super) fn resolved(
    topic: &str,
    node: &str,
    namespace: &str,
    arguments: impl IntoIterator<Item = String>,
) -> String {
    let full = |name: &str| {
        if name.starts_with('/') { name.to_owned() } else { format!("{}/{name}", namespace.trim_end_matches('/')) }
    };
    let wanted = full(topic);
    let renamed = arguments.into_iter().find_map(|rule| {
        let (from, to) = rule.split_once(":=")?;
        let from = match from.split_once(':') {
            Some((for_node, from)) => (for_node == node).then_some(from)?,
            None => from,
        };
        (full(from) == wanted).then(|| full(to))
    });
    renamed.unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, arguments: &[&str]) -> String {
        resolved("imu/mag", "magmap", namespace, arguments.iter().map(ToString::to_string))
    }

    #[test]
    fn namespaces_and_remappings_apply() {
        assert_eq!(name("/", &[]), "/imu/mag");
        assert_eq!(name("/robot", &[]), "/robot/imu/mag");
        assert_eq!(name("/robot", &["--ros-args", "-r", "imu/mag:=mag"]), "/robot/mag");
        assert_eq!(name("/robot", &["-r", "/robot/imu/mag:=/sensors/mag"]), "/sensors/mag");
        assert_eq!(name("/", &["-r", "other:imu/mag:=a", "-r", "magmap:imu/mag:=b"]), "/b");
        assert_eq!(name("/", &["-p", "selection.delta:=0.2", "-r", "odom:=x"]), "/imu/mag");
    }
}
