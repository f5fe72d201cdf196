//! The path of a simulated robot: straight lines joined by arcs, so that its heading is continuous.

use std::f64::consts::PI;

use nalgebra::{Point2, Vector2};
use rand::{Rng, RngExt};

use super::{Error, Stream, check, generator, positive, wrapped};

/// The route of a robot through a room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Route {
    /// Along the walls, lap after lap.
    Rectangle,
    /// Up and down in parallel lanes, then across them, and so on.
    LawnMower {
        /// Distance between lanes, in metres; slightly less where the lanes would not fill the room evenly.
        spacing: f64,
    },
    /// From one random place to the next.
    Random,
    /// Along the walls once, then to some random places, and so on: no part of the room is left out for long.
    Patrol,
    /// Along a corridor in the middle, with a round through each of the rooms on either side, and so on.
    Rooms {
        /// Width of a room along the corridor, in metres; slightly more where they would not fill its length evenly.
        width: f64,
    },
}

impl Route {
    /// Length of the whole route through the room from (0, 0) to `size`, in metres: a lap, all lanes in both directions, or all rooms; none
    /// where it has no end.
    ///
    /// # Errors
    /// Lengths that are not above zero.
    pub fn length(self, size: [f64; 2]) -> Result<Option<f64>, Error> {
        let rounds = match self {
            Self::Rectangle | Self::Rooms { .. } => 1,
            Self::LawnMower { .. } => 2,
            Self::Random | Self::Patrol => return Ok(None),
        };
        let mut waypoints = Vec::new();
        // None of these depends on chance.
        let mut round = self.rounds(size, 0)?;
        (0..rounds).for_each(|_| round(&mut waypoints));
        if self == Self::Rectangle {
            waypoints.push(waypoints[0]);
        }
        Ok(Some(Path::through(&waypoints, TURNING_RADIUS)?.length))
    }

    /// Adds a round, which is one of several that may differ, to the waypoints.
    fn rounds(self, size: [f64; 2], seed: u64) -> Result<Round, Error> {
        positive("size, x", size[0])?;
        positive("size, y", size[1])?;
        let (room, mut random) = (Room::within_margin(size), generator(seed, Stream::Path));
        Ok(match self {
            Self::Rectangle => Box::new(move |waypoints| waypoints.extend(room.corners())),
            Self::LawnMower { spacing } => {
                positive("lane spacing", spacing)?;
                room.lanes(spacing)
            }
            Self::Rooms { width } => {
                positive("width of a room", width)?;
                Box::new(move |waypoints| room.add_rooms(width, waypoints))
            }
            Self::Random => Box::new(move |waypoints| room.add_random_place(waypoints, &mut random)),
            Self::Patrol => Box::new(move |waypoints| {
                room.add_lap(waypoints);
                (0..PATROLLED_PLACES).for_each(|_| room.add_random_place(waypoints, &mut random));
            }),
        })
    }
}

/// Appends the waypoints of the next round.
type Round = Box<dyn FnMut(&mut Vec<Point2<f64>>)>;

/// Distance to the walls, in metres (in small rooms a tenth of the side).
const MARGIN: f64 = 0.4;

/// Radius of the turns, in metres, where the lines are long enough.
const TURNING_RADIUS: f64 = 0.4;

/// Number of random places between two laps of a patrol.
const PATROLLED_PLACES: usize = 20;

/// The sharpest turn towards a random place, in radians, as far as the room allows.
const SHARPEST: f64 = 2.0 * PI / 3.0;

/// Radius of the tightest turn, in metres: with less, the robot would turn on the spot.
const LEAST_RADIUS: f64 = 1e-3;

/// A smooth path in the plane, measured along its length.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pieces: Vec<Piece>,
    length: f64,
}

/// A piece of constant curvature: a line or an arc.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    /// Distance of its start along the path, in metres.
    start: f64,
    position: Point2<f64>,
    /// Counterclockwise from the x axis, in radians.
    heading: f64,
    /// Left turns are positive, in radians per metre.
    curvature: f64,
}

impl Piece {
    fn at(&self, distance: f64) -> (Point2<f64>, f64) {
        let along = distance - self.start;
        let turned = self.curvature * along;
        // The chord: shorter than the arc by sin(a)/a, in the direction half-way through the turn.
        let half = 0.5 * turned;
        let shortening = if half.abs() < 1e-6 { 1.0 } else { half.sin() / half };
        (self.position + towards(self.heading + half) * (along * shortening), self.heading + turned)
    }
}

