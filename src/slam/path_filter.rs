//! A particle filter of whole paths.
//!
//! Where odometry is farther off than a lengthscale when the path comes back, the optimum next to it is a wrong one. So paths are drawn from
//! odometry and weighed by their readings, with the field marginalised: a Rao-Blackwellised particle filter (Doucet et al. 2000; for the
//! magnetic field Kok and Solin 2018). The weight is the evidence of revisits: how much likelier a few metres of readings are given the nearest
//! ones of an earlier time on the same path than without those. Both likelihoods are Vecchia's (1988), given the last readings before. What a
//! single pass says is left out, as in the smoother: next to a wall of steel it would bend the path. The best path is where the smoother
//! starts from.

use std::ops::Range;
use std::sync::Arc;

use nalgebra::{Rotation3, Vector2, Vector3};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use streaming_gp::{Axis, FieldPlace, FieldPlaces, NotPositiveDefinite, VectorField, linalg};

use super::chain::{DRIFT, Link, MEAN, PlanePose, Shared};
use super::prior::Prior;
use crate::field::exact_evidence::covariance;
use crate::particle_filter::{normal, systematic};

/// Number of paths.
const PARTICLES: usize = 600;

/// Number of poses that are drawn before paths are weighed: a few metres.
const PIECE: usize = 40;

/// Distance between the readings that count, in lengthscales.
const SPACING: f64 = 0.25;

/// On how many readings those of a piece are conditioned: the last ones before, and the nearest ones of an earlier time.
const LAST: usize = 6;
const NEAREST: usize = 18;

/// Earlier readings are near up to this distance, in lengthscales.
const NEAR: f64 = 1.5;

/// Paths are resampled when fewer are effective than this share.
const RESAMPLED: f64 = 0.5;

/// Paths that are drawn from odometry, and how likely their readings are.
#[derive(Clone, Debug)]
pub(super) struct PathFilter {
    particles: Vec<Particle>,
    kernel: VectorField,
    /// Number of poses that are drawn.
    poses: usize,
    random: ChaCha8Rng,
}

/// A path.
#[derive(Clone, Debug)]
struct Particle {
    /// Drift of the heading of odometry, in radians per metre.
    drift: f64,
    last: PlanePose,
    /// Its pieces, which paths with the same past share.
    pieces: Vec<Arc<Piece>>,
    /// Evidence of its revisits, as a logarithm.
    evidence: f64,
    /// Logarithm of its weight since paths were resampled.
    log_weight: f64,
}

/// A few metres of a path.
#[derive(Debug)]
struct Piece {
    readings: Vec<Reading>,
    /// A circle around it.
    middle: Vector2<f64>,
    radius: f64,
}

/// A reading that counts: which one, and its pose.
#[derive(Clone, Copy, Debug)]
struct Reading {
    index: usize,
    pose: PlanePose,
}

impl PathFilter {
    /// Paths that begin at this pose; each seed draws others.
    pub fn new(prior: &Prior, start: PlanePose, seed: u64) -> Self {
        let field = &prior.field;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let drift = prior.shared[DRIFT];
        let particle = |_| Particle {
            drift: drift * normal(&mut random),
            last: start,
            pieces: Vec::new(),
            evidence: 0.0,
            log_weight: 0.0,
        };
        Self {
            particles: (0..PARTICLES).map(particle).collect(),
            kernel: VectorField {
                constant: prior.shared[MEAN].powi(2),
                variance: field.variance_below,
                variance_above: (field.variance_above > 0.0).then_some(field.variance_above),
                lengthscale: field.lengthscale,
                plane: 0.0,
                hard_iron: 0.0,
                speed_bias: 0.0,
                bias_covariance: None,
            },
            poses: 0,
            random,
        }
    }

    /// Draws the poses of the links that are new, for a sensor with this hard iron along its axes, and weighs the paths.
    pub fn advance(&mut self, prior: &Prior, links: &[Link], iron: &Vector3<f64>) {
        while self.poses < links.len() {
            let piece = self.poses..links.len().min(self.poses + PIECE);
            self.draw(prior, links, piece.clone());
            let Self { particles, kernel, .. } = self;
            for particle in particles {
                let evidence = particle.evidence_of_last(kernel, prior, links, iron);
                particle.evidence += evidence;
                particle.log_weight += evidence;
            }
            self.resample();
            self.poses = piece.end;
        }
    }

