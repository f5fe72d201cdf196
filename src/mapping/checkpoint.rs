//! The map and the stream that leads to it in a file, to go on from: `docs/checkpoint.md` describes it for other programs.

mod archive;
mod problem;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};

use nalgebra::{Isometry3, Point3};
use serde::{Deserialize, Serialize};

use super::Error;
use super::batcher::Batch;
use super::field_model::{self, DIMENSION, FieldModel, FieldState, Totals};
use super::field_process::ProcessState;
use super::mapper::{Mapper, Standing};
use super::path::Path;
use super::pipeline::Pipeline;
use super::reading::Stamp;
use crate::config::{self, Config};
use crate::files::write_atomically;
use archive::{ArrayReader, ArrayWriter};
use streaming_gp::bounds::NoiseBaseline;
use streaming_gp::dual_memory::state::{DualState, MemoryState, SummaryState};
use streaming_gp::model::Jitter;
use streaming_gp::points::Points;
use streaming_gp::report::NamedValue;
use streaming_gp::state::{PastState, State};

pub use problem::Problem;

/// What the array `format` of every checkpoint says.
const FORMAT: &str = "magmap-checkpoint";

/// Version of the format.
pub const FORMAT_VERSION: i64 = 3;

/// The oldest version that is read: it knows nothing of the stream. Versions before the third know only the streaming model.
const OLDEST_VERSION: i64 = 1;

/// What a file is beside its large arrays, at most as a rule: settings, counters, readings that wait, names.
const OTHER_BYTES: usize = 1 << 16;

/// A map as it was at one moment, with all that is needed to go on as if it had never stopped, and to know what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    magmap_version: String,
    config: String,
    model: FieldState,
    frame: String,
    stream: Stream,
}

/// What is on its way into the map, and how far it has come. Finite numbers are exact in JSON, and no others get here.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stream {
    standing: Standing,
    /// Its path is an array of its own.
    pipeline: Pipeline,
    ready: VecDeque<Batch>,
}

/// Equal are those that are written alike: settings are not written with it.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        let written = |stream: &Self| serde_json::to_string(stream).ok();
        self.pipeline.path() == other.pipeline.path() && written(self) == written(other)
    }
}

/// What the file says about the map beside its arrays of numbers.
#[derive(Serialize, Deserialize)]
struct Metadata {
    magmap_version: String,
    frame: String,
    stamp_nanoseconds: Option<i64>,
    #[serde(flatten)]
    totals: Totals,
    /// Of the noise baseline.
    targets: u64,
    hyperparameter_names: Vec<String>,
    #[serde(default)]
    process: Process,
    config: String,
}

/// Which process has made the map.
#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Process {
    #[default]
    Streaming,
    DualMemory,
}

impl Checkpoint {
    /// The map that `mapper` is making between two steps, under the settings `config`, in the coordinates of `frame`.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that TOML cannot hold.
    pub fn of(config: &Config, mapper: &Mapper<FieldModel>, frame: &str) -> Result<Self, Error> {
        let model = mapper.learner().state();
        // The model knows best what it was made with.
        let config = Config { model: model.settings.clone(), ..config.clone() }.to_toml()?;
        let magmap_version = env!("CARGO_PKG_VERSION").to_owned();
        let stream = Stream {
            standing: mapper.standing().clone(),
            pipeline: mapper.pipeline().clone(),
            ready: mapper.ready().clone(),
        };
        Ok(Self { magmap_version, config, model, frame: frame.to_owned(), stream })
    }

