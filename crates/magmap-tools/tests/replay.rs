//! Offline mapping: from measurements to a folder of outputs.

use super::npz;

use std::convert::Infallible;
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use magmap::config::{Config, Mapped};
use magmap::display::scale::Scale;
use magmap::mapping::mapper::SourceId;
use magmap::sensing::intake::Intake;
use magmap::sensing::reading::{MagneticField, Measurement, Reading};
use magmap::sensing::rejection::Rejection;
use magmap_tools::recording::Loss;
use magmap_tools::recording::drive_writer::messages;
use magmap_tools::recording::messages::{Message, OccupancyGrid, decode};
use magmap_tools::replay::{
    Error, MEAN_TOPIC, Options, Replay, ReplayOutputs, ReplayProgress, Source, TruthComparison, VARIANCE_TOPIC,
};
use magmap_tools::simulation::{DipoleOptions, Route, Simulation, World, demo};
use nalgebra::{Isometry3, Point3, Vector3};
use streaming_gp::vector::Axes;
use tempfile::{TempDir, tempdir};

/// Some 15 m through a room of 3 m by 3 m.
pub fn simulation() -> Simulation {
    let world = DipoleOptions { size: [3.0, 3.0], under: 8, beside: 4, ..Default::default() };
    Simulation { world, route: Route::LawnMower { spacing: 0.6 }, duration: 30.0, ..demo() }
}

pub fn measurements(simulation: &Simulation) -> Vec<Measurement> {
    let world = simulation.world().unwrap();
    simulation.drive(world).unwrap().map(|sample| sample.measurement).collect()
}

pub fn source() -> Source {
    let (about, loss) = (serde_json::json!({ "kind": "test" }), Loss::default());
    let id = SourceId { name: "test".into(), fingerprint: "test".into() };
    let mut intake = Intake::new(&Config::default());
    intake.name_map("odom");
    Source { name: "test".into(), id, about, intake, loss, is_frame_shared: false, truth: Vec::new() }
}

pub fn named_source(name: &str) -> Source {
    let mut source = source();
    source.id.fingerprint = name.into();
    source
}

fn replay(folder: &Path, measurements: &[Measurement], options: Options) -> Result<ReplayOutputs, Error> {
    let replay = Replay::start(&Config::default(), source(), folder, options, |_| {})?;
    replay.run(messages::<Infallible>(Isometry3::identity(), measurements.iter().copied()))
}

fn at_full_speed(folder: &TempDir, measurements: &[Measurement]) -> ReplayOutputs {
    replay(folder.path(), measurements, Options::default()).unwrap()
}

/// The grids on a topic of the map over time, in order, with the times at which they were recorded.
pub fn grids(folder: &Path, topic: &str) -> Vec<(u64, OccupancyGrid)> {
    let bytes = fs::read(folder.join("map.mcap")).unwrap();
    let messages = mcap::MessageStream::new(&bytes).unwrap().map(Result::unwrap);
    let on_topic = messages.filter(|message| message.channel.topic == topic);
    let decoded = on_topic.map(|message| {
        assert_eq!(message.channel.schema.as_ref().unwrap().name, OccupancyGrid::TYPE);
        (message.log_time, decode::<OccupancyGrid>(&message.data).unwrap())
    });
    decoded.collect()
}

#[test]
fn offline_nothing_is_lost_and_the_map_is_near_the_truth() {
    let simulation = simulation();
    let measurements = measurements(&simulation);
    let folder = tempdir().unwrap();
    let outcome = at_full_speed(&folder, &measurements);
    let counters = &outcome.report.counters;
    assert_eq!(counters.readings + counters.poses, measurements.len() as u64);
    assert_eq!((counters.used_readings, counters.rejections.total()), (counters.readings, 0));
    assert_eq!(outcome.report.batches.len() as u64, counters.batches);
    let observations: usize = outcome.report.batches.iter().map(|record| record.observations).sum();
    assert_eq!(observations as u64, counters.observations);

    let world = simulation.world().unwrap();
    let comparison = TruthComparison::within_room(&outcome.grid, &world, simulation.world.size, 50.0);
    // A field with a standard deviation of 10 microtesla, driven in lanes 0.6 m apart.
    assert!(comparison.cells > 800 && comparison.rmse < 3.0, "{comparison:?}");
    assert!(comparison.coverage > 0.85, "{comparison:?}");
}

