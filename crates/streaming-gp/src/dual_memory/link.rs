//! Probabilities that depend on the latent function.

use super::cumulative::cumulative;
use super::quadrature;

/// How the probability of a 1 depends on the latent function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// The cumulative distribution of the standard normal, Phi(f).
    #[default]
    Probit,
    /// The logistic function, 1 / (1 + exp(-f)).
    Logit,
}

impl Link {
    /// The predicted probability of a 1 where f is normal with this mean and variance: in closed form, Phi(m / sqrt(1 + v)), for
    /// the probit, by quadrature for the logit.
    pub fn probability(self, mean: f64, variance: f64) -> f64 {
        match self {
            Self::Probit => cumulative(mean / (1.0 + variance).sqrt()),
            Self::Logit => {
                let deviation = variance.sqrt();
                quadrature::NODES.iter().map(|&(node, weight)| weight * logistic(mean + deviation * node)).sum()
            }
        }
    }

    /// The standard deviation of the probability itself, of which [`probability`](Self::probability) is the mean: 0 where f is known, half
    /// at most.
    pub fn deviation_of_probability(self, mean: f64, variance: f64) -> f64 {
        let deviation = variance.sqrt();
        let (mut first, mut second) = (0.0, 0.0);
        for &(node, weight) in quadrature::NODES.iter() {
            let f = mean + deviation * node;
            let probability = match self {
                Self::Probit => cumulative(f),
                Self::Logit => logistic(f),
            };
            first += weight * probability;
            second += weight * probability * probability;
        }
        (second - first * first).max(0.0).sqrt()
    }
}

/// 1 / (1 + exp(-x)).
pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
