//! The growing raster: a mean and a standard deviation per cell, on cells that are aligned for ever.
//!
//! A raster is a pure function of one snapshot and its geometry. Cells are computed in tiles that, like the cells, are aligned
//! for ever: a cell is always computed together with the same neighbours, so that it comes out the same to the last bit whether
//! the raster was computed at once or has grown.

use super::Error;
use super::quantity::Quantity;
use crate::config;

/// Cells along each side of the tile that is predicted at once.
const TILE: i64 = 16;

/// Indices beyond this are not told apart by a double any more, half cells included.
const MAX_INDEX: f64 = (1_u64 << 51) as f64;

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
    /// The smallest geometry whose cells cover all `points` (x and y in metres) and `margin` metres around them.
    ///
    /// # Errors
    /// [`Error::NoPoints`], [`Error::PointOutOfRange`] for a point that is not finite or too far away, [`Error::GridTooLarge`].
    pub fn around(
        points: impl IntoIterator<Item = [f64; 2]>,
        margin: f64,
        resolution: f64,
        max_cells: usize,
    ) -> Result<Self, Error> {
        let mut range: Option<[[i64; 2]; 2]> = None;
        for [x, y] in points {
            let cell = |coordinate: f64| index(coordinate, resolution);
            let corners = cell(x - margin).zip(cell(y - margin)).zip(cell(x + margin).zip(cell(y + margin)));
            let Some(((left, low), (right, high))) = corners else {
                return Err(Error::PointOutOfRange { x, y, resolution });
            };
            let [[first_column, last_column], [first_row, last_row]] = range.unwrap_or([[left, right], [low, high]]);
            range = Some([[first_column.min(left), last_column.max(right)], [first_row.min(low), last_row.max(high)]]);
        }
        let [columns, rows] = range.ok_or(Error::NoPoints)?;
        Self::spanning(columns, rows, resolution, max_cells)
    }

    /// The smallest geometry that covers both.
    ///
    /// # Errors
    /// [`Error::ResolutionsDiffer`], [`Error::GridTooLarge`].
    pub fn union(&self, other: &Self, max_cells: usize) -> Result<Self, Error> {
        if self.resolution != other.resolution {
            return Err(Error::ResolutionsDiffer { left: self.resolution, right: other.resolution });
        }
        let columns = [self.first_column.min(other.first_column), self.last_column().max(other.last_column())];
        let rows = [self.first_row.min(other.first_row), self.last_row().max(other.last_row())];
        Self::spanning(columns, rows, self.resolution, max_cells)
    }

    /// The geometry from the first to the last column and row, each inclusive.
    fn spanning(columns: [i64; 2], rows: [i64; 2], resolution: f64, max_cells: usize) -> Result<Self, Error> {
        let count = |[first, last]: [i64; 2]| first.abs_diff(last) + 1;
        let [column_count, row_count] = [count(columns), count(rows)];
        if column_count.checked_mul(row_count).is_none_or(|cells| cells > max_cells as u64) {
            return Err(Error::GridTooLarge { columns: column_count, rows: row_count, resolution, max_cells });
        }
        Ok(Self {
            resolution,
            first_column: columns[0],
            first_row: rows[0],
            columns: column_count as usize,
            rows: row_count as usize,
        })
    }

    fn last_column(&self) -> i64 {
        self.first_column + self.columns as i64 - 1
    }

    fn last_row(&self) -> i64 {
        self.first_row + self.rows as i64 - 1
    }

    /// The place of a cell, given by its absolute column and row, in row-major arrays; `None` outside.
    fn place(&self, column: i64, row: i64) -> Option<usize> {
        let inside = (self.first_column..=self.last_column()).contains(&column)
            && (self.first_row..=self.last_row()).contains(&row);
        inside.then(|| (row - self.first_row) as usize * self.columns + (column - self.first_column) as usize)
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
    /// What the numbers are.
    pub quantity: Quantity,
    /// Mean per cell.
    pub mean: Vec<f64>,
    /// Standard deviation per cell (noise not included).
    pub standard_deviation: Vec<f64>,
}

