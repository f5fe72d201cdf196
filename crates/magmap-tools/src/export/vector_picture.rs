//! The horizontal field as arrows over the map of its strength.

use std::path::Path;

use plotters::prelude::{BLACK, Color, PathElement, Polygon, RGBAColor, WHITE};

use super::canvas::{Area, Drawn, line, part, pixels, short};
use super::map_picture::{BOTTOM, LEFT, MapPicture, SUBTITLE_MIDDLE, TOP, Window, write_entry};
use super::{Error, check_axes};
use magmap::display::AxesGrid;
use magmap::field::grid::StrengthGrid;

// Lengths in pixels of the picture.
/// Least distance between arrows.
const SPACING: f64 = 25.0;
/// The length of an arrow that is longer than all but a twentieth of them.
const LONG: f64 = 1.6 * SPACING;
/// Shorter arrows are not drawn: their direction could not be seen.
const SHORTEST: f64 = 2.0;
const HEAD: f64 = 8.0;
const SHAFT: f64 = 1.5;
/// Width of the pale rim that keeps arrows apart from dark cells.
const RIM: f64 = 1.2;

impl MapPicture<'_> {
    /// Draws the strength and, as arrows, by how much the horizontal field differs from its mean over the known cells: an arrow starts
    /// where it belongs. 1000 pixels wide at most.
    ///
    /// # Errors
    /// When an array does not fit the grid, or the file cannot be written.
    pub fn write_vectors(&self, path: &Path, axes: &AxesGrid) -> Result<(), Error> {
        check_axes(self.grid, axes)?;
        let mut theme = self.mean_theme()?;
        (theme.suffix, theme.path) = (", horizontal deviation", WHITE.mix(0.6));
        let window = Window::of(self);
        let metres_per_pixel = (window.x.end - window.x.start) / window.width;
        let stride = (SPACING * metres_per_pixel / self.grid.geometry.resolution).ceil().max(1.0) as i64;
        let deviations = deviations(self.grid, axes, stride);
        let long = exceeded_by_a_twentieth(deviations.iter().map(|deviation| length(deviation.along)).collect());
        let metres_per_microtesla = if long > 0.0 { LONG * metres_per_pixel / long } else { 0.0 };
        let in_metres = |Arrow { tail, along }: &Arrow| Arrow {
            tail: *tail,
            along: along.map(|microtesla| microtesla * metres_per_microtesla),
        };
        let arrows: Vec<Arrow> = deviations.iter().map(in_metres).collect();
        let without_points = MapPicture { inducing_points: &[], ..self.clone() };
        Self::write_sheet(path, &window, &theme, |sheet| {
            self.draw_title(sheet, &theme)?;
            draw_key(sheet, LEFT + window.width, long, metres_per_microtesla / metres_per_pixel)?;
            without_points.draw_map(sheet, &window, &theme)?;
            draw_arrows(sheet, &window, &arrows)
        })
    }
}

/// By how much the horizontal field differs from its mean over all known cells, in microtesla, in every `stride`th column and row.
fn deviations(grid: &StrengthGrid, axes: &AxesGrid, stride: i64) -> Vec<Arrow> {
    let geometry = &grid.geometry;
    let known = || axes.cells.iter().enumerate().filter_map(|(i, cell)| Some((i, cell.as_ref()?.mean)));
    let number = known().count().max(1) as f64;
    let mean: [f64; 2] = std::array::from_fn(|axis| known().map(|(_, field)| field[axis]).sum::<f64>() / number);
    known()
        .filter(|(cell, _)| geometry.is_in_every(stride, *cell))
        .map(|(cell, field)| Arrow {
            tail: geometry.centre(cell % geometry.columns, cell / geometry.columns),
            along: std::array::from_fn(|axis| field[axis] - mean[axis]),
        })
        .collect()
}

fn length([x, y]: [f64; 2]) -> f64 {
    x.hypot(y)
}

/// A twentieth of the values is above it; 0 without values.
fn exceeded_by_a_twentieth(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (0.95 * values.len().saturating_sub(1) as f64).round() as usize;
    values.get(index).copied().unwrap_or(0.0)
}

/// The greatest of 1, 2, 5, 10, 20, ... (and their tenths, ...) that is not above a value.
fn round_below(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0].into_iter().map(|step| step * decade).find(|&step| step <= value).unwrap_or(decade)
}

