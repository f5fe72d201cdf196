//! `magmap bench`.

use std::io::{self, Write};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use magmap::config::{Config, Mapped, Program};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::field::raster::rasterize;
use magmap::localization::{Localizer, Start};
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::Measurement;
use magmap_tools::cli::{Ending, SettingsArguments, Terminal, number};
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, Simulation};

const EXAMPLES: &str = "\
Examples:
  magmap bench                         a room of 10 m by 10 m, in some ten seconds
  magmap bench --side 20               a larger room: an update costs the same, as the map is made of tiles
  magmap bench --set selection.delta=0.5    with other settings

Maps a simulated room, of strengths and of the three axes, and finds the robot on a second drive through each map. All on one core.";

/// Distance between the lanes of the drive, in metres.
const LANES: f64 = 0.8;

/// Particles of the filter.
const PARTICLES: usize = 2000;

/// Measures what this computer can do: one table, for instance for an issue.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// Side of the room, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 10.0, value_parser = side)]
    side: f64,
    #[command(flatten)]
    settings: SettingsArguments,
}

fn side(text: &str) -> Result<f64, String> {
    number(text, "metres between 2 and 100", |side| (2.0..=100.0).contains(side))
}

impl Bench {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.settings.load_for(Program::Bench, Config::default())?;
        if cfg!(debug_assertions) {
            log::warn!("this is a debug build: cargo run --release -- bench measures what you would use");
        }
        let drive = BenchDrive::through(self.side)?;
        let bar = terminal.bar("measuring", 4 * drive.measurements.len() as u64);
        let of = |field| {
            let mut config = config.clone();
            config.model.field = field;
            config.validate()?;
            drive.measure(&config, &bar)
        };
        let figures = [of(Mapped::Strength)?, of(Mapped::Vector)?];
        bar.finish_and_clear();
        drive.print(&mut io::stdout().lock(), &figures)?;
        Ok(Ending::Done)
    }
}

/// A drive through every part of a square room.
struct BenchDrive {
    side: f64,
    length: f64,
    duration: f64,
    measurements: Vec<Measurement>,
    readings: usize,
}

/// Measurements; durations are in seconds.
#[derive(Debug)]
struct Figures {
    inducing_points: usize,
    /// Duration of mapping, from the first measurement to the last update.
    mapping: f64,
    /// Every update, in ascending order.
    updates: Vec<f64>,
    cells: usize,
    raster: f64,
    /// Duration of localization, from the first measurement to the last.
    localization: f64,
    localization_updates: usize,
}

impl BenchDrive {
    fn through(side: f64) -> anyhow::Result<Self> {
        let size = [side; 2];
        let route = Route::LawnMower { spacing: LANES };
        // Lanes in one direction only.
        let length = 0.5 * route.length(size)?.context("lanes have an end")?;
        let robot = RobotOptions::default();
        let duration = length / robot.speed;
        let simulation = Simulation { seed: 3, world: DipoleOptions::of_size(size), route, robot, duration };
        let drive = simulation.drive(simulation.world()?)?;
        let measurements: Vec<Measurement> = drive.map(|sample| sample.measurement).collect();
        let readings = measurements.iter().filter(|one| one.pose().is_none()).count();
        Ok(Self { side, length, duration, measurements, readings })
    }

    fn measure(&self, config: &Config, bar: &ProgressBar) -> anyhow::Result<Figures> {
        let mount = RobotOptions::default().mount;
        let (mut pipeline, mut model) = (Pipeline::new(config, mount), FieldModel::new(config));
        let mut updates = Vec::new();
        let start = Instant::now();
        for measurement in bar.wrap_iter(self.measurements.iter()) {
            pipeline.ingest(*measurement);
            while let Some(batch) = pipeline.next_batch() {
                let start = Instant::now();
                model.update(&batch.observations, &|| false)?;
                updates.push(start.elapsed().as_secs_f64());
            }
        }
        let mapping = start.elapsed().as_secs_f64();
        updates.sort_by(f64::total_cmp);
        let map = model.map().context("expected a drive of at least one batch")?;

        let start = Instant::now();
        let cells = rasterize(&config.raster, &map, &[])?.geometry.len();
        let raster = start.elapsed().as_secs_f64();
        let (localization, localization_updates) = self.localize(config, &map, bar)?;
        let inducing_points = map.size();
        Ok(Figures { inducing_points, mapping, updates, cells, raster, localization, localization_updates })
    }

