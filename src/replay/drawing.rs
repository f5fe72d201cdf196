//! The drawing thread: keeps a record of every update and writes the map over time.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use tempfile::TempPath;

use super::Error;
use super::grids::GridWriter;
use super::report::BatchRecord;
use crate::config::Config;
use crate::export::occupancy::GridScales;
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::{FieldModel, FieldPosterior, prior_standard_deviation};
use crate::mapping::field_raster::rasterize;
use crate::mapping::grid::{FieldGrid, Rasterizer};
use crate::mapping::mapper::Mapper;
use crate::mapping::reading::{Observation, Stamp};
use crate::mapping::worker::Update;
use streaming_gp::report::UpdateReport;

/// Updates that may wait for being drawn. The mapping thread waits beyond, so that memory is bounded.
const WAITING: usize = 4;

/// A finished update, and the stamp of the last observation of its batch.
struct Step {
    stamp: Stamp,
    update: Arc<Update<FieldSnapshot>>,
}

/// The drawing thread, seen from outside.
pub(super) struct Drawing {
    steps: Sender<Step>,
    thread: JoinHandle<Result<History, Error>>,
}

/// What the drawing thread leaves.
pub(super) struct History {
    /// One per batch.
    pub(super) records: Vec<BatchRecord>,
    /// The final map; without one there is none, or it cannot be drawn.
    pub(super) grid: Option<Result<FieldGrid, crate::mapping::Error>>,
    /// The map over time, complete but without its name yet.
    pub(super) grids: TempPath,
}

impl Drawing {
    /// Starts the thread, which writes into `folder`, with the map as it is now.
    pub(super) fn start(
        config: &Config,
        frame: &str,
        folder: &Path,
        mapper: &Mapper<FieldModel>,
    ) -> Result<Self, Error> {
        let (steps, receiver) = bounded(WAITING);
        let artist = Artist {
            writer: GridWriter::create(folder, frame)?,
            rasterizer: Rasterizer::new(&config.raster),
            records: Vec::new(),
            budget: Budget::default(),
            newest: Newest::at_the_beginning(mapper),
        };
        let builder = std::thread::Builder::new().name("drawing".into());
        let thread = builder.spawn(move || artist.run(&receiver)).map_err(Error::Spawn)?;
        Ok(Self { steps, thread })
    }

    /// Passes updates on to the thread.
    pub(super) fn observer(&self) -> impl FnMut(&[Observation], &Arc<Update<FieldSnapshot>>) + Send + 'static {
        let steps = self.steps.clone();
        move |observations, update| {
            let stamp = observations.last().map_or(Stamp::default(), |last| last.stamp);
            // A thread that has ended says why when joined.
            let _ = steps.send(Step { stamp, update: Arc::clone(update) });
        }
    }

    /// Whether the thread has given up.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until everything is drawn; the mapping thread has to have ended.
    pub(super) fn join(self) -> Result<History, Error> {
        drop(self.steps);
        self.thread.join().map_err(|_| Error::DrawingPanicked)?
    }
}

/// What runs on the thread.
struct Artist {
    writer: GridWriter,
    rasterizer: Rasterizer,
    records: Vec<BatchRecord>,
    budget: Budget,
    newest: Option<Newest>,
}

/// The newest map.
struct Newest {
    number: u64,
    stamp: Stamp,
    posterior: Arc<FieldPosterior>,
    extent: [[f64; 2]; 2],
    /// Of the record that it belongs to; a map that was there from the beginning has none.
    record: Option<usize>,
    /// Whether drawing it was tried, and what came of it.
    drawn: Option<Result<(), crate::mapping::Error>>,
}

impl Newest {
    fn at_the_beginning(mapper: &Mapper<FieldModel>) -> Option<Self> {
        let model = mapper.learner();
        Some(Self {
            number: mapper.standing().versions.saturating_sub(1),
            stamp: model.newest()?,
            posterior: Arc::clone(model.posterior()?),
            extent: model.extent()?,
            record: None,
            drawn: None,
        })
    }
}

