//! Consecutive rejections.

use serde::{Deserialize, Serialize};

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
