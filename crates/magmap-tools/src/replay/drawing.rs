//! The drawing thread, which records every update and writes the map over time.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use tempfile::TempPath;

use super::Error;
use super::batch_record::BatchRecord;
use super::grids::GridWriter;
use crate::recording::writer::MessageWriter;
use magmap::config::{Config, Raster};
use magmap::field::grid::StrengthGrid;
use magmap::field::map::FieldMap;
use magmap::field::raster::Rasterizer;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::updates::Update;
use magmap::sensing::reading::{Observation, Stamp};
use streaming_gp::UpdateReport;

/// Most updates waiting to be drawn. Beyond, the mapping thread waits, so that memory is bounded.
const MAX_WAITING: usize = 4;

/// A handle of the drawing thread.
pub(super) struct Drawing {
    updates: Sender<(Stamp, Arc<Update>)>,
    thread: JoinHandle<Result<History, Error>>,
}

/// The result of the drawing thread.
pub(super) struct History {
    /// The records, one per batch.
    pub(super) records: Vec<BatchRecord>,
    /// The raster of the final map, or why it cannot be drawn; `None` without a map.
    pub(super) grid: Option<Result<StrengthGrid, magmap::field::Error>>,
    /// The map over time, in a complete file without its final name.
    pub(super) grids: TempPath,
}

impl Drawing {
    /// Starts the thread, which writes into `folder`, and to `live` if it is given, with the current map.
    pub(super) fn start(
        config: &Config,
        folder: &Path,
        live: Option<MessageWriter>,
        mapper: &Mapper,
    ) -> Result<Self, Error> {
        let (updates, receiver) = bounded(MAX_WAITING);
        let task = DrawingTask {
            writer: GridWriter::create(folder, live)?,
            settings: config.raster.clone(),
            rasterizer: Rasterizer::new(&config.raster),
            records: Vec::new(),
            budget: Budget::default(),
            latest: mapper.model().map().map(|map| {
                let number = mapper.progress().versions.saturating_sub(1);
                LatestMap { number, map, frame: mapper.frame().to_owned(), record: None, drawn: None }
            }),
        };
        let builder = std::thread::Builder::new().name("drawing".into());
        let thread = builder.spawn(move || task.run(&receiver)).map_err(Error::Spawn)?;
        Ok(Self { updates, thread })
    }

    /// An observer that sends updates to the thread.
    pub(super) fn observer(&self) -> impl FnMut(&[Observation], &Arc<Update>) + Send + 'static {
        let updates = self.updates.clone();
        move |observations, update| {
            let stamp = observations.last().map_or(Stamp::default(), |last| last.stamp);
            // If the thread has ended, joining it says why.
            let _ = updates.send((stamp, Arc::clone(update)));
        }
    }

    /// Whether the thread has failed.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until everything is drawn; the mapping thread must have ended before.
    pub(super) fn join(self) -> Result<History, Error> {
        drop(self.updates);
        self.thread.join().map_err(|_| Error::DrawingPanicked)?
    }
}

/// The task of the drawing thread.
struct DrawingTask {
    writer: GridWriter,
    settings: Raster,
    rasterizer: Rasterizer,
    records: Vec<BatchRecord>,
    budget: Budget,
    latest: Option<LatestMap>,
}

/// The latest map, drawn or not.
struct LatestMap {
    number: u64,
    map: FieldMap,
    frame: String,
    /// Index of its record; none for the initial map, and one that was made again.
    record: Option<usize>,
    /// The raster, or why it cannot be drawn; none before the attempt.
    drawn: Option<Result<StrengthGrid, magmap::field::Error>>,
}

impl DrawingTask {
    fn run(mut self, updates: &Receiver<(Stamp, Arc<Update>)>) -> Result<History, Error> {
        for (stamp, update) in updates {
            self.take(stamp, &update)?;
        }
        // The last map is always drawn.
        if self.latest.as_ref().is_some_and(|latest| latest.drawn.is_none()) {
            self.draw()?;
        }
        let grid = self.latest.and_then(|latest| latest.drawn);
        Ok(History { records: self.records, grid, grids: self.writer.finish()? })
    }

