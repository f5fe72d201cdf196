//! Simulated errors of odometry.

use magmap::sensing::reading::Observation;
use magmap::slam::{PlanePose, Shared, chain, plane_pose};
use nalgebra::Vector2;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;

/// Errors of odometry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OdometryErrors {
    /// Standard deviation of the relative error of distances from run to run.
    pub scale: f64,
    /// Standard deviation of the drift of the heading from run to run, in radians per metre.
    pub drift: f64,
    /// Standard deviation of the distance after a metre, in metres.
    pub forward: f64,
    /// Standard deviation of the heading after a metre, in radians.
    pub heading: f64,
    /// Standard deviation of the sideways movement in each step, in metres.
    pub sideways: f64,
    /// Distance by which wheels slip at once, after a third of the path, in metres.
    pub slip: f64,
}

impl OdometryErrors {
    /// A robot on wheels whose heading drifts by this, in radians per metre.
    pub fn drifting(drift: f64) -> Self {
        Self { scale: 0.03, drift, forward: 0.01, heading: 0.02, sideways: 2e-3, slip: 0.0 }
    }

    /// A device that is carried at 1 m/s: ten steps a second, each with noise of 1 cm and 0.01 rad, and a heading that drifts by
    /// 0.005 rad/s.
    pub fn hand_held() -> Self {
        let after_a_metre = 0.01 * f64::sqrt(10.0);
        Self { scale: 0.0, drift: 0.005, forward: after_a_metre, heading: after_a_metre, sideways: 0.01, slip: 0.0 }
    }

    /// Where these observations are by odometry with such errors, from the first on.
    pub(super) fn odometry(&self, observations: &[Observation], seed: u64) -> Vec<PlanePose> {
        let mut links = chain(observations);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
        let (scale, drift) = (1.0 + self.scale * normal(), self.drift * normal());
        for link in links.iter_mut().skip(1) {
            let length = link.movement.norm();
            let noise = Vector2::new(self.forward * length.sqrt() * normal(), self.sideways * normal());
            link.movement = link.movement * scale + noise;
            link.turn += drift * length + self.heading * length.sqrt() * normal();
        }
        let third = links.len() / 3;
        if let Some(link) = links.get_mut(third) {
            link.movement.x += self.slip;
        }
        let mut odometry: Vec<PlanePose> = observations.iter().take(1).map(plane_pose).collect();
        for link in links.iter().skip(1) {
            odometry.push(link.follow(&odometry[odometry.len() - 1], &Shared::zeros()));
        }
        odometry
    }
}
