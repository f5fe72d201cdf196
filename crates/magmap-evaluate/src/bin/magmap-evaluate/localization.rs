//! `magmap-evaluate localization`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use magmap::cli::{Ending, Terminal};
use magmap::config::{Config, Mapped};
use magmap::export::report::write_json;
use magmap::recording::aalto_csv::Magnetometer;
use magmap_evaluate::localization::{Row, Runs, Scene, aalto, hall};

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
    /// Simulated halls.
    #[arg(long, value_name = "N", default_value_t = 2)]
    halls: u64,
    #[command(flatten)]
    common: Common,
}

/// Locates robots in maps of strengths and of the three axes, and shows how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { data, seeds, starts, halls, common } = arguments;
    let base = common.config_of_any_field(Config::default())?;
    let runs = Runs { seeds: *seeds, starts: *starts };
    let mut rows = Vec::new();
    let bar = terminal.bar("locating", 2 * (halls + 2 * u64::from(data.is_some())) * (seeds + starts));
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
        for scene in &scenes {
            rows.push(scene.run(&config, runs, || bar.inc(1))?);
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
        "map      drive  field    | tracking: median, worst | dead reckoning | in its 95 % | tracking | sure and wrong | from anywhere | particles"
    )?;
    for row in rows {
        let field = match row.field {
            Mapped::Strength => "strength",
            Mapped::Vector => "vector",
        };
        writeln!(
            out,
            "{:8} {:6} {field:8} |         {:6.3}  {:6.3} m |       {:6.3} m |       {:5.3} |    {:5.3} | {:14} |         {:5.2} | {:9.0}",
            row.map,
            row.drive,
            row.tracking_median,
            row.tracking_worst,
            row.dead_reckoning,
            row.consistency,
            row.tracking_share,
            row.sure_and_wrong,
            row.global_success,
            row.particles,
        )?;
    }
    Ok(())
}
