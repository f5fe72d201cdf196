//! Counts of what was received, and of what became of it.

use serde::{Deserialize, Serialize};

use super::gates::Reopenings;
use super::rejection::Rejections;

/// Counts of measurements and of what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Readings received.
    pub readings: u64,
    /// Poses received.
    pub poses: u64,
    /// Readings that became part of an observation. The others were rejected, or wait for their pose.
    pub used_readings: u64,
    /// Readings and poses rejected, by reason.
    pub rejections: Rejections,
    /// How often each gate reopened.
    pub reopenings: Reopenings,
    /// How often the clock went back.
    pub clock_jumps: u64,
    /// Observations: averages of the readings.
    pub observations: u64,
    /// Batches completed.
    pub batches: u64,
    /// Length of the path over which the field was measured, in metres.
    pub travelled: f64,
}

/// More than can ever have happened, with room to continue counting.
pub(crate) const COUNTABLE: u64 = 1 << 60;

impl Counters {
    /// Whether no count from a file is impossibly large.
    pub(crate) fn is_valid(&self) -> bool {
        let Self {
            readings,
            poses,
            used_readings,
            rejections,
            reopenings,
            clock_jumps,
            observations,
            batches,
            travelled: _,
        } = *self;
        let Reopenings { max_speed, max_gradient } = reopenings;
        [readings, poses, used_readings, observations, batches, max_speed, max_gradient, clock_jumps]
            .into_iter()
            .chain(rejections.iter().map(|(_, count)| count))
            .all(|count| count < COUNTABLE)
    }
}
