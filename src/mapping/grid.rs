//! The growing raster: a mean and a standard deviation per cell, on cells that are aligned for ever.

/// Which cells a raster has. Cell (column, row) covers `[column, column + 1) x [row, row + 1)` times the resolution, so that
/// two rasters of the same resolution always agree on where cells lie.
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
    /// The lower left corner of the lower left cell, in metres.
    pub fn origin(&self) -> [f64; 2] {
        [self.first_column as f64 * self.resolution, self.first_row as f64 * self.resolution]
    }

    /// The centre of the cell at `column` and `row`, counted from the lower left cell, in metres.
    pub fn centre(&self, column: usize, row: usize) -> [f64; 2] {
        let centre = |first: i64, index: usize| (first as f64 + index as f64 + 0.5) * self.resolution;
        [centre(self.first_column, column), centre(self.first_row, row)]
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

/// A raster of the map: row-major from the lower left cell, not-a-number where the map knows nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldGrid {
    /// Which cells.
    pub geometry: GridGeometry,
    /// Mean field strength per cell, in microtesla.
    pub mean: Vec<f64>,
    /// Standard deviation of the field strength per cell (noise not included), in microtesla.
    pub standard_deviation: Vec<f64>,
}
