//! The summary of readings that were dropped.

use super::super::linalg;
use super::super::whitened::prior_trace;
use crate::{Kernel, Matrix, MatrixRef, Model, Past, Posterior};

/// The inducing points Z.
pub(super) struct Inducing<P> {
    pub(super) places: P,
    /// Pairs (new, old) of indices of those that were inducing points before: the same variable, with the same jitter.
    pub(super) shared: Vec<(usize, usize)>,
}

/// The summary of readings that are neither in memory nor in the batch: pseudo-observations `r = R u_old + e` of unit noise.
#[derive(Clone, Debug)]
pub(super) struct Summary<K: Kernel> {
    pub(super) past: Past<K>,
    /// R = T L_b^-1.
    pub(super) root: Matrix,
}

impl<K: Kernel> Summary<K> {
    /// A summary with all of the information in a posterior.
    pub(super) fn new(posterior: Posterior<K>) -> Self {
        let past = posterior.past;
        let root = past.root();
        Self { past, root }
    }

    /// Rows and sums that change with the hyperparameters, on these inducing points.
    pub(super) fn whiten(
        &self,
        model: &Model<K>,
        inducing: &Inducing<K::Places>,
        covariance_root: MatrixRef<'_>,
    ) -> WhitenedSummary {
        let whitened = self.past.whitened_covariance(model, &inducing.places, &inducing.shared, covariance_root);
        let features = &whitened * self.root.transpose();
        let covariance = self.past.covariance(model);
        let slack = prior_trace(&self.root, &covariance) - linalg::squared_frobenius_norm(&features);
        let gram = &features * features.transpose();
        let projected = linalg::matrix_vector(features.as_ref(), &self.past.target);
        WhitenedSummary { features, gram, projected, slack }
    }

    /// r - F g.
    pub(super) fn residual(&self, whitened: &WhitenedSummary, weights: &[f64]) -> Vec<f64> {
        let mut residual = self.past.target.clone();
        linalg::add_matrix_vector(&mut residual, -1.0, whitened.features.transpose(), weights);
        residual
    }

    /// Adds to the gradient what enters through K_z(old), given the gradient in that, and through K_(old)(old)
    /// where the evidence of the summary counts so often.
    pub(super) fn contract(
        &self,
        model: &Model<K>,
        inducing: &Inducing<K::Places>,
        in_cross_covariance: &Matrix,
        count: f64,
        gradient: &mut [f64],
    ) {
        let old = &self.past.inducing;
        model.kernel.contract(&inducing.places, old, in_cross_covariance.as_ref(), gradient);
        let mut in_covariance = self.root.transpose() * &self.root;
        linalg::scale(&mut in_covariance, -0.5 * count);
        let shared = inducing.shared.iter().map(|&(new, old)| (old, in_cross_covariance[(new, old)]));
        model.contract_covariance(old, in_covariance.as_mut(), shared, gradient);
    }
}

/// A summary under some hyperparameters, whitened by the covariance of the inducing points.
pub(super) struct WhitenedSummary {
    /// F^T.
    pub(super) features: Matrix,
    /// F^T F.
    pub(super) gram: Matrix,
    /// F^T r.
    pub(super) projected: Vec<f64>,
    /// tr(R K_(old)(old) R^T) - |F|_F^2.
    pub(super) slack: f64,
}