    /// Extends each path by a piece.
    fn draw(&mut self, prior: &Prior, links: &[Link], piece: Range<usize>) {
        let spacing = SPACING * prior.field.lengthscale;
        for particle in &mut self.particles {
            let (mut readings, mut shared, mut since) = (Vec::new(), Shared::zeros(), 0.0);
            shared[DRIFT] = particle.drift;
            for index in piece.clone() {
                let link = &links[index];
                let length = link.movement.norm();
                if index > 0 {
                    particle.last = noisy(prior, link, &particle.last, &shared, &mut self.random);
                }
                since += length;
                if readings.is_empty() || since >= spacing {
                    readings.push(Reading { index, pose: particle.last });
                    since = 0.0;
                }
            }
            particle.pieces.push(Arc::new(Piece::new(readings)));
        }
    }

    fn resample(&mut self) {
        let logarithms = || self.particles.iter().map(|particle| particle.log_weight);
        let most = logarithms().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logarithms().map(|logarithm| (logarithm - most).exp()).sum();
        let weights: Vec<f64> = logarithms().map(|logarithm| (logarithm - most).exp() / sum).collect();
        let effective = 1.0 / linalg::squared_norm(&weights);
        if effective < RESAMPLED * PARTICLES as f64 {
            let start = self.random.random();
            let drawn = |index: usize| Particle { log_weight: 0.0, ..self.particles[index].clone() };
            self.particles = systematic(&weights, PARTICLES, start).map(drawn).collect();
        }
    }

    /// The path whose revisits have the greatest evidence.
    pub fn best(&self, links: &[Link]) -> Vec<PlanePose> {
        let best = self.particles.iter().max_by(|one, other| one.evidence.total_cmp(&other.evidence));
        best.map(|particle| particle.path(&links[..self.poses])).unwrap_or_default()
    }
}

impl Particle {
    /// Evidence of the last piece where the path was there before, as a logarithm: of its readings given the nearest earlier ones, over that
    /// without them.
    fn evidence_of_last(&self, kernel: &VectorField, prior: &Prior, links: &[Link], iron: &Vector3<f64>) -> f64 {
        let Some((piece, before)) = self.pieces.split_last() else { return 0.0 };
        let latest: Vec<Reading> =
            before.iter().rev().flat_map(|piece| piece.readings.iter().rev()).take(LAST).copied().collect();
        let nearest = nearest(before, &latest, piece, NEAR * prior.field.lengthscale);
        if nearest.is_empty() {
            return 0.0;
        }
        let log_likelihood = |given: &[Reading]| {
            let readings = || given.iter().chain(&piece.readings);
            let rows = |Reading { pose, .. }: &Reading| {
                Axis::ALL.map(|axis| FieldPlace::Field { axis, position: [pose.x, pose.y, 0.0] })
            };
            let places: FieldPlaces = readings().flat_map(rows).collect();
            let field = |Reading { index, pose }: &Reading| {
                let link = &links[*index];
                (Rotation3::from_axis_angle(&Vector3::z_axis(), pose.z) * (link.field - link.tilt * iron)).data.0[0]
            };
            let mut values: Vec<f64> = readings().flat_map(field).collect();
            let mut covariance = covariance(&places, kernel);
            (0..values.len()).for_each(|row| covariance[(row, row)] += prior.noise);
            let factor = linalg::cholesky(covariance)?;
            linalg::solve_lower_vector(factor.as_ref(), &mut values);
            let density = |row: usize| -0.5 * values[row].powi(2) - factor[(row, row)].ln();
            Ok::<f64, NotPositiveDefinite>((3 * given.len()..values.len()).map(density).sum())
        };
        let with = log_likelihood(&[nearest, latest.clone()].concat());
        with.and_then(|with| Ok(with - log_likelihood(&latest)?)).unwrap_or(f64::NEG_INFINITY)
    }

