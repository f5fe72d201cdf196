//! Learns a sine wave batch by batch and prints how the model grows: `cargo run --release -p streaming-gp --example sine`.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use streaming_gp::{
    Inference, Jitter, Learning, Likelihood, Limits, Model, Points, Settings, Shape, Stationary, StreamingGp, Vips,
};

const BATCHES: usize = 12;
const READINGS: usize = 50;
/// Length of a batch; the wave is one of period 2 pi.
const WIDTH: f64 = 2.0;
/// Standard deviation of the noise, uniform between -0.2 and 0.2.
const NOISE: f64 = 0.2 / 1.732;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // What is known before the first batch: hyperparameters to start learning from.
    let model = Model {
        kernel: Stationary { constant: Some(1.0), shape: Shape::Matern52, variance: 1.0, lengthscales: vec![1.0] },
        noise: 0.1,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Relative(1e-6),
    };
    let settings = Settings {
        selection: std::sync::Arc::new(Vips { delta: 0.05, guards: true, exact_limit: 1000 }),
        limits: Limits { max_inducing_points: 500, least_share: 1e-6 },
        learning: Learning { max_evaluations: 60, least_rows: 10, ..Learning::default() },
        redundancy: 1e-6,
        inference: Inference::Variational,
        likelihood_power: 1.0,
    };
    let mut process = StreamingGp::new(model, settings);
    let mut random = ChaCha8Rng::seed_from_u64(1);

    println!(
        "The noise has a standard deviation of {NOISE:.3}; the error is that of the mean over all that was seen.\n"
    );
    println!(
        "{:>5} {:>9} {:>6} {:>7} {:>8} {:>11} {:>6} {:>6}",
        "batch", "readings", "added", "points", "variance", "lengthscale", "noise", "error"
    );
    // The first half of the batches explores, the second half comes back over the same ground.
    for batch in 0..BATCHES {
        let start = WIDTH * (batch % (BATCHES / 2)) as f64;
        let mut places = Points::new(1);
        let mut targets = Vec::new();
        for _ in 0..READINGS {
            let x = start + random.random_range(0.0..WIDTH);
            places.push(&[x]);
            targets.push(x.sin() + random.random_range(-0.2..0.2));
        }
        // The batch may be dropped after this: the model holds all it needs of it.
        let report = process.update(&places, &targets, &|| false)?;

        let seen = WIDTH * (batch + 1).min(BATCHES / 2) as f64;
        let posterior = process.posterior().ok_or("no posterior after an update")?;
        let test: Vec<[f64; 1]> = (0..200).map(|i| [seen * f64::from(i) / 199.0]).collect();
        let (mean, _) = posterior.predict(&Points::from_arrays(&test));
        let squares: f64 = test.iter().zip(&mean).map(|([x], mean)| (mean - x.sin()).powi(2)).sum();
        let stationary = &posterior.model.kernel;
        println!(
            "{:>5} {:>9} {:>6} {:>7} {:>8.2} {:>11.2} {:>6.3} {:>6.3}",
            batch + 1,
            READINGS * (batch + 1),
            report.selection.added,
            report.inducing_points,
            stationary.variance,
            stationary.lengthscales[0],
            posterior.model.noise.sqrt(),
            (squares / test.len() as f64).sqrt(),
        );
    }
    Ok(())
}
