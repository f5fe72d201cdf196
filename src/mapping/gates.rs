//! Gates: what a topic alone, or a reading beside its neighbour, shows to be implausible.
//!
//! Each gate sees one stream in its own order, so that what it refuses does not depend on how topics interleave. The gates that
//! compare with the last accepted measurement ([`ReadingGate`] and [`PoseGate`] by stamp, [`PoseGate`] by speed, [`GradientGate`]
//! by the field's change) may be wrong about that one: after `reopen_after` refusals in a row they take the newest refused
//! measurement for the truth, and say so. Those of speed and change take `reopen_time` for it as well: a fast sensor sends so
//! many in milliseconds.

use std::fmt;

use nalgebra::Point3;
use serde::{Deserialize, Serialize};

use super::reading::{LocatedReading, MagneticField, Pose, Reading, Stamp};
use super::refusal::Refusal;
use crate::config;

/// How far the norm of an orientation's quaternion may be from one.
const QUATERNION_TOLERANCE: f64 = 1e-3;

/// How far from the origin of its frame a pose may be, in metres: further than any frame on Earth reaches (UTM: 1e7), near enough
/// that every length made of two of them is finite.
pub(super) const FARTHEST: f64 = 1e9;

/// How far behind the newest a stamp may be and still be merely late, in seconds. Filters, networks and executors hand messages
/// over out of order by milliseconds, by tenths of a second at worst; a looped recording, a restarted simulation and a corrupt
/// stamp are seconds to years off. And what went back by less has caught up in less time than this, without a gate that reopens.
pub(super) const LATENESS: f64 = 1.0;

/// A jump of the odometry that is shorter than this may be interpolated across, in metres: that is how far off readings are then,
/// at most, as they are by averaging.
const HARMLESS_JUMP: f64 = 0.05;

/// In how many steps the way is taken on which an axis stays the same.
const REPEAT_STEPS: u32 = 10;

/// A gate that can reopen, named by its key in the configuration where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Poses: `gates.max_speed`.
    MaxSpeed,
    /// Readings: `gates.max_gradient`.
    MaxGradient,
    /// Readings: stamps that do not decrease.
    ReadingClock,
    /// Poses: stamps that increase.
    PoseClock,
}

impl Gate {
    /// Its key in the configuration, or a name like one.
    pub const fn name(self) -> &'static str {
        match self {
            Gate::MaxSpeed => "max_speed",
            Gate::MaxGradient => "max_gradient",
            Gate::ReadingClock => "reading_clock",
            Gate::PoseClock => "pose_clock",
        }
    }
}

/// A gate took what it had refused for the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reopening {
    /// Which gate.
    pub gate: Gate,
    /// How many measurements in a row it had refused.
    pub refusals: u32,
    /// Stamp of the last of them, with which the next one is compared.
    pub stamp: Stamp,
    /// Where that was, in the map frame, in metres; none for a reading that had not found its pose yet.
    pub position: Option<Point3<f64>>,
    /// Stamp of the last measurement it had accepted.
    pub accepted: Stamp,
}

impl fmt::Display for Reopening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gate {
            Gate::ReadingClock => self.write_clock(formatter, "readings")?,
            Gate::PoseClock => self.write_clock(formatter, "poses")?,
            Gate::MaxSpeed | Gate::MaxGradient => {}
        }
        write!(formatter, "gate {} reopened after {} refusals", self.gate.name(), self.refusals)?;
        if let Some(position) = self.position {
            write!(formatter, " at ({:.2}, {:.2})", position.x, position.y)?;
        }
        write!(formatter, ", stamp {:.3} s", self.stamp.seconds())
    }
}

impl Reopening {
    fn write_clock(&self, formatter: &mut fmt::Formatter<'_>, topic: &str) -> fmt::Result {
        let Self { stamp, accepted, .. } = self;
        write!(formatter, "the clock of the {topic} went back by {:.3} s: ", accepted.seconds_since(*stamp))
    }
}

/// How often each gate reopened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reopenings {
    /// The gate of poses.
    pub max_speed: u64,
    /// The gate of the field's change.
    pub max_gradient: u64,
    /// The gate of the readings' stamps.
    pub reading_clock: u64,
    /// The gate of the poses' stamps.
    pub pose_clock: u64,
}

impl Reopenings {
    /// Counts one.
    pub fn count(&mut self, gate: Gate) {
        match gate {
            Gate::MaxSpeed => self.max_speed += 1,
            Gate::MaxGradient => self.max_gradient += 1,
            Gate::ReadingClock => self.reading_clock += 1,
            Gate::PoseClock => self.pose_clock += 1,
        }
    }
}

