//! The evidence lower bound while inducing points are added one by one.

use super::super::linalg::{self, GrowingTriangle, dot, squared_norm};
use super::super::whitened::{Bounds, missing_permanent};
use crate::{Kernel, Model, NotPositiveDefinite, Past, PivotedCholesky, Places, Rows, Targets, Whitened};
use std::borrow::Cow;

/// Readings of a batch added one by one as inducing points, each where the variance left by all before it is greatest ("greedy
/// variance", Burt et al. 2020), beside the inducing points of the past. Where readings have weights, it is the greatest in units
/// of the variance of their noise, and a gross outlier is no place to represent.
///
/// The order is that of pivoted Cholesky: a chosen point appends one column to the features Phi, one row to the Cholesky factor
/// of B and one entry to c = L_B^-1 Phi^T z. The bound after k points costs O(N k), and never refits.
pub struct GreedyVariance<'a, K: Kernel> {
    /// The points chosen so far, and what they leave.
    pub points: PivotedCholesky<'a, K>,
    /// The past and the batch on the old inducing points alone.
    start: Whitened,
    precision_root: GrowingTriangle,
    log_determinant: f64,
    /// c.
    projected: Vec<f64>,
}

impl<'a, K: Kernel> GreedyVariance<'a, K> {
    /// Starts from the inducing points of the past and the permanent ones, or from none.
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
        let rows = Rows::nested(places, targets, past, &missing_permanent(&model.kernel, places, past));
        let start = rows.whiten(model)?;
        let weights: Vec<f64> = (0..places.len()).map(|i| targets.precision(i)).collect();
        let others = match places.candidates() {
            Cow::Borrowed(_) => None,
            Cow::Owned(candidates) => {
                let mut features = model.kernel.covariance(&rows.inducing, &candidates);
                linalg::solve_lower(start.covariance_root.as_ref(), features.as_mut());
                linalg::scale_columns(&mut features, |row| (weights[row] / model.noise).sqrt());
                Some((candidates, features))
            }
        };
        let projected = linalg::matrix_vector(start.precision_root.transpose(), &start.coefficients);
        Ok(Self {
            points: PivotedCholesky::starting_from(model, places, weights, &start.features, others),
            precision_root: GrowingTriangle::new(start.precision_root.as_ref()),
            log_determinant: linalg::log_determinant(start.precision_root.as_ref()),
            projected,
            start,
        })
    }

    /// Makes candidate `index` an inducing point.
    pub fn add(&mut self, index: usize) {
        let size = self.points.len();
        let column = self.points.add(index).to_vec();

        // The new row of L_B and entry of c. The rows of the past add nothing: the new point is independent of them.
        let mut border = linalg::matrix_vector(self.points.features().subcols(0, size).transpose(), &column);
        self.precision_root.solve(&mut border);
        // B - I is positive semi-definite, so a pivot below 1 is rounding.
        let diagonal = (1.0 + squared_norm(&column) - squared_norm(&border)).max(1.0).sqrt();
        let projected = (dot(&column, &self.start.target) - dot(&border, &self.projected)) / diagonal;
        border.push(diagonal);
        self.precision_root.append(&border);
        self.projected.push(projected);
        self.log_determinant += 2.0 * diagonal.ln();
    }

    /// The evidence lower bound with the inducing points so far, in nats.
    pub fn bound(&self) -> f64 {
        let Whitened { target, past_squares, .. } = &self.start;
        self.bounds().lower(squared_norm(target) + past_squares - squared_norm(&self.projected))
    }

    /// The upper bound on L* with the inducing points so far, in nats.
    ///
    /// # Errors
    /// When B is not positive definite to the precision of doubles.
    pub fn upper_bound(&self) -> Result<f64, NotPositiveDefinite> {
        self.bounds().upper()
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds {
            whitened: &self.start,
            features: self.points.features(),
            log_determinant: self.log_determinant,
            slack: self.points.slack(),
        }
    }
}
