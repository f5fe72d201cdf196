//! Which inducing points a batch needs, and where: one file per method.

use super::kernel::{Kernel, Places};
use super::linalg::{self, GrowingTriangle, MatrixMut, MatrixRef, NotPositiveDefinite, dot, squared_norm};
use super::model::{LOG_2_PI, Model};
use super::posterior::Posterior;
use super::targets::Targets;
use super::upper_bound::UpperBoundTerms;
use super::whitened::{Past, Rows, Whitened};

pub mod vips;

/// Readings of a batch added one by one as inducing points, each where the variance left by all before it is greatest ("greedy
/// variance", Burt et al. 2020), beside the inducing points of the past. Where readings have weights, it is the greatest in units
/// of the variance of their noise, and a gross outlier is no place to represent.
///
/// That is pivoted Cholesky: a chosen point appends one column to the features Phi, one row to the Cholesky factor of B and one
/// entry to c = L_B^-1 Phi^T z. The bound after k points costs O(N k), and never refits.
pub struct GreedyVariance<'a, K: Kernel> {
    model: &'a Model<K>,
    places: &'a K::Places,
    /// The weight of each reading, its root, and the variance of its noise.
    weights: Vec<f64>,
    roots: Vec<f64>,
    noises: Vec<f64>,
    /// The past and the batch on the old inducing points alone.
    start: Whitened,
    prior_variances: Vec<f64>,
    /// What the chosen points leave of the prior variance at each reading.
    variances: Vec<f64>,
    chosen: Vec<usize>,
    /// Whether a reading is still to be had: neither chosen nor left out.
    is_candidate: Vec<bool>,
    /// Phi_f, one column after another.
    features: Vec<f64>,
    /// Number of columns of Phi_f.
    size: usize,
    precision_root: GrowingTriangle,
    log_determinant: f64,
    /// c.
    projected: Vec<f64>,
}

impl<'a, K: Kernel> GreedyVariance<'a, K> {
    /// Starts from the inducing points of the past, or from none.
    ///
    /// # Errors
    /// When a covariance is not positive definite to the precision of doubles.
    pub fn new(
        model: &'a Model<K>,
        places: &'a K::Places,
        targets: impl Into<Targets<'a>>,
        past: Option<&Past<K>>,
    ) -> Result<Self, NotPositiveDefinite> {
        let targets = targets.into();
        let start = Rows::nested(places, targets, past, &places.cleared()).whiten(model)?;
        let size = start.weights.len();
        let prior_variances = model.kernel.diagonal(places);
        let weights: Vec<f64> = (0..places.len()).map(|i| targets.weight(i)).collect();
        let noises: Vec<f64> = weights.iter().map(|weight| model.noise / weight).collect();
        let explained = (0..places.len()).map(|i| noises[i] * squared_norm(start.features.col_as_slice(i)));
        let variances = prior_variances.iter().zip(explained).map(|(prior, explained)| prior - explained).collect();
        let mut projected = vec![0.0; size];
        linalg::add_matrix_vector(&mut projected, 1.0, start.precision_root.transpose(), &start.weights);
        let mut features = Vec::with_capacity(places.len() * (size + 16));
        features.resize(places.len() * size, 0.0);
        MatrixMut::from_column_major_slice_mut(&mut features, places.len(), size).copy_from(start.features.transpose());
        Ok(Self {
            model,
            places,
            roots: weights.iter().map(|weight| weight.sqrt()).collect(),
            weights,
            noises,
            prior_variances,
            variances,
            chosen: Vec::new(),
            is_candidate: vec![true; places.len()],
            features,
            size,
            precision_root: GrowingTriangle::new(start.precision_root.as_ref()),
            log_determinant: linalg::log_determinant(start.precision_root.as_ref()),
            projected,
            start,
        })
    }

    /// Number of inducing points, old and chosen.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether there is no inducing point yet.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The readings chosen so far, in order.
    pub fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    /// Makes no inducing points of the readings where the posterior variance is at most `known` times the variance of their noise.
    pub fn leave_out_known(&mut self, posterior: &Posterior<K>, known: f64) {
        let count = self.places.len();
        let (mut mean, mut variance) = (vec![0.0; count], vec![0.0; count]);
        posterior.predict(self.places, &mut mean, &mut variance);
        for ((is_candidate, variance), noise) in self.is_candidate.iter_mut().zip(variance).zip(&self.noises) {
            *is_candidate &= variance > known * noise;
        }
    }

