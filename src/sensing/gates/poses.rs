//! Implausible poses.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::rejection_run::RejectionRun;
use super::{FARTHEST, Gate, Rejected, Reopening};
use crate::config;
use crate::sensing::reading::{Pose, Stamp, is_rotation};
use crate::sensing::rejection::Rejection;

/// Shorter jumps of the odometry may be interpolated across, in metres: they displace readings no more than averaging does.
const HARMLESS_JUMP: f64 = 0.05;

/// Whether the robot drove from the last accepted pose to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Continuity {
    /// The robot drove.
    #[default]
    Continues,
    /// The gate reopened, so that nobody knows where the robot was in between, or when.
    Restarts,
}

/// Accepts poses with finite numbers (within 1e9 m), increasing stamps and a plausible speed.
///
/// `reopen_after` consecutive poses that are too far away, over `reopen_time`, reopen the gate: the robot is there. A robot that jumped and stays there may pass earlier,
/// merely because enough time has passed to have driven there: it did not, so that the drive restarts then too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoseGate {
    jumps: RejectionRun,
    /// The last accepted stamp and position.
    reference: Option<(Stamp, Point3<f64>)>,
    /// The position of the last pose, if that was rejected as a jump.
    rejected: Option<Point3<f64>>,
    next: Continuity,
}

impl PoseGate {
    /// Accepts the next pose, with whether it continues the drive, or rejects it.
    pub fn check(&mut self, settings: &config::Gates, pose: &Pose) -> Result<Continuity, Rejected> {
        if !is_valid(pose) {
            return Err(Rejection::PoseNotFinite.into());
        }
        if let Some((stamp, position)) = self.reference {
            if pose.stamp < stamp {
                return Err(Rejection::PoseStampBackwards.into());
            }
            if pose.stamp == stamp {
                return Err(Rejection::PoseStampRepeated.into());
            }
            let reach = settings.max_speed * pose.stamp.seconds_since(stamp);
            let distance = (pose.position - position).norm();
            if settings.max_speed > 0.0 && distance > reach {
                return Err(self.reject_jump(settings, pose));
            }
            // A jump that became plausible only by waiting needed more than the greatest speed at the previous pose: more than half
            // of it now.
            let is_like_rejected =
                self.rejected.take().is_some_and(|rejected| (pose.position - rejected).norm() < distance);
            if is_like_rejected && distance > HARMLESS_JUMP && distance > 0.5 * reach {
                self.next = Continuity::Restarts;
            }
        }
        self.jumps.end();
        self.reference = Some((pose.stamp, pose.position));
        Ok(std::mem::replace(&mut self.next, Continuity::Continues))
    }

    fn reject_jump(&mut self, settings: &config::Gates, pose: &Pose) -> Rejected {
        self.rejected = Some(pose.position);
        let run = self.jumps.reject(pose.stamp, settings.reopen_after, settings.reopen_time);
        let reopening = run.map(|rejections| {
            self.rejected = None;
            self.reference = Some((pose.stamp, pose.position));
            self.next = Continuity::Restarts;
            Reopening { gate: Gate::MaxSpeed, rejections, stamp: pose.stamp, position: pose.position }
        });
        Rejected { reason: Rejection::PoseJump, reopening }
    }
}

fn is_valid(pose: &Pose) -> bool {
    pose.position.iter().all(|coordinate| coordinate.abs() <= FARTHEST) && is_rotation(&pose.orientation)
}

#[cfg(test)]
mod tests {
    use nalgebra::UnitQuaternion;

    use super::*;
    use crate::sensing::samples::pose;

    #[test]
    fn stamps_of_poses_increase() {
        let (settings, mut gate) = (config::Gates::default(), PoseGate::default());
        assert_eq!(gate.check(&settings, &pose(20, 0.0)), Ok(Continuity::Continues));
        assert_eq!(gate.check(&settings, &pose(20, 0.0)), Err(Rejection::PoseStampRepeated.into()));
        assert_eq!(gate.check(&settings, &pose(0, 0.0)), Err(Rejection::PoseStampBackwards.into()));
        assert_eq!(gate.check(&settings, &pose(40, f64::NAN)), Err(Rejection::PoseNotFinite.into()));
        let mut twisted = pose(40, 0.0);
        twisted.orientation = UnitQuaternion::new_unchecked(nalgebra::Quaternion::new(f64::NAN, 0.0, 0.0, 0.0));
        assert_eq!(gate.check(&settings, &twisted), Err(Rejection::PoseNotFinite.into()));
        assert_eq!(gate.check(&settings, &pose(40, 0.0)), Ok(Continuity::Continues));
    }

