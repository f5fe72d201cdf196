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
use crate::mapping::learner::StopSignal;
use crate::mapping::mapper::SourceId;
use crate::mapping::pipeline::Pipeline;
use crate::mapping::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

/// Every reading an observation, five of them a batch, every third batch a checkpoint.
fn config() -> Config {
    let mut config = Config::default();
    config.averaging.spacing = 0.0;
    config.batch.max_observations = 5;
    config.journal.checkpoint_batches = 3;
    config
}

fn frame() -> Frame {
    let frame = Frame::default();
    frame.get_or_init(|| Arc::from("odom"));
    frame
}

/// A winding drive, each reading before the pose that places it; now and then one that the gates refuse.
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

/// The steps that a worker takes for a recording.
fn begin() -> Mapper<FieldModel> {
    let config = config();
    Mapper::new(Pipeline::new(&config, Isometry3::identity()), FieldModel::new(&config))
}

/// A mapping thread without the thread.
struct Robot {
    mapper: Mapper<FieldModel>,
    journal: Journal,
}

impl Robot {
    fn start(
        disk: impl Disk + 'static,
        folder: &Path,
        mapper: Mapper<FieldModel>,
        damaged: Vec<std::path::PathBuf>,
    ) -> Self {
        let folder = Folder::open(folder).unwrap();
        let journal = Journal::start_on(Box::new(disk), folder, &config(), frame(), &mapper, damaged, None).unwrap();
        Self { mapper, journal }
    }

    fn take(&mut self, step: Step, patient: bool) {
        self.journal.note(&self.mapper, &step);
        if matches!(step, Step::Learn { .. }) {
            self.journal.settle(patient);
        }
        self.mapper.take(step, &StopSignal::default());
    }

    fn measure(&mut self, measurement: Measurement, patient: bool) {
        self.take(Step::Measurement { place: self.mapper.standing().place, measurement }, patient);
        while !self.mapper.ready().is_empty() {
            self.take(Step::Learn { batches: 1 }, patient);
        }
        if self.journal.wants_state(&self.mapper) {
            self.journal.keep(&self.mapper);
        }
    }

    /// Waits until everything handed over is on disk.
    fn settle(&mut self) {
        self.journal.settle(true);
        while self.status().pending_checkpoints > 0 {
            std::thread::yield_now();
        }
    }

    fn status(&self) -> Status {
        self.journal.gauge().status()
    }
}

/// Everything about a map, as bytes.
fn state(mapper: &Mapper<FieldModel>) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.npz");
    Checkpoint::of(&config(), mapper, "odom").unwrap().write(&path).unwrap();
    fs::read(path).unwrap()
}

/// What a crash leaves.
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

/// Goes on with the drive where the map is, to its end.
fn finish(mut mapper: Mapper<FieldModel>, measurements: &[Measurement]) -> Vec<u8> {
    let stop = StopSignal::default();
    for &measurement in &measurements[mapper.standing().place as usize..] {
        mapper.take(Step::Measurement { place: mapper.standing().place, measurement }, &stop);
        while !mapper.ready().is_empty() {
            mapper.take(Step::Learn { batches: 1 }, &stop);
        }
    }
    state(&mapper)
}

