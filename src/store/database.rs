//! The file of a map: an SQLite database, described in `docs/map-file.md`. No other module knows its tables.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, params};

use super::Error;
use super::earlier_maps::{set_aside, sibling};
use crate::arrays::{Array, Arrays, Problem};
use crate::field::tile_store::{StoredTile, TileRow, TileStore};
use crate::files::{FileError, folder_of, sync_folder_of};
use crate::mapping::mapper::{Mapper, SourceRun, Step};
use crate::sensing::reading::Observation;
use crate::sync::lock;
use crate::trajectory;

/// Marks a database as a map: "magm".
const APPLICATION: i32 = 0x6d61_676d;

/// Version of the tables.
const VERSION: i32 = 1;

/// The tables, as they are made. A file with any others is not read.
const TABLES: [&str; 7] = [
    "CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, saved INTEGER, state TEXT, stream TEXT, settings TEXT, path BLOB, \
     checksum INTEGER)",
    "CREATE TABLE checkpoint_tiles (step INTEGER, tile INTEGER, PRIMARY KEY (step, tile)) WITHOUT ROWID",
    "CREATE TABLE tiles (number INTEGER PRIMARY KEY, column INTEGER, row INTEGER, targets INTEGER, learnt INTEGER, own INTEGER, \
     checksum INTEGER)",
    "CREATE TABLE arrays (tile INTEGER, name TEXT, shape TEXT, numbers BLOB, PRIMARY KEY (tile, name))",
    "CREATE TABLE steps (number INTEGER PRIMARY KEY, step BLOB, checksum INTEGER)",
    "CREATE TABLE batches (number INTEGER PRIMARY KEY, run INTEGER, observations BLOB, checksum INTEGER)",
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, source TEXT, fingerprint TEXT, run TEXT, first_batch INTEGER)",
];

/// Pause after a failure to write, before a tile is evicted again.
const RETRY: Duration = Duration::from_secs(1);

/// Number of steps after which SQLite checks the number of steps.
const CHECKED_STEPS: u32 = 100_000;

/// Number of steps that SQLite may take at a time: a constant, and a number per byte of the file. A valid file needs far fewer; in a
/// malicious one the branches of a tree may be shared and endless.
const MOST_STEPS: u64 = 100_000_000;
const STEPS_PER_BYTE: u64 = 10;

/// The file of a map, which no other process can open during the lifetime of this value. It may not exist yet.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    open: Mutex<Option<Open>>,
    tiles: Mutex<TileNumbers>,
    /// The damaged file at its path, which it replaces.
    replaced: Option<Arc<Database>>,
    /// Whether it is only read, and may then be changed by others.
    is_read_only: bool,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Whether this process has written into it.
    is_begun: bool,
    /// Whether it is a temporary file for tiles alone.
    is_temporary: bool,
    /// Steps that SQLite may still take.
    steps: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct TileNumbers {
    /// Numbers of the tiles that the maps in memory need.
    used: BTreeSet<u64>,
    /// When the last attempt to write one failed; none if it did not.
    failed: Option<Instant>,
}

/// A checkpoint.
#[derive(Debug)]
pub(super) struct CheckpointRow {
    /// Number of steps before it.
    pub(super) step: u64,
    /// State of the model, except for its tiles, as JSON.
    pub(super) state: String,
    /// State of the stream, as JSON.
    pub(super) stream: String,
    /// All settings, as TOML.
    pub(super) settings: String,
    /// Points of the path, three numbers each.
    pub(super) path: Vec<u8>,
    /// Numbers of its tiles, in ascending order.
    pub(super) tiles: Vec<u64>,
}

impl CheckpointRow {
    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.step.to_le_bytes());
        for text in [&self.state, &self.stream, &self.settings] {
            hasher.update(text.as_bytes());
            hasher.update(&[0]);
        }
        hasher.update(&self.path);
        self.tiles.iter().for_each(|tile| hasher.update(&tile.to_le_bytes()));
        hasher.finalize()
    }
}

/// A batch of observations that the map has learnt, or rejected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    /// Number of batches that the map was given before.
    pub(super) number: u64,
    /// Index of the run that it belongs to, among those of the map.
    pub(super) run: u64,
    /// Number of steps after which it had been learnt; 0 where it was read from a file.
    pub(super) learnt_after: u64,
    /// The observations, as [`trajectory::to_bytes`] writes them.
    pub(super) observations: Vec<u8>,
}

impl Batch {
    /// The batch with this number of a map that was made in these runs.
    pub(super) fn of(number: u64, runs: &[SourceRun], observations: &[Observation]) -> Self {
        let run = runs.iter().rposition(|run| run.after_updates <= number).unwrap_or(0) as u64;
        Self { number, run, learnt_after: 0, observations: trajectory::to_bytes(observations) }
    }

