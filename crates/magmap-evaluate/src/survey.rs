//! Two surveys of one place: the map of one, tested on the readings of the other.

use crate::metrics::{NORMAL_95, Nearest, Predictions, Readings, Scores, rmse};
use crate::worlds::batches;
use anyhow::{Context, ensure};
use magmap::config::{Averaging, Config, Gates};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::sensing::reading::{Measurement, Observation};
use serde::Serialize;
use std::f64::consts::TAU;
use std::time::Instant;
use streaming_gp::{Axes, NamedValue, SensorPose};

/// How good the map of one survey is on another.
#[derive(Clone, Debug, Serialize)]
pub struct SurveyScores {
    /// Readings averaged into the observations that were learnt.
    pub learnt: u64,
    /// Observations that were learnt.
    pub observations: u64,
    /// Readings it was tested on.
    pub tested: usize,
    /// The axes; none of a map of strengths.
    pub axes: Option<AxesScores>,
    /// The strength.
    pub strength: Scores,
    /// Root mean squared error in strength of the nearest reading that was learnt from, in microtesla.
    pub rmse_nearest_neighbour: f64,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Hyperparameters at the end; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// Share of the field's variance that comes from below, where it is learnt.
    pub share_below: Option<f64>,
    /// Seconds of learning.
    pub learning_seconds: f64,
    /// Seconds of predicting one place.
    pub prediction_seconds: f64,
}

/// How good predictions of the axes of a reading are, each axis a sample of its own, noise included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AxesScores {
    /// Mean squared error of an axis, in microtesla squared.
    pub mean_squared_error: f64,
    /// Mean negative log predictive density of an axis, in nats.
    pub nlpd: f64,
    /// Mean standardized log loss (Rasmussen and Williams, section 2.5): that less the loss of a normal distribution with mean and
    /// variance of the axis over all readings that were learnt from. The mean of them scores 0, a better map less.
    pub msll: f64,
    /// Share of the axes in their 95 % interval.
    pub coverage: f64,
}

impl AxesScores {
    /// The scores of predictions, whose covariances include the noise, on the axes of readings; `learnt` are those of the readings that
    /// were learnt from.
    pub fn of(predictions: &[Axes], read: &[[f64; 3]], learnt: &[[f64; 3]]) -> Self {
        let loss = |error: f64, variance: f64| 0.5 * ((TAU * variance).ln() + error * error / variance);
        let baselines: [[f64; 2]; 3] = std::array::from_fn(|axis| {
            let mean_of =
                |value: &dyn Fn(&[f64; 3]) -> f64| learnt.iter().map(value).sum::<f64>() / learnt.len() as f64;
            let mean = mean_of(&|read| read[axis]);
            [mean, mean_of(&|read| (read[axis] - mean).powi(2))]
        });
        let (mut sum, mut samples) = (Self { mean_squared_error: 0.0, nlpd: 0.0, msll: 0.0, coverage: 0.0 }, 0.0);
        for (Axes { mean, covariance }, read) in predictions.iter().zip(read) {
            for (axis, [baseline, spread]) in baselines.into_iter().enumerate() {
                let (error, variance) = (read[axis] - mean[axis], covariance[axis][axis]);
                samples += 1.0;
                sum.mean_squared_error += error * error;
                sum.nlpd += loss(error, variance);
                sum.msll += loss(error, variance) - loss(read[axis] - baseline, spread);
                sum.coverage += f64::from(u8::from(error.abs() < NORMAL_95 * variance.sqrt()));
            }
        }
        Self {
            mean_squared_error: sum.mean_squared_error / samples,
            nlpd: sum.nlpd / samples,
            msll: sum.msll / samples,
            coverage: sum.coverage / samples,
        }
    }
}

