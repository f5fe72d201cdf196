//! A long way round is closed by search.
//!
//! Where the path is known too badly for the optimum next to it to be the right one, the particle filter of the localizer looks for its last
//! part in the field that was known before. Only a place that is proven by its rule is believed, that is not farther from odometry than
//! that may be, and from which the whole path explains the readings better.

use std::ops::Range;
use std::sync::Arc;

use nalgebra::{Rotation3, Vector2, Vector3};
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg;

use super::evidence::LocalField;
use super::window::Window;
use super::{LAST_STEPS, STALE, Smoother};
use crate::config;
use crate::particle_filter::lookup::{MapLookup, NODES_PER_LENGTHSCALE, UNKNOWN_ABOVE};
use crate::particle_filter::{MotionStep, ParticleFilter, Start, State};
use crate::slam::chain::{DRIFT, IRON, MEAN, PlanePose, wrapped};

/// The path is searched for where its standard deviation exceeds this, in lengthscales: nearer, the optimum next to it is the right one.
const UNCERTAIN: f64 = 1.0;

/// Number of standard deviations within which the path is searched for.
const WITHIN: f64 = 3.0;

/// A place that is found nearer than this is where the path is already, in lengthscales.
const SAME: f64 = 0.75;

/// Evidence, as a logarithm, from which a revisit is proven, and by which a path has to explain the readings better.
const PROVEN: f64 = 10.0;

/// Least length of path that is looked for, in metres: the filter needs some metres for a proof.
const PIECE: f64 = 10.0;

/// Most particles.
const PARTICLES: usize = 5000;

/// Where the path may be by odometry.
#[derive(Clone, Copy, Debug)]
struct Reach {
    pose: PlanePose,
    /// Standard deviation of the place, in metres.
    deviation: f64,
    /// Standard deviation of the heading, in radians.
    heading_deviation: f64,
}

impl Smoother {
    /// Looks for the last poses, with all that were not searched yet, in the field before them, and moves the path to where they are found.
    pub(super) fn close_long_way_round(&mut self) -> Result<(), NotPositiveDefinite> {
        let before = std::mem::replace(&mut self.searched, self.poses.len());
        let searched = before.min(self.revisits.start_of_last(PIECE))..self.poses.len();
        if before == self.poses.len() || searched.start == 0 {
            return Ok(());
        }
        let known = self.last_known_before(searched.start)?;
        let reaches = self.reaches(known, searched.clone());
        let deviation = reaches.iter().map(|reach| reach.deviation).fold(0.0, f64::max);
        if deviation < UNCERTAIN * self.prior.field.lengthscale {
            return Ok(());
        }
        let Some(lookup) = self.lookup(&searched, WITHIN * deviation)? else { return Ok(()) };
        let Some((index, found)) = self.found(lookup, searched.start, &reaches) else { return Ok(()) };
        // What segments tell takes most of the memory: this path is linearised again if it is kept.
        self.forget();
        match self.better_with(self.bent(known, index, found))? {
            Some(better) => *self = better,
            None => drop(self.evaluate(&Window::whole(), STALE)?),
        }
        Ok(())
    }

    /// The path that is estimated from these poses, if it explains the readings better. Both are estimated alike, since one more step must not
    /// decide, and one after the other.
    fn better_with(&self, bent: Vec<PlanePose>) -> Result<Option<Self>, NotPositiveDefinite> {
        let estimated = |poses| {
            let mut path = self.at(poses);
            path.estimate_again(LAST_STEPS).is_ok().then_some(path)
        };
        let cost_of = |path: &Self| path.cost_of(&self.prior, &vec![true; self.poses.len()]);
        let Some(same) = estimated(self.poses.clone()).map(|path| cost_of(&path)) else { return Ok(None) };
        let Some(bent) = estimated(bent) else { return Ok(None) };
        Ok((cost_of(&bent)? + PROVEN < same?).then_some(bent))
    }