    /// All its poses.
    fn path(&self, links: &[Link]) -> Vec<PlanePose> {
        let mut readings = self.pieces.iter().flat_map(|piece| &piece.readings).peekable();
        let mut shared = Shared::zeros();
        shared[DRIFT] = self.drift;
        let mut last = PlanePose::zeros();
        let pose = |(index, link): (usize, &Link)| {
            last = match readings.next_if(|reading| reading.index == index) {
                Some(reading) => reading.pose,
                None => link.follow(&last, &shared),
            };
            last
        };
        links.iter().enumerate().map(pose).collect()
    }
}

impl Piece {
    fn new(readings: Vec<Reading>) -> Self {
        let sum: Vector2<f64> = readings.iter().map(|reading| reading.pose.xy()).sum();
        let middle = sum / readings.len() as f64;
        let radius = readings.iter().map(|reading| (reading.pose.xy() - middle).norm()).fold(0.0, f64::max);
        Self { readings, middle, radius }
    }

    /// Distance of a reading from the nearest one of this piece.
    fn distance(&self, other: &Reading) -> f64 {
        let distances = self.readings.iter().map(|reading| (reading.pose - other.pose).xy().norm_squared());
        distances.fold(f64::INFINITY, f64::min).sqrt()
    }
}

/// The readings of an earlier time that are nearest to a piece, up to this distance; the latest ones are not among them.
fn nearest(before: &[Arc<Piece>], latest: &[Reading], piece: &Piece, near: f64) -> Vec<Reading> {
    let end = latest.last().map_or(0, |reading| reading.index);
    let is_around = |other: &&Arc<Piece>| (other.middle - piece.middle).norm() < other.radius + piece.radius + near;
    let earlier = before.iter().filter(is_around).flat_map(|piece| &piece.readings);
    let mut nearest: Vec<(f64, Reading)> = earlier
        .filter(|reading| reading.index < end)
        .map(|reading| (piece.distance(reading), *reading))
        .filter(|(distance, _)| *distance < near)
        .collect();
    nearest.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.into_iter().take(NEAREST).map(|(_, reading)| reading).collect()
}

