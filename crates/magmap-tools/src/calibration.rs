//! Calibration of a magnetometer from an ordinary drive: hard iron, yaw of the mount, delay between the topics, unit,
//! currents of the motors.
//!
//! The measure is the log evidence of the model of the three axes
//! ([`vector_model`](magmap::field::engine::vector_model)) over a stretch of the drive, exact, without inducing points.
//! It is largest where readings that were taken at one place under different headings agree, and where the field along
//! the path has neither curl nor divergence. It is a function of yaw and delay; the hard iron is part of the model,
//! with a posterior of its own. Standard deviations of yaw and delay come from the curvature.
//!
//! The sources of the field may be below the sensor and above it. Those above look like those below to a sensor that is
//! turned by half a turn: the yaw is determined modulo half a turn, and given nearest to the recorded one.
//!
//! The model takes the errors of neighbouring readings for independent, but those of odometry are shared along metres
//! of path. So all variances are multiplied by one factor, at least 1: how much the results vary when each sixth of the
//! stretch is left out in turn (the delete-a-group jackknife), in relation to the variance under the model, on average
//! over yaw, delay and the components of the hard iron. `cargo test --test tools survey -- --ignored --nocapture`
//! measures how often the truth is within two standard deviations.

mod agreement;
mod evidence;
mod output;
mod stretch;
mod unit;

use nalgebra::{Isometry3, Matrix2, Matrix3, SymmetricEigen, UnitQuaternion, Vector2, Vector3};
use serde::Serialize;
use streaming_gp::{Model, VectorField};

use self::agreement::{heading_of, headings};
use self::evidence::Evidence;
use self::stretch::{Stretch, TurnableReading, earlier, locate};
use magmap::config::{self, Config, Mapped};
use magmap::field::engine;
use magmap::field::exact_evidence::Coefficients;
use magmap::sensing::reading::{Measurement, Observation};

pub use self::agreement::Agreement;
pub use self::unit::Unit;

/// Length of path over which readings are averaged, in metres.
const SPACING: f64 = 0.1;

/// Length of path over which readings are averaged where readings at one place are compared, in metres: paths that
/// cross are near each other for a short way only.
const COMPARED: f64 = 0.05;

/// Most averages that the evidence is computed of: 30 m of path.
const MOST_AVERAGES: usize = 300;

/// Fewest averages that determine anything: 5 m of path.
const FEWEST_AVERAGES: usize = 50;

/// Greatest delay that is looked for, in seconds.
const GREATEST_DELAY: f64 = 0.5;

/// Step of the search for the delay, and of the differences that its standard deviation is computed of, in seconds.
const COARSE_STEP: f64 = 0.1;
const FINE_STEP: f64 = 0.02;

/// Prior standard deviation of each component of the hard iron, in microtesla: nothing is known of it.
const HARD_IRON: f64 = 30.0;

/// Prior standard deviation of each component of the bias that grows with the speed, in microtesla per metre per
/// second.
const SPEED_BIAS: f64 = 100.0;

/// Pieces of the stretch of which one at a time is left out, to see how much the results depend on it.
const PIECES: usize = 6;

/// The greatest standard deviation of a result, beyond which the drive does not determine it: of the hard iron in
/// microtesla, of the yaw in radians, of the delay in seconds.
const WORST_HARD_IRON: f64 = 3.0;
const WORST_YAW: f64 = 0.1;
const WORST_DELAY: f64 = 0.1;

/// How much greater the log evidence of the yaw must be than that of another one, in nats: a probability of 0.999.
const LEAST_LEAD: f64 = 7.0;

/// The standard deviation of the speed, in metres per second, below which a bias that grows with it cannot be told from
/// hard iron.
const LEAST_SPEED_CHANGE: f64 = 0.03;

/// The quantile 0.999 of the chi-squared distribution with three degrees of freedom.
const SIGNIFICANT: f64 = 16.27;

