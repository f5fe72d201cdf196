//! Runs experiments whose answers are known: one file per group of them.

#![forbid(unsafe_code)]

mod arguments;
mod banana;
mod comparison;
mod drives;
mod hall;
mod localization;
mod papers;
mod slam;
mod survey;
mod synthetic;
mod table;
mod worlds;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use magmap_evaluate::drives::Experiment;
use magmap_tools::cli::{self, Verbosity};

/// Reuses the holes that matrices leave; the allocator of the C library keeps them, see `docs/buildings.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXAMPLES: &str = "\
Examples:
  magmap-evaluate stream --data aalto-magnetic                learns drive 3
  magmap-evaluate stream --data aalto-magnetic --offsets 10   and its scatter
  magmap-evaluate paths --data aalto-magnetic --config config/paper.toml
  magmap-evaluate stream --data aalto-magnetic --method vips --method oips=0.9 --method fixed=100
  magmap-evaluate worlds --set selection.delta=0.1            simulated worlds
  magmap-evaluate survey --train floor.csv --test again.csv   three axes, learnt on one survey and tested on the other
  magmap-evaluate hall --side 20 --picture hall.png           local models on tiles
  magmap-evaluate banana --batches 8                          a yes/no question, from left to right
  magmap-evaluate stream --data aalto-magnetic --outliers 0.05 --set model.likelihood=student_t
  magmap-evaluate papers --data aalto-magnetic --output comparison
  magmap-evaluate localization --data aalto-magnetic --json localization.json
  magmap-evaluate scenarios                           synthetic streams along a line
  magmap-evaluate sizes --method fixed=15 --method vips=0.05 --method exact
  magmap-evaluate growth --points 5000 --batches 10   synthetic streams in three dimensions
  magmap-evaluate table --data concrete.csv --method vips=0.02 --method vips=0.1 --method oips=0.95

NLPD and coverage take the noise into account. The columns 0.3 m and 0.5 m hold test readings that near to where \
the robot has been. `mean` and `nearest` are the errors of two maps that cost nothing: the mean of all readings so \
far, and the nearest of them. Of `banana`, `first region` is the error where the first batch was, `seen` that left of the next \
batch, and `whole` is the same model with all points as one batch.";

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed; the last line on stderr says why
    2  the command line is wrong";

/// Runs an experiment whose answers are known, and scores the maps.
#[derive(Parser)]
#[command(version, max_term_width = 110, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiments,
    #[command(flatten)]
    verbosity: Verbosity,
}

#[derive(Subcommand)]
enum Experiments {
    /// Learns Aalto drive 3 in 20 contiguous batches and is tested on drives 1, 2, 4 and 5.
    Stream(drives::Arguments),
    /// Learns Aalto drives 1, 2, 4 and 5 as one batch each and is tested on drive 3.
    Paths(drives::Arguments),
    /// Learns drive 3 and the paths with every method of the papers, and writes a page with our figures beside theirs.
    Papers(papers::Arguments),
    /// Maps simulated fields of many strengths and lengthscales, and is tested on a second drive through each.
    Worlds(worlds::Arguments),
    /// Learns a survey as plain CSV and is tested on another one of the same place.
    Survey(survey::Arguments),
    /// Maps a simulated hall with tiles, and compares the costs at the beginning of the drive with those at its end.
    Hall(hall::Arguments),
    /// Learns three streams along a line: an expanding one, a shuffled one, and one with late outliers.
    #[command(mut_arg("methods", |methods| methods.default_values(["vips=0.05", "conditional_variance", "oips", "exact"])))]
    Scenarios(synthetic::Arguments),
    /// Locates robots in maps of strengths and of the three axes: on the Aalto drives, and in simulated halls.
    Localization(localization::Arguments),
    /// Corrects the path of a robot whose odometry drifts by the field, and compares it with the truth.
    Slam(slam::Arguments),
    /// Compares fixed numbers of inducing points with those that a method chooses, in four batches along a line.
    #[command(mut_arg("methods", |methods| methods.default_values(["fixed=10", "fixed=20", "fixed=30", "vips=0.05", "exact"])))]
    Sizes(synthetic::Arguments),
    /// Learns the three streams in three dimensions, with many readings, and shows how models grow.
    #[command(mut_arg("methods", |methods| methods.default_values(["vips=0.095", "oips=0.93"])))]
    Growth(synthetic::Growth),
    /// Learns any table of numbers by its first column, and measures methods between an exact process and the mean.
    Table(table::Arguments),
    /// Tells two crescents apart that come from left to right, with the dual model, and is tested on another draw.
    Banana(banana::Arguments),
}

fn main() -> ExitCode {
    let Arguments { experiment, verbosity } = Arguments::parse();
    let terminal = verbosity.terminal();
    cli::exit_code::<Arguments>(match experiment {
        Experiments::Stream(arguments) => drives::run(Experiment::Stream, &arguments, &terminal),
        Experiments::Paths(arguments) => drives::run(Experiment::Paths, &arguments, &terminal),
        Experiments::Papers(arguments) => papers::run(&arguments, &terminal),
        Experiments::Worlds(arguments) => worlds::run(&arguments, &terminal),
        Experiments::Survey(arguments) => survey::run(&arguments, &terminal),
        Experiments::Hall(arguments) => hall::run(&arguments, &terminal),
        Experiments::Scenarios(arguments) => arguments.scenarios(&terminal),
        Experiments::Sizes(arguments) => arguments.sizes(&terminal),
        Experiments::Growth(arguments) => arguments.run(&terminal),
        Experiments::Table(arguments) => arguments.run(&terminal),
        Experiments::Localization(arguments) => localization::run(&arguments, &terminal),
        Experiments::Slam(arguments) => slam::run(&arguments, &terminal),
        Experiments::Banana(arguments) => banana::run(&arguments),
    })
}

#[cfg(test)]
#[path = "../../../../magmap-tools/tests/common/pages.rs"]
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
        let commands = pages::commands_of("magmap-evaluate");
        assert!(commands.len() > 20, "found only {}", commands.len());
        for (page, words) in commands {
            let wrong = Arguments::try_parse_from(&words).err().filter(|error| error.use_stderr());
            assert!(wrong.is_none(), "{page}: {}: {}", words.join(" "), wrong.unwrap());
        }
    }
}
