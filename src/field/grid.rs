//! A raster: mean and standard deviation per cell, on a grid whose cells are aligned with the origin.

use super::Error;

/// Beyond this index a double no longer resolves half a cell.
const MAX_INDEX: f64 = (1_u64 << 51) as f64;

/// The cells of a raster. Cell (column, row) covers `[column, column + 1) x [row, row + 1)` times the resolution, so that rasters of the
/// same resolution always have aligned cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridGeometry {
    /// Side of a cell, in metres.
    pub resolution: f64,
    /// Index of the leftmost column (lowest x).
    pub first_column: i64,
    /// Index of the lowest row (lowest y).
    pub first_row: i64,
    /// Number of columns.
    pub columns: usize,
    /// Number of rows.
    pub rows: usize,
}

impl GridGeometry {
    /// The smallest geometry whose cells cover all `points` (x and y in metres) and `margin` metres around them.
    ///
    /// # Errors
    /// [`Error::NoPoints`], [`Error::Raster`] for a point that is not finite or too far away, and for too many cells.
    pub fn around(
        points: impl IntoIterator<Item = [f64; 2]>,
        margin: f64,
        resolution: f64,
        max_cells: usize,
    ) -> Result<Self, Error> {
        let mut all: Option<Cells> = None;
        for [x, y] in points {
            let cell = |coordinate: f64| index(coordinate, resolution);
            let corners = cell(x - margin).zip(cell(y - margin)).zip(cell(x + margin).zip(cell(y + margin)));
            let Some(((left, low), (right, high))) = corners else {
                return Err(Error::Raster(format!(
                    "no grid around ({x}, {y}): expected finite coordinates that a grid of {resolution} m can resolve; check the \
                     odometry, or choose a larger raster.resolution"
                )));
            };
            let cells = Cells { first: [left, low], last: [right, high] };
            all = Some(all.map_or(cells, |all| all.hull(&cells)));
        }
        Self::spanning(all.ok_or(Error::NoPoints)?, resolution, max_cells)
    }

    /// The smallest geometry that covers both.
    ///
    /// # Errors
    /// [`Error::Raster`] for different resolutions, and for too many cells.
    pub fn union(&self, other: &Self, max_cells: usize) -> Result<Self, Error> {
        if self.resolution != other.resolution {
            let (left, right) = (self.resolution, other.resolution);
            let reason =
                format!("grids with cells of {left} m and {right} m cannot be merged: expected equal resolutions");
            return Err(Error::Raster(reason));
        }
        Self::spanning(self.cells().hull(&other.cells()), self.resolution, max_cells)
    }

    fn spanning(cells: Cells, resolution: f64, max_cells: usize) -> Result<Self, Error> {
        let [columns, rows] = [0, 1].map(|axis| cells.first[axis].abs_diff(cells.last[axis]) + 1);
        if columns.checked_mul(rows).is_none_or(|cells| cells > max_cells as u64) {
            return Err(Error::Raster(format!(
                "a grid of {columns} x {rows} cells of {resolution} m is larger than the {max_cells} cells allowed; raise \
                 raster.max_cells or choose a larger raster.resolution"
            )));
        }
        let [first_column, first_row] = cells.first;
        Ok(Self { resolution, first_column, first_row, columns: columns as usize, rows: rows as usize })
    }

    /// The cells.
    pub fn cells(&self) -> Cells {
        let first = [self.first_column, self.first_row];
        Cells { first, last: [self.first_column + self.columns as i64 - 1, self.first_row + self.rows as i64 - 1] }
    }

    /// Index of a cell, given by its absolute column and row, in row-major arrays; `None` outside.
    pub fn index(&self, column: i64, row: i64) -> Option<usize> {
        let is_inside = self.cells().contains(&Cells { first: [column, row], last: [column, row] });
        is_inside.then(|| (row - self.first_row) as usize * self.columns + (column - self.first_column) as usize)
    }

