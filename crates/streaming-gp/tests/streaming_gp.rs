//! The engine against dense formulas in plain loops, finite differences, and what must hold for any stream.

use super::dense;
use super::dense::{Covariances, Old};
use super::inducing::inducing_distribution;
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use streaming_gp::bounds::exact_ceiling;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Column, Kernel, Places, Shape, Stationary};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::{Likelihood, StudentT};
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::report::{LearningEnd, LearningReport, SelectionEnd};
use streaming_gp::selection::vips::Vips;
use streaming_gp::selection::{GreedyVariance, Limits};
use streaming_gp::streaming::{Settings, StreamingGp};
use streaming_gp::targets::Targets;
use streaming_gp::whitened::{Past, Rows};

const NO_LIMITS: Limits = Limits { max_inducing_points: usize::MAX, least_share: 0.0 };

const SHAPES: [Shape; 4] = [Shape::Matern12, Shape::Matern32, Shape::Matern52, Shape::SquaredExponential];

/// Points in a box of side 3 and targets around 5.
fn readings(random: &mut ChaCha8Rng, count: usize, dimension: usize) -> (Points, Vec<f64>) {
    let mut places = Points::new(dimension);
    let mut targets = Vec::new();
    for _ in 0..count {
        let point: Vec<f64> = (0..dimension).map(|_| random.random_range(0.0..3.0)).collect();
        targets.push(5.0 + 2.0 * (point.iter().sum::<f64>() * 1.5).sin() + random.random_range(-0.5..0.5));
        places.push(&point);
    }
    (places, targets)
}

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

fn model(shape: Shape, lengthscales: Vec<f64>, constant: bool, jitter: Jitter) -> Model<Stationary> {
    let kernel = Stationary { constant: constant.then_some(20.0), shape, variance: 3.0, lengthscales };
    Model { kernel, noise: 0.4, likelihood: Likelihood::Gaussian, mean: 0.0, jitter }
}

/// The model with every hyperparameter changed.
fn changed(model: &Model<Stationary>) -> Model<Stationary> {
    let moved: Vec<f64> =
        model.log_parameters().iter().enumerate().map(|(i, value)| value + 0.3 * (i as f64 + 1.0).sin()).collect();
    model.with_log_parameters(&moved)
}

/// The covariance by the formula of a shape, one pair at a time.
fn textbook(kernel: &Stationary, a: &[f64], b: &[f64]) -> f64 {
    let Stationary { constant, shape, variance, lengthscales } = kernel;
    let s = (0..a.len()).map(|d| ((a[d] - b[d]) / lengthscales[d % lengthscales.len()]).powi(2)).sum::<f64>().sqrt();
    let rho = match shape {
        Shape::Matern12 => (-s).exp(),
        Shape::Matern32 => (1.0 + 3f64.sqrt() * s) * (-(3f64.sqrt()) * s).exp(),
        Shape::Matern52 => (1.0 + 5f64.sqrt() * s + 5.0 / 3.0 * s * s) * (-(5f64.sqrt()) * s).exp(),
        Shape::SquaredExponential => (-0.5 * s * s).exp(),
    };
    constant.unwrap_or(0.0) + variance * rho
}

fn dense_covariance(kernel: &Stationary, rows: &Points, columns: &Points) -> dense::Rows {
    let point = |points: &Points, i| points.point(i).collect::<Vec<f64>>();
    dense::matrix(rows.len(), columns.len(), |i, j| textbook(kernel, &point(rows, i), &point(columns, j)))
}

/// With jitter.
fn dense_inducing(model: &Model<Stationary>, places: &Points) -> dense::Rows {
    let mut covariance = dense_covariance(&model.kernel, places, places);
    for (i, row) in covariance.iter_mut().enumerate() {
        row[i] += match model.jitter {
            Jitter::Absolute(jitter) => jitter,
            Jitter::Relative(share) => share * row[i],
        };
    }
    covariance
}

/// The matrices of dense formulas for a batch whose inducing points contain the old ones (`nested`) or not.
fn dense_batch(
    model: &Model<Stationary>,
    places: &Points,
    inducing: &Points,
    old: Option<&Points>,
    nested: bool,
) -> Covariances {
    let nothing = places.cleared();
    let old = old.unwrap_or(&nothing);
    let with_jitter = dense_inducing(model, inducing);
    let old_cross = if nested {
        dense::matrix(inducing.len(), old.len(), |i, j| with_jitter[i][j])
    } else {
        dense_covariance(&model.kernel, inducing, old)
    };
    Covariances {
        inducing: with_jitter,
        cross: dense_covariance(&model.kernel, inducing, places),
        diagonal: (0..places.len()).map(|_| model.kernel.shared_variance() + model.kernel.variance).collect(),
        old_cross,
        old: dense_inducing(model, old),
        noise: model.noise,
    }
}

#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance,
        "{what}: found {found}, expected {expected}, not within {tolerance}"
    );
}

/// The batches of a small stream: places, targets, and the inducing points after each.
struct Stream {
    batches: Vec<(Points, Vec<f64>)>,
    inducing: Vec<Points>,
}

impl Stream {
    /// Three batches; with `nested` every inducing point stays, without it they are all others each time.
    fn new(dimension: usize, nested: bool) -> Self {
        let mut random = random(7);
        let batches: Vec<_> = (0..3).map(|_| readings(&mut random, 14, dimension)).collect();
        let mut inducing: Vec<Points> = Vec::new();
        for (places, _) in &batches {
            let new = places.select([0, 3, 6, 9]);
            inducing.push(match inducing.last() {
                Some(before) if nested => before.followed_by(&new),
                _ => new,
            });
        }
        Self { batches, inducing }
    }

