//! A bag: the folder that rosbag2 records into, or a single storage file.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use tempfile::NamedTempFile;

use super::storage::{FileReader, Format};
use super::{Error, Loss};
use super::{mcap, rosbag2_sqlite};

/// The file in a bag's folder that describes the others.
pub(super) const METADATA: &str = "metadata.yaml";

/// Bytes decompressed at once.
const COPY_SIZE: usize = 1 << 16;

/// Size of the longest metadata that is read. A bag with hundreds of topics has a megabyte of it.
const MAX_METADATA: u64 = 16 << 20;

/// Largest number of storage files in one bag.
const MAX_FILES: usize = 100_000;

/// Bytes that any file may decompress to.
const DECOMPRESSED: u64 = 64 << 20;

/// How many times its size a larger file may decompress to: recordings shrink to a tenth; a file that shrank to less than a
/// thousandth was made to fill the disk.
const DECOMPRESSED_TIMES: u64 = 1000;

/// The storage files of one bag, in recorded order.
#[derive(Default)]
pub(super) struct Bag {
    pub(super) files: Vec<BagFile>,
    pub(super) format: Format,
    pub(super) is_folder: bool,
    /// The numbers of messages by topic that the metadata states.
    pub(super) counts: Vec<(String, u64)>,
    /// Files that are missing or cannot be read.
    pub(super) loss: Loss,
    /// Peculiarities that are no loss.
    pub(super) notes: Vec<String>,
}

/// A storage file.
pub(super) struct BagFile {
    /// Path of the file for the user.
    pub(super) path: PathBuf,
    /// Decompressed content, if the file is compressed; removed with the bag.
    decompressed: Option<NamedTempFile>,
}

impl BagFile {
    /// A reader at the start of the file.
    pub(super) fn reader(&self) -> Result<Box<dyn FileReader>, Error> {
        let readable = self.decompressed.as_ref().map_or(self.path.as_path(), NamedTempFile::path);
        match Format::of(readable)? {
            Format::Mcap => Ok(Box::new(mcap::Reader::open(readable, &self.path)?)),
            Format::Sqlite3 => Ok(Box::new(rosbag2_sqlite::Reader::open(readable, &self.path)?)),
            Format::Zstd => Err(Error::unusable(&self.path, "it is compressed twice; expected one layer of zstd")),
        }
    }
}

/// The part of `metadata.yaml` that is read: the same in all versions, or optional.
#[derive(Debug, Default, Deserialize)]
struct MetadataFile {
    rosbag2_bagfile_information: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    relative_file_paths: Vec<PathBuf>,
    compression_format: Option<String>,
    topics_with_message_count: Vec<TopicCount>,
}

#[derive(Debug, Deserialize)]
struct TopicCount {
    topic_metadata: TopicName,
    message_count: u64,
}

#[derive(Debug, Deserialize)]
struct TopicName {
    name: String,
}

impl Bag {
    /// Opens the folder of a bag or a single storage file.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() { Self::open_folder(path) } else { Self::open_files(vec![path.into()], false) }
    }

    fn open_folder(folder: &Path) -> Result<Self, Error> {
        let metadata_path = folder.join(METADATA);
        if !metadata_path.exists() {
            let mut bag = Self::open_files(storage_files(folder)?, true)?;
            bag.notes.push(format!(
                "{} is missing; the storage files are read in the order of their names",
                metadata_path.display()
            ));
            return Ok(bag);
        }
        let metadata = read_metadata(&metadata_path)?;
        let compression = metadata.compression_format.unwrap_or_default();
        if !["", "zstd"].contains(&compression.as_str()) {
            let reason = format!("the compression {compression:?} is not supported; expected zstd or none");
            return Err(Error::unusable(metadata_path, reason));
        }
        if metadata.relative_file_paths.is_empty() {
            return Err(not_metadata(&metadata_path, "it lists no files"));
        }
        let mut files: Vec<PathBuf> = Vec::new();
        let mut seen = HashSet::new();
        let mut repeated = 0;
        for file in metadata.relative_file_paths.iter().map(|file| resolve(folder, file)) {
            if seen.insert(file.clone()) { files.push(file) } else { repeated += 1 }
        }
        if files.len() > MAX_FILES {
            let reason = format!("it lists {} files, more than the {MAX_FILES} that are read", files.len());
            return Err(not_metadata(&metadata_path, &reason));
        }
        let mut bag = Self::open_files(files, true)?;
        if repeated > 0 {
            bag.notes.push(format!("{METADATA} lists {repeated} files again; each is read once"));
        }
        let counts = metadata.topics_with_message_count.into_iter();
        bag.counts = counts.map(|topic| (topic.topic_metadata.name, topic.message_count)).collect();
        Ok(bag)
    }

    /// Opens these files. Files that cannot be read are a loss; if none can, the first error is returned.
    fn open_files(paths: Vec<PathBuf>, is_folder: bool) -> Result<Self, Error> {
        let mut bag = Self { is_folder, ..Self::default() };
        let mut first_error = None;
        for path in paths {
            match open_file(path, &mut bag.loss) {
                Ok((format, file)) => {
                    bag.format = format;
                    bag.files.push(file);
                }
                Err(error) => {
                    bag.loss.damage(format!("a storage file is missing: {error}"));
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error {
            Some(error) if bag.files.is_empty() => Err(error),
            _ => Ok(bag),
        }
    }
}

/// Opens a file, and decompresses it if it is compressed as a whole. The part that cannot be decompressed is a loss.
fn open_file(path: PathBuf, loss: &mut Loss) -> Result<(Format, BagFile), Error> {
    let mut format = Format::of(&path)?;
    let mut decompressed = None;
    if format == Format::Zstd {
        let (target, damage) = decompress(&path)?;
        // An error about the decompressed file is one about the compressed file.
        format = Format::of(target.path()).map_err(|error| match error {
            Error::NotARecording { found, .. } => {
                Error::NotARecording { path: path.clone(), found: damage.clone().unwrap_or(found) }
            }
            other => other,
        })?;
        decompressed = Some(target);
        damage.into_iter().for_each(|damage| loss.damage(damage));
    }
    let file = BagFile { path, decompressed };
    file.reader()?;
    Ok((format, file))
}

/// Decompresses a file into a temporary one. Where it is damaged or cut off, or holds more than it may, what comes before is kept,
/// and the second part describes the rest.
fn decompress(path: &Path) -> Result<(NamedTempFile, Option<String>), Error> {
    let mut target = NamedTempFile::new().map_err(Error::io("create a file in", std::env::temp_dir()))?;
    let source = File::open(path).map_err(Error::io("read", path))?;
    let mut decoder = zstd::Decoder::new(source).map_err(Error::io("decompress", path))?;
    let size = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
    let most = DECOMPRESSED.max(size.saturating_mul(DECOMPRESSED_TIMES));
    let mut buffer = vec![0; COPY_SIZE];
    let mut length: u64 = 0;
    let reason = loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return Ok((target, None)),
            Ok(count) if length + count as u64 > most => {
                break format!(", whose {size} bytes may become at most {most}");
            }
            Ok(count) => {
                target.write_all(&buffer[..count]).map_err(Error::io("write", target.path()))?;
                length += count as u64;
            }
            Err(error) => break format!(": {error}"),
        }
    };
    Ok((target, Some(format!("what follows the first {length} bytes decompressed from {}{reason}", path.display()))))
}