    /// The lower left corner of the lower left cell, in metres.
    pub fn origin(&self) -> [f64; 2] {
        [self.first_column as f64 * self.resolution, self.first_row as f64 * self.resolution]
    }

    /// The centre of the cell at `column` and `row`, counted from the lower left cell, in metres.
    pub fn centre(&self, column: usize, row: usize) -> [f64; 2] {
        let centre = |first: i64, index: usize| (first as f64 + index as f64 + 0.5) * self.resolution;
        [centre(self.first_column, column), centre(self.first_row, row)]
    }

    /// Centres of the lower left and the upper right one of some cells, in metres.
    pub(crate) fn area(&self, cells: &Cells) -> [[f64; 2]; 2] {
        [cells.first, cells.last].map(|cell| self.centre_of(cell))
    }

    /// The centre of a cell, given by its absolute column and row, in metres.
    pub(crate) fn centre_of(&self, cell: [i64; 2]) -> [f64; 2] {
        cell.map(|index| (index as f64 + 0.5) * self.resolution)
    }

    /// Whether a cell, by its index in row-major arrays, is in every `stride`th column and row. Which these are does
    /// not depend on the extent.
    pub fn is_in_every(&self, stride: i64, cell: usize) -> bool {
        let is_chosen = |first: i64, index: usize| (first + index as i64).rem_euclid(stride) == stride / 2;
        is_chosen(self.first_column, cell % self.columns) && is_chosen(self.first_row, cell / self.columns)
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.columns * self.rows
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Number of cells along each side of a block, which is predicted at once.
pub(super) const BLOCK: i64 = 32;

/// A rectangle of cells, by the absolute column and row of its lower left and upper right cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The lower left cell.
    pub first: [i64; 2],
    /// The upper right cell.
    pub last: [i64; 2],
}

impl Cells {
    /// The smallest rectangle around both.
    pub fn hull(&self, other: &Self) -> Self {
        self.with(other, i64::min, i64::max)
    }

    /// The blocks that cover these cells: neighbours one after another, so that few local models are needed at a time.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Self> + use<> {
        let [first, last] = [self.first, self.last].map(|cell| cell.map(|index| index.div_euclid(BLOCK)));
        let mut blocks: Vec<[i64; 2]> = Self { first, last }.iter().collect();
        blocks.sort_by_key(|block| (block.map(|index| index.div_euclid(4)), *block));
        blocks.into_iter().map(|block| {
            let first = block.map(|index| index * BLOCK);
            Self { first, last: first.map(|index| index + BLOCK - 1) }
        })
    }

    /// The cells of both; of rectangles that have none, the last cell is before the first.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.with(other, i64::max, i64::min)
    }

    /// The rectangle of the chosen columns and rows of both.
    fn with(&self, other: &Self, first: fn(i64, i64) -> i64, last: fn(i64, i64) -> i64) -> Self {
        let both = |choose: fn(i64, i64) -> i64, [x, y]: [i64; 2], [u, v]: [i64; 2]| [choose(x, u), choose(y, v)];
        Self { first: both(first, self.first, other.first), last: both(last, self.last, other.last) }
    }

    pub(super) fn contains(&self, other: &Self) -> bool {
        (0..2).all(|axis| self.first[axis] <= other.first[axis] && other.last[axis] <= self.last[axis])
    }

    /// Columns and rows, row by row.
    pub fn iter(&self) -> impl Iterator<Item = [i64; 2]> + use<> {
        let [[left, bottom], [right, top]] = [self.first, self.last];
        (bottom..=top).flat_map(move |row| (left..=right).map(move |column| [column, row]))
    }
}

/// A raster of the map: row-major from the lower left cell, NaN where the map is unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct StrengthGrid {
    /// The cells.
    pub geometry: GridGeometry,
    /// Mean of the strength per cell, in microtesla.
    pub mean: Vec<f64>,
    /// Standard deviation per cell (noise not included).
    pub standard_deviation: Vec<f64>,
}

