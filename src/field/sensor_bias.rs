//! The bias of the sensor, which is one for all tiles.
//!
//! A tile begins with what is known of the bias at that moment, its prior, and keeps it for life: its readings are corrected by the
//! prior's mean. What it has learnt itself is the precision of its posterior less that of its prior. What is known of the sensor is
//! the sum of that over all tiles, and the prior of the first. Every tile's part is weighed by the share of its observations that
//! count for it, so that a reading in the halo of a neighbour counts once.

use nalgebra::{Matrix6, SymmetricEigen, Vector6};
use serde::Serialize;
use streaming_gp::vector::{Bias, KNOWN_BELOW};
use streaming_gp::{BiasCovariance, FieldPlace, Places, VectorField, VectorMap};

use super::engine::VectorPosterior;

/// The bias of the sensor as the map has learnt it: its hard iron, along the sensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SensorBias {
    /// In microtesla; 0 along directions that the drive does not determine, such as the vertical of a robot that stays in
    /// the plane.
    pub hard_iron: [f64; 3],
    /// Standard deviation of each component, in microtesla.
    pub hard_iron_sd: [f64; 3],
    /// Covariance of the components, in microtesla squared.
    #[serde(skip)]
    pub hard_iron_covariance: [[f64; 3]; 3],
}

impl SensorBias {
    /// The bias that one posterior knows; none where the settings exclude it.
    pub(super) fn of(posterior: &VectorPosterior, removed: Bias) -> Option<Self> {
        let map = VectorMap::after_removal(posterior, removed);
        let (bias, deviations) = (&map.bias, map.bias.standard_deviations());
        let hard_iron = |numbers: &[f64]| numbers.first_chunk().copied();
        let has_hard_iron = matches!(bias.components.first(), Some(FieldPlace::HardIron(_)));
        if !has_hard_iron {
            return None;
        }
        Some(Self {
            hard_iron: hard_iron(&bias.mean)?,
            hard_iron_sd: hard_iron(&deviations)?,
            hard_iron_covariance: std::array::from_fn(|i| std::array::from_fn(|j| bias.covariance[(i, j)])),
        })
    }
}

/// The bias at the beginning of a tile: the mean, by which its readings are corrected, and the covariance of the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BiasPrior {
    pub(crate) mean: Bias,
    pub(crate) covariance: BiasCovariance,
}

impl BiasPrior {
    /// Whether it is the prior of some sensor: a file may contain any numbers.
    pub(crate) fn is_valid(&self) -> bool {
        let covariance = matrix(&self.covariance);
        let is_possible = covariance.iter().chain(&self.mean).all(|value| value.is_finite())
            && (0..6).all(|i| covariance[(i, i)] >= 0.0)
            && covariance == covariance.transpose();
        is_possible && with_absent(covariance).cholesky().is_some()
    }
}

/// The information of readings about the bias: a normal distribution in its natural parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BiasInformation {
    precision: Matrix6<f64>,
    /// Precision times mean.
    shift: Vector6<f64>,
}

impl BiasInformation {
    /// The prior, before any reading. Absent components have a variance of 1, which nothing changes.
    fn before_any_reading(kernel: &VectorField) -> Self {
        let variances = deviations(kernel).component_mul(&deviations(kernel));
        let precisions = variances.map(|variance| if variance > 0.0 { 1.0 / variance } else { 1.0 });
        Self { precision: Matrix6::from_diagonal(&precisions), shift: Vector6::zeros() }
    }

    /// The information that a posterior has learnt since its prior, the mean of which its readings are corrected by; none
    /// where a matrix is singular to the precision of doubles.
    pub(super) fn learnt(posterior: &VectorPosterior, prior: Option<&BiasPrior>) -> Option<Self> {
        let kernel = &posterior.model.kernel;
        let inducing = &posterior.past.inducing;
        let components = inducing.select((0..inducing.len()).filter(|&index| inducing.is_permanent(index)));
        let (mean, covariance) = posterior.predict_joint(&components);
        let place = |component| match component {
            FieldPlace::HardIron(axis) => Some(axis as usize),
            FieldPlace::SpeedBias(axis) => Some(axis as usize + 3),
            FieldPlace::Field { .. } | FieldPlace::Reading { .. } => None,
        };
        let places: Vec<usize> = components.iter().filter_map(place).collect();
        let (mut whole_mean, mut whole) = (Vector6::zeros(), Matrix6::zeros());
        for (i, &row) in places.iter().enumerate() {
            whole_mean[row] = mean[i];
            places.iter().enumerate().for_each(|(j, &column)| whole[(row, column)] = covariance[(i, j)]);
        }
        let precision = with_absent(whole).try_inverse()?;
        let before = match prior {
            Some(prior) => {
                whole_mean += Vector6::from(prior.mean);
                let precision = with_absent(matrix(&prior.covariance)).try_inverse()?;
                Self { shift: precision * Vector6::from(prior.mean), precision }
            }
            None => Self::before_any_reading(kernel),
        };
        Some(Self { precision: precision - before.precision, shift: precision * whole_mean - before.shift })
    }
}

