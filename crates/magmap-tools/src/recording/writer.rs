//! Writes bags that ROS 2's tools play: a rosbag2 folder with MCAP or SQLite storage, or a single MCAP file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use mcap::{Compression, McapError, WriteOptions, records::MessageHeader};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::Error;
use super::messages::{self, Message, OccupancyGrid, TFMessage};
use super::rosbag2::METADATA;
use magmap::sensing::reading::Stamp;

/// Uncompressed bytes in a chunk: small enough that little is lost where a file is cut off.
const CHUNK_SIZE: u64 = 1 << 18;

/// Rows written to a database in one transaction.
const ROWS_PER_TRANSACTION: u64 = 10_000;

/// How a bag's messages are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Storage {
    /// MCAP, compressed with zstd.
    #[default]
    Mcap,
    /// SQLite, as ROS 2 Humble stores it.
    Sqlite3,
}

/// Writes a rosbag2 folder. Only [`BagWriter::finish`] makes it complete.
pub struct BagWriter {
    folder: PathBuf,
    file_name: String,
    identifier: &'static str,
    messages: MessageWriter,
    /// The earliest and latest stamp so far.
    span: Option<(i64, i64)>,
}

impl BagWriter {
    /// Creates the folder, which must not exist or be empty, and in it a storage file named after it.
    ///
    /// # Errors
    /// A folder that is not empty, and errors of the operating system and the storage.
    pub fn create(folder: &Path, storage: Storage) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
        if entries.next().is_some() {
            return Err(Error::Exists(folder.into()));
        }
        let absolute = std::path::absolute(folder).map_err(Error::io("find", folder))?;
        let name = absolute.file_name().map_or("bag".into(), |name| name.to_string_lossy().into_owned());
        let (extension, identifier) = match storage {
            Storage::Mcap => ("mcap", "mcap"),
            Storage::Sqlite3 => ("db3", "sqlite3"),
        };
        let file_name = format!("{name}_0.{extension}");
        let path = folder.join(&file_name);
        let messages = match storage {
            Storage::Mcap => MessageWriter::mcap(&path)?,
            Storage::Sqlite3 => MessageWriter::new(SqliteFile::create(&path)?),
        };
        Ok(Self { folder: folder.into(), file_name, identifier, messages, span: None })
    }

    /// Writes one message, recorded at `stamp`.
    ///
    /// # Errors
    /// The errors of [`MessageWriter::write`].
    pub fn write<M: Message>(&mut self, topic: &str, message: &M, stamp: Stamp) -> Result<(), Error> {
        self.messages.write(topic, message, stamp)?;
        let time = stamp.nanoseconds();
        let (start, end) = self.span.unwrap_or((time, time));
        self.span = Some((start.min(time), end.max(time)));
        Ok(())
    }

    /// Completes the storage file and writes `metadata.yaml`.
    ///
    /// # Errors
    /// Errors of the operating system and the storage.
    pub fn finish(self) -> Result<(), Error> {
        let metadata = self.metadata();
        self.messages.finish()?;
        let path = self.folder.join(METADATA);
        let text = serde_saphyr::to_string(&metadata).map_err(|error| Error::unusable(&path, error))?;
        std::fs::write(&path, text).map_err(Error::io("write", &path))
    }

    /// `metadata.yaml` in the version that ROS 2 Humble writes; newer ones read it.
    fn metadata(&self) -> Value {
        let (start, end) = self.span.unwrap_or((0, 0));
        let topics = &self.messages.topics;
        let message_count: u64 = topics.iter().map(|topic| topic.count).sum();
        let (duration, starting_time) =
            (json!({ "nanoseconds": end - start }), json!({ "nanoseconds_since_epoch": start }));
        let with_count = |topic: &WrittenTopic| {
            let metadata = json!({
                "name": topic.name,
                "type": topic.type_name,
                "serialization_format": "cdr",
                "offered_qos_profiles": quality_of_service(topic.type_name, &topic.name),
            });
            json!({ "topic_metadata": metadata, "message_count": topic.count })
        };
        let file = json!({
            "path": self.file_name,
            "starting_time": starting_time,
            "duration": duration,
            "message_count": message_count,
        });
        let information = json!({
            "version": 5,
            "storage_identifier": self.identifier,
            "duration": duration,
            "starting_time": starting_time,
            "message_count": message_count,
            "topics_with_message_count": topics.iter().map(with_count).collect::<Vec<_>>(),
            "compression_format": "",
            "compression_mode": "",
            "relative_file_paths": [self.file_name],
            "files": [file],
        });
        json!({ "rosbag2_bagfile_information": information })
    }
}

