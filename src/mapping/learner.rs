//! What learns from batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::batcher::Batch;
use crate::config::Config;

/// What the mapping thread feeds.
pub trait Learner: Send + 'static {
    /// A finished update: immutable, complete, independent of the learner.
    type Snapshot: Send + Sync + 'static;

    /// Learns from the next batch and returns the map as it is afterwards. A long computation looks at `stop` now and then and,
    /// when it is set, ends early with the best it has.
    fn learn(&mut self, batch: &Batch, stop: &StopSignal) -> Self::Snapshot;

    /// Goes on with the settings of these that may change while it runs.
    fn configure(&mut self, config: &Config);

    /// Forgets everything and begins anew with these settings.
    fn reset(&mut self, config: &Config);

    /// The map as it is.
    fn snapshot(&self) -> Self::Snapshot;

    /// Batches that the map has been taught, from its beginning on.
    fn updates(&self) -> u64;
}

/// Asks a running computation to end at its next opportunity. Clones share one signal, which once set stays set.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Sets the signal.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for code that knows no more than flags.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
