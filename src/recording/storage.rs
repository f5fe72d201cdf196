//! What the storage formats of bags have in common: topics, and messages as bytes.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use super::{Error, mcap, messages, messages::Message, rosbag2_sqlite};
use crate::mapping::reading::Stamp;

/// Largest message of a type that is read. Magnetometer and odometry messages are smaller than a kilobyte, transforms
/// than a megabyte; whatever claims to be larger is damaged, and is not given the memory it asks for.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// First bytes of a zstd frame. CDR begins with 00 and can never be taken for it.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A topic as a storage file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// Whether messages of this type are read at all.
pub(super) fn is_read(type_name: &str) -> bool {
    [messages::MagneticField::TYPE, messages::Odometry::TYPE, messages::TFMessage::TYPE].contains(&type_name)
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

    /// What was found damaged so far, in words.
    pub(super) fn damage(&self) -> &[String] {
        match self {
            Self::Mcap(reader) => reader.damage(),
            Self::Sqlite3(reader) => reader.damage(),
        }
    }
}

/// The message in these bytes, decompressed where rosbag2's compression mode "message" left each one a zstd frame.
pub(super) fn decode<M: Message>(data: &[u8]) -> Result<M, String> {
    if !data.starts_with(&ZSTD_MAGIC) {
        return messages::decode(data).map_err(|error| error.to_string());
    }
    let mut plain = Vec::new();
    let decoder = zstd::Decoder::new(data).map_err(|error| error.to_string())?;
    let limited = decoder.take(MAX_MESSAGE as u64).read_to_end(&mut plain);
    limited.map_err(|error| format!("cannot be decompressed: {error}"))?;
    messages::decode(&plain).map_err(|error| error.to_string())
}
