//! Three axes of a field and the bias of their sensor: against values computed with 50 digits (`golden/vector`), dense textbook formulas,
//! finite differences, and worlds whose truth is known.

use super::dense;
use super::inducing::inducing_distribution;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;
use streaming_gp::bounds::exact_ceiling;
use streaming_gp::field_places::{Axis, FieldPlace, FieldPlaces};
use streaming_gp::hyperparameters::LogNormalPrior;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Kernel, Places, VectorField};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::{Likelihood, StudentT};
use streaming_gp::linalg::{self, Matrix};
use streaming_gp::model::{Jitter, Model};
use streaming_gp::posterior::Posterior;
use streaming_gp::selection::conditional_variance::ConditionalVariance;
use streaming_gp::selection::fixed::Fixed;
use streaming_gp::selection::oips::Oips;
use streaming_gp::selection::vips::Vips;
use streaming_gp::selection::{GreedyVariance, Limits, Rule};
use streaming_gp::state::State;
use streaming_gp::streaming::{Error, Settings, StreamingGp};
use streaming_gp::vector::{Axes, AxesReading, SensorPose, VectorMap};
use streaming_gp::whitened::{Past, Rows};

const NO_LIMITS: Limits = Limits { max_inducing_points: usize::MAX, least_share: 0.0 };

const KERNEL: VectorField = VectorField {
    constant: 30.0,
    variance: 60.0,
    variance_above: None,
    lengthscale: 0.9,
    plane: 0.0,
    hard_iron: 4.0,
    speed_bias: 2.0,
    bias_covariance: None,
};

/// With sources above as well, and a plane within the heights of [`places_of_all_kinds`].
const BOTH_SIDES: VectorField = VectorField { variance_above: Some(25.0), lengthscale: 1.8, plane: 0.4, ..KERNEL };

fn model(kernel: VectorField, noise: f64) -> Model<VectorField> {
    Model { kernel, noise, mean: 0.0, likelihood: Likelihood::Gaussian, jitter: Jitter::Relative(1e-9) }
}

fn settings(selection: impl Rule<VectorField> + 'static) -> Settings<VectorField> {
    Settings {
        selection: Arc::new(selection),
        limits: Limits { max_inducing_points: 500, least_share: 1e-6 },
        learning: Learning::default(),
        redundancy: 1e-6,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    }
}

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A rotation: by `heading` about the vertical, then by `tilt` about the map's x axis.
fn orientation(heading: f64, tilt: f64) -> [[f64; 3]; 3] {
    let ((s, c), (t, u)) = (heading.sin_cos(), tilt.sin_cos());
    [[c, -s, 0.0], [u * s, u * c, -t], [t * s, t * c, u]]
}

/// Places of every kind, at different heights.
fn places_of_all_kinds(count: usize, seed: u64) -> FieldPlaces {
    let mut random = random(seed);
    let mut places: FieldPlaces = Axis::ALL.map(FieldPlace::HardIron).into_iter().collect();
    Axis::ALL.into_iter().for_each(|axis| places.push(FieldPlace::SpeedBias(axis)));
    for _ in 0..count {
        let position = [(); 2].map(|()| random.random_range(-1.5..1.5));
        let position = [position[0], position[1], random.random_range(0.0..1.0)];
        let turn = orientation(random.random_range(-3.0..3.0), random.random_range(-1.0..1.0));
        let speed = random.random_range(0.0..1.0);
        for axis in Axis::ALL {
            places.push(FieldPlace::Field { axis, position });
            places.push(FieldPlace::Reading { axis, position, turn: turn[axis as usize], speed });
        }
    }
    places
}

/// An axis at a position; none where a variable is of the sensor alone.
type AxisAt = Option<(usize, [f64; 3])>;

/// The parts of a place: an axis at a position, the factors of h, and the factors of g.
fn parts(place: FieldPlace) -> (AxisAt, [f64; 3], [f64; 3]) {
    let unit = |axis: Axis| Axis::ALL.map(|other| f64::from(u8::from(other == axis)));
    match place {
        FieldPlace::Field { axis, position } => (Some((axis as usize, position)), [0.0; 3], [0.0; 3]),
        FieldPlace::Reading { axis, position, turn, speed } => {
            (Some((axis as usize, position)), turn, turn.map(|entry| entry * speed))
        }
        FieldPlace::HardIron(axis) => (None, unit(axis), [0.0; 3]),
        FieldPlace::SpeedBias(axis) => (None, [0.0; 3], unit(axis)),
    }
}

/// The covariance as it is written out axis by axis, one pair at a time.
fn textbook(kernel: &VectorField, a: FieldPlace, b: FieldPlace) -> f64 {
    let ((field_a, iron_a, speed_a), (field_b, iron_b, speed_b)) = (parts(a), parts(b));
    let mut value = kernel.hard_iron.powi(2) * dense::dot(&iron_a, &iron_b);
    value += kernel.speed_bias.powi(2) * dense::dot(&speed_a, &speed_b);
    let (Some((i, p)), Some((j, q))) = (field_a, field_b) else { return value };
    let s = kernel.lengthscale;
    let (dx, dy, height) = (p[0] - q[0], p[1] - q[1], p[2] + q[2] - 2.0 * kernel.plane);
    // Signs of the terms between a horizontal axis and the vertical one.
    for (sign, variance) in [(1.0, kernel.variance), (-1.0, kernel.variance_above.unwrap_or(0.0))] {
        let w = s + sign * height;
        let r = (dx * dx + dy * dy + w * w).sqrt();
        let (a, b) = ((s / r).powi(3), 3.0 * s.powi(3) / r.powi(5));
        let table = [
            [a - b * dx * dx, -b * dx * dy, sign * b * dx * w],
            [-b * dy * dx, a - b * dy * dy, sign * b * dy * w],
            [-sign * b * dx * w, -sign * b * dy * w, b * w * w - a],
        ];
        value += variance * table[i][j];
    }
    value + if i == j { kernel.constant } else { 0.0 }
}

fn dense_covariance(kernel: &VectorField, a: &FieldPlaces, b: &FieldPlaces) -> dense::Rows {
    dense::matrix(a.len(), b.len(), |i, j| textbook(kernel, a.get(i), b.get(j)))
}

#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance, "{what}: found {found}, expected {expected}");
}

#[track_caller]
fn assert_relative(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert_near(what, found, expected, tolerance * expected.abs());
}

mod kernel {
    use super::*;

    #[test]
    fn it_is_the_textbook_formula() {
        let (rows, columns) = (places_of_all_kinds(25, 1), places_of_all_kinds(3, 2));
        for kernel in [KERNEL, BOTH_SIDES] {
            let covariance = kernel.covariance(&rows, &columns);
            for i in 0..rows.len() {
                for j in 0..columns.len() {
                    let expected = textbook(&kernel, rows.get(i), columns.get(j));
                    // A few roundings of numbers below 200; a factor of 3^3 beside the sources.
                    assert_near("covariance", covariance[(i, j)], expected, 1e-11);
                }
            }
            for (i, found) in kernel.diagonal(&rows).into_iter().enumerate() {
                let expected = textbook(&kernel, rows.get(i), rows.get(i));
                // The same, of numbers up to 5000.
                assert_near("diagonal", found, expected, 1e-11 * expected.max(1.0));
            }
        }
        // On the plane the vertical axis varies twice as much.
        let plane = FieldPlaces::axes(&[[0.3, 0.4, 0.0]]);
        let expected = [90.0, 90.0, 150.0];
        KERNEL
            .diagonal(&plane)
            .iter()
            .zip(expected)
            .for_each(|(found, expected)| assert_near("variance", *found, expected, 1e-12));
    }

