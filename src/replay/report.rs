//! What a replay says about itself.

use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::drawing::History;
use super::{Progress, Resumed, Source};
use crate::export::GrowthPoint;
use crate::export::occupancy::GridScales;
use crate::mapping::batcher::{CutReason, Joint};
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::FieldModel;
use crate::mapping::grid::FieldGrid;
use crate::mapping::pipeline::Counters;
use crate::mapping::quantity::Quantity;
use crate::mapping::reading::Stamp;
use crate::mapping::worker::{Finished, Update};
use crate::recording::{Loss, Lost};
use streaming_gp::places::Places;
use streaming_gp::report::{CeilingUsed, NamedValue, SelectionEnd, UpdateReport};

/// Everything that happened in a replay.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of magmap.
    pub magmap_version: &'static str,
    /// What is known of the source; of a recording, its [`Summary`](crate::recording::Summary).
    pub source: Value,
    /// The frame of the map.
    pub frame: String,
    /// What the map is of.
    pub quantity: Quantity,
    /// Whether it was ended before the source was.
    pub interrupted: bool,
    /// What it went on from; batches are listed from there on.
    pub resumed: Option<Resumed>,
    /// What went in, what came out, and what was refused, by reason.
    pub counters: Counters,
    /// What it adds up to.
    pub totals: Totals,
    /// Hyperparameters at the end; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// What is missing: of the source, and batches that were refused.
    pub loss: Loss,
    /// One per batch.
    pub batches: Vec<BatchRecord>,
}

/// What a replay adds up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Seconds from the first measurement to the map, pictures not included.
    pub seconds: f64,
    /// Seconds of them spent learning.
    pub learning_seconds: f64,
    /// Inducing points at the end.
    pub inducing_points: usize,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Standard deviation of the noise at the end, in microtesla.
    pub noise_standard_deviation: f64,
    /// Batches that were refused.
    pub refused_batches: u64,
    /// Batches that ended with the most inducing points allowed: the map is less exact there than asked for.
    pub capped_batches: usize,
    /// Batches of which the exact ceiling ruled the number of inducing points.
    pub exact_ceilings: usize,
    /// Batches of which the upper bound did.
    pub upper_ceilings: usize,
    /// Batches after which grids were written.
    pub drawn_grids: usize,
    /// Area of the cells that the map knows, in square metres.
    pub mapped_area: f64,
}

/// One batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchRecord {
    /// Which, counted from 1.
    pub batch: u64,
    /// Stamp of its last reading, in seconds.
    pub stamp: f64,
    /// Observations in it.
    pub observations: usize,
    /// Why it was cut.
    pub cut: CutReason,
    /// Where batches merged into it had been cut.
    pub joints: Vec<Joint>,
    /// Seconds that learning took.
    pub seconds: f64,
    /// What learning did; nothing for a batch that was refused.
    pub update: Option<UpdateReport>,
    /// Why it was refused.
    pub refused: Option<String>,
    /// The scales of the grids written after it, if any were.
    pub grids: Option<GridScales>,
}

impl BatchRecord {
    pub(super) fn new(update: &Update<FieldSnapshot>, stamp: Stamp) -> Self {
        let result = update.snapshot.result.as_ref();
        Self {
            batch: update.number + 1,
            stamp: stamp.seconds(),
            observations: update.observations,
            cut: update.cut,
            joints: update.joints.clone(),
            seconds: update.duration.as_secs_f64(),
            update: result.and_then(|result| result.as_ref().ok()).cloned(),
            refused: result.and_then(|result| result.as_ref().err()).map(ToString::to_string),
            grids: None,
        }
    }

    /// How the model was after it, for the picture of its growth.
    pub(super) fn growth(&self) -> Option<GrowthPoint> {
        self.update.as_ref().map(|update| GrowthPoint {
            inducing_points: update.inducing_points,
            hyperparameters: update.hyperparameters.clone(),
            seconds: self.seconds,
        })
    }
}

/// How far the pipeline was when an update ended.
pub(super) fn progress(update: &Update<FieldSnapshot>) -> Progress {
    let posterior = update.snapshot.posterior.as_ref();
    Progress {
        measurements: update.counters.readings + update.counters.poses,
        batches: update.number + 1,
        inducing_points: posterior.map_or(0, |posterior| streaming_gp::kernel::Places::len(posterior.inducing())),
    }
}

/// What the report knows from the start.
pub(super) struct Context {
    pub(super) source: Source,
    pub(super) interrupted: bool,
    pub(super) resumed: Option<Resumed>,
    pub(super) started: Instant,
}

impl Report {
    pub(super) fn new(context: Context, finished: &Finished<FieldModel>, history: &History) -> Self {
        let Context { source, interrupted, resumed, started } = context;
        let mut totals = Totals::of(&history.records);
        totals.seconds = started.elapsed().as_secs_f64();
        totals.refused_batches = finished.mapper.learner().totals().refused_batches;
        totals.mapped_area = history.grid.as_ref().and_then(|grid| grid.as_ref().ok()).map_or(0.0, known_area);
        let points = finished.mapper.learner().posterior().map(|posterior| posterior.inducing().len());
        totals.inducing_points = points.unwrap_or(0);
        let model = finished.mapper.learner().model();
        totals.noise_standard_deviation = model.noise.sqrt();
        Self {
            magmap_version: env!("CARGO_PKG_VERSION"),
            source: source.about,
            frame: source.frame,
            quantity: finished.mapper.learner().quantity(),
            interrupted,
            resumed,
            counters: finished.status.counters,
            hyperparameters: model.named_values(),
            loss: with_refused_batches(source.loss, &totals, &history.records),
            totals,
            batches: history.records.clone(),
        }
    }
}

impl Totals {
    fn of(records: &[BatchRecord]) -> Self {
        let updates = || records.iter().filter_map(|record| record.update.as_ref());
        let gaps = || updates().filter_map(|update| update.selection.gap);
        let ceilings = |used| gaps().filter(|gap| gap.ceiling_used == used).count();
        Self {
            learning_seconds: records.iter().map(|record| record.seconds).sum(),
            evaluations: updates().map(|update| update.learning.evaluations).sum(),
            capped_batches: updates().filter(|update| update.selection.end == SelectionEnd::Capped).count(),
            exact_ceilings: ceilings(CeilingUsed::Exact),
            upper_ceilings: ceilings(CeilingUsed::Upper),
            drawn_grids: records.iter().filter(|record| record.grids.is_some()).count(),
            ..Self::default()
        }
    }
}

fn with_refused_batches(mut loss: Loss, totals: &Totals, records: &[BatchRecord]) -> Loss {
    if totals.refused_batches > 0 {
        let first = records.iter().find_map(|record| record.refused.clone());
        let what = "batches were refused by the model".into();
        loss.items.push(Lost { what, count: Some(totals.refused_batches), first });
    }
    loss
}

fn known_area(grid: &FieldGrid) -> f64 {
    let known = grid.mean.iter().filter(|value| value.is_finite()).count();
    known as f64 * grid.geometry.resolution.powi(2)
}
