//! Where the robot has been, thinned for pictures.

use nalgebra::Point3;

/// A thinned path: points at least `spacing` metres apart. When it holds too many, every other one is dropped and the spacing
/// doubled, so that memory is bounded and the whole drive stays.
#[derive(Clone, Debug)]
pub struct Path {
    spacing: f64,
    points: Vec<Point3<f64>>,
    last: Option<Point3<f64>>,
}

/// Spacing of a path's points at first, in metres.
const SPACING: f64 = 0.1;

/// Most points a path keeps.
const CAPACITY: usize = 20_000;

impl Default for Path {
    fn default() -> Self {
        Self { spacing: SPACING, points: Vec::with_capacity(CAPACITY), last: None }
    }
}

impl Path {
    /// The path through these points.
    pub fn from_points(points: impl IntoIterator<Item = Point3<f64>>) -> Self {
        let mut path = Self::default();
        points.into_iter().for_each(|point| path.push(point));
        path
    }

    /// Records where the robot is.
    pub fn push(&mut self, position: Point3<f64>) {
        self.last = Some(position);
        if self.points.last().is_some_and(|last| (position - last).norm() < self.spacing) {
            return;
        }
        if self.points.len() == CAPACITY {
            self.thin();
        }
        self.points.push(position);
    }

    /// The points, in the order of the drive, in the map frame, in metres; the newest position is always the last of them.
    pub fn points(&self) -> Vec<Point3<f64>> {
        let newest = self.last.filter(|last| self.points.last() != Some(last));
        self.points.iter().copied().chain(newest).collect()
    }

    fn thin(&mut self) {
        self.spacing *= 2.0;
        let mut index = 0;
        self.points.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_a_spacing_apart_and_the_ends_are_kept() {
        let mut path = Path::default();
        for index in 0..=1000 {
            path.push(Point3::new(0.004 * index as f64, 0.0, 0.0));
        }
        let points = path.points();
        // Every 25th reading (10 cm) or the 26th where rounding falls short, and the last.
        assert!((39..=42).contains(&points.len()), "{}", points.len());
        assert_eq!((points[0].x, points.last().unwrap().x), (0.0, 4.0));
    }

    #[test]
    fn a_long_drive_stays_bounded_and_whole() {
        let mut path = Path::default();
        for index in 0..(5 * CAPACITY) {
            path.push(Point3::new(0.2 * index as f64, 0.0, 0.0));
        }
        let points = path.points();
        assert!(points.len() <= CAPACITY + 1 && points.len() > CAPACITY / 4, "{}", points.len());
        assert_eq!(points[0].x, 0.0);
        assert_eq!(points.last().unwrap().x, 0.2 * (5 * CAPACITY - 1) as f64);
        assert!(points.windows(2).all(|pair| pair[1].x > pair[0].x));
    }
}