/// The pose that follows by odometry, with noise as it has.
fn noisy(prior: &Prior, link: &Link, pose: &PlanePose, shared: &Shared, random: &mut ChaCha8Rng) -> PlanePose {
    let deviations = prior.odometry.variances(link.movement.norm(), link.turn).map(f64::sqrt);
    let [forward, sideways, turn] = deviations.map(|deviation| deviation * normal(random)).into();
    let (sin, cos) = (pose.z + link.movement.y.atan2(link.movement.x)).sin_cos();
    link.follow(pose, shared) + Vector3::new(cos * forward - sin * sideways, sin * forward + cos * sideways, turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::exact_evidence::{ExactEvidence, factorized};
    use crate::slam::chain::joined;
    use crate::slam::{FieldPrior, Smoother};

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

    /// Readings on that path, by odometry whose heading drifts. From 2 m before the second round on, where the first corner comes near, the
    /// field is that of places so far away, in metres.
    fn links(away: f64) -> Vec<Link> {
        let truth = truth();
        let link = |(index, pose): (usize, &PlanePose)| {
            let before = index.checked_sub(1).map_or(pose, |before| &truth[before]);
            let levelled = Rotation3::from_axis_angle(&Vector3::z_axis(), -pose.z);
            let field = levelled * field(pose.x + if index < ROUND - 20 { 0.0 } else { away }, pose.y);
            let mut link = Link::new(before, pose, 0.2, field);
            link.turn -= DRIFTING * link.movement.norm();
            link
        };
        joined(truth.iter().enumerate().map(link).collect())
    }

    fn prior() -> Prior {
        Prior::new(FieldPrior { variance_below: 60.0, variance_above: 0.0, lengthscale: 0.9 }, 4.0)
    }

    /// How far the end of the path is from where it was a round before, in metres: by odometry, and on this path.
    fn off_after_a_round(path: &[PlanePose]) -> [f64; 2] {
        let mut odometry = vec![truth()[0]];
        links(0.0)[1..]
            .iter()
            .for_each(|link| odometry.push(link.follow(&odometry[odometry.len() - 1], &Shared::zeros())));
        let last = path.len() - 1;
        [&odometry, path].map(|path| (path[last] - path[last - ROUND]).xy().norm())
    }

    /// The filter's best path, which begins at the first true pose.
    fn best(links: &[Link], pieces: usize) -> Vec<PlanePose> {
        let mut filter = PathFilter::new(&prior(), truth()[0], 0);
        for piece in 1..=pieces {
            filter.advance(&prior(), &links[..piece * links.len() / pieces], &Vector3::zeros());
        }
        filter.best(links)
    }

    #[test]
    fn the_best_path_comes_back_however_far_odometry_is_off() {
        let path = best(&links(0.0), 1);
        let [odometry, found] = off_after_a_round(&path);
        // Within a lengthscale the smoother finds the rest.
        assert!(path.len() == 420 && odometry > 2.5 && found < 0.9, "{odometry} {found}");
    }

    #[test]
    fn paths_do_not_depend_on_how_many_links_come_at_once() {
        // Each time whole pieces.
        let links = &links(0.0)[..400];
        assert_eq!(best(links, 1), best(links, 10));
    }

    #[test]
    fn the_evidence_of_a_revisit_is_that_of_the_exact_model() {
        // Two metres, some far away, and back beside the first ones: few enough readings that all count.
        let (links, prior) = (links(0.0), prior());
        let filter = PathFilter::new(&prior, truth()[0], 0);
        let mut particle = filter.particles[0].clone();
        let pose = |index: usize| truth()[index] + PlanePose::new(0.0, if index < 300 { 0.0 } else { 0.2 }, 0.0);
        for piece in [0..12, 100..112, 320..332] {
            let reading = |index: usize| Reading { index, pose: pose(index) };
            particle.pieces.push(Arc::new(Piece::new(piece.step_by(2).map(reading).collect())));
        }
        let found = particle.evidence_of_last(&filter.kernel, &prior, &links, &Vector3::zeros());
        let log_evidence = |pieces: &[usize]| {
            let readings: Vec<Reading> =
                pieces.iter().flat_map(|piece| particle.pieces[*piece].readings.clone()).collect();
            let places = FieldPlaces::axes(
                &readings.iter().map(|Reading { pose, .. }| [pose.x, pose.y, 0.0]).collect::<Vec<_>>(),
            );
            let value = |Reading { index, pose }: &Reading| {
                (Rotation3::from_axis_angle(&Vector3::z_axis(), pose.z) * links[*index].field).data.0[0]
            };
            let values: Vec<f64> = readings.iter().flat_map(value).collect();
            let columns = streaming_gp::Matrix::from_fn(values.len(), 1, |row, _| values[row]);
            let factor = factorized(covariance(&places, &filter.kernel), prior.noise).unwrap();
            ExactEvidence::new(&factor, columns).at(&[1.0])
        };
        let [with, without] = [[0, 1, 2].as_slice(), &[1, 2]].map(log_evidence);
        let expected = with - log_evidence(&[0, 1]) - (without - log_evidence(&[1]));
        assert!(expected > 5.0 && (found - expected).abs() < 1e-9 * expected.abs(), "{found} {expected}");
    }

    #[test]
    fn a_long_way_round_is_closed_however_far_odometry_is_off() {
        let mut smoother = Smoother::new(prior(), truth()[0], links(0.0));
        smoother.run().unwrap();
        let [odometry, found] = off_after_a_round(&smoother.path());
        assert!(odometry > 2.5 && found < 0.1, "{odometry} {found}");
        let revisits = smoother.revisits().unwrap();
        assert!(revisits.iter().any(|revisit| revisit.way_round > 30.0 && revisit.evidence > 10.0), "{revisits:?}");
    }

    #[test]
    fn a_place_whose_field_is_another_one_is_not_taken_for_where_the_path_was() {
        let mut smoother = Smoother::new(prior(), truth()[0], links(50.0));
        smoother.run().unwrap();
        let [odometry, found] = off_after_a_round(&smoother.path());
        let revisits = smoother.revisits().unwrap();
        assert!(odometry > 2.5 && found > 0.9, "{odometry} {found}");
        assert!(revisits.iter().all(|revisit| revisit.evidence < 10.0), "{revisits:?}");
    }
}
