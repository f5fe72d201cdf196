//! Dense linear algebra: the only file that names the solver (faer).
//!
//! Matrices are column-major doubles. Everything runs on one core, so that equal input gives equal bits.

use faer::Par;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::matmul::triangular;
use faer::linalg::{cholesky, qr, triangular_inverse, triangular_solve};
use faer::prelude::ReborrowMut;
use std::cell::RefCell;

/// A dense column-major matrix that owns its numbers.
pub type Matrix = faer::Mat<f64>;
/// A view of a matrix.
pub type MatrixRef<'a> = faer::MatRef<'a, f64>;
/// A view through which a matrix is written.
pub type MatrixMut<'a> = faer::MatMut<'a, f64>;

/// The part of a matrix that is read or written: all of it, or a triangle with the diagonal.
pub type Part = triangular::BlockStructure;
/// The whole matrix.
pub const WHOLE: Part = Part::Rectangular;
/// The lower triangle.
pub const LOWER: Part = Part::TriangularLower;
/// The upper triangle.
pub const UPPER: Part = Part::TriangularUpper;
/// Whether a product replaces what is in its target, or is added to it.
pub use faer::Accum;

const SEQUENTIAL: Par = Par::Seq;

/// A matrix of zeros.
///
/// Large ones take one of few sizes of memory: the number of inducing points changes with every other batch, and what one update
/// leaves should fit what the next one needs, or the process grows by holes that fit nothing.
pub fn zeros(rows: usize, columns: usize) -> Matrix {
    /// Numbers of a matrix that is not small: 128 kB.
    const LARGE: usize = 1 << 14;
    const STEP: usize = 64;
    /// Columns that begin at a multiple of 4 kB would all compete for the same lines of a cache.
    const SKEW: usize = 8;
    if rows.saturating_mul(columns) < LARGE {
        return Matrix::zeros(rows, columns);
    }
    let mut matrix = Matrix::with_capacity(rows.next_multiple_of(STEP) + SKEW, columns.next_multiple_of(STEP));
    matrix.resize_with(rows, columns, |_, _| 0.0);
    matrix
}

/// The product of two matrices.
pub fn product(left: MatrixRef<'_>, right: MatrixRef<'_>) -> Matrix {
    let mut product = zeros(left.nrows(), right.ncols());
    multiply((product.as_mut(), WHOLE), Accum::Replace, 1.0, (left, WHOLE), (right, WHOLE));
    product
}

/// A matrix of its own with the numbers of a view.
pub fn copied(matrix: MatrixRef<'_>) -> Matrix {
    let mut copy = zeros(matrix.nrows(), matrix.ncols());
    copy.as_mut().copy_from(matrix);
    copy
}

/// A matrix that should have been positive definite is not, to the precision of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPositiveDefinite;

/// The lower Cholesky factor of a symmetric matrix of which only the lower triangle is read. Its upper triangle is zero.
///
/// # Errors
/// [`NotPositiveDefinite`] also where an entry is not a number.
pub fn cholesky(mut matrix: Matrix) -> Result<Matrix, NotPositiveDefinite> {
    cholesky_in_place(matrix.as_mut())?;
    for column in 1..matrix.ncols() {
        matrix.col_as_slice_mut(column)[..column].fill(0.0);
    }
    Ok(matrix)
}

/// Replaces the lower triangle of a symmetric matrix by its Cholesky factor; the upper triangle is neither read nor written.
///
/// # Errors
/// [`NotPositiveDefinite`], and the matrix is left in no useful state.
pub fn cholesky_in_place(mut matrix: MatrixMut<'_>) -> Result<(), NotPositiveDefinite> {
    let size = matrix.nrows();
    let scratch = cholesky::llt::factor::cholesky_in_place_scratch::<f64>(size, SEQUENTIAL, Default::default());
    let mut buffer = MemBuffer::new(scratch);
    cholesky::llt::factor::cholesky_in_place(
        matrix.rb_mut(),
        Default::default(),
        SEQUENTIAL,
        MemStack::new(&mut buffer),
        Default::default(),
    )
    .map_err(|_| NotPositiveDefinite)?;
    let finite = (0..size).all(|i| matrix[(i, i)].is_finite() && matrix[(i, i)] > 0.0);
    if finite { Ok(()) } else { Err(NotPositiveDefinite) }
}

