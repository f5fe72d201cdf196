//! Correcting the path while the robot drives, on a thread of its own.
//!
//! ```text
//! mapping thread ── batches learnt ──> estimate path and field ── fold ──> corrected map ──> mapping thread
//!                       poses of another SLAM ──┘
//! ```
//!
//! The mapping thread passes on what it has learnt and never waits. When the field says better where the path was, or another SLAM does, this
//! thread rebuilds the map from all batches so far. The mapping thread switches to the rebuilt map and learns the batches that arrived meanwhile, so that its map always
//! equals the fold of its trajectory at the corrected poses, to the last bit.

use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, at, bounded, never, select, unbounded};

use super::Error;
use super::given_path::GivenPath;
use super::mapper::{Folded, Mapper};
use super::stop::StopSignal;
use crate::config::{Config, Mapped};
use crate::field::model::FieldModel;
use crate::field::tile_store::TileStore;
use crate::sensing::reading::Observation;
use crate::slam::{self, LocalHyperparameters, PathEstimator, Prior, Tracked};
use crate::sync::lock;
use crate::trajectory::{Correction, Trajectory, fold_onto};

/// Length of the path after which the hyperparameters of the field are learnt and the path is estimated for the first time, in metres.
/// Whenever it has doubled since, the whole path is estimated again with those of all of it.
const FIRST: f64 = 20.0;

/// Where the field corrects the path, the map is made again when a place has moved by this, in metres, or a heading, in radians.
pub(super) const MOVED: f64 = 0.01;

/// After the map was made again, the thread does not do so for this many times as long as that took.
const REST: u32 = 10;

/// How often it is checked whether what is waited for was stopped.
const CHECK: Duration = Duration::from_millis(100);

/// A handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PathCorrection {
    requests: Sender<Request>,
    store: NewestStore,
    newest: Arc<Mutex<Option<Result<Corrected, slam::Error>>>>,
    stop: StopSignal,
}

/// What the mapping thread asks for.
enum Request {
    /// To continue with a batch that was learnt, at its poses by odometry.
    Add(Vec<Observation>),
    /// To correct all of the path so far, and to reply when that is passed on.
    CorrectAll(Sender<()>),
}

/// Where the mapping thread keeps the local models of its map now, if it does: a map that is made again may be as large. The reference is weak, so
/// that the file of a map that is no longer used is closed.
type NewestStore = Arc<Mutex<Option<Weak<dyn TileStore>>>>;

/// The corrected path, and the map that is made from it, where it has moved.
#[derive(Clone, Debug)]
pub(super) struct Corrected {
    pub path: CorrectedPath,
    pub map: Option<(Correction, Box<Folded>)>,
}

/// A corrected path.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrectedPath {
    /// How far it is known, and what the field says of odometry, where that corrects the path.
    pub tracked: Option<Tracked>,
    /// Length of the path by odometry, in metres.
    pub length: f64,
    /// Largest distance by which a place of odometry was moved, in metres.
    pub moved_most: f64,
}

impl Display for CorrectedPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { length, moved_most, .. } = self;
        write!(f, "{length:.0} m by odometry, whose places moved by up to {moved_most:.2} m")
    }
}

impl PathCorrection {
    /// Starts the thread with what has been driven so far. The poses given are used where the settings say that another SLAM corrects the path.
    pub(super) fn start(mapper: &Mapper, given: &GivenPath) -> Result<Self, Error> {
        let (requests, receiver) = unbounded();
        let (newest, stop) = (Arc::default(), StopSignal::default());
        let store = NewestStore::new(Mutex::new(store_of(mapper)));
        let mapped = if mapper.config().slam.enabled { Mapped::Vector } else { mapper.model().field() };
        let mut config = mapper.config().decided(mapped).into_owned();
        // The mapping thread needs the other cores. The map does not depend on it.
        config.tiles.threads = 1;
        let guide = if config.follows_other_slam() {
            Guide::OtherSlam(given.clone())
        } else {
            Guide::Field(Box::new(FieldGuide {
                pieces: LocalHyperparameters::new(&config),
                path: None,
                next_whole: FIRST,
                is_known_better: false,
            }))
        };
        let thread = CorrectionThread {
            requests: receiver,
            newest: Arc::clone(&newest),
            stop: stop.clone(),
            guide,
            store: Arc::clone(&store),
            trajectory: mapper.trajectory().with_batches(Vec::new()),
            is_waiting: false,
            rests_until: Instant::now(),
            config,
        };
        let driven = mapper.trajectory().batches().to_vec();
        std::thread::Builder::new()
            .name("path correction".into())
            .spawn(move || thread.run(driven))
            .map_err(Error::Spawn)?;
        Ok(Self { requests, store, newest, stop })
    }

