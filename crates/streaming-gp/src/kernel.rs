//! Covariance functions, with their derivatives in the logarithms of their hyperparameters and in places.
//!
//! A [`Kernel`] is generic over what it is evaluated at: points of R^D for a scalar field, (point, axis) for a vector field.
//! The model needs only columns of covariance and their contraction with weights.

mod stationary;
mod vector_field;

pub use super::places::Places;
pub use stationary::{Shape, Stationary};
pub use vector_field::{BiasCovariance, VectorField};

use super::linalg::{column, column_mut, mirror_lower, zeros};
use crate::{Matrix, MatrixMut, MatrixRef};
use std::fmt::Debug;
use std::ops::Range;

/// A column of covariances: of `columns[column]` with each of `rows[range]`.
///
/// Columns are passed by value: a closure that consumes one is inlined into the code for the processor's vectors; a closure
/// that does not is called from there, and is then compiled for any processor.
#[derive(Clone, Debug)]
pub struct Column<'a, P> {
    /// The places of the rows.
    pub rows: &'a P,
    /// Indices of the rows that the column has.
    pub range: Range<usize>,
    /// The places of the columns.
    pub columns: &'a P,
    /// The index of the column.
    pub column: usize,
}

impl<'a, P: Places> Column<'a, P> {
    /// With all rows.
    pub fn whole(rows: &'a P, columns: &'a P, column: usize) -> Self {
        Self { rows, range: 0..rows.len(), columns, column }
    }

    /// The column of the covariance among `places` from the diagonal on.
    pub fn below(places: &'a P, column: usize) -> Self {
        Self { rows: places, range: column..places.len(), columns: places, column }
    }
}

/// A covariance function with hyperparameters.
pub trait Kernel: Clone + Debug + Send + Sync {
    /// The places that the kernel is evaluated at.
    type Places: Places;

    /// The names of the hyperparameters, in the order of all vectors of them.
    fn names(&self) -> Vec<String>;

    /// The hyperparameters.
    fn parameters(&self) -> Vec<f64>;

    /// Takes new hyperparameters, to the last bit.
    ///
    /// # Panics
    /// When there are fewer than [`Kernel::names`].
    fn set_parameters(&mut self, values: &[f64]);

    /// The logarithms of the hyperparameters.
    fn log_parameters(&self) -> Vec<f64> {
        self.parameters().into_iter().map(f64::ln).collect()
    }

    /// Takes new hyperparameters, given as logarithms.
    ///
    /// # Panics
    /// When there are fewer than [`Kernel::names`].
    fn set_log_parameters(&mut self, values: &[f64]) {
        let values: Vec<f64> = values.iter().copied().map(f64::exp).collect();
        self.set_parameters(&values);
    }

