//! Reader of MCAP files of any size, from front to back with little memory.
//!
//! Kind and length of each record are read here, so that large attachments and indexes are skipped without being loaded,
//! and so that a damaged chunk costs its own messages only. The `mcap` crate reads the content of the records.

use std::collections::{HashMap, hash_map::Entry};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use byteorder::{LittleEndian, ReadBytesExt};
use mcap::records::{MessageHeader, Record, op};
use mcap::sans_io::linear_reader::{LinearReadEvent, LinearReader, LinearReaderOptions};

use super::storage::{FileReader, MAX_MESSAGE, MAX_NAME, MAX_TOPICS, RawMessage, StoredTopic, is_read};
use super::{Error, Loss};
use magmap::sensing::reading::Stamp;

/// Opcode (1 byte) and length (8 bytes) before every record.
const RECORD_HEADER: u64 = 9;

/// Size of the largest record that is loaded, more than an uncompressed 4K image; larger ones are reported as damage.
const MAX_RECORD: usize = 32 << 20;

/// Size of the largest chunk whose checksum is verified before its messages are used. In larger ones, which few writers make,
/// messages are used first and a wrong checksum is reported afterwards.
const MAX_VERIFIED_CHUNK: u64 = 8 << 20;

/// Size of the largest chunk that is decompressed. Common writers make chunks of a megabyte; more than this would take minutes.
const MAX_CHUNK: u64 = 1 << 30;

/// Reads one MCAP file.
pub(super) struct Reader {
    shown: PathBuf,
    file: BufReader<File>,
    length: u64,
    /// Offset of the next record.
    position: u64,
    record: Option<OpenRecord>,
    contents: Contents,
    loss: Loss,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Data,
    Summary,
    Ended,
}

/// The record that is being read.
struct OpenRecord {
    reader: LinearReader,
    start: u64,
    /// Stated end of the record, which may be beyond the end of the file.
    end: u64,
    /// Bytes of it that are in the file and not read yet.
    unread: u64,
}

/// The content of the records so far.
#[derive(Default)]
struct Contents {
    schemas: HashMap<u16, String>,
    /// The index of the topic by channel id.
    channels: HashMap<u16, usize>,
    topics: Vec<StoredTopic>,
    /// The index by topic.
    indices: HashMap<StoredTopic, usize>,
    messages: u64,
    messages_stated: Option<u64>,
    /// The last message; empty if its type is not read or it is too large.
    message: Vec<u8>,
    /// Size of the last message in the file.
    message_length: usize,
}

