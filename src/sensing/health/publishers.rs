//! Topics with several publishers, whose messages would be mixed: readings of two sensors, or poses of two robots, in one map.

/// Notices topics that more than one node publishes on.
#[derive(Clone, Debug, Default)]
pub struct SeveralPublishers {
    warning: Option<String>,
}

impl SeveralPublishers {
    /// Takes the topics, each with the full name of the node of every publisher; whether the warning has changed.
    pub fn update<'a>(&mut self, topics: impl IntoIterator<Item = (&'a str, Vec<String>)>) -> bool {
        let several = topics.into_iter().filter(|(_, nodes)| nodes.len() > 1).map(|(topic, mut nodes)| {
            // They are found in any order.
            nodes.sort();
            format!("{topic} has {} publishers, {}", nodes.len(), nodes.join(" and "))
        });
        let several = several.collect::<Vec<_>>().join("; ");
        let warning = (!several.is_empty())
            .then(|| format!("{several}: their messages are mixed. Stop all but one of them, or remap its topic"));
        let has_changed = warning != self.warning;
        self.warning = warning;
        has_changed
    }

    /// The topics and nodes in words; none where each topic has at most one publisher.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_publisher_or_none_is_no_warning() {
        let mut several = SeveralPublishers::default();
        assert!(!several.update([("/imu/mag", nodes(&[])), ("/odom", nodes(&["/wheels"]))]));
        assert_eq!(several.warning(), None);
    }

    #[test]
    fn several_publishers_are_named_and_each_change_is_noticed_once() {
        let mut several = SeveralPublishers::default();
        let twice = || [("/imu/mag", nodes(&["/rosbag2_player", "/driver"])), ("/odom", nodes(&["/wheels"]))];
        assert!(several.update(twice()));
        let expected = "/imu/mag has 2 publishers, /driver and /rosbag2_player: their messages are mixed. Stop all but one of \
                        them, or remap its topic";
        assert_eq!(several.warning(), Some(expected));
        assert!(!several.update([("/imu/mag", nodes(&["/driver", "/rosbag2_player"])), ("/odom", nodes(&[]))]));
        let both = [("/imu/mag", nodes(&["/a", "/b"])), ("/odom", nodes(&["/player", "/player", "/wheels"]))];
        assert!(several.update(both), "other nodes are a change");
        let warning = several.warning().unwrap();
        let expected =
            "/imu/mag has 2 publishers, /a and /b; /odom has 3 publishers, /player and /player and /wheels: ";
        assert!(warning.starts_with(expected), "{warning}");
        assert!(several.update([("/imu/mag", nodes(&["/a"])), ("/odom", nodes(&["/wheels"]))]));
        assert_eq!(several.warning(), None);
    }
}
