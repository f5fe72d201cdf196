//! Rasters of a map that grow with it.
//!
//! A raster is a pure function of a map and its geometry. Cells are computed in blocks that are aligned with the origin, as cells
//! are: a cell is always computed together with the same neighbours, so its value is the same to the last bit whether the raster
//! was computed at once or has grown.

use super::Error;
use super::grid::{Cells, GridGeometry, StrengthGrid};
use super::map::FieldMap;
use super::tiles::Extent;
use crate::config;

/// The raster of a map, covering its inducing points and the given places (x and y in metres).
///
/// # Errors
/// The errors of [`GridGeometry::around`].
pub fn rasterize(settings: &config::Raster, map: &FieldMap, places: &[[f64; 2]]) -> Result<StrengthGrid, Error> {
    Rasterizer::new(settings).rasterize(map, places).cloned()
}

/// Keeps a raster that grows with the map and never shrinks. What has not changed is neither computed again nor copied.
#[derive(Clone, Debug)]
pub struct Rasterizer {
    settings: config::Raster,
    grid: Option<StrengthGrid>,
    /// The map that the raster is of.
    map: Option<FieldMap>,
    changed: Option<Cells>,
}

impl Rasterizer {
    /// A rasterizer that has computed nothing yet.
    pub fn new(settings: &config::Raster) -> Self {
        Self { settings: settings.clone(), grid: None, map: None, changed: None }
    }

    /// The last raster.
    pub fn grid(&self) -> Option<&StrengthGrid> {
        self.grid.as_ref()
    }

    /// The rectangle around all cells that are not those of the raster before; none where all are.
    pub fn changed(&self) -> Option<Cells> {
        self.changed
    }

    /// Forgets the map: every cell of the raster is unknown.
    pub fn clear(&mut self) {
        self.map = None;
        if let Some(grid) = &mut self.grid {
            *grid = StrengthGrid::unknown(grid.geometry);
            self.changed = Some(grid.geometry.cells());
        }
    }

    /// The raster of a map, covering its inducing points, the given places (x and y in metres) and the previous raster. Where all local
    /// models that predict a block of cells are those of the previous raster, its cells stay.
    ///
    /// # Errors
    /// The errors of [`GridGeometry::around`]; the raster is then still the last one.
    pub fn rasterize(&mut self, map: &FieldMap, places: &[[f64; 2]]) -> Result<&StrengthGrid, Error> {
        self.rasterize_watched(map, places, |_| {})
    }

    /// [`rasterize`](Self::rasterize) with `progress`, which is called with the share of the work that is done, up to 1.
    ///
    /// # Errors
    /// The errors of [`rasterize`](Self::rasterize).
    pub fn rasterize_watched(
        &mut self,
        map: &FieldMap,
        places: &[[f64; 2]],
        progress: impl FnMut(f64),
    ) -> Result<&StrengthGrid, Error> {
        let points = map.inducing_points().into_iter().chain(places.iter().copied());
        let unknown_above = self.settings.unknown_above;
        let predict = |area: Extent, places: &[[f64; 2]]| map.predict_within(area, places, unknown_above);
        let last = self.map.clone();
        let is_unchanged = |area| last.as_ref().is_some_and(|last| map.predicts_as(last, area));
        self.grow(points, predict, is_unchanged, progress)?;
        self.map = Some(map.clone());
        self.grid.as_ref().ok_or(Error::NoPoints)
    }

    /// Grows the raster around these points, and predicts those blocks that are new or have changed.
    fn grow(
        &mut self,
        points: impl IntoIterator<Item = [f64; 2]>,
        predict: impl Fn(Extent, &[[f64; 2]]) -> (Vec<f64>, Vec<f64>),
        is_unchanged: impl Fn(Extent) -> bool,
        progress: impl FnMut(f64),
    ) -> Result<(), Error> {
        let config::Raster { resolution, margin, max_cells, .. } = self.settings;
        let around = GridGeometry::around(points, margin, resolution, max_cells)?;
        let before = self.grid.as_ref().map(|grid| grid.geometry);
        let geometry = before.map_or(Ok(around), |before| before.union(&around, max_cells))?;
        let mut grid = match self.grid.take() {
            Some(grid) if grid.geometry == geometry => grid,
            Some(grid) => grid.extended(geometry),
            None => StrengthGrid::unknown(geometry),
        };
        let cells = geometry.cells();
        let is_drawn =
            |block: &Cells| before.is_some_and(|before| before.cells().contains(&block.intersection(&cells)));
        let is_kept = |block: &Cells| is_drawn(block) && is_unchanged(geometry.area(block));
        let changed: Vec<Cells> = cells.blocks().filter(|block| !is_kept(block)).collect();
        fill(&mut grid, &changed, predict, progress);
        let rectangle = changed.into_iter().reduce(|all, block| all.hull(&block));
        self.changed = rectangle.map(|rectangle| rectangle.intersection(&cells));
        self.grid = Some(grid);
        Ok(())
    }
}

