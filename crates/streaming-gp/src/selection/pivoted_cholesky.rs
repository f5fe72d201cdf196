//! Greedy variance: places one by one, each where the variance that all before it leave is greatest.

use super::super::linalg::{self, squared_norm};
use crate::{Column, Kernel, Matrix, MatrixMut, MatrixRef, Model, Places};
use std::borrow::Cow;

/// Pivoted Cholesky of the covariance among places ("greedy variance", Burt et al. 2020): which to make inducing points, and
/// their features.
///
/// Column k of the features is what the k-th point explains at every place beyond the others, in units of the noise there: with
/// all of them, Phi Phi^T is Q_ff scaled from both sides. Adding the k-th point costs O(N k).
pub struct PivotedCholesky<'a, K: Kernel> {
    model: &'a Model<K>,
    /// The places whose features are wanted, and after them the candidates, where these are others.
    places: Cow<'a, K::Places>,
    /// How many of the places are wanted.
    rows: usize,
    /// Index of the first candidate.
    first: usize,
    /// The root of each place's weight: the variance of its noise is that of the model divided by the weight.
    roots: Vec<f64>,
    noises: Vec<f64>,
    prior_variances: Vec<f64>,
    /// Prior variance at each place that the chosen points leave.
    pub variances: Vec<f64>,
    /// The candidates chosen so far, in order.
    pub chosen: Vec<usize>,
    is_chosen: Vec<bool>,
    /// Phi_f, one column after another, with the features of the candidates below those of the rows where they are others.
    features: Vec<f64>,
    /// Number of columns of Phi_f.
    size: usize,
}

impl<'a, K: Kernel> PivotedCholesky<'a, K> {
    /// Starts from nothing.
    pub fn new(model: &'a Model<K>, places: &'a K::Places) -> Self {
        Self::starting_from(model, places, vec![1.0; places.len()], &Matrix::zeros(0, places.len()), None)
    }

    /// Starts from inducing points whose features at the places are the columns of `features` (M x N), scaled by the roots of
    /// these weights over the root of the noise. Where [candidates](Places::candidates) are not the places themselves, they are given with
    /// features of their own, which are scaled likewise.
    pub(super) fn starting_from(
        model: &'a Model<K>,
        places: &'a K::Places,
        mut weights: Vec<f64>,
        features: &Matrix,
        others: Option<(K::Places, Matrix)>,
    ) -> Self {
        let (size, rows) = (features.nrows(), places.len());
        let mut starts = vec![features];
        let (places, first) = match &others {
            None => (Cow::Borrowed(places), 0),
            Some((candidates, features)) => {
                weights.extend_from_within(..);
                starts.push(features);
                (Cow::Owned(places.followed_by(candidates)), rows)
            }
        };
        let count = places.len();
        let prior_variances = model.kernel.diagonal(&places);
        let noises: Vec<f64> = weights.iter().map(|weight| model.noise / weight).collect();
        let squares = starts.iter().flat_map(|start| (0..rows).map(|i| squared_norm(start.col_as_slice(i))));
        let explained = squares.zip(&noises).map(|(square, noise)| noise * square);
        let variances = prior_variances.iter().zip(explained).map(|(prior, explained)| prior - explained).collect();
        let mut columns = Vec::with_capacity(count * (size + 16));
        columns.resize(count * size, 0.0);
        for (start, block) in starts.iter().enumerate() {
            let all = MatrixMut::from_column_major_slice_mut(&mut columns, count, size);
            all.subrows_mut(start * rows, rows).copy_from(block.transpose());
        }
        Self {
            model,
            places,
            rows,
            first,
            roots: weights.iter().map(|weight| weight.sqrt()).collect(),
            noises,
            prior_variances,
            variances,
            chosen: Vec::new(),
            is_chosen: vec![false; count],
            features: columns,
            size,
        }
    }

    /// Number of inducing points, those from the start and those chosen.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether there is no inducing point yet.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Phi_f: N x M.
    pub(super) fn features(&self) -> MatrixRef<'_> {
        self.all_features().subrows(0, self.rows)
    }

    fn all_features(&self) -> MatrixRef<'_> {
        MatrixRef::from_column_major_slice(&self.features, self.places.len(), self.size)
    }

    /// tau: the trace of what is left of the covariance among the places, in units of the noise at each.
    pub(super) fn slack(&self) -> f64 {
        let weighted =
            self.variances[..self.rows].iter().zip(&self.roots).map(|(variance, root)| root * root * variance);
        weighted.sum::<f64>() / self.model.noise
    }

    /// The candidate with the greatest variance left, in units of that of its noise, and that variance; the first of equals. None
    /// when all are chosen, or when that one has no more than `least_share` of its prior variance left and there are
    /// inducing points.
    pub fn next(&self, least_share: f64) -> Option<(usize, f64)> {
        let left = (self.first..self.variances.len()).filter(|&i| !self.is_chosen[i]);
        let weighted = |i: usize| self.roots[i] * self.roots[i] * self.variances[i];
        let best = left.reduce(|best, i| if weighted(i) > weighted(best) { i } else { best })?;
        let variance = self.variances[best];
        (variance > least_share * self.prior_variances[best] || self.is_empty())
            .then_some((best - self.first, variance))
    }

    /// Makes candidate `index` an inducing point, and gives the new column of Phi_f.
    pub fn add(&mut self, index: usize) -> &[f64] {
        let (candidate, index) = (index, self.first + index);
        let count = self.places.len();
        let precision = 1.0 / self.model.noise.sqrt();
        let row: Vec<f64> = (0..self.size).map(|column| self.features[column * count + index]).collect();
        let pivot = self.variances[index].max(0.0) + self.model.jitter_of(self.prior_variances[index]);
        let pivot_root = pivot.sqrt().max(f64::MIN_POSITIVE);

        // What the point explains beyond the others, (k(X, x) / s - Phi_f l) / l_new, with the s of each place.
        let mut column = vec![0.0; count];
        self.model.kernel.add_column(Column::whole(self.places.as_ref(), self.places.as_ref(), index), &mut column);
        column.iter_mut().zip(&self.roots).for_each(|(value, root)| *value *= precision * root);
        let scale = self.model.noise.sqrt() / self.roots[index];
        linalg::add_matrix_vector(&mut column, -scale, self.all_features(), &row);
        column.iter_mut().for_each(|value| *value /= pivot_root);

        for ((variance, value), noise) in self.variances.iter_mut().zip(&column).zip(&self.noises) {
            *variance = (*variance - noise * value * value).max(0.0);
        }
        self.features.extend_from_slice(&column);
        self.size += 1;
        self.chosen.push(candidate);
        self.is_chosen[index] = true;
        &self.features[self.features.len() - count..][..self.rows]
    }
}
