//! `magmap replay`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use magmap::config::{Config, Program};
use magmap::mapping::stop::StopSignal;
use magmap_tools::cli::{Ending, SettingsArguments, Terminal, number};
use magmap_tools::foxglove::FoxgloveServer;
use magmap_tools::recording::Summary;
use magmap_tools::replay::{Error, Options, ReplayOutputs, ReplayProgress, Source};

use crate::live::{self, Address};
use crate::summary;

const EXAMPLES: &str = "\
Examples:
  magmap replay house.mcap                         into house-map/
  magmap replay aalto/invensense/3 --out map       a drive of the Aalto data
  magmap replay bag --set selection.delta=0.5      a smaller, less exact map
  magmap replay bag --config map/config.toml       again as it was made
  magmap replay bag --speed 1                      at the pace it was driven
  magmap replay bag --live                         the same, and the map is shown in Foxglove while it grows
  magmap replay bag --live 0.0.0.0:8765 --speed 4  for all computers of the network, four times as fast
  magmap replay bag --slam                         the field corrects the path of odometry, where the robot comes back
  magmap replay bag --trajectory final.tum         at the final poses of another SLAM
  magmap replay bag --resume                       after a crash or Ctrl-C: to the same map as without
  magmap replay second --out bag-map --resume      a second drive into the map of the first

Writes map.png, uncertainty.png, growth.png, map.npz (numpy), report.json, config.toml, map.magmap (the map \
itself, to be continued), mean and standard_deviation as .yaml and .pgm for nav2's map_server, and map.mcap: mean and variance over \
time as nav_msgs/OccupancyGrid on /magmap/mean and /magmap/variance, a pair after each batch. For each pair report.json \
states the values of 0 and 100. With --slam or --trajectory also path.png, \
odometry beside the corrected path, and trajectory.tum, its poses as evo reads them; if the recording has the true path on \
/ground_truth, the report has the errors. Where drawing a large map would take longer than learning it, some batches have no pair; \
the last one always has.

With --live, Foxglove (Open connection, Foxglove WebSocket) shows the topics of map.mcap at ws://localhost:8765, in the app or the \
browser; who comes later gets the newest map at once. Who watches never slows the mapping down. At a terminal the map stays there \
until Ctrl-C, in a script until all have left, at most three seconds.

Ctrl-C ends the replay early: what was read is mapped and written (exit code 130). Another one, at least two seconds later, \
ends it at once. Whatever interrupts a replay, map.magmap keeps what was mapped, for --resume.";

/// Signals within this time after the first are ignored: `timeout`, the stop of a container and the process group of a terminal
/// send several at once.
const TOGETHER: Duration = Duration::from_secs(2);

/// Maps a recording: an Aalto drive (FOLDER/invensense/3), a survey (.csv), an .mcap or .db3 file, a rosbag2 folder.
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Replay {
    /// The recording.
    recording: PathBuf,
    #[command(flatten)]
    settings: SettingsArguments,
    /// Folder for the outputs; by default one named after the recording, here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Speed as a multiple of real time; 0: as fast as possible, which is the default without --live; with --live it is 1.
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    speed: Option<f64>,
    /// Show the map in Foxglove while it grows; by default to this computer only.
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = live::DEFAULT, value_parser = Address::parse)]
    live: Option<Address>,
    /// Replace outputs in a folder that is not empty.
    #[arg(long)]
    force: bool,
    /// Correct the path of odometry by the field, and make the map from that (slam.enabled): needs a sensor with three axes.
    #[arg(long)]
    slam: bool,
    /// Make the map at the poses of the robot's body in this file instead of those of odometry (slam.trajectory): the final trajectory of
    /// another SLAM, as text of lines "stamp x y z qx qy qz qw" (TUM's format).
    #[arg(long, value_name = "FILE", conflicts_with = "slam")]
    trajectory: Option<String>,
    /// Continue an interrupted replay in the folder, or add this recording to a finished map.
    #[arg(long, conflicts_with = "force")]
    resume: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    number(text, "a number, 0 or above", |factor| factor.is_finite() && *factor >= 0.0)
}

