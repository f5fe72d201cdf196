//! The memory-based dual model (Chang et al. 2023): a size that is fixed, and a memory of some of the readings.

use super::learner::{Learner, Learnt};
use crate::metrics::Readings;
use magmap::config::Config;
use magmap::field::engine::{self, FieldKernel, FieldPosterior};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use streaming_gp::methods::{Parameter, name_and_parameter};
use streaming_gp::{DualGp, DualSettings, MemorySize, OldEvidence};

pub(super) const NAME: &str = "dual_memory";

const MEMORY: Parameter =
    Parameter { symbol: "memory", meaning: "readings of each batch that are remembered", above: -1.0, most: 1e6 };
const POINTS: Parameter = Parameter {
    symbol: "points",
    meaning: "most inducing points, 250 unless given, as in dual_memory=100,points=50",
    above: 0.0,
    most: 20_000.0,
};
const EVIDENCE: Parameter = Parameter {
    symbol: "evidence",
    meaning: "weight in learning of the readings that the memory stands for, 0.1 unless given, as in dual_memory=100,evidence=1",
    above: 0.0,
    most: 1.0,
};

/// Parameters of the method.
pub(super) const PARAMETERS: [Parameter; 3] = [MEMORY, POINTS, EVIDENCE];

/// Most readings in memory; above it, some of the old and the new ones are kept.
const MOST_REMEMBERED: usize = 2000;

/// Most natural-gradient steps per update; fewer are taken if they converge.
const MOST_STEPS: usize = 10;

/// Length of a step: 1 is a full step, less is slower and more stable.
const STEP_LENGTH: f64 = 0.9;

/// Settings of the dual model, written `dual_memory=MEMORY,points=POINTS,evidence=EVIDENCE`; what is not written has its default.
#[derive(Clone, Debug, PartialEq)]
pub struct DualMemory {
    /// Readings of each batch that are remembered.
    pub memory: usize,
    /// Most inducing points; they move with every batch.
    pub points: usize,
    /// Weight of the memory's evidence when hyperparameters are learnt: 1 counts all of it. Less allows for errors that neighbours
    /// share, such as those of a path that is a few centimetres off.
    pub evidence: f64,
}

impl Default for DualMemory {
    fn default() -> Self {
        Self { memory: 100, points: 250, evidence: 0.1 }
    }
}

impl DualMemory {
    /// The model, over places of `dimension` coordinates.
    pub(super) fn learner(&self, config: &Config, dimension: usize) -> DualGp<FieldKernel> {
        let settings = DualSettings {
            inducing_points: self.points,
            least_share: config.selection.redundancy,
            memory: MemorySize { per_batch: self.memory, most: MOST_REMEMBERED },
            steps: MOST_STEPS,
            step_length: STEP_LENGTH,
            old_evidence: OldEvidence::ScaledMemory { share: self.evidence },
            learning: engine::settings(config, dimension).learning,
        };
        DualGp::new(engine::model(config, dimension), settings)
    }
}

impl FromStr for DualMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for part in text.split(',') {
            let (name, value) = name_and_parameter(part)?;
            match (name, value) {
                (NAME, None) => {}
                (NAME, Some(memory)) => {
                    MEMORY.check(NAME, value)?;
                    settings.memory = memory.ceil() as usize;
                }
                ("points", Some(points)) => {
                    POINTS.check(NAME, value)?;
                    settings.points = points.ceil() as usize;
                }
                ("evidence", Some(evidence)) => {
                    EVIDENCE.check(NAME, value)?;
                    settings.evidence = evidence;
                }
                _ => return Err(format!("expected points=NUMBER or evidence=NUMBER after {NAME}, found {part}")),
            }
        }
        Ok(settings)
    }
}

impl fmt::Display for DualMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { memory, points, evidence }, defaults) = (self, Self::default());
        write!(f, "{NAME}={memory}")?;
        if *points != defaults.points {
            write!(f, ",points={points}")?;
        }
        if *evidence != defaults.evidence {
            write!(f, ",evidence={evidence}")?;
        }
        Ok(())
    }
}

impl Learner for DualGp<FieldKernel> {
    fn learn(&mut self, batch: &Readings) -> anyhow::Result<Learnt> {
        Ok(self.update(&batch.places, &batch.targets, &|| false)?.update.into())
    }

    fn posterior(&self) -> Option<&FieldPosterior> {
        self.posterior().map(Arc::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_has_its_default() {
        let parsed = |text: &str| text.parse::<DualMemory>().unwrap();
        let given = |memory, points, evidence| DualMemory { memory, points, evidence };
        assert_eq!(parsed("dual_memory"), given(100, 250, 0.1));
        assert_eq!(parsed("dual_memory=0"), given(0, 250, 0.1));
        assert_eq!(parsed("dual_memory,evidence=1"), given(100, 250, 1.0));
        assert_eq!(parsed("dual_memory=20,points=40,evidence=0.01"), given(20, 40, 0.01));
        for text in ["dual_memory=100", "dual_memory=20,points=40,evidence=0.01", "dual_memory=1,evidence=1"] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_setting_is_rejected_with_what_was_expected() {
        let rejected = |text: &str| text.parse::<DualMemory>().unwrap_err();
        assert_eq!(rejected("dual_memory=much"), "expected a number after dual_memory=");
        assert_eq!(
            rejected("dual_memory,points=0"),
            "expected points of dual_memory to be more than 0 and at most 20000"
        );
        assert_eq!(
            rejected("dual_memory,evidence=2"),
            "expected evidence of dual_memory to be more than 0 and at most 1"
        );
        let expected = "expected points=NUMBER or evidence=NUMBER after dual_memory, found ";
        assert_eq!(rejected("dual_memory=5,steps=3"), format!("{expected}steps=3"));
        assert_eq!(rejected("dual_memory,points"), format!("{expected}points"));
    }
}
