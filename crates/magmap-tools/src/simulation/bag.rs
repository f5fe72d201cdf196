//! Simulated drives as bags.

use std::path::Path;

use nalgebra::Isometry3;

use super::{SimulatedDrive, SimulatedMeasurement, Truth, World};
use crate::recording::Error;
use crate::recording::drive_writer::DriveWriter;
use crate::recording::writer::Storage;
use magmap::sensing::reading::Measurement;

/// The file with the truth at every reading, in the bag's folder. Where odometry drifts, the true poses are
/// a topic as well ([`TRUTH_TOPIC`](crate::recording::drive_writer::TRUTH_TOPIC)).
pub const TRUTH_FILE: &str = "truth.csv";

/// The columns of [`TRUTH_FILE`], with one row per reading: its stamp in nanoseconds; the position of the sensor in metres; the
/// field there, along the axes of the map, and its strength in microtesla; the position of the body in metres and its heading in
/// radians.
pub const TRUTH_COLUMNS: &str = "stamp,x,y,z,field_x,field_y,field_z,strength,body_x,body_y,heading";

/// Number of measurements in a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of readings.
    pub readings: u64,
    /// Number of poses.
    pub poses: u64,
}

/// Writes a drive as a bag, with the true poses as a topic if odometry drifts, and the truth to [`TRUTH_FILE`].
/// `progress` is called after every measurement.
///
/// # Errors
/// A folder that is not empty, and errors of the storage and the operating system.
pub fn write<W: World>(
    drive: SimulatedDrive<W>,
    mount: &Isometry3<f64>,
    folder: &Path,
    storage: Storage,
    mut progress: impl FnMut(),
) -> Result<Written, Error> {
    let mut bag = DriveWriter::create(folder, storage, mount)?;
    let path = folder.join(TRUTH_FILE);
    let failed = |error: csv::Error| Error::io("write", &path)(error.into());
    let mut truth = csv::Writer::from_path(&path).map_err(failed)?;
    truth.write_record(TRUTH_COLUMNS.split(',')).map_err(failed)?;
    let drifts = drive.options.drift.is_some();
    let mut written = Written::default();
    for SimulatedMeasurement { measurement, truth: at } in drive {
        bag.write(&measurement)?;
        match measurement {
            Measurement::Pose(_) => {
                if drifts {
                    bag.write_truth(&at.pose)?;
                }
                written.poses += 1;
            }
            Measurement::Reading(_) => {
                truth.write_record(row(&at)).map_err(failed)?;
                written.readings += 1;
            }
        }
        progress();
    }
    truth.flush().map_err(Error::io("write", &path))?;
    bag.finish()?;
    Ok(written)
}

/// A row of [`TRUTH_FILE`].
fn row(Truth { pose, sensor, field }: &Truth) -> impl Iterator<Item = String> {
    let (body, (_, _, heading)) = (pose.position, pose.orientation.euler_angles());
    let axes = field.microtesla();
    let numbers = [sensor.x, sensor.y, sensor.z, axes.x, axes.y, axes.z, field.strength(), body.x, body.y, heading];
    std::iter::once(pose.stamp.nanoseconds().to_string()).chain(numbers.map(|number| number.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording;
    use crate::simulation::demo;
    use magmap::config::Config;
    use magmap::sensing::intake::Input;

    #[test]
    fn a_bag_reads_back_and_its_truth_lies_beside() {
        let mut simulation = demo();
        simulation.duration = 4.0;
        simulation.robot.noise = 0.0;
        simulation.robot.mount = Isometry3::translation(0.2, 0.0, 0.1);
        let world = simulation.world().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let bag = folder.path().join("bag");
        let mut steps = 0;
        let drive = simulation.drive(&world).unwrap();
        let written = write(drive, &simulation.robot.mount, &bag, Storage::Mcap, || steps += 1).unwrap();
        assert_eq!(written, Written { readings: 200, poses: 121 });
        assert_eq!(steps, 321);

        let recording = recording::open(&bag, &Config::default()).unwrap();
        assert_eq!(recording.summary.magnetometer.topic, "/imu/mag");
        assert!(recording.summary.magnetometer.others.is_empty() && recording.summary.notes.is_empty());
        assert!((recording.mount.translation.vector - simulation.robot.mount.translation.vector).norm() < 1e-12);
        assert!(recording.loss.is_empty());
        let is_measurement = |input: &Result<Input, _>| matches!(input, Ok(Input::Measurement(_)));
        assert_eq!(recording.inputs().filter(is_measurement).count(), 321);

        let text = std::fs::read_to_string(bag.join(TRUTH_FILE)).unwrap();
        let rows: Vec<Vec<f64>> =
            text.lines().skip(1).map(|line| line.split(',').map(|value| value.parse().unwrap()).collect()).collect();
        assert_eq!(rows.len(), 200);
        for row in rows {
            let place = nalgebra::Point3::new(row[1], row[2], row[3]);
            assert_eq!(row[7], world.strength_at(&place));
            assert!(((row[1] - row[8]).hypot(row[2] - row[9]) - 0.2).abs() < 1e-12);
        }
    }
}
