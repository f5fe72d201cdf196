//! The engine against values computed with 50 digits by dense formulas; `golden/README.md` says what they are.

use super::inducing::inducing_distribution;

use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use streaming_gp::bounds::{NoiseBaselines, exact_ceiling};
use streaming_gp::inference::Inference;
use streaming_gp::kernel::{Kernel, Places, Shape, Stationary};
use streaming_gp::likelihood::Likelihood;
use streaming_gp::linalg::{self, Matrix};
use streaming_gp::model::{Jitter, Model};
use streaming_gp::points::Points;
use streaming_gp::posterior::Posterior;
use streaming_gp::selection::vips::Vips;
use streaming_gp::selection::{Batch, GreedyVariance, Limits, Rule};
use streaming_gp::whitened::Rows;

const NO_LIMITS: Limits = Limits { max_inducing_points: usize::MAX, least_share: 0.0 };

#[derive(Deserialize)]
struct Case {
    name: String,
    kernel: String,
    jitter: f64,
    delta: f64,
    nested: bool,
    #[serde(rename = "Xtest")]
    test_points: Vec<Vec<f64>>,
    batches: Vec<Expected>,
}

#[derive(Deserialize)]
#[allow(non_snake_case)] // the names of the files
struct Expected {
    X: Vec<Vec<f64>>,
    y: Vec<f64>,
    Z: Vec<Vec<f64>>,
    hyper: Hyper,
    hyper_select: Option<Hyper>,
    running_mean: f64,
    running_var: f64,
    L_noise: f64,
    elbo: f64,
    grad_log: HashMap<String, f64>,
    L_star: f64,
    U_hat: f64,
    q_mean: Vec<f64>,
    q_cov: Vec<Vec<f64>>,
    test_mean: Vec<f64>,
    test_var: Vec<f64>,
    select: Option<Select>,
}

#[derive(Deserialize, Clone, Copy)]
struct Hyper {
    #[serde(rename = "const")]
    constant: f64,
    variance: f64,
    lengthscale: f64,
    noise: f64,
}

#[derive(Deserialize)]
#[allow(non_snake_case)] // the names of the files
struct Select {
    L_star: f64,
    greedy_order: Vec<usize>,
    greedy_cond_var: Vec<f64>,
    elbo_by_M: Vec<(usize, f64)>,
    vips_M_total: usize,
}

fn cases() -> Vec<Case> {
    let mut files: Vec<_> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 4, "golden cases: {files:?}");
    files.iter().map(|file| serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()).collect()
}

fn points(rows: &[Vec<f64>]) -> Points {
    let mut points = Points::new(rows[0].len());
    rows.iter().for_each(|row| points.push(row));
    points
}

fn model(case: &Case, hyper: Hyper) -> Model<Stationary> {
    let shape = match case.kernel.as_str() {
        "matern52" => Shape::Matern52,
        "matern32" => Shape::Matern32,
        "se" => Shape::SquaredExponential,
        other => panic!("unknown kernel {other}"),
    };
    let lengthscales = vec![hyper.lengthscale];
    Model {
        kernel: Stationary { constant: Some(hyper.constant), shape, variance: hyper.variance, lengthscales },
        noise: hyper.noise,
        mean: 0.0,
        likelihood: Likelihood::Gaussian,
        jitter: Jitter::Absolute(case.jitter),
    }
}

