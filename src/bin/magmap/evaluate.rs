//! `magmap evaluate`, as it was: the experiments are a program of their own.

use clap::Args;
use magmap::cli::{Ending, UsageError};

/// Says where the experiments are.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Evaluate {
    /// What was to be evaluated.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Evaluate {
    pub fn run(self) -> anyhow::Result<Ending> {
        let program = format!("cargo run --release -p magmap-evaluate -- {}", self.arguments.join(" "));
        Err(UsageError(format!("the experiments are a program of their own:\n\n  {}", program.trim_end())).into())
    }
}
