//! `magmap-evaluate stream` and `paths`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use magmap::config::Config;
use magmap::field::map::SensorBias;
use magmap_evaluate::drives::{self, BatchScores, Drives, DrivesOutcome, Experiment, Material};
use magmap_evaluate::methods::Method;
use magmap_evaluate::metrics::Spread;
use magmap_evaluate::outliers::Outliers;
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::recording::aalto_csv::Magnetometer;
use nalgebra::Vector3;
use serde::Serialize;
use streaming_gp::{CeilingUsed, SelectionEnd};

use super::arguments::{Common, help_on_methods};
use super::comparison::side_by_side;

/// Arguments of the experiments on drives.
#[derive(Args)]
pub struct Arguments {
    /// The folder that holds the sensors' folders of the Aalto data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The sensor whose drives are used.
    #[arg(long, value_enum, default_value_t)]
    sensor: Magnetometer,
    /// Numbers of the drives to learn from, instead of those of the experiment.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    learn: Vec<u32>,
    /// Numbers of the drives to test on, instead of those of the experiment. Of one that is learnt from too, a fifth is left for the test.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    test: Vec<u32>,
    /// A method, and a parameter where it is not the default; several are compared on the same batches.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", conflicts_with = "offsets", long_help = help_on_methods())]
    methods: Vec<Method>,
    /// The order of the readings that are learnt from.
    #[arg(long, value_enum, default_value_t)]
    order: Order,
    /// Seed of a shuffled order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of runs, with averaging cells shifted by equal parts of a cell; several add medians and ranges.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    offsets: u32,
    /// Added to every reading: a hard iron along the x and y axes of the sensor, in microtesla.
    #[arg(long, value_name = "X,Y", default_value = "0,0", value_parser = hard_iron, allow_hyphen_values = true)]
    hard_iron: Vector3<f64>,
    #[command(flatten)]
    outliers: Outliers,
    #[command(flatten)]
    common: Common,
}

fn hard_iron(text: &str) -> Result<Vector3<f64>, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let components = text.split_once(',').and_then(|(x, y)| Some(Vector3::new(number(x)?, number(y)?, 0.0)));
    components.ok_or_else(|| "expected two numbers, such as 15,-10".into())
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Order {
    /// In recorded order.
    #[default]
    Recorded,
    /// At random.
    Shuffled,
}

#[derive(Serialize)]
struct DriveNumbers<'a> {
    #[serde(flatten)]
    unshifted: &'a DrivesOutcome,
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

/// Learns from drives, and shows how well.
pub fn run(experiment: Experiment, arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { data, sensor, learn, test, methods, order, seed, offsets, hard_iron, outliers, common } = arguments;
    let config = match methods.is_empty() {
        true => common.config_of_any_field(Config::default())?,
        false => common.config(Config::default())?,
    };
    let of_experiment = experiment.drives();
    let chosen = |numbers: &[u32], others: Vec<u32>| if numbers.is_empty() { others } else { numbers.to_vec() };
    let drives = Drives { learn: chosen(learn, of_experiment.learn), test: chosen(test, of_experiment.test) };
    let material = Material::read(experiment, &drives, data, *sensor, &config)?;
    let material = material.with_hard_iron(*hard_iron).with_outliers(*outliers);
    let material = match order {
        Order::Recorded => material,
        Order::Shuffled => material.shuffled(*seed),
    };
    if !methods.is_empty() {
        let tasks = vec![(format!("{experiment:?}").to_lowercase(), material.task(&config, 0.0))];
        return side_by_side(tasks, methods, &[], &config, common, terminal);
    }
    let bar = terminal.bar("evaluating", 0);
    let outcome = |index: u32| {
        drives::run(&material, &config, f64::from(index) / f64::from(*offsets), |batch, batches| {
            bar.set_length(u64::from(*offsets) * batches as u64);
            bar.set_position(u64::from(index) * batches as u64 + batch as u64);
        })
    };
    let outcomes = (0..*offsets).map(outcome).collect::<anyhow::Result<Vec<DrivesOutcome>>>()?;
    bar.finish_and_clear();

    let unshifted = outcomes.first().context("there is at least one offset")?;
    let offsets = (outcomes.len() > 1).then(|| over_offsets(&outcomes));
    let mut out = io::stdout().lock();
    write_batches(&mut out, unshifted)?;
    if let Some(offsets) = &offsets {
        write_offsets(&mut out, offsets)?;
    }
    common.write_json(&config, DriveNumbers { unshifted, offsets })?;
    Ok(Ending::Done)
}

fn over_offsets(outcomes: &[DrivesOutcome]) -> Offsets {
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

fn write_batches(out: &mut impl Write, outcome: &DrivesOutcome) -> io::Result<()> {
    writeln!(
        out,
        "batch    M |  RMSE  NLPD cover |  0.3 m: RMSE  NLPD cover |  0.5 m: RMSE  NLPD cover |   mean nearest | {} | ceiling |      s",
        outcome.hyperparameter_names.iter().map(|name| format!("{name:>12}")).collect::<String>()
    )?;
    for scores in &outcome.batches {
        let BatchScores { batch, inducing_points, rmse, nlpd, coverage, seconds, .. } = scores;
        let BatchScores { rmse_03, nlpd_03, coverage_03, rmse_05, nlpd_05, coverage_05, .. } = scores;
        let (of_mean, of_nearest) = (scores.rmse_mean_predictor, scores.rmse_nearest_neighbour);
        let hyperparameters: String = scores.hyperparameters.iter().map(|value| format!("{value:12.4}")).collect();
        let ceiling = match scores.ceiling {
            Some(CeilingUsed::Exact) => "exact",
            Some(CeilingUsed::Upper) => "upper",
            None => "-",
        };
        let capped = if scores.selection_end == Some(SelectionEnd::Capped) { "  capped" } else { "" };
        write!(out, "{batch:5} {inducing_points:4} | {rmse:5.2} {nlpd:5.2} {coverage:5.3} |")?;
        write!(out, "        {rmse_03:5.2} {nlpd_03:5.2} {coverage_03:5.3} |")?;
        write!(out, "        {rmse_05:5.2} {nlpd_05:5.2} {coverage_05:5.3} |  {of_mean:5.2}   {of_nearest:5.2} |")?;
        writeln!(out, " {hyperparameters} | {ceiling:>7} | {seconds:6.3}{capped}")?;
    }
    if let Some(SensorBias { hard_iron: [x, y, z], hard_iron_sd: [sd_x, sd_y, sd_z], .. }) = outcome.last().sensor_bias
    {
        writeln!(
            out,
            "hard iron of the sensor, in microtesla: {x:.2}, {y:.2}, {z:.2} (standard deviations {sd_x:.2}, {sd_y:.2}, {sd_z:.2})"
        )?;
    }
    if let Some(delay) = &outcome.delay {
        writeln!(out, "{delay}")?;
    }
    writeln!(out, "all updates: {:.3} s", outcome.seconds)
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
