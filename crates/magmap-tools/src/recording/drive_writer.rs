//! Writes a drive as a robot would have recorded it.

use std::path::Path;

use nalgebra::Isometry3;

use super::Error;
use super::messages::{MagneticField, Odometry, PoseStamped, TFMessage};
use super::writer::{BagWriter, Storage};
use magmap::sensing::intake::SensorMessage;
use magmap::sensing::reading::{Measurement, Pose, Reading};

/// Topic of the readings.
pub const MAGNETOMETER_TOPIC: &str = "/imu/mag";
/// Topic of the poses.
pub const ODOMETRY_TOPIC: &str = "/odom";
/// Topic of the true poses. Their type is not that of odometry, so that nobody mistakes them for measurements.
pub const TRUTH_TOPIC: &str = "/ground_truth";
/// Frame of the true poses.
pub const TRUTH_FRAME: &str = "map";
/// Frame of the poses.
pub const ODOMETRY_FRAME: &str = "odom";
/// Frame of the robot's body.
pub const BODY_FRAME: &str = "base_link";
/// Frame of the sensor.
pub const MAGNETOMETER_FRAME: &str = "magnetometer";

/// The messages of a drive, as a robot's node would hear them: the transform from the sensor's frame to the body's, then readings and odometry.
pub fn messages<E>(
    mount: Isometry3<f64>,
    measurements: impl Iterator<Item = Measurement>,
) -> impl Iterator<Item = Result<SensorMessage, E>> {
    let mount = SensorMessage::transform(BODY_FRAME, MAGNETOMETER_FRAME, None, mount);
    let message = |measurement| match measurement {
        Measurement::Reading(reading) => SensorMessage::reading(MAGNETOMETER_FRAME, reading),
        Measurement::Pose(pose) => SensorMessage::odometry(ODOMETRY_FRAME, BODY_FRAME, pose),
    };
    std::iter::once(mount).chain(measurements.map(message)).map(Ok)
}

/// Writes a bag with fields in tesla on `/imu/mag`, poses on `/odom` and `/tf`, true poses on
/// `/ground_truth`, and the sensor's mount on `/tf_static`.
pub struct DriveWriter {
    bag: BagWriter,
    /// The transform from the sensor's frame to the body's; `None` once it is written.
    mount: Option<Isometry3<f64>>,
}

impl DriveWriter {
    /// Creates the bag in `folder`. `mount` is the transform from the sensor's frame to the body's.
    ///
    /// # Errors
    /// The errors of [`BagWriter::create`].
    pub fn create(folder: &Path, storage: Storage, mount: &Isometry3<f64>) -> Result<Self, Error> {
        Ok(Self { bag: BagWriter::create(folder, storage)?, mount: Some(*mount) })
    }

    /// Writes a measurement; before the first one, the mount.
    ///
    /// # Errors
    /// The errors of [`BagWriter::write`].
    pub fn write(&mut self, measurement: &Measurement) -> Result<(), Error> {
        let stamp = measurement.stamp();
        if let Some(mount) = self.mount.take() {
            let transform = TFMessage::of_one(stamp, BODY_FRAME, MAGNETOMETER_FRAME, &mount);
            self.bag.write("/tf_static", &transform, stamp)?;
        }
        match measurement {
            Measurement::Pose(pose) => {
                let transform = TFMessage::of_one(stamp, ODOMETRY_FRAME, BODY_FRAME, &pose.isometry());
                self.bag.write("/tf", &transform, stamp)?;
                self.bag.write(ODOMETRY_TOPIC, &Odometry::from_pose(pose, ODOMETRY_FRAME, BODY_FRAME), stamp)
            }
            Measurement::Reading(Reading { field, .. }) => {
                self.bag.write(MAGNETOMETER_TOPIC, &MagneticField::new(stamp, field, MAGNETOMETER_FRAME), stamp)
            }
        }
    }

    /// Writes a true pose of the body.
    ///
    /// # Errors
    /// The errors of [`BagWriter::write`].
    pub fn write_truth(&mut self, pose: &Pose) -> Result<(), Error> {
        self.bag.write(TRUTH_TOPIC, &PoseStamped::from_pose(pose, TRUTH_FRAME), pose.stamp)
    }

    /// Completes the bag.
    ///
    /// # Errors
    /// The errors of [`BagWriter::finish`].
    pub fn finish(self) -> Result<(), Error> {
        self.bag.finish()
    }
}
