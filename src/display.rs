//! A map as viewers show it: occupancies and their scales, colours, arrows, and the grids of the three axes.

pub mod arrows;
pub mod axes_grid;
pub mod colour;
pub mod occupancy;
pub mod scale;
pub mod steel;

pub use axes_grid::AxesGrid;

#[cfg(test)]
use crate::field::grid::{GridGeometry, StrengthGrid};

/// A grid of strengths for tests, with cells of half a metre.
#[cfg(test)]
fn strength_grid([columns, rows]: [usize; 2], mean: Vec<f64>, standard_deviation: Vec<f64>) -> StrengthGrid {
    let geometry = GridGeometry { resolution: 0.5, first_column: -2, first_row: 4, columns, rows };
    StrengthGrid { geometry, mean, standard_deviation }
}
