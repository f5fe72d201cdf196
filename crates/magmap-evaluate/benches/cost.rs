//! The cost of an update against the number of inducing points and the size of the batch, with the measured exponents.
//!
//! `cargo bench --bench cost` prints a table; `cargo bench --bench cost -- docs/images/cost.png` also draws it. The largest model
//! takes minutes.

#[path = "../../streaming-gp/benches/common/mod.rs"]
mod common;

use common::{model, readings, side};
use magmap_tools::export::curves::{AxisScale, Chart, Charts, Curve};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use streaming_gp::inference::Inference;
use streaming_gp::learning::Learning;
use streaming_gp::selection::Limits;
use streaming_gp::selection::conditional_variance::ConditionalVariance;
use streaming_gp::streaming::{Settings, StreamingGp};

/// Numbers of inducing points, at batches of [`BATCH`] readings.
const SIZES: [usize; 7] = [50, 100, 200, 400, 800, 1500, 3000];
/// Sizes of batches, at [`SIZE`] inducing points.
const BATCHES: [usize; 5] = [100, 300, 1000, 3000, 10_000];
const BATCH: usize = 200;
const SIZE: usize = 200;
/// Evaluations of bound and gradient in an update.
const EVALUATIONS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` asks only whether it runs.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    println!(
        "seconds of an update with {EVALUATIONS} evaluations of bound and gradient: selection, learning, next state"
    );
    let of_size: Vec<(f64, f64)> = SIZES.iter().map(|&size| (size as f64, measured(size, BATCH))).collect();
    let of_batch: Vec<(f64, f64)> = BATCHES.iter().map(|&batch| (batch as f64, measured(SIZE, batch))).collect();
    // Where the cubic terms dominate, and where the readings do.
    let (in_size, in_batch) = (exponent(&of_size[3..]), exponent(&of_batch[2..]));
    println!(
        "grows with the power {in_size:.2} of the inducing points (from 400 on), {in_batch:.2} of the readings (from 1000 on)"
    );
    let Some(picture) = arguments.iter().find(|argument| argument.ends_with(".png")) else { return };
    let curve = |name: &str, points| Curve { name: name.to_owned(), points };
    let charts = Charts {
        title: format!("Seconds of an update with {EVALUATIONS} evaluations"),
        across: ("number", AxisScale::Logarithmic),
        charts: vec![Chart {
            quantity: "seconds",
            scale: AxisScale::Logarithmic,
            curves: vec![curve("of inducing points", of_size), curve("of readings", of_batch)],
        }],
    };
    if let Err(error) = charts.write(Path::new(picture)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Seconds of an update with `batch` readings that starts and ends with `size` inducing points: the minimum of several.
fn measured(size: usize, batch: usize) -> f64 {
    let side = side(size);
    let settings = Settings {
        selection: Arc::new(ConditionalVariance { tolerance: 0.0 }),
        limits: Limits { max_inducing_points: size, least_share: 0.0 },
        learning: Learning { max_evaluations: EVALUATIONS, ..Learning::default() },
        redundancy: -1.0,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    };
    let mut process = StreamingGp::new(model(), settings);
    let (places, targets) = readings(0, size, side);
    process.update(&places, &targets, &|| false).expect("a good batch");
    let (places, targets) = readings(size, batch, side);
    let repetitions = (200_000_000 / (size * size * (size + batch))).clamp(1, 7);
    let seconds = (0..repetitions).map(|_| {
        let mut process = process.clone();
        let start = Instant::now();
        let report = process.update(&places, &targets, &|| false).expect("a good batch");
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(
            (report.inducing_points, report.learning.evaluations),
            (size, EVALUATIONS),
            "the update is not the intended one"
        );
        seconds
    });
    let least = seconds.fold(f64::INFINITY, f64::min);
    println!("{size:>5} inducing points, {batch:>5} readings: {least:>10.4}");
    least
}

/// The slope of a straight line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let logarithms: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x.ln(), y.ln())).collect();
    let mean_x = logarithms.iter().map(|&(x, _)| x).sum::<f64>() / count;
    let mean_y = logarithms.iter().map(|&(_, y)| y).sum::<f64>() / count;
    let products: f64 = logarithms.iter().map(|&(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let squares: f64 = logarithms.iter().map(|&(x, _)| (x - mean_x).powi(2)).sum();
    products / squares
}
