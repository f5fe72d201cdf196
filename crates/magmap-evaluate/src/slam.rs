//! How far the field corrects odometry: drives whose poses are true, with simulated errors of odometry.
//!
//! The errors are those of `reference/slam.py`: of scale (a standard deviation of 3 % from run to run) and heading (per metre), and noise of
//! both. Paths are compared after the rotation and the shift that fit best, as `evo` does.

use std::path::Path;
use std::time::Instant;

use super::metrics::rmse;
use anyhow::{Context, ensure};
use magmap::config::{Averaging, Config, Mapped};
use magmap::mapping::averaging::Averager;
use magmap::sensing::reading::{LocatedReading, MagneticField, Observation};
use magmap::slam::{
    DRIFT, FieldPrior, IRON, Link, PlanePose, Prior, SCALE, Shared, Smoother, chain, moved, plane_pose,
};
use magmap::trajectory::fold;
use magmap_tools::locate::CHI_SQUARED_95;
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath, Magnetometer};
use nalgebra::{Matrix2, Point3, Rotation2, Vector2};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;

/// Drives that are joined to one path.
const DRIVES: [u32; 4] = [1, 2, 4, 5];

/// The drive on which maps are tested.
const TEST_DRIVE: u32 = 3;

/// The field of the drives, as it is known there (`reference/slam.py`), in microtesla squared and metres.
const FIELD: FieldPrior = FieldPrior { variance_below: 112.0, variance_above: 0.0, lengthscale: 0.94 };

/// Variance of the noise of an observation, in microtesla squared: several times that of its average.
const NOISE: f64 = 16.0;

/// Observations that a map learns at once.
const BATCH: usize = 50;

/// Length of path that is averaged into one observation, in metres.
const SPACING: f64 = 0.1;

/// Errors of odometry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OdometryErrors {
    /// Standard deviation of the relative error of distances from run to run.
    pub scale: f64,
    /// Standard deviation of the drift of the heading from run to run, in radians per metre.
    pub drift: f64,
    /// Standard deviation of the distance after a metre, in metres.
    pub forward: f64,
    /// Standard deviation of the heading after a metre, in radians.
    pub heading: f64,
    /// Standard deviation of the sideways movement in each step, in metres.
    pub sideways: f64,
}

impl OdometryErrors {
    /// A robot on wheels whose heading drifts by this, in radians per metre.
    pub fn drifting(drift: f64) -> Self {
        Self { scale: 0.03, drift, forward: 0.01, heading: 0.02, sideways: 2e-3 }
    }

    /// The chain as odometry with such errors measures it.
    fn apply(&self, links: &mut [Link], seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
        let (scale, drift) = (1.0 + self.scale * normal(), self.drift * normal());
        for link in links.iter_mut().skip(1) {
            let length = link.movement.norm();
            let noise = Vector2::new(self.forward * length.sqrt() * normal(), self.sideways * normal());
            link.movement = link.movement * scale + noise;
            link.turn += drift * length + self.heading * length.sqrt() * normal();
        }
    }
}

/// A path whose poses are true.
#[derive(Clone, Debug)]
pub struct TruePath {
    /// Name in the table.
    pub name: String,
    observations: Vec<Observation>,
    /// Places and strengths of a drive that is not learnt.
    test: (Vec<[f64; 2]>, Vec<f64>),
    map_error_true_path: f64,
}

impl TruePath {
    /// Drives 1, 2, 4 and 5 of the Aalto data as one path.
    ///
    /// # Errors
    /// When a drive is missing or damaged.
    pub fn of_drives(data: &Path, magnetometer: Magnetometer) -> anyhow::Result<Self> {
        let read = |number: u32| {
            let drive = AaltoDrive::read(&DrivePath::new(data, magnetometer, number));
            drive.with_context(|| format!("drive {number}"))
        };
        let mut observations = Vec::new();
        for number in DRIVES {
            let drive = read(number)?;
            let mut averager = Averager::new(&Averaging { spacing: SPACING });
            let readings = (0..drive.seconds.len()).map(|row| LocatedReading {
                stamp: drive.stamp(row),
                position: Point3::new(drive.positions[row][0], drive.positions[row][1], 0.0),
                orientation: drive.orientation(row),
                field: MagneticField::from_microtesla(drive.fields[row]),
            });
            observations.extend(readings.filter_map(|reading| averager.push(&reading)));
            observations.extend(averager.close());
        }
        ensure!(!observations.is_empty(), "the drives are empty");
        let test = read(TEST_DRIVE)?;
        let test = (test.positions.clone(), test.fields.iter().map(|field| field.norm()).collect());
        let mut path = Self { name: "aalto".into(), observations, test, map_error_true_path: 0.0 };
        path.map_error_true_path = path.map_error(&path.observations.iter().map(plane_pose).collect::<Vec<_>>())?;
        Ok(path)
    }