    /// The batch that `mapper` has just learnt.
    pub(super) fn learnt(mapper: &Mapper, observations: &[Observation]) -> Self {
        Self {
            number: mapper.model().totals.batches().saturating_sub(1),
            run: mapper.progress().sources.len().saturating_sub(1) as u64,
            learnt_after: mapper.progress().steps,
            observations: trajectory::to_bytes(observations),
        }
    }
}

/// Encoded steps, to be written together. Clearing keeps the memory.
#[derive(Debug, Default)]
pub(super) struct Steps {
    bytes: Vec<u8>,
    /// The number of each step, and where its bytes end.
    ends: Vec<(u64, usize)>,
}

impl Steps {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(bytes / 16) }
    }

    pub(super) fn push(&mut self, number: u64, step: &Step) -> io::Result<()> {
        postcard::to_io(step, &mut self.bytes).map_err(io::Error::other)?;
        self.ends.push((number, self.bytes.len()));
        Ok(())
    }

    /// Memory that is in use, in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + size_of_val(&self.ends[..])
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The readable rows of a table that may be damaged, in the order of its numbers.
#[derive(Debug)]
pub(super) struct Found<T> {
    /// The number of each row with its content, none where that is damaged.
    pub(super) rows: Vec<(u64, Option<T>)>,
    /// Why other rows cannot be read.
    pub(super) damage: Option<String>,
}

