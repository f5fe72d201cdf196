//! The journal: every step that leads to a map, and from time to time the whole map, on disk.
//!
//! ```text
//! mapping thread ── steps, states ── journal's thread ── steps-000000000000.journal
//! (never waits,                      (may be slow,       checkpoint-000000004242.npz
//!  but before it learns)              or fail)           steps-000000004242.journal
//! ```
//!
//! A step is written before the map that it leads to is published, and synced at least once a second and before each checkpoint.
//! After a checkpoint a new segment begins; what is older than the last checkpoint but one is removed when the last one is safe.
//! So two ways lead to the newest map: from the last checkpoint, and, should that be damaged, from the one before.
//!
//! Mapping never fails for the journal's sake. Where it cannot be written (disk full, read-only, too slow), mapping goes on, the
//! loss is told ([`Status`]), and a whole state is tried again and again until it is safe; from there on everything is kept again.
//!
//! [`Folder::recover`] takes the newest good checkpoint and the steps since, which lead to the same map to the last bit.

mod error;
mod folder;
mod recovery;
mod segment;
#[cfg(test)]
mod tests;
mod writing;

use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};

use self::folder::{Disk, RealDisk};
use self::writing::{Entry, Scribe};
use super::checkpoint::Checkpoint;
use super::field_model::FieldModel;
use super::keeper::Keeper;
use super::mapper::{Mapper, Step};
use super::worker::lock;
use crate::config::Config;

pub use self::error::Error;
pub use self::folder::{Existing, Folder};
pub use self::recovery::{Gaps, Look, Recovered, look};
pub use self::segment::Damage;

/// The steps in the bytes of a segment, and what is damaged between them, as recovery finds them: for tests with files that may hold
/// anything.
///
/// # Errors
/// What is no segment at all.
#[doc(hidden)]
pub fn steps_of(bytes: &[u8]) -> Result<(Vec<Step>, Vec<Damage>), Damage> {
    let mut segment = segment::Segment::open(bytes, 0)?;
    let (mut steps, mut damages) = (Vec::new(), Vec::new());
    while let Some(item) = segment.next() {
        match item {
            segment::Item::Step(_, step) => steps.push(step),
            segment::Item::Damage(damage) => damages.push(damage),
        }
    }
    Ok((steps, damages))
}

/// Steps that may wait to be written: minutes of driving, in some megabytes.
const WAITING: usize = 65_536;

/// After so many steps a checkpoint is due also where nothing was learnt, so that a robot that stands all night fills no disk: an
/// hour at 80 measurements a second, in some 16 megabytes.
const MOST_STEPS: u64 = 300_000;

/// How long the mapping thread waits at most, with a live source, for the steps of a batch to be written before it learns from it.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long after a failure a whole state is tried again: first, and at most. The time doubles from failure to failure.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// How long the end waits for a disk that does not answer.
const LAST_PATIENCE: Duration = Duration::from_secs(20);

/// The frame of the map, once it is known.
pub type Frame = Arc<OnceLock<Arc<str>>>;

/// How the journal is doing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Why steps are not kept, where they are not: after a crash now, the map would be as it was when this began.
    pub lost: Option<String>,
    /// Whether writing is behind, so that maps are published before the steps that lead to them are written.
    pub is_behind: bool,
    /// Steps of the map that were written, or are in a checkpoint.
    pub written: u64,
    /// Steps of the map that the newest safe checkpoint holds.
    pub checkpoint: Option<u64>,
    /// Steps that were not written, all in all; a later checkpoint may hold what they led to.
    pub lost_steps: u64,
    /// Checkpoints that could not be written.
    pub failed_checkpoints: u64,
    /// Checkpoints that wait to be written.
    pub pending_checkpoints: usize,
}

/// What both threads know.
#[derive(Debug, Default)]
struct Shared {
    status: Mutex<Known>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    status: Status,
    /// Whether the last state could not be written.
    has_failed: bool,
    /// Whether the journal's thread has ended.
    has_ended: bool,
}

/// Tells how the journal is doing, from any thread.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<Shared>);

impl Gauge {
    /// How it is doing.
    pub fn status(&self) -> Status {
        lock(&self.0.status).status.clone()
    }
}

