//! The field of a rectangle, as a sum of harmonic modes.
//!
//! The potential is the sum of that of sources below the plane and that of sources above, independent and each with the covariance
//! `s^3 / sqrt(d^2 + s^2)` times its variance. Its spectral density at the wave number k is `2 pi s^3 exp(-s k) / k`, so that nearly all of
//! the field is in modes of small wave numbers: sources below have the potential `sum a exp(-k z) (u cos(k x) + v sin(k x))`, with unknowns u
//! and v that are independent and of variance one under the prior; those above have `exp(k z)`, so that their vertical axis has the other sign. The
//! wave vectors are those with the period of a rectangle somewhat larger, and a few of longer waves. This is the spectral approximation of Solin and Särkkä (2020), with other modes.

use std::f64::consts::{PI, TAU};
use std::sync::Arc;

use nalgebra::{Complex, Matrix2, Vector2, Vector3};
use streaming_gp::linalg::{self, Matrix};

use super::chain::PlanePose;

/// Greatest wave number times the lengthscale. The modes leave out 0.6 % of the field's variance: `(k^2 / 2 + k + 1) exp(-k)`. At 8, with 1.4 %,
/// it bends the path visibly.
const GREATEST: f64 = 9.0;

/// How much longer the period is than the rectangle, in lengthscales: opposite borders are correlated as places at this distance.
const PADDING: f64 = 2.0;

/// How often the cell of the wave number zero is divided into nine, of which that in the middle is divided again: waves that are longer than the
/// period make a few per cent of the field's variance, and its trend.
const DIVISIONS: i32 = 2;

/// Prior of the field, before any reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FieldPrior {
    /// Variance of a horizontal axis that sources below the plane cause, in microtesla squared.
    pub variance_below: f64,
    /// Variance of a horizontal axis that sources above the plane cause, in microtesla squared.
    pub variance_above: f64,
    /// Lengthscale, in metres.
    pub lengthscale: f64,
}

impl FieldPrior {
    /// Variance of each axis.
    pub(super) fn variances(&self) -> [f64; 3] {
        let horizontal = self.variance_below + self.variance_above;
        [horizontal, horizontal, 2.0 * horizontal]
    }
}

/// The modes of a rectangle, and the sides on which there are sources.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    corner: [f64; 2],
    modes: Arc<Modes>,
}

/// The common part of all rectangles of one size, wherever they are.
#[derive(Debug)]
struct Modes {
    /// Least wave number in x and y but zero, per metre.
    step: [f64; 2],
    /// Wave vectors in these steps, of each pair of opposite ones one.
    numbers: Vec<[i32; 2]>,
    /// The most steps in x and y.
    most: [i32; 2],
    /// Wave vectors, after those of the numbers the long ones, and their lengths, per metre.
    x: Vec<f64>,
    y: Vec<f64>,
    length: Vec<f64>,
    /// Products of these: of x and x, x and y, y and y, and of the length and x, and y.
    products: [Vec<f64>; 5],
    /// Standard deviations of their modes of the potential under the prior, with a variance of one.
    amplitude: Vec<f64>,
    /// Square root of the variance, and sign of the vertical axis.
    sides: Vec<(f64, f64)>,
    /// Variance that the modes leave out: of a horizontal axis and of the vertical one.
    left_out: Vector2<f64>,
}

/// The field's potential, both sides together as the axes see it: one number for the cosine of each mode, then one for each sine.
#[derive(Clone, Debug, Default)]
pub(super) struct Potential {
    pub horizontal: Vec<f64>,
    pub vertical: Vec<f64>,
}

/// The modes at a place.
pub(super) struct Phases<'a> {
    modes: &'a Modes,
    /// Cosine and sine of each mode, times its standard deviation.
    cos: Vec<f64>,
    sin: Vec<f64>,
}

