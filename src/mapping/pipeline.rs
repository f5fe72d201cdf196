//! The pipeline makes batches of measurements: calibration, gates, synchronizer, gates again, averaging, a last gate, batcher, in this
//! order.

use std::collections::VecDeque;

use nalgebra::{Isometry2, Isometry3, Point3};
use serde::{Deserialize, Serialize};

use crate::config::{self, Config};
use crate::mapping::averaging::Averager;
use crate::mapping::batcher::{Batch, Batcher, pop_merged};
use crate::mapping::odometer::Odometer;
use crate::mapping::path::Path;
use crate::sensing::calibration::Calibration;
use crate::sensing::counters::Counters;
use crate::sensing::gates::{
    GradientGate, Passed, PoseGate, PulseGate, ReadingGate, Rejected, Reopening, RepeatGate, check_range,
};
use crate::sensing::intake::Input;
use crate::sensing::reading::{LocatedReading, Measurement, Observation, Pose, Reading};
use crate::sensing::rejection::Rejection;
use crate::sensing::synchronizer::{PlacedReading, Synchronizer};

/// Jitter of the position below this is not counted as distance, in metres.
const TRAVEL_STEP: f64 = 0.02;

/// Most reopenings kept until they are fetched; further ones are only counted.
const MAX_REOPENINGS: usize = 100;

/// Turns measurements into batches. The result depends only on the measurements: not on wall time, and not on how the two topics
/// interleave (see [`Synchronizer`] for how far one may be ahead). It allocates once per batch.
///
/// A new stretch of the stream closes the open averaging cell and the open batch, so that neither spans it; the path and its length
/// continue.
///
/// The serialized form is the complete state of the stream, except the path and what `configure` sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    #[serde(skip)]
    calibration: Calibration,
    /// Whether readings of a sensor whose mount is unknown are rejected.
    #[serde(skip)]
    needs_mount: bool,
    reading_gate: ReadingGate,
    pose_gate: PoseGate,
    synchronizer: Synchronizer,
    downstream: Downstream,
}

/// Where odometry is in the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OdometryInMap {
    /// The transform from its frame to that of the map.
    pub transform: Isometry2<f64>,
    /// Where the sensor was last, in the frame of the map.
    pub end: Option<Point3<f64>>,
}

impl OdometryInMap {
    fn is_valid(&self) -> bool {
        let end = self.end.iter().flat_map(|end| end.iter());
        self.transform.to_matrix().iter().chain(end).all(|number| number.is_finite())
    }
}

/// The stages after the synchronizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Downstream {
    #[serde(skip)]
    gates: config::Gates,
    repeat_gate: RepeatGate,
    gradient_gate: GradientGate,
    averager: Averager,
    pulse_gate: PulseGate,
    batcher: Batcher,
    /// Batches that nobody has taken yet, in the frame of the map.
    ready: VecDeque<Batch>,
    /// Where odometry is in the map, or was before while that is looked for.
    odometry: OdometryInMap,
    /// Batches in the frame of poses, while their place in the map is looked for.
    held: Option<VecDeque<Batch>>,
    odometer: Odometer,
    #[serde(skip)]
    path: Path,
    counters: Counters,
    #[serde(skip)]
    reopenings: Vec<Reopening>,
}

impl Pipeline {
    /// A pipeline for a sensor at `mount` (the transform from the sensor's frame to the robot's body frame).
    pub fn new(config: &Config, mount: Isometry3<f64>) -> Self {
        let mut averager = Averager::new(&config.averaging);
        averager.configure(&config.model);
        let downstream = Downstream {
            gates: config.gates.clone(),
            repeat_gate: RepeatGate::default(),
            gradient_gate: GradientGate::default(),
            averager,
            pulse_gate: PulseGate::default(),
            batcher: Batcher::new(&config.batch),
            ready: VecDeque::new(),
            odometry: OdometryInMap::default(),
            held: None,
            odometer: Odometer::new(TRAVEL_STEP),
            path: Path::default(),
            counters: Counters::default(),
            reopenings: Vec::new(),
        };
        Self {
            calibration: Calibration::new(&config.sensor),
            needs_mount: false,
            reading_gate: ReadingGate::default(),
            pose_gate: PoseGate::default(),
            synchronizer: Synchronizer::new(&config.synchronizer, mount),
            downstream,
        }
    }

    /// Changes the settings. If the averaging length changes, the open averaging cell is closed.
    pub(crate) fn configure(&mut self, config: &Config) {
        self.calibration = Calibration::new(&config.sensor);
        self.synchronizer.configure(&config.synchronizer);
        self.downstream.gates = config.gates.clone();
        self.downstream.batcher.configure(&config.batch);
        self.downstream.averager.configure(&config.model);
        if self.downstream.averager.spacing != config.averaging.spacing {
            self.downstream.flush();
            self.downstream.averager = Averager::new(&config.averaging);
            self.downstream.averager.configure(&config.model);
        }
    }

