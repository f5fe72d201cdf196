//! The terms of the bounds: the lower one, and the upper one on what any number of inducing points could reach.

use super::linalg::{self, squared_norm};
use super::normal::log_density_of;
use crate::{Matrix, MatrixRef, NotPositiveDefinite};

/// What the bounds need to know of a batch and a past under some inducing points; the upper one, where these contain the old ones.
pub(super) struct BoundTerms<'a> {
    /// Phi_f: N x M.
    pub features: MatrixRef<'a>,
    /// z_f: N.
    pub target: &'a [f64],
    /// Phi_a^T Phi_a in the first rows and columns, lower triangle.
    pub past_gram: MatrixRef<'a>,
    /// Phi_a^T r.
    pub past_projected: &'a [f64],
    /// r^T r.
    pub past_squares: f64,
    /// M_a.
    pub past_rows: usize,
    /// log|B|.
    pub log_determinant: f64,
    /// tau: the trace of what the inducing points leave of the scaled rows of the batch.
    pub slack: f64,
    /// log s^2.
    pub log_noise: f64,
    /// log N(r; 0, I + R K'_aa R^T).
    pub old_log_evidence: f64,
    /// What the weights of the rows add; 0 without any.
    pub weights_evidence: f64,
}

impl BoundTerms<'_> {
    /// The evidence lower bound, in nats: `log N(z; 0, I + Phi Phi^T) - N log s - tau / 2 - log N(r; 0, I + R K'_aa R^T)`, given
    /// the quadratic term of the first.
    pub fn lower_bound(&self, squares: f64) -> f64 {
        self.bound(squares, self.slack)
    }

    fn bound(&self, squares: f64, slack: f64) -> f64 {
        let count = self.target.len() as f64;
        log_density_of(count + self.past_rows as f64, self.log_determinant, squares)
            - 0.5 * count * self.log_noise
            - 0.5 * slack
            - self.old_log_evidence
            + self.weights_evidence
    }

    /// An upper bound on L* (VIPS paper, section 4.1, in scaled rows): the determinant is that of the approximation, the
    /// quadratic term has noise 1 + tau on the rows of the batch. The rows of the past keep noise 1, since while every old
    /// inducing point stays they are represented exactly; that is tighter than the paper's tau on all rows.
    ///
    /// # Errors
    /// When B is not positive definite to the precision of doubles.
    pub fn upper_bound(&self) -> Result<f64, NotPositiveDefinite> {
        let size = self.features.ncols();
        let weight = 1.0 / (1.0 + self.slack.max(0.0));
        let mut gram = Matrix::identity(size, size);
        linalg::add_outer_gram(gram.as_mut(), weight, self.features.transpose());
        let covered = self.past_projected.len();
        for column in 0..covered {
            (column..covered).for_each(|row| gram[(row, column)] += self.past_gram[(row, column)]);
        }
        let mut projected = vec![0.0; size];
        projected[..covered].copy_from_slice(self.past_projected);
        linalg::add_matrix_vector(&mut projected, weight, self.features.transpose(), self.target);
        let root = linalg::cholesky(gram)?;
        linalg::solve_lower_vector(root.as_ref(), &mut projected);
        let squares = weight * squared_norm(self.target) + self.past_squares - squared_norm(&projected);
        Ok(self.bound(squares, 0.0))
    }
}
