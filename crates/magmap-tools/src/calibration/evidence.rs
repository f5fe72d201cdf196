//! The evidence of a stretch of a drive as a function of the yaw of the mount, and what it says of the sensor's bias.
//!
//! With the mount turned by the yaw about the vertical of the body, a reading in the map's frame is
//! `y = a + b cos(yaw) + c sin(yaw)`. Its covariance K does not depend on the yaw: the prior of the bias is the same along
//! all axes. So one Cholesky factorization of K gives the log evidence for every yaw, and the bias of the sensor as well.

use nalgebra::{Matrix3, Vector3};
use streaming_gp::{FieldPlaces, Matrix, NotPositiveDefinite, Places, VectorField};

use super::stretch::TurnableReading;
use magmap::field::exact_evidence::{ExactEvidence, rows_of_reading};

/// The columns: a, b and c, the axes of the body in each row, and those times the speed.
const COLUMNS: usize = 9;
const AXES: usize = 3;
const SPEEDS: usize = 6;

/// Readings under one model, at one delay.
pub(super) struct Evidence {
    /// Prior variance of each component of the hard iron.
    prior_variance: f64,
    exact: ExactEvidence,
}

/// A vector of the sensor with its covariance, along the axes of the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bias {
    pub(super) mean: Vector3<f64>,
    pub(super) covariance: Matrix3<f64>,
}

impl Evidence {
    /// # Errors
    /// When the covariance is not positive definite.
    pub(super) fn new(
        readings: &[TurnableReading],
        kernel: &VectorField,
        noise: f64,
    ) -> Result<Self, NotPositiveDefinite> {
        let places: FieldPlaces =
            readings.iter().flat_map(|reading| rows_of_reading(reading.position, &reading.body)).collect();
        let columns = Matrix::from_fn(places.len(), COLUMNS, |row, column| {
            let (reading, axis) = (&readings[row / 3], row % 3);
            match column {
                0..AXES => reading.parts[column][axis],
                AXES..SPEEDS => reading.body[(axis, column - AXES)],
                _ => reading.body[(axis, column - SPEEDS)] * reading.speed,
            }
        });
        let exact = ExactEvidence::new(&places, kernel, noise, columns)?;
        Ok(Self { exact, prior_variance: kernel.hard_iron.powi(2) })
    }

    /// The log evidence with the mount turned by `yaw`, in nats.
    pub(super) fn at(&self, yaw: f64) -> f64 {
        self.exact.at(&turned(yaw))
    }

    /// First and second derivative of the log evidence in the yaw.
    pub(super) fn derivatives(&self, yaw: f64) -> [f64; 2] {
        let (at, first, second) = (turned(yaw), slope(yaw), curvature(yaw));
        let product = |left: &[f64; 3], right: &[f64; 3]| self.exact.product(left, right);
        [-product(&at, &first), -product(&first, &first) - product(&at, &second)]
    }

    /// The yaw of the greatest log evidence, between -pi and pi.
    pub(super) fn best_yaw(&self) -> f64 {
        let start = grid().max_by(|a, b| self.at(*a).total_cmp(&self.at(*b))).unwrap_or(0.0);
        // Newton's method; the log evidence is a parabola within a degree.
        let newton = |yaw: f64, _| {
            let [first, second] = self.derivatives(yaw);
            if second < 0.0 { yaw - (first / second).clamp(-STEP, STEP) } else { yaw }
        };
        let best = (0..10).fold(start, newton);
        if self.at(best) >= self.at(start) { best } else { start }
    }

    /// How much greater the log evidence of the best yaw is than that of any other local maximum; infinite without
    /// another.
    pub(super) fn lead(&self) -> f64 {
        let is_maximum = |yaw: &f64| self.at(*yaw) > self.at(yaw - STEP).max(self.at(yaw + STEP));
        let mut maxima: Vec<f64> = grid().filter(is_maximum).map(|yaw| self.at(yaw)).collect();
        maxima.sort_by(|a, b| b.total_cmp(a));
        if let [first, second, ..] = maxima[..] { first - second } else { f64::INFINITY }
    }

    /// The hard iron.
    pub(super) fn hard_iron(&self, yaw: f64) -> Bias {
        let prior = self.prior_variance;
        let (projected, squares) = self.exact.projected(AXES, &turned(yaw));
        let mean = projected * prior;
        Bias { mean, covariance: Matrix3::identity() * prior - squares * (prior * prior) }
    }

    /// The part of the bias that grows with the speed, under this prior variance.
    pub(super) fn speed_bias(&self, yaw: f64, prior: f64) -> Option<Bias> {
        let (projected, squares) = self.exact.projected(SPEEDS, &turned(yaw));
        let covariance = (squares + Matrix3::identity() / prior).try_inverse()?;
        Some(Bias { mean: covariance * projected, covariance })
    }
}

/// Half a degree.
const STEP: f64 = std::f64::consts::PI / 360.0;

/// Every half degree of a turn.
fn grid() -> impl Iterator<Item = f64> {
    (-360..360).map(|step| f64::from(step) * STEP)
}

/// The weights of a, b and c.
fn turned(yaw: f64) -> [f64; 3] {
    [1.0, yaw.cos(), yaw.sin()]
}

fn slope(yaw: f64) -> [f64; 3] {
    [0.0, -yaw.sin(), yaw.cos()]
}

fn curvature(yaw: f64) -> [f64; 3] {
    [0.0, -yaw.cos(), -yaw.sin()]
}
