//! The complete state of a map, to and from arrays in a file.

use std::io::{self, Cursor, Seek, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use streaming_gp::dual_memory::state::{DualState, SummaryState};
use streaming_gp::dual_memory::{Memory, Site};
use streaming_gp::{
    Axis, FieldPlace, FieldPlaces, Jitter, NamedValue, NoiseBaseline, NoiseBaselines, PastState, Places, Points, State,
};
use toml::Table;

use super::engine::{DIMENSION, likelihood, link};
use super::process::{ProcessHead, ProcessKind, ProcessState};
use super::sensor_bias::BiasPrior;
use super::tile_store::StoredTile;
use super::tiles::{Square, TileCounts, TileGrid, TileState, TilesState};
use super::totals::Totals;
use crate::arrays::{ArrayReader, ArrayWriter, Problem};
use crate::config::{self, Config};
use crate::sensing::reading::Stamp;

/// Everything a [`FieldModel`](super::model::FieldModel) has learnt, and the settings needed to interpret it.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldState {
    /// The section `model`; all but `model.initial` is fixed for the life of the map.
    pub settings: config::Model,
    /// The section `tiles`.
    pub(super) tile_settings: config::Tiles,
    pub(crate) tiles: TilesState,
    /// Counts of what it was learnt from.
    pub totals: Totals,
    /// Lower left and upper right corner of the observations, in metres; none before the first batch.
    pub extent: Option<[[f64; 2]; 2]>,
    pub(super) newest: Option<Stamp>,
}

/// The part of a map's state that is not arrays of numbers.
#[derive(Serialize, Deserialize)]
pub(crate) struct StateMetadata {
    stamp_nanoseconds: Option<i64>,
    #[serde(flatten)]
    totals: Totals,
    hyperparameter_names: Vec<String>,
    process: ProcessKind,
    tile_grid: Option<TileGrid>,
    newest_tile: Square,
    tiles: Vec<TileMetadata>,
}

/// The part of a tile's state that is not arrays of numbers.
#[derive(Serialize, Deserialize)]
struct TileMetadata {
    square: Square,
    /// Number of targets in the noise baseline.
    targets: u64,
    /// Observations it learnt from.
    learnt: u64,
    /// Those of them that count for it alone.
    own: u64,
    /// Name of the file that contains its arrays; none where they are beside this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl TileMetadata {
    fn of(tile: &TileState, file: Option<String>) -> Self {
        let TileCounts { learnt, own } = tile.counts;
        Self { square: tile.square, targets: tile.head().targets, learnt, own, file }
    }

    fn counts(&self) -> TileCounts {
        TileCounts { learnt: self.learnt, own: self.own }
    }
}

/// What the file of a tile contains beside arrays of numbers.
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

/// Where tiles are that have files: their bytes by the name of the file, and what keeps the file, if something does.
pub(crate) type ReadTile<'a> = dyn FnMut(&str) -> Result<(Vec<u8>, Option<Arc<StoredTile>>), Problem> + 'a;

/// The file of a tile that is damaged.
#[derive(Debug)]
pub(crate) struct DamagedTile {
    pub(crate) file: String,
    pub(crate) problem: Problem,
}

impl FieldState {
    /// Checks that the map can be continued with these settings.
    ///
    /// # Errors
    /// [`SettingDiffers`](super::Error::SettingDiffers) for what is fixed for the life of a map.
    pub fn check(&self, config: &Config) -> Result<(), super::Error> {
        let is_dual_memory = self.tiles.tiles.iter().any(|tile| tile.head().kind == ProcessKind::DualMemory);
        check(&self.settings, &self.tile_settings, is_dual_memory, config)
    }

    /// The part that is not arrays of numbers. `files` names for each tile the file that contains its arrays, if one does.
    pub(crate) fn metadata(&self, files: &[Option<String>]) -> StateMetadata {
        // Those of all tiles are the same, and there is one.
        let head = self.tiles.tiles[0].head();
        let files = files.iter().cloned().chain(std::iter::repeat(None));
        StateMetadata {
            stamp_nanoseconds: self.newest.map(Stamp::nanoseconds),
            totals: self.totals,
            hyperparameter_names: head.hyperparameter_names.clone(),
            process: head.kind,
            tile_grid: self.tiles.grid,
            newest_tile: self.tiles.newest,
            tiles: self.tiles.tiles.iter().zip(files).map(|(tile, file)| TileMetadata::of(tile, file)).collect(),
        }
    }

