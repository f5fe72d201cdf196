//! Curves over a shared axis, in charts one below the other.

use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::{
    ChartBuilder, Circle, Color, FontTransform, IntoLogRange, LineSeries, PathElement, RGBColor, Text, WHITE,
};
use plotters::style::text_anchor::HPos;

use super::Error;
use super::canvas::{Area, Drawn, INK, PALE_INK, line, part, pixels, short, text, text_offset, write_png, write_text};

/// Charts one below the other.
#[derive(Clone, Debug)]
pub struct Charts<'a> {
    /// The title.
    pub title: String,
    /// The quantity of the shared horizontal axis, and its scale.
    pub across: (&'a str, AxisScale),
    /// From the top down.
    pub charts: Vec<Chart<'a>>,
}

/// Curves of one quantity.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
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
    /// Name of the curve in the legend.
    pub name: String,
    /// Points of the curve; those that an axis cannot show (not finite, or not above zero on a logarithmic axis) are left out.
    pub points: Vec<(f64, f64)>,
}

/// How an axis places numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// In proportion.
    Linear,
    /// By powers of ten.
    Logarithmic,
}

// Lengths in pixels of the picture.
const WIDTH: f64 = 1000.0;
const TOP: f64 = 44.0;
const CHART: f64 = 290.0;
const LEFT: f64 = 96.0;
/// The space for a legend.
const RIGHT: f64 = 250.0;
const BELOW: f64 = 58.0;
const MARGIN: f64 = 10.0;
const TITLE_TEXT: f64 = 25.0;
const AXIS_TEXT: f64 = 18.0;
const SMALL_TEXT: f64 = 15.0;
const LEGEND_ROW: f64 = 22.0;

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

impl Charts<'_> {
    /// Draws them. 1000 pixels wide.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        use AxisScale::{Linear, Logarithmic};
        let height = TOP + CHART * self.charts.len() as f64;
        let all_across = self.charts.iter().flat_map(|chart| &chart.curves).flat_map(|curve| &curve.points);
        let x = self.across.1.range(all_across.map(|point| point.0));
        write_png(path, WIDTH as u32, height as u32, |sheet| {
            sheet.draw(&Text::new(self.title.as_str(), (pixels(LEFT), pixels(16.0)), text(TITLE_TEXT, INK)))?;
            for (number, chart) in self.charts.iter().enumerate() {
                let area = part(sheet, (0.0, TOP + CHART * number as f64), (WIDTH, CHART));
                let y = chart.scale.range(chart.curves.iter().flat_map(|curve| &curve.points).map(|point| point.1));
                let x = x.clone();
                match (self.across.1, chart.scale) {
                    (Linear, Linear) => self.draw(&area, chart, x, y)?,
                    (Linear, Logarithmic) => self.draw(&area, chart, x, y.log_scale())?,
                    (Logarithmic, Linear) => self.draw(&area, chart, x.log_scale(), y)?,
                    (Logarithmic, Logarithmic) => self.draw(&area, chart, x.log_scale(), y.log_scale())?,
                }
            }
            Ok(())
        })
    }

    fn draw<'a, X, Y>(&self, area: &Area<'a>, content: &Chart<'_>, x: X, y: Y) -> Drawn<'a>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        /// More are not told apart.
        const MOST_DOTS: usize = 100;
        let mut builder = ChartBuilder::on(area);
        builder.margin(pixels(MARGIN)).margin_left(0).margin_right(pixels(RIGHT));
        builder.x_label_area_size(pixels(BELOW)).y_label_area_size(pixels(LEFT));
        let mut chart = builder.build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .bold_line_style(line(PALE_INK.mix(0.25), 0.5))
            .axis_style(line(INK, 1.0))
            .label_style(text(SMALL_TEXT, INK))
            .y_label_offset(text_offset(SMALL_TEXT))
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .draw()?;
        for (number, curve) in content.curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let is_shown = |&(x, y): &(f64, f64)| self.across.1.shows(x) && content.scale.shows(y);
            let points: Vec<(f64, f64)> = curve.points.iter().copied().filter(is_shown).collect();
            // Where colours repeat, lines become thin.
            let style = line(colour, if number < COLOURS.len() { 2.0 } else { 1.0 });
            let dots = if points.len() > MOST_DOTS { &[] } else { points.as_slice() };
            chart.draw_series(dots.iter().map(|&point| Circle::new(point, pixels(3.0), colour.filled())))?;
            chart.draw_series(LineSeries::new(points, style))?;
            if content.curves.len() > 1 {
                let middle = pixels(MARGIN + LEGEND_ROW * (number as f64 + 0.5));
                let [start, end, name] = [MARGIN, MARGIN + 20.0, MARGIN + 26.0].map(|x| pixels(WIDTH - RIGHT + x));
                area.draw(&PathElement::new([(start, middle), (end, middle)], style))?;
                write_text(area, &curve.name, (name, middle), (SMALL_TEXT, INK), HPos::Left, FontTransform::None)?;
            }
        }
        let below = (pixels(0.5 * (LEFT + WIDTH - RIGHT)), pixels(CHART - MARGIN - 0.5 * AXIS_TEXT));
        write_text(area, self.across.0, below, (AXIS_TEXT, INK), HPos::Center, FontTransform::None)?;
        let beside = (pixels(18.0), pixels(0.5 * (CHART - BELOW)));
        write_text(area, content.quantity, beside, (AXIS_TEXT, INK), HPos::Center, FontTransform::Rotate270)
    }
}

