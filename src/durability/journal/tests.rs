//! The journal against crashes, damage and disks that fail.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};
use tempfile::TempDir;

use super::folder::Append;
use super::*;
use crate::config::Config;
use crate::durability::checkpoint::StoredTiles;
use crate::durability::tile_folder::TileFolder;
use crate::files::FileError;
use crate::mapping::mapper::SourceId;
use crate::mapping::stop::StopSignal;
use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

/// Every reading an observation, five of them a batch, every third batch a checkpoint.
fn config() -> Config {
    let mut config = Config::default();
    config.averaging.spacing = 0.0;
    config.batch.max_observations = 5;
    config.journal.checkpoint_batches = 3;
    config
}

/// A winding drive, each reading before its pose; some are rejected by the gates.
fn drive(readings: usize) -> Vec<Measurement> {
    let pair = |index: usize| {
        let along = 0.07 * index as f64;
        let stamp = Stamp::from_nanoseconds(1_700_000_000_123_456_789 + 100_000_007 * index as i64);
        let strength = if index % 17 == 11 { f64::NAN } else { 50.0 + 8.0 * along.sin() + (7.0 * along).cos() };
        let z = if index.is_multiple_of(2) { -0.0 } else { 0.1 };
        let field = MagneticField::from_microtesla(Vector3::new(0.1 * strength, strength, z));
        let position = Point3::new(along, (0.7 * along).sin(), 0.1);
        let orientation = UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3 * along);
        [Measurement::Reading(Reading { stamp, field }), Measurement::Pose(Pose { stamp, position, orientation })]
    };
    (0..readings).flat_map(pair).collect()
}

fn begin() -> Mapper {
    Mapper::new(&config())
}

/// A mapping thread without the thread.
struct Robot {
    mapper: Mapper,
    journal: Journal,
}

impl Robot {
    fn start(disk: impl Disk + 'static, folder: &Path, mapper: Mapper, damaged: Vec<std::path::PathBuf>) -> Self {
        let folder = Folder::open(folder).unwrap();
        let journal = Journal::start_on(Box::new(disk), folder, &mapper, damaged, None).unwrap();
        Self { mapper, journal }
    }

    fn take(&mut self, step: Step, unlimited: bool) {
        self.journal.append(&self.mapper, &step);
        if matches!(step, Step::Learn { .. }) {
            self.journal.sync(unlimited);
        }
        self.mapper.take(step, &StopSignal::default());
    }

    fn measure(&mut self, measurement: Measurement, unlimited: bool) {
        self.take(Step::Measurement { index: self.mapper.progress().index, measurement }, unlimited);
        while !self.mapper.ready().is_empty() {
            self.take(Step::Learn { batches: 1 }, unlimited);
        }
        if self.journal.is_checkpoint_due(&self.mapper) {
            self.journal.checkpoint(&self.mapper);
        }
    }

    /// Waits until everything queued is on disk.
    fn sync(&mut self) {
        self.journal.sync(true);
        while self.status().pending_checkpoints > 0 {
            std::thread::yield_now();
        }
    }

    fn status(&self) -> JournalStatus {
        self.journal.monitor().status()
    }
}

/// Everything about a map, as bytes.
fn state(mapper: &Mapper) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.npz");
    Checkpoint::of(mapper).unwrap().write(&path).unwrap();
    fs::read(path).unwrap()
}

