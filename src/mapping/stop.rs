//! The signal that ends a long computation early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
}
