//! A file of the journal: a segment of the steps that lead to a map, in order.
//!
//! ```text
//! segment   magic (8 bytes), version (u32), then records: the head of the segment, and one per step
//! record    length of the content (u32), CRC-32 of what follows (u32), number of the step (u64), content
//! ```
//!
//! Numbers are little-endian, contents are in postcard's wire format. A segment is only appended to; after a crash its last record
//! may be truncated.

use std::io;

use byteorder::{ByteOrder, LittleEndian};
use serde::{Deserialize, Serialize};

use crate::mapping::mapper::Step;

/// The first bytes of a segment.
const MAGIC: [u8; 8] = *b"magmapJ\n";

/// Version of the format.
pub(super) const VERSION: u32 = 4;

/// Bytes before the first record.
const PREFIX: usize = MAGIC.len() + size_of::<u32>();

/// Length of a record's header in bytes.
const RECORD_HEAD: usize = 16;

/// Longest content of a record, in bytes. The longest ones contain all settings, some kilobytes.
const LONGEST: usize = 1 << 20;

/// The search for the next valid record after damage ends after reading this many times the length of the file.
const SEARCH: usize = 8;

/// The first record of a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Version of magmap that wrote it.
    pub(super) magmap_version: String,
    /// All settings, as TOML, when the journal was started.
    pub(super) config: String,
}

/// Appends the header of a segment whose first step has this number.
pub(super) fn begin(buffer: &mut Vec<u8>, first: u64, head: &Head) -> io::Result<()> {
    buffer.extend(MAGIC);
    buffer.extend(VERSION.to_le_bytes());
    append(buffer, first, head)
}

/// Whether a segment was truncated before the end of its first step, and so contains none.
pub(super) fn is_blank(bytes: Vec<u8>, first: u64) -> bool {
    Segment::open(bytes, first).is_ok_and(|mut segment| segment.next().is_none())
}

/// Appends a record: a step with its number.
pub(super) fn append(buffer: &mut Vec<u8>, number: u64, content: &impl Serialize) -> io::Result<()> {
    let start = buffer.len();
    buffer.extend([0; 8]);
    buffer.extend(number.to_le_bytes());
    postcard::to_io(content, &mut *buffer).map_err(io::Error::other)?;
    let length = u32::try_from(buffer.len() - start - RECORD_HEAD).map_err(io::Error::other)?;
    let checksum = crc32fast::hash(&buffer[start + 8..]);
    LittleEndian::write_u32(&mut buffer[start..], length);
    LittleEndian::write_u32(&mut buffer[start + 4..], checksum);
    Ok(())
}

/// Reads a segment from its bytes. It allocates at most their length.
pub(super) struct Segment {
    /// Its head, unless that is damaged or truncated.
    pub(super) head: Option<Head>,
    bytes: Vec<u8>,
    offset: usize,
    /// Number of bytes that may still be read in search of a record.
    search: usize,
    /// Number of the last valid record.
    last: u64,
}

