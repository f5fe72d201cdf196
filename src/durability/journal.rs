//! The journal: a write-ahead log of the steps that lead to a map, with checkpoints.
//!
//! ```text
//! mapping thread ── steps, checkpoints ── journal's thread ── steps-000000000000.journal
//! (waits only                             (may be slow        checkpoint-000000004242.npz
//!  before learning)                        or fail)           steps-000000004242.journal
//! ```
//!
//! A step is written before the map that it leads to is published, and synced at least once a second and before each checkpoint.
//! After a checkpoint a new segment begins; files older than the second-last checkpoint are removed once the last one is safe. So
//! the newest map can be recovered from the last checkpoint or, if that is damaged, from the one before.
//!
//! Mapping never fails because of the journal. If it cannot be written (disk full, read-only, too slow), mapping continues, the loss
//! is reported ([`JournalStatus`]), and a checkpoint is retried until it is safe; from then on every step is written again.
//!
//! [`Folder::recover`] replays the steps since the newest valid checkpoint, which leads to the same map to the last bit.

mod folder;
mod recovery;
mod segment;
#[cfg(test)]
mod tests;
mod writing;

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};

use self::folder::{Disk, RealDisk};
use self::writing::{Entry, Writer};
use crate::config;
use crate::durability::Error;
use crate::durability::checkpoint::Checkpoint;
use crate::durability::tile_folder::keep_tiles_temporarily;
use crate::field::tile_store::TileStore;
use crate::mapping::mapper::{Mapper, Step};
use crate::mapping::step_log::StepLog;
use crate::mapping::updates::lock;

pub use self::folder::{ExistingJournal, Folder};
pub use self::recovery::{Gaps, Recovered, undamaged_checkpoint};

/// The steps in the bytes of a segment, and the damage between them, for tests with arbitrary files.
///
/// # Errors
/// Why it is not a segment.
#[doc(hidden)]
pub fn steps_of(bytes: &[u8]) -> Result<(Vec<Step>, Vec<String>), String> {
    let mut damages = Vec::new();
    let items = segment::Segment::open(bytes.to_vec(), 0)?.map(|item| item.map_err(|damage| damages.push(damage)));
    let steps = items.flatten().map(|(_, step)| step).collect();
    Ok((steps, damages))
}

/// Most steps waiting to be written: minutes of driving, in some megabytes.
const MAX_WAITING: usize = 65_536;

/// After this many steps a checkpoint is due even if nothing was learnt, so that a robot that stands still does not fill the disk:
/// an hour at 80 measurements a second, some 16 megabytes.
const MOST_STEPS: u64 = 300_000;

/// Longest wait of the mapping thread, with a live source, for the steps of a batch to be written before it learns from it.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Pause before a checkpoint is retried: after the first failure, and at most. It doubles with every failure.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Longest wait for the disk when the journal is closed.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(20);

/// Status of the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalStatus {
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
    /// Whether the journal's thread has ended.
    pub has_ended: bool,
}

/// What both threads share.
#[derive(Debug, Default)]
struct Shared {
    status: Mutex<JournalStatus>,
    changed: Condvar,
}

/// Reports the status of a journal, from any thread.
#[derive(Clone, Debug)]
pub struct JournalMonitor(Arc<Shared>);

impl JournalMonitor {
    /// The current status.
    pub fn status(&self) -> JournalStatus {
        lock(&self.0.status).clone()
    }
}

/// A journal that is being written: the [`StepLog`] of a map.
pub struct Journal {
    entries: Sender<Entry>,
    shared: Arc<Shared>,
    /// Number of the step after the last one that was queued.
    next: u64,
    /// Whether a step could not be queued, so that a checkpoint is needed.
    has_gap: bool,
    last_checkpoint: LastCheckpoint,
    retry: Retry,
    /// Number of readings used before the start, while writing is deferred to the first one after.
    deferred_after: Option<u64>,
}

