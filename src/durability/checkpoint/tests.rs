//! Checkpoints against what files may contain.

use nalgebra::{Isometry3, Matrix3, UnitQuaternion, Vector3};
use std::io::Cursor;

use super::*;
use crate::config;
use crate::field;
use crate::mapping::mapper::Step;
use crate::mapping::stop::StopSignal;
use crate::sensing::reading::{MagneticField, Measurement, Observation, Pose, Reading, Stamp};
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
    let (ready, progress) = (VecDeque::new(), Progress::default());
    let mut mapper = Mapper::resume(config.clone(), frame, pipeline, ready, model.clone(), progress);
    // Waiting readings, an open cell, an open batch.
    for (index, measurement) in drive(8).into_iter().enumerate() {
        mapper.take(Step::Measurement { index: index as u64, measurement }, &StopSignal::default());
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

fn bytes(checkpoint: &Checkpoint) -> Vec<u8> {
    checkpoint.write_to(Cursor::new(Vec::new()), &[]).unwrap().into_inner()
}

/// The file with one array replaced and a valid checksum; an empty replacement removes the array.
fn forged(bytes: &[u8], array: &str, forge: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut arrays = ArrayWriter::new(Cursor::new(Vec::new()));
    let (_, files) = arrays::list(bytes).map(|mut files| (files.pop(), files)).unwrap();
    for (name, content) in files {
        let content = if name == format!("{array}.npy") { forge(content) } else { content.to_owned() };
        if !content.is_empty() {
            arrays.file(&name, &content).unwrap();
        }
    }
    arrays.finish().unwrap().into_inner()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let start = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..start], to, &bytes[start + from.len()..]].concat()
}

