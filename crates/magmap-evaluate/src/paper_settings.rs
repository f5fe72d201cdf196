//! The settings of the papers' experiments on synthetic data and on tables.

use magmap::config::{Config, Hyperparameters, Learning, Mapped, Model, Selection};
use streaming_gp::Shape;

/// A squared exponential kernel alone, and hyperparameters learnt from each batch until the bound no longer rises, with no prior and no
/// memory of the noise. Learning starts from the lengthscale, the variance and the noise variance; `delta` is the default of `vips`.
pub(super) fn settings(lengthscale: f64, variance: f64, noise: f64, delta: f64) -> Config {
    let defaults = Config::default();
    Config {
        model: Model {
            field: Mapped::Strength,
            kernel: Shape::SquaredExponential,
            constant: false,
            initial: Hyperparameters { lengthscale, variance, noise, ..defaults.model.initial.clone() },
            ..defaults.model
        },
        selection: Selection { delta, guards: false, redundancy: 0.0, ..defaults.selection },
        learning: Learning {
            max_evaluations: 1000,
            min_observations: 0,
            noise_memory: 0,
            prior: false,
            ..defaults.learning
        },
        ..defaults
    }
}
