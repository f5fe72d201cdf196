//! The state of a dual model as plain numbers, to be stored and restored.

use super::super::linalg;
use super::super::state::{self, check_finite, check_length, check_not_negative, check_triangular, rejected};
use super::Summary;
use super::link::Link;
use super::memory::Memory;
use crate::{DualGp, DualSettings, Kernel, Past, PastState, Places, State, StateError};

/// Everything a [`DualGp`] has learnt, and what it was learnt under. Put back, it continues to the last bit as if it had never been
/// taken out.
#[derive(Clone, Debug, PartialEq)]
pub struct DualState<P> {
    /// The state that every sparse model has.
    pub common: State<P>,
    /// How labels depend on the latent function; none where targets are measured.
    pub link: Option<Link>,
    /// The readings in memory; none before the first batch.
    pub memory: Option<Memory<P>>,
    /// The summary of readings that are not in memory; none where all are.
    pub summary: Option<SummaryState>,
}

/// Pseudo-observations of unit noise at the inducing points of the model, with a matrix M x M, one row after another.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryState {
    /// T: lower triangular; the pseudo-observations are of T L_b^-1 u.
    pub triangle: Vec<f64>,
    /// r: M numbers.
    pub target: Vec<f64>,
    /// log N(r; 0, I + T T^T), in nats.
    pub log_evidence: f64,
}

impl<P: Places> DualState<P> {
    /// Rejects what cannot be the state of any model.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), StateError> {
        self.common.check()?;
        let readings = self.common.baseline.count();
        let in_memory = self.memory.as_ref().map_or(0, |memory| memory.targets.len());
        let is_whole = self.summary.is_none();
        if self.memory.is_some() != self.common.past.is_some()
            || in_memory as u64 > readings
            || is_whole != (in_memory as u64 == readings)
        {
            let with = if is_whole { "without" } else { "with" };
            let found = format!("{in_memory} of {readings} {with} a summary");
            return rejected("a memory of some of the readings and a summary of the others", found);
        }
        if let (Some(past), Some(memory)) = (&self.common.past, &self.memory) {
            memory.check(past, self.link.is_some())?;
        }
        match (&self.common.past, &self.summary) {
            (Some(past), Some(summary)) => summary.check(past.inducing.len()),
            _ => Ok(()),
        }
    }
}

impl<P: Places> Memory<P> {
    fn check(&self, past: &PastState<P>, are_labels: bool) -> Result<(), StateError> {
        let size = self.targets.len();
        for (what, found) in [("places", self.places.len()), ("sites", self.sites.len())] {
            check_length(what, found, size, format_args!("{size} readings in memory"))?;
        }
        if !self.places.is_finite() || !self.places.compatible(&past.inducing) {
            return rejected("finite places in memory, of the dimension of the inducing points", "others");
        }
        if are_labels {
            state::check("targets in memory", "the labels 0 and 1", &self.targets, |y| y == 0.0 || y == 1.0)?;
        }
        check_finite("targets in memory", &self.targets)?;
        self.sites.iter().try_for_each(|site| {
            check_not_negative("precisions in memory", site.precision)?;
            check_finite("naturals in memory", &[site.natural])
        })
    }
}

impl SummaryState {
    fn check(&self, points: usize) -> Result<(), StateError> {
        for (what, values, expected) in [
            ("triangle of the summary", &self.triangle, points * points),
            ("target of the summary", &self.target, points),
        ] {
            check_length(what, values.len(), expected, format_args!("{points} inducing points"))?;
            check_finite(what, values)?;
        }
        check_finite("log evidence of the summary", &[self.log_evidence])?;
        check_triangular("triangle of the summary", points, &self.triangle)
    }
}

impl<K: Kernel> DualGp<K> {
    /// Everything it has learnt, as plain numbers.
    pub fn state(&self) -> DualState<K::Places> {
        DualState {
            common: State::of(&self.model, self.baseline.clone(), self.posterior.as_deref()),
            link: self.link,
            memory: self.memory.clone(),
            summary: self.summary.as_ref().map(|summary| SummaryState {
                triangle: linalg::to_rows(summary.past.triangle.as_ref()),
                target: summary.past.target.clone(),
                log_evidence: summary.past.log_evidence,
            }),
        }
    }

