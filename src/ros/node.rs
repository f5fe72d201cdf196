//! The ROS thread: spins the node, forwards messages and requests, and reports.

use std::sync::Arc;

use nalgebra::Isometry2;
use r2r::Node;
#[cfg(not(feature = "ros-check"))]
use r2r::ServiceRequest;
use strum::VariantArray;

use super::diagnostics::Diagnostics;
#[cfg(not(feature = "ros-check"))]
use super::interfaces::QueryField;
use super::interfaces::Trigger;
use super::listener::{Listener, Messages, now, offer, ready};
use super::parameters::Parameters;
use super::robot_pose::{MapTransform, RobotPose};
use super::services::{Command, Task, TriggerRequest};
use super::slam_path::PathListener;
use super::threads::Threads;
use crate::config::{self, Config, PoseSource};
use crate::mapping::thread::MappingThread;
use crate::sensing::reading::in_plane;
use crate::slam::Tracked;
use crate::sync::lock;

/// Runs the node until it is stopped by SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start, and when the mapping thread fails.
pub fn run() -> anyhow::Result<()> {
    let mut node = super::create_node("magmap")?;
    let parameters = Parameters::from_given(&lock(&node.params))?;
    let config = parameters.config.clone();
    let threads = Threads::start(&mut node, &config)?;
    let ended = RosThread::start(&mut node, parameters, &threads, &config)?.run(&mut node);
    threads.end()?;
    ended
}

/// Where odometry is in the map: the transform, and the robot's pose where the field corrects the path.
struct OdometryInMap {
    transform: Option<MapTransform>,
    pose: Option<RobotPose>,
    settings: config::Slam,
    /// The path before it is corrected for the first time.
    start: Option<Tracked>,
    has_published: bool,
    is_frame_taken: bool,
}

impl OdometryInMap {
    fn create(node: &mut Node, config: &Config) -> anyhow::Result<Self> {
        let settings = config.slam.clone();
        let is_wanted = settings.tf_broadcast && config.may_odometry_restart();
        let transform = MapTransform::create(node, is_wanted, settings.transform_tolerance)?;
        let pose = settings.enabled.then(|| RobotPose::create(node)).transpose()?;
        Ok(Self { transform, pose, settings, start: None, has_published: false, is_frame_taken: false })
    }

    fn publish(&mut self, listener: &Listener, mapping: &MappingThread) {
        let Listener { odometry, odometry_frame, intake, .. } = listener;
        let (Some(odometry), Some(frame)) = (odometry, mapping.inbox.frame()) else { return };
        let map_from_odometry = mapping.map_from_odometry();
        if *frame == **odometry_frame {
            let is_other = self.pose.is_some() || map_from_odometry != Isometry2::identity();
            if is_other && !std::mem::replace(&mut self.is_frame_taken, true) {
                let remedy = if self.pose.is_some() { "set frames.map to" } else { "give that of odometry" };
                log::error!("the frame of odometry is \"{frame}\", as that of the map; {remedy} another name");
            }
            return;
        }
        if mapping.relocated().is_some_and(|relocated| !relocated.is_known) {
            return;
        }
        if !std::mem::replace(&mut self.has_published, true)
            && intake.has_parent(odometry_frame)
            && self.transform.take().is_some()
        {
            log::warn!(
                "somebody else publishes where frame \"{odometry_frame}\" is: this node does not; with another SLAM, map in its frame \
                 (frames.map)"
            );
        }
        if let Some(transform) = &self.transform {
            transform.publish(&frame, odometry_frame, odometry.stamp, &map_from_odometry);
        }
        if let Some(pose) = &self.pose {
            let by_odometry = in_plane(&odometry.isometry());
            let start = self.start.get_or_insert_with(|| Tracked::from_start(&self.settings, by_odometry));
            let path = mapping.corrected_path();
            let tracked = path.as_ref().and_then(|path| path.tracked.as_ref()).unwrap_or(start);
            let covariance = tracked.covariance_at(&by_odometry, &map_from_odometry).into();
            pose.publish(&frame, odometry, &map_from_odometry, &covariance);
        }
    }
}

/// The ROS thread of the mapper.
struct RosThread<'a> {
    threads: &'a Threads,
    listener: Listener,
    /// None where others say where odometry is.
    odometry_in_map: Option<OdometryInMap>,
    /// Where another SLAM corrects the path.
    other_slam: Option<PathListener>,
    commands: Vec<(Messages<TriggerRequest>, Command)>,
    #[cfg(not(feature = "ros-check"))]
    query: Messages<ServiceRequest<QueryField::Service>>,
    diagnostics: Diagnostics,
}

