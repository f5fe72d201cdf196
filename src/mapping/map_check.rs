//! Whether the readings agree with the map where it is known before they come: all the time.
//!
//! Odometry that drifts, a saved map that the robot continues from another pose, furniture that was moved: readings then differ
//! from the map by more than it expects, and are mapped all the same.

use nalgebra::{Point3, Vector3};
use streaming_gp::SensorPose;

use crate::field::map::FieldMap;
use crate::sensing::reading::Observation;

/// Path over which misfits are averaged, in metres, each weighing less the longer ago it is.
const MEMORY: f64 = 5.0;

/// What one observation counts for at most, in metres of path: between two places that are known there may be a long way.
const MOST_PATH: f64 = 0.2;

/// Share of the prior variance up to which a place is known: a few centimetres around earlier paths. Farther away, maps of smooth fields
/// are at times too sure.
const KNOWN: f64 = 0.01;

/// A misfit counts as this at most: that of five standard deviations. So an outlier alone raises no doubt.
const MOST_MISFIT: f64 = 25.0;

/// Mean misfit from which on the map is in doubt; that of a map that is right is 1. Along the nine Aalto drives, each by itself, it is at
/// most 1.8, and in 27 simulated rooms at most 2.1 but for three of strong, smooth fields, with 3.2 to 5.9. With a heading that drifts by
/// ten degrees over 90 m it reaches 7 to 17 where the field varies by 10 microtesla or more.
const CONTRADICTION: f64 = 6.5;

/// Compares readings of three axes with the map.
#[derive(Clone, Debug)]
pub(super) struct MapCheck {
    /// Mean squared residual of an axis over its variance.
    misfit: f64,
    last: Option<Point3<f64>>,
}

impl MapCheck {
    /// A check that has seen nothing.
    pub(super) fn new() -> Self {
        Self { misfit: 1.0, last: None }
    }

    /// Compares observations with the map from before they are learnt. Returns in words that they contradict it; never of a
    /// map of strengths.
    pub(super) fn add(&mut self, map: &FieldMap, observations: &[Observation]) -> Option<String> {
        let poses: Vec<SensorPose> = observations.iter().map(SensorPose::from).collect();
        let places: Vec<[f64; 2]> = observations.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
        let noises = map.noise_variances(&places);
        let known_below = 3.0 * KNOWN * map.prior_standard_deviation().powi(2);
        for ((observation, predicted), noise) in observations.iter().zip(map.readings(&poses)?).zip(noises) {
            let variances = Vector3::from_fn(|i, _| predicted.covariance[i][i]);
            if variances.sum() > known_below {
                continue;
            }
            let residuals = observation.field().microtesla() - Vector3::from(predicted.mean);
            let squares = residuals.component_mul(&residuals).component_div(&variances.add_scalar(noise));
            let path = self.last.map_or(0.0, |last| (observation.position - last).norm().min(MOST_PATH));
            self.misfit += path / MEMORY * (squares.mean().min(MOST_MISFIT) - self.misfit);
            self.last = Some(observation.position);
            if self.misfit > CONTRADICTION {
                return Some(format!(
                    "the readings contradict the map where it was known, and it is wrong or blurred there: around ({:.1}, {:.1}) they \
                     differ from it by {:.1} times what it expects. Does the odometry or its heading drift, did the robot continue a \
                     map from another pose, or has the field changed?",
                    observation.position.x,
                    observation.position.y,
                    self.misfit.sqrt()
                ));
            }
        }
        None
    }
}
