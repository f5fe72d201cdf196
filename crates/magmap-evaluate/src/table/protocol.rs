//! From a table to the task of a split.

use super::super::Error;
use super::super::contest::{Readings, Task};
use super::file::{Table, refused};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use streaming_gp::points::Points;

/// How a table becomes a stream and its test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// The column that is learnt, counted from zero; all others are inputs.
    pub target: usize,
    /// Share of the rows that are tested.
    pub test_share: f64,
    /// Batches that the other rows come in.
    pub batches: usize,
    /// Seed of the splits.
    pub seed: u64,
}

impl Protocol {
    /// Refuses a table that is too small.
    ///
    /// # Errors
    /// What is expected.
    pub fn check(&self, table: &Table) -> Result<(), Error> {
        if table.columns() < 2 {
            return Err(refused(table.path(), "an input and a target".into(), "one column".into()));
        }
        if self.training_rows(table) < self.batches {
            let expected = format!("rows for {} batches and their test", self.batches);
            return Err(refused(table.path(), expected, format!("{} rows", table.rows())));
        }
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

    /// The task of a split, counted from one; the same for the same seed. Inputs and target are standardised as the training rows
    /// have it, and these sorted by their first input and cut into batches. A test row is tested from the batch on that reaches as far
    /// as its first input; what lies beyond all training rows, with the batch at that end.
    pub fn task(&self, table: &Table, split: usize) -> Task {
        let mut rows: Vec<usize> = (0..table.rows()).collect();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(split as u64);
        rows.shuffle(&mut random);
        let (tested, learnt) = rows.split_at(self.test_rows(table));
        let (tested, mut learnt) = (tested.to_vec(), learnt.to_vec());
        let first = usize::from(self.target == 0);
        let first_input = |row: &usize| table.row(*row)[first];
        learnt.sort_by(|a, b| first_input(a).total_cmp(&first_input(b)).then(a.cmp(b)));

        let columns: Vec<Standard> =
            (0..table.columns()).map(|column| Standard::of(learnt.iter().map(|row| table.row(*row)[column]))).collect();
        let readings = |rows: &[usize]| {
            let mut readings = Readings { places: Points::new(table.columns() - 1), targets: Vec::new() };
            for row in rows {
                let mut values: Vec<f64> =
                    table.row(*row).iter().zip(&columns).map(|(value, standard)| standard.apply(*value)).collect();
                readings.targets.push(values.remove(self.target));
                readings.places.push(&values);
            }
            readings
        };
        let batches: Vec<&[usize]> = (0..self.batches)
            .map(|batch| &learnt[batch * learnt.len() / self.batches..(batch + 1) * learnt.len() / self.batches])
            .collect();
        let reaches: Vec<f64> = batches.iter().filter_map(|batch| batch.last()).map(first_input).collect();
        let reached = |row| (reaches.partition_point(|reach| *reach < first_input(row)) + 1).min(self.batches);
        let task = Task::new(batches.into_iter().map(readings).collect(), readings(&tested));
        Task { tested_from: tested.iter().map(reached).collect(), ..task }
    }
}

/// Mean and standard deviation of a column.
struct Standard {
    mean: f64,
    deviation: f64,
}

impl Standard {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let deviation = (values.map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
        // A column that says nothing stays where it is.
        Self { mean, deviation: if deviation > 0.0 { deviation } else { 1.0 } }
    }

    fn apply(&self, value: f64) -> f64 {
        (value - self.mean) / self.deviation
    }
}
