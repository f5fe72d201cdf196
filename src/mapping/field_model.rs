//! The map's model: observations of field strength in the plane, learnt by a sparse Gaussian process.

use super::field_process::{FieldProcess, ProcessState};
use super::quantity::Quantity;
use super::reading::{Observation, Stamp};
use crate::config::{self, Ceiling, Config, Hyperparameters};
use std::sync::Arc;
use streaming_gp::dual_memory::{self, MemorySize, OldEvidence};
use streaming_gp::hyperparameters::LogNormalPrior;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Constant, Stationary, Sum};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::{Likelihood, StudentT};
use streaming_gp::link::Link;
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::report::UpdateReport;
use streaming_gp::selection::Limits;
use streaming_gp::selection::vips::Vips;
use streaming_gp::streaming::{Error, Settings};

use serde::{Deserialize, Serialize};
use toml::Table;

/// Covariance of the field strength: a constant for the ambient field, unless it is switched off, and what varies around it.
pub type FieldKernel = Sum<Option<Constant>, Stationary>;

/// The posterior of the field strength, in microtesla, over points of the plane, in metres.
pub type FieldPosterior = Posterior<FieldKernel>;

/// The model of the field strength in the plane.
#[derive(Clone, Debug)]
pub struct FieldModel {
    /// Those of the model.
    settings: config::Model,
    process: FieldProcess,
    totals: Totals,
    extent: Option<[[f64; 2]; 2]>,
    newest: Option<Stamp>,
}

/// What went into a map, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Updates of the model.
    pub updates: u64,
    /// Batches that were refused.
    pub refused_batches: u64,
    /// Observations it was learnt from.
    pub observations: u64,
    /// Readings that these were averaged from.
    pub used_readings: u64,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} readings in {} updates", self.used_readings, self.updates)
    }
}

impl Totals {
    /// Batches that the map has been taught, those that it refused included.
    pub fn batches(&self) -> u64 {
        self.updates.saturating_add(self.refused_batches)
    }

    fn add(&mut self, observations: &[Observation]) {
        // A file may claim any number.
        self.updates = self.updates.saturating_add(1);
        self.observations = self.observations.saturating_add(observations.len() as u64);
        let readings = observations.iter().map(|observation| u64::from(observation.readings)).sum();
        self.used_readings = self.used_readings.saturating_add(readings);
    }
}

/// Everything a [`FieldModel`] has learnt, and the settings that give it its meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldState {
    pub(super) settings: config::Model,
    pub(super) process: ProcessState,
    pub(super) totals: Totals,
    pub(super) extent: Option<[[f64; 2]; 2]>,
    pub(super) newest: Option<Stamp>,
}

/// Coordinates of a point of the map.
pub(super) const DIMENSION: usize = 2;

impl FieldModel {
    /// Knows nothing yet but what the settings say.
    pub fn new(config: &Config) -> Self {
        Self {
            settings: config.model.clone(),
            process: FieldProcess::new(config),
            totals: Totals::default(),
            extent: None,
            newest: None,
        }
    }

    /// Goes on with the sections `selection`, `dual_memory` and `learning` of these settings; the model and what it knows stay. A
    /// method of another model changes nothing.
    pub fn configure(&mut self, config: &Config) {
        self.process.configure(config);
    }

    /// Everything it has learnt.
    pub fn state(&self) -> FieldState {
        FieldState {
            settings: self.settings.clone(),
            process: self.process.state(),
            totals: self.totals,
            extent: self.extent,
            newest: self.newest,
        }
    }

    /// Goes on from a state, to the last bit as if it had never been taken out. How inducing points are chosen and
    /// hyperparameters learnt is as `config` says; what the section `model` says, but for where learning starts, is fixed for a
    /// map's life.
    ///
    /// # Errors
    /// [`SettingDiffers`](super::Error::SettingDiffers) where the configuration is for another model, and
    /// [`State`](super::Error::State) where the state is none.
    pub fn from_state(config: &Config, state: &FieldState) -> Result<Self, super::Error> {
        check_same_model(&state.settings, &config.model)?;
        Ok(Self {
            settings: config.model.clone(),
            process: FieldProcess::from_state(config, &state.process)?,
            totals: state.totals,
            extent: state.extent,
            newest: state.newest,
        })
    }

