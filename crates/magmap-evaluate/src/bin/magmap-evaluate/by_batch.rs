//! Numbers as they went from batch to batch.

use std::io::{self, Write};

use magmap_evaluate::contest::{Run, Step};

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

    pub fn write(&self, out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
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
