//! Errors of maps on disk. Failures of a map that is being written are not errors but in a [`MapLogStatus`](super::status::MapLogStatus).

use std::io;
use std::path::PathBuf;

use crate::arrays::Problem;
use crate::config;
use crate::files::FileError;

/// Errors of maps on disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read, written, created or renamed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A map could not be read.
    #[error("cannot read the map {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: Problem,
    },
    /// Settings cannot be serialized, or those of a map are of another version of magmap.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// Another process has the map.
    #[error(
        "the map {} is being written by another process{}; stop it first, or choose another name: node.map_name, in the launch files \
         map_name:=NAME",
        path.display(), process.map_or(String::new(), |process| format!(" ({process})"))
    )]
    InUse {
        /// The file of the map.
        path: PathBuf,
        /// The number of the other process, if it is known.
        process: Option<u32>,
    },
    /// The operating system could not start the thread that writes the map.
    #[error("the thread that writes the map could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// A map cannot be continued, for this reason.
    #[error("{0}")]
    Refused(String),
}
