//! The layout of the Aalto data: per drive three CSV files whose rows correspond, in a folder named after the sensor.
//!
//! `FOLDER/invensense/3-time.csv` (seconds), `3-loc.csv` (x, y in metres), `3-mag.csv` (three axes along the room's
//! frame). The data supplements A. Solin, M. Kok, N. Wahlström, T. Schön, S. Särkkä, "Modeling and interpolation of the
//! ambient magnetic field by Gaussian processes", IEEE Transactions on Robotics 34(4), 2018.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use nalgebra::{Point3, UnitQuaternion, Vector2, Vector3};
use sha2::{Digest, Sha256};

use strum::{Display, EnumString};

use super::{Error, Loss};
use magmap::files::folder_of;
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

/// Trivisio's unit, the local field, in microtesla.
///
/// Measured: the factor that brings the strengths of Trivisio's drives 1 to 5 to Invensense's (which are in
/// microtesla), in least squares over 1347 pairs of readings less than 3 cm apart; their correlation is 0.99, and
/// pairing at 1 cm or 5 cm moves the factor by 0.2 %. It is less than the 51 or 52 microtesla of the undisturbed
/// geomagnetic field in southern Finland (Finnish Meteorological Institute, Nurmijärvi observatory), because the unit
/// is the field where the sensor was calibrated: indoors.
pub const TRIVISIO_UNIT: f64 = 44.6;

/// Longest line of a file, ten times as long as three numbers with all their digits.
const MAX_LINE: u64 = 1024;

/// The three magnetometers of the drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, clap::ValueEnum)]
#[strum(serialize_all = "snake_case")]
pub enum Magnetometer {
    /// MPU-9150 on the robot, 50 Hz, in microtesla.
    #[default]
    Invensense,
    /// A Nexus 5 phone, 50 Hz, in microtesla.
    Nexus,
    /// A Colibri wireless IMU, 100 Hz with gaps, in units of the local field.
    Trivisio,
}

impl Magnetometer {
    /// Microtesla in one unit of the sensor's files.
    pub fn unit(self) -> f64 {
        match self {
            Magnetometer::Invensense | Magnetometer::Nexus => 1.0,
            Magnetometer::Trivisio => TRIVISIO_UNIT,
        }
    }
}

/// The path of the files of one drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrivePath {
    folder: PathBuf,
    name: String,
}

impl DrivePath {
    /// The drive of this number in the folder that holds the sensors' folders.
    pub fn new(data: &Path, magnetometer: Magnetometer, number: u32) -> Self {
        Self { folder: data.join(magnetometer.to_string()), name: number.to_string() }
    }

    /// The drive that a path names: `FOLDER/invensense/3`, or any of its three files. `None` for any other path.
    pub fn guess(path: &Path) -> Option<Self> {
        let last = path.file_name()?.to_str()?;
        let suffix = ["-time.csv", "-loc.csv", "-mag.csv"].into_iter().find(|suffix| last.ends_with(suffix));
        let name = suffix.map_or(last, |suffix| &last[..last.len() - suffix.len()]);
        let drive = Self { folder: folder_of(path).into(), name: name.into() };
        (suffix.is_some() || drive.file("mag").is_file() || drive.file("loc").is_file()).then_some(drive)
    }

    /// The file of one kind: `time`, `loc` or `mag`.
    pub fn file(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("{}-{kind}.csv", self.name))
    }

    /// The sensor, from the folder's name.
    fn magnetometer(&self) -> Result<Magnetometer, Error> {
        let folder = std::path::absolute(&self.folder).map_err(Error::io("find", &self.folder))?;
        let found = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        found.parse().map_err(|_| {
            let expected = "invensense, nexus (microtesla) or trivisio (local field)";
            let reason = format!("the folder {found:?} names no sensor: expected {expected}");
            Error::unusable(self.folder.join(&self.name), reason)
        })
    }
}

/// A drive: arrays of equal length, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AaltoDrive {
    /// The sensor.
    pub magnetometer: Magnetometer,
    /// Time in seconds since the start of the drive, strictly increasing; see [`AaltoDrive::read`] for repeated stamps.
    pub seconds: Vec<f64>,
    /// Position of the sensor in the room, in metres.
    pub positions: Vec<[f64; 2]>,
    /// The field along the room's axes, in microtesla.
    pub fields: Vec<Vector3<f64>>,
    headings: Vec<f64>,
    /// Number of rows that repeated the stamp of the row before.
    pub repeated_stamps: usize,
    /// Rows that were left out.
    pub loss: Loss,
}