impl Basis {
    /// The modes of a rectangle of this size from a corner, in metres.
    pub fn new(prior: &FieldPrior, corner: [f64; 2], size: [f64; 2]) -> Self {
        let s = prior.lengthscale;
        let period = size.map(|size| size + PADDING * s);
        let step = period.map(|period| TAU / period);
        let most = step.map(|step| (GREATEST / (s * step)) as i32);
        let wave = |number: &[i32; 2]| Vector2::new(f64::from(number[0]) * step[0], f64::from(number[1]) * step[1]);
        // Of each pair of opposite wave vectors one.
        let half =
            |x: i32, y: i32| (0..=x).flat_map(move |x| (-y..=y).map(move |y| [x, y])).filter(|number| *number > [0, 0]);
        let is_short = |number: &[i32; 2]| s * wave(number).norm() <= GREATEST;
        let numbers: Vec<[i32; 2]> = half(most[0], most[1]).filter(is_short).collect();
        let long = (1..=DIVISIONS).flat_map(|division| half(1, 1).map(move |number| (number, 3_f64.powi(-division))));
        // Each wave vector stands for a cell around it.
        let cells: Vec<(Vector2<f64>, f64)> = numbers
            .iter()
            .map(|number| (*number, 1.0))
            .chain(long)
            .map(|(number, side)| (wave(&number) * side, step[0] * step[1] * side * side))
            .collect();
        let variance =
            |&(wave, area): &(Vector2<f64>, f64)| s.powi(3) * (-s * wave.norm()).exp() * area / (PI * wave.norm());
        let of_waves = |value: fn(&Vector2<f64>) -> f64| cells.iter().map(|(wave, _)| value(wave)).collect::<Vec<_>>();
        let sides = [(prior.variance_below, 1.0), (prior.variance_above, -1.0)];
        let sides = sides.into_iter().filter(|(variance, _)| *variance > 0.0);
        let sides = sides.map(|(variance, sign)| (variance.sqrt(), sign)).collect();
        let explained: f64 = cells.iter().map(|cell| variance(cell) * cell.0.norm_squared()).sum();
        let [horizontal, _, vertical] = prior.variances();
        let modes = Modes {
            step,
            x: of_waves(|wave| wave.x),
            y: of_waves(|wave| wave.y),
            length: of_waves(Vector2::norm),
            products: [
                of_waves(|wave| wave.x * wave.x),
                of_waves(|wave| wave.x * wave.y),
                of_waves(|wave| wave.y * wave.y),
                of_waves(|wave| wave.norm() * wave.x),
                of_waves(|wave| wave.norm() * wave.y),
            ],
            amplitude: cells.iter().map(|cell| variance(cell).sqrt()).collect(),
            numbers,
            most,
            sides,
            left_out: Vector2::new(horizontal, vertical) * (1.0 - 0.5 * explained).max(0.0),
        };
        Self { corner, modes: Arc::new(modes) }
    }

    /// The same modes from another corner.
    pub fn at(&self, corner: [f64; 2]) -> Self {
        Self { corner, modes: Arc::clone(&self.modes) }
    }

    /// Number of unknowns of each side: a cosine and a sine of each wave vector.
    fn per_side(&self) -> usize {
        2 * self.modes.length.len()
    }

    /// Number of unknowns.
    pub fn size(&self) -> usize {
        self.per_side() * self.modes.sides.len()
    }

    /// Variance of a horizontal axis and of the vertical one that the modes leave out, in microtesla squared.
    pub fn left_out(&self) -> Vector2<f64> {
        self.modes.left_out
    }

    /// The modes at the place of a pose.
    pub fn phases(&self, pose: &PlanePose) -> Phases<'_> {
        let Modes { step, numbers, most, x, y, amplitude, .. } = &*self.modes;
        let place = [0, 1].map(|axis| pose[axis] - self.corner[axis]);
        let powers = [0, 1].map(|axis| {
            let phase = Complex::cis(step[axis] * place[axis]);
            let powers = std::iter::successors(Some(Complex::from(1.0)), |power| Some(power * phase));
            powers.take(1 + most[axis] as usize).collect::<Vec<_>>()
        });
        let on_grid = |[in_x, in_y]: &[i32; 2]| {
            let power = powers[1][in_y.unsigned_abs() as usize];
            powers[0][*in_x as usize] * if *in_y < 0 { power.conj() } else { power }
        };
        let long = x.iter().zip(y).skip(numbers.len()).map(|(x, y)| Complex::cis(x * place[0] + y * place[1]));
        let phases = numbers.iter().map(on_grid).chain(long).zip(amplitude);
        let (cos, sin) = phases.map(|(phase, amplitude)| (amplitude * phase.re, amplitude * phase.im)).unzip();
        Phases { modes: &self.modes, cos, sin }
    }

    /// The axes at the places of these poses as combinations of the unknowns: one column for each axis of each place.
    pub fn features(&self, poses: &[PlanePose]) -> Matrix {
        let Modes { x, y, length, sides, .. } = &*self.modes;
        let mut features = linalg::zeros(self.size(), 3 * poses.len());
        for (index, pose) in poses.iter().enumerate() {
            let Phases { cos, sin, .. } = self.phases(pose);
            for (axis, wave) in [x, y, length].into_iter().enumerate() {
                let column = features.col_as_slice_mut(3 * index + axis);
                for ((root, sign), side) in sides.iter().zip(column.chunks_exact_mut(self.per_side())) {
                    let (with_cos, with_sin) = side.split_at_mut(wave.len());
                    if axis == 2 {
                        write_product(with_cos, root * sign, wave, &cos);
                        write_product(with_sin, root * sign, wave, &sin);
                    } else {
                        write_product(with_cos, *root, wave, &sin);
                        write_product(with_sin, -root, wave, &cos);
                    }
                }
            }
        }
        features
    }

    /// The potential with these unknowns.
    pub fn potential(&self, unknowns: &[f64]) -> Potential {
        Potential { horizontal: self.seen(0, unknowns), vertical: self.seen(2, unknowns) }
    }

    /// The potential with these unknowns as this axis sees it.
    pub fn seen(&self, axis: usize, unknowns: &[f64]) -> Vec<f64> {
        let mut seen = vec![0.0; self.per_side()];
        for ((root, sign), part) in self.modes.sides.iter().zip(unknowns.chunks_exact(seen.len())) {
            let factor = if axis == 2 { root * sign } else { *root };
            seen.iter_mut().zip(part).for_each(|(seen, unknown)| *seen += factor * unknown);
        }
        seen
    }

    /// The derivative in the unknowns of what has this derivative in the potential: the transpose of [`potential`](Self::potential).
    pub fn in_unknowns(&self, derivative: &Potential) -> Vec<f64> {
        let Potential { horizontal, vertical } = derivative;
        let side = |&(root, sign): &(f64, f64)| {
            let both = horizontal.iter().zip(vertical);
            both.map(move |(horizontal, vertical)| root * (horizontal + sign * vertical))
        };
        self.modes.sides.iter().flat_map(side).collect()
    }

    /// A potential of zero.
    pub fn no_potential(&self) -> Potential {
        let [horizontal, vertical] = [(); 2].map(|()| vec![0.0; self.per_side()]);
        Potential { horizontal, vertical }
    }
}

