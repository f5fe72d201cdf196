//! VIPS: inducing points are added until the bound is close enough to what more of them could give (VIPS paper, algorithm 4,
//! with the condition of its loop the right way round).

use super::super::bounds::{self, NoiseBaseline};
use super::super::kernel::{Kernel, Places};
use super::super::linalg::NotPositiveDefinite;
use super::super::model::Model;
use super::super::posterior::Posterior;
use super::super::report::{CeilingUsed, SelectionEnd, SelectionReport};
use super::super::targets::Targets;
use super::super::whitened::Past;
use super::GreedyVariance;

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
    /// Most inducing points, old and new.
    pub max_inducing_points: usize,
    /// A reading with no more than this share of its prior variance left is no inducing point: it would add nothing but
    /// ill-conditioning.
    pub least_share: f64,
    /// A reading where the posterior variance of the past is at most so many times the variance of the noise is no inducing point:
    /// the place is known. With 0 a model of a field that never changes grows without end: a kernel of finite smoothness has ever
    /// finer detail, and with every pass some batch that leaves a little more of it unexplained than any before.
    pub known: f64,
}

/// The points that were chosen.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Indices into the batch, in the order in which they were chosen.
    pub indices: Vec<usize>,
    /// How and why.
    pub report: SelectionReport,
}

impl Vips {
    /// Chooses among the places of a batch. `baseline` includes the batch.
    ///
    /// # Errors
    /// When a covariance is not positive definite to the precision of doubles.
    pub fn select<'a, K: Kernel>(
        &self,
        model: &Model<K>,
        places: &K::Places,
        targets: impl Into<Targets<'a>>,
        posterior: Option<&Posterior<K>>,
        baseline: &NoiseBaseline,
    ) -> Result<Selected, NotPositiveDefinite> {
        let targets = targets.into();
        let past = posterior.map(Posterior::past);
        let least_variance = if self.guards { model.noise } else { f64::MIN_POSITIVE };
        let noise_baseline = baseline.log_likelihood(targets, least_variance);
        let mut ceiling = Ceiling::new(self, model, places, targets, past);
        let mut points = GreedyVariance::new(model, places, targets, past)?;
        if let (Some(posterior), true) = (posterior, self.known > 0.0) {
            points.leave_out_known(posterior, self.known);
        }
        if let (true, Some((first, _))) = (points.is_empty(), points.next(0.0)) {
            points.add(first);
        }
        loop {
            let bound = points.bound();
            ceiling.lower(&points);
            let threshold = self.threshold(ceiling.value, noise_baseline, targets.values().len());
            let end = match points.next(self.least_share) {
                // Without a finite ceiling nothing is known to be close enough.
                _ if ceiling.value.is_finite() && ceiling.value - bound <= threshold => SelectionEnd::Converged,
                None => SelectionEnd::Exhausted,
                Some(_) if points.len() >= self.max_inducing_points => SelectionEnd::Capped,
                Some((index, _)) => {
                    points.add(index);
                    continue;
                }
            };
            let report = SelectionReport {
                ceiling_used: ceiling.used,
                ceiling: ceiling.value,
                bound,
                noise_baseline,
                threshold,
                added: points.chosen().len(),
                end,
            };
            return Ok(Selected { indices: points.chosen().to_vec(), report });
        }
    }

    /// The gap that is allowed, in nats.
    fn threshold(&self, ceiling: f64, noise_baseline: f64, count: usize) -> f64 {
        let information = (ceiling - noise_baseline).abs();
        let least = if self.guards { 0.5 * count as f64 } else { 0.0 };
        self.delta * information.max(least)
    }
}

/// What the bound is compared with: exact once, or an upper bound that comes down as points are added.
struct Ceiling {
    value: f64,
    used: CeilingUsed,
    /// Number of inducing points at which the upper bound is next computed.
    next_size: usize,
}

impl Ceiling {
    fn new<K: Kernel>(
        vips: &Vips,
        model: &Model<K>,
        places: &K::Places,
        targets: Targets<'_>,
        past: Option<&Past<K>>,
    ) -> Self {
        let exact = (places.len() <= vips.exact_limit)
            .then(|| bounds::exact_ceiling(model, places, targets, past).ok())
            .flatten()
            .filter(|ceiling| ceiling.is_finite());
        match exact {
            Some(value) => Self { value, used: CeilingUsed::Exact, next_size: usize::MAX },
            None => Self { value: f64::INFINITY, used: CeilingUsed::Upper, next_size: 0 },
        }
    }

    /// Takes the upper bound of the points where it is lower. It costs as much as many additions, so it is computed again only
    /// when the points have grown by a sixteenth.
    fn lower<K: Kernel>(&mut self, points: &GreedyVariance<'_, K>) {
        if points.len() < self.next_size {
            return;
        }
        self.next_size = points.len() + (points.len() / 16).max(1);
        if let Ok(bound) = points.upper_bound() {
            self.value = self.value.min(bound);
        }
    }
}
