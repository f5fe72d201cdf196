//! The range of values that colours and occupancies span.

/// The range from the value of the first colour, or of occupancy 0, to the value of the last colour, or of occupancy 100.
/// Linear in between; values beyond are shown as the nearest end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The lowest value.
    pub low: f64,
    /// The highest value, above `low` by a finite difference.
    pub high: f64,
}

/// The highest occupancy of a known cell in `nav_msgs/OccupancyGrid`.
const HIGHEST: f64 = 100.0;

/// Values beyond this are clamped, so that their differences are finite.
const WIDEST: f64 = f64::MAX / 4.0;

impl Scale {
    /// The scale from the least to the greatest finite value. A single value gets a band around it; no value, the band 0 to 1.
    pub fn spanning(values: impl IntoIterator<Item = f64>) -> Self {
        let finite = values.into_iter().filter(|value| value.is_finite()).map(|value| value.clamp(-WIDEST, WIDEST));
        let (low, high) =
            finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Self { low: 0.0, high: 1.0 };
        }
        // Narrower than this, ticks could not tell the ends apart.
        let least = 1e-9 * low.abs().max(high.abs()).max(1e-3);
        if high - low > least {
            return Self { low, high };
        }
        let half = (0.01 * low.abs()).max(1e-6);
        Self { low: low - half, high: high + half }
    }

    /// The scale from zero to the greatest finite value, or to 1 where no value is above zero.
    pub fn from_zero(values: &[f64]) -> Self {
        let greatest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
        Self { low: 0.0, high: if greatest > 0.0 { greatest } else { 1.0 } }
    }

    /// How far `value` is from `low` (0) to `high` (1).
    pub fn fraction(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// The difference between the values of two neighbouring occupancies.
    pub fn step(&self) -> f64 {
        (self.high - self.low) / HIGHEST
    }

    /// The nearest occupancy, 0 to 100; -1, unknown, unless the value is finite.
    pub fn occupancy(&self, value: f64) -> i8 {
        if value.is_finite() { ((value - self.low) / self.step()).round().clamp(0.0, HIGHEST) as i8 } else { -1 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_scale_always_has_a_finite_width() {
        for values in [
            vec![],
            vec![f64::NAN],
            vec![50.0],
            vec![50.0, 50.0],
            vec![0.0],
            vec![-1e5, -1e5],
            vec![1e-3],
            vec![f64::MIN, f64::MAX],
            vec![f64::MAX],
        ] {
            let scale = Scale::spanning(values.iter().copied());
            assert!(scale.high > scale.low && (scale.high - scale.low).is_finite(), "{values:?}: {scale:?}");
        }
        assert!((Scale::spanning([50.0]).fraction(50.0) - 0.5).abs() < 1e-12);
        assert_eq!(Scale::spanning([3.0, f64::NAN, -1.0]), Scale { low: -1.0, high: 3.0 });
    }

    #[test]
    fn a_scale_from_zero_ends_at_the_greatest_value() {
        assert_eq!(Scale::from_zero(&[2.0, 8.0, f64::NAN]), Scale { low: 0.0, high: 8.0 });
        assert_eq!(Scale::from_zero(&[f64::NAN]), Scale { low: 0.0, high: 1.0 });
    }

    #[test]
    fn occupancies_are_clamped_and_unknown_is_minus_one() {
        let scale = Scale { low: 20.0, high: 70.0 };
        assert_eq!(scale.step(), 0.5);
        let values = [20.0, 45.0, 70.0, 19.0, 1e9, -1e300, f64::NEG_INFINITY, f64::NAN, 45.24, 45.26];
        assert_eq!(values.map(|value| scale.occupancy(value)), [0, 50, 100, 0, 100, 0, -1, -1, 50, 51]);
    }

    proptest! {
        #[test]
        fn occupancies_give_the_value_back_to_half_a_step(
            low in -100.0..100.0_f64, extent in 0.01..500.0_f64, share in 0.0..1.0_f64,
        ) {
            let scale = Scale { low, high: low + extent };
            let value = low + share * extent;
            let occupancy = scale.occupancy(value);
            prop_assert!((0..=100).contains(&occupancy));
            let back = low + f64::from(occupancy) * scale.step();
            prop_assert!((back - value).abs() <= 0.5 * scale.step() * (1.0 + 1e-9));
        }
    }
}
