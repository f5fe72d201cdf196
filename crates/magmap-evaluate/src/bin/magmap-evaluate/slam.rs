//! `magmap-evaluate slam`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use magmap_evaluate::metrics::Spread;
use magmap_evaluate::slam::{Page, Row, Run, TruePath, World};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::export::json::write_json;

use super::comparison::how_it_was_made;

#[derive(Args)]
pub struct Arguments {
    /// Folder of the Aalto data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Worlds, by default all.
    #[arg(long = "world", value_name = "NAME", value_enum)]
    worlds: Vec<World>,
    /// Runs of each path, each with its own errors of odometry.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Length of the path through the large hall.
    #[arg(long, value_name = "METRES", default_value_t = 400.0)]
    length: f64,
    /// Also writes all numbers into this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes a page (results.md) into this folder, with a picture of the worst run of each kind.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Corrects paths with errors of odometry, and shows how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { data, worlds, seeds, length, json, output } = arguments;
    let mut page = output.as_ref().map(|folder| Page::new(folder, &how_it_was_made())).transpose()?;
    let worlds = if worlds.is_empty() { World::value_variants() } else { worlds };
    let runs: Vec<_> =
        worlds.iter().flat_map(|world| world.errors().into_iter().map(|errors| (*world, errors))).collect();
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "                        |   errors of the path in metres                           | in    | map                |\n\
         world        drift seed | odometry  online  smoothed  up to scale  worst  revisited | 95 %  | smoothed  true path | seconds"
    )?;
    let mut rows = Vec::new();
    let bar = terminal.bar("smoothing", runs.len() as u64 * seeds);
    for (world, errors) in runs {
        let first = rows.len();
        let (mut path, mut worst) = (None, None::<Run>);
        for seed in 0..*seeds {
            let known = path.take().filter(|_| !world.is_simulated());
            let path = path.insert(known.map_or_else(|| TruePath::new(world, data, *length, seed), Ok)?);
            let run = path.run(errors, seed)?;
            bar.inc(1);
            write_row(&mut out, &run.row)?;
            rows.push(run.row.clone());
            if worst.as_ref().is_none_or(|worst| run.row.smoothed > worst.row.smoothed) {
                worst = Some(run);
            }
        }
        if let (Some(page), Some(worst)) = (&mut page, &worst) {
            page.add(&rows[first..], worst)?;
        }
        let spread = |value: fn(&Row) -> f64| Spread::of(rows[first..].iter().map(value));
        let [odometry, online, smoothed] =
            [|row: &Row| row.odometry, |row: &Row| row.online, |row: &Row| row.smoothed].map(spread);
        writeln!(
            out,
            "median, greatest        | {:.3} {:.3}, {:.3} {:.3}, {:.3} {:.3}",
            odometry.median, odometry.greatest, online.median, online.greatest, smoothed.median, smoothed.greatest
        )?;
    }
    bar.finish_and_clear();
    if let Some(file) = json {
        write_json(file, &rows)?;
    }
    if let Some(page) = page {
        writeln!(out, "written: {}", page.write()?.display())?;
    }
    Ok(Ending::Done)
}

fn write_row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let Row { world, errors, seed, odometry, online, smoothed, up_to_scale, worst, in_95, seconds, .. } = row;
    let Row { map_rmse, map_rmse_true_path, .. } = row;
    let revisited = row.revisited.map_or_else(|| "-".to_owned(), |error| format!("{error:.3}"));
    writeln!(
        out,
        "{:12} {:5.3} {seed:4} | {odometry:8.3} {online:7.3} {smoothed:9.3} {up_to_scale:12.3} {worst:6.3} {revisited:>10} | \
         {in_95:5.2} | {map_rmse:8.2} {map_rmse_true_path:10.2} | {seconds:7.1}",
        world.name(),
        errors.drift
    )
}
