//! The variables of a vector field: one of its axes at a place, as the map has it or as a sensor reads it, and the bias of the sensor.

use crate::Places;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An axis: of the map's frame for the field, of the sensor's frame for its hard iron.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The first.
    X,
    /// The second.
    Y,
    /// The third: up, in the map's frame.
    Z,
}

impl Axis {
    /// The three of them, in order.
    pub const ALL: [Self; 3] = [Self::X, Self::Y, Self::Z];

    fn unit(self) -> [f64; 3] {
        Self::ALL.map(|axis| f64::from(u8::from(axis == self)))
    }

    fn of_unit(vector: [f64; 3]) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.unit() == vector)
    }
}

/// A variable of a vector field and its sensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldPlace {
    /// An axis of the field at a place, free of the sensor.
    Field {
        /// The axis.
        axis: Axis,
        /// The place: x, y and the height z above the plane of the map.
        position: [f64; 3],
    },
    /// An axis of a reading turned into the map's frame: of the field plus that of R (h + g speed).
    Reading {
        /// The axis.
        axis: Axis,
        /// The place.
        position: [f64; 3],
        /// The row of this axis in R, which turns the sensor's frame into the map's.
        turn: [f64; 3],
        /// The speed that multiplies g.
        speed: f64,
    },
    /// A component of the hard iron h.
    HardIron(Axis),
    /// A component of g, the part of the bias that grows with speed.
    SpeedBias(Axis),
}

/// An ordered collection of [`FieldPlace`]s, kept one number after another so that kernels run over contiguous numbers.
///
/// Every one of them is `direction . B(position) + turn . (iron h + speed g)`; one of a sensor has no direction, one of the field no
/// turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPlaces {
    columns: [Vec<f64>; COLUMNS],
}

const COLUMNS: usize = 11;
const POSITION: usize = 0;
const DIRECTION: usize = 3;
const TURN: usize = 6;
const IRON: usize = 9;
const SPEED: usize = 10;

/// A place as the numbers that it consists of.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub position: [f64; 3],
    pub direction: [f64; 3],
    pub turn: [f64; 3],
    pub iron: f64,
    pub speed: f64,
}

impl FieldPlaces {
    /// An empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The three axes of the field at each of the places: of the first place, then of the second, and so on.
    pub fn axes(positions: &[[f64; 3]]) -> Self {
        let of_place = |&position: &[f64; 3]| Axis::ALL.map(|axis| FieldPlace::Field { axis, position });
        positions.iter().flat_map(of_place).collect()
    }

    /// Appends one.
    pub fn push(&mut self, place: FieldPlace) {
        let none = [0.0; 3];
        let (position, direction, turn, iron, speed) = match place {
            FieldPlace::Field { axis, position } => (position, axis.unit(), none, 0.0, 0.0),
            FieldPlace::Reading { axis, position, turn, speed } => (position, axis.unit(), turn, 1.0, speed),
            FieldPlace::HardIron(axis) => (none, none, axis.unit(), 1.0, 0.0),
            FieldPlace::SpeedBias(axis) => (none, none, axis.unit(), 0.0, 1.0),
        };
        let values = position.into_iter().chain(direction).chain(turn).chain([iron, speed]);
        self.columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }

    /// The one with this index.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn get(&self, index: usize) -> FieldPlace {
        let Numbers { position, direction, turn, iron, speed } = self.numbers(index);
        match (Axis::of_unit(direction), Axis::of_unit(turn)) {
            (Some(axis), _) if iron == 0.0 => FieldPlace::Field { axis, position },
            (Some(axis), _) => FieldPlace::Reading { axis, position, turn, speed },
            (None, component) => {
                let component = component.expect("what is not of the field is a component of the sensor's bias");
                if iron == 0.0 { FieldPlace::SpeedBias(component) } else { FieldPlace::HardIron(component) }
            }
        }
    }

    /// All places, in order.
    pub fn iter(&self) -> impl Iterator<Item = FieldPlace> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    pub(crate) fn numbers(&self, index: usize) -> Numbers {
        let three = |first: usize| std::array::from_fn(|i| self.columns[first + i][index]);
        Numbers {
            position: three(POSITION),
            direction: three(DIRECTION),
            turn: three(TURN),
            iron: self.columns[IRON][index],
            speed: self.columns[SPEED][index],
        }
    }

    pub(crate) fn positions(&self) -> [&[f64]; 3] {
        self.three(POSITION)
    }

    pub(crate) fn directions(&self) -> [&[f64]; 3] {
        self.three(DIRECTION)
    }

    pub(crate) fn turns(&self) -> [&[f64]; 3] {
        self.three(TURN)
    }

    /// The factors of the turned h and of the turned g.
    pub(crate) fn bias_factors(&self) -> [&[f64]; 2] {
        [&self.columns[IRON], &self.columns[SPEED]]
    }

    fn three(&self, first: usize) -> [&[f64]; 3] {
        std::array::from_fn(|i| self.columns[first + i].as_slice())
    }
}