/// Why a drive cannot be evaluated at all.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The drive has no reading.
    #[error("expected readings of a magnetometer, found none")]
    NoReadings,
    /// The arithmetic broke down.
    #[error("the covariance of the readings is not positive definite: check section [vector] of the settings")]
    NotPositiveDefinite,
}

/// A number with its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Standard deviation.
    pub sd: f64,
}

/// The hard iron along the sensor's axes, in microtesla.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HardIron {
    /// The hard iron to subtract from the readings as they were recorded; zero along directions that the drive does not determine.
    pub value: [f64; 3],
    /// Standard deviation of each component; none where the drive does not determine it, as the vertical on a robot that
    /// stays in the plane.
    pub sd: [Option<f64>; 3],
}

/// Whether the field that the robot causes grows with its speed, as that of motor currents does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedBias {
    /// In microtesla per metre per second, along the axes of the robot's body.
    pub value: [f64; 3],
    /// Standard deviation of each component.
    pub sd: [f64; 3],
    /// Whether the three differ from zero by more than chance does in one of a thousand drives.
    pub is_significant: bool,
}

/// Calibration of a magnetometer from a drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Readings in the drive.
    pub readings: u64,
    /// Readings that could be located.
    pub used_readings: u64,
    /// Length of the path, in metres.
    pub path: f64,
    /// Metres of path in each of eight sectors of the robot's heading, counterclockwise: the first is centred at the x
    /// axis of the map.
    pub headings: [f64; 8],
    /// The unit of the readings.
    pub unit: Unit,
    /// The hard iron; none where the drive does not determine it.
    pub hard_iron: Option<HardIron>,
    /// The yaw by which the sensor is turned on the robot, in addition to what the recording says, in radians: modulo
    /// half a turn, that nearest to zero. None where the drive does not determine it.
    pub yaw: Option<Estimate>,
    /// How much later the readings are stamped than the poses, in seconds, for `sensor.delay`; none where the drive
    /// does not determine it.
    pub delay: Option<Estimate>,
    /// How far readings at one place disagree; none where the robot came nowhere twice under different headings.
    pub agreement: Option<Agreement>,
    /// Whether the bias grows with the speed; none where the speed hardly changes.
    pub speed_bias: Option<SpeedBias>,
    /// The factor by which all standard deviations are greater than those of independent errors.
    pub inflation: f64,
    /// Parts of the calibration that the drive does not determine, and why.
    pub shortcomings: Vec<String>,
    /// The mount with which the recording was read.
    #[serde(skip)]
    mount: Isometry3<f64>,
}