    /// Passes on a batch that the mapper has learnt, at its poses by odometry.
    pub(super) fn add(&self, batch: Vec<Observation>, mapper: &Mapper) {
        *lock(&self.store) = store_of(mapper);
        // A thread that has ended said why.
        let _ = self.requests.send(Request::Add(batch));
    }

    /// Waits until all of the path is corrected, its last metres too, as at the end of a replay. Returns whether it is: not where that was
    /// stopped, nor where the thread has ended, which said why.
    pub(super) fn correct_all(&self, stop: &StopSignal) -> bool {
        let (reply, done) = bounded(1);
        if stop.is_stopped() || self.requests.send(Request::CorrectAll(reply)).is_err() {
            return false;
        }
        loop {
            match done.recv_timeout(CHECK) {
                Err(RecvTimeoutError::Timeout) if !stop.is_stopped() => {}
                ended => return ended.is_ok(),
            }
        }
    }

    /// The newest correction since the last call; an error where there will be no more.
    pub(super) fn take(&self) -> Option<Result<Corrected, slam::Error>> {
        lock(&self.newest).take()
    }
}

impl Drop for PathCorrection {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// The source of the corrections of the path.
enum Guide {
    Field(Box<FieldGuide>),
    OtherSlam(GivenPath),
}

/// The field says where the path was.
struct FieldGuide {
    pieces: LocalHyperparameters,
    /// None before the hyperparameters are learnt.
    path: Option<PathEstimator>,
    /// Length of the path at which it is estimated as a whole, in metres.
    next_whole: f64,
    /// Whether the path has been estimated since the newest map.
    is_known_better: bool,
}

struct CorrectionThread {
    config: Config,
    requests: Receiver<Request>,
    newest: Arc<Mutex<Option<Result<Corrected, slam::Error>>>>,
    stop: StopSignal,
    guide: Guide,
    store: NewestStore,
    /// The trajectory, with the correction of the newest map.
    trajectory: Trajectory,
    /// Whether a better correction waits for the end of the rest.
    is_waiting: bool,
    rests_until: Instant,
}

impl CorrectionThread {
    fn run(mut self, driven: Vec<Vec<Observation>>) {
        driven.into_iter().for_each(|batch| self.add(batch));
        let mut asked: Option<Sender<()>> = None;
        loop {
            match self.correct(asked.is_some()) {
                Ok(Some(corrected)) => self.pass_on(corrected),
                Ok(None) => {}
                Err(error) => {
                    *lock(&self.newest) = Some(Err(error));
                    return;
                }
            }
            if let Some(reply) = asked.take() {
                // Who waited may be gone.
                let _ = reply.send(());
            }
            let rest = if self.is_waiting { at(self.rests_until) } else { never() };
            let news = match &self.guide {
                Guide::OtherSlam(given) => given.news().clone(),
                Guide::Field(_) => never(),
            };
            let first = select! {
                recv(self.requests) -> request => match request {
                    Ok(request) => Some(request),
                    Err(_) => return,
                },
                recv(news) -> _ => None,
                recv(rest) -> _ => None,
            };
            for request in first.into_iter().chain(self.requests.clone().try_iter()) {
                match request {
                    Request::Add(batch) => self.add(batch),
                    Request::CorrectAll(reply) => asked = Some(reply),
                }
            }
        }
    }

    fn add(&mut self, batch: Vec<Observation>) {
        if let Guide::Field(guide) = &mut self.guide {
            let stop = self.stop.clone();
            guide.pieces.add(&batch, &|| stop.is_stopped());
            if let Some(path) = &mut guide.path {
                path.add(&batch);
            }
        }
        self.trajectory.push(batch);
    }

