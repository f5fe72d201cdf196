//! Streams along a line whose function is known (VIPS paper, sections D.1 and D.2.1): three ways for data to come, and what the
//! size of a model has to do with its accuracy.
//!
//! The paper does not say how noisy its readings are: here their noise has a standard deviation of [`NOISE`]. Tested is the function
//! itself, on a grid, where somebody has been: a point counts from the batch on that has a reading within [`REACH`] of it.

use super::contest::{Readings, Task};
use super::published;
use crate::config::Config;
use crate::gp::points::Points;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Cauchy, Distribution, StandardNormal};

/// Standard deviation of the noise of a reading.
pub const NOISE: f64 = 0.3;

/// How near a test point lies to a reading, from when on it is tested.
pub const REACH: f64 = 0.1;

/// Distance between the test points of the scenarios.
const GRID: f64 = 0.02;

/// Where there are readings, but for those from the Cauchy distribution.
const LINE: [f64; 2] = [0.0, 10.0];

/// The function that is learnt.
pub fn truth(x: f64) -> f64 {
    (2.0 * x).sin() + (5.0 * x).cos()
}

/// Lengthscale 0.5, variance 1 and noise variance 0.5 are where learning starts; delta is 0.05.
pub fn settings() -> Config {
    published::settings(0.5, 1.0, 0.5, 0.05)
}

/// How data comes. Always in ten batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// 500 readings from 0 to 10, in their order: every batch is from where nobody has been.
    Expanding,
    /// 150 readings from 0 to 10, shuffled: every batch is from everywhere.
    Shuffled,
    /// 1000 readings from 4 to 6, then 300 from a Cauchy distribution around 5 of scale 1: nothing is new until outliers come.
    Outliers,
}

impl Scenario {
    /// In the order of the paper.
    pub const ALL: [Self; 3] = [Self::Expanding, Self::Shuffled, Self::Outliers];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expanding => "expanding",
            Self::Shuffled => "shuffled",
            Self::Outliers => "outliers",
        }
    }

    /// Its readings and its test; the same for the same seed.
    pub fn task(self, seed: u64) -> Task {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let batches = stream(self.places(&mut random), 10, |&[x]| truth(x), NOISE, &mut random);
        let readings = || batches.iter().flat_map(|batch| batch.places.axis(0));
        // Only what is in reach of a reading is ever tested; a reading far out must not ask for all points on the way to it.
        let mut grid: Vec<i64> = readings()
            .flat_map(|x| (((x - REACH) / GRID).ceil() as i64)..=(((x + REACH) / GRID).floor() as i64))
            .collect();
        grid.sort_unstable();
        grid.dedup();
        within_reach(batches, grid.into_iter().map(|step| step as f64 * GRID).collect())
    }

    fn places(self, random: &mut ChaCha8Rng) -> Vec<[f64; 1]> {
        match self {
            Self::Expanding => sorted(uniform(500, LINE, random)),
            Self::Shuffled => {
                let mut places = uniform(150, LINE, random);
                places.shuffle(random);
                places
            }
            Self::Outliers => {
                let outliers = Cauchy::new(5.0, 1.0).expect("a scale above zero");
                let mut places = uniform(1000, [4.0, 6.0], random);
                places.extend((0..300).map(|_| [outliers.sample(random)]));
                places
            }
        }
    }
}

/// What a fixed size costs: 1000 readings from 0 to 10 in their order, in four batches, and a test grid of 500 points.
pub fn sizes(seed: u64) -> Task {
    const POINTS: usize = 500;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let places = sorted(uniform(1000, LINE, &mut random));
    let batches = stream(places, 4, |&[x]| truth(x), NOISE, &mut random);
    let [low, high] = LINE;
    let step = (high - low) / (POINTS - 1) as f64;
    within_reach(batches, (0..POINTS).map(|point| low + step * point as f64).collect())
}

fn uniform(count: usize, [low, high]: [f64; 2], random: &mut impl Rng) -> Vec<[f64; 1]> {
    (0..count).map(|_| [random.random_range(low..high)]).collect()
}

/// By the first coordinate.
pub(super) fn sorted<const D: usize>(mut places: Vec<[f64; D]>) -> Vec<[f64; D]> {
    places.sort_by(|a, b| a[0].total_cmp(&b[0]));
    places
}

/// Noisy readings of a function at places, in batches as equal as can be.
pub(super) fn stream<const D: usize>(
    places: Vec<[f64; D]>,
    batches: usize,
    truth: impl Fn(&[f64; D]) -> f64,
    noise: f64,
    random: &mut impl Rng,
) -> Vec<Readings> {
    (0..batches)
        .map(|batch| {
            let places = &places[batch * places.len() / batches..(batch + 1) * places.len() / batches];
            let mut read = |place| truth(place) + noise * Distribution::<f64>::sample(&StandardNormal, random);
            Readings { targets: places.iter().map(&mut read).collect(), places: Points::from_arrays(places) }
        })
        .collect()
}

/// Tests the function on those points of a grid that come within reach of a reading, from then on.
fn within_reach(batches: Vec<Readings>, grid: Vec<f64>) -> Task {
    let first_in_reach = |point: f64| {
        let in_reach = |batch: &Readings| batch.places.axis(0).iter().any(|x| (x - point).abs() <= REACH);
        batches.iter().position(in_reach)
    };
    let tested: Vec<(f64, usize)> =
        grid.into_iter().filter_map(|point| Some((point, first_in_reach(point)? + 1))).collect();
    let points: Vec<[f64; 1]> = tested.iter().map(|(point, _)| [*point]).collect();
    Task {
        test: Readings {
            places: Points::from_arrays(&points),
            targets: tested.iter().map(|(point, _)| truth(*point)).collect(),
        },
        tested_from: tested.iter().map(|(_, batch)| *batch).collect(),
        batches,
    }
}
