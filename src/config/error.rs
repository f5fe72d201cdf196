//! Errors in settings.

use std::fmt;

use serde::Serialize;
use toml::Value;

use super::Program;
use crate::files::FileError;

/// Why settings were rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] FileError),
    /// The text is not valid TOML.
    #[error("{source_name} is not valid TOML: {message}")]
    Syntax {
        /// Source of the text.
        source_name: String,
        /// The error, with line and column.
        message: String,
    },
    /// Keys or values are wrong.
    #[error("{source_name}: {}", list(problems))]
    Invalid {
        /// Source of the settings.
        source_name: String,
        /// Every unknown key and the first value of a wrong type, or else every value out of range, in the order of the lines.
        problems: Vec<Problem>,
    },
    /// A setting differs from the one that a map was made with, and must not.
    #[error(
        "{key} is {configured}, but the map was made with {made_with}; set {key} = {made_with}, or start a new map"
    )]
    SettingDiffers {
        /// The full key of the setting.
        key: String,
        /// The value when the map was made.
        made_with: String,
        /// The value in the configuration.
        configured: String,
    },
    /// A setting has no effect in the program that it was given to.
    #[error("{key} has no effect in {program}, only in {others}; leave it out")]
    WithoutEffect {
        /// The full key of the setting.
        key: String,
        /// The program.
        program: Program,
        /// The programs in which the setting has an effect.
        others: String,
    },
    /// The settings could not be written as TOML.
    #[error("could not write the configuration as TOML: {0}")]
    Write(#[from] toml::ser::Error),
}

/// A problem with one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The full key, such as `selection.delta`.
    pub key: String,
    /// Line of the key, from 1; none for a default that contradicts another value.
    pub line: Option<usize>,
    /// The values that are expected; nothing for a key that does not exist.
    pub expected: Option<String>,
    /// The value that was found.
    pub found: String,
    /// For a key that does not exist, the one that was probably meant.
    pub nearest: Option<String>,
}

impl Problem {
    pub(super) fn wrong(key: &str, expected: impl Into<String>, found: impl Serialize) -> Self {
        let found = Value::try_from(found).map_or_else(|error| error.to_string(), |value| in_words(&value));
        Self { key: key.to_owned(), line: None, expected: Some(expected.into()), found, nearest: None }
    }

    pub(super) fn unknown(key: &str, found: &Value, nearest: Option<String>) -> Self {
        Self { key: key.to_owned(), line: None, expected: None, found: in_words(found), nearest }
    }
}

fn in_words(value: &Value) -> String {
    if value.is_table() { "a section".to_owned() } else { value.to_string() }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        match (&self.expected, &self.nearest) {
            (Some(expected), _) => write!(formatter, "{}: expected {expected}, found {}", self.key, self.found),
            (None, Some(nearest)) => write!(formatter, "unknown key {}; did you mean {nearest}?", self.key),
            (None, None) => write!(formatter, "unknown key {}", self.key),
        }
    }
}

fn list(problems: &[Problem]) -> String {
    match problems {
        [problem] => problem.to_string(),
        _ => {
            problems.iter().fold(format!("{} problems", problems.len()), |list, problem| format!("{list}\n  {problem}"))
        }
    }
}
