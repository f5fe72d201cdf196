//! The models of a map: one of the whole plane, or local ones on square tiles.
//!
//! The plane is cut into squares; the map begins in the middle of the first. A tile learns from all observations within its square and
//! a halo around it, so that an update touches few tiles however large the map is, and predicts within its square and a narrow band
//! around it, over which it fades into its neighbours ([`TileGrid::weights`]). Its hyperparameters are its own; they begin with those
//! of its neighbours. As long as every observation is in the first tile or its halo, the first tile alone predicts, and the map is that
//! of one model to the last bit; other tiles already learn what is in their halos.

mod blend;
mod grid;
mod memory;
pub(super) mod row;
mod tile;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use streaming_gp::kernel::VectorField;
use streaming_gp::report::{SelectionEnd, UpdateReport};
use streaming_gp::streaming::Error;

use super::process::{ProcessHead, ProcessState, TileProcess};
use super::sensor_bias::{BiasEstimate, BiasPrior, SensorBias};
use super::tile_store::{StoredTile, TileStore};
use crate::config::Config;
use crate::sensing::reading::Observation;

pub(crate) use blend::LocalPosteriors;
use grid::FIRST;
pub(crate) use grid::{Square, TileCounts, TileGrid};
use memory::TileMemory;
use tile::Tile;

/// Lower left and upper right corner of some places, in metres.
pub(crate) type Extent = [[f64; 2]; 2];

/// Deviation of the prior of the axes' lengthscale in a tile among others, relative to that of one model: the halo ends before the
/// kernel does, so that a tile's evidence favours lengths that predict worse.
const LENGTHSCALE_DEVIATION: f64 = 0.75;

/// A tile and the observations of a batch that it learns from.
struct Job {
    square: Square,
    batch: Vec<Observation>,
    process: TileProcess,
    counts: TileCounts,
}

/// A report of a tile that has learnt from this number of observations.
struct TileReport {
    square: Square,
    learnt: usize,
    report: UpdateReport,
}

/// The result of a batch.
pub(crate) struct Learnt {
    pub(crate) report: UpdateReport,
    /// Observations that no model learnt from: they are too far above or below the plane.
    pub(crate) out_of_reach: usize,
}

/// All models of a map.
#[derive(Clone, Debug)]
pub(crate) struct Tiles {
    config: Arc<Config>,
    /// The settings of a tile among others.
    local: Arc<Config>,
    memory: Arc<TileMemory>,
    /// The squares; none before the first batch, and where there is one model.
    grid: Option<TileGrid>,
    /// The tiles, always with the first.
    tiles: BTreeMap<Square, Arc<Tile>>,
    /// The tile with the last observation.
    newest: Square,
    /// The kernel of the three axes before any reading; none of a map of strengths.
    kernel: Option<VectorField>,
}

/// The state of a tile.
#[derive(Clone, Debug)]
pub(crate) struct TileState {
    pub(crate) square: Square,
    pub(crate) counts: TileCounts,
    content: TileContent,
    /// The file with the same state, if there is one.
    stored: Option<Arc<StoredTile>>,
}

#[derive(Clone, Debug)]
enum TileContent {
    Plain(Box<ProcessState>),
    /// Shared with the model: its numbers are copied when they are needed.
    Shared(Arc<Tile>),
}

impl PartialEq for TileState {
    fn eq(&self, other: &Self) -> bool {
        (self.square, self.counts) == (other.square, other.counts) && self.process() == other.process()
    }
}

impl TileState {
    /// A state of plain numbers.
    pub(crate) fn of(square: Square, counts: TileCounts, process: ProcessState) -> Self {
        Self { square, counts, content: TileContent::Plain(Box::new(process)), stored: None }
    }

    /// Adds the file with the same state, if there is one.
    pub(crate) fn stored_as(self, stored: Option<Arc<StoredTile>>) -> Self {
        Self { stored, ..self }
    }

    /// The properties of the process beside its arrays of numbers.
    pub(crate) fn head(&self) -> Cow<'_, ProcessHead> {
        match &self.content {
            TileContent::Plain(state) => Cow::Owned(state.head()),
            TileContent::Shared(tile) => Cow::Borrowed(&tile.head),
        }
    }

    /// State of the process; none where it is in a file only that cannot be read.
    pub(crate) fn process(&self) -> Option<Cow<'_, ProcessState>> {
        match &self.content {
            TileContent::Plain(state) => Some(Cow::Borrowed(state)),
            TileContent::Shared(tile) => Some(Cow::Owned(tile.process()?.state())),
        }
    }

    /// Writes it into a store, unless that has it.
    ///
    /// # Errors
    /// A tile that cannot be written, or is lost.
    pub(crate) fn store(&self, store: &Arc<dyn TileStore>) -> io::Result<Arc<StoredTile>> {
        match &self.content {
            TileContent::Plain(state) => {
                let number = store.write(&row::to_row(self.square, self.counts, state))?;
                Ok(Arc::new(StoredTile::new(Arc::clone(store), number)))
            }
            TileContent::Shared(tile) => tile.store(store),
        }
    }
}

