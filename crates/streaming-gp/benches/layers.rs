//! How fast each layer of the Gaussian process is, on one core.

mod common;

use common::{FieldKernel, model, readings, side};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use streaming_gp::{
    AxesReading, GreedyVariance, Inference, Jitter, Learning, Likelihood, Limits, Model, Places, Points, Posterior,
    Rows, Settings, StreamingGp, VectorField, Vips,
};

/// Readings in a batch, as the published experiment cuts them.
const READINGS: usize = 469;

/// Inducing points in use.
const SIZES: [usize; 3] = [50, 200, 800];

/// A map with `size` inducing points that has seen as many readings.
fn posterior(size: usize, side: f64) -> Posterior<FieldKernel> {
    let (places, targets) = readings(0, size, side);
    let rows = Rows::nested(&places, &targets, None, &places);
    let whitened = rows.whiten(&model()).expect("positive definite");
    Posterior::new(model(), rows.into_past(whitened)).expect("positive definite")
}

fn bound_and_gradient(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bound_and_gradient");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for size in SIZES {
        let old = size * 3 / 4;
        let posterior = posterior(old, side(size));
        let (places, targets) = readings(old, READINGS, side(size));
        let additional = places.select(0..size - old);
        let rows = Rows::nested(&places, &targets, Some(&posterior.past), &additional);
        let model = model();
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let whitened = rows.whiten(black_box(&model)).expect("positive definite");
                let found = (whitened.bound(), rows.gradient(&model, &whitened));
                rows.recycle(whitened);
                found
            });
        });
    }
    group.finish();
}

/// Adding readings one by one up to a quarter of the inducing points, with the bound after each.
fn selection(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("selection");
    group.sample_size(20);
    for size in SIZES {
        let added = size / 4;
        let posterior = posterior(size - added, side(size));
        let (places, targets) = readings(size, READINGS, side(size));
        let model = model();
        group.throughput(Throughput::Elements(added as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let past = Some(&black_box(&posterior).past);
                let mut greedy = GreedyVariance::new(&model, &places, &targets, past).expect("positive definite");
                for _ in 0..added {
                    let (index, _) = greedy.points.next(0.0).expect("readings are left");
                    greedy.add(index);
                    black_box(greedy.bound());
                }
            });
        });
    }
    group.finish();
}

/// A whole update: selection, 20 evaluations of learning, next state.
fn update(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("update");
    group.throughput(Throughput::Elements(READINGS as u64)).sample_size(10);
    for size in SIZES {
        let settings = Settings {
            selection: Arc::new(Vips { delta: 0.0, guards: true, exact_limit: 10_000 }),
            limits: Limits { max_inducing_points: size, least_share: 1e-6 },
            learning: Learning { max_evaluations: 20, ..Learning::default() },
            redundancy: 1e-6,
            inference: Inference::Variational,
            likelihood_power: 1.0,
        };
        let mut process = StreamingGp::new(model(), settings);
        let old = size * 3 / 4;
        for first in (0..old).step_by(READINGS) {
            let (places, targets) = readings(first, READINGS.min(old - first), side(size));
            process.update(&places, &targets, &|| false).expect("a good batch");
        }
        let (places, targets) = readings(old, READINGS, side(size));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter_batched(
                || process.clone(),
                |mut process| process.update(&places, &targets, &|| false).expect("a good batch"),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// An update of three axes as above, with sources of the field below the sensor only, and on both sides.
fn update_of_axes(criterion: &mut Criterion) {
    const PLACES: usize = 150;
    let mut group = criterion.benchmark_group("update_of_axes");
    group.throughput(Throughput::Elements(PLACES as u64)).sample_size(10);
    for size in SIZES {
        let rows = |first: usize| {
            let (points, strengths) = readings(first, PLACES, side(size / 3));
            let reading = |index: usize| {
                let place: Vec<f64> = points.point(index).collect();
                let field = [0.3, -0.2, 1.0].map(|share| share * strengths[index]);
                let orientation = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
                AxesReading { position: [place[0], place[1], 0.0], field, orientation, speed: 0.5 }
            };
            AxesReading::rows(&(0..PLACES).map(reading).collect::<Vec<_>>())
        };
        for (sides, variance_above) in [("below", None), ("both", Some(40.0))] {
            let kernel = VectorField {
                constant: 1000.0,
                variance: 110.0,
                variance_above,
                lengthscale: 0.94,
                plane: 0.0,
                hard_iron: 5.0,
                speed_bias: 0.0,
                bias_covariance: None,
            };
            let (noise, mean, likelihood, jitter) = (1.0, 0.0, Likelihood::Gaussian, Jitter::Relative(1e-6));
            let settings = Settings {
                selection: Arc::new(Vips { delta: 0.0, guards: true, exact_limit: 10_000 }),
                limits: Limits { max_inducing_points: size, least_share: 1e-6 },
                learning: Learning { max_evaluations: 20, ..Learning::default() },
                redundancy: 1e-6,
                inference: Inference::Variational,
                likelihood_power: 1.0,
            };
            let mut process = StreamingGp::new(Model { kernel, noise, mean, likelihood, jitter }, settings);
            for first in (0..size / 4).step_by(PLACES) {
                let (places, targets) = rows(first);
                process.update(&places, &targets, &|| false).expect("a good batch");
            }
            let (places, targets) = rows(size);
            group.bench_function(BenchmarkId::new(sides, size), |bencher| {
                bencher.iter_batched(
                    || process.clone(),
                    |mut process| process.update(&places, &targets, &|| false).expect("a good batch"),
                    BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

fn raster(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("raster");
    let mut cells = Points::new(2);
    (0..100).for_each(|row| (0..100).for_each(|column| cells.push(&[0.1 * f64::from(column), 0.1 * f64::from(row)])));
    group.throughput(Throughput::Elements(cells.len() as u64)).sample_size(20);
    for size in SIZES {
        let posterior = posterior(size, 10.0);
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| posterior.predict(black_box(&cells)));
        });
    }
    group.finish();
}

// No pictures: they need a font of the system.
criterion_group! {
    name = layers;
    config = Criterion::default().without_plots();
    targets = bound_and_gradient, selection, update, update_of_axes, raster
}
criterion_main!(layers);
