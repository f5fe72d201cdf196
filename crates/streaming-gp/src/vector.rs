//! A map of the field's three axes: readings as rows of a batch, the field free of the sensor, the sensor's hard iron.

use super::linalg::{self, dot};
use crate::{Axis, FieldPlace, FieldPlaces, Kernel, Matrix, Places, Posterior, VectorField};

/// A reading of three axes, turned into the map's frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxesReading {
    /// The place: x, y and the height z above the plane of the map.
    pub position: [f64; 3],
    /// The field that was read, in the map's frame.
    pub field: [f64; 3],
    /// R, as rows: it turns the sensor's frame into the map's. Of readings that are averaged it is the mean.
    pub orientation: [[f64; 3]; 3],
    /// How fast the sensor moved; only the part of the bias that grows with speed depends on it.
    pub speed: f64,
}

/// A bias of a sensor: the components of h, then those of g.
pub type Bias = [f64; 6];

/// The part of a reading that is a sensor's bias, for this orientation R (as rows) and speed: R (h + g speed).
fn read_bias(bias: &Bias, orientation: &[[f64; 3]; 3], speed: f64) -> [f64; 3] {
    let along: [f64; 3] = std::array::from_fn(|i| bias[i] + bias[i + 3] * speed);
    orientation.map(|row| dot(&row, &along))
}

impl AxesReading {
    /// The reading of a sensor without this bias.
    pub fn without(mut self, bias: &Bias) -> Self {
        let read = read_bias(bias, &self.orientation, self.speed);
        self.field.iter_mut().zip(read).for_each(|(axis, read)| *axis -= read);
        self
    }

    /// The three rows of each reading of a batch, and their targets: the x axes of all readings, then y, then z.
    pub fn rows(readings: &[Self]) -> (FieldPlaces, Vec<f64>) {
        let row = |reading: &Self, axis: Axis| FieldPlace::Reading {
            axis,
            position: reading.position,
            turn: reading.orientation[axis as usize],
            speed: reading.speed,
        };
        let places =
            Axis::ALL.iter().flat_map(|&axis| readings.iter().map(move |reading| row(reading, axis))).collect();
        let targets = (0..3).flat_map(|axis| readings.iter().map(move |reading| reading.field[axis])).collect();
        (places, targets)
    }
}

/// The three axes somewhere: mean and joint covariance, noise not included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axes {
    /// Mean of each axis.
    pub mean: [f64; 3],
    /// Joint covariance of the axes.
    pub covariance: [[f64; 3]; 3],
}

impl Axes {
    /// Mean and variance of the strength |B|, to second order: with the mean mu, the covariance W and u = mu / |mu| these are
    /// `|mu| + (tr W - u^T W u) / (2 |mu|)` and `u^T W u`. Where the mean is no longer than its uncertainty, that is a rough estimate.
    pub fn strength(&self) -> (f64, f64) {
        let norm = dot(&self.mean, &self.mean).sqrt().max(f64::MIN_POSITIVE);
        let direction = self.mean.map(|value| value / norm);
        let along = dot(&direction, &self.covariance.map(|row| dot(&row, &direction)));
        let trace: f64 = (0..3).map(|i| self.covariance[i][i]).sum();
        // The second order must not exceed the first where a mean near zero divides it.
        (norm + (0.5 * (trace - along) / norm).min(trace.max(0.0).sqrt()), along.max(0.0))
    }
}

/// The bias of the sensor: its hard iron h, then g where it is modelled.
#[derive(Clone, Debug, PartialEq)]
pub struct SensorBias {
    /// The components: those of h, then those of g.
    pub components: Vec<FieldPlace>,
    /// Mean of each, along directions that are known; zero along the others.
    pub mean: Vec<f64>,
    /// Joint covariance, as the posterior has it.
    pub covariance: Matrix,
}

impl SensorBias {
    /// Standard deviation of each component.
    pub fn standard_deviations(&self) -> Vec<f64> {
        (0..self.mean.len()).map(|i| self.covariance[(i, i)].sqrt()).collect()
    }
}

/// A direction of the bias is known when less than this share of its prior variance is left: half the standard deviation.
pub const KNOWN_BELOW: f64 = 0.25;

/// A map of the field alone, without the bias of the sensor.
///
/// A robot that stays in the plane cannot tell the vertical part of h from a constant of the field, and one that drives straight ahead no part
/// of it. Along directions of the bias of which the data say little, the map is therefore that of a sensor without bias: the field
/// given that they are zero. Otherwise it would be uncertain by the prior of h everywhere.
#[derive(Debug)]
pub struct VectorMap<'a> {
    posterior: &'a Posterior<VectorField>,
    /// The bias of the sensor.
    pub bias: SensorBias,
    /// The bias that readings were free of when they were learnt.
    removed: Bias,
    /// Directions of the bias that are not known.
    unknown: Vec<Unknown>,
}

/// A direction of the bias u of which little is known: independent of the others under the posterior.
#[derive(Debug)]
struct Unknown {
    /// `E[u] / sd(u)`.
    mean: f64,
    /// `(B^-1 - I) L_b^-1 cov(b, u) / sd(u)`, with the covariance under the prior: times the features of a place it is the covariance of
    /// the field there with u. Under the prior the two are independent.
    shared: Vec<f64>,
}