    /// Goes on with everything as if it had never stopped, under settings that may differ from those it was made with. A file of
    /// version 1 knows nothing of the stream, which begins anew.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn resume(&self, config: &Config) -> Result<Mapper<FieldModel>, Error> {
        let model = self.restore(config)?;
        let Stream { standing, pipeline, mut ready } = self.stream.clone();
        let pipeline = pipeline.resume(config, self.path().clone(), &mut ready);
        Ok(Mapper::resume(pipeline, ready, model, standing))
    }

    /// How far the stream had come.
    pub fn standing(&self) -> &Standing {
        &self.stream.standing
    }

    /// The model alone, to continue under `config` and from another stream.
    ///
    /// # Errors
    /// As [`FieldModel::from_state`].
    pub fn restore(&self, config: &Config) -> Result<FieldModel, Error> {
        FieldModel::from_state(config, &self.model)
    }

    /// Writes it so that, whatever happens meanwhile, the file is the old one or the new one, and stays so through a power cut.
    /// Equal checkpoints are equal files.
    ///
    /// # Errors
    /// [`Error::WriteCheckpoint`].
    pub fn write(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.to_bytes()
            .and_then(|bytes| write_atomically(path, |file| file.write_all(&bytes)))
            .map_err(|source| Error::WriteCheckpoint { path: path.to_owned(), source })
    }

    /// Reads what [`write`](Self::write) wrote, to the last bit.
    ///
    /// # Errors
    /// [`Error::ReadCheckpoint`] with what is wrong.
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        read_whole(path)
            .and_then(|bytes| Self::from_bytes(&bytes))
            .map_err(|problem| Error::ReadCheckpoint { path: path.to_owned(), problem })
    }

    /// Version of magmap that made it.
    pub fn magmap_version(&self) -> &str {
        &self.magmap_version
    }

    /// All settings it was made with, as TOML.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// The settings of the model; all but where learning starts are fixed for the map's life.
    pub fn model_settings(&self) -> &config::Model {
        &self.model.settings
    }

    /// Lower left and upper right corner, in metres, of where the map has learnt; none before the first batch.
    pub fn extent(&self) -> Option<[[f64; 2]; 2]> {
        self.model.extent
    }

    /// Where the sensor has been, thinned.
    pub fn path(&self) -> &Path {
        self.stream.pipeline.path()
    }

    /// What went into it.
    pub fn totals(&self) -> &Totals {
        &self.model.totals
    }

    /// The frame of its coordinates.
    pub fn frame(&self) -> &str {
        &self.frame
    }

    /// Whether this is a later state of that map, or the same: what was learnt there is in it, and nothing else took its place.
    pub fn continues(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.standing().sources, &other.standing().sources);
        let learnt = other.totals().batches();
        // A source that nothing was learnt from yet says nothing about the map.
        let taught = theirs.iter().take_while(|origin| origin.after_updates < learnt).count();
        // Where the next source began, the map had at least what the other one has.
        let shared = mine.get(taught).map_or(self.totals().batches(), |next| next.after_updates);
        mine.starts_with(&theirs[..taught]) && shared >= learnt
    }

    /// Stamp of the last observation in it; none before the first.
    pub fn stamp(&self) -> Option<Stamp> {
        self.model.newest
    }

    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let FieldState { process, totals, extent, .. } = &self.model;
        let (kind, dual) = match process {
            ProcessState::Streaming(_) => (Process::Streaming, None),
            ProcessState::Dual(state) => (Process::DualMemory, Some(state)),
        };
        let process = process.common();
        let metadata = Metadata {
            magmap_version: self.magmap_version.clone(),
            frame: self.frame.clone(),
            stamp_nanoseconds: self.stamp().map(Stamp::nanoseconds),
            totals: *totals,
            targets: process.baseline.count(),
            hyperparameter_names: process.hyperparameters.iter().map(|value| value.name.clone()).collect(),
            process: kind,
            config: self.config.clone(),
        };
        let inducing_points = process.past.as_ref().map_or(0, |past| past.target.len());
        let triangles = 2 + usize::from(dual.is_some());
        let points = self.path().points();
        // Nearly all of it are the triangles and the path.
        let numbers = triangles * inducing_points * inducing_points + 3 * points.len();
        let mut arrays = ArrayWriter::with_capacity(size_of::<f64>() * numbers + OTHER_BYTES);
        arrays.text("format", FORMAT)?;
        arrays.integer("format_version", FORMAT_VERSION)?;
        arrays.text("metadata", &serde_json::to_string(&metadata)?)?;
        let hyperparameters = process.hyperparameters.iter().map(|hyperparameter| hyperparameter.value);
        arrays.numbers("hyperparameters", &[process.hyperparameters.len()], hyperparameters)?;
        arrays.numbers("mean", &[], [process.mean])?;
        // A scalar field has one output.
        let baseline = &process.baseline.outputs()[0];
        arrays.numbers("baseline", &[2], [baseline.mean(), baseline.scatter()])?;
        write_past(&mut arrays, process.past.as_ref())?;
        dual.map_or(Ok(()), |dual| write_memory(&mut arrays, dual))?;
        let corners = extent.as_ref().map_or(&[][..], |corners| corners);
        arrays.numbers("extent", &[corners.len(), 2], corners.iter().flatten().copied())?;
        arrays.numbers("path", &[points.len(), 3], points.iter().flat_map(|point| [point.x, point.y, point.z]))?;
        arrays.numbers("path_spacing", &[], [self.path().spacing()])?;
        arrays.text("stream", &serde_json::to_string(&self.stream)?)?;
        arrays.finish()
    }

    /// Reads the bytes of what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// What is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Problem> {
        let arrays = ArrayReader::new(bytes)?;
        let format = arrays.text("format")?;
        if format != FORMAT {
            return Err(Problem::NotACheckpoint { found: format });
        }
        let version = arrays.integer("format_version")?;
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&version) {
            return Err(Problem::Version { found: version });
        }
        let metadata: Metadata = serde_json::from_str(&arrays.text("metadata")?)?;
        let settings = model_section(&metadata.config)?;
        let common = read_process(&arrays, &metadata, &settings)?;
        let process = match metadata.process {
            Process::Streaming => ProcessState::Streaming(common),
            Process::DualMemory => ProcessState::Dual(read_memory(&arrays, common, &settings)?),
        };
        process.check()?;
        let mut stream = if version == OLDEST_VERSION { Stream::unknown() } else { read_stream(&arrays)? };
        stream.pipeline.set_path(read_path(&arrays)?);
        Ok(Self {
            magmap_version: metadata.magmap_version,
            config: metadata.config,
            model: FieldState {
                settings,
                process,
                totals: metadata.totals,
                extent: read_extent(&arrays)?,
                newest: metadata.stamp_nanoseconds.map(Stamp::from_nanoseconds),
            },
            frame: metadata.frame,
            stream,
        })
    }
}

