//! How well a robot is located in a map: on the Aalto drives and in simulated halls, with odometry whose errors are made from the truth.
//!
//! Each run draws the errors of odometry anew: of scale (3 %) and heading (0.01 radians per metre), and noise of both.

use super::metrics::Spread;
use anyhow::{Context, ensure};
use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::localization::{Localizer, Start, State};
use magmap::locate::{CHI_SQUARED_95, WRONG};
use magmap::mapping::pipeline::Pipeline;
use magmap::recording::aalto_csv::{Drive, DrivePath, Magnetometer};
use magmap::sensing::reading::{Measurement, Pose};
use magmap::simulation::{self, DipoleOptions, DipoleWorld, Drift, Odometry, RobotOptions, Route};
use nalgebra::{Isometry3, Point3};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;

/// Standard deviations of odometry's errors from run to run, and those within a run.
const ODOMETRY: Drift = Drift { scale: 0.03, turn: 0.01, heading: 0.02, slip: 0.01 };

/// Length of a drive that is started anywhere, in metres.
const GLOBAL_LENGTH: f64 = 10.0;

/// An estimate is right within this distance, in metres; over the last metre of a drive that is started anywhere.
const RIGHT: f64 = 0.5;

/// Standard deviation of the pose from which tracking starts, in metres, and of its heading, in radians.
const START_DEVIATION: [f64; 2] = [0.05, 0.03];

/// A drive whose poses are true.
#[derive(Clone, Debug)]
pub struct TrueDrive {
    /// Its name in the table.
    pub name: String,
    measurements: Vec<Measurement>,
}

/// A map to be located in, and a drive through the same place.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What the map was learnt from.
    pub map_name: String,
    map: FieldMap,
    drive: TrueDrive,
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the map was learnt from.
    pub map: String,
    /// The drive.
    pub drive: String,
    /// What the map is of.
    pub field: Mapped,
    /// Root mean square error of the place when the start is known, in metres: the median over the seeds.
    pub tracking_median: f64,
    /// The greatest over the seeds.
    pub tracking_worst: f64,
    /// The same of odometry alone, in metres: the median over the seeds.
    pub dead_reckoning: f64,
    /// Share of the starts anywhere that end within half a metre after 10 m.
    pub global_success: f64,
    /// Share of the time in which the truth is within the estimate's ellipse of 95 %, when the start is known.
    pub consistency: f64,
    /// Number of runs, of both kinds, that are sure (tracking) at some time while more than 1 m off.
    pub sure_and_wrong: usize,
    /// Share of the time in which the state is tracking, when the start is known.
    pub tracking_share: f64,
    /// Mean number of particles when the start is known.
    pub particles: f64,
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Runs {
    /// From a known start.
    pub seeds: u64,
    /// Starts anywhere.
    pub starts: u64,
}

/// The scenes on the Aalto drives: a map of drives 1, 2, 4 and 5 and drive 3, and a map of drive 3 and drive 1.
///
/// # Errors
/// When a drive is missing or damaged, or the model rejects a batch.
pub fn aalto(data: &Path, magnetometer: Magnetometer, config: &Config) -> anyhow::Result<Vec<Scene>> {
    let read = |number: u32| -> anyhow::Result<TrueDrive> {
        let drive = Drive::read(&DrivePath::new(data, magnetometer, number));
        let measurements = drive.with_context(|| format!("drive {number}"))?.measurements().collect();
        Ok(TrueDrive { name: number.to_string(), measurements })
    };
    let read_all = |numbers: &[u32]| numbers.iter().map(|number| read(*number)).collect::<anyhow::Result<Vec<_>>>();
    Ok(vec![
        Scene::learn("1,2,4,5".into(), &read_all(&[1, 2, 4, 5])?, read(3)?, config)?,
        Scene::learn("3".into(), &read_all(&[3])?, read(1)?, config)?,
    ])
}

