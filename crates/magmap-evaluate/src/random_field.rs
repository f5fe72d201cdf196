//! A world drawn from a Gaussian process: the truth is exactly what the model assumes, so its calibration can be judged.

use magmap::sensing::reading::MagneticField;
use magmap_tools::simulation::{Error, World, check, not_negative, positive};
use nalgebra::{Point3, Vector2, Vector3};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{ChiSquared, Distribution, StandardNormal};

/// The properties of a random field.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomFieldOptions {
    /// The field strength it varies around, in microtesla. Several standard deviations above zero: a strength is never negative.
    pub mean: f64,
    /// Standard deviation, in microtesla.
    pub standard_deviation: f64,
    /// Lengthscale of the Matérn 5/2 covariance, in metres.
    pub lengthscale: f64,
    /// Number of its waves: the more, the nearer to a Gaussian process, and the slower.
    pub waves: usize,
}

impl Default for RandomFieldOptions {
    fn default() -> Self {
        Self { mean: 50.0, standard_deviation: 10.0, lengthscale: 0.7, waves: 500 }
    }
}

/// A vertical field whose strength is a draw from a Gaussian process over x and y, with a Matérn 5/2 covariance, around a
/// constant.
///
/// The draw is a sum of random waves (Rahimi and Recht, Random Features for Large-Scale Kernel Machines, 2007) whose
/// frequencies follow the spectral density of the covariance, a multivariate Student's t with 5 degrees of freedom
/// (Rasmussen and Williams, Gaussian Processes for Machine Learning, eq. 4.15).
#[derive(Clone, Debug, PartialEq)]
pub struct RandomField {
    mean: f64,
    waves: Vec<Wave>,
}

#[derive(Clone, Debug, PartialEq)]
struct Wave {
    /// In radians per metre.
    frequency: Vector2<f64>,
    /// In microtesla.
    cosine: f64,
    /// In microtesla.
    sine: f64,
}

impl RandomField {
    /// Draws a field; the same for the same options and seed.
    pub fn random(options: &RandomFieldOptions, seed: u64) -> Result<Self, Error> {
        check("mean", options.mean.is_finite(), "a finite number", options.mean)?;
        not_negative("standard_deviation", options.standard_deviation)?;
        positive("lengthscale", options.lengthscale)?;
        check("waves", options.waves > 0, "at least one", options.waves)?;
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let amplitude = options.standard_deviation / (options.waves as f64).sqrt();
        let waves = (0..options.waves).map(|_| wave(amplitude, options.lengthscale, &mut generator)).collect();
        Ok(Self { mean: options.mean, waves })
    }
}

fn wave(amplitude: f64, lengthscale: f64, random: &mut impl Rng) -> Wave {
    // Student's t: a normal vector over the root of an independent chi-squared number divided by its degrees of freedom.
    const DEGREES_OF_FREEDOM: f64 = 5.0;
    let chi_squared: f64 = ChiSquared::new(DEGREES_OF_FREEDOM).expect("degrees of freedom above zero").sample(random);
    let spread = (chi_squared / DEGREES_OF_FREEDOM).sqrt();
    let mut normal = || -> f64 { StandardNormal.sample(random) };
    Wave {
        frequency: Vector2::new(normal(), normal()) / (spread * lengthscale),
        cosine: amplitude * normal(),
        sine: amplitude * normal(),
    }
}

impl World for RandomField {
    fn field_at(&self, position: &Point3<f64>) -> MagneticField {
        MagneticField::from_microtesla(Vector3::new(0.0, 0.0, -self.strength_at(position)))
    }

    fn strength_at(&self, position: &Point3<f64>) -> f64 {
        let anomaly = |wave: &Wave| {
            let (sine, cosine) = wave.frequency.dot(&position.coords.xy()).sin_cos();
            wave.cosine * cosine + wave.sine * sine
        };
        (self.mean + self.waves.iter().map(anomaly).sum::<f64>()).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deviations from the mean at `places`, one row per independent world.
    fn deviations(places: &[Point3<f64>], worlds: u64) -> Vec<Vec<f64>> {
        let options = RandomFieldOptions { mean: 500.0, standard_deviation: 10.0, lengthscale: 0.8, waves: 100 };
        let world = |seed| {
            let field = RandomField::random(&options, seed).unwrap();
            places.iter().map(|place| field.strength_at(place) - 500.0).collect()
        };
        (0..worlds).map(world).collect()
    }

    #[test]
    fn standard_deviation_and_correlation_are_those_of_the_covariance() {
        const WORLDS: f64 = 3000.0;
        let root_5 = 5f64.sqrt();
        let matern_52 = |r: f64| (1.0 + root_5 * r + 5.0 / 3.0 * r * r) * (-root_5 * r).exp();
        let origin = Point3::new(1.0, 2.0, 0.0);
        let lengthscales = [0.5, 1.0, 2.0];
        let directions = [Vector3::x(), Vector3::y(), Vector3::new(0.6, 0.8, 0.0)];
        let others = lengthscales.iter().zip(directions).map(|(r, direction)| origin + direction * (r * 0.8));
        let places: Vec<_> = std::iter::once(origin).chain(others).collect();
        let rows = deviations(&places, WORLDS as u64);

        let moment = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>() / WORLDS;
        // Four standard errors of an estimated variance and correlation; waves of random amplitude have a little more
        // kurtosis than a Gaussian.
        assert!((moment(0, 0) / 100.0 - 1.0).abs() < 4.0 * (2.1 / WORLDS).sqrt(), "{}", moment(0, 0));
        for (i, r) in lengthscales.into_iter().enumerate() {
            let expected = matern_52(r);
            let found = moment(0, i + 1) / (moment(0, 0) * moment(i + 1, i + 1)).sqrt();
            let tolerance = 4.0 * (1.0 - expected * expected) / WORLDS.sqrt();
            assert!((found - expected).abs() < tolerance, "at {r} lengthscales: {found}, expected {expected}");
        }
        let mean = rows.iter().map(|row| row[0]).sum::<f64>() / WORLDS;
        assert!(mean.abs() < 4.0 * 10.0 / WORLDS.sqrt(), "{mean}");
    }

    #[test]
    fn the_field_has_the_strength_and_height_plays_no_part() {
        let field = RandomField::random(&RandomFieldOptions::default(), 1).unwrap();
        let low = Point3::new(1.0, 2.0, 0.0);
        assert_eq!(field.field_at(&low).strength(), field.strength_at(&low));
        assert_eq!(field.strength_at(&low), field.strength_at(&Point3::new(1.0, 2.0, 0.7)));
        assert_ne!(field.strength_at(&low), field.strength_at(&Point3::new(1.1, 2.0, 0.0)));
    }

    #[test]
    fn a_field_is_its_seed_and_impossible_ones_are_rejected() {
        let options = RandomFieldOptions::default();
        let field = RandomField::random(&options, 1).unwrap();
        assert_eq!(field, RandomField::random(&options, 1).unwrap());
        assert_ne!(field, RandomField::random(&options, 2).unwrap());
        let options = RandomFieldOptions { lengthscale: 0.0, ..options };
        let message = RandomField::random(&options, 1).unwrap_err().to_string();
        assert!(message.contains("`lengthscale`") && message.contains("found 0.0"), "{message}");
    }
}