impl AaltoDrive {
    /// Adds the content of the files.
    pub(super) fn digest(&self) -> Sha256 {
        let places = self.positions.iter().flatten().copied();
        let fields = self.fields.iter().flat_map(|field| [field.x, field.y, field.z]);
        let numbers = self.seconds.iter().copied().chain(places).chain(fields);
        numbers.fold(Sha256::new(), |digest, number| digest.chain_update(number.to_le_bytes()))
    }

    /// Reads the three files of a drive.
    ///
    /// A row whose stamp, position or field is missing (empty or not a number) or whose stamp goes back is left out and
    /// counted as loss: one drive of the public data ends in such a row. Consecutive rows with the same stamp were stamped
    /// late: they are spread evenly over the time to the next stamp, at most at the drive's usual interval, so that every row
    /// has a stamp, and a pose, of its own. Other gaps stay as they are: the synchronizer decides how long a gap may be.
    ///
    /// # Errors
    /// A file that cannot be read, a cell that is not a number, a row with too few or too many cells, files with different
    /// numbers of rows, and a folder that names no sensor.
    pub fn read(path: &DrivePath) -> Result<Self, Error> {
        let magnetometer = path.magnetometer()?;
        let times: Vec<[f64; 1]> = read_rows(&path.file("time"))?;
        let positions: Vec<[f64; 2]> = read_rows(&path.file("loc"))?;
        let fields: Vec<[f64; 3]> = read_rows(&path.file("mag"))?;
        let expected = times.len();
        if let Some((kind, found)) =
            [("loc", positions.len()), ("mag", fields.len())].into_iter().find(|(_, rows)| *rows != expected)
        {
            let time = path.file("time");
            let reason = format!("it has {found} rows, but {} has {expected}; they should correspond", time.display());
            return Err(Error::unusable(path.file(kind), reason));
        }
        let mut drive = Self { magnetometer, ..Self::default() };
        for (row, ((&[seconds], position), field)) in times.iter().zip(positions).zip(fields).enumerate() {
            drive.push(path, row + 1, seconds, position, field);
        }
        drive.spread_repeated_stamps();
        drive.headings = headings(&drive.positions);
        Ok(drive)
    }

