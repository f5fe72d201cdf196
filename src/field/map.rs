//! Prediction from a map.

use streaming_gp::link::Link;
use streaming_gp::report::NamedValue;
use streaming_gp::vector::{Axes, SensorPose};

use super::posterior::{MapPosterior, Prediction};
use super::quantity::Quantity;
use super::tiles::{Extent, LocalPosteriors};
use super::totals::Totals;
use crate::sensing::reading::Stamp;

pub use super::sensor_bias::SensorBias;

/// The map after an update: immutable, cheap to clone, and safe to query from several threads.
///
/// Where it is made of local models, what is asked of a place is a blend of those around it.
#[derive(Clone, Debug)]
pub struct FieldMap {
    posteriors: LocalPosteriors,
    /// As all local models know it together.
    sensor_bias: Option<SensorBias>,
    extent: Extent,
    stamp: Stamp,
    totals: Totals,
}

impl FieldMap {
    /// A map with this posterior, learnt within `extent` (lower left and upper right corner, in metres) up to `stamp`.
    pub fn new(posterior: MapPosterior, extent: [[f64; 2]; 2], stamp: Stamp, totals: Totals) -> Self {
        Self::of_tiles(LocalPosteriors::one(posterior), None, extent, stamp, totals)
    }

    pub(super) fn of_tiles(
        posteriors: LocalPosteriors,
        sensor_bias: Option<SensorBias>,
        extent: Extent,
        stamp: Stamp,
        totals: Totals,
    ) -> Self {
        Self { posteriors, sensor_bias, extent, stamp, totals }
    }

    /// What is mapped.
    pub fn quantity(&self) -> Quantity {
        self.posteriors.newest().link().into()
    }

    /// Mean and variance at places (x and y in metres): in microtesla and microtesla squared, or of the probability of a yes. The
    /// noise of a reading is not included. Both are NaN where the map is unknown: where the variance of the process, of the three
    /// axes together where it has them, exceeds `unknown_above` times its variance infinitely far from every reading.
    pub fn predict(&self, places: &[[f64; 2]], unknown_above: f64, mean: &mut [f64], variance: &mut [f64]) {
        let values: Vec<(f64, f64)> = if self.posteriors.newest().has_axes() {
            let places: Vec<[f64; 3]> = places.iter().map(|&[x, y]| [x, y, 0.0]).collect();
            let strength = |axes| Axes::from(axes).strength();
            known(self.blended_axes(&places), unknown_above, strength)
        } else {
            let link = self.posteriors.newest().link();
            let scalar = self.posteriors.blend(places.iter().copied(), |posterior, indices| {
                posterior.scalar(&select(places, indices)).unwrap_or_default()
            });
            known(scalar, unknown_above, |Prediction { mean: [mean], covariance: [[variance]], .. }| {
                of_quantity(link, mean, variance)
            })
        };
        for ((value, mean), variance) in values.into_iter().zip(mean).zip(variance) {
            (*mean, *variance) = value;
        }
    }

    /// Whether it predicts all places of an area (lower left and upper right corner, in metres) as the `other` map does, to the last bit,
    /// because the same local models predict them. A no is possible where they do.
    pub(super) fn predicts_as(&self, other: &Self, area: Extent) -> bool {
        self.posteriors.predict_as(&other.posteriors, area)
    }

    /// Mean and covariance of the field's axes at places (x, y and the height above the plane of the map, in metres), in the map's
    /// frame and microtesla, free of the sensor's bias; none where the map is one of strengths.
    pub fn axes(&self, places: &[[f64; 3]]) -> Option<Vec<Axes>> {
        let has_axes = self.posteriors.newest().has_axes();
        has_axes.then(|| self.blended_axes(places).into_iter().map(Axes::from).collect())
    }