    /// Takes in one batch of observations. `stop` is asked before every evaluation of learning.
    ///
    /// # Errors
    /// When the batch is refused; the model is then as it was.
    pub fn update(&mut self, observations: &[Observation], stop: &dyn Fn() -> bool) -> Result<UpdateReport, Error> {
        let mut places = Points::new(DIMENSION);
        observations.iter().for_each(|observation| places.push(&[observation.position.x, observation.position.y]));
        let target = match self.settings.likelihood {
            config::Likelihood::Bernoulli => Observation::label,
            config::Likelihood::Gaussian | config::Likelihood::StudentT => |seen: &Observation| seen.strength,
        };
        let targets: Vec<f64> = observations.iter().map(target).collect();
        let report = self.process.update(&places, &targets, stop).inspect_err(|_| {
            self.totals.refused_batches = self.totals.refused_batches.saturating_add(1);
        })?;
        self.totals.add(observations);
        for observation in observations {
            let place = [observation.position.x, observation.position.y];
            let [low, high] = self.extent.unwrap_or([place; 2]);
            self.extent =
                Some([[low[0].min(place[0]), low[1].min(place[1])], [high[0].max(place[0]), high[1].max(place[1])]]);
        }
        self.newest = observations.last().map(|observation| observation.stamp).or(self.newest);
        Ok(report)
    }

    /// What went into the map.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Lower left and upper right corner, in metres, of where it has learnt; none before the first batch that was not refused.
    pub fn extent(&self) -> Option<[[f64; 2]; 2]> {
        self.extent
    }

    /// Stamp of the last observation it has learnt from.
    pub fn newest(&self) -> Option<Stamp> {
        self.newest
    }

    /// The newest posterior; none before the first batch.
    pub fn posterior(&self) -> Option<&Arc<FieldPosterior>> {
        self.process.posterior()
    }

    /// What it maps.
    pub fn quantity(&self) -> Quantity {
        quantity_by(link(&self.settings))
    }

    /// The model with its newest hyperparameters.
    pub fn model(&self) -> &Model<FieldKernel> {
        self.process.model()
    }
}

/// Refuses a configuration whose section `model` differs in more than where learning starts.
fn check_same_model(made_with: &config::Model, configured: &config::Model) -> Result<(), super::Error> {
    let section = |settings| Table::try_from(settings).map_err(config::Error::from);
    let has_no_degrees = [made_with, configured].iter().all(|model| model.likelihood != config::Likelihood::StudentT);
    let (made_with, configured) = (section(made_with)?, section(configured)?);
    let matters = |key: &str| key != "initial" && !(key == "degrees_of_freedom" && has_no_degrees);
    let differing = made_with.iter().find(|&(key, value)| matters(key) && configured.get(key) != Some(value));
    differing.map_or(Ok(()), |(key, value)| {
        let configured = configured.get(key).map_or_else(String::new, ToString::to_string);
        Err(super::Error::SettingDiffers { key: format!("model.{key}"), made_with: value.to_string(), configured })
    })
}

/// The model that learning starts from, over places of so many coordinates.
pub fn model(config: &Config, dimension: usize) -> Model<FieldKernel> {
    let Hyperparameters { constant, variance, lengthscale, noise } = start(config).initial;
    let lengthscales = vec![lengthscale; lengthscales(config, dimension)];
    Model {
        kernel: Sum(
            config.model.constant.then_some(Constant { variance: constant }),
            Stationary { shape: config.model.kernel, variance, lengthscales },
        ),
        noise,
        likelihood: likelihood(&config.model),
        mean: config.model.mean,
        jitter: Jitter::Relative(config.model.relative_jitter),
    }
}

/// Where learning starts, and the prior.
struct Start {
    initial: Hyperparameters,
    prior_median: Hyperparameters,
    prior_log_sd: Hyperparameters,
}

fn start(config: &Config) -> Start {
    let config::Bernoulli { constant, variance, lengthscale, prior_log_sd: sd } = config.bernoulli;
    match config.model.likelihood {
        config::Likelihood::Bernoulli => {
            // The noise is without effect.
            let initial = Hyperparameters { constant, variance, lengthscale, noise: 1.0 };
            let prior_log_sd = Hyperparameters { constant: sd, variance: sd, lengthscale: sd, noise: sd };
            Start { prior_median: initial.clone(), initial, prior_log_sd }
        }
        config::Likelihood::Gaussian | config::Likelihood::StudentT => Start {
            initial: config.model.initial.clone(),
            prior_median: config.learning.prior_median.clone(),
            prior_log_sd: config.learning.prior_log_sd.clone(),
        },
    }
}

