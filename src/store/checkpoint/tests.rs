//! Checkpoints against what files may contain.

use nalgebra::{Isometry3, Matrix3, UnitQuaternion, Vector3};

use tempfile::TempDir;

use super::*;
use crate::config;
use crate::field;
use crate::mapping::mapper::Step;
use crate::mapping::stop::StopSignal;
use crate::sensing::reading::{MagneticField, Measurement, Observation, Pose, Reading, Stamp};
use crate::trajectory::{Correction, Delay, Given, Node, Trajectory};
use streaming_gp::kernel::Shape;

/// A winding drive of `count` observations.
fn observations(count: usize) -> Vec<Observation> {
    let observation = |index| {
        let along = 0.05 * index as f64;
        Observation {
            stamp: Stamp::from_nanoseconds(1_700_000_000_123_456_789 + index as i64),
            position: Point3::new(along, (2.0 * along).sin(), 0.1),
            field: MagneticField::from_microtesla(Vector3::new(20.0, 5.0 * along.sin(), -40.0)),
            strength: 50.0 + 8.0 * (3.0 * along).sin() + (40.0 * along).cos(),
            orientation: Matrix3::identity(),
            speed: 0.0,
            readings: 5,
        }
    };
    (0..count).map(observation).collect()
}

/// A drive with readings 7 cm apart, each before its pose.
fn drive(readings: usize) -> Vec<Measurement> {
    let measurements = observations(readings).into_iter().flat_map(|observation| {
        let (Observation { stamp, position, .. }, strength) = (observation, observation.strength);
        // No axis stays the same.
        let z = if stamp.nanoseconds() % 2 == 0 { -0.0 } else { 0.1 };
        let field = MagneticField::from_microtesla(Vector3::new(0.1 * strength, strength, z));
        // Tenths of a second instead of nanoseconds.
        let stamp = Stamp::from_nanoseconds((stamp.nanoseconds() - 1_700_000_000_123_456_789) * 100_000_007);
        let pose =
            Pose { stamp, position: position * 1.4, orientation: UnitQuaternion::from_euler_angles(0.1, 0.2, 0.3) };
        [Measurement::Reading(Reading { stamp, field }), Measurement::Pose(pose)]
    });
    // The last reading waits for its pose.
    measurements.take(2 * readings - 1).collect()
}

fn learn(model: &mut FieldModel, observations: &[Observation]) {
    model.update(observations, &|| false).unwrap();
}

/// One with values that are hard to preserve: numbers without a short decimal, letters that are not ASCII.
fn checkpoint(config: &Config, model: &FieldModel) -> Checkpoint {
    let (frame, pipeline) = ("lobby/\u{1f9ed}/\"nord\"".to_owned(), Pipeline::new(config, Isometry3::identity()));
    let given = Some(Given { stamp: Stamp::from_nanoseconds(-7), place: [0.3, 1e-17], heading: -0.7 });
    let correction = Correction::new(vec![Node {
        observation: 0.5,
        place: [0.1, -3e-17],
        turn: 0.3,
        hard_iron: [0.1, 0.0, -7e-9],
        lag: [0.03, -0.02, 5e-3],
        given,
    }])
    .unwrap();
    let mut trajectory = Trajectory::new(Vec::new(), correction);
    trajectory.delay = Some(Delay { seconds: 0.1, deviation: 3e-17, end: Some(7) });
    let mut mapper = Mapper::resume(config.clone(), frame, pipeline, model.clone(), Progress::default(), trajectory);
    // Waiting readings, an open cell, an open batch.
    for (index, measurement) in drive(8).into_iter().enumerate() {
        mapper.take(Step::Input { index: index as u64, input: measurement.into() }, &StopSignal::default());
    }
    Checkpoint::of(&mapper).unwrap()
}

fn restored(checkpoint: &Checkpoint, config: &Config) -> Result<FieldModel, field::Error> {
    FieldModel::from_state(config, &checkpoint.model)
}

