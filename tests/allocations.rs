//! Between conversion and batch nothing is allocated per reading: a robot that drives for days must not fragment its memory.
//!
//! The allocator counts for the whole process, so this file holds a single test.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait; this one passes everything on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use magmap::config::{Batch, Config};
use magmap::mapping::mapper::{Mapper, Step};
use magmap::mapping::pipeline::Pipeline;
use magmap::mapping::step_log::StepLog;
use magmap::mapping::stop::StopSignal;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap::store::map_log::{MapLog, Options};
use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// Counts, and forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Measurements that a source sends for message number `index`: a turning drive at 50 Hz in tesla, poses 3 ms after the
/// readings, with a spike, a repeated pose and a weak reading now and then.
fn converted(index: usize) -> [Measurement; 2] {
    let time = index as i64 * 20_000_000;
    let angle = index as f64 * 1e-3;
    let spike = if index % 97 == 13 { 1e-4 } else { 0.0 };
    let weakness = if index % 101 == 7 { 0.0 } else { 1.0 };
    let axes =
        Vector3::new(2e-5 + 1e-6 * angle.sin() + spike, 1e-6 * angle.cos(), -4e-5 + 1e-7 * angle.sin()) * weakness;
    let pose = Pose {
        stamp: Stamp::from_nanoseconds(if index % 89 == 5 { time - 17_000_000 } else { time + 3_000_000 }),
        position: Point3::new(5.0 * angle.cos(), 5.0 * angle.sin(), 0.0),
        orientation: UnitQuaternion::from_euler_angles(0.0, 0.0, angle),
    };
    let reading = Reading { stamp: Stamp::from_nanoseconds(time), field: MagneticField::from_tesla(axes) };
    [Measurement::Reading(reading), Measurement::Pose(pose)]
}

const WARM_UP: usize = 5_000;
const MEASURED: usize = 20_000;

#[test]
fn readings_become_batches_and_steps_in_the_file_without_an_allocation_each() {
    let mut config = Config::default();
    config.batch.max_observations = 50;
    for spacing in [0.05, 0.0] {
        config.averaging.spacing = spacing;
        through_the_pipeline(&config);
        through_the_thread(&config);
    }
    into_the_file();
}

fn through_the_pipeline(config: &Config) {
    let mut pipeline = Pipeline::new(config, Isometry3::translation(0.1, 0.0, 0.2));
    let mut feed = |range: std::ops::Range<usize>| {
        for measurement in range.flat_map(converted) {
            pipeline.ingest(measurement);
            while pipeline.next_batch().is_some() {}
        }
        *pipeline.counters()
    };
    let before = feed(0..WARM_UP);
    let mut after = before;
    let allocations = allocations(|| after = feed(WARM_UP..WARM_UP + MEASURED));
    let batches = after.batches - before.batches;
    assert!(after.used_readings - before.used_readings > MEASURED as u64 * 9 / 10, "{after:?}");
    assert!(after.rejections.total() > 400 && batches > 20, "{after:?}");
    // Its observations are all that a batch allocates. One may still be open at either end, and the thread of the test runner
    // allocates a few times while it starts.
    assert!(allocations <= batches + 10, "{allocations} allocations for {batches} batches of {MEASURED} readings");
}

fn through_the_thread(config: &Config) {
    // Learning allocates: no batch is completed, only collected. What is collected is learnt at the end, as fast as it can be.
    let mut config = config.clone();
    config.learning.max_evaluations = 0;
    config.batch = Batch { max_observations: usize::MAX, max_path: 0.0, max_duration: 0.0 };
    let mapping = MappingThread::start(Mode::WaitForLearning, Mapper::new(&config), None, None).unwrap();
    let feed = |range: std::ops::Range<usize>| {
        range.flat_map(converted).for_each(|measurement| mapping.inbox.send(measurement).unwrap());
        mapping.inspect(|mapper| mapper.pipeline().counters().observations).unwrap()
    };
    let before = feed(0..WARM_UP);
    let mut observations = 0;
    let allocations = allocations(|| observations = feed(WARM_UP..WARM_UP + MEASURED) - before);
    assert!(observations > 0);
    // A batch that doubles its capacity a few times, an inspection, and threads that sleep and wake.
    assert!(allocations <= 60, "{allocations} allocations for {MEASURED} readings");
    mapping.join().unwrap();
}

/// Keeping a step allocates neither on the mapping thread nor on the one that writes.
fn into_the_file() {
    let config = Config::default();
    let folder = tempfile::tempdir().unwrap();
    let mut mapper = Mapper::new(&config);
    let mut log = MapLog::create(folder.path().join("map.magmap"), &mapper, Options::default()).unwrap();
    let stop = StopSignal::default();
    let mut append = |range: std::ops::Range<usize>| {
        for measurement in range.flat_map(converted) {
            let number = mapper.progress().steps;
            log.append(&mapper, &Step::Input { index: number, input: measurement.into() });
            // A step that changes nothing but the number of the next one.
            mapper.take(Step::Learn { batches: 1 }, &stop);
            if number.is_multiple_of(1000) {
                log.sync(true);
            }
        }
        log.sync(true);
        log.handle().status().written
    };
    append(0..WARM_UP);
    let mut written = 0;
    let allocations = allocations(|| written = append(WARM_UP..WARM_UP + MEASURED));
    assert_eq!(written, 2 * (WARM_UP + MEASURED) as u64);
    // A few for each of some 45 transactions, and for threads that sleep and wake.
    assert!(allocations < 400, "{allocations} allocations for {MEASURED} readings and poses");
    Box::new(log).close(None);
}
