//! Recordings of drives: the Aalto data's CSV files, MCAP files, rosbag2 folders.
//!
//! [`open`] guesses the kind from the path, reads the recording once from end to end, and returns a [`Recording`]: what
//! is in it ([`Summary`]), how the magnetometer sits on the robot, and what is missing ([`Loss`]). A recording is an
//! iterator of the measurements in recorded order; a file of any size is read a few messages at a time. Damage is no
//! error: what can be read is read, and the rest is reported.
//!
//! [`writer`] writes bags that ROS 2's tools play, [`convert`] turns a drive of the Aalto data into one.

pub mod aalto_csv;
pub mod convert;
mod error;
mod loss;
mod mcap;
pub mod messages;
mod playback;
mod rosbag2;
mod rosbag2_sqlite;
mod storage;
mod survey;
pub mod writer;

use std::path::{Path, PathBuf};

use nalgebra::{Isometry3, Translation3, UnitQuaternion};
use serde::Serialize;
use sha2::{Digest, Sha256};

use self::{
    aalto_csv::{Drive, DrivePath},
    messages::{Bool, MagneticField, Message, Odometry, TFMessage},
    playback::{Playback, Wanted},
    rosbag2::Bag,
    storage::{Format, StoredTopic},
    survey::{Frames, Survey, SurveyedTopic},
};
pub use self::{
    error::Error,
    loss::{Loss, Lost},
};
use crate::{
    config::{Sensor, Topics},
    mapping::{
        mapper::SourceId,
        reading::{Measurement, Stamp},
    },
};

/// How a recording is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A drive of the Aalto data: three CSV files.
    AaltoCsv,
    /// A single MCAP file.
    Mcap,
    /// A single SQLite database of rosbag2.
    Sqlite3,
    /// A rosbag2 folder with MCAP storage.
    Rosbag2Mcap,
    /// A rosbag2 folder with SQLite storage.
    Rosbag2Sqlite3,
}

/// What is in a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The path it was opened by.
    pub path: PathBuf,
    /// How it is stored.
    pub kind: Kind,
    /// All topics, by name; of a CSV drive, its files.
    pub topics: Vec<TopicSummary>,
    /// First and last time at which a message was recorded, in seconds; nothing when it is empty.
    pub span_seconds: Option<(f64, f64)>,
    /// The topic the readings are taken from; that of the yes/no signal, where one is named.
    pub magnetometer: Choice,
    /// The topic the poses are taken from.
    pub odometry: Choice,
    /// Frame of the readings; the robot's body, of a yes/no signal.
    pub magnetometer_frame: String,
    /// Frame of the poses: the frame of the map.
    pub odometry_frame: String,
    /// Frame of the robot's body, whose poses the odometry gives.
    pub body_frame: String,
    /// What is unusual and no loss, in words.
    pub notes: Vec<String>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicSummary {
    /// Its name.
    pub name: String,
    /// The type of its messages.
    pub type_name: String,
    /// How many messages were found.
    pub count: u64,
}

/// Which topic was taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Its name.
    pub topic: String,
    /// The others of the same type. Unless the configuration names one, the topic with most messages is taken, of
    /// equals the first by name.
    pub others: Vec<String>,
}

/// An open recording: an iterator of its measurements in recorded order.
///
/// After an error the iteration ends.
pub struct Recording {
    summary: Summary,
    mount: Isometry3<f64>,
    loss: Loss,
    source: Source,
}

enum Source {
    Drive { drive: Drive, next: usize },
    Bag(Box<Playback>),
}

/// Opens a recording: a drive of the Aalto data (`FOLDER/invensense/3` or one of its files), an MCAP file, a rosbag2
/// folder or one of its storage files.
///
/// `topics` names the topics to read; where it does not, they are found by their type. `sensor` may replace the
/// recording's static transforms.
///
/// # Errors
/// A path that names no recording, no topic of the needed types, a named topic that is not there (the error lists those
/// that are), frames that nothing links, and files that cannot be read at all. Damage further in is
/// [`Recording::loss`].
pub fn open(path: &Path, topics: &Topics, sensor: &Sensor) -> Result<Recording, Error> {
    let drive = if path.is_dir() { None } else { DrivePath::guess(path) };
    match drive {
        Some(drive) => Recording::from_drive(path, &drive, topics, sensor),
        None => Recording::from_bag(path, topics, sensor),
    }
}

impl Recording {
    /// What is in it.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The transform from the magnetometer's coordinates to those of the body whose poses the odometry gives.
    pub fn mount(&self) -> Isometry3<f64> {
        self.mount
    }

