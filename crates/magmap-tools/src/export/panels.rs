//! Curves in panels, one below the other, with a shared horizontal axis.

use std::ops::Range;
use std::path::Path;

use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    BitMapBackend, Cartesian2d, ChartBuilder, ChartContext, Circle, Color, FontTransform, LineSeries, PathElement,
    RGBColor, Text, WHITE,
};
use plotters::style::text_anchor::HPos;

use super::Error;
use super::canvas::{Area, Drawn, INK, PALE_INK, line, part, pixels, short, text, text_offset, write_png, write_text};

/// Curves in panels, one below the other.
#[derive(Clone, Debug)]
pub struct Panels<'a> {
    /// The title.
    pub title: String,
    /// The quantity of the shared horizontal axis, and its scale.
    pub across: (&'a str, AxisScale),
    /// From the top down.
    pub panels: Vec<Panel<'a>>,
}

/// Curves over the shared axis.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// The quantity of the vertical axis, with its unit.
    pub quantity: &'a str,
    /// The scale of the vertical axis.
    pub scale: AxisScale,
    /// The curves; several get a legend.
    pub curves: Vec<Curve>,
}

/// Points that are joined by a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points; those that an axis cannot show (not finite, or not above zero on a logarithmic axis) are left out.
    pub points: Vec<(f64, f64)>,
    /// A label for each point; may be empty.
    pub labels: Vec<String>,
}

/// How an axis places numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Whole numbers, with a margin.
    Counts,
    /// From zero to a little above the greatest value.
    FromZero,
    /// From a little below the least to a little above the greatest value.
    Fitting,
    /// By powers of ten.
    Logarithmic,
}

// Lengths in pixels of the picture.
const WIDTH: f64 = 1000.0;
const TOP: f64 = 44.0;
const PANEL: f64 = 274.0;
/// The height of a single panel.
const SINGLE_PANEL: f64 = 560.0;
/// The part of a panel above its axes, without the rows of its legend.
const HEADER: f64 = 10.0;
const LEGEND_ROW: f64 = 24.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
/// The part of a panel below its axes.
const BELOW: f64 = 34.0;
/// The space for the name of the shared axis.
const BOTTOM: f64 = 34.0;
const TITLE_TEXT: f64 = 25.0;
const AXIS_TEXT: f64 = 18.0;
const TICK_TEXT: f64 = 16.0;
/// The line in a legend, the gap after it, and the gap after its name.
const SAMPLE: f64 = 26.0;
const AFTER_SAMPLE: f64 = 8.0;
const AFTER_NAME: f64 = 28.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// The look of a curve: from the eighth on colours repeat, with hollow dots.
#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    is_hollow: bool,
}

impl Look {
    fn of(number: usize) -> Self {
        Self { colour: COLOURS[number % COLOURS.len()], is_hollow: number / COLOURS.len() % 2 == 1 }
    }

    fn dots<C: Clone>(self, at: C) -> impl Iterator<Item = Circle<C, i32>> {
        let circle = move |radius, colour: RGBColor| Circle::new(at.clone(), pixels(radius), colour.filled());
        let hole = self.is_hollow.then(|| circle(2.0, WHITE));
        [circle(if self.is_hollow { 3.6 } else { 3.0 }, self.colour)].into_iter().chain(hole)
    }
}