/// Calibrates the magnetometer at `mount` from a drive. The settings are those of a map. The yaw is relative to
/// `mount`; hard iron and delay are the whole, those of the settings included. `progress` is called with the share of
/// the work that is done.
///
/// # Errors
/// A drive without readings, or settings under which there is no covariance.
pub fn calibrate(
    measurements: &[Measurement],
    mount: Isometry3<f64>,
    config: &Config,
    progress: impl FnMut(f64),
) -> Result<Calibration, Error> {
    let unit = Unit::of(measurements).ok_or(Error::NoReadings)?;
    let given_delay = config.sensor.delay;
    let measurements: &Vec<_> = &measurements.iter().map(|measurement| earlier(measurement, given_delay)).collect();
    let config = &settings(config);
    let (observations, counters) = locate(measurements, config, mount, 0.0);
    // After a clock that went back, stamps no longer tell the cells apart.
    let forward = observations.windows(2).take_while(|pair| pair[0].stamp < pair[1].stamp).count() + 1;
    let observations = &observations[..forward.min(observations.len())];
    let mut calibration = Calibration {
        readings: counters.readings,
        used_readings: counters.used_readings,
        path: counters.travelled,
        headings: headings(observations, &mount, SPACING),
        unit,
        hard_iron: None,
        yaw: None,
        delay: None,
        agreement: None,
        speed_bias: None,
        inflation: 1.0,
        shortcomings: Vec::new(),
        mount,
    };
    if calibration.unit.suspected.is_some() {
        calibration.shortcomings.push("nothing else was looked for: the unit is wrong".into());
        return Ok(calibration);
    }
    if observations.len() < FEWEST_AVERAGES {
        let least = FEWEST_AVERAGES as f64 * SPACING;
        calibration.shortcomings.push(format!(
            "too short: readings were located along {:.1} m of path, expected {least} m or more, better 30 m",
            observations.len() as f64 * SPACING
        ));
        return Ok(calibration);
    }
    let chosen = most_telling(observations, &mount);
    let ends: Vec<_> = chosen.iter().map(|observation| observation.stamp).collect();
    let stretch = Stretch::new(measurements, config, mount, &ends, GREATEST_DELAY);
    let search = Search::new(&stretch, config, progress);
    let found = search.find()?;
    calibration.take(&found, config);
    let delay = calibration.delay.map_or(0.0, |delay| delay.value);
    let fine = Config { averaging: config::Averaging { spacing: COMPARED }, ..config.clone() };
    let (before, _) = locate(measurements, &fine, mount, 0.0);
    let (after, _) = locate(measurements, &calibration.corrected(&fine), calibration.turned_mount(), delay);
    calibration.delay = calibration.delay.map(|Estimate { value, sd }| Estimate { value: value + given_delay, sd });
    calibration.agreement = Agreement::of(&before, &after, &mount);
    if calibration.agreement.is_none() {
        let cause =
            "nothing crossed: no place was passed twice under different headings, so that nothing verifies the results";
        calibration.shortcomings.push(cause.into());
    }
    Ok(calibration)
}

/// The settings of a map of the three axes with a sensor of which nothing is known, for readings without their delay.
fn settings(config: &Config) -> Config {
    let mut config = config.clone();
    config.model.field = Mapped::Vector;
    config.model.likelihood = config::Likelihood::Gaussian;
    config.averaging.spacing = SPACING;
    config.vector.hard_iron = HARD_IRON;
    config.vector.speed_bias = 0.0;
    config.sensor.delay = 0.0;
    config
}

/// The stretch of the drive in which most pairs of averages are near each other under different headings.
fn most_telling<'a>(observations: &'a [Observation], mount: &Isometry3<f64>) -> &'a [Observation] {
    const NEAR: f64 = 0.3;
    let length = MOST_AVERAGES.min(observations.len());
    let headings: Vec<f64> = observations.iter().map(|observation| heading_of(observation, mount)).collect();
    // Pairs by their first member, for each later start of a stretch one fewer.
    let pairs_from = |i: usize, end: usize| {
        let is_pair = |j: &usize| {
            (observations[*j].position - observations[i].position).norm() < NEAR
                && agreement::differ(headings[i], headings[*j])
        };
        (i + 1..end).filter(is_pair).count()
    };
    let pairs = |start: &usize| (*start..start + length).map(|i| pairs_from(i, start + length)).sum::<usize>();
    let starts = (0..observations.len() - length + 1).step_by(length / 4);
    // Of equals the first.
    let start = starts.rev().max_by_key(pairs).unwrap_or(0);
    &observations[start..start + length]
}

/// The optimum of the log evidence.
struct Found {
    yaw: f64,
    delay: f64,
    /// Covariance of yaw and delay from the curvature; none where the optimum is at the edge or the curvature has no
    /// sign.
    covariance: Option<Matrix2<f64>>,
    inflation: f64,
    /// Log evidence of the best yaw over that of any other: [`Evidence::lead`].
    lead: f64,
    hard_iron: Coefficients,
    speed_bias: Option<Coefficients>,
}

/// The search for the optimum.
struct Search<'a, P> {
    stretch: &'a Stretch,
    kernel: VectorField,
    /// Variance of a horizontal axis of the field, and the share of it that sources below cause.
    variance: f64,
    share_below: f64,
    noise: f64,
    config: &'a Config,
    progress: P,
    evaluations: f64,
}