impl AxisScale {
    /// Whether the axis can show a value.
    fn shows(self, value: f64) -> bool {
        value.is_finite() && (self == AxisScale::Linear || value > 0.0)
    }

    /// The range that holds all values that the axis can show: with a margin, or of whole powers of ten.
    fn range(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        /// Otherwise rounding would remove the outermost labels.
        const BEYOND: f64 = 1e-6;
        let (low, high) = values
            .filter(|&value| self.shows(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        match self {
            AxisScale::Linear => {
                let margin = if high > low { 0.05 * (high - low) } else { 0.5 };
                low - margin..high + margin
            }
            AxisScale::Logarithmic => {
                let (first, last) = (low.log10().floor(), high.log10().ceil());
                let last = last.max(first + 1.0);
                10_f64.powf(first) * (1.0 - BEYOND)..10_f64.powf(last) * (1.0 + BEYOND)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::canvas::read_png;

    #[test]
    fn axes_hold_every_value_that_they_can_show() {
        let linear = |values: &[f64]| AxisScale::Linear.range(values.iter().copied());
        assert_eq!(linear(&[2.0]), 1.5..2.5);
        assert_eq!(linear(&[-3.0, f64::INFINITY, 7.0, f64::NAN]), -3.5..7.5);
        let powers = |values: &[f64]| {
            let Range { start, end } = AxisScale::Logarithmic.range(values.iter().copied());
            assert!(values.iter().filter(|&&value| value > 0.0).all(|value| (start..end).contains(value)));
            (start.log10().round(), end.log10().round())
        };
        assert_eq!(powers(&[0.7, 480.0, -1.0, 0.0]), (-1.0, 3.0));
        assert_eq!(powers(&[1.0, 1000.0]), (0.0, 3.0));
        assert_eq!(powers(&[100.0]), (2.0, 3.0));
        assert_eq!(powers(&[]), (0.0, 1.0));
    }

    #[test]
    fn a_picture_is_as_high_as_its_charts_which_may_be_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curves.png");
        let curve = Curve { name: "vips".into(), points: vec![(10.0, 3.0), (f64::NAN, 2.0), (0.0, 1.0)] };
        for across in [AxisScale::Linear, AxisScale::Logarithmic] {
            for scale in [AxisScale::Linear, AxisScale::Logarithmic] {
                let chart = |count| Chart { quantity: "RMSE", scale, curves: vec![curve.clone(); count] };
                for (charts, height) in [(vec![], 44), (vec![chart(0)], 334), (vec![chart(1), chart(9)], 624)] {
                    Charts { title: "Test".into(), across: ("M", across), charts }.write(&path).unwrap();
                    let (width, found, _) = read_png(&path);
                    assert_eq!((width, found), (1000, height));
                }
            }
        }
    }

    #[test]
    fn points_are_where_the_axes_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curves.png");
        let curve = |name: &str, points: [f64; 2]| Curve {
            name: name.into(),
            points: vec![(10.0, points[0]), (1000.0, points[1])],
        };
        let curves = vec![curve("middle", [5.0, 5.0]), curve("all", [0.0, 10.0])];
        let chart = Chart { quantity: "RMSE", scale: AxisScale::Linear, curves };
        Charts { title: "Test".into(), across: ("M", AxisScale::Logarithmic), charts: vec![chart] }
            .write(&path)
            .unwrap();
        let (width, _, pixels) = read_png(&path);
        let at = |x: f64, y: f64| pixels[y.round() as usize * width + x.round() as usize];
        // The plot between its margins: 5 is half of its height.
        let middle = TOP + 0.5 * (MARGIN + CHART - MARGIN - BELOW);
        let right = WIDTH - RIGHT - 2.0;
        let blue = [0, 114, 178];
        for share in [0.0, 0.2, 0.8, 1.0] {
            assert_eq!(at(LEFT + 1.0 + share * (right - LEFT - 1.0), middle), blue, "{share}");
        }
        assert_ne!(at(LEFT + 0.25 * (right - LEFT), middle + 8.0), blue);
    }
}
