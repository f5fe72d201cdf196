//! Recovers the newest state of a map from its file.

use std::sync::Arc;

use super::Error;
use super::checkpoint::Checkpoint;
use super::database::{Batch, Database, Found};
use crate::arrays::Problem;
use crate::config::Config;
use crate::mapping::mapper::{Effect, Mapper, Step};
use crate::mapping::relocating::settle;
use crate::mapping::stop::StopSignal;

/// Handling of steps that are missing because the file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// Stop there: the source can be read again.
    Stop,
    /// Continue after the gap: only the missing steps are lost.
    Skip,
}

/// A map recovered from its file.
#[derive(Debug)]
pub struct Recovered {
    /// The map after the last recovered step.
    pub mapper: Mapper,
    /// Whether that is the state in which the map was saved.
    pub is_saved: bool,
    /// Descriptions of damage and other problems.
    pub findings: Vec<String>,
    /// Number of steps that are lost.
    pub lost_steps: u64,
    /// Whether the file is damaged: it must not be written any more.
    pub(super) is_damaged: bool,
    /// Batches that a file in which the map is continued does not have yet.
    pub(super) batches: Vec<Batch>,
}

impl Recovered {
    /// The file in which the map is continued: this one or, if that is damaged, a new one with all that can be read of it.
    pub fn file(&self, database: Arc<Database>) -> Arc<Database> {
        if self.is_damaged { Arc::new(Database::instead_of(database)) } else { database }
    }

    /// Ends the stream: nothing waits to be learnt any more.
    pub(crate) fn end(&mut self) {
        self.take(Step::Finish, &StopSignal::default());
        self.settle();
        while !self.mapper.ready().is_empty() {
            self.take(Step::Learn { batches: 1 }, &StopSignal::default());
        }
    }

    /// Ends the search for the robot in the map that it continues. What it drove without being found is held further on.
    pub(crate) fn settle(&mut self) {
        settle(&self.mapper).into_iter().for_each(|step| self.take(step, &StopSignal::default()));
    }

    fn take(&mut self, step: Step, stop: &StopSignal) {
        if let Effect::Learnt { batch, .. } = self.mapper.take(step, stop) {
            self.batches.push(Batch::learnt(&self.mapper, &batch.observations));
        }
    }

    fn damage(&mut self, what: String) {
        self.findings.push(what);
        self.is_damaged = true;
    }
}

impl Database {
    /// Takes all steps since the newest checkpoint that can be read, including learning. `progress` is called after every step. Nothing in
    /// the file changes.
    ///
    /// `settings` are used where the map's own cannot be read.
    ///
    /// # Errors
    /// [`Error::Read`] where no checkpoint can be read. Other damage is among the findings.
    pub fn recover(
        self: &Arc<Self>,
        settings: &Config,
        gaps: Gaps,
        mut progress: impl FnMut(&Mapper),
    ) -> Result<Recovered, Error> {
        let mut recovered = self.newest_checkpoint(settings)?;
        if recovered.mapper.needs_trajectory() {
            let is_needed = recovered.mapper.progress().is_choice_open() || recovered.mapper.config().corrects_path();
            match self.trajectory() {
                Ok(mut batches) => {
                    batches.truncate(recovered.mapper.model().totals.batches() as usize);
                    recovered.mapper.set_batches(batches);
                }
                // The map would be another one than without the damage.
                Err(error) if gaps == Gaps::Stop && is_needed => return Err(error),
                // What is mapped stays as it is.
                Err(_) => {}
            }
        }
        recovered.take_steps(self, gaps, &mut progress);
        if recovered.is_damaged || !self.is_trajectory_whole() {
            recovered.save_trajectory(self);
        }
        let path = self.path().display();
        recovered.findings.iter_mut().for_each(|finding| *finding = format!("{path}: {finding}"));
        Ok(recovered)
    }

