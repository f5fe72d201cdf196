//! Prediction from a map.

use streaming_gp::report::NamedValue;
use streaming_gp::vector::{Axes, SensorPose};

use super::interpolation::interpolated;
use super::posterior::{Gaussian, MapPosterior};
use super::tiles::{Extent, LocalPosteriors};
use super::totals::Totals;
use crate::sensing::reading::Stamp;

pub use super::sensor_bias::SensorBias;

/// The map after an update: immutable, cheap to clone, and safe to query from several threads.
///
/// A map of several local models blends those around a place.
#[derive(Clone, Debug)]
pub struct FieldMap {
    posteriors: LocalPosteriors,
    /// The bias by all local models together.
    sensor_bias: Option<SensorBias>,
    /// Lower left and upper right corner of the observations, in metres.
    pub extent: [[f64; 2]; 2],
    /// Stamp of the last observation in it.
    pub stamp: Stamp,
    /// Counts of what it was learnt from.
    pub totals: Totals,
}

/// Predictions at places, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Mean of the strength; NaN where the map is unknown.
    pub mean: Vec<f64>,
    /// Variance of the quantity.
    pub variance: Vec<f64>,
    /// The axes, none where the map is unknown; none altogether where it is one of strengths.
    pub axes: Option<Vec<Option<Axes>>>,
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

    /// Mean and variance at places (x and y in metres): in microtesla and microtesla squared. The noise of a reading is not included.
    /// Both are NaN where the map is unknown: where the variance of the process, of the three axes together where it has them, exceeds
    /// `unknown_above` times its variance infinitely far from every reading.
    pub fn predict(&self, places: &[[f64; 2]], unknown_above: f64) -> (Vec<f64>, Vec<f64>) {
        if self.posteriors.newest().has_axes() {
            strengths(self.blended_in_plane(places), unknown_above)
        } else {
            let scalar = self.posteriors.blend(places.iter().copied(), |posterior, indices| {
                posterior.scalar(&select(places, indices)).unwrap_or_default()
            });
            let value = |Gaussian { mean: [mean], covariance: [[variance]], .. }| (mean, variance.max(0.0));
            let values = |scalar: Gaussian<1>| if scalar.is_known(unknown_above) { value(scalar) } else { UNKNOWN };
            scalar.into_iter().map(values).unzip()
        }
    }

    /// [`predict`](Self::predict) for many places of an area (its lower left and upper right corner, in metres). Axes are interpolated where that
    /// is faster, with errors far below what a sensor resolves.
    pub fn predict_within(&self, area: Extent, places: &[[f64; 2]], unknown_above: f64) -> (Vec<f64>, Vec<f64>) {
        if self.posteriors.newest().has_axes() {
            strengths(self.blended_within(area, places), unknown_above)
        } else {
            self.predict(places, unknown_above)
        }
    }

    /// [`predict`](Self::predict) with the axes where the map has them, at any height (the third coordinate, in
    /// metres): known there is where the variance is small compared with that infinitely far away at the same height. A
    /// map of strengths is the same at every height.
    pub fn predict_at(&self, places: &[[f64; 3]], unknown_above: f64) -> Prediction {
        if self.posteriors.newest().has_axes() {
            let axes = self.known_axes(places, unknown_above);
            let (mean, variance) = axes.iter().map(strength).unzip();
            return Prediction { mean, variance, axes: Some(axes) };
        }
        let places: Vec<_> = places.iter().map(|&[x, y, _]| [x, y]).collect();
        let (mean, variance) = self.predict(&places, unknown_above);
        Prediction { mean, variance, axes: None }
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

    /// [`axes`](Self::axes) at places (x and y in metres) at the height of the plane: that of the first readings around there, and 0 where
    /// all sources are below.
    pub fn axes_in_plane(&self, places: &[[f64; 2]]) -> Option<Vec<Axes>> {
        let has_axes = self.posteriors.newest().has_axes();
        has_axes.then(|| self.blended_in_plane(places).into_iter().map(Axes::from).collect())
    }

    /// [`axes_in_plane`](Self::axes_in_plane) for many places of an area, as in [`predict_within`](Self::predict_within).
    pub fn axes_within(&self, area: Extent, places: &[[f64; 2]]) -> Option<Vec<Axes>> {
        let has_axes = self.posteriors.newest().has_axes();
        has_axes.then(|| self.blended_within(area, places).into_iter().map(Axes::from).collect())
    }

    /// Share of the field's variance that sources below the sensor cause, over all local models; none where the map is one of strengths, or
    /// has sources below only.
    pub fn share_below(&self) -> Option<f64> {
        self.posteriors.share_below()
    }

    /// The axes where they are known.
    fn known_axes(&self, places: &[[f64; 3]], unknown_above: f64) -> Vec<Option<Axes>> {
        let axes = self.blended_axes(places).into_iter();
        axes.map(|axes| axes.is_known(unknown_above).then(|| axes.into())).collect()
    }

    fn blended_in_plane(&self, places: &[[f64; 2]]) -> Vec<Gaussian<3>> {
        self.posteriors.blend(places.iter().copied(), |posterior, indices| {
            posterior.axes_in_plane(&select(places, indices)).unwrap_or_default()
        })
    }

    fn blended_within(&self, area: Extent, places: &[[f64; 2]]) -> Vec<Gaussian<3>> {
        self.posteriors.blend(places.iter().copied(), |posterior, indices| {
            let predict = |places: &[[f64; 2]]| posterior.axes_in_plane(places).unwrap_or_default();
            let length = posterior.harmonic_length().unwrap_or_default();
            interpolated(area, length, &select(places, indices), predict)
        })
    }

    fn blended_axes(&self, places: &[[f64; 3]]) -> Vec<Gaussian<3>> {
        self.posteriors.blend(places.iter().map(|&[x, y, _]| [x, y]), |posterior, indices| {
            posterior.axes(&select(places, indices)).unwrap_or_default()
        })
    }

    /// Readings of the sensor at these poses, in the map's frame and microtesla, bias included and noise not; none where the map is one
    /// of strengths.
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

    /// Standard deviation of the strength around its constant where nothing is known, in microtesla. Of local models it is that of the one that learnt last.
    pub fn prior_standard_deviation(&self) -> f64 {
        self.posteriors.newest().prior_variance().sqrt()
    }

    /// Variance of the noise of an averaged reading, in microtesla squared, of each axis where it has them. Of local models it is that of the one that learnt last.
    pub fn noise_variance(&self) -> f64 {
        self.posteriors.newest().noise_variance()
    }

    /// Variance of the noise of an averaged reading at places (x and y in metres), by the local models there.
    pub fn noise_variances(&self, places: &[[f64; 2]]) -> Vec<f64> {
        self.posteriors.noise_variances(places)
    }

    /// The hyperparameters by name; the noise variance is the last. Of local models they are those of the one that learnt last.
    pub fn hyperparameters(&self) -> Vec<NamedValue> {
        self.posteriors.newest().hyperparameters()
    }

    /// Positions of the inducing points, in metres; of a place with several axes more than once.
    pub fn inducing_points(&self) -> Vec<[f64; 2]> {
        self.posteriors.inducing_points()
    }

    /// Number of inducing points: of axes and components of the sensor's bias where it has them.
    pub fn size(&self) -> usize {
        self.posteriors.size()
    }
}

