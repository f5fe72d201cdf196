//! Rigid motions of a tile's field.
//!
//! The prior of a field is stationary and isotropic: a field that is translated or rotated together with the poses that saw it is as probable
//! as before. Gauss-Newton loses this invariance. Along such a motion the unknowns move on a sphere, while the quadratic prior penalises the step
//! along its tangent. Each tile would be anchored with a standard deviation of some centimetres, whatever odometry and other tiles say:
//! covariances come out too small, and steps too short. So the prior is projected out of the second derivatives along three directions of
//! each tile: translation in x and in y, and rotation.

use nalgebra::Vector2;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg;

use super::{Smoother, add_to};
use crate::slam::chain::MEAN;

/// Iterations of refinement of a motion: each reduces the bias by the prior (iterated Tikhonov regularisation).
const REFINEMENTS: usize = 8;

/// Least share of the squared norm of a motion that is orthogonal to the motions before it; with less it is dropped as linearly dependent.
const LEAST_REST: f64 = 1e-3;

impl Smoother {
    /// Finds the motions of all tiles, with the field and the poses as they were linearised.
    pub(super) fn find_motions(&mut self) -> Result<(), NotPositiveDefinite> {
        for index in 0..self.tiles.len() {
            self.tiles[index].motions = self.motions(index)?;
        }
        Ok(())
    }

    /// Orthonormal changes of the unknowns of a field that translate it in x and y, and rotate it.
    fn motions(&self, index: usize) -> Result<Vec<Vec<f64>>, NotPositiveDefinite> {
        let tile = &self.tiles[index];
        let segments = || self.segments.iter().filter(|segment| segment.tile == index && segment.is_linearised());
        let Some(first) = segments().next() else { return Ok(Vec::new()) };
        let (centre, mean): (Vector2<f64>, _) = (first.linearised.poses[0].xy(), self.shared.fixed_rows::<3>(MEAN));
        let mut moved = [(); 3].map(|()| vec![0.0; tile.field.len()]);
        for segment in segments() {
            segment.add_motions(&segment.features(&tile.basis), centre, &mean.into_owned(), &mut moved);
        }
        let mut information = linalg::copied(tile.information());
        linalg::mirror_lower(information.as_mut());
        let factor = linalg::cholesky(linalg::copied(tile.information()))?;
        let mut motions: Vec<Vec<f64>> = Vec::new();
        for right in moved {
            let mut motion = vec![0.0; right.len()];
            for _ in 0..REFINEMENTS {
                // The residual of the normal equations without the prior, whose matrix is the information less the identity.
                let mut rest = right.clone();
                linalg::add_matrix_vector(&mut rest, -1.0, information.as_ref(), &motion);
                add_to(&mut rest, &motion);
                linalg::solve_from_cholesky(factor.as_ref(), &mut rest);
                add_to(&mut motion, &rest);
            }
            let whole = linalg::squared_norm(&motion);
            for other in &motions {
                let share = linalg::dot(other, &motion);
                motion.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
            }
            let rest = linalg::squared_norm(&motion);
            if rest > LEAST_REST * whole {
                motion.iter_mut().for_each(|value| *value /= rest.sqrt());
                motions.push(motion);
            }
        }
        Ok(motions)
    }
}
