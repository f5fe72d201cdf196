//! The mapping thread: the only owner of the model and of all that leads to it.
//!
//! Sources send into a bounded [`Inbox`], the thread turns what comes into the steps of a [`Mapper`], and whoever wants the map
//! reads finished updates from [`Snapshots`]. Nobody else ever locks the model. A [`Keeper`], if there is one, is told about every
//! step before it is taken.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded, unbounded};
use nalgebra::Isometry3;
use serde::Serialize;

use super::Error;
use super::batcher::{Batch, CutReason, Joint, mergeable};
use super::gates::FARTHEST;
use super::keeper::Keeper;
use super::learner::{Learner, StopSignal};
use super::mapper::{Mapper, Origin, Outcome, SourceId, Step};
use super::path::Path;
use super::pipeline::{Counters, Pipeline};
use super::reading::{Measurement, Observation};
use crate::config::{self, Config};

/// How long the thread waits for a message before it looks after what it keeps.
const REST: Duration = Duration::from_secs(1);

/// How the thread deals with batches that became ready while it was learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One update per batch, in order: the same map every time. The source waits.
    Offline,
    /// Waiting batches are merged into one update of at most `worker.max_merged` observations. The source does not wait.
    Live,
}

/// A finished update and what led to it.
#[derive(Clone, Debug)]
pub struct Update<S> {
    /// Which update it is, counted from 0.
    pub number: u64,
    /// The map after it.
    pub snapshot: S,
    /// Observations it learnt from.
    pub observations: usize,
    /// Why its batch was cut.
    pub cut: CutReason,
    /// Where batches merged into it had been cut.
    pub joints: Vec<Joint>,
    /// How long learning took.
    pub duration: Duration,
    /// The pipeline's counters when learning ended.
    pub counters: Counters,
}

impl<S> Update<S> {
    /// That of a map that no batch led to.
    fn unlearnt(number: u64, snapshot: S, counters: Counters) -> Self {
        let (cut, duration) = (CutReason::Flush, Duration::ZERO);
        Self { number, snapshot, observations: 0, cut, joints: Vec::new(), duration, counters }
    }
}

/// Sees every update and the observations it learnt from (none where another map took its place) on the mapping thread, in order,
/// before it is published; the thread waits for it.
pub type Observer<S> = Box<dyn FnMut(&[Observation], &Arc<Update<S>>) + Send>;

/// How the thread is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// What went through the pipeline.
    pub counters: Counters,
    /// Updates finished.
    pub updates: u64,
    /// Batches that were not updates of their own but merged into another.
    pub merged_batches: u64,
    /// Readings lost because the inbox was full.
    pub lost_readings: u64,
    /// Poses lost because the inbox was full.
    pub lost_poses: u64,
}

enum Message {
    Measurement(Measurement),
    Mount(Isometry3<f64>),
    Source {
        id: SourceId,
        run: String,
    },
    Flush(Sender<()>),
    /// Settings or an empty map; the reply comes when every batch before is in the map and the step is taken.
    Change(Step, Sender<()>),
    /// The next of the jobs is due.
    Job,
    Finish,
}

/// What runs on the mapping thread between two messages.
type Job<L> = Box<dyn FnOnce(&mut Mapper<L>) -> Change + Send>;

/// What a job did to the map, and the steps to take next.
struct Change {
    /// Whether another map took its place.
    is_other: bool,
    steps: Vec<Step>,
}

/// What takes the place of a map.
#[derive(Debug)]
pub struct Replacement<L> {
    /// The map.
    pub map: NextMap<L>,
    /// Where the measurements that follow come from.
    pub source: SourceId,
    /// Tells this run of the source from all others.
    pub run: String,
}

/// A map that takes the place of another.
#[derive(Debug)]
pub enum NextMap<L> {
    /// One that knows nothing, with these settings.
    Empty(Box<Config>),
    /// One that was saved.
    Loaded {
        /// The model.
        learner: Box<L>,
        /// Where its observations were made.
        path: Path,
        /// What it was made of.
        sources: Vec<Origin>,
    },
}

/// What became of a measurement that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The mapping thread has it.
    Taken,
    /// The inbox was full: it is lost, and counted.
    Lost,
}

/// The source's end of the mapping thread. Clones send into the same inbox.
#[derive(Clone, Debug)]
pub struct Inbox {
    sender: Sender<Message>,
    losses: Arc<Losses>,
}

#[derive(Debug, Default)]
struct Losses {
    readings: AtomicU64,
    poses: AtomicU64,
}

impl Losses {
    fn add_to(&self, status: Status) -> Status {
        let lost_readings = self.readings.load(Ordering::Relaxed);
        let lost_poses = self.poses.load(Ordering::Relaxed);
        Status { lost_readings, lost_poses, ..status }
    }
}

