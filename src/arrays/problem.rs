//! Why the file of a map cannot be read.

use std::io;

use streaming_gp::StateError;

/// Why the file of a map, or a part of it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file could not be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The file is not a map: what it is.
    #[error("expected a map of magmap, found {0}; name a file that magmap has written")]
    NotAMap(String),
    /// The file is damaged, as the evidence says.
    #[error("it is damaged: {0}; copy it again, or use an earlier one")]
    Damaged(String),
    /// The file has a different version.
    #[error(
        "expected version {expected} of the format, found version {found}; read it with the version of magmap that wrote it, or map \
         again"
    )]
    Version {
        /// The version that is read.
        expected: i32,
        /// The version of the file.
        found: i32,
    },
    /// An array is invalid although its checksum is valid: what was expected and found in which.
    #[error("{0}; it was not written by this version of magmap")]
    Array(String),
    /// The metadata is invalid although its checksum is valid.
    #[error("its metadata is invalid: {0}; it was not written by this version of magmap")]
    Metadata(#[from] serde_json::Error),
    /// The settings of the model are invalid although their checksum is valid: what is wrong with them.
    #[error("its settings are invalid: {0}; it was not written by this version of magmap")]
    Settings(String),
    /// The state is inconsistent although its checksum is valid.
    #[error("its state is inconsistent: {0}; it was not written by this version of magmap")]
    State(#[from] StateError),
}

impl Problem {
    /// An array that is invalid although its checksum is valid.
    pub fn array(array: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::Array(format!("expected {expected} in the array {array}, found {found}"))
    }
}
