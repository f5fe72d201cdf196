//! Readings that are stamped later than poses.

use std::fmt::{self, Display, Formatter};

use nalgebra::{Isometry2, Vector2, Vector3};
use serde::{Deserialize, Serialize};

use crate::sensing::reading::Observation;

/// How much later readings are stamped than poses, beyond `sensor.delay`: the sensor measured where it was that much earlier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delay {
    /// The delay, in seconds.
    pub seconds: f64,
    /// Its standard deviation, in seconds.
    pub deviation: f64,
    /// Number of the first batch without it, as `sensor.delay` has been set since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
}

/// Delays that differ by less are the same, in seconds: half a centimetre at 0.5 m/s.
const SAME: f64 = 0.01;

impl Display for Delay {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { seconds, deviation, .. } = self;
        write!(f, "readings are stamped {seconds:.3} ± {deviation:.3} s later than poses (sensor.delay)")
    }
}

impl Delay {
    /// Whether another delay makes another map.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        (self.seconds - other.seconds).abs() > SAME
    }

    /// Whether both numbers are finite: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        self.seconds.is_finite() && self.deviation.is_finite()
    }

    /// Whether the readings of this batch were as late.
    pub(super) fn concerns(&self, batch: u64) -> bool {
        self.end.is_none_or(|end| batch < end)
    }

    /// Movements of odometry between taking a reading and its stamp: of each observation of a batch, in metres along the axes of odometry's
    /// frame and in radians.
    pub(super) fn lags(&self, batch: &[Observation]) -> impl Iterator<Item = Vector3<f64>> {
        velocities(batch).map(|velocity| velocity * self.seconds)
    }

    /// The observations of a batch where they were measured.
    pub(super) fn undone(&self, batch: &[Observation]) -> Vec<Observation> {
        batch.iter().zip(self.lags(batch)).map(|(seen, lag)| earlier(seen, &lag)).collect()
    }
}

/// Velocities at the observations of a batch, in metres and radians per second: means of the movements from the observation before and to that
/// after, limited so that where the robot stops, or turns on the spot, that of most of the readings counts.
pub(crate) fn velocities(batch: &[Observation]) -> impl Iterator<Item = Vector3<f64>> {
    (0..batch.len()).map(|index| {
        let before = index.checked_sub(1).map(|before| velocity(&batch[before], &batch[index]));
        let after = batch.get(index + 1).map(|after| velocity(&batch[index], after));
        match (before, after) {
            (Some(before), Some(after)) => before.zip_map(&after, limited_mean),
            (before, after) => before.or(after).unwrap_or_default(),
        }
    })
}

/// The velocity from one observation to the next; zero where their stamps tell none.
fn velocity(start: &Observation, end: &Observation) -> Vector3<f64> {
    let seconds = end.stamp.seconds_since(start.stamp);
    let (from, to) = (start.in_plane(), end.in_plane());
    let moved = to.translation.vector - from.translation.vector;
    let turned = from.rotation.rotation_to(&to.rotation).angle();
    if seconds > 0.0 { Vector3::new(moved.x, moved.y, turned) / seconds } else { Vector3::zeros() }
}

/// The monotonized central limiter (B. van Leer, "Towards the ultimate conservative difference scheme III", 1977).
fn limited_mean(one: f64, other: f64) -> f64 {
    if one * other > 0.0 {
        one.signum() * (0.5 * (one + other).abs()).min(2.0 * one.abs().min(other.abs()))
    } else {
        0.0
    }
}

/// An observation before this movement of odometry.
pub(crate) fn earlier(seen: &Observation, lag: &Vector3<f64>) -> Observation {
    let pose = seen.in_plane();
    let place = pose.translation.vector - Vector2::new(lag.x, lag.y);
    seen.moved_to(&Isometry2::new(place, pose.rotation.angle() - lag.z))
}

#[cfg(test)]
mod tests {
    use nalgebra::{Isometry3, Point3};

