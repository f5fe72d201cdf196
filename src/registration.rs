//! Where one map is in the other: the transform between maps that were made in frames of their own, by their trajectories.
//!
//! ```text
//! trajectory of B ── located in map A ── transform ┐
//!                                                  ├ agree: proven ── refined with all observations of both
//! trajectory of A ── located in map B ── transform ┘
//! ```
//!
//! A map is driven through the other as a robot would be that may be anywhere ([`particle_filter`](crate::particle_filter)), with the same rule of
//! proof, and the other through it. Neither is a proof alone: some metres of other rooms may look alike. Maps of different places would have to
//! fail both ways in the same way, and all their observations to agree afterwards ([`UNEXPLAINED`]).

mod refinement;
mod relocation;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::thread;

use nalgebra::{Isometry2, Point2, Vector2, Vector3};

use crate::config::{self, Config};
use crate::field::map::FieldMap;
use crate::particle_filter::lookup::{MapLookup, NothingKnown};
use crate::particle_filter::{SensorFilter, Start, State};
use crate::sensing::reading::Observation;
use crate::sync::lock;

pub use refinement::{Given, Placed, Refined, refine};
pub use relocation::{Place, Relocation};

/// Largest distance between the transforms of both ways, in metres ([`Places::between`]). Each is known to a fraction of a metre, as the
/// place of a robot that is tracked; within half a metre of the right one, less than a lengthscale of the field, the refinement finds it.
pub const AGREEMENT: f64 = 0.5;

/// Largest residual after the refinement, relative to the standard deviation of the field ([`Refined::unexplained`]). Fields that have nothing
/// to do with each other differ by more than one such deviation, those of one place by the errors of odometry and maps, a fraction of it.
pub const UNEXPLAINED: f64 = 0.5;

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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Share of the path along which its place was proven.
    pub tracking: f64,
    /// The transform from the frame of the trajectory to that of the map that the places where it was proven agree with best; none if there
    /// are none.
    pub transform: Option<Isometry2<f64>>,
}

