//! The maximum over path and field together.
//!
//! With y the readings, x the poses, u the whitened unknowns of the tiles' fields (A, see [`basis`](super::basis)), S the variances of the
//! readings, noise and what the modes leave out, the objective is
//!
//! ```text
//! 1/2 sum |y - y^(x, u)|^2 / S + 1/2 log |S| + 1/2 |u|^2 + 1/2 log |1 + A' S^-1 A|  +  odometry  +  priors of what is shared
//! ```
//!
//! that is, the field is marginalised (Laplace). Without the log determinant paths swell: a longer path explains the same field with
//! smaller unknowns.
//!
//! Readings at places that were passed once tell nothing of the path but how likely the field there is before any reading, which would bend
//! it. The whole path is therefore estimated at the end without them, and until the path first comes back nothing but odometry is believed
//! ([revisits]).
//!
//! Gauss-Newton: in a [window] of the last metres against the map so far, and for the whole path whenever it has become longer by
//! a tenth, with the normal equations solved by [elimination]. At the end, fields [move freely](motions) with their readings.

mod covariance;
mod elimination;
mod evidence;
mod motions;
mod revisits;
mod window;

use std::sync::Arc;

use nalgebra::{Matrix3, Rotation2, Vector2, Vector3};
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::chain::{IRON, Link, PlanePose, SCALE, Shared};
use super::path_filter::PathFilter;
use super::prior::Prior;
use super::segment::{At, Linearised, Problem, Segment};
use super::tile::{Layout, Tile, add_eliminated};
pub use evidence::Revisit;
use revisits::Revisits;
use window::Window;

/// Poses that are added at once, and of a segment.
pub(super) const CHUNK: usize = 40;

/// Factors of the noise of new poses, and how many steps are made with each: so that a wrong start does not stick.
const INFLATIONS: [(f64, usize); 3] = [(16.0, 1), (4.0, 1), (1.0, 2)];

/// Steps of the whole path at a time.
const WHOLE_STEPS: usize = 2;

/// The whole path is estimated again when it has become longer by this factor. So the cost of all that is linear in the length.
const GROWTH: f64 = 1.1;

/// Steps at the end, when all poses are there.
const LAST_STEPS: usize = 6;

/// Evidence of all revisits, as a logarithm, from which a path of the filter is believed.
const PROVEN: f64 = 10.0;

/// How often paths are drawn at the end, while the readings contradict the path.
const DRAWN: u64 = 3;

/// How often the lengthscale is adapted at the end, where it is not known.
const ADAPTATIONS: usize = 8;

/// Lengthscales that are tried differ by this, as the logarithm; it does not change by more at a time.
const TRIED: f64 = 0.1;

/// A smaller change of the lengthscale is the last, as the logarithm.
const SMALL_ADAPTATION: f64 = 0.02;

/// Steps with each of these lengthscales.
const ADAPTATION_STEPS: usize = 3;

/// Standard deviation of the scale of odometry at the end, where the lengthscale is not known: readings do not tell one from the other.
const HELD_SCALE: f64 = 1e-3;

/// Largest change of a place in a step, in metres.
const LONGEST_STEP: f64 = 0.3;

/// A step in which no unknown of a pose changes by more than this is the last, in metres and radians.
const SMALL_STEP: f64 = 3e-3;

/// A segment is linearised again when one of its poses has moved by more than this, in metres and radians.
const STALE: f64 = 0.03;

/// Most segments of a tile whose features are kept while it is linearised: more would take too much memory.
const MOST_KEPT: usize = 40;

/// Factor of a step after one that did not lower the objective, and most of them.
const SHORTER: (f64, usize) = (0.4, 5);

/// Path and field.
#[derive(Clone, Debug)]
pub struct Smoother {
    is_valid: bool,
    prior: Prior,
    /// Shared by the paths that are compared.
    links: Arc<Vec<Link>>,
    layout: Layout,
    /// Where the sensor was when it measured.
    poses: Vec<PlanePose>,
    /// The path as it was known when each pose was added.
    online: Vec<PlanePose>,
    shared: Shared,
    tiles: Vec<Tile>,
    segments: Vec<Segment>,
    /// Number of poses with which the whole path is estimated again.
    next_whole: f64,
    /// Number of poses when the whole path was estimated last.
    estimated: usize,
    /// Other paths that odometry allows.
    filter: Arc<PathFilter>,
    revisits: Revisits,
    has_returned: bool,
    /// Whether the delay is estimated: on the way, readings of single passes would bend it.
    is_delay_estimated: bool,
    /// Covariance of the last pose when the whole path was estimated last.
    covariance_of_whole: Matrix3<f64>,
    covariance_of_last: Option<Matrix3<f64>>,
}

