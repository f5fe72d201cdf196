//! The particle filter: Monte-Carlo localization with KLD sampling (D. Fox, "Adapting the sample size in particle filters through
//! KLD-sampling", IJRR 22(12), 2003) and recovery by particles that are drawn anew (augmented MCL: S. Thrun, W. Burgard, D. Fox,
//! "Probabilistic Robotics", MIT Press 2005, table 8.3).

use std::collections::{HashSet, VecDeque};
use std::f64::consts::{PI, TAU};
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Start;
use super::estimate::{Confidence, Estimate, Reason, State};
use super::lookup::MapLookup;
use super::motion::{MotionStep, rotated};
use super::particle::{Particle, likelihood, likelihood_anywhere, normal, widened};
use super::sample::Sample;
use crate::config;

/// Side of the bins of places whose number decides that of the particles, in metres.
const BIN: f64 = 0.25;

/// Width of the bins of headings, in radians.
const HEADING_BIN: f64 = 0.2;

/// Length of path that a particle drawn anew has to explain, in metres.
const PROPOSAL_LENGTH: f64 = 3.0;

/// Distance between the readings that are looked at then, in metres.
const PROPOSAL_SPACING: f64 = 0.25;

/// Most steps that are kept for it: those of a sensor that hardly moves.
const MOST_RECENT: usize = 1000;

/// Number of places of which a particle drawn anew is the most likely.
const PROPOSALS: usize = 30;

/// Uncertainty of the heading that one reading of three axes tells, in radians.
const READ_HEADING: f64 = 0.2;

/// Least share of particles that are drawn anew while readings disagree.
const LEAST_RENEWED: f64 = 0.1;

/// Evidence of the particles at the start, relative to the information in the map.
const START_EVIDENCE: f64 = 0.3;

/// Most particles that are drawn anew in one step.
const MOST_RENEWED: usize = 500;

/// The distribution of the sensor's place, as particles.
#[derive(Clone, Debug)]
pub struct ParticleFilter {
    settings: config::Localization,
    lookup: Arc<MapLookup>,
    particles: Vec<Particle>,
    random: ChaCha8Rng,
    /// Slow and fast average of the readings' likelihood; none before the first.
    averages: Option<[f64; 2]>,
    /// The last steps, the newest last.
    recent: VecDeque<MotionStep>,
    confidence: Confidence,
}

