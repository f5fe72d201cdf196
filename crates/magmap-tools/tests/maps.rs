//! No sequence of starts, ends, kills, failed starts, reboots elsewhere, loads, saves, resets, corrections of the path, changes of the
//! building, merges and replays loses a published map or a reading, puts readings of one map into another, or maps anything twice: random
//! sequences in a real folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use magmap::config::Config;
use magmap::field::model::FieldModel;
use magmap::mapping::mapper::{Mapper, Step};
use magmap::mapping::stop::StopSignal;
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};
use magmap::session::{self, Session};
use magmap::store::checkpoint::Checkpoint;
use magmap::store::list::{State, list};
use magmap::store::map_file;
use magmap::store::map_file::{InitialMap, named};
use magmap::store::status::MapLogStatus;
use magmap::store::{self, Database};
use magmap::trajectory::{self, Withdrawal};
use magmap_tools::merge;
use nalgebra::{Isometry2, Point3, UnitQuaternion, Vector3};
use proptest::prelude::*;
use proptest::sample::select;

/// Distance between unrelated places, in metres.
const FAR: f64 = 1000.0;

/// Names of the maps of a path that another SLAM corrects, and of merged maps.
const CORRECTED: &str = "corrected";
const MERGED: &str = "merged";

/// Number of readings of a recording.
const RECORDED: usize = 30;

