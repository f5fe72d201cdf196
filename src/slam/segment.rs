//! A part of the path within one tile.
//!
//! Its first pose separates it from the segment before; the others are eliminated, so that what is left of a segment is a block of the
//! unknowns of its tile's field, the shared ones, its first pose, and the first pose of the next segment.
//!
//! What a step of Gauss-Newton costs is the second derivatives: they, the variances of the readings and the derivative of the log
//! determinant are those of the poses where the segment was last linearised ([`Linearised`]). The other first derivatives are always exact.
//! A segment keeps some numbers for each pose. Matrices with a row for each unknown of the field are made again when they are needed.

use nalgebra::{Matrix3, SMatrix, Vector2, Vector3};
use streaming_gp::linalg::{self, Matrix, MatrixMut};
use streaming_gp::{MatrixRef, NotPositiveDefinite};

use super::basis::{Basis, Phases, Potential};
use super::chain::{IRON, Link, MEAN, Movement, OF_ODOMETRY, OdometryNoise, PlanePose, SHARED, Shared};
use super::tridiagonal::ChainFactor;

/// Columns of a block after those of the field: the shared unknowns, and two poses.
pub(super) const AFTER_FIELD: usize = SHARED + 6;

/// The part of the problem that does not change while a path is estimated.
pub(super) struct Problem<'a> {
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
    /// Whether each of its readings counts.
    pub counts: Vec<bool>,
    pub linearised: Linearised,
    /// The segment's part of the objective.
    pub cost: f64,
    /// Minus the gradient of that, without the log determinant's.
    pub descent: Parts,
}

/// The last linearisation of a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Linearised {
    /// The poses then.
    pub poses: Vec<PlanePose>,
    /// Factor of the readings' variances then.
    inflation: f64,
    /// Whether there was a next segment.
    is_joined: bool,
    /// Which readings counted then.
    counts: Vec<bool>,
    /// One over the variance of a horizontal axis and of the vertical one.
    weight: Vector2<f64>,
    /// Sum of the logarithms of the variances of all axes.
    log_variances: f64,
    /// Derivative of half the log determinant in x and y of each pose.
    slope_of_determinant: Vec<Vector2<f64>>,
    readings: Vec<Reading>,
    movements: Vec<Movement>,
    factor: ChainFactor,
    /// Coupling of the field, then of what follows it in the block, with what follows the field: a column for each, of which the last
    /// [`AFTER_FIELD`] rows are an upper triangle.
    pub border: Option<Matrix>,
}

/// A number for each unknown that a segment sees: a change, or minus the gradient.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub poses: Vec<Vector3<f64>>,
    /// The first pose of the next segment.
    pub next: Vector3<f64>,
    pub shared: Shared,
    pub potential: Potential,
}

/// Derivatives of a reading's prediction, with the axes along those of the map.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// In the pose.
    in_pose: Matrix3<f64>,
    /// In the hard iron.
    in_iron: Matrix3<f64>,
}

/// A reading less its prediction.
struct Residual<'a> {
    /// In the frame of the heading.
    value: Vector3<f64>,
    /// From the map's frame to that of the heading.
    turned: Matrix3<f64>,
    phases: Phases<'a>,
}

impl Parts {
    /// Zeros, for this number of poses.
    fn zeros(poses: usize, basis: &Basis) -> Self {
        Self { poses: vec![Vector3::zeros(); poses], potential: basis.no_potential(), ..Self::default() }
    }

    /// Adds what a reading passes on to all that it depends on.
    fn add_reading(&mut self, index: usize, reading: &Reading, phases: &Phases<'_>, in_map: &Vector3<f64>) {
        self.poses[index] += reading.in_pose.tr_mul(in_map);
        let mut iron = self.shared.fixed_rows_mut::<3>(IRON);
        iron += reading.in_iron.tr_mul(in_map);
        let mut mean = self.shared.fixed_rows_mut::<3>(MEAN);
        mean += in_map;
        phases.add_derivative(in_map, &mut self.potential);
    }

    /// Adds the transposed derivatives of the movement from a pose to the next, times a value.
    fn add_movement(&mut self, index: usize, movement: &Movement, value: &Vector3<f64>) {
        self.poses[index] += movement.before().tr_mul(value);
        *self.poses.get_mut(index + 1).unwrap_or(&mut self.next) += movement.after().tr_mul(value);
        let mut odometry = self.shared.fixed_rows_mut::<OF_ODOMETRY>(0);
        odometry += movement.shared().tr_mul(value);
    }
}

