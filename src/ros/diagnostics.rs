//! `/diagnostics`: how mapping goes, for people and for watchdogs.

use std::fmt::Display;
use std::time::Instant;

use r2r::diagnostic_msgs::msg::{DiagnosticArray, DiagnosticStatus, KeyValue};
use r2r::std_msgs::msg::Header;
use r2r::{Node, Publisher, QosProfile};

use super::conversions::{outside, time};
use super::{Context, Error};
use crate::export::occupancy::GridScales;
use crate::mapping::complaint::Remark;
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::intake::Arrivals;
use crate::mapping::journal;
use crate::mapping::quantity::Quantity;
use crate::mapping::reading::Stamp;
use crate::mapping::worker::{Status, Update};
use streaming_gp::places::Places;

/// Everything a report tells.
pub(super) struct Facts<'a> {
    /// The longest gaps between the stamps of readings and of odometry since the last report, in seconds.
    pub(super) longest_gaps: [f64; 2],
    /// What came in.
    pub(super) arrivals: &'a Arrivals,
    /// Measurements that wait for a transform.
    pub(super) held: usize,
    /// Whether mapping is paused.
    pub(super) is_paused: bool,
    /// How the mapping thread is doing.
    pub(super) status: &'a Status,
    /// Readings that came before the node was started, where it continues an unfinished map.
    pub(super) readings_before: u64,
    /// How its journal is doing, where one is wanted.
    pub(super) journal: Option<&'a journal::Status>,
    /// Measurements in its inbox.
    pub(super) backlog: usize,
    /// The newest update.
    pub(super) newest: Option<&'a Update<FieldSnapshot>>,
    /// What the occupancies of the last grids mean.
    pub(super) scales: Option<GridScales>,
    /// Why nothing is being mapped.
    pub(super) remark: Option<&'a Remark>,
}

/// The publisher, and what it needs to know of the last report.
pub(super) struct Diagnostics {
    publisher: Publisher<DiagnosticArray>,
    name: String,
    last: Last,
}

/// The counts of the last report.
struct Last {
    at: Instant,
    readings: u64,
    odometry: u64,
    lost: u64,
}

impl Diagnostics {
    /// Makes the publisher.
    pub(super) fn create(node: &mut Node) -> Result<Self, Error> {
        let cannot = || "cannot publish /diagnostics".to_owned();
        let name = node.fully_qualified_name().context(cannot)?;
        let publisher = node.create_publisher("/diagnostics", QosProfile::default()).context(cannot)?;
        Ok(Self {
            publisher,
            name: format!("{}: mapping", name.trim_start_matches('/')),
            last: Last { at: Instant::now(), readings: 0, odometry: 0, lost: 0 },
        })
    }

    /// Publishes a report.
    pub(super) fn publish(&mut self, facts: &Facts<'_>, now: Stamp) {
        let status = self.report(facts);
        let header = Header { stamp: time(now), frame_id: String::new() };
        if let Err(error) = self.publisher.publish(&DiagnosticArray { header, status: vec![status] }) {
            log::debug!("diagnostics could not be published: {error}");
        }
    }

    fn report(&mut self, facts: &Facts<'_>) -> DiagnosticStatus {
        let lost = facts.status.lost_readings + facts.status.lost_poses;
        let (level, message) = verdict(facts, lost - self.last.lost);
        let values = self.values(facts);
        self.last =
            Last { at: Instant::now(), readings: facts.arrivals.readings, odometry: facts.arrivals.odometry, lost };
        DiagnosticStatus { level: level as u8, name: self.name.clone(), message, hardware_id: String::new(), values }
    }