impl Panels<'_> {
    /// Draws them. 1000 pixels wide.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let panel_height = if self.panels.len() == 1 { SINGLE_PANEL } else { PANEL };
        let legends = self.legends();
        let heights: Vec<f64> =
            legends.iter().map(|legend| panel_height + LEGEND_ROW * last_row(legend) as f64).collect();
        let height = TOP + heights.iter().sum::<f64>() + BOTTOM;
        write_png(path, WIDTH as u32, height.round() as u32, |sheet| {
            sheet.draw(&Text::new(self.title.as_str(), (pixels(LEFT), pixels(16.0)), text(TITLE_TEXT, INK)))?;
            let mut top = TOP;
            for (panel, (legend, height)) in self.panels.iter().zip(legends.iter().zip(&heights)) {
                let area = part(sheet, (0.0, top), (WIDTH - RIGHT, *height));
                self.draw_panel(&area, panel, *height, legend)?;
                top += height;
            }
            let below = (pixels(0.5 * (LEFT + WIDTH - RIGHT)), pixels(height - 0.5 * BOTTOM));
            write_text(sheet, self.across.0, below, (AXIS_TEXT, INK), HPos::Center, FontTransform::None)
        })
    }

    /// The legend of each panel; empty for a single curve, or where the panel above has the same.
    fn legends(&self) -> Vec<Vec<Entry>> {
        let names = |panel: &Panel<'_>| panel.curves.iter().map(|curve| curve.name.clone()).collect::<Vec<_>>();
        let mut above = Vec::new();
        self.panels
            .iter()
            .map(|panel| {
                let names = names(panel);
                let is_needed = names.len() > 1 && names != above;
                let legend = if is_needed { legend(&names) } else { Vec::new() };
                above = names;
                legend
            })
            .collect()
    }

    fn draw_panel<'a>(&self, area: &Area<'a>, panel: &Panel<'_>, height: f64, legend: &[Entry]) -> Drawn<'a> {
        let across = self.across.1;
        let shown = |curve: &Curve| -> Vec<(f64, f64)> {
            let points = curve.points.iter().copied();
            points.filter(|&(x, y)| across.shows(x) && panel.scale.shows(y)).collect()
        };
        let all_across = self.panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
        let x = across.axis(all_across.map(|&(x, _)| x));
        let y = panel.scale.axis(panel.curves.iter().flat_map(|curve| &curve.points).map(|&(_, y)| y));
        let header = HEADER + LEGEND_ROW * (1 + last_row(legend)) as f64;
        let mut builder = ChartBuilder::on(area);
        builder.margin_top(pixels(header - 4.0)).x_label_area_size(pixels(BELOW)).y_label_area_size(pixels(LEFT));
        let mut chart = builder.build_cartesian_2d(x, y)?;
        draw_axes(&mut chart, across)?;
        let beside = (pixels(18.0), pixels(header + 0.5 * (height - header - BELOW)));
        write_text(area, panel.quantity, beside, (AXIS_TEXT, INK), HPos::Center, FontTransform::Rotate270)?;
        for (number, curve) in panel.curves.iter().enumerate() {
            draw_curve(&mut chart, &shown(curve), Look::of(number))?;
        }
        for (number, curve) in panel.curves.iter().enumerate() {
            let points =
                curve.points.iter().zip(&curve.labels).filter(|((x, y), _)| across.shows(*x) && panel.scale.shows(*y));
            for (&(x, y), label) in points {
                let (right, down) = chart.backend_coord(&(x, y));
                let origin = area.get_base_pixel();
                let place = (right - origin.0 + pixels(7.0), down - origin.1 - pixels(9.0));
                write_text(area, label, place, (TICK_TEXT, Look::of(number).colour), HPos::Left, FontTransform::None)?;
            }
        }
        for (number, (entry, curve)) in legend.iter().zip(&panel.curves).enumerate() {
            draw_entry(area, entry, &curve.name, Look::of(number))?;
        }
        Ok(())
    }
}

/// The position of a name in a legend.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    row: usize,
    left: f64,
}

/// Number of the last row of a legend.
fn last_row(legend: &[Entry]) -> usize {
    legend.last().map_or(0, |entry| entry.row)
}

/// Places names in rows.
fn legend(names: &[String]) -> Vec<Entry> {
    let mut next = Entry { row: 0, left: LEFT };
    names
        .iter()
        .map(|name| {
            // A letter is about half as wide as it is high; the gap makes up for the error.
            let width = SAMPLE + AFTER_SAMPLE + 0.5 * TICK_TEXT * name.chars().count() as f64;
            if next.left > LEFT && next.left + width > WIDTH - RIGHT {
                next = Entry { row: next.row + 1, left: LEFT };
            }
            let entry = next;
            next.left += width + AFTER_NAME;
            entry
        })
        .collect()
}

fn draw_entry<'a>(area: &Area<'a>, entry: &Entry, name: &str, look: Look) -> Drawn<'a> {
    let middle = pixels(HEADER + LEGEND_ROW * (entry.row as f64 + 0.3));
    let ends = [entry.left, entry.left + SAMPLE].map(|x| (pixels(x), middle));
    area.draw(&PathElement::new(ends, line(look.colour, 2.0)))?;
    for dot in look.dots((pixels(entry.left + 0.5 * SAMPLE), middle)) {
        area.draw(&dot)?;
    }
    let place = (pixels(entry.left + SAMPLE + AFTER_SAMPLE), middle);
    write_text(area, name, place, (TICK_TEXT, INK), HPos::Left, FontTransform::None)
}