/// An arrow at a place, in units of the axes that it is drawn on unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arrow {
    tail: [f64; 2],
    along: [f64; 2],
}

impl Arrow {
    /// The ends of the shaft and the corners of the head, whose length is at most `head`.
    fn outline(&self, head: f64) -> ([[f64; 2]; 2], [[f64; 2]; 3]) {
        let length = length(self.along);
        let head = head.min(0.6 * length);
        let [x, y] = self.along.map(|along| along / length);
        // A place so far along the arrow, and so far to its left.
        let at = |ahead: f64, left: f64| [self.tail[0] + ahead * x - left * y, self.tail[1] + ahead * y + left * x];
        let base = length - head;
        ([at(0.0, 0.0), at(base, 0.0)], [at(length, 0.0), at(base, 0.42 * head), at(base, -0.42 * head)])
    }
}

/// Draws arrows whose units are metres, all rims below all arrows.
fn draw_arrows<'a>(sheet: &Area<'a>, window: &Window, arrows: &[Arrow]) -> Drawn<'a> {
    let area = part(sheet, (0.0, TOP), (LEFT + window.width, window.height + BOTTOM));
    let mut chart = window.chart(&area)?;
    let metres_per_pixel = (window.x.end - window.x.start) / window.width;
    let visible = || arrows.iter().filter(|arrow| length(arrow.along) >= SHORTEST * metres_per_pixel);
    let outlines: Vec<_> = visible().map(|arrow| arrow.outline(HEAD * metres_per_pixel)).collect();
    let pairs = |points: &[[f64; 2]]| points.iter().map(|&[x, y]| (x, y)).collect::<Vec<_>>();
    let rim: RGBAColor = WHITE.mix(0.75);
    chart
        .draw_series(outlines.iter().map(|(shaft, _)| PathElement::new(pairs(shaft), line(rim, SHAFT + 2.0 * RIM))))?;
    chart.draw_series(
        outlines
            .iter()
            .map(|(_, [tip, left, right])| PathElement::new(pairs(&[*tip, *left, *right, *tip]), line(rim, 2.0 * RIM))),
    )?;
    chart.draw_series(outlines.iter().map(|(shaft, _)| PathElement::new(pairs(shaft), line(BLACK, SHAFT))))?;
    chart.draw_series(outlines.iter().map(|(_, head)| Polygon::new(pairs(head), BLACK.filled())))?;
    Ok(())
}

/// Draws an arrow of a round length with its number, which ends at `right`; nothing where all arrows have no length.
fn draw_key<'a>(sheet: &Area<'a>, right: f64, long: f64, pixels_per_microtesla: f64) -> Drawn<'a> {
    if long <= 0.0 {
        return Ok(());
    }
    let value = round_below(long);
    let label = format!("{} µT", short(value));
    let shown = value * pixels_per_microtesla;
    let tail = write_entry(sheet, &label, right)? - 10.0 - shown;
    let (shaft, head) = Arrow { tail: [tail, SUBTITLE_MIDDLE], along: [shown, 0.0] }.outline(HEAD);
    let on_sheet = |points: &[[f64; 2]]| points.iter().map(|&[x, y]| (pixels(x), pixels(y))).collect::<Vec<_>>();
    sheet.draw(&PathElement::new(on_sheet(&shaft), line(BLACK, SHAFT)))?;
    sheet.draw(&Polygon::new(on_sheet(&head), BLACK.filled()))
}

#[cfg(test)]
mod tests {
    use streaming_gp::vector::Axes;

    use super::*;
    use crate::export::canvas::read_png;
    use crate::export::strength_grid;

    fn axes(mean: [f64; 3]) -> Option<Axes> {
        Some(Axes { mean, covariance: [[0.0; 3]; 3] })
    }

