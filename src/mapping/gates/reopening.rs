//! Gates that take what they refused for the truth.

use std::fmt;

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::super::reading::Stamp;

/// A gate that can reopen, named by its key in the configuration where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Poses: `gates.max_speed`.
    MaxSpeed,
    /// Readings: `gates.max_gradient`.
    MaxGradient,
    /// Readings: stamps that do not decrease.
    ReadingClock,
    /// Poses: stamps that increase.
    PoseClock,
}

impl Gate {
    /// Its key in the configuration, or a name like one.
    pub const fn name(self) -> &'static str {
        match self {
            Gate::MaxSpeed => "max_speed",
            Gate::MaxGradient => "max_gradient",
            Gate::ReadingClock => "reading_clock",
            Gate::PoseClock => "pose_clock",
        }
    }
}

/// A gate took what it had refused for the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reopening {
    /// Which gate.
    pub gate: Gate,
    /// How many measurements in a row it had refused.
    pub refusals: u32,
    /// Stamp of the last of them, with which the next one is compared.
    pub stamp: Stamp,
    /// Where that was, in the map frame, in metres; none for a reading that had not found its pose yet.
    pub position: Option<Point3<f64>>,
    /// Stamp of the last measurement it had accepted.
    pub accepted: Stamp,
}

impl fmt::Display for Reopening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gate {
            Gate::ReadingClock => self.write_clock(formatter, "readings")?,
            Gate::PoseClock => self.write_clock(formatter, "poses")?,
            Gate::MaxSpeed | Gate::MaxGradient => {}
        }
        write!(formatter, "gate {} reopened after {} refusals", self.gate.name(), self.refusals)?;
        if let Some(position) = self.position {
            write!(formatter, " at ({:.2}, {:.2})", position.x, position.y)?;
        }
        write!(formatter, ", stamp {:.3} s", self.stamp.seconds())
    }
}

impl Reopening {
    fn write_clock(&self, formatter: &mut fmt::Formatter<'_>, topic: &str) -> fmt::Result {
        let Self { stamp, accepted, .. } = self;
        write!(formatter, "the clock of the {topic} went back by {:.3} s: ", accepted.seconds_since(*stamp))
    }
}

/// How often each gate reopened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reopenings {
    /// The gate of poses.
    pub max_speed: u64,
    /// The gate of the field's change.
    pub max_gradient: u64,
    /// The gate of the readings' stamps.
    pub reading_clock: u64,
    /// The gate of the poses' stamps.
    pub pose_clock: u64,
}

impl Reopenings {
    /// Counts one.
    pub fn count(&mut self, gate: Gate) {
        match gate {
            Gate::MaxSpeed => self.max_speed += 1,
            Gate::MaxGradient => self.max_gradient += 1,
            Gate::ReadingClock => self.reading_clock += 1,
            Gate::PoseClock => self.pose_clock += 1,
        }
    }
}
