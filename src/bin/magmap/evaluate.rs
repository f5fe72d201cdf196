//! `magmap evaluate`.

use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use magmap::config::Config;
use magmap::evaluation::contest::{Run, Task};
use magmap::evaluation::drives::{self, BatchScores, Experiment, Material, Outcome};
use magmap::evaluation::methods::{Method, Named, methods};
use magmap::evaluation::metrics::Spread;
use magmap::evaluation::outliers::Outliers;
use magmap::evaluation::worlds::{self, WorldScores};
use magmap::export::report::write_json;
use magmap::gp::methods::Parameter;
use magmap::gp::report::{CeilingUsed, SelectionEnd};
use magmap::recording::aalto_csv::Magnetometer;
use serde::Serialize;

use crate::Ending;
use crate::settings::Settings;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  magmap evaluate stream --data aalto-magnetic                learns drive 3
  magmap evaluate stream --data aalto-magnetic --offsets 10   and its scatter
  magmap evaluate paths --data aalto-magnetic --config config/paper.toml
  magmap evaluate stream --data aalto-magnetic --method vips --method oips=0.9 --method fixed=100
  magmap evaluate worlds --set selection.delta=0.1            simulated worlds
  magmap evaluate stream --data aalto-magnetic --outliers 0.05 --set model.likelihood=student_t

NLPD and coverage take the noise into account. The columns 0.3 m and 0.5 m hold test readings that near to where \
the robot has been. `mean` and `nearest` are the errors of two maps that cost nothing: the mean of all readings so \
far, and the nearest of them.";

/// Runs an experiment whose answers are known, and scores the maps.
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Evaluate {
    #[command(subcommand)]
    experiment: Experiments,
}

#[derive(Subcommand)]
enum Experiments {
    /// Learns Aalto drive 3 in 20 contiguous batches and is tested on drives 1, 2, 4 and 5.
    Stream(DriveArguments),
    /// Learns Aalto drives 1, 2, 4 and 5 as one batch each and is tested on drive 3.
    Paths(DriveArguments),
    /// Maps simulated fields of many strengths and lengthscales, and is tested on a second drive through each.
    Worlds(WorldArguments),
}

#[derive(Args)]
struct DriveArguments {
    /// The folder that holds the sensors' folders of the Aalto data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Whose drives.
    #[arg(long, value_enum, default_value_t)]
    sensor: Sensor,
    /// A method, and a parameter where it is not the default; several are compared on the same batches.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", conflicts_with = "offsets", long_help = help_on_methods())]
    methods: Vec<Named>,
    /// The order of the readings that are learnt from.
    #[arg(long, value_enum, default_value_t)]
    order: Order,
    /// Seed of a shuffled order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs so often, with averaging cells shifted by equal parts of a cell, and adds medians and ranges.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    offsets: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct WorldArguments {
    /// Worlds of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    #[command(flatten)]
    settings: Settings,
    /// Also writes all numbers into this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Share of the readings that are learnt from, 0 to 1, which are made outliers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    outliers: f64,
    /// By how much an outlier is too strong, in microtesla.
    #[arg(long, value_name = "UT", default_value_t = 50.0)]
    outlier_size: f64,
}

/// The methods, each with its parameter.
fn help_on_methods() -> String {
    let mut help =
        "A method, and a parameter where it is not the default; several are compared on the same batches.\n".to_owned();
    for Method { name, summary, parameter, .. } in methods() {
        help.push_str(&format!("\n  {name}: {summary}"));
        if let Some(Parameter { symbol, meaning, .. }) = parameter {
            help.push_str(&format!("\n      {symbol}: {meaning}"));
        }
    }
    help
}

