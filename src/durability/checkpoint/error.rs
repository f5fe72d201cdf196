//! What can go wrong with a checkpoint.

use std::path::PathBuf;

use crate::arrays::Problem;
use crate::files::FileError;
use crate::{config, field};

/// What can go wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A checkpoint could not be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// A checkpoint could not be read.
    #[error("cannot read the checkpoint {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The map cannot be continued with these settings.
    #[error(transparent)]
    Field(#[from] field::Error),
    /// The settings cannot be serialized.
    #[error(transparent)]
    Config(#[from] config::Error),
}
