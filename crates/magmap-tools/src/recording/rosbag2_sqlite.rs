//! Read-only reader of rosbag2's SQLite storage (`.db3`), a few messages at a time.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, config::DbConfig, limits::Limit, params};

use super::storage::{FileReader, MAX_MESSAGE, MAX_NAME, MAX_TOPICS, RawMessage, StoredTopic, is_read};
use super::{Error, Loss};
use magmap::sensing::reading::Stamp;

/// Number of rows that are fetched at once.
const ROWS: i64 = 64;

/// Size of the longest text or blob that SQLite may load. Longer data is counted and never loaded.
const MAX_VALUE: i32 = 16 << 20;

/// Number of steps after which SQLite checks the number of steps.
const STEPS: i32 = 10_000;

/// Number of steps that SQLite may take for one query: a constant and a number per byte of the file. A valid file needs far fewer,
/// whatever its order; in a malicious one, the branches of a tree may be shared and endless.
const MOST_STEPS: u64 = 1_000_000;
const STEPS_PER_BYTE: u64 = 10;

/// Reads one database.
pub(super) struct Reader {
    connection: Connection,
    /// Steps left for the query that is running.
    steps: Arc<AtomicU64>,
    steps_per_query: u64,
    query: String,
    /// Index of the topic by its id in the database.
    indices: HashMap<i64, usize>,
    topics: Vec<StoredTopic>,
    /// Rows that are fetched and not returned yet.
    fetched: VecDeque<StoredRow>,
    /// Time and id of the last fetched row.
    last: (i64, i64),
    is_by_time: bool,
    ended: bool,
    data: Vec<u8>,
    loss: Loss,
    shown: PathBuf,
}

struct StoredRow {
    id: i64,
    topic_id: i64,
    timestamp: i64,
    data: Option<Vec<u8>>,
    length: usize,
}

impl StoredRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let length: Option<i64> = row.get(4)?;
        Ok(Self {
            id: row.get(0)?,
            topic_id: row.get(1)?,
            timestamp: row.get(2)?,
            data: row.get(3)?,
            length: length.and_then(|length| length.try_into().ok()).unwrap_or(0),
        })
    }
}

impl Reader {
    /// Opens a database; messages about it name `shown`. One that is cut off is read up to that place.
    pub(super) fn open(path: &Path, shown: &Path) -> Result<Self, Error> {
        let error = |error: rusqlite::Error| Error::unusable(shown, error);
        let length = std::fs::metadata(path).map_err(Error::io("read", shown))?.len();
        let steps_per_query = MOST_STEPS.saturating_add(length.saturating_mul(STEPS_PER_BYTE));
        let steps = Arc::new(AtomicU64::new(steps_per_query));
        let mut connection = connect(path).map_err(error)?;
        limit_steps(&mut connection, &steps).map_err(error)?;
        check_tables(&connection, shown)?;
        let mut loss = Loss::default();
        cut_off(path, shown)?.into_iter().for_each(|damage| loss.damage(damage));
        let stored = topics(&connection).map_err(error)?;
        check_topics(&stored, shown)?;
        let is_by_time = loss.is_empty() && has_time_index(&connection).map_err(error)?;
        let wanted: Vec<String> =
            stored.iter().filter(|(_, topic)| is_read(&topic.type_name)).map(|(id, _)| id.to_string()).collect();
        Ok(Self {
            query: query(is_by_time, &wanted.join(", ")),
            connection,
            steps,
            steps_per_query,
            indices: stored.iter().enumerate().map(|(index, (id, _))| (*id, index)).collect(),
            topics: stored.into_iter().map(|(_, topic)| topic).collect(),
            fetched: VecDeque::new(),
            last: (i64::MIN, i64::MIN),
            is_by_time,
            ended: false,
            data: Vec::new(),
            loss,
            shown: shown.into(),
        })
    }

    /// Fetches the next rows. Those before a damaged place are kept; after it nothing can be found.
    fn fetch(&mut self) {
        self.steps.store(self.steps_per_query, Ordering::Relaxed);
        let result = fetch(&self.connection, &self.query, self.last, &mut self.fetched);
        let result = self.advance().and(result.map_err(|error| error.to_string()));
        match result {
            Ok(rows) => self.ended = rows < ROWS,
            Err(reason) => {
                self.ended = true;
                let (file, id) = (self.shown.display(), self.last.1);
                let place = if id == i64::MIN { "from the first".to_string() } else { format!("after number {id}") };
                self.loss.damage(format!("the messages {place} in {file} cannot be read: {reason}"));
            }
        }
    }

    /// Advances to the last of the fetched rows. Where they are not in order, as they are in a valid database, those before
    /// are kept: otherwise the same rows could be fetched again and again.
    fn advance(&mut self) -> Result<(), String> {
        for index in 0..self.fetched.len() {
            let row = &self.fetched[index];
            let place = if self.is_by_time { (row.timestamp, row.id) } else { (self.last.0, row.id) };
            if place <= self.last {
                self.fetched.truncate(index);
                return Err("they are not in order".into());
            }
            self.last = place;
        }
        Ok(())
    }
}

impl FileReader for Reader {
    /// Messages come in the order of time, or of storage where the database is cut off or has no index.
    fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, Error> {
        loop {
            let Some(row) = self.fetched.pop_front() else {
                if self.ended {
                    return Ok(None);
                }
                self.fetch();
                continue;
            };
            let Some(&topic) = self.indices.get(&row.topic_id) else {
                self.loss.damage(format!("a message in {} of a topic that it does not list", self.shown.display()));
                continue;
            };
            self.data = row.data.unwrap_or_default();
            let stamp = Stamp::from_nanoseconds(row.timestamp);
            let (topic, length) = (&self.topics[topic], row.length);
            return Ok(Some(RawMessage { topic, stamp, data: &self.data, length }));
        }
    }

