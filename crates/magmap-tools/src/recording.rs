//! Recordings of drives: the Aalto data's CSV files, surveys as plain CSV, MCAP files, rosbag2 folders.
//!
//! [`open`] guesses the kind from the path, reads the recording once from end to end, and returns a [`Recording`]: its
//! content ([`Summary`]), the place of the magnetometer on the robot, and what is missing ([`Loss`]). A recording is an
//! iterator of readings, poses and transforms in recorded order, as a robot's node would hear them, for an
//! [`Intake`]; a file of any size is read a few messages at a time. Damage is not an
//! error: what can be read is read, and the rest is reported.
//!
//! [`writer`] writes bags that ROS 2's tools play, [`convert`] converts a drive of the Aalto data to one.

pub mod aalto_csv;
mod contents;
pub mod convert;
mod decoding;
pub mod drive_writer;
mod error;
mod loss;
mod mcap;
pub mod messages;
mod playback;
mod rosbag2;
mod rosbag2_sqlite;
mod storage;
mod survey_table;
mod truth;
pub mod tum;
pub mod writer;

use std::fmt;
use std::path::{Path, PathBuf};

use nalgebra::Isometry3;
use serde::Serialize;
use sha2::{Digest, Sha256};
use strum::EnumMessage;

use self::aalto_csv::{AaltoDrive, DrivePath};
use self::contents::{BagContents, TopicContents};
use self::decoding::Frames;
pub use self::error::Error;
pub(crate) use self::loss::nothing_used;
pub use self::loss::{Loss, Lost};
use self::messages::{MagneticField, Message, Odometry, TFMessage};
use self::playback::{Playback, Wanted};
use self::rosbag2::Bag;
use self::storage::{Format, StoredTopic};
use self::survey_table::SurveyTable;
use magmap::config::{Config, PoseSource, Sensor};
use magmap::mapping::mapper::SourceId;
use magmap::sensing::frames::normalized;
use magmap::sensing::intake::{Input, Inputs, Intake, SensorMessage};
use magmap::sensing::reading::Measurement;

/// How a recording is stored; the comment of each kind is what a person reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, EnumMessage)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// drive of the Aalto data (CSV)
    AaltoCsv,
    /// survey (CSV)
    SurveyCsv,
    /// MCAP file
    Mcap,
    /// SQLite database of rosbag2
    Sqlite3,
    /// rosbag2 folder with MCAP storage
    Rosbag2Mcap,
    /// rosbag2 folder with SQLite storage
    Rosbag2Sqlite3,
}

/// The content of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The path it was opened with.
    pub path: PathBuf,
    /// How it is stored.
    pub kind: Kind,
    /// All topics, by name; of a CSV drive, its files.
    pub topics: Vec<TopicSummary>,
    /// First and last time at which a message was recorded, in seconds; `None` when it is empty.
    pub span_seconds: Option<(f64, f64)>,
    /// The topic of the readings.
    pub magnetometer: Choice,
    /// The topic of the poses.
    pub odometry: Choice,
    /// Frame of the readings.
    pub magnetometer_frame: String,
    /// Frame of the poses: the frame of the map, unless frames.map names another.
    pub odometry_frame: String,
    /// Frame of the robot's body, whose poses the odometry gives.
    pub body_frame: String,
    /// Peculiarities that are no loss.
    pub notes: Vec<String>,
}

/// A topic of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicSummary {
    /// Name of the topic.
    pub name: String,
    /// The type of its messages.
    pub type_name: String,
    /// Number of messages.
    pub count: u64,
}

impl fmt::Display for TopicSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.name, self.type_name)
    }
}

/// A chosen topic; its name is empty if no topic is needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Choice {
    /// Name of the topic.
    pub topic: String,
    /// Other topics of the same type. Unless the configuration names a topic, the one with the most messages is chosen;
    /// of equals, the first by name.
    pub others: Vec<String>,
}

