//! Arguments that several commands share.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};
use magmap::config::Config;
use magmap::recording::writer::Storage;

/// Where settings come from: a file, then single keys.
#[derive(Args)]
pub struct Settings {
    /// Settings in TOML; what it leaves out has its default (config/default.toml).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Changes one setting, after the file; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl Settings {
    /// The settings. A wrong `--set` ends the program as any other wrong argument does.
    pub fn load(&self) -> anyhow::Result<Config> {
        self.load_over(Config::default())
    }

    /// The settings, where what neither the file nor a key names is as in `base`.
    pub fn load_over(&self, base: Config) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => base.with_file(path)?,
            None => base,
        };
        if let Err(error) = config.apply_overrides(&self.overrides) {
            usage_error(format!("--set {error}"));
        }
        Ok(config)
    }
}

/// Ends the program with exit code 2.
pub fn usage_error(message: String) -> ! {
    crate::Arguments::command().error(ErrorKind::ValueValidation, message).exit()
}

/// How bags are stored.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum StorageArgument {
    /// MCAP, compressed with zstd.
    #[default]
    Mcap,
    /// SQLite, as ROS 2 Humble stores it.
    Sqlite3,
}

impl From<StorageArgument> for Storage {
    fn from(argument: StorageArgument) -> Self {
        match argument {
            StorageArgument::Mcap => Self::Mcap,
            StorageArgument::Sqlite3 => Self::Sqlite3,
        }
    }
}
