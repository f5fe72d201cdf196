//! Stationary covariance functions of R^D.
//!
//! Kernel evaluations are much of the cost of an update. They are written as loops over whole vectors without branches or calls,
//! which the compiler turns into the widest vector instructions of the processor that runs them.

use super::{Column, sum};
use crate::{Kernel, Points};
use pulp::Arch;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The shape of a stationary covariance function, from rough to smooth, as a function rho of the scaled distance s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Matérn 1/2: exp(-s).
    Matern12,
    /// Matérn 3/2: (1 + sqrt(3) s) exp(-sqrt(3) s).
    Matern32,
    /// Matérn 5/2: (1 + sqrt(5) s + 5/3 s^2) exp(-sqrt(5) s).
    Matern52,
    /// Squared exponential: exp(-s^2 / 2).
    SquaredExponential,
}

/// A stationary covariance function of R^D (Rasmussen and Williams 2006, section 4.2): `variance * rho(s)` with
/// `s^2 = sum_d ((x_d - x'_d) / lengthscale_d)^2`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stationary {
    /// Variance of an offset that all places share, such as the ambient field, if the model has one.
    pub constant: Option<f64>,
    /// The shape rho.
    pub shape: Shape,
    /// Variance: the value at distance zero.
    pub variance: f64,
    /// A lengthscale for all dimensions, or one for each.
    pub lengthscales: Vec<f64>,
}

/// Points handled at once: small enough for the stack.
const CHUNK: usize = 64;

/// Numbers in a vector instruction. Work buffers are filled to whole vectors, so that no tail is computed one by one.
const LANES: usize = 8;

type Vectors = [[f64; LANES]; CHUNK / LANES];

/// Calls a method of a kernel with the formula of the kernel's shape, compiled for the processor that runs it.
macro_rules! for_shape {
    ($kernel:expr, $method:ident($($argument:expr),*)) => {
        match $kernel.shape {
            Shape::Matern12 => for_shape!($kernel, $method(matern12; $($argument),*)),
            Shape::Matern32 => for_shape!($kernel, $method(matern32; $($argument),*)),
            Shape::Matern52 => for_shape!($kernel, $method(matern52; $($argument),*)),
            Shape::SquaredExponential => for_shape!($kernel, $method(squared_exponential; $($argument),*)),
        }
    };
    ($kernel:expr, $method:ident($formula:ident; $($argument:expr),*)) => {
        match Arch::new() {
            Arch::Scalar => $kernel.$method($formula::<false>, $($argument),*),
            arch => arch.dispatch(
                #[inline(always)]
                || {
                    $kernel.$method(
                        #[inline(always)]
                        |square| $formula::<true>(square),
                        $($argument),*
                    )
                },
            ),
        }
    };
}

/// A column of covariances among points.
type Entries<'a> = Column<'a, Points>;