impl Segment {
    /// The segment whose first step should have this number.
    pub(super) fn open(bytes: Vec<u8>, first: u64) -> Result<Self, String> {
        let prefix = bytes.len().min(PREFIX);
        let magic = prefix.min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            let found = bytes[..magic].escape_ascii();
            return Err(format!("expected a journal of magmap, found a file that begins with \"{found}\""));
        }
        if let Some(version) = bytes[magic..].first_chunk() {
            let found = u32::from_le_bytes(*version);
            if found != VERSION {
                return Err(format!(
                    "expected version {VERSION} of the journal, found version {found}; read it with the version of magmap that \
                     wrote it"
                ));
            }
        }
        let search = SEARCH.saturating_mul(bytes.len());
        let mut segment = Self { head: None, offset: PREFIX.min(bytes.len()), bytes, search, last: first };
        if let Record::Whole { number, content, end } = segment.record_at(segment.offset)
            && number == first
            && let Ok(head) = postcard::from_bytes(content)
        {
            (segment.head, segment.offset) = (Some(head), end);
        }
        Ok(segment)
    }

    fn record_at(&self, offset: usize) -> Record<'_> {
        let rest = &self.bytes[offset.min(self.bytes.len())..];
        let Some((head, rest)) = rest.split_first_chunk::<RECORD_HEAD>() else { return Record::Truncated };
        let length = LittleEndian::read_u32(head) as usize;
        if length > LONGEST {
            return Record::Damaged;
        }
        let Some(content) = rest.get(..length) else { return Record::Truncated };
        let end = offset + RECORD_HEAD + length;
        if crc32fast::hash(&self.bytes[offset + 8..end]) != LittleEndian::read_u32(&head[4..]) {
            return Record::Damaged;
        }
        Record::Whole { number: LittleEndian::read_u64(&head[8..]), content, end }
    }

    /// Offset of the next valid record from here; the end if there is none, or if the search takes too long.
    fn find_record(&mut self, from: usize) -> usize {
        let end = self.bytes.len();
        for offset in from..end {
            let Some(head) = self.bytes[offset..].first_chunk::<RECORD_HEAD>() else { break };
            let (length, number) = (LittleEndian::read_u32(head) as usize, LittleEndian::read_u64(&head[8..]));
            // At most as many steps can be missing as fit into the file.
            let possible = self.last..self.last.saturating_add((end / RECORD_HEAD) as u64);
            if length > end - offset - RECORD_HEAD || !possible.contains(&number) {
                continue;
            }
            self.search = self.search.saturating_sub(length + RECORD_HEAD);
            if self.search == 0 {
                break;
            }
            if matches!(self.record_at(offset), Record::Whole { .. }) {
                return offset;
            }
        }
        end
    }
}

/// The next step with its number, or the damage before it; none at the end.
impl Iterator for Segment {
    type Item = Result<(u64, Step), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        match self.record_at(offset) {
            Record::Whole { number, content, end } => {
                let step = postcard::from_bytes(content);
                self.offset = end;
                if let Ok(step) = step {
                    self.last = number;
                    return Some(Ok((number, step)));
                }
            }
            Record::Damaged => self.offset = self.find_record(offset + 1),
            Record::Truncated => {
                // If a valid record follows, the length was damaged.
                self.offset = self.find_record(offset + 1);
                if self.offset == self.bytes.len() {
                    return None;
                }
            }
        }
        Some(Err(format!("the {} bytes from byte {offset} on are damaged", self.offset - offset)))
    }
}

/// The record at an offset.
enum Record<'a> {
    Whole {
        number: u64,
        content: &'a [u8],
        end: usize,
    },
    /// It is longer than the remaining bytes.
    Truncated,
    Damaged,
}

