//! Simulated worlds whose field is known: whether one set of defaults serves weak and strong, smooth and rough fields.
//!
//! In each world a robot maps a room in lanes, through gates, synchronizer, averaging and batches as on a real drive; a second
//! drive along random paths, averaged the same way, tests the map. Its observations carry the noise of the sensor, averaged as
//! those that were learnt from, so that the predictive distribution (noise included) should fit them.
//!
//! A random field of strengths has no axes: `worlds/rooms.rs` has rooms whose field is that of dipoles.

pub mod rooms;

use super::TEST_SEEDS;
use super::methods::{Learnt, Method};
use super::metrics::{Predictions, Readings, Scores, Spread, in_the_plane};
use super::outliers::Outliers;
use super::random_field::{RandomField, RandomFieldOptions};
use anyhow::{Context, anyhow};
use magmap::config::Config;
use magmap::mapping::batcher::Batch;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::{MagneticField, Measurement};
use magmap_tools::simulation::{Path, RobotOptions, Route, SimulatedDrive, World};
use nalgebra::Isometry3;
use serde::Serialize;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;
use streaming_gp::report::NamedValue;

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

/// A kind of world: draws from a Gaussian process around a constant.
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
    let with = |standard_deviation, lengthscale| NOISES.map(|noise| Setting { standard_deviation, lengthscale, noise });
    STANDARD_DEVIATIONS.iter().flat_map(|sd| LENGTHSCALES.iter().flat_map(|length| with(*sd, *length))).collect()
}

/// The scores of a kind of world.
#[derive(Clone, Debug, Serialize)]
pub struct WorldScores<S = Setting> {
    /// The kind of world.
    #[serde(flatten)]
    pub setting: S,
    /// Number of inducing points, over the worlds of this kind.
    #[serde(rename = "M")]
    pub inducing_points: Spread,
    /// How good the maps are on all test drives together.
    #[serde(flatten)]
    pub scores: Scores,
    /// Mean predictive standard deviation over the root mean squared error: 1 is well calibrated, more is too cautious.
    pub caution: f64,
    /// Caution for each world alone.
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
/// When a world cannot be made or the model rejects a batch.
pub fn run(setting: &Setting, seeds: Range<u64>, config: &Config, outliers: Outliers) -> anyhow::Result<WorldScores> {
    let worlds = seeds.map(|seed| map_one(setting, seed, config, outliers)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(scores(*setting, &worlds))
}

fn scores<S>(setting: S, worlds: &[Mapped]) -> WorldScores<S> {
    let mut all = Predictions::default();
    worlds.iter().for_each(|world| all.extend(&world.predictions));
    let targets: Vec<f64> = worlds.iter().flat_map(|world| world.targets.iter().copied()).collect();
    let scores = all.score(&targets, |_| true);
    let each: Vec<Scores> = worlds.iter().map(|world| world.predictions.score(&world.targets, |_| true)).collect();
    let hyperparameters = worlds.first().map_or(0, |world| world.hyperparameters.len());
    let hyperparameter = |i: usize| Spread::of(worlds.iter().map(|world| world.hyperparameters[i].value)).median;
    WorldScores {
        setting,
        inducing_points: Spread::of(worlds.iter().map(|world| world.inducing_points as f64)),
        caution: scores.predictive_sd / scores.rmse,
        caution_by_world: Spread::of(each.iter().map(|scores| scores.predictive_sd / scores.rmse)),
        coverage_by_world: Spread::of(each.iter().map(|scores| scores.coverage)),
        scores,
        hyperparameters: (0..hyperparameters).map(hyperparameter).collect(),
        seconds: worlds.iter().map(|world| world.seconds).sum(),
    }
}

/// A world, mapped and tested.
struct Mapped {
    inducing_points: usize,
    hyperparameters: Vec<NamedValue>,
    predictions: Predictions,
    targets: Vec<f64>,
    seconds: f64,
}

fn map_one(setting: &Setting, seed: u64, config: &Config, outliers: Outliers) -> anyhow::Result<Mapped> {
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
        anyhow::Ok(observations(SimulatedDrive::new(&world, path, robot.clone(), seed)?, config, outliers, seed))
    };
    let mapped = observe(Route::LawnMower { spacing: LANES }, MAPPING_LENGTH, seed, outliers)?;
    let tested = observe(Route::Random, TEST_LENGTH, seed + TEST_SEEDS, Outliers::default())?;

    let mut learner = Method::configured(config).learner(config, 2);
    let (mut learnt, start) = (None, Instant::now());
    for (batch, readings) in (1..).zip(&mapped) {
        learnt = Some(learner.learn(readings).map_err(|rejected| anyhow!("batch {batch}: {rejected}"))?);
    }
    let seconds = start.elapsed().as_secs_f64();
    let Learnt { inducing_points, hyperparameters, .. } = learnt.context("the drive is too short for a batch")?;
    let tested = tested.iter().flat_map(|batch| in_the_plane(&batch.places).zip(batch.targets.iter().copied()));
    let Readings { places, targets } = tested.collect();
    Ok(Mapped { inducing_points, hyperparameters, predictions: learner.predict(&places), targets, seconds })
}

/// A drive through the pipeline: its observations, batch by batch.
fn observations<W: World>(drive: SimulatedDrive<W>, config: &Config, outliers: Outliers, seed: u64) -> Vec<Readings> {
    let mut corrupt = outliers.corruption(seed);
    let batches = batches(drive.map(|sample| changed(sample.measurement, &mut corrupt)), config);
    let readings = batches.iter().map(|batch| batch.observations.iter());
    readings.map(|seen| seen.map(|seen| ([seen.position.x, seen.position.y], seen.strength)).collect()).collect()
}

/// The batches of a drive whose sensor is at the origin of the robot.
pub(crate) fn batches(drive: impl Iterator<Item = Measurement>, config: &Config) -> VecDeque<Batch> {
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    drive.for_each(|measurement| pipeline.ingest(measurement));
    pipeline.finish();
    pipeline.take_ready()
}

fn changed(mut measurement: Measurement, change: impl FnOnce(MagneticField) -> MagneticField) -> Measurement {
    if let Measurement::Reading(reading) = &mut measurement {
        reading.field = change(reading.field);
    }
    measurement
}
