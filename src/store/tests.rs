//! The file of a map against crashes, damage and disks that fail.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};
use tempfile::TempDir;

use super::checkpoint::Checkpoint;
use super::database::Database;
use super::earlier_maps::{sibling, siblings};
use super::map_file;
use super::map_log::{MAX_WAITING, MOST_STEPS, MapLog, Options};
use super::recovery::{Gaps, Recovered};
use super::status::MapLogStatus;
use crate::config::{Config, Mapped};
use crate::mapping::mapper::{Effect, Mapper, SourceId, Step};
use crate::mapping::step_log::StepLog;
use crate::mapping::stop::StopSignal;
use crate::sensing::intake::Input;
use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use crate::trajectory::{self, Withdrawal};

/// Every reading an observation, five of them a batch, every third batch a checkpoint.
fn config() -> Config {
    let mut config = Config::default();
    config.averaging.spacing = 0.0;
    config.batch.max_observations = 5;
    config.store.checkpoint_batches = 3;
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

/// A mapper of the same drive by tiles, few of which are in memory.
fn begin_tiled() -> Mapper {
    let mut config = config();
    (config.tiles.size, config.tiles.halo, config.tiles.band, config.tiles.memory) = (4.0, 1.0, 0.4, 0.1);
    Mapper::new(&config)
}

/// A mapping thread without the thread.
struct Robot {
    mapper: Mapper,
    log: MapLog,
}

impl Robot {
    fn start(path: &Path, mapper: Mapper) -> Self {
        let log = MapLog::create(path, &mapper, Options { earlier_maps: 100, ..Options::default() }).unwrap();
        Self { mapper, log }
    }

    fn resume((recovered, database): (Recovered, Arc<Database>), waits: bool) -> Self {
        let options = Options { earlier_maps: 100, waits, ..Options::default() };
        let (mapper, log) = MapLog::resume(database, recovered, options).unwrap();
        Self { mapper, log }
    }

    fn take(&mut self, step: Step, unlimited: bool) {
        self.log.append(&self.mapper, &step);
        if matches!(step, Step::Learn { .. }) {
            self.log.sync(unlimited);
        }
        if let Effect::Learnt { batch, .. } = self.mapper.take(step, &StopSignal::default()) {
            self.log.learnt(&self.mapper, &batch.observations);
        }
    }

    fn measure(&mut self, input: impl Into<Input>, unlimited: bool) {
        self.take(Step::Input { index: self.mapper.progress().index, input: input.into() }, unlimited);
        while !self.mapper.ready().is_empty() {
            self.take(Step::Learn { batches: 1 }, unlimited);
        }
        if self.log.is_checkpoint_due(&self.mapper) {
            self.log.checkpoint(&self.mapper);
        }
    }

    /// Waits until everything queued is on disk.
    fn sync(&mut self) {
        self.log.sync(true);
        while self.status().pending_checkpoints > 0 {
            std::thread::yield_now();
        }
    }

    /// Retries checkpoints, as a mapping thread does, until one is safe.
    fn wait_until_safe(&mut self) {
        while self.status().lost.is_some() || self.status().checkpoint.is_none() {
            if self.log.is_checkpoint_due(&self.mapper) {
                self.log.checkpoint(&self.mapper);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn status(&self) -> MapLogStatus {
        self.log.handle().status()
    }

    fn database(&self) -> Arc<Database> {
        self.log.handle().database()
    }

    fn close(self) -> Mapper {
        StepLog::close(Box::new(self.log), Some(&self.mapper));
        self.mapper
    }
}

fn state(mapper: &Mapper) -> Checkpoint {
    Checkpoint::of(mapper).unwrap()
}

/// The path of a map in a folder.
fn map_in(folder: &TempDir) -> PathBuf {
    folder.path().join("map.magmap")
}

/// A copy of the map, as a crash leaves it.
fn copy(path: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for (from, to) in siblings(path).zip(siblings(&map_in(&copy))) {
        if from.exists() {
            fs::copy(from, to).unwrap();
        }
    }
    copy
}

/// A copy of the map as a single file, which a test can change.
fn folded(path: &Path) -> TempDir {
    let copy = copy(path);
    let database = Database::open(map_in(&copy)).unwrap();
    database.begin(0).unwrap();
    database.finish(false).unwrap();
    copy
}

fn open(path: &Path, gaps: Gaps) -> Result<(Recovered, Arc<Database>), super::Error> {
    let database = Arc::new(Database::open(path)?);
    Ok((database.recover(&config(), gaps, |_| ())?, database))
}

fn recover(path: &Path, gaps: Gaps) -> Recovered {
    open(path, gaps).unwrap().0
}

/// Continues the drive from the state of the map to its end.
fn finish(mut mapper: Mapper, inputs: &[impl Into<Input> + Copy]) -> Checkpoint {
    let stop = StopSignal::default();
    for &input in &inputs[mapper.progress().index as usize..] {
        mapper.take(Step::Input { index: mapper.progress().index, input: input.into() }, &stop);
        while !mapper.ready().is_empty() {
            mapper.take(Step::Learn { batches: 1 }, &stop);
        }
    }
    state(&mapper)
}

/// The trajectory in the file leads to the map.
#[track_caller]
fn assert_folds(path: &Path, mapper: &Mapper) {
    let trajectory = Database::open_to_read(path).unwrap().trajectory().unwrap();
    assert!(trajectory::fold(mapper.config(), &trajectory, &|| false).state() == mapper.model().state());
}

#[test]
fn after_a_crash_at_any_time_the_map_is_recovered_and_continues_as_without_it() {
    let mount = Input::Mount(Isometry3::translation(0.1, 0.0, 0.2));
    let inputs: Vec<Input> = std::iter::once(mount).chain(drive(60).into_iter().map(Input::from)).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    let id = SourceId { name: "a drive".into(), fingerprint: "1".into() };
    robot.take(Step::Source { id, run: "2".into() }, true);
    robot.take(Step::Frame("odom".into()), true);
    let mut crashes = Vec::new();
    for (index, &input) in inputs.iter().enumerate() {
        robot.measure(input, true);
        if index == 40 {
            let mut other = config();
            other.selection.delta = 0.1;
            robot.take(Step::Configure(Box::new(other)), true);
            robot.take(Step::Flush, true);
        }
        if index % 7 == 0 {
            robot.sync();
            crashes.push((copy(&map_in(&folder)), state(&robot.mapper)));
        }
    }
    // The last two checkpoints and the steps since.
    let [(newest, _), (before, _)] = robot.database().checkpoints().unwrap()[..] else { panic!("two checkpoints") };
    assert!(newest > before && robot.database().steps(0).rows[0].0 == before);
    let expected = finish(robot.mapper, &inputs);
    for (index, (crash, at_the_time)) in crashes.iter().enumerate() {
        let (recovered, database) = open(&map_in(crash), Gaps::Stop).unwrap();
        assert_eq!((recovered.findings.len(), recovered.mapper.frame()), (0, "odom"));
        assert!(state(&recovered.mapper) == *at_the_time, "crash {index}");
        let is_late = recovered.mapper.progress().index > 41;
        let mut robot = Robot::resume((recovered, database), false);
        if is_late {
            assert_eq!(robot.mapper.config().selection.delta, 0.1);
            let next = robot.mapper.progress().index as usize;
            inputs[next..].iter().for_each(|&measurement| robot.measure(measurement, true));
            assert!(state(&robot.mapper) == expected, "crash {index}");
        }
        let mapper = robot.close();
        // Batches that were learnt again are in the file once.
        assert_eq!(
            Database::open(map_in(crash)).unwrap().numbers("batches").len() as u64,
            mapper.model().totals.batches()
        );
    }
}

#[test]
fn what_a_closed_map_leaves_is_one_file_with_its_last_state_and_the_trajectory_that_leads_to_it() {
    for mapper in [begin(), begin_tiled()] {
        let folder = tempfile::tempdir().unwrap();
        let mut robot = Robot::start(&map_in(&folder), mapper);
        drive(200).into_iter().for_each(|measurement| robot.measure(measurement, true));
        robot.take(Step::Finish, true);
        while !robot.mapper.ready().is_empty() {
            robot.take(Step::Learn { batches: 1 }, true);
        }
        let mapper = robot.close();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let bytes = fs::read(map_in(&folder)).unwrap();
        let read = map_file::read(&map_in(&folder)).unwrap();
        assert!(read.stream.progress.has_ended && read == state(&mapper));
        assert_folds(&map_in(&folder), &mapper);
        // Who only reads changes nothing.
        assert!(fs::read(map_in(&folder)).unwrap() == bytes && fs::read_dir(&folder).unwrap().count() == 1);
    }
}

#[test]
fn what_is_withdrawn_survives_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    drive(30).into_iter().for_each(|measurement| robot.measure(measurement, true));
    let places = vec![[0.5, 0.3], [1.0, 0.6]];
    let withdrawal = Withdrawal { batches: 0..2, places, stamp: Stamp::from_seconds(5.0), is_applied: false };
    robot.take(Step::Withdraw(withdrawal.clone()), true);
    robot.sync();
    let crashed = copy(&map_in(&folder));
    let recovered = recover(&map_in(&crashed), Gaps::Stop);
    assert_eq!(recovered.mapper.trajectory().withdrawals, [withdrawal]);
    assert_eq!(state(&recovered.mapper), state(&robot.mapper));
    robot.close();
}

#[test]
fn an_observation_takes_at_most_150_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut mapper = Config { ..config() };
    mapper.batch.max_observations = 100;
    let mut robot = Robot::start(&map_in(&folder), Mapper::new(&mapper));
    drive(400).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let rows = robot.database().batches().rows;
    let bytes: usize = rows.iter().map(|(_, batch)| batch.as_ref().unwrap().observations.len()).sum();
    let observations = robot.mapper.model().totals.observations as usize;
    // Beside them a row has its number, run and checksum.
    assert!(observations >= 300 && bytes + 16 * rows.len() <= 150 * observations, "{bytes} of {observations}");
}

/// Changes the file at some places, and checks that a map is recovered that is the one of some earlier step.
fn damage_at(places: usize) {
    let measurements = drive(36);
    let folder = tempfile::tempdir().unwrap();
    // While it may be chosen what is mapped, damage to the trajectory would cost the rest, too.
    let of_strengths = config().decided(Mapped::Strength).into_owned();
    let mut robot = Robot::start(&map_in(&folder), Mapper::new(&of_strengths));
    let mut states = HashMap::from([(0, state(&robot.mapper))]);
    for &measurement in &measurements {
        robot.measure(measurement, true);
        states.insert(robot.mapper.progress().steps, state(&robot.mapper));
    }
    robot.sync();
    let crash = folded(&map_in(&folder));
    let expected = finish(robot.mapper, &measurements);
    let bytes = fs::read(map_in(&crash)).unwrap();
    let (mut found, mut lost) = (0, 0);
    for number in 0..places {
        let offset = (number * bytes.len() / places + number % 97).min(bytes.len() - 1);
        let mut flipped = bytes.clone();
        flipped[offset] ^= 1 << (number % 8);
        for damaged in [flipped, bytes[..offset].to_vec()] {
            let copy = tempfile::tempdir().unwrap();
            fs::write(map_in(&copy), &damaged).unwrap();
            let recovered = match open(&map_in(&copy), Gaps::Stop) {
                Ok((recovered, _)) => recovered,
                Err(error) => {
                    // The first pages are damaged, or the file is cut off.
                    assert!(error.to_string().contains("map.magmap"), "{error}");
                    lost += usize::from(damaged.len() == bytes.len());
                    continue;
                }
            };
            found += usize::from(!recovered.findings.is_empty());
            let steps = recovered.mapper.progress().steps;
            assert!(states.get(&steps).is_none_or(|then| state(&recovered.mapper) == *then), "{offset}");
            assert!(finish(recovered.mapper, &measurements) == expected, "{offset}");
        }
    }
    assert!(found > places / 10 && lost < places / 10, "{found} {lost} of {places}");
}

#[test]
fn damage_is_reported_and_the_rest_is_used() {
    damage_at(60);
}

#[test]
#[ignore = "thousands of changes; run with --ignored"]
fn damage_anywhere_is_reported_and_the_rest_is_used() {
    damage_at(4000);
}

#[test]
fn a_damaged_file_is_set_aside_unchanged_and_its_trajectory_goes_on_in_a_new_one() {
    let measurements = drive(60);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    measurements[..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let (newest, _) = robot.database().checkpoints().unwrap()[0];
    for damage in [
        format!("UPDATE checkpoints SET stream = replace(stream, 'poses', 'poseS') WHERE step = {newest}"),
        format!("UPDATE steps SET step = x'00' WHERE number = {}", newest + 2),
        format!("DELETE FROM steps WHERE number = {}", newest + 2),
    ] {
        let crash = copy(&map_in(&folder));
        let database = Database::open(map_in(&crash)).unwrap();
        database.begin(0).unwrap();
        assert_eq!(database.execute(&damage, []), 1, "{damage}");
        database.finish(false).unwrap();
        drop(database);
        let bytes = fs::read(map_in(&crash)).unwrap();
        let (recovered, database) = open(&map_in(&crash), Gaps::Stop).unwrap();
        assert!(!recovered.findings.is_empty() && recovered.findings[0].contains("map.magmap"), "{damage}");
        let mut robot = Robot::resume((recovered, database), false);
        let next = robot.mapper.progress().index as usize;
        measurements[next..].iter().for_each(|&measurement| robot.measure(measurement, true));
        let mapper = robot.close();
        assert!(state(&mapper) == finish(begin(), &measurements), "{damage}");
        assert_folds(&map_in(&crash), &mapper);
        let others = fs::read_dir(&crash).unwrap().map(|entry| entry.unwrap().path());
        let others: Vec<_> = others.filter(|path| *path != map_in(&crash)).collect();
        assert!(others.len() == 1 && fs::read(&others[0]).unwrap() == bytes, "{damage}: {others:?}");
        assert_eq!(recover(&map_in(&crash), Gaps::Stop).findings, Vec::<String>::new());
    }
}

#[test]
fn a_robot_continues_after_damage_and_says_how_many_steps_are_lost() {
    let measurements = drive(6);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    measurements.iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let steps = robot.mapper.progress().steps;
    robot.database().execute("UPDATE steps SET step = zeroblob(40) WHERE number = ?1", [steps as i64 - 3]);
    let [stopped, skipped] = [Gaps::Stop, Gaps::Skip].map(|gaps| recover(&map_in(&copy(&map_in(&folder))), gaps));
    assert_eq!((stopped.mapper.progress().steps, stopped.lost_steps), (steps - 3, 0));
    assert_eq!((skipped.mapper.progress().steps, skipped.lost_steps), (steps, 1));
    let received = |mapper: &Mapper| {
        let counters = mapper.pipeline().counters();
        counters.readings + counters.poses
    };
    assert!(received(&skipped.mapper) + 1 >= received(&robot.mapper));
}

#[test]
fn a_damaged_tile_costs_at_most_that_tile() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin_tiled());
    drive(200).into_iter().for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let expected = robot.mapper.model().state();
    let (mut whole, mut partial) = (0, 0);
    for tile in robot.database().numbers("tiles") {
        let crash = copy(&map_in(&folder));
        let database = Database::open(map_in(&crash)).unwrap();
        database.begin(0).unwrap();
        let damage = "UPDATE arrays SET numbers = zeroblob(length(numbers)) WHERE tile = ?1 AND name = 'target'";
        assert_eq!(database.execute(damage, [tile]), 1);
        database.finish(false).unwrap();
        drop(database);
        let (recovered, database) = open(&map_in(&crash), Gaps::Stop).unwrap();
        let found = recovered.mapper.model().state();
        if found == expected {
            // No checkpoint needs it, or an earlier one has another version of it.
            whole += 1;
            continue;
        }
        partial += 1;
        let others = expected.tiles.tiles.iter().filter(|tile| !found.tiles.tiles.contains(tile)).count();
        assert_eq!(others, 1, "{tile}: {:?}", recovered.findings);
        assert!(recovered.findings.iter().any(|finding| finding.contains(&format!("tile {tile}"))));
        // Mapping continues, and the damaged file is kept beside.
        Robot::resume((recovered, database), false).close();
        assert_eq!(fs::read_dir(&crash).unwrap().count(), 2);
        assert_eq!(recover(&map_in(&crash), Gaps::Stop).findings, Vec::<String>::new());
    }
    assert!(whole > 0 && partial > 0, "{whole} {partial}");
}

#[test]
fn a_checkpoint_of_tiles_writes_what_changed_and_leads_to_the_same_map() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin_tiled());
    let mut uninterrupted = begin_tiled();
    for (number, measurement) in drive(400).into_iter().enumerate() {
        robot.measure(measurement, true);
        let step = Step::Input { index: uninterrupted.progress().index, input: measurement.into() };
        uninterrupted.take(step, &StopSignal::default());
        while !uninterrupted.ready().is_empty() {
            uninterrupted.take(Step::Learn { batches: 1 }, &StopSignal::default());
        }
        if number % 200 == 199 {
            robot.sync();
            // After a crash, the map is the same.
            let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
            assert!(recovered.findings.is_empty() && state(&recovered.mapper) == state(&uninterrupted));
        }
    }
    assert!(state(&robot.mapper) == state(&uninterrupted));
    let tiles = robot.mapper.model().state().tiles.tiles.len();
    let mut written = || {
        robot.log.checkpoint(&robot.mapper);
        robot.sync();
        // Versions of two checkpoints, and those that left memory since.
        let rows = robot.database().numbers("tiles");
        assert!(tiles >= 8 && rows.len() < 2 * tiles, "{rows:?} of {tiles} tiles");
        rows
    };
    // At most two batches, 70 cm, since the last checkpoint; then nothing.
    let (before, after) = (written(), written());
    assert!(after.iter().all(|number| before.contains(number)), "{before:?} {after:?}");
}

