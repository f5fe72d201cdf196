//! An estimate from the particles, and how far it is to be believed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::motion::wrapped;
use super::particle::Particle;
use crate::config;

/// Side of the cells in which the heaviest cluster is found, and half its width, in metres.
const CLUSTER: f64 = 0.5;

/// Particles within this distance of its middle are the cluster, in metres.
const RADIUS: f64 = 1.0;

/// Share of all weight that the cluster needs to be the only one.
const ONLY_CLUSTER: f64 = 0.95;

/// Evidence below which readings do not agree with the map. Where the particles are right it is rarely below 0.25.
const DISAGREEING: f64 = 0.2;

/// Evidence above which readings speak for the place. Where the particles are right, its median is about 1.
const SPEAKING: f64 = 0.4;

/// Misfit above which readings speak against a place that is not proven, however well others agree with it. In simulated halls it stays below 3.5
/// where the particles are right.
const MISFITTING: f64 = 4.0;

/// Misfit above which readings speak against a place that is proven. On real drives it stays below 5 where the particles are right.
const MISFITTING_PROVEN: f64 = 8.0;

/// Distance over which the misfit may speak against a place that is proven, in metres: the building may have changed there. Readings that agree
/// with no place at all are believed at once, or after a distance that is [tolerated](Confidence::tolerated).
const MISFIT_TOLERATED: f64 = 3.0;

/// Distance over which readings have to speak for one place, in metres, for a longer search not to be lost.
const PROMISING: f64 = 2.0;

/// The place of the sensor in the frame of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The middle of the heaviest cluster of particles, x and y in metres.
    pub place: [f64; 2],
    /// Rotation from the frame of odometry to that of the map, in radians.
    pub turn: f64,
    /// Covariance of x, y and rotation over all particles, in metres and radians, with the accuracy of the map itself.
    pub covariance: [[f64; 3]; 3],
    /// Share of the weight that is in the cluster.
    pub share: f64,
    /// Evidence of the cluster ([`Particle::evidence`]), relative to the [information](super::lookup::MapLookup::information) in the map.
    pub evidence: f64,
    /// Misfit of the cluster ([`Particle::misfit`]).
    pub misfit: f64,
    /// Share of the cluster's weight that is where the map is known.
    pub inside: f64,
}

impl Estimate {
    /// The estimate from particles with these weights, which sum to one, in a map with this information.
    pub fn of(particles: &[Particle], weights: &[f64], information: f64, map_accuracy: f64) -> Self {
        let weighted = || particles.iter().zip(weights.iter().copied());
        let mut cells: BTreeMap<[i64; 2], f64> = BTreeMap::new();
        for (particle, weight) in weighted() {
            *cells.entry(particle.place.map(|coordinate| (coordinate / CLUSTER).floor() as i64)).or_default() += weight;
        }
        let around = |[column, row]: [i64; 2]| -> f64 {
            let neighbours = (-1..=1).flat_map(|i| (-1..=1).map(move |j| [column + i, row + j]));
            neighbours.filter_map(|cell| cells.get(&cell)).sum()
        };
        let heaviest = cells.keys().max_by(|a, b| around(**a).total_cmp(&around(**b))).copied().unwrap_or_default();

        let mut estimate = Self { place: heaviest.map(|index| (index as f64 + 0.5) * CLUSTER), ..Self::default() };
        // A few steps of mean shift.
        for _ in 0..3 {
            let [x, y] = estimate.place;
            let is_near = |particle: &Particle| (particle.place[0] - x).hypot(particle.place[1] - y) < RADIUS;
            let cluster: Vec<(&Particle, f64)> = weighted().filter(|(particle, _)| is_near(particle)).collect();
            let share: f64 = cluster.iter().map(|(_, weight)| weight).sum();
            if share <= 0.0 {
                break;
            }
            let mean = |value: fn(&Particle) -> f64| {
                cluster.iter().map(|(particle, weight)| weight * value(particle)).sum::<f64>() / share
            };
            estimate.place = [mean(|particle| particle.place[0]), mean(|particle| particle.place[1])];
            estimate.turn = mean(|particle| particle.turn.sin()).atan2(mean(|particle| particle.turn.cos()));
            estimate.share = share;
            estimate.evidence = mean(|particle| particle.evidence) / information;
            estimate.misfit = mean(|particle| particle.misfit);
            estimate.inside = mean(|particle| f64::from(u8::from(particle.is_inside)));
        }
        for (particle, weight) in weighted() {
            let [x, y] = estimate.place;
            let off = [particle.place[0] - x, particle.place[1] - y, wrapped(particle.turn - estimate.turn)];
            for (row, left) in estimate.covariance.iter_mut().zip(off) {
                row.iter_mut().zip(off).for_each(|(sum, right)| *sum += weight * left * right);
            }
        }
        (0..2).for_each(|i| estimate.covariance[i][i] += map_accuracy.powi(2));
        estimate
    }

