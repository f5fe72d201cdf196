//! Simulated drives as surveys: plain CSV, as [`recording`](crate::recording) reads it.

use std::path::Path;

use nalgebra::Isometry3;

use super::{SimulatedDrive, SimulatedMeasurement, World};
use crate::recording::Error;
use magmap::sensing::reading::Measurement;

/// The columns: stamp in nanoseconds; position of the sensor in metres; the field that it read, along the axes of the map.
const COLUMNS: [&str; 7] = ["stamp [ns]", "x [m]", "y [m]", "z [m]", "bx [uT]", "by [uT]", "bz [uT]"];

/// Whether a path is that of a survey, not of a bag.
pub fn is_one(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// Writes a row for each reading of a drive, at its true place, and returns how many. `progress` is called after every measurement.
///
/// # Errors
/// A file that cannot be written.
pub fn write<W: World>(drive: SimulatedDrive<W>, path: &Path, mut progress: impl FnMut()) -> Result<u64, Error> {
    let failed = |error: csv::Error| Error::io("write", path)(error.into());
    let mut survey = csv::Writer::from_path(path).map_err(failed)?;
    survey.write_record(COLUMNS).map_err(failed)?;
    let Isometry3 { rotation: mount, .. } = drive.options.mount;
    let mut rows = 0;
    for SimulatedMeasurement { measurement, truth } in drive {
        if let Measurement::Reading(reading) = measurement {
            let [place, field] =
                [truth.sensor.coords, *reading.field.rotated(&(truth.pose.orientation * mount)).microtesla()];
            let numbers = place.iter().chain(&field).map(f64::to_string);
            let stamp = std::iter::once(reading.stamp.nanoseconds().to_string());
            survey.write_record(stamp.chain(numbers)).map_err(failed)?;
            rows += 1;
        }
        progress();
    }
    survey.flush().map_err(Error::io("write", path))?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording;
    use crate::simulation::demo;
    use magmap::config::Config;

    #[test]
    fn a_survey_reads_back_as_the_field_at_the_true_places() {
        let mut simulation = demo();
        simulation.duration = 4.0;
        simulation.robot.noise = 0.0;
        simulation.robot.mount = Isometry3::translation(0.2, 0.0, 1.3);
        let world = simulation.world().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor.csv");
        let mut steps = 0;
        assert_eq!(write(simulation.drive(&world).unwrap(), &path, || steps += 1).unwrap(), 200);
        assert_eq!(steps, 321);

        let recording = recording::open(&path, &Config::default()).unwrap();
        assert!(recording.loss.is_empty());
        let measurements: Vec<Measurement> = recording.measurements().map(Result::unwrap).collect();
        let (pairs, rest) = measurements.as_chunks();
        assert_eq!((pairs.len(), rest.len()), (200, 0));
        for pair in pairs {
            let [Measurement::Pose(pose), Measurement::Reading(reading)] = pair else { panic!("{pair:?}") };
            assert_eq!(pose.position.z, 1.3);
            let difference = reading.field.microtesla() - world.field_at(&pose.position).microtesla();
            // Rotated to the axes of the sensor and back.
            assert!(difference.norm() < 1e-12, "{difference}");
        }
    }
}
