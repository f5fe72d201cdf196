//! Errors of each method on the scale from the reference to the noise model.

use super::super::comparison::{BatchResult, Run};
use super::super::methods::Method;
use super::super::metrics::MeanAndDeviation;
use serde::Serialize;

/// A measure of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Root mean squared error.
    Rmse,
    /// Mean negative log predictive density.
    Nlpd,
}

impl Metric {
    fn of(self, step: &BatchResult) -> f64 {
        match self {
            Self::Rmse => step.rmse,
            Self::Nlpd => step.nlpd,
        }
    }
}

/// A method over all splits, after the last batch.
#[derive(Clone, Debug, Serialize)]
pub struct Relative {
    /// The method.
    pub method: String,
    /// Number of splits that it learnt to their end. All other numbers are over these.
    pub splits: usize,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: MeanAndDeviation,
    /// Root mean squared error of the standardised target.
    pub rmse: MeanAndDeviation,
    /// Mean negative log predictive density of the standardised target, in nats.
    pub nlpd: MeanAndDeviation,
    /// How much worse than the reference, in percent of how much worse the noise model is.
    pub rmse_percent: MeanAndDeviation,
    /// How much worse the density is than that of the reference, in percent of how much worse the noise model's is.
    pub nlpd_percent: MeanAndDeviation,
    /// Means of `rmse_percent` batch by batch.
    pub rmse_percent_by_batch: Vec<f64>,
    /// Means of `nlpd_percent` batch by batch.
    pub nlpd_percent_by_batch: Vec<f64>,
    /// Means of `M` batch by batch.
    #[serde(rename = "M_by_batch")]
    pub inducing_points_by_batch: Vec<f64>,
    /// Duration of all updates, in seconds.
    pub seconds: f64,
}

/// The smallest size at which a method is good enough.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatingPoint {
    /// The method without its parameter.
    pub method: String,
    /// The measure by which it is good enough.
    pub metric: Metric,
    /// The method with the parameter of the smallest size; none where no parameter is good enough on all splits.
    pub at: Option<String>,
}

/// All methods over all splits.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The reference, the noise model, and the others.
    pub methods: Vec<Relative>,
    /// For every other method and measure.
    pub operating_points: Vec<OperatingPoint>,
}

impl Summary {
    /// Summarizes the runs of every split, in the order of the methods: the first of these is the reference, the second the
    /// noise model. Good enough is within `threshold` percent.
    ///
    /// # Panics
    /// When there are other runs than those of the methods.
    pub fn of(methods: &[Method], splits: &[Vec<Run>], threshold: f64) -> Self {
        let relatives: Vec<Relative> = (0..methods.len()).map(|method| relative(method, splits)).collect();
        let mut operating_points: Vec<OperatingPoint> = Vec::new();
        for name in methods.iter().skip(2).map(Method::name) {
            if operating_points.iter().any(|point| point.method == name) {
                continue;
            }
            for metric in [Metric::Rmse, Metric::Nlpd] {
                let good_enough = methods.iter().zip(&relatives).skip(2).filter(|(method, relative)| {
                    let percent = match metric {
                        Metric::Rmse => &relative.rmse_percent,
                        Metric::Nlpd => &relative.nlpd_percent,
                    };
                    method.name() == name && relative.splits == splits.len() && percent.mean <= threshold
                });
                let smallest = good_enough
                    .min_by(|(_, a), (_, b)| a.inducing_points.mean.total_cmp(&b.inducing_points.mean))
                    .map(|(method, _)| method.to_string());
                operating_points.push(OperatingPoint { method: name.clone(), metric, at: smallest });
            }
        }
        Self { methods: relatives, operating_points }
    }
}

fn relative(method: usize, splits: &[Vec<Run>]) -> Relative {
    let batches = splits.iter().flatten().map(|run| run.steps.len()).max().unwrap_or(0);
    // The step of this method in every split in which it got to this batch.
    let steps = |batch: usize| splits.iter().filter_map(move |runs| Some((runs, runs[method].steps.get(batch)?)));
    let percent = |metric: Metric, batch: usize| {
        MeanAndDeviation::of(steps(batch).filter_map(|(runs, step)| {
            let [reference, noise] = [&runs[0], &runs[1]].map(|run| run.steps.get(batch).map(|step| metric.of(step)));
            Some((metric.of(step) - reference?) / (noise? - reference?).abs() * 100.0)
        }))
    };
    let last = batches.saturating_sub(1);
    let number = |number: fn(&BatchResult) -> f64, batch: usize| {
        MeanAndDeviation::of(steps(batch).map(|(_, step)| number(step)))
    };
    let by_batch = |mean: &dyn Fn(usize) -> MeanAndDeviation| (0..batches).map(|batch| mean(batch).mean).collect();
    let size = |step: &BatchResult| step.inducing_points as f64;
    Relative {
        method: splits.first().map_or_else(String::new, |runs| runs[method].method.clone()),
        splits: splits.iter().filter(|runs| runs[method].rejected.is_none()).count(),
        inducing_points: number(size, last),
        rmse: number(|step| step.rmse, last),
        nlpd: number(|step| step.nlpd, last),
        rmse_percent: percent(Metric::Rmse, last),
        nlpd_percent: percent(Metric::Nlpd, last),
        rmse_percent_by_batch: by_batch(&|batch| percent(Metric::Rmse, batch)),
        nlpd_percent_by_batch: by_batch(&|batch| percent(Metric::Nlpd, batch)),
        inducing_points_by_batch: by_batch(&|batch| number(size, batch)),
        seconds: splits.iter().map(|runs| runs[method].seconds()).sum(),
    }
}
