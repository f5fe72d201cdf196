//! Recordings of every kind, whole and damaged, as a user's disk may hold them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::common::{self, measurements};
use magmap::config::{Config, Mapped, Sensor, Topics};
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap_tools::recording::aalto_csv::{AaltoDrive, DrivePath};
use magmap_tools::recording::convert::convert;
use magmap_tools::recording::messages::{self, Message, Odometry, TFMessage};
use magmap_tools::recording::writer::{BagWriter, MessageWriter, Storage};
use magmap_tools::recording::{self, Error, Kind, Loss, Recording};
use mcap::{Compression, WriteOptions, records::MessageHeader};
use nalgebra::{Isometry3, Point3, Translation3, UnitQuaternion, Vector3};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::{TempDir, tempdir};

const STORAGES: [Storage; 2] = [Storage::Mcap, Storage::Sqlite3];

fn open(path: &Path) -> Result<Recording, Error> {
    recording::open(path, &Config::default())
}

fn pose(row: usize) -> Pose {
    let time = row as f64 * 0.02;
    Pose {
        stamp: Stamp::from_nanoseconds(1_000_000_000 + row as i64 * 20_000_000),
        position: Point3::new(time.cos(), time.sin(), 0.1),
        orientation: UnitQuaternion::from_euler_angles(0.01, -0.02, time),
    }
}

fn reading(row: usize) -> Reading {
    let field = Vector3::new(10.0 + (row as f64 * 0.1).sin(), -20.0, -40.0 + row as f64 * 1e-3);
    // Between two poses, as sensors are.
    Reading {
        stamp: Stamp::from_nanoseconds(1_007_000_000 + row as i64 * 20_000_000),
        field: MagneticField::from_microtesla(field),
    }
}

fn mount() -> Isometry3<f64> {
    Isometry3::from_parts(Translation3::new(0.2, 0.05, 0.3), UnitQuaternion::from_euler_angles(0.3, -0.2, 1.0))
}

fn static_transform(parent: &str, child: &str, transform: &Isometry3<f64>) -> TFMessage {
    TFMessage::of_one(Stamp::default(), parent, child, transform)
}

fn odometry(row: usize) -> Odometry {
    Odometry::from_pose(&pose(row), "odom", "base_link")
}

fn message_in_frame(row: usize, frame: &str) -> messages::MagneticField {
    let Reading { stamp, field } = reading(row);
    messages::MagneticField::new(stamp, &field, frame)
}

fn field(row: usize) -> messages::MagneticField {
    message_in_frame(row, "imu")
}

/// Writes rows `rows` as a bag in `folder`.
fn write_rows(folder: &Path, storage: Storage, rows: std::ops::Range<usize>) {
    let mut bag = BagWriter::create(folder, storage).unwrap();
    bag.write("/tf_static", &static_transform("base_link", "imu", &mount()), pose(rows.start).stamp).unwrap();
    for row in rows {
        bag.write("/odom", &odometry(row), pose(row).stamp).unwrap();
        bag.write("/imu/mag", &field(row), reading(row).stamp).unwrap();
    }
    bag.finish().unwrap();
}

/// A bag named `bag` with this many rows, in a folder of its own.
fn bag(storage: Storage, rows: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    write_rows(&path, storage, 0..rows);
    (folder, path)
}

fn storage_file(bag: &Path) -> PathBuf {
    let files = fs::read_dir(bag).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension != "yaml")).unwrap()
}

fn readings(measurements: &[Measurement]) -> usize {
    measurements.iter().filter(|measurement| matches!(measurement, Measurement::Reading(_))).count()
}

fn axes(reading: &Reading) -> Vector3<f64> {
    *reading.field.microtesla()
}

/// Stamps and positions are equal to the bit; fields and quaternions have been through a division and a normalization.
fn assert_rows(found: &[Measurement], rows: std::ops::Range<usize>) {
    assert_eq!(found.len(), 2 * rows.len());
    for (pair, row) in found.chunks(2).zip(rows) {
        let [Measurement::Pose(found_pose), Measurement::Reading(found_reading)] = pair else { panic!("{pair:?}") };
        assert_eq!((found_pose.stamp, found_pose.position), (pose(row).stamp, pose(row).position));
        assert!(found_pose.orientation.angle_to(&pose(row).orientation) < 1e-7);
        assert_eq!(found_reading.stamp, reading(row).stamp);
        let (found, expected) = (axes(found_reading), axes(&reading(row)));
        assert!((found - expected).norm() < 1e-12 * expected.norm());
    }
}