impl FieldGrid {
    /// A grid of which nothing is known.
    pub fn unknown(geometry: GridGeometry, quantity: Quantity) -> Self {
        let nothing = vec![f64::NAN; geometry.len()];
        Self { geometry, quantity, mean: nothing.clone(), standard_deviation: nothing }
    }
}

/// Index of the cell that a coordinate lies in; `None` where cells cannot be told apart.
fn index(coordinate: f64, resolution: f64) -> Option<i64> {
    let index = (coordinate / resolution).floor();
    (index.abs() < MAX_INDEX).then_some(index as i64)
}

/// Computes rasters that grow with the map and never shrink.
#[derive(Clone, Debug)]
pub struct Rasterizer {
    settings: config::Raster,
    /// The last raster and the snapshot it is of.
    last: Option<(u64, FieldGrid)>,
}

impl Rasterizer {
    /// A rasterizer that has computed nothing yet.
    pub fn new(settings: &config::Raster) -> Self {
        Self { settings: settings.clone(), last: None }
    }

    /// The last raster.
    pub fn grid(&self) -> Option<&FieldGrid> {
        self.last.as_ref().map(|(_, grid)| grid)
    }

    /// The raster of a snapshot, around `points` (inducing points, path; x and y in metres) and wherever there was a raster before.
    ///
    /// `predict` fills mean (microtesla) and variance (microtesla squared, without noise) at the given points. A cell whose variance
    /// exceeds `unknown_above` of `far_variance` (the variance infinitely far away), or is not a number, is unknown. Snapshots
    /// with the same number must be the same, with the same `far_variance`: of them cells are computed only once.
    ///
    /// # Errors
    /// As [`GridGeometry::around`]; the last raster stays as it was then.
    pub fn rasterize(
        &mut self,
        snapshot: u64,
        points: impl IntoIterator<Item = [f64; 2]>,
        far_variance: f64,
        predict: impl FnMut(&[[f64; 2]], &mut [f64], &mut [f64]),
    ) -> Result<&FieldGrid, Error> {
        self.rasterize_as(
            snapshot,
            points,
            far_variance,
            Quantity::Strength,
            |mean, variance| (mean, variance),
            predict,
        )
    }

    /// The same for a `quantity` of which `of_quantity` gives mean and variance in a known cell, from those that `predict` gives. Which
    /// cells are known is decided by what `predict` gives.
    ///
    /// # Errors
    /// As [`rasterize`](Self::rasterize).
    pub fn rasterize_as(
        &mut self,
        snapshot: u64,
        points: impl IntoIterator<Item = [f64; 2]>,
        far_variance: f64,
        quantity: Quantity,
        of_quantity: impl Fn(f64, f64) -> (f64, f64),
        predict: impl FnMut(&[[f64; 2]], &mut [f64], &mut [f64]),
    ) -> Result<&FieldGrid, Error> {
        let geometry = self.grow(points)?;
        let mut grid = FieldGrid::unknown(geometry, quantity);
        let known = self.last.take().filter(|(number, _)| *number == snapshot).map(|(_, grid)| grid);
        let highest = self.settings.unknown_above * far_variance;
        TilePredictor::new(highest, of_quantity, predict).fill(&mut grid, known.as_ref());
        Ok(&self.last.insert((snapshot, grid)).1)
    }

    fn grow(&self, points: impl IntoIterator<Item = [f64; 2]>) -> Result<GridGeometry, Error> {
        let config::Raster { resolution, margin, max_cells, .. } = self.settings;
        let geometry = GridGeometry::around(points, margin, resolution, max_cells)?;
        match self.grid() {
            Some(last) => last.geometry.union(&geometry, max_cells),
            None => Ok(geometry),
        }
    }
}

/// Predicts a tile at a time.
struct TilePredictor<Q, P> {
    highest_variance: f64,
    of_quantity: Q,
    predict: P,
    points: Vec<[f64; 2]>,
    mean: Vec<f64>,
    variance: Vec<f64>,
}

impl<Q: Fn(f64, f64) -> (f64, f64), P: FnMut(&[[f64; 2]], &mut [f64], &mut [f64])> TilePredictor<Q, P> {
    fn new(highest_variance: f64, of_quantity: Q, predict: P) -> Self {
        let cells = (TILE * TILE) as usize;
        Self {
            highest_variance,
            of_quantity,
            predict,
            points: Vec::with_capacity(cells),
            mean: vec![0.0; cells],
            variance: vec![0.0; cells],
        }
    }

