//! What can be wrong with the file of a checkpoint.

use std::io;

use super::{FORMAT_VERSION, OLDEST_VERSION};
use streaming_gp::state::StateError;

/// What is wrong with the file of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is something else.
    #[error("expected a checkpoint of magmap, found {found}; name a file that magmap saved as one")]
    NotACheckpoint {
        /// What it is, or how it begins.
        found: String,
    },
    /// It is not as it was written.
    #[error("it is damaged or cut short: {reason}; copy it again, or take an older one")]
    Damaged {
        /// How one can tell.
        reason: String,
    },
    /// It is of another version.
    #[error(
        "expected a version from {OLDEST_VERSION} to {FORMAT_VERSION} of the format, found version {found}; read it with the version of magmap that \
         wrote it, or map anew"
    )]
    Version {
        /// Its version.
        found: i64,
    },
    /// The checksum is right, but an array is not as it should be.
    #[error("expected {expected} in the array {array}, found {found}; it was not written by this version of magmap")]
    Array {
        /// Which array.
        array: &'static str,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// The checksum is right, but the metadata is not as it should be.
    #[error("its metadata does not say what it should: {0}; it was not written by this version of magmap")]
    Metadata(#[from] serde_json::Error),
    /// The checksum is right, but the settings of the model in it are impossible.
    #[error("its settings are not those of a map: {message}; it was not written by this version of magmap")]
    Settings {
        /// What is wrong with them.
        message: String,
    },
    /// The checksum is right, but no model can have this state.
    #[error("its state does not hold together: {0}; it was not written by this version of magmap")]
    State(#[from] StateError),
}
