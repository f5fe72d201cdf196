//! The journal's own thread: all that waits for the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::super::checkpoint::Checkpoint;
use super::super::mapper::Step;
use super::super::worker::lock;
use super::folder::{Append, Disk, Folder, remove, set_aside};
use super::segment::{self, Head};
use super::{Error, Frame, Known, Shared};
use crate::config::Config;

/// How long what was written may wait to be synced.
const SYNC: Duration = Duration::from_millis(500);

/// A segment that has grown to so many bytes is followed by another one.
const SEGMENT: u64 = 64 << 20;

/// Bytes that are gathered before they are written, when more waits.
const GATHERED: usize = 1 << 18;

/// What the mapping thread hands over.
pub(super) enum Entry {
    /// A step that is about to be taken.
    Step { number: u64, step: Step },
    /// Everything as it is before the step of this number, and the settings that hold from there on.
    State { number: u64, checkpoint: Box<Checkpoint>, config: Box<Config> },
    /// Nothing more will come.
    End,
}

/// What runs on the journal's thread.
pub(super) struct Scribe {
    disk: Box<dyn Disk>,
    folder: Folder,
    config: Config,
    frame: Frame,
    shared: Arc<Shared>,
    /// Set aside as soon as a checkpoint makes them dispensable.
    damaged: Vec<std::path::PathBuf>,
    keeping: Keeping,
    /// Encoded, not written.
    buffer: Vec<u8>,
    synced: Instant,
}

/// Whether steps are kept.
enum Keeping {
    /// They will be, in a new segment that begins with the `next`.
    Ready { next: u64 },
    /// They are.
    Open(Segment),
    /// They are not before a checkpoint is safe.
    Lost,
}

/// The segment that is being written.
struct Segment {
    file: Box<dyn Append>,
    /// Number of the step that has to come next.
    next: u64,
    bytes: u64,
    is_synced: bool,
}

