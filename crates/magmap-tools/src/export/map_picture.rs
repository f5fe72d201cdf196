//! The map as a picture: the mean with its uncertainty as opacity, and the uncertainty by itself.

use std::f64::consts::PI;
use std::ops::Range;
use std::path::Path;

use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::data::fitting_range;
use plotters::prelude::{
    BLACK, BitMapBackend, ChartBuilder, ChartContext, Circle, Color, FontTransform, PathElement, RGBAColor, RGBColor,
    Rectangle, ShapeStyle, Text, WHITE,
};
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, INK, PALE_INK, line, part, pixels, short, text, text_offset, write_png, write_text};
use super::cell_colours::{mean_colours, uncertainty_colours};
use super::{Error, check_shape};
use magmap::display::colour::{self, ColourMap, MAGMA, Rgb, VIRIDIS, mean_scale};
use magmap::display::scale::Scale;
use magmap::field::grid::{GridGeometry, StrengthGrid};

/// The content of a picture of a map.
#[derive(Clone, Debug)]
pub struct MapPicture<'a> {
    /// Mean and standard deviation per cell, in microtesla.
    pub grid: &'a StrengthGrid,
    /// The path of the sensor, in metres; may be empty.
    pub path: &'a [[f64; 2]],
    /// Places of the inducing points, in metres; may be empty.
    pub inducing_points: &'a [[f64; 2]],
    /// Places that have changed since they were first mapped, in metres; may be empty.
    pub changes: &'a [[f64; 2]],
    /// Prior standard deviation of the field, in microtesla (the square root of the kernel's variance, without its constant): a cell
    /// as uncertain as that is white.
    pub prior_standard_deviation: f64,
    /// The title; the number of inducing points M is added to it.
    pub title: &'a str,
    /// A second, smaller line, such as the source of the data.
    pub subtitle: Option<&'a str>,
}

// Lengths in pixels of the picture.
const LARGEST_PLOT: (f64, f64) = (780.0, 860.0);
const SMALLEST_PLOT: (f64, f64) = (420.0, 260.0);
pub(super) const LEFT: f64 = 78.0;
pub(super) const TOP: f64 = 84.0;
pub(super) const SUBTITLE_MIDDLE: f64 = 60.0;
pub(super) const BOTTOM: f64 = 66.0;
const BAR_GAP: f64 = 26.0;
const BAR_WIDTH: f64 = 24.0;
const BAR_LABELS: f64 = 92.0;
const TITLE_TEXT: f64 = 25.0;
const SMALL_TEXT: f64 = 18.0;
const AXIS_TEXT: f64 = 19.0;
const TICK_TEXT: f64 = 17.0;

/// Properties in which the pictures of the mean and of its uncertainty differ.
pub(super) struct Theme {
    /// Text that is added to the title.
    pub(super) suffix: &'static str,
    quantity: &'static str,
    cells: Vec<Rgb>,
    pub(super) scale: Scale,
    colours: ColourMap,
    pub(super) path: RGBAColor,
}

/// Radius of the dot of an inducing point, in pixels.
const DOT: f64 = 3.2;

/// Largest share of a map that dots of full size may cover.
const MOST_COVERED: f64 = 0.1;

