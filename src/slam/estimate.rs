//! The path of a drive, from its observations: of a whole one, or of one that goes on.

use nalgebra::{Isometry2, Matrix2, Matrix3, Vector3};
use streaming_gp::NamedValue;

use super::basis::FieldPrior;
use super::chain::{DELAY, DRIFT, IRON, OdometryNoise, PlanePose, SCALE, chain, plane_pose, wrapped};
use super::prior::Prior;
use super::smoother::{CHUNK, Revisit, Smoother};
use crate::config::{self, Config, Mapped};
use crate::sensing::reading::{MagneticField, Observation};
use crate::trajectory::{Correction, Node, fold};

/// Sources on a side that cause less than this share of the field's variance are left out: they would double the unknowns.
const LEAST_SHARE: f64 = 0.1;

/// Standard deviation of the scale of odometry on the way. Held at once, a scale that is wrong by some per cent would let the path miss itself.
const SCALE_DEVIATION: f64 = 0.01;

/// Least standard deviation of the hard iron, in microtesla: its information is finite.
const LEAST_HARD_IRON: f64 = 1e-3;

/// Length of the pieces of a path from which the hyperparameters are learnt, in metres.
const PIECE: f64 = 10.0;

/// A group of observations ends where the heading has changed by this, in radians.
const MOST_TURN: f64 = 0.3;

/// Why a path cannot be estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was observed, or the strength alone.
    #[error("there is no map of the three axes; SLAM needs a sensor with three axes whose place on the robot is known")]
    NoAxes,
    /// Rounding left no solution.
    #[error("path and field have no solution in double precision; the path of odometry is kept")]
    NoSolution,
    /// No place was visited twice.
    #[error(
        "the path never comes back to a place where it was, so that the field cannot correct it; the path of odometry is kept"
    )]
    NeverReturned,
    /// The estimation was stopped.
    #[error("the estimation was interrupted; the path of odometry is kept")]
    Stopped,
}

/// The path that explains the readings of a drive best, and what is known beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Where odometry was in the map.
    pub correction: Correction,
    /// Where odometry was in the map, as it was known when the robot was there.
    pub online: Correction,
    /// Covariance of each place after the path is turned and shifted to fit the truth best, in metres squared, one for each node.
    pub covariances: Vec<Matrix2<f64>>,
    /// How much longer the movements along the path are than by odometry, as [`Smoother::length_ratio`] fits it.
    pub length_ratio: f64,
    /// Drift of the heading of odometry, in radians per metre: positive where it turns too little to the left.
    pub drift: f64,
    /// Time by which the stamps of readings are late, in seconds, and its standard deviation.
    pub delay: [f64; 2],
    /// Hard iron of the sensor, in microtesla.
    pub hard_iron: [f64; 3],
    /// Where the path came back to places where it was before.
    pub revisits: Vec<Revisit>,
}

/// The path of a drive, estimated as observations come in.
#[derive(Clone, Debug)]
pub struct PathEstimator {
    prior: Prior,
    pose_spacing: f64,
    /// Observations that may go on with others to the next pose.
    open: Vec<Observation>,
    /// For each pose the mean of its observations, and where their middle is among all.
    groups: Vec<(Observation, f64)>,
    /// Number of observations in these groups.
    grouped: usize,
    smoother: Option<Smoother>,
}

impl PathEstimator {
    /// An estimator that has no observations yet; `prior` holds for the whole path.
    pub fn new(prior: Prior, pose_spacing: f64) -> Self {
        Self { prior, pose_spacing, open: Vec::new(), groups: Vec::new(), grouped: 0, smoother: None }
    }

    /// Adds observations, at their poses by odometry.
    pub fn add(&mut self, observations: &[Observation]) {
        let mut open = std::mem::take(&mut self.open);
        open.extend_from_slice(observations);
        let mut groups = groups(&open, self.pose_spacing, MOST_TURN);
        let last = groups.pop().map(<[_]>::to_vec).unwrap_or_default();
        groups.into_iter().for_each(|group| self.add_group(group));
        self.open = last;
    }