    fn rows<'a>(&'a self, batch: usize, past: Option<&'a Past<Stationary>>, nested: bool) -> Rows<'a, Stationary> {
        let (places, targets) = &self.batches[batch];
        let inducing = &self.inducing[batch];
        if nested {
            let additional = inducing.select(past.map_or(0, |past| past.inducing.len())..inducing.len());
            Rows::nested(places, targets, past, &additional)
        } else {
            Rows::moved(places, targets, past, inducing.clone())
        }
    }
}

/// Kernels of every shape, dimension and number of lengthscales, each with both jitters, with and without the constant.
fn every_model() -> impl Iterator<Item = (usize, Model<Stationary>)> {
    let lengthscales = [(1, vec![0.8]), (2, vec![0.8]), (2, vec![0.8, 1.7]), (3, vec![1.2]), (3, vec![0.9, 1.4, 2.2])];
    let jitters = [Jitter::Absolute(1e-3), Jitter::Relative(1e-3)];
    SHAPES.into_iter().flat_map(move |shape| {
        lengthscales.clone().into_iter().flat_map(move |(dimension, lengthscales)| {
            [true, false].into_iter().flat_map(move |constant| {
                let lengthscales = lengthscales.clone();
                jitters.into_iter().map(move |jitter| {
                    (dimension, Model { mean: 1.5, ..model(shape, lengthscales.clone(), constant, jitter) })
                })
            })
        })
    })
}

/// Each way to approximate the posterior, and what the dense formulas say of it.
type DenseFormula = fn(&Covariances, &[f64], Option<&Old>) -> dense::Online;

fn every_inference() -> [(Inference, DenseFormula); 4] {
    [
        (Inference::Variational, dense::online),
        (Inference::power_ep(0.05).unwrap(), |covariances, y, old| dense::power_ep(covariances, y, old, 0.05)),
        (Inference::power_ep(0.5).unwrap(), |covariances, y, old| dense::power_ep(covariances, y, old, 0.5)),
        (Inference::power_ep(1.0).unwrap(), |covariances, y, old| dense::power_ep(covariances, y, old, 1.0)),
    ]
}

#[test]
fn streams_are_what_dense_formulas_say() {
    for (dimension, model) in every_model() {
        for nested in [true, false] {
            for (inference, formula) in every_inference() {
                check_stream(dimension, &model, nested, inference, formula);
            }
        }
    }
}

fn check_stream(
    dimension: usize,
    first_model: &Model<Stationary>,
    nested: bool,
    inference: Inference,
    formula: DenseFormula,
) {
    let stream = Stream::new(dimension, nested);
    let mut model = first_model.clone();
    let mut posterior: Option<Posterior<Stationary>> = None;
    let mut old: Option<Old> = None;
    for (batch, (places, targets)) in stream.batches.iter().enumerate() {
        let name = format!("{model:?}, {inference:?}, dimension {dimension}, nested {nested}, batch {batch}");
        let past = posterior.as_ref().map(|posterior| &posterior.past);
        let rows = stream.rows(batch, past, nested).with_inference(inference);
        let whitened = rows.whiten(&model).unwrap();

        let inducing = &stream.inducing[batch];
        let old_inducing = batch.checked_sub(1).map(|before| &stream.inducing[before]);
        let covariances = dense_batch(&model, places, inducing, old_inducing, nested);
        let centred: Vec<f64> = targets.iter().map(|y| y - model.mean).collect();
        let q = formula(&covariances, &centred, old.as_ref());
        // The dense formulas invert matrices with condition numbers up to 1e5 and subtract the inverses; that of Power-EP inverts
        // the difference once more.
        let tolerance = if inference == Inference::Variational { 1e-7 } else { 1e-6 };
        assert_near(&name, whitened.bound(), q.bound, tolerance);

        let next = Posterior::new(model.clone(), rows.into_past(whitened)).unwrap();
        let (mean, covariance) = inducing_distribution(&next);
        for i in 0..inducing.len() {
            assert_near(&name, mean[i] - model.mean, q.mean[i], tolerance);
            (0..inducing.len()).for_each(|j| assert_near(&name, covariance[(i, j)], q.covariance[i][j], tolerance));
        }
        let (test, _) = readings(&mut random(99), 5, dimension);
        let cross = dense_covariance(&model.kernel, inducing, &test);
        let prior = dense_covariance(&model.kernel, &test, &test);
        let (expected_mean, expected) = dense::predict(&covariances.inducing, &cross, &prior, &q);
        let (means, variances) = next.predict(&test);
        let (joint_mean, joint) = next.predict_joint(&test);
        for i in 0..5 {
            assert_near(&name, means[i] - model.mean, expected_mean[i], tolerance);
            assert_near(&name, joint_mean[i] - model.mean, expected_mean[i], tolerance);
            assert_near(&name, variances[i], expected[i][i], tolerance);
            (0..5).for_each(|j| assert_near(&name, joint[(i, j)], expected[i][j], tolerance));
        }
        old = Some(Old { mean: q.mean, covariance: q.covariance, prior: covariances.inducing });
        posterior = Some(next);
        model = changed(&model);
    }
}

