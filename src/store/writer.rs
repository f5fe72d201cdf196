//! The thread that writes the file of a map, and does everything that waits for the disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::Error;
use super::checkpoint::Checkpoint;
use super::database::{Database, Steps, keep_as_earlier_map, mark_saved};
use super::earlier_maps::{earlier_path, remove_oldest};
use super::status::{MapLogStatus, Shared};
use crate::files::FileError;
use crate::mapping::mapper::Step;
use crate::sync::lock;

/// Longest time between two transactions.
const PAUSE: Duration = Duration::from_millis(500);

/// Number of bytes collected before they are written, while more is queued.
const GATHERED: usize = 1 << 18;

/// An entry of the mapping thread's queue.
pub(super) enum Entry {
    /// A step that is about to be taken.
    Step { number: u64, step: Step },
    /// The queue so far is to be written now.
    Sync,
    /// The complete state, in which the map may be saved; somebody may wait for it.
    Checkpoint { checkpoint: Box<Checkpoint>, is_saved: bool, reply: Option<Sender<Result<(), String>>> },
    /// Continue the map in another file, or another map in the same one, once this state is safe.
    Switch { checkpoint: Box<Checkpoint>, to: Switch, reply: Sender<Result<Switched, String>> },
    /// Nothing follows; the checkpoint before, if any, is the last state.
    End { is_last: bool },
}

/// The file in which the map continues.
pub(super) enum Switch {
    /// A copy at this path. What is there becomes an earlier map.
    Copy(PathBuf),
    /// A new one. The file so far becomes an earlier map.
    New,
    /// The file so far, with an older state. A copy becomes an earlier map.
    Back,
    /// Another file, which exists.
    Other(Arc<Database>),
}

/// The file in which the map continues, and the earlier map that was made.
pub(super) type Switched = (Arc<Database>, Option<PathBuf>);

/// The task of the thread.
pub(super) struct Writer {
    database: Arc<Database>,
    /// Number of earlier maps to keep.
    earlier_maps: usize,
    shared: Arc<Shared>,
    /// Number of the next step; none where steps are not written until a checkpoint is safe.
    next: Option<u64>,
    /// Steps that are not written yet.
    steps: Steps,
    written: Instant,
}

