//! The services, answered by a thread of their own: they wait for the mapping thread, which the ROS thread never does.

use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use r2r::ServiceRequest;

use super::Error;
use super::interfaces::Trigger;
use super::publishing::{Publishing, Shown};
use crate::config::Config;
use crate::mapping::checkpoint::Checkpoint;
use crate::mapping::field_model::FieldModel;
use crate::mapping::mapper::Mapper;
use crate::mapping::path::Path;
use crate::mapping::worker::lock;
use streaming_gp::places::Places;
#[cfg(not(feature = "ros-check"))]
use {
    super::conversions::{header, outside},
    super::interfaces::QueryField,
    crate::mapping::field_model::{far_variance, of_quantity, quantity},
    streaming_gp::points::Points,
};

/// A request that only asks for something to be done.
pub(super) type Plain = ServiceRequest<Trigger::Service>;

/// Makes a task of a request.
pub(super) type MakeTask = fn(Plain) -> Task;

/// What the service thread does.
pub(super) enum Task {
    /// Closes the open cell and batch and publishes.
    Flush(Plain),
    /// The same; readings are ignored from now on.
    Pause(Plain),
    /// Readings are taken again.
    Resume(Plain),
    /// Saves the map.
    Save(Plain),
    /// Goes on with the saved map.
    Load(Plain),
    /// Forgets the map.
    Reset(Plain),
    /// Goes on with other settings.
    Configure(Box<Config>),
    /// Predicts the field at points.
    #[cfg(not(feature = "ros-check"))]
    Query(ServiceRequest<QueryField::Service>),
}

/// What the service thread works with.
#[derive(Clone)]
pub(super) struct Desk {
    /// What is shown, and the mapping thread.
    pub(super) shown: Shown,
    /// The publishing thread.
    pub(super) publishing: Publishing,
    /// The settings as they are now.
    pub(super) config: Arc<Mutex<Config>>,
}

/// What was done, or why not, in words.
type Answer = Result<String, String>;

impl Desk {
    /// Starts the thread, which ends when the sender it returns is dropped.
    pub(super) fn open(self) -> Result<(Sender<Task>, JoinHandle<()>), Error> {
        let (tasks, receiver) = unbounded();
        let builder = std::thread::Builder::new().name("services".into());
        let thread = builder
            .spawn(move || self.run(&receiver))
            .map_err(|source| Error::System { what: "the service thread could not be started", source })?;
        Ok((tasks, thread))
    }

    fn run(self, tasks: &Receiver<Task>) {
        for task in tasks {
            match task {
                Task::Flush(request) => respond(request, "flush", self.flush()),
                Task::Pause(request) => {
                    respond(request, "pause", self.flush().map(|done| format!("paused; {done}")));
                }
                Task::Resume(request) => respond(request, "resume", Ok("readings are mapped again".into())),
                Task::Save(request) => respond(request, "save", self.save()),
                Task::Load(request) => respond(request, "load", self.load()),
                Task::Reset(request) => respond(request, "reset", self.reset()),
                Task::Configure(config) => self.configure(*config),
                #[cfg(not(feature = "ros-check"))]
                Task::Query(request) => self.query(request),
            }
        }
    }

    /// Closes the open cell and batch, learns from them and publishes.
    pub(super) fn flush(&self) -> Answer {
        let worker = &self.shown.worker;
        let before = worker.status();
        worker.flush().map_err(in_words)?;
        self.publishing.publish_now();
        let after = worker.status();
        let newest = worker.snapshots().newest();
        let points = newest.and_then(|update| Some(update.snapshot.posterior.as_ref()?.inducing().len()));
        Ok(match points {
            None => "there is nothing to map yet".into(),
            Some(points) => format!(
                "{} observations learnt in {} updates; the map has {points} inducing points",
                after.counters.observations - before.counters.observations,
                after.updates - before.updates,
            ),
        })
    }

    /// Saves the map under the name that the settings say.
    pub(super) fn save(&self) -> Answer {
        self.flush()?;
        let config = lock(&self.config).clone();
        let Some(frame) = self.shown.frame.get().cloned() else { return Err("there is no map to save yet".into()) };
        let file = map_file(&config);
        let take = move |mapper: &Mapper<FieldModel>| Checkpoint::of(&config, mapper, &frame);
        let checkpoint = self.shown.worker.inspect(take).map_err(in_words)?.map_err(in_words)?;
        if checkpoint.extent().is_none() {
            return Err("there is no map to save yet".into());
        }
        let folder = file.parent().unwrap_or(FilePath::new("."));
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        checkpoint.write(&file).map_err(in_words)?;
        Ok(format!("saved {}", file.display()))
    }

