//! A particle filter over the pose of a sensor in a map of the field, driven by odometry, and the rule by which a place is proven.
//!
//! Particles [look the map up](lookup), so that a step costs the same however large the map is. Errors of the map and of neighbouring readings
//! are shared, so readings within a short distance count as one. Besides its pose a particle has the scale of odometry and its drift, which stay the same for a
//! drive.

mod density;
mod estimate;
mod filter;
pub mod lookup;
mod motion;
mod particle;
mod sample;
mod sensor;

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

pub use estimate::{Confidence, Estimate, Reason, State};
pub use filter::ParticleFilter;
pub(crate) use filter::systematic;
pub use motion::MotionStep;
pub use particle::Particle;
pub(crate) use particle::normal;
pub use sensor::{SensorFilter, SensorPlace, yaw};

/// The start: where the robot may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Anywhere in the map, with any heading.
    Anywhere,
    /// Here: the pose of the robot's body in the frame of the map.
    At {
        /// x and y, in metres.
        place: [f64; 2],
        /// Counterclockwise from the x axis, in radians.
        heading: f64,
        /// Standard deviation of x and y, in metres.
        deviation: f64,
        /// Standard deviation of the heading, in radians.
        heading_deviation: f64,
    },
}

impl Start {
    /// About here, as somebody said: with the uncertainty that AMCL gives such a pose, 0.5 m and 15 degrees.
    pub fn given(place: [f64; 2], heading: f64) -> Self {
        Self::At { place, heading, deviation: 0.5, heading_deviation: PI / 12.0 }
    }

    /// Whether it is finite.
    pub(crate) fn is_valid(&self) -> bool {
        let Self::At { place: [x, y], heading, deviation, heading_deviation } = *self else { return true };
        [x, y, heading, deviation, heading_deviation].iter().all(|number| number.is_finite())
            && deviation >= 0.0
            && heading_deviation >= 0.0
    }
}