/// Fills blocks of a grid with predictions.
fn fill(
    grid: &mut StrengthGrid,
    blocks: &[Cells],
    predict: impl Fn(Extent, &[[f64; 2]]) -> (Vec<f64>, Vec<f64>),
    mut progress: impl FnMut(f64),
) {
    let geometry = grid.geometry;
    for (done, block) in blocks.iter().enumerate() {
        let points: Vec<[f64; 2]> = block.iter().map(|cell| geometry.centre_of(cell)).collect();
        let (mean, variance) = predict(geometry.area(block), &points);
        for (([column, row], mean), variance) in block.iter().zip(mean).zip(variance) {
            let Some(index) = geometry.index(column, row) else { continue };
            grid.mean[index] = mean;
            grid.standard_deviation[index] = variance.sqrt();
        }
        progress((done + 1) as f64 / blocks.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Vector3};
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::field::grid::BLOCK;
    use crate::field::model::FieldModel;
    use crate::sensing::reading::{MagneticField, Observation, Stamp};

    fn settings(margin: f64) -> config::Raster {
        config::Raster { resolution: 0.1, margin, unknown_above: 0.75, max_cells: 100_000 }
    }

    /// A field whose values depend, in the last bits, on which points are predicted together, as those of matrix products do.
    fn predict(_: Extent, points: &[[f64; 2]]) -> (Vec<f64>, Vec<f64>) {
        let shared: f64 = points.iter().map(|[x, y]| x * 1e-3 + y).sum();
        let mean = |x: f64, y: f64| 40.0 + (3.0 * x).sin() + y + shared * 1e-15;
        let value = |(index, &[x, y]): (usize, &[f64; 2])| (mean(x, y) + index as f64 * 1e-13, (x * x + y * y) * 0.2);
        points.iter().enumerate().map(value).unzip()
    }

    impl Rasterizer {
        fn grow_anew(&mut self, points: &[[f64; 2]]) -> Result<&StrengthGrid, Error> {
            self.grow(points.iter().copied(), predict, |_| false, |_| {})?;
            self.grid.as_ref().ok_or(Error::NoPoints)
        }
    }

    fn bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn observed(places: &[[f64; 2]], strength: impl Fn(f64) -> f64) -> Vec<Observation> {
        let observation = |&[x, y]: &[f64; 2]| Observation {
            stamp: Stamp::default(),
            position: Point3::new(x, y, 0.0),
            field: MagneticField::from_microtesla(Vector3::zeros()),
            strength: strength(x),
            orientation: Matrix3::identity(),
            speed: 0.0,
            readings: 10,
        };
        places.iter().map(observation).collect()
    }

    #[test]
    fn a_rejected_growth_keeps_the_last_geometry() {
        let mut rasterizer = Rasterizer::new(&settings(0.5));
        let before = rasterizer.grow_anew(&[[0.0, 0.0]]).unwrap().geometry;
        assert!(rasterizer.grow_anew(&[[1e6, 0.0]]).is_err());
        assert_eq!(rasterizer.grid().map(|grid| grid.geometry), Some(before));
    }

    #[test]
    fn cells_hold_the_prediction_at_their_centre() {
        let mut rasterizer = Rasterizer::new(&settings(3.0));
        let grid = rasterizer.grow_anew(&[[0.0, 0.0]]).unwrap();
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
                let grown = growing.grow_anew(&[[x, y]]).unwrap();
                let all: Vec<[f64; 2]> = growth[..=last].iter().map(|&(x, y)| [x, y]).collect();
                let mut at_once = Rasterizer::new(&settings(margin));
                let full = at_once.grow_anew(&all).unwrap();
                prop_assert_eq!(grown.geometry, full.geometry);
                prop_assert_eq!(bits(&grown.mean), bits(&full.mean));
                prop_assert_eq!(bits(&grown.standard_deviation), bits(&full.standard_deviation));
            }
        }
    }

    #[test]
    fn the_map_is_known_where_the_robot_was_and_unknown_far_away() {
        let mut config = Config::default();
        config.raster.margin = 4.0;
        let mut model = FieldModel::new(&config);
        let path: Vec<[f64; 2]> = (0..40).map(|index| [0.05 * f64::from(index), 0.0]).collect();
        model.update(&observed(&path, |x| 50.0 + 8.0 * (2.0 * x).sin()), &|| false).unwrap();
        let grid = rasterize(&config.raster, &model.map().unwrap(), &path).unwrap();
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
        let mut growing = Rasterizer::new(&config::Raster { resolution: 0.05, ..settings(0.5) });
        let mut predicted = 0;
        for batch in 0..6 {
            let path: Vec<[f64; 2]> = (0..30).map(|index| [f64::from(30 * batch + index) * 0.05, 0.0]).collect();
            model.update(&observed(&path, |x| 50.0 + 8.0 * (2.0 * x).sin()), &|| false).unwrap();
            let map = model.map().unwrap();
            let before = growing.grid().cloned();
            if let Some(last) = &growing.map {
                let blocks = [0, 1, 2, 3].map(|block| block * BLOCK).map(|x| [[x, 0], [x + BLOCK - 1, BLOCK - 1]]);
                let areas = blocks.map(|block| block.map(|cell| cell.map(|index| (index as f64 + 0.5) * 0.05)));
                predicted += areas.into_iter().filter(|area| !map.predicts_as(last, *area)).count();
            }
            let grown = growing.rasterize(&map, &path).unwrap().clone();
            let mut anew = growing.clone();
            anew.clear();
            assert!(anew.grid().unwrap().mean.iter().all(|mean| mean.is_nan()));
            let full = anew.rasterize(&map, &path).unwrap();
            assert_eq!(
                (bits(&grown.mean), bits(&grown.standard_deviation)),
                (bits(&full.mean), bits(&full.standard_deviation))
            );
            let changed = growing.changed().unwrap();
            for (index, [column, row]) in grown.geometry.cells().iter().enumerate() {
                let is_inside = changed.contains(&Cells { first: [column, row], last: [column, row] });
                let value = before.as_ref().and_then(|grid| Some(grid.mean[grid.geometry.index(column, row)?]));
                assert!(is_inside || value.is_some_and(|value| value.to_bits() == grown.mean[index].to_bits()));
            }
        }
        // Of four blocks along the path, up to x = 6.4 m, and five updates that had a raster before.
        assert!((1..20).contains(&predicted), "{predicted} blocks of 20 were predicted again");
        growing.rasterize(&model.map().unwrap(), &[]).unwrap();
        assert_eq!(growing.changed(), None);
    }
}
