//! The streaming model in square-root form: rows, features, bound, gradient, next state.
//!
//! The past is M_a pseudo-observations with unit noise, `r = R a + e`, of the old inducing values a. A batch of N readings adds
//! its rows, scaled to unit noise too, and all that follows is one regression on P = N + M_a rows:
//!
//! ```text
//! rows        A = [ K_fb / s ; R K_ab ]        z = [ (y - m) / s ; r ]
//! features    L_b L_b^T = K_bb,  Phi = A L_b^-T,  B = I + Phi^T Phi = L_B L_B^T,  g = B^-1 Phi^T z,  w = z - Phi g
//! slack       tau = sum_i k(x_i, x_i) / s^2 + tr(R K_aa R^T) - |Phi|_F^2
//! bound       -1/2 (P log 2 pi + log|B| + w^T w + g^T g) - N log s - tau / 2 - log N(r; 0, I + R K'_aa R^T)
//! ```
//!
//! It equals the online bound of Bui et al. 2017 (VIPS paper, eq. 8) without the inverse of a difference of nearly equal
//! matrices. Where all old inducing points stay, in order and in front (`nested`), a is a part of b: then
//! `K_ab L_b^-T = [L_aa 0]`, and with R lower triangular the features of the past are a lower triangle.
//!
//! Where rows have [`Weights`] u_i, s^2 / u_i is the variance of the noise of row i: its row of A and z is scaled by sqrt(u_i) / s
//! and its term of the slack by u_i / s^2. The bound has what the weights add beside (see
//! [`likelihood`](super::likelihood)), which does not depend on the hyperparameters.
//!
//! Under Power-EP (see [`inference`](super::inference)) row i is scaled by 1 / sqrt(1 + alpha t_i) too, the rows of a past that is
//! not nested by L_E^-1, with `L_E L_E^T = E = I + alpha R (K_aa - Q_aa) R^T`, and `tau = (sum_i log(1 + alpha t_i) + log|E|) / alpha`.
//! All else is as it was, but for the gradient: where that of tau enters, it has the factors `1 - alpha c_i` and `I - alpha C_a`, with
//! `c_i = phi_i^T B^-1 phi_i + w_i^2` and `C_a = Phi_a B^-1 Phi_a^T + w_a w_a^T`.

mod past;
mod power_ep;

pub use past::{Kept, Past};

use super::inference::Inference;
use super::kernel::{Kernel, Places};
use super::likelihood::Weights;
use super::linalg::{self, Matrix, MatrixRef, NotPositiveDefinite, Workspace, dot, squared_norm};
use super::model::{Jitter, Model};
use super::normal::LOG_2_PI;
use super::targets::Targets;
use super::upper_bound::UpperBoundTerms;
use past::{PastFeatures, PastRows};
use power_ep::WidenedNoise;

/// What stays the same while hyperparameters are learnt: the batch, the past, and the inducing points for both.
pub struct Rows<'a, K: Kernel> {
    places: &'a K::Places,
    targets: &'a [f64],
    weights: Option<Weights>,
    past: Option<PastRows<'a, K>>,
    inducing: K::Places,
    inference: Inference,
    /// What one evaluation leaves for the next.
    workspace: Workspace,
}

impl<'a, K: Kernel> Rows<'a, K> {
    /// The old inducing points and `additional` ones for a batch of `targets` at `places`.
    pub fn nested(
        places: &'a K::Places,
        targets: impl Into<Targets<'a>>,
        past: Option<&'a Past<K>>,
        additional: &K::Places,
    ) -> Self {
        let inducing = past.map_or_else(|| additional.clone(), |past| past.inducing.followed_by(additional));
        Self::new(places, targets.into(), past.map(|past| PastRows::new(past, true, Vec::new())), inducing)
    }

    /// Those of the old inducing points that `kept` says, and `additional` ones.
    pub fn chosen(
        places: &'a K::Places,
        targets: impl Into<Targets<'a>>,
        past: Option<&'a Past<K>>,
        kept: &Kept,
        additional: &K::Places,
    ) -> Self {
        match (past, kept) {
            (Some(past), Kept::Only(kept)) => {
                let inducing = past.inducing.select(kept.iter().copied()).followed_by(additional);
                let shared = kept.iter().copied().enumerate().collect();
                Self::new(places, targets.into(), Some(PastRows::new(past, false, shared)), inducing)
            }
            _ => Self::nested(places, targets, past, additional),
        }
    }

