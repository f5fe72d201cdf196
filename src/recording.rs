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
mod frames;
mod loss;
mod mcap;
pub mod messages;
mod rosbag2;
mod rosbag2_sqlite;
mod storage;
mod survey;
pub mod writer;

use std::path::{Path, PathBuf};

use nalgebra::{Isometry3, Translation3, UnitQuaternion};
use serde::Serialize;

use self::{
    aalto_csv::{Drive, DrivePath},
    messages::{MagneticField, Message, Odometry},
    rosbag2::Bag,
    storage::{FileReader, Format, RawMessage, StoredTopic, decode},
    survey::{Frames, Survey, SurveyedTopic},
};
pub use self::{
    error::Error,
    loss::{Loss, Lost},
};
use crate::{
    config::{Sensor, Topics},
    mapping::reading::Measurement,
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
    /// The topic the readings are taken from.
    pub magnetometer: Choice,
    /// The topic the poses are taken from.
    pub odometry: Choice,
    /// Frame of the readings.
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
        Some(drive) => Recording::from_drive(path, &drive, sensor),
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

    /// What is missing, known from the start: the recording was read once when it was opened.
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    fn from_drive(path: &Path, drive_path: &DrivePath, sensor: &Sensor) -> Result<Self, Error> {
        let drive = Drive::read(drive_path)?;
        let file = |kind: &str| drive_path.file(kind).display().to_string();
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
        let magnetometer = choose::<MagneticField>(path, &survey, "topics.magnetometer", &topics.magnetometer)?;
        let odometry = choose::<Odometry>(path, &survey, "topics.odometry", &topics.odometry)?;
        let magnetometer_frames = main_frames(path, &survey, magnetometer)?;
        let odometry_frames = main_frames(path, &survey, odometry)?;
        let mut loss = survey.loss.clone();
        magnetometer.add_loss(&mut loss);
        odometry.add_loss(&mut loss);
        let mount = match overriding_mount(sensor) {
            Some(mount) => mount,
            None => recorded_mount(&survey, &magnetometer_frames.frame, &odometry_frames.child)?,
        };
        let mut notes = bag.notes.clone();
        let (magnetometer_choice, odometry_choice) = (choice(&survey, magnetometer), choice(&survey, odometry));
        for (key, choice) in [("topics.magnetometer", &magnetometer_choice), ("topics.odometry", &odometry_choice)] {
            if !choice.others.is_empty() {
                let others = choice.others.join(", ");
                notes.push(format!("several topics fit {key}: {} was taken, {others} were not", choice.topic));
            }
        }
        let summary = Summary {
            path: path.into(),
            kind: bag_kind(&bag),
            topics: topic_summaries(&survey),
            span_seconds: survey.span.map(|(start, end)| (start.seconds(), end.seconds())),
            magnetometer: magnetometer_choice,
            odometry: odometry_choice,
            magnetometer_frame: magnetometer_frames.frame.clone(),
            odometry_frame: odometry_frames.frame.clone(),
            body_frame: odometry_frames.child.clone(),
            notes,
        };
        let playback = Playback {
            magnetometer: (magnetometer.topic.clone(), magnetometer_frames),
            odometry: (odometry.topic.clone(), odometry_frames),
            bag,
            next_file: 0,
            reader: None,
        };
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

/// The second reading of a bag.
struct Playback {
    bag: Bag,
    magnetometer: Wanted,
    odometry: Wanted,
    next_file: usize,
    reader: Option<FileReader>,
}

impl Playback {
    fn next_measurement(&mut self) -> Result<Option<Measurement>, Error> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(file) = self.bag.files.get(self.next_file) else { return Ok(None) };
                self.next_file += 1;
                self.reader = Some(file.reader().inspect_err(|_| self.next_file = usize::MAX)?);
                continue;
            };
            match reader.next_message() {
                Ok(Some(message)) => {
                    if let Some(measurement) = measurement(&message, &self.magnetometer, &self.odometry) {
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

/// A topic to read and the frames its messages should be in.
type Wanted = (StoredTopic, Frames);

/// The measurement in a message, if it is on one of the wanted topics. What cannot be decoded or is in another frame
/// was counted as loss by the survey.
fn measurement(message: &RawMessage<'_>, magnetometer: &Wanted, odometry: &Wanted) -> Option<Measurement> {
    if *message.topic == magnetometer.0 {
        let field: MagneticField = decode(message.data).ok()?;
        return (Frames::of_field(&field) == magnetometer.1).then(|| Measurement::Reading(field.to_reading()));
    }
    if *message.topic == odometry.0 {
        let pose: Odometry = decode(message.data).ok()?;
        let is_wanted = Frames::of_odometry(&pose) == odometry.1;
        return pose.to_pose().ok().filter(|_| is_wanted).map(Measurement::Pose);
    }
    None
}

/// The topic of a type: the named one, or the first of those that fit.
fn choose<'a, M: Message>(
    path: &Path,
    survey: &'a Survey,
    key: &'static str,
    named: &str,
) -> Result<&'a SurveyedTopic, Error> {
    let mut fitting = survey.of_type(M::TYPE).into_iter();
    let (path, topics, expected) = (path.to_path_buf(), survey.listed(), M::TYPE);
    let found = fitting.find(|topic| named.is_empty() || topic.topic.name == named);
    found.ok_or_else(|| match named {
        "" => Error::NoTopic { path, expected, topics, loss: survey.loss.clone() },
        topic => Error::WrongTopic { path, topic: topic.into(), expected, key, topics },
    })
}

/// The choice that was made, with the alternatives there were.
fn choice(survey: &Survey, chosen: &SurveyedTopic) -> Choice {
    let all = survey.of_type(&chosen.topic.type_name).into_iter().map(|topic| topic.topic.name.clone());
    let topic = chosen.topic.name.clone();
    Choice { others: all.filter(|name| *name != topic).collect(), topic }
}

fn main_frames(path: &Path, survey: &Survey, topic: &SurveyedTopic) -> Result<Frames, Error> {
    topic.main_frames().cloned().ok_or_else(|| {
        let mut loss = survey.loss.clone();
        topic.add_loss(&mut loss);
        let StoredTopic { name: topic, type_name: expected } = topic.topic.clone();
        Error::EmptyTopic { path: path.into(), topic, expected, loss }
    })
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
    survey.frames.transform(sensor, body).ok_or_else(|| Error::FramesNotLinked {
        sensor: sensor.into(),
        body: body.into(),
        links: survey.frames.links(),
    })
}
