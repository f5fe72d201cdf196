//! Gates that accept what they rejected as correct.

use std::fmt;

use nalgebra::Point3;
use serde::{Deserialize, Serialize};
use strum::Display;

use crate::sensing::reading::Stamp;

/// A gate that can reopen; its name in snake case is its key in the configuration where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
#[strum(serialize_all = "snake_case")]
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

/// A gate accepted what it had rejected as correct.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reopening {
    /// Which gate.
    pub gate: Gate,
    /// The number of consecutive rejections.
    pub rejections: u32,
    /// Stamp of the last rejected measurement, with which the next one is compared.
    pub stamp: Stamp,
    /// Position of the last rejected measurement in the map frame, in metres; none for a reading that is not located yet.
    pub position: Option<Point3<f64>>,
    /// Stamp of the last accepted measurement.
    pub accepted: Stamp,
}

impl fmt::Display for Reopening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate, rejections, stamp, position, accepted } = self;
        if let Some(topic) = match gate {
            Gate::ReadingClock => Some("readings"),
            Gate::PoseClock => Some("poses"),
            Gate::MaxSpeed | Gate::MaxGradient => None,
        } {
            write!(formatter, "the clock of the {topic} went back by {:.3} s: ", accepted.seconds_since(*stamp))?;
        }
        write!(formatter, "gate {gate} reopened after {rejections} rejections")?;
        if let Some(position) = position {
            write!(formatter, " at ({:.2}, {:.2})", position.x, position.y)?;
        }
        write!(formatter, ", stamp {:.3} s", stamp.seconds())
    }
}

/// How often each gate reopened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reopenings {
    /// [`Gate::MaxSpeed`].
    pub max_speed: u64,
    /// [`Gate::MaxGradient`].
    pub max_gradient: u64,
    /// [`Gate::ReadingClock`].
    pub reading_clock: u64,
    /// [`Gate::PoseClock`].
    pub pose_clock: u64,
}

impl Reopenings {
    /// Counts one.
    pub fn count(&mut self, gate: Gate) {
        *match gate {
            Gate::MaxSpeed => &mut self.max_speed,
            Gate::MaxGradient => &mut self.max_gradient,
            Gate::ReadingClock => &mut self.reading_clock,
            Gate::PoseClock => &mut self.pose_clock,
        } += 1;
    }
}
