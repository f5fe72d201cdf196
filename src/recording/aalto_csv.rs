//! The layout of the Aalto data: per drive three CSV files whose rows correspond, in a folder named after the sensor.
//!
//! `FOLDER/invensense/3-time.csv` (seconds), `3-loc.csv` (x, y in metres), `3-mag.csv` (three axes along the room's
//! frame). The data supplements A. Solin, M. Kok, N. Wahlström, T. Schön, S. Särkkä, "Modeling and interpolation of the
//! ambient magnetic field by Gaussian processes", IEEE Transactions on Robotics 34(4), 2018.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use nalgebra::{Point3, UnitQuaternion, Vector3};
use sha2::{Digest, Sha256};

use super::{Error, Loss};
use crate::mapping::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

/// What Trivisio's unit, the local field, is in microtesla.
///
/// Measured: the factor that brings the strengths of Trivisio's drives 1 to 5 to Invensense's (which are in
/// microtesla), in least squares over 1347 pairs of readings less than 3 cm apart; their correlation is 0.99, and
/// pairing at 1 cm or 5 cm moves the factor by 0.2 %. It is less than the 51 or 52 microtesla of the undisturbed
/// geomagnetic field in southern Finland (Finnish Meteorological Institute, Nurmijärvi observatory), because the unit
/// is the field where the sensor was calibrated: indoors.
pub const TRIVISIO_UNIT: f64 = 44.6;

/// Longest line of a file. Three numbers with all their digits are a tenth of it.
const MAX_LINE: u64 = 1024;

/// The three sensors that drove along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magnetometer {
    /// MPU-9150 on the robot, 50 Hz, in microtesla.
    Invensense,
    /// A Nexus 5 phone, 50 Hz, in microtesla.
    Nexus,
    /// A Colibri wireless IMU, 100 Hz with gaps, in units of the local field.
    Trivisio,
}

impl Magnetometer {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Invensense, Self::Nexus, Self::Trivisio];

    /// Microtesla in one unit of the sensor's files.
    pub fn unit(self) -> f64 {
        match self {
            Magnetometer::Invensense | Magnetometer::Nexus => 1.0,
            Magnetometer::Trivisio => TRIVISIO_UNIT,
        }
    }

    /// The folder that holds the sensor's drives.
    pub fn folder(self) -> &'static str {
        match self {
            Magnetometer::Invensense => "invensense",
            Magnetometer::Nexus => "nexus",
            Magnetometer::Trivisio => "trivisio",
        }
    }

    fn named(folder: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sensor| sensor.folder() == folder)
    }
}

/// Where the files of one drive lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrivePath {
    folder: PathBuf,
    name: String,
}

impl DrivePath {
    /// The drive of this number in the folder that holds the sensors' folders.
    pub fn new(data: &Path, magnetometer: Magnetometer, number: u32) -> Self {
        Self { folder: data.join(magnetometer.folder()), name: number.to_string() }
    }

    /// The drive that a path names: `FOLDER/invensense/3`, or any of its three files. Nothing when the path names no
    /// drive.
    pub fn guess(path: &Path) -> Option<Self> {
        let last = path.file_name()?.to_str()?;
        let suffix = ["-time.csv", "-loc.csv", "-mag.csv"].into_iter().find(|suffix| last.ends_with(suffix));
        let name = suffix.map_or(last, |suffix| &last[..last.len() - suffix.len()]);
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let drive = Self { folder, name: name.into() };
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
        Magnetometer::named(&found).ok_or(Error::UnknownSensor { path: self.folder.join(&self.name), found })
    }
}

/// One drive: arrays of equal length, in the order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    /// Which sensor drove.
    pub magnetometer: Magnetometer,
    /// When, in seconds since the start of the drive, strictly increasing; see [`Drive::read`] for repeated stamps.
    pub seconds: Vec<f64>,
    /// Where the sensor was in the room, in metres.
    pub positions: Vec<[f64; 2]>,
    /// The field along the room's axes, in microtesla.
    pub fields: Vec<Vector3<f64>>,
    /// How many rows repeated the stamp of the row before.
    pub repeated_stamps: usize,
    /// Rows that were left out.
    pub loss: Loss,
}

impl Drive {
    /// Adds what the files hold.
    pub(super) fn digest(&self, digest: &mut Sha256) {
        let places = self.positions.iter().flatten().copied();
        let fields = self.fields.iter().flat_map(|field| [field.x, field.y, field.z]);
        let numbers = self.seconds.iter().copied().chain(places).chain(fields);
        numbers.for_each(|number| digest.update(number.to_le_bytes()));
    }