/// The driver of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Driver {
    /// A robot in this namespace.
    Robot(&'static str),
    /// A recording that is played, with its own map or (carelessly) with the robot's.
    Recording { name: &'static str, is_careless: bool },
}

#[derive(Clone, Debug)]
enum Action {
    /// Readings arrive and are learnt.
    Drive {
        readings: usize,
    },
    /// Only odometry or only readings arrive.
    Nothing {
        poses: bool,
    },
    /// Another SLAM moves everything that was driven in this run by this distance along x, in metres, where the run listens to one.
    Correct {
        by: f64,
    },
    /// The building has changed around the start of the map: what was observed there is withdrawn.
    Change,
    Save,
    Load,
    Reset,
}

/// A run: its driver, its settings, what happens in it and how it ends.
#[derive(Clone, Debug)]
struct Run {
    driver: Driver,
    resume: bool,
    load_at_start: bool,
    /// Settings of a different model: the start fails if there is a map.
    is_misconfigured: bool,
    /// The robot was carried elsewhere while it was off: its odometry says nothing about the map.
    is_carried: bool,
    /// Another SLAM corrects the path: its maps have a name and a frame of their own.
    is_corrected: bool,
    actions: Vec<Action>,
    is_killed: bool,
}

/// An event in the folder.
#[derive(Clone, Debug)]
enum Event {
    Run(Run),
    /// Two of the saved maps, counted in the order of their names and from the first again, are merged.
    Merge([usize; 2]),
}

fn driver() -> impl Strategy<Value = Driver> {
    prop_oneof![
        5 => select(vec![Driver::Robot(""), Driver::Robot("/robot1")]),
        2 => (select(vec!["lobby", "cellar"]), prop::bool::weighted(0.3))
            .prop_map(|(name, is_careless)| Driver::Recording { name, is_careless }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1_usize..25).prop_map(|readings| Action::Drive { readings }),
        1 => any::<bool>().prop_map(|poses| Action::Nothing { poses }),
        2 => (-0.5..0.5).prop_map(|by| Action::Correct { by }),
        1 => Just(Action::Change),
        1 => Just(Action::Save),
        1 => Just(Action::Load),
        1 => Just(Action::Reset),
    ]
}

prop_compose! {
    fn run()(
        driver in driver(),
        [resume, load_at_start] in [prop::bool::weighted(0.8), prop::bool::weighted(0.8)],
        is_misconfigured in prop::bool::weighted(0.1),
        is_carried in prop::bool::weighted(0.3),
        is_corrected in prop::bool::weighted(0.3),
        actions in prop::collection::vec(action(), 0..5),
        is_killed in prop::bool::weighted(0.4),
    ) -> Run {
        // A careless recording that loads the map would be added to it.
        let load_at_start = load_at_start && !matches!(driver, Driver::Recording { is_careless: true, .. });
        let is_robot = matches!(driver, Driver::Robot(_));
        let is_corrected = is_corrected && is_robot;
        // The other SLAM knows where it is.
        let is_carried = is_carried && is_robot && !is_corrected;
        Run { driver, resume, load_at_start, is_misconfigured, is_carried, is_corrected, actions, is_killed }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => run().prop_map(Event::Run),
        2 => any::<[usize; 2]>().prop_map(Event::Merge),
    ]
}

/// The test's knowledge of a folder of maps.
struct World {
    folder: PathBuf,
    /// The newest state of every map that was published.
    shown: Vec<Checkpoint>,
    /// The driver at each place.
    places: Vec<Driver>,
    /// Number of readings at each place.
    driven: BTreeMap<usize, usize>,
    /// The current time, in readings.
    now: usize,
}

impl World {
    fn settings(&self, run: &Run) -> Config {
        let mut config = Config::default();
        config.averaging.spacing = 0.0;
        config.batch.max_observations = 8;
        config.gates.max_speed = 0.0;
        config.gates.max_gradient = 0.0;
        config.learning.max_evaluations = 2;
        config.store.checkpoint_batches = 2;
        config.store.resume = run.resume;
        config.node.load_at_start = run.load_at_start;
        config.node.map_folder = self.folder.display().to_string();
        if run.is_misconfigured {
            config.model.mean = 1.0;
        }
        if run.is_corrected {
            config.slam.path_topic = "path".into();
            config.node.map_name = CORRECTED.into();
        }
        if let Driver::Recording { name, is_careless } = run.driver {
            config.node.recording = format!("{name}#fingerprint of {name}");
            if !is_careless {
                config.node.map_folder = self.folder.join("replays").display().to_string();
                config.node.map_name = name.into();
            }
        }
        config
    }

    fn go(&mut self, run: &Run) {
        let before = contents(&self.folder);
        let config = self.settings(run);
        let namespace = match run.driver {
            Driver::Robot(namespace) => namespace,
            Driver::Recording { .. } => "",
        };
        let session = match Session::start(&config, namespace, &format!("{namespace}/magmap")) {
            Ok(session) => session,
            Err(error) => {
                assert!(!matches!(error, session::Error::Map(store::Error::InUse { .. })), "{error}");
                assert_unchanged(&self.folder, &before, &format!("a start that failed with {error}"));
                return;
            }
        };
        let second = Session::start(&config, namespace, "second").expect_err("one process for each map");
        assert!(second.to_string().contains("is being written by another process"), "{second}");
        let mut place = self.place_of(&session, run.driver);
        if run.is_carried {
            place = self.new_place(run.driver);
        }
        let mut driven = Vec::new();
        let mut has_read = false;
        let mut played = 0;
        for action in &run.actions {
            match action {
                Action::Drive { readings } => {
                    let readings = match run.driver {
                        Driver::Recording { .. } => (*readings).min(RECORDED - played),
                        Driver::Robot(_) => *readings,
                    };
                    played += readings;
                    driven.extend(self.drive(&session, place, readings));
                    has_read |= readings > 0;
                }
                Action::Nothing { poses } => self.drive_without_effect(&session, place, *poses),
                Action::Correct { by } if run.is_corrected => correct(&session, &driven, *by),
                Action::Correct { .. } => {}
                Action::Change => session.mapping.change(|mapper| ((), withdraw(mapper))).unwrap(),
                Action::Save => drop(session.save()),
                Action::Load => {
                    let is_done = session.load().is_ok();
                    if is_done {
                        place = self.place_of_map(&session).unwrap_or(place);
                    }
                }
                Action::Reset => {
                    session.reset().unwrap();
                    // A recording continues to play at the same place.
                    if matches!(run.driver, Driver::Robot(_)) {
                        place = self.new_place(run.driver);
                    }
                }
            }
            self.record_published(&session);
        }
        if run.is_killed {
            wait_for_file(&session);
            let killed = tempfile::tempdir().unwrap();
            copy(&self.folder, killed.path());
            drop(session.end());
            fs::remove_dir_all(&self.folder).unwrap();
            copy(killed.path(), &self.folder);
        } else {
            session.end().unwrap();
            self.check_kept(&driven);
        }
        let is_asked =
            |action: &Action| !matches!(action, Action::Drive { .. } | Action::Nothing { .. } | Action::Correct { .. });
        if !has_read && !run.actions.iter().any(is_asked) {
            // What an earlier run drove without being found becomes a map of its own when the next one starts.
            let is_new_and_unplaced = |path: &Path| is_unplaced(path) && !before.contains_key(path);
            assert_unchanged_but(&self.folder, &before, "a run without a reading", is_new_and_unplaced);
        }
        self.check();
    }

    /// Merges two saved maps whose frames are the same, unless that would use an observation twice.
    fn merge(&mut self, pair: [usize; 2]) {
        let listed = list(&self.folder).unwrap().into_iter().filter(|map| map.state == State::Saved);
        let paths: Vec<PathBuf> = listed.map(|map| map.path).collect();
        if paths.is_empty() {
            return;
        }
        let first = pair[0] % paths.len();
        // The same map again only where it is the only one.
        let second = (first + 1 + pair[1] % paths.len().saturating_sub(1).max(1)) % paths.len();
        let pair = [first, second].map(|index| &paths[index]);
        let before = contents(&self.folder);
        let inputs: Result<Vec<_>, _> =
            pair.iter().map(|path| merge::Input::read(path, &Config::default().localization)).collect();
        let given = [None, Some(Isometry2::identity())];
        let merged = inputs.and_then(|inputs| merge::merge(&inputs, &given, &StopSignal::default(), &|_| {}));
        let is_disjoint = stamps(pair[0]).is_disjoint(&stamps(pair[1]));
        match merged {
            Ok(merged) => {
                assert!(is_disjoint, "{pair:?} are merged");
                let expected: BTreeSet<Stamp> = stamps(pair[0]).union(&stamps(pair[1])).copied().collect();
                merged.write(&named(&self.folder, MERGED)).unwrap();
                assert!(stamps(&named(&self.folder, MERGED)) == expected, "{pair:?}");
                let is_of_merged = |path: &Path| is_named(path, MERGED);
                assert_unchanged_but(&self.folder, &before, "a merge", is_of_merged);
            }
            Err(error) => {
                use merge::Error::{Empty, OtherField, SameDrive, SharedRun};
                let is_known = matches!(error, Empty(_) | OtherField { .. } | SameDrive { .. } | SharedRun { .. });
                assert!(is_known, "{error}");
                assert_unchanged(&self.folder, &before, "a merge that failed");
            }
        }
        self.check();
    }

    /// The place of a run: that of its map, or a new one.
    fn place_of(&mut self, session: &Session, driver: Driver) -> usize {
        if let Driver::Recording { .. } = driver {
            let known = self.places.iter().position(|other| is_same_driver(other, &driver));
            assert!(
                session.initial_map == InitialMap::New || self.place_of_map(session) != known,
                "a recording continues a map that contains it"
            );
            return known.unwrap_or_else(|| self.new_place(driver));
        }
        match self.place_of_map(session) {
            None => self.new_place(driver),
            Some(place) => {
                assert_ne!(session.initial_map, InitialMap::New);
                place
            }
        }
    }

    fn new_place(&mut self, driver: Driver) -> usize {
        self.places.push(driver);
        self.places.len() - 1
    }

    fn place_of_map(&self, session: &Session) -> Option<usize> {
        let extent = session.mapping.inspect(|mapper| mapper.model().map().map(|map| map.extent)).unwrap()?;
        Some((extent[0][0] / FAR).round() as usize)
    }

    /// The poses at the readings, by odometry.
    fn drive(&mut self, session: &Session, place: usize, readings: usize) -> Vec<Pose> {
        let inbox = &session.mapping.inbox;
        let mut poses = Vec::new();
        let config = session.mapping.config();
        let frame = if config.map_frame().is_empty() { "odom" } else { config.map_frame() };
        inbox.name_frame(frame).unwrap();
        for _ in 0..readings {
            self.now += 1;
            let driven = self.driven.entry(place).or_default();
            *driven += 1;
            // At most a few metres from the middle of the place, never twice at the same position.
            let along = 0.05 * (*driven as f64);
            let position = Point3::new(FAR * place as f64 + 3.0 * along.sin(), 3.0 * (1.3 * along).cos(), 0.0);
            let stamp = Stamp::from_seconds(0.1 * self.now as f64);
            let pose = Pose { stamp, position, orientation: UnitQuaternion::identity() };
            poses.push(pose);
            let field = Vector3::new(20.0 + along.cos(), 5.0 * along.sin(), 40.0 + (0.7 * along).sin());
            let field = MagneticField::from_microtesla(field);
            inbox.send(Measurement::Pose(pose)).unwrap();
            inbox.send(Measurement::Reading(Reading { stamp, field })).unwrap();
        }
        session.flush().unwrap();
        poses
    }

    fn drive_without_effect(&mut self, session: &Session, place: usize, poses: bool) {
        let inbox = &session.mapping.inbox;
        self.now += 1000;
        for _ in 0..10 {
            self.now += 1;
            let stamp = Stamp::from_seconds(0.1 * self.now as f64);
            let field = MagneticField::from_microtesla(Vector3::new(20.0, 0.0, 40.0));
            let position = Point3::new(FAR * place as f64, 0.0, 0.0);
            let pose = Pose { stamp, position, orientation: UnitQuaternion::identity() };
            let reading = Reading { stamp, field };
            inbox.send(if poses { Measurement::Pose(pose) } else { Measurement::Reading(reading) }).unwrap();
        }
        self.now += 1000;
        session.flush().unwrap();
    }

    /// Records the published map, replacing those that it continues.
    fn record_published(&mut self, session: &Session) {
        let mut now = session.mapping.inspect(Checkpoint::of).unwrap().unwrap();
        // Tiles would keep the file open.
        let model = std::mem::replace(&mut now.model, FieldModel::new(&session.mapping.config()).state());
        (now.model.totals, now.model.extent) = (model.totals, model.extent);
        if now.model.extent.is_some() {
            self.shown.retain(|before| !now.continues(before));
            self.shown.push(now);
        }
    }

    /// Checks that these readings are in maps, and in none twice.
    fn check_kept(&self, driven: &[Pose]) {
        let copied = tempfile::tempdir().unwrap();
        copy(&self.folder, copied.path());
        let (mut kept, mut unplaced) = (BTreeSet::new(), BTreeSet::new());
        for map in list(copied.path()).unwrap() {
            let (_, batches) = map_file::read_whole(&map.path).unwrap();
            let stamps: Vec<Stamp> = batches.iter().flatten().map(|seen| seen.stamp).collect();
            let own: BTreeSet<Stamp> = stamps.iter().copied().collect();
            assert_eq!(own.len(), stamps.len(), "a reading twice in {}", map.path.display());
            if is_unplaced(&map.path) {
                assert!(unplaced.is_disjoint(&own), "a reading of {} is in two maps", map.path.display());
                unplaced.extend(own.iter().copied());
            }
            kept.extend(own);
        }
        let lost = driven.iter().filter(|pose| !kept.contains(&pose.stamp)).count();
        assert_eq!(lost, 0, "of {} readings", driven.len());
    }

    /// Checks that every published map exists, and that none are mixed.
    fn check(&self) {
        let copied = tempfile::tempdir().unwrap();
        copy(&self.folder, copied.path());
        let mut kept = Vec::new();
        for map in list(copied.path()).unwrap() {
            assert!(matches!(map.state, State::Saved | State::Unfinished), "{map:?}");
            kept.push(map_file::read(&map.path).unwrap());
            // Of an unfinished map, the steps since the last checkpoint may lead to more.
            if map.state == State::Saved {
                let batches = Database::open_to_read(&map.path).unwrap().trajectory().unwrap();
                let (map, config) = (kept.last().unwrap(), kept.last().unwrap().settings().unwrap());
                let folded = trajectory::fold(&config, &batches, &|| false);
                assert_eq!(folded.totals, map.model.totals, "the trajectory is that of another map");
            }
        }
        for shown in &self.shown {
            let has = |map: &&Checkpoint| {
                map.continues(shown) && map.model.totals.used_readings >= shown.model.totals.used_readings
            };
            assert!(
                kept.iter().any(|map| has(&map)),
                "lost: {:?}, {:?}",
                shown.stream.progress.sources,
                shown.model.totals
            );
        }
        for map in &kept {
            let Some([low, high]) = map.model.extent else { continue };
            let is_merged = map.stream.correction.nodes().iter().any(|node| node.given.is_none());
            assert!(is_merged || high[0] - low[0] < 10.0, "two places in one map: {low:?} to {high:?}");
            let sources = &map.stream.progress.sources;
            let learnt: Vec<_> = map.stream.progress.runs_with_batches(map.model.totals.batches()).collect();
            for run in learnt.iter().filter(|run| run.id.is_recording()) {
                let times = learnt.iter().filter(|other| other.id == run.id).count();
                assert_eq!(times, 1, "{sources:?}");
                // A recording may have been added to a map that it loaded.
                assert!(sources.len() > 1 || map.model.totals.used_readings <= RECORDED as u64);
            }
        }
    }
}

/// Says for another SLAM that everything was driven this far beside, along x.
fn correct(session: &Session, driven: &[Pose], by: f64) {
    let moved = |pose: &Pose| Pose { position: pose.position + Vector3::new(by, 0.0, 0.0), ..*pose };
    session.mapping.give_path(driven.iter().map(moved).collect());
    session.flush().unwrap();
}

/// Withdraws what was observed within a metre of the start of the map, which is then made again in the background.
fn withdraw(mapper: &Mapper) -> Vec<Step> {
    let (path, batches) = (mapper.path(), mapper.model().totals.batches());
    let Some(first) = path.points().first().filter(|_| batches > 0) else { return Vec::new() };
    let around = |angle: f64| [first.x + 0.5 * angle.cos(), first.y + 0.5 * angle.sin()];
    let places = (0..6).map(|sixth| around(f64::from(sixth))).collect();
    vec![Step::Withdraw(Withdrawal { batches: 0..batches, places, stamp: Stamp::default(), is_applied: false })]
}

fn is_same_driver(left: &Driver, right: &Driver) -> bool {
    match (left, right) {
        (Driver::Recording { name: left, .. }, Driver::Recording { name: right, .. }) => left == right,
        _ => left == right,
    }
}

/// Waits until everything published has been passed to the operating system, so that it survives SIGKILL.
fn wait_for_file(session: &Session) {
    let (steps, used) = session
        .mapping
        .inspect(|mapper| (mapper.progress().steps, mapper.pipeline().counters().used_readings))
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let is_busy = |status: MapLogStatus| !status.waits && (status.written < steps || status.pending_checkpoints > 0);
    while used > session.before.used_readings && is_busy(session.file_status()) {
        assert!(Instant::now() < until, "{:?}", session.file_status());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Every file and folder in this folder, with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let bytes = path.is_file().then(|| fs::read(&path).unwrap());
            if bytes.is_none() {
                open.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}

/// The stamps of the observations in a map.
fn stamps(path: &Path) -> BTreeSet<Stamp> {
    let (_, batches) = map_file::read_whole(path).unwrap();
    batches.iter().flatten().map(|seen| seen.stamp).collect()
}

/// Whether this is the map with this name in its folder, or an earlier one.
fn is_named(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
}

/// Whether it is a map of what was driven without being found in another one.
fn is_unplaced(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("-unplaced-"))
}

fn assert_unchanged(folder: &Path, before: &BTreeMap<PathBuf, Option<Vec<u8>>>, who: &str) {
    assert_unchanged_but(folder, before, who, |_| false);
}

/// Reports the names of changed files, not their bytes.
fn assert_unchanged_but(
    folder: &Path,
    before: &BTreeMap<PathBuf, Option<Vec<u8>>>,
    who: &str,
    may_change: impl Fn(&Path) -> bool,
) {
    let after = contents(folder);
    let is_changed = |path: &&PathBuf| before.get(*path) != after.get(*path) && !may_change(path);
    let changed: Vec<_> = before.keys().chain(after.keys()).filter(is_changed).collect();
    assert!(changed.is_empty(), "{who} changed {changed:?}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (path, bytes) in contents(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        match bytes {
            None => fs::create_dir_all(target).unwrap(),
            Some(bytes) => {
                fs::create_dir_all(target.parent().unwrap()).unwrap();
                fs::write(target, bytes).unwrap();
            }
        }
    }
}

fn world(folder: &Path) -> World {
    World { folder: folder.to_owned(), shown: Vec::new(), places: Vec::new(), driven: BTreeMap::new(), now: 0 }
}

fn go_through(events: &[Event]) {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    for event in events {
        match event {
            Event::Run(run) => world.go(run),
            Event::Merge(pair) => world.merge(*pair),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_map_is_lost_or_mixed(events in prop::collection::vec(event(), 1..9)) {
        go_through(&events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "ten times as many cases; run with --ignored"]
    fn whatever_happens_in_200_sequences_of_runs_no_map_is_lost_or_mixed(events in prop::collection::vec(event(), 1..9)) {
        go_through(&events);
    }
}

fn everyday(actions: Vec<Action>) -> Run {
    Run {
        driver: Driver::Robot(""),
        resume: true,
        load_at_start: true,
        is_misconfigured: false,
        is_carried: false,
        is_corrected: false,
        actions,
        is_killed: false,
    }
}

#[test]
fn a_drive_survives_runs_without_readings() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&everyday(vec![Action::Drive { readings: 20 }]));
    let file = named(folder.path(), "map");
    let saved = fs::read(&file).unwrap();
    for _ in 0..2 {
        world.go(&everyday(vec![]));
        world.go(&Run { load_at_start: false, ..everyday(vec![]) });
        world.go(&Run { is_killed: true, ..everyday(vec![]) });
        world.go(&Run { is_misconfigured: true, ..everyday(vec![]) });
    }
    assert_eq!(fs::read(&file).unwrap(), saved);
    assert_eq!(contents(folder.path()).len(), 1);
    // Another day adds to it.
    world.go(&everyday(vec![Action::Drive { readings: 20 }]));
    assert_eq!(map_file::read(&file).unwrap().model.totals.used_readings, 40);
    assert_eq!(contents(folder.path()).len(), 1);
}

#[test]
fn saving_never_overwrites_a_different_map() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&everyday(vec![Action::Drive { readings: 20 }]));
    let file = named(folder.path(), "map");
    let first = fs::read(&file).unwrap();
    world.go(&Run { load_at_start: false, ..everyday(vec![Action::Drive { readings: 9 }]) });
    let maps = list(folder.path()).unwrap();
    assert_eq!(maps.len(), 2);
    let earlier = maps.iter().find(|map| map.path != file).unwrap();
    assert_eq!(fs::read(&earlier.path).unwrap(), first);
    assert!(earlier.name.starts_with("map.2") && earlier.state == State::Saved, "{earlier:?}");
    let contents = earlier.contents.as_ref().unwrap();
    assert_eq!((contents.totals.used_readings, contents.sources.as_slice()), (20, &["/magmap".to_owned()][..]));
    // It is continued by its name, unchanged.
    let mut config = world.settings(&everyday(vec![]));
    config.node.map_name = earlier.name.clone();
    let session = Session::start(&config, "", "/magmap").unwrap();
    assert_eq!(session.mapping.updates.newest_map().unwrap().totals.used_readings, 20);
    session.end().unwrap();
}

