//! Recovers the map from the files of a journal.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::folder::{ExistingJournal, Folder, Numbered};
use super::segment::Segment;
use crate::config::Config;
use crate::durability::checkpoint::Checkpoint;
use crate::durability::{Error, map_store};
use crate::field::state::DamagedTile;
use crate::files::FileError;
use crate::mapping::mapper::Mapper;
use crate::mapping::stop::StopSignal;

/// Largest segment that is read, in bytes; four times what is written.
const LONGEST: u64 = 256 << 20;

/// What to do where steps are missing because a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// Stop there: the source can be read again.
    Stop,
    /// Continue after the gap: only the missing steps are lost.
    Skip,
}

/// A map recovered from a journal.
#[derive(Debug)]
pub struct Recovered {
    /// The map after the last recovered step.
    pub mapper: Mapper,
    /// Descriptions of damage and other problems.
    pub findings: Vec<String>,
    /// Number of steps that are lost.
    pub lost_steps: u64,
    /// Damaged files; [`Journal::start`](super::Journal::start) sets them aside once they are no longer needed.
    pub damaged: Vec<PathBuf>,
}

impl Folder {
    /// Replays all steps since the newest valid checkpoint, including learning. `progress` is called after every step. `None` where
    /// there is no map. Nothing in the folder changes.
    ///
    /// `settings` are used where the journal's own cannot be read.
    ///
    /// # Errors
    /// [`Error::File`]. Damage is not an error: it is among the findings.
    pub fn recover(
        &self,
        settings: &Config,
        gaps: Gaps,
        mut progress: impl FnMut(&Mapper),
    ) -> Result<Option<Recovered>, Error> {
        let segments = self.segments()?;
        let mut recovery = Recovery::default();
        let start = recovery.newest(self, |recovery, path, checkpoint| {
            let config = recovery.settings_of(path, &checkpoint.config, settings);
            checkpoint.resume(&config).map_err(|error| error.to_string())
        })?;
        let start = match start {
            Some(start) => Some(start),
            None => recovery.take_first_segment(&segments, settings)?,
        };
        let Some(mut mapper) = start else { return Ok(None) };
        for (index, (first, path)) in segments.iter().enumerate() {
            let is_over = segments.get(index + 1).is_some_and(|(next, _)| *next <= mapper.progress().steps);
            if !is_over && !recovery.take_steps(*first, path, gaps, &mut mapper, &mut progress) {
                break;
            }
        }
        let Recovery { findings, lost_steps, damaged } = recovery;
        Ok(Some(Recovered { mapper, findings, lost_steps, damaged }))
    }

    /// Whether it contains a map, or the remains of one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn holds_map(&self) -> Result<bool, Error> {
        Ok(!self.checkpoints()?.is_empty() || !self.segments()?.is_empty())
    }

    /// Renames the folder with everything in it to an earlier map, of which at most `earlier_maps` are kept, and returns its new path.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn set_aside(self, earlier_maps: usize) -> Result<PathBuf, Error> {
        let path = self.path.clone();
        drop(self);
        let renamed = map_store::set_aside(&path, earlier_maps);
        Ok(renamed.map_err(FileError::of("rename", path, "; move it away manually"))?)
    }
}

/// Reads the newest checkpoint from a journal's folder, without replaying steps or locking the folder. `None` if there is none, or
/// anything is damaged.
///
/// # Errors
/// [`Error::File`].
pub fn undamaged_checkpoint(path: &Path) -> Result<Option<Checkpoint>, Error> {
    let folder = Folder::deferred(path, ExistingJournal::Keep, None);
    let mut recovery = Recovery::default();
    let checkpoint = recovery.newest(&folder, |_, _, checkpoint| Ok(checkpoint))?;
    let since = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.stream.progress.steps);
    for (first, path) in folder.segments()?.into_iter().filter(|(first, _)| *first >= since) {
        let damages = recovery.segment(&path, first).into_iter().flatten().filter_map(Result::err);
        damages.for_each(|damage| recovery.damage(&path, &damage));
    }
    Ok(checkpoint.filter(|_| recovery.findings.is_empty()))
}

#[derive(Default)]
struct Recovery {
    findings: Vec<String>,
    lost_steps: u64,
    damaged: Vec<PathBuf>,
}

