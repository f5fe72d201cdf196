//! `magmap-evaluate papers`: our figures beside the published ones, on one page.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use magmap::config::{Config, Mapped};
use magmap_evaluate::drives::{self, Experiment, Material};
use magmap_evaluate::methods::Method;
use magmap_evaluate::portfolio::{self, Chapter};
use magmap_evaluate::published::{self, Ours};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::recording::aalto_csv::Magnetometer;

use super::comparison::{how_it_was_made, run_all};

/// The settings of the published experiments.
const PAPER: &str = include_str!("../../../../../config/paper.toml");

/// The dual model of the published experiment: with the evidence that its script makes of the paper's 1, see `papers.md`.
const PUBLISHED_DUAL_MEMORY: &str = "dual_memory=100,points=100,evidence=0.01";

/// Methods whose maps are drawn, in the order of a drive and with magmap's settings: those of the papers' figures 5 and 7 to 12.
const DRAWN: [&str; 5] = ["vips", "oips=0.93", "conditional_variance=0.005", "fixed=100", "dual_memory=100"];

/// Most inducing points of conditional variance with the papers' settings.
const CAP: usize = 1500;

/// Evaluations that conditional variance may take for each batch with the papers' settings: at its cap each takes seconds, and the
/// hyperparameters settle long before.
const EVALUATIONS_AT_CAP: usize = 25;

/// The page's discussion of the differences, written for the figures of the default seed. Rewrite it when a method changes.
const READING: &str = include_str!("papers.md");

/// Arguments of the comparison with the papers.
#[derive(Args)]
pub struct Arguments {
    /// The folder that holds the sensors' folders of the Aalto data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The folder that gets the page (results.md) and its pictures.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Seed of the shuffled order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leaves out conditional variance with the paper's settings, which takes most of the time.
    #[arg(long)]
    quick: bool,
}

/// Runs everything, and writes the page.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let paper = Config::from_toml(PAPER, "config/paper.toml")?;
    let defaults = Config::default().decided(Mapped::Strength).into_owned();
    let as_published =
        ["vips=0.095", "oips=0.93", "fixed=100", "power_ep=0.5", PUBLISHED_DUAL_MEMORY, "batch_sparse=500", "mean"];
    let everything = [
        "vips",
        "vips=0.095",
        "oips=0.93",
        "conditional_variance=0.005",
        "conditional_variance=0.5",
        "fixed=100",
        "power_ep=0.5",
        "dual_memory=100",
        "batch_sparse=500",
        "exact",
        "mean",
    ];
    // Where a whole drive is a batch, without what takes minutes.
    let mut on_paths = everything.to_vec();
    on_paths.retain(|method| !matches!(*method, "exact" | "conditional_variance=0.5"));
    let [shuffled_as_published, shuffled] = [PUBLISHED_DUAL_MEMORY, "dual_memory=100"]
        .map(|dual_memory| ["vips=0.095", "fixed=100", dual_memory, "batch_sparse=100", "mean"]);
    let compare = |name: &str, experiment, config: &Config, is_shuffled, methods: &[&str]| {
        let material = material(experiment, &arguments.data, config)?;
        let material = if is_shuffled { material.shuffled(arguments.seed) } else { material };
        let methods = methods.iter().map(|method| method.parse()).collect::<Result<Vec<Method>, _>>();
        let tasks = vec![(name.to_owned(), material.task(config, 0.0))];
        let draws =
            |method: &Method| !is_shuffled && *config == defaults && DRAWN.contains(&method.to_string().as_str());
        anyhow::Ok(run_all(tasks, &methods.map_err(anyhow::Error::msg)?, config, draws, terminal).remove(0))
    };
    let mut published = [
        compare("drive 3, the papers' settings", Experiment::Stream, &paper, false, &as_published)?,
        compare("drive 3 shuffled, the papers' settings", Experiment::Stream, &paper, true, &shuffled_as_published)?,
    ];
    if !arguments.quick {
        let mut few = paper.clone();
        few.learning.max_evaluations = EVALUATIONS_AT_CAP;
        few.selection.max_inducing_points = CAP;
        let name = "drive 3, conditional variance";
        let capped = compare(name, Experiment::Stream, &few, false, &["conditional_variance=0.005"])?;
        published[0].runs.extend(capped.runs);
    }
    let ours = [
        compare("drive 3, magmap's settings", Experiment::Stream, &defaults, false, &everything)?,
        compare("drive 3 shuffled, magmap's settings", Experiment::Stream, &defaults, true, &shuffled)?,
        compare("drives 1, 2, 4 and 5, magmap's settings", Experiment::Paths, &defaults, false, &on_paths)?,
    ];
    let comparison = published::table(&[
        Ours { name: "papers' settings", recorded: &published[0], shuffled: &published[1] },
        Ours { name: "magmap's settings", recorded: &ours[0], shuffled: &ours[1] },
    ]);
    let three_axes = three_axes(&arguments.data)?;
    let cap = on_the_cap(arguments.quick);
    let introduction = format!("{}\n\n{comparison}\n{three_axes}\n{READING}\n{cap}", how_it_was_made());
    let chapters =
        [Chapter { config: &paper, comparisons: &published }, Chapter { config: &defaults, comparisons: &ours }];
    let page = portfolio::write(&arguments.output, "Every method beside the papers", &introduction, &chapters)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{comparison}\n{three_axes}")?;
    writeln!(out, "written: {}", page.display())?;
    Ok(Ending::Done)
}

fn material(experiment: Experiment, data: &Path, config: &Config) -> anyhow::Result<Material> {
    Material::read(experiment, &experiment.drives(), data, Magnetometer::Invensense, config)
}

/// A table in Markdown: the same drives mapped with three axes, which no paper does, after the batches that the papers report and each of
/// `paths`.
fn three_axes(data: &Path) -> anyhow::Result<String> {
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let mut text = "Three axes (`model.field = \"vector\"`), tested on the strength of the same readings:\n\n\
        | learnt | batch | M | RMSE | NLPD | coverage within 0.5 m |\n|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (name, experiment) in [("drive 3", Experiment::Stream), ("drives 1, 2, 4 and 5", Experiment::Paths)] {
        let found = drives::run(&material(experiment, data, &config)?, &config, 0.0, |_, _| ())?;
        let shown = |batch: usize| experiment == Experiment::Paths || batch == 1 || batch.is_multiple_of(5);
        for after in found.batches.iter().filter(|after| shown(after.batch)) {
            let drives::BatchScores { batch, inducing_points, rmse, nlpd, coverage_05, .. } = after;
            writeln!(text, "| {name} | {batch} | {inducing_points} | {rmse:.2} | {nlpd:.2} | {coverage_05:.3} |")?;
        }
    }
    Ok(text)
}

/// The page's note on conditional variance with the papers' settings.
fn on_the_cap(is_left_out: bool) -> String {
    let how = match is_left_out {
        true => "was left out (`--quick`)".to_owned(),
        false => format!(
            "stops at a cap of {CAP} inducing points, and at {EVALUATIONS_AT_CAP} evaluations of the bound for each batch"
        ),
    };
    format!(
        "`conditional_variance` with the papers' settings {how}:\n\
         its published size of 5785 and its error are quoted, not reproduced.\n"
    )
}