/// A simulated hall of 12 m by 8 m, mapped in lanes; the robot then drives at random.
///
/// # Errors
/// When the model rejects a batch.
pub fn hall(seed: u64, config: &Config) -> anyhow::Result<Scene> {
    let size = [12.0, 8.0];
    let world = DipoleWorld::random(&DipoleOptions { size, under: 77, beside: 20, ..DipoleOptions::default() }, seed)?;
    let drive = |route, length, seed| -> anyhow::Result<TrueDrive> {
        let path = simulation::Path::through_room(route, size, length, seed)?;
        let drive = simulation::Drive::new(&world, path, RobotOptions::default(), seed)?;
        Ok(TrueDrive { name: "random".into(), measurements: drive.map(|sample| sample.measurement).collect() })
    };
    let mapped = drive(Route::LawnMower { spacing: 0.8 }, 160.0, seed)?;
    Scene::learn(format!("hall {seed}"), &[mapped], drive(Route::Random, 40.0, seed + 1000)?, config)
}

impl Scene {
    /// Learns the map of some drives.
    ///
    /// # Errors
    /// When the model rejects a batch, or there are no batches.
    pub fn learn(map_name: String, mapped: &[TrueDrive], drive: TrueDrive, config: &Config) -> anyhow::Result<Self> {
        let mut model = FieldModel::new(config);
        for drive in mapped {
            let mut pipeline = Pipeline::new(config, Isometry3::identity());
            let mut ready = VecDeque::new();
            drive.measurements.iter().for_each(|measurement| pipeline.ingest(*measurement, &mut ready));
            pipeline.finish(&mut ready);
            for batch in ready {
                model.update(&batch.observations, &|| false).context("learning the map")?;
            }
        }
        Ok(Self { map_name, map: model.map().context("the drives have no batch")?, drive })
    }

    /// A filter in this map.
    fn localizer(&self, config: &Config, start: Start, seed: u64) -> anyhow::Result<Localizer> {
        let mut config = config.clone();
        config.localization.seed = seed;
        Ok(Localizer::new(&config, &self.map, Isometry3::identity(), start)?)
    }

