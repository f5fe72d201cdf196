//! The folder a replay leaves.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::beginning::CHECKPOINT;
use super::drawing::History;
use super::report::{Context, Report};
use super::{Error, Outcome};
use crate::config::Config;
use crate::export::file::{create_folder, write_atomically};
use crate::export::map_server::write_map_server;
use crate::export::report::write_json;
use crate::export::{self, GrowthPicture, GrowthPoint, MapArrays, MapPicture};
use crate::mapping::checkpoint::Checkpoint;
use crate::mapping::field_model::{FieldModel, FieldPosterior, inducing_points, prior_standard_deviation};
use crate::mapping::grid::FieldGrid;
use crate::mapping::quantity::Quantity;
use crate::mapping::worker::Finished;

/// A folder that may be written into.
pub(super) struct OutputFolder {
    path: PathBuf,
}

impl OutputFolder {
    /// Makes the folder; one that holds something is refused unless `force`.
    pub(super) fn prepare(path: &Path, force: bool) -> Result<Self, Error> {
        create_folder(path)?;
        let refused = |source| Error::ReadFolder { path: path.to_owned(), source };
        let is_empty = std::fs::read_dir(path).map_err(refused)?.next().is_none();
        if is_empty || force { Ok(Self { path: path.to_owned() }) } else { Err(Error::NotEmpty(path.to_owned())) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Writes everything but the map over time, which is only named. What needs no raster comes first, so that a map too large to be
/// drawn leaves its report.
pub(super) fn write(
    folder: &OutputFolder,
    config: &Config,
    context: Context,
    finished: &Finished<FieldModel>,
    history: History,
) -> Result<Outcome, Error> {
    let name = context.source.name.clone();
    let report = Report::new(context, finished, &history);
    write_settings(&folder.file("config.toml"), config)?;
    write_json(&folder.file("report.json"), &report)?;
    let batches: Vec<GrowthPoint> = report.batches.iter().filter_map(|record| record.growth()).collect();
    GrowthPicture { batches: &batches }.write(&folder.file("growth.png"))?;

    let grid = history.grid.unwrap_or(Err(crate::mapping::Error::NoPoints))?;
    let posterior = finished.mapper.learner().posterior().ok_or(crate::mapping::Error::NoPoints)?;
    let path: Vec<[f64; 2]> =
        finished.mapper.pipeline().path().points().iter().map(|point| [point.x, point.y]).collect();
    let subtitle = format!("{name}, {:.0} m driven", report.counters.travelled);
    write_grid(folder, &grid, posterior, &path, &subtitle)?;
    Checkpoint::of(config, &finished.mapper, &report.frame)?.write(folder.file(CHECKPOINT))?;
    let grids = folder.file("map.mcap");
    history.grids.persist(&grids).map_err(|error| export::Error::Write { path: grids, source: error.error })?;
    let files = FILES.map(|name| folder.file(name)).to_vec();
    Ok(Outcome { report, grid, files })
}

/// What is written, pictures first.
const FILES: [&str; 12] = [
    "map.png",
    "uncertainty.png",
    "growth.png",
    "map.npz",
    "map.mcap",
    "mean.yaml",
    "mean.pgm",
    "standard_deviation.yaml",
    "standard_deviation.pgm",
    "report.json",
    "config.toml",
    CHECKPOINT,
];

fn write_settings(path: &Path, config: &Config) -> Result<(), Error> {
    let text = config.to_toml()?;
    Ok(write_atomically(path, |file| file.write_all(text.as_bytes()))?)
}

fn write_grid(
    folder: &OutputFolder,
    grid: &FieldGrid,
    posterior: &FieldPosterior,
    path: &[[f64; 2]],
    subtitle: &str,
) -> Result<(), Error> {
    let inducing_points = &inducing_points(posterior);
    let prior_standard_deviation = prior_standard_deviation(posterior);
    let picture = MapPicture {
        grid,
        path,
        inducing_points,
        prior_standard_deviation,
        title: match grid.quantity {
            Quantity::Strength => "Magnetic field",
            Quantity::Probability => "Yes or no",
        },
        subtitle: Some(subtitle),
    };
    picture.write_mean(&folder.file("map.png"))?;
    picture.write_uncertainty(&folder.file("uncertainty.png"))?;
    let hyperparameters = &posterior.model().named_values();
    MapArrays { grid, inducing_points, hyperparameters, path }.write(&folder.file("map.npz"))?;
    Ok(write_map_server(&folder.path, grid, prior_standard_deviation)?)
}