impl Segment {
    pub fn new(first: usize, end: usize, tile: usize, inflation: f64) -> Self {
        let counts = vec![true; end - first];
        let (linearised, cost, descent) = Default::default();
        Self { first, end, tile, inflation, counts, linearised, cost, descent }
    }

    /// The part of the path's poses or links that belongs to the segment.
    pub fn part<'a, T>(&self, path: &'a [T]) -> &'a [T] {
        &path[self.first..self.end]
    }

    /// Whether it was linearised elsewhere: a pose moved by more than this, in metres or in radians; or with other variances, or before
    /// there was a next segment.
    pub fn is_stale(&self, poses: &[PlanePose], tolerance: f64) -> bool {
        let moved = |(now, then): (&PlanePose, &PlanePose)| (now - then).amax() > tolerance;
        self.linearised.poses.len() != self.end - self.first
            || self.linearised.inflation != self.inflation
            || self.linearised.is_joined != (self.end < poses.len())
            || self.linearised.counts != self.counts
            || self.part(poses).iter().zip(&self.linearised.poses).any(moved)
    }

    /// The axes, where it was linearised, as combinations of the unknowns of the field.
    pub fn features(&self, basis: &Basis) -> Matrix {
        basis.features(&self.linearised.poses)
    }

    pub fn is_linearised(&self) -> bool {
        !self.linearised.poses.is_empty()
    }

    /// Computes the variances of the readings at these poses, and returns the features there.
    pub fn weigh(&mut self, problem: &Problem<'_>, basis: &Basis, poses: &[PlanePose]) -> Matrix {
        let variances = (basis.left_out() + Vector2::repeat(problem.noise)) * self.inflation;
        let counting = self.counts.iter().filter(|counts| **counts).count();
        self.linearised.poses = self.part(poses).to_vec();
        self.linearised.inflation = self.inflation;
        self.linearised.is_joined = self.end < poses.len();
        self.linearised.log_variances = counting as f64 * (2.0 * variances.x.ln() + variances.y.ln());
        self.linearised.weight = variances.map(|variance| 1.0 / variance);
        self.linearised.counts.clone_from(&self.counts);
        basis.features(&self.linearised.poses)
    }

    /// Adds a multiple of the information of the readings on the field; the lower triangle.
    pub fn add_information(&self, features: &Matrix, factor: f64, target: MatrixMut<'_>) {
        let mut weighted = linalg::copied(features.as_ref());
        linalg::scale_columns(&mut weighted, |column| self.weight(column / 3)[column % 3].sqrt());
        linalg::add_outer_gram(target, factor, weighted.as_ref());
    }

    /// One over the variances of the axes of a reading.
    pub fn weight(&self, index: usize) -> Vector3<f64> {
        let Linearised { weight, counts, .. } = &self.linearised;
        if counts[index] { Vector3::new(weight.x, weight.x, weight.y) } else { Vector3::zeros() }
    }

    /// The derivative of half the log determinant of the field's information in each place, given the factor of that information.
    pub fn differentiate_determinant(&mut self, basis: &Basis, features: &Matrix, information: MatrixRef<'_>) {
        let mut solved = linalg::copied(features.as_ref());
        linalg::solve_lower(information, solved.as_mut());
        linalg::solve_lower_transposed(information, solved.as_mut());
        let slope = |(index, pose): (usize, &PlanePose)| {
            let phases = basis.phases(pose);
            let [x, y, z] = [0, 1, 2].map(|axis| basis.seen(axis, solved.col_as_slice(3 * index + axis)));
            let horizontal = phases.slopes_in_plane(&x).column(0) + phases.slopes_in_plane(&y).column(1);
            let weight = self.weight(index);
            horizontal * weight.x + phases.slopes_upwards(&z) * weight.z
        };
        self.linearised.slope_of_determinant = self.linearised.poses.iter().enumerate().map(slope).collect();
    }

    /// The readings at these poses.
    fn readings<'a>(&self, problem: &Problem<'_>, at: At<'_>, basis: &'a Basis) -> Vec<(Reading, Residual<'a>)> {
        let iron = at.shared.fixed_rows::<3>(IRON);
        let mean = at.shared.fixed_rows::<3>(MEAN);
        let reading = |(pose, link): (&PlanePose, &Link)| {
            let phases = basis.phases(pose);
            let field = mean + phases.field(at.potential);
            let horizontal = phases.slopes_in_plane(&at.potential.horizontal);
            let vertical = phases.slopes_upwards(&at.potential.vertical);
            let (sin, cos) = pose.z.sin_cos();
            let turned = Matrix3::new(cos, sin, 0.0, -sin, cos, 0.0, 0.0, 0.0, 1.0);
            // The derivative of R(heading)' B in the heading, turned back into the map: B x e_z.
            let mut in_pose = Matrix3::new(0.0, 0.0, field.y, 0.0, 0.0, -field.x, 0.0, 0.0, 0.0);
            in_pose.fixed_view_mut::<2, 2>(0, 0).copy_from(&horizontal);
            in_pose.fixed_view_mut::<1, 2>(2, 0).copy_from(&vertical.transpose());
            let value = link.field - turned * field - link.tilt * iron;
            (Reading { in_pose, in_iron: turned.tr_mul(&link.tilt) }, Residual { value, turned, phases })
        };
        self.part(at.poses).iter().zip(self.part(problem.links)).map(reading).collect()
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
    pub fn descend(&mut self, problem: &Problem<'_>, at: At<'_>, basis: &Basis) {
        let Linearised { poses, slope_of_determinant, log_variances, .. } = &self.linearised;
        let mut cost = 0.5 * log_variances;
        // The log determinant, as it changes since it was computed.
        let moved = self.part(at.poses).iter().zip(poses).map(|(now, then)| now.xy() - then.xy());
        cost += moved.zip(slope_of_determinant).map(|(moved, slope)| moved.dot(slope)).sum::<f64>();
        let mut descent = Parts::zeros(self.end - self.first, basis);
        for (index, (reading, residual)) in self.readings(problem, at, basis).iter().enumerate() {
            let weighted = self.weight(index).component_mul(&residual.value);
            cost += 0.5 * residual.value.dot(&weighted);
            descent.add_reading(index, reading, &residual.phases, &residual.turned.tr_mul(&weighted));
        }
        for (index, movement) in self.movements(problem, at).iter().enumerate() {
            cost += movement.cost;
            descent.add_movement(index, movement, &-movement.weight.component_mul(&movement.error));
        }
        (self.cost, self.descent) = (cost, descent);
    }

    /// Adds the right-hand sides of the normal equations for translating the field in x and y, and for rotating it about a centre. The mean of
    /// the field does not rotate.
    pub fn add_motions(
        &self,
        features: &Matrix,
        centre: Vector2<f64>,
        mean: &Vector3<f64>,
        target: &mut [Vec<f64>; 3],
    ) {
        for (index, (reading, pose)) in self.linearised.readings.iter().zip(&self.linearised.poses).enumerate() {
            let around = Vector3::new(centre.y - pose.y, pose.x - centre.x, 1.0);
            let turned = reading.in_pose * around - Vector3::new(mean.y, -mean.x, 0.0);
            let [in_x, in_y] = [0, 1].map(|axis| reading.in_pose.column(axis).into_owned());
            for (target, moved) in target.iter_mut().zip([in_x, in_y, turned]) {
                let weighted = self.weight(index).component_mul(&moved);
                for (axis, factor) in weighted.iter().enumerate() {
                    let column = features.col_as_slice(3 * index + axis);
                    target.iter_mut().zip(column).for_each(|(target, value)| *target += factor * value);
                }
            }
        }
    }

    /// Minus the gradient in a pose, the log determinant included.
    pub fn descent_of_pose(&self, index: usize) -> Vector3<f64> {
        let slope = self.linearised.slope_of_determinant[index];
        self.descent.poses[index] - Vector3::new(slope.x, slope.y, 0.0)
    }

    /// Computes second derivatives, and eliminates the poses after the first; returns their [coupling](Self::coupling).
    pub fn linearise(
        &mut self,
        problem: &Problem<'_>,
        at: At<'_>,
        basis: &Basis,
        features: &Matrix,
    ) -> Result<Matrix, NotPositiveDefinite> {
        self.linearised.readings = self.readings(problem, at, basis).into_iter().map(|(reading, _)| reading).collect();
        self.linearised.movements = self.movements(problem, at);
        let count = self.end - self.first;
        let mut diagonal = vec![Matrix3::zeros(); count];
        let mut below = vec![Matrix3::zeros(); count - 1];
        for (index, reading) in self.linearised.readings.iter().enumerate() {
            diagonal[index] += reading.in_pose.tr_mul(&(Matrix3::from_diagonal(&self.weight(index)) * reading.in_pose));
        }
        for (index, movement) in self.linearised.movements.iter().enumerate() {
            let (weight, before, after) =
                (Matrix3::from_diagonal(&movement.weight), movement.before(), movement.after());
            diagonal[index] += before.tr_mul(&(weight * before));
            if index + 1 < count {
                diagonal[index + 1] += after.tr_mul(&(weight * after));
                below[index] += after.tr_mul(&(weight * before));
            }
        }
        self.linearised.factor = ChainFactor::new(&diagonal[1..], below.get(1..).unwrap_or_default())?;
        let Sums { mut border, coupling, field, .. } = self.sums(features);
        let after_field = coupling.as_ref().subrows(field, AFTER_FIELD);
        linalg::add_product(border.as_mut(), -1.0, coupling.as_ref(), after_field.transpose());
        self.linearised.border = Some(border);
        Ok(coupling)
    }

    /// Coupling of the field, and of what follows it in the block, with the poses after the first, half-solved: C of what their elimination
    /// takes from the second derivatives, C C'.
    pub fn coupling(&self, features: &Matrix) -> Matrix {
        self.sums(features).coupling
    }

    /// The second derivatives before the elimination, with the coupling half-solved.
    fn sums(&self, features: &Matrix) -> Sums {
        let Linearised { readings, movements, factor, .. } = &self.linearised;
        let mut sums = Sums::new(features.nrows(), readings.len());
        for (index, reading) in readings.iter().enumerate() {
            sums.add_reading(index, reading, &self.weight(index), features);
        }
        for (index, movement) in movements.iter().enumerate() {
            sums.add_movement(index, movement);
        }
        factor.solve_half_right(&mut sums.coupling);
        sums
    }

    /// The second derivatives times a change.
    fn second_derivative(&self, basis: &Basis, change: &Parts) -> Parts {
        let mut product = Parts::zeros(change.poses.len(), basis);
        let iron = change.shared.fixed_rows::<3>(IRON);
        let mean = change.shared.fixed_rows::<3>(MEAN);
        for (index, (reading, pose)) in self.linearised.readings.iter().zip(&self.linearised.poses).enumerate() {
            let phases = basis.phases(pose);
            let field = phases.field(&change.potential);
            let changed = reading.in_pose * change.poses[index] + reading.in_iron * iron + mean + field;
            let weighted = self.weight(index).component_mul(&changed);
            product.add_reading(index, reading, &phases, &weighted);
        }
        for (index, movement) in self.linearised.movements.iter().enumerate() {
            let after = change.poses.get(index + 1).unwrap_or(&change.next);
            let odometry = movement.shared() * change.shared.fixed_rows::<OF_ODOMETRY>(0);
            let changed = movement.before() * change.poses[index] + movement.after() * after + odometry;
            product.add_movement(index, movement, &movement.weight.component_mul(&changed));
        }
        product
    }

    /// Change by the elimination of the poses after the first of a right-hand side, which has these values for them.
    pub fn reduce(&self, basis: &Basis, interior: &[Vector3<f64>]) -> Parts {
        let mut change = Parts::zeros(1, basis);
        change.poses.extend(interior.iter().map(|value| -value));
        self.linearised.factor.solve(&mut change.poses[1..]);
        self.second_derivative(basis, &change)
    }

    /// The solution for the poses after the first, given their right-hand side and the solution for all others.
    pub fn expand(
        &self,
        basis: &Basis,
        interior: &[Vector3<f64>],
        first: Vector3<f64>,
        mut known: Parts,
    ) -> Vec<Vector3<f64>> {
        known.poses = vec![Vector3::zeros(); 1 + interior.len()];
        known.poses[0] = first;
        let product = self.second_derivative(basis, &known);
        let mut solution: Vec<Vector3<f64>> =
            interior.iter().zip(&product.poses[1..]).map(|(right, left)| right - left).collect();
        self.linearised.factor.solve(&mut solution);
        solution
    }

    /// Covariance of each interior pose given the block, and minus its regression on the block: three columns for each pose.
    pub fn conditionals(&self, features: &Matrix) -> (Vec<Matrix3<f64>>, Matrix) {
        let mut regression = self.coupling(features);
        self.linearised.factor.solve_other_half_right(&mut regression);
        (self.linearised.factor.inverse_diagonal(), regression)
    }
}