    /// Writes the arrays of numbers, without those of tiles that have a file.
    pub(crate) fn write<W: Write + Seek>(
        &self,
        arrays: &mut ArrayWriter<W>,
        files: &[Option<String>],
    ) -> io::Result<()> {
        for (number, tile) in self.tiles.tiles.iter().enumerate() {
            if files.get(number).is_none_or(Option::is_none) {
                arrays.section(&section(number));
                let process = tile.process().ok_or_else(|| io::Error::other("a tile of the map is lost"))?;
                write_process(arrays, &process)?;
            }
        }
        arrays.section("");
        let corners = self.extent.as_ref().map_or(&[][..], |corners| corners);
        arrays.numbers("extent", &[corners.len(), 2], corners.iter().flatten().copied())
    }

    /// Reads what [`write`](Self::write) wrote, of a map made with the settings in `config`. Tiles whose file is damaged are missing, and
    /// returned.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn read(
        arrays: &ArrayReader<'_>,
        metadata: StateMetadata,
        config: &str,
        read_tile: &mut ReadTile<'_>,
    ) -> Result<(Self, Vec<DamagedTile>), Problem> {
        let (settings, tile_settings) = sections(config)?;
        let (mut tiles, mut damaged) = (Vec::new(), Vec::new());
        let names = &metadata.hyperparameter_names;
        for (number, tile) in metadata.tiles.iter().enumerate() {
            let Some(file) = &tile.file else {
                let arrays = &arrays.section(&section(number));
                let process = read_process(arrays, metadata.process, names, tile.targets, &settings)?;
                tiles.push(TileState::of(tile.square, tile.counts(), process));
                continue;
            };
            let read = read_tile(file)
                .and_then(|(bytes, stored)| Ok(tile_from_bytes(&bytes, tile.square, &settings)?.stored_as(stored)));
            match read {
                Ok(tile) => tiles.push(tile),
                Err(problem) => damaged.push(DamagedTile { file: file.clone(), problem }),
            }
        }
        let newest = metadata.newest_tile;
        let mut tiles = TilesState { grid: metadata.tile_grid, tiles, newest };
        if !damaged.is_empty() {
            match &tiles.tiles[..] {
                [] => return Err(damaged.swap_remove(0).problem),
                _ => tiles.replace_newest(),
            }
        }
        let extent = read_extent(arrays)?;
        if !tiles.is_valid() || (tiles.grid.is_some() && (tile_settings.size == 0.0 || extent.is_none())) {
            let expected = "a grid of tiles in ascending order, the newest among them";
            return Err(Problem::array("metadata", expected, "others"));
        }
        let (totals, newest) = (metadata.totals, metadata.stamp_nanoseconds.map(Stamp::from_nanoseconds));
        Ok((Self { settings, tile_settings, tiles, totals, extent, newest }, damaged))
    }
}

/// The bytes of the file of one tile: an archive as that of a checkpoint.
pub(super) fn tile_to_bytes(tile: &TileState) -> io::Result<Vec<u8>> {
    let ProcessHead { kind, hyperparameter_names, .. } = tile.head().into_owned();
    let tile_metadata = TileMetadata::of(tile, None);
    let metadata = TileFileMetadata { hyperparameter_names, process: kind, tile: tile_metadata };
    let mut arrays = ArrayWriter::new(Cursor::new(Vec::new()));
    arrays.text("format", TILE_FORMAT)?;
    arrays.integer("format_version", TILE_FORMAT_VERSION)?;
    arrays.text("metadata", &serde_json::to_string(&metadata)?)?;
    let process = tile.process().ok_or_else(|| io::Error::other("a tile of the map is lost"))?;
    write_process(&mut arrays, &process)?;
    Ok(arrays.finish()?.into_inner())
}

/// The tile of a square in the bytes of its file, of a map made with these settings.
///
/// # Errors
/// What is wrong.
pub(super) fn tile_from_bytes(bytes: &[u8], square: Square, settings: &config::Model) -> Result<TileState, Problem> {
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
    Ok(TileState::of(square, tile.counts(), process))
}

fn write_process<W: Write + Seek>(arrays: &mut ArrayWriter<W>, process: &ProcessState) -> io::Result<()> {
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

fn read_process(
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
            ProcessState::Dual(read_memory(arrays, common, settings)?)
        }
    };
    process.check()?;
    Ok(process)
}

/// What the names of a tile's arrays begin with: nothing for the tile with the number 0, the only one of most maps.
fn section(number: usize) -> String {
    if number == 0 { String::new() } else { format!("tile_{number}_") }
}

