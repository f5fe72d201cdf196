//! `magmap-evaluate localization`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use magmap::config::{Config, Mapped};
use magmap_evaluate::localization::{Elsewhere, Kidnapped, Row, Runs, Scene, aalto, corridor, hall};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::export::json::write_json;
use magmap_tools::recording::aalto_csv::Magnetometer;

use crate::arguments::Common;

#[derive(Args)]
pub struct Arguments {
    /// Folder of the Aalto data; without it, there are only simulated halls.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Runs from a known start, each with its own errors of odometry.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Runs that start anywhere.
    #[arg(long, value_name = "N", default_value_t = 100)]
    starts: u64,
    /// Runs in which the robot is moved unseen.
    #[arg(long, value_name = "N", default_value_t = 20)]
    kidnapped: u64,
    /// Simulated halls.
    #[arg(long, value_name = "N", default_value_t = 2)]
    halls: u64,
    /// Simulated corridors with rooms.
    #[arg(long, value_name = "N", default_value_t = 1)]
    corridors: u64,
    #[command(flatten)]
    common: Common,
}

/// Locates robots in maps of strengths and of the three axes, and shows how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { data, seeds, starts, kidnapped, halls, corridors, common } = arguments;
    let base = common.config_of_any_field(Config::default())?;
    let runs = Runs { seeds: *seeds, starts: *starts, kidnapped: *kidnapped };
    let mut rows = Vec::new();
    let bar = terminal.bar("locating", 0);
    for field in [Mapped::Strength, Mapped::Vector] {
        let mut config = base.clone();
        config.model.field = field;
        let mut scenes: Vec<Scene> = match data {
            Some(data) => aalto(data, Magnetometer::Invensense, &config)?,
            None => Vec::new(),
        };
        for seed in 0..*halls {
            scenes.push(hall(seed, &config)?);
        }
        for seed in 0..*corridors {
            scenes.push(corridor(seed, &config)?);
        }
        let elsewhere = |(index, scene): (usize, &Scene)| {
            let mut others = scenes.iter().cycle().skip(index).take(scenes.len());
            others.find(|other| other.place != scene.place)
        };
        let elsewhere: Vec<Option<&Scene>> = scenes.iter().enumerate().map(elsewhere).collect();
        let starts_of = |another: &Option<&Scene>| starts * if another.is_some() { 2 } else { 1 };
        // As many again with the other field.
        bar.set_length(2 * elsewhere.iter().map(|another| seeds + kidnapped + starts_of(another)).sum::<u64>());
        for (scene, another) in scenes.iter().zip(elsewhere) {
            rows.push(scene.run(another, runs, || bar.inc(1))?);
        }
    }
    bar.finish_and_clear();
    write_rows(&mut io::stdout().lock(), &rows)?;
    if let Some(file) = &common.json {
        write_json(file, &rows)?;
    }
    Ok(Ending::Done)
}

fn write_rows(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    writeln!(
        out,
        "                         | from a known start                             | from      | sure  | moved 3 m: noticed, found, sure | elsewhere:\n\
         map      drive     field    | median  worst  odometry  in 95 %  tracking | anywhere  | wrong | after (median, 90 %; median)   | lost in 5 m, after, sure"
    )?;
    for row in rows {
        let field = format!("{:?}", row.field).to_lowercase();
        let Row { map, drive, tracking_median, tracking_worst, dead_reckoning, consistency, tracking_share, .. } = row;
        write!(out, "{map:8} {drive:9} {field:8} | {tracking_median:6.3} {tracking_worst:6.3}  {dead_reckoning:8.3}")?;
        write!(out, "   {consistency:6.3}    {tracking_share:6.3} |")?;
        write!(out, "      {:4.2} | {:5} |", row.global_success, row.sure_and_wrong)?;
        if let Some(Kidnapped { noticed_median, noticed_90, found_median, found_90, sure_median }) = row.kidnapped {
            write!(
                out,
                " {noticed_median:4.1} {noticed_90:4.1}, {found_median:4.1} {found_90:4.1}, {sure_median:5.1} m |"
            )?;
        }
        if let Some(Elsewhere { runs, lost, lost_after, sure }) = row.elsewhere {
            write!(out, " {lost} of {runs}, {lost_after:.1} m, {sure}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
