//! The state of a tile, to and from arrays in a file.

use std::io::{self, Cursor, Seek, Write};

use serde::{Deserialize, Serialize};
use streaming_gp::dual_memory::state::{DualState, SummaryState};
use streaming_gp::dual_memory::{Memory, Site};
use streaming_gp::{
    Axis, FieldPlace, FieldPlaces, Jitter, NamedValue, NoiseBaseline, NoiseBaselines, PastState, Places, Points, State,
};

use super::grid::{Square, TileCounts};
use crate::arrays::{ArrayReader, ArrayWriter, Problem};
use crate::config;
use crate::field::engine::{DIMENSION, likelihood};
use crate::field::process::{ProcessHead, ProcessKind, ProcessState};
use crate::field::sensor_bias::BiasPrior;

/// The part of a tile's state that is not arrays of numbers.
#[derive(Serialize, Deserialize)]
pub(in crate::field) struct TileMetadata {
    pub(in crate::field) square: Square,
    /// Number of targets in the noise baseline.
    pub(in crate::field) targets: u64,
    #[serde(flatten)]
    pub(in crate::field) counts: TileCounts,
    /// Name of the file that contains its arrays; none where they are beside this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::field) file: Option<String>,
}

/// Contents of a tile's file beside arrays of numbers.
#[derive(Serialize, Deserialize)]
struct TileFileMetadata {
    hyperparameter_names: Vec<String>,
    process: ProcessKind,
    #[serde(flatten)]
    tile: TileMetadata,
}

/// Value of the array `format` of a tile.
const TILE_FORMAT: &str = "magmap-tile";

/// Version of the format of a tile.
const TILE_FORMAT_VERSION: i64 = 1;

/// The bytes of the file of one tile: an archive as that of a checkpoint.
pub(super) fn tile_to_bytes(square: Square, counts: TileCounts, process: &ProcessState) -> io::Result<Vec<u8>> {
    let ProcessHead { kind, hyperparameter_names, targets } = process.head();
    let tile = TileMetadata { square, targets, counts, file: None };
    let metadata = TileFileMetadata { hyperparameter_names, process: kind, tile };
    let mut arrays = ArrayWriter::new(Cursor::new(Vec::new()));
    arrays.text("format", TILE_FORMAT)?;
    arrays.integer("format_version", TILE_FORMAT_VERSION)?;
    arrays.text("metadata", &serde_json::to_string(&metadata)?)?;
    write_process(&mut arrays, process)?;
    Ok(arrays.finish()?.into_inner())
}

/// The tile of a square in the bytes of its file, of a map made with these settings.
///
/// # Errors
/// The first problem that is found.
pub(in crate::field) fn tile_from_bytes(
    bytes: &[u8],
    square: Square,
    settings: &config::Model,
) -> Result<(TileCounts, ProcessState), Problem> {
    let arrays = ArrayReader::new(bytes)?;
    let (format, version) = (arrays.text("format")?, arrays.integer("format_version")?);
    if format != TILE_FORMAT {
        return Err(Problem::array("format", TILE_FORMAT, format));
    }
    if version != TILE_FORMAT_VERSION {
        return Err(Problem::Version { expected: TILE_FORMAT_VERSION, found: version });
    }
    let TileFileMetadata { hyperparameter_names, process, tile } = serde_json::from_str(&arrays.text("metadata")?)?;
    if tile.square != square {
        return Err(Problem::array("metadata", &format!("the tile {square:?}"), format!("{:?}", tile.square)));
    }
    let process = read_process(&arrays, process, &hyperparameter_names, tile.targets, settings)?;
    Ok((tile.counts, process))
}

pub(in crate::field) fn write_process<W: Write + Seek>(
    arrays: &mut ArrayWriter<W>,
    process: &ProcessState,
) -> io::Result<()> {
    match process {
        ProcessState::Streaming(state) => write_common(arrays, state),
        ProcessState::Vector(state, bias) => {
            write_common(arrays, state)?;
            write_bias(arrays, bias.as_ref())
        }
        ProcessState::Dual(dual) => {
            write_common(arrays, &dual.common)?;
            write_memory(arrays, dual)
        }
    }
}

