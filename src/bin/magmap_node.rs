//! The ROS 2 node: `ros2 run magmap magmap_node`, or better `ros2 launch magmap mapping.launch.py`.
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
Maps the magnetic field while the robot drives.

Usage: ros2 run magmap magmap_node [--ros-args -p KEY:=VALUE ... -r FROM:=TO ...]
   or: ros2 launch magmap mapping.launch.py --show-args

Listens to  imu/mag (sensor_msgs/MagneticField), odom (nav_msgs/Odometry), /tf, /tf_static
Publishes   ~/mean ~/variance ~/field ~/cloud ~/inducing_points ~/path, /diagnostics
            with slam.enabled also ~/pose ~/odometry_path, and on /tf where odometry is in the map;
            with slam.path_topic also ~/odometry_path
Answers     ~/save ~/load ~/reset ~/pause ~/resume ~/flush ~/query

Settings are parameters: 'config' names a TOML file, and every key of it is a parameter too, which wins over the file.
  ros2 run magmap magmap_node --ros-args -r imu/mag:=/imu/magnetic_field -p selection.delta:=0.2
  ros2 param list /magmap
  ros2 param describe /magmap selection.delta

Ends with 0 after SIGINT or SIGTERM, 1 when something failed, 2 when an argument or a parameter is wrong.";

fn main() -> ExitCode {
    ros::main(HELP, ros::run)
}
