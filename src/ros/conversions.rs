//! Conversions between ROS messages and magmap's own types.

use nalgebra::{Isometry2, Isometry3, Point3, Quaternion, Vector3};
use r2r::builtin_interfaces::msg::Time;
use r2r::std_msgs::msg::{ColorRGBA, Header};
use r2r::{geometry_msgs, nav_msgs, sensor_msgs, tf2_msgs, visualization_msgs};

use super::interfaces::OccupancyGridUpdate;
use crate::display::AxesGrid;
use crate::display::arrows::{Arrow, Arrows};
use crate::display::colour::VIRIDIS;
use crate::display::occupancy::GridScales;
use crate::field::grid::{Cells, GridGeometry, StrengthGrid};
use crate::field::map::SensorBias;
use crate::localization::Start;
#[cfg(not(feature = "ros-check"))]
use {
    super::interfaces::FieldMapMessage, crate::field::map::FieldMap, crate::mapping::thread::MappingStatus,
    crate::mapping::updates::Update, crate::sensing::rejection::Rejections,
};

use crate::sensing::reading::{
    MICROTESLA_PER_TESLA, MICROTESLA_PER_TESLA_SQUARED, MagneticField, Pose, Reading, Stamp, isometry,
};
use crate::trajectory::Withdrawal;

/// Diameter of an inducing point's sphere, in metres.
const MARKER_SIZE: f64 = 0.08;

/// Height of the letters in markers, in metres.
const TEXT_SIZE: f64 = 0.15;

/// Fields of a point of the cloud. Intensity is the mean in microtesla, for viewers; mean and standard deviation are in tesla.
const POINT_FIELDS: [&str; 6] = ["x", "y", "z", "intensity", "mean", "standard_deviation"];

/// Further fields where the map has axes, in tesla.
const AXES_FIELDS: [&str; 6] =
    ["mean_x", "mean_y", "mean_z", "standard_deviation_x", "standard_deviation_y", "standard_deviation_z"];

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

/// The reading in a message; the gates reject implausible ones.
pub(super) fn reading(message: &sensor_msgs::msg::MagneticField) -> Reading {
    let axes = &message.magnetic_field;
    let field = MagneticField::from_tesla(Vector3::new(axes.x, axes.y, axes.z));
    Reading { stamp: stamp(&message.header.stamp), field }
}

/// The pose in a message, if it is valid.
pub(super) fn pose(message: &nav_msgs::msg::Odometry) -> Option<Pose> {
    at(&message.header, &message.pose.pose)
}

/// A pose with its stamp, if it is valid.
pub(super) fn stamped_pose(message: &geometry_msgs::msg::PoseStamped) -> Option<Pose> {
    at(&message.header, &message.pose)
}

fn at(header: &Header, pose: &geometry_msgs::msg::Pose) -> Option<Pose> {
    let (stamp, pose) = (stamp(&header.stamp), valid(pose)?);
    Some(Pose { stamp, position: pose.translation.vector.into(), orientation: pose.rotation })
}

/// A transform, if it is valid.
pub(super) fn transform(message: &geometry_msgs::msg::Transform) -> Option<Isometry3<f64>> {
    let geometry_msgs::msg::Transform { translation: geometry_msgs::msg::Vector3 { x, y, z }, rotation } = message;
    valid(&geometry_msgs::msg::Pose { position: point([*x, *y, *z]), orientation: rotation.clone() })
}

fn valid(pose: &geometry_msgs::msg::Pose) -> Option<Isometry3<f64>> {
    let geometry_msgs::msg::Pose { position, orientation } = pose;
    isometry(
        Vector3::new(position.x, position.y, position.z),
        Quaternion::new(orientation.w, orientation.x, orientation.y, orientation.z),
    )
}

