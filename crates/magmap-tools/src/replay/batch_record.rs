//! Records of the batches of a replay.

use serde::Serialize;
use streaming_gp::UpdateReport;

use magmap::display::occupancy::GridScales;
use magmap::field::map::{FieldMap, SensorBias};
use magmap::mapping::batcher::{CutReason, MergePoint};
use magmap::mapping::updates::Update;
use magmap::sensing::reading::Stamp;

/// A batch and the update that learnt from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchRecord {
    /// Number of the batch, counted from 1.
    pub batch: u64,
    /// Stamp of its last reading, in seconds.
    pub stamp: f64,
    /// Observations in it.
    pub observations: usize,
    /// Why it was cut.
    pub cut: CutReason,
    /// The points at which batches merged into it had been cut.
    pub merge_points: Vec<MergePoint>,
    /// Seconds that learning took.
    pub seconds: f64,
    /// The report of learning; none for a rejected batch.
    pub update: Option<UpdateReport>,
    /// The bias of the sensor after it, where it is learnt: `hard_iron` and `hard_iron_sd`.
    #[serde(flatten)]
    pub sensor_bias: Option<SensorBias>,
    /// Why it was rejected.
    pub rejected: Option<String>,
    /// The scales of the grids written after it, if any were.
    pub grids: Option<GridScales>,
}

impl BatchRecord {
    pub(super) fn new(update: &Update, stamp: Stamp) -> Self {
        let result = update.result.as_ref();
        Self {
            batch: update.number + 1,
            stamp: stamp.seconds(),
            observations: update.observations,
            cut: update.cut,
            merge_points: update.merge_points.clone(),
            seconds: update.duration.as_secs_f64(),
            update: result.and_then(|result| result.as_ref().ok()).cloned(),
            sensor_bias: update.map.as_ref().and_then(FieldMap::sensor_bias),
            rejected: result.and_then(|result| result.as_ref().err()).map(ToString::to_string),
            grids: None,
        }
    }
}
