//! The two experiments on the Aalto drives (VIPS paper, section D.4).
//!
//! `stream` learns drive 3 in 20 contiguous batches and is tested on drives 1, 2, 4 and 5; `paths` learns 1, 2, 4 and 5 as one
//! batch each and is tested on 3.

use super::Error;
use super::contest::{Readings, Task};
use super::metrics::{Nearest, Predictions, Samples, Scores, rmse};
use super::outliers::Outliers;
use magmap::config::{Config, Cut};
use magmap::mapping::averaging::Averager;
use magmap::mapping::field_model::FieldModel;
use magmap::mapping::reading::{LocatedReading, MagneticField, Observation};
use magmap::recording::aalto_csv::{Drive, DrivePath, Magnetometer};
use nalgebra::Point3;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use streaming_gp::points::Points;
use streaming_gp::report::{CeilingUsed, SelectionEnd, UpdateReport};

/// Number of batches of the `stream` experiment.
const STREAM_BATCHES: usize = 20;

/// Of the places where the robot has been, every so many-th row counts as visited: 10 cm apart at most, and ten times fewer.
const VISITED_STEP: usize = 5;

/// Distances from where the robot has been to which scores are restricted, in metres.
pub const RADII: [f64; 2] = [0.3, 0.5];

/// Which experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Drive 3 in 20 batches.
    Stream,
    /// Drives 1, 2, 4 and 5 as one batch each.
    Paths,
}

impl Experiment {
    fn learnt(self) -> &'static [u32] {
        match self {
            Experiment::Stream => &[3],
            Experiment::Paths => &[1, 2, 4, 5],
        }
    }

    fn tested(self) -> &'static [u32] {
        match self {
            Experiment::Stream => &[1, 2, 4, 5],
            Experiment::Paths => &[3],
        }
    }
}

/// The drives of one experiment, read and cut.
#[derive(Clone, Debug)]
pub struct Material {
    batches: Vec<Vec<LocatedReading>>,
    test: Samples,
}

impl Material {
    /// Reads the drives from the folder that holds the sensors' folders.
    ///
    /// # Errors
    /// When a drive is missing, damaged or too short.
    pub fn read(experiment: Experiment, data: &Path, magnetometer: Magnetometer, cut: Cut) -> Result<Self, Error> {
        let read = |number: &u32| {
            Drive::read(&DrivePath::new(data, magnetometer, *number))
                .map_err(|source| Error::Drive { number: *number, source })
        };
        let mut batches = Vec::new();
        for number in experiment.learnt() {
            let readings = located(&read(number)?);
            match experiment {
                Experiment::Paths => batches.push(readings),
                Experiment::Stream => {
                    let expected = 2 * STREAM_BATCHES;
                    if readings.len() < expected {
                        return Err(Error::TooShort { number: *number, expected, found: readings.len() });
                    }
                    batches
                        .extend(edges(readings.len(), cut).windows(2).map(|edge| readings[edge[0]..edge[1]].to_vec()));
                }
            }
        }
        let mut test = Samples::default();
        for number in experiment.tested() {
            test.extend(samples(&located(&read(number)?)));
        }
        Ok(Self { batches, test })
    }

    /// The same readings in a random order, in batches of the same sizes: no batch is a piece of the path any more.
    pub fn shuffled(mut self, seed: u64) -> Self {
        let mut readings: Vec<LocatedReading> = self.batches.iter().flatten().copied().collect();
        readings.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut rest = readings.into_iter();
        self.batches.iter_mut().for_each(|batch| *batch = rest.by_ref().take(batch.len()).collect());
        self
    }

    /// What any method can learn, with averaging cells shifted by `offset` of a cell.
    pub fn task(&self, config: &Config, offset: f64) -> Task {
        let readings =
            |samples: Samples| Readings { places: Points::from_arrays(&samples.positions), targets: samples.strengths };
        let observed = |batch: &Vec<LocatedReading>| Samples::of(averaged(batch, config, offset).iter());
        let batches = self.batches.iter().map(|batch| readings(observed(batch))).collect();
        Task { is_map: true, ..Task::new(batches, readings(self.test.clone())) }
    }

