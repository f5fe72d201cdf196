//! The two experiments on the Aalto drives (VIPS paper, section D.4).
//!
//! `stream` learns drive 3 in 20 contiguous batches and is tested on drives 1, 2, 4 and 5; `paths` learns 1, 2, 4 and 5 as one
//! batch each and is tested on 3. The map is one of strengths, or of the three axes; both are tested on the strength of the readings.

use super::comparison::Task;
use super::methods::Learnt;
use super::metrics::{Nearest, Predictions, Readings, rmse};
use super::outliers::Outliers;
use anyhow::{Context, ensure};
use magmap::config::{Config, Cut};
use magmap::field::map::{FieldMap, SensorBias};
use magmap::field::model::FieldModel;
use magmap::mapping::averaging::Averager;
use magmap::mapping::delay;
use magmap::sensing::calibration::Calibration;
use magmap::sensing::gates::{Continuity, GradientGate, Passed, PulseGate, ReadingGate, RepeatGate, check_range};
use magmap::sensing::reading::{LocatedReading, MagneticField, Measurement, Observation, Reading};
use magmap::sensing::rejection::Rejection;
use magmap::sensing::synchronizer::{PlacedReading, Synchronizer};
use magmap::trajectory::Delay;
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath, Magnetometer};
use nalgebra::{Isometry3, Matrix3, Vector3};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use streaming_gp::{Axes, CeilingUsed, SelectionEnd, SensorPose};

/// Number of batches of the `stream` experiment.
const STREAM_BATCHES: usize = 20;

/// Every fifth row counts as a place where the robot has been: 10 cm apart at most, and five times fewer.
const VISITED_STEP: usize = 5;

/// Distances from where the robot has been to which scores are restricted, in metres.
pub const RADII: [f64; 2] = [0.3, 0.5];

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Drive 3 in 20 batches.
    Stream,
    /// Drives 1, 2, 4 and 5 as one batch each.
    Paths,
}

/// The drives that are learnt from, and those that are tested on.
#[derive(Clone, Debug, PartialEq)]
pub struct Drives {
    /// The numbers of those that are learnt from, in this order.
    pub learn: Vec<u32>,
    /// The numbers of those that are tested on. One that is learnt from too is divided: see [`HELD_OUT`].
    pub test: Vec<u32>,
}

/// How a drive is split that is both learnt from and tested on: of every `HELD_OUT.1` readings the last `HELD_OUT.0` are tested on,
/// the others learnt from: 0.3 of every 1.3 m.
pub const HELD_OUT: (usize, usize) = (50, 250);

impl Experiment {
    /// The drives of the experiment.
    pub fn drives(self) -> Drives {
        match self {
            Self::Stream => Drives { learn: vec![3], test: vec![1, 2, 4, 5] },
            Self::Paths => Drives { learn: vec![1, 2, 4, 5], test: vec![3] },
        }
    }
}

/// The drives of one experiment, read and cut.
#[derive(Clone, Debug)]
pub struct Material {
    /// How late the readings are stamped, where it was found.
    delay: Option<Delay>,
    batches: Vec<Vec<LocatedReading>>,
    /// Drives that it is tested on.
    test: Vec<Vec<LocatedReading>>,
}

impl Material {
    /// Reads the drives from the folder that holds the sensors' folders. What is learnt has passed the gates for readings, as in a replay. For
    /// a map of the three axes, the drives that are learnt from tell how late readings are stamped, those that are tested on as well.
    ///
    /// # Errors
    /// When a drive is missing, damaged or too short.
    pub fn read(
        experiment: Experiment,
        drives: &Drives,
        data: &Path,
        magnetometer: Magnetometer,
        config: &Config,
    ) -> anyhow::Result<Self> {
        let read = |number: &u32| {
            let drive = AaltoDrive::read(&DrivePath::new(data, magnetometer, *number));
            drive.with_context(|| format!("drive {number}"))
        };
        let learnt = drives.learn.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let delay = find_delay(&learnt, config);
        let mut config = config.clone();
        config.sensor.delay = delay.map_or(config.sensor.delay, |delay| delay.seconds);
        let part = |number: &u32, others: &[u32], held_out: bool| -> anyhow::Result<Vec<LocatedReading>> {
            let drive = read(number)?;
            let (located, rows) = (located(&drive, &config), drive.seconds.len());
            let rejected = rows - located.iter().filter(|(_, is_accepted)| *is_accepted).count();
            if rejected > 0 && !held_out {
                log::warn!("drive {number}: {rejected} of {rows} readings have no pose, or were rejected by the gates");
            }
            let (count, every) = HELD_OUT;
            let is_part = |row: usize| !others.contains(number) || (row % every >= every - count) == held_out;
            let rows = located.into_iter().enumerate();
            let used = rows.filter(|&(row, (_, is_accepted))| is_part(row) && (held_out || is_accepted));
            Ok(used.map(|(_, (reading, _))| reading).collect())
        };
        let test = drives.test.iter().map(|number| part(number, &drives.learn, true)).collect::<anyhow::Result<_>>()?;
        let mut batches = Vec::new();
        for number in &drives.learn {
            let drive = part(number, &drives.test, false)?;
            let (rows, expected) = (drive.len(), 2 * STREAM_BATCHES);
            ensure!(rows >= expected, "drive {number}: expected at least {expected} rows, found {rows}");
            let edges = match experiment {
                Experiment::Stream => edges(rows, config.evaluation.cut),
                Experiment::Paths => vec![0, rows],
            };
            batches.extend(edges.windows(2).map(|edge| drive[edge[0]..edge[1]].to_vec()));
        }
        Ok(Self { delay, batches, test })
    }