/// Second derivatives as they are summed up, but for those of the field.
struct Sums {
    /// Coupling of the field, then of what follows it in the block, with what follows the field: a column for each of the shared unknowns, the
    /// first pose and the next segment's first pose.
    border: Matrix,
    /// Coupling of the same with the interior poses.
    coupling: Matrix,
    /// Number of unknowns of the field, which come first.
    field: usize,
    /// Number of poses.
    poses: usize,
}

impl Sums {
    fn new(field: usize, poses: usize) -> Self {
        let size = field + AFTER_FIELD;
        Self { border: linalg::zeros(size, AFTER_FIELD), coupling: linalg::zeros(size, 3 * (poses - 1)), field, poses }
    }

    fn add_reading(&mut self, index: usize, reading: &Reading, weight: &Vector3<f64>, features: &Matrix) {
        let Self { border, coupling, field, .. } = self;
        let (field, weight) = (*field, Matrix3::from_diagonal(weight));
        // Derivatives with the axes along those of the map, where the weights are the same.
        let weighted = weight * reading.in_pose;
        let mut in_shared = SMatrix::<f64, 3, SHARED>::zeros();
        in_shared.fixed_view_mut::<3, 3>(0, IRON).copy_from(&reading.in_iron);
        in_shared.fixed_view_mut::<3, 3>(0, MEAN).fill_with_identity();
        let weighted_shared = weight * in_shared;
        add(border, field, 0, in_shared.tr_mul(&weighted_shared).iter().copied(), SHARED);
        let axes = |axis: usize| features.col_as_slice(3 * index + axis);
        for shared in IRON..SHARED {
            for axis in 0..3 {
                add_column(border, shared, axes(axis), weighted_shared[(axis, shared)]);
            }
        }
        let with_shared = in_shared.tr_mul(&weighted);
        for axis in 0..3 {
            let Some(interior) = index.checked_sub(1) else {
                for of in 0..3 {
                    add_column(border, SHARED + axis, axes(of), weighted[(of, axis)]);
                }
                for shared in 0..SHARED {
                    border[(field + shared, SHARED + axis)] += with_shared[(shared, axis)];
                }
                continue;
            };
            for of in 0..3 {
                add_column(coupling, 3 * interior + axis, axes(of), weighted[(of, axis)]);
            }
            (0..SHARED)
                .for_each(|shared| coupling[(field + shared, 3 * interior + axis)] += with_shared[(shared, axis)]);
        }
        if index == 0 {
            let diagonal = reading.in_pose.tr_mul(&weighted);
            add(border, field + SHARED, SHARED, diagonal.iter().copied(), 3);
        }
    }

