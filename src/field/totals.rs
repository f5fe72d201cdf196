//! Counts of what a map has learnt from.

use serde::{Deserialize, Serialize};

use crate::sensing::reading::Observation;

/// Counts of what a map has learnt from since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Updates of the model.
    pub updates: u64,
    /// Batches that were rejected.
    pub rejected_batches: u64,
    /// Observations learnt from.
    pub observations: u64,
    /// Observations of accepted batches that nothing was learnt from: those far above or below the plane of a map of three axes.
    pub out_of_reach: u64,
    /// Readings averaged into all of these observations.
    pub used_readings: u64,
}

impl std::fmt::Display for Totals {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} readings in {} updates", self.used_readings, self.updates)?;
        match self.out_of_reach {
            0 => Ok(()),
            count => write!(formatter, ", without {count} observations far above or below the others"),
        }
    }
}

impl Totals {
    /// Batches given to the model, rejected ones included.
    pub fn batches(&self) -> u64 {
        self.updates.saturating_add(self.rejected_batches)
    }

    /// The totals of a map that was given what both were given.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            updates: self.updates.saturating_add(other.updates),
            rejected_batches: self.rejected_batches.saturating_add(other.rejected_batches),
            observations: self.observations.saturating_add(other.observations),
            out_of_reach: self.out_of_reach.saturating_add(other.out_of_reach),
            used_readings: self.used_readings.saturating_add(other.used_readings),
        }
    }

    pub(super) fn add(&mut self, observations: &[Observation], out_of_reach: usize) {
        // A file may contain any number.
        self.updates = self.updates.saturating_add(1);
        self.observations = self.observations.saturating_add((observations.len() - out_of_reach) as u64);
        self.out_of_reach = self.out_of_reach.saturating_add(out_of_reach as u64);
        let readings = observations.iter().map(|observation| u64::from(observation.readings)).sum();
        self.used_readings = self.used_readings.saturating_add(readings);
    }
}
