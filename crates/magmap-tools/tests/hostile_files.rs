//! Malicious and damaged files.

mod hostile;

use std::fs;
use std::io::Read;
use std::path::Path;

use hostile::{READERS, Reader, memory};
use magmap::config::Config;
use magmap_tools::recording;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs per reader; `cargo fuzz` tries millions, see `docs/hostile-input.md`.
const INPUTS: usize = 1500;

#[test]
fn changed_files_never_panic_and_take_no_more_memory_than_they_may() {
    for reader in &READERS {
        let folder = hostile::folder();
        let seeds = (reader.seeds)();
        seeds.iter().for_each(|seed| (reader.read)(folder.path(), seed));
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for _ in 0..INPUTS {
            let input = changed(reader, &seeds, &mut random);
            let peak = memory::peak(|| (reader.read)(folder.path(), &input));
            let most = reader.allowed_memory(input.len());
            assert!(peak <= most, "{}: {peak} bytes for an input of {}, more than {most}", reader.name, input.len());
        }
    }
}

/// A seed with a few changes.
fn changed(reader: &Reader, seeds: &[Vec<u8>], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..8) {
        change(&mut bytes, random);
    }
    if random.random_range(0..8) > 0 {
        (reader.repair)(&mut bytes);
    }
    bytes
}

/// Flips a bit, blows a number up, cuts the end off, or repeats, removes or overwrites a piece.
fn change(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    if bytes.is_empty() {
        return bytes.push(random.next_u32() as u8);
    }
    let at = random.random_range(0..bytes.len());
    let end = (at + random.random_range(1..64)).min(bytes.len());
    match random.random_range(0..8) {
        0 | 1 => bytes[at] ^= 1 << random.random_range(0..8),
        2 => bytes[at] = random.next_u32() as u8,
        3 => {
            let number: u64 = [0, 1, 0xff, 0xffff, 1 << 20, 1 << 30, u32::MAX.into(), 1 << 40, u64::MAX >> 1, u64::MAX]
                [random.random_range(0..10)];
            let width = [2, 4, 8][random.random_range(0..3)];
            let number = if random.random() { number.to_le_bytes() } else { number.to_be_bytes() };
            bytes[at..].iter_mut().zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
        }
        4 => bytes.truncate(at),
        5 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => drop(bytes.drain(at..end)),
        _ => {
            let from = random.random_range(0..bytes.len());
            let piece: Vec<u8> = bytes[from..].iter().take(end - at).copied().collect();
            bytes[at..at + piece.len().min(end - at)].copy_from_slice(&piece[..piece.len().min(end - at)]);
        }
    }
}

/// Opens a recording under the counting allocator: what was said about it, and the most memory it took.
fn read_and_measure(path: &Path) -> (String, usize) {
    let mut said = String::new();
    let peak = memory::peak(|| {
        said = match recording::open(path, &Config::default()) {
            Ok(recording) => {
                let loss = recording.loss.to_string();
                recording.inputs().for_each(drop);
                loss
            }
            Err(error) => error.to_string(),
        };
    });
    (said, peak)
}

/// An MCAP record: kind, length, content.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind], &(content.len() as u64).to_le_bytes()[..], content].concat()
}

/// A chunk that claims to contain `stated` bytes.
fn chunk(compression: &str, stated: u64, content: &[u8]) -> Vec<u8> {
    let mut chunk = [0; 16].to_vec();
    chunk.extend(stated.to_le_bytes());
    chunk.extend([0; 4]);
    chunk.extend((compression.len() as u32).to_le_bytes());
    chunk.extend(compression.bytes());
    chunk.extend((content.len() as u64).to_le_bytes());
    chunk.extend(content);
    record(6, &chunk)
}

fn mcap_file(records: &[Vec<u8>]) -> Vec<u8> {
    let magic = *b"\x89MCAP0\r\n";
    [&magic, &records.concat()[..], &record(15, &[0; 4]), &record(2, &[0; 20]), &magic].concat()
}

/// Compressed zeros.
fn zeros(count: u64) -> Vec<u8> {
    let mut few = Vec::new();
    zstd::stream::copy_encode(std::io::repeat(0).take(count), &mut few, 3).unwrap();
    few
}

