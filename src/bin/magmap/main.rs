//! The command line of magmap: one file per command, results to stdout, diagnostics to stderr.

#![forbid(unsafe_code)]

mod convert;
mod demo;
mod evaluate;
mod info;
mod replay;
mod settings;
mod simulate;
mod summary;
mod terminal;

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use crate::terminal::Terminal;

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed; the last line on stderr says why
    2  the command line is wrong
    3  done, but something was lost: damage in a recording, a batch the model refused
  130  interrupted; what had been read was mapped and written";

const EXAMPLES: &str = "\
Examples:
  magmap demo                 map an embedded simulated world, with no data at all
  magmap replay house.mcap    map a recording, into house-map/
  magmap info invensense/3    what is in a recording
  magmap simulate --out bag && magmap replay bag";

/// Online maps of the magnetic field a robot drives through.
#[derive(Parser)]
#[command(version, max_term_width = 110, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Say more on stderr; twice: everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Say nothing on stderr but errors, and show no progress.
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Simulate(simulate::Simulate),
    Convert(convert::Convert),
    Replay(replay::Replay),
    Info(info::Info),
    Evaluate(evaluate::Evaluate),
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    WithLoss,
    Interrupted,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        Self::from(match ending {
            Ending::Done => 0,
            Ending::WithLoss => 3,
            Ending::Interrupted => 130,
        })
    }
}

fn main() -> ExitCode {
    let Arguments { command, verbose, quiet } = Arguments::parse();
    let terminal = Terminal::new(verbose, quiet);
    let ending = match command {
        Command::Demo(command) => command.run(&terminal),
        Command::Simulate(command) => command.run(&terminal),
        Command::Convert(command) => command.run(&terminal),
        Command::Replay(command) => command.run(&terminal),
        Command::Info(command) => command.run(),
        Command::Evaluate(command) => command.run(&terminal),
    };
    match ending {
        Ok(ending) => ending.into(),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", in_words(&error));
            ExitCode::FAILURE
        }
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_cause_is_said_twice() {
        let cause = std::io::Error::other("no space");
        let error = anyhow::Error::new(cause).context("cannot write map.png: no space").context("drawing");
        assert_eq!(in_words(&error), "drawing: cannot write map.png: no space");
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