#[test]
fn a_bag_returns_what_was_written() {
    for storage in STORAGES {
        let (_folder, path) = bag(storage, 500);
        let recording = open(&path).unwrap();
        let summary = &recording.summary;
        let kind = if storage == Storage::Mcap { Kind::Rosbag2Mcap } else { Kind::Rosbag2Sqlite3 };
        assert_eq!(summary.kind, kind);
        let topics: Vec<_> = summary.topics.iter().map(|topic| (topic.name.as_str(), topic.count)).collect();
        assert_eq!(topics, [("/imu/mag", 500), ("/odom", 500), ("/tf_static", 1)]);
        assert_eq!(summary.topics[0].type_name, "sensor_msgs/msg/MagneticField");
        assert_eq!((summary.magnetometer.topic.as_str(), summary.odometry.topic.as_str()), ("/imu/mag", "/odom"));
        assert_eq!(summary.magnetometer_frame, "imu");
        assert_eq!((summary.odometry_frame.as_str(), summary.body_frame.as_str()), ("odom", "base_link"));
        assert_eq!(summary.span_seconds, Some((pose(0).stamp.seconds(), reading(499).stamp.seconds())));
        assert!(summary.notes.is_empty() && recording.loss.is_empty(), "{}", recording.loss);
        assert!((recording.mount.to_homogeneous() - mount().to_homogeneous()).norm() < 1e-14);
        assert_rows(&measurements(recording), 0..500);
    }
}

#[test]
fn a_storage_file_alone_is_a_recording() {
    for (storage, kind) in STORAGES.into_iter().zip([Kind::Mcap, Kind::Sqlite3]) {
        let (_folder, path) = bag(storage, 20);
        let recording = open(&storage_file(&path)).unwrap();
        assert_eq!(recording.summary.kind, kind);
        assert_rows(&measurements(recording), 0..20);
    }
}

/// A drive along a circle with a stop, and a field that varies.
fn csv_drive(rows: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("invensense");
    fs::create_dir(&inside).unwrap();
    let (mut time, mut loc, mut mag) = (String::new(), String::new(), String::new());
    for row in 0..rows {
        let turn = (row.min(rows / 2) as f64) * 0.01;
        time += &format!("{:.2}\n", 20.0 + row as f64 * 0.02);
        loc += &format!("{:.4},{:.4}\n", 2.0 * turn.cos(), 2.0 * turn.sin());
        mag += &format!("{:.3},{:.3},{:.3}\n", -20.0 + turn, 0.001 * row as f64, -48.0 - turn.sin());
    }
    for (kind, text) in [("time", time), ("loc", loc), ("mag", mag)] {
        fs::write(inside.join(format!("3-{kind}.csv")), text).unwrap();
    }
    (folder, inside.join("3"))
}

/// Converts a drive, reads the bag, and compares the sensor's place and the field along the room's axes with the
/// drive's.
fn assert_converts(drive: &AaltoDrive, storage: Storage, mount: &Isometry3<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let bag = folder.path().join("converted");
    convert(drive, &bag, storage, mount, None).unwrap();
    let recording = open(&bag).unwrap();
    assert!(recording.loss.is_empty(), "{}", recording.loss);
    let found_mount = recording.mount;
    let mut turned = 0.0f64;
    let found = measurements(recording);
    assert_eq!(found.len(), 2 * drive.seconds.len());
    for (row, pair) in found.chunks(2).enumerate() {
        let [Measurement::Pose(pose), Measurement::Reading(reading)] = pair else { panic!("{pair:?}") };
        assert_eq!((pose.stamp, reading.stamp), (drive.stamp(row), drive.stamp(row)));
        let sensor = pose.isometry() * found_mount;
        let [x, y] = drive.positions[row];
        assert!((sensor * Point3::origin() - Point3::new(x, y, 0.0)).norm() < 1e-9);
        let expected = drive.fields[row];
        let error = (sensor.rotation * axes(reading) - expected).norm();
        assert!(error <= 1e-9 * expected.norm(), "row {row}: {error} microtesla");
        turned = turned.max((axes(reading) - expected).norm());
    }
    assert!(turned > 1.0, "the field was never turned into the body's frame");
}

#[test]
fn a_converted_drive_gives_the_axes_of_its_files() {
    let (_folder, path) = csv_drive(600);
    let drive = AaltoDrive::read(&DrivePath::guess(&path).unwrap()).unwrap();
    for storage in STORAGES {
        assert_converts(&drive, storage, &Isometry3::identity());
        assert_converts(&drive, storage, &mount());
    }
}