impl ParticleFilter {
    /// A filter that starts here. `start` gives the pose of the sensor, whose heading is that of the frame of odometry.
    pub fn new(settings: &config::Localization, lookup: Arc<MapLookup>, start: &Start) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        let mut particles: Vec<Particle> = match start {
            Start::Anywhere => {
                let mut particle = || {
                    let (place, turn) = anywhere(&lookup, &mut random);
                    Particle::new(place, turn, settings, &mut random)
                };
                (0..settings.max_particles).map(|_| particle()).collect()
            }
            Start::At { place, heading, deviation, heading_deviation } => {
                let mut particle = || {
                    let place = place.map(|coordinate| coordinate + deviation * normal(&mut random));
                    let turn = heading + heading_deviation * normal(&mut random);
                    Particle::new(place, turn, settings, &mut random)
                };
                // Fewer follow when it has settled.
                (0..settings.max_particles.min(10 * settings.min_particles)).map(|_| particle()).collect()
            }
        };
        // Readings that agree move it up, others down; it is neither yet.
        let evidence = START_EVIDENCE * lookup.information;
        particles.iter_mut().for_each(|particle| particle.evidence = evidence);
        let all_places = lookup.area() / BIN.powi(2) * TAU / HEADING_BIN;
        let places = match start {
            Start::Anywhere => all_places,
            Start::At { .. } => (occupied_bins(&particles) as f64).min(all_places),
        };
        Self {
            settings: settings.clone(),
            confidence: Confidence::new(places, all_places, lookup.information),
            lookup,
            particles,
            random,
            averages: None,
            recent: VecDeque::new(),
        }
    }

    /// Believes readings that disagree with the map at a place that is proven, inside the map, only after this distance, in metres; by default
    /// at once.
    pub fn tolerating(mut self, distance: f64) -> Self {
        self.confidence.tolerated = distance;
        self
    }

    /// The particles.
    pub fn particles(&self) -> &[Particle] {
        &self.particles
    }

    /// Moves and weighs the particles, and draws them again where few have most of the weight.
    pub fn update(&mut self, step: &MotionStep) -> (Estimate, State, Option<Reason>) {
        match self.lookup.outputs {
            1 => self.update_of::<1>(step),
            _ => self.update_of::<3>(step),
        }
    }

    fn update_of<const D: usize>(&mut self, step: &MotionStep) -> (Estimate, State, Option<Reason>)
    where
        [f64; D]: Sample,
    {
        let distance = step.distance();
        self.remember(step);
        let share = (distance / self.settings.error_length).min(1.0);
        let before = weights(&self.particles);
        let mut mean_likelihood = 0.0;
        for (particle, weight) in self.particles.iter_mut().zip(before) {
            particle.advance(step, &self.settings, &mut self.random);
            mean_likelihood += weight * (share * particle.weigh::<D>(step, &self.lookup, share)).exp();
        }
        let weights_now = weights(&self.particles);
        let estimate = Estimate::of(&self.particles, &weights_now, self.lookup.information, self.settings.map_accuracy);
        let (state, reason) = self.confidence.update(&estimate, distance, &self.settings);

        let renewed = self.renewed(mean_likelihood);
        let effective = 1.0 / weights_now.iter().map(|weight| weight * weight).sum::<f64>();
        if renewed > 0.0 || effective < 0.5 * self.particles.len() as f64 {
            self.resample(&weights_now);
            self.renew::<D>(renewed);
        }
        (estimate, state, reason)
    }

    fn remember(&mut self, step: &MotionStep) {
        self.recent.push_back(*step);
        let mut length: f64 = self.recent.iter().map(MotionStep::distance).sum();
        while length > PROPOSAL_LENGTH || self.recent.len() > MOST_RECENT {
            length -= self.recent.pop_front().map_or(length, |step| step.distance());
        }
    }

    /// Share of the particles to be drawn anew: where the likelihood falls below what it was on average and readings disagree.
    fn renewed(&mut self, likelihood: f64) -> f64 {
        let [slow, fast] = self.averages.get_or_insert([likelihood; 2]);
        *slow += self.settings.recovery_alpha_slow * (likelihood - *slow);
        *fast += self.settings.recovery_alpha_fast * (likelihood - *fast);
        if self.confidence.disagrees() { (1.0 - *fast / *slow).max(LEAST_RENEWED) } else { 0.0 }
    }

    /// Draws the particles again by their weights, as many as their spread asks for.
    fn resample(&mut self, weights: &[f64]) {
        let start = self.random.random();
        let bins = occupied_bins(systematic(weights, weights.len(), start).map(|index| &self.particles[index]));
        let least = self.particles.len() / 2;
        let count = sample_size(bins, &self.settings)
            .max(least)
            .clamp(self.settings.min_particles, self.settings.max_particles);
        self.particles = systematic(weights, count, start).map(|index| self.particles[index]).collect();
        self.particles.iter_mut().for_each(|particle| particle.log_weight = 0.0);
    }

    /// Replaces a share of the particles, evenly over all, by those that explain the last metres.
    fn renew<const D: usize>(&mut self, share: f64)
    where
        [f64; D]: Sample,
    {
        let count = ((share * self.particles.len() as f64) as usize).min(MOST_RENEWED);
        let probes = if count > 0 { self.probes() } else { Vec::new() };
        for i in 0..count {
            let replaced = i * self.particles.len() / count;
            self.particles[replaced] = self.propose::<D>(&probes);
        }
    }

    /// The readings that a particle drawn anew has to explain, the newest first.
    fn probes(&self) -> Vec<Probe> {
        let (mut probes, mut next) = (Vec::new(), 0.0);
        let (mut moved, mut distance) = ([0.0; 2], 0.0);
        for step in self.recent.iter().rev() {
            if distance >= next {
                probes.push(Probe { step: *step, moved, distance });
                next = distance + PROPOSAL_SPACING;
            }
            moved = [moved[0] + step.movement[0], moved[1] + step.movement[1]];
            distance += step.distance();
        }
        probes
    }

    /// The most likely of some random poses, given the last metres.
    fn propose<const D: usize>(&mut self, probes: &[Probe]) -> Particle
    where
        [f64; D]: Sample,
    {
        // The robot may have been moved within the last metres.
        let length = PROPOSAL_LENGTH * self.random.random_range(0.25..1.0);
        let probes = &probes[..probes.partition_point(|probe| probe.distance < length)];
        // Axes tell the heading; they are in the frame of odometry here.
        let read = probes.first().and_then(|newest| <[f64; D]>::of(&newest.step, 0.0).axes());
        let mut best = (f64::NEG_INFINITY, anywhere(&self.lookup, &mut self.random));
        for _ in 0..PROPOSALS {
            let (place, mut turn) = anywhere(&self.lookup, &mut self.random);
            if let Some([x, y, _]) = read
                && let Some(local) = self.lookup.at::<D>(place)
            {
                let of_map = local.mean[1].atan2(local.mean[0]);
                let deviation = READ_HEADING.hypot(self.settings.bias_deviation / x.hypot(y));
                turn = of_map - y.atan2(x) + deviation * normal(&mut self.random);
            }
            let bias_variance = self.settings.bias_deviation.powi(2);
            if let Some(explained) = explained::<D>(&self.lookup, place, turn, probes, bias_variance, best.0) {
                best = (explained, (place, turn));
            }
        }
        let (_, (place, turn)) = best;
        Particle::new(place, turn, &self.settings, &mut self.random)
    }
}

