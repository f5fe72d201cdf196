//! The streaming model: one batch after another, none of them kept.

use super::reweighting;
use crate::{
    Batch, Inference, Kernel, Learning, Likelihood, Limits, Model, NoiseBaselines, NotPositiveDefinite, Places,
    Posterior, Rows, Rule, State, StateError, Targets, UpdateReport, Weights,
};
use std::sync::Arc;

/// Why a batch was rejected. The model is then as it was.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// No readings.
    #[error("expected a batch of at least one reading, found none")]
    Empty,
    /// The numbers of places and targets differ.
    #[error("expected one target per place, found {targets} targets for {places} places")]
    Lengths {
        /// Number of places.
        places: usize,
        /// Number of targets.
        targets: usize,
    },
    /// Another dimension than that of the map.
    #[error("expected places of the same dimension as the inducing points, found another")]
    Dimension,
    /// A number that is not finite.
    #[error("expected finite places and targets, found a value that is infinite or not a number")]
    NotFinite,
    /// A target that is no label, where labels are learnt.
    #[error("expected the labels 0 and 1 as targets, found {found} at row {row} (from 0)")]
    Label {
        /// The target.
        found: f64,
        /// Row of the batch.
        row: usize,
    },
    /// Readings that are all too far from the plane of a map of three axes: above or below them there are sources.
    #[error(
        "expected readings at about the height where the map's first readings were, found all of them far above or below it: \
         a map of three axes is of one floor"
    )]
    OutOfReach,
    /// The arithmetic broke down.
    #[error(
        "a covariance matrix is not positive definite under the hyperparameters {hyperparameters}: raise the jitter or the noise"
    )]
    NotPositiveDefinite {
        /// Under which hyperparameters.
        hyperparameters: String,
    },
}

/// Everything about an update that is chosen beforehand.
#[derive(Clone, Debug)]
pub struct Settings<K: Kernel> {
    /// How inducing points are chosen.
    pub selection: Arc<dyn Rule<K>>,
    /// Limits of every way of choosing them.
    pub limits: Limits,
    /// How hyperparameters are learnt.
    pub learning: Learning,
    /// Inducing points with no more than this share of their prior variance given the others are dropped; a negative number drops none.
    pub redundancy: f64,
    /// How the posterior is approximated, and the bound that hyperparameters are learnt with. Inducing points are chosen, and dropped,
    /// variationally.
    pub inference: Inference,
    /// Power of the likelihood, more than 0 and at most 1: below 1 for targets whose neighbours share errors, see [`Targets`].
    pub likelihood_power: f64,
}

/// A sparse Gaussian process that learns from a stream of batches and sizes itself.
#[derive(Clone, Debug)]
pub struct StreamingGp<K: Kernel> {
    /// The model with its newest hyperparameters.
    pub model: Model<K>,
    /// How it learns from the next batch on.
    pub settings: Settings<K>,
    posterior: Option<Arc<Posterior<K>>>,
    /// Count, mean and variance of all targets of each output so far.
    pub baseline: NoiseBaselines,
}

impl<K: Kernel> StreamingGp<K> {
    /// A process without data: the model, with the hyperparameters learning starts from.
    pub fn new(model: Model<K>, settings: Settings<K>) -> Self {
        Self { model, settings, posterior: None, baseline: NoiseBaselines::default() }
    }

    /// Learns from a batch, without taking it in, which hyperparameters to begin with; to be called before [`update`](Self::update) with the
    /// first batch. The inducing points of a batch are chosen before its hyperparameters are learnt: where the first are far off, so
    /// is the number of points, and what too few of them do not represent is lost. After a first batch this does nothing.
    ///
    /// # Errors
    /// When the batch is rejected; the model is then as it was.
    pub fn learn_start(&mut self, places: &K::Places, targets: &[f64], stop: &dyn Fn() -> bool) -> Result<(), Error> {
        if self.posterior.is_none() {
            let mut trial = self.clone();
            trial.update(places, targets, stop)?;
            self.model = trial.model;
        }
        Ok(())
    }

