//! Implausible changes of the field.

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::rejection_run::RejectionRun;
use super::{Gate, Rejected, Reopening};
use crate::config;
use crate::sensing::reading::{LocatedReading, MagneticField};
use crate::sensing::rejection::Rejection;

/// Rejects readings whose field (all three axes, in the map frame) differs from the last accepted one by more than `max_gradient`
/// times the distance between them plus `gradient_allowance`.
///
/// Fields that are nearer to the last rejected one than to the last accepted one are rejected as well, for `reopen_time`: the field
/// of a motor does not become that of the building because the robot drives on.
///
/// The allowance is needed because neighbours are millimetres apart at 50 Hz, where noise alone causes any gradient. Its default
/// (40 microtesla) and that of the gradient (1000 microtesla per metre) accept magnets below the floor: a dipole of 0.1 A m^2 5 cm
/// below the sensor at 0.3 m/s, one of 0.2 A m^2 at 7 cm or 0.4 A m^2 at 10 cm at 1 m/s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientGate {
    run: RejectionRun,
    /// Position and field of the last accepted reading.
    reference: Option<(Point3<f64>, MagneticField)>,
    /// The field of the last reading, if that was rejected.
    rejected: Option<MagneticField>,
}

impl GradientGate {
    /// Accepts or rejects the next located reading.
    pub fn check(&mut self, settings: &config::Gates, reading: &LocatedReading) -> Result<(), Rejected> {
        let field = reading.field;
        if let Some((position, accepted)) = self.reference {
            let distance = (reading.position - position).norm();
            let change_from = |other: &MagneticField| (field.microtesla() - other.microtesla()).norm();
            let change = change_from(&accepted);
            let config::Gates { max_gradient, gradient_allowance, .. } = *settings;
            let is_like_rejected = self.rejected.is_some_and(|rejected| change_from(&rejected) < change);
            if max_gradient > 0.0 && (is_like_rejected || change > max_gradient * distance + gradient_allowance) {
                return Err(self.reject(settings, reading));
            }
        }
        self.run.end();
        self.rejected = None;
        self.reference = Some((reading.position, field));
        Ok(())
    }

