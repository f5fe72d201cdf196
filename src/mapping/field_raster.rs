//! Rasters of the map.

use super::Error;
use super::field_model::{FieldPosterior, far_variance, inducing_points, of_quantity, quantity};
use super::grid::{FieldGrid, Rasterizer};
use streaming_gp::points::Points;

/// The raster of a posterior, around its inducing points and the places (x and y in metres) it was learnt from, or their extent.
/// Posteriors with the same `number` must be the same.
///
/// # Errors
/// As [`Rasterizer::rasterize`].
pub fn rasterize<'a>(
    rasterizer: &'a mut Rasterizer,
    number: u64,
    posterior: &FieldPosterior,
    places: &[[f64; 2]],
) -> Result<&'a FieldGrid, Error> {
    let points = inducing_points(posterior).into_iter().chain(places.iter().copied());
    rasterizer.rasterize_as(
        number,
        points,
        far_variance(posterior),
        quantity(posterior),
        |mean, variance| of_quantity(posterior, mean, variance),
        |points, mean, variance| posterior.predict(&Points::from_arrays(points), mean, variance),
    )
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point3, Vector3};

    use super::super::field_model::FieldModel;
    use super::super::quantity::Quantity;
    use super::super::reading::{MagneticField, Observation, Stamp};
    use super::*;
    use crate::config::{self, Config};

    #[test]
    fn a_map_of_a_signal_is_of_probabilities() {
        let mut config = Config::default();
        config.model.likelihood = config::Likelihood::Bernoulli;
        config.selection.method = "dual_memory".parse().unwrap();
        config.raster.margin = 4.0;
        let mut model = FieldModel::new(&config);
        // Yes up to x = 2 m, no from there on.
        let path: Vec<[f64; 2]> = (0..80).map(|index| [0.05 * f64::from(index), 0.0]).collect();
        let observation = |&[x, y]: &[f64; 2]| Observation {
            stamp: Stamp::default(),
            position: Point3::new(x, y, 0.0),
            field: MagneticField::from_microtesla(Vector3::zeros()),
            strength: f64::from(u8::from(x < 2.0)),
            readings: 1,
        };
        model.update(&path.iter().map(observation).collect::<Vec<_>>(), &|| false).unwrap();
        let mut rasterizer = Rasterizer::new(&config.raster);
        let grid = rasterize(&mut rasterizer, 0, model.posterior().unwrap(), &path).unwrap();
        assert_eq!(grid.quantity, Quantity::Probability);
        let at = |values: &[f64], x: f64, y: f64| {
            let [left, bottom] = grid.geometry.origin();
            let cell = |from: f64, to: f64| ((to - from) / grid.geometry.resolution) as usize;
            values[cell(bottom, y) * grid.geometry.columns + cell(left, x)]
        };
        let [yes, border, no] = [0.5, 2.0, 3.5].map(|x| (at(&grid.mean, x, 0.0), at(&grid.standard_deviation, x, 0.0)));
        assert!(yes.0 > 0.95 && no.0 < 0.05 && (0.3..0.7).contains(&border.0), "{yes:?} {border:?} {no:?}");
        // It is least sure where the answer changes, and knows nothing where it has never been.
        assert!(border.1 > 2.0 * yes.1.max(no.1) && border.1 < 0.5, "{yes:?} {border:?} {no:?}");
        assert!(at(&grid.mean, 2.0, 3.5).is_nan());
        assert!(grid.mean.iter().all(|value| value.is_nan() || (0.0..=1.0).contains(value)));
    }

    #[test]
    fn the_map_is_known_where_the_robot_was_and_unknown_far_away() {
        let mut config = Config::default();
        config.raster.margin = 4.0;
        let mut model = FieldModel::new(&config);
        let path: Vec<[f64; 2]> = (0..40).map(|index| [0.05 * f64::from(index), 0.0]).collect();
        let observations: Vec<Observation> = path
            .iter()
            .map(|&[x, y]| Observation {
                stamp: Stamp::default(),
                position: Point3::new(x, y, 0.0),
                field: MagneticField::from_microtesla(Vector3::zeros()),
                strength: 50.0 + 8.0 * (2.0 * x).sin(),
                readings: 10,
            })
            .collect();
        model.update(&observations, &|| false).unwrap();
        let mut rasterizer = Rasterizer::new(&config.raster);
        let grid = rasterize(&mut rasterizer, 0, model.posterior().unwrap(), &path).unwrap();
        for row in 0..grid.geometry.rows {
            for column in 0..grid.geometry.columns {
                let [x, y] = grid.geometry.centre(column, row);
                let mean = grid.mean[row * grid.geometry.columns + column];
                if (0.0..2.0).contains(&x) && y.abs() < 0.1 {
                    // Half a cell off the path and the noise's prior: well below the field's 8 microtesla.
                    assert!((mean - 50.0 - 8.0 * (2.0 * x).sin()).abs() < 1.0, "{mean} at ({x}, {y})");
                }
                if y.abs() > 3.0 {
                    assert!(mean.is_nan(), "{mean} at ({x}, {y})");
                }
            }
        }
    }
}
