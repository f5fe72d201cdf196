//! The map as the particles read it: means and variances on a grid of nodes, interpolated between them.

use super::density::log_density;
use crate::config;
use crate::field::map::{FieldMap, Prediction};

/// Number of intervals along each side of a tile.
const TILE: usize = 16;

/// Number of nodes along each side of a tile. Those on its border are its neighbours', too: one tile is enough to interpolate.
const NODES: usize = TILE + 1;

/// A node is unknown if its variance exceeds this fraction of the variance infinitely far away.
pub(crate) const UNKNOWN_ABOVE: f64 = 0.75;

/// Nodes per lengthscale: linear interpolation is then off by a thousandth of the field's standard deviation.
pub(crate) const NODES_PER_LENGTHSCALE: f64 = 8.0;

/// A map that is only read, in constant time at any place.
///
/// Only tiles with a known node are kept: the memory for a long corridor is that of the corridor.
#[derive(Clone, Debug)]
pub struct MapLookup {
    /// Distance between nodes, in metres.
    pub(super) resolution: f64,
    /// Indices of the lower left tile.
    first: [i64; 2],
    /// Number of tiles in x and y.
    size: [usize; 2],
    /// Index of a tile's first number in `nodes`; none where nothing is known.
    tiles: Vec<Option<usize>>,
    /// Number of outputs: 1 for the strength, 3 for the axes.
    pub outputs: usize,
    /// Means, then variances of each node; NaN where the map is unknown.
    nodes: Vec<f32>,
    /// Variance of the noise of a reading, in microtesla squared.
    pub noise: f64,
    /// How readings are distributed over the whole map, noise included: what is expected of one whose place is not known.
    pub anywhere: Vec<Normal>,
    /// How much a reading at a known place says about where it is: the mean of the logarithm of the likelihood there of a reading that is
    /// one standard deviation off, over that of a sensor anywhere in the map.
    pub information: f64,
    /// No reading is more likely than this anywhere: logarithm, up to the same constant as others.
    pub(super) greatest_likelihood: f64,
    /// Places of the known nodes, in metres.
    pub known: Vec<[f64; 2]>,
}

/// Mean and variance of each of D outputs at a place, in microtesla and microtesla squared, noise not included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local<const D: usize> {
    /// Means.
    pub mean: [f64; D],
    /// Variances.
    pub variance: [f64; D],
}

/// A normal distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Normal {
    /// Mean.
    pub mean: f64,
    /// Variance.
    pub variance: f64,
}

/// The map is unknown everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a map that is known somewhere, found none; was it learnt from more than a few readings?")]
pub struct NothingKnown;

impl MapLookup {
    /// Reads a map at the `height` of the sensor above its plane, in metres.
    ///
    /// # Errors
    /// Where nothing is known of it.
    pub fn of(map: &FieldMap, settings: &config::Localization, height: f64) -> Result<Self, NothingKnown> {
        let lengthscales = map.hyperparameters().into_iter().filter(|named| named.name.starts_with("lengthscale"));
        let finest = lengthscales.map(|named| named.value / NODES_PER_LENGTHSCALE).fold(settings.resolution, f64::min);
        let outputs = if map.axes(&[]).is_some() { 3 } else { 1 };
        let predict = |places: &[[f64; 2]]| {
            let places: Vec<[f64; 3]> = places.iter().map(|&[x, y]| [x, y, height]).collect();
            let Prediction { mean, variance, axes } = map.predict_at(&places, UNKNOWN_ABOVE);
            let node = |i: usize| match &axes {
                None => vec![mean[i], variance[i]],
                Some(axes) => axes[i].as_ref().map_or(vec![f64::NAN; 6], |axes| {
                    axes.mean.into_iter().chain((0..3).map(|axis| axes.covariance[axis][axis])).collect()
                }),
            };
            (0..places.len()).flat_map(node).map(|number| number as f32).collect()
        };
        let lookup =
            Self::fill(&map.inducing_points(), settings.margin, finest, outputs, map.noise_variance(), predict);
        if lookup.known.is_empty() { Err(NothingKnown) } else { Ok(lookup) }
    }