    fn reject(&mut self, settings: &config::Gates, reading: &LocatedReading) -> Rejected {
        let &LocatedReading { stamp, position, field, .. } = reading;
        self.rejected = Some(field);
        let rejections = self.run.reject(stamp, settings.reopen_after, settings.reopen_time);
        let gate = Gate::MaxGradient;
        let reopening = rejections.map(|rejections| Reopening { gate, rejections, stamp, position });
        if reopening.is_some() {
            self.rejected = None;
            self.reference = Some((position, field));
        }
        Rejected { reason: Rejection::FieldGradient, reopening }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{UnitQuaternion, Vector3};

    use super::*;
    use crate::sensing::samples::at;

    fn located(milliseconds: i64, x: f64, field: Vector3<f64>) -> LocatedReading {
        LocatedReading {
            orientation: UnitQuaternion::identity(),
            stamp: at(milliseconds),
            position: Point3::new(x, 0.0, 0.0),
            field: MagneticField::from_microtesla(field),
        }
    }

    #[test]
    fn a_spike_is_rejected_and_later_readings_are_not_compared_with_it() {
        let ambient = Vector3::new(15.0, 5.0, -47.0);
        for speed in [0.0, 0.3, 1.0] {
            let (settings, mut gate) = (config::Gates::default(), GradientGate::default());
            for step in 0..10 {
                let spike = if step == 5 { Vector3::new(0.0, 79.0, 0.0) } else { Vector3::zeros() };
                let outcome = gate.check(&settings, &located(step * 20, speed * 0.02 * step as f64, ambient + spike));
                let expected = if step == 5 { Err(Rejection::FieldGradient.into()) } else { Ok(()) };
                assert_eq!(outcome, expected, "speed {speed}, step {step}");
            }
        }
    }

    /// The field of a dipole of `moment` (A m^2) at `depth` metres below the path, `x` metres along it, in microtesla.
    fn dipole(moment: Vector3<f64>, depth: f64, x: f64) -> Vector3<f64> {
        // mu_0 / 4 pi is 1e-7 T m / A.
        let arm = Vector3::new(x, 0.0, depth);
        let direction = arm.normalize();
        0.1 * (3.0 * direction * direction.dot(&moment) - moment) / arm.norm().powi(3)
    }

    #[test]
    fn steep_fields_of_real_dipoles_pass() {
        let ambient = Vector3::new(15.0, 5.0, -47.0);
        // Moment, depth, greatest speed: the fields directly above are 80, 160, 117 and 80 microtesla.
        let magnets = [(0.05, 0.05, 1.0), (0.1, 0.05, 0.3), (0.2, 0.07, 1.0), (0.4, 0.10, 1.0)];
        for (moment, depth, fastest) in magnets {
            for speed in [0.3, 0.6, 1.0].into_iter().filter(|&speed| speed <= fastest) {
                for direction in [Vector3::z(), -Vector3::z(), Vector3::x(), Vector3::y()] {
                    for phase in [0.0, 0.25, 0.5, 0.75] {
                        let step = speed * 0.02;
                        let (settings, mut gate) = (config::Gates::default(), GradientGate::default());
                        let mut steepest: f64 = 0.0;
                        for index in -200..200 {
                            let x = (index as f64 + phase) * step;
                            let field = ambient + dipole(moment * direction, depth, x);
                            let ahead = ambient + dipole(moment * direction, depth, x + 1e-4);
                            steepest = steepest.max((ahead - field).norm() / 1e-4);
                            let outcome = gate.check(&settings, &located(index * 20, x, field));
                            assert_eq!(outcome, Ok(()), "{moment} A m^2 at {depth} m, {speed} m/s, x = {x}");
                        }
                        assert!(
                            steepest > 300.0,
                            "{moment} A m^2 at {depth} m is not steep: {steepest} microtesla per metre"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_field_that_changed_for_good_reopens_the_gate() {
        let (settings, mut gate) = (config::Gates::default(), GradientGate::default());
        gate.check(&settings, &located(0, 1.0, Vector3::new(50.0, 0.0, 0.0))).unwrap();
        let level = Vector3::new(200.0, 0.0, 0.0);
        for step in 1..26 {
            assert_eq!(gate.check(&settings, &located(20 * step, 1.0, level)), Err(Rejection::FieldGradient.into()));
        }
        let reopening = gate
            .check(&settings, &located(520, 1.0, level))
            .unwrap_err()
            .reopening
            .expect("half a second of rejections reopens");
        let expected = "gate max_gradient reopened after 26 rejections at (1.00, 0.00), stamp 0.520 s";
        assert_eq!(reopening.to_string(), expected);
        assert_eq!(gate.check(&settings, &located(540, 1.0, level)), Ok(()));
    }

    #[test]
    fn a_motor_does_not_become_the_building_because_the_robot_drives_on() {
        let (settings, mut gate) = (config::Gates::default(), GradientGate::default());
        // At 1 m/s, on from 0.1 to 0.4 s: 30 cm, across which 340 microtesla would be plausible.
        for step in 0..50 {
            let motor = if (5..20).contains(&step) { 79.0 } else { 0.0 };
            let x = 0.02 * step as f64;
            let outcome =
                gate.check(&settings, &located(20 * step, x, Vector3::new(20.0 + 5.0 * x + motor, 0.0, 40.0)));
            let expected = if motor > 0.0 { Err(Rejection::FieldGradient.into()) } else { Ok(()) };
            assert_eq!(outcome, expected, "step {step}");
        }
    }

    #[test]
    fn only_consecutive_rejections_reopen() {
        let (settings, mut gate) = (config::Gates::default(), GradientGate::default());
        for step in 0..100 {
            let spike = if step % 5 == 0 { 0.0 } else { 100.0 };
            let outcome = gate.check(&settings, &located(20 * step, 0.0, Vector3::new(50.0 + spike, 0.0, 0.0)));
            assert_eq!(outcome, if step % 5 == 0 { Ok(()) } else { Err(Rejection::FieldGradient.into()) });
        }
    }
}
