//! The streaming model, which makes maps.

use super::learner::{Learner, Learnt};
use crate::metrics::Readings;
use magmap::config::Config;
use magmap::field::engine::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::StreamingGp;

/// The model of the method that the settings name.
pub(super) fn learner(config: &Config, dimension: usize) -> StreamingGp<FieldKernel> {
    StreamingGp::new(engine::model(config, dimension), engine::settings(config, dimension))
}

impl Learner for StreamingGp<FieldKernel> {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        Ok(self.update(&batch.places, &batch.targets, &|| false)?.into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.posterior().map(Arc::as_ref)
    }
}
