//! A part of the path within one tile.
//!
//! Its first pose separates it from the segment before; the others are eliminated, so that what is left of a segment is a block of the
//! unknowns of its tile's field, the shared ones, its first pose, and the first pose of the next segment.
//!
//! What a step of Gauss-Newton costs is the second derivatives: they, the variances of the readings and the derivative of the log
//! determinant are those of the poses where the segment was last linearised ([`Linearised`]). The other first derivatives are always exact.

use nalgebra::{Matrix3, SMatrix, Vector2, Vector3};
use streaming_gp::linalg::{self, Matrix};
use streaming_gp::{MatrixRef, NotPositiveDefinite};

use super::basis::{Basis, Covariances, FieldPrior, Potential, SLOPES};
use super::chain::{IRON, Link, MEAN, Movement, OdometryNoise, PlanePose, SHARED, Shared};
use super::tridiagonal::ChainFactor;

/// Columns of a block after those of the field: the shared unknowns, and two poses.
pub(super) const AFTER_FIELD: usize = SHARED + 6;

/// What does not change while a path is estimated.
pub(super) struct Problem<'a> {
    pub prior: &'a FieldPrior,
    pub noise: f64,
    pub odometry: &'a OdometryNoise,
    pub links: &'a [Link],
}

/// Where it is linearised.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub poses: &'a [PlanePose],
    pub shared: &'a Shared,
    pub potential: &'a Potential,
}

/// A segment of the path.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Index of its first pose.
    pub first: usize,
    /// Index after its last pose.
    pub end: usize,
    /// Index of its tile.
    pub tile: usize,
    /// Factor of the readings' variances.
    pub inflation: f64,
    pub linearised: Linearised,
    /// First derivatives of minus the objective.
    pub descent: Descent,
}

/// What is kept from where a segment was last linearised.
#[derive(Clone, Debug)]
pub(super) struct Linearised {
    /// The poses then.
    pub poses: Vec<PlanePose>,
    /// Factor of the readings' variances then.
    inflation: f64,
    /// Whether there was a next segment.
    is_joined: bool,
    /// One over the variance of each reading: of a horizontal axis and of the vertical one.
    weights: Vec<Vector2<f64>>,
    /// Sum of the logarithms of the variances of all axes.
    log_variances: f64,
    /// The axes as combinations of the unknowns of the field.
    features: Matrix,
    /// Information of the readings on the field.
    pub gram: Matrix,
    /// Derivative of half the log determinant in x and y of each pose.
    slope_of_determinant: Vec<Vector2<f64>>,
    factor: ChainFactor,
    /// Coupling of the block with the interior poses, half-solved.
    coupling: Matrix,
    /// What is left after the elimination of the interior poses; the lower triangle.
    pub block: Matrix,
}

/// Minus the gradient of a segment's part of the objective, without the log determinant's.
#[derive(Clone, Debug, Default)]
pub(super) struct Descent {
    pub cost: f64,
    pub poses: Vec<Vector3<f64>>,
    pub shared: Shared,
    /// In the first pose of the next segment.
    pub next: Vector3<f64>,
    /// In the potential.
    pub horizontal: Vec<f64>,
    pub vertical: Vec<f64>,
}

/// A reading with its prediction.
struct Reading {
    residual: Vector3<f64>,
    /// Derivatives in the pose, with the axes along those of the map.
    in_pose: Matrix3<f64>,
    /// From the map's frame to that of the heading.
    turned: Matrix3<f64>,
}

impl Segment {
    pub fn new(first: usize, end: usize, tile: usize, inflation: f64) -> Self {
        let linearised = Linearised {
            poses: Vec::new(),
            inflation: 0.0,
            is_joined: false,
            weights: Vec::new(),
            log_variances: 0.0,
            features: Matrix::zeros(0, 0),
            gram: Matrix::zeros(0, 0),
            slope_of_determinant: Vec::new(),
            factor: ChainFactor::default(),
            coupling: Matrix::zeros(0, 0),
            block: Matrix::zeros(0, 0),
        };
        Self { first, end, tile, inflation, linearised, descent: Descent::default() }
    }

