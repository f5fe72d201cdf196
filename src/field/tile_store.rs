//! Where local models are kept that are not in memory.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::arrays::{Arrays, Problem};

/// The state of a tile, as a file holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct TileRow {
    /// Column and row of its square.
    pub square: [i64; 2],
    /// Number of targets in its noise baseline.
    pub targets: u64,
    /// Observations that it learnt from.
    pub learnt: u64,
    /// Observations among them that count for it and not for another tile whose halo they are in.
    pub own: u64,
    /// Numbers of the tile.
    pub arrays: Arrays,
}

/// A place for tiles outside of memory.
pub trait TileStore: Debug + Send + Sync {
    /// Whether it is worth trying to write.
    fn is_ready(&self) -> bool;

    /// Keeps a tile, and returns the number to read it by. Earlier states of that tile are kept, too.
    ///
    /// # Errors
    /// Why it cannot; nothing is kept then.
    fn write(&self, tile: &TileRow) -> io::Result<u64>;

    /// The tile with this number.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, number: u64) -> Result<TileRow, Problem>;

    /// Reports that the tile with this number is damaged, or cannot be read.
    fn report_lost(&self, number: u64, square: [i64; 2], reason: &Problem);

    /// The map in memory needs the tile with this number no longer.
    fn release(&self, number: u64);
}

/// A tile that is kept in a store, for the lifetime of this value.
#[derive(Debug)]
pub struct StoredTile {
    store: Arc<dyn TileStore>,
    /// Number of the tile in the store.
    pub number: u64,
}

impl StoredTile {
    /// The tile that is kept in a store under this number.
    pub fn new(store: Arc<dyn TileStore>, number: u64) -> Self {
        Self { store, number }
    }

    /// Whether it is kept in this store.
    pub(super) fn is_in(&self, store: &Arc<dyn TileStore>) -> bool {
        Arc::ptr_eq(&self.store, store)
    }

    pub(super) fn read(&self) -> Result<TileRow, Problem> {
        self.store.read(self.number)
    }

    pub(super) fn report_lost(&self, square: [i64; 2], reason: &Problem) {
        self.store.report_lost(self.number, square, reason);
    }
}

impl Drop for StoredTile {
    fn drop(&mut self) {
        self.store.release(self.number);
    }
}