#[test]
fn power_ep_with_alpha_1_is_fitc() {
    for (dimension, model) in every_model() {
        let stream = Stream::new(dimension, true);
        let (places, targets) = &stream.batches[0];
        let rows = stream.rows(0, None, true).with_inference(Inference::power_ep(1.0).unwrap());
        let covariances = dense_batch(&model, places, &stream.inducing[0], None, true);
        let centred: Vec<f64> = targets.iter().map(|y| y - model.mean).collect();
        let expected = dense::fitc(&covariances, &centred);
        // Two inverses of matrices with condition numbers up to 1e5.
        assert_near(&format!("{model:?}"), rows.whiten(&model).unwrap().bound(), expected, 1e-8);
    }
}

/// Rows with weights: what Power-EP changes is what it changes where the noise itself is that much smaller, the gradient is that of
/// the bound, and the expected squares are those of the prediction.
#[test]
fn power_ep_takes_the_rows_with_their_weights() {
    let mut random = random(5);
    let likelihood = StudentT { degrees_of_freedom: 4.0 };
    let model = model(Shape::Matern52, vec![0.8], true, Jitter::Relative(1e-6));
    let posterior = posterior_of(&model, &mut random);
    let (places, targets) = readings(&mut random, 20, 2);
    let weights = likelihood.weights(vec![0.5; 20]);
    let precise = Model { noise: model.noise / weights.values[0], ..model.clone() };
    let power_ep = Inference::power_ep(0.7).unwrap();
    let rows = |targets, inference| {
        Rows::moved(&places, targets, Some(&posterior.past), places.select(3..9)).with_inference(inference)
    };
    let bound = |targets, inference, model| rows(targets, inference).whiten(model).unwrap().bound();
    let weighted = Targets::new(&targets, Some(&weights));
    let found = bound(weighted, power_ep, &model) - bound(weighted, Inference::Variational, &model);
    let plain = Targets::from(&targets);
    let expected = bound(plain, power_ep, &precise) - bound(plain, Inference::Variational, &precise);
    // Rounding of bounds of some hundred nats.
    assert_near("change of the bound", found, expected, 1e-10);

    let uneven = likelihood.weights((0..20).map(f64::from));
    for inference in [Inference::Variational, power_ep] {
        let rows = rows(Targets::new(&targets, Some(&uneven)), inference);
        let whitened = rows.whiten(&model).unwrap();
        let gradient = rows.gradient(&model, &whitened);
        for (parameter, found) in gradient.iter().enumerate() {
            let moved = |step: f64| {
                let mut at = model.log_parameters();
                at[parameter] += step;
                rows.whiten(&model.with_log_parameters(&at)).unwrap().bound()
            };
            let difference = |step: f64| (moved(step) - moved(-step)) / (2.0 * step);
            let expected = (4.0 * difference(1e-3) - difference(2e-3)) / 3.0;
            // As where all rows count alike.
            assert_near("gradient", *found, expected, 2e-7 * (1.0 + expected.abs()));
        }
        let squares = rows.expected_squares(&model, &whitened);
        let next = Posterior::new(model.clone(), rows.into_past(whitened)).unwrap();
        let (mean, variance) = next.predict(&places);
        for i in 0..20 {
            let expected = ((targets[i] - mean[i]).powi(2) + variance[i]) / model.noise;
            assert_near("expected square", squares[i], expected, 1e-9 * (1.0 + expected));
        }
    }
}

#[test]
fn a_stream_learns_and_updates_with_the_inference_of_its_settings() {
    let mut random = random(6);
    let start = model(Shape::Matern52, vec![0.8], true, Jitter::Relative(1e-6));
    for inference in [Inference::Variational, Inference::power_ep(0.5).unwrap()] {
        let settings = Settings {
            selection: Arc::new(ALL_READINGS),
            limits: Limits { max_inducing_points: 8, least_share: 0.0 },
            learning: Learning { max_evaluations: 30, ..Learning::default() },
            redundancy: -1.0,
            inference,
            likelihood_power: 1.0,
        };
        let mut process = StreamingGp::new(start.clone(), settings.clone());
        for _ in 0..2 {
            let past = process.posterior().cloned();
            let before = process.model.clone();
            let (places, targets) = readings(&mut random, 40, 2);
            let report = process.update(&places, &targets, &|| false).unwrap();
            let inducing = &process.posterior().unwrap().past.inducing;
            let past = past.as_deref().map(|posterior| &posterior.past);
            let additional = inducing.select(past.map_or(0, |past| past.inducing.len())..inducing.len());
            let rows = Rows::nested(&places, &targets, past, &additional).with_inference(inference);
            let (learnt, _) = settings.learning.learn(&before, &rows, &|| false);
            assert_eq!(&process.model, &learnt);
            let whitened = rows.whiten(&learnt).unwrap();
            assert_eq!(report.bound, whitened.bound());
            let expected = inducing_distribution(&Posterior::new(learnt, rows.into_past(whitened)).unwrap()).0;
            assert_eq!(inducing_distribution(process.posterior().unwrap()).0, expected);
        }
    }
}

#[test]
fn power_ep_knows_no_upper_bound() {
    let model = model(Shape::Matern52, vec![0.8], true, Jitter::Relative(1e-6));
    let (places, targets) = readings(&mut random(5), 20, 2);
    let rows = Rows::nested(&places, &targets, None, &places.select(0..3));
    assert!(rows.whiten(&model).unwrap().upper_bound().unwrap().is_finite());
    let rows = rows.with_inference(Inference::power_ep(0.5).unwrap());
    assert_eq!(rows.whiten(&model).unwrap().upper_bound(), Ok(f64::INFINITY));
}

