//! The field of a part of the plane, by its potential at a grid of inducing points.
//!
//! The potential is the sum of that of sources below the plane and that of sources above, independent and each with the covariance
//! `s^3 / sqrt(d^2 + s^2)` times its variance. The unknowns are whitened: independent and of variance one under the prior. With L the
//! Cholesky factor of the covariance between the inducing points, and k(x) the covariance of an axis of the field with the potential there,
//! the axis is `sqrt(variance) k(x)' L^-T unknowns`; its vertical one changes its sign for sources above.

use std::sync::Arc;

use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::chain::PlanePose;

/// Distance between inducing points, in lengthscales. At 0.53, what they leave out of the field still bends the path.
const GAP: f64 = 0.4;

/// Added to the diagonal of the potential's covariance, over its variance.
const JITTER: f64 = 1e-7;

/// Derivatives of the axes of the field in x and y that differ: Bx in x, Bx in y (and By in x), By in y, Bz in x, Bz in y.
pub(super) const SLOPES: usize = 5;

/// Prior of the field, before any reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FieldPrior {
    /// Variance of a horizontal axis that sources below the plane cause, in microtesla squared.
    pub variance_below: f64,
    /// Variance of a horizontal axis that sources above the plane cause, in microtesla squared.
    pub variance_above: f64,
    /// Lengthscale, in metres.
    pub lengthscale: f64,
}

impl FieldPrior {
    /// Variance of each axis.
    pub(super) fn variances(&self) -> [f64; 3] {
        let horizontal = self.variance_below + self.variance_above;
        [horizontal, horizontal, 2.0 * horizontal]
    }
}

/// Inducing points on a grid, and the sides on which there are sources.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    corner: [f64; 2],
    grid: Arc<Grid>,
}

/// The common part of all grids of one size, wherever they are.
#[derive(Debug)]
struct Grid {
    lengthscale: f64,
    /// From the corner, in metres.
    places: Vec<[f64; 2]>,
    lower: Matrix,
    /// Square root of the variance, and sign of the vertical axis.
    sides: Vec<(f64, f64)>,
}

/// Covariances of the field at some places with the potential at the inducing points, one column for each axis of each place.
pub(super) struct Covariances {
    /// Three columns for each place.
    pub axes: Matrix,
    /// Their derivatives: [`SLOPES`] columns for each place.
    pub slopes: Matrix,
}

/// The field's potential in a form that places are multiplied with: one number per inducing point.
#[derive(Clone, Debug, Default)]
pub(super) struct Potential {
    pub horizontal: Vec<f64>,
    pub vertical: Vec<f64>,
}

impl Basis {
    /// The grid of this size from a corner, in metres.
    pub fn new(prior: &FieldPrior, corner: [f64; 2], size: [f64; 2]) -> Result<Self, NotPositiveDefinite> {
        let gap = GAP * prior.lengthscale;
        let [columns, rows] = size.map(|size| 1 + (size / gap).ceil().max(0.0) as usize);
        let places: Vec<[f64; 2]> =
            (0..columns).flat_map(|i| (0..rows).map(move |j| [i, j].map(|step| gap * step as f64))).collect();
        let square = prior.lengthscale * prior.lengthscale;
        let potential = |i: usize, j: usize| {
            let [x, y] = [places[i][0] - places[j][0], places[i][1] - places[j][1]];
            let jitter = if i == j { JITTER * square } else { 0.0 };
            square * prior.lengthscale / (x * x + y * y + square).sqrt() + jitter
        };
        let lower = linalg::cholesky(Matrix::from_fn(places.len(), places.len(), potential))?;
        let sides = [(prior.variance_below, 1.0), (prior.variance_above, -1.0)];
        let sides = sides.into_iter().filter(|(variance, _)| *variance > 0.0);
        let sides = sides.map(|(variance, sign)| (variance.sqrt(), sign)).collect();
        let lengthscale = prior.lengthscale;
        Ok(Self { corner, grid: Arc::new(Grid { lengthscale, places, lower, sides }) })
    }

    /// A grid like this one from another corner.
    pub fn at(&self, corner: [f64; 2]) -> Self {
        Self { corner, grid: Arc::clone(&self.grid) }
    }

    /// Number of unknowns.
    pub fn size(&self) -> usize {
        self.grid.places.len() * self.grid.sides.len()
    }

    /// Covariances of the axes at the places of these poses.
    pub fn axes(&self, poses: &[PlanePose]) -> Matrix {
        let points = self.grid.places.len();
        let mut axes = linalg::zeros(points, 3 * poses.len());
        let mut columns = vec![0.0; 3 * points];
        for (index, pose) in poses.iter().enumerate() {
            let [bx, by, bz] = split(&mut columns, points);
            for (i, [dx, dy]) in self.distances(pose).enumerate() {
                let (decay, _) = self.decay(dx, dy);
                (bx[i], by[i], bz[i]) = (decay * dx, decay * dy, decay * self.grid.lengthscale);
            }
            for (axis, column) in columns.chunks_exact(points).enumerate() {
                axes.col_as_slice_mut(3 * index + axis).copy_from_slice(column);
            }
        }
        axes
    }

