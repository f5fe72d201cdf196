//! The part of a reading that a map predicts: the strength of the field, or its three axes.

use super::motion::{MotionStep, rotated};

/// A reading as the map has it: `[strength]`, or `[x, y, z]` along the axes of the map, in microtesla.
///
/// The bias of a sensor, and what one reading says of the heading, are visible in the axes only.
pub(super) trait Sample: Copy {
    /// The reading of a step, in a map whose frame is turned by this angle from the frame of odometry.
    fn of(step: &MotionStep, turn: f64) -> Self;

    /// The reading without a bias along the axes of the map.
    fn without_bias(self, bias: [f64; 3]) -> Self;

    /// Variances of the map, widened by those of the bias in the plane and along the vertical.
    fn widened(variance: Self, plane: f64, vertical: f64) -> Self;

    /// The axes, where it has them.
    fn axes(self) -> Option<[f64; 3]>;
}

impl Sample for [f64; 1] {
    fn of(step: &MotionStep, _turn: f64) -> Self {
        [step.field[0]]
    }

    fn without_bias(self, _bias: [f64; 3]) -> Self {
        self
    }

    fn widened(variance: Self, _plane: f64, _vertical: f64) -> Self {
        variance
    }

    fn axes(self) -> Option<[f64; 3]> {
        None
    }
}

impl Sample for [f64; 3] {
    fn of(step: &MotionStep, turn: f64) -> Self {
        let [x, y, z] = step.field;
        let [x, y] = rotated([x, y], turn);
        [x, y, z]
    }

    fn without_bias(self, bias: [f64; 3]) -> Self {
        std::array::from_fn(|axis| self[axis] - bias[axis])
    }

    fn widened([x, y, z]: Self, plane: f64, vertical: f64) -> Self {
        [x + plane, y + plane, z + vertical]
    }

    fn axes(self) -> Option<[f64; 3]> {
        Some(self)
    }
}
