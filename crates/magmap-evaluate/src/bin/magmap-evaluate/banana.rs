//! `magmap-evaluate banana`.

use std::io::{self, Write};

use clap::Args;
use magmap::cli::Ending;
use magmap::config::Config;
use magmap::export::report::write_json;
use magmap_evaluate::banana::{self, Experiment, Outcome, Scores};
use serde::Serialize;

use super::arguments::Common;

/// Arguments of the crescents.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    /// Points that are learnt from.
    #[arg(long, value_name = "N", default_value_t = Experiment::default().points, value_parser = count)]
    points: usize,
    /// Points that are tested on, of another draw.
    #[arg(long, value_name = "N", default_value_t = Experiment::default().test_points, value_parser = count)]
    test_points: usize,
    /// Standard deviation of the points around the crescents, of radius 1.
    #[arg(long, default_value_t = Experiment::default().noise)]
    noise: f64,
    /// Seed of the draws.
    #[arg(long, default_value_t = Experiment::default().seed)]
    seed: u64,
    /// Batches, from left to right.
    #[arg(long, value_name = "N", default_value_t = Experiment::default().batches, value_parser = count)]
    batches: usize,
    /// Most inducing points.
    #[arg(long, value_name = "N", default_value_t = Experiment::default().inducing_points, value_parser = count)]
    inducing_points: usize,
    /// Points of each batch that are remembered.
    #[arg(long, value_name = "N", default_value_t = Experiment::default().memory)]
    memory: usize,
    #[command(flatten)]
    common: Common,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=100_000).contains(&count) => Ok(count),
        _ => Err("expected a number from 1 to 100000".into()),
    }
}

/// What `--json` writes.
#[derive(Serialize)]
struct Numbers<'a> {
    config: &'a Config,
    experiment: &'a Experiment,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Learns the crescents batch by batch, and shows how well.
pub fn run(arguments: &Arguments) -> anyhow::Result<Ending> {
    let config = arguments.common.settings.load()?;
    let experiment = Experiment {
        points: arguments.points,
        test_points: arguments.test_points,
        noise: arguments.noise,
        seed: arguments.seed,
        batches: arguments.batches,
        inducing_points: arguments.inducing_points,
        memory: arguments.memory,
    };
    let outcome = banana::run(&experiment, &config)?;
    write_outcome(&mut io::stdout().lock(), &outcome)?;
    if let Some(file) = &arguments.common.json {
        write_json(file, &Numbers { config: &config, experiment: &experiment, outcome: &outcome })?;
    }
    Ok(Ending::Done)
}

fn write_outcome(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(out, "batch  points    M  memory |  error   NLPD | first region  seen |      s")?;
    let mut row = |batch: &str, scores: &Scores| {
        let Scores {
            points,
            inducing_points,
            memory,
            error_rate,
            first_error_rate,
            seen_error_rate,
            nlpd,
            seconds,
            ..
        } = scores;
        writeln!(
            out,
            "{batch:>5}  {points:6} {inducing_points:4}  {memory:6} |  {error_rate:.3} {nlpd:6.3} |        {first_error_rate:.3} {seen_error_rate:.3} | {seconds:6.3}",
        )
    };
    for (index, scores) in outcome.batches.iter().enumerate() {
        row(&(index + 1).to_string(), scores)?;
    }
    row("whole", &outcome.whole)
}
