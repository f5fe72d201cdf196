//! The ROS thread: spins the node, forwards messages and requests, and reports.

use std::sync::Arc;

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
use super::robot_pose::RobotPose;
use super::services::{Command, Task, TriggerRequest};
use super::slam_path::PathListener;
use super::threads::Threads;
use crate::config::{self, Config, PoseSource};
use crate::mapping::thread::MappingThread;
use crate::mapping::updates::lock;
use crate::sensing::reading::in_plane;
use crate::slam::Tracked;

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

/// The robot's pose and the transform from odometry, by the corrected path.
struct CorrectedPose {
    robot: RobotPose,
    settings: config::Slam,
    /// The path before it is corrected for the first time.
    start: Option<Tracked>,
    is_frame_taken: bool,
}

impl CorrectedPose {
    fn create(node: &mut Node, settings: &config::Slam) -> anyhow::Result<Self> {
        let robot = RobotPose::create(node, settings.tf_broadcast, settings.transform_tolerance)?;
        Ok(Self { robot, settings: settings.clone(), start: None, is_frame_taken: false })
    }

    fn publish(&mut self, Listener { odometry, odometry_frame, .. }: &Listener, worker: &MappingThread) {
        let (Some(odometry), Some(frame)) = (odometry, worker.inbox.frame()) else { return };
        if *frame == **odometry_frame {
            if !std::mem::replace(&mut self.is_frame_taken, true) {
                log::error!("the frame of odometry is \"{frame}\", as that of the map; set frames.map to another name");
            }
            return;
        }
        let by_odometry = in_plane(&odometry.isometry());
        let start = self.start.get_or_insert_with(|| Tracked::from_start(&self.settings, by_odometry));
        let path = worker.corrected_path();
        let tracked = path.as_ref().and_then(|path| path.tracked.as_ref()).unwrap_or(start);
        let map_from_odometry = worker.map_from_odometry();
        let covariance = tracked.covariance_at(&by_odometry, &map_from_odometry).into();
        self.robot.publish(&frame, odometry, &map_from_odometry, &covariance);
        self.robot.publish_transform(&frame, odometry_frame, odometry.stamp, &map_from_odometry);
    }
}

/// The ROS thread of the mapper.
struct RosThread<'a> {
    threads: &'a Threads,
    listener: Listener,
    /// Where the field corrects the path.
    corrected: Option<CorrectedPose>,
    /// Where another SLAM does.
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
        let corrected = config.slam.enabled.then(|| CorrectedPose::create(node, &config.slam)).transpose()?;
        let other_slam =
            config.follows_other_slam().then(|| PathListener::create(node, &config.slam.path_topic)).transpose()?;
        let offered =
            |&command: &Command| Ok((offer::<Trigger::Service>(node, &format!("~/{}", command.into_str()))?, command));
        Ok(Self {
            threads,
            listener,
            corrected,
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
        self.listener.intake.finish(&mut |input| drop(self.threads.shared.session.worker.inbox.offer(input)));
        Ok(())
    }

    /// Passes everything that arrived to the mapping thread.
    fn forward(&mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        let worker = &self.threads.shared.session.worker;
        let inbox = &worker.inbox;
        let sink = |input| {
            if let Err(error) = inbox.offer(input) {
                outcome = Err(error);
            }
        };
        // The map has a frame of its own then.
        let corrects = self.corrected.is_some() || self.other_slam.is_some();
        let name_map = |frame: &str| if corrects { Ok(Arc::from(frame)) } else { inbox.name_frame(frame) };
        let is_moved = self.listener.forward(name_map, sink)?;
        outcome?;
        if let Some(corrected) = self.corrected.as_mut().filter(|_| is_moved) {
            corrected.publish(&self.listener, worker);
        }
        if let Some(other_slam) = &mut self.other_slam {
            other_slam.forward(worker);
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
        let worker = &self.threads.shared.session.worker;
        let status = worker.status();
        let lost = status.lost_readings + status.lost_poses;
        let remedy = "they can be mapped; raise worker.inbox, or averaging.spacing";
        self.listener.check_health(node, worker.inbox.backlog(), &status.counters, lost, remedy);
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