    /// Shuffles the readings into batches of the same sizes, so that no batch is a piece of the path any more.
    pub fn shuffled(mut self, seed: u64) -> Self {
        let mut readings = self.batches.concat();
        readings.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut rest = readings.into_iter();
        self.batches.iter_mut().for_each(|batch| *batch = rest.by_ref().take(batch.len()).collect());
        self
    }

    /// The strengths that any method can learn, with averaging cells shifted by `offset` of a cell.
    pub fn task(&self, config: &Config, offset: f64) -> Task {
        let batches = self.batches.iter().map(|batch| strengths(&averaged(batch, config, offset))).collect();
        Task { is_map: true, ..Task::new(batches, readings(self.test.iter().flatten())) }
    }

    /// Tested on every `step`-th reading only, which takes less time.
    pub fn tested_on_every(mut self, step: usize) -> Self {
        self.test.iter_mut().for_each(|drive| *drive = drive.iter().copied().step_by(step).collect());
        self
    }

    /// Adds a hard iron to that of the sensor, in microtesla along its axes.
    pub fn with_hard_iron(mut self, hard_iron: Vector3<f64>) -> Self {
        for reading in self.batches.iter_mut().chain(&mut self.test).flatten() {
            let added = reading.orientation * hard_iron;
            reading.field = MagneticField::from_microtesla(reading.field.microtesla() + added);
        }
        self
    }

    /// Adds outliers to the readings that are learnt from, as if they had passed the gates.
    pub fn with_outliers(mut self, outliers: Outliers) -> Self {
        let mut corrupt = outliers.corruption(0);
        self.batches.iter_mut().flatten().for_each(|reading| reading.field = corrupt(reading.field));
        self
    }
}

/// The indices at which batches of the stream begin and end.
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

/// The readings of a drive where they were taken, calibrated as in a replay, each with whether it passes the gates for readings.
fn located(drive: &AaltoDrive, config: &Config) -> Vec<(LocatedReading, bool)> {
    let (mut reading, mut repeat, mut gradient) =
        (ReadingGate::default(), RepeatGate::default(), GradientGate::default());
    let mut check = |located: &LocatedReading, sent: &MagneticField| {
        check_range(&config.gates, sent)?;
        reading.check(&config.gates, &Reading { stamp: located.stamp, field: located.field })?;
        repeat.check(&config.gates, sent, located.position)?;
        gradient.check(&config.gates, located)
    };
    let mut readings = Vec::new();
    let mut take = |placed: Result<PlacedReading, Rejection>| {
        if let Ok(PlacedReading { located, sent }) = placed {
            readings.push((located, check(&located, &sent).is_ok()));
        }
    };
    let calibration = Calibration::new(&config.sensor);
    let mut synchronizer = Synchronizer::new(&config.synchronizer, Isometry3::identity());
    for measurement in drive.measurements() {
        match measurement {
            Measurement::Pose(pose) => synchronizer.push_pose(pose, Continuity::Continues, &mut take),
            Measurement::Reading(sent) => {
                synchronizer.push_reading(calibration.apply(sent), sent.field, &mut take);
            }
        }
    }
    readings
}