/// The logarithm of the determinant of the matrix with this Cholesky factor.
pub fn log_determinant(factor: MatrixRef<'_>) -> f64 {
    2.0 * (0..factor.nrows()).map(|i| factor[(i, i)].ln()).sum::<f64>()
}

/// Replaces `right` by `lower^-1 right`.
pub fn solve_lower(lower: MatrixRef<'_>, right: MatrixMut<'_>) {
    triangular_solve::solve_lower_triangular_in_place(lower, right, SEQUENTIAL);
}

/// Replaces `right` by `lower^-T right`.
pub fn solve_lower_transposed(lower: MatrixRef<'_>, right: MatrixMut<'_>) {
    triangular_solve::solve_upper_triangular_in_place(lower.transpose(), right, SEQUENTIAL);
}

/// Replaces the vector by `lower^-1 vector`.
pub fn solve_lower_vector(lower: MatrixRef<'_>, vector: &mut [f64]) {
    let rows = vector.len();
    solve_lower(lower, MatrixMut::from_column_major_slice_mut(vector, rows, 1));
}

/// Replaces the vector by `matrix^-1 vector`, given the Cholesky factor of the matrix.
pub fn solve_from_cholesky(factor: MatrixRef<'_>, vector: &mut [f64]) {
    solve_lower_vector(factor, vector);
    solve_lower_transposed_vector(factor, vector);
}

/// Replaces the vector by `lower^-T vector`.
pub fn solve_lower_transposed_vector(lower: MatrixRef<'_>, vector: &mut [f64]) {
    let rows = vector.len();
    solve_lower_transposed(lower, MatrixMut::from_column_major_slice_mut(vector, rows, 1));
}

/// The inverse of a lower triangular matrix; its upper triangle is zero.
pub fn inverse_lower(lower: MatrixRef<'_>) -> Matrix {
    let mut inverse = zeros(lower.nrows(), lower.ncols());
    triangular_inverse::invert_lower_triangular(inverse.as_mut(), lower, SEQUENTIAL);
    inverse
}

/// The inverse of the matrix with this Cholesky factor, both triangles filled.
pub fn inverse_from_cholesky(factor: MatrixRef<'_>) -> Matrix {
    let size = factor.nrows();
    let mut inverse = zeros(size, size);
    invert_from_cholesky(factor, inverse.as_mut(), zeros(size, size).as_mut());
    inverse
}

/// Writes the inverse of the matrix with this Cholesky factor into `inverse`, both triangles. `work` is of the same size.
pub fn invert_from_cholesky(factor: MatrixRef<'_>, mut inverse: MatrixMut<'_>, mut work: MatrixMut<'_>) {
    triangular_inverse::invert_lower_triangular(work.rb_mut(), factor, SEQUENTIAL);
    let root = work.as_ref();
    multiply((inverse.rb_mut(), LOWER), Accum::Replace, 1.0, (root.transpose(), UPPER), (root, LOWER));
    mirror_lower(inverse);
}

