//! Writes a map into its file while it is made: a write-ahead log of the steps that lead to it, its trajectory, and checkpoints.
//!
//! ```text
//! mapping thread ── steps, batches, checkpoints ── writing thread ── the file of the map
//! (waits only                                      (may be slow
//!  before learning)                                 or fail)
//! ```
//!
//! A step is written before the map that it leads to is published, and at least twice a second. A checkpoint replaces the steps before
//! the previous one, so that the newest state can be recovered from the last checkpoint or, if that is damaged, from the one before.
//!
//! Mapping never fails because of the disk. If the file cannot be written (disk full, read-only, too slow), mapping continues, the loss
//! is reported ([`MapLogStatus`]), and a checkpoint is retried until it is safe; from then on every step is written again.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::Error;
use super::checkpoint::Checkpoint;
use super::database::{Batch, Database};
use super::status::{MapLogStatus, Shared};
use super::writer::{Entry, Switch, Writer};
use crate::field::tile_store::TileStore;
use crate::mapping::mapper::{Mapper, Step};
use crate::mapping::step_log::{ReadTrajectory, StepLog};
use crate::sensing::reading::Observation;
use crate::sync::lock;

/// Most steps waiting to be written: minutes of driving, in some megabytes.
pub(super) const MAX_WAITING: usize = 65_536;

/// Most bytes of the trajectory that wait for a disk that cannot be written: days of driving.
const MOST_PENDING: usize = 64 << 20;

/// After this many steps a checkpoint is due even if nothing was learnt, so that a robot that stands still does not fill the disk:
/// an hour at 80 measurements a second, some 20 megabytes.
pub(super) const MOST_STEPS: u64 = 300_000;

/// Longest wait of the mapping thread, with a live source, for the steps of a batch to be written before it learns from it.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Pause before a checkpoint is retried: after the first failure, and at most. It doubles with every failure.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Longest wait for the disk when the map is saved, replaced or closed.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(20);

/// How a map is written.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether nothing is written before a reading is used: a robot that is only switched on and off leaves its file unchanged.
    pub waits: bool,
    /// Whether the map is saved when it is closed.
    pub saves_at_end: bool,
    /// Most earlier maps of the same name that are kept.
    pub earlier_maps: usize,
    /// Why nothing can be written now, if so.
    pub trouble: Option<String>,
}

/// Reports what is written of a map, and requests changes of its file on the mapping thread.
#[derive(Clone, Debug)]
pub struct MapLogHandle {
    entries: Sender<Entry>,
    shared: Arc<Shared>,
}

/// Answers when something is in the file, or says why it is not.
pub(crate) type Reply<T> = Receiver<Result<T, String>>;

impl MapLogHandle {
    /// The current status.
    pub fn status(&self) -> MapLogStatus {
        MapLogStatus { waits: self.shared.is_deferred(), ..lock(&self.shared.status).clone() }
    }

    /// The file in which the map is.
    pub fn database(&self) -> Arc<Database> {
        Arc::clone(&lock(&self.shared.database))
    }

    /// Saves the map as it is now: queues a checkpoint.
    pub(crate) fn save(&self, mapper: &Mapper) -> Result<Reply<()>, String> {
        self.write(mapper, true)
    }

    /// Queues a checkpoint.
    fn write(&self, mapper: &Mapper, is_saved: bool) -> Result<Reply<()>, String> {
        *lock(&self.shared.deferred_after) = None;
        let (reply, saved) = bounded(1);
        let checkpoint = Box::new(Checkpoint::of(mapper).map_err(|error| error.to_string())?);
        lock(&self.shared.status).pending_checkpoints += 1;
        let entry = Entry::Checkpoint { checkpoint, is_saved, reply: Some(reply) };
        if self.entries.send_timeout(entry, MAX_CLOSE_WAIT).is_err() {
            lock(&self.shared.status).pending_checkpoints -= 1;
            return Err(no_response());
        }
        Ok(saved)
    }

    /// Continues the map in another file, in which it is saved.
    pub(crate) fn go_on_in(&self, mapper: &Mapper, path: PathBuf) -> Result<Option<PathBuf>, String> {
        *lock(&self.shared.deferred_after) = None;
        self.switch(mapper, Switch::Copy(path))
    }

    /// The map becomes an earlier map, if there is any, and a new one begins.
    pub(crate) fn begin_new(&self, mapper: &Mapper) -> Result<Option<PathBuf>, String> {
        let kept = self.switch(mapper, Switch::New)?;
        self.shared.defer(mapper);
        Ok(kept)
    }

