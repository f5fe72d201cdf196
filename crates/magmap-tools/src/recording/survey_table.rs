//! A survey as plain CSV: a header, then a row for each reading with its place and the field there.
//!
//! | column | content | unit |
//! | --- | --- | --- |
//! | `x`, `y`, `z` | position of the sensor in the frame of the map | `m`, `cm`, `mm` |
//! | `bx`, `by`, `bz`, or `mx`, `my`, `mz` | the field along the axes of the map, or of the sensor where the rows have an orientation | `uT`, `nT`, `mT`, `T`, `mG`, `G` |
//! | `qx`, `qy`, `qz`, `qw`, or `yaw` (optional) | rotation from the axes of the sensor to those of the map | `rad`, `deg` |
//! | `stamp` (optional) | time of the reading, not before that of the row above | `s`, `ms`, `us`, `ns` |
//!
//! A header may name another unit than the first of these: `bx_nT`, `bx [nT]` or `bx (nT)`. Other columns are ignored, as are lines
//! that start with `#`. Rows without a stamp are stamped as if the sensor had travelled through them at 0.5 m/s.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord, Trim};
use nalgebra::{Point3, Quaternion, UnitQuaternion, Vector3};
use sha2::{Digest, Sha256};

use super::{Error, Loss};
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp, isometry};

/// The units of each quantity and what one of them is in metres, microtesla, radians or seconds; the first is meant where a header
/// names none.
type Units = &'static [(&'static str, f64)];
const LENGTH: Units = &[("m", 1.0), ("cm", 1e-2), ("mm", 1e-3)];
const FIELD: Units = &[("uT", 1.0), ("nT", 1e-3), ("mT", 1e3), ("T", 1e6), ("mG", 0.1), ("G", 100.0)];
const ANGLE: Units = &[("rad", 1.0), ("deg", std::f64::consts::PI / 180.0)];
const TIME: Units = &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)];
const NUMBER: Units = &[("1", 1.0)];

const KNOWN: [(&str, Units); 12] = [
    ("x", LENGTH),
    ("y", LENGTH),
    ("z", LENGTH),
    ("bx", FIELD),
    ("by", FIELD),
    ("bz", FIELD),
    ("qx", NUMBER),
    ("qy", NUMBER),
    ("qz", NUMBER),
    ("qw", NUMBER),
    ("yaw", ANGLE),
    ("stamp", TIME),
];