    /// Inducing points that need not contain the old ones.
    pub fn moved(
        places: &'a K::Places,
        targets: impl Into<Targets<'a>>,
        past: Option<&'a Past<K>>,
        inducing: K::Places,
    ) -> Self {
        Self::new(places, targets.into(), past.map(|past| PastRows::new(past, false, Vec::new())), inducing)
    }

    /// No batch, and only some of the old inducing points: those with the indices `kept`. `nothing` is an empty collection.
    pub(super) fn reduced(nothing: &'a K::Places, past: &'a Past<K>, kept: &[usize]) -> Self {
        Self::chosen(nothing, &[], Some(past), &Kept::Only(kept.to_vec()), nothing)
    }

    fn new(places: &'a K::Places, targets: Targets<'a>, past: Option<PastRows<'a, K>>, inducing: K::Places) -> Self {
        let weights = targets.weights().cloned();
        let (inference, workspace) = (Inference::default(), Workspace::default());
        Self { places, targets: targets.values(), weights, past, inducing, inference, workspace }
    }

    /// The same rows with another approximation of the posterior; the default is variational.
    pub fn with_inference(self, inference: Inference) -> Self {
        Self { inference, ..self }
    }

    /// The targets of the batch.
    pub(super) fn targets(&self) -> &[f64] {
        self.targets
    }

    /// The weights of the rows of the batch; none where all count alike.
    pub fn weights(&self) -> Option<&Weights> {
        self.weights.as_ref()
    }

    /// The weights, when nothing else is needed any more.
    pub(super) fn into_weights(self) -> Option<Weights> {
        self.weights
    }

    /// Goes on with other weights.
    ///
    /// # Panics
    /// When there is another number of weights than of targets.
    pub fn set_weights(&mut self, weights: Weights) {
        assert_eq!(weights.values().len(), self.targets.len(), "one weight per target");
        self.weights = Some(weights);
    }

    /// The weight of a row; 1 where all count alike.
    fn weight(&self, row: usize) -> f64 {
        self.weights.as_ref().map_or(1.0, |weights| weights.values()[row])
    }

    /// The inducing points.
    pub fn inducing(&self) -> &K::Places {
        &self.inducing
    }

    /// Goes on with inducing points elsewhere: as many, and those of a nested past where they were.
    pub(super) fn set_inducing(&mut self, inducing: K::Places) {
        self.inducing = inducing;
    }