impl<'a> RosThread<'a> {
    fn start(node: &mut Node, parameters: Parameters, threads: &'a Threads, config: &Config) -> anyhow::Result<Self> {
        let listener = Listener::start(node, parameters, config)?;
        let [magnetometer, odometry] = listener.subscriptions.topics.each_ref().map(|topic| &topic.name);
        match config.frames.pose_source {
            PoseSource::Odometry => log::info!("mapping {magnetometer} along {odometry}"),
            PoseSource::Transforms => log::info!("mapping {magnetometer} along the transforms to the map's frame"),
        }
        let odometry_in_map = config.may_odometry_restart().then(|| OdometryInMap::create(node, config)).transpose()?;
        let other_slam = PathListener::create(node, &config.slam)?;
        let offered =
            |&command: &Command| Ok((offer::<Trigger::Service>(node, &format!("~/{}", command.into_str()))?, command));
        Ok(Self {
            threads,
            listener,
            odometry_in_map,
            other_slam,
            commands: Command::VARIANTS.iter().map(offered).collect::<anyhow::Result<_>>()?,
            #[cfg(not(feature = "ros-check"))]
            query: offer::<QueryField::Service>(node, "~/query")?,
            diagnostics: Diagnostics::create(node)?,
        })
    }

    fn run(mut self, node: &mut Node) -> anyhow::Result<()> {
        while !self.threads.stop.is_stopped() {
            self.listener.spin(node);
            self.forward()?;
            *lock(&self.threads.shared.intake_rejections) = self.listener.intake.status.rejections;
            lock(&self.threads.shared.sensor_frame).clone_from(&self.listener.intake.sensor_frame);
            self.take_requests();
            if let Some(config) = self.listener.changed_parameters() {
                self.threads.send(Task::Configure(Box::new(config)));
            }
            self.check_health(node);
            self.report(node);
        }
        // What the mapping thread does not take any more has no place in the map.
        self.listener.intake.finish(&mut |input| drop(self.threads.shared.session.mapping.inbox.offer(input)));
        Ok(())
    }

    /// Passes everything that arrived to the mapping thread.
    fn forward(&mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        let mapping = &self.threads.shared.session.mapping;
        let inbox = &mapping.inbox;
        let sink = |input| {
            if let Err(error) = inbox.offer(input) {
                outcome = Err(error);
            }
        };
        // Where odometry is in the map is what is looked for, or said by another SLAM: poses stay in its frame.
        let (corrects, relocates) = (mapping.config().corrects_path(), mapping.relocated().is_some());
        let name_map = |frame: &str| match inbox.name_frame(frame) {
            Ok(_) if corrects || relocates => Ok(Arc::from(frame)),
            of_map => of_map,
        };
        let is_moved = self.listener.forward(name_map, sink)?;
        outcome?;
        if let Some(odometry_in_map) = self.odometry_in_map.as_mut().filter(|_| is_moved) {
            odometry_in_map.publish(&self.listener, mapping);
        }
        if let Some(other_slam) = &mut self.other_slam {
            other_slam.forward(mapping);
        }
        Ok(())
    }

    fn take_requests(&mut self) {
        let Self { commands, listener: Listener { intake, .. }, threads, .. } = self;
        for (requests, command) in commands {
            while let Some(request) = ready(requests) {
                match command {
                    Command::Pause => intake.paused = true,
                    Command::Resume => intake.paused = false,
                    _ => {}
                }
                threads.send(Task::Command(*command, request));
            }
        }
        #[cfg(not(feature = "ros-check"))]
        while let Some(request) = ready(&mut self.query) {
            threads.send(Task::Query(request));
        }
    }

    /// Logs periodically why nothing is being mapped, and what was lost.
    fn check_health(&mut self, node: &Node) {
        let mapping = &self.threads.shared.session.mapping;
        let status = mapping.status();
        let lost = status.lost_readings + status.lost_poses;
        let remedy = "they can be mapped; raise mapping.inbox, or averaging.spacing";
        self.listener.check_health(node, mapping.inbox.backlog(), &status.counters, lost, remedy);
    }

    fn report(&mut self, node: &Node) {
        if self.listener.are_diagnostics_due() {
            self.listener.check_publishers(node);
            let Listener { finding, several_publishers, intake, .. } = &mut self.listener;
            let several = several_publishers.warning();
            let (shared, path) = (&self.threads.shared, self.other_slam.as_ref());
            self.diagnostics.publish(shared, intake, finding.as_ref(), several, path, now(node));
        }
    }
}
