//! Streaming classification: the dual model learns two crescents from left to right, batch by batch, beside one that has all data at once.
//!
//! Every batch is of another region. The error over the region of the first batch shows whether the model has forgotten it after the last.

mod crescents;

use super::TEST_SEEDS;
use super::metrics::Readings;
use anyhow::anyhow;
use clap::Args;
use crescents::{BananaOptions, Labelled, banana};
use magmap::config::Config;
use serde::Serialize;
use std::time::Instant;
use streaming_gp::{
    DualGp, DualReport, DualSettings, Jitter, Learning, Likelihood, Link, MemorySize, Model, NamedValue, OldEvidence,
    Stationary, UpdateReport,
};

/// Probabilities nearer to 0 or 1 count as these in the predictive probability of a label.
const LEAST_PROBABILITY: f64 = 1e-12;

/// The experiment.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// Points that are learnt from.
    #[arg(long, value_name = "N", default_value_t = Self::default().points, value_parser = count)]
    pub points: usize,
    /// Points that are tested on, of another draw.
    #[arg(long, value_name = "N", default_value_t = Self::default().test_points, value_parser = count)]
    pub test_points: usize,
    /// Standard deviation of the points around the crescents, of radius 1.
    #[arg(long, default_value_t = Self::default().noise)]
    pub noise: f64,
    /// Seed of the draws.
    #[arg(long, default_value_t = Self::default().seed)]
    pub seed: u64,
    /// Batches, from left to right; the last may be smaller.
    #[arg(long, value_name = "N", default_value_t = Self::default().batches, value_parser = count)]
    pub batches: usize,
    /// Most inducing points.
    #[arg(long, value_name = "N", default_value_t = Self::default().inducing_points, value_parser = count)]
    pub inducing_points: usize,
    /// Points of each batch that are remembered.
    #[arg(long, value_name = "N", default_value_t = Self::default().memory)]
    pub memory: usize,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=100_000).contains(&count) => Ok(count),
        _ => Err("expected a number from 1 to 100000".into()),
    }
}

impl Default for Experiment {
    fn default() -> Self {
        let BananaOptions { points, noise } = BananaOptions::default();
        Self { points, test_points: 2000, noise, seed: 1, batches: 4, inducing_points: 40, memory: 20 }
    }
}

/// How good the model is after some points.
#[derive(Clone, Debug, Serialize)]
pub struct Scores {
    /// Points learnt from so far.
    pub points: usize,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Points in memory.
    pub memory: usize,
    /// Share of the test points that are classified wrongly.
    pub error_rate: f64,
    /// Error rate among the test points that lie to the left of the second batch.
    pub first_error_rate: f64,
    /// Error rate among the test points that lie to the left of the next batch.
    pub seen_error_rate: f64,
    /// Mean negative log predictive probability of the test labels, in nats; a coin has 0.693.
    pub nlpd: f64,
    /// Hyperparameters of the kernel.
    pub hyperparameters: Vec<NamedValue>,
    /// Duration of the update, in seconds.
    pub seconds: f64,
}

/// The experiment, the scores after every batch, and those of the same model with all points at once.
#[derive(Clone, Debug, Serialize)]
pub struct BananaOutcome {
    /// The experiment.
    pub experiment: Experiment,
    /// After each batch.
    pub batches: Vec<Scores>,
    /// Scores of the same model with all points as one batch.
    pub whole: Scores,
}

/// Runs the experiment; `config` says how hyperparameters are learnt.
///
/// # Errors
/// When there can be no such crescents, or the model rejects a batch.
pub fn run(experiment: &Experiment, config: &Config) -> anyhow::Result<BananaOutcome> {
    let options = BananaOptions { points: experiment.points, noise: experiment.noise };
    let points = banana(&options, experiment.seed)?;
    let test = BananaOptions { points: experiment.test_points, ..options };
    let test = Test(readings(&banana(&test, experiment.seed.wrapping_add(TEST_SEEDS))?));
    let rows = points.len().div_ceil(experiment.batches.max(1));
    let first_coordinate = |index: usize| points.get(index).map_or(f64::INFINITY, |point| point.place[0]);
    let first_end = first_coordinate(rows);
    let mut model = model(experiment, config);
    let mut batches = Vec::new();
    for (batch, points) in (1..).zip(points.chunks(rows)) {
        batches.push(step(&mut model, batch, points, &test, [first_end, first_coordinate(batch * rows)])?);
    }
    let whole = step(&mut self::model(experiment, config), 1, &points, &test, [first_end, f64::INFINITY])?;
    Ok(BananaOutcome { experiment: experiment.clone(), batches, whole })
}

