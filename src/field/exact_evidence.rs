//! The exact log evidence of readings under the model of the three axes, without inducing points.

use nalgebra::{Matrix3, Point3, Vector3};
use streaming_gp::linalg;
use streaming_gp::{Axis, FieldPlace, FieldPlaces, Kernel, Matrix, NotPositiveDefinite, Places, VectorField};

/// The evidence of targets that are combinations of columns: one Cholesky factorization of their covariance K serves
/// all combinations.
///
/// Weights are those of the first columns; the others have none.
pub struct ExactEvidence {
    rows: f64,
    log_determinant: f64,
    /// Products of the columns X with each other, `X^T K^-1 X`.
    gram: Matrix,
}

/// What the targets say of the coefficients of three columns.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients {
    /// Their mean.
    pub mean: Vector3<f64>,
    /// Their covariance.
    pub covariance: Matrix3<f64>,
}

impl ExactEvidence {
    /// The evidence of targets whose covariance has this [factor](factorized); `columns` has a row for each target.
    pub fn new(factor: &Matrix, mut columns: Matrix) -> Self {
        linalg::solve_lower(factor.as_ref(), columns.as_mut());
        let gram = linalg::product(columns.transpose(), columns.as_ref());
        Self { rows: factor.nrows() as f64, log_determinant: linalg::log_determinant(factor.as_ref()), gram }
    }

    /// The evidence where the targets contain the three columns from `first` on as well, with unknown coefficients: independent ones of mean
    /// zero and this variance (Rasmussen and Williams, section 2.7). None where the numbers are not finite.
    pub fn marginalized(&self, first: usize, variance: f64) -> Option<Self> {
        let covariance = self.covariance_of_coefficients(first, variance)?;
        let products = |column: usize| Vector3::from_fn(|i, _| self.gram[(first + i, column)]);
        let gram = Matrix::from_fn(self.gram.nrows(), self.gram.ncols(), |i, j| {
            self.gram[(i, j)] - products(i).dot(&(covariance * products(j)))
        });
        let log_determinant = self.log_determinant - (covariance / variance).determinant().ln();
        Some(Self { rows: self.rows, log_determinant, gram })
    }

    /// The coefficients of the three columns from `first` on that the targets `X weights` contain, with the prior of
    /// [`marginalized`](Self::marginalized). None where the numbers are not finite.
    pub fn coefficients(&self, first: usize, weights: &[f64], variance: f64) -> Option<Coefficients> {
        let covariance = self.covariance_of_coefficients(first, variance)?;
        let product = |i: usize| weights.iter().enumerate().map(|(k, weight)| weight * self.gram[(first + i, k)]).sum();
        Some(Coefficients { mean: covariance * Vector3::from_fn(|i, _| product(i)), covariance })
    }

    fn covariance_of_coefficients(&self, first: usize, variance: f64) -> Option<Matrix3<f64>> {
        let information = Matrix3::from_fn(|i, j| self.gram[(first + i, first + j)]) + Matrix3::identity() / variance;
        information.cholesky().map(|factor| factor.inverse())
    }

    /// `(X left)^T K^-1 (X right)`.
    pub fn product(&self, left: &[f64], right: &[f64]) -> f64 {
        let row = |i: usize| right.iter().enumerate().map(|(j, right)| self.gram[(i, j)] * right).sum::<f64>();
        left.iter().enumerate().map(|(i, left)| left * row(i)).sum()
    }

    /// The log evidence of the targets `X weights`, in nats.
    pub fn at(&self, weights: &[f64]) -> f64 {
        let constant = self.log_determinant + self.rows * std::f64::consts::TAU.ln();
        -0.5 * (constant + self.product(weights, weights))
    }

    /// The log evidence of the targets under the multiple of K that makes it greatest, so that only the shape of the covariance counts.
    pub fn scaled_at(&self, weights: &[f64]) -> f64 {
        let scale = (self.product(weights, weights) / self.rows).max(f64::MIN_POSITIVE);
        -0.5 * (self.log_determinant + self.rows * ((std::f64::consts::TAU * scale).ln() + 1.0))
    }
}

/// The lower Cholesky factor of a covariance, of which the lower triangle is read, with independent noise of this variance.
///
/// # Errors
/// When it is not positive definite.
pub fn factorized(mut covariance: Matrix, noise: f64) -> Result<Matrix, NotPositiveDefinite> {
    (0..covariance.nrows()).for_each(|i| covariance[(i, i)] += noise);
    linalg::cholesky(covariance)
}

