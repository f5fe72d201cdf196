//! Splits a table into a task: batches to learn from, and a test.

use super::super::comparison::{Task, in_batches};
use super::super::metrics::{MeanAndDeviation, Readings};
use super::file::Table;
use anyhow::ensure;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use streaming_gp::Points;

/// How a table becomes a stream and its test.
#[derive(Clone, Debug, Serialize)]
pub struct Protocol {
    /// The column that is learnt, counted from zero; all others are inputs.
    pub target: usize,
    /// Share of the rows that are tested.
    pub test_share: f64,
    /// Number of batches of the other rows.
    pub batches: usize,
    /// Seed of the splits.
    pub seed: u64,
}

impl Protocol {
    /// Whether the table is large enough.
    ///
    /// # Errors
    /// A table that is too small; says what is expected.
    pub fn check(&self, table: &Table) -> anyhow::Result<()> {
        let (name, rows, batches) = (table.path.display(), table.rows(), self.batches);
        ensure!(table.columns >= 2, "{name}: expected an input and a target, found one column");
        let is_enough = self.training_rows(table) >= batches;
        ensure!(is_enough, "{name}: expected rows for {batches} batches and their test, found {rows} rows");
        Ok(())
    }

    /// Number of test rows: at least one.
    pub fn test_rows(&self, table: &Table) -> usize {
        ((self.test_share * table.rows() as f64).round() as usize).max(1)
    }

    /// Number of rows that are learnt from.
    pub fn training_rows(&self, table: &Table) -> usize {
        table.rows().saturating_sub(self.test_rows(table))
    }

    /// The task of a split, counted from one; the same for the same seed. Inputs and target are standardised with the mean and the
    /// deviation of the training rows, which are sorted by their first input and cut into batches. A test row is tested from the first
    /// batch on that reaches as far as its first input; one beyond all training rows, with the batch at that end.
    pub fn task(&self, table: &Table, split: usize) -> Task {
        let mut rows: Vec<usize> = (0..table.rows()).collect();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(split as u64);
        rows.shuffle(&mut random);
        let (tested, learnt) = rows.split_at_mut(self.test_rows(table));
        let first = usize::from(self.target == 0);
        let first_input = |row: &usize| table.row(*row)[first];
        learnt.sort_by(|a, b| first_input(a).total_cmp(&first_input(b)).then(a.cmp(b)));

        let column = |column: usize| MeanAndDeviation::of(learnt.iter().map(|row| table.row(*row)[column]));
        let columns: Vec<MeanAndDeviation> = (0..table.columns).map(column).collect();
        let standardised = |(value, column): (&f64, &MeanAndDeviation)| {
            // A column whose values are all the same is only shifted.
            let scale = if column.standard_deviation > 0.0 { column.standard_deviation } else { 1.0 };
            (value - column.mean) / scale
        };
        let readings = |rows: &[usize]| {
            let mut readings = Readings { places: Points::new(table.columns - 1), targets: Vec::new() };
            for row in rows {
                let mut values: Vec<f64> = table.row(*row).iter().zip(&columns).map(standardised).collect();
                readings.targets.push(values.remove(self.target));
                readings.places.push(&values);
            }
            readings
        };
        let batches = || in_batches(learnt, self.batches);
        let reaches: Vec<f64> = batches().filter_map(|batch| batch.last()).map(first_input).collect();
        let reached = |row| (reaches.partition_point(|reach| *reach < first_input(row)) + 1).min(self.batches);
        let task = Task::new(batches().map(readings).collect(), readings(tested));
        Task { tested_from: tested.iter().map(reached).collect(), ..task }
    }
}
