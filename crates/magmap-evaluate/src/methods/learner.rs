//! The interface of every method: it learns batch by batch, and predicts.

use crate::metrics::{Predictions, Readings};
use magmap::field::engine::FieldPosterior;
use streaming_gp::{NamedValue, Points, SelectionReport, UpdateReport};

/// Learns from one batch after another, and predicts.
pub trait Learner {
    /// Learns from a batch of readings.
    ///
    /// # Errors
    /// When the method rejects it.
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt>;

    /// The posterior of the latent function; none before the first batch, or for a method without one.
    fn posterior(&self) -> Option<&FieldPosterior>;

    /// Predicts measurements at the places, noise included.
    ///
    /// # Panics
    /// Before the first batch.
    fn predict(&self, places: &Points) -> Predictions {
        Predictions::of(self.posterior().expect("there was a batch"), places)
    }
}

/// The state of a learner after a batch.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// Number of inducing points.
    pub inducing_points: usize,
    /// Hyperparameters; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// How inducing points were chosen, by a method that chooses how many.
    pub selection: Option<SelectionReport>,
}

impl From<UpdateReport> for Learnt {
    fn from(report: UpdateReport) -> Self {
        Self {
            inducing_points: report.inducing_points,
            hyperparameters: report.hyperparameters,
            evaluations: report.learning.evaluations,
            selection: Some(report.selection),
        }
    }
}
