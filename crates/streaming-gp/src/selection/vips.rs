//! VIPS: inducing points are added until the bound is close enough to what more of them could give (VIPS paper, algorithm 4,
//! with the condition of its loop the right way round).

use super::super::bounds;
use crate::{
    Batch, CeilingUsed, Choice, Gap, GreedyVariance, Kept, Kernel, Limits, NotPositiveDefinite, Places, Rule,
    SelectionEnd, SelectionReport,
};

/// The settings of VIPS.
#[derive(Clone, Debug, PartialEq)]
pub struct Vips {
    /// Share of the information in a batch (what its ceiling is above the noise baseline) that may be lost.
    pub delta: f64,
    /// Whether the threshold is kept from vanishing where there is nothing to model: at least delta N / 2 nats, and a noise
    /// baseline of at least the variance of the noise. The paper has no such guards.
    pub guards: bool,
    /// Most rows of a batch for which L* is computed; beyond, the upper bound rules. 0: always the upper bound.
    pub exact_limit: usize,
}

impl<K: Kernel> Rule<K> for Vips {
    fn choose(&self, batch: &Batch<'_, K>, limits: Limits) -> Result<Choice, NotPositiveDefinite> {
        let least_variance = if self.guards { batch.model.noise } else { f64::MIN_POSITIVE };
        let noise_baseline = batch.baseline.log_likelihood(batch.places, batch.targets, least_variance);
        let mut ceiling = Ceiling::new(self.exact_limit, batch);
        let past = batch.posterior.map(|posterior| &posterior.past);
        let mut greedy = GreedyVariance::new(batch.model, batch.places, batch.targets, past)?;
        if let (true, Some((first, _))) = (greedy.points.is_empty(), greedy.points.next(0.0)) {
            greedy.add(first);
        }
        loop {
            let bound = greedy.bound();
            ceiling.lower(&greedy);
            let allowed = self.allowed_gap(ceiling.value, noise_baseline, batch.targets.effective_count());
            let end = match greedy.points.next(limits.least_share) {
                // Without a finite ceiling nothing is known to be close enough.
                _ if ceiling.value.is_finite() && ceiling.value - bound <= allowed => SelectionEnd::Converged,
                None => SelectionEnd::Exhausted,
                Some(_) if greedy.points.len() >= limits.max_inducing_points => SelectionEnd::Capped,
                Some((index, _)) => {
                    greedy.add(index);
                    continue;
                }
            };
            let gap = Gap { ceiling_used: ceiling.used, ceiling: ceiling.value, bound, noise_baseline, allowed };
            return Ok(Choice {
                kept: Kept::All,
                added: greedy.points.chosen.to_vec(),
                moves: false,
                report: SelectionReport { added: greedy.points.chosen.len(), removed: 0, end, gap: Some(gap) },
            });
        }
    }
}

impl Vips {
    /// The gap that is allowed, in nats.
    fn allowed_gap(&self, ceiling: f64, noise_baseline: f64, count: f64) -> f64 {
        let information = (ceiling - noise_baseline).abs();
        let least = if self.guards { 0.5 * count } else { 0.0 };
        self.delta * information.max(least)
    }
}

/// The value that the bound is compared with: exact once, or an upper bound that comes down as points are added.
struct Ceiling {
    value: f64,
    used: CeilingUsed,
    /// Number of inducing points at which the upper bound is next computed.
    next_size: usize,
}

impl Ceiling {
    fn new<K: Kernel>(exact_limit: usize, batch: &Batch<'_, K>) -> Self {
        let past = batch.posterior.map(|posterior| &posterior.past);
        let exact = (batch.places.len() <= exact_limit)
            .then(|| bounds::exact_ceiling(batch.model, batch.places, batch.targets, past).ok())
            .flatten()
            .filter(|ceiling| ceiling.is_finite());
        match exact {
            Some(value) => Self { value, used: CeilingUsed::Exact, next_size: usize::MAX },
            None => Self { value: f64::INFINITY, used: CeilingUsed::Upper, next_size: 0 },
        }
    }

    /// Takes the upper bound of the points where it is lower. It costs as much as many additions, so it is computed again only
    /// when the points have grown by a sixteenth.
    fn lower<K: Kernel>(&mut self, greedy: &GreedyVariance<'_, K>) {
        if greedy.points.len() < self.next_size {
            return;
        }
        self.next_size = greedy.points.len() + (greedy.points.len() / 16).max(1);
        if let Ok(bound) = greedy.upper_bound() {
            self.value = self.value.min(bound);
        }
    }
}
