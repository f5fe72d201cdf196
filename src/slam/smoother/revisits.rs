//! Places that the path has come back to.
//!
//! Only where the path was at another time do readings tell where it is. The readings of a single pass would bend and stretch it towards the
//! field that is likely before any reading.

use std::collections::HashMap;

use crate::slam::chain::PlanePose;

/// The path has come back where it is within the first distance of a place at which it was more than the second one before, along the path,
/// in lengthscales.
const RETURN: (f64, f64) = (0.75, 5.0);

/// The places of a path, and at which of them it was at another time as well.
#[derive(Clone, Debug)]
pub(super) struct Revisits {
    near: f64,
    before: f64,
    visits: Vec<Visit>,
    /// The visits in each square of the plane, whose side is the distance that is near.
    squares: HashMap<[i64; 2], Square>,
}

/// Indices of the visits in a square: those at places where the path was once, and the others. Of these the first that is near is enough, so
/// that time does not grow with their number.
#[derive(Clone, Debug, Default)]
struct Square {
    once: Vec<usize>,
    again: Vec<usize>,
}

/// A pose of the path.
#[derive(Clone, Copy, Debug)]
struct Visit {
    place: [f64; 2],
    /// Length of the path up to there, in metres.
    along: f64,
    /// A pose of an earlier time at that place.
    earlier: Option<usize>,
    /// Whether the path was there at another time, earlier or later.
    is_revisited: bool,
}

impl Revisits {
    /// Of no pose yet, in a field with this lengthscale, in metres.
    pub fn new(lengthscale: f64) -> Self {
        let (near, before) = RETURN;
        Self { near: near * lengthscale, before: before * lengthscale, visits: Vec::new(), squares: HashMap::new() }
    }

    /// Like this one, without poses.
    pub fn emptied(&self) -> Self {
        Self { visits: Vec::new(), squares: HashMap::new(), ..*self }
    }

    /// Takes the next pose.
    pub fn push(&mut self, pose: &PlanePose) {
        let place = [pose.x, pose.y];
        let distance = |visit: &Visit| (visit.place[0] - place[0]).hypot(visit.place[1] - place[1]);
        let along = self.visits.last().map_or(0.0, |last| last.along + distance(last));
        let (near, before) = (self.near, self.before);
        let is_return = |visit: &Visit| along - visit.along > before && distance(visit) < near;
        let mut earlier = None;
        let [column, row] = self.square(place);
        for square in (-1..=1).flat_map(|i| (-1..=1).map(move |j| [column + i, row + j])) {
            let Some(Square { once, again }) = self.squares.get_mut(&square) else { continue };
            earlier = earlier.max(again.iter().rev().find(|index| is_return(&self.visits[**index])).copied());
            once.retain(|&index| {
                let other = &mut self.visits[index];
                other.is_revisited = is_return(other);
                if other.is_revisited {
                    earlier = earlier.max(Some(index));
                    again.push(index);
                }
                !other.is_revisited
            });
        }
        let is_revisited = earlier.is_some();
        let Square { once, again } = self.squares.entry([column, row]).or_default();
        if is_revisited { again } else { once }.push(self.visits.len());
        self.visits.push(Visit { place, along, earlier, is_revisited });
    }

    fn square(&self, place: [f64; 2]) -> [i64; 2] {
        place.map(|coordinate| (coordinate / self.near).floor() as i64)
    }

    /// Whether the path was at another time where it is with this pose.
    pub fn is_revisited(&self, index: usize) -> bool {
        self.visits[index].is_revisited
    }

    /// A pose of an earlier time, the last that was found, at which the path was where it is with this pose.
    pub fn earlier(&self, index: usize) -> Option<usize> {
        self.visits[index].earlier
    }

    /// Length of the path up to this pose, in metres.
    pub fn along(&self, index: usize) -> f64 {
        self.visits[index].along
    }

    /// Number of the poses so long before this one that a place there counts as one of another time.
    pub fn end_before(&self, index: usize) -> usize {
        self.visits.partition_point(|visit| self.along(index) - visit.along > self.before)
    }

    /// Whether the path has come back anywhere.
    pub fn any(&self) -> bool {
        self.visits.iter().any(|visit| visit.is_revisited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_revisited_where_the_path_comes_back_after_a_long_way() {
        // There and back beside it, 0.5 m away, then off.
        let there = (0..100).map(|step| PlanePose::new(0.1 * f64::from(step), 0.0, 0.0));
        let back = (0..50).map(|step| PlanePose::new(9.9 - 0.1 * f64::from(step), 0.5, 0.0));
        let path: Vec<PlanePose> = there.chain(back).collect();
        let mut revisits = Revisits::new(1.003);
        path.iter().for_each(|pose| revisits.push(pose));
        let expected = |index: usize| {
            path.iter().enumerate().any(|(other, pose)| {
                let along =
                    |index: usize| if index < 100 { 0.1 * index as f64 } else { 10.4 + 0.1 * (index as f64 - 100.0) };
                (along(other) - along(index)).abs() > 5.015 && (pose - path[index]).xy().norm() < 0.752
            })
        };
        let found: Vec<usize> = (0..path.len()).filter(|index| revisits.is_revisited(*index)).collect();
        assert_eq!(found, (0..path.len()).filter(|index| expected(*index)).collect::<Vec<_>>());
        // The first pose that is back is that at 8.2 m: it is 5.2 m of path since the robot was next to there.
        let back = (0..path.len()).find(|index| revisits.earlier(*index).is_some()).unwrap();
        let there = revisits.earlier(back).unwrap();
        let way_round = revisits.along(back) - revisits.along(there);
        assert!(back >= 100 && there < 100 && (5.015..5.2).contains(&way_round), "{back} {there} {way_round}");
        assert!((path[back] - path[there]).xy().norm() < 0.752 && revisits.end_before(back) == there + 1);
        assert!(!revisits.emptied().any());
    }
}
