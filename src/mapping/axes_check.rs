//! Whether the axes of the readings agree with the physics of a magnetic field: once, over the first metres of a run.
//!
//! Above its sources a field has neither curl nor divergence. Readings whose axes were turned wrongly break that, and are mapped with great
//! confidence all the same. So the exact log evidence of the model of the three axes over the readings as they came is compared with that
//! under alternatives: the sensor turned on the robot, its axes exchanged, other headings. The covariance of the field at the readings is
//! the same for all of them, so that one factorization serves every alternative. It is taken up to a factor, and under several shares of
//! noise: what is compared is the shape of the field, not how strongly it varies.
//!
//! Sources above look like sources below to a sensor that is turned by half a turn about the vertical or, since a field
//! and its opposite are equally probable, has its z axis reversed: neither contradicts anything. So every orientation is
//! compared with all sources below, with as many above, with as many beside as well, and, as half a turn more, with all
//! above. Without those beside, next to a wall of steel the sensor would fit better if it were turned so that the wall is
//! the floor. Heights are left out.

use std::collections::VecDeque;

use nalgebra::{Isometry3, Matrix3, Point3, Rotation3, Vector2, Vector3};
use streaming_gp::{Matrix, VectorField};

use crate::config::{Config, Mapped};
use crate::field::engine;
use crate::field::exact_evidence::{ExactEvidence, add_sources_beside, axes_in_plane, covariance, factorized, kernels};
use crate::sensing::reading::Observation;

/// Least distance between readings that are compared, in metres: half a cell less than ten centimetres.
const SPACING: f64 = 0.09;

/// Path over which the readings are compared, in metres. It must have turned: along a straight line sources beside it look like wrong axes.
const DUE: f64 = 18.0;

/// Most readings that are compared, the newest.
const MOST: usize = 200;

/// Mean length of the directions of a path that has turned: that of two halves at 50 degrees to each other.
const TURNED: f64 = 0.9;

/// How much greater the log evidence of an alternative must be, in nats.
///
/// On the nine Aalto drives, as they are, in 384 drives through simulated rooms with steel below, above, beside and on all sides, and in 128
/// through corridors and rooms next to walls of steel, no alternative is better by more than 20; after half the path, one was by 110. In the
/// 32 of those that have headings, a sensor turned by 90 degrees about x leads by 318 or more, one about the vertical by 45 in 21.
const LEAST_LEAD: f64 = 45.0;

/// Alternatives that differ by less are equally good, in nats.
const SIMILAR: f64 = 15.0;

/// Yaws of the mount up to this are for `magmap calibrate`, and no contradiction, in degrees; a multiple of the step.
const TOLERATED: i32 = 15;
const STEP: i32 = 5;

/// Distances of the sources, over that of the initial lengthscale. Where all steel is far away, the field is smoother than near it, and what
/// is left of it under too short a length could be explained by any axes.
const FARTHER: [f64; 2] = [1.0, 3.0];

/// The shares of noise: its variance, in microtesla squared, beside the initial value of the field's.
const NOISES: [f64; 3] = [1.0, 4.0, 16.0];

/// Prior standard deviation of each component of the hard iron, in microtesla, and of the bias that grows with the
/// speed, in microtesla per metre per second: nothing is known of either.
const BIAS: f64 = 30.0;

/// How much greater the log evidence with a bias that grows with the speed must be, in nats, and how large its standard
/// deviation along the drive, in microtesla. On the Aalto drives: up to 7, and 0.6.
const LEAST_SPEED_LEAD: f64 = 20.0;
const LEAST_SPEED_EFFECT: f64 = 1.0;

/// The columns of a reading: the nine products of an axis of the body in the map's frame with an axis of the reading, the axes of the body,
/// and those times the speed.
const AXES: usize = 9;
const SPEEDS: usize = 12;
const COLUMNS: usize = 15;

