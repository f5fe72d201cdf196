//! Data of the sensors, as types with units.
//!
//! Outside magmap (ROS messages, bags) a field is in tesla; inside it is in microtesla, which is well scaled and readable.
//! The conversion is [`MagneticField::from_tesla`] and [`MagneticField::to_tesla`]; what is made of fields, such as variances, is divided by
//! the constants here.

use nalgebra::{Isometry2, Isometry3, Matrix3, Point3, Quaternion, Rotation3, Translation3, UnitQuaternion, Vector3};
use serde::{Deserialize, Serialize};

/// Microtesla in a tesla.
pub const MICROTESLA_PER_TESLA: f64 = 1e6;

/// Microtesla squared in a tesla squared.
pub const MICROTESLA_PER_TESLA_SQUARED: f64 = MICROTESLA_PER_TESLA * MICROTESLA_PER_TESLA;

/// How far the norm of a quaternion may be from one: single precision and a few printed digits stay below, other numbers do not.
const QUATERNION_TOLERANCE: f64 = 1e-2;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// A point in time: nanoseconds since the epoch of whichever clock stamped the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp {
    nanoseconds: i64,
}

impl Stamp {
    /// The stamp from nanoseconds since the epoch.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self { nanoseconds }
    }

    /// The stamp of a ROS time.
    pub const fn from_ros(seconds: i32, nanoseconds: u32) -> Self {
        Self::from_nanoseconds(seconds as i64 * NANOSECONDS_PER_SECOND + nanoseconds as i64)
    }

    /// The nearest stamp to seconds since the epoch. Saturates beyond about 292 years; not-a-number is the epoch.
    pub fn from_seconds(seconds: f64) -> Self {
        Self::from_nanoseconds((seconds * NANOSECONDS_PER_SECOND as f64).round() as i64)
    }

    /// Nanoseconds since the epoch.
    pub const fn nanoseconds(self) -> i64 {
        self.nanoseconds
    }

    /// Seconds since the epoch, to the precision of a double.
    pub fn seconds(self) -> f64 {
        self.nanoseconds as f64 / NANOSECONDS_PER_SECOND as f64
    }

    /// The stamp as a ROS time: whole seconds (rounded down) and the nanoseconds beyond them.
    pub const fn to_ros(self) -> (i32, u32) {
        let seconds = self.nanoseconds.div_euclid(NANOSECONDS_PER_SECOND);
        let nanoseconds = self.nanoseconds.rem_euclid(NANOSECONDS_PER_SECOND);
        (seconds as i32, nanoseconds as u32)
    }

    /// Seconds from `earlier` to this stamp, negative when this one is the earlier.
    pub fn seconds_since(self, earlier: Stamp) -> f64 {
        self.nanoseconds.saturating_sub(earlier.nanoseconds) as f64 / NANOSECONDS_PER_SECOND as f64
    }

    /// The stamp `seconds` later, which may be negative.
    pub fn shifted(self, seconds: f64) -> Stamp {
        Self { nanoseconds: self.nanoseconds.saturating_add(Self::from_seconds(seconds).nanoseconds) }
    }

    /// Whether this stamp is nearer to `one` than to `other`; not when it is halfway.
    pub fn is_nearer_to(self, one: Stamp, other: Stamp) -> bool {
        self.nanoseconds.abs_diff(one.nanoseconds) < self.nanoseconds.abs_diff(other.nanoseconds)
    }
}

/// A magnetic flux density with its three axes, in microtesla.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MagneticField {
    microtesla: Vector3<f64>,
}

impl MagneticField {
    /// The field with these axes in microtesla.
    pub const fn from_microtesla(axes: Vector3<f64>) -> Self {
        Self { microtesla: axes }
    }

    /// The field with these axes in tesla, the unit of `sensor_msgs/MagneticField`.
    pub fn from_tesla(axes: Vector3<f64>) -> Self {
        Self::from_microtesla(axes * MICROTESLA_PER_TESLA)
    }

    /// The axes in microtesla.
    pub const fn microtesla(&self) -> &Vector3<f64> {
        &self.microtesla
    }

    /// The axes in tesla.
    pub fn to_tesla(self) -> Vector3<f64> {
        self.microtesla / MICROTESLA_PER_TESLA
    }

    /// The strength of the field (the Euclidean norm of its axes), in microtesla.
    pub fn strength(&self) -> f64 {
        self.microtesla.norm()
    }

    /// The field seen from a frame turned by `rotation`.
    pub fn rotated(&self, rotation: &UnitQuaternion<f64>) -> Self {
        Self::from_microtesla(rotation * self.microtesla)
    }
}

/// A sample of the magnetometer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// When it was taken.
    pub stamp: Stamp,
    /// The field along the sensor's axes.
    pub field: MagneticField,
}

/// The pose of the robot's body in the map frame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pose {
    /// When it was there.
    pub stamp: Stamp,
    /// Position, in metres.
    pub position: Point3<f64>,
    /// Rotation from the body's frame to the map frame.
    pub orientation: UnitQuaternion<f64>,
}

impl Pose {
    /// The transform from the body's frame to the map frame.
    pub fn isometry(&self) -> Isometry3<f64> {
        Isometry3::from_parts(Translation3::from(self.position), self.orientation)
    }
}

/// Place and heading of a transform.
pub fn in_plane(transform: &Isometry3<f64>) -> Isometry2<f64> {
    Isometry2::new(transform.translation.vector.xy(), transform.rotation.euler_angles().2)
}

