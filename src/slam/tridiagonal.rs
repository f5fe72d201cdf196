//! The Cholesky factor of a symmetric matrix that couples neighbouring poses of a chain only: 3 x 3 blocks on the diagonal and below it.

use nalgebra::{Matrix3, Vector3};
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

/// The factor: lower triangles on the diagonal, and the blocks below them.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainFactor {
    diagonal: Vec<Matrix3<f64>>,
    below: Vec<Matrix3<f64>>,
}

impl ChainFactor {
    /// Of the matrix with these blocks on its diagonal, and those below it: one fewer.
    pub fn new(diagonal: &[Matrix3<f64>], below: &[Matrix3<f64>]) -> Result<Self, NotPositiveDefinite> {
        let mut factor = Self::default();
        for (index, block) in diagonal.iter().enumerate() {
            let mut block = *block;
            if let Some(last) = index.checked_sub(1) {
                let lower: Matrix3<f64> = factor.diagonal[last];
                let solved = lower.solve_lower_triangular(&below[last].transpose()).ok_or(NotPositiveDefinite)?;
                factor.below.push(solved.transpose());
                block -= solved.transpose() * solved;
            }
            factor.diagonal.push(block.cholesky().ok_or(NotPositiveDefinite)?.l());
        }
        Ok(factor)
    }

    /// Number of poses.
    pub fn len(&self) -> usize {
        self.diagonal.len()
    }

    /// Solves for a vector, three numbers for each pose.
    pub fn solve(&self, vector: &mut [Vector3<f64>]) {
        for index in 0..self.len() {
            if index > 0 {
                let before = self.below[index - 1] * vector[index - 1];
                vector[index] -= before;
            }
            self.diagonal[index].solve_lower_triangular_mut(&mut vector[index]);
        }
        for index in (0..self.len()).rev() {
            if index + 1 < self.len() {
                let after = self.below[index].tr_mul(&vector[index + 1]);
                vector[index] -= after;
            }
            self.diagonal[index].tr_solve_lower_triangular_mut(&mut vector[index]);
        }
    }

    /// Replaces a matrix with three columns for each pose by `matrix factor^-T`.
    pub fn solve_half_right(&self, matrix: &mut Matrix) {
        for index in 0..self.len() {
            if index > 0 {
                let below = self.below[index - 1];
                combine(matrix, 3 * index, 3 * (index - 1), |axis, other| -below[(axis, other)]);
            }
            let lower = self.diagonal[index];
            for axis in 0..3 {
                for other in 0..axis {
                    add_column(matrix, 3 * index + axis, 3 * index + other, -lower[(axis, other)]);
                }
                let factor = 1.0 / lower[(axis, axis)];
                matrix.col_as_slice_mut(3 * index + axis).iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// Replaces a matrix with three columns for each pose by `matrix factor^-1`.
    pub fn solve_other_half_right(&self, matrix: &mut Matrix) {
        for index in (0..self.len()).rev() {
            if index + 1 < self.len() {
                let below = self.below[index];
                combine(matrix, 3 * index, 3 * (index + 1), |axis, other| -below[(other, axis)]);
            }
            let lower = self.diagonal[index];
            for axis in (0..3).rev() {
                for other in axis + 1..3 {
                    add_column(matrix, 3 * index + axis, 3 * index + other, -lower[(other, axis)]);
                }
                let factor = 1.0 / lower[(axis, axis)];
                matrix.col_as_slice_mut(3 * index + axis).iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// The blocks on the diagonal of the inverse.
    pub fn inverse_diagonal(&self) -> Vec<Matrix3<f64>> {
        let mut blocks = vec![Matrix3::zeros(); self.len()];
        for index in (0..self.len()).rev() {
            let inverse = self.diagonal[index].solve_lower_triangular(&Matrix3::identity()).unwrap_or_default();
            let mut block = inverse.tr_mul(&inverse);
            if index + 1 < self.len() {
                let gain = self.below[index] * inverse;
                block += gain.tr_mul(&blocks[index + 1]) * gain;
            }
            blocks[index] = block;
        }
        blocks
    }
}

/// Adds to the three columns from `target` those from `source`, each with the factor for it.
fn combine(matrix: &mut Matrix, target: usize, source: usize, factor: impl Fn(usize, usize) -> f64) {
    for axis in 0..3 {
        for other in 0..3 {
            add_column(matrix, target + axis, source + other, factor(axis, other));
        }
    }
}

/// Adds a multiple of one column to another.
fn add_column(matrix: &mut Matrix, target: usize, source: usize, factor: f64) {
    let (first, second) = (target.min(source), target.max(source));
    let (mut left, mut right) = matrix.as_mut().split_at_col_mut(second);
    let (left, right) = (linalg::column_mut(&mut left, first), linalg::column_mut(&mut right, 0));
    let (target, source) = if target < source { (left, right) } else { (right, left) };
    target.iter_mut().zip(source).for_each(|(target, source)| *target += factor * *source);
}
