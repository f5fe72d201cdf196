//! Experiments with known answers: those of the papers on the Aalto drives, on synthetic streams and on tables, and worlds whose field
//! is known everywhere; with any of the [`methods`], side by side in a [`comparison`]. The [`banana`] is a yes/no question.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod banana;
pub mod comparison;
pub mod drives;
pub mod growth;
pub mod hall;
pub mod localization;
pub mod maps;
pub mod methods;
pub mod metrics;
pub mod outliers;
mod paper_settings;
pub mod portfolio;
pub mod published;
pub mod random_field;
pub mod scenarios;
pub mod slam;
pub mod survey;
pub mod table;
pub mod worlds;

/// Offset that is added to a seed for test data.
const TEST_SEEDS: u64 = 1_000_000;
