//! Why a measurement was rejected, and how often.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{EnumMessage, IntoStaticStr, VariantArray};

/// Why a reading or a pose was rejected: those of readings first, then those of poses. Nothing is repaired.
///
/// This is the only list: the comment of each reason is what a person reads after its count, and its name in snake case, which
/// must not change between versions, is what machines read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumMessage, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Rejection {
    /// readings with an axis that is not a finite number
    ReadingNotFinite,
    /// readings with an axis at or beyond gates.full_scale
    ReadingSaturated,
    /// readings of a field weaker than gates.minimum_field
    FieldTooWeak,
    /// readings of a field stronger than gates.maximum_field
    FieldTooStrong,
    /// readings stamped more than a second ahead of the next
    ReadingStampAhead,
    /// readings stamped before an earlier reading
    ReadingStampBackwards,
    /// readings with a stamp that gates.max_same_stamp readings had before
    ReadingStampRepeated,
    /// readings with an axis that did not change for more than gates.max_repeat
    AxisFrozen,
    /// readings of a field that changed by more than gates.max_gradient allows
    FieldGradient,
    /// readings of a field that changed suddenly, and back within gates.max_pulse
    FieldPulse,
    /// readings taken before the first pose
    BeforeFirstPose,
    /// readings that came after the poses of their time were dropped
    PoseForgotten,
    /// readings between poses further apart than synchronizer.max_gap
    PoseGap,
    /// readings taken while the poses jumped
    AcrossPoseJump,
    /// readings after the last pose
    NoLaterPose,
    /// readings dropped because synchronizer.max_waiting newer ones waited for a pose
    WaitingQueueFull,
    /// readings in a frame without a transform to the robot's
    ReadingWithoutTransform,
    /// poses with a coordinate that is not finite or beyond 1e9 m, or an orientation that is not a rotation
    PoseNotFinite,
    /// poses stamped more than a second ahead of the next
    PoseStampAhead,
    /// poses stamped before an earlier pose
    PoseStampBackwards,
    /// poses with the stamp of the previous pose
    PoseStampRepeated,
    /// poses that imply a speed above gates.max_speed
    PoseJump,
    /// poses in a frame without a transform to the map's
    PoseWithoutTransform,
}

impl Rejection {
    /// Every reason.
    pub const ALL: &[Rejection] = Self::VARIANTS;

    /// A name for machines that does not change between versions.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The words that a person reads after a count.
    pub fn words(self) -> &'static str {
        self.get_documentation().unwrap_or(self.name())
    }

    /// Whether it was a reading that was rejected; a pose otherwise.
    pub const fn concerns_reading(self) -> bool {
        (self as usize) < Rejection::PoseNotFinite as usize
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.words())
    }
}

/// How often each [`Rejection`] happened. Serializes as a map from every reason's name to its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    counts: [u64; Rejection::ALL.len()],
}

impl Rejections {
    /// Counts one rejection.
    pub fn count(&mut self, rejection: Rejection) {
        self.count_many(rejection, 1);
    }

    /// Counts several rejections for one reason.
    pub fn count_many(&mut self, rejection: Rejection, number: u64) {
        self.counts[rejection as usize] += number;
    }

    /// The sum of these counts and others.
    pub fn plus(&self, others: &Self) -> Self {
        Self { counts: std::array::from_fn(|reason| self.counts[reason] + others.counts[reason]) }
    }

    /// How often it happened for this reason.
    pub fn of(&self, rejection: Rejection) -> u64 {
        self.counts[rejection as usize]
    }

    /// Every reason with its count, in the order of [`Rejection::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Rejection, u64)> + '_ {
        Rejection::ALL.iter().map(|&rejection| (rejection, self.of(rejection)))
    }

    /// How many readings were rejected.
    pub fn readings(&self) -> u64 {
        self.iter().filter(|(rejection, _)| rejection.concerns_reading()).map(|(_, count)| count).sum()
    }

    /// How many poses were rejected.
    pub fn poses(&self) -> u64 {
        self.total() - self.readings()
    }

    /// How many measurements were rejected.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Serialize for Rejections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(rejection, count)| (rejection.name(), count)))
    }
}

/// Missing reasons count 0; unknown ones are left out.
impl<'de> Deserialize<'de> for Rejections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let count = |reason: usize| counts.get(Rejection::ALL[reason].name()).copied().unwrap_or(0);
        Ok(Self { counts: std::array::from_fn(count) })
    }
}

/// Reasons that happened and their counts, one per line; empty when nothing was rejected.
impl fmt::Display for Rejections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let happened = self.iter().filter(|&(_, count)| count > 0);
        let lines: Vec<String> = happened.map(|(rejection, count)| format!("{count} {rejection}")).collect();
        formatter.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejections(reasons: &[Rejection]) -> Rejections {
        let mut rejections = Rejections::default();
        reasons.iter().for_each(|&rejection| rejections.count(rejection));
        rejections
    }

    #[test]
    fn names_in_files_stay_and_counts_serialize_under_them() {
        let json =
            serde_json::to_value(rejections(&[Rejection::PoseGap, Rejection::PoseGap, Rejection::PoseJump])).unwrap();
        let expected = serde_json::json!({
            "reading_not_finite": 0, "reading_saturated": 0, "field_too_weak": 0, "field_too_strong": 0,
            "reading_stamp_ahead": 0, "reading_stamp_backwards": 0, "reading_stamp_repeated": 0, "axis_frozen": 0, "field_gradient": 0,
            "field_pulse": 0, "before_first_pose": 0, "pose_forgotten": 0, "pose_gap": 2, "across_pose_jump": 0, "no_later_pose": 0,
            "waiting_queue_full": 0, "reading_without_transform": 0, "pose_not_finite": 0, "pose_stamp_ahead": 0,
            "pose_stamp_backwards": 0, "pose_stamp_repeated": 0, "pose_jump": 1, "pose_without_transform": 0,
        });
        assert_eq!(json, expected);
        for &rejection in Rejection::ALL {
            let read: Rejections =
                serde_json::from_value(serde_json::json!({ rejection.name(): 7, "unknown": 1 })).unwrap();
            assert_eq!((read.of(rejection), read.total()), (7, 7), "{}", rejection.name());
        }
    }

    #[test]
    fn the_words_say_whether_readings_or_poses_were_rejected() {
        for rejection in Rejection::ALL {
            let topic = if rejection.concerns_reading() { "readings " } else { "poses " };
            assert!(rejection.words().starts_with(topic), "{rejection}");
        }
        let rejections = rejections(&[Rejection::FieldTooWeak, Rejection::WaitingQueueFull, Rejection::PoseJump]);
        assert_eq!((rejections.readings(), rejections.poses(), rejections.total()), (2, 1, 3));
    }

    #[test]
    fn people_read_only_what_happened() {
        assert_eq!(Rejections::default().to_string(), "");
        let words = rejections(&[Rejection::NoLaterPose, Rejection::PoseStampRepeated]).to_string();
        assert_eq!(words, "1 readings after the last pose\n1 poses with the stamp of the previous pose");
    }
}
