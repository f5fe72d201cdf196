//! The map in the making, as a machine of steps: the same steps lead to the same map, to the last bit.
//!
//! Whatever the map depends on is a [`Step`]: measurements, but also which batches were merged, which depends on how fast the
//! machine was. The [worker](super::worker) takes steps as they come; the [journal](super::journal) keeps them, so that they can be
//! taken again.

use std::collections::VecDeque;

use nalgebra::Isometry3;
use serde::{Deserialize, Serialize};

use super::batcher::{Batch, pop_merged};
use super::learner::{Learner, StopSignal};
use super::path::Path;
use super::pipeline::{COUNTABLE, Pipeline};
use super::reading::Measurement;
use crate::config::Config;

/// Something that changes the map, or what leads to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// The measurements that follow come from another source: a recording, from its beginning, or a robot.
    Source {
        /// The source.
        id: SourceId,
        /// Tells this run of the source from all others: of two maps that share a run, one continues the other or both share a past.
        run: String,
    },
    /// A reading or a pose, raw, as it came.
    Measurement {
        /// How many came before it from the same source.
        place: u64,
        /// The measurement.
        measurement: Measurement,
    },
    /// How the sensor of the readings that follow sits: the transform from its frame to that of the robot's body.
    Mount(Isometry3<f64>),
    /// The open averaging cell and the open batch are closed.
    Flush,
    /// The stream has ended: readings that wait for a pose are refused, cell and batch closed.
    Finish,
    /// The model learns from the oldest batches that wait, merged into one.
    Learn {
        /// How many.
        batches: u32,
    },
    /// The model goes on with other settings.
    Configure(#[serde(with = "as_toml")] Box<Config>),
    /// The map is forgotten, and a new one begins with these settings.
    Reset(#[serde(with = "as_toml")] Box<Config>),
}

/// Tells sources of measurements apart. Recordings of the same content are equal, whatever they are called.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct SourceId {
    /// What people call it: the recording, or the robot's node.
    pub name: String,
    /// Differs between recordings of different content, wherever they lie. Empty for a robot.
    pub fingerprint: String,
}

impl SourceId {
    /// A robot, by the name of its node.
    pub fn robot(name: impl Into<String>) -> Self {
        Self { name: name.into(), fingerprint: String::new() }
    }

    /// Whether it is a recording, which has an end and can be read again.
    pub fn is_recording(&self) -> bool {
        !self.fingerprint.is_empty()
    }
}

impl PartialEq for SourceId {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && (self.is_recording() || self.name == other.name)
    }
}

/// A source of a map, and where in the map's life it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The source.
    #[serde(flatten)]
    pub id: SourceId,
    /// This run of the source; unique.
    #[serde(default)]
    pub run: String,
    /// Updates that the map had before.
    #[serde(default)]
    pub after_updates: u64,
}

/// What a step came to.
#[derive(Debug)]
pub enum Outcome<S> {
    /// The map is as it was.
    Unchanged,
    /// The model learnt from a batch.
    Learnt {
        /// The batch.
        batch: Batch,
        /// The map afterwards.
        snapshot: S,
    },
    /// An empty map has taken its place.
    Replaced,
}

/// How far the map has come, counted from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Steps taken.
    pub steps: u64,
    /// Versions of the map that were published: updates, and other maps that took its place.
    #[serde(alias = "updates")]
    pub versions: u64,
    /// Batches that were learnt, from the beginning of the stream on.
    #[serde(default)]
    pub learnt: u64,
    /// Batches that were not updates of their own but merged into another.
    pub merged_batches: u64,
    /// What it was made of; measurements come from the last.
    pub sources: Vec<Origin>,
    /// Measurements taken from that source.
    pub place: u64,
    /// Whether the stream has ended, and nothing has come since.
    pub has_ended: bool,
}

impl Standing {
    /// Whether it can have come about: a file may claim anything.
    pub(super) fn is_sound(&self) -> bool {
        let began = self.sources.iter().map(|origin| origin.after_updates);
        [self.steps, self.versions, self.learnt, self.merged_batches, self.place]
            .into_iter()
            .chain(began)
            .all(|count| count < COUNTABLE)
    }

    /// The source that measurements come from.
    pub fn source(&self) -> Option<&SourceId> {
        self.sources.last().map(|origin| &origin.id)
    }

    /// Whether a source is part of the map.
    pub fn holds(&self, source: &SourceId) -> bool {
        self.sources.iter().any(|origin| origin.id == *source)
    }
}