impl Phases<'_> {
    /// The field of this potential.
    pub fn field(&self, potential: &Potential) -> Vector3<f64> {
        let Modes { x, y, length, .. } = self.modes;
        let (across, along) = (self.across(&potential.horizontal), self.along(&potential.vertical));
        Vector3::new(linalg::dot(x, &across), linalg::dot(y, &across), linalg::dot(length, &along))
    }

    /// Adds the derivative in the potential of the product of the field with a vector: the transpose of [`field`](Self::field).
    pub fn add_derivative(&self, vector: &Vector3<f64>, target: &mut Potential) {
        let Modes { x, y, length, .. } = self.modes;
        let (horizontal_cos, horizontal_sin) = target.horizontal.split_at_mut(length.len());
        let (vertical_cos, vertical_sin) = target.vertical.split_at_mut(length.len());
        for (i, ((x, y), length)) in x.iter().zip(y).zip(length).enumerate() {
            let (across, up) = (vector.x * x + vector.y * y, vector.z * length);
            horizontal_cos[i] += across * self.sin[i];
            horizontal_sin[i] -= across * self.cos[i];
            vertical_cos[i] += up * self.cos[i];
            vertical_sin[i] += up * self.sin[i];
        }
    }

    /// Derivatives in x and y of both horizontal axes, given the potential as they see it.
    pub fn slopes_in_plane(&self, potential: &[f64]) -> Matrix2<f64> {
        let along = self.along(potential);
        let [xx, xy, yy] = [0, 1, 2].map(|product| linalg::dot(&self.modes.products[product], &along));
        Matrix2::new(xx, xy, xy, yy)
    }

    /// Derivatives in x and y of the vertical axis, given the potential as it sees it.
    pub fn slopes_upwards(&self, potential: &[f64]) -> Vector2<f64> {
        let across = self.across(potential);
        -Vector2::new(linalg::dot(&self.modes.products[3], &across), linalg::dot(&self.modes.products[4], &across))
    }

    /// The value of each mode.
    fn along(&self, potential: &[f64]) -> Vec<f64> {
        let (with_cos, with_sin) = potential.split_at(self.cos.len());
        let pairs = with_cos.iter().zip(with_sin).zip(self.cos.iter().zip(&self.sin));
        pairs.map(|((u, v), (cos, sin))| u * cos + v * sin).collect()
    }

    /// Minus the derivative of each mode in its phase.
    fn across(&self, potential: &[f64]) -> Vec<f64> {
        let (with_cos, with_sin) = potential.split_at(self.cos.len());
        let pairs = with_cos.iter().zip(with_sin).zip(self.cos.iter().zip(&self.sin));
        pairs.map(|((u, v), (cos, sin))| u * sin - v * cos).collect()
    }
}

/// Writes a multiple of the product of two vectors.
fn write_product(target: &mut [f64], factor: f64, left: &[f64], right: &[f64]) {
    target.iter_mut().zip(left).zip(right).for_each(|((target, left), right)| *target = factor * left * right);
}

