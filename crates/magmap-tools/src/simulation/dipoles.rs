//! A world of magnetic dipoles under the floor, beside it and above the ceiling, in an ambient field.

use clap::ValueEnum;
use nalgebra::{DVector, Point3, Vector3};
use rand::{Rng, RngExt};
use rand_distr::{Distribution, UnitSphere};
use serde::Serialize;

use super::{Error, Stream, World, check, generator, not_negative, positive};
use magmap::sensing::reading::MagneticField;

/// The magnetic constant over 4 pi, in microtesla times cubic metres per ampere square metre (1e-7 T m / A).
const MAGNETIC_CONSTANT_OVER_4_PI: f64 = 0.1;

/// A source that is small compared to its distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dipole {
    /// Position, in metres.
    pub position: Point3<f64>,
    /// Moment, in ampere square metres.
    pub moment: Vector3<f64>,
}

impl Dipole {
    /// The dipole's field at `position`, in microtesla: mu0 / (4 pi) (3 n (n . m) - m) / r^3 (Jackson, Classical
    /// Electrodynamics, section 5.6). Not finite at the dipole itself.
    fn field_at(&self, position: &Point3<f64>) -> Vector3<f64> {
        let offset = position - self.position;
        let distance = offset.norm();
        let direction = offset / distance;
        let along = direction * (3.0 * direction.dot(&self.moment));
        MAGNETIC_CONSTANT_OVER_4_PI * (along - self.moment) / distance.powi(3)
    }
}

/// The properties of a random world.
#[derive(Clone, Debug, PartialEq)]
pub struct DipoleOptions {
    /// The room extends from (0, 0) to here, in metres; its floor is at z = 0.
    pub size: [f64; 2],
    /// The field without the dipoles, in microtesla: by default the Earth's in southern Finland, x to the east.
    pub ambient: [f64; 3],
    /// Number of dipoles under the floor.
    pub under: usize,
    /// Number of dipoles beside the room.
    pub beside: usize,
    /// Least and greatest height of those beside the room over its floor, in metres.
    pub beside_heights: [f64; 2],
    /// Number of dipoles above the ceiling.
    pub above: usize,
    /// Height of the ceiling over the floor, in metres.
    pub ceiling: f64,
    /// Least and greatest distance of a dipole from the floor, the wall or the ceiling, in metres.
    pub distance: [f64; 2],
    /// Standard deviation of the field's strength over the room, in microtesla: all moments are scaled to reach it.
    pub standard_deviation: f64,
    /// Height over the floor at which it is reached, in metres: that of the sensor.
    pub height: f64,
    /// How the sources differ from place to place.
    pub character: Character,
}

/// How the sources of a world differ from place to place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Character {
    /// No differences.
    #[default]
    Uniform,
    /// In the half with the larger x they are twice as far away, and a quarter as many under the floor, so that the field varies over twice
    /// the distance there. Those beside the room are in turn strong and weak, by [`SECTION`] metres of wall.
    Hall,
}

/// Where the steel of a building is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Steel {
    /// Under the floor and in the walls.
    #[default]
    Below,
    /// Above the ceiling.
    Above,
    /// In the walls.
    Beside,
    /// Half of it under the floor, half above the ceiling, and in the walls.
    Mixed,
}

/// Length of wall whose sources are similarly strong, in a hall, in metres.
pub const SECTION: f64 = 5.0;

impl Default for DipoleOptions {
    fn default() -> Self {
        Self {
            size: [6.0, 6.0],
            ambient: [2.0, 15.0, -48.0],
            under: 24,
            beside: 12,
            beside_heights: [0.0, 1.5],
            above: 0,
            ceiling: 2.5,
            distance: [0.4, 1.5],
            standard_deviation: 10.0,
            height: 0.0,
            character: Character::Uniform,
        }
    }
}

impl DipoleOptions {
    /// A room of this size, with as many sources per square metre of floor and metre of wall as by default.
    pub fn of_size(size: [f64; 2]) -> Self {
        let default = Self::default();
        let [area, perimeter] =
            [|[x, y]: [f64; 2]| x * y, |[x, y]: [f64; 2]| x + y].map(|of| of(size) / of(default.size));
        let scaled = |count: usize, by: f64| (count as f64 * by).ceil() as usize;
        let (under, beside) = (scaled(default.under, area), scaled(default.beside, perimeter));
        Self { size, under, beside, ..default }
    }

    /// A room with as many sources, at other places.
    pub fn with_steel(self, steel: Steel) -> Self {
        let Self { under, beside, above, .. } = self;
        match steel {
            Steel::Below => self,
            Steel::Above => Self { under: 0, beside: 0, above: above + under, ..self },
            Steel::Beside => Self { under: 0, beside: beside + under, ..self },
            Steel::Mixed => Self { under: under / 2, above: above + under - under / 2, ..self },
        }
    }