impl Smoother {
    /// A path that begins at this pose with the first link's reading.
    pub fn new(prior: Prior, start: PlanePose, links: Vec<Link>) -> Self {
        let is_valid =
            prior.is_valid() && start.iter().all(|value| value.is_finite()) && links.iter().all(Link::is_valid);
        let layout = prior.layout(&dead_reckoning(start, &links));
        let (poses, revisits) = (Vec::with_capacity(links.len()), Revisits::new(prior.field.lengthscale));
        let filter = Arc::new(PathFilter::new(&prior, start, 0));
        let mut smoother = Self {
            is_valid,
            prior,
            links: Arc::new(links),
            layout,
            poses,
            online: Vec::new(),
            shared: Shared::zeros(),
            tiles: Vec::new(),
            segments: Vec::new(),
            next_whole: 0.0,
            estimated: 0,
            filter,
            revisits,
            has_returned: false,
            is_delay_estimated: false,
            covariance_of_whole: Matrix3::zeros(),
            covariance_of_last: None,
        };
        if !smoother.links.is_empty() {
            smoother.poses.push(start);
            smoother.online.push(start);
        }
        smoother
    }

    /// Where the sensor was when it measured each reading so far.
    pub fn measured(&self) -> &[PlanePose] {
        &self.poses
    }

    /// Movements of odometry between taking a reading and its stamp, in the frame of odometry, given odometry's poses at the stamps.
    pub fn lags(&self, odometry: impl Iterator<Item = PlanePose>) -> impl Iterator<Item = Vector3<f64>> {
        odometry.zip(&*self.links).map(|(pose, link)| link.lag_at(&pose, &self.shared))
    }

    /// The path so far: the poses at the stamps of the readings.
    pub fn path(&self) -> Vec<PlanePose> {
        self.path_from(0)
    }

    fn path_from(&self, first: usize) -> Vec<PlanePose> {
        let measured = self.poses[first..].iter().zip(&self.links[first..]);
        measured.map(|(pose, link)| link.at_stamp(pose, &self.shared)).collect()
    }

    /// Each pose as it was estimated when its chunk was added.
    pub fn online(&self) -> &[PlanePose] {
        &self.online
    }

    /// The unknowns that the whole path shares.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// How much longer the movements along the path are than by odometry: the factor that fits best, by least squares. The field cannot tell
    /// it where its lengthscale is not known, so it is held near one then.
    pub fn length_ratio(&self) -> f64 {
        let along = |(index, link): (usize, &Link)| {
            let before = self.poses[index - 1];
            let moved = Rotation2::new(-before.z) * (self.poses[index] - before).xy();
            Vector2::new(moved.dot(&link.movement), link.movement.norm_squared())
        };
        let sums: Vector2<f64> = self.links.iter().enumerate().take(self.poses.len()).skip(1).map(along).sum();
        if sums.y > 0.0 { sums.x / sums.y } else { 1.0 }
    }

    /// Whether the path has come back to where it was: before, the field says little of it.
    pub fn has_returned(&self) -> bool {
        self.has_returned
    }

