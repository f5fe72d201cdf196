//! The state of a streaming model as plain numbers, to be stored and restored.

use super::linalg;
use crate::{
    Jitter, Kernel, Likelihood, Model, NamedValue, NoiseBaselines, NotPositiveDefinite, Past, Places, Posterior,
};
use std::fmt::Display;
use std::sync::Arc;

/// Everything a [`StreamingGp`](super::streaming::StreamingGp) has learnt, and what it was learnt under. Put back, it continues to
/// the last bit as if it had never been taken out.
#[derive(Clone, Debug, PartialEq)]
pub struct State<P> {
    /// The hyperparameters, in the order of the model's vector of them; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// The constant prior mean.
    pub mean: f64,
    /// The jitter of the inducing points.
    pub jitter: Jitter,
    /// How the noise is distributed.
    pub likelihood: Likelihood,
    /// Count, mean and variance of all targets of each output so far.
    pub baseline: NoiseBaselines,
    /// The state of the batches so far; none before the first.
    pub past: Option<PastState<P>>,
}

/// The state of all batches so far: of M inducing points, with matrices M x M, one row after another.
#[derive(Clone, Debug, PartialEq)]
pub struct PastState<P> {
    /// Inducing points.
    pub inducing: P,
    /// L_b: the lower Cholesky factor of their covariance, jitter included.
    pub covariance_root: Vec<f64>,
    /// T: lower triangular, with T^T T = B - I.
    pub triangle: Vec<f64>,
    /// r, with T^T r = Phi^T z: M numbers.
    pub target: Vec<f64>,
    /// log N(r; 0, I + R K_bb R^T) with R = T L_b^-1, in nats.
    pub log_evidence: f64,
}

/// Why a state is that of no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub struct StateError {
    /// The expected value, and where.
    pub expected: String,
    /// The value that was found.
    pub found: String,
}

/// Rejects a state for what was found in it.
pub(super) fn rejected<T>(expected: impl Into<String>, found: impl ToString) -> Result<T, StateError> {
    Err(StateError { expected: expected.into(), found: found.to_string() })
}

impl<P: Places> State<P> {
    /// Rejects what cannot be the state of any model.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), StateError> {
        let values: Vec<f64> = self.hyperparameters.iter().map(|hyperparameter| hyperparameter.value).collect();
        check_positive("hyperparameters", &values)?;
        check_finite("prior mean", &[self.mean])?;
        let (Jitter::Absolute(jitter) | Jitter::Relative(jitter)) = self.jitter;
        check_not_negative("jitter", jitter)?;
        for baseline in self.baseline.outputs() {
            check_finite("mean of all targets", &[baseline.mean])?;
            check_not_negative("scatter of all targets", baseline.scatter)?;
        }
        let targets = self.baseline.count();
        match &self.past {
            past if past.is_some() != (targets > 0) => {
                let with = if past.is_some() { "with" } else { "without" };
                let expected = "inducing points where there were targets and only there";
                rejected(expected, format!("{targets} targets {with} a past"))
            }
            Some(past) => past.check(),
            None => Ok(()),
        }
    }
    /// The state of a model and its posterior.
    pub(super) fn of<K: Kernel<Places = P>>(
        model: &Model<K>,
        baseline: NoiseBaselines,
        posterior: Option<&Posterior<K>>,
    ) -> Self {
        Self {
            hyperparameters: model.named_values(),
            mean: model.mean,
            jitter: model.jitter,
            likelihood: model.likelihood,
            baseline,
            past: posterior.map(|posterior| posterior.past.state()),
        }
    }

    /// Model and posterior of a state that was [checked](State::check), with a kernel of this form.
    ///
    /// # Errors
    /// When the state is of another kernel, or too large.
    pub(super) fn restore<K: Kernel<Places = P>>(&self, kernel: K) -> Result<Restored<K>, StateError> {
        let mut model = Model { kernel, noise: 1.0, likelihood: self.likelihood, mean: self.mean, jitter: self.jitter };
        let found: Vec<&str> = self.hyperparameters.iter().map(|value| value.name.as_str()).collect();
        if model.names() != found {
            return rejected(format!("the hyperparameters {}", model.names().join(", ")), found.join(", "));
        }
        let mut values: Vec<f64> = self.hyperparameters.iter().map(|value| value.value).collect();
        model.noise = values.pop().expect("a model has at least the noise");
        model.kernel.set_parameters(&values);
        let posterior = self.past.as_ref().map(|past| posterior(&model, Past::from_state(past))).transpose()?;
        Ok((model, posterior.map(Arc::new)))
    }
}

