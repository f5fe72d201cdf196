//! The robust fit: against dense formulas, and at its Gaussian limit.

use super::dense;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f64::consts::TAU;
use std::sync::Arc;
use streaming_gp::bounds::exact_ceiling;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Kernel, Places, Shape, Stationary};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::{Likelihood, StudentT, Weights};
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::selection::vips::Vips;
use streaming_gp::selection::{GreedyVariance, Limits};
use streaming_gp::streaming::{Settings, StreamingGp};
use streaming_gp::targets::Targets;
use streaming_gp::whitened::Rows;

const NU: f64 = 4.0;

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

fn student_t(degrees_of_freedom: f64) -> StudentT {
    StudentT { degrees_of_freedom }
}

fn model(likelihood: Likelihood) -> Model<Stationary> {
    let lengthscales = vec![0.8];
    Model {
        kernel: Stationary { constant: Some(20.0), shape: Shape::Matern52, variance: 3.0, lengthscales },
        noise: 0.4,
        likelihood,
        mean: 1.5,
        jitter: Jitter::Relative(1e-9),
    }
}

/// Points in a square of side 3 and targets around 5, every seventh off by up to a hundred.
fn readings(random: &mut ChaCha8Rng, count: usize) -> (Points, Vec<f64>) {
    let mut places = Points::new(2);
    let mut targets = Vec::new();
    for i in 0..count {
        let place: [f64; 2] = [random.random_range(0.0..3.0), random.random_range(0.0..3.0)];
        let noise = if i % 7 == 3 { random.random_range(10.0..100.0) } else { random.random_range(-0.5..0.5) };
        targets.push(5.0 + 2.0 * (1.5 * (place[0] + place[1])).sin() + noise);
        places.push(&place);
    }
    (places, targets)
}

fn everything_is_inducing<K: Kernel>(redundancy: f64) -> Settings<K> {
    let limits = Limits { max_inducing_points: 1000, least_share: redundancy };
    let selection = Arc::new(Vips { delta: 0.0, guards: false, exact_limit: 1000 });
    Settings {
        selection,
        limits,
        learning: Learning::default(),
        redundancy: -1.0,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    }
}

/// A dense Gaussian process with a noise variance per target: mean and covariance at the targets' own places.
struct Dense {
    mean: Vec<f64>,
    covariance: dense::Rows,
}

fn dense_fit(model: &Model<Stationary>, places: &Points, targets: &[f64], noises: &[f64]) -> Dense {
    let prior = model.kernel.symmetric_covariance(places);
    let count = targets.len();
    let covariance = dense::matrix(count, count, |i, j| prior[(i, j)]);
    let noisy = dense::matrix(count, count, |i, j| prior[(i, j)] + if i == j { noises[i] } else { 0.0 });
    let gain = dense::product(&covariance, &dense::inverse(&noisy).0);
    let centred: Vec<f64> = targets.iter().map(|y| y - model.mean).collect();
    let mean = dense::times(&gain, &centred).into_iter().map(|value| value + model.mean).collect();
    Dense { mean, covariance: dense::plus(&covariance, -1.0, &dense::product(&gain, &covariance)) }
}

/// The textbook's loop over all rows at once, where those before `fixed` keep the noises they have.
fn dense_reweighting(
    model: &Model<Stationary>,
    places: &Points,
    targets: &[f64],
    noises: &mut Vec<f64>,
    turns: usize,
) -> Dense {
    let fixed = noises.len();
    noises.resize(targets.len(), model.noise);
    for turn in 0..=turns {
        let fit = dense_fit(model, places, targets, noises);
        if turn == turns {
            return fit;
        }
        for i in fixed..targets.len() {
            let square = ((targets[i] - fit.mean[i]).powi(2) + fit.covariance[i][i]) / model.noise;
            noises[i] = model.noise * (NU + square) / (NU + 1.0);
        }
    }
    unreachable!("the last turn returns")
}