pub(in crate::field) fn read_process(
    arrays: &ArrayReader<'_>,
    kind: ProcessKind,
    names: &[String],
    targets: u64,
    settings: &config::Model,
) -> Result<ProcessState, Problem> {
    let process = match kind {
        ProcessKind::Streaming => ProcessState::Streaming(read_common(arrays, names, targets, settings)?),
        ProcessKind::Vector => {
            ProcessState::Vector(Box::new(read_common(arrays, names, targets, settings)?), read_bias(arrays)?)
        }
        ProcessKind::DualMemory => {
            let common = read_common(arrays, names, targets, settings)?;
            ProcessState::Dual(read_memory(arrays, common)?)
        }
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
fn write_common<P: Rows, W: Write + Seek>(arrays: &mut ArrayWriter<W>, state: &State<P>) -> io::Result<()> {
    let hyperparameters = state.hyperparameters.iter().map(|hyperparameter| hyperparameter.value);
    arrays.numbers("hyperparameters", &[state.hyperparameters.len()], hyperparameters)?;
    arrays.numbers("mean", &[], [state.mean])?;
    let outputs = state.baseline.outputs();
    let baselines = outputs.iter().flat_map(|baseline| [baseline.mean, baseline.scatter]);
    arrays.numbers("baseline", &[outputs.len(), 2], baselines)?;
    let past = state.past.as_ref();
    let rows = past.map_or_else(Vec::new, |past| past.inducing.rows());
    let of_past = |numbers: fn(&PastState<P>) -> &Vec<f64>| past.map_or(&[][..], |past| numbers(past)).iter().copied();
    let size = rows.len() / P::COLUMNS;
    arrays.numbers("inducing_points", &[size, P::COLUMNS], rows)?;
    arrays.numbers("covariance_root", &[size, size], of_past(|past| &past.covariance_root))?;
    arrays.numbers("triangle", &[size, size], of_past(|past| &past.triangle))?;
    arrays.numbers("target", &[size], of_past(|past| &past.target))?;
    arrays.numbers("log_evidence", &[], [past.map_or(0.0, |past| past.log_evidence)])
}

/// The arrays of the dual model: its memory, and the summary of all other observations.
fn write_memory<W: Write + Seek>(arrays: &mut ArrayWriter<W>, dual: &DualState<Points>) -> io::Result<()> {
    let nothing = Memory { places: Points::new(DIMENSION), targets: Vec::new(), sites: Vec::new() };
    let Memory { places, targets, sites } = dual.memory.as_ref().unwrap_or(&nothing);
    let size = targets.len();
    arrays.numbers("memory_places", &[size, DIMENSION], (0..size).flat_map(|index| places.point(index)))?;
    arrays.numbers("memory_targets", &[size], targets.iter().copied())?;
    let sites = sites.iter().flat_map(|site| [site.precision, site.natural]);
    arrays.numbers("memory_sites", &[size, 2], sites)?;
    let nothing = SummaryState { triangle: Vec::new(), target: Vec::new(), log_evidence: 0.0 };
    let SummaryState { triangle, target, log_evidence } = dual.summary.as_ref().unwrap_or(&nothing);
    let size = target.len();
    arrays.numbers("summary_triangle", &[size, size], triangle.iter().copied())?;
    arrays.numbers("summary_target", &[size], target.iter().copied())?;
    arrays.numbers("summary_log_evidence", &[], [*log_evidence])
}

fn read_memory(arrays: &ArrayReader<'_>, common: State<Points>) -> Result<DualState<Points>, Problem> {
    let coordinates = arrays.numbers("memory_places", [None, Some(DIMENSION)])?;
    let (places, _) = coordinates.as_chunks::<DIMENSION>();
    let sites = arrays.numbers("memory_sites", [Some(places.len()), Some(2)])?;
    let sites = sites.as_chunks().0.iter().map(|&[precision, natural]| Site { precision, natural });
    let memory = Memory {
        places: Points::from_arrays(places),
        targets: arrays.numbers("memory_targets", [Some(places.len())])?,
        sites: sites.collect(),
    };
    let target = arrays.numbers("summary_target", [None])?;
    let summary = SummaryState {
        triangle: arrays.numbers("summary_triangle", [Some(target.len()); 2])?,
        log_evidence: arrays.number("summary_log_evidence")?,
        target,
    };
    let has_summary = !summary.target.is_empty();
    // Before the first batch there is no memory, not even an empty one.
    let has_begun = common.past.is_some() || !memory.targets.is_empty();
    Ok(DualState { common, link: None, memory: has_begun.then_some(memory), summary: has_summary.then_some(summary) })
}

/// Writes the knowledge of the sensor's bias before the tile; empty where there was none.
fn write_bias<W: Write + Seek>(arrays: &mut ArrayWriter<W>, bias: Option<&BiasPrior>) -> io::Result<()> {
    let size = bias.map_or(0, |bias| bias.mean.len());
    arrays.numbers("bias_mean", &[size], bias.iter().flat_map(|bias| bias.mean))?;
    arrays.numbers("bias_covariance", &[size, size], bias.iter().flat_map(|bias| bias.covariance).flatten())
}

fn read_bias(arrays: &ArrayReader<'_>) -> Result<Option<BiasPrior>, Problem> {
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

fn read_common<P: Rows>(
    arrays: &ArrayReader<'_>,
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
