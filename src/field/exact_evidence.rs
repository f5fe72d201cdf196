//! The exact log evidence of readings under the model of the three axes, without inducing points.

use nalgebra::{Matrix3, Point3, Vector3};
use streaming_gp::linalg;
use streaming_gp::{Axis, FieldPlace, FieldPlaces, Kernel, Matrix, NotPositiveDefinite, Places, VectorField};

/// The evidence of targets that are combinations of columns: one Cholesky factorization of their covariance K serves
/// all combinations.
///
/// Weights are those of the first columns; the others have none.
pub struct ExactEvidence {
    rows: f64,
    log_determinant: f64,
    /// Products of the columns X with each other, `X^T K^-1 X`.
    gram: Matrix,
}

impl ExactEvidence {
    /// The evidence of targets at these places, with this variance of the noise; `columns` has a row for each place.
    ///
    /// # Errors
    /// When the covariance is not positive definite.
    pub fn new(
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
    pub fn product(&self, left: &[f64], right: &[f64]) -> f64 {
        let row = |i: usize| right.iter().enumerate().map(|(j, right)| self.gram[(i, j)] * right).sum::<f64>();
        left.iter().enumerate().map(|(i, left)| left * row(i)).sum()
    }

    /// `Z^T K^-1 X weights` and `Z^T K^-1 Z` of the three columns Z from `first` on.
    pub fn projected(&self, first: usize, weights: &[f64]) -> (Vector3<f64>, Matrix3<f64>) {
        let product = |i: usize| weights.iter().enumerate().map(|(k, weight)| weight * self.gram[(first + i, k)]).sum();
        (Vector3::from_fn(|i, _| product(i)), Matrix3::from_fn(|i, j| self.gram[(first + i, first + j)]))
    }

    /// The log evidence of the targets `X weights`, in nats.
    pub fn at(&self, weights: &[f64]) -> f64 {
        let constant = self.log_determinant + self.rows * std::f64::consts::TAU.ln();
        -0.5 * (constant + self.product(weights, weights))
    }

    /// The log evidence of the targets under the multiple of K that makes it greatest, so that only the shape of the covariance counts.
    pub fn scaled_at(&self, weights: &[f64]) -> f64 {
        self.scaled(self.product(weights, weights))
    }

    /// [`scaled_at`](Self::scaled_at), given the product of the targets with themselves.
    pub fn scaled(&self, product: f64) -> f64 {
        let scale = (product / self.rows).max(f64::MIN_POSITIVE);
        -0.5 * (self.log_determinant + self.rows * ((std::f64::consts::TAU * scale).ln() + 1.0))
    }
}

/// The three rows of a reading in the plane: its height is left out. Its axes are those of the body: under the prior of the bias every
/// mount is the same.
pub fn rows_of_reading(position: Point3<f64>, body: &Matrix3<f64>) -> [FieldPlace; 3] {
    let position = [position.x, position.y, 0.0];
    Axis::ALL.map(|axis| {
        let row = body.row(axis as usize);
        FieldPlace::Reading { axis, position, turn: [row[0], row[1], row[2]], speed: 0.0 }
    })
}
