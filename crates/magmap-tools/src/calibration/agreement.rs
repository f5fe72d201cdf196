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
