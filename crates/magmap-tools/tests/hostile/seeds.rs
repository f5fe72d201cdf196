//! Small good inputs, made by magmap itself, and words of their languages.

use std::collections::BTreeMap;
use std::fs;

use ::mcap::records::MessageHeader;
use ::mcap::{Compression, WriteOptions};
use magmap::config::Config;
use magmap::mapping::mapper::{Effect, Mapper, SourceId, Step};
use magmap::mapping::step_log::StepLog;
use magmap::mapping::stop::StopSignal;
use magmap::sensing::intake::Input;
use magmap::sensing::reading::{self, Measurement, Reading, Stamp};
use magmap::store::map_log::{MapLog, Options};
use magmap_tools::recording::messages::{MagneticField, Message, OccupancyGrid, Odometry, TFMessage, encode};
use magmap_tools::recording::writer::{BagWriter, Storage};
use nalgebra::{Isometry3, Point3, Translation3, UnitQuaternion, Vector3};
use rusqlite::{Connection, params};

fn pose(row: usize) -> reading::Pose {
    // Slower than the gates allow.
    let along = 0.03 * row as f64;
    reading::Pose {
        stamp: Stamp::from_nanoseconds(1_000_000_000 + row as i64 * 20_000_000),
        position: Point3::new(along, along.sin(), 0.0),
        orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, along),
    }
}

fn reading(row: usize) -> Reading {
    let field = Vector3::new(20.0 + (row as f64).sin(), -10.0, -40.0);
    Reading {
        stamp: Stamp::from_nanoseconds(1_007_000_000 + row as i64 * 20_000_000),
        field: reading::MagneticField::from_microtesla(field),
    }
}

fn mount() -> Isometry3<f64> {
    Isometry3::from_parts(Translation3::new(0.2, 0.0, 0.3), UnitQuaternion::from_euler_angles(0.3, -0.2, 1.0))
}

fn static_transform() -> TFMessage {
    TFMessage::of_one(Stamp::default(), "base", "imu", &mount())
}

/// The messages of a bag, in the order of time: topic, type, stamp, encoded message.
fn messages(rows: usize) -> Vec<(&'static str, &'static str, i64, Vec<u8>)> {
    let mut messages =
        vec![("/tf_static", TFMessage::TYPE, pose(0).stamp.nanoseconds(), encode(&static_transform()).unwrap())];
    for row in 0..rows {
        let odometry = Odometry::from_pose(&pose(row), "odom", "base");
        let field = MagneticField::new(reading(row).stamp, &reading(row).field, "imu");
        messages.push(("/odom", Odometry::TYPE, pose(row).stamp.nanoseconds(), encode(&odometry).unwrap()));
        messages.push(("/mag", MagneticField::TYPE, reading(row).stamp.nanoseconds(), encode(&field).unwrap()));
    }
    messages
}

