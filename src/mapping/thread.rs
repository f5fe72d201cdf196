//! The mapping thread, which owns the model and the pipeline.
//!
//! Sources send into a bounded [`Inbox`], the thread turns messages into the steps of a [`Mapper`], and consumers read
//! finished [`Updates`]; the model is never locked. Every step is appended to the [`StepLog`], if there is one, before
//! it is taken.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use nalgebra::Isometry2;
use serde::Serialize;
use streaming_gp::UpdateReport;

use super::Error;
use super::axes_check::AxesCheck;
use super::batcher::{Batch, mergeable};
use super::changes::ChangeSearch;
use super::given_path::GivenPath;
use super::inbox::{Inbox, MapFrame, Message};
use super::map_check::MapCheck;
use super::mapper::{Effect, Mapper, Step};
use super::path_correction::{Corrected, CorrectedPath, MOVED, PathCorrection};
use super::refold::Refold;
use super::relocating::{Relocated, Search};
use super::step_log::StepLog;
use super::stop::StopSignal;
use super::updates::{Update, Updates};
use crate::config::{self, Config};
use crate::sensing::counters::Counters;
use crate::sensing::reading::{Observation, Pose};
use crate::slam::{self, Estimate};
use crate::sync::lock;
use crate::trajectory::{Delay, Withdrawal};

/// How long the thread waits for a message before it checks its log.
const IDLE: Duration = Duration::from_secs(1);

/// The treatment of batches that become ready while the thread is learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every batch is an update, in order: reproducible. The source waits.
    WaitForLearning,
    /// Waiting batches are merged into one update of at most `mapping.max_merged` observations. The source does not
    /// wait.
    MergeWaiting,
}

/// Called on the mapping thread with every update and its observations (none where another map replaced the previous
/// one), in order, before it is published.
pub type Observer = Box<dyn FnMut(&[Observation], &Arc<Update>) + Send>;

/// Status of the mapping thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MappingStatus {
    /// Counters of the pipeline.
    pub counters: Counters,
    /// Finished updates.
    pub updates: u64,
    /// Batches that were merged into another one.
    pub merged_batches: u64,
    /// Readings lost because the inbox was full.
    pub lost_readings: u64,
    /// Poses lost because the inbox was full.
    pub lost_poses: u64,
}

/// The result of the thread.
#[derive(Debug)]
pub struct Finished {
    /// The map and the pipeline.
    pub mapper: Mapper,
    /// The final status.
    pub status: MappingStatus,
    /// The doubt at the end: see [`MappingThread::doubt`].
    pub doubt: Option<String>,
    /// Where odometry is in the map that was continued: [`MappingThread::relocated`].
    pub relocated: Option<Relocated>,
    /// The path of the whole drive, where the field has corrected it at the end.
    pub estimate: Option<Estimate>,
}

/// A handle of the mapping thread. When it and all its inboxes are dropped, the thread finishes the map and ends.
#[derive(Debug)]
pub struct MappingThread {
    /// The inbox that sources send into.
    pub inbox: Inbox,
    /// Ends this and every later optimisation at its next evaluation. What was sent still becomes part of the map.
    pub stop: StopSignal,
    shared: Arc<Mutex<Shared>>,
    given_path: GivenPath,
    /// The finished updates.
    pub updates: Updates,
    thread: JoinHandle<(Mapper, Option<Estimate>)>,
}

/// The report of the thread after each message.
#[derive(Debug)]
struct Shared {
    status: MappingStatus,
    config: Arc<Config>,
    doubt: Option<String>,
    choice: Option<String>,
    corrected_path: Option<CorrectedPath>,
    relocated: Option<Relocated>,
    delay: Option<Delay>,
    withdrawals: Vec<Withdrawal>,
    map_from_odometry: Isometry2<f64>,
}