/// Evaluations of a whole search.
const EVALUATIONS: f64 =
    27.0 + 2.0 * (3.0 * LEARNING_STEPS + REFINING_STEPS) + SHARES.len() as f64 + 3.0 * (1.0 + PIECES as f64);
const LEARNING_STEPS: f64 = 8.0;

/// Shares of sources below under which the yaw is compared.
const SHARES: [f64; 7] = [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98];
const REFINING_STEPS: f64 = 10.0;

impl<'a, P: FnMut(f64)> Search<'a, P> {
    fn new(stretch: &'a Stretch, config: &'a Config, progress: P) -> Self {
        let Model { kernel, noise, .. } = engine::vector_model(config);
        let (variance, share_below) = (kernel.variance, 0.5);
        Self { stretch, kernel, variance, share_below, noise, config, progress, evaluations: 0.0 }
    }

    fn find(mut self) -> Result<Found, Error> {
        let mut delay = self.coarse()?;
        for reach in [COARSE_STEP, FINE_STEP * 1.5] {
            self.learn(delay)?;
            delay = self.refine(delay, reach)?;
        }
        self.at_optimum(delay)
    }

    fn evidence(&mut self, delay: f64) -> Result<Evidence, Error> {
        let readings = self.stretch.readings(delay);
        self.evidence_of(&readings)
    }

    /// The evidence of readings under the current variances.
    fn evidence_of(&mut self, readings: &[TurnableReading]) -> Result<Evidence, Error> {
        let (variance, above) = (self.share_below * self.variance, (1.0 - self.share_below) * self.variance);
        let kernel = VectorField { variance, variance_above: Some(above), ..self.kernel.clone() };
        let evidence = Evidence::new(readings, &kernel, self.noise).map_err(|_| Error::NotPositiveDefinite)?;
        self.evaluations += 1.0;
        (self.progress)((self.evaluations / EVALUATIONS).min(1.0));
        Ok(evidence)
    }

    /// The best delay of a coarse grid, under the best of three noises: a wrong delay looks like noise. Every second average
    /// is enough for it.
    fn coarse(&mut self) -> Result<f64, Error> {
        let steps = (GREATEST_DELAY / COARSE_STEP).floor() as i32 - 1;
        let mut best = (f64::NEG_INFINITY, 0.0, self.noise);
        for delay in (-steps..=steps).map(|step| f64::from(step) * COARSE_STEP) {
            let readings: Vec<_> = self.stretch.readings(delay).into_iter().step_by(2).collect();
            for noise in [2.0, 12.0, 72.0] {
                self.noise = noise;
                let evidence = self.evidence_of(&readings)?;
                let value = evidence.at(evidence.best_yaw());
                if value > best.0 {
                    best = (value, delay, noise);
                }
            }
        }
        self.noise = best.2;
        Ok(best.1)
    }

    /// The variances of the noise and of the field at this delay, and the share of sources below: of the greatest log evidence plus log prior.
    fn learn(&mut self, delay: f64) -> Result<(), Error> {
        let readings = self.stretch.readings(delay);
        let config::Vector { initial, prior_log_sd, .. } = &self.config.vector;
        let log_prior = |value: f64, median: f64, sd: f64| -0.5 * ((value / median).ln() / sd).powi(2);
        // The prior is that of a batch; a whole stretch may differ more from the median.
        let noise = maximum(self.noise.ln(), 1.5, LEARNING_STEPS, |log_noise| {
            self.noise = log_noise.exp();
            let evidence = self.evidence_of(&readings)?;
            Ok(evidence.at(evidence.best_yaw()) + log_prior(self.noise, initial.noise, 2.0 * prior_log_sd.noise))
        })?;
        self.noise = noise.exp();
        self.share_below = maximum(0.5, 0.5, LEARNING_STEPS, |share| {
            self.share_below = share;
            let evidence = self.evidence_of(&readings)?;
            Ok(evidence.at(evidence.best_yaw()))
        })?;
        let variance = maximum(self.variance.ln(), 1.5, LEARNING_STEPS, |log_variance| {
            self.variance = log_variance.exp();
            let evidence = self.evidence_of(&readings)?;
            let prior = log_prior(self.variance, initial.variance, 2.0 * prior_log_sd.variance);
            Ok(evidence.at(evidence.best_yaw()) + prior)
        })?;
        self.variance = variance.exp();
        Ok(())
    }

