//! `magmap simulate`: a robot's drive.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use magmap::sensing::reading::Stamp;
use magmap_tools::cli::{Ending, Terminal, UsageError};
use magmap_tools::recording::writer::Storage;
use magmap_tools::simulation::bag::{self, TRUTH_FILE};
use magmap_tools::simulation::survey;
use magmap_tools::simulation::{Character, DipoleOptions, Drift, RobotOptions, Route, Simulation, Steel};
use nalgebra::Isometry3;

const EXAMPLES: &str = "\
Examples:
  magmap simulate --out bag                      all lanes of a room of 6 m by 6 m
  magmap simulate --out hall --hall              a hall of 60 m by 60 m whose right half is smoother
  magmap simulate --out offices --size 40x12 --route rooms
  magmap simulate --out random --route random --seed 7 --size 12x8 --duration 600
  magmap simulate --out floor.csv --size 40x12 --route rooms --steel mixed --height 1.3
                                                 a survey by hand: plain CSV, steel under the floor and above the ceiling
  magmap simulate --out weak --sd 2 --noise 1    a weak field and a poor sensor
  magmap simulate --out drifting --drift-scale 0.01 --drift-heading 0.02

The true field is written to truth.csv in the folder of the bag, with a row per reading: stamp in nanoseconds, true \
position of the sensor, the field there along the map's axes and its strength in microtesla, true position of the body. \
If odometry drifts, the true poses are also on /ground_truth (geometry_msgs/PoseStamped), which a replay does not read and \
`magmap locate` compares with.

A survey has a row for each reading, at its true place, with the field along the axes of the map; it has no truth beside it.";

/// Start of simulated drives: some tools mistake stamps near the epoch for missing ones.
const START: Stamp = Stamp::from_ros(1_700_000_000, 0);

/// Size of a hall, in metres.
const HALL: [f64; 2] = [60.0, 60.0];

/// Duration of a drive on a route without an end, in seconds.
const ENDLESS: f64 = 180.0;

/// Drives a simulated robot through a simulated room and writes its recording as a rosbag2 folder, or as a survey.
///
/// The room has dipoles under its floor, in its walls and above its ceiling, 2.5 m high. The bag holds /imu/mag, /odom, /tf and
/// /tf_static.
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Simulate {
    /// Folder of the bag, which must not exist or be empty; or a file whose name ends in .csv, for a survey.
    #[arg(long, value_name = "BAG|CSV")]
    out: PathBuf,
    /// Route of the robot through the room.
    #[arg(long, value_enum, default_value_t)]
    route: RouteArgument,
    /// Distance between the lanes of the lawn mower, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 0.8)]
    lane_spacing: f64,
    /// Seed of the world, the route and the noise.
    #[arg(long, default_value_t = 3)]
    seed: u64,
    /// A hall: walls of changing character, and in the right half the field varies over twice the distance.
    #[arg(long)]
    hall: bool,
    /// Width of the rooms along the corridor, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 5.0)]
    room_width: f64,
    /// Size of the room, in metres [default: 6x6; of a hall 60x60].
    #[arg(long, value_name = "WIDTHxLENGTH", value_parser = size)]
    size: Option<[f64; 2]>,
    /// Where the steel is.
    #[arg(long, value_enum, default_value_t)]
    steel: Steel,
    /// Height of the sensor over the floor, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 0.0)]
    height: f64,
    /// Speed of the robot, in metres per second.
    #[arg(long, default_value_t = 0.5)]
    speed: f64,
    /// Duration of the drive, in seconds [default: as long as the whole route takes: a lap, all lanes in both directions, all rooms; 180
    /// for routes without an end].
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Standard deviation of the noise on each axis of a reading, in microtesla.
    #[arg(long, value_name = "MICROTESLA", default_value_t = 0.5)]
    noise: f64,
    /// Standard deviation of the field's strength over the room, at the height of the sensor, in microtesla.
    #[arg(long, value_name = "MICROTESLA", default_value_t = 10.0)]
    sd: f64,
    #[command(flatten)]
    drift: Drift,
    /// How the messages are stored.
    #[arg(long, value_enum, default_value_t)]
    storage: Storage,
}

/// The routes.
#[derive(Clone, Copy, Default, ValueEnum)]
enum RouteArgument {
    /// Along the walls, lap after lap.
    Rectangle,
    /// Up and down in parallel lanes, then across them.
    #[default]
    LawnMower,
    /// From one random place to the next.
    Random,
    /// Along the walls once, then to some random places, and so on.
    Patrol,
    /// Along a corridor in the middle, with a round through each of the rooms on either side.
    Rooms,
}

fn size(text: &str) -> Result<[f64; 2], String> {
    let side = |text: &str| text.trim().parse().ok().filter(|side: &f64| side.is_finite() && *side > 0.0);
    let sides = text.split_once('x').and_then(|(width, length)| Some([side(width)?, side(length)?]));
    sides.ok_or_else(|| format!("expected two sides in metres such as 6x8.5, found {text:?}"))
}

impl Simulate {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        // All settings come from the command line.
        let usage = |error: magmap_tools::simulation::Error| UsageError(error.to_string());
        let simulation = self.simulation().map_err(usage)?;
        let world = simulation.world().map_err(usage)?;
        let drive = simulation.drive(&world).map_err(usage)?;
        let seconds = drive.duration();
        let RobotOptions { magnetometer_rate, odometry_rate, mount, .. } = &simulation.robot;
        let bar = terminal.bar("driving", (seconds * (magnetometer_rate + odometry_rate)) as u64);
        let done = if survey::is_one(&self.out) {
            if self.drift.if_any().is_some() {
                return Err(UsageError("a survey has the true places: --drift-... need a bag".into()).into());
            }
            let rows = survey::write(drive, &self.out, || bar.inc(1))?;
            format!("{rows} readings\nwritten to {}", self.out.display())
        } else {
            let written = bag::write(drive, mount, &self.out, self.storage, || bar.inc(1))?;
            let folder = self.out.display();
            let bag::Written { readings, poses } = written;
            format!(
                "{readings} readings and {poses} poses in {seconds:.1} s\nwritten to {folder}, with the truth in {TRUTH_FILE}"
            )
        };
        bar.finish_and_clear();
        writeln!(io::stdout().lock(), "{done}")?;
        Ok(Ending::Done)
    }

    fn simulation(&self) -> Result<Simulation, magmap_tools::simulation::Error> {
        let drift = self.drift.if_any();
        let size = self.size.unwrap_or(if self.hall { HALL } else { DipoleOptions::default().size });
        let route = match self.route {
            RouteArgument::Rectangle => Route::Rectangle,
            RouteArgument::LawnMower => Route::LawnMower { spacing: self.lane_spacing },
            RouteArgument::Random => Route::Random,
            RouteArgument::Patrol => Route::Patrol,
            RouteArgument::Rooms => Route::Rooms { width: self.room_width },
        };
        let duration = match self.duration {
            Some(duration) => duration,
            None => route.length(size)?.map_or(ENDLESS, |length| length / self.speed),
        };
        Ok(Simulation {
            seed: self.seed,
            world: DipoleOptions {
                standard_deviation: self.sd,
                height: self.height,
                character: if self.hall { Character::Hall } else { Character::Uniform },
                ..DipoleOptions::of_size(size).with_steel(self.steel)
            },
            route,
            robot: RobotOptions {
                speed: self.speed,
                noise: self.noise,
                drift,
                mount: Isometry3::translation(0.0, 0.0, self.height),
                start: START,
                ..Default::default()
            },
            duration,
        })
    }
}
