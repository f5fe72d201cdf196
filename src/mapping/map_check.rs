//! Whether readings agree with the map at places that it already knew, for as long as it is made.
//!
//! When the odometry drifts, the robot continues a saved map from another pose, or furniture is moved, readings differ from the map
//! by more than its uncertainty allows. They are mapped all the same.

use nalgebra::{Point3, Vector3};
use streaming_gp::SensorPose;

use crate::field::map::FieldMap;
use crate::sensing::reading::Observation;

/// Path over which the misfit is averaged, with exponentially decreasing weights, in metres.
const MEMORY: f64 = 5.0;

/// Most path that one observation stands for, in metres: the robot may have driven far between two known places.
const MOST_PATH: f64 = 0.2;

/// Share of the prior variance up to which a place is known: within a few centimetres of earlier paths. Farther away, maps of smooth
/// fields are at times overconfident.
const KNOWN: f64 = 0.01;

/// Upper limit of a single squared residual, that of five standard deviations: one outlier raises no doubt.
const MOST_MISFIT: f64 = 25.0;

/// Mean misfit above which the map is in doubt. A correct map has 1. The nine Aalto drives, mapped one at a time, stay below 1.9, and 27
/// simulated rooms below 6: three with strong, smooth fields between 3.2 and 5.9, the others below 2. A heading that drifts by ten
/// degrees over 90 m leads to 7 to 17 where the standard deviation of the field is 10 microtesla or more.
const CONTRADICTION: f64 = 6.5;

/// Compares readings of three axes with the map.
#[derive(Clone, Debug)]
pub(super) struct MapCheck {
    /// Mean over path and axes of the squared residual over its variance.
    misfit: f64,
    last: Option<Point3<f64>>,
}

impl MapCheck {
    /// A check that has seen nothing.
    pub(super) fn new() -> Self {
        Self { misfit: 1.0, last: None }
    }

    /// Compares observations with the map as it was before they are learnt. Returns in words that they contradict it; never for a map of
    /// strengths.
    pub(super) fn add(&mut self, map: &FieldMap, observations: &[Observation]) -> Option<String> {
        let poses: Vec<SensorPose> = observations.iter().map(SensorPose::from).collect();
        let places: Vec<[f64; 2]> = observations.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
        let noises = map.noise_variances(&places);
        let known_below = 3.0 * KNOWN * map.prior_standard_deviation().powi(2);
        for ((observation, predicted), noise) in observations.iter().zip(map.readings(&poses)?).zip(noises) {
            let variances = Vector3::from_fn(|i, _| predicted.covariance[i][i]);
            let residuals = observation.field.microtesla() - Vector3::from(predicted.mean);
            let misfit = residuals.component_mul(&residuals).component_div(&variances.add_scalar(noise)).mean();
            let is_known = variances.sum() <= known_below;
            if !is_known || !misfit.is_finite() {
                continue;
            }
            let path = self.last.map_or(0.0, |last| (observation.position - last).norm().min(MOST_PATH));
            self.misfit += path / MEMORY * (misfit.min(MOST_MISFIT) - self.misfit);
            self.last = Some(observation.position);
            if self.misfit > CONTRADICTION {
                let (Point3 { coords: at }, ratio) = (observation.position, self.misfit.sqrt());
                return Some(format!(
                    "the readings contradict the map at places that it knew, and it is wrong or blurred there: around ({:.1}, {:.1}) they \
                     differ from it by {ratio:.1} times what it expects. Does the odometry or its heading drift, did the robot continue \
                     a map from another pose, or has the field changed?",
                    at.x, at.y
                ));
            }
        }
        None
    }
}
