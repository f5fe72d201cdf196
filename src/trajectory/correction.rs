//! Poses that are corrected after the drive.

use nalgebra::Isometry2;
use serde::{Deserialize, Serialize};

use crate::sensing::reading::Observation;

/// Where the frame of odometry is in that of the map along a trajectory: a transform at some of its observations. The observations between
/// two of them move with both, those before the first or after the last with that one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Correction {
    nodes: Vec<Node>,
}

/// A transform along a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The observation that it belongs to, counted from 0; between two of them where it is not a whole number.
    pub observation: f64,
    /// Place of the origin of odometry's frame in that of the map, in metres.
    pub place: [f64; 2],
    /// Angle from the map's axes to odometry's, in radians.
    pub turn: f64,
}

impl Node {
    /// This transform at an observation.
    pub fn new(observation: f64, transform: &Isometry2<f64>) -> Self {
        Self { observation, place: transform.translation.vector.into(), turn: transform.rotation.angle() }
    }

    /// The transform from odometry's frame to that of the map.
    pub fn transform(&self) -> Isometry2<f64> {
        Isometry2::new(self.place.into(), self.turn)
    }

    fn is_finite(&self) -> bool {
        [self.observation, self.turn].iter().chain(&self.place).all(|number| number.is_finite())
    }
}

impl Correction {
    /// A correction with these nodes; none where they do not ascend, or a number is not finite.
    pub fn new(nodes: Vec<Node>) -> Option<Self> {
        let correction = Self { nodes };
        correction.is_valid().then_some(correction)
    }

    /// Whether nodes ascend and are finite: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        let ascends = |pair: &[Node]| pair[0].observation < pair[1].observation;
        self.nodes.iter().all(Node::is_finite) && self.nodes.windows(2).all(ascends)
    }

    /// The nodes, in the order of the trajectory; none where odometry's frame is that of the map.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The transform from odometry's frame to that of the map at the end.
    pub fn last(&self) -> Isometry2<f64> {
        self.nodes.last().map_or_else(Isometry2::identity, Node::transform)
    }

    /// Where something at this pose of odometry is in the map, at an observation or between two.
    pub fn pose(&self, observation: f64, odometry: &Isometry2<f64>) -> Isometry2<f64> {
        let next = self.nodes.partition_point(|node| node.observation < observation);
        let [before, after] = [next.checked_sub(1).and_then(|before| self.nodes.get(before)), self.nodes.get(next)];
        match (before, after) {
            (None, None) => *odometry,
            (Some(node), None) | (None, Some(node)) => node.transform() * odometry,
            (Some(before), Some(after)) => {
                let fraction = (observation - before.observation) / (after.observation - before.observation);
                let [before, after] = [before, after].map(|node| node.transform() * odometry);
                let place = before.translation.vector.lerp(&after.translation.vector, fraction);
                let turn = before.rotation.rotation_to(&after.rotation).angle();
                Isometry2::new(place, before.rotation.angle() + fraction * turn)
            }
        }
    }

    /// These observations, the first of which has this number in the trajectory, at their poses in the map.
    pub fn apply(&self, first: usize, observations: &[Observation]) -> Vec<Observation> {
        if self.nodes.is_empty() {
            return observations.to_vec();
        }
        let apply = |(index, observation): (usize, &Observation)| {
            observation.moved_to(&self.pose((first + index) as f64, &observation.in_plane()))
        };
        observations.iter().enumerate().map(apply).collect()
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Vector2, Vector3};

    use super::*;
    use crate::sensing::reading::{MagneticField, Stamp};

    fn observation(x: f64) -> Observation {
        Observation {
            stamp: Stamp::from_seconds(x),
            position: Point3::new(x, 0.0, 1.3),
            orientation: Matrix3::identity(),
            speed: 0.5,
            field: MagneticField::from_microtesla(Vector3::new(20.0, 0.0, -40.0)),
            strength: 45.0,
            readings: 3,
        }
    }

    fn node(observation: f64, x: f64, y: f64, turn: f64) -> Node {
        Node::new(observation, &Isometry2::new(Vector2::new(x, y), turn))
    }

    #[test]
    fn observations_move_with_the_nodes_around_them_and_the_field_turns_along() {
        let quarter = std::f64::consts::FRAC_PI_2;
        let correction = Correction::new(vec![node(2.0, 0.0, 0.0, 0.0), node(4.0, 1.0, 0.0, quarter)]).unwrap();
        let observations: Vec<_> = (0..6).map(|index| observation(f64::from(index))).collect();
        let moved = correction.apply(0, &observations);
        let places: Vec<[f64; 3]> = moved.iter().map(|seen| seen.position.into()).collect();
        // The fourth is halfway between (3, 0) and (1, 3).
        let expected = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 1.5], [1.0, 4.0], [1.0, 5.0]];
        for (place, [x, y]) in places.iter().zip(expected) {
            assert!((place[0] - x).abs() + (place[1] - y).abs() < 1e-12 && place[2] == 1.3, "{places:?}");
        }
        let fields: Vec<Vector3<f64>> = moved.iter().map(|seen| *seen.field.microtesla()).collect();
        let half = 20.0 * std::f64::consts::FRAC_1_SQRT_2;
        for (field, expected) in
            fields.iter().zip([[20.0, 0.0], [20.0, 0.0], [20.0, 0.0], [half, half], [0.0, 20.0], [0.0, 20.0]])
        {
            assert!((field - Vector3::new(expected[0], expected[1], -40.0)).norm() < 1e-12, "{fields:?}");
        }
        // What does not depend on the pose stays, and a later part of the trajectory moves as in the whole.
        assert_eq!((moved[5].strength, moved[5].readings, moved[5].stamp), (45.0, 3, observations[5].stamp));
        assert_eq!(correction.apply(3, &observations[3..]), moved[3..]);
    }

    #[test]
    fn without_nodes_nothing_moves_not_even_by_rounding() {
        let seen = [observation(0.3)];
        assert_eq!(Correction::default().apply(7, &seen), seen);
        assert_eq!(Correction::default().last(), Isometry2::identity());
    }

    #[test]
    fn nodes_must_ascend_and_be_finite() {
        assert!(Correction::new(vec![node(1.0, 0.0, 0.0, 0.0), node(1.0, 0.0, 0.0, 0.0)]).is_none());
        assert!(Correction::new(vec![node(f64::NAN, 0.0, 0.0, 0.0)]).is_none());
        assert!(Correction::new(vec![node(1.0, f64::INFINITY, 0.0, 0.0)]).is_none());
    }
}
