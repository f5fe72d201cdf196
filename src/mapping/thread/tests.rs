use crossbeam_channel::Receiver;
use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};

use super::*;
use crate::config;
use crate::mapping::batcher::CutReason;
use crate::mapping::mapper::SourceId;
use crate::mapping::pipeline::Pipeline;
use crate::sensing::intake::Input;
use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use crate::sensing::rejection::Rejection;
use crate::store::checkpoint::Checkpoint;

const SOON: Duration = Duration::from_secs(20);

type Observed = Vec<(Vec<Observation>, Arc<Update>)>;

/// The observations and updates that the observer was called with.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Observed>>);

impl Seen {
    fn stamps(&self) -> Vec<i64> {
        let stamp = |observation: &Observation| observation.stamp.nanoseconds() / 20_000_000;
        lock(&self.0).iter().flat_map(|(observations, _)| observations).map(stamp).collect()
    }

    fn batches(&self) -> Vec<usize> {
        lock(&self.0).iter().map(|(observations, _)| observations.len()).collect()
    }
}

/// A mapping thread whose updates are recorded and, with a gate, wait for a token each before they are published.
fn spawn(config: &Config, mode: Mode, gate: Option<Receiver<()>>) -> (MappingThread, Seen) {
    let seen = Seen::default();
    let stop = Arc::new(Mutex::new(StopSignal::default()));
    let observer: Observer = Box::new({
        let (seen, stop) = (seen.clone(), Arc::clone(&stop));
        move |observations, update| {
            while gate.as_ref().is_some_and(|gate| gate.recv_timeout(Duration::from_millis(5)).is_err()) {
                if lock(&stop).is_stopped() {
                    break;
                }
            }
            lock(&seen.0).push((observations.to_vec(), Arc::clone(update)));
        }
    });
    let mapping = MappingThread::start(mode, Mapper::new(config), None, Some(observer)).unwrap();
    *lock(&stop) = mapping.stop.clone();
    (mapping, seen)
}

fn observations(update: &Update) -> u64 {
    update.map.as_ref().map_or(0, |map| map.totals.observations)
}

/// Every reading an observation, ten of them a batch.
fn config(inbox: usize, max_merged: usize) -> Config {
    let mut config = Config::default();
    config.averaging.spacing = 0.0;
    config.batch = config::Batch { max_observations: 10, max_path: 0.0, max_duration: 0.0 };
    config.mapping = config::Mapping { inbox, max_merged };
    config
}

fn pair(index: usize) -> [Measurement; 2] {
    let stamp = Stamp::from_nanoseconds(index as i64 * 20_000_000);
    let position = Point3::new(0.01 * index as f64, 0.0, 0.0);
    let field = MagneticField::from_microtesla(Vector3::new(50.0, 0.0, 0.0).add_scalar(1e-6 * index as f64));
    [
        Measurement::Pose(Pose { stamp, position, orientation: UnitQuaternion::identity() }),
        Measurement::Reading(Reading { stamp, field }),
    ]
}

#[test]
fn offline_a_slow_learner_loses_nothing_and_every_batch_is_an_update() {
    let (open, gate) = bounded(1000);
    // An inbox of 4 in front of a learner that waits: the source has to wait too.
    let (mapping, seen) = spawn(&config(4, 5000), Mode::WaitForLearning, Some(gate));
    let source = std::thread::spawn({
        let inbox = mapping.inbox.clone();
        move || (0..105).flat_map(pair).try_for_each(|measurement| inbox.send(measurement))
    });
    for _ in 0..11 {
        open.send(()).unwrap();
    }
    source.join().unwrap().unwrap();
    let finished = mapping.join().unwrap();
    assert_eq!(seen.stamps(), (0..105).collect::<Vec<_>>());
    assert_eq!(seen.batches(), [[10; 10].as_slice(), &[5]].concat());
    let updates = lock(&seen.0);
    let [fourth, last] = [3, 10].map(|index| (updates[index].1.number, observations(&updates[index].1)));
    assert_eq!((fourth, last), ((3, 40), (10, 105)));
    assert_eq!((finished.status.updates, finished.status.merged_batches), (11, 0));
    assert_eq!((finished.status.lost_readings, finished.status.counters.used_readings), (0, 105));
}