impl Database {
    /// A map that is not written yet. What is at this path is another one; it becomes an earlier map as soon as there is something to
    /// write.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open: Mutex::new(None), tiles: Mutex::default(), replaced: None, is_read_only: false }
    }

    /// A map that is not written yet, instead of one whose file is damaged.
    pub(super) fn instead_of(damaged: Arc<Self>) -> Self {
        Self { replaced: Some(Arc::clone(&damaged)), ..Self::new(damaged.path()) }
    }

    /// Opens the file of a map for this process alone. Nothing in it changes before something is written.
    ///
    /// # Errors
    /// [`Error::InUse`], and [`Error::Read`] for a file that is missing, no map, or so damaged that nothing of it can be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::open_as(path.into(), OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    /// Opens the file of a map to be read only, which others may do as well.
    ///
    /// # Errors
    /// As [`open`](Self::open); in use is a file that another process writes.
    pub fn open_to_read(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        // What a process that died has not moved from there to the file itself can be read by one process only.
        let is_unfinished = sibling(&path, "-wal").exists();
        let flag = if is_unfinished { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
        Ok(Self { is_read_only: true, ..Self::open_as(path, flag)? })
    }

    fn open_as(path: PathBuf, flag: OpenFlags) -> Result<Self, Error> {
        match Open::existing(&path, flag) {
            Ok(open) => Ok(Self { open: Mutex::new(Some(open)), ..Self::new(path) }),
            Err(OpenError::Busy) => Err(Error::InUse { path, process: None }),
            Err(OpenError::Unreadable(problem)) => Err(Error::Read { path, problem }),
        }
    }

    /// A temporary file for tiles alone, which is removed with this value.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn temporary() -> io::Result<Self> {
        let connection = Connection::open("").map_err(in_words)?;
        let tables = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;";
        let open = Open { is_begun: true, is_temporary: true, ..Open::of(connection, 0).map_err(in_words)? };
        open.connection.execute_batch(tables).map_err(in_words)?;
        TABLES.iter().try_for_each(|table| open.connection.execute_batch(table)).map_err(in_words)?;
        Ok(Self { open: Mutex::new(Some(open)), ..Self::new("") })
    }

    /// The file of the map.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the map is in the file, or was in it before this run.
    pub(crate) fn holds_map(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether this process has written into the file.
    pub(super) fn is_begun(&self) -> bool {
        self.lock().as_ref().is_some_and(|open| open.is_begun)
    }

    /// From now on this process writes into the file. Where the map has no file yet, or its file has vanished, a new one is made: a
    /// file of another map at its path becomes an earlier map, of which at most `earlier_maps` are kept, and of a file that has vanished
    /// the trajectory is copied, and the tiles that the maps in memory need.
    ///
    /// # Errors
    /// [`Error::InUse`], and [`Error::File`] for what cannot be written.
    pub(super) fn begin(&self, earlier_maps: usize) -> Result<(), Error> {
        let mut guard = self.lock();
        match guard.as_mut() {
            Some(open) if open.is_temporary || (open.is_begun && self.path.exists()) => return Ok(()),
            Some(open) if self.path.exists() => return open.begin().map_err(|error| self.unwritten(in_words(error))),
            _ => {}
        }
        fs::create_dir_all(folder_of(&self.path)).map_err(|error| self.unwritten(error))?;
        let kept = match &self.replaced {
            Some(damaged) => damaged.keep_as_earlier_map(earlier_maps)?,
            None => keep_as_earlier_map(&self.path, earlier_maps)?,
        };
        if let Some(kept) = kept {
            log::info!("{} is another map: it is kept as {}", self.path.display(), kept.display());
        }
        let mut open = Open::new(&self.path).map_err(|error| self.unwritten(in_words(error)))?;
        if let Some(vanished) = guard.as_ref() {
            let copied = copy(&vanished.connection, &mut open, &lock(&self.tiles).used);
            copied.map_err(|error| self.unwritten(in_words(error)))?;
        }
        *guard = Some(open);
        sync_folder_of(&self.path).map_err(|error| self.unwritten(error))
    }

    /// Moves all of it into the file, and keeps the newest checkpoint alone if that `is_last`: one file is left. What the maps in memory
    /// need can still be read, but others may open the file as well.
    pub(super) fn finish(&self, is_last: bool) -> io::Result<()> {
        let is_begun = |open: &&mut Open| open.is_begun && !open.is_temporary;
        let mut guard = self.lock();
        let Some(open) = guard.as_mut().filter(is_begun) else { return Ok(()) };
        let finish = |open: &mut Open| {
            if is_last {
                let used = &lock(&self.tiles).used;
                open.transaction(true, |transaction| {
                    transaction
                        .execute("DELETE FROM checkpoints WHERE step < (SELECT max(step) FROM checkpoints)", [])?;
                    transaction.execute("DELETE FROM steps", [])?;
                    sweep(transaction, used)
                })?;
            }
            open.fold()
        };
        finish(open).map_err(in_words)
    }

    /// The map in this file, if there is any, becomes an earlier map, of which at most `most` are kept; returns its path.
    pub(super) fn keep_as_earlier_map(&self, most: usize) -> Result<Option<PathBuf>, Error> {
        if self.lock().is_none() {
            return Ok(None);
        }
        Ok(set_aside(&self.path, most).map_err(not_renamed(&self.path))?)
    }

    /// Writes steps and batches.
    pub(super) fn append(&self, steps: &Steps, batches: &[Batch]) -> io::Result<()> {
        self.write(true, |transaction| {
            let mut start = 0;
            let mut insert = transaction.prepare_cached("INSERT OR REPLACE INTO steps VALUES (?1, ?2, ?3)")?;
            for &(number, end) in &steps.ends {
                let step = &steps.bytes[start..end];
                insert.execute(params![number as i64, step, checksum(number, step)])?;
                start = end;
            }
            insert_batches(transaction, batches)
        })
    }

    /// Writes a checkpoint of a map that was made in these `runs` and had been given this number of batches, whose tiles are in the file,
    /// and removes what neither it, nor the one before, nor the saved one needs.
    pub(super) fn write_checkpoint(
        &self,
        row: &CheckpointRow,
        is_saved: bool,
        runs: &[SourceRun],
        batches: &[Batch],
        batch_count: u64,
    ) -> io::Result<()> {
        let step = row.step as i64;
        self.write(true, |transaction| {
            insert_batches(transaction, batches)?;
            let removed =
                transaction.execute("DELETE FROM batches WHERE number >= ?1", [batch_count as i64])?;
            if is_saved {
                transaction.execute("UPDATE checkpoints SET saved = 0", [])?;
            }
            // An older state was loaded: what came after it is no part of this map.
            if removed > 0 {
                transaction.execute("DELETE FROM checkpoints WHERE NOT saved", [])?;
                transaction.execute("DELETE FROM steps", [])?;
            }
            transaction.execute(
                "INSERT INTO checkpoints VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET saved = max(saved, ?2), \
                 state = ?3, stream = ?4, settings = ?5, path = ?6, checksum = ?7",
                params![step, is_saved, row.state, row.stream, row.settings, row.path, row.checksum()],
            )?;
            transaction.execute("DELETE FROM checkpoint_tiles WHERE step = ?1", [step])?;
            let mut insert = transaction.prepare_cached("INSERT INTO checkpoint_tiles VALUES (?1, ?2)")?;
            row.tiles.iter().try_for_each(|tile| insert.execute([step, *tile as i64]).map(drop))?;
            transaction.execute("DELETE FROM runs", [])?;
            let mut insert = transaction.prepare_cached("INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5)")?;
            for (number, SourceRun { id, run, after_updates }) in (0_i64..).zip(runs) {
                insert.execute(params![number, id.name, id.fingerprint, run, *after_updates as i64])?;
            }
            let before = "SELECT max(step) FROM checkpoints WHERE step < ?1";
            let before: Option<i64> = transaction.query_row(before, [step], |row| row.get(0))?;
            let needed_from = before.unwrap_or(step);
            transaction.execute("DELETE FROM checkpoints WHERE step < ?1 AND NOT saved", [needed_from])?;
            transaction.execute("DELETE FROM steps WHERE number < ?1", [needed_from])?;
            sweep(transaction, &lock(&self.tiles).used)
        })
    }

    /// The newest state is the saved one.
    pub(super) fn mark_saved(&self) -> io::Result<()> {
        let newest = "UPDATE checkpoints SET saved = (step = (SELECT max(step) FROM checkpoints))";
        self.write(true, |transaction| transaction.execute(newest, []).map(drop))
    }

    /// Copies the whole map into a new file.
    pub(super) fn copy_to(&self, path: &Path) -> io::Result<()> {
        let temporary = sibling(path, "-partial");
        let _ = fs::remove_file(&temporary);
        let copied = self.read(|connection| connection.execute("VACUUM INTO ?1", [temporary.to_string_lossy()]));
        let renamed = copied.and_then(|_| {
            fs::File::open(&temporary)?.sync_all()?;
            fs::rename(&temporary, path)?;
            sync_folder_of(path)
        });
        renamed.inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Numbers of the steps before each checkpoint, the newest first, and whether the map was saved there.
    pub(super) fn checkpoints(&self) -> io::Result<Vec<(u64, bool)>> {
        self.read(|connection| {
            // A valid file has three.
            let mut query =
                connection.prepare("SELECT step, saved IS 1 FROM checkpoints ORDER BY step DESC LIMIT 10")?;
            query.query_map([], |row| Ok((number(row, 0)?, row.get(1)?)))?.collect()
        })
    }

    /// The checkpoint after this number of steps.
    ///
    /// # Errors
    /// Where it cannot be read, or its checksum is wrong.
    pub(super) fn checkpoint(&self, step: u64) -> Result<CheckpointRow, Problem> {
        match self.read(|connection| checkpoint_of(connection, step)) {
            Ok((row, checksum)) if row.checksum() == checksum => Ok(row),
            Ok(_) => Err(Problem::Damaged("its checksum is wrong".into())),
            Err(error) => Err(Problem::Damaged(error.to_string())),
        }
    }

    /// The steps from this number on.
    pub(super) fn steps(&self, from: u64) -> Found<Step> {
        self.found("SELECT number, checksum, step FROM steps WHERE number >= ?1", from, |row, number, sum| {
            let bytes = row.get_ref(2).ok()?.as_blob().ok()?;
            (checksum(number, bytes) == sum).then(|| postcard::from_bytes(bytes).ok())?
        })
    }

    /// The batches that the map was given.
    pub(super) fn batches(&self) -> Found<Batch> {
        self.found("SELECT number, checksum, observations, run FROM batches WHERE number >= ?1", 0, batch_of)
    }

    /// Whether all batches can be read.
    pub(super) fn is_trajectory_whole(&self) -> bool {
        let is_valid = |row: &Row<'_>, number, sum| {
            let observations = row.get_ref(2).ok()?.as_blob().ok()?;
            (checksum(number, observations) == sum).then_some(())
        };
        let Found { rows, damage } =
            self.found("SELECT number, checksum, observations FROM batches WHERE number >= ?1", 0, is_valid);
        damage.is_none() && rows.iter().all(|(_, valid)| valid.is_some())
    }

    /// The trajectory: the observations of each batch that the map was given, in this order.
    ///
    /// # Errors
    /// [`Error::Read`] where a batch is damaged.
    pub fn trajectory(&self) -> Result<Vec<Vec<Observation>>, Error> {
        let damaged = |what| Error::Read { path: self.path.clone(), problem: Problem::Damaged(what) };
        let Found { rows, damage } = self.batches();
        if let Some(damage) = damage {
            return Err(damaged(format!("the trajectory cannot be read: {damage}")));
        }
        let observations = |(number, batch): (u64, Option<Batch>)| {
            let observations = batch.and_then(|batch| trajectory::from_bytes(&batch.observations));
            observations.ok_or_else(|| damaged(format!("batch {number} of the trajectory is damaged")))
        };
        rows.into_iter().map(observations).collect()
    }

    /// A tile that is in the file, and in use from now on; none where the file is only read.
    pub(super) fn existing_tile(self: &Arc<Self>, number: u64) -> Option<Arc<StoredTile>> {
        if self.is_read_only {
            return None;
        }
        lock(&self.tiles).used.insert(number);
        Some(Arc::new(StoredTile::new(Arc::clone(self) as Arc<dyn TileStore>, number)))
    }

    /// The readable rows of a table, from both of its ends where a part is damaged.
    fn found<T>(&self, query: &str, from: u64, content: impl Fn(&Row<'_>, u64, u32) -> Option<T>) -> Found<T> {
        let read = |connection: &Connection, order: &str, rows: &mut Vec<(u64, Option<T>)>| {
            let mut query = connection.prepare(&format!("{query} ORDER BY number {order}"))?;
            let mut found = query.query([from as i64])?;
            while let Some(row) = found.next()? {
                let number = number(row, 0)?;
                // Branches of a damaged tree may be shared.
                let is_in_order =
                    rows.last().is_none_or(|(last, _)| if order == "ASC" { number > *last } else { number < *last });
                if !is_in_order {
                    return Err(rusqlite::Error::IntegralValueOutOfRange(0, number as i64));
                }
                let sum = row.get(1).ok();
                rows.push((number, sum.and_then(|sum| content(row, number, sum))));
            }
            Ok(())
        };
        let (mut rows, mut from_end) = (Vec::new(), Vec::new());
        let damage = self.read(|connection| read(connection, "ASC", &mut rows)).err().map(|error| error.to_string());
        if damage.is_some() {
            let _ = self.read(|connection| read(connection, "DESC", &mut from_end));
            let last = rows.last().map(|(number, _)| *number);
            rows.extend(from_end.into_iter().rev().filter(|(number, _)| last.is_none_or(|last| *number > last)));
        }
        Found { rows, damage }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        lock(&self.open)
    }

    fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> io::Result<T> {
        let guard = self.lock();
        let open = guard.as_ref().ok_or_else(|| io::Error::other("there is no file yet"))?;
        open.restart_count();
        work(&open.connection).map_err(in_words)
    }

    /// Changes the file as a whole or not at all; what `is_synced` survives a power cut.
    fn write<T>(&self, is_synced: bool, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> io::Result<T> {
        let mut guard = self.lock();
        let open = guard.as_mut().filter(|open| open.is_begun);
        let open = open.ok_or_else(|| io::Error::other("nothing is written yet"))?;
        open.transaction(is_synced, work).map_err(in_words)
    }

    /// The error for something that cannot be written.
    pub(super) fn unwritten(&self, error: io::Error) -> Error {
        FileError::of("write the map", &self.path, "; what the file held is still there")(error).into()
    }

    /// Computes all checksums again: of a file that tests have changed.
    #[doc(hidden)]
    pub fn correct_checksums(&self) -> io::Result<()> {
        let mut guard = self.lock();
        let open = guard.as_mut().ok_or_else(|| io::Error::other("there is no file"))?;
        let correct = |transaction: &Transaction<'_>| {
            let numbers = |query: &str| -> rusqlite::Result<Vec<i64>> {
                transaction.prepare(query)?.query_map([], |row| row.get(0))?.take(1000).collect()
            };
            for step in numbers("SELECT step FROM checkpoints")? {
                if let Ok((row, _)) = checkpoint_of(transaction, step as u64) {
                    let update = "UPDATE checkpoints SET checksum = ?1 WHERE step = ?2";
                    transaction.execute(update, params![row.checksum(), step])?;
                }
            }
            for tile in numbers("SELECT number FROM tiles")? {
                if let Ok((row, _)) = tile_of(transaction, tile as u64) {
                    transaction.execute(
                        "UPDATE tiles SET checksum = ?1 WHERE number = ?2",
                        params![tile_checksum(&row), tile],
                    )?;
                }
            }
            for (table, column) in [("steps", "step"), ("batches", "observations")] {
                for number in numbers(&format!("SELECT number FROM {table}"))? {
                    let read = format!("SELECT {column} FROM {table} WHERE number = ?1");
                    if let Ok(bytes) = transaction.query_row(&read, [number], |row| row.get::<_, Vec<u8>>(0)) {
                        let update = format!("UPDATE {table} SET checksum = ?1 WHERE number = ?2");
                        transaction.execute(&update, params![checksum(number as u64, &bytes), number])?;
                    }
                }
            }
            Ok(())
        };
        open.transaction(false, correct).map_err(in_words)
    }

    /// Holds up everything that needs the file, as a disk that does not respond.
    #[cfg(test)]
    pub(super) fn hang(&self) -> impl Sized + '_ {
        self.lock()
    }

    /// Lets it grow no more, as a full disk, or grow again.
    #[cfg(test)]
    pub(super) fn fill(&self, is_full: bool) {
        let most = if is_full { 1 } else { u32::MAX - 1 };
        let guard = self.lock();
        let connection = &guard.as_ref().unwrap().connection;
        connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(())).unwrap();
    }

    /// Runs SQL, as other programs may.
    #[cfg(test)]
    pub(super) fn execute(&self, sql: &str, parameters: impl rusqlite::Params) -> usize {
        self.write(true, |transaction| transaction.execute(sql, parameters)).unwrap()
    }

    /// Numbers of the rows of a table.
    #[cfg(test)]
    pub(super) fn numbers(&self, table: &str) -> Vec<i64> {
        let query = format!("SELECT number FROM {table}");
        self.read(|connection| connection.prepare(&query)?.query_map([], |row| row.get(0))?.collect()).unwrap()
    }
}