#[test]
fn with_a_full_disk_mapping_continues_and_the_loss_is_reported_until_there_is_space_again() {
    let drive = drive(200);
    let expected = finish(begin(), &drive);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    let mut measurements = drive.iter().copied();
    measurements.by_ref().take(101).for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let kept = robot.mapper.progress().steps;
    assert_eq!(robot.status().lost, None);

    robot.database().fill(true);
    measurements.by_ref().take(200).for_each(|measurement| robot.measure(measurement, true));
    robot.sync();
    let status = robot.status();
    assert!(status.lost.as_ref().is_some_and(|reason| reason.contains("no storage space")), "{:?}", status.lost);
    // What was written before is still valid, and so is what had space.
    let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
    let reached = recovered.mapper.progress().steps;
    assert!(reached >= kept && recovered.findings.is_empty(), "{kept} {reached} {:?}", recovered.findings);
    // Every step that came since is counted, as soon as the writing thread has seen it.
    while reached + robot.status().lost_steps < robot.mapper.progress().steps {
        std::thread::yield_now();
    }
    assert!(finish(recovered.mapper, &drive) == expected);

    robot.database().fill(false);
    robot.wait_until_safe();
    measurements.for_each(|measurement| robot.measure(measurement, true));
    let mapper = robot.close();
    assert!(state(&recover(&map_in(&folder), Gaps::Stop).mapper) == state(&mapper));
    assert!(state(&mapper) == expected, "mapping was not affected");
    // Steps are lost on a full disk, observations are not.
    assert_folds(&map_in(&folder), &mapper);
}

