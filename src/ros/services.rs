//! The services: a thread of their own executes them, since the ROS thread never waits for the mapping thread.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use r2r::ServiceRequest;
use strum::{IntoStaticStr, VariantArray};

use super::interfaces::Trigger;
use super::publishing::PublishingHandle;
use super::shared::Shared;
use super::spawn;
use crate::config::Config;
use crate::session::Answer;
#[cfg(not(feature = "ros-check"))]
use {
    super::conversions::header,
    super::interfaces::QueryField,
    crate::field::map::Prediction,
    crate::sensing::reading::{MICROTESLA_PER_TESLA, MICROTESLA_PER_TESLA_SQUARED},
    r2r::geometry_msgs::msg::Vector3,
    streaming_gp::Axes,
};

/// A request without arguments.
pub(super) type TriggerRequest = ServiceRequest<Trigger::Service>;

/// A service without arguments; its name is that of the variant in snake case.
#[derive(Clone, Copy, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Command {
    /// Completes the open cell and batch, and publishes.
    Flush,
    /// Completes the open cell and batch, publishes, and ignores readings from now on.
    Pause,
    /// Readings are used again.
    Resume,
    /// Saves the map.
    Save,
    /// Continues with the saved map.
    Load,
    /// Clears the map.
    Reset,
}

/// A task of the service thread.
pub(super) enum Task {
    Command(Command, TriggerRequest),
    /// Continues with other settings.
    Configure(Box<Config>),
    /// Predicts strength and axes of the field at points.
    #[cfg(not(feature = "ros-check"))]
    Query(ServiceRequest<QueryField::Service>),
}

pub(super) struct ServiceThread {
    pub(super) shared: Shared,
    pub(super) publishing: PublishingHandle,
}

impl ServiceThread {
    /// Starts the thread, which ends when the sender is dropped.
    pub(super) fn start(self) -> anyhow::Result<(Sender<Task>, JoinHandle<()>)> {
        let (tasks, receiver) = unbounded();
        Ok((tasks, spawn("services", move || self.run(&receiver))?))
    }

    fn run(self, tasks: &Receiver<Task>) {
        for task in tasks {
            match task {
                Task::Command(command, request) => respond(request, command.into_str(), self.execute(command)),
                Task::Configure(config) => self.configure(*config),
                #[cfg(not(feature = "ros-check"))]
                Task::Query(request) => self.query(request),
            }
        }
    }

    fn execute(&self, command: Command) -> Answer {
        let session = &self.shared.session;
        let answer = match command {
            Command::Flush => session.flush(),
            Command::Pause => session.flush().map(|done| format!("paused; {done}")),
            Command::Resume => return Ok("readings are mapped again".into()),
            Command::Save => session.save(),
            Command::Load => session.load(),
            Command::Reset => session.reset(),
        };
        self.publishing.publish_result(answer)
    }

    fn configure(&self, config: Config) {
        self.publishing.configure(&config);
        if let Err(error) = self.shared.session.configure(config) {
            log::warn!("the changed parameters have no effect: {error}");
        }
    }

    #[cfg(not(feature = "ros-check"))]
    fn query(&self, request: ServiceRequest<QueryField::Service>) {
        let session = &self.shared.session;
        let response = match (session.mapping.updates.newest_map(), session.mapping.inbox.frame()) {
            (Some(map), Some(frame)) => {
                let points: Vec<_> = request.message.points.iter().map(|point| [point.x, point.y, point.z]).collect();
                let prediction = map.predict_at(&points, session.mapping.config().raster.unknown_above);
                QueryField::Response { header: header(&frame, map.stamp), ..answer(prediction) }
            }
            _ => QueryField::Response { message: "there is no map yet".into(), ..Default::default() },
        };
        if let Err(error) = request.respond(response) {
            log::warn!("the response to a query could not be sent: {error}");
        }
    }
}

/// A prediction as a response without header.
#[cfg(not(feature = "ros-check"))]
fn answer(Prediction { mean, variance, axes }: Prediction) -> QueryField::Response {
    let nothing = Axes { mean: [f64::NAN; 3], covariance: [[f64::NAN; 3]; 3] };
    let axes: Vec<Axes> = axes.into_iter().flatten().map(|axes| axes.unwrap_or(nothing)).collect();
    let field = |axes: &Axes| {
        let [x, y, z] = axes.mean.map(|axis| axis / MICROTESLA_PER_TESLA);
        Vector3 { x, y, z }
    };
    let covariances = axes.iter().flat_map(|axes| axes.covariance.into_iter().flatten());
    QueryField::Response {
        success: true,
        message: format!("{} points", mean.len()),
        known: mean.iter().map(|mean| mean.is_finite()).collect(),
        mean: mean.into_iter().map(|mean| mean / MICROTESLA_PER_TESLA).collect(),
        standard_deviation: variance.into_iter().map(|variance| variance.sqrt() / MICROTESLA_PER_TESLA).collect(),
        field: axes.iter().map(field).collect(),
        field_covariance: covariances.map(|entry| entry / MICROTESLA_PER_TESLA_SQUARED).collect(),
        ..Default::default()
    }
}

fn respond(request: TriggerRequest, service: &str, answer: Answer) {
    match &answer {
        Ok(done) => log::info!("{service}: {done}"),
        Err(reason) => log::warn!("{service} failed: {reason}"),
    }
    let (success, message) = (answer.is_ok(), answer.unwrap_or_else(|reason| reason));
    if let Err(error) = request.respond(Trigger::Response { success, message }) {
        log::warn!("the response to {service} could not be sent: {error}");
    }
}
