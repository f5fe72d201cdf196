//! The normal equations, solved from the inside out.
//!
//! Of each segment the poses after the first are eliminated (they are a chain), then, tile by tile, its field with the first poses
//! of the segments that follow another one of the same tile. What is left is the border: the shared unknowns, and the poses at which the path enters another
//! tile.

use nalgebra::Vector3;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::window::Window;
use super::{Smoother, add_to};
use crate::slam::chain::{SHARED, Shared};
use crate::slam::segment::{AFTER_FIELD, Parts, Segment};

/// Information of what is given: the first pose, and in a window all that is shared.
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

/// The factored normal equations.
pub(super) struct Reduced {
    /// Index of the first segment of the window.
    first: usize,
    /// Where the first pose of each segment of the window is.
    starts: Vec<Place>,
    pub tiles: Vec<ReducedTile>,
    /// Factor of the border.
    pub factor: Matrix,
}

/// The factored system of a tile.
pub(super) struct ReducedTile {
    /// Factor of the field and the first poses that are seen by this tile only, given the border.
    pub factor: Matrix,
    /// Rows of the border that it is coupled with, in ascending order.
    pub columns: Vec<usize>,
    /// The coupling with those rows, half-solved.
    pub coupling: Matrix,
}

impl Place {
    /// The place of another axis of the pose.
    fn plus(self, axis: usize) -> Self {
        match self {
            Self::Tile(row) => Self::Tile(row + axis),
            Self::Border(row) => Self::Border(row + axis),
        }
    }
}

impl Reduced {
    /// Where the rows of a segment's block after the field are; none for those of a next segment that there is not.
    pub fn places(&self, number: usize) -> impl Iterator<Item = Option<Place>> {
        places(&self.starts, number)
    }
}

impl ReducedTile {
    /// The column of a row of the border.
    pub fn column(&self, row: usize) -> usize {
        self.columns.binary_search(&row).unwrap_or_default()
    }
}

fn places(starts: &[Place], number: usize) -> impl Iterator<Item = Option<Place>> {
    let poses = [starts.get(number), starts.get(number + 1)].into_iter();
    (0..SHARED)
        .map(|row| Some(Place::Border(row)))
        .chain(poses.flat_map(|start| (0..3).map(move |axis| start.map(|start| start.plus(axis)))))
}

impl Smoother {
    /// Eliminates the fields, and the poses within a tile.
    pub(super) fn reduce(&self, window: &Window) -> Result<Reduced, NotPositiveDefinite> {
        let first = window.first;
        let segments = &self.segments[first..];
        let mut sizes: Vec<usize> = self.tiles.iter().map(|tile| tile.field.len()).collect();
        let mut border = SHARED;
        let mut starts = Vec::with_capacity(segments.len());
        for (number, segment) in segments.iter().enumerate() {
            let is_within = number > 0 && segments[number - 1].tile == segment.tile;
            let size = if is_within { &mut sizes[segment.tile] } else { &mut border };
            starts.push(if is_within { Place::Tile(*size) } else { Place::Border(*size) });
            *size += 3;
        }
        let mut system = linalg::zeros(border, border);
        for (index, deviation) in self.deviations().iter().enumerate() {
            system[(index, index)] += if window.is_whole() { 1.0 / (deviation * deviation) } else { GIVEN };
        }
        (SHARED..SHARED + 3).for_each(|index| system[(index, index)] += GIVEN);
        let mut tiles = Vec::with_capacity(self.tiles.len());
        for (index, size) in sizes.into_iter().enumerate() {
            let numbers: Vec<usize> = (0..segments.len()).filter(|number| segments[*number].tile == index).collect();
            tiles.push(if window.concerns(index) {
                let mut inner = linalg::zeros(size, size);
                window.write_remainder(index, &self.tiles[index], &mut inner);
                reduce_tile(segments, &starts, &numbers, inner, self.tiles[index].field.len(), &mut system)?
            } else {
                ReducedTile { factor: Matrix::zeros(0, 0), columns: Vec::new(), coupling: Matrix::zeros(0, 0) }
            });
        }
        Ok(Reduced { first, starts, tiles, factor: linalg::cholesky(system)? })
    }

