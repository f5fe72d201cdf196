//! Storage of local models that are not in memory.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// A place for tiles outside of memory.
pub trait TileStore: Debug + Send + Sync {
    /// Whether it is worth trying to write.
    fn is_ready(&self) -> bool;

    /// Keeps the bytes of the tile in this column and row, and returns the name to read them by. Earlier bytes of that tile are kept, too.
    ///
    /// # Errors
    /// Bytes that cannot be kept; nothing is kept then.
    fn write(&self, square: [i64; 2], bytes: &[u8]) -> io::Result<String>;

    /// The bytes of this name.
    ///
    /// # Errors
    /// Bytes that cannot be read.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Reports that the bytes of this name are damaged, or cannot be read.
    fn report_lost(&self, name: &str, reason: &str);

    /// The map needs the bytes of this name no longer.
    fn release(&self, name: &str);
}

/// A tile that is kept in a store, for the lifetime of this value.
#[derive(Debug)]
pub struct StoredTile {
    store: Arc<dyn TileStore>,
    name: String,
}

impl StoredTile {
    /// The bytes that are kept in a store under this name.
    pub fn new(store: Arc<dyn TileStore>, name: String) -> Self {
        Self { store, name }
    }

    /// Name of the tile in the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is kept in this store.
    pub(super) fn is_in(&self, store: &Arc<dyn TileStore>) -> bool {
        Arc::ptr_eq(&self.store, store)
    }

    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        self.store.read(&self.name)
    }

    pub(super) fn report_lost(&self, reason: &str) {
        self.store.report_lost(&self.name, reason);
    }
}

impl Drop for StoredTile {
    fn drop(&mut self) {
        self.store.release(&self.name);
    }
}
