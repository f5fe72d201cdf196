//! Finished updates, read by other threads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use streaming_gp::UpdateReport;

use super::batcher::{CutReason, MergePoint};
use super::mapper::Mapper;
use crate::field::map::FieldMap;
use crate::sensing::counters::Counters;
use crate::sync::lock;

/// A finished update and what led to it.
#[derive(Clone, Debug)]
pub struct Update {
    /// Version of the map that it made, counted from 0.
    pub number: u64,
    /// The map after it; none before the first accepted batch.
    pub map: Option<FieldMap>,
    /// The frame of the map; empty until it is known.
    pub frame: String,
    /// The report of learning, or why the batch was rejected; none where another map replaced the previous one.
    pub result: Option<Result<UpdateReport, streaming_gp::streaming::Error>>,
    /// Number of observations.
    pub observations: usize,
    /// Why its batch was cut.
    pub cut: CutReason,
    /// The points at which batches merged into it had been cut.
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
            frame: mapper.frame().to_owned(),
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
pub struct Updates(Arc<Mutex<Option<Arc<Update>>>>);

impl Updates {
    pub(super) fn new(newest: Option<Update>) -> Self {
        Self(Arc::new(Mutex::new(newest.map(Arc::new))))
    }

    /// The newest update, if any is finished.
    pub fn newest(&self) -> Option<Arc<Update>> {
        lock(&self.0).clone()
    }

    /// The newest map, if there is one.
    pub fn newest_map(&self) -> Option<FieldMap> {
        self.newest()?.map.clone()
    }

    pub(super) fn publish(&self, update: Arc<Update>) {
        *lock(&self.0) = Some(update);
    }
}
