//! The localizer: `ros2 run magmap magmap_localizer`, or better `ros2 launch magmap localization.launch.py`.
//!
//! The exit code is 0 after SIGINT or SIGTERM, 2 when arguments or parameters are wrong, 1 when something fails.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use magmap::ros;

/// Reuses the holes that matrices leave; the allocator of the C library keeps them, see `docs/buildings.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The text of `--help`.
const HELP: &str = "\
Finds the robot in a finished map of the magnetic field, as nav2's AMCL does in one of walls.

Usage: ros2 run magmap magmap_localizer --ros-args -p map:=FILE [-p KEY:=VALUE ... -r FROM:=TO ...]
   or: ros2 launch magmap localization.launch.py --show-args

Listens to  imu/mag (sensor_msgs/MagneticField), odom (nav_msgs/Odometry), /tf, /tf_static,
            initialpose (geometry_msgs/PoseWithCovarianceStamped)
Publishes   ~/pose ~/particles ~/path ~/map, /tf (from odometry to the map), /diagnostics
Answers     reinitialize_global_localization, request_nomotion_update

Parameters have the names of AMCL where they mean the same; others are the settings of magmap by their dotted names. 'map' is the file of
the map or the folder of a replay; without it, the map that the mapper has saved. It starts at initial_pose if set_initial_pose is true,
otherwise at the last pose it knew, from the file beside the map (map.pose.json), otherwise anywhere.
  ros2 run magmap magmap_localizer --ros-args -p map:=house-map -p set_initial_pose:=true -p initial_pose.x:=1.5
  ros2 param describe /magmap_localizer max_particles

Ends with 0 after SIGINT or SIGTERM, 1 when something failed, 2 when an argument or a parameter is wrong.";

fn main() -> ExitCode {
    ros::main(HELP, ros::run_localizer)
}