    #[test]
    fn it_is_the_covariance_of_the_slopes_of_a_harmonic_potential() {
        let potential = |p: [f64; 3], q: [f64; 3]| {
            let s = KERNEL.lengthscale;
            let square = (p[0] - q[0]).powi(2) + (p[1] - q[1]).powi(2) + (p[2] + q[2] + s).powi(2);
            KERNEL.variance * s.powi(3) / square.sqrt()
        };
        let field = VectorField { constant: 1e-300, ..KERNEL };
        let (p, q, step) = ([0.3, -0.2, 0.4], [-0.5, 0.1, 0.15], 1e-3);
        let covariance = field.covariance(&FieldPlaces::axes(&[p]), &FieldPlaces::axes(&[q]));
        let moved = |place: [f64; 3], axis: usize, step: f64| {
            std::array::from_fn(|i| place[i] + if i == axis { step } else { 0.0 })
        };
        for i in 0..3 {
            for j in 0..3 {
                let at = |a: f64, b: f64| potential(moved(p, i, a * step), moved(q, j, b * step));
                let expected = (at(1.0, 1.0) - at(1.0, -1.0) - at(-1.0, 1.0) + at(-1.0, -1.0)) / (4.0 * step * step);
                // Truncation: step^2 / 6 times fourth derivatives of some 1e2; rounding: 1e-14 * 1e2 / step^2.
                assert_near("slopes", covariance[(i, j)], expected, 1e-3);
            }
        }
        // Neither divergence nor curl: as a function of the row's place, by central differences.
        let axes = |place: [f64; 3]| field.covariance(&FieldPlaces::axes(&[place]), &FieldPlaces::axes(&[q]));
        let slope = |axis: usize, along: usize, column: usize| {
            (axes(moved(p, along, step))[(axis, column)] - axes(moved(p, along, -step))[(axis, column)]) / (2.0 * step)
        };
        for column in 0..3 {
            let divergence: f64 = (0..3).map(|axis| slope(axis, axis, column)).sum();
            assert_near("divergence", divergence, 0.0, 1e-3);
            for (i, j) in [(0, 1), (1, 2), (2, 0)] {
                assert_near("curl", slope(i, j, column) - slope(j, i, column), 0.0, 1e-3);
            }
        }
    }

    #[test]
    fn contraction_is_the_finite_difference() {
        let (rows, columns) = (places_of_all_kinds(25, 3), places_of_all_kinds(2, 4));
        let weights = Matrix::from_fn(rows.len(), columns.len(), |i, j| ((i + 3 * j) as f64).cos());
        let of_diagonal: Vec<f64> = (0..rows.len()).map(|i| (i as f64).sin()).collect();
        for (kernel, parameter) in [(KERNEL, 3), (BOTH_SIDES, 4)]
            .into_iter()
            .flat_map(|(kernel, count)| (0..count).map(move |parameter| (kernel.clone(), parameter)))
        {
            let at = kernel.log_parameters();
            let (mut gradient, mut diagonal) = (vec![0.0; at.len()], vec![0.0; at.len()]);
            kernel.contract(&rows, &columns, weights.as_ref(), &mut gradient);
            kernel.contract_diagonal(&rows, &of_diagonal, &mut diagonal);
            let moved = |step: f64| {
                let mut parameters = at.clone();
                parameters[parameter] += step;
                let mut kernel = kernel.clone();
                kernel.set_log_parameters(&parameters);
                let covariance = kernel.covariance(&rows, &columns);
                let sum = (0..columns.len()).map(|j| linalg::dot(weights.col_as_slice(j), covariance.col_as_slice(j)));
                (sum.sum::<f64>(), linalg::dot(&of_diagonal, &kernel.diagonal(&rows)))
            };
            let ((up, up_diagonal), (down, down_diagonal)) = (moved(1e-5), moved(-1e-5));
            // Central differences: rounding 1e-16 * 1e5 / 1e-5, truncation 1e-10 * 1e5.
            assert_near("in the covariance", gradient[parameter], (up - down) / 2e-5, 1e-5);
            assert_near("in the diagonal", diagonal[parameter], (up_diagonal - down_diagonal) / 2e-5, 1e-5);
        }
    }

