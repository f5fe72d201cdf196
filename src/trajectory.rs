//! The trajectory: every observation at its pose, from which a map can be made again.
//!
//! A map is the fold of its trajectory. While the robot drives, the fold is incremental: each batch of observations is learnt once. Kept
//! in the order in which they were learnt, batch by batch, observations lead to the same map again ([`fold`]), to the last bit, and to
//! another map where poses are corrected, settings changed, or observations added or withdrawn.
//!
//! An observation takes [`RECORD`] bytes, numbers in little-endian order:
//!
//! | bytes | type | content |
//! | --- | --- | --- |
//! | 0 to 8 | `i64` | stamp of the last reading averaged, in nanoseconds |
//! | 8 to 32 | `f64` x 3 | position of the sensor in the map, in metres |
//! | 32 to 104 | `f64` x 9 | rotation from the sensor's frame to the map's, row by row: the mean of the readings' rotation matrices |
//! | 104 to 128 | `f64` x 3 | field along the axes of the map, in microtesla |
//! | 128 to 136 | `f64` | strength of the field, in microtesla: the mean of the readings' |
//! | 136 to 144 | `f64` | speed of the sensor, in metres per second |
//! | 144 to 148 | `u32` | weight: number of readings averaged |
//!
//! The field along the axes of the sensor is the transpose of the rotation times the field along those of the map.

mod correction;
pub(crate) mod delay;
mod other_slam;
mod withdrawal;

use byteorder::{ByteOrder, LittleEndian};
use nalgebra::{Isometry2, Matrix3, Point3, Vector3};

use crate::config::Config;
use crate::field::model::FieldModel;
use crate::sensing::reading::{MagneticField, Observation, Stamp};

pub use correction::{Correction, Given, Node};
pub use delay::Delay;
pub use other_slam::{OdometryPath, Timeline, correction_to};
pub use withdrawal::Withdrawal;

/// Bytes of an observation.
pub const RECORD: usize = 148;

/// Numbers of an observation between its stamp and its weight.
const NUMBERS: usize = 17;

/// The bytes of these observations, [`RECORD`] of each.
pub fn to_bytes(observations: &[Observation]) -> Vec<u8> {
    let mut bytes = vec![0; observations.len() * RECORD];
    for (record, observation) in bytes.chunks_exact_mut(RECORD).zip(observations) {
        let Observation { stamp, position, orientation, speed, readings, .. } = observation;
        let mut numbers = [0.0; NUMBERS];
        numbers[..3].copy_from_slice(position.coords.as_slice());
        numbers[3..12].copy_from_slice(orientation.transpose().as_slice());
        numbers[12..15].copy_from_slice(observation.field.microtesla().as_slice());
        (numbers[15], numbers[16]) = (observation.strength, *speed);
        LittleEndian::write_i64(&mut record[..8], stamp.nanoseconds());
        LittleEndian::write_f64_into(&numbers, &mut record[8..144]);
        LittleEndian::write_u32(&mut record[144..], *readings);
    }
    bytes
}

/// The observations in bytes that [`to_bytes`] made; none where their number does not fit, or an observation averages no reading. The
/// numbers themselves may be any: a model rejects what is not finite.
pub fn from_bytes(bytes: &[u8]) -> Option<Vec<Observation>> {
    let (records, []) = bytes.as_chunks::<RECORD>() else { return None };
    let observation = |record: &[u8; RECORD]| {
        let mut numbers = [0.0; NUMBERS];
        LittleEndian::read_f64_into(&record[8..144], &mut numbers);
        let readings = LittleEndian::read_u32(&record[144..]);
        (readings > 0).then(|| Observation {
            stamp: Stamp::from_nanoseconds(LittleEndian::read_i64(&record[..8])),
            position: Point3::new(numbers[0], numbers[1], numbers[2]),
            orientation: Matrix3::from_row_slice(&numbers[3..12]),
            speed: numbers[16],
            field: MagneticField::from_microtesla(Vector3::from_column_slice(&numbers[12..15])),
            strength: numbers[15],
            readings,
        })
    };
    records.iter().map(observation).collect()
}

/// The batches that a map was given, and where odometry was in its frame.
#[derive(Clone, Debug, Default)]
pub struct Trajectory {
    batches: Vec<Vec<Observation>>,
    observations: usize,
    length: f64,
    /// Where the frame of odometry is in that of the map.
    pub correction: Correction,
    /// How late readings are stamped, where that was found and the correction does not contain it.
    pub delay: Option<Delay>,
    /// Observations that no longer hold.
    pub withdrawals: Vec<Withdrawal>,
}

