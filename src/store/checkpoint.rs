//! The map and the stream that leads to it at one moment, to be continued.

use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian};
use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::Error;
use super::database::{Batch, CheckpointRow, Database};
use crate::arrays::Problem;
use crate::config::Config;
use crate::field;
use crate::field::map::FieldMap;
use crate::field::model::FieldModel;
use crate::field::state::{ModelState, StateMetadata};
use crate::field::tile_store::TileStore;
use crate::mapping::mapper::{Continuation, Mapper, Progress, SavedMap};
use crate::mapping::path;
use crate::mapping::pipeline::Pipeline;
use crate::trajectory::{Correction, Delay, Trajectory, Withdrawal};

/// A map at one moment, with everything needed to continue as if mapping had never stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Version of magmap that made it.
    pub magmap_version: String,
    /// All settings it was made with, as TOML.
    pub config: String,
    /// The frame of the map.
    pub frame: String,
    /// The state of the model.
    pub model: ModelState,
    /// The state of the stream.
    pub stream: Stream,
}

/// The state of the stream. It contains only finite numbers, which JSON represents exactly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stream {
    /// Progress of the stream.
    pub progress: Progress,
    /// The pipeline of readings, with the batches that are not learnt yet; its path is kept separately.
    pub pipeline: Pipeline,
    /// The state that holds if odometry continued from where it was, while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Box<Continuation>>,
    /// Where the frame of odometry is in that of the map.
    pub correction: Correction,
    /// How late readings are stamped, where that was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// Observations that no longer hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawals: Vec<Withdrawal>,
}

/// Compares the serialized form, which excludes settings.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        let written = |stream: &Self| serde_json::to_string(stream).ok();
        self.pipeline.path() == other.pipeline.path() && written(self) == written(other)
    }
}

/// The state of the model, except for its tiles, and what says how it was made.
#[derive(Serialize, Deserialize)]
struct Metadata {
    magmap_version: String,
    frame: String,
    path_spacing: f64,
    #[serde(flatten)]
    state: StateMetadata,
}

impl Checkpoint {
    /// A checkpoint of `mapper`.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that TOML cannot hold.
    pub fn of(mapper: &Mapper) -> Result<Self, Error> {
        Ok(Self {
            magmap_version: env!("CARGO_PKG_VERSION").to_owned(),
            config: mapper.config().to_toml()?,
            frame: mapper.frame().to_owned(),
            model: mapper.model().state(),
            stream: Stream {
                progress: mapper.progress().clone(),
                pipeline: mapper.pipeline().clone(),
                continuation: mapper.continuation().cloned().map(Box::new),
                correction: mapper.trajectory().correction.clone(),
                delay: mapper.trajectory().delay,
                withdrawals: mapper.trajectory().withdrawals.clone(),
            },
        })
    }

