//! A run of a live robot: the map that it begins with, what it is asked for meanwhile, and how it ends. Nothing of it knows ROS.

use std::sync::{Arc, Mutex};

use super::checkpoint::Checkpoint;
use super::field_learner::FieldSnapshot;
use super::field_model::FieldModel;
use super::frames::normalized;
use super::journal::{self, Frame, Gauge, Journal};
use super::keeper::Keeper;
use super::map_store::{self, Beginning, MapFile, Reservation, Start};
use super::mapper::{Mapper, SourceId};
use super::path::Path;
use super::pipeline::Counters;
use super::worker::{Mode, NextMap, Observer, Replacement, Worker, lock};
use crate::config::Config;
use streaming_gp::places::Places;

/// Why a run cannot begin, or did not end in good order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The map of before cannot be continued.
    #[error(transparent)]
    Map(#[from] map_store::Error),
    /// The journal cannot be started.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] super::Error),
    /// The map was to be saved at the end and was not.
    #[error("the map was not saved: {reason}")]
    Save {
        /// Why not.
        reason: String,
    },
}

/// What was done, or why not, in words.
pub type Answer = Result<String, String>;

/// A run. It may be shared by threads; whoever ends it must be the last who holds it.
#[derive(Debug)]
pub struct Session {
    worker: Worker<FieldModel>,
    frame: Frame,
    config: Mutex<Config>,
    namespace: String,
    source: SourceId,
    beginning: Beginning,
    /// What was counted before, where it continues an unfinished map.
    before: Counters,
    updates_before: u64,
    journal: Option<Gauge>,
    /// Where the map's observations were made.
    path: Arc<Mutex<Path>>,
    /// The path of the map that is about to take the place of this one.
    path_of_next: Arc<Mutex<Path>>,
    /// Nobody else writes this map.
    _reservation: Reservation,
}

impl Session {
    /// Starts the mapping thread where the map of before ended, or with a new map. `namespace` is the robot's, `robot` the full name
    /// of its node.
    ///
    /// # Errors
    /// [`Error::Map`] where the settings ask for a map that cannot be continued, and when there is no thread.
    pub fn start(config: &Config, namespace: &str, robot: &str) -> Result<Self, Error> {
        let source = match config.node.recording_id() {
            Some((name, fingerprint)) => SourceId { name: name.to_owned(), fingerprint: fingerprint.to_owned() },
            None => SourceId::robot(robot),
        };
        let file = MapFile::of(config, namespace);
        let reservation = file.reserve()?;
        let Start { mapper, frame: kept_frame, folder, damaged, beginning } = file.begin(config, &source, new_run())?;
        let frame = Frame::default();
        if let Some(known) = [normalized(&config.frames.map), &kept_frame].into_iter().find(|frame| !frame.is_empty()) {
            frame.get_or_init(|| Arc::from(known));
        }
        let (mut gauge, mut keeper) = (None, None);
        if config.journal.enabled {
            let journal = Journal::start_with_first_reading(folder, config, Arc::clone(&frame), &mapper, damaged)?;
            gauge = Some(journal.gauge());
            keeper = Some(Box::new(journal) as Box<dyn Keeper<_>>);
        }
        let (before, updates_before) = (*mapper.pipeline().counters(), mapper.standing().learnt);
        let path = Arc::new(Mutex::new(mapper.pipeline().path().clone()));
        let path_of_next = Arc::<Mutex<Path>>::default();
        let observer = follow_path(Arc::clone(&path), Arc::clone(&path_of_next));
        let worker = Worker::resume(&config.worker, Mode::Live, mapper, keeper, Some(observer))?;
        Ok(Self {
            worker,
            frame,
            config: Mutex::new(config.clone()),
            namespace: namespace.to_owned(),
            source,
            beginning,
            before,
            updates_before,
            journal: gauge,
            path,
            path_of_next,
            _reservation: reservation,
        })
    }

    /// The mapping thread.
    pub fn worker(&self) -> &Worker<FieldModel> {
        &self.worker
    }

    /// The frame of the map, once it is known.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The settings as they are now.
    pub fn config(&self) -> Config {
        lock(&self.config).clone()
    }

    /// Whether it began with a new map, or which one it continues.
    pub fn beginning(&self) -> Beginning {
        self.beginning
    }

    /// What was counted before this run, where it continues an unfinished map.
    pub fn before(&self) -> &Counters {
        &self.before
    }

    /// How the journal is doing, where one is wanted.
    pub fn journal(&self) -> Option<journal::Status> {
        self.journal.as_ref().map(Gauge::status)
    }

    /// Where the map's observations were made.
    pub fn path(&self) -> Path {
        lock(&self.path).clone()
    }

    /// The file of the map that is saved and loaded.
    pub fn map_file(&self) -> MapFile {
        MapFile::of(&self.config(), &self.namespace)
    }

    /// Closes the open cell and batch, and learns from them.
    ///
    /// # Errors
    /// Why not, in words; so for all that follow.
    pub fn flush(&self) -> Answer {
        let before = self.worker.status();
        self.worker.flush().map_err(in_words)?;
        let after = self.worker.status();
        let newest = self.worker.snapshots().newest();
        let map = newest
            .and_then(|update| Some((update.snapshot.posterior.as_ref()?.inducing().len(), update.snapshot.totals)));
        Ok(match map {
            None => "there is nothing to map yet".into(),
            Some((points, totals)) => format!(
                "{} observations learnt in {} updates; the map holds {totals}, and has {points} inducing points",
                after.counters.observations - before.counters.observations,
                after.updates - before.updates,
            ),
        })
    }

