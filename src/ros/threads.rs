//! The threads beside the ROS thread: how they start, and how they end in good order.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use r2r::Node;

use super::publishing::{Publishing, Shown};
use super::services::{Desk, Task};
use super::{Context, Error};
use crate::config::Config;
use crate::mapping::learner::StopSignal;
use crate::mapping::session::Session;
use crate::mapping::worker::Inbox;

/// The threads beside the ROS thread.
pub(super) struct Threads {
    desk: Desk,
    tasks: Sender<Task>,
    threads: [JoinHandle<()>; 2],
    stop: StopSignal,
}

/// What the ROS thread holds of the others.
pub(super) struct Hands {
    pub(super) desk: Desk,
    pub(super) tasks: Sender<Task>,
    pub(super) inbox: Inbox,
    pub(super) stop: StopSignal,
}

impl Threads {
    /// Starts them.
    pub(super) fn start(node: &mut Node, config: &Config) -> Result<Self, Error> {
        let named = || "the node has no name".to_owned();
        let namespace = node.namespace().context(named)?;
        let name = node.fully_qualified_name().context(named)?;
        let session = Arc::new(Session::start(config, &namespace, &name)?);
        let stop = session.worker().stop_signal();
        end_on_signals(stop.clone())?;
        let shown = Shown { session, scales: Arc::default(), unplaced: Arc::default() };
        let (publishing, publisher) = Publishing::start(node, config, shown.clone())?;
        let desk = Desk { shown, publishing };
        let (tasks, clerk) = desk.clone().open()?;
        Ok(Self { desk, tasks, threads: [publisher, clerk], stop })
    }

    /// What the ROS thread needs of them.
    pub(super) fn hands(&self) -> Hands {
        let inbox = self.desk.shown.session.worker().inbox();
        Hands { desk: self.desk.clone(), tasks: self.tasks.clone(), inbox, stop: self.stop.clone() }
    }

    /// Publishes what is left to learn, and joins the threads; the map is saved where the settings say so.
    pub(super) fn end(self) -> Result<(), Error> {
        let Self { desk, tasks, threads, stop } = self;
        stop.stop();
        // Whoever watches sees the last map too. What fails here fails again at the end, which says so.
        let _ = desk.flush();
        let session = Arc::clone(&desk.shown.session);
        drop((desk, tasks));
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
fn end_on_signals(stop: StopSignal) -> Result<(), Error> {
    ctrlc::set_handler(move || stop.stop())
        .map_err(|error| Error::System { what: "signals cannot be handled", source: std::io::Error::other(error) })
}
