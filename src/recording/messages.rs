//! The few ROS 2 messages magmap reads and writes, as plain structs, with their CDR encoding and their definitions as
//! text.
//!
//! Field names, order and types are those of the ROS 2 interface packages (`builtin_interfaces`, `std_msgs`,
//! `geometry_msgs`, `sensor_msgs`, `nav_msgs`, `tf2_msgs`), from which the encoding follows.

use byteorder::{BigEndian, LittleEndian};
use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3 as Axes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::mapping::reading::{self, Reading, Stamp};

/// Bytes of the encapsulation header that precedes every encoded message: representation (2) and options (2).
const ENCAPSULATION: usize = 4;

/// A message that can be read from and written to a bag.
pub trait Message: Serialize + DeserializeOwned {
    /// Its type, as ROS names it: `package/msg/Name`.
    const TYPE: &'static str;

    /// Its definition and those of all messages it is made of, in the encoding `ros2msg`.
    fn definition() -> String;
}

/// Why bytes are not the message they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Too short for the encapsulation header.
    #[error("{0} bytes are too few for a CDR message: at least {ENCAPSULATION} were expected")]
    TooShort(usize),
    /// Another encoding than plain CDR.
    #[error("the encapsulation header is {0:02x?}: plain CDR (00 00 big-endian, 00 01 little-endian) was expected")]
    Encapsulation([u8; 2]),
    /// The bytes end early or hold something that the type cannot.
    #[error("not a {message}: {source}")]
    Cdr {
        /// The expected type.
        message: &'static str,
        /// What the decoder says.
        source: cdr_encoding::Error,
    },
    /// A quaternion that is no rotation, or a position that is no number.
    #[error("{0} is not a pose: finite numbers and a quaternion of norm one were expected")]
    NotAPose(String),
}

/// The message in CDR, little-endian, with its encapsulation header.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, cdr_encoding::Error> {
    let mut bytes = vec![0, 1, 0, 0];
    bytes.extend(cdr_encoding::to_vec::<M, LittleEndian>(message)?);
    Ok(bytes)
}

/// The message in these bytes, CDR of either endianness with its encapsulation header. Bytes beyond it are ignored
/// (middlewares pad).
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let Some((header, payload)) = bytes.split_first_chunk::<ENCAPSULATION>() else {
        return Err(DecodeError::TooShort(bytes.len()));
    };
    // Alignment counts from the end of the header, which is where the decoder starts.
    let decoded = match header[..2] {
        [0, 0] => cdr_encoding::from_bytes::<M, BigEndian>(payload),
        [0, 1] => cdr_encoding::from_bytes::<M, LittleEndian>(payload),
        _ => return Err(DecodeError::Encapsulation([header[0], header[1]])),
    };
    decoded.map(|(message, _)| message).map_err(|source| DecodeError::Cdr { message: M::TYPE, source })
}

/// Declares a message: its struct from the table of fields, its type's name and the text of its definition.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident = $package:literal / $ros_name:literal, uses [$($used:ty),*], {
        $($(#[$field_doc:meta])* $field:ident: $rust:ty = $ros:literal),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $rust,)*
        }

        impl Definition for $name {
            const RESOURCE: &'static str = concat!($package, "/", $ros_name);
            const FIELDS: &'static str = concat!($($ros, " ", stringify!($field), "\n"),*);

            fn collect(parts: &mut Vec<(&'static str, &'static str)>) {
                let part = (Self::RESOURCE, Self::FIELDS);
                if !parts.contains(&part) {
                    parts.push(part);
                    $(<$used>::collect(parts);)*
                }
            }
        }

        impl Message for $name {
            const TYPE: &'static str = concat!($package, "/msg/", $ros_name);

            fn definition() -> String {
                let mut parts = Vec::new();
                Self::collect(&mut parts);
                join(&parts)
            }
        }
    };
}

/// The pieces of which a definition is put together.
trait Definition {
    /// `package/Name`.
    const RESOURCE: &'static str;
    /// One line per field: type and name.
    const FIELDS: &'static str;

    /// Appends this message and those it is made of, each once, this one first.
    fn collect(parts: &mut Vec<(&'static str, &'static str)>);
}

