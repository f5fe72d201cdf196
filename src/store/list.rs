//! Lists the maps in a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use strum::AsRefStr;

use super::earlier_maps::{EXTENSION, sibling};
use super::recovery::Gaps;
use super::{Database, Error};
use crate::config::Config;
use crate::field::totals::Totals;
use crate::mapping::mapper::Mapper;
use crate::trajectory::{Delay, Withdrawal};

/// Depth of the search in subfolders, which are namespaces.
const DEPTH: usize = 4;

/// A map in a folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// The namespace and the `node.map_name` under which it is continued.
    pub name: String,
    /// The file of the map.
    pub path: PathBuf,
    /// Whether it is saved, unfinished or damaged.
    #[serde(flatten)]
    pub state: State,
    /// When it was last written.
    #[serde(serialize_with = "as_text")]
    pub modified: Timestamp,
    /// Size in bytes.
    pub bytes: u64,
    /// Contents of the map, if they can be read.
    #[serde(flatten)]
    pub contents: Option<Contents>,
}

/// State of a map on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, AsRefStr)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// Saved, with nothing after it.
    Saved,
    /// A process is making it. What it contains is known when that ends.
    #[strum(serialize = "in use")]
    InUse,
    /// The process ended before the map was saved; the next run of that name continues it.
    Unfinished,
    /// Not completely readable.
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
    /// How late readings are stamped, where it was found.
    pub delay: Option<Delay>,
    /// Where the building has changed since the map was begun: what was withdrawn from it.
    pub changes: Vec<Withdrawal>,
}

impl Contents {
    fn of(mapper: &Mapper) -> Self {
        let mut sources: Vec<String> = Vec::new();
        for run in &mapper.progress().sources {
            if !sources.contains(&run.id.name) {
                sources.push(run.id.name.clone());
            }
        }
        let (model, delay) = (mapper.model(), mapper.trajectory().delay);
        let changes = mapper.trajectory().withdrawals.clone();
        let extent = model.map().map(|map| map.extent);
        Self { extent, frame: mapper.frame().to_owned(), totals: model.totals, sources, delay, changes }
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

/// The map in a file.
///
/// # Errors
/// When there is no such file.
pub fn of_path(path: &Path) -> io::Result<Listed> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    listed(name, path.to_owned())
}

fn walk(top: &Path, folder: &Path, depth: usize, maps: &mut Vec<Listed>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_dir() && depth > 0 && !is_hidden {
            walk(top, &path, depth - 1, maps)?;
        }
        if !path.is_file() || is_hidden || path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        let name = path.strip_prefix(top).unwrap_or(&path).with_extension("").display().to_string();
        maps.push(listed(name, path)?);
    }
    Ok(())
}

fn listed(name: String, path: PathBuf) -> io::Result<Listed> {
    let (state, contents) = of_file(&path);
    let (modified, bytes) = size(&path)?;
    let modified = Timestamp::try_from(modified).unwrap_or_default();
    Ok(Listed { name, path, state, modified, bytes, contents })
}

fn of_file(path: &Path) -> (State, Option<Contents>) {
    let database = match Database::open_to_read(path) {
        Ok(database) => Arc::new(database),
        Err(Error::InUse { .. }) => return (State::InUse, None),
        Err(error) => return (State::Damaged(error.to_string()), None),
    };
    // Steps since the last checkpoint are taken, as the next run would do.
    let recovered = match database.recover(&Config::default(), Gaps::Skip, |_| ()) {
        Ok(recovered) => recovered,
        Err(error) => return (State::Damaged(error.to_string()), None),
    };
    let state = match recovered.findings.first() {
        Some(finding) => State::Damaged(finding.clone()),
        None if recovered.is_saved => State::Saved,
        None => State::Unfinished,
    };
    (state, Some(Contents::of(&recovered.mapper)))
}

/// Time of the last change, and size in bytes.
fn size(path: &Path) -> io::Result<(SystemTime, u64)> {
    let files = ["", "-wal"].map(|ending| fs::metadata(sibling(path, ending)));
    let (mut newest, mut bytes) = (SystemTime::UNIX_EPOCH, 0);
    for metadata in files.into_iter().flatten() {
        newest = newest.max(metadata.modified()?);
        bytes += metadata.len();
    }
    Ok((newest, bytes))
}

fn as_text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}