/// A reading of the last metres.
struct Probe {
    step: MotionStep,
    /// How the sensor moved since then, in the frame of odometry.
    moved: [f64; 2],
    /// Length of its path since then, in metres.
    distance: f64,
}

/// Logarithm of the likelihood of the readings, of a sensor whose bias has this variance, if they ended here; none unless it exceeds the `best`.
fn explained<const D: usize>(
    lookup: &MapLookup,
    place: [f64; 2],
    turn: f64,
    probes: &[Probe],
    bias_variance: f64,
    best: f64,
) -> Option<f64>
where
    [f64; D]: Sample,
{
    let mut sum = 0.0;
    for (left, Probe { step, moved, .. }) in (0..probes.len()).rev().zip(probes) {
        let moved = rotated(*moved, turn);
        let reading = <[f64; D]>::of(step, turn);
        let local = lookup.at::<D>([place[0] - moved[0], place[1] - moved[1]]);
        let local = local.map(|local| widened(local, bias_variance, bias_variance));
        sum +=
            local.map_or_else(|| likelihood_anywhere(lookup, &reading), |local| likelihood(lookup, &local, &reading));
        // Most are out of the question after a reading or two.
        if sum + left as f64 * lookup.greatest_likelihood <= best {
            return None;
        }
    }
    Some(sum)
}

/// Place and turn of a particle anywhere in the known part of the map.
fn anywhere(lookup: &MapLookup, random: &mut ChaCha8Rng) -> ([f64; 2], f64) {
    let node = lookup.known[random.random_range(0..lookup.known.len())];
    let place = node.map(|coordinate| coordinate + lookup.resolution * random.random_range(-0.5..0.5));
    (place, random.random_range(-PI..PI))
}

