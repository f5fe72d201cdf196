//! Poses that are corrected after the drive, and sensors that differ from run to run.

use nalgebra::{Isometry2, Vector3};
use serde::{Deserialize, Serialize};

use crate::sensing::reading::{Observation, Pose, Stamp, in_plane};

/// Where the frame of odometry is in that of the map along a trajectory: a transform at some of its observations. The observations between
/// two of them move with both, those before the first or after the last with that one. Of runs that follow each other, each has nodes at its
/// first and at its last observation, so that none lies between the nodes of two runs.
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
    /// Hard iron of the sensor less that of the sensor that the map is made with, along its axes, in microtesla: it is taken out of the
    /// readings.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hard_iron: [f64; 3],
    /// Movement of odometry between taking a reading and its stamp, in metres along the axes of odometry's frame and in radians. It is
    /// subtracted from the pose of an observation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lag: [f64; 3],
    /// The moment that another SLAM gave a pose for, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
}

/// A moment that another SLAM gave a pose for, and where the robot's body was by odometry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// The moment.
    pub stamp: Stamp,
    /// Place of the body by odometry, in metres.
    pub place: [f64; 2],
    /// Heading of the body by odometry, in radians.
    pub heading: f64,
}

fn is_zero(vector: &[f64; 3]) -> bool {
    *vector == [0.0; 3]
}

impl Node {
    /// A node that holds this transform at an observation.
    pub fn new(observation: f64, transform: &Isometry2<f64>) -> Self {
        let (place, turn) = (transform.translation.vector.into(), transform.rotation.angle());
        Self { observation, place, turn, hard_iron: [0.0; 3], lag: [0.0; 3], given: None }
    }

    /// The transform that brings the robot's body from where it was by odometry to this pose of another SLAM.
    pub(super) fn placed(observation: f64, pose: &Pose, by_odometry: &Isometry2<f64>) -> Self {
        let (place, heading) = (by_odometry.translation.vector.into(), by_odometry.rotation.angle());
        let given = Some(Given { stamp: pose.stamp, place, heading });
        Self { given, ..Self::new(observation, &(in_plane(&pose.isometry()) * by_odometry.inverse())) }
    }

    /// When another SLAM gave a pose, and where the robot's body was by odometry then.
    pub(super) fn by_odometry(&self) -> Option<(Stamp, Isometry2<f64>)> {
        self.given.map(|Given { stamp, place, heading }| (stamp, Isometry2::new(place.into(), heading)))
    }

    /// The transform from odometry's frame to that of the map.
    pub fn transform(&self) -> Isometry2<f64> {
        Isometry2::new(self.place.into(), self.turn)
    }

    fn is_finite(&self) -> bool {
        let numbers = [self.observation, self.turn];
        let given = self.given.iter().flat_map(|given| given.place.iter().chain([&given.heading]));
        numbers
            .iter()
            .chain(&self.place)
            .chain(&self.hard_iron)
            .chain(&self.lag)
            .chain(given)
            .all(|number| number.is_finite())
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
        match self.around(observation) {
            Around::None => *odometry,
            Around::One(node) => node.transform() * odometry,
            Around::Two { nodes, fraction } => {
                let [before, after] = nodes.map(|node| node.transform() * odometry);
                let place = before.translation.vector.lerp(&after.translation.vector, fraction);
                let turn = before.rotation.rotation_to(&after.rotation).angle();
                Isometry2::new(place, before.rotation.angle() + fraction * turn)
            }
        }
    }

    /// Where an observation at this pose of odometry was measured, in the map.
    pub fn measured_pose(&self, observation: f64, odometry: &Isometry2<f64>) -> Isometry2<f64> {
        let lag = self.between(observation, |node| &node.lag);
        let place = odometry.translation.vector - lag.xy();
        self.pose(observation, &Isometry2::new(place, odometry.rotation.angle() - lag.z))
    }

    /// The hard iron that is taken out of the readings of an observation, along the axes of the sensor, in microtesla.
    pub fn hard_iron(&self, observation: f64) -> Vector3<f64> {
        self.between(observation, |node| &node.hard_iron)
    }

    fn between(&self, observation: f64, of_node: impl Fn(&Node) -> &[f64; 3]) -> Vector3<f64> {
        let of_node = |node| Vector3::from(*of_node(node));
        match self.around(observation) {
            Around::None => Vector3::zeros(),
            Around::One(node) => of_node(node),
            Around::Two { nodes: [before, after], fraction } => of_node(before).lerp(&of_node(after), fraction),
        }
    }

