//! Why no message arrives on a topic, in words.

/// A topic as a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Name of the topic.
    pub name: String,
    /// The argument of the launch files, or the setting, that names it.
    pub setting: &'static str,
    /// The type of message expected on it, such as `nav_msgs/msg/Odometry`.
    pub wanted: &'static str,
    /// The type of message of each of its publishers, if known.
    pub published: Option<Vec<String>>,
}

impl Topic {
    /// The published type, where no publisher has the expected one.
    fn wrong_type(&self) -> Option<&str> {
        let published = self.published.as_deref()?;
        let is_wanted = published.iter().any(|found| found == self.wanted);
        published.first().filter(|_| !is_wanted).map(String::as_str)
    }

    /// How to find what may be meant instead. The list of r2r up to 0.9.7 reads out of bounds where a topic has several types, as one
    /// with a wrong publisher does.
    fn how_to_find(&self) -> String {
        format!("`ros2 topic find {}` lists the topics of that type", self.wanted)
    }

    /// Why no message arrives on this topic, where `other` is the other subscribed one; `what` arrived `so_far`.
    pub(super) fn why_silent(&self, other: &Topic, what: &str, so_far: u64) -> String {
        let Topic { name, setting, wanted, .. } = self;
        let missing = if so_far == 0 { format!("no {what} yet") } else { format!("no more {what}") };
        if let Some(found) = self.wrong_type() {
            let is_swapped = found == other.wanted && other.wrong_type() == Some(wanted);
            let advice =
                if is_swapped { format!("Are {setting} and {} swapped?", other.setting) } else { self.how_to_find() };
            return format!("{missing}: {name} has the type {found}, expected {wanted}. {advice}");
        }
        match self.published.as_deref() {
            Some([]) => format!(
                "{missing}: nothing publishes {name}. Remap the topic ({setting}), or start its driver. {}",
                self.how_to_find()
            ),
            Some(_) => format!(
                "{missing}: {name} has a publisher, but no message arrives. Is it sending? A reliable subscription \
                 (node.reliability) receives nothing from a best-effort publisher"
            ),
            None => format!("{missing} on {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGNETOMETER: &str = "sensor_msgs/msg/MagneticField";
    const ODOMETRY: &str = "nav_msgs/msg/Odometry";

    fn magnetometer(published: &[&str]) -> Topic {
        topic(["/imu/mag", "magnetometer_topic", MAGNETOMETER], published)
    }

    fn odometry(published: &[&str]) -> Topic {
        topic(["/odom", "odometry_topic", ODOMETRY], published)
    }

    fn topic([name, setting, wanted]: [&'static str; 3], published: &[&str]) -> Topic {
        let published = Some(published.iter().map(ToString::to_string).collect());
        Topic { name: name.into(), setting, wanted, published }
    }

    #[test]
    fn swapped_topics_are_recognized_by_their_types() {
        let swapped = (magnetometer(&[ODOMETRY]), odometry(&[MAGNETOMETER]));
        assert_eq!(
            swapped.0.why_silent(&swapped.1, "readings", 0),
            "no readings yet: /imu/mag has the type nav_msgs/msg/Odometry, expected sensor_msgs/msg/MagneticField. Are \
             magnetometer_topic and odometry_topic swapped?"
        );
        assert_eq!(
            swapped.1.why_silent(&swapped.0, "odometry", 3),
            "no more odometry: /odom has the type sensor_msgs/msg/MagneticField, expected nav_msgs/msg/Odometry. Are \
             odometry_topic and magnetometer_topic swapped?"
        );
    }

    #[test]
    fn a_topic_of_another_type_is_not_mistaken_for_a_swapped_one() {
        let wrong = magnetometer(&["sensor_msgs/msg/Imu", "sensor_msgs/msg/Imu"]);
        assert_eq!(
            wrong.why_silent(&odometry(&[ODOMETRY]), "readings", 0),
            "no readings yet: /imu/mag has the type sensor_msgs/msg/Imu, expected sensor_msgs/msg/MagneticField. `ros2 topic \
             find sensor_msgs/msg/MagneticField` lists the topics of that type"
        );
        let both_odometry = magnetometer(&[ODOMETRY]).why_silent(&odometry(&[ODOMETRY]), "readings", 0);
        assert!(!both_odometry.contains("swapped"), "{both_odometry}");
        // One publisher of the right type is enough for it to be the right topic.
        let mixed = magnetometer(&["sensor_msgs/msg/Imu", MAGNETOMETER]);
        assert!(mixed.why_silent(&odometry(&[]), "readings", 0).contains("has a publisher, but no message arrives"));
    }

    #[test]
    fn a_topic_without_a_publisher_comes_with_the_command_that_lists_others() {
        assert_eq!(
            odometry(&[]).why_silent(&magnetometer(&[]), "odometry", 0),
            "no odometry yet: nothing publishes /odom. Remap the topic (odometry_topic), or start its driver. `ros2 topic find \
             nav_msgs/msg/Odometry` lists the topics of that type"
        );
    }

    #[test]
    fn nothing_is_claimed_about_unknown_publishers() {
        let unknown = Topic { published: None, ..odometry(&[]) };
        assert_eq!(unknown.why_silent(&magnetometer(&[]), "odometry", 5), "no more odometry on /odom");
    }
}