    /// Adds k(rows\[i\], columns\[column\]) to `out` for each i in the range.
    fn add_column(&self, entries: Column<'_, Self::Places>, out: &mut [f64]);

    /// Adds `sum_i weights[i] d k(rows[i], columns[column]) / d log parameter` over the range to each entry of `gradient`.
    fn contract_column(&self, entries: Column<'_, Self::Places>, weights: &[f64], gradient: &mut [f64]);

    /// Adds the derivative of `weights[i] k(rows[i], columns[column])` in each coordinate of each `rows[i]` to `gradient`, in the order of
    /// [`Places::coordinates`] of `rows`, all of which are in the range. Where the derivative has two sides, as that of a Matérn 1/2
    /// in a coincident place, it is their mean.
    fn contract_column_in_places(&self, entries: Column<'_, Self::Places>, weights: &[f64], gradient: &mut [f64]);

    /// Over which distance along a coordinate of a place it varies; none where it does not.
    fn length_along(&self, coordinate: usize) -> Option<f64>;

    /// Adds k(x, x) to `out` for each place x.
    fn add_diagonal(&self, places: &Self::Places, out: &mut [f64]);

    /// Adds `sum_i weights[i] d k(x_i, x_i) / d log parameter` to each entry of `gradient`.
    fn contract_diagonal(&self, places: &Self::Places, weights: &[f64], gradient: &mut [f64]);

    /// The part of the covariance that any two places share: the variance of a constant.
    fn shared_variance(&self) -> f64 {
        0.0
    }

    /// The variables that are inducing ones from the first update on and are never removed, as a collection of the same kind as `like`, in
    /// an order that does not change: what all readings share, such as the hard iron of their sensor. Most kernels have none.
    fn permanent(&self, like: &Self::Places) -> Self::Places {
        like.cleared()
    }

    /// How much `places[index]` has in common with the one of the `others` that it has most in common with, and how much it has in common
    /// with itself, constants not counted: the ratio of the two is a correlation.
    fn closest(&self, others: &Self::Places, places: &Self::Places, index: usize) -> (f64, f64) {
        let (shared, variance) = (self.shared_variance(), self.diagonal(&places.select([index]))[0]);
        let mut covariances = vec![0.0; others.len()];
        self.add_column(Column::whole(others, places, index), &mut covariances);
        let greatest = covariances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (greatest - shared, variance - shared)
    }

    /// k(x, x) for each place.
    fn diagonal(&self, places: &Self::Places) -> Vec<f64> {
        let mut diagonal = vec![0.0; places.len()];
        self.add_diagonal(places, &mut diagonal);
        diagonal
    }

    /// The covariance between all rows and all columns.
    fn covariance(&self, rows: &Self::Places, columns: &Self::Places) -> Matrix {
        let mut covariance = zeros(rows.len(), columns.len());
        self.add_covariance(rows, columns, covariance.as_mut());
        covariance
    }

    /// Adds the covariance between all rows and all columns to `out`.
    fn add_covariance(&self, rows: &Self::Places, columns: &Self::Places, mut out: MatrixMut<'_>) {
        for j in 0..columns.len() {
            self.add_column(Column::whole(rows, columns, j), column_mut(&mut out, j));
        }
    }

    /// Adds the covariance among the places to the lower triangle of `out`.
    fn add_lower_covariance(&self, places: &Self::Places, mut out: MatrixMut<'_>) {
        for j in 0..places.len() {
            self.add_column(Column::below(places, j), &mut column_mut(&mut out, j)[j..]);
        }
    }

    /// The covariance among the places, both triangles filled.
    fn symmetric_covariance(&self, places: &Self::Places) -> Matrix {
        let mut covariance = zeros(places.len(), places.len());
        self.add_lower_covariance(places, covariance.as_mut());
        mirror_lower(covariance.as_mut());
        covariance
    }

    /// Adds `<weights, d covariance(rows, columns) / d log parameter>` to each entry of `gradient`.
    fn contract(&self, rows: &Self::Places, columns: &Self::Places, weights: MatrixRef<'_>, gradient: &mut [f64]) {
        for j in 0..columns.len() {
            self.contract_column(Column::whole(rows, columns, j), column(weights, j), gradient);
        }
    }

    /// Adds the derivative of `<weights, covariance(rows, columns)>` in each coordinate of `rows` to `gradient`, in the order of
    /// [`Places::coordinates`].
    fn contract_in_places(
        &self,
        rows: &Self::Places,
        columns: &Self::Places,
        weights: MatrixRef<'_>,
        gradient: &mut [f64],
    ) {
        for j in 0..columns.len() {
            self.contract_column_in_places(Column::whole(rows, columns, j), column(weights, j), gradient);
        }
    }

    /// [`Kernel::contract`] for the covariance among `places` with symmetric weights, of which only the lower triangle is read. The weights
    /// below the diagonal are doubled in place.
    fn contract_symmetric(&self, places: &Self::Places, mut weights: MatrixMut<'_>, gradient: &mut [f64]) {
        for j in 0..places.len() {
            let below = &mut column_mut(&mut weights, j)[j..];
            below[1..].iter_mut().for_each(|weight| *weight *= 2.0);
            self.contract_column(Column::below(places, j), below, gradient);
        }
    }
}

/// A sum in independent lanes, so that it can be vectorized; the order of additions is fixed.
fn sum(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::super::points::Points;
    use super::*;
    use proptest::prelude::*;

    const SHAPES: [Shape; 4] = [Shape::Matern12, Shape::Matern32, Shape::Matern52, Shape::SquaredExponential];

    /// The textbook formula, one pair at a time.
    fn textbook(kernel: &Stationary, a: &[f64], b: &[f64]) -> f64 {
        let (sqrt_3, sqrt_5) = (3.0f64.sqrt(), 5.0f64.sqrt());
        let square: f64 =
            (0..a.len()).map(|d| ((a[d] - b[d]) / kernel.lengthscales[d % kernel.lengthscales.len()]).powi(2)).sum();
        let s = square.sqrt();
        kernel.variance
            * match kernel.shape {
                Shape::Matern12 => (-s).exp(),
                Shape::Matern32 => (1.0 + sqrt_3 * s) * (-sqrt_3 * s).exp(),
                Shape::Matern52 => (1.0 + sqrt_5 * s + 5.0 / 3.0 * s * s) * (-sqrt_5 * s).exp(),
                Shape::SquaredExponential => (-0.5 * s * s).exp(),
            }
    }

    fn scattered(count: usize, dimension: usize, seed: f64) -> Points {
        let mut points = Points::new(dimension);
        for i in 0..count {
            let point: Vec<f64> =
                (0..dimension).map(|d| ((i * (d + 3)) as f64 * 0.37 + seed).sin() * (1.0 + d as f64)).collect();
            points.push(&point);
        }
        points
    }

    #[test]
    fn covariance_is_the_textbook_formula() {
        for shape in SHAPES {
            for (dimension, lengthscales) in [(1, vec![0.7]), (2, vec![0.7]), (2, vec![0.7, 1.9]), (5, vec![2.0])] {
                let kernel = Stationary { constant: Some(3.0), shape, variance: 2.5, lengthscales };
                let (rows, columns) = (scattered(131, dimension, 0.0), scattered(7, dimension, 0.4));
                let covariance = kernel.covariance(&rows, &columns);
                for i in 0..rows.len() {
                    for j in 0..columns.len() {
                        let (a, b): (Vec<f64>, Vec<f64>) = (rows.point(i).collect(), columns.point(j).collect());
                        let expected = 3.0 + textbook(&kernel, &a, &b);
                        // A few roundings of numbers below 6.
                        assert!((covariance[(i, j)] - expected).abs() < 1e-14);
                    }
                }
            }
        }
    }

    #[test]
    fn contraction_is_the_finite_difference() {
        for shape in SHAPES {
            for lengthscales in [vec![0.7], vec![0.7, 1.9]] {
                let kernel = Stationary { constant: Some(3.0), shape, variance: 2.5, lengthscales };
                let (rows, columns) = (scattered(131, 2, 0.0), scattered(7, 2, 0.4));
                let weights = Matrix::from_fn(131, 7, |i, j| ((i + 3 * j) as f64).cos());
                let sum = |kernel: &Stationary| {
                    let covariance = kernel.covariance(&rows, &columns);
                    (0..7).map(|j| (0..131).map(|i| weights[(i, j)] * covariance[(i, j)]).sum::<f64>()).sum::<f64>()
                };
                let mut gradient = vec![0.0; kernel.names().len()];
                kernel.contract(&rows, &columns, weights.as_ref(), &mut gradient);
                let at = kernel.log_parameters();
                for (parameter, found) in gradient.iter().enumerate() {
                    let moved = |step: f64| {
                        let mut parameters = at.clone();
                        parameters[parameter] += step;
                        let mut kernel = kernel.clone();
                        kernel.set_log_parameters(&parameters);
                        sum(&kernel)
                    };
                    let step = 1e-5;
                    let expected = (moved(step) - moved(-step)) / (2.0 * step);
                    // Central differences: rounding 1e-14 * 1e3 / 1e-5, truncation 1e-10 * 1e3.
                    assert!((found - expected).abs() < 2e-6, "{shape:?} {parameter}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn contraction_in_places_is_the_finite_difference() {
        for shape in SHAPES {
            for (dimension, lengthscales) in [(1, vec![0.7]), (2, vec![0.7]), (2, vec![0.7, 1.9])] {
                let kernel = Stationary { constant: Some(3.0), shape, variance: 2.5, lengthscales };
                let (rows, columns) = (scattered(67, dimension, 0.0), scattered(5, dimension, 0.4));
                let weights = Matrix::from_fn(67, 5, |i, j| ((i + 3 * j) as f64).cos());
                let at = rows.coordinates();
                let mut gradient = vec![0.0; at.len()];
                kernel.contract_in_places(&rows, &columns, weights.as_ref(), &mut gradient);
                for (coordinate, found) in gradient.iter().enumerate() {
                    let moved = |step: f64| {
                        let mut coordinates = at.clone();
                        coordinates[coordinate] += step;
                        let covariance = kernel.covariance(&rows.with_coordinates(&coordinates), &columns);
                        let i = coordinate % rows.len();
                        (0..5).map(|j| weights[(i, j)] * covariance[(i, j)]).sum::<f64>()
                    };
                    let step = 1e-5;
                    let expected = (moved(step) - moved(-step)) / (2.0 * step);
                    // Central differences: rounding 1e-15 * 10 / 1e-5, truncation 1e-10 times third derivatives up to 1e2, of a Matérn
                    // 1/2 near a column 1e3.
                    assert!((found - expected).abs() < 2e-7, "{shape:?} {coordinate}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn a_coincident_pair_has_no_slope() {
        let place = scattered(1, 2, 0.0);
        for shape in SHAPES {
            let stationary = Stationary { constant: None, shape, variance: 2.0, lengthscales: vec![0.7, 1.9] };
            let mut gradient = vec![0.0; 2];
            stationary.contract_column_in_places(Column::whole(&place, &place, 0), &[1e6], &mut gradient);
            assert_eq!(gradient, [0.0, 0.0], "{shape:?}");
            assert_eq!([0, 1].map(|axis| stationary.length_along(axis)), [Some(0.7), Some(1.9)]);
        }
    }

    #[test]
    fn the_gradient_of_a_coincident_pair_is_finite() {
        let place = scattered(1, 2, 0.0);
        for shape in SHAPES {
            for lengthscales in [vec![0.7], vec![0.7, 1.9]] {
                let kernel = Stationary { constant: None, shape, variance: 2.0, lengthscales };
                let mut gradient = vec![0.0; kernel.names().len()];
                kernel.contract_column(Column::whole(&place, &place, 0), &[1e6], &mut gradient);
                assert_eq!(gradient[0], 2e6);
                assert!(gradient[1..].iter().all(|entry| *entry == 0.0), "{shape:?}: {gradient:?}");
            }
        }
    }

    #[test]
    fn symmetric_contraction_is_the_full_one() {
        let kernel = Stationary { constant: None, shape: Shape::Matern52, variance: 2.0, lengthscales: vec![0.5, 0.8] };
        let places = scattered(70, 2, 0.0);
        let mut weights = Matrix::from_fn(70, 70, |i, j| ((i + j) as f64).sin());
        let (mut full, mut half) = (vec![0.0; 3], vec![0.0; 3]);
        kernel.contract(&places, &places, weights.as_ref(), &mut full);
        kernel.contract_symmetric(&places, weights.as_mut(), &mut half);
        for (full, half) in full.iter().zip(&half) {
            assert!((full - half).abs() < 1e-10, "{full} {half}");
        }
    }

    proptest! {
        #[test]
        fn parameters_survive_their_logarithms(variance in 1e-6..1e6f64, lengthscale in 1e-3..1e3f64) {
            let lengthscales = vec![1.0];
            let mut kernel = Stationary { constant: Some(1.0), shape: Shape::Matern32, variance: 1.0, lengthscales };
            kernel.set_log_parameters(&[variance.ln(), lengthscale.ln(), variance.ln()]);
            let again = kernel.log_parameters();
            prop_assert!((again[0] - variance.ln()).abs() < 1e-12);
            prop_assert!((again[1] - lengthscale.ln()).abs() < 1e-12);
            prop_assert!((again[2] - variance.ln()).abs() < 1e-12);
        }
    }
}
