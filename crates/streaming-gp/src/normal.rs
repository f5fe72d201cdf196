//! Log densities of normal distributions.

/// log(2 pi), of every normal density.
pub(super) const LOG_2_PI: f64 = 1.837_877_066_409_345_3;

/// The log density of a normal distribution of `count` numbers, given the log determinant of its covariance and the square of what was
/// found in units of it: `-1/2 (count log 2 pi + log|C| + x^T C^-1 x)`.
pub(super) fn log_density_of(count: f64, log_determinant: f64, squares: f64) -> f64 {
    -0.5 * (count * LOG_2_PI + log_determinant + squares)
}
