//! What a finished map is written as: pictures, arrays, grids for nav2's `map_server`, a report.
//!
//! Every file is written beside its place and then renamed into it, so that nobody ever reads half a file.

mod canvas;
pub mod colour;
pub mod file;
pub mod growth_picture;
pub mod map_picture;
pub mod map_server;
pub mod map_strip;
pub mod npz;
pub mod occupancy;
pub mod panels;
pub mod report;

use std::path::PathBuf;

pub use growth_picture::{GrowthPicture, GrowthPoint};
pub use map_picture::MapPicture;
pub use npz::MapArrays;

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The output folder could not be made.
    #[error("cannot make the output folder {}: {source}; choose another one or its permissions", path.display())]
    CreateFolder {
        /// The folder.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// There is a file where the output folder should be.
    #[error("expected a folder for the output at {}, found a file; choose another name or move the file away", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}; nothing half-written is in its place", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system, or the format's library, says.
        source: std::io::Error,
    },
    /// A picture could not be drawn.
    #[error("cannot draw {}: {reason}", path.display())]
    Draw {
        /// The picture.
        path: PathBuf,
        /// What the drawing library says.
        reason: String,
    },
    /// The arrays do not fit the grid they come with.
    #[error("expected {expected} values of {what} for a grid of {columns} by {rows} cells, found {found}")]
    Shape {
        /// Which array.
        what: &'static str,
        /// Values there should be.
        expected: usize,
        /// Values there are.
        found: usize,
        /// Columns of the grid.
        columns: usize,
        /// Rows of the grid.
        rows: usize,
    },
    /// There is no cell to write, and the format has no way to say so.
    #[error("expected a map of at least one cell for {}, found none; has any reading passed the gates?", path.display())]
    NoCells {
        /// The file that was to be written.
        path: PathBuf,
    },
}

/// Refuses a grid whose arrays are not as long as its geometry says.
fn check_shape(grid: &crate::mapping::grid::FieldGrid) -> Result<(), Error> {
    let geometry = &grid.geometry;
    for (what, values) in [("the mean", &grid.mean), ("the standard deviation", &grid.standard_deviation)] {
        if values.len() != geometry.len() {
            let (columns, rows) = (geometry.columns, geometry.rows);
            return Err(Error::Shape { what, expected: geometry.len(), found: values.len(), columns, rows });
        }
    }
    Ok(())
}
