use super::super::linalg::{self, dot};
use super::expectation::Observation;
use super::*;
use crate::{Jitter, Likelihood, Matrix, Points, Rows, Shape, Stationary, StudentT};
use proptest::prelude::*;

fn model(likelihood: Likelihood) -> Model<Stationary> {
    let kernel = Stationary { constant: None, shape: Shape::Matern52, variance: 2.0, lengthscales: vec![0.8] };
    Model { kernel, noise: 0.05, likelihood, mean: 0.5, jitter: Jitter::Relative(1e-10) }
}

fn settings(inducing_points: usize, memory: usize) -> DualSettings {
    DualSettings {
        inducing_points,
        least_share: 1e-9,
        memory: MemorySize { per_batch: memory, most: usize::MAX },
        steps: 100,
        step_length: 1.0,
        old_evidence: OldEvidence::Summary,
        learning: Learning::default(),
    }
}

fn learning(max_evaluations: usize) -> Learning {
    Learning { max_evaluations, ..Learning::default() }
}

fn never() -> bool {
    false
}

/// Irregular points along a winding path.
fn path(range: std::ops::Range<usize>) -> Points {
    let mut points = Points::new(2);
    range.map(|i| i as f64).for_each(|i| points.push(&[0.35 * i + 0.1 * (9.1 * i).sin(), (0.5 * i).cos()]));
    points
}

fn field(point: [f64; 2]) -> f64 {
    0.5 + (1.3 * point[0]).sin() + 0.5 * point[1]
}

fn readings(range: std::ops::Range<usize>) -> (Points, Vec<f64>) {
    let places = path(range.clone());
    let noise = |i: usize| 0.2 * ((i * i) as f64 * 0.7).cos();
    let targets = range.enumerate().map(|(row, i)| field([places.axis(0)[row], places.axis(1)[row]]) + noise(i));
    let targets = targets.collect();
    (places, targets)
}

fn labels(places: &Points) -> Vec<f64> {
    (0..places.len()).map(|i| f64::from(field([places.axis(0)[i], places.axis(1)[i]]) > 0.4)).collect()
}

fn predictions(process: &DualGp<Stationary>, places: &Points) -> Vec<f64> {
    let (mean, variance) = process.predict(places);
    [mean, variance].concat()
}

/// The textbook posterior of a Gaussian process: means, then variances.
fn textbook(model: &Model<Stationary>, places: &Points, targets: &[f64], at: &Points) -> Vec<f64> {
    let mut covariance = model.kernel.symmetric_covariance(places);
    (0..places.len()).for_each(|i| covariance[(i, i)] += model.noise);
    let inverse = linalg::inverse_from_cholesky(linalg::cholesky(covariance).unwrap().as_ref());
    let gain = &inverse * model.kernel.covariance(places, at);
    let cross = model.kernel.covariance(places, at);
    let centred: Vec<f64> = targets.iter().map(|target| target - model.mean).collect();
    let means = (0..at.len()).map(|j| model.mean + dot(gain.col_as_slice(j), &centred));
    let prior = model.kernel.diagonal(at);
    let variances = (0..at.len()).map(|j| prior[j] - dot(gain.col_as_slice(j), cross.col_as_slice(j)));
    means.chain(variances).collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < tolerance, "{index}: {found} {expected}");
    }
}

#[test]
fn with_every_place_inducing_it_is_the_exact_process_with_any_memory() {
    let model = model(Likelihood::Gaussian);
    let (places, targets) = readings(0..40);
    let at = path(0..60);
    let expected = textbook(&model, &places, &targets, &at);
    for memory in [0, 5, usize::MAX] {
        for cuts in [vec![0, 40], vec![0, 3, 25, 40]] {
            let one_step = DualSettings { steps: 1, ..settings(100, memory) };
            let mut process = DualGp::new(model.clone(), one_step);
            for cut in cuts.windows(2) {
                let (places, targets) = readings(cut[0]..cut[1]);
                let report = process.update(&places, &targets, &never).unwrap();
                assert_eq!((report.update.rows, report.update.inducing_points), (cut[1] - cut[0], cut[1]));
                assert_eq!(report.steps, 1);
            }
            // The jitter is a share of 1e-10 of a variance 40 times that of the noise.
            assert_close(&predictions(&process, &at), &expected, 1e-6);
        }
    }
}

