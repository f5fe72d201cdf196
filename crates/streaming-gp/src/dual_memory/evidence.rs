//! The arithmetic of sites: posterior, evidence lower bound, natural gradient, and gradient in the hyperparameters.
//!
//! With `L_b L_b^T = K_zz`, u = f(Z) = L_b v, and the summary `r = R u_old + e` of the readings that were let go:
//!
//! ```text
//! features    phi_i = L_b^-1 k_zi,  F = R K_(old)z L_b^-T
//! precision   B = I + sum_i beta_i phi_i phi_i^T + F^T F = L_B L_B^T        (eqs. 8 and 20: K_zz + B_u = L_b B L_b^T)
//! mean        g = B^-1 (sum_i beta_i (y~_i - m) phi_i + F^T r)              (eq. 7)
//! posterior   v ~ N(g, B^-1):  f_i has mean m + phi_i^T g, variance k_ii - |phi_i|^2 + |L_B^-1 phi_i|^2      (eq. 10)
//! bound       sum_i w_i E[log p(y_i | f_i)] - KL[v || N(0, I)] + p E[log N(r; R u_old, I)]
//! ```
//!
//! B is never below I, and nothing is subtracted from it: readings in memory are no part of the summary to begin with, so that
//! eqs. 19 and 20 need no subtraction. F is the projection of eq. 27, since R keeps its meaning when the inducing points move or
//! the hyperparameters change. (Eq. 25 would have the rows a_i of the summary change with the hyperparameters, too; their
//! readings are gone. R is right for every change of the variance, and for the lengthscale as far as the inducing points are dense.)

use super::super::linalg::{self, dot, squared_norm};
use super::super::normal::LOG_2_PI;
use super::expectation::{Expectation, Observation};
use super::link::Link;
use super::site::{self, Site};
use super::summary::{Inducing, Summary, WhitenedSummary};
use crate::{Kernel, Matrix, Model, NotPositiveDefinite, Places, Posterior};

/// Sites have settled when none changes by more than this share of itself, or of the largest.
const SETTLED: f64 = 1e-7;

/// A step that lowers the bound by more than this share of it is taken back and halved.
const ROUNDING: f64 = 1e-10;

/// The evidence that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counts {
    /// How often each reading in memory counts.
    pub(super) memory: f64,
    /// How often the summary counts.
    pub(super) summary: f64,
}

impl Counts {
    /// Everything once: the bound that the sites maximize (eq. 21).
    pub(super) const ONCE: Self = Self { memory: 1.0, summary: 1.0 };
}

/// The part that stays the same while sites and hyperparameters change.
pub(super) struct Setup<'a, K: Kernel> {
    /// Places of the memory, then of the batch.
    pub(super) places: &'a K::Places,
    pub(super) targets: &'a [f64],
    /// The link, where targets are labels.
    pub(super) link: Option<Link>,
    /// How many of them are in memory.
    pub(super) memory: usize,
    pub(super) summary: Option<&'a Summary<K>>,
    pub(super) inducing: Inducing<K::Places>,
}

/// A model, and what depends on its hyperparameters alone.
pub(super) struct WhitenedSites<K> {
    pub(super) model: Model<K>,
    /// L_b.
    pub(super) covariance_root: Matrix,
    /// phi: M x N.
    features: Matrix,
    prior_variances: Vec<f64>,
    summary: Option<WhitenedSummary>,
}

/// The posterior of some sites, and what it says of the readings.
pub(super) struct Fit {
    /// L_B.
    precision_root: Matrix,
    /// g.
    weights: Vec<f64>,
    /// E\[f_i\] - m.
    centred_means: Vec<f64>,
    /// Var\[f_i\].
    pub(super) variances: Vec<f64>,
    expectations: Vec<Expectation>,
    /// tr B^-1.
    trace: f64,
    /// E |r - F v|^2.
    summary_squares: f64,
}

