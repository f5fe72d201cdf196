//! The map under construction, as a deterministic state machine: the same steps lead to the same map, to the last bit.
//!
//! Whatever the map depends on is a [`Step`]: inputs of the pipeline, but also which batches were merged, which depends on how fast the
//! machine was. The [mapping thread](crate::mapping::thread) takes steps as they come; the [log](crate::store::map_log) records
//! them, so that they can be replayed.

use std::collections::VecDeque;
use std::sync::Arc;

use nalgebra::{Isometry2, Isometry3, Point2};
use serde::{Deserialize, Serialize};
use streaming_gp::UpdateReport;

use super::axes_check::AxesCheck;
use super::batcher::Batch;
use super::delay;
use super::field_choice::{self, Alternative, Choice, Predicted};
use super::path::Path;
use super::pipeline::{OdometryInMap, Pipeline};
use super::stop::StopSignal;
use crate::config::{Config, Mapped};
use crate::field::model::FieldModel;
use crate::field::state::ModelState;
use crate::sensing::counters::COUNTABLE;
use crate::sensing::intake::Input;
use crate::sensing::reading::{Measurement, Observation};
use crate::trajectory::{self, Correction, Delay, Trajectory, Withdrawal};

/// Something that changes the map, or the state that leads to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// The inputs that follow come from another source: a recording, from its start, or a robot.
    Source {
        /// The source.
        id: SourceId,
        /// Identifies this run of the source: of two maps that share a run, one continues the other or both share a past.
        run: String,
    },
    /// A reading, a pose, a mount of the sensor, or a new stretch.
    Input {
        /// Index in the stream of its source, counted from 0.
        index: u64,
        /// The input.
        input: Input,
    },
    /// The frame of the map is known.
    Frame(String),
    /// The open averaging cell and the open batch are closed.
    Flush,
    /// The stream has ended: readings that wait for a pose are rejected, cell and batch closed.
    Finish,
    /// The model learns from the oldest waiting batches, merged into one.
    Learn {
        /// Number of batches.
        batches: u32,
    },
    /// The map continues with other settings.
    Configure(#[serde(with = "as_toml")] Box<Config>),
    /// The inputs that follow are of odometry that may have begun anywhere: batches are held until its place in the map is known. Nothing
    /// changes where nothing is mapped yet.
    Seek,
    /// Odometry continued from where it was: the map is the one without a search.
    Continue,
    /// Odometry did not continue from where it was.
    Elsewhere,
    /// The transform from the frame of odometry to that of the map is known, for what is held, too.
    Place(Isometry2<f64>),
    /// Observations of earlier runs no longer hold.
    Withdraw(Withdrawal),
    /// The map is discarded, and a new one begins. A log of steps continues with a checkpoint.
    #[serde(skip)]
    Reset,
    /// The trajectory is where this correction says, and the map is made again from it. A log of steps continues with a checkpoint.
    #[serde(skip)]
    Correct(Correction, Option<Box<Folded>>),
    /// The map was made again without what was withdrawn. A log of steps continues with a checkpoint.
    #[serde(skip)]
    Refold(Refolded),
    /// A saved map replaces this one. It is far larger than other steps, so a log of steps continues with a checkpoint.
    #[serde(skip)]
    Load(Box<SavedMap>),
}

/// A map that was made elsewhere from the first batches of a corrected trajectory.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The map.
    pub model: FieldModel,
    /// Number of batches that it has learnt.
    pub batches: usize,
}

impl PartialEq for Folded {
    fn eq(&self, other: &Self) -> bool {
        self.batches == other.batches && self.model.state() == other.model.state()
    }
}

/// A map that was made again.
#[derive(Clone, Debug, PartialEq)]
pub struct Refolded {
    /// The map of the first batches.
    pub folded: Box<Folded>,
    /// The batches after them.
    pub since: Vec<Vec<Observation>>,
    /// Number of withdrawals that it takes into account.
    pub withdrawals: usize,
}

