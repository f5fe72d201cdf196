//! Detects simulated time that stands still.

use std::time::{Duration, Instant};

use crate::sensing::reading::Stamp;

/// How long the clock may stay unchanged: clocks are published tens of times a second.
const STILL: Duration = Duration::from_millis(500);

/// The simulated time, and when it last changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedTime {
    time: Stamp,
    since: Instant,
}

impl SimulatedTime {
    /// Before the first time is received.
    pub(super) fn new(now: Instant) -> Self {
        Self { time: Stamp::default(), since: now }
    }

    /// Takes the time of the clock now.
    pub(super) fn update(&mut self, time: Stamp, now: Instant) {
        if self.time != time {
            *self = Self { time, since: now };
        }
    }

    /// The time at which it stands still; none while it advances, or before the first time is received.
    pub(super) fn stopped(&self, now: Instant) -> Option<Stamp> {
        let is_still = self.time != Stamp::default() && now.duration_since(self.since) > STILL;
        is_still.then_some(self.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_does_not_change_for_a_while_has_stopped() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut clock = SimulatedTime::new(start);
        clock.update(Stamp::default(), at(2000));
        assert_eq!(clock.stopped(at(2000)), None, "no time is received");
        clock.update(Stamp::from_seconds(5.0), at(2010));
        clock.update(Stamp::from_seconds(5.0), at(2500));
        assert_eq!(clock.stopped(at(2500)), None);
        clock.update(Stamp::from_seconds(5.0), at(2600));
        assert_eq!(clock.stopped(at(2600)), Some(Stamp::from_seconds(5.0)));
        clock.update(Stamp::from_seconds(4.0), at(2620));
        assert_eq!(clock.stopped(at(2620)), None, "it advances again, from where the bag begins");
    }
}
