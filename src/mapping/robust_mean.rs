//! A robust average of the readings of a cell: the location of Student's t.
//!
//! A reading has the weight 1 / (nu + d^2 / s^2), where d is its distance from the location and s the scale (Lange, Little and
//! Taylor 1989). The iteration starts at the median, so that it converges to where most of the readings are.

use nalgebra::{Point3, SVector, Vector3};
use serde::{Deserialize, Serialize};

use crate::sensing::reading::{LocatedReading, MagneticField};
use streaming_gp::likelihood::StudentT;

/// Most readings of a cell that are kept.
const MOST_KEPT: usize = 64;

/// Most iterations of location and weights.
const MAX_ITERATIONS: usize = 20;

/// Converged when an iteration moves the location by less than this fraction of the scale: a hundredth of the standard error of
/// a hundred readings.
const TOLERANCE: f64 = 1e-3;

/// Median distance of a normal distribution of standard deviation 1 from its centre, along one axis and in space.
const MEDIAN_DISTANCE: [f64; 2] = [0.6745, 1.5382];

/// A mean that downweights outliers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RobustMean {
    pub likelihood: StudentT,
    /// The square of the least scale, in microtesla squared: within it nothing is an outlier, however alike the other readings.
    pub least_square: f64,
}

/// An even sample of the readings of one cell: all of them while they are few, then every second, every fourth and so on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampledReadings {
    readings: Vec<LocatedReading>,
    halvings: u32,
}

impl SampledReadings {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.readings.clear();
        self.halvings = 0;
    }

    /// Starts a new cell with its first reading.
    pub fn begin(&mut self, first: &LocatedReading) {
        self.clear();
        self.readings.reserve_exact(MOST_KEPT);
        self.readings.push(*first);
    }

    /// Takes the next reading of the cell, `before` readings after the first.
    pub fn add(&mut self, reading: &LocatedReading, before: u32) {
        if before.trailing_zeros() < self.halvings {
            return;
        }
        if self.readings.len() >= MOST_KEPT {
            let mut index = 0;
            self.readings.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.halvings = self.halvings.saturating_add(1);
        }
        if before.trailing_zeros() >= self.halvings {
            self.readings.push(*reading);
        }
    }
}

/// The robust mean of the readings of a cell.
pub(crate) struct Location {
    pub position: Point3<f64>,
    pub field: MagneticField,
    pub strength: f64,
}

impl RobustMean {
    /// The location of the sampled readings; `None` without any. Strength and axes are weighted separately, since a wrong direction
    /// does not affect the strength; the position has the weights of the strength.
    pub fn of(&self, sample: &SampledReadings) -> Option<Location> {
        let readings = &sample.readings[..sample.readings.len().min(MOST_KEPT)];
        let first = readings.first()?;
        let mut strengths = [SVector::<f64, 1>::zeros(); MOST_KEPT];
        let mut fields = [Vector3::zeros(); MOST_KEPT];
        for ((strength, field), reading) in strengths.iter_mut().zip(&mut fields).zip(readings) {
            *strength = [reading.field.strength()].into();
            *field = *reading.field.microtesla();
        }
        let (strength, weights) = self.location(&strengths[..readings.len()], MEDIAN_DISTANCE[0]);
        let (field, _) = self.location(&fields[..readings.len()], MEDIAN_DISTANCE[1]);
        let total: f64 = weights.iter().sum();
        let moved =
            readings.iter().zip(&weights).map(|(reading, weight)| (reading.position - first.position) * *weight);
        Some(Location {
            position: first.position + moved.sum::<Vector3<f64>>() / total,
            field: MagneticField::from_microtesla(field),
            strength: strength.x,
        })
    }

    /// The location of the samples and the weight of each.
    fn location<const D: usize>(
        &self,
        samples: &[SVector<f64, D>],
        median_distance: f64,
    ) -> (SVector<f64, D>, [f64; MOST_KEPT]) {
        let mut location = SVector::from_fn(|axis, _| median(samples.iter().map(|sample| sample[axis])));
        let distance = median(samples.iter().map(|sample| (sample - location).norm()));
        let square = (distance / median_distance).powi(2).max(self.least_square);
        let mut weights = [0.0; MOST_KEPT];
        for _ in 0..MAX_ITERATIONS {
            let (mut total, mut pull) = (0.0, SVector::zeros());
            for (sample, weight) in samples.iter().zip(&mut weights) {
                let offset: SVector<f64, D> = sample - location;
                *weight = self.likelihood.weight(offset.norm_squared() / square);
                total += *weight;
                pull += offset * *weight;
            }
            let step: SVector<f64, D> = pull / total;
            location += step;
            if step.norm_squared() <= TOLERANCE * TOLERANCE * square {
                break;
            }
        }
        (location, weights)
    }
}

/// The median of at least one and at most [`MOST_KEPT`] numbers: of an even number, the middle of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted = [0.0; MOST_KEPT];
    let mut count = 0;
    for (slot, value) in sorted.iter_mut().zip(values) {
        *slot = value;
        count += 1;
    }
    sorted[..count].sort_unstable_by(f64::total_cmp);
    0.5 * (sorted[(count - 1) / 2] + sorted[count / 2])
}
