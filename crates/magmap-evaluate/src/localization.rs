//! How well a robot is located in a map: on the Aalto drives and in simulated halls, with odometry whose errors are made from the truth.
//!
//! Each run draws the errors of odometry anew: of scale (3 %) and heading (0.01 radians per metre), and noise of both. As in
//! [`magmap_tools::locate`], the pose at the stamp of the reading that completes an update is compared with the truth at that stamp.

use super::metrics::{Spread, quantile};
use super::worlds::batches;
use anyhow::{Context, ensure};
use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::localization::{Localizer, Start, State};
use magmap::sensing::reading::{Measurement, Pose, Reading, Stamp};
use magmap_tools::locate::{CHI_SQUARED_95, LocatedStep, WRONG};
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath, Magnetometer};
use magmap_tools::simulation::{self, DipoleOptions, DipoleWorld, Drift, Odometry, RobotOptions, Route};
use nalgebra::Isometry3;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde::Serialize;
use std::f64::consts::PI;
use std::path::Path;

/// Standard deviations of odometry's errors from run to run, and those within a run.
const ODOMETRY: Drift = Drift { scale: 0.03, turn: 0.01, heading: 0.02, slip: 0.01 };

/// Length of a drive that is started anywhere, in metres.
const GLOBAL_LENGTH: f64 = 10.0;

/// An estimate is right within this distance, in metres; over the last metre of a drive that is started anywhere.
const RIGHT: f64 = 0.5;

/// How far a robot is moved unseen, in metres.
const KIDNAPPED: f64 = 3.0;

/// How far it is driven afterwards, in metres.
const KIDNAPPED_LENGTH: f64 = 25.0;

/// In the map of another place a robot is to be lost within this distance, in metres.
const LOST_WITHIN: f64 = 5.0;

/// Side of the tiles of a map of corridors, in metres.
const TILES: f64 = 4.0;

/// Standard deviation of the pose from which tracking starts, in metres, and of its heading, in radians.
const START_DEVIATION: [f64; 2] = [0.05, 0.03];

/// A drive whose poses are true.
#[derive(Clone, Debug)]
pub struct TrueDrive {
    /// Name in the table.
    pub name: String,
    measurements: Vec<Measurement>,
}

/// A map to be located in, and a drive through the same place.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Name of the drives that the map was learnt from.
    pub map_name: String,
    /// Name of the place, the same for all maps of it.
    pub place: String,
    map: FieldMap,
    /// In this map, before any start.
    localizer: Localizer,
    drive: TrueDrive,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the drives that the map was learnt from.
    pub map: String,
    /// The drive.
    pub drive: String,
    /// The mapped field.
    pub field: Mapped,
    /// Root mean square error of the place when the start is known, in metres: the median over the seeds.
    pub tracking_median: f64,
    /// The greatest over the seeds.
    pub tracking_worst: f64,
    /// Root mean square error of odometry alone, in metres: the median over the seeds.
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
    /// Robots that are moved 3 m unseen.
    pub kidnapped: Option<Kidnapped>,
    /// Results of the same drive in the map of another place.
    pub elsewhere: Option<Elsewhere>,
}

/// Results for robots that were moved unseen, driven on for 25 m.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kidnapped {
    /// Distance until the state is no longer tracking, in metres: the median over the runs; infinite where it is never noticed.
    pub noticed_median: f64,
    /// The distance within which 90 % of the runs notice.
    pub noticed_90: f64,
    /// Distance until the place is within half a metre of the truth again, and stays so for a metre: the median over the runs.
    pub found_median: f64,
    /// The distance within which 90 % of the runs are found again.
    pub found_90: f64,
    /// Distance until the state is tracking there, in metres: the median over the runs.
    pub sure_median: f64,
}

/// Results for robots in the map of another place: half of them were told that they are somewhere in it, half were told nothing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Elsewhere {
    /// Number of runs.
    pub runs: usize,
    /// Number of runs that are lost within 5 m.
    pub lost: usize,
    /// The greatest distance until a run is lost, in metres; infinite where one never is.
    pub lost_after: f64,
    /// Number of runs that are sure (tracking) at some time.
    pub sure: usize,
}