    /// Fills the tiles within `margin` of `places` with `predict`: from places to the numbers of their nodes.
    pub(crate) fn fill(
        places: &[[f64; 2]],
        margin: f64,
        resolution: f64,
        outputs: usize,
        noise: f64,
        predict: impl Fn(&[[f64; 2]]) -> Vec<f32>,
    ) -> Self {
        let tile = |coordinate: f64| (coordinate / (resolution * TILE as f64)).floor() as i64;
        let around = |&[x, y]: &[f64; 2]| {
            let columns = tile(x - margin)..=tile(x + margin);
            (tile(y - margin)..=tile(y + margin)).flat_map(move |row| columns.clone().map(move |column| [column, row]))
        };
        let mut wanted: Vec<[i64; 2]> = places.iter().flat_map(around).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let range = |axis: usize| {
            let indices = wanted.iter().map(|tile| tile[axis]);
            indices.fold((i64::MAX, i64::MIN), |(low, high), index| (low.min(index), high.max(index)))
        };
        let ranges = [range(0), range(1)];
        let first = ranges.map(|(low, _)| low);
        let size = ranges.map(|(low, high)| usize::try_from(high - low + 1).unwrap_or(0));

        let (mut tiles, mut nodes, mut known) = (vec![None; size[0] * size[1]], Vec::new(), Vec::new());
        for corner in wanted {
            let place = |node: usize| {
                let along = [node % NODES, node / NODES];
                [0, 1].map(|axis| (corner[axis] * TILE as i64 + along[axis] as i64) as f64 * resolution)
            };
            let places: Vec<[f64; 2]> = (0..NODES * NODES).map(place).collect();
            let numbers = predict(&places);
            let is_own = |node: usize| node % NODES < TILE && node / NODES < TILE;
            let is_known = |node: usize| numbers[node * 2 * outputs].is_finite();
            let before = known.len();
            known.extend((0..places.len()).filter(|&node| is_own(node) && is_known(node)).map(|node| places[node]));
            if known.len() > before {
                let [column, row] = [0, 1].map(|axis| (corner[axis] - first[axis]) as usize);
                tiles[row * size[0] + column] = Some(nodes.len());
                nodes.extend(numbers);
            }
        }
        let mut lookup = Self {
            resolution,
            first,
            size,
            tiles,
            outputs,
            nodes,
            noise,
            anywhere: Vec::new(),
            information: 0.0,
            greatest_likelihood: 0.0,
            known,
        };
        (lookup.anywhere, lookup.information) =
            if outputs == 1 { lookup.over_known::<1>() } else { lookup.over_known::<3>() };
        lookup.greatest_likelihood = lookup.bound_of_likelihood();
        lookup
    }

    /// Area in which the map is known, in square metres.
    pub fn area(&self) -> f64 {
        self.known.len() as f64 * self.resolution.powi(2)
    }

    /// An upper bound of the likelihood of a reading, [`MapLookup::greatest_likelihood`]: interpolated variances are not below those of the
    /// nodes.
    fn bound_of_likelihood(&self) -> f64 {
        let of = |variance: f64| log_density(0.0, 0.0, variance);
        let node = |numbers: &[f32]| -> f64 {
            numbers[self.outputs..].iter().map(|&variance| of(f64::from(variance) + self.noise)).sum()
        };
        let nodes = self.nodes.chunks_exact(2 * self.outputs).map(node).filter(|bound| !bound.is_nan());
        nodes.fold(self.anywhere.iter().map(|normal| of(normal.variance)).sum(), f64::max)
    }

    /// Mean and variance of each output over the known nodes, and the mean over them of what [`MapLookup::information`] is of.
    fn over_known<const D: usize>(&self) -> (Vec<Normal>, f64) {
        let locals: Vec<Local<D>> = self.known.iter().filter_map(|&place| self.at(place)).collect();
        let mean_of = |value: &dyn Fn(&Local<D>) -> f64| locals.iter().map(value).sum::<f64>() / locals.len() as f64;
        let normal = |axis: usize| {
            let mean = mean_of(&|local| local.mean[axis]);
            let variance = mean_of(&|local| (local.mean[axis] - mean).powi(2) + local.variance[axis]);
            Normal { mean, variance: variance + self.noise }
        };
        let anywhere: Vec<Normal> = (0..D).map(normal).collect();
        let information = |Local { mean, variance }: &Local<D>| -> f64 {
            let axis = |(axis, anywhere): (usize, &Normal)| {
                let deviation = (variance[axis] + self.noise).sqrt();
                log_density(deviation, 0.0, deviation * deviation)
                    - log_density(mean[axis], anywhere.mean, anywhere.variance)
            };
            anywhere.iter().enumerate().map(axis).sum()
        };
        let information = mean_of(&information);
        (anywhere, information)
    }

