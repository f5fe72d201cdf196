//! How the model grew: inducing points, hyperparameters and time, batch by batch.

use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::{
    BitMapBackend, Cartesian2d, ChartBuilder, ChartContext, Circle, Color, FontTransform, IntoLogRange, LineSeries,
    PathElement, RGBColor, Text, WHITE,
};

use super::Error;
use super::canvas::{Area, Drawn, INK, PALE_INK, line, part, pixels, short, text, text_drop, write_png, write_text};
use crate::gp::report::NamedValue;
use plotters::style::text_anchor::HPos;

/// The model after one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct GrowthPoint {
    /// Inducing points after the batch.
    pub inducing_points: usize,
    /// Hyperparameters after the batch.
    pub hyperparameters: Vec<NamedValue>,
    /// Time the update took, in seconds.
    pub seconds: f64,
}

/// How the model grew.
#[derive(Clone, Debug)]
pub struct GrowthPicture<'a> {
    /// One point per batch, in order; may be empty.
    pub batches: &'a [GrowthPoint],
}

// Lengths in pixels of the picture.
const WIDTH: f64 = 1000.0;
const TOP: f64 = 44.0;
const PANEL: f64 = 274.0;
/// Of a panel, the part above its axes, where a legend may be.
const HEADER: f64 = 30.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
/// Of a panel, the part below its axes.
const BELOW: f64 = 34.0;
/// For the name of the axis that all panels share.
const BOTTOM: f64 = 34.0;
const TITLE_TEXT: f64 = 25.0;
const AXIS_TEXT: f64 = 18.0;
const TICK_TEXT: f64 = 16.0;

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

/// Values by the number of their batch.
type Curve = Vec<(f64, f64)>;

impl GrowthPicture<'_> {
    /// Draws the three panels, one below the other. 1000 pixels wide.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let height = TOP + 3.0 * PANEL + BOTTOM;
        write_png(path, WIDTH as u32, height as u32, |sheet| {
            let title = match self.batches.last() {
                Some(last) => format!("Growth over {} batches, M = {}", self.batches.len(), last.inducing_points),
                None => "Growth: no batch yet".to_owned(),
            };
            sheet.draw(&Text::new(title, (pixels(LEFT), pixels(16.0)), text(TITLE_TEXT, INK)))?;
            let panel = |i: usize| part(sheet, (0.0, TOP + i as f64 * PANEL), (WIDTH - RIGHT, PANEL));
            self.draw_inducing_points(&panel(0))?;
            self.draw_hyperparameters(&panel(1))?;
            self.draw_seconds(&panel(2))?;
            let below = (pixels(0.5 * (LEFT + WIDTH - RIGHT)), pixels(height - 0.5 * BOTTOM));
            write_text(sheet, "batch", below, (AXIS_TEXT, INK), HPos::Center, FontTransform::None)
        })
    }

    fn draw_inducing_points<'a>(&self, area: &Area<'a>) -> Drawn<'a> {
        let curve = self.curve(|batch| batch.inducing_points as f64);
        let mut chart = chart(area).build_cartesian_2d(self.numbers(), from_zero(&curve))?;
        draw_axes(&mut chart, area, "inducing points")?;
        draw_curve(&mut chart, &curve, COLOURS[0])
    }

    fn draw_hyperparameters<'a>(&self, area: &Area<'a>) -> Drawn<'a> {
        let curves = self.hyperparameter_curves();
        let decades = decades(curves.iter().flat_map(|(_, curve)| curve));
        let mut chart = chart(area).build_cartesian_2d(self.numbers(), decades.log_scale())?;
        draw_axes(&mut chart, area, "hyperparameters")?;
        for (i, (_, curve)) in curves.iter().enumerate() {
            draw_curve(&mut chart, curve, COLOURS[i % COLOURS.len()])?;
        }
        draw_legend(area, curves.iter().map(|(name, _)| name.as_str()))
    }

    fn draw_seconds<'a>(&self, area: &Area<'a>) -> Drawn<'a> {
        let curve = self.curve(|batch| batch.seconds);
        let mut chart = chart(area).build_cartesian_2d(self.numbers(), from_zero(&curve))?;
        draw_axes(&mut chart, area, "seconds per batch")?;
        draw_curve(&mut chart, &curve, COLOURS[1])
    }

    /// The range of the numbers of the batches, which start at one.
    fn numbers(&self) -> Range<f64> {
        let last = self.batches.len().max(1) as f64;
        let margin = (0.02 * last).max(0.4);
        1.0 - margin..last + margin
    }

    fn curve(&self, value: impl Fn(&GrowthPoint) -> f64) -> Curve {
        let values = self.batches.iter().map(value).enumerate();
        values.map(|(i, value)| (i as f64 + 1.0, value)).filter(|(_, value)| value.is_finite()).collect()
    }

    /// A curve per hyperparameter, in the order of their first appearance; what a logarithmic axis cannot show is left out.
    fn hyperparameter_curves(&self) -> Vec<(String, Curve)> {
        let mut curves: Vec<(String, Curve)> = Vec::new();
        for (i, batch) in self.batches.iter().enumerate() {
            for NamedValue { name, value } in &batch.hyperparameters {
                if !(value.is_finite() && *value > 0.0) {
                    continue;
                }
                let point = (i as f64 + 1.0, *value);
                match curves.iter_mut().find(|(known, _)| known == name) {
                    Some((_, curve)) => curve.push(point),
                    None => curves.push((name.clone(), vec![point])),
                }
            }
        }
        curves
    }
}

