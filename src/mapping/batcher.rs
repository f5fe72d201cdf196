//! Collects observations into batches, limited by count, path length and duration.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::config;
use crate::mapping::odometer::Odometer;
use crate::sensing::reading::{Observation, Stamp};

/// Jitter of the position below this is not counted as path, in metres.
const PATH_STEP: f64 = 0.02;

/// Most observations that memory is reserved for at first.
const RESERVED: usize = 1024;

/// Why a batch was cut where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutReason {
    /// The batch held `batch.max_observations`.
    Count,
    /// The batch was `batch.max_path` long.
    Path,
    /// The batch had lasted for `batch.max_duration`.
    Time,
    /// A flush was requested, or the stream ended.
    Flush,
}

/// The point at which a batch ended before another was merged into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergePoint {
    /// Number of observations of the merged batch before this point.
    pub observations: usize,
    /// Why it had been cut there.
    pub cut: CutReason,
}

/// Observations the model learns from in one update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The observations in the order of the drive; at least one.
    pub observations: Vec<Observation>,
    /// Why it was cut at its end.
    pub cut: CutReason,
    /// The points at which the batches merged into this one ended, except the last; empty when nothing was merged.
    pub merge_points: Vec<MergePoint>,
}

impl Batch {
    /// A batch of these observations as it was cut.
    pub fn new(observations: Vec<Observation>, cut: CutReason) -> Self {
        Self { observations, cut, merge_points: Vec::new() }
    }

    /// Appends the batch that follows.
    pub fn merge(&mut self, next: Batch) {
        let before = self.observations.len();
        self.merge_points.push(MergePoint { observations: before, cut: self.cut });
        let points = next.merge_points.into_iter();
        self.merge_points.extend(
            points.map(|MergePoint { observations, cut }| MergePoint { observations: before + observations, cut }),
        );
        self.observations.extend(next.observations);
        self.cut = next.cut;
    }
}

/// Collects observations and cuts them into batches at whichever limit is reached first. It depends only on the stamps, number and
/// positions of observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batcher {
    #[serde(skip)]
    limits: config::Batch,
    odometer: Odometer,
    /// Path length at the last observation and at the first of the open batch.
    travelled: f64,
    path_start: f64,
    open: Vec<Observation>,
    /// When the open batch began.
    started: Stamp,
}

impl Batcher {
    /// A batcher with these limits.
    pub fn new(settings: &config::Batch) -> Self {
        Self {
            limits: settings.clone(),
            odometer: Odometer::new(PATH_STEP),
            travelled: 0.0,
            path_start: 0.0,
            open: Vec::new(),
            started: Stamp::default(),
        }
    }

    /// Changes the limits.
    pub fn configure(&mut self, settings: &config::Batch) {
        self.limits = settings.clone();
    }

    /// Takes the next observation, and returns the batch that it completes.
    pub fn push(&mut self, observation: Observation) -> Option<Batch> {
        let before = self.travelled;
        self.travelled = self.odometer.advance(observation.position);
        if self.open.is_empty() {
            self.begin(&observation, before);
        }
        self.open.push(observation);
        let limits = &self.limits;
        if limits.max_observations > 0 && self.open.len() >= limits.max_observations {
            return self.cut(CutReason::Count);
        }
        if limits.max_path > 0.0 && self.travelled - self.path_start >= limits.max_path {
            return self.cut(CutReason::Path);
        }
        self.advance(observation.stamp)
    }

    /// Advances the stream's clock, even without an observation (the robot stands still), and returns the batch whose duration
    /// has reached the limit.
    pub fn advance(&mut self, stamp: Stamp) -> Option<Batch> {
        let config::Batch { max_duration, .. } = self.limits;
        let is_over = max_duration > 0.0 && stamp.seconds_since(self.started) >= max_duration;
        is_over.then(|| self.cut(CutReason::Time)).flatten()
    }

    /// Closes the open batch; `None` when it is empty.
    pub fn flush(&mut self) -> Option<Batch> {
        self.cut(CutReason::Flush)
    }

    /// The path of a batch begins where the previous one ended, so that no distance is counted twice or lost.
    fn begin(&mut self, first: &Observation, path_start: f64) {
        let expected = if self.limits.max_observations > 0 { self.limits.max_observations } else { RESERVED };
        self.open.reserve_exact(expected.min(RESERVED));
        self.started = first.stamp;
        self.path_start = path_start;
    }

    fn cut(&mut self, reason: CutReason) -> Option<Batch> {
        (!self.open.is_empty()).then(|| Batch::new(std::mem::take(&mut self.open), reason))
    }
}

/// Number of batches at the front of the queue that may be merged into at most `max_observations`: 0 when it is empty; a single
/// batch that is larger is not split.
pub fn mergeable(ready: &VecDeque<Batch>, max_observations: usize) -> usize {
    let mut observations = 0;
    let fits = |batch: &&Batch| {
        observations += batch.observations.len();
        observations <= max_observations
    };
    ready.iter().take_while(fits).count().max(1).min(ready.len())
}