    fn refine(&mut self, delay: f64, reach: f64) -> Result<f64, Error> {
        maximum(delay, reach, REFINING_STEPS, |delay| {
            let evidence = self.evidence(delay)?;
            Ok(evidence.at(evidence.best_yaw()))
        })
    }

    fn at_optimum(&mut self, delay: f64) -> Result<Found, Error> {
        let readings = [-FINE_STEP, 0.0, FINE_STEP].map(|step| self.stretch.readings(delay + step));
        let around = self.around([&readings[0], &readings[1], &readings[2]])?;
        let evidence = &around.middle;
        let yaw = evidence.best_yaw();
        let is_inside = delay.abs() < GREATEST_DELAY - COARSE_STEP;
        let covariance = around.information(yaw).cholesky().filter(|_| is_inside).map(|factor| factor.inverse());
        let of_share = self.yaw_variance_of_share(&readings[1], yaw)?;
        let covariance = covariance.map(|covariance| covariance + Matrix2::new(of_share, 0.0, 0.0, 0.0));
        let speeds: Vec<f64> = readings[1].iter().map(|reading| reading.speed).collect();
        let speed_bias =
            (deviation(&speeds) >= LEAST_SPEED_CHANGE).then(|| evidence.speed_bias(yaw, SPEED_BIAS.powi(2))).flatten();
        let mut found = Found {
            yaw,
            delay,
            covariance,
            inflation: 1.0,
            lead: evidence.lead(),
            hard_iron: evidence.hard_iron(yaw).ok_or(Error::NotPositiveDefinite)?,
            speed_bias,
        };
        found.inflation = self.inflation(&readings, &found)?;
        Ok(found)
    }

    /// The variance of the yaw because the share of sources below is not known: along a straight path the two trade places.
    fn yaw_variance_of_share(&mut self, readings: &[TurnableReading], yaw: f64) -> Result<f64, Error> {
        let found = self.share_below;
        let mut yaws = Vec::new();
        for share in SHARES {
            self.share_below = share;
            let evidence = self.evidence_of(readings)?;
            let best = evidence.best_yaw();
            yaws.push((evidence.at(best), best));
        }
        self.share_below = found;
        let greatest = yaws.iter().map(|(value, _)| *value).fold(f64::NEG_INFINITY, f64::max);
        let weight = |value: f64| (value - greatest).exp();
        let sum: f64 = yaws.iter().map(|(value, _)| weight(*value)).sum();
        Ok(yaws.iter().map(|(value, other)| weight(*value) * (other - yaw).powi(2)).sum::<f64>() / sum)
    }

    fn around(&mut self, [before, middle, after]: [&[TurnableReading]; 3]) -> Result<Around, Error> {
        let mut evidence = |readings| self.evidence_of(readings);
        Ok(Around { before: evidence(before)?, middle: evidence(middle)?, after: evidence(after)? })
    }

