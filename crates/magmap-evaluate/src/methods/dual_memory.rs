//! Memory-based dual sparse Gaussian processes.

use super::{Learner, Learnt, Named, Refused};
use magmap::config::Config;
use magmap::mapping::field_model::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::dual_memory::DualGp;
use streaming_gp::points::Points;
use streaming_gp::report::UpdateReport;

struct Dual(DualGp<FieldKernel>);

pub(super) fn learner(config: &Config, dimension: usize, named: &Named) -> Box<dyn Learner> {
    let mut config = config.clone();
    config.selection.method = named.to_string().parse().expect("a method of maps");
    let settings = field_model::dual_settings(&config, dimension);
    Box::new(Dual(DualGp::new(field_model::model(&config, dimension), settings)))
}

impl Learner for Dual {
    fn learn(&mut self, places: &Points, targets: &[f64]) -> Result<Learnt, Refused> {
        Ok(UpdateReport::from(self.0.update(places, targets, &|| false)?).into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.0.posterior().map(Arc::as_ref)
    }
}
