//! The normal equations, solved from the inside out.
//!
//! Of each segment the poses after the first are eliminated (they are a chain), then, tile by tile, its field with the first poses
//! of the segments that follow another one of the same tile. What is left is the border: the shared unknowns, and the poses at which the path
//! enters another tile. The system of a tile, with its factor, exists only while the tile is eliminated: those of all tiles would take most of
//! the memory.

use std::collections::BTreeSet;

use nalgebra::Vector3;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::window::Window;
use super::{Smoother, add_to};
use crate::slam::basis::Potential;
use crate::slam::chain::{DELAY, SHARED, Shared};
use crate::slam::segment::{AFTER_FIELD, Parts, Segment};
use crate::slam::tile::Tile;

/// Information of what is given: the first pose, in a window all that is shared, and on the way the delay.
pub(super) const GIVEN: f64 = 1e8;

/// A number for each unknown: a change, or minus the gradient.
pub(super) struct Unknowns {
    pub poses: Vec<Vector3<f64>>,
    /// Of each tile; empty for those that are not concerned.
    pub fields: Vec<Vec<f64>>,
    pub shared: Shared,
}

/// A row of the system of a tile, or of the border.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Tile(usize),
    Border(usize),
}

/// Where the unknowns of a window are, but for the poses within segments.
pub(super) struct Order {
    /// Index of the first segment of the window.
    first: usize,
    /// Where the first pose of each segment of the window is.
    starts: Vec<Place>,
    /// Number of rows of each tile, the field first; none for those that are not concerned.
    tiles: Vec<usize>,
    /// Number of rows of the border, what is shared first.
    border: usize,
}

/// A number for each of these unknowns: the right-hand side, then the solution.
struct Rows {
    /// The right-hand side of all poses.
    poses: Vec<Vector3<f64>>,
    tiles: Vec<Vec<f64>>,
    border: Vec<f64>,
}

/// The border, after everything else is eliminated.
pub(super) struct Reduced {
    pub order: Order,
    pub tiles: Vec<ReducedTile>,
    /// Factor of the border.
    pub factor: Matrix,
}

/// How the unknowns of a tile depend on the border.
pub(super) struct ReducedTile {
    /// Rows of the border that it is coupled with, in ascending order.
    pub columns: Vec<usize>,
    /// The inverse of its system times the coupling with those rows: minus the change of its unknowns with the border.
    pub regression: Matrix,
}

impl Place {
    /// The place of another axis of the pose.
    fn plus(self, axis: usize) -> Self {
        match self {
            Self::Tile(row) => Self::Tile(row + axis),
            Self::Border(row) => Self::Border(row + axis),
        }
    }

    fn in_border(self) -> Option<usize> {
        match self {
            Self::Tile(_) => None,
            Self::Border(row) => Some(row),
        }
    }
}

impl Order {
    /// Where the rows of a segment's block after the field are; none for those of a next segment that there is not.
    pub fn places(&self, number: usize) -> impl Iterator<Item = Option<Place>> + Clone {
        let poses = [self.starts.get(number), self.starts.get(number + 1)].into_iter();
        (0..SHARED)
            .map(|row| Some(Place::Border(row)))
            .chain(poses.flat_map(|start| (0..3).map(move |axis| start.map(|start| start.plus(axis)))))
    }
}

impl ReducedTile {
    /// The column of a row of the border.
    pub fn column(&self, row: usize) -> usize {
        self.columns.binary_search(&row).unwrap_or_default()
    }
}

impl Smoother {
    /// Where the unknowns of this window are.
    pub(super) fn order(&self, window: &Window) -> Order {
        let segments = &self.segments[window.first..];
        let field = |(index, tile): (usize, &Tile)| if window.concerns(index) { tile.field.len() } else { 0 };
        let mut tiles: Vec<usize> = self.tiles.iter().enumerate().map(field).collect();
        let mut border = SHARED;
        let mut starts = Vec::with_capacity(segments.len());
        for (number, segment) in segments.iter().enumerate() {
            let is_within = number > 0 && segments[number - 1].tile == segment.tile;
            let rows = if is_within { &mut tiles[segment.tile] } else { &mut border };
            starts.push(if is_within { Place::Tile(*rows) } else { Place::Border(*rows) });
            *rows += 3;
        }
        Order { first: window.first, starts, tiles, border }
    }

