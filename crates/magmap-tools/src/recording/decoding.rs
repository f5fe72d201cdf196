//! Decodes stored messages into measurements and transforms.

use super::messages::{MagneticField, Message, Odometry, TFMessage};
use super::storage::{MAX_NAME, RawMessage};
use magmap::sensing::frames::normalized;
use magmap::sensing::intake::SensorMessage;
use magmap::sensing::reading::{Measurement, Stamp};

/// How the names of the topics of transforms end, after their namespaces.
const STATIC_TRANSFORMS: &str = "tf_static";
const TRANSFORMS: &str = "tf";

/// The frames a message names; the child is empty for a magnetometer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frames {
    pub(super) frame: String,
    pub(super) child: String,
}

impl Frames {
    /// The frames with these names, unless a name is too long.
    fn new(frame: &str, child: &str) -> Result<Self, String> {
        let length = frame.len().max(child.len());
        if length > MAX_NAME {
            return Err(format!("the name of its frame has {length} bytes, more than {MAX_NAME}"));
        }
        Ok(Self { frame: frame.into(), child: child.into() })
    }
}

impl Frames {
    /// The measurement as a message in these frames.
    pub(super) fn message(&self, measurement: Measurement) -> SensorMessage {
        match measurement {
            Measurement::Reading(reading) => SensorMessage::reading(&self.frame, reading),
            Measurement::Pose(pose) => SensorMessage::odometry(&self.frame, &self.child, pose),
        }
    }
}

/// A decoded message.
pub(super) enum Decoded {
    /// A reading or a pose.
    Measurement(Frames, Measurement),
    /// Transforms, each from the child to its parent.
    Transforms(Vec<SensorMessage>),
    /// A message of a type, or on a topic, that is not read.
    Unread,
}

/// Decodes a message, or says why that is impossible.
pub(super) fn decode(message: &RawMessage<'_>) -> Result<Decoded, String> {
    let (frames, measurement) = match message.topic.type_name.as_str() {
        MagneticField::TYPE => {
            let field: MagneticField = message.decode()?;
            (Frames::new(normalized(&field.header.frame_id), "")?, Measurement::Reading(field.to_reading()))
        }
        Odometry::TYPE => {
            let odometry: Odometry = message.decode()?;
            let pose = odometry.to_pose()?;
            let (frame, child) = (normalized(&odometry.header.frame_id), normalized(&odometry.child_frame_id));
            (Frames::new(frame, child)?, Measurement::Pose(pose))
        }
        TFMessage::TYPE => return transforms(message),
        _ => return Ok(Decoded::Unread),
    };
    Ok(Decoded::Measurement(frames, measurement))
}

fn transforms(message: &RawMessage<'_>) -> Result<Decoded, String> {
    let is_static = match message.topic.name.rsplit('/').next() {
        Some(STATIC_TRANSFORMS) => true,
        Some(TRANSFORMS) => false,
        _ => return Ok(Decoded::Unread),
    };
    let TFMessage { transforms } = message.decode()?;
    let links = transforms.iter().map(|link| {
        let transform = link.isometry()?;
        let Frames { frame, child } = Frames::new(&link.header.frame_id, &link.child_frame_id)?;
        let stamp = (!is_static).then(|| Stamp::from(&link.header.stamp));
        Ok(SensorMessage::transform(&frame, &child, stamp, transform))
    });
    links.collect::<Result<_, String>>().map(Decoded::Transforms)
}
