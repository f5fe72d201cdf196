//! How uncertain the path is: the poses at the stamps, to which the uncertainty of the delay contributes.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Vector2, Vector3};
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::Smoother;
use super::elimination::{Place, Reduced, Unknowns};
use super::window::Window;
use crate::slam::chain::{DELAY, PlanePose, SHARED, Shared};

impl Smoother {
    /// Covariance of each pose after the path is turned and shifted to fit the truth best, as paths are compared: how uncertain its shape
    /// is, with field and sensor marginalised.
    ///
    /// With G the changes of the path by a shift and a turn, and C the covariance of all poses, it is that of `e - G (G'G)^-1 G' e`.
    ///
    /// # Errors
    /// As [`covariances`](Self::covariances).
    pub fn covariances_of_shape(&self) -> Result<Vec<Matrix2<f64>>, NotPositiveDefinite> {
        let covariances = self.covariances_of_given_size()?;
        let centre = self.poses.iter().map(|pose| pose.xy()).sum::<Vector2<f64>>() / self.poses.len().max(1) as f64;
        let change = |pose: &PlanePose| Matrix2x3::new(1.0, 0.0, centre.y - pose.y, 0.0, 1.0, pose.x - centre.x);
        let changes: Vec<Matrix2x3<f64>> = self.poses.iter().map(change).collect();
        let right = |axis: usize| {
            let place = |change: &Matrix2x3<f64>| Vector3::new(change[(0, axis)], change[(1, axis)], 0.0);
            self.right_hand_side(changes.iter().map(place).collect())
        };
        let spread = self.solve(&Window::free(), [0, 1, 2].map(right))?.map(|solution| self.at_stamps(&solution));
        // C G, place by place, and G'G, G'C G.
        let with = |index: usize| Matrix2x3::from_fn(|row, axis| spread[axis][index][row]);
        let squares: Matrix3<f64> = changes.iter().map(|change| change.tr_mul(change)).sum();
        let whole: Matrix3<f64> = changes.iter().enumerate().map(|(index, change)| change.tr_mul(&with(index))).sum();
        // A path of one place cannot be turned.
        let inverse = squares.pseudo_inverse(1e-12).unwrap_or_default();
        let shape = |(index, change): (usize, &Matrix2x3<f64>)| {
            let covariance: Matrix2<f64> = covariances[index].fixed_view::<2, 2>(0, 0).into();
            let across = change * inverse * with(index).transpose();
            // No shift and no turn is part of a stretch about the centre.
            covariance - across - across.transpose()
                + change * inverse * whole * inverse * change.transpose()
                + self.covariance_of_stretch(self.poses[index].xy() - centre)
        };
        Ok(changes.iter().enumerate().map(shape).collect())
    }

    /// Covariance of the last pose given the first, with field and sensor marginalised: as it was when the whole path was estimated last, and
    /// what has been added in the window since.
    ///
    /// # Errors
    /// Where no pose has been estimated.
    pub fn covariance_of_last(&self) -> Result<Matrix3<f64>, NotPositiveDefinite> {
        let [Some(first), Some(last)] = [self.poses.first(), self.poses.last()] else {
            return Err(NotPositiveDefinite);
        };
        let mut covariance = self.covariance_of_last.ok_or(NotPositiveDefinite)?;
        let mut places = covariance.fixed_view_mut::<2, 2>(0, 0);
        places += self.covariance_of_stretch(last.xy() - first.xy());
        Ok(covariance)
    }

    /// Standard deviation of the delay of the readings, in seconds, when the whole path has been estimated.
    ///
    /// # Errors
    /// As [`covariances`](Self::covariances).
    pub fn delay_deviation(&self) -> Result<f64, NotPositiveDefinite> {
        let mut right = self.right_hand_side(vec![Vector3::zeros(); self.poses.len()]);
        right.shared[DELAY] = 1.0;
        let [solution] = self.solve(&Window::free(), [right])?;
        Ok(solution.shared[DELAY].sqrt())
    }

    /// Covariance of the last pose given the first of the window, if the path is not stretched.
    pub(super) fn covariance_of_last_in(&self, window: &Window) -> Result<Matrix3<f64>, NotPositiveDefinite> {
        let count = self.poses.len() - self.segments[window.first].first;
        let right = |axis: usize| {
            let mut poses = vec![Vector3::zeros(); count];
            poses[count - 1][axis] = 1.0;
            self.right_hand_side(poses)
        };
        let solutions = self.solve(window, [0, 1, 2].map(right))?;
        Ok(Matrix3::from_columns(&solutions.map(|solution| self.at_stamps(&solution)[count - 1])))
    }

    /// A right-hand side of the last poses at their stamps.
    fn right_hand_side(&self, poses: Vec<Vector3<f64>>) -> Unknowns {
        let mut shared = Shared::zeros();
        shared[DELAY] =
            poses.iter().zip(self.velocities(poses.len())).map(|(pose, velocity)| pose.dot(&velocity)).sum();
        Unknowns { poses, fields: self.no_fields(), shared }
    }

