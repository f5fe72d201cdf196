//! Writes bags that ROS 2's tools play: a rosbag2 folder with MCAP or SQLite storage, or a single MCAP file.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

use mcap::{Compression, WriteOptions, records::MessageHeader};
use rusqlite::{Connection, params};
use serde::Serialize;

use super::{
    Error,
    messages::{self, Message, TFMessage},
    rosbag2::METADATA,
};
use crate::mapping::reading::Stamp;

/// The version of `metadata.yaml` that ROS 2 Humble writes; newer ones read it.
const METADATA_VERSION: u32 = 5;

/// Uncompressed bytes in a chunk: small enough that little is lost where a file is cut off.
const CHUNK_SIZE: u64 = 1 << 18;

/// Rows written to a database in one go.
const ROWS_PER_TRANSACTION: u64 = 10_000;

/// How a bag's messages are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// MCAP, chunks compressed with zstd.
    #[default]
    Mcap,
    /// SQLite, in the schema of ROS 2 Humble.
    Sqlite3,
}

impl Storage {
    fn identifier(self) -> &'static str {
        match self {
            Storage::Mcap => "mcap",
            Storage::Sqlite3 => "sqlite3",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Storage::Mcap => "mcap",
            Storage::Sqlite3 => "db3",
        }
    }
}

/// Writes a rosbag2 folder. Only [`BagWriter::finish`] makes it complete.
pub struct BagWriter {
    folder: PathBuf,
    file_name: String,
    storage: Storage,
    file: FileWriter,
    topics: Vec<WrittenTopic>,
    span: Option<(i64, i64)>,
}

struct WrittenTopic {
    name: String,
    type_name: &'static str,
    count: u64,
}

enum FileWriter {
    Mcap(Box<McapWriter>),
    Sqlite3(SqliteWriter),
}

impl BagWriter {
    /// Creates the folder, which must not exist or be empty, and in it a storage file named after it.
    ///
    /// # Errors
    /// A folder that holds something, and what the operating system refuses.
    pub fn create(folder: &Path, storage: Storage) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
        if entries.next().is_some() {
            return Err(Error::Exists(folder.into()));
        }
        let absolute = std::path::absolute(folder).map_err(Error::io("find", folder))?;
        let name = absolute.file_name().map_or("bag".into(), |name| name.to_string_lossy().into_owned());
        let file_name = format!("{name}_0.{}", storage.extension());
        let path = folder.join(&file_name);
        let file = match storage {
            Storage::Mcap => FileWriter::Mcap(Box::new(McapWriter::create(&path)?)),
            Storage::Sqlite3 => FileWriter::Sqlite3(SqliteWriter::create(&path)?),
        };
        Ok(Self { folder: folder.into(), file_name, storage, file, topics: Vec::new(), span: None })
    }

    /// Writes one message, recorded at `stamp`. A topic comes into being with its first message, and keeps its type.
    ///
    /// # Errors
    /// A message of another type than the topic's, a stamp before the epoch, and what the storage refuses.
    pub fn write<M: Message>(&mut self, topic: &str, message: &M, stamp: Stamp) -> Result<(), Error> {
        match &mut self.file {
            FileWriter::Mcap(file) => file.write(topic, message, stamp)?,
            FileWriter::Sqlite3(file) => file.write(topic, message, stamp)?,
        }
        match self.topics.iter_mut().find(|known| known.name == topic) {
            Some(known) => known.count += 1,
            None => self.topics.push(WrittenTopic { name: topic.into(), type_name: M::TYPE, count: 1 }),
        }
        let time = stamp.nanoseconds();
        let (start, end) = self.span.unwrap_or((time, time));
        self.span = Some((start.min(time), end.max(time)));
        Ok(())
    }

    /// Completes the storage file and writes `metadata.yaml`.
    ///
    /// # Errors
    /// What the storage and the operating system refuse.
    pub fn finish(self) -> Result<(), Error> {
        let metadata = self.metadata();
        match self.file {
            FileWriter::Mcap(file) => file.finish()?,
            FileWriter::Sqlite3(file) => file.finish()?,
        }
        let path = self.folder.join(METADATA);
        let text = serde_saphyr::to_string(&metadata)
            .map_err(|error| Error::Metadata { path: path.clone(), reason: error.to_string() })?;
        std::fs::write(&path, text).map_err(Error::io("write", &path))
    }

    fn metadata(&self) -> MetadataFile {
        let (start, end) = self.span.unwrap_or((0, 0));
        let message_count = self.topics.iter().map(|topic| topic.count).sum();
        let (duration, starting_time) =
            (Duration { nanoseconds: end - start }, StartingTime { nanoseconds_since_epoch: start });
        let topics = self.topics.iter().map(|topic| TopicWithCount {
            topic_metadata: TopicMetadata {
                name: topic.name.clone(),
                r#type: topic.type_name,
                serialization_format: "cdr",
                offered_qos_profiles: quality_of_service(topic.type_name, &topic.name),
            },
            message_count: topic.count,
        });
        MetadataFile {
            rosbag2_bagfile_information: Metadata {
                version: METADATA_VERSION,
                storage_identifier: self.storage.identifier(),
                duration,
                starting_time,
                message_count,
                topics_with_message_count: topics.collect(),
                compression_format: "",
                compression_mode: "",
                relative_file_paths: vec![self.file_name.clone()],
                files: vec![FileInformation { path: self.file_name.clone(), starting_time, duration, message_count }],
            },
        }
    }
}

