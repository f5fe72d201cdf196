//! `magmap-evaluate worlds`.

use std::io::{self, Write};

use clap::Args;
use magmap::cli::{Ending, Terminal};
use magmap::config::Config;
use magmap_evaluate::outliers::Outliers;
use magmap_evaluate::worlds::{self, WorldScores};
use serde_json::json;

use super::arguments::Common;

/// Arguments of the simulated worlds.
#[derive(Args)]
pub struct Arguments {
    /// Worlds of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    outliers: Outliers,
    #[command(flatten)]
    common: Common,
}

/// Maps worlds, and shows how well.
pub fn run(Arguments { seeds, outliers, common }: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let config = common.config(Config::default())?;
    let settings = worlds::settings();
    let seeds = 1..seeds + 1;
    let bar = terminal.bar("evaluating", settings.len() as u64);
    let mut scores = Vec::new();
    for setting in &settings {
        scores.push(worlds::run(setting, seeds.clone(), &config, *outliers)?);
        bar.inc(1);
    }
    bar.finish_and_clear();

    write_worlds(&mut io::stdout().lock(), &scores)?;
    let seconds: f64 = scores.iter().map(|world| world.seconds).sum();
    common.write_json(&config, json!({ "seconds": seconds, "seeds": seeds, "worlds": scores }))?;
    Ok(Ending::Done)
}

fn write_worlds(out: &mut impl Write, scores: &[WorldScores]) -> io::Result<()> {
    writeln!(
        out,
        "field sd  lengthscale  noise |    M |   RMSE   NLPD | coverage (least) | sd/RMSE (greatest) |      s"
    )?;
    for world in scores {
        writeln!(
            out,
            "{:8.0}  {:11.1}  {:5.1} | {:4.0} | {:6.3} {:6.3} |    {:.3} ({:.3}) |       {:4.2} ({:4.2})  | {:6.3}",
            world.setting.standard_deviation,
            world.setting.lengthscale,
            world.setting.noise,
            world.inducing_points.median,
            world.scores.rmse,
            world.scores.nlpd,
            world.scores.coverage,
            world.coverage_by_world.least,
            world.caution,
            world.caution_by_world.greatest,
            world.seconds,
        )?;
    }
    let least = scores.iter().map(|world| world.scores.coverage).fold(f64::NAN, f64::min);
    writeln!(out, "least coverage {least:.3}")?;
    let (weakest, others): (Vec<_>, Vec<_>) =
        scores.iter().partition(|world| world.setting.standard_deviation == worlds::STANDARD_DEVIATIONS[0]);
    let [weakest, others] =
        [weakest, others].map(|worlds| worlds.iter().map(|world| world.caution).fold(f64::NAN, f64::max));
    writeln!(out, "greatest sd/RMSE {weakest:.2} in the weakest fields, {others:.2} in the others")
}
