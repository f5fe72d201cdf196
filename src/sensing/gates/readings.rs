//! Implausible readings.

use serde::{Deserialize, Serialize};

use super::Rejected;
use crate::config;
use crate::sensing::reading::{MagneticField, Reading, Stamp};
use crate::sensing::rejection::Rejection;

/// Rejects readings with an axis at or beyond the sensor's full scale, before calibration: the true field may be stronger.
pub fn check_range(settings: &config::Gates, sent: &MagneticField) -> Result<(), Rejected> {
    let config::Gates { full_scale, .. } = *settings;
    let is_saturated = |axis: &f64| axis.is_finite() && axis.abs() >= full_scale;
    if full_scale > 0.0 && sent.microtesla().iter().any(is_saturated) {
        return Err(Rejection::ReadingSaturated.into());
    }
    Ok(())
}

/// Accepts readings with a plausible field (finite axes and a strength within the range) and a stamp not before the last accepted one.
///
/// Up to `max_same_stamp` readings may share a stamp, as those of sensors whose clock is coarser than their rate do; beyond, the
/// clock has stopped, and where the robot is is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadingGate {
    newest: Option<Stamp>,
    /// The number of accepted readings with the newest stamp.
    at_newest: u32,
}

impl ReadingGate {
    /// Accepts or rejects the next reading.
    pub fn check(&mut self, settings: &config::Gates, reading: &Reading) -> Result<(), Rejected> {
        check_field(settings, &reading.field)?;
        if self.newest.is_some_and(|newest| reading.stamp < newest) {
            return Err(Rejection::ReadingStampBackwards.into());
        }
        let before = if self.newest == Some(reading.stamp) { self.at_newest } else { 0 };
        let config::Gates { max_same_stamp, .. } = *settings;
        if max_same_stamp > 0 && before >= max_same_stamp {
            return Err(Rejection::ReadingStampRepeated.into());
        }
        self.newest = Some(reading.stamp);
        self.at_newest = before.saturating_add(1);
        Ok(())
    }
}

fn check_field(settings: &config::Gates, field: &MagneticField) -> Result<(), Rejection> {
    let strength = field.strength();
    if !field.microtesla().iter().all(|axis| axis.is_finite()) {
        Err(Rejection::ReadingNotFinite)
    } else if strength < settings.minimum_field {
        Err(Rejection::FieldTooWeak)
    } else if strength > settings.maximum_field {
        Err(Rejection::FieldTooStrong)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensing::samples::reading;

    #[test]
    fn an_axis_at_full_scale_is_saturated_and_one_that_is_not_finite_is_not() {
        let settings = config::Gates { full_scale: 130.0, ..Default::default() };
        let outcomes = [129.9, -129.9, 130.0, -130.0, 400.0, f64::NAN, f64::INFINITY]
            .map(|x| check_range(&settings, &reading(0, x).field));
        let saturated = Err(Rejection::ReadingSaturated.into());
        assert_eq!(outcomes, [Ok(()), Ok(()), saturated, saturated, saturated, Ok(()), Ok(())]);
        assert_eq!(check_range(&config::Gates::default(), &reading(0, 1e6).field), Ok(()));
    }

    #[test]
    fn the_range_of_the_field_is_inclusive_and_excludes_not_a_number() {
        let (settings, mut gate) = (config::Gates::default(), ReadingGate::default());
        assert_eq!(gate.check(&settings, &reading(0, 1.0)), Ok(()));
        assert_eq!(gate.check(&settings, &reading(0, -1000.0)), Ok(()));
        assert_eq!(gate.check(&settings, &reading(0, 0.999)), Err(Rejection::FieldTooWeak.into()));
        assert_eq!(gate.check(&settings, &reading(0, 1000.1)), Err(Rejection::FieldTooStrong.into()));
        assert_eq!(gate.check(&settings, &reading(0, f64::NAN)), Err(Rejection::ReadingNotFinite.into()));
        assert_eq!(gate.check(&settings, &reading(0, f64::INFINITY)), Err(Rejection::ReadingNotFinite.into()));
        // Finite axes whose norm overflows.
        assert_eq!(gate.check(&settings, &reading(0, 1e200)), Err(Rejection::FieldTooStrong.into()));
    }

    #[test]
    fn stamps_may_repeat_but_not_go_back_and_rejected_readings_do_not_count() {
        let (settings, mut gate) = (config::Gates::default(), ReadingGate::default());
        assert_eq!(gate.check(&settings, &reading(20, 50.0)), Ok(()));
        assert_eq!(gate.check(&settings, &reading(20, 50.0)), Ok(()));
        assert_eq!(gate.check(&settings, &reading(10, 50.0)), Err(Rejection::ReadingStampBackwards.into()));
        assert_eq!(gate.check(&settings, &reading(9_000, 5000.0)), Err(Rejection::FieldTooStrong.into()));
        assert_eq!(gate.check(&settings, &reading(40, 50.0)), Ok(()));
    }

    #[test]
    fn more_readings_of_one_stamp_than_allowed_are_rejected_until_the_clock_advances() {
        let (settings, mut gate) = (config::Gates { max_same_stamp: 3, ..Default::default() }, ReadingGate::default());
        for stamp in [0, 20, 20, 40] {
            let before = usize::from(stamp == 20);
            let taken = (0..10).take_while(|_| gate.check(&settings, &reading(stamp, 50.0)).is_ok()).count();
            assert!(taken == 3 || (before == 1 && taken == 0), "{taken} at {stamp} ms");
            assert_eq!(gate.check(&settings, &reading(stamp, 50.0)), Err(Rejection::ReadingStampRepeated.into()));
        }
        let (settings, mut gate) = (config::Gates { max_same_stamp: 0, ..Default::default() }, ReadingGate::default());
        assert!((0..1000).all(|_| gate.check(&settings, &reading(0, 50.0)).is_ok()));
    }
}
