//! How far the readings prove that the path came back to places where it was before.

use std::ops::Range;

use nalgebra::{Rotation3, Vector3};
use serde::Serialize;
use streaming_gp::NotPositiveDefinite;
use streaming_gp::linalg::{self, Matrix};

use super::{CHUNK, Smoother};
use crate::slam::basis::Basis;
use crate::slam::chain::{IRON, MEAN, PlanePose};

/// Readings within this distance of a piece of the path count as those of the same place, in lengthscales.
const AROUND: f64 = 1.2;

/// A piece of the path, of a few metres at most, at places where it was before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Revisit {
    /// Length of the path up to there, in metres.
    pub after: f64,
    /// Length of the piece, in metres.
    pub length: f64,
    /// Length of the way since the path was there before, in metres.
    pub way_round: f64,
    /// Logarithm of the likelihood of its readings given those from before, over that without them: how far they prove that the place is the
    /// same. Below zero they contradict it.
    pub evidence: f64,
}

impl Smoother {
    /// Where the path came back to places where it was before.
    ///
    /// # Errors
    /// Where rounding leaves no positive definite covariance of the readings.
    pub fn revisits(&self) -> Result<Vec<Revisit>, NotPositiveDefinite> {
        let revisit = |piece: Range<usize>| {
            let [after, last] = [piece.start, piece.end - 1].map(|index| self.revisits.along(index));
            let before = self.revisits.earlier(piece.start).map_or(after, |earlier| self.revisits.along(earlier));
            let evidence = self.evidence(piece)?;
            Ok(Revisit { after, length: last - after, way_round: after - before, evidence })
        };
        self.revisited_pieces().into_iter().map(revisit).collect()
    }

    /// The poses at places where the path was before, in pieces of a few metres.
    pub(super) fn revisited_pieces(&self) -> Vec<Range<usize>> {
        let (mut pieces, mut first) = (Vec::new(), 0);
        while first < self.poses.len() {
            // Where the path jumps, a piece ends.
            let is_near = |index: &usize| self.revisits.end_before(*index) <= first;
            let poses = (first..self.poses.len().min(first + CHUNK)).take_while(is_near);
            let count = poses.take_while(|index| self.revisits.earlier(*index).is_some()).count();
            if count > 0 {
                pieces.push(first..first + count);
            }
            first += count.max(1);
        }
        pieces
    }

    /// Logarithm of the likelihood of the readings at these poses given those from before, over that without them.
    pub(super) fn evidence(&self, piece: Range<usize>) -> Result<f64, NotPositiveDefinite> {
        let margin = AROUND * self.prior.field.lengthscale;
        let around: [[f64; 2]; 2] = [0, 1].map(|axis| {
            let along = || self.poses[piece.clone()].iter().map(|pose| pose[axis]);
            [along().fold(f64::INFINITY, f64::min) - margin, along().fold(f64::NEG_INFINITY, f64::max) + margin]
        });
        let basis = Basis::new(&self.prior.field, around.map(|[low, _]| low), around.map(|[low, high]| high - low));
        let is_around = |pose: &PlanePose| (0..2).all(|axis| (around[axis][0]..around[axis][1]).contains(&pose[axis]));
        let before = 0..self.revisits.end_before(piece.start);
        let before = self.seen(&basis, before.filter(|index| is_around(&self.poses[*index])).collect());
        // The unknowns of the field, given those readings.
        let mut information = Matrix::identity(basis.size(), basis.size());
        linalg::add_outer_gram(information.as_mut(), 1.0, before.features.as_ref());
        let factor = linalg::cholesky(information)?;
        let mut mean = linalg::matrix_vector(before.features.as_ref(), &before.field);
        linalg::solve_from_cholesky(factor.as_ref(), &mut mean);
        let Seen { features, field } = self.seen(&basis, piece.collect());
        let expected = |row: usize| linalg::dot(features.col_as_slice(row), &mean);
        let unexpected = field.iter().enumerate().map(|(row, value)| value - expected(row)).collect();
        let mut known = linalg::copied(features.as_ref());
        linalg::solve_lower(factor.as_ref(), known.as_mut());
        Ok(log_likelihood(&known, unexpected)? - log_likelihood(&features, field)?)
    }

    /// The readings at these poses.
    fn seen(&self, basis: &Basis, poses: Vec<usize>) -> Seen {
        let places: Vec<PlanePose> = poses.iter().map(|index| self.poses[*index]).collect();
        let mut features = basis.features(&places);
        let left_out = basis.left_out();
        let deviations = [left_out.x, left_out.x, left_out.y].map(|variance| (variance + self.prior.noise).sqrt());
        let (iron, mean) = (self.shared.fixed_rows::<3>(IRON), self.shared.fixed_rows::<3>(MEAN));
        let field = |index: &usize| -> Vector3<f64> {
            let link = &self.links[*index];
            Rotation3::from_axis_angle(&Vector3::z_axis(), self.poses[*index].z) * (link.field - link.tilt * iron)
                - mean
        };
        let field = poses.iter().flat_map(|index| field(index).data.0[0]).zip(deviations.iter().cycle());
        let field = field.map(|(value, deviation)| value / deviation).collect();
        linalg::scale_columns(&mut features, |column| 1.0 / deviations[column % 3]);
        Seen { features, field }
    }
}