/// Whether a quaternion is a rotation: finite and of norm one.
pub(crate) fn is_rotation(quaternion: &Quaternion<f64>) -> bool {
    (quaternion.norm() - 1.0).abs() <= QUATERNION_TOLERANCE
}

/// The transform made of these parts; none when a number is not finite or the quaternion is no rotation (all zero, not of norm
/// one).
pub fn isometry(translation: Vector3<f64>, rotation: Quaternion<f64>) -> Option<Isometry3<f64>> {
    let is_finite = translation.iter().all(|value| value.is_finite());
    (is_rotation(&rotation) && is_finite)
        .then(|| Isometry3::from_parts(Translation3::from(translation), UnitQuaternion::from_quaternion(rotation)))
}

/// The transform at `fraction` of the way between two: position linearly, rotation along the shortest arc.
pub fn interpolate(start: &Isometry3<f64>, end: &Isometry3<f64>, fraction: f64) -> Isometry3<f64> {
    let position = start.translation.vector + (end.translation.vector - start.translation.vector) * fraction;
    // None where the two rotations are equal to rounding: either will do.
    let rotation = start.rotation.try_slerp(&end.rotation, fraction, f64::EPSILON).unwrap_or(if fraction < 0.5 {
        start.rotation
    } else {
        end.rotation
    });
    Isometry3::from_parts(position.into(), rotation)
}

/// A message of one of the two topics of a source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Measurement {
    /// From the magnetometer.
    Reading(Reading),
    /// A message of odometry.
    Pose(Pose),
}

impl Measurement {
    /// When it was taken.
    pub fn stamp(&self) -> Stamp {
        match self {
            Measurement::Reading(reading) => reading.stamp,
            Measurement::Pose(pose) => pose.stamp,
        }
    }

    /// The pose, if it is one.
    pub fn pose(&self) -> Option<Pose> {
        match self {
            Measurement::Pose(pose) => Some(*pose),
            Measurement::Reading(_) => None,
        }
    }
}

/// A reading with its position: the output of the synchronizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocatedReading {
    /// When it was taken.
    pub stamp: Stamp,
    /// Position of the sensor in the map frame, in metres.
    pub position: Point3<f64>,
    /// Rotation from the sensor's frame to the map frame.
    pub orientation: UnitQuaternion<f64>,
    /// The field along the axes of the map frame.
    pub field: MagneticField,
}

/// The unit that the model learns from: the average of the readings in one cell of the path, or a single reading where averaging is off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Stamp of the last reading in it.
    pub stamp: Stamp,
    /// Mean position of the sensor, in the map frame, in metres.
    pub position: Point3<f64>,
    /// Mean of the rotation matrices from the sensor's frame to the map frame.
    pub orientation: Matrix3<f64>,
    /// Speed of the sensor, in metres per second; 0 for a single reading, which has none.
    pub speed: f64,
    /// Mean of the axes of the field, in the map frame.
    pub field: MagneticField,
    /// Mean of the strengths, in microtesla. Not the strength of the mean, which is wrong when the robot turns on the spot.
    pub strength: f64,
    /// The number of readings averaged; at least one.
    pub readings: u32,
}

impl Observation {
    /// Place and heading of the sensor.
    pub fn in_plane(&self) -> Isometry2<f64> {
        let Self { position, orientation, .. } = self;
        Isometry2::new(position.coords.xy(), orientation.m21.atan2(orientation.m11))
    }

    /// The observation at another place and heading: its height, roll and pitch stay.
    pub fn moved_to(&self, pose: &Isometry2<f64>) -> Self {
        let turn = (pose.rotation / self.in_plane().rotation).angle();
        let turn = Rotation3::from_axis_angle(&Vector3::z_axis(), turn);
        Self {
            position: Point3::new(pose.translation.x, pose.translation.y, self.position.z),
            orientation: turn * self.orientation,
            field: MagneticField::from_microtesla(turn * self.field.microtesla()),
            ..*self
        }
    }

    /// The observation of a sensor without this hard iron, which is along its axes and in microtesla.
    pub fn without_hard_iron(&self, hard_iron: &Vector3<f64>) -> Self {
        let field = MagneticField::from_microtesla(self.field.microtesla() - self.orientation * hard_iron);
        Self { field, strength: self.strength + field.strength() - self.field.strength(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ros_time_before_the_epoch_keeps_its_nanoseconds_positive() {
        let stamp = Stamp::from_nanoseconds(-1);
        assert_eq!(stamp.to_ros(), (-1, 999_999_999));
        assert_eq!(Stamp::from_ros(-1, 999_999_999), stamp);
    }

    #[test]
    fn seconds_round_to_the_nearest_nanosecond() {
        assert_eq!(Stamp::from_seconds(20.89).nanoseconds(), 20_890_000_000);
        assert_eq!(Stamp::from_seconds(20.91).seconds_since(Stamp::from_seconds(20.89)), 0.02);
    }

    #[test]
    fn tesla_outside_microtesla_inside() {
        let field = MagneticField::from_tesla(Vector3::new(3e-5, 0.0, 4e-5));
        assert!((field.strength() - 50.0).abs() < 1e-12);
        assert!((field.to_tesla() - Vector3::new(3e-5, 0.0, 4e-5)).norm() < 1e-20);
    }
}
