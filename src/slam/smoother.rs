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

use std::ops::Range;

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
    /// Relative standard deviation of the field's lengthscale; 0 where that is known.
    pub lengthscale_deviation: f64,
    /// Relative standard deviation of the size of path and lengthscale together. A path and a field that are stretched alike explain the
    /// readings as well as before: this is added to covariances.
    pub stretch: f64,
    /// Largest side of a tile, in metres; where the field varies over less, tiles are smaller.
    pub tile: f64,
}

impl Prior {
    /// The usual robot on wheels, with this field and noise.
    pub fn new(field: FieldPrior, noise: f64) -> Self {
        let mut shared = Shared::repeat(5.0);
        // A field that is smoother than its hyperparameters say would shrink the path, so odometry's scale is held.
        (shared[SCALE], shared[DRIFT]) = (0.01, 0.02);
        shared.fixed_rows_mut::<3>(MEAN).copy_from(&Vector3::new(50.0, 50.0, 80.0));
        Self {
            field,
            noise,
            odometry: OdometryNoise { forward: 0.01, sideways: 0.002, heading: 0.02, turning: 0.01 },
            shared,
            lengthscale_deviation: 0.0,
            stretch: 0.03,
            tile: 10.0,
        }
    }

    /// The tiles around a path.
    fn layout(&self, path: &[PlanePose]) -> Layout {
        let lengthscale = self.field.lengthscale;
        Layout::around(path.iter(), self.tile.min(TILE * lengthscale), lengthscale)
    }

    /// Whether these are numbers with which a path can be estimated.
    fn is_valid(&self) -> bool {
        let FieldPrior { variance_below, variance_above, lengthscale } = self.field;
        let OdometryNoise { forward, sideways, heading, turning } = self.odometry;
        let positive = [variance_below + variance_above, lengthscale, self.noise, self.tile];
        let deviations = [self.lengthscale_deviation, self.stretch];
        let others = [variance_below, variance_above, forward, sideways, heading, turning];
        positive.iter().chain(&self.shared).all(|value| value.is_finite() && *value > 0.0)
            && others.iter().chain(&deviations).all(|value| value.is_finite() && *value >= 0.0)
    }
}

/// Poses that are added at once, and of a segment.
pub(super) const CHUNK: usize = 40;

/// Factors of the noise of new poses, and how many steps are made with each: so that a wrong start does not stick.
const INFLATIONS: [(f64, usize); 3] = [(16.0, 1), (4.0, 1), (1.0, 2)];

/// Largest side of a tile in lengthscales, which limits the number of its unknowns.
const TILE: f64 = 12.0;

/// Steps of the whole path with each chunk.
const WHOLE_STEPS: usize = 2;

/// Steps at the end, when all poses are there.
const LAST_STEPS: usize = 6;

/// How often the lengthscale is adapted at the end, where it is not known.
const ADAPTATIONS: usize = 3;

/// Largest scale of odometry that a field with a lengthscale that is not known may tell, in standard deviations.
const MOST_SCALE: f64 = 4.0;

/// Standard deviation of the scale where the field tells a larger one.
const HELD_SCALE: f64 = 1e-4;

/// Largest change of a place in a step, in metres.
const LONGEST_STEP: f64 = 0.3;

/// A step in which no unknown of a pose changes by more than this is the last, in metres and radians.
const SMALL_STEP: f64 = 3e-3;

/// A segment is linearised again when one of its poses has moved by more than this, in metres and radians.
const STALE: f64 = 0.03;

/// A tolerance with which everything is linearised again.
const ALWAYS: f64 = -1.0;

/// Factor of a step after one that did not lower the objective, and most of them.
const SHORTER: (f64, usize) = (0.4, 5);

/// Information of what is given: the first pose, and in a window all that is shared.
const GIVEN: f64 = 1e8;