/// Models with all sources below the plane, and with as many above, at each of these distances over that of the kernel.
pub fn kernels(kernel: &VectorField, distances: &[f64]) -> Vec<VectorField> {
    let at = |distance: &f64| {
        let below = VectorField { variance_above: None, lengthscale: distance * kernel.lengthscale, ..kernel.clone() };
        let half = 0.5 * below.variance;
        [VectorField { variance: half, variance_above: Some(half), ..below.clone() }, below]
    };
    distances.iter().flat_map(at).collect()
}

/// The covariance of the field at these places; the lower triangle.
pub fn covariance(places: &FieldPlaces, kernel: &VectorField) -> Matrix {
    let mut covariance = linalg::zeros(places.len(), places.len());
    kernel.add_lower_covariance(places, covariance.as_mut());
    covariance
}

/// Adds to the covariance of readings, three rows each, what sources beside them cause: a layer like that below the plane, and as strong, along
/// each side of the rectangle around these places.
///
/// It is the potential of sources below, with the distance from that side as height. So it is harmonic, and strongest next to the side.
pub fn add_sources_beside(positions: &[Point3<f64>], kernel: &VectorField, covariance: &mut Matrix) {
    let layer = VectorField { constant: 0.0, variance_above: None, plane: 0.0, ..kernel.clone() };
    for across in [0, 1] {
        // From a side, away from it is up, and up is to the side.
        let axes = [0, 1, 2].map(|axis| if axis == across { Axis::Z } else { [Axis::X, Axis::X, Axis::Y][axis] });
        let coordinates = || positions.iter().map(|position| position[across]);
        let sides = [
            (1.0, coordinates().fold(f64::INFINITY, f64::min)),
            (-1.0, coordinates().fold(f64::NEG_INFINITY, f64::max)),
        ];
        for (away, side) in sides {
            let rows = |position: &Point3<f64>| {
                let position = [position[1 - across], 0.0, away * (position[across] - side)];
                axes.map(|axis| FieldPlace::Field { axis, position })
            };
            let of_layer = self::covariance(&positions.iter().flat_map(rows).collect(), &layer);
            let sign = |row: usize| if row % 3 == across { away } else { 1.0 };
            for column in 0..covariance.ncols() {
                for row in column..covariance.nrows() {
                    covariance[(row, column)] += sign(row) * sign(column) * of_layer[(row, column)];
                }
            }
        }
    }
}

/// The three axes of the field at these places; their heights are left out.
pub fn axes_in_plane(positions: impl IntoIterator<Item = Point3<f64>>) -> FieldPlaces {
    let level = |position: Point3<f64>| [position.x, position.y, 0.0];
    FieldPlaces::axes(&positions.into_iter().map(level).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_beside_are_in_all_four_walls_and_their_field_has_no_curl() {
        let kernel = VectorField {
            constant: 400.0,
            variance: 25.0,
            variance_above: None,
            lengthscale: 1.5,
            plane: 0.0,
            hard_iron: 0.0,
            speed_bias: 0.0,
            bias_covariance: None,
        };
        let half = 1e-3;
        let steps = [[half, 0.0], [-half, 0.0], [0.0, half], [0.0, -half]];
        let near = steps.map(|[x, y]| Point3::new(0.7 + x, 1.9 + y, 0.0));
        let corners = [Point3::new(0.0, 0.0, 0.0), Point3::new(3.0, 2.0, 0.0)];
        let positions: Vec<Point3<f64>> = near.into_iter().chain(corners).collect();
        let mut covariance = linalg::zeros(18, 18);
        add_sources_beside(&positions, &kernel, &mut covariance);
        let of = |i: usize, j: usize| covariance[(i.max(j), i.min(j))];
        for other in 0..18 {
            // Central differences: y of the field along x less x of it along y, over a step of 2 mm. Terms are of the order of 10.
            let curl = (of(1, other) - of(4, other) - of(6, other) + of(9, other)) / (2.0 * half);
            assert!(curl.abs() < 1e-3, "{curl} with row {other}");
        }
        // At a corner: two walls at distance 0, two others at 3 and 2 m. v (s / (s + 2 h))^3, twice that across a wall.
        let at = |distance: f64| 25.0 * (1.5 / (1.5 + 2.0 * distance)).powi(3);
        let [x, y, z] = [
            2.0 * (at(0.0) + at(3.0)) + at(0.0) + at(2.0),
            2.0 * (at(0.0) + at(2.0)) + at(0.0) + at(3.0),
            2.0 * at(0.0) + at(3.0) + at(2.0),
        ];
        for (row, expected) in [(12, x), (13, y), (14, z), (15, x), (16, y), (17, z)] {
            assert!((of(row, row) - expected).abs() < 1e-9 * expected, "row {row}: {} {expected}", of(row, row));
        }
    }
}
