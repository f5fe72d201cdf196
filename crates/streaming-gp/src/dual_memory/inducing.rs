//! The inducing points of an update.

/// The inducing points Z.
pub(super) struct Inducing<P> {
    pub(super) places: P,
    /// Pairs (new, old) of indices of those that were inducing points before: the same variable, with the same jitter.
    pub(super) shared: Vec<(usize, usize)>,
}
