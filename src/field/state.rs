//! The complete state of a map, to and from arrays in a file.

use std::io::{self, Seek, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::process::ProcessKind;
use super::tile_store::StoredTile;
use super::tiles::arrays::{TileMetadata, read_process, tile_from_bytes, write_process};
use super::tiles::{Square, TileGrid, TileState, TilesState};
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
        let tile = |(tile, file): (&TileState, Option<String>)| TileMetadata {
            square: tile.square,
            targets: tile.head().targets,
            counts: tile.counts,
            file,
        };
        StateMetadata {
            stamp_nanoseconds: self.newest.map(Stamp::nanoseconds),
            totals: self.totals,
            hyperparameter_names: head.hyperparameter_names.clone(),
            process: head.kind,
            tile_grid: self.tiles.grid,
            newest_tile: self.tiles.newest,
            tiles: self.tiles.tiles.iter().zip(files).map(tile).collect(),
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
                tiles.push(TileState::of(tile.square, tile.counts, process));
                continue;
            };
            let read = read_tile(file).and_then(|(bytes, stored)| {
                let (counts, process) = tile_from_bytes(&bytes, tile.square, &settings)?;
                Ok(TileState::of(tile.square, counts, process).stored_as(stored))
            });
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

/// What the names of a tile's arrays begin with: nothing for the tile with the number 0, the only one of most maps.
fn section(number: usize) -> String {
    if number == 0 { String::new() } else { format!("tile_{number}_") }
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

fn read_extent(arrays: &ArrayReader<'_>) -> Result<Option<[[f64; 2]; 2]>, Problem> {
    let corners = arrays.numbers("extent", [None, Some(2)])?;
    match corners[..] {
        [] => Ok(None),
        [left, bottom, right, top] if left <= right && bottom <= top => Ok(Some([[left, bottom], [right, top]])),
        _ => Err(Problem::array("extent", "the lower left and the upper right corner", format!("{corners:?}"))),
    }
}
