//! How readings are distributed around what the map says.

/// Degrees of freedom of the readings' distribution around the map: its heavy tails leave a particle some weight where the map is wrong.
pub(super) const DEGREES_OF_FREEDOM: f64 = 4.0;

/// Logarithm of the density of Student's t distribution, up to a constant.
pub(super) fn log_density(value: f64, mean: f64, variance: f64) -> f64 {
    let square = (value - mean).powi(2) / variance;
    -0.5 * ((DEGREES_OF_FREEDOM + 1.0) * (square / DEGREES_OF_FREEDOM).ln_1p() + variance.ln())
}