impl AxisScale {
    /// Whether the axis can show a value.
    fn shows(self, value: f64) -> bool {
        value.is_finite() && (self != AxisScale::Logarithmic || value > 0.0)
    }

    /// The axis that holds all values that it can show.
    fn axis(self, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values
            .filter(|&value| self.shows(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        match self {
            AxisScale::Counts => {
                let margin = (0.02 * high).max(0.4);
                Axis::Linear((low.min(1.0) - margin..high + margin).into())
            }
            AxisScale::FromZero => Axis::Linear((0.0..if high > 0.0 { 1.08 * high } else { 1.0 }).into()),
            AxisScale::Fitting => {
                let margin = if high > low { 0.08 * (high - low) } else { 0.5 };
                Axis::Linear((low - margin..high + margin).into())
            }
            AxisScale::Logarithmic => {
                let Range { start, end } = around(low, high);
                Axis::Logarithmic((start..end).log_scale().into())
            }
        }
    }
}

/// The nearest of 1, 2, 5, 10, 20, ... around both values, slightly wider.
fn around(low: f64, high: f64) -> Range<f64> {
    const STEPS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
    // Otherwise rounding would remove the outermost labels.
    const BEYOND: f64 = 1e-6;
    let decade = |value: f64| 10f64.powf(value.log10().floor());
    let below = STEPS.iter().rev().map(|step| step * decade(low)).find(|&step| step <= low * (1.0 + BEYOND));
    let above = STEPS.iter().map(|step| step * decade(high)).find(|&step| step >= high * (1.0 - BEYOND));
    let (start, end) = (below.unwrap_or(low), above.unwrap_or(high));
    let end = if end > start { end } else { 10.0 * start };
    start * (1.0 - BEYOND)..end * (1.0 + BEYOND)
}

/// An axis of either kind.
enum Axis {
    Linear(RangedCoordf64),
    Logarithmic(LogCoord<f64>),
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Axis::Linear(axis) => axis.map(value, limit),
            Axis::Logarithmic(axis) => axis.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Axis::Linear(axis) => axis.key_points(hint),
            Axis::Logarithmic(axis) => axis.key_points(hint),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Axis::Linear(axis) => axis.range(),
            Axis::Logarithmic(axis) => axis.range(),
        }
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        short(*value)
    }
}

type Chart<'b, 'a> = ChartContext<'b, BitMapBackend<'a>, Cartesian2d<Axis, Axis>>;

fn draw_axes<'a>(chart: &mut Chart<'_, 'a>, across: AxisScale) -> Drawn<'a> {
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(line(PALE_INK.mix(0.25), 0.5))
        .axis_style(line(INK, 1.0))
        .label_style(text(TICK_TEXT, INK))
        .y_label_offset(text_offset(TICK_TEXT))
        .set_all_tick_mark_size(pixels(5.0))
        .x_labels(12)
        .y_labels(6)
        .x_label_formatter(&|x| if across != AxisScale::Counts || x.fract() == 0.0 { short(*x) } else { String::new() })
        .y_label_formatter(&|y| short(*y))
        .draw()
}