/// The newest state of the map in a file becomes the saved one: of a replay whose outputs are complete, or of a copy.
///
/// # Errors
/// The errors of opening its file and of writing into it.
pub fn mark_saved(path: &Path) -> Result<(), Error> {
    let database = Database::open(path)?;
    database.begin(0)?;
    let marked = database.mark_saved().and_then(|()| database.finish(false));
    marked.map_err(|error| database.unwritten(error))
}

/// Renames the file at the path of a map to an earlier map, of which at most `most` are kept; its new path, if there was anything.
///
/// # Errors
/// [`Error::InUse`], and [`Error::File`] where it cannot be renamed.
pub(super) fn keep_as_earlier_map(path: &Path, most: usize) -> Result<Option<PathBuf>, Error> {
    match Open::existing(path, OpenFlags::SQLITE_OPEN_READ_WRITE) {
        Err(OpenError::Busy) => return Err(Error::InUse { path: path.to_owned(), process: None }),
        // One file is easier to keep than two.
        Ok(mut open) if sibling(path, "-wal").exists() => {
            let _ = open.begin().and_then(|()| open.fold());
        }
        Ok(_) | Err(OpenError::Unreadable(_)) => {}
    }
    Ok(set_aside(path, most).map_err(not_renamed(path))?)
}

