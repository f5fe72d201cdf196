//! The map that a run continues, and its place.
//!
//! ```text
//! FOLDER/map.magmap                       the map
//! FOLDER/map.2026-05-04T09-30-12Z.magmap  an earlier map, renamed at this time: a map like any other
//! FOLDER/map-unplaced-0123abcd.magmap     what a run drove without being found in the map that it continued
//! FOLDER/robot1/map.magmap                the map of a robot in the namespace /robot1
//! ```
//!
//! A file contains one map from its beginning on: another one is made in a new file, and the existing file becomes an earlier map. Nothing
//! changes before a reading is used.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use super::checkpoint::Checkpoint;
use super::database::{Batch, Database, keep_as_earlier_map};
use super::earlier_maps::siblings;
use super::map_log::{MapLog, Options};
use super::recovery::{Gaps, Recovered};
use crate::arrays::Problem;
use crate::config::Config;
use crate::files::{FileError, folder_of, sync_folder_of};
use crate::mapping::mapper::{Mapper, SourceId, Step};
use crate::mapping::stop::StopSignal;
use crate::sensing::reading::Observation;
use crate::trajectory;

pub use super::database::mark_saved;

/// Name of the file in the output folder of a replay.
pub const FILE_NAME: &str = "map.magmap";

/// The file of a map: `path`, or the one in it if it is the output folder of a replay.
pub fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() }
}

/// The file of the map with this name.
pub fn named(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.magmap"))
}

/// The file of the map named in the settings, in the folder of the node's namespace.
pub fn of_settings(config: &Config, namespace: &str) -> PathBuf {
    let folder = match config.node.map_folder.as_str() {
        "" => default_folder(),
        folder => PathBuf::from(folder),
    };
    named(&folder.join(namespace.trim_matches('/')), &config.node.map_name)
}

/// The start of a run of a node.
#[derive(Debug)]
pub struct MapStart {
    /// The map, with the run's source; nothing on disk has changed.
    pub mapper: Mapper,
    /// The map that the run starts from.
    pub initial_map: InitialMap,
    database: Arc<Database>,
    /// Batches that the file does not have yet.
    batches: Vec<Batch>,
    earlier_maps: usize,
    reservation: Reservation,
}

/// The map that a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialMap {
    /// A new map.
    New,
    /// A map as it was saved.
    Saved,
    /// A map whose process died.
    Unfinished,
}

impl MapStart {
    /// Starts a run of `source` from the unfinished map of the same robot, a saved map or a new one, as the settings say. Nothing on disk
    /// changes. `run` identifies this run.
    ///
    /// # Errors
    /// [`Error::InUse`], and [`Error::Refused`] for a map of another frame or with settings of another model, or one that has the recording
    /// already. Damage is not an error: it is logged, and damaged files are kept.
    pub fn find(path: &Path, config: &Config, source: &SourceId, run: String) -> Result<Self, Error> {
        let reservation = Reservation::of(path)?;
        let new = || (Mapper::new(config), Arc::new(Database::new(path)), Vec::new(), InitialMap::New);
        let existing = if path.exists() { existing(path, config, source)? } else { None };
        let (mut mapper, database, batches, initial_map) = existing.unwrap_or_else(new);
        mapper.take(Step::Source { id: source.clone(), run }, &StopSignal::default());
        Ok(Self { mapper, initial_map, database, batches, earlier_maps: config.node.earlier_maps, reservation })
    }

    /// Starts to write the map, from the first reading that is used on.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub fn log(self) -> Result<(Mapper, MapLog, Reservation), Error> {
        let Self { mapper, database, batches, earlier_maps, reservation, .. } = self;
        let trouble = trouble(database.path());
        let options = Options { waits: true, saves_at_end: true, earlier_maps, trouble };
        let log = MapLog::start(database, &mapper, batches, options)?;
        Ok((mapper, log, reservation))
    }
}

type Existing = (Mapper, Arc<Database>, Vec<Batch>, InitialMap);