    /// Goes on with the map that was saved under the name that the settings say.
    pub(super) fn load(&self) -> Answer {
        let config = lock(&self.config).clone();
        let file = map_file(&config);
        let checkpoint = Checkpoint::read(&file).map_err(in_words)?;
        let model = checkpoint.restore(&config).map_err(in_words)?;
        let frame = self.shown.frame.get_or_init(|| Arc::from(checkpoint.frame()));
        if **frame != *checkpoint.frame() {
            let theirs = checkpoint.frame();
            return Err(format!("{} is a map of frame \"{theirs}\", this one is of \"{frame}\"", file.display()));
        }
        let path = checkpoint.path().clone();
        let points = model.posterior().map_or(0, |posterior| posterior.inducing().len());
        self.replace(model, path)?;
        Ok(format!("loaded {}: {points} inducing points", file.display()))
    }

    fn reset(&self) -> Answer {
        let config = lock(&self.config).clone();
        *lock(&self.shown.path_of_next) = Path::default();
        self.shown.worker.reset(&config).map_err(in_words)?;
        self.publishing.publish_now();
        Ok("the map is empty".into())
    }

    fn replace(&self, model: FieldModel, path: Path) -> Result<(), String> {
        *lock(&self.shown.path_of_next) = path.clone();
        self.shown.worker.replace(model, path).map_err(in_words)?;
        self.publishing.publish_now();
        Ok(())
    }

    fn configure(&self, config: Config) {
        *lock(&self.config) = config.clone();
        self.publishing.change(&config);
        if let Err(error) = self.shown.worker.configure(&config) {
            log::warn!("parameters change nothing any more: {error}");
        }
    }

    #[cfg(not(feature = "ros-check"))]
    fn query(&self, request: ServiceRequest<QueryField::Service>) {
        let newest = self.shown.worker.snapshots().newest();
        let map =
            newest.as_ref().and_then(|update| Some((update.snapshot.stamp?, update.snapshot.posterior.as_deref()?)));
        let response = match (map, self.shown.frame.get()) {
            (Some((stamp, posterior)), Some(frame)) => {
                let points: Vec<[f64; 2]> = request.message.points.iter().map(|point| [point.x, point.y]).collect();
                let (mut mean, mut variance) = (vec![0.0; points.len()], vec![0.0; points.len()]);
                posterior.predict(&Points::from_arrays(&points), &mut mean, &mut variance);
                let highest = lock(&self.config).raster.unknown_above * far_variance(posterior);
                let is_known = |(mean, variance): (&f64, &f64)| mean.is_finite() && *variance <= highest;
                let known: Vec<bool> = mean.iter().zip(&variance).map(is_known).collect();
                for (mean, variance) in mean.iter_mut().zip(&mut variance) {
                    (*mean, *variance) = of_quantity(posterior, *mean, *variance);
                }
                let where_known = |values: Vec<f64>| {
                    let value = |(value, &known): (f64, &bool)| {
                        if known { outside(quantity(posterior.model()), value) } else { f64::NAN }
                    };
                    values.into_iter().zip(&known).map(value).collect()
                };
                QueryField::Response {
                    success: true,
                    message: format!("{} points", points.len()),
                    header: header(frame, stamp),
                    mean: where_known(mean),
                    standard_deviation: where_known(variance.into_iter().map(f64::sqrt).collect()),
                    known,
                }
            }
            _ => QueryField::Response { message: "there is no map yet".into(), ..Default::default() },
        };
        if let Err(error) = request.respond(response) {
            log::warn!("a query could not be answered: {error}");
        }
    }
}

fn respond(request: Plain, service: &str, answer: Answer) {
    let (success, message) = match answer {
        Ok(done) => {
            log::info!("{service}: {done}");
            (true, done)
        }
        Err(reason) => {
            log::warn!("{service} failed: {reason}");
            (false, reason)
        }
    };
    if let Err(error) = request.respond(Trigger::Response { success, message }) {
        log::warn!("a call of {service} could not be answered: {error}");
    }
}

fn in_words(error: impl std::error::Error) -> String {
    error.to_string()
}

/// The file of the map that is saved and loaded.
pub(super) fn map_file(config: &Config) -> PathBuf {
    let from_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = match config.node.map_folder.as_str() {
        "" => from_environment("ROS_HOME")
            .or_else(|| Some(from_environment("HOME")?.join(".ros")))
            .unwrap_or_default()
            .join("magmap"),
        folder => PathBuf::from(folder),
    };
    folder.join(format!("{}.npz", config.node.map_name))
}