#[test]
fn a_real_drive_survives_conversion() {
    let Some(folder) = common::aalto_folder() else { return };
    let path = DrivePath::guess(&folder.join("invensense/3")).unwrap();
    let drive = AaltoDrive::read(&path).unwrap();
    assert_eq!((drive.seconds.len(), drive.repeated_stamps), (9404, 0));
    assert_eq!((drive.seconds[0], drive.seconds[9403]), (20.89, 208.95));
    assert_converts(&drive, Storage::Mcap, &mount());
    // For a look with other tools: keeps the bag.
    if let Some(keep) = std::env::var_os("MAGMAP_KEEP_BAG") {
        for (storage, name) in [(Storage::Mcap, "mcap"), (Storage::Sqlite3, "sqlite3")] {
            convert(&drive, &Path::new(&keep).join(name), storage, &mount(), None).unwrap();
        }
    }
}

#[test]
fn a_csv_drive_is_a_recording() {
    let (_folder, path) = csv_drive(30);
    let sensor = Sensor { override_transforms: true, position: [1.0, 0.0, 0.0], ..Sensor::default() };
    let recording = recording::open(&path, &Config { sensor, ..Config::default() }).unwrap();
    assert_eq!(recording.summary.kind, Kind::AaltoCsv);
    assert_eq!(recording.mount, Isometry3::identity());
    assert!(recording.summary.notes[0].contains("override_transforms"), "{:?}", recording.summary.notes);
    assert_eq!(recording.summary.span_seconds, Some((20.0, 20.58)));
    let found = measurements(recording);
    assert_eq!(found.len(), 60);
    assert!(found.chunks(2).all(|pair| pair[0].stamp() == pair[1].stamp()));
}

/// A survey of these lines.
fn survey(lines: &str) -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("survey.csv");
    fs::write(&path, lines).unwrap();
    (folder, path)
}

#[test]
fn a_survey_gives_its_places_and_fields_in_the_units_that_its_header_names() {
    let lines = "stamp [ms],X_cm,y,z,yaw (deg),bx_nT,BY [nT],bz (nT),note\n\
                 1500,150,2,-0.1,90,20000,-1000,4e4,\"near, the door\"\n\
                 2500,250,2,-0.1,-90,21000,-1000,4e4,\n";
    let (_folder, path) = survey(lines);
    let recording = open(&path).unwrap();
    let summary = &recording.summary;
    assert_eq!((summary.kind, summary.span_seconds), (Kind::SurveyCsv, Some((1.5, 2.5))));
    assert_eq!((summary.odometry_frame.as_str(), summary.magnetometer_frame.as_str()), ("map", "magnetometer"));
    assert!(summary.notes.iter().any(|note| note.contains("ignored: note")), "{:?}", summary.notes);
    assert!(recording.loss.is_empty());
    let found = measurements(recording);
    let [Measurement::Pose(pose), Measurement::Reading(reading), ..] = found[..] else { panic!("{found:?}") };
    assert_eq!(found.len(), 4);
    assert!((pose.position - Point3::new(1.5, 2.0, -0.1)).norm() < 1e-12);
    assert!((pose.orientation.euler_angles().2 - std::f64::consts::FRAC_PI_2).abs() < 1e-12);
    let field = *reading.field.microtesla();
    assert!((field - Vector3::new(20.0, -1.0, 40.0)).norm() < 1e-9, "{field}");
}

#[test]
fn a_survey_without_stamps_is_stamped_by_its_way_and_rows_that_say_nothing_are_counted() {
    let lines =
        "x,y,z,bx,by,bz\n0,0,0,20,0,40\n1,0,0,20,0,40\n1,,0,20,0,40\n1,0,0,20\n1,0,0,20,inf,40\n1,0,0,21,0,40\n";
    let (_folder, path) = survey(lines);
    let recording = open(&path).unwrap();
    let loss = recording.loss.to_string();
    assert_eq!(recording.loss.items.iter().filter_map(|lost| lost.count).sum::<u64>(), 3, "{loss}");
    assert!(loss.contains("1 rows with no position") && loss.contains("2 rows with no field"), "{loss}");
    assert!(loss.contains("line 4") && loss.contains("line 5"), "{loss}");
    let poses = measurements(recording).into_iter().filter_map(|measurement| measurement.pose());
    let stamps: Vec<f64> = poses.map(|pose| pose.stamp.seconds()).collect();
    // A metre at 0.5 m/s; at one place, the least time.
    assert_eq!(stamps, [0.0, 2.0, 2.02]);
}