    /// Changes of the last poses at their stamps.
    fn at_stamps(&self, change: &Unknowns) -> Vec<Vector3<f64>> {
        let velocities = self.velocities(change.poses.len());
        change.poses.iter().zip(velocities).map(|(pose, velocity)| pose + velocity * change.shared[DELAY]).collect()
    }

    /// Velocities at the last poses, in the frame of the map.
    pub(super) fn velocities(&self, count: usize) -> impl Iterator<Item = Vector3<f64>> {
        let last = self.poses.len() - count..self.poses.len();
        self.links[last.clone()].iter().zip(&self.poses[last]).map(|(link, pose)| link.velocity_in_map(pose))
    }

    /// Covariance of each pose given the first, with field and sensor marginalised.
    ///
    /// # Errors
    /// Where rounding leaves no positive definite system.
    pub fn covariances(&self) -> Result<Vec<Matrix3<f64>>, NotPositiveDefinite> {
        let mut covariances = self.covariances_of_given_size()?;
        for (covariance, pose) in covariances.iter_mut().zip(&self.poses) {
            let mut places = covariance.fixed_view_mut::<2, 2>(0, 0);
            places += self.covariance_of_stretch(pose.xy() - self.poses[0].xy());
        }
        Ok(covariances)
    }

    /// Covariance by a stretch of a place at this distance from what is not moved.
    fn covariance_of_stretch(&self, distance: Vector2<f64>) -> Matrix2<f64> {
        distance * distance.transpose() * (self.prior.stretch * self.prior.stretch)
    }

    /// Covariance of each pose if the path is not stretched.
    pub(super) fn covariances_of_given_size(&self) -> Result<Vec<Matrix3<f64>>, NotPositiveDefinite> {
        if self.segments.is_empty() {
            return if self.poses.is_empty() { Ok(Vec::new()) } else { Err(NotPositiveDefinite) };
        }
        let Reduced { order, tiles, factor: border } = self.reduce_whole()?;
        let mut covariances = vec![Matrix3::zeros(); self.poses.len()];
        for (index, tile) in tiles.iter().enumerate() {
            // The inverse of the border would be large: only what the tile needs of it is computed.
            let mut root = linalg::zeros(border.nrows(), tile.columns.len());
            tile.columns.iter().enumerate().for_each(|(column, row)| root[(*row, column)] = 1.0);
            linalg::solve_lower(border.as_ref(), root.as_mut());
            let shared = linalg::product(root.transpose(), root.as_ref());
            let factor = self.factor_of_tile(&Window::free(), &order, index)?;
            let basis = &self.tiles[index].basis;
            let field = basis.size();
            for (number, segment) in self.segments_of(&order, index) {
                let (interior, regression) = segment.conditionals(&segment.features(basis));
                // Minus the regression of all poses on the unknowns of the tile, and on those of the border.
                let count = interior.len() + 1;
                let mut by_tile = linalg::zeros(factor.nrows(), 3 * count);
                let mut by_border = linalg::zeros(tile.columns.len(), 3 * count);
                by_tile
                    .as_mut()
                    .submatrix_mut(0, 3, field, 3 * (count - 1))
                    .copy_from(regression.as_ref().subrows(0, field));
                for (row, place) in order.places(number).enumerate() {
                    let (target, at) = match place {
                        None => continue,
                        Some(Place::Tile(at)) => (&mut by_tile, at),
                        Some(Place::Border(at)) => (&mut by_border, tile.column(at)),
                    };
                    for column in 0..3 * (count - 1) {
                        target[(at, 3 + column)] += regression[(field + row, column)];
                    }
                    if let Some(axis) = row.checked_sub(SHARED).filter(|axis| *axis < 3) {
                        target[(at, axis)] = -1.0;
                    }
                }
                let delay = tile.column(DELAY);
                for (index, (link, pose)) in segment.part(&self.links).iter().zip(segment.part(&self.poses)).enumerate()
                {
                    let velocity = link.velocity_in_map(pose);
                    (0..3).for_each(|axis| by_border[(delay, 3 * index + axis)] -= velocity[axis]);
                }
                // Given the border, the unknowns of the tile vary by its factor; with the border, by its regression.
                linalg::add_product(by_border.as_mut(), -1.0, tile.regression.transpose(), by_tile.as_ref());
                linalg::solve_lower(factor.as_ref(), by_tile.as_mut());
                let spread = linalg::product(shared.as_ref(), by_border.as_ref());
                let conditionals = [Matrix3::zeros()].into_iter().chain(interior);
                let of_segment = &mut covariances[segment.first..segment.end];
                for (index, (covariance, conditional)) in of_segment.iter_mut().zip(conditionals).enumerate() {
                    let axis = |axis: usize| 3 * index + axis;
                    let with = |left: &Matrix, right: &Matrix| {
                        let column = |i, j| linalg::dot(left.col_as_slice(axis(i)), right.col_as_slice(axis(j)));
                        Matrix3::from_fn(column)
                    };
                    *covariance = conditional + with(&by_tile, &by_tile) + with(&by_border, &spread);
                }
            }
        }
        Ok(covariances)
    }
}