#[test]
fn an_unavailable_folder_is_used_once_it_is_available_and_another_map_there_is_set_aside() {
    let measurements = drive(120);
    let disk = tempfile::tempdir().unwrap();
    let path = disk.path().join("maps/map.magmap");
    // Where the folder should be there is a file.
    fs::write(disk.path().join("maps"), "").unwrap();
    let mut robot = Robot::start(&path, begin());
    measurements[..100].iter().for_each(|&measurement| robot.measure(measurement, true));
    while robot.status().lost.is_none() {
        std::thread::yield_now();
    }
    // The disk comes back, with the previous map.
    fs::remove_file(disk.path().join("maps")).unwrap();
    fs::create_dir(disk.path().join("maps")).unwrap();
    fs::write(&path, "previous").unwrap();
    robot.wait_until_safe();
    measurements[100..200].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let mut files = fs::read_dir(disk.path().join("maps")).unwrap().map(|entry| entry.unwrap().path());
    let kept = files.find(|file| siblings(&path).all(|own| own != *file)).expect("what was there");
    assert_eq!(fs::read_to_string(kept).unwrap(), "previous");
    // The file vanishes; the map, with the tiles that have not changed since, and its trajectory are in a new one.
    siblings(&path).for_each(|file| drop(fs::remove_file(file)));
    robot.log.checkpoint(&robot.mapper);
    measurements[200..].iter().for_each(|&measurement| robot.measure(measurement, true));
    let mapper = robot.close();
    assert!(
        state(&mapper) == finish(begin(), &measurements) && state(&recover(&path, Gaps::Stop).mapper) == state(&mapper)
    );
    assert_folds(&path, &mapper);
}

