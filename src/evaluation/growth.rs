//! Long streams in three dimensions (VIPS paper, section D.5): how models grow where an exact one is out of reach.
//!
//! The paper names neither its function nor how noisy its readings are. Here the function is [`truth`], so smooth that few inducing
//! points hold it, and the noise has the variance that learning starts from. Tested is the function itself, at [`TESTS`] further
//! places that are drawn as those of the readings are, each from the batch on that it would have come in.

use super::contest::{Readings, Task};
use super::published;
use super::scenarios::{Scenario, sorted, stream};
use crate::config::{Config, Selection};
use crate::gp::points::Points;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Cauchy, Distribution};

/// Number of test places.
pub const TESTS: usize = 1000;

/// Variance of the noise of a reading.
pub const NOISE_VARIANCE: f64 = 0.2;

/// Where most readings are, on every axis.
const ROOM: [f64; 2] = [0.0, 20.0];
/// Where those of the Cauchy distribution are.
const CENTRE: [f64; 2] = [5.0, 15.0];
/// Where outliers are.
const BEYOND: [f64; 2] = [0.0, 40.0];

type Place = [f64; 3];

/// The function that is learnt: a wave of 25 along each axis, of variance 1 in all.
pub fn truth(place: &Place) -> f64 {
    (2.0f64 / 3.0).sqrt() * place.iter().map(|x| (0.25 * x).sin()).sum::<f64>()
}

/// Lengthscale 1, variance 1 and noise variance 0.2 are where learning starts, and 5000 inducing points are the most.
pub fn settings() -> Config {
    let config = published::settings(1.0, 1.0, NOISE_VARIANCE, 0.095);
    Config { selection: Selection { max_inducing_points: 5000, ..config.selection }, ..config }
}

/// A stream of readings and its test; the same for the same seed. The scenarios in three dimensions: uniform over a cube of 20 and
/// sorted by the first coordinate; the same, shuffled; nine tenths from a Cauchy distribution around its centre, of scale 1 along each
/// axis and cut off 5 from there, and then a tenth uniformly from a cube of 40.
pub fn task(scenario: Scenario, points: usize, batches: usize, seed: u64) -> Task {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let places = places(scenario, points, &mut random);
    let learnt = stream(places, batches, truth, NOISE_VARIANCE.sqrt(), &mut random);
    let tested = self::places(scenario, TESTS, &mut random);
    Task {
        batches: learnt,
        tested_from: (0..TESTS).map(|test| test * batches / TESTS + 1).collect(),
        test: Readings { places: Points::from_arrays(&tested), targets: tested.iter().map(truth).collect() },
    }
}

fn places(scenario: Scenario, count: usize, random: &mut impl Rng) -> Vec<Place> {
    let mut uniform = |count, [low, high]: [f64; 2]| -> Vec<Place> {
        (0..count).map(|_| std::array::from_fn(|_| random.random_range(low..high))).collect()
    };
    match scenario {
        Scenario::Expanding => sorted(uniform(count, ROOM)),
        Scenario::Shuffled => {
            let mut places = uniform(count, ROOM);
            places.shuffle(random);
            places
        }
        Scenario::Outliers => {
            let outliers = uniform(count / 10, BEYOND);
            let mut places: Vec<Place> =
                (outliers.len()..count).map(|_| std::array::from_fn(|_| near_the_centre(random))).collect();
            places.extend(outliers);
            places
        }
    }
}

fn near_the_centre(random: &mut impl Rng) -> f64 {
    let [low, high] = CENTRE;
    let distribution = Cauchy::new(0.5 * (low + high), 1.0).expect("a scale above zero");
    loop {
        let x = distribution.sample(random);
        if (low..=high).contains(&x) {
            return x;
        }
    }
}
