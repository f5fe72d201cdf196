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
//! Gauss-Newton: in a [window] of the last metres against the map so far, and for the whole path whenever it has become longer by
//! a tenth, with the normal equations solved by [elimination].

mod covariance;
mod elimination;
mod window;

use nalgebra::Matrix3;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg;

use super::chain::{DRIFT, Link, PlanePose, SCALE, Shared};
use super::prior::Prior;
use super::segment::{At, Linearised, Problem, Segment};
use super::tile::{Layout, Tile, add_lower};
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

/// How often the lengthscale is adapted at the end, where it is not known.
const ADAPTATIONS: usize = 3;

/// Steps with each of these lengthscales.
const ADAPTATION_STEPS: usize = 2;

/// Farther from odometry than this, in lengthscales, no optimum is reached from there.
const REACH: f64 = 10.0;

/// A path has returned where it is nearer to a place than the first of these, and was there before more than the second, in lengthscales.
const RETURN: (f64, f64) = (0.5, 5.0);

/// Largest standard deviation of scale and drift of odometry while the path has not returned: a single pass cannot tell a turn or a stretch of
/// the field from one of the path.
const BEFORE_RETURN: f64 = 1e-3;

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

/// Most segments of a tile whose features are kept while it is linearised: more would take too much memory.
const MOST_KEPT: usize = 40;