/// Learns one survey in the order of its rows, through gates, averages and batches as in a replay, and tests the map on every row of the
/// other, to which no gate applies.
///
/// # Errors
/// A survey without a row that can be used, and a batch that the model rejects.
pub fn run(
    train: impl IntoIterator<Item = Measurement>,
    test: impl IntoIterator<Item = Measurement>,
    config: &Config,
) -> anyhow::Result<SurveyScores> {
    let (mut model, mut learning_seconds, mut learnt) = (FieldModel::new(config), 0.0, Vec::new());
    for (number, batch) in (1..).zip(&batches(train.into_iter(), config)) {
        let start = Instant::now();
        model.update(&batch.observations, &|| false).with_context(|| format!("batch {number}"))?;
        learning_seconds += start.elapsed().as_secs_f64();
        learnt.extend_from_slice(&batch.observations);
    }
    let map = model.map().context("the survey that is learnt has too few rows for a map")?;
    let test = every_reading(test, config);
    ensure!(!test.is_empty(), "the survey that is tested on has no row that can be used");

    let poses: Vec<SensorPose> = test.iter().map(SensorPose::from).collect();
    let targets: Vec<f64> = test.iter().map(|seen| seen.strength).collect();
    let start = Instant::now();
    let strength = Predictions::of_map(&map, &poses).score(&targets, |_| true);
    let prediction_seconds = start.elapsed().as_secs_f64() / poses.len() as f64;
    let [tested, seen] = [&test, &learnt].map(|all| strengths(all));
    let mut nearest = Nearest::new(test.len());
    nearest.see(&tested.places, &seen);
    Ok(SurveyScores {
        learnt: model.totals.used_readings,
        observations: model.totals.observations,
        tested: test.len(),
        axes: axes(&map, &poses).map(|predictions| AxesScores::of(&predictions, &fields(&test), &fields(&learnt))),
        strength,
        rmse_nearest_neighbour: rmse(nearest.targets.iter().copied(), &targets),
        inducing_points: map.size(),
        hyperparameters: map.hyperparameters(),
        share_below: map.share_below(),
        learning_seconds,
        prediction_seconds,
    })
}

/// Each reading of a survey as an observation of its own.
fn every_reading(survey: impl IntoIterator<Item = Measurement>, config: &Config) -> Vec<Observation> {
    let gates = Gates {
        minimum_field: 0.0,
        maximum_field: f64::MAX,
        max_speed: 0.0,
        max_gradient: 0.0,
        max_pulse: 0.0,
        max_repeat: 0.0,
        max_same_stamp: 0,
        ..config.gates.clone()
    };
    let config = Config { gates, averaging: Averaging { spacing: 0.0 }, ..config.clone() };
    batches(survey.into_iter(), &config).into_iter().flat_map(|batch| batch.observations).collect()
}

/// The axes that the sensor would read, noise included; none of a map of strengths.
fn axes(map: &FieldMap, poses: &[SensorPose]) -> Option<Vec<Axes>> {
    let places: Vec<[f64; 2]> = poses.iter().map(|pose| [pose.position[0], pose.position[1]]).collect();
    let mut readings = map.readings(poses)?;
    for (Axes { covariance, .. }, noise) in readings.iter_mut().zip(map.noise_variances(&places)) {
        (0..3).for_each(|axis| covariance[axis][axis] += noise);
    }
    Some(readings)
}

fn fields(observations: &[Observation]) -> Vec<[f64; 3]> {
    observations.iter().map(|seen| (*seen.field.microtesla()).into()).collect()
}