impl Recovery {
    /// The newest checkpoint that can be read with all of its tiles, or else the newest that can be read; others are damaged.
    fn newest<T>(
        &mut self,
        folder: &Folder,
        mut take: impl FnMut(&mut Self, &Path, Checkpoint) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let mut partial: Vec<(PathBuf, T, usize)> = Vec::new();
        for (_, path) in folder.checkpoints()?.into_iter().rev() {
            let read = Checkpoint::read_with_tiles(&path, &folder.tiles).map_err(|error| error.to_string());
            match read.and_then(|(checkpoint, lost)| Ok((take(self, &path, checkpoint)?, lost))) {
                Ok((taken, lost)) if lost.is_empty() => {
                    partial.iter().for_each(|(newer, ..)| self.damage(newer, "an earlier checkpoint has all tiles"));
                    return Ok(Some(taken));
                }
                Ok((taken, lost)) => {
                    partial.push((path, taken, lost.len()));
                    for DamagedTile { file, problem } in lost {
                        self.damage(&folder.tiles.file(&file), &problem.to_string());
                    }
                }
                Err(error) => self.damage(&path, &error),
            }
        }
        Ok(partial.into_iter().next().map(|(path, taken, lost)| {
            let path = path.display();
            self.findings.push(format!("{path}: what {lost} tiles have learnt is lost; the rest of the map is used"));
            taken
        }))
    }

    /// A segment, unless it is damaged as a whole.
    fn segment(&mut self, path: &Path, first: u64) -> Option<Segment> {
        let bytes = read(path).map_err(|error| error.to_string());
        let segment = bytes.and_then(|bytes| Segment::open(bytes, first));
        segment.inspect_err(|problem| self.damage(path, problem)).ok()
    }

    /// A new map with the settings of its first segment, if that exists.
    fn take_first_segment(&mut self, segments: &[Numbered], settings: &Config) -> Result<Option<Mapper>, Error> {
        let Some((0, path)) = segments.first() else { return Ok(None) };
        let head = read(path).ok().and_then(|bytes| Segment::open(bytes, 0).ok()?.head);
        let config = head.map_or_else(|| settings.clone(), |head| self.settings_of(path, &head.config, settings));
        Ok(Some(Mapper::new(&config)))
    }

    /// The settings in a file, or those given if they are of an incompatible version.
    fn settings_of(&mut self, path: &Path, text: &str, given: &Config) -> Config {
        Config::from_toml(text, &path.display().to_string()).unwrap_or_else(|error| {
            self.findings.push(format!("{error}; the current settings are used instead"));
            given.clone()
        })
    }

    /// Takes the steps of a segment; false if later segments cannot follow.
    fn take_steps(
        &mut self,
        first: u64,
        path: &Path,
        gaps: Gaps,
        mapper: &mut Mapper,
        progress: &mut impl FnMut(&Mapper),
    ) -> bool {
        let Some(segment) = self.segment(path, first) else { return gaps == Gaps::Skip };
        let stop = StopSignal::default();
        for item in segment {
            let (number, step) = match item {
                Ok(step) => step,
                Err(damage) => {
                    self.damage(path, &damage);
                    continue;
                }
            };
            let expected = mapper.progress().steps;
            if number < expected {
                continue;
            }
            let missing = number - expected;
            if missing > 0 {
                if gaps == Gaps::Stop {
                    self.findings.push(format!(
                        "{}: the steps from {expected} to {number} are missing; later steps are not used",
                        path.display()
                    ));
                    return false;
                }
                self.findings.push(format!("{}: {missing} steps are lost", path.display()));
                self.lost_steps += missing;
                mapper.skip(missing);
            }
            mapper.take(step, &stop);
            progress(mapper);
        }
        true
    }

    fn damage(&mut self, path: &Path, what: &str) {
        self.findings.push(format!("{}: {what}", path.display()));
        if !self.damaged.iter().any(|damaged| damaged == path) {
            self.damaged.push(path.to_owned());
        }
    }
}

/// All bytes of a segment, unless it is too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    if length > LONGEST {
        return Err(io::Error::other(format!("expected at most {LONGEST} bytes, found {length}")));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}
