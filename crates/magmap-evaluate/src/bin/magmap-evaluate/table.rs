//! `magmap-evaluate table`.

use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::thread;

use anyhow::bail;
use clap::Args;
use magmap_evaluate::comparison::Comparison;
use magmap_evaluate::methods::{MOST_EXACT, Method};
use magmap_evaluate::table::{self, Metric, Protocol, Summary, Table};
use magmap_tools::cli::{Ending, Terminal, UsageError, number};
use serde_json::json;

use super::arguments::{Common, help_on_methods};
use super::comparison::write_files;

/// Arguments of the experiment on a table.
#[derive(Args)]
pub struct Arguments {
    /// Numbers separated by commas, with or without a first line of names.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// The column that is learnt, by its name or its number from 1; otherwise the last.
    #[arg(long, value_name = "NAME|NUMBER")]
    target: Option<String>,
    /// A method, and a parameter where it is not the default; may be repeated, also with several parameters of one method.
    #[arg(long = "method", value_name = "NAME[=PARAMETER]", long_help = help_on_methods())]
    #[arg(default_values = ["vips=0.035", "conditional_variance", "oips"])]
    methods: Vec<Method>,
    /// The method that the others are measured against; by default exact for at most 2000 rows, and batch_sparse=1000 for more.
    #[arg(long, value_name = "NAME[=PARAMETER]")]
    reference: Option<Method>,
    /// Random splits into rows that are learnt from and rows that are tested.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    splits: u32,
    /// Share of the rows that are tested, between 0 and 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    test_share: f64,
    /// Batches of the other rows, by their first input.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batches: u32,
    /// Seed of the splits.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How much worse than the reference is good enough, in percent of how much worse the mean of all readings is.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    threshold: f64,
    /// Runs at a time; otherwise as many as there are cores. The numbers are the same.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    #[command(flatten)]
    common: Common,
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a number between 0 and 1", |share| 0.0 < *share && *share < 1.0)
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, "a number, 0 or above", |percent| *percent >= 0.0)
}

impl Arguments {
    pub fn run(&self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let config = self.common.config(table::settings())?;
        let table = Table::read(&self.data)?;
        let target = self.target.as_ref().map_or(Ok(table.columns - 1), |name| table.column(name))?;
        let Self { test_share, seed, .. } = *self;
        let protocol = Protocol { target, test_share, batches: self.batches as usize, seed };
        protocol.check(&table)?;
        let rows = protocol.training_rows(&table);
        let reference = self.reference.clone().unwrap_or_else(|| table::reference(rows));
        if reference == Method::Mean {
            let message = "--reference: expected another method than mean, which is the other end of the scale";
            return Err(UsageError(message.into()).into());
        }
        if reference == Method::Exact && rows > MOST_EXACT {
            bail!(
                "--reference exact: expected at most {MOST_EXACT} rows to learn from, found {rows}: batch_sparse takes more"
            );
        }
        let methods = table::line_up(&reference, &self.methods);
        let jobs = self.jobs.map_or_else(|| thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
        let splits = self.splits as usize;

        let bar = terminal.bar("evaluating", (splits * methods.len() * protocol.batches) as u64);
        let progress = |batches: usize| bar.inc(batches as u64);
        let runs = table::run(&table, &protocol, (splits, &methods), &config, jobs, &progress)?;
        bar.finish_and_clear();

        let summary = Summary::of(&methods, &runs, self.threshold);
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{}: {} rows of {} inputs, target {}; {} rows in {} batches, {} tested, {splits} splits",
            table.path.display(),
            table.rows(),
            table.columns - 1,
            table.name(target),
            rows,
            protocol.batches,
            protocol.test_rows(&table),
        )?;
        self.write(&mut out, &summary, &reference)?;
        let comparison =
            |(split, runs)| Comparison { name: format!("split {split}"), task: protocol.task(&table, split), runs };
        let comparisons: Vec<Comparison> = (1..).zip(runs).map(comparison).collect();
        let more = json!({ "protocol": protocol, "threshold": self.threshold, "summary": summary });
        write_files(&comparisons, more, &config, &self.common)?;
        Ok(Ending::Done)
    }

    fn write(&self, out: &mut impl Write, summary: &Summary, reference: &Method) -> io::Result<()> {
        let width = summary.methods.iter().map(|relative| relative.method.len()).fold(6, usize::max);
        writeln!(
            out,
            "{:width$} |        M   (sd) |  RMSE   RMSE %   (sd) |   NLPD    NLPD %   (sd) |        s",
            "method"
        )?;
        for relative in &summary.methods {
            write!(
                out,
                "{:width$} | {:8.1} {:6.1} | {:5.3} {:8.2} {:6.2} | {:6.3}  {:8.2} {:6.2} | {:8.2}",
                relative.method,
                relative.inducing_points.mean,
                relative.inducing_points.standard_deviation,
                relative.rmse.mean,
                relative.rmse_percent.mean,
                relative.rmse_percent.standard_deviation,
                relative.nlpd.mean,
                relative.nlpd_percent.mean,
                relative.nlpd_percent.standard_deviation,
                relative.seconds,
            )?;
            match self.splits as usize - relative.splits {
                0 => writeln!(out)?,
                early => writeln!(out, "  ended early in {early} splits")?,
            }
        }
        writeln!(out, "smallest within {} % of {reference}, as seen from mean:", self.threshold)?;
        for point in &summary.operating_points {
            let metric = match point.metric {
                Metric::Rmse => "RMSE",
                Metric::Nlpd => "NLPD",
            };
            let at = point.at.as_deref().unwrap_or("none of these parameters");
            writeln!(out, "  {metric}  {:width$}  {at}", point.method)?;
        }
        Ok(())
    }
}
