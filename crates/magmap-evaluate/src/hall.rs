//! A hall of 60 m by 60 m: whether the cost of an update and of a raster depends on how large the map already is.
//!
//! A robot drives in lanes through a simulated hall, the right half of which varies over twice the distance of the left. Its observations are
//! averages over 10 cm of path with little noise, in batches of 5 m. Costs of the first and of the last quarter of the drive are compared, so
//! are errors between the lanes.

use super::metrics::{Predictions, Scores};
use anyhow::Context;
use magmap::config::{Config, Tiles};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::field::raster::Rasterizer;
use magmap::sensing::reading::{MagneticField, Observation, Observed, Stamp};
use magmap::simulation::{Character, DipoleOptions, DipoleWorld, Path, Route, World};
use nalgebra::{Matrix3, Point2, Point3, Vector3};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde::Serialize;
use std::time::Instant;
use streaming_gp::SensorPose;

/// Distance between observations along the path, in metres.
const SPACING: f64 = 0.1;
/// Observations of a batch.
const BATCH: usize = 50;
/// Updates between two rasters.
const PUBLISHED: usize = 10;
/// Standard deviation of the noise of an observation on each axis, in microtesla.
const NOISE: f64 = 0.2;
/// Speed of the robot, in metres per second.
const SPEED: f64 = 0.5;

/// Which hall, and which drive through it.
#[derive(Clone, Copy, Debug)]
pub struct Hall {
    /// Side of the hall, in metres.
    pub side: f64,
    /// Distance between lanes, in metres.
    pub lanes: f64,
    /// Seed of the hall and of the noise.
    pub seed: u64,
}

/// What was found. The first and the last are quarters of the drive; durations are in seconds, errors in microtesla.
#[derive(Clone, Debug, Serialize)]
pub struct HallScores {
    /// Updates of the model.
    pub updates: usize,
    /// Inducing points at the end.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Duration of an update, exceeded by one in a hundred.
    pub update_p99_first: f64,
    /// See `update_p99_first`.
    pub update_p99_last: f64,
    /// Duration of a raster, exceeded by one in a hundred.
    pub publish_p99_first: f64,
    /// See `publish_p99_first`.
    pub publish_p99_last: f64,
    /// Resident memory of the process at the end, in megabytes; none where the system does not report it.
    pub resident_mb: Option<f64>,
    /// Root mean squared error of the strength halfway between two lanes, after the first quarter where it led.
    pub rmse_first: f64,
    /// The same at the end, over the whole hall.
    pub rmse_last: f64,
    /// Share of the true strengths within their 95 % interval at the end.
    pub coverage_last: f64,
    /// Duration of all updates with one thread, over that with as many as configured.
    pub speedup: f64,
}

/// The map at the end, and what was found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was found.
    pub scores: HallScores,
    /// The map.
    pub map: FieldMap,
    /// The rasterizer that has drawn it.
    pub rasterizer: Rasterizer,
    /// Where the robot was, in metres.
    pub path: Vec<[f64; 2]>,
}

/// Maps the hall with one thread, then with as many as configured. `progress` is called after every update with the number of updates so
/// far, and of all.
///
/// # Errors
/// A hall that is not possible, a batch that is rejected, or a raster that is too large.
pub fn run(hall: &Hall, config: &Config, mut progress: impl FnMut(usize, usize)) -> anyhow::Result<Outcome> {
    let size = [hall.side; 2];
    let world =
        DipoleWorld::random(&DipoleOptions { character: Character::Hall, ..DipoleOptions::of_size(size) }, hall.seed)?;
    let route = Route::LawnMower { spacing: hall.lanes };
    // In one direction only.
    let length = 0.5 * route.length(size)?.context("lanes have an end")?;
    let path = Path::through_room(route, size, length, hall.seed)?;
    let observations = observations(&world, &path, hall.seed)?;
    let batches: Vec<&[Observation]> = observations.chunks(BATCH).collect();
    let quarter = batches.len().div_ceil(4);

    let mut alone = FieldModel::new(&Config { tiles: Tiles { threads: 1, ..config.tiles.clone() }, ..config.clone() });
    let mut seconds_alone = 0.0;
    for (done, batch) in (1..).zip(&batches) {
        let start = Instant::now();
        alone.update(batch, &|| false)?;
        seconds_alone += start.elapsed().as_secs_f64();
        progress(done, 2 * batches.len());
    }
    drop(alone);

    let mut model = FieldModel::new(config);
    let mut rasterizer = Rasterizer::new(&config.raster);
    let (mut updates, mut rasters) = (Vec::new(), Vec::new());
    let mut rmse_first = f64::NAN;
    for (done, batch) in (1..).zip(&batches) {
        let start = Instant::now();
        model.update(batch, &|| false)?;
        updates.push(start.elapsed().as_secs_f64());
        if done % PUBLISHED == 0 {
            let map = model.map().context("there was a batch")?;
            let start = Instant::now();
            rasterizer.rasterize(&map, &[])?;
            rasters.push(start.elapsed().as_secs_f64());
        }
        if done == quarter {
            let map = model.map().context("there was a batch")?;
            rmse_first = scores(&world, &map, &observations[..done * BATCH], hall).rmse;
        }
        progress(batches.len() + done, 2 * batches.len());
    }
    let map = model.map().context("there was a batch")?;
    let last = scores(&world, &map, &observations, hall);
    let ends = |durations: &[f64]| {
        let quarter = durations.len().div_ceil(4);
        [&durations[..quarter], &durations[durations.len() - quarter..]].map(percentile_99)
    };
    let ([update_p99_first, update_p99_last], [publish_p99_first, publish_p99_last]) = (ends(&updates), ends(&rasters));
    let scores = HallScores {
        updates: updates.len(),
        inducing_points: map.size(),
        update_p99_first,
        update_p99_last,
        publish_p99_first,
        publish_p99_last,
        resident_mb: resident_megabytes(),
        rmse_first,
        rmse_last: last.rmse,
        coverage_last: last.coverage,
        speedup: seconds_alone / updates.iter().sum::<f64>(),
    };
    let path = observations.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
    Ok(Outcome { scores, map, rasterizer, path })
}

