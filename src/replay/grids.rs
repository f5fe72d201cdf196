//! The map over time, as the grids a node publishes.

use std::path::{Path, PathBuf};

use nalgebra::Isometry3;
use serde::Serialize;
use tempfile::TempPath;

use super::Error;
use crate::export::colour::mean_scale;
use crate::mapping::grid::{FieldGrid, Scale};
use crate::mapping::reading::Stamp;
use crate::recording::messages::{Header, MapMetaData, OccupancyGrid, Pose};
use crate::recording::writer::McapWriter;

/// Topic of the mean: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales::mean`].
pub const MEAN_TOPIC: &str = "/magmap/mean";
/// Topic of the variance: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales::variance`].
pub const VARIANCE_TOPIC: &str = "/magmap/variance";

/// What the occupancies of a pair of grids mean: 0 is the first value, 100 the second, linear in between, clamped beyond.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridScales {
    /// In microtesla; as in the picture, over the cells that are at least half known.
    pub mean: [f64; 2],
    /// In microtesla squared, from zero to the greatest.
    pub variance: [f64; 2],
}

/// Writes pairs of grids to a file that only has its name once it is complete.
pub(super) struct GridWriter {
    writer: McapWriter,
    /// Removed when dropped.
    file: TempPath,
    frame: String,
}

impl GridWriter {
    /// Creates the file, in `folder`.
    pub(super) fn create(folder: &Path, frame: &str) -> Result<Self, Error> {
        let path: PathBuf = folder.join(format!(".map.mcap.{}.partial", std::process::id()));
        let writer = McapWriter::create(&path)?;
        let file = TempPath::try_from_path(&path).map_err(|source| crate::export::Error::Write { path, source })?;
        Ok(Self { writer, file, frame: frame.to_owned() })
    }

    /// Writes the mean and the variance as of `stamp`.
    pub(super) fn write(&mut self, grid: &FieldGrid, prior_deviation: f64, stamp: Stamp) -> Result<GridScales, Error> {
        let variance: Vec<f64> = grid.standard_deviation.iter().map(|deviation| deviation * deviation).collect();
        let range = mean_scale(grid, prior_deviation);
        let scales = [Scale::new(range.low, range.high)?, from_zero(&variance)?];
        let layers = [(MEAN_TOPIC, &grid.mean), (VARIANCE_TOPIC, &variance)];
        for ((topic, values), scale) in layers.into_iter().zip(&scales) {
            let message = OccupancyGrid {
                header: Header::new(stamp, self.frame.as_str()),
                info: metadata(grid, stamp),
                data: scale.occupancies(values),
            };
            self.writer.write(topic, &message, stamp)?;
        }
        let [mean, variance] = scales.map(|scale| [scale.low(), scale.high()]);
        Ok(GridScales { mean, variance })
    }

    /// Completes the file; it is removed unless it is given a name.
    pub(super) fn finish(self) -> Result<TempPath, Error> {
        self.writer.finish()?;
        Ok(self.file)
    }
}

fn from_zero(values: &[f64]) -> Result<Scale, Error> {
    let greatest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    Ok(Scale::new(0.0, if greatest > 0.0 { greatest } else { 1.0 })?)
}

fn metadata(grid: &FieldGrid, stamp: Stamp) -> MapMetaData {
    let geometry = &grid.geometry;
    let [x, y] = geometry.origin();
    MapMetaData {
        map_load_time: stamp.into(),
        resolution: geometry.resolution as f32,
        width: geometry.columns as u32,
        height: geometry.rows as u32,
        origin: Pose::from(&Isometry3::translation(x, y, 0.0)),
    }
}