/// Evidence from two maps of where the second is in the first.
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
    pub fn new(config: Config, map: FieldMap, observations: &[Observation]) -> Self {
        let hard_iron = map.sensor_bias().map_or_else(Vector3::zeros, |bias| bias.hard_iron.into());
        let mut driven =
            Self { config, map, observations: Vec::new(), hard_iron, height: 0.0, lookups: Mutex::default() };
        driven.extend(observations);
        driven
    }

    /// Adds the observations that follow.
    fn extend(&mut self, observations: &[Observation]) {
        let is_first = self.observations.is_empty();
        // A model rejects others.
        let is_finite = |seen: &&Observation| (seen.position.coords.sum() + seen.field.microtesla().sum()).is_finite();
        self.observations.extend(observations.iter().filter(is_finite));
        if is_first {
            let mut heights: Vec<f64> = self.observations.iter().map(|seen| seen.position.z).collect();
            heights.sort_by(f64::total_cmp);
            self.height = heights.get(heights.len() / 2).copied().unwrap_or(0.0);
        }
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
    fn lookup(&self, height: f64) -> Result<Arc<MapLookup>, NothingKnown> {
        let mut lookups = lock(&self.lookups);
        let centimetres = (100.0 * height).round();
        if let Some(lookup) = lookups.get(&(centimetres as i64)) {
            return Ok(Arc::clone(lookup));
        }
        let lookup = Arc::new(MapLookup::of(&self.map, &self.config.localization, 0.01 * centimetres)?);
        lookups.insert(centimetres as i64, Arc::clone(&lookup));
        Ok(lookup)
    }

    /// A filter for a sensor at this height that may be anywhere at its first observation.
    fn filter(
        &self,
        settings: &config::Localization,
        height: f64,
        first: &Observation,
    ) -> Result<SensorFilter, NothingKnown> {
        Ok(SensorFilter::new(settings, self.lookup(height)?, self.hard_iron, &Start::Anywhere, first))
    }

    /// Locates the trajectory of the `other` map in this one; `progress` is called after every observation but the first. Ends early where it is false.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn locate(&self, other: &Self, progress: impl Fn() -> bool) -> Result<Way, NothingKnown> {
        let mut settings = self.config.localization.clone();
        // What the maps have learnt of their sensors is taken into account; the rest may differ as much as before any reading.
        settings.bias_deviation = settings.bias_deviation.max(self.config.vector.hard_iron);
        let Some((first, following)) = other.observations.split_first() else { return Ok(Way::default()) };
        let difference = other.hard_iron - self.hard_iron;
        let without_difference = |seen: &Observation| seen.without_hard_iron(&difference);
        let mut filter = self.filter(&settings, other.height, &without_difference(first))?;
        let (mut length, mut tracked, mut found, mut last) = (0.0, 0.0, Vec::new(), first);
        for observation in following {
            let step = (observation.position - last.position).norm();
            last = observation;
            length += step;
            let place = filter.update(&without_difference(observation));
            if place.state == State::Tracking {
                tracked += step;
                found.push(place.map_from_odometry);
            }
            if !progress() {
                break;
            }
        }
        let transform = other.places().middle(&found);
        Ok(Way { tracking: if length > 0.0 { tracked / length } else { 0.0 }, transform })
    }

    /// Locates each trajectory in the other map, with a thread for each; `progress` is called after every observation of either. Ends early
    /// where it is false.
    ///
    /// # Errors
    /// Maps in which nobody can be located.
    pub fn evidence(&self, other: &Self, progress: impl Fn() -> bool + Sync) -> Result<Evidence, NothingKnown> {
        let (there, back) = thread::scope(|scope| {
            let back = scope.spawn(|| other.locate(self, &progress));
            (self.locate(other, &progress), back.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        let (there, back) = (there?, back?);
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

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Rotation3};

    use super::*;
    use crate::config::Mapped;
    use crate::field::model::FieldModel;
    use crate::sensing::reading::{MagneticField, Stamp};

    /// The gradient of a potential that sources below cause, over 4 m by 3 m.
    fn field(x: f64, y: f64) -> Vector3<f64> {
        let wave = |k: f64, l: f64, phase: f64| {
            let (along, decay) = (k * x + l * y + phase, k.hypot(l));
            Vector3::new(k * along.cos(), l * along.cos(), -decay * along.sin())
        };
        Vector3::new(0.0, 16.0, -40.0)
            + 6.0 * wave(1.3, 0.4, 0.0)
            + 5.0 * wave(-0.3, 1.8, 1.0)
            + 4.0 * wave(2.1, -1.2, 2.0)
    }

    /// A map of lanes in a frame and with a hard iron of its own: `frame` is the transform from it to the common one.
    fn driven(field_of_map: Mapped, frame: &Isometry2<f64>, hard_iron: Vector3<f64>, phase: f64) -> Driven {
        let mut config = Config::default();
        config.model.field = field_of_map;
        config.vector.sources_above = false;
        config.learning.max_evaluations = 0;
        let seen = |step: u32| {
            let along = 0.05 * f64::from(step);
            let (lane, on_lane) = ((along / 4.0).floor(), along % 4.0);
            let is_back = lane as u32 % 2 == 1;
            let place = Point2::new(if is_back { 4.0 - on_lane } else { on_lane }, 0.45 * lane + phase);
            let heading = if is_back { std::f64::consts::PI } else { 0.0 };
            let (place, heading) = (frame.inverse() * place, heading - frame.rotation.angle());
            let common = frame * place;
            let turned = |angle: f64| *Rotation3::from_axis_angle(&Vector3::z_axis(), angle).matrix();
            let orientation = turned(heading);
            let field = turned(-frame.rotation.angle()) * field(common.x, common.y) + orientation * hard_iron;
            Observation {
                stamp: Stamp::from_seconds(along),
                position: Point3::new(place.x, place.y, 0.0),
                orientation,
                speed: 0.5,
                field: MagneticField::from_microtesla(field),
                strength: field.norm(),
                readings: 1,
            }
        };
        let observations: Vec<Observation> = (0..560).map(seen).collect();
        let mut model = FieldModel::new(&config);
        observations.chunks(80).for_each(|batch| drop(model.update(batch, &|| false).unwrap()));
        Driven::new(config, model.map().unwrap(), &observations)
    }

    #[test]
    fn a_transform_and_a_hard_iron_are_refined_to_the_right_ones_and_a_given_transform_stays() {
        let frame = Isometry2::new(Vector2::new(1.0, -2.0), 1.2);
        let start = Isometry2::new(Vector2::new(0.15, -0.1), 0.1) * frame;
        for (of, hard_iron) in [(Mapped::Vector, Vector3::new(3.0, -2.0, 1.0)), (Mapped::Strength, Vector3::zeros())] {
            let first = driven(of, &Isometry2::identity(), Vector3::new(1.0, 1.0, 0.0), 0.0);
            let second = driven(of, &frame, Vector3::new(1.0, 1.0, 0.0) + hard_iron, 0.2);
            let placed = [Placed { driven: &first, transform: Isometry2::identity(), hard_iron: Vector3::zeros() }];
            let refined = refine(&placed, &second, start, Given::Nothing).unwrap();
            // The strength is bent by the hard iron, which turns with the robot.
            let tolerance = if of == Mapped::Vector { 0.01 } else { 0.05 };
            assert!(second.places().between(&refined.transform, &frame) < tolerance, "{of:?}: {refined:?}");
            assert!((refined.hard_iron - hard_iron).amax() < 0.3, "{of:?}: {refined:?}");
            assert!(refined.residual.unwrap() < 1.5 && refined.shared > 800, "{refined:?}");
            assert!(refined.unexplained.unwrap() < 0.2, "{refined:?}");
            let given = refine(&placed, &second, frame, Given::Transform).unwrap();
            assert!(second.places().between(&given.transform, &frame) < 1e-6, "{given:?}");
            assert!((given.hard_iron - hard_iron).amax() < 0.3, "{given:?}");
            // Elsewhere nothing is shared, and nothing moves.
            let far = Isometry2::new(Vector2::new(100.0, 0.0), 0.0);
            let apart = refine(&placed, &second, far, Given::Nothing).unwrap();
            assert_eq!((apart.transform, apart.residual, apart.shared), (far, None, 0));
        }
    }

    #[test]
    fn the_distance_between_transforms_is_that_of_the_places_that_they_move() {
        let seen = |x: f64, y: f64| Observation {
            stamp: Stamp::default(),
            position: Point3::new(x, y, 7.0),
            orientation: Matrix3::identity(),
            speed: 0.0,
            field: MagneticField::from_microtesla(Vector3::zeros()),
            strength: 0.0,
            readings: 1,
        };
        let observations = [seen(0.0, 0.0), seen(4.0, 1.0), seen(2.0, -3.0), seen(5.0, 5.0)];
        let places = Places::of(&observations);
        let [one, other] = [Isometry2::new(Vector2::new(1.0, 2.0), 0.3), Isometry2::new(Vector2::new(0.5, 2.5), -2.9)];
        let squares = observations.map(|seen| {
            let place = Point2::from(seen.position.coords.xy());
            (one * place - other * place).norm_squared()
        });
        let expected = (squares.iter().sum::<f64>() / 4.0).sqrt();
        assert!((places.between(&one, &other) - expected).abs() < 1e-12);
        // Most are near each other; some are wrong.
        let near = |i: f64| Isometry2::new(Vector2::new(1.0 + 0.01 * i, 2.0), 0.3);
        let all: Vec<Isometry2<f64>> = (0..5).map(|i| near(f64::from(i))).chain([other; 3]).collect();
        assert!(places.between(&places.middle(&all).unwrap(), &near(2.0)) < 0.025);
        assert_eq!(places.middle(&[]), None);
    }

    #[test]
    fn evidence_is_a_proof_where_both_ways_agree() {
        let way = |x: f64| Way { tracking: 0.5, transform: Some(Isometry2::translation(x, 0.0)) };
        let none = Way { tracking: 0.0, transform: None };
        let evidence = |there, back, apart| Evidence { there, back, apart }.proven();
        assert_eq!(evidence(way(1.0), way(-1.2), Some(0.2)), Some(Isometry2::translation(1.0, 0.0)));
        assert_eq!(evidence(way(1.0), way(-1.6), Some(0.6)), None);
        assert_eq!(evidence(way(1.0), none, None), None);
        assert_eq!(evidence(none, way(1.0), None), None);
    }
}
