//! A file with the map and the stream that leads to it, to be continued. `docs/checkpoint.md` describes the format.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use crate::arrays::{self, ArrayReader, ArrayWriter, Problem};
use crate::config::Config;
use crate::durability::Error;
use crate::durability::tile_folder::TileFolder;
use crate::field;
use crate::field::map::FieldMap;
use crate::field::model::FieldModel;
use crate::field::state::{DamagedTile, FieldState, ReadTile, StateMetadata};
use crate::field::tile_store::{StoredTile, TileStore};
use crate::files::{FileError, write_atomically};
use crate::mapping::batcher::Batch;
use crate::mapping::mapper::{Mapper, Progress, SavedMap};
use crate::mapping::path::Path;
use crate::mapping::pipeline::Pipeline;

/// Value of the array `format`.
const FORMAT: &str = "magmap-checkpoint";

/// Version of the format.
pub const FORMAT_VERSION: i64 = 5;

/// Its name in the output folder of a replay.
pub const FILE_NAME: &str = "checkpoint.npz";

/// The file of a map: `path`, or the one in it if it is the output folder of a replay.
pub fn file_of(path: &std::path::Path) -> std::path::PathBuf {
    if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() }
}

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
    pub model: FieldState,
    /// The state of the stream.
    pub stream: Stream,
}

/// The files of tiles that belong to a checkpoint.
pub(crate) type StoredTiles = Vec<Arc<StoredTile>>;

/// The state of the stream. It contains only finite numbers, which JSON represents exactly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stream {
    /// Progress of the stream.
    pub progress: Progress,
    /// What readings pass through; its path is a separate array.
    pub pipeline: Pipeline,
    /// Batches that are not learnt yet.
    pub ready: VecDeque<Batch>,
}

/// Compares the serialized form, which excludes settings.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        let written = |stream: &Self| serde_json::to_string(stream).ok();
        self.pipeline.path() == other.pipeline.path() && written(self) == written(other)
    }
}

