//! The ROS 2 node: `ros2 run magmap magmap_node`, or better `ros2 launch magmap mapping.launch.py`.
//!
//! It ends with 0 when asked to by SIGINT or SIGTERM, with 2 when its parameters are wrong, with 1 when something fails.

use std::process::ExitCode;

use magmap::ros::{self, Error};

fn main() -> ExitCode {
    match ros::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Before there is a node there is no log.
            if log::max_level() == log::LevelFilter::Off {
                eprintln!("magmap: {error}")
            } else {
                log::error!("{error}")
            }
            match error {
                Error::Config(_) | Error::ParameterType { .. } => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
