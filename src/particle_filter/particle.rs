//! A particle: a pose of the sensor, its motion, and how well it explains a reading.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::density::{DEGREES_OF_FREEDOM, log_density};
use super::lookup::{Local, MapLookup};
use super::motion::{MotionStep, rotated, wrapped};
use super::sample::Sample;
use crate::config;

/// Standard deviation by which the error of odometry's scale changes in a metre.
const SCALE_WALK: f64 = 0.001;

/// Standard deviation by which odometry's drift of heading changes in a metre, in radians per metre.
const DRIFT_WALK: f64 = 0.001;

/// Distance over which the agreement of a particle with its readings is averaged, in metres.
const AGREEMENT_LENGTH: f64 = 2.0;

/// Distance over which its misfit is averaged, in metres.
const MISFIT_LENGTH: f64 = 1.0;

/// Squared residual, in variances, above which readings do not count as more of a misfit: one outlier is not to decide.
const GREATEST_MISFIT: f64 = 25.0;

/// A hypothesis of the state: the pose, and the errors of odometry that do not change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Particle {
    /// x and y of the sensor, in metres.
    pub place: [f64; 2],
    /// Rotation from the frame of odometry to that of the map, in radians.
    pub turn: f64,
    /// True distance over that of odometry.
    scale: f64,
    /// Error of odometry's heading, in radians per metre.
    drift: f64,
    /// Logarithm of the weight.
    pub log_weight: f64,
    /// The sensor's bias less that of the map, along the axes of the sensor, in microtesla: a Kalman filter given the path of the particle
    /// (Rao-Blackwellized).
    bias: [f64; 3],
    /// Variance of that difference, in the plane and along the vertical, in microtesla squared.
    bias_variance: [f64; 2],
    /// How well it explained the last metres: logarithm of the likelihood over that of a sensor anywhere in the map, per reading.
    pub evidence: f64,
    /// How far the readings of the last metre are from the map: mean squared residual per axis, in variances. About 1 where the map is right.
    pub misfit: f64,
    /// Whether the map is known there.
    pub is_inside: bool,
}

/// A standard normal number.
pub(crate) fn normal(random: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(random)
}

impl Particle {
    /// A particle here, with errors of odometry drawn at random.
    pub fn new(place: [f64; 2], turn: f64, settings: &config::Localization, random: &mut ChaCha8Rng) -> Self {
        Self {
            place,
            turn,
            scale: 1.0 + settings.odometry_scale * normal(random),
            drift: settings.odometry_drift * normal(random),
            bias: [0.0; 3],
            bias_variance: [settings.bias_deviation.powi(2); 2],
            log_weight: 0.0,
            evidence: 0.0,
            misfit: 1.0,
            is_inside: true,
        }
    }

    /// Moves it, with errors of odometry that grow with the distance and the rotation.
    pub fn advance(&mut self, step: &MotionStep, settings: &config::Localization, random: &mut ChaCha8Rng) {
        let (distance, rotation) = (step.distance(), step.rotation.abs());
        let turned =
            self.drift * distance + (settings.alpha1 * rotation + settings.alpha2 * distance).sqrt() * normal(random);
        let slip = (settings.alpha3 * distance + settings.alpha4 * rotation).sqrt() * normal(random);
        let factor = self.scale + slip / distance.max(f64::MIN_POSITIVE);
        let movement = if distance > 0.0 { step.movement.map(|along| along * factor) } else { [0.0; 2] };
        let moved = rotated(movement, self.turn + 0.5 * turned);
        self.place = [self.place[0] + moved[0], self.place[1] + moved[1]];
        self.turn = wrapped(self.turn + turned);
        let walk = distance.sqrt();
        self.scale += SCALE_WALK * walk * normal(random);
        self.drift += DRIFT_WALK * walk * normal(random);
    }