    /// Saves the map under the name that the settings say. Another map of that name is kept as an earlier one.
    pub fn save(&self) -> Answer {
        self.flush()?;
        let Some(take) = self.checkpoint() else { return Err("there is no map to save yet".into()) };
        let map = self.worker.inspect(take).map_err(in_words)?.map_err(in_words)?;
        if map.extent().is_none() {
            return Err("there is no map to save yet".into());
        }
        let file = self.map_file();
        let moved = file.save(&map).map_err(in_words)?;
        let moved =
            moved.map_or(String::new(), |kept| format!("; the map that was there is kept as {}", kept.display()));
        Ok(format!("saved {}: {}{moved}", file.path().display(), map.totals()))
    }

    /// Continues the map that was saved under the name that the settings say. The map so far is kept, if it was not saved.
    pub fn load(&self) -> Answer {
        let (config, file) = (self.config(), self.map_file());
        let checkpoint = Checkpoint::read(file.path()).map_err(in_words)?;
        if self.source.is_recording() && checkpoint.standing().holds(&self.source) {
            let name = &self.source.name;
            return Err(format!("{name} is in {} already: it would be mapped twice", file.path().display()));
        }
        let model = checkpoint.restore(&config).map_err(in_words)?;
        let frame = self.frame.get_or_init(|| Arc::from(checkpoint.frame()));
        if **frame != *checkpoint.frame() {
            let theirs = checkpoint.frame();
            return Err(format!(
                "{} is a map of frame \"{theirs}\", this one is of \"{frame}\"",
                file.path().display()
            ));
        }
        let (path, sources) = (checkpoint.path().clone(), checkpoint.standing().sources.clone());
        let points = model.posterior().map_or(0, |posterior| posterior.inducing().len());
        let kept = self.replace(NextMap::Loaded { learner: Box::new(model), path: path.clone(), sources }, path)?;
        Ok(format!("loaded {}: {}, {points} inducing points{kept}", file.path().display(), checkpoint.totals()))
    }

    /// Forgets the map. What was not saved of it is kept as an earlier map.
    pub fn reset(&self) -> Answer {
        let config = self.config();
        let kept = self.replace(NextMap::Empty(Box::new(config)), Path::default())?;
        Ok(format!("the map is empty{kept}"))
    }

    /// Continues with other settings.
    pub fn configure(&self, config: Config) -> Result<(), super::Error> {
        *lock(&self.config) = config.clone();
        self.worker.configure(&config)
    }

    /// Closes the open batch, saves if that is wanted and something was mapped, and joins the mapping thread. The journal ends when
    /// the map is saved. Says what came of it.
    ///
    /// # Errors
    /// [`Error::Save`]; the journal then holds the map, and the next run begins with it.
    pub fn end(self) -> Result<String, Error> {
        self.worker.stop();
        let flushed = self.flush();
        let config = self.config();
        let has_map = self.worker.snapshots().newest().is_some_and(|update| update.snapshot.posterior.is_some());
        let is_new = self.worker.status().counters.used_readings > self.before.used_readings;
        let is_to_be_saved = config.node.save_at_end && has_map && is_new;
        let last = flushed.and_then(|done| if is_to_be_saved { self.save() } else { Ok(done) });
        let file = self.map_file();
        let finished = self.worker.join()?;
        let (status, mapper) = (finished.status, finished.mapper);
        if is_new {
            file.finish();
        }
        let (counters, before) = (status.counters, self.before);
        let done = last.map_err(|reason| Error::Save { reason })?;
        Ok(format!(
            "{done}\nmapped {} of {} readings over {:.1} m in {} updates; the map holds {}",
            counters.used_readings - before.used_readings,
            counters.readings - before.readings + status.lost_readings,
            counters.travelled - before.travelled,
            status.updates - self.updates_before,
            mapper.learner().totals()
        ))
    }

    /// Puts another map in the place of this one, which is kept if it was not saved; says as what.
    fn replace(&self, map: NextMap<FieldModel>, path: Path) -> Answer {
        let (file, take) = (self.map_file(), self.checkpoint());
        let keep = move |mapper: &Mapper<FieldModel>| -> Answer {
            // Without a frame nothing was mapped.
            let Some(take) = take else { return Ok(String::new()) };
            let kept = file.keep(&take(mapper).map_err(in_words)?).map_err(in_words)?;
            Ok(kept.map_or(String::new(), |kept| format!("; the map of before is kept as {}", kept.display())))
        };
        *lock(&self.path_of_next) = path;
        let replacement = Replacement { map, source: self.source.clone(), run: new_run() };
        self.worker.replace(replacement, keep).map_err(in_words)?
    }

    /// Makes a checkpoint of the map; none where there is nothing to make one of.
    fn checkpoint(
        &self,
    ) -> Option<impl FnOnce(&Mapper<FieldModel>) -> Result<Checkpoint, super::Error> + Send + 'static> {
        let (frame, config) = (self.frame.get().cloned()?, self.config());
        Some(move |mapper: &Mapper<FieldModel>| Checkpoint::of(&config, mapper, &frame))
    }
}

/// Keeps the path of the map in step with what is learnt.
fn follow_path(path: Arc<Mutex<Path>>, path_of_next: Arc<Mutex<Path>>) -> Observer<FieldSnapshot> {
    Box::new(move |observations, _| {
        let mut path = lock(&path);
        if observations.is_empty() {
            *path = std::mem::take(&mut lock(&path_of_next));
        }
        observations.iter().for_each(|observation| path.push(observation.position));
    })
}

/// Tells a run from all others.
fn new_run() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn in_words(error: impl std::error::Error) -> String {
    error.to_string()
}