impl Trajectory {
    /// A trajectory of these batches, at their poses by odometry.
    pub fn new(batches: Vec<Vec<Observation>>, correction: Correction) -> Self {
        let mut trajectory = Self { correction, ..Self::default() };
        batches.into_iter().for_each(|batch| trajectory.push(batch));
        trajectory
    }

    /// The trajectories of several maps as one: each with its transform from the frame of its map to the common one, and the hard iron
    /// of its sensor less that of the common map's, in microtesla. None where the first or the last observation of a part, or where it
    /// is, is not finite.
    pub fn joined<'a>(parts: impl IntoIterator<Item = (&'a Self, Isometry2<f64>, Vector3<f64>)>) -> Option<Self> {
        let (mut joined, mut nodes) = (Self::default(), Vec::new());
        for (part, frame, hard_iron) in parts {
            let observations: Vec<&Observation> = part.observations().collect();
            let first = joined.batches.len() as u64;
            joined.withdrawals.extend(part.withdrawals.iter().map(|withdrawal| withdrawal.of_part(first, &frame)));
            let lags: Vec<Vector3<f64>> = part.lags().collect();
            nodes.extend(part.correction.of_part(&observations, &lags, joined.observations, &frame, &hard_iron));
            part.batches.iter().for_each(|batch| joined.push(batch.clone()));
        }
        joined.correction = Correction::new(nodes)?;
        Some(joined)
    }

    /// Appends a batch, at its poses by odometry.
    pub fn push(&mut self, batch: Vec<Observation>) {
        let last = self.batches.iter().rev().find_map(|batch| batch.last());
        let places: Vec<_> = last.into_iter().chain(&batch).map(|seen| seen.position).collect();
        self.length += places.windows(2).map(|pair| (pair[1] - pair[0]).norm()).sum::<f64>();
        self.observations += batch.len();
        self.batches.push(batch);
    }

    /// The batches, at their poses by odometry.
    pub fn batches(&self) -> &[Vec<Observation>] {
        &self.batches
    }

    /// The observations, at their poses by odometry.
    pub fn observations(&self) -> impl Iterator<Item = &Observation> {
        self.batches.iter().flatten()
    }

    /// Length of the trajectory by odometry, in metres.
    pub fn length(&self) -> f64 {
        self.length
    }

    /// Largest distance between the places of an observation by two corrections, in metres. The default one moves nothing.
    pub fn moved_most(&self, from: &Correction, to: &Correction) -> f64 {
        let moved = |(index, seen): (usize, &Observation)| {
            let odometry = seen.in_plane();
            let place = |correction: &Correction| correction.pose(index as f64, &odometry).translation.vector;
            (place(to) - place(from)).norm()
        };
        self.observations().enumerate().map(moved).fold(0.0, f64::max)
    }

    /// A batch that follows, at its poses in the map.
    pub fn corrected(&self, batch: &[Observation]) -> Vec<Observation> {
        self.moved(u64::MAX, self.observations, batch)
    }

    /// The observations, at their poses in the map, with those that were withdrawn.
    pub fn corrected_observations(&self) -> Vec<Observation> {
        self.moved_batches().flat_map(|(_, batch)| batch).collect()
    }

    /// The batches, at their poses in the map, without what was withdrawn.
    pub fn corrected_batches(&self) -> impl Iterator<Item = Vec<Observation>> {
        self.moved_batches().map(|(number, mut batch)| {
            batch.retain(|seen| !self.withdrawals.iter().any(|withdrawal| withdrawal.concerns(number, seen)));
            batch
        })
    }

    fn moved_batches(&self) -> impl Iterator<Item = (u64, Vec<Observation>)> {
        (0..).zip(&self.batches).scan(0, |first, (number, batch)| {
            let moved = self.moved(number, *first, batch);
            *first += batch.len();
            Some((number, moved))
        })
    }

    /// A batch at its poses in the map; `first` is the number of its first observation.
    fn moved(&self, number: u64, first: usize, batch: &[Observation]) -> Vec<Observation> {
        match self.delay_of(number) {
            Some(delay) => self.correction.apply(first, &delay.undone(batch)),
            None => self.correction.apply(first, batch),
        }
    }

    fn delay_of(&self, number: u64) -> Option<&Delay> {
        self.delay.as_ref().filter(|delay| delay.concerns(number))
    }

    /// Movements of odometry between taking a reading and its stamp, of each observation; none without a delay.
    fn lags(&self) -> impl Iterator<Item = Vector3<f64>> {
        let of_batch = |(number, batch): (u64, &Vec<Observation>)| -> Vec<Vector3<f64>> {
            let lags = self.delay_of(number).map(|delay| delay.lags(batch).collect());
            lags.unwrap_or_else(|| vec![Vector3::zeros(); batch.len()])
        };
        (0..).zip(&self.batches).take_while(|_| self.delay.is_some()).flat_map(of_batch)
    }

    /// A trajectory of these batches with the same correction, delay and withdrawals.
    pub(crate) fn with_batches(&self, batches: Vec<Vec<Observation>>) -> Self {
        let (delay, withdrawals) = (self.delay, self.withdrawals.clone());
        Self { delay, withdrawals, ..Self::new(batches, self.correction.clone()) }
    }

    /// Replaces the correction. One that says where readings were measured contains their delay.
    pub(crate) fn correct(&mut self, correction: Correction) {
        self.delay = self.delay.filter(|_| !correction.has_lags());
        self.correction = correction;
    }

    /// Whether observations are withdrawn without which the map has yet to be made.
    pub fn is_map_outdated(&self) -> bool {
        self.withdrawals.iter().any(|withdrawal| !withdrawal.is_applied)
    }
}

