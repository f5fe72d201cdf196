//! A stretch of a drive whose readings can be located under any delay and turned by any yaw, always the same readings
//! in the same cells.

use std::collections::{HashMap, HashSet};

use nalgebra::{Isometry3, Matrix3, Point3, Rotation3, UnitQuaternion, Vector3};

use magmap::config::{Averaging, Config};
use magmap::mapping::averaging::Averager;
use magmap::mapping::pipeline::Pipeline;
use magmap::sensing::counters::Counters;
use magmap::sensing::reading::{LocatedReading, MagneticField, Measurement, Observation, Reading, Stamp};

/// Readings located through the pipeline of a map, averaged over the spacing of these settings.
pub(super) fn locate(
    measurements: &[Measurement],
    config: &Config,
    mount: Isometry3<f64>,
    delay: f64,
) -> (Vec<Observation>, Counters) {
    let mut pipeline = Pipeline::new(config, mount);
    for measurement in measurements {
        pipeline.ingest(earlier(measurement, delay));
    }
    pipeline.finish();
    (pipeline.take_ready().into_iter().flat_map(|batch| batch.observations).collect(), *pipeline.counters())
}

/// The measurement with the stamp of a reading moved back by the delay of its topic.
pub(super) fn earlier(measurement: &Measurement, delay: f64) -> Measurement {
    match measurement {
        Measurement::Reading(reading) => {
            Measurement::Reading(Reading { stamp: reading.stamp.shifted(-delay), ..*reading })
        }
        pose => *pose,
    }
}

/// An average of readings, as a function of the yaw by which the mount is turned.
#[derive(Clone, Debug)]
pub(super) struct TurnableReading {
    pub(super) position: Point3<f64>,
    /// Mean rotation from the body's frame to the map's.
    pub(super) body: Matrix3<f64>,
    /// The field in the map's frame is the first, plus the second times the cosine of the yaw, plus the third times its
    /// sine.
    pub(super) parts: [Vector3<f64>; 3],
    pub(super) speed: f64,
}

/// A stretch of a drive.
pub(super) struct Stretch {
    measurements: Vec<Measurement>,
    config: Config,
    mount: Isometry3<f64>,
    /// The cell of the readings with each stamp.
    cells: HashMap<Stamp, usize>,
    length: usize,
}

impl Stretch {
    /// The stretch of a drive whose cells end with these stamps, as averaged without delay. Its readings are those that
    /// can be located under all delays up to `greatest_delay` either way.
    pub(super) fn new(
        measurements: &[Measurement],
        config: &Config,
        mount: Isometry3<f64>,
        ends: &[Stamp],
        greatest_delay: f64,
    ) -> Self {
        // The first cell may start much earlier, while the robot stood still: that cell is left out.
        let margin = config.synchronizer.max_gap + greatest_delay + 1.0;
        let (start, end) = (ends.first().copied().unwrap_or_default(), ends.last().copied().unwrap_or_default());
        let range = start.shifted(-margin)..=end.shifted(margin);
        let measurements: Vec<Measurement> =
            measurements.iter().filter(|measurement| range.contains(&measurement.stamp())).copied().collect();
        let mut config = config.clone();
        config.averaging.spacing = 0.0;
        // What the first pass accepted is accepted under every delay.
        let accepted: Vec<Stamp> =
            locate(&measurements, &config, mount, 0.0).0.iter().map(|observation| observation.stamp).collect();
        config.gates.max_gradient = 0.0;
        config.gates.max_pulse = 0.0;
        config.gates.max_repeat = 0.0;
        let mut stretch = Self { measurements, config, mount, cells: HashMap::new(), length: ends.len() };
        let at = |delay| -> Vec<Stamp> { stretch.located(delay).map(|reading| reading.stamp).collect() };
        let extremes =
            [at(-greatest_delay), at(greatest_delay)].map(|stamps| stamps.into_iter().collect::<HashSet<Stamp>>());
        for stamp in accepted.into_iter().filter(|stamp| extremes.iter().all(|located| located.contains(stamp))) {
            let cell = ends.partition_point(|end| *end < stamp);
            if cell > 0 && cell < ends.len() {
                stretch.cells.insert(stamp, cell);
            }
        }
        stretch
    }

    /// The readings one by one, with the stamps that they were recorded with.
    fn located(&self, delay: f64) -> impl Iterator<Item = LocatedReading> {
        let (observations, _) = locate(&self.measurements, &self.config, self.mount, delay);
        observations.into_iter().map(move |seen| LocatedReading {
            stamp: seen.stamp.shifted(delay),
            position: seen.position,
            orientation: UnitQuaternion::from_rotation_matrix(&Rotation3::from_matrix_unchecked(seen.orientation)),
            field: seen.field,
        })
    }

    /// The averages of its cells under a delay.
    pub(super) fn readings(&self, delay: f64) -> Vec<TurnableReading> {
        let mut cells: Vec<Vec<LocatedReading>> = vec![Vec::new(); self.length];
        for reading in self.located(delay) {
            if let Some(cell) = self.cells.get(&reading.stamp) {
                cells[*cell].push(reading);
            }
        }
        cells.iter().filter_map(|cell| self.average(cell)).collect()
    }

