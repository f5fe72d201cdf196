//! A building that changes: a later run withdraws what no longer holds, and only that.

use super::common;
use super::common::rooms::{LANES, errors, observations, send, settings};

use std::path::Path;
use std::time::Duration;

use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::localization::{Localizer, Start, State};
use magmap::sensing::reading::{MagneticField, Measurement, Observation, Reading};
use magmap::session::Session;
use magmap::store::map_file;
use magmap::trajectory::{Correction, Trajectory, Withdrawal, fold};
use magmap_tools::recording;
use magmap_tools::simulation::{Dipole, DipoleOptions, DipoleWorld, Route, Simulation, World, demo};
use nalgebra::{Isometry3, Point2, Point3, UnitQuaternion, Vector3};
use tempfile::{TempDir, tempdir};

const SIZE: [f64; 2] = [4.0, 4.0];
const SECONDS: f64 = 80.0;

/// A room with or without a steel shelf.
#[derive(Clone)]
struct Room {
    world: DipoleWorld,
    shelf: Option<DipoleWorld>,
}

impl World for Room {
    fn field_at(&self, position: &Point3<f64>) -> MagneticField {
        let shelf = self.shelf.as_ref().map_or(Vector3::zeros(), |shelf| *shelf.field_at(position).microtesla());
        MagneticField::from_microtesla(self.world.field_at(position).microtesla() + shelf)
    }
}

/// A shelf of a metre along a wall, from floor to ceiling: some 15 microtesla half a metre in front of it.
fn shelf([x, y]: [f64; 2]) -> DipoleWorld {
    let posts = [-0.4, 0.4].into_iter().flat_map(|along| [0.0, 0.5, 1.0].map(|height| (along, height)));
    let dipole = |(along, height): (f64, f64)| Dipole {
        position: Point3::new(x + along, y, height),
        moment: Vector3::new(0.0, 4.0, -12.0),
    };
    DipoleWorld::new(Vector3::zeros(), posts.map(dipole).collect())
}

/// A drive through the room of this number, with its shelf or without; `seed` is that of route and noise.
fn drive(world: u64, seed: u64, route: Route, shelf: Option<&DipoleWorld>) -> Vec<Measurement> {
    let room = Simulation {
        seed: world,
        world: DipoleOptions { size: SIZE, ..Default::default() },
        duration: SECONDS,
        ..demo()
    };
    let mut drive = Simulation { seed, route, ..room.clone() };
    drive.robot.start = drive.robot.start.shifted(1000.0 * seed as f64);
    let room = Room { world: room.world().unwrap(), shelf: shelf.cloned() };
    drive.drive(room).unwrap().map(|sample| sample.measurement).collect()
}

fn node(folder: &TempDir, field: Mapped) -> Config {
    let mut config = settings(field);
    // Motion capture and the simulation have one frame for all runs.
    config.frames.odometry_is_fixed = true;
    config.node.map_folder = folder.path().display().to_string();
    config
}

fn start(config: &Config) -> Session {
    let session = Session::start(config, "", "/magmap").unwrap();
    session.mapping.inbox.name_frame("odom").unwrap();
    session
}

/// Sends a drive, and returns when everything is in the map, and the map is made again where that is due: a robot drives more slowly.
fn drive_through(session: &Session, measurements: &[Measurement]) {
    send(session, measurements.iter().copied());
    session.flush().unwrap();
    while session.mapping.withdrawals().iter().any(|withdrawal| !withdrawal.is_applied) {
        std::thread::sleep(Duration::from_millis(20));
        session.mapping.inspect(|_| ()).unwrap();
    }
}

/// A run; all that has been withdrawn from the map by then.
fn run(config: &Config, measurements: &[Measurement]) -> Vec<Withdrawal> {
    let session = start(config);
    drive_through(&session, measurements);
    let withdrawals = session.mapping.withdrawals();
    session.end().unwrap();
    withdrawals
}

/// The map, which is to the last bit what is learnt from its trajectory without what was withdrawn.
fn map(folder: &TempDir) -> FieldMap {
    let (checkpoint, batches) = map_file::read_whole(&folder.path().join("map.magmap")).unwrap();
    let config = checkpoint.settings().unwrap();
    let map = checkpoint.field_map(&config).unwrap().unwrap();
    let mut trajectory = Trajectory::new(batches, Correction::default());
    trajectory.withdrawals.clone_from(&checkpoint.stream.withdrawals);
    let folded = fold(&config, trajectory.corrected_batches(), &|| false).map().unwrap();
    let places = [[1.0, 0.5], [2.0, 0.3], [3.0, 3.0]];
    assert_eq!(map.predict(&places, f64::INFINITY), folded.predict(&places, f64::INFINITY));
    map
}

/// In this room a shelf comes and goes. Nothing is found before; it is found within one pass, where it stands, and the map heals in the
/// same pass.
fn comes_and_goes(world: u64) {
    let folder = tempdir().unwrap();
    let config = node(&folder, Mapped::Vector);
    let x = 1.0 + 0.5 * (world % 5) as f64;
    let shelf = shelf([x, 0.1]);
    let is_near = |change: &Withdrawal| (Point2::from(change.middle()) - Point2::new(x, 0.3)).norm() < 0.5;
    assert_eq!(run(&config, &drive(world, 0, LANES, None)), []);
    assert_eq!(run(&config, &drive(world, 1, Route::Random, None)), [], "room {world}: the same room");
    for (day, there) in [(2, Some(&shelf)), (3, None)] {
        let changed = |seen: &Observation| shelf.field_at(&seen.position).microtesla().norm() > 5.0;
        let now = observations(&drive(world, 100, LANES, there)).into_iter().filter(changed).collect::<Vec<_>>();
        let before = errors(&map(&folder), &now)[0];
        let found = run(&config, &drive(world, day, LANES, there));
        assert!(found.len() as u64 >= day - 1 && found.iter().all(is_near), "room {world}, day {day}: {found:?}");
        let after = errors(&map(&folder), &now)[0];
        assert!(after < before / 3.0, "room {world}, day {day}: error {before:.1} to {after:.1} microtesla");
    }
}