#[test]
fn columns_of_a_survey_that_are_missing_or_doubtful_are_rejected_by_name() {
    let row = "\n0,0,0,20,0,40\n";
    for (lines, expected) in [
        (format!("x,y,bx,by,bz{row}"), vec!["no column z", "found x, y, bx, by, bz"]),
        (format!("x,y,z,b1,b2,b3{row}"), vec!["no column bx, by, bz", "b1"]),
        (String::new(), vec!["no column x"]),
        (format!("x,y,z,bx,by,bz,x{row}"), vec!["column x is there twice"]),
        (format!("x,y,z,bx_oersted,by,bz{row}"), vec!["bx_oersted", "uT, nT, mT, T, mG, G"]),
        (format!("x_inch,y,z,bx,by,bz{row}"), vec!["x_inch", "m, cm, mm"]),
        (format!("x,y,z,bx,by,bz,qx,qy,qz{row}"), vec!["orientation is incomplete", "qw"]),
        (format!("x,y,z,bx,by,bz,qx,qy,qz,qw,yaw{row}"), vec!["orientation is there twice"]),
        ("x,y,z,bx,by,bz\n0,0,0,2e-5,0,4e-5\n".into(), vec!["unit of bx, by, bz is doubtful", "in T it would"]),
        ("x,y,z,bx,by,bz\n0,0,0,20000,0,40000\n".into(), vec!["unit of bx, by, bz is doubtful", "in nT it would"]),
    ] {
        let (_folder, path) = survey(&lines);
        let error = open(&path).err().expect(&lines).to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{lines}: {error}");
        assert!(error.contains("survey.csv"), "{error}");
    }
    // What its header states is believed.
    let (_folder, path) = survey("x,y,z,bx_uT,by_uT,bz_uT\n0,0,0,2e-5,0,4e-5\n");
    assert!(open(&path).is_ok());
}

/// Opens the first bytes of a file, at many lengths; gives for each how many readings were found. Checks that loss is
/// reported where the file is not whole, and that more bytes never give less.
fn assert_truncation_is_graceful(whole: &Path, lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let bytes = fs::read(whole).unwrap();
    let cut = whole.with_file_name(format!("cut.{}", whole.extension().unwrap().to_str().unwrap()));
    let mut counts = Vec::new();
    for length in lengths.filter(|&length| length < bytes.len()) {
        fs::write(&cut, &bytes[..length]).unwrap();
        let count = match open(&cut) {
            Ok(recording) => {
                assert!(!recording.loss.is_empty(), "nothing reported at {length} of {} bytes", bytes.len());
                let found = measurements(recording);
                let expected = (0..).map(reading);
                let fields = found.iter().filter_map(|measurement| match measurement {
                    Measurement::Reading(reading) => Some(*reading),
                    Measurement::Pose(_) => None,
                });
                assert!(fields.zip(expected).all(|(found, expected)| found.stamp == expected.stamp));
                readings(&found)
            }
            Err(_) => 0,
        };
        assert!(counts.last().is_none_or(|&last| last <= count), "fewer readings from {length} bytes than from fewer");
        counts.push(count);
    }
    counts
}

#[test]
fn a_cut_off_mcap_gives_all_before_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mcap");
    let options = || WriteOptions::new().chunk_size(Some(50_000)).compression_threads(0);
    // Compressed chunks are lost as a whole, others message by message.
    for (options, least) in [(options(), 10), (options().compression(None), 30), (options().use_chunks(false), 30)] {
        mcap_file(&path, options, 600);
        let length = fs::metadata(&path).unwrap().len() as usize;
        let lengths = (0..400)
            .step_by(3)
            .chain((400..length - 200).step_by(length / 40))
            .chain((length - 200..length).step_by(7));
        let counts = assert_truncation_is_graceful(&path, lengths);
        assert_eq!(*counts.last().unwrap(), 600, "the last bytes hold no messages");
        let distinct: std::collections::BTreeSet<_> = counts.into_iter().collect();
        assert!(distinct.len() >= least, "{distinct:?}");
    }
}

#[test]
fn a_cut_off_database_gives_all_before_the_cut() {
    let (_folder, path) = bag(Storage::Sqlite3, 1000);
    let file = storage_file(&path);
    let length = fs::metadata(&file).unwrap().len() as usize;
    let lengths = (0..200).step_by(20).chain((200..length).step_by(length / 60)).chain([length - 1]);
    let counts = assert_truncation_is_graceful(&file, lengths);
    assert!(*counts.last().unwrap() > 900, "{counts:?}");
    let distinct: std::collections::BTreeSet<_> = counts.into_iter().collect();
    assert!(distinct.len() > 20, "{distinct:?}");
}

#[test]
fn noise_in_a_file_never_panics_and_always_ends() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for storage in STORAGES {
        let (_folder, path) = bag(storage, 120);
        let file = storage_file(&path);
        let bytes = fs::read(&file).unwrap();
        for _ in 0..150 {
            let mut damaged = bytes.clone();
            for _ in 0..random.random_range(1..20) {
                let at = random.random_range(0..damaged.len());
                damaged[at] = random.next_u32() as u8;
            }
            fs::write(&file, &damaged).unwrap();
            if let Ok(recording) = open(&path) {
                assert!(recording.filter_map(Result::ok).count() <= 1000);
            }
        }
    }
}

