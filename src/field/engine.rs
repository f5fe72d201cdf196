//! The Gaussian process of the map, built from the settings: kernel, likelihood, prior, selection and learning.

use std::sync::Arc;

use crate::config::{self, Ceiling, Config, Hyperparameters, VectorHyperparameters};
use streaming_gp::{
    HeavyTail, Inference, Jitter, Kernel, Learning, Likelihood, Limits, LogNormalPrior, Model, Posterior, Settings,
    Stationary, StudentT, VectorField, Vips,
};

/// Covariance of the field strength: a constant for the ambient field (optional) plus the variation around it.
pub type FieldKernel = Stationary;

/// The posterior of the field strength, in microtesla, over points of the plane, in metres.
pub type FieldPosterior = Posterior<FieldKernel>;

/// The posterior of the field's axes, in microtesla, and of the sensor's bias.
pub type VectorPosterior = Posterior<VectorField>;

/// Learning of the axes ends when an iteration gains less than this, in nats: a tenth of what moves a hyperparameter by a standard deviation of
/// its posterior. With less, learning takes longer and maps are no better (`docs/defaults.md`).
const LEAST_GAIN: f64 = 0.05;

/// Index of the lengthscale among the hyperparameters of the axes.
const LENGTHSCALE: usize = 2;

/// Number of coordinates of a point of the map.
pub(crate) const DIMENSION: usize = 2;

/// The initial model, over places of `dimension` coordinates.
pub fn model(config: &Config, dimension: usize) -> Model<FieldKernel> {
    let Hyperparameters { constant, variance, lengthscale, noise } = config.model.initial;
    let lengthscales = vec![lengthscale; lengthscales(config, dimension)];
    Model {
        kernel: Stationary {
            constant: config.model.constant.then_some(constant),
            shape: config.model.kernel,
            variance,
            lengthscales,
        },
        noise,
        likelihood: likelihood(&config.model),
        mean: config.model.mean,
        jitter: Jitter::Relative(config.model.relative_jitter),
    }
}

/// The likelihood of readings.
pub(crate) fn likelihood(settings: &config::Model) -> Likelihood {
    let degrees_of_freedom = settings.degrees_of_freedom;
    match settings.likelihood {
        config::Likelihood::Gaussian => Likelihood::Gaussian,
        config::Likelihood::StudentT => Likelihood::StudentT(StudentT { degrees_of_freedom }),
    }
}

/// Number of lengthscales of the kernel.
fn lengthscales(config: &Config, dimension: usize) -> usize {
    if config.model.lengthscale_per_axis { dimension } else { 1 }
}

/// Settings of the streaming model, over places of `dimension` coordinates.
pub fn settings(config: &Config, dimension: usize) -> Settings<FieldKernel> {
    // In the order of the model's vector of hyperparameters.
    let spread = |values: &Hyperparameters| {
        let mut spread = Vec::new();
        spread.extend(config.model.constant.then_some(values.constant));
        spread.push(values.variance);
        spread.extend(vec![values.lengthscale; lengthscales(config, dimension)]);
        spread.push(values.noise);
        spread
    };
    let config::Learning { prior_median, prior_log_sd, .. } = &config.learning;
    let prior = log_normal_prior(spread(prior_median), spread(prior_log_sd));
    streaming_settings(config, config.selection.delta, prior)
}

/// The initial model of the field's axes and the sensor's bias.
pub fn vector_model(config: &Config) -> Model<VectorField> {
    let config::Vector { sources_above, initial, hard_iron, speed_bias, .. } = &config.vector;
    Model {
        kernel: VectorField {
            constant: initial.constant,
            variance: initial.variance,
            variance_above: sources_above.then_some(initial.variance_above),
            lengthscale: initial.lengthscale,
            plane: 0.0,
            hard_iron: *hard_iron,
            speed_bias: *speed_bias,
            bias_covariance: None,
        },
        noise: initial.noise,
        likelihood: likelihood(&config.model),
        mean: 0.0,
        jitter: Jitter::Relative(config.model.relative_jitter),
    }
}

/// Settings of the streaming model of the field's axes.
pub fn vector_settings(config: &Config) -> Settings<VectorField> {
    let config::Vector { prior_median, prior_log_sd, prior_observations, delta, likelihood_power, power_ep, .. } =
        &config.vector;
    let tail = HeavyTail { index: LENGTHSCALE, degrees_of_freedom: config.vector.prior_degrees_of_freedom, power: 1.0 };
    // In the order of the model's vector of hyperparameters.
    let spread = |values: &VectorHyperparameters| {
        let mut spread = vec![values.constant, values.variance, values.lengthscale];
        spread.extend(config.vector.sources_above.then_some(values.variance_above));
        spread.push(values.noise);
        spread
    };
    let prior = LogNormalPrior { tail: Some(tail), ..log_normal_prior(spread(prior_median), spread(prior_log_sd)) };
    let settings = streaming_settings(config, *delta, prior);
    // An observation is three rows.
    let learning = Learning { prior_rows: 3 * prior_observations, least_gain: LEAST_GAIN, ..settings.learning };
    let inference = match settings.inference {
        // No power is variational inference.
        Inference::Variational => Inference::power_ep(*power_ep).unwrap_or_default(),
        chosen => chosen,
    };
    Settings { learning, inference, likelihood_power: *likelihood_power, ..settings }
}

fn log_normal_prior(medians: Vec<f64>, log_standard_deviations: Vec<f64>) -> LogNormalPrior {
    let log_medians = medians.into_iter().map(f64::ln).collect();
    LogNormalPrior { log_medians, log_standard_deviations, tail: None }
}

/// Settings under this prior of the hyperparameters.
fn streaming_settings<K: Kernel>(config: &Config, delta: f64, prior: LogNormalPrior) -> Settings<K> {
    let (selection, learning) = (&config.selection, &config.learning);
    let vips = Vips {
        delta,
        guards: selection.guards,
        exact_limit: match selection.ceiling {
            Ceiling::Auto => selection.exact_limit,
            Ceiling::Upper => 0,
        },
    };
    let mut settings = Settings {
        selection: Arc::new(vips.clone()),
        limits: Limits { max_inducing_points: selection.max_inducing_points, least_share: selection.redundancy },
        learning: Learning {
            max_evaluations: learning.max_evaluations,
            least_rows: learning.min_observations,
            prior: learning.prior.then_some(prior),
            noise_memory: learning.noise_memory as f64,
            ..Learning::default()
        },
        redundancy: selection.redundancy,
        inference: Inference::default(),
        likelihood_power: 1.0,
    };
    selection.method.configure(&mut settings, &vips);
    settings
}
