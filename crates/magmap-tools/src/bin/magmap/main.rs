//! The command line of magmap: one file per command, results to stdout, diagnostics to stderr.

#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod convert;
mod demo;
mod export;
mod info;
mod live;
mod locate;
mod merge;
mod replay;
mod simulate;
mod summary;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use magmap_tools::cli::{self, Verbosity};

/// Reuses the holes that matrices leave; the allocator of the C library keeps them, see `docs/buildings.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed; the last line on stderr says why
    2  the command line is wrong
    3  done, but something was lost: damage in a recording, a batch that the model rejected
    4  refused: maps that cannot be proven to be of the same place are not merged
  130  interrupted; what had been read was mapped and written";

const EXAMPLES: &str = "\
Examples:
  magmap demo                 map an embedded simulated world, with no data at all
  magmap replay house.mcap    map a recording, into house-map/
  magmap locate second --map house-map    where a robot was on a second drive
  magmap merge monday.magmap tuesday.magmap --out house.magmap    two days, or two robots, as one map
  magmap export house-map --format csv    a map for other programs
  magmap info invensense/3    what is in a recording
  magmap simulate --out bag && magmap replay bag";

/// Online maps of the magnetic field a robot drives through.
#[derive(Parser)]
#[command(version, max_term_width = 110, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: Verbosity,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Simulate(simulate::Simulate),
    Convert(convert::Convert),
    Replay(replay::Replay),
    Locate(locate::Locate),
    Merge(merge::Merge),
    Export(export::Export),
    Info(info::Info),
    Calibrate(calibrate::Calibrate),
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let Arguments { command, verbosity } = Arguments::parse();
    let terminal = verbosity.terminal();
    cli::exit_code::<Arguments>(match command {
        Command::Demo(command) => command.run(&terminal),
        Command::Simulate(command) => command.run(&terminal),
        Command::Convert(command) => command.run(&terminal),
        Command::Replay(command) => command.run(&terminal),
        Command::Locate(command) => command.run(&terminal),
        Command::Merge(command) => command.run(&terminal),
        Command::Export(command) => command.run(&terminal),
        Command::Info(command) => command.run(),
        Command::Calibrate(command) => command.run(&terminal),
        Command::Bench(command) => command.run(&terminal),
    })
}

#[cfg(test)]
#[path = "../../../tests/common/pages.rs"]
mod pages;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_commands_in_the_documentation_parse() {
        let commands = pages::commands_of("magmap");
        assert!(commands.len() > 20, "found only {}", commands.len());
        for (page, words) in commands {
            let wrong = Arguments::try_parse_from(&words).err().filter(|error| error.use_stderr());
            assert!(wrong.is_none(), "{page}: {}: {}", words.join(" "), wrong.unwrap());
        }
    }
}
