//! Offline mapping: from a recording to a folder with the map of its field.
//!
//! ```text
//! messages ── intake ── inbox ── mapping thread ── every update ── drawing thread ── map.mcap, and to those who watch
//!             (paced)   waits    pipeline, model                   raster
//! ```
//!
//! [`Replay::start`] starts both threads, [`Replay::run`] sends the messages without loss and writes the rest of the folder
//! when the threads have ended:
//!
//! | file | holds |
//! | --- | --- |
//! | `map.png`, `uncertainty.png` | mean and standard deviation, with the path and the inducing points |
//! | `vectors.png` | of a map of the three axes: the horizontal field as arrows |
//! | `path.png`, `trajectory.tum` | where the field has corrected the path: odometry beside it, and the poses of the body |
//! | `growth.png` | inducing points, hyperparameters, hard iron and time, batch by batch |
//! | `map.npz` | grids, axes, inducing points, hyperparameters, hard iron and path as arrays ([`MapArrays`](crate::export::MapArrays)) |
//! | `mean.*`, `standard_deviation.*` | the grids for nav2's `map_server` |
//! | `map.mcap` | the grids over time ([`MEAN_TOPIC`], [`VARIANCE_TOPIC`]) |
//! | `report.json` | counts, rejections, and every batch ([`ReplayReport`]) |
//! | `config.toml` | the settings that made it |
//! | `map.magmap` | the map itself, to be continued, with its trajectory ([`store`](magmap::store)) |
//!
//! While it runs, every step is written into `map.magmap`, so that a replay that was interrupted in any way can be resumed.

mod batch_record;
mod corrected_path;
mod drawing;
mod grids;
mod growth_picture;
mod outputs;
mod pace;
mod report;
mod start;
mod truth;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use self::corrected_path::{CorrectedPath, correction_to};
use self::drawing::{Drawing, History};
use self::pace::Pace;
use self::report::Context;
use self::start::ReplayStart;
use crate::export::file::{create_folder, holds_files};
use crate::recording::writer::MessageWriter;
use crate::recording::{Kind, Loss, Lost, Recording, nothing_used, tum};
use magmap::config::Config;
use magmap::field::grid::StrengthGrid;
use magmap::field::map::FieldMap;
use magmap::mapping::mapper::{Mapper, SourceId, Step};
use magmap::mapping::stop::StopSignal;
use magmap::mapping::thread::{Finished, MappingThread, Mode, Observer};
use magmap::mapping::updates::Update;
use magmap::sensing::counters::Counters;
use magmap::sensing::intake::{Input, Intake, IntakeStatus, SensorMessage};
use magmap::sensing::reading::{Measurement, Observation, Pose};
use magmap::store::map_file::{self, FILE_NAME};
use magmap::trajectory::Correction;