    /// Reads the three files of a drive.
    ///
    /// A row whose stamp, position or field is missing (empty or not a number) or whose stamp goes back is left out and
    /// counted as loss: one drive of the public data ends in such a row. Rows that repeat a stamp were taken one after
    /// another and stamped late: they are spread evenly over the time to the next stamp, at most at the drive's usual
    /// interval, so that every row has a stamp, and a pose, of its own. Other gaps stay as they are: how long a gap may
    /// be is for the synchronizer.
    ///
    /// # Errors
    /// A file that cannot be read, a cell that is no number, a row with too few or too many cells, files with different
    /// numbers of rows, and a folder that names no sensor.
    pub fn read(path: &DrivePath) -> Result<Self, Error> {
        let magnetometer = path.magnetometer()?;
        let times: Vec<[f64; 1]> = read_rows(&path.file("time"))?;
        let positions: Vec<[f64; 2]> = read_rows(&path.file("loc"))?;
        let fields: Vec<[f64; 3]> = read_rows(&path.file("mag"))?;
        for (kind, rows) in [("loc", positions.len()), ("mag", fields.len())] {
            same_rows(path, kind, rows, times.len())?;
        }
        let mut drive = Self {
            magnetometer,
            seconds: Vec::with_capacity(times.len()),
            positions: Vec::with_capacity(times.len()),
            fields: Vec::with_capacity(times.len()),
            repeated_stamps: 0,
            loss: Loss::default(),
        };
        for (row, ((&[seconds], position), field)) in times.iter().zip(positions).zip(fields).enumerate() {
            drive.push(path, row + 1, seconds, position, field);
        }
        drive.spread_repeated_stamps();
        Ok(drive)
    }

    /// Reads the drive that a path names: `FOLDER/invensense/3`, or any of its three files.
    ///
    /// # Errors
    /// A path that names no drive, and those of [`Drive::read`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let not_a_drive = || Error::NotARecording {
            path: path.into(),
            found: "no CSV files of a drive begin with it (3-time.csv, 3-loc.csv, 3-mag.csv for 3)".into(),
        };
        Self::read(&DrivePath::guess(path).ok_or_else(not_a_drive)?)
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// When row `row` was taken.
    pub fn stamp(&self, row: usize) -> Stamp {
        Stamp::from_seconds(self.seconds[row])
    }

    /// A pose for every row, directly followed by the reading with the same stamp. The pose has z = 0 and no rotation:
    /// the field is already along the room's axes.
    pub fn measurements(&self) -> impl Iterator<Item = Measurement> + '_ {
        (0..self.len()).flat_map(|row| [Measurement::Pose(self.pose(row)), Measurement::Reading(self.reading(row))])
    }

    pub(super) fn pose(&self, row: usize) -> Pose {
        let [x, y] = self.positions[row];
        Pose { stamp: self.stamp(row), position: Point3::new(x, y, 0.0), orientation: UnitQuaternion::identity() }
    }

    pub(super) fn reading(&self, row: usize) -> Reading {
        Reading { stamp: self.stamp(row), field: MagneticField::from_microtesla(self.fields[row]) }
    }

    /// Takes one row in, or counts why not.
    fn push(&mut self, path: &DrivePath, line: usize, seconds: f64, position: [f64; 2], field: [f64; 3]) {
        let refused = [
            ("time", !seconds.is_finite(), "no stamp"),
            ("time", seconds < 0.0, "a stamp before the start of the drive"),
            ("time", self.seconds.last().is_some_and(|&last| seconds < last), "a stamp before that of the row above"),
            ("loc", position.iter().any(|value| !value.is_finite()), "no position"),
            ("mag", field.iter().any(|value| !value.is_finite()), "no field"),
        ];
        if let Some((kind, _, why)) = refused.into_iter().find(|(_, refused, _)| *refused) {
            let file = path.file(kind);
            self.loss.count(&format!("rows with {why} in {}", file.display()), format!("line {line}"));
            return;
        }
        self.seconds.push(seconds);
        self.positions.push(position);
        self.fields.push(Vector3::from(field) * self.magnetometer.unit());
    }

    fn spread_repeated_stamps(&mut self) {
        let usual = self.usual_interval();
        let mut first = 0;
        while first < self.len() {
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

    /// The median time between two different stamps that follow one another; a hundredth of a second when there are
    /// none.
    fn usual_interval(&self) -> f64 {
        let steps = self.seconds.windows(2).map(|pair| pair[1] - pair[0]);
        let mut intervals: Vec<f64> = steps.filter(|&step| step > 0.0).collect();
        intervals.sort_by(f64::total_cmp);
        intervals.get(intervals.len() / 2).copied().unwrap_or(0.01)
    }
}

/// The rows of a CSV file of numbers without a header; an empty cell is not a number (NaN), empty lines at the end are
/// no rows.
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
        let error = |found: String| Error::Csv { path: path.into(), line, expected: "a row of numbers".into(), found };
        if bytes.len() as u64 > MAX_LINE {
            return Err(error(format!("a line that does not end within {MAX_LINE} bytes")));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| error(format!("\"{}\"", bytes.escape_ascii())))?;
        rows.push(parse_row(path, line, text.trim_end_matches(['\r', '\n']))?);
        if !text.trim().is_empty() {
            filled = rows.len();
        }
    }
}

