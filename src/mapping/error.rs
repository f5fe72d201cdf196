//! What can go wrong between a source and a raster.

use std::io;
use std::path::PathBuf;

use nalgebra::Isometry3;

use super::checkpoint::Problem;
use crate::config;
use streaming_gp::state::StateError;

/// What can go wrong between a source and a raster. Bad measurements are no errors: they are refused and counted, see
/// [`Refusal`](super::refusal::Refusal).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mapping thread has ended, so that nothing more can be sent to it.
    #[error("the mapping thread has ended and takes nothing more; join it to learn why")]
    Closed,
    /// The model panicked; the map as of its last snapshot is all there is.
    #[error("the mapping thread panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The operating system gave no thread.
    #[error("the mapping thread could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// A mount that is not a place on the robot.
    #[error(
        "a sensor cannot be mounted at {mount:?}: expected finite numbers; check the transform from the sensor's frame to the body's"
    )]
    MountNotFinite {
        /// What it was said to be.
        mount: Isometry3<f64>,
    },
    /// A raster was asked for, but there is nothing to draw it around.
    #[error("no points to draw a grid around: expected at least one")]
    NoPoints,
    /// A raster was asked for around a point that is nowhere, or too far away for cells to be told apart.
    #[error(
        "no grid around ({x}, {y}): expected finite coordinates that a resolution of {resolution} m can tell apart; \
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
    /// Two grids whose cells are not equally large cannot be united.
    #[error("grids with cells of {left} m and {right} m cannot be united: expected equal resolutions")]
    ResolutionsDiffer {
        /// Side of a cell of the one, in metres.
        left: f64,
        /// Side of a cell of the other, in metres.
        right: f64,
    },
    /// A scale without extent cannot turn values into occupancies.
    #[error("a scale from {low} to {high} is empty: expected finite limits, the low one below the high one")]
    EmptyScale {
        /// The value that would become 0.
        low: f64,
        /// The value that would become 100.
        high: f64,
    },
    /// A checkpoint could not be written.
    #[error("cannot write the checkpoint {}: {source}; nothing half-written is in its place", path.display())]
    WriteCheckpoint {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A checkpoint could not be read.
    #[error("cannot read the checkpoint {}: {problem}", path.display())]
    ReadCheckpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The map was made with another model.
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
    /// No model can have this state.
    #[error("the state of the map does not hold together: {0}; take an older checkpoint")]
    State(#[from] StateError),
    /// Settings that cannot be written.
    #[error(transparent)]
    Config(#[from] config::Error),
}