    /// Follows the robot on the same drive, from where it started; how long that takes, and in how many updates.
    fn localize(&self, config: &Config, map: &FieldMap, bar: &ProgressBar) -> anyhow::Result<(f64, usize)> {
        let mut config = config.clone();
        (config.localization.min_particles, config.localization.max_particles) = (PARTICLES, PARTICLES);
        let first = self.measurements.iter().find_map(Measurement::pose).context("a drive begins with a pose")?;
        let start = Start::given(first.position.xy().into(), first.orientation.euler_angles().2);
        let mut localizer = Localizer::new(&config, map, RobotOptions::default().mount, start)?;
        let begun = Instant::now();
        let updates = bar.wrap_iter(self.measurements.iter()).filter_map(|one| localizer.ingest(*one)).count();
        Ok((begun.elapsed().as_secs_f64(), updates))
    }

    fn print(&self, out: &mut impl Write, figures: &[Figures; 2]) -> io::Result<()> {
        let Self { side, length, duration, readings, .. } = self;
        writeln!(out, "magmap {} on {}", env!("CARGO_PKG_VERSION"), processor())?;
        writeln!(out, "a room of {side} m by {side} m, {length:.0} m of path, {readings} readings in {duration:.0} s")?;
        writeln!(out, "\n{:42}{:>14}{:>14}", "", "strength", "three axes")?;
        let mut line = |label: &str, value: &dyn Fn(&Figures) -> String| {
            let [strength, axes] = figures.each_ref().map(value);
            writeln!(out, "{label:42}{strength:>14}{axes:>14}")
        };
        let milliseconds = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
        let of_core = |seconds: f64| format!("{:.2} %", 100.0 * seconds / duration);
        line("inducing points", &|figures| figures.inducing_points.to_string())?;
        line("mapping, readings per second", &|figures| format!("{:.0}", *readings as f64 / figures.mapping))?;
        line("mapping, of one core while driving", &|figures| of_core(figures.mapping))?;
        line("an update, median", &|figures| milliseconds(figures.updates[figures.updates.len() / 2]))?;
        line("an update, slowest", &|figures| milliseconds(figures.slowest()))?;
        line("a raster of the whole room", &|figures| milliseconds(figures.raster))?;
        line("its cells", &|figures| figures.cells.to_string())?;
        line(&format!("localization, updates per second, {PARTICLES} particles"), &|figures| {
            format!("{:.0}", figures.localization_updates as f64 / figures.localization)
        })?;
        line("localization, of one core while driving", &|figures| of_core(figures.localization))?;
        Ok(())
    }
}

impl Figures {
    fn slowest(&self) -> f64 {
        self.updates.last().copied().unwrap_or_default()
    }
}

/// The processor: its name, its architecture, the widest vectors it has, and how many threads it runs.
fn processor() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        information.lines().find(|line| line.starts_with(key))?.split_once(':').map(|(_, name)| name.trim())
    };
    let name = value("model name").or_else(|| value("Model")).unwrap_or("an unknown processor");
    let threads = available_parallelism().map_or(1, usize::from);
    format!("{name} ({}, {}, {threads} threads)", std::env::consts::ARCH, vectors())
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "SSE2"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "no known vectors" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_room_is_measured_with_figures_that_agree() {
        let drive = BenchDrive::through(3.0).unwrap();
        let mut config = Config::default();
        config.learning.max_evaluations = 5;
        let figures = drive.measure(&config, &ProgressBar::hidden()).unwrap();
        // 50 readings a second on a path of 5 m a batch, the last of which may be short.
        assert!((drive.readings as f64 - 50.0 * drive.duration).abs() <= 2.0, "{} {}", drive.readings, drive.duration);
        assert!((figures.updates.len() as f64 - drive.length / 5.0).abs() <= 2.0, "{figures:?}");
        assert!((5..100).contains(&figures.inducing_points), "{figures:?}");
        assert!(figures.updates.is_sorted());
        assert!(figures.updates.iter().sum::<f64>() <= figures.mapping, "{figures:?}");
        // One each 5 cm, but the first.
        assert!(
            (figures.localization_updates as f64 - drive.length / 0.05).abs() <= 0.1 * drive.length / 0.05,
            "{figures:?}"
        );

        let mut table = Vec::new();
        drive.print(&mut table, &[figures, drive.measure(&config, &ProgressBar::hidden()).unwrap()]).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(table.contains("a room of 3 m by 3 m"), "{table}");
        assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    }
}
