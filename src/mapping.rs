//! From readings and poses to batches, and from finished updates to rasters.
//!
//! A [`reading::Measurement`] goes one way: a reading through its sensor's [`calibration`], then through the [`gates`] of its
//! topic, to its place in the [`synchronizer`], into an average along the path ([`averaging`]), into a batch ([`batcher`]). The
//! [`pipeline`] is that chain, the [`worker`] the thread that runs it and hands the batches to the model. Everything that is
//! refused on the way is counted under its [`refusal`].

pub mod averaging;
pub mod batcher;
pub mod calibration;
mod error;
pub mod field_learner;
pub mod field_model;
pub mod field_raster;
pub mod gates;
pub mod grid;
pub mod odometer;
pub mod path;
pub mod pipeline;
pub mod pose_history;
pub mod reading;
pub mod refusal;
pub mod synchronizer;
pub mod worker;

pub use error::Error;
