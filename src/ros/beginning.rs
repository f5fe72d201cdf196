//! Where the node begins: with a new map, or where the node before it was when it ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use super::services::map_file;
use crate::config::{Config, Resume};
use crate::mapping::checkpoint::Checkpoint;
use crate::mapping::field_model::FieldModel;
use crate::mapping::frames::normalized;
use crate::mapping::journal::{self, Folder, Frame, Gaps, Gauge, Journal, Recovered};
use crate::mapping::keeper::Keeper;
use crate::mapping::mapper::Mapper;
use crate::mapping::pipeline::Pipeline;

/// A map to go on with, and the journal of what follows.
pub(super) struct Beginning {
    pub(super) mapper: Mapper<FieldModel>,
    pub(super) keeper: Option<Box<dyn Keeper<FieldModel>>>,
    /// How the journal is doing; none where none is wanted.
    pub(super) gauge: Option<Gauge>,
    /// Whether it goes on with a map of before.
    pub(super) is_resumed: bool,
}

impl Beginning {
    /// Looks for a journal beside the map's file, and starts one. A folder that cannot be written is no error: mapping goes on
    /// without a journal, and says so.
    pub(super) fn find(config: &Config, frame: &Frame) -> Result<Self, Error> {
        if !config.frames.map.is_empty() {
            frame.get_or_init(|| Arc::from(normalized(&config.frames.map)));
        }
        let new = || Mapper::new(Pipeline::new(config, Default::default()), FieldModel::new(config));
        if !config.journal.enabled {
            return Ok(Self { mapper: new(), keeper: None, gauge: None, is_resumed: false });
        }
        let path = journal_folder(config);
        match Self::with_journal(config, frame, &path, new) {
            Err(Error::Journal(error @ journal::Error::Folder { .. })) => {
                log::error!(
                    "{error}; mapping goes on without a journal, and it is tried again: a crash would cost the map"
                );
                Self::start(Folder::wanted(path, &error), config, frame, new(), Vec::new(), false)
            }
            other => other,
        }
    }

    fn with_journal(
        config: &Config,
        frame: &Frame,
        path: &Path,
        new: impl Fn() -> Mapper<FieldModel>,
    ) -> Result<Self, Error> {
        let mut folder = Folder::open(path)?;
        let recovered = match config.journal.resume {
            Resume::Never => None,
            Resume::Unfinished | Resume::Always => folder.recover(config, Gaps::Skip, |_| ())?,
        };
        let has_ended =
            recovered.as_ref().is_some_and(|map| map.mapper.standing().has_ended && map.findings.is_empty());
        let wanted = recovered.filter(|_| config.journal.resume == Resume::Always || !has_ended);
        let is_resumed = wanted.is_some();
        let (mapper, damaged) = match wanted {
            Some(recovered) => go_on(recovered, config, frame)?,
            None => {
                folder = emptied(folder, has_ended)?;
                (new(), Vec::new())
            }
        };
        Self::start(folder, config, frame, mapper, damaged, is_resumed)
    }

    fn start(
        folder: Folder,
        config: &Config,
        frame: &Frame,
        mapper: Mapper<FieldModel>,
        damaged: Vec<PathBuf>,
        is_resumed: bool,
    ) -> Result<Self, Error> {
        let journal = Journal::start(folder, config, Arc::clone(frame), &mapper, damaged)?;
        let gauge = Some(journal.gauge());
        Ok(Self { mapper, keeper: Some(Box::new(journal)), gauge, is_resumed })
    }
}

/// The map as it was, under the settings of now.
fn go_on(recovered: Recovered, config: &Config, frame: &Frame) -> Result<(Mapper<FieldModel>, Vec<PathBuf>), Error> {
    let Recovered { mapper, config: kept, frame: kept_frame, findings, lost_steps, damaged } = recovered;
    findings.iter().for_each(|finding| log::error!("{finding}"));
    if lost_steps > 0 {
        log::error!("{lost_steps} steps (readings, poses) of the journal are lost; everything else is in the map");
    }
    // It is not known before odometry has come.
    let known = (!kept_frame.is_empty()).then(|| frame.get_or_init(|| Arc::from(kept_frame.as_str())));
    if let Some(frame) = known.filter(|frame| ***frame != *kept_frame) {
        let reason = format!(
            "its journal is of a map of frame \"{kept_frame}\", and frames.map is \"{frame}\"; set frames.map = \"{kept_frame}\", \
             or begin a new map with journal.resume = \"never\""
        );
        return Err(Error::Load { reason });
    }
    // A state can be taken up under other settings.
    let mapper = Checkpoint::of(&kept, &mapper, &kept_frame)?
        .resume(config)
        .map_err(|error| Error::Load { reason: format!("{error}, or set journal.resume = \"never\"") })?;
    let totals = mapper.learner().totals();
    log::info!(
        "going on with the map of before: {} readings in {} updates, over {:.1} m",
        totals.used_readings,
        totals.updates,
        mapper.pipeline().counters().travelled
    );
    Ok((mapper, damaged))
}

/// The folder, with what was in it under another name. Of maps that ended in good order the last is kept, of others all are.
fn emptied(folder: Folder, has_ended: bool) -> Result<Folder, Error> {
    if !folder.holds_map()? {
        return Ok(folder);
    }
    let path = folder.path().to_owned();
    let aside = if has_ended { folder.retire()? } else { folder.set_aside()? };
    log::info!("the journal of an earlier map is kept as {}", aside.display());
    Ok(Folder::open(path)?)
}

/// The folder of the journal, beside the map's file.
fn journal_folder(config: &Config) -> PathBuf {
    map_file(config).with_extension("journal")
}
