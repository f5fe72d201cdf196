//! Gates reject what is implausible in one topic alone.
//!
//! Each gate sees one stream in its own order, so that what it rejects does not depend on how topics interleave. The gates that
//! compare with the last accepted measurement ([`ReadingGate`] and [`PoseGate`] by stamp, [`PoseGate`] by speed, [`GradientGate`]
//! by the change of the field) may be wrong about that one: after `reopen_after` consecutive rejections they accept the newest
//! rejected measurement as correct, and report that they reopened. The gates of speed and change also wait for `reopen_time`, because a
//! fast sensor sends that many measurements in milliseconds.

mod gradient;
mod poses;
mod readings;
mod reopening;
mod repeat;
mod runs;

pub use gradient::GradientGate;
pub use poses::{Continuity, PoseGate};
pub use readings::{ReadingGate, check_range};
pub use reopening::{Gate, Reopening, Reopenings};
pub use repeat::RepeatGate;

use crate::sensing::rejection::Rejection;

/// Greatest distance of a pose from the origin of its frame along an axis, in metres: beyond any frame on Earth (UTM: 1e7), but
/// small enough for all distances to be finite.
pub(crate) const FARTHEST: f64 = 1e9;

/// How far behind the newest a stamp may be and still be merely late, in seconds. Filters, networks and executors reorder messages
/// by milliseconds, at worst by tenths of a second; looped recordings, restarted simulations and corrupt stamps are off by seconds to
/// years. A clock that went back by less has caught up within this time, without a gate that reopens.
pub(crate) const LATENESS: f64 = 1.0;

/// The rejection of a measurement by a gate, which may have reopened because of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejected {
    /// Why.
    pub reason: Rejection,
    /// Set when this was one consecutive rejection too many.
    pub reopening: Option<Reopening>,
}

impl From<Rejection> for Rejected {
    fn from(reason: Rejection) -> Self {
        Self { reason, reopening: None }
    }
}
