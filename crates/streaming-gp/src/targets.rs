//! The targets of a batch, and how much each of them counts.

use super::normal::LOG_2_PI;
use crate::Weights;

/// The targets of a batch. They count alike unless there are weights: then the noise of each has its variance divided by its own.
///
/// Targets whose neighbours share errors carry less information than independent ones. Then the likelihood of the batch counts to
/// a power below 1 (a tempered or power likelihood; Bissiri, Holmes and Walker 2016): the posterior is that of rows
/// whose noise is larger by 1 / power, while the noise itself is learnt as what it is.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The targets.
    pub values: &'a [f64],
    /// Weights of the targets.
    pub weights: Option<&'a Weights>,
    /// The power of the likelihood.
    pub power: f64,
}

impl<'a> Targets<'a> {
    /// Targets with a weight each, or without.
    ///
    /// # Panics
    /// When there is another number of weights than of targets.
    pub fn new(values: &'a [f64], weights: Option<&'a Weights>) -> Self {
        assert!(weights.is_none_or(|weights| weights.values.len() == values.len()), "one weight per target");
        Self { values, weights, power: 1.0 }
    }

    /// The targets with the likelihood to the power of `power`, more than 0 and at most 1.
    pub fn tempered(self, power: f64) -> Self {
        Self { power, ..self }
    }

    /// The targets with other weights.
    ///
    /// # Panics
    /// When there is another number of weights than of targets.
    pub fn weighted(self, weights: Option<&'a Weights>) -> Self {
        Self { power: self.power, ..Self::new(self.values, weights) }
    }

    /// The weight of a target; 1 where all count alike.
    pub fn weight(&self, index: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights.values[index])
    }

    /// The number of independent targets that they count for.
    pub fn effective_count(&self) -> f64 {
        self.power * self.values.len() as f64
    }

    /// Divisor of the variance of the noise of a row in the posterior: weight times power.
    pub fn precision(&self, index: usize) -> f64 {
        self.power * self.weight(index)
    }

    /// The part of the log density of rows scaled to unit noise that weights and power add, given the variance of the noise, in nats.
    pub fn evidence(&self, noise: f64) -> f64 {
        let left_out = self.values.len() as f64 - self.effective_count();
        self.power * self.weights.map_or(0.0, |weights| weights.evidence) + 0.5 * left_out * (LOG_2_PI + noise.ln())
    }
}

impl<'a, V: AsRef<[f64]> + ?Sized> From<&'a V> for Targets<'a> {
    fn from(values: &'a V) -> Self {
        Self::new(values.as_ref(), None)
    }
}