    /// Weighs it by what was read, and returns the logarithm of the likelihood over that of a sensor anywhere in the map. Readings whose
    /// errors are shared count as one: `share` is the inverse of their number (tempering).
    pub(super) fn weigh<const D: usize>(&mut self, step: &MotionStep, lookup: &MapLookup, share: f64) -> f64
    where
        [f64; D]: Sample,
    {
        let reading = self.unbiased(step);
        let local = lookup.at::<D>(self.place);
        let anywhere = likelihood_anywhere(lookup, &reading);
        let [plane, vertical] = self.bias_variance;
        let forgotten = |length: f64| 1.0 - (-step.distance() / length).exp();
        let mut likelihood_here = anywhere;
        if let Some(local) = local {
            let uncertain = widened(local, plane, vertical);
            likelihood_here = likelihood(lookup, &uncertain, &reading);
            let misfit = mean_squared_residual(lookup, &uncertain, &reading).min(GREATEST_MISFIT);
            self.misfit += forgotten(MISFIT_LENGTH) * (misfit - self.misfit);
            self.learn_bias(step, &reading, &local, lookup.noise, share);
        }
        self.is_inside = local.is_some();
        self.log_weight += share * likelihood_here;
        self.evidence += forgotten(AGREEMENT_LENGTH) * (likelihood_here - anywhere - self.evidence);
        likelihood_here - anywhere
    }
}

impl Particle {
    /// The sensor's bias less that of the map, along the axes of the sensor, in microtesla.
    pub fn bias(&self) -> [f64; 3] {
        self.bias
    }

    /// Angle from the axes of the sensor to those of the map.
    fn heading(&self, step: &MotionStep) -> f64 {
        self.turn + step.heading
    }

    /// The reading in the frame of the map, free of what is known of the bias.
    fn unbiased<S: Sample>(&self, step: &MotionStep) -> S {
        let [x, y, vertical] = self.bias;
        let [x, y] = rotated([x, y], self.heading(step));
        S::of(step, self.turn).without_bias([x, y, vertical])
    }

    /// A step of the Kalman filter of the bias, which only axes show; readings that are far off count less, as in the likelihood.
    fn learn_bias<const D: usize>(
        &mut self,
        step: &MotionStep,
        reading: &[f64; D],
        local: &Local<D>,
        noise: f64,
        share: f64,
    ) where
        [f64; D]: Sample,
    {
        let (Some(reading), Some(mean), Some(map_variance)) =
            (reading.axes(), local.mean.axes(), local.variance.axes())
        else {
            return;
        };
        if self.bias_variance == [0.0; 2] || share == 0.0 {
            return;
        }
        let residual: [f64; 3] = std::array::from_fn(|axis| reading[axis] - mean[axis]);
        let [x, y] = rotated([residual[0], residual[1]], -self.heading(step));
        let [plane, vertical] = self.bias_variance;
        for (axis, residual, prior) in [(0, x, plane), (1, y, plane), (2, residual[2], vertical)] {
            let variance = noise + if axis < 2 { 0.5 * (map_variance[0] + map_variance[1]) } else { map_variance[2] };
            let square = residual * residual / (variance + prior);
            let weight = share * (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + square);
            let gain = prior / (prior + variance / weight);
            self.bias[axis] += gain * residual;
            // The variance of the plane is that of both axes: it does not depend on the heading.
            self.bias_variance[axis / 2] = prior * (1.0 - gain);
        }
    }
}

/// The map's prediction of a reading, whose variance is widened by the uncertainty of the sensor's bias.
pub(super) fn widened<const D: usize>(local: Local<D>, plane: f64, vertical: f64) -> Local<D>
where
    [f64; D]: Sample,
{
    Local { variance: Sample::widened(local.variance, plane, vertical), ..local }
}

/// Logarithm of the likelihood of a reading where the map says this, up to a constant.
pub(super) fn likelihood<const D: usize>(lookup: &MapLookup, local: &Local<D>, reading: &[f64; D]) -> f64 {
    let Local { mean, variance } = local;
    (0..D).map(|axis| log_density(reading[axis], mean[axis], variance[axis] + lookup.noise)).sum()
}

/// Mean over the axes of the squared residual of a reading where the map says this, in variances.
fn mean_squared_residual<const D: usize>(lookup: &MapLookup, local: &Local<D>, reading: &[f64; D]) -> f64 {
    let Local { mean, variance } = local;
    let square = |axis: usize| (reading[axis] - mean[axis]).powi(2) / (variance[axis] + lookup.noise);
    (0..D).map(square).sum::<f64>() / D as f64
}

/// Logarithm of the likelihood of a reading of a sensor that may be anywhere in the map, up to the same constant.
pub(super) fn likelihood_anywhere<const D: usize>(lookup: &MapLookup, reading: &[f64; D]) -> f64 {
    let anywhere = lookup.anywhere.iter();
    anywhere.zip(reading).map(|(normal, &value)| log_density(value, normal.mean, normal.variance)).sum()
}
