//! The directions in which the field of a tile moves as a whole.
//!
//! A field is as likely wherever it lies and however it is turned. Gauss-Newton does not know that: when a field moves with its readings, its
//! unknowns run along a circle, and the quadratic form of their prior counts the way along the tangent. It would hold the places of every tile
//! as if they were known to some centimetres, however little odometry and the tiles around it tell: covariances come out too small, and steps
//! too short. So the prior is left out of the second derivatives in three directions of each tile: those in which its field is shifted in x and
//! y, and turned.

use nalgebra::Vector2;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg;

use super::{Smoother, add_to};
use crate::slam::chain::MEAN;

/// Steps of iterative refinement with which a motion is found: each makes the part of it that the prior suppresses smaller.
const REFINEMENTS: usize = 8;

/// A motion that is more than this share of others, as squared norms, is none of its own.
const LEAST_REST: f64 = 1e-3;

impl Smoother {
    /// Finds the motions of all tiles, with the field and the poses as they were linearised.
    pub(super) fn find_motions(&mut self) -> Result<(), NotPositiveDefinite> {
        for index in 0..self.tiles.len() {
            self.tiles[index].motions = self.motions(index)?;
        }
        Ok(())
    }

    /// Orthonormal changes of the unknowns of a field with which it is shifted in x and y, and turned.
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
                // What the readings want beyond this motion: their information is that of the tile less the prior's.
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