    fn around(&self, observation: f64) -> Around<'_> {
        let next = self.nodes.partition_point(|node| node.observation < observation);
        let [before, after] = [next.checked_sub(1).and_then(|before| self.nodes.get(before)), self.nodes.get(next)];
        match (before, after) {
            (None, None) => Around::None,
            (Some(node), None) | (None, Some(node)) => Around::One(node),
            (Some(before), Some(after)) => {
                let fraction = (observation - before.observation) / (after.observation - before.observation);
                Around::Two { nodes: [before, after], fraction }
            }
        }
    }

    /// Observations, the first of which has this number in the trajectory, where they were measured in the map.
    pub fn apply(&self, first: usize, observations: &[Observation]) -> Vec<Observation> {
        if self.nodes.is_empty() {
            return observations.to_vec();
        }
        let apply = |(index, observation): (usize, &Observation)| {
            let at = (first + index) as f64;
            let moved = observation.moved_to(&self.measured_pose(at, &observation.in_plane()));
            let hard_iron = self.hard_iron(at);
            if hard_iron == Vector3::zeros() { moved } else { moved.without_hard_iron(&hard_iron) }
        };
        observations.iter().enumerate().map(apply).collect()
    }

    /// Whether readings were measured elsewhere than where the path was at their stamps.
    pub(super) fn has_lags(&self) -> bool {
        self.nodes.iter().any(|node| !is_zero(&node.lag))
    }

    /// The nodes of this correction of a trajectory of its own, as a part of a longer one in another frame and with another sensor: the
    /// part begins at observation `first`, and `frame` and `hard_iron` say where its map is in the common one, and how its sensor differs.
    /// Where there are `lags`, one for each observation, they come on top of those of the nodes.
    pub(super) fn of_part(
        &self,
        observations: &[&Observation],
        lags: &[Vector3<f64>],
        first: usize,
        frame: &Isometry2<f64>,
        hard_iron: &Vector3<f64>,
    ) -> Vec<Node> {
        let Some(last) = observations.len().checked_sub(1) else { return Vec::new() };
        let at = |index: usize| {
            let (at, odometry) = (index as f64, observations[index].in_plane());
            let own = self.pose(at, &odometry) * odometry.inverse();
            let lag = self.between(at, |node| &node.lag) + lags.get(index).copied().unwrap_or_default();
            Node { hard_iron: self.hard_iron(at).into(), lag: lag.into(), ..Node::new(at, &own) }
        };
        let is_within = |node: &&Node| node.observation > 0.0 && node.observation < last as f64;
        let nodes: Vec<Node> = if lags.is_empty() {
            let (start, end) = (at(0), (last > 0).then(|| at(last)));
            [start].into_iter().chain(self.nodes.iter().filter(is_within).copied()).chain(end).collect()
        } else {
            (0..=last).map(at).collect()
        };
        let place = |node: Node| Node {
            hard_iron: (Vector3::from(node.hard_iron) + hard_iron).into(),
            lag: node.lag,
            ..Node::new(first as f64 + node.observation, &(frame * node.transform()))
        };
        nodes.into_iter().map(place).collect()
    }
}

/// The nodes on both sides of an observation.
enum Around<'a> {
    None,
    One(&'a Node),
    Two { nodes: [&'a Node; 2], fraction: f64 },
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
    fn observations_are_mapped_where_they_were_measured() {
        let quarter = std::f64::consts::FRAC_PI_2;
        let late = |observation: f64, lag: [f64; 3]| Node { lag, ..node(observation, 1.0, 0.0, quarter) };
        let correction = Correction::new(vec![late(0.0, [0.1, 0.0, 0.2]), late(2.0, [0.3, 0.2, 0.0])]).unwrap();
        let observations: Vec<_> = (0..3).map(|index| observation(f64::from(index))).collect();
        let moved = correction.apply(0, &observations);
        // By odometry the second one was measured at (1, 0) less the mean of both lags, and odometry's frame is turned by a quarter.
        let measured = moved[1].in_plane();
        let expected = Isometry2::new(Vector2::new(1.1, 0.8), quarter - 0.1);
        assert!((measured.translation.vector - expected.translation.vector).norm() < 1e-12, "{measured}");
        assert!(measured.rotation.angle_to(&expected.rotation).abs() < 1e-12, "{measured}");
        // The path is where the robot was at the stamp.
        let path = correction.pose(1.0, &observations[1].in_plane());
        assert!((path.translation.vector - Vector2::new(1.0, 1.0)).norm() < 1e-12, "{path}");
        // As a part of a longer trajectory, in a frame of its own.
        let frame = Isometry2::new(Vector2::new(5.0, 0.0), quarter);
        let part = correction.of_part(&observations.iter().collect::<Vec<_>>(), &[], 4, &frame, &Vector3::zeros());
        let of_part = Correction::new(part).unwrap().apply(4, &observations);
        for (alone, joined) in moved.iter().zip(&of_part) {
            let expected = frame * alone.in_plane();
            assert!((joined.in_plane().translation.vector - expected.translation.vector).norm() < 1e-12);
        }
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