impl FromIterator<FieldPlace> for FieldPlaces {
    fn from_iter<I: IntoIterator<Item = FieldPlace>>(places: I) -> Self {
        let mut all = Self::new();
        places.into_iter().for_each(|place| all.push(place));
        all
    }
}

impl Places for FieldPlaces {
    fn len(&self) -> usize {
        self.columns[0].len()
    }

    fn output(&self, index: usize) -> usize {
        self.directions().iter().position(|column| column[index] != 0.0).unwrap_or(0)
    }

    fn candidates(&self) -> Cow<'_, Self> {
        if self.columns[IRON].iter().all(|iron| *iron == 0.0) {
            return Cow::Borrowed(self);
        }
        let mut field = self.clone();
        field.columns[TURN..].iter_mut().for_each(|column| column.fill(0.0));
        Cow::Owned(field)
    }

    fn is_permanent(&self, index: usize) -> bool {
        self.directions().iter().all(|column| column[index] == 0.0)
    }

    fn cleared(&self) -> Self {
        Self::new()
    }

    fn push_from(&mut self, source: &Self, index: usize) {
        self.columns.iter_mut().zip(&source.columns).for_each(|(column, other)| column.push(other[index]));
    }

    fn compatible(&self, _: &Self) -> bool {
        true
    }

    fn is_finite(&self) -> bool {
        self.columns.iter().flatten().all(|value| value.is_finite())
    }

    fn coordinates_per_place(&self) -> usize {
        3
    }

    fn coordinates(&self) -> Vec<f64> {
        self.positions().concat()
    }

    fn with_coordinates(&self, coordinates: &[f64]) -> Self {
        let length = self.len();
        assert_eq!(coordinates.len(), 3 * length, "as many coordinates as there are");
        let mut moved = self.clone();
        let positions = &mut moved.columns[POSITION..DIRECTION];
        positions
            .iter_mut()
            .enumerate()
            .for_each(|(i, column)| column.copy_from_slice(&coordinates[i * length..][..length]));
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_kinds() -> Vec<FieldPlace> {
        let position = [0.1, -2.5, 0.3];
        let mut places = Vec::new();
        for (axis, turn) in Axis::ALL.into_iter().zip([[0.6, -0.8, 0.0], [0.0; 3], [0.0, 0.0, 1.0]]) {
            places.push(FieldPlace::Reading { axis, position, turn, speed: 0.7 });
            places.push(FieldPlace::Field { axis, position });
            places.push(FieldPlace::HardIron(axis));
            places.push(FieldPlace::SpeedBias(axis));
        }
        places
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let places: FieldPlaces = all_kinds().into_iter().collect();
        assert_eq!(places.iter().collect::<Vec<_>>(), all_kinds());
        assert_eq!(places.with_coordinates(&places.coordinates()), places);
        let text = serde_json::to_string(&places.iter().collect::<Vec<_>>()).unwrap();
        let again: Vec<FieldPlace> = serde_json::from_str(&text).unwrap();
        assert_eq!(again.into_iter().collect::<FieldPlaces>(), places);
    }

    #[test]
    fn candidates_are_of_the_field_alone_and_only_the_sensor_is_permanent() {
        let places: FieldPlaces = all_kinds().into_iter().collect();
        let permanent: Vec<bool> = (0..places.len()).map(|i| places.is_permanent(i)).collect();
        assert_eq!(permanent, [false, false, true, true].repeat(3));
        let readings: FieldPlaces = places.select([0, 4, 8]);
        let field: FieldPlaces = places.select([1, 5, 9]);
        assert_eq!(*readings.candidates(), field);
        assert!(matches!(field.candidates(), Cow::Borrowed(_)));
        assert_eq!([0, 1, 2].map(|i| readings.output(i)), [0, 1, 2]);
    }
}
