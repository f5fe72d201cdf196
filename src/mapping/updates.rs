//! Finished updates, read by other threads.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use streaming_gp::report::UpdateReport;

use super::batcher::{CutReason, MergePoint};
use super::mapper::Mapper;
use crate::field::map::FieldMap;
use crate::sensing::counters::Counters;

/// A finished update and what led to it.
#[derive(Clone, Debug)]
pub struct Update {
    /// Which version of the map it made, counted from 0.
    pub number: u64,
    /// The map after it; none before the first accepted batch.
    pub map: Option<FieldMap>,
    /// The report of learning, or why the batch was rejected; none where another map replaced the previous one.
    pub result: Option<Result<UpdateReport, streaming_gp::streaming::Error>>,
    /// Number of observations.
    pub observations: usize,
    /// Why its batch was cut.
    pub cut: CutReason,
    /// Where batches merged into it had been cut.
    pub merge_points: Vec<MergePoint>,
    /// Duration of learning.
    pub duration: Duration,
    /// The pipeline's counters when learning ended.
    pub counters: Counters,
}

impl Update {
    /// The current map, without an update of this run.
    pub(super) fn without_batch(mapper: &Mapper) -> Self {
        Self {
            number: mapper.progress().versions.saturating_sub(1),
            map: mapper.model().map(),
            result: None,
            observations: 0,
            cut: CutReason::Flush,
            merge_points: Vec::new(),
            duration: Duration::ZERO,
            counters: *mapper.pipeline().counters(),
        }
    }
}

/// The newest finished update, read by other threads. Clones share it.
#[derive(Clone, Debug)]
pub struct Updates {
    shared: Arc<(Mutex<Slot>, Condvar)>,
}

#[derive(Debug)]
struct Slot {
    newest: Option<Arc<Update>>,
    ended: bool,
}

/// The result of waiting for an update.
#[derive(Clone, Debug)]
pub enum Waited {
    /// A newer update.
    Newer(Arc<Update>),
    /// No newer update in time.
    TimedOut,
    /// The mapping thread has ended: there will be no newer update.
    Ended,
}

impl Updates {
    pub(super) fn new(newest: Option<Update>) -> Self {
        let slot = Slot { newest: newest.map(Arc::new), ended: false };
        Self { shared: Arc::new((Mutex::new(slot), Condvar::new())) }
    }

    /// The newest update, if any is finished.
    pub fn newest(&self) -> Option<Arc<Update>> {
        lock(&self.shared.0).newest.clone()
    }

    /// The newest map, if there is one.
    pub fn newest_map(&self) -> Option<FieldMap> {
        self.newest()?.map.clone()
    }

    /// Waits for an update whose number is greater than `than` (any update, for `None`), for `at_most` this long. Returns the
    /// newest; updates in between are skipped.
    pub fn wait_newer(&self, than: Option<u64>, at_most: Duration) -> Waited {
        let (mutex, changed) = &*self.shared;
        let is_newer = |slot: &Slot| slot.newest.as_ref().is_some_and(|update| Some(update.number) > than);
        let waited = changed.wait_timeout_while(lock(mutex), at_most, |slot| !is_newer(slot) && !slot.ended);
        let slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        match &slot.newest {
            Some(update) if is_newer(&slot) => Waited::Newer(Arc::clone(update)),
            _ if slot.ended => Waited::Ended,
            _ => Waited::TimedOut,
        }
    }

    pub(super) fn publish(&self, update: Arc<Update>) {
        self.change(|slot| slot.newest = Some(update));
    }

    fn change(&self, change: impl FnOnce(&mut Slot)) {
        change(&mut lock(&self.shared.0));
        self.shared.1.notify_all();
    }
}

/// Notifies waiting threads when the mapping thread has ended, even by a panic.
pub(super) struct EndNotice(pub(super) Updates);

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.change(|slot| slot.ended = true);
    }
}

/// Locks a value that is always consistent, so that a poisoned mutex is harmless.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
