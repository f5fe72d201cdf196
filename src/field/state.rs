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
use crate::config::{self, Config, Scope};
use crate::sensing::reading::Stamp;

/// Everything a [`FieldModel`](super::model::FieldModel) has learnt, and the settings needed to interpret it.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldState {
    /// The sections `model`, `vector` and `tiles`, among whose settings are all that are fixed for the life of the map; the others have
    /// their defaults.
    pub settings: Config,
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

/// Reads the file of a tile by its name: its bytes, and the handle that keeps the file, if there is one.
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
    /// [`SettingDiffers`](config::Error::SettingDiffers) for what is fixed for the life of a map.
    pub fn check(&self, config: &Config) -> Result<(), config::Error> {
        let is_dual_memory = self.tiles.tiles.iter().any(|tile| tile.head().kind == ProcessKind::DualMemory);
        check(&self.settings, is_dual_memory, config)
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
    /// The first problem that is found.
    pub(crate) fn read(
        arrays: &ArrayReader<'_>,
        metadata: StateMetadata,
        config: &str,
        read_tile: &mut ReadTile<'_>,
    ) -> Result<(Self, Vec<DamagedTile>), Problem> {
        let settings = sections(config)?;
        let (mut tiles, mut damaged) = (Vec::new(), Vec::new());
        let names = &metadata.hyperparameter_names;
        for (number, tile) in metadata.tiles.iter().enumerate() {
            let Some(file) = &tile.file else {
                let arrays = &arrays.section(&section(number));
                let process = read_process(arrays, metadata.process, names, tile.targets, &settings.model)?;
                tiles.push(TileState::of(tile.square, tile.counts, process));
                continue;
            };
            let read = read_tile(file).and_then(|(bytes, stored)| {
                let (counts, process) = tile_from_bytes(&bytes, tile.square, &settings.model)?;
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
        if !tiles.is_valid() || (tiles.grid.is_some() && (settings.tiles.size == 0.0 || extent.is_none())) {
            let expected = "a grid of tiles in ascending order, the newest among them";
            return Err(Problem::array("metadata", expected, "others"));
        }
        let (totals, newest) = (metadata.totals, metadata.stamp_nanoseconds.map(Stamp::from_nanoseconds));
        Ok((Self { settings, tiles, totals, extent, newest }, damaged))
    }
}

/// Prefix of the names of a tile's arrays: nothing for the tile with the number 0, the only one of most maps.
fn section(number: usize) -> String {
    if number == 0 { String::new() } else { format!("tile_{number}_") }
}

/// The settings that say what a map is; the others have their defaults.
pub(super) fn of_a_map(Config { model, vector, tiles, .. }: Config) -> Config {
    Config { model, vector, tiles, ..Config::default() }
}

/// Rejects settings with which a map cannot be continued that was made with others, or whose method belongs to the other process.
pub(super) fn check(made_with: &Config, is_dual_memory: bool, config: &Config) -> Result<(), config::Error> {
    check_method(is_dual_memory, config)?;
    made_with.check_unchanged(config, Scope::is_fixed_for_a_map)
}

fn check_method(is_dual_memory: bool, config: &Config) -> Result<(), config::Error> {
    let method = &config.selection.method;
    if method.is_dual_memory() == is_dual_memory {
        return Ok(());
    }
    let made_with = if is_dual_memory { "\"dual_memory\"" } else { "\"vips\" or another method than \"dual_memory\"" };
    Err(config::Error::SettingDiffers {
        key: "selection.method".to_owned(),
        made_with: made_with.to_owned(),
        configured: format!("\"{method}\""),
    })
}

/// The settings [of a map](of_a_map), needed to interpret the state. The others may come from a different version of magmap.
fn sections(config: &str) -> Result<Config, Problem> {
    let problem = |error: &dyn std::fmt::Display| Problem::Settings(error.to_string());
    let mut sections: Table = config.parse().map_err(|error: toml::de::Error| problem(&error))?;
    let mut section =
        |name: &str| sections.remove(name).ok_or_else(|| problem(&format!("expected a section {name}, found none")));
    let model = config::Model::deserialize(section("model")?).map_err(|error| problem(&error))?;
    let vector = config::Vector::deserialize(section("vector")?).map_err(|error| problem(&error))?;
    let tiles = config::Tiles::deserialize(section("tiles")?).map_err(|error| problem(&error))?;
    let settings = Config { model, vector, tiles, ..Config::default() };
    settings.validate().map_err(|error| problem(&error))?;
    Ok(settings)
}

fn read_extent(arrays: &ArrayReader<'_>) -> Result<Option<[[f64; 2]; 2]>, Problem> {
    let corners = arrays.numbers("extent", [None, Some(2)])?;
    match corners[..] {
        [] => Ok(None),
        [left, bottom, right, top] if left <= right && bottom <= top => Ok(Some([[left, bottom], [right, top]])),
        _ => Err(Problem::array("extent", "the lower left and the upper right corner", format!("{corners:?}"))),
    }
}