#[test]
fn the_grids_over_time_end_with_the_final_map_and_have_the_stamps_of_batches() {
    let folder = tempdir().unwrap();
    let outcome = at_full_speed(&folder, &measurements(&simulation()));
    let records = &outcome.report.batches;
    let (means, variances) = (grids(folder.path(), MEAN_TOPIC), grids(folder.path(), VARIANCE_TOPIC));
    assert!(records.len() >= 3, "{} batches", records.len());
    assert_eq!((means.len(), variances.len()), (records.len(), records.len()));
    for ((record, (time, mean)), (_, variance)) in records.iter().zip(&means).zip(&variances) {
        assert!((record.stamp - *time as f64 * 1e-9).abs() < 1e-6);
        assert_eq!((mean.header.frame_id.as_str(), &mean.header), ("odom", &variance.header));
        assert_eq!(mean.data.len() as u32, mean.info.width * mean.info.height);
    }

    let geometry = outcome.grid.geometry;
    let last = records.last().unwrap().grids.unwrap();
    let deviations = &outcome.grid.standard_deviation;
    let variance: Vec<f64> = deviations.iter().map(|deviation| deviation.powi(2)).collect();
    let layers = [(&means, last.mean, &outcome.grid.mean), (&variances, last.variance, &variance)];
    for (grids, [low, high], values) in layers {
        let message = &grids.last().unwrap().1;
        assert_eq!((message.info.width as usize, message.info.height as usize), (geometry.columns, geometry.rows));
        assert_eq!([message.info.origin.position.x, message.info.origin.position.y], geometry.origin());
        let scale = Scale { low, high };
        let occupancies: Vec<i8> = values.iter().map(|&value| scale.occupancy(value)).collect();
        assert_eq!(message.data, occupancies);
        assert!(message.data.contains(&100) && message.data.contains(&-1));
        let known = message.data.iter().zip(values).filter(|(occupancy, _)| (1..100).contains(*occupancy));
        for (&occupancy, value) in known {
            assert!((low + f64::from(occupancy) * scale.step() - value).abs() <= 0.5 * scale.step() * (1.0 + 1e-9));
        }
    }
}

/// The numbers of an array in `map.npz`.
fn array(folder: &Path, name: &str) -> Option<Vec<f64>> {
    npz::find(&folder.join("map.npz"), name).map(|(_, values)| values)
}

