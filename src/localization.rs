//! Locating a robot: a particle filter over its pose in a finished map, driven by odometry.
//!
//! ```text
//! measurements ── pipeline ── observations ── particle filter ── pose, covariance, state
//!                 gates, pose of odometry at each reading, averages along the path
//! ```
//!
//! The map may be one of strengths, or of the three axes; with those the heading shows in every reading.
//!
//! An estimate comes with a [`State`]. It is tracking only where one place explains the readings of some metres better than the map as a
//! whole does; not being lost is not enough. While readings disagree with the map, particles are drawn anew from all of it: at once
//! where the place is not proven, and otherwise after a longer distance than a change of the building explains.
//!
//! The poses are the same for the same measurements, settings and seed.

mod last_pose;
pub mod thread;

use std::sync::Arc;

use nalgebra::{Isometry2, Isometry3, Point3, Rotation3, Vector2, Vector3};

use crate::config::{self, Config, Scope};
use crate::field::map::FieldMap;
use crate::mapping::pipeline::Pipeline;
use crate::particle_filter::lookup::{MapLookup, NothingKnown};
use crate::particle_filter::{SensorFilter, SensorPlace, yaw};
use crate::sensing::counters::Counters;
use crate::sensing::intake::Input;
use crate::sensing::reading::{Measurement, Observation, Pose, Stamp};

pub use crate::particle_filter::{Estimate, Particle, Reason, Start, State};
pub use last_pose::LastPose;

/// Distance over which readings may disagree with the map where the place is proven, in metres: the building may have changed there. The
/// evidence is an average over the last metres, which disagrees for longer than a change is felt.
const DISAGREEMENT_TOLERATED: f64 = 2.0;

/// Why a robot cannot be located in a map.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The map is unknown everywhere.
    #[error(transparent)]
    NothingKnown(#[from] NothingKnown),
    /// The operating system could not start the thread.
    #[error("the localization thread could not be started: {0}")]
    Spawn(#[source] std::io::Error),
    /// The start is not finite.
    #[error("start: expected finite numbers and deviations of 0 or above, found {0:?}")]
    Start(Start),
}

/// The settings with which a robot is located in a map that was `made_with` others: those that [come with a
/// map](Scope::comes_with_a_map), defaults for the rest.
///
/// # Errors
/// Settings that contradict the defaults.
pub fn settings_for(made_with: &Config) -> Result<Config, config::Error> {
    made_with.keep_only(Scope::comes_with_a_map)
}

impl Start {
    /// About where a robot was last known to be.
    pub fn near(located: &Located) -> Self {
        Self::At {
            place: located.pose.translation.vector.into(),
            heading: located.pose.rotation.angle(),
            deviation: located.estimate.deviation(),
            heading_deviation: located.estimate.covariance[2][2].sqrt(),
        }
    }
}

/// The result of an update: where the robot is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Located {
    /// Stamp of the last reading that it is from.
    pub stamp: Stamp,
    /// Transform from the frame of the robot's body to that of the map, in the plane: the mean over the readings of the update, some
    /// centimetres before the stamp.
    pub pose: Isometry2<f64>,
    /// Transform from the frame of odometry to that of the map. It changes slowly: multiplied with the newest pose of odometry, it is
    /// the newest pose of the robot.
    pub map_from_odometry: Isometry2<f64>,
    /// The place of the sensor, with its covariance.
    pub estimate: Estimate,
    /// How far it is to be believed.
    pub state: State,
    /// Why the state is not tracking.
    pub reason: Option<Reason>,
    /// Number of particles.
    pub particles: usize,
}

impl Located {
    /// The pose of the body if a particle is right.
    pub fn body_of(&self, particle: &Particle) -> Isometry2<f64> {
        let turned = particle.turn - self.estimate.turn;
        let lever = self.pose.translation.vector - Vector2::from(self.estimate.place);
        let place = Vector2::from(particle.place) + Isometry2::rotation(turned) * lever;
        Isometry2::new(place, self.pose.rotation.angle() + turned)
    }
}

/// Locates a robot in a map.
#[derive(Clone, Debug)]
pub struct Localizer {
    settings: config::Localization,
    lookup: Arc<MapLookup>,
    /// The sensor's bias that the map has learnt, along the axes of the sensor.
    bias: Vector3<f64>,
    pipeline: Pipeline,
    start: Start,
    /// From the first observation on.
    filter: Option<SensorFilter>,
}

impl Localizer {
    /// Locates the robot in `map`, whose sensor is at `mount` (the transform from the sensor's frame to the body's).
    ///
    /// # Errors
    /// Maps in which nobody can be located, and [`Error::Start`].
    pub fn new(config: &Config, map: &FieldMap, mount: Isometry3<f64>, start: Start) -> Result<Self, Error> {
        if !start.is_valid() {
            return Err(Error::Start(start));
        }
        let lookup = Arc::new(MapLookup::of(map, &config.localization, mount.translation.z)?);
        let bias = map.sensor_bias().map_or_else(Vector3::zeros, |bias| bias.hard_iron.into());
        let settings = config.localization.clone();
        // Every observation is a step of the filter.
        let config = Config {
            averaging: config::Averaging { spacing: settings.update_min_d },
            batch: config::Batch { max_observations: 1, ..config.batch.clone() },
            ..config.clone()
        };
        let mut pipeline = Pipeline::new(&config, mount);
        pipeline.set_needs_mount(lookup.outputs > 1);
        Ok(Self { settings, lookup, bias, pipeline, start, filter: None })
    }

