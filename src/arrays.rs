//! The container of a checkpoint: numpy arrays in an uncompressed `.npz` archive, the last one a checksum of the others.
//!
//! Arrays are read in place, so that memory is bounded by the size of the file, not by any number in it. Only headers of the form
//! that is written here are accepted.

mod problem;

use std::collections::BTreeMap;
use std::io::{self, Cursor, Seek, Write};
use std::sync::Arc;

use npyz::{DType, WriteOptions, WriterBuilder};
use sha2::{Digest, Sha256};
use zip::write::FileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

pub use self::problem::Problem;

/// Name of the first array of every checkpoint.
const FIRST: &str = "format";

/// Name of the last array: SHA-256 over the name and the bytes of every file in the archive before it, in hexadecimal.
const CHECKSUM: &str = "checksum";

/// Number of bytes that identify a checkpoint.
pub const PREFIX: u64 = 40;

/// Length of a header in a zip archive, without the name that follows it.
const ZIP_HEADER: usize = 30;

/// Length of the record that ends an archive, without a comment.
const ZIP_END: usize = 22;

/// Length of the record before it in large archives (zip64).
const ZIP64_LOCATOR: usize = 20;

/// Fewest bytes of an array in the archive: its two headers.
const LEAST_FILE: usize = ZIP_HEADER + 46;

/// Rejects bytes that are not the start of an archive whose first array is `format`.
pub fn check_prefix(bytes: &[u8]) -> Result<(), Problem> {
    let name = bytes.get(ZIP_HEADER..).unwrap_or_default();
    if bytes.starts_with(b"PK\x03\x04") && name.starts_with(file_name(FIRST).as_bytes()) {
        return Ok(());
    }
    let found = match bytes {
        [] => "an empty file".to_owned(),
        _ => format!("a file that begins with \"{}\"", bytes[..bytes.len().min(8)].escape_ascii()),
    };
    Err(Problem::NotACheckpoint(found))
}

fn file_name(array: &str) -> String {
    format!("{array}.npy")
}

/// Writes arrays one after another.
pub struct ArrayWriter<W: Write + Seek> {
    zip: ZipWriter<W>,
    digest: Sha256,
    /// Prefix of the names of the arrays.
    section: String,
}

impl<W: Write + Seek> ArrayWriter<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { zip: ZipWriter::new(out), digest: Sha256::new(), section: String::new() }
    }

    /// The names of the arrays that follow begin with this.
    pub fn section(&mut self, section: &str) {
        section.clone_into(&mut self.section);
    }

    /// Writes a text that is not empty, as numpy's `str`.
    pub fn text(&mut self, name: &str, text: &str) -> io::Result<()> {
        let characters = text.chars().map(|character| u32::from(character).to_le_bytes());
        self.array(name, &format!("<U{}", text.chars().count()), &[], characters)
    }

    /// Adds an array that is one integer.
    pub fn integer(&mut self, name: &str, value: i64) -> io::Result<()> {
        self.array(name, "<i8", &[], [value.to_le_bytes()])
    }

    /// Writes as many numbers as the shape says, the last index running fastest.
    pub fn numbers(&mut self, name: &str, shape: &[usize], values: impl IntoIterator<Item = f64>) -> io::Result<()> {
        self.array(name, "<f8", shape, values.into_iter().map(f64::to_le_bytes))
    }

    /// Writes the checksum and the archive's table of contents.
    pub fn finish(mut self) -> io::Result<W> {
        let checksum = format!("{:x}", self.digest.finalize_reset());
        self.text(CHECKSUM, &checksum)?;
        Ok(self.zip.finish()?)
    }

    fn array<const N: usize>(
        &mut self,
        name: &str,
        type_string: &str,
        shape: &[usize],
        values: impl IntoIterator<Item = [u8; N]>,
    ) -> io::Result<()> {
        let shape: Vec<u64> = shape.iter().map(|&length| length as u64).collect();
        let data_type = DType::Plain(type_string.parse().map_err(io::Error::other)?);
        let header = WriteOptions::new_header_only().dtype(data_type).shape(&shape).writer(Vec::new());
        let mut bytes = header.write_header_only()?;
        let values = values.into_iter();
        bytes.reserve_exact(N * values.size_hint().0);
        values.for_each(|value| bytes.extend(value));
        self.file(&file_name(&format!("{}{name}", self.section)), &bytes)
    }

    /// Adds a file as it is.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(name);
        self.digest.update(bytes);
        let options = FileOptions::default()
            .compression_method(CompressionMethod::Stored)
            // Without the time of writing, equal checkpoints are equal files.
            .last_modified_time(DateTime::default())
            .large_file(u32::try_from(bytes.len()).is_err());
        self.zip.start_file(name, options)?;
        self.zip.write_all(bytes)
    }
}

