//! The path as a chain of poses, held together by odometry.
//!
//! The movement between neighbours, seen from the heading of the first, differs from that of odometry by noise, and by a scale and a drift
//! that stay the same for the whole path.
//!
//! Stamps of readings may be late. The poses of the chain are those where the sensor was when it measured; with a delay of τ they are, to
//! first order, those of the stamps less τ times the velocity by odometry. So the delay changes the movements by odometry, as its scale and
//! drift do, and only where the velocity changes.

use std::f64::consts::{PI, TAU};

use nalgebra::{Isometry2, Matrix3, Rotation2, Rotation3, SVector, Vector2, Vector3};

use crate::sensing::reading::Observation;

/// Place in metres and heading in radians, in the frame of the map: x, y, heading.
pub type PlanePose = Vector3<f64>;

/// Number of unknowns that the whole path shares.
pub const SHARED: usize = 9;

/// Unknowns that the whole path shares: scale of odometry, its drift (radians per metre), delay of the readings (seconds), hard iron along
/// the axes of the sensor, and mean of the field along the axes of the map, in microtesla.
pub type Shared = SVector<f64, SHARED>;

/// Index of the relative error of odometry's distances among the shared unknowns.
pub const SCALE: usize = 0;
/// Index of the drift of odometry's heading, in radians per metre.
pub const DRIFT: usize = 1;
/// Index of the delay of the readings, in seconds.
pub const DELAY: usize = 2;
/// Index of the first component of the hard iron.
pub const IRON: usize = 3;
/// Index of the first component of the mean of the field.
pub const MEAN: usize = 6;

/// Number of the unknowns that movements depend on, which come first.
pub(super) const OF_ODOMETRY: usize = 3;

/// Shortest time between observations from which a velocity is computed, in seconds: stamps may be equal.
const SHORTEST: f64 = 0.01;

/// No movement is as long, in metres.
const LARGEST_MOVEMENT: f64 = 1e6;

/// Added to variances of odometry, for a robot that stands still: a tenth of a millimetre, or of a milliradian.
const LEAST_VARIANCE: f64 = 1e-8;

/// How heavy the tails of odometry's noise are: as those of Student's t with this many degrees of freedom, so that wheels may slip. With more, a
/// slip bends the path around it; with fewer, the noise of every movement would look like slips.
const FREEDOM: f64 = 10.0;

/// An observation of the field, and how odometry came there from the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Movement of the sensor by odometry since the observation before, in the frame of the heading there, in metres.
    pub movement: Vector2<f64>,
    /// Change of the heading by odometry since then, in radians.
    pub turn: f64,
    /// Velocity of the sensor by odometry at the observation, in the frame of the heading: metres and radians per second.
    pub velocity: Vector3<f64>,
    /// Derivative of the movement and of the turn with respect to the delay of the readings.
    pub lag: Vector3<f64>,
    /// Field in the frame that is turned by the heading only, in microtesla.
    pub field: Vector3<f64>,
    /// Rotation from the sensor's frame to that frame: its mount, roll and pitch.
    pub tilt: Matrix3<f64>,
}

/// Standard deviations of odometry's noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OdometryNoise {
    /// Of the distance after a metre, in metres.
    pub forward: f64,
    /// Of the sideways movement between two observations, in metres.
    pub sideways: f64,
    /// Of the heading after a metre, in radians.
    pub heading: f64,
    /// Of the heading after a radian of rotation, in radians.
    pub turning: f64,
}

/// How far the movement between two poses is from that of odometry, and what its derivatives are made of: as matrices they would take most
/// of the memory of a pose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Movement {
    /// Along the movement and sideways in metres, and the heading in radians.
    pub error: Vector3<f64>,
    /// One over the variance of each, less for a movement that slipped.
    pub weight: Vector3<f64>,
    /// The movement's part of the objective.
    pub cost: f64,
    /// Direction of the movement by odometry, in the frame of the map.
    direction: Vector2<f64>,
    /// Movement of the poses along that direction and sideways, in metres.
    moved: Vector2<f64>,
    /// Length of the movement by odometry, in metres.
    length: f64,
    /// Derivative of the movement by odometry with respect to the delay: along it, sideways, and of the heading.
    lag: Vector3<f64>,
}