/// The `ros2msg` text: the first definition as it is, every other one after a line of 80 `=` and a line with its name.
fn join(parts: &[(&str, &str)]) -> String {
    let separator = "=".repeat(80);
    let mut text = String::new();
    for (index, (resource, fields)) in parts.iter().enumerate() {
        if index > 0 {
            text.push_str(&format!("{separator}\nMSG: {resource}\n"));
        }
        text.push_str(fields);
    }
    text
}

message! {
    /// A point in time.
    Time = "builtin_interfaces" / "Time", uses [], {
        /// Whole seconds since the epoch.
        sec: i32 = "int32",
        /// Nanoseconds beyond them.
        nanosec: u32 = "uint32",
    }
}

message! {
    /// When something was measured, and in which frame.
    Header = "std_msgs" / "Header", uses [Time], {
        /// When.
        stamp: Time = "builtin_interfaces/Time",
        /// The frame's name.
        frame_id: String = "string",
    }
}

message! {
    /// Yes or no.
    Bool = "std_msgs" / "Bool", uses [], {
        /// Whether yes.
        data: bool = "bool",
    }
}

message! {
    /// A vector in space.
    Vector3 = "geometry_msgs" / "Vector3", uses [], {
        /// Along the first axis.
        x: f64 = "float64",
        /// Along the second axis.
        y: f64 = "float64",
        /// Along the third axis.
        z: f64 = "float64",
    }
}

message! {
    /// A point in space, in metres.
    Point = "geometry_msgs" / "Point", uses [], {
        /// Along the first axis.
        x: f64 = "float64",
        /// Along the second axis.
        y: f64 = "float64",
        /// Along the third axis.
        z: f64 = "float64",
    }
}

message! {
    /// A rotation.
    Quaternion = "geometry_msgs" / "Quaternion", uses [], {
        /// First imaginary part.
        x: f64 = "float64",
        /// Second imaginary part.
        y: f64 = "float64",
        /// Third imaginary part.
        z: f64 = "float64",
        /// Real part.
        w: f64 = "float64",
    }
}

message! {
    /// Position and orientation.
    Pose = "geometry_msgs" / "Pose", uses [Point, Quaternion], {
        /// Where.
        position: Point = "geometry_msgs/Point",
        /// Turned how.
        orientation: Quaternion = "geometry_msgs/Quaternion",
    }
}

message! {
    /// A pose and how uncertain it is.
    PoseWithCovariance = "geometry_msgs" / "PoseWithCovariance", uses [Pose], {
        /// The pose.
        pose: Pose = "geometry_msgs/Pose",
        /// Row-major covariance of x, y, z and the rotations about them. Nested, so that it has no length on the wire.
        covariance: [[f64; 6]; 6] = "float64[36]",
    }
}

message! {
    /// Linear and angular velocity.
    Twist = "geometry_msgs" / "Twist", uses [Vector3], {
        /// In metres per second.
        linear: Vector3 = "geometry_msgs/Vector3",
        /// In radians per second.
        angular: Vector3 = "geometry_msgs/Vector3",
    }
}

message! {
    /// A twist and how uncertain it is.
    TwistWithCovariance = "geometry_msgs" / "TwistWithCovariance", uses [Twist], {
        /// The twist.
        twist: Twist = "geometry_msgs/Twist",
        /// Row-major covariance of the linear and the angular velocity.
        covariance: [[f64; 6]; 6] = "float64[36]",
    }
}

message! {
    /// A rigid transform.
    Transform = "geometry_msgs" / "Transform", uses [Vector3, Quaternion], {
        /// In metres.
        translation: Vector3 = "geometry_msgs/Vector3",
        /// Applied before the translation.
        rotation: Quaternion = "geometry_msgs/Quaternion",
    }
}

message! {
    /// Where the frame `child_frame_id` sits in the header's frame.
    TransformStamped = "geometry_msgs" / "TransformStamped", uses [Header, Transform], {
        /// When, and the parent frame.
        header: Header = "std_msgs/Header",
        /// The child frame.
        child_frame_id: String = "string",
        /// From child coordinates to parent coordinates.
        transform: Transform = "geometry_msgs/Transform",
    }
}