fn not_renamed(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    FileError::of("rename the existing map", path, "; move it away manually")
}

enum OpenError {
    /// Another process, or another connection of this one, writes it.
    Busy,
    Unreadable(Problem),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unreadable(match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return Self::Busy,
            Some(ErrorCode::NotADatabase) => Problem::NotAMap("another file, or a damaged one".into()),
            Some(ErrorCode::DatabaseCorrupt) => Problem::Damaged(error.to_string()),
            _ => Problem::Read(in_words(error)),
        })
    }
}

impl Open {
    /// A file that exists.
    fn existing(path: &Path, flag: OpenFlags) -> Result<Self, OpenError> {
        // SQLite says less; and another descriptor of the file must not be closed, which would release its lock.
        let length = fs::metadata(path).map_err(|error| OpenError::Unreadable(error.into()))?.len();
        if length == 0 {
            return Err(OpenError::Unreadable(Problem::NotAMap("an empty file".into())));
        }
        let open = Self::of(Connection::open_with_flags(path, flag | OpenFlags::SQLITE_OPEN_NO_MUTEX)?, length)?;
        if flag.contains(OpenFlags::SQLITE_OPEN_READ_WRITE) {
            open.lock(sibling(path, "-wal").exists())?;
        }
        let connection = &open.connection;
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        if number("application_id")? != APPLICATION {
            return Err(OpenError::Unreadable(Problem::NotAMap("another database".into())));
        }
        let found = number("user_version")?;
        if found != VERSION {
            return Err(OpenError::Unreadable(Problem::Version { expected: VERSION, found }));
        }
        // Anything else could run when tables are read.
        let tables = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid LIMIT 10";
        let tables: Vec<String> =
            connection.prepare(tables)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        if tables != TABLES {
            return Err(OpenError::Unreadable(Problem::NotAMap("a database with other tables".into())));
        }
        Ok(open)
    }

