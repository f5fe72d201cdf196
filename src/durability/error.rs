//! What can go wrong with maps on disk. Failures of a journal that is being written are not errors but in a
//! [`JournalStatus`](super::journal::JournalStatus).

use std::io;
use std::path::PathBuf;

use crate::arrays::Problem;
use crate::config;
use crate::files::FileError;

/// What can go wrong with maps on disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read, written, created or renamed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A checkpoint could not be read.
    #[error("cannot read the checkpoint {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// Settings cannot be serialized, or those of a map are of another version of magmap.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// Another process writes the journal in this folder.
    #[error("the journal in {} is being written by another process; stop it first, or choose another map name", .0.display())]
    InUse(PathBuf),
    /// The operating system could not start the journal's thread.
    #[error("the journal's thread could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// A map cannot be continued, for this reason.
    #[error("{0}")]
    Refused(String),
}
