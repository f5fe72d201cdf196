//! Errors of maps and their rasters.

use crate::config;
use streaming_gp::StateError;

/// Errors of a map and its rasters.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A raster was requested without any point to cover.
    #[error("no points to build a grid around: expected at least one")]
    NoPoints,
    /// No such raster is possible: around a point that is not finite or too far away to resolve cells, with more cells than
    /// allowed, or of grids with different resolutions.
    #[error("{0}")]
    Raster(String),
    /// The state is inconsistent.
    #[error("the state of the map is inconsistent: {0}; use an older checkpoint")]
    State(#[from] StateError),
    /// The map was made with other settings.
    #[error(transparent)]
    Config(#[from] config::Error),
}
