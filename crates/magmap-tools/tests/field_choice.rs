//! The quantity that is mapped where the settings leave that to magmap: three axes, unless the robot's own readings speak against them.

use magmap::config::{Config, Mapped};
use magmap::field::state::ModelState;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{Finished, MappingThread, Mode};
use magmap::sensing::intake::Input;
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap::sensing::rejection::Rejection;
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, Simulation, World};
use nalgebra::{Isometry3, Matrix3, Point3, UnitQuaternion, Vector3};

fn simulation(metres: f64, route: Route) -> Simulation {
    let (world, robot) = (DipoleOptions::default(), RobotOptions::default());
    Simulation { seed: 3, world, route, duration: metres / robot.speed, robot }
}

/// A drive of this many metres, its sensor turned like this.
fn drive(metres: f64, route: Route, turn: Matrix3<f64>) -> Vec<Measurement> {
    let simulation = simulation(metres, route);
    let turned = |measurement| match measurement {
        Measurement::Reading(reading) => {
            let field = MagneticField::from_microtesla(turn * reading.field.microtesla());
            Measurement::Reading(Reading { field, ..reading })
        }
        pose => pose,
    };
    let world = simulation.world().unwrap();
    simulation.drive(&world).unwrap().map(|sample| turned(sample.measurement)).collect()
}

/// A drive after a straight line of this many metres in the same place, which leads to its start.
fn after_a_straight_line(metres: f64, drive: &[Measurement]) -> Vec<Measurement> {
    let world = simulation(1.0, Route::Random).world().unwrap();
    let start = drive.iter().find_map(|measurement| match measurement {
        Measurement::Pose(pose) => Some(*pose),
        Measurement::Reading(_) => None,
    });
    let Pose { position, orientation, stamp } = start.unwrap();
    let (speed, rate) = (0.5, 50.0);
    let steps = (rate * metres / speed) as i32;
    let line = (-steps..0).flat_map(|step| {
        let seconds = f64::from(step) / rate;
        let stamp = Stamp::from_seconds(stamp.seconds() + seconds);
        let place: Point3<f64> = position + orientation * Vector3::x() * speed * seconds;
        let noise = 0.1 * Vector3::new(f64::from(step * step % 7) - 3.0, f64::from(step * step % 11) - 5.0, 0.0);
        let field = MagneticField::from_microtesla(world.field_at(&place).microtesla() + noise);
        let field = field.rotated(&orientation.inverse());
        let pose = Pose { stamp, position: place, orientation };
        [Measurement::Pose(pose), Measurement::Reading(Reading { stamp, field })]
    });
    line.chain(drive.iter().copied()).collect()
}

fn inputs(measurements: &[Measurement]) -> Vec<Input> {
    measurements.iter().map(|measurement| Input::from(*measurement)).collect()
}

fn mapped(inputs: &[Input], field: Mapped) -> Finished {
    let mut config = Config::default();
    config.model.field = field;
    let mapping = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
    inputs.iter().for_each(|input| mapping.inbox.send(*input).unwrap());
    mapping.flush().unwrap();
    let live = mapping.choice();
    let finished = mapping.join().unwrap();
    assert_eq!(finished.mapper.progress().choice, live);
    finished
}

/// Maps a drive, and compares the map with that of the quantity that was to be chosen; what is said of it.
#[track_caller]
fn assert_chosen(measurements: &[Measurement], expected: Mapped) -> Option<String> {
    assert_chosen_of(&inputs(measurements), expected)
}

#[track_caller]
fn assert_chosen_of(inputs: &[Input], expected: Mapped) -> Option<String> {
    let state = |finished: &Finished| -> ModelState { finished.mapper.model().state() };
    let chosen = mapped(inputs, Mapped::Auto);
    let words = chosen.mapper.progress().choice.clone();
    assert_eq!(chosen.mapper.model().field(), expected, "{words:?}");
    // As if nothing else had ever been mapped, to the last bit.
    assert!(state(&chosen) == state(&mapped(inputs, expected)), "{words:?}");
    words
}

const QUARTER: Matrix3<f64> = Matrix3::new(0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0);

#[test]
fn three_axes_are_mapped_where_the_mount_is_right_and_where_it_looks_right() {
    let z_reversed = Matrix3::from_diagonal(&Vector3::new(1.0, 1.0, -1.0));
    for turn in [Matrix3::identity(), QUARTER * QUARTER, z_reversed] {
        let words = assert_chosen(&drive(45.0, Route::Random, turn), Mapped::Vector).unwrap();
        assert!(words.starts_with("the three axes are mapped: over 4"), "{words}");
        assert!(words.contains("agree with the physics"), "{words}");
    }
}

#[test]
fn the_strength_is_mapped_where_the_mount_is_missing_or_wrong_with_a_line_on_how_to_get_the_axes() {
    let on_its_side = Matrix3::new(1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0);
    for turn in [QUARTER, on_its_side] {
        let words = assert_chosen(&drive(25.0, Route::Random, turn), Mapped::Strength).unwrap();
        assert!(
            words.starts_with("the strength is mapped: the axes of the readings contradict the physics"),
            "{words}"
        );
        assert!(words.contains("sensor.orientation") && words.contains("Once the cause is mended"), "{words}");
    }
}