    /// A copy of the map becomes an earlier map: an older state is continued.
    pub(crate) fn keep_copy(&self, mapper: &Mapper) -> Result<Option<PathBuf>, String> {
        // What a process that died had mapped since the map was saved is in the file only as steps.
        *lock(&self.shared.deferred_after) = None;
        self.switch(mapper, Switch::Back)
    }

    /// The map in another file is continued, which lacks these batches.
    pub(crate) fn continue_other(
        &self,
        mapper: &Mapper,
        database: Arc<Database>,
        batches: Vec<Batch>,
    ) -> Result<(), String> {
        self.switch(mapper, Switch::Other(database))?;
        *lock(&self.shared.batches) = batches;
        self.shared.defer(mapper);
        Ok(())
    }

    /// Changes the file, once the map so far is safe in the current one; waits for the disk.
    fn switch(&self, mapper: &Mapper, to: Switch) -> Result<Option<PathBuf>, String> {
        let (reply, done) = bounded(1);
        let checkpoint = Box::new(Checkpoint::of(mapper).map_err(|error| error.to_string())?);
        let entry = Entry::Switch { checkpoint, to, reply };
        self.entries.send_timeout(entry, MAX_CLOSE_WAIT).map_err(|_| no_response())?;
        let (database, kept) = done.recv_timeout(MAX_CLOSE_WAIT).map_err(|_| no_response())??;
        mapper.model().keep_tiles_in(database as Arc<dyn TileStore>);
        Ok(kept)
    }
}

/// Waits until something is in the file.
///
/// # Errors
/// Why it is not.
pub(crate) fn wait_for<T>(reply: &Reply<T>) -> Result<T, String> {
    reply.recv_timeout(MAX_CLOSE_WAIT).map_err(|_| no_response())?
}

fn no_response() -> String {
    format!("the disk did not respond within {} s", MAX_CLOSE_WAIT.as_secs())
}

/// The [`StepLog`] of a map in its file.
pub struct MapLog {
    entries: Sender<Entry>,
    shared: Arc<Shared>,
    /// Number of the step after the last one that was queued.
    next: u64,
    /// Whether a step could not be queued, so that a checkpoint is needed.
    has_gap: bool,
    saves_at_end: bool,
    last_checkpoint: LastCheckpoint,
    retry: Retry,
}

impl MapLog {
    /// Starts to write the map of `mapper`, with batches that its file does not have yet.
    ///
    /// # Errors
    /// [`Error::Spawn`]. A failing disk is not an error but a [`MapLogStatus`].
    pub(super) fn start(
        database: Arc<Database>,
        mapper: &Mapper,
        batches: Vec<Batch>,
        options: Options,
    ) -> Result<Self, Error> {
        let Options { waits, saves_at_end, earlier_maps, trouble } = options;
        let (entries, receiver) = bounded(MAX_WAITING);
        let shared = Arc::new(Shared {
            status: Mutex::new(MapLogStatus { lost: trouble, ..MapLogStatus::default() }),
            changed: Condvar::new(),
            batches: Mutex::new(batches),
            database: Mutex::new(Arc::clone(&database)),
            deferred_after: Mutex::new(None),
        });
        mapper.model().keep_tiles_in(Arc::clone(&database) as Arc<dyn TileStore>);
        let writer = Writer::new(database, earlier_maps, Arc::clone(&shared));
        std::thread::Builder::new()
            .name("map file".into())
            .spawn(move || writer.run(&receiver))
            .map_err(Error::Spawn)?;
        let (last_checkpoint, retry) = Default::default();
        let mut log = Self {
            entries,
            shared,
            next: mapper.progress().steps,
            has_gap: false,
            saves_at_end,
            last_checkpoint,
            retry,
        };
        if waits {
            log.shared.defer(mapper);
        } else {
            log.checkpoint(mapper);
        }
        Ok(log)
    }

