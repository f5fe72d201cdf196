//! Where a replay begins: at its beginning, where it was interrupted, or with the map of another recording.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Serialize;

use super::{Error, Options, Progress, Source};
use crate::config::Config;
use crate::mapping::checkpoint::Checkpoint;
use crate::mapping::field_model::FieldModel;
use crate::mapping::journal::{Folder, Frame, Gaps, Journal, Recovered};
use crate::mapping::keeper::Keeper;
use crate::mapping::mapper::{Mapper, Origin};
use crate::mapping::pipeline::Pipeline;

/// Folder of the journal while a replay runs or is interrupted.
const JOURNAL: &str = "journal";

/// The map with everything that is needed to go on.
pub(super) const CHECKPOINT: &str = "checkpoint.npz";

/// Sections of the settings that decide what is made of a recording.
const DECISIVE: [&str; 10] = [
    "sensor",
    "gates",
    "synchronizer",
    "averaging",
    "batch",
    "model",
    "bernoulli",
    "selection",
    "dual_memory",
    "learning",
];

/// What a replay went on from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resumed {
    /// Measurements of this recording that were in the map already.
    pub measurements: u64,
    /// Updates of the map before.
    pub updates: u64,
    /// Recordings that were in the map already, this one not among them.
    pub recordings: Vec<String>,
    /// What was damaged.
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

/// A map to go on with, and the journal of what follows.
pub(super) struct Beginning {
    pub(super) mapper: Mapper<FieldModel>,
    pub(super) journal: Option<Journal>,
    /// What it was taken up from; none at the very beginning.
    pub(super) resumed: Option<Resumed>,
}

impl Beginning {
    /// Looks into the folder of the outputs, if that is wanted, and starts the journal there.
    pub(super) fn find(
        config: &Config,
        source: &Source,
        folder: &Path,
        options: Options,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Self, Error> {
        let path = folder.join(JOURNAL);
        let mut begun = None;
        let mut damaged = Vec::new();
        if options.resume {
            if path.exists() {
                let recovered =
                    Folder::open(&path)?.recover(config, Gaps::Stop, |mapper| progress(Progress::of(mapper)))?;
                if let Some(recovered) = recovered {
                    damaged.clone_from(&recovered.damaged);
                    begun = take_up(recovered, config, source, &path)?;
                }
            }
            if begun.is_none() {
                begun = go_on_with(&folder.join(CHECKPOINT), config, source).inspect_err(|error| {
                    // Its removal was interrupted.
                    if matches!(error, Error::AlreadyMapped { .. }) {
                        let _ = remove_journal(folder);
                    }
                })?;
            }
        } else if path.exists() {
            Folder::open(&path)?.remove();
        }
        let (mapper, resumed) = match begun {
            Some((mapper, resumed)) => (mapper, Some(resumed)),
            None => (Mapper::new(Pipeline::new(config, source.mount), FieldModel::new(config)), None),
        };
        let journal = match config.journal.enabled {
            true => Some(Journal::start(Folder::open(&path)?, config, frame(source), &mapper, damaged)?),
            false => None,
        };
        Ok(Self { mapper, journal, resumed })
    }

    /// What keeps the steps, as the mapping thread wants it.
    pub(super) fn keeper(journal: Option<Journal>) -> Option<Box<dyn Keeper<FieldModel>>> {
        journal.map(|journal| Box::new(journal) as _)
    }
}

/// Ends the journal of a replay whose outputs are written.
pub(super) fn remove_journal(folder: &Path) -> Result<(), Error> {
    let path = folder.join(JOURNAL);
    if path.exists() {
        Folder::open(path)?.remove();
    }
    Ok(())
}

fn frame(source: &Source) -> Frame {
    let frame = OnceLock::new();
    frame.get_or_init(|| Arc::from(source.frame.as_str()));
    Arc::new(frame)
}

/// Goes on where a replay was interrupted, or with the map of one whose outputs could not be written.
fn take_up(
    recovered: Recovered,
    config: &Config,
    source: &Source,
    path: &Path,
) -> Result<Option<(Mapper<FieldModel>, Resumed)>, Error> {
    let Recovered { mut mapper, config: kept, frame, findings, .. } = recovered;
    findings.iter().for_each(|finding| log::warn!("{finding}"));
    // It is not known where the head of the first segment was damaged.
    if !frame.is_empty() {
        check_same_frame(path, &frame, source)?;
    }
    let standing = mapper.standing();
    match standing.source() {
        Some(last) if *last == source.id => {
            check_same_settings(&kept, config)?;
            let resumed = Resumed {
                measurements: standing.place,
                updates: standing.versions,
                recordings: names(&standing.sources[..standing.sources.len() - 1]),
                findings,
            };
            log::info!("going on after {} measurements of {}", resumed.measurements, source.name);
            Ok(Some((mapper, resumed)))
        }
        Some(_) if standing.has_ended => {
            let resumed = added(&mapper, findings);
            mapper = Checkpoint::of(&kept, &mapper, &source.frame)?.resume(config)?;
            mapper.begin_stream(config);
            Ok(Some((mapper, resumed)))
        }
        Some(last) => {
            Err(crate::mapping::journal::Error::OtherSource { path: path.to_owned(), kept: last.clone() }.into())
        }
        // Nothing but the beginning was kept.
        None => Ok(None),
    }
}

/// Goes on with the map that a replay left.
fn go_on_with(file: &Path, config: &Config, source: &Source) -> Result<Option<(Mapper<FieldModel>, Resumed)>, Error> {
    if !file.exists() {
        log::info!("there is nothing to go on with: the map begins anew");
        return Ok(None);
    }
    let checkpoint = Checkpoint::read(file)?;
    check_same_frame(file, checkpoint.frame(), source)?;
    let is_in_it = checkpoint.standing().holds(&source.id);
    if is_in_it {
        return Err(Error::AlreadyMapped { path: file.to_owned(), name: source.name.clone() });
    }
    let mut mapper = checkpoint.resume(config)?;
    mapper.begin_stream(config);
    let resumed = added(&mapper, Vec::new());
    log::info!("going on with the map of {}", resumed.recordings.join(", "));
    Ok(Some((mapper, resumed)))
}

fn added(mapper: &Mapper<FieldModel>, findings: Vec<String>) -> Resumed {
    let standing = mapper.standing();
    Resumed { measurements: 0, updates: standing.versions, recordings: names(&standing.sources), findings }
}

fn names(sources: &[Origin]) -> Vec<String> {
    sources.iter().map(|origin| origin.id.name.clone()).collect()
}

/// Refuses a map whose coordinates are not those of the recording.
fn check_same_frame(path: &Path, kept: &str, source: &Source) -> Result<(), Error> {
    if kept == source.frame {
        return Ok(());
    }
    Err(Error::OtherFrame { path: path.to_owned(), kept: kept.to_owned(), found: source.frame.clone() })
}

/// Refuses settings under which the rest of a recording would be mapped otherwise than its beginning.
fn check_same_settings(kept: &Config, config: &Config) -> Result<(), Error> {
    let decisive = |key: &str| DECISIVE.iter().any(|section| key.split('.').next() == Some(section));
    let pairs = kept.settings()?.into_iter().zip(config.settings()?);
    for (kept, given) in pairs.filter(|(kept, _)| decisive(&kept.key)) {
        if kept.value != given.value {
            let (key, made_with, configured) = (kept.key, kept.value.to_string(), given.value.to_string());
            return Err(crate::mapping::Error::SettingDiffers { key, made_with, configured }.into());
        }
    }
    Ok(())
}