    #[test]
    fn contraction_in_places_is_the_finite_difference() {
        let (rows, columns) = (places_of_all_kinds(8, 5), places_of_all_kinds(2, 6));
        let weights = Matrix::from_fn(rows.len(), columns.len(), |i, j| ((i + 3 * j) as f64).cos());
        let at = rows.coordinates();
        let mut gradient = vec![0.0; at.len()];
        KERNEL.contract_in_places(&rows, &columns, weights.as_ref(), &mut gradient);
        for (coordinate, found) in gradient.iter().enumerate() {
            let moved = |step: f64| {
                let mut coordinates = at.clone();
                coordinates[coordinate] += step;
                let covariance = KERNEL.covariance(&rows.with_coordinates(&coordinates), &columns);
                let i = coordinate % rows.len();
                (0..columns.len()).map(|j| weights[(i, j)] * covariance[(i, j)]).sum::<f64>()
            };
            // Central differences: rounding 1e-16 * 1e3 / 1e-5, truncation 1e-10 times third derivatives up to 1e3.
            assert_near("slope", *found, (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-6);
        }
    }

    /// A number with its derivatives in three variables, of which it is a polynomial without squares: `[index]` with the bits of the
    /// variables is the factor of their product.
    #[derive(Clone, Copy)]
    struct Dual([f64; 8]);

    impl Dual {
        fn new(value: f64, slopes: [f64; 3]) -> Self {
            Self([value, slopes[0], slopes[1], 0.0, slopes[2], 0.0, 0.0, 0.0])
        }

        fn plus(self, other: Self, times: f64) -> Self {
            Self(std::array::from_fn(|i| self.0[i] + times * other.0[i]))
        }

        fn times(self, other: Self) -> Self {
            let mut product = [0.0; 8];
            for i in 0..8 {
                (0..8).filter(|j| i & j == 0).for_each(|j| product[i | j] += self.0[i] * other.0[j]);
            }
            Self(product)
        }

        /// The power -1/2, by Taylor's series, which ends: the fourth power of what is not the value is zero.
        fn inverse_root(self) -> Self {
            let [value, ..] = self.0;
            let mut rest = self;
            rest.0[0] = 0.0;
            let (mut sum, mut power, mut factor) =
                (Self::new(0.0, [0.0; 3]), Self::new(1.0, [0.0; 3]), value.powf(-0.5));
            for order in 0..4 {
                sum = sum.plus(power, factor);
                power = power.times(rest);
                factor *= (-0.5 - f64::from(order)) / (f64::from(order) + 1.0) / value;
            }
            sum
        }
    }

    /// The variable that the covariance is derived in: the logarithm of a hyperparameter, or a coordinate of the first place.
    #[derive(Clone, Copy, Debug)]
    enum By {
        Variance,
        Length,
        Above,
        Place(usize),
    }

    /// The covariance of axis i at p with axis j at q, and its derivative: the potential's derivative in both axes, and in `by`.
    fn derived(kernel: &VectorField, (i, p): (usize, [f64; 3]), (j, q): (usize, [f64; 3]), by: By) -> (f64, f64) {
        let unit = |is: bool| f64::from(u8::from(is));
        let at = |axis: usize| {
            Dual::new(p[axis], [unit(axis == i), 0.0, unit(matches!(by, By::Place(along) if along == axis))])
        };
        let other = |axis: usize| Dual::new(q[axis], [0.0, unit(axis == j), 0.0]);
        let scaled = |value: f64, is: bool| Dual::new(value, [0.0, 0.0, value * unit(is)]);
        let s = scaled(kernel.lengthscale, matches!(by, By::Length));
        let plane = Dual::new(2.0 * kernel.plane, [0.0; 3]);
        let [x, y] = [0, 1].map(|axis| at(axis).plus(other(axis), -1.0));
        let height = at(2).plus(other(2), 1.0).plus(plane, -1.0);
        let potential = |variance: Dual, side: f64| {
            let w = s.plus(height, side);
            let square = x.times(x).plus(y.times(y), 1.0).plus(w.times(w), 1.0);
            variance.times(s.times(s).times(s)).times(square.inverse_root())
        };
        let below = potential(scaled(kernel.variance, matches!(by, By::Variance)), 1.0);
        let above = potential(scaled(kernel.variance_above.unwrap_or(0.0), matches!(by, By::Above)), -1.0);
        let sum = below.plus(above, 1.0).0;
        (sum[0b011], sum[0b111])
    }

    #[test]
    fn it_is_the_potentials_derivative_in_both_places_and_so_are_its_slopes() {
        let kernel = VectorField { constant: 1e-300, ..BOTH_SIDES };
        let mut random = random(11);
        for _ in 0..200 {
            let [p, q] = [(); 2].map(|()| {
                let place: [f64; 3] = std::array::from_fn(|_| random.random_range(-1.2..1.2));
                [place[0], place[1], kernel.plane + 0.6 * place[2]]
            });
            let (rows, columns) = (FieldPlaces::axes(&[p]), FieldPlaces::axes(&[q]));
            let covariance = kernel.covariance(&rows, &columns);
            // Variances grow with the inverse of the cube of the distance from the sources, to 200 times v at these heights.
            let tolerance = 1e-12 * kernel.diagonal(&rows)[2].max(kernel.diagonal(&columns)[2]);
            for (i, j) in (0..9).map(|pair| (pair / 3, pair % 3)) {
                let weights = Matrix::from_fn(3, 3, |row, column| f64::from(u8::from((row, column) == (i, j))));
                let (mut gradient, mut in_places) = ([0.0; 4], [0.0; 9]);
                kernel.contract(&rows, &columns, weights.as_ref(), &mut gradient);
                kernel.contract_in_places(&rows, &columns, weights.as_ref(), &mut in_places);
                let derivatives = [
                    (By::Variance, gradient[1]),
                    (By::Length, gradient[2]),
                    (By::Above, gradient[3]),
                    (By::Place(0), in_places[i]),
                    (By::Place(1), in_places[3 + i]),
                    (By::Place(2), in_places[6 + i]),
                ];
                for (by, found) in derivatives {
                    let (value, slope) = derived(&kernel, (i, p), (j, q), by);
                    assert_near("covariance", covariance[(i, j)], value, tolerance);
                    // Ten times as steep beside the sources.
                    assert_near(&format!("{by:?} of {i}, {j}"), found, slope, 30.0 * tolerance);
                }
            }
        }
    }

    #[test]
    fn without_sources_above_it_is_the_one_of_sources_below_to_the_last_bit() {
        let (rows, columns) = (places_of_all_kinds(25, 1), places_of_all_kinds(3, 2));
        let only_below = VectorField { variance_above: None, ..BOTH_SIDES };
        let none_above = VectorField { variance_above: Some(0.0), ..BOTH_SIDES };
        assert_eq!(none_above.covariance(&rows, &columns), only_below.covariance(&rows, &columns));
        assert_eq!((only_below.share_below(), none_above.share_below()), (1.0, 1.0));
        assert_eq!(only_below.names().len() + 1, none_above.names().len());
    }

    #[test]
    fn only_heights_over_the_plane_matter() {
        let (rows, columns) = (places_of_all_kinds(25, 1), places_of_all_kinds(3, 2));
        let raised = |places: &FieldPlaces| {
            let raised = |place| match place {
                FieldPlace::Field { axis, position: [x, y, z] } => {
                    FieldPlace::Field { axis, position: [x, y, z + 64.0] }
                }
                FieldPlace::Reading { axis, position: [x, y, z], turn, speed } => {
                    FieldPlace::Reading { axis, position: [x, y, z + 64.0], turn, speed }
                }
                of_sensor => of_sensor,
            };
            places.iter().map(raised).collect::<FieldPlaces>()
        };
        let on_roof = VectorField { plane: BOTH_SIDES.plane + 64.0, ..BOTH_SIDES };
        let (found, expected) =
            (on_roof.covariance(&raised(&rows), &raised(&columns)), BOTH_SIDES.covariance(&rows, &columns));
        for (i, j) in (0..rows.len()).flat_map(|i| (0..columns.len()).map(move |j| (i, j))) {
            // Heights of 64 are rounded to 1e-14.
            assert_near("raised", found[(i, j)], expected[(i, j)], 1e-10);
        }
        let weights = Matrix::from_fn(rows.len(), columns.len(), |i, j| ((i + 3 * j) as f64).cos());
        let mut gradient = [0.0; 4];
        on_roof.contract(&raised(&rows), &raised(&columns), weights.as_ref(), &mut gradient);
        assert!(gradient.iter().all(|entry| entry.is_finite()), "{gradient:?}");
    }

    /// Turning the world upside down exchanges the sides, and the sign of the vertical axis.
    #[test]
    fn the_sides_are_mirror_images() {
        let mirrored = VectorField {
            variance: BOTH_SIDES.variance_above.unwrap(),
            variance_above: Some(BOTH_SIDES.variance),
            plane: -BOTH_SIDES.plane,
            ..BOTH_SIDES
        };
        let (p, q) = ([0.3, -0.2, 0.7], [-0.5, 0.1, 0.15]);
        let at = |[x, y, z]: [f64; 3], side: f64| FieldPlaces::axes(&[[x, y, side * z]]);
        let covariance = BOTH_SIDES.covariance(&at(p, 1.0), &at(q, 1.0));
        let upside_down = mirrored.covariance(&at(p, -1.0), &at(q, -1.0));
        for (i, j) in (0..9).map(|pair| (pair / 3, pair % 3)) {
            let sign = if (i == 2) == (j == 2) { 1.0 } else { -1.0 };
            assert_near("mirrored", upside_down[(i, j)], sign * covariance[(i, j)], 1e-12);
        }
        assert_near("share", mirrored.share_below() + BOTH_SIDES.share_below(), 1.0, 1e-15);
    }

    #[test]
    fn between_the_sources_there_is_a_reach() {
        for (kernel, heights) in [(KERNEL, [-0.34, -0.33, 0.33, 50.0]), (BOTH_SIDES, [-0.28, -0.27, 1.07, 1.08])] {
            let reached = heights.map(|z| kernel.reaches(z));
            assert_eq!(reached, [false, true, true, kernel.variance_above.is_none()], "{kernel:?}");
            for (z, _) in heights.into_iter().zip(reached).filter(|(_, reached)| *reached) {
                let variances = kernel.diagonal(&FieldPlaces::axes(&[[0.0, 0.0, z]]));
                // At a quarter of the distance of the plane from the sources, the variance is 4^3 times as large.
                let most = 30.0 + 2.0 * 64.0 * kernel.total_variance();
                assert!(variances.iter().all(|variance| *variance > 0.0 && *variance < most), "{variances:?}");
            }
        }
        let beyond = FieldPlaces::axes(&[[0.0, 0.0, BOTH_SIDES.plane + 0.91]]);
        assert!(BOTH_SIDES.diagonal(&beyond).iter().all(|variance| variance.is_nan()));
    }

    proptest! {
        #[test]
        fn with_sources_on_both_sides_it_is_positive_definite(
            seed in any::<u64>(),
            lengthscale in 1.3..4.0f64,
            variance in 1.0..1e3f64,
            above in 0.0..1e3f64,
        ) {
            let kernel = VectorField { lengthscale, variance, variance_above: Some(above), ..BOTH_SIDES };
            let places = places_of_all_kinds(12, seed);
            let mut covariance = kernel.symmetric_covariance(&places);
            let diagonal = kernel.diagonal(&places);
            // As with sources below alone.
            (0..places.len()).for_each(|i| covariance[(i, i)] += 1e-11 * diagonal.iter().sum::<f64>());
            prop_assert!(linalg::cholesky(covariance).is_ok());
        }

        #[test]
        fn it_is_positive_definite(seed in any::<u64>(), lengthscale in 0.2..3.0f64, variance in 1.0..1e3f64) {
            let kernel = VectorField { lengthscale, variance, ..KERNEL };
            let places = places_of_all_kinds(12, seed);
            let mut covariance = kernel.symmetric_covariance(&places);
            let diagonal = kernel.diagonal(&places);
            // A field and a reading of it, and readings of one sensor, are dependent: what is left is rounding.
            (0..places.len()).for_each(|i| covariance[(i, i)] += 1e-11 * diagonal.iter().sum::<f64>());
            prop_assert!(linalg::cholesky(covariance).is_ok());
        }
    }

    #[test]
    fn below_the_sources_it_is_not_a_number_and_a_batch_is_rejected() {
        let below = [0.0, 0.0, -0.5];
        let places = FieldPlaces::axes(&[below]);
        assert!(KERNEL.diagonal(&places).iter().all(|variance| variance.is_nan()));
        let mut process =
            StreamingGp::new(model(KERNEL, 1.0), settings(Vips { delta: 0.1, guards: true, exact_limit: 100 }));
        let found = process.update(&places, &[1.0, 2.0, 3.0], &|| false);
        assert!(matches!(found, Err(Error::NotPositiveDefinite { .. })), "{found:?}");
        assert!(process.posterior().is_none());
    }
}

mod golden {
    use super::*;