/// Pipeline, batches that wait and model, between two steps.
#[derive(Clone, Debug)]
pub struct Mapper<L> {
    pipeline: Pipeline,
    ready: VecDeque<Batch>,
    learner: L,
    standing: Standing,
}

impl<L> Mapper<L> {
    /// The beginning of a map.
    pub fn new(pipeline: Pipeline, learner: L) -> Self {
        Self::resume(pipeline, VecDeque::new(), learner, Standing::default())
    }

    /// Goes on from where one was.
    pub(super) fn resume(pipeline: Pipeline, ready: VecDeque<Batch>, learner: L, standing: Standing) -> Self {
        Self { pipeline, ready, learner, standing }
    }

    /// From measurements to batches.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// Batches that wait to be learnt from.
    pub fn ready(&self) -> &VecDeque<Batch> {
        &self.ready
    }

    /// The model.
    pub fn learner(&self) -> &L {
        &self.learner
    }

    /// The model, when nothing more is to come.
    pub fn into_learner(self) -> L {
        self.learner
    }

    /// How far it has come.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Continues the map with a stream of which nothing is known yet, along the path so far.
    pub fn begin_stream(&mut self, config: &Config) {
        let path = self.pipeline.path().clone();
        self.pipeline = Pipeline::new(config, Isometry3::identity());
        self.pipeline.set_path(path);
        self.ready.clear();
        let standing = &mut self.standing;
        (standing.learnt, standing.merged_batches, standing.place, standing.has_ended) = (0, 0, 0, false);
    }

    /// Leaves out steps that are lost.
    pub(super) fn skip(&mut self, steps: u64) {
        self.standing.steps = self.standing.steps.saturating_add(steps).min(COUNTABLE);
    }

    /// Continues another map, along the path it was learnt on and made of these sources: what waits, and the open cell and batch,
    /// are dropped.
    pub fn replace(&mut self, learner: L, path: Path, sources: Vec<Origin>) {
        self.ready.clear();
        self.pipeline.restart(path);
        self.learner = learner;
        self.standing.sources = sources;
        self.standing.steps += 1;
        self.standing.versions += 1;
    }
}

impl<L: Learner> Mapper<L> {
    /// Takes a step. Learning ends early when `stop` is set.
    pub fn take(&mut self, step: Step, stop: &StopSignal) -> Outcome<L::Snapshot> {
        let standing = &mut self.standing;
        standing.steps += 1;
        standing.has_ended = match step {
            Step::Finish => true,
            Step::Learn { .. } => standing.has_ended,
            _ => false,
        };
        match step {
            Step::Source { id, run } => {
                let after_updates = self.learner.updates();
                standing.sources.push(Origin { id, run, after_updates });
                standing.place = 0;
            }
            Step::Measurement { place, measurement } => {
                standing.place = place.saturating_add(1);
                self.pipeline.ingest(measurement, &mut self.ready);
            }
            Step::Mount(mount) => self.pipeline.set_mount(mount),
            Step::Flush => self.pipeline.flush(&mut self.ready),
            Step::Finish => self.pipeline.finish(&mut self.ready),
            Step::Learn { batches } => return self.learn(batches as usize, stop),
            Step::Configure(config) => self.learner.configure(&config),
            Step::Reset(config) => {
                self.reset(&config);
                return Outcome::Replaced;
            }
        }
        Outcome::Unchanged
    }

    fn learn(&mut self, batches: usize, stop: &StopSignal) -> Outcome<L::Snapshot> {
        let Some(batch) = pop_merged(&mut self.ready, batches) else { return Outcome::Unchanged };
        let snapshot = self.learner.learn(&batch, stop);
        self.standing.versions += 1;
        self.standing.learnt += 1;
        self.standing.merged_batches += batch.merged() as u64;
        Outcome::Learnt { batch, snapshot }
    }

    fn reset(&mut self, config: &Config) {
        self.ready.clear();
        self.pipeline.restart(Path::default());
        self.standing.sources.clear();
        self.standing.versions += 1;
        self.learner.reset(config);
    }
}

/// Settings as they are written everywhere else: other versions of magmap can read them.
mod as_toml {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::Error as _};

    use crate::config::Config;

    pub(super) fn serialize<S: Serializer>(config: &Config, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&config.to_toml().map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Config>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Config::from_toml(&text, "the journal").map(Box::new).map_err(D::Error::custom)
    }
}
