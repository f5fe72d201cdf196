//! Progress of writing a map, as the mapping thread and the writing thread share it.

use std::sync::{Arc, Condvar, Mutex};

use super::database::{Batch, Database};
use crate::mapping::mapper::Mapper;
use crate::sync::lock;

/// Progress of writing a map, and its failures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapLogStatus {
    /// Whether nothing is written before a reading is used.
    pub waits: bool,
    /// Why steps are not being written, if so: a crash would cost everything since then.
    pub lost: Option<String>,
    /// Whether writing is behind, so that maps are published before their steps are written.
    pub is_behind: bool,
    /// Number of steps that are written or in a checkpoint.
    pub written: u64,
    /// Number of steps in the newest safe checkpoint.
    pub checkpoint: Option<u64>,
    /// Number of steps that were not written; a later checkpoint may contain their effect.
    pub lost_steps: u64,
    /// Checkpoints that could not be written.
    pub failed_checkpoints: u64,
    /// Checkpoints that wait to be written.
    pub pending_checkpoints: usize,
    /// Whether the last checkpoint could not be written.
    pub has_failed: bool,
    /// Whether the writing thread has ended.
    pub has_ended: bool,
}

/// State that both threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) status: Mutex<MapLogStatus>,
    pub(super) changed: Condvar,
    /// Batches that are not in the file yet, in the order in which they were learnt. Unlike steps, no checkpoint can replace them.
    pub(super) batches: Mutex<Vec<Batch>>,
    /// The file in which the map is.
    pub(super) database: Mutex<Arc<Database>>,
    /// Number of readings used before, while nothing is written before another one is used.
    pub(super) deferred_after: Mutex<Option<u64>>,
}

impl Shared {
    /// Takes the batches that had been learnt after a number of steps. Others come with later steps: a checkpoint says which batches its
    /// map has.
    pub(super) fn take_batches(&self, steps: u64) -> Vec<Batch> {
        let mut batches = lock(&self.batches);
        let learnt = batches.partition_point(|batch| batch.learnt_after <= steps);
        batches.drain(..learnt).collect()
    }

    pub(super) fn is_deferred(&self) -> bool {
        lock(&self.deferred_after).is_some()
    }

    /// From now on nothing is written before `mapper` uses a reading.
    pub(super) fn defer(&self, mapper: &Mapper) {
        *lock(&self.deferred_after) = Some(mapper.pipeline().counters().used_readings);
    }
}