impl MappingThread {
    /// Starts the thread from `mapper`, with an optional log of the following steps and an optional `observer` that
    /// records the map over time. An existing map is published first.
    ///
    /// # Errors
    /// [`Error::Spawn`] when the operating system cannot start a thread.
    pub fn start(
        mode: Mode,
        mapper: Mapper,
        step_log: Option<Box<dyn StepLog>>,
        observer: Option<Observer>,
    ) -> Result<Self, Error> {
        let (inbox, receiver) = Inbox::new(mapper.config().mapping.inbox, mapper.frame());
        let stop = StopSignal::default();
        let axes_check = AxesCheck::new(mapper.config(), mapper.model().field());
        let (config, choice) = (Arc::clone(mapper.config()), mapper.progress().choice.clone());
        let shared = Shared {
            status: MappingStatus::default(),
            config,
            doubt: None,
            choice,
            corrected_path: None,
            relocated: mapper.pipeline().held().map(|_| Relocated::begun()),
            delay: mapper.trajectory().delay,
            withdrawals: mapper.trajectory().withdrawals.clone(),
            map_from_odometry: mapper.map_from_odometry(),
        };
        let shared = Arc::new(Mutex::new(shared));
        let has_map = mapper.progress().versions > 0;
        let updates = Updates::new(has_map.then(|| Update::without_batch(&mapper)));
        let corrects = mode == Mode::MergeWaiting && corrects_on_the_way(mapper.config());
        let given_path = GivenPath::default();
        if corrects && !mapper.is_trajectory_complete() {
            log::error!(
                "the path is not corrected: batches of the trajectory are missing in the file of the map; start a new map"
            );
        }
        let path_correction = (corrects && mapper.is_trajectory_complete())
            .then(|| PathCorrection::start(&mapper, &given_path))
            .transpose()?;
        let change_search = change_search(&mapper);
        let mapping = MappingLoop {
            receiver,
            mode,
            mapper,
            path_correction,
            given_path: given_path.clone(),
            axes_check,
            map_check: MapCheck::new(),
            change_search,
            refold: None,
            step_log,
            observer,
            stop: stop.clone(),
            shared: Arc::clone(&shared),
            updates: updates.clone(),
            estimate: None,
            search: None,
            frame: inbox.frame.clone(),
        };
        let thread =
            std::thread::Builder::new().name("mapping".into()).spawn(|| mapping.run()).map_err(Error::Spawn)?;
        Ok(Self { inbox, stop, shared, given_path, updates, thread })
    }

    /// The status as of the last message.
    pub fn status(&self) -> MappingStatus {
        with_losses(&self.inbox, lock(&self.shared).status)
    }

    /// The settings in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.shared).config)
    }

    /// Why the map is in doubt, if it is: the axes of the readings contradict the physics, or a bias grows with the
    /// speed, which is known after 9 to 18 metres of a map of the three axes; or readings contradict the map at places that it knew. It is
    /// logged when it is found.
    pub fn doubt(&self) -> Option<String> {
        lock(&self.shared).doubt.clone()
    }

    /// The quantity that is mapped, and why, where the settings leave that to magmap and it has been chosen. It is logged when it is.
    pub fn choice(&self) -> Option<String> {
        lock(&self.shared).choice.clone()
    }

    /// How late readings are stamped, where it was found and `sensor.delay` does not say it. It is logged when it is found.
    pub fn delay(&self) -> Option<Delay> {
        lock(&self.shared).delay.filter(|delay| delay.end.is_none())
    }

    /// Places withdrawn from the map, because the building has changed there.
    pub fn withdrawals(&self) -> Vec<Withdrawal> {
        lock(&self.shared).withdrawals.clone()
    }

    /// Where odometry is in the map, if this run continues one; none before that is looked for.
    pub fn relocated(&self) -> Option<Relocated> {
        lock(&self.shared).relocated.clone()
    }

    /// The transform from the frame of odometry to that of the map. It is the identity unless the path is corrected, or this run continues a
    /// map of which odometry knew nothing.
    pub fn map_from_odometry(&self) -> Isometry2<f64> {
        lock(&self.shared).map_from_odometry
    }

    /// The path that is corrected while the robot drives; none before it was.
    pub fn corrected_path(&self) -> Option<CorrectedPath> {
        lock(&self.shared).corrected_path.clone()
    }

    /// Replaces the poses of the robot's body by which another SLAM corrects the path, where the settings say that one does
    /// (`slam.path_topic`). They are in the frame of the map, in the order of their stamps. The map is made again in the background.
    pub fn give_path(&self, poses: Vec<Pose>) {
        self.given_path.give(poses);
    }

    /// How many of these poses correct the path; the others have stamps for which odometry is unknown. None before that was tried.
    pub fn placed_poses(&self) -> Option<usize> {
        self.given_path.placed()
    }

    /// Closes the open averaging cell and the open batch, and returns when everything sent before is in the map; where a recording is played
    /// and the path corrected, when all of that is, too. Readings that wait for their pose continue to wait.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended; [`join`](Self::join) says why.
    pub fn flush(&self) -> Result<(), Error> {
        let (reply, done) = bounded(1);
        self.inbox.put(Message::Flush(reply))?;
        done.recv().map_err(|_| Error::Closed)
    }

    /// Changes the settings once every batch cut from what was sent before is in the map.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended; inside, that of
    /// [`FieldModel::check`](crate::field::model::FieldModel::check), and then nothing has changed.
    pub fn configure(&self, config: Config) -> Result<Result<(), config::Error>, Error> {
        self.change(move |mapper| match mapper.model().check(&config) {
            Ok(()) => (Ok(()), vec![Step::Configure(Box::new(config))]),
            Err(error) => (Err(error), Vec::new()),
        })
    }

    /// Inspects the map on the mapping thread once every batch cut from what was sent before is in it.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn inspect<T: Send + 'static>(&self, inspect: impl FnOnce(&Mapper) -> T + Send + 'static) -> Result<T, Error> {
        self.change(|mapper| (inspect(mapper), Vec::new()))
    }

    /// Takes the steps that `decide` chooses given the map, once every batch cut from what was sent before is in it. No
    /// reading comes in between, and the steps are taken on return.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn change<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&Mapper) -> (T, Vec<Step>) + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, done) = bounded(1);
        self.inbox.put(Message::Change(Box::new(move |mapper| {
            let (result, steps) = decide(mapper);
            // The caller may be gone.
            (steps, Box::new(move || drop(reply.send(result))))
        })))?;
        done.recv().map_err(|_| Error::Closed)
    }

    /// Ends the stream after everything sent before: readings that still wait for a pose are rejected, the open cell
    /// and batch closed, and the thread joined.
    ///
    /// # Errors
    /// [`Error::Panicked`] when the model panicked.
    pub fn join(self) -> Result<Finished, Error> {
        // If the thread has ended already, joining it says why.
        let _ = self.inbox.put(Message::Finish);
        let Self { inbox, shared, thread, .. } = self;
        let (mapper, estimate) = thread.join().map_err(|panic| Error::Panicked(panic_message(panic.as_ref())))?;
        let shared = lock(&shared);
        let status = with_losses(&inbox, shared.status);
        let (doubt, relocated) = (shared.doubt.clone(), shared.relocated.clone());
        Ok(Finished { mapper, status, doubt, relocated, estimate })
    }
}

