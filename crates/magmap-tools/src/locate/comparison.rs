//! Compares the poses found with the true ones.

use serde::Serialize;

use super::LocatedStep;
use crate::path_errors::root_mean_square;
use magmap::localization::State;

/// The 95 % quantile of the chi-squared distribution with two degrees of freedom: the squared distance within the ellipse of 95 %.
pub const CHI_SQUARED_95: f64 = 5.991;

/// An estimate that is sure (tracking) is wrong beyond this distance, in metres.
pub const WRONG: f64 = 1.0;

/// The poses found compared with the true ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of updates that could be compared.
    pub updates: usize,
    /// Root mean square error of the place, in metres.
    pub error: f64,
    /// Median error of the place, in metres.
    pub median: f64,
    /// Greatest error of the place, in metres.
    pub greatest: f64,
    /// Last error of the place, in metres.
    pub last: f64,
    /// Root mean square error of the place while the state is tracking, in metres; none if it never is.
    pub tracking: Option<f64>,
    /// Root mean square error of the heading, in radians.
    pub heading: f64,
    /// Root mean square error of the place by odometry alone, from the first true pose on, in metres.
    pub dead_reckoning: f64,
    /// Last error of the place by odometry alone, in metres.
    pub dead_reckoning_last: f64,
    /// Share of the updates whose true place is within the ellipse of 95 %.
    pub inside_95: f64,
    /// Number of updates that are sure (tracking) and more than 1 m off.
    pub sure_and_wrong: usize,
}

impl Comparison {
    /// Compares the updates whose truth is known; none if it never is.
    pub fn of(steps: &[LocatedStep]) -> Option<Self> {
        let known: Vec<(&LocatedStep, nalgebra::Isometry2<f64>)> =
            steps.iter().filter_map(|step| Some((step, step.truth?))).collect();
        let (first, first_truth) = known.first()?;
        let map_from_odometry = first_truth * first.odometry.inverse();
        let distance = |found: &nalgebra::Isometry2<f64>, truth: &nalgebra::Isometry2<f64>| {
            (found.translation.vector - truth.translation.vector).norm()
        };
        let errors: Vec<f64> = known.iter().map(|(step, truth)| distance(&step.pose, truth)).collect();
        let dead: Vec<f64> =
            known.iter().map(|(step, truth)| distance(&(map_from_odometry * step.odometry), truth)).collect();
        let is_tracking = |step: &LocatedStep| step.located.state == State::Tracking;
        let tracking: Vec<f64> =
            known.iter().zip(&errors).filter(|((step, _), _)| is_tracking(step)).map(|(_, &error)| error).collect();
        let headings = known.iter().map(|(step, truth)| step.pose.rotation.angle_to(&truth.rotation));
        let inside =
            known.iter().filter(|(step, _)| step.squared_distance.is_some_and(|square| square < CHI_SQUARED_95));
        let mut sorted = errors.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            updates: known.len(),
            error: root_mean_square(errors.iter().copied()),
            median: sorted[sorted.len() / 2],
            greatest: sorted[sorted.len() - 1],
            last: errors[errors.len() - 1],
            tracking: (!tracking.is_empty()).then(|| root_mean_square(tracking.iter().copied())),
            heading: root_mean_square(headings),
            dead_reckoning: root_mean_square(dead.iter().copied()),
            dead_reckoning_last: dead[dead.len() - 1],
            inside_95: inside.count() as f64 / known.len() as f64,
            sure_and_wrong: tracking.iter().filter(|error| **error > WRONG).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Isometry2, Vector2};

    use super::*;
    use magmap::localization::{Estimate, Located};
    use magmap::sensing::reading::Stamp;

    fn step(found: [f64; 3], odometry: [f64; 3], truth: Option<[f64; 3]>, state: State) -> LocatedStep {
        let pose = |[x, y, heading]: [f64; 3]| Isometry2::new(Vector2::new(x, y), heading);
        let estimate = Estimate {
            place: [found[0], found[1]],
            turn: 0.0,
            covariance: [[0.04, 0.0, 0.0], [0.0, 0.04, 0.0], [0.0, 0.0, 0.01]],
            share: 1.0,
            evidence: 1.0,
            misfit: 1.0,
            inside: 1.0,
        };
        let located = Located {
            stamp: Stamp::default(),
            pose: pose(found),
            map_from_odometry: Isometry2::identity(),
            estimate,
            state,
            reason: None,
            particles: 1,
        };
        LocatedStep {
            stamp: Stamp::default(),
            located,
            pose: pose(found),
            odometry: pose(odometry),
            truth: truth.map(pose),
            squared_distance: truth.map(|[x, y, _]| estimate.squared_distance([x, y])),
        }
    }

    #[test]
    fn errors_are_those_of_the_updates_whose_truth_is_known() {
        let quarter = std::f64::consts::FRAC_PI_2;
        let steps = [
            step([9.0, 9.0, 0.0], [0.0, 0.0, 0.0], None, State::Lost),
            // Odometry has its own frame: turned by a quarter.
            step([1.0, 2.3, 0.1], [0.0, 0.0, 0.0], Some([1.0, 2.0, quarter]), State::Converging),
            step([1.4, 3.0, quarter], [1.0, 0.0, 0.0], Some([1.0, 3.0, quarter]), State::Tracking),
            step([1.0, 6.0, quarter], [2.5, 0.0, 0.0], Some([1.0, 4.0, quarter]), State::Tracking),
        ];
        let found = Comparison::of(&steps).unwrap();
        assert_eq!((found.updates, found.sure_and_wrong), (3, 1));
        let near =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
        near(found.error, ((0.09 + 0.16 + 4.0) / 3.0_f64).sqrt());
        near(found.tracking.unwrap(), ((0.16 + 4.0) / 2.0_f64).sqrt());
        for (found, expected) in [(found.median, 0.4), (found.greatest, 2.0), (found.last, 2.0)] {
            near(found, expected);
        }
        near(found.heading, (quarter - 0.1) / 3.0_f64.sqrt());
        // Straight ahead is along y; the last step is half a metre too long.
        near(found.dead_reckoning_last, 0.5);
        near(found.dead_reckoning, 0.5 / 3.0_f64.sqrt());
        // 0.3 and 0.4 m with a standard deviation of 0.2 m are within 2.45 deviations.
        near(found.inside_95, 2.0 / 3.0);
        assert_eq!(Comparison::of(&steps[..1]), None);
    }
}
