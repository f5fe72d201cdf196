//! Memory-based dual sparse Gaussian processes (Chang, Verma, John, Solin and Khan 2023): a fixed number of inducing points that
//! move, any likelihood, and a memory of past readings that keeps inference and hyperparameters honest.
//!
//! Each reading is represented in the posterior by a Gaussian site, that is by its dual parameters alpha and beta (eq. 2), found
//! by natural-gradient steps. The sites of a batch and of the memory are computed again with every batch; those of all other readings
//! are summed up in pseudo-observations at the inducing points, and stay as they were. Where the paper takes the memory out of
//! that sum before each update (eqs. 19 and 20), here it does not enter it until it leaves the memory, so that nothing is ever
//! subtracted. The equations, in square-root form, are in `dual_memory/evidence.rs`.
//!
//! Two things differ from the paper in effect. Eqs. 23 and 24 take the sum of the alphas for the mean, which holds at the optimum
//! only; the steps here follow the natural gradient to it (eqs. 54 to 57). And a step that lowers the bound is taken back.

mod cumulative;
mod evidence;
pub mod expectation;
mod link;
mod memory;
mod quadrature;
mod site;
pub mod state;
mod summary;

use super::hyperparameters;
use super::streaming::{self, Error};
use crate::{
    Kernel, Learning, LearningEnd, LearningReport, Model, NoiseBaselines, NotPositiveDefinite, PivotedCholesky, Places,
    Posterior, SelectionEnd, SelectionReport, UpdateReport,
};
use evidence::{Counts, Fit, Setup, WhitenedSites};
pub use link::Link;
pub use memory::Memory;
pub use site::Site;
use std::sync::Arc;
use summary::{Inducing, Summary};

/// The readings that stay in memory: a sample, by their Bayesian leverage scores h = beta Var\[f\] (eq. 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySize {
    /// Readings of a batch that enter the memory.
    pub per_batch: usize,
    /// Most readings in memory; beyond, a sample of the old and the new stays, by their scores under the newest posterior. The paper
    /// has no limit.
    pub most: usize,
}

/// The evidence from which hyperparameters are learnt, beside the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum OldEvidence {
    /// The memory, and the pseudo-observations that represent all other readings: everything once (eq. 21).
    #[default]
    Summary,
    /// The memory alone, each reading of it for as many as there were (eq. 26 and what follows it), times a share. Where there is no
    /// memory, the pseudo-observations.
    ScaledMemory {
        /// How much of that evidence counts: 1 in the paper. Less is of use where the errors of neighbouring readings are not
        /// independent, as those of a path that is a few centimetres off are not.
        share: f64,
    },
}

/// Everything about an update that is chosen beforehand. The published experiment with a magnetometer has 100 inducing points,
/// 100 readings of each of 20 batches in memory, and 2 steps of length 0.9; its script, unlike the paper, starts with inducing points
/// on a grid, learns their places with the hyperparameters, and draws the memory evenly.
#[derive(Clone, Debug, PartialEq)]
pub struct DualSettings {
    /// Inducing points M (at least one), chosen again with every batch among the old ones and the places of the batch: each where the
    /// variance left by all before it is greatest (pivoted Cholesky, section 3.4).
    pub inducing_points: usize,
    /// A place with no more than this share of its prior variance left is no inducing point, even if there are then fewer.
    pub least_share: f64,
    /// The readings that stay in memory.
    pub memory: MemorySize,
    /// Most natural-gradient steps in a row (at least one); fewer where the sites settle before.
    pub steps: usize,
    /// The length rho of a step, above 0 and at most 1. One step of length 1 is all that a Gaussian likelihood needs.
    pub step_length: f64,
    /// The evidence from which hyperparameters are learnt.
    pub old_evidence: OldEvidence,
    /// How the hyperparameters are learnt.
    pub learning: Learning,
}

/// The report of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct DualReport {
    /// The report that every model gives; the noise is without effect on labels, and the bound is the evidence lower bound of memory
    /// and batch given the summary of all other readings (eq. 21).
    pub update: UpdateReport,
    /// Readings in memory after the update.
    pub memory: usize,
    /// Natural-gradient steps.
    pub steps: usize,
}

/// Most turns between sites and hyperparameters in an update. Sites are held while hyperparameters are learnt (section 3.4).
const MOST_ROUNDS: usize = 5;

/// Turns end when no logarithm of a hyperparameter has moved by more than this.
const SETTLED: f64 = 0.01;

/// A sparse Gaussian process that learns from a stream of batches and remembers some of it.
#[derive(Clone, Debug)]
pub struct DualGp<K: Kernel> {
    /// The model with its newest hyperparameters.
    pub model: Model<K>,
    /// The link of the labels that it learns, to which the likelihood and the noise of the model are without effect; none where it
    /// learns measurements.
    pub link: Option<Link>,
    /// How it learns from the next batch on.
    pub settings: DualSettings,
    summary: Option<Summary<K>>,
    memory: Option<Memory<K::Places>>,
    posterior: Option<Arc<Posterior<K>>>,
    /// Count, mean and variance of all targets of each output so far.
    pub baseline: NoiseBaselines,
}

