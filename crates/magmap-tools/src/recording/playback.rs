//! The second pass over a bag: its readings, poses and transforms, one after the other.

use std::collections::VecDeque;

use sha2::{Digest, Sha256};

use super::Error;
use super::decoding::{Decoded, Frames, decode};
use super::rosbag2::Bag;
use super::storage::{FileReader, StoredTopic};
use magmap::sensing::intake::SensorMessage;

/// A topic to read, and the frames its messages should be in.
pub(super) struct Wanted {
    pub(super) topic: StoredTopic,
    pub(super) frames: Frames,
}

/// The second pass over a bag.
pub(super) struct Playback {
    pub(super) bag: Bag,
    /// The topic of the readings and, where there is one, that of the poses.
    wanted: Vec<Wanted>,
    /// Transforms that come next.
    transforms: VecDeque<SensorMessage>,
    next_file: usize,
    reader: Option<Box<dyn FileReader>>,
}

impl Playback {
    /// Starts with the `fixed` transforms, which hold at all times, as a robot's node is told them before anything else.
    pub(super) fn new(bag: Bag, wanted: Vec<Wanted>, fixed: Vec<SensorMessage>) -> Self {
        Self { bag, wanted, transforms: fixed.into(), next_file: 0, reader: None }
    }

    /// Adds the sizes of the files, which are known without reading them again.
    pub(super) fn digest(&self) -> Sha256 {
        let mut digest = Sha256::new();
        for file in &self.bag.files {
            digest.update(std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len()).to_le_bytes());
        }
        digest
    }

    /// The next message in recorded order; `None` at the end and after an error.
    pub(super) fn next_message(&mut self) -> Result<Option<SensorMessage>, Error> {
        let next = self.find_message();
        if next.is_err() {
            (self.reader, self.next_file) = (None, usize::MAX);
        }
        next
    }

    fn find_message(&mut self) -> Result<Option<SensorMessage>, Error> {
        loop {
            if let Some(transform) = self.transforms.pop_front() {
                return Ok(Some(transform));
            }
            let Some(reader) = &mut self.reader else {
                let Some(file) = self.bag.files.get(self.next_file) else { return Ok(None) };
                self.next_file += 1;
                self.reader = Some(file.reader()?);
                continue;
            };
            let Some(message) = reader.next_message()? else {
                self.reader = None;
                continue;
            };
            // Messages that cannot be decoded or are in another frame were counted as loss by the contents.
            match decode(&message) {
                Ok(Decoded::Transforms(transforms)) => self.transforms.extend(transforms),
                Ok(Decoded::Measurement(frames, measurement)) => {
                    let is_wanted = |wanted: &Wanted| wanted.topic == *message.topic && wanted.frames == frames;
                    if self.wanted.iter().any(is_wanted) {
                        return Ok(Some(frames.message(measurement)));
                    }
                }
                _ => {}
            }
        }
    }
}