/// From zero to a little above the greatest value.
fn from_zero(curve: &Curve) -> Range<f64> {
    let greatest = curve.iter().map(|&(_, value)| value).fold(0.0, f64::max);
    0.0..if greatest > 0.0 { 1.08 * greatest } else { 1.0 }
}

/// The whole decades around all values; one decade where there are none.
fn decades<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Range<f64> {
    let (low, high) = points
        .map(|&(_, value)| value.log10())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return 1.0..10.0;
    }
    let (low, high) = (low.floor(), high.ceil());
    // A little beyond, or rounding would cost the outermost labels.
    const BEYOND: f64 = 1e-6;
    10f64.powf(low - BEYOND)..10f64.powf(if high > low { high } else { low + 1.0 } + BEYOND)
}

fn chart<'a, 'b>(area: &'b Area<'a>) -> ChartBuilder<'b, 'b, BitMapBackend<'a>> {
    let mut chart = ChartBuilder::on(area);
    chart.margin_top(pixels(HEADER)).x_label_area_size(pixels(BELOW)).y_label_area_size(pixels(LEFT));
    chart
}

type Chart<'b, 'a, Y> = ChartContext<'b, BitMapBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

fn draw_axes<'a, Y>(chart: &mut Chart<'_, 'a, Y>, area: &Area<'a>, quantity: &str) -> Drawn<'a>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(line(PALE_INK.mix(0.25), 0.5))
        .axis_style(line(INK, 1.0))
        .label_style(text(TICK_TEXT, INK))
        .y_label_offset(text_drop(TICK_TEXT))
        .set_all_tick_mark_size(pixels(5.0))
        .x_labels(12)
        .y_labels(6)
        // A batch has a whole number.
        .x_label_formatter(&|x| if x.fract() == 0.0 { short(*x) } else { String::new() })
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let beside = (pixels(18.0), pixels(HEADER + 0.5 * (PANEL - HEADER - BELOW)));
    write_text(area, quantity, beside, (AXIS_TEXT, INK), HPos::Center, FontTransform::Rotate270)
}

