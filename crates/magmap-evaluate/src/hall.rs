//! A hall of 60 m by 60 m: whether costs and errors depend on how large the map already is.
//!
//! A robot drives in lanes through a simulated hall, the right half of which varies over twice the distance of the left. Its observations are
//! averages over 10 cm of path with little noise, in batches of 5 m. After a warm-up of a tenth of the drive, costs and errors of
//! the next tenth are compared with those of the last, and the slope of the map where local models fade into each other with that elsewhere.

use super::metrics::{Predictions, Scores, quantile};
use anyhow::Context;
use magmap::config::Config;
use magmap::display::occupancy::OccupancyLayers;
use magmap::field::map::FieldMap;
use magmap::field::map::SensorBias;
use magmap::field::model::FieldModel;
use magmap::field::raster::Rasterizer;
use magmap::sensing::reading::{MagneticField, Observation, Stamp};
use magmap::store::Database;
use magmap_tools::simulation::{Character, DipoleOptions, DipoleWorld, Path, Route, World};
use nalgebra::{Matrix3, Point2, Point3, Vector3};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;
use streaming_gp::SensorPose;

/// Distance between observations along the path, in metres.
const SPACING: f64 = 0.1;
/// Observations of a batch.
const BATCH: usize = 50;
/// Updates between two rasters.
const PUBLISHED: usize = 5;
/// Standard deviation of the noise of an observation on each axis, in microtesla.
const NOISE: f64 = 0.2;
/// Speed of the robot, in metres per second.
const SPEED: f64 = 0.5;
/// Distance over which the change of the map's mean is measured, in metres.
const STEP: f64 = 0.05;
/// Distance between the lines along which it is, in metres.
const LINES: f64 = 0.75;
/// The name under which Linux reports the resident memory of a process.
const RESIDENT: &str = "VmRSS:";
/// The name under which Linux reports the largest resident memory that a process has had.
const MOST_RESIDENT: &str = "VmHWM:";

/// A hall, and a drive through it.
#[derive(Clone, Copy, Debug)]
pub struct Hall {
    /// Side of the hall, in metres.
    pub side: f64,
    /// Distance between lanes, in metres.
    pub lanes: f64,
    /// Seed of the hall and of the noise.
    pub seed: u64,
}

/// Scores of a drive through a hall. `first` is the tenth of the drive after a warm-up of a tenth, in which no tile beside the robot is
/// complete; `last` is the last tenth. Durations are in seconds, errors in microtesla.
#[derive(Clone, Debug, Serialize)]
pub struct HallScores {
    /// Length of the drive, in metres.
    pub length: f64,
    /// Updates of the model.
    pub updates: usize,
    /// Inducing points at the end.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Duration of an update, exceeded by one in a hundred.
    pub update_p99_first: f64,
    /// Duration of an update in the last tenth, exceeded by one in a hundred.
    pub update_p99_last: f64,
    /// Duration of a raster, exceeded by one in a hundred.
    pub publish_p99_first: f64,
    /// Duration of a raster in the last tenth, exceeded by one in a hundred.
    pub publish_p99_last: f64,
    /// Resident memory of the process halfway, in megabytes; none where the system does not report it.
    pub resident_mb_half: Option<f64>,
    /// Resident memory of the process at the end, in megabytes.
    pub resident_mb: Option<f64>,
    /// Largest resident memory at any moment until then, in megabytes.
    pub resident_mb_most: Option<f64>,
    /// Root mean squared error of the strength halfway between two lanes of the first tenth, right after it.
    pub rmse_first: f64,
    /// Root mean squared error of the strength halfway between two lanes of the last tenth.
    pub rmse_last: f64,
    /// `rmse_last` of a map that begins only a tenth before, as the map began a tenth before the first: the part of the error that
    /// is due to the place and not to the size of the map.
    pub rmse_last_alone: f64,
    /// Share of the true strengths of the first tenth within their 95 % interval.
    pub coverage_first: f64,
    /// Share of the true strengths of the last tenth within their 95 % interval.
    pub coverage_last: f64,
    /// The hard iron that the map of three axes has learnt right after the first tenth; the robot has none.
    pub bias_first: Option<SensorBias>,
    /// The hard iron at the end.
    pub bias_last: Option<SensorBias>,
    /// Largest change of the map's mean over 5 cm where local models fade into each other, relative to the largest elsewhere; none where
    /// there is one model.
    pub seam_ratio: Option<f64>,
    /// Duration of the drive, over that of all updates and snapshots of the map.
    pub speedup: f64,
}