/// All bytes of a file, unless already the first ones show that it is no checkpoint.
fn read_whole(path: &std::path::Path) -> Result<Vec<u8>, Problem> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    (&mut file).take(archive::BEGINNING).read_to_end(&mut bytes)?;
    archive::check_beginning(&bytes)?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The settings that give the state its meaning. The other sections may be those of another version of magmap.
fn model_section(config: &str) -> Result<config::Model, Problem> {
    let problem = |error: &dyn std::fmt::Display| Problem::Settings { message: error.to_string() };
    let mut sections: toml::Table = config.parse().map_err(|error: toml::de::Error| problem(&error))?;
    let section = sections.remove("model").ok_or_else(|| problem(&"expected a section model, found none"))?;
    let model = config::Model::deserialize(section).map_err(|error| problem(&error))?;
    let mut whole = Config { model: model.clone(), ..Config::default() };
    if model.likelihood == config::Likelihood::Bernoulli {
        // What else it asks for is in other sections.
        whole
            .apply_overrides(&["topics.signal=signal", "selection.method=dual_memory"])
            .map_err(|error| problem(&error))?;
    }
    whole.validate().map_err(|error| problem(&error))?;
    Ok(model)
}

/// The arrays of a past; before the first batch they are those of no inducing point.
fn write_past(arrays: &mut ArrayWriter, past: Option<&PastState<Points>>) -> io::Result<()> {
    let nothing = PastState {
        inducing: Points::new(DIMENSION),
        covariance_root: Vec::new(),
        triangle: Vec::new(),
        target: Vec::new(),
        log_evidence: 0.0,
    };
    let PastState { inducing, covariance_root, triangle, target, log_evidence } = past.unwrap_or(&nothing);
    let size = target.len();
    let coordinates = (0..size).flat_map(|index| inducing.point(index));
    arrays.numbers("inducing_points", &[size, DIMENSION], coordinates)?;
    arrays.numbers("covariance_root", &[size, size], covariance_root.iter().copied())?;
    arrays.numbers("triangle", &[size, size], triangle.iter().copied())?;
    arrays.numbers("target", &[size], target.iter().copied())?;
    arrays.numbers("log_evidence", &[], [*log_evidence])
}

/// The arrays of the dual model: what it remembers, and what it keeps of all else.
fn write_memory(arrays: &mut ArrayWriter, dual: &DualState<Points>) -> io::Result<()> {
    let nothing = MemoryState {
        places: Points::new(DIMENSION),
        targets: Vec::new(),
        precisions: Vec::new(),
        naturals: Vec::new(),
    };
    let MemoryState { places, targets, precisions, naturals } = dual.memory.as_ref().unwrap_or(&nothing);
    let size = targets.len();
    arrays.numbers("memory_places", &[size, DIMENSION], (0..size).flat_map(|index| places.point(index)))?;
    arrays.numbers("memory_targets", &[size], targets.iter().copied())?;
    let sites = precisions.iter().zip(naturals).flat_map(|(&precision, &natural)| [precision, natural]);
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
    let (precisions, naturals) = sites.as_chunks().0.iter().map(|&[precision, natural]| (precision, natural)).unzip();
    let memory = MemoryState {
        places: Points::from_arrays(places),
        targets: arrays.numbers("memory_targets", [Some(places.len())])?,
        precisions,
        naturals,
    };
    let target = arrays.numbers("summary_target", [None])?;
    let summary = SummaryState {
        triangle: arrays.numbers("summary_triangle", [Some(target.len()); 2])?,
        log_evidence: arrays.number("summary_log_evidence")?,
        target,
    };
    let is_kept = !summary.target.is_empty();
    // Before the first batch there is no memory, not even an empty one.
    let has_begun = common.past.is_some() || !memory.targets.is_empty();
    let link = field_model::link(settings);
    Ok(DualState { common, link, memory: has_begun.then_some(memory), summary: is_kept.then_some(summary) })
}