    fn check(&self) -> Result<(), Error> {
        positive("size, x", self.size[0])?;
        positive("size, y", self.size[1])?;
        check("ambient", self.ambient.iter().all(|axis| axis.is_finite()), "three finite numbers", self.ambient)?;
        let [least, greatest] = self.distance;
        let ordered = least > 0.0 && least <= greatest && greatest.is_finite();
        check("distance", ordered, "two finite numbers, 0 < least <= greatest", self.distance)?;
        let [lowest, highest] = self.beside_heights;
        let ordered = lowest <= highest && highest - lowest < f64::INFINITY;
        check("beside_heights", ordered, "two finite numbers, least <= greatest", self.beside_heights)?;
        check("ceiling", self.ceiling.is_finite(), "a finite number", self.ceiling)?;
        check("height", self.height.is_finite(), "a finite number", self.height)?;
        not_negative("standard_deviation", self.standard_deviation)?;
        let has_source = self.under + self.beside + self.above > 0 || self.standard_deviation == 0.0;
        check("under + beside + above", has_source, "at least one dipole for a field that varies", 0)
    }
}

/// Dipoles in an ambient field.
#[derive(Clone, Debug, PartialEq)]
pub struct DipoleWorld {
    ambient: Vector3<f64>,
    dipoles: Vec<Dipole>,
}

impl World for DipoleWorld {
    fn field_at(&self, position: &Point3<f64>) -> MagneticField {
        MagneticField::from_microtesla(self.ambient + anomaly(&self.dipoles, position))
    }
}

/// The field of the dipoles alone, in microtesla.
fn anomaly(dipoles: &[Dipole], position: &Point3<f64>) -> Vector3<f64> {
    dipoles.iter().map(|dipole| dipole.field_at(position)).sum()
}

impl DipoleWorld {
    /// A world of these dipoles in an ambient field, in microtesla.
    pub fn new(ambient: Vector3<f64>, dipoles: Vec<Dipole>) -> Self {
        Self { ambient, dipoles }
    }

    /// The world with one more dipole.
    pub fn with(mut self, dipole: Dipole) -> Self {
        self.dipoles.push(dipole);
        self
    }

    /// A random world: a function of the options and the seed.
    ///
    /// # Errors
    /// Options that no world can have.
    pub fn random(options: &DipoleOptions, seed: u64) -> Result<Self, Error> {
        options.check()?;
        let mut generator = generator(seed, Stream::World);
        let mut dipoles: Vec<Dipole> = (0..options.under).map(|_| dipole_under(options, &mut generator)).collect();
        dipoles.extend((0..options.beside).map(|_| dipole_beside(options, &mut generator)));
        dipoles.extend((0..options.above).map(|_| dipole_above(options, &mut generator)));
        if options.character == Character::Hall {
            dipoles = in_hall(dipoles, options.size, &mut generator);
        }
        let ambient = Vector3::from(options.ambient);
        let anomalies = anomalies_at_height(options.height, options.size, &dipoles);
        let scale = scale_to_reach(options.standard_deviation, ambient, &anomalies);
        dipoles.iter_mut().for_each(|dipole| dipole.moment *= scale);
        Ok(Self::new(ambient, dipoles))
    }
}

/// The sources of a uniform room as those of a hall.
fn in_hall(dipoles: Vec<Dipole>, size: [f64; 2], random: &mut impl Rng) -> Vec<Dipole> {
    let [width, length] = size;
    let in_hall = |Dipole { mut position, mut moment }: Dipole| {
        let is_under = position.z < 0.0;
        let is_far = position.x > 0.5 * width;
        // Fields fall off with the cube of the distance.
        if is_far {
            moment *= 8.0;
            if is_under && random.random_range(0.0..1.0) >= 0.25 {
                return None;
            }
        }
        if is_under {
            position.z *= if is_far { 2.0 } else { 1.0 };
            return Some(Dipole { position, moment });
        }
        let along = if (0.0..width).contains(&position.x) { position.x } else { position.y };
        moment *= if (along / SECTION).floor() % 2.0 == 0.0 { 1.5 } else { 0.3 };
        if is_far {
            for (axis, side) in [width, length].into_iter().enumerate() {
                let coordinate = position[axis];
                position[axis] += (coordinate - side).max(0.0) + coordinate.min(0.0);
            }
        }
        Some(Dipole { position, moment })
    };
    dipoles.into_iter().filter_map(in_hall).collect()
}

