//! Quantities that the evidence lower bound is compared with: from above L* and the upper bound, from below the noise baseline.

use super::linalg::{self, squared_norm};
use super::normal::{LOG_2_PI, log_density_of};
use crate::{Kernel, Model, NotPositiveDefinite, Past, Places, Rows, Targets};

/// Count, mean and variance of all targets of one output so far: the model that sees no structure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseBaseline {
    /// How many targets it has seen.
    pub count: u64,
    /// Mean of the targets.
    pub mean: f64,
    /// Sum of the targets' squared deviations from the mean.
    pub scatter: f64,
}

impl NoiseBaseline {
    /// The baseline after these targets too (Chan's update of a running mean and variance). Where they have weights, it is as if
    /// all of them had the weighted mean and the weighted variance.
    fn including(&self, rows: &[WeightedRow]) -> Self {
        if rows.is_empty() {
            return *self;
        }
        let weighted = |value: &dyn Fn(f64) -> f64| rows.iter().map(|row| row.weight * value(row.target)).sum::<f64>();
        let added = rows.len() as f64;
        let total = weighted(&|_| 1.0);
        let added_mean = weighted(&|y| y) / total;
        let added_scatter = weighted(&|y| (y - added_mean).powi(2)) * (added / total);
        let count = self.count as f64 + added;
        let difference = added_mean - self.mean;
        Self {
            count: self.count.saturating_add(rows.len() as u64),
            mean: self.mean + difference * added / count,
            scatter: self.scatter + added_scatter + difference * difference * self.count as f64 * added / count,
        }
    }

    /// Population variance of the targets; 0 before any.
    pub fn variance(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.scatter / self.count as f64 }
    }

    fn log_density(&self, rows: &[WeightedRow], least_variance: f64) -> f64 {
        let variance = self.variance().max(least_variance);
        let squares = rows.iter().map(|row| row.weight * (row.target - self.mean).powi(2)).sum::<f64>();
        -0.5 * (rows.len() as f64 * (LOG_2_PI + variance.ln()) + squares / variance)
    }
}

/// A target and its weight.
#[derive(Clone, Copy)]
struct WeightedRow {
    target: f64,
    weight: f64,
}

/// A [`NoiseBaseline`] per output of the field: its axes have different means, and pooled they would have too large a variance.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseBaselines(Vec<NoiseBaseline>);

impl Default for NoiseBaselines {
    /// The baseline of one output, before any target.
    fn default() -> Self {
        NoiseBaseline::default().into()
    }
}

impl From<NoiseBaseline> for NoiseBaselines {
    /// The baselines of a field with one output.
    fn from(baseline: NoiseBaseline) -> Self {
        Self(vec![baseline])
    }
}

impl NoiseBaselines {
    /// The baselines of these outputs, in the order of [`Places::output`]; of one without targets where there are none.
    pub fn new(outputs: Vec<NoiseBaseline>) -> Self {
        if outputs.is_empty() { Self::default() } else { Self(outputs) }
    }

    /// The baseline of each output: at least one.
    pub fn outputs(&self) -> &[NoiseBaseline] {
        &self.0
    }

    /// How many targets they have seen.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, baseline| sum.saturating_add(baseline.count))
    }

    /// The baselines after these targets too, each of the output that its place says (Chan's update of a running mean and variance).
    /// Where targets have weights, it is as if all of an output had their weighted mean and their weighted variance.
    pub fn including<'a>(&self, places: &impl Places, targets: impl Into<Targets<'a>>) -> Self {
        let rows = rows_by_output(places, targets.into());
        let mut outputs = self.0.clone();
        outputs.resize(outputs.len().max(rows.len()), NoiseBaseline::default());
        outputs.iter_mut().zip(&rows).for_each(|(baseline, rows)| *baseline = baseline.including(rows));
        Self(outputs)
    }

    /// The log likelihood of targets under them, in nats (VIPS paper, section 4.3): the sum over the outputs, with variances of at least
    /// `least_variance`, which must be positive: identical targets would otherwise be infinitely likely. Targets with weights have
    /// the variance divided by their weight, and a power of the likelihood multiplies its logarithm.
    pub fn log_likelihood<'a>(
        &self,
        places: &impl Places,
        targets: impl Into<Targets<'a>>,
        least_variance: f64,
    ) -> f64 {
        let targets = targets.into();
        let unseen = NoiseBaseline::default();
        let rows = rows_by_output(places, targets);
        let of_output = |(output, rows): (usize, &Vec<WeightedRow>)| {
            self.0.get(output).unwrap_or(&unseen).log_density(rows, least_variance)
        };
        let evidence = targets.weights.map_or(0.0, |weights| weights.evidence);
        targets.power * (rows.iter().enumerate().map(of_output).sum::<f64>() + evidence)
    }
}

fn rows_by_output(places: &impl Places, targets: Targets<'_>) -> Vec<Vec<WeightedRow>> {
    let mut by_output: Vec<Vec<WeightedRow>> = Vec::new();
    for (index, &target) in targets.values.iter().enumerate() {
        let output = places.output(index);
        by_output.resize_with(by_output.len().max(output + 1), Vec::new);
        by_output[output].push(WeightedRow { target, weight: targets.weight(index) });
    }
    by_output
}

