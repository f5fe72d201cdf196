//! A robot with a magnetometer and odometry that follows a path through a world.

use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::{Drift, Error, Odometry, Path, Stream, World, generator, not_negative, positive};
use magmap::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

/// The phase of the magnetometer in its first period, so that the two sensors do not sample at the same times.
const MAGNETOMETER_PHASE: f64 = 0.37;

/// The properties of a robot.
#[derive(Clone, Debug, PartialEq)]
pub struct RobotOptions {
    /// Speed along the path, in metres per second.
    pub speed: f64,
    /// Readings per second.
    pub magnetometer_rate: f64,
    /// Poses per second.
    pub odometry_rate: f64,
    /// Standard deviation of the noise on each axis of a reading, in microtesla.
    pub noise: f64,
    /// The errors of odometry; without them, it is the truth.
    pub drift: Option<Drift>,
    /// The transform from the sensor's frame to the robot's body frame (x forward, z up).
    pub mount: Isometry3<f64>,
    /// Start of the drive.
    pub start: Stamp,
}

impl Default for RobotOptions {
    fn default() -> Self {
        Self {
            speed: 0.5,
            magnetometer_rate: 50.0,
            odometry_rate: 30.0,
            noise: 0.5,
            drift: None,
            mount: Isometry3::identity(),
            start: Stamp::default(),
        }
    }
}

/// A measurement and the truth at its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedMeasurement {
    /// The measurement.
    pub measurement: Measurement,
    /// The truth.
    pub truth: Truth,
}

/// The truth at the stamp of a measurement, in the map frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// Pose of the body.
    pub pose: Pose,
    /// Position of the sensor, in metres.
    pub sensor: Point3<f64>,
    /// Field at the sensor, along the axes of the map.
    pub field: MagneticField,
}

/// A drive: an iterator over its measurements in the order of their stamps. It begins and ends with a pose, so that every
/// reading is between two.
#[derive(Clone, Debug)]
pub struct SimulatedDrive<W> {
    world: W,
    path: Path,
    /// How the robot drives and measures.
    pub options: RobotOptions,
    noise: ChaCha8Rng,
    odometry: Odometry,
    poses: u64,
    next_pose: u64,
    next_reading: u64,
}

impl<W: World> SimulatedDrive<W> {
    /// A robot at the start of `path`; `seed` is that of its errors.
    ///
    /// # Errors
    /// Speeds and rates that are not above zero.
    pub fn new(world: W, path: Path, options: RobotOptions, seed: u64) -> Result<Self, Error> {
        positive("speed", options.speed)?;
        positive("magnetometer_rate", options.magnetometer_rate)?;
        positive("odometry_rate", options.odometry_rate)?;
        not_negative("noise", options.noise)?;
        if let Some(drift) = options.drift {
            drift.check()?;
        }
        let duration = path.length() / options.speed;
        // Without the addition, rounding could lose the last period.
        let poses = (duration * options.odometry_rate + 1e-6) as u64 + 1;
        let odometry = Odometry::new(options.drift, seed);
        let noise = generator(seed, Stream::Noise);
        Ok(Self { world, path, options, noise, odometry, poses, next_pose: 0, next_reading: 0 })
    }

    /// Duration of the drive, in seconds.
    pub fn duration(&self) -> f64 {
        self.path.length() / self.options.speed
    }

    fn truth(&self, time: f64) -> Truth {
        let (position, heading) = self.path.at(self.options.speed * time);
        let pose = Pose {
            stamp: self.options.start.shifted(time),
            position: Point3::new(position.x, position.y, 0.0),
            orientation: UnitQuaternion::from_axis_angle(&Vector3::z_axis(), heading),
        };
        let sensor = pose.isometry() * self.options.mount * Point3::origin();
        Truth { pose, sensor, field: self.world.field_at(&sensor) }
    }

    fn reading(&mut self, truth: &Truth) -> Reading {
        let sensor_from_map = (truth.pose.orientation * self.options.mount.rotation).inverse();
        let noise: Vector3<f64> = Vector3::from_fn(|_, _| StandardNormal.sample(&mut self.noise));
        let field = truth.field.rotated(&sensor_from_map).microtesla() + noise * self.options.noise;
        Reading { stamp: truth.pose.stamp, field: MagneticField::from_microtesla(field) }
    }
}