fn dipole_under(options: &DipoleOptions, random: &mut impl Rng) -> Dipole {
    let depth = distance(options, random);
    let [x, y] = options.size.map(|side| random.random_range(0.0..side));
    Dipole { position: Point3::new(x, y, -depth), moment: moment(depth, random) }
}

fn dipole_above(options: &DipoleOptions, random: &mut impl Rng) -> Dipole {
    let Dipole { mut position, moment } = dipole_under(options, random);
    position.z = options.ceiling - position.z;
    Dipole { position, moment }
}

fn dipole_beside(options: &DipoleOptions, random: &mut impl Rng) -> Dipole {
    let distance = distance(options, random);
    let [width, length] = options.size;
    let [lowest, highest] = options.beside_heights;
    let height = lowest + (highest - lowest) * random.random_range(0.0..1.0);
    // A place along the four walls.
    let along = random.random_range(0.0..2.0 * (width + length));
    let (x, y) = if along < width {
        (along, -distance)
    } else if along < 2.0 * width {
        (along - width, length + distance)
    } else if along < 2.0 * width + length {
        (-distance, along - 2.0 * width)
    } else {
        (width + distance, along - 2.0 * width - length)
    };
    Dipole { position: Point3::new(x, y, height), moment: moment(distance, random) }
}

fn distance(options: &DipoleOptions, random: &mut impl Rng) -> f64 {
    random.random_range(options.distance[0]..=options.distance[1])
}

/// A moment in a random direction. It grows with the cube of the distance, so that all sources are similarly strong at the floor or the
/// wall: with equal moments the nearest one would dominate.
fn moment(distance: f64, random: &mut impl Rng) -> Vector3<f64> {
    let direction: [f64; 3] = UnitSphere.sample(random);
    Vector3::from(direction) * random.random_range(0.3..1.0) * distance.powi(3)
}

/// The dipoles' field on a lattice at a height over the floor.
fn anomalies_at_height(height: f64, size: [f64; 2], dipoles: &[Dipole]) -> Vec<Vector3<f64>> {
    const SIDE: usize = 41;
    let place = |index: usize, side: f64| side * (index as f64 + 0.5) / SIDE as f64;
    (0..SIDE * SIDE)
        .map(|i| anomaly(dipoles, &Point3::new(place(i % SIDE, size[0]), place(i / SIDE, size[1]), height)))
        .collect()
}

