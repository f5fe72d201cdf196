//! The process behind the field's model: the streaming one, or the dual one where the method is `dual_memory`.

use std::sync::Arc;

use super::field_model::{self, DIMENSION, FieldKernel, FieldPosterior};
use crate::config::Config;
use streaming_gp::dual_memory::DualGp;
use streaming_gp::dual_memory::state::DualState;
use streaming_gp::model::Model;
use streaming_gp::points::Points;
use streaming_gp::report::UpdateReport;
use streaming_gp::state::{State, StateError};
use streaming_gp::streaming::{Error, StreamingGp};

/// Learns the field from a stream of batches.
#[derive(Clone, Debug)]
pub(super) enum FieldProcess {
    /// Sizes itself, and keeps no observation.
    Streaming(Box<StreamingGp<FieldKernel>>),
    /// Is of a fixed size, and remembers some observations.
    Dual(Box<DualGp<FieldKernel>>),
}

/// Everything a [`FieldProcess`] has learnt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProcessState {
    Streaming(State<Points>),
    Dual(DualState<Points>),
}

impl ProcessState {
    /// What the states of both have.
    pub(super) fn common(&self) -> &State<Points> {
        match self {
            Self::Streaming(state) => state,
            Self::Dual(state) => &state.common,
        }
    }

    /// Refuses what cannot be the state of any process.
    pub(super) fn check(&self) -> Result<(), StateError> {
        match self {
            Self::Streaming(state) => state.check(),
            Self::Dual(state) => state.check(),
        }
    }
}

impl FieldProcess {
    /// Knows nothing yet but what the settings say.
    pub(super) fn new(config: &Config) -> Self {
        let model = field_model::model(config, DIMENSION);
        let dual_settings = || field_model::dual_settings(config, DIMENSION);
        match field_model::link(&config.model) {
            Some(link) => Self::Dual(Box::new(DualGp::binary(model, link, dual_settings()))),
            None if config.selection.method.is_dual_memory() => {
                Self::Dual(Box::new(DualGp::new(model, dual_settings())))
            }
            None => Self::Streaming(Box::new(StreamingGp::new(model, field_model::settings(config, DIMENSION)))),
        }
    }

    /// Goes on with other settings; those of the other process change nothing.
    pub(super) fn configure(&mut self, config: &Config) {
        match self {
            Self::Streaming(process) => process.configure(field_model::settings(config, DIMENSION)),
            Self::Dual(process) => process.configure(field_model::dual_settings(config, DIMENSION)),
        }
    }

    /// Everything it has learnt.
    pub(super) fn state(&self) -> ProcessState {
        match self {
            Self::Streaming(process) => ProcessState::Streaming(process.state()),
            Self::Dual(process) => ProcessState::Dual(process.state()),
        }
    }

    /// Goes on from a state, to the last bit as if it had never been taken out.
    ///
    /// # Errors
    /// [`SettingDiffers`](super::Error::SettingDiffers) where the method is one of the other process, and
    /// [`State`](super::Error::State) where the state is none.
    pub(super) fn from_state(config: &Config, state: &ProcessState) -> Result<Self, super::Error> {
        let method = &config.selection.method;
        let differs = |made_with: &str| super::Error::SettingDiffers {
            key: "selection.method".to_owned(),
            made_with: made_with.to_owned(),
            configured: format!("\"{method}\""),
        };
        let kernel = field_model::model(config, DIMENSION).kernel;
        Ok(match (state, method.is_dual_memory()) {
            (ProcessState::Streaming(state), false) => {
                let settings = field_model::settings(config, DIMENSION);
                Self::Streaming(Box::new(StreamingGp::from_state(kernel, settings, state)?))
            }
            (ProcessState::Dual(state), true) => {
                let settings = field_model::dual_settings(config, DIMENSION);
                Self::Dual(Box::new(DualGp::from_state(kernel, settings, state)?))
            }
            (ProcessState::Streaming(_), true) => {
                return Err(differs("\"vips\" or another method than \"dual_memory\""));
            }
            (ProcessState::Dual(_), false) => return Err(differs("\"dual_memory\"")),
        })
    }

    /// Takes in one batch. `stop` is asked before every evaluation of learning.
    ///
    /// # Errors
    /// When the batch is refused; the process is then as it was.
    pub(super) fn update(
        &mut self,
        places: &Points,
        targets: &[f64],
        stop: &dyn Fn() -> bool,
    ) -> Result<UpdateReport, Error> {
        match self {
            Self::Streaming(process) => process.update(places, targets, stop),
            Self::Dual(process) => process.update(places, targets, stop).map(UpdateReport::from),
        }
    }

    /// The newest posterior; none before the first batch.
    pub(super) fn posterior(&self) -> Option<&Arc<FieldPosterior>> {
        match self {
            Self::Streaming(process) => process.posterior(),
            Self::Dual(process) => process.posterior(),
        }
    }

    /// The model with its newest hyperparameters.
    pub(super) fn model(&self) -> &Model<FieldKernel> {
        match self {
            Self::Streaming(process) => process.model(),
            Self::Dual(process) => process.model(),
        }
    }
}