/// An open recording: an iterator of its messages in recorded order, fixed transforms first.
///
/// After an error the iteration ends.
pub struct Recording {
    /// The content.
    pub summary: Summary,
    /// The transform from the magnetometer's coordinates to those of the body whose poses the odometry gives; of a sensor that moves on the
    /// body, at the end.
    pub mount: Isometry3<f64>,
    /// The intake of its messages, under the settings that it was opened with.
    pub intake: Intake,
    /// Missing parts; known from the start, because the recording was read once when it was opened.
    pub loss: Loss,
    source: Source,
}

enum Source {
    /// Files that were read whole, with the digest of their content.
    Files {
        messages: std::vec::IntoIter<SensorMessage>,
        digest: Sha256,
    },
    Bag(Box<Playback>),
}

/// Opens a recording: a drive of the Aalto data (`FOLDER/invensense/3` or one of its files), a survey as plain CSV, an MCAP
/// file, a rosbag2 folder or one of its storage files.
///
/// The settings name the topics to read (topics without a name are found by their type), where poses come from, the frame of the map,
/// and may replace the recorded mount of the sensor.
///
/// # Errors
/// A path that is not that of a recording, no topic of the needed types, a named topic that does not exist (the error lists
/// those that do), frames that no transforms link, and files that cannot be read at all. Damage within a file is
/// [`Recording::loss`].
pub fn open(path: &Path, config: &Config) -> Result<Recording, Error> {
    let drive = if path.is_dir() { None } else { DrivePath::guess(path) };
    match drive {
        Some(drive) => Recording::from_drive(path, &drive, config),
        None if SurveyTable::is_at(path) => Recording::from_table(path, config),
        None => Recording::from_bag(path, config),
    }
}

impl Recording {
    /// Identifies its content.
    pub fn id(&self) -> SourceId {
        let mut digest = match &self.source {
            Source::Files { digest, .. } => digest.clone(),
            Source::Bag(playback) => playback.digest(),
        };
        let Summary { kind, topics, span_seconds, .. } = &self.summary;
        // Its path is not content: it may be moved.
        let counts: Vec<u64> = topics.iter().map(|topic| topic.count).collect();
        digest.update(format!("{kind:?} {counts:?} {span_seconds:?}"));
        SourceId { name: self.summary.path.display().to_string(), fingerprint: format!("{:x}", digest.finalize()) }
    }

    /// Whether a setting has no effect on a recording of this kind: tables have no topics, and their rows are places of the sensor.
    pub fn ignores(&self, key: &str) -> bool {
        let of_bags = ["topics", "sensor.override_transforms", "sensor.position", "sensor.orientation"];
        let is_table = matches!(self.source, Source::Files { .. });
        is_table && of_bags.iter().any(|ignored| key.starts_with(ignored))
    }

    fn from_drive(path: &Path, drive_path: &DrivePath, config: &Config) -> Result<Self, Error> {
        let drive = AaltoDrive::read(drive_path)?;
        let file = |kind: &str| drive_path.file(kind).display().to_string();
        let choice = |kind| Choice { topic: file(kind), others: Vec::new() };
        let count = drive.seconds.len() as u64;
        let topic = |kind, content: &str| TopicSummary { name: file(kind), type_name: content.into(), count };
        let repeated = Some(drive.repeated_stamps).filter(|repeated| *repeated > 0);
        let note = |repeated| format!("{repeated} rows repeat a stamp and are spread over the time to the next");
        let summary = Summary {
            path: path.into(),
            kind: Kind::AaltoCsv,
            topics: vec![topic("loc", "positions (CSV)"), topic("mag", "magnetic field (CSV)")],
            span_seconds: drive.seconds.first().copied().zip(drive.seconds.last().copied()),
            magnetometer: choice("mag"),
            odometry: choice("loc"),
            magnetometer_frame: "room".into(),
            odometry_frame: "room".into(),
            body_frame: "room".into(),
            notes: repeated.map(note).into_iter().collect(),
        };
        let (measurements, digest) = (drive.measurements().collect(), drive.digest());
        let placed = "the files give the sensor's own place and axes";
        Self::from_files(summary, measurements, digest, drive.loss, config, placed)
    }