    pub(crate) fn set_path(&mut self, path: Path) {
        self.downstream.path = path;
    }

    /// Whether the state is valid: a file may contain anything.
    pub(crate) fn is_valid(&self) -> bool {
        let Downstream { ready, odometry, held, counters, .. } = &self.downstream;
        let are_batches_valid = ready.iter().chain(held.iter().flatten()).all(|batch| !batch.observations.is_empty());
        self.synchronizer.is_valid() && counters.is_valid() && are_batches_valid && odometry.is_valid()
    }

    /// The mount of the sensor, if it is known.
    pub fn mount(&self) -> Option<&Isometry3<f64>> {
        self.synchronizer.mount.as_ref()
    }

    /// Whether the axes of readings are used, so that those of a sensor whose mount is unknown are rejected from now on.
    pub(crate) fn set_needs_mount(&mut self, needs_mount: bool) {
        self.needs_mount = needs_mount;
    }

    /// Takes the next input. A mount is that of subsequent readings; those that wait for their pose keep theirs.
    pub fn ingest(&mut self, input: impl Into<Input>) {
        match input.into() {
            Input::Mount(mount) => self.synchronizer.mount = Some(mount),
            Input::UnknownMount => self.synchronizer.mount = None,
            Input::Measurement(Measurement::Reading(reading)) => self.ingest_reading(reading),
            Input::Measurement(Measurement::Pose(pose)) => self.ingest_pose(pose),
            Input::Stretch => self.begin_stretch(),
        }
    }

    fn begin_stretch(&mut self) {
        self.end_stretch();
        self.downstream.counters.clock_jumps += 1;
    }

    fn end_stretch(&mut self) {
        self.finish();
        self.reading_gate = ReadingGate::default();
        self.pose_gate = PoseGate::default();
    }

    /// Poses are of another run from now on, whose odometry may have begun anywhere: batches are held until it is [placed](Self::place). What
    /// was held before is dropped. Returns the batches that ended with the last run.
    pub(super) fn seek(&mut self) -> VecDeque<Batch> {
        let ready = std::mem::take(&mut self.downstream.ready);
        self.end_stretch();
        self.downstream.held = Some(VecDeque::new());
        std::mem::replace(&mut self.downstream.ready, ready)
    }

    /// From here on, and for all batches that are held, the frame of poses is here in the map.
    pub(super) fn place(&mut self, map_from_odometry: Isometry2<f64>) {
        let downstream = &mut self.downstream;
        downstream.odometry.transform = map_from_odometry;
        for batch in downstream.held.take().into_iter().flatten() {
            let batch = moved(batch, &map_from_odometry);
            for seen in &batch.observations {
                downstream.path.push(seen.position);
                downstream.odometry.end = Some(seen.position);
            }
            downstream.ready.push_back(batch);
        }
    }

    /// Batches that are complete and nobody has taken yet.
    pub(super) fn ready_mut(&mut self) -> &mut VecDeque<Batch> {
        &mut self.downstream.ready
    }

    /// A pipeline with these batches to be learnt.
    pub(super) fn with_ready(config: &Config, batches: VecDeque<Batch>) -> Self {
        let mut pipeline = Self::new(config, Isometry3::identity());
        pipeline.downstream.ready = batches;
        pipeline
    }

    /// Batches that are held, in the frame of poses; none unless their place in the map is looked for.
    pub fn held(&self) -> Option<&VecDeque<Batch>> {
        self.downstream.held.as_ref()
    }

    /// Where odometry is in the map, or was before while that is looked for.
    pub fn odometry(&self) -> &OdometryInMap {
        &self.downstream.odometry
    }

    fn ingest_reading(&mut self, sent: Reading) {
        self.downstream.counters.readings += 1;
        if self.needs_mount && self.mount().is_none() {
            return self.downstream.reject(Rejection::ReadingWithoutTransform.into());
        }
        let reading = self.calibration.apply(sent);
        let gates = &self.downstream.gates;
        match check_range(gates, &sent.field).and_then(|()| self.reading_gate.check(gates, &reading)) {
            Ok(()) => {
                self.synchronizer.push_reading(reading, sent.field, |result| self.downstream.accept(result));
            }
            Err(rejection) => self.downstream.reject(rejection),
        }
    }

    fn ingest_pose(&mut self, pose: Pose) {
        self.downstream.counters.poses += 1;
        match self.pose_gate.check(&self.downstream.gates, &pose) {
            Ok(continuity) => {
                self.synchronizer.push_pose(pose, continuity, |result| self.downstream.accept(result));
            }
            Err(rejection) => self.downstream.reject(rejection),
        }
    }

    /// Closes the open averaging cell and the open batch. Readings that wait for their pose continue to wait.
    pub fn flush(&mut self) {
        self.downstream.flush();
    }