#[cfg(test)]
mod tests {
    use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};

    use super::*;
    use crate::config::Config;
    use crate::mapping::mapper::SourceId;
    use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

    fn head() -> Head {
        Head { magmap_version: "0".into(), config: String::new() }
    }

    /// One step of every kind.
    fn steps() -> Vec<Step> {
        let stamp = Stamp::from_nanoseconds(-1_700_000_000_123_456_789);
        let field = MagneticField::from_microtesla(Vector3::new(f64::NAN, f64::INFINITY, -0.0));
        let pose = Pose {
            stamp,
            position: Point3::new(0.1, -1e-310, 3.0),
            orientation: UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3),
        };
        let config = Box::new(Config::default());
        vec![
            Step::Source {
                id: SourceId { name: "lobby/\u{1f9ed}".into(), fingerprint: "ab".into() },
                run: "cd".into(),
            },
            Step::Mount(Isometry3::translation(0.1, 0.2, 0.3)),
            Step::Measurement { index: 0, measurement: Measurement::Reading(Reading { stamp, field }) },
            Step::Measurement { index: u64::MAX, measurement: Measurement::Pose(pose) },
            Step::Learn { batches: 3 },
            Step::Frame("odom".into()),
            Step::Configure(config),
            Step::Flush,
            Step::Reset,
            Step::Finish,
        ]
    }

    fn written(first: u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        begin(&mut bytes, first, &head()).unwrap();
        let mut ends = vec![bytes.len()];
        for (number, step) in (first..).zip(steps()) {
            append(&mut bytes, number, &step).unwrap();
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    /// The numbers of the steps that are read, each exactly as it was written, and what is damaged.
    fn read(bytes: &[u8], first: u64) -> (Vec<u64>, Vec<String>) {
        let (mut numbers, mut damages) = (Vec::new(), Vec::new());
        let segment = Segment::open(bytes.to_vec(), first).unwrap();
        assert!(segment.head.as_ref().is_none_or(|found| *found == head()));
        for item in segment {
            match item {
                Ok((number, step)) => {
                    // NaN is not equal to itself, but its bytes are.
                    let encoded = |step: &Step| postcard::to_stdvec(step).unwrap();
                    assert_eq!(encoded(&step), encoded(&steps()[(number - first) as usize]));
                    numbers.push(number);
                }
                Err(damage) => damages.push(damage),
            }
        }
        (numbers, damages)
    }

    #[test]
    fn what_is_written_is_read_to_the_last_bit() {
        let (bytes, _) = written(1 << 40);
        assert_eq!(read(&bytes, 1 << 40), (((1 << 40)..(1 << 40) + 10).collect(), vec![]));
    }

    #[test]
    fn truncated_anywhere_it_contains_every_complete_step_and_is_not_damaged() {
        let (bytes, ends) = written(7);
        for length in 0..bytes.len() {
            let whole = ends[1..].iter().filter(|&&end| end <= length).count() as u64;
            assert_eq!(read(&bytes[..length], 7), ((7..7 + whole).collect(), vec![]), "{length}");
            assert_eq!(is_blank(bytes[..length].to_vec(), 7), whole == 0);
        }
    }

    #[test]
    fn a_byte_flipped_anywhere_costs_only_the_step_that_contains_it() {
        let (bytes, ends) = written(7);
        for index in 0..bytes.len() {
            for mask in [1 << (index % 8), 0xff] {
                let mut damaged = bytes.clone();
                damaged[index] ^= mask;
                if index < PREFIX {
                    assert!(Segment::open(damaged, 7).is_err(), "{index}");
                    continue;
                }
                let (numbers, damages) = read(&damaged, 7);
                // The head is hit, or one of the steps.
                let hit = ends.iter().position(|&end| index < end).unwrap();
                let expected: Vec<u64> = (7..17).filter(|number| number + 1 != 7 + hit as u64).collect();
                assert_eq!(numbers, expected, "{index}");
                let offset = if hit == 0 { PREFIX } else { ends[hit - 1] };
                let named = [format!("the {} bytes from byte {offset} on are damaged", ends[hit] - offset)];
                // The last record looks truncated when its length is too large.
                assert!(damages == named || (hit == 10 && damages.is_empty()), "{index}: {damages:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_a_journal_or_of_another_version_is_named() {
        let rejection = |bytes: &[u8]| Segment::open(bytes.to_vec(), 0).err().unwrap();
        assert_eq!(
            rejection(b"PK\x03\x04"),
            r#"expected a journal of magmap, found a file that begins with "PK\x03\x04""#
        );
        let (mut bytes, _) = written(0);
        bytes[8] = 9;
        assert!(
            rejection(&bytes).starts_with("expected version 4 of the journal, found version 9"),
            "{}",
            rejection(&bytes)
        );
    }

    #[test]
    fn a_file_crafted_for_a_long_search_is_given_up() {
        // Every place looks like a record of a megabyte whose checksum is wrong.
        let (mut bytes, _) = written(0);
        bytes.resize(bytes.len() + (1 << 20), 0);
        let (numbers, damages) = read(&bytes, 0);
        assert_eq!(numbers.len(), 10);
        assert!(damages.len() <= 1, "{damages:?}");
    }
}
