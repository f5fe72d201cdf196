//! The inducing points that a batch needs, and their places: one file per rule.

use std::fmt::Debug;

use super::whitened::missing_permanent;
use crate::{
    Kernel, Model, NoiseBaselines, NotPositiveDefinite, Places, Posterior, SelectionEnd, SelectionReport, Targets,
};

mod greedy_variance;
mod pivoted_cholesky;

pub mod conditional_variance;
pub mod fixed;
pub mod oips;
pub mod vips;

pub use super::whitened::Kept;
pub use greedy_variance::GreedyVariance;
pub use pivoted_cholesky::PivotedCholesky;

/// Chooses the inducing points of a batch, under the hyperparameters before learning.
pub trait Rule<K: Kernel>: Debug + Send + Sync {
    /// Chooses among the places of the batch, and says which of the old inducing points stay.
    ///
    /// # Errors
    /// When a covariance is not positive definite to the precision of doubles.
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite>;
}

/// A batch and what is known before it, as rules see them.
#[derive(Debug)]
pub struct Batch<'a, K: Kernel> {
    /// The model, with the hyperparameters before learning.
    pub model: &'a Model<K>,
    /// Places of the readings.
    pub places: &'a K::Places,
    /// The readings.
    pub targets: Targets<'a>,
    /// The posterior of the past, whose inducing points are the old ones; none before the first batch.
    pub posterior: Option<&'a Posterior<K>>,
    /// Count, mean and variance of all targets of each output, those of the batch included.
    pub baseline: &'a NoiseBaselines,
}

impl<K: Kernel> Batch<'_, K> {
    /// The [permanent](Kernel::permanent) inducing variables that are not among the old ones.
    pub fn missing_permanent(&self) -> K::Places {
        missing_permanent(&self.model.kernel, self.places, self.posterior.map(|posterior| &posterior.past))
    }

    /// Number of old inducing points.
    pub fn old(&self) -> usize {
        self.posterior.map_or(0, |posterior| posterior.past.inducing.len())
    }
}

/// Limits of every rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most inducing points, old and new.
    pub max_inducing_points: usize,
    /// A place with no more than this share of its prior variance left is no inducing point: it would add nothing but
    /// ill-conditioning.
    pub least_share: f64,
}

/// The inducing points of a batch.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Indices of the old inducing points that stay.
    pub kept: Kept,
    /// Indices of the candidates of the batch that become inducing points, in the order in which they were chosen.
    pub added: Vec<usize>,
    /// Whether learning moves them, the old ones too.
    pub moves: bool,
    /// How and why.
    pub report: SelectionReport,
}

impl Choice {
    /// The inducing points that are not among the old ones: permanent ones that were missing, then those added.
    pub fn additional<K: Kernel>(&self, batch: &Batch<'_, K>) -> K::Places {
        let candidates = batch.places.candidates();
        let mut additional = batch.missing_permanent();
        self.added.iter().for_each(|&index| additional.push_from(&candidates, index));
        additional
    }

    /// The inducing points: the old ones that stay, then the additional ones.
    pub fn inducing<K: Kernel>(&self, batch: &Batch<'_, K>) -> K::Places {
        let added = self.additional(batch);
        match (batch.posterior, &self.kept) {
            (None, _) => added,
            (Some(posterior), Kept::All) => posterior.past.inducing.followed_by(&added),
            (Some(posterior), Kept::Only(kept)) => {
                posterior.past.inducing.select(kept.iter().copied()).followed_by(&added)
            }
        }
    }
}