    /// Reads the drive that a path names: `FOLDER/invensense/3`, or any of its three files.
    ///
    /// # Errors
    /// A path that names no drive, and the errors of [`AaltoDrive::read`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let not_a_drive = || Error::NotARecording {
            path: path.into(),
            found: "no CSV files of a drive begin with it (3-time.csv, 3-loc.csv, 3-mag.csv for 3)".into(),
        };
        Self::read(&DrivePath::guess(path).ok_or_else(not_a_drive)?)
    }

    /// The stamp of row `row`.
    pub fn stamp(&self, row: usize) -> Stamp {
        Stamp::from_seconds(self.seconds[row])
    }

    /// Rotation from the sensor's frame to the room at row `row`: the drives hold none, so it is the direction of travel, smoothed.
    pub fn orientation(&self, row: usize) -> UnitQuaternion<f64> {
        UnitQuaternion::from_euler_angles(0.0, 0.0, self.headings[row])
    }

    /// A pose for every row, directly followed by the reading with the same stamp. The pose has z = 0; the field, which the files
    /// have along the room's axes, is turned into the sensor's frame.
    pub fn measurements(&self) -> impl Iterator<Item = Measurement> + '_ {
        (0..self.seconds.len())
            .flat_map(|row| [Measurement::Pose(self.pose(row)), Measurement::Reading(self.reading(row))])
    }

    pub(super) fn pose(&self, row: usize) -> Pose {
        let [x, y] = self.positions[row];
        Pose { stamp: self.stamp(row), position: Point3::new(x, y, 0.0), orientation: self.orientation(row) }
    }

    pub(super) fn reading(&self, row: usize) -> Reading {
        let field = MagneticField::from_microtesla(self.fields[row]).rotated(&self.orientation(row).inverse());
        Reading { stamp: self.stamp(row), field }
    }

    /// Adds one row, or counts it as a loss.
    fn push(&mut self, path: &DrivePath, line: usize, seconds: f64, position: [f64; 2], field: [f64; 3]) {
        let faults = [
            ("time", !seconds.is_finite(), "no stamp"),
            ("time", seconds < 0.0, "a stamp before the start of the drive"),
            ("time", self.seconds.last().is_some_and(|&last| seconds < last), "a stamp before that of the row above"),
            ("loc", position.iter().any(|value| !value.is_finite()), "no position"),
            ("mag", field.iter().any(|value| !value.is_finite()), "no field"),
        ];
        if let Some((kind, _, why)) = faults.into_iter().find(|(_, is_faulty, _)| *is_faulty) {
            let file = path.file(kind);
            self.loss.add(&format!("rows with {why} in {}", file.display()), 1, Some(format!("line {line}")));
            return;
        }
        self.seconds.push(seconds);
        self.positions.push(position);
        self.fields.push(Vector3::from(field) * self.magnetometer.unit());
    }

    fn spread_repeated_stamps(&mut self) {
        let usual = self.usual_interval();
        let mut first = 0;
        while first < self.seconds.len() {
            let stamp = self.seconds[first];
            let end = first + self.seconds[first..].partition_point(|&seconds| seconds <= stamp);
            let repeats = end - first - 1;
            if repeats > 0 {
                let room = self.seconds.get(end).map_or(usual, |next| (next - stamp) / (repeats + 1) as f64);
                for (step, seconds) in self.seconds[first..end].iter_mut().enumerate() {
                    *seconds = stamp + step as f64 * room.min(usual);
                }
                self.repeated_stamps += repeats;
            }
            first = end;
        }
    }

    /// The median time between consecutive different stamps; a hundredth of a second without any.
    fn usual_interval(&self) -> f64 {
        let steps = self.seconds.windows(2).map(|pair| pair[1] - pair[0]);
        let mut intervals: Vec<f64> = steps.filter(|&step| step > 0.0).collect();
        intervals.sort_by(f64::total_cmp);
        intervals.get(intervals.len() / 2).copied().unwrap_or(0.01)
    }
}

/// The rows of a CSV file of numbers without a header. An empty cell is NaN; empty lines at the end are not rows.
fn read_rows<const COLUMNS: usize>(path: &Path) -> Result<Vec<[f64; COLUMNS]>, Error> {
    let mut file = BufReader::new(File::open(path).map_err(Error::io("read", path))?);
    let (mut rows, mut filled) = (Vec::new(), 0);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        file.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(Error::io("read", path))?;
        if bytes.is_empty() {
            rows.truncate(filled);
            return Ok(rows);
        }
        let line = rows.len() + 1;
        let error = |reason: String| Error::unusable(path, format!("line {line}: {reason}"));
        if bytes.len() as u64 > MAX_LINE {
            return Err(error(format!(
                "expected a row of numbers, found a line that does not end within {MAX_LINE} bytes"
            )));
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| error(format!("expected a row of numbers, found \"{}\"", bytes.escape_ascii())))?;
        rows.push(parse_row(text.trim_end_matches(['\r', '\n'])).map_err(error)?);
        if !text.trim().is_empty() {
            filled = rows.len();
        }
    }
}

fn parse_row<const COLUMNS: usize>(text: &str) -> Result<[f64; COLUMNS], String> {
    let mut row = [f64::NAN; COLUMNS];
    let cells = text.split(',').count();
    if cells != COLUMNS && !text.trim().is_empty() {
        return Err(format!("expected {COLUMNS} numbers separated by commas, found {cells} cells in {text:?}"));
    }
    for (value, cell) in row.iter_mut().zip(text.split(',').map(str::trim)) {
        if !cell.is_empty() {
            *value = cell.parse().map_err(|_| format!("expected a number, found {cell:?}"))?;
        }
    }
    Ok(row)
}

/// Spacing of the points of the path between which the direction of travel is measured, in metres.
const HEADING_SPACING: f64 = 0.05;

/// Directions on either side of one that it is averaged with: over 30 cm.
const HEADING_NEIGHBOURS: i32 = 3;

