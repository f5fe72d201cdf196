//! Days of driving in one room: neither the map nor the process may grow without limit.
//!
//! The short drive runs with the other tests. A whole day takes a third of an hour:
//!
//! ```sh
//! cargo test --release --test soak -- --ignored --nocapture
//! ```

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use magmap::config::Config;
use magmap::field::raster::{Rasterizer, rasterize};
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{Finished, MappingThread, Mode, Observer};
use magmap::store::map_file;
use magmap::store::map_log::{MapLog, Options};
use magmap_tools::replay::TruthComparison;
use magmap_tools::simulation::{DipoleOptions, RobotOptions, Route, Simulation};

/// A sample after an update.
#[derive(Clone, Copy)]
struct Sample {
    /// Seconds driven.
    time: f64,
    inducing_points: usize,
    /// Multiplications and additions, estimated from the sizes of the matrices.
    work: f64,
    /// Resident memory of the process, in bytes; sampled at intervals.
    resident: Option<f64>,
    /// Number of open files; sampled at intervals.
    handles: Option<usize>,
}

/// A slow robot, such as a cleaning robot. It drives along the walls again and again: what it has never seen would have to be added
/// to the map however late it comes.
fn simulation(size: f64, hours: f64) -> Simulation {
    let sources = |density: f64| (density * size * size).round() as usize;
    let world = DipoleOptions { size: [size, size], under: sources(0.6), beside: sources(0.3), ..Default::default() };
    let robot = RobotOptions { speed: 0.3, ..Default::default() };
    Simulation { seed: 3, world, route: Route::Patrol, robot, duration: 3600.0 * hours }
}

/// Drives, maps, draws and writes the map, all in this process.
fn soak(simulation: &Simulation) -> (Vec<Sample>, Finished) {
    let config = Config::default();
    let folder = tempfile::tempdir().unwrap();
    let mapper = Mapper::new(&config);
    let map = folder.path().join("map.magmap");
    let log = MapLog::create(&map, &mapper, Options::default()).unwrap();
    let handle = log.handle();
    let samples = Arc::new(Mutex::new(Vec::new()));
    let observer: Observer = Box::new({
        let samples = Arc::clone(&samples);
        let mut rasterizer = Rasterizer::new(&config.raster);
        move |_, update| {
            let (Some(map), Some(result)) = (&update.map, &update.result) else { panic!("nothing was learnt") };
            let report = result.as_ref().expect("no batch is rejected");
            let is_looked_at = update.number % 20 == 0;
            if is_looked_at {
                rasterizer.rasterize(map, &map.extent).expect("the room can be drawn");
            }
            let points = map.size();
            samples.lock().unwrap().push(Sample {
                time: map.stamp.nanoseconds() as f64 * 1e-9,
                inducing_points: points,
                // An evaluation whitens the rows, then triangularizes them under what was known (Householder), forwards and back.
                work: (report.learning.evaluations.max(1) * (report.rows + points) * points * points) as f64,
                resident: is_looked_at.then(resident),
                handles: is_looked_at.then(handles),
            });
        }
    });
    let step_log = Some(Box::new(log) as _);
    let mapping = MappingThread::start(Mode::WaitForLearning, mapper, step_log, Some(observer)).unwrap();
    let inbox = &mapping.inbox;
    for sample in simulation.drive(simulation.world().unwrap()).unwrap() {
        inbox.send(sample.measurement).unwrap();
    }
    let finished = mapping.join().unwrap();
    assert_eq!(handle.status().lost, None);
    let read = map_file::read(&map).unwrap();
    assert!(read.stream.progress == *finished.mapper.progress());
    let samples = std::mem::take(&mut *samples.lock().unwrap());
    (samples, finished)
}

fn resident() -> f64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    4096.0 * pages
}

fn handles() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Means over a part of the samples.
struct Means {
    inducing_points: f64,
    resident: f64,
    handles: f64,
    work: f64,
}

