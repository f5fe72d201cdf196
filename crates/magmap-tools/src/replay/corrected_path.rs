//! The path of a recording, corrected by the field or given by somebody else.

use std::io::Write;
use std::path::Path;

use nalgebra::{Isometry2, UnitQuaternion, Vector2, Vector3};
use serde::Serialize;

use super::Error;
use crate::export::NamedPath;
use crate::export::file::write_atomically;
use crate::path_errors::{alignment, distances, planar_at, root_mean_square};
use magmap::sensing::reading::{Observation, Pose, in_plane};
use magmap::slam::{Estimate, Revisit};
use magmap::trajectory::{self, Correction, OdometryPath, Timeline};

/// The poses of odometry, and where they were in the map.
pub(super) struct CorrectedPath {
    odometry: Vec<Pose>,
    corrected: Vec<Isometry2<f64>>,
    /// Poses as they were known when the robot was there, where the field corrected them.
    online: Option<Vec<Isometry2<f64>>>,
    truth: Vec<Option<Isometry2<f64>>>,
}

/// How the path of a recording was corrected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathReport {
    /// Root mean square distance by which the places of odometry were moved, in metres.
    pub moved: f64,
    /// Largest distance by which one was moved, in metres.
    pub moved_most: f64,
    /// Errors of odometry and sensor by the field, where it corrected the path.
    pub slam: Option<SlamReport>,
    /// Errors against the true path, where the recording has one.
    pub truth: Option<PathErrors>,
}

/// Errors of odometry and sensor by the field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlamReport {
    /// How much longer the movements along the corrected path are than by odometry, by least squares. The field cannot tell it, so it is held
    /// near one: `slam.odometry_scale` says how wrong odometry may be.
    pub length_ratio: f64,
    /// Drift of the heading of odometry, in radians per metre: positive where it turns too little to the left.
    pub drift: f64,
    /// Time by which the stamps of readings are late, in seconds: they are mapped where they were measured. For maps of later drives it belongs
    /// in `sensor.delay`.
    pub delay: f64,
    /// Standard deviation of that, in seconds.
    pub delay_deviation: f64,
    /// Hard iron of the sensor, in microtesla.
    pub hard_iron: [f64; 3],
    /// Root mean square of the expected errors of the places, after the rotation and the shift that fit the truth best, in metres.
    pub expected_error: f64,
    /// Where the path came back to places where it was before, in pieces of a few metres.
    pub revisits: Vec<Revisit>,
}

/// Root mean square errors of places after the rotation and the shift that fit best, in metres.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathErrors {
    /// Number of poses that were compared.
    pub poses: usize,
    /// Of odometry.
    pub odometry: f64,
    /// Of the path as it was known when the robot was there, where the field corrected it.
    pub online: Option<f64>,
    /// Of the path as it is known at the end.
    pub corrected: f64,
    /// Largest error at the end.
    pub corrected_most: f64,
}

impl SlamReport {
    pub(super) fn of(estimate: &Estimate) -> Self {
        let [delay, delay_deviation] = estimate.delay;
        let deviations = estimate.covariances.iter().map(|covariance| covariance.trace().max(0.0).sqrt());
        Self {
            length_ratio: estimate.length_ratio,
            drift: estimate.drift,
            delay,
            delay_deviation,
            hard_iron: estimate.hard_iron,
            expected_error: root_mean_square(deviations),
            revisits: estimate.revisits.clone(),
        }
    }
}

/// The correction that moves odometry to these poses of the body at their stamps; none where a clock went back, or no pose is within
/// the recording.
pub(super) fn correction_to(poses: &[Pose], odometry: &[Pose], observations: &[Observation]) -> Option<Correction> {
    let (timeline, odometry) = (timeline(odometry, observations)?, OdometryPath::new(odometry));
    Some(trajectory::correction_to(poses, &odometry, &timeline, &Correction::default())?.0)
}

/// None where a clock went back: stamps do not tell the order then.
fn timeline(odometry: &[Pose], observations: &[Observation]) -> Option<Timeline> {
    let timeline = Timeline::new(observations);
    let ascends = timeline.before == 0 && odometry.is_sorted_by_key(|pose| pose.stamp);
    ascends.then_some(timeline)
}

impl CorrectedPath {
    /// The poses of odometry moved as these observations are. None where a clock went back.
    pub(super) fn new(
        odometry: Vec<Pose>,
        observations: &[Observation],
        correction: &Correction,
        online: Option<&Correction>,
        truth: &[Pose],
    ) -> Option<Self> {
        let timeline = timeline(&odometry, observations)?;
        let moved = |correction: &Correction| -> Vec<Isometry2<f64>> {
            let pose = |pose: &Pose| correction.pose(timeline.index_at(pose.stamp), &in_plane(&pose.isometry()));
            odometry.iter().map(pose).collect()
        };
        let (corrected, online) = (moved(correction), online.map(moved));
        let truth = planar_at(truth, odometry.iter().map(|pose| pose.stamp));
        Some(Self { odometry, corrected, online, truth })
    }