pub(super) fn csv() -> Vec<Vec<u8>> {
    [
        "0\n0.01\n0.01\n0.02\n\x000,0\n0.1,0\n0.2,0\n0.3,0.1\n\x001,0,-2\n1,0,-2\n1.1,0,-2\n1,0,-2.5\n",
        "0.5\r\n\r\n1e0\r\n\x00-1,2\r\n,\r\nNaN,inf\r\n\x00.5,1e-3,0\r\n,,\r\n1,2,3\r\n",
        "\0\0",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(super) fn survey() -> Vec<Vec<u8>> {
    [
        "x,y,z,bx,by,bz\n0,0,0,20,1,-40\n0.1,0,0,21,1,-40\n0.1,0.1,0,,1,-40\n",
        "# by hand\nstamp [ms],X_cm,y,z,bx (nT),by_nT,bz_nT,qx,qy,qz,qw,note\n1,2,3,4,2e4,1,4e4,0,0,0,1,\"a, b\"\n0,1,1,1,1,1,1,0,0,0,2\n",
        "yaw_deg,x,y,z,bx_T,by_T,bz_T\r\n90,1,1,0,2e-5,0,4e-5\r\n1,2\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(super) fn survey_words() -> Vec<String> {
    [csv_words(), ["stamp_ns", "_uT", "[deg]", "qw", "yaw", "#"].map(String::from).to_vec()].concat()
}

pub(super) fn csv_words() -> Vec<String> {
    ["nan", "inf", "-inf", "1e308", "1e-308", "9223372036.854775807", "-0", ",,", "\r\n", "\u{feff}"]
        .map(String::from)
        .to_vec()
}

/// The storage files beside the `metadata.yaml`.
pub(super) fn storage_files() -> [(&'static str, &'static [u8]); 2] {
    static FILES: std::sync::OnceLock<[Vec<u8>; 2]> = std::sync::OnceLock::new();
    let [plain, compressed] = FILES.get_or_init(|| {
        let plain = mcap_file(WriteOptions::new().use_chunks(false), 2);
        let compressed = zstd(&plain);
        [plain, compressed]
    });
    [("bag_0.mcap", plain), ("bag_1.mcap.zstd", compressed)]
}

/// A zstd frame of raw blocks: what decompresses to `content`.
fn zstd(content: &[u8]) -> Vec<u8> {
    // Magic; a frame with a window of 128 KiB and no content size, no checksum.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    let mut blocks = content.chunks(1 << 16).peekable();
    while let Some(block) = blocks.next() {
        let header = (block.len() as u32) << 3 | u32::from(blocks.peek().is_none());
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame
}

pub(super) fn metadata() -> Vec<Vec<u8>> {
    let folder = super::folder();
    let bag = folder.path().join("bag");
    let mut writer = BagWriter::create(&bag, Storage::Mcap).unwrap();
    writer.write("/tf_static", &static_transform(), pose(0).stamp).unwrap();
    writer.finish().unwrap();
    let written = fs::read(bag.join("metadata.yaml")).unwrap();
    let newer = r#"
rosbag2_bagfile_information:
  version: 9
  storage_identifier: mcap
  topics_with_message_count:
    - topic_metadata: &topic
        name: /odom
        type: nav_msgs/msg/Odometry
        offered_qos_profiles: [{history: keep_last, deadline: {sec: 9223372036, nsec: 854775807}}]
      message_count: 2
    - topic_metadata: *topic
      message_count: 3
  compression_format: zstd
  relative_file_paths: [bag_0.mcap, bag_1.mcap.zstd]
  custom_data: ~
"#;
    vec![written, newer.into()]
}

pub(super) fn metadata_words() -> Vec<String> {
    let words = [
        "rosbag2_bagfile_information:",
        "relative_file_paths:",
        "topics_with_message_count:",
        "topic_metadata:",
        "name:",
        "message_count:",
        "compression_format:",
        "zstd",
        "bag_0.mcap",
        "bag_1.mcap.zstd",
        "../bag_0.mcap",
        "/dev/null",
        "&a",
        "*a",
        "<<: *a",
        "!!binary ",
        "18446744073709551615",
        "---",
    ];
    words.map(String::from).to_vec()
}

/// Definitions are left out: they are not read, and would be most of the file.
fn mcap_file(options: WriteOptions, rows: usize) -> Vec<u8> {
    let mut writer = options.profile("ros2").create(std::io::Cursor::new(Vec::new())).unwrap();
    let mut channels = BTreeMap::new();
    for (topic, type_name, stamp, data) in messages(rows) {
        let channel_id = *channels.entry(topic).or_insert_with(|| {
            let schema = writer.add_schema(type_name, "ros2msg", b"").unwrap();
            writer.add_channel(schema, topic, "cdr", &BTreeMap::new()).unwrap()
        });
        let time = stamp as u64;
        let header = MessageHeader { channel_id, sequence: 0, log_time: time, publish_time: time };
        writer.write_to_known_channel(&header, &data).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().into_inner()
}

pub(super) fn mcap() -> Vec<Vec<u8>> {
    let options = || WriteOptions::new().chunk_size(Some(1500)).compression_threads(0);
    let bare = || options().emit_summary_records(false).emit_summary_offsets(false);
    vec![
        mcap_file(options().compression(None), 2),
        mcap_file(bare().compression(Some(Compression::Zstd)), 2),
        mcap_file(bare().compression(Some(Compression::Lz4)), 2),
        mcap_file(bare().use_chunks(false), 1),
    ]
}

/// A database of rosbag2 with small pages; with the index by time or without.
fn database(has_index: bool) -> Vec<u8> {
    let folder = super::folder();
    let path = folder.path().join("bag.db3");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "PRAGMA page_size = 512; PRAGMA journal_mode = OFF;
             CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL,
                                 serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);
             CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, timestamp INTEGER NOT NULL,
                                   data BLOB NOT NULL);",
        )
        .unwrap();
    if has_index {
        connection.execute_batch("CREATE INDEX timestamp_idx ON messages (timestamp ASC);").unwrap();
    }
    let mut topics = Vec::new();
    for (topic, type_name, stamp, data) in messages(2) {
        let known = topics.iter().position(|known| *known == topic);
        let id = known.unwrap_or_else(|| {
            topics.push(topic);
            let row = params![topics.len() as i64, topic, type_name];
            connection.execute("INSERT INTO topics VALUES (?1, ?2, ?3, 'cdr', '')", row).unwrap();
            topics.len() - 1
        });
        let row = params![id as i64 + 1, stamp, data];
        connection.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (?1, ?2, ?3)", row).unwrap();
    }
    connection.close().unwrap();
    fs::read(&path).unwrap()
}

pub(super) fn sqlite3() -> Vec<Vec<u8>> {
    vec![database(true), database(false)]
}

pub(super) fn sqlite3_words() -> Vec<String> {
    let words = [
        "CREATE TABLE ",
        "CREATE VIEW topics AS SELECT 1",
        "CREATE VIRTUAL TABLE ",
        "messages",
        "topics",
        "timestamp_idx",
        "zeroblob(1000000000)",
        "GENERATED ALWAYS AS (",
        "WITHOUT ROWID",
    ];
    words.map(String::from).to_vec()
}

pub(super) fn cdr() -> Vec<Vec<u8>> {
    let grid = OccupancyGrid { data: vec![-1, 0, 100], ..OccupancyGrid::default() };
    let mut seeds: Vec<Vec<u8>> = messages(1).into_iter().map(|(_, _, _, data)| data).collect();
    seeds.push(encode(&grid).unwrap());
    seeds
}

/// Settings under which a few readings make a batch.
pub(super) fn quick_settings() -> Config {
    let mut config = Config::default();
    config.batch.max_observations = 4;
    config.learning.min_observations = 4;
    config.learning.max_evaluations = 3;
    config
}

/// The first steps of a map: settings, source, measurements, batches.
fn steps() -> Vec<Step> {
    let source = SourceId { name: "drive".into(), fingerprint: "00".into() };
    let measurements = |row| [Measurement::Pose(pose(row)), Measurement::Reading(reading(row))];
    let inputs = (0..8).flat_map(measurements).map(Input::from);
    let inputs = std::iter::once(Input::Mount(mount())).chain(inputs).chain([Input::Stretch]);
    let mut steps = vec![Step::Source { id: source, run: "1".into() }];
    steps.extend((0..).zip(inputs).map(|(index, input)| Step::Input { index, input }));
    steps.extend([Step::Flush, Step::Learn { batches: 1 }]);
    steps
}

pub(super) fn map() -> Vec<Vec<u8>> {
    let config = quick_settings();
    let mut tiled = config.clone();
    (tiled.tiles.size, tiled.tiles.halo, tiled.tiles.band) = (2.0, 0.5, 0.2);
    let changes = vec![
        Step::Configure(Box::new(config.clone())),
        Step::Finish,
        Step::Learn { batches: 3 },
        Step::Frame("odom".into()),
    ];
    vec![map_of(&config, &steps(), false), map_of(&config, &changes, false), map_of(&tiled, &steps(), true)]
}

/// The file of a map that these steps make, with a checkpoint before or, if it `is_closed`, after them.
fn map_of(config: &Config, steps: &[Step], is_closed: bool) -> Vec<u8> {
    let folder = super::folder();
    let path = folder.path().join("map.magmap");
    let mut mapper = Mapper::new(config);
    let mut log = MapLog::create(&path, &mapper, Options::default()).unwrap();
    for step in steps {
        log.append(&mapper, step);
        if let Effect::Learnt { batch, .. } = mapper.take(step.clone(), &StopSignal::default()) {
            log.learnt(&mapper, &batch.observations);
        }
    }
    Box::new(log).close(is_closed.then_some(&mapper));
    fs::read(path).unwrap()
}

pub(super) fn config() -> Vec<Vec<u8>> {
    let files = [include_str!("../../../../config/default.toml"), include_str!("../../../../config/paper.toml")];
    // Without the comments, so that a change is likely to hit a setting, and section by section, which is faster.
    let bare = files.map(|file| file.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"));
    let sections = bare.iter().flat_map(|file| file.split("\n\n")).map(str::to_owned);
    let dotted = "selection.delta=0.2\nmodel.kernel = \"matern32\"\nsensor = { position = [0.1, 0, 1] }\n".to_owned();
    sections.chain([dotted]).map(String::into_bytes).collect()
}

pub(super) fn config_words() -> Vec<String> {
    let settings = Config::default().settings().unwrap();
    let mut words: Vec<String> =
        settings.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
    let others =
        ["nan", "inf", "-1", "1e308", "9223372036854775807", "[[", "\"\"\"", "'''", "1979-05-27T07:32:00Z", "0x"];
    words.extend(others.map(String::from));
    words
}