    /// The pose among these, from the first on, that the particle filter proves to be elsewhere than the path is: that with which readings
    /// agree best, and where it was found.
    fn found(&self, lookup: MapLookup, first: usize, reaches: &[Reach]) -> Option<(usize, PlanePose)> {
        let settings = config::Localization { max_particles: PARTICLES, ..config::Localization::default() };
        let Reach { pose, deviation, heading_deviation } = reaches[0];
        let start = Start::At { place: [pose.x, pose.y], heading: 0.0, deviation, heading_deviation };
        let mut filter = ParticleFilter::new(&settings, Arc::new(lookup), &start);
        let iron = self.shared.fixed_rows::<3>(IRON);
        let mut best: Option<(f64, usize, PlanePose)> = None;
        for (step, pair) in reaches.windows(2).enumerate() {
            let (before, Reach { pose, deviation, heading_deviation }) = (pair[0].pose, pair[1]);
            let index = first + 1 + step;
            let link = &self.links[index];
            let field = Rotation3::from_axis_angle(&Vector3::z_axis(), pose.z) * (link.field - link.tilt * iron);
            let movement = (pose - before).xy().into();
            let (estimate, state, _) = filter.update(&MotionStep {
                movement,
                rotation: pose.z - before.z,
                heading: pose.z,
                field: field.into(),
            });
            if state != State::Tracking {
                continue;
            }
            let found = PlanePose::new(estimate.place[0], estimate.place[1], pose.z + estimate.turn);
            let is_within_reach = (found - pose).xy().norm() < WITHIN * deviation
                && wrapped(estimate.turn).abs() < WITHIN * heading_deviation;
            let is_same = (found - self.poses[index]).xy().norm() < SAME * self.prior.field.lengthscale;
            let is_best = best.is_none_or(|(evidence, ..)| estimate.evidence > evidence);
            if is_within_reach && !is_same && is_best {
                best = Some((estimate.evidence, index, found));
            }
        }
        best.map(|(_, index, found)| (index, found))
    }

    /// The last pose before this one whose place is known: by a revisit that is proven, or because the path begins there.
    fn last_known_before(&self, pose: usize) -> Result<usize, NotPositiveDefinite> {
        for piece in self.revisited_pieces().into_iter().rev().filter(|piece| piece.end <= pose) {
            if self.evidence(piece.clone())? > PROVEN {
                return Ok(piece.end - 1);
            }
        }
        Ok(0)
    }

    /// Where the path may be by odometry at these poses, if it was known at the pose `from`.
    fn reaches(&self, from: usize, poses: Range<usize>) -> Vec<Reach> {
        let noise = &self.prior.odometry;
        // A drift that was estimated along a path is known to its heading's noise over that length.
        let known = self.revisits.along(from).sqrt();
        let drift = self.prior.shared[DRIFT].min(noise.heading / known.max(f64::MIN_POSITIVE));
        let mut pose = self.poses[from];
        let mut reaches = Vec::with_capacity(poses.len());
        // Sums over the steps of w, w p and w |p|^2, with p where they begin and w their variance of the heading; and of l and l p.
        let (mut variance, mut weighted, mut squares) = (0.0, Vector2::zeros(), 0.0);
        let (mut length, mut moment, mut place) = (0.0, Vector2::zeros(), 0.0);
        for index in from + 1..poses.end {
            let link = &self.links[index];
            let step = link.movement.norm();
            let variances = noise.variances(step, link.turn);
            (variance, length, place) = (variance + variances.z, length + step, place + variances.x + variances.y);
            weighted += pose.xy() * variances.z;
            squares += pose.xy().norm_squared() * variances.z;
            moment += pose.xy() * step;
            pose = link.follow(&pose, &self.shared);
            let now = pose.xy();
            let by_noise = squares - 2.0 * now.dot(&weighted) + now.norm_squared() * variance;
            let by_drift = (now * length - moment).norm() * drift;
            if index >= poses.start {
                let deviation = (by_noise.max(0.0) + by_drift * by_drift + place).sqrt();
                let heading_deviation = (variance + (drift * length).powi(2)).sqrt();
                reaches.push(Reach { pose, deviation, heading_deviation });
            }
        }
        reaches
    }

