//! The path of the robot, thinned for pictures.

use nalgebra::Point3;

/// A thinned path: points at least `spacing` metres apart, and the last position. When there are too many, every other one is
/// dropped and the spacing doubled, so that memory is bounded and the whole drive is covered.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The least distance between points, in metres.
    pub spacing: f64,
    /// The last position is always the last point; it is kept if it is a spacing away when the next one arrives.
    points: Vec<Point3<f64>>,
}

/// Spacing of a path's points at first, in metres.
const SPACING: f64 = 0.1;

/// Most points a path keeps.
const CAPACITY: usize = 20_000;

impl Default for Path {
    fn default() -> Self {
        Self { spacing: SPACING, points: Vec::with_capacity(CAPACITY) }
    }
}

impl Path {
    /// Restores a path from its [`points`](Self::points) and [`spacing`](Self::spacing).
    pub fn from_points(points: &[Point3<f64>], spacing: f64) -> Self {
        let mut path = Self { spacing, ..Self::default() };
        path.points.extend(points);
        while path.points.len() > CAPACITY {
            let newest = path.points.pop();
            path.thin();
            path.points.extend(newest);
        }
        path
    }

    /// Records where the robot is.
    pub fn push(&mut self, position: Point3<f64>) {
        if self.points.last() == Some(&position) {
            return;
        }
        if let [.., kept, newest] = self.points[..]
            && (newest - kept).norm() < self.spacing
        {
            self.points.pop();
        }
        if self.points.len() == CAPACITY {
            self.thin();
        }
        self.points.push(position);
    }

    /// The points, in the order of the drive, in the map frame, in metres; the last one is the last position.
    pub fn points(&self) -> &[Point3<f64>] {
        &self.points
    }

    fn thin(&mut self) {
        self.spacing *= 2.0;
        drop_every_other(&mut self.points);
    }
}

/// Keeps the first, the third, the fifth item and so on.
pub(super) fn drop_every_other<T>(items: &mut Vec<T>) {
    let mut is_kept = [true, false].into_iter().cycle();
    items.retain(|_| is_kept.next() == Some(true));
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
    fn a_long_drive_is_bounded_and_covered() {
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

    #[test]
    fn a_restored_path_continues_as_before() {
        let winding = |index: usize| Point3::new((0.013 * index as f64).sin() * 400.0, 0.07 * index as f64, 0.0);
        let mut path = Path::default();
        let mut restored = path.clone();
        for index in 0..(3 * CAPACITY) {
            if index % 1_237 == 0 {
                restored = Path::from_points(path.points(), path.spacing);
                assert_eq!(restored, path);
            }
            // Now and then the robot stands still, or goes back.
            let position = winding(if index % 10 == 7 { index - 2 } else { index - index % 3 / 2 });
            path.push(position);
            restored.push(position);
        }
        assert_eq!(restored, path);
        assert!(path.spacing > SPACING);
    }

    #[test]
    fn too_many_points_are_thinned() {
        let points: Vec<_> = (0..5 * CAPACITY).map(|index| Point3::new(0.1 * index as f64, 0.0, 0.0)).collect();
        let path = Path::from_points(&points, SPACING);
        assert!(path.points().len() <= CAPACITY && path.points().len() > CAPACITY / 4);
        assert_eq!(path.points().last(), points.last());
    }
}