#[test]
fn the_bound_of_a_gaussian_with_every_place_inducing_is_the_evidence() {
    let model = model(Likelihood::Gaussian);
    let (places, targets) = readings(0..40);
    let mut covariance = model.kernel.symmetric_covariance(&places);
    (0..40).for_each(|i| covariance[(i, i)] += model.noise);
    let root = linalg::cholesky(covariance).unwrap();
    let mut whitened: Vec<f64> = targets.iter().map(|target| target - model.mean).collect();
    linalg::solve_lower_vector(root.as_ref(), &mut whitened);
    let constant = 40.0 * (2.0 * std::f64::consts::PI).ln();
    let evidence = -0.5 * (constant + linalg::log_determinant(root.as_ref()) + dot(&whitened, &whitened));

    let mut whole = DualGp::new(model.clone(), settings(100, 0));
    assert!((whole.update(&places, &targets, &never).unwrap().update.bound - evidence).abs() < 1e-6);
    // With nothing in memory the bounds of parts are conditional, and add up.
    let mut parts = DualGp::new(model, settings(100, 0));
    let sum: f64 = [0..15, 15..22, 22..40]
        .map(|range| {
            let (places, targets) = readings(range);
            parts.update(&places, &targets, &never).unwrap().update.bound
        })
        .iter()
        .sum();
    assert!((sum - evidence).abs() < 1e-5, "{sum} {evidence}");
}

#[test]
fn a_forgetful_gaussian_is_the_streaming_model_whose_inducing_points_move() {
    let model = model(Likelihood::Gaussian);
    let mut process = DualGp::new(model.clone(), settings(15, 0));
    let (places, targets) = readings(0..40);
    process.update(&places, &targets, &never).unwrap();
    let before = process.posterior().unwrap().clone();
    let (places, targets) = readings(30..70);
    let report = process.update(&places, &targets, &never).unwrap();
    let inducing = &process.posterior().unwrap().past.inducing;
    let kept = (0..15).filter(|&i| before.past.inducing.axis(0).contains(&inducing.axis(0)[i])).count();
    assert!(kept > 2 && kept < 13, "{kept}");

    let rows = Rows::moved(&places, &targets, Some(&before.past), inducing.clone());
    let whitened = rows.whiten(&model).unwrap();
    // Up to the jitter, which is shared here and not there.
    assert!((report.update.bound - whitened.bound()).abs() < 1e-5, "{} {}", report.update.bound, whitened.bound());
    let expected = Posterior::new(model.clone(), rows.into_past(whitened)).unwrap();
    let at = path(0..75);
    let (mean, variance) = expected.predict(&at);
    assert_close(&predictions(&process, &at), &[mean, variance].concat(), 1e-6);
}

#[test]
fn two_batches_with_all_in_memory_are_one() {
    for link in [Link::Probit, Link::Logit] {
        let places = path(0..50);
        let labels = labels(&places);
        let mut one = DualGp::binary(model(Likelihood::Gaussian), link, settings(60, usize::MAX));
        one.update(&places, &labels, &never).unwrap();
        let mut two = DualGp::binary(model(Likelihood::Gaussian), link, settings(60, usize::MAX));
        for range in [0..20, 20..50] {
            two.update(&path(range.clone()), &labels[range], &never).unwrap();
        }
        let at = path(0..70);
        // Sites settle to a share of 1e-7.
        assert_close(&predictions(&two, &at), &predictions(&one, &at), 1e-5);
        // The first batch on its own, never seen again, is less than that.
        let mut forgetful = DualGp::binary(model(Likelihood::Gaussian), link, settings(60, 0));
        for range in [0..20, 20..50] {
            forgetful.update(&path(range.clone()), &labels[range], &never).unwrap();
        }
        let found = predictions(&forgetful, &at);
        let error = found.iter().zip(predictions(&one, &at)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error > 1e-4 && error < 0.3, "{error}");
    }
}