/// L*: the bound with every reading of the batch an inducing point beside the old ones (VIPS paper, eq. 9).
///
/// Computed as the evidence of the past alone under the model, plus the exact log likelihood of the batch under the posterior
/// of the past. Needs one N x N matrix. Where targets have weights, it is the ceiling for these.
///
/// # Errors
/// When a covariance is not positive definite to the precision of doubles.
pub fn exact_ceiling<'a, K: Kernel>(
    model: &Model<K>,
    places: &K::Places,
    targets: impl Into<Targets<'a>>,
    past: Option<&Past<K>>,
) -> Result<f64, NotPositiveDefinite> {
    let targets = targets.into();
    let count = targets.values.len();
    let mut covariance = linalg::zeros(count, count);
    model.kernel.add_lower_covariance(places, covariance.as_mut());
    let mut residual: Vec<f64> = targets.values.iter().map(|y| y - model.mean).collect();
    // What the weights add beside the density of rows that are not scaled by their roots.
    let mut ceiling =
        targets.evidence(model.noise) - 0.5 * (0..count).map(|row| targets.precision(row).ln()).sum::<f64>();
    if let Some(past) = past {
        let nothing = places.cleared();
        let whitened = Rows::nested(&nothing, &[], Some(past), &nothing).whiten(model)?;
        ceiling += whitened.bound();
        let mut features = model.kernel.covariance(&past.inducing, places);
        linalg::solve_lower(whitened.covariance_root.as_ref(), features.as_mut());
        linalg::add_matrix_vector(&mut residual, -1.0, features.transpose(), &whitened.coefficients);
        linalg::add_outer_gram(covariance.as_mut(), -1.0, features.transpose());
        linalg::solve_lower(whitened.precision_root.as_ref(), features.as_mut());
        linalg::add_outer_gram(covariance.as_mut(), 1.0, features.transpose());
    }
    (0..count).for_each(|i| covariance[(i, i)] += model.noise / targets.precision(i));
    linalg::cholesky_in_place(covariance.as_mut())?;
    linalg::solve_lower_vector(covariance.as_ref(), &mut residual);
    let log_determinant = linalg::log_determinant(covariance.as_ref());
    Ok(ceiling + log_density_of(count as f64, log_determinant, squared_norm(&residual)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Points;

    fn of_one_output(count: usize) -> Points {
        Points::from_arrays(&vec![[0.0]; count])
    }

    #[test]
    fn the_running_baseline_is_that_of_all_targets() {
        let targets: Vec<f64> = (0..37).map(|i| 50.0 + (i as f64).sin() * 8.0).collect();
        let mut baselines = NoiseBaselines::default();
        for chunk in [&targets[..1], &targets[1..1], &targets[1..20], &targets[20..]] {
            baselines = baselines.including(&of_one_output(chunk.len()), chunk);
        }
        let running = baselines.outputs()[0];
        let mean = targets.iter().sum::<f64>() / 37.0;
        let variance = targets.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 37.0;
        assert_eq!(running.count, 37);
        assert!((running.mean - mean).abs() < 1e-12);
        assert!((running.variance() - variance).abs() < 1e-12);
        let expected: f64 =
            targets.iter().map(|y| -0.5 * (LOG_2_PI + variance.ln() + (y - mean).powi(2) / variance)).sum();
        assert!((baselines.log_likelihood(&of_one_output(37), &targets, 1e-9) - expected).abs() < 1e-10);
    }

    /// Places of a field of two outputs, in turns.
    #[derive(Clone, Debug)]
    struct InTurns(usize);

    impl Places for InTurns {
        fn len(&self) -> usize {
            self.0
        }
        fn output(&self, index: usize) -> usize {
            index % 2
        }
        fn cleared(&self) -> Self {
            Self(0)
        }
        fn push_from(&mut self, _: &Self, _: usize) {
            self.0 += 1;
        }
        fn compatible(&self, _: &Self) -> bool {
            true
        }
        fn is_finite(&self) -> bool {
            true
        }
        fn coordinates_per_place(&self) -> usize {
            0
        }
        fn coordinates(&self) -> Vec<f64> {
            Vec::new()
        }
        fn with_coordinates(&self, _: &[f64]) -> Self {
            self.clone()
        }
    }

    #[test]
    fn each_output_has_a_baseline_of_its_own() {
        let means = [20.0, -45.0];
        let targets: Vec<f64> = (0..40).map(|i| means[i % 2] + (i as f64).sin() * (1 + i % 2) as f64).collect();
        let mut running = NoiseBaselines::default();
        for chunk in [&targets[..10], &targets[10..]] {
            running = running.including(&InTurns(chunk.len()), chunk);
        }
        let mut expected = 0.0;
        for output in 0..2 {
            let own: Vec<f64> = targets.iter().copied().skip(output).step_by(2).collect();
            let mean = own.iter().sum::<f64>() / 20.0;
            let variance = own.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 20.0;
            let found = running.outputs()[output];
            assert_eq!(found.count, 20);
            assert!((found.mean - mean).abs() < 1e-12 && (found.variance() - variance).abs() < 1e-12);
            expected +=
                own.iter().map(|y| -0.5 * (LOG_2_PI + variance.ln() + (y - mean).powi(2) / variance)).sum::<f64>();
        }
        assert_eq!((running.outputs().len(), running.count()), (2, 40));
        let found = running.log_likelihood(&InTurns(40), &targets, 1e-9);
        assert!((found - expected).abs() < 1e-10, "{found} {expected}");
        // Pooled, the difference of the means would count as noise.
        let one = of_one_output(40);
        let pooled = NoiseBaselines::default().including(&one, &targets).log_likelihood(&one, &targets, 1e-9);
        assert!(found > pooled + 50.0, "{found} {pooled}");
    }

    #[test]
    fn identical_targets_have_a_finite_likelihood() {
        let (places, targets) = (of_one_output(5), [48.0; 5]);
        let baseline = NoiseBaselines::default().including(&places, &targets);
        assert!(baseline.log_likelihood(&places, &targets, 0.1).is_finite());
        assert!(baseline.log_likelihood(&places, &targets, f64::MIN_POSITIVE).is_finite());
    }
}
