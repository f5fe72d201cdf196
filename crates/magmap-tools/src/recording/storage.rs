//! Parts that the storage formats of bags share: topics, and messages as bytes.

use std::{fs::File, io::Read, path::Path};

use super::messages::{self, Message};
use super::{Error, Loss};
use magmap::sensing::reading::Stamp;

/// Size of the largest message that is read. Magnetometer and odometry messages have less than a kilobyte, transforms less
/// than a megabyte; a message that claims more is damaged, and no memory is allocated for it.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Longest name of a topic or a type. ROS 2 allows 255 bytes.
pub(super) const MAX_NAME: usize = 1 << 10;

/// Largest number of topics in one file.
pub(super) const MAX_TOPICS: usize = 10_000;

/// Base-two logarithm of the largest window that a compressed message may allocate: larger than the message itself may be.
const MAX_WINDOW_LOG: u32 = 23;

/// First bytes of a zstd frame. CDR begins with 00 and cannot be mistaken for it.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A topic as a storage file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredTopic {
    pub(super) name: String,
    pub(super) type_name: String,
}

/// A message as it is stored.
#[derive(Debug)]
pub(super) struct RawMessage<'a> {
    pub(super) topic: &'a StoredTopic,
    /// When it was recorded.
    pub(super) stamp: Stamp,
    /// The encoded message; may be empty for types that are not read, and is empty for messages that are too large.
    pub(super) data: &'a [u8],
    /// Size of the message in the file, in bytes.
    pub(super) length: usize,
}

impl RawMessage<'_> {
    /// Decodes the message, after decompressing it where rosbag2's compression mode "message" made it a zstd frame.
    pub(super) fn decode<M: Message>(&self) -> Result<M, String> {
        if self.length > MAX_MESSAGE {
            return Err(format!("it has {} bytes, more than the {MAX_MESSAGE} that are read", self.length));
        }
        let plain = self.data.starts_with(&ZSTD_MAGIC).then(|| decompressed(self.data)).transpose()?;
        messages::decode(plain.as_deref().unwrap_or(self.data))
    }
}

fn decompressed(data: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let problem = |error: std::io::Error| format!("it cannot be decompressed: {error}");
    let mut decoder = zstd::Decoder::with_buffer(data).map_err(problem)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(problem)?;
    decoder.take(MAX_MESSAGE as u64 + 1).read_to_end(&mut plain).map_err(problem)?;
    if plain.len() > MAX_MESSAGE {
        return Err(format!("it has more than the {MAX_MESSAGE} bytes that are read after decompression"));
    }
    Ok(plain)
}

/// Whether messages of this type are read.
pub(super) fn is_read(type_name: &str) -> bool {
    [messages::MagneticField::TYPE, messages::Odometry::TYPE, messages::PoseStamped::TYPE, messages::TFMessage::TYPE]
        .contains(&type_name)
}

/// How a file stores messages, according to its first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Mcap,
    Sqlite3,
    /// MCAP or SQLite, compressed as a whole.
    Zstd,
}

impl Format {
    /// The format of a file.
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
        let mut head = Vec::new();
        let file = File::open(path).map_err(Error::io("read", path))?;
        file.take(16).read_to_end(&mut head).map_err(Error::io("read", path))?;
        let formats: [(&[u8], Format); 3] =
            [(mcap::MAGIC, Format::Mcap), (b"SQLite format 3\0", Format::Sqlite3), (&ZSTD_MAGIC, Format::Zstd)];
        let known = formats.into_iter().find(|(magic, _)| head.starts_with(magic));
        known.map(|(_, format)| format).ok_or_else(|| Error::NotARecording {
            path: path.into(),
            found: format!("a file that begins with {head:02x?}, as neither MCAP nor SQLite does"),
        })
    }
}

/// A reader of one storage file.
pub(super) trait FileReader: Send {
    /// The next message in recorded order; `None` at the end or where damage ends the file.
    fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, Error>;

    /// The topics and the damage found so far.
    fn found(self: Box<Self>) -> (Vec<StoredTopic>, Loss);
}
