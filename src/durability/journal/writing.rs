//! The journal's thread, which does everything that waits for the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::folder::{Append, Disk, Folder, remove, set_aside};
use super::segment::{self, Head};
use super::{JournalStatus, Shared};
use crate::config::Config;
use crate::durability::checkpoint::{Checkpoint, StoredTiles};
use crate::mapping::mapper::Step;
use crate::mapping::updates::lock;

/// Longest time between writing and syncing.
const SYNC: Duration = Duration::from_millis(500);

/// Size in bytes after which a new segment is started.
const SEGMENT: u64 = 64 << 20;

/// Number of bytes collected before they are written, while more is queued.
const GATHERED: usize = 1 << 18;

/// What the mapping thread queues.
pub(super) enum Entry {
    /// A step that is about to be taken.
    Step { number: u64, step: Step },
    /// The complete state before the step of this number.
    Checkpoint { number: u64, checkpoint: Box<Checkpoint> },
}

/// The task of the journal's thread.
pub(super) struct Writer {
    disk: Box<dyn Disk>,
    folder: Folder,
    /// The head of new segments.
    head: Head,
    /// Number of earlier maps to keep.
    earlier_maps: usize,
    shared: Arc<Shared>,
    /// Set aside once a checkpoint makes them unnecessary.
    damaged: Vec<std::path::PathBuf>,
    /// The files of tiles that belong to checkpoints that this journal has written, by their numbers.
    tiles: Vec<(u64, StoredTiles)>,
    segment: SegmentState,
    /// Encoded steps that are not written yet.
    buffer: Vec<u8>,
    synced: Instant,
}

/// Whether steps are written.
enum SegmentState {
    /// They will be, in a new segment that begins with step `next`.
    Ready { next: u64 },
    /// They are, into this segment.
    Open(OpenSegment),
    /// They are not, until a checkpoint is safe.
    Lost,
}

/// The segment that is being written.
struct OpenSegment {
    file: Box<dyn Append>,
    /// Number of the next step.
    next: u64,
    bytes: u64,
    is_synced: bool,
}