fn small() -> Checkpoint {
    let config = Config::default();
    let mut model = FieldModel::new(&config);
    learn(&mut model, &observations(12));
    checkpoint(&config, &model)
}

/// A new file with this checkpoint.
fn written(checkpoint: &Checkpoint) -> (TempDir, Arc<Database>) {
    let folder = tempfile::tempdir().unwrap();
    let database = Arc::new(Database::new(folder.path().join("map.magmap")));
    database.begin(0).unwrap();
    checkpoint.write(&database, false, &[]).unwrap();
    (folder, database)
}

fn read(database: &Arc<Database>) -> Result<Checkpoint, Problem> {
    let (step, _) = database.checkpoints()?[0];
    let (checkpoint, lost) = Checkpoint::read_from(database, step)?;
    lost.into_iter().next().map_or(Ok(checkpoint), Err)
}

fn written_and_read(checkpoint: &Checkpoint) -> Checkpoint {
    let (_folder, database) = written(checkpoint);
    let read = read(&database).unwrap();
    assert!(read == *checkpoint);
    read
}

fn predictions(model: &FieldModel) -> Vec<u64> {
    let Some(map) = model.map() else { return Vec::new() };
    let place = |index: u32| [0.1 * f64::from(index), (0.3 * f64::from(index)).cos()];
    let places: Vec<[f64; 2]> = (0..50).map(place).collect();
    let (mean, variance) = map.predict(&places, f64::INFINITY);
    mean.into_iter().chain(variance).map(f64::to_bits).collect()
}

fn anisotropic() -> Config {
    let mut config = Config::default();
    config.model.kernel = Shape::Matern32;
    (config.model.lengthscale_per_axis, config.model.constant, config.model.mean) = (true, false, 48.7);
    config
}

/// Squares of 2 m, which the drive crosses.
fn tiled(mut config: Config) -> Config {
    (config.tiles.size, config.tiles.halo, config.tiles.band) = (2.0, 0.8, 0.3);
    config
}

fn vector() -> Config {
    let mut config = Config::default();
    config.model.field = config::Mapped::Vector;
    config.vector.speed_bias = 1.0;
    config
}

fn robust() -> Config {
    let mut config = Config::default();
    (config.model.likelihood, config.model.degrees_of_freedom) = (config::Likelihood::StudentT, 3.5);
    config
}

#[test]
fn what_is_written_reads_back_to_the_last_bit() {
    let tiled = [tiled(Config::default()), tiled(vector())];
    let whole = [Config::default(), anisotropic(), robust(), vector()];
    for config in whole.into_iter().chain(tiled) {
        let mut model = FieldModel::new(&config);
        for number in 0..3 {
            let mut before = checkpoint(&config, &model);
            before.stream.progress.learnt = (1 << 53) + 1;
            let read = written_and_read(&before);
            assert_eq!(read.model.extent.is_some(), number > 0);
            learn(&mut model, &observations(90)[30 * number..30 * (number + 1)]);
        }
    }
    let nothing = Checkpoint::of(&Mapper::new(&Config::default())).unwrap();
    written_and_read(&nothing);
}

#[test]
fn a_resumed_stream_equals_one_that_never_stopped() {
    assert_resumes_exactly(Config::default());
}

#[test]
fn a_resumed_stream_of_a_robust_map_equals_one_that_never_stopped() {
    let mut config = robust();
    // Two readings in a cell.
    config.averaging.spacing = 0.15;
    assert_resumes_exactly(config);
}

#[test]
fn a_resumed_map_of_axes_is_the_same() {
    assert_resumes_exactly(vector());
}