fn means(samples: &[Sample]) -> Means {
    let mean = |value: &dyn Fn(&Sample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(value).collect();
        assert!(!values.is_empty());
        values.iter().sum::<f64>() / values.len() as f64
    };
    Means {
        inducing_points: mean(&|sample| Some(sample.inducing_points as f64)),
        resident: mean(&|sample| sample.resident),
        handles: mean(&|sample| sample.handles.map(|handles| handles as f64)),
        work: mean(&|sample| Some(sample.work)),
    }
}

/// The last quarter of the drive equals the second one within limits, and the map is accurate.
fn check(simulation: &Simulation) {
    let started = Instant::now();
    let (samples, finished) = soak(simulation);
    let start = simulation.robot.start.nanoseconds() as f64 * 1e-9;
    let part = |from: f64, to: f64| {
        let within = |sample: &&Sample| (from..to).contains(&((sample.time - start) / simulation.duration));
        means(&samples.iter().filter(within).copied().collect::<Vec<_>>())
    };
    eprintln!(
        "{:>6} {:>17} {:>14} {:>8} {:>18}",
        "hours", "inducing points", "resident (MB)", "handles", "work per update"
    );
    for step in 0..12 {
        let [from, to] = [step, step + 1].map(|step| f64::from(step) / 12.0);
        let Means { inducing_points, resident, handles, work } = part(from, to);
        let hours = to * simulation.duration / 3600.0;
        eprintln!("{hours:>6.1} {inducing_points:>17.1} {:>14.1} {handles:>8.1} {work:>18.3e}", resident * 1e-6);
    }
    let counters = finished.status.counters;
    let comparison = compare(simulation, &finished);
    eprintln!(
        "{} readings in {} updates over {:.1} km, in {:.0} s; {comparison:?}",
        counters.readings,
        finished.status.updates,
        counters.travelled * 1e-3,
        started.elapsed().as_secs_f64()
    );

    let (second, last) = (part(0.25, 0.5), part(0.75, 1.0));
    let close = |name: &str, second: f64, last: f64, tolerance: f64| {
        assert!(
            (last - second).abs() <= tolerance * second,
            "{name}: {second} in the second quarter, {last} in the last"
        );
    };
    close("inducing points", second.inducing_points, last.inducing_points, 0.05);
    // In a short drive the path still grows to its 20,000 points, of which a checkpoint has copies.
    let copies = 2e6 / second.resident;
    close(
        "resident memory",
        second.resident,
        last.resident,
        if simulation.duration < 86_400.0 { copies } else { 0.05 },
    );
    close("work per update", second.work, last.work, 0.1);
    // A checkpoint may be open while they are counted.
    assert!((second.handles - last.handles).abs() < 1.0, "handles: {} and {}", second.handles, last.handles);
    assert_eq!(counters.readings, (simulation.duration * simulation.robot.magnetometer_rate).round() as u64);
    assert_eq!(counters.rejections.total(), 0);
    // The field has a standard deviation of 10 microtesla; what the model leaves out on purpose, and says it does, are 2 of them.
    // In a small room a third of the cells lie between the robot's path and the walls, where the field is steepest.
    let least_coverage = if simulation.world.size[0] < 5.0 { 0.85 } else { 0.9 };
    assert!(comparison.rmse < 2.5 && comparison.coverage > least_coverage, "{comparison:?}");
}

fn compare(simulation: &Simulation, finished: &Finished) -> TruthComparison {
    let config = Config::default();
    let map = finished.mapper.model().map().unwrap();
    let grid = rasterize(&config.raster, &map, &map.extent).unwrap();
    TruthComparison::within_room(&grid, &simulation.world().unwrap(), simulation.world.size, 50.0)
}

#[test]
fn hours_in_a_small_room_cause_no_growth() {
    check(&simulation(3.0, 2.0));
}

#[test]
#[ignore = "takes a third of an hour, with --release"]
fn a_day_in_one_room_causes_no_growth() {
    check(&simulation(10.0, 24.0));
}