    /// Appends links, whose poses are added by [`extend`](Self::extend).
    pub fn push(&mut self, links: &[Link]) {
        self.is_valid &= links.iter().all(Link::is_valid);
        Arc::make_mut(&mut self.links).extend_from_slice(links);
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
        self.revisits = Revisits::new(prior.field.lengthscale);
        self.prior = prior;
        self.draw_again(0);
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
        if self.has_returned && self.segments.iter().any(|segment| segment.counts.contains(&false)) {
            // What was left out tells of the field where the path comes back: all of the path is estimated again.
            self.estimate_again(0)?;
            self.next_whole = 0.0;
        }
        self.is_delay_estimated = false;
        let before = self.poses.len();
        let first = if before == 1 { 0 } else { before };
        for link in &self.links[before..self.links.len().min(before + CHUNK)] {
            let last = self.poses[self.poses.len() - 1];
            self.poses.push(link.follow(&last, &self.shared));
        }
        let old = self.segments.len();
        self.cut(first);
        if first == 0 {
            self.revisits = self.revisits.emptied();
        }
        self.poses[first..].iter().for_each(|pose| self.revisits.push(pose));
        self.has_returned |= self.revisits.any();
        if !self.has_returned {
            // Nothing tells better than odometry yet: readings would bend the path towards the field that is likely before any reading.
            self.segments[old..].iter_mut().for_each(|segment| segment.counts.fill(false));
        }
        self.advance_filter();
        let window = self.window(old.saturating_sub(1));
        for (inflation, steps) in INFLATIONS {
            self.segments[old..].iter_mut().for_each(|segment| segment.inflation = inflation);
            self.iterate(&window, steps, STALE)?;
        }
        self.leave(&window);
        if self.poses.len() as f64 >= self.next_whole {
            self.iterate(&Window::whole(), WHOLE_STEPS, STALE)?;
            if self.proof_from(self.estimated)? < 0.0 {
                self.start_from_filter()?;
                self.estimate_again(WHOLE_STEPS)?;
            }
            self.estimated = self.poses.len();
            self.next_whole = GROWTH * self.poses.len() as f64;
            self.find_motions()?;
            self.covariance_of_whole = self.covariance_of_last_in(&Window::free())?;
            self.covariance_of_last = Some(self.covariance_of_whole);
        } else {
            self.covariance_of_last = Some(self.covariance_of_whole + self.covariance_of_last_in(&window)?);
        }
        self.online.truncate(first);
        self.online.extend(self.path_from(first));
        Ok(())
    }

    /// Draws other paths, up to the last pose.
    fn draw_again(&mut self, seed: u64) {
        if let Some(start) = self.path().first() {
            self.filter = Arc::new(PathFilter::new(&self.prior, *start, seed));
            self.advance_filter();
        }
    }

    /// Draws paths up to the last pose.
    fn advance_filter(&mut self) {
        let iron = self.shared.fixed_rows::<3>(IRON).into_owned();
        Arc::make_mut(&mut self.filter).advance(&self.prior, &self.links[..self.poses.len()], &iron);
    }

    /// Computes the gradient of a segment.
    fn descend(&mut self, number: usize) {
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
        let tile = &tiles[segments[number].tile];
        let potential = tile.potential();
        segments[number].descend(&problem, At { poses, shared, potential: &potential }, &tile.basis);
    }

    /// Whether the path came back to the place of each pose.
    fn returned(&self) -> Vec<bool> {
        (0..self.poses.len()).map(|index| self.revisits.is_revisited(index)).collect()
    }

