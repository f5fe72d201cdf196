//! An axis that does not change while the robot drives.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::Rejected;
use crate::config;
use crate::sensing::reading::MagneticField;
use crate::sensing::rejection::Rejection;

/// The number of steps into which `max_repeat` is divided.
const REPEAT_STEPS: u32 = 10;

/// Rejects readings with an axis, before calibration, that has not changed by a bit over a distance of more than `max_repeat`: a
/// sensor or driver that is stuck repeats its last value.
///
/// Coarsely quantized sensors repeat values where the field is uniform, and any sensor may while it stands still. So the distance is
/// counted in ten steps, each confirmed by a reading: neither jitter nor a jump of the odometry counts as driving.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RepeatGate {
    axes: [Option<Repeat>; 3],
}

/// A value that an axis keeps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Repeat {
    value: f64,
    /// The position at the last completed step.
    place: Point3<f64>,
    /// Completed steps.
    steps: u32,
}

impl RepeatGate {
    /// Accepts or rejects the next reading, which the sensor sent at this position.
    pub fn check(
        &mut self,
        settings: &config::Gates,
        sent: &MagneticField,
        place: Point3<f64>,
    ) -> Result<(), Rejected> {
        let config::Gates { max_repeat, .. } = *settings;
        if max_repeat == 0.0 {
            return Ok(());
        }
        let step = max_repeat / f64::from(REPEAT_STEPS);
        for (axis, &value) in self.axes.iter_mut().zip(sent.microtesla()) {
            match axis {
                Some(repeat) if repeat.value == value => repeat.advance(place, step),
                _ => *axis = Some(Repeat { value, place, steps: 0 }),
            }
        }
        let is_frozen = self.axes.iter().flatten().any(|repeat| repeat.steps >= REPEAT_STEPS);
        if is_frozen { Err(Rejection::AxisFrozen.into()) } else { Ok(()) }
    }
}

impl Repeat {
    fn advance(&mut self, place: Point3<f64>, step: f64) {
        if (place - self.place).norm() >= step {
            self.place = place;
            self.steps = self.steps.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::Vector3;

    use super::*;
    use crate::sensing::reading::MagneticField;

    /// The number of consecutive readings that pass, whose first axis has this value at this place.
    fn passed(readings: impl IntoIterator<Item = (f64, f64)>) -> usize {
        let (settings, mut gate) = (config::Gates::default(), RepeatGate::default());
        let mut others = 0.0;
        let mut check = |value, place| {
            others += 0.1;
            let field = MagneticField::from_microtesla(Vector3::new(value, others, -others));
            gate.check(&settings, &field, Point3::new(place, 0.0, 0.0))
        };
        readings.into_iter().take_while(|&(value, place)| check(value, place).is_ok()).count()
    }

    #[test]
    fn an_axis_that_does_not_change_while_driving_is_frozen_and_one_that_changes_by_a_bit_is_not() {
        // In steps of 2.5 cm: the first, then ten that repeat it.
        let way = |step: f64| (0..1000).map(move |index| step * f64::from(index));
        assert_eq!(passed(way(0.026).map(|place| (50.0, place))), 10);
        // A centimetre a reading is three to a step.
        assert_eq!(passed(way(0.01).map(|place| (50.0, place))), 30);
        assert_eq!(
            passed(way(0.01).enumerate().map(|(index, place)| (50.0 + (index / 25) as f64 * 1e-13, place))),
            1000
        );
        // Jitter while standing, and a single jump.
        assert_eq!(passed((0..1000).map(|index| (50.0, 0.02 * f64::from(index % 2)))), 1000);
        assert_eq!(passed((0..1000).map(|index| (50.0, if index < 500 { 0.0 } else { 7.0 }))), 1000);
    }
}