    fn from_table(path: &Path, config: &Config) -> Result<Self, Error> {
        let table = SurveyTable::read(path)?;
        let name = path.display().to_string();
        let choice = Choice { topic: name.clone(), others: Vec::new() };
        let (type_name, count) = ("positions and fields (CSV)".into(), table.rows.len() as u64);
        let sensor_frame = if table.has_orientation { "magnetometer" } else { "map" };
        let summary = Summary {
            path: path.into(),
            kind: Kind::SurveyCsv,
            topics: vec![TopicSummary { name, type_name, count }],
            span_seconds: table.span().map(|(start, end)| (start.seconds(), end.seconds())),
            magnetometer: choice.clone(),
            odometry: choice,
            magnetometer_frame: sensor_frame.into(),
            odometry_frame: "map".into(),
            body_frame: sensor_frame.into(),
            notes: table.notes.clone(),
        };
        let (measurements, digest) = (table.measurements().collect(), table.digest());
        let placed = "the rows are places of the sensor itself";
        Self::from_files(summary, measurements, digest, table.loss, config, placed)
    }

    /// Of files whose positions need no mount: `placed` says why.
    fn from_files(
        mut summary: Summary,
        measurements: Vec<Measurement>,
        digest: Sha256,
        loss: Loss,
        config: &Config,
        placed: &str,
    ) -> Result<Self, Error> {
        let Summary { path, odometry_frame, magnetometer_frame, body_frame, .. } = &summary;
        let map = normalized(&config.frames.map);
        if (!map.is_empty() && map != odometry_frame) || config.frames.pose_source == PoseSource::Transforms {
            let reason = format!(
                "it has no transforms, and its positions are in the frame {odometry_frame:?}: frames.map has to be empty or that, and \
                 frames.pose_source odometry"
            );
            return Err(Error::unusable(path, reason));
        }
        let poses = Frames { frame: odometry_frame.clone(), child: body_frame.clone() };
        let readings = Frames { frame: magnetometer_frame.clone(), child: String::new() };
        let message = |measurement: Measurement| match measurement {
            Measurement::Reading(_) => readings.message(measurement),
            Measurement::Pose(_) => poses.message(measurement),
        };
        let messages: Vec<SensorMessage> = measurements.into_iter().map(message).collect();
        if config.sensor.override_transforms {
            summary.notes.push(format!("sensor.override_transforms has no effect: {placed}"));
        }
        let sensor = Sensor { override_transforms: false, ..config.sensor.clone() };
        let mut intake = Intake::new(&Config { sensor, ..config.clone() });
        intake.name_map(&summary.odometry_frame);
        let source = Source::Files { messages: messages.into_iter(), digest };
        Ok(Self { summary, mount: Isometry3::identity(), intake, loss, source })
    }

