//! The maximum over path and field together.
//!
//! With y the readings, x the poses, u the whitened unknowns of the tiles' fields (A, see [`basis`](super::basis)), S the variances of the
//! readings, noise and what the inducing points leave out, the objective is
//!
//! ```text
//! 1/2 sum |y - y^(x, u)|^2 / S + 1/2 log |S| + 1/2 |u|^2 + 1/2 log |1 + A' S^-1 A|  +  odometry  +  priors of what is shared
//! ```
//!
//! that is, the field is marginalised (Laplace). Without the log determinant paths swell: a longer path explains the same field with
//! smaller unknowns.
//!
//! Gauss-Newton: of each segment the poses but the first are eliminated, then the field of each tile; what is left is a system of the first
//! poses and the shared unknowns.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Vector2, Vector3};
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::basis::{Covariances, FieldPrior, Potential};
use super::chain::{DRIFT, Link, MEAN, OdometryNoise, PlanePose, SCALE, SHARED, Shared};
use super::segment::{At, Problem, Segment};
use super::tile::{Layout, Tile, add_lower};

/// What is known before any reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    /// The field around its mean.
    pub field: FieldPrior,
    /// Variance of the noise of an observation, in microtesla squared. It is several times that of its average: neighbours share errors of
    /// place and heading.
    pub noise: f64,
    /// Noise of odometry.
    pub odometry: OdometryNoise,
    /// Standard deviations of what is shared.
    pub shared: Shared,
    /// Largest side of a tile, in metres.
    pub tile: f64,
}

impl Prior {
    /// The usual robot on wheels, with this field and noise.
    pub fn new(field: FieldPrior, noise: f64) -> Self {
        let mut shared = Shared::repeat(5.0);
        // A scale that is known less would trade places with the lengthscale of the field: both stretch the path.
        (shared[SCALE], shared[DRIFT]) = (0.01, 0.02);
        shared.fixed_rows_mut::<3>(MEAN).copy_from(&Vector3::new(50.0, 50.0, 80.0));
        Self {
            field,
            noise,
            odometry: OdometryNoise { forward: 0.01, sideways: 0.002, heading: 0.02, turning: 0.01 },
            shared,
            tile: 10.0,
        }
    }
}

/// Poses that are added at once, and of a segment.
const CHUNK: usize = 40;

/// Factors of the noise of new poses, and how many steps are made with each: so that a wrong start does not stick.
const INFLATIONS: [(f64, usize); 3] = [(16.0, 1), (4.0, 1), (1.0, 3)];

/// Steps at the end, when all poses are there.
const LAST_STEPS: usize = 6;

/// Largest change of a place in a step, in metres.
const LONGEST_STEP: f64 = 0.3;

/// A step in which no unknown of a pose changes by more than this is the last, in metres and radians.
const SMALL_STEP: f64 = 3e-3;

/// A segment is linearised again when one of its poses has moved by more than this, in metres and radians.
const STALE: f64 = 0.03;

/// Factor of a step after one that did not lower the objective, and most of them.
const SHORTER: (f64, usize) = (0.4, 5);

/// Information of the first pose: it is given.
const GIVEN: f64 = 1e8;

/// Path and field.
#[derive(Clone, Debug)]
pub struct Smoother {
    prior: Prior,
    links: Vec<Link>,
    layout: Layout,
    poses: Vec<PlanePose>,
    /// The path as it was known when each pose was added.
    online: Vec<PlanePose>,
    shared: Shared,
    tiles: Vec<Tile>,
    segments: Vec<Segment>,
}

/// A number for each unknown: a change, or minus the gradient.
struct Unknowns {
    poses: Vec<Vector3<f64>>,
    fields: Vec<Vec<f64>>,
    shared: Shared,
}

/// The system that is left of the normal equations.
struct Reduced {
    /// Factors of the tiles' fields, given all that is left.
    fields: Vec<Matrix>,
    /// Couplings of each tile with the shared unknowns and its poses, half-solved.
    couplings: Vec<Matrix>,
    /// Places of those columns in the system.
    columns: Vec<Vec<usize>>,
    /// Factor of the system: the shared unknowns, and the first pose of each segment.
    factor: Matrix,
}