/// Writes a single MCAP with these options.
fn mcap_file(path: &Path, options: WriteOptions, rows: usize) {
    let mut writer = options.profile("ros2").create(std::io::BufWriter::new(fs::File::create(path).unwrap())).unwrap();
    let channel = |writer: &mut mcap::Writer<_>, topic: &str, type_name: &str, definition: String| {
        let schema = writer.add_schema(type_name, "ros2msg", definition.as_bytes()).unwrap();
        writer.add_channel(schema, topic, "cdr", &BTreeMap::new()).unwrap()
    };
    let transforms = channel(&mut writer, "/tf_static", TFMessage::TYPE, TFMessage::definition());
    let poses = channel(&mut writer, "/odom", Odometry::TYPE, Odometry::definition());
    let fields = channel(&mut writer, "/imu/mag", messages::MagneticField::TYPE, messages::MagneticField::definition());
    let mut write = |channel_id, stamp: Stamp, data: Vec<u8>| {
        let log_time = stamp.nanoseconds() as u64;
        let header = MessageHeader { channel_id, sequence: 0, log_time, publish_time: log_time };
        writer.write_to_known_channel(&header, &data).unwrap();
    };
    let link = static_transform("base_link", "imu", &mount());
    write(transforms, pose(0).stamp, messages::encode(&link).unwrap());
    for row in 0..rows {
        write(poses, pose(row).stamp, messages::encode(&odometry(row)).unwrap());
        write(fields, reading(row).stamp, messages::encode(&field(row)).unwrap());
    }
    writer.finish().unwrap();
}

#[test]
fn every_compression_of_chunks_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mcap");
    let options = || WriteOptions::new().chunk_size(Some(20_000)).compression_threads(0);
    for (name, options) in [
        ("zstd", options().compression(Some(Compression::Zstd))),
        ("lz4", options().compression(Some(Compression::Lz4))),
        ("none", options().compression(None)),
        ("no chunks", options().use_chunks(false)),
        ("no index", options().emit_summary_records(false).emit_summary_offsets(false)),
    ] {
        mcap_file(&path, options, 200);
        let recording = open(&path).unwrap();
        assert!(recording.loss.is_empty(), "{name}: {}", recording.loss);
        assert_rows(&measurements(recording), 0..200);
    }
}

#[test]
fn a_damaged_chunk_costs_its_own_messages_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mcap");
    for compression in [Some(Compression::Zstd), Some(Compression::Lz4), None] {
        let options = WriteOptions::new().chunk_size(Some(20_000)).compression_threads(0).compression(compression);
        mcap_file(&path, options, 400);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, &bytes).unwrap();
        let recording = open(&path).unwrap();
        let loss = recording.loss.to_string();
        let found = measurements(recording);
        assert!(found.len() > 600 && found.len() < 800, "{compression:?}: {} messages", found.len());
        let missing = 800 - found.len();
        assert!(loss.contains("messages of the record at byte"), "{loss}");
        assert!(loss.contains(&format!("{missing} of the 801 messages")), "{missing} missing, but {loss}");
        let last = found.last().unwrap();
        assert_eq!(last.stamp(), reading(399).stamp, "what is behind the chunk is read");
    }
}

#[test]
fn sizes_that_a_small_file_claims_are_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mcap");
    let options = WriteOptions::new().chunk_size(Some(20_000)).compression_threads(0);
    mcap_file(&path, options, 100);
    let bytes = fs::read(&path).unwrap();
    let chunk = (0..bytes.len() - 9).find(|&at| bytes[at] == 6 && bytes[at + 3..at + 9] == [0; 6]).unwrap();
    // The chunk's length, its uncompressed size, the length of its compression's name.
    for (at, size) in [(chunk + 1, 8), (chunk + 9 + 16, 8), (chunk + 9 + 28, 4)] {
        for claimed in [u64::MAX, u64::MAX / 2, 1 << 40, (1 << 31) - 1] {
            let mut damaged = bytes.clone();
            damaged[at..at + size].copy_from_slice(&claimed.to_le_bytes()[..size]);
            fs::write(&path, &damaged).unwrap();
            match open(&path) {
                Ok(recording) => assert!(!recording.loss.is_empty()),
                Err(error) => assert!(error.to_string().contains("damaged"), "{error}"),
            }
        }
    }
}

