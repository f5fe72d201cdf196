//! What the evidence lower bound is compared with: from above L* and the upper bound, from below the noise baseline.

use super::kernel::{Kernel, Places};
use super::likelihood::Weights;
use super::linalg::{self, Matrix, NotPositiveDefinite, Part, squared_norm};
use super::model::Model;
use super::normal::LOG_2_PI;
use super::targets::Targets;
use super::whitened::{Past, Rows, Whitened};

/// Count, mean and variance of all targets so far: the model that sees no structure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseBaseline {
    count: u64,
    mean: f64,
    /// Sum of squared deviations from the mean.
    scatter: f64,
}

impl NoiseBaseline {
    /// The baseline of so many targets with this mean and this sum of squared deviations from it.
    pub fn new(count: u64, mean: f64, scatter: f64) -> Self {
        Self { count, mean, scatter }
    }

    /// The baseline after these targets too (Chan's update of a running mean and variance). Where they have weights, it is as if
    /// all of them had the weighted mean and the weighted variance.
    pub fn including<'a>(&self, targets: impl Into<Targets<'a>>) -> Self {
        let targets = targets.into();
        let values = targets.values();
        if values.is_empty() {
            return *self;
        }
        let weighted = |value: &dyn Fn(f64) -> f64| {
            values.iter().enumerate().map(|(i, &y)| targets.weight(i) * value(y)).sum::<f64>()
        };
        let added = values.len() as f64;
        let total = weighted(&|_| 1.0);
        let added_mean = weighted(&|y| y) / total;
        let added_scatter = weighted(&|y| (y - added_mean).powi(2)) * (added / total);
        let count = self.count as f64 + added;
        let difference = added_mean - self.mean;
        Self {
            count: self.count.saturating_add(values.len() as u64),
            mean: self.mean + difference * added / count,
            scatter: self.scatter + added_scatter + difference * difference * self.count as f64 * added / count,
        }
    }

    /// How many targets it has seen.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The sum of their squared deviations from the mean.
    pub fn scatter(&self) -> f64 {
        self.scatter
    }

    /// Their population variance; 0 before any.
    pub fn variance(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.scatter / self.count as f64 }
    }

    /// The log likelihood of targets under it, in nats (VIPS paper, section 4.3), with a variance of at least
    /// `least_variance`, which must be positive: identical targets would otherwise be infinitely likely. Targets with weights have
    /// that variance divided by their weight.
    pub fn log_likelihood<'a>(&self, targets: impl Into<Targets<'a>>, least_variance: f64) -> f64 {
        let targets = targets.into();
        let variance = self.variance().max(least_variance);
        let square = |(i, y): (usize, &f64)| targets.weight(i) * (y - self.mean).powi(2);
        let squares = targets.values().iter().enumerate().map(square).sum::<f64>();
        -0.5 * (targets.values().len() as f64 * (LOG_2_PI + variance.ln()) + squares / variance)
            + targets.weights().map_or(0.0, Weights::evidence)
    }
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
    let count = targets.values().len();
    let mut covariance = linalg::zeros(count, count);
    model.kernel.add_lower_covariance(places, covariance.as_mut());
    let mut residual: Vec<f64> = targets.values().iter().map(|y| y - model.mean).collect();
    // What the weights add beside the density of rows that are not scaled by their roots.
    let mut ceiling = targets.weights().map_or(0.0, |weights| {
        weights.evidence() - 0.5 * weights.values().iter().map(|weight| weight.ln()).sum::<f64>()
    });
    if let Some(past) = past {
        let nothing = places.cleared();
        let whitened = Rows::nested(&nothing, &[], Some(past), &nothing).whiten(model)?;
        ceiling += whitened.bound();
        let mut features = model.kernel.covariance(&past.inducing, places);
        linalg::solve_lower(whitened.covariance_root.as_ref(), features.as_mut());
        linalg::add_matrix_vector(&mut residual, -1.0, features.transpose(), &whitened.coefficients);
        let mut add = |factor, rows: &Matrix| {
            let (left, right) = (rows.transpose(), rows.as_ref());
            linalg::multiply(covariance.as_mut(), Part::Lower, 1.0, factor, left, Part::Full, right, Part::Full);
        };
        add(-1.0, &features);
        linalg::solve_lower(whitened.precision_root.as_ref(), features.as_mut());
        add(1.0, &features);
    }
    (0..count).for_each(|i| covariance[(i, i)] += model.noise / targets.weight(i));
    linalg::cholesky_in_place(covariance.as_mut())?;
    linalg::solve_lower_vector(covariance.as_ref(), &mut residual);
    let log_determinant = linalg::log_determinant(covariance.as_ref());
    Ok(ceiling - 0.5 * (count as f64 * LOG_2_PI + log_determinant + squared_norm(&residual)))
}

/// The upper bound for what [`Rows::nested`] and [`Rows::whiten`] made of a batch; infinite under Power-EP, for which none is known.
///
/// # Errors
/// When B is not positive definite to the precision of doubles.
pub fn upper_bound(whitened: &Whitened) -> Result<f64, NotPositiveDefinite> {
    if whitened.is_power_ep() { Ok(f64::INFINITY) } else { whitened.upper_bound_terms().evaluate() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_baseline_is_that_of_all_targets() {
        let targets: Vec<f64> = (0..37).map(|i| 50.0 + (i as f64).sin() * 8.0).collect();
        let mut running = NoiseBaseline::default();
        for chunk in [&targets[..1], &targets[1..1], &targets[1..20], &targets[20..]] {
            running = running.including(chunk);
        }
        let mean = targets.iter().sum::<f64>() / 37.0;
        let variance = targets.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 37.0;
        assert_eq!(running.count(), 37);
        assert!((running.mean() - mean).abs() < 1e-12);
        assert!((running.variance() - variance).abs() < 1e-12);
        let expected: f64 =
            targets.iter().map(|y| -0.5 * (LOG_2_PI + variance.ln() + (y - mean).powi(2) / variance)).sum();
        assert!((running.log_likelihood(&targets, 1e-9) - expected).abs() < 1e-10);
    }

    #[test]
    fn identical_targets_have_a_finite_likelihood() {
        let baseline = NoiseBaseline::default().including(&[48.0; 5]);
        assert!(baseline.log_likelihood(&[48.0; 5], 0.1).is_finite());
        assert!(baseline.log_likelihood(&[48.0; 5], f64::MIN_POSITIVE).is_finite());
    }
}
