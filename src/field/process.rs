//! The Gaussian process behind the map: of the strength, or of the three axes.

use std::sync::Arc;

use crate::config::{Config, Mapped};
use crate::field::engine::{self, DIMENSION, FieldKernel};
use crate::field::posterior::MapPosterior;
use crate::field::sensor_bias::{BiasInformation, BiasPrior};
use crate::sensing::reading::Observation;
use serde::{Deserialize, Serialize};
use streaming_gp::streaming::Error;
use streaming_gp::{
    AxesReading, FieldPlaces, NamedValue, NoiseBaselines, Points, SensorPose, State, StateError, StreamingGp,
    UpdateReport, VectorField,
};

/// Kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProcessKind {
    Strength,
    Vector,
}

/// The properties of a process beside its arrays of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProcessHead {
    pub(crate) kind: ProcessKind,
    /// Number of targets in the noise baseline.
    pub(crate) targets: u64,
    pub(crate) hyperparameter_names: Vec<String>,
}

impl ProcessHead {
    fn new(kind: ProcessKind, baseline: &NoiseBaselines, hyperparameters: &[NamedValue]) -> Self {
        let hyperparameter_names = hyperparameters.iter().map(|value| value.name.clone()).collect();
        Self { kind, targets: baseline.count(), hyperparameter_names }
    }
}

/// Learns the field from a stream of batches.
#[derive(Clone, Debug)]
pub(crate) enum TileProcess {
    /// Of the strength.
    Strength(Box<StreamingGp<FieldKernel>>),
    /// Of the three axes.
    Vector(Box<VectorProcess>),
}

/// Learns the three axes and the sensor's bias.
#[derive(Clone, Debug)]
pub(crate) struct VectorProcess {
    process: StreamingGp<VectorField>,
    /// The knowledge of the bias before this process; none where nothing was known.
    bias: Option<BiasPrior>,
    /// Whether its first hyperparameters are those of its neighbours.
    inherits: bool,
}

/// Everything a [`TileProcess`] has learnt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProcessState {
    Strength(State<Points>),
    Vector(Box<VectorState>),
}

/// Everything a process of the three axes has learnt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VectorState {
    pub(crate) state: State<FieldPlaces>,
    /// The knowledge of the bias before this process.
    pub(crate) bias: Option<BiasPrior>,
    /// Height of the plane between the sources, in metres.
    pub(crate) plane: f64,
}

impl ProcessState {
    /// The properties of the process beside its arrays of numbers.
    pub(crate) fn head(&self) -> ProcessHead {
        match self {
            Self::Strength(state) => ProcessHead::new(ProcessKind::Strength, &state.baseline, &state.hyperparameters),
            Self::Vector(vector) => {
                ProcessHead::new(ProcessKind::Vector, &vector.state.baseline, &vector.state.hyperparameters)
            }
        }
    }

    /// Validates the state.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        match self {
            Self::Strength(state) => state.check(),
            Self::Vector(vector) => vector.state.check(),
        }
    }
}

impl TileProcess {
    /// A process without any observation.
    pub(crate) fn new(config: &Config) -> Self {
        if config.model.field == Mapped::Vector {
            let (model, settings) = (engine::vector_model(config), engine::vector_settings(config));
            let process = StreamingGp::new(model, settings);
            return Self::Vector(Box::new(VectorProcess { process, bias: None, inherits: false }));
        }
        let (model, settings) = (engine::model(config, DIMENSION), engine::settings(config, DIMENSION));
        Self::Strength(Box::new(StreamingGp::new(model, settings)))
    }

    /// A process without any observation that begins with what is known of the sensor's bias, and with the geometric means of its
    /// neighbours' hyperparameters, given as their logarithms, if it has neighbours.
    pub(crate) fn beside(config: &Config, neighbours: &[&[f64]], bias: Option<BiasPrior>) -> Self {
        let mut process = Self::new(config);
        let mut values = process.log_parameters();
        if !neighbours.is_empty() {
            let sum = |index: usize| neighbours.iter().map(|values| values[index]).sum::<f64>();
            let mean = |index: usize| sum(index) / neighbours.len() as f64;
            values = (0..values.len()).map(mean).collect();
        }
        match &mut process {
            Self::Strength(process) => process.model = process.model.with_log_parameters(&values),
            Self::Vector(vector) => {
                let mut model = vector.process.model.with_log_parameters(&values);
                model.kernel.bias_covariance = bias.map(|bias| bias.covariance);
                vector.process.model = model;
                (vector.bias, vector.inherits) = (bias, !neighbours.is_empty());
            }
        }
        process
    }

    /// Logarithms of its hyperparameters.
    pub(crate) fn log_parameters(&self) -> Vec<f64> {
        match self {
            Self::Strength(process) => process.model.log_parameters(),
            Self::Vector(vector) => vector.process.model.log_parameters(),
        }
    }

    /// Changes the settings.
    pub(crate) fn configure(&mut self, config: &Config) {
        match self {
            Self::Strength(process) => process.settings = engine::settings(config, DIMENSION),
            Self::Vector(vector) => vector.process.settings = engine::vector_settings(config),
        }
    }

    /// Everything it has learnt.
    pub(crate) fn state(&self) -> ProcessState {
        match self {
            Self::Strength(process) => ProcessState::Strength(process.state()),
            Self::Vector(vector) => {
                let VectorProcess { process, bias, .. } = &**vector;
                let plane = process.model.kernel.plane;
                ProcessState::Vector(Box::new(VectorState { state: process.state(), bias: *bias, plane }))
            }
        }
    }

