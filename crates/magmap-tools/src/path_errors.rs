//! How far a path is from the true one, after the rotation and the shift that fit best, as `evo` compares paths.

use magmap::sensing::reading::{Pose, Stamp, in_plane, interpolate};
use nalgebra::{Isometry2, Isometry3, Rotation2, Vector2};

/// Longest time between two poses across which one is interpolated, in seconds.
const MAX_GAP: f64 = 0.5;

/// The pose at a stamp, interpolated between those around it; none outside of them, or where they are far apart.
pub fn pose_at(poses: &[Pose], stamp: Stamp) -> Option<Isometry3<f64>> {
    let next = poses.partition_point(|pose| pose.stamp < stamp);
    let after = poses.get(next)?;
    if after.stamp == stamp {
        return Some(after.isometry());
    }
    let before = poses.get(next.checked_sub(1)?)?;
    let gap = after.stamp.seconds_since(before.stamp);
    let fraction = stamp.seconds_since(before.stamp) / gap;
    (gap <= MAX_GAP).then(|| interpolate(&before.isometry(), &after.isometry(), fraction))
}

/// The poses in the plane at these stamps; none where they are unknown.
pub fn planar_at(poses: &[Pose], stamps: impl Iterator<Item = Stamp>) -> Vec<Option<Isometry2<f64>>> {
    stamps.map(|stamp| pose_at(poses, stamp).as_ref().map(in_plane)).collect()
}

/// The transform in the plane that brings places nearest to others, pair by pair, in the sense of least squares.
pub fn alignment(pairs: &[(Vector2<f64>, Vector2<f64>)]) -> Isometry2<f64> {
    let count = pairs.len().max(1) as f64;
    let from = pairs.iter().map(|(from, _)| from).sum::<Vector2<f64>>() / count;
    let to = pairs.iter().map(|(_, to)| to).sum::<Vector2<f64>>() / count;
    let (sin, cos) = pairs.iter().fold((0.0, 0.0), |(sin, cos), (place, target)| {
        let (place, target) = (place - from, target - to);
        (sin + place.perp(&target), cos + place.dot(&target))
    });
    let turn = Rotation2::new(f64::atan2(sin, cos));
    Isometry2::new(to - turn * from, turn.angle())
}

/// Distances of places from others after the [`alignment`], pair by pair.
pub fn distances(pairs: &[(Vector2<f64>, Vector2<f64>)]) -> Vec<f64> {
    let aligned = alignment(pairs);
    pairs.iter().map(|(place, target)| (aligned * nalgebra::Point2::from(*place) - target).coords.norm()).collect()
}

/// Root mean square of some numbers; 0 of none.
pub fn root_mean_square(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let number = values.len().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / number).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_only_turned_and_shifted_has_no_error_and_a_longer_one_has() {
        let places = [[0.0, 0.0], [4.0, 0.0], [4.0, 3.0], [-1.0, 2.0]].map(Vector2::from);
        let transform = Isometry2::new(Vector2::new(5.0, -7.0), 2.9);
        let pairs = |scale: f64| -> Vec<_> {
            let moved = |place: &Vector2<f64>| (transform * nalgebra::Point2::from(scale * place)).coords;
            places.iter().map(|place| (*place, moved(place))).collect()
        };
        assert!((alignment(&pairs(1.0)).inverse() * transform).translation.vector.norm() < 1e-12);
        assert!(distances(&pairs(1.0)).iter().all(|distance| *distance < 1e-12));
        // Twice as large, each place is as far off as it is from the middle.
        let middle = places.iter().sum::<Vector2<f64>>() / 4.0;
        for (distance, place) in distances(&pairs(2.0)).iter().zip(places) {
            assert!((distance - (place - middle).norm()).abs() < 1e-12);
        }
        assert_eq!(distances(&[]), Vec::<f64>::new());
    }
}
