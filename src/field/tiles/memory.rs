//! The tiles that are in memory.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::field::tile_store::TileStore;

/// Something that can be in memory, or in a store only.
pub(super) trait Resident: Debug + Send + Sync {
    /// Approximate memory, in bytes.
    fn bytes(&self) -> usize;

    /// Frees its memory; writes it first if no store has it.
    ///
    /// # Errors
    /// A tile that cannot be written; it is then still in memory.
    fn evict(&self, store: Option<&Arc<dyn TileStore>>) -> io::Result<()>;
}

/// Bounds the memory of tiles: those that were used longest ago are kept in a store only, once there is one.
#[derive(Debug, Default)]
pub(crate) struct TileMemory(Mutex<InMemory>);

#[derive(Debug, Default)]
struct InMemory {
    /// Most bytes; 0 for no bound.
    limit: usize,
    store: Option<Arc<dyn TileStore>>,
    /// The tiles in memory, the one that was used last at the end.
    tiles: Vec<Weak<dyn Resident>>,
}

impl TileMemory {
    /// Changes the bound, in megabytes; 0 for none.
    pub(super) fn set_limit(&self, megabytes: f64) {
        self.resident().limit = (1e6 * megabytes) as usize;
    }

    /// Evicts tiles to this store from now on.
    pub(super) fn set_store(&self, store: Arc<dyn TileStore>) {
        self.resident().store = Some(store);
    }

    pub(super) fn store(&self) -> Option<Arc<dyn TileStore>> {
        self.resident().store.clone()
    }

    /// A tile is in memory and in use; evicts others to stay within the bound.
    pub(super) fn use_now(&self, tile: Arc<dyn Resident>) {
        let (excess, store) = {
            let mut resident = self.resident();
            resident
                .tiles
                .retain(|other| other.strong_count() > 0 && !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(&tile)));
            resident.tiles.push(Arc::downgrade(&tile));
            (resident.take_excess(), resident.store.clone())
        };
        let mut excess = excess.into_iter();
        while let Some(oldest) = excess.next() {
            // What cannot be written stays in memory; the store reports it.
            if oldest.evict(store.as_ref()).is_err() {
                let left = std::iter::once(oldest).chain(excess);
                self.resident().tiles.splice(0..0, left.map(|tile| Arc::downgrade(&tile)));
                return;
            }
        }
    }

    fn resident(&self) -> MutexGuard<'_, InMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InMemory {
    /// Removes the tiles that are too many from the list, and returns them in its order. The last one stays.
    fn take_excess(&mut self) -> Vec<Arc<dyn Resident>> {
        if self.limit == 0 {
            return Vec::new();
        }
        let mut bytes = 0;
        let mut fits = |tile: &Weak<dyn Resident>| {
            bytes += tile.upgrade().map_or(0, |tile| tile.bytes());
            bytes <= self.limit
        };
        let fitting = self.tiles.iter().rev().take_while(|tile| fits(tile)).count().max(1);
        let excess = self.tiles.len() - fitting.min(self.tiles.len());
        self.tiles.drain(..excess).filter_map(|tile| tile.upgrade()).collect()
    }
}
