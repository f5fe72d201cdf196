//! `magmap-evaluate slam`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use magmap_evaluate::metrics::Spread;
use magmap_evaluate::slam::{OdometryErrors, Row, TruePath};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::export::json::write_json;
use magmap_tools::recording::aalto_csv::Magnetometer;

/// Standard deviations of the drift of odometry's heading, in radians per metre.
const DRIFTS: [f64; 2] = [0.01, 0.03];

#[derive(Args)]
pub struct Arguments {
    /// Folder of the Aalto data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Runs of each path, each with its own errors of odometry.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Also writes all numbers into this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Corrects paths with errors of odometry, and shows how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { data, seeds, json } = arguments;
    let path = TruePath::of_drives(data, Magnetometer::Invensense)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "                  |   errors of the path in metres             | in    | map on drive 3     |\n\
         world  drift seed | odometry  online  smoothed  worst         | 95 %  | smoothed  true path | seconds"
    )?;
    let mut rows = Vec::new();
    let bar = terminal.bar("smoothing", 2 * seeds);
    for drift in DRIFTS {
        let first = rows.len();
        for seed in 0..*seeds {
            rows.push(path.run(OdometryErrors::drifting(drift), seed)?);
            bar.inc(1);
            write_row(&mut out, &rows[rows.len() - 1])?;
        }
        let spread = |value: fn(&Row) -> f64| Spread::of(rows[first..].iter().map(value));
        let [odometry, online, smoothed] =
            [|row: &Row| row.odometry, |row: &Row| row.online, |row: &Row| row.smoothed].map(spread);
        writeln!(
            out,
            "median, greatest  | {:.3} {:.3}, {:.3} {:.3}, {:.3} {:.3}",
            odometry.median, odometry.greatest, online.median, online.greatest, smoothed.median, smoothed.greatest
        )?;
    }
    bar.finish_and_clear();
    if let Some(file) = json {
        write_json(file, &rows)?;
    }
    Ok(Ending::Done)
}

fn write_row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let Row { world, errors, seed, odometry, online, smoothed, worst, in_95, seconds, .. } = row;
    let Row { map_rmse, map_rmse_true_path, .. } = row;
    writeln!(
        out,
        "{world:6} {:5.2} {seed:4} | {odometry:8.3} {online:7.3} {smoothed:9.3} {worst:6.3}         | {in_95:5.2} | {map_rmse:8.2} \
         {map_rmse_true_path:10.2} | {seconds:7.1}",
        errors.drift
    )
}
