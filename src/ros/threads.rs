//! The threads beside the ROS thread: how they start and end.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use crossbeam_channel::Sender;
use r2r::Node;

use super::publishing::PublishingHandle;
use super::services::{ServiceThread, Task};
use super::shared::Shared;
use crate::config::Config;
use crate::mapping::stop::StopSignal;
use crate::session::Session;

/// The threads beside the ROS thread, and what it needs of them.
pub(super) struct Threads {
    pub(super) shared: Shared,
    pub(super) stop: StopSignal,
    publishing: PublishingHandle,
    tasks: Sender<Task>,
    threads: [JoinHandle<()>; 2],
}

impl Threads {
    pub(super) fn start(node: &mut Node, config: &Config) -> anyhow::Result<Self> {
        let unnamed = "the node has no name";
        let namespace = node.namespace().context(unnamed)?;
        let name = node.fully_qualified_name().context(unnamed)?;
        let session = Arc::new(Session::start(config, &namespace, &name)?);
        let stop = session.mapping.stop.clone();
        stop_on_signals(stop.clone())?;
        let shared =
            Shared { session, scales: Arc::default(), intake_rejections: Arc::default(), sensor_frame: Arc::default() };
        let (publishing, publisher) = PublishingHandle::start(node, config, shared.clone())?;
        let (tasks, services) = ServiceThread { shared: shared.clone(), publishing: publishing.clone() }.start()?;
        Ok(Self { shared, stop, publishing, tasks, threads: [publisher, services] })
    }

    /// Sends a task to the service thread; one that has ended executes nothing more.
    pub(super) fn send(&self, task: Task) {
        let _ = self.tasks.send(task);
    }

    /// Publishes the last map and joins the threads; the session saves the map where the settings say so.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let Self { shared: Shared { session, .. }, stop, publishing, tasks, threads } = self;
        stop.stop();
        // What fails here fails again when the session ends, which reports it.
        let _ = publishing.publish_result(session.flush());
        drop((publishing, tasks));
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread panicked");
            }
        }
        if let Some(session) = Arc::into_inner(session) {
            session.end()?.lines().for_each(|line| log::info!("{line}"));
        }
        Ok(())
    }
}

/// A signal ends the node in good order. Further ones change nothing: `ros2 launch` sends SIGTERM to a node that takes long.
pub(super) fn stop_on_signals(stop: StopSignal) -> anyhow::Result<()> {
    ctrlc::set_handler(move || stop.stop()).context("signals cannot be handled")
}
