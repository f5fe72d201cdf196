//! Refusals in a row.

use serde::{Deserialize, Serialize};

use super::super::reading::Stamp;
use super::LATENESS;

/// Counts refusals in a row, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RefusalRun {
    length: u32,
    /// The earliest stamp of them.
    first: Option<Stamp>,
}

impl RefusalRun {
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// One more refusal: how many there were, when it is the last: `allowed` in a row, and `seconds` from the first.
    pub(super) fn refuse(&mut self, stamp: Stamp, allowed: u32, seconds: f64) -> Option<u32> {
        let first = self.first.map_or(stamp, |first| first.min(stamp));
        self.first = Some(first);
        self.length = self.length.saturating_add(1);
        let is_last = self.length >= allowed && stamp.seconds_since(first) >= seconds;
        is_last.then(|| std::mem::take(self).length)
    }
}

/// Counts refusals in a row of stamps that are so far behind that the clock may have gone back. They must go on from there: not
/// back themselves, nor stand still.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClockRun {
    run: RefusalRun,
    last: Option<Stamp>,
}

impl ClockRun {
    pub(super) fn end(&mut self) {
        self.run.end();
    }

    /// One more stamp before the last accepted one: how many there were, when it is the last of the `allowed` in a row.
    pub(super) fn refuse(&mut self, stamp: Stamp, accepted: Stamp, allowed: u32) -> Option<u32> {
        let goes_back = self.last.replace(stamp).is_some_and(|last| stamp < last);
        let is_merely_late = accepted.seconds_since(stamp) <= LATENESS;
        if goes_back || is_merely_late {
            self.end();
        }
        if is_merely_late { None } else { self.run.refuse(stamp, allowed, f64::MIN_POSITIVE) }
    }
}