/// A pose in the plane.
pub(super) fn pose_in_plane(pose: &Isometry2<f64>) -> geometry_msgs::msg::Pose {
    let half = 0.5 * pose.rotation.angle();
    let orientation = geometry_msgs::msg::Quaternion { x: 0.0, y: 0.0, z: half.sin(), w: half.cos() };
    geometry_msgs::msg::Pose { position: point([pose.translation.x, pose.translation.y, 0.0]), orientation }
}

/// The transform from `child` to the frame of the header.
pub(super) fn transforms(header: Header, child: &str, transform: &Isometry2<f64>) -> tf2_msgs::msg::TFMessage {
    let geometry_msgs::msg::Pose { position, orientation } = pose_in_plane(transform);
    let translation = geometry_msgs::msg::Vector3 { x: position.x, y: position.y, z: 0.0 };
    let transform = geometry_msgs::msg::Transform { translation, rotation: orientation };
    let child_frame_id = child.to_owned();
    tf2_msgs::msg::TFMessage {
        transforms: vec![geometry_msgs::msg::TransformStamped { header, child_frame_id, transform }],
    }
}

/// Indices of x, y and heading among the six dimensions of a covariance.
const IN_PLANE: [usize; 3] = [0, 1, 5];

/// A pose in the plane with the covariance of x, y and heading.
pub(super) fn pose_with_covariance(
    header: Header,
    pose: &Isometry2<f64>,
    covariance: &[[f64; 3]; 3],
) -> geometry_msgs::msg::PoseWithCovarianceStamped {
    let mut all = vec![0.0; 36];
    for (row, values) in IN_PLANE.into_iter().zip(covariance) {
        IN_PLANE.into_iter().zip(values).for_each(|(column, value)| all[6 * row + column] = *value);
    }
    let pose = geometry_msgs::msg::PoseWithCovariance { pose: pose_in_plane(pose), covariance: all };
    geometry_msgs::msg::PoseWithCovarianceStamped { header, pose }
}

/// The start that a user gives as a pose; none if it is not finite. Without a covariance the robot is about there.
pub(super) fn start(message: &geometry_msgs::msg::PoseWithCovariance) -> Option<Start> {
    let pose = valid(&message.pose)?;
    let (place, heading) = ([pose.translation.x, pose.translation.y], pose.rotation.euler_angles().2);
    let [x, y, yaw] = IN_PLANE.map(|dimension| message.covariance.get(7 * dimension).copied().unwrap_or(0.0));
    if x == 0.0 && y == 0.0 && yaw == 0.0 {
        return Some(Start::given(place, heading));
    }
    let (deviation, heading_deviation) = (x.max(y).sqrt(), yaw.sqrt());
    let is_valid = [x, y, yaw].iter().all(|variance| variance.is_finite() && *variance >= 0.0);
    is_valid.then_some(Start::At { place, heading, deviation, heading_deviation })
}

/// A layer of the map.
pub(super) fn occupancy_grid(
    header: Header,
    geometry: &GridGeometry,
    occupancies: &[i8],
) -> nav_msgs::msg::OccupancyGrid {
    let info = metadata(geometry, header.stamp.clone());
    nav_msgs::msg::OccupancyGrid { header, info, data: occupancies.to_vec() }
}

/// Some cells of a layer of the raster, all of which are in its geometry.
#[cfg(not(feature = "ros-check"))]
pub(super) fn occupancy_grid_update(
    header: Header,
    geometry: &GridGeometry,
    occupancies: &[i8],
    cells: &Cells,
) -> OccupancyGridUpdate {
    let [x, y] = [cells.first[0] - geometry.first_column, cells.first[1] - geometry.first_row];
    let [width, height] = [0, 1].map(|axis| cells.last[axis] - cells.first[axis] + 1);
    let indices = cells.iter().filter_map(|[column, row]| geometry.index(column, row));
    let data = indices.map(|index| occupancies[index]).collect();
    OccupancyGridUpdate { header, x: x as i32, y: y as i32, width: width as u32, height: height as u32, data }
}

