//! Reads TOML into a [`Config`]: every message names its key and its line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_path_to_error::Segment;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::{Config, Error, Problem, Program};
use crate::files::FileError;

/// Names less similar than this (Jaro-Winkler, 0 to 1) are not suggested.
const SIMILAR: f64 = 0.75;

/// Longest text that is read as settings; all of them with their comments are a thirtieth of it.
const MAX_TEXT: u64 = 1 << 18;

/// Longest key, in names: longer than any there is, and too short for a key to exhaust the stack.
const MAX_NAMES: usize = 4;

/// Line of every key, from 1.
type Lines = BTreeMap<String, usize>;

impl Config {
    /// Settings from TOML; those left out have their defaults. `source_name` (a file's name) appears in errors.
    ///
    /// # Errors
    /// [`Error::Syntax`], or [`Error::Invalid`] with the problems.
    pub fn from_toml(text: &str, source_name: &str) -> Result<Self, Error> {
        Config::default().with_toml(text, source_name)
    }

    /// Settings from a TOML file; those left out have their defaults.
    ///
    /// # Errors
    /// [`Error::Read`] and those of [`from_toml`](Self::from_toml).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Config::default().with_file(path)
    }

    /// Replaces settings by those in a TOML file.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn with_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let (text, source_name) = read(path.as_ref())?;
        self.with_toml(&text, &source_name)
    }

    /// Replaces settings that have an effect in a program by those in a TOML file, which may be for other programs as well: its other settings
    /// are checked, each for itself, and ignored.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn with_file_for(self, program: Program, path: impl AsRef<Path>) -> Result<Self, Error> {
        let (text, source_name) = read(path.as_ref())?;
        let (given, lines) = parse(&text, &source_name)?;
        let all = self.changed(vec![given], &lines, &source_name, Self::out_of_range)?;
        let ours = all.settings()?.into_iter().filter(|setting| setting.programs.contains(&program));
        let ours = ours.map(|setting| nested(&setting.key, setting.value)).collect();
        self.changed(ours, &lines, &source_name, Self::problems)
    }

    /// All settings as TOML, without comments.
    ///
    /// # Errors
    /// [`Error::Write`] for a number that TOML cannot hold (an integer above 2^63 - 1).
    pub fn to_toml(&self) -> Result<String, Error> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// Changes several settings at once, each given as `key=value` with the full key and the value as in TOML, such as
    /// `selection.delta=0.2`; text needs no quotes. Only the result need be valid.
    ///
    /// # Errors
    /// The errors of [`from_toml`](Self::from_toml); nothing is changed then.
    pub fn apply_overrides<A: AsRef<str>>(&mut self, assignments: &[A]) -> Result<(), Error> {
        let assignments: Vec<&str> = assignments.iter().map(AsRef::as_ref).collect();
        let values =
            assignments.iter().map(|assignment| parse_assignment(assignment)).collect::<Result<Vec<_>, _>>()?;
        self.apply_values(&values, &assignments.join(" "))
    }

    /// Changes settings by their full keys, all or none. `source_name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the problems; nothing is changed then.
    pub fn apply_values(&mut self, values: &[(String, Value)], source_name: &str) -> Result<(), Error> {
        let given: Vec<Table> = values.iter().map(|(key, value)| nested(key, value.clone())).collect();
        *self = self.changed(given, &Lines::new(), source_name, Self::problems)?;
        Ok(())
    }

    /// Rejects values out of range, also in settings made in code.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem.
    pub fn validate(&self) -> Result<(), Error> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(invalid(problems, &Lines::new(), "configuration")) }
    }

    fn with_toml(&self, text: &str, source_name: &str) -> Result<Self, Error> {
        let (given, lines) = parse(text, source_name)?;
        self.changed(vec![given], &lines, source_name, Self::problems)
    }

    /// Replaces settings by the given ones in turn, and rejects the result if it has problems.
    fn changed(
        &self,
        given: Vec<Table>,
        lines: &Lines,
        source_name: &str,
        problems_of: impl Fn(&Self) -> Vec<Problem>,
    ) -> Result<Self, Error> {
        let base = Table::try_from(self)?;
        let (mut changed, mut problems) = (base.clone(), Vec::new());
        let keys: Vec<String> = leaves(&base, "").into_iter().map(|(key, _)| key).collect();
        for given in given {
            merge(&mut changed, given, "", &keys, &mut problems);
        }
        match serde_path_to_error::deserialize::<_, Config>(changed.clone()) {
            // Serde stops at the first value of a wrong type.
            Err(error) => problems.push(wrong_type(&changed, &base, &error)),
            Ok(config) => {
                if problems.is_empty() {
                    problems = problems_of(&config);
                }
                if problems.is_empty() {
                    return Ok(config);
                }
            }
        }
        Err(invalid(problems, lines, source_name))
    }
}

