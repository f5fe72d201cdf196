//! The interface of a write-ahead log of steps.

use super::mapper::{Mapper, Step};
use crate::sensing::reading::Observation;

/// Reads the batches of a trajectory, at their poses by odometry, which waits for the disk; or says why they cannot be read.
pub type ReadTrajectory = Box<dyn FnOnce() -> Result<Vec<Vec<Observation>>, String> + Send>;

/// A write-ahead log of the steps that lead to a map, from which they can be replayed. Only [`sync`](Self::sync) and
/// [`close`](Self::close) wait for the disk.
pub trait StepLog: Send {
    /// Appends a step that `mapper` is about to take.
    fn append(&mut self, mapper: &Mapper, step: &Step);

    /// Keeps the observations that `mapper` has just learnt, or rejected.
    fn learnt(&mut self, mapper: &Mapper, observations: &[Observation]);

    /// Returns when every appended step is written, when writing fails, or, unless `unlimited`, when waiting takes too long.
    fn sync(&mut self, unlimited: bool);

    /// Whether a checkpoint is due.
    fn is_checkpoint_due(&self, mapper: &Mapper) -> bool;

    /// Writes the complete state, after which earlier steps are no longer needed.
    fn checkpoint(&mut self, mapper: &Mapper);

    /// How to read the batches that led to the map of `mapper`, at their poses by odometry.
    fn trajectory(&mut self, mapper: &Mapper) -> ReadTrajectory;

    /// Ends the log with the `last` state, if the steps lead to it: returns when everything is written, or writing fails.
    fn close(self: Box<Self>, last: Option<&Mapper>);
}