    fn picture(grid: &StrengthGrid) -> MapPicture<'_> {
        MapPicture {
            grid,
            path: &[],
            inducing_points: &[[-0.75, 2.25]],
            changes: &[],
            prior_standard_deviation: 10.0,
            title: "Test",
            subtitle: Some("below"),
        }
    }

    #[test]
    fn deviations_are_from_the_mean_of_the_known_cells_at_every_other_row_and_column() {
        let grid = strength_grid([3, 2], vec![50.0, 50.0, 50.0, f64::NAN, 50.0, 50.0], vec![1.0; 6]);
        // Columns -2, -1, 0 and rows 4, 5: with a stride of 2 the odd ones are chosen, column -1 and row 5.
        let cells = vec![axes([1.0, 0.0, 9.0]), axes([2.0, 0.0, 9.0]), axes([3.0, 5.0, 9.0]), None];
        let axes = AxesGrid { cells: [cells, vec![axes([4.0, 5.0, 9.0]), axes([5.0, 0.0, 9.0])]].concat() };
        assert_eq!(deviations(&grid, &axes, 2), [Arrow { tail: [-0.25, 2.75], along: [1.0, 3.0] }]);
        let places: Vec<_> = deviations(&grid, &axes, 1).iter().map(|deviation| deviation.tail).collect();
        assert_eq!(places, [[-0.75, 2.25], [-0.25, 2.25], [0.25, 2.25], [-0.25, 2.75], [0.25, 2.75]]);
    }

    #[test]
    fn an_arrow_ends_where_it_points_with_its_head_on_both_sides() {
        let (shaft, [tip, left, right]) = Arrow { tail: [1.0, 2.0], along: [0.0, 10.0] }.outline(2.0);
        assert_eq!((shaft, tip), ([[1.0, 2.0], [1.0, 10.0]], [1.0, 12.0]));
        assert!((left[0] - 0.16).abs() < 1e-12 && (right[0] - 1.84).abs() < 1e-12 && left[1] == 10.0, "{left:?}");
        // A short arrow has a small head.
        assert_eq!(Arrow { tail: [0.0; 2], along: [1.0, 0.0] }.outline(2.0).0[1], [0.4, 0.0]);
    }

    #[test]
    fn the_key_is_round_and_not_above_what_it_stands_for() {
        assert_eq!([1.0, 1.9, 4.9, 5.0, 73.0, 0.03].map(round_below), [1.0, 1.0, 2.0, 5.0, 50.0, 0.02]);
        assert_eq!(exceeded_by_a_twentieth((0..101).rev().map(f64::from).collect()), 95.0);
        assert_eq!(exceeded_by_a_twentieth(vec![]), 0.0);
    }

    #[test]
    fn arrows_are_black_and_point_along_the_field() {
        // The field turns from east, in the left half, to west: deviations of 10 and -10 along x.
        let side = 40;
        let grid = strength_grid([side, side], vec![50.0; side * side], vec![0.0; side * side]);
        let cells = (0..side * side).map(|i| axes([if i % side < side / 2 { 30.0 } else { 10.0 }, 5.0, -40.0]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vectors.png");
        let axes = AxesGrid { cells: cells.collect() };
        picture(&grid).write_vectors(&path, &axes).unwrap();
        let (width, _, drawn) = read_png(&path);
        let window = Window::of(&picture(&grid));
        let pixels_per_metre = window.width / (window.x.end - window.x.start);
        let at = |x: f64, y: f64| {
            let right = LEFT + (x - window.x.start) * pixels_per_metre;
            let down = TOP + (window.y.end - y) * pixels_per_metre;
            drawn[down as usize * width + right as usize]
        };
        let arrows = deviations(&grid, &axes, (SPACING / (0.5 * pixels_per_metre)).ceil() as i64);
        let long = LONG / pixels_per_metre;
        let mut found = Vec::new();
        for Arrow { tail: [x, y], along: field } in arrows {
            assert_eq!(field, [if x < 9.0 { 10.0 } else { -10.0 }, 0.0]);
            let dark = |share: f64| at(x + field[0].signum() * share * long, y)[0] < 100;
            found.push(dark(0.3) && dark(0.6));
        }
        // Where the field turns, arrows meet head to head.
        let count = found.iter().filter(|is_dark| **is_dark).count();
        assert!(10 * count >= 8 * found.len() && count > 10, "{count} of {} arrows", found.len());
    }

    #[test]
    fn a_map_without_any_deviation_or_known_cell_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vectors.png");
        let grid = strength_grid([2, 1], vec![50.0; 2], vec![1.0; 2]);
        for cells in [vec![axes([1.0, 2.0, 3.0]); 2], vec![None, None]] {
            picture(&grid).write_vectors(&path, &AxesGrid { cells }).unwrap();
            assert!(path.is_file());
        }
        let error = picture(&grid).write_vectors(&path, &AxesGrid { cells: vec![None] }).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("expected 2 values of the axes") && said.ends_with("found 1"), "{said}");
    }
}
