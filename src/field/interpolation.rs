//! The axes at many places of a small area, interpolated between few.
//!
//! A prediction costs a product with all inducing points. But a field whose sources are some distance away is smooth: where many places are
//! close together, the polynomial through its values at a few Chebyshev nodes is as good as the prediction itself.

use std::f64::consts::PI;

use nalgebra::{Const, DMatrix, DVector, Dyn, SVector};

use super::posterior::Gaussian;
use super::tiles::Extent;

/// Largest error that the interpolation may add, over the standard deviation, or the variance, of the field where nothing is known.
pub(super) const TOLERANCE: f64 = 1e-5;

/// How many times the greatest value in the area the function may be in the complex plane around it, for the [`node_count`].
const GROWTH: f64 = 1e6;

/// Numbers of a Gaussian of three axes.
const NUMBERS: usize = 12;

/// Predictions at places of an area (its lower left and upper right corner, in metres), given those at any places by a harmonic field with
/// this length. Where few places are asked for, each is predicted.
pub(super) fn interpolated(
    area: Extent,
    length: f64,
    places: &[[f64; 2]],
    predict: impl Fn(&[[f64; 2]]) -> Vec<Gaussian<3>>,
) -> Vec<Gaussian<3>> {
    let [first, last] = area;
    let half = 0.5 * (last[0] - first[0]).max(last[1] - first[1]);
    let count = node_count(length / half);
    if count * count >= places.len() {
        return predict(places);
    }
    let [columns, rows] = [0, 1].map(|axis| Chebyshev::new(first[axis], last[axis], count));
    let nodes: Vec<[f64; 2]> = rows.nodes.iter().flat_map(|&y| columns.nodes.iter().map(move |&x| [x, y])).collect();
    let known = predict(&nodes);
    let Some(far_variance) = known.first().map(|gaussian| gaussian.far_variance) else { return Vec::new() };
    let numbers = known.iter().flat_map(|known| known.mean.into_iter().chain(known.covariance.into_iter().flatten()));
    // A column for each row of nodes.
    let values = DMatrix::from_iterator(NUMBERS * count, count, numbers);
    let mut found = Vec::with_capacity(places.len());
    for row in places.chunk_by(|place, next| place[1] == next[1]) {
        // A column for each node, at the y of these places.
        let values = (&values * rows.basis(row[0][1])).reshape_generic(Const::<NUMBERS>, Dyn(count));
        found.extend(row.iter().map(|&[x, _]| gaussian(&(&values * columns.basis(x)), far_variance)));
    }
    found
}

/// The Gaussian of these numbers: its mean, then its covariance.
fn gaussian(numbers: &SVector<f64, NUMBERS>, far_variance: f64) -> Gaussian<3> {
    let mut covariance = std::array::from_fn(|i| std::array::from_fn(|j| numbers[3 + 3 * i + j]));
    (0..3).for_each(|i| covariance[i][i] = f64::max(covariance[i][i], 0.0));
    Gaussian { mean: std::array::from_fn(|i| numbers[i]), covariance, far_variance }
}

/// How many Chebyshev nodes are enough along an interval, given the length of the field over its half.
///
/// The covariance has its poles where the coordinate is the length away from the real axis. In the ellipse through them, the sum of whose
/// half axes is rho, the field is analytic, so that the error is at most 4 M rho^-n / (rho - 1), with the greatest value M in the ellipse
/// (Trefethen, Approximation Theory and Approximation Practice, theorem 8.2).
fn node_count(length: f64) -> usize {
    let rho = length + length.hypot(1.0);
    ((GROWTH / TOLERANCE / (rho - 1.0)).max(1.0).ln() / rho.ln()).ceil().clamp(2.0, 1e3) as usize
}

/// The polynomials through values at Chebyshev nodes.
struct Chebyshev {
    /// The zeros of a Chebyshev polynomial between two ends.
    nodes: Vec<f64>,
    /// Their barycentric weights.
    weights: Vec<f64>,
}

impl Chebyshev {
    fn new(first: f64, last: f64, count: usize) -> Self {
        let (middle, half) = (0.5 * (first + last), 0.5 * (last - first));
        let angle = |index: usize| PI * (index as f64 + 0.5) / count as f64;
        let sign = |index: usize| if index.is_multiple_of(2) { 1.0 } else { -1.0 };
        let nodes = (0..count).map(|index| middle - half * angle(index).cos()).collect();
        Self { nodes, weights: (0..count).map(|index| sign(index) * angle(index).sin()).collect() }
    }

    /// Lagrange's polynomials at a place, one per node, in the barycentric form (Berrut and Trefethen, Barycentric Lagrange interpolation,
    /// SIAM Review 46, 2004, equations 4.2 and 5.3).
    fn basis(&self, place: f64) -> DVector<f64> {
        let is_node = |index: usize| f64::from(u8::from(self.nodes[index] == place));
        if self.nodes.contains(&place) {
            return DVector::from_fn(self.nodes.len(), |index, _| is_node(index));
        }
        let basis = DVector::from_fn(self.nodes.len(), |index, _| self.weights[index] / (place - self.nodes[index]));
        let sum = basis.sum();
        basis / sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_of_lower_degree_are_exact() {
        for count in [2, 5, 12] {
            let interval = Chebyshev::new(-1.0, 3.0, count);
            let power = |place: f64| place.powi(count as i32 - 1);
            for place in [-1.0, 0.3, interval.nodes[count / 2], 2.999] {
                let basis = interval.basis(place);
                let found: f64 = basis.iter().zip(&interval.nodes).map(|(weight, node)| weight * power(*node)).sum();
                assert!((found - power(place)).abs() < 1e-9 * (1.0 + power(place).abs()), "{count} nodes at {place}");
            }
        }
    }
}