/// Draws a line through the points, and the points too if they are few enough to be told apart.
fn draw_curve<'a>(chart: &mut Chart<'_, 'a>, points: &[(f64, f64)], look: Look) -> Drawn<'a> {
    const MOST_DOTS: usize = 100;
    chart.draw_series(LineSeries::new(points.iter().copied(), line(look.colour, 2.0)))?;
    if points.len() <= MOST_DOTS {
        chart.draw_series(points.iter().flat_map(|&point| look.dots(point)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::canvas::read_png;

    fn range(scale: AxisScale, values: &[f64]) -> Range<f64> {
        scale.axis(values.iter().copied()).range()
    }

    #[test]
    fn axes_hold_every_value_that_they_can_show() {
        assert_eq!(range(AxisScale::FromZero, &[0.0]), 0.0..1.0);
        assert!(range(AxisScale::FromZero, &[130.0, f64::NAN]).contains(&130.0));
        let fitting = range(AxisScale::Fitting, &[-3.0, f64::INFINITY, 5.0]);
        assert!(fitting.start < -3.0 && fitting.start > -5.0 && fitting.end > 5.0 && fitting.end < 7.0, "{fitting:?}");
        let counts = range(AxisScale::Counts, &[1.0, 20.0]);
        assert!(counts.start < 1.0 && counts.start > 0.0 && counts.end > 20.0 && counts.end < 21.0, "{counts:?}");
        let steps = |values: &[f64]| {
            let Range { start, end } = range(AxisScale::Logarithmic, values);
            assert!(values.iter().filter(|&&value| value > 0.0).all(|value| (start..end).contains(value)));
            ((1e3 * start).round() / 1e3, end.round())
        };
        assert_eq!(steps(&[0.7, 480.0, -1.0, 0.0]), (0.5, 500.0));
        assert_eq!(steps(&[1.0, 1000.0]), (1.0, 1000.0));
        assert_eq!(steps(&[1.0]), (1.0, 10.0));
        assert_eq!(steps(&[]), (1.0, 10.0));
    }

    #[test]
    fn a_legend_continues_in_the_next_row_and_is_not_repeated() {
        let curves = |count: usize| -> Vec<Curve> {
            (0..count).map(|i| Curve { name: format!("conditional_variance={i}"), ..Curve::default() }).collect()
        };
        let panel = |count| Panel { quantity: "M", scale: AxisScale::FromZero, curves: curves(count) };
        let panels = Panels {
            title: String::new(),
            across: ("batch", AxisScale::Counts),
            panels: vec![panel(1), panel(9), panel(9), panel(2)],
        };
        let legends = panels.legends();
        assert_eq!(legends.iter().map(Vec::len).collect::<Vec<_>>(), [0, 9, 0, 2]);
        let rows: Vec<usize> = legends[1].iter().map(|entry| entry.row).collect();
        assert!(rows.windows(2).all(|pair| pair[1] - pair[0] <= 1) && rows[0] == 0 && rows[8] > 0, "{rows:?}");
        assert!(legends[1].iter().all(|entry| entry.left >= LEFT && entry.left < WIDTH - RIGHT));
    }

    #[test]
    fn a_sheet_is_as_high_as_its_panels_which_may_be_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("panels.png");
        let height = |panels: Vec<Panel<'_>>| {
            let panels = Panels { title: "Test".into(), across: ("M", AxisScale::Logarithmic), panels };
            panels.write(&path).unwrap();
            let (width, height, _) = read_png(&path);
            (width, height)
        };
        let curve = Curve {
            name: "vips".into(),
            points: vec![(10.0, 3.0), (f64::NAN, 2.0), (0.0, 1.0)],
            labels: vec!["0.1".into(), "0.2".into(), "0.3".into()],
        };
        let panel = |curves| Panel { quantity: "RMSE", scale: AxisScale::Logarithmic, curves };
        assert_eq!(height(vec![panel(vec![])]), (1000, 638));
        assert_eq!(height(vec![panel(vec![curve.clone(), curve.clone()])]), (1000, 638));
        assert_eq!(height(vec![panel(vec![curve.clone()]), panel(vec![]), panel(vec![curve])]), (1000, 900));
        assert_eq!(height(vec![]), (1000, 78));
    }

    #[test]
    fn points_are_where_the_axes_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("panels.png");
        let curve =
            Curve { name: "vips".into(), points: vec![(10.0, 5.0), (100.0, 5.0), (1000.0, 5.0)], labels: vec![] };
        let ceiling = Curve { name: "top".into(), points: vec![(10.0, 10.0 / 1.08)], labels: vec![] };
        let panel = Panel { quantity: "RMSE", scale: AxisScale::FromZero, curves: vec![curve, ceiling] };
        Panels { title: "Test".into(), across: ("M", AxisScale::Logarithmic), panels: vec![panel] }
            .write(&path)
            .unwrap();
        let (width, _, pixels) = read_png(&path);
        let at = |x: f64, y: f64| pixels[y.round() as usize * width + x.round() as usize];
        // 5 is half of the axis, which ends at 10; the header is one row, and 4 pixels of it are for the uppermost label.
        let top = TOP + HEADER + LEGEND_ROW - 4.0;
        let blue = [0, 114, 178];
        let middle = 0.5 * (top + TOP + SINGLE_PANEL - BELOW);
        for share in [0.0, 0.25, 0.5, 1.0] {
            assert_eq!(at(LEFT + share * (WIDTH - RIGHT - LEFT - 1.0), middle), blue, "{share}");
        }
        assert_ne!(at(LEFT + 300.0, middle + 8.0), blue);
    }
}
