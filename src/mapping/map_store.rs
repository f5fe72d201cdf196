//! The maps of robots in a folder: where a run begins, what saving may overwrite, and what becomes of maps that make room.
//!
//! ```text
//! FOLDER/map.npz                          the map, as it was saved
//! FOLDER/map.journal/                     a map that is being made, or was when its process died
//! FOLDER/map.2026-05-04T09-30-12Z.npz     an earlier map that made room: a map like any other, under a name with its time
//! FOLDER/robot1/map.npz                   the map of a robot in the namespace /robot1
//! ```
//!
//! Nothing is overwritten but by a map that continues it, and nothing changes before a reading is used.

mod earlier;
mod list;
mod reservation;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nalgebra::Isometry3;

use super::checkpoint::Checkpoint;
use super::field_model::FieldModel;
use super::journal::{self, Existing, Folder, Gaps, Recovered};
use super::learner::StopSignal;
use super::mapper::{Mapper, SourceId, Step};
use super::pipeline::Pipeline;
use crate::config::{Config, Resume};

pub(super) use self::earlier::{earlier, make_room, set_aside};
pub use self::list::{Contents, Listed, State, list};
pub use self::reservation::Reservation;

/// Why a map cannot be continued, saved or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process maps under the same name.
    #[error(
        "the map {} is being written by another process{}; end that first, or choose another name: node.map_name, in the launch \
         files map_name:=NAME",
        path.display(), process.map_or(String::new(), |process| format!(" ({process})"))
    )]
    InUse {
        /// The map's file.
        path: PathBuf,
        /// The process that writes, where it is known.
        process: Option<u32>,
    },
    /// The map's coordinates are of another frame.
    #[error(
        "{} is a map of frame \"{kept}\", and frames.map is \"{given}\"; set frames.map = \"{kept}\", choose another name \
         (node.map_name), or start a new map (node.load_at_start = false, journal.resume = \"never\")",
        path.display()
    )]
    OtherFrame {
        /// The map's file, or its journal.
        path: PathBuf,
        /// Its frame.
        kept: String,
        /// That of the settings.
        given: String,
    },
    /// The settings are for another model.
    #[error(
        "{} cannot be continued: {source}; or choose another name (node.map_name), or start a new map (node.load_at_start = false, \
         journal.resume = \"never\")",
        path.display()
    )]
    OtherModel {
        /// The map's file, or its journal.
        path: PathBuf,
        /// What differs.
        source: super::Error,
    },
    /// The recording is in the map already.
    #[error(
        "{name} is in the map {} already, and no recording is mapped twice into one map; start a new map \
         (node.load_at_start = false), or choose another name (node.map_name)",
        path.display()
    )]
    AlreadyMapped {
        /// The map's file.
        path: PathBuf,
        /// The recording.
        name: String,
    },
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The map cannot be written or read.
    #[error(transparent)]
    Mapping(#[from] super::Error),
    /// A file cannot be moved out of the way.
    #[error("cannot make room for a map at {}: {source}; move what is there away by hand", path.display())]
    MakeRoom {
        /// What was to be moved.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// The file of a map by its name, with its journal and the earlier maps of that name beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFile {
    path: PathBuf,
    /// How many earlier maps of this name are kept.
    earlier_maps: usize,
}

/// Where a run begins.
#[derive(Debug)]
pub struct Start {
    /// The map, with its source taken; nothing on disk has changed.
    pub mapper: Mapper<FieldModel>,
    /// Its frame; empty where that is not known yet.
    pub frame: String,
    /// Where its journal is to be.
    pub folder: Folder,
    /// Damaged files of the journal.
    pub damaged: Vec<PathBuf>,
    /// Whether it is a new map, or which one it continues.
    pub beginning: Beginning,
}

/// Whether a run begins a new map, or which one it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A new map.
    New,
    /// The saved one.
    Saved,
    /// One whose process died, or ended without saving it.
    Unfinished,
}

impl MapFile {
    /// The map of this name in a folder.
    pub fn new(folder: &Path, name: &str, earlier_maps: usize) -> Self {
        Self { path: folder.join(format!("{name}.npz")), earlier_maps }
    }

    /// The map that the settings name, for a node in this namespace: each has a folder of its own.
    pub fn of(config: &Config, namespace: &str) -> Self {
        let folder = match config.node.map_folder.as_str() {
            "" => default_folder(),
            folder => PathBuf::from(folder),
        };
        let folder = folder.join(namespace.trim_matches('/'));
        Self::new(&folder, &config.node.map_name, config.node.earlier_maps)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of its journal.
    pub fn journal(&self) -> PathBuf {
        self.path.with_extension("journal")
    }

    /// Makes sure that no other process of this machine maps under this name, for as long as the reservation lives.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub fn reserve(&self) -> Result<Reservation, Error> {
        Reservation::of(&self.path)
    }

