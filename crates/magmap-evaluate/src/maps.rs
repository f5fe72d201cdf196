//! The map of a method after its last batch, to be drawn.

use super::metrics::{Readings, in_the_plane};
use magmap::config::Raster;
use magmap::field::MapPosterior;
use magmap::field::engine::FieldPosterior;
use magmap::field::grid::StrengthGrid;
use magmap::field::map::FieldMap;
use magmap::field::raster::rasterize;
use magmap::field::totals::Totals;
use magmap::sensing::reading::Stamp;
use std::sync::Arc;

/// A map after the last batch.
#[derive(Clone, Debug)]
pub struct FinalMap {
    /// The map.
    pub grid: StrengthGrid,
    /// Positions of the inducing points, in metres.
    pub inducing_points: Vec<[f64; 2]>,
    /// Standard deviation of the field where nothing is known, in microtesla.
    pub prior_standard_deviation: f64,
    /// Positions of the readings that it was learnt from, in metres.
    pub path: Vec<[f64; 2]>,
}

impl FinalMap {
    /// Draws the map that was learnt from these batches; none, with a warning, where it is too large.
    pub fn draw(posterior: &FieldPosterior, learnt: &[Readings], raster: &Raster) -> Option<Self> {
        let path: Vec<[f64; 2]> = learnt.iter().flat_map(|readings| in_the_plane(&readings.places)).collect();
        // Where and when it was learnt matters to no picture.
        let map = FieldMap::new(
            MapPosterior::Scalar(Arc::new(posterior.clone())),
            [[0.0; 2]; 2],
            Stamp::default(),
            Totals::default(),
        );
        let drawn = rasterize(raster, &map, &path);
        let drawn = drawn.inspect_err(|error| log::warn!("the map cannot be drawn: {error}"));
        Some(Self {
            grid: drawn.ok()?,
            inducing_points: map.inducing_points(),
            prior_standard_deviation: map.prior_standard_deviation(),
            path,
        })
    }
}
