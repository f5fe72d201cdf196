//! Online inducing point selection: a reading becomes an inducing point where it is correlated with none of them (Galy-Fajou and
//! Opper 2021; VIPS paper, algorithm 6).

use crate::{Batch, Choice, Kept, Kernel, Limits, NotPositiveDefinite, Places, Rule, SelectionEnd, SelectionReport};

/// The settings of online inducing point selection.
#[derive(Clone, Debug, PartialEq)]
pub struct Oips {
    /// rho: a reading whose greatest correlation with an inducing point is below this becomes one. The constant that a kernel may
    /// have, which all places share, does not count.
    pub correlation: f64,
}

impl<K: Kernel> Rule<K> for Oips {
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite> {
        let kernel = &batch.model.kernel;
        let candidates = batch.places.candidates();
        let missing = batch.missing_permanent();
        let mut inducing = batch.posterior.map_or(missing.clone(), |past| past.past.inducing.followed_by(&missing));
        let (mut added, mut end) = (Vec::new(), SelectionEnd::Converged);
        for index in 0..candidates.len() {
            let (greatest, most) = kernel.closest(&inducing, &candidates, index);
            if greatest >= self.correlation * most {
                continue;
            }
            if inducing.len() >= limits.max_inducing_points {
                end = SelectionEnd::Capped;
                break;
            }
            inducing.push_from(&candidates, index);
            added.push(index);
        }
        let report = SelectionReport { added: added.len(), removed: 0, end, gap: None };
        Ok(Choice { kept: Kept::All, added, moves: false, report })
    }
}
