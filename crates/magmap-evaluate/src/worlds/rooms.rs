//! Rooms with dipoles below, above and beside the sensor, and a robot with a hard iron: maps of the strength or of the three axes.
//!
//! The test drive is that of the same sensor, and its poses are true. Some robots have a fault on the mapping drive.

use super::{LANES, MAPPING_LENGTH, Mapped, NOISES, ROOM, STANDARD_DEVIATIONS, TEST_LENGTH, WorldScores};
use super::{batches, changed, scores};
use crate::TEST_SEEDS;
use crate::metrics::Predictions;
use crate::outliers::Outliers;
use anyhow::Context;
use magmap::config::Config;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::sensing::reading::MagneticField;
use magmap_tools::simulation::{DipoleOptions, DipoleWorld, Drift, Path, RobotOptions, Route, SimulatedDrive, Steel};
use nalgebra::{Isometry3, Vector3};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde::Serialize;
use std::f64::consts::FRAC_PI_2;
use std::ops::Range;
use std::time::Instant;
use streaming_gp::vector::SensorPose;

/// Least and greatest distance of a dipole from the floor or the wall, in metres.
pub const DISTANCES: [[f64; 2]; 3] = [[0.25, 0.8], [0.4, 1.5], [1.0, 2.5]];

/// Least and greatest distance of a dipole in rooms with steel above the sensor and beside it, in metres: lengths of the field are twice
/// the least, 0.4 to 4 m.
pub const DISTANCES_ANYWHERE: [[f64; 2]; 4] = [[0.2, 0.6], [0.4, 1.5], [1.0, 2.5], [2.0, 3.5]];

/// Side of a room with the nearest of these dipoles, and the distance between the lanes in it, in metres: no map resolves a field that
/// varies over less than the distance between the lanes.
const CLOSE: [f64; 2] = [4.0, 0.3];

/// The places of steel other than below.
const ANYWHERE: [Steel; 3] = [Steel::Above, Steel::Beside, Steel::Mixed];

/// Standard deviation of each component of the hard iron, in microtesla.
const HARD_IRON: f64 = 5.0;

/// A fault of a robot on its mapping drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// No fault.
    None,
    /// Odometry drifts by a percent and, over the drive, by four degrees.
    Drift,
    /// The heading drifts by ten degrees over the drive.
    Heading,
    /// The sensor is turned by a quarter, and nothing says so.
    Turned,
    /// Two axes of the sensor are exchanged, one of them with the opposite sign: it lies on its side, and nothing says so.
    Side,
}

impl Fault {
    fn of(self, robot: RobotOptions, length: f64) -> RobotOptions {
        let turned = |axis: Vector3<f64>| Isometry3::rotation(axis * FRAC_PI_2);
        let over_the_drive = |degrees: f64| degrees.to_radians() / length;
        let drift = |drift| RobotOptions { drift: Some(drift), ..robot.clone() };
        match self {
            Self::None => robot,
            Self::Drift => drift(Drift { scale: 0.01, turn: over_the_drive(4.0), ..Drift::default() }),
            Self::Heading => drift(Drift { turn: over_the_drive(10.0), ..Drift::default() }),
            Self::Turned => RobotOptions { mount: turned(Vector3::z()), ..robot },
            Self::Side => RobotOptions { mount: turned(Vector3::x()), ..robot },
        }
    }
}

/// A kind of room.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Side of the room, in metres.
    pub side: f64,
    /// Length of the mapping drive, in metres.
    pub length: f64,
    /// Distance between its lanes, in metres.
    pub lanes: f64,
    /// Standard deviation of the field strength, in microtesla.
    pub standard_deviation: f64,
    /// Where the steel is.
    pub steel: Steel,
    /// Least and greatest distance of a dipole from the plane of the sensor or the wall, in metres.
    pub distance: [f64; 2],
    /// Noise of the sensor on each axis, in microtesla.
    pub noise: f64,
    /// The fault of the robot.
    pub fault: Fault,
}

/// All kinds of rooms: those without a fault first.
pub fn settings() -> Vec<Setting> {
    let [_, usual, _] = DISTANCES;
    let room = |standard_deviation, distance, noise, fault| {
        let (side, length, lanes, steel) = (ROOM, MAPPING_LENGTH, LANES, Steel::Below);
        Setting { side, length, lanes, standard_deviation, steel, distance, noise, fault }
    };
    let anywhere = |steel: Steel| {
        let of_distance = move |distance: [f64; 2]| {
            let [side, lanes] = if distance[0] < LANES / 2.0 { CLOSE } else { [ROOM, LANES] };
            STANDARD_DEVIATIONS.map(|sd| {
                let room = room(sd, distance, NOISES[0], Fault::None);
                Setting { side, lanes, steel, ..room }
            })
        };
        DISTANCES_ANYWHERE.into_iter().flat_map(of_distance)
    };
    let sound = |sd, distance| NOISES.map(|noise| room(sd, distance, noise, Fault::None));
    let faults = [Fault::Drift, Fault::Heading, Fault::Turned, Fault::Side];
    let all = STANDARD_DEVIATIONS.iter().flat_map(|sd| DISTANCES.iter().flat_map(|distance| sound(*sd, *distance)));
    let all = all.chain(ANYWHERE.into_iter().flat_map(anywhere));
    all.chain(faults.map(|fault| room(10.0, usual, NOISES[0], fault))).collect()
}

