//! Streams along a line whose function is known (VIPS paper, sections D.1 and D.2.1): three ways in which data arrive, and how
//! accuracy depends on the size of a model.
//!
//! The paper does not state the noise of its readings: here its standard deviation is [`NOISE`]. Tested is the function itself, on
//! a grid, where readings have been taken: a point counts from the first batch with a reading within [`REACH`] of it.

use super::comparison::{Task, in_batches};
use super::metrics::Readings;
use super::paper_settings;
use clap::ValueEnum;
use magmap::config::Config;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Cauchy, Distribution, StandardNormal};

/// Standard deviation of the noise of a reading.
pub const NOISE: f64 = 0.3;

/// Distance to the nearest reading within which a test point is tested.
pub const REACH: f64 = 0.1;

/// Distance between the test points of the scenarios.
const GRID: f64 = 0.02;

/// Range of the readings, but for those from the Cauchy distribution.
const LINE: [f64; 2] = [0.0, 10.0];

/// The function that is learnt.
pub fn truth(x: f64) -> f64 {
    (2.0 * x).sin() + (5.0 * x).cos()
}

/// Lengthscale 0.5, variance 1 and noise variance 0.5 are where learning starts; delta is 0.05.
pub fn settings() -> Config {
    paper_settings::settings(0.5, 1.0, 0.5, 0.05)
}

/// How data arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Every batch is from a new region.
    Expanding,
    /// Every batch is from everywhere.
    Shuffled,
    /// Every batch is from the same region until outliers come.
    Outliers,
}

impl Scenario {
    /// Readings in ten batches, and their test; the same for the same seed: 500 from 0 to 10, in their order; 150 from 0 to 10,
    /// shuffled; or 1000 from 4 to 6, then 300 from a Cauchy distribution around 5 of scale 1.
    pub fn task(self, seed: u64) -> Task {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let count = if self == Self::Expanding { 500 } else { 150 };
        let places = self.places(count, LINE, &mut random, |random| {
            let outliers = Cauchy::new(5.0, 1.0).expect("a scale above zero");
            let mut places = uniform(1000, [4.0, 6.0], random);
            places.extend((0..300).map(|_| [outliers.sample(random)]));
            places
        });
        let batches = stream(places, 10, |&[x]| truth(x), NOISE, &mut random);
        let readings = batches.iter().flat_map(|batch| batch.places.axis(0));
        // Only the points within reach of a reading: a reading far out must not ask for all points on the way to it.
        let mut grid: Vec<i64> = readings
            .flat_map(|x| (((x - REACH) / GRID).ceil() as i64)..=(((x + REACH) / GRID).floor() as i64))
            .collect();
        grid.sort_unstable();
        grid.dedup();
        within_reach(batches, grid.into_iter().map(|step| step as f64 * GRID))
    }

    /// Places in the order in which they are visited: uniform over a cube, unless there are outliers.
    pub(super) fn places<const D: usize>(
        self,
        count: usize,
        cube: [f64; 2],
        random: &mut ChaCha8Rng,
        with_outliers: impl FnOnce(&mut ChaCha8Rng) -> Vec<[f64; D]>,
    ) -> Vec<[f64; D]> {
        match self {
            Self::Expanding => sorted(uniform(count, cube, random)),
            Self::Shuffled => {
                let mut places = uniform(count, cube, random);
                places.shuffle(random);
                places
            }
            Self::Outliers => with_outliers(random),
        }
    }
}

/// The task that shows the cost of a fixed size: 1000 readings from 0 to 10 in their order, in four batches, and a test grid of 500 points.
pub fn sizes(seed: u64) -> Task {
    const POINTS: usize = 500;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let places = sorted(uniform(1000, LINE, &mut random));
    let batches = stream(places, 4, |&[x]| truth(x), NOISE, &mut random);
    let [low, high] = LINE;
    let step = (high - low) / (POINTS - 1) as f64;
    within_reach(batches, (0..POINTS).map(|point| low + step * point as f64))
}

pub(super) fn uniform<const D: usize>(count: usize, [low, high]: [f64; 2], random: &mut ChaCha8Rng) -> Vec<[f64; D]> {
    (0..count).map(|_| std::array::from_fn(|_| random.random_range(low..high))).collect()
}

/// By the first coordinate.
fn sorted<const D: usize>(mut places: Vec<[f64; D]>) -> Vec<[f64; D]> {
    places.sort_by(|a, b| a[0].total_cmp(&b[0]));
    places
}

/// Noisy readings of a function at places, in batches of nearly equal size.
pub(super) fn stream<const D: usize>(
    places: Vec<[f64; D]>,
    batches: usize,
    truth: impl Fn(&[f64; D]) -> f64,
    noise: f64,
    random: &mut ChaCha8Rng,
) -> Vec<Readings> {
    let mut read = |place| truth(place) + noise * Distribution::<f64>::sample(&StandardNormal, random);
    in_batches(&places, batches).map(|batch| batch.iter().map(|place| (*place, read(place))).collect()).collect()
}

/// Tests the function at those points of a grid that come within reach of a reading, from then on.
fn within_reach(batches: Vec<Readings>, grid: impl Iterator<Item = f64>) -> Task {
    let first_in_reach = |point: f64| {
        let in_reach = |batch: &Readings| batch.places.axis(0).iter().any(|x| (x - point).abs() <= REACH);
        batches.iter().position(in_reach)
    };
    let tested = grid.filter_map(|point| Some((([point], truth(point)), first_in_reach(point)? + 1)));
    let (test, tested_from): (Vec<_>, _) = tested.unzip();
    Task { tested_from, ..Task::new(batches, test.into_iter().collect()) }
}