    #[test]
    fn a_single_pose_27_centimetres_off_is_rejected_and_the_drive_continues() {
        let (settings, mut gate) = (config::Gates::default(), PoseGate::default());
        for step in 0..10 {
            let jump = if step == 5 { 0.27 } else { 0.0 };
            let outcome = gate.check(&settings, &pose(step * 20, 0.004 * step as f64 + jump));
            let expected = if step == 5 { Err(Rejection::PoseJump.into()) } else { Ok(Continuity::Continues) };
            assert_eq!(outcome, expected, "step {step}");
        }
    }

    #[test]
    fn a_permanent_jump_reopens_the_gate_and_restarts_the_drive() {
        let (settings, mut gate) = (config::Gates::default(), PoseGate::default());
        gate.check(&settings, &pose(0, 0.0)).unwrap();
        for step in 1..26 {
            assert_eq!(gate.check(&settings, &pose(step * 20, 100.0)), Err(Rejection::PoseJump.into()), "step {step}");
        }
        let rejection = gate.check(&settings, &pose(520, 100.0)).unwrap_err();
        let reopening = rejection.reopening.expect("half a second of rejections reopens");
        assert_eq!(
            reopening.to_string(),
            "gate max_speed reopened after 26 rejections at (100.00, 0.00), stamp 0.520 s"
        );
        assert_eq!(gate.check(&settings, &pose(540, 100.0)), Ok(Continuity::Restarts));
        assert_eq!(gate.check(&settings, &pose(560, 100.0)), Ok(Continuity::Continues));
    }

    #[test]
    fn a_few_rejections_do_not_reopen_however_long_they_take() {
        let (settings, mut gate) = (config::Gates::default(), PoseGate::default());
        gate.check(&settings, &pose(0, 0.0)).unwrap();
        for second in 1..5 {
            let rejection = gate.check(&settings, &pose(1000 * second, 100.0)).unwrap_err();
            assert_eq!(rejection.reopening, None, "{second} s");
        }
        assert!(gate.check(&settings, &pose(5000, 100.0)).unwrap_err().reopening.is_some());
    }

    #[test]
    fn a_jump_that_becomes_plausible_with_time_restarts_the_drive_but_a_late_pose_does_not() {
        // 0.3 m are 3 m/s after a tenth of a second.
        let drive = |places: [f64; 8]| {
            let (settings, mut gate) = (config::Gates::default(), PoseGate::default());
            let mut stamps = (0..).step_by(20);
            places.map(|place| gate.check(&settings, &pose(stamps.next().unwrap(), place)).ok())
        };
        let (continues, restarts, rejected) = (Some(Continuity::Continues), Some(Continuity::Restarts), None);
        let jumped = drive([0.0, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36, 0.37]);
        assert_eq!(jumped, [continues, rejected, rejected, rejected, rejected, rejected, restarts, continues]);
        let and_back = drive([0.0, 0.31, 0.32, 0.33, 0.34, 0.05, 0.06, 0.07]);
        assert_eq!(and_back, [continues, rejected, rejected, rejected, rejected, continues, continues, continues]);
        let noisy = drive([0.0, 0.0, 0.065, 0.02, 0.02, 0.085, 0.03, 0.04]);
        assert_eq!(noisy, [continues, continues, rejected, continues, continues, rejected, continues, continues]);
    }

    #[test]
    fn a_speed_of_zero_switches_the_gate_off() {
        let (settings, mut gate) = (config::Gates { max_speed: 0.0, ..Default::default() }, PoseGate::default());
        gate.check(&settings, &pose(0, 0.0)).unwrap();
        assert_eq!(gate.check(&settings, &pose(20, 1e6)), Ok(Continuity::Continues));
    }
}
