//! Hyperparameters by maximization of the evidence lower bound (and a prior), with L-BFGS in log space; where asked for, the places
//! of the inducing points with them (Bui et al. 2017, "Streaming sparse Gaussian process approximations").

use super::ascent::{self, Value};
use super::hyperparameters;
use crate::{Kernel, LearningEnd, LearningReport, LogNormalPrior, Model, Places, Rows};
use std::cell::RefCell;

/// How hyperparameters are learnt.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// Evaluations of bound and gradient allowed; 0 leaves the hyperparameters as they are.
    pub max_evaluations: usize,
    /// A batch of fewer rows leaves the hyperparameters as they are: the prior, which counts again with each batch, would outweigh it
    /// and undo what was learnt before.
    pub least_rows: usize,
    /// A prior on the hyperparameters, in the order of [`Model::log_parameters`].
    pub prior: Option<LogNormalPrior>,
    /// Rows of a batch up to which the prior counts once; on more rows its logarithm counts in proportion, so that what is learnt
    /// depends less on how a stream is cut into batches. 0: always once.
    pub prior_rows: usize,
    /// How many of the targets before a batch count for the variance of the noise. What the past knows of the kernel is in its
    /// rows, but of the noise there is nothing in them: with 0 it is learnt from each batch alone.
    pub noise_memory: f64,
    /// Learning ends when an iteration gains less than this, in nats. Half a nat is what moves a hyperparameter by a standard deviation of
    /// its posterior.
    pub least_gain: f64,
}

impl Default for Learning {
    fn default() -> Self {
        Self { max_evaluations: 0, least_rows: 0, prior: None, prior_rows: 0, noise_memory: 0.0, least_gain: 0.01 }
    }
}

impl Learning {
    /// Settings of learning for a batch of `rows`, with the information of `targets` before it about the noise: that it is the noise of the
    /// model. `power` is the power of their likelihood.
    pub(super) fn remembering<K: Kernel>(&self, model: &Model<K>, rows: usize, power: f64, targets: u64) -> Self {
        let times = if self.prior_rows == 0 { 1.0 } else { (rows as f64 / self.prior_rows as f64).max(1.0) };
        let prior = self.prior.as_ref().map(|prior| prior.clone().counted(times));
        let remembered = self.noise_memory.min(targets as f64);
        if remembered <= 0.0 {
            return Self { prior, ..self.clone() };
        }
        let names = model.names().len();
        let prior = prior.unwrap_or_else(|| LogNormalPrior::flat(names));
        Self {
            prior: Some(prior.knowing(
                names - 1,
                model.noise.ln(),
                model.likelihood.information_on_noise() * power * remembered,
            )),
            ..self.clone()
        }
    }