    /// The field that was known before these poses, within reach of them.
    fn lookup(&self, searched: &Range<usize>, farthest: f64) -> Result<Option<MapLookup>, NotPositiveDefinite> {
        let before = 0..self.revisits.end_before(searched.start);
        let is_near =
            |pose: &PlanePose| self.poses[searched.clone()].iter().any(|other| (other - pose).xy().norm() < farthest);
        let places: Vec<[f64; 2]> =
            self.poses[before.clone()].iter().filter(|pose| is_near(pose)).map(|pose| [pose.x, pose.y]).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let lengthscale = self.prior.field.lengthscale;
        let predict = |places: &[[f64; 2]]| match self.field_around(places.iter().copied(), before.clone()) {
            Ok(field) => self.predictions(&field, places),
            Err(_) => vec![f32::NAN; 6 * places.len()],
        };
        let lookup =
            MapLookup::fill(&places, lengthscale, lengthscale / NODES_PER_LENGTHSCALE, 3, self.prior.noise, predict);
        Ok((!lookup.known.is_empty()).then_some(lookup))
    }

    /// Mean and variance of each axis at these places, or NaN where little is known.
    fn predictions(&self, field: &LocalField, places: &[[f64; 2]]) -> Vec<f32> {
        let LocalField { basis, factor, mean } = field;
        let poses: Vec<PlanePose> = places.iter().map(|[x, y]| PlanePose::new(*x, *y, 0.0)).collect();
        let features = basis.features(&poses);
        let mut known = linalg::copied(features.as_ref());
        linalg::solve_lower(factor.as_ref(), known.as_mut());
        let prior = self.prior.field.variances();
        let mean_field = self.shared.fixed_rows::<3>(MEAN);
        let axis = |column: usize| {
            let of = features.col_as_slice(column);
            let variance =
                prior[column % 3] - linalg::squared_norm(of) + linalg::squared_norm(known.col_as_slice(column));
            [mean_field[column % 3] + linalg::dot(of, mean), variance]
        };
        let node = |index: usize| {
            let axes: [[f64; 2]; 3] = std::array::from_fn(|of| axis(3 * index + of));
            let is_known = axes.iter().zip(prior).all(|([_, variance], prior)| *variance < UNKNOWN_ABOVE * prior);
            let numbers = axes.map(|[mean, _]| mean).into_iter().chain(axes.map(|[_, variance]| variance));
            numbers.map(move |number| if is_known { number as f32 } else { f32::NAN })
        };
        (0..places.len()).flat_map(node).collect()
    }