/// The weights of particles, which sum to one.
fn weights(particles: &[Particle]) -> Vec<f64> {
    let greatest = particles.iter().map(|particle| particle.log_weight).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = particles.iter().map(|particle| (particle.log_weight - greatest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Number of bins in which there are particles.
fn occupied_bins<'a>(particles: impl IntoIterator<Item = &'a Particle>) -> usize {
    let bin = |&Particle { place: [x, y], turn, .. }: &Particle| {
        [x / BIN, y / BIN, turn / HEADING_BIN].map(|coordinate| coordinate.floor() as i64)
    };
    particles.into_iter().map(bin).collect::<HashSet<_>>().len()
}

/// Systematic resampling (low variance): `count` indices, each as often as its weight asks for, up to one. `start` is between 0 and 1.
pub(crate) fn systematic(weights: &[f64], count: usize, start: f64) -> impl Iterator<Item = usize> + '_ {
    let (mut index, mut sum) = (0, weights.first().copied().unwrap_or(1.0));
    (0..count).map(move |i| {
        let wanted = (i as f64 + start) / count as f64;
        while wanted > sum && index + 1 < weights.len() {
            index += 1;
            sum += weights[index];
        }
        index
    })
}

/// Number of particles for which, with the given probability, the Kullback-Leibler divergence between their distribution over this many
/// bins and the true one stays below `pf_err` (Fox 2003, equation 7).
fn sample_size(bins: usize, settings: &config::Localization) -> usize {
    if bins < 2 {
        return 1;
    }
    let degrees = (bins - 1) as f64;
    let spread = 2.0 / (9.0 * degrees);
    (degrees / (2.0 * settings.pf_err) * (1.0 - spread + spread.sqrt() * settings.pf_z).powi(3)).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Localization;
    use crate::particle_filter::lookup::tests::filled;

    #[test]
    fn systematic_resampling_keeps_every_weight_to_within_one() {
        let weights = [0.05, 0.4, 0.0, 0.25, 0.3];
        for start in [0.0, 0.3, 0.999] {
            let chosen: Vec<usize> = systematic(&weights, 37, start).collect();
            for (index, weight) in weights.iter().enumerate() {
                let times = chosen.iter().filter(|chosen| **chosen == index).count() as f64;
                assert!((times - 37.0 * weight).abs() < 1.0 + 1e-9, "{index} from {start}: {times}");
            }
        }
    }

    #[test]
    fn the_number_of_particles_is_the_one_that_the_chi_squared_distribution_asks_for() {
        let settings = Localization { pf_err: 0.05, pf_z: 2.326, ..Localization::default() };
        assert_eq!(sample_size(1, &settings), 1);
        // The 99 % quantiles of the chi-squared distribution with 10, 100 and 1000 degrees of freedom, divided by twice the error; the
        // approximation by Wilson and Hilferty is good to half a percent.
        for (bins, quantile) in [(11, 23.209), (101, 135.807), (1001, 1106.97)] {
            let (found, expected) = (sample_size(bins, &settings) as f64, quantile / 0.1);
            assert!((found / expected - 1.0).abs() < 0.005, "{bins} bins: {found}, expected {expected}");
        }
    }

    /// A strength that tells every place apart.
    fn strength([x, y]: [f64; 2]) -> [f64; 1] {
        [50.0 + 8.0 * (1.3 * x).sin() * (0.9 * y).cos() + 6.0 * (0.7 * y + 0.4 * x).sin()]
    }

    #[test]
    fn what_is_not_looked_at_further_could_not_have_been_the_best() {
        let lookup = filled(strength);
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let probe = |index: i32| {
            let along = 0.25 * f64::from(index);
            let step = MotionStep {
                movement: [0.05, 0.0],
                rotation: 0.0,
                heading: 0.0,
                field: [strength([6.0 - along, 3.0])[0], 0.0, 0.0],
            };
            Probe { step, moved: [along, 0.0], distance: along }
        };
        let probes: Vec<Probe> = (0..12).map(probe).collect();
        let (mut best, mut ended) = (f64::NEG_INFINITY, 0);
        for _ in 0..2000 {
            let (place, turn) = anywhere(&lookup, &mut random);
            let all = explained::<1>(&lookup, place, turn, &probes, 0.0, f64::NEG_INFINITY).unwrap();
            let found = explained::<1>(&lookup, place, turn, &probes, 0.0, best);
            assert_eq!(found, (all > best).then_some(all));
            ended += usize::from(found.is_none());
            best = best.max(all);
        }
        assert!(ended > 1900, "{ended}");
        let (here, there) = ([6.0, 3.0], [2.0, 3.0]);
        let [here, there] =
            [here, there].map(|place| explained::<1>(&lookup, place, 0.0, &probes, 0.0, f64::NEG_INFINITY).unwrap());
        assert!(here > there + 10.0, "{here} {there}");
    }

    #[test]
    fn particles_become_few_when_the_place_is_known_and_many_when_it_is_lost() {
        let lookup = Arc::new(filled(strength));
        let settings = Localization { min_particles: 100, max_particles: 5000, ..Localization::default() };
        let start = Start::At { place: [1.0, 3.0], heading: 0.0, deviation: 0.3, heading_deviation: 0.1 };
        let mut filter = ParticleFilter::new(&settings, lookup, &start);
        assert_eq!(filter.particles().len(), 1000);
        let mut state = State::default();
        for i in 1..=120 {
            let x = 1.0 + 0.05 * f64::from(i);
            let step = MotionStep {
                movement: [0.05, 0.0],
                rotation: 0.0,
                heading: 0.0,
                field: [strength([x, 3.0])[0], 0.0, 0.0],
            };
            let (estimate, now, _) = filter.update(&step);
            state = now;
            assert!(i < 60 || (estimate.place[0] - x).hypot(estimate.place[1] - 3.0) < 0.3, "{i}: {estimate:?}");
        }
        assert_eq!(state, State::Tracking);
        let settled = filter.particles().len();
        assert!(settled < 1000, "{settled}");
        // A field that is nowhere in the map.
        let mut reasons = Vec::new();
        for _ in 0..60 {
            let step = MotionStep { movement: [0.05, 0.0], rotation: 0.0, heading: 0.0, field: [95.0, 0.0, 0.0] };
            let (_, now, reason) = filter.update(&step);
            state = now;
            reasons.extend(reason);
        }
        assert_eq!(state, State::Lost);
        assert!(reasons.contains(&Reason::ReadingsDisagree), "{reasons:?}");
        assert!(filter.particles().len() > 2 * settled, "{}", filter.particles().len());
    }
}
