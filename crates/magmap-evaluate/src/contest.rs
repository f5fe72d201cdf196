//! Methods side by side on one task.

use super::maps::MapAfter;
use super::methods::{Learner, Learnt, Named};
use magmap::config::Config;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Instant;
use streaming_gp::points::Points;
use streaming_gp::report::{NamedValue, SelectionEnd};

/// Places and what was measured there.
#[derive(Clone, Debug)]
pub struct Readings {
    /// Where.
    pub places: Points,
    /// What.
    pub targets: Vec<f64>,
}

/// Batches to learn from, one after another, and readings to be tested on.
#[derive(Clone, Debug)]
pub struct Task {
    /// What is learnt from.
    pub batches: Vec<Readings>,
    /// What is tested on.
    pub test: Readings,
    /// For each test reading the batch, counted from one, from which on it is tested: what lies where nobody has been yet is no test.
    pub tested_from: Vec<usize>,
    /// Whether places are x and y in metres and targets field strengths in microtesla, which make a map.
    pub is_map: bool,
}

/// A task, and how methods did on it.
#[derive(Clone, Debug)]
pub struct Contest {
    /// Name of the task.
    pub name: String,
    /// What they were to do.
    pub task: Task,
    /// One per method.
    pub runs: Vec<Run>,
}

/// What a batch brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Which batch, counted from one.
    pub batch: usize,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Root mean squared error on the test readings, in the unit of the targets.
    #[serde(deserialize_with = "number")]
    pub rmse: f64,
    /// Mean negative log predictive density, noise included, in nats.
    #[serde(deserialize_with = "number")]
    pub nlpd: f64,
    /// Share of the test readings in their 95 % interval.
    #[serde(deserialize_with = "number")]
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

/// A score; JSON has no other word than null for one that is not a number, because there was nothing to test on.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// How a method did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The method, with its parameter where it is not the default.
    pub method: String,
    /// One entry per batch that was learnt from.
    pub steps: Vec<Step>,
    /// Why it ended before the last batch.
    pub refused: Option<String>,
    /// The map after some of the batches, where maps were asked for.
    #[serde(skip)]
    pub maps: Vec<MapAfter>,
}

impl Run {
    /// What the last batch brought; none where already the first was refused.
    pub fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Duration of all updates, in seconds.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// Batches at which the cap on inducing points bound.
    pub fn capped(&self) -> usize {
        self.steps.iter().filter(|step| step.selection_end == Some(SelectionEnd::Capped)).count()
    }
}

impl Task {
    /// All test readings are tested after every batch.
    pub fn new(batches: Vec<Readings>, test: Readings) -> Self {
        let tested_from = vec![1; test.targets.len()];
        Self { batches, test, tested_from, is_map: false }
    }

    /// Lets a method learn from all batches, and tests it after each. `after` is shown the learner after each, with the number of
    /// batches so far. A batch that the method refuses ends its run.
    pub fn run(&self, method: &Named, config: &Config, mut after: impl FnMut(usize, &dyn Learner)) -> Run {
        let mut learner = method.learner(config, self.test.places.dimension());
        let mut run = Run { method: method.to_string(), steps: Vec::new(), refused: None, maps: Vec::new() };
        for (index, batch) in self.batches.iter().enumerate() {
            let start = Instant::now();
            match learner.learn(&batch.places, &batch.targets) {
                Ok(learnt) => {
                    run.steps.push(self.step(index + 1, learner.as_ref(), learnt, start.elapsed().as_secs_f64()));
                    after(index + 1, learner.as_ref());
                }
                Err(refused) => {
                    run.refused = Some(format!("batch {}: {refused}", index + 1));
                    break;
                }
            }
        }
        run
    }

    fn step(&self, batch: usize, learner: &dyn Learner, learnt: Learnt, seconds: f64) -> Step {
        let scores = learner.predict(&self.test.places).score(&self.test.targets, |i| self.tested_from[i] <= batch);
        let Learnt { inducing_points, hyperparameters, evaluations, end } = learnt;
        Step {
            batch,
            inducing_points,
            rmse: scores.rmse,
            nlpd: scores.nlpd,
            coverage: scores.coverage,
            hyperparameters,
            evaluations,
            selection_end: end,
            seconds,
        }
    }
}
