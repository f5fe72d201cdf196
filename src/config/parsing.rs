//! From TOML to [`Config`], key by key, so that every message names its key and its line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::{Config, Error, Problem};

/// Names less alike than this (Jaro-Winkler, 0 to 1) are not worth suggesting.
const ALIKE: f64 = 0.75;

/// Longest text that is read as settings; all of them with their comments are a thirtieth of it.
const MAX_TEXT: u64 = 1 << 18;

/// Line of every key, from 1.
pub(super) type Lines = BTreeMap<String, usize>;

impl Config {
    /// Settings from TOML; what is left out has its default. `source_name` (a file's name) appears in errors.
    ///
    /// # Errors
    /// [`Error::Syntax`], or [`Error::Invalid`] with every problem.
    pub fn from_toml(text: &str, source_name: &str) -> Result<Self, Error> {
        let (given, lines) = parse(text, source_name)?;
        Config::default().changed(&given, lines, source_name)
    }

    /// Settings from a TOML file; what is left out has its default.
    ///
    /// # Errors
    /// [`Error::Read`] and those of [`from_toml`](Self::from_toml).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Config::default().with_file(path)
    }

    /// These settings, with those that a TOML file names in their place.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let read = |source| Error::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(read)?;
        let length = file.metadata().map_err(read)?.len();
        if length > MAX_TEXT {
            return Err(too_long(&path.display().to_string(), length));
        }
        // What has no length, such as a pipe, may still be endless.
        file.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(read)?;
        let source_name = path.display().to_string();
        let (given, lines) = parse(&text, &source_name)?;
        self.changed(&given, lines, &source_name)
    }

    /// All settings as TOML, without comments.
    ///
    /// # Errors
    /// [`Error::Write`] for a number that TOML cannot hold (an integer above 2^63 - 1).
    pub fn to_toml(&self) -> Result<String, Error> {
        Ok(toml::to_string_pretty(self)?)
    }

    /// Changes one setting, given as `key=value` with the full key and the value as in TOML, such as `selection.delta=0.2`; text
    /// needs no quotes.
    ///
    /// # Errors
    /// As [`from_toml`](Self::from_toml); nothing is changed then.
    pub fn apply_override(&mut self, assignment: &str) -> Result<(), Error> {
        self.apply_overrides(&[assignment])
    }

    /// Changes several settings at once, so that only their sum need be possible.
    ///
    /// # Errors
    /// As [`apply_override`](Self::apply_override); nothing is changed then.
    pub fn apply_overrides<A: AsRef<str>>(&mut self, assignments: &[A]) -> Result<(), Error> {
        let mut changed = self.clone();
        for assignment in assignments.iter().map(AsRef::as_ref) {
            let given = parse_assignment(assignment)?;
            changed = changed.merged(&given, &Lines::new()).map_err(|problems| invalid(assignment, problems))?;
        }
        let problems = changed.problems();
        if !problems.is_empty() {
            let all: Vec<&str> = assignments.iter().map(AsRef::as_ref).collect();
            return Err(invalid(&all.join(" "), problems));
        }
        *self = changed;
        Ok(())
    }

    /// Refuses impossible values, also of settings that were put together in code.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem.
    pub fn validate(&self) -> Result<(), Error> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(invalid("configuration", problems)) }
    }

    fn changed(self, given: &Table, lines: Lines, source_name: &str) -> Result<Self, Error> {
        let config = self.merged(given, &lines).map_err(|problems| invalid(source_name, problems))?;
        let mut problems = config.problems();
        for problem in &mut problems {
            problem.line = lines.get(&problem.key).copied();
        }
        if problems.is_empty() { Ok(config) } else { Err(invalid(source_name, problems)) }
    }

    /// These settings with the given ones in place: keys and types are checked, values are not.
    pub(super) fn merged(&self, given: &Table, lines: &Lines) -> Result<Self, Vec<Problem>> {
        let base = Table::try_from(self).map_err(|error| vec![unwritable(&error)])?;
        let mut merger = Merger { merged: base.clone(), lines, problems: Vec::new(), keys: leaves(&base, "") };
        merger.merge(given, &mut Vec::new(), &base);
        if !merger.problems.is_empty() {
            return Err(merger.problems);
        }
        Config::deserialize(merger.merged).map_err(|error| vec![unwritable(&error)])
    }
}

