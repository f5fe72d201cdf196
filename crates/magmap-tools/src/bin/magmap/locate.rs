//! `magmap locate`.

use std::path::{Path, PathBuf};

use clap::Args;
use magmap::config::Program;
use magmap::localization::{self, Localizer, Start};
use magmap::mapping::stop::StopSignal;
use magmap::particle_filter::lookup::NothingKnown;
use magmap::store::map_file;
use magmap_tools::cli::{Ending, SettingsArguments, Terminal};
use magmap_tools::locate::{self, Comparison, LocateReport};

use crate::replay::{default_folder, measurements, stop_on_interrupt};
use crate::summary::Table;

const EXAMPLES: &str = "\
Examples:
  magmap locate second --map house-map                    a recording in the map of a replay, into second-path/
  magmap locate second --map ~/.ros/magmap/map.magmap     in the map that the node has saved
  magmap locate second --map house-map --from 1.5,-2,1.57 known to start there
  magmap locate second --map house-map --truth /mocap/pose --set localization.seed=7
  magmap convert aalto/invensense/1 --out second --drift-scale 0.03 --drift-turn 0.01 && \\
      magmap locate second --map house-map

The map is only read. Its settings are used unless --config or --set changes them. If the recording has the true path, on \
/ground_truth or as --truth says, the path found is compared with it, in the frame of the map.

Writes path.png, path.npz (numpy: stamp, pose, covariance, state, reason, odometry, truth) and report.json.

Ctrl-C ends it early: what was found is written (exit code 130).";

/// Finds where a robot was in a map, from a recording with odometry.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Locate {
    /// The recording: a drive of the Aalto data (FOLDER/invensense/3), an .mcap or .db3 file, a rosbag2 folder.
    recording: PathBuf,
    /// The map: the folder of a replay, or a map that the node has saved.
    #[arg(long, value_name = "MAP")]
    map: PathBuf,
    /// Pose of the body at the start, within about a metre and 30 degrees: metres and radians in the frame of the map.
    #[arg(long, value_name = "X,Y,HEADING", value_parser = start, allow_hyphen_values = true, conflicts_with = "anywhere")]
    from: Option<Start>,
    /// Start anywhere in the map, with any heading; the default.
    #[arg(long)]
    anywhere: bool,
    /// Topic of the true poses (geometry_msgs/PoseStamped or nav_msgs/Odometry) [default: /ground_truth, if the recording has it].
    #[arg(long, value_name = "TOPIC")]
    truth: Option<String>,
    /// Folder for the outputs; by default one named after the recording, here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace outputs in a folder that is not empty.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    settings: SettingsArguments,
}

fn start(text: &str) -> Result<Start, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    match numbers.as_deref() {
        Some(&[x, y, heading]) => Ok(Start::given([x, y], heading)),
        _ => Err(format!("expected x and y in metres and a heading in radians, such as 1.5,-2,1.57, found {text:?}")),
    }
}

impl Locate {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let file = map_file::file_of(&self.map);
        let checkpoint = map_file::read(&file)?;
        let config = self.settings.load_for(Program::Locate, localization::settings_for(&checkpoint.settings()?)?)?;
        let map = checkpoint.field_map(&config)?.ok_or(NothingKnown)?;
        let mut recording = self.settings.open(&self.recording, &config)?;
        let truth = recording.truth(self.truth.as_deref())?.unwrap_or_default();
        recording.summary.notes.iter().for_each(|note| log::info!("{note}"));
        let source = serde_json::to_value(&recording.summary)?;
        let (mount, loss) = (recording.mount, recording.loss.clone());
        let start = self.from.unwrap_or(Start::Anywhere);
        let mut localizer = Localizer::new(&config, &map, mount, start)?;

        let bar = terminal.bar("locating", measurements(&recording.summary));
        let stop = StopSignal::default();
        stop_on_interrupt(stop.clone(), || "writing what was found")?;
        let drive = locate::drive(&mut localizer, recording.inputs(), &truth, &mount, &stop, |located| {
            bar.inc(1);
            if let Some(located) = located {
                let state: &str = located.state.into();
                bar.set_message(format!("{state}, {} particles", located.particles));
            }
        });
        bar.finish_and_clear();

        let folder = self.out.unwrap_or_else(|| default_folder(&self.recording, "path"));
        let report = LocateReport::of(&drive, &localizer, source, &file, start, loss)?;
        let subtitle = format!("{} in {}", name(&self.recording), name(&self.map));
        let files = locate::write(&folder, self.force, &config, &map, &drive, &report, &subtitle)?;
        table(&report, &folder, &files).print()?;
        let ending = Ending::with(&report.loss);
        Ok(if report.interrupted { Ending::Interrupted } else { ending })
    }
}

/// The last part of a path.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The report for people.
fn table(report: &LocateReport, folder: &Path, files: &[PathBuf]) -> Table {
    let mut table = Table::default();
    table.counts(&report.counters);
    table.row("path", format!("{:.1} m by odometry, {} updates", report.counters.travelled, report.updates));
    table.row("particles", format!("{:.0} on average", report.particles));
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let states = &report.states;
    let [tracking, converging, lost] = [states.tracking, states.converging, states.lost].map(percent);
    table.row("state", format!("tracking {tracking}, converging {converging}, lost {lost} of the updates"));
    let end = &report.end;
    let state: &str = end.state.into();
    let reason = end.reason.map_or(String::new(), |reason| format!(": {reason}"));
    let place = format!("{:.2}, {:.2} m, {:.2} rad, give or take {:.2} m", end.x, end.y, end.heading, end.deviation);
    table.row("end", format!("{place} ({state}{reason})"));
    match &report.truth {
        Some(truth) => add_errors(&mut table, truth),
        None => table.row("error", "the recording has no true path to compare with"),
    }
    table.row("time", format!("{:.1} s", report.seconds));
    if report.interrupted {
        table.row("interrupted", "the rest of the recording was not used");
    }
    table.rows("lost", &report.loss.items);
    let names: Vec<String> = files.iter().map(|file| name(file)).collect();
    table.row("written", format!("{} in {}", names.join(", "), folder.display()));
    table
}

fn add_errors(table: &mut Table, truth: &Comparison) {
    let Comparison { error, median, greatest, last, dead_reckoning, dead_reckoning_last, sure_and_wrong, .. } = truth;
    table.row("error", format!("{error:.3} m RMS, median {median:.3}, greatest {greatest:.3}, last {last:.3} m"));
    if let Some(tracking) = truth.tracking {
        table.row("", format!("{tracking:.3} m RMS while tracking"));
    }
    table.row("", format!("heading {:.3} rad RMS", truth.heading));
    table.row("odometry alone", format!("{dead_reckoning:.3} m RMS, last {dead_reckoning_last:.3} m"));
    table.row("within 95 %", format!("{:.0} % of the updates", 100.0 * truth.inside_95));
    table.row("sure and wrong", format!("{sure_and_wrong} updates tracking and more than {} m off", locate::WRONG));
}