    fn from_bag(path: &Path, config: &Config) -> Result<Self, Error> {
        let bag = Bag::open(path)?;
        let contents = BagContents::of(&bag)?;
        let topics = &config.topics;
        let magnetometer = pick::<MagneticField>(path, &contents, "topics.magnetometer", &topics.magnetometer)?;
        let odometry = match config.frames.pose_source {
            // Nothing of it is needed then.
            PoseSource::Transforms if contents.of_type(Odometry::TYPE).is_empty() => None,
            _ => Some(pick::<Odometry>(path, &contents, "topics.odometry", &topics.odometry)?),
        };
        let (sensor_frame, poses) = (&magnetometer.frames.frame, odometry.as_ref().map(|picked| &picked.frames));
        let poses = poses.cloned().unwrap_or_default();
        let (mount, mount_note) = mount(path, &contents, config, sensor_frame, &poses)?;
        let mut intake = Intake::new(config);
        if !poses.frame.is_empty() {
            intake.name_map(&poses.frame);
        }
        let kind = match (bag.is_folder, bag.format) {
            (true, Format::Sqlite3) => Kind::Rosbag2Sqlite3,
            (true, _) => Kind::Rosbag2Mcap,
            (false, Format::Sqlite3) => Kind::Sqlite3,
            (false, _) => Kind::Mcap,
        };
        let odometry_note = odometry.as_ref().and_then(|picked| picked.note.as_ref());
        let summary = Summary {
            path: path.into(),
            kind,
            topics: topic_summaries(&contents),
            span_seconds: contents.span.map(|(start, end)| (start.seconds(), end.seconds())),
            magnetometer: magnetometer.choice.clone(),
            odometry: odometry.as_ref().map(|picked| picked.choice.clone()).unwrap_or_default(),
            magnetometer_frame: sensor_frame.clone(),
            odometry_frame: poses.frame,
            body_frame: poses.child,
            notes: bag
                .notes
                .iter()
                .chain(&magnetometer.note)
                .chain(odometry_note)
                .chain(&mount_note)
                .cloned()
                .collect(),
        };
        let picked: Vec<Picked<'_>> = std::iter::once(magnetometer).chain(odometry).collect();
        let loss = loss_of(&contents, picked.iter().map(|picked| picked.found));
        let wanted =
            picked.into_iter().map(|Picked { found, frames, .. }| Wanted { topic: found.topic.clone(), frames });
        let playback = Playback::new(bag, wanted.collect(), contents.fixed);
        Ok(Self { summary, mount, intake, loss, source: Source::Bag(Box::new(playback)) })
    }

    /// The readings and poses that its messages lead to, for those who know the mount and do not care where clocks go back.
    pub fn measurements(self) -> impl Iterator<Item = Result<Measurement, Error>> {
        self.inputs().filter_map(|input| match input {
            Ok(Input::Measurement(measurement)) => Some(Ok(measurement)),
            Ok(Input::Mount(_) | Input::UnknownMount | Input::Stretch) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The inputs that its messages lead to.
    pub fn inputs(self) -> Inputs<Self, Error> {
        self.intake.clone().run(self)
    }
}

impl Iterator for Recording {
    type Item = Result<SensorMessage, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Files { messages, .. } => messages.next().map(Ok),
            Source::Bag(playback) => playback.next_message().transpose(),
        }
    }
}

impl std::iter::FusedIterator for Recording {}

/// The topic chosen of those of one type.
struct Picked<'a> {
    found: &'a TopicContents,
    frames: Frames,
    choice: Choice,
    note: Option<String>,
}

/// Picks the named topic; without a name, the first of the type.
fn pick<'a, M: Message>(
    path: &Path,
    contents: &'a BagContents,
    key: &'static str,
    named: &str,
) -> Result<Picked<'a>, Error> {
    let mut fitting = contents.of_type(M::TYPE);
    let index = fitting.iter().position(|found| named.is_empty() || found.topic.name == named);
    let Some(index) = index else {
        let topics = topic_summaries(contents);
        return Err(match named {
            "" => no_topic(path, &format!("of type {}", M::TYPE), &topics, &contents.loss),
            topic => wrong_topic::<M>(path, key, topic, &topics),
        });
    };
    let found = fitting.remove(index);
    let StoredTopic { name: topic, type_name: expected } = found.topic.clone();
    let Some(frames) = found.main_frames().cloned() else {
        let damage = damage(&loss_of(contents, [found]));
        return Err(Error::unusable(path, format!("the topic {topic} holds no readable {expected}{damage}")));
    };
    let others: Vec<String> = fitting.into_iter().map(|other| other.topic.name.clone()).collect();
    let is_open = named.is_empty() && !others.is_empty();
    let note = is_open.then(|| {
        format!("several topics fit {key}, which names none: {topic} was taken, {} were not", others.join(", "))
    });
    Ok(Picked { found, frames, choice: Choice { topic, others }, note })
}

