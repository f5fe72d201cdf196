//! Data that the threads of the node share.

use std::sync::{Arc, Mutex};

use crate::display::occupancy::GridScales;
use crate::sensing::rejection::Rejections;
use crate::session::Session;

/// Data that the threads share.
#[derive(Clone)]
pub(super) struct Shared {
    /// The session, with the mapping thread.
    pub(super) session: Arc<Session>,
    /// The scales of the last grids.
    pub(super) scales: Arc<Mutex<Option<GridScales>>>,
    /// Rejections of the intake.
    pub(super) intake_rejections: Arc<Mutex<Rejections>>,
    /// The frame of the last reading; empty before the first.
    pub(super) sensor_frame: Arc<Mutex<Arc<str>>>,
}