/// Path and field.
#[derive(Clone, Debug)]
pub struct Smoother {
    is_valid: bool,
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

/// The segments whose poses are estimated: all, or those of a window, while the others have told of the field what they know.
struct Window {
    /// Index of the first of these segments; its first pose is given.
    first: usize,
    /// What the segments before it tell of each tile in the window.
    map: Vec<Option<Map>>,
}

/// The objective as a quadratic function of the field of a tile, all poses before the window given.
struct Map {
    field: Vec<f64>,
    /// Minus the gradient at that field.
    descent: Vec<f64>,
    information: Matrix,
}

/// The system that is left of the normal equations.
struct Reduced {
    /// Index of the first segment of the window.
    first: usize,
    /// Factors of the tiles' fields, given all that is left.
    fields: Vec<Matrix>,
    /// Couplings of each tile with the shared unknowns and its poses, half-solved.
    couplings: Vec<Matrix>,
    /// Places of those columns in the system.
    columns: Vec<Vec<usize>>,
    /// Factor of the system: the shared unknowns, and the first pose of each segment.
    factor: Matrix,
}

impl Window {
    /// All segments.
    fn whole() -> Self {
        Self { first: 0, map: Vec::new() }
    }

    /// Adds to minus the gradient in the field of a tile what does not come from the window: the prior, or the map.
    fn add_descent(&self, tile: usize, Tile { field, .. }: &Tile, descent: &mut [f64]) {
        match self.map.get(tile) {
            None => descent.iter_mut().zip(field).for_each(|(descent, value)| *descent -= value),
            Some(map) => map.iter().for_each(|map| add_to(descent, &map.descent_at(field))),
        }
    }

    /// The same for the objective, but for a constant.
    fn cost(&self, tile: usize, Tile { field, .. }: &Tile) -> f64 {
        let Some(map) = self.map.get(tile) else { return 0.5 * linalg::squared_norm(field) };
        let Some(map) = map else { return 0.0 };
        // The gradient is linear: on the way it is the mean of those at both ends.
        let ends = map.descent.iter().zip(map.descent_at(field)).zip(field.iter().zip(&map.field));
        -0.5 * ends.map(|((then, now), (field, old))| (then + now) * (field - old)).sum::<f64>()
    }
}

impl Map {
    /// Minus the gradient at this field.
    fn descent_at(&self, field: &[f64]) -> Vec<f64> {
        let moved: Vec<f64> = field.iter().zip(&self.field).map(|(now, then)| now - then).collect();
        let mut descent = self.descent.clone();
        linalg::add_matrix_vector(&mut descent, -1.0, self.information.as_ref(), &moved);
        descent
    }
}

impl Smoother {
    /// A path that begins at this pose with the first link's reading.
    pub fn new(prior: Prior, start: PlanePose, links: Vec<Link>) -> Self {
        let is_valid =
            prior.is_valid() && start.iter().all(|value| value.is_finite()) && links.iter().all(Link::is_valid);
        let layout = prior.layout(&dead_reckoning(start, &links));
        let poses = Vec::with_capacity(links.len());
        let mut smoother = Self {
            is_valid,
            prior,
            links,
            layout,
            poses,
            online: Vec::new(),
            shared: Shared::zeros(),
            tiles: Vec::new(),
            segments: Vec::new(),
        };
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

    /// Appends links, whose poses are added by [`extend`](Self::extend).
    pub fn push(&mut self, links: &[Link]) {
        self.is_valid &= links.iter().all(Link::is_valid);
        self.links.extend_from_slice(links);
    }

    /// Number of poses that it has the links of.
    pub fn known(&self) -> usize {
        self.links.len()
    }

    /// Continues with another prior, and estimates all poses together, as [`finish`](Self::finish) does.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn set_prior(&mut self, prior: Prior) -> Result<(), NotPositiveDefinite> {
        self.is_valid &= prior.is_valid();
        self.prior = prior;
        self.finish()
    }