#[test]
fn a_robot_that_stands_still_does_not_fill_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    let measurement = drive(1)[0];
    for _ in 0..3 * MOST_STEPS + 100 {
        robot.measure(measurement, true);
        if robot.mapper.progress().steps.is_multiple_of(10_000) {
            robot.sync();
        }
    }
    robot.sync();
    assert_eq!(robot.mapper.progress().versions, 0);
    assert_eq!(robot.database().checkpoints().unwrap(), [(3 * MOST_STEPS, false), (2 * MOST_STEPS, false)]);
    assert_eq!(robot.database().numbers("steps").len() as u64, MOST_STEPS + 100);
}

#[test]
fn a_slow_disk_is_not_waited_for_and_catches_up() {
    let measurements = drive(120);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    robot.sync();
    let database = robot.database();
    let hanging = database.hang();
    measurements.iter().for_each(|&measurement| robot.measure(measurement, false));
    // Everything is mapped, and nothing written yet.
    assert!(robot.status().is_behind && robot.mapper.progress().versions > 20 && robot.status().written == 0);
    drop(hanging);
    robot.sync();
    // Even without further steps the status is updated.
    while robot.status().is_behind {
        std::thread::yield_now();
    }
    let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_checkpoint_that_is_written_late_keeps_what_was_learnt_since() {
    let measurements = drive(120);
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    robot.sync();
    let database = robot.database();
    let hanging = database.hang();
    measurements[..120].iter().for_each(|&measurement| robot.measure(measurement, false));
    robot.log.checkpoint(&robot.mapper);
    let learnt = robot.mapper.model().totals.batches();
    measurements[120..].iter().for_each(|&measurement| robot.measure(measurement, false));
    assert!(robot.mapper.model().totals.batches() > learnt + 5);
    drop(hanging);
    robot.sync();
    let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    let mapper = robot.close();
    assert_folds(&map_in(&folder), &mapper);
}

#[test]
fn with_a_disk_that_hangs_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    robot.sync();
    let database = robot.database();
    let hanging = database.hang();
    for _ in 0..MAX_WAITING + 30_000 {
        robot.take(Step::Flush, false);
    }
    let status = robot.status();
    assert!(status.lost.is_some_and(|reason| reason.contains("steps behind")));
    assert!(status.lost_steps > 0 && status.lost_steps <= 30_000, "{}", status.lost_steps);
    drop(hanging);
    robot.wait_until_safe();
    robot.take(Step::Flush, false);
    robot.sync();
    assert_eq!(robot.status().lost, None);
    let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
    assert!(state(&recovered.mapper) == state(&robot.mapper));
}