    /// Nothing follows for now.
    pub fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            self.add_group(&open);
        }
    }

    fn add_group(&mut self, group: &[Observation]) {
        self.groups.push((average(group), self.grouped as f64 + 0.5 * (group.len() - 1) as f64));
        self.grouped += group.len();
    }

    /// Number of poses that are not estimated yet.
    pub fn waiting(&self) -> usize {
        self.groups.len() - self.smoother.as_ref().map_or(0, |smoother| smoother.measured().len())
    }

    /// Whether as many poses wait as are estimated at a time.
    pub fn is_chunk_waiting(&self) -> bool {
        self.waiting() >= CHUNK
    }

    /// Estimates some metres more of the path, and all before again.
    ///
    /// # Errors
    /// [`Error`], as for all methods below.
    pub fn extend(&mut self) -> Result<(), Error> {
        let known = self.smoother.as_ref().map_or(0, Smoother::known);
        // The movement to the first new pose depends on the velocity at the pose before, which comes from the one before that.
        let from = known.saturating_sub(2);
        let averages: Vec<Observation> = self.groups[from..].iter().map(|(average, _)| *average).collect();
        let links = chain(&averages);
        let smoother = match &mut self.smoother {
            Some(smoother) => {
                smoother.push(&links[known - from..]);
                smoother
            }
            None => {
                let start = averages.first().map(plane_pose).ok_or(Error::NoAxes)?;
                self.smoother.insert(Smoother::new(self.prior.clone(), start, links))
            }
        };
        smoother.extend().map_err(|_| Error::NoSolution)
    }

    /// Estimates the whole path again, under another prior.
    pub fn set_prior(&mut self, prior: Prior) -> Result<(), Error> {
        self.prior = prior.clone();
        self.smoother.as_mut().map_or(Ok(()), |smoother| smoother.set_prior(prior)).map_err(|_| Error::NoSolution)
    }

    /// Whether the path has come back to where it was. Before that, odometry is kept.
    pub fn has_returned(&self) -> bool {
        self.smoother.as_ref().is_some_and(Smoother::has_returned)
    }

    /// Estimates the whole path again, with everything linearised where it is.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.smoother.as_mut().map_or(Ok(()), Smoother::finish).map_err(|_| Error::NoSolution)
    }

    /// Where odometry was in the map at the poses so far.
    pub fn correction(&self) -> Result<Correction, Error> {
        self.correction_to(&self.smoother()?.path())
    }

    /// How far the sensor was from where it measured by another correction: the largest distance in metres, or angle in radians.
    pub fn moved_since(&self, correction: &Correction) -> f64 {
        let measured = self.smoother.as_ref().map_or(&[][..], Smoother::measured);
        let moved = |((average, middle), pose): (&(Observation, f64), &PlanePose)| {
            let before = correction.measured_pose(*middle, &average.in_plane());
            let angle = wrapped(pose.z - before.rotation.angle()).abs();
            (pose.xy() - before.translation.vector).norm().max(angle)
        };
        self.groups.iter().zip(measured).map(moved).fold(0.0, f64::max)
    }

    /// How far the last of these poses is known.
    pub fn tracked(&self) -> Result<Tracked, Error> {
        let smoother = self.smoother()?;
        let last = smoother.measured().len().checked_sub(1).ok_or(Error::NoAxes)?;
        Ok(Tracked {
            odometry: self.groups[last].0.in_plane(),
            covariance: smoother.covariance_of_last().map_err(|_| Error::NoSolution)?,
            noise: self.prior.odometry,
            pose_spacing: self.pose_spacing,
            drift: smoother.shared()[DRIFT],
            delay: smoother.shared()[DELAY],
        })
    }

    /// The whole estimate.
    pub fn estimate(&self) -> Result<Estimate, Error> {
        let smoother = self.smoother()?;
        let shared = smoother.shared();
        Ok(Estimate {
            correction: self.correction()?,
            online: self.correction_to(smoother.online())?,
            covariances: smoother.covariances_of_shape().map_err(|_| Error::NoSolution)?,
            length_ratio: smoother.length_ratio(),
            drift: shared[DRIFT],
            delay: [shared[DELAY], smoother.delay_deviation().map_err(|_| Error::NoSolution)?],
            hard_iron: shared.fixed_rows::<3>(IRON).into_owned().into(),
            revisits: smoother.revisits().map_err(|_| Error::NoSolution)?,
        })
    }

    fn smoother(&self) -> Result<&Smoother, Error> {
        self.smoother.as_ref().ok_or(Error::NoAxes)
    }

    fn correction_to(&self, poses: &[PlanePose]) -> Result<Correction, Error> {
        let lags = self.smoother()?.lags(self.groups.iter().map(|(average, _)| plane_pose(average)));
        let node = |(((average, middle), pose), lag): ((&(Observation, f64), &PlanePose), Vector3<f64>)| {
            let transform = Isometry2::new(pose.xy(), pose.z) * average.in_plane().inverse();
            Node { lag: lag.into(), ..Node::new(*middle, &transform) }
        };
        Correction::new(self.groups.iter().zip(poses).zip(lags).map(node).collect()).ok_or(Error::NoSolution)
    }
}