/// Another name of a column.
fn other_name(known: &'static str) -> &'static str {
    match known {
        "bx" => "mx",
        "by" => "my",
        "bz" => "mz",
        same => same,
    }
}

/// Median strengths of a survey in microtesla; outside, a unit that the header does not name is doubtful. The field of the Earth has 25
/// to 65, buildings change it by a factor of two or so.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 5.0..=500.0;

/// Speed at which rows without a stamp are travelled through, in metres per second, and the least time between two, in seconds.
const SPEED: f64 = 0.5;
const LEAST_INTERVAL: f64 = 0.02;

/// A survey in memory.
pub(super) struct SurveyTable {
    pub(super) rows: Vec<(Pose, Reading)>,
    /// Whether the rows have an orientation: otherwise the field is along the axes of the map.
    pub(super) has_orientation: bool,
    /// Peculiarities that are no loss.
    pub(super) notes: Vec<String>,
    /// Rows that were left out.
    pub(super) loss: Loss,
}

impl SurveyTable {
    /// Whether this is the path of one: any CSV file.
    pub(super) fn is_at(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) && path.is_file()
    }

    /// Reads a survey. A row with a missing or invalid number, or with a stamp before that of the row above, is left out and counted.
    ///
    /// # Errors
    /// A file that cannot be read; columns that are missing, twice there, incomplete, in an unknown unit, or whose values contradict the
    /// unit that they would have. The error names them.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let file = BufReader::new(File::open(path).map_err(Error::io("read", path))?);
        let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).comment(Some(b'#')).from_reader(file);
        let unusable = |reason: String| Error::unusable(path, reason);
        let header = reader.headers().map_err(|error| unusable(format!("expected a header, found {error}")))?.clone();
        let columns = Columns::of(&header).map_err(unusable)?;
        let mut table = Self {
            rows: Vec::new(),
            has_orientation: columns.has_orientation(),
            notes: columns.notes(),
            loss: Loss::default(),
        };
        table.read_rows(path, &mut reader, &columns)?;
        columns.check_unit(&table).map_err(unusable)?;
        Ok(table)
    }

    /// First and last stamp.
    pub(super) fn span(&self) -> Option<(Stamp, Stamp)> {
        self.rows.first().zip(self.rows.last()).map(|((first, _), (last, _))| (first.stamp, last.stamp))
    }

    /// For each row a pose, directly followed by the reading with the same stamp.
    pub(super) fn measurements(&self) -> impl Iterator<Item = Measurement> {
        self.rows.iter().flat_map(|&(pose, reading)| [Measurement::Pose(pose), Measurement::Reading(reading)])
    }

    /// Adds the content.
    pub(super) fn digest(&self) -> Sha256 {
        let mut digest = Sha256::new();
        for (pose, reading) in &self.rows {
            digest.update(pose.stamp.nanoseconds().to_le_bytes());
            let numbers =
                pose.position.iter().chain(pose.orientation.coords.iter()).chain(reading.field.microtesla().iter());
            numbers.for_each(|number| digest.update(number.to_le_bytes()));
        }
        digest
    }

    fn read_rows(
        &mut self,
        path: &Path,
        reader: &mut Reader<impl std::io::Read>,
        columns: &Columns,
    ) -> Result<(), Error> {
        let mut record = StringRecord::new();
        loop {
            let line = reader.position().line();
            let row = match reader.read_record(&mut record) {
                Ok(false) => return Ok(()),
                Ok(true) => columns.row(&record, self.rows.last()),
                Err(error) => match error.into_kind() {
                    csv::ErrorKind::Io(source) => return Err(Error::io("read", path)(source)),
                    _ => Err("text that is not UTF-8"),
                },
            };
            match row {
                Ok(row) => self.rows.push(row),
                Err(why) => {
                    let line = record.position().map_or(line, csv::Position::line);
                    self.loss.add(&format!("rows with {why} in {}", path.display()), 1, Some(format!("line {line}")));
                }
            }
        }
    }

    /// The median strength, in microtesla.
    fn median_strength(&self) -> Option<f64> {
        let mut strengths: Vec<f64> = self.rows.iter().map(|(_, reading)| reading.field.strength()).collect();
        let middle = strengths.len() / 2;
        (!strengths.is_empty()).then(|| *strengths.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

/// Indices of the columns.
struct Columns {
    /// For each of [`KNOWN`] its index and its unit.
    found: [Option<Column>; KNOWN.len()],
    ignored: Vec<String>,
}

#[derive(Clone, Copy)]
struct Column {
    index: usize,
    factor: f64,
    names_unit: bool,
}

impl Columns {
    fn of(header: &StringRecord) -> Result<Self, String> {
        let mut columns = Self { found: [None; KNOWN.len()], ignored: Vec::new() };
        for (index, cell) in header.iter().enumerate() {
            let (name, unit) = name_and_unit(cell);
            let is_named =
                |known: &'static str| [known, other_name(known)].iter().any(|known| name.eq_ignore_ascii_case(known));
            let Some(known) = KNOWN.iter().position(|(known, _)| is_named(known)) else {
                columns.ignored.push(cell.into());
                continue;
            };
            let units = KNOWN[known].1;
            let same = |known: &str| unit.replace(['µ', 'μ'], "u").eq_ignore_ascii_case(known);
            let factor = if unit.is_empty() {
                units[0].1
            } else {
                let listed = units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                let unit = units.iter().find(|(known, _)| same(known));
                unit.ok_or_else(|| format!("the column {cell:?} has an unknown unit: expected one of {listed}"))?.1
            };
            let column = Column { index, factor, names_unit: !unit.is_empty() };
            if columns.found[known].replace(column).is_some() {
                return Err(format!("the column {name} is there twice"));
            }
        }
        columns.check(header)?;
        Ok(columns)
    }

    /// Whether all columns are there that are needed, and none contradicts another.
    fn check(&self, header: &StringRecord) -> Result<(), String> {
        let missing = |names: &[&str]| -> Vec<String> {
            names.iter().filter(|name| self.column(name).is_none()).map(|name| (*name).into()).collect()
        };
        let absent = missing(&["x", "y", "z", "bx", "by", "bz"]);
        if !absent.is_empty() {
            let found = header.iter().collect::<Vec<_>>().join(", ");
            let absent = absent.join(", ");
            return Err(format!("the header has no column {absent}: expected x, y, z, bx, by, bz, found {found}"));
        }
        let absent = missing(&["qx", "qy", "qz", "qw"]);
        match (absent.len(), self.column("yaw")) {
            (1..=3, _) => Err(format!("the orientation is incomplete: the header has no column {}", absent.join(", "))),
            (0, Some(_)) => Err("the orientation is there twice: expected qx, qy, qz, qw or yaw, found both".into()),
            _ => Ok(()),
        }
    }

    /// Whether the field can be in the unit that is meant where the header names none.
    fn check_unit(&self, table: &SurveyTable) -> Result<(), String> {
        let names_unit =
            ["bx", "by", "bz"].iter().all(|name| self.column(name).is_some_and(|column| column.names_unit));
        let Some(strength) = table.median_strength().filter(|strength| !names_unit && !PLAUSIBLE.contains(strength))
        else {
            return Ok(());
        };
        let like_earth = FIELD.iter().filter(|(_, factor)| (20.0..80.0).contains(&(strength * factor)));
        let guess = like_earth.map(|(unit, _)| format!("; in {unit} it would be like that of the Earth")).next();
        Err(format!(
            "the unit of bx, by, bz is doubtful: expected microtesla, found a median strength of {strength}{}. Name the unit in the \
             header: bx_uT, bx_nT, bx_T, bx_G",
            guess.unwrap_or_default()
        ))
    }

    fn column(&self, name: &str) -> Option<Column> {
        KNOWN.iter().position(|(known, _)| *known == name).and_then(|known| self.found[known])
    }

    fn has_orientation(&self) -> bool {
        self.column("yaw").or(self.column("qw")).is_some()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.ignored.is_empty() {
            notes.push(format!("other columns are ignored: {}", self.ignored.join(", ")));
        }
        if self.column("stamp").is_none() {
            notes.push(format!("no column stamp: rows are stamped as if the sensor travelled at {SPEED} m/s"));
        }
        if !self.has_orientation() {
            notes.push("no orientation: the field is taken along the axes of the map".into());
        }
        notes
    }

    /// The pose and the reading of a row after `last`, or what is wrong with it.
    fn row(&self, record: &StringRecord, last: Option<&(Pose, Reading)>) -> Result<(Pose, Reading), &'static str> {
        // NaN for what is missing, so that one check finds it.
        let number = |name: &str| {
            let column = self.column(name)?;
            Some(record.get(column.index).and_then(|cell| cell.parse().ok()).unwrap_or(f64::NAN) * column.factor)
        };
        let vector = |names: [&str; 3]| Vector3::from(names.map(|name| number(name).unwrap_or(f64::NAN)));
        let rotation = match (number("yaw"), number("qw")) {
            (Some(yaw), _) => UnitQuaternion::from_euler_angles(0.0, 0.0, yaw).into_inner(),
            (_, Some(w)) => Quaternion::from_parts(w, vector(["qx", "qy", "qz"])),
            _ => Quaternion::identity(),
        };
        let place = vector(["x", "y", "z"]);
        let field = vector(["bx", "by", "bz"]);
        if !place.iter().all(|coordinate| coordinate.is_finite()) {
            return Err("no position");
        }
        if !field.iter().all(|component| component.is_finite()) {
            return Err("no field");
        }
        let place = isometry(place, rotation).ok_or("no orientation")?;
        let seconds = number("stamp").unwrap_or_else(|| {
            last.map_or(0.0, |(pose, _)| {
                let distance = (place.translation.vector - pose.position.coords).norm();
                pose.stamp.seconds() + (distance / SPEED).max(LEAST_INTERVAL)
            })
        });
        if !(0.0..i32::MAX.into()).contains(&seconds) {
            return Err("no stamp");
        }
        let stamp = Stamp::from_seconds(seconds);
        if last.is_some_and(|(pose, _)| stamp < pose.stamp) {
            return Err("a stamp before that of the row above");
        }
        let pose = Pose { stamp, position: Point3::from(place.translation.vector), orientation: place.rotation };
        Ok((pose, Reading { stamp, field: MagneticField::from_microtesla(field) }))
    }
}

/// Name and unit of a header's cell: `bx_nT`, `bx [nT]`, `bx (nT)`, or `bx` without a unit.
fn name_and_unit(cell: &str) -> (&str, &str) {
    let (name, unit) = cell.split_once(['_', '[', '(']).unwrap_or((cell, ""));
    (name.trim(), unit.trim_end_matches([']', ')']).trim())
}
