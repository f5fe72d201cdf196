//! The axes of the field per cell of a grid.

use streaming_gp::Axes;

use crate::field::grid::StrengthGrid;
use crate::field::map::FieldMap;

/// Mean and covariance of the field's axes at the centres of a grid's cells, in the map's frame and microtesla.
#[derive(Clone, Debug, PartialEq)]
pub struct AxesGrid {
    /// Row by row from the lower left cell; none where the map is unknown.
    pub cells: Vec<Option<Axes>>,
}

/// Row and column of the entries of a covariance: xx, xy, xz, yy, yz, zz.
const ENTRIES: [[usize; 2]; 6] = [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]];

impl AxesGrid {
    /// The axes at the known cells of a map's grid; none where the map is one of strengths.
    pub fn of(map: &FieldMap, grid: &StrengthGrid) -> Option<Self> {
        let geometry = &grid.geometry;
        let mut cells = vec![None; geometry.len()];
        for block in geometry.cells().blocks() {
            let known =
                |[column, row]: [i64; 2]| geometry.index(column, row).filter(|&cell| grid.mean[cell].is_finite());
            // All cells of the block or none, as in the raster of the strength: so that both agree.
            let is_known = block.iter().any(|cell| known(cell).is_some());
            let places: Vec<[f64; 2]> =
                block.iter().filter(|_| is_known).map(|cell| geometry.centre_of(cell)).collect();
            for (cell, axes) in block.iter().zip(map.axes_within(geometry.area(&block), &places)?) {
                known(cell).into_iter().for_each(|cell| cells[cell] = Some(axes));
            }
        }
        Some(Self { cells })
    }

    /// The means: of x in every cell, then of y, then of z; NaN where unknown.
    pub fn means(&self) -> impl Iterator<Item = f64> + '_ {
        (0..3).flat_map(|axis| self.values(move |axes| axes.mean[axis]))
    }

    /// The covariances: xx in every cell, then xy, xz, yy, yz and zz; NaN where unknown.
    pub fn covariances(&self) -> impl Iterator<Item = f64> + '_ {
        ENTRIES.into_iter().flat_map(|[row, column]| self.values(move |axes| axes.covariance[row][column]))
    }

    fn values(&self, value: impl Fn(&Axes) -> f64) -> impl Iterator<Item = f64> {
        self.cells.iter().map(move |cell| cell.as_ref().map_or(f64::NAN, &value))
    }
}