fn assert_resumes_exactly(mut config: Config) {
    config.batch.max_observations = 7;
    let stop = StopSignal::default();
    let measurements = drive(60);
    let take = |mapper: &mut Mapper, measurement: Measurement| {
        mapper.take(Step::Input { index: mapper.progress().index, input: measurement.into() }, &stop);
    };
    let begin = || Mapper::new(&config);
    for stopped_at in [0, 1, 2, 37, 64, 118] {
        let (mut uninterrupted, mut interrupted) = (begin(), begin());
        for (index, &measurement) in measurements.iter().enumerate() {
            if index == stopped_at {
                interrupted = written_and_read(&Checkpoint::of(&interrupted).unwrap()).resume(&config).unwrap();
            }
            take(&mut uninterrupted, measurement);
            take(&mut interrupted, measurement);
        }
        let [expected, found] = [uninterrupted, interrupted].map(|mapper| Checkpoint::of(&mapper).unwrap());
        assert!(found == expected, "stopped at {stopped_at}");
    }
}

#[test]
fn a_model_restored_from_a_file_equals_one_that_never_stopped() {
    let tiled = [tiled(Config::default()), tiled(vector())];
    let whole = [Config::default(), anisotropic(), robust(), vector()];
    for config in whole.into_iter().chain(tiled) {
        let all = observations(200);
        let mut uninterrupted = FieldModel::new(&config);
        let mut interrupted = uninterrupted.clone();
        for batch in all.chunks(40) {
            assert!(interrupted.update(&[], &|| false).is_err());
            assert!(uninterrupted.update(&[], &|| false).is_err());
            interrupted = restored(&written_and_read(&checkpoint(&config, &interrupted)), &config).unwrap();
            learn(&mut uninterrupted, batch);
            learn(&mut interrupted, batch);
            assert_eq!(predictions(&interrupted), predictions(&uninterrupted));
        }
        assert_eq!(interrupted.state(), uninterrupted.state());
        assert!(checkpoint(&config, &interrupted) == checkpoint(&config, &uninterrupted));
        assert_eq!(interrupted.totals.rejected_batches, 5);
        let [low, high] = interrupted.map().unwrap().extent;
        assert_eq!((low[0], high[0]), (0.0, all[199].position.x));
        assert!(low[1] < -0.99 && high[1] > 0.99);
    }
}