/// The scores of a kind of room.
#[derive(Clone, Debug, Serialize)]
pub struct RoomScores {
    /// How good the maps are.
    #[serde(flatten)]
    pub scores: WorldScores<Setting>,
    /// Number of maps that are in doubt.
    pub in_doubt: usize,
    /// Root mean squared error of the horizontal components of the hard iron, in microtesla; none of a map of strengths.
    pub hard_iron_rmse: Option<f64>,
    /// The greatest error of one of them in its standard deviations.
    pub hard_iron_worst: Option<f64>,
}

/// Maps rooms of one kind, one for each seed, and tests the maps.
///
/// # Errors
/// When a room cannot be made, or no batch is learnt.
pub fn run(setting: &Setting, seeds: Range<u64>, config: &Config, outliers: Outliers) -> anyhow::Result<RoomScores> {
    let rooms = seeds.map(|seed| map_one(setting, seed, config, outliers)).collect::<anyhow::Result<Vec<Room>>>()?;
    let errors: Vec<[f64; 2]> = rooms.iter().flat_map(|room| room.hard_iron.into_iter().flatten()).collect();
    let mean_square = errors.iter().map(|[error, _]| error * error).sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().map(|[error, deviation]| error.abs() / deviation).reduce(f64::max);
    let in_doubt = rooms.iter().filter(|room| room.is_in_doubt).count();
    let mapped: Vec<Mapped> = rooms.into_iter().map(|room| room.mapped).collect();
    Ok(RoomScores {
        scores: scores(*setting, &mapped),
        in_doubt,
        hard_iron_rmse: worst.map(|_| mean_square.sqrt()),
        hard_iron_worst: worst,
    })
}

/// A room, mapped and tested.
struct Room {
    mapped: Mapped,
    is_in_doubt: bool,
    /// Error and standard deviation of the hard iron along x and y.
    hard_iron: Option<[[f64; 2]; 2]>,
}

fn map_one(setting: &Setting, seed: u64, config: &Config, outliers: Outliers) -> anyhow::Result<Room> {
    let Setting { side, length, lanes, standard_deviation, steel, distance, noise, fault } = *setting;
    let size = [side; 2];
    let options = match steel {
        // The same number of dipoles in every size.
        Steel::Below => DipoleOptions::default(),
        // Distances are those from the sensor, and walls begin half a metre below it.
        _ => DipoleOptions { ceiling: 0.0, beside_heights: [-0.5, 0.5], ..DipoleOptions::of_size(size) },
    };
    let options = DipoleOptions { size, standard_deviation, distance, ..options }.with_steel(steel);
    let world = DipoleWorld::random(&options, seed)?;
    let (mut random, normal) = (ChaCha8Rng::seed_from_u64(seed), Normal::new(0.0, HARD_IRON)?);
    let hard_iron = Vector3::from_fn(|_, _| normal.sample(&mut random));
    let with_iron = |field: MagneticField| MagneticField::from_microtesla(field.microtesla() + hard_iron);
    let drive = |route, length, robot, seed| {
        let path = Path::through_room(route, size, length, seed)?;
        SimulatedDrive::new(&world, path, robot, seed)
    };
    let robot = RobotOptions { noise, ..RobotOptions::default() };
    let lanes = Route::LawnMower { spacing: lanes };

    let mut corrupt = outliers.corruption(seed);
    let mapping = MappingThread::start(Mode::WaitForLearning, Mapper::new(config), None, None)?;
    let start = Instant::now();
    for sample in drive(lanes, length, fault.of(robot.clone(), length), seed)? {
        mapping.inbox.send(changed(sample.measurement, |field| corrupt(with_iron(field))))?;
    }
    let finished = mapping.join()?;
    let seconds = start.elapsed().as_secs_f64();
    let map = finished.mapper.model().map().context("no batch was learnt")?;

    let test_drive = drive(Route::Random, TEST_LENGTH, robot, seed + TEST_SEEDS)?;
    let tested = batches(test_drive.map(|sample| changed(sample.measurement, with_iron)), config);
    let seen = || tested.iter().flat_map(|batch| &batch.observations);
    let poses: Vec<SensorPose> = seen().map(SensorPose::from).collect();
    let mapped = Mapped {
        inducing_points: map.size(),
        hyperparameters: map.hyperparameters(),
        predictions: Predictions::of_map(&map, &poses),
        targets: seen().map(|seen| seen.strength).collect(),
        seconds,
    };
    let hard_iron = map
        .sensor_bias()
        .map(|bias| [0, 1].map(|axis| [bias.hard_iron[axis] - hard_iron[axis], bias.hard_iron_sd[axis]]));
    Ok(Room { mapped, is_in_doubt: finished.doubt.is_some(), hard_iron })
}

#[cfg(test)]
mod tests {
    use super::*;
    use magmap::config;

    #[test]
    fn three_axes_find_the_hard_iron_and_doubt_a_mount_that_is_turned() {
        let mut config = Config::default();
        config.model.field = config::Mapped::Vector;
        let found = |fault| {
            let small = Setting {
                side: 3.0,
                length: 25.0,
                lanes: LANES,
                standard_deviation: 10.0,
                steel: Steel::Below,
                distance: DISTANCES[1],
                noise: 0.3,
                fault,
            };
            run(&small, 1..3, &config, Outliers::default()).unwrap()
        };
        let sound = found(Fault::None);
        let scores = &sound.scores;
        assert!(scores.scores.coverage >= 0.92 && scores.caution < 2.0, "{sound:?}");
        // Of a prior of 5.
        assert!(sound.hard_iron_rmse.unwrap() < 1.0 && sound.hard_iron_worst.unwrap() < 3.0, "{sound:?}");
        assert_eq!((sound.in_doubt, found(Fault::Turned).in_doubt), (0, 2));
    }
}
