//! L-BFGS on whatever has a value and a gradient, with a budget of evaluations.

use crate::{LearningEnd, LearningReport};
use argmin::core::{CostFunction, Error, Executor, Gradient, State, TerminationReason, TerminationStatus};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use std::cell::RefCell;

/// Pairs of steps and gradients that L-BFGS remembers; more than there are hyperparameters gains nothing.
const MEMORY: usize = 7;

/// The function to maximize, with its gradient; none where they are not finite.
pub(super) type Value<'a> = dyn Fn(&[f64]) -> Option<(f64, Vec<f64>)> + 'a;

/// Finds the greatest value, from `start` onwards, and returns the point with it; none where the start fails. It ends when an iteration gains
/// less than `least_gain`. `stop` is checked before every evaluation.
pub(super) fn maximize(
    start: Vec<f64>,
    max_evaluations: usize,
    least_gain: f64,
    stop: &dyn Fn() -> bool,
    value: &Value<'_>,
) -> (Option<Vec<f64>>, LearningReport) {
    let objective = Objective { value, max_evaluations, least_gain, stop, memory: RefCell::default(), scale: 1.0 };
    let Ok(first) = objective.evaluate(&start) else {
        let Memory { evaluations, end, .. } = objective.memory.into_inner();
        return (None, LearningReport { evaluations, end: end.unwrap_or(LearningEnd::Failed) });
    };
    // Scaled so that the first step, along the gradient, is at most one unit.
    let norm = first.gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let objective = Objective { scale: 1.0 / norm.max(1.0), ..objective };
    let end = objective.minimize(start);
    let memory = objective.memory.into_inner();
    (memory.best.map(|best| best.at), LearningReport { evaluations: memory.evaluations, end })
}

/// The negative of a value as the optimizer needs it: remembered, counted and ended.
struct Objective<'a> {
    value: &'a Value<'a>,
    max_evaluations: usize,
    least_gain: f64,
    stop: &'a dyn Fn() -> bool,
    memory: RefCell<Memory>,
    /// Factor on everything the optimizer gets.
    scale: f64,
}

#[derive(Default)]
struct Memory {
    evaluations: usize,
    latest: Option<Evaluation>,
    best: Option<Evaluation>,
    /// Why an evaluation was rejected.
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

impl Objective<'_> {
    fn minimize(&self, start: Vec<f64>) -> LearningEnd {
        let mut start = start;
        loop {
            let before = self.best_cost();
            let solver = LBFGS::new(MoreThuenteLineSearch::new(), MEMORY)
                .with_tolerance_cost(self.least_gain * self.scale)
                .and_then(|solver| solver.with_tolerance_grad(1e-6));
            let Ok(solver) = solver else { return LearningEnd::Stalled };
            let run = Executor::new(self, solver).configure(|state| state.param(start).max_iters(1000)).run();
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
            if before - self.best_cost() <= self.least_gain {
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
        if memory.evaluations >= self.max_evaluations {
            memory.end = Some(LearningEnd::Budget);
            return Err(NoFurtherEvaluation);
        }
        memory.evaluations += 1;
        let (value, mut gradient) = (self.value)(at).ok_or(NoFurtherEvaluation)?;
        gradient.iter_mut().for_each(|entry| *entry = -*entry);
        let evaluation = Evaluation { at: at.to_vec(), cost: -value, gradient };
        if memory.best.as_ref().is_none_or(|best| evaluation.cost < best.cost) {
            memory.best = Some(evaluation.clone());
        }
        memory.latest = Some(evaluation.clone());
        Ok(evaluation)
    }
}

impl CostFunction for &Objective<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, at: &Vec<f64>) -> Result<f64, Error> {
        Ok(self.evaluate(at)?.cost * self.scale)
    }
}

impl Gradient for &Objective<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, at: &Vec<f64>) -> Result<Vec<f64>, Error> {
        Ok(self.evaluate(at)?.gradient.iter().map(|entry| entry * self.scale).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A narrow curved valley whose top is at (1, 2), with no value beyond 3.
    fn valley(at: &[f64]) -> Option<(f64, Vec<f64>)> {
        let (across, along) = (at[1] - 1.0 - at[0] * at[0], at[0] - 1.0);
        let value = -50.0 * across * across - 2.0 * along * along;
        (at[0] < 3.0).then(|| (value, vec![200.0 * across * at[0] - 4.0 * along, -100.0 * across]))
    }

    #[test]
    fn it_climbs_within_its_budget_and_never_ends_lower() {
        for budget in [1, 2, 5, 200] {
            let (found, report) = maximize(vec![2.9, -1.0], budget, 0.01, &|| false, &valley);
            let found = found.unwrap();
            assert!(report.evaluations <= budget);
            assert!(valley(&found).unwrap().0 >= valley(&[2.9, -1.0]).unwrap().0);
            if budget == 200 {
                // The last iteration gains less than a hundredth of a nat.
                assert!(valley(&found).unwrap().0 > -0.1, "{found:?} {report:?}");
            }
        }
    }

    #[test]
    fn where_there_is_no_value_or_no_wish_it_stays() {
        let failed = LearningReport { evaluations: 1, end: LearningEnd::Failed };
        assert_eq!(maximize(vec![4.0, 0.0], 50, 0.01, &|| false, &valley), (None, failed));
        let stopped = LearningReport { evaluations: 0, end: LearningEnd::Stopped };
        assert_eq!(maximize(vec![0.0, 0.0], 50, 0.01, &|| true, &valley), (None, stopped));
    }
}