    /// Ends the stream: readings that wait for a pose are rejected, then everything is closed as in [`flush`](Self::flush).
    pub fn finish(&mut self) {
        self.synchronizer.finish(|result| self.downstream.accept(result));
        self.flush();
    }

    /// Continues with another map, its path, and where odometry is in it: the open averaging cell and all batches are dropped.
    pub fn restart(&mut self, path: Path, odometry: OdometryInMap) {
        let downstream = &mut self.downstream;
        downstream.flush();
        downstream.ready.clear();
        (downstream.path, downstream.odometry, downstream.held) = (path, odometry, None);
    }

    /// The batches that are complete and were not taken yet.
    pub fn ready(&self) -> &VecDeque<Batch> {
        &self.downstream.ready
    }

    /// Takes the first of the complete batches.
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.downstream.ready.pop_front()
    }

    /// Takes the first of the complete batches, merged with those after it, `batches` in all.
    pub fn next_merged(&mut self, batches: usize) -> Option<Batch> {
        pop_merged(&mut self.downstream.ready, batches)
    }

    /// Takes all complete batches.
    pub fn take_ready(&mut self) -> VecDeque<Batch> {
        std::mem::take(&mut self.downstream.ready)
    }

    /// Counts of what was received, used and rejected.
    pub fn counters(&self) -> &Counters {
        &self.downstream.counters
    }

    /// Number of readings waiting for their pose.
    pub fn waiting(&self) -> usize {
        self.synchronizer.waiting()
    }

    /// The thinned path along which readings were used.
    pub fn path(&self) -> &Path {
        &self.downstream.path
    }

    /// Reopenings of gates since the last call, to be logged; at most 100 are kept.
    pub fn take_reopenings(&mut self) -> Vec<Reopening> {
        std::mem::take(&mut self.downstream.reopenings)
    }
}

impl Downstream {
    /// Takes the synchronizer's result for the next reading.
    fn accept(&mut self, result: Result<PlacedReading, Rejection>) {
        let checked = result.map_err(Rejected::from).and_then(|PlacedReading { located, sent }| {
            self.repeat_gate.check(&self.gates, &sent, located.position)?;
            self.gradient_gate.check(&self.gates, &located)?;
            Ok(located)
        });
        match checked {
            Ok(reading) => self.learn_from(&reading),
            Err(rejection) => self.reject(rejection),
        }
    }

    fn learn_from(&mut self, reading: &LocatedReading) {
        self.counters.used_readings += 1;
        self.record(reading.position);
        if let Some(observation) = self.averager.push(reading) {
            self.check_pulse(observation);
        }
        let lasted_long_enough = self.batcher.advance(reading.stamp);
        self.emit(lasted_long_enough);
    }

    fn record(&mut self, position: Point3<f64>) {
        self.counters.travelled = self.odometer.advance(position).max(self.counters.travelled);
        if self.held.is_none() {
            let place = self.odometry.transform * position.xy();
            let position = Point3::new(place.x, place.y, position.z);
            self.path.push(position);
            self.odometry.end = Some(position);
        }
    }

    fn check_pulse(&mut self, observation: Observation) {
        match self.pulse_gate.check(&self.gates, observation) {
            Passed::Accepted(held, seen) => {
                held.into_iter().chain(seen).for_each(|observation| self.batch(observation));
            }
            Passed::Rejected(observations) => {
                let readings = observations.iter().map(|observation| u64::from(observation.readings)).sum();
                // They were used until now.
                self.counters.used_readings = self.counters.used_readings.saturating_sub(readings);
                self.counters.rejections.count_many(Rejection::FieldPulse, readings);
            }
        }
    }

    fn batch(&mut self, observation: Observation) {
        self.counters.observations += 1;
        let full = self.batcher.push(observation);
        self.emit(full);
    }

    fn emit(&mut self, batch: Option<Batch>) {
        self.counters.batches += u64::from(batch.is_some());
        match &mut self.held {
            Some(held) => held.extend(batch),
            None => self.ready.extend(batch.map(|batch| moved(batch, &self.odometry.transform))),
        }
    }

    fn flush(&mut self) {
        if let Some(observation) = self.averager.close() {
            self.check_pulse(observation);
        }
        self.pulse_gate.release().into_iter().for_each(|observation| self.batch(observation));
        let rest = self.batcher.flush();
        self.emit(rest);
    }

    fn reject(&mut self, rejection: Rejected) {
        self.counters.rejections.count(rejection.reason);
        if let Some(reopening) = rejection.reopening {
            self.counters.reopenings.count(reopening.gate);
            if self.reopenings.len() < MAX_REOPENINGS {
                self.reopenings.push(reopening);
            }
        }
    }
}

