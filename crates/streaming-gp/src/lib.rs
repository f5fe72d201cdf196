//! Gaussian process regression on a stream: one batch after another, none of them kept, and a model that grows only where the data
//! need it.
//!
//! [`streaming::StreamingGp`] is a sparse Gaussian process that sizes itself: for each batch it chooses inducing points (VIPS:
//! Pescador-Barrios, Filippi and van der Wilk, *Adjusting Model Size in Continual Gaussian Processes*, ICML 2025), learns the
//! hyperparameters by maximizing the evidence lower bound, and replaces its posterior. Everything is kept as square roots, so that
//! nearly equal matrices are never subtracted.
//!
//! ```
//! use std::sync::Arc;
//! use streaming_gp::{Inference, Jitter, Learning, Likelihood, Limits, Model, Points, Settings, Shape, Stationary, StreamingGp, Vips};
//!
//! # fn main() -> Result<(), streaming_gp::streaming::Error> {
//! let model = Model {
//!     kernel: Stationary { constant: Some(1.0), shape: Shape::Matern52, variance: 1.0, lengthscales: vec![1.0] },
//!     noise: 0.01,
//!     mean: 0.0,
//!     likelihood: Likelihood::Gaussian,
//!     jitter: Jitter::Relative(1e-6),
//! };
//! let settings = Settings {
//!     selection: Arc::new(Vips { delta: 0.05, guards: true, exact_limit: 1000 }),
//!     limits: Limits { max_inducing_points: 500, least_share: 1e-6 },
//!     learning: Learning { max_evaluations: 60, ..Learning::default() },
//!     redundancy: 1e-6,
//!     inference: Inference::Variational,
//!     likelihood_power: 1.0,
//! };
//! let mut process = StreamingGp::new(model, settings);
//! for batch in 0..3 {
//!     let places: Vec<[f64; 1]> = (0..30).map(|i| [f64::from(batch) + f64::from(i) / 30.0]).collect();
//!     let targets: Vec<f64> = places.iter().map(|[x]| x.sin()).collect();
//!     let report = process.update(&Points::from_arrays(&places), &targets, &|| false)?;
//!     println!("{} inducing points", report.inducing_points);
//! }
//! let posterior = process.posterior().expect("there is one after an update");
//! let (mean, _) = posterior.predict(&Points::from_arrays(&[[1.5]]));
//! assert!((mean[0] - 1.5f64.sin()).abs() < 0.05);
//! # Ok(())
//! # }
//! ```
//!
//! The crate does not read, write, log, keep time or start threads.
//!
//! [`streaming::StreamingGp::update`] is the algorithm; it reads as the paper's. Around it: [`selection`] chooses inducing
//! points, [`learning`] the hyperparameters, [`whitened`] is the arithmetic of both, [`posterior`] predicts,
//! [`state`] is all there is to keep. With a heavy-tailed [`likelihood`], rows have weights. [`inference`] is variational or
//! Power-EP. [`methods`] lists them by name. [`kernel`] has the kernels, and the trait for others.
//!
//! [`dual_memory`] is another engine: its size is fixed, it remembers some readings, and it takes any likelihood of which
//! [`dual_memory::expectation`] has the expected log density.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ascent;
pub mod bounds;
pub mod dual_memory;
pub mod field_places;
pub mod hyperparameters;
pub mod inference;
pub mod kernel;
pub mod learning;
pub mod likelihood;
pub mod linalg;
pub mod methods;
pub mod model;
mod normal;
pub mod places;
pub mod points;
pub mod posterior;
pub mod report;
mod reweighting;
pub mod selection;
pub mod state;
pub mod streaming;
pub mod targets;
pub mod vector;
pub mod whitened;

pub use bounds::{NoiseBaseline, NoiseBaselines};
pub use dual_memory::{DualGp, DualReport, DualSettings, Link, MemorySize, OldEvidence};
pub use field_places::{Axis, FieldPlace, FieldPlaces};
pub use hyperparameters::{HeavyTail, LogNormalPrior};
pub use inference::Inference;
pub use kernel::{BiasCovariance, Column, Kernel, Places, Shape, Stationary, VectorField};
pub use learning::Learning;
pub use likelihood::{Likelihood, StudentT, Weights};
pub use linalg::{Matrix, MatrixMut, MatrixRef, NotPositiveDefinite};
pub use model::{Jitter, Model};
pub use points::Points;
pub use posterior::Posterior;
pub use report::{
    CeilingUsed, Gap, LearningEnd, LearningReport, NamedValue, SelectionEnd, SelectionReport, UpdateReport,
};
pub use selection::conditional_variance::ConditionalVariance;
pub use selection::{Batch, Choice, GreedyVariance, Kept, Limits, PivotedCholesky, Rule};
pub use selection::{fixed::Fixed, oips::Oips, vips::Vips};
pub use state::{PastState, State, StateError};
pub use streaming::{Settings, StreamingGp};
pub use targets::Targets;
pub use vector::{Axes, AxesReading, SensorPose, VectorMap};
pub use whitened::{Past, Rows, Whitened};