#[test]
fn whenever_it_ends_the_map_is_the_one_that_was_and_goes_on_to_be_the_one_that_would_have_been() {
    let measurements = drive(60);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let id = SourceId { name: "a drive".into(), fingerprint: "1".into() };
    robot.take(Step::Source { id, run: "2".into() }, true);
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
            robot.settle();
            crashes.push((copy(folder.path()), state(&robot.mapper)));
        }
    }
    let expected = finish(robot.mapper, &measurements);
    for (index, (crash, at_the_time)) in crashes.iter().enumerate() {
        let recovered = recover(crash.path(), Gaps::Stop).unwrap();
        assert_eq!((recovered.findings.len(), recovered.frame.as_str()), (0, "odom"));
        assert!(state(&recovered.mapper) == *at_the_time, "crash {index}");
        if recovered.mapper.standing().place > 41 {
            assert_eq!(recovered.config.selection.delta, 0.1);
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
fn damage_anywhere_is_named_and_kept_and_the_rest_is_used() {
    let measurements = drive(36);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let mut states = HashMap::from([(0, state(&robot.mapper))]);
    for &measurement in &measurements {
        robot.measure(measurement, true);
        states.insert(robot.mapper.standing().steps, state(&robot.mapper));
    }
    robot.settle();
    let steps = robot.mapper.standing().steps;
    let crash = copy(folder.path());
    let expected = finish(robot.mapper, &measurements);
    let files: Vec<_> = fs::read_dir(crash.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut damages = 0;
    for file in files.iter().filter(|file| file.file_name().unwrap() != "lock") {
        let bytes = fs::read(file).unwrap();
        // Every kind of place: the beginning, the end, and many in between.
        let offsets = (0..bytes.len())
            .filter(|offset| *offset < 64 || *offset + 64 > bytes.len() || offset.is_multiple_of(bytes.len() / 60));
        for offset in offsets {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << (offset % 8);
            for damaged in [flipped, bytes[..offset].to_vec()] {
                fs::write(file, &damaged).unwrap();
                let context = || format!("{} at {offset} ({} bytes)", file.display(), damaged.len());
                let recovered = recover(crash.path(), Gaps::Stop).expect("there is always a way");
                let reached = recovered.mapper.standing().steps;
                let is_named = recovered.damaged == [file.clone()] && !recovered.findings.is_empty();
                let is_checkpoint = file.extension().unwrap() == "npz";
                if is_checkpoint {
                    // The other checkpoint and the steps since lead to the same end.
                    assert_eq!(reached, steps, "{}", context());
                    // Of the two the newest good one is read; some bytes of an archive mean nothing.
                    assert!(is_named || recovered.damaged.is_empty(), "{}", context());
                } else if reached < steps {
                    let is_last_and_cut_short = recovered.findings.is_empty();
                    assert!(is_named || is_last_and_cut_short || damaged.len() < bytes.len(), "{}", context());
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
    assert!(damages > 200, "{damages}");
}

#[test]
fn damaged_files_are_set_aside_and_never_overwritten() {
    // The head of a segment is its settings, and longer than its steps; without it the map goes on from the checkpoint's number.
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
    robot.settle();
    let crash = copy(folder.path());
    let contents = Folder::open(crash.path()).unwrap();
    let checkpoint = contents.checkpoints().unwrap().pop().unwrap().1;
    let segment = contents.segments().unwrap().pop().unwrap().1;
    drop(contents);
    for file in [&checkpoint, &segment] {
        let bytes = fs::read(file).unwrap();
        let flipped = |place: usize| {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x10;
            bytes
        };
        // Some bytes of an archive mean nothing.
        let matters = |bytes: &Vec<u8>| file == &segment || Checkpoint::from_bytes(bytes).is_err();
        let first = (share * bytes.len() as f64) as usize;
        fs::write(file, (first..bytes.len()).map(flipped).find(matters).unwrap()).unwrap();
    }
    let damaged = [&checkpoint, &segment].map(|file| fs::read(file).unwrap());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    assert_eq!(recovered.damaged, [checkpoint.clone(), segment.clone()]);
    let mut robot = Robot::start(RealDisk, crash.path(), recovered.mapper, recovered.damaged);
    let place = robot.mapper.standing().place as usize;
    measurements[place..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
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
fn a_robot_goes_on_behind_a_damaged_place() {
    let measurements = drive(6);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    measurements.iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
    let crash = copy(folder.path());
    let segment = Folder::open(crash.path()).unwrap().segments().unwrap().pop().unwrap().1;
    let mut bytes = fs::read(&segment).unwrap();
    // The last but one of the readings, which are the steps with the shortest records of measurements.
    let place = bytes.len() - 250;
    bytes[place] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let stopped = recover(crash.path(), Gaps::Stop).unwrap();
    let skipped = recover(crash.path(), Gaps::Skip).unwrap();
    assert!(stopped.mapper.standing().steps < robot.mapper.standing().steps);
    assert_eq!((stopped.lost_steps, skipped.lost_steps), (0, 1));
    assert_eq!(skipped.mapper.standing().steps, robot.mapper.standing().steps);
    let received = |mapper: &Mapper<FieldModel>| {
        let counters = mapper.pipeline().counters();
        counters.readings + counters.poses
    };
    assert!(received(&skipped.mapper) + 1 >= received(&robot.mapper));
}

/// A disk that fails as told.
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

    fn write(&mut self, path: &Path, checkpoint: &Checkpoint) -> Result<(), crate::mapping::Error> {
        let failed = |source| crate::mapping::Error::WriteCheckpoint { path: path.to_owned(), source };
        self.check().map_err(failed)?;
        RealDisk.write(path, checkpoint)
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
            // A full disk takes a part.
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
fn with_a_full_disk_mapping_goes_on_the_loss_is_told_and_ends_when_there_is_space_again() {
    let drive = drive(200);
    let expected = finish(begin(), &drive);
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let mut robot = Robot::start(disk.clone(), folder.path(), begin(), Vec::new());
    let mut measurements = drive.iter().copied();
    measurements.by_ref().take(101).for_each(|measurement| robot.measure(measurement, true));
    robot.settle();
    let kept = robot.mapper.standing().steps;
    assert_eq!(robot.status().lost, None);

    disk.0.is_full.store(true, Ordering::SeqCst);
    measurements.by_ref().take(100).for_each(|measurement| robot.measure(measurement, true));
    robot.settle();
    let status = robot.status();
    assert!(status.lost.is_some_and(|reason| reason.contains("no storage space")), "{:?}", robot.status().lost);
    assert!(status.lost_steps > 0);
    // What was kept before is still good, and so is what fitted on the disk.
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    let reached = recovered.mapper.standing().steps;
    assert!(reached >= kept, "{kept} {reached}");
    // Every step that came since is counted, as soon as the journal's thread has seen it.
    while reached + robot.status().lost_steps < robot.mapper.standing().steps {
        std::thread::yield_now();
    }
    assert_eq!(recovered.findings, Vec::<String>::new());
    assert!(finish(recovered.mapper, &drive) == expected);

    disk.0.is_full.store(false, Ordering::SeqCst);
    while robot.status().lost.is_some() {
        // Sensors go on, and from time to time it is tried again.
        if robot.journal.wants_state(&robot.mapper) {
            robot.journal.keep(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements.for_each(|measurement| robot.measure(measurement, true));
    robot.settle();
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert!(state(&recovered.mapper) == expected, "mapping did not suffer");
}

#[test]
fn a_map_that_is_taken_up_on_a_full_disk_is_kept_as_soon_as_there_is_space() {
    let measurements = drive(60);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    measurements[..80].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
    let crash = copy(folder.path());
    let recovered = recover(crash.path(), Gaps::Stop).unwrap();
    let disk = FaultyDisk::default();
    disk.0.is_full.store(true, Ordering::SeqCst);
    let mut robot = Robot::start(disk.clone(), crash.path(), recovered.mapper, recovered.damaged);
    measurements[80..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    let kept = recover(copy(crash.path()).path(), Gaps::Stop).unwrap();
    assert_eq!(kept.mapper.standing().place, 80);
    disk.0.is_full.store(false, Ordering::SeqCst);
    while robot.status().checkpoint.is_none() {
        if robot.journal.wants_state(&robot.mapper) {
            robot.journal.keep(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements[100..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
    let recovered = recover(copy(crash.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_folder_that_cannot_be_had_is_taken_as_soon_as_it_can_and_what_it_holds_is_set_aside() {
    let measurements = drive(120);
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("map/map.journal");
    // Where the folder should be there is a file.
    fs::write(disk.path().join("map"), "").unwrap();
    let error = Folder::open(&path).unwrap_err();
    let folder = Folder::wanted(&path, Existing::Keep, Some(error.to_string()));
    let journal = Journal::start(folder, &config(), frame(), &begin(), Vec::new()).unwrap();
    let mut robot = Robot { mapper: begin(), journal };
    assert!(robot.status().lost.is_some_and(|reason| reason.contains("map.journal")));
    measurements[..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    assert!(robot.status().lost.is_some());
    // The disk comes back, with the map of before.
    fs::remove_file(disk.path().join("map")).unwrap();
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("steps-000000000000.journal"), "of before").unwrap();
    while robot.status().lost.is_some() {
        if robot.journal.wants_state(&robot.mapper) {
            robot.journal.keep(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    measurements[100..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
    let mut folders = fs::read_dir(disk.path().join("map")).unwrap().map(|entry| entry.unwrap().path());
    let kept = folders.find(|folder| *folder != path).expect("what was there");
    assert_eq!(fs::read_to_string(kept.join("steps-000000000000.journal")).unwrap(), "of before");
    let recovered = recover(copy(&path).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == finish(begin(), &measurements));
}

#[test]
fn a_robot_that_stands_still_fills_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let measurement = drive(1)[0];
    for _ in 0..3 * MOST_STEPS + 100 {
        robot.measure(measurement, true);
        if robot.mapper.standing().steps.is_multiple_of(10_000) {
            robot.settle();
        }
    }
    robot.settle();
    assert_eq!(robot.mapper.standing().versions, 0);
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
    assert!(robot.status().is_behind && robot.mapper.standing().versions > 20);
    drop(gate);
    robot.settle();
    // Also a robot that stands still from now on is told.
    while robot.status().is_behind {
        std::thread::yield_now();
    }
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_disk_that_hangs_costs_no_memory_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let mut robot = Robot::start(disk.clone(), folder.path(), begin(), Vec::new());
    let gate = lock(&disk.0.gate);
    for _ in 0..WAITING + 30_000 {
        robot.take(Step::Flush, false);
    }
    let status = robot.status();
    assert!(status.lost.is_some_and(|reason| reason.contains("steps behind")));
    assert!(status.lost_steps > 0 && status.lost_steps <= 30_000, "{}", status.lost_steps);
    drop(gate);
    while robot.status().checkpoint.is_none() {
        if robot.journal.wants_state(&robot.mapper) {
            robot.journal.keep(&robot.mapper);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    robot.take(Step::Flush, false);
    robot.settle();
    assert_eq!(robot.status().lost, None);
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn another_map_in_its_place_is_a_checkpoint_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    drive(20).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.mapper.replace(FieldModel::new(&config()), crate::mapping::path::Path::default(), Vec::new());
    robot.journal.keep(&robot.mapper);
    drive(9).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.settle();
    let recovered = recover(copy(folder.path()).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert_eq!(recovered.mapper.learner().totals().updates, robot.mapper.learner().totals().updates);
}

#[test]
fn nothing_is_written_before_a_reading_is_used_and_everything_from_then_on() {
    let measurements = drive(30);
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("map.journal");
    let folder = Folder::wanted(&path, Existing::Keep, None);
    let journal = Journal::start_with_first_reading(folder, &config(), frame(), &begin(), Vec::new()).unwrap();
    let mut robot = Robot { mapper: begin(), journal };
    let id = SourceId::robot("/magmap");
    robot.take(Step::Source { id, run: "1".into() }, true);
    robot.take(Step::Mount(Isometry3::translation(0.1, 0.0, 0.2)), true);
    let mut other = config();
    other.selection.delta = 0.1;
    robot.take(Step::Configure(Box::new(other)), true);
    let is_reading = |measurement: &&Measurement| matches!(measurement, Measurement::Reading(_));
    measurements.iter().filter(|m| !is_reading(m)).take(3).for_each(|&pose| robot.measure(pose, true));
    robot.settle();
    assert!(!path.exists() && robot.status() == Status::default());
    measurements[6..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.settle();
    let recovered = recover(copy(&path).path(), Gaps::Stop).unwrap();
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert_eq!(recovered.config.selection.delta, 0.1);
}

#[test]
fn two_cannot_write_into_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let _robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    let message = Folder::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("is being written by another process"), "{message}");
}

#[test]
fn an_end_in_good_order_leaves_one_checkpoint_more_and_no_step_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(RealDisk, folder.path(), begin(), Vec::new());
    drive(20).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.take(Step::Finish, true);
    let Robot { mapper, journal } = robot;
    Keeper::close(Box::new(journal), Some(&mapper));
    let recovered = recover(folder.path(), Gaps::Stop).unwrap();
    assert!(recovered.mapper.standing().has_ended);
    assert!(state(&recovered.mapper) == state(&mapper));
    Folder::open(folder.path()).unwrap().remove();
    assert!(!folder.path().exists());
}
