//! Rasters of a map that grow with it.
//!
//! A raster is a pure function of a map and its geometry. Cells are computed in blocks that are aligned with the origin, as cells
//! are: a cell is always computed together with the same neighbours, so its value is the same to the last bit whether the raster
//! was computed at once or has grown.

use super::Error;
use super::grid::{FieldGrid, GridGeometry};
use super::map::FieldMap;
use super::quantity::Quantity;
use super::tiles::Extent;
use crate::config;

/// Number of cells along each side of a block, which is predicted at once.
const BLOCK: i64 = 16;

/// Computes rasters that grow with the map and never shrink.
#[derive(Clone, Debug)]
pub struct Rasterizer {
    settings: config::Raster,
    /// Geometry of the last raster.
    geometry: Option<GridGeometry>,
    /// The last raster, and the map that it is of.
    last: Option<(FieldMap, FieldGrid)>,
}

impl Rasterizer {
    /// A rasterizer that has computed nothing yet.
    pub fn new(settings: &config::Raster) -> Self {
        Self { settings: settings.clone(), geometry: None, last: None }
    }

    /// Number of cells of the last raster.
    pub fn cells(&self) -> usize {
        self.geometry.map_or(0, |geometry| geometry.len())
    }

    /// The raster of a map, covering its inducing points, the given places (x and y in metres) and the previous raster. Where all local
    /// models that predict a block of cells are those of the previous raster, its cells are taken from there.
    ///
    /// # Errors
    /// As [`GridGeometry::around`]; the next raster grows from the last one that succeeded.
    pub fn rasterize(&mut self, map: &FieldMap, places: &[[f64; 2]]) -> Result<FieldGrid, Error> {
        let points = map.inducing_points().into_iter().chain(places.iter().copied());
        let unknown_above = self.settings.unknown_above;
        let last = self.last.take();
        let predict = |places: &[[f64; 2]], mean: &mut [f64], variance: &mut [f64]| {
            map.predict(places, unknown_above, mean, variance)
        };
        let unchanged = last.as_ref().map(|(last, grid)| (move |area: Extent| map.predicts_as(last, area), grid));
        let grid = self.grow(points, map.quantity(), predict, unchanged)?;
        self.last = Some((map.clone(), grid.clone()));
        Ok(grid)
    }

    fn grow(
        &mut self,
        points: impl IntoIterator<Item = [f64; 2]>,
        quantity: Quantity,
        predict: impl FnMut(&[[f64; 2]], &mut [f64], &mut [f64]),
        unchanged: Option<(impl Fn(Extent) -> bool, &FieldGrid)>,
    ) -> Result<FieldGrid, Error> {
        let config::Raster { resolution, margin, max_cells, .. } = self.settings;
        let around = GridGeometry::around(points, margin, resolution, max_cells)?;
        let geometry = self.geometry.map_or(Ok(around), |last| last.union(&around, max_cells))?;
        self.geometry = Some(geometry);
        Ok(fill(FieldGrid::unknown(geometry, quantity), predict, unchanged))
    }
}

/// Fills a grid with predictions, block by block, or with cells of another grid where it has the whole block and nothing has changed.
fn fill(
    mut grid: FieldGrid,
    mut predict: impl FnMut(&[[f64; 2]], &mut [f64], &mut [f64]),
    unchanged: Option<(impl Fn(Extent) -> bool, &FieldGrid)>,
) -> FieldGrid {
    let geometry = grid.geometry;
    let cells = (BLOCK * BLOCK) as usize;
    let (mut points, mut mean, mut variance) = (Vec::with_capacity(cells), vec![0.0; cells], vec![0.0; cells]);
    let centre = |index: i64| (index as f64 + 0.5) * geometry.resolution;
    let mut corners: Vec<[i64; 2]> = blocks(&geometry).collect();
    // Neighbours one after another, so that few local models are needed at a time.
    corners.sort_by_key(|corner| (corner.map(|first| first.div_euclid(8 * BLOCK)), *corner));
    for corner in corners {
        let area = [corner, corner.map(|first| first + BLOCK - 1)].map(|cell| cell.map(centre));
        if let Some((is_unchanged, last)) = &unchanged
            && is_unchanged(area)
            && copied(&mut grid, last, corner)
        {
            continue;
        }
        points.clear();
        points.extend(cells_of(corner).map(|[column, row]| [centre(column), centre(row)]));
        predict(&points, &mut mean, &mut variance);
        for (cell, [column, row]) in cells_of(corner).enumerate() {
            let Some(index) = geometry.index(column, row) else { continue };
            grid.mean[index] = mean[cell];
            grid.standard_deviation[index] = variance[cell].sqrt();
        }
    }
    grid
}

