//! The maps of robots in a folder: which one a run starts from, what saving may overwrite, and how earlier maps are kept.
//!
//! ```text
//! FOLDER/map.npz                          the saved map
//! FOLDER/map.journal/                     the map that is being made, or was when its process died
//! FOLDER/map.2026-05-04T09-30-12Z.npz     an earlier map, renamed at this time: a map like any other
//! FOLDER/robot1/map.npz                   the map of a robot in the namespace /robot1
//! ```
//!
//! A map is overwritten only by one that continues it, and nothing changes before a reading is used.

mod earlier_maps;
mod list;
mod reservation;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{Config, Resume};
use crate::durability::Error;
use crate::durability::checkpoint::{Checkpoint, unwritten};
use crate::durability::journal::{self, ExistingJournal, Folder, Gaps, Recovered};
use crate::files::{FileError, folder_of};
use crate::mapping::mapper::{Mapper, SourceId, Step};
use crate::mapping::stop::StopSignal;

pub(super) use self::earlier_maps::{earlier_path, remove_oldest, set_aside};
pub use self::list::{Contents, Listed, State, list};
pub use self::reservation::Reservation;

/// The file of a map by its name, with its journal and the earlier maps of that name beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of earlier maps of this name to keep.
    earlier_maps: usize,
}

/// The start of a run.
#[derive(Debug)]
pub struct MapStart {
    /// The map, with the run's source; nothing on disk has changed.
    pub mapper: Mapper,
    /// The folder of its journal.
    pub folder: Folder,
    /// Damaged files of the journal.
    pub damaged: Vec<PathBuf>,
    /// What the run starts from.
    pub initial_map: InitialMap,
}

/// The map that a run starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialMap {
    /// A new map.
    New,
    /// The saved map.
    Saved,
    /// A map whose process died, or ended without saving it.
    Unfinished,
}

impl MapFile {
    /// The map of this name in a folder.
    pub fn new(folder: &Path, name: &str, earlier_maps: usize) -> Self {
        Self { path: folder.join(format!("{name}.npz")), earlier_maps }
    }

    /// The map named in the settings, in the folder of the node's namespace.
    pub fn of(config: &Config, namespace: &str) -> Self {
        let folder = match config.node.map_folder.as_str() {
            "" => default_folder(),
            folder => PathBuf::from(folder),
        };
        let folder = folder.join(namespace.trim_matches('/'));
        Self::new(&folder, &config.node.map_name, config.node.earlier_maps)
    }

    /// The folder of its journal.
    pub fn journal(&self) -> PathBuf {
        self.path.with_extension("journal")
    }

    /// Starts a run of `source` from the unfinished map of the same robot, the saved map or a new one, as the settings say. Nothing
    /// on disk changes. `run` identifies this run.
    ///
    /// # Errors
    /// [`Error::Refused`]: a map of another frame or with settings of another model, one that has the recording already, or one that
    /// another process is making. Damage is not an error: it is logged, and damaged files are kept.
    pub fn begin(&self, config: &Config, source: &SourceId, run: String) -> Result<MapStart, Error> {
        let (folder, unfinished) = self.find_unfinished(config, source)?;
        let mut start = match unfinished {
            Some(recovered) => continued(recovered, folder, config)?,
            None => self.find_saved(config, source, folder)?,
        };
        start.mapper.take(Step::Source { id: source.clone(), run }, &StopSignal::default());
        Ok(start)
    }

    /// The folder of the journal, and the unfinished map in it if that is to be continued.
    fn find_unfinished(&self, config: &Config, source: &SourceId) -> Result<(Folder, Option<Recovered>), Error> {
        let path = self.journal();
        let other = |existing, trouble: Option<String>| {
            Ok((Folder::deferred(self.journal(), existing, trouble.or_else(|| self.trouble())), None))
        };
        if !path.is_dir() {
            return other(ExistingJournal::Keep, None);
        }
        let folder = match Folder::open(&path) {
            Ok(folder) => folder,
            Err(Error::InUse(_)) => return Err(in_use(&self.path, None)),
            Err(error) => {
                log::error!(
                    "{error}; mapping continues without it and it will be retried, but a crash would cost the map"
                );
                return other(ExistingJournal::Keep, Some(error.to_string()));
            }
        };
        let Some(recovered) = folder.recover(config, Gaps::Skip, |_| ())? else {
            return other(ExistingJournal::Keep, None);
        };
        let is_saved = || Checkpoint::of(&recovered.mapper).is_ok_and(|kept| self.is_safe(&kept));
        let has_ended = recovered.mapper.progress().has_ended && recovered.findings.is_empty();
        if has_ended && is_saved() {
            return other(ExistingJournal::Remove, None);
        }
        let is_wanted = match config.journal.resume {
            Resume::Never => false,
            Resume::Unfinished => !has_ended || config.node.load_at_start,
            Resume::Always => true,
        };
        let made_by = recovered.mapper.progress().source().cloned();
        let is_own = made_by.as_ref().is_none_or(|made_by| made_by == source) && !source.is_recording();
        if !is_wanted || !is_own {
            log::warn!(
                "an unfinished map{} is in {}: it is kept, and will be renamed when another one is written",
                made_by.map_or(String::new(), |made_by| format!(" of {}", made_by.name)),
                path.display()
            );
            return other(ExistingJournal::Keep, None);
        }
        Ok((folder, Some(recovered)))
    }