/// The state of all models.
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
        self.grid.as_ref().map_or(self.tiles.len() == 1, TileGrid::is_valid)
            && is_ascending
            && self.has(self.newest)
            && self.tiles.iter().all(|tile| tile.counts.own <= tile.counts.learnt)
    }

    fn has(&self, square: Square) -> bool {
        self.tiles.iter().any(|tile| tile.square == square)
    }

    /// Makes the nearest tile the newest where the file of the tile with the last observation is damaged.
    pub(crate) fn replace_newest(&mut self) {
        let distance = |tile: &&TileState| TileGrid::distance(tile.square, self.newest);
        let nearest = self.tiles.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        self.newest = nearest.map_or(FIRST, |tile| tile.square);
    }
}

impl Tiles {
    /// Without any observation.
    pub(crate) fn new(config: &Config) -> Self {
        let mut tiles = Self::without_first(config);
        tiles.begin_first();
        tiles
    }

    fn begin_first(&mut self) {
        let first = TileProcess::new(&self.config);
        self.kernel = first.vector_kernel().cloned();
        self.insert(FIRST, first, TileCounts::default(), None);
    }

    fn without_first(config: &Config) -> Self {
        let memory = Arc::new(TileMemory::default());
        memory.set_limit(config.tiles.memory);
        let (config, local) = (Arc::new(config.clone()), Arc::new(among_others(config)));
        Self { config, local, memory, grid: None, tiles: BTreeMap::new(), newest: FIRST, kernel: None }
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings; what was learnt stays, and so does the grid.
    pub(crate) fn configure(&mut self, config: &Config) {
        self.memory.set_limit(config.tiles.memory);
        (self.config, self.local) = (Arc::new(config.clone()), Arc::new(among_others(config)));
    }

    /// Bounds the memory of tiles from now on, and keeps the others in this store.
    pub(crate) fn keep_in(&self, store: Arc<dyn TileStore>) {
        self.memory.set_store(store);
    }

    /// The store of tiles that are not in memory.
    pub(crate) fn store(&self) -> Option<Arc<dyn TileStore>> {
        self.memory.store()
    }

    /// Everything they have learnt.
    pub(crate) fn state(&self) -> TilesState {
        let state = |tile: &Arc<Tile>| TileState {
            square: tile.square,
            counts: tile.counts,
            content: TileContent::Shared(Arc::clone(tile)),
            stored: None,
        };
        TilesState { grid: self.grid, tiles: self.tiles.values().map(state).collect(), newest: self.newest }
    }

    /// Continues from a state, bit for bit as if they had never stopped.
    ///
    /// # Errors
    /// [`State`](super::Error::State) for an inconsistent state.
    pub(crate) fn from_state(config: &Config, state: &TilesState) -> Result<Self, super::Error> {
        let mut tiles = Self { grid: state.grid, newest: state.newest, ..Self::without_first(config) };
        for tile in &state.tiles {
            let process = match tile.process() {
                Some(process) => TileProcess::from_state(config, &process)?,
                None => TileProcess::new(config),
            };
            if tile.square == FIRST {
                tiles.kernel = process.vector_kernel().cloned();
            }
            tiles.insert(tile.square, process, tile.counts, tile.stored.clone());
        }
        // Its file may have been damaged.
        if !tiles.tiles.contains_key(&FIRST) {
            tiles.begin_first();
        }
        Ok(tiles)
    }

    fn insert(&mut self, square: Square, process: TileProcess, counts: TileCounts, stored: Option<Arc<StoredTile>>) {
        let tile = Tile::new(square, process, counts, stored, &self.config, &self.memory);
        self.tiles.insert(square, tile);
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
    ) -> Result<Learnt, Error> {
        let [first, last] = [observations.first(), observations.last()].map(|end| end.map(place));
        let (Some(first), Some(last)) = (first, last) else { return Err(Error::Empty) };
        let Some(grid) = self.grid.or_else(|| TileGrid::new(&self.config, first)) else {
            return self.update_whole(observations, stop);
        };
        if !observations.iter().all(|seen| place(seen).iter().all(|coordinate| coordinate.is_finite())) {
            return Err(Error::NotFinite);
        }
        let is_first_alone = is_first_alone(&grid, extent);
        let counting = |place| if is_first_alone { FIRST } else { grid.containing(place) };
        let (jobs, out_of_reach) = self.jobs(&grid, observations, is_first_alone, counting);
        let learnt = in_parallel(jobs, self.config.tiles.threads, |mut job: Job| {
            let report = job.process.update(&job.batch, stop)?;
            Ok((job, report))
        });
        let learnt = learnt.into_iter().collect::<Result<Vec<_>, Error>>()?;

        if out_of_reach == observations.len() {
            return Err(Error::OutOfReach);
        }
        self.grid = Some(grid);
        let mut reports = Vec::new();
        for (Job { square, batch, process, counts }, report) in learnt {
            self.insert(square, process, counts, None);
            if !is_first_alone || square == FIRST {
                reports.push(TileReport { square, learnt: batch.len(), report });
            }
        }
        if self.tiles.contains_key(&counting(last)) {
            self.newest = counting(last);
        }
        let report = self.summary(reports, observations.len() - out_of_reach, is_first_alone);
        Ok(Learnt { report, out_of_reach })
    }

    /// [`update`](Self::update) of one model of the whole map.
    fn update_whole(&mut self, observations: &[Observation], stop: &dyn Fn() -> bool) -> Result<Learnt, Error> {
        let mut process = self.tiles[&FIRST].process().unwrap_or_else(|| TileProcess::new(&self.config));
        process.configure(&self.config);
        let mut batch = observations.to_vec();
        process.select_reachable(&mut batch);
        if batch.is_empty() {
            return Err(Error::OutOfReach);
        }
        let report = process.update(&batch, stop)?;
        self.insert(FIRST, process, TileCounts::default(), None);
        Ok(Learnt { report, out_of_reach: observations.len() - batch.len() })
    }

    /// The tiles that learn from a batch, each with its share, and the number of observations that are out of reach of the tile that counts
    /// them.
    fn jobs(
        &self,
        grid: &TileGrid,
        observations: &[Observation],
        is_first_alone: bool,
        counting: impl Fn([f64; 2]) -> Square,
    ) -> (Vec<Job>, usize) {
        let mut batches: BTreeMap<Square, Vec<Observation>> = BTreeMap::new();
        for observation in observations {
            grid.learning(place(observation)).for_each(|square| batches.entry(square).or_default().push(*observation));
        }
        let bias = self.bias_estimate().map(|estimate| estimate.prior());
        let mut out_of_reach = 0;
        let job = |(square, mut batch): (Square, Vec<Observation>)| {
            let existing = self.tiles.get(&square).and_then(|tile| Some((tile.process()?, tile.counts)));
            let (mut process, mut counts) =
                existing.unwrap_or_else(|| (self.begin(square, bias), TileCounts::default()));
            process.configure(if is_first_alone && square == FIRST { &self.config } else { &self.local });
            let own_of = |batch: &[Observation]| batch.iter().filter(|seen| counting(place(seen)) == square).count();
            let before = own_of(&batch);
            process.select_reachable(&mut batch);
            let own = own_of(&batch);
            out_of_reach += before - own;
            // A file may contain any number.
            counts.learnt = counts.learnt.saturating_add(batch.len() as u64);
            counts.own = counts.own.saturating_add(own as u64);
            (!batch.is_empty()).then_some(Job { square, batch, process, counts })
        };
        let jobs = batches.into_iter().filter_map(job).collect();
        (jobs, out_of_reach)
    }

    /// A process for a square that has none, beside those of the squares around it.
    fn begin(&self, square: Square, bias: Option<BiasPrior>) -> TileProcess {
        let around = |other: &&Square| TileGrid::distance(**other, square) < 2.5;
        let neighbours = self.tiles.keys().filter(around).map(|neighbour| &self.tiles[neighbour]);
        let is_begun = |tile: &&Arc<Tile>| tile.size > 0;
        let parameters: Vec<&[f64]> = neighbours.filter(is_begun).map(|tile| &tile.log_parameters[..]).collect();
        TileProcess::beside(&self.config, &parameters, bias)
    }

    /// The knowledge of all tiles about the sensor's bias; none where it is not mapped, and before the first batch.
    fn bias_estimate(&self) -> Option<BiasEstimate> {
        let weighted = self.tiles.values().filter_map(|tile| {
            let TileCounts { learnt, own } = tile.counts;
            Some((own as f64 / learnt.max(1) as f64, tile.bias?))
        });
        BiasEstimate::from_tiles(self.kernel.as_ref()?, weighted)
    }

    fn summary(&self, reports: Vec<TileReport>, observations: usize, is_first_alone: bool) -> UpdateReport {
        let newest = reports.iter().find(|of| of.square == self.newest).or(reports.first());
        let newest = newest.expect("the tile with the last observation has learnt");
        let mut summary = newest.report.clone();
        // A reading of three axes has three rows.
        summary.rows = summary.rows / newest.learnt * observations;
        let predicting = self.tiles.iter().filter(|(square, _)| !is_first_alone || **square == FIRST);
        summary.inducing_points = predicting.map(|(_, tile)| tile.size).sum();
        for TileReport { report: other, .. } in reports.iter().filter(|of| of.square != self.newest) {
            summary.dropped += other.dropped;
            summary.bound += other.bound;
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
        let begun = predicting.filter(|(_, tile)| tile.size > 0).map(|(&square, tile)| (square, Arc::clone(tile)));
        LocalPosteriors::new(self.grid, begun.collect(), self.newest)
    }

    /// The bias of the sensor as all tiles know it together; none where it is not mapped.
    pub(crate) fn sensor_bias(&self) -> Option<SensorBias> {
        self.bias_estimate()?.bias()
    }
}

/// The settings of a tile among others.
fn among_others(config: &Config) -> Config {
    let mut config = config.clone();
    config.vector.prior_log_sd.lengthscale *= LENGTHSCALE_DEVIATION;
    config
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