/// How late the readings of these drives are stamped, where a map of the three axes finds that out.
fn find_delay(drives: &[AaltoDrive], config: &Config) -> Option<Delay> {
    if !(config.needs_mount() && config.finds_delay()) {
        return None;
    }
    let observed = |drive: &AaltoDrive| {
        let accepted =
            located(drive, config).into_iter().filter_map(|(reading, is_accepted)| is_accepted.then_some(reading));
        averaged(&accepted.collect::<Vec<_>>(), config, 0.0)
    };
    delay::of(config, &drives.iter().flat_map(observed).collect::<Vec<_>>())
}

/// Poses of the sensor at each reading of a drive, with the speed between the neighbouring readings.
fn poses(drive: &[LocatedReading]) -> impl Iterator<Item = SensorPose> {
    drive.iter().enumerate().map(|(row, reading)| {
        let (before, after) = (&drive[row.saturating_sub(1)], &drive[(row + 1).min(drive.len() - 1)]);
        let seconds = after.stamp.seconds_since(before.stamp);
        SensorPose {
            position: reading.position.coords.into(),
            orientation: reading.orientation.to_rotation_matrix().matrix().transpose().into(),
            speed: if seconds > 0.0 { (after.position - before.position).norm() / seconds } else { 0.0 },
        }
    })
}

fn readings<'a>(located: impl Iterator<Item = &'a LocatedReading>) -> Readings {
    located.map(|reading| ([reading.position.x, reading.position.y], reading.field.strength())).collect()
}

/// Size, scores and cost after a batch.
#[derive(Clone, Debug, Serialize)]
pub struct BatchScores {
    /// Number of the batch, counted from one.
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
    /// Root mean squared error on test readings within 0.3 m of the path so far, in microtesla.
    #[serde(rename = "rmse_0.3")]
    pub rmse_03: f64,
    /// Mean negative log predictive density within 0.3 m of the path so far, in nats.
    #[serde(rename = "nlpd_0.3")]
    pub nlpd_03: f64,
    /// Share in their 95 % interval of the test readings within 0.3 m of the path so far.
    #[serde(rename = "coverage_0.3")]
    pub coverage_03: f64,
    /// Root mean squared error on test readings within 0.5 m of the path so far, in microtesla.
    #[serde(rename = "rmse_0.5")]
    pub rmse_05: f64,
    /// Mean negative log predictive density within 0.5 m of the path so far, in nats.
    #[serde(rename = "nlpd_0.5")]
    pub nlpd_05: f64,
    /// Share in their 95 % interval of the test readings within 0.5 m of the path so far.
    #[serde(rename = "coverage_0.5")]
    pub coverage_05: f64,
    /// Root mean squared error of the mean of all training readings so far.
    pub rmse_mean_predictor: f64,
    /// Root mean squared error of the map's constant: of what it predicts infinitely far from every reading.
    pub rmse_constant: f64,
    /// Root mean squared error of the nearest training reading so far.
    pub rmse_nearest_neighbour: f64,
    /// Hyperparameters in the order of [`DrivesOutcome::hyperparameter_names`].
    pub hyperparameters: Vec<f64>,
    /// The sensor's hard iron and its standard deviation, of a map of three axes.
    #[serde(flatten)]
    pub sensor_bias: Option<SensorBias>,
    /// Observations learnt from.
    pub rows: usize,
    /// The ceiling that the bound was compared with, by a rule that has one.
    pub ceiling: Option<CeilingUsed>,
    /// Why no further inducing point was added.
    pub selection_end: Option<SelectionEnd>,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Duration of the update, in seconds.
    pub seconds: f64,
}

/// The result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct DrivesOutcome {
    /// Duration of all updates, in seconds.
    pub seconds: f64,
    /// How late the readings are stamped, where it was found.
    pub delay: Option<Delay>,
    /// Names of the hyperparameters.
    pub hyperparameter_names: Vec<String>,
    /// One entry per batch.
    pub batches: Vec<BatchScores>,
}

impl DrivesOutcome {
    /// The last batch.
    pub fn last(&self) -> &BatchScores {
        self.batches.last().expect("an experiment has batches")
    }
}