    /// Continues from a state, under settings that may be others than before. The kernel must be of the form that the state was
    /// learnt with; its hyperparameters are replaced by those of the state.
    ///
    /// # Errors
    /// When the state is not that of a model with this kernel.
    pub fn from_state(kernel: K, settings: DualSettings, state: &DualState<K::Places>) -> Result<Self, StateError> {
        state.check()?;
        let (model, posterior) = state.common.restore(kernel)?;
        let summary = match (&state.summary, &posterior) {
            // It shares its inducing points, and their covariance, with the posterior of the same update.
            (Some(summary), Some(posterior)) => {
                let size = posterior.past.inducing.len();
                let past = Past {
                    triangle: linalg::from_rows(size, &summary.triangle),
                    target: summary.target.clone(),
                    log_evidence: summary.log_evidence,
                    ..posterior.past.clone()
                };
                Some(Summary::new(state::posterior(&model, past)?))
            }
            _ => None,
        };
        Ok(Self {
            model,
            link: state.link,
            settings,
            summary,
            memory: state.memory.clone(),
            posterior,
            baseline: state.common.baseline.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::bounds::NoiseBaseline;
    use super::super::super::kernel::{Shape, Stationary};
    use super::super::super::learning::Learning;
    use super::super::super::likelihood::{Likelihood, StudentT};
    use super::super::super::model::{Jitter, Model};
    use super::super::super::points::Points;
    use super::super::Site;
    use super::super::{MemorySize, OldEvidence};
    use super::*;

    type Process = DualGp<Stationary>;

    const STUDENT: Likelihood = Likelihood::StudentT(StudentT { degrees_of_freedom: 4.0 });
    const BATCHES: usize = 4;

    fn kernel(lengthscales: &[f64]) -> Stationary {
        let lengthscales = lengthscales.to_vec();
        Stationary { constant: Some(20.0), shape: Shape::Matern52, variance: 3.0, lengthscales }
    }

    fn settings(memory: MemorySize) -> DualSettings {
        DualSettings {
            inducing_points: 14,
            least_share: 1e-6,
            memory,
            steps: 6,
            step_length: 0.9,
            old_evidence: OldEvidence::ScaledMemory { share: 1.0 },
            learning: Learning { max_evaluations: 6, ..Learning::default() },
        }
    }

    fn process(likelihood: Likelihood, link: Option<Link>, memory: MemorySize) -> Process {
        let model =
            Model { kernel: kernel(&[0.7, 1.1]), noise: 0.4, likelihood, mean: 0.5, jitter: Jitter::Relative(1e-6) };
        match link {
            Some(link) => DualGp::binary(model, link, settings(memory)),
            None => DualGp::new(model, settings(memory)),
        }
    }

    fn batch(number: usize, are_labels: bool) -> (Points, Vec<f64>) {
        let mut places = Points::new(2);
        let mut targets = Vec::new();
        for i in 0..20 {
            let step = (20 * number + i) as f64;
            let place = [0.11 * step, (0.4 * step).sin()];
            let target = (1.5 * place[0]).sin() + place[1] + 0.3 * (7.1 * step).cos();
            targets.push(if are_labels { f64::from(target > 0.0) } else { target });
            places.push(&place);
        }
        (places, targets)
    }

    fn predictions(process: &Process) -> Vec<u64> {
        let (places, _) = batch(1, false);
        let (mean, variance) = process.predict(&places);
        mean.into_iter().chain(variance).map(f64::to_bits).collect()
    }

    /// Takes a process out and puts it back after each batch, and compares all that follows.
    #[test]
    fn a_restored_process_continues_to_the_last_bit() {
        let some = MemorySize { per_batch: 5, most: 12 };
        for (likelihood, link, memory) in [
            (Likelihood::Gaussian, None, some),
            (STUDENT, None, some),
            (Likelihood::Gaussian, Some(Link::Probit), some),
            (Likelihood::Gaussian, Some(Link::Logit), MemorySize { per_batch: usize::MAX, most: usize::MAX }),
            (Likelihood::Gaussian, None, MemorySize { per_batch: 0, most: 0 }),
        ] {
            let mut cut = process(likelihood, link, memory);
            for number in 0..=BATCHES {
                let mut original = cut.clone();
                // Only the form of the kernel counts.
                let state = original.state();
                let mut restored = DualGp::from_state(kernel(&[0.2, 0.3]), settings(memory), &state).unwrap();
                assert_eq!((restored.state(), predictions(&restored)), (state, predictions(&original)));
                for number in number..BATCHES {
                    let (places, targets) = batch(number, link.is_some());
                    let reports =
                        [&mut original, &mut restored].map(|process| process.update(&places, &targets, &|| false));
                    assert!(reports[0].is_ok(), "{reports:?}");
                    assert_eq!(reports[0], reports[1]);
                    assert_eq!(original.state(), restored.state());
                    assert_eq!(predictions(&original), predictions(&restored));
                }
                let (places, targets) = batch(number, link.is_some());
                cut.update(&places, &targets, &|| false).unwrap();
            }
        }
    }

    #[test]
    fn what_is_no_state_of_the_model_is_rejected() {
        let mut process = process(Likelihood::Gaussian, Some(Link::Probit), MemorySize { per_batch: 5, most: 12 });
        let (places, targets) = batch(0, true);
        process.update(&places, &targets, &|| false).unwrap();
        let state = process.state();
        assert_eq!(state.common.past.as_ref().unwrap().inducing.len(), 14);
        type Corrupt = fn(&mut DualState<Points>, &mut Memory<Points>, &mut SummaryState);
        let cases: [(Corrupt, &str); 18] = [
            (|state, _, _| state.common.hyperparameters[0].value = -1.0, "above 0 in the hyperparameters, found -1"),
            (|state, _, _| state.common.hyperparameters.truncate(2), "found constant, variance"),
            (|state, _, _| state.common.past.as_mut().unwrap().triangle[0] = 1e200, "its numbers are too large"),
            (|state, _, _| state.common.past.as_mut().unwrap().target[0] = f64::NAN, "in the target, found NaN"),
            (
                |state, _, _| state.common.baseline = NoiseBaseline { count: 4, mean: 0.5, scatter: 1.0 }.into(),
                "found 5 of 4 with a summary",
            ),
            (
                |state, _, _| state.common.baseline = NoiseBaseline { count: 5, mean: 0.5, scatter: 1.0 }.into(),
                "found 5 of 5 with a summary",
            ),
            (|_, memory, _| memory.targets.truncate(2), "2 numbers in the places of 2 readings in memory, found 5"),
            (|_, memory, _| memory.sites.truncate(2), "5 numbers in the sites of 5 readings in memory, found 2"),
            (
                |_, memory, _| memory.sites.push(Site::default()),
                "5 numbers in the sites of 5 readings in memory, found 6",
            ),
            (
                |_, memory, _| memory.places = Points::from_arrays(&[[0.0; 3]; 5]),
                "of the dimension of the inducing points",
            ),
            (|_, memory, _| memory.places = Points::from_arrays(&[[0.0, f64::NAN]; 5]), "finite places in memory"),
            (|_, memory, _| memory.targets[1] = 0.5, "the labels 0 and 1 in the targets in memory, found 0.5"),
            (
                |_, memory, _| memory.sites[1].precision = -1e-9,
                "not below 0 in the precisions in memory, found -0.000000001",
            ),
            (
                |_, memory, _| memory.sites[1].natural = f64::INFINITY,
                "finite numbers in the naturals in memory, found inf",
            ),
            (
                |_, _, summary| summary.triangle.truncate(3),
                "196 numbers in the triangle of the summary of 14 inducing points, found 3",
            ),
            (|_, _, summary| summary.triangle[1] = 0.1, "lower triangular triangle of the summary, found 0.1 in row 0"),
            (|_, _, summary| summary.triangle[0] = -1e300, "its numbers are too large"),
            (|_, _, summary| summary.log_evidence = f64::NAN, "in the log evidence of the summary, found NaN"),
        ];
        for (corrupt, expected) in cases {
            let mut corrupt_state = state.clone();
            let (mut memory, mut summary) = (state.memory.clone().unwrap(), state.summary.clone().unwrap());
            corrupt(&mut corrupt_state, &mut memory, &mut summary);
            (corrupt_state.memory, corrupt_state.summary) = (Some(memory), Some(summary));
            let error = DualGp::from_state(kernel(&[0.7, 1.1]), process.settings.clone(), &corrupt_state).unwrap_err();
            assert!(error.to_string().contains(expected), "{error} instead of {expected}");
        }
        for (corrupt_state, expected) in [
            (DualState { memory: None, ..state.clone() }, "found 0 of 20 with a summary"),
            (DualState { summary: None, ..state.clone() }, "found 5 of 20 without a summary"),
            (DualState { common: State { past: None, ..state.common.clone() }, ..state.clone() }, "20 targets without"),
        ] {
            let error = DualGp::from_state(kernel(&[0.7, 1.1]), process.settings.clone(), &corrupt_state).unwrap_err();
            assert!(error.to_string().contains(expected), "{error} instead of {expected}");
        }
    }
}