#[test]
fn loading_the_saved_map_keeps_what_a_killed_run_had_added_since() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&everyday(vec![Action::Drive { readings: 20 }]));
    world.go(&Run { is_killed: true, ..everyday(vec![Action::Drive { readings: 12 }]) });
    world.go(&everyday(vec![Action::Load, Action::Drive { readings: 5 }]));
    let maps = list(folder.path()).unwrap();
    let mut readings: Vec<u64> = maps.iter().map(|map| map.contents.as_ref().unwrap().totals.used_readings).collect();
    readings.sort_unstable();
    assert_eq!(readings, [25, 32]);
}

#[test]
fn a_recording_that_added_nothing_to_a_map_is_added_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&everyday(vec![Action::Drive { readings: 20 }]));
    let driver = Driver::Recording { name: "lobby", is_careless: true };
    let then = [None, Some(Action::Save), Some(Action::Drive { readings: 10 })];
    for actions in then.map(|then| [Action::Load].into_iter().chain(then).collect()) {
        world.go(&Run { driver, load_at_start: false, ..everyday(actions) });
    }
    let map = map_file::read(&named(folder.path(), "map")).unwrap();
    assert_eq!(map.model.totals.used_readings, 30);
}

#[test]
fn a_replay_that_was_killed_makes_the_same_map_as_one_that_was_not() {
    let replay = |runs: &[bool]| {
        let folder = tempfile::tempdir().unwrap();
        let mut world = world(folder.path());
        for &is_killed in runs {
            // A recording is the same every time it is played.
            (world.now, world.driven) = (0, BTreeMap::new());
            let readings = if is_killed { 17 } else { RECORDED };
            let driver = Driver::Recording { name: "lobby", is_careless: false };
            let drive = everyday(vec![Action::Drive { readings: 10 }, Action::Drive { readings: readings - 10 }]);
            world.go(&Run { driver, is_killed, load_at_start: false, ..drive });
        }
        let maps = list(folder.path()).unwrap();
        let map = maps.iter().find(|map| map.path.ends_with("replays/lobby.magmap")).unwrap();
        map_file::read(&map.path).unwrap().model.clone()
    };
    assert!(replay(&[true, false]) == replay(&[false]));
}

