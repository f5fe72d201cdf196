//! Correcting the path while the robot drives, on a thread of its own.
//!
//! ```text
//! mapping thread ── batches learnt ──> estimate path and field ── fold ──> corrected map ──> mapping thread
//! ```
//!
//! The mapping thread passes on what it has learnt and never waits. When the estimate of the path improves, this thread rebuilds the map from
//! all batches so far. The mapping thread switches to the rebuilt map and learns the batches that arrived meanwhile, so that its map always
//! equals the fold of its trajectory at the corrected poses, to the last bit.

use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::Error;
use super::mapper::Folded;
use super::stop::StopSignal;
use super::updates::lock;
use crate::config::{Config, Mapped};
use crate::sensing::reading::Observation;
use crate::slam::{self, LocalHyperparameters, PathEstimator, Prior, Tracked};
use crate::trajectory::{Correction, Trajectory, fold};

/// Length of the path after which the hyperparameters of the field are learnt and the path is estimated for the first time, in metres.
/// Whenever it has doubled since, the whole path is estimated again with those of all of it.
const FIRST: f64 = 20.0;

/// The map is made again when a place of the path has moved by this, in metres, or a heading, in radians.
const MOVED: f64 = 0.01;

/// After the map was made again, the thread does not do so for this many times as long as that took.
const REST: u32 = 10;

/// A handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PathCorrection {
    batches: Sender<Vec<Observation>>,
    newest: Arc<Mutex<Option<Result<Corrected, slam::Error>>>>,
    stop: StopSignal,
}

/// What is known of the path, and the map that is made from it, where it has moved.
#[derive(Clone, Debug)]
pub(super) struct Corrected {
    pub path: CorrectedPath,
    pub map: Option<(Correction, Box<Folded>)>,
}

/// What is known of a corrected path.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrectedPath {
    /// How far it is known, and what the field says of odometry.
    pub tracked: Tracked,
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
    /// Starts the thread with what has been driven so far.
    pub(super) fn start(config: &Config, driven: &Trajectory) -> Result<Self, Error> {
        let (batches, receiver) = unbounded();
        let (newest, stop) = (Arc::default(), StopSignal::default());
        // The mapping thread needs the other cores. The map does not depend on it.
        let mut config = config.decided(Mapped::Vector).into_owned();
        config.tiles.threads = 1;
        let thread = CorrectionThread {
            batches: receiver,
            newest: Arc::clone(&newest),
            stop: stop.clone(),
            pieces: LocalHyperparameters::new(&config),
            path: None,
            next_whole: FIRST,
            trajectory: Trajectory::new(Vec::new(), driven.correction.clone()),
            is_known_better: false,
            rests_until: Instant::now(),
            config,
        };
        let driven = driven.batches().to_vec();
        std::thread::Builder::new()
            .name("path correction".into())
            .spawn(move || thread.run(driven))
            .map_err(Error::Spawn)?;
        Ok(Self { batches, newest, stop })
    }

    /// Passes on a batch that was learnt, at its poses by odometry.
    pub(super) fn add(&self, batch: Vec<Observation>) {
        // A thread that has ended said why.
        let _ = self.batches.send(batch);
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

struct CorrectionThread {
    config: Config,
    batches: Receiver<Vec<Observation>>,
    newest: Arc<Mutex<Option<Result<Corrected, slam::Error>>>>,
    stop: StopSignal,
    pieces: LocalHyperparameters,
    /// None before the hyperparameters are learnt.
    path: Option<PathEstimator>,
    /// Length of the path at which it is estimated as a whole, in metres.
    next_whole: f64,
    /// What was driven, with the correction of the newest map.
    trajectory: Trajectory,
    /// Whether the path has been estimated since that.
    is_known_better: bool,
    rests_until: Instant,
}

impl CorrectionThread {
    fn run(mut self, driven: Vec<Vec<Observation>>) {
        driven.into_iter().for_each(|batch| self.add(batch));
        loop {
            if let Err(error) = self.correct() {
                *lock(&self.newest) = Some(Err(error));
                return;
            }
            let next = if self.is_known_better {
                self.batches.recv_deadline(self.rests_until)
            } else {
                self.batches.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match next {
                Ok(batch) => {
                    self.add(batch);
                    while let Ok(batch) = self.batches.try_recv() {
                        self.add(batch);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn add(&mut self, batch: Vec<Observation>) {
        let stop = self.stop.clone();
        self.pieces.add(&batch, &|| stop.is_stopped());
        if let Some(path) = &mut self.path {
            path.add(&batch);
        }
        self.trajectory.push(batch);
    }

    /// Estimates the path as far as it is driven, and makes the map again where that is worth while.
    fn correct(&mut self) -> Result<(), slam::Error> {
        self.begin();
        while let Some(path) = self.path.as_mut().filter(|path| path.is_chunk_waiting() && !self.stop.is_stopped()) {
            path.extend()?;
            self.is_known_better = true;
        }
        if let Some(path) = self.path.as_mut().filter(|_| self.trajectory.length() >= self.next_whole) {
            if let Some(prior) = learnt(&self.config, &self.pieces) {
                path.set_prior(prior)?;
                self.is_known_better = true;
            }
            self.next_whole = 2.0 * self.trajectory.length();
        }
        let is_known = |path: &&PathEstimator| self.is_known_better && path.has_returned();
        let Some(path) = self.path.as_ref().filter(is_known) else { return Ok(()) };
        if Instant::now() < self.rests_until || self.stop.is_stopped() {
            return Ok(());
        }
        self.is_known_better = false;
        let moved = path.moved_since(&self.trajectory.correction);
        let (correction, tracked) = (path.correction()?, path.tracked()?);
        let moved_most = path.moved_since(&Correction::default());
        let known = CorrectedPath { tracked, length: self.trajectory.length(), moved_most };
        let map = if moved < MOVED { None } else { self.fold(correction) };
        let mut newest = lock(&self.newest);
        // A map that the mapping thread has not taken yet must not be lost.
        let waiting = newest.take().and_then(Result::ok).and_then(|corrected| corrected.map);
        *newest = Some(Ok(Corrected { path: known, map: map.or(waiting) }));
        Ok(())
    }

    /// Begins to estimate, once the field is known well enough.
    fn begin(&mut self) {
        if self.path.is_some() || self.trajectory.length() < self.next_whole {
            return;
        }
        self.next_whole = 2.0 * self.trajectory.length();
        if let Some(prior) = learnt(&self.config, &self.pieces) {
            let mut path = PathEstimator::new(prior, self.config.slam.pose_spacing);
            self.trajectory.batches().iter().for_each(|batch| path.add(batch));
            self.path = Some(path);
        }
    }

    /// Makes the map again; none where that was stopped.
    fn fold(&mut self, correction: Correction) -> Option<(Correction, Box<Folded>)> {
        let started = Instant::now();
        self.trajectory.correction = correction.clone();
        let model = fold(&self.config, self.trajectory.corrected_batches(), &|| self.stop.is_stopped());
        self.rests_until = Instant::now() + REST * started.elapsed();
        let folded = Box::new(Folded { model, batches: self.trajectory.batches().len() });
        (!self.stop.is_stopped()).then_some((correction, folded))
    }
}

/// What is known before the path, by what was learnt of the field.
fn learnt(config: &Config, pieces: &LocalHyperparameters) -> Option<Prior> {
    Prior::learnt(&config.slam, config.vector.hard_iron, &pieces.mean())
}