    /// The same with outliers among the readings that are learnt from. No gate stands before the averages here.
    pub fn spoilt(mut self, outliers: Outliers) -> Self {
        let mut spoiler = outliers.spoiler(0);
        self.batches.iter_mut().flatten().for_each(|reading| reading.field = spoiler.next(reading.field));
        self
    }
}

/// Where the batches of the stream begin and end.
fn edges(rows: usize, cut: Cut) -> Vec<usize> {
    match cut {
        Cut::Equal => (0..=STREAM_BATCHES).map(|i| i * rows / STREAM_BATCHES).collect(),
        // The published scripts lose the first row as a header, cut one row less than equal parts, and the last takes the rest.
        Cut::Published => {
            let size = (rows - 1) / STREAM_BATCHES - 1;
            (0..STREAM_BATCHES).map(|i| 1 + i * size).chain([rows]).collect()
        }
    }
}

fn located(drive: &Drive) -> Vec<LocatedReading> {
    (0..drive.len())
        .map(|row| LocatedReading {
            stamp: drive.stamp(row),
            position: Point3::new(drive.positions[row][0], drive.positions[row][1], 0.0),
            field: MagneticField::from_microtesla(drive.fields[row]),
        })
        .collect()
}

fn samples(readings: &[LocatedReading]) -> Samples {
    Samples {
        positions: readings.iter().map(|reading| [reading.position.x, reading.position.y]).collect(),
        strengths: readings.iter().map(|reading| reading.field.strength()).collect(),
    }
}

/// What one batch brought.
#[derive(Clone, Debug, Serialize)]
pub struct BatchScores {
    /// Which batch, counted from one.
    pub batch: usize,
    /// Number of inducing points.
    #[serde(rename = "M")]
    pub inducing_points: usize,
    /// Root mean squared error on all test readings, in microtesla.
    pub rmse: f64,
    /// Mean negative log predictive density, noise included, in nats.
    pub nlpd: f64,
    /// Share of the test readings in their 95 % interval.
    pub coverage: f64,
    /// The same on test readings within 0.3 m of where the robot has been.
    #[serde(rename = "rmse_0.3")]
    pub rmse_03: f64,
    /// See `rmse_03`.
    #[serde(rename = "nlpd_0.3")]
    pub nlpd_03: f64,
    /// See `rmse_03`.
    #[serde(rename = "coverage_0.3")]
    pub coverage_03: f64,
    /// The same on test readings within 0.5 m of where the robot has been.
    #[serde(rename = "rmse_0.5")]
    pub rmse_05: f64,
    /// See `rmse_05`.
    #[serde(rename = "nlpd_0.5")]
    pub nlpd_05: f64,
    /// See `rmse_05`.
    #[serde(rename = "coverage_0.5")]
    pub coverage_05: f64,
    /// Root mean squared error of the mean of all training readings so far.
    pub rmse_mean_predictor: f64,
    /// Root mean squared error of the nearest training reading so far.
    pub rmse_nearest_neighbour: f64,
    /// Hyperparameters in the order of [`Outcome::hyperparameter_names`].
    pub hyperparameters: Vec<f64>,
    /// Observations learnt from.
    pub rows: usize,
    /// Which ceiling ruled, of a rule that has one.
    pub ceiling: Option<CeilingUsed>,
    /// Why no further inducing point was added.
    pub selection_end: SelectionEnd,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Duration of the update, in seconds.
    pub seconds: f64,
}

/// What an experiment found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Duration of all updates, in seconds.
    pub seconds: f64,
    /// Names of the hyperparameters.
    pub hyperparameter_names: Vec<String>,
    /// One entry per batch.
    pub batches: Vec<BatchScores>,
}

impl Outcome {
    /// The last batch.
    pub fn last(&self) -> &BatchScores {
        self.batches.last().expect("an experiment has batches")
    }
}

