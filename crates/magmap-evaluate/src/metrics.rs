//! How good predictions are.

use magmap::field::engine::FieldPosterior;
use magmap::field::map::FieldMap;
use serde::Serialize;
use std::f64::consts::TAU;
use streaming_gp::{Axes, Points, SensorPose};

/// Half the width of the interval that holds 95 % of a normal distribution, in standard deviations.
pub(crate) const NORMAL_95: f64 = 1.96;

/// Places and what was measured there.
#[derive(Clone, Debug)]
pub struct Readings {
    /// Places, on a map in metres.
    pub places: Points,
    /// Measured values, on a map the field strength in microtesla.
    pub targets: Vec<f64>,
}

impl<const D: usize> FromIterator<([f64; D], f64)> for Readings {
    fn from_iter<I: IntoIterator<Item = ([f64; D], f64)>>(readings: I) -> Self {
        let (places, targets): (Vec<[f64; D]>, _) = readings.into_iter().unzip();
        Self { places: Points::from_arrays(&places), targets }
    }
}

/// Points of the plane, one by one.
pub fn in_the_plane(points: &Points) -> impl Iterator<Item = [f64; 2]> {
    points.axis(0).iter().zip(points.axis(1)).map(|(&x, &y)| [x, y])
}

/// A normal distribution for each place: what would be measured there, noise included.
#[derive(Clone, Debug, Default)]
pub struct Predictions {
    /// Means, in the unit of the targets.
    pub means: Vec<f64>,
    /// Variances, in that unit squared.
    pub variances: Vec<f64>,
}

impl Predictions {
    /// The predictions of a posterior.
    pub fn of(posterior: &FieldPosterior, places: &Points) -> Self {
        let (means, mut variances) = posterior.predict(places);
        variances.iter_mut().for_each(|variance| *variance += posterior.model.noise_variance());
        Self { means, variances }
    }

    /// The strengths that a sensor would read in these poses: on a map of three axes with the learnt hard iron.
    pub fn of_map(map: &FieldMap, poses: &[SensorPose]) -> Self {
        let places: Vec<[f64; 2]> = poses.iter().map(|&SensorPose { position: [x, y, _], .. }| [x, y]).collect();
        let (means, mut variances): (Vec<f64>, Vec<f64>) = match map.readings(poses) {
            Some(axes) => axes.iter().map(Axes::strength).unzip(),
            None => map.predict(&places, f64::INFINITY),
        };
        variances.iter_mut().zip(map.noise_variances(&places)).for_each(|(variance, noise)| *variance += noise);
        Self { means, variances }
    }

    /// Appends all of `other`.
    pub fn extend(&mut self, other: &Predictions) {
        self.means.extend_from_slice(&other.means);
        self.variances.extend_from_slice(&other.variances);
    }

    /// How good they are on the targets whose index `keep` accepts.
    pub fn score(&self, targets: &[f64], keep: impl Fn(usize) -> bool) -> Scores {
        let mut scores = Scores::default();
        for i in (0..targets.len()).filter(|&i| keep(i)) {
            let (error, variance) = (targets[i] - self.means[i], self.variances[i]);
            scores.samples += 1;
            scores.rmse += error * error;
            scores.nlpd += 0.5 * ((TAU * variance).ln() + error * error / variance);
            scores.coverage += f64::from(u8::from(error.abs() < NORMAL_95 * variance.sqrt()));
            scores.predictive_sd += variance.sqrt();
        }
        let count = scores.samples as f64;
        Scores {
            samples: scores.samples,
            rmse: (scores.rmse / count).sqrt(),
            nlpd: scores.nlpd / count,
            coverage: scores.coverage / count,
            predictive_sd: scores.predictive_sd / count,
        }
    }
}

/// How good predictions are on average; not a number where there was no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// Number of samples.
    pub samples: usize,
    /// Root of the mean squared error, in microtesla.
    pub rmse: f64,
    /// Mean negative log predictive density, noise included, in nats.
    pub nlpd: f64,
    /// Share of the samples within the central 95 % of their distribution.
    pub coverage: f64,
    /// Mean standard deviation of the predictions, noise included, in microtesla.
    pub predictive_sd: f64,
}