fn invalid(mut problems: Vec<Problem>, lines: &Lines, source_name: &str) -> Error {
    for problem in &mut problems {
        problem.line = lines.get(&problem.key).copied();
    }
    problems.sort_by_key(|problem| problem.line);
    Error::Invalid { source_name: source_name.to_owned(), problems }
}

/// The text of a file of settings, and its name.
fn read(path: &Path) -> Result<(String, String), Error> {
    let read = |error| FileError::of("read the configuration", path, "")(error);
    let source_name = path.display().to_string();
    let file = File::open(path).map_err(read)?;
    let length = file.metadata().map_err(read)?.len();
    if length > MAX_TEXT {
        return Err(too_long(&source_name, length));
    }
    let mut text = String::new();
    // A pipe has no length, and may be endless.
    file.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(read)?;
    Ok((text, source_name))
}

fn parse(text: &str, source_name: &str) -> Result<(Table, Lines), Error> {
    if text.len() as u64 > MAX_TEXT {
        return Err(too_long(source_name, text.len() as u64));
    }
    let syntax = |error: toml::de::Error| Error::Syntax {
        source_name: source_name.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    };
    let table = text.parse().map_err(syntax)?;
    let ends: Vec<usize> = text.match_indices('\n').map(|(end, _)| end).collect();
    let mut lines = Lines::new();
    collect_lines(&ends, DeTable::parse(text).map_err(syntax)?.get_ref(), "", &mut lines);
    Ok((table, lines))
}

fn too_long(source_name: &str, length: u64) -> Error {
    let message = format!("it has {length} bytes, more than the {MAX_TEXT} that settings may have");
    Error::Syntax { source_name: source_name.to_owned(), message }
}

/// The line of every key, given where the lines end.
fn collect_lines(ends: &[usize], table: &DeTable<'_>, prefix: &str, lines: &mut Lines) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            collect_lines(ends, inner, &format!("{name}."), lines);
        }
        lines.insert(name, 1 + ends.partition_point(|&end| end < key.span().start));
    }
}

fn parse_assignment(assignment: &str) -> Result<(String, Value), Error> {
    let syntax = |expected: &str| Error::Syntax { source_name: assignment.to_owned(), message: expected.to_owned() };
    let (key, value) =
        assignment.split_once('=').ok_or_else(|| syntax("expected key=value, such as selection.delta=0.2"))?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() {
        return Err(syntax("expected a key before the =, such as selection.delta"));
    }
    // What is not a TOML value is text without quotes.
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    Ok((key.to_owned(), parsed.unwrap_or_else(|| value.into())))
}

/// A table that holds one value, under its full key.
fn nested(key: &str, value: Value) -> Table {
    let table = |inner: Value, name: &str| Table::from_iter([(name.to_owned(), inner)]);
    let mut names: Vec<&str> = key.splitn(MAX_NAMES, '.').collect();
    let first = names.remove(0);
    table(names.into_iter().rev().fold(value, |inner, name| table(inner, name).into()), first)
}

/// All values in a table, with their full keys.
pub(super) fn leaves<'a>(table: &'a Table, prefix: &str) -> Vec<(String, &'a Value)> {
    let leaves = table.iter().map(|(name, value)| match value {
        Value::Table(inner) => leaves(inner, &format!("{prefix}{name}.")),
        value => vec![(format!("{prefix}{name}"), value)],
    });
    leaves.flatten().collect()
}

