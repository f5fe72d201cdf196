//! The magnetic field's three axes and the bias of the sensor that reads them.
//!
//! ```text
//! R m = B0 + B(x) + R (h + g speed) + e     B = -grad phi
//! cov(phi(x), phi(x')) = s^3 (v_below / |(x - x', y - y', s + z + z')| + v_above / |(x - x', y - y', s - z - z')|)
//! ```
//!
//! phi is the potential of random sources on layers below the plane and, independent of them, above it; z is the height over the plane.
//! Between the sources it is harmonic, so B has neither curl nor divergence.
//!
//! For sources below, with `d = (x - x', y - y', s + z + z')`, `r = |d|`, e and f the directions of both axes, `a = (s / r)^3`,
//! `u = e . d`, `t = f . S d` and S = diag(1, 1, -1), the covariance of the axes is `v a (e . S f - 3 u t / r^2)`: on the plane the
//! variance of a horizontal axis is v, that of the vertical one 2 v. Sources above are sources below, seen in a mirror: with z, e and f
//! under S. On the plane the two differ in the sign of the covariance between a horizontal axis and the vertical one, and in nothing else.

use super::{Column, sum};
use crate::field_places::Numbers;
use crate::linalg::dot;
use crate::{Axis, FieldPlace, FieldPlaces, Kernel, Places};
use pulp::Arch;
use std::iter;
use std::ops::Range;

/// A constant field with independent axes, a harmonic field around it, and the bias of its sensor.
///
/// Places must be between the sources: higher than half a lengthscale below the plane and, where there are sources above, lower than half
/// a lengthscale above it. Beyond, the covariance is not a number, and an update that needs it is rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorField {
    /// Variance of the constant of each axis.
    pub constant: f64,
    /// v_below: variance of a horizontal axis around it that sources below cause, on the plane.
    pub variance: f64,
    /// v_above: likewise of sources above; none where all sources are below, which is another model than one of little variance.
    pub variance_above: Option<f64>,
    /// s: the length over which the field varies, which is twice the distance of the nearest sources from the plane.
    pub lengthscale: f64,
    /// Height of the plane.
    pub plane: f64,
    /// Prior standard deviation of each component of the hard iron h, which is not learnt. At 0 there is no hard iron.
    pub hard_iron: f64,
    /// Prior standard deviation of each component of g, in the unit of the field per unit of speed; likewise.
    pub speed_bias: f64,
    /// Prior covariance of the components of h, then of g, where other readings have told something of them; none where they are
    /// independent with the standard deviations above. It is zero in the rows and columns of components that there are not.
    pub bias_covariance: Option<BiasCovariance>,
}

/// Covariance of the bias of a sensor: of the three components of h, then of those of g.
pub type BiasCovariance = [[f64; 6]; 6];

/// Rows handled at once: small enough for the stack.
const CHUNK: usize = 64;

/// Least distance from the sources at which readings are taken, relative to that of the plane. The variance grows with its third power.
const LEAST_CLEARANCE: f64 = 0.25;

/// Sign of each axis under S, the reflection in the plane.
const REFLECTED: [f64; 3] = [1.0, 1.0, -1.0];

/// Sources below the plane: the sign of z under their mirror.
const BELOW: f64 = 1.0;
/// Sources above it.
const ABOVE: f64 = -1.0;

/// The terms of the harmonic covariance of two axes, for sources on one side of the plane.
struct Pair {
    /// [`BELOW`] or [`ABOVE`].
    side: f64,
    /// d, in the mirror of the side.
    difference: [f64; 3],
    /// 1 / r^2.
    inverse: f64,
    /// a = (s / r)^3.
    decay: f64,
    /// e . S f.
    aligned: f64,
    /// u = e . d.
    row: f64,
    /// t = f . S d.
    column: f64,
}

impl Pair {
    #[inline(always)]
    fn new(side: f64, plane: f64, length: f64, e: [f64; 3], at: [f64; 3], column: &Numbers) -> Self {
        let f = column.direction;
        let distance = side * (at[2] + column.position[2] - 2.0 * plane) + length;
        // What is of the sensor has no place, and nothing in common with the field.
        let of_none = if e == [0.0; 3] { length } else { f64::NAN };
        let between_sources = if distance > 0.0 { distance } else { of_none };
        let [x, y, w] = [at[0] - column.position[0], at[1] - column.position[1], between_sources];
        let inverse = 1.0 / (x * x + y * y + w * w);
        let square = length * length * inverse;
        Self {
            side,
            difference: [x, y, w],
            inverse,
            decay: square * square.sqrt(),
            aligned: e[0] * f[0] + e[1] * f[1] - e[2] * f[2],
            row: e[0] * x + e[1] * y + side * e[2] * w,
            column: f[0] * x + f[1] * y - side * f[2] * w,
        }
    }

