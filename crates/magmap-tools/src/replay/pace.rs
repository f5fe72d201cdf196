//! Replays stamps at a multiple of real time.

use std::time::{Duration, Instant};

use magmap::mapping::stop::StopSignal;
use magmap::sensing::reading::Stamp;

/// Interval at which a wait checks the stop signal.
const SLICE: Duration = Duration::from_millis(50);

/// Replays stamps at a multiple of real time.
#[derive(Debug)]
pub(super) struct Pace {
    speed: f64,
    start: Option<(Stamp, Instant)>,
}

impl Pace {
    /// At `speed` times real time; 0 means without waiting.
    pub(super) fn new(speed: f64) -> Self {
        Self { speed, start: None }
    }

    /// Waits until it is time for `stamp`, counted from the first one, or until `stop` is set.
    pub(super) fn wait_for(&mut self, stamp: Stamp, stop: &StopSignal) {
        if self.speed == 0.0 {
            return;
        }
        let (first, began) = *self.start.get_or_insert_with(|| (stamp, Instant::now()));
        let seconds = (stamp.seconds_since(first) / self.speed).max(0.0);
        let due = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        while !stop.is_stopped() {
            match due.checked_sub(began.elapsed()) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => std::thread::sleep(rest.min(SLICE)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_paced_and_those_of_the_past_pass_at_once() {
        let mut pace = Pace::new(10.0);
        let (start, stop) = (Instant::now(), StopSignal::default());
        for seconds in [100.0, 101.0, 100.5, 101.5] {
            pace.wait_for(Stamp::from_seconds(seconds), &stop);
        }
        let waited = start.elapsed().as_secs_f64();
        // A sleep is never too short; how much too long it is depends on the machine.
        assert!((0.15..5.0).contains(&waited), "{waited}");
    }

    #[test]
    fn a_stop_ends_a_long_wait() {
        let mut pace = Pace::new(1e-3);
        let (start, stop) = (Instant::now(), StopSignal::default());
        pace.wait_for(Stamp::from_seconds(0.0), &stop);
        let other = stop.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.stop();
        });
        pace.wait_for(Stamp::from_seconds(1000.0), &stop);
        thread.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
