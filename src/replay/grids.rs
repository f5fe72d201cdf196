//! The map over time, as the grids a node publishes.

use std::path::{Path, PathBuf};

use nalgebra::Isometry3;
use tempfile::TempPath;

use super::Error;
use crate::export::occupancy::{GridScales, OccupancyLayers};
use crate::mapping::grid::FieldGrid;
use crate::mapping::reading::Stamp;
use crate::recording::messages::{Header, MapMetaData, OccupancyGrid, Pose};
use crate::recording::writer::McapWriter;

/// Topic of the mean: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales`].
pub const MEAN_TOPIC: &str = "/magmap/mean";
/// Topic of the variance: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales`].
pub const VARIANCE_TOPIC: &str = "/magmap/variance";

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
        let OccupancyLayers { mean, variance, scales } = OccupancyLayers::of(grid, prior_deviation)?;
        for (topic, data) in [(MEAN_TOPIC, mean), (VARIANCE_TOPIC, variance)] {
            let header = Header::new(stamp, self.frame.as_str());
            let message = OccupancyGrid { header, info: metadata(grid, stamp), data };
            self.writer.write(topic, &message, stamp)?;
        }
        Ok(scales)
    }

    /// Completes the file; it is removed unless it is given a name.
    pub(super) fn finish(self) -> Result<TempPath, Error> {
        self.writer.finish()?;
        Ok(self.file)
    }
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