/// Learns a map from the batches of a trajectory, in their order, under these settings; of the strength where they leave that to magmap. A
/// batch that the model rejects leaves the map as it was, as in driving; one of which everything was withdrawn is left out. `stop` is checked before every evaluation of the objective.
pub fn fold<B: AsRef<[Observation]>>(
    config: &Config,
    batches: impl IntoIterator<Item = B>,
    stop: &(dyn Fn() -> bool + Sync),
) -> FieldModel {
    fold_onto(FieldModel::new(config), batches, stop, |_, _| {})
}

/// Goes on with a [`fold`]: these batches follow those that the model has learnt. `before` is called with it and each batch before that
/// is learnt.
pub(crate) fn fold_onto<B: AsRef<[Observation]>>(
    mut model: FieldModel,
    batches: impl IntoIterator<Item = B>,
    stop: &(dyn Fn() -> bool + Sync),
    mut before: impl FnMut(&FieldModel, &[Observation]),
) -> FieldModel {
    for batch in batches {
        if batch.as_ref().is_empty() {
            continue;
        }
        before(&model, batch.as_ref());
        if let Err(reason) = model.update(batch.as_ref(), stop) {
            log::warn!("a batch of {} observations was rejected: {reason}", batch.as_ref().len());
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn observation()(
            nanoseconds in any::<i64>(), numbers in prop::array::uniform17(any::<f64>()), readings in 1..u32::MAX,
        ) -> Observation {
            Observation {
                stamp: Stamp::from_nanoseconds(nanoseconds),
                position: Point3::new(numbers[0], numbers[1], numbers[2]),
                orientation: Matrix3::from_column_slice(&numbers[3..12]),
                speed: numbers[12],
                field: MagneticField::from_microtesla(Vector3::new(numbers[13], numbers[14], numbers[15])),
                strength: numbers[16],
                readings,
            }
        }
    }

    proptest! {
        #[test]
        fn observations_are_the_same_after_being_written(observations in prop::collection::vec(observation(), 0..5)) {
            let bytes = to_bytes(&observations);
            prop_assert_eq!(bytes.len(), observations.len() * RECORD);
            let read = from_bytes(&bytes).unwrap();
            prop_assert_eq!(to_bytes(&read), bytes);
            prop_assert_eq!(read, observations);
        }
    }

    /// Observations along x, whose sensor is turned by a quarter.
    fn along_x(count: u32) -> Vec<Observation> {
        let observation = |step: u32| Observation {
            stamp: Stamp::from_nanoseconds(step.into()),
            position: Point3::new(0.3 * f64::from(step), 0.1, 0.4),
            orientation: Matrix3::new(0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0),
            field: MagneticField::from_microtesla(Vector3::new(20.0, f64::from(step), -40.0)),
            strength: 45.0,
            speed: 0.5,
            readings: 2,
        };
        (0..count).map(observation).collect()
    }

    #[test]
    fn trajectories_of_several_maps_are_one_in_which_each_moves_as_a_whole_and_is_as_late() {
        let node = |observation: f64, x: f64, turn: f64, hard_iron: [f64; 3]| Node {
            hard_iron,
            ..Node::new(observation, &Isometry2::new([x, -x].into(), turn))
        };
        // A path that was corrected, with a node after its end; an exact one; a single observation.
        let bent =
            vec![node(1.5, 0.1, 0.2, [0.0; 3]), node(3.0, 0.3, 0.1, [1.0, 0.0, 2.0]), node(7.0, 0.0, 0.3, [0.0; 3])];
        let bent = Trajectory::new(along_x(7).chunks(4).map(<[_]>::to_vec).collect(), Correction::new(bent).unwrap());
        let late = |trajectory: &Trajectory, end| {
            // By 3 cm at 0.3 m in a nanosecond.
            Trajectory { delay: Some(Delay { seconds: 1e-10, deviation: 1e-11, end }), ..trajectory.clone() }
        };
        let bent_and_late = late(&bent, Some(1));
        let exact = Trajectory::new(vec![along_x(5)], Correction::default());
        let exact_and_late = late(&exact, None);
        let single = Trajectory::new(vec![along_x(1)], Correction::default());
        let empty = Trajectory::default();
        let iron = Vector3::new(3.0, -2.0, 1.0);
        let parts = [
            (&exact, Isometry2::identity(), Vector3::zeros()),
            (&bent, Isometry2::new([3.0, 1.0].into(), 1.2), iron),
            (&empty, Isometry2::identity(), iron),
            (&single, Isometry2::new([-1.0, 0.0].into(), -0.4), Vector3::zeros()),
            (&exact, Isometry2::new([0.0, 9.0].into(), 2.0), -iron),
            (&bent_and_late, Isometry2::new([3.0, 1.0].into(), 1.2), iron),
            (&exact_and_late, Isometry2::new([0.0, 9.0].into(), 2.0), -iron),
        ];
        let joined = Trajectory::joined(parts).unwrap();
        assert_eq!(joined.batches(), parts.map(|(part, ..)| part.batches()).concat());
        let expected = parts.iter().flat_map(|(part, frame, iron)| {
            let own: Vec<Observation> = part.corrected_batches().flatten().collect();
            own.into_iter()
                .map(|seen| seen.moved_to(&(frame * seen.in_plane())).without_hard_iron(iron))
                .collect::<Vec<_>>()
        });
        let found: Vec<Observation> = joined.corrected_batches().flatten().collect();
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            // Where the node after the end was, the last observation is now: others move by what is left of its bend between them.
            // A bend between two nodes turns a lag as it turns the path, to second order.
            let tolerance = match index {
                9 | 10 => 0.02,
                18..=21 => 1e-4,
                _ => 1e-9,
            };
            let off = (found.position - expected.position).norm() + (found.orientation - expected.orientation).norm();
            assert!(off < tolerance, "{index}: {found:?}, expected {expected:?}");
            let field = found.field.microtesla() - expected.field.microtesla();
            assert!(
                field.norm() < 50.0 * tolerance && (found.strength - expected.strength).abs() < 1.0,
                "{index}: {field}"
            );
        }
        assert_eq!(found.len(), 30);
        // What is late was measured further back, until its delay ends.
        let back = |late: usize, other: usize| (found[late].position - found[other].position).norm();
        assert!(
            (back(25, 13) - 0.03).abs() < 1e-9 && (back(18, 5) - 0.03).abs() < 1e-4,
            "{} {}",
            back(25, 13),
            back(18, 5)
        );
        assert!(back(22, 9) < 0.02, "{}", back(22, 9));
        // What is read from a file may be anything.
        let mut wrong = along_x(3);
        wrong[2].position.x = f64::NAN;
        let wrong = Trajectory::new(vec![wrong], Correction::default());
        assert!(Trajectory::joined([(&wrong, Isometry2::identity(), iron)]).is_none());
    }

    #[test]
    fn a_hard_iron_is_taken_out_along_the_axes_of_the_sensor() {
        let seen = along_x(1)[0].without_hard_iron(&Vector3::new(3.0, -2.0, 1.0));
        // The x axis of the sensor is y of the map, its y axis the reverse of x.
        let expected: Vector3<f64> = Vector3::new(18.0, -3.0, -41.0);
        assert_eq!(*seen.field.microtesla(), expected);
        let before: Vector3<f64> = Vector3::new(20.0, 0.0, -40.0);
        let change = expected.norm() - before.norm();
        assert!((seen.strength - 45.0 - change).abs() < 1e-12);
    }

    #[test]
    fn a_record_is_laid_out_as_documented() {
        let observation = Observation {
            stamp: Stamp::from_nanoseconds(5),
            position: Point3::new(1.0, 2.0, 3.0),
            orientation: Matrix3::new(4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0),
            field: MagneticField::from_microtesla(Vector3::new(13.0, 14.0, 15.0)),
            strength: 16.0,
            speed: 17.0,
            readings: 18,
        };
        let bytes = to_bytes(&[observation]);
        let numbers: Vec<f64> = bytes[8..144].chunks(8).map(LittleEndian::read_f64).collect();
        assert_eq!(numbers, (1..=17).map(f64::from).collect::<Vec<_>>());
        assert_eq!((bytes[0], bytes[144]), (5, 18));
    }

    #[test]
    fn bytes_of_another_length_and_observations_of_no_reading_are_rejected() {
        assert_eq!(from_bytes(&[1; RECORD - 1]), None);
        assert_eq!(from_bytes(&[1; RECORD + 1]), None);
        assert_eq!(from_bytes(&[0; RECORD]), None);
        assert_eq!(from_bytes(&[]), Some(Vec::new()));
    }
}