    fn values(&self, facts: &Facts<'_>) -> Vec<KeyValue> {
        let Facts { arrivals, status, newest, .. } = facts;
        let seconds = self.last.at.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| format!("{:.1} Hz", (now - before) as f64 / seconds);
        let counters = &status.counters;
        let mut values = vec![
            value("rate of readings", rate(arrivals.readings, self.last.readings)),
            value("rate of odometry", rate(arrivals.odometry, self.last.odometry)),
            value("longest gap between readings", format!("{:.3} s", facts.longest_gaps[0])),
            value("longest gap between poses", format!("{:.3} s", facts.longest_gaps[1])),
            value("readings missed on the way (estimate)", arrivals.reading_rhythm.missed()),
            value("poses missed on the way (estimate)", arrivals.odometry_rhythm.missed()),
            value("readings", facts.readings_before + arrivals.readings),
            value("readings used", counters.used_readings),
            value("observations", counters.observations),
            value("updates", status.updates),
            value("backlog", facts.backlog),
            value("waiting for a transform", facts.held),
            value("travelled", format!("{:.2} m", counters.travelled)),
            value("paused", facts.is_paused),
            value("readings ignored while paused", arrivals.paused_readings),
            value("readings lost", status.lost_readings),
            value("poses lost", status.lost_poses),
            value("batches merged", status.merged_batches),
            value("map jumps", arrivals.map_jumps),
            value("refused: transforms", arrivals.refused_transforms),
        ];
        if let Some(journal) = facts.journal {
            let state = match (&journal.lost, journal.is_behind) {
                (Some(reason), _) => format!("not kept: {reason}"),
                (None, true) => "behind".to_owned(),
                (None, false) => "kept".to_owned(),
            };
            values.push(value("journal", state));
            values.push(value("journal: steps written", journal.written));
            values.push(value("journal: steps not written", journal.lost_steps));
            values.push(value("journal: checkpoints that failed", journal.failed_checkpoints));
        }
        if let Some(update) = newest {
            let posterior = update.snapshot.posterior.as_deref();
            values.push(value("inducing points", posterior.map_or(0, |posterior| posterior.inducing().len())));
            let report = update.snapshot.result.as_ref().and_then(|result| result.as_ref().ok());
            if let Some(memory) = report.and_then(|report| report.memory) {
                values.push(value("observations in memory", memory));
            }
            values.push(value("last update", format!("{:.3} s", update.duration.as_secs_f64())));
            for named in posterior.map(|posterior| posterior.model().named_values()).unwrap_or_default() {
                values.push(value(&named.name, format!("{:.6}", named.value)));
            }
        }
        if let Some(scales) = facts.scales {
            let outside = |value| outside(scales.quantity, value);
            let (unit, squared) = match scales.quantity {
                Quantity::Strength => (" T", " T^2"),
                Quantity::Probability => ("", ""),
            };
            let [low, high] = scales.mean.map(outside);
            values.push(value("mean scale", format!("{low:e} to {high:e}{unit}")));
            let [low, high] = scales.variance.map(|variance| outside(outside(variance)));
            values.push(value("variance scale", format!("{low:e} to {high:e}{squared}")));
        }
        let refusals = counters.refusals.plus(&arrivals.refusals);
        values.extend(refusals.iter().map(|(refusal, count)| value(&format!("refused: {}", refusal.name()), count)));
        values
    }
}

fn value(key: &str, value: impl Display) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_string() }
}

/// How bad it is, and the one thing to know.
fn verdict(facts: &Facts<'_>, newly_lost: u64) -> (u32, String) {
    let refused = facts.newest.and_then(|update| update.snapshot.result.as_ref()?.as_ref().err());
    let warn = DiagnosticStatus::WARN as u32;
    if let Some(reason) = facts.journal.and_then(|journal| journal.lost.as_ref()) {
        let error = DiagnosticStatus::ERROR as u32;
        (error, format!("the journal is not kept ({reason}): a crash would cost what was mapped since"))
    } else if newly_lost > 0 {
        (warn, format!("{newly_lost} measurements were lost: they come faster than they can be mapped"))
    } else if let Some(error) = refused {
        (warn, format!("the last batch was refused: {error}"))
    } else if facts.is_paused {
        (DiagnosticStatus::OK as u32, "paused".into())
    } else if let Some(remark) = facts.remark {
        let level = match remark {
            Remark::Complaint(_) => warn,
            Remark::Rest(_) => DiagnosticStatus::OK as u32,
        };
        (level, remark.words().to_owned())
    } else {
        (DiagnosticStatus::OK as u32, "mapping".into())
    }
}