    fn add_movement(&mut self, index: usize, movement: &Movement) {
        let Self { border, coupling, field, poses } = self;
        let (field, poses) = (*field, *poses);
        // Derivatives in the pose before, in the one after, and in what is shared.
        let (before, after, shared) = (movement.before(), movement.after(), movement.shared());
        let weight = Matrix3::from_diagonal(&movement.weight);
        let shared_shared = shared.tr_mul(&(weight * shared));
        add(border, field, 0, shared_shared.iter().copied(), OF_ODOMETRY);
        let first = field + SHARED;
        let next = first + 3;
        for (pose, is_after) in [(before, false), (after, true)] {
            let with_shared = pose.tr_mul(&(weight * shared));
            let number = index + usize::from(is_after);
            for (row, column) in (0..3).flat_map(|row| (0..OF_ODOMETRY).map(move |column| (row, column))) {
                let value = with_shared[(row, column)];
                if number == 0 {
                    border[(field + column, SHARED + row)] += value;
                } else if number == poses {
                    border[(field + column, SHARED + 3 + row)] += value;
                } else {
                    coupling[(field + column, 3 * (number - 1) + row)] += value;
                }
            }
        }
        let is_next = index + 1 == poses;
        if index == 0 {
            add(border, first, SHARED, before.tr_mul(&(weight * before)).iter().copied(), 3);
        }
        if is_next {
            add(border, next, SHARED + 3, after.tr_mul(&(weight * after)).iter().copied(), 3);
        }
        let across = after.tr_mul(&(weight * before));
        for (row, column) in (0..3).flat_map(|row| (0..3).map(move |column| (row, column))) {
            match (index.checked_sub(1), is_next) {
                // Both in the block: the only pose, and the next segment.
                (None, true) => border[(first + column, SHARED + 3 + row)] += across[(row, column)],
                (None, false) => coupling[(first + column, row)] += across[(row, column)],
                (Some(interior), true) => coupling[(next + row, 3 * interior + column)] += across[(row, column)],
                (Some(_), false) => {}
            }
        }
    }
}

/// Adds a small square matrix, given by columns, to another one.
fn add(target: &mut Matrix, row: usize, column: usize, values: impl Iterator<Item = f64>, size: usize) {
    for (index, value) in values.enumerate() {
        target[(row + index % size, column + index / size)] += value;
    }
}

/// Adds a multiple of a vector to the beginning of a column.
fn add_column(target: &mut Matrix, column: usize, values: &[f64], factor: f64) {
    let out = target.col_as_slice_mut(column).iter_mut();
    out.zip(values).for_each(|(out, value)| *out += factor * value);
}
