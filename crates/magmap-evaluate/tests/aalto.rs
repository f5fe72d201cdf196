//! The model on the real drives, where they are: the figures that the README states, with room for other processors.

#[path = "../../magmap-tools/tests/common/mod.rs"]
mod common;

use magmap::config::{Ceiling, Config, Mapped, VectorHyperparameters};
use magmap::field::engine;
use magmap::mapping::averaging::Averager;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::{LocatedReading, MagneticField, Measurement, Observation};
use magmap::sensing::rejection::{Rejection, Rejections};
use magmap_evaluate::comparison::BatchResult;
use magmap_evaluate::drives::{self, Drives, DrivesOutcome, Experiment, Material};
use magmap_evaluate::metrics::{Readings, Spread};
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath, Magnetometer};
use nalgebra::{Isometry3, Point3, Vector3};
use std::path::Path;
use streaming_gp::report::{CeilingUsed, UpdateReport};
use streaming_gp::streaming::StreamingGp;

const STREAM: Experiment = Experiment::Stream;

fn stream(config: &Config, offset: f64) -> Option<DrivesOutcome> {
    let data = common::aalto_folder()?;
    let material = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, config).unwrap();
    Some(drives::run(&material, config, offset, |_, _| ()).unwrap())
}

/// The last of the steps of each method.
fn side_by_side(order: impl FnOnce(Material) -> Material, methods: &[&str]) -> Option<Vec<BatchResult>> {
    let data = common::aalto_folder()?;
    let config = Config::default();
    let material = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, &config).unwrap();
    let task = order(material).task(&config, 0.0);
    let run = |method: &&str| task.run(&method.parse().unwrap(), &config, |_, _| ()).steps.last().unwrap().clone();
    Some(methods.iter().map(run).collect())
}

#[test]
fn side_by_side_every_method_learns_the_same_batches() {
    let methods = ["vips", "oips=0.8", "fixed=60", "batch_sparse=100", "mean"];
    let Some(steps) = side_by_side(|material| material, &methods) else { return };
    let alone = stream(&Config::default(), 0.0).unwrap();
    assert_eq!((steps[0].rmse, steps[0].nlpd), (alone.last().rmse, alone.last().nlpd));
    assert_eq!((steps[0].inducing_points, steps[0].batch), (alone.last().inducing_points, 20));
    assert_eq!((steps[2].inducing_points, steps[3].inducing_points), (60, 100));
    // The mean of the averaged observations is not quite that of the readings.
    assert!((steps[4].rmse - alone.last().rmse_mean_predictor).abs() < 0.1, "{steps:?}");
    // Noise of 1e-15 of each target changes the errors of vips, oips and batch_sparse by less than 0.001, other averaging cells change
    // them from 7.5 to 7.9. Sixty points that move are too few for this drive, and learning amplifies rounding: over sixty draws of that
    // noise `fixed=60` ends between 8.0 and 10.7 with a standard deviation of 0.5, and every processor has a rounding of its own. What
    // holds is that the method learns: the mean predicts with an error of 11.9. (`fixed=100` ends between 7.60 and 7.61.)
    let bounds = [8.2, 8.2, steps[4].rmse, 8.2];
    for ((method, step), bound) in methods.iter().zip(&steps).zip(bounds) {
        assert!(step.rmse < bound, "{method}: {step:?}");
    }
    let shuffled = side_by_side(|material| material.shuffled(1), &["mean", "vips"]).unwrap();
    // The same readings in another order have the same mean, but for how they fall into cells.
    assert!((shuffled[0].rmse - steps[4].rmse).abs() < 0.1, "{shuffled:?}");
    assert!(shuffled[1].rmse < 8.5, "{shuffled:?}");
}

fn paper() -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/paper.toml");
    Config::load(path.as_path()).unwrap()
}