/// How many runs there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Runs {
    /// Runs from a known start.
    pub seeds: u64,
    /// Starts anywhere; as many in the map of another place.
    pub starts: u64,
    /// Robots that are moved unseen.
    pub kidnapped: u64,
}

/// The scenes on the Aalto drives: a map of drives 1, 2, 4 and 5 and drive 3, and a map of drive 3 and drive 1.
///
/// # Errors
/// When a drive is missing or damaged, or the model rejects a batch.
pub fn aalto(data: &Path, magnetometer: Magnetometer, config: &Config) -> anyhow::Result<Vec<Scene>> {
    let read = |number: u32| -> anyhow::Result<TrueDrive> {
        let drive = AaltoDrive::read(&DrivePath::new(data, magnetometer, number));
        let measurements = drive.with_context(|| format!("drive {number}"))?.measurements().collect();
        Ok(TrueDrive { name: number.to_string(), measurements })
    };
    let read_all = |numbers: &[u32]| numbers.iter().map(|number| read(*number)).collect::<anyhow::Result<Vec<_>>>();
    Ok(vec![
        Scene::learn("1,2,4,5".into(), "Aalto", &read_all(&[1, 2, 4, 5])?, read(3)?, config)?,
        Scene::learn("3".into(), "Aalto", &read_all(&[3])?, read(1)?, config)?,
    ])
}

/// A simulated hall of 12 m by 8 m, mapped in lanes; the robot then drives at random.
///
/// # Errors
/// When the model rejects a batch.
pub fn hall(seed: u64, config: &Config) -> anyhow::Result<Scene> {
    let size = [12.0, 8.0];
    let world = DipoleWorld::random(&DipoleOptions { size, under: 77, beside: 20, ..DipoleOptions::default() }, seed)?;
    let mapped = drive(&world, Route::LawnMower { spacing: 0.8 }, size, 160.0, seed)?;
    let driven = drive(&world, Route::Random, size, 40.0, seed + 1000)?;
    let name = format!("hall {seed}");
    Scene::learn(name.clone(), &name, &[mapped], driven, config)
}

/// A corridor with rooms on either side, 60 m by 9 m, which the robot maps driving through all of them; on its second drive of 400 m it
/// keeps nearer to the walls.
///
/// # Errors
/// When the model rejects a batch.
pub fn corridor(seed: u64, config: &Config) -> anyhow::Result<Scene> {
    let size = [60.0, 9.0];
    let world = DipoleWorld::random(&DipoleOptions { size, under: 430, beside: 90, ..DipoleOptions::default() }, seed)?;
    let rooms = Route::Rooms { width: 5.0 };
    let once = rooms.length(size)?.context("the route through the rooms has no end")?;
    let mapped = drive(&world, rooms, size, once, seed)?;
    let driven = drive(&world, Route::Rooms { width: 5.0 }, [59.7, 8.8], 400.0, seed + 1000)?;
    let mut config = config.clone();
    config.tiles.size = TILES;
    let name = format!("rooms {seed}");
    Scene::learn(name.clone(), &name, &[mapped], driven, &config)
}

fn drive(world: &DipoleWorld, route: Route, size: [f64; 2], length: f64, seed: u64) -> anyhow::Result<TrueDrive> {
    let path = simulation::Path::through_room(route, size, length, seed)?;
    let drive = simulation::SimulatedDrive::new(world, path, RobotOptions::default(), seed)?;
    Ok(TrueDrive { name: "simulated".into(), measurements: drive.map(|sample| sample.measurement).collect() })
}

impl Scene {
    /// Learns the map of some drives.
    ///
    /// # Errors
    /// When the model rejects a batch, or there are no batches, and for maps in which nobody can be located.
    pub fn learn(
        map_name: String,
        place: &str,
        mapped: &[TrueDrive],
        drive: TrueDrive,
        config: &Config,
    ) -> anyhow::Result<Self> {
        let mut model = FieldModel::new(config);
        for drive in mapped {
            for batch in batches(drive.measurements.iter().copied(), config) {
                model.update(&batch.observations, &|| false).context("learning the map")?;
            }
        }
        let map = model.map().context("the drives have no batch")?;
        let localizer = Localizer::new(config, &map, Isometry3::identity(), Start::Anywhere)?;
        Ok(Self { map_name, place: place.to_owned(), map, localizer, drive })
    }