    /// Uses random numbers of another seed from the next start on.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Starts again, such as where a user says that the robot is.
    ///
    /// # Errors
    /// [`Error::Start`].
    pub fn restart(&mut self, start: Start) -> Result<(), Error> {
        if !start.is_valid() {
            return Err(Error::Start(start));
        }
        (self.start, self.filter) = (start, None);
        Ok(())
    }

    /// The result that the start implies before the first update, given the newest pose of odometry. None if the robot may be anywhere.
    pub fn assumed(&self, odometry: &Pose) -> Option<Located> {
        let Start::At { place, heading, deviation, heading_deviation } = self.start else { return None };
        let pose = Isometry2::new(place.into(), heading);
        let from_odometry = Isometry2::new(
            Vector2::new(odometry.position.x, odometry.position.y),
            yaw(odometry.orientation.to_rotation_matrix().matrix()),
        );
        let map_from_odometry = pose * from_odometry.inverse();
        let square = deviation * deviation;
        let estimate = Estimate {
            place,
            turn: map_from_odometry.rotation.angle(),
            covariance: [[square, 0.0, 0.0], [0.0, square, 0.0], [0.0, 0.0, heading_deviation * heading_deviation]],
            share: 1.0,
            evidence: 0.0,
            misfit: 1.0,
            inside: 1.0,
        };
        let (state, reason) = (State::Converging, Some(Reason::Unproven));
        Some(Located { stamp: odometry.stamp, pose, map_from_odometry, estimate, state, reason, particles: 0 })
    }

    /// An update with the readings since the last one, however little the robot has moved.
    pub fn update_now(&mut self) -> Option<Located> {
        self.pipeline.flush();
        self.take_ready()
    }

    /// Takes the next input, whose poses are those of odometry; where the robot is, if that completes an update. A mount has the same height
    /// above the plane as the one before.
    pub fn ingest(&mut self, input: impl Into<Input>) -> Option<Located> {
        let input = input.into();
        self.pipeline.ingest(input);
        if let Input::Measurement(Measurement::Pose(pose)) = input
            && self.has_turned(&pose)
        {
            self.pipeline.flush();
        }
        self.take_ready()
    }

    /// Whether the robot has turned so far since the last update that the next one is due.
    fn has_turned(&self, odometry: &Pose) -> bool {
        let orientation = (odometry.orientation * self.mount().rotation).to_rotation_matrix();
        let since = |last: &Observation| yaw(&(orientation.matrix() * last.orientation.transpose()));
        self.filter.as_ref().is_some_and(|filter| since(filter.last()).abs() >= self.settings.update_min_a)
    }

    fn take_ready(&mut self) -> Option<Located> {
        let mut located = None;
        while let Some(batch) = self.pipeline.next_batch() {
            for observation in &batch.observations {
                located = self.update(observation).or(located);
            }
        }
        located
    }

    /// Takes the next observation, in the frame of odometry.
    pub fn update(&mut self, observation: &Observation) -> Option<Located> {
        let mount = self.mount();
        let Some(filter) = &mut self.filter else {
            let start = sensor_start(&self.start, observation, &mount);
            let (lookup, settings) = (Arc::clone(&self.lookup), &self.settings);
            let filter = SensorFilter::new(settings, lookup, self.bias, &start, observation);
            self.filter = Some(filter.tolerating(DISAGREEMENT_TOLERATED));
            return None;
        };
        let SensorPlace { map_from_odometry, estimate, state, reason } = filter.update(observation);
        let particles = filter.particles().len();
        let pose = map_from_odometry * body(observation, &mount);
        Some(Located { stamp: observation.stamp, pose, map_from_odometry, estimate, state, reason, particles })
    }

    /// The mount of the sensor; at the origin of the body where it is unknown.
    pub fn mount(&self) -> Isometry3<f64> {
        self.pipeline.mount().copied().unwrap_or_default()
    }

    /// The start.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The settings.
    pub fn settings(&self) -> &config::Localization {
        &self.settings
    }

    /// Number of readings waiting for their pose.
    pub fn waiting(&self) -> usize {
        self.pipeline.waiting()
    }

    /// Counts of what was received, used and rejected.
    pub fn counters(&self) -> &Counters {
        self.pipeline.counters()
    }

    /// The particles; none before the first observation.
    pub fn particles(&self) -> &[Particle] {
        self.filter.as_ref().map_or(&[], SensorFilter::particles)
    }
}

/// The pose of the body in the plane, of the sensor that is `mount`ed on it.
fn body(observation: &Observation, mount: &Isometry3<f64>) -> Isometry2<f64> {
    let heading = yaw(&(observation.orientation * mount.rotation.inverse().to_rotation_matrix().matrix()));
    let lever = Rotation3::from_axis_angle(&Vector3::z_axis(), heading) * mount.translation.vector;
    let Point3 { coords: place } = observation.position - lever;
    Isometry2::new(Vector2::new(place.x, place.y), heading)
}

/// Converts a start of the body into a start of the sensor, with the rotation of odometry's frame for a heading.
fn sensor_start(start: &Start, first: &Observation, mount: &Isometry3<f64>) -> Start {
    let Start::At { place, heading, deviation, heading_deviation } = *start else { return *start };
    let body = body(first, mount);
    let sensor = body.inverse() * nalgebra::Point2::new(first.position.x, first.position.y);
    let place = Isometry2::new(place.into(), heading) * sensor;
    Start::At { place: place.coords.into(), heading: heading - body.rotation.angle(), deviation, heading_deviation }
}