/// A measurement refused by a gate, and whether the gate reopened because of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejection {
    /// Why.
    pub refusal: Refusal,
    /// Set when this was one refusal in a row too many.
    pub reopening: Option<Reopening>,
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, reopening: None }
    }
}

/// Counts refusals in a row, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RefusalRun {
    length: u32,
    /// The earliest stamp of them.
    first: Option<Stamp>,
}

impl RefusalRun {
    fn end(&mut self) {
        *self = Self::default();
    }

    /// One more refusal: how many there were, when it is the last: `allowed` in a row, and `seconds` from the first.
    fn refuse(&mut self, stamp: Stamp, allowed: u32, seconds: f64) -> Option<u32> {
        let first = self.first.map_or(stamp, |first| first.min(stamp));
        self.first = Some(first);
        self.length = self.length.saturating_add(1);
        let is_last = self.length >= allowed && stamp.seconds_since(first) >= seconds;
        is_last.then(|| std::mem::take(self).length)
    }
}

/// Counts refusals in a row of stamps that are so far behind that the clock may have gone back. They must go on from there: not
/// back themselves, nor stand still.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ClockRun {
    run: RefusalRun,
    last: Option<Stamp>,
}

impl ClockRun {
    fn end(&mut self) {
        self.run.end();
    }

    /// One more stamp before the last accepted one: how many there were, when it is the last of the `allowed` in a row.
    fn refuse(&mut self, stamp: Stamp, accepted: Stamp, allowed: u32) -> Option<u32> {
        let goes_back = self.last.replace(stamp).is_some_and(|last| stamp < last);
        let is_merely_late = accepted.seconds_since(stamp) <= LATENESS;
        if goes_back || is_merely_late {
            self.end();
        }
        if is_merely_late { None } else { self.run.refuse(stamp, allowed, f64::MIN_POSITIVE) }
    }
}

/// What a reading as the sensor sent it must fulfil: no axis at or beyond the sensor's full scale, where it says nothing but that
/// the field is at least so strong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeGate {
    full_scale: f64,
}

impl RangeGate {
    /// The gate with the full scale of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self { full_scale: settings.full_scale }
    }

    /// Lets a reading pass that was not calibrated yet, or says why not.
    pub fn check(&self, sent: &Reading) -> Result<(), Rejection> {
        let is_saturated = |axis: &f64| axis.is_finite() && axis.abs() >= self.full_scale;
        if self.full_scale > 0.0 && sent.field.microtesla().iter().any(is_saturated) {
            return Err(Refusal::ReadingSaturated.into());
        }
        Ok(())
    }
}

/// What a reading alone must fulfil: finite axes, a plausible strength, a stamp not before the last accepted one.
///
/// Several readings may share a stamp (sensors whose clock is coarser than their rate send such); they are taken in order, up to
/// `max_same_stamp`: beyond, the clock has stopped, and where the robot went since is not known. Stamps that are more than a second
/// behind, `reopen_after` in a row, reopen the gate: the clock went back, or was ahead before. Then stamps count from there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadingGate {
    #[serde(skip)]
    settings: config::Gates,
    clock: ClockRun,
    newest: Option<Stamp>,
    /// How many accepted readings have the newest stamp.
    at_newest: u32,
}

impl ReadingGate {
    /// The gate with the band of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self { settings: settings.clone(), clock: ClockRun::default(), newest: None, at_newest: 0 }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Gates) {
        self.settings = settings.clone();
    }

    /// Lets the next reading of the stream pass, or says why not.
    pub fn check(&mut self, reading: &Reading) -> Result<(), Rejection> {
        if !reading.field.microtesla().iter().all(|axis| axis.is_finite()) {
            return Err(Refusal::ReadingNotFinite.into());
        }
        let strength = reading.field.strength();
        if strength < self.settings.minimum_field {
            return Err(Refusal::FieldTooWeak.into());
        }
        if strength > self.settings.maximum_field {
            return Err(Refusal::FieldTooStrong.into());
        }
        if let Some(newest) = self.newest.filter(|newest| reading.stamp < *newest) {
            return Err(self.refuse(reading.stamp, newest));
        }
        self.clock.end();
        let before = if self.newest == Some(reading.stamp) { self.at_newest } else { 0 };
        let config::Gates { max_same_stamp, .. } = self.settings;
        if max_same_stamp > 0 && before >= max_same_stamp {
            return Err(Refusal::ReadingStampRepeated.into());
        }
        self.newest = Some(reading.stamp);
        self.at_newest = before.saturating_add(1);
        Ok(())
    }

    fn refuse(&mut self, stamp: Stamp, newest: Stamp) -> Rejection {
        let reopening = self.clock.refuse(stamp, newest, self.settings.reopen_after).map(|refusals| Reopening {
            gate: Gate::ReadingClock,
            refusals,
            stamp,
            position: None,
            accepted: newest,
        });
        if reopening.is_some() {
            self.newest = Some(stamp);
            self.at_newest = 0;
        }
        Rejection { refusal: Refusal::ReadingStampBackwards, reopening }
    }
}