/// The map in a file, if it is to be continued.
fn existing(path: &Path, config: &Config, source: &SourceId) -> Result<Option<Existing>, Error> {
    let found = Database::open(path).and_then(|database| {
        let database = Arc::new(database);
        Ok((database.recover(config, Gaps::Skip, |_| ())?, database))
    });
    let (mut recovered, database) = match found {
        Ok(found) => found,
        Err(error @ Error::InUse { .. }) => return Err(error),
        Err(error) => {
            log::error!("{error}; starting a new map, and the file will be renamed when that is written");
            return Ok(None);
        }
    };
    let initial_map = if recovered.is_saved { InitialMap::Saved } else { InitialMap::Unfinished };
    if !is_continued(path, &recovered, config, source)? {
        return Ok(None);
    }
    report(&recovered);
    check_frame(path, recovered.mapper.frame(), config)?;
    check_path(path, &recovered.mapper, config)?;
    recovered.mapper.model().check(config).map_err(|error| other_model(path, &error))?;
    let file = recovered.file(database);
    recovered.settle();
    let Recovered { mut mapper, batches, .. } = recovered;
    if let Some(unplaced) = keep_unplaced(path, &mapper)? {
        log::warn!("{unplaced}");
    }
    let seeks = mapper.may_begin_anywhere(config);
    mapper.take(Step::Configure(Box::new(config.clone())), &StopSignal::default());
    let what = if initial_map == InitialMap::Saved {
        mapper.begin_stream();
        "the map"
    } else {
        "the unfinished map"
    };
    log::info!("continuing {what} {}: {}", path.display(), mapper.model().totals);
    if seeks {
        mapper.take(Step::Seek, &StopSignal::default());
    }
    Ok(Some((mapper, file, batches, initial_map)))
}

/// Whether this run continues the map in a file.
fn is_continued(path: &Path, recovered: &Recovered, config: &Config, source: &SourceId) -> Result<bool, Error> {
    let progress = recovered.mapper.progress();
    if recovered.is_saved && !config.node.load_at_start {
        return Ok(false);
    }
    if !recovered.is_saved {
        let made_by = progress.source();
        let is_own = made_by.is_none_or(|made_by| made_by == source) && !source.is_recording();
        if !config.store.resume || !is_own {
            log::warn!(
                "an unfinished map{} is in {}: it is kept, and will be renamed when another one is written",
                made_by.map_or(String::new(), |made_by| format!(" of {}", made_by.name)),
                path.display()
            );
            return Ok(false);
        }
    }
    if source.is_recording() && progress.holds(source, recovered.mapper.model().totals.batches()) {
        return Err(Error::Refused(format!(
            "{} is already in the map {}, and a recording is never mapped twice into one map; start a new map \
             (node.load_at_start = false), or choose another name (node.map_name)",
            source.name,
            path.display()
        )));
    }
    Ok(true)
}

/// Whether a map whose path was corrected is continued as it was made.
fn check_path(path: &Path, mapper: &Mapper, config: &Config) -> Result<(), Error> {
    let before = mapper.config();
    let is_corrected = !mapper.trajectory().correction.nodes().is_empty();
    let is_by_field = config.slam.enabled && before.slam.enabled;
    let is_by_other_slam = config.follows_other_slam() && before.follows_other_slam();
    if !is_corrected || is_by_field || is_by_other_slam {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the path of {} was corrected or merged with others: the node can continue it only as it was made, with slam.enabled or \
         slam.path_topic; choose another name (node.map_name), or start a new map (node.load_at_start = false, store.resume = false) and \
         merge both",
        path.display()
    )))
}

/// Reads the newest state of a map into memory: a file, or that in the output folder of a replay. Damage is logged; nothing in the
/// file changes.
///
/// # Errors
/// [`Error::InUse`], and [`Error::Read`] where nothing can be read.
pub fn read(path: &Path) -> Result<Checkpoint, Error> {
    let database = Arc::new(Database::open_to_read(file_of(path))?);
    let recovered = database.recover(&Config::default(), Gaps::Skip, |_| ())?;
    recovered.findings.iter().for_each(|finding| log::warn!("{finding}"));
    Checkpoint::of(&recovered.mapper)
}