    /// The robot of this drive, put into the map of another place.
    fn in_map_of(&self, another: &Self) -> Self {
        Self { drive: self.drive.clone(), ..another.clone() }
    }

    /// A filter in this map.
    fn localizer(&self, start: Start, seed: u64) -> anyhow::Result<Localizer> {
        let mut localizer = self.localizer.clone().with_seed(seed);
        localizer.restart(start)?;
        Ok(localizer)
    }

    /// Runs the drive with known and with unknown starts, and in the map of `another` place. `progress` is called after every run.
    ///
    /// # Errors
    /// Drives that are too short.
    pub fn run(&self, another: Option<&Self>, runs: Runs, progress: impl Fn() + Sync) -> anyhow::Result<Row> {
        let tracked = in_parallel(runs.seeds, &progress, |seed| self.track(seed))?;
        let global = in_parallel(runs.starts, &progress, |seed| self.start_anywhere(seed))?;
        let kidnapped = in_parallel(runs.kidnapped, &progress, |seed| self.kidnap(seed))?;
        let misled = another.map(|another| self.in_map_of(another));
        let elsewhere = misled.map_or(Ok(Vec::new()), |misled| {
            in_parallel(runs.starts, &progress, |seed| misled.start_in_the_wrong_map(seed))
        })?;
        ensure!(!tracked.is_empty(), "expected at least one seed");
        let errors = Spread::of(tracked.iter().map(Track::error));
        let steps = || tracked.iter().flat_map(|track| &track.steps);
        let share = |holds: &dyn Fn(&TrackStep) -> bool| {
            steps().filter(|step| holds(step)).count() as f64 / steps().count() as f64
        };
        Ok(Row {
            map: self.map_name.clone(),
            drive: self.drive.name.clone(),
            field: if self.map.axes(&[]).is_some() { Mapped::Vector } else { Mapped::Strength },
            tracking_median: errors.median,
            tracking_worst: errors.greatest,
            dead_reckoning: Spread::of(tracked.iter().map(Track::dead_reckoning)).median,
            global_success: global.iter().filter(|track| track.ends_right()).count() as f64 / global.len() as f64,
            consistency: share(&|step| step.squared_distance < CHI_SQUARED_95),
            sure_and_wrong: tracked.iter().chain(&global).filter(|track| track.is_sure_and_wrong()).count(),
            tracking_share: share(&|step| step.state == State::Tracking),
            particles: steps().map(|step| step.particles as f64).sum::<f64>() / steps().count() as f64,
            kidnapped: (!kidnapped.is_empty()).then(|| Kidnapped::of(&kidnapped)),
            elsewhere: (!elsewhere.is_empty()).then(|| Elsewhere::of(&elsewhere)),
        })
    }

