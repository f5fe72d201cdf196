//! magmap without ROS: from recordings to maps, pictures and files.
//!
//! The crate [`magmap`] is what a robot carries. Around it, from the inside out; inner modules know nothing of outer ones:
//!
//! * [`recording`]: readers and writers of drives: Aalto CSV, MCAP, rosbag2.
//! * [`simulation`]: a world of dipoles and a robot driving through it.
//! * [`calibration`]: what a drive says of its magnetometer.
//! * [`foxglove`]: a server of messages for those who watch in Foxglove.
//! * [`path_errors`]: how far a path is from the true one.
//! * [`export`]: pictures, arrays, grids for `map_server`.
//! * [`replay`]: offline mapping, from a recording to a folder of outputs.
//! * [`locate`]: offline localization, from a recording and a map to a folder of outputs.
//! * [`merge`]: several maps as one.
//! * [`cli`]: what the command-line programs share.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod calibration;
pub mod cli;
pub mod export;
pub mod foxglove;
pub mod locate;
pub mod merge;
pub mod path_errors;
pub mod recording;
pub mod replay;
pub mod simulation;
