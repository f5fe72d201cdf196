//! Fields that are switched on and off again.

use nalgebra::Vector3;
use serde::{Deserialize, Serialize};

use crate::config;
use crate::sensing::reading::Observation;

/// Rejects observations of a field that changes suddenly and, within `max_pulse` of path, changes back as suddenly: a cable or a motor
/// that is switched on for a moment, a magnet that passes. The field of a building does not do that: it changes over the distance of its
/// sources.
///
/// A change is sudden if it is many times the usual change along the last metre. Observations after one are held until the field has
/// changed back, or the pulse is too long to be one: then they are accepted, and the change is that of the building. The first and the last
/// of a pulse may be averages with readings from outside of it, so the first one after it is rejected as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PulseGate {
    /// The last accepted observation.
    before: Option<Observation>,
    /// Observations after a sudden change.
    held: Vec<Observation>,
    /// Mean change of the field along the last metre or so, in microtesla per metre; 0 where nothing is known.
    usual: f64,
}

/// A change is sudden if it is greater than the usual one by this factor: noise alone reaches 2.5 times its mean.
const SUDDEN: f64 = 4.0;

/// Least sudden change, in microtesla: smaller ones matter to nobody.
const LEAST: f64 = 3.0;

/// Length of path over which the usual change is averaged, with exponentially decreasing weights, in metres.
const MEMORY: f64 = 1.0;

/// Changes over less than this distance are those over it, in metres: what remains of them is noise.
const NEAR: f64 = 0.05;

/// Observations further apart than this, in metres, do not tell whether a change is sudden.
const FAR: f64 = 0.5;

/// Rotation between two observations, as the norm of the difference of the rotation matrices, above which a wrong mount or the robot's own
/// field could explain a change: some 15 degrees.
const TURNED: f64 = 0.36;

/// Largest difference between the changes at both ends of a pulse, and largest change between neighbours within it, relative to its height.
const UNLIKE: [f64; 2] = [0.5, 0.3];

/// Decision on observations.
#[derive(Clone, Debug, PartialEq)]
pub enum Passed {
    /// Accepted, in this order: those that were held, and this one unless it is held now.
    Accepted(Vec<Observation>, Option<Observation>),
    /// Rejected.
    Rejected(Vec<Observation>),
}

impl PulseGate {
    /// Takes the next observation, and decides on those that are held and it, or holds it.
    pub fn check(&mut self, settings: &config::Gates, seen: Observation) -> Passed {
        let is_enabled = settings.max_pulse > 0.0 && self.usual > 0.0;
        let Some(before) = self.before.filter(|_| is_enabled) else { return self.accept(seen) };
        let last = self.held.last().unwrap_or(&before);
        let is_comparable = distance(last, &seen) <= FAR && (last.orientation - seen.orientation).norm() <= TURNED;
        let Some(first) = self.held.first() else {
            if is_comparable && change(&before, &seen).norm() > self.limit(&before, &seen) {
                self.held.push(seen);
                return Passed::Accepted(Vec::new(), None);
            }
            return self.accept(seen);
        };
        if !is_comparable || distance(first, &seen) > settings.max_pulse {
            return self.accept(seen);
        }
        self.held.push(seen);
        if !self.has_changed_back(&before) {
            return Passed::Accepted(Vec::new(), None);
        }
        Passed::Rejected(std::mem::take(&mut self.held))
    }

    /// Accepts what is held, at the end of a stretch or of a batch.
    pub fn release(&mut self) -> Vec<Observation> {
        let held = std::mem::take(&mut self.held);
        self.before = held.last().copied().or(self.before);
        held
    }

    fn accept(&mut self, seen: Observation) -> Passed {
        let held = self.release();
        if let Some(before) = self.before {
            let apart = distance(&before, &seen).max(NEAR);
            let change = change(&before, &seen).norm();
            // A single change is no more than sudden.
            let rate = if self.usual == 0.0 { change } else { change.min(self.limit(&before, &seen)) } / apart;
            let weight = if self.usual == 0.0 { 1.0 } else { (apart / MEMORY).min(1.0) };
            self.usual += weight * (rate - self.usual);
        }
        self.before = Some(seen);
        Passed::Accepted(held, Some(seen))
    }

