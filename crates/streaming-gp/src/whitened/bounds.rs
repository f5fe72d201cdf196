//! The lower bound of a batch, and the upper one on what any number of inducing points could reach.

use super::Whitened;
use crate::linalg::{self, squared_norm};
use crate::normal::log_density_of;
use crate::{Matrix, MatrixRef, NotPositiveDefinite};

/// The bounds for a batch and a past under some inducing points; the upper one under variational inference, where these contain
/// the old ones.
pub(crate) struct Bounds<'a> {
    /// The past and the batch, on these inducing points or the first of them.
    pub whitened: &'a Whitened,
    /// Phi_f: N x M.
    pub features: MatrixRef<'a>,
    /// log|B|.
    pub log_determinant: f64,
    /// tau: the trace of what the inducing points leave of the scaled rows of the batch.
    pub slack: f64,
}

impl Bounds<'_> {
    /// The evidence lower bound, in nats: `log N(z; 0, I + Phi Phi^T) - N log s - tau / 2 - log N(r; 0, I + R K'_aa R^T)`, given
    /// the quadratic term of the first.
    pub fn lower(&self, squares: f64) -> f64 {
        self.bound(squares, self.slack)
    }

    fn bound(&self, squares: f64, slack: f64) -> f64 {
        let Whitened { target, past_residual, noise, old_log_evidence, .. } = self.whitened;
        let count = target.len() as f64;
        log_density_of(count + past_residual.len() as f64, self.log_determinant, squares)
            - 0.5 * count * noise.variance.ln()
            - 0.5 * slack
            - old_log_evidence
            + noise.evidence
    }

    /// An upper bound on L* (VIPS paper, section 4.1, in scaled rows): the determinant is that of the approximation, the
    /// quadratic term has noise 1 + tau on the rows of the batch. The rows of the past keep noise 1, since while every old
    /// inducing point stays they are represented exactly; that is tighter than the paper's tau on all rows.
    ///
    /// # Errors
    /// When B is not positive definite to the precision of doubles.
    pub fn upper(&self) -> Result<f64, NotPositiveDefinite> {
        let Whitened { target, past, past_squares, .. } = self.whitened;
        let size = self.features.ncols();
        let weight = 1.0 / (1.0 + self.slack.max(0.0));
        let mut gram = Matrix::identity(size, size);
        linalg::add_outer_gram(gram.as_mut(), weight, self.features.transpose());
        let mut projected = vec![0.0; size];
        if let Some(past) = past {
            let covered = past.projected.len();
            for column in 0..covered {
                (column..covered).for_each(|row| gram[(row, column)] += past.gram[(row, column)]);
            }
            projected[..covered].copy_from_slice(&past.projected);
        }
        linalg::add_matrix_vector(&mut projected, weight, self.features.transpose(), target);
        let root = linalg::cholesky(gram)?;
        linalg::solve_lower_vector(root.as_ref(), &mut projected);
        let squares = weight * squared_norm(target) + past_squares - squared_norm(&projected);
        Ok(self.bound(squares, 0.0))
    }
}
