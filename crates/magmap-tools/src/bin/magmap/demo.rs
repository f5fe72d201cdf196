//! `magmap demo`.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use magmap::config::{Config, Program};
use magmap::mapping::mapper::SourceId;
use magmap::sensing::intake::Intake;
use magmap::sensing::reading::Measurement;
use magmap_tools::cli::{Ending, SettingsArguments, Terminal};
use magmap_tools::recording::Loss;
use magmap_tools::recording::drive_writer::{ODOMETRY_FRAME, messages};
use magmap_tools::replay::{Options, PathErrors, Replay, Source, TruthComparison};
use magmap_tools::simulation::{self, Drift, Simulation};

use crate::replay::{INTERRUPTED, ending, show, stop_on_interrupt};
use crate::summary::{self, Table};

/// Default folder of the outputs.
const FOLDER: &str = "magmap-demo";

/// Errors of the odometry of a robot on wheels.
const DRIFT: Drift = Drift { scale: 0.03, turn: 0.015, heading: 0.02, slip: 0.01 };

const EXAMPLES: &str = "\
Examples:
  magmap demo                              into magmap-demo/, over an earlier demo
  magmap demo --drift                      odometry drifts, and the field corrects its path: see path.png
  magmap demo --out /tmp/map               somewhere else
  magmap demo --set selection.delta=0.5    with fewer inducing points

Fails unless the map is closer to the true field than the mean of the readings is and, with --drift, unless the corrected path is \
closer to the true one than that of odometry.";

/// Maps an embedded simulated world and compares the map with the truth: three minutes in a room of 6 m by 6 m.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    #[command(flatten)]
    settings: SettingsArguments,
    /// Let odometry drift, by 3 % and a degree a metre, and correct its path by the field (slam.enabled).
    #[arg(long)]
    drift: bool,
    /// Folder for the outputs.
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    out: PathBuf,
    /// Replace outputs in a folder that is not empty.
    #[arg(long)]
    force: bool,
}

impl Demo {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let mut config = self.settings.load_for(Program::Replay, Config::default())?;
        config.slam.enabled |= self.drift;
        config.validate()?;
        let mut simulation = simulation::demo();
        simulation.robot.drift = self.drift.then_some(DRIFT);
        let world = simulation.world()?;
        let mut source = source(&simulation, &config);
        if config.slam.enabled {
            let poses = simulation.drive(&world)?.filter(|sample| sample.measurement.pose().is_some());
            source.truth = poses.map(|sample| sample.truth.pose).collect();
        }
        let mut strengths = Vec::new();
        let bar = terminal.bar("mapping", expected_measurements(&simulation));
        // The default folder holds nothing but an earlier demo.
        let force = self.force || self.out.as_os_str() == FOLDER;
        let options = Options { force, ..Options::default() };
        let replay = Replay::start(&config, source, &self.out, options, show(bar.clone()))?;
        stop_on_interrupt(replay.stop_signal(), || INTERRUPTED)?;
        let drive = simulation.drive(&world)?.map(|sample| sample.measurement);
        let drive = drive.inspect(|measurement| strengths.extend(strength(measurement)));
        let outcome = replay.run(messages::<Infallible>(simulation.robot.mount, drive))?;
        bar.finish_and_clear();
        summary::print(&outcome)?;
        if let Some(PathErrors { odometry, corrected, .. }) =
            outcome.report.corrected_path.as_ref().and_then(|path| path.truth)
        {
            // The frame of a corrected map is turned by what odometry drifts before the robot first comes back.
            if ending(&outcome) == Ending::Done && corrected >= odometry {
                bail!("the corrected path is no closer to the truth than that of odometry");
            }
            return Ok(ending(&outcome));
        }
        let mean = strengths.iter().sum::<f64>() / strengths.len() as f64;
        let comparison = TruthComparison::within_room(&outcome.grid, &world, simulation.world.size, mean);
        print_comparison(&comparison, &config)?;
        if ending(&outcome) == Ending::Done && comparison.rmse >= comparison.constant_rmse {
            bail!("the map is no closer to the truth than the mean of the readings");
        }
        Ok(ending(&outcome))
    }
}

fn source(simulation: &Simulation, config: &Config) -> Source {
    let mut intake = Intake::new(config);
    intake.name_map(ODOMETRY_FRAME);
    Source {
        name: "simulated room".into(),
        id: SourceId { name: "demo".into(), fingerprint: format!("demo {}", simulation.seed) },
        about: serde_json::json!({ "simulation": "demo", "seed": simulation.seed, "seconds": simulation.duration }),
        intake,
        loss: Loss::default(),
        is_frame_shared: false,
        truth: Vec::new(),
    }
}

fn expected_measurements(simulation: &Simulation) -> u64 {
    (simulation.duration * (simulation.robot.magnetometer_rate + simulation.robot.odometry_rate)) as u64
}

/// The strength of a reading, in microtesla.
fn strength(measurement: &Measurement) -> Option<f64> {
    match measurement {
        Measurement::Reading(reading) => Some(reading.field.strength()),
        Measurement::Pose(_) => None,
    }
}

fn print_comparison(comparison: &TruthComparison, config: &Config) -> io::Result<()> {
    let TruthComparison { cells, rmse, constant_rmse, coverage, expected_rmse } = comparison;
    let area = *cells as f64 * config.raster.resolution.powi(2);
    let mut table = Table::default();
    table.row("truth", format!("compared on the {area:.1} m² of the room that are mapped"));
    table.row("", format!("error of the map {rmse:.2} µT, expected {expected_rmse:.2} µT"));
    table.row("", format!("error of the mean of the readings {constant_rmse:.2} µT"));
    table.row("", format!("{:.1} % of the truth within the map's 95 % interval", 100.0 * coverage));
    table.print()
}
