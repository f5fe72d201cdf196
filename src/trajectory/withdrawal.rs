//! Observations that no longer hold, because the building has changed there since.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use jiff::Timestamp;
use nalgebra::{Isometry2, Point2};
use serde::{Deserialize, Serialize};

use crate::sensing::reading::{Observation, Stamp};

/// Observations within this distance of a place that has changed are withdrawn, in metres.
pub(crate) const RADIUS: f64 = 0.3;

/// Observations of earlier batches at places where later ones contradict them: they stay in the file, but nothing is learnt from them any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// The batches, counted from 0.
    pub batches: Range<u64>,
    /// The places that have changed, x and y in the frame of the map, in metres.
    pub places: Vec<[f64; 2]>,
    /// When that was found: the stamp of the reading that decided.
    pub stamp: Stamp,
    /// Whether the map has been made again without these observations.
    pub is_applied: bool,
}

impl Display for Withdrawal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [x, y] = self.middle();
        write!(f, "around ({x:.1}, {y:.1}), found at {}", self.found_at())
    }
}

impl Withdrawal {
    /// When it was found, in words.
    pub fn found_at(&self) -> String {
        let time = Timestamp::from_nanosecond(self.stamp.nanoseconds().into()).unwrap_or_default();
        time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
    }

    /// Whether this observation of a batch, at its pose in the map, is withdrawn.
    pub fn concerns(&self, batch: u64, seen: &Observation) -> bool {
        self.batches.contains(&batch) && self.is_near(&seen.position.xy())
    }

    /// Whether a place has changed.
    pub(crate) fn is_near(&self, place: &Point2<f64>) -> bool {
        self.places.iter().any(|changed| (Point2::from(*changed) - place).norm() <= RADIUS)
    }

    /// The middle of the places.
    pub fn middle(&self) -> [f64; 2] {
        let count = self.places.len().max(1) as f64;
        [0, 1].map(|axis| self.places.iter().map(|place| place[axis]).sum::<f64>() / count)
    }

    /// The withdrawal in a map of several: this one begins at batch `first`, and `frame` is the transform from its frame to the common one.
    pub(super) fn of_part(&self, first: u64, frame: &Isometry2<f64>) -> Self {
        let places = self.places.iter().map(|place| (frame * Point2::from(*place)).coords.into()).collect();
        Self {
            batches: self.batches.start.saturating_add(first)..self.batches.end.saturating_add(first),
            places,
            ..self.clone()
        }
    }

    /// Whether all numbers are finite: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        self.places.iter().flatten().all(|coordinate| coordinate.is_finite())
    }
}