#[cfg(test)]
mod tests {
    use super::super::comparison::Run;
    use super::*;
    use streaming_gp::kernel::Places;

    fn run(task: &Task, method: &str) -> Run {
        let run = task.run(&method.parse().unwrap(), &settings(), |_, _| ());
        assert_eq!((run.rejected.as_deref(), run.steps.len()), (None, task.batches.len()), "{method}");
        run
    }

    fn sizes_by_batch(scenario: Scenario, seed: u64) -> Vec<usize> {
        run(&scenario.task(seed), "vips=0.05").steps.iter().map(|step| step.inducing_points).collect()
    }

    fn places(task: &Task) -> Vec<Vec<f64>> {
        task.batches.iter().map(|batch| batch.places.axis(0).to_vec()).collect()
    }

    #[test]
    fn the_scenarios_have_the_papers_counts_ranges_and_order() {
        for (scenario, count) in [(Scenario::Expanding, 500), (Scenario::Shuffled, 150), (Scenario::Outliers, 1300)] {
            let task = scenario.task(7);
            assert!(task.batches.iter().all(|batch| batch.targets.len() == count / 10));
            assert_eq!((task.batches.len(), places(&task)), (10, places(&scenario.task(7))));
            assert_ne!(places(&task), places(&scenario.task(8)));
            let error = |batch: &Readings| -> f64 {
                batch.places.axis(0).iter().zip(&batch.targets).map(|(x, y)| (y - truth(*x)).powi(2)).sum()
            };
            let noise = (task.batches.iter().map(error).sum::<f64>() / count as f64).sqrt();
            // Four standard errors of a standard deviation, 1 / sqrt(2 n), at the fewest readings.
            assert!((noise / NOISE - 1.0).abs() < 4.0 / 300f64.sqrt(), "{noise}");
        }
        let expanding = places(&Scenario::Expanding.task(1)).concat();
        assert!(expanding.is_sorted() && expanding[0] >= 0.0 && expanding[499] < 10.0);
        for batch in places(&Scenario::Shuffled.task(1)) {
            let side = batch.iter().filter(|x| **x < 5.0).count();
            assert!(side > 0 && side < 15, "all on one side");
        }
        let outliers = places(&Scenario::Outliers.task(1)).concat();
        let (near, far) = outliers.split_at(1000);
        assert!(near.iter().all(|x| (4.0..6.0).contains(x)));
        // Half of a Cauchy distribution lies within its scale: 150 of 300, with a standard deviation of 9.
        let within = far.iter().filter(|x| (4.0..6.0).contains(*x)).count();
        assert!((114..=186).contains(&within), "{within}");
        assert!(far.iter().any(|x| (x - 5.0).abs() > 20.0), "no outlier");
    }

    #[test]
    fn tested_is_the_function_itself_where_somebody_has_been() {
        for task in Scenario::value_variants().iter().map(|scenario| scenario.task(3)).chain([sizes(3)]) {
            assert_eq!(task.tested_from.len(), task.test.targets.len());
            for (i, (x, from)) in task.test.places.axis(0).iter().zip(&task.tested_from).enumerate() {
                let distance = |batches: &[Readings]| {
                    let readings = batches.iter().flat_map(|batch| batch.places.axis(0));
                    readings.map(|reading| (reading - x).abs()).fold(f64::INFINITY, f64::min)
                };
                assert_eq!(task.test.targets[i], truth(*x));
                assert!(distance(&task.batches[..*from]) <= REACH && distance(&task.batches[..from - 1]) > REACH);
            }
        }
        let task = sizes(3);
        assert_eq!((task.batches.len(), task.test.places.len()), (4, 500));
        assert!(task.batches.iter().all(|batch| batch.targets.len() == 250));
    }

    #[test]
    fn an_expanding_stream_grows_about_linearly() {
        for seed in 1..=3 {
            let sizes = sizes_by_batch(Scenario::Expanding, seed);
            let (half, whole) = (sizes[4] as f64, sizes[9] as f64);
            // Exactly linear is 2; what levels off or explodes is far from it.
            assert!((1.6..2.4).contains(&(whole / half)), "{sizes:?}");
            assert!(sizes.windows(2).all(|pair| pair[1] > pair[0]), "{sizes:?}");
        }
    }

    #[test]
    fn a_shuffled_stream_levels_off() {
        for seed in 1..=3 {
            let sizes = sizes_by_batch(Scenario::Shuffled, seed);
            // The last third brings less than a tenth of what the first three batches did.
            assert!(10 * (sizes[9] - sizes[6]) < sizes[2], "{sizes:?}");
        }
    }

    #[test]
    fn a_narrow_stream_stays_small_until_outliers_come() {
        for seed in 1..=3 {
            let sizes = sizes_by_batch(Scenario::Outliers, seed);
            // Batch 8 is the first with readings from the Cauchy distribution.
            assert!(sizes[6] <= sizes[0] + 2 && sizes[9] > 3 * sizes[6], "{sizes:?}");
        }
    }

    #[test]
    fn enough_fixed_inducing_points_and_vips_match_the_exact_process_and_ten_do_not() {
        let task = sizes(1);
        let rmse = |method: &str| run(&task, method).steps.last().unwrap().rmse;
        let exact = rmse("exact");
        // Of the function's standard deviation, which is 1: a noise of 0.3 on a thousand readings leaves the exact process about 0.04.
        assert!(exact < 0.06, "{exact}");
        for method in ["fixed=30", "vips=0.05"] {
            assert!(rmse(method) < exact + 0.03, "{method}: {} {exact}", rmse(method));
        }
        assert!(rmse("fixed=10") > exact + 0.2, "{}", rmse("fixed=10"));
    }
}
