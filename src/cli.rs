//! What the command lines have in common: `magmap`, and `magmap-evaluate`, which is a crate of its own.

mod settings;
mod terminal;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory};

pub use settings::Settings;
pub use terminal::Terminal;

/// How much is said on stderr.
#[derive(Args)]
pub struct Verbosity {
    /// Say more on stderr; twice: everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Say nothing on stderr but errors, and show no progress.
    #[arg(short, long, global = true)]
    quiet: bool,
}

impl Verbosity {
    /// Sets the log up.
    pub fn terminal(&self) -> Terminal {
        Terminal::new(self.verbose, self.quiet)
    }
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was done.
    Done,
    /// Done, but something was lost.
    WithLoss,
    /// Interrupted by a signal.
    Interrupted,
}

/// A command line that is wrong in what only its command can know.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What the program ends with, after it has said why where it is not [`Ending::Done`]. A wrong command line ends as any that the
/// parser of `A` refuses.
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
                ExitCode::FAILURE
            }
        },
    }
}

/// An error and its causes, each said once: many messages already hold that of their cause.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !words.contains(&cause) {
            words.push_str(if words.is_empty() { "" } else { ": " });
            words.push_str(&cause);
        }
    }
    words
}

/// Whether whoever read our output has seen enough, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let as_io = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>().map(|io| io.kind());
    error.chain().filter_map(as_io).any(|kind| kind == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_said_twice() {
        let cause = std::io::Error::other("no space");
        let error = anyhow::Error::new(cause).context("cannot write map.png: no space").context("drawing");
        assert_eq!(in_words(&error), "drawing: cannot write map.png: no space");
    }
}
