//! Missing parts of a recording, in words and counts.

use std::fmt;

use magmap::sensing::counters::Counters;
use serde::Serialize;

/// Largest number of causes that are listed: a malicious file could have millions.
const MOST: usize = 1000;

/// The cause under which the others are counted.
const OTHERS: &str = "losses of other kinds";

/// The part of a recording that cannot be used; empty when all of it can.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Loss {
    /// The losses, one per cause.
    pub items: Vec<Lost>,
}

/// A loss by one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lost {
    /// A description that may follow a count: `rows without a stamp in 3-time.csv`.
    pub what: String,
    /// The count, if it is known; after the place where a file is cut off it is not.
    pub count: Option<u64>,
    /// The first occurrence, or the reason.
    pub first: Option<String>,
}

/// Why nothing came of the measurements, for a message. `more` are further reasons.
pub(crate) fn nothing_used(counters: &Counters, more: impl Iterator<Item = String>) -> String {
    let Counters { readings, poses, used_readings, rejections, .. } = counters;
    let reasons: Vec<String> = rejections.to_string().lines().map(String::from).chain(more).collect();
    let rejected = if reasons.is_empty() { String::new() } else { format!("; rejected: {}", reasons.join(", ")) };
    format!("of {readings} readings and {poses} poses, {used_readings} readings could be used{rejected}")
}

impl Lost {
    /// Everything after the source of measurements failed.
    pub(crate) fn after(error: &impl fmt::Display) -> Self {
        log::error!("reading ended early: {error}");
        Self { what: format!("everything after the source failed: {error}"), count: None, first: None }
    }
}

impl Loss {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds to the count of a cause; `first` is kept from the first call.
    pub(super) fn add(&mut self, what: &str, count: u64, first: Option<String>) {
        match self.items.iter_mut().find(|lost| lost.what == what) {
            Some(lost) => lost.count = lost.count.map(|so_far| so_far.saturating_add(count)),
            None => self.push(Lost { what: what.into(), count: Some(count), first }),
        }
    }

    /// Adds damage of unknown extent.
    pub(super) fn damage(&mut self, what: String) {
        self.push(Lost { what, count: None, first: None });
    }

    /// Adds all causes of another loss.
    pub(super) fn extend(&mut self, other: Self) {
        other.items.into_iter().for_each(|lost| self.push(lost));
    }

    fn push(&mut self, lost: Lost) {
        if self.items.len() < MOST {
            return self.items.push(lost);
        }
        let count = lost.count.unwrap_or(1);
        match self.items.iter_mut().find(|known| known.what == OTHERS) {
            Some(others) => others.count = others.count.map(|so_far| so_far.saturating_add(count)),
            None => self.items.push(Lost { what: OTHERS.into(), count: Some(count), first: Some(lost.what) }),
        }
    }
}

impl fmt::Display for Loss {
    /// Writes a line per cause.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.items.iter().map(Lost::to_string).collect::<Vec<_>>().join("\n"))
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(count) = self.count {
            write!(formatter, "{count} ")?;
        }
        write!(formatter, "{}", self.what)?;
        match &self.first {
            Some(first) => write!(formatter, " (first: {first})"),
            None => Ok(()),
        }
    }
}