/// The bindings have a message of a whole grid only.
#[cfg(feature = "ros-check")]
pub(super) fn occupancy_grid_update(header: Header, _: &GridGeometry, _: &[i8], _: &Cells) -> OccupancyGridUpdate {
    OccupancyGridUpdate { header, ..OccupancyGridUpdate::default() }
}

pub(super) fn metadata(geometry: &GridGeometry, loaded: Time) -> nav_msgs::msg::MapMetaData {
    let [x, y] = geometry.origin();
    nav_msgs::msg::MapMetaData {
        map_load_time: loaded,
        resolution: geometry.resolution as f32,
        width: geometry.columns as u32,
        height: geometry.rows as u32,
        origin: without_rotation([x, y, 0.0]),
    }
}

/// The whole map in one message.
#[cfg(not(feature = "ros-check"))]
pub(super) fn field_map(
    header: Header,
    update: &Update,
    status: &MappingStatus,
    rejections: &Rejections,
    grid: &StrengthGrid,
    axes: Option<&AxesGrid>,
    scales: &GridScales,
) -> FieldMapMessage {
    let map = update.map.as_ref();
    let hyperparameters = map.map(FieldMap::hyperparameters).unwrap_or_default();
    let points = map.map(FieldMap::inducing_points).unwrap_or_default();
    let totals = map.map(|map| map.totals).unwrap_or_default();
    let [mean_low, mean_high] = scales.mean.map(|mean| mean / MICROTESLA_PER_TESLA);
    let [variance_low, variance_high] = scales.variance.map(|variance| variance / MICROTESLA_PER_TESLA_SQUARED);
    FieldMapMessage {
        info: metadata(&grid.geometry, header.stamp.clone()),
        header,
        mean: grid.mean.iter().map(|value| (value / MICROTESLA_PER_TESLA) as f32).collect(),
        standard_deviation: grid.standard_deviation.iter().map(|value| (value / MICROTESLA_PER_TESLA) as f32).collect(),
        mean_low,
        mean_high,
        variance_low,
        variance_high,
        axes: axes.iter().flat_map(|axes| axes.means()).map(|axis| (axis / MICROTESLA_PER_TESLA) as f32).collect(),
        axes_covariance: axes
            .iter()
            .flat_map(|axes| axes.covariances())
            .map(|entry| (entry / MICROTESLA_PER_TESLA_SQUARED) as f32)
            .collect(),
        share_below: map.and_then(FieldMap::share_below).unwrap_or(f64::NAN),
        hyperparameter_names: hyperparameters.iter().map(|named| named.name.clone()).collect(),
        hyperparameters: hyperparameters.iter().map(|named| named.value).collect(),
        inducing_points: points.iter().map(|&[x, y]| point([x, y, 0.0])).collect(),
        update: totals.updates,
        observations: totals.observations,
        readings_used: totals.used_readings,
        readings_rejected: rejections.readings(),
        poses_rejected: rejections.poses(),
        readings_lost: status.lost_readings,
    }
}

