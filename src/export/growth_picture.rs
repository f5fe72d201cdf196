//! How the model grew: inducing points, hyperparameters and time, batch by batch.

use std::path::Path;

use streaming_gp::report::NamedValue;

use super::Error;
use super::panels::{Curve, Panel, Panels, Scale};

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

impl GrowthPicture<'_> {
    /// Draws the three panels, one below the other. 1000 pixels wide.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let title = match self.batches.last() {
            Some(last) => format!("Growth over {} batches, M = {}", self.batches.len(), last.inducing_points),
            None => "Growth: no batch yet".to_owned(),
        };
        let panel = |quantity, scale, curves| Panel { quantity, scale, curves };
        let panels = vec![
            panel("inducing points", Scale::FromZero, vec![self.curve(|batch| batch.inducing_points as f64)]),
            panel("hyperparameters", Scale::Logarithmic, self.hyperparameter_curves()),
            panel("seconds per batch", Scale::FromZero, vec![self.curve(|batch| batch.seconds)]),
        ];
        Panels { title, across: ("batch", Scale::Counts), panels }.write(path)
    }

    fn curve(&self, value: impl Fn(&GrowthPoint) -> f64) -> Curve {
        let values = self.batches.iter().map(value).enumerate();
        Curve { points: values.map(|(i, value)| (i as f64 + 1.0, value)).collect(), ..Curve::default() }
    }

    /// A curve per hyperparameter, in the order of their first appearance.
    fn hyperparameter_curves(&self) -> Vec<Curve> {
        let mut curves: Vec<Curve> = Vec::new();
        for (i, batch) in self.batches.iter().enumerate() {
            for NamedValue { name, value } in &batch.hyperparameters {
                let point = (i as f64 + 1.0, *value);
                match curves.iter_mut().find(|curve| curve.name == *name) {
                    Some(curve) => curve.points.push(point),
                    None => curves.push(Curve { name: name.clone(), points: vec![point], ..Curve::default() }),
                }
            }
        }
        curves
    }
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
            point(&[("lengthscale", 0.6)], 0.1),
            point(&[("lengthscale", 0.5), ("noise", 0.1)], 0.1),
        ];
        let curves = GrowthPicture { batches: &batches }.hyperparameter_curves();
        let curve =
            |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.to_vec(), labels: vec![] };
        let lengthscale = curve("lengthscale", &[(1.0, 0.7), (2.0, 0.6), (3.0, 0.5)]);
        assert_eq!(curves, [lengthscale, curve("noise", &[(1.0, 2.0), (3.0, 0.1)])]);
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
