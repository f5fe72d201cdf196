//! Maps of a method while it learns, as the papers show them.

use super::contest::Task;
use super::methods::Learner;
use magmap::config::Config;
use magmap::mapping::field_model::{inducing_points, prior_standard_deviation};
use magmap::mapping::field_raster::rasterize;
use magmap::mapping::grid::{FieldGrid, Rasterizer};

/// A map after a batch.
#[derive(Clone, Debug)]
pub struct MapAfter {
    /// Which batch, counted from one.
    pub batch: usize,
    /// The map.
    pub grid: FieldGrid,
    /// Where the inducing points are, in metres.
    pub inducing_points: Vec<[f64; 2]>,
    /// Standard deviation of the field where nothing is known, in microtesla.
    pub prior_standard_deviation: f64,
    /// Where was read what the map was learnt from, in metres.
    pub path: Vec<[f64; 2]>,
}

/// Draws the map after the first batch, the last, and three between them.
pub struct MapRecorder<'a> {
    task: &'a Task,
    config: &'a Config,
    /// What it has drawn. What cannot be drawn, since it has no posterior or is too large, is left out.
    pub maps: Vec<MapAfter>,
}

impl<'a> MapRecorder<'a> {
    /// Has drawn nothing yet.
    pub fn new(task: &'a Task, config: &'a Config) -> Self {
        Self { task, config, maps: Vec::new() }
    }

    /// Draws the map after so many batches, if it is one of those.
    pub fn see(&mut self, batch: usize, learner: &dyn Learner) {
        let all = self.task.batches.len();
        let is_shown = self.task.is_map && (batch == 1 || (1..=4).any(|quarter| batch == (quarter * all).div_ceil(4)));
        let Some(posterior) = learner.posterior().filter(|_| is_shown) else { return };
        let seen = self.task.batches[..batch].iter().map(|readings| &readings.places);
        let path: Vec<[f64; 2]> =
            seen.flat_map(|places| places.axis(0).iter().zip(places.axis(1)).map(|(&x, &y)| [x, y])).collect();
        let mut rasterizer = Rasterizer::new(&self.config.raster);
        match rasterize(&mut rasterizer, 0, posterior, &path) {
            Ok(grid) => self.maps.push(MapAfter {
                batch,
                grid: grid.clone(),
                inducing_points: inducing_points(posterior),
                prior_standard_deviation: prior_standard_deviation(posterior),
                path,
            }),
            Err(error) => log::warn!("the map after batch {batch} cannot be drawn: {error}"),
        }
    }
}