fn towards(heading: f64) -> Vector2<f64> {
    Vector2::new(heading.cos(), heading.sin())
}

impl Path {
    /// A path of `length` metres on a route through the room from (0, 0) to `size`. [`Route::Random`] and [`Route::Patrol`] depend on
    /// the seed.
    ///
    /// # Errors
    /// Lengths that are not above zero.
    pub fn through_room(route: Route, size: [f64; 2], length: f64, seed: u64) -> Result<Self, Error> {
        positive("path length", length)?;
        let waypoints = enough(length, route.rounds(size, seed)?);
        let mut path = Self::through(&waypoints, TURNING_RADIUS)?;
        path.length = path.length.min(length);
        Ok(path)
    }

    /// The path along straight lines from one waypoint to the next (metres). Corners are rounded with `radius` or, where that takes
    /// more than half of a line, with the largest radius that does not.
    ///
    /// # Errors
    /// A path that turns back on itself, and fewer than two places.
    pub fn through(waypoints: &[Point2<f64>], radius: f64) -> Result<Self, Error> {
        positive("turning radius", radius)?;
        let mut corners = waypoints.to_vec();
        corners.dedup_by(|a, b| (*a - *b).norm() < 1e-9);
        check("waypoints", corners.len() >= 2, "two different places or more", corners.len())?;

        let mut path = Self { pieces: Vec::new(), length: 0.0 };
        let mut position = corners[0];
        for (i, pair) in corners.windows(2).enumerate() {
            let (heading, turn) = match corners.get(i + 2) {
                Some(next) => corner(pair[0], pair[1], *next, radius)?,
                None => (heading_of(pair[1] - pair[0]), None),
            };
            let cut = turn.as_ref().map_or(0.0, |turn| turn.cut);
            let end = pair[1] - towards(heading) * cut;
            path.push(position, heading, 0.0, (end - position).norm());
            position = end;
            if let Some(Turn { angle, radius, .. }) = turn {
                path.push(end, heading, angle.signum() / radius, angle.abs() * radius);
                position = path.at(path.length).0;
            }
        }
        Ok(path)
    }

    fn push(&mut self, position: Point2<f64>, heading: f64, curvature: f64, length: f64) {
        self.pieces.push(Piece { start: self.length, position, heading, curvature });
        self.length += length;
    }

    /// Length of the path, in metres.
    pub fn length(&self) -> f64 {
        self.length
    }

    /// Position and heading (radians, counterclockwise from the x axis, not wrapped) after `distance` metres, which is clamped to the
    /// path.
    pub fn at(&self, distance: f64) -> (Point2<f64>, f64) {
        let distance = distance.clamp(0.0, self.length);
        let next = self.pieces.partition_point(|piece| piece.start <= distance);
        self.pieces[next.max(1) - 1].at(distance)
    }
}

/// A rounded corner.
struct Turn {
    /// In radians; left turns are positive.
    angle: f64,
    radius: f64,
    /// Length of either line that the arc replaces.
    cut: f64,
}

/// The heading towards a corner, and its turn unless the path continues straight.
fn corner(
    before: Point2<f64>,
    corner: Point2<f64>,
    after: Point2<f64>,
    radius: f64,
) -> Result<(f64, Option<Turn>), Error> {
    let (incoming, outgoing) = (corner - before, after - corner);
    let heading = heading_of(incoming);
    let angle = wrapped(heading_of(outgoing) - heading);
    if angle.abs() < 1e-9 {
        return Ok((heading, None));
    }
    let half_tangent = (0.5 * angle.abs()).tan();
    let cut = (radius * half_tangent).min(0.5 * incoming.norm().min(outgoing.norm()));
    let radius = cut / half_tangent;
    check("waypoints", radius >= LEAST_RADIUS, "no turn straight back", corner)?;
    Ok((heading, Some(Turn { angle, radius, cut })))
}

fn heading_of(direction: Vector2<f64>) -> f64 {
    direction.y.atan2(direction.x)
}

/// The part of the room where the robot drives.
struct Room {
    low: [f64; 2],
    high: [f64; 2],
}