#[test]
fn gradients_are_finite_differences() {
    for (dimension, first_model) in every_model() {
        for nested in [true, false] {
            let stream = Stream::new(dimension, nested);
            let first = stream.rows(0, None, nested);
            let whitened = first.whiten(&first_model).unwrap();
            let posterior = Posterior::new(first_model.clone(), first.into_past(whitened)).unwrap();
            for (past, (inference, _)) in
                [None, Some(&posterior.past)].into_iter().flat_map(|past| every_inference().map(|each| (past, each)))
            {
                let rows = stream.rows(if past.is_some() { 1 } else { 0 }, past, nested).with_inference(inference);
                let model = changed(&first_model);
                let gradient = rows.gradient(&model, &rows.whiten(&model).unwrap());
                let at = model.log_parameters();
                for (parameter, found) in gradient.iter().enumerate() {
                    let bound = |step: f64| {
                        let mut moved = at.clone();
                        moved[parameter] += step;
                        rows.whiten(&model.with_log_parameters(&moved)).unwrap().bound()
                    };
                    // Richardson's extrapolation of central differences: truncation 1e-12 of the fifth derivative, rounding
                    // 1e-13 * 100 / 1e-3.
                    let difference = |step: f64| (bound(step) - bound(-step)) / (2.0 * step);
                    let expected = (4.0 * difference(1e-3) - difference(2e-3)) / 3.0;
                    let name = format!(
                        "{model:?}, {inference:?}, dimension {dimension}, nested {nested}, parameter {parameter}"
                    );
                    assert_near(&name, *found, expected, 2e-7 * (1.0 + expected.abs()));
                }
            }
        }
    }
}

/// Places in the box of the readings at some distance from all others, so that no difference reaches over the kink of a Matérn 1/2.
fn places_apart(random: &mut ChaCha8Rng, count: usize, others: &Points) -> Points {
    let mut apart = others.cleared();
    while apart.len() < count {
        let (candidate, _) = readings(random, 1, others.dimension());
        let all = others.followed_by(&apart);
        let square = |i| all.point(i).zip(candidate.point(0)).map(|(a, b): (f64, f64)| (a - b).powi(2)).sum::<f64>();
        if (0..all.len()).all(|i| square(i) > 0.02f64.powi(2)) {
            apart.push_from(&candidate, 0);
        }
    }
    apart
}

#[test]
fn gradients_in_inducing_points_are_finite_differences() {
    for (dimension, first_model) in every_model() {
        let stream = Stream::new(dimension, true);
        let first = stream.rows(0, None, true);
        let whitened = first.whiten(&first_model).unwrap();
        let posterior = Posterior::new(first_model.clone(), first.into_past(whitened)).unwrap();
        let model = changed(&first_model);
        let (places, targets) = &stream.batches[1];
        let apart = places_apart(&mut random(17), 5, &places.followed_by(&posterior.past.inducing));
        // Readings and old inducing points themselves; a Matérn 1/2 has no derivative there.
        let coincident = places.select([2, 5]).followed_by(&posterior.past.inducing.select([1, 2])).followed_by(&apart);
        let is_smooth = model.kernel.shape != Shape::Matern12;
        for past in [None, Some(&posterior.past)] {
            for (inference, _) in every_inference() {
                let moved = |inducing| Rows::moved(places, targets, past, inducing).with_inference(inference);
                check_gradient_in_inducing(&model, &apart, moved);
                if is_smooth {
                    check_gradient_in_inducing(&model, &coincident, moved);
                }
            }
        }

        // Where the old inducing points stay, only the others have a gradient.
        let rows = |additional: &Points| Rows::nested(places, targets, Some(&posterior.past), additional);
        let (in_model, in_inducing) = {
            let rows = rows(&apart);
            let whitened = rows.whiten(&model).unwrap();
            assert_eq!(rows.gradient(&model, &whitened), rows.gradient_with_inducing(&model, &whitened).0);
            rows.gradient_with_inducing(&model, &whitened)
        };
        assert_eq!(in_model.len(), model.names().len());
        let (old, size) = (posterior.past.inducing.len(), posterior.past.inducing.len() + apart.len());
        let bound = |additional: Points| rows(&additional).whiten(&model).unwrap().bound();
        for axis in 0..dimension {
            assert!(in_inducing[axis * size..][..old].iter().all(|entry| *entry == 0.0));
            for i in 0..apart.len() {
                let expected = difference_in_place(&apart, axis * apart.len() + i, bound);
                assert_near(
                    &format!("{model:?} nested"),
                    in_inducing[axis * size + old + i],
                    expected,
                    1e-6 * (1.0 + expected.abs()),
                );
            }
        }
    }
}

fn check_gradient_in_inducing<'a>(
    model: &Model<Stationary>,
    inducing: &Points,
    rows: impl Fn(Points) -> Rows<'a, Stationary>,
) {
    let start = rows(inducing.clone());
    let (in_model, in_inducing) = start.gradient_with_inducing(model, &start.whiten(model).unwrap());
    assert_eq!(in_model, start.gradient(model, &start.whiten(model).unwrap()));
    for (coordinate, found) in in_inducing.iter().enumerate() {
        let expected =
            difference_in_place(inducing, coordinate, |inducing| rows(inducing).whiten(model).unwrap().bound());
        let name = format!("{model:?}, coordinate {coordinate}");
        assert_near(&name, *found, expected, 1e-6 * (1.0 + expected.abs()));
    }
}