/// Says which colour is which curve, in a row above the panel.
fn draw_legend<'a, 'b>(area: &Area<'a>, names: impl Iterator<Item = &'b str>) -> Drawn<'a> {
    const MIDDLE: f64 = 0.5 * HEADER;
    let mut left = LEFT;
    for (name, colour) in names.zip(COLOURS.into_iter().cycle()) {
        let ends = [left, left + 26.0].map(|x| (pixels(x), pixels(MIDDLE)));
        area.draw(&PathElement::new(ends, line(colour, 2.0)))?;
        let place = (pixels(left + 34.0), pixels(MIDDLE));
        write_text(area, name, place, (TICK_TEXT, INK), HPos::Left, FontTransform::None)?;
        let (width, _) = area.estimate_text_size(name, &text(TICK_TEXT, INK))?;
        left += 34.0 + f64::from(width) / f64::from(pixels(1.0)) + 28.0;
    }
    Ok(())
}

/// Draws a line through the points, and the points themselves while they are few enough to be told apart.
fn draw_curve<'a, Y>(chart: &mut Chart<'_, 'a, Y>, curve: &Curve, colour: RGBColor) -> Drawn<'a>
where
    Y: Ranged<ValueType = f64>,
{
    const MOST_DOTS: usize = 100;
    chart.draw_series(LineSeries::new(curve.iter().copied(), line(colour, 2.0)))?;
    if curve.len() <= MOST_DOTS {
        chart.draw_series(curve.iter().map(|&point| Circle::new(point, pixels(3.0), colour.filled())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(values: &[(&str, f64)], seconds: f64) -> GrowthPoint {
        let hyperparameters = values.iter().map(|&(name, value)| NamedValue { name: name.into(), value }).collect();
        GrowthPoint { inducing_points: 3, hyperparameters, seconds }
    }

    #[test]
    fn hyperparameters_become_one_curve_each() {
        let batches = [
            point(&[("lengthscale", 0.7), ("noise", 2.0)], 0.1),
            point(&[("lengthscale", 0.6), ("noise", f64::NAN)], 0.1),
            point(&[("lengthscale", 0.5), ("noise", 0.0)], 0.1),
        ];
        let curves = GrowthPicture { batches: &batches }.hyperparameter_curves();
        let lengthscale = ("lengthscale".to_owned(), vec![(1.0, 0.7), (2.0, 0.6), (3.0, 0.5)]);
        assert_eq!(curves, [lengthscale, ("noise".to_owned(), vec![(1.0, 2.0)])]);
    }

    #[test]
    fn ranges_hold_every_value() {
        let rounded = |points: &[(f64, f64)]| {
            let Range { start, end } = decades(points.iter());
            (start.log10().round(), end.log10().round())
        };
        assert_eq!(rounded(&[(1.0, 0.7), (2.0, 500.0)]), (-1.0, 3.0));
        assert_eq!(rounded(&[(1.0, 1.0)]), (0.0, 1.0));
        assert_eq!(rounded(&[]), (0.0, 1.0));
        let tight = decades([(1.0, 0.1), (2.0, 100.0)].iter());
        assert!(tight.contains(&0.1) && tight.contains(&100.0) && !tight.contains(&101.0), "{tight:?}");
        assert_eq!(from_zero(&vec![(1.0, 0.0)]), 0.0..1.0);
        assert!(from_zero(&vec![(1.0, 130.0)]).end > 130.0);
    }

    #[test]
    fn few_many_and_broken_batches_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growth.png");
        let one = point(&[("lengthscale", 0.7)], 0.0);
        let cases = [
            vec![],
            vec![one.clone()],
            vec![one; 2000],
            vec![point(&[("noise", -1.0)], f64::NAN), point(&[], f64::INFINITY)],
            vec![point(&[("a", 1e-12), ("b", 1e12)], 1e-9)],
        ];
        for batches in cases {
            GrowthPicture { batches: &batches }.write(&path).unwrap();
            let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
            let information = png::Decoder::new(file).read_info().unwrap().info().size();
            assert_eq!(information, (1000, 900));
        }
    }
}