impl Room {
    fn within_margin(size: [f64; 2]) -> Self {
        let margin = size.map(|side| MARGIN.min(0.1 * side));
        Self { low: margin, high: [size[0] - margin[0], size[1] - margin[1]] }
    }

    fn corners(&self) -> [Point2<f64>; 4] {
        let ([left, bottom], [right, top]) = (self.low, self.high);
        [[left, bottom], [right, bottom], [right, top], [left, top]].map(Point2::from)
    }

    /// All lanes in one direction, then in the other, and so on.
    fn lanes(self, spacing: f64) -> Round {
        // The side of the room on which the robot is, along either axis.
        let mut at_high = [false; 2];
        let mut along = 0;
        Box::new(move |waypoints| {
            let across = 1 - along;
            let gaps = ((self.high[across] - self.low[across]) / spacing).ceil();
            for lane in 0..=gaps as usize {
                let share = lane as f64 / gaps;
                let share = if at_high[across] { 1.0 - share } else { share };
                for end in [at_high[along], !at_high[along]] {
                    let mut waypoint = Point2::origin();
                    waypoint[along] = if end { self.high[along] } else { self.low[along] };
                    waypoint[across] = self.low[across] + share * (self.high[across] - self.low[across]);
                    waypoints.push(waypoint);
                }
                at_high[along] = !at_high[along];
            }
            at_high[across] = !at_high[across];
            along = across;
        })
    }

    /// Along the corridor, with a lap through the room on the left and on the right of each door, and back.
    fn add_rooms(&self, width: f64, waypoints: &mut Vec<Point2<f64>>) {
        let ([left, bottom], [right, top]) = (self.low, self.high);
        let middle = 0.5 * (bottom + top);
        // Half the width of the corridor, beyond which rooms begin.
        let half = MARGIN.min(0.1 * (top - bottom));
        let number = ((right - left) / width).floor().max(1.0);
        let width = (right - left) / number;
        for room in 0..number as usize {
            let door = left + (room as f64 + 0.5) * width;
            let side = 0.5 * width - MARGIN.min(0.1 * width);
            for end in [top, bottom] {
                let near = if end > middle { middle + 2.0 * half } else { middle - 2.0 * half };
                let lap = [
                    [door, middle],
                    [door, near],
                    [door + side, near],
                    [door + side, end],
                    [door - side, end],
                    [door - side, near],
                    [door, near],
                ];
                waypoints.extend(lap.map(Point2::from));
            }
            waypoints.push(Point2::new(door, middle));
        }
        let back = [[right, middle], [right, middle - half], [left, middle - half], [left, middle]];
        waypoints.extend(back.map(Point2::from));
    }

    /// Adds a random place, far enough from the last and without a sharp turn, as far as the room allows.
    fn add_random_place(&self, waypoints: &mut Vec<Point2<f64>>, random: &mut impl Rng) {
        const CANDIDATES: usize = 30;
        let nearest = 0.25 * (self.high[0] - self.low[0]).hypot(self.high[1] - self.low[1]);
        let mut place = || -> Point2<f64> {
            Point2::new(random.random_range(self.low[0]..self.high[0]), random.random_range(self.low[1]..self.high[1]))
        };
        if waypoints.is_empty() {
            waypoints.push(place());
        }
        let last = waypoints[waypoints.len() - 1];
        let turn = |next: &Point2<f64>| turn_at_end(waypoints, *next);
        let mut best: Option<Point2<f64>> = None;
        for _ in 0..CANDIDATES {
            let next = place();
            let far = (next - last).norm() >= nearest;
            if far && best.is_none_or(|best| turn(&next) < turn(&best)) {
                best = Some(next);
            }
            if best.is_some_and(|best| turn(&best) <= SHARPEST) {
                break;
            }
        }
        waypoints.extend(best);
    }

    /// Adds a lap from corner to corner and back to the first one, of all laps the one that begins with the least turns.
    fn add_lap(&self, waypoints: &mut Vec<Point2<f64>>) {
        let corners = self.corners();
        let laps = (0..8).map(|lap| {
            let corner = |step: usize| corners[if lap < 4 { lap + step } else { lap + 4 - step } % 4];
            [0, 1, 2, 3, 4].map(corner)
        });
        let sharpest = |lap: &[Point2<f64>; 5]| {
            let begin = waypoints.last().map_or(0.0, |last| turn_at_end(&[*last, lap[0]], lap[1]));
            turn_at_end(waypoints, lap[0]).max(begin)
        };
        let lap = laps.reduce(|best, lap| if sharpest(&lap) < sharpest(&best) { lap } else { best });
        waypoints.extend(lap.into_iter().flatten());
    }
}

