//! `/diagnostics`: the state of mapping, for people and for watchdogs.

use std::fmt::Display;
use std::time::Instant;

use anyhow::Context;
use r2r::diagnostic_msgs::msg::{DiagnosticArray, DiagnosticStatus, KeyValue};
use r2r::std_msgs::msg::Header;
use r2r::{Node, Publisher, QosProfile};

use super::conversions::time;
use super::shared::Shared;
use super::slam_path::PathListener;
use crate::display::occupancy::GridScales;
use crate::field::map::{FieldMap, SensorBias};
use crate::mapping::path_correction::CorrectedPath;
use crate::mapping::relocating::Relocated;
use crate::mapping::updates::Update;
use crate::sensing::health::Finding;
use crate::sensing::intake::Intake;
use crate::sensing::reading::{MICROTESLA_PER_TESLA, MICROTESLA_PER_TESLA_SQUARED, Stamp};
use crate::sensing::rejection::Rejections;
use crate::slam::Tracked;
use crate::store::status::MapLogStatus;
use crate::sync::lock;

/// Publishes reports on one status.
pub(super) struct StatusPublisher {
    publisher: Publisher<DiagnosticArray>,
    name: String,
}

impl StatusPublisher {
    /// The status is named after the node and what it does.
    pub(super) fn create(node: &mut Node, what: &str) -> anyhow::Result<Self> {
        let cannot = "cannot publish /diagnostics";
        let name = node.fully_qualified_name().context(cannot)?;
        let publisher = node.create_publisher("/diagnostics", QosProfile::default()).context(cannot)?;
        Ok(Self { publisher, name: format!("{}: {what}", name.trim_start_matches('/')) })
    }

    pub(super) fn publish(&self, level: u8, message: String, values: Vec<KeyValue>, now: Stamp) {
        let (name, hardware_id) = (self.name.clone(), String::new());
        let status = vec![DiagnosticStatus { level, name, message, hardware_id, values }];
        let header = Header { stamp: time(now), frame_id: String::new() };
        if let Err(error) = self.publisher.publish(&DiagnosticArray { header, status }) {
            log::debug!("diagnostics could not be published: {error}");
        }
    }
}

/// The state of mapping, and the counts of its last report.
pub(super) struct Diagnostics {
    publisher: StatusPublisher,
    last: Instant,
    readings: u64,
    odometry: u64,
    lost: u64,
}

impl Diagnostics {
    pub(super) fn create(node: &mut Node) -> anyhow::Result<Self> {
        let publisher = StatusPublisher::create(node, "mapping")?;
        Ok(Self { publisher, last: Instant::now(), readings: 0, odometry: 0, lost: 0 })
    }

    /// Publishes a report; `finding` is why nothing is being mapped, `several` which topics have several publishers, and `path` that of another
    /// SLAM.
    pub(super) fn publish(
        &mut self,
        shared: &Shared,
        intake: &mut Intake,
        finding: Option<&Finding>,
        several: Option<&str>,
        path: Option<&PathListener>,
        now: Stamp,
    ) {
        let (mapping, file) = (&shared.session.mapping, shared.session.file_status());
        let (status, newest) = (mapping.status(), mapping.updates.newest());
        let lost = status.lost_readings + status.lost_poses;
        let newly_lost = lost - self.lost;
        let (doubt, relocated) = (mapping.doubt(), mapping.relocated());
        let misfit = path.and_then(|path| path.misfit(mapping));
        let fine = |message: &str| (DiagnosticStatus::OK as u8, message.to_owned());
        let warning = |message: &str| (DiagnosticStatus::WARN as u8, message.to_owned());
        let (level, message) = if let Some(reason) = &file.lost {
            let message = format!("the map cannot be written ({reason}): a crash would lose what was mapped since");
            (DiagnosticStatus::ERROR as u8, message)
        } else if newly_lost > 0 {
            warning(&format!("{newly_lost} measurements were lost: they arrive faster than they can be mapped"))
        } else if let Some(Err(error)) = newest.as_ref().and_then(|update| update.result.as_ref()) {
            warning(&format!("the last batch was rejected: {error}"))
        } else if intake.paused {
            fine("paused")
        } else {
            match (finding, several, misfit.as_ref().or(doubt.as_ref())) {
                (Some(Finding::Fault(message)), ..) => warning(message),
                (_, Some(several), _) => warning(several),
                (Some(Finding::Idle(message)), ..) => fine(message),
                (None, None, Some(doubt)) => warning(doubt),
                (None, None, None) => match &relocated {
                    Some(Relocated { is_known: false, words }) => warning(words),
                    _ => fine("mapping"),
                },
            }
        };
        let mut values = self.counts(shared, intake);
        values.extend(several.map(|several| value("several publishers", several)));
        values.extend(doubt.map(|doubt| value("doubt", doubt)));
        let changes = mapping.withdrawals();
        values.push(value("changes of the building", changes.len()));
        values.extend(changes.last().map(|newest| value("newest change of the building", newest)));
        values.extend(relocated.map(|relocated| value("robot in the map", relocated.words)));
        values.extend(mapping.corrected_path().iter().flat_map(path_values));
        values.extend(path.iter().flat_map(|path| {
            let placed = mapping.placed_poses().unwrap_or(0);
            [
                value("paths of another SLAM", path.received),
                value("paths of another SLAM: rejected", path.refused),
                value("paths of another SLAM: poses that correct the map", placed),
            ]
        }));
        values.extend(mapping.choice().map(|choice| value("choice of the field", choice)));
        values.extend(mapping.delay().map(|delay| delay_value(delay.seconds)));
        values.extend(file_values(&file));
        values.extend(newest.as_deref().map(update_values).unwrap_or_default());
        values.extend(lock(&shared.scales).as_ref().map(scale_values).unwrap_or_default());
        let rejections = status.counters.rejections.plus(&intake.status.rejections);
        values.extend(rejection_values(&rejections));
        self.last = Instant::now();
        (self.readings, self.odometry, self.lost) = (intake.status.readings, intake.status.odometry, lost);
        self.publisher.publish(level, message, values, now);
    }