/// A journal that is being written: the [`Keeper`] of a field's map.
pub struct Journal {
    entries: Sender<Entry>,
    shared: Arc<Shared>,
    /// The settings as they are now.
    config: Config,
    frame: Frame,
    /// The number that the next step will have, when all before it were handed over.
    noted: u64,
    /// Whether a step could not be handed over, so that only a whole state helps.
    has_gap: bool,
    /// Versions of the map, and steps, in the last state handed over.
    kept: Kept,
    retry: Retry,
    /// While nothing is written yet: the readings that were used before. The first one that is used since wakes it.
    asleep: Option<u64>,
}

impl Journal {
    /// Starts a journal in a folder, or one that is [`wanted`](Folder::wanted), where `mapper` is now. A map that has come some way
    /// is written at once, and so that it stays the newest; then `damaged` files are set aside.
    ///
    /// # Errors
    /// [`Error::Spawn`]. A disk that fails is no error but a [`Status`].
    pub fn start(
        folder: Folder,
        config: &Config,
        frame: Frame,
        mapper: &Mapper<FieldModel>,
        damaged: Vec<std::path::PathBuf>,
    ) -> Result<Self, Error> {
        Self::start_on(Box::new(RealDisk), folder, config, frame, mapper, damaged, None)
    }

    /// The same, but nothing on disk changes before a reading is used: a robot that is only switched on and off leaves its folder
    /// as it was.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_first_reading(
        folder: Folder,
        config: &Config,
        frame: Frame,
        mapper: &Mapper<FieldModel>,
        damaged: Vec<std::path::PathBuf>,
    ) -> Result<Self, Error> {
        let used = mapper.pipeline().counters().used_readings;
        Self::start_on(Box::new(RealDisk), folder, config, frame, mapper, damaged, Some(used))
    }

    /// `asleep` holds the readings that were used before, of a journal that waits for the next one.
    fn start_on(
        disk: Box<dyn Disk>,
        folder: Folder,
        config: &Config,
        frame: Frame,
        mapper: &Mapper<FieldModel>,
        damaged: Vec<std::path::PathBuf>,
        asleep: Option<u64>,
    ) -> Result<Self, Error> {
        let (entries, receiver) = bounded(WAITING);
        let shared = Arc::new(Shared::default());
        lock(&shared.status).status.lost = folder.trouble().map(str::to_owned);
        let is_new = mapper.standing().steps == 0 && asleep.is_none();
        let scribe = Scribe::new(disk, folder, config, Arc::clone(&frame), Arc::clone(&shared), damaged, is_new);
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || scribe.run(&receiver))
            .map_err(Error::Spawn)?;
        let mut journal = Self {
            entries,
            shared,
            config: config.clone(),
            frame,
            noted: mapper.standing().steps,
            has_gap: false,
            kept: Kept::default(),
            retry: Retry::default(),
            asleep,
        };
        if !is_new {
            journal.keep(mapper);
        }
        Ok(journal)
    }

    /// Tells how it is doing.
    pub fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.shared))
    }

    /// Writes from now on, beginning with the whole state, if a reading was used since the start.
    fn wake(&mut self, mapper: &Mapper<FieldModel>) {
        if self.asleep.is_some_and(|used| used < mapper.pipeline().counters().used_readings) {
            self.asleep = None;
            self.keep(mapper);
        }
    }

    fn state_of(&self, mapper: &Mapper<FieldModel>) -> Option<Entry> {
        let frame = self.frame.get().map_or("", |frame| frame);
        match Checkpoint::of(&self.config, mapper, frame) {
            Ok(checkpoint) => {
                let config = Box::new(self.config.clone());
                Some(Entry::State { number: mapper.standing().steps, checkpoint: Box::new(checkpoint), config })
            }
            Err(error) => {
                log::error!("no checkpoint can be made: {error}");
                None
            }
        }
    }
}