/// The turn at the last of these towards `next`, in radians; 0 with fewer than two.
fn turn_at_end(waypoints: &[Point2<f64>], next: Point2<f64>) -> f64 {
    match waypoints {
        [.., before, last] => wrapped(heading_of(next - last) - heading_of(last - before)).abs(),
        _ => 0.0,
    }
}

/// Calls `extend` until the lines between the waypoints have at least `length` after rounding their corners.
fn enough(length: f64, mut extend: impl FnMut(&mut Vec<Point2<f64>>)) -> Vec<Point2<f64>> {
    // Rounding a right angle saves a fifth of what it replaces, a sharp turn most of it but at most half of either line.
    const SPARE: f64 = 2.0;
    let mut waypoints: Vec<Point2<f64>> = Vec::new();
    let (mut measured, mut counted) = (0.0, 1);
    while measured < SPARE * length {
        extend(&mut waypoints);
        for i in counted..waypoints.len() {
            measured += (waypoints[i] - waypoints[i - 1]).norm();
        }
        counted = waypoints.len().max(1);
    }
    // One more line, so that the last corner is rounded as well.
    extend(&mut waypoints);
    waypoints
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: [Route; 5] = [
        Route::Rectangle,
        Route::LawnMower { spacing: 0.7 },
        Route::Random,
        Route::Patrol,
        Route::Rooms { width: 2.5 },
    ];

    #[test]
    fn a_whole_route_ends_when_it_has_been_everywhere() {
        // 5 lanes of 5.2 m, 8 of 3.2 m, and from the first to the last of either: 60 m; each of 25 rounded corners saves up to 0.17 m.
        let size = [6.0, 4.0];
        let length = |route: Route| route.length(size).unwrap();
        let lanes = length(Route::LawnMower { spacing: 0.8 }).unwrap();
        let lap = length(Route::Rectangle).unwrap();
        assert!((55.0..60.0).contains(&lanes), "{lanes}");
        assert!((16.0..16.8).contains(&lap), "{lap}");
        assert_eq!((length(Route::Random), length(Route::Patrol)), (None, None));
        let route = Route::Rooms { width: 2.5 };
        let path = Path::through_room(route, size, length(route).unwrap(), 3).unwrap();
        // Two doors, with a room on either side of each.
        for corner in [[0.6, 3.5], [2.8, 3.5], [3.2, 0.5], [5.4, 0.5]] {
            let distance = |step: usize| (path.at(0.01 * step as f64).0 - Point2::from(corner)).norm();
            assert!((0..(100.0 * path.length()) as usize).any(|step| distance(step) < 0.6), "{corner:?}");
        }
        assert!(Route::LawnMower { spacing: 0.0 }.length(size).is_err());
    }

    #[test]
    fn position_moves_along_the_heading_and_both_are_continuous() {
        for route in ROUTES {
            let path = Path::through_room(route, [6.0, 4.0], 120.0, 3).unwrap();
            let step = 1e-3;
            for i in 0..119_000 {
                let distance = f64::from(i) * step;
                let (position, heading) = path.at(distance);
                let (next, next_heading) = path.at(distance + step);
                let (_, middle_heading) = path.at(distance + step / 2.0);
                let turned = wrapped(next_heading - heading).abs();
                assert!(turned < 0.2, "{route:?} turns by {turned} at {distance}");
                // On one arc exact; across a joint the chord is off by less than the turn, or where an arc follows one to the other side, by
                // less than the turn of half a step on the tightest of them.
                let error = ((next - position) / step - towards(middle_heading)).norm();
                assert!(error <= turned + 0.5 * step / 0.3, "{route:?} at {distance}: {error}");
            }
        }
    }

    #[test]
    fn paths_have_their_length_and_stay_in_the_room() {
        for route in ROUTES {
            for (size, length) in [([6.0, 4.0], 90.0), ([1.0, 1.0], 30.0), ([30.0, 2.0], 200.0), ([6.0, 6.0], 0.5)] {
                let path = Path::through_room(route, size, length, 8).unwrap();
                assert!((path.length() - length).abs() < 1e-9, "{route:?} {size:?}: {}", path.length());
                for i in 0..1000 {
                    let (position, _) = path.at(length * f64::from(i) / 1000.0);
                    let inside = |value: f64, side: f64| (0.0..=side).contains(&value);
                    assert!(
                        inside(position.x, size[0]) && inside(position.y, size[1]),
                        "{route:?} {size:?}: {position}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_right_angle_is_rounded_with_the_radius() {
        let corners = [[0.0, 0.0], [2.0, 0.0], [2.0, 2.0]].map(Point2::from);
        let path = Path::through(&corners, 0.5).unwrap();
        assert!((path.length() - (3.0 + 0.25 * PI)).abs() < 1e-12);
        let (middle, heading) = path.at(1.5 + 0.125 * PI);
        let expected = Point2::new(1.5, 0.5) + towards(-0.25 * PI) * 0.5;
        assert!((middle - expected).norm() < 1e-12 && (heading - 0.25 * PI).abs() < 1e-12, "{middle} {heading}");
        let (end, heading) = path.at(path.length());
        assert!((end - corners[2]).norm() < 1e-12 && (heading - 0.5 * PI).abs() < 1e-12, "{end} {heading}");
        assert_eq!(path.at(99.0), path.at(path.length()));
        assert_eq!(path.at(-1.0).0, corners[0]);
    }

    #[test]
    fn lanes_pass_close_to_every_place_in_both_directions() {
        let path = Path::through_room(Route::LawnMower { spacing: 0.8 }, [6.0, 6.0], 90.0, 0).unwrap();
        let driven: Vec<_> = (0..9000).map(|i| path.at(f64::from(i) * 0.01)).collect();
        for i in 0..100 {
            let place = Point2::new(0.6 + 4.8 / 9.0 * f64::from(i % 10), 0.6 + 4.8 / 9.0 * f64::from(i / 10));
            for direction in [Vector2::x(), Vector2::y()] {
                let along = driven.iter().filter(|(_, heading)| towards(*heading).dot(&direction).abs() > 0.99);
                let nearest = along.map(|(position, _)| (position - place).norm()).fold(f64::INFINITY, f64::min);
                assert!(nearest <= 0.4 + 1e-2, "{place}: {nearest}");
            }
        }
    }

    #[test]
    fn a_patrol_passes_all_walls_repeatedly() {
        // A lap has 34 m, and 20 places some 3.5 m from one to the next.
        let path = Path::through_room(Route::Patrol, [10.0, 8.0], 1000.0, 5).unwrap();
        for start in [0.0, 400.0, 800.0] {
            let driven: Vec<_> = (0..20_000).map(|i| path.at(start + 0.01 * f64::from(i)).0).collect();
            let walls = (0..10).flat_map(|i| {
                let [x, y] = [9.2, 7.2].map(|side| 0.8 + (side - 0.8) * f64::from(i) / 9.0);
                [[x, 0.4], [x, 7.6], [0.4, y], [9.6, y]]
            });
            for place in walls.map(Point2::from) {
                let nearest = driven.iter().map(|at| (at - place).norm()).fold(f64::INFINITY, f64::min);
                assert!(nearest < 0.02, "{place} from {start} m on: {nearest}");
            }
        }
    }

    #[test]
    fn only_routes_to_random_places_depend_on_the_seed() {
        for route in ROUTES {
            let path = |seed| Path::through_room(route, [6.0, 6.0], 50.0, seed).unwrap();
            assert_eq!(path(1), path(1));
            assert_eq!(path(1) == path(2), !matches!(route, Route::Random | Route::Patrol));
        }
    }

    #[test]
    fn impossible_paths_are_errors() {
        let back = [[0.0, 0.0], [2.0, 0.0], [0.0, 0.0]].map(Point2::from);
        assert!(Path::through(&back, 0.5).unwrap_err().to_string().contains("no turn straight back"));
        assert!(Path::through(&back[..1], 0.5).unwrap_err().to_string().contains("found 1"));
        let route = Route::LawnMower { spacing: 0.0 };
        assert!(Path::through_room(route, [6.0, 6.0], 9.0, 0).unwrap_err().to_string().contains("`lane spacing`"));
    }
}
