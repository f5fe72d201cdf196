//! The report of a replay.

use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::batch_record::BatchRecord;
use super::drawing::History;
use super::{PathReport, Resumed, Source};
use crate::recording::{Loss, Lost};
use magmap::field::grid::StrengthGrid;
use magmap::field::map::{FieldMap, SensorBias};
use magmap::mapping::thread::Finished;
use magmap::sensing::counters::Counters;
use magmap::trajectory::{Delay, Withdrawal};
use streaming_gp::{CeilingUsed, NamedValue, SelectionEnd};

/// The report of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Version of magmap.
    pub magmap_version: &'static str,
    /// A description of the source; of a recording, its [`Summary`](crate::recording::Summary).
    pub source: Value,
    /// The frame of the map.
    pub frame: String,
    /// Whether it ended before the source did.
    pub interrupted: bool,
    /// The map that the replay continued; only batches after that are listed.
    pub resumed: Option<Resumed>,
    /// Counts of measurements received, used and, by reason, rejected.
    pub counters: Counters,
    /// Totals of the replay.
    pub totals: ReplayTotals,
    /// Hyperparameters at the end; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// The bias of the sensor at the end, where it is learnt: `hard_iron` and `hard_iron_sd`.
    #[serde(flatten)]
    pub sensor_bias: Option<SensorBias>,
    /// Share of the field's variance that comes from below the sensor, where that is learnt: 1 over a steel floor, 0 under a steel roof.
    pub share_below: Option<f64>,
    /// The quantity that is mapped, and why, where the settings leave that to magmap and it has been chosen.
    pub choice: Option<String>,
    /// Where odometry began in the map that was continued, where that was looked for.
    pub relocated: Option<String>,
    /// Why the map is in doubt, if it is: how the axes of the readings contradict the physics, that
    /// readings contradict the map at places that it knew, or that a bias grows with the speed.
    pub doubt: Option<String>,
    /// How late readings are stamped, where it was found without correcting the path.
    pub delay: Option<Delay>,
    /// Where the building has changed since the map was begun: what was withdrawn from it.
    pub changes: Vec<Withdrawal>,
    /// How the path of odometry was corrected, where it was.
    pub corrected_path: Option<PathReport>,
    /// Missing parts of the source, and batches that were rejected.
    pub loss: Loss,
    /// The records, one per batch.
    pub batches: Vec<BatchRecord>,
}

/// Totals of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayTotals {
    /// Seconds from the first measurement to the map, without pictures.
    pub seconds: f64,
    /// Seconds of them spent learning.
    pub learning_seconds: f64,
    /// Inducing points at the end.
    pub inducing_points: usize,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Standard deviation of the noise at the end, in microtesla.
    pub noise_standard_deviation: f64,
    /// Batches that were rejected.
    pub rejected_batches: u64,
    /// Batches that reached the limit of inducing points: the map is less accurate there than requested.
    pub capped_batches: usize,
    /// Batches whose number of inducing points followed from the exact ceiling.
    pub exact_ceilings: usize,
    /// Batches whose number of inducing points followed from the upper bound.
    pub upper_ceilings: usize,
    /// Batches after which grids were written.
    pub drawn_grids: usize,
    /// Area of the known cells, in square metres.
    pub mapped_area: f64,
}

/// Contents of the report besides the results of the threads.
pub(super) struct Context {
    pub(super) source: Source,
    pub(super) interrupted: bool,
    pub(super) resumed: Option<Resumed>,
    pub(super) started: Instant,
}

impl ReplayReport {
    pub(super) fn new(
        context: Context,
        finished: &Finished,
        history: &History,
        corrected_path: Option<PathReport>,
    ) -> Self {
        let Context { source, interrupted, resumed, started } = context;
        let (model, records) = (finished.mapper.model(), &history.records);
        let (map, rejected_batches) = (model.map(), model.totals.rejected_batches);
        let hyperparameters = map.as_ref().map(FieldMap::hyperparameters).unwrap_or_default();
        let updates = || records.iter().filter_map(|record| record.update.as_ref());
        let gaps = || updates().filter_map(|update| update.selection.gap);
        let ceilings = |used| gaps().filter(|gap| gap.ceiling_used == used).count();
        let totals = ReplayTotals {
            seconds: started.elapsed().as_secs_f64(),
            learning_seconds: records.iter().map(|record| record.seconds).sum(),
            inducing_points: map.as_ref().map_or(0, FieldMap::size),
            evaluations: updates().map(|update| update.learning.evaluations).sum(),
            noise_standard_deviation: hyperparameters.last().map_or(0.0, |noise| noise.value.sqrt()),
            rejected_batches,
            capped_batches: updates().filter(|update| update.selection.end == SelectionEnd::Capped).count(),
            exact_ceilings: ceilings(CeilingUsed::Exact),
            upper_ceilings: ceilings(CeilingUsed::Upper),
            drawn_grids: records.iter().filter(|record| record.grids.is_some()).count(),
            mapped_area: history.grid.as_ref().and_then(|grid| grid.as_ref().ok()).map_or(0.0, known_area),
        };
        let mut loss = source.loss;
        if model.totals.out_of_reach > 0 {
            let what = "observations were far above or below the others: a map of three axes is of one floor".into();
            loss.items.push(Lost { what, count: Some(model.totals.out_of_reach), first: None });
        }
        if rejected_batches > 0 {
            let first = records.iter().find_map(|record| record.rejected.clone());
            let what = "batches were rejected by the model".into();
            loss.items.push(Lost { what, count: Some(rejected_batches), first });
        }
        Self {
            magmap_version: env!("CARGO_PKG_VERSION"),
            frame: finished.mapper.frame().to_owned(),
            source: source.about,
            interrupted,
            resumed,
            counters: finished.status.counters,
            hyperparameters,
            sensor_bias: map.as_ref().and_then(FieldMap::sensor_bias),
            share_below: map.as_ref().and_then(FieldMap::share_below),
            choice: finished.mapper.progress().choice.clone(),
            relocated: finished.relocated.as_ref().map(|relocated| relocated.words.clone()),
            doubt: finished.doubt.clone(),
            delay: finished.mapper.trajectory().delay,
            changes: finished.mapper.trajectory().withdrawals.clone(),
            corrected_path,
            loss,
            totals,
            batches: records.clone(),
        }
    }
}

fn known_area(grid: &StrengthGrid) -> f64 {
    let known = grid.mean.iter().filter(|value| value.is_finite()).count();
    known as f64 * grid.geometry.resolution.powi(2)
}