/// Whether the robot drove from the last accepted pose to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Continuity {
    /// It did.
    Continues,
    /// It did not: the gate reopened in between, and where the robot was meanwhile, or when, is not known.
    Restarts,
}

/// What the stream of poses alone must fulfil: finite numbers (within 1e9 m), increasing stamps, a plausible speed.
///
/// Poses that are too far away for `reopen_time`, or whose stamps are more than a second behind, `reopen_after` in a row for the
/// same reason, reopen the gate: the robot is there, or the clock went back (or was ahead before). Then places and stamps count
/// from there. A robot that jumped and stays there may be let pass before, merely because enough time has gone by to have driven
/// there: it did not, so that the drive restarts then too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoseGate {
    #[serde(skip)]
    settings: config::Gates,
    jumps: RefusalRun,
    clock: ClockRun,
    /// When and where the robot was last, as far as the gate believes.
    reference: Option<(Stamp, Point3<f64>)>,
    /// Where it was by the last pose, if that was refused for its jump.
    refused: Option<Point3<f64>>,
    next: Continuity,
}

impl PoseGate {
    /// The gate with the speed of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self {
            settings: settings.clone(),
            jumps: RefusalRun::default(),
            clock: ClockRun::default(),
            reference: None,
            refused: None,
            next: Continuity::Continues,
        }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Gates) {
        self.settings = settings.clone();
    }

    /// Lets the next pose of the stream pass and says whether it continues the drive, or says why it does not pass.
    pub fn check(&mut self, pose: &Pose) -> Result<Continuity, Rejection> {
        if !is_valid(pose) {
            return Err(Refusal::PoseNotFinite.into());
        }
        if let Some((stamp, position)) = self.reference {
            if pose.stamp < stamp {
                return Err(self.refuse_stamp(pose, stamp));
            }
            self.clock.end();
            if pose.stamp == stamp {
                return Err(Refusal::PoseStampRepeated.into());
            }
            let reach = self.settings.max_speed * pose.stamp.seconds_since(stamp);
            let way = (pose.position - position).norm();
            if self.settings.max_speed > 0.0 && way > reach {
                return Err(self.refuse_jump(pose, stamp));
            }
            // What comes into reach only by waiting needed more than the greatest speed one pose before: more than half of it now.
            let is_as_refused = self.refused.take().is_some_and(|refused| (pose.position - refused).norm() < way);
            if is_as_refused && way > HARMLESS_JUMP && way > 0.5 * reach {
                self.next = Continuity::Restarts;
            }
        }
        self.jumps.end();
        self.reference = Some((pose.stamp, pose.position));
        Ok(std::mem::replace(&mut self.next, Continuity::Continues))
    }

    fn refuse_stamp(&mut self, pose: &Pose, accepted: Stamp) -> Rejection {
        let refusals = self.clock.refuse(pose.stamp, accepted, self.settings.reopen_after);
        let reopening = refusals.map(|refusals| self.reopen(Gate::PoseClock, refusals, pose, accepted));
        Rejection { refusal: Refusal::PoseStampBackwards, reopening }
    }

    fn refuse_jump(&mut self, pose: &Pose, accepted: Stamp) -> Rejection {
        self.refused = Some(pose.position);
        let refusals = self.jumps.refuse(pose.stamp, self.settings.reopen_after, self.settings.reopen_time);
        let reopening = refusals.map(|refusals| self.reopen(Gate::MaxSpeed, refusals, pose, accepted));
        Rejection { refusal: Refusal::PoseJump, reopening }
    }

    fn reopen(&mut self, gate: Gate, refusals: u32, pose: &Pose, accepted: Stamp) -> Reopening {
        self.jumps.end();
        self.refused = None;
        self.reference = Some((pose.stamp, pose.position));
        self.next = Continuity::Restarts;
        Reopening { gate, refusals, stamp: pose.stamp, position: Some(pose.position), accepted }
    }
}

fn is_valid(pose: &Pose) -> bool {
    let norm = pose.orientation.as_ref().norm();
    pose.position.iter().all(|coordinate| coordinate.abs() <= FARTHEST) && (norm - 1.0).abs() < QUATERNION_TOLERANCE
}

