//! The length of the path, without the jitter of positions.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

/// Measures the length of a path. On a straight drive it is the distance to the last position, without delay; a position that
/// jitters by less than `step` adds no length, however long the robot stands still.
///
/// The path is a chain of anchors at least `step` apart, so that curves are measured along chords of that length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Odometer {
    step: f64,
    anchor: Option<Point3<f64>>,
    to_anchor: f64,
}

impl Odometer {
    /// An odometer at zero with chords of at least `step` metres.
    pub fn new(step: f64) -> Self {
        Self { step, anchor: None, to_anchor: 0.0 }
    }

    /// The length of the path from the first position to this one, in metres. It may decrease by less than `step`.
    pub fn advance(&mut self, position: Point3<f64>) -> f64 {
        let anchor = *self.anchor.get_or_insert(position);
        let length = self.to_anchor + (position - anchor).norm();
        if length - self.to_anchor >= self.step {
            self.anchor = Some(position);
            self.to_anchor = length;
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_drive_is_measured_at_every_position() {
        let mut odometer = Odometer::new(0.025);
        for index in 0..1000 {
            let distance = 0.004 * index as f64;
            let length = odometer.advance(Point3::new(1.0 + 0.6 * distance, 0.8 * distance, 0.0));
            assert!((length - distance).abs() < 1e-12, "{length} after {distance}");
        }
    }

    #[test]
    fn a_circle_is_measured_to_a_percent() {
        let mut odometer = Odometer::new(0.025);
        let length = (0..=10_000)
            .map(|index| {
                let angle = std::f64::consts::TAU * index as f64 / 10_000.0;
                odometer.advance(Point3::new(0.2 * angle.cos(), 0.2 * angle.sin(), 0.0))
            })
            .last()
            .unwrap();
        // A chord of 2.5 cm on a radius of 20 cm is shorter than its arc by (0.025 / 0.2)^2 / 24 = 0.07 %; the last by more.
        let circumference = 0.2 * std::f64::consts::TAU;
        assert!((length / circumference - 1.0).abs() < 0.01, "{length} of {circumference}");
    }

    #[test]
    fn jitter_on_the_spot_adds_no_length() {
        let mut odometer = Odometer::new(0.025);
        for index in 0..1_000_000 {
            let length =
                odometer.advance(Point3::new(0.01 * (index as f64).sin(), 0.01 * (0.7 * index as f64).cos(), 0.0));
            // Two points of a square of 2 cm are less than 2.83 cm apart; the first is at (0, 0.01).
            assert!(length < 0.025, "{length} after {index} readings");
        }
    }
}