fn invalid(source_name: &str, mut problems: Vec<Problem>) -> Error {
    problems.sort_by_key(|problem| problem.line);
    Error::Invalid { source_name: source_name.to_owned(), problems }
}

/// Settings made in code may hold what TOML cannot.
pub(super) fn unwritable(error: &dyn std::fmt::Display) -> Problem {
    let expected = Some("settings that TOML can hold".to_owned());
    Problem { key: "configuration".to_owned(), line: None, expected, found: error.to_string(), nearest: None }
}

fn parse(text: &str, source_name: &str) -> Result<(Table, Lines), Error> {
    let syntax = |error: toml::de::Error| Error::Syntax {
        source_name: source_name.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    };
    if text.len() as u64 > MAX_TEXT {
        return Err(too_long(source_name, text.len() as u64));
    }
    let table: Table = text.parse().map_err(syntax)?;
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

fn parse_assignment(assignment: &str) -> Result<Table, Error> {
    let syntax = |message: String| Error::Syntax { source_name: format!("--set {assignment}"), message };
    let (key, value) = assignment
        .split_once('=')
        .ok_or_else(|| syntax("expected key=value, such as selection.delta=0.2".to_owned()))?;
    let (key, value) = (key.trim(), value.trim());
    if key.split('.').any(str::is_empty) {
        return Err(syntax("expected a key before the =, such as selection.delta".to_owned()));
    }
    // What is no TOML value is text without its quotes.
    let value = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    match nested(key, value) {
        Value::Table(table) => Ok(table),
        _ => Err(syntax("expected key=value".to_owned())),
    }
}

/// The value under a full key, as a table in tables.
pub(super) fn nested(key: &str, value: Value) -> Value {
    key.rsplit('.').fold(value, |inner, part| Value::Table(Table::from_iter([(part.to_owned(), inner)])))
}

/// Full keys of all values in a table.
pub(super) fn leaves(table: &Table, prefix: &str) -> Vec<String> {
    table
        .iter()
        .flat_map(|(key, value)| match value {
            Value::Table(inner) => leaves(inner, &format!("{prefix}{key}.")),
            _ => vec![format!("{prefix}{key}")],
        })
        .collect()
}

/// Puts given values in the place of those they replace.
struct Merger<'a> {
    merged: Table,
    lines: &'a Lines,
    problems: Vec<Problem>,
    /// All keys there are.
    keys: Vec<String>,
}

impl Merger<'_> {
    fn merge(&mut self, given: &Table, path: &mut Vec<String>, base: &Table) {
        for (key, value) in given {
            path.push(key.clone());
            match (base.get(key), value) {
                (None, _) => self.unknown(path, value),
                (Some(Value::Table(base)), Value::Table(given)) => self.merge(given, path, base),
                (Some(base), _) => self.replace(path, base, value),
            }
            path.pop();
        }
    }

    fn replace(&mut self, path: &[String], base: &Value, value: &Value) {
        let Some(value) = converted(base, value) else {
            return self.problem(path, expected_kind(base), display(value));
        };
        let mut trial = self.merged.clone();
        put(&mut trial, path, value.clone());
        match Config::deserialize(trial.clone()) {
            Ok(_) => self.merged = trial,
            Err(error) => self.problem(path, complaint(error.message()), display(&value)),
        }
    }

    fn problem(&mut self, path: &[String], expected: String, found: String) {
        let key = path.join(".");
        let line = self.lines.get(&key).copied();
        self.problems.push(Problem { key, line, expected: Some(expected), found, nearest: None });
    }

    fn unknown(&mut self, path: &[String], value: &Value) {
        let key = path.join(".");
        let line = self.lines.get(&key).copied();
        let nearest = self.nearest(&key, value.is_table());
        self.problems.push(Problem { key, line, expected: None, found: display(value), nearest });
    }

    /// The known key that looks most like this one. A section is compared with sections; a key also counts as like one in
    /// another section that ends in the same name.
    fn nearest(&self, key: &str, is_table: bool) -> Option<String> {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let likeness = |known: &str| {
            let whole = strsim::jaro_winkler(key, known);
            whole.max(0.99 * strsim::jaro_winkler(&last(key), &last(known)))
        };
        let sections =
            || self.keys.iter().filter_map(|key| key.rsplit_once('.').map(|(section, _)| section.to_owned()));
        let candidates: Vec<String> = if is_table { sections().collect() } else { self.keys.clone() };
        let best = candidates.into_iter().map(|known| (likeness(&known), known)).max_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|(likeness, _)| *likeness > ALIKE).map(|(_, known)| known)
    }
}