/// Replaces the symmetric W by the symmetric `lower^-T W lower^-1`; of both, only the lower triangle counts.
///
/// By halves, with half the work of two full solves. Written for L = [L1 0; C L2] and W = [W1 .; D W2]:
///
/// ```text
/// W2 := L2^-T W2 L2^-1        Q := L2^-T D - 1/2 W2 C
/// D  := (Q - 1/2 W2 C) L1^-1  W1 := L1^-T (W1 - C^T Q - Q^T C) L1^-1
/// ```
pub fn solve_both_sides(lower: MatrixRef<'_>, mut matrix: MatrixMut<'_>) {
    const LEAF: usize = 64;
    let size = lower.nrows();
    if size <= LEAF {
        mirror_lower(matrix.rb_mut());
        solve_lower_transposed(lower, matrix.rb_mut());
        solve_lower_transposed(lower, matrix.transpose_mut());
        return;
    }
    let half = (size / 2).next_multiple_of(8);
    let (first, _, corner, second) = lower.split_at(half, half);
    let (mut left, spare, mut below, mut right) = matrix.split_at_mut(half, half);
    solve_both_sides(second, right.rb_mut());
    mirror_lower(right.rb_mut());
    // The upper triangle is free to keep W2 C / 2.
    let mut spare = spare.transpose_mut();
    multiply((spare.rb_mut(), WHOLE), Accum::Replace, 0.5, (right.as_ref(), WHOLE), (corner, WHOLE));
    solve_lower_transposed(second, below.rb_mut());
    below -= spare.as_ref();
    let (outer, inner) = (corner.transpose(), below.as_ref());
    multiply((left.rb_mut(), LOWER), Accum::Add, -1.0, (outer, WHOLE), (inner, WHOLE));
    multiply((left.rb_mut(), LOWER), Accum::Add, -1.0, (inner.transpose(), WHOLE), (corner, WHOLE));
    below -= spare.as_ref();
    solve_lower_transposed(first, below.transpose_mut());
    solve_both_sides(first, left);
}

