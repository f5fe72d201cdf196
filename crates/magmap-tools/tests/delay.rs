//! Maps of the three axes whose readings are stamped later than the poses.

use std::convert::Infallible;
use std::path::Path;

use magmap::config::{Config, Mapped};
use magmap::mapping::delay;
use magmap::mapping::mapper::{Mapper, Step};
use magmap::mapping::pipeline::Pipeline;
use magmap::mapping::stop::StopSignal;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::sensing::reading::{Measurement, Observation, Reading};
use magmap::trajectory::{self, Delay};
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::replay::{Options, Replay, ReplayOutputs, TruthComparison};
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, SimulatedMeasurement, Simulation, Steel};
use nalgebra::Isometry3;
use tempfile::tempdir;

use super::replay::named_source;

/// A drive at 0.5 m/s of this duration in seconds, with the sensor at the origin of the robot's body.
fn simulation(world: DipoleOptions, route: Route, seed: u64, duration: f64) -> Simulation {
    let robot = RobotOptions { mount: Isometry3::translation(0.0, 0.0, world.height), ..Default::default() };
    Simulation { seed, world, route, robot, duration }
}

/// Some 70 m through a room of 4 m by 3 m, across its own path many times.
fn in_room() -> Simulation {
    let world = DipoleOptions { size: [4.0, 3.0], under: 10, beside: 4, ..Default::default() };
    simulation(world, Route::Random, 1, 140.0)
}

/// The measurements of a drive, with the stamps of readings delayed by `late` seconds.
fn drive(simulation: &Simulation, late: f64) -> Vec<Measurement> {
    let stamped = |sample: SimulatedMeasurement| match sample.measurement {
        Measurement::Reading(Reading { stamp, field }) => {
            Measurement::Reading(Reading { stamp: stamp.shifted(late), field })
        }
        pose => pose,
    };
    simulation.drive(&simulation.world().unwrap()).unwrap().map(stamped).collect()
}

fn settings(delay: f64) -> Config {
    let mut config = Config::default();
    config.sensor.delay = delay;
    config
}

fn replay(measurements: &[Measurement], delay: f64, folder: &Path) -> ReplayOutputs {
    let replay = Replay::start(&settings(delay), named_source("late"), folder, Options::default(), |_| {}).unwrap();
    replay.run(messages::<Infallible>(in_room().robot.mount, measurements.iter().copied())).unwrap()
}

#[test]
fn readings_that_are_late_are_mapped_where_they_were_taken_without_a_setting() {
    let (simulation, late) = (in_room(), 0.15);
    let measurements = drive(&simulation, late);
    let error = |outcome: &ReplayOutputs| {
        TruthComparison::within_room(&outcome.grid, &simulation.world().unwrap(), simulation.world.size, 50.0).rmse
    };
    // Somebody who says that readings are not late is believed.
    let [found, unaware, told] = [0.0, 1e-9, late].map(|delay| {
        let folder = tempdir().unwrap();
        replay(&measurements, delay, folder.path())
    });
    let Delay { seconds, deviation, end } = found.report.delay.unwrap();
    assert!((seconds - late).abs() < 0.02 && deviation < 0.02 && end.is_none(), "{seconds} {deviation}");
    assert!(
        found.report.choice.as_ref().unwrap().starts_with("the three axes are mapped"),
        "{:?}",
        found.report.choice
    );
    assert!(unaware.report.delay.is_none() && told.report.delay.is_none());
    // It is the same sensor over the same path: only what is left of the delay, 1 cm, makes a difference.
    let [found, unaware, told] = [&found, &unaware, &told].map(error);
    assert!(found < 1.1 * told && unaware > 1.5 * told, "{found} {unaware} {told}");
}

/// A map of the three axes of these measurements, which is not finished.
fn mapped(measurements: &[Measurement], field: Mapped) -> Mapper {
    let mut config = Config::default();
    config.model.field = field;
    let mapping = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
    measurements.iter().for_each(|measurement| mapping.inbox.send(*measurement).unwrap());
    let mapper = mapping.join().unwrap().mapper;
    assert_eq!(mapper.model().field(), Mapped::Vector);
    mapper
}

