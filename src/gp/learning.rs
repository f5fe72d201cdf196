//! Hyperparameters by maximization of the evidence lower bound (and a prior), with L-BFGS in log space.

use super::hyperparameters::{self, LogNormalPrior};
use super::kernel::Kernel;
use super::model::Model;
use super::report::{LearningEnd, LearningReport};
use super::whitened::Rows;
use argmin::core::{CostFunction, Error, Executor, Gradient, State, TerminationReason, TerminationStatus};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use std::cell::RefCell;

/// How hyperparameters are learnt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learning {
    /// Evaluations of bound and gradient allowed; 0 leaves the hyperparameters as they are.
    pub max_evaluations: usize,
    /// A prior on the hyperparameters, in the order of [`Model::log_parameters`].
    pub prior: Option<LogNormalPrior>,
}

/// Pairs of steps and gradients that L-BFGS remembers; more than there are hyperparameters gains nothing.
const MEMORY: usize = 7;

/// Learning ends when an iteration gains less than this, in nats: too little for a map to show.
const LEAST_GAIN: f64 = 1e-4;

impl Learning {
    /// The best hyperparameters found from those of `model` onwards, never worse than those. `stop` is asked before every
    /// evaluation.
    ///
    /// A failed or non-finite evaluation is stepped back from; if nothing better is found, the hyperparameters stay and the
    /// report says so.
    pub fn learn<K: Kernel>(
        &self,
        model: &Model<K>,
        rows: &Rows<'_, K>,
        stop: &dyn Fn() -> bool,
    ) -> (Model<K>, LearningReport) {
        if self.max_evaluations == 0 {
            return (model.clone(), LearningReport { evaluations: 0, end: LearningEnd::Off });
        }
        let start = model.log_parameters();
        let objective = Objective { learning: self, model, rows, stop, memory: RefCell::default(), scale: 1.0 };
        let Ok(first) = objective.evaluate(&start) else {
            let end = objective.memory.borrow().end.unwrap_or(LearningEnd::Failed);
            return (model.clone(), LearningReport { evaluations: objective.memory.borrow().evaluations, end });
        };
        // Scaled so that the first step, along the gradient, is at most one unit of a logarithm.
        let norm = first.gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let objective = Objective { scale: 1.0 / norm.max(1.0), ..objective };
        let end = objective.minimize(start);
        let memory = objective.memory.into_inner();
        let best = memory.best.expect("the first evaluation succeeded");
        let report = LearningReport { evaluations: memory.evaluations, end };
        (model.with_log_parameters(&hyperparameters::clamp(&best.at)), report)
    }
}

/// The negative bound and log prior density as a function of the logarithms of the hyperparameters.
struct Objective<'a, K: Kernel> {
    learning: &'a Learning,
    model: &'a Model<K>,
    rows: &'a Rows<'a, K>,
    stop: &'a dyn Fn() -> bool,
    memory: RefCell<Memory>,
    /// Factor on everything the optimizer sees.
    scale: f64,
}

#[derive(Default)]
struct Memory {
    evaluations: usize,
    latest: Option<Evaluation>,
    best: Option<Evaluation>,
    /// Why an evaluation was refused.
    end: Option<LearningEnd>,
}

#[derive(Clone)]
struct Evaluation {
    at: Vec<f64>,
    cost: f64,
    gradient: Vec<f64>,
}

/// Ends a run of the optimizer; why is in [`Memory`].
#[derive(Debug, thiserror::Error)]
#[error("no further evaluation")]
struct NoFurtherEvaluation;

impl<K: Kernel> Objective<'_, K> {
    fn minimize(&self, start: Vec<f64>) -> LearningEnd {
        let mut start = start;
        loop {
            let before = self.best_cost();
            let solver = LBFGS::new(MoreThuenteLineSearch::new(), MEMORY)
                .with_tolerance_cost(LEAST_GAIN * self.scale)
                .and_then(|solver| solver.with_tolerance_grad(1e-6));
            let Ok(solver) = solver else { return LearningEnd::Stalled };
            let run =
                Executor::new(Minimized(self), solver).configure(|state| state.param(start).max_iters(1000)).run();
            if let Some(end) = self.memory.borrow().end {
                return end;
            }
            let converged = run.is_ok_and(|result| {
                let status = result.state().get_termination_status();
                *status == TerminationStatus::Terminated(TerminationReason::SolverConverged)
            });
            if converged {
                return LearningEnd::Converged;
            }
            // A line search can fail on a bound that is not quite smooth; a fresh start forgets its curvature.
            if before - self.best_cost() <= LEAST_GAIN {
                return LearningEnd::Stalled;
            }
            start = self.memory.borrow().best.as_ref().expect("there was a first evaluation").at.clone();
        }
    }

    fn best_cost(&self) -> f64 {
        self.memory.borrow().best.as_ref().map_or(f64::INFINITY, |best| best.cost)
    }

    /// Cost and gradient, from memory if they were just computed.
    fn evaluate(&self, at: &[f64]) -> Result<Evaluation, NoFurtherEvaluation> {
        if let Some(latest) = self.memory.borrow().latest.as_ref().filter(|latest| latest.at == at) {
            return Ok(latest.clone());
        }
        let mut memory = self.memory.borrow_mut();
        if (self.stop)() {
            memory.end = Some(LearningEnd::Stopped);
            return Err(NoFurtherEvaluation);
        }
        if memory.evaluations >= self.learning.max_evaluations {
            memory.end = Some(LearningEnd::Budget);
            return Err(NoFurtherEvaluation);
        }
        memory.evaluations += 1;
        let evaluation = self.compute(at).ok_or(NoFurtherEvaluation)?;
        if memory.best.as_ref().is_none_or(|best| evaluation.cost < best.cost) {
            memory.best = Some(evaluation.clone());
        }
        memory.latest = Some(evaluation.clone());
        Ok(evaluation)
    }

    /// None where the bound is not finite.
    fn compute(&self, at: &[f64]) -> Option<Evaluation> {
        let bounded = hyperparameters::clamp(at);
        let model = self.model.with_log_parameters(&bounded);
        let whitened = self.rows.whiten(&model).ok()?;
        let mut value = whitened.bound();
        let mut gradient = self.rows.gradient(&model, &whitened);
        if let Some(prior) = &self.learning.prior {
            value += prior.log_density(&bounded);
            prior.add_gradient(&bounded, &mut gradient);
        }
        // Beyond the bounds a parabola leads back.
        for ((entry, at), bounded) in gradient.iter_mut().zip(at).zip(&bounded) {
            let beyond = at - bounded;
            value -= 0.5 * beyond * beyond;
            *entry -= beyond;
        }
        let finite = value.is_finite() && gradient.iter().all(|entry| entry.is_finite());
        gradient.iter_mut().for_each(|entry| *entry = -*entry);
        finite.then(|| Evaluation { at: at.to_vec(), cost: -value, gradient })
    }
}

/// What the optimizer sees of the objective.
struct Minimized<'a, 'b, K: Kernel>(&'a Objective<'b, K>);

impl<K: Kernel> CostFunction for Minimized<'_, '_, K> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, at: &Vec<f64>) -> Result<f64, Error> {
        Ok(self.0.evaluate(at)?.cost * self.0.scale)
    }
}

impl<K: Kernel> Gradient for Minimized<'_, '_, K> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, at: &Vec<f64>) -> Result<Vec<f64>, Error> {
        Ok(self.0.evaluate(at)?.gradient.iter().map(|entry| entry * self.0.scale).collect())
    }
}
