//! The map over time, as the grids that a node publishes: in a file, and to those who watch.

use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::Error;
use crate::export::file::unwritten;
use crate::recording::messages::OccupancyGrid;
use crate::recording::writer::MessageWriter;
use magmap::display::occupancy::{GridScales, OccupancyLayers};
use magmap::field::grid::StrengthGrid;
use magmap::sensing::reading::Stamp;

/// Topic of the mean: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales`].
pub const MEAN_TOPIC: &str = "/magmap/mean";
/// Topic of the variance: `nav_msgs/OccupancyGrid`, 0 to 100 over [`GridScales`].
pub const VARIANCE_TOPIC: &str = "/magmap/variance";

/// Writes pairs of grids to a temporary file, and to a second writer if there is one.
pub(super) struct GridWriter {
    writers: Vec<MessageWriter>,
    /// Removed when dropped.
    file: TempPath,
}

impl GridWriter {
    /// Creates the file, in `folder`.
    pub(super) fn create(folder: &Path, live: Option<MessageWriter>) -> Result<Self, Error> {
        let path: PathBuf = folder.join(format!(".map.mcap.{}.partial", std::process::id()));
        let writers = [MessageWriter::mcap(&path)?].into_iter().chain(live).collect();
        let file = TempPath::try_from_path(&path).map_err(unwritten(&path))?;
        Ok(Self { writers, file })
    }

    /// Writes the mean and the variance as of `stamp`, in this frame.
    pub(super) fn write(
        &mut self,
        frame: &str,
        grid: &StrengthGrid,
        prior_deviation: f64,
        stamp: Stamp,
    ) -> Result<GridScales, Error> {
        let OccupancyLayers { mean, variance, scales, .. } = OccupancyLayers::of(grid, prior_deviation);
        for (topic, data) in [(MEAN_TOPIC, mean), (VARIANCE_TOPIC, variance)] {
            let message = OccupancyGrid::new(stamp, frame, &grid.geometry, data);
            self.writers.iter_mut().try_for_each(|writer| writer.write(topic, &message, stamp))?;
        }
        Ok(scales)
    }

    /// Completes the file, which is removed unless it is renamed.
    pub(super) fn finish(self) -> Result<TempPath, Error> {
        self.writers.into_iter().try_for_each(MessageWriter::finish)?;
        Ok(self.file)
    }
}
