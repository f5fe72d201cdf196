//! How regularly a topic's messages come, and how many seem to have been lost before they could.

use super::gates::LATENESS;
use super::reading::Stamp;

/// Intervals from which the usual one is taken: their median.
const INTERVALS: usize = 63;

/// The rhythm of a topic's stamps.
///
/// Messages that the middleware or the network drops leave a gap: where two stamps lie about `n` usual intervals apart, `n - 1`
/// messages are counted as missed. That is an estimate: it is right for sensors that send regularly. A gap of more than a second
/// is a pause, not a loss.
#[derive(Clone, Debug, Default)]
pub struct Rhythm {
    last: Option<Stamp>,
    /// The newest intervals, in seconds; where the next one goes.
    intervals: Vec<f64>,
    next: usize,
    missed: u64,
    longest_gap: f64,
}

impl Rhythm {
    /// Takes the stamp of the next message.
    pub fn push(&mut self, stamp: Stamp) {
        let Some(last) = self.last.replace(stamp) else { return };
        let interval = stamp.seconds_since(last);
        if interval <= 0.0 || interval > LATENESS {
            return;
        }
        self.longest_gap = self.longest_gap.max(interval);
        if let Some(usual) = self.usual_interval() {
            self.missed += ((interval / usual).round() - 1.0).max(0.0) as u64;
        }
        if self.intervals.len() < INTERVALS {
            self.intervals.push(interval);
        } else {
            self.intervals[self.next] = interval;
            self.next = (self.next + 1) % INTERVALS;
        }
    }

    /// Stamp of the last message.
    pub fn last(&self) -> Option<Stamp> {
        self.last
    }

    /// How many messages seem to have been lost on their way.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// The longest time between two stamps since it was last fetched, in seconds; pauses left out.
    pub fn take_longest_gap(&mut self) -> f64 {
        std::mem::take(&mut self.longest_gap)
    }

    /// The usual time between two stamps, in seconds, once enough have come.
    fn usual_interval(&self) -> Option<f64> {
        if self.intervals.len() < INTERVALS {
            return None;
        }
        let mut intervals: [f64; INTERVALS] = self.intervals.as_slice().try_into().ok()?;
        let (_, median, _) = intervals.select_nth_unstable_by(INTERVALS / 2, f64::total_cmp);
        Some(*median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rhythm(milliseconds: impl IntoIterator<Item = i64>) -> Rhythm {
        let mut rhythm = Rhythm::default();
        milliseconds.into_iter().for_each(|at| rhythm.push(Stamp::from_nanoseconds(at * 1_000_000)));
        rhythm
    }

    #[test]
    fn what_is_missing_in_a_regular_stream_is_counted() {
        let is_lost = |index: &i64| matches!(index, 100 | 150 | 151 | 152);
        let mut rhythm = rhythm((0..200).filter(|index| !is_lost(index)).map(|index| 20 * index));
        assert_eq!(rhythm.missed(), 4);
        assert!((rhythm.take_longest_gap() - 0.08).abs() < 1e-12);
        assert_eq!(rhythm.take_longest_gap(), 0.0);
    }

    #[test]
    fn jitter_repeated_stamps_pauses_and_clocks_that_go_back_are_no_losses() {
        // Up to 45 % off, and every tenth stamp twice.
        let jitter = (0..400).flat_map(|index: i64| {
            let stamp = 20 * index + [0, 9, 3, 7, 1][index as usize % 5];
            std::iter::repeat_n(stamp, if index % 10 == 0 { 2 } else { 1 })
        });
        assert_eq!(rhythm(jitter).missed(), 0);
        let lap = || (0..100).map(|index| 20 * index);
        let paused = lap().chain(lap().map(|at| at + 5_000)).chain(lap());
        assert_eq!(rhythm(paused).missed(), 0);
    }
}
