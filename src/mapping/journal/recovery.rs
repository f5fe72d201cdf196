//! From a journal's files back to the map.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nalgebra::Isometry3;

use super::super::checkpoint::Checkpoint;
use super::super::field_model::FieldModel;
use super::super::learner::StopSignal;
use super::super::map_store;
use super::super::mapper::{Mapper, Step};
use super::super::pipeline::Pipeline;
use super::Error;
use super::folder::{Existing, Folder, Numbered};
use super::segment::{Item, Segment};
use crate::config::Config;

/// Longest segment that is read. They are written up to a quarter of this.
const LONGEST: u64 = 256 << 20;

/// What to do where steps are missing, because a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// Stop there: what follows can be had again from its source.
    Stop,
    /// Go on behind it: what was lost is lost, the rest is not.
    Skip,
}

/// What was found in a journal.
#[derive(Debug)]
pub struct Recovered {
    /// The map as it was after the last step kept.
    pub mapper: Mapper<FieldModel>,
    /// The settings at that time.
    pub config: Config,
    /// The frame of the map; empty where the journal does not say.
    pub frame: String,
    /// What was not as it should be, in words.
    pub findings: Vec<String>,
    /// Steps that were lost.
    pub lost_steps: u64,
    /// Damaged files; [`Journal::start`](super::Journal::start) sets them aside when they are dispensable.
    pub damaged: Vec<PathBuf>,
}

impl Folder {
    /// Goes from the newest good checkpoint through all steps since, which learns again what was learnt since then. `progress` is
    /// told about every step. None where there is no map. Nothing is changed in the folder.
    ///
    /// `settings` are those of a map that has none of its own any more.
    ///
    /// # Errors
    /// [`Error::Folder`]. Damage is no error: it is among the findings.
    pub fn recover(
        &self,
        settings: &Config,
        gaps: Gaps,
        mut progress: impl FnMut(&Mapper<FieldModel>),
    ) -> Result<Option<Recovered>, Error> {
        let segments = self.segments()?;
        let mut found = Found::default();
        let mut start = None;
        for (_, path) in self.checkpoints()?.iter().rev() {
            match found.take_checkpoint(path, settings) {
                Ok(beginning) => {
                    start = Some(beginning);
                    break;
                }
                Err(error) => found.damage(path, &error.to_string()),
            }
        }
        let start = match start {
            Some(start) => Some(start),
            None => found.take_first_segment(&segments, settings)?,
        };
        let Some(mut start) = start else {
            return Ok(None);
        };
        for (index, (first, path)) in segments.iter().enumerate() {
            let is_over = segments.get(index + 1).is_some_and(|(next, _)| *next <= start.mapper.standing().steps);
            if !is_over && !found.take_steps(*first, path, gaps, &mut start, &mut progress) {
                break;
            }
        }
        let Start { mapper, config, frame } = start;
        let Found { findings, lost_steps, damaged } = found;
        Ok(Some(Recovered { mapper, config, frame, findings, lost_steps, damaged }))
    }

    /// Whether there is a map in it, or what is left of one.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn holds_map(&self) -> Result<bool, Error> {
        Ok(!self.checkpoints()?.is_empty() || !self.segments()?.is_empty())
    }

    /// Renames the folder with everything in it to an earlier map, of which at most `earlier_maps` are kept, and returns its new path.
    ///
    /// # Errors
    /// [`Error::SetAside`].
    pub fn set_aside(self, earlier_maps: usize) -> Result<PathBuf, Error> {
        let path = self.path().to_owned();
        drop(self);
        map_store::set_aside(&path, earlier_maps).map_err(|source| Error::SetAside { path, source })
    }
}

/// What is in a journal, without learning again what was learnt since its last checkpoint, and without taking possession of it.
#[derive(Debug)]
pub struct Look {
    /// The newest checkpoint that can be read.
    pub checkpoint: Option<Checkpoint>,
    /// What is damaged, in words.
    pub findings: Vec<String>,
}