    fn take(&mut self, stamp: Stamp, update: &Update) -> Result<(), Error> {
        let Update { number, result, map, frame, .. } = update;
        // A map that was made again belongs to no batch.
        let record = result.as_ref().map(|_| self.records.len());
        if record.is_some() {
            self.records.push(BatchRecord::new(update, stamp));
        }
        let (None | Some(Ok(_)), Some(map)) = (result, map) else { return Ok(()) };
        if result.is_none() {
            // It may be elsewhere.
            self.rasterizer = Rasterizer::new(&self.settings);
        }
        self.latest = Some(LatestMap { number: *number, map: map.clone(), frame: frame.clone(), record, drawn: None });
        let Some(Ok(report)) = result else { return Ok(()) };
        let cells = self.rasterizer.grid().map_or(0, |grid| grid.geometry.len());
        // A cell of a map of three axes takes three rows.
        let rows = if map.axes(&[]).is_some() { 3 * cells } else { cells };
        if self.budget.allows(report, rows) { self.draw() } else { Ok(()) }
    }

    fn draw(&mut self) -> Result<(), Error> {
        let Some(latest) = &mut self.latest else { return Ok(()) };
        let drawn = self.rasterizer.rasterize(&latest.map, &latest.map.extent).cloned();
        match &drawn {
            Ok(grid) => {
                let scales =
                    self.writer.write(&latest.frame, grid, latest.map.prior_standard_deviation(), latest.map.stamp)?;
                if let Some(record) = latest.record {
                    self.records[record].grids = Some(scales);
                }
            }
            Err(error) => log::warn!("the map after batch {} cannot be drawn: {error}", latest.number + 1),
        }
        latest.drawn = Some(drawn);
        Ok(())
    }
}

/// Limits the cost of drawing to about a quarter of that of learning: a large map is drawn when learning since the last drawing took about
/// four times as many operations. It counts operations, not time, so that a replay always draws the same maps.
#[derive(Debug, Default)]
struct Budget {
    learnt: f64,
}

/// Number of operations that are always allowed: a quarter of a second, measured.
const ALWAYS_ALLOWED: f64 = 5e8;

/// Number of operations of learning for each one of drawing.
const LEARNING_PER_DRAWING: f64 = 4.0;

impl Budget {
    /// Whether to predict this number of rows after this update. Predicting a row and evaluating the bound and its gradient for one both
    /// take the square of the number of inducing points, and about the same time (measured).
    fn allows(&mut self, report: &UpdateReport, rows: usize) -> bool {
        let square = (report.inducing_points as f64).powi(2);
        let evaluations = report.learning.evaluations as f64 + 1.0;
        self.learnt += evaluations * (report.rows + report.inducing_points) as f64 * square;
        let is_allowed = rows as f64 * square <= (self.learnt / LEARNING_PER_DRAWING).max(ALWAYS_ALLOWED);
        if is_allowed {
            self.learnt = 0.0;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use streaming_gp::report::{LearningEnd, LearningReport, SelectionEnd, SelectionReport};

    fn report(inducing_points: usize) -> UpdateReport {
        UpdateReport {
            rows: 100,
            inducing_points,
            dropped: 0,
            hyperparameters: Vec::new(),
            bound: 0.0,
            selection: SelectionReport { added: 0, removed: 0, end: SelectionEnd::Converged, gap: None },
            learning: LearningReport { evaluations: 9, end: LearningEnd::Converged },
        }
    }

    #[test]
    fn small_maps_are_drawn_after_every_batch_and_large_ones_as_often_as_learning_allows() {
        let mut budget = Budget::default();
        assert!((0..10).all(|_| budget.allows(&report(100), 50_000)));
        // A batch takes 10 evaluations of 1100 rows, a drawing 10,000 cells: every fourth batch is drawn.
        let drawn: Vec<bool> = (0..9).map(|_| budget.allows(&report(1000), 10_000)).collect();
        assert_eq!(drawn, [false, false, false, true, false, false, false, true, false]);
    }
}