    fn blended_axes(&self, places: &[[f64; 3]]) -> Vec<Prediction<3>> {
        self.posteriors.blend(places.iter().map(|&[x, y, _]| [x, y]), |posterior, indices| {
            posterior.axes(&select(places, indices)).unwrap_or_default()
        })
    }

    /// What the sensor would read at these poses, in the map's frame and microtesla, bias included and noise not; none where the map is
    /// one of strengths.
    pub fn readings(&self, poses: &[SensorPose]) -> Option<Vec<Axes>> {
        let places = poses.iter().map(|pose| [pose.position[0], pose.position[1]]);
        let blend = || {
            self.posteriors
                .blend(places, |posterior, indices| posterior.readings(&select(poses, indices)).unwrap_or_default())
        };
        self.posteriors.newest().has_axes().then(|| blend().into_iter().map(Axes::from).collect())
    }

    /// The bias of the sensor; none where the map is one of strengths, or the settings exclude it.
    pub fn sensor_bias(&self) -> Option<SensorBias> {
        match self.posteriors.only() {
            Some(posterior) => posterior.sensor_bias(),
            None => self.sensor_bias,
        }
    }

    /// Standard deviation of the quantity where nothing is known: of the strength around its constant, in microtesla, or of the
    /// probability of a yes. Of local models it is that of the one that learnt last.
    pub fn prior_standard_deviation(&self) -> f64 {
        let newest = self.posteriors.newest();
        of_quantity(newest.link(), 0.0, newest.prior_variance()).1.sqrt()
    }

    /// Variance of the noise of an averaged reading, in microtesla squared, of each axis where it has them; without meaning for a
    /// yes/no signal. Of local models it is that of the one that learnt last.
    pub fn noise_variance(&self) -> f64 {
        self.posteriors.newest().noise_variance()
    }

    /// The same at places (x and y in metres), of the local models there.
    pub fn noise_variances(&self, places: &[[f64; 2]]) -> Vec<f64> {
        self.posteriors.noise_variances(places)
    }

    /// The hyperparameters by name; the noise variance is the last. Of local models they are those of the one that learnt last.
    pub fn hyperparameters(&self) -> Vec<NamedValue> {
        self.posteriors.newest().hyperparameters()
    }

    /// Positions of the inducing points, in metres; of a place with several axes more than once.
    pub fn inducing_points(&self) -> Vec<[f64; 2]> {
        self.posteriors.all().flat_map(MapPosterior::inducing_points).collect()
    }

    /// Number of inducing points: of axes and components of the sensor's bias where it has them.
    pub fn size(&self) -> usize {
        self.posteriors.all().map(MapPosterior::size).sum()
    }

    /// Lower left and upper right corner of the observations, in metres.
    pub fn extent(&self) -> [[f64; 2]; 2] {
        self.extent
    }

    /// Stamp of the last observation in it.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Counts of what it was learnt from.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

/// The items with these indices.
fn select<T: Copy>(items: &[T], indices: &[usize]) -> Vec<T> {
    indices.iter().map(|&index| items[index]).collect()
}

/// Mean and variance of each prediction, NaN where it is unknown.
fn known<const D: usize>(
    predictions: Vec<Prediction<D>>,
    unknown_above: f64,
    values: impl Fn(Prediction<D>) -> (f64, f64),
) -> Vec<(f64, f64)> {
    let values = |prediction: Prediction<D>| {
        let is_known = prediction.total_variance() <= unknown_above * prediction.far_variance
            && prediction.mean.iter().all(|value| value.is_finite());
        if is_known { values(prediction) } else { (f64::NAN, f64::NAN) }
    };
    predictions.into_iter().map(values).collect()
}

/// Mean and variance of the quantity, given those of the process.
fn of_quantity(link: Option<Link>, mean: f64, variance: f64) -> (f64, f64) {
    let variance = variance.max(0.0);
    match link {
        None => (mean, variance),
        Some(link) => (link.probability(mean, variance), link.deviation_of_probability(mean, variance).powi(2)),
    }
}
