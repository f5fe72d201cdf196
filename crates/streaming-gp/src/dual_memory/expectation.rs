//! The information of a target about the latent function: the expected log density under a normal distribution of f, and its derivatives.
//!
//! Variational inference needs nothing else of a likelihood (Opper and Archambeau 2009; the dual parameters of Chang et al.
//! 2023, eqs. 2 and 9). The Gaussian has them in closed form, the others by Gauss-Hermite quadrature.
//!
//! [`likelihood`](crate::likelihood) treats the same Student's t another way: as a Gaussian with a random precision, whose
//! expected value weighs a row. That bound on the evidence is looser, and needs no quadrature.

use super::super::likelihood::log_gamma_step;
use super::super::normal::LOG_2_PI;
use super::cumulative;
use super::link::{Link, logistic};
use super::quadrature;
use crate::Likelihood;
use std::f64::consts::PI;

/// The distribution p(y | f) of one target y given the latent function f at its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// Normal around f.
    Gaussian {
        /// Variance of the noise.
        variance: f64,
    },
    /// Student's t around f.
    StudentT {
        /// Square of its scale.
        squared_scale: f64,
        /// nu.
        degrees_of_freedom: f64,
    },
    /// 1 with a probability that grows with f, else 0.
    Bernoulli(Link),
}

/// The expected log density of one target where f is normal, and its derivatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// E\[log p(y | f)\], in nats.
    pub log_density: f64,
    /// alpha = E\[d log p(y | f) / df\] (eq. 2): also the derivative of the expected log density in the mean.
    pub alpha: f64,
    /// beta = -E\[d^2 log p(y | f) / df^2\] (eq. 2): -2 times the derivative of the expected log density in the variance. Below 0
    /// for an outlier of Student's t.
    pub beta: f64,
    /// The derivative of the expected log density in the logarithm of the noise; 0 where there is none.
    pub in_log_noise: f64,
}

/// log p(y | f) and its derivatives at one f.
struct Density {
    log: f64,
    first: f64,
    second: f64,
    in_log_noise: f64,
}

/// The second derivative is taken at the nodes where f varies by less than this share of the scale of the likelihood.
const NARROW: f64 = 1e-3;

impl Observation {
    /// A measured target of this likelihood, with this hyperparameter `noise`.
    pub fn of(likelihood: Likelihood, noise: f64) -> Self {
        match likelihood {
            Likelihood::Gaussian => Self::Gaussian { variance: noise },
            Likelihood::StudentT(student) => {
                Self::StudentT { squared_scale: noise, degrees_of_freedom: student.degrees_of_freedom }
            }
        }
    }

    /// The expected log density of a target where f is normal with this mean and variance.
    ///
    /// By quadrature, beta is taken by parts from the first derivative: E\[g''\] = E\[g' (f - m)\] / v. That requires less
    /// smoothness of the density, and is exactly what the quadrature of E\[g\] changes by with the variance.
    pub fn expect(&self, target: f64, mean: f64, variance: f64) -> Expectation {
        if let Self::Gaussian { variance: noise } = *self {
            let residual = target - mean;
            let square = (residual * residual + variance) / noise;
            return Expectation {
                log_density: -0.5 * (LOG_2_PI + noise.ln() + square),
                alpha: residual / noise,
                beta: 1.0 / noise,
                in_log_noise: 0.5 * (square - 1.0),
            };
        }
        let deviation = variance.sqrt();
        let is_narrow = deviation < NARROW * self.scale();
        let mut sum = Expectation { log_density: 0.0, alpha: 0.0, beta: 0.0, in_log_noise: 0.0 };
        for &(node, weight) in quadrature::NODES.iter() {
            let density = self.density(target, mean + deviation * node);
            let second = if is_narrow { density.second } else { density.first * node / deviation };
            sum.log_density += weight * density.log;
            sum.alpha += weight * density.first;
            sum.beta -= weight * second;
            sum.in_log_noise += weight * density.in_log_noise;
        }
        sum
    }

    /// The scale of a difference in f.
    fn scale(&self) -> f64 {
        match *self {
            Self::Gaussian { variance } => variance.sqrt(),
            Self::StudentT { squared_scale, .. } => squared_scale.sqrt(),
            Self::Bernoulli(_) => 1.0,
        }
    }