/// `target = factor * left * right`, or `target += factor * left * right`, reading and writing only these parts of the matrices.
pub fn multiply(
    (target, target_part): (MatrixMut<'_>, Part),
    accumulate: Accum,
    factor: f64,
    (left, left_part): (MatrixRef<'_>, Part),
    (right, right_part): (MatrixRef<'_>, Part),
) {
    triangular::matmul(target, target_part, accumulate, left, left_part, right, right_part, factor, SEQUENTIAL);
}

/// `target += factor * left * right` for full matrices.
pub fn add_product(target: MatrixMut<'_>, factor: f64, left: MatrixRef<'_>, right: MatrixRef<'_>) {
    multiply((target, WHOLE), Accum::Add, factor, (left, WHOLE), (right, WHOLE));
}

/// `target += factor * rows * rows^T` in the lower triangle only.
pub fn add_outer_gram(target: MatrixMut<'_>, factor: f64, rows: MatrixRef<'_>) {
    multiply((target, LOWER), Accum::Add, factor, (rows, WHOLE), (rows.transpose(), WHOLE));
}

/// The product of a matrix and a vector.
pub fn matrix_vector(matrix: MatrixRef<'_>, vector: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; matrix.nrows()];
    add_matrix_vector(&mut product, 1.0, matrix, vector);
    product
}

/// `target += factor * matrix * vector`.
pub fn add_matrix_vector(target: &mut [f64], factor: f64, matrix: MatrixRef<'_>, vector: &[f64]) {
    let rows = target.len();
    faer::linalg::matmul::matmul(
        MatrixMut::from_column_major_slice_mut(target, rows, 1),
        Accum::Add,
        matrix,
        MatrixRef::from_column_major_slice(vector, vector.len(), 1),
        factor,
        SEQUENTIAL,
    );
}

/// A square matrix from its rows, one after another.
///
/// # Panics
/// When there are fewer numbers than the square of `size`.
pub fn from_rows(size: usize, rows: &[f64]) -> Matrix {
    Matrix::from_fn(size, size, |row, column| rows[row * size + column])
}

/// The rows of a matrix, one after another.
pub fn to_rows(matrix: MatrixRef<'_>) -> Vec<f64> {
    let mut rows = Vec::with_capacity(matrix.nrows() * matrix.ncols());
    rows.extend((0..matrix.nrows()).flat_map(|row| (0..matrix.ncols()).map(move |column| matrix[(row, column)])));
    rows
}

/// A column of a column-major matrix.
pub fn column(matrix: MatrixRef<'_>, index: usize) -> &[f64] {
    matrix.col(index).try_as_col_major().expect("matrices are column-major").as_slice()
}

/// A column of a column-major matrix, for writing.
pub fn column_mut<'a>(matrix: &'a mut MatrixMut<'_>, index: usize) -> &'a mut [f64] {
    matrix.rb_mut().col_mut(index).try_as_col_major_mut().expect("matrices are column-major").as_slice_mut()
}

/// Multiplies every entry by `factor`.
pub fn scale(matrix: &mut Matrix, factor: f64) {
    scale_columns(matrix, |_| factor);
}

/// Multiplies every column by a factor of its own.
pub fn scale_columns(matrix: &mut Matrix, factor: impl Fn(usize) -> f64) {
    for column in 0..matrix.ncols() {
        let factor = factor(column);
        matrix.col_as_slice_mut(column).iter_mut().for_each(|value| *value *= factor);
    }
}

/// The sum of squares of all entries.
pub fn squared_frobenius_norm(matrix: &Matrix) -> f64 {
    (0..matrix.ncols()).map(|column| squared_norm(matrix.col_as_slice(column))).sum()
}

/// Copies the lower triangle into the upper one, by blocks whose transposes fit into the nearest cache.
pub fn mirror_lower(mut matrix: MatrixMut<'_>) {
    const BLOCK: usize = 16;
    let size = matrix.nrows();
    for left in (0..size).step_by(BLOCK) {
        for top in (left..size).step_by(BLOCK) {
            for column in left..size.min(left + BLOCK) {
                for row in top.max(column + 1)..size.min(top + BLOCK) {
                    matrix[(column, row)] = matrix[(row, column)];
                }
            }
        }
    }
}

/// Matrices that are lent and given back. Fresh memory from the system costs as much as much of the arithmetic on it.
#[derive(Debug, Default)]
pub struct Workspace {
    free: RefCell<Vec<Matrix>>,
}

impl Workspace {
    /// A matrix of zeros.
    pub fn zeros(&self, rows: usize, columns: usize) -> Matrix {
        let Some(mut matrix) = self.lend(rows, columns) else { return zeros(rows, columns) };
        matrix.as_mut().fill(0.0);
        matrix
    }

    /// A copy.
    pub fn copied(&self, matrix: &Matrix) -> Matrix {
        let Some(mut copy) = self.lend(matrix.nrows(), matrix.ncols()) else { return copied(matrix.as_ref()) };
        copy.copy_from(matrix);
        copy
    }

    /// A free matrix of this shape with unspecified entries, if there is one.
    fn lend(&self, rows: usize, columns: usize) -> Option<Matrix> {
        let mut free = self.free.borrow_mut();
        let index = free.iter().position(|matrix| matrix.shape() == (rows, columns))?;
        Some(free.swap_remove(index))
    }

    /// Takes back matrices that are no longer needed, to be lent again.
    pub fn give_back(&self, matrices: impl IntoIterator<Item = Matrix>) {
        self.free.borrow_mut().extend(matrices);
    }
}

/// Eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns; only the lower triangle is read. Not numbers where the
/// matrix has some that are none.
pub fn symmetric_eigen(matrix: MatrixRef<'_>) -> (Vec<f64>, Matrix) {
    // The solver subtracts one from the size.
    if matrix.nrows() == 0 {
        return (Vec::new(), Matrix::zeros(0, 0));
    }
    match matrix.self_adjoint_eigen(faer::Side::Lower) {
        Ok(eigen) => (eigen.S().column_vector().iter().copied().collect(), eigen.U().to_owned()),
        Err(_) => (vec![f64::NAN; matrix.nrows()], Matrix::from_fn(matrix.nrows(), matrix.nrows(), |_, _| f64::NAN)),
    }
}

/// The dot product of two vectors of equal length.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// The sum of squares of a vector.
pub fn squared_norm(vector: &[f64]) -> f64 {
    dot(vector, vector)
}

/// A lower triangular matrix that grows by one row at a time.
#[derive(Clone, Debug, Default)]
pub struct GrowingTriangle {
    /// The transposed triangle, column-major with `capacity` rows, so that a new row is a new column.
    buffer: Vec<f64>,
    capacity: usize,
    size: usize,
}

impl GrowingTriangle {
    /// Starts with this lower triangular matrix.
    pub fn new(lower: MatrixRef<'_>) -> Self {
        let mut triangle = Self::default();
        triangle.make_room(lower.nrows());
        let mut entries = Vec::with_capacity(lower.nrows());
        for row in 0..lower.nrows() {
            entries.clear();
            entries.extend((0..=row).map(|column| lower[(row, column)]));
            triangle.append(&entries);
        }
        triangle
    }

    /// Appends a row, its diagonal entry last.
    ///
    /// # Panics
    /// When the row is not one longer than the matrix has rows.
    pub fn append(&mut self, row: &[f64]) {
        assert_eq!(row.len(), self.size + 1, "a row ends at the diagonal");
        if self.size == self.capacity {
            self.make_room(row.len());
        }
        self.buffer[self.size * self.capacity..][..row.len()].copy_from_slice(row);
        self.size += 1;
    }

    /// Makes room for this many rows, and a quarter more.
    fn make_room(&mut self, rows: usize) {
        /// Triangles of nearly equal size take equal memory, as matrices of [`zeros`] do.
        const STEP: usize = 64;
        let capacity = (rows + rows / 4).next_multiple_of(STEP);
        let mut buffer = vec![0.0; capacity * capacity];
        for column in 0..self.size {
            let old = &self.buffer[column * self.capacity..][..self.size];
            buffer[column * capacity..][..self.size].copy_from_slice(old);
        }
        (self.buffer, self.capacity) = (buffer, capacity);
    }

    /// Replaces the vector by `triangle^-1 vector`.
    pub fn solve(&self, vector: &mut [f64]) {
        let upper = MatrixRef::from_column_major_slice_with_stride(&self.buffer, self.size, self.size, self.capacity);
        solve_lower_vector(upper.transpose(), vector);
    }
}

/// A lower triangle and the rotated right-hand side of a least-squares problem: see [`triangularize`].
pub struct Triangularized {
    /// Lower triangular T with `T^T T = features^T features`.
    pub triangle: Matrix,
    /// t with `T^T t = features^T target`.
    pub target: Vec<f64>,
}

/// Compresses rows `[features | target]` (P x M and P) by an orthogonal rotation into M rows `[T | t]`, T lower triangular.
///
/// A QR factorization with the columns in reverse order gives the lower triangle. The rows left over hold no information on
/// the features.
pub fn triangularize(features: MatrixRef<'_>, target: &[f64]) -> Triangularized {
    let size = features.ncols();
    let rows = features.nrows().max(size + 1);
    let mut work = zeros(rows, size + 1);
    work.as_mut().submatrix_mut(0, 0, features.nrows(), size).copy_from(features.reverse_cols());
    work.col_as_slice_mut(size)[..target.len()].copy_from_slice(target);
    householder(work.as_mut());
    let mut triangle = zeros(size, size);
    triangle.copy_from_triangular_lower(work.submatrix(0, 0, size, size).reverse_rows_and_cols());
    Triangularized { triangle, target: work.col_as_slice(size)[..size].iter().rev().copied().collect() }
}

/// Replaces the upper triangle of the matrix by the triangle of its QR factorization.
fn householder(mut matrix: MatrixMut<'_>) {
    let (rows, columns) = (matrix.nrows(), matrix.ncols());
    let block = qr::no_pivoting::factor::recommended_block_size::<f64>(rows, columns);
    let mut coefficients = zeros(block, rows.min(columns));
    let scratch =
        qr::no_pivoting::factor::qr_in_place_scratch::<f64>(rows, columns, block, SEQUENTIAL, Default::default());
    let mut buffer = MemBuffer::new(scratch);
    qr::no_pivoting::factor::qr_in_place(
        matrix.rb_mut(),
        coefficients.as_mut(),
        SEQUENTIAL,
        MemStack::new(&mut buffer),
        Default::default(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(rows: usize, columns: usize) -> Matrix {
        Matrix::from_fn(rows, columns, |i, j| ((i * 7 + j * 13) as f64).sin() + if i == j { 2.0 } else { 0.0 })
    }

    #[test]
    fn triangularize_keeps_gram_and_right_hand_side() {
        for (rows, columns) in [(9, 4), (4, 4), (2, 4), (1, 1)] {
            let features = example(rows, columns);
            let target: Vec<f64> = (0..rows).map(|i| (i as f64).cos()).collect();
            let Triangularized { triangle, target: rotated } = triangularize(features.as_ref(), &target);
            let gram = features.transpose() * &features;
            let again = triangle.transpose() * &triangle;
            for i in 0..columns {
                for j in 0..columns {
                    // A dozen roundings of numbers below 30.
                    assert!((gram[(i, j)] - again[(i, j)]).abs() < 1e-13);
                }
                let expected: f64 = (0..rows).map(|row| features[(row, i)] * target[row]).sum();
                let found: f64 = (0..columns).map(|row| triangle[(row, i)] * rotated[row]).sum();
                assert!((expected - found).abs() < 1e-13, "{expected} {found}");
                assert!((i + 1..columns).all(|j| triangle[(i, j)] == 0.0));
            }
        }
    }

    #[test]
    fn cholesky_rejects_what_is_not_positive_definite() {
        let indefinite = Matrix::from_fn(2, 2, |i, j| if i == j { 1.0 } else { 2.0 });
        assert_eq!(cholesky(indefinite).unwrap_err(), NotPositiveDefinite);
        let not_a_number = Matrix::from_fn(2, 2, |i, j| if i == j { f64::NAN } else { 0.0 });
        assert_eq!(cholesky(not_a_number).unwrap_err(), NotPositiveDefinite);
        let infinite = Matrix::from_fn(2, 2, |i, j| if i == j { f64::INFINITY } else { 0.0 });
        assert_eq!(cholesky(infinite).unwrap_err(), NotPositiveDefinite);
    }

    #[test]
    fn solving_both_sides_is_solving_twice() {
        for size in [1, 5, 64, 65, 131, 200] {
            let root = cholesky(Matrix::from_fn(size, size, |i, j| {
                (-(i as f64 - j as f64).abs() / 5.0).exp() + if i == j { 0.5 } else { 0.0 }
            }))
            .unwrap();
            let symmetric = Matrix::from_fn(size, size, |i, j| ((i * j) as f64).sin() + ((i + j) as f64).cos());
            let mut expected = symmetric.clone();
            solve_lower_transposed(root.as_ref(), expected.as_mut());
            solve_lower_transposed(root.as_ref(), expected.as_mut().transpose_mut());
            // Only the lower triangle may be read.
            let mut found = Matrix::from_fn(size, size, |i, j| if i >= j { symmetric[(i, j)] } else { f64::NAN });
            solve_both_sides(root.as_ref(), found.as_mut());
            for j in 0..size {
                // The condition number is about 20, entries are below 10.
                (j..size).for_each(|i| assert!((found[(i, j)] - expected[(i, j)]).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn a_workspace_lends_zeros() {
        let workspace = Workspace::default();
        let mut matrix = workspace.zeros(3, 2);
        matrix[(2, 1)] = 7.0;
        workspace.give_back([matrix]);
        assert_eq!(workspace.zeros(2, 3).shape(), (2, 3));
        assert_eq!(workspace.zeros(3, 2), Matrix::zeros(3, 2));
    }

    #[test]
    fn inverse_from_cholesky_inverts() {
        let root = example(5, 5);
        let matrix = &root * root.transpose();
        let inverse = inverse_from_cholesky(cholesky(matrix.clone()).unwrap().as_ref());
        let product = &matrix * &inverse;
        for i in 0..5 {
            for j in 0..5 {
                let expected = if i == j { 1.0 } else { 0.0 };
                // The condition number is below 1e3.
                assert!((product[(i, j)] - expected).abs() < 1e-11);
            }
        }
    }
}
