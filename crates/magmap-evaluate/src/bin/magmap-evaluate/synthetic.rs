//! `magmap-evaluate scenarios`, `sizes` and `growth`: streams whose function is known.

use clap::{Args, ValueEnum};
use magmap_evaluate::comparison::Task;
use magmap_evaluate::growth;
use magmap_evaluate::methods::Method;
use magmap_evaluate::scenarios::{self, Scenario};
use magmap_tools::cli::{Ending, Terminal, UsageError};

use super::arguments::{Common, help_on_methods};
use super::comparison::{ByBatch, side_by_side};

/// Arguments of every stream of a known function.
#[derive(Args)]
pub struct Arguments {
    /// A method, and a parameter where it is not the default; may be repeated.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", long_help = help_on_methods())]
    methods: Vec<Method>,
    /// Seed of the readings.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Arguments of the streams in three dimensions.
#[derive(Args)]
pub struct Growth {
    #[command(flatten)]
    drawn: Arguments,
    /// Readings of each stream.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    points: u64,
    /// Batches of each stream; no more than there are readings.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    batches: u64,
    /// Only this scenario; may be repeated.
    #[arg(long = "scenario", value_enum)]
    scenarios: Vec<Scenario>,
}

impl Arguments {
    pub fn scenarios(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.common.config(scenarios::settings())?;
        let tasks = named(Scenario::value_variants(), |scenario| scenario.task(self.seed));
        side_by_side(tasks, &self.methods, &[ByBatch::sizes(1)], &config, &self.common, terminal)
    }

    pub fn sizes(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.common.config(scenarios::settings())?;
        let tasks = vec![("sizes".to_owned(), scenarios::sizes(self.seed))];
        let by_batch = [ByBatch::sizes(1), ByBatch::errors(1)];
        side_by_side(tasks, &self.methods, &by_batch, &config, &self.common, terminal)
    }
}

impl Growth {
    pub fn run(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let Self { drawn: Arguments { methods, seed, common }, points, batches, scenarios } = self;
        if batches > points {
            let message = format!("--batches: expected no more than --points ({points}), found {batches}");
            return Err(UsageError(message).into());
        }
        let config = common.config(growth::settings())?;
        let scenarios = if scenarios.is_empty() { Scenario::value_variants() } else { scenarios.as_slice() };
        let tasks = named(scenarios, |scenario| growth::task(scenario, *points as usize, *batches as usize, *seed));
        side_by_side(tasks, methods, &[ByBatch::sizes(5)], &config, common, terminal)
    }
}

fn named(scenarios: &[Scenario], task: impl Fn(Scenario) -> Task) -> Vec<(String, Task)> {
    let name = |scenario: &Scenario| format!("{scenario:?}").to_lowercase();
    scenarios.iter().map(|scenario| (name(scenario), task(*scenario))).collect()
}
