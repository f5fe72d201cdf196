//! The past: what the model keeps of all batches so far, and the rows that it adds to the next.

use super::power_ep::WidenedPast;
use crate::linalg::{self, Accum, LOWER, UPPER, WHOLE, Workspace, dot};
use crate::{Inference, Kernel, Matrix, MatrixRef, Model, NotPositiveDefinite, Places, Whitened};

/// The model's knowledge of all batches so far, under the hyperparameters it was made with.
#[derive(Clone, Debug)]
pub struct Past<K: Kernel> {
    /// Inducing points Z_o.
    pub inducing: K::Places,
    /// L_b: Cholesky factor of their covariance, jitter included.
    pub covariance_root: Matrix,
    /// T, lower triangular, with T^T T = B - I. The rows of the past are R = T L_b^-1.
    pub(crate) triangle: Matrix,
    /// r, with T^T r = Phi^T z.
    pub(crate) target: Vec<f64>,
    /// log N(r; 0, I + R K'_aa R^T).
    pub(crate) log_evidence: f64,
}

impl<K: Kernel> Past<K> {
    /// R = T L_b^-1, lower triangular.
    pub(crate) fn root(&self) -> Matrix {
        let mut root = linalg::copied(self.triangle.as_ref());
        // R L_b = T, so L_b^T R^T = T^T.
        linalg::solve_lower_transposed(self.covariance_root.as_ref(), root.as_mut().transpose_mut());
        for column in 1..root.ncols() {
            root.col_as_slice_mut(column)[..column].fill(0.0);
        }
        root
    }

    /// L_b^-1 K_ba for new inducing points whose covariance has the root L_b. Pairs (new, old) of `shared` are the same variable, and
    /// share its jitter.
    pub(crate) fn whitened_covariance(
        &self,
        model: &Model<K>,
        inducing: &K::Places,
        shared: &[(usize, usize)],
        covariance_root: MatrixRef<'_>,
    ) -> Matrix {
        let mut whitened = model.kernel.covariance(inducing, &self.inducing);
        let prior = model.kernel.diagonal(&self.inducing);
        shared.iter().for_each(|&(new, old)| whitened[(new, old)] += model.jitter_of(prior[old]));
        linalg::solve_lower(covariance_root, whitened.as_mut());
        whitened
    }

    /// K_aa, jitter included.
    pub(crate) fn covariance(&self, model: &Model<K>) -> Matrix {
        let mut covariance = model.kernel.symmetric_covariance(&self.inducing);
        model.add_jitter(&self.inducing, covariance.as_mut());
        covariance
    }
}

/// The [permanent](Kernel::permanent) inducing variables of a kernel that the past does not have yet.
pub(crate) fn missing_permanent<K: Kernel>(kernel: &K, like: &K::Places, past: Option<&Past<K>>) -> K::Places {
    let permanent = kernel.permanent(like);
    let present = past.map_or(0, |past| permanent_indices(&past.inducing).count());
    permanent.select(present..permanent.len())
}

pub(super) fn permanent_indices(places: &impl Places) -> impl Iterator<Item = usize> {
    (0..places.len()).filter(|&index| places.is_permanent(index))
}

/// tr(R K_aa R^T)
pub(crate) fn prior_trace(root: &Matrix, covariance: &Matrix) -> f64 {
    let information = linalg::product(root.transpose(), root.as_ref());
    (0..covariance.ncols()).map(|j| dot(information.col_as_slice(j), covariance.col_as_slice(j))).sum()
}

/// The old inducing points that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All points.
    All,
    /// The points with these indices, in this order.
    Only(Vec<usize>),
}

impl Kept {
    /// The points with these ascending indices, of `old` in all.
    pub(crate) fn of(indices: Vec<usize>, old: usize) -> Self {
        if indices.len() == old { Self::All } else { Self::Only(indices) }
    }
}

/// The past while hyperparameters are learnt.
pub(super) struct PastRows<'a, K: Kernel> {
    pub(super) past: &'a Past<K>,
    /// R.
    pub(super) root: Matrix,
    /// Whether the old inducing points are the first of the new ones, in the same order.
    pub(super) nested: bool,
    /// Pairs (new, old) of indices of inducing points that are the same variable, and share its jitter; where not nested.
    pub(super) shared: Vec<(usize, usize)>,
}

impl<'a, K: Kernel> PastRows<'a, K> {
    pub(super) fn new(past: &'a Past<K>, nested: bool, shared: Vec<(usize, usize)>) -> Self {
        Self { past, root: past.root(), nested, shared }
    }