    /// Places in the map, in metres.
    pub(super) fn places(&self) -> Vec<[f64; 2]> {
        self.corrected.iter().map(place).collect()
    }

    /// Odometry, the true path as it fits best, and the corrected path.
    pub(super) fn named(&self) -> Vec<NamedPath> {
        let odometry = self.odometry.iter().map(|pose| [pose.position.x, pose.position.y]).collect();
        let fit = alignment(&self.pairs(&self.corrected)).inverse();
        let truth = || self.truth.iter().map(|truth| truth.map_or([f64::NAN; 2], |truth| place(&(fit * truth))));
        let is_known = self.truth.iter().any(Option::is_some);
        [
            Some(NamedPath { name: "odometry".into(), colour: NamedPath::UNSURE, places: odometry }),
            is_known.then(|| NamedPath { name: "truth".into(), colour: NamedPath::TRUTH, places: truth().collect() }),
            Some(NamedPath { name: "corrected".into(), colour: NamedPath::FOUND, places: self.places() }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// How it was corrected.
    pub(super) fn report(&self, slam: Option<SlamReport>) -> PathReport {
        let moves: Vec<f64> = self
            .odometry
            .iter()
            .zip(&self.corrected)
            .map(|(odometry, corrected)| (odometry.position.coords.xy() - corrected.translation.vector).norm())
            .collect();
        let odometry: Vec<Isometry2<f64>> = self.odometry.iter().map(|pose| in_plane(&pose.isometry())).collect();
        let errors = |path: &[Isometry2<f64>]| distances(&self.pairs(path));
        let rms = |path: &[Isometry2<f64>]| root_mean_square(errors(path).into_iter());
        let most = |distances: &[f64]| distances.iter().copied().fold(0.0, f64::max);
        let known = self.truth.iter().flatten().count();
        PathReport {
            moved: root_mean_square(moves.iter().copied()),
            moved_most: most(&moves),
            slam,
            truth: (known > 0).then(|| PathErrors {
                poses: known,
                odometry: rms(&odometry),
                online: self.online.as_deref().map(rms),
                corrected: rms(&self.corrected),
                corrected_most: most(&errors(&self.corrected)),
            }),
        }
    }

    /// Writes the corrected poses of the robot's body as `evo` reads them: a line of stamp, position and quaternion (x, y, z, w) each, in
    /// seconds and metres. Heights, rolls and pitches are those of odometry.
    pub(super) fn write_tum(&self, path: &Path) -> Result<(), Error> {
        let written = write_atomically(path, |file| {
            writeln!(file, "# timestamp tx ty tz qx qy qz qw")?;
            for (odometry, corrected) in self.odometry.iter().zip(&self.corrected) {
                let turn = corrected.rotation.angle() - in_plane(&odometry.isometry()).rotation.angle();
                let turned = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), turn) * odometry.orientation;
                let (seconds, nanoseconds) = odometry.stamp.to_ros();
                let (place, height) = (corrected.translation.vector, odometry.position.z);
                let [x, y, z, w]: [f64; 4] = turned.coords.into();
                writeln!(
                    file,
                    "{seconds}.{nanoseconds:09} {:.6} {:.6} {height:.6} {x:.9} {y:.9} {z:.9} {w:.9}",
                    place.x, place.y
                )?;
            }
            Ok(())
        });
        Ok(written?)
    }

    /// A path beside the truth, where that is known.
    fn pairs(&self, path: &[Isometry2<f64>]) -> Vec<(Vector2<f64>, Vector2<f64>)> {
        let pair = |(pose, truth): (&Isometry2<f64>, &Option<Isometry2<f64>>)| {
            Some((pose.translation.vector, truth.as_ref()?.translation.vector))
        };
        path.iter().zip(&self.truth).filter_map(pair).collect()
    }
}

fn place(pose: &Isometry2<f64>) -> [f64; 2] {
    pose.translation.vector.into()
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3};

    use super::*;
    use magmap::sensing::reading::{MagneticField, Stamp};
    use magmap::trajectory::Node;

    fn stamp(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(milliseconds * 1_000_000)
    }

    fn observation(milliseconds: i64) -> Observation {
        Observation {
            stamp: stamp(milliseconds),
            position: Point3::origin(),
            orientation: Matrix3::identity(),
            speed: 0.5,
            field: MagneticField::from_microtesla(Vector3::new(20.0, 0.0, -40.0)),
            strength: 45.0,
            readings: 3,
        }
    }

