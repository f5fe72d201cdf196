//! Errors of a recording as a whole. Damage within it is not an error, but reported as [`Loss`](super::Loss).

use std::path::PathBuf;

use magmap::files::FileError;

/// Why a recording cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The path is not that of a recording.
    #[error(
        "{path} is not a recording: {found}. Expected a drive of the Aalto data (FOLDER/invensense/3), a survey \
         (.csv), an .mcap or .db3 file, or a rosbag2 folder"
    )]
    NotARecording {
        /// The path.
        path: PathBuf,
        /// A description of the content at the path.
        found: String,
    },
    /// A recording, or one of its files, cannot be used.
    #[error("{path}: {reason}")]
    Unusable {
        /// The recording or the file.
        path: PathBuf,
        /// The expected and the actual content.
        reason: String,
    },
    /// A message that cannot be encoded or stamped.
    #[error("cannot write a message to {topic}: {reason}")]
    Write {
        /// The topic.
        topic: String,
        /// The cause.
        reason: String,
    },
    /// The folder to write is not empty.
    #[error("{0} exists and is not empty; name a new folder or remove it")]
    Exists(PathBuf),
}

impl Error {
    /// Wraps an error of the operating system: `File::open(path).map_err(Error::io("read", path))`.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        move |source| FileError::of(action, path, "")(source).into()
    }

    /// A recording that cannot be used, and why.
    pub(super) fn unusable(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Unusable { path: path.into(), reason: reason.to_string() }
    }
}