impl Inbox {
    /// Sends, and waits while the inbox is full: for recordings and simulations, of which nothing must be lost.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn send(&self, measurement: Measurement) -> Result<(), Error> {
        self.sender.send(Message::Measurement(measurement)).map_err(|_| Error::Closed)
    }

    /// How many messages wait in it.
    pub fn backlog(&self) -> usize {
        self.sender.len()
    }

    /// Sends without ever waiting: for live sources. When the inbox is full the measurement is lost and counted.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn offer(&self, measurement: Measurement) -> Result<Delivery, Error> {
        match self.sender.try_send(Message::Measurement(measurement)) {
            Ok(()) => Ok(Delivery::Taken),
            Err(TrySendError::Disconnected(_)) => Err(Error::Closed),
            Err(TrySendError::Full(_)) => {
                let losses = match measurement {
                    Measurement::Reading(_) => &self.losses.readings,
                    Measurement::Pose(_) => &self.losses.poses,
                };
                losses.fetch_add(1, Ordering::Relaxed);
                Ok(Delivery::Lost)
            }
        }
    }

    /// Changes where the sensor sits (the transform from its frame to the robot's body frame), for readings sent afterwards. Waits
    /// while the inbox is full, even for a live source: it is rare, and must not be lost.
    ///
    /// # Errors
    /// [`Error::MountNotFinite`], and [`Error::Closed`] when the mapping thread has ended.
    pub fn set_mount(&self, mount: Isometry3<f64>) -> Result<(), Error> {
        let is_near = mount.translation.vector.iter().all(|coordinate| coordinate.abs() <= FARTHEST);
        if !is_near || !mount.to_matrix().iter().all(|entry| entry.is_finite()) {
            return Err(Error::MountNotFinite { mount });
        }
        self.sender.send(Message::Mount(mount)).map_err(|_| Error::Closed)
    }

    /// Says that the measurements that follow come from another source: a recording, from its beginning, or a robot. `run` tells
    /// this run of it from all others.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn begin(&self, id: SourceId, run: String) -> Result<(), Error> {
        self.sender.send(Message::Source { id, run }).map_err(|_| Error::Closed)
    }
}

/// The newest finished update, for readers on other threads. Clones read the same.
#[derive(Debug)]
pub struct Snapshots<S> {
    shared: Arc<(Mutex<Slot<S>>, Condvar)>,
}

#[derive(Debug)]
struct Slot<S> {
    newest: Option<Arc<Update<S>>>,
    ended: bool,
}

/// What waiting for an update came to.
#[derive(Clone, Debug)]
pub enum Waited<S> {
    /// An update that is newer.
    Newer(Arc<Update<S>>),
    /// There is none yet.
    TimedOut,
    /// There will be none: the mapping thread has ended.
    Ended,
}

impl<S> Clone for Snapshots<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> Snapshots<S> {
    fn new(newest: Option<Arc<Update<S>>>) -> Self {
        Self { shared: Arc::new((Mutex::new(Slot { newest, ended: false }), Condvar::new())) }
    }

    /// The newest update, if any is finished.
    pub fn newest(&self) -> Option<Arc<Update<S>>> {
        lock(&self.shared.0).newest.clone()
    }

    /// Waits for an update whose number is greater than `than` (any update, for `None`), at most for so long. The newest is
    /// returned; those in between are not seen.
    pub fn wait_newer(&self, than: Option<u64>, at_most: Duration) -> Waited<S> {
        let (mutex, changed) = &*self.shared;
        let is_newer = |slot: &Slot<S>| slot.newest.as_ref().is_some_and(|update| Some(update.number) > than);
        let waited = changed.wait_timeout_while(lock(mutex), at_most, |slot| !is_newer(slot) && !slot.ended);
        let slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        match &slot.newest {
            Some(update) if is_newer(&slot) => Waited::Newer(Arc::clone(update)),
            _ if slot.ended => Waited::Ended,
            _ => Waited::TimedOut,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Slot<S>)) {
        change(&mut lock(&self.shared.0));
        self.shared.1.notify_all();
    }
}

/// Tells those who wait that the thread has ended, however it ended.
struct EndNotice<S>(Snapshots<S>);

impl<S> Drop for EndNotice<S> {
    fn drop(&mut self) {
        self.0.change(|slot| slot.ended = true);
    }
}

/// Locks what is only ever replaced as a whole: a panic elsewhere leaves nothing half-written in it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is left when the thread has ended.
#[derive(Debug)]
pub struct Finished<L> {
    /// The model, and the pipeline with its counters and its path.
    pub mapper: Mapper<L>,
    /// How it went.
    pub status: Status,
}