/// The knowledge of a sensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct BiasEstimate {
    deviations: Vector6<f64>,
    mean: Vector6<f64>,
    covariance: Matrix6<f64>,
}

impl BiasEstimate {
    /// Sums the information of tiles, each with its weight; none where the sum is singular to the precision of doubles.
    pub(super) fn from_tiles(
        kernel: &VectorField,
        learnt: impl IntoIterator<Item = (f64, BiasInformation)>,
    ) -> Option<Self> {
        let mut sum = BiasInformation::before_any_reading(kernel);
        for (weight, information) in learnt {
            sum.precision += weight * information.precision;
            sum.shift += weight * information.shift;
        }
        let covariance = sum.precision.try_inverse()?;
        let covariance = 0.5 * (covariance + covariance.transpose());
        Some(Self { deviations: deviations(kernel), mean: covariance * sum.shift, covariance })
    }

    /// Mean and covariance in which directions of which little is known are as before any reading: with mean zero.
    fn known(&self) -> (Vector6<f64>, Matrix6<f64>) {
        // Of components that there are not, the variance is 1 here, and they stay unknown.
        let scale = self.deviations.map(|deviation| if deviation > 0.0 { deviation } else { 1.0 });
        let unscale = Matrix6::from_diagonal(&scale.map(|deviation| 1.0 / deviation));
        let SymmetricEigen { eigenvalues, eigenvectors } = (unscale * self.covariance * unscale).symmetric_eigen();
        let (mut mean, mut covariance) = (Vector6::zeros(), Matrix6::zeros());
        for (&variance, direction) in eigenvalues.iter().zip(eigenvectors.column_iter()) {
            let is_known = variance < KNOWN_BELOW;
            let along = if is_known { direction.dot(&(unscale * self.mean)) } else { 0.0 };
            let variance = if is_known { variance.max(f64::MIN_POSITIVE) } else { 1.0 };
            mean += along * direction.component_mul(&scale);
            let direction = direction.component_mul(&scale);
            covariance += variance * direction * direction.transpose();
        }
        for absent in (0..6).filter(|&i| self.deviations[i] == 0.0) {
            mean[absent] = 0.0;
            covariance.row_mut(absent).fill(0.0);
            covariance.column_mut(absent).fill(0.0);
        }
        (mean, covariance)
    }

    /// The prior of a tile that begins now.
    pub(super) fn prior(&self) -> BiasPrior {
        let (mean, covariance) = self.known();
        // From one triangle, so that it is symmetric to the last bit.
        let entry = |i: usize, j: usize| covariance[(i.max(j), i.min(j))];
        BiasPrior { mean: mean.into(), covariance: std::array::from_fn(|i| std::array::from_fn(|j| entry(i, j))) }
    }

    /// The bias; none where the settings exclude it.
    pub(super) fn bias(&self) -> Option<SensorBias> {
        let (mean, _) = self.known();
        let covariance = &self.covariance;
        (self.deviations[0] > 0.0).then(|| SensorBias {
            hard_iron: std::array::from_fn(|i| mean[i]),
            hard_iron_sd: std::array::from_fn(|i| covariance[(i, i)].sqrt()),
            hard_iron_covariance: std::array::from_fn(|i| std::array::from_fn(|j| covariance[(i, j)])),
        })
    }
}

/// Standard deviations of all components before any reading; zero of those that there are not.
fn deviations(kernel: &VectorField) -> Vector6<f64> {
    let VectorField { hard_iron, speed_bias, .. } = *kernel;
    Vector6::new(hard_iron, hard_iron, hard_iron, speed_bias, speed_bias, speed_bias)
}

fn matrix(rows: &BiasCovariance) -> Matrix6<f64> {
    Matrix6::from_fn(|i, j| rows[i][j])
}

/// The covariance with a variance of 1 for components that there are not.
fn with_absent(mut covariance: Matrix6<f64>) -> Matrix6<f64> {
    for i in 0..6 {
        if covariance[(i, i)] == 0.0 {
            covariance[(i, i)] = 1.0;
        }
    }
    covariance
}