/// The batch in the frame of the map.
fn moved(mut batch: Batch, map_from_odometry: &Isometry2<f64>) -> Batch {
    // Where both are the same, nothing is rounded.
    if *map_from_odometry != Isometry2::identity() {
        let moved = |seen: &mut Observation| *seen = seen.moved_to(&(map_from_odometry * seen.in_plane()));
        batch.observations.iter_mut().for_each(moved);
    }
    batch
}

#[cfg(test)]
mod tests {
    use nalgebra::{UnitQuaternion, Vector3};
    use proptest::prelude::*;

    use super::*;
    use crate::mapping::batcher::CutReason;
    use crate::sensing::gates::Reopenings;
    use crate::sensing::intake::{Intake, SensorMessage};
    use crate::sensing::reading::{MagneticField, Stamp};
    use crate::sensing::rejection::Rejections;

    /// A drive along x at `speed`, both topics fifty times a second, each pose just before the reading of the same stamp.
    fn drive(steps: usize, speed: f64, field: impl Fn(f64) -> Vector3<f64>) -> Vec<Measurement> {
        (0..steps)
            .flat_map(|index| {
                let stamp = Stamp::from_nanoseconds(index as i64 * 20_000_000);
                let position = Point3::new(speed * 0.02 * index as f64, 0.0, 0.0);
                // No two readings of a sensor are the same to the last bit.
                let field = MagneticField::from_microtesla(field(position.x).add_scalar(1e-9 * (index % 2) as f64));
                [
                    Measurement::Pose(Pose { stamp, position, orientation: UnitQuaternion::identity() }),
                    Measurement::Reading(Reading { stamp, field }),
                ]
            })
            .collect()
    }

    fn shifted_field(field: MagneticField, by: Vector3<f64>) -> MagneticField {
        MagneticField::from_microtesla(field.microtesla() + by)
    }

    fn run(config: &Config, measurements: &[Measurement]) -> (Pipeline, Vec<Batch>) {
        let mut pipeline = Pipeline::new(config, Isometry3::identity());
        for measurement in measurements {
            pipeline.ingest(*measurement);
        }
        pipeline.finish();
        let batches = pipeline.take_ready().into();
        (pipeline, batches)
    }

    /// The measurements as messages of a robot whose sensor is at the origin of its body.
    fn message(measurement: Measurement) -> SensorMessage {
        match measurement {
            Measurement::Reading(reading) => SensorMessage::reading("base_link", reading),
            Measurement::Pose(pose) => SensorMessage::odometry("odom", "base_link", pose),
        }
    }

    /// Runs measurements through the intake, which notices where clocks go back. The counters are those of both.
    fn run_through_intake(config: &Config, measurements: &[Measurement]) -> (Pipeline, Counters, Vec<Batch>) {
        let (mut intake, mut pipeline) = (Intake::new(config), Pipeline::new(config, Isometry3::identity()));
        let mut sink = |input| pipeline.ingest(input);
        measurements.iter().for_each(|measurement| intake.take(message(*measurement), &mut sink));
        intake.finish(&mut sink);
        pipeline.finish();
        assert_eq!(intake.held(), 0);
        let mut counters = *pipeline.counters();
        counters.rejections = counters.rejections.plus(&intake.status.rejections);
        let batches = pipeline.take_ready().into();
        (pipeline, counters, batches)
    }

    #[test]
    fn a_clean_drive_is_used_to_the_last_reading() {
        let config = Config::default();
        // 20 m at 0.5 m/s.
        let (pipeline, batches) = run(&config, &drive(2001, 0.5, |x| Vector3::new(20.0 + x, 0.0, 40.0)));
        let counters = pipeline.counters();
        assert_eq!((counters.readings, counters.poses, counters.used_readings), (2001, 2001, 2001));
        assert_eq!(counters.rejections.total(), 0);
        // 400 cells of 5 cm and the reading at the end; rounding may put a reading on either side of a border.
        assert!((400..=402).contains(&counters.observations), "{}", counters.observations);
        assert!((counters.travelled - 20.0).abs() < 1e-9);
        let readings: u32 =
            batches.iter().flat_map(|batch| &batch.observations).map(|observation| observation.readings).sum();
        assert_eq!(readings, 2001);
        assert_eq!(batches.len() as u64, counters.batches);
        // 5 m and 10 s fall together, the path limit is checked first.
        assert!(
            batches.len() >= 4 && batches.iter().all(|batch| batch.observations.len() <= config.batch.max_observations)
        );
        // A point every 10 cm, or every 11 where rounding falls short.
        assert!((180..=202).contains(&pipeline.path().points().len()), "{}", pipeline.path().points().len());
    }