/// The derivative in one coordinate by Richardson's extrapolation of central differences: rounding 1e-13 * 100 / 2e-4; the steps are
/// small beside the distance of the nearest places, where the bound bends, and over the jump of a third derivative of a Matérn 3/2.
fn difference_in_place(places: &Points, coordinate: usize, value: impl Fn(Points) -> f64) -> f64 {
    let moved = |step: f64| {
        let mut coordinates = places.coordinates();
        coordinates[coordinate] += step;
        value(places.with_coordinates(&coordinates))
    };
    let difference = |step: f64| (moved(step) - moved(-step)) / (2.0 * step);
    (4.0 * difference(2e-4) - difference(4e-4)) / 3.0
}

/// Eight inducing points crowded in the first third of a wave of readings, and a model to learn from.
fn crowded_wave() -> (Points, Vec<f64>, Points, Model<Stationary>) {
    let mut random = random(8);
    let (mut places, mut crowded, mut targets) = (Points::new(1), Points::new(1), Vec::new());
    for i in 0..60 {
        let x = 0.1 * f64::from(i);
        places.push(&[x]);
        targets.push(4.0 * x.sin() + random.random_range(-0.2..0.2));
    }
    (0..8).for_each(|i| crowded.push(&[0.3 * f64::from(i)]));
    let start = model(Shape::Matern52, vec![1.0], false, Jitter::Relative(1e-6));
    (places, targets, crowded, start)
}

fn bound(rows: &Rows<'_, Stationary>, model: &Model<Stationary>) -> f64 {
    rows.whiten(model).unwrap().bound()
}

#[test]
fn crowded_inducing_points_move_to_where_they_are_needed() {
    let (places, targets, crowded, start) = crowded_wave();
    let learning = Learning { max_evaluations: 200, ..Learning::default() };
    for inference in [Inference::Variational, Inference::power_ep(0.1).unwrap(), Inference::power_ep(0.5).unwrap()] {
        let rows = |inducing| Rows::moved(&places, &targets, None, inducing).with_inference(inference);
        let learn = |rows: &Rows<'_, Stationary>| bound(rows, &learning.learn(&start, rows, &|| false).0);
        let fixed = learn(&rows(crowded.clone()));
        let even = learn(&rows(places.select((0..60).step_by(8))));
        let mut rows = rows(crowded.clone());
        let (learnt, report) = learning.learn_with_places(&start, &mut rows, &|| false);
        let moved = bound(&rows, &learnt);
        assert_eq!(report.end, LearningEnd::Converged);
        // Half the wave is noise to points that stay; points that move do better than points spread by hand.
        assert!(fixed < even - 50.0 && moved > even, "{inference:?}: moved {moved}, fixed {fixed}, even {even}");
        let furthest = rows.inducing.coordinates().into_iter().fold(f64::NEG_INFINITY, f64::max);
        assert!(furthest > 5.0, "{furthest}");
    }
}

#[test]
fn beside_a_past_moved_inducing_points_learn_and_those_of_a_nested_past_stay_to_the_last_bit() {
    let mut random = random(9);
    let start = model(Shape::Matern52, vec![0.8], true, Jitter::Relative(1e-6));
    let posterior = posterior_of(&start, &mut random);
    let (places, targets) = readings(&mut random, 60, 2);
    let learning = Learning { max_evaluations: 60, ..Learning::default() };
    let old = &posterior.past.inducing;
    let additional = places.select(0..4);
    let mut moved = Rows::moved(&places, &targets, Some(&posterior.past), old.followed_by(&additional));
    let mut nested = Rows::nested(&places, &targets, Some(&posterior.past), &additional);
    for (rows, stay) in [(&mut moved, 0), (&mut nested, old.len())] {
        let fixed = bound(rows, &learning.learn(&start, rows, &|| false).0);
        let before = rows.inducing.clone();
        let (learnt, _) = learning.learn_with_places(&start, rows, &|| false);
        assert!(bound(rows, &learnt) > fixed + 1.0, "{} {fixed}", bound(rows, &learnt));
        let after = &rows.inducing;
        for i in 0..after.len() {
            assert_eq!(before.point(i).eq(after.point(i)), i < stay, "{i}");
        }
    }
}

#[test]
fn learning_with_places_keeps_its_budget_and_stops_and_is_never_worse_than_its_start() {
    let (places, targets, crowded, start) = crowded_wave();
    // As learning evaluates it: the hyperparameters from their logarithms.
    let evaluated = start.with_log_parameters(&start.log_parameters());
    let begin = bound(&Rows::moved(&places, &targets, None, crowded.clone()), &evaluated);
    let learn = |learning: Learning, stop: &dyn Fn() -> bool| {
        let mut rows = Rows::moved(&places, &targets, None, crowded.clone());
        let (learnt, report) = learning.learn_with_places(&start, &mut rows, stop);
        (bound(&rows, &learnt), rows.inducing.clone(), learnt, report)
    };
    for max_evaluations in 1..12 {
        let learning = Learning { max_evaluations, ..Learning::default() };
        let (reached, _, _, report) = learn(learning, &|| false);
        assert_eq!(report, LearningReport { evaluations: max_evaluations, end: LearningEnd::Budget });
        assert!(reached >= begin, "{reached} {begin}");
    }
    for allowed in 0..12 {
        let asked = std::cell::Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) == allowed;
        let (reached, _, _, report) = learn(Learning { max_evaluations: 100, ..Learning::default() }, &stop);
        assert_eq!(report, LearningReport { evaluations: allowed, end: LearningEnd::Stopped });
        assert!(reached >= begin, "{reached} {begin}");
    }
    // Nothing learnt leaves everything to the last bit.
    let unchanged = |learning: Learning, stop: bool, end: LearningEnd| {
        let (_, inducing, learnt, report) = learn(learning, &|| stop);
        assert_eq!(
            (inducing, learnt, report),
            (crowded.clone(), start.clone(), LearningReport { evaluations: 0, end })
        );
    };
    unchanged(Learning::default(), false, LearningEnd::Off);
    unchanged(Learning { max_evaluations: 9, least_rows: 61, ..Learning::default() }, false, LearningEnd::TooFewRows);
    unchanged(Learning { max_evaluations: 9, ..Learning::default() }, true, LearningEnd::Stopped);
}