    #[derive(Deserialize)]
    #[allow(non_snake_case)] // the names of the file
    struct Case {
        jitter: f64,
        Xtest: Vec<[f64; 3]>,
        batches: Vec<Expected>,
    }

    #[derive(Deserialize)]
    #[allow(non_snake_case)] // the names of the file
    struct Expected {
        X: Vec<[f64; 3]>,
        y: Vec<f64>,
        Z: Vec<[f64; 3]>,
        hyper: Hyper,
        hyper_select: Hyper,
        elbo: f64,
        grad_log: HashMap<String, f64>,
        L_star: f64,
        q_mean: Vec<f64>,
        q_cov: Vec<Vec<f64>>,
        test_mean: Vec<f64>,
        test_var: Vec<f64>,
        select: Select,
    }

    #[derive(Deserialize, Clone, Copy)]
    struct Hyper {
        #[serde(rename = "const")]
        constant: f64,
        variance: f64,
        lengthscale: f64,
        noise: f64,
    }

    #[derive(Deserialize)]
    #[allow(non_snake_case)] // the names of the file
    struct Select {
        L_star: f64,
        greedy_order: Vec<usize>,
        greedy_cond_var: Vec<f64>,
        elbo_by_M: Vec<(usize, f64)>,
    }

    fn places(rows: &[[f64; 3]]) -> FieldPlaces {
        let place =
            |&[x, y, axis]: &[f64; 3]| FieldPlace::Field { axis: Axis::ALL[axis as usize], position: [x, y, 0.0] };
        rows.iter().map(place).collect()
    }

    fn model(case: &Case, hyper: Hyper) -> Model<VectorField> {
        let Hyper { constant, variance, lengthscale, noise } = hyper;
        let kernel = VectorField { constant, variance, lengthscale, hard_iron: 0.0, speed_bias: 0.0, ..KERNEL };
        Model { jitter: Jitter::Absolute(case.jitter), ..super::model(kernel, noise) }
    }

