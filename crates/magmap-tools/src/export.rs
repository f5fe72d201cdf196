//! The output files of a map: pictures, arrays, tables, grids for nav2 and for geographic information systems, a report.
//!
//! Every file is written under a temporary name and then renamed, so that nobody ever reads half a file.

pub(crate) mod canvas;
mod cell_colours;
pub mod costmap_filter;
pub mod csv;
pub mod curves;
pub mod file;
pub mod geotiff;
pub mod json;
pub mod map_picture;
pub mod map_server;
pub mod npz;
mod path_picture;
mod vector_picture;

use std::path::PathBuf;

pub use map_picture::MapPicture;
pub use npz::MapArrays;
pub use path_picture::NamedPath;

use magmap::display::AxesGrid;
use magmap::field::grid::StrengthGrid;
use magmap::files::FileError;

/// Why an output cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be written, or a picture not be drawn.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file has the path of the output folder.
    #[error("expected a folder for the output at {}, found a file; choose another name or move the file away", .0.display())]
    NotAFolder(PathBuf),
    /// The arrays do not fit the grid they come with.
    #[error("expected {0}")]
    Shape(String),
    /// The map has no cell, which the format cannot represent.
    #[error("expected a map of at least one cell for {}, found none; has any reading passed the gates?", .0.display())]
    NoCells(PathBuf),
}

/// Checks that the arrays of a grid fit its geometry.
fn check_shape(grid: &StrengthGrid) -> Result<(), Error> {
    check_length(grid, "the mean", grid.mean.len())?;
    check_length(grid, "the standard deviation", grid.standard_deviation.len())
}

/// Checks that the axes fit the geometry of a grid.
fn check_axes(grid: &StrengthGrid, axes: &AxesGrid) -> Result<(), Error> {
    check_length(grid, "the axes", axes.cells.len())
}

/// Checks that an array has a value for each cell of a grid.
fn check_length(grid: &StrengthGrid, what: &'static str, found: usize) -> Result<(), Error> {
    let (columns, rows, expected) = (grid.geometry.columns, grid.geometry.rows, grid.geometry.len());
    let wrong = || format!("{expected} values of {what} for a grid of {columns} by {rows} cells, found {found}");
    if found == expected { Ok(()) } else { Err(Error::Shape(wrong())) }
}

/// A grid of strengths for tests; its lower left corner is (-1, 2), and its cells have half a metre.
#[cfg(test)]
fn strength_grid([columns, rows]: [usize; 2], mean: Vec<f64>, standard_deviation: Vec<f64>) -> StrengthGrid {
    use magmap::field::grid::GridGeometry;
    let geometry = GridGeometry { resolution: 0.5, first_column: -2, first_row: 4, columns, rows };
    StrengthGrid { geometry, mean, standard_deviation }
}
