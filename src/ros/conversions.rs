//! Between ROS messages and magmap's own types.

use nalgebra::{Isometry3, Point3, Quaternion, UnitQuaternion, Vector3};
use r2r::builtin_interfaces::msg::Time;
use r2r::std_msgs::msg::{ColorRGBA, Header};
use r2r::{geometry_msgs, nav_msgs, sensor_msgs, visualization_msgs};

use crate::mapping::grid::{FieldGrid, GridGeometry};
use crate::mapping::quantity::Quantity;
#[cfg(not(feature = "ros-check"))]
use {
    super::interfaces::FieldMap,
    crate::export::occupancy::GridScales,
    crate::mapping::field_learner::FieldSnapshot,
    crate::mapping::field_model::inducing_points,
    crate::mapping::refusal::Refusals,
    crate::mapping::worker::{Status, Update},
};

use crate::mapping::reading::{MagneticField, Pose, Reading, Stamp, isometry};

/// Diameter of an inducing point's sphere, in metres.
const MARKER_SIZE: f64 = 0.08;

/// Bytes of a point of the cloud: six single-precision numbers.
const POINT_SIZE: usize = 24;

/// What a point of the cloud holds. Intensity is the mean in microtesla, for viewers; mean and standard deviation are in tesla. Of a
/// yes/no signal all three are probabilities.
const POINT_FIELDS: [&str; 6] = ["x", "y", "z", "intensity", "mean", "standard_deviation"];

pub(super) fn stamp(time: &Time) -> Stamp {
    Stamp::from_ros(time.sec, time.nanosec)
}

pub(super) fn time(stamp: Stamp) -> Time {
    let (sec, nanosec) = stamp.to_ros();
    Time { sec, nanosec }
}

pub(super) fn header(frame: &str, at: Stamp) -> Header {
    Header { stamp: time(at), frame_id: frame.to_owned() }
}

/// The reading in a message, as it is: implausible ones are for the gates.
pub(super) fn reading(message: &sensor_msgs::msg::MagneticField) -> Reading {
    let axes = &message.magnetic_field;
    Reading {
        stamp: stamp(&message.header.stamp),
        field: MagneticField::from_tesla(Vector3::new(axes.x, axes.y, axes.z)),
    }
}

/// The pose in a message. One that is none becomes one that the gate of poses refuses and counts.
pub(super) fn pose(message: &nav_msgs::msg::Odometry) -> Pose {
    let geometry_msgs::msg::Pose { position, orientation } = &message.pose.pose;
    let translation = Vector3::new(position.x, position.y, position.z);
    let rotation = Quaternion::new(orientation.w, orientation.x, orientation.y, orientation.z);
    let (position, orientation) = match isometry(translation, rotation) {
        Some(pose) => (pose.translation.vector.into(), pose.rotation),
        None => (Point3::new(f64::NAN, f64::NAN, f64::NAN), UnitQuaternion::identity()),
    };
    Pose { stamp: stamp(&message.header.stamp), position, orientation }
}

/// A transform; none when it is no transform.
pub(super) fn transform(message: &geometry_msgs::msg::Transform) -> Option<Isometry3<f64>> {
    let geometry_msgs::msg::Transform { translation, rotation } = message;
    isometry(
        Vector3::new(translation.x, translation.y, translation.z),
        Quaternion::new(rotation.w, rotation.x, rotation.y, rotation.z),
    )
}

/// One layer of the map.
pub(super) fn occupancy_grid(
    header: Header,
    geometry: &GridGeometry,
    occupancies: &[i8],
) -> nav_msgs::msg::OccupancyGrid {
    let info = metadata(geometry, header.stamp.clone());
    nav_msgs::msg::OccupancyGrid { header, info, data: occupancies.to_vec() }
}

pub(super) fn metadata(geometry: &GridGeometry, loaded: Time) -> nav_msgs::msg::MapMetaData {
    let [x, y] = geometry.origin();
    nav_msgs::msg::MapMetaData {
        map_load_time: loaded,
        resolution: geometry.resolution as f32,
        width: geometry.columns as u32,
        height: geometry.rows as u32,
        origin: unturned([x, y, 0.0]),
    }
}