#[cfg(test)]
mod tests {
    use nalgebra::Matrix3;

    use super::*;

    const PRIOR: FieldPrior = FieldPrior { variance_below: 70.0, variance_above: 30.0, lengthscale: 0.8 };

    /// The covariance of the axes at two places at this distance: second derivatives of that of the potential.
    fn covariance(d: Vector2<f64>) -> Matrix3<f64> {
        let s = PRIOR.lengthscale;
        let inverse = 1.0 / (d.norm_squared() + s * s);
        let decay = (s * s * inverse).sqrt().powi(3);
        let in_plane = (Matrix2::identity() - d * d.transpose() * (3.0 * inverse)) * decay;
        let up = decay * (3.0 * s * s * inverse - 1.0);
        let across = d * (3.0 * s * inverse * decay);
        let FieldPrior { variance_below, variance_above, .. } = PRIOR;
        let (sum, difference) = (variance_below + variance_above, variance_below - variance_above);
        Matrix3::new(
            sum * in_plane.m11,
            sum * in_plane.m12,
            difference * across.x,
            sum * in_plane.m12,
            sum * in_plane.m22,
            difference * across.y,
            -difference * across.x,
            -difference * across.y,
            sum * up,
        )
    }

    #[test]
    fn the_modes_have_the_covariance_of_the_field() {
        // In the middle of a rectangle of ten lengthscales the next copy of a place is far away.
        let basis = Basis::new(&PRIOR, [-4.0, -4.0], [8.0, 8.0]);
        let places = [[0.0, 0.0], [0.3, -0.2], [-0.9, 0.5], [1.2, 1.0]].map(|[x, y]| PlanePose::new(x, y, 0.0));
        let features = basis.features(&places);
        let product = linalg::product(features.transpose(), features.as_ref());
        let left_out = basis.left_out();
        for (i, one) in places.iter().enumerate() {
            for (j, other) in places.iter().enumerate() {
                let mut expected = covariance(one.xy() - other.xy());
                if i == j {
                    expected -= Matrix3::from_diagonal(&Vector3::new(left_out.x, left_out.x, left_out.y));
                }
                for (row, column) in (0..3).flat_map(|row| (0..3).map(move |column| (row, column))) {
                    let (found, expected) = (product[(3 * i + row, 3 * j + column)], expected[(row, column)]);
                    // 0.6 % of the variances are in modes that are left out, and a copy 12 lengthscales away adds as much.
                    assert!((found - expected).abs() < 1.5, "{i} {j} {row} {column}: {found} {expected}");
                }
            }
        }
        assert!((0.3..0.9).contains(&left_out.x) && (left_out.y - 2.0 * left_out.x).abs() < 1e-9, "{left_out}");
    }

    #[test]
    fn values_and_slopes_are_those_of_the_features() {
        let basis = Basis::new(&PRIOR, [-0.5, 0.2], [1.0, 2.5]);
        let unknowns: Vec<f64> = (0..basis.size()).map(|index| (1.3 * index as f64).sin()).collect();
        let potential = basis.potential(&unknowns);
        let by_features = |x: f64, y: f64| {
            let features = basis.features(&[PlanePose::new(x, y, 0.0)]);
            Vector3::from_fn(|axis, _| linalg::dot(features.col_as_slice(axis), &unknowns))
        };
        let (x, y, step) = (0.1, 1.7, 1e-5);
        let phases = basis.phases(&PlanePose::new(x, y, 0.4));
        let field = phases.field(&potential);
        assert!((field - by_features(x, y)).norm() < 1e-9 * field.norm());
        let in_x = (by_features(x + step, y) - by_features(x - step, y)) / (2.0 * step);
        let in_y = (by_features(x, y + step) - by_features(x, y - step)) / (2.0 * step);
        let in_plane = phases.slopes_in_plane(&potential.horizontal);
        let upwards = phases.slopes_upwards(&potential.vertical);
        // The error of a central difference is 2e-11 of the third derivative, here some ten thousand.
        assert!((in_plane - Matrix2::new(in_x.x, in_y.x, in_x.y, in_y.y)).norm() < 1e-5, "{in_plane} {in_x} {in_y}");
        assert!((upwards - Vector2::new(in_x.z, in_y.z)).norm() < 1e-5, "{upwards} {in_x} {in_y}");
        let vector = Vector3::new(0.3, -1.1, 0.7);
        let mut derivative = basis.no_potential();
        phases.add_derivative(&vector, &mut derivative);
        let product = linalg::dot(&basis.in_unknowns(&derivative), &unknowns);
        assert!((product - vector.dot(&field)).abs() < 1e-9 * field.norm());
    }
}
