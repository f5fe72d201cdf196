//! Conditional variance: inducing points are chosen anew, among the old ones and the readings, until they leave little of the
//! prior variance of either (Burt et al. 2020; VIPS paper, algorithm 5, with the condition of its loop the right way round).

use super::choose_anew;
use crate::{Batch, Choice, Kernel, Limits, NotPositiveDefinite, Rule};

/// The settings of conditional variance.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionalVariance {
    /// eta: what may be left of the prior variance, summed over the old inducing points and the readings of the batch, in the
    /// unit of the targets squared.
    pub tolerance: f64,
}

impl<K: Kernel> Rule<K> for ConditionalVariance {
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite> {
        Ok(choose_anew(batch, limits, |points| points.variances.iter().sum::<f64>() <= self.tolerance))
    }
}