/// Where the path is known to last, while it goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Tracked {
    /// Pose of the sensor there, by odometry.
    pub odometry: Isometry2<f64>,
    /// Covariance of its pose in the map, given the first pose: metres and radians.
    pub covariance: Matrix3<f64>,
    noise: OdometryNoise,
    pose_spacing: f64,
    /// Drift of the heading of odometry, in radians per metre: positive where it turns too little to the left.
    pub drift: f64,
    /// Time by which the stamps of readings are late, in seconds.
    pub delay: f64,
}

impl Tracked {
    /// A path that begins here, by odometry.
    pub fn from_start(settings: &config::Slam, odometry: Isometry2<f64>) -> Self {
        let (noise, pose_spacing) = (OdometryNoise::of(settings), settings.pose_spacing);
        Self { odometry, covariance: Matrix3::zeros(), noise, pose_spacing, drift: 0.0, delay: 0.0 }
    }

    /// Covariance of the pose in the map where odometry is here now; `map_from_odometry` turns it into the frame of the map.
    pub fn covariance_at(&self, odometry: &Isometry2<f64>, map_from_odometry: &Isometry2<f64>) -> Matrix3<f64> {
        let moved = map_from_odometry.rotation * (odometry.translation.vector - self.odometry.translation.vector);
        let turned = self.odometry.rotation.angle_to(&odometry.rotation);
        let mut by_heading = Matrix3::identity();
        (by_heading.m13, by_heading.m23) = (-moved.y, moved.x);
        let length = moved.norm();
        let variances = self.noise.variances(length, turned);
        // A heading that wanders turns what has been driven by a third of its variance at the end.
        let place =
            variances.x + variances.y * (length / self.pose_spacing).max(1.0) + variances.z * length * length / 3.0;
        let noise = Matrix3::from_diagonal(&Vector3::new(place, place, variances.z));
        by_heading * self.covariance * by_heading.transpose() + noise
    }
}

/// The hyperparameters of the field by pieces of the path, along which odometry is still good. A map of the whole path would contradict
/// itself where the robot comes back.
#[derive(Clone, Debug)]
pub struct LocalHyperparameters {
    config: Config,
    /// Observations of the piece that is not finished.
    open: Vec<Observation>,
    learnt: Vec<Vec<NamedValue>>,
}

impl LocalHyperparameters {
    /// No piece yet.
    pub fn new(config: &Config) -> Self {
        let mut config = config.decided(Mapped::Vector).into_owned();
        config.tiles.size = 0.0;
        Self { config, open: Vec::new(), learnt: Vec::new() }
    }

    /// Learns from the pieces that these observations complete, at their poses by odometry.
    pub fn add(&mut self, observations: &[Observation], stop: &(dyn Fn() -> bool + Sync)) {
        let mut open = std::mem::take(&mut self.open);
        open.extend_from_slice(observations);
        let mut pieces = groups(&open, PIECE, f64::INFINITY);
        let last = pieces.pop().map(<[_]>::to_vec).unwrap_or_default();
        pieces.into_iter().for_each(|piece| self.learn(piece, stop));
        self.open = last;
    }

    /// Learns from the last piece, too.
    pub fn close(&mut self, stop: &(dyn Fn() -> bool + Sync)) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            self.learn(&open, stop);
        }
    }

    fn learn(&mut self, piece: &[Observation], stop: &(dyn Fn() -> bool + Sync)) {
        self.learnt.extend(fold(&self.config, [piece], stop).map().map(|map| map.hyperparameters()));
    }

    /// The geometric means over all pieces, by name; empty without any.
    pub fn mean(&self) -> Vec<NamedValue> {
        let mean = |(index, named): (usize, &NamedValue)| {
            let logarithms = self.learnt.iter().map(|values| values[index].value.ln());
            let value = (logarithms.sum::<f64>() / self.learnt.len() as f64).exp();
            NamedValue { name: named.name.clone(), value }
        };
        self.learnt.first().map(|names| names.iter().enumerate().map(mean).collect()).unwrap_or_default()
    }
}

/// The hyperparameters of the field by these observations, at their poses by odometry.
pub fn local_hyperparameters(
    config: &Config,
    observations: &[Observation],
    stop: &(dyn Fn() -> bool + Sync),
) -> Vec<NamedValue> {
    let mut pieces = LocalHyperparameters::new(config);
    pieces.add(observations, stop);
    pieces.close(stop);
    pieces.mean()
}