/// The part of the file that is not arrays of numbers.
#[derive(Serialize, Deserialize)]
struct Metadata {
    magmap_version: String,
    frame: String,
    #[serde(flatten)]
    state: StateMetadata,
    config: String,
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
                ready: mapper.ready().clone(),
            },
        })
    }

    /// Continues as if mapping had never stopped, with settings that may differ from those it was made with.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn resume(&self, config: &Config) -> Result<Mapper, field::Error> {
        let model = FieldModel::from_state(config, &self.model)?;
        let Stream { progress, mut pipeline, mut ready } = self.stream.clone();
        pipeline.configure(config, &mut ready);
        Ok(Mapper::resume(config.clone(), self.frame.clone(), pipeline, ready, model, progress))
    }

    /// The map alone, to replace another.
    pub fn map(&self) -> SavedMap {
        let (model, path) = (self.model.clone(), self.stream.pipeline.path().clone());
        SavedMap { model, path, sources: self.stream.progress.sources.clone() }
    }

    /// Writes it atomically and durably: after a crash or power cut the file is either the old or the new one. Equal checkpoints
    /// are equal files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        let path = path.as_ref();
        Ok(write_atomically(path, |file| self.write_to(file, &[]).map(drop)).map_err(unwritten(path))?)
    }

    /// As [`write`](Self::write), but the arrays of tiles that are shared with the model are in files of this folder, in which the file
    /// itself is: only those of tiles that have changed are written. Returns these files, which belong to the checkpoint.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn write_with_tiles(
        &self,
        path: &std::path::Path,
        folder: &Arc<TileFolder>,
    ) -> Result<StoredTiles, Error> {
        let tiles = if self.model.tiles.grid.is_some() { &self.model.tiles.tiles[..] } else { &[] };
        let store = Arc::clone(folder) as Arc<dyn TileStore>;
        let stored = tiles.iter().map(|tile| tile.store(&store).transpose()).collect::<io::Result<Vec<_>>>();
        let written = stored.and_then(|stored| {
            let names: Vec<_> = stored.iter().map(|tile| tile.as_ref().map(|tile| tile.name().to_owned())).collect();
            let stored: Vec<_> = stored.into_iter().flatten().collect();
            folder.sync(&stored)?;
            write_atomically(path, |file| self.write_to(file, &names).map(drop))?;
            Ok(stored)
        });
        Ok(written.map_err(unwritten(path))?)
    }

    /// Reads a checkpoint, exactly as it was written.
    ///
    /// # Errors
    /// [`Error::Read`] with what is wrong.
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let folder = path.parent().unwrap_or(std::path::Path::new(""));
        let (checkpoint, mut damaged) = Self::read_with_tiles(path, &Arc::new(TileFolder::new(folder)))?;
        let first = damaged.drain(..).next();
        first.map_or(Ok(checkpoint), |DamagedTile { file, problem }| {
            Err(Error::Read { path: folder.join(file), problem })
        })
    }

    /// Reads a checkpoint whose tiles may be in files of this folder, which are in use from now on. Tiles whose file is damaged are
    /// missing, and returned.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_with_tiles(
        path: &std::path::Path,
        folder: &Arc<TileFolder>,
    ) -> Result<(Self, Vec<DamagedTile>), Error> {
        let mut read_tile = |name: &str| Ok((folder.read(name)?, Some(folder.existing(name))));
        read_whole(path)
            .and_then(|bytes| Self::from_arrays(&bytes, &mut read_tile))
            .map_err(|problem| Error::Read { path: path.to_owned(), problem })
    }

    /// The map, to be read only, with settings that may differ from those it was made with; none before the first batch.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn field_map(&self, config: &Config) -> Result<Option<FieldMap>, field::Error> {
        Ok(FieldModel::from_state(config, &self.model)?.map())
    }

    /// The settings it was made with.
    ///
    /// # Errors
    /// Settings of another version of magmap, which this one does not have.
    pub fn settings(&self) -> Result<Config, Error> {
        Ok(Config::from_toml(&self.config, "the map's settings")?)
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

    /// `files` names for each tile the file that contains its arrays, if one does.
    fn write_to<W: Write + Seek>(&self, out: W, files: &[Option<String>]) -> io::Result<W> {
        let metadata = Metadata {
            magmap_version: self.magmap_version.clone(),
            frame: self.frame.clone(),
            state: self.model.metadata(files),
            config: self.config.clone(),
        };
        let points = self.stream.pipeline.path().points();
        let mut arrays = ArrayWriter::new(out);
        arrays.text("format", FORMAT)?;
        arrays.integer("format_version", FORMAT_VERSION)?;
        arrays.text("metadata", &serde_json::to_string(&metadata)?)?;
        self.model.write(&mut arrays, files)?;
        arrays.numbers("path", &[points.len(), 3], points.iter().flat_map(|point| [point.x, point.y, point.z]))?;
        arrays.numbers("path_spacing", &[], [self.stream.pipeline.path().spacing])?;
        arrays.text("stream", &serde_json::to_string(&self.stream)?)?;
        arrays.finish()
    }

    /// Reads the bytes of a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// What is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        let elsewhere =
            |name: &str| Err(Problem::array("metadata", "tiles in the same file", format!("one in {name}")));
        Self::from_arrays(bytes, &mut { elsewhere }).map(|(checkpoint, _)| checkpoint)
    }

    fn from_arrays(bytes: &[u8], read_tile: &mut ReadTile<'_>) -> Result<(Self, Vec<DamagedTile>), Problem> {
        let arrays = ArrayReader::new(bytes)?;
        let format = arrays.text("format")?;
        if format != FORMAT {
            return Err(Problem::NotACheckpoint(format));
        }
        let found = arrays.integer("format_version")?;
        if found != FORMAT_VERSION {
            return Err(Problem::Version { expected: FORMAT_VERSION, found });
        }
        let Metadata { magmap_version, frame, state, config } = serde_json::from_str(&arrays.text("metadata")?)?;
        let (model, damaged) = FieldState::read(&arrays, state, &config, read_tile)?;
        let mut stream = read_stream(&arrays)?;
        stream.pipeline.set_path(read_path(&arrays)?);
        Ok((Self { magmap_version, config, frame, model, stream }, damaged))
    }
}

pub(super) fn unwritten(path: &std::path::Path) -> impl FnOnce(io::Error) -> FileError {
    FileError::of("write the checkpoint", path, "; no partial file was left")
}

/// All bytes of a file, unless the first ones show that it is not a checkpoint.
fn read_whole(path: &std::path::Path) -> Result<Vec<u8>, Problem> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    (&mut file).take(arrays::PREFIX).read_to_end(&mut bytes)?;
    arrays::check_prefix(&bytes)?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_stream(arrays: &ArrayReader<'_>) -> Result<Stream, Problem> {
    let stream: Stream = serde_json::from_str(&arrays.text("stream")?)?;
    let are_batches_valid = stream.ready.iter().all(|batch| !batch.observations.is_empty());
    if are_batches_valid && stream.progress.is_valid() && stream.pipeline.is_valid() {
        return Ok(stream);
    }
    Err(Problem::array("stream", "a valid state of the stream", "an invalid one"))
}

fn read_path(arrays: &ArrayReader<'_>) -> Result<Path, Problem> {
    let points = arrays.numbers("path", [None, Some(3)])?;
    let points: Vec<_> = points.as_chunks().0.iter().map(|&point| Point3::from(point)).collect();
    match arrays.number("path_spacing")? {
        spacing if spacing > 0.0 => Ok(Path::from_points(&points, spacing)),
        found => Err(Problem::array("path_spacing", "a number above 0", found)),
    }
}

#[cfg(test)]
mod tests;