impl Reader {
    /// Opens a file that begins with MCAP's magic; messages about it call it `shown`.
    pub(super) fn open(path: &Path, shown: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("read", shown))?;
        let length = file.metadata().map_err(Error::io("read", shown))?.len();
        let mut reader = Self {
            shown: shown.into(),
            file: BufReader::new(file),
            length,
            position: 0,
            record: None,
            contents: Contents::default(),
            loss: Loss::default(),
            phase: Phase::Data,
        };
        reader.go_to(mcap::MAGIC.len() as u64).map_err(Error::io("read", shown))?;
        Ok(reader)
    }

    fn find_message(&mut self) -> io::Result<Option<(usize, Stamp)>> {
        while self.phase != Phase::Ended {
            let Some(record) = &mut self.record else {
                self.next_record()?;
                continue;
            };
            match record.reader.next_event() {
                Some(Ok(LinearReadEvent::ReadRequest(wanted))) => record.read(&mut self.file, wanted)?,
                Some(Ok(LinearReadEvent::Record { opcode, data })) => match self.contents.take(opcode, data) {
                    Ok(None) => {}
                    Ok(message) => return Ok(message),
                    Err(reason) => self.loss.damage(format!("{reason} in {}", self.shown.display())),
                },
                Some(Err(error)) => {
                    let reason = error.to_string();
                    self.leave_record(Some(reason))?;
                }
                None => self.leave_record(None)?,
            }
        }
        Ok(None)
    }

    /// Goes to the next record that is read, or ends.
    fn next_record(&mut self) -> io::Result<()> {
        if self.length - self.position < RECORD_HEADER {
            self.end_cut_off(self.position + RECORD_HEADER);
            return Ok(());
        }
        let mut header = [0; RECORD_HEADER as usize];
        self.file.read_exact(&mut header)?;
        let [opcode, length @ ..] = header;
        let end = self.position.saturating_add(RECORD_HEADER).saturating_add(u64::from_le_bytes(length));
        match opcode {
            op::SCHEMA | op::CHANNEL | op::MESSAGE | op::CHUNK | op::STATISTICS => self.open_record(opcode, end),
            op::FOOTER => {
                let file_end = end.saturating_add(mcap::MAGIC.len() as u64);
                if file_end > self.length {
                    self.end_cut_off(file_end)
                } else {
                    self.end()
                }
                Ok(())
            }
            _ => {
                if opcode == op::DATA_END {
                    self.phase = Phase::Summary;
                }
                self.skip_to(end)
            }
        }
    }

    fn open_record(&mut self, opcode: u8, end: u64) -> io::Result<()> {
        let start = self.position;
        let whole = end <= self.length;
        let size = if opcode == op::CHUNK { self.stated_size(end)? } else { 0 };
        if size > MAX_CHUNK {
            let file = self.shown.display();
            self.loss.damage(format!(
                "messages of the chunk at byte {start} of {file}: it states {size} bytes, more than the {MAX_CHUNK} that are read"
            ));
            return self.skip_to(end);
        }
        let verified = whole && size.max(end - start) <= MAX_VERIFIED_CHUNK;
        self.go_to(start)?;
        let options = LinearReaderOptions::default()
            .with_skip_start_magic(true)
            .with_skip_end_magic(true)
            .with_validate_chunk_crcs(whole)
            .with_prevalidate_chunk_crcs(verified)
            .with_record_length_limit(MAX_RECORD);
        let reader = LinearReader::new_with_options(options);
        self.record = Some(OpenRecord { reader, start, end, unread: end.min(self.length) - start });
        Ok(())
    }

    /// The bytes of its messages, decompressed, that the chunk at this position states; 0 where the file does not hold the number.
    fn stated_size(&mut self, end: u64) -> io::Result<u64> {
        // After the times of its first and of its last message.
        let at = self.position + RECORD_HEADER + 16;
        if end.min(self.length) < at + 8 {
            return Ok(0);
        }
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_u64::<LittleEndian>()
    }

    /// Leaves a record, whether read to its end or damaged.
    fn leave_record(&mut self, damage: Option<String>) -> io::Result<()> {
        let Some(record) = self.record.take() else { return Ok(()) };
        if let Some(reason) = damage.filter(|_| record.end <= self.length) {
            let file = self.shown.display();
            self.loss.damage(format!("messages of the record at byte {} of {file}: {reason}", record.start));
        }
        self.skip_to(record.end)
    }

    /// Continues with the record after `end`; the file is cut off if it ends before that.
    fn skip_to(&mut self, end: u64) -> io::Result<()> {
        if end > self.length {
            self.end_cut_off(end);
            return Ok(());
        }
        self.go_to(end)
    }

    fn go_to(&mut self, position: u64) -> io::Result<()> {
        self.position = position;
        self.file.seek(SeekFrom::Start(position))?;
        Ok(())
    }

    /// Ends at the file's proper end.
    fn end(&mut self) {
        self.phase = Phase::Ended;
        let Contents { messages, messages_stated, .. } = self.contents;
        if let Some(stated) = messages_stated.filter(|&stated| stated > messages) {
            let file = self.shown.display();
            self.loss.damage(format!("{} of the {stated} messages that {file} states to hold", stated - messages));
        }
    }

    /// Ends where the file stops, although a record should end at `expected`.
    fn end_cut_off(&mut self, expected: u64) {
        let missing = match self.phase {
            Phase::Data => "the messages after that place are missing",
            _ => "its index is missing, no message is",
        };
        let (file, length) = (self.shown.display(), self.length);
        self.loss
            .damage(format!("{file} is cut off at byte {length} in a record that reaches to {expected}: {missing}"));
        self.phase = Phase::Ended;
    }
}