/// Whether the path is corrected while the robot drives.
fn corrects_on_the_way(config: &Config) -> bool {
    config.slam.enabled || config.follows_other_slam()
}

fn with_losses(inbox: &Inbox, status: MappingStatus) -> MappingStatus {
    let [lost_readings, lost_poses] = inbox.losses();
    MappingStatus { lost_readings, lost_poses, ..status }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// What the thread has begun that ends with a step.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Nothing,
    /// The search for changes since the runs before.
    Run,
    /// All that depends on settings, and on which field is mapped.
    Settings,
    /// What belongs to the map, and the correction of its path where that is another one, too.
    Map {
        is_of_path: bool,
    },
    /// A map that is made again.
    Refold,
}

impl Ends {
    fn with(step: &Step) -> Self {
        match step {
            Step::Source { .. } => Self::Run,
            Step::Configure(_) => Self::Settings,
            Step::Load(_) | Step::Reset => Self::Map { is_of_path: true },
            Step::Correct(_, None) | Step::Refold(_) => Self::Map { is_of_path: false },
            // The correction of the path, whose step it is, continues, and so does what is in doubt.
            Step::Correct(_, Some(_)) => Self::Refold,
            _ => Self::Nothing,
        }
    }
}

/// The search for changes since earlier runs, if there were any.
fn change_search(mapper: &Mapper) -> Option<ChangeSearch> {
    let run = mapper.progress().sources.last().filter(|_| mapper.config().finds_changes())?;
    let map = mapper.model().map().filter(|_| run.after_updates > 0)?;
    Some(ChangeSearch::new(map, run.after_updates))
}