/// The items with these indices.
fn select<T: Copy>(items: &[T], indices: &[usize]) -> Vec<T> {
    indices.iter().map(|&index| items[index]).collect()
}

/// Mean and variance where the map is unknown.
const UNKNOWN: (f64, f64) = (f64::NAN, f64::NAN);

/// Means and variances of the strength.
fn strengths(axes: Vec<Gaussian<3>>, unknown_above: f64) -> (Vec<f64>, Vec<f64>) {
    axes.into_iter().map(|axes| strength(&axes.is_known(unknown_above).then(|| axes.into()))).unzip()
}

/// Mean and variance of the strength.
fn strength(axes: &Option<Axes>) -> (f64, f64) {
    axes.as_ref().map_or(UNKNOWN, Axes::strength)
}

#[cfg(test)]
pub(crate) mod tests {
    use nalgebra::{Matrix3, Point3, Vector3};

    use super::*;
    use crate::config::{Config, Mapped};
    use crate::field::interpolation::TOLERANCE;
    use crate::field::model::FieldModel;
    use crate::sensing::reading::{MagneticField, Observation};

    /// A map of three metres along x, whose sensor has no bias.
    pub(crate) fn map(field: Mapped) -> FieldMap {
        let mut config = Config::default();
        config.model.field = field;
        // Among sources on both sides little is known 40 cm above the readings.
        config.vector.sources_above = false;
        config.vector.hard_iron = 0.0;
        config.learning.max_evaluations = 0;
        let seen = |step: u32| {
            let x = 0.05 * f64::from(step);
            let field = Vector3::new(20.0, 5.0 * x, -40.0);
            Observation {
                stamp: Stamp::from_seconds(x),
                position: Point3::new(x, 0.0, 0.0),
                orientation: Matrix3::identity(),
                speed: 0.5,
                field: MagneticField::from_microtesla(field),
                strength: field.norm(),
                readings: 1,
            }
        };
        let mut model = FieldModel::new(&config);
        model.update(&(0..60).map(seen).collect::<Vec<_>>(), &|| false).unwrap();
        model.map().unwrap()
    }

