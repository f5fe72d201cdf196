//! Turns a drive of the Aalto data into a bag as a robot would have recorded it.

use std::path::Path;

use nalgebra::Isometry3;

use super::{Error, aalto_csv::AaltoDrive, drive_writer::DriveWriter, writer::Storage};
use magmap::sensing::reading::{Measurement, Pose, Reading};

/// Writes a drive as a bag, of a sensor with this `mount` (sensor coordinates to body coordinates). `odometry` is what odometry reports
/// when the body is at a true pose, and true poses are then a topic as well; without it, odometry reports them itself.
///
/// The body has the direction of travel ([`AaltoDrive::orientation`]) and is placed such that the sensor is where the files say. The field
/// is turned into the sensor's frame: whoever reads the bag and turns it back gets the files' axes.
///
/// Every row has a stamp of its own ([`AaltoDrive::read`] spreads repeated ones), which its pose and its reading share.
///
/// # Errors
/// A folder that is not empty, and errors of the storage.
pub fn convert(
    drive: &AaltoDrive,
    folder: &Path,
    storage: Storage,
    mount: &Isometry3<f64>,
    mut odometry: Option<&mut dyn FnMut(Pose) -> Pose>,
) -> Result<(), Error> {
    let mut bag = DriveWriter::create(folder, storage, mount)?;
    for row in 0..drive.seconds.len() {
        let Reading { stamp, field } = drive.reading(row);
        let truth = body_pose(drive.pose(row), mount);
        match &mut odometry {
            Some(odometry) => {
                bag.write(&Measurement::Pose(odometry(truth)))?;
                bag.write_truth(&truth)?;
            }
            None => bag.write(&Measurement::Pose(truth))?,
        }
        let field = field.rotated(&mount.rotation.inverse());
        bag.write(&Measurement::Reading(Reading { stamp, field }))?;
    }
    bag.finish()
}

/// The pose of the body whose sensor is at this position; both have the same heading.
fn body_pose(sensor: Pose, mount: &Isometry3<f64>) -> Pose {
    Pose { position: sensor.position - sensor.orientation * mount.translation.vector, ..sensor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magmap::sensing::reading::Stamp;
    use nalgebra::{Point3, Translation3, UnitQuaternion};

    #[test]
    fn the_sensor_is_where_the_drive_says_wherever_it_sits_on_the_body() {
        let mount =
            Isometry3::from_parts(Translation3::new(0.2, -0.1, 0.3), UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3));
        let sensor = Pose {
            stamp: Stamp::default(),
            position: Point3::new(1.0, 2.0, 0.0),
            orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, 2.5),
        };
        let body = body_pose(sensor, &mount);
        let found = body.isometry() * mount * Point3::origin();
        assert!((found - sensor.position).norm() < 1e-15, "{found}");
    }
}
