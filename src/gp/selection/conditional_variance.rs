//! Conditional variance: inducing points are chosen anew, among the old ones and the readings, until they leave little of the
//! prior variance of either (Burt et al. 2020; VIPS paper, algorithm 5, with the condition of its loop the right way round).

use super::super::kernel::{Kernel, Places};
use super::super::linalg::NotPositiveDefinite;
use super::super::report::{SelectionEnd, SelectionReport};
use super::{Batch, Choice, Kept, Limits, PivotedCholesky, Rule};

/// The settings of conditional variance.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionalVariance {
    /// eta: what may be left of the prior variance, summed over the old inducing points and the readings of the batch, in the
    /// unit of the targets squared.
    pub tolerance: f64,
}

impl<K: Kernel> Rule<K> for ConditionalVariance {
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite> {
        let old = batch.old();
        let pool = batch
            .posterior
            .map_or_else(|| batch.places.clone(), |posterior| posterior.inducing().followed_by(batch.places));
        let mut points = PivotedCholesky::new(batch.model, &pool);
        let end = loop {
            let left: f64 = points.variances().iter().sum();
            match points.next(limits.least_share) {
                _ if !points.is_empty() && left <= self.tolerance => break SelectionEnd::Converged,
                None => break SelectionEnd::Exhausted,
                Some(_) if points.len() >= limits.max_inducing_points => break SelectionEnd::Capped,
                Some((index, _)) => points.add(index),
            };
        };
        let (mut kept, added): (Vec<usize>, Vec<usize>) = points.chosen().iter().partition(|&&index| index < old);
        kept.sort_unstable();
        let added: Vec<usize> = added.into_iter().map(|index| index - old).collect();
        let report = SelectionReport { added: added.len(), removed: old - kept.len(), end, gap: None };
        Ok(Choice { kept: Kept::of(kept, old), added, report })
    }
}
