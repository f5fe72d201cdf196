//! The state of a tile, to and from a row with its arrays.

use streaming_gp::{
    Axis, FieldPlace, FieldPlaces, Jitter, NamedValue, NoiseBaseline, NoiseBaselines, PastState, Places, Points, State,
};

use super::grid::{Square, TileCounts};
use crate::arrays::{Arrays, Problem};
use crate::config;
use crate::field::engine::{DIMENSION, likelihood};
use crate::field::process::{ProcessKind, ProcessState, VectorState};
use crate::field::sensor_bias::BiasPrior;
use crate::field::tile_store::TileRow;

/// The row of a tile in a file.
pub(super) fn to_row(square: Square, counts: TileCounts, process: &ProcessState) -> TileRow {
    let TileCounts { learnt, own } = counts;
    let mut arrays = Arrays::default();
    match process {
        ProcessState::Strength(state) => add_common(&mut arrays, state),
        ProcessState::Vector(vector) => {
            add_common(&mut arrays, &vector.state);
            add_bias(&mut arrays, vector.bias.as_ref());
            arrays.add("plane", &[], [vector.plane]);
        }
    }
    TileRow { square, targets: process.head().targets, learnt, own, arrays }
}

/// The tile in a row, of a map of this kind, with hyperparameters of these names, made with these settings.
///
/// # Errors
/// The first problem that is found.
pub(in crate::field) fn from_row(
    row: &TileRow,
    kind: ProcessKind,
    names: &[String],
    settings: &config::Model,
) -> Result<(TileCounts, ProcessState), Problem> {
    let &TileRow { targets, learnt, own, ref arrays, .. } = row;
    Ok((TileCounts { learnt, own }, read_process(arrays, kind, names, targets, settings)?))
}

fn read_process(
    arrays: &Arrays,
    kind: ProcessKind,
    names: &[String],
    targets: u64,
    settings: &config::Model,
) -> Result<ProcessState, Problem> {
    let process = match kind {
        ProcessKind::Strength => ProcessState::Strength(read_common(arrays, names, targets, settings)?),
        ProcessKind::Vector => ProcessState::Vector(Box::new(VectorState {
            state: read_common(arrays, names, targets, settings)?,
            bias: read_bias(arrays)?,
            plane: read_plane(arrays)?,
        })),
    };
    process.check()?;
    Ok(process)
}

/// Inducing variables as rows of numbers.
trait Rows: Sized + Clone {
    /// Numbers in a row.
    const COLUMNS: usize;

    fn rows(&self) -> Vec<f64>;

    /// Variables from such rows; none where they are not what [`rows`](Self::rows) gives.
    fn from_rows(rows: &[f64]) -> Option<Self>;
}

/// x and y, in metres.
impl Rows for Points {
    const COLUMNS: usize = DIMENSION;

    fn rows(&self) -> Vec<f64> {
        (0..self.len()).flat_map(|index| self.point(index)).collect()
    }

    fn from_rows(rows: &[f64]) -> Option<Self> {
        Some(Self::from_arrays(rows.as_chunks::<DIMENSION>().0))
    }
}

/// x, y and z, in metres; 0 for the field, 1 for the hard iron, 2 for the bias that grows with speed; and the axis, from 0 to 2.
impl Rows for FieldPlaces {
    const COLUMNS: usize = 5;

    fn rows(&self) -> Vec<f64> {
        let row = |place| {
            let ([x, y, z], kind, axis) = match place {
                FieldPlace::Field { axis, position } | FieldPlace::Reading { axis, position, .. } => {
                    (position, 0, axis)
                }
                FieldPlace::HardIron(axis) => ([0.0; 3], 1, axis),
                FieldPlace::SpeedBias(axis) => ([0.0; 3], 2, axis),
            };
            [x, y, z, f64::from(kind), f64::from(axis as u8)]
        };
        self.iter().flat_map(row).collect()
    }

    fn from_rows(rows: &[f64]) -> Option<Self> {
        let place = |&[x, y, z, kind, axis]: &[f64; 5]| {
            let axis = Axis::ALL.into_iter().find(|candidate| f64::from(*candidate as u8) == axis)?;
            match kind {
                0.0 => Some(FieldPlace::Field { axis, position: [x, y, z] }),
                1.0 => Some(FieldPlace::HardIron(axis)),
                2.0 => Some(FieldPlace::SpeedBias(axis)),
                _ => None,
            }
        };
        rows.as_chunks::<5>().0.iter().map(place).collect()
    }
}

