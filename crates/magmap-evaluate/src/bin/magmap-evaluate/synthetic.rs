//! `magmap-evaluate scenarios`, `sizes` and `growth`: streams whose function is known.

use clap::Args;
use magmap::cli::{Ending, Terminal, UsageError};
use magmap_evaluate::contest::Task;
use magmap_evaluate::growth;
use magmap_evaluate::methods::Named;
use magmap_evaluate::scenarios::{self, Scenario};

use super::arguments::{Common, help_on_methods};
use super::by_batch::ByBatch;
use super::contests::side_by_side;

/// What every stream of a known function takes.
#[derive(Args)]
struct Drawn {
    /// Seed of the readings.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Arguments of the scenarios along a line.
#[derive(Args)]
pub struct Scenarios {
    /// A method, and a parameter where it is not the default; may be repeated.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", long_help = help_on_methods())]
    #[arg(default_values = ["vips=0.05", "conditional_variance", "oips", "exact"])]
    methods: Vec<Named>,
    #[command(flatten)]
    drawn: Drawn,
}

/// Arguments of fixed against chosen sizes.
#[derive(Args)]
pub struct Sizes {
    /// A method, and a parameter where it is not the default; may be repeated.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", long_help = help_on_methods())]
    #[arg(default_values = ["fixed=10", "fixed=20", "fixed=30", "vips=0.05", "exact"])]
    methods: Vec<Named>,
    #[command(flatten)]
    drawn: Drawn,
}

/// Arguments of the streams in three dimensions.
#[derive(Args)]
pub struct Growth {
    /// A method, and a parameter where it is not the default; may be repeated.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", long_help = help_on_methods())]
    #[arg(default_values = ["vips=0.095", "oips=0.93"])]
    methods: Vec<Named>,
    /// Readings of each stream.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    points: u64,
    /// Batches of each stream; no more than there are readings.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    batches: u64,
    /// Only this scenario; may be repeated.
    #[arg(long = "scenario", value_enum)]
    scenarios: Vec<ScenarioArgument>,
    #[command(flatten)]
    drawn: Drawn,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ScenarioArgument {
    /// Every batch is from where nobody has been.
    Expanding,
    /// Every batch is from everywhere.
    Shuffled,
    /// Nothing is new until outliers come.
    Outliers,
}

impl From<ScenarioArgument> for Scenario {
    fn from(argument: ScenarioArgument) -> Self {
        match argument {
            ScenarioArgument::Expanding => Self::Expanding,
            ScenarioArgument::Shuffled => Self::Shuffled,
            ScenarioArgument::Outliers => Self::Outliers,
        }
    }
}

impl Scenarios {
    pub fn run(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.drawn.common.settings.load_over(scenarios::settings())?;
        let tasks = named(Scenario::ALL, |scenario| scenario.task(self.drawn.seed));
        side_by_side(tasks, &self.methods, &[ByBatch::sizes(1)], &config, &self.drawn.common, terminal)
    }
}

impl Sizes {
    pub fn run(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.drawn.common.settings.load_over(scenarios::settings())?;
        let tasks = vec![("sizes".to_owned(), scenarios::sizes(self.drawn.seed))];
        let by_batch = [ByBatch::sizes(1), ByBatch::errors(1)];
        side_by_side(tasks, &self.methods, &by_batch, &config, &self.drawn.common, terminal)
    }
}

impl Growth {
    pub fn run(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        if self.batches > self.points {
            let message =
                format!("--batches: expected no more than --points ({}), found {}", self.points, self.batches);
            return Err(UsageError(message).into());
        }
        let config = self.drawn.common.settings.load_over(growth::settings())?;
        let scenarios: Vec<Scenario> = match self.scenarios.is_empty() {
            true => Scenario::ALL.to_vec(),
            false => self.scenarios.iter().map(|scenario| (*scenario).into()).collect(),
        };
        let (points, batches) = (self.points as usize, self.batches as usize);
        let tasks = named(scenarios, |scenario| growth::task(scenario, points, batches, self.drawn.seed));
        side_by_side(tasks, &self.methods, &[ByBatch::sizes(5)], &config, &self.drawn.common, terminal)
    }
}

fn named(scenarios: impl IntoIterator<Item = Scenario>, task: impl Fn(Scenario) -> Task) -> Vec<(String, Task)> {
    scenarios.into_iter().map(|scenario| (scenario.name().to_owned(), task(scenario))).collect()
}
