//! The map as data of `nav_msgs/OccupancyGrid`: a number from 0 to 100 per cell, -1 where it is unknown.

use serde::Serialize;

use super::colour::mean_scale;
use super::scale::Scale;
use crate::field::grid::FieldGrid;
use crate::field::quantity::Quantity;

/// The scales of a pair of grids: the values of occupancy 0 and 100.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridScales {
    /// The quantity of the map.
    pub quantity: Quantity,
    /// In microtesla, or a probability; the same as in the picture.
    pub mean: [f64; 2],
    /// In microtesla squared, or the square of a probability; from zero to the greatest variance.
    pub variance: [f64; 2],
}

/// Mean and variance as occupancies, row-major from the lower left cell.
#[derive(Clone, Debug, PartialEq)]
pub struct OccupancyLayers {
    /// The mean.
    pub mean: Vec<i8>,
    /// The variance.
    pub variance: Vec<i8>,
    /// Their scales.
    pub scales: GridScales,
}

impl OccupancyLayers {
    /// The layers of a grid.
    pub fn of(grid: &FieldGrid, prior_standard_deviation: f64) -> Self {
        let variance: Vec<f64> = grid.standard_deviation.iter().map(|deviation| deviation * deviation).collect();
        let [mean_scale, variance_scale] = [mean_scale(grid, prior_standard_deviation), Scale::from_zero(&variance)];
        let ends = |Scale { low, high }: Scale| [low, high];
        Self {
            mean: mean_scale.occupancies(&grid.mean),
            variance: variance_scale.occupancies(&variance),
            scales: GridScales { quantity: grid.quantity, mean: ends(mean_scale), variance: ends(variance_scale) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::strength_grid;

    #[test]
    fn the_mean_spans_what_is_known_and_the_variance_starts_at_zero() {
        // The third cell is nearly unknown: its mean is clamped. The fourth is unknown.
        let (mean, standard_deviation) = (vec![40.0, 60.0, 90.0, f64::NAN], vec![1.0, 2.0, 4.0, f64::NAN]);
        let layers = OccupancyLayers::of(&strength_grid([4, 1], mean, standard_deviation), 4.1);
        assert_eq!((layers.mean, layers.variance), (vec![0, 100, 100, -1], vec![6, 25, 100, -1]));
        assert_eq!(
            layers.scales,
            GridScales { quantity: Quantity::Strength, mean: [40.0, 60.0], variance: [0.0, 16.0] }
        );
    }

    #[test]
    fn occupancies_of_a_probability_are_per_cent() {
        let grid = strength_grid([2, 1], vec![0.4, 0.45], vec![0.1, 0.1]);
        let layers = OccupancyLayers::of(&FieldGrid { quantity: Quantity::Probability, ..grid }, 0.3);
        assert_eq!((layers.mean, layers.scales.mean), (vec![40, 45], [0.0, 1.0]));
    }
}