/// Runs an experiment with averaging cells shifted by `offset` of a cell. `progress` hears of every batch.
///
/// # Errors
/// When the model refuses a batch.
pub fn run(
    material: &Material,
    config: &Config,
    offset: f64,
    mut progress: impl FnMut(usize, usize),
) -> Result<Outcome, Error> {
    let mut model = FieldModel::new(config);
    let mut nearest = Nearest::new(material.test.len());
    let mut visited = Nearest::new(material.test.len());
    let (mut readings, mut sum) = (0, 0.0);
    let mut batches = Vec::new();
    for (index, batch) in material.batches.iter().enumerate() {
        progress(index, material.batches.len());
        let observations = averaged(batch, config, offset);
        let start = Instant::now();
        let report =
            model.update(&observations, &|| false).map_err(|source| Error::Update { batch: index + 1, source })?;
        let seconds = start.elapsed().as_secs_f64();

        let seen = samples(batch);
        readings += seen.len();
        sum += seen.strengths.iter().sum::<f64>();
        nearest.see(&material.test.positions, &Samples::of(observations.iter()));
        visited
            .see(&material.test.positions, &samples(&batch.iter().step_by(VISITED_STEP).copied().collect::<Vec<_>>()));
        let posterior = model.posterior().expect("an update leaves a posterior");
        let predictions = Predictions::of(posterior, &material.test.positions);
        let strengths = &material.test.strengths;
        let all = predictions.score(strengths, |_| true);
        let near = RADII.map(|radius| predictions.score(strengths, |i| visited.within(i, radius)));
        let mean = sum / readings as f64;
        let rmse_mean_predictor = rmse(std::iter::repeat_n(mean, strengths.len()), strengths);
        let rmse_nearest_neighbour = rmse(nearest.strengths().iter().copied(), strengths);
        let baselines = [rmse_mean_predictor, rmse_nearest_neighbour];
        batches.push(batch_scores(index + 1, &report, [all, near[0], near[1]], baselines, seconds));
    }
    Ok(Outcome {
        seconds: batches.iter().map(|batch| batch.seconds).sum(),
        hyperparameter_names: model.model().names(),
        batches,
    })
}

fn batch_scores(
    batch: usize,
    report: &UpdateReport,
    [all, near, wide]: [Scores; 3],
    [rmse_mean_predictor, rmse_nearest_neighbour]: [f64; 2],
    seconds: f64,
) -> BatchScores {
    BatchScores {
        batch,
        inducing_points: report.inducing_points,
        rmse: all.rmse,
        nlpd: all.nlpd,
        coverage: all.coverage,
        rmse_03: near.rmse,
        nlpd_03: near.nlpd,
        coverage_03: near.coverage,
        rmse_05: wide.rmse,
        nlpd_05: wide.nlpd,
        coverage_05: wide.coverage,
        rmse_mean_predictor,
        rmse_nearest_neighbour,
        hyperparameters: report.hyperparameters.iter().map(|value| value.value).collect(),
        rows: report.rows,
        ceiling: report.selection.gap.map(|gap| gap.ceiling_used),
        selection_end: report.selection.end,
        evaluations: report.learning.evaluations,
        seconds,
    }
}

/// The observations of one batch; its last cell is closed with it.
fn averaged(batch: &[LocatedReading], config: &Config, offset: f64) -> Vec<Observation> {
    let mut averager = Averager::with_offset(&config.averaging, offset);
    averager.configure(&config.model);
    let mut observations: Vec<Observation> = batch.iter().filter_map(|reading| averager.push(reading)).collect();
    observations.extend(averager.close());
    observations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_cut_has_nineteen_batches_of_469_rows_and_the_rest() {
        let edges = edges(9404, Cut::Published);
        assert_eq!(edges.len(), 21);
        assert_eq!(edges[0], 1);
        assert!(edges.windows(2).take(19).all(|edge| edge[1] - edge[0] == 469));
        assert_eq!(edges[20], 9404);
    }

    #[test]
    fn the_equal_cut_leaves_no_row_out() {
        let edges = edges(9404, Cut::Equal);
        assert_eq!((edges[0], edges[20]), (0, 9404));
        assert!(edges.windows(2).all(|edge| (470..=471).contains(&(edge[1] - edge[0]))));
    }
}