    fn average(&self, cell: &[LocatedReading]) -> Option<TurnableReading> {
        let part = |of: fn(&Vector3<f64>) -> Vector3<f64>| {
            let mut averager = Averager::new(&Averaging { spacing: f64::INFINITY });
            for reading in cell {
                let body = reading.orientation * self.mount.rotation.inverse();
                let turned = |field: MagneticField| body * of(&(body.inverse() * field.microtesla()));
                let field = MagneticField::from_microtesla(turned(reading.field));
                averager.push(&LocatedReading { orientation: body, field, ..*reading });
            }
            averager.close()
        };
        let vertical = part(|field| Vector3::new(0.0, 0.0, field.z))?;
        let along = part(|field| Vector3::new(field.x, field.y, 0.0))?;
        let across = part(|field| Vector3::new(-field.y, field.x, 0.0))?;
        Some(TurnableReading {
            position: vertical.position,
            body: vertical.orientation,
            parts: [vertical, along, across].map(|part| *part.field.microtesla()),
            speed: vertical.speed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{settings, turned};
    use super::*;
    use magmap::sensing::reading::Pose;

    /// Metres per second.
    const SPEED: f64 = 0.5;

    fn mount() -> Isometry3<f64> {
        Isometry3::new(Vector3::new(0.1, 0.0, 0.2), Vector3::x() * 0.3)
    }

    /// A drive of 15 m on a circle with a radius of 1.5 m.
    fn drive() -> Vec<Measurement> {
        let measurements = |tick: i64| {
            let stamp = Stamp::from_nanoseconds(tick * 20_000_000);
            let heading = stamp.seconds() * SPEED / 1.5;
            let position = Point3::new(1.5 * heading.sin(), -1.5 * heading.cos(), 0.0);
            let orientation = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), heading);
            let field =
                Vector3::new(20.0 + 5.0 * (2.0 * heading).sin(), 10.0 * heading.cos(), -40.0 + 5.0 * heading.sin());
            let field = MagneticField::from_microtesla(field);
            let reading = Measurement::Reading(Reading { stamp, field });
            let pose = Measurement::Pose(Pose { stamp, position, orientation });
            std::iter::once(reading).chain((tick % 2 == 0).then_some(pose))
        };
        (0..1500).flat_map(measurements).collect()
    }

    fn observations(mount: Isometry3<f64>) -> Vec<Observation> {
        locate(&drive(), &settings(&Config::default()), mount, 0.0).0
    }

    fn stretch() -> Stretch {
        let ends: Vec<Stamp> = observations(mount()).iter().map(|observation| observation.stamp).collect();
        Stretch::new(&drive(), &settings(&Config::default()), mount(), &ends[20..120], 0.5)
    }

    #[test]
    fn a_delay_moves_readings_and_leaves_poses() {
        let [reading, pose, ..] = drive()[..] else { panic!() };
        assert_eq!(earlier(&pose, 0.1), pose);
        let moved = earlier(&reading, 0.1);
        assert_eq!(moved.stamp(), Stamp::from_seconds(-0.1));
        assert!(matches!((moved, reading), (Measurement::Reading(a), Measurement::Reading(b)) if a.field == b.field));
    }

    #[test]
    fn with_any_yaw_the_parts_sum_to_the_averages_under_the_turned_mount() {
        let readings = stretch().readings(0.0);
        // The first cell is left out.
        assert_eq!(readings.len(), 99);
        for yaw in [0.0, 0.4, -2.0] {
            let mount = turned(&mount(), yaw);
            let to_body = mount.rotation.to_rotation_matrix();
            for (reading, expected) in readings.iter().zip(&observations(mount)[21..]) {
                let [a, b, c] = reading.parts;
                let field = a + b * f64::cos(yaw) + c * f64::sin(yaw);
                // Sums of a few readings in another order.
                assert!((field - expected.field.microtesla()).norm() < 1e-9, "{field} {expected:?}");
                assert!((reading.position - expected.position).norm() < 1e-9, "{reading:?} {expected:?}");
                assert!((reading.body * to_body.matrix() - expected.orientation).norm() < 1e-9, "{expected:?}");
            }
        }
    }

    #[test]
    fn the_same_readings_are_in_the_same_cells_under_every_delay_at_other_places() {
        let stretch = stretch();
        let now = stretch.readings(0.0);
        for delay in [-0.45, 0.3] {
            let delayed = stretch.readings(delay);
            assert_eq!(delayed.len(), now.len());
            for (delayed, now) in delayed.iter().zip(&now) {
                // A robot that turns in the plane leaves the vertical axis of its readings as it is.
                assert!((delayed.parts[0] - now.parts[0]).norm() < 1e-9, "{delayed:?} {now:?}");
                // Readings that are late were taken where the sensor was before, on a chord of its circle; where poses are
                // interpolated, and in an average, it is up to a millimetre inside of it.
                let moved = (delayed.position - now.position).norm();
                let arc = f64::abs(delay) * SPEED / 1.5;
                let radius = (1.5_f64.powi(2) + 0.1 * 0.1).sqrt();
                assert!((moved - 2.0 * radius * (arc / 2.0).sin()).abs() < 1e-3, "{moved}");
            }
        }
    }
}