    /// Rows, features and everything that bound, gradient and posterior share.
    ///
    /// # Errors
    /// When a covariance is not positive definite to the precision of doubles, or anything in it is not finite.
    pub fn whiten(&self, model: &Model<K>) -> Result<Whitened, NotPositiveDefinite> {
        let size = self.inducing.len();
        let mut covariance = self.workspace.zeros(size, size);
        model.kernel.add_lower_covariance(&self.inducing, covariance.as_mut());
        model.add_jitter(&self.inducing, covariance.as_mut());
        let covariance_root = linalg::cholesky(covariance)?;

        let mut features = self.workspace.zeros(size, self.places.len());
        model.kernel.add_covariance(&self.inducing, self.places, features.as_mut());
        linalg::solve_lower(covariance_root.as_ref(), features.as_mut());
        let prior_variances = model.kernel.diagonal(self.places);
        let widened = self.inference.alpha().map(|alpha| {
            let left = |row: usize| prior_variances[row] - squared_norm(features.col_as_slice(row));
            WidenedNoise::new(alpha, (0..self.places.len()).map(|row| self.weight(row) * left(row) / model.noise))
        });
        let precision = 1.0 / model.noise.sqrt();
        let precision_of =
            |row| precision * (self.weight(row) / widened.as_ref().map_or(1.0, |noise| noise.factor(row))).sqrt();
        linalg::scale_columns(&mut features, precision_of);
        let centred = self.targets.iter().map(|y| y - model.mean);
        let target: Vec<f64> = centred.enumerate().map(|(row, y)| y * precision_of(row)).collect();
        let weighted = prior_variances.iter().enumerate().map(|(row, variance)| self.weight(row) * variance);
        let prior_trace = weighted.sum::<f64>() / model.noise;

        let mut gram = self.workspace.zeros(size, size);
        (0..size).for_each(|i| gram[(i, i)] = 1.0);
        linalg::add_outer_gram(gram.as_mut(), 1.0, features.as_ref());
        let mut projected = vec![0.0; size];
        linalg::add_matrix_vector(&mut projected, 1.0, features.as_ref(), &target);
        let past = self
            .past
            .as_ref()
            .map(|past| past.whiten(model, &self.inducing, covariance_root.as_ref(), self.inference, &self.workspace))
            .transpose()?;
        if let Some(past) = &past {
            let covered = past.projected.len();
            for column in 0..covered {
                let added = &past.gram.col_as_slice(column)[column..];
                let sums = &mut gram.col_as_slice_mut(column)[column..covered];
                sums.iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
            }
            projected.iter_mut().zip(&past.projected).for_each(|(sum, past)| *sum += past);
        }

        let mut precision_root = self.workspace.zeros(size, size);
        precision_root.copy_from(&gram);
        let precision_root = linalg::cholesky(precision_root)?;
        let mut weights = projected;
        linalg::solve_lower_vector(precision_root.as_ref(), &mut weights);
        linalg::solve_lower_transposed_vector(precision_root.as_ref(), &mut weights);
        let mut residual = target.clone();
        linalg::add_matrix_vector(&mut residual, -1.0, features.as_ref().transpose(), &weights);
        let past_residual = match (&past, &self.past) {
            (Some(features), Some(rows)) => {
                let mut residual = features.target(rows).to_vec();
                let covered = features.features.ncols();
                linalg::add_matrix_vector(&mut residual, -1.0, features.features.as_ref(), &weights[..covered]);
                residual
            }
            _ => Vec::new(),
        };

        let slack = widened
            .as_ref()
            .map_or_else(|| prior_trace - linalg::squared_frobenius_norm(&features), WidenedNoise::slack)
            + past.as_ref().map_or(0.0, |past| past.slack);
        let whitened = Whitened {
            covariance_root,
            precision_root,
            gram,
            features,
            target,
            weights,
            residual,
            past,
            past_residual,
            past_squares: self.past.as_ref().map_or(0.0, |rows| squared_norm(&rows.past.target)),
            prior_trace,
            widened,
            slack,
            log_noise: model.noise.ln(),
            old_log_evidence: self.past.as_ref().map_or(0.0, |rows| rows.past.log_evidence),
            weights_evidence: self.weights.as_ref().map_or(0.0, Weights::evidence),
        };
        if whitened.bound().is_finite() { Ok(whitened) } else { Err(NotPositiveDefinite) }
    }

    /// Takes back what [`Rows::whiten`] made, so that the next evaluation needs no new memory.
    pub fn recycle(&self, whitened: Whitened) {
        let Whitened { covariance_root, precision_root, gram, features, past, .. } = whitened;
        self.workspace.give_back([covariance_root, precision_root, gram, features]);
        self.workspace.give_back(past.into_iter().flat_map(|past| [past.features, past.gram]));
    }

    /// c_i = phi_i^T B^-1 phi_i + w_i^2, where the inference asks for it: under Power-EP.
    fn spread_under_power_ep(&self, whitened: &Whitened) -> Vec<f64> {
        if whitened.widened.is_none() {
            return Vec::new();
        }
        let spread = self.posterior_spread(whitened);
        spread.iter().zip(&whitened.residual).map(|(spread, residual)| spread + residual * residual).collect()
    }

    /// phi_i^T B^-1 phi_i
    fn posterior_spread(&self, whitened: &Whitened) -> Vec<f64> {
        let features = &whitened.features;
        let mut spread = self.workspace.zeros(features.nrows(), features.ncols());
        spread.copy_from(features);
        linalg::solve_lower(whitened.precision_root.as_ref(), spread.as_mut());
        let squares = (0..features.ncols()).map(|row| squared_norm(spread.col_as_slice(row))).collect();
        self.workspace.give_back([spread]);
        squares
    }

    /// The gradient of the bound in the logarithms of the hyperparameters (those of the kernel, then the noise variance), for
    /// what [`Rows::whiten`] made of the same model.
    pub fn gradient(&self, model: &Model<K>, whitened: &Whitened) -> Vec<f64> {
        self.gradients(model, whitened, None)
    }

    /// [`Rows::gradient`], and the gradient in the coordinates of the inducing points, in the order of [`Places::coordinates`]. Those of
    /// a nested past stay where they are: for them it is 0.
    pub fn gradient_with_inducing(&self, model: &Model<K>, whitened: &Whitened) -> (Vec<f64>, Vec<f64>) {
        let size = self.inducing.len();
        let mut in_inducing = vec![0.0; size * self.inducing.coordinates_per_place()];
        let gradient = self.gradients(model, whitened, Some(&mut in_inducing));
        let fixed = self.past.as_ref().filter(|rows| rows.nested).map_or(0, |rows| rows.past.len());
        if fixed > 0 {
            in_inducing.chunks_exact_mut(size).for_each(|coordinate| coordinate[..fixed].fill(0.0));
        }
        (gradient, in_inducing)
    }