    /// The segments of a tile in the window, with their numbers there.
    pub(super) fn segments_of(&self, order: &Order, tile: usize) -> impl Iterator<Item = (usize, &Segment)> {
        self.segments[order.first..].iter().enumerate().filter(move |(_, segment)| segment.tile == tile)
    }

    /// Eliminates the fields, and the poses within a tile; right-hand sides become those of the border, and the solutions of the tiles where the
    /// border is zero.
    fn reduce(&self, window: &Window, order: Order, rights: &mut [Rows]) -> Result<Reduced, NotPositiveDefinite> {
        let mut system = linalg::zeros(order.border, order.border);
        for (index, deviation) in self.prior.shared.iter().enumerate() {
            let is_estimated = window.is_whole() && (index != DELAY || self.is_delay_estimated);
            system[(index, index)] += if is_estimated { 1.0 / (deviation * deviation) } else { GIVEN };
        }
        // The first pose is given as it is at its stamp.
        let first = self.segments.get(order.first).map_or(0, |segment| segment.first);
        let velocities = self.velocities(self.poses.len() - first).next().unwrap_or_default();
        for (row, velocity) in (SHARED..).zip(&velocities) {
            system[(row, row)] += GIVEN;
            system[(row, DELAY)] += GIVEN * velocity;
            system[(DELAY, DELAY)] += GIVEN * velocity * velocity;
        }
        let mut tiles = Vec::with_capacity(self.tiles.len());
        for index in 0..self.tiles.len() {
            let factor = self.factor_of_tile(window, &order, index)?;
            let mut tile = self.couple_tile(&order, index, &mut system);
            linalg::solve_lower(factor.as_ref(), tile.regression.as_mut());
            let square = linalg::product(tile.regression.transpose(), tile.regression.as_ref());
            for (i, row) in tile.columns.iter().enumerate() {
                for (j, column) in tile.columns[..=i].iter().enumerate() {
                    system[(*row, *column)] -= square[(i, j)];
                }
            }
            linalg::solve_lower_transposed(factor.as_ref(), tile.regression.as_mut());
            for Rows { tiles, border, .. } in &mut *rights {
                let shares = linalg::matrix_vector(tile.regression.transpose(), &tiles[index]);
                tile.columns.iter().zip(shares).for_each(|(row, share)| border[*row] -= share);
                linalg::solve_from_cholesky(factor.as_ref(), &mut tiles[index]);
            }
            tiles.push(tile);
        }
        Ok(Reduced { order, tiles, factor: linalg::cholesky(system)? })
    }

    /// Eliminates the fields, which are free, and the poses within a tile, of the whole path.
    pub(super) fn reduce_whole(&self) -> Result<Reduced, NotPositiveDefinite> {
        self.reduce(&Window::free(), self.order(&Window::free()), &mut [])
    }

    /// Factor of the system of a tile: its field and the first poses that are seen by it only, given the border.
    pub(super) fn factor_of_tile(
        &self,
        window: &Window,
        order: &Order,
        index: usize,
    ) -> Result<Matrix, NotPositiveDefinite> {
        let (size, tile) = (order.tiles[index], &self.tiles[index]);
        let mut system = linalg::zeros(size, size);
        if window.concerns(index) {
            window.write_remainder(index, tile, &mut system);
        }
        let field = tile.field.len();
        for (number, segment) in self.segments_of(order, index) {
            let Some(block) = &segment.linearised.border else { continue };
            let rows = order.places(number).enumerate().filter_map(|(row, place)| match place {
                Some(Place::Tile(place)) => Some((row, place)),
                _ => None,
            });
            for (column, row) in rows.clone() {
                let values = block.col_as_slice(column);
                values[..field].iter().enumerate().for_each(|(i, value)| system[(row, i)] += value);
                for (other, place) in rows.clone().take_while(|(other, _)| *other <= column) {
                    system[(row.max(place), row.min(place))] += values[field + other];
                }
            }
        }
        linalg::cholesky(system)
    }