    /// The map at a place (x and y in metres); none where it is unknown, and where the map has another number of outputs.
    #[inline]
    pub fn at<const D: usize>(&self, place: [f64; 2]) -> Option<Local<D>> {
        let [x, y] = [place[0] / self.resolution, place[1] / self.resolution];
        let (left, lower) = (x.floor(), y.floor());
        let index = |of: f64, first: i64| usize::try_from(of as i64 - first * TILE as i64).ok();
        let (column, row) = (index(left, self.first[0])?, index(lower, self.first[1])?);
        if D != self.outputs || column / TILE >= self.size[0] || row / TILE >= self.size[1] {
            return None;
        }
        let tile = self.tiles[row / TILE * self.size[0] + column / TILE]?;
        // The numbers of two nodes that are neighbours in x follow each other.
        let of_row = |row: usize| &self.nodes[tile + (row * NODES + column % TILE) * 2 * D..][..4 * D];
        let (low, high) = (of_row(row % TILE), of_row(row % TILE + 1));
        let number = |i: usize| {
            let within = |row: &[f32]| {
                let (left_number, right_number) = (f64::from(row[i]), f64::from(row[2 * D + i]));
                left_number + (right_number - left_number) * (x - left)
            };
            within(low) + (within(high) - within(low)) * (y - lower)
        };
        let mean: [f64; D] = std::array::from_fn(number);
        mean[0].is_finite().then(|| Local { mean, variance: std::array::from_fn(|i| number(D + i)) })
    }

    /// How the means change with x and with y around a place, in microtesla per metre; none where the map is unknown a node further.
    pub fn gradient<const D: usize>(&self, [x, y]: [f64; 2]) -> Option<[[f64; 2]; D]> {
        let step = self.resolution;
        let mean = |x: f64, y: f64| self.at::<D>([x, y]).map(|local| local.mean);
        let [left, right] = [mean(x - step, y)?, mean(x + step, y)?];
        let [low, high] = [mean(x, y - step)?, mean(x, y + step)?];
        Some(std::array::from_fn(|i| [right[i] - left[i], high[i] - low[i]].map(|difference| 0.5 * difference / step)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A field of three axes within 10 m by 6 m that is known everywhere.
    pub(in crate::particle_filter) fn filled<const D: usize>(field: impl Fn([f64; 2]) -> [f64; D]) -> MapLookup {
        let places: Vec<[f64; 2]> = (0..60).map(|i| [f64::from(i % 10) + 0.5, f64::from(i / 10) + 0.5]).collect();
        MapLookup::fill(&places, 0.5, 0.1, D, 0.5, |places| {
            let node = |&[x, y]: &[f64; 2]| -> Vec<f32> {
                let is_known = (-1e-9..10.0).contains(&x) && (-1e-9..6.0).contains(&y);
                let numbers = field([x, y]).into_iter().chain([1.0; D]);
                numbers.map(|number| if is_known { number as f32 } else { f32::NAN }).collect()
            };
            places.iter().flat_map(node).collect()
        })
    }

    #[test]
    fn interpolation_is_exact_for_a_bilinear_field_across_tiles() {
        let field = |[x, y]: [f64; 2]| [40.0 + 2.0 * x - y, x * y - 3.0, 5.0];
        let lookup = filled(field);
        for i in 0..500 {
            let place = [0.0197 * f64::from(i), (0.0731 * f64::from(i)) % 5.8];
            let local = lookup.at::<3>(place).unwrap();
            for (mean, expected) in local.mean.iter().zip(field(place)) {
                // Nodes are single precision, of numbers up to 60.
                assert!((mean - expected).abs() < 2e-5, "{place:?}");
            }
            assert_eq!(local.variance, [1.0; 3]);
        }
        let gradient = lookup.gradient::<3>([4.03, 2.96]).unwrap();
        for (found, expected) in gradient.as_flattened().iter().zip([2.0, -1.0, 2.96, 4.03, 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-3, "{gradient:?}");
        }
        assert_eq!(lookup.gradient::<3>([0.05, 3.0]), None);
    }

    #[test]
    fn nothing_is_known_outside() {
        let lookup = filled(|[x, _]| [x]);
        for place in
            [[-0.05, 1.0], [1.0, -0.01], [10.2, 1.0], [5.0, 6.3], [1e12, 0.0], [f64::NAN, 1.0], [0.0, f64::INFINITY]]
        {
            assert_eq!(lookup.at::<1>(place), None, "{place:?}");
        }
        assert_eq!(lookup.known.len(), 100 * 60);
        // The nodes at 9.9 have no known neighbour to interpolate with: 99 from 0 to 9.8, with the variance of the map, 1, and the noise.
        let Normal { mean, variance } = lookup.anywhere[0];
        assert!((mean - 4.9).abs() < 1e-4, "{mean}");
        assert!((variance - ((99.0 * 99.0 - 1.0) / 12.0 * 0.01 + 1.5)).abs() < 1e-4, "{variance}");
    }
}
