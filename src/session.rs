//! A live run: starting from a map, handling requests, and ending. Independent of ROS.

use crate::config::{self, Config};
use crate::mapping;
use crate::mapping::mapper::{Mapper, SourceId, Step};
use crate::mapping::relocating::Relocated;
use crate::mapping::thread::{MappingThread, Mode};
use crate::sensing::counters::Counters;
use crate::sensing::frames::normalized;
use crate::store;
use crate::store::checkpoint::Checkpoint;
use crate::store::map_file::{self, InitialMap, MapStart, Reservation};
use crate::store::map_log::{MapLogHandle, wait_for};
use crate::store::status::MapLogStatus;
use crate::sync::lock;
use std::path::PathBuf;
use std::sync::Mutex;

/// Why a run cannot start, or did not end cleanly.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The existing map cannot be continued, or its file is in use.
    #[error(transparent)]
    Map(#[from] store::Error),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] mapping::Error),
    /// The settings do not fit the map.
    #[error(transparent)]
    Settings(#[from] config::Error),
    /// The newest part of the map is not in its file, for this reason.
    #[error("the map was not saved: {0}")]
    Save(String),
}

/// The action that was taken, or why not, as a message.
pub type Answer = Result<String, String>;

/// A live run. It may be shared by threads; it is ended by its last owner.
#[derive(Debug)]
pub struct Session {
    /// The mapping thread.
    pub mapping: MappingThread,
    namespace: String,
    source: SourceId,
    /// The map that the run started from.
    pub initial_map: InitialMap,
    /// Counters at the start, which are not zero where it continues an unfinished map.
    pub before: Counters,
    updates_before: u64,
    /// Writes the file of the map.
    log: MapLogHandle,
    /// No other process writes the map.
    reservation: Mutex<Reservation>,
}

impl Session {
    /// Starts the mapping thread with the existing map or a new one. `namespace` is the robot's, `robot` the full name of its node.
    ///
    /// # Errors
    /// [`Error::Map`] where the requested map cannot be continued, and the other variants where a thread cannot be started.
    pub fn start(config: &Config, namespace: &str, robot: &str) -> Result<Self, Error> {
        let source = match config.node.recording_id() {
            Some((name, fingerprint)) => SourceId { name: name.to_owned(), fingerprint: fingerprint.to_owned() },
            None => SourceId::robot(robot),
        };
        // A recording has one map, whatever namespace it is replayed in.
        let namespace = if source.is_recording() { "" } else { namespace };
        let start = MapStart::find(&map_file::of_settings(config, namespace), config, &source, new_run())?;
        let initial_map = start.initial_map;
        let (mapper, log, reservation) = start.log()?;
        let (before, updates_before) = (*mapper.pipeline().counters(), mapper.progress().learnt);
        let handle = log.handle();
        let mapping = MappingThread::start(Mode::MergeWaiting, mapper, Some(Box::new(log)), None)?;
        let frame = normalized(config.map_frame());
        if !frame.is_empty() {
            mapping.inbox.name_frame(frame)?;
        }
        Ok(Self {
            mapping,
            namespace: namespace.to_owned(),
            source,
            initial_map,
            before,
            updates_before,
            log: handle,
            reservation: Mutex::new(reservation),
        })
    }

    /// Progress of writing the file of the map.
    pub fn file_status(&self) -> MapLogStatus {
        self.log.status()
    }

    /// The file named in the settings, which may be another one than that in which the map is.
    fn named_file(&self) -> PathBuf {
        map_file::of_settings(&self.mapping.config(), &self.namespace)
    }

    /// Closes the open cell and batch, and learns from them.
    ///
    /// # Errors
    /// Why not, as a message, as for all methods below.
    pub fn flush(&self) -> Answer {
        let before = self.mapping.status();
        self.mapping.flush().map_err(in_words)?;
        let after = self.mapping.status();
        Ok(match (self.mapping.relocated(), self.mapping.updates.newest_map()) {
            (Some(Relocated { is_known: false, words }), _) => {
                format!("nothing is learnt before the robot is found; {words}")
            }
            (_, None) => "there is nothing to map yet".into(),
            (_, Some(map)) => format!(
                "{} observations learnt in {} updates; the map holds {} and has {} inducing points",
                after.counters.observations - before.counters.observations,
                after.updates - before.updates,
                map.totals,
                map.size(),
            ),
        })
    }

    /// Saves the map. If the settings name another file, the map is written into that file and continues there; another map in it is
    /// kept as an earlier one.
    pub fn save(&self) -> Answer {
        self.flush()?;
        let path = self.named_file();
        let is_other = path != self.log.database().path();
        let reservation = is_other.then(|| Reservation::of(&path)).transpose().map_err(in_words)?;
        let (log, to) = (self.log.clone(), path.clone());
        let saved = self.mapping.inspect(move |mapper| match mapper.model().map() {
            None => Err("there is no map to save yet".to_owned()),
            Some(map) if is_other => Ok((map.totals, log.go_on_in(mapper, to)?, None)),
            Some(map) => Ok((map.totals, None, Some(log.save(mapper)?))),
        });
        let (totals, kept, saved) = saved.map_err(in_words)??;
        if let Some(saved) = saved {
            wait_for(&saved)?;
        }
        self.reserve(reservation);
        Ok(format!("saved {}: {totals}{}", path.display(), kept_as(kept)))
    }

    /// Loads the map in the file that the settings name: another map, or the one that is being made, as it was saved. The current map is
    /// kept, unless that continues it.
    pub fn load(&self) -> Answer {
        let (path, database) = (self.named_file(), self.log.database());
        if path == database.path() && database.holds_map() {
            let saved = database.saved().map_err(in_words)?;
            let log = self.log.clone();
            return self.replace_by(saved.clone(), move |mapper| {
                let holds_nothing = mapper.pipeline().held().is_none_or(|held| held.is_empty());
                let is_safe = holds_nothing && saved.continues(&Checkpoint::of(mapper).map_err(in_words)?);
                Ok(kept_as(if is_safe { None } else { log.keep_copy(mapper)? }))
            });
        }
        let reservation = (path != database.path()).then(|| Reservation::of(&path)).transpose().map_err(in_words)?;
        let (mapper, file, batches) = map_file::load(&path, &self.mapping.config()).map_err(in_words)?;
        let loaded = Checkpoint::of(&mapper).map_err(in_words)?;
        let log = self.log.clone();
        let answer = self.replace_by(loaded, move |mapper| {
            log.continue_other(mapper, file, batches)?;
            Ok(String::new())
        })?;
        self.reserve(reservation);
        Ok(answer)
    }

    /// Replaces the map by a loaded one, if that fits; the current one is kept by `keep`, which says where.
    fn replace_by(&self, loaded: Checkpoint, keep: impl FnOnce(&Mapper) -> Answer + Send + 'static) -> Answer {
        let path = self.named_file();
        if self.source.is_recording() && loaded.stream.progress.holds(&self.source, loaded.model.totals.batches()) {
            let name = &self.source.name;
            return Err(format!("{name} is already in {}: it would be mapped twice", path.display()));
        }
        if self.mapping.config().corrects_path() {
            return Err(format!(
                "where the path is corrected (slam) no map is loaded while another one is made; name it at startup (node.map_name = \"{}\")",
                self.mapping.config().node.map_name
            ));
        }
        if !loaded.stream.correction.nodes().is_empty() {
            return Err(format!(
                "the path of {} was corrected: no other drive can be added to it; use it to locate the robot",
                path.display()
            ));
        }
        loaded.model.check(&self.mapping.config()).map_err(in_words)?;
        let may_be_elsewhere = self.mapping.config().may_odometry_restart();
        let frame = self.mapping.inbox.name_frame(&loaded.frame).map_err(in_words)?;
        if *frame != loaded.frame && !may_be_elsewhere {
            let theirs = &loaded.frame;
            return Err(format!(
                "{} is a map of frame \"{theirs}\", but the current one is of \"{frame}\"",
                path.display()
            ));
        }
        let totals = loaded.model.totals;
        let steps = move |mapper: &Mapper| {
            let is_earlier_state = Checkpoint::of(mapper).is_ok_and(|current| current.continues(&loaded));
            let (mut map, frame) = (loaded.map(), loaded.frame);
            if is_earlier_state {
                map.odometry = *mapper.pipeline().odometry();
            }
            let is_known = is_earlier_state && mapper.pipeline().held().is_none();
            let seek = (may_be_elsewhere && !is_known).then_some(Step::Seek);
            [Step::Load(Box::new(map)), Step::Frame(frame)].into_iter().chain(seek).collect()
        };
        let kept = self.replace(steps, keep)?;
        let points = self.mapping.updates.newest_map().map_or(0, |map| map.size());
        Ok(format!("loaded {}: {totals}, {points} inducing points{kept}", path.display()))
    }

    /// Starts a new map. The current one becomes an earlier map.
    pub fn reset(&self) -> Answer {
        let log = self.log.clone();
        let kept = self.replace(
            |_| vec![Step::Reset],
            move |mapper| match mapper.model().map() {
                // In its file there are at most readings that are not learnt yet.
                None => Ok(String::new()),
                Some(_) => Ok(kept_as(log.begin_new(mapper)?)),
            },
        )?;
        Ok(format!("the map is empty{kept}"))
    }

    /// Changes the settings.
    ///
    /// # Errors
    /// Which setting does not fit the map; nothing has changed then.
    pub fn configure(&self, config: Config) -> Result<(), Error> {
        Ok(self.mapping.configure(config)??)
    }

    /// Closes the open batch, joins the mapping thread and saves the map, if anything was mapped. Returns a summary.
    ///
    /// # Errors
    /// [`Error::Save`]; the file then contains an earlier state, from which the next run starts.
    pub fn end(self) -> Result<String, Error> {
        self.mapping.stop.stop();
        let done = self.flush().map_err(Error::Save)?;
        let is_known = self.mapping.relocated().is_none_or(|relocated| relocated.is_known);
        let finished = self.mapping.join()?;
        let file = self.log.status();
        let is_begun = file.checkpoint.is_some() || finished.status.counters.used_readings > self.before.used_readings;
        if let Some(reason) = file.lost.filter(|_| is_begun) {
            return Err(Error::Save(reason));
        }
        let unplaced = map_file::keep_unplaced(self.log.database().path(), &finished.mapper)?;
        let relocated = finished.relocated.filter(|_| !is_known).map(|relocated| relocated.words);
        let done = unplaced.map(|unplaced| unplaced.to_string()).or(relocated).unwrap_or(done);
        let (status, before) = (finished.status, self.before);
        let counters = status.counters;
        Ok(format!(
            "{done}\nmapped {} of {} readings over {:.1} m in {} updates; the map holds {}",
            counters.used_readings - before.used_readings,
            counters.readings - before.readings + status.lost_readings,
            counters.travelled - before.travelled,
            status.updates - self.updates_before,
            finished.mapper.model().totals
        ))
    }

    /// Replaces the map by `steps`, once it is kept as `keep` says.
    fn replace(
        &self,
        steps: impl FnOnce(&Mapper) -> Vec<Step> + Send + 'static,
        keep: impl FnOnce(&Mapper) -> Answer + Send + 'static,
    ) -> Answer {
        let source = Step::Source { id: self.source.clone(), run: new_run() };
        let path = self.log.database().path().to_owned();
        let decide = move |mapper: &Mapper| {
            let unplaced = map_file::keep_unplaced(&path, mapper).map_err(in_words);
            match unplaced.and_then(|unplaced| Ok((unplaced, keep(mapper)?))) {
                Ok((unplaced, kept)) => {
                    let unplaced = unplaced.map_or(String::new(), |unplaced| format!("; {unplaced}"));
                    (Ok(kept + &unplaced), steps(mapper).into_iter().chain([source]).collect())
                }
                Err(refused) => (Err(refused), Vec::new()),
            }
        };
        self.mapping.change(decide).map_err(in_words)?
    }

    /// The map is in another file from now on, whose name is reserved.
    fn reserve(&self, reservation: Option<Reservation>) {
        if let Some(reservation) = reservation {
            *lock(&self.reservation) = reservation;
        }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use nalgebra::{Point3, UnitQuaternion, Vector3};
    use tempfile::TempDir;

    use super::*;
    use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
    use crate::store::list::{Listed, State, list};

    fn settings(folder: &TempDir, name: &str) -> Config {
        let mut config = Config::default();
        config.averaging.spacing = 0.0;
        config.batch.max_observations = 8;
        config.learning.max_evaluations = 2;
        config.node.map_folder = folder.path().display().to_string();
        config.node.map_name = name.into();
        config
    }

    fn start(folder: &TempDir, name: &str) -> Session {
        Session::start(&settings(folder, name), "", "/magmap").unwrap()
    }

    /// Ten readings at 5 cm from each other, from this index on.
    fn drive(session: &Session, from: usize) {
        let inbox = &session.mapping.inbox;
        inbox.name_frame("odom").unwrap();
        for index in from..from + 10 {
            let along = 0.05 * index as f64;
            let (stamp, position) = (Stamp::from_seconds(along), Point3::new(along, 0.0, 0.0));
            let field =
                MagneticField::from_microtesla(Vector3::new(20.0 + along.sin(), along.cos(), 40.0 + 0.1 * along));
            inbox.send(Measurement::Pose(Pose { stamp, position, orientation: UnitQuaternion::identity() })).unwrap();
            inbox.send(Measurement::Reading(Reading { stamp, field })).unwrap();
        }
        session.flush().unwrap();
    }

    fn readings(session: &Session) -> u64 {
        session.mapping.updates.newest_map().map_or(0, |map| map.totals.used_readings)
    }

    /// Every map in the folder: its name without a time, and its number of readings.
    fn maps(folder: &TempDir) -> Vec<(String, u64)> {
        let of = |map: Listed| {
            assert_eq!(map.state, State::Saved, "{map:?}");
            let name = map.name.split('.').next().unwrap().to_owned();
            (name, map.contents.unwrap().totals.used_readings)
        };
        let mut maps: Vec<_> = list(folder.path()).unwrap().into_iter().map(of).collect();
        maps.sort();
        maps
    }

    fn map(name: &str, readings: u64) -> (String, u64) {
        (name.to_owned(), readings)
    }

    #[test]
    fn a_map_is_in_its_file_without_being_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let session = start(&folder, "house");
        assert_eq!(session.save().unwrap_err(), "there is no map to save yet");
        assert_eq!(session.reset().unwrap(), "the map is empty");
        drive(&session, 0);
        let ended = session.end().unwrap();
        assert!(ended.ends_with("the map holds 10 readings in 1 updates"), "{ended}");
        assert_eq!(maps(&folder), [map("house", 10)]);
    }

    #[test]
    fn a_map_that_is_reset_becomes_an_earlier_map_and_the_next_one_has_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let session = start(&folder, "house");
        drive(&session, 0);
        let answer = session.reset().unwrap();
        assert!(answer.starts_with("the map is empty; the previous map is kept as /"), "{answer}");
        assert_eq!((readings(&session), maps(&folder)), (0, vec![map("house", 10)]));
        drive(&session, 10);
        drive(&session, 20);
        session.end().unwrap();
        assert_eq!(maps(&folder), [map("house", 10), map("house", 20)]);
        assert!(folder.path().join("house.magmap").exists());
    }

    #[test]
    fn the_saved_state_is_loaded_again_and_what_came_after_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let session = start(&folder, "house");
        drive(&session, 0);
        assert!(
            session.load().unwrap_err().contains("house.magmap has no saved state to go back to; save the map first")
        );
        assert!(session.save().unwrap().contains("house.magmap: 10 readings"));
        let loaded = session.load().unwrap();
        assert!(loaded.contains("house.magmap: 10 readings") && !loaded.contains("previous"), "{loaded}");
        drive(&session, 10);
        let loaded = session.load().unwrap();
        assert!(loaded.contains("; the previous map is kept as /") && readings(&session) == 10, "{loaded}");
        drive(&session, 30);
        session.end().unwrap();
        assert_eq!(maps(&folder), [map("house", 20), map("house", 20)]);
    }

    #[test]
    fn under_another_name_a_map_is_saved_there_and_goes_on_there() {
        let folder = tempfile::tempdir().unwrap();
        let other = start(&folder, "garden");
        drive(&other, 100);
        other.end().unwrap();
        let session = start(&folder, "house");
        drive(&session, 0);
        session.configure(settings(&folder, "garden")).unwrap();
        let answer = session.save().unwrap();
        assert!(
            answer.contains("garden.magmap: 10 readings") && answer.contains("; the previous map is kept as /"),
            "{answer}"
        );
        // Both names are in use now, one by this process and the other by nobody.
        assert!(Session::start(&settings(&folder, "garden"), "", "/other").is_err());
        start(&folder, "house").end().unwrap();
        drive(&session, 10);
        session.end().unwrap();
        assert_eq!(maps(&folder), [map("garden", 10), map("garden", 20), map("house", 10)]);
    }

    #[test]
    fn another_map_is_loaded_and_continued_in_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let other = start(&folder, "garden");
        drive(&other, 100);
        drive(&other, 110);
        other.end().unwrap();
        let session = start(&folder, "house");
        drive(&session, 0);
        session.configure(settings(&folder, "cellar")).unwrap();
        assert!(session.load().unwrap_err().starts_with("cannot read the map /"));
        assert_eq!(readings(&session), 10);
        session.configure(settings(&folder, "garden")).unwrap();
        let answer = session.load().unwrap();
        assert!(answer.contains("garden.magmap: 20 readings") && readings(&session) == 20, "{answer}");
        // Nothing changes before a reading is used.
        let bytes = fs::read(folder.path().join("garden.magmap")).unwrap();
        session.mapping.flush().unwrap();
        assert!(fs::read(folder.path().join("garden.magmap")).unwrap() == bytes);
        drive(&session, 120);
        session.end().unwrap();
        assert_eq!(maps(&folder), [map("garden", 30), map("house", 10)]);
    }

    #[test]
    fn a_map_that_cannot_be_written_at_the_end_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        // Where the folder should be there is a file.
        fs::write(folder.path().join("maps"), "").unwrap();
        let mut config = settings(&folder, "house");
        config.node.map_folder = folder.path().join("maps").display().to_string();
        let session = Session::start(&config, "", "/magmap").unwrap();
        drive(&session, 0);
        let error = session.end().unwrap_err().to_string();
        assert!(error.starts_with("the map was not saved: ") && error.contains("maps"), "{error}");
    }
}