    /// The gradient in the logarithms of the hyperparameters; that in the coordinates of the inducing points is added to
    /// `in_inducing`.
    fn gradients(&self, model: &Model<K>, whitened: &Whitened, mut in_inducing: Option<&mut Vec<f64>>) -> Vec<f64> {
        let size = self.inducing.len();
        let count = self.targets.len();
        let Whitened { covariance_root, gram, weights, residual, target, .. } = whitened;
        let mut gradient = vec![0.0; model.names().len()];
        let (noise_entry, kernel_gradient) = gradient.split_last_mut().expect("a model has at least the noise");

        let mut inverse = self.workspace.zeros(size, size);
        let mut work = self.workspace.zeros(size, size);
        linalg::invert_from_cholesky(whitened.precision_root.as_ref(), inverse.as_mut(), work.as_mut());
        let shrunk_trace = (0..size).map(|i| gram[(i, i)] - 2.0 + inverse[(i, i)]).sum::<f64>();

        let spread = self.spread_under_power_ep(whitened);
        let of_features = self.gradient_in_features(model, whitened, &spread, &inverse, &mut work);
        model.kernel.contract(&self.inducing, self.places, of_features.as_ref(), kernel_gradient);
        if let Some(in_inducing) = &mut in_inducing {
            model.kernel.contract_in_places(&self.inducing, self.places, of_features.as_ref(), in_inducing);
        }

        // dL/dK_bb = L_b^-T W L_b^-1, to which a nested past adds its dL/dK_ab and dL/dK_aa.
        let mut whitened_weights = work;
        for column in 0..size {
            let terms = gram.col_as_slice(column)[column..].iter().zip(&inverse.col_as_slice(column)[column..]);
            let out = &mut whitened_weights.col_as_slice_mut(column)[column..];
            for ((out, (gram, inverse)), weight) in out.iter_mut().zip(terms).zip(&weights[column..]) {
                *out = -0.5 * (gram + inverse + weight * weights[column]);
            }
            out[0] += 1.0;
        }
        if let Some(noise) = &whitened.widened {
            let mut weighted = self.workspace.zeros(size, count);
            weighted.copy_from(&whitened.features);
            linalg::scale_columns(&mut weighted, |row| (noise.alpha * spread[row]).sqrt());
            linalg::add_outer_gram(whitened_weights.as_mut(), 0.5, weighted.as_ref());
            self.workspace.give_back([weighted]);
        }
        let mut past_in_shrunk = 0.0;
        if let (Some(rows), Some(past)) = (&self.past, &whitened.past) {
            past_in_shrunk = past.inner_product_with_shrunk(&inverse);
            if rows.nested {
                past.add_nested_gradient(&inverse, weights, &whitened.past_residual, &mut whitened_weights);
            } else {
                let out = &mut whitened_weights;
                let of_cross_covariance =
                    rows.contract_moved(model, &self.inducing, whitened, past, &inverse, out, kernel_gradient);
                if let Some(in_inducing) = &mut in_inducing {
                    let (old, weights) = (&rows.past.inducing, of_cross_covariance.as_ref());
                    model.kernel.contract_in_places(&self.inducing, old, weights, in_inducing);
                }
            }
        }
        linalg::solve_both_sides(covariance_root.as_ref(), whitened_weights.as_mut());
        let mut diagonal: Vec<f64> = (0..size).map(|i| whitened_weights[(i, i)]).collect();
        if let Some(in_inducing) = &mut in_inducing {
            // Each place is in a row and in a column; k(x, x) is in the jitter too.
            let mut doubled = whitened_weights.clone();
            linalg::mirror_lower(doubled.as_mut());
            linalg::scale(&mut doubled, 2.0);
            if let Jitter::Relative(share) = model.jitter {
                (0..size).for_each(|i| doubled[(i, i)] *= 1.0 + share);
            }
            model.kernel.contract_in_places(&self.inducing, &self.inducing, doubled.as_ref(), in_inducing);
        }
        model.kernel.contract_symmetric(&self.inducing, whitened_weights.as_mut(), kernel_gradient);
        model.contract_jitter(&self.inducing, &mut diagonal, kernel_gradient);
        self.workspace.give_back([inverse, whitened_weights, of_features]);

        // dL/dk(x_i, x_i)
        let mut of_diagonal: Vec<f64> = (0..count).map(|row| -0.5 / model.noise * self.weight(row)).collect();
        if let Some(noise) = &whitened.widened {
            let entries = of_diagonal.iter_mut().enumerate();
            entries.for_each(|(row, entry)| *entry *= (1.0 - noise.alpha * spread[row]) / noise.factor(row));
        }
        model.kernel.contract_diagonal(self.places, &of_diagonal, kernel_gradient);

        if let Some(noise) = &whitened.widened {
            let of_row = |row: usize| (spread[row] + noise.unexplained[row]) / noise.factor(row);
            *noise_entry = 0.5 * (0..count).map(of_row).sum::<f64>() - 0.5 * count as f64;
            return gradient;
        }
        // The noise scales the rows of the batch: <I - B^-1, Phi_f^T Phi_f> is what the whole Gram matrix gives less the past.
        let fitted = dot(target, residual) - squared_norm(residual);
        *noise_entry =
            -0.5 * (shrunk_trace - past_in_shrunk + fitted) + 0.5 * dot(residual, target) + 0.5 * whitened.prior_trace
                - 0.5 * count as f64;
        gradient
    }

