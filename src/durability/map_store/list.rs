//! Lists the maps in a folder.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use strum::AsRefStr;

use crate::config::Config;
use crate::durability::checkpoint::Checkpoint;
use crate::durability::journal::{ExistingJournal, Folder, Gaps};
use crate::field::totals::Totals;
use crate::mapping::mapper::Progress;

/// Depth of the search in subfolders, which are namespaces.
const DEPTH: usize = 4;

/// A map in a folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// The namespace and the `node.map_name` under which it is continued.
    pub name: String,
    /// Its file, or the folder of its journal.
    pub path: PathBuf,
    /// Whether it is saved, unfinished or damaged.
    #[serde(flatten)]
    pub state: State,
    /// When it was last written.
    #[serde(serialize_with = "as_text")]
    pub modified: Timestamp,
    /// Size in bytes.
    pub bytes: u64,
    /// Its contents, if they can be read.
    #[serde(flatten)]
    pub contents: Option<Contents>,
}

/// State of a map on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, AsRefStr)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// Saved in a file.
    Saved,
    /// A process is making it.
    #[strum(serialize = "in use")]
    InUse,
    /// Its process ended before it was saved; the next run of that name continues it.
    Unfinished,
    /// It cannot be read completely.
    Damaged(String),
}

/// Contents of a map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contents {
    /// Lower left and upper right corner, in metres.
    pub extent: Option<[[f64; 2]; 2]>,
    /// The frame of its coordinates.
    pub frame: String,
    /// Counts of what it was learnt from.
    #[serde(flatten)]
    pub totals: Totals,
    /// Names of the recordings or robot nodes that it was made from, without duplicates.
    pub sources: Vec<String>,
}

impl Contents {
    fn of(progress: &Progress, frame: &str, extent: Option<[[f64; 2]; 2]>, totals: Totals) -> Self {
        let mut sources: Vec<String> = Vec::new();
        for run in &progress.sources {
            if !sources.contains(&run.id.name) {
                sources.push(run.id.name.clone());
            }
        }
        Self { extent, frame: frame.to_owned(), totals, sources }
    }
}

/// Every map in a folder and in its namespaces, sorted by name.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<Listed>> {
    let mut maps = Vec::new();
    walk(folder, folder, DEPTH, &mut maps)?;
    maps.sort_by(|left, right| (&left.name, &left.path).cmp(&(&right.name, &right.path)));
    Ok(maps)
}

fn walk(top: &Path, folder: &Path, depth: usize, maps: &mut Vec<Listed>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let found = match (path.is_dir(), ending) {
            _ if is_hidden => continue,
            (false, "npz") => of_file(&path),
            // The journal of a replay has no other name.
            (true, _) if ending == "journal" || path.ends_with("journal") => of_journal(&path),
            (true, _) if depth > 0 => {
                walk(top, &path, depth - 1, maps)?;
                continue;
            }
            _ => continue,
        };
        let Some((state, contents)) = found else { continue };
        let (modified, bytes) = size(&path)?;
        let modified = Timestamp::try_from(modified).unwrap_or_default();
        let name = path.strip_prefix(top).unwrap_or(&path).with_extension("").display().to_string();
        maps.push(Listed { name, path, state, modified, bytes, contents });
    }
    Ok(())
}

/// `None` where it contains other arrays, such as those of a picture.
fn of_file(path: &Path) -> Option<(State, Option<Contents>)> {
    match Checkpoint::read(path) {
        Ok(Checkpoint { frame, model, stream, .. }) => {
            Some((State::Saved, Some(Contents::of(&stream.progress, &frame, model.extent, model.totals))))
        }
        Err(_) if holds_other_arrays(path) => None,
        Err(error) => Some((State::Damaged(error.to_string()), None)),
    }
}

/// Whether it is an archive of arrays that is not a checkpoint.
fn holds_other_arrays(path: &Path) -> bool {
    let mut head = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    // The local header of a file in a zip archive has 30 bytes, and then its name.
    let name = head[30..].split(|byte| !byte.is_ascii_graphic()).next().unwrap_or_default();
    read.is_ok()
        && head.starts_with(b"PK\x03\x04")
        && !name.starts_with(b"format.npy")
        && name.windows(4).any(|part| part == b".npy")
}

/// `None` where it contains no map.
fn of_journal(path: &Path) -> Option<(State, Option<Contents>)> {
    let is_in_use = || {
        let lock = File::open(path.join("lock")).ok()?;
        Some(matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    };
    // Steps since the last checkpoint are replayed, as the next run would do.
    let folder = Folder::deferred(path, ExistingJournal::Keep, None);
    let recovered = match folder.recover(&Config::default(), Gaps::Skip, |_| ()) {
        Ok(Some(recovered)) => recovered,
        Ok(None) if !folder.holds_map().unwrap_or(false) => return None,
        Ok(None) => return Some((State::Damaged("neither a checkpoint nor the first steps can be read".into()), None)),
        Err(error) => return Some((State::Damaged(error.to_string()), None)),
    };
    let state = match recovered.findings.first() {
        _ if is_in_use() == Some(true) => State::InUse,
        Some(finding) => State::Damaged(finding.clone()),
        None => State::Unfinished,
    };
    let (mapper, model) = (&recovered.mapper, recovered.mapper.model());
    let extent = model.map().map(|map| map.extent);
    Some((state, Some(Contents::of(mapper.progress(), mapper.frame(), extent, model.totals))))
}

/// Modification time of its newest file, and total size in bytes.
fn size(path: &Path) -> io::Result<(SystemTime, u64)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return Ok((metadata.modified()?, metadata.len()));
    }
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let metadata = entry?.metadata()?;
        newest = newest.max(metadata.modified()?);
        bytes += metadata.len();
    }
    Ok((newest, bytes))
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}
