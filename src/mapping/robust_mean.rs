//! A robust average of the fields in a cell: the location of Student's t.
//!
//! A reading has the weight 1 / (nu + d^2 / s^2), where d is its distance from the location and s the scale (Lange, Little and
//! Taylor 1989). The iteration starts at the median, so that it converges to where most of the readings are.

use nalgebra::{Point3, SVector, Vector3};
use serde::{Deserialize, Serialize};

use super::path::drop_every_other;
use crate::sensing::reading::{LocatedReading, MagneticField};
use streaming_gp::StudentT;

/// Most fields of a cell that are kept.
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

/// An even sample of the fields of one cell and of their places: all of them while they are few, then every second, every fourth and so on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SampledFields {
    samples: Vec<Sample>,
    halvings: u32,
}

/// A field and its place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    position: Point3<f64>,
    field: MagneticField,
}

impl Sample {
    /// The field of a reading, and its place.
    pub fn of(reading: &LocatedReading) -> Self {
        Self { position: reading.position, field: reading.field }
    }
}

impl SampledFields {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.halvings = 0;
    }

    /// Starts a new cell with its first sample.
    pub fn begin(&mut self, first: Sample) {
        self.clear();
        self.samples.reserve_exact(MOST_KEPT);
        self.samples.push(first);
    }

    /// Takes the next sample of the cell, `before` readings after the first.
    pub fn add(&mut self, sample: Sample, before: u32) {
        if before.trailing_zeros() < self.halvings {
            return;
        }
        if self.samples.len() >= MOST_KEPT {
            drop_every_other(&mut self.samples);
            self.halvings = self.halvings.saturating_add(1);
        }
        if before.trailing_zeros() >= self.halvings {
            self.samples.push(sample);
        }
    }
}

/// The robust mean of the fields of one cell, and of their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mean {
    pub position: Point3<f64>,
    pub field: MagneticField,
    /// Of the strengths, in microtesla.
    pub strength: f64,
}

impl RobustMean {
    /// The robust mean of the sampled fields; `None` without any. Strength and axes are weighted separately, since a wrong direction
    /// does not affect the strength; the position has the weights of the strength.
    pub fn of(&self, kept: &SampledFields) -> Option<Mean> {
        let kept = &kept.samples[..kept.samples.len().min(MOST_KEPT)];
        let origin = kept.first()?.position;
        let mut strengths = [SVector::<f64, 1>::zeros(); MOST_KEPT];
        let mut fields = [Vector3::zeros(); MOST_KEPT];
        for ((strength, axes), sample) in strengths.iter_mut().zip(&mut fields).zip(kept) {
            *strength = [sample.field.strength()].into();
            *axes = *sample.field.microtesla();
        }
        let (strength, weights) = self.location(&strengths[..kept.len()], MEDIAN_DISTANCE[0]);
        let (field, _) = self.location(&fields[..kept.len()], MEDIAN_DISTANCE[1]);
        let total: f64 = weights.iter().sum();
        let moved = kept.iter().zip(&weights).map(|(sample, weight)| (sample.position - origin) * *weight);
        let position = origin + moved.sum::<Vector3<f64>>() / total;
        Some(Mean { position, field: MagneticField::from_microtesla(field), strength: strength.x })
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