    /// The factor on variances for errors that readings share, at least 1: see [`calibration`](crate::calibration).
    fn inflation(&mut self, readings: &[Vec<TurnableReading>; 3], found: &Found) -> Result<f64, Error> {
        let Some(covariance) = found.covariance else { return Ok(1.0) };
        let directions = SymmetricEigen::new(found.hard_iron.covariance);
        let known: Vec<(Vector3<f64>, f64)> = directions
            .eigenvectors
            .column_iter()
            .zip(&directions.eigenvalues)
            .filter(|(_, variance)| **variance <= WORST_HARD_IRON.powi(2))
            .map(|(direction, variance)| (direction.into_owned(), *variance))
            .collect();
        let length = readings[1].len().div_ceil(PIECES).max(1);
        // By how many standard deviations yaw, delay and the known components of the hard iron change without each of
        // the pieces.
        let mut changes = Vec::new();
        for start in (0..readings[1].len()).step_by(length) {
            let rest = readings.each_ref().map(|readings| {
                let end = (start + length).min(readings.len());
                [&readings[..start.min(end)], &readings[end..]].concat()
            });
            let around = self.around(rest.each_ref().map(Vec::as_slice))?;
            let Some(information) = around.information(found.yaw).cholesky() else { continue };
            let step = information.solve(&around.gradient(found.yaw));
            let mut change: Vec<f64> = (0..2).map(|i| step[i] / covariance[(i, i)].sqrt()).collect();
            let hard_iron = around.middle.hard_iron(found.yaw).ok_or(Error::NotPositiveDefinite)?;
            let difference = hard_iron.mean - found.hard_iron.mean;
            change.extend(known.iter().map(|(direction, variance)| direction.dot(&difference) / variance.sqrt()));
            changes.push(change);
        }
        let count = changes.len() as f64;
        let ratio = |quantity: usize| {
            let changes = || changes.iter().map(|change| change[quantity]);
            let mean = changes().sum::<f64>() / count;
            (count - 1.0) / count * changes().map(|change| (change - mean).powi(2)).sum::<f64>()
        };
        let quantities = 2 + known.len();
        Ok(((0..quantities).map(ratio).sum::<f64>() / quantities as f64).max(1.0))
    }
}

/// The evidence at an optimum, and at a slightly smaller and greater delay.
struct Around {
    before: Evidence,
    middle: Evidence,
    after: Evidence,
}

impl Around {
    /// The derivatives of the log evidence in yaw and delay.
    fn gradient(&self, yaw: f64) -> Vector2<f64> {
        Vector2::new(self.middle.derivatives(yaw)[0], (self.after.at(yaw) - self.before.at(yaw)) / (2.0 * FINE_STEP))
    }

    /// Minus its second derivatives.
    fn information(&self, yaw: f64) -> Matrix2<f64> {
        let in_delay = (self.after.at(yaw) - 2.0 * self.middle.at(yaw) + self.before.at(yaw)) / FINE_STEP.powi(2);
        let mixed = (self.after.derivatives(yaw)[0] - self.before.derivatives(yaw)[0]) / (2.0 * FINE_STEP);
        -Matrix2::new(self.middle.derivatives(yaw)[1], mixed, mixed, in_delay)
    }
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// The argument within `reach` of `start` at which a function with one maximum is greatest: golden section.
fn maximum(start: f64, reach: f64, steps: f64, mut value: impl FnMut(f64) -> Result<f64, Error>) -> Result<f64, Error> {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let (mut low, mut high) = (start - reach, start + reach);
    let inner = |low: f64, high: f64| [high - GOLDEN * (high - low), low + GOLDEN * (high - low)];
    let [mut left, mut right] = inner(low, high);
    let [mut at_left, mut at_right] = [value(left)?, value(right)?];
    for _ in 2..steps as usize {
        if at_left > at_right {
            (high, right, at_right) = (right, left, at_left);
            left = inner(low, high)[0];
            at_left = value(left)?;
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = inner(low, high)[1];
            at_right = value(right)?;
        }
    }
    Ok(if at_left > at_right { left } else { right })
}

impl Calibration {
    /// Takes what was found as far as the drive determines it.
    fn take(&mut self, found: &Found, config: &Config) {
        self.inflation = found.inflation.sqrt();
        let estimate = |value, index, worst| {
            let sd = (found.covariance?[(index, index)] * found.inflation).sqrt();
            (sd <= worst).then_some(Estimate { value, sd })
        };
        self.yaw = estimate(found.yaw, 0, WORST_YAW).filter(|_| found.lead >= LEAST_LEAD * found.inflation);
        self.delay = estimate(found.delay, 1, WORST_DELAY).filter(|_| self.yaw.is_some());
        self.hard_iron = self.hard_iron_of(found, config);
        let undetermined = [
            (
                self.yaw.is_none(),
                "the yaw of the mount: the field hardly varies along it, or few places were passed near each other",
            ),
            (self.delay.is_none(), "the delay between the topics: too few turns and too little variation of the field"),
            (
                self.hard_iron.is_none(),
                "the hard iron: drive the same places under different headings, best in opposite directions",
            ),
        ];
        let undetermined = undetermined.into_iter().filter(|(is_undetermined, _)| *is_undetermined);
        self.shortcomings.extend(undetermined.map(|(_, what)| format!("the drive does not determine {what}")));
        self.speed_bias =
            found.speed_bias.filter(|_| found.covariance.is_some()).map(|Coefficients { mean, covariance }| {
                let covariance = covariance * found.inflation;
                let statistic = covariance.cholesky().map_or(0.0, |factor| mean.dot(&factor.solve(&mean)));
                let sd = covariance.diagonal().map(f64::sqrt).into();
                SpeedBias { value: mean.into(), sd, is_significant: statistic > SIGNIFICANT }
            });
    }

