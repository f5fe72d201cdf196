//! The noise of the past under Power-EP: see [`inference`](crate::inference).

use crate::linalg;
use crate::{Matrix, NotPositiveDefinite};

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
