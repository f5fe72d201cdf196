//! The posterior of the inducing variables, as the papers state it.

use streaming_gp::{Kernel, Matrix, Places, Posterior, linalg};

/// Mean and covariance of the inducing variables, jitter included: the q(b) of the papers.
pub fn inducing_distribution<K: Kernel>(posterior: &Posterior<K>) -> (Vec<f64>, Matrix) {
    let root = &posterior.past.covariance_root;
    let mut mean = vec![posterior.model.mean; posterior.past.inducing.len()];
    linalg::add_matrix_vector(&mut mean, 1.0, root.as_ref(), &posterior.weights);
    let mut scaled = linalg::copied(root.transpose());
    linalg::solve_lower(posterior.precision_root.as_ref(), scaled.as_mut());
    let covariance = linalg::product(scaled.transpose(), scaled.as_ref());
    (mean, covariance)
}