    fn counts(&self, shared: &Shared, intake: &mut Intake) -> Vec<KeyValue> {
        let [reading_gap, pose_gap] = intake.take_longest_gaps().map(|gap| format!("{gap:.3} s"));
        let (arrived, session) = (&intake.status, &shared.session);
        let (status, backlog) = (session.mapping.status(), session.mapping.inbox.backlog());
        let seconds = self.last.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| format!("{:.1} Hz", (now - before) as f64 / seconds);
        vec![
            value("rate of readings", rate(arrived.readings, self.readings)),
            value("rate of odometry", rate(arrived.odometry, self.odometry)),
            value("longest gap between readings", reading_gap),
            value("longest gap between poses", pose_gap),
            value("readings missed on the way (estimate)", arrived.reading_timing.missed),
            value("poses missed on the way (estimate)", arrived.odometry_timing.missed),
            // Where an unfinished map is continued, these include the readings in it.
            value("readings", session.before.readings + arrived.readings),
            value("readings used", status.counters.used_readings),
            value("observations", status.counters.observations),
            value("updates", status.updates),
            value("backlog", backlog),
            value("waiting for a transform", intake.held()),
            value("travelled", format!("{:.2} m", status.counters.travelled)),
            value("paused", intake.paused),
            value("readings ignored while paused", arrived.paused_readings),
            value("readings lost", status.lost_readings),
            value("poses lost", status.lost_poses),
            value("batches merged", status.merged_batches),
            value("map jumps", arrived.map_jumps),
            value("clock jumps", status.counters.clock_jumps),
            value("rejected: transforms", arrived.rejected_transforms),
        ]
    }
}

fn path_values(path: &CorrectedPath) -> Vec<KeyValue> {
    let mut values = vec![value("corrected path", path)];
    if let Some(Tracked { covariance, drift, delay, .. }) = &path.tracked {
        values.extend([
            value("standard deviation of the place", format!("{:.3} m", (covariance.m11 + covariance.m22).sqrt())),
            value("drift of odometry", format!("{drift:+.4} rad/m")),
            delay_value(*delay),
        ]);
    }
    values
}

fn delay_value(seconds: f64) -> KeyValue {
    value("delay of readings", format!("{seconds:+.3} s"))
}

fn file_values(file: &MapLogStatus) -> Vec<KeyValue> {
    let state = match (&file.lost, file.is_behind) {
        (Some(reason), _) => format!("not kept: {reason}"),
        (None, true) => "behind".to_owned(),
        (None, false) => "kept".to_owned(),
    };
    vec![
        value("file", state),
        value("file: steps written", file.written),
        value("file: steps not written", file.lost_steps),
        value("file: checkpoints that failed", file.failed_checkpoints),
    ]
}

fn update_values(update: &Update) -> Vec<KeyValue> {
    let map = update.map.as_ref();
    let mut values = vec![value("inducing points", map.map_or(0, FieldMap::size))];
    values.push(value("last update", format!("{:.3} s", update.duration.as_secs_f64())));
    let hyperparameters = map.map(FieldMap::hyperparameters).unwrap_or_default();
    values.extend(hyperparameters.iter().map(|named| value(&named.name, format!("{:.6}", named.value))));
    values.extend(map.and_then(FieldMap::share_below).map(|share| value("share from below", format!("{share:.3}"))));
    values.extend(map.and_then(FieldMap::sensor_bias).iter().flat_map(bias_values));
    values
}

pub(super) fn rejection_values(rejections: &Rejections) -> impl Iterator<Item = KeyValue> {
    rejections.iter().map(|(rejection, count)| value(&format!("rejected: {}", rejection.name()), count))
}

/// In microtesla, as the setting `sensor.hard_iron`.
fn bias_values(bias: &SensorBias) -> [KeyValue; 2] {
    let microtesla = |[x, y, z]: [f64; 3]| format!("{x:.3}, {y:.3}, {z:.3} microtesla");
    [
        value("hard iron", microtesla(bias.hard_iron)),
        value("hard iron: standard deviation", microtesla(bias.hard_iron_sd)),
    ]
}

fn scale_values(scales: &GridScales) -> Vec<KeyValue> {
    let [mean_low, mean_high] = scales.mean.map(|mean| mean / MICROTESLA_PER_TESLA);
    let [variance_low, variance_high] = scales.variance.map(|variance| variance / MICROTESLA_PER_TESLA_SQUARED);
    vec![
        value("mean scale", format!("{mean_low:e} to {mean_high:e} T")),
        value("variance scale", format!("{variance_low:e} to {variance_high:e} T^2")),
    ]
}

pub(super) fn value(key: &str, value: impl Display) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_string() }
}