    /// The coupling of a tile with the border; what its segments tell of the border itself is added to the `system` of that.
    fn couple_tile(&self, order: &Order, index: usize, system: &mut Matrix) -> ReducedTile {
        let field = self.tiles[index].field.len();
        let numbers = self.segments_of(order, index).map(|(number, _)| number);
        let in_border = numbers.flat_map(|number| order.places(number).flatten().filter_map(Place::in_border));
        let columns: Vec<usize> = in_border.collect::<BTreeSet<_>>().into_iter().collect();
        let mut tile = ReducedTile { regression: linalg::zeros(order.tiles[index], columns.len()), columns };
        for (number, segment) in self.segments_of(order, index) {
            let Some(block) = &segment.linearised.border else { continue };
            let rows: Vec<Option<Place>> = order.places(number).collect();
            for column in 0..AFTER_FIELD {
                let values = block.col_as_slice(column);
                if let Some(row) = rows[column].and_then(Place::in_border) {
                    let at = tile.column(row);
                    add_to(&mut tile.regression.col_as_slice_mut(at)[..field], &values[..field]);
                }
                for (other, value) in rows[..=column].iter().zip(&values[field..]) {
                    match (rows[column], *other) {
                        (Some(Place::Border(row)), Some(Place::Border(other))) => {
                            system[(row.max(other), row.min(other))] += value;
                        }
                        (Some(Place::Tile(inside)), Some(Place::Border(outside)))
                        | (Some(Place::Border(outside)), Some(Place::Tile(inside))) => {
                            let at = tile.column(outside);
                            tile.regression[(inside, at)] += value;
                        }
                        _ => {}
                    }
                }
            }
        }
        tile
    }

