//! Why the file of a checkpoint cannot be read.

use std::io;

use streaming_gp::state::StateError;

/// Why the file of a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is not a checkpoint.
    #[error("expected a checkpoint of magmap, found {found}; name a file that magmap saved as one")]
    NotACheckpoint {
        /// What it is, or how it begins.
        found: String,
    },
    /// It is damaged.
    #[error("it is damaged or truncated: {reason}; copy it again, or use an older one")]
    Damaged {
        /// The evidence.
        reason: String,
    },
    /// It has a different version.
    #[error(
        "expected version {expected} of the format, found version {found}; read it with the version of magmap that wrote it, or map \
         again"
    )]
    Version {
        /// The version that is read.
        expected: i64,
        /// Its version.
        found: i64,
    },
    /// An array is invalid although the checksum is valid.
    #[error("expected {expected} in the array {array}, found {found}; it was not written by this version of magmap")]
    Array {
        /// Name of the array.
        array: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The metadata is invalid although the checksum is valid.
    #[error("its metadata is invalid: {0}; it was not written by this version of magmap")]
    Metadata(#[from] serde_json::Error),
    /// The settings of the model are invalid although the checksum is valid.
    #[error("its settings are invalid: {message}; it was not written by this version of magmap")]
    Settings {
        /// What is wrong with them.
        message: String,
    },
    /// The state is inconsistent although the checksum is valid.
    #[error("its state is inconsistent: {0}; it was not written by this version of magmap")]
    State(#[from] StateError),
}