fn read_process(
    arrays: &ArrayReader<'_>,
    metadata: &Metadata,
    settings: &config::Model,
) -> Result<State<Points>, Problem> {
    let names = &metadata.hyperparameter_names;
    let values = arrays.numbers("hyperparameters", [Some(names.len())])?;
    let hyperparameters = names.iter().zip(values).map(|(name, value)| NamedValue { name: name.clone(), value });
    let baseline = arrays.numbers("baseline", [Some(2)])?;
    let coordinates = arrays.numbers("inducing_points", [None, Some(DIMENSION)])?;
    let (points, _) = coordinates.as_chunks::<DIMENSION>();
    let size = points.len();
    let past = PastState {
        inducing: Points::from_arrays(points),
        covariance_root: arrays.numbers("covariance_root", [Some(size), Some(size)])?,
        triangle: arrays.numbers("triangle", [Some(size), Some(size)])?,
        target: arrays.numbers("target", [Some(size)])?,
        log_evidence: arrays.number("log_evidence")?,
    };
    Ok(State {
        hyperparameters: hyperparameters.collect(),
        mean: arrays.number("mean")?,
        jitter: Jitter::Relative(settings.relative_jitter),
        likelihood: field_model::likelihood(settings),
        baseline: NoiseBaseline::new(metadata.targets, baseline[0], baseline[1]).into(),
        past: (size > 0).then_some(past),
    })
}

impl Stream {
    /// That of which nothing is known.
    fn unknown() -> Self {
        let pipeline = Pipeline::new(&Config::default(), Isometry3::identity());
        Self { standing: Standing::default(), pipeline, ready: VecDeque::new() }
    }
}

fn read_stream(arrays: &ArrayReader<'_>) -> Result<Stream, Problem> {
    let stream: Stream = serde_json::from_str(&arrays.text("stream")?)?;
    let are_batches_sound = stream.ready.iter().all(|batch| !batch.is_empty());
    if are_batches_sound && stream.standing.is_sound() && stream.pipeline.is_sound() {
        return Ok(stream);
    }
    let expected = "a state that a stream can be in".to_owned();
    Err(Problem::Array { array: "stream", expected, found: "another".to_owned() })
}

fn read_extent(arrays: &ArrayReader<'_>) -> Result<Option<[[f64; 2]; 2]>, Problem> {
    let corners = arrays.numbers("extent", [None, Some(2)])?;
    match corners[..] {
        [] => Ok(None),
        [left, bottom, right, top] if left <= right && bottom <= top => Ok(Some([[left, bottom], [right, top]])),
        _ => Err(Problem::Array {
            array: "extent",
            expected: "the lower left and the upper right corner".to_owned(),
            found: format!("{corners:?}"),
        }),
    }
}

fn read_path(arrays: &ArrayReader<'_>) -> Result<Path, Problem> {
    let points = arrays.numbers("path", [None, Some(3)])?;
    let points: Vec<_> = points.as_chunks().0.iter().map(|&point| Point3::from(point)).collect();
    Ok(Path::from_points(&points, read_spacing(arrays)?))
}