/// The mapping thread, seen from outside. When it and all its inboxes are dropped, the thread finishes what it has and ends.
#[derive(Debug)]
pub struct Worker<L: Learner> {
    inbox: Inbox,
    jobs: Jobs<L>,
    stop: StopSignal,
    status: Arc<Mutex<Status>>,
    snapshots: Snapshots<L::Snapshot>,
    thread: JoinHandle<Mapper<L>>,
}

impl<L: Learner> Worker<L> {
    /// Starts the thread. `observer`, if any, sees every update, for those who record the map over time.
    ///
    /// # Errors
    /// [`Error::Spawn`] when the operating system gives no thread.
    pub fn spawn(
        settings: &config::Worker,
        mode: Mode,
        pipeline: Pipeline,
        learner: L,
        observer: Option<Observer<L::Snapshot>>,
    ) -> Result<Self, Error> {
        Self::resume(settings, mode, Mapper::new(pipeline, learner), None, observer)
    }

    /// Starts the thread where `mapper` is, with a keeper of the steps that follow. A map that is there already is the first that
    /// is published.
    ///
    /// # Errors
    /// [`Error::Spawn`] when the operating system gives no thread.
    pub fn resume(
        settings: &config::Worker,
        mode: Mode,
        mapper: Mapper<L>,
        keeper: Option<Box<dyn Keeper<L>>>,
        observer: Option<Observer<L::Snapshot>>,
    ) -> Result<Self, Error> {
        let (sender, receiver) = bounded(settings.inbox.max(1));
        let (job_sender, jobs) = unbounded();
        let stop = StopSignal::default();
        let status = Arc::new(Mutex::new(Status::default()));
        let standing = mapper.standing();
        let newest = standing.versions.checked_sub(1).map(|number| {
            let (snapshot, counters) = (mapper.learner().snapshot(), *mapper.pipeline().counters());
            Arc::new(Update::unlearnt(number, snapshot, counters))
        });
        let snapshots = Snapshots::new(newest);
        let mapping = Mapping {
            receiver,
            jobs,
            mode,
            max_merged: settings.max_merged,
            mapper,
            keeper,
            observer,
            stop: stop.clone(),
            status: Arc::clone(&status),
            snapshots: snapshots.clone(),
        };
        let thread =
            std::thread::Builder::new().name("mapping".into()).spawn(|| mapping.run()).map_err(Error::Spawn)?;
        let inbox = Inbox { sender, losses: Arc::default() };
        Ok(Self { inbox, jobs: Jobs(job_sender), stop, status, snapshots, thread })
    }

    /// The end that sources send into.
    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    /// Where finished updates appear.
    pub fn snapshots(&self) -> Snapshots<L::Snapshot> {
        self.snapshots.clone()
    }

    /// How the thread is doing, as of its last message.
    pub fn status(&self) -> Status {
        self.inbox.losses.add_to(*lock(&self.status))
    }

    /// Closes the open averaging cell and the open batch, and returns when everything sent before is in the map. Readings that
    /// wait for their pose go on waiting.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended; [`join`](Self::join) says why.
    pub fn flush(&self) -> Result<(), Error> {
        let (reply, done) = bounded(1);
        self.inbox.sender.send(Message::Flush(reply)).map_err(|_| Error::Closed)?;
        done.recv().map_err(|_| Error::Closed)
    }