    use super::*;
    use crate::sensing::reading::{MagneticField, Stamp};

    /// Metres per second, and radius of the circle that the robot is on.
    const SPEED: f64 = 0.5;
    const RADIUS: f64 = 1.5;

    /// An observation on a circle whose sensor sees the same field everywhere, at a height.
    fn on_circle(seconds: f64) -> Observation {
        let heading = seconds * SPEED / RADIUS;
        let pose =
            Isometry3::new(Vector3::new(RADIUS * heading.sin(), -RADIUS * heading.cos(), 0.4), Vector3::z() * heading);
        Observation {
            stamp: Stamp::from_seconds(seconds),
            position: Point3::from(pose.translation.vector),
            orientation: pose.rotation.to_rotation_matrix().into_inner(),
            speed: SPEED,
            field: MagneticField::from_microtesla(pose.rotation * Vector3::new(20.0, 5.0, -40.0)),
            strength: 45.0,
            readings: 3,
        }
    }

    fn delay(seconds: f64) -> Delay {
        Delay { seconds, deviation: 0.01, end: None }
    }

    #[test]
    fn late_observations_are_where_the_sensor_was_before_and_their_fields_are_turned_back() {
        let batch: Vec<Observation> = (0..20).map(|index| on_circle(0.1 * f64::from(index))).collect();
        for seconds in [0.15, -0.1] {
            let measured = delay(seconds).undone(&batch);
            for (index, (found, seen)) in measured.iter().zip(&batch).enumerate() {
                let expected = on_circle(seen.stamp.seconds() - seconds);
                // A tangent of 7.5 cm leaves the circle by 1.9 mm; at the ends velocities are those half a step away.
                let tolerance = if (1..19).contains(&index) { 2e-3 } else { 0.02 };
                let off =
                    (found.position - expected.position).norm() + (found.orientation - expected.orientation).norm();
                let field = (found.field.microtesla() - expected.field.microtesla()).norm();
                assert!(off < tolerance && field < 40.0 * tolerance, "{seconds} {index}: {off} m, {field} microtesla");
                assert!((found.stamp, found.strength, found.position.z) == (seen.stamp, 45.0, 0.4));
            }
        }
    }

    #[test]
    fn stamps_that_do_not_ascend_tell_no_velocity_and_a_single_observation_none() {
        let stopped: Vec<Observation> =
            (0..3).map(|index| Observation { stamp: Stamp::default(), ..on_circle(f64::from(index)) }).collect();
        for batch in [&stopped[..], &stopped[..1], &[]] {
            assert_eq!(velocities(batch).collect::<Vec<_>>(), vec![Vector3::zeros(); batch.len()]);
            let measured = delay(0.1).undone(batch);
            let moved = measured.iter().zip(batch).map(|(found, seen)| (found.position - seen.position).norm());
            assert!(measured.len() == batch.len() && moved.into_iter().all(|moved| moved < 1e-12));
        }
        let back = [on_circle(1.0), on_circle(0.0)];
        assert!(velocities(&back).all(|velocity| velocity == Vector3::zeros()));
    }

    #[test]
    fn a_delay_ends_with_the_batch_before_which_somebody_set_it_and_must_be_finite() {
        let ended = Delay { end: Some(3), ..delay(0.1) };
        assert_eq!([0, 2, 3, u64::MAX].map(|batch| ended.concerns(batch)), [true, true, false, false]);
        assert!(delay(0.1).concerns(u64::MAX));
        assert!(delay(0.1).is_valid() && !delay(f64::NAN).is_valid());
        assert!(!Delay { deviation: f64::INFINITY, ..delay(0.1) }.is_valid());
        assert!(!delay(0.1).differs_from(&delay(0.105)) && delay(0.1).differs_from(&delay(0.12)));
        assert_eq!(delay(0.1126).to_string(), "readings are stamped 0.113 ± 0.010 s later than poses (sensor.delay)");
    }
}
