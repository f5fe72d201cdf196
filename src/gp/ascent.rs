//! Maximization of an objective in the logarithms of the hyperparameters, with L-BFGS, under a budget of evaluations.

use super::hyperparameters;
use super::learning::Learning;
use super::report::{LearningEnd, LearningReport};
use argmin::core::{CostFunction, Error, Executor, Gradient, State, TerminationReason, TerminationStatus};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use std::cell::RefCell;

/// Pairs of steps and gradients that L-BFGS remembers; more than there are hyperparameters gains nothing.
const MEMORY: usize = 7;

/// An iteration that gains less than this, in nats, is the last: half a nat is a standard deviation of a hyperparameter.
const LEAST_GAIN: f64 = 1e-2;

/// Value and gradient at logarithms within the bounds of [`hyperparameters`]; none where there is none.
pub(super) type Objective<'a> = dyn Fn(&[f64]) -> Option<(f64, Vec<f64>)> + 'a;

/// The best logarithms found from `start` onwards, and how; never worse than `start`.
///
/// Where the objective has no finite value it is stepped back from. Budget and prior are those of `learning`. `stop` is asked before
/// every evaluation.
pub(super) fn maximize(
    learning: &Learning,
    start: Vec<f64>,
    stop: &dyn Fn() -> bool,
    objective: &Objective<'_>,
) -> (Vec<f64>, LearningReport) {
    let mut ascent = Ascent { learning, stop, objective, trace: RefCell::default(), scale: 1.0 };
    let Ok(first) = ascent.evaluate(&start) else {
        let trace = ascent.trace.into_inner();
        return (
            start,
            LearningReport { evaluations: trace.evaluations, end: trace.end.unwrap_or(LearningEnd::Failed) },
        );
    };
    // The first step, along the gradient, is at most one unit of a logarithm.
    let norm = first.gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    ascent.scale = 1.0 / norm.max(1.0);
    let end = ascent.run(start);
    let trace = ascent.trace.into_inner();
    let best = trace.best.expect("the first evaluation succeeded");
    (hyperparameters::clamp(&best.at), LearningReport { evaluations: trace.evaluations, end })
}

struct Ascent<'a> {
    learning: &'a Learning,
    stop: &'a dyn Fn() -> bool,
    objective: &'a Objective<'a>,
    trace: RefCell<Trace>,
    /// Factor on everything the optimizer sees.
    scale: f64,
}

#[derive(Default)]
struct Trace {
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

/// Ends a run of the optimizer; why is in [`Trace`].
#[derive(Debug, thiserror::Error)]
#[error("no further evaluation")]
struct NoFurtherEvaluation;

impl Ascent<'_> {
    fn run(&self, mut start: Vec<f64>) -> LearningEnd {
        loop {
            let before = self.best_cost();
            let solver = LBFGS::new(MoreThuenteLineSearch::new(), MEMORY)
                .with_tolerance_cost(LEAST_GAIN * self.scale)
                .and_then(|solver| solver.with_tolerance_grad(1e-6));
            let Ok(solver) = solver else { return LearningEnd::Stalled };
            let run =
                Executor::new(Minimized(self), solver).configure(|state| state.param(start).max_iters(1000)).run();
            if let Some(end) = self.trace.borrow().end {
                return end;
            }
            let converged = run.is_ok_and(|result| {
                let status = result.state().get_termination_status();
                *status == TerminationStatus::Terminated(TerminationReason::SolverConverged)
            });
            if converged {
                return LearningEnd::Converged;
            }
            // A line search can fail on an objective that is not quite smooth; a fresh start forgets its curvature.
            if before - self.best_cost() <= LEAST_GAIN {
                return LearningEnd::Stalled;
            }
            start = self.trace.borrow().best.as_ref().expect("there was a first evaluation").at.clone();
        }
    }

    fn best_cost(&self) -> f64 {
        self.trace.borrow().best.as_ref().map_or(f64::INFINITY, |best| best.cost)
    }

    /// Cost and gradient, from memory if they were just computed.
    fn evaluate(&self, at: &[f64]) -> Result<Evaluation, NoFurtherEvaluation> {
        let mut trace = self.trace.borrow_mut();
        if let Some(latest) = trace.latest.as_ref().filter(|latest| latest.at == at) {
            return Ok(latest.clone());
        }
        if (self.stop)() {
            trace.end = Some(LearningEnd::Stopped);
            return Err(NoFurtherEvaluation);
        }
        if trace.evaluations >= self.learning.max_evaluations {
            trace.end = Some(LearningEnd::Budget);
            return Err(NoFurtherEvaluation);
        }
        trace.evaluations += 1;
        let evaluation = self.compute(at).ok_or(NoFurtherEvaluation)?;
        if trace.best.as_ref().is_none_or(|best| evaluation.cost < best.cost) {
            trace.best = Some(evaluation.clone());
        }
        trace.latest = Some(evaluation.clone());
        Ok(evaluation)
    }

    /// None where the objective has no finite value or gradient.
    fn compute(&self, at: &[f64]) -> Option<Evaluation> {
        let bounded = hyperparameters::clamp(at);
        let (mut value, mut gradient) = (self.objective)(&bounded)?;
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
        let is_finite = value.is_finite() && gradient.iter().all(|entry| entry.is_finite());
        gradient.iter_mut().for_each(|entry| *entry = -*entry);
        is_finite.then(|| Evaluation { at: at.to_vec(), cost: -value, gradient })
    }
}

/// What the optimizer sees.
struct Minimized<'a, 'b>(&'a Ascent<'b>);

impl CostFunction for Minimized<'_, '_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, at: &Vec<f64>) -> Result<f64, Error> {
        Ok(self.0.evaluate(at)?.cost * self.0.scale)
    }
}

impl Gradient for Minimized<'_, '_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, at: &Vec<f64>) -> Result<Vec<f64>, Error> {
        Ok(self.0.evaluate(at)?.gradient.iter().map(|entry| entry * self.0.scale).collect())
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
            let learning = Learning { max_evaluations: budget, ..Learning::default() };
            let (found, report) = maximize(&learning, vec![2.9, -1.0], &|| false, &valley);
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
        let learning = Learning { max_evaluations: 50, ..Learning::default() };
        let (found, report) = maximize(&learning, vec![4.0, 0.0], &|| false, &valley);
        assert_eq!((found, report), (vec![4.0, 0.0], LearningReport { evaluations: 1, end: LearningEnd::Failed }));
        let (found, report) = maximize(&learning, vec![0.0, 0.0], &|| true, &valley);
        assert_eq!((found, report), (vec![0.0, 0.0], LearningReport { evaluations: 0, end: LearningEnd::Stopped }));
    }
}