/// A saved map, without the stream that led to it.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedMap {
    /// State of the model.
    pub model: ModelState,
    /// The path.
    pub path: Path,
    /// Where odometry is in it.
    pub odometry: OdometryInMap,
    /// The sources.
    pub sources: Vec<SourceRun>,
    /// How late readings are stamped, where that was found.
    pub delay: Option<Delay>,
    /// Observations that no longer hold.
    pub withdrawals: Vec<Withdrawal>,
    /// Steps that led to it.
    pub steps: u64,
}

/// Identifies a source of measurements. Recordings with the same content are equal, whatever their names.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct SourceId {
    /// Name of the recording, or of the robot's node.
    pub name: String,
    /// Fingerprint of the recording's content. Empty for a robot.
    pub fingerprint: String,
}

impl SourceId {
    /// A robot, identified by the name of its node.
    pub fn robot(name: impl Into<String>) -> Self {
        Self { name: name.into(), fingerprint: String::new() }
    }

    /// Whether it is a recording, which can be read again.
    pub fn is_recording(&self) -> bool {
        !self.fingerprint.is_empty()
    }
}

impl PartialEq for SourceId {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && (self.is_recording() || self.name == other.name)
    }
}

/// A run of a source, and when in the life of the map it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRun {
    /// The source.
    #[serde(flatten)]
    pub id: SourceId,
    /// Identifier of this run; unique for robots.
    pub run: String,
    /// Number of batches that the map had been given before.
    pub after_updates: u64,
}

/// The state that holds if odometry continued from where it was, while that is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// The pipeline of before, to which inputs have gone as well.
    pub pipeline: Pipeline,
    /// The batches that end with what was driven before, if odometry did not continue.
    pub ended: VecDeque<Batch>,
}

/// Effect of a step on the map.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // returned once per step, never stored
pub enum Effect {
    /// No effect.
    Unchanged,
    /// The model learnt from a batch, or rejected it.
    Learnt {
        /// The batch, at its poses by odometry.
        batch: Batch,
        /// Observations of the batch at their poses in the map.
        corrected: Vec<Observation>,
        /// The report of the update, or why the batch was rejected.
        result: Result<UpdateReport, streaming_gp::streaming::Error>,
    },
    /// Another map has replaced it, or it was made again.
    Replaced,
}

/// Progress of the map since it was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps taken.
    pub steps: u64,
    /// Versions of the map that were published: updates, and maps that replaced it.
    pub versions: u64,
    /// Batches learnt since the stream began.
    pub learnt: u64,
    /// Batches that were merged into another one.
    pub merged_batches: u64,
    /// The sources; inputs come from the last.
    pub sources: Vec<SourceRun>,
    /// Index of the next input from that source.
    pub index: u64,
    /// Whether the stream has ended, with nothing after it.
    pub has_ended: bool,
    /// The quantity that is mapped, and why, where the settings leave that to magmap and it has been chosen.
    pub choice: Option<String>,
    /// Length of the path when that was chosen last, in metres.
    pub(super) chosen_at: f64,
    /// How well the map predicted what it then learnt, until the last choice.
    pub(super) predicted: Predicted,
    /// Whether readings of a sensor whose mount was unknown are in the map: their axes mean nothing.
    pub is_without_mount: bool,
}

