//! Methods side by side on one task.

use super::maps::FinalMap;
use super::methods::{Learner, Learnt, Method};
use super::metrics::Readings;
use anyhow::anyhow;
use magmap::config::Config;
use serde::Serialize;
use std::time::Instant;
use streaming_gp::{NamedValue, SelectionEnd};

/// Batches to learn from, one after another, and readings to test on.
#[derive(Clone, Debug)]
pub struct Task {
    /// The readings to learn from.
    pub batches: Vec<Readings>,
    /// The readings to test on.
    pub test: Readings,
    /// The batch, counted from one, after which each test reading is tested: readings outside the visited area are not scored.
    pub tested_from: Vec<usize>,
    /// Whether places are x and y in metres and targets field strengths in microtesla, which make a map.
    pub is_map: bool,
}

/// A task, and how methods did on it.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the task.
    pub name: String,
    /// The task.
    #[serde(skip)]
    pub task: Task,
    /// One run per method.
    pub runs: Vec<Run>,
}

/// Size, scores and cost after a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchResult {
    /// Number of the batch, counted from one.
    pub batch: usize,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Root mean squared error on the test readings, in the unit of the targets.
    pub rmse: f64,
    /// Mean negative log predictive density, noise included, in nats.
    pub nlpd: f64,
    /// Share of the test readings in their 95 % interval.
    pub coverage: f64,
    /// Hyperparameters; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Why no further inducing point was added, where a method chooses how many.
    pub selection_end: Option<SelectionEnd>,
    /// Duration of the update, in seconds.
    pub seconds: f64,
}

/// How a method did.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The method, with its parameter where it is not the default.
    pub method: String,
    /// One result per batch.
    pub steps: Vec<BatchResult>,
    /// Why it ended before the last batch.
    pub rejected: Option<String>,
    /// The map after the last batch, where it was requested.
    #[serde(skip)]
    pub map: Option<FinalMap>,
}

impl Run {
    /// Duration of all updates, in seconds.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// Number of batches that reached the cap on inducing points.
    pub fn capped(&self) -> usize {
        self.steps.iter().filter(|step| step.selection_end == Some(SelectionEnd::Capped)).count()
    }
}

/// A learner after a batch.
pub struct After<'a> {
    /// Number of the batch, counted from one.
    pub batch: usize,
    /// The learner.
    pub learner: &'a dyn Learner,
    /// State of the learner.
    pub learnt: Learnt,
    /// Duration of the update, in seconds.
    pub seconds: f64,
}

impl Task {
    /// All test readings are tested after every batch.
    pub fn new(batches: Vec<Readings>, test: Readings) -> Self {
        let tested_from = vec![1; test.targets.len()];
        Self { batches, test, tested_from, is_map: false }
    }

    /// Lets a method learn from all batches, and calls `after` after each.
    ///
    /// # Errors
    /// When the method rejects a batch, which ends it.
    pub fn learn(&self, method: &Method, config: &Config, mut after: impl FnMut(After<'_>)) -> anyhow::Result<()> {
        let mut learner = method.learner(config, self.test.places.dimension());
        for (batch, readings) in (1..).zip(&self.batches) {
            let start = Instant::now();
            let learnt = learner.learn(readings).map_err(|rejected| anyhow!("batch {batch}: {rejected}"))?;
            let seconds = start.elapsed().as_secs_f64();
            after(After { batch, learner: learner.as_ref(), learnt, seconds });
        }
        Ok(())
    }

    /// Lets a method learn from all batches, and tests it after each. `after` is called after each with the number of batches so far
    /// and the learner.
    pub fn run(&self, method: &Method, config: &Config, mut after: impl FnMut(usize, &dyn Learner)) -> Run {
        let mut steps = Vec::new();
        let ended = self.learn(method, config, |After { batch, learner, learnt, seconds }| {
            let scores = learner.predict(&self.test.places).score(&self.test.targets, |i| self.tested_from[i] <= batch);
            let Learnt { inducing_points, hyperparameters, evaluations, selection } = learnt;
            steps.push(BatchResult {
                batch,
                inducing_points,
                rmse: scores.rmse,
                nlpd: scores.nlpd,
                coverage: scores.coverage,
                hyperparameters,
                evaluations,
                selection_end: selection.map(|selection| selection.end),
                seconds,
            });
            after(batch, learner);
        });
        let rejected = ended.err().map(|rejected| rejected.to_string());
        Run { method: method.to_string(), steps, rejected, map: None }
    }

    /// The map after the last batch; none where the task or the method has no map.
    pub fn final_map(&self, batch: usize, learner: &dyn Learner, config: &Config) -> Option<FinalMap> {
        let is_drawn = self.is_map && batch == self.batches.len();
        let posterior = learner.posterior().filter(|_| is_drawn)?;
        FinalMap::draw(posterior, &self.batches, &config.raster)
    }
}

/// Consecutive parts of nearly equal size.
pub(super) fn in_batches<T>(all: &[T], batches: usize) -> impl Iterator<Item = &[T]> {
    (0..batches).map(move |batch| &all[batch * all.len() / batches..(batch + 1) * all.len() / batches])
}
