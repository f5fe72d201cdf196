//! Arguments that several experiments share.

use std::path::PathBuf;

use clap::Args;
use magmap::cli::Settings;
use magmap_evaluate::methods::{Method, methods};
use magmap_evaluate::outliers::Outliers;
use streaming_gp::methods::Parameter;

/// What every experiment takes.
#[derive(Args)]
pub struct Common {
    #[command(flatten)]
    pub settings: Settings,
    /// Also writes all numbers into this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also writes a page (results.md) with its pictures into this folder, where methods are compared.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// What is made of the readings that are learnt from.
#[derive(Args)]
pub struct Spoilt {
    /// Share of the readings that are learnt from, 0 to 1, which are made outliers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    outliers: f64,
    /// By how much an outlier is too strong, in microtesla.
    #[arg(long, value_name = "UT", default_value_t = 50.0)]
    outlier_size: f64,
}

impl Spoilt {
    pub fn outliers(&self) -> Outliers {
        Outliers { share: self.outliers, size: self.outlier_size }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// The methods, each with its parameter.
pub fn help_on_methods() -> String {
    let mut help =
        "A method, and a parameter where it is not the default; several are compared on the same batches.\n".to_owned();
    for Method { name, summary, parameter, .. } in methods() {
        help.push_str(&format!("\n  {name}: {summary}"));
        if let Some(Parameter { symbol, meaning, .. }) = parameter {
            help.push_str(&format!("\n      {symbol}: {meaning}"));
        }
    }
    help
}