    /// The covariance over v.
    #[inline(always)]
    fn value(&self) -> f64 {
        self.decay * (self.aligned - 3.0 * self.inverse * self.row * self.column)
    }

    /// Derivative in one coordinate of the row, given what e and f have along it.
    #[inline(always)]
    fn slope(&self, coordinate: usize, e: f64, f: f64) -> f64 {
        let product = self.row * self.column;
        let along = self.difference[coordinate] * (5.0 * self.inverse * product - self.aligned);
        let mirror = if coordinate == 2 { self.side } else { 1.0 };
        3.0 * self.inverse * self.decay * (mirror * along - e * self.column - REFLECTED[coordinate] * f * self.row)
    }

    /// The covariance over v, and its derivative in log s, given what e and f have along z.
    #[inline(always)]
    fn value_and_slope(&self, length: f64, e: f64, f: f64) -> (f64, f64) {
        let value = self.value();
        (value, 3.0 * value + length * self.side * self.slope(2, e, f))
    }
}

/// The range of each column, as slices of one length.
#[inline(always)]
fn cut<'a, const N: usize>(columns: [&'a [f64]; N], range: &Range<usize>) -> [&'a [f64]; N] {
    columns.map(
        #[inline(always)]
        |column| &column[range.start..][..range.end - range.start],
    )
}

