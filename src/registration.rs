//! Where one map is in the other: the transform between maps that were made in frames of their own, by their trajectories.
//!
//! ```text
//! trajectory of B ── located in map A ── transform ┐
//!                                                  ├ agree: proven ── refined with all observations of both
//! trajectory of A ── located in map B ── transform ┘
//! ```
//!
//! A map is driven through the other as a robot would be that may be anywhere ([`localization`](crate::localization)), with the same rule of
//! proof, and the other through it. Two maps of different places would have to fail both ways, and in the same way.

mod refinement;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nalgebra::{Isometry2, Isometry3, Point2, Vector2, Vector3};

use crate::config::Config;
use crate::field::map::FieldMap;
use crate::localization::lookup::MapLookup;
use crate::localization::{Error, Localizer, Start, State};
use crate::mapping::updates::lock;
use crate::sensing::reading::Observation;

pub use refinement::{Placed, Refined, refine};

/// Largest distance between the transforms of both ways, in metres ([`Places::between`]). Each is known to a fraction of a metre, as the
/// place of a robot that is tracked; within half a metre of the right one, less than a lengthscale of the field, the refinement finds it. Two
/// wrong ones of a room agree so well, with their headings, in one of some hundred cases.
pub const AGREEMENT: f64 = 0.5;

/// A map with the trajectory that it was made from.
#[derive(Debug)]
pub struct Driven {
    /// The settings with which robots are located in it.
    config: Config,
    map: FieldMap,
    observations: Vec<Observation>,
    /// Hard iron of the sensor as the map has learnt it, along its axes, in microtesla; 0 where it has not.
    pub hard_iron: Vector3<f64>,
    /// Height of the sensor, in metres.
    height: f64,
    /// The map at heights, in centimetres.
    lookups: Mutex<BTreeMap<i64, Arc<MapLookup>>>,
}

/// A trajectory driven through a map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Share of the path along which its place was proven.
    pub tracking: f64,
    /// The transform from the frame of the trajectory to that of the map that the places where it was proven agree with best; none if there
    /// are none.
    pub transform: Option<Isometry2<f64>>,
}

/// What two maps say of where the second is in the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// The trajectory of the second in the first.
    pub there: Way,
    /// The trajectory of the first in the second.
    pub back: Way,
    /// Distance between the transforms of both ways, in metres; none unless there are both.
    pub apart: Option<f64>,
}

impl Evidence {
    /// The transform from the frame of the second map to that of the first, if it is proven.
    pub fn proven(&self) -> Option<Isometry2<f64>> {
        self.there.transform.filter(|_| self.apart.is_some_and(|apart| apart <= AGREEMENT))
    }
}

impl Driven {
    /// A map with the observations that it was made from, at their poses in it, in the order of the drive. The settings are those with which
    /// a robot is located in it.
    pub fn new(config: Config, map: FieldMap, mut observations: Vec<Observation>) -> Self {
        // A model rejects others.
        observations.retain(|seen| seen.position.coords.sum().is_finite() && seen.field.microtesla().sum().is_finite());
        let mut heights: Vec<f64> = observations.iter().map(|seen| seen.position.z).collect();
        heights.sort_by(f64::total_cmp);
        let hard_iron = map.sensor_bias().map_or_else(Vector3::zeros, |bias| bias.hard_iron.into());
        let height = heights.get(heights.len() / 2).copied().unwrap_or(0.0);
        Self { config, map, observations, hard_iron, height, lookups: Mutex::default() }
    }

    /// Number of observations.
    pub fn observations(&self) -> usize {
        self.observations.len()
    }

    /// The places of its observations.
    pub fn places(&self) -> Places {
        Places::of(&self.observations)
    }

