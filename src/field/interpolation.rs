//! The axes at many places of a small area, interpolated between few.
//!
//! A prediction costs a product with all inducing points. But a field whose sources are some distance away is smooth: where many places are
//! close together, the polynomial through its values at a few Chebyshev nodes is as good as the prediction itself.

use std::f64::consts::PI;

use nalgebra::DMatrix;

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
    let [columns, rows] = [0, 1].map(|axis| chebyshev_nodes(first[axis], last[axis], count));
    let nodes: Vec<[f64; 2]> = rows.iter().flat_map(|&y| columns.iter().map(move |&x| [x, y])).collect();
    let known = predict(&nodes);
    let Some(far_variance) = known.first().map(|gaussian| gaussian.far_variance) else { return Vec::new() };
    let numbers = known.iter().flat_map(|known| known.mean.into_iter().chain(known.covariance.into_iter().flatten()));
    let values = DMatrix::from_row_iterator(nodes.len(), NUMBERS, numbers);
    let weights_at = |&[x, y]: &[f64; 2]| {
        let along = lagrange_basis(&columns, x);
        lagrange_basis(&rows, y).into_iter().flat_map(move |up| along.clone().into_iter().map(move |right| up * right))
    };
    let weights = DMatrix::from_row_iterator(places.len(), nodes.len(), places.iter().flat_map(weights_at));
    let found = weights * values;
    let gaussian = |row: usize| {
        let mut covariance = std::array::from_fn(|i| std::array::from_fn(|j| found[(row, 3 + 3 * i + j)]));
        (0..3).for_each(|i| covariance[i][i] = f64::max(covariance[i][i], 0.0));
        Gaussian { mean: std::array::from_fn(|i| found[(row, i)]), covariance, far_variance }
    };
    (0..places.len()).map(gaussian).collect()
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

/// The zeros of the Chebyshev polynomial of this degree, between these ends.
fn chebyshev_nodes(first: f64, last: f64, count: usize) -> Vec<f64> {
    let (middle, half) = (0.5 * (first + last), 0.5 * (last - first));
    (0..count).map(|index| middle - half * angle(index, count).cos()).collect()
}

fn angle(index: usize, count: usize) -> f64 {
    PI * (index as f64 + 0.5) / count as f64
}

/// Lagrange's polynomials of Chebyshev nodes at a place, in the barycentric form (Berrut and Trefethen, Barycentric Lagrange interpolation,
/// SIAM Review 46, 2004, equations 4.2 and 5.3).
fn lagrange_basis(nodes: &[f64], place: f64) -> Vec<f64> {
    if let Some(hit) = nodes.iter().position(|node| *node == place) {
        return (0..nodes.len()).map(|index| f64::from(u8::from(index == hit))).collect();
    }
    let sign = |index: usize| if index.is_multiple_of(2) { 1.0 } else { -1.0 };
    let weight = |(index, node): (usize, &f64)| sign(index) * angle(index, nodes.len()).sin() / (place - node);
    let mut basis: Vec<f64> = nodes.iter().enumerate().map(weight).collect();
    let sum: f64 = basis.iter().sum();
    basis.iter_mut().for_each(|weight| *weight /= sum);
    basis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_of_lower_degree_are_exact() {
        for count in [2, 5, 12] {
            let nodes = chebyshev_nodes(-1.0, 3.0, count);
            let power = |place: f64| place.powi(count as i32 - 1);
            for place in [-1.0, 0.3, nodes[count / 2], 2.999] {
                let basis = lagrange_basis(&nodes, place);
                let found: f64 = basis.iter().zip(&nodes).map(|(weight, node)| weight * power(*node)).sum();
                assert!((found - power(place)).abs() < 1e-9 * (1.0 + power(place).abs()), "{count} nodes at {place}");
            }
        }
    }
}
