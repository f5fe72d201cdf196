//! Errors between a source and the map.

use std::io;

use nalgebra::Isometry3;

/// Errors between a source and the map. Bad measurements are not errors: they are rejected and counted, see
/// [`Rejection`](crate::sensing::rejection::Rejection).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mapping thread has ended, so that nothing more can be sent to it.
    #[error("the mapping thread has ended and accepts nothing more; join it to learn why")]
    Closed,
    /// The mapping thread panicked, with this message; the last published map remains.
    #[error("the mapping thread panicked: {0}")]
    Panicked(String),
    /// The operating system could not start the thread.
    #[error("the mapping thread could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// The mount is not a valid transform.
    #[error(
        "a sensor cannot be mounted at {0:?}: expected finite numbers; check the transform from the sensor's frame to the body's"
    )]
    MountNotFinite(Isometry3<f64>),
}
