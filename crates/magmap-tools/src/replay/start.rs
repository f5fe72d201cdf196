//! The start of a replay: with a new map, where it was interrupted, or with the map of another recording.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::{Error, Options, ReplayProgress, Source};
use magmap::config::{Config, MAP_FRAME, Scope};
use magmap::mapping::mapper::{Mapper, SourceRun, Step};
use magmap::mapping::stop::StopSignal;
use magmap::store::map_file::{self, FILE_NAME};
use magmap::store::map_log::{MapLog, Options as LogOptions};
use magmap::store::recovery::{Gaps, Recovered};
use magmap::store::{self, Database};

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

/// The map that a replay starts from, and what writes its file.
pub(super) struct ReplayStart {
    pub(super) mapper: Mapper,
    pub(super) log: MapLog,
    /// The run that is continued; none for a new map.
    pub(super) resumed: Option<Resumed>,
    /// Number of inputs of this recording that are in the map already.
    pub(super) skipped: usize,
}

impl ReplayStart {
    /// Finds the map to continue in the output folder, if requested, and starts to write it there.
    pub(super) fn find(
        config: &Config,
        source: &Source,
        folder: &Path,
        options: &Options,
        progress: &mut impl FnMut(ReplayProgress),
    ) -> Result<Self, Error> {
        let path = folder.join(FILE_NAME);
        let log_options = || LogOptions { earlier_maps: config.node.earlier_maps, ..LogOptions::default() };
        if !options.resume {
            map_file::remove(&path)?;
        } else if !path.exists() {
            log::info!("there is nothing to continue: starting a new map");
        } else if let Some((recovered, database)) = recover(config, &path, progress)? {
            match resume(recovered, config, source, &path) {
                Ok(None) => {}
                Ok(Some((recovered, resumed))) => {
                    let (mapper, log) = MapLog::resume(database, recovered, log_options())?;
                    let skipped = usize::try_from(mapper.progress().index).unwrap_or(usize::MAX);
                    return Ok(Self { mapper, log, resumed: Some(resumed), skipped });
                }
                Err(error) => {
                    // The end of the replay may have been interrupted.
                    if matches!(error, Error::AlreadyMapped { .. }) {
                        drop(database);
                        map_file::mark_saved(&path)?;
                    }
                    return Err(error);
                }
            }
        }
        let mapper = Mapper::new(config);
        let log = MapLog::create(path, &mapper, log_options())?;
        Ok(Self { mapper, log, resumed: None, skipped: 0 })
    }
}

/// The newest state of the map in a file; none where nothing of it can be read, and then it becomes an earlier map.
fn recover(
    config: &Config,
    path: &Path,
    progress: &mut impl FnMut(ReplayProgress),
) -> Result<Option<(Recovered, Arc<Database>)>, Error> {
    let recovered = Database::open(path).and_then(|database| {
        let database = Arc::new(database);
        let recovered = database.recover(config, Gaps::Stop, |mapper| progress(ReplayProgress::of(mapper)))?;
        Ok(Some((recovered, database)))
    });
    match recovered {
        Err(error @ store::Error::Read { .. }) => {
            log::warn!("{error}; starting a new map, and the file will be renamed");
            Ok(None)
        }
        recovered => Ok(recovered?),
    }
}

/// Continues an interrupted replay, or the map of a finished one; none where no recording is in it yet.
fn resume(
    mut recovered: Recovered,
    config: &Config,
    source: &Source,
    path: &Path,
) -> Result<Option<(Recovered, Resumed)>, Error> {
    recovered.findings.iter().for_each(|finding| log::warn!("{finding}"));
    let mapper = &mut recovered.mapper;
    let progress = mapper.progress().clone();
    let holds = progress.holds(&source.id, mapper.model().totals.batches());
    // A recording that was not found in the map is looked for again.
    let is_new = recovered.is_saved && !holds || progress.source() != Some(&source.id);
    let may_begin_anywhere = mapper.may_begin_anywhere(config) && !source.is_frame_shared;
    // Where a recording was located, the map has a frame of its own.
    let is_located = may_begin_anywhere && (is_new || mapper.frame() == MAP_FRAME);
    // It may be unknown if the first steps are damaged.
    if !mapper.frame().is_empty() && !is_located {
        check_same_frame(path, mapper.frame(), source)?;
    }
    let Some(last) = progress.source() else { return Ok(None) };
    if recovered.is_saved && holds {
        return Err(Error::AlreadyMapped { path: path.to_owned(), name: source.name.clone() });
    }
    let resumed = if !is_new {
        mapper.config().check_unchanged(config, Scope::is_fixed_for_a_recording)?;
        let counters = mapper.pipeline().counters();
        let measurements = counters.readings + counters.poses;
        log::info!("resuming after {measurements} measurements of {}", source.name);
        let before = &progress.sources[..progress.sources.len() - 1];
        Resumed {
            measurements,
            updates: progress.versions,
            recordings: names(before),
            findings: recovered.findings.clone(),
        }
    } else if config.corrects_path() || !mapper.trajectory().correction.nodes().is_empty() {
        return Err(Error::Refused(format!(
            "{} is the map of {}: no other drive can be added to a map whose path is corrected; choose another folder",
            path.display(),
            last.name
        )));
    } else if progress.has_ended {
        mapper.model().check(config)?;
        let recordings = names(&progress.sources);
        log::info!("continuing the map of {}", recordings.join(", "));
        Resumed { measurements: 0, updates: progress.versions, recordings, findings: recovered.findings.clone() }
    } else {
        return Err(Error::Refused(format!(
            "the map {} is of {}, whose replay was interrupted; resume that one first, or choose another folder",
            path.display(),
            last.name
        )));
    };
    configure(mapper, config);
    if is_new {
        mapper.begin_stream();
        mapper.take(Step::Source { id: source.id.clone(), run: String::new() }, &StopSignal::default());
        if may_begin_anywhere {
            mapper.take(Step::Seek, &StopSignal::default());
        }
    }
    Ok(Some((recovered, resumed)))
}

/// Continues with these settings. The same settings are no step: the map is the one that would have been made without interruption.
fn configure(mapper: &mut Mapper, config: &Config) {
    if **mapper.config() != *config {
        mapper.take(Step::Configure(Box::new(config.clone())), &StopSignal::default());
    }
}

fn names(sources: &[SourceRun]) -> Vec<String> {
    sources.iter().map(|run| run.id.name.clone()).collect()
}

/// Rejects a map whose frame differs from that of the recording.
fn check_same_frame(path: &Path, kept: &str, source: &Source) -> Result<(), Error> {
    if kept == source.frame() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a map of frame \"{kept}\", but the recording is of \"{}\"; continue with a recording of the same frame",
        path.display(),
        source.frame()
    )))
}

#[cfg(test)]
mod tests;