    /// Takes in one batch (VIPS paper, algorithm 1): chooses inducing points, learns the hyperparameters, and replaces the
    /// posterior. Where the likelihood is heavy-tailed, each row has a weight in all of that. `stop` is checked before every
    /// evaluation of learning; when it says yes, the update ends with the best hyperparameters so far.
    ///
    /// # Errors
    /// When the batch is rejected; the model is then as it was.
    pub fn update(
        &mut self,
        places: &K::Places,
        targets: &[f64],
        stop: &dyn Fn() -> bool,
    ) -> Result<UpdateReport, Error> {
        check(places, targets, self.posterior.as_deref())?;
        let past = self.posterior.as_ref().map(|posterior| &posterior.past);
        let targets = Targets::from(targets).tempered(self.settings.likelihood_power);
        let weights = self.first_weights(places, targets).map_err(|error| broken_down(error, &self.model))?;
        let targets = targets.weighted(weights.as_ref());
        let baseline = self.baseline.including(places, targets);
        let posterior = self.posterior.as_deref();
        let batch = Batch { model: &self.model, places, targets, posterior, baseline: &baseline };
        let chosen = self
            .settings
            .selection
            .choose(&batch, self.settings.limits)
            .map_err(|error| broken_down(error, &self.model))?;
        let additional = chosen.additional(&batch);
        let rows = match chosen.moves {
            true => Rows::moved(places, targets, past, chosen.inducing(&batch)),
            false => Rows::chosen(places, targets, past, &chosen.kept, &additional),
        };
        let mut rows = rows.with_inference(self.settings.inference);
        let power = self.settings.likelihood_power;
        let learning = self.settings.learning.remembering(&self.model, places.len(), power, self.baseline.count());
        let (model, learning) = reweighting::learn(&learning, &self.model, &mut rows, chosen.moves, stop);
        let whitened = rows.whiten(&model).map_err(|error| broken_down(error, &model))?;
        let bound = whitened.bound();
        let (posterior, dropped) = Posterior::new(model.clone(), rows.into_past(whitened))
            .and_then(|posterior| posterior.without_redundant(self.settings.redundancy))
            .map_err(|error| broken_down(error, &model))?;
        let report = UpdateReport {
            rows: places.len(),
            inducing_points: posterior.past.inducing.len(),
            dropped,
            hyperparameters: model.named_values(),
            bound,
            selection: chosen.report,
            learning,
        };
        self.model = model;
        self.posterior = Some(Arc::new(posterior));
        self.baseline = baseline;
        Ok(report)
    }

    /// The weights of the rows of a batch before inducing points are chosen for it; none where all count alike.
    fn first_weights(&self, places: &K::Places, targets: Targets<'_>) -> Result<Option<Weights>, NotPositiveDefinite> {
        let Likelihood::StudentT(likelihood) = self.model.likelihood else { return Ok(None) };
        let posterior = self.posterior.as_deref();
        reweighting::first_weights(likelihood, &self.model, self.settings.limits, places, targets, posterior).map(Some)
    }

    /// Everything it has learnt, as plain numbers.
    pub fn state(&self) -> State<K::Places> {
        State::of(&self.model, self.baseline.clone(), self.posterior.as_deref())
    }

    /// Continues from a state, under settings that may be others than before. The kernel must be of the form that the state was
    /// learnt with; its hyperparameters are replaced by those of the state.
    ///
    /// # Errors
    /// When the state is not that of a model with this kernel.
    pub fn from_state(kernel: K, settings: Settings<K>, state: &State<K::Places>) -> Result<Self, StateError> {
        state.check()?;
        let (model, posterior) = state.restore(kernel)?;
        Ok(Self { model, settings, posterior, baseline: state.baseline.clone() })
    }

    /// The newest posterior; none before the first batch.
    pub fn posterior(&self) -> Option<&Arc<Posterior<K>>> {
        self.posterior.as_ref()
    }
}

/// Whether a batch can be taken in after this posterior.
pub(super) fn check<K: Kernel>(
    places: &K::Places,
    targets: &[f64],
    posterior: Option<&Posterior<K>>,
) -> Result<(), Error> {
    if places.len() != targets.len() {
        return Err(Error::Lengths { places: places.len(), targets: targets.len() });
    }
    if places.is_empty() {
        return Err(Error::Empty);
    }
    if posterior.is_some_and(|posterior| !posterior.past.inducing.compatible(places)) {
        return Err(Error::Dimension);
    }
    if !places.is_finite() || !targets.iter().all(|target| target.is_finite()) {
        return Err(Error::NotFinite);
    }
    Ok(())
}

/// The error when the arithmetic breaks down under this model.
pub(super) fn broken_down<K: Kernel>(_: NotPositiveDefinite, model: &Model<K>) -> Error {
    let values = model.named_values();
    let words: Vec<String> = values.iter().map(|value| format!("{} {:.6e}", value.name, value.value)).collect();
    Error::NotPositiveDefinite { hyperparameters: words.join(", ") }
}
