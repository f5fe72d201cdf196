//! How the posterior is approximated: variationally, or by power expectation propagation (Power-EP).
//!
//! Inducing points leave `t_i = u_i (k(x_i, x_i) - q_ii) / s^2` of row i unexplained, in units of the variance of its noise.
//! Variational inference leaves the noise as it is, and its bound pays `t_i / 2`. Power-EP (Bui et al. 2017, "Streaming sparse
//! Gaussian process approximations", section 3.2 and appendix C; the alpha-divergence) takes some of it for noise and pays for
//! the rest:
//!
//! ```text
//!                noise of row i                 the bound pays                      noise of the past    the bound pays
//! variational    s^2 / u_i                      t_i / 2                             I                    tr(C) / 2
//! Power-EP       s^2 / u_i (1 + alpha t_i)      log(1 + alpha t_i) / (2 alpha)      E = I + alpha C      log|E| / (2 alpha)
//! ```
//!
//! with `C = R (K_aa - Q_aa) R^T`, which is zero while all old inducing points stay: eq. 9 and eq. 117 of the paper, whose
//! `(1 - alpha) / (2 alpha)` lacks the half that is in its normal density. As alpha goes to 0 it becomes variational inference; with
//! alpha = 1 it is expectation propagation, for one batch FITC (Snelson and Ghahramani 2006). Only the variational bound is a lower
//! bound on the evidence. For streams the paper advises a small alpha.
//!
//! Under a heavy-tailed likelihood Power-EP treats the rows given their weights, and the weights come from the squares expected
//! under its posterior, as in variational inference; these turns settle, but raise no common bound.

/// A way to approximate the posterior.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Inference {
    /// The approximation closest to the posterior in Kullback-Leibler divergence; its bound is the evidence lower bound.
    #[default]
    Variational,
    /// Power expectation propagation; its bound approximates the log evidence from either side. See [`Inference::power_ep`].
    PowerEp {
        /// Between variational inference and expectation propagation.
        alpha: Alpha,
    },
}

/// The power of Power-EP, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Alpha(f64);

/// A power that Power-EP does not have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("expected an alpha above 0 and at most 1, found {0}")]
pub struct AlphaOutOfRange(f64);

impl Inference {
    /// Power-EP with this power.
    ///
    /// # Errors
    /// When it is not above 0 and at most 1.
    pub fn power_ep(alpha: f64) -> Result<Self, AlphaOutOfRange> {
        if alpha > 0.0 && alpha <= 1.0 {
            Ok(Self::PowerEp { alpha: Alpha(alpha) })
        } else {
            Err(AlphaOutOfRange(alpha))
        }
    }

    /// The power; none where the inference is variational.
    pub(super) fn alpha(self) -> Option<f64> {
        match self {
            Self::Variational => None,
            Self::PowerEp { alpha: Alpha(alpha) } => Some(alpha),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_above_0_and_at_most_1_are_taken() {
        for alpha in [f64::MIN_POSITIVE, 0.5, 1.0] {
            assert_eq!(Inference::power_ep(alpha).unwrap().alpha(), Some(alpha));
        }
        for alpha in [0.0, -0.5, 1.0 + f64::EPSILON, f64::INFINITY, f64::NAN] {
            let message = Inference::power_ep(alpha).unwrap_err().to_string();
            assert_eq!(message, format!("expected an alpha above 0 and at most 1, found {alpha}"));
        }
    }
}
