//! The field within a square of the plane.

use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::basis::{Basis, FieldPrior, Potential};
use super::chain::PlanePose;

/// How far inducing points reach beyond a tile, in lengthscales.
const MARGIN: f64 = 1.2;

/// The squares into which the plane is divided: as few as possible of at most this size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    low: [f64; 2],
    side: [f64; 2],
    count: [usize; 2],
}

impl Layout {
    /// Tiles around these places, with sides of at most `size` metres.
    pub fn around<'a>(poses: impl Iterator<Item = &'a PlanePose> + Clone, size: f64) -> Self {
        let range = |axis: usize| {
            let values = poses.clone().map(|pose| pose[axis]);
            let empty = (f64::INFINITY, f64::NEG_INFINITY);
            values.fold(empty, |(low, high), value| (low.min(value), high.max(value)))
        };
        let ranges = [range(0), range(1)];
        let count = ranges.map(|(low, high)| (((high - low) / size).ceil() as usize).max(1));
        let side = [0, 1].map(|axis| ((ranges[axis].1 - ranges[axis].0) / count[axis] as f64).max(0.0));
        Self { low: ranges.map(|(low, _)| low), side, count }
    }

    /// The tile of a place; the outermost reach as far as there are places.
    pub fn tile_of(&self, pose: &PlanePose) -> [usize; 2] {
        [0, 1].map(|axis| {
            let steps = ((pose[axis] - self.low[axis]) / self.side[axis]).floor();
            (steps.max(0.0) as usize).min(self.count[axis] - 1)
        })
    }

    fn corner(&self, tile: [usize; 2]) -> [f64; 2] {
        [0, 1].map(|axis| self.low[axis] + self.side[axis] * tile[axis] as f64)
    }
}

/// A tile: its field, and what its segments tell of it.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub index: [usize; 2],
    pub basis: Basis,
    /// The unknowns of its field.
    pub field: Vec<f64>,
    /// One plus the information of its segments.
    pub information: Matrix,
    /// The factor of that information.
    pub factor: Matrix,
    /// What is left of it after the elimination of the poses.
    pub remainder: Matrix,
}

impl Tile {
    pub fn new(prior: &FieldPrior, layout: &Layout, index: [usize; 2]) -> Result<Self, NotPositiveDefinite> {
        let low = layout.corner(index);
        let margin = MARGIN * prior.lengthscale;
        let basis =
            Basis::new(prior, low.map(|low| low - margin), [0, 1].map(|axis| low[axis] + layout.side[axis] + margin))?;
        let mut tile = Self {
            index,
            field: vec![0.0; basis.size()],
            basis,
            information: Matrix::zeros(0, 0),
            factor: Matrix::zeros(0, 0),
            remainder: Matrix::zeros(0, 0),
        };
        tile.forget();
        Ok(tile)
    }

    /// Forgets what segments tell, not the field.
    pub fn forget(&mut self) {
        let size = self.basis.size();
        self.information = Matrix::identity(size, size);
        self.remainder = Matrix::identity(size, size);
        self.factor = Matrix::identity(size, size);
    }

    /// Factors the information.
    pub fn factor(&mut self) -> Result<(), NotPositiveDefinite> {
        self.factor = linalg::cholesky(linalg::copied(self.information.as_ref()))?;
        Ok(())
    }

    /// Its potential.
    pub fn potential(&self) -> Potential {
        self.basis.potential(&self.field)
    }

    /// Half the log determinant of its information.
    pub fn cost(&self) -> f64 {
        0.5 * linalg::log_determinant(self.factor.as_ref())
    }
}

/// `target += factor * source` in the lower triangle of the first rows.
pub(super) fn add_lower(target: &mut Matrix, factor: f64, source: &Matrix) {
    for column in 0..target.ncols().min(source.ncols()) {
        let size = target.nrows();
        let source = &source.col_as_slice(column)[column..size];
        let target = &mut target.col_as_slice_mut(column)[column..];
        target.iter_mut().zip(source).for_each(|(target, source)| *target += factor * source);
    }
}
