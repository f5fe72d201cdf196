//! Readings averaged along the path: one observation per `spacing` metres.
//!
//! Readings taken fifty times a second by a slow robot are not independent; learning from all of them makes a map worse (its
//! lengthscale collapses) and slower.
//!
//! An average hides an outlier among its readings, where a heavy-tailed model no longer recognizes it. So where the model's
//! likelihood is Student's t, the readings of a cell are weighted, too.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use crate::config;
use crate::field;
use crate::mapping::odometer::Odometer;
use crate::mapping::robust_mean::{Mean, RobustMean, Sample, SampledFields};
use crate::sensing::reading::{LocatedReading, MagneticField, Observation, Stamp};
use streaming_gp::Likelihood;

/// Averages the readings of each cell along the path. A reading's cell is `floor(travelled / spacing + offset)`, with the length of the
/// path as an [`Odometer`] with chords of half the spacing measures it; a robot that stands still stays in its cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Averager {
    /// Length of a cell, in metres.
    pub spacing: f64,
    offset: f64,
    odometer: Odometer,
    open: Option<Cell>,
    /// The robust mean, if outliers are to be downweighted.
    #[serde(skip)]
    robust: Option<RobustMean>,
    #[serde(default, skip_serializing_if = "SampledFields::is_empty")]
    kept: SampledFields,
}

impl Averager {
    /// An averager whose first cell begins at the first reading.
    pub fn new(settings: &config::Averaging) -> Self {
        Self::with_offset(settings, 0.0)
    }

    /// An averager whose first cell is shorter by `fraction` of a cell (at least 0 and below 1), to measure how much a result
    /// depends on where the cells lie.
    pub fn with_offset(settings: &config::Averaging, fraction: f64) -> Self {
        let odometer = Odometer::new(settings.spacing / 2.0);
        let (open, robust, kept) = (None, None, SampledFields::default());
        Self { spacing: settings.spacing, offset: fraction, odometer, open, robust, kept }
    }

    /// Chooses the kind of average that suits the likelihood: a mean, or a robust mean (Student's t).
    pub fn configure(&mut self, model: &config::Model) {
        self.robust = match field::engine::likelihood(model) {
            Likelihood::Gaussian => None,
            Likelihood::StudentT(likelihood) => Some(RobustMean { likelihood, least_square: model.initial.noise }),
        };
    }

    /// Takes the next reading and returns the observation it completes: that of the cell before, when the reading begins a
    /// new one; that of the reading itself where nothing is averaged (a spacing of 0).
    pub fn push(&mut self, reading: &LocatedReading) -> Option<Observation> {
        if self.spacing <= 0.0 {
            return Some(alone(reading));
        }
        let number = (self.odometer.advance(reading.position) / self.spacing + self.offset).floor() as i64;
        match &mut self.open {
            // The odometer may decrease slightly: a cell once left stays closed.
            Some(cell) if number <= cell.number => {
                if self.robust.is_some() {
                    self.kept.add(Sample::of(reading), cell.mean.readings);
                }
                cell.add(reading);
                None
            }
            _ => {
                let completed = self.close();
                self.open = Some(Cell::begin(number, reading));
                if self.robust.is_some() {
                    self.kept.begin(Sample::of(reading));
                }
                completed
            }
        }
    }

    /// Closes the open cell, if any reading is in it. The next reading begins a new one.
    pub fn close(&mut self) -> Option<Observation> {
        let mean = self.open.take()?.mean;
        let robust = self.robust.and_then(|robust| robust.of(&self.kept));
        self.kept.clear();
        Some(match robust {
            Some(Mean { position, field, strength }) => Observation { position, field, strength, ..mean },
            None => mean,
        })
    }
}

/// The open cell. Its running means, unlike sums, keep their precision however many readings there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cell {
    /// Number of the cell along the path.
    number: i64,
    /// Stamp of its first reading.
    entered: Stamp,
    /// Position of its first reading.
    entry: Point3<f64>,
    mean: Observation,
}

impl Cell {
    fn begin(number: i64, reading: &LocatedReading) -> Self {
        Self { number, entered: reading.stamp, entry: reading.position, mean: alone(reading) }
    }

    fn add(&mut self, reading: &LocatedReading) {
        let last = alone(reading);
        let readings = self.mean.readings.saturating_add(1);
        let weight = 1.0 / f64::from(readings);
        let (axes, mean) = (last.field.microtesla(), self.mean.field.microtesla());
        let seconds = reading.stamp.seconds_since(self.entered);
        let speed = if seconds > 0.0 { (reading.position - self.entry).norm() / seconds } else { 0.0 };
        self.mean = Observation {
            position: self.mean.position + (last.position - self.mean.position) * weight,
            orientation: self.mean.orientation + (last.orientation - self.mean.orientation) * weight,
            field: MagneticField::from_microtesla(mean + (axes - mean) * weight),
            strength: self.mean.strength + (last.strength - self.mean.strength) * weight,
            speed,
            readings,
            ..last
        };
    }
}