    /// A new file.
    fn new(path: &Path) -> rusqlite::Result<Self> {
        let open = Self::of(Connection::open(path)?, 0)?;
        open.connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
        open.lock(false)?;
        let mut open = open;
        open.begin()?;
        open.transaction(true, |transaction| {
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            TABLES.iter().try_for_each(|table| transaction.execute_batch(table))
        })?;
        Ok(open)
    }

    fn of(mut connection: Connection, length: u64) -> rusqlite::Result<Self> {
        connection.busy_timeout(Duration::ZERO)?;
        connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;")?;
        let most = MOST_STEPS.saturating_add(length.saturating_mul(STEPS_PER_BYTE));
        let steps = Arc::new(AtomicU64::new(most));
        let left = Arc::clone(&steps);
        let is_over = move || {
            let before = left.load(Ordering::Relaxed);
            left.store(before.saturating_sub(CHECKED_STEPS.into()), Ordering::Relaxed);
            before == 0
        };
        connection.progress_handler(CHECKED_STEPS as i32, Some(is_over))?;
        Ok(Self { connection, is_begun: false, is_temporary: false, steps })
    }

    /// Moves what is in the write-ahead log into the file, and gives back what that has no use for.
    fn fold(&mut self) -> rusqlite::Result<()> {
        self.restart_count();
        self.connection.pragma_query(None, "incremental_vacuum", |_| Ok(()))?;
        self.connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
        self.is_begun = false;
        // The next access releases the lock.
        self.connection.pragma_update_and_check(None, "locking_mode", "NORMAL", |_| Ok(()))?;
        self.connection.pragma_query_value(None, "user_version", |_| Ok(()))
    }

    fn restart_count(&self) {
        self.steps.fetch_max(MOST_STEPS, Ordering::Relaxed);
    }