message! {
    /// What travels on `/tf` and `/tf_static`.
    TFMessage = "tf2_msgs" / "TFMessage", uses [TransformStamped], {
        /// The transforms.
        transforms: Vec<TransformStamped> = "geometry_msgs/TransformStamped[]",
    }
}

message! {
    /// A magnetometer sample.
    MagneticField = "sensor_msgs" / "MagneticField", uses [Header, Vector3], {
        /// When, and the sensor's frame.
        header: Header = "std_msgs/Header",
        /// Along the sensor's axes, in tesla.
        magnetic_field: Vector3 = "geometry_msgs/Vector3",
        /// Row-major covariance of the axes; all zero means unknown.
        magnetic_field_covariance: [f64; 9] = "float64[9]",
    }
}

message! {
    /// Where odometry believes the robot is.
    Odometry = "nav_msgs" / "Odometry", uses [Header, PoseWithCovariance, TwistWithCovariance], {
        /// When, and the frame of the pose.
        header: Header = "std_msgs/Header",
        /// The robot's body frame.
        child_frame_id: String = "string",
        /// The body in the header's frame.
        pose: PoseWithCovariance = "geometry_msgs/PoseWithCovariance",
        /// The velocity in the body's frame.
        twist: TwistWithCovariance = "geometry_msgs/TwistWithCovariance",
    }
}

message! {
    /// A pose with its time and frame.
    PoseStamped = "geometry_msgs" / "PoseStamped", uses [Header, Pose], {
        /// When, and the frame.
        header: Header = "std_msgs/Header",
        /// The pose.
        pose: Pose = "geometry_msgs/Pose",
    }
}

message! {
    /// A sequence of poses.
    Path = "nav_msgs" / "Path", uses [Header, PoseStamped], {
        /// When, and the frame.
        header: Header = "std_msgs/Header",
        /// The poses along the path.
        poses: Vec<PoseStamped> = "geometry_msgs/PoseStamped[]",
    }
}

message! {
    /// The geometry of a grid.
    MapMetaData = "nav_msgs" / "MapMetaData", uses [Time, Pose], {
        /// When the map was loaded.
        map_load_time: Time = "builtin_interfaces/Time",
        /// Side of a cell, in metres.
        resolution: f32 = "float32",
        /// Cells along x.
        width: u32 = "uint32",
        /// Cells along y.
        height: u32 = "uint32",
        /// The corner of cell (0, 0).
        origin: Pose = "geometry_msgs/Pose",
    }
}

message! {
    /// A grid of cells with a value of 0 to 100 each, or -1 where it is unknown.
    OccupancyGrid = "nav_msgs" / "OccupancyGrid", uses [Header, MapMetaData], {
        /// When, and the frame.
        header: Header = "std_msgs/Header",
        /// The grid's geometry.
        info: MapMetaData = "nav_msgs/MapMetaData",
        /// Row by row, starting at the origin.
        data: Vec<i8> = "int8[]",
    }
}

impl From<Stamp> for Time {
    fn from(stamp: Stamp) -> Self {
        let (sec, nanosec) = stamp.to_ros();
        Self { sec, nanosec }
    }
}

impl From<&Time> for Stamp {
    fn from(time: &Time) -> Self {
        Stamp::from_ros(time.sec, time.nanosec)
    }
}

impl Header {
    /// The header of something at this time in this frame.
    pub fn new(stamp: Stamp, frame: impl Into<String>) -> Self {
        Self { stamp: stamp.into(), frame_id: frame.into() }
    }
}

impl From<Axes<f64>> for Vector3 {
    fn from(axes: Axes<f64>) -> Self {
        Self { x: axes.x, y: axes.y, z: axes.z }
    }
}

impl From<&Vector3> for Axes<f64> {
    fn from(vector: &Vector3) -> Self {
        Axes::new(vector.x, vector.y, vector.z)
    }
}

impl From<UnitQuaternion<f64>> for Quaternion {
    fn from(rotation: UnitQuaternion<f64>) -> Self {
        Self { x: rotation.i, y: rotation.j, z: rotation.k, w: rotation.w }
    }
}

