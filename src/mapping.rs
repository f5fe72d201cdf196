//! Making a map from measurements: a state machine driven by steps, and the thread that runs it.
//!
//! In the [`pipeline`] a measurement is calibrated, gated and located (see [`sensing`](crate::sensing)), averaged along the path
//! ([`averaging`]) and collected into batches ([`batcher`]). The [`mapper`] takes everything that a map depends on as steps. The
//! [`thread`] is the thread that runs it and appends each step to a [`step_log`] before it is taken.

pub mod averaging;
mod axes_check;
pub mod batcher;
mod changes;
pub mod delay;
mod error;
mod field_choice;
mod given_path;
pub mod inbox;
mod map_check;
pub mod mapper;
pub mod odometer;
pub mod path;
pub mod path_correction;
pub mod pipeline;
pub mod refold;
pub mod relocating;
mod robust_mean;
pub mod step_log;
pub mod stop;
pub mod thread;
pub mod updates;

pub use error::Error;