    /// Odometry along x at 1 m/s and 0.3 m high; the truth is turned by 0.5 from there on, and the correction half of that.
    fn corrected() -> CorrectedPath {
        let poses = |turn: f64| -> Vec<Pose> {
            let pose = |second: i64| Pose {
                stamp: stamp(1000 * second),
                position: UnitQuaternion::from_euler_angles(0.0, 0.0, turn) * Point3::new(second as f64, 0.0, 0.3),
                orientation: UnitQuaternion::from_euler_angles(0.1, 0.0, turn),
            };
            (0..5).map(pose).collect()
        };
        let node = |observation: f64, turn: f64| Node::new(observation, &Isometry2::new(Vector2::zeros(), turn));
        let correction = |turn: f64| Correction::new(vec![node(0.0, 0.0), node(2.0, 0.0), node(3.0, turn)]).unwrap();
        let mut truth = poses(0.0);
        truth[3..].copy_from_slice(&poses(0.5)[3..]);
        let observations: Vec<Observation> = (0..5).map(|second| observation(1000 * second)).collect();
        CorrectedPath::new(poses(0.0), &observations, &correction(0.25), Some(&correction(0.0)), &truth).unwrap()
    }

    #[test]
    fn poses_are_moved_as_the_observations_at_their_stamps() {
        let path = corrected();
        // Observations are half a second before their stamps: the pose at 3 s is after the third of them and at the last node.
        let places = path.places();
        let expected = [0.0, 0.0, 0.125, 0.25, 0.25];
        for (second, (place, turn)) in places.iter().zip(expected).enumerate() {
            let radius = second as f64;
            // Halfway between two nodes a place is on the chord.
            let chord = if turn == 0.125 { radius * 0.125_f64.cos() } else { radius };
            assert!((place[0] - chord * f64::cos(turn)).hypot(place[1] - chord * f64::sin(turn)) < 1e-9, "{places:?}");
        }
        let report = path.report(None);
        assert!((report.moved_most - 2.0 * 4.0 * 0.125_f64.sin()).abs() < 1e-9, "{report:?}");
        let truth = report.truth.unwrap();
        assert!(
            truth.poses == 5 && truth.corrected < 0.8 * truth.odometry && truth.online == Some(truth.odometry),
            "{truth:?}"
        );
    }

    #[test]
    fn the_file_has_the_body_where_it_was_with_its_height_and_roll() {
        let path = corrected();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trajectory.tum");
        path.write_tum(&file).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let numbers: Vec<Vec<f64>> =
            text.lines().skip(1).map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
        let [seconds, x, y, z, ref rotation @ ..] = numbers[4][..] else { panic!("{text}") };
        assert_eq!((numbers.len(), seconds, z), (5, 4.0, 0.3));
        assert!((x - 4.0 * 0.25_f64.cos()).hypot(y - 4.0 * 0.25_f64.sin()) < 1e-5);
        let expected = UnitQuaternion::from_euler_angles(0.1, 0.0, 0.25).coords;
        rotation.iter().zip(expected.iter()).for_each(|(found, expected)| assert!((found - expected).abs() < 1e-8));
    }

    #[test]
    fn a_path_of_somebody_else_moves_odometry_there() {
        let path = corrected();
        let observations: Vec<Observation> = (0..5).map(|second| observation(1000 * second)).collect();
        // Fewer poses than those of odometry, and one that nobody can place.
        let mut given: Vec<Pose> = path.odometry.iter().step_by(2).copied().collect();
        let quarter = std::f64::consts::FRAC_PI_2;
        for pose in &mut given {
            pose.position = Point3::new(7.0, pose.position.x, 0.0);
            pose.orientation = UnitQuaternion::from_euler_angles(0.0, 0.0, quarter);
        }
        given.push(Pose { stamp: stamp(9000), ..given[2] });
        let correction = correction_to(&given, &path.odometry, &observations).unwrap();
        assert_eq!(correction.nodes().len(), 3);
        let moved = CorrectedPath::new(path.odometry, &observations, &correction, None, &[]).unwrap();
        for (second, place) in moved.places().into_iter().enumerate() {
            assert!((place[0] - 7.0).hypot(place[1] - second as f64) < 1e-12, "{place:?}");
        }
        assert_eq!(correction_to(&given[3..], &moved.odometry, &observations), None);
    }

    #[test]
    fn a_clock_that_goes_back_leaves_no_path() {
        let observations = [observation(1000), observation(500)];
        assert!(CorrectedPath::new(Vec::new(), &observations, &Correction::default(), None, &[]).is_none());
    }
}