/// Everything about the map in one message, with its floats.
#[cfg(not(feature = "ros-check"))]
pub(super) fn field_map(
    header: Header,
    update: &Update<FieldSnapshot>,
    status: &Status,
    refusals: &Refusals,
    grid: &FieldGrid,
    scales: &GridScales,
) -> FieldMap {
    let posterior = update.snapshot.posterior.as_deref();
    let hyperparameters = posterior.map(|posterior| posterior.model().named_values()).unwrap_or_default();
    let points = posterior.map(inducing_points).unwrap_or_default();
    let outside = |value| outside(grid.quantity, value);
    let [mean_low, mean_high] = scales.mean.map(outside);
    // Twice, for the square.
    let [variance_low, variance_high] = scales.variance.map(|variance| outside(outside(variance)));
    FieldMap {
        info: metadata(&grid.geometry, header.stamp.clone()),
        header,
        mean: grid.mean.iter().map(|&value| outside(value) as f32).collect(),
        standard_deviation: grid.standard_deviation.iter().map(|&value| outside(value) as f32).collect(),
        mean_low,
        mean_high,
        variance_low,
        variance_high,
        hyperparameter_names: hyperparameters.iter().map(|named| named.name.clone()).collect(),
        hyperparameters: hyperparameters.iter().map(|named| named.value).collect(),
        inducing_points: points.iter().map(|&[x, y]| geometry_msgs::msg::Point { x, y, z: 0.0 }).collect(),
        update: update.snapshot.totals.updates,
        observations: update.snapshot.totals.observations,
        readings_used: update.snapshot.totals.used_readings,
        readings_refused: refusals.readings(),
        poses_refused: refusals.poses(),
        readings_lost: status.lost_readings,
    }
}

/// The known cells as points at the height of the floor.
pub(super) fn cloud(header: Header, grid: &FieldGrid) -> sensor_msgs::msg::PointCloud2 {
    let geometry = &grid.geometry;
    let mut data = Vec::with_capacity(geometry.len() * POINT_SIZE);
    for (cell, (mean, deviation)) in grid.mean.iter().zip(&grid.standard_deviation).enumerate() {
        if mean.is_finite() {
            let [x, y] = geometry.centre(cell % geometry.columns, cell / geometry.columns);
            let [outer_mean, outer_deviation] = [*mean, *deviation].map(|value| outside(grid.quantity, value));
            for value in [x, y, 0.0, *mean, outer_mean, outer_deviation] {
                data.extend((value as f32).to_le_bytes());
            }
        }
    }
    let field = |(index, name): (usize, &&str)| sensor_msgs::msg::PointField {
        name: (*name).to_owned(),
        offset: 4 * index as u32,
        datatype: sensor_msgs::msg::PointField::FLOAT32 as u8,
        count: 1,
    };
    sensor_msgs::msg::PointCloud2 {
        header,
        height: 1,
        width: (data.len() / POINT_SIZE) as u32,
        fields: POINT_FIELDS.iter().enumerate().map(field).collect(),
        is_bigendian: false,
        point_step: POINT_SIZE as u32,
        row_step: data.len() as u32,
        data,
        is_dense: true,
    }
}

/// The inducing points as spheres.
pub(super) fn markers(header: Header, points: &[[f64; 2]]) -> visualization_msgs::msg::MarkerArray {
    use visualization_msgs::msg::{Marker, MarkerArray};
    let marker = Marker {
        header,
        ns: "inducing_points".into(),
        type_: Marker::SPHERE_LIST as i32,
        // A list without points is an error to RViz; it has to be taken away.
        action: if points.is_empty() { Marker::DELETE as i32 } else { Marker::ADD as i32 },
        pose: unturned([0.0; 3]),
        scale: geometry_msgs::msg::Vector3 { x: MARKER_SIZE, y: MARKER_SIZE, z: MARKER_SIZE },
        color: ColorRGBA { r: 1.0, g: 1.0, b: 1.0, a: 1.0 },
        // Just above the floor, where grids and cloud do not hide them.
        points: points.iter().map(|&[x, y]| geometry_msgs::msg::Point { x, y, z: MARKER_SIZE }).collect(),
        ..Marker::default()
    };
    MarkerArray { markers: vec![marker] }
}

/// Where readings were taken.
pub(super) fn path(header: Header, points: &[Point3<f64>]) -> nav_msgs::msg::Path {
    let pose = |point: &Point3<f64>| geometry_msgs::msg::PoseStamped {
        header: header.clone(),
        pose: unturned([point.x, point.y, point.z]),
    };
    nav_msgs::msg::Path { poses: points.iter().map(pose).collect(), header }
}

/// A mean of this quantity, or a standard deviation, as messages have it: a strength in tesla.
pub(super) fn outside(quantity: Quantity, value: f64) -> f64 {
    match quantity {
        Quantity::Strength => MagneticField::from_microtesla(Vector3::new(value, 0.0, 0.0)).to_tesla().x,
        Quantity::Probability => value,
    }
}

fn unturned([x, y, z]: [f64; 3]) -> geometry_msgs::msg::Pose {
    geometry_msgs::msg::Pose {
        position: geometry_msgs::msg::Point { x, y, z },
        orientation: geometry_msgs::msg::Quaternion { x: 0.0, y: 0.0, z: 0.0, w: 1.0 },
    }
}