    /// Calls `check` with each batch, the posterior before it, the rows and what comes of them, and the posterior after it.
    fn for_each_batch(
        check: impl Fn(&Case, &Expected, Option<&Past<VectorField>>, &Rows<'_, VectorField>, &str),
        after: impl Fn(&Case, &Expected, &Posterior<VectorField>, &str),
    ) {
        let text = include_str!("golden/vector/c7_harm3axis_hypchange.json");
        let case: Case = serde_json::from_str(text).unwrap();
        let mut posterior: Option<Posterior<VectorField>> = None;
        for (number, batch) in case.batches.iter().enumerate() {
            let (rows_at, inducing) = (places(&batch.X), places(&batch.Z));
            let past = posterior.as_ref().map(|posterior| &posterior.past);
            let additional = inducing.select(past.map_or(0, |past| past.inducing.len())..inducing.len());
            let rows = Rows::nested(&rows_at, &batch.y, past, &additional);
            let name = format!("batch {}", number + 1);
            check(&case, batch, past, &rows, &name);
            let model = model(&case, batch.hyper);
            let whitened = rows.whiten(&model).unwrap();
            let next = Posterior::new(model, rows.into_past(whitened)).unwrap();
            after(&case, batch, &next, &name);
            posterior = Some(next);
        }
    }

    #[test]
    fn bound_gradient_and_ceilings() {
        for_each_batch(
            |case, batch, past, rows, name| {
                let model = model(case, batch.hyper);
                let whitened = rows.whiten(&model).unwrap();
                assert_relative(&format!("{name} bound"), whitened.bound(), batch.elbo, 1e-8);
                let ceiling = exact_ceiling(&model, &places(&batch.X), &batch.y, past).unwrap();
                assert_relative(&format!("{name} L*"), ceiling, batch.L_star, 1e-8);
                assert!(whitened.upper_bound().unwrap() >= ceiling, "{name}");
                let names = ["const", "variance", "lengthscale", "noise"];
                let largest = names.iter().map(|name| batch.grad_log[*name].abs()).fold(0.0, f64::max);
                for (found, parameter) in rows.gradient(&model, &whitened).iter().zip(names) {
                    assert_near(&format!("{name} {parameter}"), *found, batch.grad_log[parameter], 1e-5 * largest);
                }
            },
            |_, _, _, _| {},
        );
    }

    #[test]
    fn posterior_and_prediction() {
        for_each_batch(
            |_, _, _, _, _| {},
            |case, batch, posterior, name| {
                let prior = batch.hyper.constant + 2.0 * batch.hyper.variance;
                let (mean, covariance) = inducing_distribution(posterior);
                for i in 0..batch.Z.len() {
                    assert_near(&format!("{name} q mean {i}"), mean[i], batch.q_mean[i], 1e-8 * prior.sqrt());
                    (0..batch.Z.len()).for_each(|j| {
                        assert_near(
                            &format!("{name} q covariance"),
                            covariance[(i, j)],
                            batch.q_cov[i][j],
                            1e-8 * prior,
                        );
                    });
                }
                // The file has all x axes first; a map has the three axes of a place together.
                let count = case.Xtest.len() / 3;
                let positions: Vec<[f64; 3]> = case.Xtest[..count].iter().map(|&[x, y, _]| [x, y, 0.0]).collect();
                for (i, axes) in VectorMap::new(posterior).axes(&positions).iter().enumerate() {
                    for axis in 0..3 {
                        let expected = (batch.test_mean[axis * count + i], batch.test_var[axis * count + i]);
                        assert_near(&format!("{name} mean"), axes.mean[axis], expected.0, 1e-8 * prior.sqrt());
                        assert_near(&format!("{name} variance"), axes.covariance[axis][axis], expected.1, 1e-8 * prior);
                    }
                }
            },
        );
    }

    #[test]
    fn greedy_selection() {
        for_each_batch(
            |case, batch, past, _, name| {
                let (at, model) = (places(&batch.X), model(case, batch.hyper_select));
                let ceiling = exact_ceiling(&model, &at, &batch.y, past).unwrap();
                assert_relative(&format!("{name} L* before learning"), ceiling, batch.select.L_star, 1e-8);
                let mut greedy = GreedyVariance::new(&model, &at, &batch.y, past).unwrap();
                let mut bounds = HashMap::from([(greedy.points.len(), greedy.bound())]);
                for (&index, &variance) in batch.select.greedy_order.iter().zip(&batch.select.greedy_cond_var) {
                    let (found, left) = greedy.points.next(0.0).unwrap();
                    assert_eq!(found, index, "{name}: pick {}", greedy.points.chosen.len());
                    assert_near(&format!("{name} variance"), left, variance, 1e-8 * model.kernel.diagonal(&at)[0]);
                    greedy.add(found);
                    bounds.insert(greedy.points.len(), greedy.bound());
                }
                let compared =
                    batch.select.elbo_by_M.iter().filter_map(|(size, bound)| Some((bounds.get(size)?, bound)));
                let compared: Vec<_> = compared.collect();
                assert!(compared.len() > 3, "{name}: {} bounds to compare", compared.len());
                compared.iter().for_each(|(found, expected)| assert_relative(name, **found, **expected, 1e-8));
            },
            |_, _, _, _| {},
        );
    }
}

/// A field of magnetic charges below the plane, and a sensor with a bias.
#[derive(Clone)]
struct World {
    charges: Vec<([f64; 3], f64)>,
    hard_iron: [f64; 3],
    speed_bias: [f64; 3],
    noise: f64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = random(seed);
        let charge = |_| {
            let at = [random.random_range(-1.0..5.0), random.random_range(-1.0..4.0), random.random_range(-1.2..-0.7)];
            (at, random.random_range(-8.0..8.0))
        };
        let charges = (0..30).map(charge).collect();
        Self { charges, hard_iron: [6.0, -4.0, 3.0], speed_bias: [0.0; 3], noise: 0.3 }
    }

    /// With every second charge above the sensor, or all of them, and none below.
    fn with_steel_above(mut self, every: usize) -> Self {
        self.charges.iter_mut().step_by(every).for_each(|(at, _)| at[2] = 0.3 - at[2]);
        self
    }

    fn field(&self, position: [f64; 3]) -> [f64; 3] {
        let mut field = [16.0, 1.0, -48.0];
        for (at, charge) in &self.charges {
            let d: [f64; 3] = std::array::from_fn(|i| position[i] - at[i]);
            let cube = dense::dot(&d, &d).powf(1.5);
            (0..3).for_each(|i| field[i] += charge * d[i] / cube);
        }
        field
    }

    fn reading(
        &self,
        random: &mut ChaCha8Rng,
        position: [f64; 3],
        orientation: [[f64; 3]; 3],
        speed: f64,
    ) -> AxesReading {
        let bias: [f64; 3] = std::array::from_fn(|i| self.hard_iron[i] + speed * self.speed_bias[i]);
        let field = self.field(position);
        let field = std::array::from_fn(|i| {
            let error: f64 = (0..12).map(|_| random.random_range(-0.5..0.5)).sum();
            field[i] + dense::dot(&orientation[i], &bias) + self.noise * error
        });
        AxesReading { position, field, orientation, speed }
    }

    /// A drive to and fro, in batches of 40 readings. `tilt` is how far the sensor is tilted at most.
    fn drive(&self, batches: usize, tilt: f64, height: f64) -> Vec<Vec<AxesReading>> {
        let mut random = random(99);
        let mut along = 0.0f64;
        let mut batch = || {
            let reading = |_| {
                along += 0.1;
                let (x, y) = (2.0 + 2.0 * (0.31 * along).sin(), 1.5 + 1.5 * (0.53 * along).cos());
                let heading = (-1.5 * 0.53 * (0.53 * along).sin()).atan2(2.0 * 0.31 * (0.31 * along).cos());
                let turned = orientation(heading, tilt * (1.7 * along).sin());
                let z = height * (0.5 + 0.5 * (0.9 * along).sin());
                self.reading(&mut random, [x, y, z], turned, 0.5 + 0.4 * (2.3 * along).sin())
            };
            (0..40).map(reading).collect()
        };
        (0..batches).map(|_| batch()).collect()
    }
}

const VIPS: Vips = Vips { delta: 0.1, guards: true, exact_limit: 1000 };

fn room(hard_iron: f64, speed_bias: f64) -> Model<VectorField> {
    let kernel = VectorField { constant: 1000.0, variance: 60.0, lengthscale: 1.2, hard_iron, speed_bias, ..KERNEL };
    Model { jitter: Jitter::Relative(1e-6), ..model(kernel, 0.2) }
}

fn learning() -> Learning {
    Learning { max_evaluations: 20, least_rows: 20, noise_memory: 1000.0, ..Learning::default() }
}

fn learn(process: &mut StreamingGp<VectorField>, batches: &[Vec<AxesReading>]) {
    for batch in batches {
        let (places, targets) = AxesReading::rows(batch);
        process.update(&places, &targets, &|| false).unwrap();
    }
}

/// Root mean squared error of each axis of the map, at places of the drive.
fn axes_error(world: &World, process: &StreamingGp<VectorField>, drive: &[Vec<AxesReading>]) -> [f64; 3] {
    let positions: Vec<[f64; 3]> = drive.iter().flatten().step_by(7).map(|reading| reading.position).collect();
    let axes = VectorMap::new(process.posterior().unwrap()).axes(&positions);
    let mut squares = [0.0; 3];
    for (position, axes) in positions.iter().zip(&axes) {
        let truth = world.field(*position);
        (0..3).for_each(|i| squares[i] += (axes.mean[i] - truth[i]).powi(2) / positions.len() as f64);
    }
    squares.map(f64::sqrt)
}

mod against_dense {
    use super::*;

