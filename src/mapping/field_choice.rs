//! The quantity that is mapped where magmap chooses (`model.field = "auto"`): the three axes where they agree with the physics of a
//! magnetic field and predict the strength no worse than a map of strengths does, the strength otherwise.
//!
//! The choice is a function of the trajectory, and is made anew as it grows. The [other map](Alternative) is folded from it, and both are
//! compared by how well they predicted the strengths of each batch before they learnt it.

use serde::{Deserialize, Serialize};
use streaming_gp::vector::{Axes, SensorPose};

use super::stop::StopSignal;
use crate::config::{Config, Mapped};
use crate::field::map::FieldMap;
use crate::field::model::FieldModel;
use crate::sensing::reading::Observation;
use crate::trajectory::{Trajectory, fold_onto};

/// Lengths of path after which the choice is made, in metres. Mapping waits while the other map is folded.
const DUE: [f64; 4] = [20.0, 30.0, 40.0, 80.0];

/// Length of path after which nothing remains to be chosen, in metres.
pub(super) const MADE: f64 = DUE[DUE.len() - 1];

/// Length of path up to which a choice that is due waits for readings that tell how the sensor is mounted, in metres.
const LAST: f64 = 160.0;

/// The quantity that is mapped, and why, while the readings tell too little for a choice.
pub(super) const NOT_TOLD: &str = "the strength is mapped: the readings do not tell yet how the sensor is mounted, as on a path that has not \
                                   turned; the choice is made after a curve within the first 160 m of a map, and model.field = \"vector\" \
                                   maps the three axes in any case";

/// The quantity that is mapped, and why, where the mount of the sensor is unknown.
pub(super) const WITHOUT_MOUNT: &str = "the strength is mapped: the mount of the sensor is unknown. Publish the transform to its frame on \
                                        /tf_static, or set sensor.override_transforms, sensor.position and sensor.orientation; then a new \
                                        map has the three axes";

/// By how much the mean log density of the strengths under a map of axes may be below that under a map of strengths before the axes are
/// given up, in nats: two maps that are as good do not replace each other again and again.
const HYSTERESIS: f64 = 0.1;

/// Upper limit of a squared residual over its variance, that of five standard deviations: one outlier decides nothing.
const MOST_MISFIT: f64 = 25.0;

/// A choice.
pub(super) struct Choice {
    /// The map of the other quantity; none where it was not needed.
    pub(super) alternative: Option<Alternative>,
    /// Whether that quantity is mapped from now on.
    pub(super) is_changed: bool,
    /// The quantity that is mapped, and why.
    pub(super) words: String,
    /// Whether it holds for the life of the map: readings whose axes contradict the physics are never learnt as axes.
    pub(super) is_final: bool,
}

/// Whether `model`, the map of this trajectory, can still be replaced: never where batches of the map are missing.
pub(super) fn is_open(trajectory: &Trajectory, model: &FieldModel) -> bool {
    trajectory.batches().len() as u64 == model.totals.batches() && trajectory.length() < LAST
}

/// Whether it is time to choose after this path, if that was last done after the other, in metres.
pub(super) fn is_due(path: f64, chosen_at: f64) -> bool {
    DUE.iter().any(|&due| chosen_at < due && due <= path)
}

/// Chooses, given what is mapped so far, how well it predicted the batches of this trajectory, the other map as far as it was folded, and
/// whether the axes agree with the physics. None where folding was stopped.
pub(super) fn choose(
    trajectory: &Trajectory,
    config: &Config,
    (mapped, predicted): (Mapped, Predicted),
    alternative: Option<Alternative>,
    judgement: Result<(), String>,
    stop: &StopSignal,
) -> Option<Choice> {
    let other = if mapped == Mapped::Vector { Mapped::Strength } else { Mapped::Vector };
    let folded = || alternative.unwrap_or_else(|| Alternative::new(config, other)).folded(trajectory, stop);
    let choice = match judgement {
        Err(contradiction) => {
            let is_changed = mapped == Mapped::Vector;
            let words = format!(
                "the strength is mapped: {contradiction}. Once the cause is mended, a new map has the three axes"
            );
            Choice { alternative: is_changed.then(folded), is_changed, words, is_final: true }
        }
        Ok(()) => {
            let alternative = folded();
            let difference = alternative.predicted.mean() - predicted.mean();
            let (lead, least) = if mapped == Mapped::Vector { (-difference, -HYSTERESIS) } else { (difference, 0.0) };
            let (chosen, path) = (if lead >= least { Mapped::Vector } else { Mapped::Strength }, trajectory.length());
            let agreement = format!("over {path:.0} m the three axes agree with the physics of a magnetic field");
            let words = if chosen == Mapped::Vector {
                format!(
                    "the three axes are mapped: {agreement}, and predict the strength by {lead:.2} nats a reading better"
                )
            } else {
                format!("the strength is mapped: {agreement}, but predict it by {:.2} nats a reading worse", -lead)
            };
            Choice { alternative: Some(alternative), is_changed: chosen == other, words, is_final: false }
        }
    };
    (!stop.is_stopped()).then_some(choice)
}

/// The map of the quantity that is not mapped, folded from the first batches of a trajectory.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    /// The map.
    pub(super) model: FieldModel,
    /// How well it predicted each batch before it learnt that.
    pub(super) predicted: Predicted,
    /// Number of these batches.
    batches: usize,
}

impl Alternative {
    fn new(config: &Config, field: Mapped) -> Self {
        Self { model: FieldModel::new(&config.decided(field)), predicted: Predicted::default(), batches: 0 }
    }

    /// With the batches that the trajectory has beyond.
    fn folded(self, trajectory: &Trajectory, stop: &StopSignal) -> Self {
        let Self { model, mut predicted, batches } = self;
        let before = |model: &FieldModel, batch: &[Observation]| predicted.add(model, batch);
        let others = trajectory.corrected_batches().skip(batches);
        let model = fold_onto(model, others, &|| stop.is_stopped(), before);
        Self { model, predicted, batches: trajectory.batches().len() }
    }
}

/// How well a map predicted strengths before it learnt them: the sum of their log densities, in nats, and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Predicted {
    sum: f64,
    count: u64,
}

impl Predicted {
    /// Counts a batch that the model is about to learn.
    pub(super) fn add(&mut self, model: &FieldModel, batch: &[Observation]) {
        let Some(map) = model.map() else { return };
        for density in log_densities(&map, batch).into_iter().filter(|density| density.is_finite()) {
            self.sum += density;
            self.count += 1;
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

/// Log density of each strength under a map that has not learnt it, in nats.
fn log_densities(map: &FieldMap, batch: &[Observation]) -> Vec<f64> {
    let places: Vec<[f64; 2]> = batch.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
    let noises = map.noise_variances(&places);
    let poses: Vec<SensorPose> = batch.iter().map(SensorPose::from).collect();
    let (means, variances): (Vec<f64>, Vec<f64>) = match map.readings(&poses) {
        Some(axes) => axes.iter().map(Axes::strength).unzip(),
        None => map.predict(&places, f64::INFINITY),
    };
    let density = |i: usize| {
        let variance = variances[i] + noises[i];
        let misfit = ((batch[i].strength - means[i]).powi(2) / variance).min(MOST_MISFIT);
        -0.5 * (misfit + (std::f64::consts::TAU * variance).ln())
    };
    (0..batch.len()).map(density).collect()
}