    /// Finds out where a run of `source` begins: with the unfinished map of the same robot, with the saved map, or with a new one,
    /// as the settings say. Nothing on disk changes. `run` tells this run from all others.
    ///
    /// # Errors
    /// [`Error::OtherFrame`], [`Error::OtherModel`], [`Error::AlreadyMapped`] and [`Error::InUse`]. Damage is no error: it is
    /// logged, and what is damaged is kept.
    pub fn begin(&self, config: &Config, source: &SourceId, run: String) -> Result<Start, Error> {
        let mut start = match self.find_unfinished(config, source)? {
            Unfinished::Continued(start) => *start,
            Unfinished::None { existing, trouble } => {
                let folder = Folder::wanted(self.journal(), existing, trouble.or_else(|| self.trouble()));
                self.find_saved(config, source, folder)?
            }
        };
        start.mapper.take(Step::Source { id: source.clone(), run }, &StopSignal::default());
        Ok(start)
    }

    fn find_unfinished(&self, config: &Config, source: &SourceId) -> Result<Unfinished, Error> {
        let path = self.journal();
        let nothing = Unfinished::None { existing: Existing::Keep, trouble: None };
        if !path.is_dir() {
            return Ok(nothing);
        }
        let folder = match Folder::open(&path) {
            Ok(folder) => folder,
            Err(journal::Error::InUse { .. }) => {
                return Err(Error::InUse { path: self.path.clone(), process: None });
            }
            Err(error) => {
                log::error!("{error}; mapping continues without it, and it is tried again: a crash would cost the map");
                return Ok(Unfinished::None { existing: Existing::Keep, trouble: Some(error.to_string()) });
            }
        };
        let Some(recovered) = folder.recover(config, Gaps::Skip, |_| ())? else { return Ok(nothing) };
        let is_saved = || {
            let kept = Checkpoint::of(&recovered.config, &recovered.mapper, &recovered.frame);
            kept.is_ok_and(|kept| self.is_safe(&kept))
        };
        let has_ended = recovered.mapper.standing().has_ended && recovered.findings.is_empty();
        if has_ended && is_saved() {
            return Ok(Unfinished::None { existing: Existing::Remove, trouble: None });
        }
        let is_wanted = match config.journal.resume {
            Resume::Never => false,
            Resume::Unfinished => !has_ended || config.node.load_at_start,
            Resume::Always => true,
        };
        let made_by = recovered.mapper.standing().source().cloned();
        // A journal of before sources were named is of a robot.
        let is_own = made_by.as_ref().is_none_or(|made_by| made_by == source) && !source.is_recording();
        if !is_wanted || !is_own {
            log::warn!(
                "an unfinished map{} is in {}: it is kept, and gets a name of its own as soon as there is another to write",
                made_by.map_or(String::new(), |made_by| format!(" of {}", made_by.name)),
                path.display()
            );
            return Ok(nothing);
        }
        self.continued(recovered, folder, config).map(|start| Unfinished::Continued(Box::new(start)))
    }

    /// The map as it was, under the settings of now.
    fn continued(&self, recovered: Recovered, folder: Folder, config: &Config) -> Result<Start, Error> {
        let Recovered { mapper, config: kept, frame, findings, lost_steps, damaged } = recovered;
        findings.iter().for_each(|finding| log::error!("{finding}"));
        if lost_steps > 0 {
            log::error!("{lost_steps} steps (readings, poses) of the journal are lost; everything else is in the map");
        }
        let path = folder.path().to_owned();
        check_frame(&path, &frame, config)?;
        // A state can be taken up under other settings.
        let mapper = Checkpoint::of(&kept, &mapper, &frame)?
            .resume(config)
            .map_err(|source| Error::OtherModel { path, source })?;
        log::info!("continuing the unfinished map of before: {}", in_words(&mapper));
        Ok(Start { mapper, frame, folder, damaged, beginning: Beginning::Unfinished })
    }

