//! The map's model: observations of the field, learnt by a sparse Gaussian process.

use std::sync::Arc;

use streaming_gp::{UpdateReport, streaming};

use super::map::FieldMap;
use super::state::{ModelState, of_a_map};
use super::tile_store::TileStore;
use super::tiles::{Learnt, Tiles};
use super::totals::Totals;
use crate::config::{self, Config, Mapped, Scope};
use crate::sensing::reading::{Observation, Stamp};

/// The model of the field.
#[derive(Clone, Debug)]
pub struct FieldModel {
    tiles: Tiles,
    /// Counts of what it was learnt from.
    pub totals: Totals,
    extent: Option<[[f64; 2]; 2]>,
    newest: Option<Stamp>,
}

impl FieldModel {
    /// An empty map; of the strength where the settings leave the choice to magmap.
    pub fn new(config: &Config) -> Self {
        let config = &config.decided(Mapped::Strength);
        Self { tiles: Tiles::new(config), totals: Totals::default(), extent: None, newest: None }
    }

    /// An empty map [with its local models in a store](Self::keep_tiles_in), if there is one.
    pub fn kept_in(store: Option<Arc<dyn TileStore>>, config: &Config) -> Self {
        let model = Self::new(config);
        if let Some(store) = store {
            model.keep_tiles_in(store);
        }
        model
    }

    /// Checks that the map can be continued with these settings: those of [`Scope::Map`] are fixed for its life.
    ///
    /// # Errors
    /// [`SettingDiffers`](config::Error::SettingDiffers).
    pub fn check(&self, config: &Config) -> Result<(), config::Error> {
        self.tiles.config().check_unchanged(&config.decided(self.field()), Scope::is_fixed_for_a_map)
    }

    /// Continues with settings that [`check`](Self::check) accepts; what was learnt stays.
    pub fn configure(&mut self, config: &Config) {
        let config = config.decided(self.field());
        self.tiles.configure(&config);
    }

    /// The quantity that is mapped.
    pub fn field(&self) -> Mapped {
        self.tiles.config().model.field
    }

    /// Bounds the memory of local models by `tiles.memory` from now on: those that were used longest ago are kept in this store, and
    /// read when they are needed.
    pub fn keep_tiles_in(&self, store: Arc<dyn TileStore>) {
        self.tiles.keep_in(store);
    }

    /// The store of local models that are not in memory.
    pub fn tile_store(&self) -> Option<Arc<dyn TileStore>> {
        self.tiles.store()
    }

    /// Everything it has learnt. Local models are shared: nothing is copied.
    pub fn state(&self) -> ModelState {
        ModelState {
            settings: of_a_map(self.tiles.config().clone()),
            tiles: self.tiles.state(),
            totals: self.totals,
            extent: self.extent,
            newest: self.newest,
        }
    }

    /// Continues from a state, bit for bit as if it had never stopped. Selection and learning follow `config`; what is fixed for
    /// the life of a map must match, see [`check`](Self::check).
    ///
    /// # Errors
    /// [`SettingDiffers`](config::Error::SettingDiffers) for the settings of a different model, and
    /// [`State`](super::Error::State) for an inconsistent state.
    pub fn from_state(config: &Config, state: &ModelState) -> Result<Self, super::Error> {
        state.check(config)?;
        let config = &config.decided(state.settings.model.field);
        Ok(Self {
            tiles: Tiles::from_state(config, &state.tiles)?,
            totals: state.totals,
            extent: state.extent,
            newest: state.newest,
        })
    }

    /// Learns from one batch of observations. `stop` is checked before every evaluation of the objective, by several threads where there
    /// are several local models.
    ///
    /// # Errors
    /// Why the batch was rejected; the model is then unchanged.
    pub fn update(
        &mut self,
        observations: &[Observation],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<UpdateReport, streaming::Error> {
        let learnt = self.learn(observations, stop);
        if learnt.is_err() {
            self.totals.rejected_batches = self.totals.rejected_batches.saturating_add(1);
        }
        learnt
    }

    fn learn(
        &mut self,
        observations: &[Observation],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<UpdateReport, streaming::Error> {
        let mut extent = self.extent;
        for observation in observations {
            let place = [observation.position.x, observation.position.y];
            let [low, high] = extent.unwrap_or([place; 2]);
            extent =
                Some([[low[0].min(place[0]), low[1].min(place[1])], [high[0].max(place[0]), high[1].max(place[1])]]);
        }
        let Learnt { report, out_of_reach } = self.tiles.update(observations, extent.unwrap_or_default(), stop)?;
        self.totals.add(observations, out_of_reach);
        self.extent = extent;
        self.newest = observations.last().map(|observation| observation.stamp).or(self.newest);
        Ok(report)
    }

    /// The current map; none before the first accepted batch.
    pub fn map(&self) -> Option<FieldMap> {
        let extent = self.extent?;
        let posteriors = self.tiles.posteriors(extent)?;
        Some(FieldMap::of_tiles(posteriors, self.tiles.sensor_bias(), extent, self.newest?, self.totals))
    }
}
