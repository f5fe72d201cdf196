//! The last pose that a robot knew, in a small file beside the map.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Located, Start};
use crate::files::write_atomically;

/// The last pose that a robot knew, in the frame of the map.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastPose {
    /// When, in seconds since the epoch.
    pub stamp: f64,
    /// x of the robot's body, in metres.
    pub x: f64,
    /// y of the robot's body, in metres.
    pub y: f64,
    /// Counterclockwise from the x axis, in radians.
    pub heading: f64,
}

impl LastPose {
    /// The file of the last pose in a map: `map.magmap` has `map.pose.json`.
    pub fn file(map: &Path) -> PathBuf {
        map.with_extension("pose.json")
    }

    /// The last pose of a result.
    pub fn of(located: &Located) -> Self {
        let place = located.pose.translation;
        Self { stamp: located.stamp.seconds(), x: place.x, y: place.y, heading: located.pose.rotation.angle() }
    }

    /// About here: somebody may have moved the robot a little meanwhile.
    pub fn start(&self) -> Start {
        Start::given([self.x, self.y], self.heading)
    }

    /// Reads it; none if there is no file.
    ///
    /// # Errors
    /// A file that cannot be read, or is not a pose.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // JSON has no numbers that are not finite.
        Ok(Some(serde_json::from_str(&text)?))
    }

    /// Writes it; a reader sees the old one or the new one, never a part.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        write_atomically(path, |file| {
            serde_json::to_writer(&mut *file, self)?;
            file.write_all(b"\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pose_reads_back_and_anything_else_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = LastPose::file(&folder.path().join("house.1.npz"));
        assert_eq!(path.file_name().unwrap(), "house.1.pose.json");
        assert_eq!(LastPose::read(&path).unwrap(), None);
        let pose = LastPose { stamp: 1_700_000_000.1, x: 0.1 + 0.2, y: -2.5, heading: 3.0 };
        pose.write(&path).unwrap();
        assert_eq!(LastPose::read(&path).unwrap(), Some(pose));
        let Start::At { place, heading, deviation, .. } = pose.start() else { panic!("a place") };
        assert_eq!((place, heading, deviation), ([0.1 + 0.2, -2.5], 3.0, 0.5));
        for damaged in ["", "{}", "{\"stamp\":1,\"x\":1e999,\"y\":0,\"heading\":0}", "[1, 2]"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(LastPose::read(&path).is_err(), "{damaged}");
        }
    }
}