impl Progress {
    /// Whether all counts are plausible: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        let began = self.sources.iter().map(|origin| origin.after_updates);
        [self.steps, self.versions, self.learnt, self.merged_batches, self.index]
            .into_iter()
            .chain(began)
            .all(|count| count < COUNTABLE)
            && self.chosen_at >= 0.0
    }

    /// Whether it may still be chosen what is mapped, where the settings leave that to magmap.
    pub(crate) fn is_choice_open(&self) -> bool {
        self.chosen_at < field_choice::MADE && !self.is_without_mount
    }

    /// The source that inputs come from.
    pub fn source(&self) -> Option<&SourceId> {
        self.sources.last().map(|origin| &origin.id)
    }

    /// The runs from which the map has learnt, given the number of batches that it was given.
    pub fn runs_with_batches(&self, batches: u64) -> impl Iterator<Item = &SourceRun> {
        let ends = self.sources.iter().skip(1).map(|run| run.after_updates).chain([batches]);
        self.sources.iter().zip(ends).filter(|(run, end)| run.after_updates < *end).map(|(run, _)| run)
    }

    /// Whether a map that was given this many batches has learnt from a source.
    pub fn holds(&self, source: &SourceId, batches: u64) -> bool {
        self.runs_with_batches(batches).any(|run| run.id == *source)
    }
}

/// A map under construction, between two steps: settings, frame, pipeline, waiting batches and model.
#[derive(Clone, Debug)]
pub struct Mapper {
    config: Arc<Config>,
    /// Empty until it is known.
    frame: String,
    pipeline: Pipeline,
    continuation: Option<Box<Continuation>>,
    model: FieldModel,
    progress: Progress,
    trajectory: Trajectory,
    /// The map of the quantity that was not chosen, until the next choice; none where it would have to be folded from the first batch.
    alternative: Option<Alternative>,
}

impl Mapper {
    /// A new map; the sensor is at the origin of the robot's body until a step says otherwise.
    pub fn new(config: &Config) -> Self {
        let (pipeline, model) = (Pipeline::new(config, Isometry3::identity()), FieldModel::new(config));
        Self::resume(config.clone(), String::new(), pipeline, model, Progress::default(), Trajectory::default())
    }

    /// Continues from saved parts as if mapping had never stopped.
    pub(crate) fn resume(
        config: Config,
        frame: String,
        pipeline: Pipeline,
        model: FieldModel,
        progress: Progress,
        trajectory: Trajectory,
    ) -> Self {
        let (config, continuation, alternative) = (Arc::new(config), None, None);
        Self { config, frame, pipeline, continuation, model, progress, trajectory, alternative }
    }

    /// Whether it needs the batches that led to the map: to choose what is mapped, to find out how late readings are, or to correct the path.
    pub(crate) fn needs_trajectory(&self) -> bool {
        self.config.is_undecided() || self.config.finds_delay() || self.config.corrects_path()
    }

    /// Gives it the batches that led to the map, at their poses by odometry.
    pub(crate) fn set_batches(&mut self, batches: Vec<Vec<Observation>>) {
        self.trajectory = self.trajectory.with_batches(batches);
    }

    /// The settings in force.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The frame of the map; empty until it is known.
    pub fn frame(&self) -> &str {
        &self.frame
    }

    /// The pipeline, which makes batches of measurements.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The state that holds if odometry continued from where it was, while that is not known.
    pub(crate) fn continuation(&self) -> Option<&Continuation> {
        self.continuation.as_deref()
    }

