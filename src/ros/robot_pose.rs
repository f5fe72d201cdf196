//! Where the robot is in the map: its pose, and the transform from the frame of odometry to that of the map.

use nalgebra::Isometry2;
use r2r::geometry_msgs::msg::PoseWithCovarianceStamped;
use r2r::{Node, Publisher, WrappedTypesupport, tf2_msgs::msg::TFMessage};

use super::conversions as convert;
use super::listener::publisher;
use crate::sensing::reading::{Pose, Stamp, in_plane};

/// Publishes `~/pose`.
pub(super) struct RobotPose(Publisher<PoseWithCovarianceStamped>);

/// Publishes the transform on `/tf`.
pub(super) struct MapTransform {
    publisher: Publisher<TFMessage>,
    /// How far ahead it is dated, in seconds.
    tolerance: f64,
}

/// Publishes a message; the next one may succeed if this one fails.
pub(super) fn publish<M: WrappedTypesupport + 'static>(publisher: &Publisher<M>, message: &M) {
    if let Err(error) = publisher.publish(message) {
        log::debug!("a message could not be published: {error}");
    }
}

impl RobotPose {
    pub(super) fn create(node: &mut Node) -> anyhow::Result<Self> {
        publisher(node, "~/pose", true).map(Self)
    }

    /// Publishes the pose of the robot's body in the map, whose frame this is, and the covariance of x, y and heading.
    pub(super) fn publish(
        &self,
        frame: &str,
        odometry: &Pose,
        map_from_odometry: &Isometry2<f64>,
        covariance: &[[f64; 3]; 3],
    ) {
        let pose = map_from_odometry * in_plane(&odometry.isometry());
        let header = convert::header(frame, odometry.stamp);
        publish(&self.0, &convert::pose_with_covariance(header, &pose, covariance));
    }
}

impl MapTransform {
    /// None where that is left to somebody else.
    pub(super) fn create(node: &mut Node, is_wanted: bool, tolerance: f64) -> anyhow::Result<Option<Self>> {
        let publisher = is_wanted.then(|| publisher(node, "/tf", false)).transpose()?;
        Ok(publisher.map(|publisher| Self { publisher, tolerance }))
    }

    /// Publishes it, dated ahead.
    pub(super) fn publish(&self, frame: &str, odometry_frame: &str, stamp: Stamp, transform: &Isometry2<f64>) {
        let header = convert::header(frame, stamp.shifted(self.tolerance));
        publish(&self.publisher, &convert::transforms(header, odometry_frame, transform));
    }
}