    /// The state in which the map was saved.
    ///
    /// # Errors
    /// [`Error::Refused`] if no checkpoint can be used, and [`Error::Read`].
    pub fn saved(self: &Arc<Self>) -> Result<Checkpoint, Error> {
        let unreadable = |problem| Error::Read { path: self.path().to_owned(), problem };
        let rows = self.checkpoints().map_err(|error| unreadable(error.into()))?;
        let Some((step, _)) = rows.iter().find(|(_, is_saved)| *is_saved) else {
            return Err(Error::Refused(format!(
                "{} has no saved state to go back to; save the map first",
                self.path().display()
            )));
        };
        let (checkpoint, lost) = Checkpoint::read_from(self, *step).map_err(unreadable)?;
        lost.into_iter().next().map_or(Ok(checkpoint), |problem| Err(unreadable(problem)))
    }

    /// The newest checkpoint that can be read with all of its tiles, or else the newest that can be read.
    fn newest_checkpoint(self: &Arc<Self>, settings: &Config) -> Result<Recovered, Error> {
        let unreadable = |problem| Error::Read { path: self.path().to_owned(), problem };
        let rows = self.checkpoints().map_err(|error| unreadable(Problem::Damaged(error.to_string())))?;
        let mut findings = Vec::new();
        let (mut partial, mut first_problem) = (None, None);
        for (step, is_saved) in rows {
            let mut config_finding = None;
            let read = Checkpoint::read_from(self, step).and_then(|(checkpoint, lost)| {
                let config = Config::from_toml(&checkpoint.config, "the map's settings").unwrap_or_else(|error| {
                    config_finding = Some(format!("{error}; the current settings are used instead"));
                    settings.clone()
                });
                let mapper = checkpoint.resume(&config).map_err(|error| Problem::Settings(error.to_string()))?;
                Ok((mapper, lost))
            });
            let is_damaged = !findings.is_empty();
            match read {
                Ok((mapper, lost)) => {
                    findings.extend(config_finding);
                    findings.extend(lost.iter().map(Problem::to_string));
                    let (lost_steps, batches) = (0, Vec::new());
                    let recovered =
                        Recovered { mapper, is_saved, findings: Vec::new(), lost_steps, is_damaged, batches };
                    if lost.is_empty() {
                        return Ok(Recovered { findings, ..recovered });
                    }
                    partial.get_or_insert((recovered, lost.len()));
                }
                Err(problem) => {
                    findings.push(format!("the checkpoint after {step} steps: {problem}"));
                    first_problem.get_or_insert(problem);
                }
            }
        }
        let Some((mut recovered, count)) = partial else {
            return Err(unreadable(first_problem.unwrap_or(Problem::Damaged("it has no checkpoint".into()))));
        };
        findings.push(format!("what {count} tiles have learnt is lost; the rest of the map is used"));
        (recovered.findings, recovered.is_damaged) = (findings, true);
        Ok(recovered)
    }
}

impl Recovered {
    fn take_steps(&mut self, database: &Database, gaps: Gaps, progress: &mut impl FnMut(&Mapper)) {
        let stop = StopSignal::default();
        let Found { rows, damage } = database.steps(self.mapper.progress().steps);
        if let Some(damage) = damage {
            self.damage(format!("not all steps can be read: {damage}"));
        }
        for (number, step) in rows {
            let Some(step) = step else {
                self.damage(format!("step {number} is damaged"));
                continue;
            };
            let expected = self.mapper.progress().steps;
            let missing = number.saturating_sub(expected);
            if missing > 0 {
                if gaps == Gaps::Stop {
                    self.damage(format!("the steps from {expected} to {number} are missing; later steps are not used"));
                    return;
                }
                self.damage(format!("{missing} steps are lost"));
                self.lost_steps += missing;
                self.mapper.skip(missing);
            }
            self.is_saved = false;
            self.take(step, &stop);
            progress(&self.mapper);
        }
    }

    /// Of a damaged file, the whole trajectory that can be read goes into the new one.
    fn save_trajectory(&mut self, database: &Database) {
        let Found { rows, damage } = database.batches();
        let mut lost = rows.iter().filter(|(_, batch)| batch.is_none()).map(|(number, _)| *number);
        if let Some(first) = lost.next() {
            let count = 1 + lost.count();
            self.damage(format!("{count} batches of the trajectory are damaged, the first of them {first}"));
        }
        if let Some(damage) = damage {
            self.damage(format!("not all of the trajectory can be read: {damage}"));
        }
        let learnt = std::mem::take(&mut self.batches);
        self.batches = rows.into_iter().filter_map(|(_, batch)| batch).chain(learnt).collect();
    }
}