impl MapPicture<'_> {
    /// Draws the mean: colour for the field strength, fading to white with uncertainty. 1000 pixels wide at most.
    pub fn write_mean(&self, path: &Path) -> Result<(), Error> {
        self.write(path, &self.mean_theme()?)
    }

    /// Colour for the field strength, fading to white with uncertainty.
    pub(super) fn mean_theme(&self) -> Result<Theme, Error> {
        check_shape(self.grid)?;
        let scale = mean_scale(self.grid, self.prior_standard_deviation);
        Ok(Theme {
            suffix: "",
            quantity: "field strength (µT)",
            cells: mean_colours(self.grid, self.prior_standard_deviation, scale),
            scale,
            colours: VIRIDIS,
            path: BLACK.mix(0.55),
        })
    }

    /// Draws the standard deviation, from dark (certain) to light (uncertain).
    pub fn write_uncertainty(&self, path: &Path) -> Result<(), Error> {
        check_shape(self.grid)?;
        let scale = Scale::from_zero(&self.grid.standard_deviation);
        let cells = uncertainty_colours(self.grid, scale);
        self.write(
            path,
            &Theme {
                suffix: ", uncertainty",
                quantity: "standard deviation (µT)",
                cells,
                scale,
                colours: MAGMA,
                path: WHITE.mix(0.8),
            },
        )
    }

    fn write(&self, path: &Path, theme: &Theme) -> Result<(), Error> {
        let window = Window::of(self);
        Self::write_sheet(path, &window, theme, |sheet| {
            self.draw_title(sheet, theme)?;
            self.draw_legend(sheet, LEFT + window.width)?;
            self.draw_map(sheet, &window, theme)
        })
    }

    /// Writes a picture: what `draw` draws, and the colour bar.
    pub(super) fn write_sheet<F>(path: &Path, window: &Window, theme: &Theme, draw: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(&Area<'a>) -> Drawn<'a>,
    {
        let width = LEFT + window.width + BAR_GAP + BAR_WIDTH + BAR_LABELS;
        let height = TOP + window.height + BOTTOM;
        write_png(path, width.round() as u32, height.round() as u32, |sheet| {
            draw(sheet)?;
            draw_bar(sheet, (LEFT + window.width + BAR_GAP, TOP), window.height, theme)
        })
    }

    pub(super) fn draw_title<'a>(&self, sheet: &Area<'a>, theme: &Theme) -> Drawn<'a> {
        let left = pixels(LEFT);
        let title = format!("{}{}, M = {}", self.title, theme.suffix, self.inducing_points.len());
        sheet.draw(&Text::new(title, (left, pixels(14.0)), text(TITLE_TEXT, INK)))?;
        if let Some(subtitle) = self.subtitle {
            let place = (left, pixels(SUBTITLE_MIDDLE));
            write_text(sheet, subtitle, place, (SMALL_TEXT, PALE_INK), HPos::Left, FontTransform::None)?;
        }
        Ok(())
    }

    /// Draws the legend of the path and the inducing points, which ends at `right`.
    fn draw_legend<'a>(&self, sheet: &Area<'a>, right: f64) -> Drawn<'a> {
        let mut right = right;
        if !self.inducing_points.is_empty() {
            right = write_entry(sheet, "inducing points", right)? - 12.0;
            for circle in dots(&[(pixels(right), pixels(SUBTITLE_MIDDLE))], 1.0) {
                sheet.draw(&circle)?;
            }
            right -= 24.0;
        }
        if !self.path.is_empty() {
            right = write_entry(sheet, "path", right)? - 10.0;
            let ends = [right - 26.0, right].map(|x| (pixels(x), pixels(SUBTITLE_MIDDLE)));
            sheet.draw(&PathElement::new(ends, line(PALE_INK, 1.5)))?;
            right -= 36.0;
        }
        if !self.changes.is_empty() {
            right = write_entry(sheet, "changed", right)? - 12.0;
            sheet.draw(&ring((pixels(right), pixels(SUBTITLE_MIDDLE))))?;
        }
        Ok(())
    }

    /// Draws the map and its axes.
    pub(super) fn draw_map<'a>(&self, sheet: &Area<'a>, window: &Window, theme: &Theme) -> Drawn<'a> {
        let area = part(sheet, (0.0, TOP), (LEFT + window.width, window.height + BOTTOM));
        let mut chart = window.chart(&area)?;
        chart.draw_series(cell_rectangles(&self.grid.geometry, &theme.cells))?;
        chart.draw_series(strokes(self.path).map(|stroke| PathElement::new(stroke, line(theme.path, 1.3))))?;
        let points: Vec<_> = self.inducing_points.iter().filter(is_finite).map(|&[x, y]| (x, y)).collect();
        // Many are drawn smaller, so that the map stays visible between them.
        let covered = points.len() as f64 * PI * DOT * DOT / (window.width * window.height);
        chart.draw_series(dots(&points, (MOST_COVERED / covered).sqrt().min(1.0)))?;
        let changes = self.changes.iter().filter(is_finite);
        chart.draw_series(changes.map(|&[x, y]| ring((x, y))))?;
        draw_axes(&mut chart, [window.width, window.height].map(|length| (length / 75.0) as usize + 1))?;
        let below = (pixels(LEFT + 0.5 * window.width), pixels(TOP + window.height + BOTTOM - 16.0));
        write_text(sheet, "x (m)", below, (AXIS_TEXT, INK), HPos::Center, FontTransform::None)?;
        let beside = (pixels(18.0), pixels(TOP + 0.5 * window.height));
        write_text(sheet, "y (m)", beside, (AXIS_TEXT, INK), HPos::Center, FontTransform::Rotate270)
    }
}