    /// Fills `grid`, taking over the cells of `known`.
    fn fill(&mut self, grid: &mut FieldGrid, known: Option<&FieldGrid>) {
        let geometry = grid.geometry;
        for tile_row in geometry.first_row.div_euclid(TILE)..=geometry.last_row().div_euclid(TILE) {
            for tile_column in geometry.first_column.div_euclid(TILE)..=geometry.last_column().div_euclid(TILE) {
                let corner = [tile_column * TILE, tile_row * TILE];
                if !known.is_some_and(|known| take_over(grid, known, corner)) {
                    self.fill_tile(grid, corner);
                }
            }
        }
    }

    fn fill_tile(&mut self, grid: &mut FieldGrid, corner: [i64; 2]) {
        let centre = |index: i64| (index as f64 + 0.5) * grid.geometry.resolution;
        self.points.clear();
        self.points.extend(cells(corner).map(|[column, row]| [centre(column), centre(row)]));
        (self.predict)(&self.points, &mut self.mean, &mut self.variance);
        for (cell, [column, row]) in cells(corner).enumerate() {
            let Some(place) = grid.geometry.place(column, row) else { continue };
            let (mean, variance) = (self.mean[cell], self.variance[cell]);
            if variance <= self.highest_variance && mean.is_finite() {
                let (mean, variance) = (self.of_quantity)(mean, variance.max(0.0));
                grid.mean[place] = mean;
                grid.standard_deviation[place] = variance.sqrt();
            }
        }
    }
}

/// Copies the cells of a tile from `known` if it has them all; otherwise says no and copies nothing.
fn take_over(grid: &mut FieldGrid, known: &FieldGrid, corner: [i64; 2]) -> bool {
    let places = || {
        cells(corner)
            .filter_map(|[column, row]| Some((grid.geometry.place(column, row)?, known.geometry.place(column, row))))
    };
    if places().any(|(_, from)| from.is_none()) {
        return false;
    }
    let pairs: Vec<_> = places().filter_map(|(to, from)| Some((to, from?))).collect();
    for (to, from) in pairs {
        grid.mean[to] = known.mean[from];
        grid.standard_deviation[to] = known.standard_deviation[from];
    }
    true
}

/// Columns and rows of a tile's cells, row by row.
fn cells([column, row]: [i64; 2]) -> impl Iterator<Item = [i64; 2]> {
    (row..row + TILE).flat_map(move |row| (column..column + TILE).map(move |column| [column, row]))
}

/// How values become the occupancies of `nav_msgs/OccupancyGrid`: linearly from 0 at `low` to 100 at `high`, clamped to these,
/// rounded to the nearest; -1 is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
}

/// The greatest occupancy.
const FULL: f64 = 100.0;

impl Scale {
    /// The scale with 0 at `low` and 100 at `high`.
    ///
    /// # Errors
    /// [`Error::EmptyScale`] unless both are finite and `low` is the lower.
    pub fn new(low: f64, high: f64) -> Result<Self, Error> {
        if low < high && (high - low).is_finite() {
            Ok(Self { low, high })
        } else {
            Err(Error::EmptyScale { low, high })
        }
    }

    /// The scale over all known values; half a unit to either side when they are all the same, and 0 to 1 when none is known.
    pub fn over(values: &[f64]) -> Self {
        let known = || values.iter().copied().filter(|value| value.is_finite());
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        Self::new(low, high).or_else(|_| Self::new(low - 0.5, low + 0.5)).unwrap_or(Self { low: 0.0, high: 1.0 })
    }

    /// The value that becomes 0.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// The value that becomes 100.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// The difference between the values of neighbouring occupancies.
    pub fn quantum(&self) -> f64 {
        (self.high - self.low) / FULL
    }

    /// The occupancy of a value: 0 to 100, or -1 where it is not a number.
    pub fn occupancy(&self, value: f64) -> i8 {
        if value.is_nan() {
            return -1;
        }
        ((value - self.low) / self.quantum()).round().clamp(0.0, FULL) as i8
    }