#[test]
fn split_files_are_one_recording() {
    for storage in STORAGES {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        fs::create_dir(&whole).unwrap();
        let extension = if storage == Storage::Mcap { "mcap" } else { "db3" };
        for part in 0..3 {
            let path = folder.path().join(format!("part{part}"));
            write_rows(&path, storage, part * 40..(part + 1) * 40);
            fs::copy(storage_file(&path), whole.join(format!("whole_{part}.{extension}"))).unwrap();
        }
        // As after a crash of the recorder: no metadata.
        let recording = open(&whole).unwrap();
        assert!(recording.summary.notes[0].contains("metadata.yaml"), "{:?}", recording.summary.notes);
        assert_rows(&measurements(recording), 0..120);

        let identifier = if storage == Storage::Mcap { "mcap" } else { "sqlite3" };
        let metadata = format!(
            "rosbag2_bagfile_information:
  version: 9
  storage_identifier: {identifier}
  relative_file_paths: [whole_0.{extension}, whole_1.{extension}, whole_2.{extension}]
  topics_with_message_count:
    - topic_metadata:
        name: /imu/mag
        type: sensor_msgs/msg/MagneticField
        serialization_format: cdr
        offered_qos_profiles:
          - history: keep_last
            depth: 10
      message_count: 120
  custom_data: ~
  ros_distro: kilted
"
        );
        fs::write(whole.join("metadata.yaml"), metadata).unwrap();
        let recording = open(&whole).unwrap();
        assert!(recording.loss.is_empty() && recording.summary.notes.is_empty());
        assert_rows(&measurements(recording), 0..120);

        fs::remove_file(whole.join(format!("whole_1.{extension}"))).unwrap();
        let recording = open(&whole).unwrap();
        let loss = recording.loss.to_string();
        assert!(loss.contains(&format!("whole_1.{extension}")), "{loss}");
        assert!(loss.contains("40 of the 120 messages on /imu/mag"), "{loss}");
        assert_eq!(readings(&measurements(recording)), 80);
    }
}

#[test]
fn files_and_messages_compressed_with_zstd_are_read() {
    for storage in STORAGES {
        let (_folder, path) = bag(storage, 50);
        let file = storage_file(&path);
        let compressed = zstd::encode_all(fs::File::open(&file).unwrap(), 3).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        fs::write(file.with_file_name(format!("{name}.zstd")), &compressed).unwrap();
        fs::remove_file(&file).unwrap();
        let metadata = fs::read_to_string(path.join("metadata.yaml")).unwrap();
        let metadata = metadata
            .replace(&name, &format!("{name}.zstd"))
            .replace("compression_format: \"\"", "compression_format: zstd");
        assert!(metadata.contains(".zstd") && metadata.contains("compression_format: zstd"), "{metadata}");
        fs::write(path.join("metadata.yaml"), metadata).unwrap();
        let recording = open(&path).unwrap();
        assert!(recording.loss.is_empty(), "{}", recording.loss);
        assert_rows(&measurements(recording), 0..50);

        fs::write(file.with_file_name(format!("{name}.zstd")), &compressed[..compressed.len() / 2]).unwrap();
        match open(&path) {
            Ok(recording) => assert!(recording.loss.to_string().contains("decompressed"), "{}", recording.loss),
            Err(error) => assert!(error.to_string().contains("decompressed"), "{error}"),
        }
    }
    let (_folder, path) = bag(Storage::Sqlite3, 50);
    let connection = rusqlite::Connection::open(storage_file(&path)).unwrap();
    let rows: Vec<(i64, Vec<u8>)> = {
        let mut select = connection.prepare("SELECT id, data FROM messages").unwrap();
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    for (id, data) in rows {
        let data = zstd::encode_all(data.as_slice(), 3).unwrap();
        connection.execute("UPDATE messages SET data = ?2 WHERE id = ?1", rusqlite::params![id, data]).unwrap();
    }
    drop(connection);
    let recording = open(&path).unwrap();
    assert!(recording.loss.is_empty(), "{}", recording.loss);
    assert_rows(&measurements(recording), 0..50);
}

#[test]
fn an_unknown_compression_is_named() {
    let (_folder, path) = bag(Storage::Sqlite3, 5);
    let metadata = fs::read_to_string(path.join("metadata.yaml")).unwrap();
    fs::write(path.join("metadata.yaml"), metadata.replace("compression_format: \"\"", "compression_format: fake"))
        .unwrap();
    assert!(open(&path).err().unwrap().to_string().contains("\"fake\""));
}

#[test]
fn messages_still_in_the_write_ahead_log_are_read() {
    let (_folder, path) = bag(Storage::Sqlite3, 10);
    let file = storage_file(&path);
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    let data = messages::encode(&field(10)).unwrap();
    let insert =
        "INSERT INTO messages (topic_id, timestamp, data) SELECT id, ?1, ?2 FROM topics WHERE name = '/imu/mag'";
    connection.execute(insert, rusqlite::params![reading(10).stamp.nanoseconds(), data]).unwrap();
    assert_eq!(readings(&measurements(open(&path).unwrap())), 11);
}

#[test]
fn messages_are_ordered_by_time_in_a_database() {
    let (_folder, path) = bag(Storage::Sqlite3, 100);
    let connection = rusqlite::Connection::open(storage_file(&path)).unwrap();
    // The second half is stored before the first.
    connection.execute("UPDATE messages SET id = -id WHERE timestamp > 2000000000", []).unwrap();
    drop(connection);
    assert_rows(&measurements(open(&path).unwrap()), 0..100);
}

#[test]
fn big_endian_messages_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mcap");
    mcap_file(&path, WriteOptions::new().use_chunks(false), 3);
    let little = messages::encode(&field(1)).unwrap();
    // Header: two integers, the length and the text of "imu" (4 bytes); then doubles.
    let mut big = little.clone();
    big[1] = 0;
    for at in [4, 8, 12] {
        big[at..at + 4].reverse();
    }
    big[20..].chunks_mut(8).for_each(<[u8]>::reverse);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(little.len()).position(|window| window == little).unwrap();
    bytes[at..at + big.len()].copy_from_slice(&big);
    fs::write(&path, bytes).unwrap();
    assert_rows(&measurements(open(&path).unwrap()), 0..3);
}

