//! The filter on observations of a sensor.

use std::sync::Arc;

use nalgebra::{Isometry2, Matrix3, Vector2, Vector3};

use super::lookup::MapLookup;
use super::{Estimate, MotionStep, Particle, ParticleFilter, Reason, Start, State};
use crate::config;
use crate::sensing::reading::Observation;

/// A sensor, located in a map by its observations in the frame of odometry.
#[derive(Clone, Debug)]
pub struct SensorFilter {
    filter: ParticleFilter,
    /// Number of outputs of the map.
    outputs: usize,
    /// The sensor's bias that the map has learnt, along its axes, in microtesla.
    bias: Vector3<f64>,
    last: Observation,
}

/// Where a sensor was at an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorPlace {
    /// Transform from the frame of odometry to that of the map.
    pub map_from_odometry: Isometry2<f64>,
    /// The place of the sensor, with its covariance.
    pub estimate: Estimate,
    /// How far it is to be believed.
    pub state: State,
    /// Why the state is not tracking.
    pub reason: Option<Reason>,
}

impl SensorFilter {
    /// A sensor with this bias that starts at its `first` observation. `start` gives the pose of the sensor, whose heading is that of the frame of
    /// odometry.
    pub fn new(
        settings: &config::Localization,
        lookup: Arc<MapLookup>,
        bias: Vector3<f64>,
        start: &Start,
        first: &Observation,
    ) -> Self {
        let outputs = lookup.outputs;
        Self { filter: ParticleFilter::new(settings, lookup, start), outputs, bias, last: *first }
    }

    /// Believes readings that disagree with the map as [`ParticleFilter::tolerating`] says.
    pub fn tolerating(mut self, distance: f64) -> Self {
        self.filter = self.filter.tolerating(distance);
        self
    }

    /// Takes the next observation.
    pub fn update(&mut self, observation: &Observation) -> SensorPlace {
        let field = match self.outputs {
            1 => [observation.strength, 0.0, 0.0],
            _ => (observation.field.microtesla() - observation.orientation * self.bias).into(),
        };
        let step = step(&self.last, observation, field);
        self.last = *observation;
        let (estimate, state, reason) = self.filter.update(&step);
        let rotation = Isometry2::rotation(estimate.turn);
        let from = rotation * Vector2::new(observation.position.x, observation.position.y);
        let map_from_odometry = Isometry2::new(Vector2::from(estimate.place) - from, estimate.turn);
        SensorPlace { map_from_odometry, estimate, state, reason }
    }

    /// The last observation.
    pub fn last(&self) -> &Observation {
        &self.last
    }

    /// The particles.
    pub fn particles(&self) -> &[Particle] {
        self.filter.particles()
    }
}

/// How the sensor moved from one observation to the next, and what it then read.
fn step(last: &Observation, next: &Observation, field: [f64; 3]) -> MotionStep {
    let movement = next.position - last.position;
    let rotation = yaw(&(next.orientation * last.orientation.transpose()));
    MotionStep { movement: [movement.x, movement.y], rotation, heading: yaw(&next.orientation), field }
}

/// Angle by which a rotation, or a mean of rotations, turns the plane.
pub fn yaw(rotation: &Matrix3<f64>) -> f64 {
    (rotation[(1, 0)] - rotation[(0, 1)]).atan2(rotation[(0, 0)] + rotation[(1, 1)])
}
