//! The picture of a merged map.

use std::path::Path;

use super::{Error, Input, Merged};
use crate::export::{MapPicture, NamedPath};
use magmap::config;
use magmap::display::colour::Rgb;
use magmap::field::raster::rasterize;

/// Colours of paths that those who are colour-blind can tell apart (M. Okabe, K. Ito).
const COLOURS: [Rgb; 5] = [[0, 0, 0], [213, 94, 0], [86, 180, 233], [204, 121, 167], [240, 228, 66]];

impl Merged {
    /// Draws the mean of the map with the paths of the maps that it was made from.
    ///
    /// # Errors
    /// A map that cannot be drawn, or a file that cannot be written.
    pub fn write_picture(&self, file: &Path, inputs: &[Input], raster: &config::Raster) -> Result<(), Error> {
        let grid = rasterize(raster, &self.map, &self.map.extent)?;
        let mut places = self.places.as_slice();
        let mut paths = Vec::new();
        for (joined, colour) in self.joined.iter().zip(COLOURS.into_iter().cycle()) {
            let input = &inputs[joined.index];
            let (own, rest) = places.split_at(input.observations());
            paths.push(NamedPath { name: input.name.clone(), colour, places: own.to_vec() });
            places = rest;
        }
        let picture = MapPicture {
            grid: &grid,
            path: &[],
            inducing_points: &self.map.inducing_points(),
            changes: &[],
            prior_standard_deviation: self.map.prior_standard_deviation(),
            title: "Merged map",
            subtitle: None,
        };
        Ok(picture.write_paths(file, &paths)?)
    }
}
