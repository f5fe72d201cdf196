//! Consecutive rejections.

use serde::{Deserialize, Serialize};

use super::LATENESS;
use crate::sensing::reading::Stamp;

/// Counts consecutive rejections for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RejectionRun {
    length: u32,
    /// The earliest stamp of them.
    first: Option<Stamp>,
}

impl RejectionRun {
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Counts one more. Returns their number and restarts when there are `allowed`, over `seconds` from the first.
    pub(super) fn reject(&mut self, stamp: Stamp, allowed: u32, seconds: f64) -> Option<u32> {
        let first = self.first.map_or(stamp, |first| first.min(stamp));
        self.first = Some(first);
        self.length = self.length.saturating_add(1);
        let is_last = self.length >= allowed && stamp.seconds_since(first) >= seconds;
        is_last.then(|| std::mem::take(self).length)
    }
}

/// Counts consecutive stamps so far behind that the clock may have gone back. From there they must advance: neither go back nor
/// stand still.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClockRun {
    run: RejectionRun,
    last: Option<Stamp>,
}

impl ClockRun {
    pub(super) fn end(&mut self) {
        self.run.end();
    }

    /// Counts one more stamp before the last accepted one. Returns their number and restarts when there are `allowed`.
    pub(super) fn reject(&mut self, stamp: Stamp, accepted: Stamp, allowed: u32) -> Option<u32> {
        let goes_back = self.last.replace(stamp).is_some_and(|last| stamp < last);
        let is_merely_late = accepted.seconds_since(stamp) <= LATENESS;
        if goes_back || is_merely_late {
            self.end();
        }
        if is_merely_late { None } else { self.run.reject(stamp, allowed, f64::MIN_POSITIVE) }
    }
}
