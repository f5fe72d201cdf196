//! The transform that the observations of both maps explain best.
//!
//! Gauss-Newton over (x, y, heading) of one map, and over the hard iron of its sensor. With T its transform, q = T x the place of an
//! observation B in another map whose field is f, and R its orientation there, the residual is
//!
//! ```text
//! r = B - f(q) - R h
//! ```
//!
//! and the same the other way round, with the inverse transform and the opposite hard iron. Residuals are weighed as those of Student's t
//! distribution; those of places that the other map does not know are left out.

use nalgebra::{Isometry2, Matrix2, Matrix6, SMatrix, SVector, Translation2, Vector2, Vector3, Vector6};

use super::Driven;
use crate::particle_filter::lookup::{Local, MapLookup, NothingKnown};
use crate::sensing::reading::Observation;

/// Degrees of freedom of the residuals.
const DEGREES_OF_FREEDOM: f64 = 4.0;

/// A step shorter than this, in metres and radians, is the last.
const SMALL_STEP: f64 = 1e-5;

/// Most steps.
const MOST_STEPS: usize = 100;

/// Longest step, in metres and radians: the field is linear over no more.
const LONGEST_STEP: f64 = 0.1;

/// Deviation of the unknowns of a step where readings say nothing, in metres, radians and microtesla. It changes the steps, not where they
/// end.
const DAMPING: f64 = 50.0;

/// A place is known where the variance of the map is less than this share of how much the field varies over the whole map.
const KNOWN: f64 = 0.25;

/// Information of what is given.
const GIVEN: f64 = 1e12;

/// Unknowns that are given before the readings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// Nothing.
    Nothing,
    /// The transform.
    Transform,
    /// The hard iron: both maps are of one sensor.
    HardIron,
    /// Transform and hard iron.
    Both,
}

impl Given {
    /// Whether the transform is given, and the hard iron.
    fn parts(self) -> [bool; 2] {
        [matches!(self, Self::Transform | Self::Both), matches!(self, Self::HardIron | Self::Both)]
    }
}

/// A map in the common frame.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The map.
    pub driven: &'a Driven,
    /// The transform from its frame to the common one.
    pub transform: Isometry2<f64>,
    /// The hard iron of its sensor less that of the common map's, along its axes, in microtesla.
    pub hard_iron: Vector3<f64>,
}

/// Where a map is in the common frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refined {
    /// The transform from its frame to the common one.
    pub transform: Isometry2<f64>,
    /// The hard iron of its sensor less that of the common map's, along its axes, in microtesla.
    pub hard_iron: Vector3<f64>,
    /// Root mean square residual of an axis, or of the strength, in microtesla; none where the maps do not overlap.
    pub residual: Option<f64>,
    /// The residual relative to the standard deviation of the field over the maps, about 1 for maps that have nothing to do with each
    /// other; none where they do not overlap.
    pub unexplained: Option<f64>,
    /// Observations of either map at places that the other knows.
    pub shared: usize,
}

