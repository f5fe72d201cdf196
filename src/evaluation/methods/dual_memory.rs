//! Memory-based dual sparse Gaussian processes.

use super::{Learner, Learnt, Named, Refused};
use crate::config::Config;
use crate::gp::dual_memory::{DualGp, MemorySize, OldEvidence, Settings};
use crate::gp::methods::Parameter;
use crate::gp::points::Points;
use crate::mapping::field_model::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;

/// The parameter of `dual_memory`.
pub(super) const PARAMETER: Parameter =
    Parameter { symbol: "memory", meaning: "readings of each batch that are remembered", above: -1.0, most: 1e6 };

struct Dual(DualGp<FieldKernel>);

/// As in the published experiment with a magnetometer: 100 inducing points, and so many readings of each batch in memory.
pub(super) fn learner(config: &Config, dimension: usize, named: &Named) -> Box<dyn Learner> {
    let settings = Settings {
        inducing_points: 100,
        least_share: config.selection.redundancy,
        memory: MemorySize { per_batch: named.parameter().unwrap_or(100.0).ceil() as usize, most: usize::MAX },
        steps: 50,
        step_length: 0.9,
        old_evidence: OldEvidence::ScaledMemory,
        learning: field_model::settings(config, dimension).learning,
    };
    Box::new(Dual(DualGp::new(field_model::model(config, dimension), settings)))
}

impl Learner for Dual {
    fn learn(&mut self, places: &Points, targets: &[f64]) -> Result<Learnt, Refused> {
        let report = self.0.update(places, targets, &|| false)?;
        Ok(Learnt {
            inducing_points: report.inducing_points,
            hyperparameters: report.hyperparameters,
            evaluations: report.learning.evaluations,
            end: None,
        })
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.0.posterior().map(Arc::as_ref)
    }
}