/// Any normal distribution of the values at three places, by its means and the Cholesky factor of its covariance, and the
/// evidence lower bound it gives: the definition, written down.
fn bound_of(parameters: &[f64; 9], prior: &Matrix, mean: f64, labels: &[f64], link: Link) -> f64 {
    let root = Matrix::from_fn(3, 3, |i, j| if j > i { 0.0 } else { parameters[3 + i * (i + 1) / 2 + j] });
    let covariance = &root * root.transpose();
    let prior_root = linalg::cholesky(prior.clone()).unwrap();
    let inverse = linalg::inverse_from_cholesky(prior_root.as_ref());
    let centred: Vec<f64> = parameters[..3].iter().map(|value| value - mean).collect();
    let mut trace = 0.0;
    for i in 0..3 {
        for j in 0..3 {
            trace += inverse[(i, j)] * (covariance[(i, j)] + centred[i] * centred[j]);
        }
    }
    let log_determinant: f64 = (0..3).map(|i| root[(i, i)].abs().ln()).sum::<f64>() * 2.0;
    let divergence = 0.5 * (trace - 3.0 + linalg::log_determinant(prior_root.as_ref()) - log_determinant);
    let observation = Observation::Bernoulli(link);
    (0..3).map(|i| observation.expect(labels[i], parameters[i], covariance[(i, i)]).log_density).sum::<f64>()
        - divergence
}

#[test]
fn no_other_normal_distribution_has_a_higher_bound() {
    let model = model(Likelihood::Gaussian);
    let places = Points::from_arrays(&[[0.0, 0.0], [0.5, 0.1], [1.1, 0.4]]);
    let labels = [1.0, 1.0, 0.0];
    let prior = model.kernel.symmetric_covariance(&places);
    for link in [Link::Probit, Link::Logit] {
        // Pattern search.
        let mut best = [model.mean, model.mean, model.mean, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0];
        let mut bound = bound_of(&best, &prior, model.mean, &labels, link);
        let mut step = 0.5;
        while step > 1e-7 {
            let before = bound;
            for parameter in 0..9 {
                for direction in [step, -step] {
                    let mut moved = best;
                    moved[parameter] += direction;
                    let found = bound_of(&moved, &prior, model.mean, &labels, link);
                    if found > bound {
                        (best, bound) = (moved, found);
                    }
                }
            }
            if bound == before {
                step *= 0.5;
            }
        }
        let mut process = DualGp::binary(model.clone(), link, settings(10, 0));
        let report = process.update(&places, &labels, &never).unwrap();
        assert!(report.steps < 100, "{report:?}");
        // The search ends where steps of 1e-7 gain nothing that doubles can show: within 1e-8 nats and 1e-4 of the place.
        assert!((report.update.bound - bound).abs() < 1e-8, "{} {bound}", report.update.bound);
        let root = Matrix::from_fn(3, 3, |i, j| if j > i { 0.0 } else { best[3 + i * (i + 1) / 2 + j] });
        let variances = (0..3).map(|i| (0..3).map(|j| root[(i, j)].powi(2)).sum());
        let expected: Vec<f64> = best[..3].iter().copied().chain(variances).collect();
        assert_close(&predictions(&process, &places), &expected, 1e-4);
    }
}