    /// The path that comes to the pose that was found: from the pose that is known on, its heading drifts, and what is left is shifted.
    fn bent(&self, from: usize, to: usize, found: PlanePose) -> Vec<PlanePose> {
        let along = |index: usize| self.revisits.along(index) - self.revisits.along(from);
        let fraction = |index: usize| (along(index) / along(to)).min(1.0);
        let follow = |turn: f64| {
            let mut path = self.poses[..=from].to_vec();
            for index in from + 1..self.poses.len() {
                let mut pose = self.links[index].follow(&path[index - 1], &self.shared);
                pose.z += turn * (fraction(index) - fraction(index - 1));
                path.push(pose);
            }
            path
        };
        let mut path = follow(wrapped(found.z - follow(0.0)[to].z));
        let left = (found - path[to]).xy();
        for (index, pose) in path.iter_mut().enumerate().skip(from + 1) {
            *pose += (left * fraction(index)).push(0.0);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Rotation2};

    use super::*;
    use crate::slam::{FieldPrior, Link, Prior, Shared};

    /// Side of a square, in metres, and poses of a round.
    const SIDE: f64 = 8.0;
    const ROUND: usize = 320;

    /// Drift of odometry, in radians per metre.
    const DRIFTING: f64 = 0.02;

    /// A field that varies over about a metre and is the same nowhere along the path.
    fn field(x: f64, y: f64) -> Vector3<f64> {
        let wave = |i: f64| 6.0 * (1.3 * (i * x + (2.0 - i) * y) + i * i).sin() + 4.0 * (0.9 * (y - i * x) + i).cos();
        Vector3::new(20.0 + wave(0.4), wave(1.1), wave(1.7) - 45.0)
    }

    /// Round a square, and along its first side again, 10 cm a step.
    fn truth() -> Vec<PlanePose> {
        let pose = |step: usize| {
            let along = 0.1 * step as f64 % (4.0 * SIDE);
            let (side, rest) = ((along / SIDE) as usize, along % SIDE);
            let corner = [[0.0, 0.0], [SIDE, 0.0], [SIDE, SIDE], [0.0, SIDE]][side];
            let heading = side as f64 * std::f64::consts::FRAC_PI_2;
            PlanePose::new(corner[0] + rest * heading.cos(), corner[1] + rest * heading.sin(), heading)
        };
        (0..420).map(pose).collect()
    }

    /// The smoothed path, and how far its end is from where it was a round before: by odometry, whose heading drifts, and as it is found. From
    /// the second round on, the field is that of places so far away, in metres.
    fn round_and_round(away: f64) -> (Smoother, [f64; 2]) {
        let truth = truth();
        let link = |(index, pose): (usize, &PlanePose)| {
            let before = index.checked_sub(1).map_or(pose, |before| &truth[before]);
            let movement = Rotation2::new(-before.z) * (pose.xy() - before.xy());
            let turn = wrapped(pose.z - before.z) - DRIFTING * movement.norm();
            let levelled = Rotation3::from_axis_angle(&Vector3::z_axis(), -pose.z);
            let field = levelled * field(pose.x + if index < ROUND { 0.0 } else { away }, pose.y);
            Link { movement, turn, field, tilt: Matrix3::identity() }
        };
        let links: Vec<Link> = truth.iter().enumerate().map(link).collect();
        let prior = FieldPrior { variance_below: 60.0, variance_above: 0.0, lengthscale: 0.9 };
        let mut odometry = vec![truth[0]];
        links[1..].iter().for_each(|link| odometry.push(link.follow(&odometry[odometry.len() - 1], &Shared::zeros())));
        let mut smoother = Smoother::new(Prior::new(prior, 4.0), truth[0], links);
        smoother.run().unwrap();
        let after_a_round = |path: &[PlanePose]| (path[truth.len() - 1] - path[truth.len() - 1 - ROUND]).xy().norm();
        let off = [after_a_round(&odometry), after_a_round(smoother.poses())];
        (smoother, off)
    }

    #[test]
    fn a_long_way_round_is_closed_however_far_odometry_is_off() {
        let (smoother, [odometry, found]) = round_and_round(0.0);
        assert!(odometry > 2.5 && found < 0.1, "{odometry} {found}");
        let revisits = smoother.revisits().unwrap();
        assert!(revisits.iter().any(|revisit| revisit.way_round > 30.0 && revisit.evidence > PROVEN), "{revisits:?}");
    }

    #[test]
    fn a_place_whose_field_is_another_one_is_not_taken_for_where_the_path_was() {
        let (smoother, [odometry, found]) = round_and_round(50.0);
        let revisits = smoother.revisits().unwrap();
        assert!(odometry > 2.5 && found > 0.9, "{odometry} {found}");
        assert!(revisits.iter().all(|revisit| revisit.evidence < PROVEN), "{revisits:?}");
    }
}