/// The task of the mapping thread.
struct MappingLoop {
    receiver: Receiver<Message>,
    mode: Mode,
    mapper: Mapper,
    /// Corrects the path while the robot drives.
    path_correction: Option<PathCorrection>,
    given_path: GivenPath,
    /// The check of a map of the three axes.
    axes_check: Option<AxesCheck>,
    map_check: MapCheck,
    /// The search for changes since earlier runs.
    change_search: Option<ChangeSearch>,
    /// The map that is being made again without what was withdrawn.
    refold: Option<Refold>,
    step_log: Option<Box<dyn StepLog>>,
    observer: Option<Observer>,
    stop: StopSignal,
    shared: Arc<Mutex<Shared>>,
    updates: Updates,
    estimate: Option<Estimate>,
    /// The search for the robot in the map that it continues, while there is one.
    search: Option<Search>,
    frame: MapFrame,
}

impl MappingLoop {
    fn run(mut self) -> (Mapper, Option<Estimate>) {
        // Dropping every sender finishes the stream, too.
        while let Some(message) = self.next_message() {
            match message {
                Message::Input(input) => {
                    let index = self.mapper.progress().index;
                    if self.mapper.config().follows_other_slam() {
                        self.given_path.follow(&input);
                    }
                    self.take(Step::Input { index, input });
                }
                Message::Step(step) => self.take(step),
                Message::Flush(reply) => {
                    self.take(Step::Flush);
                    // Where nothing was observed yet, what follows decides.
                    let has_observed = self.mapper.pipeline().held().is_some_and(|held| !held.is_empty());
                    self.relocate(has_observed);
                    self.learn_all();
                    self.correct_recording();
                    // The caller may be gone.
                    let _ = reply.send(());
                }
                Message::Change(decide) => {
                    self.learn_all();
                    let (steps, reply) = decide(&self.mapper);
                    steps.into_iter().for_each(|step| self.take(step));
                    self.report();
                    reply();
                }
                Message::Finish => break,
            }
            self.housekeep();
        }
        self.finish();
        (self.mapper, self.estimate)
    }