    /// Goes on with other settings of the model, when every batch cut from what was sent before is in the map.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn configure(&self, config: &Config) -> Result<(), Error> {
        self.step(Step::Configure(Box::new(config.clone())))
    }

    fn step(&self, step: Step) -> Result<(), Error> {
        let (reply, done) = bounded(1);
        self.inbox.sender.send(Message::Change(step, reply)).map_err(|_| Error::Closed)?;
        done.recv().map_err(|_| Error::Closed)
    }

    /// Looks at pipeline and model on the mapping thread, when every batch cut from what was sent before is in the map.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended.
    pub fn inspect<T: Send + 'static>(&self, look: impl FnOnce(&Mapper<L>) -> T + Send + 'static) -> Result<T, Error> {
        self.run(|mapper| (look(mapper), Change { is_other: false, steps: Vec::new() }))
    }

    /// Puts another map in the place of this one, an update of no observations, once `guard` agrees: it sees the map that is about
    /// to go when every batch cut from what was sent before is in it, and no reading comes in between.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended. What the guard says is inside.
    pub fn replace<T: Send + 'static, E: Send + 'static>(
        &self,
        replacement: Replacement<L>,
        guard: impl FnOnce(&Mapper<L>) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, Error>
    where
        L: Send,
    {
        self.run(move |mapper| {
            let mut change = Change { is_other: false, steps: Vec::new() };
            let agreed = guard(mapper);
            if agreed.is_ok() {
                let Replacement { map, source, run } = replacement;
                match map {
                    NextMap::Empty(config) => change.steps.push(Step::Reset(config)),
                    NextMap::Loaded { learner, path, sources } => {
                        mapper.replace(*learner, path, sources);
                        change.is_other = true;
                    }
                }
                change.steps.push(Step::Source { id: source, run });
            }
            (agreed, change)
        })
    }

    fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Mapper<L>) -> (T, Change) + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, done) = bounded(1);
        let job: Job<L> = Box::new(move |mapper| {
            let (result, change) = job(mapper);
            // Whoever asked may have gone.
            let _ = reply.send(result);
            change
        });
        self.jobs.0.send(job).map_err(|_| Error::Closed)?;
        self.inbox.sender.send(Message::Job).map_err(|_| Error::Closed)?;
        done.recv().map_err(|_| Error::Closed)
    }

    /// Asks a running and every later optimisation to end at its next evaluation. What was sent still becomes part of the map.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// The signal that [`stop`](Self::stop) sets: for signal handlers, and for sources, which should end then too.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Ends the stream after everything sent before: readings that still wait for a pose are refused, the open cell and batch
    /// closed, and the thread joined.
    ///
    /// # Errors
    /// [`Error::Panicked`] when the model panicked.
    pub fn join(self) -> Result<Finished<L>, Error> {
        // A thread that has ended already takes no message; joining it says why.
        let _ = self.inbox.sender.send(Message::Finish);
        let mapper = self.thread.join().map_err(|panic| Error::Panicked { message: panic_message(panic.as_ref()) })?;
        let status = self.inbox.losses.add_to(*lock(&self.status));
        Ok(Finished { mapper, status })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// The end that jobs are sent into.
struct Jobs<L: Learner>(Sender<Job<L>>);

impl<L: Learner> std::fmt::Debug for Jobs<L> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Jobs")
    }
}

/// What runs on the thread.
struct Mapping<L: Learner> {
    receiver: Receiver<Message>,
    jobs: Receiver<Job<L>>,
    mode: Mode,
    max_merged: usize,
    mapper: Mapper<L>,
    keeper: Option<Box<dyn Keeper<L>>>,
    observer: Option<Observer<L::Snapshot>>,
    stop: StopSignal,
    status: Arc<Mutex<Status>>,
    snapshots: Snapshots<L::Snapshot>,
}

impl<L: Learner> Mapping<L> {
    fn run(mut self) -> Mapper<L> {
        let _notice = EndNotice(self.snapshots.clone());
        // Every sender gone means the same as being asked to finish.
        while let Some(message) = self.next_message() {
            match message {
                Message::Measurement(measurement) => {
                    let place = self.mapper.standing().place;
                    self.take(Step::Measurement { place, measurement });
                }
                Message::Mount(mount) => self.take(Step::Mount(mount)),
                Message::Source { id, run } => self.take(Step::Source { id, run }),
                Message::Flush(reply) => {
                    self.take(Step::Flush);
                    self.learn_all();
                    // Whoever asked may have gone.
                    let _ = reply.send(());
                }
                Message::Change(step, reply) => {
                    self.learn_all();
                    self.take(step);
                    let _ = reply.send(());
                }
                Message::Job => self.run_job(),
                Message::Finish => break,
            }
            self.rest();
        }
        self.finish();
        self.mapper
    }

