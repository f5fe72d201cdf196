//! Gates: what a topic alone, or a reading beside its neighbour, shows to be implausible.
//!
//! Each gate sees one stream in its own order, so that what it refuses does not depend on how topics interleave. The gates that
//! compare with the last accepted measurement ([`ReadingGate`] and [`PoseGate`] by stamp, [`PoseGate`] by speed, [`GradientGate`]
//! by the field's change) may be wrong about that one: after `reopen_after` refusals in a row they take the newest refused
//! measurement for the truth, and say so. Those of speed and change take `reopen_time` for it as well: a fast sensor sends so
//! many in milliseconds.

mod gradient;
mod poses;
mod readings;
mod reopening;
mod repeat;
mod runs;

pub use gradient::GradientGate;
pub use poses::{Continuity, PoseGate};
pub use readings::{RangeGate, ReadingGate};
pub use reopening::{Gate, Reopening, Reopenings};
pub use repeat::RepeatGate;

use super::refusal::Refusal;

/// How far from the origin of its frame a pose may be, in metres: further than any frame on Earth reaches (UTM: 1e7), near enough
/// that every length made of two of them is finite.
pub(super) const FARTHEST: f64 = 1e9;

/// How far behind the newest a stamp may be and still be merely late, in seconds. Filters, networks and executors hand messages
/// over out of order by milliseconds, by tenths of a second at worst; a looped recording, a restarted simulation and a corrupt
/// stamp are seconds to years off. And what went back by less has caught up in less time than this, without a gate that reopens.
pub(super) const LATENESS: f64 = 1.0;

/// A measurement refused by a gate, and whether the gate reopened because of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejection {
    /// Why.
    pub refusal: Refusal,
    /// Set when this was one refusal in a row too many.
    pub reopening: Option<Reopening>,
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, reopening: None }
    }
}

/// A stamp, for tests.
#[cfg(test)]
fn at(milliseconds: i64) -> super::reading::Stamp {
    super::reading::Stamp::from_nanoseconds(milliseconds * 1_000_000)
}