/// The map at the end, and what was found.
#[derive(Clone, Debug)]
pub struct HallOutcome {
    /// The scores.
    pub scores: HallScores,
    /// The map.
    pub map: FieldMap,
    /// The rasterizer that has drawn it.
    pub rasterizer: Rasterizer,
    /// Path of the robot, in metres.
    pub path: Vec<[f64; 2]>,
}

/// Maps the hall. `progress` is called after every update with the number of updates so far, and of all.
///
/// # Errors
/// A hall that is not possible, a batch that is rejected, or a raster that is too large.
pub fn run(hall: &Hall, config: &Config, mut progress: impl FnMut(usize, usize)) -> anyhow::Result<HallOutcome> {
    let size = [hall.side; 2];
    let world =
        DipoleWorld::random(&DipoleOptions { character: Character::Hall, ..DipoleOptions::of_size(size) }, hall.seed)?;
    let route = Route::LawnMower { spacing: hall.lanes };
    // In one direction only.
    let length = 0.5 * route.length(size)?.context("lanes have an end")?;
    let path = Path::through_room(route, size, length, hall.seed)?;
    let observations = observations(&world, &path, hall.seed)?;
    let batches: Vec<&[Observation]> = observations.chunks(BATCH).collect();
    let tenth = batches.len().div_ceil(10);

    let store = Database::temporary().context("tiles are kept in a temporary file")?;
    let mut model = FieldModel::kept_in(Some(Arc::new(store)), config);
    let mut rasterizer = Rasterizer::new(&config.raster);
    let (mut updates, mut rasters, mut seconds) = (Vec::new(), Vec::new(), 0.0);
    let mut layers = None::<OccupancyLayers>;
    let (mut first, mut bias_first, mut resident_mb_half) = (None, None, None);
    for (done, batch) in (1..).zip(&batches) {
        let start = Instant::now();
        model.update(batch, &|| false)?;
        updates.push(start.elapsed().as_secs_f64());
        let map = model.map().context("there was a batch")?;
        seconds += start.elapsed().as_secs_f64();
        if done % PUBLISHED == 0 {
            let start = Instant::now();
            rasterizer.rasterize(&map, &[])?;
            if let Some(grid) = rasterizer.grid() {
                let prior = map.prior_standard_deviation();
                layers.get_or_insert_with(|| OccupancyLayers::of(grid, prior)).update(
                    grid,
                    prior,
                    rasterizer.changed(),
                );
            }
            rasters.push(start.elapsed().as_secs_f64());
        }
        if done == 2 * tenth {
            bias_first = map.sensor_bias();
            first = Some(scores(&world, &map, &observations[tenth * BATCH..done * BATCH], hall));
        }
        if done == batches.len() / 2 {
            resident_mb_half = megabytes(RESIDENT);
        }
        progress(done, batches.len());
    }
    let (resident_mb, resident_mb_most) = (megabytes(RESIDENT), megabytes(MOST_RESIDENT));
    let map = model.map().context("there was a batch")?;
    let first = first.context("expected a drive of at least two batches, 10 m")?;
    let last_tenth = &observations[(batches.len() - tenth) * BATCH..];
    let last = scores(&world, &map, last_tenth, hall);
    let mut alone = FieldModel::new(config);
    for batch in batches.iter().skip(batches.len().saturating_sub(2 * tenth)) {
        alone.update(batch, &|| false)?;
    }
    let alone = scores(&world, &alone.map().context("there was a batch")?, last_tenth, hall);
    let ends = |durations: &[f64]| {
        let tenth = durations.len().div_ceil(10);
        let [second, last] = [tenth, durations.len() - tenth].map(|start| durations.iter().skip(start).take(tenth));
        [second, last].map(|durations| quantile(durations.copied(), 0.99))
    };
    let ([update_p99_first, update_p99_last], [publish_p99_first, publish_p99_last]) = (ends(&updates), ends(&rasters));
    let scores = HallScores {
        length: path.length(),
        updates: updates.len(),
        inducing_points: map.size(),
        update_p99_first,
        update_p99_last,
        publish_p99_first,
        publish_p99_last,
        resident_mb_half,
        resident_mb,
        resident_mb_most,
        rmse_first: first.rmse,
        rmse_last: last.rmse,
        rmse_last_alone: alone.rmse,
        coverage_first: first.coverage,
        coverage_last: last.coverage,
        bias_first,
        bias_last: map.sensor_bias(),
        seam_ratio: seam_ratio(&map, config, &observations[0].position, hall),
        speedup: path.length() / SPEED / seconds,
    };
    let path = observations.iter().map(|seen| [seen.position.x, seen.position.y]).collect();
    Ok(HallOutcome { scores, map, rasterizer, path })
}