    fn density(&self, target: f64, f: f64) -> Density {
        match *self {
            Self::Gaussian { variance } => {
                let residual = target - f;
                let square = residual * residual / variance;
                Density {
                    log: -0.5 * (LOG_2_PI + variance.ln() + square),
                    first: residual / variance,
                    second: -1.0 / variance,
                    in_log_noise: 0.5 * (square - 1.0),
                }
            }
            Self::StudentT { squared_scale, degrees_of_freedom } => {
                let half = 0.5 * (degrees_of_freedom + 1.0);
                let residual = target - f;
                let (square, width) = (residual * residual, degrees_of_freedom * squared_scale);
                let sum = width + square;
                Density {
                    log: log_gamma_step(0.5 * degrees_of_freedom)
                        - 0.5 * (PI * width).ln()
                        - half * (square / width).ln_1p(),
                    first: 2.0 * half * residual / sum,
                    second: 2.0 * half * (square - width) / (sum * sum),
                    in_log_noise: half * square / sum - 0.5,
                }
            }
            Self::Bernoulli(link) => {
                let sign = if target == 1.0 { 1.0 } else { -1.0 };
                let x = sign * f;
                let (log, first, second) = match link {
                    Link::Probit => {
                        let hazard = cumulative::hazard(x);
                        (cumulative::log_cumulative(x), hazard, -(hazard * (hazard + x)).clamp(0.0, 1.0))
                    }
                    Link::Logit => {
                        let log = x.min(0.0) - (-x.abs()).exp().ln_1p();
                        (log, logistic(-x), -logistic(x) * logistic(-x))
                    }
                };
                Density { log, first: sign * first, second, in_log_noise: 0.0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StudentT;

    const STUDENT: Observation = Observation::StudentT { squared_scale: 0.49, degrees_of_freedom: 4.0 };
    const ALL: [(Observation, f64); 6] = [
        (Observation::Gaussian { variance: 0.3 }, 1.7),
        (STUDENT, 1.7),
        (Observation::Bernoulli(Link::Probit), 1.0),
        (Observation::Bernoulli(Link::Probit), 0.0),
        (Observation::Bernoulli(Link::Logit), 1.0),
        (Observation::Bernoulli(Link::Logit), 0.0),
    ];

    /// The trapezoidal rule over twelve standard deviations either way: exact to rounding for analytic integrands.
    fn integral(mean: f64, variance: f64, integrand: impl Fn(f64) -> f64) -> f64 {
        let step = 1e-3;
        let term = |i: i32| {
            let x = f64::from(i) * step;
            (-0.5 * x * x).exp() * integrand(mean + variance.sqrt() * x)
        };
        (-12_000..=12_000).map(term).sum::<f64>() * step / (2.0 * PI).sqrt()
    }

    #[test]
    fn expectations_are_integrals() {
        for (observation, target) in ALL {
            for (mean, variance) in [(0.0f64, 1e-8f64), (0.4, 1e-3), (-1.0, 0.09), (0.8, 0.5)] {
                let found = observation.expect(target, mean, variance);
                let of =
                    |part: fn(&Density) -> f64| integral(mean, variance, |f| part(&observation.density(target, f)));
                let expected = [of(|d| d.log), of(|d| d.first), -of(|d| d.second), of(|d| d.in_log_noise)];
                let found = [found.log_density, found.alpha, found.beta, found.in_log_noise];
                // Twenty nodes are exact but for the distance of the nearest complex singularity in standard deviations: that of
                // Student's t is at 1.4, at a deviation of 0.7; those of the others are beyond 2.
                let is_wide_student = observation == STUDENT && variance > 0.1;
                let tolerance = if is_wide_student { 2e-3 } else { 1e-6 };
                for (found, expected) in found.into_iter().zip(expected) {
                    let error = (found - expected).abs() / (1.0 + expected.abs());
                    assert!(error < tolerance, "{observation:?} {target} {mean} {variance}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn dual_parameters_are_the_derivatives_in_mean_and_variance() {
        for (observation, target) in ALL {
            for (mean, variance) in [(0.3, 0.2), (-2.0, 1.0), (1.0, 30.0)] {
                let at = |mean, variance| observation.expect(target, mean, variance).log_density;
                let found = observation.expect(target, mean, variance);
                let step = 1e-5;
                let in_mean = (at(mean + step, variance) - at(mean - step, variance)) / (2.0 * step);
                let in_variance = (at(mean, variance + step) - at(mean, variance - step)) / (2.0 * step);
                // Central differences: rounding 1e-16 * 100 / 1e-5, truncation 1e-10 times a third derivative below 100.
                assert!((found.alpha - in_mean).abs() < 1e-8, "{observation:?} {found:?} {in_mean}");
                assert!((found.beta + 2.0 * in_variance).abs() < 1e-8, "{observation:?} {found:?} {in_variance}");
            }
        }
    }

    #[test]
    fn the_derivative_in_the_noise_is_its_finite_difference() {
        for likelihood in [Likelihood::Gaussian, Likelihood::StudentT(StudentT { degrees_of_freedom: 5.0 })] {
            let at = |log_noise: f64| Observation::of(likelihood, log_noise.exp()).expect(2.0, -0.3, 0.4);
            let expected = (at(-0.7 + 1e-5).log_density - at(-0.7 - 1e-5).log_density) / 2e-5;
            assert!((at(-0.7).in_log_noise - expected).abs() < 1e-8, "{likelihood:?}");
        }
    }

    #[test]
    fn students_t_of_many_degrees_of_freedom_is_a_gaussian() {
        let student = Observation::StudentT { squared_scale: 0.3, degrees_of_freedom: 1e8 }.expect(1.0, 0.2, 0.1);
        let gaussian = Observation::Gaussian { variance: 0.3 }.expect(1.0, 0.2, 0.1);
        // The first terms beyond are of order 1 / nu.
        assert!((student.log_density - gaussian.log_density).abs() < 1e-6);
        assert!((student.alpha - gaussian.alpha).abs() < 1e-6 && (student.beta - gaussian.beta).abs() < 1e-6);
    }

    #[test]
    fn a_gross_outlier_of_students_t_says_nothing_and_one_of_a_gaussian_shouts() {
        let student = STUDENT.expect(1000.0, 0.0, 1.0);
        assert!(student.alpha < 0.006 && student.beta < 0.0 && student.beta > -1e-5, "{student:?}");
        assert_eq!(Observation::Gaussian { variance: 0.49 }.expect(1000.0, 0.0, 1.0).alpha, 1000.0 / 0.49);
    }

    #[test]
    fn labels_far_on_the_wrong_side_stay_finite_and_log_concave() {
        for link in [Link::Probit, Link::Logit] {
            for mean in [-1e6, -40.0, 0.0, 40.0, 1e6] {
                for variance in [0.0, 1e-9, 1.0, 1e6] {
                    let found = Observation::Bernoulli(link).expect(1.0, mean, variance);
                    assert!(found.log_density.is_finite() && found.log_density <= 0.0, "{found:?}");
                    // 1e-12: the sum of terms that cancel where the density is flat.
                    assert!(found.alpha >= 0.0 && found.beta > -1e-12 && found.beta < 1.0 + 1e-6, "{mean} {found:?}");
                }
            }
        }
    }

    #[test]
    fn the_deviation_of_a_probability_is_that_of_its_integrals() {
        for link in [Link::Probit, Link::Logit] {
            for (mean, variance) in [(0.0, 1.0), (1.3, 0.2), (-2.0, 3.0), (0.4, 0.0)] {
                let density = |f: f64| Observation::Bernoulli(link).density(1.0, f).log.exp();
                let square = integral(mean, variance, |f| density(f).powi(2));
                let expected = (square - integral(mean, variance, density).powi(2)).max(0.0).sqrt();
                let found = link.deviation_of_probability(mean, variance);
                // The quadrature of the mean and of the square is within 1e-4; rounding of 1e-16 under the root.
                assert!((found - expected).abs() < 1e-3, "{link:?} {mean} {variance}: {found} {expected}");
            }
            assert!(link.deviation_of_probability(0.0, 1e6) < 0.5 + 1e-12);
        }
        // Two labels at one place are both 1 with probability 1/4 + asin(v / (1 + v)) / 2 pi, where f has mean 0 and variance v.
        let expected = (0.5f64.asin() / (2.0 * PI)).sqrt();
        assert!((Link::Probit.deviation_of_probability(0.0, 1.0) - expected).abs() < 1e-4);
    }

    #[test]
    fn predicted_probabilities_are_integrals() {
        for link in [Link::Probit, Link::Logit] {
            for (mean, variance) in [(0.0, 1.0), (1.3, 0.2), (-2.0, 3.0)] {
                let density = |f: f64| Observation::Bernoulli(link).density(1.0, f).log.exp();
                let expected = integral(mean, variance, density);
                let found = link.probability(mean, variance);
                // The poles of the logistic function are at 1.8 deviations when the variance is 3.
                assert!((found - expected).abs() < 1e-5, "{link:?} {mean} {variance}: {found} {expected}");
                let other = link.probability(-mean, variance);
                assert!((found + other - 1.0).abs() < 1e-12, "{link:?} {mean} {variance}: {found} {other}");
            }
        }
    }
}