impl Stationary {
    /// Adds the derivative in the constant, if there is one, and returns the rest of the gradient.
    fn contract_constant<'a>(&self, weights: &[f64], gradient: &'a mut [f64]) -> &'a mut [f64] {
        let (first, rest) = gradient.split_at_mut(usize::from(self.constant.is_some()));
        if let ([entry], Some(constant)) = (first, self.constant) {
            *entry += constant * sum(weights);
        }
        rest
    }

    fn lengthscale(&self, axis: usize) -> f64 {
        if self.lengthscales.len() == 1 { self.lengthscales[0] } else { self.lengthscales[axis] }
    }

    /// Calls `body` with each chunk of the range, counted from its start, and the squared scaled distances of its points from
    /// the column's point. The buffer is filled with zeros up to the next whole vector.
    #[inline(always)]
    fn for_each_chunk(&self, entries: &Entries<'_>, mut body: impl FnMut(Range<usize>, &mut [[f64; LANES]])) {
        let Column { rows, range, columns, column } = entries;
        let mut squares: Vectors = Default::default();
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..range.end.min(start + CHUNK);
            let squares = &mut squares[..chunk.len().div_ceil(LANES)];
            squares.as_flattened_mut().fill(0.0);
            for axis in 0..rows.dimension() {
                let inverse = 1.0 / self.lengthscale(axis);
                let origin = columns.axis(axis)[*column];
                for (square, value) in squares.as_flattened_mut().iter_mut().zip(&rows.axis(axis)[chunk.clone()]) {
                    let scaled = (value - origin) * inverse;
                    *square += scaled * scaled;
                }
            }
            body(chunk.start - range.start..chunk.end - range.start, squares);
        }
    }

    #[inline(always)]
    fn add_vectors(&self, formula: impl Fn(f64) -> (f64, f64), entries: Entries<'_>, out: &mut [f64]) {
        self.for_each_chunk(
            &entries,
            #[inline(always)]
            |chunk, squares| {
                for lanes in squares.iter_mut() {
                    for value in lanes {
                        *value = self.variance * formula(*value).0;
                    }
                }
                out[chunk].iter_mut().zip(squares.as_flattened()).for_each(|(sum, value)| *sum += value);
            },
        );
    }

    #[inline(always)]
    fn contract_vectors(
        &self,
        formula: impl Fn(f64) -> (f64, f64),
        entries: Entries<'_>,
        weights: &[f64],
        gradient: &mut [f64],
    ) {
        let shared = self.lengthscales.len() == 1;
        let mut of_variance = [0.0; LANES];
        let mut of_lengthscale = [0.0; LANES];
        let mut padded: Vectors = Default::default();
        self.for_each_chunk(
            &entries,
            #[inline(always)]
            |chunk, squares| {
                let weights = &weights[chunk.clone()];
                let padded = &mut padded[..squares.len()];
                padded.as_flattened_mut()[weights.len()..].fill(0.0);
                padded.as_flattened_mut()[..weights.len()].copy_from_slice(weights);
                for (weights, squares) in padded.iter_mut().zip(squares) {
                    for lane in 0..LANES {
                        let (rho, psi) = formula(squares[lane]);
                        of_variance[lane] += weights[lane] * rho;
                        weights[lane] *= psi;
                        of_lengthscale[lane] += weights[lane] * squares[lane];
                    }
                }
                if !shared {
                    let slopes = &padded.as_flattened()[..chunk.len()];
                    self.contract_axes(&entries, chunk, slopes, &mut gradient[1..]);
                }
            },
        );
        gradient[0] += self.variance * of_variance.iter().sum::<f64>();
        if shared {
            gradient[1] += self.variance * of_lengthscale.iter().sum::<f64>();
        }
    }

    /// The derivative of k in a coordinate is `-variance psi (x_d - x'_d) / lengthscale_d^2`.
    #[inline(always)]
    fn contract_vectors_in_rows(
        &self,
        formula: impl Fn(f64) -> (f64, f64),
        entries: Entries<'_>,
        weights: &[f64],
        gradient: &mut [f64],
    ) {
        let (rows, columns, column) = (entries.rows, entries.columns, entries.column);
        self.for_each_chunk(
            &entries,
            #[inline(always)]
            |chunk, squares| {
                for lanes in squares.iter_mut() {
                    for value in lanes {
                        *value = formula(*value).1;
                    }
                }
                for axis in 0..rows.dimension() {
                    let factor = -self.variance / self.lengthscale(axis).powi(2);
                    let origin = columns.axis(axis)[column];
                    let terms = squares.as_flattened().iter().zip(&weights[chunk.clone()]);
                    let coordinates = &rows.axis(axis)[chunk.clone()];
                    let gradient = &mut gradient[axis * weights.len()..][chunk.clone()];
                    for ((entry, coordinate), (psi, weight)) in gradient.iter_mut().zip(coordinates).zip(terms) {
                        *entry += factor * weight * (psi * (coordinate - origin));
                    }
                }
            },
        );
    }

    /// The derivatives in the logarithm of each axis's lengthscale, given `weight * psi` for each point of a chunk.
    #[inline(always)]
    fn contract_axes(&self, entries: &Entries<'_>, chunk: Range<usize>, slopes: &[f64], gradient: &mut [f64]) {
        let Column { rows, range, columns, column } = entries;
        for (axis, entry) in gradient.iter_mut().enumerate() {
            let inverse = 1.0 / self.lengthscale(axis);
            let origin = columns.axis(axis)[*column];
            let coordinates = &rows.axis(axis)[range.start + chunk.start..range.start + chunk.end];
            let terms = slopes.iter().zip(coordinates).map(|(slope, coordinate)| {
                let scaled = (coordinate - origin) * inverse;
                slope * scaled * scaled
            });
            *entry += self.variance * terms.sum::<f64>();
        }
    }
}

