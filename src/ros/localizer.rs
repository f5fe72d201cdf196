//! The node that locates the robot in a finished map, with the topics, services and parameters of nav2's AMCL.
//!
//! ```text
//! subscriptions ── intake ──┐                       ┌── pose, particles, path, transform
//! initialpose, services ────┴── localization thread ┴── diagnostics
//! ───────── ROS thread ─────────                     ───────── ROS thread ─────────
//! ```

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nalgebra::{Isometry2, Vector2};
use r2r::diagnostic_msgs::msg::{DiagnosticStatus, KeyValue};
use r2r::geometry_msgs::msg::{PoseArray, PoseStamped, PoseWithCovarianceStamped};
use r2r::{Node, Publisher, QosProfile, ServiceRequest, nav_msgs};

use super::diagnostics::{StatusPublisher, rejection_values, value};
use super::interfaces::Empty;
use super::listener::{Listener, Messages, now, offer, publisher, ready, subscribe, subscribers};
use super::parameters::Parameters;
use super::robot_pose::{MapTransform, RobotPose, publish};
use super::{conversions as convert, threads};
use crate::config::{self, Config, MAP_FRAME};
use crate::display::occupancy::OccupancyLayers;
use crate::field::map::FieldMap;
use crate::field::raster::rasterize;
use crate::localization::thread::{Found, LocalizationThread};
use crate::localization::{self, LastPose, Located, Start, State};
use crate::mapping::stop::StopSignal;
use crate::particle_filter::lookup::NothingKnown;
use crate::sensing::frames::normalized;
use crate::sensing::health::Finding;
use crate::sensing::reading::{Stamp, in_plane};
use crate::store::checkpoint::Checkpoint;
use crate::store::map_file;
use crate::sync::lock;

/// Distance between two places of the path, in metres.
const PATH_SPACING: f64 = 0.1;

/// Most places of the path; the oldest half is dropped then.
const LONGEST_PATH: usize = 20_000;

/// Time between two messages of the path.
const PATH_PERIOD: Duration = Duration::from_secs(1);

/// Runs the localizer until it is stopped by SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start, such as without a map.
pub fn run() -> anyhow::Result<()> {
    let mut node = super::create_node("magmap_localizer")?;
    let stop = StopSignal::default();
    threads::stop_on_signals(stop.clone())?;
    let namespace = node.namespace().context("the node has no name")?;
    let (file, checkpoint, parameters) = load(&lock(&node.params), &namespace)?;
    let config = parameters.config.clone();
    let map = checkpoint.field_map(&config)?.ok_or(NothingKnown)?;
    let last_pose = LastPose::file(&file);
    let start = start(&config.localization, &last_pose);
    log::info!("{} in the map {}", in_words(&start), file.display());
    let live = LocalizationThread::start(&config, map.clone(), start, last_pose)?;
    let frame = normalized(if config.frames.map.is_empty() { &checkpoint.frame } else { &config.frames.map });
    let thread = LocalizerThread::start(&mut node, parameters, &config, live, frame.to_owned(), &map)?;
    thread.run(&mut node, &stop)
}

/// The file of the map, the map, and the parameters over the settings that it was made with.
fn load(
    given: &r2r::indexmap::IndexMap<String, r2r::Parameter>,
    namespace: &str,
) -> anyhow::Result<(PathBuf, Checkpoint, Parameters)> {
    let parameters = Parameters::of_localizer(Config::default(), given)?;
    let config = &parameters.config;
    let file = match config.localization.map.as_str() {
        "" => map_file::of_settings(config, namespace),
        path => map_file::file_of(Path::new(path)),
    };
    let checkpoint = map_file::read(&file)?;
    let parameters = Parameters::of_localizer(localization::settings_for(&checkpoint.settings()?)?, given)?;
    Ok((file, checkpoint, parameters))
}

