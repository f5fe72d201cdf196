//! The unit of readings, from their strength.

use serde::Serialize;

use magmap::sensing::reading::{Measurement, Reading};

/// Strength of the Earth's field over its surface, in microtesla (International Geomagnetic Reference Field).
const EARTH: std::ops::RangeInclusive<f64> = 22.0..=67.0;

/// Strengths in buildings, in microtesla. A unit is suspected outside only: those that drivers confuse are further
/// apart.
const NATURAL: std::ops::RangeInclusive<f64> = 5.0..=500.0;

/// Units of readings other than tesla, and how many tesla one of them is.
const UNITS: [(&str, f64); 6] = [
    ("microtesla", 1e-6),
    ("gauss", 1e-4),
    ("milligauss", 1e-7),
    ("nanotesla", 1e-9),
    ("millitesla", 1e-3),
    ("megatesla (microtesla converted to tesla twice)", 1e6),
];

/// The unit of the readings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unit {
    /// Median of the strengths, in microtesla if the readings are in tesla.
    pub median_strength: f64,
    /// Whether that is between 22 and 67 microtesla, as the Earth's field.
    pub is_like_earth: bool,
    /// The unit that the readings seem to be in instead of tesla; "unknown" where none fits.
    pub suspected: Option<String>,
}

impl Unit {
    /// The unit of these readings; none where there are no finite ones.
    pub(super) fn of(measurements: &[Measurement]) -> Option<Self> {
        let strength = |measurement: &Measurement| match measurement {
            Measurement::Reading(Reading { field, .. }) => {
                Some(field.strength()).filter(|strength| strength.is_finite())
            }
            Measurement::Pose(_) => None,
        };
        let mut strengths: Vec<f64> = measurements.iter().filter_map(strength).collect();
        let middle = strengths.len().checked_sub(1)? / 2;
        let median_strength = *strengths.select_nth_unstable_by(middle, f64::total_cmp).1;
        let fitting = || UNITS.into_iter().find(|(_, tesla)| EARTH.contains(&(median_strength * tesla)));
        let suspected =
            (!NATURAL.contains(&median_strength)).then(|| fitting().map_or("unknown", |(name, _)| name).to_owned());
        Some(Self { median_strength, is_like_earth: EARTH.contains(&median_strength), suspected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magmap::sensing::reading::{MagneticField, Stamp};
    use nalgebra::Vector3;

    fn unit(strengths: &[f64]) -> Option<Unit> {
        let reading = |&strength: &f64| {
            let field = MagneticField::from_microtesla(Vector3::new(0.0, -strength, 0.0));
            Measurement::Reading(Reading { stamp: Stamp::default(), field })
        };
        Unit::of(&strengths.iter().map(reading).collect::<Vec<_>>())
    }

    #[test]
    fn the_median_decides_whatever_a_few_readings_say() {
        let found = unit(&[1e9, 40.0, 1e-9, 50.0, f64::NAN, 45.0]).unwrap();
        assert_eq!(found, Unit { median_strength: 45.0, is_like_earth: true, suspected: None });
        assert_eq!(unit(&[]), None);
        assert_eq!(unit(&[f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn a_building_is_no_wrong_unit_and_other_units_are_told_apart() {
        let steel = unit(&[300.0]).unwrap();
        assert!(!steel.is_like_earth && steel.suspected.is_none());
        // 50 microtesla in each unit, taken for tesla.
        for (name, tesla) in UNITS {
            assert_eq!(unit(&[50.0 / tesla]).unwrap().suspected.as_deref(), Some(name));
        }
        assert_eq!(unit(&[3.0]).unwrap().suspected.as_deref(), Some("unknown"));
    }
}
