//! The settings one by one, by their full keys, as ROS parameters set and describe them.

use toml::{Table, Value};

use super::declare::{Described, Part};
use super::parsing::leaves;
use super::scope::{Program, Scope, in_words, list};
use super::{Config, Error, Likelihood, Mapped};

/// A setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The full key, such as `selection.delta`.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The meaning, and when it may change.
    pub description: String,
    /// The scope.
    pub scope: Scope,
    /// The programs in which it has an effect.
    pub programs: &'static [Program],
}

impl Config {
    /// Every setting with its value here, in the order of the keys.
    ///
    /// # Errors
    /// [`Error::Write`] for a number that TOML cannot hold.
    pub fn settings(&self) -> Result<Vec<Setting>, Error> {
        let table = Table::try_from(self)?;
        let setting = |(key, value): (String, &Value)| {
            let parts = parts(&key);
            let (scope, programs) = (scope(&parts), programs(&parts));
            Setting { description: description(&parts), scope, programs, key, value: value.clone() }
        };
        Ok(leaves(&table, "").into_iter().map(setting).collect())
    }

    /// Rejects `given` settings if one whose scope `is_fixed` differs from these, with which a map was made, and has an effect on it.
    ///
    /// # Errors
    /// [`Error::SettingDiffers`] with the first.
    pub fn check_unchanged(&self, given: &Config, is_fixed: impl Fn(Scope) -> bool) -> Result<(), Error> {
        let mut pairs = self.settings()?.into_iter().zip(given.settings()?);
        let has_effect = |key: &str| self.has_effect(key) || given.has_effect(key);
        let differs = |(made_with, given): &(Setting, Setting)| {
            is_fixed(given.scope) && made_with.value != given.value && has_effect(&given.key)
        };
        pairs.find(differs).map_or(Ok(()), |(made_with, given)| {
            let (made_with, configured) = (made_with.value.to_string(), given.value.to_string());
            Err(Error::SettingDiffers { key: given.key, made_with, configured })
        })
    }

    /// The default settings, with these for those whose scope `is_kept`.
    ///
    /// # Errors
    /// [`Error::Invalid`] where they contradict the defaults.
    pub fn keep_only(&self, is_kept: impl Fn(Scope) -> bool) -> Result<Config, Error> {
        let kept = self.settings()?.into_iter().filter(|setting| is_kept(setting.scope));
        let mut config = Config::default();
        config.apply_values(
            &kept.map(|setting| (setting.key, setting.value)).collect::<Vec<_>>(),
            "the map's settings",
        )?;
        Ok(config)
    }

    /// Whether a setting has an effect on what is mapped, under the others.
    fn has_effect(&self, key: &str) -> bool {
        match key.split_once('.') {
            Some(("model", "degrees_of_freedom")) => self.model.likelihood == Likelihood::StudentT,
            Some(("vector", _)) => self.model.field != Mapped::Strength,
            _ => true,
        }
    }
}

impl Program {
    /// Rejects a setting, or a section, that is given to this program alone and has no effect in it. In a file it may be for others. An unknown
    /// key is for those to reject who set it.
    ///
    /// # Errors
    /// [`Error::WithoutEffect`].
    pub fn check_effect(self, key: &str) -> Result<(), Error> {
        let (parts, names) = (parts(key), key.split('.').count());
        let programs = programs(&parts);
        if parts.len() < names || programs.contains(&self) {
            return Ok(());
        }
        Err(Error::WithoutEffect { key: key.to_owned(), program: self, others: list(programs) })
    }
}

/// Describes a setting: the meaning of the setting that holds it, its own, when it may change, and the values to choose from.
fn description(parts: &[&'static Part]) -> String {
    let choices = parts.last().copied().into_iter().flat_map(choices);
    let scope = scope(parts).in_words().to_owned();
    let programs = in_words(programs(parts));
    let meaning = parts.iter().copied().skip(1).flat_map(lines);
    meaning.chain([scope]).chain(programs).chain(choices).collect::<Vec<_>>().join(" ")
}

/// The parts that the names in a full key refer to, from its section on.
pub(super) fn parts(key: &str) -> Vec<&'static Part> {
    let mut inner = Config::PARTS;
    let find = |name| {
        let part = inner.iter().find(|part| part.name == name)?;
        inner = part.parts;
        Some(part)
    };
    key.split('.').map_while(find).collect()
}

