//! Methods side by side, for every experiment that compares them.

use std::io::{self, Write};

use magmap::config::Config;
use magmap::evaluation::contest::{Contest, Run, Step, Task};
use magmap::evaluation::methods::Named;
use magmap::export::report::write_json;
use serde::Serialize;

use super::arguments::Common;
use crate::Ending;
use crate::terminal::Terminal;

/// A number of a step that is also shown as it went from batch to batch: a row per batch, a column per method.
pub struct ByBatch {
    pub heading: &'static str,
    pub number: fn(&Step) -> f64,
    pub decimals: usize,
    /// Every so many-th batch, and the first and the last.
    pub every: usize,
}

impl ByBatch {
    /// Number of inducing points.
    pub fn sizes(every: usize) -> Self {
        Self { heading: "M by batch", number: |step| step.inducing_points as f64, decimals: 0, every }
    }

    /// Root mean squared error.
    pub fn errors(every: usize) -> Self {
        Self { heading: "RMSE by batch", number: |step| step.rmse, decimals: 4, every }
    }

    fn write(&self, out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
        let Self { heading, number, decimals, every } = self;
        let widths: Vec<usize> = runs.iter().map(|run| run.method.len().max(8)).collect();
        let header: String = runs.iter().zip(&widths).map(|(run, width)| format!("  {:>width$}", run.method)).collect();
        writeln!(out, "{heading:13}{header}")?;
        let batches = runs.iter().map(|run| run.steps.len()).max().unwrap_or(0);
        for batch in (1..=batches).filter(|batch| *batch == 1 || batch % every == 0 || *batch == batches) {
            let cell = |(run, width): (&Run, &usize)| match run.steps.get(batch - 1) {
                Some(step) => format!("  {:>width$.decimals$}", number(step)),
                None => format!("  {:>width$}", "-"),
            };
            writeln!(out, "{batch:13}{}", runs.iter().zip(&widths).map(cell).collect::<String>())?;
        }
        Ok(())
    }
}

/// Runs every method on every task, which has a name, and presents what came of it.
pub fn side_by_side(
    tasks: Vec<(String, Task)>,
    methods: &[Named],
    by_batch: &[ByBatch],
    config: &Config,
    common: &Common,
    terminal: &Terminal,
) -> anyhow::Result<Ending> {
    let batches: usize = tasks.iter().map(|(_, task)| task.batches.len()).sum();
    let bar = terminal.bar("evaluating", (batches * methods.len()) as u64);
    let mut contests = Vec::new();
    for (name, task) in tasks {
        let mut runs = Vec::new();
        for method in methods {
            let before = bar.position();
            runs.push(task.run(method, config, |batch| bar.set_position(before + batch as u64)));
            bar.set_position(before + task.batches.len() as u64);
        }
        contests.push(Contest { name, task, runs });
    }
    bar.finish_and_clear();
    present(&contests, by_batch, config, common)?;
    Ok(Ending::Done)
}

/// What `--json` writes.
#[derive(Serialize)]
struct Numbers<'a> {
    config: &'a Config,
    contests: Vec<ContestNumbers<'a>>,
}

/// A contest in JSON.
#[derive(Serialize)]
pub struct ContestNumbers<'a> {
    name: &'a str,
    runs: &'a [Run],
}

impl<'a> ContestNumbers<'a> {
    pub fn of(contest: &'a Contest) -> Self {
        Self { name: &contest.name, runs: &contest.runs }
    }
}

/// Everything that is shown and written of contests.
fn present(contests: &[Contest], by_batch: &[ByBatch], config: &Config, common: &Common) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for (index, contest) in contests.iter().enumerate() {
        if contests.len() > 1 {
            writeln!(out, "{}{}", if index > 0 { "\n" } else { "" }, contest.name)?;
        }
        write_runs(&mut out, &contest.runs)?;
        by_batch.iter().try_for_each(|table| table.write(&mut out, &contest.runs))?;
    }
    if let Some(file) = &common.json {
        let contests = contests.iter().map(ContestNumbers::of).collect();
        write_json(file, &Numbers { config, contests })?;
    }
    Ok(())
}

fn write_runs(out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
    let width = runs.iter().map(|run| run.method.len()).fold(6, usize::max);
    writeln!(out, "{:width$} | batch    M |   RMSE   NLPD  cover |        s", "method")?;
    for run in runs {
        match run.last() {
            Some(last) => writeln!(
                out,
                "{:width$} | {:5} {:4} | {:6.3} {:6.3}  {:.3} | {:8.3}{}",
                run.method,
                last.batch,
                last.inducing_points,
                last.rmse,
                last.nlpd,
                last.coverage,
                run.seconds(),
                if run.capped() > 0 { format!("  capped in {} batches", run.capped()) } else { String::new() },
            )?,
            None => writeln!(out, "{:width$} |", run.method)?,
        }
        if let Some(refused) = &run.refused {
            writeln!(out, "{:width$} | ended early: {refused}", "")?;
        }
    }
    Ok(())
}