/// A setup with a memory, a batch and a summary whose inducing points are not all among the new ones.
fn with_setup(binary: bool, check: impl Fn(&Setup<'_, Stationary>, &[Site])) {
    let base = model(Likelihood::Gaussian);
    let mut process =
        if binary { DualGp::binary(base, Link::Logit, settings(12, 4)) } else { DualGp::new(base, settings(12, 4)) };
    let (places, mut targets) = readings(0..30);
    if binary {
        targets = labels(&places);
    }
    process.update(&places, &targets, &never).unwrap();
    let (places, mut targets) = readings(20..45);
    if binary {
        targets = labels(&places);
    }
    let memory = process.memory.as_ref().unwrap();
    let Memory { places: all, targets: values, sites } = memory.followed_by(&places, &targets);
    let inducing = process.choose_inducing(&places);
    assert!(!inducing.shared.is_empty() && inducing.shared.len() < 12);
    let setup = Setup {
        places: &all,
        targets: &values,
        link: process.link,
        memory: memory.targets.len(),
        summary: process.summary.as_ref(),
        inducing,
    };
    let some = |(i, site): (usize, &Site)| Site {
        precision: site.precision + 0.5 + 0.4 * (i as f64).sin(),
        natural: site.natural + (2.0 * i as f64).cos(),
    };
    let sites: Vec<Site> = sites.iter().enumerate().map(some).collect();
    check(&setup, &sites);
}

#[test]
fn the_gradient_is_the_finite_difference() {
    let student = Likelihood::StudentT(StudentT { degrees_of_freedom: 4.0 });
    for (likelihood, binary) in [(Likelihood::Gaussian, false), (student, false), (student, true)] {
        with_setup(binary, |setup, sites| {
            let model = Model { jitter: Jitter::Relative(1e-3), noise: 0.4, ..model(likelihood) };
            for counts in [Counts::ONCE, Counts { memory: 3.0, summary: 0.0 }] {
                let whitened = setup.whiten(model.clone()).unwrap();
                let fit = setup.fit(&whitened, sites).unwrap();
                let found = setup.gradient(&whitened, sites, &fit, counts);
                let at = model.log_parameters();
                for (parameter, found) in found.iter().enumerate() {
                    let bound = |step: f64| {
                        let mut moved = at.clone();
                        moved[parameter] += step;
                        let model = model.with_log_parameters(&moved);
                        let whitened = setup.whiten(model.clone()).unwrap();
                        setup.bound(&setup.fit(&whitened, sites).unwrap(), counts)
                    };
                    // Of fourth order: truncation of order 1e-12, rounding 1e-13 / 1e-3 of a bound of hundreds.
                    let step = 1e-3;
                    let near = bound(step) - bound(-step);
                    let far = bound(2.0 * step) - bound(-2.0 * step);
                    let expected = (8.0 * near - far) / (12.0 * step);
                    let error = (found - expected).abs() / (1.0 + expected.abs());
                    assert!(error < 1e-7, "{likelihood:?} {binary} {counts:?} {parameter}: {found} {expected}");
                }
            }
        });
    }
}

#[test]
fn settled_sites_are_dual_parameters_and_their_bound_is_a_maximum() {
    with_setup(true, |setup, sites| {
        let model = model(Likelihood::Gaussian);
        let whitened = setup.whiten(model.clone()).unwrap();
        let mut settled = sites.to_vec();
        let (fit, steps) = setup.settle(&whitened, &mut settled, (100, 1.0)).unwrap();
        assert!(steps < 100);
        let bound = setup.bound(&fit, Counts::ONCE);
        for index in [0, 5, settled.len() - 1] {
            for factor in [0.9, 1.1] {
                let mut moved = settled.clone();
                moved[index].precision *= factor;
                moved[index].natural += 0.1 * (factor - 1.0);
                let moved = setup.fit(&whitened, &moved).unwrap();
                assert!(setup.bound(&moved, Counts::ONCE) < bound);
            }
        }
    });
}

#[test]
fn the_leverage_of_one_reading_is_its_share_of_the_variance() {
    let model = model(Likelihood::Gaussian);
    let places = Points::from_arrays(&[[0.0, 0.0], [100.0, 0.0], [100.0, 0.0]]);
    let setup = Setup {
        places: &places,
        targets: &[1.0; 3],
        link: None,
        memory: 0,
        summary: None,
        inducing: Inducing { places: places.select([0, 1]), shared: Vec::new() },
    };
    let whitened = setup.whiten(model.clone()).unwrap();
    let mut sites = vec![Site::default(); 3];
    let (fit, _) = setup.settle(&whitened, &mut sites, (1, 1.0)).unwrap();
    let scores: Vec<f64> = sites.iter().zip(&fit.variances).map(|(site, v)| site.precision * v).collect();
    // beta v = k / (k + s^2) alone, k / (2 k + s^2) for each of two at one place; up to the jitter of 1e-10 / 0.05 * 2.
    assert_close(&scores, &[2.0 / 2.05, 2.0 / 4.05, 2.0 / 4.05], 1e-7);
}

#[test]
fn memory_grows_by_batch_up_to_its_limit() {
    let memory = MemorySize { per_batch: 5, most: 12 };
    let mut process = DualGp::new(model(Likelihood::Gaussian), DualSettings { memory, ..settings(10, 0) });
    let sizes = [0..20, 20..23, 23..60, 60..90].map(|range| {
        let (places, targets) = readings(range);
        process.update(&places, &targets, &never).unwrap().memory
    });
    assert_eq!(sizes, [5, 8, 12, 12]);
    let Memory { places, targets, .. } = process.memory.as_ref().unwrap();
    assert_eq!((places.len(), targets.len(), process.baseline.count()), (12, 12, 90));
    // Some of every batch is left.
    assert!(places.axis(0)[0] < 8.0 && places.axis(0)[11] > 21.0, "{places:?}");
}

/// Two crescents, as in the banana data of the paper; the stream goes from left to right.
fn crescents() -> (Points, Vec<f64>) {
    let mut points: Vec<([f64; 2], f64)> = (0..400)
        .map(|i| {
            let (label, angle) = ((i % 2) as f64, 3.1 * f64::from((i * 37) % 200) / 200.0);
            let radius = 1.0 + 0.45 * ((i * i) as f64 * 0.37).sin();
            let (x, y) = (radius * angle.cos(), radius * angle.sin());
            (if label == 1.0 { [x, y] } else { [1.0 - x, 0.4 - y] }, label)
        })
        .collect();
    points.sort_by(|a, b| a.0[0].total_cmp(&b.0[0]));
    let (places, labels): (Vec<[f64; 2]>, Vec<f64>) = points.into_iter().unzip();
    (Points::from_arrays(&places), labels)
}

#[test]
fn a_stream_of_crescents_is_told_apart_everywhere() {
    let (places, labels) = crescents();
    for (link, old_evidence) in [
        (Link::Probit, OldEvidence::Summary),
        (Link::Logit, OldEvidence::Summary),
        (Link::Probit, OldEvidence::ScaledMemory { share: 1.0 }),
    ] {
        let settings = DualSettings { steps: 4, old_evidence, learning: learning(20), ..settings(25, 15) };
        let mut process = DualGp::binary(model(Likelihood::Gaussian), link, settings);
        for batch in 0..4 {
            let range = 100 * batch..100 * (batch + 1);
            let report = process.update(&places.select(range.clone()), &labels[range], &never).unwrap();
            assert!(report.update.inducing_points <= 25 && report.memory == 15 * (batch + 1));
        }
        let probabilities = process.predict_probability(&places).unwrap();
        let right = |(p, label): (&f64, &f64)| (*p > 0.5) == (*label == 1.0);
        let accuracy = probabilities.iter().zip(&labels).filter(|&pair| right(pair)).count() as f64 / 400.0;
        assert!(accuracy > 0.9, "{link:?} {old_evidence:?}: {accuracy}");
    }
}

#[test]
fn students_t_shrugs_off_outliers() {
    let at = path(0..60);
    let truth: Vec<f64> = (0..60).map(|i| field([at.axis(0)[i], at.axis(1)[i]])).collect();
    let error = |likelihood: Likelihood, outliers: bool| {
        let mut process = DualGp::new(model(likelihood), DualSettings { step_length: 0.9, ..settings(40, 10) });
        for range in [0..20, 20..40, 40..60] {
            let (places, mut targets) = readings(range);
            if outliers {
                targets.iter_mut().step_by(7).for_each(|target| *target += 30.0);
            }
            let report = process.update(&places, &targets, &never).unwrap();
            assert!(report.steps < 100, "{likelihood:?} has not settled");
        }
        let squares = predictions(&process, &at).into_iter().zip(&truth).map(|(found, truth)| (found - truth).powi(2));
        (squares.sum::<f64>() / 60.0).sqrt()
    };
    let student = Likelihood::StudentT(StudentT { degrees_of_freedom: 4.0 });
    let (clean, robust, fooled) = (error(student, false), error(student, true), error(Likelihood::Gaussian, true));
    // The noise has a standard deviation of 0.14; one reading in seven is 30 off.
    assert!(clean < 0.14 && robust < 0.3 && fooled > 3.0, "{clean} {robust} {fooled}");
}

#[test]
fn learning_finds_what_the_collapsed_bound_finds() {
    let (places, targets) = readings(0..60);
    let start = model(Likelihood::Gaussian);
    let mut process = DualGp::new(start.clone(), DualSettings { learning: learning(200), ..settings(30, 0) });
    let report = process.update(&places, &targets, &never).unwrap();
    let inducing = &process.posterior().unwrap().past.inducing;
    let rows = Rows::nested(&places, &targets, None, inducing);
    let (expected, _) = learning(200).learn(&start, &rows, &never);
    let collapsed = |model: &Model<Stationary>| rows.whiten(model).unwrap().bound();
    // Both end where an iteration gains a hundredth of a nat, this one after five rounds at most.
    assert!(collapsed(&process.model) > collapsed(&expected) - 0.1);
    assert!((report.update.bound - collapsed(&process.model)).abs() < 1e-6);
}

#[test]
fn memory_leads_the_hyperparameters_of_a_stream_to_those_of_one_batch() {
    let (places, targets) = readings(0..150);
    let learnt = |old_evidence: OldEvidence, memory: usize, batches: usize| {
        let settings = DualSettings { old_evidence, learning: learning(30), ..settings(60, memory) };
        let mut process = DualGp::new(model(Likelihood::Gaussian), settings);
        let rows = 150 / batches;
        for batch in 0..batches {
            let range = rows * batch..rows * (batch + 1);
            process.update(&places.select(range.clone()), &targets[range], &never).unwrap();
        }
        let truth = (0..150).map(|i| field([places.axis(0)[i], places.axis(1)[i]]));
        let squares = predictions(&process, &places).into_iter().zip(truth).map(|(a, b)| (a - b).powi(2));
        let error = (squares.sum::<f64>() / 150.0).sqrt();
        // The noise has a standard deviation of 0.14, and neighbours share what they know.
        assert!(error < 0.12, "{old_evidence:?} {memory}: {error}");
        process.model.log_parameters()
    };
    let whole = learnt(OldEvidence::Summary, 0, 1);
    let distance = |found: &[f64]| found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let forgetful = distance(&learnt(OldEvidence::Summary, 0, 6));
    assert!(forgetful > 0.25, "{forgetful}");
    for old_evidence in [OldEvidence::Summary, OldEvidence::ScaledMemory { share: 1.0 }] {
        for memory in [10, 25] {
            let found = distance(&learnt(old_evidence, memory, 6));
            // Learning ends where an iteration gains a hundredth of a nat: that is 0.14 of a standard deviation, which is about
            // 0.5 for the variance.
            assert!(found < 0.1, "{old_evidence:?} {memory}: {found}");
        }
    }
    // The less of the evidence of the memory counts, the farther from it: 0.16, 0.36 and 0.46 after the first.
    let of_share = |share| distance(&learnt(OldEvidence::ScaledMemory { share }, 25, 6));
    let distances = [1.0, 0.5, 0.1, 0.0].map(of_share);
    assert!(distances.is_sorted() && distances[3] > 0.3, "{distances:?}");
}

#[test]
fn a_rejected_batch_leaves_everything_as_it_was() {
    let mut process = DualGp::binary(model(Likelihood::Gaussian), Link::Probit, settings(10, 5));
    let places = path(0..20);
    process.update(&places, &labels(&places), &never).unwrap();
    let before = format!("{process:?}");
    let nowhere = Points::from_arrays(&[[f64::NAN, 0.0]]);
    let cases: [(&Points, &[f64], Error); 6] = [
        (&path(0..0), &[], Error::Empty),
        (&path(0..3), &[1.0], Error::Lengths { places: 3, targets: 1 }),
        (&Points::from_arrays(&[[0.0; 3]]), &[1.0], Error::Dimension),
        (&nowhere, &[1.0], Error::NotFinite),
        (&path(0..1), &[f64::INFINITY], Error::NotFinite),
        (&path(0..3), &[1.0, 0.0, -1.0], Error::Label { found: -1.0, row: 2 }),
    ];
    for (places, targets, expected) in cases {
        assert_eq!(process.update(places, targets, &never), Err(expected));
        assert_eq!(format!("{process:?}"), before);
    }
    // One that the arithmetic rejects: a covariance beyond what doubles can hold.
    let mut broken = model(Likelihood::Gaussian);
    broken.kernel.variance = 1e308;
    let mut process = DualGp::new(broken, settings(10, 5));
    let (places, targets) = readings(0..20);
    let error = process.update(&places, &targets, &never).unwrap_err();
    assert!(matches!(error, Error::NotPositiveDefinite { .. }), "{error}");
    assert!(process.posterior().is_none() && process.baseline.count() == 0);
}

#[test]
fn before_any_batch_it_predicts_the_prior() {
    let process = DualGp::binary(model(Likelihood::Gaussian), Link::Probit, settings(10, 5));
    assert_eq!(predictions(&process, &path(0..2)), [0.5, 0.5, 2.0, 2.0]);
    let expected = Link::Probit.probability(0.5, 2.0);
    assert_eq!(process.predict_probability(&path(0..2)).unwrap(), [expected; 2]);
    assert_eq!(DualGp::new(model(Likelihood::Gaussian), settings(10, 5)).predict_probability(&path(0..2)), None);
}

#[test]
fn equal_streams_give_equal_bits_and_stopping_ends_learning_at_once() {
    let run = |stop: &dyn Fn() -> bool| {
        let settings = DualSettings { learning: learning(10), ..settings(10, 5) };
        let mut process = DualGp::new(model(Likelihood::Gaussian), settings);
        let reports = [0..20, 20..40].map(|range| {
            let (places, targets) = readings(range);
            process.update(&places, &targets, stop).unwrap()
        });
        (predictions(&process, &path(0..9)), reports)
    };
    assert_eq!(run(&never), run(&never));
    let (_, reports) = run(&|| true);
    assert_eq!(reports[1].update.learning, LearningReport { evaluations: 0, end: LearningEnd::Stopped });
    assert_eq!(reports[1].update.hyperparameters, model(Likelihood::Gaussian).named_values());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_comes_it_predicts_numbers_or_says_why_not(
        // A few places, often the same ones, near and far.
        places in proptest::collection::vec((0u8..6, prop_oneof![Just(1e-9f64), Just(0.3), Just(1e7)]), 24),
        targets in proptest::collection::vec(prop_oneof![-3.0..3.0f64, Just(1e9f64), Just(-1e12)], 24),
        kind in 0usize..4,
        memory in 0usize..4,
        step_length in 0.1..=1.0f64,
    ) {
        let student = Likelihood::StudentT(StudentT { degrees_of_freedom: 3.0 });
        let settings = DualSettings { steps: 5, step_length, learning: learning(6), ..settings(6, memory) };
        let mut process = match kind {
            0 => DualGp::new(model(Likelihood::Gaussian), settings),
            1 => DualGp::new(model(student), settings),
            2 => DualGp::binary(model(student), Link::Probit, settings),
            _ => DualGp::binary(model(student), Link::Logit, settings),
        };
        let places: Vec<[f64; 2]> = places.into_iter().map(|(step, unit)| [f64::from(step) * unit, 0.0]).collect();
        let targets: Vec<f64> =
            targets.into_iter().map(|target| if kind < 2 { target } else { f64::from(target > 0.0) }).collect();
        for (places, targets) in places.chunks(8).zip(targets.chunks(8)) {
            let places = Points::from_arrays(places);
            let before = process.baseline.count();
            match process.update(&places, targets, &never) {
                Ok(report) => {
                    prop_assert!(report.update.inducing_points <= 6 && report.update.bound.is_finite());
                    prop_assert_eq!(process.baseline.count(), before + 8);
                    let found = predictions(&process, &places);
                    prop_assert!(found.iter().all(|value| value.is_finite()), "{:?}", found);
                    prop_assert!(found[8..].iter().all(|&variance| variance >= 0.0), "{:?}", found);
                }
                Err(error) => {
                    let broke_down = matches!(error, Error::NotPositiveDefinite { .. });
                    prop_assert!(broke_down, "{}", error);
                    prop_assert_eq!(process.baseline.count(), before);
                }
            }
        }
    }
}
