//! An axis that stays the same along the way.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::super::reading::MagneticField;
use super::super::refusal::Refusal;
use super::Rejection;
use crate::config;

/// In how many steps the way is taken on which an axis stays the same.
const REPEAT_STEPS: u32 = 10;

/// What a reading must fulfil beside those before: each of its axes, as the sensor sent them, has changed since the sensor went
/// further than `max_repeat`. A sensor or a driver that hangs sends the same again and again.
///
/// Sensors that count in steps repeat themselves where the field is even, and sensors that stand still may do so for ever. So the
/// way is taken in ten steps, each seen by a reading: neither trembling nor a jump of the odometry is a way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepeatGate {
    #[serde(skip)]
    max_repeat: f64,
    axes: [Option<Repeat>; 3],
}

/// An axis that may be staying the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Repeat {
    value: f64,
    /// Where it was the same, a step or less ago.
    place: Point3<f64>,
    /// Steps it has been the same for.
    steps: u32,
}

impl RepeatGate {
    /// The gate with the way of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self { max_repeat: settings.max_repeat, axes: [None; 3] }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Gates) {
        self.max_repeat = settings.max_repeat;
    }

    /// Lets the next reading pass, which the sensor sent at this place, or says why not.
    pub fn check(&mut self, sent: &MagneticField, place: Point3<f64>) -> Result<(), Rejection> {
        if self.max_repeat <= 0.0 {
            return Ok(());
        }
        let step = self.max_repeat / f64::from(REPEAT_STEPS);
        for (axis, &value) in self.axes.iter_mut().zip(sent.microtesla()) {
            match axis {
                Some(repeat) if repeat.value == value => repeat.go_on(place, step),
                _ => *axis = Some(Repeat { value, place, steps: 0 }),
            }
        }
        let is_frozen = self.axes.iter().flatten().any(|repeat| repeat.steps >= REPEAT_STEPS);
        if is_frozen { Err(Refusal::AxisFrozen.into()) } else { Ok(()) }
    }
}

impl Repeat {
    fn go_on(&mut self, place: Point3<f64>, step: f64) {
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

    /// How many of these readings, whose first axis has this value at this place, pass one after another.
    fn passed(readings: impl IntoIterator<Item = (f64, f64)>) -> usize {
        let mut gate = RepeatGate::new(&config::Gates::default());
        let mut others = 0.0;
        let mut check = |value, place| {
            others += 0.1;
            gate.check(
                &MagneticField::from_microtesla(Vector3::new(value, others, -others)),
                Point3::new(place, 0.0, 0.0),
            )
        };
        readings.into_iter().take_while(|&(value, place)| check(value, place).is_ok()).count()
    }

    #[test]
    fn an_axis_that_stays_the_same_along_the_way_is_frozen_and_one_that_changes_by_a_bit_is_not() {
        // In steps of 2.5 cm: the first, then ten that repeat it.
        let way = |step: f64| (0..1000).map(move |index| step * f64::from(index));
        assert_eq!(passed(way(0.026).map(|place| (50.0, place))), 10);
        // A centimetre a reading is three to a step.
        assert_eq!(passed(way(0.01).map(|place| (50.0, place))), 30);
        assert_eq!(
            passed(way(0.01).enumerate().map(|(index, place)| (50.0 + (index / 25) as f64 * 1e-13, place))),
            1000
        );
        // Standing, trembling, and a single jump.
        assert_eq!(passed((0..1000).map(|index| (50.0, 0.02 * f64::from(index % 2)))), 1000);
        assert_eq!(passed((0..1000).map(|index| (50.0, if index < 500 { 0.0 } else { 7.0 }))), 1000);
    }
}