/// What a reading must fulfil beside those before: each of its axes, as the sensor sent them, has changed since the sensor went
/// further than `max_repeat`. A sensor or a driver that hangs sends the same again and again.
///
/// Sensors that count in steps repeat themselves where the field is even, and sensors that stand still may do so for ever. So the
/// way is taken in ten steps, each seen by a reading: neither trembling nor a jump of the odometry is a way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepeatGate {
    #[serde(skip)]
    max_repeat: f64,
    axes: [Option<Repeat>; 3],
}

/// An axis that may be staying the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Repeat {
    value: f64,
    /// Where it was the same, a step or less ago.
    place: Point3<f64>,
    /// Steps it has been the same for.
    steps: u32,
}

impl RepeatGate {
    /// The gate with the way of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self { max_repeat: settings.max_repeat, axes: [None; 3] }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Gates) {
        self.max_repeat = settings.max_repeat;
    }

    /// Lets the next reading pass, which the sensor sent at this place, or says why not.
    pub fn check(&mut self, sent: &MagneticField, place: Point3<f64>) -> Result<(), Rejection> {
        if self.max_repeat <= 0.0 {
            return Ok(());
        }
        let step = self.max_repeat / f64::from(REPEAT_STEPS);
        for (axis, &value) in self.axes.iter_mut().zip(sent.microtesla()) {
            match axis {
                Some(repeat) if repeat.value == value => repeat.go_on(place, step),
                _ => *axis = Some(Repeat { value, place, steps: 0 }),
            }
        }
        let is_frozen = self.axes.iter().flatten().any(|repeat| repeat.steps >= REPEAT_STEPS);
        if is_frozen { Err(Refusal::AxisFrozen.into()) } else { Ok(()) }
    }
}

impl Repeat {
    fn go_on(&mut self, place: Point3<f64>, step: f64) {
        if (place - self.place).norm() >= step {
            self.place = place;
            self.steps = self.steps.saturating_add(1);
        }
    }
}

/// What a reading must fulfil beside the last accepted one: a field (all three axes, in the map frame) that changed by no more
/// than `max_gradient` times the distance between them, plus `gradient_allowance`.
///
/// What is nearer to the last refused field than to the last accepted one is refused as well, for `reopen_time`: a motor's field
/// does not become the building's because the robot drives on meanwhile.
///
/// The allowance is there because neighbours are millimetres apart at 50 Hz, where noise alone makes any gradient. Its default
/// (40 microtesla) and that of the gradient (1000 microtesla per metre) let pass what magnets below the floor do: a dipole
/// of 0.1 A m^2 5 cm below the sensor at 0.3 m/s, one of 0.2 A m^2 at 7 cm or 0.4 A m^2 at 10 cm at 1 m/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradientGate {
    #[serde(skip)]
    settings: config::Gates,
    run: RefusalRun,
    reference: Option<LocatedReading>,
    /// The field of the last reading, if that was refused.
    refused: Option<MagneticField>,
}

impl GradientGate {
    /// The gate with the gradient and the allowance of `settings`.
    pub fn new(settings: &config::Gates) -> Self {
        Self { settings: settings.clone(), run: RefusalRun::default(), reference: None, refused: None }
    }

    /// Goes on under other settings.
    pub fn configure(&mut self, settings: &config::Gates) {
        self.settings = settings.clone();
    }

    /// Lets the next located reading pass, or says why not.
    pub fn check(&mut self, reading: &LocatedReading) -> Result<(), Rejection> {
        if let Some(reference) = &self.reference {
            let distance = (reading.position - reference.position).norm();
            let change_from = |other: &MagneticField| (reading.field.microtesla() - other.microtesla()).norm();
            let change = change_from(&reference.field);
            let config::Gates { max_gradient, gradient_allowance, .. } = self.settings;
            let is_as_refused = self.refused.is_some_and(|refused| change_from(&refused) < change);
            if max_gradient > 0.0 && (is_as_refused || change > max_gradient * distance + gradient_allowance) {
                let accepted = reference.stamp;
                return Err(self.refuse(reading, accepted));
            }
        }
        self.run.end();
        self.refused = None;
        self.reference = Some(*reading);
        Ok(())
    }