    /// The hard iron along the sensor's axes as recorded, zero along directions that are not known. Of those the
    /// standard deviations keep the whole uncertainty.
    fn hard_iron_of(&self, found: &Found, config: &Config) -> Option<HardIron> {
        // Without a covariance the optimum is none, and how much errors are shared is unknown.
        found.covariance?;
        let to_body = turned(&self.mount, found.yaw).rotation.to_rotation_matrix().into_inner();
        let settings = &config.sensor;
        // The residual was found in readings to which the settings' calibration had been applied.
        let undone = Matrix3::from_row_slice(&settings.soft_iron).try_inverse()?;
        let to_sensor = undone * to_body.transpose();
        let directions = SymmetricEigen::new(found.hard_iron.covariance * found.inflation);
        let is_known = |variance: &f64| *variance <= WORST_HARD_IRON.powi(2);
        // With one direction alone, such as on laps in one sense, nothing verifies it.
        if directions.eigenvalues.iter().filter(|variance| is_known(variance)).count() < 2 {
            return None;
        }
        let (mut value, mut variance) = (Vector3::from(settings.hard_iron), Vector3::<f64>::zeros());
        for (direction, along) in directions.eigenvectors.column_iter().zip(&directions.eigenvalues) {
            let in_sensor = to_sensor * direction;
            variance += in_sensor.component_mul(&in_sensor) * *along;
            if is_known(along) {
                value += in_sensor * direction.dot(&found.hard_iron.mean);
            }
        }
        let sd = variance.map(f64::sqrt).into();
        let sd: [Option<f64>; 3] = <[f64; 3]>::map(sd, |sd| Some(sd).filter(|sd| *sd <= WORST_HARD_IRON));
        sd.iter().any(Option::is_some).then(|| HardIron { value: value.into(), sd })
    }

    /// The mount as the drive determines it; as it was recorded where the drive does not determine it, or does not contradict it.
    fn turned_mount(&self) -> Isometry3<f64> {
        self.significant_yaw().map_or(self.mount, |yaw| turned(&self.mount, yaw))
    }

    /// The yaw where it differs from zero by two standard deviations.
    fn significant_yaw(&self) -> Option<f64> {
        self.yaw.filter(|yaw| yaw.value.abs() > 2.0 * yaw.sd).map(|yaw| yaw.value)
    }

    /// The settings with the hard iron.
    fn corrected(&self, config: &Config) -> Config {
        let mut config = config.clone();
        if let Some(hard_iron) = self.hard_iron {
            config.sensor.hard_iron = hard_iron.value;
        }
        config
    }
}

/// A mount turned about the vertical of the body.
fn turned(mount: &Isometry3<f64>, yaw: f64) -> Isometry3<f64> {
    let rotation = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw) * mount.rotation;
    Isometry3::from_parts(mount.translation, rotation)
}

#[cfg(test)]
mod tests;
