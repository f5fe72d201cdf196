//! The path of a robot that was located in a map, as numpy arrays in one `.npz` file.

use std::path::Path;

use super::Error;
use super::npz::{write_array, write_names, write_npz};

/// Everything `path.npz` holds, a row per update.
///
/// | array | shape | content |
/// | --- | --- | --- |
/// | `stamp` | N | nanoseconds since the epoch |
/// | `pose` | N x 3 | x, y and heading of the body as found, in metres and radians |
/// | `covariance` | N x 3 x 3 | of x, y and heading, in metres and radians |
/// | `state`, `reason` | N | `lost`, `converging` or `tracking`, and why it is not tracking; texts |
/// | `odometry` | N x 3 | the body by odometry alone, in its own frame |
/// | `truth` | N x 3 | the body in truth; NaN where unknown; only where the recording has a true path |
#[derive(Clone, Debug, Default)]
pub struct PathArrays {
    /// In nanoseconds.
    pub stamps: Vec<i64>,
    /// x, y and heading.
    pub poses: Vec<[f64; 3]>,
    /// Of x, y and heading.
    pub covariances: Vec<[[f64; 3]; 3]>,
    /// Names of the states.
    pub states: Vec<&'static str>,
    /// Names of the reasons; empty while tracking.
    pub reasons: Vec<&'static str>,
    /// x, y and heading.
    pub odometry: Vec<[f64; 3]>,
    /// x, y and heading.
    pub truth: Option<Vec<[f64; 3]>>,
}

impl PathArrays {
    /// Writes the arrays; the same arrays give the same bytes.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_npz(path, |archive| {
            let number = self.stamps.len() as u64;
            let rows = |rows: &[[f64; 3]]| ([number, 3], rows.as_flattened().to_vec());
            write_array(archive, "stamp", "<i8", &[number], self.stamps.iter().copied())?;
            let (shape, poses) = rows(&self.poses);
            write_array(archive, "pose", "<f8", &shape, poses)?;
            let covariances = self.covariances.as_flattened().as_flattened();
            write_array(archive, "covariance", "<f8", &[number, 3, 3], covariances.iter().copied())?;
            write_names(archive, "state", self.states.iter().copied())?;
            write_names(archive, "reason", self.reasons.iter().copied())?;
            let (shape, odometry) = rows(&self.odometry);
            write_array(archive, "odometry", "<f8", &shape, odometry)?;
            let truth = self.truth.as_deref().map(rows);
            truth.map_or(Ok(()), |(shape, truth)| write_array(archive, "truth", "<f8", &shape, truth))
        })
    }
}