impl Journal {
    /// Starts a journal from the state of `mapper`, in a folder that may be [`deferred`](Folder::deferred). A map that is not new is
    /// written at once as the newest checkpoint; then `damaged` files are set aside. If it `waits`, nothing on disk changes before a
    /// reading is used: a robot that is only switched on and off leaves its folder unchanged.
    ///
    /// # Errors
    /// [`Error::Spawn`]. A failing disk is not an error but a [`JournalStatus`].
    pub fn start(
        folder: Folder,
        mapper: &Mapper,
        damaged: Vec<std::path::PathBuf>,
        waits: bool,
    ) -> Result<Self, Error> {
        let deferred_after = waits.then_some(mapper.pipeline().counters().used_readings);
        Self::start_on(Box::new(RealDisk), folder, mapper, damaged, deferred_after)
    }

    /// Starts it as [`start`](Self::start) does where the settings ask for one. Without, tiles that are not in memory are in temporary
    /// files.
    ///
    /// # Errors
    /// Those of [`start`](Self::start), and of opening the folder.
    pub fn start_if_enabled(
        settings: &config::Journal,
        folder: impl FnOnce() -> Result<Folder, Error>,
        mapper: &Mapper,
        damaged: Vec<std::path::PathBuf>,
        waits: bool,
    ) -> Result<Option<Self>, Error> {
        if !settings.enabled {
            keep_tiles_temporarily(mapper);
            return Ok(None);
        }
        Self::start(folder()?, mapper, damaged, waits).map(Some)
    }

    fn start_on(
        disk: Box<dyn Disk>,
        folder: Folder,
        mapper: &Mapper,
        damaged: Vec<std::path::PathBuf>,
        deferred_after: Option<u64>,
    ) -> Result<Self, Error> {
        let (entries, receiver) = bounded(MAX_WAITING);
        let shared = Arc::new(Shared::default());
        lock(&shared.status).lost.clone_from(&folder.trouble);
        let is_new = mapper.progress().steps == 0 && deferred_after.is_none();
        mapper.model().keep_tiles_in(Arc::clone(&folder.tiles) as Arc<dyn TileStore>);
        let writer = Writer::new(disk, folder, mapper.config(), Arc::clone(&shared), damaged, is_new);
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.run(&receiver))
            .map_err(Error::Spawn)?;
        let mut journal = Self {
            entries,
            shared,
            next: mapper.progress().steps,
            has_gap: false,
            last_checkpoint: LastCheckpoint::default(),
            retry: Retry::default(),
            deferred_after,
        };
        if !is_new {
            journal.checkpoint(mapper);
        }
        Ok(journal)
    }

    /// Reports its status from any thread.
    pub fn monitor(&self) -> JournalMonitor {
        JournalMonitor(Arc::clone(&self.shared))
    }

    /// Starts writing, with a checkpoint, if a reading has been used since the start.
    fn start_if_used(&mut self, mapper: &Mapper) {
        if self.deferred_after.is_some_and(|used| used < mapper.pipeline().counters().used_readings) {
            self.deferred_after = None;
            self.checkpoint(mapper);
        }
    }

    fn checkpoint_of(mapper: &Mapper) -> Option<Entry> {
        match Checkpoint::of(mapper) {
            Ok(checkpoint) => {
                Some(Entry::Checkpoint { number: mapper.progress().steps, checkpoint: Box::new(checkpoint) })
            }
            Err(error) => {
                log::error!("cannot make a checkpoint: {error}");
                None
            }
        }
    }
}