    pub(crate) fn set_continuation(&mut self, continuation: Option<Box<Continuation>>) {
        self.continuation = continuation;
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// Batches waiting to be learnt from.
    pub fn ready(&self) -> &VecDeque<Batch> {
        self.pipeline.ready()
    }

    /// The model.
    pub fn model(&self) -> &FieldModel {
        &self.model
    }

    /// The trajectory that the map was made from, where the path is to be corrected; otherwise it is in the file alone.
    pub fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    /// The transform from the frame of odometry to that of the map, as it is known now.
    pub fn map_from_odometry(&self) -> Isometry2<f64> {
        self.trajectory.correction.last() * self.pipeline.odometry().transform
    }

    /// Where the sensor was last, as it is known now.
    pub fn end(&self) -> Option<Point2<f64>> {
        self.pipeline.odometry().end.map(|end| self.trajectory.correction.last() * end.xy())
    }

    /// The path along which readings were used, as it is known now.
    pub fn path(&self) -> Path {
        let correction = &self.trajectory.correction;
        if correction.nodes().is_empty() || self.trajectory.batches().is_empty() {
            return self.pipeline.path().clone();
        }
        let mut path = Path::default();
        self.trajectory.corrected_observations().iter().for_each(|observation| path.push(observation.position));
        path
    }

    /// Whether the trajectory has all batches that the map was given.
    pub(super) fn is_trajectory_complete(&self) -> bool {
        self.trajectory.batches().len() as u64 == self.model.totals.batches()
    }

    /// The progress.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether a run under these settings may begin anywhere in this map. In a frame that somebody else named, that says where odometry is.
    pub fn may_begin_anywhere(&self, config: &Config) -> bool {
        config.may_odometry_restart() && self.config.may_odometry_restart()
    }

    /// Starts a new stream into this map; the path so far is kept.
    pub fn begin_stream(&mut self) {
        let (path, odometry) = (self.pipeline.path().clone(), *self.pipeline.odometry());
        self.pipeline = Pipeline::new(&self.config, Isometry3::identity());
        self.pipeline.restart(path, odometry);
        self.continuation = None;
        let progress = &mut self.progress;
        (progress.learnt, progress.merged_batches, progress.index, progress.has_ended) = (0, 0, 0, false);
    }

    /// A new map of what is held, in the frame of odometry, which is to be learnt; none where nothing is.
    pub(crate) fn unplaced(&self) -> Option<Self> {
        let mut pipeline = self.pipeline.clone();
        pipeline.finish();
        let held = pipeline.held().filter(|held| !held.is_empty())?;
        let run = self.progress.sources.last().map(|run| SourceRun { after_updates: 0, ..run.clone() });
        let progress = Progress { sources: run.into_iter().collect(), ..Progress::default() };
        let (config, pipeline) = (Config::clone(&self.config), Pipeline::with_ready(&self.config, held.clone()));
        let model = FieldModel::new(&self.config);
        Some(Self::resume(config, self.frame.clone(), pipeline, model, progress, Trajectory::default()))
    }

    /// Skips steps that are lost.
    pub(crate) fn skip(&mut self, steps: u64) {
        self.progress.steps = self.progress.steps.saturating_add(steps).min(COUNTABLE);
    }

    /// Takes a step. Learning ends early when `stop` is set. Settings that [`FieldModel::check`] rejects change
    /// nothing and are logged.
    pub fn take(&mut self, step: Step, stop: &StopSignal) -> Effect {
        let progress = &mut self.progress;
        progress.steps += 1;
        progress.has_ended = match step {
            Step::Finish => true,
            Step::Learn { .. }
            | Step::Correct(..)
            | Step::Withdraw(_)
            | Step::Refold(_)
            | Step::Continue
            | Step::Elsewhere
            | Step::Place(_) => progress.has_ended,
            _ => false,
        };
        match step {
            Step::Source { id, run } => {
                let after_updates = self.model.totals.batches();
                progress.sources.push(SourceRun { id, run, after_updates });
                progress.index = 0;
            }
            Step::Input { index, input } => {
                progress.index = index.saturating_add(1);
                let needs_mount = self.model.field() == Mapped::Vector;
                for pipeline in self.pipelines() {
                    pipeline.set_needs_mount(needs_mount);
                    pipeline.ingest(input);
                }
                if let Input::Measurement(Measurement::Reading(_)) = input {
                    self.note_mount();
                }
            }
            Step::Frame(frame) => self.frame = frame,
            Step::Seek => self.seek(),
            Step::Continue => self.take_continuation(),
            Step::Elsewhere => self.end_before(),
            Step::Place(map_from_odometry) => {
                self.end_before();
                self.pipeline.place(map_from_odometry);
            }
            Step::Flush => self.pipelines().for_each(Pipeline::flush),
            Step::Finish => self.pipelines().for_each(Pipeline::finish),
            Step::Learn { batches } => return self.learn(batches as usize, stop),
            Step::Configure(config) => self.configure(*config),
            Step::Correct(correction, folded) => return self.correct(correction, folded, stop),
            Step::Withdraw(withdrawal) => self.trajectory.withdrawals.push(withdrawal),
            Step::Refold(refolded) => return self.refold(refolded, stop),
            Step::Reset => {
                let odometry = *self.pipeline.odometry();
                return self.replace(FieldModel::new(&self.config), Path::default(), odometry, Vec::new());
            }
            Step::Load(map) => match FieldModel::from_state(&self.config, &map.model) {
                Ok(model) => {
                    // Of two checkpoints in a file, the one after more steps is the newer one.
                    progress.steps = progress.steps.max(map.steps);
                    let effect = self.replace(model, map.path, map.odometry, map.sources);
                    self.progress.chosen_at = field_choice::MADE;
                    (self.trajectory.delay, self.trajectory.withdrawals) = (map.delay, map.withdrawals);
                    return effect;
                }
                Err(error) => log::error!("the map is not loaded: {error}"),
            },
        }
        Effect::Unchanged
    }

    /// The pipeline, and the one for the case that odometry continued.
    fn pipelines(&mut self) -> impl Iterator<Item = &mut Pipeline> {
        let continuation = self.continuation.as_mut().map(|continuation| &mut continuation.pipeline);
        [Some(&mut self.pipeline), continuation].into_iter().flatten()
    }

    fn seek(&mut self) {
        if self.model.totals.batches() == 0 {
            return;
        }
        let mut pipeline = self.pipeline.clone();
        // They are learnt in any case.
        pipeline.ready_mut().clear();
        let was_placed = pipeline.held().is_none();
        let ended = self.pipeline.seek();
        // Odometry that continued from a place that was never found says nothing.
        self.continuation = was_placed.then(|| Box::new(Continuation { pipeline, ended }));
    }

    fn take_continuation(&mut self) {
        if let Some(continuation) = self.continuation.take() {
            let before = std::mem::replace(&mut self.pipeline, continuation.pipeline).take_ready();
            // They have been reported.
            self.pipeline.take_reopenings();
            let ready = self.pipeline.ready_mut();
            before.into_iter().rev().for_each(|batch| ready.push_front(batch));
        }
    }

    /// Ends the drive before this one: its last batches are learnt next.
    fn end_before(&mut self) {
        if let Some(continuation) = self.continuation.take() {
            self.pipeline.ready_mut().extend(continuation.ended);
        }
    }

    fn learn(&mut self, batches: usize, stop: &StopSignal) -> Effect {
        let Some(batch) = self.pipeline.next_merged(batches) else { return Effect::Unchanged };
        let corrected = self.trajectory.corrected(&batch.observations);
        let chooses = (self.config.is_undecided() || self.config.finds_delay())
            && self.progress.is_choice_open()
            && field_choice::is_open(&self.trajectory, &self.model);
        if chooses && self.config.is_undecided() {
            self.progress.predicted.add(&self.model, &corrected);
        }
        let result = self.model.update(&corrected, &|| stop.is_stopped());
        match &result {
            Ok(report) => log::debug!("{} observations, {} inducing points", report.rows, report.inducing_points),
            Err(reason) => log::warn!("a batch of {} observations was rejected: {reason}", batch.observations.len()),
        }
        if chooses || self.config.corrects_path() {
            self.trajectory.push(batch.observations.clone());
        }
        if chooses && field_choice::is_due(self.trajectory.length(), self.progress.chosen_at) {
            self.choose(stop);
        }
        self.progress.versions += 1;
        self.progress.learnt += 1;
        self.progress.merged_batches += batch.merge_points.len() as u64;
        Effect::Learnt { batch, corrected, result }
    }

    /// Finds out how late readings are, and chooses what is mapped.
    fn choose(&mut self, stop: &StopSignal) {
        let mount = self.pipeline.mount().copied().unwrap_or_default();
        let observations = self.trajectory.corrected_batches().flatten().collect::<Vec<_>>();
        let Some(judgement) = AxesCheck::judge(&self.config, observations.iter(), &mount) else {
            if self.config.is_undecided() && self.progress.choice.is_none() {
                self.say(field_choice::NOT_TOLD.to_owned());
            }
            return;
        };
        let known = self.trajectory.delay;
        let is_later = judgement.is_ok() && self.find_delay();
        if !self.config.is_undecided() {
            self.progress.chosen_at = self.trajectory.length();
            if is_later {
                self.make_again(stop);
            }
            return;
        }
        // One that may hold what was withdrawn since, or was measured elsewhere, is folded anew.
        let alternative = self.alternative.take().filter(|_| self.trajectory.withdrawals.is_empty() && !is_later);
        let mapped = (self.model.field(), self.progress.predicted);
        let choice = field_choice::choose(&self.trajectory, &self.config, mapped, alternative, judgement, stop);
        let Some(Choice { mut alternative, is_changed, words, is_final }) = choice else {
            self.trajectory.delay = known;
            return;
        };
        self.progress.chosen_at = if is_final { field_choice::MADE } else { self.trajectory.length() };
        self.say(words);
        if let Some(other) = alternative.as_mut().filter(|_| is_changed) {
            std::mem::swap(&mut self.progress.predicted, &mut other.predicted);
            let replaced = self.model.clone();
            self.set_remade(std::mem::replace(&mut other.model, replaced));
        } else if is_later {
            self.make_again(stop);
        }
        // Where readings are late, the one that was replaced has them at other places.
        self.alternative = alternative.filter(|_| self.progress.is_choice_open() && !(is_changed && is_later));
    }

    /// Looks for a delay of the readings; whether another one was found than was known.
    fn find_delay(&mut self) -> bool {
        if !self.config.finds_delay() {
            return false;
        }
        let observations = self.trajectory.observations().copied().collect::<Vec<_>>();
        let known = self.trajectory.delay;
        let is_other = |found: &Delay| known.is_none_or(|known| found.differs_from(&known));
        let Some(found) = delay::of(&self.config, &observations).filter(is_other) else { return false };
        log::info!("{found}; they are mapped where they were taken");
        self.trajectory.delay = Some(found);
        true
    }

    /// Makes the map again from its trajectory.
    fn make_again(&mut self, stop: &StopSignal) {
        let batches = self.trajectory.corrected_batches();
        self.set_remade(trajectory::fold_onto(self.empty_model(), batches, &|| stop.is_stopped(), |_, _| {}));
    }

    /// A model of what is mapped that has learnt nothing.
    fn empty_model(&self) -> FieldModel {
        FieldModel::kept_in(self.model.tile_store(), &self.config.decided(self.model.field()))
    }

    /// Notes where readings whose axes mean nothing come into a map of strengths, so that it remains one.
    fn note_mount(&mut self) {
        let is_noted = self.progress.is_without_mount || self.model.field() == Mapped::Vector;
        if self.pipeline.mount().is_none() && !is_noted {
            self.progress.is_without_mount = true;
            if self.config.is_undecided() {
                self.say(field_choice::WITHOUT_MOUNT.to_owned());
            }
        }
    }

    fn say(&mut self, choice: String) {
        log::info!("{choice}");
        self.progress.choice = Some(choice);
    }

    /// Makes the map again from the trajectory at other poses, as far as that is not done.
    fn correct(&mut self, correction: Correction, folded: Option<Box<Folded>>, stop: &StopSignal) -> Effect {
        if !self.is_trajectory_complete() {
            log::error!("the map is not corrected: its trajectory is not complete");
            return Effect::Unchanged;
        }
        self.trajectory.correct(correction);
        let (model, batches) = match folded {
            Some(folded) => (folded.model, folded.batches),
            None => (self.empty_model(), 0),
        };
        let others: Vec<_> = self.trajectory.corrected_batches().skip(batches).collect();
        let effect = self.continue_from(model, &others, stop);
        self.trajectory.withdrawals.iter_mut().for_each(|withdrawal| withdrawal.is_applied = true);
        effect
    }

    /// Continues with a map that was made again without what was withdrawn.
    fn refold(&mut self, refolded: Refolded, stop: &StopSignal) -> Effect {
        let Refolded { folded, since, withdrawals } = refolded;
        if (folded.batches + since.len()) as u64 != self.model.totals.batches() {
            log::error!("the map is not made again without what was withdrawn: batches of its trajectory are missing");
            return Effect::Unchanged;
        }
        let effect = self.continue_from(folded.model, &since, stop);
        self.trajectory.withdrawals.iter_mut().take(withdrawals).for_each(|withdrawal| withdrawal.is_applied = true);
        effect
    }

    /// Replaces the model by one that has learnt the first batches of the trajectory, and lets it learn the others, at their poses in the map.
    fn continue_from(&mut self, mut model: FieldModel, others: &[Vec<Observation>], stop: &StopSignal) -> Effect {
        model.configure(&self.config.decided(self.model.field()));
        self.set_remade(trajectory::fold_onto(model, others, &|| stop.is_stopped(), |_, _| {}));
        self.progress.versions += 1;
        Effect::Replaced
    }

    /// Replaces the model by one that was made again from the trajectory.
    fn set_remade(&mut self, mut model: FieldModel) {
        if !self.trajectory.withdrawals.is_empty() {
            // They count what the map was given, what was withdrawn as well.
            model.totals = self.model.totals;
        }
        self.set_model(model);
    }

    /// Replaces the model; its local models are kept where those before were.
    fn set_model(&mut self, model: FieldModel) {
        if let Some(store) = self.model.tile_store() {
            model.keep_tiles_in(store);
        }
        (self.model, self.alternative) = (model, None);
    }

    fn configure(&mut self, config: Config) {
        if let Err(error) = self.model.check(&config) {
            log::error!("the settings stay as they were: {error}");
            return;
        }
        if self.config.model.field != Mapped::Auto && config.model.field == Mapped::Auto {
            // A map that was begun as what the settings said remains that.
            self.progress.chosen_at = field_choice::MADE;
        }
        if let Some(delay) = self.trajectory.delay.as_mut().filter(|_| self.config.sensor.delay != config.sensor.delay)
        {
            delay.end.get_or_insert(self.model.totals.batches());
        }
        self.pipelines().for_each(|pipeline| pipeline.configure(&config));
        self.model.configure(&config);
        self.alternative = None;
        self.config = Arc::new(config);
    }

    /// Waiting batches and the open cell and batch are dropped.
    fn replace(&mut self, model: FieldModel, path: Path, odometry: OdometryInMap, sources: Vec<SourceRun>) -> Effect {
        self.pipeline.restart(path, odometry);
        self.continuation = None;
        self.set_model(model);
        self.trajectory = Trajectory::default();
        self.progress = Progress {
            versions: self.progress.versions + 1,
            sources,
            choice: None,
            chosen_at: 0.0,
            predicted: Predicted::default(),
            is_without_mount: false,
            ..self.progress.clone()
        };
        Effect::Replaced
    }
}

/// Settings as TOML, which other versions of magmap can read.
mod as_toml {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::Error as _};

    use crate::config::Config;

    pub(crate) fn serialize<S: Serializer>(config: &Config, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&config.to_toml().map_err(S::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Config>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Config::from_toml(&text, "the map's settings").map(Box::new).map_err(D::Error::custom)
    }
}
