//! `magmap simulate banana`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use magmap_tools::cli::{Ending, UsageError};
use magmap_tools::simulation::banana::{self, BananaOptions};

/// Arguments of the crescents.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// The file, with a row of x, y and label (1 on the upper crescent, else 0) for each point.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Number of points.
    #[arg(long, value_name = "N", default_value_t = BananaOptions::default().points)]
    points: usize,
    /// Standard deviation of the points around the crescents, of radius 1.
    #[arg(long, default_value_t = BananaOptions::default().noise)]
    noise: f64,
    /// Seed of the draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Draws the points and writes them.
pub fn run(arguments: &Arguments) -> anyhow::Result<Ending> {
    let Arguments { output, points, noise, seed } = arguments;
    let options = BananaOptions { points: *points, noise: *noise };
    let points = banana::banana(&options, *seed).map_err(|error| UsageError(error.to_string()))?;
    banana::write_csv(output, &points).with_context(|| format!("cannot write {}", output.display()))?;
    writeln!(io::stdout().lock(), "{} points written to {}", points.len(), output.display())?;
    Ok(Ending::Done)
}
