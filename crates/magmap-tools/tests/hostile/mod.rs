//! Magmap's readers of files, as functions of bytes that may be anything: for `crates/magmap-tools/tests/hostile_files.rs` and for the
//! targets of `cargo fuzz` in `fuzz/`.
#![allow(dead_code)] // tests and targets use a part each

pub mod memory;
mod repair;
mod seeds;

use std::fs;
use std::path::Path;

use magmap::config::{Config, Sensor, Topics};
use magmap::durability::checkpoint::Checkpoint;
use magmap::durability::journal::{Folder, Gaps, steps_of};
use magmap::mapping::mapper::{Mapper, Step};
use magmap::mapping::stop::StopSignal;
use magmap_tools::recording;
use magmap_tools::recording::messages::{MagneticField, Message, OccupancyGrid, Odometry, TFMessage, decode, encode};
use tempfile::TempDir;

/// A kind of input and its reader.
pub struct Reader {
    /// Name of the reader and of its target.
    pub name: &'static str,
    /// Reads the bytes, and whatever lies behind them where they are accepted. Must not panic. The folder is for files.
    pub read: fn(&Path, &[u8]),
    /// Sets checksums right, so that what they guard is reached.
    pub repair: fn(&mut [u8]),
    /// Bytes of memory that it may take, whatever the input; beyond that, a hundred times the input.
    pub memory: usize,
    /// Small good inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words worth trying.
    pub words: fn() -> Vec<String>,
}

impl Reader {
    /// The most memory that an input of this length may take.
    pub fn allowed_memory(&self, length: usize) -> usize {
        self.memory + 100 * length
    }
}

/// All readers.
pub const READERS: [Reader; 9] = [
    Reader { name: "csv", read: csv, repair: nothing, memory: 16 << 20, seeds: seeds::csv, words: seeds::csv_words },
    Reader {
        name: "survey",
        read: survey,
        repair: nothing,
        memory: 16 << 20,
        seeds: seeds::survey,
        words: seeds::survey_words,
    },
    Reader {
        name: "metadata",
        read: metadata,
        repair: nothing,
        memory: 16 << 20,
        seeds: seeds::metadata,
        words: seeds::metadata_words,
    },
    Reader { name: "mcap", read: mcap, repair: repair::mcap, memory: 64 << 20, seeds: seeds::mcap, words: no_words },
    Reader {
        name: "sqlite3",
        read: sqlite3,
        repair: nothing,
        memory: 16 << 20,
        seeds: seeds::sqlite3,
        words: seeds::sqlite3_words,
    },
    Reader { name: "cdr", read: cdr, repair: nothing, memory: 16 << 20, seeds: seeds::cdr, words: no_words },
    Reader {
        name: "checkpoint",
        read: checkpoint,
        repair: repair::checkpoint,
        memory: 16 << 20,
        seeds: seeds::checkpoint,
        words: no_words,
    },
    Reader {
        name: "journal",
        read: journal,
        repair: repair::journal,
        memory: 16 << 20,
        seeds: seeds::journal,
        words: no_words,
    },
    Reader {
        name: "config",
        read: config,
        repair: nothing,
        memory: 16 << 20,
        seeds: seeds::config,
        words: seeds::config_words,
    },
];

/// The reader of this name.
pub fn reader(name: &str) -> &'static Reader {
    READERS.iter().find(|reader| reader.name == name).expect("a reader of this name")
}

fn nothing(_: &mut [u8]) {}

fn no_words() -> Vec<String> {
    Vec::new()
}

/// A folder of its own: where `TMPDIR` says, otherwise in memory where the system has a place for that.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let is_free = std::env::var_os("TMPDIR").is_none() && memory.is_dir();
    let parent = if is_free { memory.to_owned() } else { std::env::temp_dir() };
    TempDir::with_prefix_in("magmap-hostile-", parent).expect("a temporary folder")
}

/// Writes a file, and its folder where there is none.
fn put(path: &Path, bytes: &[u8]) {
    let written = fs::write(path, bytes).or_else(|_| {
        fs::create_dir_all(path.parent().expect("a path with a parent"))?;
        fs::write(path, bytes)
    });
    written.expect("a file");
}

/// Opens a recording and reads it to its end, twice as a replay with a summary does.
fn replay(path: &Path) {
    match recording::open(path, &Topics::default(), &Sensor::default()) {
        Ok(recording) => {
            let _ = recording.loss.to_string();
            let _ = recording.id();
            recording.for_each(drop);
        }
        Err(error) => drop(error.to_string()),
    }
}