    /// Tells it from recordings of other content.
    pub fn id(&self) -> SourceId {
        let mut digest = Sha256::new();
        match &self.source {
            Source::Drive { drive, .. } => drive.digest(&mut digest),
            Source::Bag(playback) => playback.digest(&mut digest),
        }
        let Summary { kind, topics, span_seconds, .. } = &self.summary;
        // What a file's path says is no content: it may be moved.
        let counts: Vec<u64> = topics.iter().map(|topic| topic.count).collect();
        digest.update(format!("{kind:?} {counts:?} {span_seconds:?}"));
        SourceId { name: self.summary.path.display().to_string(), fingerprint: format!("{:x}", digest.finalize()) }
    }

    /// What is missing, known from the start: the recording was read once when it was opened.
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    fn from_drive(path: &Path, drive_path: &DrivePath, topics: &Topics, sensor: &Sensor) -> Result<Self, Error> {
        let drive = Drive::read(drive_path)?;
        let file = |kind: &str| drive_path.file(kind).display().to_string();
        if !topics.signal.is_empty() {
            let topics_there = ["loc", "mag"].map(file).to_vec();
            return Err(wrong_topic::<Bool>(path, "topics.signal", &topics.signal, topics_there));
        }
        let choice = |kind: &str| Choice { topic: file(kind), others: Vec::new() };
        let count = drive.len() as u64;
        let topic = |kind: &str, content: &str| TopicSummary { name: file(kind), type_name: content.into(), count };
        let mut notes = Vec::new();
        if drive.repeated_stamps > 0 {
            notes.push(format!(
                "{} rows repeat a stamp and are spread over the time to the next",
                drive.repeated_stamps
            ));
        }
        if sensor.override_transforms {
            notes.push(
                "sensor.override_transforms does not apply: the files give the sensor's own place and axes".into(),
            );
        }
        let ends = drive.seconds.first().copied().zip(drive.seconds.last().copied());
        let summary = Summary {
            path: path.into(),
            kind: Kind::AaltoCsv,
            topics: vec![topic("loc", "positions (CSV)"), topic("mag", "magnetic field (CSV)")],
            span_seconds: ends,
            magnetometer: choice("mag"),
            odometry: choice("loc"),
            magnetometer_frame: "room".into(),
            odometry_frame: "room".into(),
            body_frame: "room".into(),
            notes,
        };
        let (mount, loss) = (Isometry3::identity(), drive.loss.clone());
        Ok(Self { summary, mount, loss, source: Source::Drive { drive, next: 0 } })
    }

    fn from_bag(path: &Path, topics: &Topics, sensor: &Sensor) -> Result<Self, Error> {
        let bag = Bag::open(path)?;
        let survey = Survey::of(&bag)?;
        let magnetometer = match topics.signal.as_str() {
            "" => pick::<MagneticField>(path, &survey, "topics.magnetometer", &topics.magnetometer)?,
            signal => pick::<Bool>(path, &survey, "topics.signal", signal)?,
        };
        let is_signal = !topics.signal.is_empty();
        let odometry = pick::<Odometry>(path, &survey, "topics.odometry", &topics.odometry)?;
        let mount = match overriding_mount(sensor) {
            Some(mount) => mount,
            // Its messages name no frame.
            None if is_signal => sensor.mount(),
            None => recorded_mount(&survey, &magnetometer.frames.frame, &odometry.frames.child)?,
        };
        let notes = [magnetometer.note.clone(), odometry.note.clone()].into_iter().flatten();
        let summary = Summary {
            path: path.into(),
            kind: bag_kind(&bag),
            topics: topic_summaries(&survey),
            span_seconds: survey.span.map(|(start, end)| (start.seconds(), end.seconds())),
            magnetometer: magnetometer.choice(),
            odometry: odometry.choice(),
            magnetometer_frame: if is_signal { &odometry.frames.child } else { &magnetometer.frames.frame }.clone(),
            odometry_frame: odometry.frames.frame.clone(),
            body_frame: odometry.frames.child.clone(),
            notes: bag.notes.iter().cloned().chain(notes).collect(),
        };
        let loss = loss_of(&survey, [magnetometer.surveyed, odometry.surveyed]);
        let playback = Playback::new(bag, magnetometer.wanted(), odometry.wanted());
        Ok(Self { summary, mount, loss, source: Source::Bag(Box::new(playback)) })
    }
}

