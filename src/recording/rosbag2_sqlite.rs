//! Reader of rosbag2's SQLite storage (`.db3`), read only, a few messages at a time.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, Row, params};

use super::{
    Error,
    storage::{MAX_MESSAGE, RawMessage, StoredTopic, is_read},
};
use crate::mapping::reading::Stamp;

/// How many rows are fetched at once.
const ROWS: i64 = 64;

/// Reads one database.
pub(super) struct Reader {
    connection: Connection,
    query: String,
    /// Index of the topic by its id in the database.
    indices: HashMap<i64, usize>,
    topics: Vec<StoredTopic>,
    /// Rows that were fetched and not handed out yet.
    fetched: VecDeque<StoredRow>,
    /// Time and id of the row that was fetched last.
    last: (i64, i64),
    ended: bool,
    data: Vec<u8>,
    damage: Vec<String>,
    shown: PathBuf,
}

struct StoredRow {
    id: i64,
    topic_id: i64,
    timestamp: i64,
    data: Option<Vec<u8>>,
}

impl StoredRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, topic_id: row.get(1)?, timestamp: row.get(2)?, data: row.get(3)? })
    }
}

impl Reader {
    /// Opens a database; messages about it call it `shown`. One that is cut off is read as far as it goes.
    pub(super) fn open(path: &Path, shown: &Path) -> Result<Self, Error> {
        let error = |source| Error::Sqlite { path: shown.into(), source };
        let connection = connect(path).map_err(error)?;
        let damage: Vec<String> = cut_off(path, shown)?.into_iter().collect();
        let stored = topics(&connection).map_err(error)?;
        let by_time = damage.is_empty() && has_time_index(&connection).map_err(error)?;
        let wanted: Vec<String> =
            stored.iter().filter(|(_, topic)| is_read(&topic.type_name)).map(|(id, _)| id.to_string()).collect();
        Ok(Self {
            query: query(by_time, &wanted.join(", ")),
            connection,
            indices: stored.iter().enumerate().map(|(index, (id, _))| (*id, index)).collect(),
            topics: stored.into_iter().map(|(_, topic)| topic).collect(),
            fetched: VecDeque::new(),
            last: (i64::MIN, i64::MIN),
            ended: false,
            data: Vec::new(),
            damage,
            shown: shown.into(),
        })
    }

    pub(super) fn topics(&self) -> &[StoredTopic] {
        &self.topics
    }

    pub(super) fn damage(&self) -> &[String] {
        &self.damage
    }

    /// The next message in the order of time (of storage, where the database is cut off or has no index); nothing at
    /// the end.
    pub(super) fn next_message(&mut self) -> Result<Option<RawMessage<'_>>, Error> {
        loop {
            let Some(row) = self.fetched.pop_front() else {
                if self.ended {
                    return Ok(None);
                }
                self.fetch();
                continue;
            };
            let Some(&topic) = self.indices.get(&row.topic_id) else {
                self.damage.push(format!("a message in {} of a topic that it does not list", self.shown.display()));
                continue;
            };
            self.data = row.data.unwrap_or_default();
            let stamp = Stamp::from_nanoseconds(row.timestamp);
            return Ok(Some(RawMessage { topic: &self.topics[topic], stamp, data: &self.data }));
        }
    }

    /// Fetches the next rows. Those before a damaged place are kept; behind it nothing can be found.
    fn fetch(&mut self) {
        let result = fetch(&self.connection, &self.query, self.last, &mut self.fetched);
        if let Some(row) = self.fetched.back() {
            self.last = (row.timestamp, row.id);
        }
        match result {
            Ok(rows) => self.ended = rows < ROWS,
            Err(error) => {
                self.ended = true;
                let (file, id) = (self.shown.display(), self.last.1);
                let place = if id == i64::MIN { "from the first".to_string() } else { format!("behind number {id}") };
                self.damage.push(format!("the messages {place} in {file} cannot be read: {error}"));
            }
        }
    }
}

/// Opens the database such that nothing is written beside it. Only a write-ahead log needs the ordinary way: its
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
    // Otherwise SQLite refuses the whole of a database whose last pages are missing.
    connection.execute_batch("PRAGMA writable_schema = ON")?;
    Ok(connection)
}

/// Whether the file is shorter than its header says, in words.
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
            "{} is cut off at byte {length} of {stated}: messages stored behind that place are missing",
            shown.display()
        )
    }))
}

fn topics(connection: &Connection) -> rusqlite::Result<Vec<(i64, StoredTopic)>> {
    let mut statement = connection.prepare("SELECT id, name, type FROM topics ORDER BY id")?;
    let rows =
        statement.query_map([], |row| Ok((row.get(0)?, StoredTopic { name: row.get(1)?, type_name: row.get(2)? })))?;
    rows.collect()
}

fn has_time_index(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement =
        connection.prepare("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'timestamp_idx'")?;
    statement.exists([])
}

/// Rows behind a given one (time ?1, id ?2), without the data of messages that are not read.
fn query(by_time: bool, wanted: &str) -> String {
    let columns = format!(
        "SELECT id, topic_id, timestamp, CASE WHEN topic_id IN ({wanted}) AND length(data) <= {MAX_MESSAGE} THEN data \
         END \
         FROM messages"
    );
    if by_time {
        format!("{columns} WHERE (timestamp, id) > (?1, ?2) ORDER BY timestamp, id LIMIT {ROWS}")
    } else {
        format!("{columns} WHERE ?1 IS NOT NULL AND id > ?2 ORDER BY id LIMIT {ROWS}")
    }
}

/// Appends the next rows and says how many they were. Rows before an error are appended too.
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
