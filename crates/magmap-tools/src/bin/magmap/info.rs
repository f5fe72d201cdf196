//! `magmap info`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use magmap::config::{Config, Program};
use magmap::store::list::{self, Listed, State};
use magmap_tools::cli::{Ending, SettingsArguments};
use magmap_tools::recording::{Choice, Loss, Recording, Summary};
use serde::Serialize;
use strum::EnumMessage;

use crate::summary::{Table, print_json};

const EXAMPLES: &str = "\
Examples:
  magmap info house.mcap
  magmap info ~/.ros/magmap                             every map of the robots that run here
  magmap info ~/.ros/magmap/map.magmap                  one of them
  magmap info aalto/invensense/3
  magmap info bag --json | jq .topics
  magmap info bag --set topics.magnetometer=/imu/mag    can it be read?";

/// Describes a recording, what a replay would read of it, and what is missing; or lists the maps in a folder.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Info {
    /// The recording: an Aalto drive (FOLDER/invensense/3), a survey (.csv), an .mcap or .db3 file, a rosbag2 folder. Or a map, or a folder of
    /// maps.
    recording: PathBuf,
    #[command(flatten)]
    settings: SettingsArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    mount: Mount,
    loss: &'a Loss,
}

/// The place of the sensor on the robot.
#[derive(Serialize)]
struct Mount {
    /// In metres.
    position: [f64; 3],
    /// Roll, pitch and yaw in radians.
    orientation: [f64; 3],
}

impl Info {
    pub fn run(self) -> anyhow::Result<Ending> {
        if let Some(maps) = maps_in(&self.recording)? {
            return print_maps(&self.recording, &maps, self.json);
        }
        let config = self.settings.load_for(Program::Info, Config::default())?;
        let recording = self.settings.open(&self.recording, &config)?;
        let Recording { summary, loss, .. } = &recording;
        if self.json {
            print_json(&Described { summary, mount: mount(&recording), loss })?;
        } else {
            describe(&recording).print()?;
        }
        Ok(if recording.loss.is_empty() { Ending::Done } else { Ending::WithLoss })
    }
}

/// The maps in a folder, or the one in a file; `None` if it is a recording or has no map.
fn maps_in(folder: &Path) -> io::Result<Option<Vec<Listed>>> {
    if folder.extension().is_some_and(|extension| extension == "magmap") && folder.is_file() {
        return list::of_path(folder).map(|map| Some(vec![map]));
    }
    // The folder of a bag has metadata.
    if !folder.is_dir() || folder.join("metadata.yaml").exists() {
        return Ok(None);
    }
    list::list(folder).map(|maps| Some(maps).filter(|maps| !maps.is_empty()))
}

/// Prints a line for each map, and below it the damage, if any.
fn print_maps(folder: &Path, maps: &[Listed], json: bool) -> anyhow::Result<Ending> {
    let is_damaged = maps.iter().any(|map| matches!(map.state, State::Damaged(_)));
    let ending = if is_damaged { Ending::WithLoss } else { Ending::Done };
    if json {
        print_json(maps)?;
        return Ok(ending);
    }
    let mut out = io::stdout().lock();
    if folder.is_dir() {
        writeln!(out, "{} maps in {}", maps.len(), folder.display())?;
    }
    let width = maps.iter().map(|map| map.name.chars().count()).max().unwrap_or(0);
    for map in maps {
        let written = map.modified.strftime("%Y-%m-%d %H:%M:%SZ");
        let state = map.state.as_ref();
        let kilobytes = map.bytes.div_ceil(1000);
        write!(out, "  {:width$}  {state:10}  {written}  {kilobytes:6} kB", map.name)?;
        if let Some(contents) = &map.contents {
            if let Some([low, high]) = contents.extent {
                write!(out, "  {:.1} m x {:.1} m in {}", high[0] - low[0], high[1] - low[1], contents.frame)?;
            }
            write!(out, "  {}", contents.totals)?;
            if !contents.sources.is_empty() {
                write!(out, " from {}", contents.sources.join(", "))?;
            }
        }
        writeln!(out)?;
        if let State::Damaged(why) = &map.state {
            writeln!(out, "  {:width$}  {why}", "")?;
        }
        if let Some(delay) = map.contents.as_ref().and_then(|contents| contents.delay) {
            writeln!(out, "  {:width$}  {delay}", "")?;
        }
        for change in map.contents.iter().flat_map(|contents| &contents.changes) {
            writeln!(out, "  {:width$}  the building has changed {change}", "")?;
        }
    }
    if folder.is_dir() {
        writeln!(
            out,
            "A node continues the map that node.map_name names (in the launch files map_name:=NAME): the unfinished one, or else the saved one."
        )?;
    }
    Ok(ending)
}

fn mount(recording: &Recording) -> Mount {
    let mount = recording.mount;
    let (roll, pitch, yaw) = mount.rotation.euler_angles();
    // Adding zero turns the zeros that are negative into positive ones.
    Mount { position: mount.translation.vector.into(), orientation: [roll + 0.0, pitch + 0.0, yaw + 0.0] }
}

fn describe(recording: &Recording) -> Table {
    let (summary, mut table) = (&recording.summary, Table::default());
    table.row("recording", summary.path.display());
    table.row("kind", summary.kind.get_documentation().unwrap_or_default());
    let duration = summary.span_seconds.map(|(start, end)| end - start);
    if let (Some((start, end)), Some(duration)) = (summary.span_seconds, duration) {
        table.row("time", format!("{duration:.1} s, from {start:.3} s to {end:.3} s"));
    }
    let width = summary.topics.iter().map(|topic| topic.name.chars().count()).max().unwrap_or(0);
    let topics = summary.topics.iter().map(|topic| {
        let rate = duration.filter(|duration| *duration > 0.0).map(|duration| topic.count as f64 / duration);
        let rate = rate.map_or(String::new(), |rate| format!("{rate:8.1} /s"));
        format!("{:width$}  {:>8}{rate}  {}", topic.name, topic.count, topic.type_name)
    });
    table.rows("topics", topics);
    table.row("magnetometer", chosen(&summary.magnetometer, &summary.magnetometer_frame));
    table.row("odometry", chosen(&summary.odometry, &summary.odometry_frame));
    table.row("body frame", &summary.body_frame);
    let Mount { position: [x, y, z], orientation: [roll, pitch, yaw] } = mount(recording);
    let turned = format!("roll {roll:.3}, pitch {pitch:.3}, yaw {yaw:.3} rad");
    table.row("sensor on body", format!("({x:.3}, {y:.3}, {z:.3}) m, {turned}"));
    table.rows("notes", &summary.notes);
    table.rows("lost", &recording.loss.items);
    table
}

fn chosen(choice: &Choice, frame: &str) -> String {
    let others = if choice.others.is_empty() { String::new() } else { format!(", not {}", choice.others.join(", ")) };
    format!("{} in frame {frame}{others}", choice.topic)
}