    /// The bound and the posterior over inducing variables and test places, batch by batch, by the formulas with explicit inverses.
    #[test]
    fn bound_and_prediction_with_hard_iron_are_the_dense_ones() {
        let model = Model { jitter: Jitter::Absolute(1e-4), ..room(5.0, 1.0) };
        let with_jitter = |mut covariance: dense::Rows| {
            (0..covariance.len()).for_each(|i| covariance[i][i] += 1e-4);
            covariance
        };
        let world = World::new(5);
        let (mut posterior, mut old): (Option<Posterior<VectorField>>, Option<dense::Old>) = (None, None);
        let test = FieldPlaces::axes(&[[1.0, 1.0, 0.2], [3.0, 2.0, 0.0]]);
        for (number, batch) in world.drive(2, 0.3, 0.4).iter().enumerate() {
            let (places, targets) = AxesReading::rows(&batch[..12]);
            let candidates = places.candidates();
            let past = posterior.as_ref().map(|posterior| &posterior.past);
            let mut greedy = GreedyVariance::new(&model, &places, &targets, past).unwrap();
            for _ in 0..9 {
                let (index, _) = greedy.points.next(0.0).unwrap();
                greedy.add(index);
            }
            let added = candidates.select(greedy.points.chosen.iter().copied());
            let permanent = if past.is_none() { model.kernel.permanent(&places) } else { places.cleared() };
            let additional = permanent.followed_by(&added);
            let rows = Rows::nested(&places, &targets, past, &additional);
            let whitened = rows.whiten(&model).unwrap();
            let inducing = rows.inducing.clone();
            assert_eq!(inducing.len(), 6 + 9 * (number + 1));

            let count = past.map_or(0, |past| past.inducing.len());
            let covariance = with_jitter(dense_covariance(&model.kernel, &inducing, &inducing));
            let covariances = dense::Covariances {
                cross: dense_covariance(&model.kernel, &inducing, &places),
                diagonal: (0..places.len()).map(|i| textbook(&model.kernel, places.get(i), places.get(i))).collect(),
                old_cross: dense::matrix(inducing.len(), count, |i, j| covariance[i][j]),
                old: dense::matrix(count, count, |i, j| covariance[i][j]),
                inducing: covariance,
                noise: model.noise,
            };
            let expected = dense::online(&covariances, &targets, old.as_ref());
            // Cancellation in the inverse of the difference of inverses.
            assert_relative("bound", whitened.bound(), expected.bound, 1e-6);
            assert_relative("bound while adding", greedy.bound(), expected.bound, 1e-6);
            let cross = dense_covariance(&model.kernel, &inducing, &test);
            let prior = dense_covariance(&model.kernel, &test, &test);
            let (mean, covariance) = dense::predict(&covariances.inducing, &cross, &prior, &expected);
            let next = Posterior::new(model.clone(), rows.into_past(whitened)).unwrap();
            for (place, (found_mean, found)) in next.predict_groups::<3>(&test).iter().enumerate() {
                for i in 0..3 {
                    assert_near("mean", found_mean[i], mean[3 * place + i], 1e-4);
                    (0..3).for_each(|j| {
                        assert_near("covariance", found[i][j], covariance[3 * place + i][3 * place + j], 1e-3)
                    });
                }
            }
            old =
                Some(dense::Old { mean: expected.mean, covariance: expected.covariance, prior: covariances.inducing });
            posterior = Some(next);
        }
    }