/// The scope of a setting, or of a section.
fn scope(parts: &[&'static Part]) -> Scope {
    // Every section has one.
    parts.iter().rev().find_map(|part| part.scope.first()).copied().unwrap_or(Scope::Map)
}

/// The programs in which a setting, or a section, has an effect.
fn programs(parts: &[&'static Part]) -> &'static [Program] {
    let named = parts.iter().rev().map(|part| part.programs).find(|programs| !programs.is_empty());
    named.unwrap_or_else(|| scope(parts).programs())
}

fn lines(part: &'static Part) -> impl Iterator<Item = String> {
    part.meaning.lines().map(|line| line.trim().to_owned())
}

/// The values that a setting chooses from, each with its meaning.
fn choices(setting: &'static Part) -> impl Iterator<Item = String> {
    setting.parts.iter().map(|part| format!("- {}: {}", part.name, lines(part).collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All settings with their defaults and what they mean: the text of config/default.toml.
    fn default_toml() -> String {
        let mut text = "# Every setting of magmap with its default. Copy those you want to change; the others keep these values.\n\
                        # Generated from src/config.rs by: MAGMAP_WRITE=1 cargo test -p magmap --lib default_toml\n\n"
            .to_owned();
        let mut section = String::new();
        for line in toml::to_string(&Config::default()).unwrap().lines() {
            let mut comment = Vec::new();
            let scope = |part: &Part| {
                let scope = part.scope.first().map(|scope| scope.in_words().to_owned());
                scope.into_iter().chain(in_words(part.programs))
            };
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']').to_owned();
                let part = *parts(&section).last().unwrap();
                comment.extend(lines(part).chain(scope(part)));
            } else if let Some((name, _)) = line.split_once(" = ") {
                let part = *parts(&format!("{section}.{name}")).last().unwrap();
                comment.extend(lines(part).chain(scope(part)).chain(choices(part)));
            }
            let comment = comment.into_iter().map(|words| format!("# {words}\n"));
            text.extend(comment.chain([format!("{line}\n")]));
        }
        text
    }

    #[test]
    fn default_toml_lists_every_setting_with_its_default_and_its_meaning() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default.toml");
        if std::env::var_os("MAGMAP_WRITE").is_some() {
            std::fs::write(path, default_toml()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert!(
            text == default_toml(),
            "config/default.toml differs from src/config.rs; its second line says how to generate it"
        );
        assert_eq!(Config::from_toml(&text, path).unwrap(), Config::default());
    }

    #[test]
    fn every_setting_is_described() {
        let settings = Config::default().settings().unwrap();
        assert!(settings.len() > 50, "{}", settings.len());
        let description = |key: &str| {
            let setting = settings.iter().find(|setting| setting.key == key);
            setting.unwrap().description.as_str()
        };
        assert!(settings.iter().all(|setting| parts(&setting.key).len() == setting.key.split('.').count()));
        assert_eq!(
            description("sensor.position"),
            "Position of the sensor in the robot's body frame, in metres. Fixed for a whole recording, and while a node runs."
        );
        assert_eq!(
            description("learning.prior_log_sd.lengthscale"),
            "Standard deviation of the logarithm of each hyperparameter under the prior. Lengthscale. Fixed for a whole \
             recording; may change while a node runs."
        );
        assert_eq!(
            description("frames.pose_source"),
            "Where poses come from. Fixed for a whole recording, and while a node runs. - odometry: Odometry messages, moved \
             into the map's frame. - transforms: The pose of the sensor in the map's frame, from transforms at each \
             reading's stamp."
        );
        assert_eq!(
            description("mapping.max_merged"),
            "Largest number of observations to which waiting batches are merged if a live source is too fast. Fixed while a \
             program runs. Only for magmap_node."
        );
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
        let deep = [("a.".repeat(20_000), Value::Float(0.1))];
        let error = config.apply_values(&deep, "parameters").unwrap_err().to_string();
        assert_eq!(error, "parameters: unknown key a");
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
