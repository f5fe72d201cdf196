//! A batch sparse Gaussian process on the same readings with the same inducing points: egobox-gp and magmap, in turns.
//!
//! `cargo run --release --manifest-path benches/egobox/Cargo.toml`; `taskset -c 0` before it keeps both on one core.
//!
//! Both start from the same lengthscale and noise and learn their hyperparameters by maximising the variational bound: egobox-gp by
//! a search without gradients, from one start; magmap by L-BFGS with exact gradients. The error on readings that
//! neither has seen says whether both did the job.

use egobox_gp::correlation_models::Matern52Corr;
use egobox_gp::{ParamTuning, SparseGaussianProcess, SparseMethod, ThetaTuning};
use linfa::prelude::{Dataset, Fit};
use ndarray::{Array1, Array2};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Places, Shape, Stationary};
use streaming_gp::learning::Learning;
use streaming_gp::likelihood::Likelihood;
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::selection::Limits;
use streaming_gp::selection::conditional_variance::ConditionalVariance;
use streaming_gp::streaming::{Settings, StreamingGp};

const READINGS: usize = 2000;
const SIZES: [usize; 3] = [50, 100, 200];
const REPETITIONS: usize = 3;
/// Side of the square, in lengthscales of the start.
const SIDE: f64 = 6.0;

#[path = "../../../crates/streaming-gp/benches/common/mod.rs"]
mod common;

fn main() -> Result<(), Box<dyn Error>> {
    let (places, targets) = centred(common::readings(0, READINGS, SIDE));
    let (test, expected) = centred(common::readings(READINGS, 1000, SIDE));
    println!("{READINGS} readings, learning included, medians of {REPETITIONS} runs in turns");
    println!(
        "{:>5} {:>14} {:>10} {:>7} {:>14} {:>10}",
        "M", "egobox-gp / s", "magmap / s", "ratio", "egobox-gp RMSE", "RMSE"
    );
    for size in SIZES {
        let mut seconds = [Vec::new(), Vec::new()];
        let mut errors = [0.0; 2];
        for _ in 0..REPETITIONS {
            let start = Instant::now();
            let process = ours(size, &places, &targets)?;
            seconds[1].push(start.elapsed().as_secs_f64());
            let posterior = process.posterior().ok_or("no posterior")?;
            let (means, _) = posterior.predict(&test);
            errors[1] = rmse(&means, &expected);

            let dataset = Dataset::new(array(&places), Array1::from(targets.clone()));
            let inducing = array(&posterior.past.inducing);
            let start = Instant::now();
            let theirs = SparseGaussianProcess::<f64, Matern52Corr>::params(
                Matern52Corr::default(),
                egobox_gp::Inducings::Located(inducing),
            )
            .theta_tuning(ThetaTuning::Full {
                init: Array1::from(vec![1.0; 1]),
                bounds: Array1::from(vec![(1e-2, 1e2); 1]),
            })
            .noise_variance(ParamTuning::Optimized { init: 1.0, bounds: (1e-6, 1e3) })
            .n_start(1)
            .sparse_method(SparseMethod::Vfe)
            .seed(Some(1))
            .fit(&dataset)?;
            seconds[0].push(start.elapsed().as_secs_f64());
            errors[0] = rmse(&theirs.predict(&array(&test))?.to_vec(), &expected);
        }
        let [theirs, ours] = seconds.map(median);
        println!(
            "{size:>5} {theirs:>14.3} {ours:>10.3} {:>7.1} {:>14.3} {:>10.3}",
            theirs / ours,
            errors[0],
            errors[1]
        );
    }
    Ok(())
}

/// egobox-gp knows no mean but zero.
fn centred((places, targets): (Points, Vec<f64>)) -> (Points, Vec<f64>) {
    (places, targets.iter().map(|target| target - 50.0).collect())
}

fn ours(size: usize, places: &Points, targets: &[f64]) -> Result<StreamingGp<Stationary>, Box<dyn Error>> {
    let settings = Settings {
        selection: Arc::new(ConditionalVariance { tolerance: 0.0 }),
        limits: Limits { max_inducing_points: size, least_share: 0.0 },
        learning: Learning { max_evaluations: 200, least_rows: 0, prior: None, noise_memory: 0.0, prior_rows: 0 },
        redundancy: -1.0,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    };
    let model = Model {
        kernel: Stationary { constant: None, shape: Shape::Matern52, variance: 100.0, lengthscales: vec![1.0; 2] },
        noise: 1.0,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Relative(1e-6),
    };
    let mut process = StreamingGp::new(model, settings);
    process.update(places, targets, &|| false)?;
    Ok(process)
}

fn array(points: &Points) -> Array2<f64> {
    Array2::from_shape_fn((points.len(), 2), |(row, axis)| points.axis(axis)[row])
}

fn rmse(found: &[f64], expected: &[f64]) -> f64 {
    let squares: f64 = found.iter().zip(expected).map(|(found, expected)| (found - expected).powi(2)).sum();
    (squares / expected.len() as f64).sqrt()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
