//! Colours for numbers: perceptually uniform colour maps, and fading to white.

use super::scale::Scale;
use crate::field::grid::StrengthGrid;

/// Red, green and blue.
pub type Rgb = [u8; 3];

/// The colour of paper, and of everything the map does not know.
pub const WHITE: Rgb = [255, 255, 255];

/// Colours from low to high, interpolated in between.
#[derive(Clone, Copy, Debug)]
pub struct ColourMap(&'static [u32]);

/// Viridis by Nathaniel Smith and Stéfan van der Walt (matplotlib; CC0): 16 of its 256 entries, evenly spaced.
pub const VIRIDIS: ColourMap = ColourMap(&[
    0x440154, 0x481a6c, 0x472f7d, 0x414487, 0x39568c, 0x31688e, 0x2a788e, 0x23888e, 0x1f988b, 0x22a884, 0x35b779,
    0x54c568, 0x7ad151, 0xa5db36, 0xd2e21b, 0xfde725,
]);

/// Magma by the same authors (matplotlib; CC0): 10 of its 256 entries, evenly spaced.
pub const MAGMA: ColourMap =
    ColourMap(&[0x000004, 0x180f3d, 0x440f76, 0x721f81, 0x9e2f7f, 0xcd4071, 0xf1605d, 0xfd9668, 0xfeca8d, 0xfcfdbf]);

impl ColourMap {
    /// The colour at `fraction` of the way from the first (0) to the last (1); beyond the ends, the ends.
    pub fn colour(&self, fraction: f64) -> Rgb {
        let place = fraction.clamp(0.0, 1.0) * (self.0.len() - 1) as f64;
        let below = (place as usize).min(self.0.len() - 2);
        let (low, high) = (rgb(self.0[below]), rgb(self.0[below + 1]));
        mix(low, high, place - below as f64)
    }
}

fn rgb(hexadecimal: u32) -> Rgb {
    let [_, red, green, blue] = hexadecimal.to_be_bytes();
    [red, green, blue]
}

/// `share` of `above`, the rest of `below`.
pub fn mix(below: Rgb, above: Rgb, share: f64) -> Rgb {
    std::array::from_fn(|i| (f64::from(below[i]) * (1.0 - share) + f64::from(above[i]) * share).round() as u8)
}

/// The opacity of a cell: the share of the prior variance that the readings have explained, 0 (unknown) to 1 (certain).
pub fn opacity(standard_deviation: f64, prior_standard_deviation: f64) -> f64 {
    let left = standard_deviation / prior_standard_deviation;
    // For an unknown cell, which is not a number, this is zero too.
    (1.0 - left * left).max(0.0)
}

/// The scale of the mean: it spans the cells that are at least half opaque: elsewhere
/// the mean is extrapolated, and hardly visible. Without such cells it spans all.
pub fn mean_scale(grid: &StrengthGrid, prior_standard_deviation: f64) -> Scale {
    let cells = || grid.mean.iter().copied().zip(grid.standard_deviation.iter().copied());
    let visible =
        |&(mean, deviation): &(f64, f64)| mean.is_finite() && opacity(deviation, prior_standard_deviation) >= 0.5;
    if cells().any(|cell| visible(&cell)) {
        Scale::spanning(cells().filter(visible).map(|(mean, _)| mean))
    } else {
        Scale::spanning(grid.mean.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::display::strength_grid;

    fn row(mean: Vec<f64>, standard_deviation: Vec<f64>) -> StrengthGrid {
        strength_grid([mean.len(), 1], mean, standard_deviation)
    }

    #[test]
    fn colour_maps_start_end_and_interpolate_where_they_should() {
        assert_eq!(VIRIDIS.colour(0.0), [0x44, 0x01, 0x54]);
        assert_eq!(VIRIDIS.colour(1.0), [0xfd, 0xe7, 0x25]);
        assert_eq!(VIRIDIS.colour(-3.0), VIRIDIS.colour(0.0));
        assert_eq!(VIRIDIS.colour(7.0), VIRIDIS.colour(1.0));
        // The published entry 128 of 256 is (0.127568, 0.566949, 0.550556), 126 of 255 between our entries.
        let middle = VIRIDIS.colour(128.0 / 255.0);
        for (found, published) in middle.iter().zip([0.127568, 0.566949, 0.550556]) {
            // Two steps of 255: what is lost by keeping 16 entries.
            assert!((f64::from(*found) - published * 255.0).abs() <= 2.0, "{middle:?}");
        }
    }

    #[test]
    fn lightness_rises_all_along_both_maps() {
        let lightness =
            |[red, green, blue]: Rgb| 0.2126 * f64::from(red) + 0.7152 * f64::from(green) + 0.0722 * f64::from(blue);
        for map in [VIRIDIS, MAGMA] {
            let steps: Vec<f64> = (0..=50).map(|i| lightness(map.colour(f64::from(i) / 50.0))).collect();
            assert!(steps.windows(2).all(|pair| pair[1] > pair[0]), "{steps:?}");
        }
    }

    #[test]
    fn opacity_is_the_share_of_variance_that_is_gone() {
        assert_eq!(opacity(0.0, 12.0), 1.0);
        assert!((opacity(6.0, 12.0) - 0.75).abs() < 1e-15);
        assert_eq!(opacity(12.0, 12.0), 0.0);
        assert_eq!(opacity(13.0, 12.0), 0.0);
        assert_eq!(opacity(f64::NAN, 12.0), 0.0);
        assert_eq!(opacity(1.0, 0.0), 0.0);
    }

    #[test]
    fn the_scale_ignores_cells_that_can_hardly_be_seen() {
        let grid = row(vec![40.0, 60.0, 500.0, f64::NAN], vec![1.0, 1.0, 11.0, f64::NAN]);
        assert_eq!(mean_scale(&grid, 12.0), Scale { low: 40.0, high: 60.0 });
        let faint = row(vec![40.0, 45.0], vec![11.0, 11.0]);
        assert_eq!(mean_scale(&faint, 12.0), Scale { low: 40.0, high: 45.0 });
    }
}