fn not_metadata(path: &Path, reason: &str) -> Error {
    Error::unusable(path, format!("it is not rosbag2 metadata: {reason}"))
}

fn read_metadata(path: &Path) -> Result<Metadata, Error> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let size = file.metadata().map_err(Error::io("read", path))?.len();
    let mut text = String::new();
    file.take(MAX_METADATA + 1).read_to_string(&mut text).map_err(Error::io("read", path))?;
    if text.len() as u64 > MAX_METADATA {
        return Err(not_metadata(path, &format!("it has {size} bytes, more than the {MAX_METADATA} that are read")));
    }
    let parsed: Result<MetadataFile, _> = serde_saphyr::from_str(&text);
    parsed.map(|file| file.rosbag2_bagfile_information).map_err(|error| not_metadata(path, &error.to_string()))
}

/// The path of a listed file, which is always in the folder. Early versions listed files with the name of the folder.
fn resolve(folder: &Path, file: &Path) -> PathBuf {
    let stays_inside = file.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let listed = folder.join(file);
    match file.file_name() {
        Some(name) if !stays_inside || !listed.exists() => folder.join(name),
        _ => listed,
    }
}

/// The storage files in a folder without metadata, by the number at the end of their names.
fn storage_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let stem = name.strip_suffix(".zstd").unwrap_or(&name);
        if let Some(stem) = stem.strip_suffix(".mcap").or_else(|| stem.strip_suffix(".db3")) {
            let start = stem.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
            let number: u64 = stem[start..].parse().unwrap_or(0);
            files.push(((stem[..start].to_string(), number), path));
        }
    }
    if files.is_empty() {
        let found = format!("a folder without {METADATA} and without .mcap or .db3 files");
        return Err(Error::NotARecording { path: folder.into(), found });
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_files_without_metadata_are_read_by_number() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bag_10.mcap", "bag_2.mcap", "bag_0.mcap", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let files = storage_files(folder.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["bag_0.mcap", "bag_2.mcap", "bag_10.mcap"]);
    }

    #[test]
    fn metadata_of_every_version_is_understood() {
        let humble = r#"
rosbag2_bagfile_information:
  version: 5
  storage_identifier: sqlite3
  duration: {nanoseconds: 7}
  topics_with_message_count:
    - topic_metadata:
        name: /odom
        type: nav_msgs/msg/Odometry
        serialization_format: cdr
        offered_qos_profiles: "- history: 3\n  depth: 0\n  reliability: 1"
      message_count: 3
  compression_format: ""
  compression_mode: ""
  relative_file_paths: [bag_0.db3]
  files: [{path: bag_0.db3, message_count: 3}]
"#;
        let kilted = r#"
rosbag2_bagfile_information:
  version: 9
  storage_identifier: mcap
  topics_with_message_count:
    - topic_metadata:
        name: /odom
        type: nav_msgs/msg/Odometry
        serialization_format: cdr
        offered_qos_profiles:
          - history: keep_last
            deadline: {sec: 9223372036, nsec: 854775807}
        type_description_hash: RIHS01_3cc97dc7fb7502f8714462c526d369e35b603cfc34d946e3f2eda2766dfec6e0
      message_count: 3
  compression_format: zstd
  relative_file_paths: [bag_0.mcap]
  custom_data: ~
  ros_distro: kilted
"#;
        let oldest = "rosbag2_bagfile_information:\n  version: 1\n  relative_file_paths: [a/a.db3]\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METADATA);
        for (text, topics) in [(humble, 1), (kilted, 1), (oldest, 0)] {
            std::fs::write(&path, text).unwrap();
            let metadata = read_metadata(&path).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(metadata.relative_file_paths.len(), 1);
            assert_eq!(metadata.topics_with_message_count.len(), topics);
        }
        std::fs::write(&path, "rosbag2_bagfile_information: [").unwrap();
        assert!(read_metadata(&path).unwrap_err().to_string().contains(METADATA));
    }
}