    fn refuse(&mut self, reading: &LocatedReading, accepted: Stamp) -> Rejection {
        let LocatedReading { stamp, position, field } = *reading;
        self.refused = Some(field);
        let refusals = self.run.refuse(stamp, self.settings.reopen_after, self.settings.reopen_time);
        let reopening = refusals.map(|refusals| Reopening {
            gate: Gate::MaxGradient,
            refusals,
            stamp,
            position: Some(position),
            accepted,
        });
        if reopening.is_some() {
            self.refused = None;
            self.reference = Some(*reading);
        }
        Rejection { refusal: Refusal::FieldGradient, reopening }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{UnitQuaternion, Vector3};

    use super::super::reading::MagneticField;
    use super::*;

    fn reading(milliseconds: i64, x: f64) -> Reading {
        Reading { stamp: at(milliseconds), field: MagneticField::from_microtesla(Vector3::new(x, 0.0, 0.0)) }
    }

    fn at(milliseconds: i64) -> Stamp {
        Stamp::from_nanoseconds(milliseconds * 1_000_000)
    }

    fn pose(milliseconds: i64, x: f64) -> Pose {
        let position = Point3::new(x, 0.0, 0.0);
        Pose { stamp: at(milliseconds), position, orientation: UnitQuaternion::identity() }
    }

    fn located(milliseconds: i64, x: f64, field: Vector3<f64>) -> LocatedReading {
        let field = MagneticField::from_microtesla(field);
        LocatedReading { stamp: at(milliseconds), position: Point3::new(x, 0.0, 0.0), field }
    }

    #[test]
    fn the_range_of_the_field_is_inclusive_and_not_a_number_is_outside() {
        let mut gate = ReadingGate::new(&config::Gates::default());
        assert_eq!(gate.check(&reading(0, 1.0)), Ok(()));
        assert_eq!(gate.check(&reading(0, -1000.0)), Ok(()));
        assert_eq!(gate.check(&reading(0, 0.999)), Err(Refusal::FieldTooWeak.into()));
        assert_eq!(gate.check(&reading(0, 1000.1)), Err(Refusal::FieldTooStrong.into()));
        assert_eq!(gate.check(&reading(0, f64::NAN)), Err(Refusal::ReadingNotFinite.into()));
        assert_eq!(gate.check(&reading(0, f64::INFINITY)), Err(Refusal::ReadingNotFinite.into()));
        // Finite axes whose norm overflows.
        assert_eq!(gate.check(&reading(0, 1e200)), Err(Refusal::FieldTooStrong.into()));
    }

    #[test]
    fn stamps_of_readings_may_repeat_but_not_go_back_and_refused_ones_do_not_count() {
        let mut gate = ReadingGate::new(&config::Gates::default());
        assert_eq!(gate.check(&reading(20, 50.0)), Ok(()));
        assert_eq!(gate.check(&reading(20, 50.0)), Ok(()));
        assert_eq!(gate.check(&reading(10, 50.0)), Err(Refusal::ReadingStampBackwards.into()));
        assert_eq!(gate.check(&reading(9_000, 5000.0)), Err(Refusal::FieldTooStrong.into()));
        assert_eq!(gate.check(&reading(40, 50.0)), Ok(()));
    }

    #[test]
    fn stamps_of_poses_increase() {
        let mut gate = PoseGate::new(&config::Gates::default());
        assert_eq!(gate.check(&pose(20, 0.0)), Ok(Continuity::Continues));
        assert_eq!(gate.check(&pose(20, 0.0)), Err(Refusal::PoseStampRepeated.into()));
        assert_eq!(gate.check(&pose(0, 0.0)), Err(Refusal::PoseStampBackwards.into()));
        assert_eq!(gate.check(&pose(40, f64::NAN)), Err(Refusal::PoseNotFinite.into()));
        let mut twisted = pose(40, 0.0);
        twisted.orientation = UnitQuaternion::new_unchecked(nalgebra::Quaternion::new(f64::NAN, 0.0, 0.0, 0.0));
        assert_eq!(gate.check(&twisted), Err(Refusal::PoseNotFinite.into()));
        assert_eq!(gate.check(&pose(40, 0.0)), Ok(Continuity::Continues));
    }

    #[test]
    fn a_single_pose_27_centimetres_off_is_refused_and_the_drive_goes_on() {
        let mut gate = PoseGate::new(&config::Gates::default());
        for step in 0..10 {
            let jump = if step == 5 { 0.27 } else { 0.0 };
            let outcome = gate.check(&pose(step * 20, 0.004 * step as f64 + jump));
            let expected = if step == 5 { Err(Refusal::PoseJump.into()) } else { Ok(Continuity::Continues) };
            assert_eq!(outcome, expected, "step {step}");
        }
    }

    #[test]
    fn poses_that_jumped_for_good_reopen_the_gate_and_restart_the_drive() {
        let mut gate = PoseGate::new(&config::Gates::default());
        gate.check(&pose(0, 0.0)).unwrap();
        for step in 1..26 {
            assert_eq!(gate.check(&pose(step * 20, 100.0)), Err(Refusal::PoseJump.into()), "step {step}");
        }
        let rejection = gate.check(&pose(520, 100.0)).unwrap_err();
        let reopening = rejection.reopening.expect("half a second of refusals reopens");
        assert_eq!(reopening.to_string(), "gate max_speed reopened after 26 refusals at (100.00, 0.00), stamp 0.520 s");
        assert_eq!(gate.check(&pose(540, 100.0)), Ok(Continuity::Restarts));
        assert_eq!(gate.check(&pose(560, 100.0)), Ok(Continuity::Continues));
    }

    #[test]
    fn few_refusals_do_not_reopen_however_long_they_take() {
        let mut gate = PoseGate::new(&config::Gates::default());
        gate.check(&pose(0, 0.0)).unwrap();
        for second in 1..5 {
            let rejection = gate.check(&pose(1000 * second, 100.0)).unwrap_err();
            assert_eq!(rejection.reopening, None, "{second} s");
        }
        assert!(gate.check(&pose(5000, 100.0)).unwrap_err().reopening.is_some());
    }

    #[test]
    fn a_jump_that_time_brings_into_reach_restarts_the_drive_and_a_late_pose_does_not() {
        // 0.3 m are 3 m/s after a tenth of a second.
        let drive = |places: [f64; 8]| {
            let mut gate = PoseGate::new(&config::Gates::default());
            let mut stamps = (0..).step_by(20);
            places.map(|place| gate.check(&pose(stamps.next().unwrap(), place)).ok())
        };
        let (go_on, restart, refused) = (Some(Continuity::Continues), Some(Continuity::Restarts), None);
        let jumped = drive([0.0, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36, 0.37]);
        assert_eq!(jumped, [go_on, refused, refused, refused, refused, refused, restart, go_on]);
        let and_back = drive([0.0, 0.31, 0.32, 0.33, 0.34, 0.05, 0.06, 0.07]);
        assert_eq!(and_back, [go_on, refused, refused, refused, refused, go_on, go_on, go_on]);
        let noisy = drive([0.0, 0.0, 0.065, 0.02, 0.02, 0.085, 0.03, 0.04]);
        assert_eq!(noisy, [go_on, go_on, refused, go_on, go_on, refused, go_on, go_on]);
    }

    #[test]
    fn an_axis_at_full_scale_is_saturated_and_one_that_is_not_finite_is_not() {
        let gate = RangeGate::new(&config::Gates { full_scale: 130.0, ..Default::default() });
        let outcomes =
            [129.9, -129.9, 130.0, -130.0, 400.0, f64::NAN, f64::INFINITY].map(|x| gate.check(&reading(0, x)));
        let saturated = Err(Refusal::ReadingSaturated.into());
        assert_eq!(outcomes, [Ok(()), Ok(()), saturated, saturated, saturated, Ok(()), Ok(())]);
        assert_eq!(RangeGate::new(&config::Gates::default()).check(&reading(0, 1e6)), Ok(()));
    }

    #[test]
    fn more_readings_of_one_stamp_than_allowed_are_refused_until_the_clock_goes_on() {
        let mut gate = ReadingGate::new(&config::Gates { max_same_stamp: 3, ..Default::default() });
        for stamp in [0, 20, 20, 40] {
            let before = usize::from(stamp == 20);
            let taken = (0..10).take_while(|_| gate.check(&reading(stamp, 50.0)).is_ok()).count();
            assert!(taken == 3 || (before == 1 && taken == 0), "{taken} at {stamp} ms");
            assert_eq!(gate.check(&reading(stamp, 50.0)), Err(Refusal::ReadingStampRepeated.into()));
        }
        let mut gate = ReadingGate::new(&config::Gates { max_same_stamp: 0, ..Default::default() });
        assert!((0..1000).all(|_| gate.check(&reading(0, 50.0)).is_ok()));
    }

    #[test]
    fn a_clock_that_went_back_and_stands_still_does_not_hold() {
        let mut gate = ReadingGate::new(&config::Gates::default());
        gate.check(&reading(90_000, 50.0)).unwrap();
        assert_eq!(refused_before_reopening(&mut gate, std::iter::repeat_n(0, 100)), 100);
        gate.check(&reading(90_020, 50.0)).unwrap();
    }

    /// How many of these readings, whose first axis has this value at this place, pass one after another.
    fn passed(readings: impl IntoIterator<Item = (f64, f64)>) -> usize {
        let mut gate = RepeatGate::new(&config::Gates::default());
        let mut others = 0.0;
        let mut check = |value, place| {
            others += 0.1;
            gate.check(
                &MagneticField::from_microtesla(Vector3::new(value, others, -others)),
                Point3::new(place, 0.0, 0.0),
            )
        };
        readings.into_iter().take_while(|&(value, place)| check(value, place).is_ok()).count()
    }

    #[test]
    fn an_axis_that_stays_the_same_along_the_way_is_frozen_and_one_that_changes_by_a_bit_is_not() {
        // In steps of 2.5 cm: the first, then ten that repeat it.
        let way = |step: f64| (0..1000).map(move |index| step * f64::from(index));
        assert_eq!(passed(way(0.026).map(|place| (50.0, place))), 10);
        // A centimetre a reading is three to a step.
        assert_eq!(passed(way(0.01).map(|place| (50.0, place))), 30);
        assert_eq!(
            passed(way(0.01).enumerate().map(|(index, place)| (50.0 + (index / 25) as f64 * 1e-13, place))),
            1000
        );
        // Standing, trembling, and a single jump.
        assert_eq!(passed((0..1000).map(|index| (50.0, 0.02 * f64::from(index % 2)))), 1000);
        assert_eq!(passed((0..1000).map(|index| (50.0, if index < 500 { 0.0 } else { 7.0 }))), 1000);
    }

    /// How many readings with these stamps, in milliseconds, are refused before one reopens the gate; all, when none does.
    fn refused_before_reopening(gate: &mut ReadingGate, stamps: impl IntoIterator<Item = i64>) -> usize {
        let rejections = stamps.into_iter().map(|stamp| gate.check(&reading(stamp, 50.0)).unwrap_err());
        rejections.take_while(|rejection| rejection.reopening.is_none()).count()
    }

    #[test]
    fn readings_stamped_behind_in_a_row_put_the_clock_back_and_say_so() {
        let mut gate = ReadingGate::new(&config::Gates::default());
        gate.check(&reading(90_000, 50.0)).unwrap();
        assert_eq!(refused_before_reopening(&mut gate, [1000, 1020, 1020, 1040]), 4);
        let rejection = gate.check(&reading(1060, 50.0)).unwrap_err();
        let words = "the clock of the readings went back by 88.940 s: gate reading_clock reopened after 5 refusals, stamp 1.060 s";
        assert_eq!(rejection.reopening.unwrap().to_string(), words);
        assert_eq!(gate.check(&reading(1059, 50.0)), Err(Refusal::ReadingStampBackwards.into()));
        assert_eq!(gate.check(&reading(1080, 50.0)), Ok(()));
    }

    #[test]
    fn late_readings_and_stamps_without_order_do_not_put_the_clock_back() {
        let mut gate = ReadingGate::new(&config::Gates::default());
        gate.check(&reading(9_000, 50.0)).unwrap();
        // A second behind or less, then further behind but backwards.
        assert_eq!(refused_before_reopening(&mut gate, (0..100).map(|step| 8_000 + step)), 100);
        assert_eq!(refused_before_reopening(&mut gate, (0..100).map(|step| 7_000 - step)), 100);
        // Neither those that are merely late nor accepted ones leave a run as it is; implausible fields do.
        assert_eq!(refused_before_reopening(&mut gate, [10, 20, 30, 40, 8_500, 50, 60, 70, 80]), 9);
        gate.check(&reading(9_000, 50.0)).unwrap();
        assert_eq!(refused_before_reopening(&mut gate, [10, 20, 30]), 3);
        assert_eq!(gate.check(&reading(35, 5000.0)), Err(Refusal::FieldTooStrong.into()));
        assert_eq!(refused_before_reopening(&mut gate, [40, 50, 60]), 1);
    }

    #[test]
    fn poses_stamped_behind_in_a_row_put_the_clock_back_and_restart_the_drive() {
        let mut gate = PoseGate::new(&config::Gates::default());
        gate.check(&pose(90_000, 0.0)).unwrap();
        for step in 0..4 {
            assert_eq!(gate.check(&pose(20 * step, 7.0)), Err(Refusal::PoseStampBackwards.into()), "step {step}");
        }
        let reopening = gate.check(&pose(80, 7.0)).unwrap_err().reopening.expect("the fifth refusal reopens");
        let words = "the clock of the poses went back by 89.920 s: gate pose_clock reopened after 5 refusals at (7.00, 0.00), \
                     stamp 0.080 s";
        assert_eq!(reopening.to_string(), words);
        assert_eq!(gate.check(&pose(100, 7.01)), Ok(Continuity::Restarts));
        assert_eq!(gate.check(&pose(120, 7.02)), Ok(Continuity::Continues));
    }

    #[test]
    fn refusals_for_different_reasons_are_no_row() {
        let mut gate = PoseGate::new(&config::Gates::default());
        gate.check(&pose(90_000, 0.0)).unwrap();
        // Four poses from far away and four from long ago, twice: neither are five of a kind in a row.
        for step in 0..4 {
            let rejection = gate.check(&pose(90_020 + step, 100.0)).unwrap_err();
            assert_eq!(rejection, Refusal::PoseJump.into(), "step {step}");
            let rejection = gate.check(&pose(step, 0.0)).unwrap_err();
            assert_eq!(rejection, Refusal::PoseStampBackwards.into(), "step {step}");
        }
        for step in 4..8 {
            let rejection = gate.check(&pose(step, 0.0)).unwrap_err();
            assert_eq!(rejection.reopening.map(|reopening| reopening.gate), (step == 7).then_some(Gate::PoseClock));
        }
        // What was counted before the clock went back counts no longer.
        assert_eq!(gate.check(&pose(20, 100.0)), Err(Refusal::PoseJump.into()));
    }

    #[test]
    fn a_speed_of_zero_switches_the_gate_off() {
        let mut gate = PoseGate::new(&config::Gates { max_speed: 0.0, ..Default::default() });
        gate.check(&pose(0, 0.0)).unwrap();
        assert_eq!(gate.check(&pose(20, 1e6)), Ok(Continuity::Continues));
    }

    #[test]
    fn a_spike_of_the_field_is_refused_and_compared_no_further() {
        let ambient = Vector3::new(15.0, 5.0, -47.0);
        for speed in [0.0, 0.3, 1.0] {
            let mut gate = GradientGate::new(&config::Gates::default());
            for step in 0..10 {
                let spike = if step == 5 { Vector3::new(0.0, 79.0, 0.0) } else { Vector3::zeros() };
                let outcome = gate.check(&located(step * 20, speed * 0.02 * step as f64, ambient + spike));
                let expected = if step == 5 { Err(Refusal::FieldGradient.into()) } else { Ok(()) };
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
    fn steep_true_dipoles_pass() {
        let ambient = Vector3::new(15.0, 5.0, -47.0);
        // Moment, depth, greatest speed: the fields directly above are 80, 160, 117 and 80 microtesla.
        let magnets = [(0.05, 0.05, 1.0), (0.1, 0.05, 0.3), (0.2, 0.07, 1.0), (0.4, 0.10, 1.0)];
        for (moment, depth, fastest) in magnets {
            for speed in [0.3, 0.6, 1.0].into_iter().filter(|&speed| speed <= fastest) {
                for direction in [Vector3::z(), -Vector3::z(), Vector3::x(), Vector3::y()] {
                    for phase in [0.0, 0.25, 0.5, 0.75] {
                        let step = speed * 0.02;
                        let mut gate = GradientGate::new(&config::Gates::default());
                        let mut steepest: f64 = 0.0;
                        for index in -200..200 {
                            let x = (index as f64 + phase) * step;
                            let field = ambient + dipole(moment * direction, depth, x);
                            let ahead = ambient + dipole(moment * direction, depth, x + 1e-4);
                            steepest = steepest.max((ahead - field).norm() / 1e-4);
                            let outcome = gate.check(&located(index * 20, x, field));
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
        let mut gate = GradientGate::new(&config::Gates::default());
        gate.check(&located(0, 1.0, Vector3::new(50.0, 0.0, 0.0))).unwrap();
        let level = Vector3::new(200.0, 0.0, 0.0);
        for step in 1..26 {
            assert_eq!(gate.check(&located(20 * step, 1.0, level)), Err(Refusal::FieldGradient.into()));
        }
        let reopening =
            gate.check(&located(520, 1.0, level)).unwrap_err().reopening.expect("half a second of refusals reopens");
        let expected = "gate max_gradient reopened after 26 refusals at (1.00, 0.00), stamp 0.520 s";
        assert_eq!(reopening.to_string(), expected);
        assert_eq!(gate.check(&located(540, 1.0, level)), Ok(()));
    }

    #[test]
    fn a_motor_does_not_become_the_building_because_the_robot_drives_on() {
        let mut gate = GradientGate::new(&config::Gates::default());
        // At 1 m/s, on from 0.1 to 0.4 s: 30 cm, across which 340 microtesla would be plausible.
        for step in 0..50 {
            let motor = if (5..20).contains(&step) { 79.0 } else { 0.0 };
            let x = 0.02 * step as f64;
            let outcome = gate.check(&located(20 * step, x, Vector3::new(20.0 + 5.0 * x + motor, 0.0, 40.0)));
            let expected = if motor > 0.0 { Err(Refusal::FieldGradient.into()) } else { Ok(()) };
            assert_eq!(outcome, expected, "step {step}");
        }
    }

    #[test]
    fn only_refusals_in_a_row_reopen() {
        let mut gate = GradientGate::new(&config::Gates::default());
        for step in 0..100 {
            let spike = if step % 5 == 0 { 0.0 } else { 100.0 };
            let outcome = gate.check(&located(20 * step, 0.0, Vector3::new(50.0 + spike, 0.0, 0.0)));
            assert_eq!(outcome, if step % 5 == 0 { Ok(()) } else { Err(Refusal::FieldGradient.into()) });
        }
    }
}