#[test]
fn a_damaged_map_is_kept_and_listed_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    let file = named(folder.path(), "map");
    fs::write(&file, b"SQLite format 3\0 no map").unwrap();
    let config = world.settings(&everyday(vec![]));
    let session = Session::start(&config, "", "/magmap").unwrap();
    world.drive(&session, 0, 9);
    session.end().unwrap();
    let maps = list(folder.path()).unwrap();
    let damaged = maps.iter().find(|map| map.path != file).unwrap();
    assert_eq!(fs::read(&damaged.path).unwrap(), b"SQLite format 3\0 no map");
    assert_eq!(maps.len(), 2, "{maps:?}");
    assert!(matches!(&damaged.state, State::Damaged(why) if why.contains("cannot read the map")), "{damaged:?}");
    assert_eq!(maps.iter().filter(|map| map.state == State::Saved).count(), 1);
}

#[test]
fn an_unfinished_map_is_listed_with_its_contents() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    // Fewer batches than between two checkpoints.
    world.go(&Run { is_killed: true, ..everyday(vec![Action::Drive { readings: 9 }]) });
    let [map] = &list(folder.path()).unwrap()[..] else { panic!("expected one map") };
    let contents = map.contents.as_ref().unwrap();
    assert_eq!((&map.state, contents.totals.used_readings), (&State::Unfinished, 9));
    assert_eq!((contents.frame.as_str(), contents.extent.is_some()), ("odom", true));
}