/// A model with hyperparameters anywhere that a map could have them.
fn any_model() -> impl Strategy<Value = Model<Stationary>> {
    let shape = prop::sample::select(SHAPES.to_vec());
    (shape, -1.0..5.0f64, -1.5..1.5f64, -3.0..2.0f64, any::<bool>()).prop_map(
        |(shape, variance, lengthscale, noise, constant)| Model {
            kernel: Stationary {
                constant: constant.then_some(20.0),
                shape,
                variance: variance.exp(),
                lengthscales: vec![lengthscale.exp()],
            },
            noise: noise.exp(),
            mean: 0.0,
            likelihood: Likelihood::Gaussian,
            jitter: Jitter::Relative(1e-6),
        },
    )
}

/// A posterior after one batch of 20 readings with five inducing points.
fn posterior_of(model: &Model<Stationary>, random: &mut ChaCha8Rng) -> Posterior<Stationary> {
    let (places, targets) = readings(random, 20, 2);
    let rows = Rows::nested(&places, &targets, None, &places.select(0..5));
    let whitened = rows.whiten(model).unwrap();
    Posterior::new(model.clone(), rows.into_past(whitened)).unwrap()
}

/// Every reading an inducing point.
const ALL_READINGS: Vips = Vips { delta: 0.0, guards: false, exact_limit: 10_000 };

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bounds_bracket_and_points_never_hurt(
        first in any_model(), second in any_model(), seed in any::<u64>(), count in 1..40usize, with_past in any::<bool>(),
    ) {
        let mut random = random(seed);
        let posterior = with_past.then(|| posterior_of(&first, &mut random));
        let past = posterior.as_ref().map(|posterior| &posterior.past);
        let (places, targets) = readings(&mut random, count, 2);
        let ceiling = exact_ceiling(&second, &places, &targets, past).unwrap();
        // Rounding of the sums of squares, which are at most a thousand times the bound.
        let tolerance = 1e-9 * (1.0 + ceiling.abs());
        let mut greedy = GreedyVariance::new(&second, &places, &targets, past).unwrap();
        let mut before = f64::NEG_INFINITY;
        loop {
            let bound = greedy.bound();
            prop_assert!(bound >= before - tolerance, "{before} then {bound} with {} points", greedy.points.len());
            prop_assert!(bound <= ceiling + tolerance, "bound {bound}, ceiling {ceiling}");
            let upper = greedy.upper_bound().unwrap();
            prop_assert!(upper >= ceiling - tolerance, "upper bound {upper}, ceiling {ceiling}");

            let additional = places.select(greedy.points.chosen.iter().copied());
            let rows = Rows::nested(&places, &targets, past, &additional);
            let whitened = rows.whiten(&second).unwrap();
            let refitted = whitened.bound();
            // Points left with little variance are known to eps / jitter only, on both sides.
            prop_assert!((refitted - bound).abs() <= 1e-6 * (1.0 + bound.abs()), "{bound}, refitted {refitted}");
            let refitted = whitened.upper_bound().unwrap();
            prop_assert!((refitted - upper).abs() <= 1e-6 * (1.0 + upper.abs()), "{upper}, refitted {refitted}");

            before = bound;
            match greedy.points.next(0.0) {
                Some((index, _)) => greedy.add(index),
                None => break,
            }
        }
        prop_assert!(greedy.points.chosen.len() <= count);
    }

    #[test]
    fn the_order_of_readings_does_not_matter(
        first in any_model(), second in any_model(), seed in any::<u64>(), nested in any::<bool>(),
    ) {
        let mut random = random(seed);
        let posterior = posterior_of(&first, &mut random);
        let (places, targets) = readings(&mut random, 50, 2);
        let (inducing, _) = readings(&mut random, 6, 2);
        let mut order: Vec<usize> = (0..50).collect();
        order.shuffle(&mut random);
        let shuffled_places = places.select(order.iter().copied());
        let shuffled_targets: Vec<f64> = order.iter().map(|&i| targets[i]).collect();
        let (test, _) = readings(&mut random, 7, 2);
        let evaluate = |places: &Points, targets: &[f64]| {
            let past = Some(&posterior.past);
            let rows = if nested {
                Rows::nested(places, targets, past, &inducing)
            } else {
                Rows::moved(places, targets, past, inducing.clone())
            };
            let whitened = rows.whiten(&second).unwrap();
            let mut numbers = vec![whitened.bound()];
            numbers.extend(rows.gradient(&second, &whitened));
            let posterior = Posterior::new(second.clone(), rows.into_past(whitened)).unwrap();
            let (mean, variance) = posterior.predict(&test);
            numbers.extend(mean.into_iter().chain(variance));
            numbers
        };
        let (once, again) = (evaluate(&places, &targets), evaluate(&shuffled_places, &shuffled_targets));
        // Rounding relative to the largest term; gradients and bound are sums of terms about as large as the bound.
        let scale = 1.0 + once[..5.min(once.len())].iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        for (once, again) in once.iter().zip(&again) {
            prop_assert!((once - again).abs() <= 1e-8 * scale, "{once} {again}, scale {scale}");
        }
    }

    #[test]
    fn with_all_points_inducing_the_stream_is_the_batch(
        model in any_model(), seed in any::<u64>(), sizes in prop::collection::vec(1..12usize, 1..5),
        inference in prop::sample::select(every_inference().map(|(inference, _)| inference).to_vec()),
    ) {
        // A tiny jitter, so that inducing points are the readings themselves.
        let model = Model { jitter: Jitter::Relative(1e-10), ..model };
        let settings = Settings {
            selection: Arc::new(ALL_READINGS),
            limits: NO_LIMITS,
            learning: Learning::default(),
            redundancy: -1.0,
            inference,
            likelihood_power: 1.0,
        };
        let mut process = StreamingGp::new(model.clone(), settings);
        let mut random = random(seed);
        let (mut all, mut all_targets, mut bounds) = (Points::new(2), Vec::new(), 0.0);
        for size in sizes {
            let (places, targets) = readings(&mut random, size, 2);
            let report = process.update(&places, &targets, &|| false).unwrap();
            bounds += report.bound;
            all = all.followed_by(&places);
            all_targets.extend(targets);
        }
        let (test, _) = readings(&mut random, 6, 2);
        let (evidence, expected_mean, expected) = dense::exact(
            &dense_covariance(&model.kernel, &all, &all),
            model.noise,
            &all_targets,
            &dense_covariance(&model.kernel, &all, &test),
            &dense_covariance(&model.kernel, &test, &test),
        );
        let (mean, covariance) = process.posterior().unwrap().predict_joint(&test);
        let prior = model.kernel.diagonal(&test)[0];
        // The jitter is 1e-10 of the prior variance, which is at most 3e3 times the noise.
        prop_assert!((bounds - evidence).abs() <= 1e-5 * (1.0 + evidence.abs()), "{bounds} {evidence}");
        for i in 0..6 {
            prop_assert!((mean[i] - expected_mean[i]).abs() <= 1e-5 * prior.sqrt().max(5.0), "{} {}", mean[i], expected_mean[i]);
            for j in 0..6 {
                prop_assert!((covariance[(i, j)] - expected[i][j]).abs() <= 1e-6 * prior);
            }
        }
    }
}

