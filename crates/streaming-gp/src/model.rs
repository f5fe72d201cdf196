//! The model: a Gaussian process prior with noise, and the vector of its hyperparameters.

use crate::linalg;
use crate::{Kernel, Likelihood, Matrix, MatrixMut, NamedValue, NotPositiveDefinite, Places};

/// A number that is added to the diagonal of the covariance among inducing points, to keep it positive definite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// In the units of the covariance.
    Absolute(f64),
    /// Relative to the prior variance of each inducing point.
    Relative(f64),
}

/// A Gaussian process prior f ~ GP(mean, kernel), observed with independent noise.
///
/// The hyperparameters are handled as one vector of logarithms: those of the kernel, then the noise variance.
#[derive(Clone, Debug, PartialEq)]
pub struct Model<K> {
    /// Covariance function.
    pub kernel: K,
    /// Variance of the noise on each target; the square of its scale where the likelihood is Student's t.
    pub noise: f64,
    /// How the noise is distributed.
    pub likelihood: Likelihood,
    /// Constant prior mean.
    pub mean: f64,
    /// Jitter of the inducing points.
    pub jitter: Jitter,
}

impl<K: Kernel> Model<K> {
    /// The names of the hyperparameters.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.kernel.names();
        names.push("noise".into());
        names
    }

    /// The logarithms of the hyperparameters.
    pub fn log_parameters(&self) -> Vec<f64> {
        let mut values = self.kernel.log_parameters();
        values.push(self.noise.ln());
        values
    }

    /// The model with other hyperparameters, given as logarithms.
    ///
    /// # Panics
    /// When there are fewer than [`Model::names`].
    pub fn with_log_parameters(&self, values: &[f64]) -> Self {
        let (noise, kernel_values) = values.split_last().expect("a model has at least the noise");
        let mut kernel = self.kernel.clone();
        kernel.set_log_parameters(kernel_values);
        Self { kernel, noise: noise.exp(), ..*self }
    }

    /// The variance of the error of one reading.
    pub fn noise_variance(&self) -> f64 {
        self.likelihood.variance(self.noise)
    }

    /// The hyperparameters by name.
    pub fn named_values(&self) -> Vec<NamedValue> {
        let values = self.kernel.parameters().into_iter().chain([self.noise]);
        self.names().into_iter().zip(values).map(|(name, value)| NamedValue { name, value }).collect()
    }

    /// L_b: the Cholesky factor of the covariance of `places` with jitter, made in a matrix of zeros.
    pub(super) fn covariance_root(&self, places: &K::Places, mut zeros: Matrix) -> Result<Matrix, NotPositiveDefinite> {
        self.kernel.add_lower_covariance(places, zeros.as_mut());
        self.add_jitter(places, zeros.as_mut());
        linalg::cholesky(zeros)
    }

    /// Adds the jitter to the diagonal of the covariance among `places`.
    pub(super) fn add_jitter(&self, places: &K::Places, mut covariance: MatrixMut<'_>) {
        let diagonal = self.kernel.diagonal(places);
        diagonal.into_iter().enumerate().for_each(|(i, variance)| covariance[(i, i)] += self.jitter_of(variance));
    }

    /// The jitter of a place with this prior variance.
    pub(super) fn jitter_of(&self, variance: f64) -> f64 {
        match self.jitter {
            Jitter::Absolute(jitter) => jitter,
            Jitter::Relative(share) => share * variance,
        }
    }

    /// Adds to a gradient what enters through the covariance of `places` with jitter, given the gradient in it (of which only the
    /// lower triangle is used, and overwritten) and what more there is in the jitter of some of the places.
    pub(super) fn contract_covariance(
        &self,
        places: &K::Places,
        in_covariance: MatrixMut<'_>,
        in_jitter: impl Iterator<Item = (usize, f64)>,
        gradient: &mut [f64],
    ) {
        let mut diagonal: Vec<f64> = (0..places.len()).map(|i| in_covariance[(i, i)]).collect();
        in_jitter.for_each(|(place, more)| diagonal[place] += more);
        self.kernel.contract_symmetric(places, in_covariance, gradient);
        if let Jitter::Relative(share) = self.jitter {
            diagonal.iter_mut().for_each(|weight| *weight *= share);
            self.kernel.contract_diagonal(places, &diagonal, gradient);
        }
    }
}
