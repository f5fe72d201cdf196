//! A folder with a file for each version of a local model that is not in memory, or in a checkpoint of the journal.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::field::tile_store::{StoredTile, TileStore};
use crate::files::sync_folder_of;
use crate::mapping::mapper::Mapper;
use crate::mapping::updates::lock;

const PREFIX: &str = "tile-";
const SUFFIX: &str = ".npz";

/// The files of tiles in a folder. A file is named after the column and the row of its tile and numbered, and is never changed.
#[derive(Debug)]
pub struct TileFolder {
    path: PathBuf,
    /// Where the folder is removed with this value.
    temporary: Option<TempDir>,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    /// Whether files may be written.
    is_open: bool,
    /// Number of the next file.
    next: u64,
    /// Names of those that are in use.
    used: BTreeSet<String>,
    /// Those that a power cut may cost.
    unsynced: BTreeSet<String>,
    /// When the last attempt to write failed; none if it did not.
    failed: Option<Instant>,
}

/// Pause after a failure to write, before a tile is evicted again.
const RETRY: Duration = Duration::from_secs(1);

impl TileFolder {
    /// A folder in which nothing is written before it is [opened](Self::open).
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), temporary: None, files: Mutex::default() }
    }

    /// A new folder among the temporary files of the system, removed with this value.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn temporary() -> io::Result<Self> {
        let temporary = tempfile::Builder::new().prefix("magmap-tiles-").tempdir()?;
        let path = temporary.path().to_owned();
        let folder = Self { path, temporary: Some(temporary), files: Mutex::default() };
        folder.open();
        Ok(folder)
    }

    /// From now on files may be written; the folder exists.
    pub(crate) fn open(&self) {
        let mut files = lock(&self.files);
        if !files.is_open {
            let number = |name: &String| name.strip_suffix(SUFFIX)?.rsplit('-').next()?.parse::<u64>().ok();
            files.next = self.names().iter().filter_map(number).max().map_or(0, |last| last + 1);
            files.is_open = true;
        }
    }

    /// Path of a file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file that exists already, and is in use from now on.
    pub(crate) fn existing(self: &Arc<Self>, name: &str) -> Arc<StoredTile> {
        lock(&self.files).used.insert(name.to_owned());
        Arc::new(StoredTile::new(Arc::clone(self) as Arc<dyn TileStore>, name.to_owned()))
    }

    /// Returns when these files survive a power cut.
    pub(crate) fn sync(&self, tiles: &[Arc<StoredTile>]) -> io::Result<()> {
        let is_unsynced = |tile: &&Arc<StoredTile>| lock(&self.files).unsynced.contains(tile.name());
        let unsynced: Vec<_> = tiles.iter().filter(is_unsynced).collect();
        for tile in &unsynced {
            File::open(self.file(tile.name()))?.sync_all()?;
        }
        if !unsynced.is_empty() {
            sync_folder_of(&self.file(""))?;
        }
        lock(&self.files).unsynced.retain(|name| !unsynced.iter().any(|tile| tile.name() == name));
        Ok(())
    }

    /// Removes the files that are not in use.
    pub(crate) fn sweep(&self) {
        for name in self.names() {
            if !lock(&self.files).used.contains(&name) {
                // It is tried again next time.
                let _ = fs::remove_file(self.file(&name));
            }
        }
    }

    /// Removes all files.
    pub(crate) fn clear(&self) {
        self.names().iter().for_each(|name| drop(fs::remove_file(self.file(name))));
    }

    /// Names of the files of tiles in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_name(name)).collect()
    }
}

/// Whether this is a file of a tile in a folder, and not elsewhere.
fn is_name(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX) && Path::new(name).file_name().is_some_and(|file| file == name)
}

impl TileStore for TileFolder {
    fn is_ready(&self) -> bool {
        let files = lock(&self.files);
        files.is_open && files.failed.is_none_or(|failed| failed.elapsed() >= RETRY)
    }

