//! The output folder of a replay.

use std::io::{ErrorKind, Write};
use std::path::Path;

use super::drawing::History;
use super::growth_picture::GrowthPicture;
use super::report::{Context, ReplayReport};
use super::{Error, ReplayOutputs};
use crate::export::file::{unwritten, write_atomically};
use crate::export::json::write_json;
use crate::export::map_server::write_map_server;
use crate::export::{MapArrays, MapPicture};
use magmap::config::{Config, Mapped};
use magmap::display::AxesGrid;
use magmap::field::grid::StrengthGrid;
use magmap::field::map::FieldMap;
use magmap::mapping::thread::Finished;
use magmap::store::map_file::FILE_NAME;

/// Writes all outputs, and names the file of the map over time. Outputs that need no raster come first, so that a map too large to
/// be drawn leaves its report.
pub(super) fn write(
    folder: &Path,
    config: &Config,
    context: Context,
    finished: &Finished,
    history: History,
) -> Result<ReplayOutputs, Error> {
    let name = context.source.name.clone();
    let report = ReplayReport::new(context, finished, &history);
    let settings = config.to_toml()?;
    write_atomically(&folder.join("config.toml"), |file| file.write_all(settings.as_bytes()))?;
    write_json(&folder.join("report.json"), &report)?;
    GrowthPicture::of(&report.batches).write(&folder.join("growth.png"))?;

    let grid = history.grid.unwrap_or(Err(magmap::field::Error::NoPoints))?;
    let map = finished.mapper.model().map().ok_or(magmap::field::Error::NoPoints)?;
    let path: Vec<[f64; 2]> =
        finished.mapper.pipeline().path().points().iter().map(|point| [point.x, point.y]).collect();
    let subtitle = format!("{name}, {:.0} m driven", report.counters.travelled);
    write_grid(folder, &grid, &map, &path, &subtitle)?;
    let grids = folder.join("map.mcap");
    history.grids.persist(&grids).map_err(|error| unwritten(&grids)(error.error))?;
    let is_vector = finished.mapper.model().field() == Mapped::Vector;
    let files = FILES.iter().filter(|&&name| name != VECTORS || is_vector).map(|name| folder.join(name)).collect();
    Ok(ReplayOutputs { report, grid, files })
}

/// The picture of the axes, where they are mapped.
const VECTORS: &str = "vectors.png";

/// The files, pictures first.
const FILES: [&str; 13] = [
    "map.png",
    "uncertainty.png",
    VECTORS,
    "growth.png",
    "map.npz",
    "map.mcap",
    "mean.yaml",
    "mean.pgm",
    "standard_deviation.yaml",
    "standard_deviation.pgm",
    "report.json",
    "config.toml",
    FILE_NAME,
];

fn remove_if_there(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(unwritten(path)(error).into()),
        _ => Ok(()),
    }
}

fn write_grid(
    folder: &Path,
    grid: &StrengthGrid,
    map: &FieldMap,
    path: &[[f64; 2]],
    subtitle: &str,
) -> Result<(), Error> {
    let inducing_points = &map.inducing_points();
    let prior_standard_deviation = map.prior_standard_deviation();
    let picture = MapPicture {
        grid,
        path,
        inducing_points,
        prior_standard_deviation,
        title: "Magnetic field",
        subtitle: Some(subtitle),
    };
    picture.write_mean(&folder.join("map.png"))?;
    picture.write_uncertainty(&folder.join("uncertainty.png"))?;
    let hyperparameters = &map.hyperparameters();
    let (axes, sensor_bias) = (AxesGrid::of(map, grid), map.sensor_bias());
    let axes = axes.as_ref();
    match axes {
        Some(axes) => picture.write_vectors(&folder.join(VECTORS), axes)?,
        // That of a map of the axes, which this one replaces.
        None => remove_if_there(&folder.join(VECTORS))?,
    }
    MapArrays { grid, inducing_points, hyperparameters, path, axes, share_below: map.share_below(), sensor_bias }
        .write(&folder.join("map.npz"))?;
    Ok(write_map_server(folder, grid, prior_standard_deviation)?)
}
