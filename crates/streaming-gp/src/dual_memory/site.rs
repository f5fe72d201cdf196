//! How one reading is represented in the posterior.

use super::expectation::Expectation;

/// The Gaussian that replaces the likelihood of one reading in the posterior (eq. 12), in natural parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Site {
    /// beta.
    pub precision: f64,
    /// beta (y~ - m), with the pseudo-output y~ = alpha / beta + E\[f\] and the prior mean m.
    pub natural: f64,
}

/// The smallest precision of a site, in units of the inverse prior variance: as good as nothing. An outlier of Student's t has a beta
/// below 0, which no Gaussian has.
const LEAST_PRECISION: f64 = 1e-8;

impl Site {
    /// The site that the natural gradient leads to from a posterior with this expectation of a reading and this E\[f\] - m:
    /// the dual parameters of the reading there (eqs. 56 to 58).
    pub(super) fn of(expectation: &Expectation, centred_mean: f64, prior_variance: f64) -> Self {
        let precision = expectation.beta.max(LEAST_PRECISION / prior_variance.max(f64::MIN_POSITIVE));
        Self { precision, natural: expectation.alpha + precision * centred_mean }
    }

    /// The share of the way to another site.
    pub(super) fn towards(self, other: Self, share: f64) -> Self {
        let between = |from: f64, to: f64| if share == 1.0 { to } else { from + share * (to - from) };
        Self { precision: between(self.precision, other.precision), natural: between(self.natural, other.natural) }
    }
}

/// The largest change of a site relative to the larger of the two, or to the largest of all naturals.
pub(super) fn change(before: &[Site], after: &[Site]) -> f64 {
    let largest = after.iter().map(|site| site.natural.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let changes = before.iter().zip(after).map(|(before, after)| {
        let precision = (after.precision - before.precision).abs() / after.precision.max(before.precision);
        precision.max((after.natural - before.natural).abs() / largest)
    });
    changes.fold(0.0, f64::max)
}
