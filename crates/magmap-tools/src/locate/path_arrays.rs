//! The path of a robot that was located in a map, as numpy arrays in one `.npz` file, a row per update.
//!
//! | array | shape | content |
//! | --- | --- | --- |
//! | `stamp` | N | nanoseconds since the epoch |
//! | `pose` | N x 3 | x, y and heading of the body as found, in metres and radians |
//! | `covariance` | N x 3 x 3 | of x, y and heading, in metres and radians |
//! | `state`, `reason` | N | `lost`, `converging` or `tracking`, and why it is not tracking; texts |
//! | `odometry` | N x 3 | the body by odometry alone, in its own frame |
//! | `truth` | N x 3 | the body in truth; NaN where unknown; only where the recording has a true path |

use std::path::Path;

use nalgebra::Isometry2;

use super::LocatedStep;
use crate::export::Error;
use crate::export::npz::{write_array, write_names, write_npz};

/// Writes the arrays; the same steps give the same bytes.
pub(super) fn write(path: &Path, steps: &[LocatedStep]) -> Result<(), Error> {
    let row = |pose: &Isometry2<f64>| [pose.translation.x, pose.translation.y, pose.rotation.angle()];
    let number = steps.len() as u64;
    let rows = [number, 3];
    let covariances = steps.iter().flat_map(|step| step.located.estimate.covariance).flatten();
    write_npz(path, |archive| {
        write_array(archive, "stamp", "<i8", &[number], steps.iter().map(|step| step.stamp.nanoseconds()))?;
        write_array(archive, "pose", "<f8", &rows, steps.iter().flat_map(|step| row(&step.pose)))?;
        write_array(archive, "covariance", "<f8", &[number, 3, 3], covariances)?;
        write_names(archive, "state", steps.iter().map(|step| step.located.state.into()))?;
        write_names(archive, "reason", steps.iter().map(|step| step.located.reason.map_or("", Into::into)))?;
        write_array(archive, "odometry", "<f8", &rows, steps.iter().flat_map(|step| row(&step.odometry)))?;
        if steps.iter().any(|step| step.truth.is_some()) {
            let truth = steps.iter().flat_map(|step| step.truth.as_ref().map_or([f64::NAN; 3], row));
            write_array(archive, "truth", "<f8", &rows, truth)?;
        }
        Ok(())
    })
}
