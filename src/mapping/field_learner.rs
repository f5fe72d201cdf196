//! The field's model on the mapping thread.

use std::sync::Arc;

use super::batcher::Batch;
use super::field_model::{FieldModel, FieldPosterior, Totals};
use super::learner::{Learner, StopSignal};
use super::reading::Stamp;
use crate::config::Config;
use streaming_gp::report::UpdateReport;
use streaming_gp::streaming::Error;

/// The map after an update, and what the update came to.
#[derive(Clone, Debug)]
pub struct FieldSnapshot {
    /// The newest posterior; none before the first batch that was not refused.
    pub posterior: Option<Arc<FieldPosterior>>,
    /// What the update did, or why its batch was refused; the posterior is then that of the update before. None where nothing
    /// was learnt: the map was loaded or reset.
    pub result: Option<Result<UpdateReport, Error>>,
    /// Lower left and upper right corner of all places it was learnt from, in metres.
    pub extent: Option<[[f64; 2]; 2]>,
    /// What went into it.
    pub totals: Totals,
    /// Stamp of the last observation in it; none before the first.
    pub stamp: Option<Stamp>,
}

impl FieldSnapshot {
    /// The map as it is.
    pub fn of(model: &FieldModel) -> Self {
        Self {
            posterior: model.posterior().cloned(),
            result: None,
            extent: model.extent(),
            totals: *model.totals(),
            stamp: model.newest(),
        }
    }
}

impl Learner for FieldModel {
    type Snapshot = FieldSnapshot;

    fn learn(&mut self, batch: &Batch, stop: &StopSignal) -> FieldSnapshot {
        let result = self.update(&batch.observations, &|| stop.is_stopped());
        match &result {
            Ok(report) => log::debug!("{} observations, {} inducing points", report.rows, report.inducing_points),
            Err(refusal) => log::warn!("a batch of {} observations was refused: {refusal}", batch.len()),
        }
        FieldSnapshot { result: Some(result), ..FieldSnapshot::of(self) }
    }

    fn configure(&mut self, config: &Config) {
        FieldModel::configure(self, config);
    }

    fn reset(&mut self, config: &Config) {
        *self = FieldModel::new(config);
    }

    fn snapshot(&self) -> FieldSnapshot {
        FieldSnapshot::of(self)
    }

    fn updates(&self) -> u64 {
        self.totals().batches()
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::{Point3, Vector3};

    use super::super::batcher::CutReason;
    use super::super::reading::{MagneticField, Observation};
    use super::*;
    use crate::config::Config;
    use streaming_gp::report::LearningEnd;

    fn batch(strengths: &[f64]) -> Batch {
        let observation = |(index, &strength): (usize, &f64)| Observation {
            stamp: Stamp::from_seconds(index as f64),
            position: Point3::new(0.3 * index as f64, 0.0, 0.0),
            field: MagneticField::from_microtesla(Vector3::new(strength, 0.0, 0.0)),
            strength,
            readings: 1,
        };
        Batch::new(strengths.iter().enumerate().map(observation).collect(), CutReason::Flush)
    }

    #[test]
    fn a_refused_batch_is_counted_and_leaves_the_map_as_it_was() {
        let mut model = FieldModel::new(&Config::default());
        let stop = StopSignal::default();
        let refused = model.learn(&batch(&[f64::NAN]), &stop);
        assert!(refused.posterior.is_none() && refused.extent.is_none());
        assert_eq!(refused.result, Some(Err(Error::NotFinite)));
        let first = model.learn(&batch(&[40.0, 45.0, 52.0]), &stop);
        assert_eq!(first.result.unwrap().unwrap().rows, 3);
        let second = model.learn(&batch(&[50.0, f64::INFINITY]), &stop);
        assert!(second.result.unwrap().is_err());
        assert_eq!((first.extent, second.extent), (Some([[0.0, 0.0], [0.6, 0.0]]), first.extent));
        assert!(Arc::ptr_eq(&first.posterior.unwrap(), &second.posterior.unwrap()));
        assert_eq!(model.totals().refused_batches, 2);
    }

    #[test]
    fn learning_ends_when_asked_to_and_the_batch_is_in_the_map() {
        let mut model = FieldModel::new(&Config::default());
        let stop = StopSignal::default();
        stop.stop();
        let strengths: Vec<f64> = (0..30).map(|i| 45.0 + 5.0 * f64::from(i).sin()).collect();
        let report = model.learn(&batch(&strengths), &stop).result.unwrap().unwrap();
        assert_eq!(report.learning.end, LearningEnd::Stopped);
        assert!(report.inducing_points > 0);
    }
}
