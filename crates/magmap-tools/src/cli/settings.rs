//! The options for settings.

use std::path::PathBuf;

use clap::Args;

use super::UsageError;
use magmap::config::{Config, Error, Program};

/// Options for settings: a file, then single keys.
#[derive(Args)]
pub struct SettingsArguments {
    /// Settings in TOML; what it leaves out has its default (config/default.toml).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Change one setting, after the file; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl SettingsArguments {
    /// The settings.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid; an invalid `--set` is a [`UsageError`].
    pub fn load(&self) -> anyhow::Result<Config> {
        self.load_over(Config::default())
    }

    /// The settings of a program, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// The errors of [`SettingsArguments::load`], and a `--set` that has no effect in the program. A file may be for others as well.
    pub fn load_for(&self, program: Program, base: Config) -> anyhow::Result<Config> {
        let config = self.load_over(base)?;
        self.keys().try_for_each(|key| program.check_effect(key)).map_err(rejected)?;
        Ok(config)
    }

    /// The settings of a command in which these sections or keys alone have an effect, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// The errors of [`SettingsArguments::load_for`].
    pub fn load_some(&self, used: &[&str], base: Config) -> anyhow::Result<Config> {
        let config = self.load_over(base)?;
        let is_in =
            |key: &str, used| key.strip_prefix(used).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        match self.keys().find(|key| !used.iter().any(|used| is_in(key, *used))) {
            Some(key) => {
                let used = used.join(", ");
                Err(UsageError(format!("--set {key} has no effect in this command, only {used}; leave it out")).into())
            }
            None => Ok(config),
        }
    }

    /// The keys of `--set`.
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().filter_map(|assignment| Some(assignment.split_once('=')?.0.trim()))
    }

    /// The settings, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// The errors of [`SettingsArguments::load`].
    pub fn load_over(&self, base: Config) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => base.with_file(path)?,
            None => base,
        };
        config.apply_overrides(&self.overrides).map_err(rejected)?;
        Ok(config)
    }
}

fn rejected(error: Error) -> UsageError {
    UsageError(format!("--set {error}"))
}