    /// The whole drive from a known start.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn track(&self, seed: u64) -> anyhow::Result<Track> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let start = self.known_start()?;
        self.drive(&mut self.localizer(start, seed)?, &mut random, &self.drive.measurements, f64::INFINITY)
    }

    /// 10 m from a random place in the first half of the drive, which the filter does not know.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn start_anywhere(&self, seed: u64) -> anyhow::Result<Track> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        let from_here = self.somewhere_on(&mut random);
        self.drive(&mut self.localizer(Start::Anywhere, seed)?, &mut random, from_here, GLOBAL_LENGTH)
    }

    /// 10 m of a drive that is not in the map: for every other seed with a start that is said to be somewhere in it.
    fn start_in_the_wrong_map(&self, seed: u64) -> anyhow::Result<Track> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(2);
        let from_here = self.somewhere_on(&mut random);
        let places = self.map.inducing_points();
        let place = places[random.random_range(0..places.len())];
        let somewhere = Start::given(place, random.random_range(-PI..PI));
        let start = if seed.is_multiple_of(2) { Start::Anywhere } else { somewhere };
        self.drive(&mut self.localizer(start, seed)?, &mut random, from_here, GLOBAL_LENGTH)
    }

    /// The drive up to a place in its second quarter, then from 3 m away for 25 m: neither odometry nor the stamps show it.
    fn kidnap(&self, seed: u64) -> anyhow::Result<Kidnapping> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(3);
        let (measurements, count) = (&self.drive.measurements, self.drive.measurements.len());
        let taken = random.random_range(count / 4..count / 2);
        let poses = measurements.iter().enumerate().skip(taken);
        let mut poses = poses.filter_map(|(index, measurement)| Some((index, measurement.pose()?)));
        let (taken, from) = poses.next().context("no pose after the first half")?;
        let is_away = |(_, pose): &(usize, Pose)| (pose.position - from.position).norm() >= KIDNAPPED;
        let (put, to) = poses.find(is_away).context("the drive stays within 3 m")?;

        let mut localizer = self.localizer(self.known_start()?, seed)?;
        let mut odometry = odometry(&mut random);
        let before = self.track_along(&mut localizer, &mut odometry, &measurements[..taken], None, f64::INFINITY)?;
        let unseen =
            Unseen { seconds: to.stamp.seconds_since(from.stamp), moved: from.isometry() * to.isometry().inverse() };
        let after =
            self.track_along(&mut localizer, &mut odometry, &measurements[put..], Some(unseen), KIDNAPPED_LENGTH)?;
        Ok(Kidnapping { was_tracking: before.steps.last().is_some_and(|step| step.state == State::Tracking), after })
    }

    fn known_start(&self) -> anyhow::Result<Start> {
        let first = self.drive.measurements.iter().find_map(Measurement::pose).context("the drive has no pose")?;
        let [deviation, heading_deviation] = START_DEVIATION;
        Ok(Start::At {
            place: [first.position.x, first.position.y],
            heading: first.orientation.euler_angles().2,
            deviation,
            heading_deviation,
        })
    }

    /// The drive from a random place in its first half on.
    fn somewhere_on(&self, random: &mut ChaCha8Rng) -> &[Measurement] {
        &self.drive.measurements[random.random_range(0..self.drive.measurements.len() / 2)..]
    }

    /// Drives up to `length` metres with odometry whose errors are random.
    fn drive(
        &self,
        localizer: &mut Localizer,
        random: &mut ChaCha8Rng,
        measurements: &[Measurement],
        length: f64,
    ) -> anyhow::Result<Track> {
        self.track_along(localizer, &mut odometry(random), measurements, None, length)
    }

    /// Drives up to `length` metres, after something that nobody has seen.
    fn track_along(
        &self,
        localizer: &mut Localizer,
        odometry: &mut Odometry,
        measurements: &[Measurement],
        unseen: Option<Unseen>,
        length: f64,
    ) -> anyhow::Result<Track> {
        let mut track = Track::default();
        let (mut truth, mut reported): (Vec<Pose>, Vec<Pose>) = (Vec::new(), Vec::new());
        let mut last_place = None;
        for measurement in measurements {
            let earlier = |stamp: Stamp| unseen.map_or(stamp, |unseen| stamp.shifted(-unseen.seconds));
            let measurement = match *measurement {
                Measurement::Pose(pose) => {
                    let pose = Pose { stamp: earlier(pose.stamp), ..pose };
                    truth.push(pose);
                    reported.push(odometry.report(unseen.map_or(pose, |unseen| unseen.of(pose))));
                    Measurement::Pose(reported[reported.len() - 1])
                }
                Measurement::Reading(reading) => {
                    Measurement::Reading(Reading { stamp: earlier(reading.stamp), ..reading })
                }
            };
            let located = localizer.ingest(measurement);
            let step = located.and_then(|located| LocatedStep::of(located, &reported, &truth, &Isometry3::identity()));
            let Some((step, truth)) = step.and_then(|step| Some((step, step.truth?))) else { continue };
            let place = truth.translation.vector;
            track.length += (place - last_place.replace(place).unwrap_or(place)).norm();
            track.steps.push(TrackStep {
                along: track.length,
                error: (step.pose.translation.vector - place).norm(),
                dead_reckoning: (step.odometry.translation.vector - place).norm(),
                squared_distance: step.squared_distance.unwrap_or(f64::INFINITY),
                state: step.located.state,
                particles: step.located.particles,
            });
            if track.length >= length {
                break;
            }
        }
        ensure!(!track.steps.is_empty(), "the drive is too short");
        Ok(track)
    }
}