#[test]
fn the_settings_of_the_paper_give_its_model_sizes() {
    let Some(outcome) = stream(&paper(), 0.0) else { return };
    for (batch, published) in [(1, 5.0), (5, 32.0), (10, 66.0), (15, 101.0), (20, 134.0)] {
        let found = outcome.batches[batch - 1].inducing_points as f64;
        let allowed = f64::max(0.1 * published, 1.0);
        assert!((found - published).abs() <= allowed, "batch {batch}: {found} inducing points, published {published}");
    }
    // Published: 7.55. Learning without a prior is chaotic, so that rounding alone moves it by tenths.
    assert!(outcome.last().rmse <= 8.3, "{}", outcome.last().rmse);
}

#[test]
fn the_defaults_beat_every_cheap_map_with_few_points() {
    let outcomes: Option<Vec<DrivesOutcome>> =
        (0..3).map(|index| stream(&Config::default(), f64::from(index) / 3.0)).collect();
    let Some(outcomes) = outcomes else { return };
    let last = |value: fn(&drives::BatchScores) -> f64| Spread::of(outcomes.iter().map(|o| value(o.last()))).median;
    assert!(last(|batch| batch.inducing_points as f64) <= 95.0);
    assert!(last(|batch| batch.rmse) <= 7.7);
    assert!(last(|batch| batch.rmse) < last(|batch| batch.rmse_nearest_neighbour));
    assert!(last(|batch| batch.nlpd) <= 3.2);
    assert!(last(|batch| batch.coverage_05) >= 0.92);
    for batch in outcomes.iter().flat_map(|outcome| &outcome.batches).filter(|batch| batch.batch >= 5) {
        assert!(batch.rmse <= batch.rmse_mean_predictor, "batch {}: {}", batch.batch, batch.rmse);
    }
}

#[test]
fn three_axes_predict_other_drives_better_than_strengths_and_find_a_hard_iron_that_was_added() {
    let Some(data) = common::aalto_folder() else { return };
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let drives = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, &config).unwrap();
    let drives = drives.tested_on_every(5);
    let [as_it_is, with_more] = [drives.clone(), drives.clone().with_hard_iron(Vector3::new(15.0, -10.0, 0.0))]
        .map(|material| drives::run(&material, &config, 0.0, |_, _| ()).unwrap());
    for outcome in [&as_it_is, &with_more] {
        let last = outcome.last();
        // Three microtesla are the aim; no map of the strength gets below 7.4 here.
        assert!(last.rmse < 3.1 && last.coverage_05 > 0.9, "{last:?}");
    }
    config.model.field = Mapped::Strength;
    let strengths = drives::run(&drives, &config, 0.0, |_, _| ()).unwrap();
    for (axes, strength) in as_it_is.batches.iter().zip(&strengths.batches) {
        assert!(axes.rmse < strength.rmse && axes.nlpd < strength.nlpd, "{axes:?}, with strengths {strength:?}");
    }
    let [own, found] = [&as_it_is, &with_more].map(|outcome| outcome.last().sensor_bias.unwrap());
    for (axis, added) in [(0, 15.0), (1, -10.0)] {
        let difference = found.hard_iron[axis] - own.hard_iron[axis];
        assert!((difference - added).abs() < 1.0, "axis {axis}: {own:?}, then {found:?}");
        assert!(found.hard_iron_sd[axis] < 0.5, "{found:?}");
    }
    // A robot in the plane tells nothing of the vertical: its prior has a standard deviation of 5.
    assert!(found.hard_iron[2].abs() < 0.01 && found.hard_iron_sd[2] > 4.5, "{found:?}");
}

/// The drives of all sensors, as far as they are there.
fn all_drives(data: &Path) -> Vec<(Magnetometer, u32)> {
    let sensors = [Magnetometer::Invensense, Magnetometer::Nexus, Magnetometer::Trivisio];
    let all = sensors.into_iter().flat_map(|sensor| (1..=9).map(move |number| (sensor, number)));
    let (found, missing): (Vec<_>, Vec<_>) =
        all.partition(|&(sensor, number)| DrivePath::new(data, sensor, number).file("mag").is_file());
    if !missing.is_empty() {
        eprintln!("SKIPPED: {} of 27 drives are not in {}", missing.len(), data.display());
    }
    found
}

