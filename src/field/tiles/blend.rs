//! Gaussian from local models, blended.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Extent;
use super::grid::{Square, TileGrid};
use super::tile::Tile;
use crate::field::posterior::{Gaussian, MapPosterior};

/// The tiles that predict, and where they do.
#[derive(Clone, Debug)]
pub(crate) struct LocalPosteriors {
    /// The squares; none where there is one model.
    grid: Option<TileGrid>,
    /// The tiles with a posterior; without any, the newest posterior predicts everywhere.
    tiles: Arc<BTreeMap<Square, Arc<Tile>>>,
    /// The tile that learnt last.
    newest: Square,
    /// Posterior of the newest tile.
    posterior: MapPosterior,
}

/// The places that a tile predicts, by their index, and its weight at each.
struct Part<'a> {
    /// The tile; none for the only posterior.
    tile: Option<&'a Arc<Tile>>,
    indices: Vec<usize>,
    weights: Vec<f64>,
}

impl LocalPosteriors {
    /// A posterior for the whole plane.
    pub(crate) fn one(posterior: MapPosterior) -> Self {
        Self { grid: None, tiles: Arc::default(), newest: Square::default(), posterior }
    }

    /// The posteriors of all tiles that have one; none where `newest` is not among them.
    pub(super) fn new(grid: Option<TileGrid>, tiles: BTreeMap<Square, Arc<Tile>>, newest: Square) -> Option<Self> {
        let posterior = tiles.get(&newest)?.posterior()?;
        Some(Self { grid, tiles: Arc::new(tiles), newest, posterior })
    }

    /// Positions of all inducing points, in metres; of a place with several axes more than once.
    pub(crate) fn inducing_points(&self) -> Vec<[f64; 2]> {
        match self.only() {
            Some(posterior) => posterior.inducing_points(),
            None => self.tiles.values().flat_map(|tile| tile.inducing_points.iter().copied()).collect(),
        }
    }

    /// Number of inducing points: of axes and components of the sensor's bias where it has them.
    pub(crate) fn size(&self) -> usize {
        self.only().map_or_else(|| self.tiles.values().map(|tile| tile.size).sum(), MapPosterior::size)
    }

    /// Share of the field's variance that sources below the sensor cause; none where that is not learnt.
    pub(crate) fn share_below(&self) -> Option<f64> {
        let sides: Vec<[f64; 2]> = match self.only() {
            Some(posterior) => posterior.sides().into_iter().collect(),
            None => self.tiles.values().filter_map(|tile| tile.sides).collect(),
        };
        let [below, above] = [0, 1].map(|side| sides.iter().map(|variances| variances[side]).sum::<f64>());
        (!sides.is_empty()).then(|| below / (below + above))
    }

    /// The posterior of the tile that learnt last.
    pub(crate) fn newest(&self) -> &MapPosterior {
        &self.posterior
    }

    /// The only one, if there are no others.
    pub(crate) fn only(&self) -> Option<&MapPosterior> {
        (self.tiles.len() <= 1).then_some(&self.posterior)
    }

    /// The posterior that predicts a part of the places; none where it cannot be read.
    fn posterior_of(&self, part: &Part<'_>) -> Option<MapPosterior> {
        part.tile.map_or_else(|| Some(self.posterior.clone()), |tile| tile.posterior())
    }

