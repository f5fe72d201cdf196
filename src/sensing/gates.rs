//! Gates reject what is implausible in one topic alone.
//!
//! Each gate sees one stream in its own order, so that what it rejects does not depend on how topics interleave. The gates that
//! compare with the last accepted measurement ([`PoseGate`] by speed, [`GradientGate`] by the change of the field) may be wrong about
//! that one: after `reopen_after` consecutive rejections over `reopen_time` they accept the newest rejected measurement as correct, and
//! report that they reopened.

mod gradient;
mod poses;
mod pulse;
mod readings;
mod rejection_run;
mod reopening;
mod repeat;

pub use gradient::GradientGate;
pub use poses::{Continuity, PoseGate};
pub use pulse::{Passed, PulseGate};
pub use readings::{ReadingGate, check_range};
pub use reopening::{Gate, Reopening, Reopenings};
pub use repeat::RepeatGate;

use crate::sensing::rejection::Rejection;

/// Greatest distance of a pose from the origin of its frame along an axis, in metres: beyond any frame on Earth (UTM: 1e7), but
/// small enough for all distances to be finite.
pub(crate) const FARTHEST: f64 = 1e9;

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