/// Writes a file, opens it, and checks what is said and that memory stays within 64 MiB and a hundred times the file.
fn assert_error(name: &str, bytes: &[u8], expected: &str) {
    let folder = hostile::folder();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let (said, peak) = read_and_measure(&path);
    assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    assert!(peak <= (64 << 20) + 100 * bytes.len(), "{peak} bytes of memory for {}: {said}", bytes.len());
}

#[test]
fn excessive_claims_of_an_mcap_file_are_rejected_with_the_claim_and_the_limit() {
    let long_name = [&[1, 0][..], &(1u32 << 31).to_le_bytes(), b"sensor_msgs"].concat();
    assert_error("a.mcap", &mcap_file(&[record(3, &long_name)]), "its name claims 2147483648 bytes, more than 1024");
    let chunk_claim = chunk("zstd", 1 << 40, &zeros(1000));
    let expected = "it states 1099511627776 bytes, more than the 1073741824 that are read";
    assert_error("a.mcap", &mcap_file(&[chunk_claim]), expected);
    // A message record of 100 MiB that the file does not hold, within a chunk and without.
    let message = [&[5][..], &(100u64 << 20).to_le_bytes(), &[0; 40]].concat();
    assert_error(
        "a.mcap",
        &mcap_file(&[chunk("", message.len() as u64, &message)]),
        "messages of the record at byte 8",
    );
    assert_error("a.mcap", &mcap_file(&[message]), "is cut off");
    for compression in ["zstd", "lz4"] {
        let nonsense = chunk(compression, 1 << 30, &[7; 900]);
        assert_error("a.mcap", &mcap_file(&[nonsense]), "messages of the record at byte 8");
    }
}

#[test]
fn a_chunk_that_unpacks_to_a_hundred_thousand_bad_messages_is_summarized() {
    let message = record(5, &[9; 22]);
    let mut few = Vec::new();
    let count = 100_000;
    zstd::stream::copy_encode(&message.repeat(count)[..], &mut few, 3).unwrap();
    let file = mcap_file(&[chunk("zstd", (message.len() * count) as u64, &few)]);
    assert!(file.len() < 2000, "{} bytes", file.len());
    assert_error("a.mcap", &file, "99000 losses of other kinds");
}

#[test]
fn a_compressed_bag_file_does_not_fill_the_disk() {
    let most = 64 << 20;
    let file = zeros(2 * most);
    assert!(file.len() < 20_000, "{} bytes", file.len());
    let expected = format!("whose {} bytes may become at most {most}", file.len());
    assert_error("a.mcap.zstd", &file, &expected);
}

#[test]
fn a_database_that_computes_its_messages_is_rejected() {
    let made = |schema: &str| {
        let folder = hostile::folder();
        let path = folder.path().join("a.db3");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(schema).unwrap();
        connection.close().unwrap();
        fs::read(&path).unwrap()
    };
    let topics = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT);
                  INSERT INTO topics VALUES (1, '/mag', 'sensor_msgs/msg/MagneticField');";
    let endless = "CREATE VIEW messages AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)
                   SELECT id, 1 AS topic_id, id AS timestamp, x'00' AS data FROM n;";
    let expected = "the storage of messages \"CREATE VIEW messages";
    assert_error("a.db3", &made(&format!("{topics}{endless}")), expected);
    let grown = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER,
                                       data BLOB AS (printf('%.*c', 500000000, 'x')));
                 INSERT INTO messages VALUES (1, 1, 1);";
    assert_error("a.db3", &made(&format!("{topics}{grown}")), "too big");
    let long_name = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT);
                     INSERT INTO topics VALUES (1, printf('%.*c', 5000, 'x'), 'a');
                     CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);";
    assert_error("a.db3", &made(long_name), "a name of 5000 bytes, more than 1024");
    let large = "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);
                 INSERT INTO messages VALUES (1, 1, 1, zeroblob(2000000)), (2, 1, 2, zeroblob(40000000));";
    let expected =
        "2 messages on /mag cannot be decoded (first: it has 2000000 bytes, more than the 1048576 that are read)";
    assert_error("a.db3", &made(&format!("{topics}{large}")), expected);
}