impl StrengthGrid {
    /// A grid whose cells are all unknown.
    pub fn unknown(geometry: GridGeometry) -> Self {
        let nothing = vec![f64::NAN; geometry.len()];
        Self { geometry, mean: nothing.clone(), standard_deviation: nothing }
    }

    /// The grid extended to a geometry that contains its own; new cells are unknown.
    pub(super) fn extended(&self, geometry: GridGeometry) -> Self {
        let mut all = Self::unknown(geometry);
        for (from, [column, row]) in self.geometry.cells().iter().enumerate() {
            if let Some(to) = geometry.index(column, row) {
                (all.mean[to], all.standard_deviation[to]) = (self.mean[from], self.standard_deviation[from]);
            }
        }
        all
    }
}

/// Index of the cell that contains a coordinate; `None` where cells cannot be resolved.
fn index(coordinate: f64, resolution: f64) -> Option<i64> {
    let index = (coordinate / resolution).floor();
    (index.abs() < MAX_INDEX).then_some(index as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_points_and_margin_and_are_aligned() {
        let geometry = GridGeometry::around([[0.25, -0.25], [1.01, 0.0]], 0.1, 0.5, 100).unwrap();
        // From 0.15 to 1.11 and from -0.35 to 0.1: columns 0 to 2, rows -1 to 0.
        let expected = GridGeometry { resolution: 0.5, first_column: 0, first_row: -1, columns: 3, rows: 2 };
        assert_eq!(geometry, expected);
        assert_eq!(geometry.origin(), [0.0, -0.5]);
        let wider = geometry.union(&GridGeometry::around([[-1.0, 0.7]], 0.0, 0.5, 100).unwrap(), 100).unwrap();
        assert_eq!(wider, GridGeometry { resolution: 0.5, first_column: -2, first_row: -1, columns: 5, rows: 3 });
    }

    #[test]
    fn thinned_cells_stay_the_same_when_the_grid_grows() {
        let chosen = |geometry: GridGeometry| -> Vec<[f64; 2]> {
            let cells = (0..geometry.len()).filter(|&cell| geometry.is_in_every(2, cell));
            cells.map(|cell| geometry.centre(cell % geometry.columns, cell / geometry.columns)).collect()
        };
        let small = GridGeometry { resolution: 1.0, first_column: -1, first_row: 0, columns: 3, rows: 2 };
        assert_eq!(chosen(small), [[-0.5, 1.5], [1.5, 1.5]]);
        let larger = GridGeometry { first_column: -2, columns: 4, rows: 4, ..small };
        assert_eq!(chosen(larger), [[-0.5, 1.5], [1.5, 1.5], [-0.5, 3.5], [1.5, 3.5]]);
    }

    #[test]
    fn what_cannot_be_drawn_is_rejected_with_the_numbers() {
        let around = |points: &[[f64; 2]]| GridGeometry::around(points.iter().copied(), 1.0, 0.1, 1000);
        assert!(matches!(around(&[]), Err(Error::NoPoints)));
        for bad in [f64::NAN, f64::INFINITY, -1e300] {
            let error = around(&[[0.0, 0.0], [0.0, bad]]).unwrap_err().to_string();
            assert!(error.contains("expected finite coordinates"), "{bad}: {error}");
        }
        let error = around(&[[0.05, 0.05], [10.05, 0.05]]).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("121 x 21 cells") && said.contains("the 1000 cells allowed"), "{said}");
        assert!(said.contains("raster.max_cells"));
        // So large that the number of cells overflows.
        let error = around(&[[-1e14, -1e14], [1e14, 1e14]]).unwrap_err().to_string();
        assert!(error.contains("raster.max_cells"), "{error}");
        let coarse = GridGeometry::around([[0.0, 0.0]], 0.0, 0.2, 10).unwrap();
        let fine = GridGeometry::around([[0.0, 0.0]], 0.0, 0.1, 10).unwrap();
        assert!(coarse.union(&fine, 10).unwrap_err().to_string().contains("expected equal resolutions"));
    }
}
