//! What can go wrong with recordings as a whole. Damage within one is no error: it is reported as
//! [`Loss`].

use std::path::PathBuf;

use super::Loss;

/// Why a recording cannot be opened, read on or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried: `read`, `create`, ...
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// The path names no recording.
    #[error(
        "{path} is no recording: {found}. Expected a drive of the Aalto data (FOLDER/invensense/3), an .mcap or \
         .db3 file, or the folder of a rosbag2"
    )]
    NotARecording {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// A CSV file does not have the expected form.
    #[error("{path}, line {line}: expected {expected}, found {found}")]
    Csv {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The files of a drive do not belong together.
    #[error("the rows of a drive's files correspond, but {first} has {first_rows} and {second} has {second_rows}")]
    RowCounts {
        /// One file.
        first: PathBuf,
        /// Its rows.
        first_rows: usize,
        /// Another file.
        second: PathBuf,
        /// Its rows.
        second_rows: usize,
    },
    /// A drive lies in a folder that is not named after one of the three sensors.
    #[error(
        "{path}: the folder {found:?} names no sensor: expected invensense, nexus (microtesla) or trivisio (local \
         field)"
    )]
    UnknownSensor {
        /// The drive.
        path: PathBuf,
        /// The folder's name.
        found: String,
    },
    /// `metadata.yaml` is not what rosbag2 writes.
    #[error("{path} is no rosbag2 metadata: {reason}")]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A storage plugin or compression that magmap does not read.
    #[error("{path}: {what} {found:?} is not supported; expected {expected}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Storage, compression, encoding.
        what: &'static str,
        /// What it is.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// No topic of the needed type.
    #[error("{path} has no topic of type {expected}; it has {}{}", listed(topics), damaged(loss))]
    NoTopic {
        /// The recording.
        path: PathBuf,
        /// The needed type.
        expected: &'static str,
        /// `name (type)` of all topics.
        topics: Vec<String>,
        /// What of the recording is missing, which may be why.
        loss: Loss,
    },
    /// The configured topic is not in the recording, or has another type.
    #[error("{path} has no topic {topic:?} of type {expected} ({key} names it); it has {}", listed(topics))]
    WrongTopic {
        /// The recording.
        path: PathBuf,
        /// The configured name.
        topic: String,
        /// The needed type.
        expected: &'static str,
        /// The key of the configuration that names it.
        key: &'static str,
        /// `name (type)` of all topics.
        topics: Vec<String>,
    },
    /// A topic is there, but nothing on it can be read.
    #[error("{path}: the topic {topic} holds no readable {expected}{}", damaged(loss))]
    EmptyTopic {
        /// The recording.
        path: PathBuf,
        /// The topic.
        topic: String,
        /// The expected type.
        expected: String,
        /// What of the recording is missing, which may be why.
        loss: Loss,
    },
    /// It is unknown how the sensor sits on the robot.
    #[error(
        "no static transform links the magnetometer's frame {sensor:?} with the odometry's body frame {body:?}; \
         recorded \
         are {}. \
         Say how the sensor sits: sensor.override_transforms = true, sensor.position, sensor.orientation",
        listed(links)
    )]
    FramesNotLinked {
        /// Frame of the magnetometer's messages.
        sensor: String,
        /// Child frame of the odometry's messages.
        body: String,
        /// `parent -> child` of all static transforms.
        links: Vec<String>,
    },
    /// SQLite refused.
    #[error("{path}: {source}")]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// Its answer.
        source: rusqlite::Error,
    },
    /// The MCAP library refused to write.
    #[error("cannot write {path}: {source}")]
    McapWrite {
        /// The file.
        path: PathBuf,
        /// Its answer.
        source: mcap::McapError,
    },
    /// A message that cannot be encoded or stamped.
    #[error("cannot write a message to {topic}: {reason}")]
    Write {
        /// The topic.
        topic: String,
        /// Why not.
        reason: String,
    },
    /// Something is already there.
    #[error("{0} exists and is not empty; name a new folder or remove it")]
    Exists(PathBuf),
}

impl Error {
    /// Wraps an answer of the operating system: `File::open(path).map_err(Error::io("read", path))`.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// What is missing, for the end of a sentence.
fn damaged(loss: &Loss) -> String {
    if loss.is_empty() { String::new() } else { format!(". It is damaged: {loss}") }
}

/// A list for a sentence.
fn listed(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}
