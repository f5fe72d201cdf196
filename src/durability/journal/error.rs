//! Why a journal cannot be started or continued. Later failures are not errors but in a [`JournalStatus`](super::JournalStatus).

use std::io;
use std::path::PathBuf;

use crate::files::FileError;
use crate::mapping::mapper::SourceId;

/// Why a journal cannot be started or continued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be created or read, or a file or folder cannot be renamed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process writes there.
    #[error("the journal in {} is being written by another process; stop it first, or choose another map name", .0.display())]
    InUse(PathBuf),
    /// The operating system could not start the thread.
    #[error("the journal's thread could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// The journal belongs to another recording.
    #[error("the map in {} is of {}, whose replay was interrupted; resume that one first, or choose another folder", path.display(), kept.name)]
    OtherSource {
        /// The folder.
        path: PathBuf,
        /// That recording.
        kept: SourceId,
    },
    /// The map cannot be continued with these settings.
    #[error(transparent)]
    Checkpoint(#[from] crate::durability::checkpoint::Error),
}
