//! How regularly a topic's messages arrive, and how many seem to have been lost on the way.

use crate::sensing::clock::LATENESS;
use crate::sensing::reading::Stamp;

/// Number of intervals, whose median is the usual one.
const INTERVALS: usize = 63;

/// An interval longer than this many usual ones is a gap; a shorter one may be jitter.
const GAP: f64 = 1.75;

/// The intervals between a topic's stamps.
///
/// Messages dropped by the middleware or the network leave a gap: where two stamps are about `n` usual intervals apart, `n - 1`
/// messages are counted as missed. This estimate is right for sensors with a constant rate. A gap of more than a second is a
/// pause, not a loss.
#[derive(Clone, Debug, Default)]
pub struct TopicTiming {
    /// Stamp of the last message.
    pub last: Option<Stamp>,
    /// The newest intervals, in seconds, as a ring buffer.
    intervals: Vec<f64>,
    next: usize,
    /// How many messages seem to have been lost on the way.
    pub missed: u64,
    longest_gap: f64,
}

impl TopicTiming {
    /// Takes the stamp of the next message.
    pub fn push(&mut self, stamp: Stamp) {
        let Some(last) = self.last.replace(stamp) else { return };
        let interval = stamp.seconds_since(last);
        if interval <= 0.0 || interval > LATENESS {
            return;
        }
        self.longest_gap = self.longest_gap.max(interval);
        if let Some(intervals) = self.usual_interval().map(|usual| interval / usual).filter(|&gap| gap > GAP) {
            self.missed += intervals.round() as u64 - 1;
        }
        if self.intervals.len() < INTERVALS {
            self.intervals.push(interval);
        } else {
            self.intervals[self.next] = interval;
            self.next = (self.next + 1) % INTERVALS;
        }
    }

    /// The longest time between two stamps since the last call, in seconds, without pauses.
    pub fn take_longest_gap(&mut self) -> f64 {
        std::mem::take(&mut self.longest_gap)
    }

    /// The usual time between two stamps, in seconds, once enough have arrived.
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

    fn timing(milliseconds: impl IntoIterator<Item = i64>) -> TopicTiming {
        let mut timing = TopicTiming::default();
        milliseconds.into_iter().for_each(|at| timing.push(Stamp::from_nanoseconds(at * 1_000_000)));
        timing
    }

    #[test]
    fn messages_missing_in_a_regular_stream_are_counted() {
        let is_lost = |index: &i64| matches!(index, 100 | 150 | 151 | 152);
        let mut timing = timing((0..200).filter(|index| !is_lost(index)).map(|index| 20 * index));
        assert_eq!(timing.missed, 4);
        assert!((timing.take_longest_gap() - 0.08).abs() < 1e-12);
        assert_eq!(timing.take_longest_gap(), 0.0);
    }

    #[test]
    fn jitter_repeated_stamps_pauses_and_clocks_that_go_back_are_no_losses() {
        // Up to 45 % off, and every tenth stamp twice.
        let jitter = (0..400).flat_map(|index: i64| {
            let stamp = 20 * index + [0, 9, 3, 7, 1][index as usize % 5];
            std::iter::repeat_n(stamp, if index % 10 == 0 { 2 } else { 1 })
        });
        assert_eq!(timing(jitter).missed, 0);
        let lap = || (0..100).map(|index| 20 * index);
        let paused = lap().chain(lap().map(|at| at + 5_000)).chain(lap());
        assert_eq!(timing(paused).missed, 0);
    }
}