/// Writes the text of a legend, which ends at `right`; where it begins.
pub(super) fn write_entry<'a>(sheet: &Area<'a>, content: &str, right: f64) -> Drawn<'a, f64> {
    let place = (pixels(right), pixels(SUBTITLE_MIDDLE));
    write_text(sheet, content, place, (SMALL_TEXT, PALE_INK), HPos::Right, FontTransform::None)?;
    let (width, _) = sheet.estimate_text_size(content, &text(SMALL_TEXT, PALE_INK))?;
    Ok(right - f64::from(width) / f64::from(pixels(1.0)))
}

/// Draws the colour bar with this upper left corner, in pixels of the picture.
fn draw_bar<'a>(sheet: &Area<'a>, (left, top): (f64, f64), height: f64, theme: &Theme) -> Drawn<'a> {
    const STEPS: u32 = 256;
    let Scale { low, high } = theme.scale;
    let area = part(sheet, (left, top), (BAR_WIDTH + BAR_LABELS, height));
    let mut chart =
        ChartBuilder::on(&area).right_y_label_area_size(pixels(BAR_LABELS)).build_cartesian_2d(0.0..1.0, low..high)?;
    chart.draw_series((0..STEPS).map(|step| {
        let fraction = |step: u32| f64::from(step) / f64::from(STEPS);
        let value = |step: u32| low + (high - low) * fraction(step);
        let colour = theme.colours.colour(fraction(step) + 0.5 / f64::from(STEPS));
        Rectangle::new([(0.0, value(step)), (1.0, value(step + 1))], filled(colour))
    }))?;
    draw_axes(&mut chart, [0, (height / 80.0) as usize + 1])?;
    let beside = (pixels(left + BAR_WIDTH + BAR_LABELS - 16.0), pixels(top + 0.5 * height));
    write_text(sheet, theme.quantity, beside, (AXIS_TEXT, INK), HPos::Center, FontTransform::Rotate90)
}

/// Draws axes with about these numbers of labels, and a frame around the plot.
fn draw_axes<'a>(chart: &mut Chart<'_, 'a>, [x_labels, y_labels]: [usize; 2]) -> Drawn<'a> {
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(line(INK, 1.0))
        .label_style(text(TICK_TEXT, INK))
        .y_label_offset(text_offset(TICK_TEXT))
        .set_all_tick_mark_size(pixels(5.0))
        .x_labels(x_labels)
        .y_labels(y_labels)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let plot = chart.plotting_area().strip_coord_spec();
    let (width, height) = plot.dim_in_pixel();
    plot.draw(&Rectangle::new([(0, 0), (width as i32 - 1, height as i32 - 1)], line(INK, 1.0)))
}

/// A rectangle per known cell, in metres.
fn cell_rectangles<'a>(
    geometry: &'a GridGeometry,
    cells: &'a [Rgb],
) -> impl Iterator<Item = Rectangle<(f64, f64)>> + 'a {
    let half = geometry.resolution / 2.0;
    let coloured = cells.iter().enumerate().filter(|&(_, &colour)| colour != colour::WHITE);
    coloured.map(move |(i, &colour)| {
        let [x, y] = geometry.centre(i % geometry.columns, i / geometry.columns);
        Rectangle::new([(x - half, y - half), (x + half, y + half)], filled(colour))
    })
}

fn filled([red, green, blue]: Rgb) -> ShapeStyle {
    RGBColor(red, green, blue).filled()
}

/// A black dot per point, with a thin white rim that keeps it apart from dark cells; all rims are below all dots.
fn dots<C: Clone>(points: &[C], size: f64) -> impl Iterator<Item = Circle<C, i32>> {
    let circles = move |radius: f64, colour: RGBColor| {
        points.iter().map(move |point| Circle::new(point.clone(), pixels(radius * size), colour.filled()))
    };
    circles(DOT + 1.2, WHITE).chain(circles(DOT, BLACK))
}

/// A red ring around a place that has changed.
fn ring<C>(place: C) -> Circle<C, i32> {
    Circle::new(place, pixels(2.0 * DOT), RGBColor(214, 39, 40).stroke_width(2))
}

fn is_finite(point: &&[f64; 2]) -> bool {
    point.iter().all(|coordinate| coordinate.is_finite())
}

/// The path, divided where it is not finite.
pub(super) fn strokes(path: &[[f64; 2]]) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let pieces = path.split(|point| !is_finite(&point)).filter(|piece| !piece.is_empty());
    pieces.map(|piece| piece.iter().map(|&[x, y]| (x, y)).collect())
}

/// The part of the world that is shown, and its size in the picture: a metre is as long along y as along x.
#[derive(Debug, PartialEq)]
pub(super) struct Window {
    /// In metres.
    pub(super) x: Range<f64>,
    /// In metres.
    pub(super) y: Range<f64>,
    /// In pixels of the picture.
    pub(super) width: f64,
    /// In pixels of the picture.
    pub(super) height: f64,
}