/// The observation of a single reading.
fn alone(reading: &LocatedReading) -> Observation {
    Observation {
        stamp: reading.stamp,
        position: reading.position,
        orientation: reading.orientation.to_rotation_matrix().into_inner(),
        speed: 0.0,
        field: reading.field,
        strength: reading.field.strength(),
        readings: 1,
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{UnitQuaternion, Vector3};
    use proptest::prelude::*;

    use super::*;

    fn located(index: usize, x: f64, field: Vector3<f64>) -> LocatedReading {
        LocatedReading {
            orientation: UnitQuaternion::identity(),
            stamp: Stamp::from_nanoseconds(index as i64 * 20_000_000),
            position: Point3::new(x, 0.0, 0.0),
            field: MagneticField::from_microtesla(field),
        }
    }

    fn average(spacing: f64, offset: f64, readings: &[LocatedReading]) -> Vec<Observation> {
        let mut averager = Averager::with_offset(&config::Averaging { spacing }, offset);
        let mut observations: Vec<_> = readings.iter().filter_map(|reading| averager.push(reading)).collect();
        observations.extend(averager.close());
        observations
    }

    #[test]
    fn cells_are_as_long_as_the_spacing_and_hold_the_means() {
        // 0, 1, 2, ... 11 cm; a cell each from 0, 5, 10 cm on (half a millimetre in, clear of rounding).
        let readings: Vec<_> = (0..12)
            .map(|index| {
                let x = if index == 0 { 0.0 } else { 0.01 * index as f64 + 0.0005 };
                located(index, x, Vector3::new(index as f64, 0.0, 40.0))
            })
            .collect();
        let observations = average(0.05, 0.0, &readings);
        let counts: Vec<u32> = observations.iter().map(|observation| observation.readings).collect();
        assert_eq!(counts, [5, 5, 2]);
        let second = &observations[1];
        assert!((second.position.x - 0.0705).abs() < 1e-12);
        assert!((second.field.microtesla().x - 7.0).abs() < 1e-12);
        assert_eq!(second.stamp, readings[9].stamp);
    }

    #[test]
    fn the_offset_shortens_the_first_cell_only() {
        let readings: Vec<_> = (0..20).map(|index| located(index, 0.01 * index as f64, Vector3::x())).collect();
        // 0.5 shifts the borders to 2.5, 7.5, 12.5 and 17.5 cm.
        let counts: Vec<u32> = average(0.05, 0.5, &readings).iter().map(|observation| observation.readings).collect();
        assert_eq!(counts, [3, 5, 5, 5, 2]);
    }

    #[test]
    fn strength_is_the_mean_of_strengths_not_the_strength_of_the_mean() {
        let turning = [Vector3::new(50.0, 0.0, 0.0), Vector3::new(-50.0, 0.0, 0.0)];
        let readings: Vec<_> = turning.iter().enumerate().map(|(index, field)| located(index, 0.0, *field)).collect();
        let observation = average(0.05, 0.0, &readings)[0];
        assert_eq!(observation.strength, 50.0);
        assert_eq!(observation.field.strength(), 0.0);
    }

    #[test]
    fn no_spacing_keeps_every_reading() {
        let readings: Vec<_> = (0..7).map(|index| located(index, 0.0, Vector3::x() * index as f64)).collect();
        let observations = average(0.0, 0.0, &readings);
        assert_eq!(observations.len(), 7);
        for (observation, reading) in observations.iter().zip(&readings) {
            assert_eq!(observation.field, reading.field);
            assert_eq!((observation.stamp, observation.readings), (reading.stamp, 1));
        }
    }

    #[test]
    fn hours_of_standing_still_with_a_jittering_position_are_one_exact_observation() {
        let mut averager = Averager::new(&config::Averaging { spacing: 0.05 });
        let hours = 1_000_000;
        for index in 0..hours {
            let jitter = if index % 2 == 0 { 0.001 } else { -0.001 };
            let reading = located(index, 1e3 + jitter, Vector3::new(0.0, 0.0, 50.0 + 1e3 * jitter));
            assert_eq!(averager.push(&reading), None);
        }
        let observation = averager.close().unwrap();
        assert_eq!(observation.readings as usize, hours);
        // Rounding of a running mean grows like the square root of the number of terms at worst.
        assert!((observation.strength - 50.0).abs() < 1e-9, "{}", observation.strength);
        assert!((observation.position.x - 1e3).abs() < 1e-9, "{}", observation.position.x);
        assert_eq!(averager.close(), None);
    }

    #[test]
    fn jitter_across_a_border_does_not_open_new_cells() {
        // A border is at 5 cm.
        let jitter = (0..100).map(|index| if index % 2 == 0 { 0.052 } else { 0.048 });
        let xs: Vec<f64> = [0.0, 0.02, 0.04].into_iter().chain(jitter).collect();
        let readings: Vec<_> = xs.iter().enumerate().map(|(index, x)| located(index, *x, Vector3::x())).collect();
        let counts: Vec<u32> = average(0.05, 0.0, &readings).iter().map(|observation| observation.readings).collect();
        assert_eq!(counts, [3, 100]);
    }

    #[test]
    fn the_count_saturates() {
        let mut cell = Cell::begin(0, &located(0, 0.0, Vector3::x()));
        cell.mean.readings = u32::MAX;
        cell.add(&located(1, 0.0, Vector3::x()));
        assert_eq!(cell.mean.readings, u32::MAX);
        assert_eq!(cell.mean.strength, 1.0);
    }

    /// An averager that downweights outliers.
    fn robust() -> Averager {
        let mut averager = Averager::new(&config::Averaging { spacing: 0.05 });
        averager.configure(&config::Model { likelihood: config::Likelihood::StudentT, ..config::Model::default() });
        averager
    }

    #[test]
    fn outliers_in_a_cell_do_not_move_a_robust_average() {
        // Up to two of five, of any size; without them the mean is 50 and each is within 0.2 of it.
        let readings = |outliers: &[f64]| -> Vec<LocatedReading> {
            let strengths = [49.8, 50.1, 50.0, 49.9, 50.2];
            let strength =
                |index: usize| outliers.get(index / 2).copied().filter(|_| index % 2 == 1).unwrap_or(strengths[index]);
            (0..5).map(|index| located(index, 0.005 * index as f64, Vector3::z() * strength(index))).collect()
        };
        for outliers in [&[][..], &[1000.0], &[90.0], &[1000.0, 20.0], &[1000.0, 1000.0]] {
            let mut averager = robust();
            assert!(readings(outliers).iter().all(|reading| averager.push(reading).is_none()));
            let observation = averager.close().unwrap();
            // The scale is that of the noise that learning starts from, 1.4.
            assert!((observation.strength - 50.0).abs() < 0.25, "{outliers:?}: {}", observation.strength);
            assert!((observation.field.microtesla() - Vector3::z() * 50.0).norm() < 0.25, "{outliers:?}");
            assert!((0.004..0.016).contains(&observation.position.x), "{outliers:?}: {}", observation.position.x);
            assert_eq!(observation.readings, 5);
        }
        let corrupted = average(0.05, 0.0, &readings(&[1000.0]))[0];
        assert!(corrupted.strength > 200.0, "a mean is moved: {}", corrupted.strength);
    }

    #[test]
    fn a_robust_average_of_hours_in_one_cell_is_that_of_readings_spread_over_them() {
        let mut averager = robust();
        let hours = 100_000;
        for index in 0..hours {
            // Slowly from 40 to 60, with an outlier in seven.
            let strength = if index % 7 == 3 { 900.0 } else { 40.0 + 20.0 * index as f64 / hours as f64 };
            assert_eq!(averager.push(&located(index, 0.0, Vector3::z() * strength)), None);
        }
        let written = serde_json::to_string(&averager).unwrap().len();
        assert!(written < 20_000, "{written} bytes for an open cell");
        let observation = averager.close().unwrap();
        assert_eq!(observation.readings as usize, hours);
        // Between 32 and 64 are kept, the last of them at most a thirty-second before the end.
        assert!((observation.strength - 50.0).abs() < 1.0, "{}", observation.strength);
    }

    #[test]
    fn a_robust_average_that_is_resumed_continues_to_the_last_bit() {
        let settings = config::Model { likelihood: config::Likelihood::StudentT, ..config::Model::default() };
        let reading = |index: usize| {
            let strength = 50.0 + (index as f64).sin() + if index % 11 == 4 { 300.0 } else { 0.0 };
            located(index, 2e-4 * index as f64, Vector3::new(strength, 0.1, -3.0))
        };
        for stopped_at in [0, 1, 70, 249, 250, 333] {
            let (mut uninterrupted, mut interrupted) = (robust(), robust());
            for index in 0..700 {
                if index == stopped_at {
                    interrupted = serde_json::from_str(&serde_json::to_string(&interrupted).unwrap()).unwrap();
                    interrupted.configure(&settings);
                    assert_eq!(interrupted, uninterrupted);
                }
                assert_eq!(interrupted.push(&reading(index)), uninterrupted.push(&reading(index)), "{stopped_at}");
            }
            assert_eq!(interrupted.close(), uninterrupted.close());
        }
    }

    proptest! {
        #[test]
        fn every_reading_is_in_exactly_one_observation(
            steps in prop::collection::vec(-0.03..0.03_f64, 1..300),
            spacing in 0.0..0.2_f64,
            offset in 0.0..1.0_f64,
        ) {
            let mut x = 0.0;
            let readings: Vec<_> = steps.iter().enumerate().map(|(index, step)| {
                x += step;
                located(index, x, Vector3::new(index as f64, 0.0, 0.0))
            }).collect();
            let observations = average(spacing, offset, &readings);
            let count: u32 = observations.iter().map(|observation| observation.readings).sum();
            prop_assert_eq!(count as usize, readings.len());
            let sum: f64 = observations.iter().map(|observation| observation.strength * observation.readings as f64).sum();
            let expected = (readings.len() * (readings.len() - 1) / 2) as f64;
            prop_assert!((sum - expected).abs() < 1e-9 * expected.max(1.0));
            // Stamps increase, so observations come in the order of the drive.
            prop_assert!(observations.windows(2).all(|pair| pair[0].stamp < pair[1].stamp));
        }
    }
}
