//! Methods side by side, for every experiment that compares them.

use std::io::{self, Write};

use jiff::Timestamp;
use magmap::config::Config;
use magmap_evaluate::comparison::{BatchResult, Comparison, Run, Task};
use magmap_evaluate::methods::Method;
use magmap_evaluate::portfolio::{self, Chapter};
use magmap_tools::cli::{Ending, Terminal};
use serde::Serialize;

use super::arguments::Common;

/// A quantity that is also shown batch by batch: a row per batch, a column per method.
pub struct ByBatch {
    heading: &'static str,
    value: fn(&BatchResult) -> f64,
    decimals: usize,
    /// Distance between the batches shown, beside the first and the last.
    every: usize,
}

impl ByBatch {
    /// Number of inducing points.
    pub fn sizes(every: usize) -> Self {
        Self { heading: "M by batch", value: |step| step.inducing_points as f64, decimals: 0, every }
    }

    /// Root mean squared error.
    pub fn errors(every: usize) -> Self {
        Self { heading: "RMSE by batch", value: |step| step.rmse, decimals: 4, every }
    }

    fn write(&self, out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
        let Self { heading, value, decimals, every } = self;
        let row = |cell: &dyn Fn(&Run) -> String| -> String {
            runs.iter().map(|run| format!("  {:>width$}", cell(run), width = run.method.len().max(8))).collect()
        };
        writeln!(out, "{heading:13}{}", row(&|run| run.method.clone()))?;
        let batches = runs.iter().map(|run| run.steps.len()).max().unwrap_or(0);
        for batch in (1..=batches).filter(|batch| *batch == 1 || batch % every == 0 || *batch == batches) {
            let step = |step: &BatchResult| format!("{:.decimals$}", value(step));
            let cells = row(&|run| run.steps.get(batch - 1).map_or_else(|| "-".to_owned(), step));
            writeln!(out, "{batch:13}{cells}")?;
        }
        Ok(())
    }
}

/// Runs every method on every named task, and shows and writes the results.
pub fn side_by_side(
    tasks: Vec<(String, Task)>,
    methods: &[Method],
    by_batch: &[ByBatch],
    config: &Config,
    common: &Common,
    terminal: &Terminal,
) -> anyhow::Result<Ending> {
    let comparisons = run_all(tasks, methods, config, |_| common.output.is_some(), terminal);
    show(&comparisons, by_batch)?;
    write_files(&comparisons, (), config, common)?;
    Ok(Ending::Done)
}

/// Runs every method on every named task; maps are drawn of the methods that `draws` accepts.
pub fn run_all(
    tasks: Vec<(String, Task)>,
    methods: &[Method],
    config: &Config,
    draws: impl Fn(&Method) -> bool,
    terminal: &Terminal,
) -> Vec<Comparison> {
    let batches: usize = tasks.iter().map(|(_, task)| task.batches.len()).sum();
    let bar = terminal.bar("evaluating", (batches * methods.len()) as u64);
    let run = |task: &Task, method: &Method| {
        let before = bar.position();
        bar.set_message(method.to_string());
        let mut map = None;
        let run = task.run(method, config, |batch, learner| {
            map = draws(method).then(|| task.final_map(batch, learner, config)).flatten();
            bar.set_position(before + batch as u64);
        });
        bar.set_position(before + task.batches.len() as u64);
        Run { map, ..run }
    };
    let compare = |(name, task)| {
        let runs = methods.iter().map(|method| run(&task, method)).collect();
        Comparison { name, task, runs }
    };
    let comparisons = tasks.into_iter().map(compare).collect();
    bar.finish_and_clear();
    comparisons
}

/// The contents of a `--json` file.
#[derive(Serialize)]
struct Numbers<'a, M> {
    #[serde(flatten)]
    more: M,
    comparisons: &'a [Comparison],
}

/// Writes the requested files; `more` is what else an experiment has found.
pub fn write_files(
    comparisons: &[Comparison],
    more: impl Serialize,
    config: &Config,
    common: &Common,
) -> anyhow::Result<()> {
    common.write_json(config, Numbers { more, comparisons })?;
    if let Some(folder) = &common.output {
        let page = portfolio::write(folder, "Results", &how_it_was_made(), &[Chapter { config, comparisons }])?;
        writeln!(io::stdout(), "written: {}", page.display())?;
    }
    Ok(())
}

fn show(comparisons: &[Comparison], by_batch: &[ByBatch]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (index, comparison) in comparisons.iter().enumerate() {
        if comparisons.len() > 1 {
            writeln!(out, "{}{}", if index > 0 { "\n" } else { "" }, comparison.name)?;
        }
        write_runs(&mut out, &comparison.runs)?;
        by_batch.iter().try_for_each(|table| table.write(&mut out, &comparison.runs))?;
    }
    Ok(())
}

/// When, with what, and by which command a page was made.
pub fn how_it_was_made() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let date = Timestamp::now().strftime("%-d %B %Y");
    let version = env!("CARGO_PKG_VERSION");
    format!("Made on {date} by magmap {version}:\n\n```sh\nmagmap-evaluate {}\n```", arguments.join(" "))
}

fn write_runs(out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
    let width = runs.iter().map(|run| run.method.len()).fold(6, usize::max);
    writeln!(out, "{:width$} | batch    M |   RMSE   NLPD  cover |        s", "method")?;
    for run in runs {
        write!(out, "{:width$} |", run.method)?;
        if let Some(BatchResult { batch, inducing_points, rmse, nlpd, coverage, .. }) = run.steps.last() {
            write!(
                out,
                " {batch:5} {inducing_points:4} | {rmse:6.3} {nlpd:6.3}  {coverage:.3} | {:8.3}",
                run.seconds()
            )?;
        }
        match run.capped() {
            0 => writeln!(out)?,
            capped => writeln!(out, "  capped in {capped} batches")?,
        }
        if let Some(rejected) = &run.rejected {
            writeln!(out, "{:width$} | ended early: {rejected}", "")?;
        }
    }
    Ok(())
}