/// Runs an experiment with the configured model and averaging cells shifted by `offset` of a cell. `progress` is called after every
/// batch with the number of batches so far, and of all.
///
/// # Errors
/// When the model rejects a batch.
pub fn run(
    material: &Material,
    config: &Config,
    offset: f64,
    mut progress: impl FnMut(usize, usize),
) -> anyhow::Result<DrivesOutcome> {
    let Readings { places, targets } = &readings(material.test.iter().flatten());
    let poses: Vec<SensorPose> = material.test.iter().flat_map(|drive| poses(drive)).collect();
    let (mut nearest, mut visited) = (Nearest::new(targets.len()), Nearest::new(targets.len()));
    let (mut readings_so_far, mut sum) = (0, 0.0);
    let (mut batches, mut hyperparameter_names) = (Vec::new(), Vec::new());
    let mut model = FieldModel::new(config);
    for (batch, located) in (1..).zip(&material.batches) {
        let observations = averaged(located, config, offset);
        let start = Instant::now();
        let report = model.update(&observations, &|| false).with_context(|| format!("batch {batch}"))?;
        let seconds = start.elapsed().as_secs_f64();
        let map = model.map().context("there was a batch")?;

        nearest.see(places, &strengths(&observations));
        visited.see(places, &readings(located.iter().step_by(VISITED_STEP)));
        readings_so_far += located.len();
        sum += readings(located.iter()).targets.iter().sum::<f64>();

        let predictions = Predictions::of_map(&map, &poses);
        let all = predictions.score(targets, |_| true);
        let [near, wide] = RADII.map(|radius| predictions.score(targets, |i| visited.within(i, radius)));
        let Learnt { inducing_points, hyperparameters, evaluations, selection } = report.into();
        let (names, values) = hyperparameters.into_iter().map(|value| (value.name, value.value)).unzip();
        hyperparameter_names = names;
        batches.push(BatchScores {
            batch,
            inducing_points,
            rmse: all.rmse,
            nlpd: all.nlpd,
            coverage: all.coverage,
            rmse_03: near.rmse,
            nlpd_03: near.nlpd,
            coverage_03: near.coverage,
            rmse_05: wide.rmse,
            nlpd_05: wide.nlpd,
            coverage_05: wide.coverage,
            rmse_mean_predictor: rmse(targets.iter().map(|_| sum / readings_so_far as f64), targets),
            rmse_constant: rmse(constant(&map, &poses).into_iter(), targets),
            rmse_nearest_neighbour: rmse(nearest.targets.iter().copied(), targets),
            hyperparameters: values,
            sensor_bias: map.sensor_bias(),
            rows: observations.len(),
            ceiling: selection.as_ref().and_then(|selection| selection.gap).map(|gap| gap.ceiling_used),
            selection_end: selection.map(|selection| selection.end),
            evaluations,
            seconds,
        });
        progress(batch, material.batches.len());
    }
    let seconds = batches.iter().map(|batch| batch.seconds).sum();
    Ok(DrivesOutcome { seconds, delay: material.delay, hyperparameter_names, batches })
}

/// The map's prediction for each pose, infinitely far from every reading.
fn constant(map: &FieldMap, poses: &[SensorPose]) -> Vec<f64> {
    const FAR: f64 = 1e9;
    let Some(field) = map.axes(&[[FAR, FAR, 0.0]]) else {
        let (mean, _) = map.predict(&[[FAR, FAR]], f64::INFINITY);
        return vec![mean[0]; poses.len()];
    };
    let hard_iron = Vector3::from(map.sensor_bias().map_or([0.0; 3], |bias| bias.hard_iron));
    let strength = |pose: &SensorPose| {
        let turned = Matrix3::from(pose.orientation).tr_mul(&hard_iron);
        let mean = std::array::from_fn(|i| field[0].mean[i] + turned[i]);
        Axes { mean, ..field[0] }.strength().0
    };
    poses.iter().map(strength).collect()
}

/// The observations of one batch; its last cell is closed with it.
fn averaged(batch: &[LocatedReading], config: &Config, offset: f64) -> Vec<Observation> {
    let mut averager = Averager::with_offset(&config.averaging, offset);
    averager.configure(&config.model);
    let mut observations: Vec<Observation> = batch.iter().filter_map(|reading| averager.push(reading)).collect();
    observations.extend(averager.close());
    let mut gate = PulseGate::default();
    let mut accepted = Vec::new();
    for observation in observations {
        match gate.check(&config.gates, observation) {
            Passed::Accepted(held, seen) => accepted.extend(held.into_iter().chain(seen)),
            Passed::Rejected(observations) => log::warn!("a pulse of {} observations was rejected", observations.len()),
        }
    }
    accepted.extend(gate.release());
    accepted
}

fn strengths(observations: &[Observation]) -> Readings {
    observations.iter().map(|seen| ([seen.position.x, seen.position.y], seen.strength)).collect()
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