/// `metadata.yaml` in version 5.
#[derive(Serialize)]
struct MetadataFile {
    rosbag2_bagfile_information: Metadata,
}

#[derive(Serialize)]
struct Metadata {
    version: u32,
    storage_identifier: &'static str,
    duration: Duration,
    starting_time: StartingTime,
    message_count: u64,
    topics_with_message_count: Vec<TopicWithCount>,
    compression_format: &'static str,
    compression_mode: &'static str,
    relative_file_paths: Vec<String>,
    files: Vec<FileInformation>,
}

#[derive(Clone, Copy, Serialize)]
struct Duration {
    nanoseconds: i64,
}

#[derive(Clone, Copy, Serialize)]
struct StartingTime {
    nanoseconds_since_epoch: i64,
}

#[derive(Serialize)]
struct TopicWithCount {
    topic_metadata: TopicMetadata,
    message_count: u64,
}

#[derive(Serialize)]
struct TopicMetadata {
    name: String,
    r#type: &'static str,
    serialization_format: &'static str,
    offered_qos_profiles: String,
}

#[derive(Serialize)]
struct FileInformation {
    path: String,
    starting_time: StartingTime,
    duration: Duration,
    message_count: u64,
}

/// The quality of service with which players should publish a topic, as rosbag2 writes it, YAML within a string:
/// reliable, and kept for late subscribers (durability 1, transient local, else 2, volatile) where a topic is a state
/// and not a stream.
fn quality_of_service(type_name: &str, topic: &str) -> String {
    let is_state = type_name == messages::OccupancyGrid::TYPE
        || type_name == messages::Path::TYPE
        || type_name == TFMessage::TYPE && topic.ends_with("tf_static");
    let (depth, durability) = if is_state { (1, 1) } else { (100, 2) };
    let unlimited = "\n    sec: 0\n    nsec: 0";
    format!(
        "- history: 1\n  depth: {depth}\n  reliability: 1\n  durability: {durability}\n  deadline:{unlimited}\n  \
         lifespan:{unlimited}\n  liveliness: 1\n  liveliness_lease_duration:{unlimited}\n  \
         avoid_ros_namespace_conventions: false"
    )
}

/// The message in CDR, or an error that names the topic.
fn encode<M: Message>(topic: &str, message: &M) -> Result<Vec<u8>, Error> {
    messages::encode(message).map_err(|error| Error::Write { topic: topic.into(), reason: error.to_string() })
}

/// Refuses a second type on a topic.
fn same_type<M: Message>(topic: &str, type_name: &str) -> Result<(), Error> {
    if type_name == M::TYPE {
        return Ok(());
    }
    let reason = format!("it has the type {type_name}, the message is a {}", M::TYPE);
    Err(Error::Write { topic: topic.into(), reason })
}

/// Writes a single MCAP file with the profile `ros2`, in chunks compressed with zstd. Only [`McapWriter::finish`] makes
/// it complete.
pub struct McapWriter {
    path: PathBuf,
    writer: mcap::Writer<BufWriter<File>>,
    channels: BTreeMap<String, McapChannel>,
}

struct McapChannel {
    id: u16,
    type_name: &'static str,
    written: u32,
}