impl Movement {
    /// Derivatives of the error in the first pose.
    pub fn before(&self) -> Matrix3<f64> {
        let mut before = -self.after();
        (before.m13, before.m23) = (self.moved.y, -self.moved.x);
        before
    }

    /// Derivatives of the error in the second pose.
    pub fn after(&self) -> Matrix3<f64> {
        let [cos, sin] = self.direction.into();
        Matrix3::new(cos, sin, 0.0, -sin, cos, 0.0, 0.0, 0.0, 1.0)
    }

    /// Derivatives of the error in scale, drift and delay.
    pub fn shared(&self) -> Matrix3<f64> {
        let [along, sideways, turn] = self.lag.into();
        Matrix3::new(-self.length, 0.0, -along, 0.0, 0.0, -sideways, 0.0, -self.length, -turn)
    }
}

impl OdometryNoise {
    /// Variances of a movement between two observations by this length, in metres, and turn, in radians: along it, sideways, and of
    /// the heading.
    pub(super) fn variances(&self, length: f64, turn: f64) -> Vector3<f64> {
        let variance = |deviation: f64, amount: f64| deviation * deviation * amount + LEAST_VARIANCE;
        Vector3::new(
            variance(self.forward, length),
            variance(self.sideways, 1.0),
            variance(self.heading, length) + variance(self.turning, turn.abs()),
        )
    }

    pub(super) fn movement(&self, before: &PlanePose, after: &PlanePose, link: &Link, shared: &Shared) -> Movement {
        // Along the movement by odometry and across it: the sensor may be mounted at any angle.
        let direction = link.movement.y.atan2(link.movement.x);
        let (sin, cos) = (before.z + direction).sin_cos();
        let moved = after.xy() - before.xy();
        let [forward, sideways] = [cos * moved.x + sin * moved.y, cos * moved.y - sin * moved.x];
        let length = link.movement.norm();
        let lag = Rotation3::from_axis_angle(&Vector3::z_axis(), -direction) * link.lag;
        let turned = wrapped(after.z - before.z - link.turn - shared[DRIFT] * length - shared[DELAY] * lag.z);
        let variances = self.variances(length, link.turn);
        let place = Vector2::new(forward - length * (1.0 + shared[SCALE]), sideways) - shared[DELAY] * lag.xy();
        let error = Vector3::new(place.x, place.y, turned);
        let excess = error.component_mul(&error).component_div(&variances).sum() / FREEDOM;
        Movement {
            error,
            weight: variances.map(|variance| 1.0 / (variance * (1.0 + excess))),
            cost: 0.5 * FREEDOM * excess.ln_1p(),
            direction: Vector2::new(cos, sin),
            moved: Vector2::new(forward, sideways),
            length,
            lag,
        }
    }
}

/// The pose of an observation in the plane.
pub fn plane_pose(observation: &Observation) -> PlanePose {
    let pose = observation.in_plane();
    Vector3::new(pose.translation.x, pose.translation.y, pose.rotation.angle())
}

/// The chain of these observations, whose poses are those of odometry.
pub fn chain(observations: &[Observation]) -> Vec<Link> {
    let link = |(index, observation): (usize, &Observation)| {
        let before = index.checked_sub(1).map_or(observation, |before| &observations[before]);
        let seconds = observation.stamp.seconds_since(before.stamp);
        let [before, pose] = [before, observation].map(plane_pose);
        let levelled = Rotation3::from_axis_angle(&Vector3::z_axis(), -pose.z);
        let field = levelled * observation.field.microtesla();
        let link = Link::new(&before, &pose, seconds, field);
        Link { tilt: levelled * observation.orientation, ..link }
    };
    joined(observations.iter().enumerate().map(link).collect())
}

