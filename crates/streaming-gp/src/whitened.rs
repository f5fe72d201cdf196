//! The streaming model in square-root form: rows, features, bound, gradient (`whitened/gradient.rs`), next state.
//!
//! The past is M_a pseudo-observations with unit noise, `r = R a + e`, of the old inducing values a. A batch of N readings adds
//! its rows, scaled to unit noise too, and all that follows is one regression on P = N + M_a rows:
//!
//! ```text
//! rows        A = [ K_fb / s ; R K_ab ]        z = [ (y - m) / s ; r ]
//! features    L_b L_b^T = K_bb,  Phi = A L_b^-T,  B = I + Phi^T Phi = L_B L_B^T,  g = B^-1 Phi^T z,  w = z - Phi g
//! slack       tau = sum_i k(x_i, x_i) / s^2 + tr(R K_aa R^T) - |Phi|_F^2
//! bound       L = -1/2 (P log 2 pi + log|B| + w^T w + g^T g) - N log s - tau / 2 - log N(r; 0, I + R K'_aa R^T)
//! ```
//!
//! The bound equals the online bound of Bui et al. 2017 (VIPS paper, eq. 8) without the inverse of a difference of
//! nearly equal matrices. Where all old inducing points stay, in order and in front (`nested`), a is a part of b: then
//! `K_ab L_b^-T = [L_aa 0]`, and with R lower triangular the features of the past are a lower triangle.
//!
//! Where rows have [`Weights`] u_i, s^2 / u_i is the variance of the noise of row i: its row of A and z is scaled by sqrt(u_i) / s
//! and its term of the slack by u_i / s^2. The bound has what the weights add beside (see
//! [`likelihood`](super::likelihood)), which does not depend on the hyperparameters. A power below 1 of the likelihood (see
//! [`Targets`]) is a factor of every u_i, and adds what is left out of N log s.
//!
//! Under Power-EP (see [`inference`](super::inference)) row i is scaled by 1 / sqrt(1 + alpha t_i) too, the rows of a past that is
//! not nested by L_E^-1, with `L_E L_E^T = E = I + alpha R (K_aa - Q_aa) R^T`, and `tau = (sum_i log(1 + alpha t_i) + log|E|) / alpha`.
//! All else is the same, but for the gradient: where that of tau enters, it has the factors `1 - alpha c_i` and `I - alpha C_a`, with
//! `c_i = phi_i^T B^-1 phi_i + w_i^2` and `C_a = Phi_a B^-1 Phi_a^T + w_a w_a^T`.

mod bounds;
mod gradient;
mod noise;
mod past;
mod power_ep;

pub(crate) use bounds::Bounds;
pub use past::{Kept, Past};
pub(crate) use past::{missing_permanent, prior_trace};

use super::linalg::{self, Workspace, squared_norm};
use super::normal::log_density_of;
use crate::{Inference, Kernel, Matrix, MatrixRef, Model, NotPositiveDefinite, Places, Targets, Weights};
use noise::RowNoise;
use past::{PastFeatures, PastRows, permanent_indices};

