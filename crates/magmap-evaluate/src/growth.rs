//! Long streams in three dimensions (VIPS paper, section D.5): how models grow where an exact one is out of reach.
//!
//! The paper names neither its function nor the noise of its readings. Here the function is [`truth`], so smooth that few inducing
//! points represent it, and the noise has the variance that learning starts from. Tested is the function itself, at [`TESTS`] further
//! places drawn as those of the readings, each from the batch on that it would have come in.

use super::comparison::Task;
use super::paper_settings;
use super::scenarios::{Scenario, stream, uniform};
use magmap::config::{Config, Selection};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Cauchy, Distribution};

/// Number of test places.
pub const TESTS: usize = 1000;

/// Variance of the noise of a reading.
pub const NOISE_VARIANCE: f64 = 0.2;

/// Range of most readings, on every axis.
const ROOM: [f64; 2] = [0.0, 20.0];
/// Range of the readings that follow a Cauchy distribution.
const CENTRE: [f64; 2] = [5.0, 15.0];
/// Range of the outliers.
const BEYOND: [f64; 2] = [0.0, 40.0];

type Place = [f64; 3];

/// The function that is learnt: a wave of 4 pi along each axis, of variance 1 in all.
pub fn truth(place: &Place) -> f64 {
    (2.0f64 / 3.0).sqrt() * place.iter().map(|x| (0.5 * x).sin()).sum::<f64>()
}

/// Lengthscale 1, variance 1 and noise variance 0.2 are where learning starts, and 5000 inducing points are the most.
pub fn settings() -> Config {
    let config = paper_settings::settings(1.0, 1.0, NOISE_VARIANCE, 0.095);
    Config { selection: Selection { max_inducing_points: 5000, ..config.selection }, ..config }
}

/// A stream of readings and its test; the same for the same seed. The scenarios in three dimensions: uniform over a cube of 20 and
/// sorted by the first coordinate; the same, shuffled; nine tenths from a Cauchy distribution around its centre, of scale 1 along each
/// axis and cut off 5 from there, and then a tenth uniformly from a cube of 40.
pub fn task(scenario: Scenario, points: usize, batches: usize, seed: u64) -> Task {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let places =
        |count, random: &mut ChaCha8Rng| scenario.places(count, ROOM, random, |random| outliers(count, random));
    let learnt = stream(places(points, &mut random), batches, truth, NOISE_VARIANCE.sqrt(), &mut random);
    let test = places(TESTS, &mut random).into_iter().map(|place| (place, truth(&place))).collect();
    Task { tested_from: (0..TESTS).map(|test| test * batches / TESTS + 1).collect(), ..Task::new(learnt, test) }
}

fn outliers(count: usize, random: &mut ChaCha8Rng) -> Vec<Place> {
    let outliers = uniform(count / 10, BEYOND, random);
    let [low, high] = CENTRE;
    let distribution = Cauchy::new(0.5 * (low + high), 1.0).expect("a scale above zero");
    let mut coordinates = distribution.sample_iter(random).filter(|x| (low..=high).contains(x));
    let mut near_the_centre = || coordinates.next().expect("it never ends");
    let mut places: Vec<Place> = (outliers.len()..count).map(|_| std::array::from_fn(|_| near_the_centre())).collect();
    places.extend(outliers);
    places
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use streaming_gp::kernel::Places;

    fn axes(task: &Task, batches: std::ops::Range<usize>) -> Vec<f64> {
        task.batches[batches]
            .iter()
            .flat_map(|batch| (0..3).flat_map(|axis| batch.places.axis(axis).to_vec()))
            .collect()
    }

    #[test]
    fn the_streams_have_the_papers_counts_ranges_and_order() {
        for &scenario in Scenario::value_variants() {
            let task = task(scenario, 50_000, 50, 1);
            assert_eq!(task.batches.len(), 50);
            assert!(task.batches.iter().all(|batch| batch.places.len() == 1000 && batch.places.dimension() == 3));
            assert_eq!((task.test.places.len(), task.tested_from[0], task.tested_from[TESTS - 1]), (TESTS, 1, 50));
            let within = |batches, low: f64, high: f64| axes(&task, batches).iter().all(|x| (low..=high).contains(x));
            match scenario {
                Scenario::Expanding => {
                    let firsts: Vec<f64> =
                        task.batches.iter().flat_map(|batch| batch.places.axis(0).to_vec()).collect();
                    assert!(within(0..50, 0.0, 20.0) && firsts.is_sorted());
                }
                // A thousand places of a uniform distribution reach to within a hundredth of its ends.
                Scenario::Shuffled => {
                    assert!(within(0..50, 0.0, 20.0) && !within(0..1, 0.2, 20.0) && !within(0..1, 0.0, 19.8));
                }
                Scenario::Outliers => {
                    assert!(within(0..45, 5.0, 15.0) && within(45..50, 0.0, 40.0) && !within(45..46, 0.0, 39.0));
                    // A Cauchy distribution cut off at 5 scales has 57 % of its mass within one: 2 / pi * atan(1), over atan(5).
                    let near = axes(&task, 0..45).iter().filter(|x| (*x - 10.0).abs() < 1.0).count() as f64;
                    assert!((near / 135_000.0 - 0.572).abs() < 0.01, "{near}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_stream_in_three_dimensions_stays_small_until_outliers_come() {
        let task = task(Scenario::Outliers, 2000, 10, 1);
        let run = |method: &str| task.run(&method.parse().unwrap(), &settings(), |_, _| ());
        let vips = run("vips=0.095");
        let sizes: Vec<usize> = vips.steps.iter().map(|step| step.inducing_points).collect();
        assert!(sizes[8] < sizes[0] + 20 && sizes[9] > sizes[8] + 40, "{sizes:?}");
        let mean = run("mean");
        // Where readings are dense; what 200 outliers tell of a cube of 40 is little.
        let (found, baseline) = (vips.steps[8].rmse, mean.steps[8].rmse);
        assert!(found < 0.2 * baseline, "{found} {baseline}");
    }

    #[test]
    fn the_cap_on_inducing_points_holds_for_conditional_variance() {
        let mut config = settings();
        assert_eq!(config.selection.max_inducing_points, 5000);
        config.selection.max_inducing_points = 60;
        let run = task(Scenario::Shuffled, 400, 4, 1).run(&"conditional_variance".parse().unwrap(), &config, |_, _| ());
        assert_eq!(run.capped(), 4);
        assert!(run.steps.iter().all(|step| step.inducing_points == 60));
    }
}