    /// The rows under the hyperparameters of the model, for new inducing points whose covariance has the root L_b.
    pub(super) fn whiten(
        &self,
        model: &Model<K>,
        inducing: &K::Places,
        covariance_root: MatrixRef<'_>,
        inference: Inference,
        workspace: &Workspace,
    ) -> Result<PastFeatures, NotPositiveDefinite> {
        let count = self.past.inducing.len();
        let (features, slack, widened) = if self.nested {
            let mut features = workspace.zeros(count, count);
            let (left, right) = (self.root.as_ref(), covariance_root.submatrix(0, 0, count, count));
            linalg::multiply((features.as_mut(), LOWER), Accum::Replace, 1.0, (left, LOWER), (right, LOWER));
            (features, 0.0, None)
        } else {
            let whitened = self.past.whitened_covariance(model, inducing, &self.shared, covariance_root);
            let mut features = linalg::zeros(count, inducing.len());
            linalg::add_product(features.as_mut(), 1.0, self.root.as_ref(), whitened.as_ref().transpose());
            let covariance = self.past.covariance(model);
            if let Some(alpha) = inference.alpha() {
                let past = WidenedPast::new(alpha, &self.root, &self.past.target, &covariance, &mut features)?;
                (features, past.slack, Some(past))
            } else {
                let slack = prior_trace(&self.root, &covariance) - linalg::squared_frobenius_norm(&features);
                (features, slack, None)
            }
        };
        let (structure, transposed) = if self.nested { (LOWER, UPPER) } else { (WHOLE, WHOLE) };
        let mut gram = workspace.zeros(features.ncols(), features.ncols());
        let (left, right) = (features.transpose(), features.as_ref());
        linalg::multiply((gram.as_mut(), LOWER), Accum::Replace, 1.0, (left, transposed), (right, structure));
        linalg::mirror_lower(gram.as_mut());
        let target = widened.as_ref().map_or(&self.past.target, |past| &past.target);
        let projected = linalg::matrix_vector(features.transpose(), target);
        Ok(PastFeatures { features, gram, projected, slack, widened })
    }

    /// Adds what enters through K_ab and K_aa when the old inducing points are no part of the new ones, and to the lower triangle of
    /// W what Power-EP adds there. Returns dL/dK_ba.
    #[allow(clippy::too_many_arguments)] // all that the gradient is made of
    pub(super) fn contract_moved(
        &self,
        model: &Model<K>,
        inducing: &K::Places,
        whitened: &Whitened,
        past: &PastFeatures,
        inverse: &Matrix,
        out: &mut Matrix,
        kernel_gradient: &mut [f64],
    ) -> Matrix {
        let root = past.widened.as_ref().map_or(&self.root, |past| &past.root);
        let spread = past.widened.as_ref().map(|widened| {
            let mut spread = linalg::zeros(self.past.inducing.len(), self.past.inducing.len());
            let residual = MatrixRef::from_column_major_slice(&whitened.past_residual, self.past.inducing.len(), 1);
            linalg::add_product(spread.as_mut(), widened.alpha, residual, residual.transpose());
            let product = linalg::product(past.features.as_ref(), inverse.as_ref());
            linalg::add_product(spread.as_mut(), widened.alpha, product.as_ref(), past.features.transpose());
            spread
        });
        // dL/dK_ba = L_b^-T ((I - B^-1) Phi_a^T + g w_a^T) R, under Power-EP with L_E^-1 R and with I - alpha C_a in the place of I.
        let mut shrunk = linalg::copied(past.features.transpose());
        if let Some(spread) = &spread {
            let product = linalg::product(past.features.transpose(), spread.as_ref());
            let (left, right) = (product.as_ref(), past.features.as_ref());
            linalg::multiply((out.as_mut(), LOWER), Accum::Add, 0.5, (left, WHOLE), (right, WHOLE));
            shrunk -= product;
        }
        linalg::add_product(shrunk.as_mut(), -1.0, inverse.as_ref(), past.features.transpose());
        for (column, residual) in whitened.past_residual.iter().enumerate() {
            let column = shrunk.col_as_slice_mut(column);
            let terms = column.iter_mut().zip(&whitened.coefficients);
            terms.for_each(|(entry, coefficient)| *entry += coefficient * residual);
        }
        linalg::solve_lower_transposed(whitened.covariance_root.as_ref(), shrunk.as_mut());
        let of_cross_covariance = linalg::product(shrunk.as_ref(), root.as_ref());
        model.kernel.contract(inducing, &self.past.inducing, of_cross_covariance.as_ref(), kernel_gradient);

        // dL/dK_aa = -1/2 R^T R, under Power-EP likewise.
        let mut of_covariance = linalg::product(root.transpose(), root.as_ref());
        linalg::scale(&mut of_covariance, -0.5);
        if let Some(spread) = &spread {
            let product = spread * root;
            linalg::add_product(of_covariance.as_mut(), 0.5, root.transpose(), product.as_ref());
        }
        let shared = self.shared.iter().map(|&(new, old)| (old, of_cross_covariance[(new, old)]));
        model.contract_covariance(&self.past.inducing, of_covariance.as_mut(), shared, kernel_gradient);
        of_cross_covariance
    }
}

