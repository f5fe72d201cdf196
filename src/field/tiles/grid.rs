//! The squares of the plane that have a model each, and how their predictions fade into each other.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::Extent;
use crate::config::Config;

/// Column and row of a square. The map begins in the middle of the first, `[0, 0]`.
pub(crate) type Square = [i64; 2];

/// The square in which the map begins.
pub(crate) const FIRST: Square = [0, 0];

/// Farthest column and row; farther squares are counted as these. Doubles resolve a square up to there.
const FARTHEST: f64 = (1_u64 << 51) as f64;

/// Observations of a tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TileCounts {
    /// Observations that the tile learnt from.
    pub(crate) learnt: u64,
    /// Observations among them that count for this tile and not for another one whose halo they are in.
    pub(crate) own: u64,
}

/// How the plane is cut into squares; fixed for the life of a map.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TileGrid {
    /// Centre of the first square, where the map began, in metres.
    origin: [f64; 2],
    /// Side of a square, in metres.
    size: f64,
    /// How far around its square a tile learns, in metres.
    halo: f64,
    /// How far around its square a tile predicts, in metres.
    band: f64,
}

impl TileGrid {
    /// The grid around the place where the map begins; none where the settings ask for one model.
    pub(crate) fn new(config: &Config, origin: [f64; 2]) -> Option<Self> {
        let size = config.tiles.size;
        let [halo, band] = config.tiles.widths(config);
        (size > 0.0).then_some(Self { origin, size, halo, band })
    }

    /// Whether its numbers are possible: a file may contain any.
    pub(crate) fn is_valid(&self) -> bool {
        let Self { origin, size, halo, band } = self;
        let is_length = |length: f64| length.is_finite() && length > 0.0;
        origin.iter().all(|coordinate| coordinate.is_finite())
            && [*size, *halo, *band].into_iter().all(is_length)
            && band <= halo
            && 2.0 * halo <= *size
    }

    /// Index of the square along an axis that contains a coordinate, and how far the coordinate is in it, in metres.
    fn along(&self, axis: usize, coordinate: f64) -> (i64, f64) {
        let squares = (coordinate - self.origin[axis]) / self.size + 0.5;
        let index = squares.floor().clamp(-FARTHEST, FARTHEST);
        (index as i64, (squares - index) * self.size)
    }

    /// The square that contains a place.
    pub(crate) fn containing(&self, [x, y]: [f64; 2]) -> Square {
        [self.along(0, x).0, self.along(1, y).0]
    }

    /// The squares, at most four, whose tiles learn from an observation at a place.
    pub(crate) fn learning(&self, [x, y]: [f64; 2]) -> impl Iterator<Item = Square> + use<> {
        let [columns, rows] = [self.halos(0, x), self.halos(1, y)];
        columns.flat_map(move |column| rows.clone().map(move |row| [column, row]))
    }

    /// Whether the first tile learns from an observation at a place.
    pub(crate) fn is_of_first(&self, [x, y]: [f64; 2]) -> bool {
        self.halos(0, x).contains(&FIRST[0]) && self.halos(1, y).contains(&FIRST[1])
    }

    fn halos(&self, axis: usize, coordinate: f64) -> RangeInclusive<i64> {
        let (index, within) = self.along(axis, coordinate);
        index - i64::from(within <= self.halo)..=index + i64::from(self.size - within <= self.halo)
    }

    /// Weights of the squares, at most four, that predict a place: they sum to one, and fade twice continuously differentiably
    /// to zero at the outer edge of a square's band.
    pub(crate) fn weights(&self, [x, y]: [f64; 2]) -> impl Iterator<Item = (Square, f64)> + use<> {
        let [columns, rows] = [self.fade(0, x), self.fade(1, y)];
        let weighted = columns
            .into_iter()
            .flat_map(move |(column, along_x)| rows.map(|(row, along_y)| ([column, row], along_x * along_y)));
        weighted.filter(|(_, weight)| *weight != 0.0)
    }