impl Smoother {
    /// A path that begins at this pose with the first link's reading.
    pub fn new(prior: Prior, start: PlanePose, links: Vec<Link>) -> Self {
        let mut dead_reckoning = vec![start];
        for link in links.iter().skip(1) {
            let last = dead_reckoning[dead_reckoning.len() - 1];
            dead_reckoning.push(link.follow(&last, &Shared::zeros()));
        }
        let layout = Layout::around(dead_reckoning.iter(), prior.tile);
        let poses = Vec::with_capacity(links.len());
        let (online, tiles, segments) = (Vec::new(), Vec::new(), Vec::new());
        let mut smoother = Self { prior, links, layout, poses, online, shared: Shared::zeros(), tiles, segments };
        if !smoother.links.is_empty() {
            smoother.poses.push(start);
            smoother.online.push(start);
        }
        smoother
    }

    /// The poses so far.
    pub fn poses(&self) -> &[PlanePose] {
        &self.poses
    }

    /// Each pose as it was estimated when its chunk was added.
    pub fn online(&self) -> &[PlanePose] {
        &self.online
    }

    /// What the whole path shares.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Adds all poses chunk by chunk, and estimates them together.
    ///
    /// # Errors
    /// Where rounding leaves no positive definite system.
    pub fn run(&mut self) -> Result<(), NotPositiveDefinite> {
        while self.poses.len() < self.links.len() {
            self.extend()?;
        }
        self.finish()
    }