    #[test]
    fn one_reading_27_centimetres_and_79_microtesla_off_is_rejected() {
        let config = Config::default();
        let field = |x: f64| Vector3::new(20.0 + 5.0 * x, 0.0, 40.0);
        let clean = drive(500, 0.2, field);
        let mut corrupted = clean.clone();
        for measurement in &mut corrupted[500..502] {
            match measurement {
                Measurement::Pose(pose) => pose.position.y += 0.27,
                Measurement::Reading(reading) => {
                    reading.field = shifted_field(reading.field, Vector3::z() * 79.0);
                }
            }
        }
        let (pipeline, batches) = run(&config, &corrupted);
        let rejections = pipeline.counters().rejections;
        assert_eq!(
            (rejections.of(Rejection::PoseJump), rejections.of(Rejection::FieldGradient), rejections.total()),
            (1, 1, 2)
        );
        let (_, expected) = run(&config, &clean);
        // A cell of about 12 readings lost one: its mean position moves by at most half a cell in 12, its strength with the slope.
        let pairs = batches.iter().flat_map(|batch| &batch.observations);
        for (observation, clean) in pairs.zip(expected.iter().flat_map(|batch| &batch.observations)) {
            assert!((observation.strength - clean.strength).abs() < 0.0125, "{observation:?} instead of {clean:?}");
            assert!((observation.position - clean.position).norm() < 2.5e-3);
        }
    }

    #[test]
    fn a_flush_closes_the_cell_but_lets_readings_wait_and_the_end_rejects_them() {
        let mut measurements = drive(10, 0.1, |_| Vector3::new(50.0, 0.0, 0.0));
        let last_pose = measurements.remove(18);
        let mut pipeline = Pipeline::new(&Config::default(), Isometry3::identity());
        for measurement in &measurements {
            pipeline.ingest(*measurement);
        }
        assert!(pipeline.ready().is_empty());
        pipeline.flush();
        let ready = pipeline.ready();
        assert_eq!((ready.len(), ready[0].observations.len(), ready[0].observations[0].readings), (1, 1, 9));
        assert_eq!(pipeline.waiting(), 1);

        let mut other = pipeline.clone();
        other.finish();
        assert_eq!(other.counters().rejections.of(Rejection::NoLaterPose), 1);
        assert_eq!(other.ready().len(), 1);

        pipeline.ingest(last_pose);
        pipeline.finish();
        assert_eq!((pipeline.counters().used_readings, pipeline.ready().len()), (10, 2));
    }

    #[test]
    fn a_permanent_jump_of_the_field_is_reported_once_with_its_position() {
        let measurements = drive(200, 0.1, |x| Vector3::new(if x < 0.2 { 30.0 } else { 230.0 }, 0.0, 0.0));
        let (mut pipeline, _) = run(&Config::default(), &measurements);
        assert_eq!(pipeline.counters().reopenings, Reopenings { max_gradient: 1, ..Default::default() });
        assert_eq!(pipeline.counters().rejections.of(Rejection::FieldGradient), 26);
        let reopenings = pipeline.take_reopenings();
        // Half a second behind the jump.
        assert!((reopenings[0].position.x - 0.25).abs() < 1e-9, "{}", reopenings[0]);
        assert!(pipeline.take_reopenings().is_empty());
    }

    #[test]
    fn readings_are_calibrated_before_they_are_gated() {
        let ambient = Vector3::new(0.0, 30.0, -40.0);
        // A hard iron stronger than gates.maximum_field, and axes that read a third of the field and half of it.
        let sensor = config::Sensor {
            hard_iron: [2000.0, 0.0, 0.0],
            soft_iron: [3.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0],
            ..Default::default()
        };
        let turning: Vec<_> = (0..200)
            .flat_map(|index| {
                let stamp = Stamp::from_nanoseconds(index * 20_000_000);
                let orientation = UnitQuaternion::from_euler_angles(0.0, 0.0, 0.05 * index as f64);
                let field = orientation.inverse() * ambient;
                let raw = Vector3::new(field.x / 3.0 + 2000.0, field.y / 2.0, field.z);
                let reading = Reading { stamp, field: MagneticField::from_microtesla(raw) };
                [
                    Measurement::Pose(Pose { stamp, position: Point3::origin(), orientation }),
                    Measurement::Reading(reading),
                ]
            })
            .collect();
        let unaveraged = Config { averaging: config::Averaging { spacing: 0.0 }, ..Config::default() };
        let (pipeline, batches) = run(&Config { sensor, ..unaveraged.clone() }, &turning);
        assert_eq!((pipeline.counters().used_readings, pipeline.counters().rejections.total()), (200, 0));
        for observation in batches.iter().flat_map(|batch| &batch.observations) {
            assert!((observation.strength - 50.0).abs() < 1e-10, "{observation:?}");
            assert!((observation.field.microtesla() - ambient).norm() < 1e-10, "{observation:?}");
        }
        let (pipeline, _) = run(&unaveraged, &turning);
        assert_eq!(pipeline.counters().rejections.of(Rejection::FieldTooStrong), 200);
    }