/// Everything that stays the same while hyperparameters are learnt: the batch, the past, and the inducing points for both.
pub struct Rows<'a, K: Kernel> {
    places: &'a K::Places,
    pub(super) targets: &'a [f64],
    /// The weights of the rows of the batch, one per target; none where all count alike.
    pub weights: Option<Weights>,
    power: f64,
    past: Option<PastRows<'a, K>>,
    /// The inducing points.
    pub inducing: K::Places,
    inference: Inference,
    /// Memory that one evaluation leaves for the next.
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

    /// The old inducing points that `kept` names, and `additional` ones, for a batch of `targets` at `places`.
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

    /// Inducing points that need not contain the old ones, but for those that are permanent.
    pub fn moved(
        places: &'a K::Places,
        targets: impl Into<Targets<'a>>,
        past: Option<&'a Past<K>>,
        inducing: K::Places,
    ) -> Self {
        let past = past.map(|past| {
            let shared = permanent_indices(&inducing).zip(permanent_indices(&past.inducing)).collect();
            PastRows::new(past, false, shared)
        });
        Self::new(places, targets.into(), past, inducing)
    }

    fn new(places: &'a K::Places, targets: Targets<'a>, past: Option<PastRows<'a, K>>, inducing: K::Places) -> Self {
        let weights = targets.weights.cloned();
        let (inference, workspace) = (Inference::default(), Workspace::default());
        Self { places, targets: targets.values, weights, power: targets.power, past, inducing, inference, workspace }
    }

    /// The rows with another approximation of the posterior; the default is variational.
    pub fn with_inference(self, inference: Inference) -> Self {
        Self { inference, ..self }
    }

    /// Rows, features and everything that bound, gradient and posterior share.
    ///
    /// # Errors
    /// When a covariance is not positive definite to the precision of doubles, or anything in it is not finite.
    pub fn whiten(&self, model: &Model<K>) -> Result<Whitened, NotPositiveDefinite> {
        let size = self.inducing.len();
        let covariance_root = model.covariance_root(&self.inducing, self.workspace.zeros(size, size))?;
        let BatchRows { features, target, noise, prior_trace } = self.batch_rows(model, covariance_root.as_ref());
        let past = self
            .past
            .as_ref()
            .map(|past| past.whiten(model, &self.inducing, covariance_root.as_ref(), self.inference, &self.workspace))
            .transpose()?;

        let (gram, projected) = self.normal_equations(&features, &target, past.as_ref());
        let precision_root = linalg::cholesky(self.workspace.copied(&gram))?;
        let mut coefficients = projected;
        linalg::solve_from_cholesky(precision_root.as_ref(), &mut coefficients);
        let mut residual = target.clone();
        linalg::add_matrix_vector(&mut residual, -1.0, features.as_ref().transpose(), &coefficients);
        let past_residual = match (&past, &self.past) {
            (Some(features), Some(rows)) => features.residual(rows, &coefficients),
            _ => Vec::new(),
        };

        let slack = noise.slack(prior_trace, &features) + past.as_ref().map_or(0.0, |past| past.slack);
        let whitened = Whitened {
            covariance_root,
            precision_root,
            gram,
            features,
            target,
            coefficients,
            residual,
            past,
            past_residual,
            past_squares: self.past.as_ref().map_or(0.0, |rows| squared_norm(&rows.past.target)),
            prior_trace,
            noise,
            slack,
            old_log_evidence: self.past.as_ref().map_or(0.0, |rows| rows.past.log_evidence),
        };
        if whitened.bound().is_finite() { Ok(whitened) } else { Err(NotPositiveDefinite) }
    }

    /// The rows of the batch, scaled to unit noise: `Phi_f = K_fb L_b^-T / s` and `z_f = (y - m) / s`.
    fn batch_rows(&self, model: &Model<K>, covariance_root: MatrixRef<'_>) -> BatchRows {
        let mut features = self.workspace.zeros(self.inducing.len(), self.places.len());
        model.kernel.add_covariance(&self.inducing, self.places, features.as_mut());
        linalg::solve_lower(covariance_root, features.as_mut());
        let prior_variances = model.kernel.diagonal(self.places);
        let targets = Targets::new(self.targets, self.weights.as_ref()).tempered(self.power);
        let noise = RowNoise::new(model.noise, targets, self.inference, &prior_variances, &features);
        linalg::scale_columns(&mut features, |row| noise.scale(row));
        let centred = self.targets.iter().map(|y| y - model.mean);
        let target = centred.enumerate().map(|(row, y)| y * noise.scale(row)).collect();
        BatchRows { features, target, prior_trace: noise.prior_trace(&prior_variances), noise }
    }

    /// `B = I + Phi^T Phi`, its lower triangle, and `Phi^T z`: sums over the rows of the batch and of the past.
    fn normal_equations(&self, features: &Matrix, target: &[f64], past: Option<&PastFeatures>) -> (Matrix, Vec<f64>) {
        let size = self.inducing.len();
        let mut gram = self.workspace.zeros(size, size);
        (0..size).for_each(|i| gram[(i, i)] = 1.0);
        linalg::add_outer_gram(gram.as_mut(), 1.0, features.as_ref());
        let mut projected = linalg::matrix_vector(features.as_ref(), target);
        if let Some(past) = past {
            let covered = past.projected.len();
            for column in 0..covered {
                let added = &past.gram.col_as_slice(column)[column..];
                let sums = &mut gram.col_as_slice_mut(column)[column..covered];
                sums.iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
            }
            projected.iter_mut().zip(&past.projected).for_each(|(sum, past)| *sum += past);
        }
        (gram, projected)
    }

    /// Takes back what [`Rows::whiten`] made, so that the next evaluation needs no new memory.
    pub fn recycle(&self, whitened: Whitened) {
        let Whitened { covariance_root, precision_root, gram, features, past, .. } = whitened;
        self.workspace.give_back([covariance_root, precision_root, gram, features]);
        self.workspace.give_back(past.into_iter().flat_map(|past| [past.features, past.gram]));
    }

    /// phi_i^T B^-1 phi_i of each row.
    fn posterior_spread(&self, whitened: &Whitened) -> Vec<f64> {
        let mut spread = self.workspace.copied(&whitened.features);
        linalg::solve_lower(whitened.precision_root.as_ref(), spread.as_mut());
        let squares = (0..spread.ncols()).map(|row| squared_norm(spread.col_as_slice(row))).collect();
        self.workspace.give_back([spread]);
        squares
    }

    /// E\[(y - f)^2\] / s^2 of each target under the posterior of batch and past, from the result of [`Rows::whiten`] for the same model.
    pub fn expected_squares(&self, model: &Model<K>, whitened: &Whitened) -> Vec<f64> {
        let Whitened { features, residual, noise, .. } = whitened;
        let spread = self.posterior_spread(whitened);
        let prior_variances = model.kernel.diagonal(self.places);
        let square = |row: usize| {
            let explained = squared_norm(features.col_as_slice(row));
            noise.expected_square(row, residual[row], spread[row], prior_variances[row], explained)
        };
        (0..self.targets.len()).map(square).collect()
    }

    /// The state after the batch, which is the past of the next one: from `[Phi | z] = Q [T t; 0 *]`, `R = T L_b^-1` and `r = t`.
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
            log_evidence(triangle.as_ref(), &target, &whitened.coefficients, whitened.precision_root.as_ref());
        Past { inducing: self.inducing, covariance_root: whitened.covariance_root, triangle, target, log_evidence }
    }
}