#[track_caller]
fn assert_relative(what: &str, found: f64, expected: f64, tolerance: f64) {
    let error = (found - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
    assert!(error <= tolerance, "{what}: found {found}, expected {expected}, relative error {error:.2e}");
}

/// A stream of batches with everything that was computed for each.
fn for_each_batch(
    mut check: impl FnMut(&Case, &Expected, &Points, Option<&Posterior<Stationary>>, &Rows<'_, Stationary>, &str),
) {
    for case in cases() {
        let mut posterior: Option<Posterior<Stationary>> = None;
        for (number, batch) in case.batches.iter().enumerate() {
            let (places, inducing) = (points(&batch.X), points(&batch.Z));
            let past = posterior.as_ref().map(|posterior| &posterior.past);
            let covered = past.map_or(0, |past| past.inducing.len());
            let rows = if case.nested {
                let additional = inducing.select(covered..inducing.len());
                Rows::nested(&places, &batch.y, past, &additional)
            } else {
                Rows::moved(&places, &batch.y, past, inducing.clone())
            };
            check(&case, batch, &places, posterior.as_ref(), &rows, &format!("{} batch {}", case.name, number + 1));
            let model = model(&case, batch.hyper);
            let whitened = rows.whiten(&model).unwrap();
            posterior = Some(Posterior::new(model, rows.into_past(whitened)).unwrap());
        }
    }
}

#[test]
fn bound_and_gradient() {
    for_each_batch(|case, batch, _, _, rows, name| {
        let model = model(case, batch.hyper);
        let whitened = rows.whiten(&model).unwrap();
        assert_relative(&format!("{name} bound"), whitened.bound(), batch.elbo, 1e-8);
        let gradient = rows.gradient(&model, &whitened);
        let names = ["const", "variance", "lengthscale", "noise"];
        let largest = names.iter().map(|name| batch.grad_log[*name].abs()).fold(0.0, f64::max);
        for (found, parameter) in gradient.iter().zip(names) {
            let expected = batch.grad_log[parameter];
            let error = (found - expected).abs() / largest;
            assert!(error < 1e-5, "{name} d/d log {parameter}: found {found}, expected {expected}, error {error:.1e}");
        }
    });
}

/// Power-EP with alpha going to 0, by the straight line through two small alphas, which leaves what is of second order in them.
#[test]
fn power_ep_begins_at_the_variational_bound() {
    for_each_batch(|case, batch, places, posterior, _, name| {
        let model = model(case, batch.hyper);
        let past = posterior.map(|posterior| &posterior.past);
        let inducing = points(&batch.Z);
        let additional = inducing.select(past.map_or(0, |past| past.inducing.len())..inducing.len());
        let bound = |alpha: f64| {
            let rows = if case.nested {
                Rows::nested(places, &batch.y, past, &additional)
            } else {
                Rows::moved(places, &batch.y, past, inducing.clone())
            };
            rows.with_inference(Inference::power_ep(alpha).unwrap()).whiten(&model).unwrap().bound()
        };
        let (near, far) = (bound(1e-6), bound(2e-6));
        assert_relative(&format!("{name} bound at alpha 0"), 2.0 * near - far, batch.elbo, 1e-8);
        // The slopes in alpha are some hundred nats, as slack is squared in them.
        assert!((near - batch.elbo).abs() < 1e-3, "{name}: found {near}, expected {}", batch.elbo);
    });
}

#[test]
fn ceilings_and_baseline() {
    let mut seen: Vec<(String, NoiseBaselines)> = Vec::new();
    for_each_batch(|case, batch, places, posterior, rows, name| {
        let model = model(case, batch.hyper);
        let past = posterior.map(|posterior| &posterior.past);
        let found = exact_ceiling(&model, places, &batch.y, past).unwrap();
        assert_relative(&format!("{name} L*"), found, batch.L_star, 1e-8);
        let paper = upper_bound_of_the_paper(&model, batch, posterior, &rows.inducing, case.nested);
        assert_relative(&format!("{name} U of the paper"), paper, batch.U_hat, 1e-7);
        let whitened = rows.whiten(&model).unwrap();
        assert!(whitened.bound() <= found + 1e-9 * found.abs(), "{name}: the bound is above L*");
        if case.nested {
            let upper = whitened.upper_bound().unwrap();
            assert!(upper >= found - 1e-9 * found.abs(), "{name}: U {upper} is below L* {found}");
        }
        if seen.last().is_none_or(|(name, _)| *name != case.name) {
            seen.push((case.name.clone(), NoiseBaselines::default()));
        }
        let baselines = &mut seen.last_mut().unwrap().1;
        *baselines = baselines.including(places, &batch.y);
        let baseline = baselines.outputs()[0];
        assert_relative(&format!("{name} running mean"), baseline.mean, batch.running_mean, 1e-12);
        assert_relative(&format!("{name} running variance"), baseline.variance(), batch.running_var, 1e-10);
        let noise = baselines.log_likelihood(places, &batch.y, f64::MIN_POSITIVE);
        assert_relative(&format!("{name} L_noise"), noise, batch.L_noise, 1e-8);
    });
}

#[test]
fn posterior_and_prediction() {
    for_each_batch(|case, batch, places, posterior, _, name| {
        let model = model(case, batch.hyper);
        let past = posterior.map(|posterior| &posterior.past);
        let rows = Rows::moved(places, &batch.y, past, points(&batch.Z));
        let nested = Rows::nested(
            places,
            &batch.y,
            past,
            &points(&batch.Z).select(past.map_or(0, |past| past.inducing.len())..batch.Z.len()),
        );
        let rows = if case.nested { nested } else { rows };
        let whitened = rows.whiten(&model).unwrap();
        let prior = model.kernel.shared_variance() + model.kernel.variance;
        let posterior = Posterior::new(model, rows.into_past(whitened)).unwrap();
        let (mean, covariance) = inducing_distribution(&posterior);
        for i in 0..batch.Z.len() {
            assert_relative(&format!("{name} q mean {i}"), mean[i], batch.q_mean[i], 1e-8);
            for j in 0..batch.Z.len() {
                let error = (covariance[(i, j)] - batch.q_cov[i][j]).abs();
                assert!(error < 1e-8 * prior, "{name} q covariance {i} {j}: error {error:.1e}");
            }
        }
        let test_points = points(&case.test_points);
        let (mean, variance) = posterior.predict(&test_points);
        let (joint_mean, joint) = posterior.predict_joint(&test_points);
        for i in 0..test_points.len() {
            assert_relative(&format!("{name} mean at test point {i}"), mean[i], batch.test_mean[i], 1e-8);
            assert_relative(&format!("{name} joint mean at test point {i}"), joint_mean[i], batch.test_mean[i], 1e-8);
            for found in [variance[i], joint[(i, i)]] {
                let error = (found - batch.test_var[i]).abs();
                assert!(error < 1e-8 * prior, "{name} variance at test point {i}: error {error:.1e}");
            }
        }
    });
}

#[test]
fn selection() {
    let mut baseline = NoiseBaselines::default();
    for_each_batch(|case, batch, places, posterior, _, name| {
        if posterior.is_none() {
            baseline = NoiseBaselines::default();
        }
        baseline = baseline.including(places, &batch.y);
        let (Some(hyper), Some(expected)) = (batch.hyper_select, &batch.select) else { return };
        let model = model(case, hyper);
        let past = posterior.map(|posterior| &posterior.past);
        let found = exact_ceiling(&model, places, &batch.y, past).unwrap();
        assert_relative(&format!("{name} L* before learning"), found, expected.L_star, 1e-8);

        let mut greedy = GreedyVariance::new(&model, places, &batch.y, past).unwrap();
        let mut bounds = HashMap::new();
        let prior = hyper.constant + hyper.variance;
        for (&index, &variance) in expected.greedy_order.iter().zip(&expected.greedy_cond_var) {
            bounds.insert(greedy.points.len(), greedy.bound());
            let (found, found_variance) = greedy.points.next(0.0).unwrap();
            assert_eq!(found, index, "{name}: pick {}", greedy.points.chosen.len());
            assert!((found_variance - variance).abs() < 1e-8 * prior, "{name}: {found_variance} {variance}");
            greedy.add(found);
        }
        bounds.insert(greedy.points.len(), greedy.bound());
        let compared = expected.elbo_by_M.iter().filter(|(size, _)| bounds.contains_key(size)).count();
        assert!(compared > 0, "{name}: no bound to compare");
        for (size, bound) in &expected.elbo_by_M {
            if let Some(found) = bounds.get(size) {
                assert_relative(&format!("{name} bound with {size} points"), *found, *bound, 1e-8);
            }
        }

        let vips = Vips { delta: case.delta, guards: false, exact_limit: usize::MAX };
        let batch = Batch { model: &model, places, targets: (&batch.y).into(), posterior, baseline: &baseline };
        let chosen = vips.choose(&batch, NO_LIMITS).unwrap();
        assert_eq!(batch.old() + chosen.added.len(), expected.vips_M_total, "{name}: size");
    });
}

/// The upper bound as the paper has it, with Delta_a: t in unscaled coordinates on all rows, by dense linear algebra.
fn upper_bound_of_the_paper(
    model: &Model<Stationary>,
    batch: &Expected,
    posterior: Option<&Posterior<Stationary>>,
    inducing: &Points,
    nested: bool,
) -> f64 {
    let places = points(&batch.X);
    let (count, size) = (batch.y.len(), inducing.len());
    let add_jitter = |mut covariance: Matrix| {
        let Jitter::Absolute(jitter) = model.jitter else { unreachable!() };
        (0..covariance.nrows()).for_each(|i| covariance[(i, i)] += jitter);
        covariance
    };
    let covariance_root = linalg::cholesky(add_jitter(model.kernel.symmetric_covariance(inducing))).unwrap();
    let whiten = |mut cross: Matrix| {
        linalg::solve_lower(covariance_root.as_ref(), cross.as_mut());
        cross
    };
    let trace = |whitened: &Matrix| -> f64 {
        (0..whitened.ncols()).map(|j| linalg::squared_norm(whitened.col_as_slice(j))).sum()
    };
    let features = whiten(model.kernel.covariance(inducing, &places));
    let mut t = count as f64 * (model.kernel.shared_variance() + model.kernel.variance) - trace(&features);

    // Dense pseudo-observations of the past: precision Lambda = S^-1 - K'^-1 and Lambda-weighted target eta = S^-1 m.
    let old = posterior.map(|posterior| {
        let (mean, covariance) = inducing_distribution(posterior);
        let old_inducing = &posterior.past.inducing;
        let prior = add_jitter(posterior.model.kernel.symmetric_covariance(old_inducing));
        let inverse = |matrix: Matrix| linalg::inverse_from_cholesky(linalg::cholesky(matrix).unwrap().as_ref());
        let (prior_inverse, posterior_inverse) = (inverse(prior.clone()), inverse(covariance.clone()));
        let precision = &posterior_inverse - &prior_inverse;
        let mut eta = vec![0.0; mean.len()];
        linalg::add_matrix_vector(&mut eta, 1.0, posterior_inverse.as_ref(), &mean);
        let log_determinant = |matrix: Matrix| linalg::log_determinant(linalg::cholesky(matrix).unwrap().as_ref());
        let half = |matrix: &Matrix| {
            linalg::dot(&mean, &{
                let mut product = vec![0.0; mean.len()];
                linalg::add_matrix_vector(&mut product, 1.0, matrix.as_ref(), &mean);
                product
            })
        };
        let constant = 0.5 * (log_determinant(prior) - log_determinant(covariance) - half(&posterior_inverse));
        let cross = if nested {
            let all = add_jitter(model.kernel.symmetric_covariance(inducing));
            Matrix::from_fn(size, old_inducing.len(), |i, j| all[(i, j)])
        } else {
            model.kernel.covariance(inducing, old_inducing)
        };
        let whitened = whiten(cross);
        let slack = if nested {
            0.0
        } else {
            let all = add_jitter(model.kernel.symmetric_covariance(old_inducing));
            (0..old_inducing.len()).map(|i| all[(i, i)]).sum::<f64>() - trace(&whitened)
        };
        (precision, eta, constant, whitened, slack)
    });
    t += old.as_ref().map_or(0.0, |old| old.4);

    // exp(eta^T a - a^T Lambda a / 2) as observations D^-1/2 with D = Lambda^-1, widened to (D + t)^-1 in the quadratic term
    // alone, by the eigenvectors of Lambda: w / (1 + t w) and eta / (1 + t w).
    let assemble = |widening: f64| {
        let noise = model.noise + widening;
        let mut gram = Matrix::identity(size, size);
        linalg::add_product(gram.as_mut(), 1.0 / noise, features.as_ref(), features.transpose());
        let mut projected = vec![0.0; size];
        linalg::add_matrix_vector(&mut projected, 1.0 / noise, features.as_ref(), &batch.y);
        let mut extra = 0.0;
        if let Some((precision, eta, _, whitened, _)) = &old {
            // (I + t Lambda)^-1 through its symmetric form: Lambda = V V^T.
            let count = eta.len();
            let scaled =
                Matrix::from_fn(count, count, |i, j| widening * precision[(i, j)] + f64::from(u8::from(i == j)));
            let inverse = linalg::inverse_from_cholesky(linalg::cholesky(scaled).unwrap().as_ref());
            let widened = &inverse * precision;
            let mut widened_eta = vec![0.0; count];
            linalg::add_matrix_vector(&mut widened_eta, 1.0, inverse.as_ref(), eta);
            gram += whitened * &widened * whitened.transpose();
            linalg::add_matrix_vector(&mut projected, 1.0, whitened.as_ref(), &widened_eta);
            extra = 0.5 * widening * linalg::dot(eta, &widened_eta);
        }
        (gram, projected, extra)
    };
    let (gram, _, _) = assemble(0.0);
    let log_determinant = linalg::log_determinant(linalg::cholesky(gram).unwrap().as_ref());
    let (gram, mut projected, extra) = assemble(t);
    let root = linalg::cholesky(gram).unwrap();
    linalg::solve_lower_vector(root.as_ref(), &mut projected);
    let constant = old.as_ref().map_or(0.0, |old| old.2);
    -0.5 * count as f64 * (std::f64::consts::TAU * model.noise).ln() + constant - 0.5 * log_determinant + extra
        - 0.5 * linalg::squared_norm(&batch.y) / (model.noise + t)
        + 0.5 * linalg::squared_norm(&projected)
}