impl<K: Kernel> Setup<'_, K> {
    /// Computes the part that depends on the hyperparameters of the model.
    ///
    /// # Errors
    /// When the covariance of the inducing points is not positive definite to the precision of doubles.
    pub(super) fn whiten(&self, model: Model<K>) -> Result<WhitenedSites<K>, NotPositiveDefinite> {
        let inducing = &self.inducing.places;
        let covariance_root = model.covariance_root(inducing, Matrix::zeros(inducing.len(), inducing.len()))?;
        let mut features = model.kernel.covariance(inducing, self.places);
        linalg::solve_lower(covariance_root.as_ref(), features.as_mut());
        let summary = self.summary.map(|summary| summary.whiten(&model, &self.inducing, covariance_root.as_ref()));
        let prior_variances = model.kernel.diagonal(self.places);
        Ok(WhitenedSites { model, covariance_root, features, prior_variances, summary })
    }

    /// The posterior of these sites.
    ///
    /// # Errors
    /// When B is not finite.
    pub(super) fn fit(&self, whitened: &WhitenedSites<K>, sites: &[Site]) -> Result<Fit, NotPositiveDefinite> {
        let WhitenedSites { model, features, prior_variances, summary, .. } = whitened;
        let size = features.nrows();
        let mut precision = Matrix::identity(size, size);
        let mut scaled = features.clone();
        linalg::scale_columns(&mut scaled, |i| sites[i].precision.sqrt());
        linalg::add_outer_gram(precision.as_mut(), 1.0, scaled.as_ref());
        let naturals: Vec<f64> = sites.iter().map(|site| site.natural).collect();
        let mut weights = linalg::matrix_vector(features.as_ref(), &naturals);
        if let Some(summary) = summary {
            precision += &summary.gram;
            weights.iter_mut().zip(&summary.projected).for_each(|(sum, value)| *sum += value);
        }
        let precision_root = linalg::cholesky(precision)?;
        linalg::solve_from_cholesky(precision_root.as_ref(), &mut weights);

        let mut spread = scaled;
        spread.copy_from(features);
        linalg::solve_lower(precision_root.as_ref(), spread.as_mut());
        let spreads: Vec<f64> = (0..sites.len()).map(|i| squared_norm(spread.col_as_slice(i))).collect();
        let centred_means: Vec<f64> = (0..sites.len()).map(|i| dot(features.col_as_slice(i), &weights)).collect();
        let left = |i: usize| (prior_variances[i] - squared_norm(features.col_as_slice(i))).max(0.0);
        let variances: Vec<f64> = (0..sites.len()).map(|i| left(i) + spreads[i]).collect();
        let measured = Observation::of(model.likelihood, model.noise);
        let observation = self.link.map_or(measured, Observation::Bernoulli);
        let expect = |i: usize| observation.expect(self.targets[i], model.mean + centred_means[i], variances[i]);
        let expectations = (0..sites.len()).map(expect).collect();

        // tr(B^-1 B) = M shares out to the identity, the sites and the summary.
        let of_sites: f64 = sites.iter().zip(&spreads).map(|(site, spread)| site.precision * spread).sum();
        let mut of_summary = 0.0;
        let mut summary_squares = 0.0;
        if let (Some(summary), Some(whitened)) = (self.summary, summary) {
            let mut spread = whitened.features.clone();
            linalg::solve_lower(precision_root.as_ref(), spread.as_mut());
            of_summary = linalg::squared_frobenius_norm(&spread);
            summary_squares = squared_norm(&summary.residual(whitened, &weights)) + of_summary + whitened.slack;
        }
        let trace = size as f64 - of_sites - of_summary;
        Ok(Fit { precision_root, weights, centred_means, variances, expectations, trace, summary_squares })
    }

    /// The evidence lower bound in nats; not a number where the arithmetic broke down.
    pub(super) fn bound(&self, fit: &Fit, counts: Counts) -> f64 {
        let size = fit.weights.len() as f64;
        let expected: f64 =
            fit.expectations.iter().enumerate().map(|(i, e)| self.count(i, counts) * e.log_density).sum();
        let log_determinant = linalg::log_determinant(fit.precision_root.as_ref());
        let divergence = 0.5 * (fit.trace - size + log_determinant + squared_norm(&fit.weights));
        let of_summary = self.summary.map_or(0.0, |summary| {
            -0.5 * (summary.past.inducing.len() as f64 * LOG_2_PI + fit.summary_squares) - summary.past.log_evidence
        });
        expected - divergence + counts.summary * of_summary
    }

    /// How often a reading counts.
    fn count(&self, index: usize, counts: Counts) -> f64 {
        if index < self.memory { counts.memory } else { 1.0 }
    }

    /// Natural-gradient steps until the sites have settled: each goes the share `step_length` of the way (eq. 23), half of that
    /// after a step that lowered the bound. Returns the posterior and the number of steps.
    ///
    /// # Errors
    /// When the first posterior cannot be computed; the sites are then as they were.
    pub(super) fn settle(
        &self,
        whitened: &WhitenedSites<K>,
        sites: &mut Vec<Site>,
        (steps, step_length): (usize, f64),
    ) -> Result<(Fit, usize), NotPositiveDefinite> {
        let mut fit = self.fit(whitened, sites)?;
        let mut bound = self.bound(&fit, Counts::ONCE);
        let mut length = step_length;
        for step in 1..=steps {
            let next: Vec<Site> = (0..sites.len())
                .map(|i| {
                    let to = Site::of(&fit.expectations[i], fit.centred_means[i], whitened.prior_variances[i]);
                    sites[i].towards(to, length)
                })
                .collect();
            let next_fit = self.fit(whitened, &next);
            let next_bound = next_fit.as_ref().map_or(f64::NAN, |fit| self.bound(fit, Counts::ONCE));
            match next_fit {
                Ok(next_fit) if next_bound >= bound - ROUNDING * bound.abs() => {
                    let change = site::change(sites, &next);
                    (fit, bound, *sites) = (next_fit, next_bound, next);
                    if change <= SETTLED * length {
                        return Ok((fit, step));
                    }
                }
                _ => length *= 0.5,
            }
        }
        Ok((fit, steps))
    }

    /// The gradient of the bound in the logarithms of the hyperparameters, with the sites held.
    ///
    /// With d_i and e_i the derivatives of the expected log densities in mean and variance, S = B^-1, and
    ///
    /// ```text
    /// gamma = sum_i d_i phi_i - g + p F^T (r - F g)          dL/dg
    /// Gamma = sum_i e_i phi_i phi_i^T + (B - I - p F^T F)/2  dL/dS
    /// q = S gamma,   C = S Gamma S + (q g^T + g q^T) / 2     -dL/dB
    /// dL/dphi_i = d_i g + 2 e_i (S phi_i - phi_i) - 2 beta_i C phi_i + beta_i (y~_i - m) q
    /// dL/dF^T   = p (g (r - F g)^T + F^T - S F^T) - 2 C F^T + q r^T
    /// ```
    ///
    /// the rest follows from phi_i = L_b^-1 k_zi and F^T = L_b^-1 K_z(old) R^T, where K_zz takes
    /// `-L_b^-T W L_b^-1 / 2` with W = sum_i dL/dphi_i phi_i^T + dL/dF^T F.
    pub(super) fn gradient(&self, whitened: &WhitenedSites<K>, sites: &[Site], fit: &Fit, counts: Counts) -> Vec<f64> {
        let WhitenedSites { model, covariance_root, features, .. } = whitened;
        let Fit { weights, expectations, .. } = fit;
        let (size, number) = (features.nrows(), features.ncols());
        let in_mean: Vec<f64> = (0..number).map(|i| self.count(i, counts) * expectations[i].alpha).collect();
        let in_variance: Vec<f64> = (0..number).map(|i| -0.5 * self.count(i, counts) * expectations[i].beta).collect();
        let inverse = linalg::inverse_from_cholesky(fit.precision_root.as_ref());

        let mut in_weights: Vec<f64> = weights.iter().map(|weight| -weight).collect();
        linalg::add_matrix_vector(&mut in_weights, 1.0, features.as_ref(), &in_mean);
        let mut scaled = features.clone();
        linalg::scale_columns(&mut scaled, |i| in_variance[i] + 0.5 * sites[i].precision);
        let mut in_inverse = &scaled * features.transpose();
        let residual = match (self.summary, &whitened.summary) {
            (Some(summary), Some(whitened)) => summary.residual(whitened, weights),
            _ => Vec::new(),
        };
        if let Some(summary) = &whitened.summary {
            linalg::add_matrix_vector(&mut in_weights, counts.summary, summary.features.as_ref(), &residual);
            let share = 0.5 * (1.0 - counts.summary);
            for column in 0..size {
                let terms = in_inverse.col_as_slice_mut(column).iter_mut().zip(summary.gram.col_as_slice(column));
                terms.for_each(|(sum, gram)| *sum += share * gram);
            }
        }
        let solved = linalg::matrix_vector(inverse.as_ref(), &in_weights);
        let mut curvature = &inverse * &in_inverse * &inverse;
        for column in 0..size {
            for row in 0..size {
                curvature[(row, column)] += 0.5 * (solved[row] * weights[column] + weights[row] * solved[column]);
            }
        }

        let mut in_features = &inverse * features;
        let mut curved = &curvature * features;
        for i in 0..number {
            let (spread, curved) = (in_features.col_as_slice_mut(i), curved.col_as_slice_mut(i));
            for row in 0..size {
                spread[row] = in_mean[i] * weights[row] + 2.0 * in_variance[i] * (spread[row] - features[(row, i)])
                    - 2.0 * sites[i].precision * curved[row]
                    + sites[i].natural * solved[row];
            }
        }
        let mut in_covariance = &in_features * features.transpose();

        let mut gradient = vec![0.0; model.names().len()];
        let (in_noise, in_kernel) = gradient.split_last_mut().expect("a model has at least the noise");
        *in_noise = (0..number).map(|i| self.count(i, counts) * expectations[i].in_log_noise).sum();
        if let (Some(summary), Some(past)) = (self.summary, &whitened.summary) {
            let mut in_features = &inverse * &past.features;
            let curved = &curvature * &past.features;
            for column in 0..in_features.ncols() {
                let target = summary.past.target[column];
                for (row, entry) in in_features.col_as_slice_mut(column).iter_mut().enumerate() {
                    let direct = weights[row] * residual[column] + past.features[(row, column)] - *entry;
                    *entry = counts.summary * direct - 2.0 * curved[(row, column)] + solved[row] * target;
                }
            }
            in_covariance += &in_features * past.features.transpose();
            linalg::solve_lower_transposed(covariance_root.as_ref(), in_features.as_mut());
            let in_cross_covariance = &in_features * &summary.root;
            summary.contract(model, &self.inducing, &in_cross_covariance, counts.summary, in_kernel);
        }
        linalg::solve_lower_transposed(covariance_root.as_ref(), in_features.as_mut());
        model.kernel.contract(&self.inducing.places, self.places, in_features.as_ref(), in_kernel);
        model.kernel.contract_diagonal(self.places, &in_variance, in_kernel);
        linalg::scale(&mut in_covariance, -0.5);
        linalg::solve_both_sides(covariance_root.as_ref(), in_covariance.as_mut());
        model.contract_covariance(&self.inducing.places, in_covariance.as_mut(), std::iter::empty(), in_kernel);
        gradient
    }

    /// The posterior of the readings with these indices and of the summary.
    ///
    /// # Errors
    /// When B is not finite.
    pub(super) fn posterior(
        &self,
        whitened: &WhitenedSites<K>,
        sites: &[Site],
        indices: &[usize],
    ) -> Result<Posterior<K>, NotPositiveDefinite> {
        let size = self.inducing.places.len();
        let of_summary = whitened.summary.as_ref().map_or(0, |summary| summary.features.ncols());
        let mut rows = Matrix::zeros(size, indices.len() + of_summary);
        let mut targets = vec![0.0; indices.len()];
        for (row, &i) in indices.iter().enumerate() {
            // A site that has taken no step says nothing.
            let root = sites[i].precision.sqrt();
            if root > 0.0 {
                let scaled = whitened.features.col_as_slice(i).iter().map(|value| root * value);
                rows.col_as_slice_mut(row).iter_mut().zip(scaled).for_each(|(entry, value)| *entry = value);
                targets[row] = sites[i].natural / root;
            }
        }
        if let (Some(summary), Some(whitened)) = (self.summary, &whitened.summary) {
            rows.as_mut().subcols_mut(indices.len(), of_summary).copy_from(&whitened.features);
            targets.extend_from_slice(&summary.past.target);
        }
        let (inducing, root) = (self.inducing.places.clone(), whitened.covariance_root.clone());
        Posterior::of_rows(whitened.model.clone(), inducing, root, rows.transpose(), &targets)
    }
}
