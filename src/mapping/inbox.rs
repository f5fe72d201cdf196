//! The inbox of the mapping thread, into which sources send.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use nalgebra::Isometry3;

use super::Error;
use super::mapper::{Mapper, SourceId, Step};
use crate::sensing::gates::FARTHEST;
use crate::sensing::reading::Measurement;

/// A message to the mapping thread.
pub(super) enum Message {
    /// A reading or a pose; the thread counts its index in the stream.
    Measurement(Measurement),
    /// Any other step.
    Step(Step),
    /// Closes the open cell and batch; replies when everything sent before is in the map.
    Flush(Sender<()>),
    /// Decides on steps, once every batch before is in the map, and takes them.
    Change(Change),
    /// The stream has ended.
    Finish,
}

/// Chooses the steps to take, given the map, and what to do once they are taken.
pub(super) type Change = Box<dyn FnOnce(&Mapper) -> (Vec<Step>, Box<dyn FnOnce()>) + Send>;

/// The sending end of the mapping thread's inbox. Clones send into the same one.
#[derive(Clone, Debug)]
pub struct Inbox {
    sender: Sender<Message>,
    losses: Arc<[AtomicU64; 2]>,
    frame: Arc<OnceLock<Arc<str>>>,
}

impl Inbox {
    /// An inbox for `capacity` messages, of a map in this frame (empty until it is known), and its receiving end.
    pub(super) fn new(capacity: usize, frame: &str) -> (Self, Receiver<Message>) {
        let (sender, receiver) = bounded(capacity.max(1));
        let known = OnceLock::new();
        if !frame.is_empty() {
            known.get_or_init(|| Arc::from(frame));
        }
        (Self { sender, losses: Arc::default(), frame: Arc::new(known) }, receiver)
    }

    /// Sends, and waits while the inbox is full: for recordings and simulations, which must lose nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the mapping thread has ended, as for all methods below.
    pub fn send(&self, measurement: Measurement) -> Result<(), Error> {
        self.put(Message::Measurement(measurement))
    }

    /// Sends without waiting, and returns whether there was room: for live sources. When the inbox is full the measurement is lost
    /// and counted.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn offer(&self, measurement: Measurement) -> Result<bool, Error> {
        match self.sender.try_send(Message::Measurement(measurement)) {
            Ok(()) => Ok(true),
            Err(TrySendError::Disconnected(_)) => Err(Error::Closed),
            Err(TrySendError::Full(_)) => {
                let is_pose = matches!(measurement, Measurement::Pose(_));
                self.losses[usize::from(is_pose)].fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    /// Changes the mount of the sensor (the transform from its frame to the robot's body frame) for readings sent afterwards. Waits
    /// while the inbox is full, even for a live source: it is rare and must not be lost.
    ///
    /// # Errors
    /// [`Error::MountNotFinite`], or as [`send`](Self::send).
    pub fn set_mount(&self, mount: Isometry3<f64>) -> Result<(), Error> {
        let is_near = mount.translation.vector.iter().all(|coordinate| coordinate.abs() <= FARTHEST);
        if !is_near || !mount.to_matrix().iter().all(|entry| entry.is_finite()) {
            return Err(Error::MountNotFinite(mount));
        }
        self.put(Message::Step(Step::Mount(mount)))
    }

    /// Announces that the measurements that follow come from another source: a recording, from its start, or a robot. `run`
    /// identifies this run of the source.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn begin(&self, id: SourceId, run: String) -> Result<(), Error> {
        self.put(Message::Step(Step::Source { id, run }))
    }

    /// The frame of the map, once it is known.
    pub fn frame(&self) -> Option<Arc<str>> {
        self.frame.get().cloned()
    }

    /// Sets the frame of the map unless it is known already, and returns the frame in force.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn name_frame(&self, frame: &str) -> Result<Arc<str>, Error> {
        let mut is_new = false;
        let known = self.frame.get_or_init(|| {
            is_new = true;
            Arc::from(frame)
        });
        if is_new {
            self.put(Message::Step(Step::Frame(frame.to_owned())))?;
        }
        Ok(Arc::clone(known))
    }

    /// Number of messages waiting in it.
    pub fn backlog(&self) -> usize {
        self.sender.len()
    }

    /// Number of readings and poses lost because it was full.
    pub(super) fn losses(&self) -> [u64; 2] {
        self.losses.each_ref().map(|lost| lost.load(Ordering::Relaxed))
    }

    pub(super) fn put(&self, message: Message) -> Result<(), Error> {
        self.sender.send(message).map_err(|_| Error::Closed)
    }
}