    fn find_saved(&self, config: &Config, source: &SourceId, folder: Folder) -> Result<MapStart, Error> {
        let new = |folder| MapStart {
            mapper: Mapper::new(config),
            folder,
            damaged: Vec::new(),
            initial_map: InitialMap::New,
        };
        if !config.node.load_at_start || !self.path.exists() {
            return Ok(new(folder));
        }
        let checkpoint = match Checkpoint::read(&self.path) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                log::error!("{error}; starting a new map, and the file will be renamed when that is saved");
                return Ok(new(folder));
            }
        };
        if source.is_recording() && checkpoint.stream.progress.holds(source) {
            return Err(Error::Refused(format!(
                "{} is already in the map {}, and a recording is never mapped twice into one map; start a new map \
                 (node.load_at_start = false), or choose another name (node.map_name)",
                source.name,
                self.path.display()
            )));
        }
        check_frame(&self.path, &checkpoint.frame, config)?;
        let mut mapper = checkpoint.resume(config).map_err(|error| other_model(&self.path, &error))?;
        mapper.begin_stream();
        log::info!("continuing the map {}: {}", self.path.display(), mapper.model().totals);
        Ok(MapStart { mapper, folder, damaged: Vec::new(), initial_map: InitialMap::Saved })
    }

    /// Why nothing can be written now, found by a temporary file.
    fn trouble(&self) -> Option<String> {
        let folder = self.path.ancestors().skip(1).find(|folder| folder.exists())?;
        tempfile::tempfile_in(folder).err().map(|error| format!("cannot write in {}: {error}", folder.display()))
    }

    /// Saves a map. An existing file is overwritten if the map continues it, and otherwise renamed to an earlier map, whose path is
    /// returned.
    ///
    /// # Errors
    /// [`Error::File`]; the existing map is kept, possibly renamed.
    pub fn save(&self, map: &Checkpoint) -> Result<Option<PathBuf>, Error> {
        self.make_folder()?;
        let continues = |path: &Path| Checkpoint::read(path).is_ok_and(|saved| map.continues(&saved));
        let mut moved = None;
        if self.path.exists() && !continues(&self.path) {
            let kept = set_aside(&self.path, self.earlier_maps);
            let kept = kept.map_err(FileError::of("rename the existing map", &self.path, "; move it away manually"))?;
            log::info!("{} is another map: it is kept as {}", self.path.display(), kept.display());
            moved = Some(kept);
        }
        map.write(&self.path)?;
        Ok(moved)
    }

    /// Keeps a map that is about to be discarded as an earlier map, unless it is empty or saved already. Returns its path.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn keep(&self, map: &Checkpoint) -> Result<Option<PathBuf>, Error> {
        if self.is_safe(map) {
            return Ok(None);
        }
        self.make_folder()?;
        let path = earlier_path(&self.path);
        map.write(&path)?;
        remove_oldest(&self.path, self.earlier_maps);
        log::info!("the map so far is kept as {}", path.display());
        Ok(Some(path))
    }

    /// Whether nothing is lost without this map: it is empty, or the saved one continues it.
    fn is_safe(&self, map: &Checkpoint) -> bool {
        map.model.extent.is_none() || Checkpoint::read(&self.path).is_ok_and(|saved| saved.continues(map))
    }

    /// Removes the journal if its map is saved, and it was closed cleanly or `resumed` is the map that a run has made of it; otherwise the
    /// next run starts from it.
    pub fn finish(&self, resumed: Option<&Checkpoint>) {
        let path = self.journal();
        let is_safe = |last: &Checkpoint| match resumed {
            Some(map) => map.continues(last) && self.is_safe(map),
            None => last.stream.progress.has_ended && self.is_safe(last),
        };
        let last = if path.is_dir() { journal::undamaged_checkpoint(&path).ok().flatten() } else { None };
        if !last.as_ref().is_some_and(is_safe) {
            return;
        }
        match Folder::open(path) {
            Ok(folder) => folder.remove(),
            Err(error) => log::warn!("{error}; it is no longer needed, since the map is saved"),
        }
    }

    fn make_folder(&self) -> Result<(), Error> {
        Ok(fs::create_dir_all(folder_of(&self.path)).map_err(unwritten(&self.path))?)
    }
}
/// Continues a recovered map with the current settings.
fn continued(recovered: Recovered, folder: Folder, config: &Config) -> Result<MapStart, Error> {
    let Recovered { mut mapper, findings, lost_steps, damaged } = recovered;
    findings.iter().for_each(|finding| log::error!("{finding}"));
    if lost_steps > 0 {
        log::error!("{lost_steps} steps (readings, poses) of the journal are lost; all others are in the map");
    }
    check_frame(&folder.path, mapper.frame(), config)?;
    mapper.model().check(config).map_err(|error| other_model(&folder.path, &error))?;
    mapper.take(Step::Configure(Box::new(config.clone())), &StopSignal::default());
    log::info!("continuing the unfinished map: {}", mapper.model().totals);
    Ok(MapStart { mapper, folder, damaged, initial_map: InitialMap::Unfinished })
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
    let given = crate::sensing::frames::normalized(&config.frames.map);
    if kept.is_empty() || given.is_empty() || kept == given {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a map of frame \"{kept}\", but frames.map is \"{given}\"; set frames.map = \"{kept}\", choose another name \
         (node.map_name), or start a new map (node.load_at_start = false, journal.resume = \"never\")",
        path.display()
    )))
}

/// The settings are those of a different model.
fn other_model(path: &Path, difference: &dyn Display) -> Error {
    Error::Refused(format!(
        "{} cannot be continued: {difference}; or choose another name (node.map_name), or start a new map \
         (node.load_at_start = false, journal.resume = \"never\")",
        path.display()
    ))
}

/// Another process, whose number may be known, maps under the same name.
fn in_use(path: &Path, process: Option<u32>) -> Error {
    let process = process.map_or(String::new(), |process| format!(" ({process})"));
    Error::Refused(format!(
        "the map {} is being written by another process{process}; stop it first, or choose another name: node.map_name, in the \
         launch files map_name:=NAME",
        path.display()
    ))
}