pub use self::batch_record::BatchRecord;
pub use self::corrected_path::{PathErrors, PathReport, SlamReport};
pub use self::grids::{MEAN_TOPIC, VARIANCE_TOPIC};
pub use self::report::{ReplayReport, ReplayTotals};
pub use self::start::Resumed;
pub use self::truth::TruthComparison;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] magmap::config::Error),
    /// The output folder is not empty.
    #[error(
        "{} is not empty; choose another folder, --resume to continue what a replay left there, or --force to replace it",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// The output folder, or a file in it, cannot be read, written or removed.
    #[error(transparent)]
    File(#[from] magmap::files::FileError),
    /// The recording is in the map already.
    #[error("{name} is already in the map of {}: nothing to do; use --force to map it again", path.display())]
    AlreadyMapped {
        /// The file of the map.
        path: PathBuf,
        /// The recording.
        name: String,
    },
    /// The recording cannot be added to a map, for this reason.
    #[error("{0}")]
    Refused(String),
    /// No pose that replaces those of odometry can be placed.
    #[error(
        "no pose of the trajectory can be placed in the recording: its stamps must be those of the recording, in seconds, and those of the \
         recording must not go back; with another file, use --force to begin again"
    )]
    NoPose,
    /// The real-time factor is invalid.
    #[error("speed: expected a finite real-time factor, 0 (as fast as possible) or above, found {0}")]
    Speed(f64),
    /// The operating system could not start the drawing thread.
    #[error("the drawing thread could not be started: {0}")]
    Spawn(#[source] std::io::Error),
    /// The drawing thread panicked.
    #[error("the drawing thread panicked; no outputs were written")]
    DrawingPanicked,
    /// No batch was learnt: what was received, and why it was rejected.
    #[error("there is no map: {0}")]
    NothingMapped(String),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] magmap::mapping::Error),
    /// The map cannot be drawn, or cannot be continued with these settings.
    #[error(transparent)]
    Field(#[from] magmap::field::Error),
    /// The file of the map cannot be written or read.
    #[error(transparent)]
    Map(#[from] magmap::store::Error),
    /// An output could not be written.
    #[error(transparent)]
    Export(#[from] crate::export::Error),
    /// `map.mcap` could not be written, or the file of a trajectory not be read.
    #[error(transparent)]
    Recording(#[from] crate::recording::Error),
}

/// The source of the messages. The frame of its poses, or of a map that `frames.map` names, is known to its intake.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the source in pictures.
    pub name: String,
    /// Identity of the source, independent of the name.
    pub id: SourceId,
    /// A description for the report.
    pub about: Value,
    /// The intake of its messages.
    pub intake: Intake,
    /// Known missing parts.
    pub loss: Loss,
    /// Whether its poses are in a frame that other recordings share, as surveys do. Odometry otherwise begins anywhere.
    pub is_frame_shared: bool,
    /// True poses of the body, in the order of their stamps, with which a corrected path is compared; may be empty.
    pub truth: Vec<Pose>,
}

impl Source {
    /// The frame of a map that is made of it alone.
    pub(crate) fn frame(&self) -> &str {
        self.intake.map_frame().unwrap_or_default()
    }

    /// The source of a recording.
    pub fn of_recording(recording: &Recording) -> Self {
        let summary = &recording.summary;
        Self {
            name: display_name(&summary.path),
            id: recording.id(),
            about: serde_json::to_value(summary).unwrap_or_default(),
            intake: recording.intake.clone(),
            loss: recording.loss.clone(),
            is_frame_shared: matches!(summary.kind, Kind::AaltoCsv | Kind::SurveyCsv),
            truth: Vec::new(),
        }
    }
}

/// The last part of a path, or the last two if the last is very short: `house.mcap`, `invensense/3`.
fn display_name(path: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let last = name(path).unwrap_or_else(|| path.display().to_string());
    match path.parent().and_then(name) {
        Some(parent) if last.chars().count() <= 2 => format!("{parent}/{last}"),
        _ => last,
    }
}

/// Options of a replay.
#[derive(Default)]
pub struct Options {
    /// Multiple of real time; 0: as fast as possible.
    pub speed: f64,
    /// Whether to replace the outputs in a folder that is not empty, and the map of an earlier replay.
    pub force: bool,
    /// Whether to continue an interrupted replay of the same recording, or a finished map, in the folder.
    pub resume: bool,
    /// Also gets the messages of `map.mcap`, as soon as they are made: the writer of a server for [`foxglove`](crate::foxglove).
    pub live: Option<MessageWriter>,
}

/// Progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Readings and poses that went through the pipeline.
    pub measurements: u64,
    /// Batches learnt.
    pub batches: u64,
    /// Inducing points.
    pub inducing_points: usize,
}

impl ReplayProgress {
    fn of(mapper: &Mapper) -> Self {
        Self::new(mapper.pipeline().counters(), mapper.progress().versions, mapper.model().map().as_ref())
    }

    fn after(update: &Update) -> Self {
        Self::new(&update.counters, update.number + 1, update.map.as_ref())
    }

    fn new(counters: &Counters, batches: u64, map: Option<&FieldMap>) -> Self {
        let measurements = counters.readings + counters.poses;
        Self { measurements, batches, inducing_points: map.map_or(0, FieldMap::size) }
    }
}

/// A running replay, whose threads wait for messages.
pub struct Replay {
    config: Config,
    speed: f64,
    folder: PathBuf,
    /// Number of inputs that are in the map already.
    skipped: usize,
    mapping: MappingThread,
    drawing: Drawing,
    context: Context,
    /// The poses of odometry, where the path is to be corrected.
    poses: Option<Vec<Pose>>,
    /// The poses that replace them.
    trajectory: Vec<Pose>,
}

/// The outputs of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOutputs {
    /// The report; also in `report.json`.
    pub report: ReplayReport,
    /// The final map.
    pub grid: StrengthGrid,
    /// The files written.
    pub files: Vec<PathBuf>,
}