/// Axes in metres.
type Chart<'b, 'a> = ChartContext<'b, BitMapBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Window {
    /// A chart of the window on an area that has room for the axes to its left and below.
    pub(super) fn chart<'b, 'a>(&self, area: &'b Area<'a>) -> Drawn<'a, Chart<'b, 'a>> {
        let mut builder = ChartBuilder::on(area);
        builder.x_label_area_size(pixels(BOTTOM)).y_label_area_size(pixels(LEFT));
        builder.build_cartesian_2d(self.x.clone(), self.y.clone())
    }

    /// The window that holds everything in a picture.
    pub(super) fn of(picture: &MapPicture<'_>) -> Self {
        let points: Vec<[f64; 2]> = places(picture).collect();
        let [x, y] = [0, 1].map(|axis| fitting_range(points.iter().map(|point| &point[axis])));
        // A single point has no extent.
        let size = |Range { start, end }: &Range<f64>| if end > start { end - start } else { 1.0 };
        let (metres_x, metres_y) = (size(&x), size(&y));
        let metres_per_pixel = (metres_x / LARGEST_PLOT.0).max(metres_y / LARGEST_PLOT.1);
        let width = (metres_x / metres_per_pixel).max(SMALLEST_PLOT.0).round();
        let height = (metres_y / metres_per_pixel).max(SMALLEST_PLOT.1).round();
        let around = |Range { start, end }: Range<f64>, pixels: f64| {
            let (middle, half) = ((start + end) / 2.0, pixels * metres_per_pixel / 2.0);
            middle - half..middle + half
        };
        Self { x: around(x, width), y: around(y, height), width, height }
    }
}