fn strengths(observations: &[Observation]) -> Readings {
    observations.iter().map(|seen| ([seen.position.x, seen.position.y], seen.strength)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use magmap::config::Mapped;
    use magmap::sensing::reading::{MagneticField, Pose, Reading, Stamp};
    use magmap_tools::simulation::{DipoleOptions, DipoleWorld, World};
    use nalgebra::{Point3, UnitQuaternion};

    #[test]
    fn scores_are_their_definitions() {
        let axes = |mean, variance| {
            let covariance = std::array::from_fn(|i| std::array::from_fn(|j| if i == j { variance } else { 0.3 }));
            Axes { mean, covariance }
        };
        let predictions = [axes([1.0, 2.0, 3.0], 4.0), axes([0.0, 0.0, 0.0], 1.0)];
        let read = [[2.0, 2.0, 3.0], [0.0, 3.0, 1.0]];
        // Mean 1 and variance 4 along every axis.
        let learnt = [[-1.0; 3], [3.0; 3]];
        let found = AxesScores::of(&predictions, &read, &learnt);
        let squares = [1.0, 0.0, 0.0, 0.0, 9.0, 1.0];
        assert!((found.mean_squared_error - squares.iter().sum::<f64>() / 6.0).abs() < 1e-12);
        let half_log = 0.5 * TAU.ln();
        let nlpd = half_log + (3.0 * 0.5 * 4.0f64.ln() + 0.5 * (1.0 / 4.0 + 10.0)) / 6.0;
        assert!((found.nlpd - nlpd).abs() < 1e-12, "{found:?}");
        let from_mean: f64 = [1.0, 1.0, 4.0, 1.0, 4.0, 0.0].iter().sum();
        let baseline = half_log + 0.5 * 4.0f64.ln() + 0.5 * from_mean / 4.0 / 6.0;
        assert!((found.msll - (nlpd - baseline)).abs() < 1e-12, "{found:?}");
        // An error of three standard deviations is outside.
        assert!((found.coverage - 5.0 / 6.0).abs() < 1e-12);
        // The mean of what was learnt scores zero.
        let mean = AxesScores::of(&[axes([1.0; 3], 4.0); 2], &read, &learnt);
        assert!(mean.msll.abs() < 1e-12);
    }

    /// Rows along lanes of a room at breast height, with steel in the floor and the ceiling, `shift` to the side.
    fn survey(shift: f64) -> Vec<Measurement> {
        let options = DipoleOptions {
            size: [8.0, 4.0],
            under: 12,
            beside: 0,
            above: 12,
            ceiling: 2.6,
            height: 1.3,
            ..DipoleOptions::default()
        };
        let world = DipoleWorld::random(&options, 5).unwrap();
        let row = |index: u32| {
            let (lane, step) = (index / 160, f64::from(index % 160) * 0.05);
            let x = if lane.is_multiple_of(2) { step } else { 7.95 - step };
            let height = 1.3 + 0.05 * (0.3 * f64::from(index)).sin();
            let position = Point3::new(x, 0.3 + shift + 0.5 * f64::from(lane), height);
            let stamp = Stamp::from_seconds(0.1 * f64::from(index));
            let noise = 0.3 * (f64::from(index) * 7.3).sin();
            let field = world.field_at(&position).microtesla().add_scalar(noise);
            let pose = Pose { stamp, position, orientation: UnitQuaternion::identity() };
            [
                Measurement::Pose(pose),
                Measurement::Reading(Reading { stamp, field: MagneticField::from_microtesla(field) }),
            ]
        };
        (0..7 * 160).flat_map(row).collect()
    }

    #[test]
    fn the_map_of_a_survey_at_breast_height_predicts_another_one() {
        let mut config = Config::default();
        config.model.field = Mapped::Vector;
        let scores = run(survey(0.0), survey(0.2), &config).unwrap();
        let axes = scores.axes.unwrap();
        assert_eq!(scores.tested, 7 * 160);
        assert!(axes.mean_squared_error < 1.0 && axes.msll < -1.5, "{scores:?}");
        assert!(scores.strength.rmse < 0.6 * scores.rmse_nearest_neighbour, "{scores:?}");
        assert!((0.2..0.8).contains(&scores.share_below.unwrap()), "{scores:?}");
        config.model.field = Mapped::Strength;
        let strength = run(survey(0.0), survey(0.2), &config).unwrap();
        assert!(strength.axes.is_none() && strength.share_below.is_none());
        assert!(scores.strength.rmse < strength.strength.rmse, "{scores:?} {strength:?}");
    }

    #[test]
    fn surveys_without_rows_are_errors() {
        let config = Config::default();
        let message = |train, test| run(train, test, &config).unwrap_err().to_string();
        assert!(message(Vec::new(), survey(0.0)).contains("learnt"));
        assert!(message(survey(0.0), Vec::new()).contains("tested"));
    }
}