#[test]
fn reweighting_is_that_of_a_dense_process_turn_by_turn() {
    let model = model(Likelihood::StudentT(student_t(NU)));
    let (places, targets) = readings(&mut random(1), 21);
    let mut rows = Rows::nested(&places, &targets, None, &places);
    for turns in 0..12 {
        let expected = dense_reweighting(&model, &places, &targets, &mut Vec::new(), turns);
        let whitened = rows.whiten(&model).unwrap();
        let squares = rows.expected_squares(&model, &whitened);
        for (i, square) in squares.iter().enumerate() {
            let expected = ((targets[i] - expected.mean[i]).powi(2) + expected.covariance[i][i]) / model.noise;
            // The jitter of 1e-9, times the squared residual over the noise of a gross outlier.
            assert!((square - expected).abs() < 1e-6 * (1.0 + expected), "turn {turns}, row {i}: {square} {expected}");
        }
        rows.weights = Some(student_t(NU).weights(squares));
    }
}

#[test]
fn a_stream_of_two_batches_is_a_dense_process_that_keeps_the_weights_of_the_first() {
    let model = model(Likelihood::StudentT(student_t(NU)));
    let mut random = random(2);
    let batches = [readings(&mut random, 21), readings(&mut random, 21)];
    let mut process = StreamingGp::new(model.clone(), everything_is_inducing(0.0));
    let (mut places, mut targets, mut noises) = (Points::new(2), Vec::new(), Vec::new());
    for (number, (new_places, new_targets)) in batches.iter().enumerate() {
        process.update(new_places, new_targets, &|| false).unwrap();
        places = places.followed_by(new_places);
        targets.extend_from_slice(new_targets);
        let expected = dense_reweighting(&model, &places, &targets, &mut noises, 200);
        let (mean, variance) = process.posterior().unwrap().predict(&places);
        for i in 0..places.len() {
            let deviation = expected.covariance[i][i].sqrt();
            // Weights have settled to 2 % of themselves, which moves no value by more than that of what is left of a residual.
            let off = (mean[i] - expected.mean[i]).abs() / deviation;
            assert!(off < 0.05, "batch {number}, row {i}: {} instead of {}", mean[i], expected.mean[i]);
            assert!((variance[i].sqrt() / deviation - 1.0).abs() < 0.05, "batch {number}, row {i}");
        }
        // The outliers do not show: the fit is within the noise of what the others were drawn from.
        let off = (0..places.len()).map(|i| {
            let place: Vec<f64> = places.point(i).collect();
            (mean[i] - 5.0 - 2.0 * (1.5 * (place[0] + place[1])).sin()).abs() / variance[i].sqrt()
        });
        assert!(off.fold(0.0, f64::max) < 3.0);
    }
}

/// Weights that have settled to 1e-12.
fn settled(rows: &mut Rows<'_, Stationary>, model: &Model<Stationary>) -> f64 {
    for _ in 0..2000 {
        let whitened = rows.whiten(model).unwrap();
        let weights = student_t(NU).weights(rows.expected_squares(model, &whitened));
        let change = rows.weights.as_ref().map_or(1.0, |before| weights.change_from(before));
        rows.weights = Some(weights);
        if change < 1e-12 {
            break;
        }
    }
    rows.whiten(model).unwrap().bound()
}

#[test]
fn turns_never_lower_the_bound() {
    let model = model(Likelihood::StudentT(student_t(NU)));
    for seed in 0..20 {
        let mut random = random(seed);
        let (places, targets) = readings(&mut random, 60);
        let mut rows = Rows::nested(&places, &targets, None, &places.select((0..60).step_by(3)));
        rows.weights = Some(student_t(NU).weights((0..60).map(|_| random.random_range(0.0..20.0))));
        let mut before = f64::NEG_INFINITY;
        for _ in 0..40 {
            let whitened = rows.whiten(&model).unwrap();
            let bound = whitened.bound();
            // Rounding of sums of squares below 1e5.
            assert!(bound >= before - 1e-9, "seed {seed}: {before} then {bound}");
            before = bound;
            rows.weights = Some(student_t(NU).weights(rows.expected_squares(&model, &whitened)));
        }
    }
}