    #[test]
    fn the_batch_of_a_robot_that_stands_still_is_cut_by_time() {
        let mut measurements = drive(100, 0.5, |_| Vector3::new(50.0, 0.0, 0.0));
        let stop = measurements.len();
        let Measurement::Pose(last) = measurements[stop - 2] else { unreachable!() };
        for index in 1..2000 {
            let stamp = Stamp::from_nanoseconds(last.stamp.nanoseconds() + index * 20_000_000);
            let field = MagneticField::from_microtesla(Vector3::new(50.0, 0.0, 0.0));
            measurements.push(Measurement::Pose(Pose { stamp, ..last }));
            measurements.push(Measurement::Reading(Reading { stamp, field }));
        }
        let (_, batches) = run(&Config::default(), &measurements);
        let cuts: Vec<_> = batches.iter().map(|batch| batch.cut).collect();
        assert_eq!(cuts, [CutReason::Time, CutReason::Flush]);
        assert_eq!(batches[1].observations.len(), 1);
        assert!(batches[1].observations[0].readings > 1900);
    }

    fn shifted(measurement: Measurement, milliseconds: i64) -> Measurement {
        let shift = |stamp: Stamp| Stamp::from_nanoseconds(stamp.nanoseconds() + milliseconds * 1_000_000);
        match measurement {
            Measurement::Pose(pose) => Measurement::Pose(Pose { stamp: shift(pose.stamp), ..pose }),
            Measurement::Reading(reading) => Measurement::Reading(Reading { stamp: shift(reading.stamp), ..reading }),
        }
    }

    /// Readings and poses of a drive, each topic in its own order.
    fn topics(drive: Vec<Measurement>) -> (Vec<Measurement>, Vec<Measurement>) {
        drive.into_iter().partition(|measurement| matches!(measurement, Measurement::Reading(_)))
    }

    /// Speed on every lap, in metres per second.
    const SPEED: f64 = 0.4;

    /// Readings and poses of three laps with the same stamps, in lanes two metres apart; poses `delay` milliseconds later.
    fn laps(steps: usize, delay: i64) -> (Vec<Measurement>, Vec<Measurement>) {
        let lap = |lane| {
            drive(steps, SPEED, |x| Vector3::new(30.0 + x, 0.0, 30.0)).into_iter().map(move |measurement| {
                let Measurement::Pose(mut pose) = measurement else { return measurement };
                pose.position += Vector3::new(SPEED * 1e-3 * delay as f64, 2.0 * f64::from(lane), 0.0);
                shifted(Measurement::Pose(pose), delay)
            })
        };
        topics((0..3).flat_map(lap).collect())
    }

