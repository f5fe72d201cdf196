//! The inbox of the mapping thread, into which sources send.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::Error;
use super::mapper::{Mapper, SourceId, Step};
use crate::sensing::gates::FARTHEST;
use crate::sensing::intake::Input;
use crate::sensing::reading::Measurement;
use crate::sync::lock;

/// A message to the mapping thread.
pub(super) enum Message {
    /// An input of the pipeline; the thread counts its index in the stream.
    Input(Input),
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
    pub(super) frame: MapFrame,
}

/// The frame of the map, once it is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct MapFrame(Arc<Mutex<Option<Arc<str>>>>);

impl MapFrame {
    fn get(&self) -> Option<Arc<str>> {
        lock(&self.0).clone()
    }

    /// The frame, and whether it is this one because none was known.
    fn get_or_insert(&self, frame: &str) -> (Arc<str>, bool) {
        let mut known = lock(&self.0);
        let is_new = known.is_none();
        (Arc::clone(known.get_or_insert_with(|| Arc::from(frame))), is_new)
    }

    /// The map has been given another frame.
    pub(super) fn set(&self, frame: &str) {
        *lock(&self.0) = Some(Arc::from(frame));
    }
}

impl Inbox {
    /// An inbox for `capacity` messages, of a map in this frame (empty until it is known), and its receiving end.
    pub(super) fn new(capacity: usize, frame: &str) -> (Self, Receiver<Message>) {
        let (sender, receiver) = bounded(capacity.max(1));
        let known = MapFrame::default();
        if !frame.is_empty() {
            known.set(frame);
        }
        (Self { sender, losses: Arc::default(), frame: known }, receiver)
    }

    /// Sends, and waits while the inbox is full: for recordings and simulations, which must lose nothing.
    ///
    /// # Errors
    /// [`Error::MountNotFinite`], and [`Error::Closed`] when the mapping thread has ended, as for all methods below.
    pub fn send(&self, input: impl Into<Input>) -> Result<(), Error> {
        self.put(Message::Input(checked(input.into())?))
    }

    /// Sends without waiting, and returns whether there was room: for live sources. When the inbox is full a measurement is lost and counted;
    /// a mount or a new stretch waits even then, because it is rare and must not be lost.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn offer(&self, input: impl Into<Input>) -> Result<bool, Error> {
        let input = input.into();
        let Input::Measurement(measurement) = input else { return self.send(input).map(|()| true) };
        match self.sender.try_send(Message::Input(input)) {
            Ok(()) => Ok(true),
            Err(TrySendError::Disconnected(_)) => Err(Error::Closed),
            Err(TrySendError::Full(_)) => {
                let is_pose = matches!(measurement, Measurement::Pose(_));
                self.losses[usize::from(is_pose)].fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    /// Announces that the inputs that follow come from another source: a recording, from its start, or a robot. `run`
    /// identifies this run of the source.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn begin(&self, id: SourceId, run: String) -> Result<(), Error> {
        self.put(Message::Step(Step::Source { id, run }))
    }

    /// The frame of the map, once it is known.
    pub fn frame(&self) -> Option<Arc<str>> {
        self.frame.get()
    }

    /// Sets the frame of the map unless it is known already, and returns the frame in force.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn name_frame(&self, frame: &str) -> Result<Arc<str>, Error> {
        let (known, is_new) = self.frame.get_or_insert(frame);
        if is_new {
            self.put(Message::Step(Step::Frame(frame.to_owned())))?;
        }
        Ok(known)
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

/// The input, unless it is a mount that is nowhere.
fn checked(input: Input) -> Result<Input, Error> {
    let Input::Mount(mount) = input else { return Ok(input) };
    let is_near = mount.translation.vector.iter().all(|coordinate| coordinate.abs() <= FARTHEST);
    let is_finite = mount.to_matrix().iter().all(|entry| entry.is_finite());
    if is_near && is_finite { Ok(input) } else { Err(Error::MountNotFinite(mount)) }
}
