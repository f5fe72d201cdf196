//! Online maps of the magnetic field for mobile robots.
//!
//! magmap turns a magnetometer and odometry into a live map of the magnetic field a robot drives through: a mean, a variance,
//! and a model that grows only where the field needs it.
//!
//! The model is a separate crate, [`streaming_gp`]. Around it, from the inside out; inner modules know nothing of outer ones:
//!
//! * [`config`]: every setting, its default and its meaning.
//! * [`sensing`]: from a reading to a located reading: calibration, gates, frames, and why nothing is being mapped.
//! * [`field`]: the map of the field: prediction, learning, state and rasters.
//! * [`mapping`]: averaging, batches, the steps that build a map, and the thread that takes them.
//! * [`durability`]: checkpoints, the journal (a write-ahead log), and which map a run continues.
//! * [`localization`]: the robot in a finished map, by a particle filter.
//! * [`session`]: a live run, independent of ROS.
//! * [`calibration`]: what a drive says of its magnetometer.
//! * [`files`]: files that are replaced whole or not at all.
//! * [`recording`]: readers and writers of drives: Aalto CSV, MCAP, rosbag2.
//! * `live`: a server of messages for those who watch in Foxglove (feature `live`, on by default).
//! * [`simulation`]: a world of dipoles and a robot driving through it.
//! * [`export`]: pictures, arrays, grids for `map_server`.
//! * [`replay`]: offline mapping, from a recording to a folder of outputs.
//! * [`locate`]: offline localization, from a recording and a map to a folder of outputs.
//! * `cli`: what the command-line programs share (feature `cli`, on by default).
//! * `ros`: the ROS 2 node (feature `ros`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// The Rust in the documentation, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/library.md")]
mod documentation {}

mod arrays;
pub mod calibration;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod durability;
#[cfg(any(feature = "cli", feature = "ros"))]
mod errors;
pub mod export;
pub mod field;
pub mod files;
#[cfg(feature = "live")]
pub mod live;
pub mod localization;
pub mod locate;
pub mod mapping;
pub mod recording;
pub mod replay;
#[cfg(feature = "ros")]
pub mod ros;
pub mod sensing;
pub mod session;
pub mod simulation;
