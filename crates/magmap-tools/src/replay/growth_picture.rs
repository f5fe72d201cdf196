//! The growth of the model: inducing points, hyperparameters, hard iron and time, batch by batch.

use std::path::Path;

use streaming_gp::UpdateReport;

use super::batch_record::BatchRecord;
use crate::export::Error;
use crate::export::curves::{AxisScale, Chart, Charts, Curve};
use magmap::field::map::SensorBias;

/// The batches that were learnt, each with the report of its update, in order; may be none.
pub(super) struct GrowthPicture<'a> {
    batches: Vec<(&'a BatchRecord, &'a UpdateReport)>,
}

impl<'a> GrowthPicture<'a> {
    pub(super) fn of(records: &'a [BatchRecord]) -> Self {
        Self { batches: records.iter().filter_map(|record| Some((record, record.update.as_ref()?))).collect() }
    }

    /// Draws the charts, one below the other: three, and two of the hard iron where it is learnt. 1000 pixels wide.
    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let title = match self.batches.last() {
            Some((_, last)) => format!("Growth over {} batches, M = {}", self.batches.len(), last.inducing_points),
            None => "Growth: no batch yet".to_owned(),
        };
        let chart = |quantity, scale, curves| Chart { quantity, scale, curves };
        let mut charts = vec![
            chart("inducing points", AxisScale::Linear, vec![self.curve(|_, update| update.inducing_points as f64)]),
            chart("hyperparameters", AxisScale::Logarithmic, self.hyperparameter_curves()),
        ];
        if self.batches.iter().any(|(batch, _)| batch.sensor_bias.is_some()) {
            let (mean, deviation) =
                (self.axis_curves(|bias| bias.hard_iron), self.axis_curves(|bias| bias.hard_iron_sd));
            charts.push(chart("hard iron (µT)", AxisScale::Linear, mean));
            charts.push(chart("its standard deviation (µT)", AxisScale::Logarithmic, deviation));
        }
        charts.push(chart("seconds per batch", AxisScale::Linear, vec![self.curve(|batch, _| batch.seconds)]));
        Charts { title, across: ("batch", AxisScale::Linear), charts }.write(path)
    }

    fn curve(&self, value: impl Fn(&BatchRecord, &UpdateReport) -> f64) -> Curve {
        let values = self.batches.iter().map(|(batch, update)| value(batch, update)).enumerate();
        Curve { points: values.map(|(i, value)| (i as f64 + 1.0, value)).collect(), ..Curve::default() }
    }

    /// A curve per axis of the sensor.
    fn axis_curves(&self, values: impl Fn(&SensorBias) -> [f64; 3]) -> Vec<Curve> {
        self.curves(|batch, _| batch.sensor_bias.iter().flat_map(|bias| ["x", "y", "z"].into_iter().zip(values(bias))))
    }

    /// A curve per hyperparameter.
    fn hyperparameter_curves(&self) -> Vec<Curve> {
        self.curves(|_, update| update.hyperparameters.iter().map(|named| (named.name.as_str(), named.value)))
    }

    /// A curve per name, in the order of their first appearance.
    fn curves<I>(&self, values: impl Fn(&'a BatchRecord, &'a UpdateReport) -> I) -> Vec<Curve>
    where
        I: Iterator<Item = (&'a str, f64)>,
    {
        let mut curves: Vec<Curve> = Vec::new();
        for (i, (batch, update)) in self.batches.iter().enumerate() {
            for (name, value) in values(batch, update) {
                let point = (i as f64 + 1.0, value);
                match curves.iter_mut().find(|curve| curve.name == name) {
                    Some(curve) => curve.points.push(point),
                    None => curves.push(Curve { name: name.into(), points: vec![point] }),
                }
            }
        }
        curves
    }
}

#[cfg(test)]
mod tests {
    use streaming_gp::{LearningEnd, LearningReport, NamedValue, SelectionEnd, SelectionReport};

    use super::*;
    use crate::export::canvas::read_png;
    use magmap::mapping::batcher::CutReason;

    fn record(values: &[(&str, f64)], seconds: f64) -> BatchRecord {
        let update = UpdateReport {
            rows: 10,
            inducing_points: 3,
            dropped: 0,
            hyperparameters: values.iter().map(|&(name, value)| NamedValue { name: name.into(), value }).collect(),
            bound: 0.0,
            selection: SelectionReport { added: 0, removed: 0, end: SelectionEnd::Converged, gap: None },
            learning: LearningReport { evaluations: 0, end: LearningEnd::Off },
        };
        BatchRecord {
            batch: 1,
            stamp: 0.0,
            observations: 10,
            cut: CutReason::Count,
            merge_points: Vec::new(),
            seconds,
            update: Some(update),
            sensor_bias: None,
            rejected: None,
            grids: None,
        }
    }

    #[test]
    fn hyperparameters_become_one_curve_each() {
        let rejected = BatchRecord { update: None, ..record(&[], 0.1) };
        let batches = [
            record(&[("lengthscale", 0.7), ("noise", 2.0)], 0.1),
            rejected,
            record(&[("lengthscale", 0.6)], 0.1),
            record(&[("lengthscale", 0.5), ("noise", 0.1)], 0.1),
        ];
        let curves = GrowthPicture::of(&batches).hyperparameter_curves();
        let curve = |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.to_vec() };
        let lengthscale = curve("lengthscale", &[(1.0, 0.7), (2.0, 0.6), (3.0, 0.5)]);
        assert_eq!(curves, [lengthscale, curve("noise", &[(1.0, 2.0), (3.0, 0.1)])]);
    }

    #[test]
    fn few_many_and_broken_batches_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growth.png");
        let one = record(&[("lengthscale", 0.7)], 0.0);
        let cases = [
            vec![],
            vec![one.clone()],
            vec![one; 2000],
            vec![record(&[("noise", -1.0)], f64::NAN), record(&[], f64::INFINITY)],
            vec![record(&[("a", 1e-12), ("b", 1e12)], 1e-9)],
        ];
        for batches in cases {
            GrowthPicture::of(&batches).write(&path).unwrap();
            let (width, height, _) = read_png(&path);
            assert_eq!((width, height), (1000, 44 + 3 * 290));
        }
    }

    #[test]
    fn a_hard_iron_adds_its_two_charts_with_a_curve_per_axis() {
        let biased = |hard_iron, hard_iron_sd| BatchRecord {
            sensor_bias: Some(SensorBias { hard_iron, hard_iron_sd, hard_iron_covariance: [[0.0; 3]; 3] }),
            ..record(&[("lengthscale", 0.7)], 0.1)
        };
        let batches =
            [biased([0.0, 0.5, 0.0], [2.0, 3.0, 5.0]), record(&[], 0.1), biased([-2.8, 1.0, 0.0], [0.1, 0.2, 5.0])];
        let picture = GrowthPicture::of(&batches);
        let curves = picture.axis_curves(|bias| bias.hard_iron_sd);
        let found: Vec<_> = curves.iter().map(|curve| (curve.name.as_str(), curve.points.clone())).collect();
        let expected = [("x", [2.0, 0.1]), ("y", [3.0, 0.2]), ("z", [5.0, 5.0])];
        assert_eq!(found, expected.map(|(name, [first, last])| (name, vec![(1.0, first), (3.0, last)])));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growth.png");
        picture.write(&path).unwrap();
        let (width, height, _) = read_png(&path);
        assert_eq!((width, height), (1000, 44 + 5 * 290));
    }
}
