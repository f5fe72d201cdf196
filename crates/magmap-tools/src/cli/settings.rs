//! The options for settings.

use std::path::PathBuf;

use clap::Args;

use super::UsageError;
use magmap::config::Config;

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

    /// The settings, with those of `base` for those that are not given.
    ///
    /// # Errors
    /// As for [`SettingsArguments::load`].
    pub fn load_over(&self, base: Config) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => base.with_file(path)?,
            None => base,
        };
        config.apply_overrides(&self.overrides).map_err(|error| UsageError(format!("--set {error}")))?;
        Ok(config)
    }
}