/// Estimates the path of these observations, at their poses by odometry, given the hyperparameters of the field by name. `stop` is checked
/// after every few metres.
///
/// # Errors
/// [`Error`]; the path of odometry is then the best there is.
pub fn estimate(
    config: &Config,
    observations: &[Observation],
    hyperparameters: &[NamedValue],
    stop: &dyn Fn() -> bool,
) -> Result<Estimate, Error> {
    let prior = Prior::learnt(&config.slam, config.vector.hard_iron, hyperparameters).ok_or(Error::NoAxes)?;
    let mut path = PathEstimator::new(prior, config.slam.pose_spacing);
    path.add(observations);
    path.close();
    while path.waiting() > 0 {
        path.extend()?;
        if stop() {
            return Err(Error::Stopped);
        }
    }
    path.finish()?;
    if !path.has_returned() {
        return Err(Error::NeverReturned);
    }
    path.estimate()
}

impl Prior {
    /// The prior by these settings, the standard deviation of the hard iron (microtesla) and the hyperparameters of a field by name; none
    /// where they are not those of the three axes.
    pub fn learnt(settings: &config::Slam, hard_iron: f64, hyperparameters: &[NamedValue]) -> Option<Self> {
        let value = |name: &str| hyperparameters.iter().find(|named| named.name == name).map(|named| named.value);
        let variances = [value("variance")?, value("variance_above").unwrap_or(0.0)];
        let total: f64 = variances.iter().sum();
        let [variance_below, variance_above] =
            variances.map(|variance| if variance > LEAST_SHARE * total { variance } else { 0.0 });
        let field = FieldPrior { variance_below, variance_above, lengthscale: value("lengthscale")? };
        let mut prior = Self::new(field, settings.noise_factor * value("noise")?);
        prior.is_lengthscale_known = false;
        prior.shared.fixed_rows_mut::<3>(IRON).fill(hard_iron.max(LEAST_HARD_IRON));
        (prior.shared[SCALE], prior.shared[DRIFT]) = (SCALE_DEVIATION, settings.odometry_drift);
        prior.stretch = settings.odometry_scale;
        prior.odometry = OdometryNoise::of(settings);
        Some(prior)
    }
}

impl OdometryNoise {
    fn of(settings: &config::Slam) -> Self {
        Self {
            forward: settings.odometry_forward,
            sideways: settings.odometry_sideways,
            heading: settings.odometry_heading,
            turning: settings.odometry_turning,
        }
    }
}

/// Divides observations into groups whose path is about this long, in metres, and turns by no more than this, in radians.
fn groups(observations: &[Observation], length: f64, most_turn: f64) -> Vec<&[Observation]> {
    let (mut groups, mut rest) = (Vec::new(), observations);
    while !rest.is_empty() {
        let (mut count, mut travelled) = (1, 0.0);
        let heading = rest[0].in_plane().rotation;
        while let [before, next, ..] = &rest[count - 1..] {
            let step = (next.position - before.position).norm();
            travelled += step;
            // With the next one, it would be longer by half a step than it is shorter without.
            if travelled + 0.5 * step >= length || heading.angle_to(&next.in_plane().rotation).abs() > most_turn {
                break;
            }
            count += 1;
        }
        let (group, others) = rest.split_at(count);
        groups.push(group);
        rest = others;
    }
    groups
}

/// The mean of some observations, weighted by their readings.
fn average(group: &[Observation]) -> Observation {
    let total: f64 = group.iter().map(|seen| f64::from(seen.readings)).sum();
    let weighted = || group.iter().map(|seen| (seen, f64::from(seen.readings) / total));
    let field: Vector3<f64> = weighted().map(|(seen, weight)| seen.field.microtesla() * weight).sum();
    let position: Vector3<f64> = weighted().map(|(seen, weight)| seen.position.coords * weight).sum();
    Observation {
        position: position.into(),
        orientation: weighted().map(|(seen, weight)| seen.orientation * weight).sum(),
        field: MagneticField::from_microtesla(field),
        strength: weighted().map(|(seen, weight)| seen.strength * weight).sum(),
        speed: weighted().map(|(seen, weight)| seen.speed * weight).sum(),
        readings: group.iter().map(|seen| seen.readings).fold(0, u32::saturating_add),
        stamp: group[group.len() - 1].stamp,
    }
}
