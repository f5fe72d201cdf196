//! Any table of numbers as a stream (VIPS paper, section D.3): how small a model of each method can be and still be nearly as good
//! as a Gaussian process on all readings.
//!
//! A [`Protocol`] makes a task of a [`Table`] for each random split. On every split the methods are [`run`], in parallel, and a
//! [`Summary`] measures each against two that always run: the reference, a Gaussian process on all
//! readings so far, and the noise model.

mod file;
mod protocol;
mod summary;

use super::comparison::Run;
use super::methods::{MOST_EXACT, Method};
use super::paper_settings;
use magmap::config::{Config, Selection};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

pub use file::Table;
pub use protocol::Protocol;
pub use summary::{Metric, OperatingPoint, Relative, Summary};

/// All hyperparameters start at 1 but for the noise variance, at 0.1; delta is the 0.035 that the paper recommends, and 7000 inducing
/// points are the most, as in its tables.
pub fn settings() -> Config {
    let config = paper_settings::settings(1.0, 1.0, 0.1, 0.035);
    Config { selection: Selection { max_inducing_points: 7000, ..config.selection }, ..config }
}

/// The default reference: the exact Gaussian process for at most 2000 rows, where its updates already take minutes, and beyond them a
/// sparse one with 1000 inducing points.
pub fn reference(training_rows: usize) -> Method {
    const MOST: usize = 2000;
    const { assert!(MOST <= MOST_EXACT) };
    if training_rows <= MOST { Method::Exact } else { Method::BatchSparse(Some(1000.0)) }
}

/// The methods to run: the reference, the noise model, and each other method once.
pub fn line_up(reference: &Method, methods: &[Method]) -> Vec<Method> {
    let mut line_up = vec![reference.clone(), Method::Mean];
    for method in methods {
        if !line_up.contains(method) {
            line_up.push(method.clone());
        }
    }
    line_up
}