/// Refines where a map is among others, from this `start`, and the hard iron of its sensor. What is `given` stays.
///
/// # Errors
/// Maps in which nobody can be located.
pub fn refine(
    others: &[Placed<'_>],
    driven: &Driven,
    start: Isometry2<f64>,
    given: Given,
) -> Result<Refined, NothingKnown> {
    let mut pairs = Vec::new();
    for other in others {
        let is_back = !other.driven.observations.is_empty();
        let own = is_back.then(|| driven.lookup(other.driven.height)).transpose()?;
        pairs.push((other, own, other.driven.lookup(driven.height)?));
    }
    let places = driven.places();
    let middle = Translation2::from(places.middle);
    let learnt = others.first().map_or_else(Vector3::zeros, |first| driven.hard_iron - first.driven.hard_iron);
    let mut refined = Refined { transform: start, hard_iron: learnt, residual: None, unexplained: None, shared: 0 };
    for _ in 0..MOST_STEPS {
        let mut system = System::new(given);
        for (other, own, theirs) in &pairs {
            let there = other.transform.inverse() * refined.transform;
            let difference = refined.hard_iron - other.hard_iron;
            for seen in &driven.observations {
                let (seen, arm) = (moved(seen, &there), there.rotation * (seen.position.xy() - places.middle));
                let along = *there.rotation.to_rotation_matrix().matrix();
                system.add(theirs, &seen, &(other.driven.hard_iron + difference), &Motion { along, arm, sign: 1.0 });
            }
            let Some(own) = own else { continue };
            let back = there.inverse();
            for seen in &other.driven.observations {
                let seen = moved(seen, &back);
                let (along, arm) = (-Matrix2::identity(), places.middle - seen.position.xy());
                system.add(own, &seen, &(driven.hard_iron - difference), &Motion { along, arm, sign: -1.0 });
            }
        }
        (refined.residual, refined.unexplained) = (system.residual(), system.unexplained());
        refined.shared = system.shared;
        let Some(step) = system.step() else { break };
        let longest = step.xy().norm().max(step.z.abs());
        let step = (LONGEST_STEP / longest).min(1.0) * step;
        let [is_transform_given, is_hard_iron_given] = given.parts();
        if !is_transform_given {
            refined.transform *= middle * Isometry2::new(step.xy(), step.z) * middle.inverse();
        }
        if !is_hard_iron_given {
            refined.hard_iron += step.fixed_rows::<3>(3);
        }
        if longest < SMALL_STEP {
            break;
        }
    }
    Ok(refined)
}

fn moved(seen: &Observation, transform: &Isometry2<f64>) -> Observation {
    seen.moved_to(&(transform * seen.in_plane()))
}

/// How an observation moves in the frame of the map that it is compared with, when the other map moves by a small shift and turn about its
/// middle.
struct Motion {
    /// Change of the place with the shift.
    along: Matrix2<f64>,
    /// From the middle to the place, or the reverse where the map moves below it: turned by a right angle, the change with the turn.
    arm: Vector2<f64>,
    /// 1 where the observation moves, -1 where the map moves below it.
    sign: f64,
}

/// The normal equations.
struct System {
    information: Matrix6<f64>,
    gradient: Vector6<f64>,
    squares: f64,
    /// Sum of squares of an observation somewhere in the map.
    anywhere: f64,
    outputs: usize,
    shared: usize,
}

impl System {
    fn new(given: Given) -> Self {
        let mut information = Matrix6::identity() / DAMPING.powi(2);
        for (part, is_given) in given.parts().into_iter().enumerate() {
            if is_given {
                (3 * part..3 * part + 3).for_each(|index| information[(index, index)] = GIVEN);
            }
        }
        Self { information, gradient: Vector6::zeros(), squares: 0.0, anywhere: 0.0, outputs: 0, shared: 0 }
    }

    /// Adds an observation in the frame of a map, of a sensor with this hard iron.
    fn add(&mut self, map: &MapLookup, seen: &Observation, hard_iron: &Vector3<f64>, motion: &Motion) {
        let place: [f64; 2] = seen.position.xy().into();
        let (without, right) = (seen.without_hard_iron(hard_iron), Vector2::new(-motion.arm.y, motion.arm.x));
        let place_changes = |gradient: [f64; 2]| {
            let gradient = Vector2::from(gradient);
            let shift = motion.along.tr_mul(&gradient);
            Vector3::new(-shift.x, -shift.y, -gradient.dot(&right))
        };
        if let (Some(local), Some(gradient)) = (known::<1>(map, place), map.gradient::<1>(place)) {
            let residual = SVector::<f64, 1>::new(seen.strength - local.mean[0]);
            let pose = place_changes(gradient[0]);
            let mut changes = SMatrix::<f64, 1, 6>::zeros();
            changes.fixed_columns_mut::<3>(0).copy_from(&pose.transpose());
            self.add_residual(map, &residual, &changes, &local.variance);
        } else if let (Some(local), Some(gradient)) = (known::<3>(map, place), map.gradient::<3>(place)) {
            let field = without.field.microtesla();
            let residual = field - Vector3::from(local.mean);
            let turned = [-field.y, field.x, 0.0];
            let mut changes = SMatrix::<f64, 3, 6>::zeros();
            for axis in 0..3 {
                let mut pose = place_changes(gradient[axis]);
                pose.z += motion.sign * turned[axis];
                changes.fixed_view_mut::<1, 3>(axis, 0).copy_from(&pose.transpose());
            }
            changes.fixed_columns_mut::<3>(3).copy_from(&(-motion.sign * seen.orientation));
            self.add_residual(map, &residual, &changes, &local.variance);
        }
    }

    fn add_residual<const D: usize>(
        &mut self,
        map: &MapLookup,
        residual: &SVector<f64, D>,
        changes: &SMatrix<f64, D, 6>,
        variance: &[f64; D],
    ) {
        let variance = variance.map(|variance| variance + map.noise);
        let square: f64 =
            residual.iter().zip(&variance).map(|(residual, variance)| residual * residual / variance).sum();
        let weight = (DEGREES_OF_FREEDOM + D as f64) / (DEGREES_OF_FREEDOM + square);
        for axis in 0..D {
            let (row, weight) = (changes.row(axis).transpose(), weight / variance[axis]);
            self.information += weight * row * row.transpose();
            self.gradient += weight * residual[axis] * row;
        }
        self.squares += residual.norm_squared();
        self.anywhere += variance_anywhere(map);
        (self.outputs, self.shared) = (D, self.shared + 1);
    }

    fn residual(&self) -> Option<f64> {
        let count = self.outputs * self.shared;
        (count > 0).then(|| (self.squares / count as f64).sqrt())
    }

    fn unexplained(&self) -> Option<f64> {
        (self.shared > 0).then(|| (self.squares / self.anywhere).sqrt())
    }

    fn step(&self) -> Option<Vector6<f64>> {
        Some(-self.information.cholesky()?.solve(&self.gradient))
    }
}

/// The field by a map at a place that it knows.
fn known<const D: usize>(map: &MapLookup, place: [f64; 2]) -> Option<Local<D>> {
    map.at::<D>(place).filter(|local| local.variance.iter().sum::<f64>() < KNOWN * variance_anywhere(map))
}

/// How much the field varies over the whole map.
fn variance_anywhere(map: &MapLookup) -> f64 {
    map.anywhere.iter().map(|normal| normal.variance).sum()
}