impl Keeper<FieldModel> for Journal {
    fn note(&mut self, mapper: &Mapper<FieldModel>, step: &Step) {
        self.wake(mapper);
        if let Step::Configure(config) | Step::Reset(config) = step {
            self.config = (**config).clone();
        }
        if self.asleep.is_some() {
            return;
        }
        let number = mapper.standing().steps;
        if self.has_gap {
            lock(&self.shared.status).status.lost_steps += 1;
            return;
        }
        match self.entries.try_send(Entry::Step { number, step: step.clone() }) {
            Ok(()) => self.noted = number + 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.has_gap = true;
                let mut known = lock(&self.shared.status);
                known.status.lost_steps += 1;
                known.status.lost = Some(format!("the disk is {WAITING} steps behind"));
                log::error!(
                    "the journal is not kept any more: the disk is {WAITING} steps behind; mapping goes on, but a crash now \
                     would cost what was mapped since"
                );
            }
        }
    }

    fn settle(&mut self, patient: bool) {
        if self.has_gap || self.asleep.is_some() {
            return;
        }
        let noted = self.noted;
        let waits = |known: &mut Known| known.status.written < noted && known.status.lost.is_none() && !known.has_ended;
        let known = lock(&self.shared.status);
        if patient {
            drop(self.shared.changed.wait_while(known, waits));
            return;
        }
        // Who was late once is not waited for before everything is written.
        let patience = if known.status.is_behind { Duration::ZERO } else { PATIENCE };
        let waited = self.shared.changed.wait_timeout_while(known, patience, waits);
        let Ok((mut known, timeout)) = waited else { return };
        let was_behind = std::mem::replace(&mut known.status.is_behind, timeout.timed_out());
        match (was_behind, timeout.timed_out()) {
            (false, true) => log::warn!(
                "the journal is behind: the disk takes more than {:.1} s to write; mapping goes on, a crash now would cost what \
                 is not written yet",
                PATIENCE.as_secs_f64()
            ),
            (true, false) => log::info!("the journal is no longer behind"),
            _ => {}
        }
    }

    fn wants_state(&self, mapper: &Mapper<FieldModel>) -> bool {
        if self.asleep.is_some() {
            return false;
        }
        let now = mapper.standing();
        let is_due = now.versions.saturating_sub(self.kept.versions) >= self.config.journal.checkpoint_batches
            || now.steps.saturating_sub(self.kept.steps) >= MOST_STEPS;
        // Looking costs a lock: only when there may be a reason.
        if !is_due && !self.retry.is_due() {
            return false;
        }
        let known = lock(&self.shared.status);
        let has_trouble = self.has_gap || known.has_failed || known.status.lost.is_some();
        known.status.pending_checkpoints == 0 && if has_trouble { self.retry.is_due() } else { is_due }
    }

    fn keep(&mut self, mapper: &Mapper<FieldModel>) {
        if self.asleep.is_some() {
            return;
        }
        let Some(state) = self.state_of(mapper) else { return };
        self.kept = Kept { versions: mapper.standing().versions, steps: mapper.standing().steps };
        let has_failed = lock(&self.shared.status).has_failed;
        self.retry.tried(has_failed || self.has_gap);
        lock(&self.shared.status).status.pending_checkpoints += 1;
        if self.entries.try_send(state).is_ok() {
            self.has_gap = false;
            self.noted = mapper.standing().steps;
        } else {
            lock(&self.shared.status).status.pending_checkpoints -= 1;
            self.has_gap = true;
        }
    }

    fn close(self: Box<Self>, last: Option<&Mapper<FieldModel>>) {
        let Self { entries, shared, .. } = &*self;
        let until = Instant::now() + LAST_PATIENCE;
        let last = last.filter(|_| self.asleep.is_none()).and_then(|mapper| self.state_of(mapper));
        lock(&shared.status).status.pending_checkpoints += usize::from(last.is_some());
        let is_sent = last.into_iter().chain([Entry::End]).all(|entry| entries.send_deadline(entry, until).is_ok());
        let left = until.saturating_duration_since(Instant::now());
        let waited = shared.changed.wait_timeout_while(lock(&shared.status), left, |known| !known.has_ended);
        let has_ended = waited.is_ok_and(|(known, _)| known.has_ended);
        if !is_sent || !has_ended {
            log::error!(
                "the journal could not be closed within {} s: the disk does not answer",
                LAST_PATIENCE.as_secs()
            );
        }
    }
}

/// How far the map was when a state was handed over.
#[derive(Default)]
struct Kept {
    versions: u64,
    steps: u64,
}

/// When a whole state is tried again.
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

    /// A state is being tried, after one that failed or not.
    fn tried(&mut self, has_failed: bool) {
        self.pause = if has_failed { (2 * self.pause).min(RETRY[1]) } else { RETRY[0] };
        self.due = Instant::now() + self.pause;
    }
}
