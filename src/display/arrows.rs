//! The field of a map of the three axes as arrows, for viewers in space.

use crate::field::grid::StrengthGrid;
use crate::field::map::FieldMap;

/// Most arrows: more make viewers slow, and are not seen.
const MOST: usize = 2000;

/// Least distance between arrows, in metres.
const LEAST_SPACING: f64 = 0.25;

/// The field at some of the known cells of a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrows {
    /// The arrows.
    pub arrows: Vec<Arrow>,
    /// Distance between the arrows, which is the length of the longest of them, in metres.
    pub spacing: f64,
}

/// The field at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrow {
    /// The place, where the arrow starts, in metres.
    pub tail: [f64; 3],
    /// The tip of the arrow, in metres.
    pub tip: [f64; 3],
    /// Strength of the field, in microtesla.
    pub strength: f64,
}

impl Arrows {
    /// Arrows of a map at the cells of its grid that are known: in every second, fourth, eighth ... column and row, as
    /// close as 25 cm and 2000 of them allow. None where the map is one of strengths.
    pub fn of(map: &FieldMap, grid: &StrengthGrid) -> Option<Self> {
        let geometry = &grid.geometry;
        let known: Vec<usize> = (0..geometry.len()).filter(|&cell| grid.mean[cell].is_finite()).collect();
        let chosen = |stride: i64| known.iter().copied().filter(move |&cell| geometry.is_in_every(stride, cell));
        let mut stride = 1;
        while (stride as f64) * geometry.resolution < LEAST_SPACING || chosen(stride).count() > MOST {
            stride *= 2;
        }
        let place = |cell: usize| {
            let [x, y] = geometry.centre(cell % geometry.columns, cell / geometry.columns);
            [x, y, 0.0]
        };
        let tails: Vec<[f64; 3]> = chosen(stride).map(place).collect();
        let fields: Vec<[f64; 3]> = map.axes(&tails)?.iter().map(|axes| axes.mean).collect();
        let strength = |field: &[f64; 3]| field.iter().map(|axis| axis * axis).sum::<f64>().sqrt();
        let strongest = fields.iter().map(strength).fold(f64::MIN_POSITIVE, f64::max);
        let spacing = stride as f64 * geometry.resolution;
        let arrow = |(tail, field): (&[f64; 3], &[f64; 3])| Arrow {
            tail: *tail,
            tip: std::array::from_fn(|axis| tail[axis] + spacing / strongest * field[axis]),
            strength: strength(field),
        };
        Some(Self { arrows: tails.iter().zip(&fields).map(arrow).collect(), spacing })
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::Vector3;

    use super::*;
    use crate::config::{Config, Mapped};
    use crate::field::map::tests::map;
    use crate::field::raster::rasterize;

    #[test]
    fn arrows_point_along_the_field_and_are_as_long_as_it_is_strong() {
        let map = map(Mapped::Vector);
        let grid = rasterize(&Config::default().raster, &map, &map.extent).unwrap();
        let Arrows { arrows, spacing } = Arrows::of(&map, &grid).unwrap();
        // Of 5 cm every eighth: the first power of two that is not below 25 cm.
        assert!((spacing - 0.4).abs() < 1e-12, "{spacing}");
        let strongest = arrows.iter().map(|arrow| arrow.strength).fold(0.0, f64::max);
        let on_path: Vec<_> = arrows.iter().filter(|arrow| arrow.tail[1].abs() < 0.2 && arrow.tail[0] > 0.0).collect();
        assert!(on_path.len() >= 6, "{arrows:?}");
        for arrow in &arrows {
            let [x, y, _] = arrow.tail;
            let along = Vector3::from(arrow.tip) - Vector3::from(arrow.tail);
            assert!((along.norm() / spacing - arrow.strength / strongest).abs() < 1e-9, "{arrow:?}");
            // Within 20 cm of the path the field is that of the readings to its variation over this distance.
            if y.abs() < 0.2 && (0.0..3.0).contains(&x) {
                let angle = along.angle(&Vector3::new(20.0, 5.0 * x, -40.0)).to_degrees();
                assert!(angle < 5.0, "{angle} degrees at {x}, {y}");
            }
        }
    }

    #[test]
    fn a_map_of_strengths_has_none() {
        let map = map(Mapped::Strength);
        let grid = rasterize(&Config::default().raster, &map, &map.extent).unwrap();
        assert_eq!(Arrows::of(&map, &grid), None);
    }
}
