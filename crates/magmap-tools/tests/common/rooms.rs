//! Simulated rooms, robots that drive through them, and what maps are worth.

use magmap::config::{Config, Localization, Mapped};
use magmap::field::map::FieldMap;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::reading::{MagneticField, Measurement, Observation, Pose, Reading};
use magmap::session::Session;
use magmap_tools::simulation::{DipoleOptions, Route, Simulation, demo};
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use streaming_gp::SensorPose;

/// Settings with which a map is made at once.
pub fn settings(field: Mapped) -> Config {
    let mut config = Config::default();
    config.model.field = field;
    // Values that suit simulated rooms: learning them takes most of the time.
    config.learning.max_evaluations = 0;
    config
}

/// Fewer particles than usual are enough for a room.
pub fn localization() -> Localization {
    Localization { max_particles: 5000, ..Localization::default() }
}

/// A drive through a room: the world by its seed; route, noise and time of day by another.
pub fn drive(size: [f64; 2], world: u64, seed: u64, route: Route, seconds: f64) -> Vec<Measurement> {
    let world = Simulation { seed: world, world: DipoleOptions { size, ..Default::default() }, ..demo() };
    let mut drive = Simulation { seed, route, duration: seconds, ..world.clone() };
    drive.robot.start = drive.robot.start.shifted(1000.0 * seed as f64);
    drive.drive(world.world().unwrap()).unwrap().map(|sample| sample.measurement).collect()
}

pub const LANES: Route = Route::LawnMower { spacing: 0.7 };

/// Measurements of another robot: `frame` is the transform from its frame to that of the first.
pub fn of_another(frame: Isometry3<f64>, hard_iron: [f64; 3]) -> impl Fn(Measurement) -> Measurement {
    move |measurement| match measurement {
        Measurement::Pose(pose) => {
            let there = frame.inverse() * pose.isometry();
            Measurement::Pose(Pose { position: there.translation.vector.into(), orientation: there.rotation, ..pose })
        }
        Measurement::Reading(reading) => {
            let field = MagneticField::from_microtesla(reading.field.microtesla() + Vector3::from(hard_iron));
            Measurement::Reading(Reading { field, ..reading })
        }
    }
}

/// A frame that is turned by 70 degrees and shifted by 3 m.
pub fn other_frame() -> Isometry3<f64> {
    let turn = UnitQuaternion::from_euler_angles(0.0, 0.0, 70_f64.to_radians());
    Isometry3::from_parts(Vector3::new(2.4, -1.8, 0.0).into(), turn)
}

/// Sends measurements no faster than they are learnt, so that no batches are merged: the map does not depend on the speed of the computer.
pub fn send(session: &Session, measurements: impl IntoIterator<Item = Measurement>) {
    for (index, measurement) in measurements.into_iter().enumerate() {
        session.mapping.inbox.send(measurement).unwrap();
        if index % 50 == 0 {
            session.mapping.inspect(|_| ()).unwrap();
        }
    }
}

/// Observations that a map learns from these measurements.
pub fn observations(measurements: &[Measurement]) -> Vec<Observation> {
    let mut pipeline = Pipeline::new(&Config::default(), Isometry3::identity());
    measurements.iter().for_each(|measurement| pipeline.ingest(*measurement));
    pipeline.finish();
    pipeline.take_ready().into_iter().flat_map(|batch| batch.observations).collect()
}

/// Root mean square errors of a map on the observations of a drive, in microtesla: of the axes, and of the strength.
pub fn errors(map: &FieldMap, drive: &[Observation]) -> [f64; 2] {
    let pose = |seen: &Observation| SensorPose {
        position: seen.position.into(),
        orientation: seen.orientation.transpose().into(),
        speed: seen.speed,
    };
    let readings = map.readings(&drive.iter().map(pose).collect::<Vec<_>>()).unwrap();
    let field = |mean: [f64; 3]| Vector3::from(mean);
    let squares = drive.iter().zip(&readings).map(|(seen, axes)| {
        let (found, expected) = (field(axes.mean), seen.field.microtesla());
        [(found - expected).norm_squared() / 3.0, (found.norm() - expected.norm()).powi(2)]
    });
    let sum = squares.fold([0.0; 2], |sum, square| [sum[0] + square[0], sum[1] + square[1]]);
    sum.map(|sum| (sum / drive.len() as f64).sqrt())
}