    /// With every candidate an inducing variable, the field's axes and the bias explain the readings exactly.
    #[test]
    fn with_all_candidates_the_stream_is_the_exact_process() {
        let model = Model { jitter: Jitter::Relative(1e-10), ..room(5.0, 1.0) };
        let mut everything = settings(Vips { delta: 1e-12, guards: false, exact_limit: 1000 });
        everything.limits = NO_LIMITS;
        everything.redundancy = -1.0;
        let mut process = StreamingGp::new(model.clone(), everything);
        let drive = World::new(6).drive(2, 0.3, 0.4);
        let (mut all, mut all_targets, mut bounds) = (FieldPlaces::new(), Vec::new(), 0.0);
        for batch in &drive {
            let (places, targets) = AxesReading::rows(&batch.iter().step_by(4).copied().collect::<Vec<_>>());
            bounds += process.update(&places, &targets, &|| false).unwrap().bound;
            all = all.followed_by(&places);
            all_targets.extend(targets);
        }
        let mut test = FieldPlaces::axes(&[[1.0, 1.0, 0.2]]);
        Axis::ALL.into_iter().for_each(|axis| test.push(FieldPlace::HardIron(axis)));
        let (evidence, mean, covariance) = dense::exact(
            &dense_covariance(&model.kernel, &all, &all),
            model.noise,
            &all_targets,
            &dense_covariance(&model.kernel, &all, &test),
            &dense_covariance(&model.kernel, &test, &test),
        );
        assert_relative("evidence", bounds, evidence, 1e-5);
        for (group, (found_mean, found)) in process.posterior().unwrap().predict_groups::<3>(&test).iter().enumerate() {
            for i in 0..3 {
                assert_near("mean", found_mean[i], mean[3 * group + i], 1e-3);
                (0..3).for_each(|j| {
                    assert_near("covariance", found[i][j], covariance[3 * group + i][3 * group + j], 1e-3)
                });
            }
        }
    }
}

#[test]
fn a_robot_in_the_plane_learns_the_horizontal_hard_iron_and_says_that_the_vertical_part_is_unknown() {
    let world = World::new(1);
    let drive = world.drive(12, 0.0, 0.0);
    let mut process = StreamingGp::new(room(5.0, 0.0), Settings { learning: learning(), ..settings(VIPS) });
    learn(&mut process, &drive);
    let map = VectorMap::new(process.posterior().unwrap());
    let (bias, deviations) = (&map.bias, map.bias.standard_deviations());
    assert_eq!(bias.components, Axis::ALL.map(FieldPlace::HardIron));
    for i in 0..2 {
        assert!(deviations[i] < 0.5, "{deviations:?}");
        assert_near("hard iron", bias.mean[i], world.hard_iron[i], 3.0 * deviations[i]);
    }
    assert!(bias.mean[2].abs() < 0.05 && deviations[2] > 4.5, "{:?} {deviations:?}", bias.mean);
    // The map has the vertical part of h in its constant; the other axes are those of the field.
    let error = axes_error(&world, &process, &drive);
    assert!(error[0] < 0.5 && error[1] < 0.5, "{error:?}");
    assert_near("the vertical axis", error[2], world.hard_iron[2], 0.5);
    // What the map says of its uncertainty is free of the unknown part; what is told of field and bias together is, too.
    let at = [2.0, 1.5, 0.0];
    let axes = map.axes(&[at])[0];
    assert!((0..3).all(|i| axes.covariance[i][i] < 0.5), "{axes:?}");
    let turned = orientation(0.7, 0.0);
    let read = map.readings(&[SensorPose { position: at, orientation: turned, speed: 0.3 }])[0];
    let (field, deviation) = (world.field(at), |i: usize| read.covariance[i][i].sqrt());
    for i in 0..3 {
        let expected = field[i] + dense::dot(&turned[i], &world.hard_iron);
        assert!(deviation(i) < 0.5, "{read:?}");
        assert_near("reading", read.mean[i], expected, 4.0 * deviation(i));
    }
}

#[test]
fn a_tilting_sensor_learns_all_of_its_bias_at_any_height() {
    let world = World { speed_bias: [1.5, 0.5, -2.0], ..World::new(2) };
    let drive = world.drive(14, 0.6, 0.6);
    let mut process = StreamingGp::new(room(5.0, 3.0), Settings { learning: learning(), ..settings(VIPS) });
    learn(&mut process, &drive);
    let map = VectorMap::new(process.posterior().unwrap());
    let truth = [world.hard_iron, world.speed_bias].concat();
    let deviations = map.bias.standard_deviations();
    assert_eq!(map.bias.mean.len(), 6);
    for i in 0..6 {
        assert!(deviations[i] < 1.0, "{deviations:?}");
        assert_near("bias", map.bias.mean[i], truth[i], 4.0 * deviations[i]);
    }
    let error = axes_error(&world, &process, &drive);
    assert!(error.iter().all(|error| *error < 0.6), "{error:?}");
    let (positions, mut worst): (Vec<[f64; 3]>, f64) = (vec![[2.0, 1.0, 0.1], [2.0, 1.0, 0.5], [3.0, 2.0, 0.3]], 0.0);
    for (axes, position) in map.axes(&positions).iter().zip(&positions) {
        let (mean, variance) = axes.strength();
        let truth = world.field(*position);
        worst = worst.max((mean - dense::dot(&truth, &truth).sqrt()).abs() / (variance + 0.09).sqrt());
    }
    assert!(worst < 4.0, "{worst}");
}

#[test]
fn every_method_keeps_the_bias_and_maps_the_field() {
    let world = World::new(3);
    let drive = world.drive(8, 0.5, 0.3);
    let mut robust = room(5.0, 0.0);
    robust.likelihood = Likelihood::StudentT(StudentT { degrees_of_freedom: 4.0 });
    let with_inference = Settings { inference: Inference::power_ep(0.5).unwrap(), ..settings(VIPS) };
    let moving = Settings { learning: Learning { max_evaluations: 6, ..learning() }, ..settings(Fixed { size: 90 }) };
    let cases: [(&str, Model<VectorField>, Settings<VectorField>); 6] = [
        ("vips", room(5.0, 0.0), settings(VIPS)),
        ("conditional variance", room(5.0, 0.0), settings(ConditionalVariance { tolerance: 30.0 })),
        ("oips", room(5.0, 0.0), settings(Oips { correlation: 0.9 })),
        ("fixed", room(5.0, 0.0), moving),
        ("robust", robust, settings(VIPS)),
        ("power ep", room(5.0, 0.0), with_inference),
    ];
    for (name, model, settings) in cases {
        let mut process = StreamingGp::new(model, settings);
        for (number, batch) in drive.iter().enumerate() {
            let mut batch = batch.clone();
            if name == "robust" {
                batch[number].field[1] += 60.0;
            }
            learn(&mut process, &[batch]);
            let inducing = &process.posterior().unwrap().past.inducing;
            let first: Vec<FieldPlace> = inducing.iter().take(3).collect();
            assert_eq!(first, Axis::ALL.map(FieldPlace::HardIron), "{name}");
            assert!(inducing.iter().skip(3).all(|place| matches!(place, FieldPlace::Field { .. })), "{name}");
        }
        let size = process.posterior().unwrap().past.inducing.len();
        assert!((30..400).contains(&size), "{name}: {size} inducing variables");
        let error = axes_error(&world, &process, &drive);
        assert!(error.iter().all(|error| *error < 1.0), "{name}: {error:?} with {size}");
        let map = VectorMap::new(process.posterior().unwrap());
        let deviations = map.bias.standard_deviations();
        for (i, deviation) in deviations.iter().enumerate() {
            assert_near(name, map.bias.mean[i], world.hard_iron[i], 4.0 * deviation + 0.2);
        }
    }
}

#[test]
fn the_bias_is_never_redundant() {
    let drive = World::new(3).drive(3, 0.0, 0.0);
    // All of the field's variables but one have less than all of their prior variance left, and so has h: its share is 1.
    let mut process = StreamingGp::new(room(5.0, 0.0), Settings { redundancy: 1.0, ..settings(VIPS) });
    learn(&mut process, &drive);
    let inducing: Vec<FieldPlace> = process.posterior().unwrap().past.inducing.iter().collect();
    assert_eq!(inducing[..3], Axis::ALL.map(FieldPlace::HardIron));
}

#[test]
fn a_state_continues_to_the_last_bit() {
    let drive = World::new(4).drive(4, 0.4, 0.3);
    let configured = || Settings { learning: learning(), ..settings(VIPS) };
    let mut whole = StreamingGp::new(room(5.0, 2.0), configured());
    learn(&mut whole, &drive);
    let mut first = StreamingGp::new(room(5.0, 2.0), configured());
    learn(&mut first, &drive[..2]);
    let mut state = first.state();
    // The inducing variables through text and back, as a checkpoint keeps them.
    let past = state.past.as_mut().unwrap();
    let text = serde_json::to_string(&past.inducing.iter().collect::<Vec<_>>()).unwrap();
    past.inducing = serde_json::from_str::<Vec<FieldPlace>>(&text).unwrap().into_iter().collect();
    let mut again = StreamingGp::from_state(room(5.0, 2.0).kernel, configured(), &state).unwrap();
    learn(&mut again, &drive[2..]);
    let states: [State<FieldPlaces>; 2] = [whole.state(), again.state()];
    assert_eq!(states[0], states[1]);
    assert_eq!(states[0].baseline.outputs().len(), 3);
}

#[test]
fn a_start_that_is_far_off_is_learnt_first() {
    let drive = World::new(1).drive(1, 0.3, 0.3);
    let (places, targets) = AxesReading::rows(&drive[0]);
    let prior = LogNormalPrior {
        log_medians: room(5.0, 0.0).log_parameters(),
        log_standard_deviations: vec![0.3, 0.1, 0.02, 0.4],
        tail: None,
    };
    let settings =
        Settings { learning: Learning { max_evaluations: 60, prior: Some(prior), ..learning() }, ..settings(VIPS) };
    let updated = |mut process: StreamingGp<VectorField>| {
        process.update(&places, &targets, &|| false).unwrap();
        process
    };
    let size = |process: &StreamingGp<VectorField>| process.posterior().unwrap().past.inducing.len();
    let expected = size(&updated(StreamingGp::new(room(5.0, 0.0), settings.clone())));
    for factor in [1.0 / 3.0, 3.0] {
        let mut start = room(5.0, 0.0);
        start.kernel.lengthscale *= factor;
        let without = updated(StreamingGp::new(start.clone(), settings.clone()));
        let mut process = StreamingGp::new(start, settings.clone());
        process.learn_start(&places, &targets, &|| false).unwrap();
        assert!(process.posterior().is_none() && process.state().baseline.count() == 0);
        let mut with = updated(process);
        // As if it had begun with what the batch says, and nearer to the right number of inducing variables.
        let begun = updated(StreamingGp::new(without.model.clone(), settings.clone()));
        assert_eq!(with.state(), begun.state());
        assert!(size(&with).abs_diff(expected) < size(&without).abs_diff(expected), "{factor}: {}", size(&with));
        // Once there is a batch, there is nothing to begin.
        let state = with.state();
        with.learn_start(&places, &targets, &|| false).unwrap();
        assert_eq!(with.state(), state);
    }
}

mod sides {
    use super::*;