/// A copy of the folder, as a crash leaves it.
fn copy(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

fn recover(folder: &Path, gaps: Gaps) -> Option<Recovered> {
    Folder::open(folder).unwrap().recover(&config(), gaps, |_| ()).unwrap()
}

/// Continues the drive from the state of the map to its end.
fn finish(mut mapper: Mapper, measurements: &[Measurement]) -> Vec<u8> {
    let stop = StopSignal::default();
    for &measurement in &measurements[mapper.progress().index as usize..] {
        mapper.take(Step::Measurement { index: mapper.progress().index, measurement }, &stop);
        while !mapper.ready().is_empty() {
            mapper.take(Step::Learn { batches: 1 }, &stop);
        }
    }
    state(&mapper)
}

#[test]
fn after_a_crash_at_any_time_the_map_is_recovered_and_continues_as_without_it() {
    let measurements = drive(60);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let id = SourceId { name: "a drive".into(), fingerprint: "1".into() };
    robot.take(Step::Source { id, run: "2".into() }, true);
    robot.take(Step::Frame("odom".into()), true);
    robot.take(Step::Mount(Isometry3::translation(0.1, 0.0, 0.2)), true);
    let mut crashes = Vec::new();
    for (index, &measurement) in measurements.iter().enumerate() {
        robot.measure(measurement, true);
        if index == 40 {
            let mut other = config();
            other.selection.delta = 0.1;
            robot.take(Step::Configure(Box::new(other)), true);
            robot.take(Step::Flush, true);
        }
        if index % 7 == 0 {
            robot.sync();
            crashes.push((copy(folder.path()), state(&robot.mapper)));
        }
    }
    let expected = finish(robot.mapper, &measurements);
    for (index, (crash, at_the_time)) in crashes.iter().enumerate() {
        let recovered = recover(crash.path(), Gaps::Stop).unwrap();
        assert_eq!((recovered.findings.len(), recovered.mapper.frame()), (0, "odom"));
        assert!(state(&recovered.mapper) == *at_the_time, "crash {index}");
        if recovered.mapper.progress().index > 41 {
            assert_eq!(recovered.mapper.config().selection.delta, 0.1);
            assert!(finish(recovered.mapper, &measurements) == expected, "crash {index}");
        }
    }
    // The last two checkpoints and what came since.
    let names = Folder::open(crashes.last().unwrap().0.path()).unwrap();
    let (checkpoints, segments) = (names.checkpoints().unwrap(), names.segments().unwrap());
    assert_eq!((checkpoints.len(), segments.len()), (2, 2));
    assert_eq!((checkpoints[0].0, checkpoints[1].0), (segments[0].0, segments[1].0));
}

#[test]
fn damage_is_reported_and_the_rest_is_used() {
    damage_at(4);
}

#[test]
#[ignore = "thousands of changes; run with --ignored"]
fn damage_anywhere_is_reported_and_the_rest_is_used() {
    damage_at(64);
}

/// Flips a bit of, or truncates, every file of a journal at this many bytes from its start, from its end, and in between.
fn damage_at(places: usize) {
    let measurements = drive(36);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let mut states = HashMap::from([(0, state(&robot.mapper))]);
    for &measurement in &measurements {
        robot.measure(measurement, true);
        states.insert(robot.mapper.progress().steps, state(&robot.mapper));
    }
    robot.sync();
    let steps = robot.mapper.progress().steps;
    let crash = copy(folder.path());
    let expected = finish(robot.mapper, &measurements);
    let files: Vec<_> = fs::read_dir(crash.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut damages = 0;
    for file in files.iter().filter(|file| file.file_name().unwrap() != "lock") {
        let bytes = fs::read(file).unwrap();
        let offsets = (0..bytes.len()).filter(|offset| {
            *offset < places || *offset + places > bytes.len() || offset.is_multiple_of(bytes.len() / places)
        });
        for offset in offsets {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << (offset % 8);
            for damaged in [flipped, bytes[..offset].to_vec()] {
                fs::write(file, &damaged).unwrap();
                let context = || format!("{} at {offset} ({} bytes)", file.display(), damaged.len());
                let recovered = recover(crash.path(), Gaps::Stop).expect("a map can always be recovered");
                let reached = recovered.mapper.progress().steps;
                let is_named = recovered.damaged == [file.clone()] && !recovered.findings.is_empty();
                let is_checkpoint = file.extension().unwrap() == "npz";
                if is_checkpoint {
                    // The other checkpoint and the steps since lead to the same state.
                    assert_eq!(reached, steps, "{}", context());
                    // The newest valid one is read; some bytes of an archive have no meaning.
                    assert!(is_named || recovered.damaged.is_empty(), "{}", context());
                } else if reached < steps {
                    let is_last_and_truncated = recovered.findings.is_empty();
                    assert!(is_named || is_last_and_truncated || damaged.len() < bytes.len(), "{}", context());
                }
                if let Some(state_then) = states.get(&reached) {
                    assert!(state(&recovered.mapper) == *state_then, "{}", context());
                }
                assert!(finish(recovered.mapper, &measurements) == expected, "{}", context());
                damages += usize::from(!recovered.damaged.is_empty());
            }
        }
        fs::write(file, &bytes).unwrap();
    }
    assert!(damages > 3 * places, "{damages}");
}

#[test]
fn damaged_files_are_set_aside_and_never_overwritten() {
    // The head of a segment is its settings, and longer than its steps; without it the map continues from the checkpoint's number.
    for share in [0.1, 0.5, 0.95] {
        damaged_files_are_set_aside(share);
    }
}

/// A checkpoint and the segment after it are damaged, each at this share of its length.
fn damaged_files_are_set_aside(share: f64) {
    let measurements = drive(40);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    measurements[..60].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let crash = copy(folder.path());
    let contents = Folder::open(crash.path()).unwrap();
    let checkpoint = contents.checkpoints().unwrap().pop().unwrap().1;
    let segment = contents.segments().unwrap().pop().unwrap().1;
    drop(contents);
    for file in [&checkpoint, &segment] {
        let bytes = fs::read(file).unwrap();
        let flipped = |offset: usize| {
            let mut bytes = bytes.clone();
            bytes[offset] ^= 0x10;
            bytes
        };
        // Some bytes of an archive have no meaning.
        let matters = |bytes: &Vec<u8>| file == &segment || Checkpoint::from_bytes(bytes).is_err();
        let first = (share * bytes.len() as f64) as usize;
        fs::write(file, (first..bytes.len()).map(flipped).find(matters).unwrap()).unwrap();
    }
    let damaged = [&checkpoint, &segment].map(|file| fs::read(file).unwrap());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    assert_eq!(recovered.damaged, [checkpoint.clone(), segment.clone()]);
    let mut robot = Robot::start(RealDisk, crash.path(), recovered.mapper, recovered.damaged);
    let next = robot.mapper.progress().index as usize;
    measurements[next..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    for (file, bytes) in [checkpoint, segment].iter().zip(damaged) {
        let aside = crash.path().join(format!("{}.damaged", file.file_name().unwrap().to_str().unwrap()));
        assert!(fs::read(&aside).unwrap() == bytes, "damage at {share}: {}", aside.display());
    }
    let again = copy(crash.path());
    let recovered = recover(again.path(), Gaps::Stop).unwrap();
    assert_eq!(recovered.findings.len(), 0);
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_robot_continues_after_damage() {
    let measurements = drive(6);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    measurements.iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let crash = copy(folder.path());
    let segment = Folder::open(crash.path()).unwrap().segments().unwrap().pop().unwrap().1;
    let mut bytes = fs::read(&segment).unwrap();
    // The last but one of the readings, which are the steps with the shortest records of measurements.
    let offset = bytes.len() - 250;
    bytes[offset] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let stopped = recover(crash.path(), Gaps::Stop).unwrap();
    let skipped = recover(crash.path(), Gaps::Skip).unwrap();
    assert!(stopped.mapper.progress().steps < robot.mapper.progress().steps);
    assert_eq!((stopped.lost_steps, skipped.lost_steps), (0, 1));
    assert_eq!(skipped.mapper.progress().steps, robot.mapper.progress().steps);
    let received = |mapper: &Mapper| {
        let counters = mapper.pipeline().counters();
        counters.readings + counters.poses
    };
    assert!(received(&skipped.mapper) + 1 >= received(&robot.mapper));
}

/// A disk that fails on demand.
#[derive(Clone, Default)]
struct FaultyDisk(Arc<Faults>);

#[derive(Default)]
struct Faults {
    is_full: AtomicBool,
    /// Appending waits as long as it is locked.
    gate: Mutex<()>,
    appended: AtomicU64,
}

impl FaultyDisk {
    fn check(&self) -> io::Result<()> {
        if self.0.is_full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Disk for FaultyDisk {
    fn create(&mut self, path: &Path) -> io::Result<Box<dyn Append>> {
        self.check()?;
        Ok(Box::new(FaultyFile { file: RealDisk.create(path)?, disk: self.clone() }))
    }

    fn write(&mut self, path: &Path, checkpoint: &Checkpoint, tiles: &Arc<TileFolder>) -> Result<StoredTiles, Error> {
        let failed = FileError::of("write the checkpoint", path, "; no partial file was left");
        self.check().map_err(failed)?;
        RealDisk.write(path, checkpoint, tiles)
    }
}

struct FaultyFile {
    file: Box<dyn Append>,
    disk: FaultyDisk,
}

impl Append for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        drop(lock(&self.disk.0.gate));
        if let Err(error) = self.disk.check() {
            // A full disk writes only a part.
            self.file.append(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.disk.0.appended.fetch_add(1, Ordering::SeqCst);
        self.file.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

#[test]
fn with_a_full_disk_mapping_continues_and_the_loss_is_reported_until_there_is_space_again() {
    let drive = drive(200);
    let expected = finish(begin(), &drive);
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let mut robot = Robot::start(disk.clone(), folder.path(), begin(), Vec::new());
    let mut measurements = drive.iter().copied();
    measurements.by_ref().take(101).for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let kept = robot.mapper.progress().steps;
    assert_eq!(robot.status().lost, None);

    disk.0.is_full.store(true, Ordering::SeqCst);
    measurements.by_ref().take(100).for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let status = robot.status();
    assert!(status.lost.is_some_and(|reason| reason.contains("no storage space")), "{:?}", robot.status().lost);
    assert!(status.lost_steps > 0);
    // What was written before is still valid, and so is what fitted on the disk.
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    let reached = recovered.mapper.progress().steps;
    assert!(reached >= kept, "{kept} {reached}");
    // Every step that came since is counted, as soon as the journal's thread has seen it.
    while reached + robot.status().lost_steps < robot.mapper.progress().steps {
        std::thread::yield_now();
    }
    assert_eq!(recovered.findings, Vec::<String>::new());
    assert!(finish(recovered.mapper, &drive) == expected);

    disk.0.is_full.store(false, Ordering::SeqCst);
    while robot.status().lost.is_some() {
        // Sensors continue, and the checkpoint is retried.
        if robot.journal.is_checkpoint_due(&robot.mapper) {
            robot.journal.checkpoint(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements.for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert!(state(&recovered.mapper) == expected, "mapping was not affected");
}

#[test]
fn a_map_that_is_resumed_on_a_full_disk_is_written_once_there_is_space() {
    let measurements = drive(60);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    measurements[..80].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    let disk = FaultyDisk::default();
    disk.0.is_full.store(true, Ordering::SeqCst);
    let mut robot = Robot::start(disk.clone(), crash.path(), recovered.mapper, recovered.damaged);
    measurements[80..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    let kept = recover(copy(crash.path()).path(), Gaps::Stop).unwrap();
    assert_eq!(kept.mapper.progress().index, 80);
    disk.0.is_full.store(false, Ordering::SeqCst);
    while robot.status().checkpoint.is_none() {
        if robot.journal.is_checkpoint_due(&robot.mapper) {
            robot.journal.checkpoint(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements[100..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let recovered = recover(copy(crash.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn an_unavailable_folder_is_taken_once_it_is_available_and_its_contents_are_set_aside() {
    let measurements = drive(120);
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("map/map.journal");
    // Where the folder should be there is a file.
    fs::write(disk.path().join("map"), "").unwrap();
    let error = Folder::open(&path).unwrap_err();
    let folder = Folder::deferred(&path, ExistingJournal::Keep, Some(error.to_string()));
    let journal = Journal::start(folder, &begin(), Vec::new(), false).unwrap();
    let mut robot = Robot { mapper: begin(), journal };
    assert!(robot.status().lost.is_some_and(|reason| reason.contains("map.journal")));
    measurements[..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    assert!(robot.status().lost.is_some());
    // The disk comes back, with the previous map.
    fs::remove_file(disk.path().join("map")).unwrap();
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("steps-000000000000.journal"), "previous").unwrap();
    while robot.status().lost.is_some() {
        if robot.journal.is_checkpoint_due(&robot.mapper) {
            robot.journal.checkpoint(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements[100..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let mut folders = fs::read_dir(disk.path().join("map")).unwrap().map(|entry| entry.unwrap().path());
    let kept = folders.find(|folder| *folder != path).expect("what was there");
    assert_eq!(fs::read_to_string(kept.join("steps-000000000000.journal")).unwrap(), "previous");
    let recovered = recover(copy(&path).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == finish(begin(), &measurements));
}

#[test]
fn a_robot_that_stands_still_does_not_fill_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let measurement = drive(1)[0];
    for _ in 0..3 * MOST_STEPS + 100 {
        robot.measure(measurement, true);
        if robot.mapper.progress().steps.is_multiple_of(10_000) {
            robot.sync();
        }
    }
    robot.sync();
    assert_eq!(robot.mapper.progress().versions, 0);
    let crash = copy(folder.path());
    let names = Folder::open(crash.path()).unwrap();
    let numbers = |files: Vec<(u64, std::path::PathBuf)>| files.into_iter().map(|file| file.0).collect::<Vec<_>>();
    assert_eq!(numbers(names.checkpoints().unwrap()), [2 * MOST_STEPS, 3 * MOST_STEPS]);
    assert_eq!(numbers(names.segments().unwrap()), [2 * MOST_STEPS, 3 * MOST_STEPS]);
}

#[test]
fn a_slow_disk_is_not_waited_for_and_catches_up() {
    let measurements = drive(120);
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let mut robot = Robot::start(disk.clone(), folder.path(), begin(), Vec::new());
    let gate = lock(&disk.0.gate);
    measurements.iter().for_each(|&measurement| robot.measure(measurement, false));
    // Everything is mapped, and nothing written yet.
    assert_eq!(disk.0.appended.load(Ordering::SeqCst), 0);
    assert!(robot.status().is_behind && robot.mapper.progress().versions > 20);
    drop(gate);
    robot.sync();
    // Even without further steps the status is updated.
    while robot.status().is_behind {
        std::thread::yield_now();
    }
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn with_a_disk_that_hangs_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let mut robot = Robot::start(disk.clone(), folder.path(), begin(), Vec::new());
    let gate = lock(&disk.0.gate);
    for _ in 0..MAX_WAITING + 30_000 {
        robot.take(Step::Flush, false);
    }
    let status = robot.status();
    assert!(status.lost.is_some_and(|reason| reason.contains("steps behind")));
    assert!(status.lost_steps > 0 && status.lost_steps <= 30_000, "{}", status.lost_steps);
    drop(gate);
    while robot.status().checkpoint.is_none() {
        if robot.journal.is_checkpoint_due(&robot.mapper) {
            robot.journal.checkpoint(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    robot.take(Step::Flush, false);
    robot.sync();
    assert_eq!(robot.status().lost, None);
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_map_that_replaces_another_is_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    drive(20).into_iter().for_each(|measurement| robot.measure(measurement, true));
    let other = Checkpoint::of(&begin()).unwrap().map();
    // As the mapping thread does it.
    robot.mapper.take(Step::Load(Box::new(other)), &StopSignal::default());
    robot.journal.checkpoint(&robot.mapper);
    drive(9).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert_eq!(recovered.mapper.model().totals.updates, robot.mapper.model().totals.updates);
}

#[test]
fn nothing_is_written_before_a_reading_is_used_and_everything_from_then_on() {
    let measurements = drive(30);
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("map.journal");
    let folder = Folder::deferred(&path, ExistingJournal::Keep, None);
    let journal = Journal::start(folder, &begin(), Vec::new(), true).unwrap();
    let mut robot = Robot { mapper: begin(), journal };
    let id = SourceId::robot("/magmap");
    robot.take(Step::Source { id, run: "1".into() }, true);
    robot.take(Step::Mount(Isometry3::translation(0.1, 0.0, 0.2)), true);
    let mut other = config();
    other.selection.delta = 0.1;
    robot.take(Step::Configure(Box::new(other)), true);
    let is_reading = |measurement: &&Measurement| matches!(measurement, Measurement::Reading(_));
    measurements.iter().filter(|m| !is_reading(m)).take(3).for_each(|&pose| robot.measure(pose, true));
    robot.sync();
    assert!(!path.exists() && robot.status() == JournalStatus::default());
    measurements[6..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let recovered = recover(copy(&path).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert_eq!(recovered.mapper.config().selection.delta, 0.1);
}

#[test]
fn two_journals_cannot_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let _robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let message = Folder::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("is being written by another process"), "{message}");
}

#[test]
fn a_clean_end_leaves_a_final_checkpoint_and_no_step_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    drive(20).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.take(Step::Finish, true);
    let Robot { mapper, journal } = robot;
    StepLog::close(Box::new(journal), Some(&mapper));
    let recovered = recover(folder.path(), Gaps::Stop).unwrap();
    assert!(recovered.mapper.progress().has_ended);
    assert!(state(&recovered.mapper) == state(&mapper));
    Folder::open(folder.path()).unwrap().remove();
    assert!(!folder.path().exists());
}

/// The same drive mapped by tiles, few of which are in memory.
fn begin_tiled() -> Mapper {
    let mut config = config();
    (config.tiles.size, config.tiles.halo, config.tiles.band, config.tiles.memory) = (4.0, 1.0, 0.4, 0.1);
    Mapper::new(&config)
}

fn tile_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut tiles: Vec<_> = paths.filter(|path| path.to_str().unwrap().contains("tile-")).collect();
    tiles.sort();
    tiles
}

#[test]
fn a_checkpoint_of_tiles_writes_what_changed_and_leads_to_the_same_map() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin_tiled(), Vec::new());
    let mut uninterrupted = begin_tiled();
    for (number, measurement) in drive(400).into_iter().enumerate() {
        robot.measure(measurement, true);
        let step = Step::Measurement { index: uninterrupted.progress().index, measurement };
        uninterrupted.take(step, &StopSignal::default());
        while !uninterrupted.ready().is_empty() {
            uninterrupted.take(Step::Learn { batches: 1 }, &StopSignal::default());
        }
        if number % 200 == 199 {
            robot.sync();
            // After a crash, the map is the same.
            let copy = copy(folder.path());
            let recovered = Folder::open(copy.path()).unwrap().recover(&config(), Gaps::Stop, |_| ()).unwrap().unwrap();
            assert_eq!((recovered.findings, state(&recovered.mapper)), (Vec::new(), state(&uninterrupted)));
        }
    }
    assert_eq!(state(&robot.mapper), state(&uninterrupted));
    let tiles = robot.mapper.model().state().tiles.tiles.len();
    let mut written_again = || {
        let before = tile_files(folder.path());
        robot.journal.checkpoint(&robot.mapper);
        robot.sync();
        let files = tile_files(folder.path());
        // Versions of two checkpoints, and those that left memory since.
        assert!(tiles >= 8 && files.len() < 2 * tiles, "{} files of {tiles} tiles", files.len());
        files.iter().filter(|file| !before.contains(*file)).count()
    };
    // At most two batches, 70 cm, since the last checkpoint; then nothing.
    let changed = written_again();
    assert!(changed <= 4, "{changed}");
    assert_eq!(written_again(), 0);
}

#[test]
fn a_damaged_file_of_a_tile_costs_at_most_that_tile() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin_tiled(), Vec::new());
    drive(200).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let expected = robot.mapper.model().state();
    let (mut whole, mut partial) = (0, 0);
    for file in tile_files(folder.path()) {
        let copy = copy(folder.path());
        let damaged = copy.path().join(file.file_name().unwrap());
        let mut bytes = fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        let recovered = Folder::open(copy.path()).unwrap().recover(&config(), Gaps::Stop, |_| ()).unwrap().unwrap();
        let found = recovered.mapper.model().state();
        if found == expected {
            // An earlier checkpoint has another version of it, or none has it.
            whole += 1;
            assert_eq!(recovered.findings.is_empty(), recovered.damaged.is_empty());
            continue;
        }
        partial += 1;
        assert!(recovered.findings[0].starts_with(damaged.to_str().unwrap()), "{:?}", recovered.findings);
        assert_eq!(recovered.damaged, std::slice::from_ref(&damaged));
        let others = expected.tiles.tiles.iter().filter(|tile| !found.tiles.tiles.contains(tile)).count();
        assert_eq!(others, 1, "{}: {:?}", damaged.display(), recovered.findings);
        // Mapping continues, and the damaged file is kept beside.
        let mut robot = Robot::start(RealDisk, copy.path(), recovered.mapper, recovered.damaged);
        robot.sync();
        assert!(!damaged.exists() && damaged.with_extension("npz.damaged").exists());
    }
    assert!(whole > 0 && partial > 0, "{whole} {partial}");
}