/// A place on one of two axes of a vector field.
#[derive(Clone, Debug)]
struct AxisPlaces {
    points: Points,
    axes: Vec<usize>,
}

impl Places for AxisPlaces {
    fn len(&self) -> usize {
        self.axes.len()
    }

    fn cleared(&self) -> Self {
        Self { points: self.points.cleared(), axes: Vec::new() }
    }

    fn push_from(&mut self, source: &Self, index: usize) {
        self.points.push_from(&source.points, index);
        self.axes.push(source.axes[index]);
    }

    fn compatible(&self, other: &Self) -> bool {
        self.points.compatible(&other.points)
    }

    fn is_finite(&self) -> bool {
        self.points.is_finite()
    }

    fn coordinates_per_place(&self) -> usize {
        self.points.coordinates_per_place()
    }

    fn coordinates(&self) -> Vec<f64> {
        self.points.coordinates()
    }

    fn with_coordinates(&self, coordinates: &[f64]) -> Self {
        Self { points: self.points.with_coordinates(coordinates), axes: self.axes.clone() }
    }
}

/// Intrinsic coregionalization: two correlated axes that share a squared exponential in space.
#[derive(Clone, Debug)]
struct TwoAxes {
    variances: [f64; 2],
    lengthscale: f64,
}

impl TwoAxes {
    const CORRELATION: f64 = 0.6;

    /// The covariance and its derivatives in the logarithms of both variances and the lengthscale.
    fn evaluate(&self, a: &AxisPlaces, i: usize, b: &AxisPlaces, j: usize) -> (f64, [f64; 3]) {
        let square: f64 = a.points.point(i).zip(b.points.point(j)).map(|(x, y)| (x - y).powi(2)).sum();
        let square = square / self.lengthscale.powi(2);
        let (p, q) = (a.axes[i], b.axes[j]);
        let correlation = if p == q { 1.0 } else { Self::CORRELATION };
        let value = correlation * (self.variances[p] * self.variances[q]).sqrt() * (-0.5 * square).exp();
        let share = |axis| 0.5 * value * f64::from(u8::from(p == axis) + u8::from(q == axis));
        (value, [share(0), share(1), value * square])
    }
}

impl Kernel for TwoAxes {
    type Places = AxisPlaces;

    fn names(&self) -> Vec<String> {
        ["variance_x", "variance_y", "lengthscale"].map(String::from).to_vec()
    }

    fn parameters(&self) -> Vec<f64> {
        vec![self.variances[0], self.variances[1], self.lengthscale]
    }

    fn set_parameters(&mut self, values: &[f64]) {
        (self.variances, self.lengthscale) = ([values[0], values[1]], values[2]);
    }

    fn add_column(&self, entries: Column<'_, AxisPlaces>, out: &mut [f64]) {
        let Column { rows, range, columns, column } = entries;
        range.zip(out).for_each(|(i, out)| *out += self.evaluate(rows, i, columns, column).0);
    }

