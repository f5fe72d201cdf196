//! The models of a map: one of the whole plane, or local ones on square tiles.
//!
//! The plane is cut into squares; the map begins in the middle of the first. A tile learns from all observations within its square and
//! a halo around it, so that an update touches few tiles however large the map is, and predicts within its square and a narrow band
//! around it, over which it fades into its neighbours ([`TileGrid::weights`]). Its hyperparameters are its own; they begin with those
//! of its neighbours. As long as every observation is in the first tile or its halo, the first tile alone predicts, and the map is that
//! of one model to the last bit; other tiles already learn what is in their halos.

mod blend;
mod grid;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use streaming_gp::report::{SelectionEnd, UpdateReport};
use streaming_gp::streaming::Error;

use super::posterior::MapPosterior;
use super::process::{FieldProcess, ProcessState};
use super::sensor_bias::{BiasEstimate, BiasInformation, BiasPrior, SensorBias};
use crate::config::Config;
use crate::sensing::reading::Observation;

pub(crate) use blend::LocalPosteriors;
use grid::FIRST;
pub(crate) use grid::{Square, TileGrid};

/// Lower left and upper right corner of some places, in metres.
pub(crate) type Extent = [[f64; 2]; 2];

/// All models of a map.
#[derive(Clone, Debug)]
pub(crate) struct Tiles {
    config: Config,
    /// None before the first batch, and where there is one model.
    grid: Option<TileGrid>,
    /// The first is always among them.
    tiles: BTreeMap<Square, Tile>,
    /// The tile with the last observation.
    newest: Square,
}

#[derive(Clone, Debug)]
struct Tile {
    process: FieldProcess,
    counts: TileCounts,
    /// What it has learnt of the sensor's bias.
    bias: Option<BiasInformation>,
}

/// Observations of a tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TileCounts {
    /// Those that it learnt from.
    pub(crate) learnt: u64,
    /// Those of them that count for it and not for another tile whose halo they are in.
    pub(crate) own: u64,
}

/// What a tile has learnt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TileState {
    pub(crate) square: Square,
    pub(crate) counts: TileCounts,
    pub(crate) process: ProcessState,
}

/// What all models have learnt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TilesState {
    pub(crate) grid: Option<TileGrid>,
    /// In the order of their squares.
    pub(crate) tiles: Vec<TileState>,
    pub(crate) newest: Square,
}

impl TilesState {
    /// Whether grid, squares and counts fit each other: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        let is_ascending = self.tiles.windows(2).all(|pair| pair[0].square < pair[1].square);
        let has = |square| self.tiles.iter().any(|tile| tile.square == square);
        self.grid.as_ref().map_or(self.tiles.len() == 1, TileGrid::is_valid)
            && is_ascending
            && has(FIRST)
            && has(self.newest)
            && self.tiles.iter().all(|tile| tile.counts.own <= tile.counts.learnt)
    }
}

impl Tile {
    fn new(process: FieldProcess, counts: TileCounts) -> Self {
        Self { bias: process.bias_information(), process, counts }
    }
}

