//! `magmap convert`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use magmap::config::{Config, Program};
use magmap_tools::cli::{Ending, SettingsArguments, Terminal, UsageError};
use magmap_tools::recording::aalto_csv::AaltoDrive;
use magmap_tools::recording::convert::convert;
use magmap_tools::recording::drive_writer::{MAGNETOMETER_TOPIC, ODOMETRY_TOPIC};
use magmap_tools::recording::writer::Storage;
use magmap_tools::simulation::{Drift, Odometry};
use nalgebra::Isometry3;

const EXAMPLES: &str = "\
Examples:
  magmap convert aalto/invensense/3 --out drive3
  magmap convert aalto/nexus/1 --out drive1 --storage sqlite3
  magmap convert aalto/invensense/3 --out turned \\
      --set sensor.override_transforms=true --set sensor.orientation=[0,0,1.57]
  magmap convert aalto/invensense/3 --out drifting --drift-scale 0.03 --drift-turn 0.01 --seed 2

The files have no orientation: the body takes the heading of the path, and the field is rotated into its frame. \
With sensor.override_transforms, sensor.position and sensor.orientation give the place of the sensor on the body. \
If odometry drifts, the true poses are on /ground_truth (geometry_msgs/PoseStamped): `magmap locate` compares with them.";

/// Converts a drive of the Aalto data to a rosbag2 folder, as a robot would have recorded it.
///
/// The bag has readings in tesla on /imu/mag, poses on /odom and /tf, and the sensor's mount on /tf_static.
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Convert {
    /// The drive: FOLDER/invensense/3, or any of its files.
    drive: PathBuf,
    /// Folder of the bag; must not exist or be empty.
    #[arg(long, value_name = "BAG")]
    out: PathBuf,
    /// How the messages are stored.
    #[arg(long, value_enum, default_value_t)]
    storage: Storage,
    #[command(flatten)]
    drift: Drift,
    /// Seed of the noise of odometry.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    settings: SettingsArguments,
}

impl Convert {
    pub fn run(self, _: &Terminal) -> anyhow::Result<Ending> {
        let config = self.settings.load_for(Program::Convert, Config::default())?;
        let drive = AaltoDrive::open(&self.drive)?;
        let mount = if config.sensor.override_transforms { config.sensor.mount() } else { Isometry3::identity() };
        let drift = self.drift.if_any();
        drift.map_or(Ok(()), |drift| drift.check()).map_err(|error| UsageError(error.to_string()))?;
        let mut odometry = Odometry::new(drift, self.seed);
        let mut report = |pose| odometry.report(pose);
        convert(&drive, &self.out, self.storage, &mount, drift.is_some().then_some(&mut report as _))?;
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{} readings on {MAGNETOMETER_TOPIC} and as many poses on {ODOMETRY_TOPIC}",
            drive.seconds.len()
        )?;
        writeln!(out, "written to {}", self.out.display())?;
        Ok(Ending::with(&drive.loss))
    }
}