    /// The greatest change that is not sudden.
    fn limit(&self, from: &Observation, to: &Observation) -> f64 {
        (SUDDEN * self.usual * distance(from, to).max(NEAR)).max(LEAST)
    }

    /// Whether the last of what is held is outside of a pulse that the others are in.
    fn has_changed_back(&self, before: &Observation) -> bool {
        let [within @ .., last, after] = self.held.as_slice() else { return false };
        let begin = within.iter().chain([last]).take(2).map(|first| change(before, first));
        let Some(rise) = begin.max_by(|a, b| a.norm().total_cmp(&b.norm())) else { return false };
        let [unlike_fall, unlike_level] = UNLIKE.map(|share| share * rise.norm());
        let falls = |from: &Observation| {
            let fall = change(from, after);
            fall.norm() > self.limit(from, after) && (rise + fall).norm() <= unlike_fall
        };
        let is_level = |pair: &[Observation]| change(&pair[0], &pair[1]).norm() <= unlike_level;
        let fallen = falls(last) || within.last().is_some_and(falls);
        fallen && within.get(1..).is_none_or(|inner| inner.windows(2).all(is_level))
    }
}

fn distance(from: &Observation, to: &Observation) -> f64 {
    (to.position - from.position).norm()
}

fn change(from: &Observation, to: &Observation) -> Vector3<f64> {
    to.field.microtesla() - from.field.microtesla()
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Rotation3};
    use proptest::prelude::*;

    use super::*;
    use crate::sensing::reading::MagneticField;
    use crate::sensing::samples::at;

    /// Observations every 5 cm along x, in this field.
    fn drive(count: usize, field: impl Fn(f64) -> Vector3<f64>) -> Vec<Observation> {
        let observation = |index: usize| {
            let x = 0.05 * index as f64;
            let field = MagneticField::from_microtesla(field(x));
            Observation {
                stamp: at(100 * index as i64),
                position: Point3::new(x, 0.0, 0.0),
                orientation: Matrix3::identity(),
                speed: 0.5,
                field,
                strength: field.strength(),
                readings: 5,
            }
        };
        (0..count).map(observation).collect()
    }

    /// Places of the observations that were accepted, and of those that were rejected, in the order in which that was decided.
    fn decided(settings: &config::Gates, observations: &[Observation]) -> [Vec<f64>; 2] {
        let mut gate = PulseGate::default();
        let [mut accepted, mut rejected] = [Vec::new(), Vec::new()];
        let place = |seen: Observation| seen.position.x;
        for seen in observations {
            match gate.check(settings, *seen) {
                Passed::Accepted(held, seen) => accepted.extend(held.into_iter().chain(seen).map(place)),
                Passed::Rejected(observations) => rejected.extend(observations.into_iter().map(place)),
            }
        }
        accepted.extend(gate.release().into_iter().map(place));
        [accepted, rejected]
    }

    /// A field that varies by 10 microtesla over half a metre, with some noise.
    fn building(x: f64) -> Vector3<f64> {
        let noise = |phase: f64| 0.4 * (phase + 997.0 * x).sin();
        Vector3::new(
            15.0 + 10.0 * (3.0 * x).sin() + noise(0.0),
            5.0 + noise(1.0),
            -47.0 + 8.0 * (2.0 * x).cos() + noise(2.0),
        )
    }

    /// The field of a dipole of `moment` (A m^2) at `depth` metres below the path, 2 m along it, in microtesla.
    fn dipole(moment: Vector3<f64>, depth: f64, x: f64) -> Vector3<f64> {
        // mu_0 / 4 pi is 1e-7 T m / A.
        let arm = Vector3::new(x - 2.0, 0.0, depth);
        let direction = arm.normalize();
        0.1 * (3.0 * direction * direction.dot(&moment) - moment) / arm.norm().powi(3)
    }

    #[test]
    fn a_pulse_is_rejected_and_one_observation_after_it() {
        for height in [10.0, 20.0, 60.0] {
            for length in [0.05, 0.1, 0.3, 0.5, 0.8] {
                for share in [0.0, 0.1, 0.5, 0.9] {
                    // The first and the last are averages with this share of readings in it.
                    let inside = |x: f64| {
                        let [into, out] =
                            [x - 2.0, 2.0 + length - x].map(|by| (by / 0.05 + 0.5 + share).clamp(0.0, 1.0));
                        into.min(out)
                    };
                    let observations = drive(80, |x| building(x) + Vector3::repeat(height) * inside(x));
                    let [accepted, rejected] = decided(&config::Gates::default(), &observations);
                    assert_eq!(accepted.len() + rejected.len(), 80);
                    // Neighbours outside of it differ by 2.3 at most.
                    let disturbed = |x: &&f64| height * inside(**x) * 3f64.sqrt() > SUDDEN * 2.3;
                    let case = format!("{height} uT, {length} m, {share}: {rejected:?}");
                    assert_eq!(accepted.iter().filter(disturbed).count(), 0, "{case}");
                    assert!(rejected.len() as f64 <= length / 0.05 + 4.0, "{case}");
                }
            }
        }
    }

    #[test]
    fn a_change_that_lasts_is_accepted_in_order() {
        for length in [1.2, 3.0, 1e3] {
            let observations = drive(200, |x| {
                building(x) + Vector3::repeat(if (2.01..2.01 + length).contains(&x) { 30.0 } else { 0.0 })
            });
            let [accepted, rejected] = decided(&config::Gates::default(), &observations);
            assert!(accepted.is_sorted() && accepted.len() == 200, "{length}: {rejected:?}");
        }
    }

    #[test]
    fn fields_of_steel_that_a_map_can_represent_pass() {
        for depth in [0.15, 0.2, 0.3, 0.5, 1.0] {
            for height in [10.0, 40.0, 150.0] {
                for axis in [Vector3::x(), Vector3::y(), Vector3::z(), Vector3::new(1.0, 1.0, 1.0)] {
                    let moment = axis * height * 10.0 * depth * depth * depth;
                    let observations = drive(80, |x| building(x) + dipole(moment, depth, x));
                    let [_, rejected] = decided(&config::Gates::default(), &observations);
                    assert_eq!(rejected.len(), 0, "{depth} m, {height} uT, {axis}: {rejected:?}");
                }
            }
        }
    }

    #[test]
    fn a_turn_on_the_spot_with_a_wrong_mount_is_not_a_pulse() {
        let mut observations = drive(80, building);
        for seen in &mut observations[40..50] {
            let turn = Rotation3::from_axis_angle(&Vector3::z_axis(), 1.6);
            seen.orientation = turn.into_inner();
            seen.field = MagneticField::from_microtesla(turn * seen.field.microtesla());
        }
        let [accepted, rejected] = decided(&config::Gates::default(), &observations);
        assert_eq!((accepted.len(), rejected.len()), (80, 0));
    }

    #[test]
    fn it_can_be_disabled() {
        let settings = config::Gates { max_pulse: 0.0, ..config::Gates::default() };
        let pulse = |x: f64| building(x) + Vector3::repeat(if (2.01..2.3).contains(&x) { 60.0 } else { 0.0 });
        let [accepted, _] = decided(&settings, &drive(80, pulse));
        assert_eq!(accepted.len(), 80);
    }

    proptest! {
        #[test]
        fn every_observation_is_decided_once_and_in_order(
            fields in prop::collection::vec(prop_oneof![5 => -1.0..1.0_f64, 1 => -80.0..80.0_f64], 0..120),
            max_pulse in 0.0..3.0_f64,
        ) {
            let settings = config::Gates { max_pulse, ..config::Gates::default() };
            let field = |x: f64| Vector3::z() * fields[(x / 0.05).round() as usize];
            let observations = drive(fields.len(), field);
            let [accepted, rejected] = decided(&settings, &observations);
            prop_assert!(accepted.is_sorted() && rejected.is_sorted());
            let mut all = [accepted, rejected].concat();
            all.sort_unstable_by(f64::total_cmp);
            prop_assert_eq!(all, observations.iter().map(|seen| seen.position.x).collect::<Vec<_>>());
        }
    }
}
