//! What of a recording is missing, in words and counts.

use std::fmt;

use serde::Serialize;

/// Most causes that are listed one by one: who makes a file to do harm can make them up by the million.
const MOST: usize = 1000;

/// What those beyond are counted under.
const OTHERS: &str = "losses of other kinds";

/// What of a recording could not be used. Empty when all of it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Loss {
    /// One entry per cause.
    pub items: Vec<Lost>,
}

/// One cause of loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lost {
    /// In words, so that the count fits before it: `rows without a stamp in 3-time.csv`.
    pub what: String,
    /// How many; nothing where that cannot be known, as behind the place where a file is cut off.
    pub count: Option<u64>,
    /// Where it first happened, or why.
    pub first: Option<String>,
}

impl Loss {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The sum of what can be counted.
    pub fn total(&self) -> u64 {
        self.items.iter().filter_map(|lost| lost.count).fold(0, u64::saturating_add)
    }

    /// Counts one more of a kind.
    pub(super) fn count(&mut self, what: &str, first: String) {
        self.add(what, 1, Some(first));
    }

    /// Counts so many more of a kind.
    pub(super) fn add(&mut self, what: &str, count: u64, first: Option<String>) {
        match self.items.iter_mut().find(|lost| lost.what == what) {
            Some(lost) => lost.count = lost.count.map(|so_far| so_far.saturating_add(count)),
            None => self.push(Lost { what: what.into(), count: Some(count), first }),
        }
    }

    /// Notes damage whose extent is unknown.
    pub(super) fn damage(&mut self, what: String) {
        self.push(Lost { what, count: None, first: None });
    }

    /// Adds all that another one lists.
    pub(super) fn extend(&mut self, other: &Self) {
        other.items.iter().for_each(|lost| self.push(lost.clone()));
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
    /// One line per cause.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, lost) in self.items.iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            write!(formatter, "{lost}")?;
        }
        Ok(())
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
