//! Gaussian processes by dense textbook formulas and plain loops: slow, and sharing nothing with the engine.
#![allow(dead_code)] // each test file uses a part

use std::f64::consts::TAU;

/// A matrix as rows.
pub type Rows = Vec<Vec<f64>>;

pub fn matrix(rows: usize, columns: usize, entry: impl Fn(usize, usize) -> f64) -> Rows {
    (0..rows).map(|i| (0..columns).map(|j| entry(i, j)).collect()).collect()
}

pub fn transpose(a: &Rows) -> Rows {
    matrix(a.first().map_or(0, Vec::len), a.len(), |i, j| a[j][i])
}

pub fn product(a: &Rows, b: &Rows) -> Rows {
    let columns = b.first().map_or(0, Vec::len);
    matrix(a.len(), columns, |i, j| (0..b.len()).map(|k| a[i][k] * b[k][j]).sum())
}

pub fn times(a: &Rows, x: &[f64]) -> Vec<f64> {
    a.iter().map(|row| dot(row, x)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `a + factor * b`.
pub fn plus(a: &Rows, factor: f64, b: &Rows) -> Rows {
    matrix(a.len(), a.first().map_or(0, Vec::len), |i, j| a[i][j] + factor * b[i][j])
}

pub fn trace_of_product(a: &Rows, b: &Rows) -> f64 {
    (0..a.len()).map(|i| (0..b.len()).map(|j| a[i][j] * b[j][i]).sum::<f64>()).sum()
}

/// The inverse and the logarithm of the determinant, by Gauss-Jordan elimination with row pivoting.
pub fn inverse(a: &Rows) -> (Rows, f64) {
    let size = a.len();
    let mut left = a.clone();
    let mut right = matrix(size, size, |i, j| if i == j { 1.0 } else { 0.0 });
    let mut log_determinant = 0.0;
    for k in 0..size {
        let pivot = (k..size).max_by(|&i, &j| left[i][k].abs().total_cmp(&left[j][k].abs())).unwrap();
        left.swap(k, pivot);
        right.swap(k, pivot);
        let diagonal = left[k][k];
        log_determinant += diagonal.abs().ln();
        for row in [&mut left[k], &mut right[k]] {
            row.iter_mut().for_each(|value| *value /= diagonal);
        }
        for i in (0..size).filter(|&i| i != k) {
            let factor = left[i][k];
            for j in 0..size {
                left[i][j] -= factor * left[k][j];
                right[i][j] -= factor * right[k][j];
            }
        }
    }
    (right, log_determinant)
}

/// log N(y; 0, covariance).
pub fn log_normal(y: &[f64], covariance: &Rows) -> f64 {
    let (precision, log_determinant) = inverse(covariance);
    -0.5 * (y.len() as f64 * TAU.ln() + log_determinant + dot(y, &times(&precision, y)))
}

/// A Gaussian over old inducing values a, and the prior it was made under.
#[derive(Clone)]
pub struct Old {
    /// m_a, without the prior mean.
    pub mean: Vec<f64>,
    /// S_a.
    pub covariance: Rows,
    /// K'_aa, jitter included.
    pub prior: Rows,
}

/// Covariances of a batch, its inducing points and the old ones, under the new hyperparameters.
pub struct Covariances {
    /// K_bb, jitter included.
    pub inducing: Rows,
    /// K_bf.
    pub cross: Rows,
    /// Diagonal of K_ff.
    pub diagonal: Vec<f64>,
    /// K_ba, jitter included where a and b share a point.
    pub old_cross: Rows,
    /// K_aa, jitter included.
    pub old: Rows,
    pub noise: f64,
}

/// The online bound of Bui et al. 2017 (VIPS paper, eq. 8) and the optimal q(b), written with the inverses it is stated in.
pub struct Online {
    pub bound: f64,
    pub mean: Vec<f64>,
    pub covariance: Rows,
}

pub fn online(covariances: &Covariances, y: &[f64], old: Option<&Old>) -> Online {
    let Covariances { inducing, cross, diagonal, old_cross, old: old_covariance, noise } = covariances;
    let (inducing_inverse, log_determinant) = inverse(inducing);
    let projection = product(&inducing_inverse, cross);
    let explained = trace_of_product(&transpose(cross), &projection);
    let mut precision = inducing_inverse.clone();
    precision = plus(&precision, 1.0 / noise, &product(&projection, &transpose(&projection)));
    let mut linear: Vec<f64> = times(&projection, y).iter().map(|value| value / noise).collect();
    let mut bound = -0.5 * (y.len() as f64 * (TAU * noise).ln() + dot(y, y) / noise)
        - 0.5 * (diagonal.iter().sum::<f64>() - explained) / noise;
    if let Some(Old { mean, covariance, prior }) = old {
        let (prior_inverse, prior_log_determinant) = inverse(prior);
        let (covariance_inverse, covariance_log_determinant) = inverse(covariance);
        let information = plus(&covariance_inverse, -1.0, &prior_inverse);
        let eta = times(&covariance_inverse, mean);
        let old_projection = product(&inducing_inverse, old_cross);
        let left = plus(old_covariance, -1.0, &product(&transpose(old_cross), &old_projection));
        bound += 0.5 * (prior_log_determinant - covariance_log_determinant - dot(mean, &eta));
        bound -= 0.5 * trace_of_product(&information, &left);
        let spread = product(&product(&old_projection, &information), &transpose(&old_projection));
        precision = plus(&precision, 1.0, &spread);
        linear.iter_mut().zip(times(&old_projection, &eta)).for_each(|(sum, value)| *sum += value);
    }
    let (covariance, precision_log_determinant) = inverse(&precision);
    let mean = times(&covariance, &linear);
    bound += -0.5 * (log_determinant + precision_log_determinant) + 0.5 * dot(&linear, &mean);
    Online { bound, mean, covariance }
}

/// The approximate log evidence and q(b) of Power-EP (Bui et al. 2017, appendix C: eq. 117, eq. 107 and eq. 108), written with the
/// inverses and the rows of all readings and old inducing points it is stated in.
pub fn power_ep(covariances: &Covariances, y: &[f64], old: Option<&Old>, alpha: f64) -> Online {
    let Covariances { inducing, cross, diagonal, old_cross, old: old_covariance, noise } = covariances;
    let (count, old_count) = (y.len(), old.map_or(0, |old| old.mean.len()));
    let inducing_inverse = inverse(inducing).0;
    let all_cross: Rows =
        cross.iter().zip(old_cross).map(|(new, old)| [new.as_slice(), &old[..old_count]].concat()).collect();
    let explained = product(&transpose(&all_cross), &product(&inducing_inverse, &all_cross));
    let mut sigma = matrix(count + old_count, count + old_count, |_, _| 0.0);
    let mut bound = 0.0;
    for i in 0..count {
        sigma[i][i] = noise + alpha * (diagonal[i] - explained[i][i]);
        bound += (1.0 - alpha) / (2.0 * alpha) * (noise.ln() - sigma[i][i].ln());
    }
    let mut all_y = y.to_vec();
    if let Some(Old { mean, covariance, prior }) = old {
        let (prior_inverse, prior_log_determinant) = inverse(prior);
        let (covariance_inverse, covariance_log_determinant) = inverse(covariance);
        let information = plus(&covariance_inverse, -1.0, &prior_inverse);
        let spread = inverse(&information).0;
        let eta = times(&covariance_inverse, mean);
        let left = matrix(old_count, old_count, |i, j| old_covariance[i][j] - explained[count + i][count + j]);
        let sigma_old = plus(&spread, alpha, &left);
        let identity = matrix(old_count, old_count, |i, j| f64::from(u8::from(i == j)));
        bound += 0.5 * (prior_log_determinant - covariance_log_determinant + inverse(&sigma_old).1)
            - inverse(&plus(&identity, alpha, &product(&information, &left))).1 / (2.0 * alpha)
            + 0.5 * old_count as f64 * TAU.ln()
            + 0.5 * (dot(&eta, &times(&spread, &eta)) - dot(mean, &eta));
        for i in 0..old_count {
            (0..old_count).for_each(|j| sigma[count + i][count + j] = sigma_old[i][j]);
        }
        all_y.extend(times(&spread, &eta));
    }
    let total = plus(&explained, 1.0, &sigma);
    bound += log_normal(&all_y, &total);
    let gain = product(&all_cross, &inverse(&total).0);
    let mean = times(&gain, &all_y);
    Online { bound, mean, covariance: plus(inducing, -1.0, &product(&gain, &transpose(&all_cross))) }
}

/// The log evidence of a batch by FITC (Snelson and Ghahramani 2006): log N(y; 0, Q + diag(K - Q) + noise).
pub fn fitc(covariances: &Covariances, y: &[f64]) -> f64 {
    let Covariances { inducing, cross, diagonal, noise, .. } = covariances;
    let explained = product(&transpose(cross), &product(&inverse(inducing).0, cross));
    let entry = |i: usize, j: usize| if i == j { diagonal[i] + noise } else { explained[i][j] };
    log_normal(y, &matrix(y.len(), y.len(), entry))
}

/// Mean and joint covariance at test places, given q(b).
pub fn predict(inducing: &Rows, cross: &Rows, prior: &Rows, q: &Online) -> (Vec<f64>, Rows) {
    let projection = product(&inverse(inducing).0, cross);
    let mean = times(&transpose(&projection), &q.mean);
    let narrowed = plus(inducing, -1.0, &q.covariance);
    let covariance = plus(prior, -1.0, &product(&transpose(&projection), &product(&narrowed, &projection)));
    (mean, covariance)
}

/// The exact Gaussian process: log evidence, and mean and joint covariance at test places.
pub fn exact(covariance: &Rows, noise: f64, y: &[f64], cross: &Rows, prior: &Rows) -> (f64, Vec<f64>, Rows) {
    let noisy = matrix(y.len(), y.len(), |i, j| covariance[i][j] + if i == j { noise } else { 0.0 });
    let gain = product(&transpose(cross), &inverse(&noisy).0);
    (log_normal(y, &noisy), times(&gain, y), plus(prior, -1.0, &product(&gain, cross)))
}
