//! A live run: starting from a map, handling requests, and ending. Independent of ROS.

use crate::config::{self, Config};
use crate::durability::checkpoint::Checkpoint;
use crate::durability::journal::{Journal, JournalMonitor, JournalStatus};
use crate::durability::map_store::{InitialMap, MapFile, MapStart, Reservation};
use crate::mapping::mapper::{Mapper, SourceId, Step};
use crate::mapping::path::Path;
use crate::mapping::step_log::StepLog;
use crate::mapping::worker::{Mode, Worker};
use crate::sensing::counters::Counters;
use crate::sensing::frames::normalized;
use crate::{durability, mapping};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a run cannot start, or did not end cleanly.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The existing map cannot be continued, or the journal cannot be started.
    #[error(transparent)]
    Map(#[from] durability::Error),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] mapping::Error),
    /// The settings do not fit the map.
    #[error(transparent)]
    Settings(#[from] config::Error),
    /// The map was to be saved at the end and was not, for this reason.
    #[error("the map was not saved: {0}")]
    Save(String),
}

/// What was done, or why not, as a message.
pub type Answer = Result<String, String>;

/// A live run. It may be shared by threads; it is ended by its last owner.
#[derive(Debug)]
pub struct Session {
    /// The mapping thread.
    pub worker: Worker,
    namespace: String,
    source: SourceId,
    /// What the run started from.
    pub initial_map: InitialMap,
    /// Counters at the start, which are not zero where it continues an unfinished map.
    pub before: Counters,
    updates_before: u64,
    journal: Option<JournalMonitor>,
    /// Whether this run has saved the map.
    is_saved: AtomicBool,
    /// No other process writes this map.
    _reservation: Reservation,
}

impl Session {
    /// Starts the mapping thread with the existing map or a new one. `namespace` is the robot's, `robot` the full name of its node.
    ///
    /// # Errors
    /// [`Error::Map`] where the requested map cannot be continued, and the other variants where journal or thread cannot be started.
    pub fn start(config: &Config, namespace: &str, robot: &str) -> Result<Self, Error> {
        let source = match config.node.recording_id() {
            Some((name, fingerprint)) => SourceId { name: name.to_owned(), fingerprint: fingerprint.to_owned() },
            None => SourceId::robot(robot),
        };
        // A recording has one map, whatever namespace it is replayed in.
        let namespace = if source.is_recording() { "" } else { namespace };
        let file = MapFile::of(config, namespace);
        let reservation = Reservation::of(&file.path)?;
        let MapStart { mapper, folder, damaged, initial_map } = file.begin(config, &source, new_run())?;
        let journal = Journal::start_if_enabled(&config.journal, || Ok(folder), &mapper, damaged, true)?;
        let monitor = journal.as_ref().map(Journal::monitor);
        let step_log = journal.map(|journal| Box::new(journal) as Box<dyn StepLog>);
        let (before, updates_before) = (*mapper.pipeline().counters(), mapper.progress().learnt);
        let worker = Worker::start(Mode::Live, mapper, step_log, None)?;
        let frame = normalized(&config.frames.map);
        if !frame.is_empty() {
            worker.inbox.name_frame(frame)?;
        }
        Ok(Self {
            worker,
            namespace: namespace.to_owned(),
            source,
            initial_map,
            before,
            updates_before,
            journal: monitor,
            is_saved: AtomicBool::new(false),
            _reservation: reservation,
        })
    }

    /// Status of the journal, if there is one.
    pub fn journal(&self) -> Option<JournalStatus> {
        self.journal.as_ref().map(JournalMonitor::status)
    }

    /// The path along which readings were used.
    ///
    /// # Errors
    /// [`Closed`](mapping::Error::Closed) when the mapping thread has ended.
    pub fn path(&self) -> Result<Path, mapping::Error> {
        self.worker.inspect(|mapper| mapper.pipeline().path().clone())
    }

    /// The file that the map is saved to and loaded from.
    pub fn map_file(&self) -> MapFile {
        MapFile::of(&self.worker.config(), &self.namespace)
    }

    /// Closes the open cell and batch, and learns from them.
    ///
    /// # Errors
    /// Why not, as a message, as for all methods below.
    pub fn flush(&self) -> Answer {
        let before = self.worker.status();
        self.worker.flush().map_err(in_words)?;
        let after = self.worker.status();
        Ok(match self.worker.updates.newest_map() {
            None => "there is nothing to map yet".into(),
            Some(map) => format!(
                "{} observations learnt in {} updates; the map holds {} and has {} inducing points",
                after.counters.observations - before.counters.observations,
                after.updates - before.updates,
                map.totals,
                map.size(),
            ),
        })
    }

    /// Saves the map under the name in the settings. Another map of that name is kept as an earlier one.
    pub fn save(&self) -> Answer {
        self.flush()?;
        let map = self.worker.inspect(Checkpoint::of).map_err(in_words)?.map_err(in_words)?;
        if map.model.extent.is_none() {
            return Err("there is no map to save yet".into());
        }
        let file = self.map_file();
        let moved = file.save(&map).map_err(in_words)?;
        self.is_saved.store(true, Ordering::Relaxed);
        Ok(format!("saved {}: {}{}", file.path.display(), map.model.totals, kept_as(moved)))
    }

    /// Loads the map saved under the name in the settings. The current map is kept, unless it is saved already.
    pub fn load(&self) -> Answer {
        let file = self.map_file();
        let checkpoint = Checkpoint::read(&file.path).map_err(in_words)?;
        if self.source.is_recording() && checkpoint.stream.progress.holds(&self.source) {
            let name = &self.source.name;
            return Err(format!("{name} is already in {}: it would be mapped twice", file.path.display()));
        }
        checkpoint.model.check(&self.worker.config()).map_err(in_words)?;
        let frame = self.worker.inbox.name_frame(&checkpoint.frame).map_err(in_words)?;
        if *frame != checkpoint.frame {
            let theirs = &checkpoint.frame;
            return Err(format!(
                "{} is a map of frame \"{theirs}\", but the current one is of \"{frame}\"",
                file.path.display()
            ));
        }
        let kept = self.replace(Step::Load(Box::new(checkpoint.map())))?;
        let points = self.worker.updates.newest_map().map_or(0, |map| map.size());
        let totals = &checkpoint.model.totals;
        Ok(format!("loaded {}: {totals}, {points} inducing points{kept}", file.path.display()))
    }

    /// Starts a new map. The current one is kept as an earlier map, unless it is saved already.
    pub fn reset(&self) -> Answer {
        Ok(format!("the map is empty{}", self.replace(Step::Reset)?))
    }

    /// Changes the settings.
    ///
    /// # Errors
    /// Which setting does not fit the map; nothing has changed then.
    pub fn configure(&self, config: Config) -> Result<(), Error> {
        Ok(self.worker.configure(config)??)
    }

    /// Closes the open batch, saves the map if configured and if anything was mapped, and joins the mapping thread. The journal is
    /// removed when the map is saved. Returns a summary.
    ///
    /// # Errors
    /// [`Error::Save`]; the journal then keeps the map, and the next run starts from it.
    pub fn end(self) -> Result<String, Error> {
        self.worker.stop.stop();
        let flushed = self.flush();
        let config = self.worker.config();
        let has_map = self.worker.updates.newest_map().is_some();
        let is_new = self.worker.status().counters.used_readings > self.before.used_readings;
        let is_to_be_saved = config.node.save_at_end && has_map && is_new;
        let last = flushed.and_then(|done| if is_to_be_saved { self.save() } else { Ok(done) });
        let file = self.map_file();
        let finished = self.worker.join()?;
        let (status, mapper) = (finished.status, finished.mapper);
        if is_new {
            file.finish(None);
        } else if self.initial_map == InitialMap::Unfinished
            && self.is_saved.into_inner()
            && let Ok(map) = Checkpoint::of(&mapper)
        {
            file.finish(Some(&map));
        }
        let (counters, before) = (status.counters, self.before);
        let done = last.map_err(Error::Save)?;
        Ok(format!(
            "{done}\nmapped {} of {} readings over {:.1} m in {} updates; the map holds {}",
            counters.used_readings - before.used_readings,
            counters.readings - before.readings + status.lost_readings,
            counters.travelled - before.travelled,
            status.updates - self.updates_before,
            mapper.model().totals
        ))
    }

    /// Replaces the map, which is kept unless it is saved already; the answer says where.
    fn replace(&self, step: Step) -> Answer {
        let (file, source) = (self.map_file(), Step::Source { id: self.source.clone(), run: new_run() });
        let keep = move |mapper: &Mapper| -> Answer {
            Ok(kept_as(file.keep(&Checkpoint::of(mapper).map_err(in_words)?).map_err(in_words)?))
        };
        let decide = move |mapper: &Mapper| {
            let kept = keep(mapper);
            let steps = if kept.is_ok() { vec![step, source] } else { Vec::new() };
            (kept, steps)
        };
        self.worker.change(decide).map_err(in_words)?
    }
}

/// A random identifier of a run.
fn new_run() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Where the previous map is, if it was kept; for the end of a sentence.
fn kept_as(path: Option<PathBuf>) -> String {
    path.map_or(String::new(), |path| format!("; the previous map is kept as {}", path.display()))
}

fn in_words(error: impl std::error::Error) -> String {
    error.to_string()
}
