//! Readings with their place on the map, from the messages of a robot or a recording.
//!
//! A [`reading::Measurement`] is corrected by its sensor's [`calibration`], checked by the [`gates`] of its topic, and located by the
//! [`synchronizer`]. Rejected measurements are counted under their [`rejection`]. What a live robot sends is in frames of its own: the
//! [`intake`] transforms it into that of the map. When nothing is mapped, [`health`] says why.

pub mod calibration;
pub mod counters;
pub mod frames;
pub mod gates;
pub mod health;
pub mod intake;
pub mod pose_history;
pub mod reading;
pub mod rejection;
#[cfg(test)]
mod samples;
pub mod synchronizer;
pub mod timing;
