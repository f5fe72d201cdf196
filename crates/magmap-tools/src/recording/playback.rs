//! The second pass over a bag: its measurements, one after the other.

use sha2::{Digest, Sha256};

use super::Error;
use super::decoding::{Decoded, Frames, decode};
use super::rosbag2::Bag;
use super::storage::{FileReader, RawMessage, StoredTopic};
use magmap::sensing::reading::Measurement;

/// A topic to read, and the frames its messages should be in.
pub(super) struct Wanted {
    pub(super) topic: StoredTopic,
    pub(super) frames: Frames,
}

/// The second pass over a bag.
pub(super) struct Playback {
    pub(super) bag: Bag,
    /// The topic of the readings and that of the poses.
    wanted: [Wanted; 2],
    next_file: usize,
    reader: Option<Box<dyn FileReader>>,
}

impl Playback {
    /// Starts with the first message of a bag.
    pub(super) fn new(bag: Bag, wanted: [Wanted; 2]) -> Self {
        Self { bag, wanted, next_file: 0, reader: None }
    }

    /// Adds the sizes of the files, which are known without reading them again.
    pub(super) fn digest(&self) -> Sha256 {
        let mut digest = Sha256::new();
        for file in &self.bag.files {
            digest.update(std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len()).to_le_bytes());
        }
        digest
    }

    /// The next reading or pose in recorded order; `None` at the end and after an error.
    pub(super) fn next_measurement(&mut self) -> Result<Option<Measurement>, Error> {
        let next = self.find_measurement();
        if next.is_err() {
            (self.reader, self.next_file) = (None, usize::MAX);
        }
        next
    }

    fn find_measurement(&mut self) -> Result<Option<Measurement>, Error> {
        loop {
            if let Some(reader) = &mut self.reader {
                while let Some(message) = reader.next_message()? {
                    if let Some(measurement) = wanted_measurement(&message, &self.wanted) {
                        return Ok(Some(measurement));
                    }
                }
            }
            let Some(file) = self.bag.files.get(self.next_file) else { return Ok(None) };
            self.next_file += 1;
            self.reader = Some(file.reader()?);
        }
    }
}

/// The measurement in a message, if it is on one of the wanted topics. Messages that cannot be decoded or are in another frame
/// were counted as loss by the survey.
fn wanted_measurement(message: &RawMessage<'_>, wanted: &[Wanted]) -> Option<Measurement> {
    let wanted = wanted.iter().find(|wanted| wanted.topic == *message.topic)?;
    match decode(message) {
        Ok(Decoded::Measurement(frames, measurement)) if frames == wanted.frames => Some(measurement),
        _ => None,
    }
}