/// The start of the localizer at startup.
fn start(settings: &config::Localization, last_pose: &Path) -> Start {
    if settings.set_initial_pose {
        let config::InitialPose { x, y, yaw, .. } = settings.initial_pose;
        return Start::given([x, y], yaw);
    }
    let known = if settings.load_last_pose { LastPose::read(last_pose) } else { Ok(None) };
    match known {
        Ok(Some(pose)) => pose.start(),
        Ok(None) => Start::Anywhere,
        Err(error) => {
            log::warn!("the last pose in {} cannot be read and is ignored: {error}", last_pose.display());
            Start::Anywhere
        }
    }
}

fn in_words(start: &Start) -> String {
    match start {
        Start::Anywhere => "starting anywhere".into(),
        Start::At { place: [x, y], heading, .. } => format!("starting at {x:.2}, {y:.2} m, heading {heading:.2} rad"),
    }
}

/// The ROS thread of the localizer.
struct LocalizerThread {
    listener: Listener,
    live: LocalizationThread,
    initial_pose: Messages<PoseWithCovarianceStamped>,
    anywhere: Messages<ServiceRequest<Empty::Service>>,
    update_now: Messages<ServiceRequest<Empty::Service>>,
    map: Publisher<nav_msgs::msg::OccupancyGrid>,
    /// The mean of the map, until its frame is known.
    unpublished_map: Option<nav_msgs::msg::OccupancyGrid>,
    robot: RobotPose,
    transform: Option<MapTransform>,
    particles: Publisher<PoseArray>,
    path: Publisher<nav_msgs::msg::Path>,
    status: StatusPublisher,
    /// The frame of the map.
    frame: String,
    /// The places of the robot.
    places: Vec<(Stamp, Isometry2<f64>)>,
    path_due: Instant,
    /// Number of the result that was published last.
    published: u64,
    /// The transform that was published last: it holds while the robot is lost.
    map_from_odometry: Option<Isometry2<f64>>,
}

impl LocalizerThread {
    fn start(
        node: &mut Node,
        parameters: Parameters,
        config: &Config,
        live: LocalizationThread,
        frame: String,
        map: &FieldMap,
    ) -> anyhow::Result<Self> {
        // Poses stay in the frame of odometry: where that is in the frame of the map is what is looked for.
        let frames = config::Frames { map: String::new(), ..config.frames.clone() };
        let listener = Listener::start(node, parameters, &Config { frames, ..config.clone() })?;
        let grid = rasterize(&config.raster, map, &map.extent)?;
        let mut layers = OccupancyLayers::of(&grid, map.prior_standard_deviation());
        // RViz draws 0, 99 and 100 of a costmap in colours of their own.
        layers.mean.iter_mut().filter(|value| **value >= 0).for_each(|value| *value = (*value).clamp(1, 98));
        let grid = convert::occupancy_grid(convert::header("", map.stamp), &grid.geometry, &layers.mean);
        let [magnetometer, odometry] = listener.subscriptions.topics.each_ref().map(|topic| &topic.name);
        log::info!("locating by {magnetometer} along {odometry}");
        let config::Localization { tf_broadcast, transform_tolerance, .. } = config.localization;
        Ok(Self {
            listener,
            live,
            initial_pose: subscribe(node, "initialpose", QosProfile::default())?,
            anywhere: offer::<Empty::Service>(node, "reinitialize_global_localization")?,
            update_now: offer::<Empty::Service>(node, "request_nomotion_update")?,
            map: publisher(node, "~/map", true)?,
            unpublished_map: Some(grid),
            robot: RobotPose::create(node)?,
            transform: MapTransform::create(node, tf_broadcast, transform_tolerance)?,
            particles: publisher(node, "~/particles", false)?,
            path: publisher(node, "~/path", true)?,
            status: StatusPublisher::create(node, "localization")?,
            frame,
            places: Vec::new(),
            path_due: Instant::now(),
            published: 0,
            map_from_odometry: None,
        })
    }

