//! Trajectories as text, one pose a line: stamp, x, y, z, qx, qy, qz, qw, in seconds and metres (TUM's format, which `evo` reads).

use std::path::Path;

use csv::{ReaderBuilder, Trim};
use nalgebra::{Point3, Quaternion, Vector3};

use super::Error;
use magmap::sensing::reading::{Pose, Stamp, isometry};

/// Numbers of a pose.
const NUMBERS: usize = 8;

/// Reads the poses of a trajectory. Lines that start with `#` are comments.
///
/// # Errors
/// A file that cannot be read, without a pose, or with a line that is no pose or whose stamp is not after that of the line above.
pub fn read(path: &Path) -> Result<Vec<Pose>, Error> {
    let mut reader = ReaderBuilder::new()
        .delimiter(b' ')
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .comment(Some(b'#'))
        .from_path(path)
        .map_err(|error| Error::unusable(path, error.to_string()))?;
    let mut poses: Vec<Pose> = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| Error::unusable(path, error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let wrong = |expected: &str| {
            let found: Vec<&str> = record.iter().collect();
            Error::unusable(path, format!("line {line}: expected {expected}, found \"{}\"", found.join(" ")))
        };
        let numbers: Option<Vec<f64>> = record.iter().map(|number| number.parse().ok()).collect();
        let pose = numbers.and_then(|numbers| pose(numbers.try_into().ok()?));
        let pose =
            pose.ok_or_else(|| wrong("eight finite numbers, stamp x y z qx qy qz qw, with a quaternion of norm 1"))?;
        if poses.last().is_some_and(|last| last.stamp >= pose.stamp) {
            return Err(wrong("a stamp after that of the line above"));
        }
        poses.push(pose);
    }
    if poses.is_empty() {
        return Err(Error::unusable(path, "expected a line stamp x y z qx qy qz qw for each pose, found none"));
    }
    Ok(poses)
}

fn pose([seconds, x, y, z, qx, qy, qz, qw]: [f64; NUMBERS]) -> Option<Pose> {
    let place = isometry(Vector3::new(x, y, z), Quaternion::new(qw, qx, qy, qz))?;
    let position = Point3::from(place.translation.vector);
    seconds.is_finite().then(|| Pose { stamp: Stamp::from_seconds(seconds), position, orientation: place.rotation })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Pose>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_poses_and_comments_are_not() {
        let poses =
            read_text("# timestamp tx ty tz qx qy qz qw\n1.5 1 2 3 0 0 1 0\n\n2.25 -1 2e-1 3 0 0 0 1\n").unwrap();
        assert_eq!(poses.iter().map(|pose| pose.stamp.seconds()).collect::<Vec<_>>(), [1.5, 2.25]);
        assert_eq!((poses[0].position, poses[1].position), (Point3::new(1.0, 2.0, 3.0), Point3::new(-1.0, 0.2, 3.0)));
        assert!((poses[0].orientation.euler_angles().2.abs() - std::f64::consts::PI).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_pose_is_named_with_its_line() {
        for (text, expected) in [
            ("1 0 0 0 0 0 0 1\n2 0 0 0 0 0 1\n", "line 2: expected eight finite numbers"),
            ("1 0 0 0 0 0 0 0\n", "line 1: expected eight finite numbers"),
            ("1 nan 0 0 0 0 0 1\n", "line 1: expected eight finite numbers"),
            ("1 0 0 0 0 0 0 1\n1 0 0 0 0 0 0 1\n", "line 2: expected a stamp after"),
            ("# nothing\n", "found none"),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