    /// Standard deviation of the place along the longest axis of its ellipse, in metres.
    pub fn deviation(&self) -> f64 {
        let [[xx, xy, _], [_, yy, _], _] = self.covariance;
        (0.5 * (xx + yy) + (0.5 * (xx - yy)).hypot(xy)).sqrt()
    }

    /// Squared distance of a place in standard deviations: below 5.99 within the ellipse of 95 %.
    pub fn squared_distance(&self, place: [f64; 2]) -> f64 {
        let [[xx, xy, _], [_, yy, _], _] = self.covariance;
        let [x, y] = [place[0] - self.place[0], place[1] - self.place[1]];
        (x * x * yy - 2.0 * x * y * xy + y * y * xx) / (xx * yy - xy * xy)
    }

    /// Whether the readings of the last metres agree with the map there.
    pub fn agrees(&self) -> bool {
        self.evidence > DISAGREEING
    }
}

/// How far an estimate is to be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// No place in the map is known to explain the readings: the estimate is not to be used.
    Lost,
    /// Not sure yet, or no longer.
    #[default]
    Converging,
    /// The place is known as well as its covariance says.
    Tracking,
}

/// Why the state is not tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The map is unknown where the robot should be.
    #[error("outside the map")]
    OutsideMap,
    /// Readings do not agree with the map.
    #[error("readings disagree with the map")]
    ReadingsDisagree,
    /// Several places, or a large area, explain the readings.
    #[error("several places explain the readings")]
    SeveralPlaces,
    /// The field is much the same in a large part of the map.
    #[error("the field is too flat here")]
    FlatField,
    /// Readings have agreed for too short a distance.
    #[error("driven too little to be sure")]
    Unproven,
}

/// State and reason, from estimate to estimate.
///
/// Among many places there is one that explains readings by chance. A place is proven when readings have agreed with it for some metres,
/// and have told more than it takes to choose one of all the places where the robot may have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// Logarithm of the number of places where the robot may have been before readings told.
    places: f64,
    /// Logarithm of the number of all places in the map.
    all_places: f64,
    /// Information of a reading at a known place ([`information`](super::lookup::MapLookup::information)).
    information: f64,
    readings: Agreement,
    proof: Proof,
    /// Distance over which readings have spoken against a place that is proven, in metres.
    contradicted: f64,
    /// Distance over which they may do so inside the map before a disagreement is believed, in metres.
    pub(super) tolerated: f64,
}

/// Agreement of the last metres' readings with a place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Agreement {
    /// Readings have agreed with one place over a distance in metres, and have `told` the logarithm of their likelihood there over that
    /// of a sensor anywhere in the map. Both are zero where they agree with several places.
    Agreed { distance: f64, told: f64 },
    /// Readings have agreed with no place over a distance in metres, beyond what is tolerated.
    Disagreed { distance: f64 },
}

/// Whether the state has been tracking, without a doubt since.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Proof {
    Proven,
    /// The state has not been tracking for a distance in metres.
    Missing {
        distance: f64,
    },
}

impl Confidence {
    /// The confidence in a robot that may be at `places` of `all_places` in a map where readings have this information.
    pub fn new(places: f64, all_places: f64, information: f64) -> Self {
        Self {
            places: places.ln(),
            all_places: all_places.ln(),
            information,
            readings: Agreement::Agreed { distance: 0.0, told: 0.0 },
            proof: Proof::Missing { distance: 0.0 },
            contradicted: 0.0,
            tolerated: 0.0,
        }
    }

