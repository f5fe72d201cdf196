//! What Power-EP makes of the noise: see [`inference`](crate::inference).

use crate::linalg::{self, Matrix, NotPositiveDefinite};

/// The noise of the rows of the batch under Power-EP.
pub(super) struct WidenedNoise {
    pub alpha: f64,
    /// t_i.
    pub unexplained: Vec<f64>,
}

impl WidenedNoise {
    /// For the unexplained t_i of each row; below zero they are rounding.
    pub fn new(alpha: f64, unexplained: impl Iterator<Item = f64>) -> Self {
        Self { alpha, unexplained: unexplained.map(|unexplained| unexplained.max(0.0)).collect() }
    }

    /// 1 + alpha t_i: how many times the variance of its noise a row has.
    pub fn factor(&self, row: usize) -> f64 {
        1.0 + self.alpha * self.unexplained[row]
    }

    /// sum_i log(1 + alpha t_i) / alpha
    pub fn slack(&self) -> f64 {
        self.unexplained.iter().map(|unexplained| (self.alpha * unexplained).ln_1p() / self.alpha).sum()
    }
}

/// The rows of the past under Power-EP: scaled so that their noise I + alpha R (K_aa - Q_aa) R^T = L_E L_E^T is unit noise again.
pub(super) struct WidenedPast {
    pub alpha: f64,
    /// L_E^-1 R.
    pub root: Matrix,
    /// L_E^-1 r.
    pub target: Vec<f64>,
    /// log|E| / alpha.
    pub slack: f64,
}

impl WidenedPast {
    /// For R, r and K_aa. Scales the features, R K_ab L_b^-T.
    ///
    /// # Errors
    /// When the noise is not positive definite to the precision of doubles.
    pub fn new(
        alpha: f64,
        root: &Matrix,
        target: &[f64],
        covariance: &Matrix,
        features: &mut Matrix,
    ) -> Result<Self, NotPositiveDefinite> {
        let count = target.len();
        let mut noise = Matrix::identity(count, count);
        let product = root * covariance;
        linalg::add_product(noise.as_mut(), alpha, product.as_ref(), root.transpose());
        linalg::add_outer_gram(noise.as_mut(), -alpha, features.as_ref());
        let noise_root = linalg::cholesky(noise)?;
        linalg::solve_lower(noise_root.as_ref(), features.as_mut());
        let (mut root, mut target) = (root.clone(), target.to_vec());
        linalg::solve_lower(noise_root.as_ref(), root.as_mut());
        linalg::solve_lower_vector(noise_root.as_ref(), &mut target);
        Ok(Self { alpha, root, target, slack: linalg::log_determinant(noise_root.as_ref()) / alpha })
    }
}