/// The arrays of an archive whose checksum is valid, or those whose names begin with that of a section.
pub struct ArrayReader<'a> {
    /// Bytes of each file in the archive, by its name.
    files: Arc<BTreeMap<String, &'a [u8]>>,
    section: String,
}

impl<'a> ArrayReader<'a> {
    /// Opens an archive in memory.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Problem> {
        check_prefix(bytes)?;
        let mut files = list(bytes)?;
        let checksum = files.pop_if(|(name, _)| *name == file_name(CHECKSUM));
        let (_, checksum) = checksum.ok_or_else(|| damaged("expected a checksum as its last array, found none"))?;
        let expected = Array::parse(CHECKSUM, checksum)?.text()?;
        let mut digest = Sha256::new();
        for (name, bytes) in &files {
            digest.update(name);
            digest.update(bytes);
        }
        let found = format!("{:x}", digest.finalize());
        if found != expected {
            return Err(damaged(format!("expected the checksum {expected}, found {found}")));
        }
        Ok(Self { files: Arc::new(files.into_iter().collect()), section: String::new() })
    }

    /// The arrays whose names begin with this.
    pub fn section(&self, section: &str) -> Self {
        Self { files: Arc::clone(&self.files), section: section.to_owned() }
    }

    /// An array that is a text.
    pub fn text(&self, name: &str) -> Result<String, Problem> {
        self.array(name)?.text()
    }

    /// An array that is one integer.
    pub fn integer(&self, name: &str) -> Result<i64, Problem> {
        let array = self.array(name)?;
        let values = array.values("<i8", &[])?;
        Ok(i64::from_le_bytes(values[0]))
    }

    /// An array that is one number.
    pub fn number(&self, name: &str) -> Result<f64, Problem> {
        Ok(self.numbers(name, [])?[0])
    }

    /// Finite numbers in this shape, in which `None` is any length, with the last index running fastest.
    pub fn numbers<const N: usize>(&self, name: &str, shape: [Option<usize>; N]) -> Result<Vec<f64>, Problem> {
        let array = self.array(name)?;
        let values: Vec<f64> = array.values("<f8", &shape)?.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(array.problem("finite numbers", value.to_string())),
            None => Ok(values),
        }
    }

    fn array(&self, name: &str) -> Result<Array<'a>, Problem> {
        let array = format!("{}{name}", self.section);
        match self.files.get(&file_name(&array)) {
            Some(bytes) => Array::parse(&array, bytes),
            None => Err(Problem::array(&array, "numbers", "none")),
        }
    }
}

/// Rejects an archive that claims too many files, for which memory would be reserved before they are found.
fn check_count(bytes: &[u8]) -> Result<(), Problem> {
    let end_at = bytes.len().saturating_sub(ZIP_END);
    let Some(count) = bytes[end_at..].strip_prefix(b"PK\x05\x06").and_then(|end| end[6..].first_chunk()) else {
        return Err(damaged("it does not end as an archive"));
    };
    // Beyond four gigabytes the count is elsewhere, and memory for that many is in proportion.
    let is_elsewhere = bytes[end_at.saturating_sub(ZIP64_LOCATOR)..].starts_with(b"PK\x06\x07");
    let (count, most) = (usize::from(u16::from_le_bytes(*count)), bytes.len() / LEAST_FILE);
    if count > most || (is_elsewhere && u32::try_from(bytes.len()).is_ok()) {
        return Err(damaged(format!(
            "its table of contents states {count} arrays, more than the {most} it has space for"
        )));
    }
    Ok(())
}