/// The rows of the past, whitened.
pub(super) struct PastFeatures {
    /// Phi_a: M_a x M, or its first M_a columns (the others are zero) when the past is nested.
    pub(super) features: Matrix,
    /// S = Phi_a^T Phi_a, of the same columns.
    pub(super) gram: Matrix,
    /// Phi_a^T r, of the same columns.
    pub(super) projected: Vec<f64>,
    /// tr(R K_aa R^T) - |Phi_a|_F^2, under Power-EP log|E| / alpha; zero when nested.
    pub(super) slack: f64,
    /// Under Power-EP, when not nested.
    pub(super) widened: Option<WidenedPast>,
}

impl PastFeatures {
    /// r, as it is scaled.
    pub(super) fn target<'a, K: Kernel>(&'a self, rows: &'a PastRows<'_, K>) -> &'a [f64] {
        self.widened.as_ref().map_or(&rows.past.target, |past| &past.target)
    }

    /// w_a = r - Phi_a g.
    pub(super) fn residual<K: Kernel>(&self, rows: &PastRows<'_, K>, coefficients: &[f64]) -> Vec<f64> {
        let mut residual = self.target(rows).to_vec();
        let covered = self.features.ncols();
        linalg::add_matrix_vector(&mut residual, -1.0, self.features.as_ref(), &coefficients[..covered]);
        residual
    }

    /// `<I - B^-1, S>`.
    pub(super) fn inner_product_with_shrunk(&self, inverse: &Matrix) -> f64 {
        let size = self.gram.nrows();
        let mut sum = 0.0;
        for column in 0..size {
            let gram = &self.gram.col_as_slice(column)[column..];
            let inverse = &inverse.col_as_slice(column)[column..size];
            sum += gram[0] * (1.0 - inverse[0]) - 2.0 * dot(&gram[1..], &inverse[1..]);
        }
        sum
    }

    /// Adds to the lower triangle of W what enters through K_ab and K_aa, both part of K_bb:
    /// `S (I - B^-1) + (Phi_a^T w_a) g^T - S / 2` in the first M_a rows, made symmetric.
    pub(super) fn add_nested_gradient(
        &self,
        inverse: &Matrix,
        coefficients: &[f64],
        past_residual: &[f64],
        out: &mut Matrix,
    ) {
        let (covered, size) = (self.gram.nrows(), inverse.nrows());
        let gram = self.gram.as_ref();
        let (_, _, below, _) = inverse.as_ref().split_at(covered, covered);
        let among = inverse.as_ref().submatrix(0, 0, covered, covered);
        let mut add = |part, first, rows, left, right| {
            let target = out.as_mut().submatrix_mut(first, 0, rows, covered);
            linalg::multiply((target, part), Accum::Add, -0.5, (left, WHOLE), (right, WHOLE));
        };
        add(LOWER, 0, covered, gram, among);
        add(LOWER, 0, covered, among, gram);
        add(WHOLE, covered, size - covered, below, gram);
        let projected = linalg::matrix_vector(self.features.transpose(), past_residual);
        for column in 0..covered {
            let out = &mut out.col_as_slice_mut(column)[column..];
            for (out, coefficient) in out.iter_mut().zip(&coefficients[column..]) {
                *out += 0.5 * coefficient * projected[column];
            }
            let symmetric = projected[column..].iter().zip(&self.gram.col_as_slice(column)[column..]);
            for (out, (projected, gram)) in out.iter_mut().zip(symmetric) {
                *out += 0.5 * (coefficients[column] * projected + gram);
            }
        }
    }
}
