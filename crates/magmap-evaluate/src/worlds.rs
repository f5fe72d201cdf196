//! Simulated worlds whose field is known: whether one set of defaults serves weak and strong, smooth and rough fields.
//!
//! In each world a robot maps a room in lanes, through gates, synchronizer, averaging and batches as on a real drive; a second
//! drive along random paths, averaged the same way, tests the map. Its observations carry the noise of the sensor, averaged as
//! those that were learnt from, so that the predictive distribution (noise included) should fit them.

use super::Error;
use super::metrics::{Predictions, Samples, Scores, Spread};
use super::outliers::Outliers;
use super::random_field::{RandomField, RandomFieldOptions};
use magmap::config::Config;
use magmap::mapping::field_model::FieldModel;
use magmap::mapping::pipeline::Pipeline;
use magmap::mapping::reading::{Measurement, Observation};
use magmap::simulation::{Drive, Path, RobotOptions, Route, World};
use nalgebra::Isometry3;
use serde::Serialize;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Standard deviations of the field strength, in microtesla.
pub const STANDARD_DEVIATIONS: [f64; 3] = [2.0, 10.0, 30.0];
/// Lengthscales, in metres.
pub const LENGTHSCALES: [f64; 4] = [0.3, 0.6, 1.0, 2.0];
/// Noise of the sensor on each axis of a reading, in microtesla.
pub const NOISES: [f64; 2] = [0.3, 1.0];

/// Side of the room, in metres.
const ROOM: f64 = 6.0;
/// Distance between the lanes of the mapping drive, in metres.
const LANES: f64 = 0.5;
/// Length of the mapping drive: all lanes in one direction and some of those across, in metres.
const MAPPING_LENGTH: f64 = 90.0;
/// Length of the test drive, in metres.
const TEST_LENGTH: f64 = 40.0;
/// What is added to a world's seed for its test drive.
const TEST_SEEDS: u64 = 1_000_000;

/// One kind of world: draws from a Gaussian process around a constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Standard deviation of the field strength, in microtesla.
    pub standard_deviation: f64,
    /// Lengthscale, in metres.
    pub lengthscale: f64,
    /// Noise of the sensor on each axis, in microtesla.
    pub noise: f64,
}

/// All kinds of worlds.
pub fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for standard_deviation in STANDARD_DEVIATIONS {
        for lengthscale in LENGTHSCALES {
            for noise in NOISES {
                settings.push(Setting { standard_deviation, lengthscale, noise });
            }
        }
    }
    settings
}

/// What was found in one kind of world.
#[derive(Clone, Debug, Serialize)]
pub struct WorldScores {
    /// The kind of world.
    #[serde(flatten)]
    pub setting: Setting,
    /// Number of inducing points, over the worlds of this kind.
    #[serde(rename = "M")]
    pub inducing_points: Spread,
    /// How good the maps are on all test drives together.
    #[serde(flatten)]
    pub scores: Scores,
    /// Mean predictive standard deviation over the root mean squared error: 1 is well calibrated, more is too cautious.
    pub caution: f64,
    /// The same for each world alone.
    pub caution_by_world: Spread,
    /// Coverage for each world alone.
    pub coverage_by_world: Spread,
    /// Medians of the hyperparameters.
    pub hyperparameters: Vec<f64>,
    /// Duration of all updates, in seconds.
    pub seconds: f64,
}

/// Maps worlds of one kind, one for each seed, and tests the maps. The outliers are among the readings that are learnt from, before
/// the gates.
///
/// # Errors
/// When a world cannot be made or the model refuses a batch.
pub fn run(setting: &Setting, seeds: Range<u64>, config: &Config, outliers: Outliers) -> Result<WorldScores, Error> {
    let worlds = seeds.map(|seed| map_one(setting, seed, config, outliers)).collect::<Result<Vec<_>, _>>()?;
    let mut all = Predictions::default();
    let mut strengths = Vec::new();
    for world in &worlds {
        all.extend(&world.predictions);
        strengths.extend_from_slice(&world.strengths);
    }
    let scores = all.score(&strengths, |_| true);
    let each: Vec<Scores> = worlds.iter().map(|world| world.predictions.score(&world.strengths, |_| true)).collect();
    let names = worlds.first().map_or(0, |world| world.hyperparameters.len());
    Ok(WorldScores {
        setting: *setting,
        inducing_points: Spread::of(worlds.iter().map(|world| world.inducing_points as f64)),
        caution: scores.predictive_sd / scores.rmse,
        caution_by_world: Spread::of(each.iter().map(|scores| scores.predictive_sd / scores.rmse)),
        coverage_by_world: Spread::of(each.iter().map(|scores| scores.coverage)),
        scores,
        hyperparameters: (0..names)
            .map(|i| Spread::of(worlds.iter().map(|world| world.hyperparameters[i])).median)
            .collect(),
        seconds: worlds.iter().map(|world| world.seconds).sum(),
    })
}

/// One world, mapped.
struct Mapped {
    inducing_points: usize,
    hyperparameters: Vec<f64>,
    predictions: Predictions,
    strengths: Vec<f64>,
    seconds: f64,
}

fn map_one(setting: &Setting, seed: u64, config: &Config, outliers: Outliers) -> Result<Mapped, Error> {
    let options = RandomFieldOptions {
        // A strength is never negative: five standard deviations above zero.
        mean: (5.0 * setting.standard_deviation).max(50.0),
        standard_deviation: setting.standard_deviation,
        lengthscale: setting.lengthscale,
        ..RandomFieldOptions::default()
    };
    let world = RandomField::random(&options, seed)?;
    let robot = RobotOptions { noise: setting.noise, ..RobotOptions::default() };
    let observe = |route, length, seed, outliers: Outliers| {
        let path = Path::through_room(route, [ROOM, ROOM], length, seed)?;
        observations(Drive::new(&world, path, robot.clone(), seed)?, config, outliers, seed)
    };
    let mapped = observe(Route::LawnMower { spacing: LANES }, MAPPING_LENGTH, seed, outliers)?;
    let tested = observe(Route::Random, TEST_LENGTH, seed + TEST_SEEDS, Outliers::default())?;

    let mut model = FieldModel::new(config);
    let start = Instant::now();
    for (index, batch) in mapped.iter().enumerate() {
        model.update(batch, &|| false).map_err(|source| Error::Update { batch: index + 1, source })?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let test = Samples::of(tested.iter().flatten());
    let posterior = model.posterior().expect("a drive of many metres fills a batch");
    Ok(Mapped {
        inducing_points: posterior.past().len(),
        hyperparameters: posterior.model().named_values().iter().map(|value| value.value).collect(),
        predictions: Predictions::of(posterior, &test.positions),
        strengths: test.strengths,
        seconds,
    })
}

/// A drive through the pipeline: its observations, batch by batch.
fn observations<W: World>(
    drive: Drive<W>,
    config: &Config,
    outliers: Outliers,
    seed: u64,
) -> Result<Vec<Vec<Observation>>, Error> {
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    let mut ready = VecDeque::new();
    let mut spoiler = outliers.spoiler(seed);
    for sample in drive {
        let mut measurement = sample.measurement;
        if let Measurement::Reading(reading) = &mut measurement {
            reading.field = spoiler.next(reading.field);
        }
        pipeline.ingest(measurement, &mut ready);
    }
    pipeline.finish(&mut ready);
    Ok(ready.into_iter().map(|batch| batch.observations).collect())
}
