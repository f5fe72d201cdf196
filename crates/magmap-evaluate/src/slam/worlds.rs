//! Where paths are corrected: drives whose poses are true, and simulated places.

use std::path::Path as FilePath;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use magmap::config::Averaging;
use magmap::mapping::averaging::Averager;
use magmap::sensing::reading::{LocatedReading, MagneticField, Measurement, Observation};
use magmap::slam::FieldPrior;
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath, Magnetometer};
use magmap_tools::simulation::{
    self, Character, Dipole, DipoleOptions, DipoleWorld, Path, RobotOptions, Route, SimulatedDrive,
    SimulatedMeasurement, Steel,
};
use nalgebra::{Isometry3, Point2, Point3, Vector3};
use serde::Serialize;

use super::OdometryErrors;

/// Drives that are joined to one path.
const DRIVES: [u32; 4] = [1, 2, 4, 5];

/// The drive on which maps are tested.
const TEST_DRIVE: u32 = 3;

/// The field of the drives, as it is known there (`reference/slam.py`), in microtesla squared and metres.
const FIELD: FieldPrior = FieldPrior { variance_below: 112.0, variance_above: 0.0, lengthscale: 0.94 };

/// Length of path that is averaged into one observation, in metres.
const SPACING: f64 = 0.1;

/// Sides of a hall, in metres, and the length of the path through it.
const HALL: [f64; 2] = [12.0, 8.0];
const HALL_PATH: f64 = 150.0;

/// Sides of a hall on patrol.
const PATROLLED: [f64; 2] = [20.0, 10.0];

/// Sides of one of two equal rooms, and the distance from one to the other, in metres.
const ROOM: [f64; 2] = [6.0, 6.0];
const APART: f64 = 15.0;

/// A corridor with rooms on both sides, the width of a room, and the length of the path, in metres: into every room, and back.
const CORRIDOR: [f64; 2] = [60.0, 10.0];
const CORRIDOR_ROOM: f64 = 12.0;
const CORRIDOR_PATH: f64 = 400.0;

/// Sides of a large hall, and the distance between its lanes, in metres.
const LARGE_HALL: [f64; 2] = [60.0, 60.0];
const LARGE_HALL_LANES: f64 = 1.0;

/// How late the readings of a late sensor are, in seconds.
const LATE: f64 = 0.2;

/// Height at which a device is carried, in metres.
const BREAST: f64 = 1.3;

/// Distance between the places where maps are tested, in metres.
const TEST_GAP: f64 = 0.5;

/// A place with a path through it, and what is wrong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// Drives 1, 2, 4 and 5 of the Aalto data as one path of 111 m.
    Drives,
    /// A hall of 12 m by 8 m, in lanes.
    Lanes,
    /// The hall of `lanes`, on random ways.
    RandomWays,
    /// A hall of 20 m by 10 m, along the walls once and then to random places: it is long before the path meets itself.
    Patrol,
    /// The hall of `patrol` with steel in its walls alone: the field is strong next to them and flat in the middle.
    SteelWalls,
    /// Random ways in a field that varies by 1 microtesla only.
    Flat,
    /// Random ways, where half-way a machine is switched on.
    Machine,
    /// Random ways with a sensor that is 0.2 s late.
    Late,
    /// Random ways, where wheels slip by 0.3 m at once.
    Slip,
    /// Two rooms that are equal, and a way between them.
    EqualRooms,
    /// A corridor of 60 m with rooms on both sides.
    Corridor,
    /// The hall of 60 m by 60 m of `magmap-evaluate hall`, in lanes.
    Hall,
    /// A hall through which a device is carried at 1.3 m, with sources above and below.
    HandHeld,
}

/// The observations of a drive whose poses are true, and where a map of it is tested.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    pub observations: Vec<Observation>,
    /// Places and strengths.
    pub test: (Vec<[f64; 2]>, Vec<f64>),
    /// The field where it is known; else it is learnt.
    pub field: Option<FieldPrior>,
}

