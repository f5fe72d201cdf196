//! The report of a localized recording.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::comparison::Comparison;
use super::{Error, LocatedDrive};
use crate::recording::{Loss, nothing_used};
use magmap::config;
use magmap::localization::{Localizer, Reason, Start, State};
use magmap::sensing::counters::Counters;

/// The report of a localized recording.
#[derive(Clone, Debug, Serialize)]
pub struct LocateReport {
    /// Version of magmap.
    pub magmap_version: &'static str,
    /// A description of the recording: its [`Summary`](crate::recording::Summary).
    pub source: Value,
    /// The file of the map.
    pub map: PathBuf,
    /// The start.
    pub start: Start,
    /// The settings of the localizer.
    pub localization: config::Localization,
    /// Whether it ended before the recording did.
    pub interrupted: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Counts of measurements received, used and, by reason, rejected.
    pub counters: Counters,
    /// Number of updates.
    pub updates: usize,
    /// Mean number of particles.
    pub particles: f64,
    /// Shares of the updates by their state.
    pub states: Shares,
    /// The last update.
    pub end: End,
    /// The errors, where the true path is known.
    pub truth: Option<Comparison>,
    /// The parts of the recording that are missing.
    pub loss: Loss,
}

/// Shares of the updates by their state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// [`State::Lost`].
    pub lost: f64,
    /// [`State::Converging`].
    pub converging: f64,
    /// [`State::Tracking`].
    pub tracking: f64,
}

/// Pose of the robot at the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct End {
    /// x of the body, in metres.
    pub x: f64,
    /// y of the body, in metres.
    pub y: f64,
    /// In radians.
    pub heading: f64,
    /// Standard deviation of the place along the longest axis of its ellipse, in metres.
    pub deviation: f64,
    /// How far that is to be believed.
    pub state: State,
    /// Why the state is not tracking.
    pub reason: Option<Reason>,
}

impl LocateReport {
    /// The report of a drive, from `source` into `map`.
    ///
    /// # Errors
    /// [`Error::NothingLocated`] without any update.
    pub fn of(
        drive: &LocatedDrive,
        localizer: &Localizer,
        source: Value,
        map: &Path,
        start: Start,
        mut loss: Loss,
    ) -> Result<Self, Error> {
        let counters = *localizer.counters();
        let steps = &drive.steps;
        let Some(last) = steps.last() else {
            return Err(Error::NothingLocated(nothing_used(&counters, std::iter::empty())));
        };
        let number = steps.len() as f64;
        let share = |state| steps.iter().filter(|step| step.located.state == state).count() as f64 / number;
        loss.items.extend(drive.lost.clone());
        Ok(Self {
            magmap_version: env!("CARGO_PKG_VERSION"),
            source,
            map: map.to_owned(),
            start,
            localization: localizer.settings().clone(),
            interrupted: drive.interrupted,
            seconds: drive.seconds,
            counters,
            updates: steps.len(),
            particles: steps.iter().map(|step| step.located.particles as f64).sum::<f64>() / number,
            states: Shares {
                lost: share(State::Lost),
                converging: share(State::Converging),
                tracking: share(State::Tracking),
            },
            end: End {
                x: last.pose.translation.x,
                y: last.pose.translation.y,
                heading: last.pose.rotation.angle(),
                deviation: last.located.estimate.deviation(),
                state: last.located.state,
                reason: last.located.reason,
            },
            truth: Comparison::of(steps),
            loss,
        })
    }
}