/// The transform made of these parts, refused when a number is not finite or the quaternion is no rotation.
fn isometry(translation: Axes<f64>, rotation: &Quaternion) -> Result<Isometry3<f64>, DecodeError> {
    let quaternion = nalgebra::Quaternion::new(rotation.w, rotation.x, rotation.y, rotation.z);
    let not_a_pose = || DecodeError::NotAPose(format!("translation {:?} with {rotation:?}", translation.as_slice()));
    reading::isometry(translation, quaternion).ok_or_else(not_a_pose)
}

impl From<&Isometry3<f64>> for Pose {
    fn from(pose: &Isometry3<f64>) -> Self {
        let position = pose.translation.vector;
        Self { position: Point { x: position.x, y: position.y, z: position.z }, orientation: pose.rotation.into() }
    }
}

impl From<&Isometry3<f64>> for Transform {
    fn from(transform: &Isometry3<f64>) -> Self {
        Self { translation: transform.translation.vector.into(), rotation: transform.rotation.into() }
    }
}

impl TransformStamped {
    /// The transform from child coordinates to parent coordinates.
    pub fn isometry(&self) -> Result<Isometry3<f64>, DecodeError> {
        isometry(Axes::from(&self.transform.translation), &self.transform.rotation)
    }
}

impl MagneticField {
    /// The message of a reading; its covariance is all zero, which means unknown.
    pub fn from_reading(reading: &Reading, frame: impl Into<String>) -> Self {
        Self {
            header: Header::new(reading.stamp, frame),
            magnetic_field: reading.field.to_tesla().into(),
            magnetic_field_covariance: [0.0; 9],
        }
    }

    /// The reading in it, as it is: implausible ones are for the gates.
    pub fn to_reading(&self) -> Reading {
        Reading {
            stamp: Stamp::from(&self.header.stamp),
            field: reading::MagneticField::from_tesla(Axes::from(&self.magnetic_field)),
        }
    }
}

impl Odometry {
    /// The message of a pose of the body `child` in the frame `frame`; velocity and covariances are left zero.
    pub fn from_pose(pose: &reading::Pose, frame: impl Into<String>, child: impl Into<String>) -> Self {
        Self {
            header: Header::new(pose.stamp, frame),
            child_frame_id: child.into(),
            pose: PoseWithCovariance { pose: Pose::from(&pose.isometry()), ..Default::default() },
            twist: TwistWithCovariance::default(),
        }
    }