/// log N(r; 0, I + T T^T), given g = B^-1 T^T r and the Cholesky factor of B = I + T^T T.
pub(super) fn log_evidence(
    triangle: MatrixRef<'_>,
    target: &[f64],
    coefficients: &[f64],
    precision_root: MatrixRef<'_>,
) -> f64 {
    let mut residual = target.to_vec();
    linalg::add_matrix_vector(&mut residual, -1.0, triangle, coefficients);
    let squares = squared_norm(&residual) + squared_norm(coefficients);
    log_density_of(target.len() as f64, linalg::log_determinant(precision_root), squares)
}

/// The rows of a batch, scaled to unit noise.
struct BatchRows {
    /// Phi_f^T: M x N.
    features: Matrix,
    /// z_f.
    target: Vec<f64>,
    noise: RowNoise,
    /// sum_i u_i k(x_i, x_i) / s^2.
    prior_trace: f64,
}

/// A batch and its past, whitened by the covariance of the inducing points.
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
    pub(super) coefficients: Vec<f64>,
    /// w_f = z_f - Phi_f g.
    residual: Vec<f64>,
    past: Option<PastFeatures>,
    /// w_a = r - Phi_a g.
    past_residual: Vec<f64>,
    /// r^T r.
    pub(super) past_squares: f64,
    /// sum_i u_i k(x_i, x_i) / s^2.
    prior_trace: f64,
    noise: RowNoise,
    /// tau.
    slack: f64,
    /// log N(r; 0, I + R K'_aa R^T).
    old_log_evidence: f64,
}

impl Whitened {
    /// The evidence lower bound of the batch, given the past, in nats; under Power-EP its approximate log evidence.
    pub fn bound(&self) -> f64 {
        let squares =
            squared_norm(&self.residual) + squared_norm(&self.past_residual) + squared_norm(&self.coefficients);
        self.bounds().lower(squares)
    }

    /// The upper bound for a batch, from the results of [`Rows::nested`] and [`Rows::whiten`]; infinite under Power-EP, which has
    /// no known upper bound.
    ///
    /// # Errors
    /// When B is not positive definite to the precision of doubles.
    pub fn upper_bound(&self) -> Result<f64, NotPositiveDefinite> {
        if self.noise.is_power_ep() { Ok(f64::INFINITY) } else { self.bounds().upper() }
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds {
            whitened: self,
            features: self.features.transpose(),
            log_determinant: linalg::log_determinant(self.precision_root.as_ref()),
            slack: self.slack,
        }
    }
}
