//! What can go wrong with a journal at its beginning. Later trouble is no error but a [`Status`](super::Status).

use std::io;
use std::path::PathBuf;

use super::super::mapper::SourceId;

/// Why there is no journal, or none to go on from.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be made or read.
    #[error("cannot keep a journal in {}: {source}; choose another folder, or set journal.enabled = false", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Somebody else writes there.
    #[error("the journal in {} is being written by another process; end that first, or name another map", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The operating system gave no thread.
    #[error("the journal's thread could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// A file cannot be moved out of the way.
    #[error("cannot set {} aside: {source}; move it away by hand", path.display())]
    SetAside {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The map is of another recording.
    #[error("the map in {} is of {}, whose replay was interrupted; resume that one first, or name another folder", path.display(), kept.name)]
    OtherSource {
        /// The folder.
        path: PathBuf,
        /// The recording it is of.
        kept: SourceId,
    },
    /// The map cannot be gone on with under these settings.
    #[error(transparent)]
    Mapping(#[from] super::super::Error),
}
