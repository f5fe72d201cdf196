//! The odometry of a robot whose true poses are known.

use nalgebra::{UnitQuaternion, Vector3};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::{Error, Stream, check, generator, not_negative, positive};
use magmap::sensing::reading::Pose;

/// The errors of odometry, which accumulate with the distance as wheels slip. Standard deviations grow with its square root.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub struct Drift {
    /// Relative error of the distances that odometry reports (negative: too short).
    #[arg(long = "drift-scale", value_name = "SHARE", default_value_t = 0.0)]
    pub scale: f64,
    /// Steady error of odometry's heading, in radians per metre (positive: the robot seems to turn left).
    #[arg(long = "drift-turn", value_name = "RADIANS", default_value_t = 0.0)]
    pub turn: f64,
    /// Noise of odometry's heading: its standard deviation after one metre, in radians.
    #[arg(long = "drift-heading", value_name = "RADIANS", default_value_t = 0.0)]
    pub heading: f64,
    /// Noise of odometry's distance: its standard deviation after one metre, in metres.
    #[arg(long = "drift-slip", value_name = "METRES", default_value_t = 0.0)]
    pub slip: f64,
}

impl Drift {
    /// The errors; none if all are zero.
    pub fn if_any(self) -> Option<Self> {
        Some(self).filter(|drift| *drift != Self::default())
    }

    /// Checks that these errors are possible.
    ///
    /// # Errors
    /// Numbers that are not finite, negative deviations, and a scale that leaves no distance.
    pub fn check(&self) -> Result<(), Error> {
        positive("drift scale, plus 1", 1.0 + self.scale)?;
        check("drift turn", self.turn.is_finite(), "a finite number", self.turn)?;
        not_negative("drift heading", self.heading)?;
        not_negative("drift slip", self.slip)
    }
}

/// Dead reckoning: accumulates movements and their errors.
#[derive(Clone, Debug)]
pub struct Odometry {
    drift: Option<Drift>,
    random: ChaCha8Rng,
    /// The last true and reported pose.
    last: Option<(Pose, Pose)>,
}

impl Odometry {
    /// Odometry with these errors, or without any; its first pose is the true one.
    pub fn new(drift: Option<Drift>, seed: u64) -> Self {
        Self { drift, random: generator(seed, Stream::Drift), last: None }
    }

    /// The reported pose when the robot is at a true one.
    pub fn report(&mut self, truth: Pose) -> Pose {
        let reported = match (self.drift, &self.last) {
            (Some(drift), Some((last_truth, last_reported))) => {
                let movement = last_truth.isometry().inv_mul(&truth.isometry());
                let distance = movement.translation.vector.norm();
                let mut normal = || -> f64 { StandardNormal.sample(&mut self.random) };
                let turned = drift.turn * distance + drift.heading * distance.sqrt() * normal();
                let slip = if drift.slip > 0.0 { drift.slip * normal() / distance.sqrt().max(1e-9) } else { 0.0 };
                let forward = movement.translation.vector * (1.0 + drift.scale + slip);
                Pose {
                    stamp: truth.stamp,
                    position: last_reported.position + last_reported.orientation * forward,
                    orientation: last_reported.orientation
                        * movement.rotation
                        * UnitQuaternion::from_axis_angle(&Vector3::z_axis(), turned),
                }
            }
            _ => truth,
        };
        self.last = Some((truth, reported));
        reported
    }
}