/// Puts the given values in their places. An unknown key, or a value in place of a section, is a problem.
fn merge(base: &mut Table, given: Table, prefix: &str, keys: &[String], problems: &mut Vec<Problem>) {
    for (name, value) in given {
        let key = format!("{prefix}{name}");
        match (base.get_mut(&name), value) {
            (None, value) => problems.push(Problem::unknown(&key, &value, nearest(&key, value.is_table(), keys))),
            (Some(Value::Table(base)), Value::Table(given)) => merge(base, given, &format!("{key}."), keys, problems),
            (Some(Value::Table(_)), value) => problems.push(Problem::wrong(&key, "a section", value)),
            (Some(place), value) => *place = value,
        }
    }
}

/// The value that is to blame for an error; the one in `base` has the right type.
fn wrong_type(changed: &Table, base: &Table, error: &serde_path_to_error::Error<toml::de::Error>) -> Problem {
    let names = error.path().iter().filter_map(|segment| match segment {
        Segment::Map { key } => Some(key.as_str()),
        _ => None,
    });
    let key = names.collect::<Vec<_>>().join(".");
    let message = error.inner().message();
    match (value(changed, &key), value(base, &key)) {
        (Some(found), Some(valid)) => Problem::wrong(&key, expected(valid, message), found),
        _ => Problem::wrong(&key, message, ""),
    }
}