/// Looks into the folder of a journal. None where there is no map in it.
///
/// # Errors
/// [`Error::Folder`].
pub fn look(path: &Path) -> Result<Option<Look>, Error> {
    let folder = Folder::wanted(path, Existing::Keep, None);
    if !folder.holds_map()? {
        return Ok(None);
    }
    let mut found = Found::default();
    let checkpoint = folder.checkpoints()?.iter().rev().find_map(|(_, path)| match Checkpoint::read(path) {
        Ok(checkpoint) => Some(checkpoint),
        Err(error) => {
            found.damage(path, &error.to_string());
            None
        }
    });
    let since = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.standing().steps);
    for (first, path) in folder.segments()?.into_iter().filter(|(first, _)| *first >= since) {
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                found.damage(&path, &error.to_string());
                continue;
            }
        };
        match Segment::open(&bytes, first) {
            Ok(mut segment) => {
                while let Some(item) = segment.next() {
                    if let Item::Damage(damage) = item {
                        found.damage(&path, &damage.to_string());
                    }
                }
            }
            Err(damage) => found.damage(&path, &damage.to_string()),
        }
    }
    if checkpoint.is_none() && found.findings.is_empty() {
        found.findings.push(format!("{}: expected a checkpoint, found none", path.display()));
    }
    Ok(Some(Look { checkpoint, findings: found.findings }))
}

/// Where steps are taken up.
struct Start {
    mapper: Mapper<FieldModel>,
    config: Config,
    frame: String,
}

#[derive(Default)]
struct Found {
    findings: Vec<String>,
    lost_steps: u64,
    damaged: Vec<PathBuf>,
}

impl Found {
    fn take_checkpoint(&mut self, path: &Path, settings: &Config) -> Result<Start, super::super::Error> {
        let checkpoint = Checkpoint::read(path)?;
        let config = self.settings_of(path, checkpoint.config(), settings);
        let mapper = checkpoint.resume(&config)?;
        Ok(Start { mapper, config, frame: checkpoint.frame().to_owned() })
    }

    /// The beginning of the map, where its first segment is there.
    fn take_first_segment(&mut self, segments: &[Numbered], settings: &Config) -> Result<Option<Start>, Error> {
        let Some((0, path)) = segments.first() else { return Ok(None) };
        let head = read(path).ok().and_then(|bytes| Segment::open(&bytes, 0).ok()?.head);
        let config =
            head.as_ref().map_or_else(|| settings.clone(), |head| self.settings_of(path, &head.config, settings));
        let mapper = Mapper::new(Pipeline::new(&config, Isometry3::identity()), FieldModel::new(&config));
        Ok(Some(Start { mapper, config, frame: head.map(|head| head.frame).unwrap_or_default() }))
    }

    /// The settings in a file, or those given where another version wrote it that knew others.
    fn settings_of(&mut self, path: &Path, text: &str, given: &Config) -> Config {
        Config::from_toml(text, &path.display().to_string()).unwrap_or_else(|error| {
            self.findings.push(format!("{error}; the settings of now are used instead"));
            given.clone()
        })
    }

    /// Takes the steps of a segment; false when no later one can follow.
    fn take_steps(
        &mut self,
        first: u64,
        path: &Path,
        gaps: Gaps,
        start: &mut Start,
        progress: &mut impl FnMut(&Mapper<FieldModel>),
    ) -> bool {
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.damage(path, &error.to_string());
                return gaps == Gaps::Skip;
            }
        };
        let mut segment = match Segment::open(&bytes, first) {
            Ok(segment) => segment,
            Err(damage) => {
                self.damage(path, &damage.to_string());
                return gaps == Gaps::Skip;
            }
        };
        let stop = StopSignal::default();
        while let Some(item) = segment.next() {
            let (number, step) = match item {
                Item::Step(number, step) => (number, step),
                Item::Damage(damage) => {
                    self.damage(path, &damage.to_string());
                    continue;
                }
            };
            let expected = start.mapper.standing().steps;
            if number < expected {
                continue;
            }
            let missing = number - expected;
            if missing > 0 {
                if gaps == Gaps::Stop {
                    self.findings.push(format!(
                        "{}: the steps from {expected} to {number} are missing; what follows is not used",
                        path.display()
                    ));
                    return false;
                }
                self.findings.push(format!("{}: {missing} steps are lost", path.display()));
                self.lost_steps += missing;
                start.mapper.skip(missing);
            }
            if let Step::Configure(config) | Step::Reset(config) = &step {
                start.config = (**config).clone();
            }
            start.mapper.take(step, &stop);
            progress(&start.mapper);
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

/// All bytes of a segment, unless there are too many.
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