impl StepLog for Journal {
    fn append(&mut self, mapper: &Mapper, step: &Step) {
        self.start_if_used(mapper);
        if self.deferred_after.is_some() {
            return;
        }
        let number = mapper.progress().steps;
        if self.has_gap {
            lock(&self.shared.status).lost_steps += 1;
            return;
        }
        match self.entries.try_send(Entry::Step { number, step: step.clone() }) {
            Ok(()) => self.next = number + 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.has_gap = true;
                let mut status = lock(&self.shared.status);
                status.lost_steps += 1;
                status.lost = Some(format!("the disk is {MAX_WAITING} steps behind"));
                log::error!(
                    "the journal is no longer written: the disk is {MAX_WAITING} steps behind; mapping continues, but a crash would \
                     cost what is mapped from now on"
                );
            }
        }
    }

    fn sync(&mut self, unlimited: bool) {
        if self.has_gap || self.deferred_after.is_some() {
            return;
        }
        let next = self.next;
        let waits = |status: &mut JournalStatus| status.written < next && status.lost.is_none() && !status.has_ended;
        let status = lock(&self.shared.status);
        if unlimited {
            drop(self.shared.changed.wait_while(status, waits));
            return;
        }
        // While the disk is behind there is no further waiting.
        let max_wait = if status.is_behind { Duration::ZERO } else { MAX_WAIT };
        let waited = self.shared.changed.wait_timeout_while(status, max_wait, waits);
        let Ok((mut status, timeout)) = waited else { return };
        let was_behind = std::mem::replace(&mut status.is_behind, timeout.timed_out());
        match (was_behind, timeout.timed_out()) {
            (false, true) => log::warn!(
                "the journal is behind: the disk takes more than {:.1} s to write; mapping continues, but a crash would cost what \
                 is not written yet",
                MAX_WAIT.as_secs_f64()
            ),
            (true, false) => log::info!("the journal is no longer behind"),
            _ => {}
        }
    }

    fn is_checkpoint_due(&self, mapper: &Mapper) -> bool {
        if self.deferred_after.is_some() {
            return false;
        }
        let now = mapper.progress();
        let is_due = now.versions.saturating_sub(self.last_checkpoint.versions)
            >= mapper.config().journal.checkpoint_batches
            || now.steps.saturating_sub(self.last_checkpoint.steps) >= MOST_STEPS;
        // Avoids the lock unless there may be a reason.
        if !is_due && !self.retry.is_due() {
            return false;
        }
        let status = lock(&self.shared.status);
        let has_trouble = self.has_gap || status.has_failed || status.lost.is_some();
        status.pending_checkpoints == 0 && if has_trouble { self.retry.is_due() } else { is_due }
    }

    fn checkpoint(&mut self, mapper: &Mapper) {
        if self.deferred_after.is_some() {
            return;
        }
        let Some(checkpoint) = Self::checkpoint_of(mapper) else { return };
        self.last_checkpoint = LastCheckpoint { versions: mapper.progress().versions, steps: mapper.progress().steps };
        let has_failed = lock(&self.shared.status).has_failed;
        self.retry.tried(has_failed || self.has_gap);
        lock(&self.shared.status).pending_checkpoints += 1;
        if self.entries.try_send(checkpoint).is_ok() {
            self.has_gap = false;
            self.next = mapper.progress().steps;
        } else {
            lock(&self.shared.status).pending_checkpoints -= 1;
            self.has_gap = true;
        }
    }

    fn close(self: Box<Self>, last: Option<&Mapper>) {
        let Self { entries, shared, deferred_after, .. } = *self;
        let until = Instant::now() + MAX_CLOSE_WAIT;
        let last = last.filter(|_| deferred_after.is_none()).and_then(Self::checkpoint_of);
        lock(&shared.status).pending_checkpoints += usize::from(last.is_some());
        let is_sent = last.is_none_or(|checkpoint| entries.send_deadline(checkpoint, until).is_ok());
        // Nothing follows: the thread ends when it has taken what waits.
        drop(entries);
        let left = until.saturating_duration_since(Instant::now());
        let waited = shared.changed.wait_timeout_while(lock(&shared.status), left, |status| !status.has_ended);
        let has_ended = waited.is_ok_and(|(status, _)| status.has_ended);
        if !is_sent || !has_ended {
            log::error!(
                "the journal could not be closed within {} s: the disk does not respond",
                MAX_CLOSE_WAIT.as_secs()
            );
        }
    }
}

/// Progress of the map at the last checkpoint that was queued.
#[derive(Default)]
struct LastCheckpoint {
    versions: u64,
    steps: u64,
}

/// When a checkpoint is retried.
struct Retry {
    pause: Duration,
    due: Instant,
}

impl Default for Retry {
    fn default() -> Self {
        Self { pause: RETRY[0], due: Instant::now() }
    }
}

impl Retry {
    fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Records an attempt, after one that failed or succeeded.
    fn tried(&mut self, has_failed: bool) {
        self.pause = if has_failed { (2 * self.pause).min(RETRY[1]) } else { RETRY[0] };
        self.due = Instant::now() + self.pause;
    }
}