    /// Adds all poses chunk by chunk, and estimates them together.
    ///
    /// # Errors
    /// Where a number of the prior or of the path is not finite, or has no meaning, and where rounding leaves no positive definite system.
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
        if !self.is_valid {
            return Err(NotPositiveDefinite);
        }
        let before = self.poses.len();
        let first = if before == 1 { 0 } else { before };
        for link in &self.links[before..self.links.len().min(before + CHUNK)] {
            let last = self.poses[self.poses.len() - 1];
            self.poses.push(link.follow(&last, &self.shared));
        }
        let old = self.segments.len();
        self.cut(first)?;
        let window = self.window(old.saturating_sub(1));
        for (inflation, steps) in INFLATIONS {
            self.segments[old..].iter_mut().for_each(|segment| segment.inflation = inflation);
            self.iterate(&window, steps, STALE)?;
        }
        if window.first > 0 {
            self.iterate(&Window::whole(), WHOLE_STEPS, STALE)?;
        }
        self.online.truncate(first);
        self.online.extend_from_slice(&self.poses[first..]);
        Ok(())
    }

    /// Estimates all poses together, with everything linearised where it is: once from the path as it is known now, and once from that of
    /// odometry, since a place that was mistaken for another on the way may hold the path where it is. The more probable of both is kept.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn finish(&mut self) -> Result<(), NotPositiveDefinite> {
        if self.poses.is_empty() {
            return Ok(());
        }
        if !self.is_valid {
            return Err(NotPositiveDefinite);
        }
        let cost = if self.prior.lengthscale_deviation > 0.0 { self.adapt_lengthscale() } else { self.settle() }?;
        let mut other = Self {
            prior: self.prior.clone(),
            links: self.links.clone(),
            poses: dead_reckoning(self.poses[0], &self.links[..self.poses.len()]),
            online: self.online.clone(),
            shared: Shared::zeros(),
            tiles: Vec::new(),
            segments: Vec::new(),
            ..*self
        };
        if other.settle().is_ok_and(|other| other < cost) {
            *self = other;
        }
        Ok(())
    }

    /// Adapts the lengthscale, and returns the objective. A path and a lengthscale that are stretched alike explain the readings as well as
    /// before, so that at the optimum the priors of odometry's scale and of the lengthscale pull equally at that stretch.
    fn adapt_lengthscale(&mut self) -> Result<f64, NotPositiveDefinite> {
        let [scale, deviation] = [self.prior.shared[SCALE], self.prior.lengthscale_deviation];
        let pull = |logarithm: f64, shared: &Shared| logarithm / deviation.powi(2) + shared[SCALE] / scale.powi(2);
        let given = self.prior.field.lengthscale;
        let mut cost = self.settle()?;
        let (mut before, mut logarithm) = ((0.0, pull(0.0, &self.shared)), -self.shared[SCALE]);
        for _ in 0..ADAPTATIONS {
            self.prior.field.lengthscale = given * logarithm.exp();
            cost = self.settle()?;
            let now = (logarithm, pull(logarithm, &self.shared));
            let slope = (now.1 - before.1) / (now.0 - before.0);
            // Newton's step; where tiles that are laid anew hide the slope, the scale is tried as before.
            let step = if slope > 0.0 { -now.1 / slope } else { -self.shared[SCALE] };
            (before, logarithm) = (now, logarithm + step.clamp(-deviation, deviation));
        }
        if self.shared[SCALE].abs() > MOST_SCALE * scale {
            // Odometry is not as wrong as that: the field is smoother than its prior, which stretches the path.
            self.prior.shared[SCALE] = HELD_SCALE;
            cost = self.settle()?;
        }
        Ok(cost)
    }

    /// Makes steps of the whole path, in tiles around it, and returns the objective.
    fn settle(&mut self) -> Result<f64, NotPositiveDefinite> {
        self.layout = self.prior.layout(&self.poses);
        self.tiles.clear();
        self.segments.clear();
        self.cut(0)?;
        // The field is estimated first, at these poses: with a zero field, only odometry would constrain them.
        self.evaluate(&Window::whole(), 0.0)?;
        let fields = self.descent(&Window::whole()).fields;
        for (tile, mut field) in self.tiles.iter_mut().zip(fields) {
            linalg::solve_from_cholesky(tile.factor.as_ref(), &mut field);
            tile.field = field;
        }
        self.evaluate(&Window::whole(), ALWAYS)?;
        self.iterate(&Window::whole(), LAST_STEPS, STALE / 5.0)
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

    /// The window from this segment on.
    fn window(&self, first: usize) -> Window {
        if first == 0 {
            return Window::whole();
        }
        let descents = self.descent_of_fields(0..first);
        let is_within = |tile: usize| self.segments[first..].iter().any(|segment| segment.tile == tile);
        let map = |(index, (tile, descent)): (usize, (&Tile, Vec<f64>))| {
            is_within(index).then(|| {
                let mut information = linalg::copied(tile.information.as_ref());
                for segment in self.segments[first..].iter().filter(|segment| segment.tile == index) {
                    add_lower(&mut information, -1.0, &segment.linearised.gram);
                }
                linalg::mirror_lower(information.as_mut());
                let descent = descent.iter().zip(&tile.field).map(|(descent, field)| descent - field).collect();
                Map { field: tile.field.clone(), descent, information }
            })
        };
        Window { first, map: self.tiles.iter().zip(descents).enumerate().map(map).collect() }
    }

    /// Makes steps until they are small, and returns the objective.
    fn iterate(&mut self, window: &Window, steps: usize, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let mut cost = self.evaluate(window, tolerance)?;
        for _ in 0..steps {
            let step = self.solve(&self.reduce(window)?, &self.descent(window));
            let largest = step.poses.iter().map(|pose| pose.xy().amax()).fold(1e-9, f64::max);
            let mut length = (LONGEST_STEP / largest).min(1.0);
            let before = (self.poses.clone(), self.shared);
            let fields: Vec<Vec<f64>> = self.tiles.iter().map(|tile| tile.field.clone()).collect();
            let (shorter, attempts) = SHORTER;
            let mut lowered = false;
            for _ in 0..attempts {
                self.shared = before.1 + step.shared * length;
                let start = self.segments[window.first].first;
                for ((pose, before), step) in self.poses[start..].iter_mut().zip(&before.0[start..]).zip(&step.poses) {
                    *pose = before + step * length;
                }
                for ((tile, field), step) in self.tiles.iter_mut().zip(&fields).zip(&step.fields) {
                    tile.field = field.iter().zip(step).map(|(field, step)| field + step * length).collect();
                }
                let new = self.evaluate(window, tolerance)?;
                if new < cost + 1e-6 {
                    (cost, lowered) = (new, true);
                    break;
                }
                length *= shorter;
            }
            if !lowered {
                (self.poses, self.shared) = before;
                self.tiles.iter_mut().zip(fields).for_each(|(tile, field)| tile.field = field);
                return self.evaluate(window, tolerance);
            }
            if length * step.poses.iter().map(|pose| pose.amax()).fold(0.0, f64::max) < SMALL_STEP {
                return Ok(cost);
            }
        }
        Ok(cost)
    }

    /// Linearises what is stale in the window, and computes the objective and its gradient there.
    fn evaluate(&mut self, window: &Window, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { prior: &prior.field, noise: prior.noise, odometry: &prior.odometry, links };
        let covariances = |segment: &Segment, tile: &Tile| {
            let places: Vec<[f64; 2]> = segment.poses(poses).iter().map(|pose| [pose.x, pose.y]).collect();
            tile.basis.covariances(places.into_iter())
        };
        let mut changed = vec![false; tiles.len()];
        let mut linearised: Vec<Option<Covariances>> = Vec::new();
        for segment in &mut segments[window.first..] {
            let tile = &mut tiles[segment.tile];
            let stale = segment.is_stale(poses, tolerance).then(|| covariances(segment, tile));
            if let Some(covariances) = &stale {
                add_lower(&mut tile.information, -1.0, &segment.linearised.gram);
                segment.inform(&problem, &tile.basis, poses, covariances);
                add_lower(&mut tile.information, 1.0, &segment.linearised.gram);
                changed[segment.tile] = true;
            }
            linearised.push(stale);
        }
        for (tile, _) in tiles.iter_mut().zip(changed).filter(|(_, changed)| *changed) {
            tile.factor()?;
        }
        let potentials: Vec<Potential> = tiles.iter().map(Tile::potential).collect();
        let mut cost = 0.5 * shared.component_div(&prior.shared).norm_squared();
        cost += tiles.iter().enumerate().map(|(index, tile)| tile.cost() + window.cost(index, tile)).sum::<f64>();
        for (segment, stale) in segments[window.first..].iter_mut().zip(linearised) {
            let tile = &mut tiles[segment.tile];
            let at = At { poses, shared, potential: &potentials[segment.tile] };
            let is_stale = stale.is_some();
            let covariances = stale.unwrap_or_else(|| covariances(segment, tile));
            segment.descend(&problem, at, &covariances);
            cost += segment.descent.cost;
            if is_stale {
                segment.differentiate_determinant(&tile.basis, &covariances, tile.factor.as_ref());
                add_lower(&mut tile.remainder, -1.0, &segment.linearised.block);
                segment.eliminate(&problem, at, &covariances)?;
                add_lower(&mut tile.remainder, 1.0, &segment.linearised.block);
            }
        }
        Ok(cost)
    }

    /// Eliminates the fields.
    fn reduce(&self, window: &Window) -> Result<Reduced, NotPositiveDefinite> {
        let Window { first, .. } = *window;
        let size = SHARED + 3 * (self.segments.len() - first);
        let mut system = linalg::zeros(size, size);
        for (index, deviation) in self.prior.shared.iter().enumerate() {
            system[(index, index)] += if first > 0 { GIVEN } else { 1.0 / (deviation * deviation) };
        }
        (SHARED..SHARED + 3).for_each(|index| system[(index, index)] += GIVEN);
        let (mut fields, mut couplings, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        for (index, tile) in self.tiles.iter().enumerate() {
            let segments = || self.segments[first..].iter().enumerate().filter(|(_, segment)| segment.tile == index);
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
            let remainder = match window.map.get(index) {
                None => linalg::copied(tile.remainder.as_ref()),
                Some(None) => Matrix::identity(field, field),
                Some(Some(map)) => {
                    let mut remainder = linalg::copied(map.information.as_ref());
                    segments().for_each(|(_, segment)| add_lower(&mut remainder, 1.0, &segment.linearised.block));
                    remainder
                }
            };
            let factor = linalg::cholesky(remainder)?;
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
        Ok(Reduced { first, fields, couplings, columns, factor: linalg::cholesky(system)? })
    }

    /// Minus the gradient of the objective in the poses of the window, the fields, and what is shared unless it is given.
    fn descent(&self, window: &Window) -> Unknowns {
        let segments = &self.segments[window.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let mut poses = vec![Vector3::zeros(); self.poses.len() - start];
        let mut shared = -self.shared.component_div(&self.prior.shared.component_mul(&self.prior.shared));
        for segment in segments {
            for (index, pose) in poses[segment.first - start..segment.end - start].iter_mut().enumerate() {
                *pose += segment.descent_of_pose(index);
            }
            if let Some(next) = poses.get_mut(segment.end - start) {
                *next += segment.descent.next;
            }
            shared += segment.descent.shared;
        }
        let mut fields = self.descent_of_fields(window.first..self.segments.len());
        for ((index, tile), field) in self.tiles.iter().enumerate().zip(&mut fields) {
            window.add_descent(index, tile, field);
        }
        if window.first > 0 {
            shared.fill(0.0);
            poses[0].fill(0.0);
        }
        Unknowns { poses, fields, shared }
    }

    /// What these segments add to minus the gradient in the unknowns of each tile.
    fn descent_of_fields(&self, segments: Range<usize>) -> Vec<Vec<f64>> {
        let mut potentials: Vec<Potential> = self.tiles.iter().map(|tile| tile.basis.no_potential()).collect();
        for segment in &self.segments[segments] {
            let potential = &mut potentials[segment.tile];
            add_to(&mut potential.horizontal, &segment.descent.horizontal);
            add_to(&mut potential.vertical, &segment.descent.vertical);
        }
        self.tiles.iter().zip(&potentials).map(|(tile, potential)| tile.basis.in_unknowns(potential)).collect()
    }

    /// Solves the normal equations.
    fn solve(&self, reduced: &Reduced, right: &Unknowns) -> Unknowns {
        let segments = &self.segments[reduced.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let mut system = vec![0.0; reduced.factor.nrows()];
        system[..SHARED].copy_from_slice(right.shared.as_slice());
        let mut fields = right.fields.clone();
        let mut interiors = Vec::with_capacity(segments.len());
        for (number, segment) in segments.iter().enumerate() {
            let poses = &right.poses[segment.first - start..segment.end - start];
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
        let mut poses = Vec::with_capacity(right.poses.len());
        for ((number, segment), interior) in segments.iter().enumerate().zip(interiors) {
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
        let covariances = self.covariances_of_given_size()?;
        let reduced = self.reduce(&Window::whole())?;
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
            // No shift and no turn is part of a stretch about the centre.
            covariance - across - across.transpose()
                + change * inverse * whole * inverse * change.transpose()
                + self.covariance_of_stretch(self.poses[index].xy() - centre)
        };
        Ok(changes.iter().enumerate().map(shape).collect())
    }

    /// Covariance of the last pose given the first, with field and sensor marginalised.
    ///
    /// # Errors
    /// As [`covariances`](Self::covariances).
    pub fn covariance_of_last(&self) -> Result<Matrix3<f64>, NotPositiveDefinite> {
        let [Some(first), Some(last)] = [self.poses.first(), self.poses.last()] else {
            return Err(NotPositiveDefinite);
        };
        let reduced = self.reduce(&Window::whole())?;
        let mut covariance = Matrix3::zeros();
        for axis in 0..3 {
            let mut right = Unknowns {
                poses: vec![Vector3::zeros(); self.poses.len()],
                fields: self.tiles.iter().map(|tile| vec![0.0; tile.field.len()]).collect(),
                shared: Shared::zeros(),
            };
            right.poses[self.poses.len() - 1][axis] = 1.0;
            let column = self.solve(&reduced, &right).poses[self.poses.len() - 1];
            covariance.set_column(axis, &column);
        }
        let mut places = covariance.fixed_view_mut::<2, 2>(0, 0);
        places += self.covariance_of_stretch(last.xy() - first.xy());
        Ok(covariance)
    }

    /// Covariance of each pose given the first, with field and sensor marginalised.
    ///
    /// # Errors
    /// Where rounding leaves no positive definite system.
    pub fn covariances(&self) -> Result<Vec<Matrix3<f64>>, NotPositiveDefinite> {
        let mut covariances = self.covariances_of_given_size()?;
        for (covariance, pose) in covariances.iter_mut().zip(&self.poses) {
            let mut places = covariance.fixed_view_mut::<2, 2>(0, 0);
            places += self.covariance_of_stretch(pose.xy() - self.poses[0].xy());
        }
        Ok(covariances)
    }

    /// Covariance by a stretch of a place at this distance from what is not moved.
    fn covariance_of_stretch(&self, distance: Vector2<f64>) -> Matrix2<f64> {
        distance * distance.transpose() * (self.prior.stretch * self.prior.stretch)
    }

    /// The same if the path is not stretched.
    fn covariances_of_given_size(&self) -> Result<Vec<Matrix3<f64>>, NotPositiveDefinite> {
        if self.segments.is_empty() {
            return if self.poses.is_empty() { Ok(Vec::new()) } else { Err(NotPositiveDefinite) };
        }
        let Reduced { fields, couplings, columns, factor, .. } = self.reduce(&Window::whole())?;
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

/// The path by odometry.
fn dead_reckoning(start: PlanePose, links: &[Link]) -> Vec<PlanePose> {
    let mut poses = vec![start];
    for link in links.iter().skip(1) {
        poses.push(link.follow(&poses[poses.len() - 1], &Shared::zeros()));
    }
    poses
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