    /// Corrects the path, and makes the map again where that is worth while; at an end all of the path, and at once.
    fn correct(&mut self, is_end: bool) -> Result<Option<Corrected>, slam::Error> {
        if is_end {
            self.rests_until = Instant::now();
        }
        let (correction, tracked, is_moved) = match &mut self.guide {
            Guide::Field(guide) => {
                guide.estimate(&self.config, &self.trajectory, is_end, &self.stop)?;
                let path = guide.path.as_ref().filter(|path| guide.is_known_better && path.has_returned());
                self.is_waiting = path.is_some();
                let Some(path) = path else { return Ok(None) };
                if Instant::now() < self.rests_until || self.stop.is_stopped() {
                    return Ok(None);
                }
                (self.is_waiting, guide.is_known_better) = (false, false);
                let moved = path.moved_since(&self.trajectory.correction);
                (path.correction()?, Some(path.tracked()?), moved >= MOVED)
            }
            Guide::OtherSlam(given) => {
                let Some(correction) = given.correction(&self.trajectory) else { return Ok(None) };
                // The map is that of the newest poses to the last bit: however little they move, it is made again.
                self.is_waiting = correction != self.trajectory.correction && !self.trajectory.batches().is_empty();
                if !self.is_waiting || Instant::now() < self.rests_until || self.stop.is_stopped() {
                    return Ok(None);
                }
                self.is_waiting = false;
                (correction, None, true)
            }
        };
        let moved_most = self.trajectory.moved_most(&Correction::default(), &correction);
        let path = CorrectedPath { tracked, length: self.trajectory.length(), moved_most };
        let map = if is_moved { self.fold(correction) } else { None };
        Ok(Some(Corrected { path, map }))
    }

    /// Passes on what is known, with the newest map that the mapping thread has not taken yet: that must not be lost.
    fn pass_on(&self, corrected: Corrected) {
        let mut newest = lock(&self.newest);
        let waiting = newest.take().and_then(Result::ok).and_then(|corrected| corrected.map);
        *newest = Some(Ok(Corrected { map: corrected.map.or(waiting), ..corrected }));
    }

    /// Makes the map again; none where that was stopped.
    fn fold(&mut self, correction: Correction) -> Option<(Correction, Box<Folded>)> {
        let started = Instant::now();
        self.trajectory.correct(correction.clone());
        let store = lock(&self.store).as_ref().and_then(Weak::upgrade);
        let model = FieldModel::kept_in(store, &self.config);
        let model = fold_onto(model, self.trajectory.corrected_batches(), &|| self.stop.is_stopped(), |_, _| {});
        self.rests_until = Instant::now() + REST * started.elapsed();
        let folded = Box::new(Folded { model, batches: self.trajectory.batches().len() });
        (!self.stop.is_stopped()).then_some((correction, folded))
    }
}

impl FieldGuide {
    /// Estimates the path as far as it is driven, but for the last metres unless it ends there.
    fn estimate(
        &mut self,
        config: &Config,
        trajectory: &Trajectory,
        is_end: bool,
        stop: &StopSignal,
    ) -> Result<(), slam::Error> {
        if is_end {
            self.pieces.close(&|| stop.is_stopped());
            self.next_whole = 0.0;
        }
        self.begin(config, trajectory);
        let Some(path) = &mut self.path else { return Ok(()) };
        if is_end {
            path.close();
        }
        while !stop.is_stopped() && (path.is_chunk_waiting() || is_end && path.waiting() > 0) {
            path.extend()?;
            self.is_known_better = true;
        }
        if is_end || trajectory.length() >= self.next_whole {
            if let Some(prior) = learnt(config, &self.pieces) {
                path.set_prior(prior)?;
                self.is_known_better = true;
            }
            self.next_whole = 2.0 * trajectory.length();
        }
        Ok(())
    }

    /// Begins to estimate, once the field is known well enough.
    fn begin(&mut self, config: &Config, trajectory: &Trajectory) {
        if self.path.is_some() || trajectory.length() < self.next_whole {
            return;
        }
        self.next_whole = 2.0 * trajectory.length();
        if let Some(prior) = learnt(config, &self.pieces) {
            let mut path = PathEstimator::new(prior, config.slam.pose_spacing);
            trajectory.batches().iter().for_each(|batch| path.add(batch));
            self.path = Some(path);
        }
    }
}

fn store_of(mapper: &Mapper) -> Option<Weak<dyn TileStore>> {
    mapper.model().tile_store().as_ref().map(Arc::downgrade)
}

/// The prior of a path, by what was learnt of the field.
fn learnt(config: &Config, pieces: &LocalHyperparameters) -> Option<Prior> {
    Prior::learnt(&config.slam, config.vector.hard_iron, &pieces.mean())
}
