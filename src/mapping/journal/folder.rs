//! The folder of a journal: what its files are called, and that nothing in it is overwritten.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::super::checkpoint::Checkpoint;
use super::Error;

/// Digits of a number in a file's name, so that files are listed in order.
const DIGITS: usize = 12;

/// A file of the journal, by the number of the step that comes after it (a checkpoint) or first in it (a segment).
pub(super) type Numbered = (u64, PathBuf);

/// The folder of one map's journal, in which nobody else writes as long as this lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    lock: Lock,
}

#[derive(Debug)]
enum Lock {
    /// Locked until the file is closed, however the process ends.
    Held { _file: File },
    /// It is not ours yet.
    Wanted {
        /// What stands in the way, if anything does.
        trouble: Option<String>,
        /// What becomes of a journal that is there when it is taken.
        existing: Existing,
    },
}

/// What becomes of an existing journal when another one takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It gets a name of its own.
    Keep,
    /// It is removed: its map is saved.
    Remove,
}

impl Folder {
    /// Creates the folder if it does not exist, and takes possession of it.
    ///
    /// # Errors
    /// [`Error::Folder`], and [`Error::InUse`] where another process, or another journal of this one, writes into it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let lock = fs::create_dir_all(&path)
            .and_then(|()| File::options().create(true).truncate(false).write(true).open(path.join("lock")));
        match lock.map(|lock| (lock.try_lock(), lock)) {
            Ok((Ok(()), lock)) => Ok(Self { path, lock: Lock::Held { _file: lock } }),
            Ok((Err(TryLockError::WouldBlock), _)) => Err(Error::InUse { path }),
            Ok((Err(TryLockError::Error(source)), _)) | Err(source) => Err(Error::Folder { path, source }),
        }
    }

    /// A folder that is made, and taken possession of, when there is something to write: nothing on disk changes before. `trouble`
    /// says why it could not be for now.
    pub fn wanted(path: impl Into<PathBuf>, existing: Existing, trouble: Option<String>) -> Self {
        Self { path: path.into(), lock: Lock::Wanted { trouble, existing } }
    }

    /// Why nothing can be written; nothing where it can.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.lock {
            Lock::Held { .. } => None,
            Lock::Wanted { trouble, .. } => trouble.as_deref(),
        }
    }

    /// Whether it is ours.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.lock, Lock::Held { .. })
    }

    /// Makes the folder ours, and removes what was only half written. A map that a wanted folder holds is not the one that is being
    /// made: it becomes an earlier map, of which at most `earlier_maps` are kept.
    pub(super) fn take(&mut self, earlier_maps: usize) -> Result<(), Error> {
        if let Lock::Wanted { existing, .. } = self.lock {
            let mut folder = Self::open(&self.path)?;
            if folder.holds_map()? {
                match existing {
                    Existing::Keep => {
                        let kept = folder.set_aside(earlier_maps)?;
                        log::info!("the journal of an earlier map is kept as {}", kept.display());
                    }
                    Existing::Remove => folder.remove(),
                }
                folder = Self::open(&self.path)?;
            }
            *self = folder;
        }
        self.remove_partial_files();
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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
        let entries = entries.map_err(|source| Error::Folder { path: self.path.clone(), source })?;
        Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Removes what a process that died had only begun to write.
    fn remove_partial_files(&self) {
        let names = self.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with('.') && name.ends_with(".partial")) {
            remove(&self.path.join(name));
        }
    }

    /// Ends the journal: the map is safe elsewhere. Files that were set aside, and the folder with them, stay. The newest checkpoint
    /// goes last, so that an end in between leaves the map as it was in it.
    pub fn remove(self) {
        let segments = self.segments().unwrap_or_default();
        let checkpoints = self.checkpoints().unwrap_or_default();
        segments.into_iter().rev().chain(checkpoints).for_each(|(_, file)| remove(&file));
        remove(&self.path.join("lock"));
        // Refused when something is left.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes a file that is not needed any more. One that stays does no harm.
pub(super) fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file) {
        log::warn!("cannot remove {}: {error}", file.display());
    }
}

/// Gives a file or folder the first free name made of its own and `suffix`, and returns that.
pub(super) fn set_aside(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = std::iter::once(format!("{name}.{suffix}")).chain((2..).map(|n| format!("{name}.{suffix}-{n}")));
    let free = names.map(|name| path.with_file_name(name)).find(|path| !path.exists());
    let free = free.ok_or_else(|| io::Error::other("no name is free"))?;
    fs::rename(path, &free)?;
    Ok(free)
}

/// What writes the files: the operating system, or in tests something that fails.
pub(super) trait Disk: Send {
    /// A new file that is appended to; it must not exist.
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Append>>;

    /// Writes a checkpoint in place of one of that name.
    fn write(&mut self, path: &Path, checkpoint: &Checkpoint) -> Result<(), super::super::Error>;
}

/// A file that is appended to.
pub(super) trait Append: Send {
    /// Appends all of the bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns when what was appended outlasts a power cut.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's.
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Append>> {
        let file = File::options().append(true).create_new(true).open(path)?;
        crate::files::sync_folder_of(path)?;
        Ok(Box::new(file))
    }

    fn write(&mut self, path: &Path, checkpoint: &Checkpoint) -> Result<(), super::super::Error> {
        checkpoint.write(path)
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