    /// Adds the next chunk of poses.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn extend(&mut self) -> Result<(), NotPositiveDefinite> {
        let before = self.poses.len();
        let first = if before == 1 { 0 } else { before };
        for link in &self.links[before..self.links.len().min(before + CHUNK)] {
            let last = self.poses[self.poses.len() - 1];
            self.poses.push(link.follow(&last, &self.shared));
        }
        let old = self.segments.len();
        self.cut(first)?;
        for (inflation, steps) in INFLATIONS {
            self.segments[old..].iter_mut().for_each(|segment| segment.inflation = inflation);
            self.iterate(steps, STALE)?;
        }
        self.online.truncate(first);
        self.online.extend_from_slice(&self.poses[first..]);
        Ok(())
    }

    /// Estimates all poses together, with everything linearised where it is.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn finish(&mut self) -> Result<(), NotPositiveDefinite> {
        if self.poses.is_empty() {
            return Ok(());
        }
        self.tiles.iter_mut().for_each(Tile::forget);
        self.segments.clear();
        self.cut(0)?;
        self.iterate(LAST_STEPS, STALE / 5.0)
    }

    /// Makes segments of the poses from this one on: each of one tile.
    fn cut(&mut self, first: usize) -> Result<(), NotPositiveDefinite> {
        let mut first = first;
        while first < self.poses.len() {
            let index = self.layout.tile_of(&self.poses[first]);
            let rest = &self.poses[first..self.poses.len().min(first + CHUNK + 1)];
            let count = rest.iter().take_while(|pose| self.layout.tile_of(pose) == index).count();
            let tile = match self.tiles.iter().position(|tile| tile.index == index) {
                Some(tile) => tile,
                None => {
                    self.tiles.push(Tile::new(&self.prior.field, &self.layout, index)?);
                    self.tiles.len() - 1
                }
            };
            self.segments.push(Segment::new(first, first + count, tile, 1.0));
            first += count;
        }
        Ok(())
    }

    /// Makes steps until they are small.
    fn iterate(&mut self, steps: usize, tolerance: f64) -> Result<(), NotPositiveDefinite> {
        let mut cost = self.evaluate(tolerance)?;
        for _ in 0..steps {
            let step = self.solve(&self.reduce()?, &self.descent());
            let largest = step.poses.iter().map(|pose| pose.xy().amax()).fold(1e-9, f64::max);
            let mut length = (LONGEST_STEP / largest).min(1.0);
            let before = (self.poses.clone(), self.shared);
            let fields: Vec<Vec<f64>> = self.tiles.iter().map(|tile| tile.field.clone()).collect();
            let (shorter, attempts) = SHORTER;
            let mut lowered = false;
            for _ in 0..attempts {
                self.shared = before.1 + step.shared * length;
                let moved = before.0.iter().zip(&step.poses);
                self.poses = moved.map(|(pose, step)| pose + step * length).collect();
                for ((tile, field), step) in self.tiles.iter_mut().zip(&fields).zip(&step.fields) {
                    tile.field = field.iter().zip(step).map(|(field, step)| field + step * length).collect();
                }
                let new = self.evaluate(tolerance)?;
                if new < cost + 1e-6 {
                    (cost, lowered) = (new, true);
                    break;
                }
                length *= shorter;
            }
            if !lowered {
                (self.poses, self.shared) = before;
                self.tiles.iter_mut().zip(fields).for_each(|(tile, field)| tile.field = field);
                self.evaluate(tolerance)?;
                return Ok(());
            }

            if length * step.poses.iter().map(|pose| pose.amax()).fold(0.0, f64::max) < SMALL_STEP {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Linearises what is stale, and computes the objective and its gradient.
    fn evaluate(&mut self, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { prior: &prior.field, noise: prior.noise, odometry: &prior.odometry, links };
        let places = |segment: &Segment| {
            let places: Vec<[f64; 2]> = segment.poses(poses).iter().map(|pose| [pose.x, pose.y]).collect();
            places.into_iter()
        };
        let covariances: Vec<Covariances> =
            segments.iter().map(|segment| tiles[segment.tile].basis.covariances(places(segment))).collect();
        let stale: Vec<bool> = segments.iter().map(|segment| segment.is_stale(poses, tolerance)).collect();
        let mut changed = vec![false; tiles.len()];
        for ((segment, covariances), _) in
            segments.iter_mut().zip(&covariances).zip(&stale).filter(|(_, stale)| **stale)
        {
            let tile = &mut tiles[segment.tile];
            add_lower(&mut tile.information, -1.0, &segment.linearised.gram);
            segment.inform(&problem, &tile.basis, poses, covariances);
            add_lower(&mut tile.information, 1.0, &segment.linearised.gram);
            changed[segment.tile] = true;
        }
        for (tile, _) in tiles.iter_mut().zip(changed).filter(|(_, changed)| *changed) {
            tile.factor()?;
        }
        let potentials: Vec<Potential> = tiles.iter().map(Tile::potential).collect();
        let mut cost = tiles.iter().map(Tile::cost).sum::<f64>();
        cost += 0.5 * shared.component_div(&prior.shared).norm_squared();
        for ((segment, covariances), stale) in segments.iter_mut().zip(&covariances).zip(stale) {
            let tile = &mut tiles[segment.tile];
            let at = At { poses, shared, potential: &potentials[segment.tile] };
            segment.descend(&problem, at, covariances);
            cost += segment.descent.cost;
            if stale {
                segment.differentiate_determinant(&tile.basis, covariances, tile.factor.as_ref());
                add_lower(&mut tile.remainder, -1.0, &segment.linearised.block);
                segment.eliminate(&problem, at, covariances)?;
                add_lower(&mut tile.remainder, 1.0, &segment.linearised.block);
            }
        }
        Ok(cost)
    }

    /// Eliminates the fields.
    fn reduce(&self) -> Result<Reduced, NotPositiveDefinite> {
        let size = SHARED + 3 * self.segments.len();
        let mut system = linalg::zeros(size, size);
        for (index, deviation) in self.prior.shared.iter().enumerate() {
            system[(index, index)] += 1.0 / (deviation * deviation);
        }
        (SHARED..SHARED + 3).for_each(|index| system[(index, index)] += GIVEN);
        let (mut fields, mut couplings, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        for (index, tile) in self.tiles.iter().enumerate() {
            let segments = || self.segments.iter().enumerate().filter(|(_, segment)| segment.tile == index);
            let mut places: Vec<usize> = (0..SHARED).collect();
            for (number, _) in segments() {
                places.extend(pose_rows(number).chain(pose_rows(number + 1)).filter(|row| *row < size));
            }
            places.sort_unstable();
            places.dedup();
            let field = tile.basis.size();
            let mut coupling = linalg::zeros(field, places.len());
            for (number, segment) in segments() {
                let block = &segment.linearised.block;
                let rows: Vec<usize> = block_rows(number).collect();
                for (row, place) in rows.iter().enumerate().filter(|(_, place)| **place < size) {
                    let column = places.binary_search(place).unwrap_or_default();
                    let out = coupling.col_as_slice_mut(column);
                    out.iter_mut().enumerate().for_each(|(i, out)| *out += block[(field + row, i)]);
                    for (other, other_place) in rows[..=row].iter().enumerate().filter(|(_, place)| **place < size) {
                        system[(*place, *other_place)] += block[(field + row, field + other)];
                    }
                }
            }
            let factor = linalg::cholesky(linalg::copied(tile.remainder.as_ref()))?;
            linalg::solve_lower(factor.as_ref(), coupling.as_mut());
            let square = linalg::product(coupling.transpose(), coupling.as_ref());
            for (i, row) in places.iter().enumerate() {
                for (j, column) in places[..=i].iter().enumerate() {
                    system[(*row, *column)] -= square[(i, j)];
                }
            }
            fields.push(factor);
            couplings.push(coupling);
            columns.push(places);
        }
        Ok(Reduced { fields, couplings, columns, factor: linalg::cholesky(system)? })
    }

    /// Minus the gradient of the objective.
    fn descent(&self) -> Unknowns {
        let mut poses = vec![Vector3::zeros(); self.poses.len()];
        let mut shared = -self.shared.component_div(&self.prior.shared.component_mul(&self.prior.shared));
        let mut potentials: Vec<Potential> = self.tiles.iter().map(|tile| tile.basis.no_potential()).collect();
        for segment in &self.segments {
            for (index, pose) in poses[segment.first..segment.end].iter_mut().enumerate() {
                *pose += segment.descent_of_pose(index);
            }
            if let Some(next) = poses.get_mut(segment.end) {
                *next += segment.descent.next;
            }
            shared += segment.descent.shared;
            let potential = &mut potentials[segment.tile];
            add_to(&mut potential.horizontal, &segment.descent.horizontal);
            add_to(&mut potential.vertical, &segment.descent.vertical);
        }
        let field = |(tile, potential): (&Tile, &Potential)| {
            let in_unknowns = tile.basis.in_unknowns(potential);
            in_unknowns.iter().zip(&tile.field).map(|(readings, value)| readings - value).collect()
        };
        Unknowns { poses, fields: self.tiles.iter().zip(&potentials).map(field).collect(), shared }
    }

    /// Solves the normal equations.
    fn solve(&self, reduced: &Reduced, right: &Unknowns) -> Unknowns {
        let mut system = vec![0.0; reduced.factor.nrows()];
        system[..SHARED].copy_from_slice(right.shared.as_slice());
        let mut fields = right.fields.clone();
        let mut interiors = Vec::with_capacity(self.segments.len());
        for (number, segment) in self.segments.iter().enumerate() {
            let poses = &right.poses[segment.first..segment.end];
            add_to(&mut system[SHARED + 3 * number..], poses[0].as_slice());
            let (interior, block) = segment.reduce(&poses[1..]);
            let (field, rest) = block.split_at(fields[segment.tile].len());
            add_to(&mut fields[segment.tile], field);
            for (row, value) in block_rows(number).zip(rest) {
                if let Some(system) = system.get_mut(row) {
                    *system += value;
                }
            }
            interiors.push(interior);
        }
        for (index, field) in fields.iter_mut().enumerate() {
            linalg::solve_lower_vector(reduced.fields[index].as_ref(), field);
            let shares = linalg::matrix_vector(reduced.couplings[index].transpose(), field);
            reduced.columns[index].iter().zip(shares).for_each(|(row, share)| system[*row] -= share);
        }
        linalg::solve_from_cholesky(reduced.factor.as_ref(), &mut system);
        for (index, field) in fields.iter_mut().enumerate() {
            let known: Vec<f64> = reduced.columns[index].iter().map(|row| system[*row]).collect();
            linalg::add_matrix_vector(field, -1.0, reduced.couplings[index].as_ref(), &known);
            linalg::solve_lower_transposed_vector(reduced.fields[index].as_ref(), field);
        }
        let mut poses = Vec::with_capacity(self.poses.len());
        for ((number, segment), interior) in self.segments.iter().enumerate().zip(interiors) {
            let rows = block_rows(number).map(|row| system.get(row).copied().unwrap_or(0.0));
            let block: Vec<f64> = fields[segment.tile].iter().copied().chain(rows).collect();
            poses.push(Vector3::from_column_slice(&system[SHARED + 3 * number..][..3]));
            poses.extend(segment.expand(interior, &block));
        }
        Unknowns { poses, fields, shared: Shared::from_column_slice(&system[..SHARED]) }
    }

    /// Covariance of each pose after the path is turned and shifted to fit the truth best, as paths are compared: how uncertain its shape
    /// is, with field and sensor marginalised.
    ///
    /// With G the changes of the path by a shift and a turn, and C the covariance of all poses, it is that of `e - G (G'G)^-1 G' e`.
    ///
    /// # Errors
    /// As [`covariances`](Self::covariances).
    pub fn covariances_of_shape(&self) -> Result<Vec<Matrix2<f64>>, NotPositiveDefinite> {
        let covariances = self.covariances()?;
        let reduced = self.reduce()?;
        let centre = self.poses.iter().map(|pose| pose.xy()).sum::<Vector2<f64>>() / self.poses.len().max(1) as f64;
        let change = |pose: &PlanePose| Matrix2x3::new(1.0, 0.0, centre.y - pose.y, 0.0, 1.0, pose.x - centre.x);
        let changes: Vec<Matrix2x3<f64>> = self.poses.iter().map(change).collect();
        let spread: Vec<Vec<Vector3<f64>>> = (0..3)
            .map(|axis| {
                let place = |change: &Matrix2x3<f64>| Vector3::new(change[(0, axis)], change[(1, axis)], 0.0);
                let right = Unknowns {
                    poses: changes.iter().map(place).collect(),
                    fields: self.tiles.iter().map(|tile| vec![0.0; tile.field.len()]).collect(),
                    shared: Shared::zeros(),
                };
                self.solve(&reduced, &right).poses
            })
            .collect();
        // C G, place by place, and G'G, G'C G.
        let with = |index: usize| Matrix2x3::from_fn(|row, axis| spread[axis][index][row]);
        let squares: Matrix3<f64> = changes.iter().map(|change| change.tr_mul(change)).sum();
        let whole: Matrix3<f64> = changes.iter().enumerate().map(|(index, change)| change.tr_mul(&with(index))).sum();
        // A path of one place cannot be turned.
        let inverse = squares.pseudo_inverse(1e-12).unwrap_or_default();
        let shape = |(index, change): (usize, &Matrix2x3<f64>)| {
            let covariance: Matrix2<f64> = covariances[index].fixed_view::<2, 2>(0, 0).into();
            let across = change * inverse * with(index).transpose();
            covariance - across - across.transpose() + change * inverse * whole * inverse * change.transpose()
        };
        Ok(changes.iter().enumerate().map(shape).collect())
    }

    /// Covariance of each pose given the first, with field and sensor marginalised.
    ///
    /// # Errors
    /// Where rounding leaves no positive definite system.
    pub fn covariances(&self) -> Result<Vec<Matrix3<f64>>, NotPositiveDefinite> {
        if self.poses.is_empty() {
            return Ok(Vec::new());
        }
        let Reduced { fields, couplings, columns, factor } = self.reduce()?;
        let inverse = linalg::inverse_from_cholesky(factor.as_ref());
        let mut covariances = Vec::with_capacity(self.poses.len());
        for (number, segment) in self.segments.iter().enumerate() {
            let first = SHARED + 3 * number;
            covariances.push(Matrix3::from_fn(|i, j| inverse[(first + i, first + j)]));
            let field = self.tiles[segment.tile].basis.size();
            let (conditional, regression) = segment.conditionals();
            // Given the system, the field varies by its factor; with the system, by its coupling.
            let mut by_field = linalg::copied(regression.as_ref().subrows(0, field));
            linalg::solve_lower(fields[segment.tile].as_ref(), by_field.as_mut());
            let columns = &columns[segment.tile];
            let mut by_system = linalg::product(couplings[segment.tile].transpose(), by_field.as_ref());
            linalg::scale(&mut by_system, -1.0);
            for (row, place) in block_rows(number).enumerate().filter(|(_, place)| *place < factor.nrows()) {
                let at = columns.binary_search(&place).unwrap_or_default();
                for column in 0..by_system.ncols() {
                    by_system[(at, column)] += regression[(field + row, column)];
                }
            }
            let shared = Matrix::from_fn(columns.len(), columns.len(), |i, j| inverse[(columns[i], columns[j])]);
            let spread = linalg::product(shared.as_ref(), by_system.as_ref());
            for (index, conditional) in conditional.into_iter().enumerate() {
                let column = |matrix: &Matrix, axis: usize| matrix.col_as_slice(3 * index + axis).to_vec();
                covariances.push(
                    conditional
                        + Matrix3::from_fn(|i, j| {
                            linalg::dot(&column(&by_field, i), &column(&by_field, j))
                                + linalg::dot(&column(&by_system, i), &column(&spread, j))
                        }),
                );
            }
        }
        Ok(covariances)
    }
}

/// Rows of the first pose of this segment in the system.
fn pose_rows(segment: usize) -> impl Iterator<Item = usize> {
    (0..3).map(move |axis| SHARED + 3 * segment + axis)
}

/// Rows of a segment's block after the field in the system; those beyond it have no next segment.
fn block_rows(segment: usize) -> impl Iterator<Item = usize> {
    (0..SHARED).chain(pose_rows(segment)).chain(pose_rows(segment + 1))
}

fn add_to(target: &mut [f64], values: &[f64]) {
    target.iter_mut().zip(values).for_each(|(target, value)| *target += value);
}

#[cfg(test)]
mod tests;