    /// Takes the next estimate, `distance` metres after the last.
    pub fn update(
        &mut self,
        estimate: &Estimate,
        distance: f64,
        settings: &config::Localization,
    ) -> (State, Option<Reason>) {
        let was_proven = self.proof == Proof::Proven;
        let is_one_place = estimate.share > ONLY_CLUSTER && estimate.deviation() < settings.tracking_deviation;
        let contradicts = !estimate.agrees() || estimate.misfit > MISFITTING_PROVEN;
        self.contradicted = if was_proven && contradicts { self.contradicted + distance } else { 0.0 };
        let is_misfit = if was_proven { self.contradicted > MISFIT_TOLERATED } else { estimate.misfit > MISFITTING };
        let is_outside = estimate.inside < 0.5;
        let is_tolerated = was_proven && !is_outside && self.contradicted < self.tolerated;
        let disagrees = !estimate.agrees() && !is_tolerated;
        let is_doubted = disagrees || was_proven && is_misfit;
        let speaks = estimate.evidence > SPEAKING;
        let (agreed, told, disagreed) = match self.readings {
            Agreement::Agreed { distance, told } => (distance, told, 0.0),
            Agreement::Disagreed { distance } => (0.0, 0.0, distance),
        };
        self.readings = if disagrees {
            Agreement::Disagreed { distance: disagreed + distance }
        } else if !is_one_place || is_misfit {
            Agreement::Agreed { distance: 0.0, told: 0.0 }
        } else if speaks {
            let tells = estimate.evidence * self.information * distance / settings.error_length;
            Agreement::Agreed { distance: agreed + distance, told: told + tells }
        } else {
            Agreement::Agreed { distance: agreed, told }
        };
        let is_sure = self.is_sure(settings);
        self.proof = match self.proof {
            _ if !is_doubted && (was_proven || is_sure) => Proof::Proven,
            Proof::Missing { distance: before } => Proof::Missing { distance: before + distance },
            Proof::Proven => Proof::Missing { distance },
        };
        let is_lost = self.is_lost(settings);
        if is_lost || is_doubted {
            self.places = self.all_places;
        }
        if is_sure {
            return (State::Tracking, None);
        }
        let reason = match (is_one_place, speaks) {
            _ if is_outside => Reason::OutsideMap,
            _ if disagrees || is_misfit => Reason::ReadingsDisagree,
            (true, true) => Reason::Unproven,
            (false, true) => Reason::SeveralPlaces,
            (_, false) => Reason::FlatField,
        };
        (if is_lost { State::Lost } else { State::Converging }, Some(reason))
    }

    /// Whether readings disagree with the map, beyond what is tolerated.
    pub fn disagrees(&self) -> bool {
        matches!(self.readings, Agreement::Disagreed { .. })
    }

    /// Whether readings have agreed far enough, and told enough to choose one of all places.
    fn is_sure(&self, settings: &config::Localization) -> bool {
        let Agreement::Agreed { distance, told } = self.readings else { return false };
        distance > 0.0 && distance >= settings.proving_distance && told >= self.places
    }

