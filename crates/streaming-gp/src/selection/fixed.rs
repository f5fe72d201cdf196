//! A fixed number of inducing points, whose places are learnt with the hyperparameters (Bui et al. 2017, section 3.1).

use super::choose_anew;
use crate::{Batch, Choice, Kernel, Limits, NotPositiveDefinite, Rule, SelectionEnd};

/// The settings of a fixed number of inducing points.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// M.
    pub size: usize,
}

impl<K: Kernel> Rule<K> for Fixed {
    /// By greedy variance among the old inducing points and the readings; from there learning moves them.
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite> {
        let limits = Limits { max_inducing_points: self.size.min(limits.max_inducing_points), ..limits };
        let mut choice = choose_anew(batch, limits, |_| false);
        choice.moves = true;
        // All of them were requested.
        if choice.report.end == SelectionEnd::Capped && limits.max_inducing_points == self.size {
            choice.report.end = SelectionEnd::Converged;
        }
        Ok(choice)
    }
}