    /// Continues as if mapping had never stopped, with settings that may differ from those it was made with.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn resume(&self, config: &Config) -> Result<Mapper, field::Error> {
        let model = FieldModel::from_state(config, &self.model)?;
        let Stream { progress, mut pipeline, mut continuation, correction, delay, withdrawals } = self.stream.clone();
        pipeline.configure(config);
        if let Some(continuation) = &mut continuation {
            continuation.pipeline.configure(config);
        }
        let mut trajectory = Trajectory::new(Vec::new(), correction);
        (trajectory.delay, trajectory.withdrawals) = (delay, withdrawals);
        let mut mapper = Mapper::resume(config.clone(), self.frame.clone(), pipeline, model, progress, trajectory);
        mapper.set_continuation(continuation);
        Ok(mapper)
    }

    /// The map alone, to replace another.
    pub fn map(&self) -> SavedMap {
        let Progress { sources, steps, .. } = self.stream.progress.clone();
        let (path, odometry) = (self.stream.pipeline.path().clone(), *self.stream.pipeline.odometry());
        let (delay, withdrawals) = (self.stream.delay, self.stream.withdrawals.clone());
        SavedMap { model: self.model.clone(), path, odometry, sources, delay, withdrawals, steps }
    }

    /// Writes it, with batches of the trajectory that are not in the file yet; the file is begun. Tiles are written if they are not in
    /// the file.
    pub(super) fn write(&self, database: &Arc<Database>, is_saved: bool, batches: &[Batch]) -> std::io::Result<()> {
        let tiles = self.model.store_tiles(&(Arc::clone(database) as Arc<dyn TileStore>))?;
        let mut numbers: Vec<u64> = tiles.iter().map(|tile| tile.number).collect();
        numbers.sort_unstable();
        let metadata = Metadata {
            magmap_version: self.magmap_version.clone(),
            frame: self.frame.clone(),
            path_spacing: self.stream.pipeline.path().spacing,
            state: self.model.metadata(),
        };
        let coordinates = self.stream.pipeline.path().points().iter().flat_map(|point| [point.x, point.y, point.z]);
        let Progress { steps, sources, .. } = &self.stream.progress;
        let row = CheckpointRow {
            step: *steps,
            state: serde_json::to_string(&metadata)?,
            stream: serde_json::to_string(&self.stream)?,
            settings: self.config.clone(),
            path: coordinates.flat_map(f64::to_le_bytes).collect(),
            tiles: numbers,
        };
        database.write_checkpoint(&row, is_saved, sources, batches, self.model.totals.batches())
    }

    /// Reads the checkpoint after this number of steps. Tiles that are damaged are missing, and returned; others are in use from now on.
    ///
    /// # Errors
    /// The first problem that is found.
    pub(super) fn read_from(database: &Arc<Database>, step: u64) -> Result<(Self, Vec<Problem>), Problem> {
        let row = database.checkpoint(step)?;
        let Metadata { magmap_version, frame, path_spacing, state } = serde_json::from_str(&row.state)?;
        let tiles =
            row.tiles.iter().map(|&number| Ok((TileStore::read(&**database, number)?, database.existing_tile(number))));
        let (model, lost) = ModelState::read(state, &row.settings, tiles)?;
        let mut stream = read_stream(&row.stream)?;
        let path = read_path(&row.path, path_spacing)?;
        if let Some(continuation) = &mut stream.continuation {
            continuation.pipeline.set_path(path.clone());
        }
        stream.pipeline.set_path(path);
        Ok((Self { magmap_version, config: row.settings, frame, model, stream }, lost))
    }

    /// The map, to be read only, with settings that may differ from those it was made with; none before the first batch.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn field_map(&self, config: &Config) -> Result<Option<FieldMap>, field::Error> {
        Ok(FieldModel::from_state(config, &self.model)?.map())
    }

    /// The settings it was made with, of the quantity that it maps.
    ///
    /// # Errors
    /// Settings of another version of magmap, which this one does not have.
    pub fn settings(&self) -> Result<Config, Error> {
        let config = Config::from_toml(&self.config, "the map's settings")?;
        Ok(config.decided(self.model.settings.model.field).into_owned())
    }

    /// Whether this is a later state of the `other` map, or the same: it contains all that the other has learnt.
    pub fn continues(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.stream.progress.sources, &other.stream.progress.sources);
        let learnt = other.model.totals.batches();
        // A source without a learnt batch does not matter.
        let shared_runs = theirs.iter().take_while(|run| run.after_updates < learnt).count();
        // When the next source began, this map must have had all batches of the other one.
        let shared_batches = mine.get(shared_runs).map_or(self.model.totals.batches(), |next| next.after_updates);
        mine.starts_with(&theirs[..shared_runs]) && shared_batches >= learnt
    }
}

fn read_stream(json: &str) -> Result<Stream, Problem> {
    let stream: Stream = serde_json::from_str(json)?;
    let is_continuation_valid =
        stream.continuation.as_ref().is_none_or(|continuation| continuation.pipeline.is_valid());
    let are_places_valid = stream.correction.is_valid()
        && stream.delay.as_ref().is_none_or(Delay::is_valid)
        && stream.withdrawals.iter().all(Withdrawal::is_valid);
    if stream.progress.is_valid() && stream.pipeline.is_valid() && is_continuation_valid && are_places_valid {
        return Ok(stream);
    }
    Err(Problem::Settings("expected a valid state of the stream, found an invalid one".into()))
}

fn read_path(bytes: &[u8], spacing: f64) -> Result<path::Path, Problem> {
    let (points, rest) = bytes.as_chunks::<24>();
    let point = |bytes: &[u8; 24]| {
        let mut coordinates = [0.0; 3];
        LittleEndian::read_f64_into(bytes, &mut coordinates);
        Point3::from(coordinates)
    };
    let points: Vec<_> = points.iter().map(point).collect();
    let is_finite = points.iter().all(|point| point.coords.iter().all(|coordinate| coordinate.is_finite()));
    if rest.is_empty() && is_finite && spacing > 0.0 {
        return Ok(path::Path::from_points(&points, spacing));
    }
    Err(Problem::array("path", "finite points, and a spacing above 0", "others"))
}

#[cfg(test)]
mod tests;