/// A classifier of crescents of radius 1.
fn model(experiment: &Experiment, config: &Config) -> DualGp<Stationary> {
    let kernel = Stationary { constant: None, shape: config.model.kernel, variance: 4.0, lengthscales: vec![0.7] };
    let jitter = Jitter::Relative(config.model.relative_jitter);
    let model = Model { kernel, noise: 1.0, likelihood: Likelihood::Gaussian, mean: 0.0, jitter };
    let settings = DualSettings {
        inducing_points: experiment.inducing_points,
        least_share: config.selection.redundancy,
        memory: MemorySize { per_batch: experiment.memory, most: usize::MAX },
        steps: 50,
        step_length: 0.9,
        old_evidence: OldEvidence::ScaledMemory { share: 1.0 },
        // The prior of the configuration is one of magnetic fields.
        learning: Learning {
            max_evaluations: config.learning.max_evaluations,
            least_rows: config.learning.min_observations,
            ..Learning::default()
        },
    };
    DualGp::binary(model, Link::Probit, settings)
}

fn step(
    model: &mut DualGp<Stationary>,
    batch: usize,
    points: &[Labelled],
    test: &Test,
    [first_end, seen_end]: [f64; 2],
) -> anyhow::Result<Scores> {
    let Readings { places, targets } = readings(points);
    let start = Instant::now();
    let report = model.update(&places, &targets, &|| false).map_err(|rejected| anyhow!("batch {batch}: {rejected}"))?;
    let seconds = start.elapsed().as_secs_f64();
    let DualReport { update: UpdateReport { inducing_points, mut hyperparameters, .. }, memory, .. } = report;
    let probabilities = model.predict_probability(&test.0.places).expect("it learns labels");
    // Labels have no noise of their own.
    hyperparameters.retain(|value| value.name != "noise");
    Ok(Scores {
        points: model.baseline.count() as usize,
        inducing_points,
        memory,
        error_rate: test.error_rate(&probabilities, f64::INFINITY),
        first_error_rate: test.error_rate(&probabilities, first_end),
        seen_error_rate: test.error_rate(&probabilities, seen_end),
        nlpd: test.nlpd(&probabilities),
        hyperparameters,
        seconds,
    })
}

fn readings(points: &[Labelled]) -> Readings {
    points.iter().map(|point| (point.place, f64::from(point.is_upper))).collect()
}

/// The test points.
struct Test(Readings);

impl Test {
    /// Share of the points left of `end` whose label is the less probable one; NaN without any.
    fn error_rate(&self, probabilities: &[f64], end: f64) -> f64 {
        let left = (0..self.0.targets.len()).filter(|&i| self.0.places.axis(0)[i] < end);
        let wrong = left.clone().filter(|&i| (probabilities[i] > 0.5) != (self.0.targets[i] == 1.0));
        wrong.count() as f64 / left.count() as f64
    }

    fn nlpd(&self, probabilities: &[f64]) -> f64 {
        let of = |(p, label): (&f64, &f64)| if *label == 1.0 { *p } else { 1.0 - p };
        let terms = probabilities.iter().zip(&self.0.targets).map(of).map(|p| -p.max(LEAST_PROBABILITY).ln());
        terms.sum::<f64>() / self.0.targets.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_from_left_to_right_ends_where_all_points_at_once_end() {
        for seed in [1, 2] {
            let outcome = run(&Experiment { seed, ..Experiment::default() }, &Config::default()).unwrap();
            println!("{outcome:#?}");
            let [first, .., last] = &outcome.batches[..] else { panic!("four batches") };
            assert_eq!((first.points, last.points, outcome.batches.len()), (100, 400, 4));
            assert!(outcome.batches.iter().enumerate().all(|(index, batch)| batch.memory == 20 * (index + 1)));
            assert!(last.inducing_points <= 40 && outcome.whole.inducing_points <= 40);
            // A share of 2000 has a standard deviation of 0.005.
            assert!(last.error_rate < outcome.whole.error_rate + 0.015, "{last:?} {:?}", outcome.whole);
            assert!(last.nlpd < outcome.whole.nlpd + 0.03, "{last:?} {:?}", outcome.whole);
            // What it has not seen it does not know.
            assert!(first.error_rate > last.error_rate + 0.05 && first.nlpd > last.nlpd + 0.2, "{first:?}");
            // The region of the first batch, 500 of the test points: nothing is forgotten.
            assert!(first.first_error_rate == first.seen_error_rate);
            assert!(last.first_error_rate < first.first_error_rate + 0.01, "{first:?} {last:?}");
        }
    }

    #[test]
    fn scores_are_their_definitions() {
        let labelled = |x: f64, is_upper| Labelled { place: [x, 0.0], is_upper };
        let test =
            Test(readings(&[labelled(0.0, true), labelled(1.0, false), labelled(2.0, true), labelled(3.0, true)]));
        let probabilities = [0.8, 0.6, 0.4, 0.9];
        assert_eq!(test.error_rate(&probabilities, f64::INFINITY), 0.5);
        assert_eq!(test.error_rate(&probabilities, 1.5), 0.5);
        assert_eq!(test.error_rate(&probabilities, 1.0), 0.0);
        assert!(test.error_rate(&probabilities, -1.0).is_nan());
        let expected = -(0.8f64 * 0.4 * 0.4 * 0.9).ln() / 4.0;
        assert!((test.nlpd(&probabilities) - expected).abs() < 1e-15);
        // Sure of the wrong label is bad, not infinite.
        assert!(test.nlpd(&[0.0; 4]) < 28.0);
    }
}
