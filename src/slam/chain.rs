//! The path as a chain of poses, held together by odometry.
//!
//! The movement between neighbours, seen from the heading of the first, differs from that of odometry by noise, and by a scale and a drift
//! that stay the same for the whole path.

use std::f64::consts::{PI, TAU};

use nalgebra::{Isometry2, Matrix3, Matrix3x2, Rotation2, Rotation3, SVector, Vector2, Vector3};

use crate::sensing::reading::Observation;

/// Place in metres and heading in radians, in the frame of the map: x, y, heading.
pub type PlanePose = Vector3<f64>;

/// Number of unknowns that the whole path shares.
pub const SHARED: usize = 8;

/// Unknowns that the whole path shares: scale of odometry, its drift (radians per metre), hard iron along the axes of the sensor, and mean
/// of the field along the axes of the map, in microtesla.
pub type Shared = SVector<f64, SHARED>;

/// Index of the relative error of odometry's distances among the shared unknowns.
pub const SCALE: usize = 0;
/// Index of the drift of odometry's heading, in radians per metre.
pub const DRIFT: usize = 1;
/// Index of the first component of the hard iron.
pub const IRON: usize = 2;
/// Index of the first component of the mean of the field.
pub const MEAN: usize = 5;

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

    /// Derivatives of the error in scale and drift.
    pub fn shared(&self) -> Matrix3x2<f64> {
        Matrix3x2::new(-self.length, 0.0, 0.0, 0.0, 0.0, -self.length)
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
        let (sin, cos) = (before.z + link.movement.y.atan2(link.movement.x)).sin_cos();
        let moved = after.xy() - before.xy();
        let [forward, sideways] = [cos * moved.x + sin * moved.y, cos * moved.y - sin * moved.x];
        let length = link.movement.norm();
        let turned = wrapped(after.z - before.z - link.turn - shared[DRIFT] * length);
        let variances = self.variances(length, link.turn);
        let error = Vector3::new(forward - length * (1.0 + shared[SCALE]), sideways, turned);
        let excess = error.component_mul(&error).component_div(&variances).sum() / FREEDOM;
        Movement {
            error,
            weight: variances.map(|variance| 1.0 / (variance * (1.0 + excess))),
            cost: 0.5 * FREEDOM * excess.ln_1p(),
            direction: Vector2::new(cos, sin),
            moved: Vector2::new(forward, sideways),
            length,
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
        let pose = plane_pose(observation);
        let before = index.checked_sub(1).map_or(pose, |before| plane_pose(&observations[before]));
        let levelled = Rotation3::from_axis_angle(&Vector3::z_axis(), -pose.z);
        Link {
            movement: Rotation2::new(-before.z) * (pose.xy() - before.xy()),
            turn: wrapped(pose.z - before.z),
            field: levelled * observation.field.microtesla(),
            tilt: levelled * observation.orientation,
        }
    };
    observations.iter().enumerate().map(link).collect()
}

/// Observations at other poses in the plane, one for each.
pub fn moved(observations: &[Observation], poses: &[PlanePose]) -> Vec<Observation> {
    let moved =
        |(observation, pose): (&Observation, &PlanePose)| observation.moved_to(&Isometry2::new(pose.xy(), pose.z));
    observations.iter().zip(poses).map(moved).collect()
}

impl Link {
    /// Whether all of it is finite, and no movement beyond what a robot can be away.
    pub(super) fn is_valid(&self) -> bool {
        let numbers = self.field.iter().chain(&self.tilt).chain([&self.turn]);
        numbers.into_iter().all(|value| value.is_finite()) && self.movement.norm() < LARGEST_MOVEMENT
    }

    /// The pose that follows by odometry, with this scale and drift.
    pub fn follow(&self, pose: &PlanePose, shared: &Shared) -> PlanePose {
        let (sin, cos) = pose.z.sin_cos();
        let moved = self.movement * (1.0 + shared[SCALE]);
        Vector3::new(
            pose.x + cos * moved.x - sin * moved.y,
            pose.y + sin * moved.x + cos * moved.y,
            pose.z + self.turn + shared[DRIFT] * self.movement.norm(),
        )
    }
}

/// The angle between -pi and pi.
pub fn wrapped(angle: f64) -> f64 {
    (angle + PI).rem_euclid(TAU) - PI
}