impl Kernel for Stationary {
    type Places = Points;

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.constant.map(|_| "constant".to_owned()).into_iter().collect();
        names.push("variance".to_owned());
        match self.lengthscales.len() {
            1 => names.push("lengthscale".to_owned()),
            several => names.extend((0..several).map(|axis| format!("lengthscale_{axis}"))),
        }
        names
    }

    fn parameters(&self) -> Vec<f64> {
        self.constant.into_iter().chain([self.variance]).chain(self.lengthscales.iter().copied()).collect()
    }

    fn set_parameters(&mut self, values: &[f64]) {
        let (constant, values) = values.split_at(usize::from(self.constant.is_some()));
        self.constant = constant.first().copied();
        self.variance = values[0];
        self.lengthscales.copy_from_slice(&values[1..]);
    }

    fn add_column(&self, entries: Entries<'_>, out: &mut [f64]) {
        if let Some(constant) = self.constant {
            out.iter_mut().for_each(|value| *value += constant);
        }
        for_shape!(self, add_vectors(entries, out));
    }

    fn contract_column(&self, entries: Entries<'_>, weights: &[f64], gradient: &mut [f64]) {
        let gradient = self.contract_constant(weights, gradient);
        for_shape!(self, contract_vectors(entries, weights, gradient));
    }

    fn contract_column_in_places(&self, entries: Entries<'_>, weights: &[f64], gradient: &mut [f64]) {
        for_shape!(self, contract_vectors_in_rows(entries, weights, gradient));
    }

    fn length_along(&self, coordinate: usize) -> Option<f64> {
        Some(self.lengthscale(coordinate))
    }

    fn add_diagonal(&self, _: &Points, out: &mut [f64]) {
        out.iter_mut().for_each(|value| *value = *value + self.shared_variance() + self.variance);
    }

    fn contract_diagonal(&self, _: &Points, weights: &[f64], gradient: &mut [f64]) {
        self.contract_constant(weights, gradient)[0] += self.variance * sum(weights);
    }

    fn shared_variance(&self) -> f64 {
        self.constant.unwrap_or(0.0)
    }
}

const SQRT_3: f64 = 1.732_050_807_568_877_2;
const SQRT_5: f64 = 2.236_067_977_499_79;

/// rho of one shape and psi = -(d rho / d s) / s, as functions of s^2; s^2 psi is the derivative of rho in the logarithm of the
/// lengthscale. `FUSED`: whether the processor multiplies and adds at once.
#[inline(always)]
fn matern12<const FUSED: bool>(square: f64) -> (f64, f64) {
    let s = square.sqrt();
    let rho = exp_of_nonpositive::<FUSED>(-s);
    // psi is singular at s = 0, where its product with s^2 vanishes; with any weight it must stay finite.
    (rho, rho / s.max(1e-100))
}

#[inline(always)]
fn matern32<const FUSED: bool>(square: f64) -> (f64, f64) {
    let a = SQRT_3 * square.sqrt();
    let e = exp_of_nonpositive::<FUSED>(-a);
    ((1.0 + a) * e, 3.0 * e)
}