/// Chooses by greedy variance among the old inducing points and the candidates of the batch, from the permanent ones, until `is_enough`.
fn choose_anew<K: Kernel>(
    batch: &Batch<'_, K>,
    limits: Limits,
    is_enough: impl Fn(&PivotedCholesky<'_, K>) -> bool,
) -> Choice {
    let old = batch.old();
    let permanent = batch.missing_permanent();
    let before = old + permanent.len();
    let known = batch.posterior.map_or_else(|| permanent.clone(), |past| past.past.inducing.followed_by(&permanent));
    let pool = known.followed_by(&batch.places.candidates());
    let mut points = PivotedCholesky::new(batch.model, &pool);
    (0..before).filter(|&index| pool.is_permanent(index)).for_each(|index| {
        points.add(index);
    });
    let end = loop {
        match points.next(limits.least_share) {
            _ if !points.is_empty() && is_enough(&points) => break SelectionEnd::Converged,
            None => break SelectionEnd::Exhausted,
            Some(_) if points.len() >= limits.max_inducing_points => break SelectionEnd::Capped,
            Some((index, _)) => points.add(index),
        };
    };
    let (mut kept, added): (Vec<usize>, Vec<usize>) = points.chosen.iter().partition(|&&index| index < old);
    kept.sort_unstable();
    let added: Vec<usize> = added.into_iter().filter_map(|index| index.checked_sub(before)).collect();
    let report = SelectionReport { added: added.len(), removed: old - kept.len(), end, gap: None };
    Choice { kept: Kept::of(kept, old), added, moves: false, report }
}

#[cfg(test)]
mod tests {
    use super::super::inference::Inference;
    use super::super::kernel::{Column, Shape, Stationary};
    use super::super::learning::Learning;
    use super::super::likelihood::Likelihood;
    use super::super::linalg;
    use super::super::model::Jitter;
    use super::super::points::Points;
    use super::super::streaming::{Settings, StreamingGp};
    use super::conditional_variance::ConditionalVariance;
    use super::oips::Oips;
    use super::*;
    use std::sync::Arc;

    const NO_LIMITS: Limits = Limits { max_inducing_points: usize::MAX, least_share: 0.0 };

    fn model() -> Model<Stationary> {
        let lengthscales = vec![0.8];
        Model {
            kernel: Stationary { constant: Some(100.0), shape: Shape::Matern52, variance: 4.0, lengthscales },
            noise: 0.1,
            likelihood: Likelihood::Gaussian,
            mean: 0.0,
            jitter: Jitter::Relative(1e-9),
        }
    }

    fn readings(count: usize, phase: f64) -> (Points, Vec<f64>) {
        let mut places = Points::new(2);
        for i in 0..count {
            let along = phase + 0.37 * i as f64;
            places.push(&[2.0 * along.sin() + phase, (1.7 * along).cos()]);
        }
        let targets = places.axis(0).iter().zip(places.axis(1)).map(|(x, y)| (2.0 * x).sin() + y).collect();
        (places, targets)
    }

    /// The inducing points after each of two batches, with learning off.
    fn after_two_batches(rule: impl Rule<Stationary> + 'static, limits: Limits) -> [(Points, SelectionReport); 2] {
        let settings = Settings {
            selection: Arc::new(rule),
            limits,
            learning: Learning { max_evaluations: 0, ..Learning::default() },
            redundancy: -1.0,
            inference: Inference::Variational,
            likelihood_power: 1.0,
        };
        let mut process = StreamingGp::new(model(), settings);
        [0.0, 1.3].map(|phase| {
            let (places, targets) = readings(40, phase);
            let report = process.update(&places, &targets, &|| false).unwrap();
            (process.posterior().unwrap().past.inducing.clone(), report.selection)
        })
    }

    /// The variance at one place given inducing points, by a solve with the whole covariance among them.
    fn variance_given(inducing: &Points, places: &Points, index: usize) -> f64 {
        let kernel = model().kernel;
        let mut covariance = kernel.symmetric_covariance(inducing);
        model().add_jitter(inducing, covariance.as_mut());
        let mut cross = vec![0.0; inducing.len()];
        kernel.add_column(Column::whole(inducing, places, index), &mut cross);
        linalg::solve_lower_vector(linalg::cholesky(covariance).unwrap().as_ref(), &mut cross);
        kernel.diagonal(places)[index] - linalg::squared_norm(&cross)
    }

    #[test]
    fn conditional_variance_chooses_anew_what_a_dense_solve_would() {
        let tolerance = 1.0;
        let found = after_two_batches(ConditionalVariance { tolerance }, NO_LIMITS);
        let mut old = Points::new(2);
        for ((inducing, report), phase) in found.iter().zip([0.0, 1.3]) {
            let pool = old.followed_by(&readings(40, phase).0);
            let mut chosen = Vec::new();
            loop {
                let points = pool.select(chosen.iter().copied());
                let left: Vec<f64> = (0..pool.len()).map(|i| variance_given(&points, &pool, i)).collect();
                if !chosen.is_empty() && left.iter().sum::<f64>() <= tolerance {
                    break;
                }
                let candidates = (0..pool.len()).filter(|i| !chosen.contains(i));
                chosen.push(candidates.reduce(|best, i| if left[i] > left[best] { i } else { best }).unwrap());
            }
            // Those that stay come first, in their old order.
            let (mut kept, added): (Vec<usize>, Vec<usize>) = chosen.iter().partition(|&&index| index < old.len());
            kept.sort_unstable();
            assert_eq!(*inducing, pool.select(kept.iter().chain(&added).copied()));
            assert_eq!((report.added, report.removed), (added.len(), old.len() - kept.len()));
            assert_eq!(report.end, SelectionEnd::Converged);
            old = inducing.clone();
        }
        assert!(found[1].1.removed > 0 && found[1].0.len() > found[0].0.len(), "{:?}", found[1].1);
    }

    #[test]
    fn online_selection_leaves_out_what_is_correlated_with_an_inducing_point() {
        let correlation = 0.8;
        let rho = |a: &Points, i: usize, b: &Points, j: usize| {
            let square: f64 = a.point(i).zip(b.point(j)).map(|(a, b)| ((a - b) / 0.8).powi(2)).sum();
            let s = 5.0f64.sqrt() * square.sqrt();
            (1.0 + s + s * s / 3.0) * (-s).exp()
        };
        let found = after_two_batches(Oips { correlation }, NO_LIMITS);
        let mut expected = Points::new(2);
        for ((inducing, report), phase) in found.iter().zip([0.0, 1.3]) {
            let (places, _) = readings(40, phase);
            let before = expected.len();
            for i in 0..places.len() {
                if (0..expected.len()).all(|j| rho(&places, i, &expected, j) < correlation) {
                    expected.push_from(&places, i);
                }
            }
            assert_eq!(*inducing, expected);
            assert_eq!((report.added, report.removed), (expected.len() - before, 0));
        }
        assert!((5..60).contains(&expected.len()), "{}", expected.len());
    }

    #[test]
    fn every_rule_stops_at_the_cap_and_says_so() {
        let limits = Limits { max_inducing_points: 7, least_share: 0.0 };
        let by_variance = after_two_batches(ConditionalVariance { tolerance: 1e-6 }, limits);
        let online = after_two_batches(Oips { correlation: 0.99 }, limits);
        for (inducing, report) in by_variance.iter().chain(&online) {
            assert_eq!((inducing.len(), report.end), (7, SelectionEnd::Capped));
        }
    }
}