#[test]
fn of_several_topics_the_fullest_is_taken_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    let mut bag = BagWriter::create(&path, Storage::Mcap).unwrap();
    bag.write("/tf_static", &static_transform("base_link", "imu", &mount()), pose(0).stamp).unwrap();
    for row in 0..10 {
        bag.write("/odom", &odometry(row), pose(row).stamp).unwrap();
        bag.write("/b/mag", &field(row), reading(row).stamp).unwrap();
        if row % 2 == 0 {
            bag.write("/a/mag", &field(row), reading(row).stamp).unwrap();
        }
    }
    bag.finish().unwrap();
    let recording = open(&path).unwrap();
    let choice = &recording.summary.magnetometer;
    assert_eq!((choice.topic.as_str(), choice.others.as_slice()), ("/b/mag", ["/a/mag".to_string()].as_slice()));
    assert!(recording.summary.notes[0].contains("/b/mag was taken, /a/mag were not"), "{:?}", recording.summary.notes);
    assert_eq!(readings(&measurements(recording)), 10);

    let named = |name: &str| {
        let topics = Topics { magnetometer: name.into(), ..Topics::default() };
        Config { topics, ..Config::default() }
    };
    let recording = recording::open(&path, &named("/a/mag")).unwrap();
    assert!(recording.summary.notes.is_empty(), "nothing is left open");
    assert_eq!(recording.summary.magnetometer.others, ["/b/mag"]);
    assert_eq!(readings(&measurements(recording)), 5);

    for name in ["/c/mag", "/odom"] {
        let message = recording::open(&path, &named(name)).err().unwrap().to_string();
        for part in
            [name, "topics.magnetometer", "/a/mag (sensor_msgs/msg/MagneticField)", "/odom (nav_msgs/msg/Odometry)"]
        {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }
}

#[test]
fn a_recording_without_a_magnetometer_says_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    let mut bag = BagWriter::create(&path, Storage::Sqlite3).unwrap();
    bag.write("/odom", &odometry(0), pose(0).stamp).unwrap();
    bag.finish().unwrap();
    let message = open(&path).err().unwrap().to_string();
    assert!(message.contains("no topic of type sensor_msgs/msg/MagneticField"), "{message}");
    assert!(message.contains("/odom (nav_msgs/msg/Odometry)"), "{message}");
}

#[test]
fn frames_without_a_link_are_rejected_unless_the_configuration_links_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    let mut bag = BagWriter::create(&path, Storage::Mcap).unwrap();
    bag.write("/tf_static", &static_transform("mast", "imu", &mount()), pose(0).stamp).unwrap();
    bag.write("/odom", &odometry(0), pose(0).stamp).unwrap();
    bag.write("/imu/mag", &field(0), reading(0).stamp).unwrap();
    bag.finish().unwrap();
    let mut config = Config::default();
    config.model.field = Mapped::Vector;
    let message = recording::open(&path, &config).err().unwrap().to_string();
    // The strength is mapped without a mount.
    let recording = open(&path).unwrap();
    let [note] = &recording.summary.notes[..] else { panic!("{:?}", recording.summary.notes) };
    for part in ["\"imu\"", "\"base_link\"", "mast -> imu", "sensor.override_transforms"] {
        assert!(message.contains(part) && note.contains(part), "{part} is not in: {message} and {note}");
    }
    assert_eq!(recording.mount, Isometry3::identity());
    let quarter = std::f64::consts::FRAC_PI_2;
    let sensor = Sensor {
        override_transforms: true,
        position: [1.0, 2.0, 3.0],
        orientation: [0.0, 0.0, quarter],
        ..Sensor::default()
    };
    let recording = recording::open(&path, &Config { sensor, ..Config::default() }).unwrap();
    let tip = recording.mount * Point3::new(1.0, 0.0, 0.0);
    assert!((tip - Point3::new(1.0, 3.0, 3.0)).norm() < 1e-15);
}