impl Common {
    fn outliers(&self) -> Outliers {
        Outliers { share: self.outliers, size: self.outlier_size }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Order {
    /// As they were recorded.
    #[default]
    Recorded,
    /// At random.
    Shuffled,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Sensor {
    #[default]
    Invensense,
    Nexus,
    Trivisio,
}

impl From<Sensor> for Magnetometer {
    fn from(sensor: Sensor) -> Self {
        match sensor {
            Sensor::Invensense => Self::Invensense,
            Sensor::Nexus => Self::Nexus,
            Sensor::Trivisio => Self::Trivisio,
        }
    }
}

impl Evaluate {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        match self.experiment {
            Experiments::Stream(arguments) => on_drives(Experiment::Stream, &arguments, terminal),
            Experiments::Paths(arguments) => on_drives(Experiment::Paths, &arguments, terminal),
            Experiments::Worlds(arguments) => on_worlds(&arguments, terminal),
        }
    }
}

/// What `--json` writes: the run with unshifted cells, and all runs at their end.
#[derive(Serialize)]
struct DriveNumbers<'a> {
    #[serde(flatten)]
    unshifted: &'a Outcome,
    config: &'a Config,
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets: Option<Offsets>,
}

/// The last batch over all offsets of the averaging cells.
#[derive(Serialize)]
struct Offsets {
    count: usize,
    #[serde(rename = "M")]
    inducing_points: Spread,
    rmse: Spread,
    nlpd: Spread,
    coverage: Spread,
    #[serde(rename = "coverage_0.5")]
    coverage_05: Spread,
    /// The worst, from batch 5 on, of the error less that of the mean of all readings so far.
    worst_against_mean: f64,
}

fn on_drives(experiment: Experiment, arguments: &DriveArguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let config = arguments.common.settings.load()?;
    let material = Material::read(experiment, &arguments.data, arguments.sensor.into(), config.evaluation.cut)?
        .spoilt(arguments.common.outliers());
    let material = match arguments.order {
        Order::Recorded => material,
        Order::Shuffled => material.shuffled(arguments.seed),
    };
    if !arguments.methods.is_empty() {
        return side_by_side(&material.task(&config, 0.0), &arguments.methods, &config, &arguments.common, terminal);
    }
    let bar = terminal.bar("evaluating", 0);
    let mut outcomes = Vec::new();
    for index in 0..arguments.offsets {
        let offset = f64::from(index) / f64::from(arguments.offsets);
        let outcome = drives::run(&material, &config, offset, |batch, batches| {
            bar.set_length(u64::from(arguments.offsets) * batches as u64);
            bar.set_position(u64::from(index) * batches as u64 + batch as u64);
        })?;
        outcomes.push(outcome);
    }
    bar.finish_and_clear();

    let unshifted = outcomes.first().context("there is at least one offset")?;
    let offsets = (outcomes.len() > 1).then(|| over_offsets(&outcomes));
    let mut out = io::stdout().lock();
    write_batches(&mut out, unshifted)?;
    if let Some(offsets) = &offsets {
        write_offsets(&mut out, offsets)?;
    }
    if let Some(file) = &arguments.common.json {
        write_json(file, &DriveNumbers { unshifted, config: &config, offsets })?;
    }
    Ok(Ending::Done)
}

/// What `--json` writes for several methods.
#[derive(Serialize)]
struct ContestNumbers<'a> {
    config: &'a Config,
    runs: &'a [Run],
}

fn side_by_side(
    task: &Task,
    methods: &[Named],
    config: &Config,
    common: &Common,
    terminal: &Terminal,
) -> anyhow::Result<Ending> {
    let batches = task.batches.len() as u64;
    let bar = terminal.bar("evaluating", methods.len() as u64 * batches);
    let runs: Vec<Run> = (0..)
        .zip(methods)
        .map(|(index, method)| task.run(method, config, |batch| bar.set_position(index * batches + batch as u64)))
        .collect();
    bar.finish_and_clear();
    write_runs(&mut io::stdout().lock(), &runs)?;
    if let Some(file) = &common.json {
        write_json(file, &ContestNumbers { config, runs: &runs })?;
    }
    Ok(Ending::Done)
}

fn write_runs(out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
    let width = runs.iter().map(|run| run.method.len()).fold(6, usize::max);
    writeln!(out, "{:width$} | batch    M |   RMSE   NLPD  cover |        s", "method")?;
    for run in runs {
        match run.last() {
            Some(last) => writeln!(
                out,
                "{:width$} | {:5} {:4} | {:6.3} {:6.3}  {:.3} | {:8.3}{}",
                run.method,
                last.batch,
                last.inducing_points,
                last.rmse,
                last.nlpd,
                last.coverage,
                run.seconds(),
                if run.capped() > 0 { format!("  capped in {} batches", run.capped()) } else { String::new() },
            )?,
            None => writeln!(out, "{:width$} |", run.method)?,
        }
        if let Some(refused) = &run.refused {
            writeln!(out, "{:width$} | ended early: {refused}", "")?;
        }
    }
    Ok(())
}

fn over_offsets(outcomes: &[Outcome]) -> Offsets {
    let spread = |value: fn(&BatchScores) -> f64| Spread::of(outcomes.iter().map(|outcome| value(outcome.last())));
    let judged = outcomes.iter().flat_map(|outcome| outcome.batches.iter().filter(|batch| batch.batch >= 5));
    Offsets {
        count: outcomes.len(),
        inducing_points: spread(|batch| batch.inducing_points as f64),
        rmse: spread(|batch| batch.rmse),
        nlpd: spread(|batch| batch.nlpd),
        coverage: spread(|batch| batch.coverage),
        coverage_05: spread(|batch| batch.coverage_05),
        worst_against_mean: judged.map(|batch| batch.rmse - batch.rmse_mean_predictor).fold(f64::NAN, f64::max),
    }
}