impl Replay {
    /// Creates the folder, resumes an interrupted replay if requested, and starts the threads. `progress` is called after every batch
    /// on the mapping thread.
    ///
    /// # Errors
    /// Invalid settings, a folder that is not empty (unless forced or resumed) or cannot be created, a map that cannot be continued,
    /// threads that cannot be started.
    pub fn start(
        config: &Config,
        source: Source,
        folder: &Path,
        options: Options,
        mut progress: impl FnMut(ReplayProgress) + Send + 'static,
    ) -> Result<Self, Error> {
        config.validate()?;
        if !(options.speed.is_finite() && options.speed >= 0.0) {
            return Err(Error::Speed(options.speed));
        }
        let trajectory = match config.slam.trajectory.as_str() {
            "" => Vec::new(),
            file => tum::read(Path::new(file))?,
        };
        create_folder(folder)?;
        if !options.force && !options.resume && holds_files(folder)? {
            return Err(Error::NotEmpty(folder.to_owned()));
        }
        let start = ReplayStart::find(config, &source, folder, &options, &mut progress)?;
        let drawing = Drawing::start(config, folder, options.live, &start.mapper)?;
        let mut draw = drawing.observer();
        let observer: Observer = Box::new(move |observations, update| {
            progress(ReplayProgress::after(update));
            draw(observations, update);
        });
        let ReplayStart { mapper, log, resumed, skipped } = start;
        let has_begun = mapper.progress().source() == Some(&source.id);
        let mapping = MappingThread::start(Mode::WaitForLearning, mapper, Some(Box::new(log)), Some(observer))?;
        let inbox = &mapping.inbox;
        if !has_begun {
            // All runs of a recording are equal, and so are their maps.
            inbox.begin(source.id.clone(), String::new())?;
        }
        inbox.name_frame(source.frame())?;
        let context = Context { source, interrupted: false, resumed, started: Instant::now() };
        Ok(Self {
            config: config.clone(),
            speed: options.speed,
            folder: folder.to_owned(),
            skipped,
            mapping,
            drawing,
            context,
            poses: config.corrects_path().then(Vec::new),
            trajectory,
        })
    }

    /// Ends the replay early when set: learning stops at its next evaluation, what was sent becomes part of the map, and the outputs
    /// are written.
    pub fn stop_signal(&self) -> StopSignal {
        self.mapping.stop.clone()
    }

    /// Sends the messages through the intake, waits for the map and writes the outputs. An error of the source ends the messages and is
    /// reported as loss.
    ///
    /// # Errors
    /// [`Error::NothingMapped`], a map that cannot be drawn, or outputs that cannot be written.
    pub fn run<E: Display>(
        mut self,
        messages: impl IntoIterator<Item = Result<SensorMessage, E>>,
    ) -> Result<ReplayOutputs, Error> {
        let mut inputs = self.context.source.intake.clone().run(messages.into_iter());
        self.feed(&mut inputs);
        self.replace_path()?;
        self.context.interrupted = self.mapping.stop.is_stopped();
        let mut finished = self.mapping.join()?;
        let history = self.drawing.join()?;
        let (arrived, counters) = (&inputs.intake.status, &mut finished.status.counters);
        counters.readings += arrived.rejections.readings();
        counters.poses += arrived.rejections.poses();
        counters.rejections = counters.rejections.plus(&arrived.rejections);
        if let Err(nothing) = check_mapped(&finished, &history, arrived) {
            // There is nothing to resume.
            drop(finished);
            map_file::remove(&self.folder.join(FILE_NAME))?;
            return Err(nothing);
        }
        let path = self.poses.and_then(|poses| corrected_path(poses, &finished, &self.context.source.truth));
        if !self.context.interrupted
            && let Some(unplaced) = map_file::keep_unplaced(&self.folder.join(FILE_NAME), &finished.mapper)?
        {
            self.context.source.loss.items.push(Lost { what: unplaced.to_string(), count: None, first: None });
        }
        let outcome = outputs::write(&self.folder, &self.config, self.context, &finished, history, path.as_ref())?;
        // An interrupted replay can be resumed.
        if !outcome.report.interrupted {
            drop(finished);
            map_file::mark_saved(&self.folder.join(FILE_NAME))?;
        }
        Ok(outcome)
    }