impl<K: Kernel> DualGp<K> {
    /// A model of measured targets, with the likelihood of `model` and the hyperparameters that learning starts from.
    pub fn new(model: Model<K>, settings: DualSettings) -> Self {
        let baseline = NoiseBaselines::default();
        Self { model, link: None, settings, summary: None, memory: None, posterior: None, baseline }
    }

    /// A model of labels 0 and 1, whatever the likelihood of `model`; its noise is without effect.
    pub fn binary(model: Model<K>, link: Link, settings: DualSettings) -> Self {
        Self { link: Some(link), ..Self::new(model, settings) }
    }

    /// Takes in one batch (algorithm 1). `stop` is checked before every evaluation of learning; when it is true, the update ends with
    /// the best hyperparameters so far.
    ///
    /// # Errors
    /// When the batch is rejected; the model is then as it was.
    pub fn update(
        &mut self,
        places: &K::Places,
        targets: &[f64],
        stop: &dyn Fn() -> bool,
    ) -> Result<DualReport, Error> {
        self.check(places, targets)?;
        let nothing = Memory { places: places.cleared(), targets: Vec::new(), sites: Vec::new() };
        let memory = self.memory.as_ref().unwrap_or(&nothing);
        let Memory { places: all, targets: values, sites } = memory.followed_by(places, targets);
        let inducing = self.choose_inducing(places);
        let setup = Setup {
            places: &all,
            targets: &values,
            link: self.link,
            memory: memory.targets.len(),
            summary: self.summary.as_ref(),
            inducing,
        };
        let learnt = self.learn(&setup, sites, stop).map_err(|error| streaming::broken_down(error, &self.model))?;

        let Learnt { whitened, sites, fit, .. } = &learnt;
        let model = &whitened.model;
        let everything: Vec<usize> = (0..values.len()).collect();
        let scores: Vec<f64> = sites.iter().zip(&fit.variances).map(|(site, v)| site.precision * v).collect();
        let (kept, released) = self.remember(&scores, memory.targets.len());
        let posterior = setup.posterior(whitened, sites, &everything);
        let posterior = posterior.map_err(|error| streaming::broken_down(error, model))?;
        let summary = if released.is_empty() && self.summary.is_none() {
            None
        } else {
            let released = setup.posterior(whitened, sites, &released);
            Some(Summary::new(released.map_err(|error| streaming::broken_down(error, model))?))
        };
        let update = UpdateReport {
            rows: targets.len(),
            inducing_points: posterior.past.inducing.len(),
            dropped: 0,
            hyperparameters: model.named_values(),
            bound: setup.bound(fit, Counts::ONCE),
            selection: self.selection(&setup.inducing),
            learning: learnt.report,
        };
        let report = DualReport { update, memory: kept.len(), steps: learnt.steps };
        let Learnt { whitened, sites, .. } = learnt;
        self.memory = Some(Memory { places: all, targets: values, sites }.select(&kept));
        self.summary = summary;
        self.posterior = Some(Arc::new(posterior));
        self.model = whitened.model;
        self.baseline = self.baseline.including(places, targets);
        Ok(report)
    }

    /// Mean and variance of the latent function (noise not included) at each place; those of the prior before the first batch.
    pub fn predict(&self, places: &K::Places) -> (Vec<f64>, Vec<f64>) {
        match &self.posterior {
            Some(posterior) => posterior.predict(places),
            None => (vec![self.model.mean; places.len()], self.model.kernel.diagonal(places)),
        }
    }

    /// The probability of a 1 at each place; none where targets are no labels.
    pub fn predict_probability(&self, places: &K::Places) -> Option<Vec<f64>> {
        let link = self.link?;
        let (mean, variance) = self.predict(places);
        Some(mean.into_iter().zip(variance).map(|(mean, variance)| link.probability(mean, variance)).collect())
    }

    /// The newest posterior; none before the first batch.
    pub fn posterior(&self) -> Option<&Arc<Posterior<K>>> {
        self.posterior.as_ref()
    }

    fn check(&self, places: &K::Places, targets: &[f64]) -> Result<(), Error> {
        streaming::check(places, targets, self.posterior.as_deref())?;
        let no_label = targets.iter().position(|&target| target != 0.0 && target != 1.0);
        match no_label.filter(|_| self.link.is_some()) {
            Some(row) => Err(Error::Label { found: targets[row], row }),
            None => Ok(()),
        }
    }

    /// Inducing points among the old ones and the places of a batch (section 3.4).
    fn choose_inducing(&self, places: &K::Places) -> Inducing<K::Places> {
        let old = self.posterior.as_ref().map(|posterior| &posterior.past.inducing);
        let candidates = old.map_or_else(|| places.clone(), |old| old.followed_by(places));
        let mut points = PivotedCholesky::new(&self.model, &candidates);
        while points.len() < self.settings.inducing_points.max(1)
            && let Some((index, _)) = points.next(self.settings.least_share)
        {
            points.add(index);
        }
        let chosen = points.chosen.iter().copied();
        let stays = |&(_, index): &(usize, usize)| old.is_some_and(|old| index < old.len());
        let shared = chosen.clone().enumerate().filter(stays).collect();
        Inducing { places: candidates.select(chosen), shared }
    }