    /// Locks it against all other connections. If it has a write-ahead log, which a process that died has left, that stays as it is.
    fn lock(&self, has_log: bool) -> rusqlite::Result<()> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
        self.connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
        self.connection.execute_batch("BEGIN EXCLUSIVE; COMMIT;")
    }

    fn begin(&mut self) -> rusqlite::Result<()> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        self.connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        self.is_begun = true;
        Ok(())
    }

    fn transaction<T>(
        &mut self,
        is_synced: bool,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.restart_count();
        self.connection.pragma_update(None, "synchronous", if is_synced { "FULL" } else { "NORMAL" })?;
        let transaction = self.connection.transaction()?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

fn insert_batches(transaction: &Transaction<'_>, batches: &[Batch]) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached("INSERT OR REPLACE INTO batches VALUES (?1, ?2, ?3, ?4)")?;
    batches.iter().try_for_each(|Batch { number, run, observations, .. }| {
        let checksum = checksum(*number, observations);
        insert.execute(params![*number as i64, *run as i64, observations, checksum]).map(drop)
    })
}

/// A checkpoint, and its checksum in the file.
fn checkpoint_of(connection: &Connection, step: u64) -> rusqlite::Result<(CheckpointRow, u32)> {
    let mut query = connection.prepare("SELECT tile FROM checkpoint_tiles WHERE step = ?1 ORDER BY tile")?;
    let tiles = ascending(query.query_map([step as i64], |row| number(row, 0))?)?;
    let query = "SELECT state, stream, settings, path, checksum FROM checkpoints WHERE step = ?1";
    connection.query_row(query, [step as i64], |row| {
        let [state, stream, settings] = [row.get(0)?, row.get(1)?, row.get(2)?];
        Ok((CheckpointRow { step, state, stream, settings, path: row.get(3)?, tiles }, row.get(4)?))
    })
}

/// A tile, and its checksum in the file.
fn tile_of(connection: &Connection, number: u64) -> rusqlite::Result<(TileRow, u32)> {
    let mut query =
        connection.prepare_cached("SELECT name, shape, numbers FROM arrays WHERE tile = ?1 ORDER BY name")?;
    let array = |row: &Row<'_>| {
        let shape = serde_json::from_str(&row.get::<_, String>(1)?)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, error.into()))?;
        Ok(Array { name: row.get(0)?, shape, bytes: row.get(2)? })
    };
    // A map has fewer; those of a malicious file are not collected.
    let arrays = query.query_map([number as i64], array)?.take(50).collect::<Result<_, _>>()?;
    let query = "SELECT column, row, targets, learnt, own, checksum FROM tiles WHERE number = ?1";
    connection.prepare_cached(query)?.query_row([number as i64], |row| {
        let [targets, learnt, own] = [self::number(row, 2)?, self::number(row, 3)?, self::number(row, 4)?];
        let square = [row.get(0)?, row.get(1)?];
        Ok((TileRow { square, targets, learnt, own, arrays: Arrays(arrays) }, row.get(5)?))
    })
}

fn batch_of(row: &Row<'_>, number: u64, sum: u32) -> Option<Batch> {
    let observations: Vec<u8> = row.get(2).ok()?;
    let run = self::number(row, 3).ok()?;
    (checksum(number, &observations) == sum).then_some(Batch { number, run, learnt_after: 0, observations })
}

/// Copies all batches, and these tiles, that can be read, one after another.
fn copy(from: &Connection, to: &mut Open, tiles: &BTreeSet<u64>) -> rusqlite::Result<()> {
    let mut query = from.prepare("SELECT number, checksum, observations, run FROM batches ORDER BY number")?;
    let mut rows = query.query([])?;
    to.transaction(true, |transaction| {
        while let Ok(Some(row)) = rows.next() {
            let batch = batch_of(row, number(row, 0)?, row.get(1)?);
            insert_batches(transaction, batch.as_slice())?;
        }
        for &tile in tiles {
            if let Ok((row, checksum)) = tile_of(from, tile) {
                insert_tile(transaction, Some(tile), &row, checksum)?;
            }
        }
        Ok(())
    })
}

