//! Prediction at any place.

use super::linalg::{self, Accum, LOWER, Triangularized, UPPER, column, dot, squared_norm};
use super::whitened::log_evidence;
use crate::{Column, Kept, Kernel, Matrix, MatrixRef, Model, NotPositiveDefinite, Past, Places, Rows};

/// Places handled at once: keeps the working memory small and in the cache.
const CHUNK: usize = 256;

/// The posterior of the latent function, under the hyperparameters it was made with.
///
/// With p = L_b^-1 k_b(x): mean p^T g + m, variance k(x, x) - |p|^2 + |L_B^-1 p|^2, where g = B^-1 Phi^T z.
#[derive(Clone, Debug)]
pub struct Posterior<K: Kernel> {
    /// The model, with its hyperparameters.
    pub model: Model<K>,
    /// The state that the next batch needs.
    pub past: Past<K>,
    /// L_B.
    pub precision_root: Matrix,
    /// g.
    pub weights: Vec<f64>,
}

impl<K: Kernel> Posterior<K> {
    /// The posterior given the past.
    ///
    /// # Errors
    /// When a matrix of the past is not positive definite, which only a corrupt past can cause.
    pub fn new(model: Model<K>, past: Past<K>) -> Result<Self, NotPositiveDefinite> {
        let size = past.inducing.len();
        let mut gram = Matrix::identity(size, size);
        let (left, right) = (past.triangle.transpose(), past.triangle.as_ref());
        linalg::multiply((gram.as_mut(), LOWER), Accum::Add, 1.0, (left, UPPER), (right, LOWER));
        let precision_root = linalg::cholesky(gram)?;
        let mut weights = linalg::matrix_vector(past.triangle.transpose(), &past.target);
        linalg::solve_from_cholesky(precision_root.as_ref(), &mut weights);
        Ok(Self { model, past, precision_root, weights })
    }

    /// The posterior of whitened rows of unit noise (P x M) and their targets, whatever they represent.
    ///
    /// # Errors
    /// When B is not finite.
    pub(super) fn of_rows(
        model: Model<K>,
        inducing: K::Places,
        covariance_root: Matrix,
        features: MatrixRef<'_>,
        target: &[f64],
    ) -> Result<Self, NotPositiveDefinite> {
        let Triangularized { triangle, target } = linalg::triangularize(features, target);
        let past = Past { inducing, covariance_root, triangle, target, log_evidence: f64::NAN };
        let mut posterior = Self::new(model, past)?;
        let Self { past: Past { triangle, target, .. }, precision_root, weights, .. } = &posterior;
        posterior.past.log_evidence = log_evidence(triangle.as_ref(), target, weights, precision_root.as_ref());
        Ok(posterior)
    }

    /// Mean and variance of the latent function (noise not included) at each place, in the unit of the targets and its square; not
    /// a number where a place is none.
    pub fn predict(&self, places: &K::Places) -> (Vec<f64>, Vec<f64>) {
        let size = self.past.inducing.len();
        let mut work = linalg::zeros(size, CHUNK.min(places.len()));
        let (mut mean, mut variance) = (vec![self.model.mean; places.len()], self.model.kernel.diagonal(places));
        for start in (0..places.len()).step_by(CHUNK) {
            let length = CHUNK.min(places.len() - start);
            let mut features = work.as_mut().subcols_mut(0, length);
            features.fill(0.0);
            for j in 0..length {
                let out = linalg::column_mut(&mut features, j);
                self.model.kernel.add_column(Column::whole(&self.past.inducing, places, start + j), out);
            }
            linalg::solve_lower(self.past.covariance_root.as_ref(), work.as_mut().subcols_mut(0, length));
            for j in 0..length {
                let features = column(work.as_ref(), j);
                mean[start + j] += dot(features, &self.weights);
                variance[start + j] -= squared_norm(features);
            }
            linalg::solve_lower(self.precision_root.as_ref(), work.as_mut().subcols_mut(0, length));
            for j in 0..length {
                let variance = &mut variance[start + j];
                let sum = *variance + squared_norm(column(work.as_ref(), j));
                // What is not a number stays so.
                *variance = if sum < 0.0 { 0.0 } else { sum };
            }
        }
        (mean, variance)
    }

    /// Mean and joint covariance of the latent function at the places.
    pub fn predict_joint(&self, places: &K::Places) -> (Vec<f64>, Matrix) {
        let mut features = self.model.kernel.covariance(&self.past.inducing, places);
        linalg::solve_lower(self.past.covariance_root.as_ref(), features.as_mut());
        let mean = (0..places.len()).map(|j| self.model.mean + dot(features.col_as_slice(j), &self.weights)).collect();
        let mut covariance = linalg::zeros(places.len(), places.len());
        self.model.kernel.add_lower_covariance(places, covariance.as_mut());
        add_gram(&mut covariance, -1.0, &features);
        linalg::solve_lower(self.precision_root.as_ref(), features.as_mut());
        add_gram(&mut covariance, 1.0, &features);
        linalg::mirror_lower(covariance.as_mut());
        (mean, covariance)
    }

