//! How far readings at one place disagree, and under which headings a robot drove.

use std::collections::HashMap;
use std::f64::consts::{FRAC_PI_4, PI, TAU};

use nalgebra::{Isometry3, Vector3};
use serde::Serialize;

use magmap::sensing::reading::Observation;

/// Readings within this distance are at one place, in metres.
const PLACE: f64 = 0.1;

/// Fewest pairs that say anything. Those before and after calibration differ: a delay moves readings along the path.
const FEWEST_PAIRS: usize = 5;

/// Most pairs that are compared: more say nothing new.
const MOST_PAIRS: usize = 100_000;

/// How far readings at one place, taken under headings that differ by more than 45 degrees, disagree before and after
/// calibration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Number of pairs, before or after, whichever are fewer.
    pub pairs: usize,
    /// Root mean square of the difference of the two fields in the map's frame (the length of the vector), in
    /// microtesla, as recorded.
    pub before: f64,
    /// Root mean square of the difference after calibration, in microtesla.
    pub after: f64,
}

impl Agreement {
    /// Compares the observations of a drive as recorded and calibrated; `None` with fewer than five pairs. `mount` is
    /// the mount of the recording: a small yaw changes no heading by much.
    pub(super) fn of(before: &[Observation], after: &[Observation], mount: &Isometry3<f64>) -> Option<Self> {
        let [before, after] = [before, after].map(|observations| disagreement(observations, mount));
        let pairs = before.0.min(after.0);
        (pairs >= FEWEST_PAIRS).then_some(Self { pairs, before: before.1, after: after.1 })
    }
}

/// Number of pairs, and the root mean square of their difference.
fn disagreement(observations: &[Observation], mount: &Isometry3<f64>) -> (usize, f64) {
    let key = |observation: &Observation| [0, 1].map(|axis| (observation.position[axis] / PLACE).floor() as i64);
    let mut places: HashMap<[i64; 2], Vec<usize>> = HashMap::new();
    let headings: Vec<f64> = observations.iter().map(|observation| heading_of(observation, mount)).collect();
    let (mut pairs, mut squares) = (0, 0.0);
    for (index, observation) in observations.iter().enumerate() {
        let [x, y] = key(observation);
        let around = (-1..=1).flat_map(|dx| (-1..=1).map(move |dy| [x + dx, y + dy]));
        for &other in around.filter_map(|key| places.get(&key)).flatten() {
            let near = (observations[other].position - observation.position).norm() < PLACE;
            if near && differ(headings[index], headings[other]) && pairs < MOST_PAIRS {
                pairs += 1;
                squares += (observations[other].field.microtesla() - observation.field.microtesla()).norm_squared();
            }
        }
        places.entry([x, y]).or_default().push(index);
    }
    (pairs, (squares / (pairs as f64).max(1.0)).sqrt())
}

/// The heading of the robot's body.
pub(super) fn heading_of(observation: &Observation, mount: &Isometry3<f64>) -> f64 {
    let forward = observation.orientation * (mount.rotation.inverse() * Vector3::x());
    forward.y.atan2(forward.x)
}

/// Whether two headings differ by more than 45 degrees.
pub(super) fn differ(one: f64, other: f64) -> bool {
    ((one - other + PI).rem_euclid(TAU) - PI).abs() > FRAC_PI_4
}

/// Metres of path in each of eight sectors.
pub(super) fn headings(observations: &[Observation], mount: &Isometry3<f64>, spacing: f64) -> [f64; 8] {
    let mut sectors = [0.0; 8];
    for observation in observations {
        let sector = (heading_of(observation, mount) / FRAC_PI_4).round().rem_euclid(8.0) as usize;
        sectors[sector % 8] += spacing;
    }
    sectors
}

#[cfg(test)]
mod tests {
    use super::super::tests::observation;
    use super::*;
    use magmap::sensing::reading::MagneticField;
    use nalgebra::UnitQuaternion;
    use std::f64::consts::FRAC_PI_2;

    /// Two paths of 4 m that cross in the middle at right angles, one of them `offset` microtesla stronger.
    fn crossing(offset: f64) -> Vec<Observation> {
        let with_field = |observation: Observation, strength: f64| Observation {
            field: MagneticField::from_microtesla(Vector3::new(0.0, strength, 0.0)),
            ..observation
        };
        let places = || (-40..=40).map(|i| 0.05 * f64::from(i));
        let along = places().map(|x| with_field(observation(x, 0.01, 0.0), 50.0));
        along.chain(places().map(|y| with_field(observation(0.01, y, FRAC_PI_2), 50.0 + offset))).collect()
    }

    #[test]
    fn pairs_near_a_crossing_are_compared_and_no_others() {
        let drives = [crossing(3.0), crossing(0.5)];
        let found = Agreement::of(&drives[0], &drives[1], &Isometry3::identity()).unwrap();
        let near = |one: &Observation, other: &Observation| (one.position - other.position).norm() < 0.1;
        let (one, other) = drives[0].split_at(81);
        let pairs: usize = one.iter().map(|one| other.iter().filter(|other| near(one, other)).count()).sum();
        assert!(pairs > 5 && pairs < 30, "{pairs}");
        assert_eq!(found.pairs, pairs);
        assert!((found.before - 3.0).abs() < 1e-12 && (found.after - 0.5).abs() < 1e-12, "{found:?}");
        // On one path neighbours have the same heading.
        assert_eq!(Agreement::of(one, other, &Isometry3::identity()), None);
    }

    #[test]
    fn headings_are_those_of_the_body_and_fall_into_eight_sectors() {
        // The sensor looks to the left of the robot.
        let mount = Isometry3::rotation(Vector3::z() * FRAC_PI_2);
        let seen = |heading: f64| {
            let sensor = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), heading) * mount.rotation;
            Observation { orientation: sensor.to_rotation_matrix().into_inner(), ..observation(0.0, 0.0, 0.0) }
        };
        assert!((heading_of(&seen(0.4), &mount) - 0.4).abs() < 1e-12);
        let drive: Vec<Observation> = [0.0, 0.39, -0.39, 0.4, PI, -PI, -0.4].map(seen).into();
        let found = headings(&drive, &mount, 0.1);
        // The sectors reach 22.5 degrees, 0.393, to either side.
        let expected = [0.3, 0.1, 0.0, 0.0, 0.2, 0.0, 0.0, 0.1];
        assert!((0..8).all(|sector| (found[sector] - expected[sector]).abs() < 1e-12), "{found:?}");
    }

    #[test]
    fn headings_differ_beyond_45_degrees_also_across_half_a_turn() {
        assert!(differ(0.0, 0.8) && differ(3.1, -2.3) && differ(1.0, 1.0 + PI));
        assert!(!differ(0.0, 0.7) && !differ(3.1, -3.1) && !differ(0.1, 0.1 + TAU));
    }
}
