//! The models that make maps.

use super::learner::{Learner, Learnt};
use crate::metrics::Readings;
use magmap::config::Config;
use magmap::field::engine::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::{DualGp, StreamingGp};

/// The model of the method that the settings name.
pub(super) fn learner(config: &Config, dimension: usize) -> Box<dyn Learner> {
    let model = engine::model(config, dimension);
    match config.selection.method.is_dual_memory() {
        true => Box::new(DualGp::new(model, engine::dual_settings(config, dimension))),
        false => Box::new(StreamingGp::new(model, engine::settings(config, dimension))),
    }
}

impl Learner for StreamingGp<FieldKernel> {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        Ok(self.update(&batch.places, &batch.targets, &|| false)?.into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.posterior().map(Arc::as_ref)
    }
}

impl Learner for DualGp<FieldKernel> {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        Ok(self.update(&batch.places, &batch.targets, &|| false)?.update.into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.posterior().map(Arc::as_ref)
    }
}