    /// Mean and joint covariance of the latent function at each group of `D` consecutive places: the axes of a field at a place.
    ///
    /// # Panics
    /// When the number of places is no multiple of `D`.
    pub fn predict_groups<const D: usize>(&self, places: &K::Places) -> Vec<([f64; D], [[f64; D]; D])> {
        self.predict_groups_with(places, |_| {})
    }

    /// [`predict_groups`](Self::predict_groups) where `also` gets L_b^-1 k_b of every group, one after another.
    pub(crate) fn predict_groups_with<const D: usize>(
        &self,
        places: &K::Places,
        mut also: impl FnMut([&[f64]; D]),
    ) -> Vec<([f64; D], [[f64; D]; D])> {
        assert_eq!(places.len() % D, 0, "whole groups of places");
        let size = self.past.inducing.len();
        let mut groups = Vec::with_capacity(places.len() / D);
        for start in (0..places.len()).step_by(CHUNK * D) {
            let length = (CHUNK * D).min(places.len() - start);
            let mut features = linalg::zeros(size, length);
            for j in 0..length {
                let out = features.col_as_slice_mut(j);
                self.model.kernel.add_column(Column::whole(&self.past.inducing, places, start + j), out);
            }
            linalg::solve_lower(self.past.covariance_root.as_ref(), features.as_mut());
            let first = groups.len();
            for group in (0..length).step_by(D) {
                also(std::array::from_fn(|i| features.col_as_slice(group + i)));
                let mean = |i: usize| self.model.mean + dot(features.col_as_slice(group + i), &self.weights);
                let range = start + group..start + group + D;
                let covariance = |j: usize| {
                    let mut prior = [0.0; D];
                    let column = start + group + j;
                    let entries = Column { rows: places, range: range.clone(), columns: places, column };
                    self.model.kernel.add_column(entries, &mut prior);
                    let explained = |i: usize| inner_product(&features, group + i, group + j);
                    std::array::from_fn(|i| prior[i] - explained(i))
                };
                groups.push((std::array::from_fn(mean), std::array::from_fn(covariance)));
            }
            linalg::solve_lower(self.precision_root.as_ref(), features.as_mut());
            for (group, (_, covariance)) in groups[first..].iter_mut().enumerate() {
                let added = |i: usize, j: usize| inner_product(&features, D * group + i, D * group + j);
                let prior = *covariance;
                *covariance = std::array::from_fn(|i| {
                    std::array::from_fn(|j| {
                        // From one triangle, so that it is symmetric to the last bit.
                        let (row, column) = (i.max(j), i.min(j));
                        let sum = prior[row][column] + added(row, column);
                        if i == j && sum < 0.0 { 0.0 } else { sum }
                    })
                });
            }
        }
        groups
    }

    /// Removes the inducing points whose variance given all others is at most `tolerance` times their prior variance, and
    /// counts them. Their information stays: the rows of the past are projected on those that remain.
    ///
    /// # Errors
    /// When the covariance of the remaining points is not positive definite to the precision of doubles.
    pub fn without_redundant(self, tolerance: f64) -> Result<(Self, usize), NotPositiveDefinite> {
        let before = self.past.inducing.len();
        let mut posterior = self;
        while let Some(index) = posterior.most_redundant(tolerance) {
            posterior = posterior.without(index)?;
        }
        let dropped = before - posterior.past.inducing.len();
        Ok((posterior, dropped))
    }

    fn most_redundant(&self, tolerance: f64) -> Option<usize> {
        if self.past.inducing.len() < 2 {
            return None;
        }
        // The variance of one given the others is the inverse of the diagonal of the precision.
        let inverse_root = linalg::inverse_lower(self.past.covariance_root.as_ref());
        let prior = self.model.kernel.diagonal(&self.past.inducing);
        let share = |i: usize| {
            let conditional = 1.0 / squared_norm(inverse_root.col_as_slice(i));
            (conditional - self.model.jitter_of(prior[i])) / prior[i]
        };
        let removable = (0..self.past.inducing.len()).filter(|&i| !self.past.inducing.is_permanent(i));
        let (index, share) = removable.map(|i| (i, share(i))).min_by(|a, b| a.1.total_cmp(&b.1))?;
        (share <= tolerance).then_some(index)
    }

    fn without(&self, index: usize) -> Result<Self, NotPositiveDefinite> {
        let nothing = self.past.inducing.cleared();
        let kept = Kept::Only((0..self.past.inducing.len()).filter(|&i| i != index).collect());
        let rows = Rows::chosen(&nothing, &[], Some(&self.past), &kept, &nothing);
        let whitened = rows.whiten(&self.model)?;
        Self::new(self.model.clone(), rows.into_past(whitened))
    }
}

fn inner_product(features: &Matrix, i: usize, j: usize) -> f64 {
    dot(features.col_as_slice(i), features.col_as_slice(j))
}

fn add_gram(covariance: &mut Matrix, factor: f64, features: &Matrix) {
    linalg::add_outer_gram(covariance.as_mut(), factor, features.transpose());
}
