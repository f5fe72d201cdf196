//! Magmap's readers of files, as functions of bytes that may be anything: for `crates/magmap-tools/tests/hostile_files.rs` and for the
//! targets of `cargo fuzz` in `fuzz/`.
#![allow(dead_code)] // tests and targets use a part each

pub mod memory;
mod repair;
mod seeds;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use magmap::config::Config;
use magmap::mapping::mapper::Mapper;
use magmap::mapping::step_log::StepLog;
use magmap::store::Database;
use magmap::store::map_file;
use magmap::store::map_log::{MapLog, Options};
use magmap::store::recovery::Gaps;
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
pub const READERS: [Reader; 8] = [
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
    Reader { name: "map", read: map, repair: repair::map, memory: 16 << 20, seeds: seeds::map, words: no_words },
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

/// Writes a file, and creates its folder if necessary.
fn put(path: &Path, bytes: &[u8]) {
    let written = fs::write(path, bytes).or_else(|_| {
        fs::create_dir_all(path.parent().expect("a path with a parent"))?;
        fs::write(path, bytes)
    });
    written.expect("a file");
}

/// Opens a recording and reads it to its end, twice as a replay with a summary does.
fn replay(path: &Path) {
    match recording::open(path, &Config::default()) {
        Ok(recording) => {
            let _ = recording.loss.to_string();
            let _ = recording.id();
            recording.inputs().for_each(drop);
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

/// A map, with what its steps do to it. An accepted one can be continued, and reads the same after it is written.
fn map(folder: &Path, bytes: &[u8]) {
    let path = folder.join("map.magmap");
    put(&path, bytes);
    let recovered = Database::open(&path).and_then(|database| {
        drop(database.trajectory().map_err(|error| error.to_string()));
        let database = Arc::new(database);
        Ok((database.recover(&seeds::quick_settings(), Gaps::Skip, |_| {})?, database))
    });
    match recovered {
        Ok((recovered, database)) => {
            let log = MapLog::resume(database, recovered, Options { earlier_maps: 1, ..Options::default() });
            let (mapper, log) = log.expect("a thread");
            let handle = log.handle();
            Box::new(log).close(Some(&mapper));
            drop(mapper);
            if handle.status().lost.is_none() {
                drop(handle);
                map_file::read(&path).expect("what was written can be read");
            }
        }
        Err(error) => drop(error.to_string()),
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
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
