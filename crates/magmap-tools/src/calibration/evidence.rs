//! The evidence of a stretch of a drive as a function of the yaw of the mount, and what it says of the sensor's bias.
//!
//! With the mount turned by the yaw about the vertical of the body, a reading in the map's frame is
//! `y = a + b cos(yaw) + c sin(yaw)`. The covariance of the field does not depend on the yaw, nor does the prior of the bias, which is the same
//! along all axes. So one Cholesky factorization gives the log evidence for every yaw, and the bias of the sensor as well.

use streaming_gp::{Matrix, NotPositiveDefinite, Places, VectorField};

use super::stretch::TurnableReading;
use magmap::field::exact_evidence::{Coefficients, ExactEvidence, axes_in_plane, covariance, factorized};

/// The columns: a, b and c, the axes of the body in each row, and those times the speed.
const COLUMNS: usize = 9;
const AXES: usize = 3;
const SPEEDS: usize = 6;

/// Readings under one model, at one delay.
pub(super) struct Evidence {
    /// Prior variance of each component of the hard iron.
    prior_variance: f64,
    without_hard_iron: ExactEvidence,
    exact: ExactEvidence,
}

impl Evidence {
    /// # Errors
    /// When the covariance is not positive definite.
    pub(super) fn new(
        readings: &[TurnableReading],
        kernel: &VectorField,
        noise: f64,
    ) -> Result<Self, NotPositiveDefinite> {
        let places = axes_in_plane(readings.iter().map(|reading| reading.position));
        let columns = Matrix::from_fn(places.len(), COLUMNS, |row, column| {
            let (reading, axis) = (&readings[row / 3], row % 3);
            match column {
                0..AXES => reading.parts[column][axis],
                AXES..SPEEDS => reading.body[(axis, column - AXES)],
                _ => reading.body[(axis, column - SPEEDS)] * reading.speed,
            }
        });
        let prior_variance = kernel.hard_iron.powi(2);
        let without_hard_iron = ExactEvidence::new(&factorized(covariance(&places, kernel), noise)?, columns);
        let exact = without_hard_iron.marginalized(AXES, prior_variance).ok_or(NotPositiveDefinite)?;
        Ok(Self { prior_variance, without_hard_iron, exact })
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

    /// The yaw of the greatest log evidence, between -pi / 2 and pi / 2: half a turn more is sources on the other side.
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

    /// How much greater the log evidence of the best yaw is than that of any other local maximum, with the sources on
    /// either side; infinite without another.
    pub(super) fn lead(&self) -> f64 {
        let at = |yaw: f64| self.at(yaw).max(self.at(yaw + std::f64::consts::PI));
        let is_maximum = |yaw: &f64| at(*yaw) > at(yaw - STEP).max(at(yaw + STEP));
        let mut maxima: Vec<f64> = grid().filter(is_maximum).map(at).collect();
        maxima.sort_by(|a, b| b.total_cmp(a));
        if let [first, second, ..] = maxima[..] { first - second } else { f64::INFINITY }
    }

    /// The hard iron, along the axes of the body.
    pub(super) fn hard_iron(&self, yaw: f64) -> Option<Coefficients> {
        self.without_hard_iron.coefficients(AXES, &turned(yaw), self.prior_variance)
    }

    /// The part of the bias that grows with the speed, along the axes of the body, under this prior variance.
    pub(super) fn speed_bias(&self, yaw: f64, prior: f64) -> Option<Coefficients> {
        self.exact.coefficients(SPEEDS, &turned(yaw), prior)
    }
}

/// Half a degree.
const STEP: f64 = std::f64::consts::PI / 360.0;

/// Every half degree of half a turn.
fn grid() -> impl Iterator<Item = f64> {
    (-180..180).map(|step| f64::from(step) * STEP)
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

#[cfg(test)]
mod tests {
    use super::super::settings;
    use super::*;
    use magmap::config::Config;
    use magmap::field::engine;
    use nalgebra::{DMatrix, DVector, Point3, Rotation3, Vector3};

    const NOISE: f64 = 2.0;
    /// By how much the sensor is turned, and its hard iron along the axes of the body that it seems to be on.
    const YAW: f64 = 0.3;
    const HARD_IRON: [f64; 3] = [6.0, -4.0, 0.0];

    /// Readings on a path that crosses itself, in a field with neither curl nor divergence.
    fn readings() -> Vec<TurnableReading> {
        let reading = |i: u32| {
            let time = 0.11 * f64::from(i);
            let (x, y) = (1.5 * time.sin(), (2.0 * time).sin());
            let heading = (2.0 * (2.0 * time).cos()).atan2(1.5 * time.cos());
            let wave = 20.0 * Vector3::new((2.0 * x).cos(), -(2.0 * y).sin(), -(2.0 * x).sin() - (2.0 * y).cos());
            let field = wave + Vector3::new(20.0, 0.0, -40.0);
            let body = *Rotation3::from_axis_angle(&Vector3::z_axis(), heading).matrix();
            let turn = Rotation3::from_axis_angle(&Vector3::z_axis(), -YAW);
            let seen = turn * (body.transpose() * field + Vector3::from(HARD_IRON));
            let parts = [[0.0, 0.0, seen.z], [seen.x, seen.y, 0.0], [-seen.y, seen.x, 0.0]];
            let parts = parts.map(|part| body * Vector3::from(part));
            TurnableReading { position: Point3::new(x, y, 0.0), body, parts, speed: 0.5 + 0.3 * (3.0 * time).sin() }
        };
        (0..70).map(reading).collect()
    }

    fn kernel() -> VectorField {
        VectorField { variance_above: None, ..engine::vector_model(&settings(&Config::default())).kernel }
    }

    fn evidence() -> Evidence {
        Evidence::new(&readings(), &kernel(), NOISE).unwrap()
    }

    /// The covariance of all rows, inverted, and its log determinant.
    fn dense() -> (DMatrix<f64>, f64) {
        let places = axes_in_plane(readings().iter().map(|reading| reading.position));
        let lower = covariance(&places, &kernel());
        let at = |i: usize, j: usize| lower[(i.max(j), i.min(j))] + if i == j { NOISE } else { 0.0 };
        let (ones, prior) = (axes(|_| 1.0), kernel().hard_iron.powi(2));
        let of_hard_iron = &ones * ones.transpose() * prior;
        let factor = (DMatrix::from_fn(places.len(), places.len(), at) + of_hard_iron).cholesky().unwrap();
        (factor.inverse(), factor.ln_determinant())
    }

    /// The readings in the map's frame, with the mount turned.
    fn targets(yaw: f64) -> DVector<f64> {
        let of = |TurnableReading { parts: [a, b, c], .. }: TurnableReading| a + b * yaw.cos() + c * yaw.sin();
        DVector::from_iterator(210, readings().into_iter().flat_map(|reading| of(reading).data.0[0]))
    }

    /// The axes of the body in each row, each row times a number.
    fn axes(factor: fn(&TurnableReading) -> f64) -> DMatrix<f64> {
        let readings = readings();
        DMatrix::from_fn(210, 3, |row, axis| readings[row / 3].body[(row % 3, axis)] * factor(&readings[row / 3]))
    }

    #[test]
    fn the_log_evidence_is_that_of_a_normal_distribution_at_every_yaw() {
        let (evidence, (inverse, log_determinant)) = (evidence(), dense());
        for yaw in [-2.0, 0.0, YAW, 1.0] {
            let y = targets(yaw);
            let expected = -0.5 * (y.dot(&(&inverse * &y)) + log_determinant + 210.0 * std::f64::consts::TAU.ln());
            // Both sum some 40 000 products in doubles.
            assert!((evidence.at(yaw) - expected).abs() < 1e-8 * expected.abs(), "{} {expected}", evidence.at(yaw));
        }
    }

    #[test]
    fn derivatives_are_those_of_differences() {
        const STEP: f64 = 1e-4;
        let evidence = evidence();
        for yaw in [-1.0, 0.0, 0.5] {
            let [before, at, after] = [-STEP, 0.0, STEP].map(|step| evidence.at(yaw + step));
            let [first, second] = evidence.derivatives(yaw);
            // The next terms are smaller by the square of the step, and rounding by 1e-13 over it.
            assert!(((after - before) / (2.0 * STEP) - first).abs() < 1e-5 * first.abs().max(1.0), "{yaw}: {first}");
            let difference = (after - 2.0 * at + before) / STEP.powi(2);
            assert!((difference - second).abs() < 1e-3 * second.abs(), "{yaw}: {difference} {second}");
        }
    }

    #[test]
    fn the_yaw_and_the_hard_iron_of_the_sensor_are_found() {
        let evidence = evidence();
        let yaw = evidence.best_yaw();
        // Noise of 2 in 70 readings of a field that varies by 20 tells a degree or two.
        assert!((yaw - YAW).abs() < 0.03, "{yaw}");
        assert!(evidence.derivatives(yaw)[0].abs() < 1e-6);
        assert!(grid().all(|other| evidence.at(other) <= evidence.at(yaw)));
        assert!(evidence.lead() > 7.0, "{}", evidence.lead());
        let Coefficients { mean, covariance } = evidence.hard_iron(yaw).unwrap();
        let known: [f64; 2] =
            std::array::from_fn(|axis| (mean[axis] - HARD_IRON[axis]) / covariance[(axis, axis)].sqrt());
        assert!(known.iter().all(|error| error.abs() < 3.0), "{mean} {known:?}");
        assert!(covariance[(1, 1)] < 2.0 && covariance[(2, 2)] > 300.0, "{covariance}");
    }

    #[test]
    fn biases_are_those_of_dense_regression() {
        let (evidence, (inverse, _)) = (evidence(), dense());
        let residual = &inverse * targets(YAW);
        let (ones, prior) = (axes(|_| 1.0), kernel().hard_iron.powi(2));
        let found = evidence.hard_iron(YAW).unwrap();
        let mean = ones.transpose() * &residual * prior;
        let covariance = DMatrix::identity(3, 3) * prior - ones.transpose() * &inverse * &ones * prior.powi(2);
        assert!((0..3).all(|i| (found.mean[i] - mean[i]).abs() < 1e-8), "{} {mean}", found.mean);
        // Differences of numbers near 900 squared times a precision.
        assert!(
            (0..9).all(|i| (found.covariance[i] - covariance[i]).abs() < 1e-6),
            "{} {covariance}",
            found.covariance
        );

        let speeds = axes(|reading| reading.speed);
        let found = evidence.speed_bias(YAW, 1e4).unwrap();
        let covariance =
            (speeds.transpose() * &inverse * &speeds + DMatrix::identity(3, 3) * 1e-4).try_inverse().unwrap();
        let mean = &covariance * speeds.transpose() * &residual;
        assert!((0..3).all(|i| (found.mean[i] - mean[i]).abs() < 1e-8), "{} {mean}", found.mean);
        assert!((0..9).all(|i| (found.covariance[i] - covariance[i]).abs() < 1e-8));
    }
}
