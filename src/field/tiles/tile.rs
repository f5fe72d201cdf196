//! A tile's state, in memory or in a file.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::grid::{Square, TileCounts};
use super::memory::{Resident, TileMemory};
use super::row::{from_row, to_row};
use crate::arrays::Problem;
use crate::config::Config;
use crate::field::posterior::MapPosterior;
use crate::field::process::{ProcessHead, TileProcess};
use crate::field::sensor_bias::BiasInformation;
use crate::field::tile_store::{StoredTile, TileStore};

/// A tile's state at some moment: immutable, and shared by the model, its maps and checkpoints. The process may be in a file only, and is
/// then read when it is needed.
#[derive(Debug)]
pub(crate) struct Tile {
    pub(super) square: Square,
    pub(super) counts: TileCounts,
    /// The tile's knowledge of the sensor's bias.
    pub(super) bias: Option<BiasInformation>,
    pub(super) log_parameters: Vec<f64>,
    pub(super) inducing_points: Vec<[f64; 2]>,
    /// Number of inducing points, of axes and components of the sensor's bias where it has them.
    pub(super) size: usize,
    /// Variances of the field from sources below and above the sensor; none where only those below are modelled, or none.
    pub(super) sides: Option<[f64; 2]>,
    pub(super) head: ProcessHead,
    /// The settings with which it is read.
    config: Arc<Config>,
    memory: Arc<TileMemory>,
    content: Mutex<Content>,
}

/// At least one of them is there, unless the file was found to be damaged.
#[derive(Debug)]
struct Content {
    process: Option<TileProcess>,
    stored: Option<Arc<StoredTile>>,
}

impl Tile {
    /// In memory, and in a file if it is `stored`.
    pub(super) fn new(
        square: Square,
        process: TileProcess,
        counts: TileCounts,
        stored: Option<Arc<StoredTile>>,
        config: &Arc<Config>,
        memory: &Arc<TileMemory>,
    ) -> Arc<Self> {
        let posterior = process.posterior();
        let tile = Arc::new(Self {
            square,
            counts,
            bias: process.bias_information(),
            log_parameters: process.log_parameters(),
            inducing_points: posterior.as_ref().map(MapPosterior::inducing_points).unwrap_or_default(),
            size: posterior.as_ref().map_or(0, MapPosterior::size),
            sides: process.vector_kernel().and_then(|kernel| Some([kernel.variance, kernel.variance_above?])),
            head: process.head(),
            config: Arc::clone(config),
            memory: Arc::clone(memory),
            content: Mutex::new(Content { process: Some(process), stored }),
        });
        memory.use_now(tile.clone());
        tile
    }

    /// The process, read if it is not in memory; none where its file cannot be read, which is reported once.
    pub(super) fn process(self: &Arc<Self>) -> Option<TileProcess> {
        let process = self.found()?;
        self.content().process.get_or_insert_with(|| process.clone());
        self.memory.use_now(self.clone());
        Some(process)
    }

    /// The process, which is not in memory afterwards if it was not before.
    fn found(&self) -> Option<TileProcess> {
        let mut content = self.content();
        if content.process.is_none()
            && let Some(stored) = content.stored.take()
        {
            let read = self.read(&stored).inspect_err(|problem| stored.report_lost(self.square, problem)).ok()?;
            content.stored = Some(stored);
            return Some(read);
        }
        content.process.clone()
    }

    fn read(&self, stored: &StoredTile) -> Result<TileProcess, Problem> {
        let ProcessHead { kind, hyperparameter_names, .. } = &self.head;
        let (_, state) = from_row(&stored.read()?, *kind, hyperparameter_names, &self.config.model)?;
        TileProcess::from_state(&self.config, &state).map_err(|error| Problem::Settings(error.to_string()))
    }

    /// The posterior; none before the first batch, and where the process cannot be read.
    pub(super) fn posterior(self: &Arc<Self>) -> Option<MapPosterior> {
        self.process()?.posterior()
    }

    /// Writes it into this store, unless that has it.
    ///
    /// # Errors
    /// A tile that cannot be written, or whose file cannot be read.
    pub(super) fn store(&self, store: &Arc<dyn TileStore>) -> io::Result<Arc<StoredTile>> {
        if let Some(stored) = self.content().stored.as_ref().filter(|stored| stored.is_in(store)) {
            return Ok(Arc::clone(stored));
        }
        // The disk may be slow: the model does not wait for it.
        let process = self.found().ok_or_else(|| io::Error::other("a tile is lost"))?;
        let number = store.write(&to_row(self.square, self.counts, &process.state()))?;
        let stored = Arc::new(StoredTile::new(Arc::clone(store), number));
        self.content().stored = Some(Arc::clone(&stored));
        Ok(stored)
    }

    #[cfg(test)]
    pub(super) fn is_in_memory(&self) -> bool {
        self.content().process.is_some()
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resident for Tile {
    fn bytes(&self) -> usize {
        // Three square matrices.
        3 * size_of::<f64>() * self.size.next_multiple_of(64).pow(2)
    }

    fn evict(&self, store: Option<&Arc<dyn TileStore>>) -> io::Result<()> {
        let is_stored = self.content().stored.is_some();
        if !is_stored {
            self.store(store.filter(|store| store.is_ready()).ok_or(io::ErrorKind::WouldBlock)?)?;
        }
        self.content().process = None;
        Ok(())
    }
}
