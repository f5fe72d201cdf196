//! Experiments with known answers: the papers' on the Aalto drives, on synthetic streams and on tables, and worlds whose field is
//! known everywhere; with any of the [`methods`], side by side in a [`contest`]. The [`banana`] is a yes/no question.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod banana;
pub mod contest;
pub mod drives;
pub mod growth;
pub mod maps;
pub mod methods;
pub mod metrics;
pub mod outliers;
mod paper_settings;
pub mod portfolio;
pub mod published;
pub mod random_field;
pub mod scenarios;
pub mod table;
pub mod worlds;

use std::path::PathBuf;

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A drive could not be read.
    #[error("drive {number}: {source}")]
    Drive {
        /// Which drive.
        number: u32,
        /// What is wrong with it.
        source: magmap::recording::Error,
    },
    /// A drive is too short for the experiment.
    #[error("drive {number}: expected at least {expected} rows, found {found}")]
    TooShort {
        /// Which drive.
        number: u32,
        /// Rows needed.
        expected: usize,
        /// Rows there.
        found: usize,
    },
    /// A batch was refused.
    #[error("batch {batch}: {source}")]
    Update {
        /// Which batch, counted from one.
        batch: usize,
        /// Why.
        source: streaming_gp::streaming::Error,
    },
    /// A table could not be read.
    #[error("cannot read {path}: {source}")]
    ReadTable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A table is not as it should be at one place.
    #[error("{path}, line {line}, column {column}: expected {expected}, found {found}")]
    Cell {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: u64,
        /// Counted from one.
        column: usize,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A table is not as it should be as a whole.
    #[error("{path}: expected {expected}, found {found}")]
    Table {
        /// The file.
        path: PathBuf,
        /// What it should have.
        expected: String,
        /// What it has.
        found: String,
    },
    /// A finished run is none of this experiment.
    #[error(
        "{path}: expected a finished run of this experiment, found {found}: choose another folder, or remove the file"
    )]
    Stored {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// A finished run could not be kept.
    #[error(transparent)]
    Write(#[from] magmap::export::Error),
    /// Settings could not be written down.
    #[error(transparent)]
    Settings(#[from] magmap::config::Error),
    /// A world could not be made.
    #[error(transparent)]
    Simulation(#[from] magmap::simulation::Error),
}