    /// The value of an occupancy, within half a quantum of what it was made of unless that was clamped; not a number for
    /// whatever is not between 0 and 100.
    pub fn value(&self, occupancy: i8) -> f64 {
        if (0..=100).contains(&occupancy) { self.low + f64::from(occupancy) * self.quantum() } else { f64::NAN }
    }

    /// The occupancies of all values.
    pub fn occupancies(&self, values: &[f64]) -> Vec<i8> {
        values.iter().map(|&value| self.occupancy(value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings(margin: f64) -> config::Raster {
        config::Raster { resolution: 0.1, margin, unknown_above: 0.75, max_cells: 100_000 }
    }

    /// A field whose values depend, in the last bits, on which points are predicted together, as those of matrix products do.
    fn predict(points: &[[f64; 2]], mean: &mut [f64], variance: &mut [f64]) {
        let shared: f64 = points.iter().map(|[x, y]| x * 1e-3 + y).sum();
        for (index, [x, y]) in points.iter().enumerate() {
            mean[index] = 40.0 + (3.0 * x).sin() + y + shared * 1e-15 + index as f64 * 1e-13;
            variance[index] = (x * x + y * y) * 0.2;
        }
    }

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|value| value.to_bits()).collect()
    }

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
    fn what_cannot_be_drawn_is_refused_with_the_numbers() {
        let around = |points: &[[f64; 2]]| GridGeometry::around(points.iter().copied(), 1.0, 0.1, 1000);
        assert!(matches!(around(&[]), Err(Error::NoPoints)));
        for bad in [f64::NAN, f64::INFINITY, -1e300] {
            assert!(matches!(around(&[[0.0, 0.0], [0.0, bad]]), Err(Error::PointOutOfRange { .. })), "{bad}");
        }
        let error = around(&[[0.05, 0.05], [10.05, 0.05]]).unwrap_err();
        assert!(matches!(error, Error::GridTooLarge { columns: 121, rows: 21, max_cells: 1000, .. }), "{error}");
        assert!(error.to_string().contains("raster.max_cells"));
        // So large that the number of cells overflows.
        assert!(matches!(around(&[[-1e14, -1e14], [1e14, 1e14]]), Err(Error::GridTooLarge { .. })));
        let coarse = GridGeometry::around([[0.0, 0.0]], 0.0, 0.2, 10).unwrap();
        let fine = GridGeometry::around([[0.0, 0.0]], 0.0, 0.1, 10).unwrap();
        assert!(matches!(coarse.union(&fine, 10), Err(Error::ResolutionsDiffer { .. })));
    }

    #[test]
    fn a_refused_growth_keeps_the_last_raster() {
        let mut rasterizer = Rasterizer::new(&settings(0.5));
        let before = rasterizer.rasterize(0, [[0.0, 0.0]], 1.0, predict).unwrap().geometry;
        assert!(rasterizer.rasterize(1, [[1e6, 0.0]], 1.0, predict).is_err());
        assert_eq!(rasterizer.grid().unwrap().geometry, before);
    }

    #[test]
    fn cells_hold_the_prediction_at_their_centre_and_nothing_where_nothing_is_known() {
        let mut rasterizer = Rasterizer::new(&settings(3.0));
        let grid = rasterizer.rasterize(0, [[0.0, 0.0]], 1.0, predict).unwrap();
        let mut known = 0;
        for row in 0..grid.geometry.rows {
            for column in 0..grid.geometry.columns {
                let [x, y] = grid.geometry.centre(column, row);
                let place = row * grid.geometry.columns + column;
                let variance = (x * x + y * y) * 0.2;
                if variance <= 0.75 {
                    known += 1;
                    assert!((grid.mean[place] - (40.0 + (3.0 * x).sin() + y)).abs() < 1e-9);
                    assert!((grid.standard_deviation[place] - variance.sqrt()).abs() < 1e-12);
                } else {
                    assert!(grid.mean[place].is_nan() && grid.standard_deviation[place].is_nan());
                }
            }
        }
        // A disc of radius sqrt(0.75 / 0.2) m in cells of a square decimetre.
        let area = std::f64::consts::PI * 0.75 / 0.2 / 0.01;
        assert!((known as f64 - area).abs() < 0.05 * area, "{known} cells of {area}");
    }

    #[test]
    fn cells_of_the_same_snapshot_are_computed_once() {
        let mut rasterizer = Rasterizer::new(&settings(5.0));
        let count = std::cell::Cell::new(0);
        let mut counting = |points: &[[f64; 2]], mean: &mut [f64], variance: &mut [f64]| {
            count.set(count.get() + points.len());
            predict(points, mean, variance);
        };
        rasterizer.rasterize(0, [[0.0, 0.0]], 1.0, &mut counting).unwrap();
        let all = count.replace(0);
        rasterizer.rasterize(0, [[0.0, 0.0]], 1.0, &mut counting).unwrap();
        assert_eq!(count.get(), 0);
        rasterizer.rasterize(0, [[1.0, 0.0]], 1.0, &mut counting).unwrap();
        assert!(count.get() > 0 && count.get() < all / 2, "{} of {all}", count.get());
        count.set(0);
        rasterizer.rasterize(1, [[0.0, 0.0]], 1.0, &mut counting).unwrap();
        assert!(count.get() >= all);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_raster_that_grew_equals_one_computed_at_once_bit_for_bit(
            growth in prop::collection::vec((0..3_u64, -4.0..4.0_f64, -4.0..4.0_f64), 1..8),
            margin in 0.0..1.5_f64,
        ) {
            let mut growing = Rasterizer::new(&settings(margin));
            let mut points = Vec::new();
            for (snapshot, x, y) in growth {
                points.push([x, y]);
                // Snapshots differ in their mean.
                let model = |at: &[[f64; 2]], mean: &mut [f64], variance: &mut [f64]| {
                    predict(at, mean, variance);
                    mean.iter_mut().for_each(|value| *value += snapshot as f64);
                };
                let grown = growing.rasterize(snapshot, [[x, y]], 1.0, model).unwrap();
                let mut fresh = Rasterizer::new(&settings(margin));
                let full = fresh.rasterize(snapshot, points.iter().copied(), 1.0, model).unwrap();
                prop_assert_eq!(grown.geometry, full.geometry);
                prop_assert_eq!(bits(&grown.mean), bits(&full.mean));
                prop_assert_eq!(bits(&grown.standard_deviation), bits(&full.standard_deviation));
            }
        }

        #[test]
        fn occupancy_returns_the_value_to_half_a_quantum(low in -100.0..100.0_f64, extent in 0.01..500.0_f64, share in 0.0..1.0_f64) {
            let scale = Scale::new(low, low + extent).unwrap();
            let value = low + share * extent;
            let occupancy = scale.occupancy(value);
            prop_assert!((0..=100).contains(&occupancy));
            prop_assert!((scale.value(occupancy) - value).abs() <= 0.5 * scale.quantum() * (1.0 + 1e-9));
        }
    }

    #[test]
    fn occupancies_are_clamped_and_unknown_is_minus_one() {
        let scale = Scale::new(20.0, 70.0).unwrap();
        assert_eq!(scale.quantum(), 0.5);
        let values = [20.0, 45.0, 70.0, 19.0, 1e9, f64::NEG_INFINITY, f64::NAN, 45.24, 45.26];
        assert_eq!(scale.occupancies(&values), [0, 50, 100, 0, 100, 0, -1, 50, 51]);
        assert_eq!(scale.value(51), 45.5);
        assert!(scale.value(-1).is_nan() && scale.value(101).is_nan());
    }

    #[test]
    fn scales_without_extent_are_refused_and_never_made() {
        for (low, high) in [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(matches!(Scale::new(low, high), Err(Error::EmptyScale { .. })));
        }
        assert_eq!(Scale::over(&[3.0, f64::NAN, -1.0]), Scale::new(-1.0, 3.0).unwrap());
        assert_eq!(Scale::over(&[50.0, 50.0]), Scale::new(49.5, 50.5).unwrap());
        assert_eq!(Scale::over(&[f64::NAN]), Scale::new(0.0, 1.0).unwrap());
    }
}
