//! The command-line code that `magmap` and `magmap-evaluate`, a crate of its own, share.

mod settings;
mod terminal;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory};

use crate::recording::Loss;
use magmap::errors::in_words;

pub use settings::SettingsArguments;
pub use terminal::Terminal;

/// How much to write to stderr.
#[derive(Args)]
pub struct Verbosity {
    /// Write more to stderr; twice for debug messages, three times for everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Write only errors to stderr, and show no progress.
    #[arg(short, long, global = true)]
    quiet: bool,
}

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was done.
    Done,
    /// Done, but data was lost.
    WithLoss,
    /// Interrupted by a signal.
    Interrupted,
}

impl Ending {
    /// The ending after `loss`, each item of which is logged.
    pub fn with(loss: &Loss) -> Self {
        loss.items.iter().for_each(|lost| log::warn!("lost: {lost}"));
        if loss.is_empty() { Self::Done } else { Self::WithLoss }
    }
}

/// An error in the command line that only its command can find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Nothing was done, because what was asked for would be wrong: the program exits with a code of its own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The program's exit code; an error is printed first. A [`UsageError`] exits like any command line that the parser of `A` rejects.
pub fn exit_code<A: CommandFactory>(ending: anyhow::Result<Ending>) -> ExitCode {
    match ending {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::WithLoss) => ExitCode::from(3),
        Ok(Ending::Interrupted) => ExitCode::from(130),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast::<UsageError>() {
            Ok(UsageError(message)) => A::command().error(ErrorKind::ValueValidation, message).exit(),
            Err(error) => {
                eprintln!("error: {}", in_words(&error));
                if error.is::<Refusal>() { ExitCode::from(4) } else { ExitCode::FAILURE }
            }
        },
    }
}

/// Parses the number of an option.
///
/// # Errors
/// Text that is not a number, or not one that `is_valid`; says what was expected.
pub fn number(text: &str, expected: &str, is_valid: impl Fn(&f64) -> bool) -> Result<f64, String> {
    text.parse().ok().filter(is_valid).ok_or_else(|| format!("expected {expected}, found {text:?}"))
}

/// Whether the reader of our output stopped reading, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let as_io = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>().map(|io| io.kind());
    error.chain().filter_map(as_io).any(|kind| kind == std::io::ErrorKind::BrokenPipe)
}