fn parse_row<const COLUMNS: usize>(path: &Path, line: usize, text: &str) -> Result<[f64; COLUMNS], Error> {
    let error = |expected: String, found: &str| Error::Csv { path: path.into(), line, expected, found: found.into() };
    let mut row = [f64::NAN; COLUMNS];
    let cells = text.split(',').count();
    if cells != COLUMNS && !text.trim().is_empty() {
        return Err(error(format!("{COLUMNS} numbers separated by commas"), &format!("{cells} cells in {text:?}")));
    }
    for (value, cell) in row.iter_mut().zip(text.split(',').map(str::trim)) {
        if !cell.is_empty() {
            *value = cell.parse().map_err(|_| error("a number".into(), &format!("{cell:?}")))?;
        }
    }
    Ok(row)
}

fn same_rows(path: &DrivePath, kind: &str, rows: usize, times: usize) -> Result<(), Error> {
    if rows == times {
        return Ok(());
    }
    Err(Error::RowCounts { first: path.file("time"), first_rows: times, second: path.file(kind), second_rows: rows })
}

#[cfg(test)]
mod tests {
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
        let message = Drive::open(&path.folder.join("2")).unwrap_err().to_string();
        assert!(message.contains("no CSV files"), "{message}");
    }

    #[test]
    fn rows_become_a_pose_and_a_reading_with_the_same_stamp() {
        let (_folder, path) = drive("invensense", "1.5\r\n1.52\r\n", "1,2\r\n3,4\r\n", "10,20,30\r\n-1,2e1,.5\r\n");
        let drive = Drive::read(&path).unwrap();
        let measurements: Vec<Measurement> = drive.measurements().collect();
        assert_eq!(measurements.len(), 4);
        let [_, _, Measurement::Pose(pose), Measurement::Reading(reading)] = measurements[..] else { panic!() };
        assert_eq!((pose.stamp, reading.stamp), (Stamp::from_ros(1, 520_000_000), Stamp::from_ros(1, 520_000_000)));
        assert_eq!(pose.position, Point3::new(3.0, 4.0, 0.0));
        assert_eq!(*reading.field.microtesla(), Vector3::new(-1.0, 20.0, 0.5));
        assert!(drive.loss.is_empty());
    }

    #[test]
    fn trivisio_is_scaled_from_the_local_field() {
        let (_folder, path) = drive("trivisio", "0\n", "0,0\n", "1,0,-2\n");
        assert_eq!(Drive::read(&path).unwrap().fields[0], Vector3::new(TRIVISIO_UNIT, 0.0, -2.0 * TRIVISIO_UNIT));
    }

    #[test]
    fn repeated_stamps_are_spread_up_to_the_next_but_no_wider_than_usual() {
        let time = "0\n0.01\n0.01\n0.02\n0.03\n0.04\n0.04\n0.3\n0.3\n";
        let (_folder, path) = drive("trivisio", time, &"0,0\n".repeat(9), &"1,0,0\n".repeat(9));
        let drive = Drive::read(&path).unwrap();
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
        let drive = Drive::read(&path).unwrap();
        assert_eq!(drive.positions, [[0.0, 0.0], [2.0, 0.0]]);
        let report = drive.loss.to_string();
        assert_eq!(drive.loss.total(), 3, "{report}");
        assert!(report.contains("1-time.csv") && report.contains("line 2"), "{report}");
        assert!(report.contains("1-loc.csv") && report.contains("line 4"), "{report}");
        assert!(report.contains("before that of the row above") && report.contains("line 5"), "{report}");
    }

    #[test]
    fn what_is_no_number_is_named_with_file_and_line() {
        let (_folder, path) = drive("invensense", "0\n0.1\n", "0,0\n1,x\n", "1,2,3\n1,2,3\n");
        let message = Drive::read(&path).unwrap_err().to_string();
        assert!(message.contains("1-loc.csv, line 2") && message.contains("\"x\""), "{message}");
    }

    #[test]
    fn too_few_cells_and_different_row_counts_are_errors() {
        let (_folder, path) = drive("invensense", "0\n", "0,0\n", "1,2\n");
        assert!(Drive::read(&path).unwrap_err().to_string().contains("1-mag.csv, line 1: expected 3 numbers"));
        let (_folder, path) = drive("invensense", "0\n0.1\n", "0,0\n1,1\n", "1,2,3\n");
        let message = Drive::read(&path).unwrap_err().to_string();
        assert!(message.contains("has 2") && message.contains("has 1"), "{message}");
    }

    #[test]
    fn a_folder_without_a_sensors_name_is_refused() {
        let (_folder, path) = drive("phone", "0\n", "0,0\n", "1,2,3\n");
        assert!(Drive::read(&path).unwrap_err().to_string().contains("\"phone\""));
    }
}