/// Computes the [lag](Link::lag) of each link, which depends on the velocity at the previous one.
pub(super) fn joined(mut links: Vec<Link>) -> Vec<Link> {
    // The velocity at the first observation is unknown: assume that of the second.
    if let [first, second, ..] = &mut links[..] {
        first.velocity = second.velocity;
    }
    for index in 1..links.len() {
        links[index].lag = links[index].lag_after(&links[index - 1].velocity);
    }
    links
}

/// Observations at other poses in the plane, one for each.
pub fn moved(observations: &[Observation], poses: &[PlanePose]) -> Vec<Observation> {
    let moved =
        |(observation, pose): (&Observation, &PlanePose)| observation.moved_to(&Isometry2::new(pose.xy(), pose.z));
    observations.iter().zip(poses).map(moved).collect()
}

impl Link {
    /// A link between two poses of odometry, with the time between them in seconds and the field measured by a level sensor that points ahead.
    /// The lag is left at zero; [`joined`] computes it.
    pub(super) fn new(before: &PlanePose, pose: &PlanePose, seconds: f64, field: Vector3<f64>) -> Self {
        let (movement, turn) = (Rotation2::new(-before.z) * (pose - before).xy(), wrapped(pose.z - before.z));
        let moved = Rotation2::new(-0.5 * turn) * movement;
        let rate = if seconds > 0.0 { 1.0 / seconds.max(SHORTEST) } else { 0.0 };
        let velocity = Vector3::new(moved.x, moved.y, turn) * rate;
        Self { movement, turn, velocity, lag: Vector3::zeros(), field, tilt: Matrix3::identity() }
    }

    /// Whether all of it is finite, and no movement beyond what a robot can be away.
    pub(super) fn is_valid(&self) -> bool {
        let numbers = self.field.iter().chain(&self.tilt).chain([&self.turn]).chain(&self.velocity).chain(&self.lag);
        numbers.into_iter().all(|value| value.is_finite()) && self.movement.norm() < LARGEST_MOVEMENT
    }

    /// Derivative of the movement with respect to the delay τ, given the velocity at the previous observation: that of exp(τ v) M exp(-τ w), with
    /// M the movement, and v and w the velocities at its ends.
    fn lag_after(&self, before: &Vector3<f64>) -> Vector3<f64> {
        let turned = Vector2::new(-self.movement.y, self.movement.x) * before.z;
        let place = before.xy() + turned - Rotation2::new(self.turn) * self.velocity.xy();
        Vector3::new(place.x, place.y, before.z - self.velocity.z)
    }

    /// The pose that follows by odometry, with this scale, drift and delay.
    pub fn follow(&self, pose: &PlanePose, shared: &Shared) -> PlanePose {
        let lag = self.lag * shared[DELAY];
        let moved = self.movement * (1.0 + shared[SCALE]) + lag.xy();
        let turn = self.turn + shared[DRIFT] * self.movement.norm() + lag.z;
        moved_by(pose, &moved, turn)
    }

    /// Velocity in the frame of the map: the derivative of the [pose at the stamp](Self::at_stamp) with respect to the delay.
    pub(super) fn velocity_in_map(&self, measured: &PlanePose) -> Vector3<f64> {
        Rotation3::from_axis_angle(&Vector3::z_axis(), measured.z) * self.velocity
    }

    /// The pose at the stamp, given the pose at which the reading was taken.
    pub(super) fn at_stamp(&self, measured: &PlanePose, shared: &Shared) -> PlanePose {
        let turned = measured + Vector3::z() * (self.velocity.z * shared[DELAY]);
        measured + self.lag_at(&turned, shared)
    }

    /// The pose at which the reading was taken, given the pose at the stamp.
    pub(super) fn measured(&self, at_stamp: &PlanePose, shared: &Shared) -> PlanePose {
        at_stamp - self.lag_at(at_stamp, shared)
    }

    /// Movement during the delay that ends at this pose, in the frame of the pose.
    pub(super) fn lag_at(&self, at_stamp: &PlanePose, shared: &Shared) -> Vector3<f64> {
        let moved = self.velocity * shared[DELAY];
        Rotation3::from_axis_angle(&Vector3::z_axis(), at_stamp.z - 0.5 * moved.z) * moved
    }
}