    /// Runs the drive with known and with unknown starts. `progress` is called after every run.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn run(&self, config: &Config, runs: Runs, mut progress: impl FnMut()) -> anyhow::Result<Row> {
        let mut tracked = Vec::new();
        for seed in 0..runs.seeds {
            tracked.push(self.track(config, seed)?);
            progress();
        }
        let mut global = Vec::new();
        for seed in 0..runs.starts {
            global.push(self.start_anywhere(config, seed)?);
            progress();
        }
        ensure!(!tracked.is_empty(), "expected at least one seed");
        let errors = Spread::of(tracked.iter().map(Track::error));
        let steps = || tracked.iter().flat_map(|track| &track.steps);
        let share = |holds: &dyn Fn(&TrackStep) -> bool| {
            steps().filter(|step| holds(step)).count() as f64 / steps().count() as f64
        };
        Ok(Row {
            map: self.map_name.clone(),
            drive: self.drive.name.clone(),
            field: config.model.field,
            tracking_median: errors.median,
            tracking_worst: errors.greatest,
            dead_reckoning: Spread::of(tracked.iter().map(Track::dead_reckoning)).median,
            global_success: global.iter().filter(|track| track.ends_right()).count() as f64 / global.len() as f64,
            consistency: share(&|step| step.squared_distance < CHI_SQUARED_95),
            sure_and_wrong: tracked.iter().chain(&global).filter(|track| track.is_sure_and_wrong()).count(),
            tracking_share: share(&|step| step.state == State::Tracking),
            particles: steps().map(|step| step.particles as f64).sum::<f64>() / steps().count() as f64,
        })
    }

    /// The whole drive from a known start.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn track(&self, config: &Config, seed: u64) -> anyhow::Result<Track> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let first = self.poses(0).next().context("the drive has no pose")?;
        let [deviation, heading_deviation] = START_DEVIATION;
        let start = Start::At {
            place: [first.position.x, first.position.y],
            heading: first.orientation.euler_angles().2,
            deviation,
            heading_deviation,
        };
        self.drive(&mut self.localizer(config, start, seed)?, &mut random, 0, f64::INFINITY)
    }

    /// 10 m from a random place in the first half of the drive, which the filter does not know.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn start_anywhere(&self, config: &Config, seed: u64) -> anyhow::Result<Track> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        let begin = random.random_range(0..self.drive.measurements.len() / 2);
        self.drive(&mut self.localizer(config, Start::Anywhere, seed)?, &mut random, begin, GLOBAL_LENGTH)
    }

    fn poses(&self, begin: usize) -> impl Iterator<Item = &Pose> {
        self.drive.measurements[begin..].iter().filter_map(|measurement| match measurement {
            Measurement::Pose(pose) => Some(pose),
            Measurement::Reading(_) => None,
        })
    }

    /// Drives up to `length` metres from a measurement on.
    fn drive(
        &self,
        localizer: &mut Localizer,
        random: &mut ChaCha8Rng,
        begin: usize,
        length: f64,
    ) -> anyhow::Result<Track> {
        let mut normal = || -> f64 { StandardNormal.sample(random) };
        let drift = Drift { scale: ODOMETRY.scale * normal(), turn: ODOMETRY.turn * normal(), ..ODOMETRY };
        let mut odometry = Odometry::new(Some(drift), random.random());
        let mut track = Track::default();
        let (mut truth, mut dead) = (None::<Pose>, Point3::origin());
        let mut last_place = None;
        for measurement in &self.drive.measurements[begin..] {
            let measurement = match measurement {
                Measurement::Pose(pose) => {
                    let reported = odometry.report(*pose);
                    (truth, dead) = (Some(*pose), reported.position);
                    Measurement::Pose(reported)
                }
                reading => *reading,
            };
            let (Some(located), Some(truth)) = (localizer.ingest(measurement), truth) else { continue };
            let from = last_place.replace(truth.position).unwrap_or(truth.position);
            let place = located.pose.translation.vector;
            let off = |x: f64, y: f64| (x - truth.position.x).hypot(y - truth.position.y);
            track.length += (truth.position - from).norm();
            track.steps.push(TrackStep {
                along: track.length,
                error: off(place.x, place.y),
                dead_reckoning: off(dead.x, dead.y),
                squared_distance: located.estimate.squared_distance([truth.position.x, truth.position.y]),
                state: located.state,
                particles: located.particles,
            });
            if track.length >= length {
                break;
            }
        }
        ensure!(!track.steps.is_empty(), "the drive is too short");
        Ok(track)
    }
}

/// A run, step by step.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Length so far, in metres.
    pub length: f64,
    /// Its steps.
    pub steps: Vec<TrackStep>,
}

/// A step of a run.
#[derive(Clone, Copy, Debug)]
pub struct TrackStep {
    /// Distance from the start, in metres.
    pub along: f64,
    /// How far the estimate is off, in metres.
    pub error: f64,
    /// How far odometry alone is off, in metres.
    pub dead_reckoning: f64,
    /// Of the truth from the estimate, in standard deviations squared.
    pub squared_distance: f64,
    /// How sure it is.
    pub state: State,
    /// Number of particles.
    pub particles: usize,
}

impl Track {
    fn root_mean_square(&self, value: fn(&TrackStep) -> f64) -> f64 {
        (self.steps.iter().map(|step| value(step).powi(2)).sum::<f64>() / self.steps.len() as f64).sqrt()
    }

    /// Root mean square error of the place, in metres.
    pub fn error(&self) -> f64 {
        self.root_mean_square(|step| step.error)
    }

    /// The same of odometry alone.
    pub fn dead_reckoning(&self) -> f64 {
        self.root_mean_square(|step| step.dead_reckoning)
    }

    /// Whether the last metre is right.
    pub fn ends_right(&self) -> bool {
        self.steps.iter().filter(|step| step.along > self.length - 1.0).all(|step| step.error < RIGHT)
    }

    /// Whether it is sure of a wrong place at any time.
    pub fn is_sure_and_wrong(&self) -> bool {
        self.steps.iter().any(|step| step.state == State::Tracking && step.error > WRONG)
    }
}
