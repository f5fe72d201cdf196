//! The offline main job: a recording goes in, a folder with the map of its field comes out.
//!
//! ```text
//! measurements ── inbox ── mapping thread ── every update ── drawing thread ── map.mcap
//! (paced)         waits    pipeline, model                   raster
//! ```
//!
//! [`Replay::start`] starts both threads, [`Replay::run`] sends the measurements, nothing of which is lost, and writes the
//! rest of the folder when they have ended:
//!
//! | file | holds |
//! | --- | --- |
//! | `map.png`, `uncertainty.png` | mean and standard deviation, with the path and the inducing points |
//! | `growth.png` | inducing points, hyperparameters and time, batch by batch |
//! | `map.npz` | grids, inducing points, hyperparameters and path as arrays ([`MapArrays`](crate::export::MapArrays)) |
//! | `mean.*`, `standard_deviation.*` | the grids for nav2's `map_server` |
//! | `map.mcap` | the grids over time ([`MEAN_TOPIC`], [`VARIANCE_TOPIC`]) |
//! | `report.json` | everything that happened ([`Report`]) |
//! | `config.toml` | the settings that made it |

mod drawing;
mod grids;
mod outputs;
mod pace;
mod report;
mod truth;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nalgebra::Isometry3;
use serde_json::Value;

use self::drawing::{Drawing, History};
use self::outputs::OutputFolder;
use self::pace::Pace;
use crate::config::Config;
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::FieldModel;
use crate::mapping::grid::FieldGrid;
use crate::mapping::pipeline::Pipeline;
use crate::mapping::reading::Measurement;
use crate::mapping::worker::{Finished, Mode, Observer, StopSignal, Worker};
use crate::recording::{Loss, Lost, Recording};

pub use self::grids::{MEAN_TOPIC, VARIANCE_TOPIC};
pub use self::report::{BatchRecord, Report, Totals};
pub use self::truth::Comparison;

/// Why a replay came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are impossible.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// The output folder holds something.
    #[error("{} is not empty; name another folder, or say --force to replace what a replay writes there", .0.display())]
    NotEmpty(PathBuf),
    /// The operating system does not say what is in the output folder.
    #[error("cannot look into the output folder {}: {source}", path.display())]
    ReadFolder {
        /// The folder.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// A factor that no replay can have.
    #[error("speed: expected a finite real-time factor, 0 (as fast as it goes) or above, found {0}")]
    Speed(f64),
    /// No thread for drawing.
    #[error("the drawing thread could not be started: {0}")]
    Spawn(#[source] std::io::Error),
    /// The drawing thread panicked.
    #[error("the drawing thread panicked; nothing but the settings was written")]
    DrawingPanicked,
    /// No batch became part of a map.
    #[error(
        "there is no map: of {readings} readings and {poses} poses {used} readings could be used{}",
        because(reasons)
    )]
    NothingMapped {
        /// Readings received.
        readings: u64,
        /// Poses received.
        poses: u64,
        /// Readings that passed the gates and found their pose.
        used: u64,
        /// Why the others were refused, and batches.
        reasons: Vec<String>,
    },
    /// The mapping thread failed, or the map cannot be drawn.
    #[error(transparent)]
    Mapping(#[from] crate::mapping::Error),
    /// An output could not be written.
    #[error(transparent)]
    Export(#[from] crate::export::Error),
    /// `map.mcap` could not be written.
    #[error(transparent)]
    Grids(#[from] crate::recording::Error),
}

fn because(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!("; refused were {}", reasons.join(", ")) }
}

/// Where measurements come from, but for the measurements themselves.
#[derive(Clone, Debug)]
pub struct Source {
    /// What to call it in pictures.
    pub name: String,
    /// What is known of it, for the report.
    pub about: Value,
    /// The transform from the sensor's frame to the robot's body frame.
    pub mount: Isometry3<f64>,
    /// The frame of the poses, which is that of the map.
    pub frame: String,
    /// What of it is known to be missing.
    pub loss: Loss,
}

impl Source {
    /// That of a recording.
    pub fn of_recording(recording: &Recording) -> Self {
        let summary = recording.summary();
        Self {
            name: display_name(&summary.path),
            about: serde_json::to_value(summary).unwrap_or_default(),
            mount: recording.mount(),
            frame: summary.odometry_frame.clone(),
            loss: recording.loss().clone(),
        }
    }
}

/// The last two parts of a path where the last alone says too little: `invensense/3`, `house.mcap`.
fn display_name(path: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let last = name(path).unwrap_or_else(|| path.display().to_string());
    match path.parent().and_then(name) {
        Some(parent) if last.chars().count() <= 2 => format!("{parent}/{last}"),
        _ => last,
    }
}

/// How to replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Stamps pass at this multiple of real time; 0: as fast as it goes.
    pub speed: f64,
    /// Whether outputs may be replaced in a folder that is not empty.
    pub force: bool,
}