    /// The path with these errors of odometry, smoothed, and the map that is learnt from it.
    ///
    /// # Errors
    /// Where the smoother fails, or there is no map.
    pub fn run(&self, errors: OdometryErrors, seed: u64) -> anyhow::Result<Row> {
        let truth: Vec<PlanePose> = self.observations.iter().map(plane_pose).collect();
        let mut links = chain(&self.observations);
        errors.apply(&mut links, seed);
        let mut odometry = vec![truth[0]];
        for link in &links[1..] {
            odometry.push(link.follow(&odometry[odometry.len() - 1], &Shared::zeros()));
        }
        let start = Instant::now();
        let mut smoother = Smoother::new(Prior::new(FIELD, NOISE), truth[0], links);
        smoother.run().ok().context("the smoother failed")?;
        let covariances = smoother.covariances_of_shape().ok().context("the smoother failed")?;
        let seconds = start.elapsed().as_secs_f64();

        let alignment = Alignment::new(smoother.poses(), &truth);
        let off = alignment.errors(smoother.poses(), &truth);
        let is_inside = |(error, covariance): &(&Vector2<f64>, &Matrix2<f64>)| {
            covariance.try_inverse().is_some_and(|inverse| error.dot(&(inverse * **error)) < CHI_SQUARED_95)
        };
        let aligned: Vec<PlanePose> = smoother.poses().iter().map(|pose| alignment.apply(pose)).collect();
        Ok(Row {
            world: self.name.clone(),
            errors,
            seed,
            odometry: error_of(&odometry, &truth),
            online: error_of(smoother.online(), &truth),
            smoothed: error_of(smoother.poses(), &truth),
            worst: off.iter().map(|error| error.norm()).fold(0.0, f64::max),
            in_95: off.iter().zip(&covariances).filter(is_inside).count() as f64 / truth.len() as f64,
            map_rmse: self.map_error(&aligned)?,
            map_rmse_true_path: self.map_error_true_path,
            scale: smoother.shared()[SCALE],
            drift: smoother.shared()[DRIFT],
            hard_iron: smoother.shared().fixed_rows::<3>(IRON).into_owned().into(),
            seconds,
        })
    }

    /// Root mean square error of the strength on the test drive, by the map that is learnt with these poses, in microtesla.
    fn map_error(&self, poses: &[PlanePose]) -> anyhow::Result<f64> {
        let mut config = Config::default();
        config.model.field = Mapped::Vector;
        let observations = moved(&self.observations, poses);
        let map = fold(&config, observations.chunks(BATCH), &|| false).map().context("no batch was learnt")?;
        let (predicted, _) = map.predict(&self.test.0, f64::INFINITY);
        Ok(rmse(predicted.into_iter(), &self.test.1))
    }
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The place.
    pub world: String,
    /// Errors of odometry.
    pub errors: OdometryErrors,
    /// Seed of its errors.
    pub seed: u64,
    /// Root mean square error of odometry's places, in metres.
    pub odometry: f64,
    /// The same of places as they were known online.
    pub online: f64,
    /// The same of the smoothed path.
    pub smoothed: f64,
    /// Largest error of the smoothed path, in metres.
    pub worst: f64,
    /// Share of the poses whose ellipse of 95 % holds the truth.
    pub in_95: f64,
    /// Root mean square error of the strength on a drive that was not learnt, by the map that is learnt from the smoothed path, in
    /// microtesla.
    pub map_rmse: f64,
    /// The same with the true path.
    pub map_rmse_true_path: f64,
    /// Estimated relative error of the distances.
    pub scale: f64,
    /// Estimated drift of the heading, in radians per metre.
    pub drift: f64,
    /// Estimated hard iron, in microtesla.
    pub hard_iron: [f64; 3],
    /// Duration of smoothing with its covariances, in seconds.
    pub seconds: f64,
}

/// The rotation and the shift that bring a path nearest to the true one.
struct Alignment {
    from: Vector2<f64>,
    to: Vector2<f64>,
    turn: Rotation2<f64>,
}

impl Alignment {
    fn new(poses: &[PlanePose], truth: &[PlanePose]) -> Self {
        let centre =
            |poses: &[PlanePose]| poses.iter().map(|pose| pose.xy()).sum::<Vector2<f64>>() / poses.len() as f64;
        let (from, to) = (centre(poses), centre(truth));
        let pairs = poses.iter().zip(truth).map(|(pose, truth)| (pose.xy() - from, truth.xy() - to));
        let (sin, cos) = pairs.fold((0.0, 0.0), |(sin, cos), (a, b)| (sin + a.perp(&b), cos + a.dot(&b)));
        Self { from, to, turn: Rotation2::new(f64::atan2(sin, cos)) }
    }

    fn apply(&self, pose: &PlanePose) -> PlanePose {
        let place = self.turn * (pose.xy() - self.from) + self.to;
        PlanePose::new(place.x, place.y, pose.z + self.turn.angle())
    }

    /// Errors of the places along the axes of the path, in metres.
    fn errors(&self, poses: &[PlanePose], truth: &[PlanePose]) -> Vec<Vector2<f64>> {
        let pairs = poses.iter().zip(truth);
        pairs.map(|(pose, truth)| self.turn.inverse() * (self.apply(pose).xy() - truth.xy())).collect()
    }
}

/// Root mean square error of the places, after alignment, in metres.
fn error_of(poses: &[PlanePose], truth: &[PlanePose]) -> f64 {
    let errors = Alignment::new(poses, truth).errors(poses, truth);
    (errors.iter().map(|error| error.norm_squared()).sum::<f64>() / errors.len().max(1) as f64).sqrt()
}
