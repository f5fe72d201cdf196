//! The path of a whole drive, from its trajectory.

use nalgebra::{Isometry2, Matrix2, Vector3};
use streaming_gp::NamedValue;

use super::basis::FieldPrior;
use super::chain::{DRIFT, IRON, OdometryNoise, PlanePose, SCALE, chain, plane_pose};
use super::smoother::{Prior, Smoother};
use crate::config::{self, Config, Mapped};
use crate::sensing::reading::{MagneticField, Observation};
use crate::trajectory::{Correction, Node, fold};

/// Sources on a side that cause less than this share of the field's variance are left out: they would double the unknowns.
const LEAST_SHARE: f64 = 0.1;

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
    /// It was stopped.
    #[error("the estimation was interrupted; the path of odometry is kept")]
    Stopped,
}

/// The path that explains the readings of a drive best, and what is known beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Where odometry was in the map.
    pub correction: Correction,
    /// The same as it was known when the robot was there.
    pub online: Correction,
    /// Covariance of each place after the path is turned and shifted to fit the truth best, in metres squared, one for each node.
    pub covariances: Vec<Matrix2<f64>>,
    /// Relative error of the distances of odometry: positive where it reports too short ones.
    pub scale: f64,
    /// Drift of the heading of odometry, in radians per metre: positive where it turns too little to the left.
    pub drift: f64,
    /// Hard iron of the sensor, in microtesla.
    pub hard_iron: [f64; 3],
}

/// The hyperparameters of the field by these observations, at their poses by odometry: geometric means over pieces of the path, along which
/// odometry is still good. A map of the whole path would contradict itself where the robot comes back.
pub fn local_hyperparameters(
    config: &Config,
    observations: &[Observation],
    stop: &(dyn Fn() -> bool + Sync),
) -> Vec<NamedValue> {
    let mut config = config.decided(Mapped::Vector).into_owned();
    config.tiles.size = 0.0;
    let pieces = groups(observations, PIECE, f64::INFINITY);
    let maps = pieces.iter().filter_map(|piece| fold(&config, [piece], stop).map());
    let values: Vec<Vec<NamedValue>> = maps.map(|map| map.hyperparameters()).collect();
    let mean = |(index, named): (usize, &NamedValue)| {
        let logarithms = values.iter().map(|values| values[index].value.ln());
        NamedValue { name: named.name.clone(), value: (logarithms.sum::<f64>() / values.len() as f64).exp() }
    };
    values.first().map(|names| names.iter().enumerate().map(mean).collect()).unwrap_or_default()
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
    let groups = groups(observations, config.slam.pose_spacing, MOST_TURN);
    let averages: Vec<Observation> = groups.iter().map(|group| average(group)).collect();
    let start = averages.first().map(plane_pose).ok_or(Error::NoAxes)?;
    let mut smoother = Smoother::new(prior, start, chain(&averages));
    while smoother.poses().len() < averages.len() {
        smoother.extend().map_err(|_| Error::NoSolution)?;
        if stop() {
            return Err(Error::Stopped);
        }
    }
    smoother.finish().map_err(|_| Error::NoSolution)?;
    let covariances = smoother.covariances_of_shape().map_err(|_| Error::NoSolution)?;
    let correction = |poses: &[PlanePose]| {
        let mut first = 0;
        let node = |((group, average), pose): ((&&[Observation], &Observation), &PlanePose)| {
            let middle = first as f64 + 0.5 * (group.len() - 1) as f64;
            first += group.len();
            Node::new(middle, &(Isometry2::new(pose.xy(), pose.z) * average.in_plane().inverse()))
        };
        Correction::new(groups.iter().zip(&averages).zip(poses).map(node).collect()).ok_or(Error::NoSolution)
    };
    let shared = smoother.shared();
    Ok(Estimate {
        correction: correction(smoother.poses())?,
        online: correction(smoother.online())?,
        covariances,
        scale: shared[SCALE],
        drift: shared[DRIFT],
        hard_iron: shared.fixed_rows::<3>(IRON).into_owned().into(),
    })
}

impl Prior {
    /// What these settings, the standard deviation of the hard iron (microtesla) and the hyperparameters of a field by name say; none where
    /// they are not those of the three axes.
    pub fn learnt(settings: &config::Slam, hard_iron: f64, hyperparameters: &[NamedValue]) -> Option<Self> {
        let value = |name: &str| hyperparameters.iter().find(|named| named.name == name).map(|named| named.value);
        let variances = [value("variance")?, value("variance_above").unwrap_or(0.0)];
        let total: f64 = variances.iter().sum();
        let [variance_below, variance_above] =
            variances.map(|variance| if variance > LEAST_SHARE * total { variance } else { 0.0 });
        let field = FieldPrior { variance_below, variance_above, lengthscale: value("lengthscale")? };
        let mut prior = Self::new(field, settings.noise_factor * value("noise")?);
        prior.shared.fixed_rows_mut::<3>(IRON).fill(hard_iron.max(LEAST_HARD_IRON));
        (prior.shared[SCALE], prior.shared[DRIFT]) = (settings.odometry_scale, settings.odometry_drift);
        prior.odometry = OdometryNoise {
            forward: settings.odometry_forward,
            sideways: settings.odometry_sideways,
            heading: settings.odometry_heading,
            turning: settings.odometry_turning,
        };
        Some(prior)
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