impl World {
    /// The errors of odometry with which it is run.
    pub fn errors(self) -> Vec<OdometryErrors> {
        match self {
            Self::Drives => [0.01, 0.03].map(OdometryErrors::drifting).to_vec(),
            Self::HandHeld => vec![OdometryErrors::hand_held()],
            Self::Slip => vec![OdometryErrors { slip: 0.3, ..OdometryErrors::drifting(0.01) }],
            _ => vec![OdometryErrors::drifting(0.01)],
        }
    }

    /// The name of the place in the table.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether each seed has a place and a path of its own.
    pub fn is_simulated(self) -> bool {
        self != Self::Drives
    }

    /// Drives through it; the seed is that of the place and the path, and `length` that of a path through the large hall, in metres.
    pub(super) fn drive(self, data: &FilePath, length: f64, seed: u64) -> anyhow::Result<Drive> {
        let hall = DipoleOptions::of_size(HALL);
        let wheels = RobotOptions::default();
        let path = |route: Route| Path::through_room(route, HALL, HALL_PATH, seed);
        match self {
            Self::Drives => drives(data),
            Self::Lanes => simulated(&hall, &path(Route::LawnMower { spacing: 0.8 })?, &wheels, seed),
            Self::RandomWays | Self::Slip => simulated(&hall, &path(Route::Random)?, &wheels, seed),
            Self::Patrol | Self::SteelWalls => {
                let hall = DipoleOptions::of_size(PATROLLED);
                let hall = if self == Self::SteelWalls { hall.with_steel(Steel::Beside) } else { hall };
                simulated(&hall, &Path::through_room(Route::Patrol, PATROLLED, HALL_PATH, seed)?, &wheels, seed)
            }
            Self::Flat => {
                simulated(&DipoleOptions { standard_deviation: 1.0, ..hall }, &path(Route::Random)?, &wheels, seed)
            }
            Self::Machine => {
                let (world, path) = (DipoleWorld::random(&hall, seed)?, path(Route::Random)?);
                let mut readings = readings(&world, &path, &wheels, seed)?;
                let middle = Point3::new(0.5 * HALL[0], 0.5 * HALL[1], -1.0);
                let machine = Dipole { position: middle, moment: Vector3::new(30.0, 0.0, 60.0) };
                let machine = DipoleWorld::new(Vector3::zeros(), vec![machine]);
                let half = readings.len() / 2;
                for reading in &mut readings[half..] {
                    let more = simulation::World::field_at(&machine, &reading.position);
                    reading.field = MagneticField::from_microtesla(reading.field.microtesla() + more.microtesla());
                }
                Ok(Drive::simulated(&readings, &world, HALL, 0.0))
            }
            Self::Late => {
                let (world, path) = (DipoleWorld::random(&hall, seed)?, path(Route::Random)?);
                let readings = readings(&world, &path, &wheels, seed)?;
                let lag = (LATE * wheels.magnetometer_rate).round() as usize;
                let late = readings.iter().zip(&readings[lag..]).map(|(measured, stamped)| {
                    let turned = stamped.orientation * measured.orientation.inverse();
                    LocatedReading { field: measured.field.rotated(&turned), ..*stamped }
                });
                Ok(Drive::simulated(&late.collect::<Vec<_>>(), &world, HALL, 0.0))
            }
            Self::EqualRooms => {
                let world = EqualRooms(DipoleWorld::random(&DipoleOptions::of_size(ROOM), seed)?);
                let around = |left: f64| {
                    let round = [[1.0, 1.0], [5.0, 1.0], [5.0, 5.0], [1.0, 5.0], [1.0, 2.0], [4.0, 2.0], [4.0, 4.0]];
                    [round, round].concat().into_iter().map(move |[x, y]| Point2::new(left + x, y))
                };
                let path = Path::through(&around(0.0).chain(around(APART)).collect::<Vec<_>>(), 0.4)?;
                Ok(Drive::simulated(&readings(&world, &path, &wheels, seed)?, &world, ROOM, 0.0))
            }
            Self::Corridor => {
                let route = Route::Rooms { width: CORRIDOR_ROOM };
                let path = Path::through_room(route, CORRIDOR, CORRIDOR_PATH, seed)?;
                simulated(&DipoleOptions::of_size(CORRIDOR), &path, &wheels, seed)
            }
            Self::Hall => {
                let route = Route::LawnMower { spacing: LARGE_HALL_LANES };
                let path = Path::through_room(route, LARGE_HALL, length, seed)?;
                let hall = DipoleOptions { character: Character::Hall, ..DipoleOptions::of_size(LARGE_HALL) };
                simulated(&hall, &path, &wheels, seed)
            }
            Self::HandHeld => {
                let mount = Isometry3::translation(0.0, 0.0, BREAST);
                let walking = RobotOptions { speed: 1.0, mount, ..wheels };
                let hall = DipoleOptions { height: BREAST, ..hall.with_steel(Steel::Mixed) };
                simulated(&hall, &path(Route::Random)?, &walking, seed)
            }
        }
    }
}