    /// Publishes the mean of the map, once the frame of odometry is known.
    fn publish_map(&mut self) {
        if let Some(mut grid) = self.unpublished_map.take_if(|_| !self.listener.odometry_frame.is_empty()) {
            self.frame().clone_into(&mut grid.header.frame_id);
            publish(&self.map, &grid);
        }
    }

    /// The frame of the map, once that of odometry is known. A map that was learnt in the frame of odometry has a frame of its own now.
    fn frame(&self) -> &str {
        if self.frame.is_empty() || self.frame == self.listener.odometry_frame { MAP_FRAME } else { &self.frame }
    }

    fn run(mut self, node: &mut Node, stop: &StopSignal) -> anyhow::Result<()> {
        while !stop.is_stopped() && !self.live.has_ended() {
            self.listener.spin(node);
            let is_moved = self.forward();
            self.publish_map();
            self.take_requests();
            // No parameter changes while it runs.
            let _ = self.listener.changed_parameters();
            self.live.watch(subscribers(&self.particles) > 0);
            let found = self.live.found();
            self.publish_found(&found);
            if is_moved {
                self.publish_transform(&found);
            }
            self.publish_path();
            let remedy = "the particles can follow; lower max_particles";
            self.listener.check_health(node, self.live.backlog(), &found.counters, self.live.lost(), remedy);
            self.report(node, &found);
        }
        self.listener.intake.finish(&mut |input| self.live.offer(input));
        if !self.live.end() {
            bail!("the localization thread panicked");
        }
        Ok(())
    }

    /// Passes everything that arrived to the localization thread; whether there was odometry.
    fn forward(&mut self) -> bool {
        let Self { listener, live, .. } = self;
        let Ok(is_moved) = listener.forward(|frame| Ok::<_, Infallible>(Arc::from(frame)), |input| live.offer(input));
        is_moved
    }

    fn take_requests(&mut self) {
        while let Some(message) = ready(&mut self.initial_pose) {
            let given = normalized(&message.header.frame_id);
            let may_be_map = self.listener.odometry_frame.is_empty() && given == MAP_FRAME;
            if !given.is_empty() && given != self.frame() && !may_be_map {
                log::warn!(
                    "initialpose: expected a pose in the frame \"{}\", found \"{given}\"; it is ignored",
                    self.frame()
                );
                continue;
            }
            match convert::start(&message.pose) {
                Some(start) => {
                    log::info!("initialpose: {}", in_words(&start));
                    self.live.restart(start);
                    self.places.clear();
                }
                None => log::warn!("initialpose: expected a pose and a covariance that are finite; it is ignored"),
            }
        }
        while let Some(request) = ready(&mut self.anywhere) {
            log::info!("reinitialize_global_localization: starting anywhere");
            self.live.restart(Start::Anywhere);
            self.map_from_odometry = None;
            respond(request);
        }
        while let Some(request) = ready(&mut self.update_now) {
            self.live.update_now();
            respond(request);
        }
    }

    fn publish_found(&mut self, found: &Found) {
        let (Some(located), Some(odometry)) = (&found.located, &self.listener.odometry) else { return };
        if std::mem::replace(&mut self.published, found.number) == found.number || located.state == State::Lost {
            return;
        }
        let header = || convert::header(self.frame(), odometry.stamp);
        let pose = located.map_from_odometry * in_plane(&odometry.isometry());
        self.robot.publish(self.frame(), odometry, &located.map_from_odometry, &located.estimate.covariance);
        if !found.particles.is_empty() {
            let poses = found.particles.iter().map(|particle| convert::pose_in_plane(&located.body_of(particle)));
            publish(&self.particles, &PoseArray { header: header(), poses: poses.collect() });
        }
        if found.is_usable {
            let far = |(_, last): &(_, Isometry2<f64>)| {
                (last.translation.vector - pose.translation.vector).norm() >= PATH_SPACING
            };
            if self.places.last().is_none_or(far) {
                self.places.push((odometry.stamp, pose));
            }
            if self.places.len() > LONGEST_PATH {
                self.places.drain(..LONGEST_PATH / 2);
            }
        }
    }