    /// Gaussians at places, given those of one posterior for some of them, by their indices. Where several tiles predict, it is mean and
    /// covariance of the mixture of theirs.
    pub(crate) fn blend<const D: usize>(
        &self,
        places: impl ExactSizeIterator<Item = [f64; 2]>,
        predict: impl Fn(&MapPosterior, &[usize]) -> Vec<Gaussian<D>>,
    ) -> Vec<Gaussian<D>> {
        let nothing = Gaussian { mean: [0.0; D], covariance: [[0.0; D]; D], far_variance: 0.0 };
        let mut blended = vec![nothing; places.len()];
        let parts = self.parts(places);
        let unknown = Gaussian { mean: [f64::NAN; D], covariance: [[f64::NAN; D]; D], far_variance: 0.0 };
        let predictions = parts.iter().map(|part| match self.posterior_of(part) {
            Some(posterior) => predict(&posterior, &part.indices),
            None => vec![unknown; part.indices.len()],
        });
        let predictions: Vec<_> = predictions.collect();
        for (part, predictions) in parts.iter().zip(&predictions) {
            for ((&index, &weight), own) in part.indices.iter().zip(&part.weights).zip(predictions) {
                (0..D).for_each(|i| blended[index].mean[i] += weight * own.mean[i]);
                blended[index].far_variance += weight * own.far_variance;
            }
        }
        for (part, predictions) in parts.iter().zip(&predictions) {
            for ((&index, &weight), own) in part.indices.iter().zip(&part.weights).zip(predictions) {
                let Gaussian { mean, covariance, .. } = &mut blended[index];
                let off: [f64; D] = std::array::from_fn(|i| own.mean[i] - mean[i]);
                for i in 0..D {
                    (0..D).for_each(|j| covariance[i][j] += weight * (own.covariance[i][j] + off[i] * off[j]));
                }
            }
        }
        blended
    }

    /// Whether the same posteriors as in `other` predict all places of an area.
    pub(crate) fn predict_as(&self, other: &Self, area: Extent) -> bool {
        if self.grid != other.grid || self.only().is_some() != other.only().is_some() {
            return false;
        }
        let (Some(grid), None) = (&self.grid, self.only()) else {
            return self.newest == other.newest && self.newest().is_same(other.newest());
        };
        grid.predicting_within(area).is_some_and(|mut squares| {
            squares.all(|square| {
                let [own, others] = [self.nearest(square), other.nearest(square)];
                own == others && Arc::ptr_eq(&self.tiles[&own], &other.tiles[&others])
            })
        })
    }

    /// Variance of the noise of a reading at each place, blended.
    pub(crate) fn noise_variances(&self, places: &[[f64; 2]]) -> Vec<f64> {
        let mut blended = vec![0.0; places.len()];
        for part in self.parts(places.iter().copied()) {
            let noise = self.posterior_of(&part).map_or(f64::NAN, |posterior| posterior.noise_variance());
            part.indices.iter().zip(&part.weights).for_each(|(&index, weight)| blended[index] += weight * noise);
        }
        blended
    }

    /// The tiles, each with the places that it predicts. A square without a tile is predicted by the nearest one.
    fn parts(&self, places: impl ExactSizeIterator<Item = [f64; 2]>) -> Vec<Part<'_>> {
        let (Some(grid), None) = (&self.grid, self.only()) else {
            let (indices, weights) = ((0..places.len()).collect(), vec![1.0; places.len()]);
            return vec![Part { tile: None, indices, weights }];
        };
        let mut parts: BTreeMap<Square, Part<'_>> = BTreeMap::new();
        let mut nearest: BTreeMap<Square, Square> = BTreeMap::new();
        for (index, place) in places.enumerate() {
            for (square, weight) in grid.weights(place) {
                let tile = *nearest.entry(square).or_insert_with(|| self.nearest(square));
                let part = parts.entry(tile).or_insert_with(|| Part {
                    tile: Some(&self.tiles[&tile]),
                    indices: Vec::new(),
                    weights: Vec::new(),
                });
                match (part.indices.last(), part.weights.last_mut()) {
                    (Some(&last), Some(sum)) if last == index => *sum += weight,
                    _ => {
                        part.indices.push(index);
                        part.weights.push(weight);
                    }
                }
            }
        }
        parts.into_values().collect()
    }

    /// The tile of a square, or the one nearest to it, the first of equals.
    fn nearest(&self, square: Square) -> Square {
        if self.tiles.contains_key(&square) {
            return square;
        }
        let distance = |tile: &Square| TileGrid::distance(*tile, square);
        let nearest = self.tiles.keys().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.unwrap_or(self.newest)
    }
}