    /// The pose in it. Refused when a number is not finite or the quaternion is no rotation.
    pub fn to_pose(&self) -> Result<reading::Pose, DecodeError> {
        let Pose { position, orientation } = &self.pose.pose;
        let isometry = isometry(Axes::new(position.x, position.y, position.z), orientation)?;
        Ok(reading::Pose {
            stamp: Stamp::from(&self.header.stamp),
            position: Point3::from(isometry.translation.vector),
            orientation: isometry.rotation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MagneticField {
        MagneticField {
            header: Header { stamp: Time { sec: -2, nanosec: 7 }, frame_id: "imu".into() },
            magnetic_field: Vector3 { x: 1.5e-5, y: -2.5e-5, z: 4.0e-5 },
            magnetic_field_covariance: std::array::from_fn(|i| i as f64),
        }
    }

    /// The bytes by hand, from the rules of CDR, so that encoder and decoder are not only each other's inverse.
    fn sample_bytes(big_endian: bool) -> Vec<u8> {
        let order = |mut bytes: Vec<u8>| {
            if big_endian {
                bytes.reverse();
            }
            bytes
        };
        let mut bytes = vec![0, u8::from(!big_endian), 0, 0];
        bytes.extend(order((-2i32).to_le_bytes().to_vec()));
        bytes.extend(order(7u32.to_le_bytes().to_vec()));
        bytes.extend(order(4u32.to_le_bytes().to_vec()));
        bytes.extend(b"imu\0");
        // 16 bytes so far after the header: doubles are aligned without padding.
        let covariance = (0..9).map(f64::from);
        for value in [1.5e-5, -2.5e-5, 4.0e-5].into_iter().chain(covariance) {
            bytes.extend(order(value.to_le_bytes().to_vec()));
        }
        bytes
    }

    #[test]
    fn magnetic_field_follows_the_rules_of_cdr_in_both_byte_orders() {
        assert_eq!(encode(&sample()).unwrap(), sample_bytes(false));
        assert_eq!(decode::<MagneticField>(&sample_bytes(false)).unwrap(), sample());
        assert_eq!(decode::<MagneticField>(&sample_bytes(true)).unwrap(), sample());
    }

    #[test]
    fn alignment_counts_from_the_end_of_the_encapsulation_header() {
        let mut message = sample();
        message.header.frame_id = "a".into();
        // sec, nanosec, length, "a\0" are 14 bytes after the header: 2 of padding before the doubles.
        let bytes = encode(&message).unwrap();
        assert_eq!(bytes.len(), 4 + 16 + 12 * 8);
        assert_eq!(decode::<MagneticField>(&bytes).unwrap(), message);
    }

    #[test]
    fn fixed_arrays_have_no_length_on_the_wire() {
        let mut odometry = Odometry::default();
        odometry.pose.covariance[5][5] = 36.0;
        let bytes = encode(&odometry).unwrap();
        // Header 8 + empty string 5, padding 3, empty string 5, padding 3; then 7 + 36 + 6 + 36 doubles.
        assert_eq!(bytes.len(), 4 + 8 + 5 + 3 + 5 + 3 + 85 * 8);
        assert_eq!(decode::<Odometry>(&bytes).unwrap(), odometry);
    }

    #[test]
    fn sequences_keep_their_elements() {
        let grid = OccupancyGrid {
            info: MapMetaData { resolution: 0.1, width: 3, height: 2, ..Default::default() },
            data: vec![-1, 0, 100, 50, -1, 7],
            ..Default::default()
        };
        assert_eq!(decode::<OccupancyGrid>(&encode(&grid).unwrap()).unwrap(), grid);
    }

    #[test]
    fn every_cut_is_an_error_and_none_a_panic() {
        let bytes = sample_bytes(false);
        for length in 0..bytes.len() {
            assert!(decode::<MagneticField>(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error() {
        let mut bytes = encode(&OccupancyGrid { data: vec![1; 8], ..Default::default() }).unwrap();
        let length_at = bytes.len() - 12;
        bytes[length_at..length_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode::<OccupancyGrid>(&bytes), Err(DecodeError::Cdr { .. })));
    }

    #[test]
    fn another_representation_is_named() {
        let error = decode::<MagneticField>(&[0, 3, 0, 0, 1, 2]).unwrap_err();
        assert!(error.to_string().contains("[00, 03]"), "{error}");
    }

    #[test]
    fn a_zero_quaternion_is_not_a_pose() {
        let mut odometry = Odometry::default();
        assert!(odometry.to_pose().is_err());
        odometry.pose.pose.orientation.w = 1.0;
        assert!(odometry.to_pose().is_ok());
        odometry.pose.pose.position.y = f64::NAN;
        assert!(odometry.to_pose().is_err());
    }

    #[test]
    fn a_reading_survives_the_way_to_tesla_and_back() {
        let reading = Reading {
            stamp: Stamp::from_ros(5, 6),
            field: reading::MagneticField::from_microtesla(Axes::new(-23.856, -0.079523, -48.241)),
        };
        let back = MagneticField::from_reading(&reading, "imu").to_reading();
        assert_eq!(back.stamp, reading.stamp);
        assert!((back.field.microtesla() - reading.field.microtesla()).norm() < 1e-13);
    }

    #[test]
    fn the_definition_holds_every_part_once_after_its_separator() {
        let definition = Odometry::definition();
        let parts: Vec<&str> = definition.split(&format!("{}\n", "=".repeat(80))).collect();
        assert!(parts[0].starts_with("std_msgs/Header header\nstring child_frame_id\n"));
        let names: Vec<&str> = parts[1..].iter().map(|part| part.lines().next().unwrap()).collect();
        assert_eq!(
            names,
            [
                "MSG: std_msgs/Header",
                "MSG: builtin_interfaces/Time",
                "MSG: geometry_msgs/PoseWithCovariance",
                "MSG: geometry_msgs/Pose",
                "MSG: geometry_msgs/Point",
                "MSG: geometry_msgs/Quaternion",
                "MSG: geometry_msgs/TwistWithCovariance",
                "MSG: geometry_msgs/Twist",
                "MSG: geometry_msgs/Vector3",
            ]
        );
        assert!(parts[3].contains("float64[36] covariance"));
    }
}
