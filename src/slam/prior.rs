//! Prior of path, field and sensor, before any reading.

use nalgebra::Vector3;

use super::basis::FieldPrior;
use super::chain::{DELAY, DRIFT, MEAN, OdometryNoise, PlanePose, SCALE, Shared};
use super::tile::Layout;

/// Largest side of a tile in lengthscales, which limits the number of its unknowns.
const TILE: f64 = 12.0;

/// Prior of path, field and sensor, before any reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    /// The field around its mean.
    pub field: FieldPrior,
    /// Variance of the noise of an observation, in microtesla squared. It is several times that of its average: neighbours share errors of
    /// place and heading.
    pub noise: f64,
    /// Noise of odometry.
    pub odometry: OdometryNoise,
    /// Standard deviations of what is shared.
    pub shared: Shared,
    /// Whether the field's lengthscale is known. Else the most probable one is looked for.
    pub is_lengthscale_known: bool,
    /// Relative standard deviation of the size of path and lengthscale together. A path and a field that are stretched alike explain the
    /// readings as well as before: this is added to covariances.
    pub stretch: f64,
    /// Largest side of a tile, in metres; where the field varies over less, tiles are smaller.
    pub tile: f64,
}

impl Prior {
    /// The usual robot on wheels, with this field and noise.
    pub fn new(field: FieldPrior, noise: f64) -> Self {
        let mut shared = Shared::repeat(5.0);
        // Drivers and filters delay readings by up to some tenths of a second.
        shared[DELAY] = 0.1;
        // A field that is smoother than its hyperparameters say would shrink the path, so odometry's scale is held.
        (shared[SCALE], shared[DRIFT]) = (0.01, 0.02);
        shared.fixed_rows_mut::<3>(MEAN).copy_from(&Vector3::new(50.0, 50.0, 80.0));
        Self {
            field,
            noise,
            odometry: OdometryNoise { forward: 0.01, sideways: 0.002, heading: 0.02, turning: 0.01 },
            shared,
            is_lengthscale_known: true,
            stretch: 0.03,
            tile: 6.0,
        }
    }

    /// The tiles around a path.
    pub(super) fn layout(&self, path: &[PlanePose]) -> Layout {
        let lengthscale = self.field.lengthscale;
        Layout::around(path.iter(), self.tile.min(TILE * lengthscale), lengthscale)
    }

    /// Whether these are numbers with which a path can be estimated.
    pub(super) fn is_valid(&self) -> bool {
        let FieldPrior { variance_below, variance_above, lengthscale } = self.field;
        let OdometryNoise { forward, sideways, heading, turning } = self.odometry;
        let positive = [variance_below + variance_above, lengthscale, self.noise, self.tile];
        let others = [variance_below, variance_above, forward, sideways, heading, turning, self.stretch];
        positive.iter().chain(&self.shared).all(|value| value.is_finite() && *value > 0.0)
            && others.iter().all(|value| value.is_finite() && *value >= 0.0)
    }
}
