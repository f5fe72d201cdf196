//! What a batch says: its targets, and how much each of them counts.

use super::likelihood::Weights;

/// The targets of a batch. They count alike unless there are weights: then the noise of each has its variance divided by its own.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    values: &'a [f64],
    weights: Option<&'a Weights>,
}

impl<'a> Targets<'a> {
    /// Targets with a weight each, or without.
    ///
    /// # Panics
    /// When there is another number of weights than of targets.
    pub fn new(values: &'a [f64], weights: Option<&'a Weights>) -> Self {
        assert!(weights.is_none_or(|weights| weights.values().len() == values.len()), "one weight per target");
        Self { values, weights }
    }

    /// The targets.
    pub fn values(&self) -> &'a [f64] {
        self.values
    }

    /// Their weights.
    pub fn weights(&self) -> Option<&'a Weights> {
        self.weights
    }

    /// The weight of one; 1 where all count alike.
    pub fn weight(&self, index: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights.values()[index])
    }
}

impl<'a> From<&'a [f64]> for Targets<'a> {
    fn from(values: &'a [f64]) -> Self {
        Self { values, weights: None }
    }
}

impl<'a> From<&'a Vec<f64>> for Targets<'a> {
    fn from(values: &'a Vec<f64>) -> Self {
        Self::from(values.as_slice())
    }
}

impl<'a, const N: usize> From<&'a [f64; N]> for Targets<'a> {
    fn from(values: &'a [f64; N]) -> Self {
        Self::from(values.as_slice())
    }
}
