//! What is mapped where the settings leave that to magmap: three axes, unless the robot's own readings speak against them.

use magmap::config::{Config, Mapped};
use magmap::field::state::ModelState;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{Finished, MappingThread, Mode};
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading};
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, Simulation};
use nalgebra::{Matrix3, UnitQuaternion, Vector3};

/// A drive of this many metres, its sensor turned like this.
fn drive(metres: f64, route: Route, turn: Matrix3<f64>) -> Vec<Measurement> {
    let (world, robot) = (DipoleOptions::default(), RobotOptions::default());
    let simulation = Simulation { seed: 3, world, route, duration: metres / robot.speed, robot };
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

fn mapped(measurements: &[Measurement], field: Mapped) -> Finished {
    let mut config = Config::default();
    config.model.field = field;
    let worker = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
    measurements.iter().for_each(|measurement| worker.inbox.send(*measurement).unwrap());
    worker.flush().unwrap();
    let live = worker.choice();
    let finished = worker.join().unwrap();
    assert_eq!(finished.mapper.progress().choice, live);
    finished
}

/// Maps a drive, and compares the map with that of the quantity that was to be chosen; what is said of it.
#[track_caller]
fn assert_chosen(measurements: &[Measurement], expected: Mapped) -> Option<String> {
    let state = |finished: &Finished| -> ModelState { finished.mapper.model().state() };
    let chosen = mapped(measurements, Mapped::Auto);
    let words = chosen.mapper.progress().choice.clone();
    assert_eq!(chosen.mapper.model().field(), expected, "{words:?}");
    // As if nothing else had ever been mapped, to the last bit.
    assert!(state(&chosen) == state(&mapped(measurements, expected)), "{words:?}");
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
        assert!(words.contains("sensor.orientation") && words.contains("Once that is mended"), "{words}");
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
fn a_robot_whose_sensor_becomes_loose_gets_the_strength_again() {
    // From 30 m on the sensor is turned by a quarter.
    let (sound, loose) = (drive(85.0, Route::Random, Matrix3::identity()), drive(85.0, Route::Random, QUARTER));
    let measurements: Vec<_> = sound
        .iter()
        .zip(&loose)
        .map(|(sound, loose)| if sound.stamp().seconds() < 60.0 { *sound } else { *loose })
        .collect();
    assert_chosen(&measurements, Mapped::Strength);
    let half = measurements.iter().copied().take_while(|measurement| measurement.stamp().seconds() < 60.0);
    assert_chosen(&half.collect::<Vec<_>>(), Mapped::Vector);
}
