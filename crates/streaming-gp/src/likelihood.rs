//! The noise on the targets: Gaussian, or heavy-tailed, so that gross outliers count for little.
//!
//! Student's t is a Gaussian whose precision is itself random (Lange, Little and Taylor 1989): with w ~ Gamma(nu/2, nu/2) and
//! `y - f ~ N(0, s^2 / w)`, `y - f` has nu degrees of freedom and scale s. Under a posterior of f that is independent of w
//! (Tipping and Lawrence 2005; Jylänki, Vanhatalo and Vehtari 2011, section 3.3), w is Gamma again, with the mean
//!
//! ```text
//! w = (nu + 1) / (nu + E[(y - f)^2] / s^2)
//! ```
//!
//! and f sees a Gaussian of variance s^2 / w. Each of the two raises one lower bound of the evidence: that of the Gaussian whose
//! rows are scaled by sqrt(w) / s, -log s for each, and [`StudentT::evidence`] of its weight.

/// How measured targets depend on the latent function. Labels have a [`Link`](super::dual_memory::Link) in its place,
/// which only the [dual](super::dual_memory) model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Likelihood {
    /// Normally, with the variance `noise`.
    #[default]
    Gaussian,
    /// With heavy tails, and the squared scale `noise`.
    StudentT(StudentT),
}

impl Likelihood {
    /// The variance of the error of one reading, given the hyperparameter `noise`.
    pub fn variance(&self, noise: f64) -> f64 {
        match self {
            Self::Gaussian => noise,
            Self::StudentT(StudentT { degrees_of_freedom }) => noise * degrees_of_freedom / (degrees_of_freedom - 2.0),
        }
    }

    /// The Fisher information of one reading, where the function is known, on the logarithm of the hyperparameter `noise`.
    pub fn information_on_noise(&self) -> f64 {
        match self {
            Self::Gaussian => 0.5,
            Self::StudentT(StudentT { degrees_of_freedom }) => 0.5 * degrees_of_freedom / (degrees_of_freedom + 3.0),
        }
    }
}

/// Student's t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudentT {
    /// nu, above 2: with fewer the noise has no variance.
    pub degrees_of_freedom: f64,
}

/// Squares beyond this count as this, so that weights and their logarithms stay finite.
const LARGEST_SQUARE: f64 = 1e300;

impl StudentT {
    /// The weight of a row, given E\[(y - f)^2\] / s^2: above 0, and at most (nu + 1) / nu.
    pub fn weight(&self, expected_square: f64) -> f64 {
        let nu = self.degrees_of_freedom;
        // What is not a number counts as beyond, too.
        let square = if expected_square < LARGEST_SQUARE { expected_square.max(0.0) } else { LARGEST_SQUARE };
        (nu + 1.0) / (nu + square)
    }

    /// The part of the evidence lower bound that a row with weight w adds to the density of its scaled row, in nats: the
    /// expectation of log(w) / 2 less the divergence of the Gamma distribution of w from its prior. With a = (nu + 1) / 2:
    /// `log Gamma(a) - log Gamma(nu/2) + nu/2 log(nu/2) + a - a log a + a log w - w nu/2`; w = 1 as nu grows gives 0.
    pub fn evidence(&self, weight: f64) -> f64 {
        let half = 0.5 * self.degrees_of_freedom;
        let shape = half + 0.5;
        let constant = log_gamma_step(half) - 0.5 * shape.ln() + 0.5 - half * (0.5 / half).ln_1p();
        constant + shape * weight.ln() - half * (weight - 1.0)
    }

    /// The weights of a batch, given E\[(y - f)^2\] / s^2 of each row.
    pub fn weights(&self, expected_squares: impl IntoIterator<Item = f64>) -> Weights {
        let values: Vec<f64> = expected_squares.into_iter().map(|square| self.weight(square)).collect();
        let evidence = values.iter().map(|&weight| self.evidence(weight)).sum();
        Weights { values, evidence }
    }
}

/// How much each row of a batch counts, where not all count alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The weights, one per row.
    pub values: Vec<f64>,
    /// The part of the evidence lower bound that they add, in nats: see [`StudentT::evidence`].
    pub evidence: f64,
}

impl Weights {
    /// The largest change of a weight relative to the larger of the two.
    pub fn change_from(&self, before: &Self) -> f64 {
        let changes =
            self.values.iter().zip(&before.values).map(|(now, before)| (now - before).abs() / now.max(*before));
        changes.fold(0.0, f64::max)
    }
}

