//! Online maps of the magnetic field for mobile robots.
//!
//! magmap turns a magnetometer and odometry into a live map of the magnetic field a robot drives through: a mean, a variance,
//! and a model that grows only where the field asks for it.
//!
//! The model is a crate of its own, [`streaming_gp`]. Around it, from the inside out; inner rooms know nothing of outer ones:
//!
//! * [`config`]: every setting, its default and its meaning.
//! * [`mapping`]: from readings and poses to batches, and from finished updates to rasters; the worker thread.
//! * [`recording`]: readers and writers of drives: Aalto CSV, MCAP, rosbag2.
//! * [`simulation`]: a world of dipoles and a robot driving through it.
//! * [`export`]: pictures, arrays, grids for `map_server`.
//! * [`replay`]: the offline main job, from a recording to a folder of outputs.
//! * `cli`: what the command lines share, where the feature of that name is on, as it is by default.
//! * `ros`: the ROS 2 node, where the feature of that name is on.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod export;
mod files;
pub mod mapping;
pub mod recording;
pub mod replay;
#[cfg(feature = "ros")]
pub mod ros;
pub mod simulation;