impl McapWriter {
    /// Creates the file, or replaces it.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = BufWriter::new(File::create(path).map_err(Error::io("create", path))?);
        let options = WriteOptions::new()
            .profile("ros2")
            .compression(Some(Compression::Zstd))
            .compression_threads(0)
            .chunk_size(Some(CHUNK_SIZE));
        let writer = options.create(file).map_err(|source| Error::McapWrite { path: path.into(), source })?;
        Ok(Self { path: path.into(), writer, channels: BTreeMap::new() })
    }

    /// Writes one message, recorded at `stamp`. A topic comes into being with its first message, and keeps its type.
    ///
    /// # Errors
    /// A message of another type than the topic's, a stamp before the epoch, and what the operating system refuses.
    pub fn write<M: Message>(&mut self, topic: &str, message: &M, stamp: Stamp) -> Result<(), Error> {
        let data = encode(topic, message)?;
        let log_time = u64::try_from(stamp.nanoseconds())
            .map_err(|_| Error::Write { topic: topic.into(), reason: "its stamp is before the epoch".into() })?;
        let (channel_id, sequence) = self.next_in_channel::<M>(topic)?;
        let header = MessageHeader { channel_id, sequence, log_time, publish_time: log_time };
        self.writer.write_to_known_channel(&header, &data).map_err(mcap_error(&self.path))
    }

    /// Completes the file: closes the last chunk, writes the index.
    ///
    /// # Errors
    /// What the operating system refuses.
    pub fn finish(mut self) -> Result<(), Error> {
        self.writer.finish().map(|_| ()).map_err(mcap_error(&self.path))?;
        let file = self.writer.into_inner().into_inner();
        file.map_err(|error| Error::io("write", &self.path)(error.into_error())).map(|_| ())
    }

    /// The channel of a topic and the number of the next message in it.
    fn next_in_channel<M: Message>(&mut self, topic: &str) -> Result<(u16, u32), Error> {
        let channel = match self.channels.entry(topic.into()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let id = add_channel::<M>(&mut self.writer, topic).map_err(mcap_error(&self.path))?;
                new.insert(McapChannel { id, type_name: M::TYPE, written: 0 })
            }
        };
        same_type::<M>(topic, channel.type_name)?;
        channel.written += 1;
        Ok((channel.id, channel.written))
    }
}

fn add_channel<M: Message>(writer: &mut mcap::Writer<BufWriter<File>>, topic: &str) -> mcap::McapResult<u16> {
    let schema = writer.add_schema(M::TYPE, "ros2msg", M::definition().as_bytes())?;
    let metadata = BTreeMap::from([("offered_qos_profiles".to_string(), quality_of_service(M::TYPE, topic))]);
    writer.add_channel(schema, topic, "cdr", &metadata)
}

fn mcap_error(path: &Path) -> impl Fn(mcap::McapError) -> Error + use<> {
    let path = path.to_path_buf();
    move |source| Error::McapWrite { path: path.clone(), source }
}

/// Writes a database in the schema (version 3) of ROS 2 Humble.
struct SqliteWriter {
    path: PathBuf,
    connection: Connection,
    topics: BTreeMap<String, (i64, &'static str)>,
    written: u64,
}

impl SqliteWriter {
    fn create(path: &Path) -> Result<Self, Error> {
        let sqlite = sqlite_error(path);
        let connection = Connection::open(path).map_err(&sqlite)?;
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
        connection.execute_batch(schema).map_err(&sqlite)?;
        Ok(Self { path: path.into(), connection, topics: BTreeMap::new(), written: 0 })
    }

    fn write<M: Message>(&mut self, topic: &str, message: &M, stamp: Stamp) -> Result<(), Error> {
        let data = encode(topic, message)?;
        let sqlite = sqlite_error(&self.path);
        let id = self.topic_id::<M>(topic)?;
        let insert = "INSERT INTO messages (timestamp, topic_id, data) VALUES (?, ?, ?)";
        let mut statement = self.connection.prepare_cached(insert).map_err(&sqlite)?;
        statement.execute(params![stamp.nanoseconds(), id, data]).map_err(&sqlite)?;
        self.written += 1;
        if self.written.is_multiple_of(ROWS_PER_TRANSACTION) {
            self.connection.execute_batch("COMMIT; BEGIN").map_err(&sqlite)?;
        }
        Ok(())
    }

    fn topic_id<M: Message>(&mut self, topic: &str) -> Result<i64, Error> {
        if let Some((id, type_name)) = self.topics.get(topic) {
            return same_type::<M>(topic, type_name).map(|()| *id);
        }
        let insert =
            "INSERT INTO topics (name, type, serialization_format, offered_qos_profiles) VALUES (?, ?, 'cdr', ?)";
        let row = params![topic, M::TYPE, quality_of_service(M::TYPE, topic)];
        self.connection.execute(insert, row).map_err(sqlite_error(&self.path))?;
        let id = self.connection.last_insert_rowid();
        self.topics.insert(topic.into(), (id, M::TYPE));
        Ok(id)
    }

    fn finish(self) -> Result<(), Error> {
        let sqlite = sqlite_error(&self.path);
        self.connection.execute_batch("COMMIT").map_err(&sqlite)?;
        self.connection.close().map_err(|(_, source)| sqlite(source))
    }
}

fn sqlite_error(path: &Path) -> impl Fn(rusqlite::Error) -> Error + use<> {
    let path = path.to_path_buf();
    move |source| Error::Sqlite { path: path.clone(), source }
}
