//! The map as data of `nav_msgs/OccupancyGrid`: a number from 0 to 100 per cell, -1 where it is unknown.

use serde::Serialize;

use super::colour::mean_scale;
use super::scale::Scale;
use crate::field::grid::{Cells, GridGeometry, StrengthGrid};

/// The scales of a pair of grids: the values of occupancy 0 and 100.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridScales {
    /// In microtesla, the same as in the picture.
    pub mean: [f64; 2],
    /// In microtesla squared, from zero to the greatest variance.
    pub variance: [f64; 2],
}

/// Mean and variance as occupancies, row-major from the lower left cell.
#[derive(Clone, Debug, PartialEq)]
pub struct OccupancyLayers {
    /// Cells of both layers.
    pub geometry: GridGeometry,
    /// The mean.
    pub mean: Vec<i8>,
    /// The variance.
    pub variance: Vec<i8>,
    /// Scales of both layers.
    pub scales: GridScales,
}

impl GridScales {
    /// The scales that suit a grid.
    fn of(grid: &StrengthGrid, prior_standard_deviation: f64) -> Self {
        let Scale { low, high } = mean_scale(grid, prior_standard_deviation);
        let deviation = Scale::from_zero(&grid.standard_deviation).high;
        Self { mean: [low, high], variance: [0.0, deviation * deviation] }
    }

    fn each(&self) -> [Scale; 2] {
        [self.mean, self.variance].map(|[low, high]| Scale { low, high })
    }

    /// Whether values of the `other` scales can be shown in these: within them, up to rounding, and spanning at least three quarters.
    fn suit(&self, other: &Self) -> bool {
        let suits = |[low, high]: [f64; 2], [other_low, other_high]: [f64; 2]| {
            let (span, half_a_step) = (high - low, 0.005 * (high - low));
            low - half_a_step <= other_low && other_high <= high + half_a_step && other_high - other_low >= 0.75 * span
        };
        suits(self.mean, other.mean) && suits(self.variance, other.variance)
    }
}

impl OccupancyLayers {
    /// The layers of a raster. `prior_standard_deviation` is that of the map far from every reading.
    pub fn of(grid: &StrengthGrid, prior_standard_deviation: f64) -> Self {
        let scales = GridScales::of(grid, prior_standard_deviation);
        let [mean_scale, variance_scale] = scales.each();
        Self {
            geometry: grid.geometry,
            mean: grid.mean.iter().map(|&mean| mean_scale.occupancy(mean)).collect(),
            variance: grid.standard_deviation.iter().map(|&sd| variance_scale.occupancy(sd * sd)).collect(),
            scales,
        }
    }

    /// Continues with a raster of which only these cells are not those of the last one. Returns whether only they are now different here;
    /// all are where the raster has grown, or its values no longer suit the scales.
    pub fn update(&mut self, grid: &StrengthGrid, prior_standard_deviation: f64, changed: Option<Cells>) -> bool {
        let scales = GridScales::of(grid, prior_standard_deviation);
        if grid.geometry != self.geometry || !self.scales.suit(&scales) {
            *self = Self::of(grid, prior_standard_deviation);
            return false;
        }
        let [mean_scale, variance_scale] = self.scales.each();
        for [column, row] in changed.iter().flat_map(Cells::iter) {
            let Some(index) = grid.geometry.index(column, row) else { continue };
            self.mean[index] = mean_scale.occupancy(grid.mean[index]);
            self.variance[index] = variance_scale.occupancy(grid.standard_deviation[index].powi(2));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::display::strength_grid;

    #[test]
    fn the_mean_spans_what_is_known_and_the_variance_starts_at_zero() {
        // The third cell is nearly unknown: its mean is clamped. The fourth is unknown.
        let (mean, standard_deviation) = (vec![40.0, 60.0, 90.0, f64::NAN], vec![1.0, 2.0, 4.0, f64::NAN]);
        let layers = OccupancyLayers::of(&strength_grid([4, 1], mean, standard_deviation), 4.1);
        assert_eq!((layers.mean, layers.variance), (vec![0, 100, 100, -1], vec![6, 25, 100, -1]));
        assert_eq!(layers.scales, GridScales { mean: [40.0, 60.0], variance: [0.0, 16.0] });
    }

    #[test]
    fn scales_stay_while_the_values_suit_them() {
        let grid = |mean: Vec<f64>| strength_grid([4, 1], mean, vec![1.0; 4]);
        let mut layers = OccupancyLayers::of(&grid(vec![40.0, 50.0, 60.0, 50.0]), 4.1);
        let second = [layers.geometry.first_column + 1, layers.geometry.first_row];
        let second = Some(Cells { first: second, last: second });
        assert!(layers.update(&grid(vec![40.0, 45.0, 60.0, 50.0]), 4.1, second));
        assert_eq!((layers.mean.as_slice(), layers.scales.mean), (&[0, 25, 100, 50][..], [40.0, 60.0]));
        // Half a step of occupancy more is rounded to the end of the scale.
        let more = grid(vec![40.0, 45.0, 60.09, 50.0]);
        assert!(layers.update(&more, 4.1, Some(more.geometry.cells())));
        assert_eq!((layers.mean.as_slice(), layers.scales.mean), (&[0, 25, 100, 50][..], [40.0, 60.0]));
        let narrower = grid(vec![40.0, 45.0, 56.0, 50.0]);
        assert!(layers.update(&narrower, 4.1, Some(narrower.geometry.cells())));
        assert_eq!((layers.mean.as_slice(), layers.scales.mean), (&[0, 25, 80, 50][..], [40.0, 60.0]));
        for (values, scale) in [([40.0, 45.0, 54.0, 50.0], [40.0, 54.0]), ([40.0, 61.0, 54.0, 50.0], [40.0, 61.0])] {
            let grid = grid(values.to_vec());
            assert!(!layers.update(&grid, 4.1, second));
            assert_eq!((layers.scales.mean, &layers), (scale, &OccupancyLayers::of(&grid, 4.1)));
        }
        assert!(!layers.update(&strength_grid([2, 2], vec![40.0, 61.0, 54.0, 50.0], vec![1.0; 4]), 4.1, None));
    }
}