/// A world with equal sources in two places.
struct EqualRooms(DipoleWorld);

impl simulation::World for EqualRooms {
    fn field_at(&self, position: &Point3<f64>) -> MagneticField {
        let Self(room) = self;
        let nearer = if position.x < 0.5 * (ROOM[0] + APART) { 0.0 } else { APART };
        room.field_at(&(position - Vector3::x() * nearer))
    }
}

impl Drive {
    /// Of these readings in a simulated place of this size, whose map is tested on a lattice at this height.
    fn simulated(readings: &[LocatedReading], world: &impl simulation::World, size: [f64; 2], height: f64) -> Self {
        let steps = size.map(|side| (side / TEST_GAP) as usize);
        let place = |index: usize| [index % steps[0], index / steps[0]].map(|step| TEST_GAP * (step as f64 + 0.5));
        let places: Vec<[f64; 2]> = (0..steps[0] * steps[1]).map(place).collect();
        let strengths = places.iter().map(|&[x, y]| world.strength_at(&Point3::new(x, y, height))).collect();
        Self { observations: averaged(readings.iter().copied()), test: (places, strengths), field: None }
    }
}

/// Observations: readings averaged along the path.
fn averaged(readings: impl Iterator<Item = LocatedReading>) -> Vec<Observation> {
    let mut averager = Averager::new(&Averaging { spacing: SPACING });
    let mut observations: Vec<Observation> = readings.filter_map(|reading| averager.push(&reading)).collect();
    observations.extend(averager.close());
    observations
}

fn drives(data: &FilePath) -> anyhow::Result<Drive> {
    let read = |number: u32| {
        let drive = AaltoDrive::read(&DrivePath::new(data, Magnetometer::Invensense, number));
        drive.with_context(|| format!("drive {number}"))
    };
    let mut observations = Vec::new();
    for number in DRIVES {
        let drive = read(number)?;
        let reading = |row: usize| LocatedReading {
            stamp: drive.stamp(row),
            position: Point3::new(drive.positions[row][0], drive.positions[row][1], 0.0),
            orientation: drive.orientation(row),
            field: MagneticField::from_microtesla(drive.fields[row]),
        };
        observations.extend(averaged((0..drive.seconds.len()).map(reading)));
    }
    ensure!(!observations.is_empty(), "the drives are empty");
    let test = read(TEST_DRIVE)?;
    let test = (test.positions.clone(), test.fields.iter().map(|field| field.norm()).collect());
    Ok(Drive { observations, test, field: Some(FIELD) })
}

/// A drive along this path through a random room.
fn simulated(room: &DipoleOptions, path: &Path, robot: &RobotOptions, seed: u64) -> anyhow::Result<Drive> {
    let world = DipoleWorld::random(room, seed)?;
    Ok(Drive::simulated(&readings(&world, path, robot, seed)?, &world, room.size, room.height))
}

/// The readings at their true poses.
fn readings(
    world: &impl simulation::World,
    path: &Path,
    robot: &RobotOptions,
    seed: u64,
) -> anyhow::Result<Vec<LocatedReading>> {
    let located = |SimulatedMeasurement { measurement, truth }| {
        let Measurement::Reading(reading) = measurement else { return None };
        let orientation = truth.pose.orientation * robot.mount.rotation;
        let field = reading.field.rotated(&orientation);
        Some(LocatedReading { stamp: reading.stamp, position: truth.sensor, orientation, field })
    };
    Ok(SimulatedDrive::new(world, path.clone(), robot.clone(), seed)?.filter_map(located).collect())
}
