//! Hard and soft iron, the effect of the robot itself on a magnetometer, and the delay of its stamps.

use nalgebra::{Matrix3, Vector3};

use crate::config;
use crate::sensing::reading::{MagneticField, Reading};

/// Removes the robot's own magnetism from readings, `soft_iron (raw - hard_iron)` along the sensor's axes, and the
/// delay from their stamps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Hard and soft iron. None where there is nothing to correct, so that readings stay the same to the last bit (the
    /// product with the identity would lose the sign of a zero).
    iron: Option<(Vector3<f64>, Matrix3<f64>)>,
    /// In seconds.
    delay: f64,
}

impl Calibration {
    /// The calibration of `settings`; with `Sensor::default()` it changes nothing.
    pub fn new(settings: &config::Sensor) -> Self {
        let hard_iron = Vector3::from(settings.hard_iron);
        let soft_iron = Matrix3::from_row_slice(&settings.soft_iron);
        let is_neutral = hard_iron == Vector3::zeros() && soft_iron == Matrix3::identity();
        Self { iron: (!is_neutral).then_some((hard_iron, soft_iron)), delay: settings.delay }
    }

    /// The reading without the robot's own magnetism, stamped when it was taken.
    pub fn apply(&self, reading: Reading) -> Reading {
        let Reading { stamp, field } = reading;
        let corrected = |(hard_iron, soft_iron): &(Vector3<f64>, Matrix3<f64>)| {
            MagneticField::from_microtesla(soft_iron * (field.microtesla() - hard_iron))
        };
        Reading { stamp: stamp.shifted(-self.delay), field: self.iron.as_ref().map_or(field, corrected) }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::UnitQuaternion;

    use super::*;
    use crate::sensing::reading::Stamp;

    fn reading(field: Vector3<f64>) -> Reading {
        Reading { stamp: Stamp::from_seconds(3.0), field: MagneticField::from_microtesla(field) }
    }

    fn calibrated(calibration: &Calibration, field: Vector3<f64>) -> MagneticField {
        calibration.apply(reading(field)).field
    }

    #[test]
    fn the_defaults_keep_every_bit() {
        let calibration = Calibration::new(&config::Sensor::default());
        for axes in [[-0.0, 0.1, -47.0], [f64::NAN, f64::INFINITY, 1e300], [f64::MIN_POSITIVE / 2.0, 0.0, -1.0]] {
            let calibrated = calibrated(&calibration, axes.into());
            let bits = |field: &Vector3<f64>| [field.x.to_bits(), field.y.to_bits(), field.z.to_bits()];
            assert_eq!(bits(calibrated.microtesla()), bits(&axes.into()));
        }
    }

    #[test]
    fn hard_iron_is_subtracted_first_and_soft_iron_is_row_major() {
        let soft_iron = [1.0, 0.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0];
        let calibration =
            Calibration::new(&config::Sensor { hard_iron: [10.0, -2.0, 0.0], soft_iron, ..Default::default() });
        assert_eq!(calibration.apply(reading(Vector3::new(14.0, 6.0, 3.0))), reading(Vector3::new(8.0, 16.0, 3.0)));
    }

    #[test]
    fn a_delay_is_subtracted_from_the_stamp() {
        let calibration = Calibration::new(&config::Sensor { delay: 0.25, ..Default::default() });
        let late = reading(Vector3::x());
        assert_eq!(calibration.apply(late), Reading { stamp: Stamp::from_seconds(2.75), ..late });
    }

    #[test]
    fn calibrated_readings_of_a_robot_turning_on_the_spot_have_one_strength() {
        let hard_iron = Vector3::new(12.0, -7.0, 30.0);
        let distortion = Matrix3::new(1.2, 0.1, 0.0, 0.1, 0.8, -0.05, 0.0, -0.05, 1.1);
        let soft_iron = distortion.try_inverse().unwrap();
        let settings = config::Sensor {
            hard_iron: hard_iron.into(),
            soft_iron: soft_iron.transpose().as_slice().try_into().unwrap(),
            ..Default::default()
        };
        let calibration = Calibration::new(&settings);
        let ambient = Vector3::new(20.0, 5.0, -45.0);
        let turn = |step: u32| UnitQuaternion::from_euler_angles(0.0, 0.0, 0.1 * f64::from(step));
        let raw: Vec<_> = (0..63).map(|step| distortion * (turn(step).inverse() * ambient) + hard_iron).collect();
        let spread = |strengths: &[f64]| {
            let extremes = strengths.iter().fold((f64::MAX, f64::MIN), |(low, high), &s| (low.min(s), high.max(s)));
            extremes.1 - extremes.0
        };
        let strengths: Vec<f64> = raw.iter().map(Vector3::norm).collect();
        let calibrated: Vec<f64> = raw.iter().map(|field| calibrated(&calibration, *field).strength()).collect();
        assert!(spread(&strengths) > 20.0, "{strengths:?}");
        assert!(spread(&calibrated) < 1e-12 * 50.0 && (calibrated[0] - ambient.norm()).abs() < 1e-12 * 50.0);
    }
}
