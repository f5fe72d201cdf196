//! The part of the path that is estimated, and the information of the rest on the field.

use std::collections::BTreeMap;

use streaming_gp::linalg::{self, Matrix};

use super::{Smoother, add_to};
use crate::slam::tile::{Tile, add_eliminated};

/// Share of the prior that is projected out along rigid motions of a field. The rest keeps the system positive definite.
const LEFT_OUT: f64 = 0.999;

/// The segments whose poses are estimated: all, or those of a window, while the others have told of the field what they know.
pub(super) struct Window {
    /// Index of the first of these segments; its first pose is given unless all are estimated.
    pub first: usize,
    /// Whether fields may move with their readings at no cost.
    is_free: bool,
    /// Information of the segments before it on each tile in the window.
    maps: BTreeMap<usize, Map>,
}

/// The objective as a quadratic function of the field of a tile, all poses before the window given.
struct Map {
    field: Vec<f64>,
    /// Minus the gradient at that field.
    descent: Vec<f64>,
    information: Matrix,
    /// What the elimination of the poses before the window took away from the information of the tile, while they are given now; the upper
    /// triangle.
    eliminated: Matrix,
}

impl Window {
    /// All segments. The prior penalises moving a field, which keeps a path on the way from following the readings of single passes.
    pub fn whole() -> Self {
        Self { first: 0, is_free: false, maps: BTreeMap::new() }
    }

    /// All segments, where fields move with their readings at no cost, along their [motions](Tile::motions).
    pub fn free() -> Self {
        Self { is_free: true, ..Self::whole() }
    }

    pub fn is_free(&self) -> bool {
        self.is_free
    }

    pub fn is_whole(&self) -> bool {
        self.first == 0
    }

    /// Whether the field of a tile is estimated.
    pub fn concerns(&self, tile: usize) -> bool {
        self.is_whole() || self.maps.contains_key(&tile)
    }

    /// Minus the gradient in the field of a tile of what does not come from the window: the prior, or the map.
    pub fn descent(&self, index: usize, tile: &Tile) -> Vec<f64> {
        match self.maps.get(&index) {
            None => tile.field.iter().map(|value| -value).collect(),
            Some(map) => map.descent_at(&tile.field),
        }
    }

    /// Part of the objective that does not come from the window, for the field of a tile, but for a constant.
    pub fn cost(&self, index: usize, tile: &Tile) -> f64 {
        let Some(map) = self.maps.get(&index) else { return 0.5 * linalg::squared_norm(&tile.field) };
        // The gradient is linear: on the way it is the mean of those at both ends.
        let ends = map.descent.iter().zip(map.descent_at(&tile.field)).zip(tile.field.iter().zip(&map.field));
        -0.5 * ends.map(|((then, now), (field, old))| (then + now) * (field - old)).sum::<f64>()
    }

    /// Writes the information on the field of a tile, where all poses are known as their elimination leaves them, into the first rows and
    /// columns of a matrix; the lower triangle.
    pub fn write_remainder(&self, index: usize, tile: &Tile, target: &mut Matrix) {
        let size = tile.field.len();
        let (information, eliminated) = (tile.information(), tile.eliminated());
        let given = self.maps.get(&index).map(|map| &map.eliminated);
        let motions = if self.is_free { &tile.motions[..] } else { &[] };
        for column in 0..size {
            let target = &mut target.col_as_slice_mut(column)[column..size];
            for (target, row) in target.iter_mut().zip(column..) {
                let given = given.map_or(0.0, |given| given[(column, row)]);
                *target = information[(row, column)] - (eliminated[(column, row)] - given);
            }
            for motion in motions {
                let factor = LEFT_OUT * motion[column];
                target.iter_mut().zip(&motion[column..]).for_each(|(target, value)| *target -= factor * value);
            }
        }
    }
}

impl Map {
    /// Minus the gradient at this field.
    fn descent_at(&self, field: &[f64]) -> Vec<f64> {
        let moved: Vec<f64> = field.iter().zip(&self.field).map(|(now, then)| now - then).collect();
        let mut descent = self.descent.clone();
        linalg::add_matrix_vector(&mut descent, -1.0, self.information.as_ref(), &moved);
        descent
    }
}

impl Smoother {
    /// The window from this segment on.
    pub(super) fn window(&mut self, first: usize) -> Window {
        let mut window = Window { first, ..Window::whole() };
        if window.is_whole() {
            return window;
        }
        for index in self.segments[first..].iter().map(|segment| segment.tile) {
            if window.maps.contains_key(&index) {
                continue;
            }
            self.tiles[index].make_room();
            let tile = &self.tiles[index];
            let mut descent = self.descent_of_field(index, &self.segments[..first]);
            add_to(&mut descent, &tile.outdated);
            descent.iter_mut().zip(&tile.field).for_each(|(descent, field)| *descent -= field);
            let mut information = linalg::copied(tile.information());
            let mut eliminated = linalg::copied(tile.eliminated());
            for segment in self.segments[first..].iter().filter(|segment| segment.tile == index) {
                if segment.is_linearised() {
                    let features = segment.features(&tile.basis);
                    segment.add_information(&features, -1.0, information.as_mut());
                    add_eliminated(&segment.coupling(&features), -1.0, eliminated.as_mut());
                }
            }
            linalg::mirror_lower(information.as_mut());
            window.maps.insert(index, Map { field: tile.field.clone(), descent, information, eliminated });
        }
        window
    }

    /// Leaves a window: the gradients of the segments before it are those at the fields before.
    pub(super) fn leave(&mut self, window: &Window) {
        for (&index, map) in &window.maps {
            let tile = &mut self.tiles[index];
            let now = map.descent_at(&tile.field);
            for (row, outdated) in tile.outdated.iter_mut().enumerate() {
                // Without the prior, whose gradient is always exact.
                *outdated += now[row] - map.descent[row] + tile.field[row] - map.field[row];
            }
        }
    }
}