/// Compares the readings of the first metres.
#[derive(Clone, Debug)]
pub(super) struct AxesCheck {
    /// Models of the field, each with near and with far sources.
    models: Vec<Model>,
    checks_speed: bool,
    readings: VecDeque<BodyReading>,
    travelled: f64,
    is_done: bool,
}

/// Where sources are.
#[derive(Clone, Debug)]
struct Model {
    kernel: VectorField,
    /// Whether there are as many beside the readings.
    is_beside: bool,
}

/// A reading along the axes of the robot's body.
#[derive(Clone, Copy, Debug)]
struct BodyReading {
    position: Point3<f64>,
    /// Rotation from the body's frame to the map's.
    body: Rotation3<f64>,
    field: Vector3<f64>,
    speed: f64,
}

/// The source of the robot's orientation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heading {
    /// Odometry.
    Odometry,
    /// Odometry, with the opposite sign.
    Reversed,
    /// The direction of the path.
    Path,
    /// A constant orientation.
    Fixed,
}

/// An alternative to the readings as they came.
#[derive(Clone, Copy, Debug)]
struct Alternative {
    heading: Heading,
    /// Turns what is taken for the body's frame into the one that fits.
    turn: Matrix3<f64>,
    /// How much greater its log evidence is, in nats.
    lead: f64,
}

impl AxesCheck {
    /// A check of a map of this quantity that has seen nothing; none unless that is the three axes.
    pub(super) fn new(config: &Config, field: Mapped) -> Option<Self> {
        (field == Mapped::Vector).then(|| Self::of(config))
    }

    fn of(config: &Config) -> Self {
        let with_and_without = |kernel: VectorField| {
            let beside = kernel.variance_above.map(|_| Model { kernel: kernel.clone(), is_beside: true });
            [Some(Model { kernel, is_beside: false }), beside]
        };
        let models = kernels(&engine::vector_model(config).kernel, &FARTHER).into_iter().flat_map(with_and_without);
        // A path that drifts looks like a bias that grows with the speed, until it is corrected.
        let checks_speed = config.vector.speed_bias == 0.0 && !config.corrects_path();
        Self {
            models: models.flatten().collect(),
            checks_speed,
            readings: VecDeque::new(),
            travelled: 0.0,
            is_done: false,
        }
    }