    /// The best hyperparameters found from those of `model` onwards, never worse than those. `stop` is checked before every
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
        let bound = |model: &Model<K>| {
            let whitened = rows.whiten(model).ok()?;
            let (bound, gradient) = (whitened.bound(), rows.gradient(model, &whitened));
            rows.recycle(whitened);
            Some((bound, gradient))
        };
        let value = |at: &[f64]| self.with_prior(model, at, bound);
        let (best, report) = self.maximize(model.log_parameters(), rows.targets.len(), &value, stop);
        (best.map_or_else(|| model.clone(), |at| model.with_log_parameters(&hyperparameters::clamp(&at))), report)
    }

    /// Learns the hyperparameters together with the coordinates of the inducing points of `rows`, which has the best places afterwards;
    /// those of a nested past stay where they are. A step of one lengthscale of `model` counts as much as one of the logarithm of a
    /// hyperparameter.
    pub fn learn_with_places<K: Kernel>(
        &self,
        model: &Model<K>,
        rows: &mut Rows<'_, K>,
        stop: &dyn Fn() -> bool,
    ) -> (Model<K>, LearningReport) {
        let first = rows.inducing.clone();
        let origin = first.coordinates();
        let lengths = |i: usize| model.kernel.length_along(i / first.len()).unwrap_or(1.0);
        let lengths: Vec<f64> = (0..origin.len()).map(lengths).collect();
        let moved = |steps: &[f64]| {
            let coordinates = origin.iter().zip(steps).zip(&lengths);
            let coordinates: Vec<f64> = coordinates.map(|((origin, step), length)| origin + step * length).collect();
            first.with_coordinates(&coordinates)
        };
        let mut start = model.log_parameters();
        let hyperparameters = start.len();
        start.resize(hyperparameters + origin.len(), 0.0);
        let count = rows.targets.len();
        let shared = RefCell::new(&mut *rows);
        let value = |at: &[f64]| {
            let (log_parameters, steps) = at.split_at(hyperparameters);
            let mut rows = shared.borrow_mut();
            rows.inducing = moved(steps);
            self.with_prior(model, log_parameters, |model| {
                let whitened = rows.whiten(model).ok()?;
                let (bound, (mut gradient, in_inducing)) =
                    (whitened.bound(), rows.gradient_with_inducing(model, &whitened));
                rows.recycle(whitened);
                gradient.extend(in_inducing.iter().zip(&lengths).map(|(entry, length)| entry * length));
                Some((bound, gradient))
            })
        };
        let (best, report) = self.maximize(start, count, &value, stop);
        let Some(best) = best else {
            rows.inducing = first;
            return (model.clone(), report);
        };
        let (log_parameters, steps) = best.split_at(hyperparameters);
        rows.inducing = moved(steps);
        (model.with_log_parameters(&hyperparameters::clamp(log_parameters)), report)
    }

    /// The bound and log prior density at these logarithms of the hyperparameters, and the gradient, which may go on with other
    /// coordinates than these. None where it is not finite.
    pub(super) fn with_prior<K: Kernel>(
        &self,
        model: &Model<K>,
        log_parameters: &[f64],
        bound: impl FnOnce(&Model<K>) -> Option<(f64, Vec<f64>)>,
    ) -> Option<(f64, Vec<f64>)> {
        let bounded = hyperparameters::clamp(log_parameters);
        let (mut value, mut gradient) = bound(&model.with_log_parameters(&bounded))?;
        if let Some(prior) = &self.prior {
            value += prior.log_density(&bounded);
            prior.add_gradient(&bounded, &mut gradient);
        }
        // Beyond the bounds a parabola leads back.
        for ((entry, at), bounded) in gradient.iter_mut().zip(log_parameters).zip(&bounded) {
            let beyond = at - bounded;
            value -= 0.5 * beyond * beyond;
            *entry -= beyond;
        }
        (value.is_finite() && gradient.iter().all(|entry| entry.is_finite())).then_some((value, gradient))
    }

    /// Finds the greatest value, from `start` onwards, and returns the point with it; none where learning is off, or the start fails.
    pub(super) fn maximize(
        &self,
        start: Vec<f64>,
        rows: usize,
        value: &Value<'_>,
        stop: &dyn Fn() -> bool,
    ) -> (Option<Vec<f64>>, LearningReport) {
        if self.max_evaluations == 0 {
            return (None, LearningReport { evaluations: 0, end: LearningEnd::Off });
        }
        if rows < self.least_rows {
            return (None, LearningReport { evaluations: 0, end: LearningEnd::TooFewRows });
        }
        ascent::maximize(start, self.max_evaluations, self.least_gain, stop, value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::{Column, Places, Shape, Stationary};
    use super::super::likelihood::Likelihood;
    use super::super::linalg::MatrixRef;
    use super::super::model::Jitter;
    use super::super::points::Points;
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A kernel that remembers which hyperparameters it was given, and is not a number beyond some lengthscale.
    #[derive(Clone, Debug)]
    struct Watched {
        inner: Stationary,
        given: Arc<Mutex<Vec<Vec<f64>>>>,
        breaks_beyond: f64,
    }

    impl Kernel for Watched {
        type Places = Points;

        fn names(&self) -> Vec<String> {
            self.inner.names()
        }

        fn parameters(&self) -> Vec<f64> {
            self.inner.parameters()
        }

        fn set_parameters(&mut self, values: &[f64]) {
            self.given.lock().unwrap().push(values.to_vec());
            self.inner.set_parameters(values);
        }

        fn add_column(&self, entries: Column<'_, Points>, out: &mut [f64]) {
            self.inner.add_column(entries, out);
            if self.inner.lengthscales[0] > self.breaks_beyond {
                out.fill(f64::NAN);
            }
        }

        fn contract_column(&self, entries: Column<'_, Points>, weights: &[f64], gradient: &mut [f64]) {
            self.inner.contract_column(entries, weights, gradient);
        }

        fn contract_column_in_places(&self, entries: Column<'_, Points>, weights: &[f64], gradient: &mut [f64]) {
            self.inner.contract_column_in_places(entries, weights, gradient);
        }

        fn length_along(&self, coordinate: usize) -> Option<f64> {
            self.inner.length_along(coordinate)
        }

        fn contract(&self, rows: &Points, columns: &Points, weights: MatrixRef<'_>, gradient: &mut [f64]) {
            self.inner.contract(rows, columns, weights, gradient);
        }

        fn add_diagonal(&self, places: &Points, out: &mut [f64]) {
            self.inner.add_diagonal(places, out);
        }

        fn contract_diagonal(&self, places: &Points, weights: &[f64], gradient: &mut [f64]) {
            self.inner.contract_diagonal(places, weights, gradient);
        }
    }

    /// A start far from the optimum: a smooth field of variance 8, read with noise of variance 0.01, through a short lengthscale.
    fn start(breaks_beyond: f64) -> Model<Watched> {
        let inner = Stationary { constant: None, shape: Shape::Matern52, variance: 1.0, lengthscales: vec![0.3] };
        Model {
            kernel: Watched { inner, given: Arc::default(), breaks_beyond },
            noise: 1.0,
            mean: 0.0,
            likelihood: Likelihood::Gaussian,
            jitter: Jitter::Relative(1e-6),
        }
    }

    fn readings() -> (Points, Vec<f64>) {
        let (mut places, mut targets) = (Points::new(1), Vec::new());
        for i in 0..60 {
            let x = 0.1 * f64::from(i);
            places.push(&[x]);
            targets.push(4.0 * x.sin() + 0.1 * (f64::from(i) * 7.3).sin());
        }
        (places, targets)
    }

    /// Learns with 12 inducing points and returns the start, the learnt model, the report and the bound as a function.
    fn learn(
        learning: &Learning,
        breaks_beyond: f64,
        stop: &dyn Fn() -> bool,
        check: impl FnOnce(Model<Watched>, Model<Watched>, LearningReport, &dyn Fn(&Model<Watched>) -> f64),
    ) {
        let (places, targets) = readings();
        let rows = Rows::nested(&places, &targets, None, &places.select((0..60).step_by(5)));
        let start = start(breaks_beyond);
        let (learnt, report) = learning.learn(&start, &rows, stop);
        check(start, learnt, report, &|model| rows.whiten(model).map_or(f64::NAN, |whitened| whitened.bound()));
    }

    fn unlimited() -> Learning {
        Learning { max_evaluations: 500, ..Learning::default() }
    }

    #[test]
    fn a_batch_too_small_to_learn_from_leaves_the_hyperparameters() {
        for (least_rows, end) in [(60, LearningEnd::Converged), (61, LearningEnd::TooFewRows)] {
            learn(&Learning { least_rows, ..unlimited() }, f64::INFINITY, &|| false, |start, learnt, report, _| {
                assert_eq!(report.end, end);
                let untouched = start.log_parameters() == learnt.log_parameters() && report.evaluations == 0;
                assert_eq!(untouched, end == LearningEnd::TooFewRows);
            });
        }
    }

    #[test]
    fn a_maximum_is_found_and_reported() {
        learn(&unlimited(), f64::INFINITY, &|| false, |start, learnt, report, bound| {
            assert_eq!(report.end, LearningEnd::Converged);
            assert!(bound(&learnt) > bound(&start) + 20.0);
            let at = learnt.log_parameters();
            for parameter in 0..at.len() {
                for step in [-0.05, 0.05] {
                    let mut moved = at.clone();
                    moved[parameter] += step;
                    // Learning may end one least gain per iteration early.
                    assert!(bound(&learnt.with_log_parameters(&moved)) < bound(&learnt) + 1e-3);
                }
            }
        });
    }

    #[test]
    fn the_budget_is_kept_exactly() {
        for max_evaluations in [1, 2, 3, 5, 9] {
            let learning = Learning { max_evaluations, ..Learning::default() };
            learn(&learning, f64::INFINITY, &|| false, |start, learnt, report, bound| {
                assert_eq!(report, LearningReport { evaluations: max_evaluations, end: LearningEnd::Budget });
                // Every evaluation sets hyperparameters, and so does the learnt model.
                assert_eq!(start.kernel.given.lock().unwrap().len(), max_evaluations + 1);
                assert!(bound(&learnt) >= bound(&start));
            });
        }
        learn(&Learning::default(), f64::INFINITY, &|| false, |start, learnt, report, _| {
            assert_eq!(report, LearningReport { evaluations: 0, end: LearningEnd::Off });
            assert_eq!(learnt.log_parameters(), start.log_parameters());
            assert!(start.kernel.given.lock().unwrap().is_empty());
        });
    }

    #[test]
    fn a_stop_keeps_the_best_so_far() {
        for allowed in [0, 1, 2, 4, 8] {
            let asked = std::cell::Cell::new(0);
            let stop = || asked.replace(asked.get() + 1) == allowed;
            learn(&unlimited(), f64::INFINITY, &stop, |start, learnt, report, bound| {
                assert_eq!(report, LearningReport { evaluations: allowed, end: LearningEnd::Stopped });
                let given = start.kernel.given.lock().unwrap().clone();
                if allowed == 0 {
                    assert_eq!(learnt.log_parameters(), start.log_parameters());
                    return;
                }
                assert_eq!(given.len(), allowed + 1);
                // The learnt kernel is one of those evaluated.
                let (learnt_kernel, evaluated) = given.split_last().unwrap();
                assert!(evaluated.contains(learnt_kernel));
                assert!(bound(&learnt) >= bound(&start));
            });
        }
    }

    #[test]
    fn a_start_that_is_not_a_number_fails_and_keeps_the_hyperparameters() {
        learn(&unlimited(), 0.1, &|| false, |start, learnt, report, _| {
            assert_eq!(report, LearningReport { evaluations: 1, end: LearningEnd::Failed });
            assert_eq!(learnt.log_parameters(), start.log_parameters());
        });
    }

    #[test]
    fn what_is_not_a_number_is_stepped_back_from() {
        for breaks_beyond in [0.300_001, 0.32, 0.5, 1.0] {
            learn(&unlimited(), breaks_beyond, &|| false, |start, learnt, report, bound| {
                assert_ne!(report.end, LearningEnd::Failed);
                assert!(report.evaluations <= 500);
                assert!(learnt.kernel.inner.lengthscales[0] <= breaks_beyond);
                assert!(bound(&learnt) >= bound(&start), "{} {}", bound(&learnt), bound(&start));
                if report.end == LearningEnd::Converged {
                    assert!(bound(&learnt) > bound(&start) + 1.0);
                }
            });
        }
    }

    #[test]
    fn a_warm_start_needs_little() {
        let (places, targets) = readings();
        let rows = Rows::nested(&places, &targets, None, &places.select((0..60).step_by(5)));
        let (learnt, cold) = unlimited().learn(&start(f64::INFINITY), &rows, &|| false);
        let (again, warm) = unlimited().learn(&learnt, &rows, &|| false);
        assert_eq!(warm.end, LearningEnd::Converged);
        assert!(warm.evaluations < cold.evaluations / 2, "{warm:?} after {cold:?}");
        for (once, twice) in learnt.log_parameters().iter().zip(again.log_parameters()) {
            assert!((once - twice).abs() < 0.05, "{once} {twice}");
        }
    }

    #[test]
    fn a_prior_pulls_as_strongly_as_it_says() {
        let medians = [2.0f64.ln(), 0.8f64.ln(), 0.05f64.ln()];
        let learnt = |deviation: f64| {
            let prior = LogNormalPrior {
                log_medians: medians.to_vec(),
                log_standard_deviations: vec![deviation; 3],
                tail: None,
            };
            let mut found = Vec::new();
            learn(&Learning { prior: Some(prior), ..unlimited() }, f64::INFINITY, &|| false, |_, learnt, _, _| {
                found = learnt.log_parameters()
            });
            found
        };
        let distance = |found: &[f64]| found.iter().zip(&medians).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let (tight, middling, wide) = (learnt(0.01), learnt(0.3), learnt(100.0));
        assert!(distance(&tight) < 0.05, "{tight:?}");
        assert!(distance(&tight) < distance(&middling) && distance(&middling) < distance(&wide));
        learn(&unlimited(), f64::INFINITY, &|| false, |_, free, _, _| {
            for (wide, free) in wide.iter().zip(free.log_parameters()) {
                assert!((wide - free).abs() < 0.1, "{wide} {free}");
            }
        });
    }
}