fn read_spacing(arrays: &ArrayReader<'_>) -> Result<f64, Problem> {
    let array = "path_spacing";
    match arrays.number(array)? {
        spacing if spacing > 0.0 => Ok(spacing),
        found => Err(Problem::Array { array, expected: "a number above 0".to_owned(), found: found.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{UnitQuaternion, Vector3};

    use super::super::learner::StopSignal;
    use super::super::mapper::Step;
    use super::super::reading::{MagneticField, Measurement, Observation, Pose, Reading};
    use super::*;
    use streaming_gp::kernel::{Places, Shape};

    /// A winding drive of so many observations.
    fn observations(count: usize) -> Vec<Observation> {
        let observation = |index| {
            let along = 0.05 * index as f64;
            Observation {
                stamp: Stamp::from_nanoseconds(1_700_000_000_123_456_789 + index as i64),
                position: Point3::new(along, (2.0 * along).sin(), 0.1),
                field: MagneticField::from_microtesla(Vector3::zeros()),
                strength: 50.0 + 8.0 * (3.0 * along).sin() + (40.0 * along).cos(),
                readings: 5,
            }
        };
        (0..count).map(observation).collect()
    }

    /// So many readings 7 cm apart, each before the pose that places it.
    fn drive(readings: usize) -> Vec<Measurement> {
        let measurements = observations(readings).into_iter().flat_map(|observation| {
            let Observation { stamp, position, strength, .. } = observation;
            // No axis stays the same.
            let z = if stamp.nanoseconds() % 2 == 0 { -0.0 } else { 0.1 };
            let field = MagneticField::from_microtesla(Vector3::new(0.1 * strength, strength, z));
            // Tenths of a second instead of nanoseconds.
            let stamp = Stamp::from_nanoseconds((stamp.nanoseconds() - 1_700_000_000_123_456_789) * 100_000_007);
            let pose =
                Pose { stamp, position: position * 1.4, orientation: UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3) };
            [Measurement::Reading(Reading { stamp, field }), Measurement::Pose(pose)]
        });
        // The last reading waits for its pose.
        measurements.take(2 * readings - 1).collect()
    }

    fn learn(model: &mut FieldModel, observations: &[Observation]) {
        model.update(observations, &|| false).unwrap();
    }

    /// One that holds what is hard to keep: numbers without a short decimal, letters that are not ASCII.
    fn checkpoint(config: &Config, model: &FieldModel) -> Checkpoint {
        let mut mapper = Mapper::new(Pipeline::new(config, Isometry3::identity()), model.clone());
        // Readings that wait, an open cell, an open batch.
        for (place, measurement) in drive(8).into_iter().enumerate() {
            mapper.take(Step::Measurement { place: place as u64, measurement }, &StopSignal::default());
        }
        Checkpoint::of(config, &mapper, "lobby/\u{1f9ed}/\"nord\"").unwrap()
    }

    fn small() -> Checkpoint {
        let config = Config::default();
        let mut model = FieldModel::new(&config);
        learn(&mut model, &observations(12));
        checkpoint(&config, &model)
    }

    fn bytes(checkpoint: &Checkpoint) -> Vec<u8> {
        checkpoint.to_bytes().unwrap()
    }

    /// The file with one of its arrays exchanged, under a checksum that is right. No bytes: without the array.
    fn forged(bytes: &[u8], array: &str, forge: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut arrays = ArrayWriter::with_capacity(bytes.len());
        let (_, files) = archive::list(bytes).map(|mut files| (files.pop(), files)).unwrap();
        for (name, content) in files {
            let content = if name == format!("{array}.npy") { forge(content) } else { content.to_owned() };
            if !content.is_empty() {
                arrays.file(&name, &content).unwrap();
            }
        }
        arrays.finish().unwrap()
    }

    fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let start = bytes.windows(from.len()).position(|window| window == from).unwrap();
        [&bytes[..start], to, &bytes[start + from.len()..]].concat()
    }

    fn utf32(text: &str) -> Vec<u8> {
        text.chars().flat_map(|character| u32::from(character).to_le_bytes()).collect()
    }

    fn predictions(model: &FieldModel) -> Vec<u64> {
        let Some(posterior) = model.posterior() else { return Vec::new() };
        let mut places = Points::new(DIMENSION);
        (0..50).for_each(|index| places.push(&[0.1 * f64::from(index), (0.3 * f64::from(index)).cos()]));
        let (mut mean, mut variance) = (vec![0.0; places.len()], vec![0.0; places.len()]);
        posterior.predict(&places, &mut mean, &mut variance);
        mean.into_iter().chain(variance).map(f64::to_bits).collect()
    }

    fn anisotropic() -> Config {
        let mut config = Config::default();
        config.model.kernel = Shape::Matern32;
        (config.model.lengthscale_per_axis, config.model.constant, config.model.mean) = (true, false, 48.7);
        config
    }

    fn dual() -> Config {
        let mut config = Config::default();
        config.selection.method = "dual_memory=4".parse().unwrap();
        (config.dual_memory.inducing_points, config.dual_memory.max_memory) = (12, 10);
        config
    }

    fn of_a_signal() -> Config {
        let mut config = dual();
        config.model.likelihood = config::Likelihood::Bernoulli;
        config.topics.signal = "/contact".into();
        config
    }

    fn robust() -> Config {
        let mut config = Config::default();
        (config.model.likelihood, config.model.degrees_of_freedom) = (config::Likelihood::StudentT, 3.5);
        config
    }

    #[test]
    fn what_is_written_reads_back_to_the_last_bit() {
        for config in [Config::default(), anisotropic(), robust(), dual(), of_a_signal()] {
            let mut model = FieldModel::new(&config);
            for number in 0..3 {
                let mut before = checkpoint(&config, &model);
                before.model.totals = Totals { updates: (1 << 53) + 1, observations: u64::MAX, ..*model.totals() };
                let written = bytes(&before);
                let read = Checkpoint::from_bytes(&written).unwrap();
                assert_eq!(read, before);
                assert_eq!(bytes(&read), written);
                assert_eq!(read.extent().is_some(), number > 0);
                learn(&mut model, &observations(90)[30 * number..30 * (number + 1)]);
            }
        }
        let empty = FieldModel::new(&Config::default());
        let nothing = Mapper::new(Pipeline::new(&Config::default(), Isometry3::identity()), empty);
        let nothing = Checkpoint::of(&Config::default(), &nothing, "").unwrap();
        assert_eq!(Checkpoint::from_bytes(&bytes(&nothing)).unwrap(), nothing);
    }

    #[test]
    fn a_file_of_version_2_is_one_of_the_streaming_model() {
        let checkpoint = small();
        let old = forged(&bytes(&checkpoint), "format_version", |bytes| {
            replaced(bytes, &[FORMAT_VERSION as u8, 0, 0], &[2, 0, 0])
        });
        let key = "\"process\":\"streaming\",";
        let old = forged(&old, "metadata", |bytes| replaced(bytes, &utf32(key), &utf32(&" ".repeat(key.len()))));
        assert_eq!(Checkpoint::from_bytes(&old).unwrap(), checkpoint);
    }

    #[test]
    fn a_file_of_version_1_is_a_map_without_a_stream() {
        let checkpoint = small();
        let old = forged(&forged(&bytes(&checkpoint), "stream", |_| Vec::new()), "format_version", |bytes| {
            replaced(bytes, &[FORMAT_VERSION as u8, 0, 0], &[1, 0, 0])
        });
        let read = Checkpoint::from_bytes(&old).unwrap();
        assert_eq!((&read.model, read.path()), (&checkpoint.model, checkpoint.path()));
        let mapper = read.resume(&Config::default()).unwrap();
        assert_eq!((mapper.standing(), mapper.pipeline().waiting()), (&Standing::default(), 0));
    }

    #[test]
    fn a_stream_that_is_taken_up_again_is_the_one_that_never_stopped() {
        taken_up_again(Config::default());
    }

    #[test]
    fn so_is_one_of_a_robust_map_with_its_open_average() {
        let mut config = robust();
        // Two readings in a cell.
        config.averaging.spacing = 0.15;
        taken_up_again(config);
    }

    #[test]
    fn so_is_one_of_a_map_with_a_memory() {
        taken_up_again(dual());
    }

    #[test]
    fn so_is_one_of_a_map_of_a_signal() {
        taken_up_again(of_a_signal());
    }

    #[test]
    fn a_map_with_a_memory_is_gone_on_with_by_its_method_alone() {
        let mut model = FieldModel::new(&dual());
        learn(&mut model, &observations(30));
        let other = checkpoint(&dual(), &model).restore(&Config::default()).unwrap_err().to_string();
        assert_eq!(
            other,
            "selection.method is \"vips\", but the map was made with \"dual_memory\"; set selection.method = \"dual_memory\", or \
             start a new map"
        );
        let other = small().restore(&dual()).unwrap_err().to_string();
        assert!(
            other.starts_with("selection.method is \"dual_memory=4\", but the map was made with \"vips\" or"),
            "{other}"
        );
        // How much it remembers may change.
        let mut config = dual();
        config.selection.method = "dual_memory=2".parse().unwrap();
        let mut restored = checkpoint(&dual(), &model).restore(&config).unwrap();
        assert_eq!(predictions(&restored), predictions(&model));
        let sizes =
            [&mut restored, &mut model].map(|model| model.update(&observations(60)[30..], &|| false).unwrap().memory);
        assert_eq!(sizes, [Some(6), Some(8)]);
    }

    #[test]
    fn a_memory_that_was_not_written_by_magmap_is_refused_with_what_is_wrong() {
        let mut model = FieldModel::new(&dual());
        learn(&mut model, &observations(30));
        let good = bytes(&checkpoint(&dual(), &model));
        let last = |value: f64| move |array: &[u8]| [&array[..array.len() - 8], &value.to_le_bytes()].concat();
        type Forge<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
        let cases: [(&str, Forge<'_>, &str); 5] = [
            ("memory_sites", &|_| Vec::new(), "expected numbers in the array memory_sites, found none"),
            ("memory_targets", &last(f64::NAN), "expected finite numbers in the array memory_targets, found NaN"),
            (
                "memory_targets",
                &|array| replaced(array, b"(4, )", b"(3, )"),
                "expected <f8 of shape (4) in the array memory_targets",
            ),
            ("summary_triangle", &last(1e200), "its numbers are too large"),
            (
                "metadata",
                &|array| replaced(array, &utf32("\"targets\":30"), &utf32("\"targets\": 4")),
                "found 4 of 4 with a summary",
            ),
        ];
        for (array, forge, expected) in cases {
            let read = Checkpoint::from_bytes(&forged(&good, array, forge));
            let problem = read
                .map_err(|problem| problem.to_string())
                .and_then(|read| read.restore(&dual()).map(|_| ()).map_err(|error| error.to_string()));
            let problem = problem.expect_err(expected);
            assert!(problem.contains(expected), "{problem} instead of {expected}");
        }
    }

    fn taken_up_again(mut config: Config) {
        config.batch.max_observations = 7;
        let stop = StopSignal::default();
        let measurements = drive(60);
        let take = |mapper: &mut Mapper<FieldModel>, measurement| {
            mapper.take(Step::Measurement { place: mapper.standing().place, measurement }, &stop);
        };
        let begin = || Mapper::new(Pipeline::new(&config, Isometry3::identity()), FieldModel::new(&config));
        for stopped_at in [0, 1, 2, 37, 64, 118] {
            let (mut uninterrupted, mut interrupted) = (begin(), begin());
            for (place, &measurement) in measurements.iter().enumerate() {
                if place == stopped_at {
                    let written = bytes(&Checkpoint::of(&config, &interrupted, "odom").unwrap());
                    interrupted = Checkpoint::from_bytes(&written).unwrap().resume(&config).unwrap();
                }
                take(&mut uninterrupted, measurement);
                take(&mut interrupted, measurement);
            }
            let [expected, found] =
                [uninterrupted, interrupted].map(|mapper| bytes(&Checkpoint::of(&config, &mapper, "odom").unwrap()));
            assert_eq!(found, expected, "stopped at {stopped_at}");
        }
    }

    #[test]
    fn going_on_from_a_file_is_not_having_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("map.checkpoint.npz");
        for config in [Config::default(), anisotropic(), robust(), dual(), of_a_signal()] {
            let all = observations(200);
            let mut uninterrupted = FieldModel::new(&config);
            let mut interrupted = uninterrupted.clone();
            for batch in all.chunks(40) {
                assert!(interrupted.update(&[], &|| false).is_err());
                assert!(uninterrupted.update(&[], &|| false).is_err());
                checkpoint(&config, &interrupted).write(&file).unwrap();
                interrupted = Checkpoint::read(&file).unwrap().restore(&config).unwrap();
                learn(&mut uninterrupted, batch);
                learn(&mut interrupted, batch);
                assert_eq!(predictions(&interrupted), predictions(&uninterrupted));
            }
            assert_eq!(interrupted.state(), uninterrupted.state());
            assert_eq!(bytes(&checkpoint(&config, &interrupted)), bytes(&checkpoint(&config, &uninterrupted)));
            assert_eq!(interrupted.totals().refused_batches, 5);
            let [low, high] = interrupted.extent().unwrap();
            assert_eq!((low[0], high[0]), (0.0, all[199].position.x));
            assert!(low[1] < -0.99 && high[1] > 0.99);
        }
    }

    #[test]
    fn a_file_cut_short_anywhere_is_refused() {
        let whole = bytes(&small());
        for length in 0..whole.len() {
            let problem = Checkpoint::from_bytes(&whole[..length]).unwrap_err();
            let expected = if length < 40 { "expected a checkpoint of magmap" } else { "damaged or cut short" };
            assert!(problem.to_string().contains(expected), "{length} of {}: {problem}", whole.len());
        }
    }

    #[test]
    fn a_byte_flipped_anywhere_is_refused_or_changes_nothing() {
        let checkpoint = small();
        let mut bytes = bytes(&checkpoint);
        let mut harmless = 0;
        for index in 0..bytes.len() {
            for mask in [1 << (index % 8), 0xff] {
                bytes[index] ^= mask;
                if let Ok(read) = Checkpoint::from_bytes(&bytes) {
                    assert_eq!(read, checkpoint, "byte {index}");
                    harmless += 1;
                }
                bytes[index] ^= mask;
            }
        }
        // Of each of 17 arrays, 70 bytes of times, versions and attributes in two headers.
        assert!(harmless < 2 * 17 * 70, "{harmless} of {}", 2 * bytes.len());
    }

    #[test]
    fn a_file_that_was_not_written_by_magmap_is_refused_with_what_is_wrong() {
        let good = bytes(&small());
        let points = small().model.process.common().past.as_ref().unwrap().inducing.len();
        assert!((2..9).contains(&points), "one digit");
        type Forge = Box<dyn Fn(&[u8]) -> Vec<u8>>;
        let shape = |from: [usize; 2], to: [usize; 2]| -> Forge {
            let text = |[rows, columns]: [usize; 2]| format!("({rows}, {columns}, ), }}").into_bytes();
            // Headers end in blanks.
            let width = text(to).len().max(text(from).len());
            let [from, to] = [from, to].map(|shape| {
                let mut text = text(shape);
                text.resize(width, b' ');
                text
            });
            Box::new(move |array| replaced(array, &from, &to))
        };
        let value = |from_the_end: usize, value: f64| -> Forge {
            Box::new(move |array| {
                let start = array.len() - 8 * from_the_end;
                [&array[..start], &value.to_le_bytes(), &array[start + 8..]].concat()
            })
        };
        let text = |from: &'static str, to: &'static str| -> Forge {
            Box::new(move |array| replaced(array, &utf32(from), &utf32(to)))
        };
        let raw =
            |from: &'static [u8], to: &'static [u8]| -> Forge { Box::new(move |array| replaced(array, from, to)) };
        let cases: Vec<(&str, Forge, &str)> = vec![
            ("format", text("magmap", "mapmag"), "a checkpoint of magmap, found mapmag-checkpoint;"),
            (
                "format_version",
                raw(&[3, 0, 0], &[4, 0, 0]),
                "expected a version from 1 to 3 of the format, found version 4;",
            ),
            ("stream", text("\"past\":0", "\"past\":9"), "a state that a stream can be in"),
            ("triangle", Box::new(|_| Vec::new()), "expected numbers in the array triangle, found none"),
            ("triangle", shape([points; 2], [points, points + 1]), "in the array triangle, found <f8 of shape"),
            // More bytes than can be counted, and not one more in the file.
            ("inducing_points", shape([points, 2], [1 << 62, 2]), "found <f8 of shape (4611686018427387904, 2)"),
            ("target", raw(b"<f8", b"<f4"), "in the array target, found <f4"),
            ("target", raw(b"False", b"True "), "a header of numpy's format 1.0, in C order"),
            ("target", value(1, f64::NAN), "expected finite numbers in the array target, found NaN"),
            ("path", value(5, f64::INFINITY), "expected finite numbers in the array path, found inf"),
            ("path_spacing", value(1, 0.0), "a number above 0 in the array path_spacing, found 0"),
            ("extent", value(1, -9.0), "lower left and the upper right corner in the array extent"),
            ("triangle", value(points * points - 1, 0.5), "lower triangular triangle, found 0.5 in row 0"),
            ("covariance_root", value(1, -1.0), "diagonal of the covariance root, found -1"),
            ("metadata", text("\"frame\"", "\"fraem\""), "missing field `frame`"),
            ("metadata", text("\"targets\":12,", "\"targets\": 0,"), "found 0 targets with"),
            ("metadata", text("matern52", "gaussian"), "its settings are not those of a map"),
        ];
        for (array, forge, expected) in cases {
            let problem = Checkpoint::from_bytes(&forged(&good, array, forge)).expect_err(expected).to_string();
            assert!(problem.contains(expected), "{problem} instead of {expected}");
        }
        assert_eq!(Checkpoint::from_bytes(&forged(&good, "triangle", <[u8]>::to_vec)).unwrap(), small());
    }

    #[test]
    fn what_is_no_checkpoint_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let cases: [(&str, Option<&[u8]>, &str); 5] = [
            ("missing.npz", None, "missing.npz: No such file"),
            ("empty.npz", Some(b""), "found an empty file; name a file that magmap saved"),
            ("map.png", Some(b"\x89PNG\r\n\x1a\n and more"), r#"begins with "\x89PNG\r\n\x1a\n""#),
            (
                "map.npz",
                Some(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0mean.npy"),
                "found a file that begins",
            ),
            ("", None, "Is a directory"),
        ];
        for (name, content, expected) in cases {
            let path = folder.path().join(name);
            content.into_iter().for_each(|content| std::fs::write(&path, content).unwrap());
            let message = Checkpoint::read(&path).unwrap_err().to_string();
            assert!(message.starts_with("cannot read the checkpoint /") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn only_a_configuration_for_the_same_model_goes_on() {
        let config = Config::default();
        let mut model = FieldModel::new(&config);
        learn(&mut model, &observations(30));
        let checkpoint = checkpoint(&config, &model);
        for (setting, expected) in [
            (
                "model.kernel=matern32",
                "model.kernel is \"matern32\", but the map was made with \"matern52\"; set model.kernel = \"matern52\"",
            ),
            ("model.lengthscale_per_axis=true", "model.lengthscale_per_axis is true, but the map was made with false"),
            ("model.constant=false", "model.constant is false, but the map was made with true"),
            ("model.mean=0.1", "model.mean is 0.1, but the map was made with 0.0"),
            (
                "model.likelihood=student_t",
                "model.likelihood is \"student_t\", but the map was made with \"gaussian\"; set model.likelihood = \"gaussian\"",
            ),
            ("model.relative_jitter=1e-7", "model.relative_jitter is 0.0000001, but the map was made with 0.000001"),
        ] {
            let mut other = config.clone();
            other.apply_override(setting).unwrap();
            let message = checkpoint.restore(&other).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message} instead of {expected}");
        }
        let made = FieldModel::new(&robust());
        let message = self::checkpoint(&robust(), &made)
            .restore(&Config { model: config::Model { degrees_of_freedom: 4.0, ..robust().model }, ..robust() });
        let message = message.unwrap_err().to_string();
        assert!(message.starts_with("model.degrees_of_freedom is 4.0, but the map was made with 3.5"), "{message}");
        let mut other = config.clone();
        // Of a Gaussian they mean nothing.
        other.apply_override("model.degrees_of_freedom=9").unwrap();
        assert!(checkpoint.restore(&other).is_ok());
        let mut other = config.clone();
        other.apply_overrides(&["model.initial.noise=9", "selection.delta=0.5", "learning.max_evaluations=0"]).unwrap();
        let mut restored = checkpoint.restore(&other).unwrap();
        assert_eq!(predictions(&restored), predictions(&model));
        let report = restored.update(&observations(60)[30..], &|| false).unwrap();
        assert_eq!(report.learning.evaluations, 0);
    }

    #[test]
    fn a_checkpoint_says_with_which_model_it_was_made() {
        let model = FieldModel::new(&anisotropic());
        let checkpoint = checkpoint(&Config::default(), &model);
        assert_eq!(checkpoint.model_settings(), &anisotropic().model);
        assert_eq!(Config::from_toml(checkpoint.config(), "checkpoint").unwrap().model, anisotropic().model);
        assert!(checkpoint.restore(&anisotropic()).is_ok());
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = small();
        let good = folder.path().join("map.checkpoint.npz");
        checkpoint.write(&good).unwrap();
        let before = std::fs::read(&good).unwrap();
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(taken.join("inside")).unwrap();
        for path in [folder.path().join("missing/map.npz"), good.join("map.npz"), taken] {
            let message = checkpoint.write(&path).unwrap_err().to_string();
            assert!(message.starts_with(&format!("cannot write the checkpoint {}: ", path.display())), "{message}");
        }
        assert_eq!(std::fs::read(&good).unwrap(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        checkpoint.write(&good).unwrap();
        assert_eq!(std::fs::read(&good).unwrap(), before);
    }
}