    /// Makes the map again at the poses that replace those of odometry, if there are any.
    fn replace_path(&mut self) -> Result<(), Error> {
        let Some(poses) = self.poses.clone().filter(|_| !self.trajectory.is_empty()) else { return Ok(()) };
        // What was interrupted can be resumed, with batches that are cut as without an interruption.
        if self.mapping.stop.is_stopped() {
            return Ok(());
        }
        let trajectory = std::mem::take(&mut self.trajectory);
        self.mapping.flush()?;
        let is_placed = self.mapping.change(move |mapper| {
            let observations: Vec<Observation> = mapper.trajectory().observations().copied().collect();
            let correction = correction_to(&trajectory, &poses, &observations);
            let is_new = |correction: &Correction| *correction != mapper.trajectory().correction;
            (
                correction.is_some(),
                correction.filter(is_new).map(|correction| Step::Correct(correction, None)).into_iter().collect(),
            )
        })?;
        if is_placed || self.mapping.stop.is_stopped() { Ok(()) } else { Err(Error::NoPose) }
    }

    fn feed<E: Display>(&mut self, inputs: &mut impl Iterator<Item = Result<Input, E>>) {
        let (inbox, stop) = (&self.mapping.inbox, self.mapping.stop.clone());
        let mut pace = Pace::new(self.speed);
        for (index, input) in inputs.enumerate() {
            if let (Some(poses), Ok(Input::Measurement(Measurement::Pose(pose)))) = (&mut self.poses, &input) {
                poses.push(*pose);
            }
            if index < self.skipped {
                continue;
            }
            let input = match input {
                Ok(input) => input,
                Err(error) => {
                    self.context.source.loss.items.push(Lost::after(&error));
                    break;
                }
            };
            if let Input::Measurement(measurement) = input {
                pace.wait_for(measurement.stamp(), &stop);
            }
            // Joining the thread that has ended says why.
            if stop.is_stopped() || self.drawing.has_ended() || inbox.send(input).is_err() {
                break;
            }
        }
    }
}

/// The path of a recording with these poses, where it was corrected.
fn corrected_path(poses: Vec<Pose>, finished: &Finished, truth: &[Pose]) -> Option<CorrectedPath> {
    let trajectory = finished.mapper.trajectory();
    if trajectory.correction.nodes().is_empty() {
        return None;
    }
    let observations: Vec<Observation> = trajectory.observations().copied().collect();
    let online = finished.estimate.as_ref().map(|estimate| &estimate.online);
    let path = CorrectedPath::new(poses, &observations, &trajectory.correction, online, truth);
    if path.is_none() {
        log::warn!("the corrected path is in the map alone: stamps of the recording go back");
    }
    path
}

/// Fails without a map, with the reasons.
fn check_mapped(finished: &Finished, history: &History, arrived: &IntakeStatus) -> Result<(), Error> {
    if finished.mapper.model().map().is_some() {
        return Ok(());
    }
    let rejected_batches = history.records.iter().filter_map(|record| record.rejected.clone());
    let transform_error = arrived.transform_error.iter().map(ToString::to_string);
    Err(Error::NothingMapped(nothing_used(&finished.status.counters, rejected_batches.chain(transform_error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_name_that_distinguishes_it() {
        assert_eq!(display_name(Path::new("data/invensense/3")), "invensense/3");
        assert_eq!(display_name(Path::new("bags/house.mcap")), "house.mcap");
        assert_eq!(display_name(Path::new("3")), "3");
    }
}
