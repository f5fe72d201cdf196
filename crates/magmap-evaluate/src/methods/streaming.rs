//! The streaming model, with any method that its settings name.

use super::{Learner, Learnt, Named, Refused};
use magmap::config::Config;
use magmap::mapping::field_model::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::points::Points;
use streaming_gp::streaming::StreamingGp;

struct Streaming(StreamingGp<FieldKernel>);

pub(super) fn learner(config: &Config, dimension: usize, named: &Named) -> Box<dyn Learner> {
    let mut config = config.clone();
    config.selection.method = named.to_string().parse().expect("a method of the streaming model");
    let (model, settings) = (field_model::model(&config, dimension), field_model::settings(&config, dimension));
    Box::new(Streaming(StreamingGp::new(model, settings)))
}

impl Learner for Streaming {
    fn learn(&mut self, places: &Points, targets: &[f64]) -> Result<Learnt, Refused> {
        Ok(self.0.update(places, targets, &|| false)?.into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.0.posterior().map(Arc::as_ref)
    }
}
