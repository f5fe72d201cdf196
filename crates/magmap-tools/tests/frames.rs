//! A bag with the transforms of SLAM: a replay maps it as a node does, in the frame that the settings name.

use magmap::config::{Config, PoseSource};
use magmap::field::model::FieldModel;
use magmap::mapping::batcher::Batch;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::intake::{Intake, SensorMessage};
use magmap::sensing::reading::{MagneticField, Pose, Reading, Stamp};
use magmap_tools::recording::messages::{self, Odometry, TFMessage};
use magmap_tools::recording::writer::{BagWriter, Storage};
use magmap_tools::recording::{self, Recording};
use nalgebra::{Isometry3, Point3, Translation3, UnitQuaternion, Vector3};
use std::path::Path;

const SECONDS: f64 = 60.0;

fn place(x: f64, y: f64, yaw: f64) -> Isometry3<f64> {
    Isometry3::from_parts(Translation3::new(x, y, 0.0), UnitQuaternion::from_euler_angles(0.0, 0.0, yaw))
}

/// The body in the map: circles with a radius of 2 m, one in 20 s.
fn truth(seconds: f64) -> Isometry3<f64> {
    let angle = std::f64::consts::TAU * seconds / 20.0;
    place(2.0 * angle.sin(), 2.0 - 2.0 * angle.cos(), angle)
}

/// The frame of odometry in the map: it drifts, and SLAM corrects it every ten seconds.
fn odometry_in_map(seconds: f64) -> Isometry3<f64> {
    let lap = f64::floor(seconds / 10.0);
    place(3.0 + 0.2 * lap, -1.0 - 0.1 * lap, 0.5 + 0.02 * lap)
}

/// The sensor on the body, on a mast that turns.
fn mast(seconds: f64) -> Isometry3<f64> {
    place(0.2, 0.0, 0.3 * seconds)
}

fn arm() -> Isometry3<f64> {
    place(0.1, 0.05, 0.0)
}

/// The strength at a place of the map, in microtesla.
fn strength(place: Point3<f64>) -> f64 {
    50.0 + 8.0 * (1.3 * place.x).sin() * (1.1 * place.y).cos()
}

/// A bag of the drive: 50 readings, 50 poses of odometry and 20 of SLAM a second.
fn write(path: &Path) {
    let mut bag = BagWriter::create(path, Storage::Mcap).unwrap();
    let transform = |stamp, parent, child, transform| TFMessage::of_one(stamp, parent, child, &transform);
    bag.write("/tf_static", &transform(Stamp::from_seconds(100.0), "mast", "imu", arm()), Stamp::from_seconds(100.0))
        .unwrap();
    for step in 0..(100.0 * SECONDS) as i64 {
        let (stamp, seconds) = (Stamp::from_nanoseconds(100_000_000_000 + step * 10_000_000), 0.01 * step as f64);
        if step % 5 == 0 {
            bag.write("/tf", &transform(stamp, "map", "odom", odometry_in_map(seconds)), stamp).unwrap();
        }
        if step % 2 == 0 {
            let body = odometry_in_map(seconds).inverse() * truth(seconds);
            bag.write("/tf", &transform(stamp, "odom", "base_link", body), stamp).unwrap();
            bag.write("/tf", &transform(stamp, "base_link", "mast", mast(seconds)), stamp).unwrap();
            let pose = Pose { stamp, position: body.translation.vector.into(), orientation: body.rotation };
            bag.write("/odom", &Odometry::from_pose(&pose, "odom", "base_link"), stamp).unwrap();
        } else {
            let sensor = truth(seconds) * mast(seconds) * arm();
            let field = Vector3::new(0.36, 0.48, 0.8) * strength(sensor.translation.vector.into());
            let field = MagneticField::from_microtesla(field);
            bag.write("/imu/mag", &messages::MagneticField::new(stamp, &field, "imu"), stamp).unwrap();
        }
    }
    bag.finish().unwrap();
}

/// When a node hears a message: static transforms three seconds late, other transforms and odometry some hundredths of a second.
fn arrival(message: &SensorMessage) -> i64 {
    let (stamp, delay) = match message {
        SensorMessage::Reading { reading: Reading { stamp, .. }, .. } => (stamp.nanoseconds(), 2),
        SensorMessage::Odometry { pose, .. } => (pose.stamp.nanoseconds(), 35),
        SensorMessage::Transform { stamp: Some(stamp), .. } => (stamp.nanoseconds(), 80),
        SensorMessage::Transform { stamp: None, .. } => (Stamp::from_seconds(100.0).nanoseconds(), 3000),
    };
    stamp + delay * 1_000_000
}

/// The batches of messages in this order.
fn batches(config: &Config, mut intake: Intake, messages: impl IntoIterator<Item = SensorMessage>) -> Vec<Batch> {
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    let mut sink = |input| pipeline.ingest(input);
    messages.into_iter().for_each(|message| intake.take(message, &mut sink));
    intake.finish(&mut sink);
    pipeline.finish();
    pipeline.take_ready().into()
}

fn config(source: PoseSource) -> Config {
    let mut config = Config::default();
    (config.frames.map, config.frames.pose_source) = ("map".into(), source);
    config
}

fn open(path: &Path, config: &Config) -> Recording {
    recording::open(path, config).unwrap()
}

#[test]
fn a_bag_with_transforms_is_mapped_as_by_a_node_in_the_frame_of_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    write(&path);
    for source in [PoseSource::Odometry, PoseSource::Transforms] {
        let config = config(source);
        let recording = open(&path, &config);
        let (replay, mut messages) = (recording.intake.clone(), recording.map(Result::unwrap).collect::<Vec<_>>());
        assert_eq!(replay.map_frame(), Some("map"));
        let offline = batches(&config, replay, messages.clone());
        messages.sort_by_key(arrival);
        let online = batches(&config, Intake::new(&config), messages);
        assert!(offline.len() > 5 && online == offline, "{source:?}: {} and {} batches", online.len(), offline.len());

        let mut model = FieldModel::new(&config);
        for batch in &offline {
            model.update(&batch.observations, &|| false).unwrap();
        }
        let map = model.map().unwrap();
        let places: Vec<Point3<f64>> =
            offline.iter().flat_map(|batch| &batch.observations).map(|observation| observation.position).collect();
        let (means, _) = map.predict(&places.iter().map(|place| [place.x, place.y]).collect::<Vec<_>>(), f64::INFINITY);
        let errors = means.iter().zip(&places).map(|(mean, place)| mean - strength(*place));
        let rms = (errors.map(|error| error * error).sum::<f64>() / places.len() as f64).sqrt();
        // In another frame, or with a mast that stands still, the map would be wrong by microtesla. What is left is the averaging.
        assert!(rms < 0.2, "{source:?}: {rms} microtesla");
    }
}

#[test]
fn a_frame_that_the_bag_does_not_have_is_rejected_with_those_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bag");
    write(&path);
    for source in [PoseSource::Odometry, PoseSource::Transforms] {
        let mut config = config(source);
        config.frames.map = "world".into();
        let error = recording::open(&path, &config).err().unwrap().to_string();
        for part in ["\"world\"", "frames.map", "map -> odom"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