impl<'a> VectorMap<'a> {
    /// The map of this posterior.
    pub fn new(posterior: &'a Posterior<VectorField>) -> Self {
        Self::after_removal(posterior, Bias::default())
    }

    /// The map of a posterior that was learnt from readings [without](AxesReading::without) this bias. What is said of the bias
    /// includes it.
    pub fn after_removal(posterior: &'a Posterior<VectorField>, removed: Bias) -> Self {
        let inducing = &posterior.past.inducing;
        let indices: Vec<usize> = (0..inducing.len()).filter(|&index| inducing.is_permanent(index)).collect();
        let components = inducing.select(indices);
        let (mut mean, covariance) = posterior.predict_joint(&components);
        for (mean, component) in mean.iter_mut().zip(components.iter()) {
            match component {
                FieldPlace::HardIron(axis) => *mean += removed[axis as usize],
                FieldPlace::SpeedBias(axis) => *mean += removed[axis as usize + 3],
                FieldPlace::Field { .. } | FieldPlace::Reading { .. } => {}
            }
        }
        let model = &posterior.model;
        let prior: Vec<f64> = components.iter().map(|component| model.kernel.bias_deviation(component)).collect();
        let size = mean.len();
        let standardized = Matrix::from_fn(size, size, |i, j| covariance[(i, j)] / (prior[i] * prior[j]));
        let (variances, directions) = linalg::symmetric_eigen(standardized.as_ref());
        let mut features = model.kernel.covariance(inducing, &components);
        linalg::solve_lower(posterior.past.covariance_root.as_ref(), features.as_mut());

        let mut known_mean = vec![0.0; size];
        let mut unknown = Vec::new();
        for (k, &variance) in variances.iter().enumerate() {
            // u = sum_i e_i b_i / sd_i.
            let direction: Vec<f64> = (0..size).map(|i| directions[(i, k)]).collect();
            let along = (0..size).map(|i| direction[i] * mean[i] / prior[i]).sum::<f64>();
            if variance < KNOWN_BELOW {
                (0..size).for_each(|i| known_mean[i] += prior[i] * direction[i] * along);
                continue;
            }
            let deviation = variance.sqrt();
            let weights: Vec<f64> = (0..size).map(|i| direction[i] / (prior[i] * deviation)).collect();
            let combined = linalg::matrix_vector(features.as_ref(), &weights);
            let mut shrunk = combined.clone();
            linalg::solve_from_cholesky(posterior.precision_root.as_ref(), &mut shrunk);
            let shared = shrunk.iter().zip(&combined).map(|(after, before)| after - before).collect();
            unknown.push(Unknown { mean: along / deviation, shared });
        }
        let bias = SensorBias { components: components.iter().collect(), mean: known_mean, covariance };
        Self { posterior, bias, removed, unknown }
    }

    /// The axes of the field at each of the places (x, y, z).
    pub fn axes(&self, positions: &[[f64; 3]]) -> Vec<Axes> {
        let mut shared = Vec::with_capacity(positions.len() * self.unknown.len());
        let groups = self.posterior.predict_groups_with(&FieldPlaces::axes(positions), |features| {
            shared.extend(self.unknown.iter().map(|unknown| features.map(|features| dot(features, &unknown.shared))));
        });
        let mut axes: Vec<Axes> = groups.into_iter().map(|(mean, covariance)| Axes { mean, covariance }).collect();
        if self.unknown.is_empty() {
            return axes;
        }
        for (axes, shared) in axes.iter_mut().zip(shared.chunks_exact(self.unknown.len())) {
            for (unknown, shared) in self.unknown.iter().zip(shared) {
                for i in 0..3 {
                    axes.mean[i] -= shared[i] * unknown.mean;
                    (0..3).for_each(|j| axes.covariance[i][j] -= shared[i] * shared[j]);
                }
            }
            (0..3).for_each(|i| axes.covariance[i][i] = axes.covariance[i][i].max(0.0));
        }
        axes
    }

    /// Readings of a sensor in these poses, in the map's frame, noise not included: field and bias together, with all that is known of
    /// both.
    pub fn readings(&self, of: &[SensorPose]) -> Vec<Axes> {
        let rows = |pose: &SensorPose| {
            let SensorPose { position, orientation, speed } = *pose;
            Axis::ALL.map(|axis| FieldPlace::Reading { axis, position, turn: orientation[axis as usize], speed })
        };
        let places = of.iter().flat_map(rows).collect();
        let groups = self.posterior.predict_groups(&places).into_iter().zip(of);
        let axes = |((mean, covariance), pose): (([f64; 3], _), &SensorPose)| {
            let removed = read_bias(&self.removed, &pose.orientation, pose.speed);
            Axes { mean: std::array::from_fn(|i| mean[i] + removed[i]), covariance }
        };
        groups.map(axes).collect()
    }
}

/// Pose and speed of a sensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorPose {
    /// x, y, z.
    pub position: [f64; 3],
    /// R, as rows.
    pub orientation: [[f64; 3]; 3],
    /// Speed.
    pub speed: f64,
}
