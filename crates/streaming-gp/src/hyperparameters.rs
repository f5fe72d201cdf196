//! Knowledge of the hyperparameters before any data: log-normal priors, and bounds beyond which nothing is computed.

/// A log-normal prior on every hyperparameter: a normal one on its logarithm, or Student's t on that of one of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogNormalPrior {
    /// Logarithms of the medians.
    pub log_medians: Vec<f64>,
    /// Standard deviations of the logarithms.
    pub log_standard_deviations: Vec<f64>,
    /// The hyperparameter with heavy tails, if there is one.
    pub tail: Option<HeavyTail>,
}

/// Student's t on the logarithm of a hyperparameter, whose scale is the standard deviation of the logarithm: firm around the median, but it
/// gives way to data that clearly contradict it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeavyTail {
    /// Index of the hyperparameter.
    pub index: usize,
    /// Degrees of freedom: the fewer, the heavier the tails.
    pub degrees_of_freedom: f64,
    /// The power of its density.
    pub power: f64,
}

impl HeavyTail {
    /// The log density at a standardized logarithm, less its constant, and its derivative.
    fn log_density(&self, z: f64) -> (f64, f64) {
        let (freedom, factor) = (self.degrees_of_freedom, self.power * (self.degrees_of_freedom + 1.0));
        (-0.5 * factor * (z * z / freedom).ln_1p(), -factor * z / (freedom + z * z))
    }
}

impl LogNormalPrior {
    /// An uninformative prior of this many hyperparameters.
    pub fn flat(count: usize) -> Self {
        Self { log_medians: vec![0.0; count], log_standard_deviations: vec![f64::INFINITY; count], tail: None }
    }

    /// With a density to this power.
    pub fn counted(mut self, times: f64) -> Self {
        let tail = self.tail.as_ref().map(|tail| tail.index);
        for (index, deviation) in self.log_standard_deviations.iter_mut().enumerate() {
            *deviation /= if Some(index) == tail { 1.0 } else { times.sqrt() };
        }
        self.tail.iter_mut().for_each(|tail| tail.power *= times);
        self
    }

    /// With what else is known of one hyperparameter without heavy tails: that its logarithm has this mean and this precision.
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
        self.scores(log_parameters).map(|(value, _)| value).sum()
    }

    /// Adds the gradient of the log density.
    pub fn add_gradient(&self, log_parameters: &[f64], gradient: &mut [f64]) {
        let scores = self.scores(log_parameters).zip(&self.log_standard_deviations);
        gradient.iter_mut().zip(scores).for_each(|(entry, ((_, slope), deviation))| *entry += slope / deviation);
    }

    /// The log density of each standardized logarithm, and its derivative.
    fn scores<'a>(&'a self, log_parameters: &'a [f64]) -> impl Iterator<Item = (f64, f64)> + 'a {
        self.standardized(log_parameters).enumerate().map(|(index, z)| match self.tail {
            Some(tail) if tail.index == index => tail.log_density(z),
            _ => (-0.5 * (z * z), -z),
        })
    }

    fn standardized<'a>(&'a self, log_parameters: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        let centres = self.log_medians.iter().zip(&self.log_standard_deviations);
        log_parameters.iter().zip(centres).map(|(value, (median, deviation))| (value - median) / deviation)
    }
}

/// Least value of a hyperparameter; with [`LARGEST`] wide enough for any unit, narrow enough for doubles.
pub const SMALLEST: f64 = 1e-10;
/// Largest value of a hyperparameter.
pub const LARGEST: f64 = 1e14;

/// The nearest logarithms within the bounds.
pub fn clamp(log_parameters: &[f64]) -> Vec<f64> {
    log_parameters.iter().map(|value| value.clamp(SMALLEST.ln(), LARGEST.ln())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prior() -> LogNormalPrior {
        let (log_medians, log_standard_deviations) = (vec![1.0, -2.0], vec![0.5, 2.0]);
        LogNormalPrior { log_medians, log_standard_deviations, tail: None }
    }

    #[test]
    fn what_else_is_known_multiplies_the_density() {
        let prior = prior();
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
        let tail = HeavyTail { index: 0, degrees_of_freedom: 3.0, power: 1.0 };
        for prior in [prior(), LogNormalPrior { tail: Some(tail), ..prior() }.counted(2.0)] {
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

    #[test]
    fn a_heavy_tail_is_firm_nearby_and_gives_way_far_away() {
        let heavy = |degrees_of_freedom| {
            let tail = Some(HeavyTail { index: 0, degrees_of_freedom, power: 1.0 });
            LogNormalPrior { tail, ..prior() }
        };
        // The density of Student's t with three degrees of freedom, at two scales from its centre: (1 + 4 / 3)^-2.
        assert!((heavy(3.0).log_density(&[2.0, -2.0]) + 2.0 * (7.0f64 / 3.0).ln()).abs() < 1e-12);
        let pull = |at: f64| {
            let mut gradient = [0.0; 2];
            heavy(3.0).add_gradient(&[1.0 + at, -2.0], &mut gradient);
            -gradient[0]
        };
        assert!(pull(0.1) < pull(0.8) && pull(10.0) < 0.2 * pull(0.8));
        // With many degrees of freedom it is normal, and counted twice its density is squared.
        let at = [1.7, -1.0];
        assert!((heavy(1e9).log_density(&at) - prior().log_density(&at)).abs() < 1e-6);
        let (once, twice) = (heavy(3.0), heavy(3.0).counted(2.0));
        assert!((twice.log_density(&at) - 2.0 * once.log_density(&at)).abs() < 1e-12);
    }
}
