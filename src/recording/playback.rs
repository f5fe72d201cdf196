//! The second reading of a bag: its measurements, one after the other.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::{
    Error,
    messages::{Bool, MagneticField, Message, Odometry},
    rosbag2::Bag,
    storage::{FileReader, RawMessage, StoredTopic},
    survey::Frames,
};
use crate::mapping::reading::{Measurement, Reading};

/// A topic to read, and the frames its messages should be in.
pub(super) struct Wanted {
    pub(super) topic: StoredTopic,
    pub(super) frames: Frames,
}

/// The second reading of a bag.
pub(super) struct Playback {
    bag: Bag,
    /// The topic of the readings: a magnetometer's, or of a yes/no signal.
    readings: Wanted,
    odometry: Wanted,
    next_file: usize,
    reader: Option<FileReader>,
}

impl Playback {
    /// Starts at the beginning of a bag.
    pub(super) fn new(bag: Bag, readings: Wanted, odometry: Wanted) -> Self {
        Self { bag, readings, odometry, next_file: 0, reader: None }
    }

    /// Adds how long the files are, which is known without reading them once more.
    pub(super) fn digest(&self, digest: &mut Sha256) {
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        self.bag.files.iter().for_each(|file| digest.update(length(&file.path).to_le_bytes()));
    }

    /// The next reading or pose in recorded order; nothing at the end and after an error.
    pub(super) fn next_measurement(&mut self) -> Result<Option<Measurement>, Error> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(file) = self.bag.files.get(self.next_file) else { return Ok(None) };
                self.next_file += 1;
                self.reader = Some(file.reader().inspect_err(|_| self.next_file = usize::MAX)?);
                continue;
            };
            match reader.next_message() {
                Ok(Some(message)) => {
                    if let Some(measurement) = measurement(&message, &self.readings, &self.odometry) {
                        return Ok(Some(measurement));
                    }
                }
                Ok(None) => self.reader = None,
                Err(error) => {
                    self.reader = None;
                    self.next_file = usize::MAX;
                    return Err(error);
                }
            }
        }
    }
}

/// The measurement in a message, if it is on one of the wanted topics. What cannot be decoded or is in another frame
/// was counted as loss by the survey.
fn measurement(message: &RawMessage<'_>, readings: &Wanted, odometry: &Wanted) -> Option<Measurement> {
    if *message.topic == readings.topic && readings.topic.type_name == Bool::TYPE {
        let Bool { data } = message.decode().ok()?;
        // It has no stamp of its own.
        return Some(Measurement::Reading(Reading::of_signal(message.stamp, data)));
    }
    if *message.topic == readings.topic {
        let field: MagneticField = message.decode().ok()?;
        return (Frames::of_field(&field) == readings.frames).then(|| Measurement::Reading(field.to_reading()));
    }
    if *message.topic == odometry.topic {
        let pose: Odometry = message.decode().ok()?;
        let is_wanted = Frames::of_odometry(&pose) == odometry.frames;
        return pose.to_pose().ok().filter(|_| is_wanted).map(Measurement::Pose);
    }
    None
}
