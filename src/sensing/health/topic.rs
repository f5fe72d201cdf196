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
    /// Other topics with publishers of the expected type, as far as known.
    pub others: Vec<String>,
}

impl Topic {
    /// The published type, where no publisher has the expected one.
    fn wrong_type(&self) -> Option<&str> {
        let published = self.published.as_deref()?;
        let is_wanted = published.iter().any(|found| found == self.wanted);
        published.first().filter(|_| !is_wanted).map(String::as_str)
    }

    /// The other topics, that with the most similar name first.
    fn nearest(&self) -> Vec<&str> {
        let mut others: Vec<&str> =
            self.others.iter().map(String::as_str).filter(|other| *other != self.name).collect();
        others
            .sort_by(|one, other| self.similarity(other).total_cmp(&self.similarity(one)).then_with(|| one.cmp(other)));
        others
    }

    /// How similar another name is. With a wrong namespace, the last part still matches.
    fn similarity(&self, other: &str) -> f64 {
        let [own, others] = [&self.name, other].map(|name| name.rsplit('/').next().unwrap_or_default());
        strsim::jaro_winkler(&self.name, other).max(0.95 * strsim::jaro_winkler(own, others))
    }

    /// Which topics have the expected type, as a sentence; empty where none has.
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

    /// Why no message arrives on this topic, where `other` is the other subscribed one; `what` arrived `so_far`.
    pub(super) fn why_silent(&self, other: &Topic, what: &str, so_far: u64) -> String {
        let Topic { name, setting, wanted, .. } = self;
        let missing = if so_far == 0 { format!("no {what} yet") } else { format!("no more {what}") };
        if let Some(found) = self.wrong_type() {
            let is_swapped = found == other.wanted && other.wrong_type() == Some(wanted);
            let swapped = format!(" Are {setting} and {} swapped?", other.setting);
            let advice = if is_swapped { swapped } else { self.suggestion() };
            return format!("{missing}: {name} has the type {found}, expected {wanted}.{advice}");
        }
        match self.published.as_deref() {
            Some([]) => {
                let suggestion = self.suggestion();
                let otherwise = if suggestion.is_empty() { "Remap the topic" } else { "Otherwise remap the topic" };
                format!("{missing}: nothing publishes {name}.{suggestion} {otherwise} ({setting}), or start its driver")
            }
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
    fn swapped_topics_are_recognized_by_their_types() {
        let swapped = (magnetometer(&[ODOMETRY], &["/odom"]), odometry(&[MAGNETOMETER], &["/imu/mag"]));
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
        let wrong = magnetometer(&["sensor_msgs/msg/Imu", "sensor_msgs/msg/Imu"], &["/imu/magnetic_field"]);
        assert_eq!(
            wrong.why_silent(&odometry(&[ODOMETRY], &[]), "readings", 0),
            "no readings yet: /imu/mag has the type sensor_msgs/msg/Imu, expected sensor_msgs/msg/MagneticField. \
             sensor_msgs/msg/MagneticField is published on /imu/magnetic_field: magnetometer_topic:=/imu/magnetic_field?"
        );
        let both_odometry = magnetometer(&[ODOMETRY], &[]).why_silent(&odometry(&[ODOMETRY], &[]), "readings", 0);
        assert!(both_odometry.ends_with("expected sensor_msgs/msg/MagneticField."), "{both_odometry}");
        // One publisher of the right type is enough for it to be the right topic.
        let mixed = magnetometer(&["sensor_msgs/msg/Imu", MAGNETOMETER], &[]);
        assert!(
            mixed.why_silent(&odometry(&[], &[]), "readings", 0).contains("has a publisher, but no message arrives")
        );
    }

    #[test]
    fn for_a_misspelt_topic_the_most_similar_of_its_type_is_suggested_first() {
        let others = ["/rear/compass", "/imu/mga", "/front/mag", "/imu/mag"];
        let words = magnetometer(&[], &others).why_silent(&odometry(&[], &[]), "readings", 0);
        assert_eq!(
            words,
            "no readings yet: nothing publishes /imu/mag. sensor_msgs/msg/MagneticField is published on /imu/mga and on \
             /front/mag, /rear/compass: magnetometer_topic:=/imu/mga? Otherwise remap the topic (magnetometer_topic), or \
             start its driver"
        );
        let alone = odometry(&[], &[]).why_silent(&magnetometer(&[], &[]), "odometry", 0);
        assert_eq!(
            alone,
            "no odometry yet: nothing publishes /odom. Remap the topic (odometry_topic), or start its driver"
        );
    }

    #[test]
    fn nothing_is_claimed_about_unknown_publishers() {
        let unknown = Topic { published: None, ..odometry(&[], &[]) };
        assert_eq!(unknown.why_silent(&magnetometer(&[], &[]), "odometry", 5), "no more odometry on /odom");
    }
}