/// Tells those who wait that the thread has ended, however it ended.
struct EndNotice(Arc<Shared>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        lock(&self.0.status).has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Scribe {
    pub(super) fn new(
        disk: Box<dyn Disk>,
        folder: Folder,
        config: &Config,
        frame: Frame,
        shared: Arc<Shared>,
        damaged: Vec<std::path::PathBuf>,
        is_new: bool,
    ) -> Self {
        let config = config.clone();
        // A map that has come some way needs a checkpoint first, and so does one whose folder is not there yet.
        let keeping = if is_new && folder.is_held() { Keeping::Ready { next: 0 } } else { Keeping::Lost };
        let (buffer, synced) = (Vec::with_capacity(2 * GATHERED), Instant::now());
        Self { disk, folder, config, frame, shared, damaged, keeping, buffer, synced }
    }

    pub(super) fn run(self, entries: &Receiver<Entry>) {
        let _notice = EndNotice(Arc::clone(&self.shared));
        // Dropped before the notice: who is told finds the folder free.
        let mut scribe = self;
        while scribe.gather(entries) {
            scribe.write();
            if entries.is_empty() {
                scribe.catch_up();
            }
            if scribe.synced.elapsed() >= SYNC {
                scribe.sync();
            }
        }
        scribe.write();
        scribe.sync();
    }

    /// Takes what has come, waiting no longer than a sync may; whether more can come.
    fn gather(&mut self, entries: &Receiver<Entry>) -> bool {
        let mut next = match entries.recv_timeout(SYNC) {
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
            Ok(entry) => Some(entry),
        };
        while let Some(entry) = next {
            if matches!(entry, Entry::End) {
                return false;
            }
            self.take(entry);
            next = if self.buffer.len() < GATHERED { entries.try_recv().ok() } else { None };
        }
        true
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Step { number, step } => {
                if let Step::Configure(config) | Step::Reset(config) = &step {
                    self.config = (**config).clone();
                }
                self.note(number, &step);
            }
            Entry::State { number, checkpoint, config } => {
                self.write();
                self.sync();
                self.config = *config;
                self.save(number, &checkpoint);
            }
            Entry::End => {}
        }
    }

    /// Encodes a step into the open segment, or a new one.
    fn note(&mut self, number: u64, step: &Step) {
        if matches!(self.keeping, Keeping::Ready { next } if next == number) {
            self.begin(number);
        }
        let outcome = match &mut self.keeping {
            Keeping::Open(segment) if segment.next == number => {
                segment.next += 1;
                segment::append_step(&mut self.buffer, number, step)
            }
            Keeping::Open(_) | Keeping::Ready { .. } => Err(std::io::Error::other("steps are missing")),
            Keeping::Lost => {
                self.know(|known| known.status.lost_steps += 1);
                return;
            }
        };
        if let Err(error) = outcome {
            self.lose(&error);
        }
    }

    /// Begins a new segment.
    fn begin(&mut self, first: u64) {
        let path = self.folder.segment(first);
        let frame = self.frame.get().map_or_else(String::new, |frame| frame.to_string());
        let config = self.config.to_toml().unwrap_or_default();
        let head = Head { magmap_version: env!("CARGO_PKG_VERSION").to_owned(), frame, config };
        self.buffer.clear();
        let made = segment::begin(&mut self.buffer, first, &head).and_then(|()| {
            // One that is there already was damaged from its first step on, or ended before it.
            if path.exists() {
                self.damaged.retain(|damaged| *damaged != path);
                match segment::is_blank(&std::fs::read(&path)?, first) {
                    true => remove(&path),
                    false => tell_set_aside(&path),
                }
            }
            self.disk.create(&path)
        });
        match made {
            Ok(file) => self.keeping = Keeping::Open(Segment { file, next: first, bytes: 0, is_synced: true }),
            Err(error) => self.lose(&error),
        }
    }

    /// Writes what was gathered.
    fn write(&mut self) {
        let Keeping::Open(segment) = &mut self.keeping else {
            self.buffer.clear();
            return;
        };
        if self.buffer.is_empty() {
            return;
        }
        let outcome = segment.file.append(&self.buffer);
        segment.bytes += self.buffer.len() as u64;
        segment.is_synced = false;
        let (written, is_full) = (segment.next, segment.bytes > SEGMENT);
        self.buffer.clear();
        match outcome {
            Ok(()) => {
                self.know(|known| known.status.written = written);
                if is_full {
                    self.sync();
                    self.keeping = Keeping::Ready { next: written };
                }
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Nothing waits to be written.
    fn catch_up(&self) {
        if std::mem::take(&mut lock(&self.shared.status).status.is_behind) {
            log::info!("the journal is no longer behind");
        }
    }

    fn sync(&mut self) {
        self.synced = Instant::now();
        if let Keeping::Open(segment) = &mut self.keeping
            && !std::mem::replace(&mut segment.is_synced, true)
            && let Err(error) = segment.file.sync()
        {
            self.lose(&error);
        }
    }

    /// Writes a checkpoint; from there on steps are kept, in a new segment.
    fn save(&mut self, number: u64, checkpoint: &Checkpoint) {
        let outcome = match self.folder.take(self.config.node.earlier_maps) {
            Ok(()) => {
                let path = self.folder.checkpoint(number);
                // Where the first step after a damaged checkpoint is damaged too, the map is gone on with from just there.
                if self.damaged.contains(&path) && path.exists() {
                    self.damaged.retain(|damaged| *damaged != path);
                    tell_set_aside(&path);
                }
                self.disk.write(&path, checkpoint).map_err(Error::from)
            }
            Err(error) => Err(error),
        };
        let was_lost = lock(&self.shared.status).status.lost.is_some();
        if let Err(error) = &outcome {
            let is_kept = match self.keeping {
                // A state that comes after a gap, or of another map, is not what the segment leads to.
                Keeping::Open(Segment { next, .. }) | Keeping::Ready { next } => next == number,
                Keeping::Lost => was_lost,
            };
            if !is_kept {
                self.lose(&std::io::Error::other(error.to_string()));
            }
        }
        // Who waits for the checkpoint finds the folder as it stays.
        if outcome.is_ok() {
            self.clear_up(number);
        }
        self.know(|known| {
            known.status.pending_checkpoints -= 1;
            known.has_failed = outcome.is_err();
            known.status.failed_checkpoints += u64::from(outcome.is_err());
            if outcome.is_ok() {
                known.status.lost = None;
                known.status.checkpoint = Some(number);
                known.status.written = number;
            }
        });
        match outcome {
            Ok(()) => {
                self.keeping = Keeping::Ready { next: number };
                if was_lost {
                    log::info!("the journal is kept again: everything so far is in a checkpoint");
                }
            }
            Err(error) => log::error!("{error}; it is tried again"),
        }
    }

    /// Removes what neither this checkpoint nor the one before it needs, and sets aside what is damaged.
    fn clear_up(&mut self, newest: u64) {
        self.damaged.drain(..).filter(|path| path.exists()).for_each(|path| tell_set_aside(&path));
        let (Ok(checkpoints), Ok(segments)) = (self.folder.checkpoints(), self.folder.segments()) else { return };
        let before = checkpoints.iter().rev().map(|(number, _)| *number).find(|number| *number < newest);
        let Some(needed_from) = before else { return };
        for (number, path) in &checkpoints {
            if *number < needed_from {
                remove(path);
            }
        }
        // A segment ends where the next one begins.
        for pair in segments.windows(2) {
            if pair[1].0 <= needed_from {
                remove(&pair[0].1);
            }
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        let next = match self.keeping {
            Keeping::Open(Segment { next, .. }) => next,
            Keeping::Ready { .. } | Keeping::Lost => 0,
        };
        self.keeping = Keeping::Lost;
        self.buffer.clear();
        self.know(|known| {
            known.status.lost = Some(error.to_string());
            known.status.lost_steps += next.saturating_sub(known.status.written);
        });
        log::error!(
            "the journal is not kept any more: {error} ({}); mapping goes on, but a crash now would cost what was mapped since",
            self.folder.path().display()
        );
    }

    fn know(&self, change: impl FnOnce(&mut Known)) {
        change(&mut lock(&self.shared.status));
        self.shared.changed.notify_all();
    }
}

/// Gives a damaged file another name, and says so.
fn tell_set_aside(path: &std::path::Path) {
    match set_aside(path, "damaged") {
        Ok(aside) => log::warn!("{} is damaged; it is kept as {}", path.display(), aside.display()),
        Err(error) => log::error!("{} is damaged and cannot be set aside: {error}", path.display()),
    }
}