    /// Continues from a state, bit for bit as if it had never stopped.
    ///
    /// # Errors
    /// [`State`](super::Error::State) for an inconsistent state.
    pub(crate) fn from_state(config: &Config, state: &ProcessState) -> Result<Self, super::Error> {
        Ok(match state {
            ProcessState::Strength(state) => {
                let (kernel, settings) = (engine::model(config, DIMENSION).kernel, engine::settings(config, DIMENSION));
                Self::Strength(Box::new(StreamingGp::from_state(kernel, settings, state)?))
            }
            ProcessState::Vector(vector) => {
                let VectorState { state, bias, plane } = &**vector;
                let (mut kernel, settings) = (engine::vector_model(config).kernel, engine::vector_settings(config));
                (kernel.bias_covariance, kernel.plane) = (bias.map(|bias| bias.covariance), *plane);
                let process = StreamingGp::from_state(kernel, settings, state)?;
                Self::Vector(Box::new(VectorProcess { process, bias: *bias, inherits: false }))
            }
        })
    }

    /// The properties of the process beside its arrays of numbers.
    pub(crate) fn head(&self) -> ProcessHead {
        let (kind, baseline, hyperparameters) = match self {
            Self::Strength(process) => (ProcessKind::Strength, &process.baseline, process.model.named_values()),
            Self::Vector(vector) => {
                (ProcessKind::Vector, &vector.process.baseline, vector.process.model.named_values())
            }
        };
        ProcessHead::new(kind, baseline, &hyperparameters)
    }

    /// Keeps the observations of the next batch that can be learnt from: those that are clearly between the sources below and above. Before
    /// the first batch this decides the height of the plane between them, which is the median of the batch.
    pub(crate) fn select_reachable(&mut self, observations: &mut Vec<Observation>) {
        let Self::Vector(vector) = self else { return };
        let process = &mut vector.process;
        if process.model.kernel.variance_above.is_none() {
            return;
        }
        if process.posterior().is_none() {
            process.model.kernel.plane = median_height(observations);
        }
        observations.retain(|seen| process.model.kernel.reaches(seen.position.z));
    }

    /// Learns from one batch. `stop` is checked before every evaluation of the objective.
    ///
    /// # Errors
    /// Why the batch was rejected; the process is then unchanged.
    pub(crate) fn update(
        &mut self,
        observations: &[Observation],
        stop: &dyn Fn() -> bool,
    ) -> Result<UpdateReport, Error> {
        match self {
            Self::Strength(process) => {
                let strengths: Vec<f64> = observations.iter().map(|observation| observation.strength).collect();
                process.update(&places(observations), &strengths, stop)
            }
            Self::Vector(vector) => {
                let VectorProcess { process, bias, inherits } = &mut **vector;
                let reading = |seen| match bias {
                    Some(bias) => axes_reading(seen).without(&bias.mean),
                    None => axes_reading(seen),
                };
                let readings: Vec<AxesReading> = observations.iter().map(reading).collect();
                let (places, targets) = AxesReading::rows(&readings);
                if !*inherits {
                    process.learn_start(&places, &targets, stop)?;
                }
                process.update(&places, &targets, stop)
            }
        }
    }

    /// The kernel of the three axes; none of a process of strengths.
    pub(crate) fn vector_kernel(&self) -> Option<&VectorField> {
        match self {
            Self::Vector(vector) => Some(&vector.process.model.kernel),
            Self::Strength(_) => None,
        }
    }

    /// The process's knowledge of the sensor's bias; none where it learns none, and before the first batch.
    pub(crate) fn bias_information(&self) -> Option<BiasInformation> {
        match self {
            Self::Vector(vector) => BiasInformation::learnt(vector.process.posterior()?, vector.bias.as_ref()),
            Self::Strength(_) => None,
        }
    }

    /// The current posterior; none before the first batch.
    pub(crate) fn posterior(&self) -> Option<MapPosterior> {
        match self {
            Self::Strength(process) => process.posterior().cloned().map(MapPosterior::Scalar),
            Self::Vector(vector) => {
                let posterior = vector.process.posterior()?;
                let removed = vector.bias.map_or_else(Default::default, |bias| bias.mean);
                Some(MapPosterior::Vector { posterior: Arc::clone(posterior), removed })
            }
        }
    }
}

/// The places of observations in the plane.
fn places(observations: &[Observation]) -> Points {
    let mut places = Points::new(DIMENSION);
    observations.iter().for_each(|observation| places.push(&[observation.position.x, observation.position.y]));
    places
}

/// Zero without any observation.
fn median_height(observations: &[Observation]) -> f64 {
    let mut heights: Vec<f64> = observations.iter().map(|seen| seen.position.z).collect();
    heights.sort_unstable_by(f64::total_cmp);
    heights.get(heights.len() / 2).copied().unwrap_or_default()
}

fn axes_reading(observation: &Observation) -> AxesReading {
    let SensorPose { position, orientation, speed } = observation.into();
    AxesReading { position, field: (*observation.field.microtesla()).into(), orientation, speed }
}

impl From<&Observation> for SensorPose {
    fn from(Observation { position, orientation, speed, .. }: &Observation) -> Self {
        Self { position: position.coords.into(), orientation: orientation.transpose().into(), speed: *speed }
    }
}