/// Reads the newest state of a map with the trajectory that it was made from, batch by batch and by odometry. What waits to be learnt is
/// learnt; nothing in the file changes.
///
/// # Errors
/// The errors of [`read`], and [`Error::Read`] where the trajectory is damaged or not complete.
pub fn read_whole(path: &Path) -> Result<(Checkpoint, Vec<Vec<Observation>>), Error> {
    let database = Arc::new(Database::open_to_read(file_of(path))?);
    let mut recovered = database.recover(&Config::default(), Gaps::Skip, |_| ())?;
    recovered.findings.iter().for_each(|finding| log::warn!("{finding}"));
    recovered.end();
    let in_file = database.batches().rows.into_iter().filter_map(|(_, batch)| batch);
    let batches: BTreeMap<u64, Batch> = in_file.chain(recovered.batches).map(|batch| (batch.number, batch)).collect();
    let expected = recovered.mapper.model().totals.batches();
    let observations = |number| trajectory::from_bytes(&batches.get(&number)?.observations);
    let whole: Option<Vec<Vec<Observation>>> = (0..expected).map(observations).collect();
    let Some(batches) = whole.filter(|_| recovered.lost_steps == 0) else {
        let problem = Problem::Damaged("its trajectory is not complete".into());
        return Err(Error::Read { path: database.path().to_owned(), problem });
    };
    Ok((Checkpoint::of(&recovered.mapper)?, batches))
}

/// Writes a map that was made at once from these batches into a file of its own, in which it is saved: whole, or not at all. What is at
/// this path becomes an earlier map, whose path is returned.
///
/// # Errors
/// [`Error::InUse`], and [`Error::File`].
pub fn write(
    path: &Path,
    map: &Checkpoint,
    batches: &[Vec<Observation>],
    earlier_maps: usize,
) -> Result<Option<PathBuf>, Error> {
    write_as(path, map, true, batches, earlier_maps)
}

/// A drive of a run whose place in the map that it continued was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The map of its own that was made of it.
    pub file: PathBuf,
    /// Number of its observations.
    pub observations: usize,
}

impl Display for Unplaced {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { file, observations } = self;
        let file = file.display();
        write!(
            f,
            "the robot was not found in the map: {observations} observations are a map of their own, {file}, which magmap merge joins \
             to it"
        )
    }
}

/// Writes what is held into a map of its own beside the map, unless that was done before; none where nothing is held.
///
/// # Errors
/// [`Error::InUse`], and [`Error::File`].
pub fn keep_unplaced(path: &Path, mapper: &Mapper) -> Result<Option<Unplaced>, Error> {
    let Some(unplaced) = mapper.unplaced() else { return Ok(None) };
    // All runs of a recording are equal.
    let run =
        mapper.progress().sources.last().map(|run| if run.run.is_empty() { &run.id.fingerprint } else { &run.run });
    let run: String = run.into_iter().flat_map(|run| run.chars()).take(8).collect();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let file = path.with_file_name(format!("{name}-unplaced-{run}.magmap"));
    if !file.exists() {
        write_as(&file, &Checkpoint::of(&unplaced)?, false, &[], 0)?;
    }
    let observations = unplaced.ready().iter().map(|batch| batch.observations.len()).sum();
    Ok(Some(Unplaced { file, observations }))
}

fn write_as(
    path: &Path,
    map: &Checkpoint,
    is_saved: bool,
    batches: &[Vec<Observation>],
    earlier_maps: usize,
) -> Result<Option<PathBuf>, Error> {
    let _reservation = Reservation::of(path)?;
    let unwritten = || FileError::of("write the map", path, "");
    std::fs::create_dir_all(folder_of(path)).map_err(unwritten())?;
    let folder = tempfile::Builder::new().prefix(".magmap-").tempdir_in(folder_of(path)).map_err(unwritten())?;
    let file = folder.path().join(FILE_NAME);
    let database = Arc::new(Database::new(&file));
    database.begin(0)?;
    let runs = &map.stream.progress.sources;
    let batch = |(number, observations): (u64, &Vec<Observation>)| Batch::of(number, runs, observations);
    let batches: Vec<Batch> = (0..).zip(batches).map(batch).collect();
    map.write(&database, is_saved, &batches).map_err(unwritten())?;
    database.finish(is_saved).map_err(unwritten())?;
    drop(database);
    let kept = keep_as_earlier_map(path, earlier_maps)?;
    let renamed = std::fs::File::open(&file).and_then(|written| written.sync_all());
    let renamed = renamed.and_then(|()| std::fs::rename(&file, path)).and_then(|()| sync_folder_of(path));
    renamed.map_err(unwritten())?;
    Ok(kept)
}

