//! The services, answered by a thread of their own: they wait for the mapping thread, which the ROS thread never does.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use r2r::ServiceRequest;

use super::Error;
use super::interfaces::Trigger;
use super::publishing::{Publishing, Shown};
use crate::config::Config;
use crate::mapping::session::Answer;
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
    /// The run and what is shown of it.
    pub(super) shown: Shown,
    /// The publishing thread.
    pub(super) publishing: Publishing,
}

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
                Task::Save(request) => respond(request, "save", self.published(self.shown.session.save())),
                Task::Load(request) => respond(request, "load", self.published(self.shown.session.load())),
                Task::Reset(request) => respond(request, "reset", self.published(self.shown.session.reset())),
                Task::Configure(config) => self.configure(*config),
                #[cfg(not(feature = "ros-check"))]
                Task::Query(request) => self.query(request),
            }
        }
    }

    /// Closes the open cell and batch, learns from them and publishes.
    pub(super) fn flush(&self) -> Answer {
        self.published(self.shown.session.flush())
    }

    /// Publishes what something led to.
    fn published(&self, answer: Answer) -> Answer {
        if answer.is_ok() {
            self.publishing.publish_now();
        }
        answer
    }

    fn configure(&self, config: Config) {
        self.publishing.change(&config);
        if let Err(error) = self.shown.session.configure(config) {
            log::warn!("parameters change nothing any more: {error}");
        }
    }

    #[cfg(not(feature = "ros-check"))]
    fn query(&self, request: ServiceRequest<QueryField::Service>) {
        let newest = self.shown.session.worker().snapshots().newest();
        let map =
            newest.as_ref().and_then(|update| Some((update.snapshot.stamp?, update.snapshot.posterior.as_deref()?)));
        let response = match (map, self.shown.session.frame().get()) {
            (Some((stamp, posterior)), Some(frame)) => {
                let points: Vec<[f64; 2]> = request.message.points.iter().map(|point| [point.x, point.y]).collect();
                let (mut mean, mut variance) = (vec![0.0; points.len()], vec![0.0; points.len()]);
                posterior.predict(&Points::from_arrays(&points), &mut mean, &mut variance);
                let highest = self.shown.session.config().raster.unknown_above * far_variance(posterior);
                let is_known = |(mean, variance): (&f64, &f64)| mean.is_finite() && *variance <= highest;
                let known: Vec<bool> = mean.iter().zip(&variance).map(is_known).collect();
                for (mean, variance) in mean.iter_mut().zip(&mut variance) {
                    (*mean, *variance) = of_quantity(posterior, *mean, *variance);
                }
                let where_known = |values: Vec<f64>| {
                    let value = |(value, &known): (f64, &bool)| {
                        if known { outside(quantity(posterior), value) } else { f64::NAN }
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
