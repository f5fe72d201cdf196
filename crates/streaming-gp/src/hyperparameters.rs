//! Knowledge of the hyperparameters before any data: log-normal priors, and bounds beyond which nothing is computed.

/// A log-normal prior on every hyperparameter: a normal one on its logarithm.
#[derive(Clone, Debug, PartialEq)]
pub struct LogNormalPrior {
    /// Logarithms of the medians.
    pub log_medians: Vec<f64>,
    /// Standard deviations of the logarithms.
    pub log_standard_deviations: Vec<f64>,
}

impl LogNormalPrior {
    /// An uninformative prior of this many hyperparameters.
    pub fn flat(count: usize) -> Self {
        Self { log_medians: vec![0.0; count], log_standard_deviations: vec![f64::INFINITY; count] }
    }

    /// With a density to this power.
    pub fn counted(mut self, times: f64) -> Self {
        self.log_standard_deviations.iter_mut().for_each(|deviation| *deviation /= times.sqrt());
        self
    }

    /// With what else is known of one hyperparameter: that its logarithm has this mean and this precision.
    ///
    /// # Panics
    /// When the number of hyperparameters differs.
    pub fn knowing(mut self, index: usize, log_mean: f64, precision: f64) -> Self {
        let (median, deviation) = (&mut self.log_medians[index], &mut self.log_standard_deviations[index]);
        let before = deviation.powi(-2);
        let after = before + precision;
        if after > 0.0 {
            *median = (before * *median + precision * log_mean) / after;
            *deviation = after.sqrt().recip();
        }
        self
    }

    /// The log density at these logarithms, less its constant.
    pub fn log_density(&self, log_parameters: &[f64]) -> f64 {
        -0.5 * self.standardized(log_parameters).map(|z| z * z).sum::<f64>()
    }

    /// Adds the gradient of the log density.
    pub fn add_gradient(&self, log_parameters: &[f64], gradient: &mut [f64]) {
        let scores = self.standardized(log_parameters).zip(&self.log_standard_deviations);
        gradient.iter_mut().zip(scores).for_each(|(entry, (z, deviation))| *entry -= z / deviation);
    }

    fn standardized<'a>(&'a self, log_parameters: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        let centres = self.log_medians.iter().zip(&self.log_standard_deviations);
        log_parameters.iter().zip(centres).map(|(value, (median, deviation))| (value - median) / deviation)
    }
}

/// The range in which every hyperparameter stays; wide enough for any unit, narrow enough for doubles.
pub const SMALLEST: f64 = 1e-10;
/// See [`SMALLEST`].
pub const LARGEST: f64 = 1e14;

/// The nearest logarithms within the bounds.
pub fn clamp(log_parameters: &[f64]) -> Vec<f64> {
    log_parameters.iter().map(|value| value.clamp(SMALLEST.ln(), LARGEST.ln())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_else_is_known_multiplies_the_density() {
        let prior = LogNormalPrior { log_medians: vec![1.0, -2.0], log_standard_deviations: vec![0.5, 2.0] };
        let knowing = prior.clone().knowing(1, 0.7, 3.0);
        let product = |at: f64| prior.log_density(&[0.3, at]) - 0.5 * 3.0 * (at - 0.7f64).powi(2);
        // Equal but for the constant, which cancels in differences.
        for at in [-3.0, 0.0, 4.0] {
            let found = knowing.log_density(&[0.3, at]) - knowing.log_density(&[0.3, 1.0]);
            assert!((found - (product(at) - product(1.0))).abs() < 1e-12, "{found}");
        }
        let alone = LogNormalPrior::flat(2).knowing(0, 0.7, 4.0);
        assert!((alone.log_density(&[1.7, 1e9]) + 2.0).abs() < 1e-12);
        let mut gradient = [0.0; 2];
        LogNormalPrior::flat(2).add_gradient(&[5.0, 5.0], &mut gradient);
        assert_eq!((LogNormalPrior::flat(2).log_density(&[5.0, 5.0]), gradient), (0.0, [0.0; 2]));
    }

    #[test]
    fn the_gradient_of_the_prior_is_its_finite_difference() {
        let prior = LogNormalPrior { log_medians: vec![1.0, -2.0], log_standard_deviations: vec![0.5, 2.0] };
        let at = [0.3, 1.7];
        let mut gradient = [0.0; 2];
        prior.add_gradient(&at, &mut gradient);
        for i in 0..2 {
            let (mut up, mut down) = (at, at);
            up[i] += 1e-6;
            down[i] -= 1e-6;
            let expected = (prior.log_density(&up) - prior.log_density(&down)) / 2e-6;
            assert!((gradient[i] - expected).abs() < 1e-8, "{} {expected}", gradient[i]);
        }
        assert_eq!(prior.log_density(&prior.log_medians), 0.0);
    }
}