/// A model, and its posterior after the first batch.
type Restored<K> = (Model<K>, Option<Arc<Posterior<K>>>);

/// The posterior of a past.
pub(super) fn posterior<K: Kernel>(model: &Model<K>, past: Past<K>) -> Result<Posterior<K>, StateError> {
    Posterior::new(model.clone(), past).or_else(|NotPositiveDefinite| {
        rejected("a triangle T with a positive definite I + T^T T", "none: its numbers are too large")
    })
}

impl<P: Places> PastState<P> {
    fn check(&self) -> Result<(), StateError> {
        let points = self.inducing.len();
        for (what, values, expected) in [
            ("covariance root", &self.covariance_root, points * points),
            ("triangle", &self.triangle, points * points),
            ("target", &self.target, points),
        ] {
            check_length(what, values.len(), expected, format_args!("{points} inducing points"))?;
            check_finite(what, values)?;
        }
        if self.inducing.is_empty() || !self.inducing.is_finite() {
            let found = "none, or one that is infinite or not a number";
            return rejected("at least one inducing point, and finite ones", found);
        }
        check_finite("log evidence", &[self.log_evidence])?;
        check_triangular("covariance root", points, &self.covariance_root)?;
        check_triangular("triangle", points, &self.triangle)?;
        let diagonal: Vec<f64> = (0..points).map(|i| self.covariance_root[i * (points + 1)]).collect();
        check_positive("diagonal of the covariance root", &diagonal)
    }
}

impl<K: Kernel> Past<K> {
    /// The past as plain numbers.
    pub(super) fn state(&self) -> PastState<K::Places> {
        PastState {
            inducing: self.inducing.clone(),
            covariance_root: linalg::to_rows(self.covariance_root.as_ref()),
            triangle: linalg::to_rows(self.triangle.as_ref()),
            target: self.target.clone(),
            log_evidence: self.log_evidence,
        }
    }

    /// The past of a state that was [checked](State::check).
    pub(super) fn from_state(state: &PastState<K::Places>) -> Self {
        let size = state.inducing.len();
        Self {
            inducing: state.inducing.clone(),
            covariance_root: linalg::from_rows(size, &state.covariance_root),
            triangle: linalg::from_rows(size, &state.triangle),
            target: state.target.clone(),
            log_evidence: state.log_evidence,
        }
    }
}

pub(super) fn check_finite(what: &'static str, values: &[f64]) -> Result<(), StateError> {
    check(what, "finite numbers", values, |value| value.is_finite())
}

fn check_positive(what: &'static str, values: &[f64]) -> Result<(), StateError> {
    check(what, "finite numbers above 0", values, |value| value.is_finite() && value > 0.0)
}

pub(super) fn check_not_negative(what: &'static str, value: f64) -> Result<(), StateError> {
    check(what, "a finite number not below 0", &[value], |value| value.is_finite() && value >= 0.0)
}

/// Whether an array of something is as long as it should be.
pub(super) fn check_length(what: &str, found: usize, expected: usize, of: impl Display) -> Result<(), StateError> {
    if found == expected { Ok(()) } else { rejected(format!("{expected} numbers in the {what} of {of}"), found) }
}