/// The pose after a movement in the frame of its heading, and a turn.
fn moved_by(pose: &PlanePose, movement: &Vector2<f64>, turn: f64) -> PlanePose {
    let moved = Rotation2::new(pose.z) * movement;
    pose + Vector3::new(moved.x, moved.y, turn)
}

/// The angle between -pi and pi.
pub fn wrapped(angle: f64) -> f64 {
    (angle + PI).rem_euclid(TAU) - PI
}

#[cfg(test)]
mod tests {
    use nalgebra::Point3;

    use super::*;
    use crate::sensing::reading::{MagneticField, Stamp};

    /// Time between two observations, in seconds.
    const STEP: f64 = 0.02;

    /// A robot that speeds up, slows down and swerves.
    fn pose(seconds: f64) -> PlanePose {
        Vector3::new(0.5 * seconds + 0.2 * seconds.sin(), 0.3 * (1.3 * seconds).cos(), 0.8 * (0.9 * seconds).sin())
    }

    fn observation(seconds: f64, pose: &PlanePose) -> Observation {
        Observation {
            stamp: Stamp::from_seconds(seconds),
            position: Point3::new(pose.x, pose.y, 0.0),
            orientation: *Rotation3::from_axis_angle(&Vector3::z_axis(), pose.z).matrix(),
            speed: 0.5,
            field: MagneticField::from_microtesla(Vector3::new(20.0, 0.0, -40.0)),
            strength: 45.0,
            readings: 1,
        }
    }

    #[test]
    fn with_a_delay_the_chain_is_that_of_where_the_sensor_was_before() {
        let observations: Vec<Observation> =
            (0..300).map(|index| observation(STEP * f64::from(index), &pose(STEP * f64::from(index)))).collect();
        let links = chain(&observations);
        let delay = 0.05;
        let mut shared = Shared::zeros();
        shared[DELAY] = delay;
        let mut followed = pose(STEP - delay);
        for (index, link) in links.iter().enumerate().skip(2) {
            followed = link.follow(&followed, &shared);
            let now = STEP * index as f64;
            // Velocities are those of half a step before, and the delay counts to first order: a millimetre, with accelerations of 0.5 m/s^2.
            assert!((followed - pose(now - delay)).amax() < 3e-3, "{now} {followed} {}", pose(now - delay));
            let stamped = link.at_stamp(&pose(now - delay), &shared);
            assert!((stamped - pose(now)).amax() < 3e-3, "{now} {stamped} {}", pose(now));
        }
    }

    #[test]
    fn a_robot_that_keeps_its_velocity_tells_no_delay() {
        // An arc: one radian per second at 0.5 m/s.
        let arc = |seconds: f64| Vector3::new(0.5 * seconds.sin(), 0.5 - 0.5 * seconds.cos(), seconds);
        let observations: Vec<Observation> =
            (0..50).map(|index| observation(0.1 * f64::from(index), &arc(0.1 * f64::from(index)))).collect();
        for link in &chain(&observations)[1..] {
            // The way along an arc is longer than that of its chord, by 4e-4 of it.
            assert!(link.lag.amax() < 1e-4, "{}", link.lag);
        }
    }

    #[test]
    fn equal_stamps_or_a_clock_that_jumps_back_give_no_velocity() {
        let stamps = [0.0, 0.0, 1.0, 0.5, 0.501];
        let observations: Vec<Observation> =
            (0..5).map(|index| observation(stamps[index], &Vector3::new(0.1 * index as f64, 0.0, 0.0))).collect();
        let speeds: Vec<f64> = chain(&observations).iter().map(|link| link.velocity.x).collect();
        // Ten metres per second is the most that a tenth of a metre can be.
        assert!(
            [0.0, 0.0, 0.1, 0.0, 10.0].iter().zip(&speeds).all(|(one, other)| (one - other).abs() < 1e-12),
            "{speeds:?}"
        );
    }
}