    /// The squares that predict places of an area; none where the area is larger than a square.
    pub(crate) fn predicting_within(&self, [low, high]: Extent) -> Option<impl Iterator<Item = Square> + use<>> {
        let is_small = (0..2).all(|axis| high[axis] - low[axis] <= self.size);
        let range =
            |axis: usize| self.along(axis, low[axis] - self.band).0..=self.along(axis, high[axis] + self.band).0;
        let [columns, rows] = [range(0), range(1)];
        is_small.then(|| columns.flat_map(move |column| rows.clone().map(move |row| [column, row])))
    }

    /// The weights of two neighbours along an axis; the second is zero where there is only one.
    fn fade(&self, axis: usize, coordinate: f64) -> [(i64, f64); 2] {
        let (index, within) = self.along(axis, coordinate);
        let weight = |inside: f64| {
            let t = 0.5 + 0.5 * (inside / self.band).min(1.0);
            t * t * t * (t * (6.0 * t - 15.0) + 10.0)
        };
        if within < 0.5 * self.size {
            let own = weight(within);
            [(index, own), (index - 1, 1.0 - own)]
        } else {
            let own = weight(self.size - within);
            [(index, own), (index + 1, 1.0 - own)]
        }
    }

    /// Squared distance between the centres of two squares, in squares.
    pub(crate) fn distance(from: Square, to: Square) -> f64 {
        (0..2).map(|axis| (from[axis] as f64 - to[axis] as f64).powi(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> TileGrid {
        TileGrid { origin: [0.25, -1.75], size: 4.0, halo: 1.0, band: 0.4 }
    }

    /// Places on a line that crosses edges, and one near a corner.
    fn places() -> impl Iterator<Item = [f64; 2]> {
        (-900..900).map(|i| [0.25 + 0.011 * f64::from(i), -1.75 + 0.0073 * f64::from(i)])
    }

    #[test]
    fn weights_are_those_of_few_tiles_that_know_the_place_and_sum_to_one() {
        for place in places() {
            let weights: Vec<(Square, f64)> = grid().weights(place).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            // Four products of rounded weights.
            assert!((sum - 1.0).abs() < 1e-15 * 4.0, "{place:?}: {weights:?}");
            assert!((1..=4).contains(&weights.len()) && weights.iter().all(|(_, weight)| *weight > 0.0));
            let learning: Vec<Square> = grid().learning(place).collect();
            assert!(learning.len() <= 4 && weights.iter().all(|(square, _)| learning.contains(square)));
            assert!(learning.contains(&grid().containing(place)));
            assert_eq!(grid().is_of_first(place), learning.contains(&FIRST));
        }
        // In the middle there is one, with weight 1 to the last bit.
        assert_eq!(grid().weights([0.25, -1.75]).collect::<Vec<_>>(), [(FIRST, 1.0)]);
        assert_eq!(grid().weights([2.25, 0.25]).count(), 4, "a corner");
    }

    #[test]
    fn weights_and_their_slopes_are_continuous() {
        let of_first = |x: f64| {
            let weights = grid().weights([x, -1.75]);
            weights.filter(|(square, _)| *square == FIRST).map(|(_, weight)| weight).sum::<f64>()
        };
        let step = 1e-4;
        let slope = |x: f64| (of_first(x + step) - of_first(x)) / step;
        let mut x = 1.5;
        while x < 3.0 {
            // The slope changes by the curvature, which is at most 5.8 over the width of the fade squared, 0.8 m; doubled.
            assert!((slope(x + step) - slope(x)).abs() <= 2.0 * 5.8 / 0.64 * step, "{x}");
            x += step;
        }
        assert_eq!([of_first(1.84), of_first(2.25), of_first(2.66)], [1.0, 0.5, 0.0]);
    }

    #[test]
    fn any_number_is_of_some_square() {
        for far in [1e9, -1e300, f64::MAX, f64::INFINITY, f64::NAN] {
            assert!((1..=4).contains(&grid().learning([far, 0.0]).count()));
            assert!((1..=4).contains(&grid().weights([0.0, far]).count()));
        }
    }
}
