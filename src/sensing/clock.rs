//! The clock of a stream: where it goes back, a new stretch begins.
//!
//! A looped bag, a restarted simulation or a computer that sets its time makes the stamps of readings and odometry go back, one topic
//! before the other. From here on that does not matter: all messages from before come first, then [`Passed::Stretch`], then all
//! messages from after.

use std::collections::VecDeque;

use super::reading::Stamp;
use crate::config::Config;

/// How far a stamp may be from the newest and still be merely early or late, in seconds. Filters, networks and executors reorder
/// messages by milliseconds, at worst by tenths of a second; looped recordings, restarted simulations and corrupt stamps are off by
/// seconds to years.
pub(crate) const LATENESS: f64 = 1.0;

/// Number of consecutive stamps far behind that mean that a clock has gone back. No other fault makes that many continue from another time.
const CONFIRMATIONS: usize = 5;

/// A topic with a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The readings.
    Readings,
    /// The poses of odometry.
    Odometry,
}

/// Output of the clock.
#[derive(Clone, Debug, PartialEq)]
pub enum Passed<M> {
    /// A message.
    Message(M),
    /// A message whose stamp is far ahead of those before and after it: it is corrupt.
    TooFarAhead(M),
    /// The messages that follow belong to a new stretch: the clock of this topic went back by this, in seconds.
    Stretch(Topic, f64),
}

/// The clocks of both topics.
///
/// A message more than a second ahead of its topic waits for the next one, which confirms or contradicts it. The clock of a topic has
/// gone back when five consecutive stamps, which advance, are more than a second behind. They wait then, until the other topic
/// has gone back as well, or is nearer to the new time than to the old: so it does not matter which topic goes first, as long as it is
/// ahead of the other by less than half of what the clock went back by. A topic that does not follow is waited for for
/// `frames.patience`.
#[derive(Clone, Debug)]
pub struct Clock<M> {
    patience: f64,
    capacity: usize,
    topics: [TopicClock<M>; 2],
}

#[derive(Clone, Debug)]
struct TopicClock<M> {
    /// The newest stamp that was passed on in this stretch.
    newest: Option<Stamp>,
    /// A message that is far ahead of it.
    ahead: Option<(Stamp, M)>,
    /// Consecutive messages that are far behind it.
    behind: VecDeque<(Stamp, M)>,
    /// Whether these are enough: they belong to the next stretch.
    has_gone_back: bool,
}

impl<M> Default for Clock<M> {
    fn default() -> Self {
        Self::new(&Config::default())
    }
}

impl<M> Clock<M> {
    /// The clocks before the first message.
    pub fn new(config: &Config) -> Self {
        let topic = || TopicClock { newest: None, ahead: None, behind: VecDeque::new(), has_gone_back: false };
        Self { patience: config.frames.patience, capacity: config.synchronizer.max_waiting, topics: [topic(), topic()] }
    }

    /// The newest stamp that was passed on.
    pub fn newest(&self) -> Option<Stamp> {
        self.topics.iter().filter_map(|topic| topic.newest).max()
    }

    /// How many messages wait.
    pub fn held(&self) -> usize {
        self.topics.iter().map(|topic| topic.behind.len() + usize::from(topic.ahead.is_some())).sum()
    }

    /// Takes the next message of a topic, and passes on what need not wait, in the order of the topic.
    pub fn push(&mut self, topic: Topic, stamp: Stamp, message: M, sink: &mut dyn FnMut(Passed<M>)) {
        if self.topics[topic as usize].goes_back_again(stamp) {
            self.begin_stretch(topic, sink);
        }
        self.topics[topic as usize].push(stamp, message, sink);
        if let Some(topic) = self.complete() {
            self.begin_stretch(topic, sink);
        }
    }

    /// Ends the stream: what waits is passed on.
    pub fn finish(&mut self, sink: &mut dyn FnMut(Passed<M>)) {
        if let Some(topic) = self.gone_back() {
            self.begin_stretch(topic, sink);
        }
        for topic in &mut self.topics {
            topic.pass_ahead(sink);
            topic.pass_behind(sink);
        }
    }

