//! The exact log evidence of readings under the model of the three axes, without inducing points.

use streaming_gp::linalg;
use streaming_gp::{FieldPlaces, Kernel, Matrix, NotPositiveDefinite, Places, VectorField};

/// The evidence of targets that are combinations of columns: one Cholesky factorization of their covariance K serves
/// all combinations.
///
/// Weights are those of the first columns; the others have none.
pub(crate) struct ExactEvidence {
    rows: f64,
    log_determinant: f64,
    /// Products of the columns X with each other, `X^T K^-1 X`.
    /// `X^T K^-1 X`.
    pub(crate) gram: Matrix,
}

impl ExactEvidence {
    /// Of targets at these places, with this variance of the noise; `columns` has a row for each place.
    ///
    /// # Errors
    /// When the covariance is not positive definite.
    pub(crate) fn new(
        places: &FieldPlaces,
        kernel: &VectorField,
        noise: f64,
        mut columns: Matrix,
    ) -> Result<Self, NotPositiveDefinite> {
        let rows = places.len();
        let mut covariance = linalg::zeros(rows, rows);
        kernel.add_lower_covariance(places, covariance.as_mut());
        (0..rows).for_each(|i| covariance[(i, i)] += noise);
        let lower = linalg::cholesky(covariance)?;
        linalg::solve_lower(lower.as_ref(), columns.as_mut());
        let gram = linalg::product(columns.transpose(), columns.as_ref());
        Ok(Self { rows: rows as f64, log_determinant: linalg::log_determinant(lower.as_ref()), gram })
    }

    /// `(X left)^T K^-1 (X right)`.
    pub(crate) fn product(&self, left: &[f64], right: &[f64]) -> f64 {
        let row = |i: usize| right.iter().enumerate().map(|(j, right)| self.gram[(i, j)] * right).sum::<f64>();
        left.iter().enumerate().map(|(i, left)| left * row(i)).sum()
    }

    /// The log evidence of the targets `X weights`, in nats.
    pub(crate) fn at(&self, weights: &[f64]) -> f64 {
        let constant = self.log_determinant + self.rows * std::f64::consts::TAU.ln();
        -0.5 * (constant + self.product(weights, weights))
    }

    /// The same under the multiple of K that makes it greatest, so that only the shape of the covariance counts.
    pub(crate) fn scaled_at(&self, weights: &[f64]) -> f64 {
        self.scaled(self.product(weights, weights))
    }

    /// The same, given the product of the targets with themselves.
    pub(crate) fn scaled(&self, product: f64) -> f64 {
        let scale = (product / self.rows).max(f64::MIN_POSITIVE);
        -0.5 * (self.log_determinant + self.rows * ((std::f64::consts::TAU * scale).ln() + 1.0))
    }
}