/// Notifies waiting threads when the journal's thread has ended, even by a panic.
struct EndNotice(Arc<Shared>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        lock(&self.0.status).has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Writer {
    pub(super) fn new(
        disk: Box<dyn Disk>,
        folder: Folder,
        config: &Config,
        shared: Arc<Shared>,
        damaged: Vec<std::path::PathBuf>,
        is_new: bool,
    ) -> Self {
        let head =
            Head { magmap_version: env!("CARGO_PKG_VERSION").to_owned(), config: config.to_toml().unwrap_or_default() };
        let earlier_maps = config.node.earlier_maps;
        // A map that is not new needs a checkpoint first, and so does one whose folder is deferred.
        let segment =
            if is_new && folder.lock.is_some() { SegmentState::Ready { next: 0 } } else { SegmentState::Lost };
        let (buffer, synced) = (Vec::with_capacity(2 * GATHERED), Instant::now());
        let tiles = Vec::new();
        Self { disk, folder, head, earlier_maps, shared, damaged, tiles, segment, buffer, synced }
    }

    pub(super) fn run(self, entries: &Receiver<Entry>) {
        let _notice = EndNotice(Arc::clone(&self.shared));
        // Dropped before the notice, so that the folder is unlocked by then.
        let mut writer = self;
        while writer.gather(entries) {
            writer.write();
            if entries.is_empty() {
                writer.catch_up();
            }
            if writer.synced.elapsed() >= SYNC {
                writer.sync();
            }
        }
        writer.write();
        writer.sync();
    }

    /// Takes queued entries, waiting at most until a sync is due; whether more can follow.
    fn gather(&mut self, entries: &Receiver<Entry>) -> bool {
        let mut next = match entries.recv_timeout(SYNC) {
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
            Ok(entry) => Some(entry),
        };
        while let Some(entry) = next {
            match entry {
                Entry::Step { number, step } => self.append(number, &step),
                Entry::Checkpoint { number, checkpoint } => {
                    self.write();
                    self.sync();
                    self.save(number, &checkpoint);
                }
            }
            next = if self.buffer.len() < GATHERED { entries.try_recv().ok() } else { None };
        }
        true
    }

    /// Encodes a step into the open segment, or a new one.
    fn append(&mut self, number: u64, step: &Step) {
        if matches!(self.segment, SegmentState::Ready { next } if next == number) {
            self.begin(number);
        }
        let result = match &mut self.segment {
            SegmentState::Open(segment) if segment.next == number => {
                segment.next += 1;
                segment::append(&mut self.buffer, number, step)
            }
            SegmentState::Open(_) | SegmentState::Ready { .. } => Err(std::io::Error::other("steps are missing")),
            SegmentState::Lost => {
                self.update_status(|status| status.lost_steps += 1);
                return;
            }
        };
        if let Err(error) = result {
            self.lose(&error);
        }
    }

    /// Begins a new segment.
    fn begin(&mut self, first: u64) {
        let path = self.folder.segment(first);
        self.buffer.clear();
        let made = segment::begin(&mut self.buffer, first, &self.head).and_then(|()| {
            // An existing one was damaged from its first step on, or truncated before it.
            if path.exists() {
                self.damaged.retain(|damaged| *damaged != path);
                match segment::is_blank(std::fs::read(&path)?, first) {
                    true => remove(&path),
                    false => set_damaged_aside(&path),
                }
            }
            self.disk.create(&path)
        });
        match made {
            Ok(file) => self.segment = SegmentState::Open(OpenSegment { file, next: first, bytes: 0, is_synced: true }),
            Err(error) => self.lose(&error),
        }
    }

    /// Writes the buffer.
    fn write(&mut self) {
        let SegmentState::Open(segment) = &mut self.segment else {
            self.buffer.clear();
            return;
        };
        if self.buffer.is_empty() {
            return;
        }
        let result = segment.file.append(&self.buffer);
        segment.bytes += self.buffer.len() as u64;
        segment.is_synced = false;
        let (written, is_full) = (segment.next, segment.bytes > SEGMENT);
        self.buffer.clear();
        match result {
            Ok(()) => {
                self.update_status(|status| status.written = written);
                if is_full {
                    self.sync();
                    self.segment = SegmentState::Ready { next: written };
                }
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Clears the status "behind" once nothing is queued.
    fn catch_up(&self) {
        if std::mem::take(&mut lock(&self.shared.status).is_behind) {
            log::info!("the journal is no longer behind");
        }
    }

    fn sync(&mut self) {
        self.synced = Instant::now();
        if let SegmentState::Open(segment) = &mut self.segment
            && !std::mem::replace(&mut segment.is_synced, true)
            && let Err(error) = segment.file.sync()
        {
            self.lose(&error);
        }
    }

    /// Writes a checkpoint; later steps go into a new segment.
    fn save(&mut self, number: u64, checkpoint: &Checkpoint) {
        let result = match self.folder.take(self.earlier_maps) {
            Ok(()) => {
                let path = self.folder.checkpoint(number);
                // If the first step after a damaged checkpoint is damaged, too, mapping continues exactly there.
                if self.damaged.contains(&path) && path.exists() {
                    self.damaged.retain(|damaged| *damaged != path);
                    set_damaged_aside(&path);
                }
                let tiles = self.disk.write(&path, checkpoint, &self.folder.tiles);
                tiles.map(|tiles| self.tiles.push((number, tiles)))
            }
            Err(error) => Err(error),
        };
        let was_lost = lock(&self.shared.status).lost.is_some();
        if let Err(error) = &result {
            let is_kept = match self.segment {
                // After a gap, or with another map, the steps of the segment do not lead to the checkpoint.
                SegmentState::Open(OpenSegment { next, .. }) | SegmentState::Ready { next } => next == number,
                SegmentState::Lost => was_lost,
            };
            if !is_kept {
                self.lose(&std::io::Error::other(error.to_string()));
            }
        }
        // Before waiting threads are notified.
        if result.is_ok() {
            self.clear_up(number);
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
        match result {
            Ok(()) => {
                self.segment = SegmentState::Ready { next: number };
                if was_lost {
                    log::info!("the journal is written again: everything so far is in a checkpoint");
                }
            }
            Err(error) => log::error!("{error}; it will be retried"),
        }
    }

    /// Removes files that neither this checkpoint nor the previous one needs, and sets aside damaged ones.
    fn clear_up(&mut self, newest: u64) {
        self.damaged.drain(..).filter(|path| path.exists()).for_each(|path| set_damaged_aside(&path));
        let (Ok(checkpoints), Ok(segments)) = (self.folder.checkpoints(), self.folder.segments()) else { return };
        let before = checkpoints.iter().rev().map(|(number, _)| *number).find(|number| *number < newest);
        let Some(needed_from) = before else { return };
        for (number, path) in &checkpoints {
            if *number < needed_from {
                remove(path);
            }
        }
        self.tiles.retain(|(number, _)| *number >= needed_from);
        // Those of a checkpoint of an earlier run are not known.
        if self.tiles.first().is_some_and(|(number, _)| *number == needed_from) {
            self.folder.tiles.sweep();
        }
        // A segment ends where the next one begins.
        for pair in segments.windows(2) {
            if pair[1].0 <= needed_from {
                remove(&pair[0].1);
            }
        }
    }

    fn lose(&mut self, error: &std::io::Error) {
        let next = match self.segment {
            SegmentState::Open(OpenSegment { next, .. }) => next,
            SegmentState::Ready { .. } | SegmentState::Lost => 0,
        };
        self.segment = SegmentState::Lost;
        self.buffer.clear();
        self.update_status(|status| {
            status.lost = Some(error.to_string());
            status.lost_steps += next.saturating_sub(status.written);
        });
        log::error!(
            "the journal is no longer written: {error} ({}); mapping continues, but a crash would cost what is mapped from now on",
            self.folder.path.display()
        );
    }

    fn update_status(&self, change: impl FnOnce(&mut JournalStatus)) {
        change(&mut lock(&self.shared.status));
        self.shared.changed.notify_all();
    }
}

/// Renames a damaged file and logs it.
fn set_damaged_aside(path: &std::path::Path) {
    match set_aside(path, "damaged") {
        Ok(aside) => log::warn!("{} is damaged; it is kept as {}", path.display(), aside.display()),
        Err(error) => log::error!("{} is damaged and cannot be set aside: {error}", path.display()),
    }
}
