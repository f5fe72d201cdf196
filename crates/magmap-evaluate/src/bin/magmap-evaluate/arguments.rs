//! Arguments that several experiments share.

use std::path::PathBuf;

use clap::Args;
use magmap::config::{Config, Mapped};
use magmap_evaluate::methods::methods;
use magmap_tools::cli::{SettingsArguments, UsageError};
use magmap_tools::export::{self, json};
use serde::Serialize;
use streaming_gp::methods::Parameter;

/// Arguments of every experiment.
#[derive(Args)]
pub struct Common {
    #[command(flatten)]
    pub settings: SettingsArguments,
    /// Also writes all numbers into this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also writes a page (results.md) with its pictures into this folder, where methods are compared.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// The contents of a `--json` file.
#[derive(Serialize)]
struct Numbers<'a, N> {
    config: &'a Config,
    #[serde(flatten)]
    found: N,
}

impl Common {
    /// Writes what an experiment found with these settings, if a file for it was named.
    pub fn write_json(&self, config: &Config, found: impl Serialize) -> Result<(), export::Error> {
        self.json.as_ref().map_or(Ok(()), |file| json::write_json(file, &Numbers { config, found }))
    }

    /// The settings of an experiment that starts from `base` and learns strengths.
    pub fn config(&self, base: Config) -> anyhow::Result<Config> {
        let config = self.config_of_any_field(base)?;
        match config.model.field {
            Mapped::Strength => Ok(config),
            Mapped::Vector | Mapped::Auto => {
                Err(rejected("model.field: expected strength in this experiment, or with --method, found vector"))
            }
        }
    }

    /// The settings of an experiment that starts from `base` and learns axes where they say so, strengths otherwise.
    pub fn config_of_any_field(&self, base: Config) -> anyhow::Result<Config> {
        let config = self.settings.load_over(base.decided(Mapped::Strength).into_owned())?;
        match config.model.field {
            Mapped::Strength | Mapped::Vector => Ok(config),
            // The choice is that of a robot that maps, not of a model alone, which would learn strengths.
            Mapped::Auto => Err(rejected("model.field: expected strength or vector in an experiment, found auto")),
        }
    }
}

fn rejected(message: &str) -> anyhow::Error {
    UsageError(message.into()).into()
}

/// The methods, each with its parameter.
pub fn help_on_methods() -> String {
    let mut help =
        "A method, and a parameter where it is not the default; several are compared on the same batches.\n".to_owned();
    for (name, summary, parameters) in methods() {
        help.push_str(&format!("\n  {name}: {summary}"));
        for Parameter { symbol, meaning, .. } in parameters {
            help.push_str(&format!("\n      {symbol}: {meaning}"));
        }
    }
    help
}