/// Inserts a tile under this number, or under the next, and returns it.
fn insert_tile(
    transaction: &Transaction<'_>,
    number: Option<u64>,
    tile: &TileRow,
    checksum: u32,
) -> rusqlite::Result<u64> {
    let TileRow { square: [column, row], targets, learnt, own, arrays } = tile;
    let [targets, learnt, own] = [targets, learnt, own].map(|count| *count as i64);
    let mut insert = transaction.prepare_cached("INSERT INTO tiles VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
    insert.execute(params![number.map(|number| number as i64), column, row, targets, learnt, own, checksum])?;
    let number = transaction.last_insert_rowid();
    let mut insert = transaction.prepare_cached("INSERT INTO arrays VALUES (?1, ?2, ?3, ?4)")?;
    for Array { name, shape, bytes } in &arrays.0 {
        insert.execute(params![number, name, format!("{shape:?}"), bytes])?;
    }
    Ok(number as u64)
}

/// Removes tiles that neither a checkpoint needs nor the maps in memory, which use these.
fn sweep(transaction: &Transaction<'_>, used: &BTreeSet<u64>) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM checkpoint_tiles WHERE step NOT IN (SELECT step FROM checkpoints)", [])?;
    let unneeded = "SELECT number FROM tiles WHERE number NOT IN (SELECT tile FROM checkpoint_tiles)";
    let unneeded: Vec<u64> =
        transaction.prepare_cached(unneeded)?.query_map([], |row| number(row, 0))?.collect::<Result<_, _>>()?;
    unneeded.into_iter().filter(|tile| !used.contains(tile)).try_for_each(|tile| delete_tile(transaction, tile))
}

fn delete_tile(connection: &Connection, number: u64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM arrays WHERE tile = ?1")?.execute([number as i64])?;
    connection.prepare_cached("DELETE FROM tiles WHERE number = ?1")?.execute([number as i64])?;
    Ok(())
}

impl TileStore for Database {
    fn is_ready(&self) -> bool {
        let failed = lock(&self.tiles).failed;
        // Mapping does not wait until a transaction is over: the tile is evicted later.
        let is_free = match self.open.try_lock() {
            Ok(open) => open.as_ref().is_some_and(|open| open.is_begun),
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Poisoned(_)) => true,
        };
        is_free && failed.is_none_or(|failed| failed.elapsed() >= RETRY)
    }

    fn write(&self, tile: &TileRow) -> io::Result<u64> {
        let written = self.write(false, |transaction| {
            let number = insert_tile(transaction, None, tile, tile_checksum(tile))?;
            // Before another transaction can sweep it.
            lock(&self.tiles).used.insert(number);
            Ok(number)
        });
        let failed = written.is_err().then(Instant::now);
        let had_failed = std::mem::replace(&mut lock(&self.tiles).failed, failed).is_some();
        written.inspect_err(|error| {
            if !had_failed {
                log::error!("cannot write a tile into {}: {error}; it stays in memory", self.path.display());
            }
        })
    }

    fn read(&self, number: u64) -> Result<TileRow, Problem> {
        match self.read(|connection| tile_of(connection, number).optional())? {
            Some((tile, checksum)) if tile_checksum(&tile) == checksum => Ok(tile),
            Some(_) => Err(Problem::Damaged(format!("the checksum of tile {number} is wrong"))),
            None => Err(Problem::Damaged(format!("tile {number} is missing"))),
        }
    }

    fn report_lost(&self, number: u64, square: [i64; 2], reason: &Problem) {
        let path = self.path.display();
        log::error!("{path}: tile {number} at {square:?} cannot be read: {reason}; what it has learnt is lost");
    }

    fn release(&self, number: u64) {
        lock(&self.tiles).used.remove(&number);
        if self.path.as_os_str().is_empty() {
            // The file is removed with all that is left.
            let _ = self.write(false, |transaction| delete_tile(transaction, number));
        }
    }
}

/// CRC-32 of a number and the content of its row.
fn checksum(number: u64, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

fn tile_checksum(tile: &TileRow) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    tile.square.iter().for_each(|coordinate| hasher.update(&coordinate.to_le_bytes()));
    [tile.targets, tile.learnt, tile.own].iter().for_each(|count| hasher.update(&count.to_le_bytes()));
    // In the order of their names, in which other programs may read them.
    let mut arrays: Vec<&Array> = tile.arrays.0.iter().collect();
    arrays.sort_by(|left, right| left.name.cmp(&right.name));
    for Array { name, shape, bytes } in arrays {
        hasher.update(name.as_bytes());
        hasher.update(format!("{shape:?}").as_bytes());
        hasher.update(bytes);
    }
    hasher.finalize()
}

/// A number of SQLite, whose numbers have signs.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|number| number as u64)
}

/// Numbers that ascend: branches of a damaged tree may be shared.
fn ascending(numbers: impl Iterator<Item = rusqlite::Result<u64>>) -> rusqlite::Result<Vec<u64>> {
    let mut found: Vec<u64> = Vec::new();
    for number in numbers {
        let number = number?;
        if found.last().is_some_and(|last| *last >= number) {
            return Err(rusqlite::Error::IntegralValueOutOfRange(0, number as i64));
        }
        found.push(number);
    }
    Ok(found)
}

/// A failure in words that say what helps.
fn in_words(error: rusqlite::Error) -> io::Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => io::ErrorKind::StorageFull.into(),
        Some(ErrorCode::ReadOnly) => io::Error::new(io::ErrorKind::PermissionDenied, "it, or its folder, is read-only"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => io::ErrorKind::ResourceBusy.into(),
        Some(ErrorCode::OperationInterrupted) => io::Error::other("its tables refer to themselves"),
        _ => io::Error::other(error),
    }
}