fn write_batches(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(
        out,
        "batch    M |  RMSE  NLPD cover |  0.3 m: RMSE  NLPD cover |  0.5 m: RMSE  NLPD cover |   mean nearest | {} | ceiling |      s",
        outcome.hyperparameter_names.iter().map(|name| format!("{name:>12}")).collect::<String>()
    )?;
    for batch in &outcome.batches {
        let hyperparameters: String = batch.hyperparameters.iter().map(|value| format!("{value:12.4}")).collect();
        writeln!(
            out,
            "{:5} {:4} | {:5.2} {:5.2} {:5.3} |        {:5.2} {:5.2} {:5.3} |        {:5.2} {:5.2} {:5.3} |  {:5.2}   {:5.2} | {hyperparameters} | {:>7} | {:6.3}{}",
            batch.batch,
            batch.inducing_points,
            batch.rmse,
            batch.nlpd,
            batch.coverage,
            batch.rmse_03,
            batch.nlpd_03,
            batch.coverage_03,
            batch.rmse_05,
            batch.nlpd_05,
            batch.coverage_05,
            batch.rmse_mean_predictor,
            batch.rmse_nearest_neighbour,
            ceiling(batch.ceiling),
            batch.seconds,
            if batch.selection_end == SelectionEnd::Capped { "  capped" } else { "" },
        )?;
    }
    writeln!(out, "all updates: {:.3} s", outcome.seconds)
}

fn ceiling(used: Option<CeilingUsed>) -> &'static str {
    match used {
        Some(CeilingUsed::Exact) => "exact",
        Some(CeilingUsed::Upper) => "upper",
        None => "-",
    }
}

fn write_offsets(out: &mut impl Write, offsets: &Offsets) -> io::Result<()> {
    writeln!(out, "last batch over {} offsets of the averaging cell: median (least to greatest)", offsets.count)?;
    let rows = [
        ("M", offsets.inducing_points),
        ("RMSE", offsets.rmse),
        ("NLPD", offsets.nlpd),
        ("coverage", offsets.coverage),
        ("coverage within 0.5 m", offsets.coverage_05),
    ];
    for (name, spread) in rows {
        writeln!(out, "  {name:22} {:8.3} ({:.3} to {:.3})", spread.median, spread.least, spread.greatest)?;
    }
    let worst = offsets.worst_against_mean;
    writeln!(out, "  worst RMSE from batch 5 on, less that of the mean of the readings so far: {worst:+.2}")
}

/// What `--json` writes for the worlds.
#[derive(Serialize)]
struct WorldNumbers<'a> {
    seconds: f64,
    seeds: Range<u64>,
    config: &'a Config,
    worlds: &'a [WorldScores],
}

fn on_worlds(arguments: &WorldArguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let config = arguments.common.settings.load()?;
    let settings = worlds::settings();
    let seeds = 1..arguments.seeds + 1;
    let bar = terminal.bar("evaluating", settings.len() as u64);
    let mut scores = Vec::new();
    for setting in &settings {
        scores.push(worlds::run(setting, seeds.clone(), &config, arguments.common.outliers())?);
        bar.inc(1);
    }
    bar.finish_and_clear();

    write_worlds(&mut io::stdout().lock(), &scores)?;
    if let Some(file) = &arguments.common.json {
        let seconds = scores.iter().map(|world| world.seconds).sum();
        write_json(file, &WorldNumbers { seconds, seeds, config: &config, worlds: &scores })?;
    }
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
    let worst = |keep: fn(&WorldScores) -> bool| {
        let ratios = scores.iter().filter(|world| keep(world)).map(|world| world.caution);
        ratios.fold(f64::NAN, f64::max)
    };
    let least = scores.iter().map(|world| world.scores.coverage).fold(f64::NAN, f64::min);
    writeln!(out, "least coverage {least:.3}")?;
    let weakest = worst(|world| world.setting.standard_deviation == worlds::STANDARD_DEVIATIONS[0]);
    let others = worst(|world| world.setting.standard_deviation != worlds::STANDARD_DEVIATIONS[0]);
    writeln!(out, "greatest sd/RMSE {weakest:.2} in the weakest fields, {others:.2} in the others")
}