/// The factor on the anomalies with which the strength of the whole field has standard deviation `target`.
fn scale_to_reach(target: f64, ambient: Vector3<f64>, anomalies: &[Vector3<f64>]) -> f64 {
    const HALVINGS: usize = 60;
    let reached = |scale: f64| {
        let strengths = anomalies.iter().map(|anomaly| (ambient + anomaly * scale).norm());
        DVector::from_iterator(anomalies.len(), strengths).variance().sqrt()
    };
    if target == 0.0 {
        return 0.0;
    }
    // The deviation is zero at scale zero, continuous, and asymptotically proportional to the scale: it reaches the target.
    let (mut low, mut high) = (0.0, 1.0);
    while reached(high) < target && high < f64::MAX / 2.0 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if reached(middle) < target { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dipole() -> Dipole {
        Dipole { position: Point3::new(0.3, -0.2, -0.5), moment: Vector3::new(1.0, -2.0, 3.0) }
    }

    #[test]
    fn on_its_axis_and_beside_it_the_field_is_the_textbook_value() {
        let dipole = Dipole { position: Point3::origin(), moment: Vector3::new(0.0, 0.0, 2.0) };
        // On the axis mu0 / (2 pi) m / r^3 along the moment, on the equator half of it against the moment.
        let axis = dipole.field_at(&Point3::new(0.0, 0.0, 0.5));
        assert!((axis - Vector3::new(0.0, 0.0, 3.2)).norm() < 1e-12, "{axis}");
        let equator = dipole.field_at(&Point3::new(0.0, 0.5, 0.0));
        assert!((equator - Vector3::new(0.0, 0.0, -1.6)).norm() < 1e-12, "{equator}");
    }

    #[test]
    fn the_field_is_minus_the_gradient_of_the_scalar_potential() {
        let dipole = dipole();
        let potential = |position: Point3<f64>| {
            let offset = position - dipole.position;
            MAGNETIC_CONSTANT_OVER_4_PI * dipole.moment.dot(&offset) / offset.norm().powi(3)
        };
        let position = Point3::new(0.7, 0.4, 0.2);
        let step = 1e-5;
        let gradient = Vector3::from_fn(|axis, _| {
            let offset = Vector3::ith(axis, step);
            (potential(position + offset) - potential(position - offset)) / (2.0 * step)
        });
        let field = dipole.field_at(&position);
        // Central differences lose about step squared.
        assert!((field + gradient).norm() < 1e-8 * field.norm(), "{field} {gradient}");
    }

    #[test]
    fn the_field_has_no_sources_and_no_curl_outside_the_dipoles() {
        let world = DipoleWorld::random(&DipoleOptions::default(), 5).unwrap();
        let position = Point3::new(2.0, 3.0, 0.1);
        let step = 1e-4;
        let derivative = |axis: usize| {
            let offset = Vector3::ith(axis, step);
            let field = |position| *world.field_at(&position).microtesla();
            (field(position + offset) - field(position - offset)) / (2.0 * step)
        };
        let [x, y, z] = [0, 1, 2].map(derivative);
        let size = x.norm() + y.norm() + z.norm();
        assert!(size > 1.0, "the field hardly varies: {size}");
        let divergence = x.x + y.y + z.z;
        let curl = Vector3::new(y.z - z.y, z.x - x.z, x.y - y.x);
        assert!(divergence.abs() < 1e-5 * size, "{divergence}");
        assert!(curl.norm() < 1e-5 * size, "{curl}");
    }

    #[test]
    fn a_random_world_has_the_standard_deviation_of_its_options() {
        for (seed, target) in [(1, 2.0), (2, 10.0), (3, 30.0), (4, 0.0)] {
            let options = DipoleOptions { standard_deviation: target, ..Default::default() };
            let world = DipoleWorld::random(&options, seed).unwrap();
            // Another lattice than the one the world was scaled on.
            let strengths: Vec<f64> = (0..60 * 60)
                .map(|i| {
                    world.strength_at(&Point3::new(0.1 * (i % 60) as f64 + 0.05, 0.1 * (i / 60) as f64 + 0.05, 0.0))
                })
                .collect();
            let found = DVector::from_vec(strengths).variance().sqrt();
            // Two lattices agree to a few per cent of each other; the last term is rounding.
            assert!((found - target).abs() <= 0.02 * target + 1e-9, "asked for {target}, got {found}");
        }
    }

    #[test]
    fn no_dipole_is_in_the_room() {
        let options = DipoleOptions { under: 200, beside: 200, ..Default::default() };
        let world = DipoleWorld::random(&options, 7).unwrap();
        assert_eq!(world.dipoles.len(), 400);
        for Dipole { position, .. } in &world.dipoles {
            let beyond = |value: f64, side: f64| (-value).max(value - side);
            let distance = beyond(position.x, 6.0).max(beyond(position.y, 6.0)).max(-position.z);
            assert!((0.4..=1.5).contains(&distance), "{position}");
        }
    }

    #[test]
    fn dipoles_above_are_above_the_ceiling_and_the_deviation_is_that_at_the_sensors_height() {
        let (under, beside, above) = (0, 0, 40);
        let options = DipoleOptions { under, beside, above, height: 1.3, ..Default::default() };
        let world = DipoleWorld::random(&options, 7).unwrap();
        assert_eq!(world.dipoles.len(), 40);
        assert!(world.dipoles.iter().all(|dipole| (2.9..=4.0).contains(&dipole.position.z)));
        let strengths = (0..900).map(|i| {
            let [x, y] = [i % 30, i / 30].map(|index| 0.2 * f64::from(index) + 0.1);
            world.strength_at(&Point3::new(x, y, 1.3))
        });
        let found = DVector::from_iterator(900, strengths).variance().sqrt();
        // As on the floor.
        assert!((found - 10.0).abs() <= 0.2, "{found}");
    }

    #[test]
    fn a_world_is_a_function_of_its_seed() {
        let options = DipoleOptions::default();
        let world = DipoleWorld::random(&options, 1).unwrap();
        assert_eq!(world, DipoleWorld::random(&options, 1).unwrap());
        assert_ne!(world, DipoleWorld::random(&options, 2).unwrap());
    }

    #[test]
    fn impossible_worlds_are_errors() {
        let error = |options: DipoleOptions| DipoleWorld::random(&options, 0).unwrap_err().to_string();
        let nothing = error(DipoleOptions { under: 0, beside: 0, ..Default::default() });
        assert!(nothing.contains("at least one dipole"), "{nothing}");
        let inside = error(DipoleOptions { distance: [0.0, 1.0], ..Default::default() });
        assert!(inside.contains("`distance`") && inside.contains("[0.0, 1.0]"), "{inside}");
        let flat = error(DipoleOptions { size: [6.0, f64::NAN], ..Default::default() });
        assert!(flat.contains("`size, y`"), "{flat}");
    }
}