    /// The map at the height of a sensor, in metres.
    fn lookup(&self, height: f64) -> Result<Arc<MapLookup>, Error> {
        let mut lookups = lock(&self.lookups);
        let centimetres = (100.0 * height).round();
        if let Some(lookup) = lookups.get(&(centimetres as i64)) {
            return Ok(Arc::clone(lookup));
        }
        let lookup = Arc::new(MapLookup::of(&self.map, &self.config.localization, 0.01 * centimetres)?);
        lookups.insert(centimetres as i64, Arc::clone(&lookup));
        Ok(lookup)
    }

    /// Locates the trajectory of the `other` map in this one; `progress` is called after every observation. Ends early when it is false.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn locate(&self, other: &Self, mut progress: impl FnMut() -> bool) -> Result<Way, Error> {
        let mut config = self.config.clone();
        // What the maps have learnt of their sensors is taken into account; the rest may differ as much as before any reading.
        let localization = &mut config.localization;
        localization.bias_deviation = localization.bias_deviation.max(config.vector.hard_iron);
        let (lookup, mount) = (self.lookup(other.height)?, Isometry3::identity());
        let mut localizer = Localizer::in_lookup(&config, lookup, self.hard_iron, mount, Start::Anywhere);
        let difference = other.hard_iron - self.hard_iron;
        let (mut length, mut tracked, mut found) = (0.0, 0.0, Vec::new());
        let mut last = other.observations.first();
        for observation in &other.observations {
            let step = last.map_or(0.0, |last| (observation.position - last.position).norm());
            last = Some(observation);
            length += step;
            let located = localizer.update(&observation.without_hard_iron(&difference));
            if let Some(located) = located.filter(|located| located.state == State::Tracking) {
                tracked += step;
                found.push(located.map_from_odometry);
            }
            if !progress() {
                break;
            }
        }
        let transform = other.places().middle(&found);
        Ok(Way { tracking: if length > 0.0 { tracked / length } else { 0.0 }, transform })
    }

    /// Locates each trajectory in the other map; `progress` is called after every observation of either. Ends early when it is false.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn evidence(&self, other: &Self, mut progress: impl FnMut() -> bool) -> Result<Evidence, Error> {
        let there = self.locate(other, &mut progress)?;
        let back = other.locate(self, &mut progress)?;
        let places = other.places();
        let apart = there.transform.zip(back.transform).map(|(there, back)| places.between(&there, &back.inverse()));
        Ok(Evidence { there, back, apart })
    }
}

/// The places of a trajectory, between whose transforms there is a distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Places {
    middle: Point2<f64>,
    /// Root mean square distance from the middle, in metres.
    radius: f64,
}

impl Places {
    /// The places of these observations.
    pub fn of(observations: &[Observation]) -> Self {
        let places =
            || observations.iter().map(|seen| seen.position.coords.xy()).filter(|place| place.norm().is_finite());
        let count = places().count().max(1) as f64;
        let middle: Vector2<f64> = places().sum::<Vector2<f64>>() / count;
        let square = places().map(|place| (place - middle).norm_squared()).sum::<f64>() / count;
        Self { middle: middle.into(), radius: square.sqrt() }
    }

    /// Root mean square distance between the places moved by one transform and by the other, in metres.
    pub fn between(&self, one: &Isometry2<f64>, other: &Isometry2<f64>) -> f64 {
        let turned = 2.0 * (0.5 * one.rotation.angle_to(&other.rotation)).sin() * self.radius;
        (one * self.middle - other * self.middle).norm().hypot(turned)
    }

    /// The transform with the least sum of distances to all.
    fn middle(&self, transforms: &[Isometry2<f64>]) -> Option<Isometry2<f64>> {
        // Some hundred are enough.
        let some: Vec<&Isometry2<f64>> =
            transforms.iter().step_by(transforms.len().div_ceil(MOST_COMPARED).max(1)).collect();
        let sum = |of: &Isometry2<f64>| some.iter().map(|other| self.between(of, other)).sum::<f64>();
        let sums = some.iter().map(|transform| (sum(transform), **transform));
        sums.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, transform)| transform)
    }
}

/// Most transforms that are compared with each other.
const MOST_COMPARED: usize = 300;
