//! `magmap-evaluate banana`.

use std::io::{self, Write};

use clap::Args;
use magmap::config::Config;
use magmap_evaluate::banana::{self, BananaOutcome, Experiment, Scores};
use magmap_tools::cli::Ending;

use super::arguments::Common;

/// Arguments of the crescents.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Arguments {
    #[command(flatten)]
    experiment: Experiment,
    #[command(flatten)]
    common: Common,
}

/// Learns the crescents batch by batch, and shows how well.
pub fn run(Arguments { experiment, common }: &Arguments) -> anyhow::Result<Ending> {
    let config = common.settings.load_over(Config::default())?;
    let outcome = banana::run(experiment, &config)?;
    write_outcome(&mut io::stdout().lock(), &outcome)?;
    common.write_json(&config, &outcome)?;
    Ok(Ending::Done)
}

fn write_outcome(out: &mut impl Write, outcome: &BananaOutcome) -> io::Result<()> {
    writeln!(out, "batch  points    M  memory |  error   NLPD | first region  seen |      s")?;
    let batches = (1..).zip(&outcome.batches).map(|(batch, scores): (usize, _)| (batch.to_string(), scores));
    for (batch, scores) in batches.chain([("whole".to_owned(), &outcome.whole)]) {
        let Scores { points, inducing_points, memory, error_rate, first_error_rate, seen_error_rate, nlpd, .. } =
            scores;
        writeln!(
            out,
            "{batch:>5}  {points:6} {inducing_points:4}  {memory:6} |  {error_rate:.3} {nlpd:6.3} |        {first_error_rate:.3} {seen_error_rate:.3} | {:6.3}",
            scores.seconds
        )?;
    }
    Ok(())
}