/// Positions of a range of rows, and the axes along which they are.
struct RowsOf<'a> {
    positions: [&'a [f64]; 3],
    directions: [&'a [f64]; 3],
}

impl<'a> RowsOf<'a> {
    #[inline(always)]
    fn new(rows: &'a FieldPlaces, range: Range<usize>) -> Self {
        Self { positions: cut(rows.positions(), &range), directions: cut(rows.directions(), &range) }
    }

    #[inline(always)]
    fn direction(&self, i: usize) -> [f64; 3] {
        [self.directions[0][i], self.directions[1][i], self.directions[2][i]]
    }

    #[inline(always)]
    fn pair(&self, i: usize, side: f64, kernel: &VectorField, column: &Numbers) -> Pair {
        let at = [self.positions[0][i], self.positions[1][i], self.positions[2][i]];
        Pair::new(side, kernel.plane, kernel.lengthscale, self.direction(i), at, column)
    }
}

impl VectorField {
    /// Share of the field's variance on the plane that sources below cause: 1 on a steel floor, 0 under a steel roof.
    pub fn share_below(&self) -> f64 {
        self.variance / self.total_variance()
    }

    /// Variance of a horizontal axis around the constant, on the plane.
    pub fn total_variance(&self) -> f64 {
        self.variance + self.variance_above.unwrap_or(0.0)
    }

    /// Whether a place at height z is clearly between the sources, so that the covariance is a number and not dominated by them.
    pub fn reaches(&self, z: f64) -> bool {
        let height = z - self.plane;
        let least = 0.5 * (1.0 - LEAST_CLEARANCE) * self.lengthscale;
        height > -least && (self.variance_above.is_none() || height < least)
    }

    #[inline(always)]
    fn add_field<const BOTH: bool>(&self, rows: &FieldPlaces, range: Range<usize>, column: &Numbers, out: &mut [f64]) {
        let f = column.direction;
        let above = self.variance_above.unwrap_or(0.0);
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..range.end.min(start + CHUNK);
            let count = chunk.len();
            let out = &mut out[start - range.start..][..count];
            let rows = RowsOf::new(rows, chunk);
            for (i, out) in out.iter_mut().enumerate() {
                let e = rows.direction(i);
                let offset = self.constant * (e[0] * f[0] + e[1] * f[1] + e[2] * f[2]);
                let mut field = offset + self.variance * rows.pair(i, BELOW, self, column).value();
                if BOTH {
                    field += above * rows.pair(i, ABOVE, self, column).value();
                }
                *out += field;
            }
        }
    }

    #[inline(always)]
    fn contract_field<const BOTH: bool>(
        &self,
        rows: &FieldPlaces,
        range: Range<usize>,
        column: &Numbers,
        weights: &[f64],
        gradient: &mut [f64],
    ) {
        let f = column.direction;
        let mut terms = [[0.0; CHUNK]; 5];
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..range.end.min(start + CHUNK);
            // Not more than there is room for: what is checked in the loop is not vectorised.
            let count = chunk.len().min(CHUNK);
            let weights = &weights[start - range.start..][..count];
            let rows = RowsOf::new(rows, chunk);
            let [constants, values, slopes, values_above, slopes_above] = &mut terms;
            for i in 0..count {
                let e = rows.direction(i);
                // Not in a closure for both sides: that would be a function of its own, compiled for the oldest processor.
                let (value, slope) = rows.pair(i, BELOW, self, column).value_and_slope(self.lengthscale, e[2], f[2]);
                constants[i] = weights[i] * (e[0] * f[0] + e[1] * f[1] + e[2] * f[2]);
                (values[i], slopes[i]) = (weights[i] * value, weights[i] * slope);
                if BOTH {
                    let (value, slope) =
                        rows.pair(i, ABOVE, self, column).value_and_slope(self.lengthscale, e[2], f[2]);
                    (values_above[i], slopes_above[i]) = (weights[i] * value, weights[i] * slope);
                }
            }
            let [constants, values, slopes, values_above, slopes_above] = terms.each_ref().map(|terms| &terms[..count]);
            gradient[0] += self.constant * sum(constants);
            gradient[1] += self.variance * sum(values);
            gradient[2] += self.variance * sum(slopes);
            if BOTH {
                let above = self.variance_above.unwrap_or(0.0);
                gradient[2] += above * sum(slopes_above);
                gradient[3] += above * sum(values_above);
            }
        }
    }

    /// Adds the covariance that is of the sensor.
    #[inline(always)]
    fn add_bias(&self, rows: &FieldPlaces, range: Range<usize>, column: &Numbers, out: &mut [f64]) {
        if column.iron == 0.0 && column.speed == 0.0 {
            return;
        }
        let ([x, y, z], [xs, ys, zs]) = (column.turn, cut(rows.turns(), &range));
        let [irons, speeds] = cut(rows.bias_factors(), &range);
        let out = &mut out[..range.len()];
        if let Some(covariance) = &self.bias_covariance {
            let factors = bias_factors(column.turn, column.iron, column.speed);
            let [hx, hy, hz, gx, gy, gz] = covariance.map(|row| dot(&row, &factors));
            for (i, out) in out.iter_mut().enumerate() {
                let (iron, speed) = (irons[i], speeds[i]);
                let of_iron = hx * (xs[i] * iron) + hy * (ys[i] * iron) + hz * (zs[i] * iron);
                *out += of_iron + gx * (xs[i] * speed) + gy * (ys[i] * speed) + gz * (zs[i] * speed);
            }
            return;
        }
        let iron = self.hard_iron * self.hard_iron * column.iron;
        let speed = self.speed_bias * self.speed_bias * column.speed;
        if iron == 0.0 && speed == 0.0 {
            return;
        }
        for (i, out) in out.iter_mut().enumerate() {
            *out += (x * xs[i] + y * ys[i] + z * zs[i]) * (iron * irons[i] + speed * speeds[i]);
        }
    }

    fn is_of_field(column: &Numbers) -> bool {
        column.direction != [0.0; 3]
    }

    /// v of the sources on each side.
    fn sides(&self) -> impl Iterator<Item = (f64, f64)> + use<> {
        iter::once((BELOW, self.variance)).chain(self.variance_above.map(|variance| (ABOVE, variance)))
    }

    /// The variance of an axis of the field around the constant that sources on one side cause, over v, and its derivative in log s.
    fn spread(&self, side: f64, place: &Numbers) -> (f64, f64) {
        let pair = Pair::new(side, self.plane, self.lengthscale, place.direction, place.position, place);
        let [_, _, vertical] = place.direction;
        pair.value_and_slope(self.lengthscale, vertical, vertical)
    }

    /// Prior standard deviation of a component of the bias, before any reading of this sensor; zero of what is of the field.
    pub(crate) fn bias_deviation(&self, component: FieldPlace) -> f64 {
        match component {
            FieldPlace::HardIron(_) => self.hard_iron,
            FieldPlace::SpeedBias(_) => self.speed_bias,
            FieldPlace::Field { .. } | FieldPlace::Reading { .. } => 0.0,
        }
    }

    fn bias_variance(&self, place: &Numbers) -> f64 {
        if let Some(covariance) = &self.bias_covariance {
            let factors = bias_factors(place.turn, place.iron, place.speed);
            return dot(&covariance.map(|row| dot(&row, &factors)), &factors);
        }
        let turned: f64 = place.turn.iter().map(|component| component * component).sum();
        turned * ((self.hard_iron * place.iron).powi(2) + (self.speed_bias * place.speed).powi(2))
    }
}

/// Factors of the components of h and of g in an axis that is turned like this.
fn bias_factors(turn: [f64; 3], iron: f64, speed: f64) -> [f64; 6] {
    std::array::from_fn(|i| turn[i % 3] * if i < 3 { iron } else { speed })
}

impl Kernel for VectorField {
    type Places = FieldPlaces;