    /// Whether the newest of these observations of a sensor at `mount` agree with the physics, or in words how they contradict it; none
    /// where the path is too short or has not turned.
    pub(super) fn judge<'a>(
        config: &Config,
        observations: impl Iterator<Item = &'a Observation>,
        mount: &Isometry3<f64>,
    ) -> Option<Result<(), String>> {
        let mut check = Self::of(config);
        observations.for_each(|observation| check.push(observation, mount));
        let is_ready = check.travelled >= DUE && check.has_turned();
        let contradiction = || check.contradiction().map(|found| found.in_words(DUE, check.heading_changes()));
        is_ready.then(|| contradiction().map_or(Ok(()), Err))
    }

    /// Takes the next observations of a sensor at `mount`. Returns in words, once, how the readings contradict the
    /// physics, or that a bias grows with the speed.
    pub(super) fn add(&mut self, observations: &[Observation], mount: &Isometry3<f64>) -> Option<String> {
        for observation in observations {
            if self.is_done {
                break;
            }
            self.push(observation, mount);
            if self.travelled < DUE || !self.has_turned() {
                continue;
            }
            let contradiction = self.contradiction().map(|found| found.in_words(DUE, self.heading_changes()));
            let found = contradiction.or_else(|| self.speed_bias());
            (self.is_done, self.readings) = (true, VecDeque::new());
            return found;
        }
        None
    }

    fn push(&mut self, observation: &Observation, mount: &Isometry3<f64>) {
        // The rotations of a robot that turns on the spot have no mean.
        let is_turning = observation.orientation.determinant() < 0.9;
        let distance = self.readings.back().map(|last| (observation.position - last.position).norm());
        if is_turning || distance.is_some_and(|distance| distance < SPACING) {
            return;
        }
        self.travelled += distance.unwrap_or(0.0);
        if self.readings.len() == MOST {
            self.readings.pop_front();
        }
        let to_body = mount.rotation.inverse().to_rotation_matrix();
        let body = Rotation3::from_matrix(&(observation.orientation * to_body.matrix()));
        let Observation { position, speed, .. } = *observation;
        self.readings.push_back(BodyReading {
            position,
            body,
            field: body.inverse() * observation.field.microtesla(),
            speed,
        });
    }

    fn has_turned(&self) -> bool {
        resultant((0..self.readings.len()).map(|index| self.direction(index))) < TURNED
    }

    /// Whether the heading of odometry changes by more than a few degrees.
    fn heading_changes(&self) -> bool {
        resultant(self.readings.iter().map(|reading| yaw(&reading.body))) < 0.995
    }

    /// The direction of the path at a reading.
    fn direction(&self, index: usize) -> f64 {
        let (before, after) = (index.saturating_sub(2), (index + 2).min(self.readings.len() - 1));
        let along = self.readings[after].position - self.readings[before].position;
        along.y.atan2(along.x)
    }

    /// An alternative that fits better than the readings as they came, without sources beside them as well as with them: those cost most
    /// of the time, and are asked only about an alternative that leads without them.
    fn contradiction(&self) -> Option<Alternative> {
        let without = self.models.iter().filter(|model| !model.is_beside);
        self.leading_alternative(&without.cloned().collect::<Vec<_>>())
            .and_then(|_| self.leading_alternative(&self.models))
    }

    /// An alternative that fits better than the readings as they came under these models by a clear margin: of those that are nearly as
    /// good as the best, the one that changes least.
    fn leading_alternative(&self, models: &[Model]) -> Option<Alternative> {
        let turns = turns();
        let log_evidences = |evidences: Vec<ExactEvidence>| {
            let mut best = vec![f64::NEG_INFINITY; turns.len()];
            for evidence in evidences {
                for (best, turn) in best.iter_mut().zip(&turns) {
                    let values = on_either_side(turn).map(|turn| evidence.scaled_at(turn.transpose().as_slice()));
                    *best = values.into_iter().fold(*best, f64::max);
                }
            }
            best
        };
        let headings = [Heading::Odometry, Heading::Reversed, Heading::Fixed, Heading::Path];
        let [as_it_came, others @ ..] = self.evidences(headings, models)?.map(log_evidences);
        let best_of = |values: &[f64], is_allowed: &dyn Fn(&Matrix3<f64>) -> bool| {
            let values = values.iter().copied().zip(&turns).filter(|(_, turn)| is_allowed(turn));
            values.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(value, turn)| (value, *turn))
        };
        let (reference, _) = best_of(&as_it_came, &is_tolerated)?;
        let alternative = |heading, (value, turn)| Alternative { heading, turn, lead: value - reference };
        let turned = alternative(Heading::Odometry, best_of(&as_it_came, &|turn| !is_tolerated(turn))?);
        let others = headings[1..].iter().zip(&others);
        let others = others.filter_map(|(heading, values)| Some(alternative(*heading, best_of(values, &|_| true)?)));
        let alternatives: Vec<Alternative> = std::iter::once(turned).chain(others).collect();
        let best = alternatives.iter().map(|alternative| alternative.lead).fold(f64::NEG_INFINITY, f64::max);
        let is_clear = |alternative: &Alternative| alternative.lead >= LEAST_LEAD.max(best - SIMILAR);
        alternatives.into_iter().find(is_clear)
    }

    /// A bias that grows with the speed, in words, where the readings tell one.
    fn speed_bias(&self) -> Option<String> {
        if !self.checks_speed {
            return None;
        }
        let (mut without, mut with, mut bias) = (f64::NEG_INFINITY, f64::NEG_INFINITY, Vector3::zeros());
        let [evidences] = self.evidences([Heading::Odometry], &self.models)?;
        for evidence in evidences {
            let biased = evidence.marginalized(SPEEDS, BIAS.powi(2))?;
            for turn in on_either_side(&Matrix3::identity()) {
                let (weights, value) = (turn.as_slice(), biased.scaled_at(turn.as_slice()));
                without = evidence.scaled_at(weights).max(without);
                if value > with {
                    (with, bias) = (value, evidence.coefficients(SPEEDS, weights, BIAS.powi(2))?.mean);
                }
            }
        }
        let speeds = || self.readings.iter().map(|reading| reading.speed);
        let count = self.readings.len() as f64;
        let mean = speeds().sum::<f64>() / count;
        let deviation = (speeds().map(|speed| (speed - mean).powi(2)).sum::<f64>() / count).sqrt();
        let size = bias.norm();
        let is_clear = with - without >= LEAST_SPEED_LEAD && size * deviation >= LEAST_SPEED_EFFECT;
        is_clear.then(|| {
            format!(
                "the readings follow the speed of the robot, by about {size:.0} microtesla per metre per second; set \
                 vector.speed_bias to {size:.0} to learn it"
            )
        })
    }

    /// The evidence with each of these headings under each of these models and share of noise; none where the arithmetic breaks down.
    fn evidences<const N: usize>(&self, headings: [Heading; N], models: &[Model]) -> Option<[Vec<ExactEvidence>; N]> {
        let positions: Vec<Point3<f64>> = self.readings.iter().map(|reading| reading.position).collect();
        let places = axes_in_plane(positions.iter().copied());
        let columns = headings.map(|heading| self.columns(heading));
        let mut evidences = [(); N].map(|()| Vec::new());
        for Model { kernel, is_beside } in models {
            let mut covariance = covariance(&places, kernel);
            if *is_beside {
                add_sources_beside(&positions, kernel, &mut covariance);
            }
            for noise in NOISES {
                let factor = factorized(covariance.clone(), noise).ok()?;
                for (evidences, columns) in evidences.iter_mut().zip(&columns) {
                    let of_field = ExactEvidence::new(&factor, columns.clone());
                    evidences.push(of_field.marginalized(AXES, BIAS.powi(2))?);
                }
            }
        }
        Some(evidences)
    }

    /// The columns with this heading, three rows for each reading.
    fn columns(&self, heading: Heading) -> Matrix {
        let bodies = self.bodies(heading);
        Matrix::from_fn(3 * bodies.len(), COLUMNS, |row, column| {
            let (BodyReading { field, speed, .. }, body) = (&self.readings[row / 3], bodies[row / 3].matrix());
            match column {
                0..AXES => body[(row % 3, column / 3)] * field[column % 3],
                AXES..SPEEDS => body[(row % 3, column - AXES)],
                _ => body[(row % 3, column - SPEEDS)] * speed,
            }
        })
    }

    fn bodies(&self, heading: Heading) -> Vec<Rotation3<f64>> {
        let about_vertical = |angle: f64| Rotation3::from_axis_angle(&Vector3::z_axis(), angle);
        let body = |(index, reading): (usize, &BodyReading)| {
            let heading = match heading {
                Heading::Odometry => return reading.body,
                Heading::Reversed => -yaw(&reading.body),
                Heading::Path => self.direction(index),
                Heading::Fixed => 0.0,
            };
            about_vertical(heading - yaw(&reading.body)) * reading.body
        };
        self.readings.iter().enumerate().map(body).collect()
    }
}