/// Copies the cells of a block that the grid has, if the other grid has all of them.
fn copied(grid: &mut FieldGrid, from: &FieldGrid, corner: [i64; 2]) -> bool {
    let wanted =
        || cells_of(corner).filter_map(|[column, row]| Some(([column, row], grid.geometry.index(column, row)?)));
    let both: Option<Vec<(usize, usize)>> =
        wanted().map(|([column, row], index)| Some((index, from.geometry.index(column, row)?))).collect();
    let Some(both) = both else { return false };
    for (to, source) in both {
        grid.mean[to] = from.mean[source];
        grid.standard_deviation[to] = from.standard_deviation[source];
    }
    true
}

/// The lower left corners of the blocks that cover a geometry.
fn blocks(geometry: &GridGeometry) -> impl Iterator<Item = [i64; 2]> + use<> {
    let [columns, rows] = [[geometry.first_column, geometry.last_column()], [geometry.first_row, geometry.last_row()]];
    let blocks = |[first, last]: [i64; 2]| first.div_euclid(BLOCK)..=last.div_euclid(BLOCK);
    blocks(rows).flat_map(move |row| blocks(columns).map(move |column| [column * BLOCK, row * BLOCK]))
}

/// Columns and rows of a block's cells, row by row.
fn cells_of([column, row]: [i64; 2]) -> impl Iterator<Item = [i64; 2]> {
    (row..row + BLOCK).flat_map(move |row| (column..column + BLOCK).map(move |column| [column, row]))
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Vector3};
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::field::model::FieldModel;
    use crate::sensing::reading::{MagneticField, Observation, Observed, Stamp};

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

    type Unchanged = fn(Extent) -> bool;

    /// No raster before.
    const ANEW: Option<(Unchanged, &FieldGrid)> = None;

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn of_strength(strength: f64) -> Observed {
        Observed::Field { mean: MagneticField::from_microtesla(Vector3::zeros()), strength }
    }

    fn observed(places: &[[f64; 2]], observed: impl Fn(f64) -> Observed) -> Vec<Observation> {
        let observation = |&[x, y]: &[f64; 2]| Observation {
            stamp: Stamp::default(),
            position: Point3::new(x, y, 0.0),
            observed: observed(x),
            orientation: Matrix3::identity(),
            speed: 0.0,
            readings: 10,
        };
        places.iter().map(observation).collect()
    }

    #[test]
    fn a_rejected_growth_keeps_the_last_geometry() {
        let mut rasterizer = Rasterizer::new(&settings(0.5));
        let before = rasterizer.grow([[0.0, 0.0]], Quantity::Strength, predict, ANEW).unwrap().geometry;
        assert!(rasterizer.grow([[1e6, 0.0]], Quantity::Strength, predict, ANEW).is_err());
        assert_eq!((rasterizer.geometry, rasterizer.cells()), (Some(before), before.len()));
    }

    #[test]
    fn cells_hold_the_prediction_at_their_centre() {
        let grid = Rasterizer::new(&settings(3.0)).grow([[0.0, 0.0]], Quantity::Strength, predict, ANEW).unwrap();
        for row in 0..grid.geometry.rows {
            for column in 0..grid.geometry.columns {
                let [x, y] = grid.geometry.centre(column, row);
                let place = row * grid.geometry.columns + column;
                assert!((grid.mean[place] - (40.0 + (3.0 * x).sin() + y)).abs() < 1e-9);
                assert!((grid.standard_deviation[place] - ((x * x + y * y) * 0.2).sqrt()).abs() < 1e-12);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_raster_that_grew_equals_one_computed_at_once_bit_for_bit(
            growth in prop::collection::vec((-4.0..4.0_f64, -4.0..4.0_f64), 1..8),
            margin in 0.0..1.5_f64,
        ) {
            let mut growing = Rasterizer::new(&settings(margin));
            for last in 0..growth.len() {
                let (x, y) = growth[last];
                let grown = growing.grow([[x, y]], Quantity::Strength, predict, ANEW).unwrap();
                let all = growth[..=last].iter().map(|&(x, y)| [x, y]);
                let full = Rasterizer::new(&settings(margin)).grow(all, Quantity::Strength, predict, ANEW).unwrap();
                prop_assert_eq!(grown.geometry, full.geometry);
                prop_assert_eq!(bits(&grown.mean), bits(&full.mean));
                prop_assert_eq!(bits(&grown.standard_deviation), bits(&full.standard_deviation));
            }
        }
    }

    #[test]
    fn a_map_of_a_signal_is_of_probabilities() {
        let mut config = Config::default();
        config.model.likelihood = config::Likelihood::Bernoulli;
        config.selection.method = "dual_memory".parse().unwrap();
        config.raster.margin = 4.0;
        let mut model = FieldModel::new(&config);
        // Yes up to x = 2 m, no beyond.
        let path: Vec<[f64; 2]> = (0..80).map(|index| [0.05 * f64::from(index), 0.0]).collect();
        model.update(&observed(&path, |x| Observed::Signal(x < 2.0)), &|| false).unwrap();
        let grid = Rasterizer::new(&config.raster).rasterize(&model.map().unwrap(), &path).unwrap();
        assert_eq!(grid.quantity, Quantity::Probability);
        let at = |values: &[f64], x: f64, y: f64| {
            let [left, bottom] = grid.geometry.origin();
            let cell = |from: f64, to: f64| ((to - from) / grid.geometry.resolution) as usize;
            values[cell(bottom, y) * grid.geometry.columns + cell(left, x)]
        };
        let [yes, border, no] = [0.5, 2.0, 3.5].map(|x| (at(&grid.mean, x, 0.0), at(&grid.standard_deviation, x, 0.0)));
        assert!(yes.0 > 0.95 && no.0 < 0.05 && (0.3..0.7).contains(&border.0), "{yes:?} {border:?} {no:?}");
        // It is least certain where the answer changes, and unknown where the robot has never been.
        assert!(border.1 > 2.0 * yes.1.max(no.1) && border.1 < 0.5, "{yes:?} {border:?} {no:?}");
        assert!(at(&grid.mean, 2.0, 3.5).is_nan());
        assert!(grid.mean.iter().all(|value| value.is_nan() || (0.0..=1.0).contains(value)));
    }

    #[test]
    fn the_map_is_known_where_the_robot_was_and_unknown_far_away() {
        let mut config = Config::default();
        config.raster.margin = 4.0;
        let mut model = FieldModel::new(&config);
        let path: Vec<[f64; 2]> = (0..40).map(|index| [0.05 * f64::from(index), 0.0]).collect();
        model.update(&observed(&path, |x| of_strength(50.0 + 8.0 * (2.0 * x).sin())), &|| false).unwrap();
        let grid = Rasterizer::new(&config.raster).rasterize(&model.map().unwrap(), &path).unwrap();
        for row in 0..grid.geometry.rows {
            for column in 0..grid.geometry.columns {
                let [x, y] = grid.geometry.centre(column, row);
                let mean = grid.mean[row * grid.geometry.columns + column];
                if (0.0..2.0).contains(&x) && y.abs() < 0.1 {
                    // Half a cell off the path and the noise's prior: well below the field's 8 microtesla.
                    assert!((mean - 50.0 - 8.0 * (2.0 * x).sin()).abs() < 1.0, "{mean} at ({x}, {y})");
                }
                if y.abs() > 3.0 {
                    assert!(mean.is_nan(), "{mean} at ({x}, {y})");
                }
            }
        }
    }

    #[test]
    fn what_is_taken_from_the_last_raster_is_what_would_be_predicted() {
        let mut config = Config::default();
        (config.tiles.size, config.tiles.halo, config.tiles.band) = (2.0, 0.8, 0.3);
        let mut model = FieldModel::new(&config);
        let mut growing = Rasterizer::new(&settings(0.5));
        let mut predicted = 0;
        for batch in 0..6 {
            let path: Vec<[f64; 2]> = (0..30).map(|index| [f64::from(30 * batch + index) * 0.05, 0.0]).collect();
            model.update(&observed(&path, |x| of_strength(50.0 + 8.0 * (2.0 * x).sin())), &|| false).unwrap();
            let map = model.map().unwrap();
            if let Some((last, _)) = &growing.last {
                let block = |corner: [i64; 2]| [corner, corner.map(|first| first + BLOCK - 1)];
                let area = |corner| block(corner).map(|cell| cell.map(|index| (index as f64 + 0.5) * 0.1));
                predicted += [0, 16, 32, 48].into_iter().filter(|x| !map.predicts_as(last, area([*x, 0]))).count();
            }
            let grown = growing.rasterize(&map, &path).unwrap();
            let whole = GridGeometry { ..grown.geometry };
            let full =
                Rasterizer { geometry: Some(whole), ..Rasterizer::new(&settings(0.5)) }.rasterize(&map, &path).unwrap();
            assert_eq!(
                (bits(&grown.mean), bits(&grown.standard_deviation)),
                (bits(&full.mean), bits(&full.standard_deviation))
            );
        }
        // Of four blocks along the path, up to x = 6.4 m, and five updates that had a raster before.
        assert!((1..20).contains(&predicted), "{predicted} blocks of 20 were predicted again");
    }
}
