//! The map that costs nothing.

use super::learner::{Learner, Learnt};
use crate::metrics::{Predictions, Readings};
use magmap::field::engine::FieldPosterior;
use streaming_gp::{NoiseBaselines, Places, Points};

/// Mean and variance of all readings so far: the noise model of the papers.
#[derive(Default)]
pub(super) struct Mean(NoiseBaselines);

impl Learner for Mean {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        self.0 = self.0.including(&batch.places, &batch.targets);
        Ok(Learnt::default())
    }

    fn predict(&self, places: &Points) -> Predictions {
        let (all, count) = (self.0.outputs()[0], places.len());
        Predictions { means: vec![all.mean; count], variances: vec![all.variance(); count] }
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        None
    }
}