    /// The next message; batches that are due are learnt from first.
    fn next_message(&mut self) -> Option<Message> {
        while !self.mapper.ready().is_empty() {
            // Live, what waits in the inbox goes through the pipeline first, so that batches can be merged.
            let may_merge = self.mode == Mode::Live && self.ready_observations() < self.max_merged;
            if let Some(message) = may_merge.then(|| self.receiver.try_recv().ok()).flatten() {
                return Some(message);
            }
            self.learn_next();
            self.rest();
        }
        loop {
            match self.receiver.recv_timeout(REST) {
                Ok(message) => return Some(message),
                // What could not be kept is tried again, also while the robot stands still.
                Err(RecvTimeoutError::Timeout) => self.rest(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Bounds what waits outside the inbox: a source that is too fast for good fills the inbox, where losses are counted.
    fn ready_observations(&self) -> usize {
        self.mapper.ready().iter().map(Batch::len).sum()
    }

    fn learn_all(&mut self) {
        while !self.mapper.ready().is_empty() {
            self.learn_next();
        }
    }

    fn learn_next(&mut self) {
        let batches = match self.mode {
            Mode::Offline => 1,
            Mode::Live => mergeable(self.mapper.ready(), self.max_merged),
        };
        self.take(Step::Learn { batches: u32::try_from(batches).unwrap_or(u32::MAX) });
    }

    fn run_job(&mut self) {
        self.learn_all();
        let Ok(job) = self.jobs.try_recv() else { return };
        let Change { is_other, steps } = job(&mut self.mapper);
        if is_other {
            self.publish_unlearnt();
            // It was no step, so nothing but the state can tell of it.
            if let Some(keeper) = &mut self.keeper {
                keeper.keep(&self.mapper);
            }
        }
        steps.into_iter().for_each(|step| self.take(step));
    }

    /// Ends the stream. Offline, a stream that was stopped can be taken up again where it was: its end is not kept.
    fn finish(&mut self) {
        if self.is_interrupted()
            && let Some(keeper) = self.keeper.take()
        {
            keeper.close(None);
        }
        // Nothing has come since a map that had ended was taken up again.
        if !self.mapper.standing().has_ended {
            self.take(Step::Finish);
        }
        self.learn_all();
        self.report();
        if let Some(keeper) = self.keeper.take() {
            let is_whole = !self.is_interrupted();
            keeper.close(is_whole.then_some(&self.mapper));
        }
    }

    /// Whether learning was cut short, so that the state is not what the steps lead to.
    fn is_interrupted(&self) -> bool {
        self.mode == Mode::Offline && self.stop.is_stopped()
    }

    /// Takes the next step and publishes what it came to.
    fn take(&mut self, step: Step) {
        if let Some(keeper) = &mut self.keeper {
            keeper.note(&self.mapper, &step);
            // What is published is kept.
            if matches!(step, Step::Learn { .. }) {
                keeper.settle(self.mode == Mode::Offline);
            }
        }
        let number = self.mapper.standing().versions;
        let start = Instant::now();
        match self.mapper.take(step, &self.stop) {
            Outcome::Unchanged => {}
            Outcome::Replaced => self.publish_unlearnt(),
            Outcome::Learnt { batch, snapshot } => {
                let Batch { observations, cut, joints } = batch;
                let update = Update {
                    number,
                    snapshot,
                    observations: observations.len(),
                    cut,
                    joints,
                    duration: start.elapsed(),
                    counters: *self.mapper.pipeline().counters(),
                };
                self.publish(&observations, update);
            }
        }
    }

    /// Publishes a map that no batch led to.
    fn publish_unlearnt(&mut self) {
        let number = self.mapper.standing().versions - 1;
        let (snapshot, counters) = (self.mapper.learner().snapshot(), *self.mapper.pipeline().counters());
        self.publish(&[], Update::unlearnt(number, snapshot, counters));
    }

    fn publish(&mut self, observations: &[Observation], update: Update<L::Snapshot>) {
        let update = Arc::new(update);
        if let Some(observer) = &mut self.observer {
            observer(observations, &update);
        }
        self.report();
        self.snapshots.change(|slot| slot.newest = Some(update));
    }

    /// Between two messages.
    fn rest(&mut self) {
        self.report();
        let is_interrupted = self.is_interrupted();
        if let Some(keeper) = &mut self.keeper
            && !is_interrupted
            && keeper.wants_state(&self.mapper)
        {
            keeper.keep(&self.mapper);
        }
    }

    fn report(&mut self) {
        for reopening in self.mapper.pipeline_mut().take_reopenings() {
            log::warn!("{reopening}");
        }
        let standing = self.mapper.standing();
        let mut status = lock(&self.status);
        status.counters = *self.mapper.pipeline().counters();
        status.updates = standing.learnt;
        status.merged_batches = standing.merged_batches;
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point3, UnitQuaternion, Vector3};

    use super::super::reading::{MagneticField, Pose, Reading, Stamp};
    use super::*;
    use crate::mapping::refusal::Refusal;

    const SOON: Duration = Duration::from_secs(20);

    /// Remembers what it learnt, and waits for a token before each update when it has a gate.
    struct Recorder {
        learnt: Vec<Observation>,
        batches: Vec<usize>,
        gate: Option<Receiver<()>>,
        panic_at: Option<usize>,
    }

    impl Recorder {
        fn new(gate: Option<Receiver<()>>) -> Self {
            Self { learnt: Vec::new(), batches: Vec::new(), gate, panic_at: None }
        }
    }

    impl Learner for Recorder {
        type Snapshot = usize;

        fn learn(&mut self, batch: &Batch, stop: &StopSignal) -> usize {
            while self.gate.as_ref().is_some_and(|gate| gate.recv_timeout(Duration::from_millis(5)).is_err()) {
                if stop.is_stopped() {
                    break;
                }
            }
            assert!(self.panic_at != Some(self.batches.len()), "the model broke");
            self.learnt.extend(&batch.observations);
            self.batches.push(batch.len());
            self.learnt.len()
        }

        fn configure(&mut self, _: &Config) {}

        fn reset(&mut self, _: &Config) {
            *self = Recorder::new(None);
        }

        fn snapshot(&self) -> usize {
            self.learnt.len()
        }

        fn updates(&self) -> u64 {
            self.batches.len() as u64
        }
    }

    /// Every reading an observation, ten of them a batch.
    fn config(inbox: usize, max_merged: usize) -> Config {
        let mut config = Config::default();
        config.averaging.spacing = 0.0;
        config.batch = config::Batch { max_observations: 10, max_path: 0.0, max_duration: 0.0 };
        config.worker = config::Worker { inbox, max_merged };
        config
    }

    fn spawn(config: &Config, mode: Mode, learner: Recorder, observer: Option<Observer<usize>>) -> Worker<Recorder> {
        let pipeline = Pipeline::new(config, Isometry3::identity());
        Worker::spawn(&config.worker, mode, pipeline, learner, observer).unwrap()
    }

    fn pair(index: usize) -> [Measurement; 2] {
        let stamp = Stamp::from_nanoseconds(index as i64 * 20_000_000);
        let position = Point3::new(0.01 * index as f64, 0.0, 0.0);
        let field = MagneticField::from_microtesla(Vector3::new(50.0, 0.0, 0.0).add_scalar(1e-6 * index as f64));
        [
            Measurement::Pose(Pose { stamp, position, orientation: UnitQuaternion::identity() }),
            Measurement::Reading(Reading { stamp, field }),
        ]
    }

    fn stamps(observations: &[Observation]) -> Vec<i64> {
        observations.iter().map(|observation| observation.stamp.nanoseconds() / 20_000_000).collect()
    }

    #[test]
    fn offline_a_slow_learner_loses_nothing_and_every_batch_is_an_update() {
        let (open, gate) = bounded(1000);
        let (seen, updates) = bounded(1000);
        let observer: Observer<usize> = Box::new(move |observations, update| {
            seen.send((observations.len(), update.number, update.snapshot)).unwrap();
        });
        // An inbox of 4 in front of a learner that waits: the source has to wait too.
        let worker = spawn(&config(4, 5000), Mode::Offline, Recorder::new(Some(gate)), Some(observer));
        let source = std::thread::spawn({
            let inbox = worker.inbox();
            move || (0..105).flat_map(pair).try_for_each(|measurement| inbox.send(measurement))
        });
        for _ in 0..11 {
            open.send(()).unwrap();
        }
        source.join().unwrap().unwrap();
        let finished = worker.join().unwrap();
        assert_eq!(stamps(&finished.mapper.learner().learnt), (0..105).collect::<Vec<_>>());
        assert_eq!(finished.mapper.learner().batches, [[10; 10].as_slice(), &[5]].concat());
        let seen: Vec<_> = updates.try_iter().collect();
        assert_eq!(seen.len(), 11);
        assert_eq!((seen[3], seen[10]), ((10, 3, 40), (5, 10, 105)));
        assert_eq!((finished.status.updates, finished.status.merged_batches), (11, 0));
        assert_eq!((finished.status.lost_readings, finished.status.counters.used_readings), (0, 105));
    }

    #[test]
    fn live_what_waits_is_merged_and_every_observation_learnt_once() {
        let (open, gate) = bounded(1000);
        let (seen, updates) = bounded(1000);
        let observer: Observer<usize> = Box::new(move |_, update| seen.send(update.joints.clone()).unwrap());
        let worker = spawn(&config(1000, 40), Mode::Live, Recorder::new(Some(gate)), Some(observer));
        let inbox = worker.inbox();
        for measurement in (0..105).flat_map(pair) {
            assert_eq!(inbox.offer(measurement).unwrap(), Delivery::Taken);
        }
        for _ in 0..20 {
            open.send(()).unwrap();
        }
        let finished = worker.join().unwrap();
        assert_eq!(stamps(&finished.mapper.learner().learnt), (0..105).collect::<Vec<_>>());
        // While the first update waited the rest came in; at least the second update must then be a merged one.
        let batches = &finished.mapper.learner().batches;
        assert!(batches.iter().all(|&size| size <= 40) && batches.contains(&40), "{batches:?}");
        assert_eq!(finished.status.updates + finished.status.merged_batches, finished.status.counters.batches);
        assert_eq!(finished.status.updates as usize, batches.len());
        let largest = updates.try_iter().find(|joints| joints.len() == 3).expect("an update of four batches");
        let places: Vec<usize> = largest.iter().map(|joint| joint.observations).collect();
        assert_eq!(places, [10, 20, 30]);
        assert!(largest.iter().all(|joint| joint.cut == CutReason::Count));
    }

    #[test]
    fn live_a_full_inbox_counts_what_it_loses() {
        let (open, gate) = bounded(1000);
        let worker = spawn(&config(20, 20), Mode::Live, Recorder::new(Some(gate)), None);
        let inbox = worker.inbox();
        let mut lost = [0_u64; 2];
        for [pose, reading] in (0..500).map(pair) {
            lost[0] += u64::from(inbox.offer(pose).unwrap() == Delivery::Lost);
            lost[1] += u64::from(inbox.offer(reading).unwrap() == Delivery::Lost);
        }
        // At most 10 observations in the running update, 30 ready, 20 messages in the inbox: most of 500 had no place.
        assert!(lost[1] > 400, "{lost:?}");
        let status = worker.status();
        assert_eq!([status.lost_poses, status.lost_readings], lost);
        for _ in 0..100 {
            open.send(()).unwrap();
        }
        let finished = worker.join().unwrap();
        let counters = finished.status.counters;
        assert_eq!(counters.readings + lost[1], 500);
        assert_eq!(counters.used_readings + counters.refusals.readings(), counters.readings);
        assert_eq!(finished.mapper.learner().learnt.len() as u64, counters.used_readings);
        assert_eq!(finished.status.lost_readings, lost[1]);
    }

    #[test]
    fn a_flush_returns_when_everything_before_is_in_the_map() {
        for mode in [Mode::Offline, Mode::Live] {
            let worker = spawn(&config(100, 5000), mode, Recorder::new(None), None);
            let inbox = worker.inbox();
            (0..13).flat_map(pair).for_each(|measurement| inbox.send(measurement).unwrap());
            worker.flush().unwrap();
            let newest = worker.snapshots().newest().expect("an update");
            assert_eq!((newest.snapshot, newest.cut), (13, CutReason::Flush));
            assert_eq!(worker.status().counters.used_readings, 13);
            // Flushing nothing is no update.
            worker.flush().unwrap();
            assert_eq!(worker.status().updates, newest.number + 1);
        }
    }

    #[test]
    fn the_thread_is_looked_into_and_changed_between_batches() {
        let worker = spawn(&config(100, 5000), Mode::Live, Recorder::new(None), None);
        (0..13).flat_map(pair).for_each(|measurement| worker.inbox().send(measurement).unwrap());
        let used = |pipeline: &Pipeline| pipeline.counters().used_readings;
        let seen = worker.inspect(move |mapper| (used(mapper.pipeline()), mapper.learner().learnt.len())).unwrap();
        assert_eq!(seen, (13, 10), "the batch of ten is learnt, the open one is not closed");
        assert_eq!(worker.snapshots().newest().unwrap().number, 0);
        let replace = |guard: Result<(), &'static str>| {
            let map =
                NextMap::Loaded { learner: Box::new(Recorder::new(None)), path: Path::default(), sources: Vec::new() };
            let replacement = Replacement { map, source: SourceId::robot("robot"), run: "1".into() };
            worker.replace(replacement, move |_| guard).unwrap()
        };
        assert_eq!(replace(Err("not now")), Err("not now"));
        assert_eq!(worker.snapshots().newest().unwrap().number, 0, "the map stays");
        assert_eq!(replace(Ok(())), Ok(()));
        let newest = worker.snapshots().newest().unwrap();
        assert_eq!((newest.number, newest.snapshot, newest.observations), (1, 0, 0));
        assert_eq!(worker.status().updates, 1, "another map is no update");
        let finished = worker.join().unwrap();
        assert_eq!(finished.mapper.learner().learnt.len(), 0, "what was open was of the other map");
    }

    #[test]
    fn a_mount_takes_effect_in_order_even_through_a_full_inbox() {
        let (open, gate) = bounded(1000);
        let worker = spawn(&config(4, 5000), Mode::Offline, Recorder::new(Some(gate)), None);
        let source = std::thread::spawn({
            let inbox = worker.inbox();
            move || {
                for (index, pair) in (0..30).map(pair).enumerate() {
                    if index % 10 == 5 {
                        inbox.set_mount(Isometry3::translation(0.0, index as f64, 0.0))?;
                    }
                    pair.into_iter().try_for_each(|measurement| inbox.send(measurement))?;
                }
                inbox.set_mount(Isometry3::translation(0.0, f64::NAN, 0.0))
            }
        });
        (0..3).for_each(|_| open.send(()).unwrap());
        let error = source.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::MountNotFinite { .. }), "{error}");
        let (inbox, finished) = (worker.inbox(), worker.join().unwrap());
        let heights: Vec<f64> =
            finished.mapper.learner().learnt.iter().map(|observation| observation.position.y).collect();
        assert_eq!(heights, [[0.0; 5].as_slice(), &[5.0; 10], &[15.0; 10], &[25.0; 5]].concat());
        assert!(matches!(inbox.set_mount(Isometry3::identity()), Err(Error::Closed)));
    }

    #[test]
    fn the_last_refusals_are_in_the_final_status() {
        let worker = spawn(&config(100, 5000), Mode::Offline, Recorder::new(None), None);
        let [pose, reading] = pair(0);
        let [_, later] = pair(1);
        [pose, reading, later].into_iter().for_each(|measurement| worker.inbox().send(measurement).unwrap());
        worker.flush().unwrap();
        let status = worker.join().unwrap().status;
        assert_eq!((status.updates, status.counters.refusals.of(Refusal::NoLaterPose)), (1, 1));
    }

    #[test]
    fn stop_ends_a_running_update_and_keeps_what_was_sent() {
        // Nobody ever opens this gate.
        let (_open, gate) = bounded(1);
        let worker = spawn(&config(1000, 5000), Mode::Offline, Recorder::new(Some(gate)), None);
        (0..35).flat_map(pair).for_each(|measurement| worker.inbox().send(measurement).unwrap());
        assert!(worker.snapshots().newest().is_none());
        worker.stop();
        assert!(worker.stop_signal().is_stopped());
        let finished = worker.join().unwrap();
        assert_eq!(finished.mapper.learner().batches, [10, 10, 10, 5]);
    }

    #[test]
    fn readers_wait_for_what_is_newer_and_learn_of_the_end() {
        let (open, gate) = bounded(10);
        let worker = spawn(&config(100, 5000), Mode::Offline, Recorder::new(Some(gate)), None);
        let snapshots = worker.snapshots();
        assert!(matches!(snapshots.wait_newer(None, Duration::from_millis(1)), Waited::TimedOut));
        (0..20).flat_map(pair).for_each(|measurement| worker.inbox().send(measurement).unwrap());
        open.send(()).unwrap();
        let Waited::Newer(first) = snapshots.wait_newer(None, SOON) else { panic!("no update") };
        assert_eq!((first.number, first.snapshot), (0, 10));
        assert!(matches!(snapshots.wait_newer(Some(0), Duration::from_millis(1)), Waited::TimedOut));
        open.send(()).unwrap();
        let Waited::Newer(second) = snapshots.wait_newer(Some(0), SOON) else { panic!("no update") };
        assert_eq!(second.snapshot, 20);
        worker.join().unwrap();
        assert!(matches!(snapshots.wait_newer(Some(1), SOON), Waited::Ended));
        assert!(matches!(snapshots.wait_newer(Some(0), SOON), Waited::Newer(_)));
    }

    #[test]
    fn a_panic_of_the_learner_reaches_everybody_and_hangs_nobody() {
        let learner = Recorder { panic_at: Some(1), ..Recorder::new(None) };
        let worker = spawn(&config(4, 5000), Mode::Offline, learner, None);
        let inbox = worker.inbox();
        let sent = (0..1000).flat_map(pair).try_for_each(|measurement| inbox.send(measurement));
        assert!(matches!(sent, Err(Error::Closed)));
        assert!(matches!(inbox.offer(pair(0)[0]), Err(Error::Closed)));
        assert!(matches!(worker.flush(), Err(Error::Closed)));
        assert!(matches!(worker.inspect(|_| ()), Err(Error::Closed)));
        let snapshots = worker.snapshots();
        assert!(matches!(snapshots.wait_newer(Some(0), SOON), Waited::Ended));
        assert_eq!(snapshots.newest().unwrap().snapshot, 10);
        let Err(Error::Panicked { message }) = worker.join() else { panic!("expected the panic") };
        assert!(message.starts_with("the model broke"), "{message}");
    }

    #[test]
    fn dropping_every_sender_finishes_the_map() {
        let worker = spawn(&config(100, 5000), Mode::Offline, Recorder::new(None), None);
        let (inbox, snapshots) = (worker.inbox(), worker.snapshots());
        (0..13).flat_map(pair).for_each(|measurement| inbox.send(measurement).unwrap());
        drop((worker, inbox));
        let mut newest = None;
        while let Waited::Newer(update) = snapshots.wait_newer(newest, SOON) {
            newest = Some(update.number);
        }
        assert_eq!(snapshots.newest().unwrap().snapshot, 13);
    }
}
