//! Why a measurement was refused, and how often.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Why a reading or a pose was refused. Nothing is repaired: what is refused does not take part, and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// An axis of a reading is infinite or not a number.
    ReadingNotFinite,
    /// An axis of a reading, as the sensor sent it, is at or beyond `gates.full_scale`.
    ReadingSaturated,
    /// The field is weaker than `gates.minimum_field`.
    FieldTooWeak,
    /// The field is stronger than `gates.maximum_field`.
    FieldTooStrong,
    /// A reading's stamp is older than the stamp of a reading before it.
    ReadingStampBackwards,
    /// More than `gates.max_same_stamp` readings have this stamp.
    ReadingStampRepeated,
    /// An axis, as the sensor sent it, stayed the same to the last bit over more than `gates.max_repeat` of the way.
    AxisFrozen,
    /// The field changed by more than `gates.max_gradient` and `gates.gradient_allowance` permit.
    FieldGradient,
    /// A reading was taken before the first pose.
    BeforeFirstPose,
    /// A reading came so late that the poses of its time were no longer kept.
    PoseForgotten,
    /// The poses before and after a reading are further apart in time than `synchronizer.max_gap`.
    PoseGap,
    /// A reading was taken while the poses jumped to another place or another time: where it was taken is not known.
    AcrossPoseJump,
    /// The stream ended, or the clock went back, before a pose at or after a reading came.
    NoLaterPose,
    /// More than `synchronizer.max_waiting` readings waited for their pose; the oldest had to go.
    WaitingQueueFull,
    /// Nothing links the sensor's frame to the robot's, or to the map's, at the time of a reading.
    ReadingWithoutTransform,
    /// A coordinate of a pose is not a number or beyond 1e9 m, or its orientation is no rotation.
    PoseNotFinite,
    /// A pose's stamp is older than the stamp of a pose before it.
    PoseStampBackwards,
    /// A pose has the stamp of the pose before it.
    PoseStampRepeated,
    /// A pose is so far from the pose before it that the robot would be faster than `gates.max_speed`.
    PoseJump,
    /// Nothing links the frame of a pose to the map's at its time.
    PoseWithoutTransform,
}

impl Refusal {
    /// Every reason: readings' first, then poses'.
    pub const ALL: [Refusal; 20] = [
        Refusal::ReadingNotFinite,
        Refusal::ReadingSaturated,
        Refusal::FieldTooWeak,
        Refusal::FieldTooStrong,
        Refusal::ReadingStampBackwards,
        Refusal::ReadingStampRepeated,
        Refusal::AxisFrozen,
        Refusal::FieldGradient,
        Refusal::BeforeFirstPose,
        Refusal::PoseForgotten,
        Refusal::PoseGap,
        Refusal::AcrossPoseJump,
        Refusal::NoLaterPose,
        Refusal::WaitingQueueFull,
        Refusal::ReadingWithoutTransform,
        Refusal::PoseNotFinite,
        Refusal::PoseStampBackwards,
        Refusal::PoseStampRepeated,
        Refusal::PoseJump,
        Refusal::PoseWithoutTransform,
    ];

    /// A name for machines that does not change between versions.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::ReadingNotFinite => "reading_not_finite",
            Refusal::ReadingSaturated => "reading_saturated",
            Refusal::FieldTooWeak => "field_too_weak",
            Refusal::FieldTooStrong => "field_too_strong",
            Refusal::ReadingStampBackwards => "reading_stamp_backwards",
            Refusal::ReadingStampRepeated => "reading_stamp_repeated",
            Refusal::AxisFrozen => "axis_frozen",
            Refusal::FieldGradient => "field_gradient",
            Refusal::BeforeFirstPose => "before_first_pose",
            Refusal::PoseForgotten => "pose_forgotten",
            Refusal::PoseGap => "pose_gap",
            Refusal::AcrossPoseJump => "across_pose_jump",
            Refusal::NoLaterPose => "no_later_pose",
            Refusal::WaitingQueueFull => "waiting_queue_full",
            Refusal::ReadingWithoutTransform => "reading_without_transform",
            Refusal::PoseNotFinite => "pose_not_finite",
            Refusal::PoseStampBackwards => "pose_stamp_backwards",
            Refusal::PoseStampRepeated => "pose_stamp_repeated",
            Refusal::PoseJump => "pose_jump",
            Refusal::PoseWithoutTransform => "pose_without_transform",
        }
    }

    /// What a person reads, to be followed by a count.
    pub const fn words(self) -> &'static str {
        match self {
            Refusal::ReadingNotFinite => "readings with an axis that is not a finite number",
            Refusal::ReadingSaturated => "readings with an axis at or beyond gates.full_scale",
            Refusal::FieldTooWeak => "readings of a field weaker than gates.minimum_field",
            Refusal::FieldTooStrong => "readings of a field stronger than gates.maximum_field",
            Refusal::ReadingStampBackwards => "readings stamped before an earlier reading",
            Refusal::ReadingStampRepeated => "readings beyond the gates.max_same_stamp that may share a stamp",
            Refusal::AxisFrozen => "readings with an axis that stayed the same for more than gates.max_repeat",
            Refusal::FieldGradient => "readings of a field that changed faster than gates.max_gradient",
            Refusal::BeforeFirstPose => "readings from before the first pose",
            Refusal::PoseForgotten => "readings that came after the poses of their time were dropped",
            Refusal::PoseGap => "readings between poses further apart than synchronizer.max_gap",
            Refusal::AcrossPoseJump => "readings taken while the poses jumped",
            Refusal::NoLaterPose => "readings after the last pose",
            Refusal::WaitingQueueFull => "readings beyond the synchronizer.max_waiting that may wait for a pose",
            Refusal::ReadingWithoutTransform => "readings in a frame without a transform to the robot's",
            Refusal::PoseNotFinite => "poses that are no finite numbers, no rotation, or beyond 1e9 m",
            Refusal::PoseStampBackwards => "poses stamped before an earlier pose",
            Refusal::PoseStampRepeated => "poses with the stamp of the pose before",
            Refusal::PoseJump => "poses that would need more speed than gates.max_speed",
            Refusal::PoseWithoutTransform => "poses in a frame without a transform to the map's",
        }
    }

    /// Whether it was a reading that was refused; a pose otherwise.
    pub const fn concerns_reading(self) -> bool {
        !matches!(
            self,
            Refusal::PoseNotFinite
                | Refusal::PoseStampBackwards
                | Refusal::PoseStampRepeated
                | Refusal::PoseJump
                | Refusal::PoseWithoutTransform
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.words())
    }
}