/// Factor of a step after one that did not lower the objective, and most of them.
const SHORTER: (f64, usize) = (0.4, 5);

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
    /// Number of poses with which the whole path is estimated again.
    next_whole: f64,
    has_returned: bool,
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
            next_whole: 0.0,
            has_returned: false,
            covariance_of_whole: Matrix3::zeros(),
            covariance_of_last: None,
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

    /// Whether the path has come back to where it was: before, the field says little of it.
    pub fn has_returned(&self) -> bool {
        self.has_returned
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
        self.has_returned |= self.returns(first);
        let mut window = self.window(old.saturating_sub(1));
        for (inflation, steps) in INFLATIONS {
            self.segments[old..].iter_mut().for_each(|segment| segment.inflation = inflation);
            self.iterate(&mut window, steps, STALE)?;
        }
        self.leave(&window);
        if self.poses.len() as f64 >= self.next_whole {
            self.iterate(&mut Window::whole(), WHOLE_STEPS, STALE)?;
            self.next_whole = GROWTH * self.poses.len() as f64;
            self.covariance_of_whole = self.covariance_of_last_in(&Window::whole())?;
            self.covariance_of_last = Some(self.covariance_of_whole);
        } else {
            self.covariance_of_last = Some(self.covariance_of_whole + self.covariance_of_last_in(&window)?);
        }
        self.online.truncate(first);
        self.online.extend_from_slice(&self.poses[first..]);
        Ok(())
    }

    /// Whether one of the poses from this one on is where the path was before.
    fn returns(&self, first: usize) -> bool {
        let (near, before) = RETURN;
        let [near, before] = [near, before].map(|lengthscales| lengthscales * self.prior.field.lengthscale);
        self.poses.iter().enumerate().skip(first).any(|(index, pose)| {
            let mut travelled = 0.0;
            let mut last = pose;
            self.poses[..index].iter().rev().any(|earlier| {
                travelled += (earlier - last).xy().norm();
                last = earlier;
                travelled > before && (earlier - pose).xy().norm() < near
            })
        })
    }

    /// Standard deviations of what is shared.
    fn deviations(&self) -> Shared {
        let mut deviations = self.prior.shared;
        if !self.has_returned {
            deviations[SCALE] = deviations[SCALE].min(BEFORE_RETURN);
            deviations[DRIFT] = deviations[DRIFT].min(BEFORE_RETURN);
        }
        deviations
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
        let cost =
            if self.prior.lengthscale_deviation > 0.0 { self.adapt_lengthscale() } else { self.settle(LAST_STEPS) }?;
        if let Some(mut other) = self.starting_over()
            && other.settle(LAST_STEPS).is_ok_and(|other| other < cost)
        {
            *self = other;
        }
        self.covariance_of_whole = self.covariance_of_last_in(&Window::whole())?;
        self.covariance_of_last = Some(self.covariance_of_whole);
        Ok(())
    }

    /// The same path as odometry has it; none where that is too far away.
    fn starting_over(&self) -> Option<Self> {
        let poses = dead_reckoning(self.poses[0], &self.links[..self.poses.len()]);
        let moved = |(pose, before): (&PlanePose, &PlanePose)| (pose - before).xy().norm();
        let farthest = self.poses.iter().zip(&poses).map(moved).fold(0.0, f64::max);
        (farthest < REACH * self.prior.field.lengthscale).then(|| Self {
            prior: self.prior.clone(),
            links: self.links.clone(),
            poses,
            online: self.online.clone(),
            shared: Shared::zeros(),
            tiles: Vec::new(),
            segments: Vec::new(),
            ..*self
        })
    }

    /// Adapts the lengthscale, and returns the objective. A path and a lengthscale that are stretched alike explain the readings as well as
    /// before, so that at the optimum the priors of odometry's scale and of the lengthscale pull equally at that stretch.
    fn adapt_lengthscale(&mut self) -> Result<f64, NotPositiveDefinite> {
        let [scale, deviation] = [self.prior.shared[SCALE], self.prior.lengthscale_deviation];
        let pull = |logarithm: f64, shared: &Shared| logarithm / deviation.powi(2) + shared[SCALE] / scale.powi(2);
        let given = self.prior.field.lengthscale;
        let mut cost = self.settle(LAST_STEPS)?;
        let (mut before, mut logarithm) = ((0.0, pull(0.0, &self.shared)), -self.shared[SCALE]);
        for _ in 0..ADAPTATIONS {
            self.prior.field.lengthscale = given * logarithm.exp();
            cost = self.settle(ADAPTATION_STEPS)?;
            let now = (logarithm, pull(logarithm, &self.shared));
            let slope = (now.1 - before.1) / (now.0 - before.0);
            // Newton's step; where tiles that are laid anew hide the slope, the scale is tried as before.
            let step = if slope > 0.0 { -now.1 / slope } else { -self.shared[SCALE] };
            (before, logarithm) = (now, logarithm + step.clamp(-deviation, deviation));
        }
        if self.shared[SCALE].abs() > MOST_SCALE * scale {
            // Odometry is not as wrong as that: the field is smoother than its prior, which stretches the path.
            self.prior.shared[SCALE] = HELD_SCALE;
            cost = self.settle(LAST_STEPS)?;
        }
        Ok(cost)
    }

    /// Makes steps of the whole path, in tiles around it, and returns the objective.
    fn settle(&mut self, steps: usize) -> Result<f64, NotPositiveDefinite> {
        self.layout = self.prior.layout(&self.poses);
        self.tiles.clear();
        self.segments.clear();
        self.cut(0)?;
        let mut window = Window::whole();
        // With a zero field, only odometry would constrain the poses.
        for tile in 0..self.tiles.len() {
            self.estimate_field(tile)?;
        }
        self.iterate(&mut window, steps, STALE / 5.0)
    }

    /// Estimates the field of a tile with all poses given, without what is known of it.
    fn estimate_field(&mut self, tile: usize) -> Result<(), NotPositiveDefinite> {
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { prior: &prior.field, noise: prior.noise, odometry: &prior.odometry, links };
        let (number, tile) = (tile, &mut tiles[tile]);
        tile.forget();
        tile.field.fill(0.0);
        let potential = tile.potential();
        for segment in segments.iter_mut().filter(|segment| segment.tile == number) {
            let features = segment.weigh(&problem, &tile.basis, poses);
            add_lower(&mut tile.information, 1.0, &segment.information(&features));
            segment.descend(&problem, At { poses, shared, potential: &potential }, &tile.basis);
            segment.linearised = Linearised::default();
        }
        let factor = tile.factor()?;
        tile.forget();
        let mut field = self.descent_of_field(number, &self.segments);
        linalg::solve_from_cholesky(factor.as_ref(), &mut field);
        self.tiles[number].field = field;
        Ok(())
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
                    self.tiles.push(Tile::new(&self.prior.field, &self.layout, index, self.tiles.first())?);
                    self.tiles.len() - 1
                }
            };
            self.segments.push(Segment::new(first, first + count, tile, 1.0));
            first += count;
        }
        Ok(())
    }

    /// Makes steps until they are small, and returns the objective.
    fn iterate(&mut self, window: &mut Window, steps: usize, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
        let mut cost = self.evaluate(window, tolerance)?;
        let start = self.segments[window.first].first;
        for _ in 0..steps {
            let step = self.solve(&self.reduce(window)?, &self.descent(window));
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
    fn evaluate(&mut self, window: &mut Window, tolerance: f64) -> Result<f64, NotPositiveDefinite> {
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
            self.linearise(tile, stale, window)?;
        }
        let mut cost = 0.5 * self.shared.component_div(&self.deviations()).norm_squared();
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { prior: &prior.field, noise: prior.noise, odometry: &prior.odometry, links };
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

    /// Linearises these segments of a tile.
    fn linearise(&mut self, tile: usize, stale: &[usize], window: &mut Window) -> Result<(), NotPositiveDefinite> {
        let Self { prior, links, poses, shared, tiles, segments, .. } = self;
        let problem = Problem { prior: &prior.field, noise: prior.noise, odometry: &prior.odometry, links };
        let (number, tile) = (tile, &mut tiles[tile]);
        let mut kept = Vec::new();
        for &index in stale {
            let segment = &mut segments[index];
            if segment.is_linearised() {
                let features = segment.features(&tile.basis);
                let block = segment.block(&features);
                add_lower(&mut tile.information, -1.0, &segment.information(&features));
                add_lower(&mut tile.remainder, -1.0, &block);
                window.add(number, -1.0, &block);
            }
            let features = segment.weigh(&problem, &tile.basis, poses);
            add_lower(&mut tile.information, 1.0, &segment.information(&features));
            if kept.len() < MOST_KEPT {
                kept.push(features);
            }
        }
        let factor = tile.factor()?;
        let potential = tile.potential();
        let at = At { poses, shared, potential: &potential };
        let mut kept = kept.into_iter();
        for &index in stale {
            let segment = &mut segments[index];
            let covariances = tile.basis.covariances(segment.poses(poses));
            let features = kept.next().unwrap_or_else(|| tile.basis.features(&covariances.axes));
            segment.differentiate_determinant(&tile.basis, &features, &covariances, factor.as_ref());
            let block = segment.linearise(&problem, at, &features, &covariances)?;
            add_lower(&mut tile.remainder, 1.0, &block);
            window.add(number, 1.0, &block);
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
