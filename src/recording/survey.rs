//! The first reading of a bag: what is in it, which topics to take, how the sensor sits, and what is missing.

use std::collections::BTreeMap;

use nalgebra::Isometry3;

use super::{
    Error, Loss,
    messages::{Bool, MagneticField, Message, Odometry, TFMessage},
    rosbag2::Bag,
    storage::{FileReader, MAX_NAME, RawMessage, StoredTopic},
};
use crate::mapping::frames::{FrameTree, normalized};
use crate::mapping::reading::Stamp;

/// How the name of the topic of static transforms ends, namespaces before it.
const STATIC_TRANSFORMS: &str = "tf_static";

/// Most pairs of frames that are told apart, over all topics.
const MAX_FRAMES: usize = 10_000;

/// What was found in a bag.
#[derive(Default)]
pub(super) struct Survey {
    /// In the order in which they were met.
    pub(super) topics: Vec<SurveyedTopic>,
    pub(super) span: Option<(Stamp, Stamp)>,
    pub(super) frames: FrameTree,
    pub(super) loss: Loss,
    /// How many pairs of frames the topics hold.
    frame_pairs: usize,
}

/// What was found on one topic.
pub(super) struct SurveyedTopic {
    pub(super) topic: StoredTopic,
    pub(super) count: u64,
    /// How many messages came in which frames; only for magnetometer and odometry.
    frames: BTreeMap<Frames, u64>,
    /// How many messages could not be decoded, and why the first could not.
    undecodable: Option<(u64, String)>,
}

/// The frames a message names; the child is empty for a magnetometer, both are for a yes/no signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frames {
    pub(super) frame: String,
    pub(super) child: String,
}

impl Frames {
    pub(super) fn of_field(message: &MagneticField) -> Self {
        Self { frame: normalized(&message.header.frame_id).into(), child: String::new() }
    }

    pub(super) fn of_odometry(message: &Odometry) -> Self {
        Self { frame: normalized(&message.header.frame_id).into(), child: normalized(&message.child_frame_id).into() }
    }

    /// Themselves, unless a name is longer than one can be.
    fn checked(self) -> Result<Self, String> {
        let length = self.frame.len().max(self.child.len());
        if length <= MAX_NAME {
            return Ok(self);
        }
        Err(format!("the name of its frame has {length} bytes, more than {MAX_NAME}"))
    }
}

impl Survey {
    /// Reads the whole bag once.
    pub(super) fn of(bag: &Bag) -> Result<Self, Error> {
        let mut survey = Self { loss: bag.loss.clone(), ..Self::default() };
        for file in &bag.files {
            let mut reader = file.reader()?;
            survey.read(&mut reader)?;
            survey.loss.extend(reader.loss());
        }
        survey.compare_counts(&bag.counts);
        Ok(survey)
    }

    fn read(&mut self, reader: &mut FileReader) -> Result<(), Error> {
        while let Some(message) = reader.next_message()? {
            let index = self.index(message.topic);
            self.take(index, message.stamp, decode_surveyed(&message));
        }
        for topic in reader.topics() {
            self.index(topic);
        }
        Ok(())
    }

    /// The index of a topic, which is taken up where it is new.
    fn index(&mut self, topic: &StoredTopic) -> usize {
        self.topics.iter().position(|known| known.topic == *topic).unwrap_or_else(|| {
            let topic = topic.clone();
            self.topics.push(SurveyedTopic { topic, count: 0, frames: BTreeMap::new(), undecodable: None });
            self.topics.len() - 1
        })
    }

    fn take(&mut self, index: usize, stamp: Stamp, found: Result<Found, String>) {
        let topic = &mut self.topics[index];
        topic.count += 1;
        let (start, end) = self.span.unwrap_or((stamp, stamp));
        self.span = Some((start.min(stamp), end.max(stamp)));
        match found {
            Ok(Found::Measured(frames)) => {
                let is_new = !topic.frames.contains_key(&frames);
                if is_new && self.frame_pairs == MAX_FRAMES {
                    return self.loss.add("messages, of more frames than a robot has", 1, None);
                }
                self.frame_pairs += usize::from(is_new);
                *topic.frames.entry(frames).or_default() += 1;
            }
            Ok(Found::Links(links)) => {
                for (parent, child, at) in &links {
                    if !self.frames.insert_fixed(parent, child, *at) {
                        self.loss.add("static transforms, of more frames than a robot has", 1, None);
                    }
                }
            }
            Ok(Found::Unread) => {}
            Err(reason) => topic.undecodable.get_or_insert((0, reason)).0 += 1,
        }
    }

    /// Counts what the metadata promised and the files do not hold.
    fn compare_counts(&mut self, stated: &[(String, u64)]) {
        for (name, stated) in stated {
            let found = self.topics.iter().filter(|topic| topic.topic.name == *name).map(|topic| topic.count).sum();
            if *stated > found {
                let what = format!("of the {stated} messages on {name} that metadata.yaml counts");
                self.loss.add(&what, stated - found, None);
            }
        }
    }

    /// `name (type)` of every topic, sorted.
    pub(super) fn listed(&self) -> Vec<String> {
        let topics =
            self.topics.iter().map(|SurveyedTopic { topic, .. }| format!("{} ({})", topic.name, topic.type_name));
        let mut topics: Vec<String> = topics.collect();
        topics.sort();
        topics
    }

    /// The topics of a type: those with most messages first, then by name.
    pub(super) fn of_type(&self, type_name: &str) -> Vec<&SurveyedTopic> {
        let mut topics: Vec<_> = self.topics.iter().filter(|topic| topic.topic.type_name == type_name).collect();
        topics.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.topic.name.cmp(&b.topic.name)));
        topics
    }
}

impl SurveyedTopic {
    /// The frames that most of its messages name; nothing when none could be decoded.
    pub(super) fn main_frames(&self) -> Option<&Frames> {
        self.frames.iter().rev().max_by_key(|(_, count)| **count).map(|(frames, _)| frames)
    }

    /// Adds what of this topic cannot be used: messages that are damaged, or in other frames than most.
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

/// What one message holds for the survey.
enum Found {
    /// A reading or a pose in these frames.
    Measured(Frames),
    /// Static transforms: parent, child, child to parent.
    Links(Vec<(String, String, Isometry3<f64>)>),
    /// Of a type, or on a topic, that is not read.
    Unread,
}

fn decode_surveyed(message: &RawMessage<'_>) -> Result<Found, String> {
    let topic = message.topic;
    match topic.type_name.as_str() {
        Bool::TYPE => message.decode::<Bool>().map(|_| Found::Measured(Frames::default())),
        MagneticField::TYPE => Frames::of_field(&message.decode()?).checked().map(Found::Measured),
        Odometry::TYPE => {
            let message: Odometry = message.decode()?;
            message.to_pose().map_err(|error| error.to_string())?;
            Frames::of_odometry(&message).checked().map(Found::Measured)
        }
        TFMessage::TYPE if topic.name.ends_with(STATIC_TRANSFORMS) => {
            let message: TFMessage = message.decode()?;
            let links = message.transforms.iter().map(|link| {
                let at = link.isometry().map_err(|error| error.to_string())?;
                let Frames { frame, child } =
                    Frames { frame: link.header.frame_id.clone(), child: link.child_frame_id.clone() }.checked()?;
                Ok((frame, child, at))
            });
            links.collect::<Result<_, String>>().map(Found::Links)
        }
        _ => Ok(Found::Unread),
    }
}
