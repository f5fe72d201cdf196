//! Why the file of a checkpoint cannot be read.

use std::io;

use streaming_gp::StateError;

/// Why the file of a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The file is not a checkpoint; says what it is, or how it begins.
    #[error("expected a checkpoint of magmap, found {0}; name a file that magmap saved as one")]
    NotACheckpoint(String),
    /// The file is damaged; says what shows it.
    #[error("it is damaged or truncated: {0}; copy it again, or use an older one")]
    Damaged(String),
    /// The file has another version of the format.
    #[error(
        "expected version {expected} of the format, found version {found}; read it with the version of magmap that wrote it, or map \
         again"
    )]
    Version {
        /// The version that is read.
        expected: i64,
        /// The version of the file.
        found: i64,
    },
    /// An array is invalid although the checksum is valid: what was expected and found in which.
    #[error("{0}; it was not written by this version of magmap")]
    Array(String),
    /// The metadata is invalid although the checksum is valid.
    #[error("its metadata is invalid: {0}; it was not written by this version of magmap")]
    Metadata(#[from] serde_json::Error),
    /// The settings of the model are invalid although the checksum is valid: what is wrong with them.
    #[error("its settings are invalid: {0}; it was not written by this version of magmap")]
    Settings(String),
    /// The state is inconsistent although the checksum is valid.
    #[error("its state is inconsistent: {0}; it was not written by this version of magmap")]
    State(#[from] StateError),
}

impl Problem {
    /// An array that is invalid although the checksum is valid.
    pub fn array(array: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::Array(format!("expected {expected} in the array {array}, found {found}"))
    }
}
