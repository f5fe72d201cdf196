//! Looking for the robot in the map that it continues, and what follows.
//!
//! While its place is not known, the batches of a run are held. If odometry continued from where it was, the map is the one without a search. If
//! it did not, the robot is located; what is held and what follows is then mapped from that place on.

use super::mapper::{Mapper, Step};
use crate::config::MAP_FRAME;
use crate::registration::{Place, Relocation};
use crate::sensing::reading::Observation;

/// Where the odometry of a run that continues a map is in its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocated {
    /// Whether it is known; what was measured waits while it is not.
    pub is_known: bool,
    /// A description for people.
    pub words: String,
}

impl Relocated {
    /// Nothing is known yet.
    pub(super) fn begun() -> Self {
        Self { is_known: false, words: "looking for the robot in the map".to_owned() }
    }
}

/// Steps that follow where a drive has ended before the robot was found.
pub(crate) fn settle(mapper: &Mapper) -> Vec<Step> {
    match Search::begin(mapper) {
        Some(mut search) => search.update(mapper, true).1,
        None => mapper.continuation().map(|_| Step::Continue).into_iter().collect(),
    }
}

/// The search for a robot in the map that it continues.
#[derive(Debug)]
pub(super) struct Search {
    relocation: Relocation,
    /// Number of batches that it has taken.
    taken: usize,
}

impl Search {
    /// The search that is to be made; none where nothing is held, or nothing is mapped.
    pub(super) fn begin(mapper: &Mapper) -> Option<Self> {
        mapper.pipeline().held()?;
        let map = mapper.model().map()?;
        let relocation = Relocation::new(mapper.config(), map, mapper.map_from_odometry(), mapper.end());
        Some(Self { relocation, taken: 0 })
    }

    /// Where odometry is by the batches that are held now, and the steps that follow from it. At the end of a drive, less is enough.
    pub(super) fn update(&mut self, mapper: &Mapper, is_end: bool) -> (Relocated, Vec<Step>) {
        let held = mapper.pipeline().held().into_iter().flatten();
        let new: Vec<Observation> = held.skip(self.taken).flat_map(|batch| &batch.observations).copied().collect();
        self.taken = mapper.pipeline().held().map_or(0, |held| held.len());
        self.relocation.add(&new);
        let (place, length) = (self.relocation.place(is_end), self.relocation.length());
        let words = match &place {
            None => self.relocation.to_string(),
            Some(Place::Same) => format!("odometry continued from where it was ({length:.1} m driven)"),
            Some(Place::Here(place)) => {
                let ([x, y], turn) = (place.translation.vector.into(), place.rotation.angle().to_degrees());
                format!(
                    "the robot was found in the map after {length:.1} m: odometry began at ({x:.2}, {y:.2}), turned by {turn:.1} degrees"
                )
            }
        };
        let relocated = Relocated { is_known: place.is_some(), words };
        let steps = match place {
            None if mapper.continuation().is_some() && self.relocation.is_elsewhere() => vec![Step::Elsewhere],
            None => Vec::new(),
            Some(Place::Here(place)) => {
                // The map keeps its frame, which is odometry's no longer.
                let is_of_odometry = !mapper.config().slam.enabled && mapper.frame() != MAP_FRAME;
                let frame = is_of_odometry.then(|| Step::Frame(MAP_FRAME.to_owned()));
                let place = mapper.trajectory().correction.last().inverse() * place;
                frame.into_iter().chain([Step::Place(place)]).collect()
            }
            Some(Place::Same) if mapper.continuation().is_some() => vec![Step::Continue],
            Some(Place::Same) => vec![Step::Place(mapper.pipeline().odometry().transform)],
        };
        (relocated, steps)
    }

    /// Whether there are batches that it has not taken.
    pub(super) fn is_behind(&self, mapper: &Mapper) -> bool {
        mapper.pipeline().held().is_some_and(|held| held.len() > self.taken)
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Isometry2, Point3, UnitQuaternion, Vector2, Vector3};

    use super::*;
    use crate::config::Config;
    use crate::mapping::stop::StopSignal;
    use crate::sensing::intake::Input;
    use crate::sensing::reading::{MagneticField, Measurement, Pose, Reading, Stamp};