impl Replay {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let mut config = self.settings.load_for(Program::Replay, Config::default())?;
        config.slam.enabled |= self.slam;
        config.slam.trajectory = self.trajectory.unwrap_or(config.slam.trajectory);
        config.validate()?;
        let mut recording = self.settings.open(&self.recording, &config)?;
        recording.summary.notes.iter().for_each(|note| log::info!("{note}"));
        let folder = self.out.unwrap_or_else(|| default_folder(&self.recording, "map"));
        let bar = terminal.bar("mapping", measurements(&recording.summary));
        let mut source = Source::of_recording(&recording);
        if config.corrects_path() {
            source.truth = recording.truth(None)?.unwrap_or_default();
        }
        let live = self.live.map(|address| address.listen(&source.name)).transpose()?;
        let options = Options {
            speed: self.speed.unwrap_or(if live.is_some() { 1.0 } else { 0.0 }),
            force: self.force,
            resume: self.resume,
            live: live.as_ref().map(FoxgloveServer::writer),
        };
        let replay = match magmap_tools::replay::Replay::start(&config, source, &folder, options, show(bar.clone())) {
            // A replay that was interrupted just before its end is done.
            Err(done @ Error::AlreadyMapped { .. }) => {
                log::warn!("{done}");
                return Ok(Ending::Done);
            }
            started => started?,
        };
        let (stop, is_written) = (replay.stop_signal(), Arc::new(AtomicBool::new(false)));
        let is_ending = Arc::clone(&is_written);
        let then = move || if is_ending.load(Ordering::Relaxed) { "the map is no longer served" } else { INTERRUPTED };
        stop_on_interrupt(stop.clone(), then)?;
        if let Some(server) = &live {
            live::say(&format!("{}, for Foxglove", server.url()))?;
        }
        let outcome = replay.run(recording)?;
        bar.finish_and_clear();
        summary::print(&outcome)?;
        is_written.store(true, Ordering::Relaxed);
        if let Some(server) = &live {
            live::keep(server, &stop)?;
        }
        Ok(ending(&outcome))
    }
}

/// A folder in the working directory, named after the recording and what it `holds`.
pub fn default_folder(recording: &Path, holds: &str) -> PathBuf {
    let name = recording.file_stem().map_or("recording".into(), |name| name.to_string_lossy());
    PathBuf::from(format!("{name}-{holds}"))
}

/// Number of readings and poses.
pub fn measurements(summary: &Summary) -> u64 {
    let chosen = [&summary.magnetometer.topic, &summary.odometry.topic];
    summary.topics.iter().filter(|topic| chosen.contains(&&topic.name)).map(|topic| topic.count).sum()
}

/// Shows progress on a bar.
pub fn show(bar: ProgressBar) -> impl FnMut(ReplayProgress) + Send + 'static {
    move |progress| {
        bar.set_position(progress.measurements);
        bar.set_message(format!("batch {}, {} inducing points", progress.batches, progress.inducing_points));
    }
}

/// The work that is left after an interrupt of a replay, for a message.
pub const INTERRUPTED: &str = "mapping what was read, then writing the outputs";

/// Makes the first interrupt end the command in good order, with a message of what happens `then`, and a later one at once.
pub fn stop_on_interrupt(stop: StopSignal, then: impl Fn() -> &'static str + Send + 'static) -> anyhow::Result<()> {
    let mut first: Option<Instant> = None;
    Ok(ctrlc::set_handler(move || match first {
        None => {
            first = Some(Instant::now());
            stop.stop();
            let again = TOGETHER.as_secs();
            let then = then();
            eprintln!("interrupted: {then}; interrupt again after {again} seconds to end at once");
        }
        Some(first) if first.elapsed() < TOGETHER => {}
        Some(_) => std::process::exit(130),
    })?)
}

/// Logs what is missing, and returns how the program ends.
pub fn ending(outcome: &ReplayOutputs) -> Ending {
    let ending = Ending::with(&outcome.report.loss);
    if outcome.report.interrupted { Ending::Interrupted } else { ending }
}