    #[test]
    fn what_is_interpolated_within_an_area_is_what_would_be_predicted() {
        let seen = |step: u32| {
            let place = [0.05 * f64::from(step % 60), 0.3 * f64::from(step / 60)];
            let [x, y] = place;
            let field = Vector3::new(
                20.0 + 10.0 * (3.0 * x).sin(),
                5.0 * (2.0 * y + x).cos(),
                8.0 * (2.0 * x - 3.0 * y).sin() - 40.0,
            );
            Observation {
                stamp: Stamp::from_seconds(x),
                position: Point3::new(x, y, 0.0),
                orientation: Matrix3::identity(),
                speed: 0.5,
                field: MagneticField::from_microtesla(field),
                strength: field.norm(),
                readings: 1,
            }
        };
        let mut config = Config::default();
        (config.model.field, config.learning.max_evaluations) = (Mapped::Vector, 0);
        for lengthscale in [0.3, 1.0, 4.0] {
            for size in [0.0, 2.0] {
                (config.vector.initial.lengthscale, config.vector.initial.noise) = (lengthscale, 0.1);
                (config.tiles.size, config.tiles.halo, config.tiles.band) = (size, 0.8, 0.3);
                let mut model = FieldModel::new(&config);
                (0..10).for_each(|lane| {
                    model.update(&(60 * lane..60 * (lane + 1)).map(seen).collect::<Vec<_>>(), &|| false).unwrap();
                });
                let map = model.map().unwrap();
                for side in [0.8, 1.6] {
                    let area = [[1.3, 0.9], [1.3 + side, 0.9 + side]];
                    let place = |index: u32| [index % 32, index / 32].map(|step| side * f64::from(step) / 31.0);
                    let places: Vec<[f64; 2]> =
                        (0..32 * 32).map(place).map(|[x, y]| [area[0][0] + x, area[0][1] + y]).collect();
                    let (means, variances) = map.predict(&places, f64::INFINITY);
                    let found = map.predict_within(area, &places, f64::INFINITY);
                    let worst = |found: &[f64], expected: &[f64]| {
                        found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max)
                    };
                    let [mean, variance] = [worst(&found.0, &means), worst(&found.1, &variances)];
                    // Where the field is rough, each place is predicted. In tiles, fewer places are asked for at once.
                    assert!(size > 0.0 || (mean > 0.0) == (lengthscale > 0.5), "{lengthscale} {side}: {mean}");
                    let deviation = map.prior_standard_deviation();
                    assert!(mean < TOLERANCE * deviation && variance < TOLERANCE * deviation * deviation);
                    // Where the map is known best, the error of its standard deviation is below one percent as well.
                    let least = variances.iter().copied().fold(f64::INFINITY, f64::min);
                    assert!(variance < 0.02 * least, "{lengthscale} {size} {side}: {variance} of {least}");
                }
            }
        }
    }

    /// A sensor in the hand, 1.3 m above the floor; some readings are from a table, and some from the floor above.
    #[test]
    fn observations_far_above_or_below_the_plane_are_left_out_and_counted() {
        let mut config = Config::default();
        config.model.field = Mapped::Vector;
        // This field has no length, and would be learnt to have sources far away.
        config.learning.max_evaluations = 0;
        let seen = |step: u32, z: f64| {
            let x = 0.05 * f64::from(step);
            let field = Vector3::new(20.0, 5.0 * x, -40.0);
            Observation {
                stamp: Stamp::from_seconds(x),
                position: Point3::new(x, 0.0, z),
                orientation: Matrix3::identity(),
                speed: 0.5,
                field: MagneticField::from_microtesla(field),
                strength: field.norm(),
                readings: 1,
            }
        };
        for size in [0.0, 6.0] {
            config.tiles.size = size;
            let mut model = FieldModel::new(&config);
            let heights = |step: u32| match step {
                10 => 0.7,
                40 => 4.3,
                _ => 1.3 + 0.05 * f64::from(step).sin(),
            };
            model.update(&(0..60).map(|step| seen(step, heights(step))).collect::<Vec<_>>(), &|| false).unwrap();
            let above: Vec<Observation> = (60..80).map(|step| seen(step, 4.3)).collect();
            let refused = model.update(&above, &|| false).unwrap_err();
            assert_eq!(refused, streaming_gp::streaming::Error::OutOfReach);
            let totals = model.totals;
            assert_eq!((totals.observations, totals.out_of_reach, totals.rejected_batches), (58, 2, 1));
            let map = model.map().unwrap();
            // The grid is at the height of the sensor; the floor is out of its reach.
            let places = [[1.5, 0.0, 1.3], [1.5, 0.0, 0.0]];
            let axes = map.predict_at(&places, UNKNOWN_ABOVE).axes.unwrap();
            assert!(axes[0].is_some() && axes[1].is_none(), "{axes:?}");
            let (mean, variance) = map.predict(&[[1.5, 0.0]], UNKNOWN_ABOVE);
            assert!((mean[0] - 45.3).abs() < 1.5 && variance[0] > 0.0, "{mean:?} {variance:?}");
            assert!((0.0..=1.0).contains(&map.share_below().unwrap()));
        }
    }

    const UNKNOWN_ABOVE: f64 = 0.75;
    const ON_PATH: [f64; 3] = [1.5, 0.0, 0.0];

    #[test]
    fn axes_and_strength_at_a_height_agree_and_in_the_plane_they_are_those_of_the_grid() {
        let map = map(Mapped::Vector);
        // Steel may be 47 cm above the plane.
        let above = [1.5, 0.0, 0.15];
        let places =
            [ON_PATH, above, [30.0, 0.0, 0.0], [1.5, 0.0, -5.0], [f64::NAN, 0.0, 0.0], [0.0, 0.0, f64::INFINITY]];
        let Prediction { mean, variance, axes } = map.predict_at(&places, UNKNOWN_ABOVE);
        let axes = axes.unwrap();
        let known: Vec<bool> = axes.iter().map(Option::is_some).collect();
        // Far away, inside the sources, and where there is no place.
        assert_eq!(known, [true, true, false, false, false, false]);
        let finite = |values: &[f64]| -> Vec<bool> { values.iter().map(|value| value.is_finite()).collect() };
        assert_eq!([finite(&mean), finite(&variance)], [known.clone(), known]);
        let (grid_mean, grid_variance) = map.predict(&[[1.5, 0.0]], UNKNOWN_ABOVE);
        assert_eq!((mean[0], variance[0]), (grid_mean[0], grid_variance[0]));
        for (place, found) in [ON_PATH, above].iter().zip(&axes) {
            assert_eq!(*found, map.axes(&[*place]).map(|axes| axes[0]));
        }
        let [in_plane, higher] = [0, 1].map(|index| Vector3::from(axes[index].unwrap().mean));
        // On the path to the noise; above, where no reading was, to what the field may do over 15 cm.
        assert!((in_plane - Vector3::new(20.0, 7.5, -40.0)).norm() < 1.5, "{in_plane}");
        assert!((higher - in_plane).norm() < 10.0 && higher != in_plane, "{higher}");
    }

    #[test]
    fn a_map_of_strengths_is_the_same_at_every_height_and_has_no_axes() {
        let Prediction { mean, variance, axes } =
            map(Mapped::Strength).predict_at(&[ON_PATH, [1.5, 0.0, 7.0], [30.0, 0.0, 0.0]], UNKNOWN_ABOVE);
        assert_eq!((mean[0], variance[0]), (mean[1], variance[1]));
        assert!((mean[0] - 45.3).abs() < 1.5 && mean[2].is_nan() && axes.is_none(), "{mean:?}");
    }
}
