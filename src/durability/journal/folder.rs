//! The folder of a journal: file names, locking, and the disk behind it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::durability::Error;
use crate::durability::checkpoint::{Checkpoint, StoredTiles};
use crate::durability::tile_folder::TileFolder;
use crate::files::FileError;

/// Digits of a step number in a file name, so that files sort in order.
const DIGITS: usize = 12;

/// A file of the journal and its number: that of the next step (of a checkpoint) or the first step (of a segment).
pub(super) type Numbered = (u64, PathBuf);

/// The folder of a map's journal, locked against other writers for the lifetime of this value.
#[derive(Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// Locked until the file is closed, however the process ends; none as long as there is nothing to write.
    pub(super) lock: Option<File>,
    /// Why it could not be locked now, if so.
    pub(super) trouble: Option<String>,
    /// What happens to a journal that is there when it is locked.
    existing: ExistingJournal,
    /// The files of its tiles.
    pub(super) tiles: Arc<TileFolder>,
}

/// What happens to an existing journal when another one replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingJournal {
    /// It is renamed to an earlier map.
    Keep,
    /// It is removed: its map is saved.
    Remove,
}

impl Folder {
    /// Creates the folder if it does not exist, and locks it.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::InUse`] where another process, or another journal of this process, has locked it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let lock = fs::create_dir_all(&path)
            .and_then(|()| File::options().create(true).truncate(false).write(true).open(path.join("lock")));
        match lock.map(|lock| (lock.try_lock(), lock)) {
            Ok((Ok(()), lock)) => Ok(Self { lock: Some(lock), ..Self::deferred(path, ExistingJournal::Keep, None) }),
            Ok((Err(TryLockError::WouldBlock), _)) => Err(Error::InUse(path)),
            Ok((Err(TryLockError::Error(source)), _)) | Err(source) => Err(unusable(&path)(source).into()),
        }
    }

    /// A folder that is created and locked only when there is something to write: nothing on disk changes before. `trouble` says
    /// why that would fail now.
    pub fn deferred(path: impl Into<PathBuf>, existing: ExistingJournal, trouble: Option<String>) -> Self {
        let path = path.into();
        let tiles = Arc::new(TileFolder::new(&path));
        Self { path, lock: None, trouble, existing, tiles }
    }

    /// Locks the folder and removes partial files. A map that a deferred folder contains is not the current one: it becomes an
    /// earlier map, of which at most `earlier_maps` are kept, or is removed.
    pub(super) fn take(&mut self, earlier_maps: usize) -> Result<(), Error> {
        if self.lock.is_none() {
            let mut folder = Self::open(&self.path)?;
            if folder.holds_map()? {
                match self.existing {
                    ExistingJournal::Keep => {
                        let kept = folder.set_aside(earlier_maps)?;
                        log::info!("the journal of an earlier map is kept as {}", kept.display());
                    }
                    ExistingJournal::Remove => folder.remove(),
                }
                folder = Self::open(&self.path)?;
            }
            // The map may have this folder of tiles already.
            self.lock = folder.lock;
        }
        self.tiles.open();
        // Those that a process that died has not finished.
        let is_partial = |name: &&String| name.starts_with('.') && name.ends_with(".partial");
        self.names().iter().flatten().filter(is_partial).for_each(|name| remove(&self.path.join(name)));
        Ok(())
    }

    pub(super) fn checkpoint(&self, number: u64) -> PathBuf {
        self.path.join(format!("checkpoint-{number:0DIGITS$}.npz"))
    }

    pub(super) fn segment(&self, first: u64) -> PathBuf {
        self.path.join(format!("steps-{first:0DIGITS$}.journal"))
    }

    /// All checkpoints, in order.
    pub(super) fn checkpoints(&self) -> Result<Vec<Numbered>, Error> {
        self.numbered("checkpoint-", ".npz")
    }

    /// All segments, in order.
    pub(super) fn segments(&self) -> Result<Vec<Numbered>, Error> {
        self.numbered("steps-", ".journal")
    }

    fn numbered(&self, prefix: &str, suffix: &str) -> Result<Vec<Numbered>, Error> {
        let number = |name: &str| name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok();
        let mut files: Vec<Numbered> =
            self.names()?.iter().filter_map(|name| Some((number(name)?, self.path.join(name)))).collect();
        files.sort();
        Ok(files)
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let entries = fs::read_dir(&self.path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(unusable(&self.path))?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Removes the journal: the map is safe elsewhere. Damaged files that were set aside are kept, and so is the folder then. The
    /// newest checkpoint is removed last, so that an interrupted removal leaves a valid journal.
    pub fn remove(self) {
        let segments = self.segments().unwrap_or_default();
        let checkpoints = self.checkpoints().unwrap_or_default();
        segments.into_iter().rev().chain(checkpoints).for_each(|(_, file)| remove(&file));
        self.tiles.clear();
        remove(&self.path.join("lock"));
        // Fails if something is left.
        let _ = fs::remove_dir(&self.path);
    }
}

/// The error for a folder that cannot be created or read.
fn unusable(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    FileError::of("keep a journal in", path, "; choose another folder, or set journal.enabled = false")
}

/// Removes a file that is no longer needed; failure is harmless.
pub(super) fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file) {
        log::warn!("cannot remove {}: {error}", file.display());
    }
}

/// Renames a file or folder to the first free name with this suffix, and returns its new path.
pub(super) fn set_aside(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = std::iter::once(format!("{name}.{suffix}")).chain((2..).map(|n| format!("{name}.{suffix}-{n}")));
    let free = names.map(|name| path.with_file_name(name)).find(|path| !path.exists());
    let free = free.ok_or_else(|| io::Error::other("no name is free"))?;
    fs::rename(path, &free)?;
    Ok(free)
}

/// Writes the files: the operating system, or a faulty disk in tests.
pub(super) trait Disk: Send {
    /// Creates a file for appending; it must not exist.
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Append>>;

    /// Writes a checkpoint, replacing one of that name, and returns the files of its tiles.
    fn write(&mut self, path: &Path, checkpoint: &Checkpoint, tiles: &Arc<TileFolder>) -> Result<StoredTiles, Error>;
}

/// A file that is appended to.
pub(super) trait Append: Send {
    /// Appends all of the bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns when what was appended survives a power cut.
    fn sync(&mut self) -> io::Result<()>;
}

/// The disk of the operating system.
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Append>> {
        let file = File::options().append(true).create_new(true).open(path)?;
        crate::files::sync_folder_of(path)?;
        Ok(Box::new(file))
    }

    fn write(&mut self, path: &Path, checkpoint: &Checkpoint, tiles: &Arc<TileFolder>) -> Result<StoredTiles, Error> {
        checkpoint.write_with_tiles(path, tiles)
    }
}

impl Append for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
