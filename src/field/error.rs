//! What can go wrong with a map and its rasters.

use crate::config;
use streaming_gp::StateError;

/// Why a batch was rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// An observation is not of what is mapped.
    #[error("expected observations of {expected}, found one of {found}")]
    OtherQuantity {
        /// What is mapped.
        expected: &'static str,
        /// What was observed.
        found: &'static str,
    },
    /// The process rejected it.
    #[error(transparent)]
    Process(#[from] streaming_gp::streaming::Error),
}

/// What can go wrong with a map and its rasters.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A raster was requested without any point to cover.
    #[error("no points to build a grid around: expected at least one")]
    NoPoints,
    /// A raster was requested around a point that is not finite, or too far away to resolve cells.
    #[error(
        "no grid around ({x}, {y}): expected finite coordinates that a grid of {resolution} m can resolve; \
         check the odometry, or choose a larger raster.resolution"
    )]
    PointOutOfRange {
        /// Its x, in metres.
        x: f64,
        /// Its y, in metres.
        y: f64,
        /// Side of a cell, in metres.
        resolution: f64,
    },
    /// The raster would have more cells than allowed.
    #[error(
        "a grid of {columns} x {rows} cells of {resolution} m is larger than the {max_cells} cells allowed; \
         raise raster.max_cells or choose a larger raster.resolution"
    )]
    GridTooLarge {
        /// Columns it would have.
        columns: u64,
        /// Rows it would have.
        rows: u64,
        /// Side of a cell, in metres.
        resolution: f64,
        /// Cells allowed.
        max_cells: usize,
    },
    /// Grids of different resolution cannot be merged.
    #[error("grids with cells of {left} m and {right} m cannot be merged: expected equal resolutions")]
    ResolutionsDiffer {
        /// Cell size of one grid, in metres.
        left: f64,
        /// Cell size of the other, in metres.
        right: f64,
    },
    /// The map was made with a different model.
    #[error(
        "{key} is {configured}, but the map was made with {made_with}; set {key} = {made_with}, or start a new map"
    )]
    SettingDiffers {
        /// The full key of the setting.
        key: String,
        /// Its value when the map was made.
        made_with: String,
        /// Its value in the configuration.
        configured: String,
    },
    /// The state is inconsistent.
    #[error("the state of the map is inconsistent: {0}; use an older checkpoint")]
    State(#[from] StateError),
    /// The settings cannot be serialized.
    #[error(transparent)]
    Config(#[from] config::Error),
}
