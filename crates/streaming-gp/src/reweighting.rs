//! The weights of the rows of a batch under a heavy-tailed likelihood, by iterated reweighting.
//!
//! Posterior and weights raise one bound in turns (variational expectation maximization; see [`likelihood`](super::likelihood) for
//! the equations and their sources). The turns begin with the weights that the map so far gives the rows: where it knows the field,
//! an outlier shows at once; where it does not, all rows count for little, the first fit is smooth, and what stands out from it is
//! an outlier. Starting with equal weights would fit the outliers first.

use super::whitened::missing_permanent;
use crate::{
    GreedyVariance, Kernel, Learning, LearningEnd, LearningReport, Likelihood, Limits, Model, NotPositiveDefinite,
    Places, Posterior, Rows, StudentT, Targets, Weights,
};

/// Most turns between posterior and weights.
const MOST_TURNS: usize = 30;

/// Weights have settled when none changes by more than this share of itself in a turn.
const SETTLED: f64 = 0.02;

/// Most turns between weights and hyperparameters.
const MOST_ROUNDS: usize = 3;

/// Inducing points for the first weights of a batch are added until no more than this share of the variance of the noise is
/// left to explain at any place.
const LEFT_TO_EXPLAIN: f64 = 0.1;

/// The weights of a batch before its inducing points are chosen, by the past and as many places of the batch as it takes to
/// represent it.
///
/// # Errors
/// When a covariance is not positive definite to the precision of doubles.
pub(super) fn first_weights<K: Kernel>(
    likelihood: StudentT,
    model: &Model<K>,
    limits: Limits,
    places: &K::Places,
    targets: Targets<'_>,
    posterior: Option<&Posterior<K>>,
) -> Result<Weights, NotPositiveDefinite> {
    let past = posterior.map(|posterior| &posterior.past);
    let mut greedy = GreedyVariance::new(model, places, targets, past)?;
    while let Some((index, variance)) = greedy.points.next(limits.least_share)
        && variance > LEFT_TO_EXPLAIN * model.noise
        && greedy.points.len() < limits.max_inducing_points
    {
        greedy.add(index);
    }
    let values = targets.values;
    let (mean, variance) = match posterior {
        Some(posterior) => posterior.predict(places),
        None => (vec![model.mean; values.len()], model.kernel.diagonal(places)),
    };
    let square = |i: usize| ((values[i] - mean[i]).powi(2) + variance[i]) / model.noise;
    let weights = likelihood.weights((0..values.len()).map(square));
    let mut additional = missing_permanent(&model.kernel, places, past);
    let candidates = places.candidates();
    greedy.points.chosen.iter().for_each(|&index| additional.push_from(&candidates, index));
    let mut rows = Rows::nested(places, targets.weighted(Some(&weights)), past, &additional);
    // This number of inducing points may be ill-conditioned where those that will be chosen are not.
    Ok(if settle(likelihood, model, &mut rows).is_ok() { rows.weights.unwrap_or(weights) } else { weights })
}

/// Learns the hyperparameters and, under a heavy-tailed likelihood, the weights of the rows in turns. When the arithmetic breaks
/// down in a turn, model and weights are those of the turn before.
pub(super) fn learn<K: Kernel>(
    learning: &Learning,
    model: &Model<K>,
    rows: &mut Rows<'_, K>,
    moves: bool,
    stop: &dyn Fn() -> bool,
) -> (Model<K>, LearningReport) {
    let learn = |learning: &Learning, model: &Model<K>, rows: &mut Rows<'_, K>| match moves {
        true => learning.learn_with_places(model, rows, stop),
        false => learning.learn(model, rows, stop),
    };
    let (mut model, mut report) = learn(learning, model, rows);
    let Likelihood::StudentT(likelihood) = model.likelihood else { return (model, report) };
    for round in 1.. {
        let before = rows.weights.clone();
        let is_settled = settle(likelihood, &model, rows).is_err()
            || before.zip(rows.weights.as_ref()).is_none_or(|(before, after)| after.change_from(&before) <= SETTLED);
        let can_learn = !matches!(report.end, LearningEnd::Off | LearningEnd::TooFewRows | LearningEnd::Stopped);
        let left = learning.max_evaluations.saturating_sub(report.evaluations);
        if is_settled || !can_learn || left == 0 || round == MOST_ROUNDS {
            break;
        }
        let rest = Learning { max_evaluations: left, ..learning.clone() };
        let (next, more) = learn(&rest, &model, rows);
        model = next;
        report = LearningReport { evaluations: report.evaluations + more.evaluations, end: more.end };
    }
    (model, report)
}

/// Takes turns between posterior and weights until these have settled.
///
/// # Errors
/// When a covariance is not positive definite to the precision of doubles; the weights are then those of the turn before.
fn settle<K: Kernel>(
    likelihood: StudentT,
    model: &Model<K>,
    rows: &mut Rows<'_, K>,
) -> Result<(), NotPositiveDefinite> {
    for _ in 0..MOST_TURNS {
        let whitened = rows.whiten(model)?;
        let weights = likelihood.weights(rows.expected_squares(model, &whitened));
        rows.recycle(whitened);
        let change = rows.weights.as_ref().map_or(f64::INFINITY, |before| weights.change_from(before));
        rows.weights = Some(weights);
        if change <= SETTLED {
            break;
        }
    }
    Ok(())
}