/// All places in a picture: the corners of its cells, its path and its inducing points.
fn places(picture: &MapPicture) -> impl Iterator<Item = [f64; 2]> {
    let geometry = &picture.grid.geometry;
    let [left, bottom] = geometry.origin();
    let side = |cells: usize| cells as f64 * geometry.resolution;
    let corners = [[left, bottom], [left + side(geometry.columns), bottom + side(geometry.rows)]];
    let corners = corners.into_iter().filter(|_| !geometry.is_empty());
    let points = picture.path.iter().chain(picture.inducing_points).chain(picture.changes).copied();
    corners.chain(points).filter(|point| is_finite(&point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::canvas::read_png;
    use crate::export::strength_grid;

    fn grid(columns: usize, rows: usize, mean: Vec<f64>) -> StrengthGrid {
        let standard_deviation = mean.iter().map(|mean| mean * 0.0).collect();
        strength_grid([columns, rows], mean, standard_deviation)
    }

    fn picture<'a>(grid: &'a StrengthGrid, path: &'a [[f64; 2]], inducing_points: &'a [[f64; 2]]) -> MapPicture<'a> {
        MapPicture {
            grid,
            path,
            inducing_points,
            changes: &[],
            prior_standard_deviation: 10.0,
            title: "Test",
            subtitle: Some("below"),
        }
    }

    /// Draws the mean: a function of the colour of a place in a square plot, given by its share of the way right and down.
    fn drawn(picture: &MapPicture) -> impl Fn(f64, f64) -> Rgb + use<> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.png");
        picture.write_mean(&path).unwrap();
        let (width, _, pixels) = read_png(&path);
        let plot = LARGEST_PLOT.0;
        move |right, down| pixels[(TOP + plot * down) as usize * width + (LEFT + plot * right) as usize]
    }

    #[test]
    fn a_metre_is_as_long_along_y_as_along_x() {
        for (columns, rows) in [(20, 10), (10, 20), (200, 1), (1, 300), (1, 1), (0, 0)] {
            let grid = grid(columns, rows, vec![50.0; columns * rows]);
            let window = Window::of(&picture(&grid, &[], &[]));
            let along_x = (window.x.end - window.x.start) / window.width;
            let along_y = (window.y.end - window.y.start) / window.height;
            assert!((along_x / along_y - 1.0).abs() < 1e-12, "{window:?}");
            assert!(window.width <= LARGEST_PLOT.0 && window.height <= LARGEST_PLOT.1, "{window:?}");
        }
    }

    #[test]
    fn the_window_holds_cells_path_and_inducing_points() {
        let grid = grid(4, 2, vec![50.0; 8]);
        let window = Window::of(&picture(&grid, &[[5.0, 2.5], [f64::NAN, 900.0]], &[[0.0, -3.0]]));
        assert!(window.x.start <= -1.0 && window.x.end >= 5.0 && window.x.end < 6.0, "{window:?}");
        assert!(window.y.start <= -3.0 && window.y.end >= 3.0 && window.y.end < 4.0, "{window:?}");
    }

    #[test]
    fn y_points_up_x_points_right_and_unknown_is_white() {
        // Upper row: high, unknown. Lower row: low, middle.
        let grid = grid(2, 2, vec![40.0, 50.0, 60.0, f64::NAN]);
        let at = drawn(&picture(&grid, &[], &[]));
        assert_eq!(at(0.25, 0.25), VIRIDIS.colour(1.0));
        assert_eq!(at(0.75, 0.25), colour::WHITE);
        assert_eq!(at(0.25, 0.75), VIRIDIS.colour(0.0));
        assert_eq!(at(0.75, 0.75), VIRIDIS.colour(0.5));
    }

    #[test]
    fn the_bar_runs_from_low_at_the_bottom_to_high_at_the_top() {
        let grid = grid(2, 1, vec![40.0, 60.0]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.png");
        let picture = picture(&grid, &[], &[]);
        picture.write_mean(&path).unwrap();
        let (width, _, pixels) = read_png(&path);
        let window = Window::of(&picture);
        let bar = (LEFT + window.width + BAR_GAP + BAR_WIDTH / 2.0) as usize;
        let at = |down: f64| pixels[(TOP + window.height * down) as usize * width + bar];
        let distance = |a: Rgb, b: Rgb| (0..3).map(|i| a[i].abs_diff(b[i])).max().unwrap();
        for fraction in [0.1, 0.5, 0.9] {
            // One pixel of the bar is less than 1/300 of it, less than four of 255 steps of colour.
            assert!(distance(at(1.0 - fraction), VIRIDIS.colour(fraction)) <= 4);
        }
    }

    #[test]
    fn inducing_points_are_black_dots_where_they_belong() {
        let grid = grid(2, 2, vec![60.0; 4]);
        let at = drawn(&picture(&grid, &[], &[[-0.75, 2.25]]));
        assert_eq!(at(0.25, 0.75), [0, 0, 0]);
        assert_ne!(at(0.25, 0.25), [0, 0, 0]);
    }

    #[test]
    fn the_path_is_a_thin_dark_line_that_ends_where_it_ends() {
        let grid = grid(2, 2, vec![60.0; 4]);
        let at = drawn(&picture(&grid, &[[-0.9, 2.25], [-0.5, 2.25]], &[]));
        let field = VIRIDIS.colour(0.5);
        assert!(at(0.3, 0.75)[0] < field[0] / 4 * 3 && at(0.3, 0.75) != [0, 0, 0], "{:?}", at(0.3, 0.75));
        assert_eq!([at(0.3, 0.74), at(0.3, 0.76), at(0.6, 0.75)], [field; 3]);
    }

    #[test]
    fn empty_and_extreme_maps_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let unknown = grid(3, 2, vec![f64::NAN; 6]);
        let cases = [
            (grid(0, 0, vec![]), vec![]),
            (grid(1, 1, vec![50.0]), vec![[-0.9, 2.1]]),
            (unknown, vec![[f64::NAN, 0.0], [0.0, f64::INFINITY]]),
            (grid(400, 1, vec![1e-3; 400]), vec![[0.0, 2.2], [100.0, 2.2]]),
            (grid(1, 2, vec![1e5, -1e5]), vec![]),
        ];
        for (i, (grid, path)) in cases.iter().enumerate() {
            for prior in [10.0, 0.0, f64::NAN] {
                let mut picture = picture(grid, path, path);
                picture.prior_standard_deviation = prior;
                let file = folder.path().join(format!("{i}.png"));
                picture.write_mean(&file).unwrap();
                picture.write_uncertainty(&file).unwrap();
                let (width, height, pixels) = read_png(&file);
                assert!(width <= 1000 && height <= 1020, "{width} x {height}");
                assert!(pixels.iter().any(|&pixel| pixel != colour::WHITE));
            }
        }
    }

    #[test]
    fn arrays_that_do_not_fit_the_grid_are_an_error() {
        let mut grid = grid(2, 2, vec![50.0; 4]);
        grid.standard_deviation.pop();
        let message = picture(&grid, &[], &[]).write_mean(Path::new("never.png")).unwrap_err().to_string();
        assert!(message.contains("expected 4") && message.contains("found 3"), "{message}");
    }
}
