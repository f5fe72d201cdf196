//! Grids that nav2's `map_server` serves as `nav_msgs/OccupancyGrid`: a yaml and a pgm per layer.
//!
//! In `mode: raw` the server takes each grey value from 0 to 100 as it is and all others as unknown (-1); `negate` and the
//! thresholds have no effect but are required (`nav2_map_server`, `map_io.cpp`, checked 2026). The top row of the picture has the
//! highest y; `origin` is the lower left corner of the lower left cell.

#[cfg(test)]
pub(super) mod tests;

use std::io::Write;
use std::path::Path;

use super::file::write_atomically;
use super::{Error, check_shape};
use magmap::display::colour::mean_scale;
use magmap::display::scale::Scale;
use magmap::field::grid::{GridGeometry, StrengthGrid};

/// Writes `mean.yaml`, `mean.pgm`, `standard_deviation.yaml` and `standard_deviation.pgm` into `folder`.
///
/// The mean is scaled as in the picture; the standard deviation from 0 (0 microtesla) to 100 (the highest). The yaml states the scale.
///
/// # Errors
/// Arrays that do not fit the grid, a grid without cells, and errors of the operating system.
pub fn write_map_server(folder: &Path, grid: &StrengthGrid, prior_standard_deviation: f64) -> Result<(), Error> {
    check_shape(grid)?;
    let layers = [
        ("mean", "mean field strength", &grid.mean, mean_scale(grid, prior_standard_deviation)),
        (
            "standard_deviation",
            "standard deviation of the field strength",
            &grid.standard_deviation,
            Scale::from_zero(&grid.standard_deviation),
        ),
    ];
    for (name, of, values, scale) in layers {
        let legend = legend(of, scale);
        let layer = Layer { name, legend: &legend, mode: "raw", free_thresh: 0.25, occupied_thresh: 0.65 };
        // Unknown, -1, becomes 255.
        layer.write(folder, &grid.geometry, values, |value| scale.occupancy(value) as u8)?;
    }
    Ok(())
}

/// The meaning of the values.
fn legend(what: &str, scale: Scale) -> String {
    let Scale { low, high } = scale;
    let step = scale.step();
    format!(
        "# {what}, in microtesla = {low} + {step} * value\n\
         # value 0 is {low} microtesla, value 100 is {high} microtesla, -1 is unknown\n"
    )
}

/// A picture of a grid and the yaml that says how `map_server` reads it.
pub(super) struct Layer<'a> {
    /// Name of both files, without the extension.
    pub(super) name: &'a str,
    /// The first lines of the yaml, each with a `#`.
    pub(super) legend: &'a str,
    pub(super) mode: &'a str,
    pub(super) free_thresh: f64,
    pub(super) occupied_thresh: f64,
}

impl Layer<'_> {
    /// Writes both files, with a grey for each value.
    pub(super) fn write(
        &self,
        folder: &Path,
        geometry: &GridGeometry,
        values: &[f64],
        grey: impl Fn(f64) -> u8,
    ) -> Result<(), Error> {
        let Self { name, legend, mode, free_thresh, occupied_thresh } = self;
        let picture = format!("{name}.pgm");
        let path = folder.join(&picture);
        if geometry.is_empty() {
            return Err(Error::NoCells(path));
        }
        write_atomically(&path, |writer| {
            write!(writer, "P5\n{} {}\n255\n", geometry.columns, geometry.rows)?;
            for row in values.chunks_exact(geometry.columns).rev() {
                writer.write_all(&row.iter().copied().map(&grey).collect::<Vec<u8>>())?;
            }
            Ok(())
        })?;
        let [x, y] = geometry.origin();
        let resolution = geometry.resolution;
        write_atomically(&folder.join(format!("{name}.yaml")), |writer| {
            write!(
                writer,
                "{legend}\
                 image: {picture}\n\
                 mode: {mode}\n\
                 resolution: {resolution}\n\
                 origin: [{x}, {y}, 0]\n\
                 negate: 0\n\
                 occupied_thresh: {occupied_thresh}\n\
                 free_thresh: {free_thresh}\n"
            )
        })
    }
}
