//! The first pass over a bag: what is in it, which topics to take, how the sensor sits, and what is missing.

use std::collections::BTreeMap;

use super::decoding::{Decoded, Frames, decode};
use super::rosbag2::Bag;
use super::storage::{FileReader, StoredTopic};
use super::{Error, Loss};
use magmap::sensing::frames::FrameTree;
use magmap::sensing::intake::SensorMessage;
use magmap::sensing::reading::Stamp;

/// Largest number of pairs of frames that are distinguished, over all topics.
const MAX_FRAMES: usize = 10_000;

/// The contents of a bag.
#[derive(Default)]
pub(super) struct BagContents {
    /// In the order of their first messages.
    pub(super) topics: Vec<TopicContents>,
    pub(super) span: Option<(Stamp, Stamp)>,
    /// All transforms, of which moving ones are remembered for a while only.
    pub(super) frames: FrameTree,
    /// The first fixed transform of each frame.
    pub(super) fixed: Vec<SensorMessage>,
    pub(super) loss: Loss,
    /// Number of pairs of frames on all topics.
    frame_pairs: usize,
}

/// The contents of a topic.
pub(super) struct TopicContents {
    pub(super) topic: StoredTopic,
    pub(super) count: u64,
    /// Number of messages by their frames; only for measurements.
    frames: BTreeMap<Frames, u64>,
    /// Number of messages that cannot be decoded, and why the first one cannot.
    undecodable: Option<(u64, String)>,
}

impl BagContents {
    /// Reads the whole bag once.
    pub(super) fn of(bag: &Bag) -> Result<Self, Error> {
        let mut contents = Self { loss: bag.loss.clone(), ..Self::default() };
        for file in &bag.files {
            contents.read(file.reader()?)?;
        }
        contents.compare_counts(&bag.counts);
        Ok(contents)
    }

    fn read(&mut self, mut reader: Box<dyn FileReader>) -> Result<(), Error> {
        while let Some(message) = reader.next_message()? {
            let index = self.index(message.topic);
            self.take(index, message.stamp, decode(&message));
        }
        let (topics, loss) = reader.found();
        for topic in &topics {
            self.index(topic);
        }
        self.loss.extend(loss);
        Ok(())
    }

    /// The index of a topic, which is added if it is new.
    fn index(&mut self, topic: &StoredTopic) -> usize {
        self.topics.iter().position(|known| known.topic == *topic).unwrap_or_else(|| {
            let topic = topic.clone();
            self.topics.push(TopicContents { topic, count: 0, frames: BTreeMap::new(), undecodable: None });
            self.topics.len() - 1
        })
    }

    fn take(&mut self, index: usize, stamp: Stamp, decoded: Result<Decoded, String>) {
        let topic = &mut self.topics[index];
        topic.count += 1;
        let (start, end) = self.span.unwrap_or((stamp, stamp));
        self.span = Some((start.min(stamp), end.max(stamp)));
        match decoded {
            Ok(Decoded::Measurement(frames, _)) => {
                let is_new = !topic.frames.contains_key(&frames);
                if is_new && self.frame_pairs == MAX_FRAMES {
                    return self.loss.add("messages, of more frames than a robot has", 1, None);
                }
                self.frame_pairs += usize::from(is_new);
                *topic.frames.entry(frames).or_default() += 1;
            }
            Ok(Decoded::Transforms(transforms)) => transforms.into_iter().for_each(|one| self.take_transform(one)),
            Ok(Decoded::Unread) => {}
            Err(reason) => topic.undecodable.get_or_insert((0, reason)).0 += 1,
        }
    }

    fn take_transform(&mut self, message: SensorMessage) {
        let SensorMessage::Transform { parent, child, stamp, transform } = &message else { return };
        let is_new = !self.frames.has(child);
        let rejected = match stamp {
            Some(stamp) => self.frames.insert_moving(parent, child, *stamp, *transform),
            None => self.frames.insert_fixed(parent, child, *transform),
        };
        if rejected > 0 && is_new {
            self.loss.add("transforms, of more frames than a robot has", rejected, None);
        } else if is_new && stamp.is_none() {
            self.fixed.push(message);
        }
    }

    /// Counts the messages that the metadata states and the files do not hold.
    fn compare_counts(&mut self, stated: &[(String, u64)]) {
        for (name, stated) in stated {
            let found = self.topics.iter().filter(|topic| topic.topic.name == *name).map(|topic| topic.count).sum();
            if *stated > found {
                let what = format!("of the {stated} messages on {name} that metadata.yaml counts");
                self.loss.add(&what, stated - found, None);
            }
        }
    }

    /// The topics of a type: those with the most messages first, then by name.
    pub(super) fn of_type(&self, type_name: &str) -> Vec<&TopicContents> {
        let mut topics: Vec<_> = self.topics.iter().filter(|topic| topic.topic.type_name == type_name).collect();
        topics.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.topic.name.cmp(&b.topic.name)));
        topics
    }
}

impl TopicContents {
    /// The frames of most of its messages; `None` when none could be decoded.
    pub(super) fn main_frames(&self) -> Option<&Frames> {
        self.frames.iter().rev().max_by_key(|(_, count)| **count).map(|(frames, _)| frames)
    }

    /// Adds the messages that cannot be used: those that are damaged, or in other frames than most.
    pub(super) fn add_loss(&self, loss: &mut Loss) {
        let name = &self.topic.name;
        if let Some((count, reason)) = &self.undecodable {
            loss.add(&format!("messages on {name} cannot be decoded"), *count, Some(reason.clone()));
        }
        let Some(main) = self.main_frames() else { return };
        for (frames, count) in self.frames.iter().filter(|(frames, _)| *frames != main) {
            let what = format!(
                "messages on {name} are in frame {:?} {:?}, not in {:?} {:?} as most",
                frames.frame, frames.child, main.frame, main.child
            );
            loss.add(&what, *count, None);
        }
    }
}