#[test]
fn a_map_of_the_axes_has_them_and_the_hard_iron_in_its_outputs() {
    // A hard iron within the prior's standard deviation of 5 microtesla, on a robot that turns but stays in the plane.
    let iron = Vector3::new(4.0, -3.0, 0.0);
    let biased = |measurement| match measurement {
        Measurement::Reading(Reading { stamp, field }) => {
            let field = MagneticField::from_microtesla(field.microtesla() + iron);
            Measurement::Reading(Reading { stamp, field })
        }
        pose => pose,
    };
    let simulation = simulation();
    let drive = measurements(&simulation);
    let measurements = drive.iter().copied().map(biased);
    let folder = tempdir().unwrap();
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let started = Replay::start(&config, source(), folder.path(), Options::default(), |_| {}).unwrap();
    let outcome = started.run(messages::<Infallible>(Isometry3::identity(), measurements)).unwrap();
    assert!(outcome.files.iter().all(|file| file.is_file()) && folder.path().join("vectors.png").is_file());

    let (grid, world) = (&outcome.grid, simulation.world().unwrap());
    let cells = grid.mean.len();
    let axes = array(folder.path(), "axes").unwrap();
    let covariance = array(folder.path(), "axes_covariance").unwrap();
    assert_eq!((axes.len(), covariance.len()), (3 * cells, 6 * cells));
    let (mut squares, mut known) = (0.0, 0);
    for cell in 0..cells {
        let mean: [f64; 3] = std::array::from_fn(|axis| axes[axis * cells + cell]);
        let [xx, xy, xz, yy, yz, zz] = std::array::from_fn(|entry| covariance[entry * cells + cell]);
        assert!(
            mean.iter().chain([xx, xy, xz, yy, yz, zz].iter()).all(|value| value.is_nan() == grid.mean[cell].is_nan())
        );
        if grid.mean[cell].is_finite() {
            let predicted = Axes { mean, covariance: [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]] };
            let (strength, variance) = predicted.strength();
            // Predictions beside other cells differ by rounding.
            assert!((strength - grid.mean[cell]).abs() < 1e-6, "{strength} beside {}", grid.mean[cell]);
            assert!((variance.sqrt() - grid.standard_deviation[cell]).abs() < 1e-6);
            let [x, y] = grid.geometry.centre(cell % grid.geometry.columns, cell / grid.geometry.columns);
            if (0.0..3.0).contains(&x) && (0.0..3.0).contains(&y) {
                let truth = world.field_at(&Point3::new(x, y, 0.0));
                squares += (truth.microtesla() - Vector3::from(mean)).norm_squared();
                known += 3;
            }
        }
    }
    // In the map's frame, in order, and free of the hard iron: it alone would be an error of 2.9 microtesla.
    let error = (squares / f64::from(known)).sqrt();
    assert!(known > 2400 && error < 2.5, "{error} in {known} axes");

    let report: serde_json::Value =
        serde_json::from_reader(File::open(folder.path().join("report.json")).unwrap()).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f64> { serde_json::from_value(value.clone()).unwrap() };
    let (found, deviation) = (numbers(&report["hard_iron"]), numbers(&report["hard_iron_sd"]));
    assert_eq!(array(folder.path(), "hard_iron").unwrap(), found);
    assert_eq!(array(folder.path(), "hard_iron_sd").unwrap(), deviation);
    let batches = report["batches"].as_array().unwrap();
    assert_eq!(numbers(&batches[batches.len() - 1]["hard_iron"]), found);
    let first = numbers(&batches[0]["hard_iron_sd"]);
    for axis in 0..2 {
        // Dipoles are not what the prior expects; without learning the errors would be 4 and 3.
        assert!((found[axis] - iron[axis]).abs() < 1.0, "{found:?}");
        assert!(deviation[axis] < 0.6 && deviation[axis] < first[axis], "{first:?} then {deviation:?}");
    }
    // The vertical part cannot be told from the field.
    assert!(found[2].abs() < 0.01 && deviation[2] > 2.5, "{found:?} {deviation:?}");

    // A map of strengths has none of it, and replaces it.
    replay(folder.path(), &drive[..600], Options { force: true, ..Options::default() }).unwrap();
    assert!(!folder.path().join("vectors.png").exists());
    for name in ["axes", "axes_covariance", "hard_iron", "hard_iron_sd"] {
        assert!(array(folder.path(), name).is_none(), "{name}");
    }
    let report = fs::read_to_string(folder.path().join("report.json")).unwrap();
    assert!(!report.contains("hard_iron"));
}

#[test]
fn the_same_measurements_make_the_same_map_at_any_speed() {
    let measurements: Vec<Measurement> = measurements(&Simulation { duration: 8.0, ..simulation() });
    let (fast, paced) = (tempdir().unwrap(), tempdir().unwrap());
    at_full_speed(&fast, &measurements);
    let start = Instant::now();
    replay(paced.path(), &measurements, Options { speed: 16.0, ..Default::default() }).unwrap();
    // 8 s at 16 times real time; the last pose comes a period before the end.
    assert!(start.elapsed().as_secs_f64() > 0.49, "{:?}", start.elapsed());
    for file in ["map.npz", "map.mcap", "mean.pgm", "map.png", "config.toml"] {
        assert!(fs::read(fast.path().join(file)).unwrap() == fs::read(paced.path().join(file)).unwrap(), "{file}");
    }
}

#[test]
fn progress_rises_to_the_end() {
    let folder = tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::<ReplayProgress>::new()));
    let shared = Arc::clone(&seen);
    let notice = move |progress| shared.lock().unwrap().push(progress);
    let replay = Replay::start(&Config::default(), source(), folder.path(), Options::default(), notice).unwrap();
    let measurements = measurements(&simulation());
    let outcome = replay.run(messages::<Infallible>(Isometry3::identity(), measurements.iter().copied())).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), outcome.report.batches.len());
    assert!(seen.windows(2).all(|pair| pair[0].batches + 1 == pair[1].batches));
    assert!(seen.windows(2).all(|pair| pair[0].measurements <= pair[1].measurements));
    assert_eq!(seen.last().unwrap().measurements, measurements.len() as u64);
    assert_eq!(seen.last().unwrap().inducing_points, outcome.report.totals.inducing_points);
}