    /// dL/dK_bf = L_b^-T ((I - B^-1) Phi_f^T + g w_f^T) / s, given B^-1. `work` is as large as that. Under Power-EP with (1 - alpha c_i)
    /// in the place of I, given c_i, the `spread`.
    fn gradient_in_features(
        &self,
        model: &Model<K>,
        whitened: &Whitened,
        spread: &[f64],
        inverse: &Matrix,
        work: &mut Matrix,
    ) -> Matrix {
        let (size, count) = (self.inducing.len(), self.targets.len());
        let Whitened { covariance_root, features, weights, residual, .. } = whitened;
        let precision = 1.0 / model.noise.sqrt();
        let add_outer = |result: &mut Matrix, weights: &[f64]| {
            for (column, residual) in residual.iter().enumerate() {
                let scaled = residual * precision;
                let column = result.col_as_slice_mut(column).iter_mut();
                column.zip(weights).for_each(|(entry, weight)| *entry += weight * scaled);
            }
        };
        // L_b^-T is applied to whichever has fewer columns.
        let mut result = if count < size || whitened.widened.is_some() {
            let mut result = self.workspace.zeros(size, count);
            result.copy_from(features);
            match &whitened.widened {
                None => linalg::scale(&mut result, precision),
                Some(noise) => linalg::scale_columns(&mut result, |row| precision * (1.0 - noise.alpha * spread[row])),
            }
            linalg::add_product(result.as_mut(), -precision, inverse.as_ref(), features.as_ref());
            add_outer(&mut result, weights);
            linalg::solve_lower_transposed(covariance_root.as_ref(), result.as_mut());
            result
        } else {
            let shrunk = work;
            shrunk.copy_from(inverse);
            linalg::scale(shrunk, -1.0);
            (0..size).for_each(|i| shrunk[(i, i)] += 1.0);
            linalg::solve_lower_transposed(covariance_root.as_ref(), shrunk.as_mut());
            let mut result = self.workspace.zeros(size, count);
            linalg::add_product(result.as_mut(), precision, shrunk.as_ref(), features.as_ref());
            let mut dual_weights = weights.clone();
            linalg::solve_lower_transposed_vector(covariance_root.as_ref(), &mut dual_weights);
            add_outer(&mut result, &dual_weights);
            result
        };
        if let Some(weights) = &self.weights {
            linalg::scale_columns(&mut result, |row| weights.values()[row].sqrt());
        }
        if let Some(noise) = &whitened.widened {
            linalg::scale_columns(&mut result, |row| 1.0 / noise.factor(row).sqrt());
        }
        result
    }

    /// E\[(y - f)^2\] / s^2 of each target under the posterior of batch and past, for what [`Rows::whiten`] made of the same model.
    pub fn expected_squares(&self, model: &Model<K>, whitened: &Whitened) -> Vec<f64> {
        let Whitened { features, residual, widened, .. } = whitened;
        let spread = self.posterior_spread(whitened);
        let prior_variances = model.kernel.diagonal(self.places);
        let scaled = |row: usize| match widened {
            None => {
                let unexplained =
                    self.weight(row) * prior_variances[row] / model.noise - squared_norm(features.col_as_slice(row));
                residual[row] * residual[row] + unexplained.max(0.0) + spread[row]
            }
            Some(noise) => noise.factor(row) * (residual[row] * residual[row] + spread[row]) + noise.unexplained[row],
        };
        (0..self.targets.len()).map(|row| scaled(row) / self.weight(row)).collect()
    }

