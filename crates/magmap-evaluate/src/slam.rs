//! How far the field corrects odometry: [places](World) where poses are true, with simulated [errors of odometry](OdometryErrors).
//!
//! The errors are those of `reference/slam.py`: of scale (a standard deviation of 3 % from run to run) and heading (per metre), and noise of
//! both. Paths are compared after the rotation and the shift that fit best, as `evo` does.

mod errors;
mod page;
mod worlds;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::metrics::rmse;
use anyhow::Context;
use magmap::config::{Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::slam::{
    DELAY, DRIFT, IRON, PlanePose, Prior, SCALE, Smoother, chain, local_hyperparameters, moved, plane_pose,
};
use magmap::store::Database;
use magmap_tools::locate::CHI_SQUARED_95;
use magmap_tools::path_errors::{alignment, distances, root_mean_square};
use nalgebra::{Isometry2, Matrix2, Point2, Rotation2, Vector2};
use serde::Serialize;

pub use errors::OdometryErrors;
pub use page::Page;
use worlds::Drive;
pub use worlds::World;

/// Variance of the noise of an observation on the drives, in microtesla squared: several times that of its average.
const NOISE: f64 = 16.0;

/// The path came back to a place where it is nearer than the first distance to one that it left more than the second one before, along the
/// path, in metres.
const RETURN: (f64, f64) = (0.5, 10.0);

/// Observations that a map learns at once.
const BATCH: usize = 50;

/// A path whose poses are true.
#[derive(Clone, Debug)]
pub struct TruePath {
    world: World,
    drive: Drive,
    map_error_true_path: f64,
}

impl TruePath {
    /// Through this world; the seed is that of a simulated place and of the way through it, and `length` that of the way through the large
    /// hall, in metres.
    ///
    /// # Errors
    /// When a drive is missing or damaged.
    pub fn new(world: World, data: &Path, length: f64, seed: u64) -> anyhow::Result<Self> {
        let mut path = Self { world, drive: world.drive(data, length, seed)?, map_error_true_path: 0.0 };
        let truth: Vec<PlanePose> = path.drive.observations.iter().map(plane_pose).collect();
        path.map_error_true_path = path.map_error(&path.map(&truth)?);
        Ok(path)
    }

    /// The path with these errors of odometry, smoothed, and the map that is learnt from it.
    ///
    /// # Errors
    /// Where the smoother fails, or there is no map.
    pub fn run(&self, errors: OdometryErrors, seed: u64) -> anyhow::Result<Run> {
        let Drive { observations, field, .. } = &self.drive;
        let truth: Vec<PlanePose> = observations.iter().map(plane_pose).collect();
        let odometry = errors.odometry(observations, seed);
        let by_odometry = moved(observations, &odometry);
        let prior = match field {
            Some(field) => Prior::new(*field, NOISE),
            None => {
                let config = Config::default();
                let learnt = local_hyperparameters(&config, &by_odometry, &|| false);
                Prior::learnt(&config.slam, config.vector.hard_iron, &learnt).context("no batch was learnt")?
            }
        };
        let links = chain(&by_odometry);
        drop(by_odometry);
        let start = Instant::now();
        let mut smoother = Smoother::new(prior, truth[0], links);
        smoother.run().ok().context("the smoother failed")?;
        let covariances = smoother.covariances_of_shape().ok().context("the smoother failed")?;
        let seconds = start.elapsed().as_secs_f64();
        let (poses, online, measured) = (smoother.path(), smoother.online().to_vec(), smoother.measured().to_vec());
        let shared = *smoother.shared();
        // A map of a large place takes as much memory.
        drop(smoother);

        let (fit, smoothed) = aligned(&poses, &truth);
        // Along the axes of the path, as its covariances.
        let off: Vec<Vector2<f64>> =
            smoothed.iter().zip(&truth).map(|(pose, truth)| fit.rotation.inverse() * (pose - truth).xy()).collect();
        let is_inside = |(error, covariance): &(&Vector2<f64>, &Matrix2<f64>)| {
            covariance.try_inverse().is_some_and(|inverse| error.dot(&(inverse * **error)) < CHI_SQUARED_95)
        };
        let map = self.map(&measured.iter().map(|pose| moved_by(&fit, pose)).collect::<Vec<_>>())?;
        let row = Row {
            world: self.world,
            errors,
            seed,
            odometry: error_of(&odometry, &truth),
            online: error_of(&online, &truth),
            smoothed: error_of(&poses, &truth),
            up_to_scale: error_up_to_scale(&smoothed, &truth),
            revisited: error_where_revisited(&poses, &truth),
            worst: off.iter().map(|error| error.norm()).fold(0.0, f64::max),
            in_95: off.iter().zip(&covariances).filter(is_inside).count() as f64 / truth.len() as f64,
            map_rmse: self.map_error(&map),
            map_rmse_true_path: self.map_error_true_path,
            scale: shared[SCALE],
            drift: shared[DRIFT],
            delay: shared[DELAY],
            hard_iron: shared.fixed_rows::<3>(IRON).into_owned().into(),
            seconds,
        };
        let [odometry, smoothed, truth] = [&aligned(&odometry, &truth).1, &smoothed, &truth]
            .map(|path| path.iter().map(|pose| [pose.x, pose.y]).collect());
        Ok(Run { row, map, odometry, smoothed, truth })
    }

    /// The map that is learnt with these poses.
    fn map(&self, poses: &[PlanePose]) -> anyhow::Result<FieldMap> {
        let mut config = Config::default();
        config.model.field = Mapped::Vector;
        let observations = moved(&self.drive.observations, poses);
        let store = Database::temporary().context("tiles are kept in a temporary file")?;
        let mut model = FieldModel::kept_in(Some(Arc::new(store)), &config);
        observations.chunks(BATCH).try_for_each(|batch| model.update(batch, &|| false).map(drop))?;
        model.map().context("no batch was learnt")
    }

    /// Root mean square error of a map's strength on the test drive, in microtesla.
    fn map_error(&self, map: &FieldMap) -> f64 {
        let (places, strengths) = &self.drive.test;
        let (predicted, _) = map.predict(places, f64::INFINITY);
        rmse(predicted.into_iter(), strengths)
    }
}

/// A path with errors of odometry that was corrected.
#[derive(Clone, Debug)]
pub struct Run {
    /// How well.
    pub row: Row,
    /// The map that is learnt from the smoothed path.
    pub map: FieldMap,
    /// Places by odometry, in metres, with the rotation and the shift that fit best.
    pub odometry: Vec<[f64; 2]>,
    /// Places of the smoothed path.
    pub smoothed: Vec<[f64; 2]>,
    /// True places.
    pub truth: Vec<[f64; 2]>,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The place.
    pub world: World,
    /// Errors of odometry.
    pub errors: OdometryErrors,
    /// Seed of its errors.
    pub seed: u64,
    /// Root mean square error of odometry's places, in metres.
    pub odometry: f64,
    /// Root mean square error of places as they were known online, in metres.
    pub online: f64,
    /// Root mean square error of the smoothed path, in metres.
    pub smoothed: f64,
    /// The same after an alignment with scale, in metres: the field does not tell the scale of the path.
    pub up_to_scale: f64,
    /// Error of the smoothed path where it came back to a place, seen from the pose with which it was there first: whatever the size of the
    /// path, the robot is so far from where its map has it. None where it never came back.
    pub revisited: Option<f64>,
    /// Largest error of the smoothed path, in metres.
    pub worst: f64,
    /// Share of the poses whose ellipse of 95 % holds the truth.
    pub in_95: f64,
    /// Root mean square error of the strength on a drive that was not learnt, by the map that is learnt from the smoothed path, in
    /// microtesla.
    pub map_rmse: f64,
    /// Root mean square error of the strength on that drive, by the map that is learnt from the true path, in microtesla.
    pub map_rmse_true_path: f64,
    /// Estimated relative error of the distances.
    pub scale: f64,
    /// Estimated drift of the heading, in radians per metre.
    pub drift: f64,
    /// Estimated delay of the readings, in seconds.
    pub delay: f64,
    /// Estimated hard iron, in microtesla.
    pub hard_iron: [f64; 3],
    /// Duration of smoothing with its covariances, in seconds.
    pub seconds: f64,
}

/// The rotation and the shift with which poses fit the true ones best, and the poses with them.
fn aligned(poses: &[PlanePose], truth: &[PlanePose]) -> (Isometry2<f64>, Vec<PlanePose>) {
    let fit = alignment(&pairs(poses, truth));
    (fit, poses.iter().map(|pose| moved_by(&fit, pose)).collect())
}

/// A pose in another frame.
fn moved_by(transform: &Isometry2<f64>, pose: &PlanePose) -> PlanePose {
    let place = transform * Point2::from(pose.xy());
    PlanePose::new(place.x, place.y, pose.z + transform.rotation.angle())
}

/// Places beside the true ones.
fn pairs(poses: &[PlanePose], truth: &[PlanePose]) -> Vec<(Vector2<f64>, Vector2<f64>)> {
    poses.iter().zip(truth).map(|(pose, truth)| (pose.xy(), truth.xy())).collect()
}

/// Root mean square error of the places, after alignment, in metres.
fn error_of(poses: &[PlanePose], truth: &[PlanePose]) -> f64 {
    root_mean_square(distances(&pairs(poses, truth)).into_iter())
}

/// Root mean square error of the places of an aligned path once its scale is aligned, too, in metres (`evo --correct_scale`).
fn error_up_to_scale(aligned: &[PlanePose], truth: &[PlanePose]) -> f64 {
    // The centroids of both are the same after the alignment.
    let centroid = truth.iter().sum::<PlanePose>().xy() / truth.len() as f64;
    let pairs = || aligned.iter().zip(truth).map(|(pose, truth)| (pose.xy() - centroid, truth.xy() - centroid));
    let (products, squares) = pairs().fold((0.0, 0.0), |(products, squares), (place, truth)| {
        (products + place.dot(&truth), squares + place.norm_squared())
    });
    let scale = products / squares;
    root_mean_square(pairs().map(|(place, truth)| (scale * place - truth).norm()))
}

/// Root mean square error of the places that the path came back to, seen from where it was there first, in metres.
fn error_where_revisited(poses: &[PlanePose], truth: &[PlanePose]) -> Option<f64> {
    let (near, before) = RETURN;
    let steps = truth.windows(2).map(|pair| (pair[1] - pair[0]).xy().norm());
    let along: Vec<f64> = [0.0]
        .into_iter()
        .chain(steps.scan(0.0, |sum, step| {
            *sum += step;
            Some(*sum)
        }))
        .collect();
    let seen_from =
        |path: &[PlanePose], first: usize, now: usize| Rotation2::new(-path[first].z) * (path[now] - path[first]).xy();
    let error = |now: usize| {
        let earlier = along.partition_point(|length| along[now] - length > before);
        let first = (0..earlier).find(|first| (truth[now] - truth[*first]).xy().norm() < near)?;
        Some((seen_from(poses, first, now) - seen_from(truth, first, now)).norm())
    };
    let errors: Vec<f64> = (0..truth.len()).filter_map(error).collect();
    (!errors.is_empty()).then(|| root_mean_square(errors.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_up_to_scale_is_what_is_left_after_the_best_scale() {
        let rectangle =
            |x: f64, y: f64| [[x, y], [-x, y], [-x, -y], [x, -y]].map(|[x, y]| PlanePose::new(5.0 + x, 2.0 + y, 0.0));
        let truth = rectangle(1.0, 1.0);
        assert!(error_up_to_scale(&rectangle(1.03, 1.03), &truth) < 1e-12);
        // Stretched along x: the scale is 2.1 / 2.21.
        let expected = (2.0 - 2.1_f64.powi(2) / 2.21).sqrt();
        assert!((error_up_to_scale(&rectangle(1.1, 1.0), &truth) - expected).abs() < 1e-12);
    }
}