#[inline(always)]
fn matern52<const FUSED: bool>(square: f64) -> (f64, f64) {
    let a = SQRT_5 * square.sqrt();
    let e = exp_of_nonpositive::<FUSED>(-a);
    ((1.0 + a + 5.0 / 3.0 * square) * e, 5.0 / 3.0 * (1.0 + a) * e)
}

#[inline(always)]
fn squared_exponential<const FUSED: bool>(square: f64) -> (f64, f64) {
    let e = exp_of_nonpositive::<FUSED>(-0.5 * square);
    (e, e)
}

/// Coefficients of the Taylor series of the exponential, 1 / n!: the factorials are exact.
const TAYLOR: [f64; 13] = {
    let (mut terms, mut factorial, mut n) = ([1.0; 13], 1.0, 1);
    while n < terms.len() {
        factorial *= n as f64;
        terms[n] = 1.0 / factorial;
        n += 1;
    }
    terms
};

/// Four terms of the series from number `first` on, over r^first.
#[inline(always)]
fn four_terms<const FUSED: bool>(first: usize, r: f64, r2: f64) -> f64 {
    let low = multiply_add::<FUSED>(TAYLOR[first + 1], r, TAYLOR[first]);
    let high = multiply_add::<FUSED>(TAYLOR[first + 3], r, TAYLOR[first + 2]);
    multiply_add::<FUSED>(high, r2, low)
}

/// a b + c, in one instruction where the processor has it; without, that would be a slow call.
#[inline(always)]
fn multiply_add<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x <= 0, to within three units in the last place; 0 below -708, where the true value is below 1e-307.
///
/// The exponential is most of the cost of a covariance. Written without branches or calls, it is vectorized together with the
/// loop around it. Reduction to |r| <= ln(2) / 2, where a Taylor series of degree 12 is exact to 2e-16.
#[inline(always)]
fn exp_of_nonpositive<const FUSED: bool>(x: f64) -> f64 {
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    // ln(2) in two parts, the first with enough trailing zeros for an exact product with any exponent (as in fdlibm).
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding it leaves the nearest integer in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    const LOWEST: f64 = -708.0;

    let bounded = if x > LOWEST { x } else { LOWEST };
    let shifted = multiply_add::<FUSED>(bounded, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<FUSED>(-n, LN_2_LOW, multiply_add::<FUSED>(-n, LN_2_HIGH, bounded));
    // Estrin's scheme: neighbours first, so that the chain of dependent operations is short.
    let (r2, r4) = (r * r, (r * r) * (r * r));
    let low = multiply_add::<FUSED>(four_terms::<FUSED>(4, r, r2), r4, four_terms::<FUSED>(0, r, r2));
    let high = multiply_add::<FUSED>(TAYLOR[12], r4, four_terms::<FUSED>(8, r, r2));
    let series = multiply_add::<FUSED>(high, r4 * r4, low);
    let power_of_two = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    let value = series * power_of_two;
    if x > LOWEST {
        value
    } else if x.is_nan() {
        x
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_agreement<const FUSED: bool>() {
        for i in 0..200_000 {
            let x = -f64::from(i) * 0.003_54;
            let (found, expected) = (exp_of_nonpositive::<FUSED>(x), x.exp());
            assert!((found - expected).abs() <= 3.0 * f64::EPSILON * expected, "{x}: {found} {expected}");
        }
        assert_eq!(exp_of_nonpositive::<FUSED>(0.0), 1.0);
        assert_eq!(exp_of_nonpositive::<FUSED>(-0.0), 1.0);
        assert_eq!(exp_of_nonpositive::<FUSED>(-1e300), 0.0);
        assert_eq!(exp_of_nonpositive::<FUSED>(f64::NEG_INFINITY), 0.0);
        assert!(exp_of_nonpositive::<FUSED>(f64::NAN).is_nan());
    }

    #[test]
    fn the_exponential_agrees_with_the_standard_library() {
        assert_agreement::<false>();
        assert_agreement::<true>();
    }
}