    /// From each inducing point to the place of a pose, in metres.
    fn distances(&self, pose: &PlanePose) -> impl Iterator<Item = [f64; 2]> {
        let [x, y] = [0, 1].map(|axis| pose[axis] - self.corner[axis]);
        self.grid.places.iter().map(move |point| [x - point[0], y - point[1]])
    }

    /// `s^3 / (d^2 + s^2)^(3/2)` and `1 / (d^2 + s^2)` at this distance.
    fn decay(&self, dx: f64, dy: f64) -> (f64, f64) {
        let s = self.grid.lengthscale;
        let inverse = 1.0 / (dx * dx + dy * dy + s * s);
        ((s * s * inverse).sqrt() * s * s * inverse, inverse)
    }

    /// Covariances at the places of these poses.
    pub fn covariances(&self, poses: &[PlanePose]) -> Covariances {
        let points = self.grid.places.len();
        let slopes = linalg::zeros(points, SLOPES * poses.len());
        let mut covariances = Covariances { axes: self.axes(poses), slopes };
        let mut columns = vec![0.0; SLOPES * points];
        for (index, pose) in poses.iter().enumerate() {
            let [xx, xy, yy, zx, zy] = split(&mut columns, points);
            for (i, [dx, dy]) in self.distances(pose).enumerate() {
                let (decay, inverse) = self.decay(dx, dy);
                let steep = 3.0 * decay * inverse;
                (xx[i], xy[i], yy[i]) = (decay - steep * dx * dx, -steep * dx * dy, decay - steep * dy * dy);
                let vertical = -steep * self.grid.lengthscale;
                (zx[i], zy[i]) = (vertical * dx, vertical * dy);
            }
            for (slope, column) in columns.chunks_exact(points).enumerate() {
                covariances.slopes.col_as_slice_mut(SLOPES * index + slope).copy_from_slice(column);
            }
        }
        covariances
    }

    /// The axes at some places as combinations of the unknowns: one column for each axis of each place.
    pub fn features(&self, axes: &Matrix) -> Matrix {
        let points = self.grid.places.len();
        let mut whitened = linalg::copied(axes.as_ref());
        linalg::solve_lower(self.grid.lower.as_ref(), whitened.as_mut());
        let mut features = linalg::zeros(self.size(), whitened.ncols());
        for column in 0..whitened.ncols() {
            let whitened = whitened.col_as_slice(column);
            for ((root, sign), out) in
                self.grid.sides.iter().zip(features.col_as_slice_mut(column).chunks_exact_mut(points))
            {
                let factor = if column % 3 == 2 { root * sign } else { *root };
                out.iter_mut().zip(whitened).for_each(|(out, value)| *out = factor * value);
            }
        }
        features
    }

    /// The potential with these unknowns.
    pub fn potential(&self, unknowns: &[f64]) -> Potential {
        let [mut horizontal, mut vertical] = [(); 2].map(|()| vec![0.0; self.grid.places.len()]);
        for ((root, sign), part) in self.grid.sides.iter().zip(unknowns.chunks_exact(self.grid.places.len())) {
            for (i, unknown) in part.iter().enumerate() {
                horizontal[i] += root * unknown;
                vertical[i] += root * sign * unknown;
            }
        }
        linalg::solve_lower_transposed_vector(self.grid.lower.as_ref(), &mut horizontal);
        linalg::solve_lower_transposed_vector(self.grid.lower.as_ref(), &mut vertical);
        Potential { horizontal, vertical }
    }

    /// The potential of each column of unknowns: horizontal or vertical as its column stands for that axis of a place.
    pub fn potentials(&self, unknowns: &Matrix) -> Matrix {
        let points = self.grid.places.len();
        let mut potentials = linalg::zeros(points, unknowns.ncols());
        for column in 0..unknowns.ncols() {
            let out = potentials.col_as_slice_mut(column);
            for ((root, sign), part) in self.grid.sides.iter().zip(unknowns.col_as_slice(column).chunks_exact(points)) {
                let factor = if column % 3 == 2 { root * sign } else { *root };
                out.iter_mut().zip(part).for_each(|(out, value)| *out += factor * value);
            }
        }
        linalg::solve_lower_transposed(self.grid.lower.as_ref(), potentials.as_mut());
        potentials
    }

    /// The derivative in the unknowns of what has this derivative in the potential: the transpose of [`potential`](Self::potential).
    pub fn in_unknowns(&self, derivative: &Potential) -> Vec<f64> {
        let Potential { horizontal, vertical } = derivative;
        let side = |&(root, sign): &(f64, f64)| {
            let mut part: Vec<f64> = horizontal
                .iter()
                .zip(vertical)
                .map(|(horizontal, vertical)| root * (horizontal + sign * vertical))
                .collect();
            linalg::solve_lower_vector(self.grid.lower.as_ref(), &mut part);
            part
        };
        self.grid.sides.iter().flat_map(side).collect()
    }

    /// A potential of zero.
    pub fn no_potential(&self) -> Potential {
        let [horizontal, vertical] = [(); 2].map(|()| vec![0.0; self.grid.places.len()]);
        Potential { horizontal, vertical }
    }
}

/// The first N columns of this length.
fn split<const N: usize>(columns: &mut [f64], length: usize) -> [&mut [f64]; N] {
    let mut rest = columns.chunks_exact_mut(length);
    std::array::from_fn(|_| rest.next().unwrap_or_default())
}