/// The quality of service with which players should publish a topic, as rosbag2 writes it, YAML within a string: reliable, and
/// kept for late subscribers (durability 1, transient local; otherwise 2, volatile) where a topic is a state and not a stream.
fn quality_of_service(type_name: &str, topic: &str) -> String {
    let is_state = type_name == OccupancyGrid::TYPE || type_name == TFMessage::TYPE && topic.ends_with("tf_static");
    let (depth, durability) = if is_state { (1, 1) } else { (100, 2) };
    let unlimited = "\n    sec: 0\n    nsec: 0";
    format!(
        "- history: 1\n  depth: {depth}\n  reliability: 1\n  durability: {durability}\n  deadline:{unlimited}\n  \
         lifespan:{unlimited}\n  liveliness: 1\n  liveliness_lease_duration:{unlimited}\n  \
         avoid_ros_namespace_conventions: false"
    )
}

/// Writes messages of any type to a storage file, or to those who watch ([`foxglove`](crate::foxglove)). Only
/// [`MessageWriter::finish`] makes a file complete.
pub struct MessageWriter {
    destination: Box<dyn Destination>,
    /// In the order of their first messages.
    topics: Vec<WrittenTopic>,
}

pub(crate) struct WrittenTopic {
    /// Identifier of the topic in its destination.
    pub(crate) id: i64,
    name: String,
    type_name: &'static str,
    /// Number of messages written.
    count: u64,
}

/// A destination of encoded messages: a storage file that is being written, or a server.
pub(crate) trait Destination: Send {
    /// Adds a topic and returns its id.
    fn add_topic(&mut self, name: &str, type_name: &str, definition: &str) -> Result<i64, Error>;

    /// Writes one encoded message.
    fn write(&mut self, topic: &WrittenTopic, data: &[u8], stamp: Stamp) -> Result<(), Error>;

    /// Completes what was written.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

impl MessageWriter {
    /// Creates a single MCAP file with the profile `ros2`, or replaces it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn mcap(path: &Path) -> Result<Self, Error> {
        McapFile::create(path).map(Self::new)
    }

    pub(crate) fn new(destination: impl Destination + 'static) -> Self {
        Self { destination: Box::new(destination), topics: Vec::new() }
    }

    /// Writes one message, recorded at `stamp`. The first message of a topic determines the topic's type.
    ///
    /// # Errors
    /// A message of another type than the topic's, a stamp before the epoch (in MCAP), and errors of the storage.
    pub fn write<M: Message>(&mut self, name: &str, message: &M, stamp: Stamp) -> Result<(), Error> {
        let problem = |reason| Error::Write { topic: name.into(), reason };
        let data = messages::encode(message).map_err(|error| problem(error.to_string()))?;
        let index = match self.topics.iter().position(|topic| topic.name == name) {
            Some(index) => index,
            None => {
                let id = self.destination.add_topic(name, M::TYPE, &M::definition())?;
                self.topics.push(WrittenTopic { id, name: name.into(), type_name: M::TYPE, count: 0 });
                self.topics.len() - 1
            }
        };
        let topic = &mut self.topics[index];
        if topic.type_name != M::TYPE {
            return Err(problem(format!("it has the type {}, the message is a {}", topic.type_name, M::TYPE)));
        }
        self.destination.write(topic, &data, stamp)?;
        topic.count += 1;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn finish(self) -> Result<(), Error> {
        self.destination.finish()
    }
}

/// MCAP in chunks compressed with zstd.
struct McapFile {
    path: PathBuf,
    writer: mcap::Writer<BufWriter<File>>,
}

impl McapFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let file = BufWriter::new(File::create(path).map_err(Error::io("create", path))?);
        let options = WriteOptions::new()
            .profile("ros2")
            .compression(Some(Compression::Zstd))
            .compression_threads(0)
            .chunk_size(Some(CHUNK_SIZE));
        let writer = options.create(file).map_err(unwritten(path))?;
        Ok(Self { path: path.into(), writer })
    }
}