    /// Its poses.
    pub fn poses<'a>(&self, poses: &'a [PlanePose]) -> &'a [PlanePose] {
        &poses[self.first..self.end]
    }

    /// Whether it was linearised elsewhere: a pose moved by more than this, in metres or in radians; or with other variances, or before
    /// there was a next segment.
    pub fn is_stale(&self, poses: &[PlanePose], tolerance: f64) -> bool {
        let moved = |(now, then): (&PlanePose, &PlanePose)| (now - then).amax() > tolerance;
        self.linearised.poses.len() != self.end - self.first
            || self.linearised.inflation != self.inflation
            || self.linearised.is_joined != (self.end < poses.len())
            || self.poses(poses).iter().zip(&self.linearised.poses).any(moved)
    }

    /// Computes variances of the readings, and their information on the field.
    pub fn inform(&mut self, problem: &Problem<'_>, basis: &Basis, poses: &[PlanePose], covariances: &Covariances) {
        let features = basis.features(covariances);
        let prior = problem.prior.variances();
        let variances = |index: usize| {
            let variances: [f64; 3] = std::array::from_fn(|axis| {
                let explained = linalg::squared_norm(features.col_as_slice(3 * index + axis));
                ((prior[axis] - explained).max(0.0) + problem.noise) * self.inflation
            });
            // Equal in the plane, so that they do not depend on the heading.
            Vector2::new(0.5 * (variances[0] + variances[1]), variances[2])
        };
        let variances: Vec<Vector2<f64>> =
            (self.first..self.end).enumerate().map(|(index, _)| variances(index)).collect();
        let old = &mut self.linearised;
        old.log_variances = variances.iter().map(|variance| 2.0 * variance.x.ln() + variance.y.ln()).sum();
        old.weights = variances.iter().map(|variance| variance.map(|variance| 1.0 / variance)).collect();
        (old.inflation, old.is_joined) = (self.inflation, self.end < poses.len());
        self.inform_with_variances_kept(poses, features);
    }

    /// Computes what the readings with these features tell of the field, their variances known.
    pub(super) fn inform_with_variances_kept(&mut self, poses: &[PlanePose], features: Matrix) {
        let old = &mut self.linearised;
        let mut weighted = linalg::copied(features.as_ref());
        linalg::scale_columns(&mut weighted, |column| old.weights[column / 3][usize::from(column % 3 == 2)].sqrt());
        let mut gram = linalg::zeros(features.nrows(), features.nrows());
        linalg::add_outer_gram(gram.as_mut(), 1.0, weighted.as_ref());
        (old.poses, old.features, old.gram) = (poses[self.first..self.end].to_vec(), features, gram);
    }

    /// The derivative of half the log determinant of the field's information in each place, given the factor of that information.
    pub fn differentiate_determinant(&mut self, basis: &Basis, covariances: &Covariances, information: MatrixRef<'_>) {
        let mut solved = linalg::copied(self.linearised.features.as_ref());
        linalg::solve_lower(information, solved.as_mut());
        linalg::solve_lower_transposed(information, solved.as_mut());
        let potentials = basis.potentials(&solved);
        let slope = |(index, weight): (usize, &Vector2<f64>)| {
            let potential = |axis: usize| potentials.col_as_slice(3 * index + axis);
            let with = |slope: usize, axis: usize| {
                linalg::dot(covariances.slopes.col_as_slice(SLOPES * index + slope), potential(axis))
            };
            Vector2::new(
                weight.x * (with(0, 0) + with(1, 1)) + weight.y * with(3, 2),
                weight.x * (with(1, 0) + with(2, 1)) + weight.y * with(4, 2),
            )
        };
        self.linearised.slope_of_determinant = self.linearised.weights.iter().enumerate().map(slope).collect();
    }

    /// One over the variances of a reading's axes: horizontal and vertical.
    #[cfg(test)]
    pub fn weight(&self, index: usize) -> Vector2<f64> {
        self.linearised.weights[index]
    }

    fn readings(&self, problem: &Problem<'_>, at: At<'_>, covariances: &Covariances) -> Vec<Reading> {
        let Potential { horizontal, vertical } = at.potential;
        let iron = at.shared.fixed_rows::<3>(IRON);
        let mean = at.shared.fixed_rows::<3>(MEAN);
        let reading = |(index, (pose, link)): (usize, (&PlanePose, &Link))| {
            let axis = |axis: usize, potential: &[f64]| {
                linalg::dot(covariances.axes.col_as_slice(3 * index + axis), potential)
            };
            let slope = |slope: usize, potential: &[f64]| {
                linalg::dot(covariances.slopes.col_as_slice(SLOPES * index + slope), potential)
            };
            let field = mean + Vector3::new(axis(0, horizontal), axis(1, horizontal), axis(2, vertical));
            let (xx, xy, yy) = (slope(0, horizontal), slope(1, horizontal), slope(2, horizontal));
            let (zx, zy) = (slope(3, vertical), slope(4, vertical));
            let (sin, cos) = pose.z.sin_cos();
            let turned = Matrix3::new(cos, sin, 0.0, -sin, cos, 0.0, 0.0, 0.0, 1.0);
            // The derivative of R(heading)' B in the heading, turned back into the map: B x e_z.
            let in_pose = Matrix3::new(xx, xy, field.y, xy, yy, -field.x, zx, zy, 0.0);
            Reading { residual: link.field - turned * field - link.tilt * iron, in_pose, turned }
        };
        self.poses(at.poses).iter().zip(&problem.links[self.first..self.end]).enumerate().map(reading).collect()
    }

    /// The movements from each of its poses to the next, the last to the first pose of the next segment.
    fn movements(&self, problem: &Problem<'_>, at: At<'_>) -> Vec<Movement> {
        let last = self.end.min(at.poses.len() - 1);
        let between = |index: usize| {
            problem.odometry.movement(&at.poses[index], &at.poses[index + 1], &problem.links[index + 1], at.shared)
        };
        (self.first..last).map(between).collect()
    }

    /// Computes its part of the objective and the gradient, exactly at these poses but for the variances.
    pub fn descend(&mut self, problem: &Problem<'_>, at: At<'_>, covariances: &Covariances) {
        let points = at.potential.horizontal.len();
        let mut descent = Descent {
            cost: 0.5 * self.linearised.log_variances,
            poses: vec![Vector3::zeros(); self.end - self.first],
            horizontal: vec![0.0; points],
            vertical: vec![0.0; points],
            ..Descent::default()
        };
        // The log determinant, as it changes since it was computed.
        let Linearised { poses, slope_of_determinant, .. } = &self.linearised;
        let moved = self.poses(at.poses).iter().zip(poses).map(|(now, then)| now.xy() - then.xy());
        descent.cost += moved.zip(slope_of_determinant).map(|(moved, slope)| moved.dot(slope)).sum::<f64>();
        for (index, reading) in self.readings(problem, at, covariances).iter().enumerate() {
            let weight = self.linearised.weights[index];
            let weight = Vector3::new(weight.x, weight.x, weight.y);
            let weighted = weight.component_mul(&reading.residual);
            descent.cost += 0.5 * reading.residual.dot(&weighted);
            let in_map = reading.turned.tr_mul(&weighted);
            descent.poses[index] += reading.in_pose.tr_mul(&in_map);
            let tilt = &problem.links[self.first + index].tilt;
            let mut iron = descent.shared.fixed_rows_mut::<3>(IRON);
            iron += tilt.tr_mul(&weighted);
            let mut mean = descent.shared.fixed_rows_mut::<3>(MEAN);
            mean += in_map;
            for axis in 0..3 {
                let column = covariances.axes.col_as_slice(3 * index + axis);
                let out = if axis == 2 { &mut descent.vertical } else { &mut descent.horizontal };
                out.iter_mut().zip(column).for_each(|(out, value)| *out += in_map[axis] * value);
            }
        }
        for (index, movement) in self.movements(problem, at).iter().enumerate() {
            let weighted = movement.weight.component_mul(&movement.error);
            descent.cost += movement.cost;
            descent.poses[index] -= movement.before.tr_mul(&weighted);
            let after = movement.after.tr_mul(&weighted);
            match descent.poses.get_mut(index + 1) {
                Some(pose) => *pose -= after,
                None => descent.next -= after,
            }
            let mut odometry = descent.shared.fixed_rows_mut::<2>(0);
            odometry -= movement.shared.tr_mul(&weighted);
        }
        self.descent = descent;
    }

    /// Minus the gradient in a pose, the log determinant included.
    pub fn descent_of_pose(&self, index: usize) -> Vector3<f64> {
        let slope = self.linearised.slope_of_determinant[index];
        self.descent.poses[index] - Vector3::new(slope.x, slope.y, 0.0)
    }

    /// Computes second derivatives, and eliminates the poses after the first.
    pub fn eliminate(
        &mut self,
        problem: &Problem<'_>,
        at: At<'_>,
        covariances: &Covariances,
    ) -> Result<(), NotPositiveDefinite> {
        let readings = self.readings(problem, at, covariances);
        let movements = self.movements(problem, at);
        let Linearised { weights, features, gram, .. } = &self.linearised;
        let field = gram.nrows();
        let size = field + AFTER_FIELD;
        let count = readings.len();
        let mut block = linalg::zeros(size, size);
        block.as_mut().submatrix_mut(0, 0, field, field).copy_from(gram);
        let mut coupling = linalg::zeros(size, 3 * (count - 1));
        let mut diagonal = vec![Matrix3::zeros(); count];
        let mut below = vec![Matrix3::zeros(); count - 1];

        for (index, reading) in readings.iter().enumerate() {
            let weight = Vector3::new(weights[index].x, weights[index].x, weights[index].y);
            // Derivatives with the axes along those of the map, where the weights are the same.
            let weighted = Matrix3::from_diagonal(&weight) * reading.in_pose;
            diagonal[index] += reading.in_pose.tr_mul(&weighted);
            let mut in_shared = SMatrix::<f64, 3, SHARED>::zeros();
            let tilt = problem.links[self.first + index].tilt;
            in_shared.fixed_view_mut::<3, 3>(0, IRON).copy_from(&reading.turned.tr_mul(&tilt));
            in_shared.fixed_view_mut::<3, 3>(0, MEAN).fill_with_identity();
            let weighted_shared = Matrix3::from_diagonal(&weight) * in_shared;
            add(&mut block, field, field, (in_shared.tr_mul(&weighted_shared)).iter().copied(), SHARED);
            let axes = |axis: usize| features.col_as_slice(3 * index + axis);
            for shared in IRON..SHARED {
                for axis in 0..3 {
                    let factor = weighted_shared[(axis, shared)];
                    add_row(&mut block, field + shared, axes(axis), factor);
                }
            }
            let with_shared = in_shared.tr_mul(&weighted);
            for axis in 0..3 {
                let column: &mut [f64] = match index.checked_sub(1) {
                    Some(interior) => coupling.col_as_slice_mut(3 * interior + axis),
                    None => {
                        for of in 0..3 {
                            add_row(&mut block, field + SHARED + axis, axes(of), weighted[(of, axis)]);
                        }
                        for shared in 0..SHARED {
                            block[(field + SHARED + axis, field + shared)] += with_shared[(shared, axis)];
                        }
                        continue;
                    }
                };
                for of in 0..3 {
                    let factor = weighted[(of, axis)];
                    column.iter_mut().zip(axes(of)).for_each(|(out, value)| *out += factor * value);
                }
                (0..SHARED).for_each(|shared| column[field + shared] += with_shared[(shared, axis)]);
            }
        }
        for (index, movement) in movements.iter().enumerate() {
            let weight = Matrix3::from_diagonal(&movement.weight);
            let (before, after, shared) = (&movement.before, &movement.after, &movement.shared);
            diagonal[index] += before.tr_mul(&(weight * before));
            let across = after.tr_mul(&(weight * before));
            let shared_shared = shared.tr_mul(&(weight * shared));
            let [shared_before, shared_after] = [before, after].map(|pose| shared.tr_mul(&(weight * pose)));
            for row in 0..2 {
                for column in 0..2 {
                    block[(field + row, field + column)] += shared_shared[(row, column)];
                }
                for axis in 0..3 {
                    match index.checked_sub(1) {
                        Some(interior) => coupling[(field + row, 3 * interior + axis)] += shared_before[(row, axis)],
                        None => block[(field + SHARED + axis, field + row)] += shared_before[(row, axis)],
                    }
                    if index + 1 < count {
                        coupling[(field + row, 3 * index + axis)] += shared_after[(row, axis)];
                    } else {
                        block[(field + SHARED + 3 + axis, field + row)] += shared_after[(row, axis)];
                    }
                }
            }
            let after_after = after.tr_mul(&(weight * after));
            let is_next = index + 1 == count;
            if is_next {
                add(&mut block, field + SHARED + 3, field + SHARED + 3, after_after.iter().copied(), 3);
            } else {
                diagonal[index + 1] += after_after;
            }
            match (index.checked_sub(1), is_next) {
                // Both in the block: the only pose, and the next segment.
                (None, true) => add(&mut block, field + SHARED + 3, field + SHARED, across.iter().copied(), 3),
                (None, false) => {
                    for (row, column) in (0..3).flat_map(|row| (0..3).map(move |column| (row, column))) {
                        coupling[(field + SHARED + column, row)] += across[(row, column)];
                    }
                }
                (Some(interior), true) => {
                    for (row, column) in (0..3).flat_map(|row| (0..3).map(move |column| (row, column))) {
                        coupling[(field + SHARED + 3 + row, 3 * interior + column)] += across[(row, column)];
                    }
                }
                (Some(_), false) => below[index] += across,
            }
        }
        add(&mut block, field + SHARED, field + SHARED, diagonal[0].iter().copied(), 3);
        let factor = ChainFactor::new(&diagonal[1..], below.get(1..).unwrap_or_default())?;
        factor.solve_half_right(&mut coupling);
        linalg::add_outer_gram(block.as_mut(), -1.0, coupling.as_ref());
        (self.linearised.factor, self.linearised.coupling, self.linearised.block) = (factor, coupling, block);
        Ok(())
    }

    /// Eliminates the interior poses from the right-hand side: half-solved, and what they leave in the order of the block.
    pub fn reduce(&self, interior: &[Vector3<f64>]) -> (Vec<Vector3<f64>>, Vec<f64>) {
        let mut interior = interior.to_vec();
        self.linearised.factor.solve_half(&mut interior);
        let flat: Vec<f64> = interior.iter().flat_map(|pose| pose.iter().copied()).collect();
        let mut block = vec![0.0; self.linearised.block.nrows()];
        linalg::add_matrix_vector(&mut block, -1.0, self.linearised.coupling.as_ref(), &flat);
        (interior, block)
    }

    /// The solution for the interior poses, half-solved before, given that of the block.
    pub fn expand(&self, mut interior: Vec<Vector3<f64>>, block: &[f64]) -> Vec<Vector3<f64>> {
        let mut flat = vec![0.0; 3 * interior.len()];
        linalg::add_matrix_vector(&mut flat, -1.0, self.linearised.coupling.transpose(), block);
        for (pose, rest) in interior.iter_mut().zip(flat.chunks_exact(3)) {
            *pose += Vector3::from_column_slice(rest);
        }
        self.linearised.factor.solve_other_half(&mut interior);
        interior
    }

    /// Covariance of each interior pose given the block, and minus its regression on the block: three columns for each pose.
    pub fn conditionals(&self) -> (Vec<Matrix3<f64>>, Matrix) {
        let mut regression = linalg::copied(self.linearised.coupling.as_ref());
        self.linearised.factor.solve_other_half_right(&mut regression);
        (self.linearised.factor.inverse_diagonal(), regression)
    }
}

/// Adds a small square matrix, given by columns, to a block.
fn add(block: &mut Matrix, row: usize, column: usize, values: impl Iterator<Item = f64>, size: usize) {
    for (index, value) in values.enumerate() {
        block[(row + index % size, column + index / size)] += value;
    }
}

/// Adds a multiple of a vector to the beginning of a row.
fn add_row(block: &mut Matrix, row: usize, values: &[f64], factor: f64) {
    if factor != 0.0 {
        values.iter().enumerate().for_each(|(column, value)| block[(row, column)] += factor * value);
    }
}