impl Iterator for Recording {
    type Item = Result<Measurement, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Drive { drive, next } => {
                let row = *next / 2;
                let is_pose = next.is_multiple_of(2);
                *next += 1;
                (row < drive.len()).then(|| {
                    Ok(if is_pose {
                        Measurement::Pose(drive.pose(row))
                    } else {
                        Measurement::Reading(drive.reading(row))
                    })
                })
            }
            Source::Bag(playback) => playback.next_measurement().transpose(),
        }
    }
}

impl std::iter::FusedIterator for Recording {}

/// The topic that was taken of those of one type.
struct Picked<'a> {
    surveyed: &'a SurveyedTopic,
    frames: Frames,
    others: Vec<String>,
    note: Option<String>,
}

impl Picked<'_> {
    fn choice(&self) -> Choice {
        Choice { topic: self.surveyed.topic.name.clone(), others: self.others.clone() }
    }

    fn wanted(self) -> Wanted {
        Wanted { topic: self.surveyed.topic.clone(), frames: self.frames }
    }
}

/// Takes the named topic, or the first of those of the type.
fn pick<'a, M: Message>(path: &Path, survey: &'a Survey, key: &'static str, named: &str) -> Result<Picked<'a>, Error> {
    let (fitting, others): (Vec<_>, Vec<_>) = survey
        .of_type(M::TYPE)
        .into_iter()
        .enumerate()
        .partition(|(index, topic)| if named.is_empty() { *index == 0 } else { topic.topic.name == named });
    let Some(&(_, surveyed)) = fitting.first() else {
        let (path, topics, expected) = (path.to_path_buf(), survey.listed(), M::TYPE);
        return Err(match named {
            "" => Error::NoTopic { path, expected, topics, loss: survey.loss.clone() },
            topic => wrong_topic::<M>(&path, key, topic, topics),
        });
    };
    let frames = surveyed.main_frames().cloned().ok_or_else(|| {
        let StoredTopic { name: topic, type_name: expected } = surveyed.topic.clone();
        Error::EmptyTopic { path: path.into(), topic, expected, loss: loss_of(survey, [surveyed]) }
    })?;
    let others: Vec<String> = others.into_iter().map(|(_, topic)| topic.topic.name.clone()).collect();
    let is_open = named.is_empty() && !others.is_empty();
    let note = is_open.then(|| {
        let (taken, not_taken) = (&surveyed.topic.name, others.join(", "));
        format!("several topics fit {key}, which names none: {taken} was taken, {not_taken} were not")
    });
    Ok(Picked { surveyed, frames, others, note })
}

/// There is no such topic of the type among those that are there.
fn wrong_topic<M: Message>(path: &Path, key: &'static str, topic: &str, topics: Vec<String>) -> Error {
    Error::WrongTopic { path: path.into(), topic: topic.into(), expected: M::TYPE, key, topics }
}

/// What is missing of the whole bag, of these topics and of the transforms.
fn loss_of<'a>(survey: &'a Survey, topics: impl IntoIterator<Item = &'a SurveyedTopic>) -> Loss {
    let mut loss = survey.loss.clone();
    for topic in topics.into_iter().chain(survey.of_type(TFMessage::TYPE)) {
        topic.add_loss(&mut loss);
    }
    loss
}

fn topic_summaries(survey: &Survey) -> Vec<TopicSummary> {
    let summary = |surveyed: &SurveyedTopic| {
        let StoredTopic { name, type_name } = surveyed.topic.clone();
        TopicSummary { name, type_name, count: surveyed.count }
    };
    let mut topics: Vec<TopicSummary> = survey.topics.iter().map(summary).collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    topics
}

fn bag_kind(bag: &Bag) -> Kind {
    match (bag.is_folder, bag.format) {
        (true, Format::Sqlite3) => Kind::Rosbag2Sqlite3,
        (true, _) => Kind::Rosbag2Mcap,
        (false, Format::Sqlite3) => Kind::Sqlite3,
        (false, _) => Kind::Mcap,
    }
}

/// How the sensor sits, where the configuration is to say it.
fn overriding_mount(sensor: &Sensor) -> Option<Isometry3<f64>> {
    let [roll, pitch, yaw] = sensor.orientation;
    let rotation = UnitQuaternion::from_euler_angles(roll, pitch, yaw);
    sensor.override_transforms.then(|| Isometry3::from_parts(Translation3::from(sensor.position), rotation))
}

/// How the sensor sits, from the static transforms.
fn recorded_mount(survey: &Survey, sensor: &str, body: &str) -> Result<Isometry3<f64>, Error> {
    survey.frames.transform(sensor, body, Stamp::default()).map_err(|_| Error::FramesNotLinked {
        sensor: sensor.into(),
        body: body.into(),
        links: survey.frames.links(),
    })
}