/// How labels depend on the latent function; none where strengths are mapped.
pub(super) fn link(settings: &config::Model) -> Option<Link> {
    match settings.likelihood {
        config::Likelihood::Gaussian | config::Likelihood::StudentT => None,
        config::Likelihood::Bernoulli => Some(Link::Probit),
    }
}

/// How measured strengths depend on the latent function; without effect on labels.
pub(super) fn likelihood(settings: &config::Model) -> Likelihood {
    let degrees_of_freedom = settings.degrees_of_freedom;
    match settings.likelihood {
        config::Likelihood::Gaussian | config::Likelihood::Bernoulli => Likelihood::Gaussian,
        config::Likelihood::StudentT => Likelihood::StudentT(StudentT { degrees_of_freedom }),
    }
}

/// How many lengthscales the kernel has.
fn lengthscales(config: &Config, dimension: usize) -> usize {
    if config.model.lengthscale_per_axis { dimension } else { 1 }
}

/// How the streaming model learns, over places of so many coordinates.
pub fn settings(config: &Config, dimension: usize) -> Settings<FieldKernel> {
    let selection = &config.selection;
    let learning = &config.learning;
    // One number per kind, in the order of the model's vector of hyperparameters.
    let spread = |values: &Hyperparameters| {
        let mut spread = Vec::new();
        spread.extend(config.model.constant.then_some(values.constant));
        spread.push(values.variance);
        spread.extend(vec![values.lengthscale; lengthscales(config, dimension)]);
        spread.push(values.noise);
        spread
    };
    let Start { prior_median, prior_log_sd, .. } = start(config);
    let prior = learning.prior.then(|| LogNormalPrior {
        log_medians: spread(&prior_median).into_iter().map(f64::ln).collect(),
        log_standard_deviations: spread(&prior_log_sd),
    });
    let vips = Vips {
        delta: selection.delta,
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
            prior,
            noise_memory: learning.noise_memory as f64,
        },
        redundancy: selection.redundancy,
        inference: Inference::default(),
    };
    selection.method.configure(&mut settings, &vips);
    settings
}

/// How the dual model learns, over places of so many coordinates.
pub fn dual_settings(config: &Config, dimension: usize) -> dual_memory::Settings {
    let config::DualMemory { inducing_points, memory_per_batch, max_memory, memory_evidence, max_steps, step_length } =
        config.dual_memory;
    let method = &config.selection.method;
    let memory = method.parameter().filter(|_| method.is_dual_memory());
    let per_batch = memory.map_or(memory_per_batch, |memory| memory.ceil() as usize);
    dual_memory::Settings {
        inducing_points,
        least_share: config.selection.redundancy,
        memory: MemorySize { per_batch, most: max_memory },
        steps: max_steps,
        step_length,
        old_evidence: OldEvidence::ScaledMemory { share: memory_evidence },
        learning: settings(config, dimension).learning,
    }
}

/// What a map with this posterior is of.
pub fn quantity(posterior: &FieldPosterior) -> Quantity {
    quantity_by(posterior.link())
}

fn quantity_by(link: Option<Link>) -> Quantity {
    link.map_or(Quantity::Strength, |_| Quantity::Probability)
}

/// Mean and variance of what the map is of, given those of the latent function: the same for a field, for a yes/no signal those of the
/// probability of a yes.
pub fn of_quantity(posterior: &FieldPosterior, mean: f64, variance: f64) -> (f64, f64) {
    match posterior.link() {
        None => (mean, variance),
        Some(link) => (link.probability(mean, variance), link.deviation_of_probability(mean, variance).powi(2)),
    }
}

/// The variance of the latent function where the map knows nothing: what it says infinitely far from every reading.
pub fn far_variance(posterior: &FieldPosterior) -> f64 {
    let far = Points::from_arrays(&[[1e9, 1e9]]);
    let (mut mean, mut variance) = ([0.0], [0.0]);
    posterior.predict(&far, &mut mean, &mut variance);
    variance[0]
}

/// The standard deviation of what the map is of where nothing is known: of the field strength around its constant, in microtesla, or of
/// the probability of a yes.
pub fn prior_standard_deviation(posterior: &FieldPosterior) -> f64 {
    of_quantity(posterior, 0.0, posterior.model().kernel.1.variance).1.sqrt()
}

/// Where the inducing points are, in metres.
pub fn inducing_points(posterior: &FieldPosterior) -> Vec<[f64; 2]> {
    let points = posterior.inducing();
    points.axis(0).iter().zip(points.axis(1)).map(|(&x, &y)| [x, y]).collect()
}
