//! Two interlocking crescents: a classification problem with a curved boundary.
//!
//! The points resemble the benchmark `banana`, which Bui et al. (2017, section 6 and appendix) stream from left to right to a
//! classifier, so that every batch is from another region.

use std::f64::consts::PI;

use magmap_tools::simulation::{Error, check, not_negative};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// The properties of the crescents.
#[derive(Clone, Debug, PartialEq)]
pub struct BananaOptions {
    /// Number of points.
    pub points: usize,
    /// Standard deviation of either coordinate around the middle line of a crescent, which has radius 1.
    pub noise: f64,
}

impl Default for BananaOptions {
    fn default() -> Self {
        Self { points: 400, noise: 0.25 }
    }
}

/// A point on one of the two crescents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Labelled {
    /// Coordinates.
    pub place: [f64; 2],
    /// Whether it is on the upper crescent.
    pub is_upper: bool,
}

/// Draws points on either crescent with equal probability, ordered by their first coordinate: a function of the options and the seed.
/// The upper crescent is half a circle around the origin, the lower one half a circle around (1, 0.4).
///
/// # Errors
/// Options that no crescents can have.
pub fn banana(options: &BananaOptions, seed: u64) -> Result<Vec<Labelled>, Error> {
    check("points", options.points > 0, "at least one", options.points)?;
    not_negative("noise", options.noise)?;
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut points: Vec<Labelled> = (0..options.points).map(|_| draw(options.noise, &mut generator)).collect();
    points.sort_by(|a, b| a.place[0].total_cmp(&b.place[0]));
    Ok(points)
}

fn draw(noise: f64, random: &mut impl Rng) -> Labelled {
    let is_upper = random.random_bool(0.5);
    let angle = PI * random.random::<f64>();
    let mut scattered = |value: f64| value + noise * Distribution::<f64>::sample(&StandardNormal, random);
    let place = [scattered(angle.cos()), scattered(angle.sin())];
    Labelled { place: if is_upper { place } else { [1.0 - place[0], 0.4 - place[1]] }, is_upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crescents_are_halves_of_circles_that_interlock() {
        let points = banana(&BananaOptions { points: 2000, noise: 0.0 }, 1).unwrap();
        for Labelled { place: [x, y], is_upper } in &points {
            let (x, y) = if *is_upper { (*x, *y) } else { (1.0 - x, 0.4 - y) };
            assert!(y >= 0.0 && (x.hypot(y) - 1.0).abs() < 1e-12, "{x} {y}");
        }
        let upper = points.iter().filter(|point| point.is_upper).count();
        // A binomial share of 2000 has a standard deviation of 22.
        assert!((900..1100).contains(&upper), "{upper}");
        // The end of each is inside the other: no straight line parts them.
        assert!(points.iter().any(|point| point.is_upper && point.place[0] > 0.9 && point.place[1] < 0.2));
        assert!(points.iter().any(|point| !point.is_upper && point.place[0] < 0.1 && point.place[1] > 0.2));
    }

    #[test]
    fn the_noise_has_its_standard_deviation() {
        let points = banana(&BananaOptions { points: 4000, noise: 0.1 }, 2).unwrap();
        let radii = points.iter().filter(|point| point.is_upper).map(|point| point.place[0].hypot(point.place[1]));
        let (count, squares) = radii.fold((0.0, 0.0), |(count, sum), r| (count + 1.0, sum + (r - 1.0).powi(2)));
        // The error of a standard deviation from 2000 samples is 0.0016; the circle's curvature adds 0.004.
        assert!((f64::sqrt(squares / count) - 0.1).abs() < 0.008, "{}", f64::sqrt(squares / count));
    }

    #[test]
    fn points_come_from_left_to_right_and_depend_on_the_seed_alone() {
        let points = banana(&BananaOptions::default(), 3).unwrap();
        assert!(points.is_sorted_by(|a, b| a.place[0] <= b.place[0]));
        assert_eq!(points, banana(&BananaOptions::default(), 3).unwrap());
        assert_ne!(points, banana(&BananaOptions::default(), 4).unwrap());
        let message = banana(&BananaOptions { points: 0, ..BananaOptions::default() }, 3).unwrap_err().to_string();
        assert_eq!(message, "simulation setting `points`: expected at least one, found 0");
        assert!(banana(&BananaOptions { noise: f64::NAN, ..BananaOptions::default() }, 3).is_err());
    }
}
