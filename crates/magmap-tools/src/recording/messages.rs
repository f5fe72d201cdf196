//! The ROS 2 messages that magmap reads and writes without ROS, with their CDR encoding and their definitions as text.
//!
//! Names, order and types of the fields are those of the ROS 2 interface packages; the encoding follows from them.

use byteorder::{BigEndian, LittleEndian};
use nalgebra::{Isometry3, Point3, UnitQuaternion, Vector3 as Axes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use magmap::field::grid::GridGeometry;
use magmap::sensing::reading::{self, Reading, Stamp};

/// Bytes of the encapsulation header that precedes every encoded message: representation (2) and options (2).
const ENCAPSULATION: usize = 4;

/// A message that can be read from a bag and written to one.
pub trait Message: Serialize + DeserializeOwned {
    /// Type of the message, as ROS names it: `package/msg/Name`.
    const TYPE: &'static str;

    /// Definition of the message and of all messages that it contains, in the encoding `ros2msg`.
    fn definition() -> String;
}

/// Encodes a message as little-endian CDR with its encapsulation header.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, cdr_encoding::Error> {
    let mut bytes = vec![0, 1, 0, 0];
    bytes.extend(cdr_encoding::to_vec::<M, LittleEndian>(message)?);
    Ok(bytes)
}

/// Decodes CDR of either endianness with its encapsulation header. Bytes after the message are ignored, as middlewares pad.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, String> {
    let Some((header, payload)) = bytes.split_first_chunk::<ENCAPSULATION>() else {
        let found = bytes.len();
        return Err(format!("{found} bytes are too few for a CDR message: at least {ENCAPSULATION} were expected"));
    };
    // Alignment counts from the end of the header, which is where the decoder starts.
    let decoded = match header[..2] {
        [0, 0] => cdr_encoding::from_bytes::<M, BigEndian>(payload),
        [0, 1] => cdr_encoding::from_bytes::<M, LittleEndian>(payload),
        _ => {
            let (found, expected) = (&header[..2], "plain CDR (00 00 big-endian, 00 01 little-endian) was expected");
            return Err(format!("the encapsulation header is {found:02x?}: {expected}"));
        }
    };
    decoded.map(|(message, _)| message).map_err(|error| format!("not a {}: {error}", M::TYPE))
}

/// The type of a field in a message: a primitive, a message, or a list of either.
trait MessageField {
    /// Name of the type in a definition: `float64`, `package/Name`.
    fn ros_type() -> String;

    /// Appends the types and definitions of the messages that it contains, each once, outer ones first.
    fn collect(_parts: &mut Vec<(String, String)>) {}
}

macro_rules! primitives {
    ($($type:ty = $ros_type:literal),* $(,)?) => {
        $(impl MessageField for $type {
            fn ros_type() -> String {
                $ros_type.into()
            }
        })*
    };
}

primitives! {
    bool = "bool",
    i8 = "int8",
    i32 = "int32",
    u32 = "uint32",
    f32 = "float32",
    f64 = "float64",
    String = "string",
    [f64; 9] = "float64[9]",
    // Nested, because serde implements no array of 36; on the wire they are the same.
    [[f64; 6]; 6] = "float64[36]",
}

impl<T: MessageField> MessageField for Vec<T> {
    fn ros_type() -> String {
        T::ros_type() + "[]"
    }

    fn collect(parts: &mut Vec<(String, String)>) {
        T::collect(parts);
    }
}

/// The `ros2msg` text: the definition of `M`, then that of each part after a line of 80 `=` and a line with its type.
fn definition<M: MessageField>() -> String {
    let mut parts = Vec::new();
    M::collect(&mut parts);
    let separator = "=".repeat(80);
    let texts = parts.into_iter().enumerate().map(|(index, (ros_type, fields))| match index {
        0 => fields,
        _ => format!("{separator}\nMSG: {ros_type}\n{fields}"),
    });
    texts.collect()
}