    fn found(self: Box<Self>) -> (Vec<StoredTopic>, Loss) {
        (self.topics, self.loss)
    }
}

/// Opens the database such that no file is written beside it. Only a write-ahead log has to be opened the ordinary way: its
/// messages are not in the database yet.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let has_log = std::fs::metadata(log).is_ok_and(|metadata| metadata.len() > 0);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let connection = match absolute.to_str() {
        Some(name) if !has_log => {
            let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            Connection::open_with_flags(format!("file:{name}?immutable=1"), flags | OpenFlags::SQLITE_OPEN_URI)?
        }
        _ => Connection::open_with_flags(path, flags)?,
    };
    // Code in the schema is not run, values cannot exceed the limit, and pages are checked before they are used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
    // Otherwise SQLite rejects a whole database because its last pages are missing.
    connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA writable_schema = ON")?;
    Ok(connection)
}

/// Ends a query that takes more than the remaining `steps`.
fn limit_steps(connection: &mut Connection, steps: &Arc<AtomicU64>) -> rusqlite::Result<()> {
    let left = Arc::clone(steps);
    let is_too_long = move || {
        let before = left.load(Ordering::Relaxed);
        left.store(before.saturating_sub(STEPS as u64), Ordering::Relaxed);
        before == 0
    };
    connection.progress_handler(STEPS, Some(is_too_long))
}

/// Rejects views and virtual tables in the place of tables: their content could be computed endlessly.
fn check_tables(connection: &Connection, shown: &Path) -> Result<(), Error> {
    let error = |error: rusqlite::Error| Error::unusable(shown, error);
    for table in ["topics", "messages"] {
        let made: Option<String> = connection
            .query_row("SELECT sql FROM sqlite_master WHERE lower(name) = ?1", params![table], |row| row.get(0))
            .optional()
            .map_err(error)?;
        let Some(made) = made else { continue };
        let is_table = made.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("CREATE TABLE"));
        if !is_table {
            let found: String = made.chars().take(40).collect();
            let reason =
                format!("the storage of messages {found:?} is not supported; expected a table, as rosbag2 makes it");
            return Err(Error::unusable(shown, reason));
        }
    }
    Ok(())
}

/// Rejects too many topics, and names that are too long.
fn check_topics(topics: &[(i64, StoredTopic)], shown: &Path) -> Result<(), Error> {
    let longest = topics.iter().map(|(_, topic)| topic.name.len().max(topic.type_name.len())).max().unwrap_or(0);
    let found = match topics.len() {
        count if count > MAX_TOPICS => format!("a database of more than {MAX_TOPICS} topics"),
        _ if longest > MAX_NAME => format!("a database with a name of {longest} bytes, more than {MAX_NAME}"),
        _ => return Ok(()),
    };
    Err(Error::NotARecording { path: shown.into(), found })
}

/// Says that the file is shorter than its header states, if it is.
fn cut_off(path: &Path, shown: &Path) -> Result<Option<String>, Error> {
    let mut header = [0; 100];
    let mut file = File::open(path).map_err(Error::io("read", shown))?;
    let length = file.metadata().map_err(Error::io("read", shown))?.len();
    if length < header.len() as u64 {
        return Ok(Some(format!("{} is cut off within its header", shown.display())));
    }
    file.read_exact(&mut header).map_err(Error::io("read", shown))?;
    let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| header[at + i]));
    let page_size = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65536,
        size => u64::from(size),
    };
    // The number of pages is valid only when the two change counters agree.
    let stated = u64::from(number(28)) * page_size;
    let is_short = number(24) == number(92) && stated > length;
    Ok(is_short.then(|| {
        format!(
            "{} is cut off at byte {length} of {stated}: messages stored after that place are missing",
            shown.display()
        )
    }))
}

fn topics(connection: &Connection) -> rusqlite::Result<Vec<(i64, StoredTopic)>> {
    // One more than allowed shows that there are too many.
    let query = format!("SELECT id, name, type FROM topics ORDER BY id LIMIT {}", MAX_TOPICS + 1);
    let mut statement = connection.prepare(&query)?;
    let rows =
        statement.query_map([], |row| Ok((row.get(0)?, StoredTopic { name: row.get(1)?, type_name: row.get(2)? })))?;
    rows.collect()
}

fn has_time_index(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement =
        connection.prepare("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'timestamp_idx'")?;
    statement.exists([])
}

/// The query for the rows after a given one (time ?1, id ?2), without the data of messages that are not read.
fn query(by_time: bool, wanted: &str) -> String {
    let columns = format!(
        "SELECT id, topic_id, timestamp, CASE WHEN topic_id IN ({wanted}) AND length(data) <= {MAX_MESSAGE} THEN data \
         END, CASE WHEN topic_id IN ({wanted}) THEN length(data) END \
         FROM messages"
    );
    if by_time {
        format!("{columns} WHERE (timestamp, id) > (?1, ?2) ORDER BY timestamp, id LIMIT {ROWS}")
    } else {
        format!("{columns} WHERE ?1 IS NOT NULL AND id > ?2 ORDER BY id LIMIT {ROWS}")
    }
}

/// Appends the next rows and returns their number. Rows before an error are appended too.
fn fetch(
    connection: &Connection,
    query: &str,
    (timestamp, id): (i64, i64),
    into: &mut VecDeque<StoredRow>,
) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached(query)?;
    let mut rows = statement.query(params![timestamp, id])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        into.push_back(StoredRow::read(row)?);
        count += 1;
    }
    Ok(count)
}