    /// The state after the batch: the past of the next one.
    pub fn into_past(self, whitened: Whitened) -> Past<K> {
        let count = whitened.target.len();
        let size = self.inducing.len();
        let past_count = whitened.past.as_ref().map_or(0, |past| past.features.nrows());
        let mut features = linalg::zeros(count + past_count, size);
        features.as_mut().subrows_mut(0, count).copy_from(whitened.features.transpose());
        let mut target = whitened.target;
        if let (Some(rows), Some(past)) = (&self.past, &whitened.past) {
            let covered = past.features.ncols();
            features.as_mut().submatrix_mut(count, 0, past_count, covered).copy_from(&past.features);
            target.extend_from_slice(past.target(rows));
        }
        let linalg::Triangularized { triangle, target } = linalg::triangularize(features.as_ref(), &target);
        let log_evidence =
            log_evidence(triangle.as_ref(), &target, &whitened.weights, whitened.precision_root.as_ref());
        Past { inducing: self.inducing, covariance_root: whitened.covariance_root, triangle, target, log_evidence }
    }
}

/// log N(r; 0, I + T T^T), given g = B^-1 T^T r and the Cholesky factor of B = I + T^T T.
fn log_evidence(triangle: MatrixRef<'_>, target: &[f64], weights: &[f64], precision_root: MatrixRef<'_>) -> f64 {
    let mut residual = target.to_vec();
    linalg::add_matrix_vector(&mut residual, -1.0, triangle, weights);
    let squares = squared_norm(&residual) + squared_norm(weights);
    -0.5 * (target.len() as f64 * LOG_2_PI + linalg::log_determinant(precision_root) + squares)
}

/// One batch and its past, whitened by the covariance of the inducing points.
pub struct Whitened {
    /// L_b.
    pub(super) covariance_root: Matrix,
    /// L_B.
    pub(super) precision_root: Matrix,
    /// B, lower triangle.
    gram: Matrix,
    /// Phi_f^T: M x N.
    pub(super) features: Matrix,
    /// z_f.
    pub(super) target: Vec<f64>,
    /// g = B^-1 Phi^T z.
    pub(super) weights: Vec<f64>,
    /// w_f = z_f - Phi_f g.
    residual: Vec<f64>,
    past: Option<PastFeatures>,
    /// w_a = r - Phi_a g.
    past_residual: Vec<f64>,
    /// r^T r.
    past_squares: f64,
    /// sum_i k(x_i, x_i) / s^2.
    prior_trace: f64,
    /// Under Power-EP.
    widened: Option<WidenedNoise>,
    /// tau.
    slack: f64,
    log_noise: f64,
    old_log_evidence: f64,
    weights_evidence: f64,
}

impl Whitened {
    /// The evidence lower bound of the batch, given the past, in nats; under Power-EP its approximate log evidence.
    pub fn bound(&self) -> f64 {
        let count = self.target.len() as f64;
        let rows = count + self.past_residual.len() as f64;
        let squares = squared_norm(&self.residual) + squared_norm(&self.past_residual) + squared_norm(&self.weights);
        -0.5 * (rows * LOG_2_PI + linalg::log_determinant(self.precision_root.as_ref()) + squares)
            - 0.5 * count * self.log_noise
            - 0.5 * self.slack
            - self.old_log_evidence
            + self.weights_evidence
    }

    /// Whether the noise of the rows is that of Power-EP.
    pub(super) fn is_power_ep(&self) -> bool {
        self.widened.is_some()
    }

    /// What the upper bound of these inducing points is made of; variational inference only.
    pub(super) fn upper_bound_terms(&self) -> UpperBoundTerms<'_> {
        let (past_gram, past_projected) = match &self.past {
            Some(past) => (past.gram.as_ref(), past.projected.as_slice()),
            None => (self.gram.as_ref().submatrix(0, 0, 0, 0), [].as_slice()),
        };
        UpperBoundTerms {
            features: self.features.transpose(),
            target: &self.target,
            past_gram,
            past_projected,
            past_squares: self.past_squares,
            past_rows: self.past_residual.len(),
            log_determinant: linalg::log_determinant(self.precision_root.as_ref()),
            slack: self.slack,
            log_noise: self.log_noise,
            old_log_evidence: self.old_log_evidence,
            weights_evidence: self.weights_evidence,
        }
    }
}
