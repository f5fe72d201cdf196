//! The posterior of one model, and what it says of places.

use std::sync::Arc;

use streaming_gp::vector::{Bias, VectorMap};
use streaming_gp::{Axes, FieldPlace, NamedValue, Places, Points, SensorPose};

use super::engine::{FieldPosterior, VectorPosterior};
use super::sensor_bias::SensorBias;

/// Farther from every reading than a map reaches, in metres.
const FAR: f64 = 1e9;

/// A posterior of the strength, or of the three axes.
#[derive(Clone, Debug)]
pub enum MapPosterior {
    /// Of the strength.
    Scalar(Arc<FieldPosterior>),
    /// A posterior of the axes and the sensor's bias.
    Vector {
        /// The posterior.
        posterior: Arc<VectorPosterior>,
        /// The bias that its readings were free of.
        removed: Bias,
    },
}

/// A normal distribution of some outputs at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gaussian<const D: usize> {
    pub mean: [f64; D],
    pub covariance: [[f64; D]; D],
    /// Trace of the covariance infinitely far from every reading, at the same height.
    pub far_variance: f64,
}

impl<const D: usize> Gaussian<D> {
    /// Whether its variance is at most this share of that infinitely far away.
    pub(super) fn is_known(&self, unknown_above: f64) -> bool {
        let total: f64 = (0..D).map(|i| self.covariance[i][i]).sum();
        total <= unknown_above * self.far_variance && self.mean.iter().all(|value| value.is_finite())
    }
}

impl From<Gaussian<3>> for Axes {
    fn from(Gaussian { mean, covariance, .. }: Gaussian<3>) -> Self {
        Self { mean, covariance }
    }
}

impl MapPosterior {
    /// Whether it is the same one, not only one that is equal.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Scalar(own), Self::Scalar(other)) => Arc::ptr_eq(own, other),
            (Self::Vector { posterior: own, .. }, Self::Vector { posterior: other, .. }) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Whether it is one of the three axes.
    pub(super) fn has_axes(&self) -> bool {
        matches!(self, Self::Vector { .. })
    }

    /// The strength at places (x and y); none where the axes are mapped.
    pub(super) fn scalar(&self, places: &[[f64; 2]]) -> Option<Vec<Gaussian<1>>> {
        let Self::Scalar(posterior) = self else { return None };
        let (_, far_variance) = posterior.predict(&Points::from_arrays(&[[FAR, FAR]]));
        let (mean, variance) = posterior.predict(&Points::from_arrays(places));
        let gaussian =
            |(mean, variance)| Gaussian { mean: [mean], covariance: [[variance]], far_variance: far_variance[0] };
        Some(mean.into_iter().zip(variance).map(gaussian).collect())
    }

    /// The field's axes at places (x, y and height), free of the sensor's bias; none where the strength is mapped.
    pub(super) fn axes(&self, places: &[[f64; 3]]) -> Option<Vec<Gaussian<3>>> {
        let Self::Vector { posterior, removed } = self else { return None };
        let map = VectorMap::after_removal(posterior, *removed);
        let mut heights: Vec<f64> = places.iter().map(|place| place[2]).collect();
        heights.sort_by(f64::total_cmp);
        heights.dedup_by_key(|height| height.to_bits());
        let far = map.axes(&heights.iter().map(|&height| [FAR, FAR, height]).collect::<Vec<_>>());
        let far_variance = |height: f64| {
            let Axes { covariance, .. } = far[heights.partition_point(|other| other.total_cmp(&height).is_lt())];
            (0..3).map(|axis| covariance[axis][axis]).sum()
        };
        let axes = map.axes(places).into_iter().zip(places);
        Some(axes.map(|(axes, &[_, _, height])| gaussian(axes, far_variance(height))).collect())
    }

    /// [`axes`](Self::axes) at places (x and y) at the height of the plane, where the readings were.
    pub(super) fn axes_in_plane(&self, places: &[[f64; 2]]) -> Option<Vec<Gaussian<3>>> {
        let Self::Vector { posterior, .. } = self else { return None };
        let plane = posterior.model.kernel.plane;
        self.axes(&places.iter().map(|&[x, y]| [x, y, plane]).collect::<Vec<_>>())
    }

    /// Length of the harmonic field, in metres; none where the strength is mapped.
    pub(super) fn harmonic_length(&self) -> Option<f64> {
        let Self::Vector { posterior, .. } = self else { return None };
        Some(posterior.model.kernel.lengthscale)
    }

    /// Readings of the sensor, without noise; none where the strength is mapped.
    pub(super) fn readings(&self, poses: &[SensorPose]) -> Option<Vec<Gaussian<3>>> {
        let Self::Vector { posterior, removed } = self else { return None };
        let readings = VectorMap::after_removal(posterior, *removed).readings(poses);
        Some(readings.into_iter().map(|axes| gaussian(axes, f64::INFINITY)).collect())
    }

    /// The bias of the sensor as this posterior alone knows it.
    pub(super) fn sensor_bias(&self) -> Option<SensorBias> {
        let Self::Vector { posterior, removed } = self else { return None };
        SensorBias::of(posterior, *removed)
    }

    /// Variance of the field around its constant where nothing is known: the mean over its axes where it has them.
    pub(super) fn prior_variance(&self) -> f64 {
        match self {
            Self::Scalar(posterior) => posterior.model.kernel.variance,
            // The vertical axis has twice the variance of a horizontal one.
            Self::Vector { posterior, .. } => posterior.model.kernel.total_variance() * 4.0 / 3.0,
        }
    }

    /// Variances of the field from sources below and above the sensor; none where only those below are modelled, or none.
    pub(super) fn sides(&self) -> Option<[f64; 2]> {
        let Self::Vector { posterior, .. } = self else { return None };
        let kernel = &posterior.model.kernel;
        Some([kernel.variance, kernel.variance_above?])
    }

    /// Variance of the noise of an averaged reading, of each axis where it has them.
    pub(super) fn noise_variance(&self) -> f64 {
        match self {
            Self::Scalar(posterior) => posterior.model.noise_variance(),
            Self::Vector { posterior, .. } => posterior.model.noise_variance(),
        }
    }

    /// The hyperparameters by name; the noise variance is the last.
    pub(super) fn hyperparameters(&self) -> Vec<NamedValue> {
        match self {
            Self::Scalar(posterior) => posterior.model.named_values(),
            Self::Vector { posterior, .. } => posterior.model.named_values(),
        }
    }

    /// Positions of the inducing points, in metres; of a place with several axes more than once.
    pub(super) fn inducing_points(&self) -> Vec<[f64; 2]> {
        match self {
            Self::Scalar(posterior) => {
                let points = &posterior.past.inducing;
                points.axis(0).iter().zip(points.axis(1)).map(|(&x, &y)| [x, y]).collect()
            }
            Self::Vector { posterior, .. } => {
                let position = |place| match place {
                    FieldPlace::Field { position: [x, y, _], .. } => Some([x, y]),
                    _ => None,
                };
                posterior.past.inducing.iter().filter_map(position).collect()
            }
        }
    }

    /// Number of inducing points: of axes and components of the sensor's bias where it has them.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Scalar(posterior) => posterior.past.inducing.len(),
            Self::Vector { posterior, .. } => posterior.past.inducing.len(),
        }
    }
}

fn gaussian(Axes { mean, covariance }: Axes, far_variance: f64) -> Gaussian<3> {
    Gaussian { mean, covariance, far_variance }
}