/// Length of the mean of unit vectors with these directions.
fn resultant(directions: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = directions.len() as f64;
    let sum = directions.fold(Vector2::zeros(), |sum, angle| sum + Vector2::new(angle.cos(), angle.sin()));
    sum.norm() / count
}

/// The heading of a body.
fn yaw(body: &Rotation3<f64>) -> f64 {
    body.euler_angles().2
}

/// The orientations of the sensor that are tried: each of its six directions up, and the yaws of half a turn.
fn turns() -> Vec<Matrix3<f64>> {
    let quarter = std::f64::consts::FRAC_PI_2;
    let up = [
        Rotation3::identity(),
        Rotation3::from_euler_angles(2.0 * quarter, 0.0, 0.0),
        Rotation3::from_euler_angles(quarter, 0.0, 0.0),
        Rotation3::from_euler_angles(-quarter, 0.0, 0.0),
        Rotation3::from_euler_angles(0.0, quarter, 0.0),
        Rotation3::from_euler_angles(0.0, -quarter, 0.0),
    ];
    let yaws = (-90 / STEP + 1..=90 / STEP).map(|step| f64::from(STEP * step).to_radians());
    let turned = |yaw: f64| up.map(|up| *(Rotation3::from_axis_angle(&Vector3::z_axis(), yaw) * up).matrix());
    yaws.flat_map(turned).collect()
}