    /// Whether readings have disagreed, or said too little of any place, for too long.
    fn is_lost(&self, settings: &config::Localization) -> bool {
        match (self.readings, self.proof) {
            (Agreement::Disagreed { distance }, _) if distance >= settings.losing_distance => true,
            (Agreement::Agreed { distance, .. }, _) if distance >= PROMISING => false,
            (_, Proof::Missing { distance }) => distance >= settings.searching_distance,
            (_, Proof::Proven) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: f64 = 0.05;

    /// Distance until the state is tracking, of a robot that may be at a number of places; `estimate` says what is known after a distance.
    fn proven_after(places: f64, estimate: impl Fn(f64) -> Estimate) -> Option<f64> {
        let settings = config::Localization::default();
        let mut confidence = Confidence::new(places, 1e6, 1.2);
        let mut distances = (1..1000).map(|i| f64::from(i) * STEP);
        distances.find(|&along| confidence.update(&estimate(along), STEP, &settings).0 == State::Tracking)
    }

    fn agreeing() -> Estimate {
        let covariance = [[0.01, 0.0, 0.0], [0.0, 0.01, 0.0], [0.0, 0.0, 0.01]];
        Estimate { covariance, share: 1.0, evidence: 0.9, misfit: 1.0, inside: 1.0, ..Estimate::default() }
    }

    /// The state at a place that was proven, if the `estimate` holds for some metres from then on.
    fn proven_then(tolerated: f64, estimate: Estimate, metres: f64) -> (State, Option<Reason>) {
        let settings = config::Localization::default();
        let mut confidence = Confidence { tolerated, ..Confidence::new(20.0, 1e6, 1.2) };
        let drive = vec![agreeing(); 80].into_iter().chain(vec![estimate; (metres / STEP).round().max(0.0) as usize]);
        drive.map(|estimate| confidence.update(&estimate, STEP, &settings)).last().unwrap()
    }

    #[test]
    fn the_more_places_there_were_the_more_has_to_be_told() {
        let settings = config::Localization::default();
        // Known from the start: only the distance counts.
        assert!((proven_after(20.0, |_| agreeing()).unwrap() - settings.proving_distance).abs() < 1.5 * STEP);
        for places in [1e4, 1e6] {
            let expected = f64::ln(places) / (0.9 * 1.2 / settings.error_length);
            assert!((proven_after(places, |_| agreeing()).unwrap() - expected).abs() < 1.5 * STEP);
        }
    }

    #[test]
    fn readings_that_disagreed_leave_all_places_possible() {
        let settings = config::Localization::default();
        let disagreeing = |along: f64| if along < 1.0 { Estimate { evidence: 0.1, ..agreeing() } } else { agreeing() };
        let expected = 1.0 + f64::ln(1e6) / (0.9 * 1.2 / settings.error_length);
        assert!((proven_after(20.0, disagreeing).unwrap() - expected).abs() < 2.5 * STEP);
    }

    #[test]
    fn a_misfit_speaks_against_a_place_and_a_greater_and_longer_one_against_one_that_is_proven() {
        let settings = config::Localization::default();
        let misfitting = |along: f64| {
            let misfit = if (0.5..1.0).contains(&along) { 5.0 } else { 1.0 };
            Estimate { misfit, ..agreeing() }
        };
        let proven = proven_after(20.0, misfitting).unwrap();
        assert!((proven - 1.0 - settings.proving_distance).abs() < 2.5 * STEP, "{proven}");

        let after_a_misfit_of = |misfit: f64, metres: f64| proven_then(0.0, Estimate { misfit, ..agreeing() }, metres);
        assert_eq!(after_a_misfit_of(5.0, 1.5 * MISFIT_TOLERATED), (State::Tracking, None));
        assert_eq!(after_a_misfit_of(9.0, 0.9 * MISFIT_TOLERATED), (State::Tracking, None));
        assert_eq!(after_a_misfit_of(9.0, 1.1 * MISFIT_TOLERATED), (State::Converging, Some(Reason::ReadingsDisagree)));
    }

    #[test]
    fn a_disagreement_with_a_place_that_is_proven_is_believed_after_the_distance_that_is_tolerated() {
        let disagreeing = Estimate { evidence: -3.0, ..agreeing() };
        for tolerated in [0.0, 2.0] {
            let after = |metres: f64| proven_then(tolerated, disagreeing, tolerated + metres);
            assert_eq!(after(-2.0 * STEP), (State::Tracking, None));
            assert_eq!(after(2.0 * STEP), (State::Converging, Some(Reason::ReadingsDisagree)));
            let losing = config::Localization::default().losing_distance;
            assert_eq!(after(losing + 2.0 * STEP), (State::Lost, Some(Reason::ReadingsDisagree)));
        }
        let outside = Estimate { inside: 0.3, ..disagreeing };
        assert_eq!(proven_then(2.0, outside, STEP), (State::Converging, Some(Reason::OutsideMap)));
    }
}