#[test]
fn a_shelf_that_comes_and_goes_is_found_in_one_pass_and_the_map_heals() {
    (0..2).for_each(comes_and_goes);
}

#[test]
#[ignore = "ten times as many rooms; run with --ignored"]
fn shelves_that_come_and_go_in_20_rooms() {
    (0..20).for_each(comes_and_goes);
}

/// A turned sensor, or a magnet on it, contradicts the whole map: nothing is withdrawn, and the map is in doubt.
#[test]
fn a_fault_of_the_robot_is_no_change_of_the_building() {
    let turn = UnitQuaternion::from_euler_angles(0.0, 0.0, 0.5);
    let magnet = Vector3::new(15.0, -10.0, 20.0);
    for (turn, magnet) in [(turn, Vector3::zeros()), (UnitQuaternion::identity(), magnet)] {
        let folder = tempdir().unwrap();
        let config = node(&folder, Mapped::Vector);
        run(&config, &drive(1, 0, LANES, None));
        let with_fault = |measurement: Measurement| match measurement {
            Measurement::Reading(reading) => {
                let field = MagneticField::from_microtesla(turn * reading.field.microtesla() + magnet);
                Measurement::Reading(Reading { field, ..reading })
            }
            other => other,
        };
        let measurements: Vec<_> = drive(1, 1, LANES, None).into_iter().map(with_fault).collect();
        let session = start(&config);
        drive_through(&session, &measurements);
        assert_eq!(session.mapping.withdrawals(), []);
        assert!(session.mapping.doubt().is_some());
        session.end().unwrap();
    }
}

/// A motor that runs for three metres is no change of the building.
#[test]
fn a_motor_that_runs_for_a_while_is_no_change_of_the_building() {
    let folder = tempdir().unwrap();
    let config = node(&folder, Mapped::Vector);
    run(&config, &drive(1, 0, LANES, None));
    let mut measurements = drive(1, 1, LANES, None);
    let begin = measurements[0].stamp();
    for measurement in &mut measurements {
        if let Measurement::Reading(reading) = measurement
            && (30.0..36.0).contains(&reading.stamp.seconds_since(begin))
        {
            let field = reading.field.microtesla() + Vector3::new(12.0, 5.0, -6.0);
            reading.field = MagneticField::from_microtesla(field);
        }
    }
    assert_eq!(run(&config, &measurements), []);
}

/// A localizer that tracks the robot in the map of before a change of more than a tenth of its path.
#[test]
fn a_robot_is_not_lost_where_the_building_has_changed() {
    let folder = tempdir().unwrap();
    let config = node(&folder, Mapped::Vector);
    run(&config, &drive(2, 0, LANES, None));
    let shelf = shelf([2.0, 4.0]);
    let measurements = drive(2, 1, LANES, Some(&shelf));
    let changed = observations(&measurements);
    let share = changed.iter().filter(|seen| shelf.field_at(&seen.position).microtesla().norm() > 3.0).count() as f64
        / changed.len() as f64;
    assert!(share > 0.1, "{share}");
    let first = changed[0].position;
    let start = Start::given([first.x, first.y], changed[0].in_plane().rotation.angle());
    let mut localizer = Localizer::new(&config, &map(&folder), Isometry3::identity(), start).unwrap();
    let (mut tracked, mut worst) = (0, 0.0_f64);
    for seen in &changed {
        let Some(located) = localizer.update(seen) else { continue };
        if located.state == State::Tracking {
            tracked += 1;
        } else {
            assert_eq!(tracked, 0, "thrown out of tracking at {:?}", seen.position);
        }
        worst = worst.max((located.pose.translation.vector - seen.position.coords.xy()).norm());
    }
    assert!(tracked > 0 && worst < 0.5, "{tracked} tracked, up to {worst:.2} m off");
}

fn aalto(data: &Path, number: u32) -> Vec<Measurement> {
    let drive = data.join("invensense").join(number.to_string());
    common::measurements(recording::open(&drive, &Config::default()).unwrap())
}

#[test]
fn on_real_drives_changes_are_found_where_things_were_moved_and_nowhere_else() {
    let Some(data) = common::aalto_folder() else { return };
    for field in [Mapped::Vector, Mapped::Strength] {
        let folder = tempdir().unwrap();
        let config = node(&folder, field);
        for number in [1, 2, 3, 4, 5, 7] {
            assert_eq!(run(&config, &aalto(&data, number)), [], "{field:?}, drive {number}");
        }
        // Drive 6 differs everywhere, by 3.5 microtesla: too little for the axes, and on the verge for the strength.
        let others = if field == Mapped::Vector { vec![6, 8, 9] } else { vec![8, 9] };
        for number in others {
            let copy = tempdir().unwrap();
            std::fs::copy(folder.path().join("map.magmap"), copy.path().join("map.magmap")).unwrap();
            let found = run(&node(&copy, field), &aalto(&data, number));
            assert_eq!(found.is_empty(), number == 6, "{field:?}, drive {number}");
        }
    }
}