#[test]
fn gradients_are_finite_differences_with_weights_held_and_with_weights_that_follow() {
    let model = model(Likelihood::StudentT(student_t(NU)));
    let mut random = random(3);
    let (first_places, first_targets) = readings(&mut random, 20);
    let mut first = Rows::nested(&first_places, &first_targets, None, &first_places.select([0, 4, 8, 12]));
    settled(&mut first, &model);
    let whitened = first.whiten(&model).unwrap();
    let posterior = Posterior::new(model.clone(), first.into_past(whitened)).unwrap();
    let (places, targets) = readings(&mut random, 30);
    for past in [None, Some(&posterior.past)] {
        for (nested, inducing) in [(true, 5), (true, 30), (false, 7)] {
            let chosen = places.select(0..inducing);
            let mut rows = if nested {
                Rows::nested(&places, &targets, past, &chosen)
            } else {
                Rows::moved(&places, &targets, past, chosen)
            };
            let moved: Vec<f64> = model.log_parameters().iter().map(|value| value + 0.2).collect();
            let model = model.with_log_parameters(&moved);
            settled(&mut rows, &model);
            let weights = rows.weights.clone().unwrap();
            let gradient = rows.gradient(&model, &rows.whiten(&model).unwrap());
            for (parameter, found) in gradient.iter().enumerate() {
                let mut difference = |step: f64, follow: bool| {
                    let mut bound = |step: f64| {
                        let mut values = moved.clone();
                        values[parameter] += step;
                        let model = model.with_log_parameters(&values);
                        rows.weights = Some(weights.clone());
                        if follow { settled(&mut rows, &model) } else { rows.whiten(&model).unwrap().bound() }
                    };
                    (bound(step) - bound(-step)) / (2.0 * step)
                };
                for follow in [false, true] {
                    // Richardson's extrapolation of central differences: truncation 1e-12 of the fifth derivative, rounding
                    // 1e-13 * 1000 / 1e-3, and 1e-12 of what is left of the weights squared.
                    let expected = (4.0 * difference(1e-3, follow) - difference(2e-3, follow)) / 3.0;
                    let off = (found - expected).abs();
                    assert!(off < 1e-6 * (1.0 + expected.abs()), "{parameter}, {nested}, {follow}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn with_weights_the_bounds_bracket_and_added_points_are_refitted_ones() {
    let model = model(Likelihood::StudentT(student_t(NU)));
    let model = Model { jitter: Jitter::Relative(1e-6), ..model };
    for seed in 0..5 {
        let mut random = random(seed);
        let (first_places, first_targets) = readings(&mut random, 20);
        let first = Rows::nested(&first_places, &first_targets, None, &first_places.select([0, 4, 8, 12]));
        let whitened = first.whiten(&model).unwrap();
        let posterior = Posterior::new(model.clone(), first.into_past(whitened)).unwrap();
        let (places, targets) = readings(&mut random, 25);
        let weights: Weights =
            student_t(NU).weights((0..25).map(|i| if i % 5 == 0 { 1e4 } else { 0.2 * f64::from(i) }));
        let batch = Targets::new(&targets, Some(&weights));
        let cases = [1.0, 0.3].map(|power| [None, Some(&posterior.past)].map(|past| (batch.tempered(power), past)));
        for (batch, past) in cases.into_iter().flatten() {
            let ceiling = exact_ceiling(&model, &places, batch, past).unwrap();
            let mut greedy = GreedyVariance::new(&model, &places, batch, past).unwrap();
            while let Some((index, _)) = greedy.points.next(0.0) {
                greedy.add(index);
                let additional = places.select(greedy.points.chosen.iter().copied());
                let whitened = Rows::nested(&places, batch, past, &additional).whiten(&model).unwrap();
                let bound = greedy.bound();
                // Rounding, and jitter of 1e-6 on points that are left with little variance.
                let tolerance = 1e-6 * (1.0 + bound.abs());
                assert!((whitened.bound() - bound).abs() < tolerance, "{} {bound}", whitened.bound());
                assert!(bound < ceiling + tolerance, "bound {bound}, ceiling {ceiling}");
                let upper = whitened.upper_bound().unwrap();
                assert!(upper > ceiling - tolerance, "upper bound {upper}, ceiling {ceiling}");
                assert!((greedy.upper_bound().unwrap() - upper).abs() < 1e-6 * (1.0 + upper.abs()));
            }
            // Every reading is an inducing point now.
            assert!((greedy.bound() - ceiling).abs() < 1e-3 * (1.0 + ceiling.abs()), "{} {ceiling}", greedy.bound());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_update_survives_any_finite_outlier_and_forgets_it(
        nu in 2.1..50.0f64, exponent in 1.0..140.0f64, sign in any::<bool>(), seed in any::<u64>(),
    ) {
        let (places, mut targets) = readings(&mut random(seed), 30);
        targets[17] = if sign { 10f64.powf(exponent) } else { -(10f64.powf(exponent)) };
        let mut process = StreamingGp::new(model(Likelihood::StudentT(student_t(nu))), everything_is_inducing(1e-6));
        process.update(&places, &targets, &|| false).unwrap();
        let (mean, variance) = process.posterior().unwrap().predict(&places);
        prop_assert!(mean.iter().chain(&variance).all(|value| value.is_finite()));
        // With many degrees of freedom an outlier of ten still counts.
        prop_assert!(exponent < 3.0 || mean.iter().all(|value| value.abs() < 100.0), "{mean:?}");
    }
}

#[test]
fn a_power_of_the_likelihood_is_larger_noise_but_for_the_factor_in_front_of_the_density() {
    let model = model(Likelihood::Gaussian);
    let (places, targets) = readings(&mut random(3), 20);
    let power = 0.3;
    for inference in [Inference::Variational, Inference::power_ep(0.5).unwrap()] {
        let rows = |targets: Targets<'_>, model: &Model<Stationary>| {
            let rows = Rows::nested(&places, targets, None, &places.select((0..20).step_by(2)));
            let rows = rows.with_inference(inference);
            let whitened = rows.whiten(model).unwrap();
            (whitened.bound(), rows.gradient(model, &whitened))
        };
        let tempered = |model: &Model<Stationary>| rows(Targets::from(&targets).tempered(power), model);
        let weaker = Model { noise: model.noise / power, ..model.clone() };
        let factor = |noise: f64, times: f64| -0.5 * 20.0 * times * (TAU * noise).ln();
        let expected =
            rows(Targets::from(&targets), &weaker).0 - factor(weaker.noise, 1.0) + factor(model.noise, power);
        let (bound, gradient) = tempered(&model);
        assert!((bound - expected).abs() < 1e-9 * expected.abs(), "{bound} {expected}");
        let at = model.log_parameters();
        for (parameter, entry) in gradient.iter().enumerate() {
            let moved = |step: f64| {
                let mut moved = at.clone();
                moved[parameter] += step;
                tempered(&model.with_log_parameters(&moved)).0
            };
            let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            // Central differences of a bound of some thousands lose 1e-7 to rounding.
            assert!((entry - difference).abs() < 1e-5 * (1.0 + difference.abs()), "{parameter}: {entry} {difference}");
        }
    }
}

#[test]
fn a_billion_degrees_of_freedom_give_the_gaussian_model() {
    // They make a difference of E[r^2] / nu, which is at most 1e5 / 1e9 here.
    let (places, targets) = readings(&mut random(4), 30);
    let [expected, found] = [Likelihood::Gaussian, Likelihood::StudentT(student_t(1e9))].map(|likelihood| {
        let mut process = StreamingGp::new(model(likelihood), everything_is_inducing(0.0));
        process.update(&places, &targets, &|| false).unwrap();
        let (mean, variance) = process.posterior().unwrap().predict(&places);
        mean.into_iter().chain(variance)
    });
    for (expected, found) in expected.zip(found) {
        assert!((found - expected).abs() < 1e-4 * 100.0, "{found} {expected}");
    }
}
