//! Offline localization: a recording driven through a finished map, into a folder.
//!
//! | file | holds |
//! | --- | --- |
//! | `path.png` | the map with the path that was found and, where there is one, the true one |
//! | `path.npz` | stamps, poses, covariances and states as arrays ([`path_arrays`]) |
//! | `report.json` | counts, shares of the states, and the errors ([`LocateReport`]) |

mod comparison;
mod outputs;
pub mod path_arrays;
mod report;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Instant;

use nalgebra::{Isometry2, Isometry3};

use crate::path_errors::pose_at;
use crate::recording::Lost;
use magmap::localization::{Localizer, Located};
use magmap::mapping::stop::StopSignal;
use magmap::sensing::intake::Input;
use magmap::sensing::reading::{Measurement, Pose, Stamp, in_plane};

pub use self::comparison::{CHI_SQUARED_95, Comparison, WRONG};
pub use self::outputs::write;
pub use self::report::{LocateReport, Shares};

/// Why the path of a robot that was located cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The localizer made no update; says what was received, and why it was rejected.
    #[error("nothing to locate: {0}")]
    NothingLocated(String),
    /// The output folder is not empty.
    #[error("{} is not empty; choose another folder, or --force to replace what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// The map cannot be drawn.
    #[error(transparent)]
    Field(#[from] magmap::field::Error),
    /// An output could not be written.
    #[error(transparent)]
    Export(#[from] crate::export::Error),
}

/// An update of the localizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocatedStep {
    /// Stamp of the reading that completed it.
    pub stamp: Stamp,
    /// The result of the localizer.
    pub located: Located,
    /// Pose of the body at that stamp by the localizer, in the frame of the map.
    pub pose: Isometry2<f64>,
    /// Pose of the body at that stamp by odometry alone, in the frame of odometry.
    pub odometry: Isometry2<f64>,
    /// True pose of the body at that stamp in the frame of the map, if it is known.
    pub truth: Option<Isometry2<f64>>,
    /// Squared distance of the sensor's true place from the estimate, in standard deviations: see
    /// [`Estimate::squared_distance`](magmap::localization::Estimate::squared_distance).
    pub squared_distance: Option<f64>,
}

/// A recording that was driven through a map.
#[derive(Clone, Debug)]
pub struct LocatedDrive {
    /// The updates.
    pub steps: Vec<LocatedStep>,
    /// The rest of the source, if it failed.
    pub lost: Option<Lost>,
    /// Whether it ended before the source did.
    pub interrupted: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Drives inputs through a localizer, until the end or until `stop`. `truth` has the true poses of the body in the frame of the
/// map, in the order of their stamps; `mount` is the transform from the sensor's frame to the body's. `progress` is called after every
/// input, with what was found if that completed an update. An error of the source ends it and is reported as loss.
pub fn drive<E: Display>(
    localizer: &mut Localizer,
    inputs: impl IntoIterator<Item = Result<Input, E>>,
    truth: &[Pose],
    mount: &Isometry3<f64>,
    stop: &StopSignal,
    mut progress: impl FnMut(Option<&Located>),
) -> LocatedDrive {
    let started = Instant::now();
    let mut drive = LocatedDrive { steps: Vec::new(), lost: None, interrupted: false, seconds: 0.0 };
    let mut odometry: Vec<Pose> = Vec::new();
    for input in inputs {
        drive.interrupted = stop.is_stopped();
        if drive.interrupted {
            break;
        }
        let input = match input {
            Ok(input) => input,
            Err(error) => {
                drive.lost = Some(Lost::after(&error));
                break;
            }
        };
        if let Input::Measurement(Measurement::Pose(pose)) = input
            && odometry.last().is_none_or(|last| last.stamp < pose.stamp)
        {
            odometry.push(pose);
        }
        let located = localizer.ingest(input);
        drive.steps.extend(located.and_then(|located| LocatedStep::of(located, &odometry, truth, mount)));
        progress(located.as_ref());
    }
    drive.seconds = started.elapsed().as_secs_f64();
    drive
}

impl LocatedStep {
    /// Combines a result with the poses of odometry and the true poses of the body up to the measurement that completed the update. None
    /// where odometry is unknown at its stamp.
    pub fn of(located: Located, odometry: &[Pose], truth: &[Pose], mount: &Isometry3<f64>) -> Option<Self> {
        let stamp = located.stamp;
        let odometry = in_plane(&pose_at(odometry, stamp)?);
        let truth = pose_at(truth, stamp);
        let squared_distance = truth.map(|truth| {
            let sensor = (truth * mount).translation;
            // The estimate is from a little earlier on the path.
            let since = located.map_from_odometry * odometry * located.pose.inverse();
            let earlier = since.inverse() * nalgebra::Point2::new(sensor.x, sensor.y);
            located.estimate.squared_distance(earlier.into())
        });
        let pose = located.map_from_odometry * odometry;
        Some(Self { stamp, located, pose, odometry, truth: truth.as_ref().map(in_plane), squared_distance })
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point2, UnitQuaternion, Vector2};