fn utf32(text: &str) -> Vec<u8> {
    text.chars().flat_map(|character| u32::from(character).to_le_bytes()).collect()
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

fn dual() -> Config {
    let mut config = Config::default();
    config.selection.method = "dual_memory=4".parse().unwrap();
    (config.dual_memory.inducing_points, config.dual_memory.max_memory) = (12, 10);
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
    let tiled = [tiled(Config::default()), tiled(vector()), tiled(dual())];
    let whole = [Config::default(), anisotropic(), robust(), dual(), vector()];
    for config in whole.into_iter().chain(tiled) {
        let mut model = FieldModel::new(&config);
        for number in 0..3 {
            let mut before = checkpoint(&config, &model);
            before.stream.progress.learnt = (1 << 53) + 1;
            let written = bytes(&before);
            let read = Checkpoint::from_bytes(&written).unwrap();
            assert_eq!(read, before);
            assert_eq!(bytes(&read), written);
            assert_eq!(read.model.extent.is_some(), number > 0);
            learn(&mut model, &observations(90)[30 * number..30 * (number + 1)]);
        }
    }
    let nothing = Checkpoint::of(&Mapper::new(&Config::default())).unwrap();
    assert_eq!(Checkpoint::from_bytes(&bytes(&nothing)).unwrap(), nothing);
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
fn a_resumed_stream_of_a_map_with_a_memory_equals_one_that_never_stopped() {
    assert_resumes_exactly(dual());
}

#[test]
fn a_resumed_map_of_axes_is_the_same() {
    assert_resumes_exactly(vector());
}

#[test]
fn a_map_with_a_memory_is_continued_only_by_its_method() {
    let mut model = FieldModel::new(&dual());
    learn(&mut model, &observations(30));
    let other = restored(&checkpoint(&dual(), &model), &Config::default()).unwrap_err().to_string();
    assert_eq!(
        other,
        "selection.method is \"vips\", but the map was made with \"dual_memory\"; set selection.method = \"dual_memory\", or \
         start a new map"
    );
    let other = restored(&small(), &dual()).unwrap_err().to_string();
    assert!(
        other.starts_with("selection.method is \"dual_memory=4\", but the map was made with \"vips\" or"),
        "{other}"
    );
    // How much it remembers may change.
    let mut config = dual();
    config.selection.method = "dual_memory=2".parse().unwrap();
    let mut restored = restored(&checkpoint(&dual(), &model), &config).unwrap();
    assert_eq!(predictions(&restored), predictions(&model));
    let sizes =
        [&mut restored, &mut model].map(|model| model.update(&observations(60)[30..], &|| false).unwrap().memory);
    assert_eq!(sizes, [Some(6), Some(8)]);
}

#[test]
fn an_invalid_memory_is_rejected_with_the_reason() {
    let mut model = FieldModel::new(&dual());
    learn(&mut model, &observations(30));
    let good = bytes(&checkpoint(&dual(), &model));
    let last = |value: f64| move |array: &[u8]| [&array[..array.len() - 8], &value.to_le_bytes()].concat();
    type Forge<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Forge<'_>, &str); 5] = [
        ("memory_sites", &|_| Vec::new(), "expected numbers in the array memory_sites, found none"),
        ("memory_targets", &last(f64::NAN), "expected finite numbers in the array memory_targets, found NaN"),
        (
            "memory_targets",
            &|array| replaced(array, b"(4, )", b"(3, )"),
            "expected <f8 of shape (4) in the array memory_targets",
        ),
        ("summary_triangle", &last(1e200), "its numbers are too large"),
        (
            "metadata",
            &|array| replaced(array, &utf32("\"targets\":30"), &utf32("\"targets\": 4")),
            "found 4 of 4 with a summary",
        ),
    ];
    for (array, forge, expected) in cases {
        let read = Checkpoint::from_bytes(&forged(&good, array, forge));
        let problem = read
            .map_err(|problem| problem.to_string())
            .and_then(|read| restored(&read, &dual()).map(|_| ()).map_err(|error| error.to_string()));
        let problem = problem.expect_err(expected);
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
}

fn assert_resumes_exactly(mut config: Config) {
    config.batch.max_observations = 7;
    let stop = StopSignal::default();
    let measurements = drive(60);
    let take = |mapper: &mut Mapper, measurement| {
        mapper.take(Step::Measurement { index: mapper.progress().index, measurement }, &stop);
    };
    let begin = || Mapper::new(&config);
    for stopped_at in [0, 1, 2, 37, 64, 118] {
        let (mut uninterrupted, mut interrupted) = (begin(), begin());
        for (index, &measurement) in measurements.iter().enumerate() {
            if index == stopped_at {
                let written = bytes(&Checkpoint::of(&interrupted).unwrap());
                interrupted = Checkpoint::from_bytes(&written).unwrap().resume(&config).unwrap();
            }
            take(&mut uninterrupted, measurement);
            take(&mut interrupted, measurement);
        }
        let [expected, found] = [uninterrupted, interrupted].map(|mapper| bytes(&Checkpoint::of(&mapper).unwrap()));
        assert_eq!(found, expected, "stopped at {stopped_at}");
    }
}

#[test]
fn a_model_restored_from_a_file_equals_one_that_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("map.checkpoint.npz");
    let tiled = [tiled(Config::default()), tiled(vector()), tiled(dual())];
    let whole = [Config::default(), anisotropic(), robust(), dual(), vector()];
    for config in whole.into_iter().chain(tiled) {
        let all = observations(200);
        let mut uninterrupted = FieldModel::new(&config);
        let mut interrupted = uninterrupted.clone();
        for batch in all.chunks(40) {
            assert!(interrupted.update(&[], &|| false).is_err());
            assert!(uninterrupted.update(&[], &|| false).is_err());
            checkpoint(&config, &interrupted).write(&file).unwrap();
            interrupted = restored(&Checkpoint::read(&file).unwrap(), &config).unwrap();
            learn(&mut uninterrupted, batch);
            learn(&mut interrupted, batch);
            assert_eq!(predictions(&interrupted), predictions(&uninterrupted));
        }
        assert_eq!(interrupted.state(), uninterrupted.state());
        assert_eq!(bytes(&checkpoint(&config, &interrupted)), bytes(&checkpoint(&config, &uninterrupted)));
        assert_eq!(interrupted.totals.rejected_batches, 5);
        let [low, high] = interrupted.map().unwrap().extent;
        assert_eq!((low[0], high[0]), (0.0, all[199].position.x));
        assert!(low[1] < -0.99 && high[1] > 0.99);
    }
}

#[test]
fn a_file_truncated_anywhere_is_rejected() {
    let whole = bytes(&small());
    for length in 0..whole.len() {
        let problem = Checkpoint::from_bytes(&whole[..length]).unwrap_err();
        let expected = if length < 40 { "expected a checkpoint of magmap" } else { "damaged or truncated" };
        assert!(problem.to_string().contains(expected), "{length} of {}: {problem}", whole.len());
    }
}

/// Flips one bit, then all bits, of one byte in `stride`.
fn flip_bytes(stride: usize) {
    let checkpoint = small();
    let mut bytes = bytes(&checkpoint);
    let (mut flips, mut harmless) = (0, 0);
    for index in (0..bytes.len()).step_by(stride) {
        for mask in [1 << (index % 8), 0xff] {
            bytes[index] ^= mask;
            if let Ok(read) = Checkpoint::from_bytes(&bytes) {
                assert_eq!(read, checkpoint, "byte {index}");
                harmless += 1;
            }
            bytes[index] ^= mask;
            flips += 1;
        }
    }
    // Of each of 17 arrays, 70 bytes of times, versions and attributes in two headers; half as many again in a sample of them.
    let most = if stride == 1 { 2 * 17 * 70 } else { 3 * 17 * 70 / stride };
    assert!(harmless < most, "{harmless} of {flips}");
}

#[test]
fn a_flipped_byte_is_rejected_or_changes_nothing() {
    flip_bytes(61);
}

#[test]
#[ignore = "hundreds of thousands of changes; run with --ignored"]
fn a_byte_flipped_anywhere_is_rejected_or_changes_nothing() {
    flip_bytes(1);
}

#[test]
fn an_invalid_file_is_rejected_with_the_reason() {
    let good = bytes(&small());
    let points = restored(&small(), &Config::default()).unwrap().map().unwrap().size();
    assert!((2..9).contains(&points), "one digit");
    type Forge = Box<dyn Fn(&[u8]) -> Vec<u8>>;
    let shape = |from: [usize; 2], to: [usize; 2]| -> Forge {
        let text = |[rows, columns]: [usize; 2]| format!("({rows}, {columns}, ), }}").into_bytes();
        // Headers end in blanks.
        let width = text(to).len().max(text(from).len());
        let [from, to] = [from, to].map(|shape| {
            let mut text = text(shape);
            text.resize(width, b' ');
            text
        });
        Box::new(move |array| replaced(array, &from, &to))
    };
    let value = |from_the_end: usize, value: f64| -> Forge {
        Box::new(move |array| {
            let start = array.len() - 8 * from_the_end;
            [&array[..start], &value.to_le_bytes(), &array[start + 8..]].concat()
        })
    };
    let text = |from: &'static str, to: &'static str| -> Forge {
        Box::new(move |array| replaced(array, &utf32(from), &utf32(to)))
    };
    let raw = |from: &'static [u8], to: &'static [u8]| -> Forge { Box::new(move |array| replaced(array, from, to)) };
    let cases: Vec<(&str, Forge, &str)> = vec![
        ("format", text("magmap", "mapmag"), "a checkpoint of magmap, found mapmag-checkpoint;"),
        ("format_version", raw(&[5, 0, 0], &[4, 0, 0]), "expected version 5 of the format, found version 4;"),
        ("stream", text("\"past\":0", "\"past\":9"), "a valid state of the stream"),
        ("triangle", Box::new(|_| Vec::new()), "expected numbers in the array triangle, found none"),
        ("triangle", shape([points; 2], [points, points + 1]), "in the array triangle, found <f8 of shape"),
        // More bytes than can be counted, and not one more in the file.
        ("inducing_points", shape([points, 2], [1 << 62, 2]), "found <f8 of shape (4611686018427387904, 2)"),
        ("target", raw(b"<f8", b"<f4"), "in the array target, found <f4"),
        ("target", raw(b"False", b"True "), "a header of numpy's format 1.0, in C order"),
        ("target", value(1, f64::NAN), "expected finite numbers in the array target, found NaN"),
        ("path", value(5, f64::INFINITY), "expected finite numbers in the array path, found inf"),
        ("path_spacing", value(1, 0.0), "a number above 0 in the array path_spacing, found 0"),
        ("extent", value(1, -9.0), "lower left and the upper right corner in the array extent"),
        ("triangle", value(points * points - 1, 0.5), "lower triangular triangle, found 0.5 in row 0"),
        ("covariance_root", value(1, -1.0), "diagonal of the covariance root, found -1"),
        ("metadata", text("\"frame\"", "\"fraem\""), "missing field `frame`"),
        ("metadata", text("\"targets\":12,", "\"targets\": 0,"), "found 0 targets with"),
        ("metadata", text("matern52", "gaussian"), "its settings are invalid"),
    ];
    for (array, forge, expected) in cases {
        let problem = Checkpoint::from_bytes(&forged(&good, array, forge)).expect_err(expected).to_string();
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
    assert_eq!(Checkpoint::from_bytes(&forged(&good, "triangle", <[u8]>::to_vec)).unwrap(), small());
}

#[test]
fn a_file_that_is_not_a_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, Option<&[u8]>, &str); 5] = [
        ("missing.npz", None, "missing.npz: No such file"),
        ("empty.npz", Some(b""), "found an empty file; name a file that magmap saved"),
        ("map.png", Some(b"\x89PNG\r\n\x1a\n and more"), r#"begins with "\x89PNG\r\n\x1a\n""#),
        (
            "map.npz",
            Some(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\0\0mean.npy"),
            "found a file that begins",
        ),
        ("", None, "Is a directory"),
    ];
    for (name, content, expected) in cases {
        let path = folder.path().join(name);
        content.into_iter().for_each(|content| std::fs::write(&path, content).unwrap());
        let message = Checkpoint::read(&path).unwrap_err().to_string();
        assert!(message.starts_with("cannot read the checkpoint /") && message.contains(expected), "{message}");
    }
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
    assert_eq!(checkpoint.model.settings.model, anisotropic().model);
    assert_eq!(Config::from_toml(&checkpoint.config, "checkpoint").unwrap().model, anisotropic().model);
    assert!(restored(&checkpoint, &anisotropic()).is_ok());
}

#[test]
fn a_failed_write_leaves_the_existing_file() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = small();
    let good = folder.path().join("map.checkpoint.npz");
    checkpoint.write(&good).unwrap();
    let before = std::fs::read(&good).unwrap();
    let taken = folder.path().join("taken");
    std::fs::create_dir_all(taken.join("inside")).unwrap();
    for path in [folder.path().join("missing/map.npz"), good.join("map.npz"), taken] {
        let message = checkpoint.write(&path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot write the checkpoint {}: ", path.display())), "{message}");
    }
    assert_eq!(std::fs::read(&good).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    checkpoint.write(&good).unwrap();
    assert_eq!(std::fs::read(&good).unwrap(), before);
}