    /// The reading with the greatest variance left, in units of that of its noise, and that variance; the first of equals. None
    /// when none is left to choose, or when that one has no more than `least_share` of its prior variance left.
    pub fn next(&self, least_share: f64) -> Option<(usize, f64)> {
        let left = (0..self.variances.len()).filter(|&i| self.is_candidate[i]);
        let weighted = |i: usize| self.weights[i] * self.variances[i];
        let best = left.reduce(|best, i| if weighted(i) > weighted(best) { i } else { best })?;
        let variance = self.variances[best];
        (variance > least_share * self.prior_variances[best] || self.is_empty()).then_some((best, variance))
    }

    /// Makes reading `index` an inducing point.
    pub fn add(&mut self, index: usize) {
        let count = self.places.len();
        let precision = 1.0 / self.model.noise.sqrt();
        let row: Vec<f64> = (0..self.size).map(|column| self.features[column * count + index]).collect();
        let pivot = self.variances[index].max(0.0) + self.model.jitter_of(self.prior_variances[index]);
        let pivot_root = pivot.sqrt().max(f64::MIN_POSITIVE);

        // The new column of Phi_f: what the point explains beyond the others, (k(X, x) / s - Phi_f l) / l_new, with the s of each row.
        let mut column = vec![0.0; count];
        self.model.kernel.add_column(self.places, 0..count, self.places, index, &mut column);
        column.iter_mut().zip(&self.roots).for_each(|(value, root)| *value *= precision * root);
        let scale = self.model.noise.sqrt() / self.roots[index];
        linalg::add_matrix_vector(&mut column, -scale, self.feature_matrix(), &row);
        column.iter_mut().for_each(|value| *value /= pivot_root);

        // The new row of L_B and entry of c. The rows of the past add nothing: the new point is independent of them.
        let mut border = vec![0.0; self.size];
        linalg::add_matrix_vector(&mut border, 1.0, self.feature_matrix().transpose(), &column);
        self.precision_root.solve(&mut border);
        // B - I is positive semi-definite, so a pivot below 1 is rounding.
        let diagonal = (1.0 + squared_norm(&column) - squared_norm(&border)).max(1.0).sqrt();
        let projected = (dot(&column, &self.start.target) - dot(&border, &self.projected)) / diagonal;
        border.push(diagonal);
        self.precision_root.append(&border);
        self.projected.push(projected);
        self.log_determinant += 2.0 * diagonal.ln();

        for ((variance, value), noise) in self.variances.iter_mut().zip(&column).zip(&self.noises) {
            *variance = (*variance - noise * value * value).max(0.0);
        }
        self.features.extend_from_slice(&column);
        self.size += 1;
        self.chosen.push(index);
        self.is_candidate[index] = false;
    }

    /// The evidence lower bound with the inducing points so far, in nats.
    pub fn bound(&self) -> f64 {
        let terms = self.start.upper_bound_terms();
        let count = terms.target.len() as f64;
        let rows = count + terms.past_rows as f64;
        let squares = squared_norm(terms.target) + terms.past_squares - squared_norm(&self.projected);
        -0.5 * (rows * LOG_2_PI + self.log_determinant + squares)
            - 0.5 * count * terms.log_noise
            - 0.5 * self.slack()
            - terms.old_log_evidence
            + terms.weights_evidence
    }

    /// The upper bound on L* with the inducing points so far, in nats.
    ///
    /// # Errors
    /// When B is not positive definite to the precision of doubles.
    pub fn upper_bound(&self) -> Result<f64, NotPositiveDefinite> {
        UpperBoundTerms {
            features: self.feature_matrix(),
            log_determinant: self.log_determinant,
            slack: self.slack(),
            ..self.start.upper_bound_terms()
        }
        .evaluate()
    }

    /// tau: the trace of what is left of the scaled rows of the batch.
    fn slack(&self) -> f64 {
        let weighted = self.variances.iter().zip(&self.weights).map(|(variance, weight)| weight * variance);
        weighted.sum::<f64>() / self.model.noise
    }

    fn feature_matrix(&self) -> MatrixRef<'_> {
        MatrixRef::from_column_major_slice(&self.features, self.places.len(), self.size)
    }
}