#[test]
fn a_tile_that_cannot_be_written_stays_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin_tiled());
    let measurements = drive(200);
    measurements[..200].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    robot.database().fill(true);
    measurements[200..].iter().for_each(|&measurement| robot.measure(measurement, true));
    let mut uninterrupted = begin_tiled();
    let expected = finish(std::mem::replace(&mut uninterrupted, begin()), &measurements);
    assert!(state(&robot.mapper) == expected);
}

#[test]
fn a_map_that_replaces_another_is_a_checkpoint_and_what_came_before_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    let measurements = drive(60);
    measurements[..50].iter().for_each(|&measurement| robot.measure(measurement, true));
    let saved = state(&robot.mapper);
    robot.log.handle().save(&robot.mapper).unwrap();
    measurements[50..].iter().for_each(|&measurement| robot.measure(measurement, true));
    // As the mapping thread does it.
    robot.mapper.take(Step::Load(Box::new(saved.map())), &StopSignal::default());
    robot.log.checkpoint(&robot.mapper);
    measurements[70..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let recovered = recover(&map_in(&copy(&map_in(&folder))), Gaps::Stop);
    assert!(state(&recovered.mapper) == state(&robot.mapper));
    assert!(robot.database().saved().unwrap() == saved);
    let mapper = robot.close();
    assert_folds(&map_in(&folder), &mapper);
}