/// The value as one of the same kind as `base`; `None` where it is of another kind. Whole numbers may stand for real ones.
fn converted(base: &Value, value: &Value) -> Option<Value> {
    match (base, value) {
        (Value::Float(_), Value::Integer(integer)) => Some(Value::Float(*integer as f64)),
        (Value::Array(base), Value::Array(values)) if base.len() == values.len() => {
            base.iter().zip(values).map(|(base, value)| converted(base, value)).collect::<Option<_>>().map(Value::Array)
        }
        (Value::Array(_), Value::Array(_)) => None,
        _ => base.same_type(value).then(|| value.clone()),
    }
}

fn expected_kind(base: &Value) -> String {
    match base {
        Value::String(_) => "text in quotes".to_owned(),
        Value::Integer(_) => "a whole number".to_owned(),
        Value::Float(_) => "a number".to_owned(),
        Value::Boolean(_) => "true or false".to_owned(),
        Value::Array(values) => format!("a list of {} numbers", values.len()),
        Value::Table(_) => "a section".to_owned(),
        Value::Datetime(_) => "a date".to_owned(),
    }
}

/// What serde says was expected, without its prologue.
fn complaint(message: &str) -> String {
    message.split_once("expected ").map_or(message, |(_, expected)| expected).trim_end().replace('`', "")
}

fn display(value: &Value) -> String {
    match value {
        Value::Table(_) => "a section".to_owned(),
        other => other.to_string(),
    }
}

