//! The science: a streaming sparse Gaussian process that sizes itself.
//!
//! Nothing in here reads, writes, logs, keeps time or starts threads.
//!
//! [`streaming::StreamingGp::update`] is the algorithm; it reads as the paper's. Around it: [`selection`] chooses inducing
//! points, [`learning`] the hyperparameters, [`whitened`] is the arithmetic of both, [`posterior`] predicts,
//! [`state`] is all there is to keep. With a heavy-tailed [`likelihood`], rows have weights. [`inference`] is variational or
//! Power-EP. [`methods`] has them all by name.
//!
//! [`dual_memory`] is another engine: its size is fixed, it remembers some readings, and it takes any likelihood of which
//! [`expectation`] knows the expected log density.

mod ascent;
pub mod bounds;
pub mod dual_memory;
pub mod expectation;
pub mod hyperparameters;
pub mod inference;
pub mod kernel;
pub mod learning;
pub mod likelihood;
pub mod linalg;
pub mod link;
pub mod methods;
pub mod model;
mod normal;
pub mod places;
pub mod points;
pub mod posterior;
mod quadrature;
pub mod report;
mod reweighting;
pub mod selection;
pub mod state;
pub mod streaming;
pub mod targets;
mod upper_bound;
pub mod whitened;
