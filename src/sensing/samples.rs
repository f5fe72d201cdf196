//! Measurements for tests.

use nalgebra::{Point3, UnitQuaternion, Vector3};

use super::reading::{MagneticField, Pose, Reading, Stamp};

pub(super) fn at(milliseconds: i64) -> Stamp {
    Stamp::from_nanoseconds(milliseconds * 1_000_000)
}

/// A field along x, in microtesla.
pub(super) fn field(x: f64) -> MagneticField {
    MagneticField::from_microtesla(Vector3::new(x, 0.0, 0.0))
}

pub(super) fn reading(milliseconds: i64, x: f64) -> Reading {
    Reading { stamp: at(milliseconds), field: field(x) }
}

pub(super) fn pose(milliseconds: i64, x: f64) -> Pose {
    Pose { stamp: at(milliseconds), position: Point3::new(x, 0.0, 0.0), orientation: UnitQuaternion::identity() }
}