pub(super) fn check(
    what: &'static str,
    expected: &'static str,
    values: &[f64],
    is_possible: impl Fn(f64) -> bool,
) -> Result<(), StateError> {
    match values.iter().find(|&&value| !is_possible(value)) {
        Some(found) => rejected(format!("{expected} in the {what}"), found),
        None => Ok(()),
    }
}

pub(super) fn check_triangular(what: &'static str, size: usize, rows: &[f64]) -> Result<(), StateError> {
    for row in 0..size {
        for column in row + 1..size {
            let found = rows[row * size + column];
            if found != 0.0 {
                let found = format!("{found} in row {row}, column {column} (from 0)");
                return rejected(format!("a lower triangular {what}"), found);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::bounds::NoiseBaseline;
    use super::super::inference::Inference;
    use super::super::kernel::{Shape, Stationary};
    use super::super::learning::Learning;
    use super::super::points::Points;
    use super::super::selection::Limits;
    use super::super::selection::vips::Vips;
    use super::super::streaming::{Settings, StreamingGp};
    use super::*;

    type Process = StreamingGp<Stationary>;

    fn kernel(shape: Shape, constant: bool, lengthscales: &[f64]) -> Stationary {
        let (constant, lengthscales) = (constant.then_some(20.0), lengthscales.to_vec());
        Stationary { constant, shape, variance: 3.0, lengthscales }
    }

    /// With `redundancy` above 0, more inducing points are chosen than kept.
    fn settings<K: Kernel>(redundancy: f64) -> Settings<K> {
        Settings {
            selection: Arc::new(Vips { delta: 0.05, guards: false, exact_limit: 100 }),
            limits: Limits { max_inducing_points: 60, least_share: 0.0 },
            learning: Learning { max_evaluations: 10, ..Learning::default() },
            redundancy,
            inference: Inference::Variational,
            likelihood_power: 1.0,
        }
    }

    fn process(kernel: Stationary, redundancy: f64) -> Process {
        let model =
            Model { kernel, noise: 0.4, likelihood: Likelihood::Gaussian, mean: 1.5, jitter: Jitter::Relative(1e-6) };
        StreamingGp::new(model, settings(redundancy))
    }

    fn batch(number: usize) -> (Points, Vec<f64>) {
        let mut places = Points::new(2);
        let mut targets = Vec::new();
        for i in 0..25 {
            let step = (25 * number + i) as f64;
            let place = [0.11 * step, (0.4 * step).sin()];
            targets.push(5.0 + 2.0 * (1.5 * place[0]).sin() + place[1] + 0.3 * (7.1 * step).cos());
            places.push(&place);
        }
        (places, targets)
    }

    fn predictions(process: &Process) -> Vec<u64> {
        let Some(posterior) = process.posterior() else { return Vec::new() };
        let (places, _) = batch(2);
        let (mean, variance) = posterior.predict(&places);
        mean.into_iter().chain(variance).map(f64::to_bits).collect()
    }

    const BATCHES: usize = 5;

    /// Takes a process out and puts it back after each batch, and compares all that follows. Returns the points dropped by each.
    fn assert_it_continues_as_if_nothing_had_happened(kernel: Stationary, redundancy: f64) -> Vec<usize> {
        let mut dropped = Vec::new();
        let mut cut = process(kernel.clone(), redundancy);
        for number in 0..=BATCHES {
            let mut original = cut.clone();
            // Only the form of the kernel counts.
            let mut other = kernel.clone();
            other.set_parameters(&vec![0.123; kernel.names().len()]);
            let mut restored = StreamingGp::from_state(other, settings(redundancy), &original.state()).unwrap();
            assert_eq!(predictions(&original), predictions(&restored));
            for number in number..BATCHES {
                let (places, targets) = batch(number);
                let reports =
                    [&mut original, &mut restored].map(|process| process.update(&places, &targets, &|| false));
                assert_eq!(reports[0], reports[1]);
                assert_eq!(original.state(), restored.state());
                assert_eq!(predictions(&original), predictions(&restored));
            }
            let (places, targets) = batch(number);
            dropped.push(cut.update(&places, &targets, &|| false).unwrap().dropped);
        }
        dropped
    }

    #[test]
    fn a_restored_process_continues_to_the_last_bit() {
        for (shape, constant, lengthscales) in [
            (Shape::Matern52, true, &[0.7][..]),
            (Shape::Matern32, true, &[0.7, 1.1]),
            (Shape::Matern32, false, &[0.7, 1.1]),
            (Shape::SquaredExponential, false, &[0.7]),
        ] {
            assert_it_continues_as_if_nothing_had_happened(kernel(shape, constant, lengthscales), 0.0);
        }
    }

    #[test]
    fn so_does_one_that_has_just_dropped_points() {
        let dropped = assert_it_continues_as_if_nothing_had_happened(kernel(Shape::Matern52, true, &[0.7]), 0.02);
        assert!(dropped[..BATCHES].iter().any(|&count| count > 0), "{dropped:?}");
    }

    #[test]
    fn what_is_no_state_of_the_model_is_rejected() {
        let kernel = kernel(Shape::Matern52, true, &[0.7]);
        let mut process = process(kernel.clone(), 0.0);
        let (places, targets) = batch(0);
        process.update(&places, &targets, &|| false).unwrap();
        let state = process.state();
        let size = state.past.as_ref().unwrap().inducing.len();
        type Corrupt = fn(&mut State<Points>, &mut PastState<Points>);
        let cases: [(Corrupt, &str); 14] = [
            (|state, _| state.hyperparameters[2].name = "lengthscale_0".into(), "variance, lengthscale_0, noise"),
            (|state, _| state.hyperparameters.truncate(3), "found constant, variance, lengthscale"),
            (|state, _| state.hyperparameters[1].value = 0.0, "above 0 in the hyperparameters, found 0"),
            (|state, _| state.mean = f64::NAN, "finite numbers in the prior mean, found NaN"),
            (|state, _| state.jitter = Jitter::Relative(-1e-9), "not below 0 in the jitter, found -0.000000001"),
            (
                |state, _| state.baseline = NoiseBaseline { count: 25, mean: 5.0, scatter: -1.0 }.into(),
                "scatter of all targets, found -1",
            ),
            (|state, _| state.baseline = NoiseBaselines::default(), "found 0 targets with a past"),
            (|_, past| past.target.truncate(1), "numbers in the target of"),
            (|_, past| past.triangle.extend([0.0]), "numbers in the triangle of"),
            (|_, past| past.inducing.push(&[f64::INFINITY, 0.0]), "numbers in the covariance root of"),
            (|_, past| past.triangle[0] = f64::INFINITY, "finite numbers in the triangle, found inf"),
            (|_, past| past.covariance_root[1] = 1e-9, "lower triangular covariance root, found 0.000000001 in row 0"),
            (|_, past| past.covariance_root[0] = -0.1, "above 0 in the diagonal of the covariance root, found -0.1"),
            (|_, past| past.triangle[0] = 1e200, "its numbers are too large"),
        ];
        for (corrupt, expected) in cases {
            let (mut corrupt_state, mut past) = (state.clone(), state.past.clone().unwrap());
            corrupt(&mut corrupt_state, &mut past);
            corrupt_state.past = Some(past);
            let error = StreamingGp::from_state(kernel.clone(), settings(0.0), &corrupt_state).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} instead of {expected:?}");
        }
        let without = State { past: None, ..state };
        let error = StreamingGp::from_state(kernel, settings(0.0), &without).unwrap_err().to_string();
        let expected =
            "expected inducing points where there were targets and only there, found 25 targets without a past";
        assert_eq!(error, expected);
        assert!(size > 3);
    }
}
