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
//! | `checkpoint.npz` | everything that is needed to go on with the map ([`Checkpoint`](crate::mapping::checkpoint::Checkpoint)) |
//!
//! As long as it runs, a [journal](crate::mapping::journal) in the folder `journal` keeps what was mapped: a replay that was
//! interrupted, in whatever way, can be resumed there.

mod beginning;
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

use self::beginning::Beginning;
use self::drawing::{Drawing, History};
use self::outputs::OutputFolder;
use self::pace::Pace;
use crate::config::Config;
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::FieldModel;
use crate::mapping::grid::FieldGrid;
use crate::mapping::learner::StopSignal;
use crate::mapping::mapper::{Mapper, SourceId};
use crate::mapping::reading::Measurement;
use crate::mapping::worker::{Finished, Mode, Observer, Worker};
use crate::recording::{Loss, Lost, Recording};
use streaming_gp::places::Places;

pub use self::beginning::Resumed;
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
    #[error(
        "{} is not empty; name another folder, say --resume to go on with what a replay left there, or --force to replace it",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// The operating system does not say what is in the output folder.
    #[error("cannot look into the output folder {}: {source}", path.display())]
    ReadFolder {
        /// The folder.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// The recording is in the map already.
    #[error("{name} is in the map of {} already: there is nothing to do; say --force to map it anew", path.display())]
    AlreadyMapped {
        /// The file of the map.
        path: PathBuf,
        /// The recording.
        name: String,
    },
    /// The map and the recording have coordinates of different frames.
    #[error("{} is a map of frame \"{kept}\", but the recording is of \"{found}\"; go on with a recording of the same frame", path.display())]
    OtherFrame {
        /// The file of the map.
        path: PathBuf,
        /// Its frame.
        kept: String,
        /// That of the recording.
        found: String,
    },
    /// The journal cannot be kept, or not be gone on with.
    #[error(transparent)]
    Journal(#[from] crate::mapping::journal::Error),
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
    /// Tells it from others, however they are called.
    pub id: SourceId,
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
            id: recording.id(),
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
    /// Whether outputs may be replaced in a folder that is not empty, and the journal of a replay that was interrupted forgotten.
    pub force: bool,
    /// Whether to go on with what is in the folder: where a replay of the same recording was interrupted, or with a finished map.
    pub resume: bool,
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

impl Progress {
    fn of(mapper: &Mapper<FieldModel>) -> Self {
        let counters = mapper.pipeline().counters();
        let inducing_points = mapper.learner().posterior().map_or(0, |posterior| posterior.inducing().len());
        let batches = mapper.standing().versions;
        Self { measurements: counters.readings + counters.poses, batches, inducing_points }
    }
}

/// A replay whose threads run and wait for measurements.
pub struct Replay {
    config: Config,
    source: Source,
    options: Options,
    folder: OutputFolder,
    worker: Worker<FieldModel>,
    drawing: Drawing,
    resumed: Option<Resumed>,
    /// Whether the map has begun with this recording already.
    has_begun: bool,
    /// Whether the map has the mount of this recording's sensor already.
    has_mount: bool,
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
    /// Makes the folder, goes back to where a replay was interrupted if that is wanted, and starts the threads. `progress` is told
    /// about every batch, on the mapping thread.
    ///
    /// # Errors
    /// Impossible settings, a folder that is not empty (unless forced or resumed) or cannot be made, what cannot be gone on with, no
    /// threads.
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
        let folder = OutputFolder::prepare(folder, options.force || options.resume)?;
        let beginning = Beginning::find(config, &source, folder.path(), options, &mut progress)?;
        let drawing = Drawing::start(config, &source.frame, folder.path(), &beginning.mapper)?;
        let mut draw = drawing.observer();
        let observer: Observer<FieldSnapshot> = Box::new(move |observations, update| {
            progress(report::progress(update));
            draw(observations, update);
        });
        let Beginning { mapper, journal, resumed } = beginning;
        let has_begun = mapper.standing().source() == Some(&source.id);
        let has_mount = *mapper.pipeline().mount() == source.mount;
        let keeper = Beginning::keeper(journal);
        let worker = Worker::resume(&config.worker, Mode::Offline, mapper, keeper, Some(observer))?;
        let started = Instant::now();
        let config = config.clone();
        Ok(Self { config, source, options, folder, worker, drawing, resumed, has_begun, has_mount, started })
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
        self.feed(measurements)?;
        let interrupted = self.worker.stop_signal().is_stopped();
        let finished = self.worker.join()?;
        let history = self.drawing.join()?;
        if let Err(nothing) = check_mapped(&finished, &history) {
            // What led to no map is not gone on with.
            beginning::remove_journal(self.folder.path())?;
            return Err(nothing);
        }
        let context =
            report::Context { source: self.source, interrupted, resumed: self.resumed, started: self.started };
        let outcome = outputs::write(&self.folder, &self.config, context, &finished, history)?;
        // What was interrupted can be resumed.
        if !interrupted {
            beginning::remove_journal(self.folder.path())?;
        }
        Ok(outcome)
    }

    fn feed<E: Display>(
        &mut self,
        measurements: impl IntoIterator<Item = Result<Measurement, E>>,
    ) -> Result<(), Error> {
        let (inbox, stop) = (self.worker.inbox(), self.worker.stop_signal());
        let mut pace = Pace::new(self.options.speed);
        let mapped = self.resumed.as_ref().map_or(0, |resumed| resumed.measurements);
        if !self.has_begun {
            // A recording is the same whenever it is replayed, and so is its map.
            inbox.begin(self.source.id.clone(), String::new())?;
        }
        // Only a recording that follows another can find its sensor elsewhere, and that only once.
        if !self.has_mount {
            inbox.set_mount(self.source.mount)?;
        }
        for measurement in measurements.into_iter().skip(usize::try_from(mapped).unwrap_or(usize::MAX)) {
            let measurement = match measurement {
                Ok(measurement) => measurement,
                Err(error) => {
                    log::error!("reading ended early: {error}");
                    let what = format!("everything after the source failed: {error}");
                    self.source.loss.items.push(Lost { what, count: None, first: None });
                    break;
                }
            };
            pace.wait_for(measurement.stamp(), &stop);
            // Whoever has ended says why when joined.
            if stop.is_stopped() || self.drawing.has_ended() || inbox.send(measurement).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Refuses a replay without a map, with the reasons.
fn check_mapped(finished: &Finished<FieldModel>, history: &History) -> Result<(), Error> {
    if finished.mapper.learner().posterior().is_some() {
        return Ok(());
    }
    let counters = finished.mapper.pipeline().counters();
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