/// Inducing variables as rows of numbers.
trait Rows: Sized + Clone {
    /// Numbers in a row.
    const COLUMNS: usize;

    fn rows(&self) -> Vec<f64>;

    /// None for rows that are not what [`rows`](Self::rows) gives.
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

/// Rejects a configuration whose sections `model` and `tiles` differ in more than `model.initial`, `tiles.threads` and `tiles.memory`, or whose
/// method belongs to the other process.
pub(super) fn check(
    model: &config::Model,
    tiles: &config::Tiles,
    is_dual_memory: bool,
    config: &Config,
) -> Result<(), super::Error> {
    check_method(is_dual_memory, config)?;
    let models = [model, &config.model];
    let has_no_degrees = models.iter().all(|model| model.likelihood != config::Likelihood::StudentT);
    check_section("model", models, |key| key != "initial" && !(key == "degrees_of_freedom" && has_no_degrees))?;
    check_section("tiles", [tiles, &config.tiles], |key| key != "threads" && key != "memory")
}

/// Rejects a section that differs from the one the map was made with in a key that matters.
fn check_section<S: Serialize>(
    name: &str,
    [made_with, configured]: [&S; 2],
    matters: impl Fn(&str) -> bool,
) -> Result<(), super::Error> {
    let section = |settings| Table::try_from(settings).map_err(config::Error::from);
    let (made_with, configured) = (section(made_with)?, section(configured)?);
    let differing = made_with.iter().find(|&(key, value)| matters(key) && configured.get(key) != Some(value));
    differing.map_or(Ok(()), |(key, value)| {
        let configured = configured.get(key).map_or_else(String::new, ToString::to_string);
        Err(super::Error::SettingDiffers { key: format!("{name}.{key}"), made_with: value.to_string(), configured })
    })
}

fn check_method(is_dual_memory: bool, config: &Config) -> Result<(), super::Error> {
    let method = &config.selection.method;
    if method.is_dual_memory() == is_dual_memory {
        return Ok(());
    }
    let made_with = if is_dual_memory { "\"dual_memory\"" } else { "\"vips\" or another method than \"dual_memory\"" };
    Err(super::Error::SettingDiffers {
        key: "selection.method".to_owned(),
        made_with: made_with.to_owned(),
        configured: format!("\"{method}\""),
    })
}

/// The sections `model` and `tiles`, needed to interpret the state. The others may come from a different version of magmap.
fn sections(config: &str) -> Result<(config::Model, config::Tiles), Problem> {
    let problem = |error: &dyn std::fmt::Display| Problem::Settings(error.to_string());
    let mut sections: Table = config.parse().map_err(|error: toml::de::Error| problem(&error))?;
    let mut section =
        |name: &str| sections.remove(name).ok_or_else(|| problem(&format!("expected a section {name}, found none")));
    let model = config::Model::deserialize(section("model")?).map_err(|error| problem(&error))?;
    let tiles = config::Tiles::deserialize(section("tiles")?).map_err(|error| problem(&error))?;
    // Halo and band may come from another lengthscale than the default one; those in force are in the grid.
    let mut whole = Config { model: model.clone(), ..Config::default() };
    if model.likelihood == config::Likelihood::Bernoulli {
        // It requires settings in other sections.
        whole
            .apply_overrides(&["topics.signal=signal", "selection.method=dual_memory"])
            .map_err(|error| problem(&error))?;
    }
    whole.validate().map_err(|error| problem(&error))?;
    Ok((model, tiles))
}

/// The arrays that all processes have. Those of the past are empty before the first batch.
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

fn read_memory(
    arrays: &ArrayReader<'_>,
    common: State<Points>,
    settings: &config::Model,
) -> Result<DualState<Points>, Problem> {
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
    let link = link(settings);
    Ok(DualState { common, link, memory: has_begun.then_some(memory), summary: has_summary.then_some(summary) })
}

/// What was known of the sensor's bias before the tile; empty where nothing was.
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

fn read_extent(arrays: &ArrayReader<'_>) -> Result<Option<[[f64; 2]; 2]>, Problem> {
    let corners = arrays.numbers("extent", [None, Some(2)])?;
    match corners[..] {
        [] => Ok(None),
        [left, bottom, right, top] if left <= right && bottom <= top => Ok(Some([[left, bottom], [right, top]])),
        _ => Err(Problem::array("extent", "the lower left and the upper right corner", format!("{corners:?}"))),
    }
}
