//! Turns a drive of the Aalto data into a bag as a robot would have recorded it.

use std::path::Path;

use nalgebra::{Isometry3, Point3, UnitQuaternion};

use super::{
    Error,
    aalto_csv::Drive,
    messages::{Header, MagneticField, Odometry, TFMessage, Transform, TransformStamped},
    writer::{BagWriter, Storage},
};
use crate::mapping::reading::{Pose, Reading, Stamp};

/// Topic of the readings.
pub const MAGNETOMETER_TOPIC: &str = "/imu/mag";
/// Topic of the poses.
pub const ODOMETRY_TOPIC: &str = "/odom";
/// Frame of the poses: the room.
pub const ODOMETRY_FRAME: &str = "odom";
/// Frame of the robot's body.
pub const BODY_FRAME: &str = "base_link";
/// Frame of the sensor.
pub const MAGNETOMETER_FRAME: &str = "magnetometer";

/// How far the robot has to move before its heading is taken from the motion, in metres: well above the noise of the
/// positions (motion capture, a millimetre) and below the spacing along which readings are averaged.
const HEADING_DISTANCE: f64 = 0.02;

/// Writes a drive as a bag: readings on `/imu/mag` in tesla, poses on `/odom` and `/tf`, the sensor's mount on
/// `/tf_static`.
///
/// The drives carry no orientation, so the body takes the heading of the path: that of the motion over the last
/// centimetres, kept while the robot stands, at the start that of the first motion to come. The field, which the files
/// give along the room's axes, is turned into the sensor's: from the room by the heading into the body, and by `mount`
/// (sensor coordinates to body coordinates) into the sensor. The body is placed such that the sensor is where the files
/// say. Whoever reads the bag and turns the field back gets the files' axes.
///
/// Every row has a stamp of its own ([`Drive::read`] spreads repeated ones), which its pose, its reading and its
/// transform share.
///
/// # Errors
/// A folder that is not empty, and what the storage refuses.
pub fn convert(drive: &Drive, folder: &Path, storage: Storage, mount: &Isometry3<f64>) -> Result<(), Error> {
    let mut bag = BagWriter::create(folder, storage)?;
    let headings = headings(&drive.positions);
    if !drive.is_empty() {
        let start = drive.stamp(0);
        bag.write("/tf_static", &transforms(start, BODY_FRAME, MAGNETOMETER_FRAME, mount), start)?;
    }
    for (row, &heading) in headings.iter().enumerate() {
        let pose = body_pose(&drive.pose(row), heading, mount);
        let Reading { stamp, field } = drive.reading(row);
        let room_to_sensor = (pose.orientation * mount.rotation).inverse();
        let reading = Reading { stamp, field: field.rotated(&room_to_sensor) };
        bag.write("/tf", &transforms(stamp, ODOMETRY_FRAME, BODY_FRAME, &pose.isometry()), stamp)?;
        bag.write(ODOMETRY_TOPIC, &Odometry::from_pose(&pose, ODOMETRY_FRAME, BODY_FRAME), stamp)?;
        bag.write(MAGNETOMETER_TOPIC, &MagneticField::from_reading(&reading, MAGNETOMETER_FRAME), stamp)?;
    }
    bag.finish()
}

/// The pose of the body whose sensor is where `sensor` says, heading this way, in radians from the room's x axis.
fn body_pose(sensor: &Pose, heading: f64, mount: &Isometry3<f64>) -> Pose {
    let orientation = UnitQuaternion::from_euler_angles(0.0, 0.0, heading);
    let position: Point3<f64> = sensor.position - orientation * mount.translation.vector;
    Pose { stamp: sensor.stamp, position, orientation }
}

/// One transform as a message.
fn transforms(stamp: Stamp, parent: &str, child: &str, transform: &Isometry3<f64>) -> TFMessage {
    TFMessage {
        transforms: vec![TransformStamped {
            header: Header::new(stamp, parent),
            child_frame_id: child.into(),
            transform: Transform::from(transform),
        }],
    }
}

/// The heading at every position, in radians from the x axis: that of the motion since the place where it was last
/// taken. Before the first motion it is that of the first motion; where there is none at all, zero.
fn headings(positions: &[[f64; 2]]) -> Vec<f64> {
    let Some(&(mut last)) = positions.first() else { return Vec::new() };
    let mut headings: Vec<Option<f64>> = Vec::with_capacity(positions.len());
    for &[x, y] in positions {
        let (along_x, along_y) = (x - last[0], y - last[1]);
        let moved = along_x.hypot(along_y) >= HEADING_DISTANCE;
        if moved {
            last = [x, y];
        }
        let kept = headings.last().copied().flatten();
        headings.push(if moved { Some(along_y.atan2(along_x)) } else { kept });
    }
    let first = headings.iter().flatten().next().copied().unwrap_or(0.0);
    headings.into_iter().map(|heading| heading.unwrap_or(first)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Translation3;
    use std::f64::consts::{FRAC_PI_2, PI};

    #[test]
    fn the_heading_is_that_of_the_motion_and_kept_while_standing() {
        let path = [[0.0, 0.0], [0.001, 0.0], [0.0, 0.03], [0.0, 0.031], [0.0, 0.0305], [-0.1, 0.03]];
        let found = headings(&path);
        assert_eq!(found[..5], [FRAC_PI_2; 5]);
        assert!((found[5] - PI).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_robot_that_never_moves_heads_along_x() {
        assert_eq!(headings(&[[1.0, 2.0]; 3]), [0.0; 3]);
        assert!(headings(&[]).is_empty());
    }

    #[test]
    fn the_sensor_is_where_the_drive_says_wherever_it_sits_on_the_body() {
        let mount =
            Isometry3::from_parts(Translation3::new(0.2, -0.1, 0.3), UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3));
        let sensor = Pose {
            stamp: Stamp::default(),
            position: Point3::new(1.0, 2.0, 0.0),
            orientation: UnitQuaternion::identity(),
        };
        let body = body_pose(&sensor, 2.5, &mount);
        let found = body.isometry() * mount * Point3::origin();
        assert!((found - sensor.position).norm() < 1e-15, "{found}");
    }
}
