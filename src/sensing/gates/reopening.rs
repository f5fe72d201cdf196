//! Gates that accept what they rejected as correct.

use std::fmt;

use nalgebra::Point3;
use serde::{Deserialize, Serialize};
use strum::Display;

use crate::sensing::reading::Stamp;

/// A gate that can reopen; its name in snake case is its key in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
#[strum(serialize_all = "snake_case")]
pub enum Gate {
    /// Poses: `gates.max_speed`.
    MaxSpeed,
    /// Readings: `gates.max_gradient`.
    MaxGradient,
}

/// A gate accepted what it had rejected as correct.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reopening {
    /// The gate.
    pub gate: Gate,
    /// The number of consecutive rejections.
    pub rejections: u32,
    /// Stamp of the last rejected measurement, with which the next one is compared.
    pub stamp: Stamp,
    /// Position of the last rejected measurement in the map frame, in metres.
    pub position: Point3<f64>,
}

impl fmt::Display for Reopening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate, rejections, stamp, position } = self;
        let (x, y, seconds) = (position.x, position.y, stamp.seconds());
        write!(
            formatter,
            "gate {gate} reopened after {rejections} rejections at ({x:.2}, {y:.2}), stamp {seconds:.3} s"
        )
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
}

impl Reopenings {
    /// Counts one.
    pub fn count(&mut self, gate: Gate) {
        *match gate {
            Gate::MaxSpeed => &mut self.max_speed,
            Gate::MaxGradient => &mut self.max_gradient,
        } += 1;
    }
}
