//! Decodes stored messages into measurements and transforms.

use nalgebra::Isometry3;

use super::messages::{MagneticField, Message, Odometry, TFMessage};
use super::storage::{MAX_NAME, RawMessage};
use magmap::sensing::frames::normalized;
use magmap::sensing::reading::Measurement;

/// How the name of the topic of static transforms ends, after its namespaces.
const STATIC_TRANSFORMS: &str = "tf_static";

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

/// A decoded message.
pub(super) enum Decoded {
    /// A reading or a pose.
    Measurement(Frames, Measurement),
    /// Static transforms, each from the child to its parent.
    StaticTransforms(Vec<(Frames, Isometry3<f64>)>),
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
        TFMessage::TYPE if message.topic.name.ends_with(STATIC_TRANSFORMS) => {
            let TFMessage { transforms } = message.decode()?;
            let links = transforms.iter().map(|link| {
                let transform = link.isometry()?;
                Ok((Frames::new(&link.header.frame_id, &link.child_frame_id)?, transform))
            });
            return links.collect::<Result<_, String>>().map(Decoded::StaticTransforms);
        }
        _ => return Ok(Decoded::Unread),
    };
    Ok(Decoded::Measurement(frames, measurement))
}