#[test]
fn the_strength_is_mapped_where_the_heading_is_nonsense() {
    let heading_fixed = |measurement| match measurement {
        Measurement::Pose(pose) => Measurement::Pose(Pose { orientation: UnitQuaternion::identity(), ..pose }),
        reading => reading,
    };
    let measurements: Vec<_> = drive(25.0, Route::Random, Matrix3::identity()).into_iter().map(heading_fixed).collect();
    let words = assert_chosen(&measurements, Mapped::Strength).unwrap();
    assert!(words.contains("the orientation in the odometry does not change"), "{words}");
}

#[test]
fn nothing_is_chosen_before_20_m() {
    assert_eq!(assert_chosen(&drive(18.0, Route::Random, Matrix3::identity()), Mapped::Strength), None);
}

#[test]
fn a_path_that_has_not_turned_leaves_the_strength_and_says_so_until_a_curve_decides() {
    let start = drive(0.5, Route::Random, Matrix3::identity());
    let words = assert_chosen(&after_a_straight_line(45.0, &start), Mapped::Strength).unwrap();
    assert!(words.starts_with("the strength is mapped") && words.contains("a path that has not turned"), "{words}");
    assert!(words.contains("model.field = \"vector\""), "{words}");
    // The choices at 20 and 40 m were not made there, and are made at the first curves.
    let curves = drive(19.0, Route::Random, Matrix3::identity());
    let words = assert_chosen(&after_a_straight_line(45.0, &curves), Mapped::Vector).unwrap();
    assert!(words.starts_with("the three axes are mapped: over "), "{words}");
}

#[test]
fn without_a_mount_the_strength_is_mapped_and_a_mount_that_comes_later_helps_only_a_new_map() {
    let drive = inputs(&drive(45.0, Route::Random, Matrix3::identity()));
    let without = [&[Input::UnknownMount], &drive[..]].concat();
    let words = assert_chosen_of(&without, Mapped::Strength).unwrap();
    assert!(words.contains("the mount of the sensor is unknown") && words.contains("/tf_static"), "{words}");
    let late = [&without[..500], &[Input::Mount(Isometry3::identity())], &without[500..]].concat();
    assert_eq!(assert_chosen_of(&late, Mapped::Strength).unwrap(), words);
    assert!(mapped(&late, Mapped::Auto).mapper.progress().is_without_mount);
}

#[test]
fn a_map_of_the_axes_takes_no_readings_without_a_mount() {
    let drive = inputs(&drive(45.0, Route::Random, Matrix3::identity()));
    let lost = [&drive[..drive.len() - 1000], &[Input::UnknownMount], &drive[drive.len() - 1000..]].concat();
    assert_chosen_of(&lost, Mapped::Vector);
    let rejections = mapped(&lost, Mapped::Auto).mapper.pipeline().counters().rejections;
    let readings =
        drive[drive.len() - 1000..].iter().filter(|input| matches!(input, Input::Measurement(Measurement::Reading(_))));
    assert_eq!(rejections.of(Rejection::ReadingWithoutTransform), readings.count() as u64);
}

#[test]
fn a_map_that_was_begun_as_what_the_settings_said_remains_that() {
    let drive = drive(45.0, Route::Random, Matrix3::identity());
    let (begun, rest) = drive.split_at(1000);
    for field in [Mapped::Strength, Mapped::Vector] {
        let mut config = Config::default();
        config.model.field = field;
        let mapping = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
        begun.iter().for_each(|measurement| mapping.inbox.send(*measurement).unwrap());
        mapping.flush().unwrap();
        mapping.configure(Config::default()).unwrap().unwrap();
        rest.iter().for_each(|measurement| mapping.inbox.send(*measurement).unwrap());
        mapping.flush().unwrap();
        assert_eq!((mapping.choice(), mapping.join().unwrap().mapper.model().field()), (None, field));
    }
}

#[test]
fn a_robot_whose_sensor_becomes_loose_gets_the_strength_again() {
    // From 30 m on the sensor is turned by a quarter.
    let (sound, loose) = (drive(85.0, Route::Random, Matrix3::identity()), drive(85.0, Route::Random, QUARTER));
    let until = |seconds: f64, first: &[Measurement], then: &[Measurement]| -> Vec<Measurement> {
        let pick = |(first, then): (&Measurement, &Measurement)| {
            if first.stamp().seconds() < seconds { *first } else { *then }
        };
        first.iter().zip(then).map(pick).collect()
    };
    let measurements = until(60.0, &sound, &loose);
    assert_chosen(&measurements, Mapped::Strength);
    // One that is fastened after 25 m has readings in its map whose axes are wrong.
    let words = assert_chosen(&until(50.0, &loose, &sound), Mapped::Strength).unwrap();
    assert!(words.contains("contradict the physics"), "{words}");
    let half = measurements.iter().copied().take_while(|measurement| measurement.stamp().seconds() < 60.0);
    assert_chosen(&half.collect::<Vec<_>>(), Mapped::Vector);
}