/// Largest change of the mean over a step along either axis that is within the band of a tile's edge, relative to the largest elsewhere.
fn seam_ratio(map: &FieldMap, config: &Config, origin: &Point3<f64>, hall: &Hall) -> Option<f64> {
    let [_, band] = config.tiles.widths(config);
    let size = config.tiles.size;
    let is_in_band = |along: f64, origin: f64| {
        let within = ((along - origin) / size + 0.5).rem_euclid(1.0) * size;
        within.min(size - within) < band
    };
    let coordinates =
        |step: f64| (0..).map(move |index| 1.0 + step * f64::from(index)).take_while(|x| *x < hall.side - 1.0);
    let mut largest = [0.0_f64; 2];
    for (line, axis) in coordinates(LINES).flat_map(|line| [(line, 0), (line, 1)]) {
        let place = |along: f64| if axis == 0 { [along, line] } else { [line, along] };
        let places: Vec<[f64; 2]> = coordinates(STEP).map(place).collect();
        let (mean, _) = map.predict(&places, f64::INFINITY);
        for (step, mean) in places.windows(2).zip(mean.windows(2)) {
            let middle = 0.5 * (step[0][axis] + step[1][axis]);
            let region = usize::from(is_in_band(middle, origin[axis]));
            largest[region] = largest[region].max((mean[1] - mean[0]).abs());
        }
    }
    (size > 0.0).then(|| largest[1] / largest[0])
}

/// The observations of a robot along a path.
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
            field,
            strength: field.strength(),
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

/// The memory of this process that the system reports under a name, in megabytes.
fn megabytes(name: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
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
        let HallOutcome { scores, map, .. } = run(&hall, &config, |_, _| ()).unwrap();
        // The field has a standard deviation of 10 microtesla.
        assert!(scores.rmse_last < 4.0 && scores.coverage_last > 0.85, "{scores:?}");
        assert!(scores.seam_ratio.is_some_and(|ratio| (0.1..1.3).contains(&ratio)), "{scores:?}");
        assert_eq!(scores.inducing_points, map.size());
    }

    #[test]
    fn one_in_a_hundred_exceeds_the_percentile() {
        let durations: Vec<f64> = (0..200).rev().map(f64::from).collect();
        assert_eq!((quantile(durations, 0.99), quantile([3.0], 0.99)), (197.0, 3.0));
        assert!(quantile([], 0.99).is_nan());
    }
}