impl Artist {
    fn run(mut self, steps: &Receiver<Step>) -> Result<History, Error> {
        for step in steps {
            self.take(step)?;
        }
        // The last map is drawn whatever it costs.
        if self.newest.as_ref().is_some_and(|newest| newest.drawn.is_none()) {
            self.draw()?;
        }
        let outcome = self.newest.and_then(|newest| newest.drawn);
        let grid = outcome
            .map(|drawn| drawn.and_then(|()| self.rasterizer.grid().cloned().ok_or(crate::mapping::Error::NoPoints)));
        Ok(History { records: self.records, grid, grids: self.writer.finish()? })
    }

    fn take(&mut self, step: Step) -> Result<(), Error> {
        self.records.push(BatchRecord::new(&step.update, step.stamp));
        let FieldSnapshot { result: Some(Ok(report)), posterior: Some(posterior), extent: Some(extent), .. } =
            &step.update.snapshot
        else {
            return Ok(());
        };
        self.newest = Some(Newest {
            number: step.update.number,
            stamp: step.stamp,
            posterior: Arc::clone(posterior),
            extent: *extent,
            record: Some(self.records.len() - 1),
            drawn: None,
        });
        let cells = self.rasterizer.grid().map_or(0, |grid| grid.geometry.len());
        if self.budget.allows(report, cells) { self.draw() } else { Ok(()) }
    }

    fn draw(&mut self) -> Result<(), Error> {
        let Some(newest) = &mut self.newest else { return Ok(()) };
        let drawn = rasterize(&mut self.rasterizer, newest.number, &newest.posterior, &newest.extent);
        newest.drawn = Some(match drawn {
            Ok(grid) => {
                let prior = prior_standard_deviation(&newest.posterior);
                let scales: GridScales = self.writer.write(grid, prior, newest.stamp)?;
                if let Some(record) = newest.record {
                    self.records[record].grids = Some(scales);
                }
                Ok(())
            }
            Err(error) => {
                log::warn!("the map after batch {} cannot be drawn: {error}", newest.number + 1);
                Err(error)
            }
        });
        Ok(())
    }
}

/// Keeps drawing from taking much longer than learning: a map that takes long to draw is drawn when what was learnt since the last
/// drawing took about as many operations. It counts operations, not time, so that the same replay draws the same maps.
#[derive(Debug, Default)]
struct Budget {
    learnt: f64,
}

/// So many operations are always allowed: a quarter of a second, measured.
const SMALL: f64 = 5e8;

impl Budget {
    /// Whether to draw so many cells after this update. Predicting a cell and evaluating the bound and its gradient for a row both
    /// take the square of the number of inducing points, and about the same time (measured).
    fn allows(&mut self, report: &UpdateReport, cells: usize) -> bool {
        let square = (report.inducing_points as f64).powi(2);
        let evaluations = report.learning.evaluations as f64 + 1.0;
        self.learnt += evaluations * (report.rows + report.inducing_points) as f64 * square;
        let is_allowed = cells as f64 * square <= self.learnt.max(SMALL);
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
            memory: None,
            selection: SelectionReport { added: 0, removed: 0, end: SelectionEnd::Converged, gap: None },
            learning: LearningReport { evaluations: 9, end: LearningEnd::Converged },
        }
    }

    #[test]
    fn small_maps_are_drawn_after_every_batch_and_large_ones_as_often_as_learning_allows() {
        let mut budget = Budget::default();
        assert!((0..10).all(|_| budget.allows(&report(100), 50_000)));
        // A batch takes 10 evaluations of 1100 rows, a drawing 40,000 cells: every fourth batch is drawn.
        let drawn: Vec<bool> = (0..9).map(|_| budget.allows(&report(1000), 40_000)).collect();
        assert_eq!(drawn, [false, false, false, true, false, false, false, true, false]);
    }
}