/// Learns four fifths of a drive in 20 batches; tested is the rest.
fn within_drive(data: &Path, sensor: Magnetometer, number: u32, config: &Config) -> DrivesOutcome {
    let drives = Drives { learn: vec![number], test: vec![number] };
    let material = Material::read(STREAM, &drives, data, sensor, config).unwrap();
    drives::run(&material, config, 0.0, |_, _| ()).unwrap()
}

#[test]
#[ignore = "all drives, a batch at a time; run with --release --ignored --nocapture"]
fn a_map_of_three_axes_is_stable_from_the_first_batch_on() {
    let Some(data) = common::aalto_folder() else { return };
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let mut faults = Vec::new();
    for (sensor, number) in all_drives(&data) {
        let batches = within_drive(&data, sensor, number, &config).batches;
        // Errors over those of the map's constant, and over those of the mean of the readings so far.
        let over_constant: Vec<f64> = batches.iter().map(|batch| batch.rmse / batch.rmse_constant).collect();
        let over_mean: Vec<f64> = batches.iter().map(|batch| batch.rmse / batch.rmse_mean_predictor).collect();
        let last = batches.last().unwrap();
        let lengths = Spread::of(batches.iter().map(|batch| batch.hyperparameters[2] / last.hyperparameters[2]));
        let greatest = |ratios: &[f64]| Spread::of(ratios.iter().copied()).greatest;
        eprintln!(
            "{sensor} {number}: error over that of the constant {:.2?}, then at most {:.2}; of the mean {:.2?}, then at most {:.2}; \
             lengthscale {:.2} to {:.2} of the last; last RMSE {:.2}",
            &over_constant[..3],
            greatest(&over_constant[3..]),
            &over_mean[..5],
            greatest(&over_mean[5..]),
            lengths.least,
            lengths.greatest,
            last.rmse,
        );
        // Within its first metres a drive may pass a source so close that the field varies over much less than the lengthscale: on drive
        // 8 of Invensense the map is then worse than its constant by a third, on 5 and 9 by a tenth. The constant itself can be
        // worse than the mean for longer.
        let is_sound = greatest(&over_constant[..3]) < 1.35
            && greatest(&over_constant[3..]) < 1.0
            && greatest(&over_mean[5..]) < 1.0
            && lengths.least > 0.3
            && lengths.greatest < 3.0;
        if !is_sound {
            faults.push((sensor, number));
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
#[ignore = "all drives from nine starts; run with --release --ignored --nocapture"]
fn where_learning_starts_does_not_change_a_map_of_three_axes() {
    let Some(data) = common::aalto_folder() else { return };
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let starts = |config: &Config| -> Vec<Config> {
        let fields: [fn(&mut VectorHyperparameters) -> &mut f64; 4] =
            [|h| &mut h.constant, |h| &mut h.variance, |h| &mut h.lengthscale, |h| &mut h.noise];
        let started = |field: fn(&mut VectorHyperparameters) -> &mut f64, factor: f64| {
            let mut config = config.clone();
            *field(&mut config.vector.initial) *= factor;
            config
        };
        fields.into_iter().flat_map(|field| [started(field, 1.0 / 3.0), started(field, 3.0)]).collect()
    };
    let check = |name: &str, error: &dyn Fn(&Config) -> f64| {
        let default = error(&config);
        let changes: Vec<f64> = starts(&config).iter().map(|config| error(config) / default).collect();
        eprintln!("{name}: RMSE {default:.2}, from other starts times {changes:.2?}");
        changes.iter().all(|change| (0.9..1.1).contains(change))
    };
    let material = Material::read(STREAM, &STREAM.drives(), &data, Magnetometer::Invensense, &config).unwrap();
    let material = material.tested_on_every(5);
    assert!(check("stream", &|config| drives::run(&material, config, 0.0, |_, _| ()).unwrap().last().rmse));
    for (sensor, number) in all_drives(&data) {
        let name = format!("{sensor} {number}");
        assert!(check(&name, &|config| within_drive(&data, sensor, number, config).last().rmse), "{name}");
    }
}

/// Drive 1 as one batch, with the hyperparameters as they are.
fn drive_1_at_once(mut config: Config, ceiling: Ceiling) -> Option<UpdateReport> {
    let path = DrivePath::new(&common::aalto_folder()?, Magnetometer::Invensense, 1);
    config.learning.max_evaluations = 0;
    config.selection.ceiling = ceiling;
    let drive = AaltoDrive::read(&path).unwrap();
    let mut averager = Averager::new(&config.averaging);
    let mut observations = Vec::new();
    for row in 0..drive.seconds.len() {
        let [x, y] = drive.positions[row];
        observations.extend(averager.push(&LocatedReading {
            stamp: drive.stamp(row),
            position: Point3::new(x, y, 0.0),
            orientation: drive.orientation(row),
            field: MagneticField::from_microtesla(drive.fields[row]),
        }));
    }
    observations.extend(averager.close());
    let at = |seen: &Observation| ([seen.position.x, seen.position.y], seen.strength);
    let Readings { places, targets } = observations.iter().map(at).collect();
    let mut process = StreamingGp::new(engine::model(&config, 2), engine::settings(&config, 2));
    Some(process.update(&places, &targets, &|| false).unwrap())
}

#[test]
fn both_ceilings_on_a_whole_drive_are_reported() {
    let Some(exact) = drive_1_at_once(Config::default(), Ceiling::Auto) else { return };
    let upper = drive_1_at_once(Config::default(), Ceiling::Upper).unwrap();
    assert_eq!(exact.selection.gap.unwrap().ceiling_used, CeilingUsed::Exact);
    assert_eq!(upper.selection.gap.unwrap().ceiling_used, CeilingUsed::Upper);
    assert!(upper.selection.gap.unwrap().ceiling > exact.selection.gap.unwrap().ceiling);
    assert!(upper.inducing_points >= exact.inducing_points);
    let mut beyond = Config::default();
    beyond.selection.exact_limit = exact.rows - 1;
    let report = drive_1_at_once(beyond, Ceiling::Auto).unwrap();
    assert_eq!(
        report.selection.gap.unwrap().ceiling_used,
        CeilingUsed::Upper,
        "{} rows are above the limit",
        report.rows
    );
}

/// Rejections by the gates of nine drives whose axes are rounded to steps of `quantum` microtesla (0: not at all), poses included,
/// and the number of readings.
fn rejected_in_steps_of(data: &Path, quantum: f64) -> (Rejections, u64) {
    let rounded = |axis: f64| if quantum > 0.0 { (axis / quantum).round() * quantum } else { axis };
    let (mut rejections, mut readings) = (Rejections::default(), 0);
    for number in 1..=9 {
        let drive = AaltoDrive::read(&DrivePath::new(data, Magnetometer::Invensense, number)).unwrap();
        let mut pipeline = Pipeline::new(&Config::default(), Isometry3::identity());
        for mut measurement in drive.measurements() {
            if let Measurement::Reading(reading) = &mut measurement {
                reading.field = MagneticField::from_microtesla(reading.field.microtesla().map(rounded));
            }
            pipeline.ingest(measurement);
        }
        pipeline.finish();
        rejections = rejections.plus(&pipeline.counters().rejections);
        readings += pipeline.counters().readings;
    }
    (rejections, readings)
}

#[test]
fn the_gates_lose_nothing_of_the_real_drives_even_when_the_sensor_counts_in_microtesla() {
    let Some(data) = common::aalto_folder() else { return };
    for quantum in [0.0, 0.3, 1.0] {
        let (rejections, readings) = rejected_in_steps_of(&data, quantum);
        assert_eq!((rejections.total(), readings), (0, 76_027), "in steps of {quantum} microtesla: {rejections}");
    }
    // Steps so coarse that an axis sometimes stays the same for a quarter of a metre.
    let (rejections, readings) = rejected_in_steps_of(&data, 2.0);
    let share = rejections.of(Rejection::AxisFrozen) as f64 / readings as f64;
    assert!((0.01..0.02).contains(&share), "{rejections}");
    assert_eq!(rejections.total(), rejections.of(Rejection::AxisFrozen));
}