/// The three files of a drive, one behind the other with a zero byte between: times, positions, fields.
fn csv(folder: &Path, bytes: &[u8]) {
    let sensor = folder.join("trivisio");
    let mut files = bytes.splitn(3, |byte| *byte == 0);
    for kind in ["time", "loc", "mag"] {
        put(&sensor.join(format!("1-{kind}.csv")), files.next().unwrap_or_default());
    }
    replay(&sensor.join("1"));
}

fn survey(folder: &Path, bytes: &[u8]) {
    let path = folder.join("survey.csv");
    put(&path, bytes);
    replay(&path);
}

/// The `metadata.yaml` of a bag that holds one sound MCAP file and one that is compressed as a whole.
fn metadata(folder: &Path, bytes: &[u8]) {
    let folder = folder.join("bag");
    for (name, content) in seeds::storage_files() {
        if !folder.join(name).exists() {
            put(&folder.join(name), content);
        }
    }
    put(&folder.join("metadata.yaml"), bytes);
    replay(&folder);
}

fn mcap(folder: &Path, bytes: &[u8]) {
    let path = folder.join("bag.mcap");
    put(&path, bytes);
    replay(&path);
}

fn sqlite3(folder: &Path, bytes: &[u8]) {
    let path = folder.join("bag.db3");
    put(&path, bytes);
    replay(&path);
}

/// A message of every type that is known, in its encapsulation.
fn cdr(_: &Path, bytes: &[u8]) {
    fn read<M: Message>(bytes: &[u8]) -> Option<M> {
        match decode::<M>(bytes) {
            Ok(message) => {
                encode(&message).expect("what was decoded can be encoded");
                Some(message)
            }
            Err(error) => {
                let _ = error.to_string();
                None
            }
        }
    }
    if let Some(field) = read::<MagneticField>(bytes) {
        let _ = field.to_reading();
    }
    if let Some(odometry) = read::<Odometry>(bytes) {
        let _ = odometry.to_pose();
    }
    for transform in read::<TFMessage>(bytes).into_iter().flat_map(|message| message.transforms) {
        let _ = transform.isometry();
    }
    read::<OccupancyGrid>(bytes);
}

/// An accepted checkpoint can be continued, and reads the same after it is written.
fn checkpoint(folder: &Path, bytes: &[u8]) {
    let checkpoint = match Checkpoint::from_bytes(bytes) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return drop(error.to_string()),
    };
    let mut settings = checkpoint.model.settings.clone();
    let mut resumed = checkpoint.resume(&settings);
    if resumed.is_err() {
        settings.selection.method = "dual_memory".parse().expect("a method");
        resumed = checkpoint.resume(&settings);
    }
    if let Ok(mapper) = resumed {
        let path = folder.join("map.npz");
        let resumed = Checkpoint::of(&mapper).expect("settings that were read");
        resumed.write(&path).expect("what was read can be written");
        Checkpoint::read(&path).expect("what was written can be read");
    }
}

/// The first segment of a journal, and what its steps do to all but the model.
fn journal(_: &Path, bytes: &[u8]) {
    match steps_of(bytes) {
        Ok((steps, damages)) => {
            damages.iter().for_each(|damage| drop(damage.to_string()));
            let mut mapper = Mapper::new(&seeds::quick_settings());
            let steps = steps.into_iter().filter(|step| !matches!(step, Step::Learn { .. }));
            steps.for_each(|step| drop(mapper.take(step, &StopSignal::default())));
        }
        Err(damage) => drop(damage.to_string()),
    }
}

/// Recovers a journal with the model, which takes long.
pub fn recovery(folder: &Path, bytes: &[u8]) {
    put(&folder.join("steps-000000000000.journal"), bytes);
    for gaps in [Gaps::Stop, Gaps::Skip] {
        let journal = Folder::open(folder).expect("a folder");
        let _ = journal.recover(&seeds::quick_settings(), gaps, |_| {}).expect("damage is no error");
    }
}

/// Accepted settings read back as they are, and the parts of a map can be made of them.
fn config(_: &Path, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut changed = Config::default();
    if let Some(line) = text.lines().next() {
        let _ = changed.apply_overrides(&[line]).map_err(|error| error.to_string());
    }
    match Config::from_toml(text, "fuzz.toml") {
        Ok(config) => {
            let written = config.to_toml().expect("what was read can be written");
            assert!(Config::from_toml(&written, "written").expect("what was written can be read") == config);
            drop(Mapper::new(&config));
        }
        Err(error) => drop(error.to_string()),
    }
}