/// How often each [`Refusal`] happened. Serializes as a map from every reason's name to its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    counts: [u64; Refusal::ALL.len()],
}

impl Refusals {
    /// Counts one refusal.
    pub fn count(&mut self, refusal: Refusal) {
        self.counts[refusal as usize] += 1;
    }

    /// These and the others together.
    pub fn plus(&self, others: &Self) -> Self {
        Self { counts: std::array::from_fn(|reason| self.counts[reason] + others.counts[reason]) }
    }

    /// How often it happened for this reason.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.counts[refusal as usize]
    }

    /// Every reason with its count, in the order of [`Refusal::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Refusal, u64)> + '_ {
        Refusal::ALL.into_iter().map(|refusal| (refusal, self.of(refusal)))
    }

    /// How many readings were refused.
    pub fn readings(&self) -> u64 {
        self.iter().filter(|(refusal, _)| refusal.concerns_reading()).map(|(_, count)| count).sum()
    }

    /// How many poses were refused.
    pub fn poses(&self) -> u64 {
        self.total() - self.readings()
    }

    /// How many measurements were refused.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Serialize for Refusals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.counts.len()))?;
        for (refusal, count) in self.iter() {
            map.serialize_entry(refusal.name(), &count)?;
        }
        map.end()
    }
}

/// Reasons that are not there count 0; those that nobody knows any more are left out.
impl<'de> Deserialize<'de> for Refusals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let count = |refusal: Refusal| counts.get(refusal.name()).copied().unwrap_or(0);
        Ok(Self { counts: Refusal::ALL.map(count) })
    }
}

/// Reasons that happened and their counts, one per line; empty when nothing was refused.
impl fmt::Display for Refusals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (refusal, count)) in self.iter().filter(|&(_, count)| count > 0).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{count} {refusal}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let mut refusals = Refusals::default();
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            for _ in 0..=index {
                refusals.count(refusal);
            }
        }
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusals.of(refusal), index as u64 + 1, "{}", refusal.name());
        }
        let names: std::collections::BTreeSet<_> = Refusal::ALL.iter().map(|refusal| refusal.name()).collect();
        assert_eq!(names.len(), Refusal::ALL.len());
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
    }

    #[test]
    fn readings_and_poses_are_summed_apart() {
        let mut refusals = Refusals::default();
        refusals.count(Refusal::FieldTooWeak);
        refusals.count(Refusal::WaitingQueueFull);
        refusals.count(Refusal::PoseJump);
        assert_eq!((refusals.readings(), refusals.poses(), refusals.total()), (2, 1, 3));
    }

    #[test]
    fn serializes_to_a_map_from_name_to_count() {
        let mut refusals = Refusals::default();
        refusals.count(Refusal::PoseGap);
        refusals.count(Refusal::PoseGap);
        let json = serde_json::to_value(refusals).unwrap();
        assert_eq!(json["pose_gap"], 2);
        assert_eq!(json["pose_jump"], 0);
        assert_eq!(serde_json::from_value::<Refusals>(json.clone()).unwrap(), refusals);
        assert_eq!(json.as_object().unwrap().len(), Refusal::ALL.len());
    }

    #[test]
    fn people_read_only_what_happened() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.to_string(), "");
        refusals.count(Refusal::NoLaterPose);
        refusals.count(Refusal::PoseStampRepeated);
        assert_eq!(refusals.to_string(), "1 readings after the last pose\n1 poses with the stamp of the pose before");
    }
}