    /// A topic whose clock has gone back.
    fn gone_back(&self) -> Option<Topic> {
        [Topic::Readings, Topic::Odometry].into_iter().find(|topic| self.topics[*topic as usize].has_gone_back)
    }

    /// A topic whose clock has gone back, if the stretch before it is complete.
    fn complete(&self) -> Option<Topic> {
        let topic = self.gone_back()?;
        let [first, other] = [topic as usize, 1 - topic as usize].map(|index| &self.topics[index]);
        let (start, end) = (first.behind.front()?.0, first.behind.back()?.0);
        let has_waited = end.seconds_since(start) > self.patience || first.behind.len() > self.capacity;
        (has_waited || other.has_followed(first.newest?, end)).then_some(topic)
    }

    fn begin_stretch(&mut self, topic: Topic, sink: &mut dyn FnMut(Passed<M>)) {
        self.topics.iter_mut().for_each(|topic| topic.pass_ahead(sink));
        let first = &self.topics[topic as usize];
        let (Some(old), Some(&(new, _))) = (first.newest, first.behind.front()) else { return };
        sink(Passed::Stretch(topic, old.seconds_since(new)));
        for topic in &mut self.topics {
            if topic.has_gone_back || !topic.has_followed(old, new) {
                topic.newest = None;
            }
            if std::mem::take(&mut topic.has_gone_back) {
                topic.pass_behind(sink);
            }
        }
    }
}

impl<M> TopicClock<M> {
    fn push(&mut self, stamp: Stamp, message: M, sink: &mut dyn FnMut(Passed<M>)) {
        if self.has_gone_back {
            self.behind.push_back((stamp, message));
            return;
        }
        let lead = |newest: Option<Stamp>| newest.map_or(0.0, |newest| stamp.seconds_since(newest));
        let is_far_behind = lead(self.newest) < -LATENESS;
        if let Some((ahead, held)) = self.ahead.take() {
            if lead(Some(ahead)) >= -LATENESS {
                self.pass(ahead, held, sink);
            } else if is_far_behind {
                self.ahead = Some((ahead, held));
            } else {
                sink(Passed::TooFarAhead(held));
            }
        }
        if is_far_behind {
            return self.push_behind(stamp, message, sink);
        }
        self.pass_behind(sink);
        if lead(self.newest) > LATENESS {
            self.ahead = Some((stamp, message));
        } else {
            self.pass(stamp, message, sink);
        }
    }

    fn push_behind(&mut self, stamp: Stamp, message: M, sink: &mut dyn FnMut(Passed<M>)) {
        if self.behind.back().is_some_and(|(last, _)| stamp < *last) {
            self.pass_behind(sink);
        }
        self.behind.push_back((stamp, message));
        if self.behind.len() < CONFIRMATIONS {
            return;
        }
        // A clock that stands still has not gone back.
        if self.behind.front().is_some_and(|(first, _)| *first < stamp) {
            self.has_gone_back = true;
        } else if let Some((_, oldest)) = self.behind.pop_front() {
            sink(Passed::Message(oldest));
        }
    }

    /// Whether the clock goes back from where it has gone back to.
    fn goes_back_again(&self, stamp: Stamp) -> bool {
        self.has_gone_back && self.behind.back().is_some_and(|(last, _)| last.seconds_since(stamp) > LATENESS)
    }

    /// Whether the topic is at the `new` time rather than at the `old` one, or was never at either.
    fn has_followed(&self, old: Stamp, new: Stamp) -> bool {
        self.has_gone_back || self.newest.is_none_or(|newest| newest.is_nearer_to(new, old))
    }

    fn pass(&mut self, stamp: Stamp, message: M, sink: &mut dyn FnMut(Passed<M>)) {
        self.newest = self.newest.max(Some(stamp));
        sink(Passed::Message(message));
    }

    fn pass_ahead(&mut self, sink: &mut dyn FnMut(Passed<M>)) {
        if let Some((stamp, message)) = self.ahead.take() {
            self.pass(stamp, message, sink);
        }
    }

    fn pass_behind(&mut self, sink: &mut dyn FnMut(Passed<M>)) {
        while let Some((stamp, message)) = self.behind.pop_front() {
            self.pass(stamp, message, sink);
        }
    }
}