/// log Gamma(x + 1/2) - log Gamma(x) for x > 0, without the cancellation of the two: Stirling's series from 20 on (its next term
/// is below 1e-14), and the recurrence of the Gamma function below.
pub(super) fn log_gamma_step(x: f64) -> f64 {
    let mut correction = 0.0;
    let mut x = x;
    while x < 20.0 {
        correction += (0.5 / x).ln_1p();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (-1.0 / 8.0 + square * (1.0 / 192.0 + square * (-1.0 / 640.0 + square * 17.0 / 14336.0)));
    0.5 * x.ln() + series - correction
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::PI;

    #[test]
    fn the_information_on_the_noise_is_the_mean_square_of_its_score() {
        for degrees_of_freedom in [3.0, 4.0, 10.0] {
            let nu = degrees_of_freedom;
            // The midpoint rule over the squares of t, with t = sinh(u) so that the tails are reached.
            let (mut mass, mut information) = (0.0, 0.0);
            for step in -4000..4000 {
                let u = (f64::from(step) + 0.5) * 0.003;
                let square = u.sinh().powi(2);
                let density = (1.0 + square / nu).powf(-0.5 * (nu + 1.0)) * u.cosh();
                let score = -0.5 + 0.5 * (nu + 1.0) * square / (nu + square);
                mass += density;
                information += density * score * score;
            }
            let found = Likelihood::StudentT(StudentT { degrees_of_freedom }).information_on_noise();
            // The rule is exact to rounding but for the tails beyond 1e5 degrees, whose mass is below 1e-10.
            assert!((found - information / mass).abs() < 1e-8, "{found} {}", information / mass);
        }
    }

    #[test]
    fn the_step_of_log_gamma_is_that_of_known_values() {
        let root_of_pi = PI.sqrt();
        for (x, expected) in [
            (0.5, -root_of_pi.ln()),
            (1.0, (root_of_pi / 2.0).ln()),
            (2.0, (0.75 * root_of_pi).ln()),
            (2.5, (8.0 / (3.0 * root_of_pi)).ln()),
        ] {
            // A few dozen roundings of numbers below 2.
            assert!((log_gamma_step(x) - expected).abs() < 1e-14, "{x}");
        }
        // The two halves make a whole step.
        for x in [0.1, 3.3, 19.9, 20.1, 500.0, 1e9] {
            let whole = log_gamma_step(x) + log_gamma_step(x + 0.5);
            assert!((whole - f64::ln(x)).abs() < 1e-14 * (1.0 + f64::ln(x).abs()), "{x}");
        }
    }

    /// The textbook density of 4 degrees of freedom: 3/8 / s (1 + r^2 / (4 s^2))^(-5/2).
    #[test]
    fn where_the_function_is_known_the_bound_is_the_density_of_students_t() {
        let likelihood = StudentT { degrees_of_freedom: 4.0 };
        let scale = 1.7f64;
        for residual in [0.0, 0.3, -2.0, 40.0, 1e4f64] {
            let square = (residual / scale).powi(2);
            let weight = likelihood.weight(square);
            let scaled_row = -0.5 * (2.0 * PI).ln() - scale.ln() - 0.5 * weight * square;
            let bound = scaled_row + likelihood.evidence(weight);
            let expected = (0.375 / scale).ln() - 2.5 * (square / 4.0).ln_1p();
            assert!((bound - expected).abs() < 1e-13 * (1.0 + expected.abs()), "{residual}: {bound} {expected}");
            // No other weight gives more.
            for other in [0.9 * weight, 1.1 * weight] {
                let scaled_row = -0.5 * (2.0 * PI).ln() - scale.ln() - 0.5 * other * square;
                assert!(scaled_row + likelihood.evidence(other) < bound, "{residual}");
            }
        }
    }

    #[test]
    fn many_degrees_of_freedom_are_a_gaussian() {
        let likelihood = StudentT { degrees_of_freedom: 1e9 };
        for square in [0.0, 1.0, 1e4] {
            assert!((likelihood.weight(square) - 1.0).abs() < 1.1e-5);
        }
        // The first terms beyond: of order 1 / nu.
        assert!(likelihood.evidence(likelihood.weight(1.0)).abs() < 1e-8);
        assert!((Likelihood::StudentT(likelihood).variance(3.0) - 3.0).abs() < 1e-8);
    }

    #[test]
    fn the_noise_of_four_degrees_of_freedom_has_twice_the_squared_scale_as_its_variance() {
        assert_eq!(Likelihood::StudentT(StudentT { degrees_of_freedom: 4.0 }).variance(3.0), 6.0);
        assert_eq!(Likelihood::Gaussian.variance(3.0), 3.0);
    }

    proptest! {
        #[test]
        fn weights_are_positive_bounded_and_finite_whatever_the_square(
            nu in prop_oneof![2.0..10.0f64, 10.0..1e12f64],
            square in prop_oneof![any::<f64>(), 0.0..1e4f64],
        ) {
            let likelihood = StudentT { degrees_of_freedom: nu };
            let weights = likelihood.weights([square]);
            let weight = weights.values[0];
            prop_assert!(weight > 0.0 && weight <= (nu + 1.0) / nu, "{weight}");
            prop_assert!(weights.evidence.is_finite(), "{weights:?}");
        }
    }
}
