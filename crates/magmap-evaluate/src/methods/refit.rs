//! References that keep all readings and learn from all of them at once, as no stream can.

use super::learner::{Learner, Learnt};
use crate::metrics::Readings;
use anyhow::ensure;
use magmap::config::Config;
use magmap::field::engine::{self, FieldKernel, FieldPosterior};
use std::sync::Arc;
use streaming_gp::methods::Parameter;
use streaming_gp::{ConditionalVariance, Limits, Model, Places, Points, Settings, StreamingGp};

/// Most readings of the exact Gaussian process: a matrix of 0.3 gigabytes, which is factored for every evaluation.
pub const MOST_EXACT: usize = 6000;

/// The parameter of `batch_sparse`.
pub(super) const PARAMETER: Parameter =
    Parameter { symbol: "M", meaning: "number of inducing points", above: 0.0, most: 20_000.0 };

/// A batch sparse Gaussian process (Titsias 2009) on all readings so far. With every reading an inducing point it is the exact one.
pub(super) struct Refit {
    /// The model that learning starts from.
    model: Model<FieldKernel>,
    settings: Settings<FieldKernel>,
    most_readings: usize,
    all: Readings,
    process: StreamingGp<FieldKernel>,
}

pub(super) fn exact(config: &Config, dimension: usize) -> Refit {
    Refit::new(config, dimension, Limits { max_inducing_points: MOST_EXACT, least_share: 0.0 }, MOST_EXACT)
}

pub(super) fn batch_sparse(config: &Config, dimension: usize, inducing_points: Option<f64>) -> Refit {
    let max_inducing_points = inducing_points.unwrap_or(500.0).ceil() as usize;
    let limits = Limits { max_inducing_points, least_share: config.selection.redundancy };
    Refit::new(config, dimension, limits, usize::MAX)
}

impl Refit {
    fn new(config: &Config, dimension: usize, limits: Limits, most_readings: usize) -> Self {
        let model = engine::model(config, dimension);
        let settings = Settings {
            // Every reading, by greatest variance left, up to the limits.
            selection: Arc::new(ConditionalVariance { tolerance: 0.0 }),
            limits,
            redundancy: -1.0,
            ..engine::settings(config, dimension)
        };
        let process = StreamingGp::new(model.clone(), settings.clone());
        let all = Readings { places: Points::new(dimension), targets: Vec::new() };
        Self { model, settings, most_readings, all, process }
    }
}

impl Learner for Refit {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        let places = self.all.places.followed_by(&batch.places);
        let targets = [self.all.targets.as_slice(), &batch.targets].concat();
        let (found, most) = (targets.len(), self.most_readings);
        ensure!(
            found <= most,
            "expected at most {most} readings in all for the exact Gaussian process, found {found}: batch_sparse takes more"
        );
        let mut process = StreamingGp::new(self.model.clone(), self.settings.clone());
        let report = process.update(&places, &targets, &|| false)?;
        // The next batch continues from the hyperparameters of this one.
        self.model = process.model.clone();
        (self.all, self.process) = (Readings { places, targets }, process);
        Ok(Learnt { selection: None, ..report.into() })
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.process.posterior().map(Arc::as_ref)
    }
}