    fn selection(&self, inducing: &Inducing<K::Places>) -> SelectionReport {
        let (size, stayed) = (inducing.places.len(), inducing.shared.len());
        let old = self.posterior.as_ref().map_or(0, |posterior| posterior.past.inducing.len());
        let is_full = size >= self.settings.inducing_points;
        let end = if is_full { SelectionEnd::Converged } else { SelectionEnd::Exhausted };
        SelectionReport { added: size - stayed, removed: old - stayed, end, gap: None }
    }

    /// Finds sites and hyperparameters in turns. When the arithmetic breaks down in a turn, all is as in the turn before.
    fn learn(
        &self,
        setup: &Setup<'_, K>,
        sites: Vec<Site>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Learnt<K>, NotPositiveDefinite> {
        let learning = &self.settings.learning;
        let mut learnt = self.settle(setup, self.model.clone(), sites)?;
        let batch = setup.targets.len() - setup.memory;
        let counts = self.counts(setup.memory);
        for _ in 0..MOST_ROUNDS {
            let before = learnt.whitened.model.log_parameters();
            let left = learning.max_evaluations - learnt.report.evaluations;
            let rest = Learning { max_evaluations: left, ..learning.clone() };
            let value = |at: &[f64]| {
                rest.with_prior(&learnt.whitened.model, at, |model| {
                    let whitened = setup.whiten(model.clone()).ok()?;
                    let fit = setup.fit(&whitened, &learnt.sites).ok()?;
                    let gradient = setup.gradient(&whitened, &learnt.sites, &fit, counts);
                    Some((setup.bound(&fit, counts), gradient))
                })
            };
            let (found, report) = rest.maximize(before.clone(), batch, &value, stop);
            let found = found.map_or_else(|| before.clone(), |found| hyperparameters::clamp(&found));
            let report = LearningReport { evaluations: learnt.report.evaluations + report.evaluations, ..report };
            let movement = before.iter().zip(&found).map(|(before, found)| (found - before).abs()).fold(0.0, f64::max);
            learnt.report = report;
            if movement > 0.0 {
                let model = learnt.whitened.model.with_log_parameters(&found);
                let Ok(next) = self.settle(setup, model, learnt.sites.clone()) else { break };
                learnt = Learnt { steps: learnt.steps + next.steps, report, ..next };
            }
            let may_continue = matches!(report.end, LearningEnd::Converged | LearningEnd::Stalled);
            if movement <= SETTLED || !may_continue || report.evaluations >= learning.max_evaluations {
                break;
            }
        }
        Ok(learnt)
    }

    fn settle(
        &self,
        setup: &Setup<'_, K>,
        model: Model<K>,
        mut sites: Vec<Site>,
    ) -> Result<Learnt<K>, NotPositiveDefinite> {
        let whitened = setup.whiten(model)?;
        let steps = (self.settings.steps, self.settings.step_length);
        let (fit, steps) = setup.settle(&whitened, &mut sites, steps)?;
        let report = LearningReport { evaluations: 0, end: LearningEnd::Off };
        let is_finite = setup.bound(&fit, Counts::ONCE).is_finite();
        is_finite.then_some(Learnt { whitened, sites, fit, steps, report }).ok_or(NotPositiveDefinite)
    }

    fn counts(&self, memory: usize) -> Counts {
        match self.settings.old_evidence {
            OldEvidence::ScaledMemory { share } if memory > 0 => {
                Counts { memory: share * self.baseline.count() as f64 / memory as f64, summary: 0.0 }
            }
            _ => Counts::ONCE,
        }
    }

    /// Of the readings with these scores, of which the first `before` have been in memory, those that stay in it, and those that are let
    /// go.
    fn remember(&self, scores: &[f64], before: usize) -> (Vec<usize>, Vec<usize>) {
        let MemorySize { per_batch, most } = self.settings.memory;
        let entering = memory::sample(&scores[before..], per_batch).into_iter().map(|i| before + i);
        let candidates: Vec<usize> = (0..before).chain(entering).collect();
        let scores_of_candidates: Vec<f64> = candidates.iter().map(|&i| scores[i]).collect();
        let kept: Vec<usize> = memory::sample(&scores_of_candidates, most).into_iter().map(|i| candidates[i]).collect();
        let released = (0..scores.len()).filter(|i| kept.binary_search(i).is_err()).collect();
        (kept, released)
    }
}

/// The outcome of learning.
struct Learnt<K> {
    whitened: WhitenedSites<K>,
    sites: Vec<Site>,
    fit: Fit,
    steps: usize,
    report: LearningReport,
}

#[cfg(test)]
mod tests;