/// Readings of three axes each along those of the map, over their standard deviations: a column of features, and the field around its mean.
struct Seen {
    features: Matrix,
    field: Vec<f64>,
}

/// Logarithm of N(values; 0, 1 + A'A), but for a constant.
fn log_likelihood(features: &Matrix, mut values: Vec<f64>) -> Result<f64, NotPositiveDefinite> {
    let mut covariance = Matrix::identity(features.ncols(), features.ncols());
    linalg::add_product(covariance.as_mut(), 1.0, features.transpose(), features.as_ref());
    let factor = linalg::cholesky(covariance)?;
    linalg::solve_lower_vector(factor.as_ref(), &mut values);
    Ok(-0.5 * linalg::squared_norm(&values) - 0.5 * linalg::log_determinant(factor.as_ref()))
}

#[cfg(test)]
mod tests {
    use nalgebra::{DMatrix, DVector};

    use super::*;
    use crate::slam::{FieldPrior, Link, Prior};

    /// Ten metres there and back in a field that varies along the way, 10 cm a step; the sensor is this far off on its way back.
    fn there_and_back(off: f64) -> Smoother {
        let field =
            |x: f64| Vector3::new(15.0 + 8.0 * (1.3 * x).sin(), 6.0 * (0.7 * x).cos(), 9.0 * (1.1 * x).sin() - 45.0);
        let steps = || (0..100).chain((0..100).rev()).enumerate();
        let turn = |index: usize| if index < 100 { 0.0 } else { std::f64::consts::PI };
        let link = |(index, step): (usize, usize)| {
            let truth = 0.1 * f64::from(step as u32) - if index < 100 { 0.0 } else { off };
            let levelled = Rotation3::from_axis_angle(&Vector3::z_axis(), -turn(index));
            Link::new(&PlanePose::zeros(), &PlanePose::new(0.1, 0.0, 0.0), 0.2, levelled * field(truth))
        };
        let prior = FieldPrior { variance_below: 60.0, variance_above: 20.0, lengthscale: 0.9 };
        let start = PlanePose::zeros();
        let mut smoother = Smoother::new(Prior::new(prior, 4.0), start, steps().map(link).collect());
        smoother.poses =
            steps().map(|(index, step)| PlanePose::new(0.1 * f64::from(step as u32), 0.0, turn(index))).collect();
        smoother.shared.fixed_rows_mut::<3>(MEAN).copy_from(&Vector3::new(15.0, 0.0, -45.0));
        smoother.poses.iter().for_each(|pose| smoother.revisits.push(pose));
        smoother
    }

    #[test]
    fn the_evidence_of_a_revisit_is_what_both_visits_together_tell_more_than_each() {
        let smoother = there_and_back(0.0);
        let (first, end) = (150, 160);
        let now = &smoother.poses[first..end];
        let places = now.iter().map(|pose| pose.x);
        let margin = AROUND * 0.9;
        let (low, high) = (places.clone().fold(f64::INFINITY, f64::min) - margin, places.fold(0.0, f64::max) + margin);
        let basis = Basis::new(&smoother.prior.field, [low, -margin], [high - low, 2.0 * margin]);
        let then = (0..100).filter(|index| (low..high).contains(&smoother.poses[*index].x));
        let logarithm = |poses: Vec<usize>| {
            let Seen { features, field } = smoother.seen(&basis, poses);
            let features = DMatrix::from_fn(features.nrows(), features.ncols(), |row, column| features[(row, column)]);
            let covariance = DMatrix::identity(field.len(), field.len()) + features.tr_mul(&features);
            let values = DVector::from_vec(field);
            let solved = covariance.clone().cholesky().unwrap().solve(&values);
            -0.5 * values.dot(&solved) - 0.5 * covariance.determinant().ln()
        };
        let joint = logarithm(then.clone().chain(first..end).collect());
        let expected = joint - logarithm(then.collect()) - logarithm((first..end).collect());
        let found = smoother.evidence(first..end).unwrap();
        assert!((found - expected).abs() < 1e-6 * expected.abs(), "{found} {expected}");
    }

    #[test]
    fn readings_prove_a_place_that_is_the_same_and_contradict_another_one() {
        let revisits = there_and_back(0.0).revisits().unwrap();
        // The way back is revisited but for 4.5 m about the turn, in pieces of at most 4 m.
        let length: f64 = revisits.iter().map(|revisit| revisit.length).sum();
        assert!(revisits.len() == 2 && (7.0..7.9).contains(&length), "{revisits:?}");
        assert!(revisits.iter().all(|revisit| revisit.evidence > 20.0), "{revisits:?}");
        let Revisit { after, way_round, .. } = revisits[0];
        assert!((11.5..13.0).contains(&after) && (4.5..5.0).contains(&way_round), "{revisits:?}");
        // Half a wave of the field away, 2.4 m, it is another one.
        let wrong = there_and_back(2.4).revisits().unwrap();
        assert!(wrong.len() == 2 && wrong.iter().all(|revisit| revisit.evidence < 0.0), "{wrong:?}");
    }
}
