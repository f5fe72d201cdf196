//! The interfaces that r2r's documentation bindings lack: those of `std_srvs` and `map_msgs`, and magmap's own.
//!
//! Without ROS (feature `ros-check`) services with the same fields replace those of `std_srvs`, a grid replaces a part of one, and what
//! needs magmap's own interfaces is left out. The messages of `slam_toolbox` are there where its package is (feature `slam_toolbox`).

#[cfg(not(feature = "ros-check"))]
pub(super) use r2r::magmap::{msg::FieldMap as FieldMapMessage, srv::QueryField};
#[cfg(not(feature = "ros-check"))]
pub(super) use r2r::map_msgs::msg::OccupancyGridUpdate;
#[cfg(feature = "ros-check")]
pub(super) use r2r::nav_msgs::msg::OccupancyGrid as OccupancyGridUpdate;
#[cfg(feature = "slam_toolbox")]
pub(super) use r2r::slam_toolbox::msg::{NewNodeEvent, PoseGraph};
#[cfg(not(feature = "ros-check"))]
pub(super) use r2r::std_srvs::srv::{Empty, Trigger};
#[cfg(feature = "ros-check")]
pub(super) use r2r::{diagnostic_msgs::srv::AddDiagnostics as Trigger, test_msgs::srv::Empty};