    /// The next message; due batches are learnt from first.
    fn next_message(&mut self) -> Option<Message> {
        while !self.mapper.ready().is_empty() {
            // Where batches may be merged, waiting messages go through the pipeline first.
            let waiting: usize = self.mapper.ready().iter().map(|batch| batch.observations.len()).sum();
            let may_merge = self.mode == Mode::MergeWaiting && waiting < self.max_merged();
            if let Some(message) = may_merge.then(|| self.receiver.try_recv().ok()).flatten() {
                return Some(message);
            }
            self.learn_next();
            self.housekeep();
        }
        loop {
            match self.receiver.recv_timeout(IDLE) {
                Ok(message) => return Some(message),
                // A failed log is retried even while nothing arrives.
                Err(RecvTimeoutError::Timeout) => self.housekeep(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn max_merged(&self) -> usize {
        self.mapper.config().mapping.max_merged
    }

    fn learn_all(&mut self) {
        while !self.mapper.ready().is_empty() {
            self.learn_next();
        }
    }

    fn learn_next(&mut self) {
        let batches = match self.mode {
            Mode::WaitForLearning => 1,
            Mode::MergeWaiting => mergeable(self.mapper.ready(), self.max_merged()),
        };
        self.take(Step::Learn { batches: u32::try_from(batches).unwrap_or(u32::MAX) });
    }

    /// Ends the stream. A stream that was stopped can be resumed where the source waits: its end is not logged.
    fn finish(&mut self) {
        if self.is_interrupted()
            && let Some(step_log) = self.step_log.take()
        {
            step_log.close(None);
        }
        // A map that had ended may have been resumed without new measurements.
        if !self.mapper.progress().has_ended {
            self.take(Step::Finish);
        }
        self.relocate(true);
        self.learn_all();
        if !self.is_interrupted() {
            self.look_for_changes(&[], true);
        }
        // Once stopped, what the rebuilt map lacks would be learnt without optimisation.
        if !self.stop.is_stopped() {
            self.take_corrected();
            self.refold();
        }
        self.take_last_path();
        if self.mapper.config().slam.enabled && self.mode == Mode::WaitForLearning && !self.is_interrupted() {
            self.correct();
        }
        self.report();
        if let Some(step_log) = self.step_log.take() {
            let is_whole = !self.is_interrupted();
            step_log.close(is_whole.then_some(&self.mapper));
        }
    }

    /// Corrects the path of the whole drive by the field, and makes the map again from it.
    fn correct(&mut self) {
        let observations: Vec<Observation> = self.mapper.trajectory().observations().copied().collect();
        let (config, stop) = (Arc::clone(self.mapper.config()), self.stop.clone());
        let mount = self.mapper.pipeline().mount().copied().unwrap_or_default();
        // Asked again of the whole drive, so that the answer does not depend on where a replay was interrupted. Odometry that drifts contradicts
        // the physics as wrong axes do, so the path that is found decides.
        let doubt_of = |observations: &[Observation]| AxesCheck::judge(&config, observations.iter(), &mount)?.err();
        let mut doubt = doubt_of(&observations);
        log::info!("estimating path and field of {:.0} m together", self.mapper.trajectory().length());
        let hyperparameters = slam::local_hyperparameters(&config, &observations, &|| stop.is_stopped());
        let estimate = slam::estimate(&config, &observations, &hyperparameters, &|| stop.is_stopped());
        if let (Ok(estimate), Some(_)) = (&estimate, &doubt) {
            doubt = doubt_of(&estimate.correction.apply(0, &observations));
        }
        match (estimate, doubt) {
            (Err(error @ slam::Error::Stopped), _) | (Err(error), None) => {
                log::warn!("the path is not corrected: {error}");
            }
            (_, Some(doubt)) => {
                log::warn!("the path is not corrected: {doubt}");
                lock(&self.shared).doubt = Some(doubt);
            }
            (Ok(estimate), None) => {
                // What was said of the first metres, at the poses of odometry, is settled.
                lock(&self.shared).doubt = None;
                // A replay may have been interrupted after it.
                if estimate.correction != self.mapper.trajectory().correction {
                    self.take(Step::Correct(estimate.correction.clone(), None));
                }
                self.estimate = Some(estimate);
            }
        }
    }

    /// Whether learning was cut short, so that the state differs from what the steps lead to.
    fn is_interrupted(&self) -> bool {
        self.mode == Mode::WaitForLearning && self.stop.is_stopped()
    }

    /// Logs a step, takes it and publishes the result.
    fn take(&mut self, step: Step) {
        let replaces = matches!(step, Step::Load(_) | Step::Reset | Step::Correct(..) | Step::Refold(_));
        if !replaces {
            self.log(&step);
        }
        if let Step::Frame(frame) = &step {
            self.frame.set(frame);
        }
        let ends = Ends::with(&step);
        let made_as = |mapper: &Mapper| (mapper.model().field(), mapper.trajectory().delay);
        let (number, before) = (self.mapper.progress().versions, made_as(&self.mapper));
        let start = Instant::now();
        let effect = self.mapper.take(step, &self.stop);
        if replaces
            && !self.is_interrupted()
            && let Some(step_log) = &mut self.step_log
        {
            step_log.checkpoint(&self.mapper);
        }
        let is_replaced = matches!(effect, Effect::Replaced);
        self.end(ends, is_replaced);
        if !matches!(effect, Effect::Replaced) && made_as(&self.mapper) != before {
            self.end(Ends::Settings, is_replaced);
        }
        match effect {
            Effect::Unchanged => {}
            Effect::Replaced => self.publish(&[], Update::without_batch(&self.mapper)),
            Effect::Learnt { batch, corrected, result } => {
                self.learnt(number, batch, &corrected, result, start.elapsed());
            }
        }
    }

    fn log(&mut self, step: &Step) {
        let Some(step_log) = &mut self.step_log else { return };
        step_log.append(&self.mapper, step);
        // The log must contain everything that is published.
        if matches!(step, Step::Learn { .. }) {
            step_log.sync(self.mode == Mode::WaitForLearning);
        }
    }

    /// Ends what a step has overtaken; of a step that replaces the map, only if it did.
    fn end(&mut self, ends: Ends, is_replaced: bool) {
        match ends {
            Ends::Nothing => {}
            Ends::Run => self.change_search = change_search(&self.mapper),
            Ends::Settings => {
                self.refold = None;
                self.renew_checks();
                self.restart_path_correction();
            }
            Ends::Map { is_of_path } => {
                self.refold = None;
                // What was in doubt may be mended.
                if is_replaced {
                    self.search = None;
                    lock(&self.shared).relocated = None;
                    self.renew_checks();
                }
                if is_of_path {
                    self.restart_path_correction();
                }
            }
            Ends::Refold => self.refold = None,
        }
    }

    fn renew_checks(&mut self) {
        self.axes_check = AxesCheck::new(self.mapper.config(), self.mapper.model().field());
        self.map_check = MapCheck::new();
        lock(&self.shared).doubt = None;
    }

    /// What follows from a batch that was learnt, or rejected. `observations` are its own at their poses in the map.
    fn learnt(
        &mut self,
        number: u64,
        batch: Batch,
        observations: &[Observation],
        result: Result<UpdateReport, streaming_gp::streaming::Error>,
        duration: Duration,
    ) {
        let Batch { observations: by_odometry, cut, merge_points } = batch;
        if let Some(step_log) = &mut self.step_log {
            step_log.learnt(&self.mapper, &by_odometry);
        }
        if let Some(path_correction) = &self.path_correction {
            path_correction.add(by_odometry, &self.mapper);
        }
        self.check(observations);
        if let Some(refold) = &mut self.refold {
            refold.add(observations);
        }
        let update = Update {
            number,
            result: Some(result),
            observations: observations.len(),
            cut,
            merge_points,
            duration,
            ..Update::without_batch(&self.mapper)
        };
        self.publish(observations, update);
        self.look_for_changes(observations, false);
    }

    /// Looks for changes of the building since earlier runs, in readings that were just learnt.
    fn look_for_changes(&mut self, observations: &[Observation], is_end: bool) {
        let Some(search) = &mut self.change_search else { return };
        let change = search.add(observations, &self.mapper.trajectory().withdrawals, is_end);
        if let Some(doubt) = search.doubt() {
            let known = &mut lock(&self.shared).doubt;
            if known.is_none() {
                log::warn!("{doubt}");
                *known = Some(doubt);
            }
        }
        if let Some(change) = change {
            log::info!(
                "the field has changed {change}: what earlier runs observed there is withdrawn, and the map is made again without it"
            );
            self.take(Step::Withdraw(change));
        }
    }

    /// Makes the map again without what was withdrawn, in the background, and continues with that map once it is made.
    fn refold(&mut self) {
        if self.refold.is_none() && self.mapper.trajectory().is_map_outdated() {
            let read = self.step_log.as_mut().map(|step_log| step_log.trajectory(&self.mapper));
            self.refold =
                read.map(|read| Refold::start(&self.mapper, read, self.mode == Mode::MergeWaiting, &self.stop));
        }
        let waits = self.mode == Mode::WaitForLearning;
        if let Some(refolded) = self.refold.as_mut().and_then(|refold| refold.take(waits)) {
            self.refold = None;
            self.take(Step::Refold(refolded));
        }
    }

    /// Looks for contradictions between what was learnt last, the physics, and the map that is still published.
    fn check(&mut self, observations: &[Observation]) {
        let mount = self.mapper.pipeline().mount().copied().unwrap_or_default();
        let published = self.updates.newest();
        let map = published.as_ref().and_then(|update| update.map.as_ref());
        let is_in_doubt = lock(&self.shared).doubt.is_some();
        let of_axes = self.axes_check.as_mut().and_then(|check| check.add(observations, &mount));
        // Where odometry drifts, readings contradict the map until the path is corrected. Against the map of earlier runs, another check looks for
        // changes.
        let checks_map = !is_in_doubt && !self.mapper.config().corrects_path() && self.change_search.is_none();
        let of_map = || map.filter(|_| checks_map).and_then(|map| self.map_check.add(map, observations));
        let is_by_field = self.mapper.config().slam.enabled;
        if of_axes.is_some() && is_by_field && self.path_correction.take().is_some() {
            log::warn!("the path is not corrected any more: the three axes contradict the physics of a magnetic field");
        }
        if let Some(doubt) = of_axes.or_else(of_map) {
            log::warn!("{doubt}");
            lock(&self.shared).doubt = Some(doubt);
        }
    }

    /// Looks for the robot in the map that it continues, while its place is unknown, and maps from there once it is known.
    fn relocate(&mut self, is_end: bool) {
        if self.mapper.pipeline().held().is_none() {
            return;
        }
        if self.search.is_none() {
            log::info!("looking for the robot in the map: what is measured waits until it is found");
            self.search = Search::begin(&self.mapper);
        }
        let Some(search) = &mut self.search else { return self.take(Step::Continue) };
        if !is_end && !search.is_behind(&self.mapper) {
            return;
        }
        let (relocated, steps) = search.update(&self.mapper, is_end);
        if relocated.is_known {
            log::info!("{}", relocated.words);
            self.search = None;
        } else if steps.contains(&Step::Elsewhere) {
            log::warn!("odometry did not continue from where it was; {}", relocated.words);
        }
        lock(&self.shared).relocated = Some(relocated);
        steps.into_iter().for_each(|step| self.take(step));
    }

    /// Corrects the path of another map, or under other settings, from its beginning, if it is corrected.
    fn restart_path_correction(&mut self) {
        if self.path_correction.is_none() {
            return;
        }
        lock(&self.shared).corrected_path = None;
        match PathCorrection::start(&self.mapper, &self.given_path) {
            Ok(path_correction) => self.path_correction = Some(path_correction),
            Err(error) => {
                log::warn!("the path is not corrected any more: {error}");
                self.path_correction = None;
            }
        }
    }

    /// Goes on with the map of a corrected path, if there is one.
    fn take_corrected(&mut self) {
        match self.path_correction.as_ref().and_then(PathCorrection::take) {
            None => {}
            Some(Ok(Corrected { mut path, map })) => {
                if let Some(tracked) = &mut path.tracked {
                    tracked.odometry = self.mapper.pipeline().odometry().transform.inverse() * tracked.odometry;
                }
                if let Some((correction, folded)) = map {
                    self.take(Step::Correct(correction, Some(folded)));
                }
                if lock(&self.shared).corrected_path.is_none() {
                    let who = if path.tracked.is_some() { "the field" } else { "another SLAM" };
                    log::info!("{who} corrects the path: {path}");
                } else {
                    log::debug!("{path}");
                }
                lock(&self.shared).corrected_path = Some(path);
            }
            Some(Err(error)) => {
                log::warn!("the path is not corrected any more: {error}");
                self.path_correction = None;
            }
        }
    }

    /// Where a recording is played, corrects all of its path so far. No robot waits meanwhile.
    fn correct_recording(&mut self) {
        if let Some(path_correction) = &self.path_correction
            && self.mapper.config().node.recording_id().is_some()
            && path_correction.correct_all(&self.stop)
        {
            self.take_corrected();
            if let Some(path) = &lock(&self.shared).corrected_path {
                log::info!("all of the path is corrected: {path}");
            }
        }
    }

    /// Corrects the path by the last poses of another SLAM, which wait where the map was made again a moment ago.
    fn take_last_path(&mut self) {
        if self.path_correction.take().is_none() || !self.mapper.config().follows_other_slam() {
            return;
        }
        let trajectory = self.mapper.trajectory();
        let Some(correction) = self.given_path.correction(trajectory) else { return };
        let moved = trajectory.moved_most(&trajectory.correction, &correction);
        if moved >= MOVED {
            log::info!(
                "another SLAM has moved the path by up to {moved:.2} m since: the map is made again before it is saved"
            );
            // It is made like any other: at its end, a node learns without optimisation.
            self.stop = StopSignal::default();
            self.take(Step::Correct(correction, None));
        }
    }

    fn publish(&mut self, observations: &[Observation], update: Update) {
        let update = Arc::new(update);
        if let Some(observer) = &mut self.observer {
            observer(observations, &update);
        }
        self.report();
        self.updates.publish(update);
    }

    /// Housekeeping between two messages.
    fn housekeep(&mut self) {
        self.relocate(false);
        self.take_corrected();
        self.refold();
        self.report();
        let is_interrupted = self.is_interrupted();
        if let Some(step_log) = &mut self.step_log
            && !is_interrupted
            && step_log.is_checkpoint_due(&self.mapper)
        {
            step_log.checkpoint(&self.mapper);
        }
    }

    fn report(&mut self) {
        for reopening in self.mapper.pipeline_mut().take_reopenings() {
            log::warn!("{reopening}");
        }
        let progress = self.mapper.progress();
        let mut shared = lock(&self.shared);
        shared.status.counters = *self.mapper.pipeline().counters();
        shared.map_from_odometry = self.mapper.map_from_odometry();
        if shared.withdrawals != self.mapper.trajectory().withdrawals {
            shared.withdrawals.clone_from(&self.mapper.trajectory().withdrawals);
        }
        if self.mapper.pipeline().held().is_some() && shared.relocated.is_none() {
            shared.relocated = Some(Relocated::begun());
        }
        shared.delay = self.mapper.trajectory().delay;
        shared.status.updates = progress.learnt;
        shared.status.merged_batches = progress.merged_batches;
        if shared.choice != progress.choice {
            shared.choice.clone_from(&progress.choice);
        }
        if !Arc::ptr_eq(&shared.config, self.mapper.config()) {
            shared.config = Arc::clone(self.mapper.config());
        }
    }
}

#[cfg(test)]
mod tests;