/// Writes the arrays that all processes have. The arrays of the past are empty before the first batch.
fn add_common<P: Rows>(arrays: &mut Arrays, state: &State<P>) {
    let hyperparameters = state.hyperparameters.iter().map(|hyperparameter| hyperparameter.value);
    arrays.add("hyperparameters", &[state.hyperparameters.len()], hyperparameters);
    arrays.add("mean", &[], [state.mean]);
    let outputs = state.baseline.outputs();
    let baselines = outputs.iter().flat_map(|baseline| [baseline.mean, baseline.scatter]);
    arrays.add("baseline", &[outputs.len(), 2], baselines);
    let past = state.past.as_ref();
    let rows = past.map_or_else(Vec::new, |past| past.inducing.rows());
    let of_past = |numbers: fn(&PastState<P>) -> &Vec<f64>| past.map_or(&[][..], |past| numbers(past)).iter().copied();
    let size = rows.len() / P::COLUMNS;
    arrays.add("inducing_points", &[size, P::COLUMNS], rows);
    arrays.add("covariance_root", &[size, size], of_past(|past| &past.covariance_root));
    arrays.add("triangle", &[size, size], of_past(|past| &past.triangle));
    arrays.add("target", &[size], of_past(|past| &past.target));
    arrays.add("log_evidence", &[], [past.map_or(0.0, |past| past.log_evidence)]);
}

/// Writes the knowledge of the sensor's bias before the tile; empty where there was none.
fn add_bias(arrays: &mut Arrays, bias: Option<&BiasPrior>) {
    let size = bias.map_or(0, |bias| bias.mean.len());
    arrays.add("bias_mean", &[size], bias.iter().flat_map(|bias| bias.mean));
    arrays.add("bias_covariance", &[size, size], bias.iter().flat_map(|bias| bias.covariance).flatten());
}

fn read_bias(arrays: &Arrays) -> Result<Option<BiasPrior>, Problem> {
    let mean = arrays.numbers("bias_mean", [None])?;
    let covariance = arrays.numbers("bias_covariance", [Some(mean.len()); 2])?;
    if mean.is_empty() {
        return Ok(None);
    }
    let bias = mean.try_into().ok().and_then(|mean| {
        let rows = covariance.as_chunks::<6>().0.try_into().ok()?;
        Some(BiasPrior { mean, covariance: rows }).filter(BiasPrior::is_valid)
    });
    let other = || Problem::array("bias_covariance", "the covariance of six components", "another matrix");
    bias.map(Some).ok_or_else(other)
}

fn read_plane(arrays: &Arrays) -> Result<f64, Problem> {
    let plane = arrays.number("plane")?;
    let problem = || Problem::array("plane", "a height in metres", "NaN or infinity");
    plane.is_finite().then_some(plane).ok_or_else(problem)
}

fn read_common<P: Rows>(
    arrays: &Arrays,
    names: &[String],
    targets: u64,
    settings: &config::Model,
) -> Result<State<P>, Problem> {
    let values = arrays.numbers("hyperparameters", [Some(names.len())])?;
    let hyperparameters = names.iter().zip(values).map(|(name, value)| NamedValue { name: name.clone(), value });
    let baselines = arrays.numbers("baseline", [None, Some(2)])?;
    let (baselines, _) = baselines.as_chunks();
    // Every reading has a target for each output.
    let count = targets / (baselines.len() as u64).max(1);
    let baselines = baselines.iter().map(|&[mean, scatter]| NoiseBaseline { count, mean, scatter });
    let rows = arrays.numbers("inducing_points", [None, Some(P::COLUMNS)])?;
    let size = rows.len() / P::COLUMNS;
    let expected = "axes of the field and components of the sensor's bias";
    let others = || Problem::array("inducing_points", expected, "others");
    let past = PastState {
        inducing: P::from_rows(&rows).ok_or_else(others)?,
        covariance_root: arrays.numbers("covariance_root", [Some(size), Some(size)])?,
        triangle: arrays.numbers("triangle", [Some(size), Some(size)])?,
        target: arrays.numbers("target", [Some(size)])?,
        log_evidence: arrays.number("log_evidence")?,
    };
    Ok(State {
        hyperparameters: hyperparameters.collect(),
        mean: arrays.number("mean")?,
        jitter: Jitter::Relative(settings.relative_jitter),
        likelihood: likelihood(settings),
        baseline: NoiseBaselines::new(baselines.collect()),
        past: (size > 0).then_some(past),
    })
}