/// Every method on every one of `splits` splits, up to `jobs` of them at a time: the runs of the first split in the order of the
/// methods, then those of the second, and so on. The numbers do not depend on `jobs`. `progress` is called with the number of further
/// batches.
///
/// # Errors
/// When the threads cannot be started.
pub fn run(
    table: &Table,
    protocol: &Protocol,
    (splits, methods): (usize, &[Method]),
    config: &Config,
    jobs: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> anyhow::Result<Vec<Vec<Run>>> {
    let trials: Vec<_> = (1..=splits).flat_map(|split| methods.iter().map(move |method| (split, method))).collect();
    let trial = |(split, method): (usize, &Method)| {
        let mut reported = 0;
        let run = protocol.task(table, split).run(method, config, |batches, _| {
            progress(batches - reported);
            reported = batches;
        });
        progress(protocol.batches - reported);
        run
    };
    let threads = ThreadPoolBuilder::new().num_threads(jobs).build()?;
    let runs: Vec<Run> = threads.install(|| trials.into_par_iter().map(trial).collect());
    Ok(runs.chunks(methods.len()).map(<[Run]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::super::comparison::BatchResult;
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// 240 rows: two inputs, a target that is a wave over the first and a slope over the second, and a little noise that is not random.
    fn table(folder: &Path) -> Table {
        let row = |i: u32| {
            let i = f64::from(i);
            let (x, y) = ((i * 0.618).fract() * 6.0, (i * 0.414).fract() * 2.0);
            format!("{x},{y},{}\n", 30.0 + 10.0 * x.sin() + 3.0 * y + (i * i).cos())
        };
        let path = folder.join("wave.csv");
        fs::write(&path, format!("x,y,z\n{}", (0..240).map(row).collect::<String>())).unwrap();
        Table::read(path).unwrap()
    }

    fn protocol() -> Protocol {
        Protocol { target: 2, test_share: 0.1, batches: 4, seed: 1 }
    }

    fn methods() -> Vec<Method> {
        let others = ["vips=0.02", "vips=0.5", "vips=0.9", "oips=0.3"].map(|name| name.parse().unwrap());
        line_up(&reference(216), &others)
    }

    /// All steps, without their durations, which no two runs share.
    fn timeless(runs: &[Vec<Run>]) -> Vec<BatchResult> {
        runs.iter()
            .flatten()
            .flat_map(|run| &run.steps)
            .map(|step| BatchResult { seconds: 0.0, ..step.clone() })
            .collect()
    }

    fn all(table: &Table, jobs: usize) -> Vec<Vec<Run>> {
        let heard = AtomicUsize::new(0);
        let hear = |batches| {
            heard.fetch_add(batches, Ordering::Relaxed);
        };
        let runs = run(table, &protocol(), (2, &methods()), &settings(), jobs, &hear).unwrap();
        assert_eq!(heard.into_inner(), 2 * methods().len() * 4);
        runs
    }

    #[test]
    fn a_split_is_standardised_sorted_and_tested_no_further_than_it_was_learnt() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path());
        let task = protocol().task(&table, 1);
        assert_eq!(task.batches.iter().map(|batch| batch.targets.len()).collect::<Vec<_>>(), [54; 4]);
        assert_eq!(task.test.targets.len(), 24);
        let learnt: Vec<f64> = task.batches.iter().flat_map(|batch| batch.places.axis(0).to_vec()).collect();
        assert!(learnt.is_sorted());
        let targets: Vec<f64> = task.batches.iter().flat_map(|batch| batch.targets.clone()).collect();
        for values in [&learnt, &targets] {
            let mean = values.iter().sum::<f64>() / 216.0;
            let variance = values.iter().map(|value| value * value).sum::<f64>() / 216.0;
            assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-12, "{mean} {variance}");
        }
        for (x, from) in task.test.places.axis(0).iter().zip(&task.tested_from) {
            let reach = |batch: usize| learnt[54 * batch - 1];
            assert!(*from == 4 || *x <= reach(*from), "{x} {from}");
            assert!(*from == 1 || *x > reach(from - 1), "{x} {from}");
        }
        let other = protocol().task(&table, 2);
        assert_ne!(task.test.targets, other.test.targets);
        assert_eq!(task.test.targets, protocol().task(&table, 1).test.targets);
    }

    #[test]
    fn a_target_in_front_is_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path());
        let task = Protocol { target: 0, ..protocol() }.task(&table, 1);
        let learnt: Vec<f64> = task.batches.iter().flat_map(|batch| batch.places.axis(0).to_vec()).collect();
        assert!(learnt.is_sorted() && task.batches[0].places.dimension() == 2);
        assert!(!task.batches.iter().flat_map(|batch| batch.targets.clone()).is_sorted());
    }

    #[test]
    fn the_reference_is_at_0_the_noise_model_at_100_and_the_smallest_that_is_good_enough_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let runs = all(&table(folder.path()), 2);
        let summary = Summary::of(&methods(), &runs, 10.0);
        let of = |method: &str| summary.methods.iter().find(|relative| relative.method == method).unwrap();
        for (method, percent) in [("exact", 0.0), ("mean", 100.0)] {
            let found = of(method);
            for value in [found.rmse_percent, found.nlpd_percent] {
                assert!((value.mean - percent).abs() < 1e-9 && value.standard_deviation < 1e-9, "{found:?}");
            }
            assert!(found.rmse_percent_by_batch.iter().all(|value| (value - percent).abs() < 1e-9), "{found:?}");
        }
        assert_eq!(of("exact").inducing_points.mean, 216.0);
        println!("{summary:#?}");
        let by_rmse = |method: &str| {
            let point = summary.operating_points.iter().find(|p| p.method == method && p.metric == Metric::Rmse);
            point.unwrap().at.clone()
        };
        let best = by_rmse("vips").expect("2 % of the information is near to none");
        for delta in ["vips=0.02", "vips=0.5", "vips=0.9"] {
            let (found, best) = (of(delta), of(&best));
            let beaten = found.rmse_percent.mean > 10.0 || found.inducing_points.mean >= best.inducing_points.mean;
            assert!(best.rmse_percent.mean <= 10.0 && beaten, "{found:?} {best:?}");
        }
        // Readings that are hardly correlated with one another cannot hold a wave.
        assert!(of("oips=0.3").rmse_percent.mean > 10.0);
        assert_eq!(by_rmse("oips"), None);
    }

    #[test]
    fn jobs_do_not_change_a_bit() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path());
        assert_eq!(timeless(&all(&table, 1)), timeless(&all(&table, 2)));
    }

    #[test]
    fn a_table_too_small_for_its_batches_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(folder.path());
        let error = Protocol { batches: 230, ..protocol() }.check(&table).unwrap_err().to_string();
        assert!(error.ends_with("wave.csv: expected rows for 230 batches and their test, found 240 rows"), "{error}");
        assert!(Protocol { batches: 216, ..protocol() }.check(&table).is_ok());
    }
}
