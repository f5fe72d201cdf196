//! The Gaussian process behind the map: streaming, or dual where the method is `dual_memory`.

use std::sync::Arc;

use crate::config::{Config, Mapped};
use crate::field::engine::{self, DIMENSION, FieldKernel, FieldPosterior, VectorPosterior};
use crate::sensing::reading::Observation;
use streaming_gp::dual_memory::DualGp;
use streaming_gp::dual_memory::state::DualState;
use streaming_gp::field_places::FieldPlaces;
use streaming_gp::kernel::VectorField;
use streaming_gp::points::Points;
use streaming_gp::report::UpdateReport;
use streaming_gp::state::{State, StateError};
use streaming_gp::streaming::{Error, StreamingGp};
use streaming_gp::vector::AxesReading;

/// Learns the field from a stream of batches.
#[derive(Clone, Debug)]
pub(crate) enum FieldProcess {
    /// Chooses its own size and keeps no observation.
    Streaming(Box<StreamingGp<FieldKernel>>),
    /// Has a fixed size and a memory of past observations.
    Dual(Box<DualGp<FieldKernel>>),
    /// Streaming, of the three axes.
    Vector(Box<StreamingGp<VectorField>>),
}

/// A posterior of the strength, or of the three axes.
#[derive(Clone, Debug)]
pub enum MapPosterior {
    /// Of the strength, or of the latent function of a yes/no signal.
    Scalar(Arc<FieldPosterior>),
    /// Of the axes and the sensor's bias.
    Vector(Arc<VectorPosterior>),
}

/// Everything a [`FieldProcess`] has learnt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProcessState {
    Streaming(State<Points>),
    Dual(DualState<Points>),
    Vector(State<FieldPlaces>),
}

impl ProcessState {
    /// Validates the state.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        match self {
            Self::Streaming(state) => state.check(),
            Self::Dual(state) => state.check(),
            Self::Vector(state) => state.check(),
        }
    }
}

impl FieldProcess {
    /// A process without any observation.
    pub(crate) fn new(config: &Config) -> Self {
        if config.model.field == Mapped::Vector {
            let (model, settings) = (engine::vector_model(config), engine::vector_settings(config));
            return Self::Vector(Box::new(StreamingGp::new(model, settings)));
        }
        let model = engine::model(config, DIMENSION);
        let dual_settings = || engine::dual_settings(config, DIMENSION);
        match engine::link(&config.model) {
            Some(link) => Self::Dual(Box::new(DualGp::binary(model, link, dual_settings()))),
            None if config.selection.method.is_dual_memory() => {
                Self::Dual(Box::new(DualGp::new(model, dual_settings())))
            }
            None => Self::Streaming(Box::new(StreamingGp::new(model, engine::settings(config, DIMENSION)))),
        }
    }

    /// Changes the settings.
    pub(crate) fn configure(&mut self, config: &Config) {
        match self {
            Self::Streaming(process) => process.configure(engine::settings(config, DIMENSION)),
            Self::Dual(process) => process.configure(engine::dual_settings(config, DIMENSION)),
            Self::Vector(process) => process.configure(engine::vector_settings(config)),
        }
    }

    /// Everything it has learnt.
    pub(crate) fn state(&self) -> ProcessState {
        match self {
            Self::Streaming(process) => ProcessState::Streaming(process.state()),
            Self::Dual(process) => ProcessState::Dual(process.state()),
            Self::Vector(process) => ProcessState::Vector(process.state()),
        }
    }

    /// Continues from a state, bit for bit as if it had never stopped.
    ///
    /// # Errors
    /// [`State`](super::Error::State) for an inconsistent state.
    pub(crate) fn from_state(config: &Config, state: &ProcessState) -> Result<Self, super::Error> {
        let kernel = engine::model(config, DIMENSION).kernel;
        Ok(match state {
            ProcessState::Streaming(state) => {
                let settings = engine::settings(config, DIMENSION);
                Self::Streaming(Box::new(StreamingGp::from_state(kernel, settings, state)?))
            }
            ProcessState::Dual(state) => {
                let settings = engine::dual_settings(config, DIMENSION);
                Self::Dual(Box::new(DualGp::from_state(kernel, settings, state)?))
            }
            ProcessState::Vector(state) => {
                let (kernel, settings) = (engine::vector_model(config).kernel, engine::vector_settings(config));
                Self::Vector(Box::new(StreamingGp::from_state(kernel, settings, state)?))
            }
        })
    }

    /// Whether it has a memory of observations.
    pub(crate) fn is_dual_memory(&self) -> bool {
        matches!(self, Self::Dual(_))
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
        let targets = |target: fn(&Observation) -> f64| -> Vec<f64> { observations.iter().map(target).collect() };
        match self {
            Self::Streaming(process) => process.update(&places(observations), &targets(Observation::strength), stop),
            Self::Dual(process) => {
                let target = if process.link().is_some() { Observation::label } else { Observation::strength };
                process.update(&places(observations), &targets(target), stop).map(UpdateReport::from)
            }
            Self::Vector(process) => {
                let readings: Vec<AxesReading> = observations.iter().map(axes_reading).collect();
                let (places, targets) = AxesReading::rows(&readings);
                process.learn_start(&places, &targets, stop)?;
                process.update(&places, &targets, stop)
            }
        }
    }

    /// The current posterior; none before the first batch.
    pub(crate) fn posterior(&self) -> Option<MapPosterior> {
        match self {
            Self::Streaming(process) => process.posterior().cloned().map(MapPosterior::Scalar),
            Self::Dual(process) => process.posterior().cloned().map(MapPosterior::Scalar),
            Self::Vector(process) => process.posterior().cloned().map(MapPosterior::Vector),
        }
    }
}

/// The places of observations in the plane.
fn places(observations: &[Observation]) -> Points {
    let mut places = Points::new(DIMENSION);
    observations.iter().for_each(|observation| places.push(&[observation.position.x, observation.position.y]));
    places
}

fn axes_reading(observation: &Observation) -> AxesReading {
    let Observation { position, orientation, speed, .. } = observation;
    AxesReading {
        position: position.coords.into(),
        field: (*observation.field().microtesla()).into(),
        orientation: orientation.transpose().into(),
        speed: *speed,
    }
}
