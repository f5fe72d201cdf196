//! What the storage formats of bags have in common: topics, and messages as bytes.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use super::{Error, Loss, mcap, messages, messages::Message, rosbag2_sqlite};
use crate::mapping::reading::Stamp;

/// Largest message of a type that is read. Magnetometer and odometry messages are smaller than a kilobyte, transforms
/// than a megabyte; whatever claims to be larger is damaged, and is not given the memory it asks for.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Longest name of a topic or a type. ROS 2 allows 255 bytes.
pub(super) const MAX_NAME: usize = 1 << 10;

/// Most topics of one file.
pub(super) const MAX_TOPICS: usize = 10_000;

/// Largest window, as a power of two, that a compressed message may ask memory for: more than the message itself may have.
const MAX_WINDOW_LOG: u32 = 23;

/// First bytes of a zstd frame. CDR begins with 00 and can never be taken for it.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A topic as a storage file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredTopic {
    pub(super) name: String,
    pub(super) type_name: String,
}

/// One message as it is stored.
#[derive(Debug)]
pub(super) struct RawMessage<'a> {
    /// Its topic.
    pub(super) topic: &'a StoredTopic,
    /// When it was recorded.
    pub(super) stamp: Stamp,
    /// The encoded message; may be empty for types that are not read, and is for those too large.
    pub(super) data: &'a [u8],
    /// How many bytes it has in the file.
    pub(super) length: usize,
}

impl RawMessage<'_> {
    /// The message, decompressed where rosbag2's compression mode "message" left each one a zstd frame.
    pub(super) fn decode<M: Message>(&self) -> Result<M, String> {
        if self.length > MAX_MESSAGE {
            return Err(format!("it has {} bytes, more than the {MAX_MESSAGE} that are read", self.length));
        }
        if self.data.starts_with(&ZSTD_MAGIC) {
            let plain = decompressed(self.data)?;
            return messages::decode(&plain).map_err(|error| error.to_string());
        }
        messages::decode(self.data).map_err(|error| error.to_string())
    }
}

fn decompressed(data: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let problem = |error: std::io::Error| format!("it cannot be decompressed: {error}");
    let mut decoder = zstd::Decoder::with_buffer(data).map_err(problem)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(problem)?;
    decoder.take(MAX_MESSAGE as u64 + 1).read_to_end(&mut plain).map_err(problem)?;
    if plain.len() > MAX_MESSAGE {
        return Err(format!("it is more than the {MAX_MESSAGE} bytes that are read when it is decompressed"));
    }
    Ok(plain)
}

/// Whether messages of this type are read at all.
pub(super) fn is_read(type_name: &str) -> bool {
    [messages::MagneticField::TYPE, messages::Bool::TYPE, messages::Odometry::TYPE, messages::TFMessage::TYPE]
        .contains(&type_name)
}

/// How a file stores messages, as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Mcap,
    Sqlite3,
    /// One of the others, compressed as a whole.
    Zstd,
}

impl Format {
    /// Looks at the first bytes of a file.
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
        let mut head = Vec::new();
        let file = File::open(path).map_err(Error::io("read", path))?;
        file.take(16).read_to_end(&mut head).map_err(Error::io("read", path))?;
        let formats: [(&[u8], Format); 3] =
            [(::mcap::MAGIC, Format::Mcap), (b"SQLite format 3\0", Format::Sqlite3), (&ZSTD_MAGIC, Format::Zstd)];
        let known = formats.into_iter().find(|(magic, _)| head.starts_with(magic));
        known.map(|(_, format)| format).ok_or_else(|| Error::NotARecording {
            path: path.into(),
            found: format!("a file that begins with {head:02x?}, as neither MCAP nor SQLite does"),
        })
    }
}

/// A reader of one storage file.
pub(super) enum FileReader {
    Mcap(Box<mcap::Reader>),
    Sqlite3(Box<rosbag2_sqlite::Reader>),
}

impl FileReader {
    /// Opens an uncompressed storage file; messages about it call it `shown`.
    pub(super) fn open(path: &Path, shown: &Path) -> Result<Self, Error> {
        match Format::of(path)? {
            Format::Mcap => Ok(Self::Mcap(Box::new(mcap::Reader::open(path, shown)?))),
            Format::Sqlite3 => Ok(Self::Sqlite3(Box::new(rosbag2_sqlite::Reader::open(path, shown)?))),
            Format::Zstd => Err(Error::Unsupported {
                path: PathBuf::from(shown),
                what: "the compression",
                found: "zstd within zstd".into(),
                expected: "one layer of it",
            }),
        }
    }

    /// The next message in recorded order; nothing at the end or where damage ends the file.
    pub(super) fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, Error> {
        match self {
            Self::Mcap(reader) => reader.next_message(),
            Self::Sqlite3(reader) => reader.next_message(),
        }
    }

    /// The topics that were met so far.
    pub(super) fn topics(&self) -> &[StoredTopic] {
        match self {
            Self::Mcap(reader) => reader.topics(),
            Self::Sqlite3(reader) => reader.topics(),
        }
    }

    /// What was found damaged so far.
    pub(super) fn loss(&self) -> &Loss {
        match self {
            Self::Mcap(reader) => reader.loss(),
            Self::Sqlite3(reader) => reader.loss(),
        }
    }
}
