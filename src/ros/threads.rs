//! The threads beside the ROS thread: how they start, and how they end in good order.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use r2r::Node;

use super::Error;
use super::beginning::Beginning;
use super::publishing::{Publishing, Shown};
use super::services::{Desk, Task};
use crate::config::Config;
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::journal::Frame;
use crate::mapping::learner::StopSignal;
use crate::mapping::path::Path;
use crate::mapping::worker::{Inbox, Mode, Observer, Worker, lock};

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
    /// Starts them; the map is loaded where the settings say so.
    pub(super) fn start(node: &mut Node, config: &Config) -> Result<Self, Error> {
        let path = Arc::new(Mutex::new(Path::default()));
        let path_of_next = Arc::new(Mutex::new(Path::default()));
        let observer: Observer<FieldSnapshot> = Box::new({
            let path = Arc::clone(&path);
            let path_of_next = Arc::clone(&path_of_next);
            move |observations, _| {
                let mut path = lock(&path);
                if observations.is_empty() {
                    *path = std::mem::take(&mut lock(&path_of_next));
                }
                observations.iter().for_each(|observation| path.push(observation.position));
            }
        });
        let frame = Frame::default();
        let Beginning { mapper, keeper, gauge, is_resumed } = Beginning::find(config, &frame)?;
        let readings_before = mapper.pipeline().counters().readings;
        *lock(&path) = mapper.pipeline().path().clone();
        let worker = Worker::resume(&config.worker, Mode::Live, mapper, keeper, Some(observer))?;
        let stop = worker.stop_signal();
        end_on_signals(stop.clone())?;
        let shown = Shown {
            worker: Arc::new(worker),
            frame,
            readings_before,
            journal: gauge,
            path,
            path_of_next,
            scales: Arc::default(),
            unplaced: Arc::default(),
        };
        let (publishing, publisher) = Publishing::start(node, config, shown.clone())?;
        let desk = Desk { shown, publishing, config: Arc::new(Mutex::new(config.clone())) };
        if config.node.load_at_start && !is_resumed {
            match desk.load() {
                Ok(done) => log::info!("{done}"),
                Err(reason) => return Err(Error::Load { reason }),
            }
        }
        let (tasks, clerk) = desk.clone().open()?;
        Ok(Self { desk, tasks, threads: [publisher, clerk], stop })
    }

    /// What the ROS thread needs of them.
    pub(super) fn hands(&self) -> Hands {
        let inbox = self.desk.shown.worker.inbox();
        Hands { desk: self.desk.clone(), tasks: self.tasks.clone(), inbox, stop: self.stop.clone() }
    }

    /// Closes the open batch, saves if that is wanted, and joins the threads.
    pub(super) fn end(self) -> Result<(), Error> {
        let Self { desk, tasks, threads, stop } = self;
        stop.stop();
        let flushed = desk.flush();
        let has_map = desk.shown.worker.snapshots().newest().is_some_and(|update| update.snapshot.posterior.is_some());
        let is_to_be_saved = lock(&desk.config).node.save_at_end && has_map;
        let last = flushed.and_then(|done| if is_to_be_saved { desk.save() } else { Ok(done) });
        if let Ok(done) = &last {
            log::info!("{done}");
        }
        let worker = Arc::clone(&desk.shown.worker);
        drop((desk, tasks));
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread panicked");
            }
        }
        if let Some(worker) = Arc::into_inner(worker) {
            let status = worker.join()?.status;
            let counters = status.counters;
            log::info!(
                "mapped {} of {} readings over {:.1} m in {} updates",
                counters.used_readings,
                counters.readings + status.lost_readings,
                counters.travelled,
                status.updates
            );
        }
        last.map(|_| ()).map_err(|reason| Error::Save { reason })
    }
}

/// A signal ends the node in good order. Further ones change nothing: `ros2 launch` sends SIGTERM to a node that takes long.
fn end_on_signals(stop: StopSignal) -> Result<(), Error> {
    ctrlc::set_handler(move || stop.stop())
        .map_err(|error| Error::System { what: "signals cannot be handled", source: std::io::Error::other(error) })
}