/// An orientation, and the one to which sources above look like those below to this one.
fn on_either_side(turn: &Matrix3<f64>) -> [Matrix3<f64>; 2] {
    [*turn, Matrix3::from_diagonal(&Vector3::new(-1.0, -1.0, 1.0)) * turn]
}

/// Whether an orientation is the recorded one, or nearly.
fn is_tolerated(turn: &Matrix3<f64>) -> bool {
    upright_yaw(turn).is_some_and(|degrees| degrees.abs() <= f64::from(TOLERATED) + 0.1)
}

/// The yaw of an orientation with the z axis up, in degrees.
fn upright_yaw(turn: &Matrix3<f64>) -> Option<f64> {
    (turn[(2, 2)] > 0.9).then(|| turn[(1, 0)].atan2(turn[(0, 0)]).to_degrees())
}

/// For the end of a sentence on how the sensor is turned.
const REMEDY: &str = "; check the transform to the sensor's frame, or sensor.orientation. Half a turn about the vertical, and a \
                      reversed z axis, look like steel on the other side of the sensor and cannot be told";

impl Alternative {
    /// A description of the measurement and of what would explain it: nothing is known of the cause.
    fn in_words(&self, path: f64, heading_changes: bool) -> String {
        let heading = match self.heading {
            Heading::Odometry => None,
            Heading::Reversed => Some("the heading of the odometry, or the y axis of its positions, were reversed"),
            Heading::Fixed => Some("they did not turn with the robot"),
            Heading::Path if heading_changes => Some("the heading were that of the path, not that of the odometry"),
            Heading::Path => Some("the heading were that of the path: the orientation in the odometry does not change"),
        };
        // Readings that do not turn with the robot say nothing of how the sensor is turned on it.
        let is_turned = self.heading != Heading::Fixed && !is_tolerated(&self.turn);
        let turn = is_turned.then(|| in_words(&self.turn));
        let remedy = if is_turned { REMEDY } else { "" };
        let explanations: Vec<String> = turn.into_iter().chain(heading.map(str::to_owned)).collect();
        let (lead, explanations) = (self.lead, explanations.join(", and if "));
        format!(
            "the axes of the readings contradict the physics of a magnetic field: over {path:.0} m they would fit better by \
             {lead:.0} nats if {explanations}{remedy}"
        )
    }
}

/// An orientation of the sensor in words.
fn in_words(turn: &Matrix3<f64>) -> String {
    if let Some(degrees) = upright_yaw(turn) {
        let and_half_a_turn = if degrees > 0.0 { degrees - 180.0 } else { degrees + 180.0 };
        return format!(
            "the sensor were turned by {degrees:.0} or {and_half_a_turn:.0} degrees about the vertical of the robot"
        );
    }
    // The sign of z, and a sign that x and y share, cannot be told: the fewest are named.
    let (_, axis) = turn.row(0).iamax_full();
    let sign = turn[(0, axis)].signum();
    let name = |row: usize| {
        let (_, axis) = turn.row(row).iamax_full();
        let is_negative = row == 1 && turn[(row, axis)] * sign < 0.0;
        format!("{}{}", if is_negative { "-" } else { "" }, ["x", "y", "z"][axis])
    };
    let names = [0, 1, 2].map(name).join(", ");
    format!("the robot's axes x, y, z were about {names} of the readings")
}
