//! The complete state of a map, to and from what a file holds.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::process::ProcessKind;
use super::tile_store::{StoredTile, TileRow, TileStore};
use super::tiles::row::from_row;
use super::tiles::{Square, TileGrid, TileState, TilesState};
use super::totals::Totals;
use crate::arrays::Problem;
use crate::config::{self, Config, Mapped, Scope};
use crate::sensing::reading::Stamp;

/// Everything a [`FieldModel`](super::model::FieldModel) has learnt, and the settings needed to interpret it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelState {
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
    extent: Option<[[f64; 2]; 2]>,
    hyperparameter_names: Vec<String>,
    process: ProcessKind,
    tile_grid: Option<TileGrid>,
    newest_tile: Square,
}

/// A tile that was read, and the handle that keeps it in its store; or why it is lost.
pub(crate) type ReadTile = Result<(TileRow, Option<Arc<StoredTile>>), Problem>;

impl ModelState {
    /// Checks that the map can be continued with these settings.
    ///
    /// # Errors
    /// [`SettingDiffers`](config::Error::SettingDiffers) for what is fixed for the life of a map.
    pub fn check(&self, config: &Config) -> Result<(), config::Error> {
        self.settings.check_unchanged(&config.decided(self.settings.model.field), Scope::is_fixed_for_a_map)
    }

    /// The part that is not arrays of numbers.
    pub(crate) fn metadata(&self) -> StateMetadata {
        // Those of all tiles are the same, and there is one.
        let head = self.tiles.tiles[0].head();
        StateMetadata {
            stamp_nanoseconds: self.newest.map(Stamp::nanoseconds),
            totals: self.totals,
            extent: self.extent,
            hyperparameter_names: head.hyperparameter_names.clone(),
            process: head.kind,
            tile_grid: self.tiles.grid,
            newest_tile: self.tiles.newest,
        }
    }

    /// Writes the tiles into a store that does not have them.
    ///
    /// # Errors
    /// A tile that cannot be written, or is lost.
    pub(crate) fn store_tiles(&self, store: &Arc<dyn TileStore>) -> io::Result<Vec<Arc<StoredTile>>> {
        self.tiles.tiles.iter().map(|tile| tile.store(store)).collect()
    }

    /// The state of a map made with the settings in `config`. Tiles that are lost are missing, and returned.
    ///
    /// # Errors
    /// The first problem that is found.
    pub(crate) fn read(
        metadata: StateMetadata,
        config: &str,
        rows: impl IntoIterator<Item = ReadTile>,
    ) -> Result<(Self, Vec<Problem>), Problem> {
        let field = match metadata.process {
            ProcessKind::Strength => Mapped::Strength,
            ProcessKind::Vector => Mapped::Vector,
        };
        let settings = sections(config)?.decided(field).into_owned();
        let (mut tiles, mut lost) = (Vec::new(), Vec::new());
        for row in rows {
            let tile = row.and_then(|(row, stored)| {
                let names = &metadata.hyperparameter_names;
                let (counts, process) = from_row(&row, metadata.process, names, &settings.model)?;
                Ok(TileState::of(row.square, counts, process).stored_as(stored))
            });
            match tile {
                Ok(tile) => tiles.push(tile),
                Err(problem) => lost.push(problem),
            }
        }
        tiles.sort_by_key(|tile| tile.square);
        let StateMetadata { totals, extent, tile_grid: grid, newest_tile: newest, .. } = metadata;
        let mut tiles = TilesState { grid, tiles, newest };
        if !lost.is_empty() {
            match &tiles.tiles[..] {
                [] => return Err(lost.swap_remove(0)),
                _ => tiles.replace_newest(),
            }
        }
        let is_extent = |[low, high]: [[f64; 2]; 2]| {
            low.iter().zip(&high).all(|(low, high)| low.is_finite() && high.is_finite() && low <= high)
        };
        let is_in_tiles = grid.is_none() || (settings.tiles.size > 0.0 && extent.is_some());
        if !tiles.is_valid() || !is_in_tiles || !extent.is_none_or(is_extent) {
            let what = "expected an extent and a grid of tiles, the newest among them, found others";
            return Err(Problem::Settings(what.into()));
        }
        let newest = metadata.stamp_nanoseconds.map(Stamp::from_nanoseconds);
        Ok((Self { settings, tiles, totals, extent, newest }, lost))
    }
}

/// The settings that say what a map is; the others have their defaults.
pub(super) fn of_a_map(Config { model, vector, tiles, .. }: Config) -> Config {
    Config { model, vector, tiles, ..Config::default() }
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
