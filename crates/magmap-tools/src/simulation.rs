//! Worlds whose field is known everywhere, and a robot that drives through them.
//!
//! Everything random comes from a seed and a generator (ChaCha) that gives the same numbers on every machine.

pub mod bag;
pub mod dipoles;
pub mod odometry;
pub mod path;
pub mod robot;
pub mod survey;

use std::f64::consts::PI;

use nalgebra::Point3;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use magmap::sensing::reading::MagneticField;

pub use dipoles::{Character, Dipole, DipoleOptions, DipoleWorld, Steel};
pub use odometry::{Drift, Odometry};
pub use path::{Path, Route};
pub use robot::{RobotOptions, SimulatedDrive, SimulatedMeasurement, Truth};

/// A setting that no world, path or robot can have.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("simulation setting `{name}`: expected {expected}, found {found}")]
pub struct Error {
    /// The setting.
    pub name: &'static str,
    /// The values it may have.
    pub expected: &'static str,
    /// The value that was found.
    pub found: String,
}

/// A field that is known everywhere.
pub trait World {
    /// The field at a point of the room, in the map frame (metres).
    fn field_at(&self, position: &Point3<f64>) -> MagneticField;

    /// The strength of the field there, in microtesla.
    fn strength_at(&self, position: &Point3<f64>) -> f64 {
        self.field_at(position).strength()
    }
}

impl<W: World + ?Sized> World for &W {
    fn field_at(&self, position: &Point3<f64>) -> MagneticField {
        (**self).field_at(position)
    }
}

/// Everything that determines a simulated recording: a world, a route through it and a robot.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Seed of the world, the route and the noise, each of which has its own stream of random numbers.
    pub seed: u64,
    /// The room and the sources around it.
    pub world: DipoleOptions,
    /// The route of the robot.
    pub route: Route,
    /// The robot.
    pub robot: RobotOptions,
    /// Duration of the drive, in seconds.
    pub duration: f64,
}

impl Simulation {
    /// The world: a function of the seed and of `world` alone.
    ///
    /// # Errors
    /// Options that no world can have.
    pub fn world(&self) -> Result<DipoleWorld, Error> {
        DipoleWorld::random(&self.world, self.seed)
    }

    /// The drive through `world`, which is usually [`Simulation::world`] but may be any other.
    ///
    /// # Errors
    /// Settings that no route or robot can have.
    pub fn drive<W: World>(&self, world: W) -> Result<SimulatedDrive<W>, Error> {
        positive("duration", self.duration)?;
        let path = Path::through_room(self.route, self.world.size, self.robot.speed * self.duration, self.seed)?;
        SimulatedDrive::new(world, path, self.robot.clone(), self.seed)
    }
}

/// The embedded demonstration: three minutes in a room of 6 m by 6 m whose field varies like that of a steel-framed building
/// (about 50 microtesla, standard deviation 10), up and down in lanes, then across.
pub fn demo() -> Simulation {
    Simulation {
        seed: 3,
        world: DipoleOptions::default(),
        route: Route::LawnMower { spacing: 0.8 },
        robot: RobotOptions::default(),
        duration: 180.0,
    }
}

/// The streams of random numbers, separate so that changing one part of a simulation leaves the others as they are.
#[derive(Clone, Copy)]
enum Stream {
    World,
    Path,
    Noise,
    Drift,
}

fn generator(seed: u64, stream: Stream) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream as u64);
    generator
}

/// Checks that a setting is a finite number above zero.
pub fn positive(name: &'static str, value: f64) -> Result<(), Error> {
    check(name, value.is_finite() && value > 0.0, "a finite number above 0", value)
}

/// Checks that a setting is a finite number, zero or above.
pub fn not_negative(name: &'static str, value: f64) -> Result<(), Error> {
    check(name, value.is_finite() && value >= 0.0, "a finite number, 0 or above", value)
}

/// An [`Error`] unless the setting is valid.
pub fn check(
    name: &'static str,
    is_valid: bool,
    expected: &'static str,
    found: impl std::fmt::Debug,
) -> Result<(), Error> {
    if is_valid { Ok(()) } else { Err(Error { name, expected, found: format!("{found:?}") }) }
}

/// Wraps an angle to the range from -pi to pi.
fn wrapped(angle: f64) -> f64 {
    angle - (angle / (2.0 * PI)).round() * 2.0 * PI
}

#[cfg(test)]
mod tests {
    use super::*;
    use magmap::sensing::reading::Measurement;

    #[test]
    fn the_demo_looks_like_a_building_and_lasts_three_minutes() {
        let simulation = demo();
        let world = simulation.world().unwrap();
        let samples: Vec<SimulatedMeasurement> = simulation.drive(&world).unwrap().collect();
        let last = samples.last().unwrap().measurement.stamp().seconds_since(samples[0].measurement.stamp());
        assert!((last - 180.0).abs() < 0.1, "{last}");

        let strengths: Vec<f64> = samples.iter().map(|sample| sample.truth.field.strength()).collect();
        let mean = strengths.iter().sum::<f64>() / strengths.len() as f64;
        let variance = strengths.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / strengths.len() as f64;
        // The drive does not see every corner, so its figures differ from those of the whole floor.
        assert!((40.0..60.0).contains(&mean), "{mean}");
        assert!((6.0..14.0).contains(&variance.sqrt()), "{}", variance.sqrt());
        assert!(strengths.iter().all(|strength| (5.0..200.0).contains(strength)));
        for SimulatedMeasurement { truth, .. } in &samples {
            let position = truth.pose.position;
            assert!((0.0..=6.0).contains(&position.x) && (0.0..=6.0).contains(&position.y), "{position}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_recording_and_another_seed_another() {
        let mut simulation = demo();
        simulation.duration = 5.0;
        simulation.route = Route::Random;
        let record = |simulation: &Simulation| -> Vec<Measurement> {
            let world = simulation.world().unwrap();
            simulation.drive(world).unwrap().map(|sample| sample.measurement).collect()
        };
        let first = record(&simulation);
        assert_eq!(first, record(&simulation));
        simulation.seed += 1;
        assert_ne!(first, record(&simulation));
    }

    #[test]
    fn an_invalid_setting_is_named() {
        let mut simulation = demo();
        simulation.duration = -1.0;
        let world = simulation.world().unwrap();
        let message = simulation.drive(&world).err().unwrap().to_string();
        assert_eq!(message, "simulation setting `duration`: expected a finite number above 0, found -1.0");
    }

    #[test]
    fn angles_wrap_to_half_a_turn_either_way() {
        assert!((wrapped(1.5 * PI) + 0.5 * PI).abs() < 1e-12);
        assert!((wrapped(-7.0 * PI / 2.0) - PI / 2.0).abs() < 1e-12);
        assert_eq!(wrapped(0.3), 0.3);
    }
}
