//! Prediction from a map.

use serde::Serialize;
use streaming_gp::field_places::FieldPlace;
use streaming_gp::link::Link;
use streaming_gp::places::Places;
use streaming_gp::points::Points;
use streaming_gp::report::NamedValue;
use streaming_gp::vector::{Axes, FieldMap as VectorMap, SensorPose};

use super::process::MapPosterior;
use super::quantity::Quantity;
use super::totals::Totals;
use crate::sensing::reading::Stamp;

/// The map after an update: immutable, cheap to clone, and safe to query from several threads.
#[derive(Clone, Debug)]
pub struct FieldMap {
    posterior: MapPosterior,
    extent: [[f64; 2]; 2],
    stamp: Stamp,
    totals: Totals,
}

/// The bias of the sensor as the map has learnt it: its hard iron, along the sensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SensorBias {
    /// In microtesla; 0 along directions that the drive does not tell, such as the vertical of a robot that stays in
    /// the plane.
    pub hard_iron: [f64; 3],
    /// Standard deviation of each component, in microtesla.
    pub hard_iron_sd: [f64; 3],
    /// Covariance of the components, in microtesla squared.
    #[serde(skip)]
    pub hard_iron_covariance: [[f64; 3]; 3],
}

/// Predictions at places, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Mean of the quantity; NaN where the map is unknown.
    pub mean: Vec<f64>,
    /// Its variance.
    pub variance: Vec<f64>,
    /// The axes, none where the map is unknown; none altogether where it is one of strengths.
    pub axes: Option<Vec<Option<Axes>>>,
}

impl FieldMap {
    /// A map with this posterior, learnt within `extent` (lower left and upper right corner, in metres) up to `stamp`.
    pub fn new(posterior: MapPosterior, extent: [[f64; 2]; 2], stamp: Stamp, totals: Totals) -> Self {
        Self { posterior, extent, stamp, totals }
    }