    /// A model that knows nothing of where the sources are, for a world whose sensor is 0.15 m above the floor's origin.
    fn undecided() -> Model<VectorField> {
        let mut model = room(5.0, 0.0);
        model.kernel =
            VectorField { variance: 30.0, variance_above: Some(30.0), lengthscale: 1.8, plane: 0.15, ..model.kernel };
        model
    }

    /// A model that has learnt from a drive at heights of 0 to 0.3 m, and the batches.
    fn learnt(world: &World, model: Model<VectorField>) -> (StreamingGp<VectorField>, Vec<Vec<AxesReading>>) {
        let drive = world.drive(8, 0.2, 0.3);
        let mut process = StreamingGp::new(model, Settings { learning: learning(), ..settings(VIPS) });
        learn(&mut process, &drive);
        (process, drive)
    }

    #[test]
    fn the_side_of_the_steel_is_learnt() {
        let below = World::new(1);
        let worlds = [
            (below.clone(), 0.9, 1.0),
            (below.clone().with_steel_above(1), 0.0, 0.1),
            (below.with_steel_above(2), 0.2, 0.8),
        ];
        for (world, least, most) in worlds {
            let (process, drive) = learnt(&world, undecided());
            let kernel = &process.posterior().unwrap().model.kernel;
            let share = kernel.share_below();
            assert!((least..=most).contains(&share), "{share} below, expected {least} to {most}: {kernel:?}");
            let error = axes_error(&world, &process, &drive);
            assert!(error.iter().all(|error| *error < 0.5), "{error:?}");
        }
    }

    #[test]
    fn steel_above_is_mapped_where_a_model_of_steel_below_fails() {
        let world = World::new(1).with_steel_above(1);
        let error = |model| {
            let (process, drive) = learnt(&world, model);
            axes_error(&world, &process, &drive).iter().map(|error| error * error).sum::<f64>().sqrt()
        };
        let (both, only_below) = (error(undecided()), error(room(5.0, 0.0)));
        assert!(both < 0.6 && both < 0.6 * only_below, "{both}, with sources below only {only_below}");
    }

    /// The mean field of a map has neither divergence nor curl, at any height.
    #[test]
    fn the_published_field_is_physical_at_any_height() {
        let (process, _) = learnt(&World::new(2).with_steel_above(2), undecided());
        let map = VectorMap::new(process.posterior().unwrap());
        let step = 1e-4;
        for z in [-0.1, 0.0, 0.15, 0.3, 0.4] {
            let at = [2.2, 1.1, z];
            let slopes: [[f64; 3]; 3] = std::array::from_fn(|along| {
                let moved =
                    |step: f64| map.axes(&[std::array::from_fn(|i| at[i] + if i == along { step } else { 0.0 })])[0];
                let (up, down) = (moved(step), moved(-step));
                std::array::from_fn(|axis| (up.mean[axis] - down.mean[axis]) / (2.0 * step))
            });
            let steepest = slopes.iter().flatten().fold(0.0f64, |most, slope| most.max(slope.abs()));
            assert!(steepest > 1.0, "{slopes:?}");
            // Central differences: rounding 1e-12 / 1e-4, truncation 1e-8 times third derivatives up to 1e3.
            assert_near("divergence", (0..3).map(|i| slopes[i][i]).sum(), 0.0, 1e-5 * steepest);
            for (i, j) in [(0, 1), (1, 2), (2, 0)] {
                assert_near("curl", slopes[i][j] - slopes[j][i], 0.0, 1e-5 * steepest);
            }
        }
    }

    #[test]
    fn the_gradient_of_the_bound_is_its_finite_difference() {
        let (process, drive) = learnt(&World::new(3).with_steel_above(2), undecided());
        let posterior = process.posterior().unwrap();
        let (places, targets) = AxesReading::rows(&drive[4]);
        let additional = places.candidates().select((0..places.len()).step_by(11));
        let rows = Rows::nested(&places, &targets, Some(&posterior.past), &additional);
        let at = posterior.model.log_parameters();
        let bound = |at: &[f64]| rows.whiten(&posterior.model.with_log_parameters(at)).unwrap().bound();
        let gradient = rows.gradient(&posterior.model, &rows.whiten(&posterior.model).unwrap());
        assert_eq!(gradient.len(), 5);
        let largest = gradient.iter().fold(0.0f64, |most, entry| most.max(entry.abs()));
        for (parameter, found) in gradient.iter().enumerate() {
            let moved = |step: f64| {
                let mut at = at.clone();
                at[parameter] += step;
                bound(&at)
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            // Rounding of the bound, some 1e-9 of 1e3, over the step; the jitter of 1e-6 enters both.
            assert_near(&format!("parameter {parameter}"), *found, expected, 1e-4 * largest + 1e-3);
        }
    }
}

#[test]
fn strength_is_that_of_samples() {
    let axes = Axes { mean: [20.0, -3.0, -40.0], covariance: [[4.0, 1.0, 0.5], [1.0, 3.0, -0.5], [0.5, -0.5, 2.0]] };
    let root = linalg::cholesky(Matrix::from_fn(3, 3, |i, j| axes.covariance[i][j])).unwrap();
    let mut random = random(7);
    let (mut sum, mut squares, count) = (0.0, 0.0, 100_000);
    for _ in 0..count {
        let normal: [f64; 3] = std::array::from_fn(|_| (0..12).map(|_| random.random_range(-0.5..0.5)).sum());
        let sample: [f64; 3] =
            std::array::from_fn(|i| axes.mean[i] + (0..=i).map(|j| root[(i, j)] * normal[j]).sum::<f64>());
        let strength = dense::dot(&sample, &sample).sqrt();
        sum += strength;
        squares += strength * strength;
    }
    let mean = sum / f64::from(count);
    let (found, variance) = axes.strength();
    // Three standard errors; terms of third order are 1e-3.
    assert_near("mean", found, mean, 3.0 * (variance / f64::from(count)).sqrt() + 1e-3);
    assert_near("variance", variance, squares / f64::from(count) - mean * mean, 0.05);
}