fn value<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((section, rest)) => value(table.get(section)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// The expectation of serde in place of a value such as `valid`, in the words of those who write settings.
fn expected(valid: &Value, message: &str) -> String {
    let expected = message.split_once("expected ").map_or(message, |(_, expected)| expected).trim_end();
    match (valid, expected) {
        (Value::Array(values), _) => format!("a list of {} numbers", values.len()),
        (_, "f64") => "a number".to_owned(),
        (_, "u32") => format!("a whole number, 0 to {}", u32::MAX),
        (_, "u64" | "usize") => "a whole number, 0 or above".to_owned(),
        (_, "a boolean") => "true or false".to_owned(),
        (_, "a string" | "string only") => "text in quotes".to_owned(),
        (_, other) => other.replace('`', ""),
    }
}

/// The known key, or the known section, that is most similar. Keys of other sections that end in the same name are similar too.
fn nearest(key: &str, is_section: bool, keys: &[String]) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let similarity =
        |known: &str| strsim::jaro_winkler(key, known).max(0.99 * strsim::jaro_winkler(&last(key), &last(known)));
    let known =
        keys.iter().filter_map(|key| if is_section { Some(key.rsplit_once('.')?.0) } else { Some(key.as_str()) });
    let best = known.map(|known| (similarity(known), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity > SIMILAR).map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Ceiling;
    use super::*;
    use streaming_gp::kernel::Shape;

    const PAPER: &str = include_str!("../../config/paper.toml");

    fn problems(text: &str) -> Vec<Problem> {
        match Config::from_toml(text, "test.toml") {
            Err(Error::Invalid { problems, .. }) => problems,
            other => panic!("expected problems, found {other:?}"),
        }
    }

    fn message(text: &str) -> String {
        Config::from_toml(text, "test.toml").expect_err("a problem").to_string()
    }

    #[test]
    fn paper_toml_holds_only_what_differs() {
        let paper = Config::from_toml(PAPER, "paper.toml").unwrap();
        assert_eq!((paper.averaging.spacing, paper.learning.prior, paper.selection.guards), (0.0, false, false));
        assert_eq!((paper.selection.delta, paper.learning.max_evaluations), (0.095, 1000));
        let start = &paper.model.initial;
        assert_eq!([start.constant, start.variance, start.lengthscale, start.noise], [500.0, 1.0, 1.0, 0.1]);
        let (given, _) = parse(PAPER, "paper.toml").unwrap();
        let defaults = Config::default();
        for (key, value) in leaves(&given, "") {
            // The paper's own values, even if a default is equal.
            if ["selection.delta", "model.initial.constant"].contains(&key.as_str()) {
                continue;
            }
            let mut changed = defaults.clone();
            changed.apply_overrides(&[&format!("{key}={value}")]).unwrap();
            assert_ne!(changed, defaults, "{key} is the default");
        }
    }

    #[test]
    fn what_is_written_reads_back_equal() {
        let mut config = Config::default();
        config.model.kernel = Shape::Matern12;
        config.selection.ceiling = Ceiling::Upper;
        config.sensor.position = [0.1, -0.2, 1e-3];
        config.topics.magnetometer = "/imu/\"mag\"".to_owned();
        assert_eq!(Config::from_toml(&config.to_toml().unwrap(), "written").unwrap(), config);
    }

    #[test]
    fn unknown_keys_come_with_their_line_and_the_nearest_known_key() {
        let error = message("[selection]\n# a comment\ndetla = 0.2\n");
        assert_eq!(error, "test.toml: line 3: unknown key selection.detla; did you mean selection.delta?");
        assert!(message("[selektion]\ndelta = 0.2").contains("did you mean selection?"));
        assert!(message("guards = true").contains("unknown key guards; did you mean selection.guards?"));
        assert!(message("[gates]\nspacing = 1.0").contains("did you mean averaging.spacing?"));
        assert!(message("[model.initial]\nnoize = 1").contains("did you mean model.initial.noise?"));
        assert!(message("qqqqqq = 0.2").ends_with("unknown key qqqqqq"));
    }

    #[test]
    fn wrong_types_say_what_was_expected_and_found() {
        let cases = [
            ("[selection]\ndelta = \"small\"", "line 2: selection.delta: expected a number, found \"small\""),
            ("[selection]\nguards = 1", "line 2: selection.guards: expected true or false, found 1"),
            ("[mapping]\ninbox = 1.5", "line 2: mapping.inbox: expected a whole number, 0 or above, found 1.5"),
            ("mapping.inbox = -1", "line 1: mapping.inbox: expected a whole number, 0 or above, found -1"),
            (
                "gates.reopen_after = 5000000000",
                "line 1: gates.reopen_after: expected a whole number, 0 to 4294967295, found 5000000000",
            ),
            ("[sensor]\nposition = [1, 2]", "line 2: sensor.position: expected a list of 3 numbers, found [1, 2]"),
            ("[topics]\nodometry = 3", "line 2: topics.odometry: expected text in quotes, found 3"),
            (
                "[sensor]\nposition = [1, \"a\", 2]",
                "line 2: sensor.position: expected a list of 3 numbers, found [1, \"a\", 2]",
            ),
            ("model.kernel = 3", "line 1: model.kernel: expected text in quotes, found 3"),
            ("model = 3", "line 1: model: expected a section, found 3"),
            ("topics = []", "line 1: topics: expected a section, found []"),
            ("model.likelihood.x = 1", "line 1: model.likelihood: expected gaussian or student_t, found a section"),
            ("[batch.max_path]\nx = 1", "line 1: batch.max_path: expected a number, found a section"),
        ];
        for (text, expected) in cases {
            assert_eq!(message(text), format!("test.toml: {expected}"));
        }
        let kernel = message("model.kernel = \"gauss\"");
        assert!(kernel.contains("model.kernel: expected one of matern12, matern32"), "{kernel}");
        assert!(message("[selection]\nmethod = \"vip\"").contains("expected one of vips, "));
    }

    #[test]
    fn values_out_of_range_are_rejected_key_by_key() {
        let cases = [
            "selection.delta = 0",
            "selection.delta = 1",
            "selection.delta = nan",
            "gates.minimum_field = -1",
            "gates.max_speed = -0.1",
            "gates.maximum_field = inf",
            "gates.reopen_after = 0",
            "gates.gradient_allowance = -1",
            "gates.reopen_time = -0.5",
            "gates.full_scale = nan",
            "gates.max_repeat = -0.25",
            "synchronizer.max_gap = 0",
            "synchronizer.max_waiting = 0",
            "averaging.spacing = -0.05",
            "batch.max_path = nan",
            "model.mean = inf",
            "model.relative_jitter = -1e-6",
            "model.degrees_of_freedom = 2",
            "model.initial.noise = 0",
            "model.initial.lengthscale = -1",
            "learning.prior_log_sd.variance = 0",
            "learning.prior_median.constant = nan",
            "selection.max_inducing_points = 0",
            "selection.redundancy = 1",
            "raster.resolution = 0",
            "raster.margin = -1",
            "raster.unknown_above = 0",
            "raster.max_cells = 0",
            "mapping.inbox = 0",
            "mapping.max_merged = 0",
            "store.checkpoint_batches = 0",
            "sensor.position = [0, nan, 0]",
            "sensor.orientation = [inf, 0, 0]",
        ];
        for text in cases {
            let found = problems(text);
            let key = text.split(" =").next().unwrap();
            assert_eq!((found.len(), found[0].key.as_str(), found[0].line), (1, key, Some(1)), "{text}: {found:?}");
        }
        let crossed = message("[gates]\nmaximum_field = 5\nminimum_field = 7");
        assert!(
            crossed.contains("line 2: gates.maximum_field: expected more than gates.minimum_field (7), found 5"),
            "{crossed}"
        );
    }

    #[test]
    fn problems_are_listed_in_the_order_of_lines() {
        let error = message("[raster]\nresolution = 0\nmargin = -1\n[selection]\ndelta = 2\n");
        assert!(error.starts_with("test.toml: 3 problems\n  line 2: raster.resolution"), "{error}");
        assert!(
            error.contains("\n  line 5: selection.delta: expected more than 0 and less than 1, found 2"),
            "{error}"
        );
        let keys: Vec<String> =
            problems("zzz = 1\n[raster]\nresolution = \"a\"\n[aaaa]\nb = 1").into_iter().map(|p| p.key).collect();
        assert_eq!(keys, ["zzz", "raster.resolution", "aaaa"]);
        // Of several values of a wrong type, the first.
        let wrong = problems("zz = 1\nmodel.kernel = 'x'\nselection.method = 'x'\n[raster]\nresolution = 'a'");
        let keys: Vec<&str> = wrong.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, ["zz", "model.kernel"]);
    }

    #[test]
    fn broken_toml_names_the_place() {
        let error = message("[selection]\ndelta = = 2");
        assert!(error.starts_with("test.toml is not valid TOML") && error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load("no/such/file.toml").unwrap_err().to_string();
        assert!(error.starts_with("cannot read the configuration no/such/file.toml: "), "{error}");
    }

    #[test]
    fn overrides_go_through_the_same_checks() {
        let mut config = Config::default();
        config.apply_overrides(&["selection.delta=0.2"]).unwrap();
        config.apply_overrides(&["model.kernel = matern32"]).unwrap();
        config.apply_overrides(&["topics.odometry=/odom"]).unwrap();
        config.apply_overrides(&["sensor.position=[0.1, 0, 1]"]).unwrap();
        config.apply_overrides(&["averaging.spacing=0"]).unwrap();
        assert_eq!((config.selection.delta, config.averaging.spacing), (0.2, 0.0));
        assert_eq!((config.model.kernel, config.topics.odometry.as_str()), (Shape::Matern32, "/odom"));
        assert_eq!(config.sensor.position, [0.1, 0.0, 1.0]);

        let before = config.clone();
        for (assignment, expected) in [
            ("selection.delta=2", "expected more than 0 and less than 1"),
            ("selection.delta=much", "selection.delta: expected a number, found \"much\""),
            ("selection.detla=0.2", "did you mean selection.delta?"),
            ("selection.delta", "expected key=value"),
            ("=3", "expected a key"),
            ("gates.minimum_field=2000", "expected more than gates.minimum_field (2000)"),
        ] {
            let error = config.apply_overrides(&[assignment]).expect_err(assignment).to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(config, before);
        }
        config.apply_overrides(&["gates.minimum_field=2000", "gates.maximum_field=3000"]).unwrap();
        assert_eq!(config.gates.minimum_field, 2000.0);
    }
}
