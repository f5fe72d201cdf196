//! The report of an update.

use serde::{Deserialize, Serialize};

/// A named hyperparameter and its value (not its logarithm).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedValue {
    /// Name, such as `lengthscale`.
    pub name: String,
    /// Value.
    pub value: f64,
}

/// The ceiling that the bound was compared with while inducing points were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingUsed {
    /// L*: every reading of the batch an inducing point (VIPS paper, eq. 9).
    Exact,
    /// The upper bound (VIPS paper, section 4.1).
    Upper,
}

/// Why inducing points stopped being added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectionEnd {
    /// The rule is satisfied.
    Converged,
    /// No reading of the batch is left that may become an inducing point.
    Exhausted,
    /// The cap on inducing points was reached: the map is less exact than requested.
    Capped,
}

/// How the inducing points were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectionReport {
    /// Inducing points added.
    pub added: usize,
    /// Old inducing points that were removed.
    pub removed: usize,
    /// Why it ended.
    pub end: SelectionEnd,
    /// The gap at the end, by a rule that compares the bound with a ceiling.
    pub gap: Option<Gap>,
}

/// The gap between the bound and its ceiling when inducing points stopped being added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The ceiling that ruled.
    pub ceiling_used: CeilingUsed,
    /// Value of the ceiling at the end, in nats.
    pub ceiling: f64,
    /// The evidence lower bound with the chosen points, under the hyperparameters before learning, in nats.
    pub bound: f64,
    /// The log likelihood of the batch under the noise baseline, in nats.
    pub noise_baseline: f64,
    /// The gap that was allowed, in nats.
    pub allowed: f64,
}

/// How learning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearningEnd {
    /// No budget: hyperparameters are as they were.
    Off,
    /// The batch was too small to learn from: hyperparameters are as they were.
    TooFewRows,
    /// At an optimum.
    Converged,
    /// The budget of evaluations was used up.
    Budget,
    /// Stopped from outside.
    Stopped,
    /// The optimiser could not improve further or failed; the best hyperparameters seen are kept.
    Stalled,
    /// No evaluation gave a finite bound; the last good hyperparameters are kept.
    Failed,
}

/// How the hyperparameters were learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearningReport {
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// How it ended.
    pub end: LearningEnd,
}

/// The report of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Rows of the batch.
    pub rows: usize,
    /// Inducing points after the update.
    pub inducing_points: usize,
    /// Inducing points dropped because the others say all they say.
    pub dropped: usize,
    /// Hyperparameters after the update; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// Evidence lower bound after learning, in nats; under Power-EP the approximate log evidence.
    pub bound: f64,
    /// How the inducing points were chosen.
    pub selection: SelectionReport,
    /// How the hyperparameters were learnt.
    pub learning: LearningReport,
}