/// Notifies waiting threads when the thread has ended, even by a panic.
struct EndNotice(Arc<Shared>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        lock(&self.0.status).has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Writer {
    pub(super) fn new(database: Arc<Database>, earlier_maps: usize, shared: Arc<Shared>) -> Self {
        let steps = Steps::with_capacity(2 * GATHERED);
        Self { database, earlier_maps, shared, next: None, steps, written: Instant::now() }
    }

    pub(super) fn run(self, entries: &Receiver<Entry>) {
        let _notice = EndNotice(Arc::clone(&self.shared));
        // Dropped before the notice, so that the file is released by then.
        let mut writer = self;
        while writer.gather(entries) {
            if entries.is_empty() {
                writer.catch_up();
            }
        }
    }

    /// Takes queued entries, waiting at most until a transaction is due, and writes them if it is; whether more can follow.
    fn gather(&mut self, entries: &Receiver<Entry>) -> bool {
        let mut is_due = false;
        let mut next = match entries.recv_timeout(PAUSE.saturating_sub(self.written.elapsed())) {
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Entry::End { is_last: false }),
            Ok(entry) => Some(entry),
        };
        while let Some(entry) = next {
            match entry {
                Entry::Step { number, step } => self.append(number, &step),
                Entry::Sync => is_due = true,
                Entry::Checkpoint { checkpoint, is_saved, reply } => {
                    let saved = self.save(&checkpoint, is_saved);
                    // Nobody may be waiting any more.
                    reply.map(|reply| reply.send(saved.map_err(|error| error.to_string())));
                }
                Entry::Switch { checkpoint, to, reply } => {
                    let switched = self.switch(&checkpoint, to).map_err(|error| error.to_string());
                    *lock(&self.shared.database) = Arc::clone(&self.database);
                    let _ = reply.send(switched.map(|kept| (Arc::clone(&self.database), kept)));
                }
                Entry::End { is_last } => {
                    self.write();
                    let is_safe = is_last && !lock(&self.shared.status).has_failed;
                    self.finish(is_safe);
                    return false;
                }
            }
            next = if self.steps.size() < GATHERED { entries.try_recv().ok() } else { None };
        }
        if is_due || self.steps.size() >= GATHERED || self.written.elapsed() >= PAUSE {
            self.write();
        }
        true
    }

    fn append(&mut self, number: u64, step: &Step) {
        let result = match &mut self.next {
            Some(next) if *next == number => {
                *next += 1;
                self.steps.push(number, step)
            }
            Some(_) => Err(io::Error::other("steps are missing")),
            None => {
                self.update_status(|status| status.lost_steps += 1);
                return;
            }
        };
        if let Err(error) = result {
            self.lose(&error);
        }
    }

    /// Writes what was gathered, in one transaction.
    fn write(&mut self) {
        self.written = Instant::now();
        let Some(next) = self.next else { return };
        let batches = self.shared.take_batches(next);
        if self.steps.size() == 0 && batches.is_empty() {
            return;
        }
        let result = self.database.append(&self.steps, &batches);
        self.steps.clear();
        match result {
            Ok(()) => self.update_status(|status| status.written = next),
            Err(error) => {
                lock(&self.shared.batches).splice(0..0, batches);
                self.lose(&error);
            }
        }
    }

    /// Clears the status "behind" once nothing is queued.
    fn catch_up(&self) {
        if std::mem::take(&mut lock(&self.shared.status).is_behind) {
            log::info!("the file of the map is no longer behind");
        }
    }

    /// Writes a checkpoint.
    fn save(&mut self, checkpoint: &Checkpoint, is_saved: bool) -> Result<(), Error> {
        self.write();
        let number = checkpoint.stream.progress.steps;
        let result = self.write_checkpoint(checkpoint, is_saved);
        let was_lost = lock(&self.shared.status).lost.is_some();
        if let Err(error) = &result {
            // After a gap, or with another map, the steps do not lead to the checkpoint.
            let is_kept = self.next.map_or(was_lost, |next| next == number);
            if !is_kept {
                self.lose(&io::Error::other(error.to_string()));
            }
        }
        self.update_status(|status| {
            status.pending_checkpoints -= 1;
            status.has_failed = result.is_err();
            status.failed_checkpoints += u64::from(result.is_err());
            if result.is_ok() {
                status.lost = None;
                status.checkpoint = Some(number);
                status.written = number;
            }
        });
        match &result {
            Ok(()) => {
                self.next = Some(number);
                if was_lost {
                    log::info!("the map is written again: everything so far is in a checkpoint");
                }
            }
            Err(error) => log::error!("{error}; it will be retried"),
        }
        result
    }

    fn write_checkpoint(&mut self, checkpoint: &Checkpoint, is_saved: bool) -> Result<(), Error> {
        self.database.begin(self.earlier_maps)?;
        let batches = self.shared.take_batches(checkpoint.stream.progress.steps);
        checkpoint.write(&self.database, is_saved, &batches).map_err(|error| {
            lock(&self.shared.batches).splice(0..0, batches);
            self.database.unwritten(error)
        })
    }

    /// Continues in another file, and returns the earlier map that was made.
    fn switch(&mut self, checkpoint: &Checkpoint, to: Switch) -> Result<Option<PathBuf>, Error> {
        if matches!(to, Switch::Copy(_) | Switch::Back) || self.database.is_begun() {
            lock(&self.shared.status).pending_checkpoints += 1;
            self.save(checkpoint, !matches!(to, Switch::Back))?;
        }
        let mut kept = None;
        match to {
            Switch::Back => {
                let path = earlier_path(self.database.path());
                self.database.copy_to(&path).map_err(FileError::of("keep the map so far as", &path, ""))?;
                mark_saved(&path)?;
                remove_oldest(self.database.path(), self.earlier_maps);
                return Ok(Some(path));
            }
            Switch::Copy(path) => {
                kept = keep_as_earlier_map(&path, self.earlier_maps)?;
                self.database.copy_to(&path).map_err(FileError::of("write the map", &path, ""))?;
                let database = Arc::new(Database::open(path)?);
                database.begin(self.earlier_maps)?;
                self.finish(true);
                self.database = database;
                return Ok(kept);
            }
            Switch::New => {
                self.finish(true);
                kept = self.database.keep_as_earlier_map(self.earlier_maps)?;
                self.database = Arc::new(Database::new(self.database.path()));
            }
            Switch::Other(database) => {
                self.finish(true);
                self.database = database;
            }
        }
        self.next = None;
        Ok(kept)
    }

    /// Closes the file, so that one is left.
    fn finish(&self, is_last: bool) {
        if let Err(error) = self.database.finish(is_last) {
            // Nothing is lost: what is in a second file beside it belongs to it.
            log::warn!("{}", self.database.unwritten(error));
        }
    }

    fn lose(&mut self, error: &io::Error) {
        let next = self.next.take().unwrap_or(0);
        self.steps.clear();
        self.update_status(|status| {
            status.lost = Some(error.to_string());
            status.lost_steps += next.saturating_sub(status.written);
        });
        log::error!(
            "the map is no longer written: {error} ({}); mapping continues, but a crash would cost what is mapped from now on",
            self.database.path().display()
        );
    }

    fn update_status(&self, change: impl FnOnce(&mut MapLogStatus)) {
        change(&mut lock(&self.shared.status));
        self.shared.changed.notify_all();
    }
}
