//! What keeps the steps that lead to a map.

use super::mapper::{Mapper, Step};

/// Keeps the steps that lead to a map, so that they can be taken again. Nothing but [`settle`](Self::settle) and
/// [`close`](Self::close) waits.
pub trait Keeper<L>: Send {
    /// Takes note of a step that `mapper` is about to take.
    fn note(&mut self, mapper: &Mapper<L>, step: &Step);

    /// Returns when everything noted is kept, when it cannot be, or when the keeper finds that waiting takes too long; a `patient`
    /// one never does.
    fn settle(&mut self, patient: bool);

    /// Whether it is time to hand it the whole state.
    fn wants_state(&self, mapper: &Mapper<L>) -> bool;

    /// Takes the whole state, after which earlier steps are not needed any more.
    fn keep(&mut self, mapper: &Mapper<L>);

    /// Nothing more will come, and this is the `last` state, if it is one that the steps lead to: returns when everything is
    /// kept, or cannot be.
    fn close(self: Box<Self>, last: Option<&Mapper<L>>);
}