    /// Minus the gradient of the objective in the poses of the window, the fields, and what is shared unless it is given.
    pub(super) fn descent(&self, window: &Window) -> Unknowns {
        let segments = &self.segments[window.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let mut poses = vec![Vector3::zeros(); self.poses.len() - start];
        let mut shared = -self.shared.component_div(&self.prior.shared.map(|deviation| deviation * deviation));
        for segment in segments {
            for (index, pose) in poses[segment.first - start..segment.end - start].iter_mut().enumerate() {
                *pose += segment.descent_of_pose(index);
            }
            if let Some(next) = poses.get_mut(segment.end - start) {
                *next += segment.descent.next;
            }
            shared += segment.descent.shared;
        }
        let field = |index: usize| {
            if !window.concerns(index) {
                return Vec::new();
            }
            let mut descent = self.descent_of_field(index, segments);
            add_to(&mut descent, &window.descent(index, &self.tiles[index]));
            descent
        };
        let fields = (0..self.tiles.len()).map(field).collect();
        if !window.is_whole() {
            shared.fill(0.0);
            poses[0].fill(0.0);
        }
        Unknowns { poses, fields, shared }
    }

    /// The part of these segments in minus the gradient in the unknowns of a tile.
    pub(super) fn descent_of_field(&self, tile: usize, segments: &[Segment]) -> Vec<f64> {
        let basis = &self.tiles[tile].basis;
        let mut potential = basis.no_potential();
        for segment in segments.iter().filter(|segment| segment.tile == tile) {
            add_to(&mut potential.horizontal, &segment.descent.potential.horizontal);
            add_to(&mut potential.vertical, &segment.descent.potential.vertical);
        }
        basis.in_unknowns(&potential)
    }

    /// Solves the normal equations for some right-hand sides.
    pub(super) fn solve<const N: usize>(
        &self,
        window: &Window,
        rights: [Unknowns; N],
    ) -> Result<[Unknowns; N], NotPositiveDefinite> {
        let order = self.order(window);
        let mut rows = rights.map(|right| self.eliminate_poses(&order, right));
        let reduced = self.reduce(window, order, &mut rows)?;
        for Rows { tiles, border, .. } in &mut rows {
            linalg::solve_from_cholesky(reduced.factor.as_ref(), border);
            for (tile, ReducedTile { columns, regression }) in tiles.iter_mut().zip(&reduced.tiles) {
                let known: Vec<f64> = columns.iter().map(|row| border[*row]).collect();
                linalg::add_matrix_vector(tile, -1.0, regression.as_ref(), &known);
            }
        }
        Ok(rows.map(|rows| self.solve_poses(&reduced.order, rows)))
    }

    /// The right-hand side after the elimination of the poses within segments.
    fn eliminate_poses(&self, order: &Order, right: Unknowns) -> Rows {
        let segments = &self.segments[order.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let mut border = vec![0.0; order.border];
        border[..SHARED].copy_from_slice(right.shared.as_slice());
        let mut fields: Vec<_> = self.tiles.iter().map(|tile| tile.basis.no_potential()).collect();
        let mut tiles: Vec<Vec<f64>> = order.tiles.iter().map(|size| vec![0.0; *size]).collect();
        for (number, segment) in segments.iter().enumerate() {
            let interior = &right.poses[segment.first - start + 1..segment.end - start];
            let Parts { poses, next, shared, potential } = segment.reduce(&self.tiles[segment.tile].basis, interior);
            add_to(&mut fields[segment.tile].horizontal, &potential.horizontal);
            add_to(&mut fields[segment.tile].vertical, &potential.vertical);
            let first = poses[0] + right.poses[segment.first - start];
            let values = shared.iter().chain(&first).chain(&next);
            for (place, value) in order.places(number).zip(values) {
                match place {
                    None => {}
                    Some(Place::Tile(row)) => tiles[segment.tile][row] += value,
                    Some(Place::Border(row)) => border[row] += value,
                }
            }
        }
        for (index, tile) in tiles.iter_mut().enumerate().filter(|(_, tile)| !tile.is_empty()) {
            add_to(tile, &right.fields[index]);
            add_to(tile, &self.tiles[index].basis.in_unknowns(&fields[index]));
        }
        Rows { poses: right.poses, tiles, border }
    }

    /// The solution with the poses within segments, given that of all other unknowns.
    fn solve_poses(&self, order: &Order, rows: Rows) -> Unknowns {
        let Rows { poses: right, tiles: mut fields, border } = rows;
        let segments = &self.segments[order.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let shared = Shared::from_column_slice(&border[..SHARED]);
        let potential = |(tile, values): (&Tile, &Vec<f64>)| match values.get(..tile.basis.size()) {
            Some(field) => tile.basis.potential(field),
            None => tile.basis.no_potential(),
        };
        let potentials: Vec<Potential> = self.tiles.iter().zip(&fields).map(potential).collect();
        let mut poses = Vec::with_capacity(right.len());
        for (number, segment) in segments.iter().enumerate() {
            let value = |place: Option<Place>| match place {
                None => 0.0,
                Some(Place::Tile(row)) => fields[segment.tile][row],
                Some(Place::Border(row)) => border[row],
            };
            let mut values = order.places(number).skip(SHARED).map(value);
            let [first, next] = [(); 2].map(|()| Vector3::from_iterator(values.by_ref().take(3)));
            let known = Parts { poses: Vec::new(), next, shared, potential: potentials[segment.tile].clone() };
            let interior = &right[segment.first - start + 1..segment.end - start];
            poses.push(first);
            poses.extend(segment.expand(&self.tiles[segment.tile].basis, interior, first, known));
        }
        for (field, tile) in fields.iter_mut().zip(&self.tiles) {
            field.truncate(tile.basis.size());
        }
        Unknowns { poses, fields, shared }
    }
}