impl FileReader for Reader {
    fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, Error> {
        let found = self.find_message().map_err(Error::io("read", &self.shown))?;
        Ok(found.map(|(topic, stamp)| RawMessage {
            topic: &self.contents.topics[topic],
            stamp,
            data: &self.contents.message,
            length: self.contents.message_length,
        }))
    }

    fn found(self: Box<Self>) -> (Vec<StoredTopic>, Loss) {
        (self.contents.topics, self.loss)
    }
}

impl OpenRecord {
    /// Gives the parser the bytes it needs, as far as the record and the file hold them; none mean the end.
    fn read(&mut self, file: &mut BufReader<File>, wanted: usize) -> io::Result<()> {
        let count = wanted.min(usize::try_from(self.unread).unwrap_or(usize::MAX));
        file.read_exact(&mut self.reader.insert(count)[..count])?;
        self.reader.notify_read(count);
        self.unread -= count as u64;
        Ok(())
    }
}

impl Contents {
    /// Adds one record. A message gives the index of its topic and its time; a record that cannot be used, the reason.
    fn take(&mut self, opcode: u8, data: &[u8]) -> Result<Option<(usize, Stamp)>, String> {
        let unparsed = |reason: String| format!("a record that cannot be parsed ({reason})");
        match opcode {
            // The crate reserves as much memory as the length of a name claims.
            op::SCHEMA => {
                let (id, name) = numbered_name(data).map_err(unparsed)?;
                self.schemas.insert(id, name.into());
            }
            op::CHANNEL => {
                let channel = number(data).and_then(|(id, rest)| Ok((id, numbered_name(rest)?)));
                let (id, (schema, topic)) = channel.map_err(unparsed)?;
                let type_name = self.schemas.get(&schema).cloned().unwrap_or_default();
                let topic = self.index(StoredTopic { name: topic.into(), type_name })?;
                self.channels.insert(id, topic);
            }
            op::MESSAGE | op::STATISTICS => {
                match mcap::parse_record(opcode, data).map_err(|error| unparsed(error.to_string()))? {
                    Record::Message { header, data } => return self.take_message(&header, &data).map(Some),
                    Record::Statistics(statistics) => self.messages_stated = Some(statistics.message_count),
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn take_message(&mut self, header: &MessageHeader, data: &[u8]) -> Result<(usize, Stamp), String> {
        self.messages += 1;
        let unknown = || format!("a message of channel {}, which is not described before it,", header.channel_id);
        let topic = *self.channels.get(&header.channel_id).ok_or_else(unknown)?;
        self.message.clear();
        self.message_length = data.len();
        if data.len() <= MAX_MESSAGE && is_read(&self.topics[topic].type_name) {
            self.message.extend_from_slice(data);
        }
        Ok((topic, Stamp::from_nanoseconds(header.log_time.try_into().unwrap_or(i64::MAX))))
    }

    fn index(&mut self, topic: StoredTopic) -> Result<usize, String> {
        let index = self.topics.len();
        match self.indices.entry(topic) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(_) if index == MAX_TOPICS => Err(format!("a topic beyond the first {MAX_TOPICS}")),
            Entry::Vacant(new) => {
                self.topics.push(new.key().clone());
                Ok(*new.insert(index))
            }
        }
    }
}

fn number(data: &[u8]) -> Result<(u16, &[u8]), String> {
    let (number, rest) = data.split_first_chunk().ok_or("it ends within a number")?;
    Ok((u16::from_le_bytes(*number), rest))
}

fn numbered_name(data: &[u8]) -> Result<(u16, &str), String> {
    let (number, rest) = number(data)?;
    Ok((number, name(rest)?))
}

/// The name at the start of these bytes: its length (4 bytes) and text.
fn name(data: &[u8]) -> Result<&str, String> {
    let (length, rest) = data.split_first_chunk().ok_or("it ends within the length of a name")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_NAME {
        return Err(format!("its name claims {length} bytes, more than {MAX_NAME}"));
    }
    let name = rest.get(..length).ok_or_else(|| format!("its name claims {length} bytes, {} follow", rest.len()))?;
    std::str::from_utf8(name).map_err(|error| error.to_string())
}