/// The results of `run` for the seeds below a number, on all cores.
fn in_parallel<T: Send>(
    seeds: u64,
    progress: &(impl Fn() + Sync),
    run: impl Fn(u64) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let run = |seed| run(seed).inspect(|_| progress());
    (0..seeds).into_par_iter().map(run).collect()
}

/// Odometry with errors of its own for each run.
fn odometry(random: &mut ChaCha8Rng) -> Odometry {
    let mut normal = || -> f64 { StandardNormal.sample(random) };
    let drift = Drift { scale: ODOMETRY.scale * normal(), turn: ODOMETRY.turn * normal(), ..ODOMETRY };
    Odometry::new(Some(drift), random.random())
}

/// A movement of the robot while nobody saw it.
#[derive(Clone, Copy)]
struct Unseen {
    /// How long it took, in seconds.
    seconds: f64,
    /// Transform from true poses to poses that continue where the robot was.
    moved: Isometry3<f64>,
}

impl Unseen {
    /// The pose as it seems.
    fn of(&self, pose: Pose) -> Pose {
        let Isometry3 { translation, rotation: orientation } = self.moved * pose.isometry();
        Pose { stamp: pose.stamp, position: translation.vector.into(), orientation }
    }
}

/// A robot that was moved unseen.
struct Kidnapping {
    /// Whether it knew where it was.
    was_tracking: bool,
    /// The run afterwards.
    after: Track,
}

impl Kidnapped {
    fn of(runs: &[Kidnapping]) -> Self {
        // Who did not know before where he was cannot notice.
        let runs = || runs.iter().filter(|run| run.was_tracking).map(|run| &run.after);
        let noticed = |track: &Track| track.first(|step| step.state != State::Tracking);
        let found = |track: &Track| track.found_again();
        let sure = |track: &Track| {
            let found = found(track)?;
            track.first(|step| step.along >= found && step.state == State::Tracking && step.error < RIGHT)
        };
        let [noticed_median, noticed_90] = [0.5, 0.9].map(|share| distance_of(runs().map(noticed), share));
        let [found_median, found_90] = [0.5, 0.9].map(|share| distance_of(runs().map(found), share));
        let sure_median = distance_of(runs().map(sure), 0.5);
        Self { noticed_median, noticed_90, found_median, found_90, sure_median }
    }
}

/// The distance within which a share of all get somewhere; infinite for those that never do.
fn distance_of(runs: impl Iterator<Item = Option<f64>>, share: f64) -> f64 {
    quantile(runs.map(|distance| distance.unwrap_or(f64::INFINITY)), share)
}

impl Elsewhere {
    fn of(runs: &[Track]) -> Self {
        let lost = || runs.iter().map(|track| track.first(|step| step.state == State::Lost));
        Self {
            runs: runs.len(),
            lost: lost().flatten().filter(|&along| along <= LOST_WITHIN).count(),
            lost_after: distance_of(lost(), 1.0),
            sure: runs.iter().filter(|track| track.steps.iter().any(|step| step.state == State::Tracking)).count(),
        }
    }
}

/// A run, step by step.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Length so far, in metres.
    pub length: f64,
    /// The steps.
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
    /// Squared distance of the truth from the estimate, in standard deviations.
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

    /// Root mean square error of the place by odometry alone, in metres.
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

    /// Distance after which the place is right for a metre, since it was wrong, in metres.
    fn found_again(&self) -> Option<f64> {
        let wrong = self.first(|step| step.error > WRONG).unwrap_or(0.0);
        let is_right_for_a_metre = |from: &TrackStep| {
            let until = from.along + 1.0;
            let next = self.steps.iter().filter(|step| (from.along..until).contains(&step.along));
            until <= self.length && next.into_iter().all(|step| step.error < RIGHT)
        };
        self.steps.iter().find(|step| step.along >= wrong && is_right_for_a_metre(step)).map(|step| step.along)
    }

    /// Distance after which something holds for the first time, in metres.
    pub fn first(&self, holds: impl Fn(&TrackStep) -> bool) -> Option<f64> {
        self.steps.iter().find(|step| holds(step)).map(|step| step.along)
    }
}