#[test]
fn messages_that_cannot_be_used_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    let mut bag = BagWriter::create(&path, Storage::Sqlite3).unwrap();
    bag.write("/tf_static", &static_transform("base_link", "imu", &mount()), pose(0).stamp).unwrap();
    let mut broken = static_transform("base_link", "camera", &mount());
    broken.transforms[0].transform.rotation = messages::Quaternion::default();
    bag.write("/tf_static", &broken, pose(0).stamp).unwrap();
    for row in 0..10 {
        let mut odometry = odometry(row);
        if row == 3 {
            odometry.pose.pose.orientation = messages::Quaternion::default();
        }
        bag.write("/odom", &odometry, pose(row).stamp).unwrap();
        let frame = if row < 2 { "other" } else { "imu" };
        bag.write("/imu/mag", &message_in_frame(row, frame), reading(row).stamp).unwrap();
    }
    bag.finish().unwrap();
    let connection = rusqlite::Connection::open(storage_file(&path)).unwrap();
    let damage = "UPDATE messages SET data = x'0001000001' WHERE timestamp = ?1";
    assert_eq!(connection.execute(damage, [reading(7).stamp.nanoseconds()]).unwrap(), 1);
    drop(connection);

    let recording = open(&path).unwrap();
    let count = |loss: &Loss, part: &str| {
        let found = loss.items.iter().find(|lost| lost.what.contains(part));
        found.unwrap_or_else(|| panic!("{part} is not in: {loss}")).count
    };
    assert_eq!(count(&recording.loss, "/odom cannot be decoded"), Some(1));
    assert_eq!(count(&recording.loss, "/imu/mag cannot be decoded"), Some(1));
    assert_eq!(count(&recording.loss, "in frame \"other\""), Some(2));
    assert_eq!(count(&recording.loss, "/tf_static cannot be decoded"), Some(1));
    assert_eq!(recording.loss.items.iter().filter_map(|lost| lost.count).sum::<u64>(), 5);
    let found = measurements(recording);
    assert_eq!((found.len(), readings(&found)), (16, 7));
}

#[test]
fn what_is_no_recording_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.mcap");
    fs::write(&empty, "").unwrap();
    let text = folder.path().join("notes.txt");
    fs::write(&text, "not a bag at all").unwrap();
    for path in [folder.path().join("nowhere"), empty, text] {
        let message = open(&path).err().unwrap().to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    let inner = folder.path().join("folder");
    fs::create_dir(&inner).unwrap();
    assert!(open(&inner).err().unwrap().to_string().contains("without metadata.yaml"));
}

#[test]
fn a_folder_that_holds_something_is_not_written_into() {
    let (_folder, path) = bag(Storage::Mcap, 1);
    assert!(matches!(BagWriter::create(&path, Storage::Sqlite3), Err(Error::Exists(_))));
}

#[test]
fn a_topic_keeps_its_type() {
    for storage in STORAGES {
        let folder = tempfile::tempdir().unwrap();
        let mut bag = BagWriter::create(&folder.path().join("bag"), storage).unwrap();
        bag.write("/odom", &odometry(0), pose(0).stamp).unwrap();
        let message = bag.write("/odom", &field(0), pose(0).stamp).unwrap_err().to_string();
        assert!(
            message.contains("nav_msgs/msg/Odometry") && message.contains("sensor_msgs/msg/MagneticField"),
            "{message}"
        );
    }
}

#[test]
fn grids_are_written_to_a_single_mcap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.mcap");
    let grid = messages::OccupancyGrid { data: vec![-1, 0, 100], ..Default::default() };
    let mut writer = MessageWriter::mcap(&path).unwrap();
    writer.write("/magmap/mean", &grid, Stamp::from_ros(5, 0)).unwrap();
    assert!(writer.write("/magmap/mean", &grid, Stamp::from_nanoseconds(-1)).is_err());
    writer.finish().unwrap();
    let bytes = fs::read(&path).unwrap();
    let found: Vec<_> = mcap::MessageStream::new(&bytes).unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].log_time, found[0].channel.topic.as_str()), (5_000_000_000, "/magmap/mean"));
    let schema = found[0].channel.schema.as_ref().unwrap();
    assert_eq!((schema.name.as_str(), schema.encoding.as_str()), ("nav_msgs/msg/OccupancyGrid", "ros2msg"));
    assert_eq!(messages::decode::<messages::OccupancyGrid>(&found[0].data).unwrap(), grid);
}

#[test]
fn a_recording_can_be_read_on_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Recording>();
}
