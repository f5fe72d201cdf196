//! The places that a kernel is evaluated at: points of R^D for a scalar field, (point, axis) for a vector field.

use std::borrow::Cow;
use std::fmt::Debug;

/// An ordered collection of what a kernel is evaluated at.
pub trait Places: Clone + Debug + Send + Sync {
    /// How many.
    fn len(&self) -> usize;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Output of the field that a place is of, counted from 0: the axis of a vector field; a scalar field has one.
    fn output(&self, _index: usize) -> usize {
        0
    }

    /// Inducing variables that these places, as those of a batch, offer, one for each and in the same order: the places themselves, or
    /// the part of them that is of the field alone, where a reading has more than that.
    fn candidates(&self) -> Cow<'_, Self> {
        Cow::Borrowed(self)
    }

    /// Whether a place is a variable that stays an inducing one for the life of a model: see [`Kernel::permanent`](super::kernel::Kernel::permanent).
    fn is_permanent(&self, _index: usize) -> bool {
        false
    }

    /// An empty collection of the same kind.
    fn cleared(&self) -> Self;

    /// Appends one place of another collection.
    fn push_from(&mut self, source: &Self, index: usize);

    /// Whether places of both collections can be compared (same dimension).
    fn compatible(&self, other: &Self) -> bool;

    /// Whether every number in it is finite.
    fn is_finite(&self) -> bool;

    /// How many coordinates of each place can be moved (the axis of a vector field is none).
    fn coordinates_per_place(&self) -> usize;

    /// The coordinates of all places: the first of each, then the second of each, and so on.
    fn coordinates(&self) -> Vec<f64>;

    /// The places with other coordinates, in the order of [`Places::coordinates`].
    ///
    /// # Panics
    /// When there is another number of them.
    fn with_coordinates(&self, coordinates: &[f64]) -> Self;

    /// The places with these indices, in this order.
    fn select(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let mut selected = self.cleared();
        indices.into_iter().for_each(|index| selected.push_from(self, index));
        selected
    }

    /// Appends all places of `other`.
    fn followed_by(&self, other: &Self) -> Self {
        let mut all = self.clone();
        (0..other.len()).for_each(|index| all.push_from(other, index));
        all
    }
}