    fn find_saved(&self, config: &Config, source: &SourceId, folder: Folder) -> Result<Start, Error> {
        let new = |folder| {
            let mapper = Mapper::new(Pipeline::new(config, Isometry3::identity()), FieldModel::new(config));
            Start { mapper, frame: String::new(), folder, damaged: Vec::new(), beginning: Beginning::New }
        };
        if !config.node.load_at_start || !self.path.exists() {
            return Ok(new(folder));
        }
        let checkpoint = match Checkpoint::read(&self.path) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                log::error!(
                    "{error}; a new map begins, and the file is kept under a name of its own when that is saved"
                );
                return Ok(new(folder));
            }
        };
        if source.is_recording() && checkpoint.standing().holds(source) {
            return Err(Error::AlreadyMapped { path: self.path.clone(), name: source.name.clone() });
        }
        check_frame(&self.path, checkpoint.frame(), config)?;
        let path = self.path.clone();
        let mut mapper = checkpoint.resume(config).map_err(|source| Error::OtherModel { path, source })?;
        mapper.begin_stream(config);
        log::info!("continuing the map {}: {}", self.path.display(), in_words(&mapper));
        let frame = checkpoint.frame().to_owned();
        Ok(Start { mapper, frame, folder, damaged: Vec::new(), beginning: Beginning::Saved })
    }

    /// Why nothing could be written now, without writing anything that stays.
    fn trouble(&self) -> Option<String> {
        let folder = self.path.ancestors().skip(1).find(|folder| folder.exists())?;
        tempfile::tempfile_in(folder).err().map(|error| format!("cannot write in {}: {error}", folder.display()))
    }

    /// Saves a map. What was there before is overwritten if the map continues it, and otherwise gets the name of an earlier map,
    /// which is returned.
    ///
    /// # Errors
    /// [`Error::MakeRoom`] and [`Error::Mapping`]; what was there before is there still, if under another name.
    pub fn save(&self, map: &Checkpoint) -> Result<Option<PathBuf>, Error> {
        self.make_folder()?;
        let continues = |path: &Path| Checkpoint::read(path).is_ok_and(|saved| map.continues(&saved));
        let mut moved = None;
        if self.path.exists() && !continues(&self.path) {
            let kept = set_aside(&self.path, self.earlier_maps);
            let kept = kept.map_err(|source| Error::MakeRoom { path: self.path.clone(), source })?;
            log::info!("{} is another map: it is kept as {}", self.path.display(), kept.display());
            moved = Some(kept);
        }
        map.write(&self.path)?;
        Ok(moved)
    }

    /// Keeps a map that is about to be forgotten, unless it is empty or saved already: under the name of an earlier map, which is
    /// returned.
    ///
    /// # Errors
    /// [`Error::MakeRoom`] and [`Error::Mapping`].
    pub fn keep(&self, map: &Checkpoint) -> Result<Option<PathBuf>, Error> {
        if self.is_safe(map) {
            return Ok(None);
        }
        self.make_folder()?;
        let path = earlier(&self.path);
        map.write(&path)?;
        make_room(&self.path, self.earlier_maps);
        log::info!("the map so far is kept as {}", path.display());
        Ok(Some(path))
    }

    /// Whether nothing is lost without this map: it is empty, or the saved one is the same or continues it.
    fn is_safe(&self, map: &Checkpoint) -> bool {
        map.extent().is_none() || Checkpoint::read(&self.path).is_ok_and(|saved| saved.continues(map))
    }

    /// Removes the journal if it ended in good order and its map is saved; any other stays, and is what the next run begins with.
    pub fn finish(&self) {
        let path = self.journal();
        let is_safe = |last: &Checkpoint| last.standing().has_ended && self.is_safe(last);
        let has_ended = |look: journal::Look| look.findings.is_empty() && look.checkpoint.as_ref().is_some_and(is_safe);
        if !path.is_dir() || !journal::look(&path).is_ok_and(|look| look.is_some_and(has_ended)) {
            return;
        }
        match Folder::open(path) {
            Ok(folder) => folder.remove(),
            Err(error) => log::warn!("{error}; it is of no use any more, since the map is saved"),
        }
    }

    fn make_folder(&self) -> Result<(), Error> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|source| {
            let path = self.path.clone();
            super::Error::WriteCheckpoint { path, source }.into()
        })
    }
}

/// What a journal that is there means for a run.
enum Unfinished {
    Continued(Box<Start>),
    None { existing: Existing, trouble: Option<String> },
}

/// The folder of maps where the settings name no other: that of ROS.
fn default_folder() -> PathBuf {
    let from_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from_environment("ROS_HOME")
        .or_else(|| Some(from_environment("HOME")?.join(".ros")))
        .unwrap_or_default()
        .join("magmap")
}

/// Refuses a map of another frame than the settings name. It is not known before odometry has come.
fn check_frame(path: &Path, kept: &str, config: &Config) -> Result<(), Error> {
    let given = super::frames::normalized(&config.frames.map);
    if kept.is_empty() || given.is_empty() || kept == given {
        return Ok(());
    }
    Err(Error::OtherFrame { path: path.to_owned(), kept: kept.to_owned(), given: given.to_owned() })
}

/// How much a map is made of.
fn in_words(mapper: &Mapper<FieldModel>) -> String {
    mapper.learner().totals().to_string()
}
