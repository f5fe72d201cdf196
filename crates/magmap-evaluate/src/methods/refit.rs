//! References that keep all readings and learn from all of them at once, as no stream can.

use super::{Learner, Learnt, Named, Refused};
use magmap::config::Config;
use magmap::mapping::field_model::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::kernel::Places;
use streaming_gp::methods::Parameter;
use streaming_gp::model::Model;
use streaming_gp::points::Points;
use streaming_gp::selection::Limits;
use streaming_gp::selection::conditional_variance::ConditionalVariance;
use streaming_gp::streaming::{Settings, StreamingGp};

/// Most readings of the exact Gaussian process: a matrix of 0.3 gigabytes, which is factored for every evaluation.
pub const MOST_EXACT: usize = 6000;

/// The parameter of `batch_sparse`.
pub(super) const PARAMETER: Parameter =
    Parameter { symbol: "M", meaning: "number of inducing points", above: 0.0, most: 20_000.0 };

/// A batch sparse Gaussian process (Titsias 2009) on all readings so far. With every reading an inducing point it is the exact one.
struct Refit {
    /// The model that learning starts from.
    model: Model<FieldKernel>,
    settings: Settings<FieldKernel>,
    most: usize,
    places: Points,
    targets: Vec<f64>,
    process: StreamingGp<FieldKernel>,
}

pub(super) fn exact(config: &Config, dimension: usize, _: &Named) -> Box<dyn Learner> {
    refit(config, dimension, Limits { max_inducing_points: MOST_EXACT, least_share: 0.0 }, MOST_EXACT)
}

pub(super) fn batch_sparse(config: &Config, dimension: usize, named: &Named) -> Box<dyn Learner> {
    let max_inducing_points = named.parameter().unwrap_or(500.0).ceil() as usize;
    let limits = Limits { max_inducing_points, least_share: config.selection.redundancy };
    refit(config, dimension, limits, usize::MAX)
}

fn refit(config: &Config, dimension: usize, limits: Limits, most: usize) -> Box<dyn Learner> {
    let model = field_model::model(config, dimension);
    let settings = Settings {
        // Every reading, by greatest variance left, as far as the limits go.
        selection: Arc::new(ConditionalVariance { tolerance: 0.0 }),
        limits,
        redundancy: -1.0,
        ..field_model::settings(config, dimension)
    };
    let process = StreamingGp::new(model.clone(), settings.clone());
    Box::new(Refit { model, settings, most, places: Points::new(dimension), targets: Vec::new(), process })
}

impl Learner for Refit {
    fn learn(&mut self, places: &Points, targets: &[f64]) -> Result<Learnt, Refused> {
        let found = self.targets.len() + targets.len();
        if found > self.most {
            return Err(Refused::TooMany { found, most: self.most });
        }
        let all = self.places.followed_by(places);
        let values = [self.targets.as_slice(), targets].concat();
        let mut process = StreamingGp::new(self.model.clone(), self.settings.clone());
        let report = process.update(&all, &values, &|| false)?;
        // The next batch goes on from the hyperparameters of this one.
        self.model = process.model().clone();
        (self.places, self.targets, self.process) = (all, values, process);
        Ok(Learnt { end: None, ..report.into() })
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.process.posterior().map(Arc::as_ref)
    }
}