    fn write(&self, [column, row]: [i64; 2], bytes: &[u8]) -> io::Result<String> {
        let name = {
            let mut files = lock(&self.files);
            if !files.is_open {
                return Err(io::Error::other("nothing is written yet"));
            }
            let name = format!("{PREFIX}{column}_{row}-{:08}{SUFFIX}", files.next);
            files.next += 1;
            files.used.insert(name.clone());
            files.unsynced.insert(name.clone());
            name
        };
        let path = self.file(&name);
        let written = File::create_new(&path).and_then(|mut file| file.write_all(bytes));
        let failed = written.is_err().then(Instant::now);
        let had_failed = std::mem::replace(&mut lock(&self.files).failed, failed).is_some();
        match written {
            Ok(()) => Ok(name),
            Err(error) => {
                self.release(&name);
                let _ = fs::remove_file(&path);
                if !had_failed {
                    log::error!("cannot write {}: {error}; the tile stays in memory", path.display());
                }
                Err(error)
            }
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        if !is_name(name) {
            return Err(io::Error::other(format!("expected the name of a tile's file, found {name}")));
        }
        fs::read(self.file(name))
    }

    fn report_lost(&self, name: &str, reason: &str) {
        log::error!("cannot read {}: {reason}; what this tile has learnt is lost", self.file(name).display());
    }

    fn release(&self, name: &str) {
        let mut files = lock(&self.files);
        files.used.remove(name);
        files.unsynced.remove(name);
        if self.temporary.is_some() {
            // The folder is removed with all that is left.
            let _ = fs::remove_file(self.file(name));
        }
    }
}

/// Bounds the memory of a map without a journal, if its settings ask for a bound.
pub(crate) fn keep_tiles_temporarily(mapper: &Mapper) {
    let settings = &mapper.config().tiles;
    if settings.size == 0.0 || settings.memory == 0.0 {
        return;
    }
    match TileFolder::temporary() {
        Ok(folder) => mapper.model().keep_tiles_in(Arc::new(folder)),
        Err(error) => log::warn!("all tiles stay in memory: no temporary folder for them can be made: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_are_kept_and_the_others_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tile-0_0-00000007.npz"), "of a process that died").unwrap();
        fs::write(folder.path().join("map.npz"), "a map").unwrap();
        let tiles = Arc::new(TileFolder::new(folder.path()));
        assert!(!tiles.is_ready() && tiles.write([1, -2], b"early").is_err());
        tiles.open();
        let name = tiles.write([1, -2], b"a tile").unwrap();
        assert_eq!((name.as_str(), tiles.is_ready()), ("tile-1_-2-00000008.npz", true));
        let stored = StoredTile::new(Arc::clone(&tiles) as Arc<dyn TileStore>, name.clone());
        tiles.sync(&[Arc::new(stored)]).unwrap();
        // The only one that used it is gone.
        let again = tiles.existing(&tiles.write([1, -2], b"again").unwrap());
        tiles.sweep();
        assert_eq!(tiles.names(), [again.name()]);
        assert_eq!(
            (tiles.read(again.name()).unwrap(), folder.path().join("map.npz").exists()),
            (b"again".to_vec(), true)
        );
        for other in ["../map.npz", "map.npz", "tile-/../../x.npz", "tile-0_0-00000007.npz"] {
            assert!(tiles.read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn after_a_failure_there_is_a_pause_and_no_part_of_a_file() {
        let tiles = TileFolder::new("/nonexistent-folder-of-tiles");
        tiles.open();
        assert!(tiles.is_ready() && tiles.write([0, 0], b"a tile").is_err() && !tiles.is_ready());
        assert!(lock(&tiles.files).used.is_empty());
    }

    #[test]
    fn a_temporary_folder_is_removed_with_its_files() {
        let tiles = TileFolder::temporary().unwrap();
        let (name, path) = (tiles.write([0, 0], b"a tile").unwrap(), tiles.path.clone());
        assert!(path.join(name).exists());
        drop(tiles);
        assert!(!path.exists());
    }
}
