//! The field within a square of the plane.

use streaming_gp::linalg::{self, Accum, Matrix, MatrixMut, UPPER, WHOLE};
use streaming_gp::{MatrixRef, NotPositiveDefinite};

use super::basis::{Basis, FieldPrior, Potential};
use super::chain::PlanePose;

/// Least side of a tile, in lengthscales: the estimated path is not quite where the tiles were laid.
const LEAST_SIDE: f64 = 1.0;

/// By how much tiles are larger than what they are laid around, so that its border is within them.
const SLACK: f64 = 1e-9;

/// The rectangles into which the plane is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    low: [f64; 2],
    side: [f64; 2],
}

impl Layout {
    /// The fewest tiles around these places with sides of at most `size` metres; others of the same size beside them.
    pub fn around<'a>(poses: impl Iterator<Item = &'a PlanePose> + Clone, size: f64, lengthscale: f64) -> Self {
        let range = |axis: usize| {
            let values = poses.clone().map(|pose| pose[axis]);
            let empty = (f64::INFINITY, f64::NEG_INFINITY);
            values.fold(empty, |(low, high), value| (low.min(value), high.max(value)))
        };
        let sides = [0, 1].map(|axis| {
            let (low, high) = range(axis);
            let count = ((high - low) / size).ceil().max(1.0);
            let side = (1.0 + SLACK) * ((high - low) / count).max(LEAST_SIDE * lengthscale);
            (0.5 * (low + high - side * count), side)
        });
        Self { low: sides.map(|(low, _)| low), side: sides.map(|(_, side)| side) }
    }

    /// The tile of a place.
    pub fn tile_of(&self, pose: &PlanePose) -> [i64; 2] {
        [0, 1].map(|axis| ((pose[axis] - self.low[axis]) / self.side[axis]).floor() as i64)
    }

    fn corner(&self, tile: [i64; 2]) -> [f64; 2] {
        [0, 1].map(|axis| self.low[axis] + self.side[axis] * tile[axis] as f64)
    }
}

/// A tile: its field, and what its segments tell of it.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub index: [i64; 2],
    pub basis: Basis,
    /// The unknowns of its field.
    pub field: Vec<f64>,
    /// What its segments tell of the field: one plus their information in the lower triangle, and, a column to the right, the part of it
    /// that the elimination of the poses takes away in the upper one. Empty while nothing is told.
    told: Matrix,
    /// Half the log determinant of the information.
    pub cost: f64,
    /// Values that the segments outside of a window have to add to minus their gradient, since the field has changed with the window.
    pub outdated: Vec<f64>,
    /// Rigid motions of the field, as orthonormal changes of its unknowns; empty until they are computed.
    pub motions: Vec<Vec<f64>>,
}

impl Tile {
    /// A tile that knows nothing, with the modes of another one where there is one.
    pub fn new(prior: &FieldPrior, layout: &Layout, index: [i64; 2], other: Option<&Self>) -> Self {
        let corner = layout.corner(index);
        let basis = match other {
            Some(other) => other.basis.at(corner),
            None => Basis::new(prior, corner, layout.side),
        };
        let size = basis.size();
        Self {
            index,
            field: vec![0.0; size],
            basis,
            told: Matrix::zeros(0, 0),
            cost: 0.0,
            outdated: vec![0.0; size],
            motions: Vec::new(),
        }
    }

    /// Forgets what segments tell, not the field.
    pub fn forget(&mut self) {
        self.told = Matrix::zeros(0, 0);
    }

    /// Makes room for what segments tell.
    pub fn make_room(&mut self) {
        if self.told.ncols() == 0 {
            let size = self.basis.size();
            // Those of all tiles have the same size, and are most of the memory.
            self.told = Matrix::zeros(size, size + 1);
            (0..size).for_each(|index| self.told[(index, index)] = 1.0);
        }
    }

    /// One plus the information of its segments; the lower triangle.
    pub fn information(&self) -> MatrixRef<'_> {
        self.told.as_ref().subcols(0, self.basis.size())
    }

    /// The information, to be changed in the lower triangle alone.
    pub fn information_mut(&mut self) -> MatrixMut<'_> {
        self.told.as_mut().subcols_mut(0, self.basis.size())
    }

    /// The part of the information that the elimination of the poses takes away; the upper triangle.
    pub fn eliminated(&self) -> MatrixRef<'_> {
        self.told.as_ref().subcols(1, self.basis.size())
    }

    /// What elimination takes away, to be changed in the upper triangle alone.
    pub fn eliminated_mut(&mut self) -> MatrixMut<'_> {
        self.told.as_mut().subcols_mut(1, self.basis.size())
    }

    /// The factor of the information, whose determinant is kept.
    pub fn factor(&mut self) -> Result<Matrix, NotPositiveDefinite> {
        let factor = linalg::cholesky(linalg::copied(self.information()))?;
        self.cost = 0.5 * linalg::log_determinant(factor.as_ref());
        Ok(factor)
    }

    /// The potential of the field.
    pub fn potential(&self) -> Potential {
        self.basis.potential(&self.field)
    }
}

/// Adds a multiple of what the elimination of poses takes from the information on a field, given its
/// [coupling](super::segment::Segment::coupling) with them; the upper triangle.
pub(super) fn add_eliminated(coupling: &Matrix, factor: f64, target: MatrixMut<'_>) {
    let of_field = coupling.as_ref().subrows(0, target.nrows());
    linalg::multiply((target, UPPER), Accum::Add, factor, (of_field, WHOLE), (of_field.transpose(), WHOLE));
}