#[test]
fn the_map_is_that_of_the_whole_path_without_its_delay_until_somebody_sets_it() {
    let measurements = drive(&in_room(), 0.15);
    // Up to 60 m the path may still change what is mapped, and is kept.
    let part = &measurements[..measurements.len() * 6 / 7];
    for field in [Mapped::Auto, Mapped::Vector] {
        let mut mapper = mapped(part, field);
        let trajectory = mapper.trajectory().clone();
        let delay = trajectory.delay.unwrap();
        assert!((delay.seconds - 0.15).abs() < 0.02, "{delay:?}");
        let batches: Vec<Vec<Observation>> = trajectory.corrected_batches().collect();
        assert_ne!(batches, trajectory.batches());
        let folded = trajectory::fold(&mapper.config().decided(Mapped::Vector), &batches, &|| false);
        assert!(folded.state() == mapper.model().state());

        let told = Config { sensor: settings(0.15).sensor, ..Config::clone(mapper.config()) };
        mapper.take(Step::Configure(Box::new(told)), &StopSignal::default());
        let batch = &trajectory.batches()[0];
        assert_eq!(&mapper.trajectory().corrected(batch), batch);
        assert_eq!(mapper.trajectory().corrected_batches().collect::<Vec<_>>(), batches);
    }
}

/// What is found of readings that are not late, and of readings that are late by this.
fn found(simulation: &Simulation, late: f64) -> [Option<Delay>; 2] {
    [0.0, late].map(|late| {
        let mut pipeline = Pipeline::new(&Config::default(), simulation.robot.mount);
        drive(simulation, late).into_iter().for_each(|measurement| pipeline.ingest(measurement));
        pipeline.finish();
        let observations: Vec<_> = pipeline.take_ready().into_iter().flat_map(|batch| batch.observations).collect();
        delay::of(&Config::default(), &observations)
    })
}

/// Drives of 20 m through buildings and rooms with steel on all sides, weak and strong, near and far.
fn drives() -> Vec<Simulation> {
    let mut drives = Vec::new();
    for steel in [Steel::Below, Steel::Above, Steel::Beside, Steel::Mixed] {
        for (size, height) in [([60.0, 12.0], 0.3), ([40.0, 14.0], 1.3), ([30.0, 10.0], 0.3), ([30.0, 10.0], 1.3)] {
            let world = DipoleOptions { height, ..DipoleOptions::of_size(size).with_steel(steel) };
            drives.push(simulation(world, Route::Rooms { width: 5.0 }, drives.len() as u64 + 1, 41.0));
        }
        for (distance, standard_deviation) in
            [([0.2, 0.6], 2.0), ([0.4, 1.5], 10.0), ([1.0, 2.5], 30.0), ([2.0, 3.5], 10.0)]
        {
            let world = DipoleOptions { standard_deviation, distance, ..Default::default() }.with_steel(steel);
            for route in [Route::Random, Route::LawnMower { spacing: 0.8 }] {
                drives.push(simulation(world.clone(), route, drives.len() as u64 + 1, 41.0));
            }
        }
    }
    drives
}

#[test]
fn no_delay_is_found_that_is_not_there_and_half_of_those_that_are_are_found_within_20_m() {
    let drives = drives();
    let mut count = 0;
    for simulation in &drives {
        let [none, late] = found(simulation, 0.15);
        assert!(none.is_none(), "{none:?} {simulation:?}");
        if let Some(Delay { seconds, deviation, .. }) = late {
            // Of the 48, the farthest is off by 3 standard deviations.
            assert!((seconds - 0.15).abs() < 4.0 * deviation && deviation < 0.1, "{late:?} {simulation:?}");
            count += 1;
        }
    }
    assert!(2 * count >= drives.len(), "{count} of {}", drives.len());
}
