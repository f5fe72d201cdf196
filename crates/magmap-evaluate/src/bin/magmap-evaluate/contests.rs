//! Methods side by side, for every experiment that compares them.

use std::io::{self, Write};

use jiff::Timestamp;
use magmap::cli::{Ending, Terminal};
use magmap::config::Config;
use magmap::export::report::write_json;
use magmap_evaluate::contest::{Contest, Run, Task};
use magmap_evaluate::maps::MapRecorder;
use magmap_evaluate::methods::Named;
use magmap_evaluate::portfolio::{self, Chapter};
use serde::Serialize;

use super::arguments::Common;
use super::by_batch::ByBatch;

/// Runs every method on every task, which has a name, and presents what came of it.
pub fn side_by_side(
    tasks: Vec<(String, Task)>,
    methods: &[Named],
    by_batch: &[ByBatch],
    config: &Config,
    common: &Common,
    terminal: &Terminal,
) -> anyhow::Result<Ending> {
    let contests = run_all(tasks, methods, config, common.output.is_some(), terminal);
    show(&contests, by_batch)?;
    write_files(&contests, (), config, common)?;
    Ok(Ending::Done)
}

/// Runs every method on every task, which has a name; maps are drawn only where they are wanted.
pub fn run_all(
    tasks: Vec<(String, Task)>,
    methods: &[Named],
    config: &Config,
    with_maps: bool,
    terminal: &Terminal,
) -> Vec<Contest> {
    let batches: usize = tasks.iter().map(|(_, task)| task.batches.len()).sum();
    let bar = terminal.bar("evaluating", (batches * methods.len()) as u64);
    let mut contests = Vec::new();
    for (name, task) in tasks {
        let mut runs = Vec::new();
        for method in methods {
            let before = bar.position();
            bar.set_message(method.to_string());
            let mut maps = with_maps.then(|| MapRecorder::new(&task, config));
            let run = task.run(method, config, |batch, learner| {
                maps.iter_mut().for_each(|maps| maps.see(batch, learner));
                bar.set_position(before + batch as u64);
            });
            bar.set_position(before + task.batches.len() as u64);
            runs.push(Run { maps: maps.map_or_else(Vec::new, |recorder| recorder.maps), ..run });
        }
        contests.push(Contest { name, task, runs });
    }
    bar.finish_and_clear();
    contests
}

/// What `--json` writes.
#[derive(Serialize)]
struct Numbers<'a, M> {
    config: &'a Config,
    #[serde(flatten)]
    more: M,
    contests: Vec<ContestNumbers<'a>>,
}

#[derive(Serialize)]
struct ContestNumbers<'a> {
    name: &'a str,
    runs: &'a [Run],
}

/// Everything that is written of contests into files; `more` is what else an experiment has found.
pub fn write_files(contests: &[Contest], more: impl Serialize, config: &Config, common: &Common) -> anyhow::Result<()> {
    if let Some(file) = &common.json {
        let contests = contests.iter().map(|Contest { name, runs, .. }| ContestNumbers { name, runs }).collect();
        write_json(file, &Numbers { config, more, contests })?;
    }
    if let Some(folder) = &common.output {
        let chapter = Chapter { config, introduction: String::new(), contests };
        portfolio::write(folder, "Results", &how_it_was_made(), &[chapter])?;
        writeln!(io::stdout(), "written: {}", portfolio::page(folder).display())?;
    }
    Ok(())
}

fn show(contests: &[Contest], by_batch: &[ByBatch]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (index, contest) in contests.iter().enumerate() {
        if contests.len() > 1 {
            writeln!(out, "{}{}", if index > 0 { "\n" } else { "" }, contest.name)?;
        }
        write_runs(&mut out, &contest.runs)?;
        by_batch.iter().try_for_each(|table| table.write(&mut out, &contest.runs))?;
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