    /// A pose and then a reading at each of these steps of a drive on a circle, as odometry says whose frame is here in the map.
    fn drive(steps: std::ops::Range<u32>, place: &Isometry2<f64>) -> Vec<Input> {
        let at = |step: u32| {
            let (stamp, angle) = (Stamp::from_nanoseconds(i64::from(step) * 20_000_000), 0.01 * f64::from(step));
            let there = Isometry2::new(Vector2::new(angle.cos(), angle.sin()), angle);
            let here = place.inverse() * there;
            let orientation = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), here.rotation.angle());
            let position = Point3::new(here.translation.x, here.translation.y, 0.2);
            let field = Vector3::new(20.0 + (3.0 * angle).sin(), 5.0 * angle.cos(), 1e-6 * f64::from(step) - 40.0);
            let reading = Reading { stamp, field: MagneticField::from_microtesla(field) };
            [Measurement::Pose(Pose { stamp, position, orientation }), Measurement::Reading(reading)].map(Input::from)
        };
        steps.flat_map(at).collect()
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.batch.max_observations = 7;
        config.learning.max_evaluations = 2;
        config
    }

    fn take(mapper: &mut Mapper, step: Step) {
        mapper.take(step, &StopSignal::default());
    }

    /// Takes inputs, and learns whatever may be learnt after each.
    fn take_inputs(mapper: &mut Mapper, inputs: Vec<Input>) {
        for input in inputs {
            let index = mapper.progress().index;
            take(mapper, Step::Input { index, input });
            learn(mapper);
        }
    }

    fn learn(mapper: &mut Mapper) {
        while !mapper.ready().is_empty() {
            take(mapper, Step::Learn { batches: 1 });
        }
    }

    #[test]
    fn where_odometry_continued_the_map_is_the_one_without_a_search() {
        let mut undisturbed = Mapper::new(&config());
        take_inputs(&mut undisturbed, drive(0..600, &Isometry2::identity()));
        let undisturbed = {
            take(&mut undisturbed, Step::Finish);
            learn(&mut undisturbed);
            undisturbed
        };
        let mut mapper = Mapper::new(&config());
        let mut driven = 0;
        // In the middle of averaging cells and of batches, twice within one batch, and after nothing was driven.
        for until in [203, 317, 320, 320, 451] {
            take_inputs(&mut mapper, drive(driven..until, &Isometry2::identity()));
            settle(&mapper).into_iter().for_each(|step| take(&mut mapper, step));
            learn(&mut mapper);
            take(&mut mapper, Step::Seek);
            assert!(mapper.pipeline().held().is_some_and(|held| held.is_empty()));
            driven = until;
        }
        take_inputs(&mut mapper, drive(driven..600, &Isometry2::identity()));
        assert!(mapper.pipeline().held().is_some_and(|held| !held.is_empty()));
        take(&mut mapper, Step::Finish);
        assert_eq!(settle(&mapper), [Step::Continue]);
        take(&mut mapper, Step::Continue);
        learn(&mut mapper);
        assert_eq!(mapper.model().state(), undisturbed.model().state());
        assert_eq!(mapper.pipeline().counters(), undisturbed.pipeline().counters());
    }

    #[test]
    fn where_it_did_not_the_earlier_batch_ends_there_and_later_ones_are_moved() {
        let place = Isometry2::new(Vector2::new(2.0, -1.0), 1.2);
        let mut config = config();
        // Rounding would put a reading on either side of the border of an averaging cell.
        config.averaging.spacing = 0.0;
        let mut expected = Mapper::new(&config);
        take_inputs(&mut expected, drive(0..205, &Isometry2::identity()));
        take(&mut expected, Step::Input { index: 0, input: Input::Stretch });
        learn(&mut expected);
        take_inputs(&mut expected, drive(205..600, &Isometry2::identity()));

        let mut mapper = Mapper::new(&config);
        take_inputs(&mut mapper, drive(0..205, &Isometry2::identity()));
        take(&mut mapper, Step::Seek);
        take_inputs(&mut mapper, drive(205..400, &place));
        let learnt = mapper.model().totals.observations;
        take(&mut mapper, Step::Elsewhere);
        learn(&mut mapper);
        assert!(mapper.model().totals.observations > learnt, "what was open before is learnt");
        take_inputs(&mut mapper, drive(400..450, &place));
        take(&mut mapper, Step::Place(place));
        learn(&mut mapper);
        take_inputs(&mut mapper, drive(450..600, &place));
        for mapper in [&mut expected, &mut mapper] {
            take(mapper, Step::Finish);
            learn(mapper);
        }
        assert_eq!(mapper.model().totals, expected.model().totals);
        let places = |mapper: &Mapper| mapper.path().points().last().copied().unwrap();
        assert!((places(&mapper) - places(&expected)).norm() < 1e-9);
        let [found, expected] = [mapper, expected].map(|mapper| {
            let map = mapper.model().map().unwrap();
            map.predict(&[[1.0, 0.0], [0.0, 1.0], [-0.6, 0.8]], f64::INFINITY)
        });
        // The frame is turned and turned back.
        assert!(
            found.0.iter().zip(&expected.0).all(|(found, expected)| (found - expected).abs() < 1e-6),
            "{found:?}, {expected:?}"
        );
    }
}