/// Declares messages: their structs, types and definitions.
macro_rules! messages {
    ($($(#[$doc:meta])* $package:literal $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs)] // Where a field is not documented, its name in the ROS 2 interface says everything.
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl MessageField for $name {
            fn ros_type() -> String {
                concat!($package, "/", stringify!($name)).into()
            }

            fn collect(parts: &mut Vec<(String, String)>) {
                let fields = [$(<$type>::ros_type(), concat!(" ", stringify!($field), "\n").into()),*].concat();
                let part = (Self::ros_type(), fields);
                if !parts.contains(&part) {
                    parts.push(part);
                    $(<$type>::collect(parts);)*
                }
            }
        }

        impl Message for $name {
            const TYPE: &'static str = concat!($package, "/msg/", stringify!($name));

            fn definition() -> String {
                definition::<Self>()
            }
        }
    )*};
}

messages! {
    /// A point in time.
    "builtin_interfaces" Time {
        /// Whole seconds since the epoch.
        sec: i32,
        /// Nanoseconds beyond them.
        nanosec: u32,
    }

    /// When something was measured, and in which frame.
    "std_msgs" Header { stamp: Time, frame_id: String, }

    /// A vector in space.
    "geometry_msgs" Vector3 { x: f64, y: f64, z: f64, }

    /// A point in space, in metres.
    "geometry_msgs" Point { x: f64, y: f64, z: f64, }

    /// A rotation, `w` being the real part.
    "geometry_msgs" Quaternion { x: f64, y: f64, z: f64, w: f64, }

    /// Position and orientation.
    "geometry_msgs" Pose { position: Point, orientation: Quaternion, }

    /// A pose at a point in time.
    "geometry_msgs" PoseStamped {
        /// When, and the frame of the pose.
        header: Header,
        pose: Pose,
    }

    /// A pose and its uncertainty.
    "geometry_msgs" PoseWithCovariance {
        pose: Pose,
        /// Row-major covariance of x, y, z and the rotations about them.
        covariance: [[f64; 6]; 6],
    }

    /// A velocity.
    "geometry_msgs" Twist {
        /// In metres per second.
        linear: Vector3,
        /// In radians per second.
        angular: Vector3,
    }

    /// A velocity and its uncertainty.
    "geometry_msgs" TwistWithCovariance {
        twist: Twist,
        /// Row-major covariance of the linear and the angular velocity.
        covariance: [[f64; 6]; 6],
    }

    /// A rigid transform.
    "geometry_msgs" Transform {
        /// In metres.
        translation: Vector3,
        /// Applied before the translation.
        rotation: Quaternion,
    }

    /// The transform from the frame `child_frame_id` to the header's frame.
    "geometry_msgs" TransformStamped {
        header: Header,
        child_frame_id: String,
        transform: Transform,
    }

    /// The message of `/tf` and `/tf_static`.
    "tf2_msgs" TFMessage { transforms: Vec<TransformStamped>, }

    /// A magnetometer sample.
    "sensor_msgs" MagneticField {
        /// When, and the sensor's frame.
        header: Header,
        /// Along the sensor's axes, in tesla.
        magnetic_field: Vector3,
        /// Row-major covariance of the axes; all zero means unknown.
        magnetic_field_covariance: [f64; 9],
    }

    /// Pose and velocity of the robot, as odometry estimates them.
    "nav_msgs" Odometry {
        /// When, and the frame of the pose.
        header: Header,
        /// The robot's body frame.
        child_frame_id: String,
        /// The body in the header's frame.
        pose: PoseWithCovariance,
        /// The velocity in the body's frame.
        twist: TwistWithCovariance,
    }

    /// The geometry of a grid.
    "nav_msgs" MapMetaData {
        map_load_time: Time,
        /// Side of a cell, in metres.
        resolution: f32,
        /// Number of cells along x.
        width: u32,
        /// Number of cells along y.
        height: u32,
        /// The lower left corner of the lower left cell.
        origin: Pose,
    }

    /// A grid whose cells have a value from 0 to 100 each, or -1 where it is unknown.
    "nav_msgs" OccupancyGrid {
        header: Header,
        info: MapMetaData,
        /// Row-major from the lower left cell.
        data: Vec<i8>,
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
    /// A header with this time and frame.
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

/// The transform made of these parts, unless a number is not finite or the quaternion is not a rotation.
fn isometry(translation: Axes<f64>, rotation: &Quaternion) -> Result<Isometry3<f64>, String> {
    let quaternion = nalgebra::Quaternion::new(rotation.w, rotation.x, rotation.y, rotation.z);
    let expected = "finite numbers and a quaternion of norm one were expected";
    let not_a_pose = || format!("translation {:?} with {rotation:?} is not a pose: {expected}", translation.as_slice());
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
    ///
    /// # Errors
    /// When a number is not finite or the quaternion is not a rotation.
    pub fn isometry(&self) -> Result<Isometry3<f64>, String> {
        isometry(Axes::from(&self.transform.translation), &self.transform.rotation)
    }
}

impl TFMessage {
    /// A message of one transform, from coordinates of `child` to coordinates of `parent`.
    pub fn of_one(stamp: Stamp, parent: &str, child: &str, transform: &Isometry3<f64>) -> Self {
        let (header, transform) = (Header::new(stamp, parent), Transform::from(transform));
        Self { transforms: vec![TransformStamped { header, child_frame_id: child.into(), transform }] }
    }
}

impl OccupancyGrid {
    /// The grid of this geometry; `data` is row-major from the lower left cell.
    pub fn new(stamp: Stamp, frame: &str, geometry: &GridGeometry, data: Vec<i8>) -> Self {
        let [x, y] = geometry.origin();
        let info = MapMetaData {
            map_load_time: stamp.into(),
            resolution: geometry.resolution as f32,
            width: geometry.columns as u32,
            height: geometry.rows as u32,
            origin: Pose::from(&Isometry3::translation(x, y, 0.0)),
        };
        Self { header: Header::new(stamp, frame), info, data }
    }
}

impl MagneticField {
    /// The message of a field; its covariance is all zero, which means unknown.
    pub fn new(stamp: Stamp, field: &reading::MagneticField, frame: impl Into<String>) -> Self {
        Self {
            header: Header::new(stamp, frame),
            magnetic_field: field.to_tesla().into(),
            magnetic_field_covariance: [0.0; 9],
        }
    }

    /// The reading, plausible or not: rejecting it is up to the gates.
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

    /// The pose of the body.
    ///
    /// # Errors
    /// When a number is not finite or the quaternion is not a rotation.
    pub fn to_pose(&self) -> Result<reading::Pose, String> {
        self.pose.pose.at(&self.header.stamp)
    }
}

impl Pose {
    /// The pose at a time.
    fn at(&self, time: &Time) -> Result<reading::Pose, String> {
        let Self { position, orientation } = self;
        let isometry = isometry(Axes::new(position.x, position.y, position.z), orientation)?;
        Ok(reading::Pose {
            stamp: Stamp::from(time),
            position: Point3::from(isometry.translation.vector),
            orientation: isometry.rotation,
        })
    }
}

impl PoseStamped {
    /// The message of a pose in the frame `frame`.
    pub fn from_pose(pose: &reading::Pose, frame: impl Into<String>) -> Self {
        Self { header: Header::new(pose.stamp, frame), pose: Pose::from(&pose.isometry()) }
    }

    /// The pose.
    ///
    /// # Errors
    /// When a number is not finite or the quaternion is not a rotation.
    pub fn to_pose(&self) -> Result<reading::Pose, String> {
        self.pose.at(&self.header.stamp)
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
        assert!(decode::<OccupancyGrid>(&bytes).unwrap_err().starts_with("not a nav_msgs/msg/OccupancyGrid: "));
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
        let (stamp, axes) = (Stamp::from_ros(5, 6), Axes::new(-23.856, -0.079523, -48.241));
        let field = reading::MagneticField::from_microtesla(axes);
        let back = MagneticField::new(stamp, &field, "imu").to_reading();
        assert_eq!(back.stamp, stamp);
        assert!((back.field.microtesla() - axes).norm() < 1e-13);
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