    /// The two topics, poses `lead` messages ahead of the readings.
    fn ahead(readings: &[Measurement], poses: &[Measurement], lead: i64) -> Vec<Measurement> {
        let mut turns: Vec<_> = (-lead..).zip(poses).chain((0..).zip(readings)).collect();
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, measurement)| *measurement).collect()
    }

    const LEADS: [i64; 5] = [-40, -1, 0, 1, 40];

    #[test]
    fn a_looped_drive_is_mapped_lap_by_lap_whichever_topic_is_ahead() {
        // Each lap takes 5 s and fits into a batch.
        let batch = config::Batch { max_observations: 0, max_path: 0.0, max_duration: 10.0 };
        // In each lap a reading before its first pose, or after its last.
        let cases = [(0, None), (7, Some(Rejection::BeforeFirstPose)), (-7, Some(Rejection::NoLaterPose))];
        for (spacing, (delay, outside)) in [0.0, 0.05].into_iter().flat_map(|spacing| cases.map(|case| (spacing, case)))
        {
            let config = Config { batch: batch.clone(), averaging: config::Averaging { spacing }, ..Config::default() };
            let (readings, poses) = laps(250, delay);
            let mut expected = Rejections::default();
            (0..3).for_each(|_| outside.into_iter().for_each(|rejection| expected.count(rejection)));
            let mut first = None;
            for lead in LEADS {
                let (_, counters, batches) = run_through_intake(&config, &ahead(&readings, &poses, lead));
                let case = format!("spacing {spacing}, poses {delay} ms later and {lead} messages ahead: {counters:?}");
                assert_eq!(counters.rejections, expected, "{case}");
                assert_eq!(counters.used_readings, 750 - expected.readings(), "{case}");
                assert_eq!((counters.reopenings, counters.clock_jumps), (Reopenings::default(), 2), "{case}");
                assert_eq!(batches.len(), 3, "{case}");
                for (lane, batch) in (0..).zip(&batches) {
                    assert_eq!(batch.cut, CutReason::Flush);
                    assert!(batch.observations.windows(2).all(|pair| pair[0].stamp < pair[1].stamp));
                    for observation in &batch.observations {
                        assert_eq!(observation.position.y, 2.0 * f64::from(lane), "{case}: {observation:?}");
                        let place = SPEED * observation.stamp.seconds();
                        let apart = if spacing > 0.0 { spacing } else { 1e-9 };
                        assert!((observation.position.x - place).abs() < apart, "{case}: {observation:?}");
                    }
                }
                assert_eq!(*first.get_or_insert_with(|| batches.clone()), batches, "{case}");
            }
        }
    }

    #[test]
    fn a_new_stretch_closes_the_open_batch_and_the_path_continues() {
        let (readings, poses) = laps(250, 0);
        let mut pipeline = Pipeline::new(&Config::default(), Isometry3::identity());
        let laps = ahead(&readings, &poses, 0);
        laps[..500].iter().for_each(|measurement| pipeline.ingest(*measurement));
        assert_eq!((pipeline.ready().len(), pipeline.counters().used_readings), (0, 250));
        let travelled = pipeline.counters().travelled;
        pipeline.ingest(Input::Stretch);
        let ready = pipeline.ready();
        let readings: u32 = ready[0].observations.iter().map(|observation| observation.readings).sum();
        assert_eq!((ready.len(), ready[0].cut, readings), (1, CutReason::Flush, 250));
        laps[500..502].iter().for_each(|measurement| pipeline.ingest(*measurement));
        assert_eq!((pipeline.counters().used_readings, pipeline.counters().clock_jumps), (251, 1));
        // The distance to the next lane counts.
        assert!(pipeline.counters().travelled > travelled + 1.9);
    }

    #[test]
    fn a_corrupt_stamp_far_ahead_costs_only_its_measurement() {
        let (readings, poses) = topics(drive(250, SPEED, |x| Vector3::new(30.0 + x, 0.0, 30.0)));
        let config = Config::default();
        let (_, clean) = run(&config, &ahead(&readings, &poses, 0));
        let years = 1_000_000_000_000;
        for (topic, rejection, used) in [(0, Rejection::ReadingStampAhead, 249), (1, Rejection::PoseStampAhead, 250)] {
            let mut corrupted = [readings.clone(), poses.clone()];
            corrupted[topic][100] = shifted(corrupted[topic][100], years);
            let mut first = None;
            for lead in LEADS {
                let (_, counters, batches) = run_through_intake(&config, &ahead(&corrupted[0], &corrupted[1], lead));
                let mut expected = Rejections::default();
                expected.count(rejection);
                assert_eq!((counters.rejections, counters.used_readings), (expected, used), "{lead}: {counters:?}");
                assert_eq!((counters.clock_jumps, batches.len()), (0, clean.len()));
                assert_eq!(*first.get_or_insert_with(|| batches.clone()), batches, "{lead}");
            }
        }
    }

    #[test]
    fn a_clock_of_one_topic_that_stays_back_costs_twice_the_duration_of_the_jump() {
        let (readings, poses) = topics(drive(1000, SPEED, |x| Vector3::new(30.0 + x, 0.0, 30.0)));
        let from_half = |topic: &[Measurement]| -> Vec<Measurement> {
            let shift = |(index, measurement): (usize, &Measurement)| {
                shifted(*measurement, if index < 500 { 0 } else { -3000 })
            };
            topic.iter().enumerate().map(shift).collect()
        };
        // 3 s are 150 readings. The new stretch begins 3 s later, with poses of then: its first 6 s of readings have none;
        let (_, counters, _) = run_through_intake(&Config::default(), &ahead(&from_half(&readings), &poses, 0));
        assert_eq!((counters.used_readings, counters.clock_jumps), (699, 1), "{counters:?}");
        // or poses are 3 s late from then on, and none are there for 3 s before, nor for the last 3 s.
        let (_, counters, _) = run_through_intake(&Config::default(), &ahead(&readings, &from_half(&poses), 0));
        assert_eq!((counters.used_readings, counters.clock_jumps), (700, 1), "{counters:?}");
    }

    #[test]
    fn half_a_second_back_is_rejected_until_the_clock_has_caught_up() {
        let late = |topic: Vec<Measurement>| -> Vec<Measurement> {
            let shift = |(index, measurement)| shifted(measurement, if index < 100 { 0 } else { -500 });
            topic.into_iter().enumerate().map(shift).collect()
        };
        let (readings, poses) = topics(drive(250, 0.05, |x| Vector3::new(30.0 + x, 0.0, 30.0)));
        let (readings, poses) = (late(readings), late(poses));
        for lead in LEADS {
            let (_, counters, _) = run_through_intake(&Config::default(), &ahead(&readings, &poses, lead));
            let rejections = [
                (Rejection::ReadingStampBackwards, 24),
                (Rejection::PoseStampBackwards, 24),
                (Rejection::PoseStampRepeated, 1),
            ];
            for (rejection, count) in rejections {
                assert_eq!(counters.rejections.of(rejection), count, "{counters:?}");
            }
            assert_eq!((counters.used_readings, counters.reopenings), (226, Reopenings::default()), "{counters:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_reading_of_a_looped_drive_is_used_or_rejected_once_however_far_a_topic_is_ahead(
            runs in prop::collection::vec((any::<bool>(), 1..200_usize), 0..60),
            delay in -30..30_i64,
            max_waiting in prop_oneof![Just(10_000_usize), 2..300_usize],
        ) {
            let mut config = Config::default();
            config.synchronizer.max_waiting = max_waiting;
            let (readings, poses) = laps(100, delay);
            let (mut readings, mut poses) = (readings.into_iter(), poses.into_iter());
            let mut shuffled = Vec::new();
            for (pick, length) in runs {
                let topic = if pick { &mut readings } else { &mut poses };
                shuffled.extend(topic.take(length));
            }
            shuffled.extend(readings);
            shuffled.extend(poses);
            let (pipeline, counters, batches) = run_through_intake(&config, &shuffled);
            prop_assert_eq!(counters.used_readings + counters.rejections.readings(), 300);
            let observations = batches.iter().flat_map(|batch| &batch.observations);
            prop_assert_eq!(observations.map(|observation| u64::from(observation.readings)).sum::<u64>(), counters.used_readings);
            prop_assert!(batches.iter().all(|batch| batch.observations.is_sorted_by_key(|observation| observation.stamp)));
            prop_assert_eq!(pipeline.waiting(), 0);
        }

        #[test]
        fn laps_do_not_depend_on_how_the_topics_interleave(
            picks in prop::collection::vec(any::<bool>(), 600),
            bias in prop_oneof![Just(-35_i64), Just(0), Just(35)],
            delay in -30..30_i64,
        ) {
            let (readings, poses) = laps(100, delay);
            let (_, expected_counters, expected) = run_through_intake(&Config::default(), &ahead(&readings, &poses, 0));
            // Poses are ahead of the readings by the bias, give or take five.
            let (mut taken_readings, mut taken_poses, mut shuffled) = (0, 0, Vec::new());
            for pick in picks {
                let lead = taken_poses as i64 - taken_readings as i64 - bias;
                let is_reading = lead >= 5 || (pick && lead > -5);
                let (topic, taken) =
                    if is_reading { (&readings, &mut taken_readings) } else { (&poses, &mut taken_poses) };
                shuffled.extend(topic.get(*taken));
                *taken += 1;
            }
            shuffled.extend(readings.iter().skip(taken_readings));
            shuffled.extend(poses.iter().skip(taken_poses));
            let (_, counters, batches) = run_through_intake(&Config::default(), &shuffled);
            prop_assert_eq!(expected_counters, counters);
            prop_assert_eq!(expected, batches);
        }

        #[test]
        fn batches_do_not_depend_on_how_the_topics_interleave(
            picks in prop::collection::vec(any::<bool>(), 800),
            spikes in prop::collection::vec(prop_oneof![20 => Just(0.0), 1 => Just(90.0), 1 => Just(f64::NAN)], 400),
            spacing in prop_oneof![Just(0.0), Just(0.05)],
        ) {
            let config = Config {
                averaging: config::Averaging { spacing },
                batch: config::Batch { max_observations: 30, max_path: 1.0, max_duration: 3.0 },
                ..Config::default()
            };
            let mut measurements = drive(400, 0.4, |x| Vector3::new(30.0 + 10.0 * x.sin(), 0.0, 30.0));
            for (pair, spike) in measurements.chunks_mut(2).zip(&spikes) {
                let [Measurement::Pose(pose), Measurement::Reading(reading)] = pair else { unreachable!() };
                pose.stamp = Stamp::from_nanoseconds(pose.stamp.nanoseconds() + 7_000_000);
                pose.position.y += spike / 100.0;
                reading.field = shifted_field(reading.field, Vector3::repeat(*spike));
            }
            let (readings, poses): (Vec<_>, Vec<_>) =
                measurements.iter().copied().partition(|measurement| matches!(measurement, Measurement::Reading(_)));
            let (mut readings, mut poses) = (readings.into_iter(), poses.into_iter());
            let mut shuffled = Vec::new();
            for pick in picks {
                shuffled.extend(if pick { readings.next() } else { poses.next() });
            }
            shuffled.extend(readings);
            shuffled.extend(poses);

            let (expected_pipeline, expected) = run(&config, &measurements);
            let (pipeline, batches) = run(&config, &shuffled);
            prop_assert_eq!(expected, batches);
            prop_assert_eq!(expected_pipeline.counters(), pipeline.counters());
            let counters = pipeline.counters();
            prop_assert_eq!(counters.used_readings + counters.rejections.readings(), counters.readings);
        }
    }
}
