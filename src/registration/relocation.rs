//! Where a robot is in the map that it continues, when its odometry may begin anywhere.
//!
//! After a reboot, odometry begins at zero wherever the robot is. Where it says that the robot is near the end of the map's path, it may
//! also have continued: then the first metres of readings decide, which agree with the map there or do not. Otherwise the robot is
//! located as one that may be anywhere, with the rule of proof of the [particle filter](crate::particle_filter) and that of maps that are
//! [merged](UNEXPLAINED).

use std::fmt::{self, Display, Formatter};

use nalgebra::{Isometry2, Point2, Vector3};

use super::refinement::{Given, Placed, Refined, refine};
use super::{Driven, UNEXPLAINED};
use crate::config::Config;
use crate::field::map::FieldMap;
use crate::particle_filter::{Reason, SensorFilter, SensorPlace, State};
use crate::sensing::reading::Observation;

/// Odometry may have continued if it says that the robot is within this distance of the end of the map's path, in metres.
const NEAR: f64 = 1.0;

/// A transform this near to the previous one is the same: odometry continued, in metres ([`Places::between`](super::Places::between)).
const SAME: f64 = 0.2;

/// Path after which odometry is accepted as continued, in metres: in a map of the three axes, and in one of strengths, which tell less. On
/// real drives, a robot that was moved by 0.6 m or turned by 30 degrees contradicts the three axes within 3 m.
const BELIEVED: [f64; 2] = [3.0, 10.0];

/// The readings speak for another transform where that leaves less than this share of what the one of before leaves unexplained. On real drives
/// it is 0.85 or more, or both transforms are the same, where odometry continued, and mostly 0.7 or less where the robot was moved by 0.3 m.
const BETTER: f64 = 0.75;

/// Path after which a place that is proven is known well enough to map from there, in metres, as above: on real drives to 2 to 7 cm and a
/// degree.
const ENOUGH: [f64; 2] = [10.0, 20.0];

/// Where the frame of odometry is in the map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Where it was before.
    Same,
    /// Here: the transform from it to the frame of the map.
    Here(Isometry2<f64>),
}

/// A search for a robot in a map.
#[derive(Debug)]
pub struct Relocation {
    map: Driven,
    /// The transform from the frame of odometry to that of the map before.
    before: Isometry2<f64>,
    /// Where the sensor was last.
    end: Option<Point2<f64>>,
    /// The drive since, by odometry.
    driven: Driven,
    /// Length of that path, in metres.
    length: f64,
    hypothesis: Hypothesis,
    /// The last result of the filter.
    found: Result<Isometry2<f64>, Reason>,
}

/// Where odometry may be.
#[derive(Debug)]
enum Hypothesis {
    /// Where it was: odometry continued.
    Same,
    /// Anywhere; without a filter where nothing of the map is known.
    Elsewhere(Option<Box<SensorFilter>>),
}

impl Relocation {
    /// A search in this map, where odometry was at `before` in its frame, and the sensor was last at `end`.
    pub fn new(config: &Config, map: FieldMap, before: Isometry2<f64>, end: Option<Point2<f64>>) -> Self {
        let driven = Driven::new(config.clone(), map.clone(), &[]);
        let map = Driven::new(config.clone(), map, &[]);
        Self { map, before, end, driven, length: 0.0, hypothesis: Hypothesis::Same, found: Err(Reason::Unproven) }
    }

    /// Length of the path so far, in metres.
    pub fn length(&self) -> f64 {
        self.length
    }

    /// Whether odometry did not continue from where it was.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.hypothesis, Hypothesis::Elsewhere(_))
    }

    /// Takes the observations that follow, by odometry.
    pub fn add(&mut self, observations: &[Observation]) {
        let mut next = self.driven.observations.len();
        self.driven.extend(observations);
        let path = &self.driven.observations[next.saturating_sub(1)..];
        self.length += path.windows(2).map(|pair| (pair[1].position - pair[0].position).norm()).sum::<f64>();
        let is_in_question = !observations.is_empty() && !self.is_elsewhere();
        let first = self.driven.observations.first().filter(|_| is_in_question && !self.may_have_continued());
        if let Some(first) = first {
            let filter = self.map.filter(&self.map.config.localization, self.driven.height, first);
            self.hypothesis = Hypothesis::Elsewhere(filter.ok().map(Box::new));
            self.found = Err(Reason::OutsideMap);
            next = 1;
        }
        let Hypothesis::Elsewhere(Some(filter)) = &mut self.hypothesis else { return };
        for seen in &self.driven.observations[next..] {
            let SensorPlace { map_from_odometry, state, reason, .. } = filter.update(seen);
            let reason = reason.unwrap_or(Reason::Unproven);
            self.found = if state == State::Tracking { Ok(map_from_odometry) } else { Err(reason) };
        }
    }

    /// Whether odometry says that the robot began where the map ended, and no reading contradicts that.
    fn may_have_continued(&self) -> bool {
        let Some((first, end)) = self.driven.observations.first().zip(self.end) else { return false };
        if (self.before * first.position.xy() - end).norm() > NEAR {
            return false;
        }
        // A map of which nothing is known contradicts nothing.
        let (Some(before), Some(best)) =
            (self.refined(self.before, Given::Both), self.refined(self.before, Given::HardIron))
        else {
            return true;
        };
        let is_better = best.unexplained.zip(before.unexplained).is_some_and(|(best, before)| best < BETTER * before);
        let has_moved = self.is_longer_than(BELIEVED) && is_better && !self.is_as_before(&best.transform);
        is_explained(&before) && !has_moved
    }

    /// Whether the path is at least this long: in a map of the three axes, or in one of strengths.
    fn is_longer_than(&self, [of_axes, of_strengths]: [f64; 2]) -> bool {
        let has_axes = self.map.lookup(self.driven.height).is_ok_and(|lookup| lookup.outputs > 1);
        self.length >= if has_axes { of_axes } else { of_strengths }
    }

    fn is_as_before(&self, transform: &Isometry2<f64>) -> bool {
        self.driven.places().between(transform, &self.before) <= SAME
    }

    /// The place, where it is known; at the end of the drive it need not be known as well.
    pub fn place(&self, is_end: bool) -> Option<Place> {
        if !self.is_elsewhere() {
            let is_believed = is_end || self.driven.observations() > 0 && self.is_longer_than(BELIEVED);
            return is_believed.then_some(Place::Same);
        }
        let start = self.found.ok().filter(|_| is_end || self.is_longer_than(ENOUGH))?;
        let refined = self.refined(start, Given::HardIron).filter(is_explained)?;
        let is_as_before = self.is_as_before(&refined.transform);
        Some(if is_as_before { Place::Same } else { Place::Here(refined.transform) })
    }

    /// None where nothing of the map is known.
    fn refined(&self, start: Isometry2<f64>, given: Given) -> Option<Refined> {
        let map = Placed { driven: &self.map, transform: Isometry2::identity(), hard_iron: Vector3::zeros() };
        refine(&[map], &self.driven, start, given).ok()
    }
}

impl Display for Relocation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "looking for the robot in the map: {:.1} m driven", self.length)?;
        match self.found {
            Err(reason) if self.is_elsewhere() => write!(f, ", {reason}"),
            _ => Ok(()),
        }
    }
}

/// Whether the map explains the readings at places that it knows.
fn is_explained(refined: &Refined) -> bool {
    refined.unexplained.is_none_or(|unexplained| unexplained <= UNEXPLAINED)
}