    /// Minus the gradient of the objective in the poses of the window, the fields, and what is shared unless it is given.
    pub(super) fn descent(&self, window: &Window) -> Unknowns {
        let segments = &self.segments[window.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let mut poses = vec![Vector3::zeros(); self.poses.len() - start];
        let mut shared = -self.shared.component_div(&self.deviations().map(|deviation| deviation * deviation));
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

    /// Solves the normal equations.
    pub(super) fn solve(&self, reduced: &Reduced, right: &Unknowns) -> Unknowns {
        let segments = &self.segments[reduced.first..];
        let start = segments.first().map_or(0, |segment| segment.first);
        let interior = |segment: &Segment| &right.poses[segment.first - start + 1..segment.end - start];
        let mut border = vec![0.0; reduced.factor.nrows()];
        border[..SHARED].copy_from_slice(right.shared.as_slice());
        let mut fields: Vec<_> = self.tiles.iter().map(|tile| tile.basis.no_potential()).collect();
        let mut tiles: Vec<Vec<f64>> = reduced.tiles.iter().map(|tile| vec![0.0; tile.factor.nrows()]).collect();
        for (number, segment) in segments.iter().enumerate() {
            let Parts { poses, next, shared, potential } =
                segment.reduce(&self.tiles[segment.tile].basis, interior(segment));
            add_to(&mut fields[segment.tile].horizontal, &potential.horizontal);
            add_to(&mut fields[segment.tile].vertical, &potential.vertical);
            let first = poses[0] + right.poses[segment.first - start];
            let values = shared.iter().chain(&first).chain(&next);
            for (place, value) in reduced.places(number).zip(values) {
                match place {
                    None => {}
                    Some(Place::Tile(row)) => tiles[segment.tile][row] += value,
                    Some(Place::Border(row)) => border[row] += value,
                }
            }
        }
        for (index, tile) in reduced.tiles.iter().enumerate().filter(|(_, tile)| tile.factor.nrows() > 0) {
            add_to(&mut tiles[index], &right.fields[index]);
            add_to(&mut tiles[index], &self.tiles[index].basis.in_unknowns(&fields[index]));
            linalg::solve_lower_vector(tile.factor.as_ref(), &mut tiles[index]);
            let shares = linalg::matrix_vector(tile.coupling.transpose(), &tiles[index]);
            tile.columns.iter().zip(shares).for_each(|(row, share)| border[*row] -= share);
        }
        linalg::solve_from_cholesky(reduced.factor.as_ref(), &mut border);
        for (index, tile) in reduced.tiles.iter().enumerate().filter(|(_, tile)| tile.factor.nrows() > 0) {
            let known: Vec<f64> = tile.columns.iter().map(|row| border[*row]).collect();
            linalg::add_matrix_vector(&mut tiles[index], -1.0, tile.coupling.as_ref(), &known);
            linalg::solve_lower_transposed_vector(tile.factor.as_ref(), &mut tiles[index]);
            let basis = &self.tiles[index].basis;
            fields[index] = basis.potential(&tiles[index][..basis.size()]);
        }
        let shared = Shared::from_column_slice(&border[..SHARED]);
        let mut poses = Vec::with_capacity(right.poses.len());
        for (number, segment) in segments.iter().enumerate() {
            let value = |place: Option<Place>| match place {
                None => 0.0,
                Some(Place::Tile(row)) => tiles[segment.tile][row],
                Some(Place::Border(row)) => border[row],
            };
            let mut values = reduced.places(number).skip(SHARED).map(value);
            let [first, next] = [(); 2].map(|()| Vector3::from_iterator(values.by_ref().take(3)));
            let known = Parts { poses: Vec::new(), next, shared, potential: fields[segment.tile].clone() };
            poses.push(first);
            poses.extend(segment.expand(&self.tiles[segment.tile].basis, interior(segment), first, known));
        }
        for (field, tile) in tiles.iter_mut().zip(&self.tiles) {
            field.truncate(tile.basis.size());
        }
        Unknowns { poses, fields: tiles, shared }
    }
}

/// Eliminates the field of a tile and the poses that only it sees, and adds what its segments tell of the border to the `system`. The
/// first rows and columns of `inner` are those of the field, with its information.
fn reduce_tile(
    segments: &[Segment],
    starts: &[Place],
    numbers: &[usize],
    mut inner: Matrix,
    field: usize,
    system: &mut Matrix,
) -> Result<ReducedTile, NotPositiveDefinite> {
    let border = |place: Option<Place>| match place {
        Some(Place::Border(row)) => Some(row),
        _ => None,
    };
    let mut columns: Vec<usize> =
        numbers.iter().flat_map(|number| places(starts, *number).filter_map(border)).collect();
    columns.sort_unstable();
    columns.dedup();
    let coupling = linalg::zeros(inner.nrows(), columns.len());
    let mut tile = ReducedTile { factor: Matrix::zeros(0, 0), coupling, columns };
    for &number in numbers {
        let Some(block) = &segments[number].linearised.border else { continue };
        let rows: Vec<Option<Place>> = places(starts, number).collect();
        for column in 0..AFTER_FIELD {
            let values = block.col_as_slice(column);
            match rows[column] {
                None => continue,
                Some(Place::Tile(row)) => {
                    values[..field].iter().enumerate().for_each(|(i, value)| inner[(row, i)] += value);
                }
                Some(Place::Border(row)) => {
                    let at = tile.column(row);
                    add_to(&mut tile.coupling.col_as_slice_mut(at)[..field], &values[..field]);
                }
            }
            for other in 0..=column {
                let value = values[field + other];
                match (rows[column], rows[other]) {
                    (Some(Place::Tile(row)), Some(Place::Tile(other))) => {
                        inner[(row.max(other), row.min(other))] += value
                    }
                    (Some(Place::Border(row)), Some(Place::Border(other))) => {
                        system[(row.max(other), row.min(other))] += value;
                    }
                    (Some(Place::Tile(inside)), Some(Place::Border(outside)))
                    | (Some(Place::Border(outside)), Some(Place::Tile(inside))) => {
                        let at = tile.column(outside);
                        tile.coupling[(inside, at)] += value;
                    }
                    _ => {}
                }
            }
        }
    }
    tile.factor = linalg::cholesky(inner)?;
    linalg::solve_lower(tile.factor.as_ref(), tile.coupling.as_mut());
    let square = linalg::product(tile.coupling.transpose(), tile.coupling.as_ref());
    for (i, row) in tile.columns.iter().enumerate() {
        for (j, column) in tile.columns[..=i].iter().enumerate() {
            system[(*row, *column)] -= square[(i, j)];
        }
    }
    Ok(tile)
}