    fn names(&self) -> Vec<String> {
        let above = self.variance_above.map(|_| "variance_above");
        ["constant", "variance", "lengthscale"].into_iter().chain(above).map(String::from).collect()
    }

    fn parameters(&self) -> Vec<f64> {
        [self.constant, self.variance, self.lengthscale].into_iter().chain(self.variance_above).collect()
    }

    fn set_parameters(&mut self, values: &[f64]) {
        (self.constant, self.variance, self.lengthscale) = (values[0], values[1], values[2]);
        if let Some(above) = &mut self.variance_above {
            *above = values[3];
        }
    }

    fn add_column(&self, entries: Column<'_, FieldPlaces>, out: &mut [f64]) {
        let Column { rows, range, columns, column } = entries;
        let column = columns.numbers(column);
        Arch::new().dispatch(
            // It uses up the range: a closure that could be called again is called through a function that is not inlined, and so is
            // compiled for the oldest processor.
            #[inline(always)]
            || {
                if Self::is_of_field(&column) {
                    match self.variance_above {
                        None => self.add_field::<false>(rows, range.clone(), &column, out),
                        Some(_) => self.add_field::<true>(rows, range.clone(), &column, out),
                    }
                }
                self.add_bias(rows, range, &column, out);
            },
        );
    }

    fn contract_column(&self, entries: Column<'_, FieldPlaces>, weights: &[f64], gradient: &mut [f64]) {
        let Column { rows, range, columns, column } = entries;
        let column = columns.numbers(column);
        if Self::is_of_field(&column) {
            Arch::new().dispatch(
                #[inline(always)]
                || match self.variance_above {
                    None => self.contract_field::<false>(rows, range, &column, weights, gradient),
                    Some(_) => self.contract_field::<true>(rows, range, &column, weights, gradient),
                },
            );
        }
    }

    fn contract_column_in_places(&self, entries: Column<'_, FieldPlaces>, weights: &[f64], gradient: &mut [f64]) {
        let Column { rows, columns, column, .. } = entries;
        let column = columns.numbers(column);
        if !Self::is_of_field(&column) {
            return;
        }
        let count = rows.len();
        let of = RowsOf::new(rows, 0..count);
        for (i, weight) in weights.iter().enumerate() {
            let e = of.direction(i);
            for (side, variance) in self.sides() {
                let pair = of.pair(i, side, self, &column);
                for coordinate in 0..3 {
                    let slope = pair.slope(coordinate, e[coordinate], column.direction[coordinate]);
                    gradient[coordinate * count + i] += weight * variance * slope;
                }
            }
        }
    }

    fn length_along(&self, _: usize) -> Option<f64> {
        Some(self.lengthscale)
    }

    fn add_diagonal(&self, places: &FieldPlaces, out: &mut [f64]) {
        for (i, out) in out.iter_mut().enumerate() {
            let place = places.numbers(i);
            let mut field = 0.0;
            if Self::is_of_field(&place) {
                let from_sources = self.sides().map(|(side, variance)| variance * self.spread(side, &place).0);
                field = from_sources.fold(self.constant, |sum, variance| sum + variance);
            }
            *out += field + self.bias_variance(&place);
        }
    }

    fn contract_diagonal(&self, places: &FieldPlaces, weights: &[f64], gradient: &mut [f64]) {
        for (i, weight) in weights.iter().enumerate() {
            let place = places.numbers(i);
            if Self::is_of_field(&place) {
                gradient[0] += weight * self.constant;
                for (parameter, (side, variance)) in [1, 3].into_iter().zip(self.sides()) {
                    let (value, in_length) = self.spread(side, &place);
                    gradient[parameter] += weight * variance * value;
                    gradient[2] += weight * variance * in_length;
                }
            }
        }
    }

    fn permanent(&self, _: &FieldPlaces) -> FieldPlaces {
        let hard_iron = Axis::ALL.map(FieldPlace::HardIron).into_iter().filter(|_| self.hard_iron > 0.0);
        let speed_bias = Axis::ALL.map(FieldPlace::SpeedBias).into_iter().filter(|_| self.speed_bias > 0.0);
        hard_iron.chain(speed_bias).collect()
    }

    /// The constant is part of the covariance between equal axes only; and axes that are correlated negatively have as much in common.
    fn closest(&self, others: &FieldPlaces, places: &FieldPlaces, index: usize) -> (f64, f64) {
        let varying = Self { constant: 0.0, ..self.clone() };
        let covariances = varying.covariance(others, &places.select([index]));
        let variances = varying.diagonal(others);
        let shares = variances.iter().enumerate().map(|(i, variance)| covariances[(i, 0)].abs() / variance.sqrt());
        (shares.fold(f64::NEG_INFINITY, f64::max), varying.diagonal(&places.select([index]))[0].sqrt())
    }
}
