//! Readings with their place on the map, from the messages of a robot or a recording.
//!
//! Every source sends its messages into the [`intake`], which transforms them into the frame of the map and notices where their [`clock`]
//! went back. A [`reading::Measurement`] is then corrected by its sensor's [`calibration`], checked by the [`gates`] of its topic, and located
//! by the [`synchronizer`]. Rejected measurements are counted under their [`rejection`]. When nothing is mapped, [`health`] says why.

pub mod calibration;
pub mod clock;
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