    /// What is mapped.
    pub fn quantity(&self) -> Quantity {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => posterior.link().into(),
            MapPosterior::Vector(_) => Quantity::Strength,
        }
    }

    /// Mean and variance at places (x and y in metres): in microtesla and microtesla squared, or of the probability of
    /// a yes. The noise of a reading is not included. Both are NaN where the map is unknown: where the variance of the
    /// process, of the three axes together where it has them, exceeds `unknown_above` times its variance infinitely far
    /// from every reading.
    pub fn predict(&self, places: &[[f64; 2]], unknown_above: f64, mean: &mut [f64], variance: &mut [f64]) {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => {
                let far = &Points::from_arrays(&[[FAR, FAR]]);
                let (mut far_mean, mut far_variance) = ([0.0], [0.0]);
                posterior.predict(far, &mut far_mean, &mut far_variance);
                posterior.predict(&Points::from_arrays(places), mean, variance);
                let highest = unknown_above * far_variance[0];
                for (mean, variance) in mean.iter_mut().zip(variance) {
                    let is_known = mean.is_finite() && *variance <= highest;
                    (*mean, *variance) =
                        if is_known { of_quantity(posterior.link(), *mean, *variance) } else { (f64::NAN, f64::NAN) };
                }
            }
            MapPosterior::Vector(posterior) => {
                let places: Vec<_> = places.iter().map(|&[x, y]| [x, y, 0.0]).collect();
                let axes = known_axes(&VectorMap::new(posterior), &places, unknown_above);
                for ((axes, mean), variance) in axes.iter().zip(mean).zip(variance) {
                    (*mean, *variance) = axes.as_ref().map_or((f64::NAN, f64::NAN), Axes::strength);
                }
            }
        }
    }

    /// As [`predict`](Self::predict), with the axes where the map has them, at any height (the third coordinate, in
    /// metres): known there is where the variance is small compared with that infinitely far away at the same height. A
    /// map of strengths is the same at every height.
    pub fn predict_at(&self, places: &[[f64; 3]], unknown_above: f64) -> Prediction {
        match &self.posterior {
            MapPosterior::Scalar(_) => {
                let (mut mean, mut variance) = (vec![0.0; places.len()], vec![0.0; places.len()]);
                let places: Vec<_> = places.iter().map(|&[x, y, _]| [x, y]).collect();
                self.predict(&places, unknown_above, &mut mean, &mut variance);
                Prediction { mean, variance, axes: None }
            }
            MapPosterior::Vector(posterior) => {
                let axes = known_axes(&VectorMap::new(posterior), places, unknown_above);
                let strength = |axes: &Option<Axes>| axes.as_ref().map_or((f64::NAN, f64::NAN), Axes::strength);
                let (mean, variance) = axes.iter().map(strength).unzip();
                Prediction { mean, variance, axes: Some(axes) }
            }
        }
    }

    /// Mean and covariance of the field's axes at places (x, y and the height above the plane of the map, in metres),
    /// in the map's frame and microtesla, free of the sensor's bias; none where the map is one of strengths.
    pub fn axes(&self, places: &[[f64; 3]]) -> Option<Vec<Axes>> {
        match &self.posterior {
            MapPosterior::Scalar(_) => None,
            MapPosterior::Vector(posterior) => Some(VectorMap::new(posterior).axes(places)),
        }
    }

    /// What the sensor would read at these poses, in the map's frame and microtesla, bias included and noise not; none
    /// where the map is one of strengths.
    pub fn readings(&self, poses: &[SensorPose]) -> Option<Vec<Axes>> {
        match &self.posterior {
            MapPosterior::Scalar(_) => None,
            MapPosterior::Vector(posterior) => Some(VectorMap::new(posterior).readings(poses)),
        }
    }

    /// The bias of the sensor; none where the map is one of strengths, or the settings exclude it.
    pub fn sensor_bias(&self) -> Option<SensorBias> {
        let MapPosterior::Vector(posterior) = &self.posterior else { return None };
        let map = VectorMap::new(posterior);
        let (bias, deviations) = (map.bias(), map.bias().standard_deviations());
        let hard_iron = |numbers: &[f64]| numbers.first_chunk().copied();
        let has_hard_iron = matches!(bias.components.first(), Some(FieldPlace::HardIron(_)));
        if !has_hard_iron {
            return None;
        }
        Some(SensorBias {
            hard_iron: hard_iron(&bias.mean)?,
            hard_iron_sd: hard_iron(&deviations)?,
            hard_iron_covariance: std::array::from_fn(|i| std::array::from_fn(|j| bias.covariance[(i, j)])),
        })
    }

    /// Standard deviation of the quantity where nothing is known: of the strength around its constant, in microtesla,
    /// or of the probability of a yes.
    pub fn prior_standard_deviation(&self) -> f64 {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => {
                of_quantity(posterior.link(), 0.0, posterior.model().kernel.variance).1.sqrt()
            }
            // The mean over the axes: the vertical one has twice the variance of a horizontal one.
            MapPosterior::Vector(posterior) => (posterior.model().kernel.variance * 4.0 / 3.0).sqrt(),
        }
    }

    /// Variance of the noise of an averaged reading, in microtesla squared, of each axis where it has them; without
    /// meaning for a yes/no signal.
    pub fn noise_variance(&self) -> f64 {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => posterior.model().noise_variance(),
            MapPosterior::Vector(posterior) => posterior.model().noise_variance(),
        }
    }

    /// The hyperparameters by name; the noise variance is the last.
    pub fn hyperparameters(&self) -> Vec<NamedValue> {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => posterior.model().named_values(),
            MapPosterior::Vector(posterior) => posterior.model().named_values(),
        }
    }

    /// Positions of the inducing points, in metres; of a place with several axes more than once.
    pub fn inducing_points(&self) -> Vec<[f64; 2]> {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => {
                let points = posterior.inducing();
                points.axis(0).iter().zip(points.axis(1)).map(|(&x, &y)| [x, y]).collect()
            }
            MapPosterior::Vector(posterior) => {
                let position = |place| match place {
                    FieldPlace::Field { position: [x, y, _], .. } => Some([x, y]),
                    _ => None,
                };
                posterior.inducing().iter().filter_map(position).collect()
            }
        }
    }

    /// Number of inducing points: of axes and components of the sensor's bias where it has them.
    pub fn size(&self) -> usize {
        match &self.posterior {
            MapPosterior::Scalar(posterior) => posterior.inducing().len(),
            MapPosterior::Vector(posterior) => posterior.inducing().len(),
        }
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

/// Farther from every reading than a map reaches, in metres.
const FAR: f64 = 1e9;

/// Mean and variance of the quantity, given those of the process.
fn of_quantity(link: Option<Link>, mean: f64, variance: f64) -> (f64, f64) {
    let variance = variance.max(0.0);
    match link {
        None => (mean, variance),
        Some(link) => (link.probability(mean, variance), link.deviation_of_probability(mean, variance).powi(2)),
    }
}

/// The axes where they are known: where their variance is small compared with that infinitely far away at the same
/// height.
fn known_axes(map: &VectorMap<'_>, places: &[[f64; 3]], unknown_above: f64) -> Vec<Option<Axes>> {
    let mut heights: Vec<f64> = places.iter().map(|place| place[2]).collect();
    heights.sort_by(f64::total_cmp);
    heights.dedup_by_key(|height| height.to_bits());
    let far = map.axes(&heights.iter().map(|&height| [FAR, FAR, height]).collect::<Vec<_>>());
    let highest = |height: f64| {
        let index = heights.partition_point(|other| other.total_cmp(&height).is_lt());
        unknown_above * total_variance(&far[index])
    };
    let is_known =
        |axes: &Axes, height| total_variance(axes) <= highest(height) && axes.mean.iter().all(|axis| axis.is_finite());
    let axes = map.axes(places).into_iter().zip(places);
    axes.map(|(axes, &[_, _, height])| is_known(&axes, height).then_some(axes)).collect()
}

fn total_variance(axes: &Axes) -> f64 {
    (0..3).map(|axis| axes.covariance[axis][axis]).sum()
}

#[cfg(test)]
mod tests {
    use nalgebra::{Matrix3, Point3, Vector3};

    use super::*;
    use crate::config::{Config, Mapped};
    use crate::field::model::FieldModel;
    use crate::sensing::reading::{MagneticField, Observation, Observed};

    /// A map of three metres along x, whose sensor has no bias.
    fn map(field: Mapped) -> FieldMap {
        let mut config = Config::default();
        config.model.field = field;
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
                observed: Observed::Field { mean: MagneticField::from_microtesla(field), strength: field.norm() },
                readings: 1,
            }
        };
        let mut model = FieldModel::new(&config);
        model.update(&(0..60).map(seen).collect::<Vec<_>>(), &|| false).unwrap();
        model.map().unwrap()
    }

    const UNKNOWN_ABOVE: f64 = 0.75;
    const ON_PATH: [f64; 3] = [1.5, 0.0, 0.0];

    #[test]
    fn axes_and_strength_at_a_height_agree_and_in_the_plane_they_are_those_of_the_grid() {
        let map = map(Mapped::Vector);
        let above = [1.5, 0.0, 0.4];
        let places =
            [ON_PATH, above, [30.0, 0.0, 0.0], [1.5, 0.0, -5.0], [f64::NAN, 0.0, 0.0], [0.0, 0.0, f64::INFINITY]];
        let Prediction { mean, variance, axes } = map.predict_at(&places, UNKNOWN_ABOVE);
        let axes = axes.unwrap();
        let known: Vec<bool> = axes.iter().map(Option::is_some).collect();
        // Far away, inside the sources, and where there is no place.
        assert_eq!(known, [true, true, false, false, false, false]);
        let finite = |values: &[f64]| -> Vec<bool> { values.iter().map(|value| value.is_finite()).collect() };
        assert_eq!([finite(&mean), finite(&variance)], [known.clone(), known]);
        let (mut grid_mean, mut grid_variance) = ([0.0], [0.0]);
        map.predict(&[[1.5, 0.0]], UNKNOWN_ABOVE, &mut grid_mean, &mut grid_variance);
        assert_eq!((mean[0], variance[0]), (grid_mean[0], grid_variance[0]));
        for (place, found) in [ON_PATH, above].iter().zip(&axes) {
            assert_eq!(*found, map.axes(&[*place]).map(|axes| axes[0]));
        }
        let [in_plane, higher] = [0, 1].map(|index| Vector3::from(axes[index].unwrap().mean));
        // On the path to the noise; above, where no reading was, to what the field may do over 40 cm.
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