/// Removes the file of a map that no process writes, if there is one.
///
/// # Errors
/// [`Error::InUse`], and [`Error::File`].
pub fn remove(path: &Path) -> Result<(), Error> {
    if let Err(error @ Error::InUse { .. }) = Database::open(path) {
        return Err(error);
    }
    for file in siblings(path).filter(|file| file.exists()) {
        std::fs::remove_file(&file).map_err(FileError::of("remove", &file, ""))?;
    }
    Ok(())
}

/// The map in a file, without anything that waits to be learnt, to replace another one; and the file in which it is continued, with the
/// batches that this does not have yet.
///
/// # Errors
/// The errors of opening and reading it.
pub(crate) fn load(path: &Path, config: &Config) -> Result<(Mapper, Arc<Database>, Vec<Batch>), Error> {
    let database = Arc::new(Database::open(path)?);
    let mut recovered = database.recover(config, Gaps::Skip, |_| ())?;
    report(&recovered);
    recovered.end();
    let file = recovered.file(database);
    Ok((recovered.mapper, file, recovered.batches))
}

fn report(recovered: &Recovered) {
    recovered.findings.iter().for_each(|finding| log::error!("{finding}"));
    if recovered.lost_steps > 0 {
        log::error!("{} steps (readings, poses) are lost; all others are in the map", recovered.lost_steps);
    }
}

/// Why nothing can be written now, found by a temporary file.
fn trouble(path: &Path) -> Option<String> {
    let folder = path.ancestors().skip(1).find(|folder| folder.exists())?;
    tempfile::tempfile_in(folder).err().map(|error| format!("cannot write in {}: {error}", folder.display()))
}

/// The default folder of maps: that of ROS.
fn default_folder() -> PathBuf {
    let from_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from_environment("ROS_HOME")
        .or_else(|| Some(from_environment("HOME")?.join(".ros")))
        .unwrap_or_default()
        .join("magmap")
}

/// Rejects a map whose frame differs from that of the settings; either may still be unknown.
fn check_frame(path: &Path, kept: &str, config: &Config) -> Result<(), Error> {
    let given = crate::sensing::frames::normalized(config.map_frame());
    if kept.is_empty() || given.is_empty() || kept == given {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a map of frame \"{kept}\", and the new one would be of \"{given}\"; set frames.map = \"{kept}\", choose another name \
         (node.map_name), or start a new map (node.load_at_start = false, store.resume = false)",
        path.display()
    )))
}

/// The settings are those of a different model.
fn other_model(path: &Path, difference: &dyn Display) -> Error {
    Error::Refused(format!(
        "{} cannot be continued: {difference}; or choose another name (node.map_name), or start a new map \
         (node.load_at_start = false, store.resume = false)",
        path.display()
    ))
}

/// During its lifetime no other process of this machine maps under the same name. The file of a map is locked as well, but a new one does
/// not exist before there is something to write.
#[derive(Debug)]
pub struct Reservation {
    /// Locked until it is closed, however the process ends; none where it cannot be created.
    _lock: Option<File>,
}

impl Reservation {
    /// Reserves the name of this map.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let absolute = absolute(path);
        let name = absolute.file_stem().unwrap_or_default().to_string_lossy();
        let checksum = crc32fast::hash(absolute.as_os_str().as_encoded_bytes());
        let file = std::env::temp_dir().join(format!("magmap-{name}-{checksum:08x}.lock"));
        let without = |error: io::Error| {
            log::warn!(
                "{} cannot be locked ({error}): start no second process with the map {}, which would not notice this one",
                file.display(),
                path.display()
            );
            Ok(Self { _lock: None })
        };
        let mut lock = match File::options().create(true).truncate(false).read(true).write(true).open(&file) {
            Ok(lock) => lock,
            Err(error) => return without(error),
        };
        match lock.try_lock() {
            Ok(()) => {
                // Only for the message of a second process.
                let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id()));
                Ok(Self { _lock: Some(lock) })
            }
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let read = lock.rewind().and_then(|()| (&mut lock).take(20).read_to_string(&mut process));
                let process = read.ok().and_then(|_| process.parse().ok());
                Err(Error::InUse { path: path.to_owned(), process })
            }
            Err(TryLockError::Error(error)) => without(error),
        }
    }
}

/// The absolute path, without links in its existing part: the same for every spelling.
fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    match existing {
        Some((part, real)) => path.strip_prefix(part).map_or(real.clone(), |rest| real.join(rest)),
        None => path,
    }
}