#[test]
fn live_waiting_batches_are_merged_and_every_observation_is_learnt_once() {
    let (open, gate) = bounded(1000);
    let (mapping, seen) = spawn(&config(1000, 40), Mode::MergeWaiting, Some(gate));
    let inbox = &mapping.inbox;
    for measurement in (0..105).flat_map(pair) {
        assert!(inbox.offer(measurement).unwrap());
    }
    for _ in 0..20 {
        open.send(()).unwrap();
    }
    let finished = mapping.join().unwrap();
    assert_eq!(seen.stamps(), (0..105).collect::<Vec<_>>());
    // While the first update waited the rest came in; at least the second update must then be a merged one.
    let batches = seen.batches();
    assert!(batches.iter().all(|&size| size <= 40) && batches.contains(&40), "{batches:?}");
    assert_eq!(finished.status.updates + finished.status.merged_batches, finished.status.counters.batches);
    assert_eq!(finished.status.updates as usize, batches.len());
    let seen = lock(&seen.0);
    let largest = seen.iter().map(|(_, update)| &update.merge_points).find(|merge_points| merge_points.len() == 3);
    let largest = largest.expect("an update of four batches");
    let places: Vec<usize> = largest.iter().map(|point| point.observations).collect();
    assert_eq!(places, [10, 20, 30]);
    assert!(largest.iter().all(|point| point.cut == CutReason::Count));
}

#[test]
fn live_a_full_inbox_counts_what_it_loses() {
    let (open, gate) = bounded(1000);
    let (mapping, seen) = spawn(&config(20, 20), Mode::MergeWaiting, Some(gate));
    let inbox = &mapping.inbox;
    let mut lost = [0_u64; 2];
    for [pose, reading] in (0..500).map(pair) {
        lost[0] += u64::from(!inbox.offer(pose).unwrap());
        lost[1] += u64::from(!inbox.offer(reading).unwrap());
    }
    // At most 10 observations in the running update, 30 ready, 20 messages in the inbox: most of 500 did not fit.
    assert!(lost[1] > 400, "{lost:?}");
    let status = mapping.status();
    assert_eq!([status.lost_poses, status.lost_readings], lost);
    for _ in 0..100 {
        open.send(()).unwrap();
    }
    let finished = mapping.join().unwrap();
    let counters = finished.status.counters;
    assert_eq!(counters.readings + lost[1], 500);
    assert_eq!(counters.used_readings + counters.rejections.readings(), counters.readings);
    assert_eq!(seen.stamps().len() as u64, counters.used_readings);
    assert_eq!(finished.status.lost_readings, lost[1]);
}

#[test]
fn a_flush_returns_when_everything_before_is_in_the_map() {
    for mode in [Mode::WaitForLearning, Mode::MergeWaiting] {
        let (mapping, _) = spawn(&config(100, 5000), mode, None);
        let inbox = &mapping.inbox;
        (0..13).flat_map(pair).for_each(|measurement| inbox.send(measurement).unwrap());
        mapping.flush().unwrap();
        let newest = mapping.updates.newest().expect("an update");
        assert_eq!((observations(&newest), newest.cut), (13, CutReason::Flush));
        assert_eq!(mapping.status().counters.used_readings, 13);
        // An empty flush makes no update.
        mapping.flush().unwrap();
        assert_eq!(mapping.status().updates, newest.number + 1);
    }
}

#[test]
fn the_map_is_inspected_and_changed_between_batches() {
    let (mapping, _) = spawn(&config(100, 5000), Mode::MergeWaiting, None);
    (0..13).flat_map(pair).for_each(|measurement| mapping.inbox.send(measurement).unwrap());
    let used = |pipeline: &Pipeline| pipeline.counters().used_readings;
    let seen = mapping.inspect(move |mapper| (used(mapper.pipeline()), mapper.model().totals.observations)).unwrap();
    assert_eq!(seen, (13, 10), "the batch of ten is learnt, the open one is not closed");
    assert_eq!(mapping.updates.newest().unwrap().number, 0);
    let empty = Checkpoint::of(&Mapper::new(&config(100, 5000))).unwrap().map();
    let load = |is_wanted: bool| {
        let source = Step::Source { id: SourceId::robot("robot"), run: "1".into() };
        let steps = if is_wanted { vec![Step::Load(Box::new(empty.clone())), source] } else { Vec::new() };
        mapping.change(move |_| (is_wanted, steps)).unwrap()
    };
    assert!(!load(false));
    assert_eq!(mapping.updates.newest().unwrap().number, 0, "the map stays");
    assert!(load(true));
    let newest = mapping.updates.newest().unwrap();
    assert_eq!((newest.number, observations(&newest), newest.observations), (1, 0, 0));
    assert_eq!(mapping.status().updates, 1, "another map is no update");
    let finished = mapping.join().unwrap();
    assert_eq!(finished.mapper.model().totals.batches(), 0, "the open batch belonged to the replaced map");
}