fn put(table: &mut Table, path: &[String], value: Value) {
    match path {
        [key] => drop(table.insert(key.clone(), value)),
        [section, rest @ ..] => {
            if let Some(Value::Table(inner)) = table.get_mut(section) {
                put(inner, rest, value);
            }
        }
        [] => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ceiling;
    use super::*;
    use streaming_gp::kernel::Shape;

    const DEFAULT: &str = include_str!("../../config/default.toml");
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
    fn default_toml_spells_out_every_default() {
        assert_eq!(Config::from_toml(DEFAULT, "default.toml").unwrap(), Config::default());
        let (_, lines) = parse(DEFAULT, "default.toml").unwrap();
        for key in leaves(&Table::try_from(Config::default()).unwrap(), "") {
            let line = *lines.get(&key).unwrap_or_else(|| panic!("{key} is missing"));
            let comment = DEFAULT.lines().nth(line - 2).unwrap();
            assert!(comment.starts_with("# "), "{key} on line {line} has no comment");
        }
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
        for key in leaves(&given, "") {
            // These are the paper's own, whatever becomes of the defaults.
            if ["selection.delta", "model.initial.constant"].contains(&key.as_str()) {
                continue;
            }
            let value = key.split('.').fold(Value::Table(given.clone()), |value, part| value[part].clone());
            let mut changed = defaults.clone();
            changed.apply_override(&format!("{key}={value}")).unwrap();
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
        assert!(message("delta = 0.2").contains("unknown key delta; did you mean selection.delta?"));
        assert!(message("[gates]\nspacing = 1.0").contains("did you mean averaging.spacing?"));
        assert!(message("[model.initial]\nnoize = 1").contains("did you mean model.initial.noise?"));
        assert!(message("qqqqqq = 0.2").ends_with("unknown key qqqqqq"));
    }

    #[test]
    fn wrong_types_say_what_was_expected_and_found() {
        let cases = [
            ("[selection]\ndelta = \"small\"", "line 2: selection.delta: expected a number, found \"small\""),
            ("[selection]\nguards = 1", "line 2: selection.guards: expected true or false, found 1"),
            ("[worker]\ninbox = 1.5", "line 2: worker.inbox: expected a whole number, found 1.5"),
            ("[sensor]\nposition = [1, 2]", "line 2: sensor.position: expected a list of 3 numbers, found [1, 2]"),
            ("[topics]\nodometry = 3", "line 2: topics.odometry: expected text in quotes, found 3"),
            ("model = 3", "line 1: model: expected a section, found 3"),
            ("[batch.max_path]\nx = 1", "line 1: batch.max_path: expected a number, found a section"),
        ];
        for (text, expected) in cases {
            assert_eq!(message(text), format!("test.toml: {expected}"));
        }
        let kernel = message("model.kernel = \"gauss\"");
        assert!(kernel.contains("model.kernel: expected one of matern12, matern32"), "{kernel}");
        let negative = message("worker.inbox = -1");
        assert!(negative.contains("line 1: worker.inbox: expected ") && negative.ends_with("found -1"), "{negative}");
        assert!(message("gates.reopen_after = 5000000000").contains("gates.reopen_after: expected u32"));
    }

    #[test]
    fn impossible_values_are_refused_key_by_key() {
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
            "dual_memory.inducing_points = 0",
            "dual_memory.memory_evidence = 1.1",
            "dual_memory.max_steps = 0",
            "dual_memory.step_length = 1.5",
            "bernoulli.variance = 0",
            "topics.signal = '/contact'",
            "raster.resolution = 0",
            "raster.margin = -1",
            "raster.unknown_above = 0",
            "raster.max_cells = 0",
            "worker.inbox = 0",
            "worker.max_merged = 0",
            "journal.checkpoint_batches = 0",
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
    fn a_yes_no_signal_asks_for_its_topic_its_method_and_odometry() {
        let found = problems("model.likelihood = 'bernoulli'\nframes = { pose_source = 'transforms', map = 'map' }");
        let keys: Vec<&str> = found.iter().map(|problem| problem.key.as_str()).collect();
        // What has no line comes first.
        assert_eq!(keys, ["selection.method", "topics.signal", "frames.pose_source"]);
        let error = message("model.likelihood = 'bernoulli'\ntopics.signal = '/contact'");
        assert_eq!(
            error,
            "test.toml: selection.method: expected dual_memory, because no other method maps a yes/no signal \
             (model.likelihood is bernoulli), found vips"
        );
        let mut config = Config::default();
        let signal = ["model.likelihood=bernoulli", "selection.method=dual_memory=30", "topics.signal=/contact"];
        config.apply_overrides(&signal).unwrap();
        assert_eq!(Config::from_toml(&config.to_toml().unwrap(), "written").unwrap(), config);
    }

    #[test]
    fn every_problem_is_listed_in_the_order_of_lines() {
        let error = message("[raster]\nresolution = 0\nmargin = -1\n[selection]\ndelta = 2\n");
        assert!(error.starts_with("test.toml: 3 problems\n  line 2: raster.resolution"), "{error}");
        assert!(
            error.contains("\n  line 5: selection.delta: expected more than 0 and less than 1, found 2"),
            "{error}"
        );
        let keys: Vec<String> =
            problems("zzz = 1\n[raster]\nresolution = \"a\"\n[aaaa]\nb = 1").into_iter().map(|p| p.key).collect();
        assert_eq!(keys, ["zzz", "raster.resolution", "aaaa"]);
    }

    #[test]
    fn broken_toml_names_the_place() {
        let error = message("[selection]\ndelta = = 2");
        assert!(error.starts_with("test.toml is not valid TOML") && error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load("no/such/file.toml").unwrap_err().to_string();
        assert!(error.starts_with("could not read the configuration no/such/file.toml: "), "{error}");
    }

    #[test]
    fn overrides_go_through_the_same_checks() {
        let mut config = Config::default();
        config.apply_override("selection.delta=0.2").unwrap();
        config.apply_override("model.kernel = matern32").unwrap();
        config.apply_override("topics.odometry=/odom").unwrap();
        config.apply_override("sensor.position=[0.1, 0, 1]").unwrap();
        config.apply_override("averaging.spacing=0").unwrap();
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
            let error = config.apply_override(assignment).expect_err(assignment).to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(config, before);
        }
        config.apply_overrides(&["gates.minimum_field=2000", "gates.maximum_field=3000"]).unwrap();
        assert_eq!(config.gates.minimum_field, 2000.0);
    }
}
