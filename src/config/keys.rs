//! The settings one by one: for those who set them by name, as ROS parameters are.

use toml::{Table, Value};

use super::parsing::{leaves, nested, unwritable};
use super::{Config, Error, Problem};

/// The file that spells out every setting, with the comments that describe them.
const DESCRIBED: &str = include_str!("../../config/default.toml");

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The full key, such as `selection.delta`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// What it means, as `config/default.toml` says it.
    pub description: String,
}

impl Config {
    /// Every setting with its value here, in the order of their keys.
    ///
    /// # Errors
    /// [`Error::Write`] for a number that TOML cannot hold.
    pub fn settings(&self) -> Result<Vec<Setting>, Error> {
        let table = Table::try_from(self)?;
        let setting = |key: String| {
            let value = value_of(&table, &key)?.clone();
            Some(Setting { description: description(&key), key, value })
        };
        Ok(leaves(&table, "").into_iter().filter_map(setting).collect())
    }

    /// Changes settings by their full keys, all or none. `source_name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem; nothing is changed then.
    pub fn apply_values(&mut self, values: &[(String, Value)], source_name: &str) -> Result<(), Error> {
        let mut changed = self.clone();
        let mut problems = Vec::new();
        for (key, value) in values {
            match changed.with_value(key, value.clone()) {
                Ok(next) => changed = next,
                Err(found) => problems.extend(found),
            }
        }
        if problems.is_empty() {
            problems = changed.problems();
        }
        if !problems.is_empty() {
            return Err(Error::Invalid { source_name: source_name.to_owned(), problems });
        }
        *self = changed;
        Ok(())
    }

    fn with_value(&self, key: &str, value: Value) -> Result<Self, Vec<Problem>> {
        match nested(key, value) {
            Value::Table(given) => self.merged(&given, &Default::default()),
            value => Err(vec![unwritable(&value)]),
        }
    }
}

fn value_of<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((section, rest)) => value_of(table.get(section)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// The comment above a key.
fn description(wanted: &str) -> String {
    let (mut section, mut comment) = (String::new(), String::new());
    for line in DESCRIBED.lines() {
        if let Some(words) = line.strip_prefix('#') {
            comment.push_str(words);
            continue;
        }
        if let Some((key, _)) = line.split_once(" = ")
            && format!("{section}{key}") == wanted
        {
            return comment.trim().to_owned();
        }
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        }
        comment.clear();
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described() {
        let settings = Config::default().settings().unwrap();
        assert!(settings.len() > 50, "{}", settings.len());
        let silent: Vec<_> = settings.iter().filter(|setting| setting.description.is_empty()).collect();
        assert!(silent.is_empty(), "{silent:?}");
        let noise = settings.iter().find(|setting| setting.key == "model.initial.noise").unwrap();
        assert_eq!(noise.description, "Variance of the noise, in microtesla squared.");
        let source = settings.iter().find(|setting| setting.key == "frames.pose_source").unwrap();
        assert!(source.description.ends_with("map's frame at each reading's stamp)."), "{}", source.description);
    }

    #[test]
    fn settings_are_changed_by_name_all_or_none() {
        let mut config = Config::default();
        let values = |delta: f64| {
            vec![("selection.delta".to_owned(), Value::Float(delta)), ("raster.margin".to_owned(), Value::Integer(2))]
        };
        config.apply_values(&values(0.1), "parameters").unwrap();
        assert_eq!((config.selection.delta, config.raster.margin), (0.1, 2.0));
        let before = config.clone();
        let error = config.apply_values(&values(1.5), "parameters").unwrap_err().to_string();
        assert_eq!(error, "parameters: selection.delta: expected more than 0 and less than 1, found 1.5");
        assert_eq!(config, before);
        let unknown =
            [("selection.dela".to_owned(), Value::Float(0.1)), ("raster.margin".to_owned(), Value::Boolean(true))];
        let error = config.apply_values(&unknown, "parameters").unwrap_err().to_string();
        assert!(error.contains("unknown key selection.dela; did you mean selection.delta?"), "{error}");
        assert!(error.contains("raster.margin: expected a number, found true"), "{error}");
    }

    #[test]
    fn settings_read_back_as_they_are() {
        let mut config = Config::default();
        config.selection.delta = 0.123;
        config.frames.map = "map".into();
        let values: Vec<_> =
            config.settings().unwrap().into_iter().map(|setting| (setting.key, setting.value)).collect();
        let mut other = Config::default();
        other.apply_values(&values, "parameters").unwrap();
        assert_eq!(other, config);
    }
}