#[test]
fn nothing_is_written_before_a_reading_is_used_and_everything_from_then_on() {
    let measurements = drive(30);
    let folder = tempfile::tempdir().unwrap();
    let options = Options { waits: true, earlier_maps: 100, ..Options::default() };
    let mapper = begin();
    let log = MapLog::create(map_in(&folder), &mapper, options).unwrap();
    let mut robot = Robot { mapper, log };
    robot.take(Step::Source { id: SourceId::robot("/magmap"), run: "1".into() }, true);
    robot.measure(Input::Mount(Isometry3::translation(0.1, 0.0, 0.2)), true);
    let mut other = config();
    other.selection.delta = 0.1;
    robot.take(Step::Configure(Box::new(other)), true);
    let is_reading = |measurement: &&Measurement| matches!(measurement, Measurement::Reading(_));
    measurements.iter().filter(|m| !is_reading(m)).take(3).for_each(|&pose| robot.measure(pose, true));
    robot.sync();
    assert!(!map_in(&folder).exists() && robot.status() == MapLogStatus { waits: true, ..MapLogStatus::default() });
    measurements[6..].iter().for_each(|&measurement| robot.measure(measurement, true));
    robot.sync();
    let crash = copy(&map_in(&folder));
    assert!(state(&recover(&map_in(&crash), Gaps::Stop).mapper) == state(&robot.mapper));
    assert_eq!(recover(&map_in(&crash), Gaps::Stop).mapper.config().selection.delta, 0.1);
    // An unfinished map is opened, read and locked without a change of any byte.
    let contents = || siblings(&map_in(&crash)).map(|path| fs::read(path).ok()).collect::<Vec<_>>();
    let before = contents();
    let robot = Robot::resume(open(&map_in(&crash), Gaps::Skip).unwrap(), true);
    assert!(matches!(Database::open(map_in(&crash)), Err(super::Error::InUse { .. })));
    robot.close();
    assert!(contents() == before);
}