impl Tiles {
    /// Without any observation.
    pub(crate) fn new(config: &Config) -> Self {
        let first = Tile::new(FieldProcess::new(config), TileCounts::default());
        Self { config: config.clone(), grid: None, tiles: BTreeMap::from([(FIRST, first)]), newest: FIRST }
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings; what was learnt stays, and so does the grid.
    pub(crate) fn configure(&mut self, config: &Config) {
        self.config = config.clone();
        self.tiles.values_mut().for_each(|tile| tile.process.configure(config));
    }

    /// Whether the models have a memory of observations.
    pub(crate) fn is_dual_memory(&self) -> bool {
        self.tiles.values().any(|tile| tile.process.is_dual_memory())
    }

    /// Everything they have learnt.
    pub(crate) fn state(&self) -> TilesState {
        let state = |(&square, tile): (&Square, &Tile)| TileState {
            square,
            counts: tile.counts,
            process: tile.process.state(),
        };
        TilesState { grid: self.grid, tiles: self.tiles.iter().map(state).collect(), newest: self.newest }
    }

    /// Continues from a state, bit for bit as if they had never stopped.
    ///
    /// # Errors
    /// [`State`](super::Error::State) for an inconsistent state.
    pub(crate) fn from_state(config: &Config, state: &TilesState) -> Result<Self, super::Error> {
        let restore = |tile: &TileState| {
            Ok((tile.square, Tile::new(FieldProcess::from_state(config, &tile.process)?, tile.counts)))
        };
        let tiles = state.tiles.iter().map(restore).collect::<Result<_, super::Error>>()?;
        Ok(Self { config: config.clone(), grid: state.grid, tiles, newest: state.newest })
    }

    /// Learns from one batch; `extent` is that of all observations, this batch included. `stop` is checked before every evaluation of
    /// the objective. The report says of all tiles that predict how many inducing points they have, and sums up what this batch did; its
    /// hyperparameters are those of the tile with the last observation.
    ///
    /// # Errors
    /// Why the batch was rejected; all tiles are then unchanged.
    pub(crate) fn update(
        &mut self,
        observations: &[Observation],
        extent: Extent,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<UpdateReport, Error> {
        let [first, last] = [observations.first(), observations.last()].map(|end| end.map(place));
        let (Some(first), Some(last)) = (first, last) else { return Err(Error::Empty) };
        let Some(grid) = self.grid.or_else(|| TileGrid::new(&self.config, first)) else {
            let tile = self.tiles.get_mut(&FIRST).expect("the first tile is always there");
            return tile.process.update(observations, stop);
        };
        if !observations.iter().all(|seen| place(seen).iter().all(|coordinate| coordinate.is_finite())) {
            return Err(Error::NotFinite);
        }
        let is_first_alone = is_first_alone(&grid, extent);
        let counting = |place| if is_first_alone { FIRST } else { grid.containing(place) };
        let mut batches: BTreeMap<Square, Vec<Observation>> = BTreeMap::new();
        for observation in observations {
            grid.learning(place(observation)).for_each(|square| batches.entry(square).or_default().push(*observation));
        }
        let bias = self.bias_estimate().map(|estimate| estimate.prior());
        let job = |(square, batch): (Square, Vec<Observation>)| {
            let (process, mut counts) = match self.tiles.get(&square) {
                Some(tile) => (tile.process.clone(), tile.counts),
                None => (self.begin(square, bias), TileCounts::default()),
            };
            // A file may contain any number.
            let own = batch.iter().filter(|seen| counting(place(seen)) == square).count();
            counts.learnt = counts.learnt.saturating_add(batch.len() as u64);
            counts.own = counts.own.saturating_add(own as u64);
            (square, batch, process, counts)
        };
        let jobs: Vec<_> = batches.into_iter().map(job).collect();
        let learnt = in_parallel(jobs, self.config.tiles.threads, |(square, batch, mut process, counts)| {
            let report = process.update(&batch, stop)?;
            Ok((square, batch.len(), Tile::new(process, counts), report))
        });
        let learnt = learnt.into_iter().collect::<Result<Vec<_>, Error>>()?;

        (self.grid, self.newest) = (Some(grid), counting(last));
        let mut reports = Vec::new();
        for (square, rows, tile, report) in learnt {
            self.tiles.insert(square, tile);
            if !is_first_alone || square == FIRST {
                reports.push((square, rows, report));
            }
        }
        Ok(self.summary(reports, observations.len(), is_first_alone))
    }

    /// A process for a square that has none, beside those of the squares around it.
    fn begin(&self, square: Square, bias: Option<BiasPrior>) -> FieldProcess {
        let around = |other: &&Square| TileGrid::distance(**other, square) < 2.5;
        let is_begun = |process: &&FieldProcess| process.posterior().is_some();
        let neighbours = self.tiles.keys().filter(around).map(|neighbour| &self.tiles[neighbour].process);
        let neighbours: Vec<&FieldProcess> = neighbours.filter(is_begun).collect();
        FieldProcess::beside(&self.config, &neighbours, bias)
    }

    /// What all tiles know of the sensor's bias; none where it is not mapped, and before the first batch.
    fn bias_estimate(&self) -> Option<BiasEstimate> {
        let weighted = self.tiles.values().filter_map(|tile| {
            let TileCounts { learnt, own } = tile.counts;
            Some((own as f64 / learnt.max(1) as f64, tile.bias?))
        });
        let kernel = self.tiles[&FIRST].process.vector_kernel()?;
        BiasEstimate::from_tiles(kernel, weighted)
    }

    fn summary(&self, reports: Vec<(Square, usize, UpdateReport)>, rows: usize, is_first_alone: bool) -> UpdateReport {
        let of_newest = reports.iter().find(|(square, ..)| *square == self.newest).or(reports.first());
        let (_, rows_of_newest, newest) = of_newest.expect("the tile with the last observation has learnt").clone();
        let mut summary = newest;
        // A reading of three axes has three rows.
        summary.rows = summary.rows / rows_of_newest * rows;
        let predicting = self.tiles.iter().filter(|(square, _)| !is_first_alone || **square == FIRST);
        let size = |(_, tile): (_, &Tile)| tile.process.posterior().map_or(0, |posterior| posterior.size());
        summary.inducing_points = predicting.map(size).sum();
        let others = reports.iter().filter(|(square, ..)| *square != self.newest);
        for (_, _, other) in others {
            summary.dropped += other.dropped;
            summary.bound += other.bound;
            summary.memory = summary.memory.zip(other.memory).map(|(sum, memory)| sum + memory);
            summary.selection.added += other.selection.added;
            summary.selection.removed += other.selection.removed;
            summary.learning.evaluations += other.learning.evaluations;
            if other.selection.end == SelectionEnd::Capped {
                summary.selection.end = SelectionEnd::Capped;
            }
        }
        summary
    }

    /// The posteriors that predict; none before the first accepted batch.
    pub(crate) fn posteriors(&self, extent: Extent) -> Option<LocalPosteriors> {
        let is_first_alone = self.grid.is_none_or(|grid| is_first_alone(&grid, extent));
        let predicting = self.tiles.iter().filter(|(square, _)| !is_first_alone || **square == FIRST);
        let posterior = |(&square, tile): (&Square, &Tile)| Some((square, tile.process.posterior()?));
        let posteriors: BTreeMap<Square, MapPosterior> = predicting.filter_map(posterior).collect();
        LocalPosteriors::new(self.grid, posteriors, self.newest)
    }

    /// The bias of the sensor as all tiles know it together; none where it is not mapped.
    pub(crate) fn sensor_bias(&self) -> Option<SensorBias> {
        self.bias_estimate()?.bias()
    }
}

/// Whether every observation is in the first tile or its halo.
fn is_first_alone(grid: &TileGrid, extent: Extent) -> bool {
    extent.into_iter().all(|corner| grid.is_of_first(corner))
}

fn place(observation: &Observation) -> [f64; 2] {
    [observation.position.x, observation.position.y]
}

/// The results of `run` for all items, in their order, from this and at most `threads - 1` other threads; 0 stands for one thread for each
/// core.
fn in_parallel<T: Send, R: Send>(items: Vec<T>, threads: usize, run: impl Fn(T) -> R + Sync) -> Vec<R> {
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if threads == 0 { cores() } else { threads }.min(items.len());
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut results = Vec::new();
        while let Some((index, item)) = next() {
            results.push((index, run(item)));
        }
        results
    };
    let mut results = thread::scope(|scope| {
        // Where the operating system starts no thread, this one does all.
        let start = |_| thread::Builder::new().name("tile".into()).spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut results = work();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