/// Takes this number of batches from the front of the queue, merged into one; `None` when it is empty.
pub fn pop_merged(ready: &mut VecDeque<Batch>, batches: usize) -> Option<Batch> {
    let mut merged = ready.pop_front()?;
    let rest = batches.saturating_sub(1).min(ready.len());
    ready.drain(..rest).for_each(|batch| merged.merge(batch));
    Some(merged)
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Vector3};

    use super::*;
    use crate::sensing::reading::MagneticField;

    fn observation(seconds: f64, x: f64) -> Observation {
        Observation {
            stamp: Stamp::from_seconds(seconds),
            position: Point3::new(x, 0.0, 0.0),
            field: MagneticField::from_microtesla(Vector3::x()),
            strength: 1.0,
            orientation: Matrix3::identity(),
            speed: 0.0,
            readings: 1,
        }
    }

    fn off() -> config::Batch {
        config::Batch { max_observations: 0, max_path: 0.0, max_duration: 0.0 }
    }

    fn run(limits: &config::Batch, observations: impl IntoIterator<Item = Observation>) -> Vec<(usize, CutReason)> {
        let mut batcher = Batcher::new(limits);
        let mut batches: Vec<_> = observations.into_iter().filter_map(|item| batcher.push(item)).collect();
        batches.extend(batcher.flush());
        batches.iter().map(|batch| (batch.observations.len(), batch.cut)).collect()
    }

    #[test]
    fn by_count() {
        let limits = config::Batch { max_observations: 4, ..off() };
        let cuts = run(&limits, (0..10).map(|index| observation(index as f64, 0.0)));
        assert_eq!(cuts, [(4, CutReason::Count), (4, CutReason::Count), (2, CutReason::Flush)]);
    }

    #[test]
    fn by_path() {
        let limits = config::Batch { max_path: 1.0, ..off() };
        // Steps of 25 cm: the first batch spans 0 to 1 m, each further one the next metre.
        let cuts = run(&limits, (0..12).map(|index| observation(index as f64, 0.25 * index as f64)));
        assert_eq!(cuts, [(5, CutReason::Path), (4, CutReason::Path), (3, CutReason::Flush)]);
    }

    #[test]
    fn by_time() {
        let limits = config::Batch { max_duration: 2.0, ..off() };
        let cuts = run(&limits, (0..7).map(|index| observation(0.5 * index as f64, 0.0)));
        assert_eq!(cuts, [(5, CutReason::Time), (2, CutReason::Flush)]);
    }

    #[test]
    fn time_passes_without_observations() {
        let mut batcher = Batcher::new(&config::Batch { max_duration: 2.0, ..off() });
        assert_eq!(batcher.advance(Stamp::from_seconds(9.0)), None);
        assert_eq!(batcher.push(observation(10.0, 0.0)), None);
        assert_eq!(batcher.advance(Stamp::from_seconds(11.9)), None);
        assert_eq!(batcher.advance(Stamp::from_seconds(12.0)).map(|batch| batch.cut), Some(CutReason::Time));
        assert_eq!(batcher.advance(Stamp::from_seconds(99.0)), None);
    }

    #[test]
    fn whichever_limit_comes_first() {
        let limits = config::Batch { max_observations: 3, max_path: 1.0, max_duration: 5.0 };
        let cuts = run(
            &limits,
            [(0.0, 0.0), (0.1, 0.1), (0.2, 0.2), (0.3, 1.3), (9.0, 1.4), (14.0, 1.5)]
                .map(|(seconds, x)| observation(seconds, x)),
        );
        assert_eq!(cuts, [(3, CutReason::Count), (1, CutReason::Path), (2, CutReason::Time)]);
    }

    #[test]
    fn without_limits_only_a_flush_cuts_and_there_is_no_empty_batch() {
        assert_eq!(
            run(&off(), (0..5000).map(|index| observation(index as f64, index as f64))),
            [(5000, CutReason::Flush)]
        );
        assert_eq!(Batcher::new(&off()).flush(), None);
    }

    #[test]
    fn merging_keeps_every_observation_in_order_and_remembers_the_cuts() {
        let batch = |from: usize, to: usize, cut| {
            Batch::new((from..to).map(|index| observation(index as f64, 0.0)).collect(), cut)
        };
        let mut ready: VecDeque<_> =
            [batch(0, 3, CutReason::Count), batch(3, 5, CutReason::Path), batch(5, 6, CutReason::Time)].into();
        ready.push_back(batch(6, 16, CutReason::Flush));
        assert_eq!(mergeable(&ready, 6), 3);
        let merged = pop_merged(&mut ready, 3).unwrap();
        let stamps: Vec<f64> = merged.observations.iter().map(|observation| observation.stamp.seconds()).collect();
        assert_eq!(stamps, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(
            merged.merge_points,
            [
                MergePoint { observations: 3, cut: CutReason::Count },
                MergePoint { observations: 5, cut: CutReason::Path }
            ]
        );
        assert_eq!((merged.cut, merged.merge_points.len()), (CutReason::Time, 2));
        // Larger than allowed, but whole.
        assert_eq!(mergeable(&ready, 6), 1);
        assert_eq!(pop_merged(&mut ready, 1).unwrap().observations.len(), 10);
        assert_eq!((mergeable(&ready, 6), pop_merged(&mut ready, 1)), (0, None));

        let mut outer = batch(0, 2, CutReason::Flush);
        outer.merge(merged);
        let places: Vec<usize> = outer.merge_points.iter().map(|point| point.observations).collect();
        assert_eq!(places, [2, 5, 7]);
    }
}