#[test]
fn a_mount_takes_effect_in_order_even_through_a_full_inbox() {
    let (open, gate) = bounded(1000);
    let (mapping, seen) = spawn(&config(4, 5000), Mode::WaitForLearning, Some(gate));
    let source = std::thread::spawn({
        let inbox = mapping.inbox.clone();
        move || {
            for (index, pair) in (0..30).map(pair).enumerate() {
                if index % 10 == 5 {
                    inbox.send(Input::Mount(Isometry3::translation(0.0, index as f64, 0.0)))?;
                }
                pair.into_iter().try_for_each(|measurement| inbox.send(measurement))?;
            }
            inbox.send(Input::Mount(Isometry3::translation(0.0, f64::NAN, 0.0)))
        }
    });
    (0..3).for_each(|_| open.send(()).unwrap());
    let error = source.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::MountNotFinite(_)), "{error}");
    let inbox = mapping.inbox.clone();
    mapping.join().unwrap();
    let seen = lock(&seen.0);
    let observations = seen.iter().flat_map(|(observations, _)| observations);
    let heights: Vec<f64> = observations.map(|observation| observation.position.y).collect();
    assert_eq!(heights, [[0.0; 5].as_slice(), &[5.0; 10], &[15.0; 10], &[25.0; 5]].concat());
    assert!(matches!(inbox.send(Input::Mount(Isometry3::identity())), Err(Error::Closed)));
}

#[test]
fn the_last_rejections_are_in_the_final_status() {
    let (mapping, _) = spawn(&config(100, 5000), Mode::WaitForLearning, None);
    let [pose, reading] = pair(0);
    let [_, later] = pair(1);
    [pose, reading, later].into_iter().for_each(|measurement| mapping.inbox.send(measurement).unwrap());
    mapping.flush().unwrap();
    let status = mapping.join().unwrap().status;
    assert_eq!((status.updates, status.counters.rejections.of(Rejection::NoLaterPose)), (1, 1));
}

#[test]
fn stop_ends_a_running_update_and_keeps_what_was_sent() {
    // This gate is never opened.
    let (_open, gate) = bounded(1);
    let (mapping, seen) = spawn(&config(1000, 5000), Mode::WaitForLearning, Some(gate));
    (0..35).flat_map(pair).for_each(|measurement| mapping.inbox.send(measurement).unwrap());
    assert!(mapping.updates.newest().is_none());
    mapping.stop.stop();
    assert!(mapping.stop.is_stopped());
    mapping.join().unwrap();
    assert_eq!(seen.batches(), [10, 10, 10, 5]);
}

#[test]
fn a_panic_on_the_thread_is_reported_and_nothing_hangs() {
    let observer: Observer = Box::new(|_, update| assert!(update.number == 0, "the second update broke"));
    let mapping =
        MappingThread::start(Mode::WaitForLearning, Mapper::new(&config(4, 5000)), None, Some(observer)).unwrap();
    let inbox = mapping.inbox.clone();
    let sent = (0..1000).flat_map(pair).try_for_each(|measurement| inbox.send(measurement));
    assert!(matches!(sent, Err(Error::Closed)));
    assert!(matches!(inbox.offer(pair(0)[0]), Err(Error::Closed)));
    assert!(matches!(mapping.flush(), Err(Error::Closed)));
    assert!(matches!(mapping.inspect(|_| ()), Err(Error::Closed)));
    let updates = mapping.updates.clone();
    assert_eq!(observations(&updates.newest().unwrap()), 10);
    let Err(Error::Panicked(message)) = mapping.join() else { panic!("expected the panic") };
    assert!(message.starts_with("the second update broke"), "{message}");
}

#[test]
fn dropping_every_sender_finishes_the_map() {
    let (mapping, _) = spawn(&config(100, 5000), Mode::WaitForLearning, None);
    let (inbox, updates) = (mapping.inbox.clone(), mapping.updates.clone());
    (0..13).flat_map(pair).for_each(|measurement| inbox.send(measurement).unwrap());
    drop((mapping, inbox));
    let start = Instant::now();
    while updates.newest().is_none_or(|newest| observations(&newest) < 13) {
        assert!(start.elapsed() < SOON, "the last batch is not learnt");
        std::thread::yield_now();
    }
}
