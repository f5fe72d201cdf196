//! Why nothing comes on a topic, in words.

/// A topic as a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// What a person changes to name another: an argument of the launch files, or a setting.
    pub setting: &'static str,
    /// The type of the messages that are wanted on it, such as `nav_msgs/msg/Odometry`.
    pub wanted: &'static str,
    /// The types of what is published on it, once for each publisher, where that is known.
    pub published: Option<Vec<String>>,
    /// Other topics on which messages of the wanted type are published, as far as that is known.
    pub others: Vec<String>,
}

impl Topic {
    /// The type of what is published, where it is not the wanted one.
    fn wrong_type(&self) -> Option<&str> {
        let published = self.published.as_deref()?;
        let is_wanted = published.iter().any(|found| found == self.wanted);
        published.first().filter(|_| !is_wanted).map(String::as_str)
    }

    /// The other topics, the one whose name is most like this one first.
    fn nearest(&self) -> Vec<&str> {
        let mut others: Vec<&str> =
            self.others.iter().map(String::as_str).filter(|other| *other != self.name).collect();
        others.sort_by(|one, other| self.likeness(other).total_cmp(&self.likeness(one)).then_with(|| one.cmp(other)));
        others
    }

    /// How much another name is like this one. Whoever misses a namespace still has the last part right.
    fn likeness(&self, other: &str) -> f64 {
        let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        let whole = strsim::jaro_winkler(&self.name, other);
        whole.max(0.95 * strsim::jaro_winkler(&last(&self.name), &last(other)))
    }

    /// Where messages of the wanted type are, as a sentence; nothing where there are none.
    fn suggestion(&self) -> String {
        match self.nearest().as_slice() {
            [] => String::new(),
            [only] => format!(" {} is published on {only}: {}:={only}?", self.wanted, self.setting),
            [first, rest @ ..] => {
                let rest = rest.join(", ");
                format!(" {} is published on {first} and on {rest}: {}:={first}?", self.wanted, self.setting)
            }
        }
    }
}

/// Why no message comes on `topic`, where `other` is the other one that is listened to; `what` came `so_far`.
pub(super) fn silence(topic: &Topic, other: &Topic, what: &str, so_far: u64) -> String {
    let Topic { name, setting, wanted, .. } = topic;
    let missing = if so_far == 0 { format!("no {what} yet") } else { format!("no more {what}") };
    if let Some(found) = topic.wrong_type() {
        let advice = match other.wrong_type() {
            // Each carries what the other should.
            Some(theirs) if found == other.wanted && theirs == topic.wanted => {
                format!(" Are {setting} and {} swapped?", other.setting)
            }
            _ => topic.suggestion(),
        };
        return format!("{missing}: {name} has the type {found}, expected {wanted}.{advice}");
    }
    match topic.published.as_deref() {
        Some([]) => {
            let suggestion = topic.suggestion();
            let otherwise = if suggestion.is_empty() { "Remap the topic" } else { "Otherwise remap the topic" };
            format!("{missing}: nothing publishes {name}.{suggestion} {otherwise} ({setting}), or start its driver")
        }
        Some(_) => format!(
            "{missing}: {name} has a publisher, but no message comes. Is it sending? A reliable subscription \
             (node.reliability) gets nothing from a best-effort publisher"
        ),
        None => format!("{missing} on {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGNETOMETER: &str = "sensor_msgs/msg/MagneticField";
    const ODOMETRY: &str = "nav_msgs/msg/Odometry";

    fn magnetometer(published: &[&str], others: &[&str]) -> Topic {
        topic(["/imu/mag", "magnetometer_topic", MAGNETOMETER], published, others)
    }

    fn odometry(published: &[&str], others: &[&str]) -> Topic {
        topic(["/odom", "odometry_topic", ODOMETRY], published, others)
    }

    fn topic([name, setting, wanted]: [&'static str; 3], published: &[&str], others: &[&str]) -> Topic {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        Topic { name: name.into(), setting, wanted, published: Some(owned(published)), others: owned(others) }
    }

    #[test]
    fn topics_that_are_swapped_are_told_by_their_types() {
        let swapped = (magnetometer(&[ODOMETRY], &["/odom"]), odometry(&[MAGNETOMETER], &["/imu/mag"]));
        assert_eq!(
            silence(&swapped.0, &swapped.1, "readings", 0),
            "no readings yet: /imu/mag has the type nav_msgs/msg/Odometry, expected sensor_msgs/msg/MagneticField. Are \
             magnetometer_topic and odometry_topic swapped?"
        );
        assert_eq!(
            silence(&swapped.1, &swapped.0, "odometry", 3),
            "no more odometry: /odom has the type sensor_msgs/msg/MagneticField, expected nav_msgs/msg/Odometry. Are \
             odometry_topic and magnetometer_topic swapped?"
        );
    }

    #[test]
    fn a_topic_of_another_type_is_not_taken_for_a_swapped_one() {
        let wrong = magnetometer(&["sensor_msgs/msg/Imu", "sensor_msgs/msg/Imu"], &["/imu/magnetic_field"]);
        assert_eq!(
            silence(&wrong, &odometry(&[ODOMETRY], &[]), "readings", 0),
            "no readings yet: /imu/mag has the type sensor_msgs/msg/Imu, expected sensor_msgs/msg/MagneticField. \
             sensor_msgs/msg/MagneticField is published on /imu/magnetic_field: magnetometer_topic:=/imu/magnetic_field?"
        );
        let both_odometry = silence(&magnetometer(&[ODOMETRY], &[]), &odometry(&[ODOMETRY], &[]), "readings", 0);
        assert!(both_odometry.ends_with("expected sensor_msgs/msg/MagneticField."), "{both_odometry}");
        // One publisher of the right type is enough for it to be the right topic.
        let mixed = magnetometer(&["sensor_msgs/msg/Imu", MAGNETOMETER], &[]);
        assert!(silence(&mixed, &odometry(&[], &[]), "readings", 0).contains("has a publisher, but no message comes"));
    }

    #[test]
    fn of_a_misspelt_topic_the_nearest_of_its_type_is_suggested_first() {
        let others = ["/rear/compass", "/imu/mga", "/front/mag", "/imu/mag"];
        let words = silence(&magnetometer(&[], &others), &odometry(&[], &[]), "readings", 0);
        assert_eq!(
            words,
            "no readings yet: nothing publishes /imu/mag. sensor_msgs/msg/MagneticField is published on /imu/mga and on \
             /front/mag, /rear/compass: magnetometer_topic:=/imu/mga? Otherwise remap the topic (magnetometer_topic), or \
             start its driver"
        );
        let alone = silence(&odometry(&[], &[]), &magnetometer(&[], &[]), "odometry", 0);
        assert_eq!(
            alone,
            "no odometry yet: nothing publishes /odom. Remap the topic (odometry_topic), or start its driver"
        );
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let unknown = Topic { published: None, ..odometry(&[], &[]) };
        assert_eq!(silence(&unknown, &magnetometer(&[], &[]), "odometry", 5), "no more odometry on /odom");
    }
}
