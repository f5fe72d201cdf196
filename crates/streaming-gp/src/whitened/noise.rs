//! The noise of the rows of a batch: what it scales them by, and its part of slack and gradient.

use crate::linalg::{self, squared_norm};
use crate::{Inference, Matrix, Targets};

/// The noise of the rows of a batch: row i has the variance `s^2 / u_i`, with u_i its weight times the power of the likelihood (see
/// [`Targets`]), and under Power-EP `s^2 / u_i (1 + alpha t_i)`; see [`inference`](crate::inference).
pub(super) struct RowNoise {
    /// s^2.
    pub variance: f64,
    /// u_i; none where all of them are 1.
    precisions: Option<Vec<f64>>,
    /// The part of the bound that weights and power add, in nats.
    pub evidence: f64,
    /// Derivative of that part in log s^2.
    pub evidence_in_log_variance: f64,
    /// Under Power-EP.
    widening: Option<Widening>,
}

/// The factors by which Power-EP widens the noise of the rows.
struct Widening {
    alpha: f64,
    /// t_i.
    unexplained: Vec<f64>,
}

impl RowNoise {
    /// The noise of rows with the features L_b^-1 K_bf, one column per row of the batch, not yet scaled.
    pub fn new(
        variance: f64,
        targets: Targets<'_>,
        inference: Inference,
        prior_variances: &[f64],
        features: &Matrix,
    ) -> Self {
        let widening = inference.alpha().map(|alpha| {
            let unexplained = |row: usize| {
                let left = prior_variances[row] - squared_norm(features.col_as_slice(row));
                // Below zero it is rounding.
                (targets.precision(row) * left / variance).max(0.0)
            };
            Widening { alpha, unexplained: (0..prior_variances.len()).map(unexplained).collect() }
        });
        let count = targets.values.len();
        let is_plain = targets.weights.is_none() && targets.power == 1.0;
        let precisions = (!is_plain).then(|| (0..count).map(|row| targets.precision(row)).collect());
        let evidence_in_log_variance = 0.5 * (count as f64 - targets.effective_count());
        Self { variance, precisions, evidence: targets.evidence(variance), evidence_in_log_variance, widening }
    }

    /// Whether it is that of Power-EP.
    pub fn is_power_ep(&self) -> bool {
        self.widening.is_some()
    }

    /// 1 / s.
    pub fn precision_root(&self) -> f64 {
        1.0 / self.variance.sqrt()
    }

    /// u_i.
    fn weight(&self, row: usize) -> f64 {
        self.precisions.as_ref().map_or(1.0, |precisions| precisions[row])
    }

    /// 1 + alpha t_i; 1 under variational inference.
    fn factor(&self, row: usize) -> f64 {
        self.widening.as_ref().map_or(1.0, |widening| 1.0 + widening.alpha * widening.unexplained[row])
    }

    /// Factor that scales row i to unit noise: `sqrt(u_i / (1 + alpha t_i)) / s`.
    pub fn scale(&self, row: usize) -> f64 {
        self.precision_root() * (self.weight(row) / self.factor(row)).sqrt()
    }

    /// `sum_i u_i k(x_i, x_i) / s^2`
    pub fn prior_trace(&self, prior_variances: &[f64]) -> f64 {
        let weighted = prior_variances.iter().enumerate().map(|(row, variance)| self.weight(row) * variance);
        weighted.sum::<f64>() / self.variance
    }

    /// tau of the rows, given their scaled features: `sum_i u_i k(x_i, x_i) / s^2 - |Phi_f|_F^2`, under Power-EP
    /// `sum_i log(1 + alpha t_i) / alpha`.
    pub fn slack(&self, prior_trace: f64, features: &Matrix) -> f64 {
        match &self.widening {
            None => prior_trace - linalg::squared_frobenius_norm(features),
            Some(Widening { alpha, unexplained }) => unexplained.iter().map(|t| (alpha * t).ln_1p() / alpha).sum(),
        }
    }

    /// `c_i = phi_i^T B^-1 phi_i + w_i^2` of each row, where the gradient needs it: under Power-EP. `spread` gives the first of these.
    pub fn squares(&self, spread: impl FnOnce() -> Vec<f64>, residual: &[f64]) -> Vec<f64> {
        match self.is_power_ep() {
            true => spread().iter().zip(residual).map(|(spread, residual)| spread + residual * residual).collect(),
            false => Vec::new(),
        }
    }

    /// alpha c_i; 0 under variational inference.
    pub fn widened_share(&self, row: usize, squares: &[f64]) -> f64 {
        self.widening.as_ref().map_or(0.0, |widening| widening.alpha * squares[row])
    }

    /// Scales column i by `sqrt(u_i / (1 + alpha t_i))`: what [`RowNoise::scale`] is beside 1 / s.
    pub fn scale_gradient(&self, gradient: &mut Matrix) {
        if self.precisions.is_some() {
            linalg::scale_columns(gradient, |row| self.weight(row).sqrt());
        }
        if self.is_power_ep() {
            linalg::scale_columns(gradient, |row| 1.0 / self.factor(row).sqrt());
        }
    }

    /// `dL/dk(x_i, x_i) = -u_i / (2 s^2)`, under Power-EP `(1 - alpha c_i) / (1 + alpha t_i)` of that.
    pub fn gradient_in_prior_variance(&self, row: usize, squares: &[f64]) -> f64 {
        -0.5 / self.variance * self.weight(row) * ((1.0 - self.widened_share(row, squares)) / self.factor(row))
    }

    /// `dL/dlog s^2` under Power-EP: `sum_i (c_i + t_i) / (1 + alpha t_i) / 2 - N / 2`.
    pub fn gradient_in_log_variance(&self, squares: &[f64]) -> Option<f64> {
        let Widening { unexplained, .. } = self.widening.as_ref()?;
        let of_row = |row: usize| (squares[row] + unexplained[row]) / self.factor(row);
        Some(0.5 * (0..squares.len()).map(of_row).sum::<f64>() - 0.5 * squares.len() as f64)
    }

    /// `E[(y_i - f(x_i))^2] / s^2`, given w_i, `phi_i^T B^-1 phi_i`, k(x_i, x_i) and |phi_i|^2.
    pub fn expected_square(&self, row: usize, residual: f64, spread: f64, prior_variance: f64, explained: f64) -> f64 {
        let scaled = match &self.widening {
            None => {
                let unexplained = self.weight(row) * prior_variance / self.variance - explained;
                residual * residual + unexplained.max(0.0) + spread
            }
            Some(widening) => self.factor(row) * (residual * residual + spread) + widening.unexplained[row],
        };
        scaled / self.weight(row)
    }
}
