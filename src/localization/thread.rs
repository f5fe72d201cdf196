//! A live robot: the thread that locates it, and keeps the last pose that it knew beside the map.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use nalgebra::Isometry3;

use super::{Error, LastPose, Localizer, Located, Particle, Start, State};
use crate::config::Config;
use crate::field::map::FieldMap;
use crate::sensing::counters::Counters;
use crate::sensing::intake::Input;
use crate::sensing::reading::{Measurement, Pose};
use crate::sync::lock;

/// How often the thread checks whether the last pose is to be saved.
const PERIOD: Duration = Duration::from_millis(200);

/// A message to the thread.
enum Message {
    Input(Input),
    Restart(Start),
    UpdateNow,
}

/// The last result.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Number of results so far: updates, and starts that were given.
    pub number: u64,
    /// The result; none while nothing is known.
    pub located: Option<Located>,
    /// Whether the transform from odometry to the map can be relied on: the start was given, or the place was found once; and the state
    /// is not lost.
    pub is_usable: bool,
    /// The particles, if they are watched.
    pub particles: Vec<Particle>,
    /// Counts of what was received, used and rejected.
    pub counters: Counters,
}

/// A robot that is located by a thread.
pub struct LocalizationThread {
    messages: Sender<Message>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    found: Mutex<Found>,
    is_watched: AtomicBool,
    lost: AtomicU64,
}

impl LocalizationThread {
    /// Starts the thread. `last_pose` is the file of the last pose.
    ///
    /// # Errors
    /// Maps in which nobody can be located, starts that are not finite, and [`Error::Spawn`].
    pub fn start(config: &Config, map: FieldMap, start: Start, last_pose: PathBuf) -> Result<Self, Error> {
        let (messages, receiver) = bounded(config.mapping.inbox);
        let shared = Arc::new(Shared::default());
        let thread = LocalizationLoop {
            // The mount of the sensor is not known yet.
            localizer: Localizer::new(config, &map, config.sensor.mount(), start)?,
            config: config.clone(),
            map,
            shared: Arc::clone(&shared),
            odometry: None,
            known: None,
            saved: Instant::now(),
            last_pose,
        };
        let builder = std::thread::Builder::new().name("localization".into());
        let thread = builder.spawn(move || thread.run(&receiver)).map_err(Error::Spawn)?;
        Ok(Self { messages, shared, thread })
    }

    /// Passes an input on. A measurement is dropped and counted if too many wait; a mount or a new stretch waits even then.
    pub fn offer(&self, input: Input) {
        if !matches!(input, Input::Measurement(_)) {
            let _ = self.messages.send(Message::Input(input));
        } else if let Err(TrySendError::Full(_)) = self.messages.try_send(Message::Input(input)) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts again, here.
    pub fn restart(&self, start: Start) {
        let _ = self.messages.send(Message::Restart(start));
    }

    /// Updates with the readings since the last update, however little the robot has moved.
    pub fn update_now(&self) {
        let _ = self.messages.send(Message::UpdateNow);
    }

    /// Says whether the particles are watched: whether [`Found`] is to have them.
    pub fn watch(&self, is_watched: bool) {
        self.shared.is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// The last result.
    pub fn found(&self) -> Found {
        lock(&self.shared.found).clone()
    }

    /// Number of measurements that wait.
    pub fn backlog(&self) -> usize {
        self.messages.len()
    }

    /// Number of measurements that were dropped.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Whether the thread has ended, which it never does by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the thread, which saves the last pose; whether it ended in good order.
    pub fn end(self) -> bool {
        drop(self.messages);
        self.thread.join().is_ok()
    }
}

struct LocalizationLoop {
    config: Config,
    map: FieldMap,
    localizer: Localizer,
    shared: Arc<Shared>,
    /// The newest pose of odometry.
    odometry: Option<Pose>,
    /// The last pose that was sure and is not saved yet.
    known: Option<LastPose>,
    saved: Instant,
    last_pose: PathBuf,
}

impl LocalizationLoop {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            match messages.recv_timeout(PERIOD) {
                Ok(task) => self.take(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let rate = self.config.localization.save_pose_rate;
            if rate > 0.0 && self.saved.elapsed().as_secs_f64() >= 1.0 / rate {
                self.save();
            }
        }
        if self.config.localization.save_pose_rate > 0.0 {
            self.save();
        }
    }

    fn take(&mut self, task: Message) {
        match task {
            Message::Input(Input::Mount(mount)) => self.set_mount(mount),
            Message::Input(input) => {
                if let Input::Measurement(Measurement::Pose(pose)) = input {
                    // What the start says counts from the first pose on.
                    if self.odometry.replace(pose).is_none() {
                        self.assume();
                    }
                }
                let located = self.localizer.ingest(input);
                self.publish(located);
            }
            Message::Restart(start) => match self.localizer.restart(start) {
                Ok(()) => {
                    lock(&self.shared.found).is_usable = false;
                    self.assume();
                }
                Err(error) => log::warn!("{error}"),
            },
            Message::UpdateNow => {
                let located = self.localizer.update_now();
                self.publish(located);
            }
        }
    }

    fn set_mount(&mut self, mount: Isometry3<f64>) {
        if mount.translation.z == self.localizer.mount().translation.z {
            self.localizer.ingest(Input::Mount(mount));
            return;
        }
        // The map is looked up at the height of the sensor.
        let (config, start) = (&self.config, self.localizer.start());
        match Localizer::new(config, &self.map, mount, start) {
            Ok(localizer) => self.localizer = localizer,
            Err(error) => log::error!("the map cannot be used at the height of the sensor: {error}"),
        }
    }

    /// Publishes what the start says.
    fn assume(&self) {
        let assumed = self.odometry.as_ref().and_then(|odometry| self.localizer.assumed(odometry));
        let mut found = lock(&self.shared.found);
        (found.number, found.is_usable) = (found.number + 1, assumed.is_some());
        (found.located, found.particles) = (assumed, Vec::new());
    }

    fn publish(&mut self, located: Option<Located>) {
        let mut found = lock(&self.shared.found);
        found.counters = *self.localizer.counters();
        let Some(located) = located else { return };
        if found.located.is_none_or(|last| last.state != located.state) {
            let [x, y]: [f64; 2] = located.pose.translation.into();
            let place = format!("at {x:.2}, {y:.2} m, give or take {:.2} m", located.estimate.deviation());
            match (located.state, located.reason) {
                (State::Tracking, _) => log::info!("tracking: {place}"),
                (State::Converging, reason) => log::info!("converging: {}", in_words(reason)),
                (State::Lost, reason) => log::warn!("lost: {}; it was {place}", in_words(reason)),
            }
        }
        match located.state {
            State::Tracking => {
                found.is_usable = true;
                self.known = Some(LastPose::of(&located));
            }
            State::Converging => {}
            State::Lost => found.is_usable = false,
        }
        (found.number, found.located) = (found.number + 1, Some(located));
        found.particles.clear();
        if self.shared.is_watched.load(Ordering::Relaxed) {
            found.particles.extend_from_slice(self.localizer.particles());
        }
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        let Some(known) = self.known.take() else { return };
        if let Err(error) = known.write(&self.last_pose) {
            log::warn!("the last pose cannot be saved to {}: {error}", self.last_pose.display());
        }
    }
}

fn in_words(reason: Option<super::Reason>) -> String {
    reason.map_or_else(String::new, |reason| reason.to_string())
}
