//! From readings and poses to batches, and from finished updates to rasters.
//!
//! A [`reading::Measurement`] goes one way: a reading through its sensor's [`calibration`], then through the [`gates`] of its
//! topic, to its place in the [`synchronizer`], into an average along the path ([`averaging`]), into a batch ([`batcher`]). The
//! [`pipeline`] is that chain, the [`mapper`] takes what comes step by step and hands the batches to the model, and the [`worker`]
//! is the thread that runs it. Everything that is refused on the way is counted under its [`refusal`], and a [`complaint`] says why
//! nothing passes. A [`checkpoint`] is the map and all that leads to it in a file, to go on from; the [`journal`] keeps every step
//! since, and the [`map_store`] knows which map a run continues and which it must not touch. What a live robot sends comes in frames of its own: the [`intake`] brings it into that of the map; a [`session`]
//! is one run of it, from its start to its end.

pub mod averaging;
pub mod batcher;
pub mod calibration;
pub mod checkpoint;
pub mod complaint;
mod error;
pub mod field_learner;
pub mod field_model;
mod field_process;
pub mod field_raster;
pub mod frames;
pub mod gates;
pub mod grid;
pub mod intake;
pub mod journal;
pub mod keeper;
pub mod learner;
pub mod map_store;
pub mod mapper;
pub mod odometer;
pub mod path;
pub mod pipeline;
pub mod pose_history;
pub mod quantity;
pub mod reading;
pub mod refusal;
pub mod rhythm;
mod robust_mean;
pub mod session;
pub mod synchronizer;
pub mod worker;

pub use error::Error;
