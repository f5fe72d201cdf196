//! The options for settings.

use std::path::{Path, PathBuf};

use clap::Args;
use strum::EnumMessage;

use super::UsageError;
use crate::recording::{self, Recording};
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
    /// The settings of a program, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// The errors of [`SettingsArguments::load_over`], and a `--set` that has no effect in the program. A file may be for others as well.
    pub fn load_for(&self, program: Program, base: Config) -> anyhow::Result<Config> {
        self.keys().try_for_each(|key| program.check_effect(key)).map_err(rejected)?;
        let config = match &self.config {
            Some(path) => base.with_file_for(program, path)?,
            None => base,
        };
        self.overridden(config)
    }

    /// Opens a recording.
    ///
    /// # Errors
    /// Those of [`recording::open`], and a `--set` that has no effect on recordings of its kind.
    pub fn open(&self, path: &Path, config: &Config) -> anyhow::Result<Recording> {
        let recording = recording::open(path, config)?;
        match self.keys().find(|key| recording.ignores(key)) {
            Some(key) => {
                let kind = recording.summary.kind.get_documentation().unwrap_or_default();
                Err(UsageError(format!("--set {key} has no effect on {}, a {kind}; leave it out", path.display()))
                    .into())
            }
            None => Ok(recording),
        }
    }

    /// The keys of `--set`.
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().filter_map(|assignment| Some(assignment.split_once('=')?.0.trim()))
    }

    /// The settings, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// A file that cannot be read or is invalid; an invalid `--set` is a [`UsageError`].
    pub fn load_over(&self, base: Config) -> anyhow::Result<Config> {
        self.overridden(match &self.config {
            Some(path) => base.with_file(path)?,
            None => base,
        })
    }

    fn overridden(&self, mut config: Config) -> anyhow::Result<Config> {
        config.apply_overrides(&self.overrides).map_err(rejected)?;
        Ok(config)
    }
}

fn rejected(error: Error) -> UsageError {
    UsageError(format!("--set {error}"))
}
