//! The motion of the sensor between two steps, and what it then read.

use std::f64::consts::{PI, TAU};

/// How the sensor moved since the last step, and what it then read, in the frame of odometry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MotionStep {
    /// In metres.
    pub movement: [f64; 2],
    /// In radians.
    pub rotation: f64,
    /// Heading of the sensor after it, in radians.
    pub heading: f64,
    /// The axes free of the sensor's bias, in microtesla; in a map of strengths the first number is the strength.
    pub field: [f64; 3],
}

impl MotionStep {
    /// Length of the movement, in metres.
    pub fn distance(&self) -> f64 {
        self.movement[0].hypot(self.movement[1])
    }
}

/// A vector turned by an angle.
pub(super) fn rotated([x, y]: [f64; 2], angle: f64) -> [f64; 2] {
    let (sin, cos) = angle.sin_cos();
    [cos * x - sin * y, sin * x + cos * y]
}

/// An angle between -pi and pi.
pub(super) fn wrapped(angle: f64) -> f64 {
    (angle + PI).rem_euclid(TAU) - PI
}