/// The error for a named topic that does not exist or has another type.
fn wrong_topic<M: Message>(path: &Path, key: &str, topic: &str, topics: &[impl ToString]) -> Error {
    no_topic(path, &format!("{topic:?} of type {} ({key} names it)", M::TYPE), topics, &Loss::default())
}

/// The error for a missing topic; damage may be its cause.
fn no_topic(path: &Path, wanted: &str, topics: &[impl ToString], loss: &Loss) -> Error {
    Error::unusable(path, format!("it has no topic {wanted}; it has {}{}", listed(topics), damage(loss)))
}

/// Describes the missing parts, for the end of a sentence.
fn damage(loss: &Loss) -> String {
    if loss.is_empty() { String::new() } else { format!(". It is damaged: {loss}") }
}

/// A list for a sentence.
fn listed(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { "none".into() } else { items.join(", ") }
}

/// Missing parts of the bag as a whole, of these topics and of the transforms.
fn loss_of<'a>(contents: &'a BagContents, topics: impl IntoIterator<Item = &'a TopicContents>) -> Loss {
    let mut loss = contents.loss.clone();
    for topic in topics.into_iter().chain(contents.of_type(TFMessage::TYPE)) {
        topic.add_loss(&mut loss);
    }
    loss
}

fn topic_summaries(contents: &BagContents) -> Vec<TopicSummary> {
    let summary = |found: &TopicContents| {
        let StoredTopic { name, type_name } = found.topic.clone();
        TopicSummary { name, type_name, count: found.count }
    };
    let mut topics: Vec<TopicSummary> = contents.topics.iter().map(summary).collect();
    topics.sort_by(|a, b| (&a.name, &a.type_name).cmp(&(&b.name, &b.type_name)));
    topics
}

/// The place of the sensor on the body, where one is needed, and a note if it is unknown. The transforms that the settings need must be
/// there.
fn mount(
    path: &Path,
    contents: &BagContents,
    config: &Config,
    sensor: &str,
    Frames { frame: odometry, child: body }: &Frames,
) -> Result<(Isometry3<f64>, Option<String>), Error> {
    let missing = |from: &str, to: &str, why: &str| {
        let links = listed(&contents.frames.links());
        format!("no transform links {from:?} with {to:?}, {why}; recorded are {links}")
    };
    let latest = |from: &str, to: &str| contents.frames.latest(from, to);
    let linked =
        |from: &str, to: &str, why: &str| latest(from, to).ok_or_else(|| Error::unusable(path, missing(from, to, why)));
    let map = normalized(&config.frames.map);
    let given = config.sensor.override_transforms.then(|| config.sensor.mount());
    match config.frames.pose_source {
        PoseSource::Odometry => {
            if !map.is_empty() {
                linked(odometry, map, "which frames.map names: leave it empty to map in the frame of odometry")?;
            }
            let why = "the frame of the magnetometer with that of the robot's body. Set the place of the sensor: \
                       sensor.override_transforms = true, sensor.position, sensor.orientation";
            match given.or_else(|| latest(sensor, body)) {
                Some(mount) => Ok((mount, None)),
                None if config.needs_mount() => Err(Error::unusable(path, missing(sensor, body, why))),
                None => Ok((Isometry3::identity(), Some(missing(sensor, body, why)))),
            }
        }
        PoseSource::Transforms => {
            let map = if map.is_empty() { odometry } else { map };
            linked(sensor, map, "the frame of the map (frames.map): frames.pose_source = transforms requires it")?;
            Ok((given.or_else(|| latest(sensor, body)).unwrap_or_default(), None))
        }
    }
}
