//! `magmap calibrate`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use magmap::config::{Config, Mapped, Program};
use magmap::sensing::intake::Input;
use magmap::sensing::reading::Measurement;
use magmap::trajectory::Delay;
use magmap_tools::calibration::{Agreement, Calibration, Estimate, SpeedBias, calibrate};
use magmap_tools::cli::{Ending, SettingsArguments, Terminal};

use crate::summary::{Table, print_json};

const EXAMPLES: &str = "\
Examples:
  magmap calibrate house.mcap
  magmap calibrate house.mcap --out sensor.toml && magmap replay house.mcap --config sensor.toml
  magmap calibrate bag --yaml ~/.ros/magnetometer_calib.yaml
  magmap calibrate bag --json | jq .hard_iron

An ordinary drive of half a minute or more is enough if it passes the same places under different headings. \
What the drive does not determine is left out, with the reason. Fails if it determines neither hard iron nor yaw, or if \
the unit is wrong.";

/// Most measurements that are read: some hours of driving.
const MOST_MEASUREMENTS: usize = 2_000_000;

/// Calibrates the magnetometer from an ordinary drive: hard iron, yaw of the mount, delay, unit, currents of the
/// motors.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Calibrate {
    /// The recording: an Aalto drive (FOLDER/invensense/3), an .mcap or .db3 file, a rosbag2 folder.
    recording: PathBuf,
    #[command(flatten)]
    settings: SettingsArguments,
    /// Write the section [sensor] of the settings, and [vector] if needed, for --config.
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
    /// Write the hard iron for the ROS package magnetometer_pipeline.
    #[arg(long, value_name = "magnetometer_calib.yaml")]
    yaml: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let mut base = Config::default();
        base.model.field = Mapped::Vector;
        let config = self.settings.load_for(Program::Calibrate, base)?;
        let recording = self.settings.open(&self.recording, &config)?;
        let (mount, loss) = (recording.mount, recording.loss.clone());
        let measurements = measurements(recording.inputs())?;
        let bar = terminal.bar("calibrating", 1000);
        let calibration = calibrate(&measurements, mount, &config, |share| bar.set_position((1000.0 * share) as u64))?;
        bar.finish_and_clear();
        if self.json {
            print_json(&calibration)?
        } else {
            table(&calibration).print()?
        }
        let ending = Ending::with(&loss);
        let is_told = calibration.hard_iron.is_some() || calibration.yaw.is_some();
        if !is_told {
            bail!("the drive does not calibrate the magnetometer: {}", calibration.shortcomings.join("; "));
        }
        self.write_files(&calibration, &config)?;
        Ok(ending)
    }

    fn write_files(&self, calibration: &Calibration, config: &Config) -> anyhow::Result<()> {
        let outputs = [
            (&self.out, calibration.to_toml(&config.sensor), "nothing differs from the settings: not written"),
            (&self.yaml, calibration.to_bias_yaml(), "the hard iron is not known: not written"),
        ];
        for (path, text, otherwise) in outputs {
            match (path, text) {
                (Some(path), Some(text)) => write(path, &text)?,
                (Some(path), None) => log::warn!("{}: {otherwise}", path.display()),
                (None, _) => {}
            }
        }
        Ok(())
    }
}

/// The readings and poses of a recording, as far as one calibration goes.
fn measurements<E>(inputs: impl Iterator<Item = Result<Input, E>>) -> Result<Vec<Measurement>, E> {
    let mut measurements = Vec::new();
    for input in inputs {
        match input? {
            Input::Stretch => {
                log::warn!("only what was recorded before the clock went back is used");
                break;
            }
            Input::Measurement(_) if measurements.len() == MOST_MEASUREMENTS => {
                log::warn!("the drive is long: only its first {MOST_MEASUREMENTS} readings and poses are used");
                break;
            }
            Input::Measurement(measurement) => measurements.push(measurement),
            Input::Mount(_) | Input::UnknownMount => {}
        }
    }
    Ok(measurements)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The results, for people.
fn table(calibration: &Calibration) -> Table {
    let Calibration { readings, used_readings, path, headings, unit, .. } = calibration;
    let mut table = Table::default();
    table.row("drive", format!("{path:.1} m, {used_readings} of {readings} readings used"));
    table.row("headings", in_words(headings));
    let median = unit.median_strength;
    let verdict = match &unit.suspected {
        Some(unit) => {
            let found = format!("median {median:.3e} µT: sensor_msgs/MagneticField is in tesla");
            format!("{found}, these readings seem to be in {unit}")
        }
        None if unit.is_like_earth => format!("median {median:.1} µT, like the Earth's (22 to 67 µT)"),
        None => {
            format!("median {median:.1} µT, not like the Earth's (22 to 67 µT): steel nearby, or a large hard iron")
        }
    };
    table.row("strength", verdict);
    if let Some(hard_iron) = calibration.hard_iron {
        let component = |i: usize| match hard_iron.sd[i] {
            Some(sd) => format!("{:.2} ± {sd:.2}", hard_iron.value[i]),
            None => "unknown".to_owned(),
        };
        let components = [0, 1, 2].map(component).join(", ");
        table.row("hard iron", format!("({components}) µT along the sensor's axes"));
    }
    if let Some(Estimate { value, sd }) = calibration.yaw {
        let (value, sd) = (value.to_degrees(), sd.to_degrees());
        let words = "from the recorded one; half a turn more would look like steel on the other side";
        table.row("yaw of the mount", format!("{value:.1}° ± {sd:.1}° {words}"));
    }
    if let Some(Estimate { value, sd }) = calibration.delay {
        table.row("delay", Delay { seconds: value, deviation: sd, end: None });
    }
    if let Some(Agreement { pairs, before, after }) = calibration.agreement {
        let words = format!("readings differ by {before:.2} µT, calibrated by {after:.2} µT ({pairs} pairs)");
        table.row("at one place", words);
    }
    match calibration.speed_bias {
        Some(SpeedBias { value: [x, y, z], is_significant, .. }) => {
            let verdict =
                if is_significant { "the bias grows with the speed" } else { "no bias that grows with the speed" };
            table.row("speed", format!("{verdict}: ({x:.2}, {y:.2}, {z:.2}) µT per m/s along the robot's axes"));
        }
        None => table.row("speed", "hardly changes: whether the bias grows with it remains unknown"),
    }
    if calibration.inflation > 1.0 {
        let factor = calibration.inflation;
        table.row("±", format!("standard deviations, times {factor:.1} because neighbouring readings share errors"));
    }
    table.rows("not calibrated", &calibration.shortcomings);
    table
}

/// The headings that were driven, and those that are missing: less than half a metre.
fn in_words(headings: &[f64; 8]) -> String {
    let (mut driven, mut missing) = (Vec::new(), Vec::new());
    for (degrees, metres) in (0..).step_by(45).zip(headings) {
        match *metres >= 0.5 {
            true => driven.push(format!("{degrees}° {metres:.1} m")),
            false => missing.push(format!("{degrees}°")),
        }
    }
    let driven = driven.join(", ");
    if missing.is_empty() { driven } else { format!("{driven}; missing: {}", missing.join(", ")) }
}
