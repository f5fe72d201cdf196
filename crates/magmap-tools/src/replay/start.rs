//! The start of a replay: with a new map, where it was interrupted, or with the map of another recording.

use std::path::Path;

use serde::Serialize;

use super::{Error, Options, ReplayProgress, Source};
use magmap::config::{Config, Scope};
use magmap::durability::checkpoint::{Checkpoint, FILE_NAME};
use magmap::durability::journal::{Folder, Gaps, Journal, Recovered};
use magmap::mapping::mapper::{Mapper, SourceRun, Step};
use magmap::mapping::stop::StopSignal;

/// Folder of the journal while a replay runs or is interrupted.
const JOURNAL: &str = "journal";

/// The map that a replay continued.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resumed {
    /// Measurements of this recording that were already in the map.
    pub measurements: u64,
    /// Updates of the map before.
    pub updates: u64,
    /// Other recordings that were already in the map.
    pub recordings: Vec<String>,
    /// Descriptions of damage.
    pub findings: Vec<String>,
}

impl std::fmt::Display for Resumed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { measurements, updates, recordings, .. } = self;
        write!(formatter, "after {updates} batches")?;
        if !recordings.is_empty() {
            write!(formatter, " with the map of {}", recordings.join(", "))?;
        }
        if *measurements > 0 {
            write!(formatter, ", {measurements} measurements into this recording")?;
        }
        Ok(())
    }
}

/// The map that a replay starts from, and its journal.
pub(super) struct ReplayStart {
    pub(super) mapper: Mapper,
    pub(super) journal: Option<Journal>,
    /// The map that is continued; none for a new one.
    pub(super) resumed: Option<Resumed>,
}

impl ReplayStart {
    /// Finds the map to continue in the output folder, if requested, and starts the journal there.
    pub(super) fn find(
        config: &Config,
        source: &Source,
        folder: &Path,
        options: &Options,
        progress: &mut impl FnMut(ReplayProgress),
    ) -> Result<Self, Error> {
        let path = folder.join(JOURNAL);
        let mut existing = None;
        let mut damaged = Vec::new();
        if options.resume {
            if path.exists() {
                let recovered =
                    Folder::open(&path)?.recover(config, Gaps::Stop, |mapper| progress(ReplayProgress::of(mapper)))?;
                if let Some(recovered) = recovered {
                    damaged.clone_from(&recovered.damaged);
                    existing = resume_journal(recovered, config, source, &path)?;
                }
            }
            if existing.is_none() {
                existing = continue_checkpoint(&folder.join(FILE_NAME), config, source).inspect_err(|error| {
                    // The removal of the journal was interrupted.
                    if matches!(error, Error::AlreadyMapped { .. }) {
                        let _ = remove_journal(folder);
                    }
                })?;
            }
        } else {
            remove_journal(folder)?;
        }
        let (mapper, resumed) = match existing {
            Some((mapper, resumed)) => (mapper, Some(resumed)),
            None => (Mapper::new(config), None),
        };
        let journal = Journal::start_if_enabled(&config.journal, || Folder::open(&path), &mapper, damaged, false)?;
        Ok(Self { mapper, journal, resumed })
    }
}

/// Removes the journal once the outputs are written.
pub(super) fn remove_journal(folder: &Path) -> Result<(), Error> {
    let path = folder.join(JOURNAL);
    if path.exists() {
        Folder::open(path)?.remove();
    }
    Ok(())
}

/// Continues an interrupted replay, or the map of one whose outputs could not be written.
fn resume_journal(
    recovered: Recovered,
    config: &Config,
    source: &Source,
    path: &Path,
) -> Result<Option<(Mapper, Resumed)>, Error> {
    let Recovered { mut mapper, findings, .. } = recovered;
    findings.iter().for_each(|finding| log::warn!("{finding}"));
    // It may be unknown if the first segment was damaged.
    if !mapper.frame().is_empty() {
        check_same_frame(path, mapper.frame(), source)?;
    }
    let progress = mapper.progress();
    match progress.source() {
        Some(last) if *last == source.id => {
            mapper.config().check_unchanged(config, Scope::is_fixed_for_a_recording)?;
            let resumed = Resumed {
                measurements: progress.index,
                updates: progress.versions,
                recordings: names(&progress.sources[..progress.sources.len() - 1]),
                findings,
            };
            log::info!("resuming after {} measurements of {}", resumed.measurements, source.name);
            configure(&mut mapper, config);
            Ok(Some((mapper, resumed)))
        }
        Some(_) if progress.has_ended => {
            let resumed = added(&mapper, findings);
            mapper.model().check(config)?;
            configure(&mut mapper, config);
            mapper.begin_stream();
            Ok(Some((mapper, resumed)))
        }
        Some(last) => Err(Error::Refused(format!(
            "the map in {} is of {}, whose replay was interrupted; resume that one first, or choose another folder",
            path.display(),
            last.name
        ))),
        // The journal contains no source yet.
        None => Ok(None),
    }
}

/// Continues with these settings. The same settings are no step: the map is the one that would have been made without interruption.
fn configure(mapper: &mut Mapper, config: &Config) {
    if **mapper.config() != *config {
        mapper.take(Step::Configure(Box::new(config.clone())), &StopSignal::default());
    }
}

/// Continues the map of a finished replay.
fn continue_checkpoint(file: &Path, config: &Config, source: &Source) -> Result<Option<(Mapper, Resumed)>, Error> {
    if !file.exists() {
        log::info!("there is nothing to continue: starting a new map");
        return Ok(None);
    }
    let checkpoint = Checkpoint::read(file)?;
    check_same_frame(file, &checkpoint.frame, source)?;
    if checkpoint.stream.progress.holds(&source.id) {
        return Err(Error::AlreadyMapped { path: file.to_owned(), name: source.name.clone() });
    }
    let mut mapper = checkpoint.resume(config)?;
    mapper.begin_stream();
    let resumed = added(&mapper, Vec::new());
    log::info!("continuing the map of {}", resumed.recordings.join(", "));
    Ok(Some((mapper, resumed)))
}

fn added(mapper: &Mapper, findings: Vec<String>) -> Resumed {
    let progress = mapper.progress();
    Resumed { measurements: 0, updates: progress.versions, recordings: names(&progress.sources), findings }
}

fn names(sources: &[SourceRun]) -> Vec<String> {
    sources.iter().map(|run| run.id.name.clone()).collect()
}

/// Rejects a map whose frame differs from that of the recording.
fn check_same_frame(path: &Path, kept: &str, source: &Source) -> Result<(), Error> {
    if kept == source.frame {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a map of frame \"{kept}\", but the recording is of \"{}\"; continue with a recording of the same frame",
        path.display(),
        source.frame
    )))
}

#[cfg(test)]
mod tests;