/// For each of some fixed points of the plane, the nearest of all readings seen so far.
#[derive(Clone, Debug)]
pub struct Nearest {
    squared_distances: Vec<f64>,
    /// The reading nearest to each point: the simplest of all maps.
    pub targets: Vec<f64>,
}

impl Nearest {
    /// For this number of points, with nothing seen yet.
    pub fn new(points: usize) -> Self {
        Self { squared_distances: vec![f64::INFINITY; points], targets: vec![f64::NAN; points] }
    }

    /// Adds what was seen.
    pub fn see(&mut self, points: &Points, seen: &Readings) {
        let nearest = self.squared_distances.iter_mut().zip(&mut self.targets);
        for (point, (nearest, target)) in in_the_plane(points).zip(nearest) {
            for (place, seen) in in_the_plane(&seen.places).zip(&seen.targets) {
                let square = (point[0] - place[0]).powi(2) + (point[1] - place[1]).powi(2);
                if square < *nearest {
                    (*nearest, *target) = (square, *seen);
                }
            }
        }
    }

    /// Whether something was seen within `radius` metres of a point.
    pub fn within(&self, point: usize, radius: f64) -> bool {
        self.squared_distances[point] <= radius * radius
    }
}

/// The root mean squared difference of two equally long series.
pub fn rmse(found: impl Iterator<Item = f64>, expected: &[f64]) -> f64 {
    let squares: f64 = found.zip(expected).map(|(found, expected)| (found - expected).powi(2)).sum();
    (squares / expected.len() as f64).sqrt()
}

/// A quantile: the smallest number that at least this fraction of all numbers do not exceed. NaN without numbers.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The median and the range of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// The spread of some numbers; all NaN without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self { median: 0.5 * (at(last / 2) + at(last - last / 2)), least: at(0), greatest: at(last) }
    }
}

/// The mean and the standard deviation of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanAndDeviation {
    /// The mean.
    pub mean: f64,
    /// The root of the mean squared deviation from it.
    pub standard_deviation: f64,
}

impl MeanAndDeviation {
    /// Mean and deviation of some numbers; NaN without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let mean_of = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let mean = mean_of(&values);
        let squares: Vec<f64> = values.iter().map(|value| (value - mean).powi(2)).collect();
        Self { mean, standard_deviation: mean_of(&squares).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_their_definitions() {
        let predictions = Predictions { means: vec![1.0, 2.0, 50.0], variances: vec![4.0, 1.0, 1.0] };
        let scores = predictions.score(&[2.0, 5.0, 0.0], |i| i < 2);
        assert_eq!(scores.samples, 2);
        assert!((scores.rmse - 5.0f64.sqrt()).abs() < 1e-12);
        // -log N(1; 0, 4) and -log N(3; 0, 1)
        let expected = 0.5 * ((0.5 * ((TAU * 4.0).ln() + 0.25)) + 0.5 * (TAU.ln() + 9.0));
        assert!((scores.nlpd - expected).abs() < 1e-12);
        assert_eq!(scores.coverage, 0.5);
        assert_eq!(scores.predictive_sd, 1.5);
        assert!(predictions.score(&[0.0; 3], |_| false).rmse.is_nan());
    }

    #[test]
    fn the_nearest_is_the_nearest_of_all_seen() {
        let points = Points::from_arrays(&[[0.0, 0.0], [5.0, 0.0]]);
        let mut nearest = Nearest::new(2);
        nearest.see(&points, &[([1.0, 0.0], 10.0)].into_iter().collect());
        nearest.see(&points, &[([4.5, 0.0], 20.0), ([0.0, 3.0], 30.0)].into_iter().collect());
        assert_eq!(nearest.targets, [10.0, 20.0]);
        assert!(nearest.within(0, 1.0) && !nearest.within(0, 0.99));
        assert!(nearest.within(1, 0.5) && !nearest.within(1, 0.49));
    }

    #[test]
    fn the_standard_deviation_is_the_root_of_the_mean_squared_deviation() {
        let found = MeanAndDeviation::of([2.0, 4.0, 9.0]);
        assert!((found.mean - 5.0).abs() < 1e-12 && (found.standard_deviation - (26.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!(MeanAndDeviation::of([]).mean.is_nan());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([3.0, 1.0, 10.0, 2.0]);
        assert_eq!((spread.median, spread.least, spread.greatest), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of([7.0]).median, 7.0);
        assert!(Spread::of([]).median.is_nan());
    }
}