#[test]
fn two_processes_cannot_have_a_file_and_readers_see_that_it_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut robot = Robot::start(&map_in(&folder), begin());
    robot.sync();
    for error in [Database::open(map_in(&folder)), Database::open_to_read(map_in(&folder))] {
        let message = error.unwrap_err().to_string();
        assert!(message.contains("is being written by another process; stop it first"), "{message}");
    }
    robot.close();
    let readers = [(); 2].map(|()| Database::open_to_read(map_in(&folder)).unwrap());
    assert!(readers.iter().all(|reader| reader.trajectory().unwrap().is_empty()));
}

#[test]
fn what_is_not_a_map_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("empty.magmap"), "").unwrap();
    fs::write(path("picture.magmap"), vec![0x89; 5000]).unwrap();
    let other = rusqlite::Connection::open(path("other.magmap")).unwrap();
    other.execute_batch("CREATE TABLE topics (id INTEGER)").unwrap();
    Robot::start(&path("newer.magmap"), begin()).close();
    Robot::start(&path("view.magmap"), begin()).close();
    let newer = rusqlite::Connection::open(path("newer.magmap")).unwrap();
    newer.pragma_update(None, "user_version", 9).unwrap();
    let view = rusqlite::Connection::open(path("view.magmap")).unwrap();
    view.execute_batch("DROP TABLE batches; CREATE VIEW batches AS SELECT 1").unwrap();
    drop((other, newer, view));
    for (name, expected) in [
        ("missing.magmap", "No such file"),
        ("empty.magmap", "expected a map of magmap, found an empty file"),
        ("picture.magmap", "expected a map of magmap, found another file, or a damaged one"),
        ("other.magmap", "expected a map of magmap, found another database"),
        ("newer.magmap", "expected version 1 of the format, found version 9"),
        ("view.magmap", "expected a map of magmap, found a database with other tables"),
    ] {
        let message = map_file::read(&path(name)).unwrap_err().to_string();
        assert!(message.starts_with("cannot read the map /") && message.contains(expected), "{message}");
    }
    assert!(!sibling(&path("missing.magmap"), "-wal").exists() && !path("missing.magmap").exists());
}

#[test]
fn files_of_tiles_alone_are_temporary() {
    use crate::arrays::Arrays;
    use crate::field::tile_store::{StoredTile, TileRow, TileStore};
    let database: Arc<dyn TileStore> = Arc::new(Database::temporary().unwrap());
    let mut arrays = Arrays::default();
    arrays.add("mean", &[], [-0.0]);
    let tile = TileRow { square: [-3, i64::MAX], targets: u64::MAX, learnt: 2, own: 1, arrays };
    let numbers = [(); 2].map(|()| database.write(&tile).unwrap());
    assert!(database.is_ready() && database.read(numbers[1]).unwrap() == tile);
    drop(StoredTile::new(Arc::clone(&database), numbers[0]));
    assert!(database.read(numbers[0]).is_err() && database.read(numbers[1]).is_ok());
}