    /// Estimates all poses together, with everything linearised where it is: once from the path as it is known now, and once from the best of
    /// the particle filter, since a place that was mistaken for another on the way may hold the path where it is. The path is kept that
    /// explains the readings better where one of both came back. Readings at places that were passed once are left out: there the field that is
    /// likely before any reading would bend the path, and nothing tells better than odometry. Where what is revisited contradicts even that path
    /// on the whole, it is odometry's.
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
        self.is_delay_estimated = true;
        self.advance_filter();
        let scale_deviation = self.prior.shared[SCALE];
        if !self.prior.is_lengthscale_known {
            self.prior.shared[SCALE] = HELD_SCALE.min(scale_deviation);
            self.adapt_lengthscale()?;
        }
        self.settle(LAST_STEPS)?;
        for seed in 1..=DRAWN {
            self.start_from_filter()?;
            self.settle(LAST_STEPS)?;
            if seed == DRAWN || self.proof_from(0)? >= 0.0 {
                break;
            }
            self.draw_again(seed);
        }
        self.keep_odometry_where_revisits_contradict()?;
        self.prior.shared[SCALE] = scale_deviation;
        self.find_motions()?;
        self.covariance_of_whole = self.covariance_of_last_in(&Window::free())?;
        self.covariance_of_last = Some(self.covariance_of_whole);
        Ok(())
    }

    /// Estimates the path from the best of the filter, and keeps that if it explains the readings better where one of both came back, and if
    /// what it revisits proves it: a path that bends away from everything contradicts nothing.
    fn start_from_filter(&mut self) -> Result<(), NotPositiveDefinite> {
        let proof = self.proof_from(0)?;
        let mut as_it_was = self.at(self.poses.clone());
        as_it_was.shared = self.shared;
        as_it_was.lay_out();
        let best = self.filter.best(&self.links);
        self.poses = best.iter().zip(&*self.links).map(|(pose, link)| link.measured(pose, &self.shared)).collect();
        let is_better = self
            .settle(LAST_STEPS)
            .and_then(|()| Ok(self.proof_from(0)? > proof.max(PROVEN) && self.is_better_than(&as_it_was)?));
        if !is_better.unwrap_or(false) {
            *self = as_it_was;
        }
        Ok(())
    }

    /// Takes the path of odometry where what this one revisits contradicts it on the whole.
    fn keep_odometry_where_revisits_contradict(&mut self) -> Result<(), NotPositiveDefinite> {
        if self.proof_from(0)? < 0.0 {
            *self = self.at(dead_reckoning(self.path()[0], &self.links[..self.poses.len()]));
            self.settle(0)?;
        }
        Ok(())
    }

    /// The evidence of all revisits from this pose on: how far the readings prove that the path came back to where it was. Below zero they
    /// contradict it.
    fn proof_from(&self, first: usize) -> Result<f64, NotPositiveDefinite> {
        let pieces = self.revisited_pieces().into_iter().filter(|piece| piece.start >= first);
        pieces.map(|piece| self.evidence(piece)).sum()
    }

    /// Whether this path explains the readings better at all places to which one of both paths came back.
    fn is_better_than(&self, other: &Self) -> Result<bool, NotPositiveDefinite> {
        let returned: Vec<bool> =
            self.returned().iter().zip(other.returned()).map(|(one, other)| *one || other).collect();
        Ok(self.cost_of(&self.prior, &returned)? < other.cost_of(&other.prior, &returned)?)
    }

    /// The objective of this path under another prior, with the most probable field, where these readings count.
    fn cost_of(&self, prior: &Prior, counting: &[bool]) -> Result<f64, NotPositiveDefinite> {
        let mut smoother = self.at(self.poses.clone());
        (smoother.prior, smoother.shared) = (prior.clone(), self.shared);
        smoother.lay_out();
        smoother.count(counting);
        smoother.estimate_fields()?;
        let shared = 0.5 * self.shared.component_div(&self.prior.shared).norm_squared();
        let fields = smoother.tiles.iter().map(|tile| tile.cost + 0.5 * linalg::squared_norm(&tile.field)).sum::<f64>();
        (0..smoother.segments.len()).for_each(|number| smoother.descend(number));
        Ok(shared + fields + smoother.segments.iter().map(|segment| segment.cost).sum::<f64>())
    }

    /// A smoother of the same readings at other poses, which nothing is known of.
    fn at(&self, poses: Vec<PlanePose>) -> Self {
        Self {
            prior: self.prior.clone(),
            links: Arc::clone(&self.links),
            filter: Arc::clone(&self.filter),
            poses,
            online: self.online.clone(),
            shared: Shared::zeros(),
            tiles: Vec::new(),
            segments: Vec::new(),
            revisits: self.revisits.emptied(),
            ..*self
        }
    }

    /// Looks for the most probable lengthscale. A path and a field that are stretched alike explain the readings as well as before, so that
    /// they tell the lengthscale at odometry's scale only.
    fn adapt_lengthscale(&mut self) -> Result<(), NotPositiveDefinite> {
        for _ in 0..ADAPTATIONS {
            self.settle(ADAPTATION_STEPS)?;
            let counting = self.returned();
            let cost = |logarithm: f64| {
                let mut prior = self.prior.clone();
                prior.field.lengthscale *= logarithm.exp();
                self.cost_of(&prior, &counting)
            };
            // Newton's step, by finite differences.
            let [shorter, same, longer] = [cost(-TRIED)?, cost(0.0)?, cost(TRIED)?];
            let (slope, curvature) = (0.5 * (longer - shorter), shorter + longer - 2.0 * same);
            let step = if curvature > 0.0 { -slope / curvature } else { -slope.signum() };
            let step = TRIED * step.clamp(-1.0, 1.0);
            self.prior.field.lengthscale *= step.exp();
            if step.abs() < SMALL_ADAPTATION {
                break;
            }
        }
        Ok(())
    }

    /// Makes steps of the whole path, in tiles around it, without the readings at places that were passed once.
    fn settle(&mut self, steps: usize) -> Result<(), NotPositiveDefinite> {
        self.lay_out();
        self.count(&self.returned());
        self.estimate_fields()?;
        self.iterate(&Window::free(), steps, STALE / 5.0)?;
        Ok(())
    }

    /// Makes steps of the whole path, in tiles around it, with all readings.
    fn estimate_again(&mut self, steps: usize) -> Result<(), NotPositiveDefinite> {
        self.lay_out();
        self.estimate_fields()?;
        self.iterate(&Window::whole(), steps, STALE)?;
        Ok(())
    }

    /// Counts these readings only.
    fn count(&mut self, counting: &[bool]) {
        for segment in &mut self.segments {
            segment.counts = counting[segment.first..segment.end].to_vec();
        }
    }

    /// Lays tiles around the path, and finds to which places it came back.
    fn lay_out(&mut self) {
        self.layout = self.prior.layout(&self.poses);
        self.tiles.clear();
        self.segments.clear();
        self.cut(0);
        self.revisits = self.revisits.emptied();
        self.poses.iter().for_each(|pose| self.revisits.push(pose));
        self.has_returned |= self.revisits.any();
    }

    /// Estimates all fields, given the poses: with zero fields, only odometry would constrain them.
    fn estimate_fields(&mut self) -> Result<(), NotPositiveDefinite> {
        (0..self.tiles.len()).try_for_each(|tile| self.estimate_field(tile))
    }

    /// Estimates the field of a tile with all poses given, without what is known of it.
    fn estimate_field(&mut self, index: usize) -> Result<(), NotPositiveDefinite> {
        let Self { prior, links, poses, tiles, segments, .. } = self;
        let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
        let tile = &mut tiles[index];
        tile.forget();
        tile.make_room();
        tile.field.fill(0.0);
        for segment in segments.iter_mut().filter(|segment| segment.tile == index) {
            let features = segment.weigh(&problem, &tile.basis, poses);
            segment.add_information(&features, 1.0, tile.information_mut());
        }
        let factor = tile.factor()?;
        tile.forget();
        self.improve_field(index, &factor);
        self.segments.iter_mut().filter(|segment| segment.tile == index).for_each(|segment| {
            segment.linearised.poses.clear();
        });
        Ok(())
    }

    /// Makes the field of a tile the most probable one with all poses given, where this is the factor of its information.
    fn improve_field(&mut self, index: usize, factor: &Matrix) {
        for number in 0..self.segments.len() {
            if self.segments[number].tile == index {
                self.descend(number);
            }
        }
        let mut step = self.descent_of_field(index, &self.segments);
        let field = &mut self.tiles[index].field;
        step.iter_mut().zip(&*field).for_each(|(step, field)| *step -= field);
        linalg::solve_from_cholesky(factor.as_ref(), &mut step);
        add_to(field, &step);
    }

    /// Makes segments of the poses from this one on: each of one tile.
    fn cut(&mut self, first: usize) {
        let mut first = first;
        while first < self.poses.len() {
            let index = self.layout.tile_of(&self.poses[first]);
            let rest = &self.poses[first..self.poses.len().min(first + CHUNK + 1)];
            let count = rest.iter().take_while(|pose| self.layout.tile_of(pose) == index).count();
            let tile = match self.tiles.iter().position(|tile| tile.index == index) {
                Some(tile) => tile,
                None => {
                    self.tiles.push(Tile::new(&self.prior.field, &self.layout, index, self.tiles.first()));
                    self.tiles.len() - 1
                }
            };
            self.segments.push(Segment::new(first, first + count, tile, 1.0));
            first += count;
        }
    }

    /// Makes steps until they are small, and returns the objective.
    fn iterate(&mut self, window: &Window, steps: usize, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let mut cost = self.evaluate(window, tolerance)?;
        let start = self.segments[window.first].first;
        for _ in 0..steps {
            if window.is_free() {
                self.find_motions()?;
            }
            let [step] = self.solve(window, [self.descent(window)])?;
            let largest = step.poses.iter().map(|pose| pose.xy().amax()).fold(1e-9, f64::max);
            let mut length = (LONGEST_STEP / largest).min(1.0);
            let before = (self.poses[start..].to_vec(), self.shared, self.fields());
            let (shorter, attempts) = SHORTER;
            let mut lowered = false;
            for _ in 0..attempts {
                self.shared = before.1 + step.shared * length;
                for ((pose, before), step) in self.poses[start..].iter_mut().zip(&before.0).zip(&step.poses) {
                    *pose = before + step * length;
                }
                for ((tile, field), step) in self.tiles.iter_mut().zip(&before.2).zip(&step.fields) {
                    let moved = field.iter().zip(step).map(|(field, step)| field + step * length);
                    tile.field.iter_mut().zip(moved).for_each(|(field, moved)| *field = moved);
                }
                let new = self.evaluate(window, tolerance)?;
                if new < cost + 1e-6 {
                    (cost, lowered) = (new, true);
                    break;
                }
                length *= shorter;
            }
            if !lowered {
                let (poses, shared, fields) = before;
                self.poses[start..].copy_from_slice(&poses);
                self.shared = shared;
                self.tiles.iter_mut().zip(fields).for_each(|(tile, field)| tile.field = field);
                return self.evaluate(window, tolerance);
            }
            if length * step.poses.iter().map(|pose| pose.amax()).fold(0.0, f64::max) < SMALL_STEP {
                return Ok(cost);
            }
        }
        Ok(cost)
    }

    fn fields(&self) -> Vec<Vec<f64>> {
        self.tiles.iter().map(|tile| tile.field.clone()).collect()
    }

    /// Linearises what is stale in the window, and computes the objective and its gradient there.
    fn evaluate(&mut self, window: &Window, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let mut stale = vec![Vec::new(); self.tiles.len()];
        for (index, segment) in self.segments.iter().enumerate().skip(window.first) {
            if segment.is_stale(&self.poses, tolerance) {
                stale[segment.tile].push(index);
            }
        }
        for (tile, stale) in stale.iter_mut().enumerate().filter(|(_, stale)| !stale.is_empty()) {
            if window.is_whole() {
                self.forget_if_most_are_stale(tile, stale);
            }
            self.linearise(window, tile, stale)?;
        }
        let mut cost = 0.5 * self.shared.component_div(&self.prior.shared).norm_squared();
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
        for (index, tile) in tiles.iter_mut().enumerate().filter(|(index, _)| window.concerns(*index)) {
            cost += tile.cost + window.cost(index, tile);
            if window.is_whole() {
                tile.outdated.fill(0.0);
            }
            let potential = tile.potential();
            let at = At { poses, shared, potential: &potential };
            for segment in segments[window.first..].iter_mut().filter(|segment| segment.tile == index) {
                segment.descend(&problem, at, &tile.basis);
                cost += segment.cost;
            }
        }
        Ok(cost)
    }

    /// To take back what a segment has told costs as much as to tell it: where most are stale, the tile begins anew with all of its segments.
    fn forget_if_most_are_stale(&mut self, tile: usize, stale: &mut Vec<usize>) {
        let all: Vec<usize> = (0..self.segments.len()).filter(|index| self.segments[*index].tile == tile).collect();
        if 2 * stale.len() >= all.len() {
            all.iter().for_each(|index| self.segments[*index].linearised = Linearised::default());
            self.tiles[tile].forget();
            *stale = all;
        }
    }

    /// Linearises these segments of a tile. In a window whose fields are free, the field first becomes the most probable one.
    fn linearise(&mut self, window: &Window, index: usize, stale: &[usize]) -> Result<(), NotPositiveDefinite> {
        let Self { prior, links, poses, tiles, segments, .. } = self;
        let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
        let tile = &mut tiles[index];
        tile.make_room();
        let mut kept = Vec::new();
        for &number in stale {
            let segment = &mut segments[number];
            if segment.is_linearised() {
                let features = segment.features(&tile.basis);
                let coupling = segment.coupling(&features);
                segment.add_information(&features, -1.0, tile.information_mut());
                add_eliminated(&coupling, -1.0, tile.eliminated_mut());
            }
            let features = segment.weigh(&problem, &tile.basis, poses);
            segment.add_information(&features, 1.0, tile.information_mut());
            if kept.len() < MOST_KEPT {
                kept.push(features);
            }
        }
        let factor = tile.factor()?;
        if window.is_free() {
            self.improve_field(index, &factor);
        }
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
        let tile = &mut tiles[index];
        let potential = tile.potential();
        let at = At { poses, shared, potential: &potential };
        let mut kept = kept.into_iter();
        for &number in stale {
            let segment = &mut segments[number];
            let features = kept.next().unwrap_or_else(|| segment.features(&tile.basis));
            segment.differentiate_determinant(&tile.basis, &features, factor.as_ref());
            let coupling = segment.linearise(&problem, at, &tile.basis, &features)?;
            add_eliminated(&coupling, 1.0, tile.eliminated_mut());
        }
        Ok(())
    }

    /// No change of any field.
    fn no_fields(&self) -> Vec<Vec<f64>> {
        self.tiles.iter().map(|tile| vec![0.0; tile.field.len()]).collect()
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

fn add_to(target: &mut [f64], values: &[f64]) {
    target.iter_mut().zip(values).for_each(|(target, value)| *target += value);
}

#[cfg(test)]
mod tests;