    /// Publishes the transform from odometry to the map, dated ahead.
    fn publish_transform(&mut self, found: &Found) {
        if found.is_usable {
            self.map_from_odometry = found.located.map(|located| located.map_from_odometry);
        }
        let (Some(map_from_odometry), Some(odometry)) = (&self.map_from_odometry, &self.listener.odometry) else {
            return;
        };
        if let Some(transform) = &self.transform {
            transform.publish(self.frame(), &self.listener.odometry_frame, odometry.stamp, map_from_odometry);
        }
    }

    fn publish_path(&mut self) {
        // Without odometry, the frame is not known.
        let is_known = self.listener.odometry.is_some();
        if !is_known || Instant::now() < self.path_due || subscribers(&self.path) == 0 {
            return;
        }
        self.path_due = Instant::now() + PATH_PERIOD;
        let header = |stamp| convert::header(self.frame(), stamp);
        let place = |(stamp, pose): &(Stamp, Isometry2<f64>)| PoseStamped {
            header: header(*stamp),
            pose: convert::pose_in_plane(pose),
        };
        let newest = self.places.last().map_or(Stamp::default(), |(stamp, _)| *stamp);
        let poses = self.places.iter().map(place).collect();
        publish(&self.path, &nav_msgs::msg::Path { header: header(newest), poses });
    }

    fn report(&mut self, node: &Node, found: &Found) {
        if !self.listener.are_diagnostics_due() {
            return;
        }
        self.listener.check_publishers(node);
        let fault = match &self.listener.finding {
            Some(Finding::Fault(fault)) => Some(fault.as_str()),
            _ => self.listener.several_publishers.warning(),
        };
        let (level, message) = match (fault, &found.located) {
            (Some(fault), _) => (DiagnosticStatus::WARN as u8, fault.to_owned()),
            (_, None) => (DiagnosticStatus::WARN as u8, "waiting: the robot has to drive to be found".into()),
            (_, Some(located)) => {
                let state: &str = located.state.into();
                let level = match located.state {
                    State::Tracking => DiagnosticStatus::OK as u8,
                    State::Converging => DiagnosticStatus::WARN as u8,
                    State::Lost => DiagnosticStatus::ERROR as u8,
                };
                (level, located.reason.map_or(state.to_owned(), |reason| format!("{state}: {reason}")))
            }
        };
        let mut values = found.located.iter().flat_map(located_values).collect::<Vec<_>>();
        let arrived = &self.listener.intake.status;
        values.extend([
            value("readings", arrived.readings),
            value("odometry", arrived.odometry),
            value("readings used", found.counters.used_readings),
            value("travelled", format!("{:.2} m", found.counters.travelled)),
            value("backlog", self.live.backlog()),
            value("measurements lost", self.live.lost()),
            value("waiting for a transform", self.listener.intake.held()),
        ]);
        let rejections = found.counters.rejections.plus(&arrived.rejections);
        values.extend(rejection_values(&rejections));
        self.status.publish(level, message, values, now(node));
    }
}

fn located_values(located: &Located) -> [KeyValue; 7] {
    let place: Vector2<f64> = located.pose.translation.vector;
    let state: &str = located.state.into();
    let reason: &str = located.reason.map_or("", Into::into);
    [
        value("state", state),
        value("reason", reason),
        value("x", format!("{:.3} m", place.x)),
        value("y", format!("{:.3} m", place.y)),
        value("heading", format!("{:.3} rad", located.pose.rotation.angle())),
        value("standard deviation", format!("{:.3} m", located.estimate.deviation())),
        value("particles", located.particles),
    ]
}

fn respond(request: ServiceRequest<Empty::Service>) {
    if let Err(error) = request.respond(Empty::Response::default()) {
        log::warn!("a response could not be sent: {error}");
    }
}