impl<W: World> Iterator for SimulatedDrive<W> {
    type Item = SimulatedMeasurement;

    fn next(&mut self) -> Option<SimulatedMeasurement> {
        if self.next_pose == self.poses {
            return None;
        }
        let pose_time = self.next_pose as f64 / self.options.odometry_rate;
        let reading_time = (self.next_reading as f64 + MAGNETOMETER_PHASE) / self.options.magnetometer_rate;
        if reading_time < pose_time {
            self.next_reading += 1;
            let truth = self.truth(reading_time);
            return Some(SimulatedMeasurement { measurement: Measurement::Reading(self.reading(&truth)), truth });
        }
        self.next_pose += 1;
        let truth = self.truth(pose_time);
        Some(SimulatedMeasurement { measurement: Measurement::Pose(self.odometry.report(truth.pose)), truth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{DipoleOptions, DipoleWorld, Route};

    const ROOM: [f64; 2] = [6.0, 6.0];

    fn drive(options: RobotOptions, seed: u64) -> Vec<SimulatedMeasurement> {
        let world = DipoleWorld::random(&DipoleOptions::default(), 1).unwrap();
        let path = Path::through_room(Route::Random, ROOM, 60.0, 1).unwrap();
        SimulatedDrive::new(world, path, options, seed).unwrap().collect()
    }

    fn poses(samples: &[SimulatedMeasurement]) -> Vec<(Pose, Pose)> {
        let pose = |sample: &SimulatedMeasurement| match sample.measurement {
            Measurement::Pose(pose) => Some((pose, sample.truth.pose)),
            Measurement::Reading(_) => None,
        };
        samples.iter().filter_map(pose).collect()
    }

    fn readings(samples: &[SimulatedMeasurement]) -> Vec<(Reading, Truth)> {
        let reading = |sample: &SimulatedMeasurement| match sample.measurement {
            Measurement::Reading(reading) => Some((reading, sample.truth)),
            Measurement::Pose(_) => None,
        };
        samples.iter().filter_map(reading).collect()
    }

    fn distance((reported, truth): &(Pose, Pose)) -> f64 {
        (reported.position - truth.position).norm()
    }

    #[test]
    fn stamps_increase_and_both_sensors_keep_their_rates() {
        let start = Stamp::from_ros(1_700_000_000, 5);
        let samples = drive(RobotOptions { start, ..Default::default() }, 0);
        assert!(samples.windows(2).all(|pair| pair[0].measurement.stamp() < pair[1].measurement.stamp()));
        assert_eq!(samples[0].measurement.stamp(), start);
        assert!(samples.iter().all(|sample| sample.truth.pose.stamp == sample.measurement.stamp()));
        // 60 m at half a metre per second; the first pose is at zero, the first reading within its period.
        assert_eq!(poses(&samples).len(), 120 * 30 + 1);
        assert_eq!(readings(&samples).len(), 120 * 50);
        assert!(matches!(samples.last().unwrap().measurement, Measurement::Pose(_)));
    }

    #[test]
    fn the_robot_drives_along_its_heading_at_its_speed() {
        let samples = drive(RobotOptions { speed: 0.8, ..Default::default() }, 0);
        for pair in poses(&samples).windows(2) {
            let [(earlier, _), (later, _)] = [pair[0], pair[1]];
            let movement = later.position - earlier.position;
            let speed = movement.norm() / later.stamp.seconds_since(earlier.stamp);
            // A chord is never longer than its arc; stamps are whole nanoseconds.
            assert!(speed <= 0.8 * (1.0 + 1e-6), "{speed}");
            let half_way = earlier.orientation.slerp(&later.orientation, 0.5) * Vector3::x();
            assert!(movement.normalize().dot(&half_way) > 0.99, "{movement}");
        }
    }

    #[test]
    fn without_errors_measurements_are_the_truth_in_the_sensors_axes() {
        let mount = Isometry3::new(Vector3::new(0.1, -0.2, 0.3), Vector3::new(0.4, -0.5, 1.6));
        let samples = drive(RobotOptions { noise: 0.0, mount, ..Default::default() }, 0);
        assert!(poses(&samples).iter().all(|(reported, truth)| reported == truth));
        for (reading, truth) in readings(&samples) {
            let map_from_sensor = truth.pose.isometry() * mount;
            let error = map_from_sensor.rotation * reading.field.microtesla() - truth.field.microtesla();
            assert!(error.norm() < 1e-9, "{error}");
            assert!((truth.sensor.z - 0.3).abs() < 1e-12);
            let offset = (truth.sensor - truth.pose.position).norm();
            assert!((offset - mount.translation.vector.norm()).abs() < 1e-9, "{offset}");
        }
    }

    #[test]
    fn noise_has_its_standard_deviation_on_every_axis() {
        let samples = drive(RobotOptions { noise: 0.7, ..Default::default() }, 0);
        let readings = readings(&samples);
        let errors = readings.iter().map(|(reading, truth)| {
            reading.field.microtesla() - truth.pose.orientation.inverse() * truth.field.microtesla()
        });
        let squares: Vector3<f64> = errors.map(|error| error.component_mul(&error)).sum();
        let variances = squares / readings.len() as f64;
        // Four standard errors of a variance from 6000 numbers.
        let tolerance = 4.0 * (2.0 / readings.len() as f64).sqrt();
        assert!(variances.iter().all(|variance| (variance / 0.49 - 1.0).abs() < tolerance), "{variances}");
    }

    #[test]
    fn zero_drift_is_the_truth_and_noise_does_not_depend_on_drift() {
        let zero = Some(Drift::default());
        let samples = drive(RobotOptions { drift: zero, ..Default::default() }, 4);
        // Rounding adds up over 3600 poses.
        assert!(poses(&samples).iter().all(|pair| distance(pair) < 1e-9));
        let exact = drive(RobotOptions::default(), 4);
        assert_eq!(readings(&samples), readings(&exact));
    }

    #[test]
    fn drift_grows_along_the_path_as_it_should() {
        let scaled =
            drive(RobotOptions { drift: Some(Drift { scale: 0.05, ..Drift::default() }), ..Default::default() }, 0);
        let poses_of_scaled = poses(&scaled);
        let start = poses_of_scaled[0].1.position;
        for (reported, truth) in &poses_of_scaled {
            let expected = start + (truth.position - start) * 1.05;
            assert!((reported.position - expected).norm() < 1e-9);
        }

        // Heading errors of many robots after 60 m: 0.01 sqrt(60).
        const ROBOTS: u64 = 100;
        let drift = Some(Drift { heading: 0.01, ..Drift::default() });
        let square = |seed| {
            let samples = drive(RobotOptions { drift, magnetometer_rate: 0.1, ..Default::default() }, seed);
            let (reported, truth) = *poses(&samples).last().unwrap();
            reported.orientation.angle_to(&truth.orientation).powi(2)
        };
        let variance = (0..ROBOTS).map(square).sum::<f64>() / ROBOTS as f64;
        let tolerance = 4.0 * (2.0 / ROBOTS as f64).sqrt();
        assert!((variance / (0.0001 * 60.0) - 1.0).abs() < tolerance, "{variance}");
    }

    #[test]
    fn impossible_robots_are_errors() {
        let path = || Path::through_room(Route::Rectangle, ROOM, 1.0, 0).unwrap();
        let error = |options| {
            let world = DipoleWorld::new(Vector3::zeros(), vec![]);
            SimulatedDrive::new(world, path(), options, 0).err().unwrap().to_string()
        };
        assert!(error(RobotOptions { speed: 0.0, ..Default::default() }).contains("`speed`"));
        let rate = error(RobotOptions { odometry_rate: f64::INFINITY, ..Default::default() });
        assert!(rate.contains("`odometry_rate`") && rate.contains("inf"), "{rate}");
        let drift = Some(Drift { scale: -1.0, ..Drift::default() });
        assert!(error(RobotOptions { drift, ..Default::default() }).contains("drift scale"));
    }
}