/// The direction of travel at each position, in radians from the x axis: between the neighbours of each of equally spaced points of
/// the path, averaged over neighbours, and interpolated.
fn headings(positions: &[[f64; 2]]) -> Vec<f64> {
    let mut travelled = Vec::with_capacity(positions.len());
    let mut total = 0.0;
    for (row, [x, y]) in positions.iter().enumerate() {
        let [from_x, from_y] = positions[row.saturating_sub(1)];
        total += (x - from_x).hypot(y - from_y);
        travelled.push(total);
    }
    let last_point = (total / HEADING_SPACING).floor();
    let point = |number: f64| {
        let at = number.clamp(0.0, last_point) * HEADING_SPACING;
        let next = travelled.partition_point(|&way| way <= at).min(positions.len() - 1);
        let from = next.saturating_sub(1);
        let length = travelled[next] - travelled[from];
        let share = if length > 0.0 { ((at - travelled[from]) / length).min(1.0) } else { 0.0 };
        [0, 1].map(|axis| positions[from][axis] + (positions[next][axis] - positions[from][axis]) * share)
    };
    // Sums of unit vectors know nothing of the turn from pi to -pi.
    let smooth = |number: f64| {
        let mut sum = Vector2::zeros();
        for offset in -HEADING_NEIGHBOURS..=HEADING_NEIGHBOURS {
            let middle = (number + f64::from(offset)).clamp(0.0, last_point);
            let [[x, y], [to_x, to_y]] = [middle - 1.0, middle + 1.0].map(point);
            sum += Vector2::new(to_x - x, to_y - y).try_normalize(0.0).unwrap_or_default();
        }
        sum
    };
    let at = |way: &f64| {
        let place = way / HEADING_SPACING;
        let next = (place.floor() + 1.0).min(last_point);
        let direction = smooth(place.floor()).lerp(&smooth(next), place.fract());
        direction.y.atan2(direction.x)
    };
    travelled.iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_4};

    use super::*;

    /// A drive `1` of some sensor with these files, in a folder of its own.
    fn drive(sensor: &str, time: &str, loc: &str, mag: &str) -> (tempfile::TempDir, DrivePath) {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join(sensor);
        std::fs::create_dir(&inside).unwrap();
        for (kind, text) in [("time", time), ("loc", loc), ("mag", mag)] {
            std::fs::write(inside.join(format!("1-{kind}.csv")), text).unwrap();
        }
        let path = DrivePath::guess(&inside.join("1")).unwrap();
        (folder, path)
    }

    #[test]
    fn any_file_of_a_drive_names_it() {
        let (_folder, path) = drive("nexus", "0\n", "0,0\n", "1,2,3\n");
        for kind in ["time", "loc", "mag"] {
            assert_eq!(DrivePath::guess(&path.file(kind)), Some(path.clone()));
        }
        let data = path.folder.parent().unwrap();
        assert_eq!(DrivePath::new(data, Magnetometer::Nexus, 1), path);
        assert_eq!(DrivePath::guess(&path.folder.join("2")), None);
        let message = AaltoDrive::open(&path.folder.join("2")).unwrap_err().to_string();
        assert!(message.contains("no CSV files"), "{message}");
    }

    #[test]
    fn rows_become_a_pose_and_a_reading_with_the_same_stamp() {
        let (_folder, path) = drive("invensense", "1.5\r\n1.52\r\n", "1,2\r\n3,4\r\n", "10,20,30\r\n-1,2e1,.5\r\n");
        let drive = AaltoDrive::read(&path).unwrap();
        let measurements: Vec<Measurement> = drive.measurements().collect();
        assert_eq!(measurements.len(), 4);
        let [_, _, Measurement::Pose(pose), Measurement::Reading(reading)] = measurements[..] else { panic!() };
        assert_eq!((pose.stamp, reading.stamp), (Stamp::from_ros(1, 520_000_000), Stamp::from_ros(1, 520_000_000)));
        assert_eq!(pose.position, Point3::new(3.0, 4.0, 0.0));
        // Two metres along each axis: a heading of 45 degrees.
        assert!((pose.orientation.euler_angles().2 - FRAC_PI_4).abs() < 1e-12);
        let turned_back = pose.orientation * reading.field.microtesla();
        assert!((turned_back - Vector3::new(-1.0, 20.0, 0.5)).norm() < 1e-12);
        assert!(drive.loss.is_empty());
    }

    #[test]
    fn trivisio_is_scaled_from_the_local_field() {
        let (_folder, path) = drive("trivisio", "0\n", "0,0\n", "1,0,-2\n");
        assert_eq!(AaltoDrive::read(&path).unwrap().fields[0], Vector3::new(TRIVISIO_UNIT, 0.0, -2.0 * TRIVISIO_UNIT));
    }

    #[test]
    fn repeated_stamps_are_spread_up_to_the_next_but_no_wider_than_usual() {
        let time = "0\n0.01\n0.01\n0.02\n0.03\n0.04\n0.04\n0.3\n0.3\n";
        let (_folder, path) = drive("trivisio", time, &"0,0\n".repeat(9), &"1,0,0\n".repeat(9));
        let drive = AaltoDrive::read(&path).unwrap();
        assert_eq!(drive.repeated_stamps, 3);
        let expected = [0.0, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.3, 0.31];
        for (found, expected) in drive.seconds.iter().zip(expected) {
            // Stamps are compared in nanoseconds later on.
            assert!((found - expected).abs() < 1e-10, "{:?}", drive.seconds);
        }
    }

    #[test]
    fn rows_with_nothing_in_them_are_left_out_and_counted() {
        let time = "0\n\n0.02\n0.03\n0.01\n";
        let (_folder, path) = drive("invensense", time, "0,0\n1,0\n2,0\nNaN,NaN\n4,0\n", &"1,2,3\n".repeat(5));
        let drive = AaltoDrive::read(&path).unwrap();
        assert_eq!(drive.positions, [[0.0, 0.0], [2.0, 0.0]]);
        let report = drive.loss.to_string();
        assert_eq!(drive.loss.items.iter().filter_map(|lost| lost.count).sum::<u64>(), 3, "{report}");
        assert!(report.contains("1-time.csv") && report.contains("line 2"), "{report}");
        assert!(report.contains("1-loc.csv") && report.contains("line 4"), "{report}");
        assert!(report.contains("before that of the row above") && report.contains("line 5"), "{report}");
    }

    #[test]
    fn a_cell_that_is_not_a_number_is_named_with_file_and_line() {
        let (_folder, path) = drive("invensense", "0\n0.1\n", "0,0\n1,x\n", "1,2,3\n1,2,3\n");
        let message = AaltoDrive::read(&path).unwrap_err().to_string();
        assert!(message.contains("1-loc.csv: line 2") && message.contains("\"x\""), "{message}");
    }

    #[test]
    fn too_few_cells_and_different_row_counts_are_errors() {
        let (_folder, path) = drive("invensense", "0\n", "0,0\n", "1,2\n");
        assert!(AaltoDrive::read(&path).unwrap_err().to_string().contains("1-mag.csv: line 1: expected 3 numbers"));
        let (_folder, path) = drive("invensense", "0\n0.1\n", "0,0\n1,1\n", "1,2,3\n");
        let message = AaltoDrive::read(&path).unwrap_err().to_string();
        assert!(message.contains("has 2") && message.contains("has 1"), "{message}");
    }

    #[test]
    fn a_folder_without_a_sensors_name_is_an_error() {
        let (_folder, path) = drive("phone", "0\n", "0,0\n", "1,2,3\n");
        assert!(AaltoDrive::read(&path).unwrap_err().to_string().contains("\"phone\""));
    }

    #[test]
    fn headings_follow_a_circle_and_any_rows() {
        // A circle of 2 m radius, its rows 1 to 9 cm apart: smoothing turns the ends alone.
        let angles: Vec<f64> = (0..600)
            .scan(0.0, |angle, row| {
                *angle += f64::from(row % 5 + 1) * 0.004;
                Some(*angle)
            })
            .collect();
        let positions: Vec<[f64; 2]> = angles.iter().map(|angle| [2.0 * angle.cos(), 2.0 * angle.sin()]).collect();
        let found = headings(&positions);
        for (angle, heading) in angles.iter().zip(&found).skip(30).take(540) {
            let error = (heading - angle - FRAC_PI_2).sin().abs();
            // The chord of the path's points leads or lags by up to half of theirs.
            assert!(error < 0.02, "{heading} at {angle}");
        }
        assert!(headings(&[]).is_empty());
        for awkward in [vec![[0.0; 2]; 3], vec![[1.0, 2.0]], vec![[0.0; 2], [1e300, -1e300], [0.0; 2]]] {
            assert!(headings(&awkward).iter().all(|heading| heading.is_finite()), "{awkward:?}");
        }
    }
}