#[test]
fn a_line_without_an_end_is_rejected() {
    let folder = hostile::folder();
    let sensor = folder.path().join("nexus");
    fs::create_dir(&sensor).unwrap();
    fs::write(sensor.join("1-time.csv"), "0\n1\n").unwrap();
    fs::write(sensor.join("1-loc.csv"), ["0,0\n0,", &"1".repeat(8 << 20)].concat()).unwrap();
    fs::write(sensor.join("1-mag.csv"), "").unwrap();
    let (said, peak) = read_and_measure(&sensor.join("1"));
    assert!(
        said.ends_with("line 2: expected a row of numbers, found a line that does not end within 1024 bytes"),
        "{said}"
    );
    assert!(peak < 1 << 20, "{peak}");
}

#[test]
fn metadata_can_neither_cause_endless_work_nor_name_files_outside_its_folder() {
    let folder = hostile::folder();
    let bag = folder.path().join("bag");
    fs::create_dir(&bag).unwrap();
    let secret = folder.path().join("secret.mcap");
    fs::write(&secret, mcap_file(&[])).unwrap();
    let listed = |files: &str| {
        let text = format!("rosbag2_bagfile_information:\n  relative_file_paths: [{files}]\n");
        fs::write(bag.join("metadata.yaml"), text).unwrap();
        read_and_measure(&bag).0
    };
    for path in ["../secret.mcap", &secret.display().to_string()] {
        let said = listed(path);
        assert!(said.contains(&format!("cannot read {}", bag.join("secret.mcap").display())), "{said}");
    }
    fs::write(bag.join("own.mcap"), mcap_file(&[])).unwrap();
    // Opened once, or this would take minutes.
    assert!(listed(&"own.mcap, ".repeat(50_000)).contains("no topic of type"), "a bag without topics");
    let many: String = (0..100_001).map(|index| format!("{index}.mcap, ")).collect();
    let said = listed(&many);
    assert!(said.contains("it lists 100001 files, more than the 100000 that are read"), "{said}");

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        bomb += &format!("a{level}: &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(10));
    }
    fs::write(bag.join("metadata.yaml"), bomb + "rosbag2_bagfile_information: *a8\n").unwrap();
    let (said, peak) = read_and_measure(&bag);
    assert!(said.contains("is not rosbag2 metadata") && peak < 64 << 20, "{peak} bytes: {said}");
    fs::write(bag.join("metadata.yaml"), " ".repeat((16 << 20) + 5)).unwrap();
    let (said, peak) = read_and_measure(&bag);
    assert!(said.ends_with("it has 16777221 bytes, more than the 16777216 that are read"), "{said}");
    assert!(peak < 64 << 20, "{peak}");
}

#[test]
fn settings_of_a_gigabyte_and_settings_that_need_one_are_rejected() {
    let folder = hostile::folder();
    let path = folder.path().join("a.toml");
    // Without taking place on the disk.
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let mut said = String::new();
    let peak = memory::peak(|| said = Config::load(&path).unwrap_err().to_string());
    assert!(said.ends_with("it has 1073741824 bytes, more than the 262144 that settings may have"), "{said}");
    assert!(peak < 1 << 20, "{peak}");
    for (setting, range) in [
        ("raster.max_cells", "1 to 50000000"),
        ("mapping.inbox", "1 to 1000000"),
        ("synchronizer.max_waiting", "2 to 1000000"),
        ("selection.max_inducing_points", "1 to 20000"),
        ("batch.max_observations", "0 to 100000"),
    ] {
        let said = Config::from_toml(&format!("{setting} = 1000000000000"), "a.toml").unwrap_err().to_string();
        assert_eq!(said, format!("a.toml: line 1: {setting}: expected {range}, found 1000000000000"));
    }
}

#[test]
#[ignore = "writes the seeds and dictionaries of `cargo fuzz` into the folder that MAGMAP_FUZZ names"]
fn seeds_are_written() {
    let folder = std::env::var_os("MAGMAP_FUZZ").expect("MAGMAP_FUZZ should name a folder");
    for reader in &READERS {
        let seeds = Path::new(&folder).join("seeds").join(reader.name);
        fs::create_dir_all(&seeds).unwrap();
        for (index, seed) in (reader.seeds)().into_iter().enumerate() {
            fs::write(seeds.join(index.to_string()), seed).unwrap();
        }
        let quoted = |word: &String| {
            let bytes: String = word.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{bytes}\"\n")
        };
        let words: String = (reader.words)().iter().map(quoted).collect();
        fs::write(Path::new(&folder).join(format!("{}.dict", reader.name)), words).unwrap();
    }
}