/// What a robot sees along a path.
fn observations(world: &DipoleWorld, path: &Path, seed: u64) -> anyhow::Result<Vec<Observation>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let noise = Normal::new(0.0, NOISE)?;
    let observation = |step: usize| {
        let along = SPACING * step as f64;
        let (Point2 { coords: place }, heading) = path.at(along);
        let position = Point3::new(place.x, place.y, 0.0);
        let error = Vector3::from_fn(|_, _| noise.sample(&mut random));
        let field = MagneticField::from_microtesla(world.field_at(&position).microtesla() + error);
        Observation {
            stamp: Stamp::from_seconds(along / SPEED),
            position,
            orientation: *nalgebra::Rotation3::from_euler_angles(0.0, 0.0, heading).matrix(),
            speed: SPEED,
            observed: Observed::Field { mean: field, strength: field.strength() },
            readings: 10,
        }
    };
    Ok((0..(path.length() / SPACING) as usize).map(observation).collect())
}

/// How good the map is half a lane beside the observations, towards the lane that came before; what a robot without bias would read there.
fn scores(world: &DipoleWorld, map: &FieldMap, observations: &[Observation], hall: &Hall) -> Scores {
    let beside = |seen: &Observation| {
        let offset = Vector3::new(0.0, -0.5 * hall.lanes, 0.0);
        let place = seen.position + offset;
        (place.y > 0.5 * hall.lanes).then_some(place)
    };
    let places: Vec<Point3<f64>> = observations.iter().step_by(7).filter_map(beside).collect();
    let pose = |place: &Point3<f64>| SensorPose {
        position: place.coords.into(),
        orientation: Matrix3::identity().into(),
        speed: SPEED,
    };
    let poses: Vec<SensorPose> = places.iter().map(pose).collect();
    let truth: Vec<f64> = places.iter().map(|place| world.strength_at(place)).collect();
    Predictions::of_map(map, &poses).score(&truth, |_| true)
}

/// The smallest of these that at most one in a hundred exceeds.
fn percentile_99(durations: &[f64]) -> f64 {
    let mut sorted = durations.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (0.99 * sorted.len() as f64).ceil() as usize;
    sorted.get(index.max(1) - 1).copied().unwrap_or(f64::NAN)
}

fn resident_megabytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<f64>().ok().map(|kilobytes| kilobytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_hall_is_mapped_by_several_tiles() {
        let mut config = Config::default();
        (config.tiles.size, config.raster.resolution, config.tiles.threads) = (5.0, 0.25, 2);
        let hall = Hall { side: 12.0, lanes: 1.0, seed: 1 };
        let Outcome { scores, map, .. } = run(&hall, &config, |_, _| ()).unwrap();
        // The field has a standard deviation of 10 microtesla.
        assert!(scores.rmse_last < 4.0 && scores.coverage_last > 0.85, "{scores:?}");
        assert_eq!(scores.inducing_points, map.size());
    }

    #[test]
    fn one_in_a_hundred_exceeds_the_percentile() {
        let durations: Vec<f64> = (0..200).rev().map(f64::from).collect();
        assert_eq!((percentile_99(&durations), percentile_99(&[3.0])), (197.0, 3.0));
        assert!(percentile_99(&[]).is_nan());
    }
}
