//! The gradient of the bound.
//!
//! ```text
//! dL/dA    = ( Phi (I - B^-1) + w g^T ) L_b^-1          dL/dz = -w
//! dL/dK_bb = -1/2 L_b^-T ( B - 2 I + B^-1 + g g^T ) L_b^-1
//! dL/dK_aa = -1/2 R^T R        dL/dk(x_i, x_i) = -u_i / (2 s^2)
//! ```
//!
//! contracted with the derivatives of the kernel. The noise enters through the rows of the batch, the slack and -N log s.

use crate::linalg::{self, dot, squared_norm};
use crate::{Jitter, Kernel, Matrix, Model, Places, Rows, Whitened};

impl<K: Kernel> Rows<'_, K> {
    /// The gradient of the bound in the logarithms of the hyperparameters (those of the kernel, then the noise variance), for
    /// the result of [`Rows::whiten`] for the same model.
    pub fn gradient(&self, model: &Model<K>, whitened: &Whitened) -> Vec<f64> {
        self.gradients(model, whitened, None)
    }

    /// [`Rows::gradient`], and the gradient in the coordinates of the inducing points, in the order of [`Places::coordinates`]. The
    /// inducing points of a nested past stay where they are: for them it is 0.
    pub fn gradient_with_inducing(&self, model: &Model<K>, whitened: &Whitened) -> (Vec<f64>, Vec<f64>) {
        let size = self.inducing.len();
        let mut in_inducing = vec![0.0; size * self.inducing.coordinates_per_place()];
        let gradient = self.gradients(model, whitened, Some(&mut in_inducing));
        let fixed = self.past.as_ref().filter(|rows| rows.nested).map_or(0, |rows| rows.past.inducing.len());
        if fixed > 0 {
            in_inducing.chunks_exact_mut(size).for_each(|coordinate| coordinate[..fixed].fill(0.0));
        }
        (gradient, in_inducing)
    }

    /// The gradient in the logarithms of the hyperparameters; that in the coordinates of the inducing points is added to
    /// `in_inducing`.
    fn gradients(&self, model: &Model<K>, whitened: &Whitened, mut in_inducing: Option<&mut Vec<f64>>) -> Vec<f64> {
        let Whitened { noise, coefficients, past_residual, .. } = whitened;
        let (size, count) = (self.inducing.len(), self.targets.len());
        let mut gradient = vec![0.0; model.names().len()];
        let (in_noise, in_kernel) = gradient.split_last_mut().expect("a model has at least the noise");
        let mut inverse = self.workspace.zeros(size, size);
        let mut work = self.workspace.zeros(size, size);
        linalg::invert_from_cholesky(whitened.precision_root.as_ref(), inverse.as_mut(), work.as_mut());
        let squares = noise.squares(|| self.posterior_spread(whitened), &whitened.residual);

        let in_features = self.gradient_in_features(whitened, &squares, &inverse, &mut work);
        model.kernel.contract(&self.inducing, self.places, in_features.as_ref(), in_kernel);
        if let Some(in_inducing) = &mut in_inducing {
            model.kernel.contract_in_places(&self.inducing, self.places, in_features.as_ref(), in_inducing);
        }

        let mut in_covariance = work;
        self.start_gradient_in_covariance(whitened, &squares, &inverse, &mut in_covariance);
        // A nested past adds its dL/dK_ab and dL/dK_aa to dL/dK_bb.
        match (&self.past, &whitened.past) {
            (Some(rows), Some(past)) if rows.nested => {
                past.add_nested_gradient(&inverse, coefficients, past_residual, &mut in_covariance);
            }
            (Some(rows), Some(past)) => {
                let out = &mut in_covariance;
                let in_cross_covariance =
                    rows.contract_moved(model, &self.inducing, whitened, past, &inverse, out, in_kernel);
                if let Some(in_inducing) = &mut in_inducing {
                    let (old, weights) = (&rows.past.inducing, in_cross_covariance.as_ref());
                    model.kernel.contract_in_places(&self.inducing, old, weights, in_inducing);
                }
            }
            _ => {}
        }
        linalg::solve_both_sides(whitened.covariance_root.as_ref(), in_covariance.as_mut());
        if let Some(in_inducing) = &mut in_inducing {
            self.contract_covariance_in_places(model, &in_covariance, in_inducing);
        }
        model.contract_covariance(&self.inducing, in_covariance.as_mut(), std::iter::empty(), in_kernel);

        let in_prior: Vec<f64> = (0..count).map(|row| noise.gradient_in_prior_variance(row, &squares)).collect();
        model.kernel.contract_diagonal(self.places, &in_prior, in_kernel);
        *in_noise = noise
            .gradient_in_log_variance(&squares)
            .unwrap_or_else(|| variational_gradient_in_log_noise(whitened, &inverse))
            + noise.evidence_in_log_variance;
        self.workspace.give_back([inverse, in_covariance, in_features]);
        gradient
    }

    /// dL/dK_bf = L_b^-T ((I - B^-1) Phi_f^T + g w_f^T) / s, given B^-1. `work` is as large as that. Under Power-EP with (1 - alpha c_i)
    /// in the place of I.
    fn gradient_in_features(
        &self,
        whitened: &Whitened,
        squares: &[f64],
        inverse: &Matrix,
        work: &mut Matrix,
    ) -> Matrix {
        let (size, count) = (self.inducing.len(), self.targets.len());
        let Whitened { covariance_root, features, coefficients, residual, noise, .. } = whitened;
        let precision_root = noise.precision_root();
        let add_outer = |result: &mut Matrix, coefficients: &[f64]| {
            for (column, residual) in residual.iter().enumerate() {
                let scaled = residual * precision_root;
                let column = result.col_as_slice_mut(column).iter_mut();
                column.zip(coefficients).for_each(|(entry, coefficient)| *entry += coefficient * scaled);
            }
        };
        // L_b^-T is applied to whichever has fewer columns.
        let mut result = if count < size || noise.is_power_ep() {
            let mut result = self.workspace.copied(features);
            linalg::scale_columns(&mut result, |row| precision_root * (1.0 - noise.widened_share(row, squares)));
            linalg::add_product(result.as_mut(), -precision_root, inverse.as_ref(), features.as_ref());
            add_outer(&mut result, coefficients);
            linalg::solve_lower_transposed(covariance_root.as_ref(), result.as_mut());
            result
        } else {
            let shrunk = work;
            shrunk.copy_from(inverse);
            linalg::scale(shrunk, -1.0);
            (0..size).for_each(|i| shrunk[(i, i)] += 1.0);
            linalg::solve_lower_transposed(covariance_root.as_ref(), shrunk.as_mut());
            let mut result = self.workspace.zeros(size, count);
            linalg::add_product(result.as_mut(), precision_root, shrunk.as_ref(), features.as_ref());
            let mut dual_coefficients = coefficients.clone();
            linalg::solve_lower_transposed_vector(covariance_root.as_ref(), &mut dual_coefficients);
            add_outer(&mut result, &dual_coefficients);
            result
        };
        noise.scale_gradient(&mut result);
        result
    }

    /// W of `dL/dK_bb = L_b^-T W L_b^-1`, its lower triangle: `-1/2 (B - 2 I + B^-1 + g g^T)`, under Power-EP
    /// `+ 1/2 sum_i alpha c_i phi_i phi_i^T`.
    fn start_gradient_in_covariance(&self, whitened: &Whitened, squares: &[f64], inverse: &Matrix, out: &mut Matrix) {
        let Whitened { gram, coefficients, noise, .. } = whitened;
        for column in 0..gram.ncols() {
            let terms = gram.col_as_slice(column)[column..].iter().zip(&inverse.col_as_slice(column)[column..]);
            let out = &mut out.col_as_slice_mut(column)[column..];
            for ((out, (gram, inverse)), coefficient) in out.iter_mut().zip(terms).zip(&coefficients[column..]) {
                *out = -0.5 * (gram + inverse + coefficient * coefficients[column]);
            }
            out[0] += 1.0;
        }
        if noise.is_power_ep() {
            let mut weighted = self.workspace.copied(&whitened.features);
            linalg::scale_columns(&mut weighted, |row| noise.widened_share(row, squares).sqrt());
            linalg::add_outer_gram(out.as_mut(), 0.5, weighted.as_ref());
            self.workspace.give_back([weighted]);
        }
    }

    /// Adds what enters through K_bb, given the lower triangle of dL/dK_bb.
    fn contract_covariance_in_places(&self, model: &Model<K>, in_covariance: &Matrix, in_inducing: &mut [f64]) {
        // Each place is in a row and in a column; k(x, x) is in the jitter too.
        let mut doubled = in_covariance.clone();
        linalg::mirror_lower(doubled.as_mut());
        linalg::scale(&mut doubled, 2.0);
        if let Jitter::Relative(share) = model.jitter {
            (0..self.inducing.len()).for_each(|i| doubled[(i, i)] *= 1.0 + share);
        }
        model.kernel.contract_in_places(&self.inducing, &self.inducing, doubled.as_ref(), in_inducing);
    }
}

/// `dL/dlog s^2` under variational inference. The noise scales the rows of the batch, and `<I - B^-1, Phi_f^T Phi_f>` is what the
/// whole Gram matrix gives less the past.
fn variational_gradient_in_log_noise(whitened: &Whitened, inverse: &Matrix) -> f64 {
    let Whitened { gram, residual, target, .. } = whitened;
    let shrunk_trace = (0..gram.ncols()).map(|i| gram[(i, i)] - 2.0 + inverse[(i, i)]).sum::<f64>();
    let past_in_shrunk = whitened.past.as_ref().map_or(0.0, |past| past.inner_product_with_shrunk(inverse));
    let fitted = dot(target, residual) - squared_norm(residual);
    -0.5 * (shrunk_trace - past_in_shrunk + fitted) + 0.5 * dot(residual, target) + 0.5 * whitened.prior_trace
        - 0.5 * target.len() as f64
}