#[test]
fn a_stop_ends_the_drive_and_the_outputs_are_written() {
    let folder = tempdir().unwrap();
    let replay = Replay::start(&Config::default(), source(), folder.path(), Options::default(), |_| {}).unwrap();
    let stop = replay.stop_signal();
    let measurements = measurements(&simulation());
    let half = measurements.len() / 2;
    let drive = measurements.iter().copied().enumerate().map(|(index, measurement)| {
        if index == half {
            stop.stop();
        }
        measurement
    });
    let outcome = replay.run(messages::<Infallible>(Isometry3::identity(), drive)).unwrap();
    assert!(outcome.report.interrupted);
    assert_eq!(outcome.report.counters.readings + outcome.report.counters.poses, half as u64);
    assert!(outcome.files.iter().all(|file| file.is_file()));
}

#[test]
fn a_failing_source_is_reported_as_loss_and_earlier_measurements_are_mapped() {
    let folder = tempdir().unwrap();
    let replay = Replay::start(&Config::default(), source(), folder.path(), Options::default(), |_| {}).unwrap();
    let measurements = measurements(&simulation());
    let good = messages(Isometry3::identity(), measurements[..600].iter().copied());
    let more = messages(Isometry3::identity(), measurements[600..].iter().copied());
    let outcome = replay.run(good.chain([Err("the disk is gone")]).chain(more)).unwrap();
    assert_eq!(outcome.report.counters.readings + outcome.report.counters.poses, 600);
    assert_eq!(outcome.report.loss.items.len(), 1);
    assert!(outcome.report.loss.to_string().contains("the disk is gone"), "{}", outcome.report.loss);
    let report: serde_json::Value =
        serde_json::from_reader(File::open(folder.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report["loss"]["items"][0]["what"], outcome.report.loss.items[0].what.as_str());
}

#[test]
fn without_a_map_the_reasons_are_reported_and_no_partial_file_is_left() {
    let folder = tempdir().unwrap();
    let measurements = measurements(&Simulation { duration: 1.0, ..simulation() });
    let readings: Vec<Measurement> =
        measurements.into_iter().filter(|measurement| matches!(measurement, Measurement::Reading(_))).collect();
    let error = replay(folder.path(), &readings, Options::default()).unwrap_err();
    let expected = "there is no map: of 50 readings and 0 poses, 0 readings could be used; rejected: ";
    assert!(matches!(error, Error::NothingMapped(_)) && error.to_string().starts_with(expected), "{error}");
    assert!(error.to_string().contains(Rejection::ReadingWithoutTransform.words()), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_not_empty_is_kept_unless_forced() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let measurements = measurements(&Simulation { duration: 3.0, ..simulation() });
    let error = replay(folder.path(), &measurements, Options::default()).unwrap_err();
    assert!(matches!(&error, Error::NotEmpty(path) if path == folder.path()), "{error}");
    replay(folder.path(), &measurements, Options { force: true, ..Default::default() }).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("notes.txt")).unwrap(), "mine");
    assert!(folder.path().join("map.png").is_file());
}

#[test]
fn invalid_speeds_and_settings_are_rejected_before_anything_is_written() {
    let folder = tempdir().unwrap();
    for speed in [-1.0, f64::NAN, f64::INFINITY] {
        let options = Options { speed, ..Default::default() };
        assert!(matches!(replay(folder.path(), &[], options), Err(Error::Speed(_))), "{speed}");
    }
    let mut config = Config::default();
    config.selection.delta = -1.0;
    let started = Replay::start(&config, source(), folder.path(), Options::default(), |_| {});
    assert!(matches!(started, Err(Error::Config(_))));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_map_too_large_to_draw_leaves_its_report() {
    let folder = tempdir().unwrap();
    let mut config = Config::default();
    config.raster.max_cells = 100;
    let replay = Replay::start(&config, source(), folder.path(), Options::default(), |_| {}).unwrap();
    let measurements = measurements(&Simulation { duration: 3.0, ..simulation() });
    let error = replay.run(messages::<Infallible>(Isometry3::identity(), measurements.into_iter())).unwrap_err();
    assert!(error.to_string().contains("raster.max_cells"), "{error}");
    for file in ["report.json", "config.toml", "growth.png"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    assert!(!folder.path().join("map.mcap").exists());
}
