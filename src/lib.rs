//! Online maps of the magnetic field for mobile robots.
//!
//! magmap turns a magnetometer and odometry into a live map of the magnetic field a robot drives through: a mean, a variance,
//! and a model that grows only where the field needs it.
//!
//! The model is a separate crate, [`streaming_gp`]; the program `magmap`, which maps recordings, is `magmap-tools`. This crate is what
//! a robot carries, from the inside out; inner modules know nothing of outer ones:
//!
//! * [`errors`], [`sync`], [`arrays`], [`files`]: errors in words, locks, named arrays, and files that are replaced whole or not at all.
//! * [`config`]: every setting, its default and its meaning.
//! * [`sensing`]: from messages to located readings: the intake with clocks and frames, calibration, gates, and why nothing is being mapped.
//! * [`field`]: the map of the field: prediction, learning, state and rasters.
//! * [`display`]: what viewers show of a map.
//! * [`trajectory`]: what was driven, kept, from which a map can be made again.
//! * [`particle_filter`]: where a sensor is in a map, and whether that is proven.
//! * [`registration`]: where one map is in the other, and a robot in the map that it continues, by their trajectories.
//! * [`slam`]: the path of a drive, estimated together with the field, where odometry drifts.
//! * [`mapping`]: averaging, batches, the steps that build a map, and the thread that takes them.
//! * [`store`]: the file of a map, what is written into it while the map is made, and which map a run continues.
//! * [`localization`]: the robot in a finished map.
//! * [`session`]: a live run, independent of ROS.
//! * `ros`: the ROS 2 nodes (feature `ros`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// The Rust in the documentation, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/library.md")]
mod documentation {}

pub mod arrays;
pub mod config;
pub mod display;
pub mod errors;
pub mod field;
pub mod files;
pub mod localization;
pub mod mapping;
pub mod particle_filter;
pub mod registration;
#[cfg(feature = "ros")]
pub mod ros;
pub mod sensing;
pub mod session;
pub mod slam;
pub mod store;
pub mod sync;
pub mod trajectory;
