//! The output folder of a replay.

use std::io::{ErrorKind, Write};
use std::path::Path;

use super::corrected_path::{CorrectedPath, SlamReport};
use super::drawing::History;
use super::growth_picture::GrowthPicture;
use super::report::{Context, ReplayReport};
use super::{Error, ReplayOutputs};
use crate::export::file::{unwritten, write_atomically};
use crate::export::json::write_json;
use crate::export::map_server::write_map_server;
use crate::export::{MapArrays, MapPicture};
use magmap::config::Config;
use magmap::display::AxesGrid;
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
    corrected: Option<&CorrectedPath>,
) -> Result<ReplayOutputs, Error> {
    let name = context.source.name.clone();
    let slam = finished.estimate.as_ref().map(SlamReport::of);
    let corrected_path = corrected.map(|path| path.report(slam));
    let report = ReplayReport::new(context, finished, &history, corrected_path);
    let settings = config.to_toml()?;
    write_atomically(&folder.join("config.toml"), |file| file.write_all(settings.as_bytes()))?;
    write_json(&folder.join("report.json"), &report)?;
    GrowthPicture::of(&report.batches).write(&folder.join("growth.png"))?;

    let grid = history.grid.unwrap_or(Err(magmap::field::Error::NoPoints))?;
    let map = finished.mapper.model().map().ok_or(magmap::field::Error::NoPoints)?;
    let driven = || finished.mapper.pipeline().path().points().iter().map(|point| [point.x, point.y]).collect();
    let path = corrected.map_or_else(driven, CorrectedPath::places);
    let subtitle = format!("{name}, {:.0} m driven", report.counters.travelled);
    let changes: Vec<_> = report.changes.iter().flat_map(|change| &change.places).copied().collect();
    let picture = MapPicture {
        grid: &grid,
        path: &path,
        inducing_points: &map.inducing_points(),
        changes: &changes,
        prior_standard_deviation: map.prior_standard_deviation(),
        title: "Magnetic field",
        subtitle: Some(&subtitle),
    };
    let axes = AxesGrid::of(&map, &grid);
    write_grid(folder, &picture, &map, axes.as_ref())?;
    let [path_picture, trajectory] = CORRECTED.map(|name| folder.join(name));
    if let Some(corrected) = corrected {
        corrected.write_tum(&trajectory)?;
        MapPicture { title: "The corrected path", ..picture }.write_paths(&path_picture, &corrected.named())?;
    }
    let grids = folder.join("map.mcap");
    history.grids.persist(&grids).map_err(|error| unwritten(&grids)(error.error))?;
    let is_missing =
        |name: &&str| (*name == VECTORS && axes.is_none()) || (CORRECTED.contains(name) && corrected.is_none());
    // They are of a map that this one replaces.
    FILES.iter().filter(|name| is_missing(name)).try_for_each(|name| remove_if_there(&folder.join(name)))?;
    let files = FILES.iter().filter(|name| !is_missing(name)).map(|name| folder.join(name)).collect();
    Ok(ReplayOutputs { report, grid, files })
}

/// Picture and file of the path, where it was corrected.
const CORRECTED: [&str; 2] = ["path.png", "trajectory.tum"];

/// The picture of the axes, where they are mapped.
const VECTORS: &str = "vectors.png";

/// The files, pictures first.
const FILES: [&str; 15] = [
    "map.png",
    "uncertainty.png",
    VECTORS,
    CORRECTED[0],
    "growth.png",
    "map.npz",
    "map.mcap",
    CORRECTED[1],
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

fn write_grid(folder: &Path, picture: &MapPicture<'_>, map: &FieldMap, axes: Option<&AxesGrid>) -> Result<(), Error> {
    let MapPicture { grid, path, inducing_points, prior_standard_deviation, .. } = *picture;
    picture.write_mean(&folder.join("map.png"))?;
    picture.write_uncertainty(&folder.join("uncertainty.png"))?;
    if let Some(axes) = axes {
        picture.write_vectors(&folder.join(VECTORS), axes)?;
    }
    let (hyperparameters, sensor_bias) = (&map.hyperparameters(), map.sensor_bias());
    MapArrays { grid, inducing_points, hyperparameters, path, axes, share_below: map.share_below(), sensor_bias }
        .write(&folder.join("map.npz"))?;
    Ok(write_map_server(folder, grid, prior_standard_deviation)?)
}
