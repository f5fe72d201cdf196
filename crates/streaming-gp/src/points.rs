//! Points of R^D, the places of a scalar field.

use crate::Places;

/// An ordered collection of points of R^D, kept one coordinate after another so that kernels run over contiguous numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    coordinates: Vec<Vec<f64>>,
}

impl Points {
    /// No points, in `dimension` dimensions (at least one).
    pub fn new(dimension: usize) -> Self {
        Self { coordinates: vec![Vec::new(); dimension.max(1)] }
    }

    /// Points from arrays of their coordinates.
    pub fn from_arrays<const D: usize>(points: &[[f64; D]]) -> Self {
        let mut all = Self::new(D);
        points.iter().for_each(|point| all.push(point));
        all
    }

    /// Appends a point.
    ///
    /// # Panics
    /// When the point has another dimension than the collection.
    pub fn push(&mut self, point: &[f64]) {
        assert_eq!(point.len(), self.dimension(), "a point of another dimension");
        for (axis, &value) in self.coordinates.iter_mut().zip(point) {
            axis.push(value);
        }
    }

    /// Number of coordinates of each point.
    pub fn dimension(&self) -> usize {
        self.coordinates.len()
    }

    /// A coordinate of all points.
    pub fn axis(&self, axis: usize) -> &[f64] {
        &self.coordinates[axis]
    }

    /// The coordinates of one point.
    pub fn point(&self, index: usize) -> impl Iterator<Item = f64> + '_ {
        self.coordinates.iter().map(move |axis| axis[index])
    }
}

impl Places for Points {
    fn len(&self) -> usize {
        self.coordinates[0].len()
    }

    fn cleared(&self) -> Self {
        Self::new(self.dimension())
    }

    fn push_from(&mut self, source: &Self, index: usize) {
        for (axis, other) in self.coordinates.iter_mut().zip(&source.coordinates) {
            axis.push(other[index]);
        }
    }

    fn compatible(&self, other: &Self) -> bool {
        self.dimension() == other.dimension()
    }

    fn is_finite(&self) -> bool {
        self.coordinates.iter().flatten().all(|value| value.is_finite())
    }

    fn coordinates_per_place(&self) -> usize {
        self.dimension()
    }

    fn coordinates(&self) -> Vec<f64> {
        self.coordinates.concat()
    }

    fn with_coordinates(&self, coordinates: &[f64]) -> Self {
        assert_eq!(coordinates.len(), self.len() * self.dimension(), "as many coordinates as there are");
        let axis = |axis: usize| coordinates[axis * self.len()..][..self.len()].to_vec();
        Self { coordinates: (0..self.dimension()).map(axis).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_taken_out_and_put_back_one_axis_after_another() {
        let points = Points::from_arrays(&[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]);
        assert_eq!(points.coordinates_per_place(), 2);
        assert_eq!(points.coordinates(), [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
        assert_eq!(points.select([2, 0, 1]).with_coordinates(&points.coordinates()), points);
    }
}