#[test]
fn an_unfinished_map_that_is_saved_on_request_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&Run { is_killed: true, ..everyday(vec![Action::Drive { readings: 20 }]) });
    // Switched on and off, it stays unfinished.
    world.go(&everyday(vec![]));
    assert_eq!(list(folder.path()).unwrap()[0].state, State::Unfinished);
    world.go(&everyday(vec![Action::Save]));
    let [map] = &list(folder.path()).unwrap()[..] else { panic!("expected one map") };
    assert_eq!((&map.state, map.contents.as_ref().unwrap().totals.used_readings), (&State::Saved, 20));
    assert_eq!(contents(folder.path()).len(), 1);
}

#[test]
fn robots_in_namespaces_have_their_own_maps() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    for namespace in ["", "/robot1", "/robot1"] {
        world.go(&Run { driver: Driver::Robot(namespace), ..everyday(vec![Action::Drive { readings: 10 }]) });
    }
    let names: Vec<_> = list(folder.path()).unwrap().into_iter().map(|map| map.name).collect();
    assert_eq!(names, ["map", "robot1/map"]);
}

#[test]
fn a_drive_that_was_not_found_in_the_map_is_kept_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    world.go(&everyday(vec![Action::Drive { readings: 9 }]));
    let carried = Run { is_carried: true, is_killed: true, ..everyday(vec![Action::Drive { readings: 5 }]) };
    world.go(&carried);
    let unplaced = |folder: &Path| {
        let maps = list(folder).unwrap().into_iter().filter(|map| is_unplaced(&map.path));
        maps.map(|map| map_file::read_whole(&map.path).unwrap().0.model.totals.used_readings).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        world.go(&everyday(vec![]));
        assert_eq!(unplaced(folder.path()), [5]);
    }
}

#[test]
fn what_was_withdrawn_counts_in_a_merged_map_and_in_one_of_a_corrected_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = world(folder.path());
    let used = |name: &str| map_file::read(&named(folder.path(), name)).unwrap().model.totals.used_readings;
    let changed = everyday(vec![Action::Drive { readings: 20 }, Action::Change, Action::Drive { readings: 3 }]);
    world.go(&changed);
    world.go(&Run { driver: Driver::Robot("/robot1"), ..everyday(vec![Action::Drive { readings: 9 }]) });
    world.merge([0, 0]);
    assert_eq!(used(MERGED), 32);
    let corrected = Run { is_corrected: true, ..changed };
    for drives in 1..=2 {
        let mut run = corrected.clone();
        run.actions.push(Action::Correct { by: 0.3 });
        world.go(&run);
        assert_eq!(used(CORRECTED), 23 * drives);
    }
}