    fn contract_column(&self, entries: Column<'_, AxisPlaces>, weights: &[f64], gradient: &mut [f64]) {
        let Column { rows, range, columns, column } = entries;
        for (i, weight) in range.zip(weights) {
            let (_, derivatives) = self.evaluate(rows, i, columns, column);
            gradient.iter_mut().zip(derivatives).for_each(|(entry, derivative)| *entry += weight * derivative);
        }
    }

    fn contract_column_in_places(&self, entries: Column<'_, AxisPlaces>, weights: &[f64], gradient: &mut [f64]) {
        let Column { rows, columns, column, .. } = entries;
        for (i, weight) in weights.iter().enumerate() {
            let slope = -weight * self.evaluate(rows, i, columns, column).0 / self.lengthscale.powi(2);
            let steps = rows.points.point(i).zip(columns.points.point(column)).map(|(x, y)| x - y);
            steps.enumerate().for_each(|(axis, step)| gradient[axis * rows.len() + i] += slope * step);
        }
    }

    fn length_along(&self, _: usize) -> Option<f64> {
        Some(self.lengthscale)
    }

    fn add_diagonal(&self, places: &AxisPlaces, out: &mut [f64]) {
        out.iter_mut().enumerate().for_each(|(i, out)| *out += self.evaluate(places, i, places, i).0);
    }

    fn contract_diagonal(&self, places: &AxisPlaces, weights: &[f64], gradient: &mut [f64]) {
        for (i, weight) in weights.iter().enumerate() {
            let (_, derivatives) = self.evaluate(places, i, places, i);
            gradient.iter_mut().zip(derivatives).for_each(|(entry, derivative)| *entry += weight * derivative);
        }
    }
}

/// Two rows per place, and their targets.
fn two_axis_readings(random: &mut ChaCha8Rng, count: usize) -> (AxisPlaces, Vec<f64>) {
    let (points, _) = readings(random, count, 2);
    let mut places = AxisPlaces { points: points.cleared(), axes: Vec::new() };
    let mut targets = Vec::new();
    for i in 0..count {
        let point: Vec<f64> = points.point(i).collect();
        for axis in 0..2 {
            places.points.push(&point);
            places.axes.push(axis);
            let sign = if axis == 0 { 2.0 } else { 1.0 };
            targets.push(sign * (1.2 * point[0] + 0.7 * point[1]).sin() + random.random_range(-0.1..0.1));
        }
    }
    (places, targets)
}

#[test]
fn a_kernel_over_points_and_axes_needs_no_change_of_the_engine() {
    let start = Model {
        kernel: TwoAxes { variances: [1.0, 1.0], lengthscale: 0.5 },
        noise: 0.5,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Relative(1e-9),
    };
    let mut settings = Settings {
        selection: Arc::new(ALL_READINGS),
        limits: NO_LIMITS,
        learning: Learning::default(),
        redundancy: -1.0,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    };
    settings.learning.max_evaluations = 40;
    let mut random = random(3);
    let (places, targets) = two_axis_readings(&mut random, 15);
    let mut learning = StreamingGp::new(start.clone(), settings.clone());
    let report = learning.update(&places, &targets, &|| false).unwrap();
    assert_eq!(report.inducing_points, 30);
    let learnt = learning.model.clone();
    assert!(report.learning.evaluations > 5);
    assert!(learnt.kernel.variances[0] > 1.3 * learnt.kernel.variances[1], "{learnt:?}");
    assert!(learnt.noise < 0.05, "{learnt:?}");

    // Then a stream under the learnt hyperparameters, against a dense Gaussian process.
    settings.learning.max_evaluations = 0;
    let mut process = StreamingGp::new(learnt.clone(), settings);
    let (more_places, more_targets) = two_axis_readings(&mut random, 10);
    let mut bounds = process.update(&places, &targets, &|| false).unwrap().bound;
    bounds += process.update(&more_places, &more_targets, &|| false).unwrap().bound;
    let all = places.followed_by(&more_places);
    let all_targets = [targets, more_targets].concat();
    let (test, _) = two_axis_readings(&mut random, 4);
    let covariance =
        |a: &AxisPlaces, b: &AxisPlaces| dense::matrix(a.len(), b.len(), |i, j| learnt.kernel.evaluate(a, i, b, j).0);
    let (evidence, expected_mean, expected) = dense::exact(
        &covariance(&all, &all),
        learnt.noise,
        &all_targets,
        &covariance(&all, &test),
        &covariance(&test, &test),
    );
    // The jitter is 1e-9 of the prior variance, which is some 1e3 times the noise.
    assert_near("evidence", bounds, evidence, 1e-3);
    let (mean, joint) = process.posterior().unwrap().predict_joint(&test);
    for i in 0..test.len() {
        assert_near("mean", mean[i], expected_mean[i], 1e-5);
        (0..test.len()).for_each(|j| assert_near("covariance", joint[(i, j)], expected[i][j], 1e-5));
    }

    // One axis alone tells something of the other, and a few inducing points will do.
    let sparse = Settings {
        selection: Arc::new(Vips { delta: 0.2, ..ALL_READINGS }),
        limits: NO_LIMITS,
        learning: Learning::default(),
        redundancy: 1e-6,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    };
    let mut process = StreamingGp::new(learnt, sparse);
    let report = process.update(&all, &all_targets, &|| false).unwrap();
    assert!(report.inducing_points < all.len() * 3 / 4, "{}", report.inducing_points);
    assert_eq!(report.selection.end, SelectionEnd::Converged);
    let axes = &process.posterior().unwrap().past.inducing.axes;
    assert!(axes.contains(&0) && axes.contains(&1));
}