/// The library failed to write.
fn unwritten(path: &Path) -> impl FnOnce(McapError) -> Error {
    move |error| Error::io("write", path)(io::Error::other(error))
}

impl Destination for McapFile {
    fn add_topic(&mut self, name: &str, type_name: &str, definition: &str) -> Result<i64, Error> {
        let metadata = BTreeMap::from([("offered_qos_profiles".into(), quality_of_service(type_name, name))]);
        let schema = self.writer.add_schema(type_name, "ros2msg", definition.as_bytes());
        let channel = schema.and_then(|schema| self.writer.add_channel(schema, name, "cdr", &metadata));
        channel.map(i64::from).map_err(unwritten(&self.path))
    }

    fn write(&mut self, topic: &WrittenTopic, data: &[u8], stamp: Stamp) -> Result<(), Error> {
        let problem = |reason: &str| Error::Write { topic: topic.name.clone(), reason: reason.into() };
        let log_time = stamp.nanoseconds().try_into().map_err(|_| problem("its stamp is before the epoch"))?;
        let channel_id = topic.id.try_into().map_err(|_| problem("its channel is unknown"))?;
        let header = MessageHeader { channel_id, sequence: topic.count as u32 + 1, log_time, publish_time: log_time };
        self.writer.write_to_known_channel(&header, data).map_err(unwritten(&self.path))
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.writer.finish().map_err(unwritten(&self.path))?;
        let file = self.writer.into_inner().into_inner();
        file.map_err(|error| Error::io("write", &self.path)(error.into_error())).map(drop)
    }
}

/// A database in the schema (version 3) of ROS 2 Humble.
struct SqliteFile {
    path: PathBuf,
    connection: Connection,
    written: u64,
}

impl SqliteFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let schema = "
            CREATE TABLE schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT NOT NULL);
            CREATE TABLE metadata(id INTEGER PRIMARY KEY, metadata_version INTEGER NOT NULL, metadata TEXT NOT NULL);
            CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL,
                serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);
            CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, timestamp INTEGER NOT NULL,
                data BLOB NOT NULL);
            CREATE INDEX timestamp_idx ON messages (timestamp ASC);
            INSERT INTO schema (schema_version, ros_distro) VALUES (3, 'humble');
            BEGIN;";
        let opened = Connection::open(path).and_then(|connection| {
            connection.execute_batch(schema)?;
            Ok(connection)
        });
        let connection = opened.map_err(|error| Error::unusable(path, error))?;
        Ok(Self { path: path.into(), connection, written: 0 })
    }

    fn insert(&self, topic_id: i64, data: &[u8], stamp: Stamp) -> rusqlite::Result<()> {
        let insert = "INSERT INTO messages (timestamp, topic_id, data) VALUES (?, ?, ?)";
        self.connection.prepare_cached(insert)?.execute(params![stamp.nanoseconds(), topic_id, data])?;
        if (self.written + 1).is_multiple_of(ROWS_PER_TRANSACTION) {
            self.connection.execute_batch("COMMIT; BEGIN")?;
        }
        Ok(())
    }
}

impl Destination for SqliteFile {
    fn add_topic(&mut self, name: &str, type_name: &str, _: &str) -> Result<i64, Error> {
        let insert =
            "INSERT INTO topics (name, type, serialization_format, offered_qos_profiles) VALUES (?, ?, 'cdr', ?)";
        let row = params![name, type_name, quality_of_service(type_name, name)];
        self.connection.execute(insert, row).map_err(|error| Error::unusable(&self.path, error))?;
        Ok(self.connection.last_insert_rowid())
    }

    fn write(&mut self, topic: &WrittenTopic, data: &[u8], stamp: Stamp) -> Result<(), Error> {
        self.insert(topic.id, data, stamp).map_err(|error| Error::unusable(&self.path, error))?;
        self.written += 1;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Self { path, connection, .. } = *self;
        let committed =
            connection.execute_batch("COMMIT").and_then(|()| connection.close().map_err(|(_, error)| error));
        committed.map_err(|error| Error::unusable(path, error))
    }
}