    /// Starts to write a new map into a file of its own. What is at this path becomes an earlier map.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub fn create(path: impl Into<PathBuf>, mapper: &Mapper, options: Options) -> Result<Self, Error> {
        Self::start(Arc::new(Database::new(path)), mapper, Vec::new(), options)
    }

    /// Continues a recovered map in its file or, if that is damaged, in a new one.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub fn resume(
        database: Arc<Database>,
        recovered: super::recovery::Recovered,
        options: Options,
    ) -> Result<(Mapper, Self), Error> {
        let database = recovered.file(database);
        let log = Self::start(database, &recovered.mapper, recovered.batches, options)?;
        Ok((recovered.mapper, log))
    }

    /// Reports its status and changes its file, from any thread.
    pub fn handle(&self) -> MapLogHandle {
        MapLogHandle { entries: self.entries.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Starts writing, with a checkpoint, if a reading has been used since the start.
    fn start_if_used(&mut self, mapper: &Mapper) {
        let used = mapper.pipeline().counters().used_readings;
        let is_due = lock(&self.shared.deferred_after).take_if(|before| *before < used).is_some();
        if is_due {
            self.checkpoint(mapper);
        }
    }
}

fn checkpoint_of(mapper: &Mapper, is_saved: bool) -> Option<Entry> {
    match Checkpoint::of(mapper) {
        Ok(checkpoint) => Some(Entry::Checkpoint { checkpoint: Box::new(checkpoint), is_saved, reply: None }),
        Err(error) => {
            log::error!("cannot make a checkpoint: {error}");
            None
        }
    }
}

impl StepLog for MapLog {
    fn append(&mut self, mapper: &Mapper, step: &Step) {
        self.start_if_used(mapper);
        if self.shared.is_deferred() {
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
                    "the map is no longer written: the disk is {MAX_WAITING} steps behind; mapping continues, but a crash would cost \
                     what is mapped from now on"
                );
            }
        }
    }

    fn learnt(&mut self, mapper: &Mapper, observations: &[Observation]) {
        let mut batches = lock(&self.shared.batches);
        if batches.iter().map(|batch| batch.observations.len()).sum::<usize>() < MOST_PENDING {
            batches.push(Batch::learnt(mapper, observations));
        } else {
            log::error!("nothing can be written for so long that {} observations are not kept", observations.len());
        }
    }

    fn sync(&mut self, unlimited: bool) {
        if self.has_gap || self.shared.is_deferred() {
            return;
        }
        // Where the queue is full, writing is behind anyway.
        let _ = self.entries.try_send(Entry::Sync);
        let next = self.next;
        let waits = |status: &mut MapLogStatus| status.written < next && status.lost.is_none() && !status.has_ended;
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
                "the file of the map is behind: the disk takes more than {:.1} s to write; mapping continues, but a crash would cost \
                 what is not written yet",
                MAX_WAIT.as_secs_f64()
            ),
            (true, false) => log::info!("the file of the map is no longer behind"),
            _ => {}
        }
    }

    fn trajectory(&mut self, mapper: &Mapper) -> ReadTrajectory {
        let (handle, expected) = (self.handle(), mapper.model().totals.batches() as usize);
        // What was learnt last is in the file with the next checkpoint.
        let written = (!self.shared.is_deferred()).then(|| handle.write(mapper, false));
        Box::new(move || {
            written.transpose()?.map_or(Ok(()), |written| wait_for(&written))?;
            let mut batches = handle.database().trajectory().map_err(|error| error.to_string())?;
            if batches.len() < expected {
                return Err(format!("the file has {} of {expected} batches of its trajectory", batches.len()));
            }
            batches.truncate(expected);
            Ok(batches)
        })
    }

    fn is_checkpoint_due(&self, mapper: &Mapper) -> bool {
        if self.shared.is_deferred() {
            return false;
        }
        let now = mapper.progress();
        let is_due = now.versions.saturating_sub(self.last_checkpoint.versions)
            >= mapper.config().store.checkpoint_batches
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
        if self.shared.is_deferred() {
            return;
        }
        let Some(checkpoint) = checkpoint_of(mapper, false) else { return };
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
        let Self { entries, shared, saves_at_end, .. } = *self;
        let until = Instant::now() + MAX_CLOSE_WAIT;
        let last = last.filter(|_| !shared.is_deferred()).and_then(|last| checkpoint_of(last, saves_at_end));
        lock(&shared.status).pending_checkpoints += usize::from(last.is_some());
        let end = Entry::End { is_last: last.is_some() };
        let is_sent = last.into_iter().chain([end]).all(|entry| entries.send_deadline(entry, until).is_ok());
        let left = until.saturating_duration_since(Instant::now());
        let waited = shared.changed.wait_timeout_while(lock(&shared.status), left, |status| !status.has_ended);
        let has_ended = waited.is_ok_and(|(status, _)| status.has_ended);
        if !is_sent || !has_ended {
            lock(&shared.status).lost = Some(no_response());
            log::error!("the file of the map could not be closed: {}", no_response());
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
