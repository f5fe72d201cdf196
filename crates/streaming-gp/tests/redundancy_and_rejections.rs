//! Points that add no information are removed without a change of the map, and a batch that is rejected changes nothing.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use std::sync::Arc;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Places, Shape, Stationary};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::Likelihood;
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::report::LearningEnd;
use streaming_gp::selection::Limits;
use streaming_gp::selection::vips::Vips;
use streaming_gp::streaming::{Error, Settings, StreamingGp};

fn gaussian(random: &mut ChaCha8Rng) -> f64 {
    random.sample(StandardNormal)
}

/// A surface with bumps, read with noise.
fn noisy(x: f64, y: f64, random: &mut ChaCha8Rng) -> f64 {
    50.0 + 8.0 * (2.1 * x).sin() * (1.7 * y).cos() + 5.0 * (0.9 * x - 1.3 * y).sin() + 0.5 * gaussian(random)
}

/// A random walk in a rectangle of 4 by 3 with a step of 0.06, and the target at each place.
fn walk(seed: u64, count: usize, target: impl Fn(f64, f64, &mut ChaCha8Rng) -> f64) -> (Points, Vec<f64>) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut x, mut y, mut heading) = (2.0, 1.5, 0.3f64);
    let (mut places, mut targets) = (Points::new(2), Vec::new());
    for _ in 0..count {
        heading += 0.3 * gaussian(&mut random);
        (x, y) = (x + 0.06 * heading.cos(), y + 0.06 * heading.sin());
        if !(0.0..4.0).contains(&x) || !(0.0..3.0).contains(&y) {
            heading += std::f64::consts::FRAC_PI_2;
            (x, y) = (x.clamp(0.0, 4.0), y.clamp(0.0, 3.0));
        }
        places.push(&[x, y]);
        targets.push(target(x, y, &mut random));
    }
    (places, targets)
}

fn field_model(lengthscale: f64) -> Model<Stationary> {
    Model {
        kernel: Stationary {
            constant: Some(500.0),
            shape: Shape::Matern52,
            variance: 100.0,
            lengthscales: vec![lengthscale],
        },
        noise: 0.3,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Relative(1e-6),
    }
}

fn settings(max_evaluations: usize, redundancy: f64) -> Settings<Stationary> {
    settings_with(0.02, max_evaluations, redundancy)
}

fn settings_with(delta: f64, max_evaluations: usize, redundancy: f64) -> Settings<Stationary> {
    Settings {
        selection: Arc::new(Vips { delta, guards: true, exact_limit: 10_000 }),
        limits: Limits { max_inducing_points: 500, least_share: redundancy.max(0.0) },
        learning: Learning { max_evaluations, ..Learning::default() },
        redundancy,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    }
}

#[test]
fn dropping_redundant_points_keeps_the_map() {
    // A long lengthscale makes neighbours redundant; nothing is dropped on the way.
    let (places, targets) = walk(3, 120, noisy);
    let mut process = StreamingGp::new(field_model(0.8), settings_with(0.0, 0, -1.0));
    process.update(&places, &targets, &|| false).unwrap();
    let full = process.posterior().unwrap().as_ref().clone();
    assert_eq!(full.past.inducing.len(), 120);
    let (small, dropped) = full.clone().without_redundant(1e-4).unwrap();
    assert!(dropped >= 10, "only {dropped} dropped");
    assert_eq!(small.past.inducing.len() + dropped, 120);
    let predict = |posterior: &Posterior<Stationary>| posterior.predict(&places);
    let ((mean, variance), (small_mean, small_variance)) = (predict(&full), predict(&small));
    for i in 0..120 {
        // What was dropped was known from the rest to 1e-4 of the prior variance of 600, 0.06 = 0.24^2, with noise 0.55.
        assert!((mean[i] - small_mean[i]).abs() < 0.1, "{} {}", mean[i], small_mean[i]);
        assert!((variance[i] - small_variance[i]).abs() < 0.06, "{} {}", variance[i], small_variance[i]);
    }
    assert_eq!(full.without_redundant(-1.0).unwrap().1, 0);
}

#[test]
fn a_lengthscale_that_grows_makes_points_redundant() {
    let mut process = StreamingGp::new(field_model(0.15), settings(60, 1e-4));
    let mut dropped = 0;
    for seed in 0..4 {
        let (places, targets) = walk(seed, 100, |x, y, random| {
            50.0 + 4.0 * (0.5 * x).sin() + 3.0 * (0.4 * y).cos() + 0.5 * gaussian(random)
        });
        dropped += process.update(&places, &targets, &|| false).unwrap().dropped;
    }
    assert!(process.model.kernel.lengthscales[0] > 0.5, "{:?}", &process.model);
    assert!(dropped > 0);
    let (mean, _) = process.posterior().unwrap().predict(&Points::from_arrays(&[[2.0, 1.5]]));
    let expected = 50.0 + 4.0 * 1f64.sin() + 3.0 * 0.6f64.cos();
    assert!((mean[0] - expected).abs() < 0.5, "{} {expected}", mean[0]);
}

#[test]
fn rejected_batches_leave_the_model_bit_identical() {
    let (places, targets) = walk(3, 60, noisy);
    let mut process = StreamingGp::new(field_model(0.7), settings(10, 1e-6));
    process.update(&places, &targets, &|| false).unwrap();
    // Every number is printed so that it reads back to the same bits.
    let before = format!("{process:?}");
    let mut three_dimensional = Points::new(3);
    three_dimensional.push(&[0.0; 3]);
    let nowhere = Points::from_arrays(&[[f64::NAN, 0.0]]);
    let infinite = Points::from_arrays(&[[0.0, f64::INFINITY]]);
    let here = Points::from_arrays(&[[0.0, 0.0]]);
    let mut reject = |places: &Points, targets: &[f64]| {
        let error = process.update(places, targets, &|| false).unwrap_err();
        assert_eq!(format!("{process:?}"), before);
        error
    };
    assert_eq!(reject(&places.cleared(), &[]), Error::Empty);
    assert_eq!(reject(&here, &[1.0, 2.0]), Error::Lengths { places: 1, targets: 2 });
    assert_eq!(reject(&three_dimensional, &[1.0]), Error::Dimension);
    assert_eq!(reject(&nowhere, &[1.0]), Error::NotFinite);
    assert_eq!(reject(&infinite, &[1.0]), Error::NotFinite);
    assert_eq!(reject(&here, &[f64::NAN]), Error::NotFinite);
    assert_eq!(reject(&here, &[f64::NEG_INFINITY]), Error::NotFinite);
    let report = process.update(&here, &[50.0], &|| false).unwrap();
    assert_ne!(report.learning.end, LearningEnd::Failed);
}