/// Name and bytes of every file in the archive. Its directory is checked against the bytes.
pub fn list(bytes: &[u8]) -> Result<Vec<(String, &[u8])>, Problem> {
    check_count(bytes)?;
    let damaged_by = |error: zip::result::ZipError| damaged(format!("its table of contents is invalid ({error})"));
    let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(damaged_by)?;
    let mut files = Vec::new();
    let mut listed = 0;
    for index in 0..zip.len() {
        let file = zip.by_index_raw(index).map_err(damaged_by)?;
        let range = usize::try_from(file.data_start()).ok().zip(usize::try_from(file.compressed_size()).ok());
        let content = range.and_then(|(start, length)| bytes.get(start..)?.get(..length));
        let content = content.ok_or_else(|| damaged(format!("it ends before the end of {}", file.name())))?;
        // Overlapping files could turn a few bytes into a long list.
        listed += content.len();
        if listed > bytes.len() {
            return Err(damaged("its table of contents lists more bytes than the file has"));
        }
        files.push((file.name().to_owned(), content));
    }
    Ok(files)
}

/// An array: its header, and the bytes of its values.
struct Array<'a> {
    name: String,
    type_string: &'a str,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn parse(name: &str, bytes: &'a [u8]) -> Result<Self, Problem> {
        let parsed = parse_header(bytes);
        let start = || format!("\"{}\"", bytes[..bytes.len().min(100)].escape_ascii());
        let not_a_header = || Problem::array(name, "a header of numpy's format 1.0, in C order", start());
        let (type_string, shape, bytes) = parsed.ok_or_else(not_a_header)?;
        Ok(Self { name: name.to_owned(), type_string, shape, bytes })
    }

    /// Values of an array of this type and shape, in which `None` is any length.
    fn values<const N: usize>(&self, type_string: &str, shape: &[Option<usize>]) -> Result<&'a [[u8; N]], Problem> {
        let fits = self.shape.len() == shape.len()
            && shape.iter().zip(&self.shape).all(|(expected, found)| expected.is_none_or(|length| length == *found));
        let length = self.shape.iter().try_fold(N, |product, &length| product.checked_mul(length));
        if self.type_string == type_string && fits && length == Some(self.bytes.len()) {
            return Ok(self.bytes.as_chunks().0);
        }
        let shape: Vec<String> = shape.iter().map(|length| length.map_or("any".into(), |n| n.to_string())).collect();
        let expected = format!("{type_string} of shape ({})", shape.join(", "));
        let found: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let found = format!("{} of shape ({}) in {} bytes", self.type_string, found.join(", "), self.bytes.len());
        Err(self.problem(&expected, found))
    }

    fn text(&self) -> Result<String, Problem> {
        let type_string = format!("<U{}", self.bytes.len() / size_of::<u32>());
        let unexpected = || self.problem("one text", format!("{} {:?}", self.type_string, self.shape));
        if self.type_string != type_string || !self.shape.is_empty() {
            return Err(unexpected());
        }
        let (characters, _) = self.bytes.as_chunks();
        let text: Option<String> = characters.iter().map(|&bytes| char::from_u32(u32::from_le_bytes(bytes))).collect();
        text.ok_or_else(unexpected)
    }

    fn problem(&self, expected: &str, found: String) -> Problem {
        Problem::array(&self.name, expected, found)
    }
}

/// Type, shape and values of an array whose header has the form that is written here.
fn parse_header(bytes: &[u8]) -> Option<(&str, Vec<usize>, &[u8])> {
    let rest = bytes.strip_prefix(b"\x93NUMPY\x01\x00")?;
    let (length, rest) = rest.split_first_chunk()?;
    let (header, values) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let header = std::str::from_utf8(header).ok()?.trim_end().strip_prefix("{'descr': '")?;
    let (type_string, shape) = header.split_once("', 'fortran_order': False, 'shape': (")?;
    let lengths = shape.strip_suffix("), }")?.split(", ").filter(|length| !length.is_empty());
    let shape = lengths.map(|length| length.parse().ok()).collect::<Option<_>>()?;
    Some((type_string, shape, values))
}

fn damaged(reason: impl Into<String>) -> Problem {
    Problem::Damaged(reason.into())
}