/// How far a replay has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Readings and poses that went through the pipeline.
    pub measurements: u64,
    /// Batches learnt.
    pub batches: u64,
    /// Inducing points.
    pub inducing_points: usize,
}

/// A replay whose threads run and wait for measurements.
pub struct Replay {
    config: Config,
    source: Source,
    options: Options,
    folder: OutputFolder,
    worker: Worker<FieldModel>,
    drawing: Drawing,
    started: Instant,
}

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Everything that happened; also in `report.json`.
    pub report: Report,
    /// The final map.
    pub grid: FieldGrid,
    /// The files written.
    pub files: Vec<PathBuf>,
}

impl Replay {
    /// Makes the folder and starts the threads. `progress` is told about every batch, on the mapping thread.
    ///
    /// # Errors
    /// Impossible settings, a folder that is not empty (unless forced) or cannot be made, no threads.
    pub fn start(
        config: &Config,
        source: Source,
        folder: &Path,
        options: Options,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Self, Error> {
        config.validate()?;
        if !(options.speed.is_finite() && options.speed >= 0.0) {
            return Err(Error::Speed(options.speed));
        }
        let folder = OutputFolder::prepare(folder, options.force)?;
        let drawing = Drawing::start(config, &source.frame, folder.path())?;
        let mut draw = drawing.observer();
        let observer: Observer<FieldSnapshot> = Box::new(move |batch, update| {
            progress(report::progress(update));
            draw(batch, update);
        });
        let pipeline = Pipeline::new(config, source.mount);
        let worker = Worker::spawn(&config.worker, Mode::Offline, pipeline, FieldModel::new(config), Some(observer))?;
        let started = Instant::now();
        Ok(Self { config: config.clone(), source, options, folder, worker, drawing, started })
    }

    /// Ends the replay early when set: the batch that is being learnt is closed, what was sent becomes part of the map, and the
    /// outputs are written.
    pub fn stop_signal(&self) -> StopSignal {
        self.worker.stop_signal()
    }

    /// Sends the measurements, waits for the map and writes the outputs. An error of the source ends the measurements, and is
    /// reported as loss.
    ///
    /// # Errors
    /// [`Error::NothingMapped`], a map that cannot be drawn, and outputs that cannot be written.
    pub fn run<E: Display>(
        mut self,
        measurements: impl IntoIterator<Item = Result<Measurement, E>>,
    ) -> Result<Outcome, Error> {
        self.feed(measurements);
        let interrupted = self.worker.stop_signal().is_stopped();
        let finished = self.worker.join()?;
        let history = self.drawing.join()?;
        check_mapped(&finished, &history)?;
        let context = report::Context { source: self.source, interrupted, started: self.started };
        outputs::write(&self.folder, &self.config, context, &finished, history)
    }

    fn feed<E: Display>(&mut self, measurements: impl IntoIterator<Item = Result<Measurement, E>>) {
        let (inbox, stop) = (self.worker.inbox(), self.worker.stop_signal());
        let mut pace = Pace::new(self.options.speed);
        for measurement in measurements {
            let measurement = match measurement {
                Ok(measurement) => measurement,
                Err(error) => {
                    log::error!("reading ended early: {error}");
                    let what = format!("everything after the source failed: {error}");
                    self.source.loss.items.push(Lost { what, count: None, first: None });
                    return;
                }
            };
            pace.wait_for(measurement.stamp(), &stop);
            // Whoever has ended says why when joined.
            if stop.is_stopped() || self.drawing.has_ended() || inbox.send(measurement).is_err() {
                return;
            }
        }
    }
}

/// Refuses a replay without a map, with the reasons.
fn check_mapped(finished: &Finished<FieldModel>, history: &History) -> Result<(), Error> {
    if finished.learner.posterior().is_some() {
        return Ok(());
    }
    let counters = finished.pipeline.counters();
    let refused = counters.refusals.iter().filter(|(_, count)| *count > 0);
    let refused_readings = refused.map(|(refusal, count)| format!("{count} {refusal}"));
    let refused_batches = history.records.iter().filter_map(|record| record.refused.clone());
    Err(Error::NothingMapped {
        readings: counters.readings,
        poses: counters.poses,
        used: counters.used_readings,
        reasons: refused_readings.chain(refused_batches).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_called_what_tells_it_from_others() {
        assert_eq!(display_name(Path::new("data/invensense/3")), "invensense/3");
        assert_eq!(display_name(Path::new("bags/house.mcap")), "house.mcap");
        assert_eq!(display_name(Path::new("3")), "3");
    }
}
