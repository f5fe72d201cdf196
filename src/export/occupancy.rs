//! The map as what `nav_msgs/OccupancyGrid` holds: one number from 0 to 100 per cell, -1 where unknown.

use serde::Serialize;

use super::colour::mean_scale;
use crate::mapping::Error;
use crate::mapping::grid::{FieldGrid, Scale};
use crate::mapping::quantity::Quantity;

/// What the occupancies of a pair of grids mean: 0 is the first value, 100 the second, linear in between, clamped beyond.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridScales {
    /// What the grids are of.
    pub quantity: Quantity,
    /// In microtesla; as in the picture, over the cells that are at least half known. Of a probability 0 and 1.
    pub mean: [f64; 2],
    /// In microtesla squared, or the square of a probability; from zero to the greatest.
    pub variance: [f64; 2],
}

/// Mean and variance as occupancies, row-major from the lower left cell.
#[derive(Clone, Debug, PartialEq)]
pub struct OccupancyLayers {
    /// The mean.
    pub mean: Vec<i8>,
    /// The variance.
    pub variance: Vec<i8>,
    /// What they mean.
    pub scales: GridScales,
}

impl OccupancyLayers {
    /// The layers of a grid.
    ///
    /// # Errors
    /// [`Error::EmptyScale`] for values that no scale can hold.
    pub fn of(grid: &FieldGrid, prior_standard_deviation: f64) -> Result<Self, Error> {
        let variance: Vec<f64> = grid.standard_deviation.iter().map(|deviation| deviation * deviation).collect();
        let range = mean_scale(grid, prior_standard_deviation);
        let [mean_scale, variance_scale] = [Scale::new(range.low, range.high)?, from_zero(&variance)?];
        let ends = |scale: &Scale| [scale.low(), scale.high()];
        Ok(Self {
            mean: mean_scale.occupancies(&grid.mean),
            variance: variance_scale.occupancies(&variance),
            scales: GridScales { quantity: grid.quantity, mean: ends(&mean_scale), variance: ends(&variance_scale) },
        })
    }
}

fn from_zero(values: &[f64]) -> Result<Scale, Error> {
    let greatest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    Scale::new(0.0, if greatest > 0.0 { greatest } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::grid::GridGeometry;

    #[test]
    fn the_mean_spans_what_is_known_and_the_variance_starts_at_zero() {
        let geometry = GridGeometry { resolution: 1.0, first_column: 0, first_row: 0, columns: 4, rows: 1 };
        // The third cell is nearly unknown: its mean is clamped. The fourth is unknown.
        let (mean, standard_deviation) = (vec![40.0, 60.0, 90.0, f64::NAN], vec![1.0, 2.0, 4.0, f64::NAN]);
        let layers =
            OccupancyLayers::of(&FieldGrid { geometry, quantity: Quantity::Strength, mean, standard_deviation }, 4.1)
                .unwrap();
        assert_eq!((layers.mean, layers.variance), (vec![0, 100, 100, -1], vec![6, 25, 100, -1]));
        assert_eq!(
            layers.scales,
            GridScales { quantity: Quantity::Strength, mean: [40.0, 60.0], variance: [0.0, 16.0] }
        );
    }
}