#[test]
fn a_change_without_its_checksum_is_damage_and_an_invalid_state_is_rejected_with_the_reason() {
    let good = small();
    let points = restored(&good, &Config::default()).unwrap().map().unwrap().size() as i64;
    let replace = |column: &str, from: &str, to: &str| {
        assert!(!to.contains('\''));
        format!("UPDATE checkpoints SET {column} = replace({column}, '{from}', '{to}')")
    };
    let array = |name: &str, numbers: &str| format!("UPDATE arrays SET numbers = {numbers} WHERE name = '{name}'");
    let last = |name: &str, value: f64| {
        let hexadecimal: String = value.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        array(name, &format!("CAST(substr(numbers, 1, length(numbers) - 8) || x'{hexadecimal}' AS BLOB)"))
    };
    let shape = |name: &str, shape: &str| format!("UPDATE arrays SET shape = '{shape}' WHERE name = '{name}'");
    let cases = [
        (
            replace("stream", "\"used_readings\":", "\"used_readings\":999999999999999999"),
            "a valid state of the stream",
        ),
        ("DELETE FROM arrays WHERE name = 'triangle'".into(), "expected numbers in the array triangle, found none"),
        (shape("triangle", &format!("[{points}, {}]", points + 1)), "in the array triangle, found ["),
        // More numbers than can be counted, and not one more in the file.
        (shape("inducing_points", "[4611686018427387904, 2]"), "found [4611686018427387904, 2] in"),
        (shape("inducing_points", "of two numbers"), "expected value"),
        (last("target", f64::NAN), "expected finite numbers in the array target, found NaN"),
        ("UPDATE checkpoints SET path = x'00'".into(), "finite points, and a spacing above 0 in the array path"),
        (replace("state", "\"path_spacing\":0.1", "\"path_spacing\":0.0"), "a spacing above 0"),
        (replace("state", "\"extent\":[[0.0,", "\"extent\":[[9e9,"), "expected an extent and a grid of tiles"),
        (last("covariance_root", -1.0), "diagonal of the covariance root, found -1"),
        (replace("state", "\"frame\"", "\"fraem\""), "missing field `frame`"),
        ("UPDATE tiles SET targets = 0".into(), "found 0 targets with"),
        (replace("settings", "matern52", "gaussian"), "its settings are invalid"),
        ("DELETE FROM tiles".into(), "is missing"),
    ];
    for (change, expected) in cases {
        let (_folder, database) = written(&good);
        assert!(database.execute(&change, []) > 0, "{change}");
        let problem = read(&database).expect_err(expected);
        assert!(matches!(problem, Problem::Damaged(_) | Problem::Read(_)), "{change}: {problem}");
        database.correct_checksums().unwrap();
        let problem = read(&database).expect_err(expected).to_string();
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
    let (_folder, database) = written(&good);
    database.correct_checksums().unwrap();
    assert!(read(&database).unwrap() == good);
}

#[test]
fn only_a_configuration_for_the_same_model_continues_it() {
    let config = Config::default();
    let mut model = FieldModel::new(&config);
    learn(&mut model, &observations(30));
    let checkpoint = checkpoint(&config, &model);
    for (setting, expected) in [
        (
            "model.kernel=matern32",
            "model.kernel is \"matern32\", but the map was made with \"matern52\"; set model.kernel = \"matern52\"",
        ),
        ("model.lengthscale_per_axis=true", "model.lengthscale_per_axis is true, but the map was made with false"),
        ("model.constant=false", "model.constant is false, but the map was made with true"),
        ("model.mean=0.1", "model.mean is 0.1, but the map was made with 0.0"),
        (
            "model.likelihood=student_t",
            "model.likelihood is \"student_t\", but the map was made with \"gaussian\"; set model.likelihood = \"gaussian\"",
        ),
        ("model.relative_jitter=1e-7", "model.relative_jitter is 0.0000001, but the map was made with 0.000001"),
    ] {
        let mut other = config.clone();
        other.apply_overrides(&[setting]).unwrap();
        let message = restored(&checkpoint, &other).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message} instead of {expected}");
    }
    let made = FieldModel::new(&robust());
    let message = restored(
        &self::checkpoint(&robust(), &made),
        &Config { model: config::Model { degrees_of_freedom: 4.0, ..robust().model }, ..robust() },
    );
    let message = message.unwrap_err().to_string();
    assert!(message.starts_with("model.degrees_of_freedom is 4.0, but the map was made with 3.5"), "{message}");
    let mut other = config.clone();
    // They have no effect on a Gaussian likelihood.
    other.apply_overrides(&["model.degrees_of_freedom=9"]).unwrap();
    assert!(restored(&checkpoint, &other).is_ok());
    let mut other = config.clone();
    other.apply_overrides(&["model.initial.noise=9", "selection.delta=0.5", "learning.max_evaluations=0"]).unwrap();
    let mut restored = restored(&checkpoint, &other).unwrap();
    assert_eq!(predictions(&restored), predictions(&model));
    let report = restored.update(&observations(60)[30..], &|| false).unwrap();
    assert_eq!(report.learning.evaluations, 0);
}

#[test]
fn a_checkpoint_says_with_which_model_it_was_made() {
    let model = FieldModel::new(&anisotropic());
    let checkpoint = checkpoint(&anisotropic(), &model);
    // The settings leave to magmap what is mapped.
    let of_strengths = anisotropic().decided(config::Mapped::Strength).into_owned();
    assert_eq!(checkpoint.model.settings.model, of_strengths.model);
    assert_eq!(checkpoint.settings().unwrap(), of_strengths);
    assert_eq!(Config::from_toml(&checkpoint.config, "checkpoint").unwrap().model, anisotropic().model);
    assert!(restored(&checkpoint, &anisotropic()).is_ok());
}