    use super::*;
    use magmap::localization::{Estimate, State};

    #[test]
    fn poses_are_interpolated_and_not_across_gaps() {
        let pose = |milliseconds: i64, x: f64, heading: f64| Pose {
            stamp: Stamp::from_nanoseconds(milliseconds * 1_000_000),
            position: nalgebra::Point3::new(x, 0.0, 0.0),
            orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, heading),
        };
        let poses = [pose(0, 0.0, 0.0), pose(100, 1.0, 0.4), pose(1100, 9.0, 0.4)];
        let found = |milliseconds: i64| {
            pose_at(&poses, Stamp::from_nanoseconds(milliseconds * 1_000_000)).map(|pose| {
                let pose = in_plane(&pose);
                [pose.translation.x, pose.rotation.angle()].map(|value| (1e9 * value).round() / 1e9)
            })
        };
        assert_eq!(found(25), Some([0.25, 0.1]));
        assert_eq!((found(0), found(100), found(1100)), (Some([0.0, 0.0]), Some([1.0, 0.4]), Some([9.0, 0.4])));
        assert_eq!((found(-1), found(600), found(1101)), (None, None, None));
    }

    #[test]
    fn a_step_is_compared_with_the_truth_at_its_stamp_not_in_the_middle_of_its_readings() {
        // The robot turns left along a circle of 1 m; odometry is in a frame of its own. The middle of the readings is 3 cm behind the last.
        let on_circle = |angle: f64| Isometry2::new(Vector2::new(angle.sin(), 1.0 - angle.cos()), angle);
        let map_from_odometry = Isometry2::new(Vector2::new(4.0, -3.0), 1.0);
        let pose = |milliseconds: i64, pose: Isometry2<f64>| Pose {
            stamp: Stamp::from_nanoseconds(milliseconds * 1_000_000),
            position: nalgebra::Point3::new(pose.translation.x, pose.translation.y, 0.0),
            orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, pose.rotation.angle()),
        };
        let truth = [0.0, 0.06, 0.1].map(on_circle);
        let stamps = [0, 60, 100];
        let truths: Vec<Pose> = stamps.iter().zip(truth).map(|(&stamp, truth)| pose(stamp, truth)).collect();
        let odometry = truth.map(|truth| map_from_odometry.inverse() * truth);
        let odometry: Vec<Pose> = stamps.iter().zip(odometry).map(|(&stamp, reported)| pose(stamp, reported)).collect();
        let lever = Point2::new(0.2, -0.1);
        let middle = on_circle(0.03);
        let estimate = Estimate {
            place: (middle * lever).coords.into(),
            turn: 1.0,
            covariance: [[0.01, 0.0, 0.0], [0.0, 0.01, 0.0], [0.0, 0.0, 0.01]],
            ..Estimate::default()
        };
        let (state, reason, stamp) = (State::Tracking, None, truths[1].stamp);
        let located = Located { stamp, pose: middle, map_from_odometry, estimate, state, reason, particles: 1 };
        let mount = Isometry3::translation(lever.x, lever.y, 0.0);
        let step = LocatedStep::of(located, &odometry, &truths, &mount).unwrap();
        let true_pose = step.truth.unwrap();
        assert!((true_pose.translation.vector - truth[1].translation.vector).norm() < 1e-12);
        assert!((step.pose.translation.vector - true_pose.translation.vector).norm() < 1e-12, "{:?}", step.pose);
        assert!(step.pose.rotation.angle_to(&true_pose.rotation).abs() < 1e-12);
        assert!(step.squared_distance.unwrap() < 1e-12, "{:?}", step.squared_distance);
    }
}
