//! Experiments with known answers: the papers' two on the Aalto drives, and worlds whose field is known everywhere; with any of the
//! [`methods`], side by side in a [`contest`]. The [`banana`] is a yes/no question.

pub mod banana;
pub mod contest;
pub mod drives;
pub mod methods;
pub mod metrics;
pub mod outliers;
pub mod worlds;

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
        source: crate::recording::Error,
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
        source: crate::gp::streaming::Error,
    },
    /// A world could not be made.
    #[error(transparent)]
    Simulation(#[from] crate::simulation::Error),
}