/// The known cells as points at the height of the floor, with the axes of the field where the map has them.
pub(super) fn cloud(header: Header, grid: &StrengthGrid, axes: Option<&AxesGrid>) -> sensor_msgs::msg::PointCloud2 {
    let geometry = &grid.geometry;
    let names: Vec<&str> = POINT_FIELDS.iter().chain(axes.iter().flat_map(|_| &AXES_FIELDS)).copied().collect();
    let point_size = 4 * names.len();
    let mut data = Vec::with_capacity(geometry.len() * point_size);
    for (cell, (mean, deviation)) in grid.mean.iter().zip(&grid.standard_deviation).enumerate() {
        if mean.is_finite() {
            let [x, y] = geometry.centre(cell % geometry.columns, cell / geometry.columns);
            let [outer_mean, outer_deviation] = [mean, deviation].map(|value| value / MICROTESLA_PER_TESLA);
            let mut push = |value: f64| data.extend((value as f32).to_le_bytes());
            [x, y, 0.0, *mean, outer_mean, outer_deviation].into_iter().for_each(&mut push);
            if let Some(axes) = axes.and_then(|axes| axes.cells[cell]) {
                axes.mean.into_iter().for_each(|axis| push(axis / MICROTESLA_PER_TESLA));
                (0..3).for_each(|axis| push(axes.covariance[axis][axis].sqrt() / MICROTESLA_PER_TESLA));
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
        width: (data.len() / point_size) as u32,
        fields: names.iter().enumerate().map(field).collect(),
        is_bigendian: false,
        point_step: point_size as u32,
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
        // RViz reports a list without points as an error: it must be deleted.
        action: if points.is_empty() { Marker::DELETE as i32 } else { Marker::ADD as i32 },
        pose: without_rotation([0.0; 3]),
        scale: geometry_msgs::msg::Vector3 { x: MARKER_SIZE, y: MARKER_SIZE, z: MARKER_SIZE },
        color: ColorRGBA { r: 1.0, g: 1.0, b: 1.0, a: 1.0 },
        // Just above the floor, so that grids and cloud do not hide them.
        points: points.iter().map(|&[x, y]| point([x, y, MARKER_SIZE])).collect(),
        ..Marker::default()
    };
    MarkerArray { markers: vec![marker] }
}

/// Where the building has changed, with the time at which that was found; earlier ones are deleted.
pub(super) fn changes(header: &Header, withdrawals: &[Withdrawal]) -> visualization_msgs::msg::MarkerArray {
    use visualization_msgs::msg::{Marker, MarkerArray};
    let marker = |ns: &str, id: usize, type_: i32, size: f64| Marker {
        header: header.clone(),
        ns: ns.into(),
        id: id as i32,
        type_,
        pose: without_rotation([0.0; 3]),
        scale: geometry_msgs::msg::Vector3 { x: size, y: size, z: size },
        color: ColorRGBA { r: 0.84, g: 0.15, b: 0.16, a: 0.9 },
        ..Marker::default()
    };
    let delete_all =
        Marker { action: Marker::DELETEALL as i32, ..marker("changes", 0, Marker::SPHERE_LIST as i32, 1.0) };
    let of_change = |(id, change): (usize, &Withdrawal)| {
        let places = change.places.iter().map(|&[x, y]| point([x, y, MARKER_SIZE])).collect();
        let [x, _] = change.middle();
        let top = change.places.iter().map(|&[_, y]| y).fold(f64::NEG_INFINITY, f64::max);
        [
            Marker { points: places, ..marker("changes", id, Marker::SPHERE_LIST as i32, 2.0 * MARKER_SIZE) },
            Marker {
                text: format!("changed\n{}", change.found_at()),
                // Beside the places as seen from above, and dark: the map beneath is bright.
                pose: without_rotation([x, top + 2.0 * TEXT_SIZE, 0.5]),
                color: ColorRGBA { r: 0.0, g: 0.0, b: 0.0, a: 1.0 },
                ..marker("times", id, Marker::TEXT_VIEW_FACING as i32, TEXT_SIZE)
            },
        ]
    };
    let changes = (1..).zip(withdrawals).flat_map(of_change);
    MarkerArray { markers: std::iter::once(delete_all).chain(changes).collect() }
}

/// The field as arrows above the map, coloured by its strength on the scale of the mean; earlier ones are deleted.
pub(super) fn vectors(header: &Header, arrows: &Arrows, scales: &GridScales) -> visualization_msgs::msg::MarkerArray {
    use visualization_msgs::msg::{Marker, MarkerArray};
    let [low, high] = scales.mean;
    let marker = |id: usize, type_: i32, action: i32| Marker {
        header: header.clone(),
        ns: "vectors".into(),
        id: id as i32,
        type_,
        action,
        pose: without_rotation([0.0; 3]),
        ..Marker::default()
    };
    // RViz reports two markers with the same number as an error: 0 is that of the one that deletes.
    let arrow = |(id, arrow): (usize, &Arrow)| {
        let fraction = (arrow.strength - low) / (high - low).max(f64::MIN_POSITIVE);
        let [r, g, b] = VIRIDIS.colour(fraction).map(|part| f32::from(part) / 255.0);
        // Under the map, an arrow that points down would be veiled by it.
        let lift = MARKER_SIZE - arrow.tail[2].min(arrow.tip[2]);
        let above = |[x, y, z]: [f64; 3]| point([x, y, z + lift]);
        Marker {
            // Diameters of shaft and head.
            scale: geometry_msgs::msg::Vector3 { x: 0.05 * arrows.spacing, y: 0.12 * arrows.spacing, z: 0.0 },
            color: ColorRGBA { r, g, b, a: 1.0 },
            points: vec![above(arrow.tail), above(arrow.tip)],
            ..marker(id, Marker::ARROW as i32, Marker::ADD as i32)
        }
    };
    let delete_all = marker(0, Marker::ARROW as i32, Marker::DELETEALL as i32);
    let arrows = (1..).zip(&arrows.arrows).map(arrow);
    MarkerArray { markers: std::iter::once(delete_all).chain(arrows).collect() }
}

/// The path along which readings were taken.
pub(super) fn path(header: Header, points: &[Point3<f64>]) -> nav_msgs::msg::Path {
    let pose = |point: &Point3<f64>| geometry_msgs::msg::PoseStamped {
        header: header.clone(),
        pose: without_rotation([point.x, point.y, point.z]),
    };
    nav_msgs::msg::Path { poses: points.iter().map(pose).collect(), header }
}

/// The hard iron that was learnt, in the frame of the sensor.
pub(super) fn bias(header: Header, bias: &SensorBias) -> sensor_msgs::msg::MagneticField {
    let [x, y, z] = bias.hard_iron.map(|axis| axis / MICROTESLA_PER_TESLA);
    let covariance = bias.hard_iron_covariance.as_flattened();
    sensor_msgs::msg::MagneticField {
        header,
        magnetic_field: geometry_msgs::msg::Vector3 { x, y, z },
        magnetic_field_covariance: covariance.iter().map(|entry| entry / MICROTESLA_PER_TESLA_SQUARED).collect(),
    }
}

fn point([x, y, z]: [f64; 3]) -> geometry_msgs::msg::Point {
    geometry_msgs::msg::Point { x, y, z }
}

fn without_rotation(position: [f64; 3]) -> geometry_msgs::msg::Pose {
    let orientation = geometry_msgs::msg::Quaternion { x: 0.0, y: 0.0, z: 0.0, w: 1.0 };
    geometry_msgs::msg::Pose { position: point(position), orientation }
}

#[cfg(test)]
mod tests {
    use streaming_gp::vector::Axes;

    use super::*;

    fn numbers(data: &[u8]) -> Vec<f32> {
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn points_of_a_cloud_have_the_axes_where_the_map_has_them() {
        let geometry = GridGeometry { resolution: 0.5, first_column: 0, first_row: 0, columns: 2, rows: 1 };
        let mut grid = StrengthGrid::unknown(geometry);
        (grid.mean[1], grid.standard_deviation[1]) = (50.0, 2.0);
        let header = || header("odom", Stamp::default());
        let plain = cloud(header(), &grid, None);
        assert_eq!((plain.width, plain.point_step, plain.fields.len()), (1, 24, 6));
        assert_eq!(numbers(&plain.data), [0.75, 0.25, 0.0, 50.0, 50e-6, 2e-6]);
        let covariance = [[4.0, 1.0, 0.0], [1.0, 9.0, 0.0], [0.0, 0.0, 16.0]];
        let axes = Axes { mean: [30.0, 0.0, -40.0], covariance };
        let detailed = cloud(header(), &grid, Some(&AxesGrid { cells: vec![None, Some(axes)] }));
        assert_eq!((detailed.width, detailed.point_step), (1, 48));
        assert_eq!(numbers(&detailed.data)[6..], [30e-6, 0.0, -40e-6, 2e-6, 3e-6, 4e-6]);
        let offsets: Vec<(&str, u32)> =
            detailed.fields.iter().map(|field| (field.name.as_str(), field.offset)).collect();
        assert_eq!(offsets[6..8], [("mean_x", 24), ("mean_y", 28)]);
        assert_eq!(offsets[11], ("standard_deviation_z", 44));
    }

    #[test]
    fn a_pose_with_its_covariance_is_where_a_start_from_it_is() {
        let covariance = [[0.04, 0.01, 0.002], [0.01, 0.09, 0.003], [0.002, 0.003, 0.25]];
        let pose = Isometry2::new(nalgebra::Vector2::new(1.5, -2.0), 2.5);
        let message = pose_with_covariance(header("map", Stamp::default()), &pose, &covariance).pose;
        let entries =
            [(0, 0.04), (1, 0.01), (5, 0.002), (6, 0.01), (7, 0.09), (11, 0.003), (30, 0.002), (31, 0.003), (35, 0.25)];
        assert_eq!(message.covariance.len(), 36);
        for (index, found) in message.covariance.iter().enumerate() {
            let expected = entries.iter().find(|(entry, _)| *entry == index).map_or(0.0, |(_, value)| *value);
            assert_eq!(*found, expected, "{index}");
        }
        let Some(Start::At { place, heading, deviation, heading_deviation }) = start(&message) else {
            panic!("a place")
        };
        assert_eq!((place, deviation, heading_deviation), ([1.5, -2.0], 0.3, 0.5));
        assert!((heading - 2.5).abs() < 1e-12, "{heading}");
        let with = |variance: f64| {
            let mut changed = message.clone();
            [0, 7, 35].into_iter().for_each(|entry| changed.covariance[entry] = variance);
            start(&changed)
        };
        assert_eq!(with(0.0), Some(Start::given([1.5, -2.0], heading)));
        assert_eq!((with(f64::NAN), with(-1.0)), (None, None));
        let mut unturned = message.clone();
        unturned.pose.orientation = r2r::geometry_msgs::msg::Quaternion { x: 0.0, y: 0.0, z: 0.0, w: 0.0 };
        assert_eq!(start(&unturned), None);
    }

    #[test]
    fn a_hard_iron_is_in_tesla_and_its_covariance_in_tesla_squared_row_by_row() {
        let hard_iron_covariance = [[0.04, 0.01, 0.0], [0.01, 0.09, 0.02], [0.0, 0.02, 25.0]];
        let bias = SensorBias { hard_iron: [-2.8, 1.0, 0.0], hard_iron_sd: [0.2, 0.3, 5.0], hard_iron_covariance };
        let message = super::bias(header("imu", Stamp::from_nanoseconds(1_500_000_000)), &bias);
        assert_eq!((message.header.frame_id.as_str(), message.header.stamp.sec), ("imu", 1));
        let field = &message.magnetic_field;
        let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-12 * expected.abs();
        assert!(near(field.x, -2.8e-6) && near(field.y, 1e-6) && field.z == 0.0, "{field:?}");
        let expected = [4e-14, 1e-14, 0.0, 1e-14, 9e-14, 2e-14, 0.0, 2e-14, 2.5e-11];
        assert_eq!(message.magnetic_field_covariance.len(), 9);
        let pairs = message.magnetic_field_covariance.iter().zip(expected);
        assert!(pairs.clone().all(|(&found, expected)| near(found, expected)), "{:?}", pairs.collect::<Vec<_>>());
    }
}
